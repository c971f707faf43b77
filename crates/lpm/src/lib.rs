//! Longest prefix match: tables from prefixes to next hops, looked up in batches, and changed concurrently. No I/O.
//!
//! A *route* is a prefix and the next hop of its destinations, which is a small number ([`NextHop`]). The *routing
//! information base* ([`Rib`]) holds all routes as a sorted map. A [`v4::Table`] or a [`v6::Table`] is built from the
//! routes and has two parts. The table itself adds and deletes routes; its `Fib`, the *forwarding information base*, is
//! shared with the readers, which look up addresses one or a batch at a time.
//!
//! Readers take no lock and never wait. While a route is added or deleted they get, for each address, the old or the
//! new result. Memory freed by a change is reused only after the caller reports that all earlier look-ups have ended
//! (`quiesced`). A caller whose changes must all take effect at the same time builds another table separately and swaps
//! it in.
//!
//! Begin with `naive.rs`, then `v4/mod.rs`.

#![forbid(unsafe_code)]

mod grace;
pub mod naive;
pub mod next_hop;
pub mod prefix;
#[cfg(test)]
mod random;
pub mod synthetic;
pub mod v4;
pub mod v6;

pub use naive::{Rib, Route};
pub use next_hop::{NextHop, WrongNextHop};
pub use prefix::{Address, Prefix, PrefixV4, PrefixV6, WrongPrefix};

/// Returns the name of the instruction set that batch look-ups use on this machine.
pub fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if taut_sys::lanes::Wide::found().is_some() {
        return "AVX-512";
    }
    "plain"
}
