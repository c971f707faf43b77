//! The state of a capture as OpenMetrics.

use super::{Exposition, Kind};
use taut_capture::analyser::AnalyserStatus;
use taut_capture::capture::Status;
use taut_engine::AtPort;

/// The metrics of a capture and its ports at this moment.
pub fn capture_metrics(status: &Status, ports: &[AtPort]) -> String {
    let mut text = Exposition::new();
    let mut totals = vec![
        (
            "taut_capture_kept_packets",
            "packets",
            "Kept in memory.",
            status.kept.packets,
        ),
        (
            "taut_capture_kept_bytes",
            "bytes",
            "Bytes of them on the wire.",
            status.kept.bytes,
        ),
        (
            "taut_capture_overwritten_packets",
            "packets",
            "Kept, and written over since.",
            status.overwritten.packets,
        ),
        (
            "taut_capture_lost_packets",
            "packets",
            "For which there was no memory.",
            status.lost.packets,
        ),
        (
            "taut_capture_not_looked_at_packets",
            "packets",
            "Written over before triggers were asked and flows counted.",
            status.not_looked_at,
        ),
    ];
    if let Some(disk) = &status.disk {
        totals.extend([
            (
                "taut_capture_disk_packets",
                "packets",
                "Written to disk.",
                disk.packets,
            ),
            (
                "taut_capture_disk_lost_packets",
                "packets",
                "That could not be written to disk.",
                disk.lost,
            ),
            (
                "taut_capture_disk_missed_packets",
                "packets",
                "Written over in memory before they were on disk.",
                disk.missed,
            ),
        ]);
    }
    if let Some(flows) = &status.flows {
        totals.push((
            "taut_capture_forgotten_flows",
            "flows",
            "That had to go for others.",
            flows.forgotten,
        ));
    }
    for (name, unit, help, value) in totals {
        text.single(name, Kind::Counter, unit, help, value as f64);
    }
    text.family(
        "taut_capture_port_lost_packets",
        Kind::Counter,
        "packets",
        "Lost at a port, before they were captured, by cause.",
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
    let families = [
        (
            "taut_capture_triggers_fired",
            "Times that a trigger has fired.",
        ),
        (
            "taut_capture_dumps_begun",
            "Dumps that a trigger has begun.",
        ),
        (
            "taut_capture_dumps_limited",
            "Dumps that it has not begun, as there were too many in a minute.",
        ),
        (
            "taut_capture_dumped_packets",
            "Packets of a trigger's dumps whose bytes were written.",
        ),
        (
            "taut_capture_dump_lost_packets",
            "Packets of a trigger's dumps that could not be written.",
        ),
    ];
    for (at, (name, help)) in families.into_iter().enumerate() {
        let unit = match name.ends_with("_packets") {
            true => "packets",
            false => "",
        };
        text.family(name, Kind::Counter, unit, help);
        for trigger in &status.triggers {
            let values = [
                trigger.fired,
                trigger.begun,
                trigger.limited,
                trigger.written,
                trigger.lost,
            ];
            text.sample(&[("trigger", &trigger.name)], values[at] as f64);
        }
    }
    add_analysers(&mut text, &status.analysers);
    let mut gauges = vec![
        (
            "taut_capture_look_back_seconds",
            "seconds",
            "Age of the oldest packet in memory.",
            status.looks_back_seconds(),
        ),
        (
            "taut_capture_ring_bytes",
            "bytes",
            "Size of the ring.",
            status.ring_bytes as f64,
        ),
        (
            "taut_capture_dumps_in_progress",
            "",
            "Dumps that are being written.",
            status.dumping.len() as f64,
        ),
    ];
    if let Some(flows) = &status.flows {
        gauges.push((
            "taut_capture_known_flows",
            "flows",
            "That are told apart at the moment.",
            flows.known as f64,
        ));
    }
    for (name, unit, help, value) in gauges {
        text.single(name, Kind::Gauge, unit, help, value);
    }
    text.finish()
}

/// What there is to tell of an analyser.
type OfAnalyser = fn(&AnalyserStatus) -> u64;

/// Those of analysers, which have a number each as well as a name: two may have the same one.
fn add_analysers(text: &mut Exposition, analysers: &[AnalyserStatus]) {
    if analysers.is_empty() {
        return;
    }
    let families: [(_, _, _, _, OfAnalyser); 7] = [
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
            "That an analyser has room for.",
            |it| it.room,
        ),
        (
            "taut_capture_analyser_forgotten_flows",
            Kind::Counter,
            "flows",
            "That had to go for others.",
            |it| it.forgotten,
        ),
    ];
    let numbered = || (1_usize..).map(|it| it.to_string()).zip(analysers);
    for (name, kind, unit, help, value) in families {
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
    fn what_there_is_is_given_out_and_the_rest_left_out() {
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
