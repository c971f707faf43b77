//! The disturbance of runs by other programs, and by a generator that did not keep its rate.

use crate::folder::IndexedRun;
use crate::metrics;
use std::collections::BTreeMap;
use taut_bench::report::LEAST_SENT;
use taut_host::most_taken;
use taut_measure::median;
use taut_results::{MOST_TAKEN, taken_text};

/// Words in the names of metrics that a few disturbed packets change: means, maxima, spreads, losses and rates.
const FRAGILE: [&str; 11] = [
    "average",
    "avg",
    "jitter",
    "loss",
    "lost",
    "max",
    "mean",
    "pps",
    "rate",
    "std",
    "throughput",
];

/// Lowest percentile that a few disturbed packets change, so that it is fragile.
const FRAGILE_PERCENTILE: u32 = 99;

/// Returns the largest fraction of a measured core's time that other programs took in a run. The metrics of the run
/// contain it as interruptions that a polling loop logged, as the fraction that a busy loop lost, or as steal time.
///
/// Interruptions count only up to the processor time of other processes: the remaining time is the kernel's work for
/// the measured packets.
pub(super) fn taken(run: &IndexedRun) -> f64 {
    let of = |(name, value): (&String, &f64)| {
        if name.ends_with("taken_share") {
            return Some(*value);
        }
        if let Some(core) = name.strip_suffix("_interruptions.share") {
            let step = core.rsplit_once('.').map_or("", |(step, _)| step);
            return Some(value.min(most_taken_in(run, step)));
        }
        // Such a name is `activity.cores.0.steal_ms`.
        let (before, _) = name.strip_suffix(".steal_ms")?.rsplit_once("cores.")?;
        let duration_ms = run.metrics.get(&format!("{before}duration_ms"))?;
        (*duration_ms > 0.0).then(|| value / duration_ms)
    };
    run.metrics.iter().filter_map(of).fold(0.0, f64::max)
}

/// Returns the fraction of a step's time that the busiest other processes and the largest steal time take together. It
/// is 0 for runs of versions before 0.3, which do not record other processes.
fn most_taken_in(run: &IndexedRun, step: &str) -> f64 {
    let prefix = match step {
        "" => "activity.".to_owned(),
        step => format!("{step}.activity."),
    };
    let below = |name: &str, end: &'static str| {
        let prefix = format!("{prefix}{name}.");
        let values = run.metrics.range(prefix.clone()..);
        let values = values.take_while(move |(name, _)| name.starts_with(&prefix));
        values.filter_map(move |(name, value)| name.ends_with(end).then_some(*value))
    };
    let duration_ms = run.metrics.get(&format!("{prefix}duration_ms"));
    let duration_ms = duration_ms.copied().unwrap_or_default();
    most_taken(
        below("others", ".ms"),
        below("cores", ".steal_ms"),
        duration_ms,
    )
}

/// Returns true if the load generator sent less than the requested rate in a run. Packets that the device refused count
/// as sent.
pub(super) fn is_behind(run: &IndexedRun) -> bool {
    run.metrics.iter().any(|(name, asked)| {
        let Some(prefix) = name.strip_suffix("asked_pps") else {
            return false;
        };
        let of = |name: &str| run.metrics.get(&format!("{prefix}{name}")).copied();
        let refused = match (of("tally.refused"), of("tally.sent")) {
            (Some(refused), Some(sent)) if sent > 0.0 => refused / sent,
            _ => 0.0,
        };
        of("sent_pps").is_some_and(|sent| sent * (1.0 + refused) < LEAST_SENT * asked)
    })
}

/// Returns true if a few disturbed packets of a run change the metric. Medians and percentiles below 99 hardly move.
pub(super) fn is_fragile(run: &IndexedRun, metric: &str) -> bool {
    let is_fragile = |word: &str| {
        let percentile = word.strip_prefix('p').and_then(|of| of.parse::<u32>().ok());
        FRAGILE.contains(&word) || percentile.is_some_and(|it| it >= FRAGILE_PERCENTILE)
    };
    // In a list of quantiles, a second metric of the same index is the quantile, as in `quantiles.2.ns` and
    // `quantiles.2.quantile`.
    let quantile = metric
        .strip_suffix(".ns")
        .and_then(|quantile| metrics::find(&run.metrics, &format!("{quantile}.quantile")));
    // The first part of a longer name is that of a step, which may be any word.
    let own = metric.split_once('.').map_or(metric, |(_, own)| own);
    own.split(['.', '_']).any(is_fragile)
        || quantile.is_some_and(|it| it * 100.0 >= f64::from(FRAGILE_PERCENTILE))
}

