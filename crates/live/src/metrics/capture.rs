//! The state of a capture as OpenMetrics.

use super::{Exposition, Kind};
use taut_capture::analyser::AnalyserStatus;
use taut_capture::capture::{Status, TriggerStatus};
use taut_capture::flows::FlowsStatus;
use taut_capture::keeper;
use taut_engine::AtPort;

/// Returns the current metrics of a capture and its ports.
pub fn capture_metrics(status: &Status, ports: &[AtPort]) -> String {
    let mut text = Exposition::new();
    add_singles(&mut text, Kind::Counter, TOTALS, status);
    if let Some(disk) = &status.disk {
        add_singles(&mut text, Kind::Counter, DISK_TOTALS, disk);
    }
    if let Some(flows) = &status.flows {
        add_singles(&mut text, Kind::Counter, FLOW_TOTALS, flows);
    }
    add_port_losses(&mut text, ports);
    add_triggers(&mut text, &status.triggers);
    add_analysers(&mut text, &status.analysers);
    add_singles(&mut text, Kind::Gauge, GAUGES, status);
    if let Some(flows) = &status.flows {
        add_singles(&mut text, Kind::Gauge, FLOW_GAUGES, flows);
    }
    text.finish()
}

/// A metric, and the function that reads its value from a status.
struct Metric<T> {
    name: &'static str,
    unit: &'static str,
    help: &'static str,
    value: fn(&T) -> f64,
}

/// Counters of a capture since its start.
const TOTALS: &[Metric<Status>] = &[
    Metric {
        name: "taut_capture_kept_packets",
        unit: "packets",
        help: "Packets stored in memory.",
        value: |it| it.kept.packets as f64,
    },
    Metric {
        name: "taut_capture_kept_bytes",
        unit: "bytes",
        help: "Bytes on the wire of the packets stored in memory.",
        value: |it| it.kept.bytes as f64,
    },
    Metric {
        name: "taut_capture_overwritten_packets",
        unit: "packets",
        help: "Packets that were stored in memory and overwritten since.",
        value: |it| it.overwritten.packets as f64,
    },
    Metric {
        name: "taut_capture_lost_packets",
        unit: "packets",
        help: "Packets for which there was no memory.",
        value: |it| it.lost.packets as f64,
    },
    Metric {
        name: "taut_capture_not_looked_at_packets",
        unit: "packets",
        help: "Packets that were overwritten before triggers and flow counts processed them.",
        value: |it| it.not_looked_at as f64,
    },
];

/// Counters of the capture's writes to disk.
const DISK_TOTALS: &[Metric<keeper::Status>] = &[
    Metric {
        name: "taut_capture_disk_packets",
        unit: "packets",
        help: "Packets written to disk.",
        value: |it| it.packets as f64,
    },
    Metric {
        name: "taut_capture_disk_lost_packets",
        unit: "packets",
        help: "Packets that could not be written to disk.",
        value: |it| it.lost as f64,
    },
    Metric {
        name: "taut_capture_disk_missed_packets",
        unit: "packets",
        help: "Packets that were overwritten in memory before they were on disk.",
        value: |it| it.missed as f64,
    },
];

/// Counters of flows.
const FLOW_TOTALS: &[Metric<FlowsStatus>] = &[Metric {
    name: "taut_capture_forgotten_flows",
    unit: "flows",
    help: "Flows that other flows replaced.",
    value: |it| it.forgotten as f64,
}];

/// Counters of each trigger.
const TRIGGER_TOTALS: &[Metric<TriggerStatus>] = &[
    Metric {
        name: "taut_capture_triggers_fired",
        unit: "",
        help: "Times that a trigger has fired.",
        value: |it| it.fired as f64,
    },
    Metric {
        name: "taut_capture_dumps_begun",
        unit: "",
        help: "Dumps that a trigger has begun.",
        value: |it| it.begun as f64,
    },
    Metric {
        name: "taut_capture_dumps_limited",
        unit: "",
        help: "Dumps that a trigger has not begun, because there were too many in a minute.",
        value: |it| it.limited as f64,
    },
    Metric {
        name: "taut_capture_dumped_packets",
        unit: "packets",
        help: "Packets of a trigger's dumps whose bytes were written.",
        value: |it| it.written as f64,
    },
    Metric {
        name: "taut_capture_dump_lost_packets",
        unit: "packets",
        help: "Packets of a trigger's dumps that could not be written.",
        value: |it| it.lost as f64,
    },
];

