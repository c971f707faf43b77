//! Flows of a capture, for people.

use crate::terminal::print;
use std::net::IpAddr;
use taut_capture::flows::{FlowStatus, FlowsStatus};
use taut_figure::table;
use taut_measure::quantity;

/// Prints the flows that send most.
pub fn show(flows: &FlowsStatus) {
    print::line(format!(
        "{} flows known, room for {}, {} forgotten",
        flows.known, flows.room, flows.forgotten
    ));
    if flows.top.is_empty() {
        return;
    }
    let mut text = table::plain();
    text.set_header([
        "flow",
        "bits/s",
        "packets/s",
        "bytes",
        "packets",
        "seconds",
        "TCP flags",
    ]);
    for flow in &flows.top {
        let ns = flow.last_ns.saturating_sub(flow.first_ns);
        text.add_row([
            ends(flow),
            quantity::plain(flow.bits_per_second as f64),
            quantity::plain(flow.packets_per_second as f64),
            quantity::plain(flow.bytes as f64),
            flow.packets.to_string(),
            format!("{:.1}", ns as f64 / 1e9),
            flags(flow.tcp_flags),
        ]);
    }
    table::set_columns(&mut text, None);
    print::line(table::text(text, &[], table::terminal_width()));
}

/// Both ends of a flow, with its protocol.
pub fn ends(flow: &FlowStatus) -> String {
    let protocol = match flow.protocol {
        1 => "ICMP".to_string(),
        6 => "TCP".to_string(),
        17 => "UDP".to_string(),
        58 => "ICMPv6".to_string(),
        132 => "SCTP".to_string(),
        other => format!("protocol {other}"),
    };
    let has_ports = flow.ports != [0, 0];
    let end = |at: usize| match (flow.addresses[at], has_ports) {
        (address, false) => address.to_string(),
        (IpAddr::V6(address), true) => format!("[{address}]:{}", flow.ports[at]),
        (IpAddr::V4(address), true) => format!("{address}:{}", flow.ports[at]),
    };
    format!("{protocol} {} - {}", end(0), end(1))
}

/// Names of the TCP flags that were seen (RFC 9293, section 3.1).
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn flows_are_named_by_what_is_known_of_them() {
        let mut flow = FlowStatus {
            protocol: 6,
            addresses: ["10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap()),
            ports: [80, 1000],
            packets: 1,
            bytes: 64,
            first_ns: 0,
            last_ns: 0,
            tcp_flags: 0x12,
            packets_per_second: 0,
            bits_per_second: 0,
        };
        assert_eq!(ends(&flow), "TCP 10.0.0.1:80 - [fd00::1]:1000");
        (flow.protocol, flow.ports) = (89, [0, 0]);
        assert_eq!(ends(&flow), "protocol 89 10.0.0.1 - fd00::1");
        assert_eq!(flags(flow.tcp_flags), "SYN ACK");
    }
}
