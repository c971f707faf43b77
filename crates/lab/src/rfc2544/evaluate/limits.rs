//! Limits that the device was held to, and missed.

use super::SizeRow;
use crate::rfc2544::results::Results;
use taut_measure::quantity::{rate, time};

/// A limit that was missed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Missed {
    /// The throughput is too low.
    #[error("throughput of {size} bytes is {}, less than the {} asked for", rate(*found_pps), rate(*least_pps))]
    Throughput {
        /// Frame size as asked for.
        size: String,
        /// Mean throughput, packets per second.
        found_pps: f64,
        /// The least that was asked for.
        least_pps: f64,
    },
    /// The 99th percentile of a load is too high.
    #[error("p99 of {load} is {}, more than the {} asked for", time(*p99_ns), time(*most_ns))]
    Latency {
        /// Frame size and rate.
        load: String,
        /// The percentile, ns.
        p99_ns: f64,
        /// The most that was asked for, ns.
        most_ns: f64,
    },
    /// The 99th percentile of a load is not known.
    #[error("p99 of {load} is not known: too few packets came back")]
    LatencyUnknown {
        /// Frame size and rate.
        load: String,
    },
}

pub(super) fn missed(results: &Results, rows: &[SizeRow]) -> Vec<Missed> {
    let limits = results.head.settings.limits;
    let mut missed = Vec::new();
    for row in rows {
        if let (Some(least_pps), Some(found)) = (limits.min_throughput_pps, &row.throughput)
            && found.mean_pps < least_pps
        {
            missed.push(Missed::Throughput {
                size: row.size.clone(),
                found_pps: found.mean_pps,
                least_pps,
            });
        }
        for load in &row.latency {
            let p99 = load.quantiles.iter().find(|q| q.quantile == 0.99);
            let name = format!("{} bytes at {}", row.size, rate(load.rate_pps));
            missed.extend(too_slow(limits.max_p99_ns, p99.and_then(|q| q.ns), name));
        }
    }
    if let Some(soak) = &results.soak {
        let p99 = soak.latency.as_ref().and_then(|l| l.p99_ns);
        let offered = rate(soak.counts.offered_pps);
        let name = format!("{} bytes in the soak at {offered}", soak.size);
        missed.extend(too_slow(limits.max_p99_ns, p99.map(|ns| ns as f64), name));
    }
    missed
}

/// Whether the 99th percentile of a load misses its limit; one that is not known does.
fn too_slow(most_ns: Option<f64>, p99_ns: Option<f64>, load: String) -> Option<Missed> {
    let most_ns = most_ns?;
    match p99_ns {
        Some(p99_ns) => (p99_ns > most_ns).then_some(Missed::Latency {
            load,
            p99_ns,
            most_ns,
        }),
        None => Some(Missed::LatencyUnknown { load }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Evaluation;
    use super::*;
    use crate::rfc2544::made_up;
    use taut_results::Completion;

    #[test]
    fn too_low_a_throughput_and_latencies_that_are_too_long_or_unknown_miss_their_limits() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        let missed = Evaluation::of(&results).missed;
        let of_imix = Missed::LatencyUnknown {
            load: "imix bytes at 100 kpkt/s".to_owned(),
        };
        let [throughput, few, slow, imix, soak] = missed.as_slice() else {
            panic!("{missed:?}");
        };
        assert!(matches!(throughput, Missed::Throughput { least_pps, .. } if *least_pps == 2e6));
        assert!(matches!(few, Missed::LatencyUnknown { .. }));
        assert!(matches!(slow, Missed::Latency { most_ns, .. } if *most_ns == 1_000.0));
        assert_eq!(*imix, of_imix);
        let text = soak.to_string();
        assert!(
            text.starts_with("p99 of 64 bytes in the soak at 1.00 kpkt/s is "),
            "{text}"
        );
    }
}
