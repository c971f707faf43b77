//! Transforms of the content of a buffer before a rule tests it.

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

/// Maximum number of bytes that are transformed; a rule does not match longer content, which is counted
/// ([`crate::evaluate::Evaluator::given_up`]).
pub const MOST_BYTES: usize = 16 * 1024;
/// Maximum number of transforms of one buffer.
pub const MOST_TRANSFORMS: usize = 8;
/// Maximum length of the key of [`Transform::Xor`] in bytes.
pub const MOST_KEY: usize = 255;

/// A transform of the content of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transform {
    /// A dot is prepended.
    Dot,
    /// `%` and two digits become the byte that they encode, and `+` a space.
    DecodeUrl,
    /// Letters become lower case.
    Lower,
    /// Letters become upper case.
    Upper,
    /// White space is removed.
    StripSpace,
    /// Each run of spaces becomes one space.
    CompressSpace,
    /// The content becomes its MD5, 16 bytes.
    Md5,
    /// The content becomes its SHA-1, 20 bytes.
    Sha1,
    /// The content becomes its SHA-256, 32 bytes.
    Sha256,
    /// Names of header lines become lower case.
    LowerHeaderNames,
    /// Header lines whose names begin with a colon, as in HTTP/2, are removed.
    StripPseudoHeaders,
    /// Each byte is exclusive-ored with the next byte of a key, which repeats.
    Xor(Box<[u8]>),
    /// Base64 is decoded; other content is unchanged.
    DecodeBase64(Base64),
}

/// The settings for decoding Base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base64 {
    /// Offset at which the encoded text begins.
    pub offset: usize,
    /// Maximum number of encoded bytes that are read.
    pub bytes: usize,
    /// Treatment of bytes that are not in the alphabet of Base64.
    pub others: Others,
}

/// The treatment of bytes outside of the alphabet of Base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// The first byte that is not Base64 ends the encoded text.
    End,
    /// Bytes that are not Base64 are skipped (RFC 2045 section 6.8).
    Skip,
    /// If there is a byte that is not Base64, nothing is decoded.
    Refuse,
}

/// The default settings of [`Transform::DecodeBase64`].
pub const BASE64: Base64 = Base64 {
    offset: 0,
    bytes: MOST_BYTES,
    others: Others::End,
};

impl Transform {
    /// Returns the transform with the given name in rules; none if that transform needs a value.
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "dotprefix" => Self::Dot,
            "url_decode" => Self::DecodeUrl,
            "to_lowercase" => Self::Lower,
            "to_uppercase" => Self::Upper,
            "strip_whitespace" => Self::StripSpace,
            "compress_whitespace" => Self::CompressSpace,
            "to_md5" => Self::Md5,
            "to_sha1" => Self::Sha1,
            "to_sha256" => Self::Sha256,
            "header_lowercase" => Self::LowerHeaderNames,
            "strip_pseudo_headers" => Self::StripPseudoHeaders,
            _ => return None,
        })
    }

    /// Returns true if a content that occurs in the transformed buffer also occurs in the original one, ignoring case
    /// and a leading dot.
    pub fn keeps_letters(&self) -> bool {
        matches!(
            self,
            Self::Dot | Self::Lower | Self::Upper | Self::LowerHeaderNames
        )
    }

    /// Transforms the first `len` bytes in place. Returns the number of transformed bytes; none if they do not fit into
    /// `bytes`.
    fn apply(&self, bytes: &mut [u8], len: usize) -> Option<usize> {
        let is = bytes.get_mut(..len)?;
        match self {
            Self::Dot => {
                if len == bytes.len() {
                    return None;
                }
                bytes.copy_within(..len, 1);
                *bytes.first_mut()? = b'.';
                return Some(len + 1);
            }
            Self::Lower => is.make_ascii_lowercase(),
            Self::Upper => is.make_ascii_uppercase(),
            Self::Md5 => return put(&Md5::digest(is), bytes),
            Self::Sha1 => return put(&Sha1::digest(is), bytes),
            Self::Sha256 => return put(&Sha256::digest(is), bytes),
            Self::Xor(key) => {
                let key = key.iter().cycle();
                is.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
            }
            Self::LowerHeaderNames => {
                for line in is.split_mut(|&byte| byte == b'\n') {
                    let is_name = |byte: &&mut u8| **byte != b':';
                    let name = line.iter_mut().take_while(is_name);
                    name.for_each(|byte| byte.make_ascii_lowercase());
                }
            }
            Self::StripSpace => {
                return Some(retain(is, |_, byte| !is_space(byte)));
            }
            Self::CompressSpace => {
                return Some(retain(is, |before, byte| {
                    !is_space(byte) || before.is_none_or(|it| !is_space(it))
                }));
            }
            Self::StripPseudoHeaders => return Some(strip_pseudo_headers(is)),
            Self::DecodeUrl => return Some(decode_url(is)),
            Self::DecodeBase64(how) => return Some(how.decode_in_place(is)),
        }
        Some(len)
    }
}

