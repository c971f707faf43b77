//! The declarations of `include/taut_function.h` in Rust.

use std::ffi::{c_char, c_void};
use taut_port::Packet;

/// Version of the C interface between taut and libraries, which this program supports.
pub(crate) const ABI: u32 = 1;

/// The verdicts of a library on a packet: `TAUT_KEEP`, `TAUT_DROP` and `TAUT_PUNT` of the C header.
pub(crate) const KEEP: u8 = 0;
pub(crate) const DROP: u8 = 1;
pub(crate) const PUNT: u8 = 2;

/// The egress port of a packet for which the library has chosen no port: `TAUT_USUAL_PORT` of the C header.
pub(crate) const USUAL_PORT: u8 = u8::MAX;

/// A packet as a library gets it: `struct taut_packet`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawPacket {
    pub data: *mut u8,
    /// Length, headroom, tailroom, verdict and port, packed into one number, so that they are written and compared
    /// together. They are in the order of the header's fields; the first one is in the lowest bits in the machine's
    /// byte order.
    rest: u64,
}

/// Initial values of a packet's verdict and port, which stay if the library sets neither.
const UNSAID: u64 = (KEEP as u64) << 48 | (USUAL_PORT as u64) << 56;

impl RawPacket {
    pub(crate) const NONE: Self = Self {
        data: std::ptr::null_mut(),
        rest: 0,
    };

    #[inline(always)]
    pub(crate) fn of(packet: &mut Packet) -> Self {
        let [length, headroom, tailroom] =
            [packet.len(), packet.headroom(), packet.tailroom()].map(|it| it as u64);
        let rest = length | headroom << 16 | tailroom << 32 | UNSAID;
        Self {
            data: packet.as_mut_ptr(),
            rest: rest.to_le(),
        }
    }

    /// Returns the bits in which this entry differs from `packet`, from which the entry was made; 0 without a
    /// difference. Changes of headroom and tailroom are ignored.
    #[inline(always)]
    pub(crate) fn said(&self, packet: &Packet) -> u64 {
        // Changes of headroom and tailroom are ignored.
        const LOOKED_AT: u64 = 0xffff_0000_0000_ffff;
        let differs = (self.rest.to_le() ^ (packet.len() as u64 | UNSAID)) & LOOKED_AT;
        (self.data as u64 ^ packet.bytes().as_ptr() as u64) | differs
    }

    pub(crate) fn length(&self) -> u16 {
        self.rest.to_le() as u16
    }

    pub(crate) fn verdict(&self) -> u8 {
        (self.rest.to_le() >> 48) as u8
    }

    pub(crate) fn port(&self) -> u8 {
        (self.rest.to_le() >> 56) as u8
    }
}

/// The fields common to all packets of a batch: `struct taut_batch`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct Call {
    /// Time at which the worker began the batch, in ticks.
    pub ticks: u64,
    /// Index of the ingress port.
    pub in_port: u32,
    /// Index of the default egress port.
    pub out_port: u32,
    /// Number of ports of the chain.
    pub ports: u32,
    /// Direction: 0 from the first port of a pair to the second, 1 back.
    pub direction: u32,
}

/// The data and functions that a library gets when its state is created: `struct taut_host` of the C header.
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

/// The type of the C header's `taut_function_abi`, which returns the interface version of the library.
pub(crate) type AbiFn = unsafe extern "C" fn() -> u32;
pub(crate) type MakeFn = unsafe extern "C" fn(*const c_char, *const RawHost) -> *mut c_void;
pub(crate) type ProcessFn = unsafe extern "C" fn(*mut c_void, *mut RawPacket, u32, *const Call);
pub(crate) type FreeFn = unsafe extern "C" fn(*mut c_void);

/// The functions of the C interface that a library provides.
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
    fn types_have_the_memory_layout_of_the_c_header() {
        assert_eq!(
            (size_of::<RawPacket>(), offset_of!(RawPacket, rest)),
            (16, 8)
        );
        assert_eq!((size_of::<Call>(), offset_of!(Call, direction)), (24, 20));
        assert_eq!(offset_of!(RawHost, ticks_per_second), 16);
        assert_eq!((size_of::<RawHost>(), offset_of!(RawHost, fail)), (40, 32));
    }

    #[test]
    fn the_c_header_defines_the_same_constants_as_the_crate() {
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