/// Current values of a capture.
const GAUGES: &[Metric<Status>] = &[
    Metric {
        name: "taut_capture_look_back_seconds",
        unit: "seconds",
        help: "Age of the oldest packet in memory.",
        value: Status::looks_back_seconds,
    },
    Metric {
        name: "taut_capture_ring_bytes",
        unit: "bytes",
        help: "Size of the ring.",
        value: |it| it.ring_bytes as f64,
    },
    Metric {
        name: "taut_capture_dumps_in_progress",
        unit: "",
        help: "Dumps that are being written.",
        value: |it| it.dumping.len() as f64,
    },
];

/// Current values of flows.
const FLOW_GAUGES: &[Metric<FlowsStatus>] = &[Metric {
    name: "taut_capture_known_flows",
    unit: "flows",
    help: "Flows in the table at the moment.",
    value: |it| it.known as f64,
}];

/// Adds metrics of a status that have one value each.
fn add_singles<T>(text: &mut Exposition, kind: Kind, metrics: &[Metric<T>], status: &T) {
    for metric in metrics {
        let value = (metric.value)(status);
        text.single(metric.name, kind, metric.unit, metric.help, value);
    }
}

/// Adds the packets that were lost at ports.
fn add_port_losses(text: &mut Exposition, ports: &[AtPort]) {
    text.family(
        "taut_capture_port_lost_packets",
        Kind::Counter,
        "packets",
        "Packets lost at a port before they were captured, by cause.",
    );
    for AtPort { port, counters, .. } in ports {
        for (cause, value) in [
            ("overrun", counters.rx_overrun),
            ("malformed", counters.rx_malformed),
            ("too_long", counters.rx_too_long),
        ] {
            text.sample(&[("port", port), ("cause", cause)], value as f64);
        }
    }
}

/// Adds the counters of each trigger.
fn add_triggers(text: &mut Exposition, triggers: &[TriggerStatus]) {
    for metric in TRIGGER_TOTALS {
        text.family(metric.name, Kind::Counter, metric.unit, metric.help);
        for trigger in triggers {
            let value = (metric.value)(trigger);
            text.sample(&[("trigger", &trigger.name)], value);
        }
    }
}

/// A function that reads a counter of an analyser.
type OfAnalyser = fn(&AnalyserStatus) -> u64;

/// Counters of each analyser.
const ANALYSER_FAMILIES: [(&str, Kind, &str, &str, OfAnalyser); 7] = [
    (
        "taut_capture_analyser_packets",
        Kind::Counter,
        "packets",
        "That an analyser has looked at.",
        |it| it.packets,
    ),
    (
        "taut_capture_analyser_missed_packets",
        Kind::Counter,
        "packets",
        "Written over before an analyser could look at them.",
        |it| it.missed,
    ),
    (
        "taut_capture_analyser_failed_packets",
        Kind::Counter,
        "packets",
        "That an analyser was shown when it failed, or after.",
        |it| it.failed,
    ),
    (
        "taut_capture_analyser_fired",
        Kind::Counter,
        "",
        "Triggers that an analyser has had fire.",
        |it| it.fired,
    ),
    (
        "taut_capture_analyser_known_flows",
        Kind::Gauge,
        "flows",
        "That an analyser remembers at the moment.",
        |it| it.known,
    ),
    (
        "taut_capture_analyser_most_flows",
        Kind::Gauge,
        "flows",
        "Flows for which an analyser has space.",
        |it| it.room,
    ),
    (
        "taut_capture_analyser_forgotten_flows",
        Kind::Counter,
        "flows",
        "Flows that other flows replaced.",
        |it| it.forgotten,
    ),
];

