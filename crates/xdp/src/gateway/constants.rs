//! Constants of a program, which are set before it is loaded (`settings` in ebpf/xdp_gateway.bpf.c).

use super::{GatewaySettings, MOST_CLOSED, MOST_OWN};
use crate::forward::HeaderChange;
use std::net::IpAddr;

/// Number of address slots per IP version: the gateway's own addresses, then the further addresses to which no user
/// packet may be sent.
const ADDRESSES: usize = MOST_OWN + MOST_CLOSED;

/// Makes the constants of the XDP program for the direction from one port to another; the ports are given by their
/// indices.
pub(super) fn constants(
    settings: &GatewaySettings,
    change: HeaderChange,
    (from, to): (usize, usize),
) -> Vec<u8> {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    let mut own = [0; 2];
    for (number, address) in settings.own.iter().chain(&settings.closed).enumerate() {
        let version = match address {
            IpAddr::V4(address) => {
                v4.push(address.octets());
                0
            }
            IpAddr::V6(address) => {
                v6.push(address.octets());
                1
            }
        };
        own[version] += usize::from(number < settings.own.len());
    }
    let numbers = [settings.mtu, to + 1, own[0], own[1], v4.len(), v6.len()];
    v4.resize(ADDRESSES, [0; 4]);
    v6.resize(ADDRESSES, [0; 16]);
    let mut bytes = change.constants().to_vec();
    let tunnels = settings.tunnels.as_ref();
    let takes_tunnels = tunnels.is_none_or(|ports| ports.contains(&from));
    let switches = [
        settings.passes_others,
        settings.answers_neighbours,
        takes_tunnels,
    ];
    bytes.extend(switches.map(u8::from));
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(numbers.iter().flat_map(|n| (*n as u32).to_ne_bytes()));
    bytes.extend(v4.concat());
    bytes.extend(v6.concat());
    bytes
}
