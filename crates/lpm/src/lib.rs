//! Longest prefix match: tables from prefixes to next hops, looked up in batches, and changed while they are. No I/O.
//!
//! A *route* is a prefix and the next hop of its destinations, which is a small number ([`NextHop`]). The *routing
//! information base* ([`Rib`]) holds all routes plainly. Of it a [`v4::Table`] or a [`v6::Table`] is made, which has
//! two ends: the table itself adds and deletes routes; its `Fib`, the *forwarding information base*, is shared with
//! those that look addresses up, one or a batch at a time.
//!
//! Readers take no lock and never wait. While a route is added or deleted they get, for each address, the answer from
//! before or from after it. Memory that a change has set free is used again only when the caller says that no look-up
//! from before is still under way (`quiesced`). A caller that would rather have all changes at once makes the next
//! table aside and swaps it whole.
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

/// Returns the instructions by which batches are looked up on this machine, for reports.
pub fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if taut_sys::lanes::Wide::found().is_some() {
        return "AVX-512";
    }
    "plain"
}
