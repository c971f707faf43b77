//! The Internet checksum: ones-complement sums (RFC 1071) and their incremental update (RFC 1624).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::IpProtocol;

/// A partial ones-complement sum of 16-bit words. Sums may be added in any order; only the last step folds to 16 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Self = Self(0);

    /// Returns the sum of `bytes` as big-endian 16-bit words; an odd last byte is padded with a zero byte.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        // The two halves of each word are added separately. No carry is lost that way, and the compiler vectorises the
        // loop.
        Self::by(bytes, |words| {
            words.iter().fold(0, |sum, word| {
                let word = u64::from_ne_bytes(*word);
                sum + ((word & 0xffff_ffff) + (word >> 32))
            })
        })
    }

    /// Returns the sum of `bytes` as [`Sum::of`] does. The caller supplies `halves`, which returns the sum of both
    /// halves of all words; each half is a 32-bit number in the machine's byte order.
    #[inline]
    pub fn by(bytes: &[u8], halves: impl FnOnce(&[[u8; 8]]) -> u64) -> Self {
        // The words are summed in host byte order, and the bytes of the sum are swapped once at the end, which RFC 1071
        // section 2(B) allows.
        let (words, mut tail) = bytes.as_chunks::<8>();
        let mut sum = halves(words);
        if let Some((bytes, rest)) = tail.split_first_chunk::<4>() {
            sum += u64::from(u32::from_ne_bytes(*bytes));
            tail = rest;
        }
        if let Some((bytes, rest)) = tail.split_first_chunk::<2>() {
            sum += u64::from(u16::from_ne_bytes(*bytes));
            tail = rest;
        }
        if let [last] = tail {
            sum += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        Self(u64::from(fold(sum).to_be()))
    }

    /// Returns the sum with one 16-bit word added.
    #[inline]
    pub fn add_u16(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// Returns the sum with a 32-bit number, two 16-bit words, added.
    #[inline]
    pub fn add_u32(self, words: u32) -> Self {
        Self(self.0 + u64::from(words))
    }

    /// Returns the sum with a 64-bit number, four 16-bit words, added.
    #[inline]
    pub fn add_u64(self, words: u64) -> Self {
        Self(self.0 + (words & 0xffff_ffff) + (words >> 32))
    }

    /// Returns the sum of the bytes of `self` and `other`, which both begin at an even offset of the summed data.
    #[inline]
    pub fn combine(self, other: Self) -> Self {
        Self(u64::from(self.fold()) + u64::from(other.fold()))
    }

    /// Returns the sum of the `length_bytes` bytes of `self` and the bytes of `next`, which follow them.
    ///
    /// If `length_bytes` is odd, the words of `next` are offset by one byte, which swaps the bytes of its sum (RFC 1071
    /// section 2(B)).
    #[inline]
    pub fn append(self, length_bytes: usize, next: Self) -> Self {
        let next = next.fold();
        let next = if length_bytes % 2 == 1 {
            next.swap_bytes()
        } else {
            next
        };
        Self(u64::from(self.fold()) + u64::from(next))
    }

    /// Returns the ones-complement sum in 16 bits. It is 0xffff for data that includes its correct checksum.
    #[inline]
    pub fn fold(self) -> u16 {
        fold(self.0)
    }

    /// Returns the value of the checksum field: the complement of the sum.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.fold()
    }

    /// Returns true if the summed bytes, which include their checksum field, match the checksum.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.fold() == 0xffff
    }
}

/// Folds `sum` to 16 bits: adds its two halves twice, each time with the end-around carry.
#[inline]
fn fold(sum: u64) -> u16 {
    // The low half of the addition carries into the high half; this is the end-around carry.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// Returns the sum of the pseudo header that UDP and TCP checksums cover over IPv4 (RFC 768, RFC 9293).
///
/// `length_bytes` is the length of the transport header and its payload.
#[inline]
pub fn pseudo_header_v4(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: IpProtocol,
    length_bytes: u16,
) -> Sum {
    Sum::ZERO
        .add_u32(source.to_bits())
        .add_u32(destination.to_bits())
        .add_u16(u16::from(protocol.0))
        .add_u16(length_bytes)
}

/// Returns the sum of the pseudo header that transport checksums cover over IPv6 (RFC 8200 section 8.1).
///
/// `length_bytes` is the length of the transport header and its payload.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "an address is summed in two halves"
)]
pub fn pseudo_header_v6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: IpProtocol,
    length_bytes: u32,
) -> Sum {
    let (source, destination) = (source.to_bits(), destination.to_bits());
    Sum::ZERO
        .add_u64((source >> 64) as u64)
        .add_u64(source as u64)
        .add_u64((destination >> 64) as u64)
        .add_u64(destination as u64)
        .add_u32(length_bytes)
        .add_u16(u16::from(protocol.0))
}

