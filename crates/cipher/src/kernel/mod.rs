//! Counter mode by AES instructions of the processor. There is one implementation per instruction set: four blocks per
//! register (VAES with AVX-512), or one block (AES-NI).

#[cfg(target_arch = "x86_64")]
mod x86;

/// The key schedule of one key. (FIPS 197 section 5.2.)
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) struct RoundKeys {
    keys: [[u8; 16]; 15],
    /// Number of rounds, 10 or 14; the schedule has one round key more.
    rounds: usize,
}

/// An implementation of counter mode with one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Makes the schedule of a key of 16 or 32 bytes.
    pub(crate) expand: fn(key: &[u8]) -> RoundKeys,
    /// Adds the key stream from block `first` on to a text; the lower 64 bits of the counter must not overflow.
    pub(crate) add_key_stream: fn(keys: &RoundKeys, first: u128, text: &mut [u8]),
}

/// Returns the kernels that this machine can run, the fastest first.
pub(crate) fn kernels() -> Vec<Kernel> {
    #[cfg(target_arch = "x86_64")]
    return x86::kernels();
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}
