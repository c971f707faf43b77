//! Packet filters in the syntax of pcap-filter(7), compiled by libpcap, which is loaded for the first filter.
//!
//! Because libpcap is loaded only then, taut builds and runs without it. The system resolves names in an expression
//! (`host example.com`, `port domain`) during compilation, as in every program with such filters. Compiling an
//! expression with names therefore waits for the system's resolver.

use crate::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The maximum length of an expression, bytes.
pub const LONGEST_EXPRESSION_BYTES: usize = 64 << 10;

/// The link type of Ethernet (DLT_EN10MB).
const ETHERNET: c_int = 1;
/// The value that a filter returns for an accepted packet; it is the maximum length of a packet in libpcap
/// (MAXIMUM_SNAPLEN).
const SNAP_BYTES: c_int = 262_144;
/// The value for an unknown netmask (PCAP_NETMASK_UNKNOWN), with which libpcap refuses `ip broadcast`.
const NO_NETMASK: u32 = u32::MAX;

/// An instruction of a classic BPF program, as in libpcap and the kernel (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct FilterInstruction {
    /// Operation code of the instruction.
    pub code: u16,
    /// Number of instructions that a jump skips if its condition holds.
    pub jt: u8,
    /// Number of instructions that a jump skips if its condition does not hold.
    pub jf: u8,
    /// Operand of the instruction: a number, offset or length.
    pub k: u32,
}

/// The reason why an expression was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketFilterError {
    /// This machine has no libpcap; the text is the loader's error.
    #[error("needs libpcap: apt install libpcap0.8 ({0})")]
    Missing(String),
    /// The expression is invalid; the text is libpcap's error.
    #[error("{0}")]
    Refused(String),
}

/// Compiles an expression of pcap-filter(7) for Ethernet frames. Without `optimise` compilation is faster, and the
/// program is longer.
///
/// # Errors
/// [`PacketFilterError`] if libpcap is missing or refuses the expression, or if the expression is longer than
/// [`LONGEST_EXPRESSION_BYTES`].
pub fn compile_packet_filter(
    text: &str,
    optimise: bool,
) -> Result<Vec<FilterInstruction>, PacketFilterError> {
    if text.len() > LONGEST_EXPRESSION_BYTES {
        let reason = format!(
            "an expression has at most {LONGEST_EXPRESSION_BYTES} bytes, not {}",
            text.len()
        );
        return Err(PacketFilterError::Refused(reason));
    }
    let text = CString::new(text).map_err(|_| {
        PacketFilterError::Refused("an expression has no characters of value 0".to_string())
    })?;
    let library = library()?;
    // Until version 1.8 the parser of libpcap kept its state in global variables.
    let _alone = library.alone.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: takes no pointer.
    let handle = unsafe { (library.open_dead)(ETHERNET, SNAP_BYTES) };
    if handle.is_null() {
        return Err(PacketFilterError::Refused(
            "no memory for libpcap".to_string(),
        ));
    }
    let mut program = BpfProgram {
        length: 0,
        instructions: ptr::null_mut(),
    };
    let optimise = c_int::from(optimise);
    // SAFETY: the handle is one of this library; the call writes `program`, which outlives the call; the text is a C
    // string.
    let answer =
        unsafe { (library.compile)(handle, &mut program, text.as_ptr(), optimise, NO_NETMASK) };
    let compiled = if answer == 0 {
        Ok(program.copied())
    } else {
        // SAFETY: this is a C string within the handle, which is closed after the string was copied.
        let reason = unsafe { CStr::from_ptr((library.geterr)(handle)) };
        Err(PacketFilterError::Refused(
            reason.to_string_lossy().into_owned(),
        ))
    };
    // SAFETY: frees what the library has put into `program`, which is nothing if it refused, and then the handle;
    // neither is used again.
    unsafe {
        (library.freecode)(&mut program);
        (library.close)(handle);
    }
    compiled
}

/// Returns the result of libpcap's own interpreter for a frame, for tests. None if libpcap is missing or refuses the
/// program. The interpreter follows backward jumps, so a program with such jumps may not end. Scratch memory that was
/// not written before has arbitrary contents.
#[doc(hidden)]
pub fn ask_libpcap(
    instructions: &[FilterInstruction],
    frame: &[u8],
    wire_bytes: u32,
) -> Option<u32> {
    let library = library().ok()?;
    let length = c_int::try_from(instructions.len()).ok()?;
    let kept = c_uint::try_from(frame.len()).ok()?;
    // SAFETY: both functions get a pointer to `length` instructions, and the filter gets one to `kept` bytes. A program
    // that the library accepts as valid accesses only itself, its scratch memory and the frame.
    unsafe {
        ((library.validate)(instructions.as_ptr(), length) != 0)
            .then(|| (library.filter)(instructions.as_ptr(), frame.as_ptr(), wire_bytes, kept))
    }
}

