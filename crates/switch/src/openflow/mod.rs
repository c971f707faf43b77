//! OpenFlow 1.3: controllers, and `ovs-ofctl`, add rules over TCP. (OpenFlow Switch Specification 1.3.5.)
//!
//! `wire.rs` reads and writes numbers, `fields.rs` matches, `lists.rs` actions, instructions and buckets, `entries.rs`
//! the entries of replies; `changes.rs` changes rules, groups and meters; `session.rs` is one connection without its
//! socket.

mod asked;
mod changes;
mod entries;
mod fields;
mod kinds;
mod lists;
mod plant;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub(super) use plant::{Gone, PacketOut, Plant, Shown, Why};
pub(super) use session::{Session, limit_output};
