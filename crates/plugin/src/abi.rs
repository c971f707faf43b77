//! What `include/taut_function.h` declares, as Rust has it.

use std::ffi::{c_char, c_void};
use taut_port::Packet;

/// Version of the interface.
pub(crate) const ABI: u32 = 1;

/// The header's `TAUT_KEEP`, `TAUT_DROP` and `TAUT_PUNT`.
pub(crate) const KEEP: u8 = 0;
pub(crate) const DROP: u8 = 1;
pub(crate) const PUNT: u8 = 2;

/// The header's `TAUT_USUAL_PORT`.
pub(crate) const USUAL_PORT: u8 = u8::MAX;

/// A packet as a library gets it: `struct taut_packet`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawPacket {
    pub data: *mut u8,
    pub length: u16,
    pub headroom: u16,
    pub tailroom: u16,
    pub verdict: u8,
    pub port: u8,
}

impl RawPacket {
    pub(crate) const NONE: Self = Self {
        data: std::ptr::null_mut(),
        length: 0,
        headroom: 0,
        tailroom: 0,
        verdict: KEEP,
        port: USUAL_PORT,
    };

    #[inline(always)]
    pub(crate) fn of(packet: &mut Packet) -> Self {
        Self {
            data: packet.as_mut_ptr(),
            length: packet.len() as u16,
            headroom: packet.headroom() as u16,
            tailroom: packet.tailroom() as u16,
            ..Self::NONE
        }
    }

    /// Whether the library has left it at what it was.
    #[inline(always)]
    pub(crate) fn is_untouched(&self, packet: &Packet) -> bool {
        let bytes = packet.bytes();
        // All of it, without branches between: nearly always it is.
        (self.data.cast_const() == bytes.as_ptr())
            & (usize::from(self.length) == bytes.len())
            & (self.verdict == KEEP)
            & (self.port == USUAL_PORT)
    }
}

/// Facts that all packets of a batch have in common: `struct taut_batch`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Call {
    /// Time at which the worker began, in ticks.
    pub ticks: u64,
    /// Number of the port that the packets came in through.
    pub in_port: u32,
    /// Number of the port that they leave through unless they are sent elsewhere.
    pub out_port: u32,
    /// Ports of the chain.
    pub ports: u32,
    /// 0 from the first port of a pair to the second, 1 back.
    pub direction: u32,
}

/// Host that a state is made for: `struct taut_host`.
#[repr(C)]
pub(crate) struct RawHost {
    pub abi: u32,
    pub worker: u32,
    pub workers: u32,
    pub reserved: u32,
    pub ticks_per_second: f64,
    pub counter: unsafe extern "C" fn(*const RawHost, *const c_char) -> *mut u64,
    pub fail: unsafe extern "C" fn(*const RawHost, *const c_char),
}

/// The header's `taut_function_abi`.
pub(crate) type AbiFn = unsafe extern "C" fn() -> u32;
pub(crate) type MakeFn = unsafe extern "C" fn(*const c_char, *const RawHost) -> *mut c_void;
pub(crate) type ProcessFn = unsafe extern "C" fn(*mut c_void, *mut RawPacket, u32, *const Call);
pub(crate) type FreeFn = unsafe extern "C" fn(*mut c_void);

/// Functions of a library.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Calls {
    pub make: MakeFn,
    pub process: ProcessFn,
    pub free: FreeFn,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    #[test]
    fn types_are_laid_out_as_the_header_says() {
        assert_eq!(size_of::<RawPacket>(), 16);
        let places = [
            offset_of!(RawPacket, data),
            offset_of!(RawPacket, length),
            offset_of!(RawPacket, headroom),
            offset_of!(RawPacket, tailroom),
            offset_of!(RawPacket, verdict),
            offset_of!(RawPacket, port),
        ];
        assert_eq!(places, [0, 8, 10, 12, 14, 15]);
        assert_eq!((size_of::<Call>(), offset_of!(Call, direction)), (24, 20));
        assert_eq!(offset_of!(RawHost, ticks_per_second), 16);
        assert_eq!((size_of::<RawHost>(), offset_of!(RawHost, fail)), (40, 32));
    }

    #[test]
    fn the_header_has_the_same_numbers() {
        let header = include_str!("../include/taut_function.h");
        for line in [
            format!("#define TAUT_FUNCTION_ABI {ABI}u"),
            format!("#define TAUT_USUAL_PORT {USUAL_PORT}u"),
            format!("TAUT_KEEP = {KEEP},"),
            format!("TAUT_DROP = {DROP},"),
            format!("TAUT_PUNT = {PUNT}"),
        ] {
            assert!(header.contains(&line), "{line}");
        }
    }
}
