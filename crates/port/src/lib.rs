//! Packet pool, [`Batch`], trait [`Port`], and one folder per backend.
//!
//! The only room with hardware, shared memory or foreign functions in it, and so the only one with
//! `unsafe`. A port is opened from its textual spec ([`PortSpec`]) and used by exactly one thread.
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

mod batch;
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
#[cfg(feature = "xdp")]
mod xdp_program;

pub mod af_packet;
pub mod af_xdp;
pub mod dpdk;
pub mod memif;
pub mod null;
pub mod pair;
pub mod pcap;
pub mod tap;
pub mod wire_tap;
pub mod xdp_forward;
pub mod xdp_functions;
pub mod xdp_gateway;

pub use batch::{BATCH_CAPACITY, Batch, Mark, Marks, NO_PRIORITY, Punt};
pub use error::PortError;
pub use handling::{Copies, Handling, Receives, Sends, copies};
pub use packet::Packet;
pub use pairs::{Direction, Pairs};
pub use pool::{Pool, PoolHandle};
pub use port::{Breakdown, Link, Port, PortCounters, Relayed, Supply};
pub use registry::{Backend, Part, PortSpec, Resources, Split, backends};