/// The structure `struct bpf_program`.
#[repr(C)]
struct BpfProgram {
    length: c_uint,
    instructions: *mut FilterInstruction,
}

impl BpfProgram {
    fn copied(&self) -> Vec<FilterInstruction> {
        if self.instructions.is_null() {
            return Vec::new();
        }
        // SAFETY: libpcap has set the pointer to `length` instructions, which live until the program is freed.
        unsafe { std::slice::from_raw_parts(self.instructions, self.length as usize) }.to_vec()
    }
}

/// The functions of libpcap that are called.
struct Pcap {
    /// Locked while an expression is compiled.
    alone: Mutex<()>,
    open_dead: OpenDead,
    compile: Compile,
    geterr: GetError,
    freecode: FreeCode,
    close: Close,
    validate: Validate,
    filter: Filter,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile =
    unsafe extern "C" fn(*mut c_void, *mut BpfProgram, *const c_char, c_int, u32) -> c_int;
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut BpfProgram);
type Close = unsafe extern "C" fn(*mut c_void);
type Validate = unsafe extern "C" fn(*const FilterInstruction, c_int) -> c_int;
type Filter = unsafe extern "C" fn(*const FilterInstruction, *const u8, c_uint, c_uint) -> c_uint;

/// Returns the library, loaded on first use; it stays loaded.
fn library() -> Result<&'static Pcap, PacketFilterError> {
    static LIBRARY: OnceLock<Result<Pcap, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(load).as_ref();
    loaded.map_err(|reason| PacketFilterError::Missing(reason.clone()))
}

fn load() -> Result<Pcap, String> {
    // Debian and Ubuntu still use the name of version 0.8.
    let names = [c"libpcap.so.1", c"libpcap.so.0.8"];
    // SAFETY: the initialisation code of libpcap and of the libraries that it loads has no preconditions.
    let library = unsafe { Library::load(&names) }?;
    let symbol = |name: &CStr| library.symbol(name).map(NonNull::as_ptr);
    // SAFETY: not null, and functions of these types in every version with these names (pcap/pcap.h, pcap/bpf.h); the
    // library is never unloaded.
    unsafe {
        use std::mem::transmute;
        Ok(Pcap {
            alone: Mutex::new(()),
            open_dead: transmute::<*mut c_void, OpenDead>(symbol(c"pcap_open_dead")?),
            compile: transmute::<*mut c_void, Compile>(symbol(c"pcap_compile")?),
            geterr: transmute::<*mut c_void, GetError>(symbol(c"pcap_geterr")?),
            freecode: transmute::<*mut c_void, FreeCode>(symbol(c"pcap_freecode")?),
            close: transmute::<*mut c_void, Close>(symbol(c"pcap_close")?),
            validate: transmute::<*mut c_void, Validate>(symbol(c"bpf_validate")?),
            filter: transmute::<*mut c_void, Filter>(symbol(c"bpf_filter")?),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_filter_expression_compiles_to_a_program_that_libpcap_runs() {
        let program = match compile_packet_filter("ip", true) {
            Err(PacketFilterError::Missing(_)) => return println!("skipped: needs libpcap"),
            other => other.unwrap(),
        };
        let mut frame = [0; 60];
        assert_eq!(ask_libpcap(&program, &frame, 60), Some(0));
        frame[12] = 8;
        assert_eq!(ask_libpcap(&program, &frame, 60), Some(262_144));
        // The frame is too short for a result.
        assert_eq!(ask_libpcap(&program, &frame[..13], 60), Some(0));
        assert_eq!(ask_libpcap(&program[..1], &frame, 60), None);
    }

    #[test]
    fn an_invalid_filter_expression_is_refused_with_a_reason() {
        let long = "x".repeat(LONGEST_EXPRESSION_BYTES + 1);
        for (text, says) in [
            ("a\0b", "value 0"),
            (&*long, "65536"),
            ("tcp and", "syntax"),
        ] {
            match compile_packet_filter(text, true) {
                Err(PacketFilterError::Missing(_)) => println!("skipped: needs libpcap"),
                Err(PacketFilterError::Refused(reason)) => {
                    assert!(reason.contains(says), "{reason}")
                }
                Ok(_) => panic!("{text}"),
            }
        }
    }
}
