//! A worker's counters as OpenMetrics.

use super::functions::function_metrics;
use super::{Exposition, Kind};
use taut_engine::{Count, CountersView};

/// The metrics of a worker at this moment, with what its functions count for others.
pub fn forwarder_metrics(counters: &CountersView, functions: &[Count]) -> String {
    let mut text = Exposition::new();
    let totals = [
        (
            "taut_forward_received_packets",
            "packets",
            "Received from all ports.",
            counters.rx_packets,
        ),
        (
            "taut_forward_received_bytes",
            "bytes",
            "Bytes of packets received.",
            counters.rx_bytes,
        ),
        (
            "taut_forward_sent_packets",
            "packets",
            "Handed to all ports.",
            counters.tx_packets,
        ),
        (
            "taut_forward_sent_bytes",
            "bytes",
            "Bytes of packets handed over.",
            counters.tx_bytes,
        ),
        (
            "taut_forward_punted_packets",
            "packets",
            "Handed to the slow path.",
            counters.punted,
        ),
        (
            "taut_forward_made_packets",
            "packets",
            "Made by the slow path, and taken from it to be sent.",
            counters.from_slow_path,
        ),
        (
            "taut_forward_batches",
            "",
            "Receive calls that brought packets.",
            counters.batches,
        ),
        (
            "taut_forward_interruptions",
            "",
            "Rounds of the loop in which the core was taken away.",
            counters.interruptions,
        ),
    ];
    for (name, unit, help, value) in totals {
        text.single(name, Kind::Counter, unit, help, value as f64);
    }
    text.family(
        "taut_forward_dropped_packets",
        Kind::Counter,
        "packets",
        "Lost in this process, by cause.",
    );
    for (cause, value) in counters.dropped_causes() {
        text.sample(&[("cause", cause)], value as f64);
    }
    text.single(
        "taut_forward_busy_ratio",
        Kind::Gauge,
        "ratio",
        "Share of time spent on packets since the start.",
        counters.busy(),
    );
    text.single(
        "taut_forward_interrupted_ratio",
        Kind::Gauge,
        "ratio",
        "Share of time in which the core was taken away since the start.",
        counters.interrupted(),
    );
    function_metrics(&mut text, "taut_forward", &[(&[], functions)]);
    text.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_causes_are_there() {
        let counters = CountersView {
            rx_packets: 5,
            dropped_tx_full: 2,
            busy_ticks: 1,
            total_ticks: 4,
            interruptions: 3,
            interrupted_ticks: 2,
            ..CountersView::default()
        };
        let text = forwarder_metrics(&counters, &[]);
        for line in [
            "taut_forward_received_packets_total 5",
            "taut_forward_dropped_packets_total{cause=\"tx full\"} 2",
            "taut_forward_busy_ratio 0.25",
            "taut_forward_interruptions_total 3",
            "taut_forward_interrupted_ratio 0.5",
            "# UNIT taut_forward_sent_bytes bytes",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
