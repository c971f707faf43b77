//! The structure with which taut requests a device from `shim.c` and gets the results, in the layout of `shim.c`.

use std::ffi::{c_char, c_int, c_void};

/// A request for a device, and its results (`struct taut_setup`).
#[repr(C)]
pub(super) struct Setup {
    pub(super) ring: u16,
    pub(super) queues: u16,
    pub(super) tx_queues: u16,
    pub(super) mtu: u16,
    pub(super) rate_mbps: u32,
    pub(super) mempools: *const *mut c_void,
    pub(super) stamps: c_int,
    pub(super) stamp_offset: c_int,
    pub(super) stamp_flag: u64,
    pub(super) port: u16,
    pub(super) rx_ring: u16,
    pub(super) tx_ring: u16,
    pub(super) step: *const c_char,
    pub(super) driver: [c_char; 64],
}

/// The packets that a device has lost, by its own count (`struct taut_losses`).
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Losses {
    /// Packets that arrived when the receive ring was full.
    pub(super) missed: u64,
    /// Packets that arrived when no mbuf was free.
    pub(super) no_mbuf: u64,
    pub(super) rx_errors: u64,
    pub(super) tx_errors: u64,
}
