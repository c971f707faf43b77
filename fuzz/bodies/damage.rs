//! Seeded damage to a valid text, for the tests that run fuzz bodies on the stable toolchain.

/// Returns the text with one to three printable characters changed, removed or inserted.
pub fn damaged(text: &str, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..bytes.len());
        match random.u8(..3) {
            0 => bytes[at] = random.u8(b' '..b'~'),
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, random.u8(b' '..b'~')),
        }
    }
    bytes
}
