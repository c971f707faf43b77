//! The kernel's IPv4 forwarding between the device's two interfaces, with static neighbour entries instead of ARP.

use std::fs;
use std::net::Ipv4Addr;

use super::step::words;
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::net::testbed::{GENERATOR_MACS, mac_text};
use crate::permissions::Missing;

/// The IPv4 addresses of the generator's two endpoints: one host in each half of the addresses reserved for benchmarks
/// (RFC 2544, C.2.2), as in the default test frames.
pub const HOSTS: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1)];

/// The router's own addresses, with the networks at its interfaces.
pub const NETWORKS: [&str; 2] = ["198.18.255.254/16", "198.19.255.254/16"];

pub(super) const ENTRY: Baseline = Baseline {
    id: "veth-routing",
    label: "Linux routing",
    io: "routing",
    note: "IPv4 forwarding of the kernel (TTL and MAC addresses rewritten), steered to the device's core by receive packet steering (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Routed,
    probe,
    steps,
};

fn probe() -> Result<String, Missing> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(format!("Linux {}", release.trim()))
}

fn steps(place: &CommandValues) -> Vec<Step> {
    let mut steps = vec![Step::Run(words(&[
        "sh",
        "-c",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ]))];
    for (number, interface) in place.ends.iter().enumerate() {
        steps.push(Step::Run(words(&[
            "ip",
            "address",
            "add",
            NETWORKS[number],
            "dev",
            interface,
        ])));
        steps.push(Step::Run(words(&[
            "ip",
            "neighbour",
            "replace",
            &HOSTS[number].to_string(),
            "lladdr",
            &mac_text(GENERATOR_MACS[number]),
            "nud",
            "permanent",
            "dev",
            interface,
        ])));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn each_interface_gets_an_ip_network_and_a_static_neighbour() {
        let place = CommandValues {
            ends: ["dut0", "dut1"].map(str::to_owned),
            cpu: 1,
            folder: "/scratch".into(),
        };
        let lines: Vec<String> = steps(&place).iter().map(text).collect();
        assert_eq!(
            lines,
            [
                "sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'",
                "ip address add 198.18.255.254/16 dev dut0",
                "ip neighbour replace 198.18.0.1 lladdr 02:00:00:00:00:01 nud permanent dev dut0",
                "ip address add 198.19.255.254/16 dev dut1",
                "ip neighbour replace 198.19.0.1 lladdr 02:00:00:00:00:02 nud permanent dev dut1",
            ]
        );
    }
}
