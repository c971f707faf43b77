//! Bars in text that show the used fraction of each resource at the rate at which the first resource is exhausted.

use taut_figure::table;
use taut_measure::quantity::{rate, share};
use taut_model::resource::{Carried, Limit};

/// Width of a full bar, characters.
const WIDE: usize = 40;

/// Returns a line for each resource, with the rate that this resource alone would carry, and its used fraction at the
/// machine's highest rate.
pub fn bars(carried: &Carried) -> String {
    let mut out = table::plain();
    for limit in &carried.limits {
        out.add_row(row(limit, carried));
    }
    table::set_columns(&mut out, None);
    table::text(out, &[], None)
}

fn row(limit: &Limit, carried: &Carried) -> [String; 4] {
    let name = format!("{:?}", limit.resource).to_lowercase();
    let (Some(alone), Some(headroom)) = (limit.rate_pps, limit.headroom) else {
        return [name, "unknown".to_owned(), String::new(), String::new()];
    };
    let used = (1.0 - headroom).clamp(0.0, 1.0);
    let full = ((used * WIDE as f64).round() as usize).min(WIDE);
    let note = if limit.resource == carried.binding {
        "binds".to_owned()
    } else if limit.may_bind {
        format!("{} left; may bind, within the intervals", share(headroom))
    } else {
        format!("{} left", share(headroom))
    };
    [
        name,
        rate(alone.value),
        format!(
            "{}{}",
            "\u{2588}".repeat(full),
            "\u{2591}".repeat(WIDE - full)
        ),
        note,
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_model::estimate::Estimate;
    use taut_model::resource::{Costs, Machine, Packets};

    #[test]
    fn limiting_resources_fill_their_bars_and_unknown_resources_are_marked() {
        let machine = Machine {
            ethernet_bit_s: Some(10e9),
            ..Machine::new(1, 3.3e9).unwrap()
        };
        let given = |cycles| Estimate::given(cycles).unwrap();
        let costs = Costs::per_packet(given(100.0), given(350.0));
        let carried = machine
            .carried(&costs, &Packets::new(64.0, 1.0).unwrap(), None)
            .unwrap();
        let text = bars(&carried);
        let line = |name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .unwrap()
                .to_owned()
        };
        assert!(
            line("processor").contains("binds")
                && line("processor").contains(&"\u{2588}".repeat(WIDE))
        );
        assert!(line("ethernet").contains("14.9 Mpkt/s") && line("ethernet").contains("left"));
        assert!(line("memory").ends_with("unknown"), "{text}");
    }
}