/// Copies the data to the given memory and transforms the copy; returns none if the result does not fit.
pub fn transformed<'a>(
    transforms: &[Transform],
    data: &[u8],
    memory: &'a mut [u8],
) -> Option<&'a [u8]> {
    memory.get_mut(..data.len())?.copy_from_slice(data);
    let mut len = data.len();
    for transform in transforms {
        len = transform.apply(memory, len)?;
    }
    memory.get(..len)
}

/// Copies the digest to the beginning of `bytes` and returns its length; none if it does not fit.
fn put(digest: &[u8], bytes: &mut [u8]) -> Option<usize> {
    bytes.get_mut(..digest.len())?.copy_from_slice(digest);
    Some(digest.len())
}

/// Returns true for white space as C's `isspace` defines it.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Removes the bytes for which `keeps` returns false, and returns the number of remaining bytes. The arguments of
/// `keeps` are the byte before and the byte itself.
fn retain(bytes: &mut [u8], keeps: impl Fn(Option<u8>, u8) -> bool) -> usize {
    let (mut len, mut before) = (0, None);
    for at in 0..bytes.len() {
        let byte = bytes[at];
        if keeps(before, byte) {
            bytes[len] = byte;
            len += 1;
        }
        before = Some(byte);
    }
    len
}

fn strip_pseudo_headers(bytes: &mut [u8]) -> usize {
    let (mut len, mut at) = (0, 0);
    while at < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |found| at + found + 1);
        if bytes[at] != b':' {
            bytes.copy_within(at..end, len);
            len += end - at;
        }
        at = end;
    }
    len
}

fn decode_url(bytes: &mut [u8]) -> usize {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16));
    let (mut len, mut at) = (0, 0);
    while at < bytes.len() {
        let (byte, taken) = match bytes[at] {
            b'+' => (b' ', 1),
            b'%' => match (digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
                (Some(high), Some(low)) => ((high << 4 | low) as u8, 3),
                _ => (b'%', 1),
            },
            byte => (byte, 1),
        };
        bytes[len] = byte;
        len += 1;
        at += taken;
    }
    len
}

impl Base64 {
    /// Decodes the given bytes in place; returns the number of decoded bytes.
    fn decode_in_place(&self, bytes: &mut [u8]) -> usize {
        let from = self.offset.min(bytes.len());
        let end = bytes.len().min(from.saturating_add(self.bytes));
        if self.others == Others::Refuse && !is_base64(&bytes[from..end]) {
            return bytes.len();
        }
        let mut decoder = Decoder::default();
        let mut len = 0;
        for at in from..end {
            match decoder.push(bytes[at]) {
                // The output is never ahead of the input.
                Letter::Byte(byte) => {
                    bytes[len] = byte;
                    len += 1;
                }
                Letter::Nothing => {}
                Letter::None if self.others == Others::Skip => {}
                Letter::None => break,
            }
        }
        match len {
            0 => bytes.len(),
            _ => len,
        }
    }
}

/// Returns true if all of the text is Base64, padded to a multiple of four.
fn is_base64(text: &[u8]) -> bool {
    let letters = text.trim_ascii_end();
    let padding = letters.iter().rev().take_while(|&&byte| byte == b'=');
    let padding = padding.count();
    letters.len().is_multiple_of(4)
        && padding <= 2
        && letters[..letters.len() - padding]
            .iter()
            .all(|&byte| value(byte).is_some())
}

