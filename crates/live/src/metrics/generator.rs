//! A generator's streams as OpenMetrics.

use super::{Exposition, Kind};
use taut_measure::LatencyHistogram;
use taut_traffic::{Counts, StreamView};

/// Limits of the latency buckets, ns: 1, 2 and 5 in every decade from 1 µs to 1 s.
fn limits_ns() -> impl Iterator<Item = u64> {
    (3..9)
        .flat_map(|decade| [1, 2, 5].map(|step| step * 10_u64.pow(decade)))
        .chain([1_000_000_000])
}

/// Percentiles that are reported for the last interval, each with its label and its fraction.
const PERCENTILES: [(&str, f64); 4] = [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999)];

/// A function that returns one of the counts of a stream.
type Count = fn(&Counts) -> u64;

/// Counters of each stream.
const COUNTERS: [(&str, &str, Count); 4] = [
    (
        "taut_generate_sent_packets",
        "Packets passed to the port.",
        |c| c.sent,
    ),
    (
        "taut_generate_refused_packets",
        "Packets that the port had no space for.",
        |c| c.refused,
    ),
    (
        "taut_generate_received_packets",
        "Packets that came back intact, including copies.",
        |c| c.received,
    ),
    (
        "taut_generate_corrupt_packets",
        "Packets that came back damaged.",
        |c| c.corrupt,
    ),
];

/// Returns the current metrics of all streams. Metrics named `last` cover the time between the last two updates.
pub fn generator_metrics(streams: &[StreamView]) -> String {
    let mut text = Exposition::new();
    for (name, help, of) in COUNTERS {
        text.family(name, Kind::Counter, "packets", help);
        for stream in streams {
            text.sample(&[("stream", &stream.name)], of(&stream.counts) as f64);
        }
    }
    text.family(
        "taut_generate_missing_packets",
        Kind::Gauge,
        "packets",
        "Packets that are missing although later ones came back: lost, refused, damaged, or out of order.",
    );
    for stream in streams {
        text.sample(&[("stream", &stream.name)], stream.total.missing as f64);
    }
    text.family(
        "taut_generate_asked_packets_per_second",
        Kind::Gauge,
        "",
        "The requested rate.",
    );
    for stream in streams {
        text.sample(&[("stream", &stream.name)], stream.asked_pps);
    }
    text.family(
        "taut_generate_latency_seconds",
        Kind::Histogram,
        "seconds",
        "Round trip from the send stamp to the arrival.",
    );
    for stream in streams {
        let labels = [("stream", stream.name.as_str())];
        histogram(&mut text, &labels, &stream.total.latency);
    }
    add_last_latencies(&mut text, streams);
    text.finish()
}

/// Adds the percentiles of the last interval of each stream.
fn add_last_latencies(text: &mut Exposition, streams: &[StreamView]) {
    text.family(
        "taut_generate_last_latency_seconds",
        Kind::Gauge,
        "seconds",
        "Percentiles of the latencies of the last second.",
    );
    for stream in streams {
        let Some(last) = &stream.last else {
            continue;
        };
        for (percentile, q) in PERCENTILES {
            if let Some(ns) = last.latency.quantile(q) {
                let labels = [("stream", stream.name.as_str()), ("percentile", percentile)];
                text.sample(&labels, ns as f64 / 1e9);
            }
        }
    }
}

fn histogram(text: &mut Exposition, labels: &[(&str, &str)], latency: &LatencyHistogram) {
    let count = latency.count();
    let at_most = limits_ns().map(|limit_ns| {
        let n = count - latency.count_above(limit_ns).min(count);
        (limit_ns as f64 / 1e9, n)
    });
    let sum = latency.mean_ns().unwrap_or(0.0) * count as f64 / 1e9;
    text.histogram(labels, at_most, count, sum);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_measure::SequenceTracker;
    use taut_sys::Clock;

    #[test]
    fn latency_buckets_are_cumulative_and_percentiles_are_in_seconds() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let (mut live, mut view) = taut_traffic::live("voice", 1000.0, Some(&clock));
        let mut seen = SequenceTracker::new();
        for sequence in 0..100 {
            live.sent(sequence, sequence * 1000, 0, &seen);
            live.received(sequence, 1500 + sequence * 100_000, sequence);
            seen.record(sequence);
        }
        view.ask();
        live.sent(100, 100_000, 0, &seen);
        view.look(std::time::Duration::from_secs(10));
        let text = generator_metrics(&[view]);
        assert!(
            text.contains("taut_generate_sent_packets_total{stream=\"voice\"} 101\n"),
            "{text}"
        );
        let buckets: Vec<u64> = text
            .lines()
            .filter(|line| line.starts_with("taut_generate_latency_seconds_bucket"))
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(buckets.is_sorted() && buckets.len() == 20, "{buckets:?}");
        assert_eq!((buckets[0], buckets[19]), (0, 100));
        let median = "taut_generate_last_latency_seconds{stream=\"voice\",percentile=\"50\"} ";
        let line = text.lines().find(|line| line.starts_with(median)).unwrap();
        let seconds: f64 = line[median.len()..].parse().unwrap();
        assert!((0.0049..0.0050).contains(&seconds), "{line}");
    }
}
