//! A worker's counters as OpenMetrics.

use super::exposition::one_word;
use super::functions::function_metrics;
use super::{Exposition, Kind};
use taut_engine::{Count, CountersView};

/// Returns the current metrics of workers and of their functions. `ticks_per_second` is the frequency of the workers'
/// clock.
pub fn forwarder_metrics(
    counters: &CountersView,
    functions: &[Count],
    ticks_per_second: f64,
) -> String {
    let mut text = Exposition::new();
    add_totals(&mut text, counters);
    text.family(
        "taut_forward_dropped_packets",
        Kind::Counter,
        "packets",
        "Lost in this process, by cause.",
    );
    for (cause, value) in counters.dropped_causes() {
        text.sample(&[("cause", &one_word(cause))], value as f64);
    }
    add_times(&mut text, counters, ticks_per_second);
    function_metrics(&mut text, "taut_forward", &[(&[], functions)]);
    text.finish()
}

/// Adds the counts of packets, batches and interruptions.
fn add_totals(text: &mut Exposition, counters: &CountersView) {
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
}

/// Adds the times that workers have spent.
fn add_times(text: &mut Exposition, counters: &CountersView, ticks_per_second: f64) {
    let times = [
        (
            "taut_forward_worker_seconds",
            "Time that workers have run, all of them together.",
            counters.total_ticks,
        ),
        (
            "taut_forward_busy_seconds",
            "Time that they have spent on packets.",
            counters.busy_ticks,
        ),
        (
            "taut_forward_interrupted_seconds",
            "Time in which their cores were taken away.",
            counters.interrupted_ticks,
        ),
    ];
    for (name, help, ticks) in times {
        let seconds = ticks as f64 / ticks_per_second;
        text.single(name, Kind::Counter, "seconds", help, seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_contain_all_counters_and_drop_causes() {
        let counters = CountersView {
            rx_packets: 5,
            dropped_tx_full: 2,
            busy_ticks: 1,
            total_ticks: 4,
            interruptions: 3,
            interrupted_ticks: 2,
            ..CountersView::default()
        };
        let text = forwarder_metrics(&counters, &[], 4.0);
        for line in [
            "taut_forward_received_packets_total 5",
            "taut_forward_dropped_packets_total{cause=\"tx_full\"} 2",
            "taut_forward_worker_seconds_total 1",
            "taut_forward_busy_seconds_total 0.25",
            "taut_forward_interruptions_total 3",
            "taut_forward_interrupted_seconds_total 0.5",
            "# UNIT taut_forward_sent_bytes bytes",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
