//! The body of the fuzz target for OpenFlow; `cargo test` runs the same body over seeded noise.

use taut_switch::heard;

/// Longest conversation that is tried, bytes.
const MOST: usize = 1 << 16;

/// Sends a controller's bytes in arbitrary pieces. Checks that the switch replies with complete messages, whose length
/// is at most a multiple of the input's. Returns the number of replies.
pub fn session(bytes: &[u8]) -> usize {
    let Some((first, words)) = bytes.split_first() else {
        return 0;
    };
    let words = &words[..words.len().min(MOST)];
    let pieces: Vec<&[u8]> = words.chunks(usize::from(*first).max(1)).collect();
    let mut answers = &heard(&pieces)[..];
    let mut many = 0;
    while let Some(head) = answers.first_chunk::<8>() {
        assert_eq!(head[0], 4);
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        assert!(length >= 8);
        answers = answers.get(length..).expect("a whole message");
        many += 1;
    }
    assert!(answers.is_empty());
    many
}