/// Returns the checksum after a change of one 16-bit word that it covers from `old` to `new` (RFC 1624 equation 3).
///
/// The result equals a recomputed checksum unless all covered bytes are zero, which is impossible for IP, UDP and TCP
/// headers. A UDP checksum field of 0 means "none" and must not be updated; a result of 0 must be written as 0xffff.
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::ZERO
        .add_u16(!checksum)
        .add_u16(!old)
        .add_u16(new)
        .checksum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the checksum of RFC 1071 section 1, word by word.
    fn naive_checksum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(pair[0]) << 8 | u32::from(low);
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071_sums_to_ddf2() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::of(&bytes).fold(), 0xddf2);
    }

    #[test]
    fn incremental_update_of_the_rfc_1624_example_yields_zero() {
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn checksums_of_large_all_ones_frames_lose_no_carry() {
        for length in [1, 2, 7, 8, 9, 9215, 9216, 65_535] {
            let bytes = vec![0xff; length];
            assert_eq!(Sum::of(&bytes).checksum(), naive_checksum(&bytes));
        }
        assert_eq!(fold(u64::MAX), 0xffff);
    }

    proptest! {
        #[test]
        fn the_checksum_equals_a_naive_reference_implementation(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(Sum::of(&bytes).checksum(), naive_checksum(&bytes));
        }

        #[test]
        fn checksums_of_integers_equal_those_of_their_big_endian_bytes(a: u16, b: u32, c: u64) {
            let bytes = [&a.to_be_bytes()[..], &b.to_be_bytes(), &c.to_be_bytes()].concat();
            let sum = Sum::ZERO.add_u16(a).add_u32(b).add_u64(c);
            prop_assert_eq!(sum.checksum(), naive_checksum(&bytes));
        }

        #[test]
        fn checksums_of_two_byte_ranges_combine_to_the_total_checksum(bytes in proptest::collection::vec(any::<u8>(), 0..100), cut: usize) {
            let (head, tail) = bytes.split_at(cut % (bytes.len() + 1));
            let sum = Sum::of(head).append(head.len(), Sum::of(tail));
            prop_assert_eq!(sum.checksum(), naive_checksum(&bytes));
            if head.len().is_multiple_of(2) {
                let sum = Sum::of(head).combine(Sum::of(tail));
                prop_assert_eq!(sum.checksum(), naive_checksum(&bytes));
            }
        }

        #[test]
        fn incremental_checksum_updates_equal_recomputed_checksums(
            mut bytes in proptest::collection::vec(any::<u8>(), 20..60), at in 0usize..8, new: u16,
        ) {
            bytes[18] = 0x45;
            let before = naive_checksum(&bytes);
            let at = at * 2;
            let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
            prop_assert_eq!(update_u16(before, old, new), naive_checksum(&bytes));
        }

        #[test]
        fn pseudo_header_checksums_equal_those_of_the_serialized_bytes(a: [u8; 16], b: [u8; 16], length: u16, protocol: u8) {
            let six = [&a[..], &b, &u32::from(length).to_be_bytes(), &[0, 0, 0, protocol]].concat();
            let sum = pseudo_header_v6(a.into(), b.into(), IpProtocol(protocol), length.into());
            prop_assert_eq!(sum.checksum(), naive_checksum(&six));
            let four = [&a[..4], &b[..4], &[0, protocol], &length.to_be_bytes()].concat();
            let source = Ipv4Addr::new(a[0], a[1], a[2], a[3]);
            let destination = Ipv4Addr::new(b[0], b[1], b[2], b[3]);
            let sum = pseudo_header_v4(source, destination, IpProtocol(protocol), length);
            prop_assert_eq!(sum.checksum(), naive_checksum(&four));
        }
    }
}
