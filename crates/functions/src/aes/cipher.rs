//! The cipher of one session's key: authenticated encryption, or a key stream.

use super::byte_wise::ByteWise;
use super::header::Mode;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use taut_cipher::CounterMode;

#[expect(
    clippy::large_enum_variant,
    reason = "one per key, and used without a detour"
)]
pub(super) enum Cipher {
    Gcm(LessSafeKey),
    Ctr(CounterMode),
    ByteWise(ByteWise),
}

/// The error that the packet was changed after its encryption, or was encrypted with another key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Forged;

impl Cipher {
    /// The length of a GCM tag in bytes.
    pub(super) const TAG_LEN_BYTES: usize = 16;

    /// Creates a cipher from a key of 16 or 32 bytes; none if the key has another length.
    pub(super) fn new(mode: Mode, byte_wise: bool, key: &[u8]) -> Option<Self> {
        Some(match (mode, key.len()) {
            (Mode::Gcm, length) => {
                let algorithm = match length {
                    16 => &AES_128_GCM,
                    _ => &AES_256_GCM,
                };
                Self::Gcm(LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?))
            }
            (Mode::Ctr, 16 | 32) if byte_wise => Self::ByteWise(ByteWise::new(key)),
            (Mode::Ctr, _) => Self::Ctr(CounterMode::new(key)?),
        })
    }

    /// Encrypts in place. In GCM, returns the tag of the cipher text and of `associated`.
    #[inline]
    pub(super) fn encrypt(
        &self,
        nonce: [u8; NONCE_LEN],
        associated: &[u8],
        text: &mut [u8],
    ) -> [u8; Self::TAG_LEN_BYTES] {
        let mut bytes = [0; Self::TAG_LEN_BYTES];
        match self {
            Self::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(associated), text);
                // Encryption fails only for texts of 64 GB and more.
                assert!(tag.is_ok(), "a packet is short enough for GCM");
                if let Ok(tag) = tag {
                    bytes.copy_from_slice(tag.as_ref());
                }
            }
            _ => self.add_key_stream(first_counter(nonce), text),
        }
        bytes
    }

    /// Decrypts in place. If the packet is forged, its contents are invalid afterwards.
    #[inline]
    pub(super) fn decrypt(
        &self,
        nonce: [u8; NONCE_LEN],
        associated: &[u8],
        tag: [u8; Self::TAG_LEN_BYTES],
        text: &mut [u8],
    ) -> Result<(), Forged> {
        match self {
            Self::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place_separate_tag(
                    nonce,
                    Aad::from(associated),
                    Tag::from(tag),
                    text,
                    0..,
                )
                .map(|_| ())
                .map_err(|_| Forged)
            }
            _ => {
                self.add_key_stream(first_counter(nonce), text);
                Ok(())
            }
        }
    }

    fn add_key_stream(&self, first: u128, text: &mut [u8]) {
        match self {
            Self::Ctr(key) => key.add_key_stream(first, text),
            Self::ByteWise(key) => key.add_key_stream(first, text),
            // A GCM packet has a tag and never gets here.
            Self::Gcm(_) => {}
        }
    }
}

/// Returns the first counter block: the nonce, then a block number of 32 bits that starts at 0.
fn first_counter(nonce: [u8; NONCE_LEN]) -> u128 {
    let mut block = [0; 16];
    block[..NONCE_LEN].copy_from_slice(&nonce);
    u128::from_be_bytes(block)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .filter(char::is_ascii_hexdigit)
            .map(|c| c.to_digit(16).unwrap() as u8)
            .collect();
        digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
    }

    const PLAIN: &str = "6bc1bee22e409f96e93d7e117393172a ae2d8a571e03ac9c9eb76fac45af8e51 \
         30c81c46a35ce411e5fbc1191a0a52ef f69f2445df4f9b17ad2b417be66c3710";

    #[test]
    fn counter_mode_reproduces_nist_sp_800_38a_test_vectors() {
        // The examples are those of NIST SP 800-38A, appendices F.5.1 and F.5.5.
        for (key, cipher) in [
            (
                "2b7e151628aed2a6abf7158809cf4f3c",
                "874d6191b620e3261bef6864990db6ce 9806f66b7970fdff8617187bb9fffdff \
                 5ae4df3edbd5d35e5b4f09020db03eab 1e031dda2fbe03d1792170a0f3009cee",
            ),
            (
                "603deb1015ca71be2b73aef0857d7781 1f352c073b6108d72d9810a30914dff4",
                "601ec313775789a5b7a7f504bbf3d228 f443e3ca4d62b59aca84e990cacaf5c5 \
                 2b0930daa23de94ce87017ba2d84988d dfc9c58db67aada613c2dd08457941a6",
            ),
        ] {
            for byte_wise in [false, true] {
                let cipher_of = Cipher::new(Mode::Ctr, byte_wise, &bytes(key)).unwrap();
                let mut text = bytes(PLAIN);
                let first = 0xf0f1_f2f3_f4f5_f6f7_f8f9_fafb_fcfd_feff;
                cipher_of.add_key_stream(first, &mut text);
                assert_eq!(text, bytes(cipher));
            }
        }
    }

    #[test]
    fn gcm_reproduces_the_test_vectors_of_mcgrew_and_viega() {
        // "The Galois/Counter Mode of Operation", test cases 4 and 16: 60 bytes of text, 20 of associated data.
        let plain = "d9313225f88406e5a55909c5aff5269a 86a7a9531534f7da2e4c303d8a318a72 \
             1c3c0c95956809532fcf0e2449a6b525 b16aedf5aa0de657ba637b39";
        let key = "feffe9928665731c6d6a8f9467308308";
        for (key, cipher, tag) in [
            (
                key.to_string(),
                "42831ec2217774244b7221b784d0d49c e3aa212f2c02a4e035c17e2329aca12e \
                 21d514b25466931c7d8f6a5aac84aa05 1ba30b396a0aac973d58e091",
                "5bc94fbc3221a5db94fae95ae7121a47",
            ),
            (
                format!("{key}{key}"),
                "522dc1f099567d07f47f37a32a84427d 643a8cdcbfe5c0c97598a2bd2555d1aa \
                 8cb08e48590dbb3da7b08b1056828838 c5f61e6393ba7a0abcc9f662",
                "76fc6ece0f4e1768cddf8853bb2d551b",
            ),
        ] {
            let cipher_of = Cipher::new(Mode::Gcm, false, &bytes(&key)).unwrap();
            let nonce: [u8; 12] = bytes("cafebabefacedbaddecaf888").try_into().unwrap();
            let associated = bytes("feedfacedeadbeeffeedfacedeadbeefabaddad2");
            let mut text = bytes(plain);
            let made = cipher_of.encrypt(nonce, &associated, &mut text);
            assert_eq!((&text, &made[..]), (&bytes(cipher), &bytes(tag)[..]));
            let open = |associated: &[u8], tag, mut text: Vec<u8>| {
                cipher_of
                    .decrypt(nonce, associated, tag, &mut text)
                    .map(|()| text)
            };
            assert_eq!(open(&associated, made, text.clone()), Ok(bytes(plain)));
            assert_eq!(open(&associated[1..], made, text.clone()), Err(Forged));
            assert_eq!(open(&associated, [0; 16], text.clone()), Err(Forged));
            text[59] ^= 1;
            assert_eq!(open(&associated, made, text), Err(Forged));
        }
    }
}
