//! AES without look-up tables: eight blocks at once, bit by bit, so that its time depends on neither key nor data. For
//! study, next to processors' own instructions. (FIPS 197; bit slicing: Biham, FSE 1997.)

/// Plane of one bit of every byte of eight blocks: byte `p` of it holds the bits of the bytes at place `p`, one per
/// block.
type Plane = u128;
/// Eight blocks, bit by bit, the lowest first.
type State = [Plane; 8];

const BLOCKS: usize = 8;

/// The key schedule of one key.
pub(super) struct TableFree {
    round_keys: [State; 15],
    rounds: usize,
}

impl TableFree {
    /// Expands a key of 16 or 32 bytes. (FIPS 197 section 5.2.)
    pub(super) fn new(key: &[u8]) -> Self {
        let words = key.len() / 4;
        let rounds = words + 6;
        let mut schedule = [[0_u8; 4]; 60];
        for (word, bytes) in schedule.iter_mut().zip(key.chunks_exact(4)) {
            word.copy_from_slice(bytes);
        }
        let mut round_constant = 1_u8;
        for i in words..4 * (rounds + 1) {
            let mut word = schedule[i - 1];
            if i % words == 0 {
                word.rotate_left(1);
                word = substitute_word(word);
                word[0] ^= round_constant;
                round_constant = (round_constant << 1) ^ ((round_constant >> 7) * 0x1B);
            } else if words == 8 && i % words == 4 {
                word = substitute_word(word);
            }
            for (byte, before) in word.iter_mut().zip(schedule[i - words]) {
                *byte ^= before;
            }
            schedule[i] = word;
        }
        let mut round_keys = [[0; 8]; 15];
        for (round_key, words) in round_keys.iter_mut().zip(schedule.as_chunks::<4>().0) {
            let mut block = [0; 16];
            block.copy_from_slice(words.as_flattened());
            *round_key = slice(&[block; BLOCKS]);
        }
        Self { round_keys, rounds }
    }

    /// Adds the stream of block `first` and those behind it. (NIST SP 800-38A section 6.5.)
    pub(super) fn add_key_stream(&self, first: u128, text: &mut [u8]) {
        let mut counter = first;
        for some in text.chunks_mut(16 * BLOCKS) {
            let mut stream = [[0; 16]; BLOCKS];
            for block in &mut stream {
                *block = counter.to_be_bytes();
                counter = counter.wrapping_add(1);
            }
            self.encrypt(&mut stream);
            let stream = stream.as_flattened();
            some.iter_mut().zip(stream).for_each(|(a, b)| *a ^= b);
        }
    }

    /// Encrypts any number of blocks, eight at a time. (FIPS 197 section 5.1.)
    pub(super) fn encrypt(&self, blocks: &mut [[u8; 16]]) {
        for some in blocks.chunks_mut(BLOCKS) {
            let mut eight = [[0; 16]; BLOCKS];
            eight[..some.len()].copy_from_slice(some);
            let mut state = slice(&eight);
            add(&mut state, &self.round_keys[0]);
            for round in 1..=self.rounds {
                state = substitute(&state).map(shift_rows);
                if round < self.rounds {
                    state = mix_columns(&state);
                }
                add(&mut state, &self.round_keys[round]);
            }
            some.copy_from_slice(&unslice(&state)[..some.len()]);
        }
    }
}

fn add(state: &mut State, key: &State) {
    state.iter_mut().zip(key).for_each(|(bit, key)| *bit ^= key);
}

fn slice(blocks: &[[u8; 16]; BLOCKS]) -> State {
    let mut planes = [[0; 16]; 8];
    for place in 0..16 {
        let bits = transpose(u64::from_le_bytes(blocks.map(|block| block[place])));
        for (plane, bits) in planes.iter_mut().zip(bits.to_le_bytes()) {
            plane[place] = bits;
        }
    }
    planes.map(Plane::from_le_bytes)
}

fn unslice(state: &State) -> [[u8; 16]; BLOCKS] {
    let planes = state.map(Plane::to_le_bytes);
    let mut blocks = [[0; 16]; BLOCKS];
    for place in 0..16 {
        let bytes = transpose(u64::from_le_bytes(planes.map(|plane| plane[place])));
        for (block, byte) in blocks.iter_mut().zip(bytes.to_le_bytes()) {
            block[place] = byte;
        }
    }
    blocks
}