/// Returns the value of a letter of Base64, 0 to 63; none for other bytes.
fn value(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

/// A decoder of Base64, letter by letter.
#[derive(Default)]
pub(crate) struct Decoder {
    bits: u32,
    n: u32,
}

/// The result of decoding one letter.
pub(crate) enum Letter {
    /// The letter completes a byte, which is the value.
    Byte(u8),
    /// The letter completes no byte.
    Nothing,
    /// The byte is no letter of Base64.
    None,
}

impl Decoder {
    /// Decodes the next letter.
    pub fn push(&mut self, letter: u8) -> Letter {
        let Some(value) = value(letter) else {
            return Letter::None;
        };
        self.bits = self.bits << 6 | u32::from(value);
        self.n += 6;
        if self.n < 8 {
            return Letter::Nothing;
        }
        self.n -= 8;
        Letter::Byte((self.bits >> self.n) as u8)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn of(transforms: &[Transform], data: &[u8]) -> Vec<u8> {
        let mut memory = [0; 64];
        transformed(transforms, data, &mut memory).unwrap().to_vec()
    }

    #[test]
    fn each_transform_changes_its_input_as_documented() {
        let key = Transform::Xor(Box::new([1, 2]));
        for (transform, before, after) in [
            (Transform::Dot, &b"a.b"[..], &b".a.b"[..]),
            (Transform::DecodeUrl, b"a%20b+%2", b"a b %2"),
            (Transform::Lower, b"AbC-1", b"abc-1"),
            (Transform::Upper, b"AbC-1", b"ABC-1"),
            (Transform::StripSpace, b" a \t\x0b\r\nb ", b"ab"),
            (Transform::CompressSpace, b"  a \tb ", b" a b "),
            (
                Transform::LowerHeaderNames,
                b"Host: A\r\nX-Y: Z\r\n",
                b"host: A\r\nx-y: Z\r\n",
            ),
            (
                Transform::StripPseudoHeaders,
                b":path: /\r\na: :b\r\n:x",
                b"a: :b\r\n",
            ),
            (key, b"abc", b"``b"),
            (Transform::DecodeBase64(BASE64), b"YWJj.YWJj", b"abc"),
            (Transform::DecodeBase64(BASE64), b"....", b"...."),
        ] {
            assert_eq!(
                of(std::slice::from_ref(&transform), before),
                after,
                "{transform:?}"
            );
        }
    }

    #[test]
    fn md5_sha1_and_sha256_give_the_hashes_of_their_standards() {
        let hex = |transform| {
            let digest = of(&[transform], b"abc");
            digest
                .iter()
                .map(|it| format!("{it:02x}"))
                .collect::<String>()
        };
        // RFC 1321 section A.5, FIPS 180-2 appendices A and B.
        assert_eq!(hex(Transform::Md5), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            hex(Transform::Sha1),
            "a9993e364706816aba3e25717850c26c9cd0d89d"
        );
        assert_eq!(
            hex(Transform::Sha256),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn invalid_base64_bytes_are_handled_in_the_configured_manner() {
        let decoded = |others, offset, data| {
            let how = Base64 {
                others,
                offset,
                ..BASE64
            };
            of(&[Transform::DecodeBase64(how)], data)
        };
        assert_eq!(decoded(Others::Skip, 1, b"!YW.Jj"), b"abc");
        assert_eq!(decoded(Others::End, 1, b"!YWI.Jj"), b"ab");
        assert_eq!(decoded(Others::Refuse, 1, b"!YW.Jj"), b"!YW.Jj");
        assert_eq!(decoded(Others::Refuse, 0, b"YWI="), b"ab");
        assert_eq!(decoded(Others::End, 9, b"YWI="), b"YWI=");
    }

    #[test]
    fn transforms_are_applied_in_order_and_fail_without_memory() {
        let transforms = [Transform::DecodeUrl, Transform::Lower, Transform::Dot];
        assert_eq!(of(&transforms, b"%41B"), b".ab");
        let mut memory = [0; 4];
        assert_eq!(
            transformed(&[Transform::Lower], b"ABCD", &mut memory),
            Some(&b"abcd"[..])
        );
        for (transform, data) in [
            (Transform::Dot, &b"abcd"[..]),
            (Transform::Lower, b"abcde"),
            (Transform::Md5, b"a"),
        ] {
            assert_eq!(transformed(&[transform], data, &mut memory), None);
        }
    }

    proptest! {
        #[test]
        fn no_transform_fails_on_arbitrary_bytes(
            data in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'%'), Just(b' '), Just(b'\n'), Just(b':'), Just(b'Y')], 0..64),
            offset in 0usize..80,
        ) {
            let names = ["dotprefix", "url_decode", "strip_whitespace", "compress_whitespace", "header_lowercase", "strip_pseudo_headers"];
            let mut all: Vec<_> = names.iter().filter_map(|name| Transform::of_name(name)).collect();
            for others in [Others::End, Others::Skip, Others::Refuse] {
                all.push(Transform::DecodeBase64(Base64 { offset, bytes: 20, others }));
            }
            for transform in all {
                let mut memory = [0; 65];
                prop_assert!(transformed(&[transform], &data, &mut memory).is_some());
            }
        }
    }
}