/// Adds the counters of analysers, which are labelled with an index as well as a name, because names may repeat.
fn add_analysers(text: &mut Exposition, analysers: &[AnalyserStatus]) {
    if analysers.is_empty() {
        return;
    }
    let numbered = || (1_usize..).map(|it| it.to_string()).zip(analysers);
    for (name, kind, unit, help, value) in ANALYSER_FAMILIES {
        text.family(name, kind, unit, help);
        for (number, it) in numbered() {
            let labels = [("analyser", it.name.as_str()), ("number", &number)];
            text.sample(&labels, value(it) as f64);
        }
    }
    text.family(
        "taut_capture_analyser_counted",
        Kind::Counter,
        "",
        "What an analyser counts itself, by name.",
    );
    for (number, it) in numbered() {
        for (count, value) in &it.counts {
            let labels = [
                ("analyser", it.name.as_str()),
                ("number", &number),
                ("count", count),
            ];
            text.sample(&labels, *value as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn capture_metrics_contain_only_the_available_values() {
        let mut status = serde_json::json!({
            "process": 1, "ring_bytes": 1024, "most_bytes": 1024,
            "kept": {"packets": 5, "bytes": 500}, "overwritten": {"packets": 1, "bytes": 100},
            "lost": {"packets": 2, "bytes": 200}, "oldest_ns": 1_000_000_000, "now_ns": 3_500_000_000_u64,
            "passed_over": 0, "not_looked_at": 7, "dumping": [], "dumps": [], "trouble": [],
            "triggers": [{"name": "a", "fired": 3, "begun": 2, "limited": 1, "written": 8, "lost": 6}],
            "disk": null, "flows": null,
        });
        let port = AtPort {
            port: "af_packet:eth0".to_string(),
            counters: taut_port::PortCounters {
                rx_overrun: 9,
                ..Default::default()
            },
            queues: Vec::new(),
        };
        let text = |status: &serde_json::Value| {
            let status = serde_json::from_value(status.clone()).unwrap();
            capture_metrics(&status, std::slice::from_ref(&port))
        };
        let without = text(&status);
        for line in [
            "taut_capture_kept_packets_total 5",
            "taut_capture_lost_packets_total 2",
            "taut_capture_not_looked_at_packets_total 7",
            "taut_capture_port_lost_packets_total{port=\"af_packet:eth0\",cause=\"overrun\"} 9",
            "taut_capture_triggers_fired_total{trigger=\"a\"} 3",
            "taut_capture_dumps_begun_total{trigger=\"a\"} 2",
            "taut_capture_dumped_packets_total{trigger=\"a\"} 8",
            "taut_capture_dump_lost_packets_total{trigger=\"a\"} 6",
            "taut_capture_look_back_seconds 2.5",
        ] {
            assert!(without.lines().any(|l| l == line), "{line} in {without}");
        }
        for left_out in ["_disk_", "_flows", "_analyser_"] {
            assert!(!without.contains(left_out), "{without}");
        }
        status["disk"] = serde_json::json!({
            "folder": "/a", "packets": 4, "lost": 3, "missed": 2, "removed": 1, "error": null,
        });
        status["flows"] = serde_json::json!({"room": 100, "known": 10, "forgotten": 20, "top": []});
        let analyser = |packets: u64| {
            serde_json::json!({
                "name": "ttl", "packets": packets, "missed": 12, "failed": 13, "room": 1000, "known": 14,
                "forgotten": 15, "fired": 16, "counts": {"odd ones": 17},
            })
        };
        status["analysers"] = serde_json::json!([analyser(11), analyser(21)]);
        let with = text(&status);
        for line in [
            "taut_capture_disk_packets_total 4",
            "taut_capture_disk_missed_packets_total 2",
            "taut_capture_known_flows 10",
            "taut_capture_forgotten_flows_total 20",
            "taut_capture_analyser_packets_total{analyser=\"ttl\",number=\"1\"} 11",
            "taut_capture_analyser_packets_total{analyser=\"ttl\",number=\"2\"} 21",
            "taut_capture_analyser_missed_packets_total{analyser=\"ttl\",number=\"1\"} 12",
            "taut_capture_analyser_failed_packets_total{analyser=\"ttl\",number=\"1\"} 13",
            "taut_capture_analyser_known_flows{analyser=\"ttl\",number=\"1\"} 14",
            "taut_capture_analyser_most_flows{analyser=\"ttl\",number=\"1\"} 1000",
            "taut_capture_analyser_forgotten_flows_total{analyser=\"ttl\",number=\"1\"} 15",
            "taut_capture_analyser_fired_total{analyser=\"ttl\",number=\"1\"} 16",
            "taut_capture_analyser_counted_total{analyser=\"ttl\",number=\"1\",count=\"odd ones\"} 17",
        ] {
            assert!(with.lines().any(|l| l == line), "{line} in {with}");
        }
    }
}
