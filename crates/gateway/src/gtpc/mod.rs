//! The gateway as its own control plane: GTP-C (3GPP TS 29.274) of a serving gateway and a PDN gateway in one node.
//!
//! An MME (S11) or a serving gateway (S5/S8) creates sessions. If the MME names another PDN gateway, this node is a
//! serving gateway only: it makes the session there, and relays packets between the tunnels of both sides. Otherwise
//! tunnels end here. `rules.rs` writes a bearer as the rules that PFCP would carry; `pfcp` puts them into the table.
//!
//! `node.rs` has the state and receives messages, and `sessions.rs` and `bearers.rs` execute requests. `remote.rs`
//! exchanges messages with PDN gateways, and `pending.rs` retransmits this node's own requests.

mod ask;
mod bearers;
mod context;
mod counts;
mod node;
mod pending;
mod remote;
mod rules;
mod sessions;
mod settings;
mod supervision;

pub(super) use counts::Counts;
pub(super) use node::Node;
pub(super) use settings::{Settings, Terms};
