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

mod alarm;
mod background;
mod batch;
mod bell;
mod clock;
mod error;
mod event_counters;
mod fence;
mod frame_copy;
mod handling;
#[cfg(test)]
mod handling_tests;
mod huge_pages;
mod interface;
#[cfg(test)]
mod interface_tests;
mod interruption;
mod interruption_log;
mod linked_lines;
mod memory;
mod packet;
mod pairs;
mod pool;
mod port;
mod private_socket;
mod registry;
mod stamped_socket;
mod turns;
mod veth;
#[cfg(feature = "xdp")]
mod xdp_program;

pub mod af_packet;
pub mod af_xdp;
pub mod dpdk;
#[cfg(feature = "lua")]
pub mod lua;
pub mod memif;
pub mod null;
pub mod pair;
pub mod pcap;
pub mod tap;
pub mod wire_tap;
pub mod xdp_forward;
pub mod xdp_functions;
pub mod xdp_gateway;

pub use alarm::Alarm;
pub use background::spawn as spawn_beside;
pub use batch::{BATCH_CAPACITY, Batch, Mark, Marks, NO_PRIORITY, Punt};
pub use bell::Bell;
pub use clock::{Clock, ClockReading, ticks};
pub use error::PortError;
pub use event_counters::{Event, EventCounters, EventCounts};
pub use fence::wait_for_instructions;
pub use handling::{Copies, Handling, Receives, Sends, copies};
pub use huge_pages::filled_on_huge_pages;
pub use interface::switch_on as switch_interface_on;
pub use interruption::{Interruption, RoundWatch};
pub use interruption_log::{InterruptionLog, LoggedInterruptions};
pub use linked_lines::{LINE_BYTES, LinkedLines};
pub use packet::Packet;
pub use pairs::{Direction, Pairs};
pub use pool::{Pool, PoolHandle};
pub use port::{Breakdown, Link, Port, PortCounters, Relayed, StampClock, Supply};
pub use private_socket::listen_privately;
pub use registry::{Backend, Part, PortSpec, Resources, Split, backends};
pub use stamped_socket::{receive_stamped, stamp_arrivals};
pub use turns::{SHORTEST_TURN, ask_for_short_turns};
