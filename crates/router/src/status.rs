//! The state of a router, its routes and neighbours, as the control socket reports it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// A route as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouteText {
    /// The prefix of the destinations.
    pub prefix: String,
    /// The route in the format of `ip route`.
    pub route: String,
}

/// A neighbour of the router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NeighbourText {
    /// The name of the neighbour's interface.
    pub interface: String,
    /// The IP address of the neighbour.
    pub address: IpAddr,
    /// The MAC address of the neighbour, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// The state of a router.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The number of IPv4 routes, including the routes of the interfaces' networks and own addresses.
    pub routes_v4: usize,
    /// The number of IPv6 routes, including the routes of the interfaces' networks and own addresses.
    pub routes_v6: usize,
    /// The number of neighbours with known MAC addresses.
    pub neighbours: usize,
    /// The number of neighbours with unknown MAC addresses: the request is unanswered so far, or has timed out.
    pub neighbours_unknown: usize,
    /// The number of next hops in use.
    pub next_hops: usize,
    /// The limit on the number of next hops.
    pub next_hops_most: usize,
    /// The memory of the tables in which workers look up destinations, bytes.
    pub table_bytes: usize,
    /// The sync status of the kernel's routes; none if routes do not come from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelStatus>,
}

/// The sync status of the kernel's routes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KernelStatus {
    /// The number of routes received from the kernel.
    pub routes: usize,
    /// The number of routes, addresses and neighbours received since the start, in notifications of changes and in
    /// replies to full requests.
    pub changes: u64,
    /// The number of full requests, each for all routes, addresses and neighbours of the kernel.
    pub asked_for_all: u64,
    /// The number of times that notifications of the kernel were lost.
    pub overruns: u64,
    /// The number of the kernel's routes that did not fit into the router's tables.
    pub refused: u64,
}