/// Returns the reason why a value from the given runs counts as not measured; `None` if other programs disturbed fewer
/// than half of the runs.
pub(super) fn reason(runs: &[&IndexedRun]) -> Option<String> {
    let count = runs.len();
    let shares = runs.iter().map(|run| (taken(run), *run));
    let (shares, busy): (Vec<f64>, Vec<&IndexedRun>) =
        shares.filter(|(share, _)| *share > MOST_TAKEN).unzip();
    if 2 * busy.len() < count {
        return None;
    }
    let text = taken_text(median(&shares)?, &programs(&busy));
    Some(format!("{text} in {} of {count} runs", busy.len()))
}

/// Returns the names of up to two programs that were among the busiest in the most runs.
pub(super) fn programs(runs: &[&IndexedRun]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for name in runs.iter().flat_map(|run| &run.programs) {
        *counts.entry(name).or_default() += 1;
    }
    let mut names: Vec<(&str, usize)> = counts.into_iter().collect();
    names.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names = names.into_iter().take(2);
    names.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::variables::Values;

    fn run(metrics: &[(&str, f64)]) -> IndexedRun {
        let metrics = metrics.iter();
        IndexedRun {
            id: "v1-r1".to_owned(),
            variant: 1,
            repetition: 1,
            warm_up: false,
            seconds: 1.0,
            variables: Values::default(),
            metrics: metrics
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            programs: Vec::new(),
            checksum: String::new(),
        }
    }

    #[test]
    fn stolen_and_interrupted_time_is_found_in_metrics() {
        assert_eq!(taken(&run(&[("lost", 3.0)])), 0.0);
        assert_eq!(taken(&run(&[("rate.taken_share", 0.3)])), 0.3);
        let interrupted = [
            ("device_interruptions.share", 0.01),
            ("x.generator_interruptions.share", 0.04),
        ];
        assert_eq!(taken(&run(&interrupted)), 0.0, "no other process");
        let with_others = |ms| {
            let others = [
                ("x.activity.duration_ms", 1_000.0),
                ("x.activity.others.0.ms", ms),
            ];
            taken(&run(&[&interrupted[..], &others].concat()))
        };
        assert_eq!((with_others(30.0), with_others(500.0)), (0.03, 0.04));
        let stolen = [
            ("t.activity.duration_ms", 1_000.0),
            ("t.activity.cores.1.steal_ms", 50.0),
        ];
        assert_eq!(taken(&run(&stolen)), 0.05);
        assert_eq!(taken(&run(&stolen[1..])), 0.0);
    }

    #[test]
    fn refused_packets_do_not_mark_the_generator_as_slow() {
        let mut metrics = vec![("x.asked_pps", 100.0), ("x.sent_pps", 60.0)];
        assert!(is_behind(&run(&metrics)));
        metrics.extend([("x.tally.sent", 600.0), ("x.tally.refused", 400.0)]);
        assert!(!is_behind(&run(&metrics)));
        assert!(!is_behind(&run(&[("asked_pps", 100.0)])));
    }

    #[test]
    fn disturbances_affect_tails_means_losses_and_rates_but_not_medians() {
        let list = run(&[("q.0.quantile", 0.9), ("q.1.quantile", 0.99)]);
        for fragile in [
            "latency_ns.p99_ns",
            "x.latency_ns.p99_9_ns",
            "latency_ns.max_ns",
            "latency_ns.avg_ns",
            "jitter_ns.std_ns",
            "lost_share",
            "received_pps",
            "rate.sizes.0.throughput.min",
            "q.1.ns",
        ] {
            assert!(is_fragile(&list, fragile), "{fragile}");
        }
        for robust in [
            "latency_ns.p50_ns",
            "rate.latency_ns.p50_ns",
            "latency_ns.p95_ns",
            "latency_ns.min_ns",
            "packet.cycles",
            "q.0.ns",
        ] {
            assert!(!is_fragile(&list, robust), "{robust}");
        }
    }

    #[test]
    fn disturbed_runs_are_counted_and_their_programs_named() {
        let quiet = run(&[("taken_share", 0.0)]);
        let mut busy = run(&[("taken_share", 0.12)]);
        busy.programs = vec!["cc1".to_owned()];
        assert_eq!(reason(&[]), None);
        assert_eq!(reason(&[&quiet, &quiet, &busy]), None);
        assert_eq!(
            reason(&[&quiet, &busy]).unwrap(),
            "12.0 % of a core went to other programs (most: cc1) in 1 of 2 runs"
        );
    }
}
