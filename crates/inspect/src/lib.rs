//! Inspection of packets by the rules of Snort and Suricata: reads them, makes them ready, and asks them.
//!
//! The types to know:
//!
//! - [`read::Reading`]: what came of rule files: rules, mistakes, and what was not understood.
//! - [`rule::Rule`]: what a rule asks.
//! - [`compile::RuleSet`]: rules made ready, in groups with one search each; [`compile::Inspector`] asks them, for one worker.
//! - [`evaluate::Packet`] and [`evaluate::Parts`]: what can be asked of a packet, and the buffers that it has.
//!
//! `syntax.rs` splits files into rules and options, `read.rs` says what they mean, `compile.rs` decides which rules a
//! packet is asked about, with one search for all of a group (`search.rs`), `evaluate.rs` asks one. Inspectors fill the
//! buffers: `http.rs`, `dns.rs`, `tls.rs`, `certificate.rs`, `fingerprint.rs`; `stream.rs` puts the bytes of a TCP
//! connection in order, `flight.rs` the first messages of TLS in it, `fragments.rs` those of a datagram.
//!
//! `sample.rs` and `trace.rs` are rules and traffic of our own, for trials.
//!
//! Begin with `rule.rs`. There is no input or output here, and after set-up no memory is asked for, but for
//! fragments.

#![forbid(unsafe_code)]

pub mod arena;
pub mod buffer;
mod by_address;
pub mod certificate;
pub mod compile;
pub mod dns;
pub mod evaluate;
pub mod fingerprint;
pub mod flight;
pub mod fragments;
pub mod host_bits;
pub mod http;
pub mod pattern;
pub mod ranges;
pub mod rates;
pub mod read;
pub mod rule;
pub mod sample;
pub mod search;
pub mod stream;
pub mod syntax;
pub mod tls;
pub mod trace;
pub mod variables;
