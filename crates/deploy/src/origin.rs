//! Describes earlier measurements of input and output costs by `taut bench io`: their age, the noise of the machine,
//! and whether they were made on this machine.

use std::time::{Duration, SystemTime};
use taut_host::Machine;
use taut_model::io_costs::IoCosts;
use taut_results::{MOST_TAKEN, moment};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns date, machine and noise of a measurement, as text for the end of a sentence.
pub fn origin(costs: &IoCosts) -> String {
    let here = Machine::read().cpu_model.map(|fact| fact.value);
    origin_at(costs, SystemTime::now(), here.as_deref())
}

fn origin_at(costs: &IoCosts, now: SystemTime, here: Option<&str>) -> String {
    // A clock that was set back must not give a negative age.
    let age = moment(&costs.measured).map(|then| now.duration_since(then).unwrap_or_default());
    let age = age.map(|age| age.as_secs() / DAY.as_secs());
    let age = match age {
        Some(0) => format!("today ({})", costs.measured),
        Some(1) => format!("yesterday ({})", costs.measured),
        Some(days) => format!("{days} days ago ({})", costs.measured),
        None => format!("at \"{}\", which is not a time", costs.measured),
    };
    let place = match (costs.cpu.as_deref(), here) {
        (Some(cpu), Some(here)) if cpu != here => {
            format!("on another machine ({cpu}; this one is {here})")
        }
        (Some(cpu), _) => format!("on {cpu}"),
        (None, _) => "on a processor that is not named".to_owned(),
    };
    let noise = costs.taken.map_or_else(
        || "the share of other programs is unknown".to_owned(),
        |taken| {
            let busy = if taken > MOST_TAKEN {
                ": too much for reliable figures"
            } else {
                ""
            };
            format!("other programs took {:.1} % of a core{busy}", taken * 100.0)
        },
    );
    format!(
        "measured by taut bench io {age} {place}, with {}-byte frames; {noise}",
        costs.frame_bytes
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn measured_costs_are_reported_with_age_machine_and_interference() {
        let costs = IoCosts {
            measured: "2026-11-25T03:00:00Z".to_owned(),
            cpu: Some("A".to_owned()),
            taken: Some(0.038),
            frame_bytes: 64,
            ports: Vec::new(),
        };
        let then = moment(&costs.measured).unwrap();
        assert_eq!(
            origin_at(&costs, then + 3 * DAY, Some("A")),
            "measured by taut bench io 3 days ago (2026-11-25T03:00:00Z) on A, with 64-byte frames; other programs took 3.8 % of a core: too much for reliable figures"
        );
        assert!(origin_at(&costs, then - DAY, Some("A")).contains("today"));
        assert!(
            origin_at(&costs, then + DAY, Some("B"))
                .contains("yesterday (2026-11-25T03:00:00Z) on another machine (A; this one is B)")
        );
        let unknown = IoCosts {
            measured: "once".to_owned(),
            cpu: None,
            taken: None,
            ..costs
        };
        let told = origin_at(&unknown, then, None);
        assert!(
            told.contains("\"once\", which is not a time") && told.contains("is unknown"),
            "{told}"
        );
    }
}
