//! Inspection of packets by the rules of Snort and Suricata: reads them, makes them ready, and asks them.
//!
//! The types to know:
//!
//! - [`read::Reading`]: what came of rule files: rules, mistakes, and what was not understood.
//! - [`rule::Rule`]: what a rule asks.
//! - [`compile::RuleSet`]: rules made ready, in groups with one search each; [`compile::Inspector`] asks them, for one worker.
//! - [`evaluate::Packet`] and [`evaluate::Parts`]: what can be asked of a packet, and the buffers that it has.
//!
//! `syntax.rs` splits files into rules and options, `form.rs` checks their form, `read.rs` says what they mean,
//! `compile.rs` decides which rules a packet is asked about, with one search for all of a group (`search.rs`),
//! `evaluate.rs` asks one, of buffers that `transform.rs` has changed if the rule wants so. `tcp.rs` says what the
//! receiver of a segment takes of it, `stream.rs` puts the bytes of a TCP connection in order, `flight.rs` the first
//! messages of TLS in it, `fragments/` those of a datagram. `recognise.rs` finds out by first bytes of which protocol a
//! stream is. Inspectors fill the buffers: `http/`, `dns.rs`, `tls.rs`, `certificate.rs`, `fingerprint.rs`, and those
//! of `protocols.rs` (`dcerpc.rs`, `sip.rs`, `mqtt.rs`, `http2.rs`, `ftp.rs`, `ssh.rs`, `ntp.rs`, `ike.rs`), whose
//! messages are records (`record.rs`).
//!
//! `sample.rs` and `trace.rs` are rules and traffic of our own, for trials.
//!
//! Begin with `rule.rs`. There is no input or output here, and after set-up no memory is asked for, but for
//! what parsers of records grow to within their limits, and for headers of HTTP/2.
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
