//! Probes through the kernel's ordinary sockets: round trips of a path as applications on both hosts measure them.

mod client;
mod search;
mod server;

pub use client::{Outcome, Over, ProbeError, ProbeSession, Train, TrainResult};
pub use search::{SearchedRate, search_rate};
pub use server::{Answered, ProbeServer};

use crate::messages::MOST_MESSAGE_BYTES;

/// The default UDP port of a server.
pub const DEFAULT_PORT: u16 = 8621;

/// Limit on the payload of a probe, bytes.
pub const MOST_BYTES: usize = MOST_MESSAGE_BYTES;
