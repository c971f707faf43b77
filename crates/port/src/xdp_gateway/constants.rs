//! What is set in a program before it is loaded (`settings` in ebpf/xdp_gateway.bpf.c).

use super::{GatewaySettings, MOST_OWN};
use crate::xdp_forward::HeaderChange;
use std::net::IpAddr;

/// For the program whose frames leave through port number `to`.
pub(super) fn constants(settings: &GatewaySettings, change: HeaderChange, to: usize) -> Vec<u8> {
    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    for address in &settings.own {
        match address {
            IpAddr::V4(address) => v4.push(address.octets()),
            IpAddr::V6(address) => v6.push(address.octets()),
        }
    }
    let numbers = [settings.mtu, to + 1, v4.len(), v6.len()];
    v4.resize(MOST_OWN, [0; 4]);
    v6.resize(MOST_OWN, [0; 16]);
    let mut bytes = change.constants().to_vec();
    let switches = [settings.passes_others, settings.answers_neighbours];
    bytes.extend(switches.map(u8::from));
    bytes.extend(numbers.iter().flat_map(|n| (*n as u32).to_ne_bytes()));
    bytes.extend(v4.concat());
    bytes.extend(v6.concat());
    bytes
}
