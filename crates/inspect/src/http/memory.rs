//! Memory for the bytes of a message, up to a limit. The operating system provides each page at the first write to it.

use std::ops::{Deref, DerefMut, Range};

/// Number of bytes that stay allocated between connections; a larger buffer is released.
const KEPT_BYTES: usize = 16 * 1024;

/// Bytes up to a limit; the first `len` of them are written.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Box<[u8]>,
    len: usize,
    /// Highest number of bytes written since the memory was allocated.
    touched: usize,
}

impl Memory {
    pub fn new(limit: usize) -> Self {
        Self {
            bytes: vec![0; limit].into_boxed_slice(),
            len: 0,
            touched: 0,
        }
    }

    /// Appends bytes and returns how many of them fit.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.bytes[self.len..][..taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Appends a copy of the written bytes in the range `part`, up to the limit.
    pub fn push_own(&mut self, part: Range<usize>) {
        let len = part.len().min(self.room());
        self.bytes
            .copy_within(part.start..part.start + len, self.len);
        self.len += len;
    }

    pub fn room(&self) -> usize {
        self.bytes.len() - self.len
    }

    pub fn truncate(&mut self, len: usize) {
        self.touched = self.touched.max(self.len);
        self.len = self.len.min(len);
    }

    /// Clears the bytes for another connection; a large buffer is returned to the operating system.
    pub fn forget(&mut self) {
        if self.is_large() {
            *self = Self::new(self.bytes.len());
        }
        self.truncate(0);
    }

    /// Returns true if more bytes were written than stay allocated between connections.
    pub fn is_large(&self) -> bool {
        self.touched.max(self.len) > KEPT_BYTES
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}
