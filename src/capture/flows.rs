//! The flows of a capture as a table.

use crate::terminal::print;
use taut_capture::flows::FlowsStatus;
use taut_measure::quantity;

/// Prints the flows with the highest rates.
pub fn show(flows: &FlowsStatus) {
    print::line(format!(
        "{} flows, capacity {}, {} forgotten",
        flows.known, flows.room, flows.forgotten
    ));
    if flows.top.is_empty() {
        return;
    }
    let rows = flows.top.iter().map(|flow| {
        let ns = flow.last_ns.saturating_sub(flow.first_ns);
        [
            flow.to_string(),
            quantity::plain(flow.bits_per_second as f64),
            quantity::plain(flow.packets_per_second as f64),
            quantity::plain(flow.bytes as f64),
            flow.packets.to_string(),
            format!("{:.1}", ns as f64 / 1e9),
            flags(flow.tcp_flags),
        ]
    });
    let head = [
        "flow",
        "bits/s",
        "packets/s",
        "bytes",
        "packets",
        "seconds",
        "TCP flags",
    ];
    print::table(head, rows);
}

/// Names of the TCP flags in a flow (RFC 9293, section 3.1).
fn flags(flags: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let seen = names.iter().enumerate();
    let seen: Vec<_> = seen
        .filter(|(at, _)| flags >> at & 1 != 0)
        .map(|it| *it.1)
        .collect();
    seen.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_flags_are_displayed_by_name() {
        assert_eq!(flags(0x12), "SYN ACK");
        assert_eq!(flags(0), "");
        assert_eq!(flags(0xff), "FIN SYN RST PSH ACK URG ECE CWR");
    }
}
