//! State of a router, its routes and neighbours, as the control socket tells them.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A route as a line of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteText {
    /// Prefix of the destinations.
    pub prefix: String,
    /// The route, as `ip route` writes it.
    pub route: String,
}

/// A neighbour of the router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourText {
    /// Name of the interface that it is behind.
    pub interface: String,
    /// IP address.
    pub address: IpAddr,
    /// MAC address, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// State of a router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Routes of IPv4, those of interfaces and their own addresses among them.
    pub routes_v4: usize,
    /// Routes of IPv6, likewise.
    pub routes_v6: usize,
    /// Neighbours whose MAC addresses are known.
    pub neighbours: usize,
    /// Neighbours that are asked for, or did not answer.
    pub neighbours_unknown: usize,
    /// Next hops in use.
    pub next_hops: usize,
    /// Next hops there can be.
    pub next_hops_most: usize,
    /// Memory of the tables that workers look up in, bytes.
    pub table_bytes: usize,
    /// State of the picture of the kernel, where routes are the kernel's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelStatus>,
}

/// State of the router's picture of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// Routes that it has of the kernel.
    pub routes: usize,
    /// Changes that it has heard of.
    pub changes: u64,
    /// Times that it has asked for all there is.
    pub asked_for_all: u64,
    /// Times that the kernel had more to say than it could.
    pub overruns: u64,
    /// Routes that there was no room for in the tables.
    pub refused: u64,
}
