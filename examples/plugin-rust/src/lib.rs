//! A function of taut in Rust: swaps source and destination MAC address, counts the frames, and drops frames that are
//! too short to have both.
//!
//!     cargo build --release
//!     taut forward --port pcap:in.pcap --port pcap:out.pcap,role=write \
//!         --function 'plugin(file=target/release/libmac_swap.so)'

mod taut_function;

use std::ffi::{CStr, c_char, c_void};
use taut_function::{TAUT_DROP, TAUT_FUNCTION_ABI, TautBatch, TautHost, TautPacket};

const HEADER_BYTES: usize = 14;

/// The state of the function in one worker.
struct MacSwap {
    swapped: *mut u64,
}

/// Swaps the addresses of a frame; returns false if it is too short to have them.
fn swap(frame: &mut [u8]) -> bool {
    if frame.len() < HEADER_BYTES {
        return false;
    }
    let (destination, rest) = frame.split_at_mut(6);
    destination.swap_with_slice(&mut rest[..6]);
    true
}

#[unsafe(no_mangle)]
extern "C" fn taut_function_abi() -> u32 {
    TAUT_FUNCTION_ABI
}

/// # Safety
/// The caller must meet the requirements that the C header states.
#[unsafe(no_mangle)]
unsafe extern "C" fn taut_function_make(
    settings: *const c_char,
    host: *const TautHost,
) -> *mut c_void {
    // SAFETY: taut passes a string and a host that are valid for this call.
    let (settings, functions) = unsafe { (CStr::from_ptr(settings), &*host) };
    if !settings.is_empty() {
        // SAFETY: the function is one of this host, and the message is a C string.
        unsafe { (functions.fail)(host, c"settings: there are none: leave them out".as_ptr()) };
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    let swapped = unsafe { (functions.counter)(host, c"MAC addresses swapped".as_ptr()) };
    Box::into_raw(Box::new(MacSwap { swapped })).cast()
}

/// # Safety
/// The caller must meet the requirements that the C header states.
#[unsafe(no_mangle)]
unsafe extern "C" fn taut_function_process(
    state: *mut c_void,
    packets: *mut TautPacket,
    count: u32,
    _batch: *const TautBatch,
) {
    // SAFETY: taut passes `count` packets and the state from `taut_function_make`, on the thread that uses this state.
    let (state, packets) = unsafe {
        (
            &mut *state.cast::<MacSwap>(),
            std::slice::from_raw_parts_mut(packets, count as usize),
        )
    };
    let mut swapped = 0;
    for packet in packets {
        // SAFETY: the packet is unchanged since taut passed it to this call.
        if swap(unsafe { packet.frame() }) {
            swapped += 1;
        } else {
            packet.verdict = TAUT_DROP;
        }
    }
    // SAFETY: the counter exists as long as the state.
    unsafe { *state.swapped += swapped };
}

/// # Safety
/// The caller must meet the requirements that the C header states.
#[unsafe(no_mangle)]
unsafe extern "C" fn taut_function_free(state: *mut c_void) {
    // SAFETY: `taut_function_make` has created this state, and taut frees it once.
    drop(unsafe { Box::from_raw(state.cast::<MacSwap>()) });
}

// The compiler checks here that the types are those of the header.
const _: taut_function::Abi = taut_function_abi;
const _: taut_function::Make = taut_function_make;
const _: taut_function::Process = taut_function_process;
const _: taut_function::Free = taut_function_free;
