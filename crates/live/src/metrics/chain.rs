//! The state of a chain and its segments as OpenMetrics.

use super::exposition::one_word;
use super::functions::function_metrics;
use super::{Exposition, Kind};
use taut_engine::{Count, CountersView};

/// A segment of a chain, as metrics show it.
pub struct SegmentView<'a> {
    /// Name of the segment.
    pub name: &'a str,
    /// True if the segment's process runs and passes packets.
    pub is_up: bool,
    /// Number of times that the segment's process was restarted.
    pub restarts: u32,
    /// Packets that were lost on the segment's links while the segment's process was down.
    pub lost_while_down: u64,
    /// Number of the segment's ports whose link is down.
    pub links_down: usize,
    /// Counters of the segment's workers, summed over all processes that have run the segment.
    pub counters: &'a CountersView,
    /// Counters that the segment's functions publish.
    pub functions: &'a [Count],
}

/// A function that reads a value of a segment.
type Value = fn(&SegmentView<'_>) -> u64;

/// Metrics of a segment that have one value each.
const FAMILIES: [(&str, Kind, &str, &str, Value); 8] = [
    (
        "taut_chain_segment_up",
        Kind::Gauge,
        "",
        "1 while the segment passes packets, else 0.",
        |it| u64::from(it.is_up),
    ),
    (
        "taut_chain_links_down",
        Kind::Gauge,
        "",
        "Ports of the segment that nothing passes now.",
        |it| it.links_down as u64,
    ),
    (
        "taut_chain_restarts",
        Kind::Counter,
        "",
        "Times that the segment was started again.",
        |it| u64::from(it.restarts),
    ),
    (
        "taut_chain_lost_while_down_packets",
        Kind::Counter,
        "packets",
        "Lost on the segment's wires while its process was dead.",
        |it| it.lost_while_down,
    ),
    (
        "taut_chain_received_packets",
        Kind::Counter,
        "packets",
        "Received by the segment.",
        |it| it.counters.rx_packets,
    ),
    (
        "taut_chain_received_bytes",
        Kind::Counter,
        "bytes",
        "Bytes of packets received.",
        |it| it.counters.rx_bytes,
    ),
    (
        "taut_chain_sent_packets",
        Kind::Counter,
        "packets",
        "Handed on by the segment.",
        |it| it.counters.tx_packets,
    ),
    (
        "taut_chain_sent_bytes",
        Kind::Counter,
        "bytes",
        "Bytes of packets handed on.",
        |it| it.counters.tx_bytes,
    ),
];

/// Returns the current metrics of the chain called `chain`.
pub fn chain_metrics(chain: &str, segments: &[SegmentView<'_>]) -> String {
    let mut text = Exposition::new();
    for (name, kind, unit, help, value) in FAMILIES {
        text.family(name, kind, unit, help);
        for segment in segments {
            let labels = [("chain", chain), ("segment", segment.name)];
            text.sample(&labels, value(segment) as f64);
        }
    }
    add_drops(&mut text, chain, segments);
    let labels: Vec<_> = segments
        .iter()
        .map(|segment| [("chain", chain), ("segment", segment.name)])
        .collect();
    let functions = segments.iter().map(|segment| segment.functions);
    let each: Vec<_> = labels
        .iter()
        .map(|labels| &labels[..])
        .zip(functions)
        .collect();
    function_metrics(&mut text, "taut_chain", &each);
    text.finish()
}

/// Adds the packets that segments lost, by cause.
fn add_drops(text: &mut Exposition, chain: &str, segments: &[SegmentView<'_>]) {
    text.family(
        "taut_chain_dropped_packets",
        Kind::Counter,
        "packets",
        "Lost in the segment, by cause.",
    );
    for segment in segments {
        for (cause, value) in segment.counters.dropped_causes() {
            let labels = [
                ("chain", chain),
                ("segment", segment.name),
                ("cause", &one_word(cause)),
            ];
            text.sample(&labels, value as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_segment_of_a_chain_has_its_own_metrics() {
        let counters = CountersView {
            rx_packets: 5,
            dropped_tx_full: 2,
            ..CountersView::default()
        };
        let segment = |name, is_up| SegmentView {
            name,
            is_up,
            restarts: 3,
            lost_while_down: 7,
            links_down: 1,
            counters: &counters,
            functions: &[],
        };
        let text = chain_metrics("edge", &[segment("1-nat", true), segment("2-aes", false)]);
        for line in [
            "taut_chain_segment_up{chain=\"edge\",segment=\"1-nat\"} 1",
            "taut_chain_segment_up{chain=\"edge\",segment=\"2-aes\"} 0",
            "taut_chain_restarts_total{chain=\"edge\",segment=\"1-nat\"} 3",
            "taut_chain_lost_while_down_packets_total{chain=\"edge\",segment=\"2-aes\"} 7",
            "taut_chain_received_packets_total{chain=\"edge\",segment=\"1-nat\"} 5",
            "taut_chain_dropped_packets_total{chain=\"edge\",segment=\"1-nat\",cause=\"tx_full\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
