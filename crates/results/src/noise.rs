//! The noise of a machine, as a results folder's manifest contains it, and the limit above which a warning is given.

use serde::{Deserialize, Serialize};
use taut_host::{CorePlan, Machine, SystemActivity, noise_sources};

/// One source of noise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Short name of the source.
    pub name: String,
    /// Effect of this source on the results.
    pub detail: String,
    /// Fraction of its time that a busy loop on the core lost to other tasks; `None` for other sources of noise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<f64>,
}

/// Returns the known sources of noise on the cores of the generator and the device.
pub fn noise(cores: &CorePlan, activity: Option<&SystemActivity>) -> Vec<Noise> {
    noise_sources(&Machine::read(), &[cores.generator, cores.device], activity)
        .into_iter()
        .map(|s| Noise {
            name: s.name,
            detail: format!("{}: {}", s.detail, s.evidence),
            taken: None,
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

/// Returns a warning and its remedy if a source of noise took more than [`MOST_TAKEN`] of a measured core; `None`
/// otherwise.
pub fn busy(noise: &[Noise]) -> Option<String> {
    let taken = taken(noise).unwrap_or_default();
    (taken > MOST_TAKEN).then(|| {
        format!(
            "The machine was busy: other programs took {:.1} % of a measured core, so the latencies include their effect. \
             Find them with taut tune noise, stop them, and measure again.",
            taken * 100.0
        )
    })
}
