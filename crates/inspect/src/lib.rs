//! Inspection of packets by the rules of Snort and Suricata: reads rules, compiles them, and evaluates them on packets.
//!
//! The types to know:
//!
//! - [`read::Reading`]: the result of reading rule files: rules, errors, and unsupported parts.
//! - [`rule::Rule`]: the tests and the action of a rule.
//! - [`compile::RuleSet`]: compiled rules, in groups with one search each; [`compile::Inspector`] evaluates them, for
//!   one worker.
//! - [`evaluate::Packet`] and [`evaluate::Parts`]: the properties of a packet that rules test, and its buffers.
//!
//! `syntax.rs` splits files into rules and options, `form.rs` checks their form, and `read.rs` interprets them.
//! `compile.rs` selects the rules for a packet, with one search per group (`search.rs`). `evaluate.rs` evaluates one
//! rule, on buffers that `transform.rs` has changed if the rule requires it. `tcp.rs` decides which segments a receiver
//! accepts, and `stream.rs` puts the bytes of a TCP connection in order. `flight.rs` reassembles the first messages of
//! TLS, `fragments/` the fragments of a datagram. `recognise.rs` identifies the protocol of a stream by its first
//! bytes. Inspectors fill the buffers: `http/`, `dns.rs`, `tls.rs`, `certificate.rs`, `fingerprint.rs`, and those of
//! `protocols.rs`. These are `dcerpc.rs`, `sip.rs`, `mqtt.rs`, `http2.rs`, `ftp.rs`, `ssh.rs`, `ntp.rs` and `ike.rs`,
//! whose messages are records (`record.rs`).
//!
//! `sample.rs` and `trace.rs` contain rules and traffic that were written for taut, for tests and measurements.
//!
//! Readers begin with `rule.rs`. The crate does no input or output. It allocates no memory after set-up, except for
//! record parsers, which grow up to their limits, and for headers of HTTP/2.
//!
//! # Groups of rules
//!
//! Rules are grouped by protocol, direction and port. Each group has one search for one content of each of its rules
//! (`search.rs`): Aho-Corasick, or Vectorscan if a chain requests it. Only rules whose content occurs are evaluated,
//! header first. Rules without a content are found by their addresses if these are few (`by_address.rs`). Rules about
//! messages are searched after an inspector has filled the buffer.

#![forbid(unsafe_code)]

pub mod anomaly;
pub mod arena;
pub mod buffer;
mod by_address;
pub mod certificate;
pub mod compile;
mod cursor;
pub mod dcerpc;
pub mod dns;
pub mod evaluate;
mod findings;
pub mod fingerprint;
pub mod flight;
pub mod flow_bits;
mod form;
pub mod fragments;
mod framer;
pub mod ftp;
pub mod host_bits;
pub mod http;
pub mod http2;
pub mod ike;
mod keywords;
pub mod mqtt;
pub mod ntp;
mod number;
pub mod overlap;
pub mod pattern;
pub mod protocols;
pub mod ranges;
pub mod rates;
pub mod read;
pub mod recognise;
pub mod record;
mod refusal;
mod requires;
pub mod rule;
pub mod sample;
pub mod search;
pub mod sip;
pub mod ssh;
pub mod stream;
pub mod syntax;
pub mod tcp;
pub mod tls;
pub mod trace;
pub mod transform;
pub mod variables;
