//! The declarations of `taut_function.h` in Rust. Copy this file into your crate.
#![allow(dead_code)]

use std::ffi::{c_char, c_void};

/// Version of the interface.
pub const TAUT_FUNCTION_ABI: u32 = 1;

/// The packet continues; packets arrive with this verdict.
pub const TAUT_KEEP: u8 = 0;
/// The packet is dropped, and counted.
pub const TAUT_DROP: u8 = 1;
/// The packet goes to the slow path.
pub const TAUT_PUNT: u8 = 2;

/// The port value of packets that leave through the default egress port.
pub const TAUT_USUAL_PORT: u8 = 255;

/// A packet.
#[repr(C)]
pub struct TautPacket {
    pub data: *mut u8,
    pub length: u16,
    pub headroom: u16,
    pub tailroom: u16,
    pub verdict: u8,
    pub port: u8,
}

impl TautPacket {
    /// Returns the bytes of the frame.
    ///
    /// # Safety
    /// The packet has to be one that taut passed to the current call, with `data` and `length` unchanged.
    pub unsafe fn frame(&mut self) -> &mut [u8] {
        // SAFETY: taut keeps the `length` bytes at `data` valid, and used by nothing else, during the call.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.length.into()) }
    }
}

/// The fields common to all packets of a batch.
#[repr(C)]
pub struct TautBatch {
    pub ticks: u64,
    pub in_port: u32,
    pub out_port: u32,
    pub ports: u32,
    pub direction: u32,
}

/// The host for which a state is created.
#[repr(C)]
pub struct TautHost {
    pub abi: u32,
    pub worker: u32,
    pub workers: u32,
    pub reserved: u32,
    pub ticks_per_second: f64,
    pub counter: unsafe extern "C" fn(*const TautHost, *const c_char) -> *mut u64,
    pub fail: unsafe extern "C" fn(*const TautHost, *const c_char),
}

/// The symbols that the library has to export, each with the name after its type: `taut_function_abi`,
/// `taut_function_make`, `taut_function_process`, `taut_function_free`.
pub type Abi = extern "C" fn() -> u32;
pub type Make = unsafe extern "C" fn(*const c_char, *const TautHost) -> *mut c_void;
pub type Process = unsafe extern "C" fn(*mut c_void, *mut TautPacket, u32, *const TautBatch);
pub type Free = unsafe extern "C" fn(*mut c_void);
