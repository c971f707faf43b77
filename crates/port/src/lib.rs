//! Packet pool, [`Batch`], trait [`Port`], and one folder per backend.
//!
//! A [`Packet`] is a handle on memory of a [`Pool`] or of a port's ring, a [`Batch`] is up to 64 of them, and a [`Port`]
//! receives and sends batches. A port is opened from its textual spec ([`PortSpec`]) with the pool and what else ports share
//! ([`Resources`]), and used by exactly one thread. Each backend describes itself in a [`Backend`], of which [`backends`] is
//! the list. What programs in the kernel need of ports is in [`in_kernel`].
//!
//! Begin with `port.rs`, then `null.rs`, the smallest backend. There is `unsafe` here, for rings and packet memory that are
//! shared with the kernel, with devices and with other processes.
//!
//! ```
//! use taut_port::{Batch, Port, PortSpec, Resources};
//!
//! let mut resources = Resources::for_ports(&[PortSpec::parse("null:")?])?;
//! let mut port = PortSpec::parse("null:")?.open(&mut resources)?;
//! let mut batch = Batch::new();
//! resources.pool().fill(&mut batch, 32, 60);
//! assert_eq!(port.tx(&mut batch), 32);
//! assert!(batch.is_empty());
//! # Ok::<(), taut_port::PortError>(())
//! ```

mod backend;
mod batch;
mod copies;
mod error;
mod frame_copy;
mod handling;
#[cfg(test)]
mod handling_tests;
#[cfg(test)]
mod interface_tests;
mod packet;
mod pairs;
mod pool;
mod port;
mod registry;
mod veth;

pub mod af_packet;
pub mod af_xdp;
pub mod dpdk;
pub mod in_kernel;
pub mod memif;
pub mod null;
pub mod pair;
pub mod pcap;
pub mod tap;

pub use backend::{Backend, Joinable, Part, PortSpec, Resources, Split};
pub use batch::{BATCH_CAPACITY, Batch, Mark, Marks, NO_PRIORITY, Punt};
pub use copies::{Copies, copies};
pub use error::PortError;
pub use handling::{Handling, Receives, Sends};
pub use packet::Packet;
pub use pairs::{Direction, Pairs};
pub use pool::{Pool, PoolHandle};
pub use port::{Breakdown, Link, Port, PortCounters, Supply};
pub use registry::backends;
