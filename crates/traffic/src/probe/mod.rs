//! Probes over the kernel's ordinary sockets: what an application at both ends of a path sees of it.

mod client;
mod search;
mod server;

pub use client::{Outcome, Over, ProbeError, ProbeSession, Train, TrainResult};
pub use search::{SearchedRate, search_rate};
pub use server::{Answered, ProbeServer};

pub(crate) use client::widen;

/// The UDP port of a server where no other is named.
pub const DEFAULT_PORT: u16 = 8621;

/// The longest payload: what fits a datagram of IPv4 (65,535 bytes less 20 and 8 of headers).
pub const MOST_BYTES: usize = 65_507;
