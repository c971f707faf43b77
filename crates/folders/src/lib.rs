//! Results folders that are not from benchmarks, with their pages: those of `taut probe client`, `taut capture match`
//! and `taut control run`.
//!
//! They are a crate of their own because they need only the pages of `taut-bench`, while only they need probes, captures
//! and networked control. The three modules do not depend on each other.

#![forbid(unsafe_code)]

pub mod capture_match;
pub mod control_loop;
pub mod probe_results;

#[cfg(test)]
#[path = "../../bench/testing/strangers.rs"]
mod strangers;
