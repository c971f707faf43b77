//! P4Runtime: how the entries of a P4 pipeline's tables are changed, over gRPC without TLS. (P4Runtime Specification
//! 1.4.1.)
//!
//! [`Client`] changes the entries through a [`Pipeline`], which says in which table and with which names a rule is
//! expressed. Calls and their statuses are in `connection.rs`, received frames in `frames.rs`, and messages in
//! `protobuf.rs`.

mod client;
mod connection;
mod error;
mod frames;
mod p4info;
mod pipeline;
mod protobuf;
#[cfg(test)]
mod tests;
mod text_format;

pub(super) use client::{Client, version};
pub use frames::fuzz as fuzz_frames;
pub(super) use pipeline::{P4, Pipeline, to_network};

/// Reads a P4Info in text or binary form, and returns its number of tables, for fuzzing.
pub fn fuzz_p4info(bytes: &[u8]) -> usize {
    let text = std::str::from_utf8(bytes).ok();
    let of_text = text.and_then(|text| text_format::binary(text).ok());
    let info = p4info::P4Info::read(of_text.as_deref().unwrap_or(bytes));
    info.map_or(0, |info| info.tables.len())
}
