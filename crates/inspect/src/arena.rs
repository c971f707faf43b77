//! Memory of streams: equal chunks of a fixed number, made once.

/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = 512;
/// Number of no chunk.
pub const NONE: u32 = u32::MAX;

/// Chunks, and a list of the free ones.
#[derive(Debug)]
pub struct Arena {
    bytes: Box<[[u8; CHUNK_BYTES]]>,
    /// The chunk behind each, of a list or of the free ones; [`NONE`] ends it.
    next: Box<[u32]>,
    free: u32,
    used: usize,
    most_used: usize,
}

impl Arena {
    /// Makes so many bytes of memory, rounded down to whole chunks.
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

    /// Takes a chunk; its bytes are whatever was there before.
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

    /// Gives a chunk back.
    #[inline]
    pub fn give_back(&mut self, chunk: u32) {
        self.next[chunk as usize] = self.free;
        self.free = chunk;
        self.used -= 1;
    }

    /// Gives all chunks of a list back, from that one on.
    pub fn give_back_all(&mut self, mut chunk: u32) {
        while chunk != NONE {
            let next = self.next(chunk);
            self.give_back(chunk);
            chunk = next;
        }
    }

    /// Says whether so many chunks can be taken.
    #[inline]
    pub fn has(&self, chunks: usize) -> bool {
        self.bytes.len() - self.used >= chunks
    }

    /// Bytes of a chunk.
    #[inline]
    pub fn bytes(&self, chunk: u32) -> &[u8; CHUNK_BYTES] {
        &self.bytes[chunk as usize]
    }

    /// Bytes of a chunk, to be written.
    #[inline]
    pub fn bytes_mut(&mut self, chunk: u32) -> &mut [u8; CHUNK_BYTES] {
        &mut self.bytes[chunk as usize]
    }

    /// The chunk behind one in its list.
    #[inline]
    pub fn next(&self, chunk: u32) -> u32 {
        self.next[chunk as usize]
    }

    /// Puts a chunk behind one in its list.
    #[inline]
    pub fn link(&mut self, chunk: u32, next: u32) {
        self.next[chunk as usize] = next;
    }

    /// Chunks in all.
    pub fn chunks(&self) -> usize {
        self.bytes.len()
    }

    /// Chunks in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Chunks that were in use at a time at most.
    pub fn most_used(&self) -> usize {
        self.most_used
    }
}
