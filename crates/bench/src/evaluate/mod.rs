//! Latency over time and the causes of the slowest packets, as reports compute them from the packets of a measurement.

mod causes;
mod slowest;
mod timeline;

pub use causes::{Aliasing, Causes, RunCauses};
pub use slowest::{SlowestPackets, SlowestSummary};
pub use timeline::{Collector, Timeline};

use taut_results::CoreInterruptions;

/// Returns the fraction of `seconds` for which a core was interrupted. It is a lower bound if the log omits some
/// interruptions.
pub fn share_of(core: &CoreInterruptions, seconds: f64) -> f64 {
    let lengths_ns: u64 = core.each.iter().map(|(_, length_ns)| length_ns).sum();
    let share = lengths_ns as f64 / 1e9 / seconds;
    if share.is_finite() { share } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_take_the_sum_of_their_lengths() {
        let core = CoreInterruptions {
            unkept: 0,
            each: vec![(0, 10_000_000), (5, 30_000_000)],
        };
        assert_eq!(share_of(&core, 2.0), 0.02);
        assert_eq!(share_of(&core, 0.0), 0.0);
    }
}
