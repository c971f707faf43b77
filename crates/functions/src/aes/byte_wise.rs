//! AES byte by byte with a table of the S-box, and a key expansion for every packet. The archived code of Xiang et al.
//! works like this (JSAC 2019, section V.B: tiny-AES-c). This implementation is for study only: its time depends on key
//! and data. (FIPS 197.)

/// The S-box. (FIPS 197 section 5.1.1.)
const SUBSTITUTE: [u8; 256] = substitutes();

/// The number of words of the longest expanded key: that of a key of 256 bits.
const WORDS: usize = 60;

/// A key of 16 or 32 bytes, not expanded.
pub(super) struct ByteWise {
    key: [u8; 32],
    length: usize,
}

/// The key schedule, expanded for one packet.
struct Schedule {
    words: [[u8; 4]; WORDS],
    rounds: usize,
}

impl ByteWise {
    /// Stores a key of 16 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let mut kept = [0; 32];
        kept[..key.len()].copy_from_slice(key);
        Self {
            key: kept,
            length: key.len(),
        }
    }

    /// Adds (XOR) the key stream that begins with counter block `first` to the text. (NIST SP 800-38A section 6.5.)
    pub(super) fn add_key_stream(&self, first: u128, text: &mut [u8]) {
        let schedule = Schedule::expand(&self.key[..self.length]);
        let mut counter = first;
        for some in text.chunks_mut(16) {
            let mut stream = counter.to_be_bytes();
            schedule.encrypt(&mut stream);
            some.iter_mut().zip(stream).for_each(|(a, b)| *a ^= b);
            counter = counter.wrapping_add(1);
        }
    }
}

impl Schedule {
    /// Expands a key of 16 or 32 bytes. (FIPS 197 section 5.2.)
    fn expand(key: &[u8]) -> Self {
        let length = key.len() / 4;
        let rounds = length + 6;
        let mut words = [[0; 4]; WORDS];
        for (word, bytes) in words.iter_mut().zip(key.chunks_exact(4)) {
            word.copy_from_slice(bytes);
        }
        let mut round_constant = 1;
        for i in length..4 * (rounds + 1) {
            let mut word = words[i - 1];
            if i % length == 0 {
                word.rotate_left(1);
                word = word.map(substitute);
                word[0] ^= round_constant;
                round_constant = doubled(round_constant);
            } else if length == 8 && i % length == 4 {
                word = word.map(substitute);
            }
            for (byte, before) in word.iter_mut().zip(words[i - length]) {
                *byte ^= before;
            }
            words[i] = word;
        }
        Self { words, rounds }
    }

    /// Encrypts a block. (FIPS 197 section 5.1.)
    fn encrypt(&self, block: &mut [u8; 16]) {
        self.add_round_key(block, 0);
        for round in 1..=self.rounds {
            *block = shift_rows(block.map(substitute));
            if round < self.rounds {
                mix_columns(block);
            }
            self.add_round_key(block, round);
        }
    }

    fn add_round_key(&self, block: &mut [u8; 16], round: usize) {
        let key = self.words[4 * round..4 * round + 4].as_flattened();
        block.iter_mut().zip(key).for_each(|(a, b)| *a ^= b);
    }
}

fn substitute(byte: u8) -> u8 {
    SUBSTITUTE[usize::from(byte)]
}

/// Rotates row r of the state left by r columns; the bytes of a block fill the state column by column. (FIPS 197
/// section 5.1.2.)
fn shift_rows(block: [u8; 16]) -> [u8; 16] {
    std::array::from_fn(|place| block[(place + 4 * (place % 4)) % 16])
}

/// Replaces each byte a of a column by 2 a + 3 b + c + d over GF(2^8), where b, c and d are the bytes below a,
/// cyclically. (FIPS 197 section 5.1.3.)
fn mix_columns(block: &mut [u8; 16]) {
    for column in block.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = *column;
        let all = a ^ b ^ c ^ d;
        *column = [
            a ^ all ^ doubled(a ^ b),
            b ^ all ^ doubled(b ^ c),
            c ^ all ^ doubled(c ^ d),
            d ^ all ^ doubled(d ^ a),
        ];
    }
}

/// Returns 2 a over GF(2^8).
const fn doubled(a: u8) -> u8 {
    (a << 1) ^ ((a >> 7) * 0x1B)
}

/// Computes the S-box: 3 generates all bytes but 0, and the inverse of a multiplication by 3 generates their inverses.
const fn substitutes() -> [u8; 256] {
    let mut table = [0x63; 256];
    let (mut power, mut inverse) = (1_u8, 1_u8);
    loop {
        power ^= doubled(power);
        // This divides by 3: it multiplies by 0xF6, the inverse of 3 in GF(2^8).
        inverse ^= inverse << 1;
        inverse ^= inverse << 2;
        inverse ^= inverse << 4;
        if inverse & 0x80 != 0 {
            inverse ^= 0x09;
        }
        table[power as usize] = inverse
            ^ inverse.rotate_left(1)
            ^ inverse.rotate_left(2)
            ^ inverse.rotate_left(3)
            ^ inverse.rotate_left(4)
            ^ 0x63;
        if power == 1 {
            return table;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use aes::cipher::{BlockCipherEncrypt, KeyInit};

    #[test]
    fn the_example_block_encrypts_to_the_ciphertext_of_fips_197() {
        let plain: [u8; 16] = std::array::from_fn(|i| i as u8 * 0x11);
        let key: [u8; 32] = std::array::from_fn(|i| i as u8);
        for (length, cipher) in [
            (16, 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a_u128),
            (32, 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089),
        ] {
            let mut block = plain;
            Schedule::expand(&key[..length]).encrypt(&mut block);
            assert_eq!(block, cipher.to_be_bytes());
        }
    }

    #[test]
    fn two_implementations_encrypt_random_blocks_to_equal_ciphertexts() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..200 {
            let mut key = [0; 32];
            random.fill(&mut key);
            let mut block = [0; 16];
            random.fill(&mut block);
            let mut expected = block;
            aes::Aes256::new(&key.into()).encrypt_block((&mut expected).into());
            Schedule::expand(&key).encrypt(&mut block);
            assert_eq!(block, expected);
        }
    }
}
