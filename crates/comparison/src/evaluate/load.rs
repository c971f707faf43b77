//! Latency over offered rate: the sweeps' trials of all repetitions, grouped by rate.

use taut_results::{Run, SweepTrial};

use super::Spread;

/// The trials of all repetitions at about the same offered rate.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPoint {
    /// Sent rate, mean over the trials, packets per second.
    pub sent_pps: f64,
    /// Mean latency of the trials, ns.
    pub avg_ns: Spread,
    /// Maximum latency of the trials, ns.
    pub max_ns: Spread,
    /// Lost or refused fraction of the scheduled packets, over all trials.
    pub loss: f64,
}

/// Maximum relative difference between offered rates that are grouped.
const SAME_RATE: f64 = 0.01;

/// Returns the points of a device in increasing order of the rate. Trials without latency are skipped. Trials in which
/// the generator fell behind without loss or refusal are skipped too, because they show no limit of the device.
pub(super) fn points(runs: &[&Run]) -> Vec<LoadPoint> {
    let mut trials: Vec<&SweepTrial> = runs
        .iter()
        .filter_map(|run| run.sweep.as_ref())
        .flat_map(|sweep| &sweep.trials)
        .filter(|trial| trial.latency.is_some())
        .filter(|trial| !trial.behind || trial.lost + trial.refused > 0)
        .collect();
    trials.sort_by(|a, b| a.offered_pps.total_cmp(&b.offered_pps));
    trials
        .chunk_by(|a, b| b.offered_pps <= a.offered_pps * (1.0 + SAME_RATE))
        .filter_map(point)
        .collect()
}

fn point(trials: &[&SweepTrial]) -> Option<LoadPoint> {
    let latencies = || trials.iter().filter_map(|trial| trial.latency.as_ref());
    let due: u64 = trials.iter().map(|trial| trial.sent + trial.refused).sum();
    let gone: u64 = trials.iter().map(|trial| trial.lost + trial.refused).sum();
    Some(LoadPoint {
        sent_pps: trials.iter().map(|trial| trial.sent_pps).sum::<f64>() / trials.len() as f64,
        avg_ns: Spread::of(latencies().map(|latency| latency.avg_ns))?,
        max_ns: Spread::of(latencies().map(|latency| latency.max_ns as f64))?,
        loss: if due == 0 {
            0.0
        } else {
            gone as f64 / due as f64
        },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_measure::Summary;
    use taut_results::Sweep;

    fn trial(offered_pps: f64, latency_ns: u64, behind: bool) -> SweepTrial {
        SweepTrial {
            offered_pps,
            sent_pps: offered_pps,
            received_pps: offered_pps,
            sent: 90,
            received: if behind { 90 } else { 89 },
            lost: u64::from(!behind),
            refused: if behind { 0 } else { 10 },
            behind,
            latency: Summary::from_samples(&[latency_ns]),
            seconds: 1.0,
        }
    }

    fn run(repetition: u32, trials: Vec<SweepTrial>) -> Run {
        let sweep = Some(Sweep {
            trials,
            search: None,
        });
        Run {
            device_id: "a".to_owned(),
            repetition,
            dir: "a".into(),
            name: taut_results::InsidePath::new("a").unwrap(),
            cbr: None,
            sweep,
            interruptions: None,
            taken: None,
        }
    }

    #[test]
    fn equal_rate_trials_are_merged_and_late_trials_are_skipped() {
        let first = run(1, vec![trial(1e6, 300, false), trial(1e5, 100, false)]);
        let second = run(2, vec![trial(1.001e5, 120, false), trial(4e6, 9, true)]);
        let points = points(&[&first, &second]);
        assert_eq!(points.len(), 2);
        assert_eq!(
            (
                points[0].avg_ns.min,
                points[0].avg_ns.max,
                points[0].avg_ns.count
            ),
            (100.0, 120.0, 2)
        );
        assert_eq!(points[1].avg_ns.median, 300.0);
        assert_eq!(points[0].loss, 0.11);
    }
}
