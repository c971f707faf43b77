//! OpenFlow 1.3: controllers, and `ovs-ofctl`, add rules over TCP. (OpenFlow Switch Specification 1.3.5.)
//!
//! `wire.rs` reads and writes numbers, `fields.rs` matches, `lists.rs` actions, instructions and buckets; `session.rs`
//! is one connection without its socket.

mod fields;
mod lists;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub(super) use session::{Gone, PacketOut, Plant, Session, Shown, Why};
