//! The body of the fuzz target for captures; `cargo test` runs the same body over damaged captures.

use taut_port::pcap::format::WINDOW_BYTES;
use taut_port::pcap::index::{End, Index};

/// Reads the bytes as a capture file. Checks that the block size makes no difference, and that every frame is within
/// its block.
pub fn capture(bytes: &[u8]) {
    let (frames, end) = walk(bytes, WINDOW_BYTES);
    let (same_frames, same_end) = walk(bytes, bytes.len() + 2 * WINDOW_BYTES);
    assert!(frames == same_frames);
    assert_eq!(end, same_end);
    if let End::Truncated(at) | End::Damaged(at, _) = end {
        assert!(at <= bytes.len() as u64);
    }
    let total: usize = frames.iter().map(|(frame, _)| frame.len()).sum();
    assert!(total <= bytes.len());
}

/// Returns every frame with its intended send time, and how the file ended.
fn walk(bytes: &[u8], block_bytes: usize) -> (Vec<(Vec<u8>, u64)>, End) {
    let mut index = Index::new(bytes, 1);
    let (mut block, mut frames, mut list) = (vec![0; block_bytes], Vec::new(), Vec::new());
    loop {
        let filled = index.fill(&mut block, list);
        for entry in &filled.entries {
            let at = entry.at as usize;
            assert!(at >= usize::from(entry.headroom));
            frames.push((
                block[at..at + usize::from(entry.len)].to_vec(),
                entry.due_ns,
            ));
        }
        if let Some(end) = filled.end {
            return (frames, end);
        }
        list = filled.entries;
    }
}