/// Bit `i` of byte `j` becomes bit `j` of byte `i`.
fn transpose(mut bits: u64) -> u64 {
    for (by, mask) in [
        (7, 0x00AA_00AA_00AA_00AA),
        (14, 0x0000_CCCC_0000_CCCC),
        (28, 0x0000_0000_F0F0_F0F0),
    ] {
        let differing = (bits ^ bits >> by) & mask;
        bits ^= differing ^ differing << by;
    }
    bits
}

/// Row r of the state turns left by r columns; places go down the columns.
fn shift_rows(plane: Plane) -> Plane {
    let bytes = plane.to_le_bytes();
    Plane::from_le_bytes(std::array::from_fn(|place| {
        bytes[(place + 4 * (place % 4)) % 16]
    }))
}

/// Moves to each row what stands `rows` below it.
fn from_below(plane: Plane, rows: u32) -> Plane {
    const COLUMNS: Plane = 0x0000_0001_0000_0001_0000_0001_0000_0001;
    let by = 8 * rows;
    let fits = COLUMNS * Plane::from(u32::MAX >> by);
    plane >> by & fits | plane << (32 - by) & !fits
}

/// 2 a + 3 b + c + d for a byte and those below it, over GF(2^8).
fn mix_columns(state: &State) -> State {
    let below = state.map(|plane| from_below(plane, 1));
    let pairs: State = std::array::from_fn(|i| state[i] ^ below[i]);
    let doubled = reduce(std::array::from_fn(|i| match i {
        1..=8 => pairs[i - 1],
        _ => 0,
    }));
    std::array::from_fn(|i| doubled[i] ^ below[i] ^ from_below(pairs[i], 2))
}

/// Returns the remainder of a product of degree 14 by x^8 + x^4 + x^3 + x + 1.
fn reduce(mut product: [Plane; 15]) -> State {
    for i in (8..15).rev() {
        for by in [8, 7, 5, 4] {
            product[i - by] ^= product[i];
        }
    }
    std::array::from_fn(|i| product[i])
}

fn multiply(a: &State, b: &State) -> State {
    let mut product = [0; 15];
    for i in 0..8 {
        for j in 0..8 {
            product[i + j] ^= a[i] & b[j];
        }
    }
    reduce(product)
}

fn square(a: &State) -> State {
    reduce(std::array::from_fn(
        |i| {
            if i % 2 == 0 { a[i / 2] } else { 0 }
        },
    ))
}

/// The S-box: the inverse a^254, then the affine map. (FIPS 197 section 5.1.1.)
fn substitute(a: &State) -> State {
    let a2 = square(a);
    let a3 = multiply(a, &a2);
    let a12 = square(&square(&a3));
    let a15 = multiply(&a12, &a3);
    let a240 = square(&square(&square(&square(&a15))));
    let inverse = multiply(&multiply(&a240, &a12), &a2);
    std::array::from_fn(|i| {
        let sum = (4..8).fold(inverse[i], |sum, j| sum ^ inverse[(i + j) % 8]);
        if 0x63 >> i & 1 == 1 { !sum } else { sum }
    })
}

fn substitute_word(word: [u8; 4]) -> [u8; 4] {
    let mut blocks = [[0; 16]; BLOCKS];
    blocks[0][..4].copy_from_slice(&word);
    let [a, b, c, d, ..] = unslice(&substitute(&slice(&blocks)))[0];
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};

    #[test]
    fn the_example_vectors_of_fips_197_come_out() {
        let plain: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        for (length, cipher) in [
            (16, 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a_u128),
            (32, 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089),
        ] {
            let mut blocks = [plain; 11];
            TableFree::new(&key[..length]).encrypt(&mut blocks);
            assert_eq!(blocks, [cipher.to_be_bytes(); 11]);
        }
    }

    #[test]
    fn any_block_comes_out_as_by_another_implementation() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let mut key = [0; 32];
            random.fill(&mut key);
            let mut blocks = [[0; 16]; 9];
            blocks.iter_mut().for_each(|block| random.fill(block));
            let mut expected = blocks;
            let other = aes::Aes256::new(&key.into());
            for block in &mut expected {
                other.encrypt_block(block.into());
            }
            TableFree::new(&key).encrypt(&mut blocks);
            assert_eq!(blocks, expected);
        }
    }
}
