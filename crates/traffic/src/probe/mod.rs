//! Probes over the kernel's ordinary sockets: what an application at both ends of a path sees of it.

mod client;
mod search;
mod server;

pub use client::{Outcome, Over, ProbeError, ProbeSession, Train, TrainResult};
pub use search::{SearchedRate, search_rate};
pub use server::{Answered, ProbeServer};

use crate::messages::MOST_MESSAGE_BYTES;

/// The UDP port of a server where no other is named.
pub const DEFAULT_PORT: u16 = 8621;

/// The longest payload.
pub const MOST_BYTES: usize = MOST_MESSAGE_BYTES;
