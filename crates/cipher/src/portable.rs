//! The cipher for every machine: the `aes` crate, which selects instructions itself.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};

/// Number of key stream blocks per step.
const AT_ONCE: usize = 16;

pub(crate) enum Portable {
    Short(Aes128),
    Long(Aes256),
}

impl Portable {
    /// Makes a cipher from a key of 16 or 32 bytes; none if the key has another length.
    pub(crate) fn new(key: &[u8]) -> Option<Self> {
        match key.len() {
            16 => Some(Self::Short(Aes128::new_from_slice(key).ok()?)),
            _ => Some(Self::Long(Aes256::new_from_slice(key).ok()?)),
        }
    }

    /// Adds the key stream from block `first` on to `text`.
    pub(crate) fn add_key_stream(&self, first: u128, text: &mut [u8]) {
        let mut counter = first;
        for some in text.chunks_mut(16 * AT_ONCE) {
            let mut stream = [[0; 16]; AT_ONCE];
            let stream = &mut stream[..some.len().div_ceil(16)];
            for block in &mut *stream {
                *block = counter.to_be_bytes();
                counter = counter.wrapping_add(1);
            }
            match self {
                Self::Short(key) => key.encrypt_blocks(Block::cast_slice_from_core_mut(stream)),
                Self::Long(key) => key.encrypt_blocks(Block::cast_slice_from_core_mut(stream)),
            }
            let stream = stream.as_flattened();
            some.iter_mut().zip(stream).for_each(|(a, b)| *a ^= b);
        }
    }
}
