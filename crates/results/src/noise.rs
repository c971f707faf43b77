//! The noise of a machine, as a results folder's manifest contains it, and the limit above which a warning is given.

use serde::{Deserialize, Serialize};
use taut_host::noise::OTHER_PROGRAMS;
use taut_host::{CorePlan, Machine, SystemActivity, noise_sources};

/// One source of noise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Short name of the source of noise.
    pub name: String,
    /// Effect of this source of noise on the results.
    pub detail: String,
    /// Fraction of its time that a busy loop on the core lost to other tasks; `None` for other sources of noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<f64>,
    /// Names of the programs that used the most processor time; empty for other sources of noise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
}

/// Returns the known sources of noise on the cores of the generator and the device.
pub fn noise(cores: &CorePlan, activity: Option<&SystemActivity>) -> Vec<Noise> {
    let busiest = || activity.map(SystemActivity::busiest).unwrap_or_default();
    noise_sources(&Machine::read(), &[cores.generator, cores.device], activity)
        .into_iter()
        .map(|s| Noise {
            detail: format!("{}: {}", s.detail, s.evidence),
            taken: None,
            programs: if s.name == OTHER_PROGRAMS {
                busiest()
            } else {
                Vec::new()
            },
            name: s.name,
        })
        .collect()
}

/// Fraction of a core's time that other tasks take, above which latencies are no longer representative.
pub const MOST_TAKEN: f64 = 0.02;

/// Returns the largest fraction of a measured core that other programs took; `None` if it was not measured.
pub fn taken(noise: &[Noise]) -> Option<f64> {
    noise
        .iter()
        .filter_map(|noise| noise.taken)
        .reduce(f64::max)
}

/// Returns the names of the programs that used the most processor time.
pub fn programs(noise: &[Noise]) -> Vec<String> {
    let names = noise.iter().flat_map(|noise| &noise.programs);
    names.cloned().collect()
}

/// Returns a warning and its remedy if other programs took more than [`MOST_TAKEN`] of a measured core; `None`
/// otherwise.
pub fn busy(noise: &[Noise]) -> Option<String> {
    busy_with(taken(noise)?, &programs(noise))
}

/// Returns the warning of [`busy`] for the fraction of a core that other programs took, with their names.
pub fn busy_with(taken: f64, programs: &[String]) -> Option<String> {
    (taken > MOST_TAKEN).then(|| {
        format!(
            "The machine was busy: {}, so latencies and rates include their effect. Stop them (taut tune noise lists \
             them), and measure again.",
            taken_text(taken, programs)
        )
    })
}

/// Describes the fraction of a core's time that other programs took, and names these programs.
pub fn taken_text(taken: f64, programs: &[String]) -> String {
    let names = match programs {
        [] => String::new(),
        programs => format!(" (most: {})", programs.join(", ")),
    };
    format!(
        "{:.1} % of a core went to other programs{names}",
        taken * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_machine_is_reported_with_its_programs() {
        let noise = |taken, programs: &[&str]| Noise {
            name: "a".to_owned(),
            detail: String::new(),
            taken,
            programs: programs.iter().map(|&name| name.to_owned()).collect(),
        };
        let busy_with = |taken| busy(&[noise(Some(taken), &[]), noise(None, &["cc1", "ld"])]);
        let warning = busy_with(0.123).unwrap_or_default();
        assert!(
            warning.contains("12.3 % of a core went to other programs (most: cc1, ld), so"),
            "{warning}"
        );
        assert_eq!(busy_with(MOST_TAKEN), None);
        assert_eq!(busy(&[noise(None, &["cc1"])]), None);
        assert_eq!(
            taken_text(0.5, &[]),
            "50.0 % of a core went to other programs"
        );
    }
}
