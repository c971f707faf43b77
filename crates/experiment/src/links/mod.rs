//! Links between nodes: each real cable of an experiment is tested before a run, and the report of a wrong cable names
//! both ends. (pos: a testbed's wiring is part of the experiment; Gallenmüller, dissertation, TU München 2021, section
//! 2.4.)
//!
//! On each node the agent `taut node links` (`probe.rs`) sends frames that name their sender, and reports the frames
//! that arrived at each interface. `judge.rs` compares the reports with the file. `wires.rs` finds all cables between
//! given nodes.

mod judge;
mod probe;
mod wires;

pub(crate) use judge::{Judged, judge};
pub use judge::{LinkEndText, ProvenLink};
pub use probe::{InterfaceState, LinkReport, NeighbourReport, ProbeRequest, Sighting, probe_links};
pub use wires::{Wire, WireRequest, Wires, find_wires};

use std::time::Duration;
use taut_host::ssh::quote_if_needed;

/// Time for which a node waits for the other end of a cable.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);

/// Returns the command that probes the links of a node. It probes `interfaces` until each of them has received a frame
/// from its other end, or all interfaces if `interfaces` is empty.
pub(crate) fn script(token: &str, node: &str, interfaces: &[&str], seconds: f64) -> String {
    let mut script = format!(
        "taut node links --token {token} --node {} --seconds {seconds}",
        quote_if_needed(node)
    );
    for interface in interfaces {
        script += &format!(" --interface {}", quote_if_needed(interface));
    }
    script
}

/// Returns a new random token for a link test, in hexadecimal digits.
pub(crate) fn token() -> String {
    let mut bytes = [0; taut_wire::link_probe::TOKEN_BYTES];
    fastrand::fill(&mut bytes);
    taut_results::hex(&bytes)
}
