//! The limits that the results violate.

use super::{SizeRow, named_size};
use crate::results::{Part, Results};
use taut_measure::quantity::{rate, time};

/// A limit that the results violate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Missed {
    /// The mean throughput of a frame size is below the required throughput.
    #[error("throughput for {} is {}, less than the required {}", named_size(size), rate(*found_pps), rate(*least_pps))]
    Throughput {
        /// Frame size as configured.
        size: String,
        /// Mean throughput over the repetitions, packets per second.
        found_pps: f64,
        /// Required mean throughput, packets per second.
        least_pps: f64,
    },
    /// The 99th percentile of latency at a load is above the allowed maximum.
    #[error("p99 of {load} is {}, more than the allowed {}", time(*p99_ns), time(*most_ns))]
    Latency {
        /// Frame size and rate at which latency was measured.
        load: String,
        /// The measured 99th percentile of latency, ns.
        p99_ns: f64,
        /// Maximum allowed 99th percentile of latency, ns.
        most_ns: f64,
    },
    /// The throughput of a frame size is unknown, so its limit counts as violated.
    #[error("no throughput for {}: no search finished", named_size(size))]
    ThroughputUnknown {
        /// Frame size as configured.
        size: String,
    },
    /// The 99th percentile of latency at a load is unknown, so its limit counts as violated.
    #[error("no 99th percentile of latency for {load}: too few packets came back")]
    LatencyUnknown {
        /// Frame size and rate at which latency was measured.
        load: String,
    },
    /// Latency was not measured at any load, so its limit counts as violated.
    #[error("no 99th percentile of latency for {of}: latency was not measured at any load")]
    NoLatency {
        /// Name of the frame size, or a text such as `the soak of 64 bytes`.
        of: String,
    },
}

/// Returns the violated limits. The limit of a value that was requested and could not be measured counts as violated.
pub(super) fn missed(results: &Results, rows: &[SizeRow]) -> Vec<Missed> {
    let settings = &results.head.settings;
    let limits = settings.limits;
    let mut missed = Vec::new();
    for row in rows {
        let size = row.size.clone();
        missed.extend(match (limits.min_throughput_pps, &row.throughput) {
            (Some(least_pps), Some(found)) if found.mean_pps < least_pps => {
                Some(Missed::Throughput {
                    size,
                    found_pps: found.mean_pps,
                    least_pps,
                })
            }
            (Some(_), None) => Some(Missed::ThroughputUnknown { size }),
            _ => None,
        });
        for load in &row.latency {
            let p99 = load.quantiles.iter().find(|q| q.quantile == 0.99);
            let name = format!("{} at {}", named_size(&row.size), rate(load.rate_pps));
            missed.extend(too_slow(limits.max_p99_ns, p99.and_then(|q| q.ns), name));
        }
        if limits.max_p99_ns.is_some() && settings.has(Part::Latency) && row.latency.is_empty() {
            let of = named_size(&row.size);
            missed.push(Missed::NoLatency { of });
        }
    }
    match &results.soak {
        Some(soak) => {
            let p99 = soak.latency.as_ref().and_then(|l| l.p99_ns);
            let offered = rate(soak.counts.offered_pps);
            let name = format!("{} in the soak at {offered}", named_size(&soak.size));
            missed.extend(too_slow(limits.max_p99_ns, p99.map(|ns| ns as f64), name));
        }
        None if limits.max_p99_ns.is_some() && settings.has(Part::Soak) => {
            let sizes = results.head.sizes.iter().map(|it| named_size(it));
            let sizes: Vec<String> = sizes.collect();
            let of = format!("the soak of {}", sizes.join(", "));
            missed.push(Missed::NoLatency { of });
        }
        None => {}
    }
    missed
}

/// Compares the 99th percentile of a load with its limit; none if there is no limit, or if the limit is met. An unknown
/// percentile violates the limit.
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
    use crate::made_up;
    use taut_results::Completion;

    #[test]
    fn low_throughput_and_high_or_unknown_latency_violate_their_limits() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        let missed = Evaluation::of(&results).missed;
        let of_imix = Missed::LatencyUnknown {
            load: "IMIX at 100 kpkt/s".to_owned(),
        };
        let [throughput, few, slow, unsearched, imix, soak] = missed.as_slice() else {
            panic!("{missed:?}");
        };
        assert!(matches!(throughput, Missed::Throughput { least_pps, .. } if *least_pps == 2e6));
        assert!(matches!(few, Missed::LatencyUnknown { .. }));
        assert!(matches!(slow, Missed::Latency { most_ns, .. } if *most_ns == 1_000.0));
        assert!(matches!(unsearched, Missed::ThroughputUnknown { size } if size == "imix"));
        assert_eq!(*imix, of_imix);
        let text = soak.to_string();
        assert!(
            text.starts_with("p99 of 64 bytes in the soak at 1.00 kpkt/s is "),
            "{text}"
        );
    }

    #[test]
    fn limits_count_as_missed_if_their_quantity_was_not_measured() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let mut results = Results::load(&dir).unwrap();
        results.units.clear();
        results.soak = None;
        let said = |results: &Results| -> Vec<String> {
            let missed = Evaluation::of(results).missed;
            missed.iter().map(ToString::to_string).collect()
        };
        let all = said(&results);
        let wanted = [
            "no throughput for 64 bytes: no search finished",
            "no 99th percentile of latency for 64 bytes: latency was not measured at any load",
            "no throughput for IMIX: no search finished",
            "no 99th percentile of latency for IMIX: latency was not measured at any load",
            "no 99th percentile of latency for the soak of 64 bytes, IMIX: latency was not measured at any load",
        ];
        assert_eq!(all, wanted);
        // Latency was not requested.
        results.head.settings.parts = vec![Part::Throughput];
        assert_eq!(said(&results).len(), 2);
        results.head.settings.limits = Default::default();
        assert!(said(&results).is_empty());
    }
}
