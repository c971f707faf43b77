//! The structures that a port's data path shares with `shim.c`.

use crate::{Packet, Pool};
use std::ffi::c_void;
use std::mem::offset_of;

/// Counters of all packets since the port was opened (`struct taut_counts`).
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) rx_packets: u64,
    pub(super) rx_bytes: u64,
    pub(super) rx_too_long: u64,
    pub(super) tx_packets: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_too_long: u64,
    /// Packets refused because the device's transmit ring was full; they stay with the caller.
    pub(super) tx_refused: u64,
}

/// The state of the data path (`struct taut_path`).
#[repr(C)]
#[derive(Debug)]
pub(super) struct Path {
    pub(super) port: u16,
    /// Number of receive queues that this port polls round robin. It is 1 if several workers share the device and each
    /// has one queue.
    pub(super) queues: u16,
    pub(super) next_queue: u16,
    pub(super) tx_queue: u16,
    /// Mbuf pool for copies of packets that other ports received.
    pub(super) mempool: *mut c_void,
    /// Address of the first slot of the packet memory, from which slot numbers are counted.
    pub(super) base: usize,
    /// Record of the mbufs that packets use.
    pub(super) ledger: *const Pool,
    /// Array for the receive timestamps of one call, or null.
    pub(super) stamps: *mut u64,
    pub(super) stamp_flag: u64,
    pub(super) stamp_offset: i32,
    pub(super) counts: Counts,
}

// The layout of `struct taut_packet` is that of `Packet`.
const _: () =
    assert!(size_of::<Packet>() == 24 && Packet::LAYOUT[0] == 0 && Packet::LAYOUT[1] == 8,);
const _: () =
    assert!(Packet::LAYOUT[2] == 16 && Packet::LAYOUT[3] == 20 && Packet::LAYOUT[4] == 22);
const _: () = assert!(offset_of!(Path, mempool) == 8 && offset_of!(Path, counts) == 56);
