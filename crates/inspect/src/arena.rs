//! Memory for the bytes of TCP streams and of fragmented datagrams: a fixed number of chunks of equal size, allocated
//! once.

/// Size of a chunk in bytes.
pub const CHUNK_BYTES: usize = 512;
/// The index that means "no chunk".
pub const NONE: u32 = u32::MAX;

/// Memory chunks of equal size, and a list of the free chunks.
#[derive(Debug)]
pub struct Arena {
    bytes: Box<[[u8; CHUNK_BYTES]]>,
    /// For each chunk, the index of the next chunk in its list, which is a list in use or the list of free chunks.
    /// [`NONE`] ends a list.
    next: Box<[u32]>,
    free: u32,
    used: usize,
    most_used: usize,
}

impl Arena {
    /// Allocates chunks for `bytes` bytes, rounded down to complete chunks.
    pub fn new(bytes: usize) -> Self {
        let chunks = (bytes / CHUNK_BYTES).clamp(1, NONE as usize - 1);
        let next = (1..chunks as u32).chain([NONE]);
        Self {
            bytes: vec![[0; CHUNK_BYTES]; chunks].into(),
            next: next.collect(),
            free: 0,
            used: 0,
            most_used: 0,
        }
    }

    /// Removes a chunk from the free list and returns its index; none if no chunk is free. The bytes of the chunk are
    /// not cleared.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        let chunk = self.free;
        if chunk == NONE {
            return None;
        }
        self.free = self.next[chunk as usize];
        self.next[chunk as usize] = NONE;
        self.used += 1;
        self.most_used = self.most_used.max(self.used);
        Some(chunk)
    }

    /// Returns a chunk to the free list.
    #[inline]
    pub fn give_back(&mut self, chunk: u32) {
        self.next[chunk as usize] = self.free;
        self.free = chunk;
        self.used -= 1;
    }

    /// Returns `chunk` and all chunks after it in its list to the free list.
    pub fn give_back_all(&mut self, mut chunk: u32) {
        while chunk != NONE {
            let next = self.next(chunk);
            self.give_back(chunk);
            chunk = next;
        }
    }

    /// Returns true if at least `chunks` chunks are free.
    #[inline]
    pub fn has(&self, chunks: usize) -> bool {
        self.bytes.len() - self.used >= chunks
    }

    /// Returns the bytes of a chunk.
    #[inline]
    pub fn bytes(&self, chunk: u32) -> &[u8; CHUNK_BYTES] {
        &self.bytes[chunk as usize]
    }

    /// Returns the bytes of a chunk for writing.
    #[inline]
    pub fn bytes_mut(&mut self, chunk: u32) -> &mut [u8; CHUNK_BYTES] {
        &mut self.bytes[chunk as usize]
    }

    /// Returns the index of the chunk after `chunk` in its list; [`NONE`] at the end of the list.
    #[inline]
    pub fn next(&self, chunk: u32) -> u32 {
        self.next[chunk as usize]
    }

    /// Makes `next` the chunk after `chunk` in its list.
    #[inline]
    pub fn link(&mut self, chunk: u32, next: u32) {
        self.next[chunk as usize] = next;
    }

    /// Returns the number of all chunks.
    pub fn chunks(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of chunks in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Returns the highest number of chunks that were in use at the same time.
    pub fn most_used(&self) -> usize {
        self.most_used
    }
}
