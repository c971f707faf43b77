//! The packet pool, the [`Batch`], the trait [`Port`], and one folder per backend.
//!
//! A [`Packet`] is a handle on memory of a [`Pool`] or of a port's ring. A *ledger* (`pool.rs`) records which slots of
//! a ring packets use. A [`Batch`] has up to 64 packets, and a [`Port`] receives and sends batches. A port is opened
//! from its textual spec ([`PortSpec`]), with the pool and other state that ports share ([`Resources`]), and used by
//! exactly one thread. Each backend describes itself in a [`Backend`]; [`backends`] is the list of them. [`in_kernel`]
//! has the ports for XDP programs in the kernel.
//!
//! Start reading at `port.rs`, then `null.rs`, the smallest backend. The crate has `unsafe` code for rings and packet
//! memory that are shared with the kernel, with devices and with other processes.
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
//!
//! # Batches
//!
//! A function marks a packet as dropped or punted; the worker removes the marked packets once per batch. A function may
//! also give a packet another egress port (`Batch::send_to`), additional egress ports for copies (`Batch::copy_to`) or
//! a priority (`Batch::set_priority`). The first function that calls `Batch::headers` parses the headers, and the
//! functions after it get the stored result. `Batch::packet_mut` discards that result. `Batch::packet_mut_but_headers`
//! keeps the result, for changes that do not touch the headers; debug builds check that.
//!
//! Ports form pairs ([`Pairs`]): a packet leaves through the partner of its ingress port unless a function chooses
//! another one. No other code knows that the partner of port `i` is port `i ^ 1`.
//!
//! # Copies
//!
//! A frame stays in the ring or pool where it arrived until it is sent or dropped. The egress port sends the frame from
//! there if it can, and otherwise copies it once. A frame that a memif peer sends in several buffers costs one more
//! copy. Each backend declares its [`Handling`], from which `taut ports --matrix` derives the copies in user space; a
//! test counts the actual copies. The kernel, and drivers of DPDK's virtual devices, may copy in addition.
//!
//! | From | To memif client, AF_XDP | To memif server, AF_PACKET, pcap, pair | To tap, null | To DPDK |
//! |---|---|---|---|---|
//! | memif client, AF_XDP, tap, null | 0 | 1 | 0 | 1 |
//! | memif server, AF_PACKET, pcap, pair | 1 | 1 | 0 | 1 |
//! | DPDK | 1 | 1 | 0 | 0 |
//!
//! # memif
//!
//! Each memif port has a control thread, which listens or connects, performs the handshake and watches the socket. It
//! passes an established connection to the data plane through one atomic number, which the data plane reads in every
//! call. The data plane never waits for the control thread or the peer. It makes a system call only if the peer sleeps
//! and requests a wakeup (`memif/wakes.rs`, `memif/knock.rs`) or breaks the protocol. The control thread detects by the
//! closed socket that a peer has exited. The peer's memory is unmapped when the last packet in it is dropped, and the
//! port listens or connects again.

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

pub use backend::{Attachment, Backend, Joinable, Part, PortSpec, Resources, Split};
pub use batch::{BATCH_CAPACITY, Batch, Mark, Marks, NO_PRIORITY, Punt};
pub use copies::{Copies, copies};
pub use error::PortError;
pub use handling::{Handling, Receives, Sends};
pub use packet::Packet;
pub use pairs::{Direction, Pairs};
pub use pool::{Pool, PoolHandle};
pub use port::{Breakdown, Link, Port, PortCounters, Supply};
pub use registry::backends;
