//! The checksum of SCTP, a CRC, which is updated when a word of a packet changes. (RFC 9260, section 6.8 and appendix
//! A: CRC32c.)

/// The polynomial of CRC32c; the coefficient of the highest power is in the lowest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1 (the constant), in the bit order of `POLYNOMIAL`.
const ONE: u32 = 1 << 31;

/// The powers of x modulo `POLYNOMIAL`: index i has x^(2^i).
const POWERS: [u32; 32] = {
    let mut powers = [ONE >> 1; 32];
    let mut place = 1;
    while place < 32 {
        powers[place] = product(powers[place - 1], powers[place - 1]);
        place += 1;
    }
    powers
};

/// Returns the product of two polynomials modulo `POLYNOMIAL`.
const fn product(one: u32, other: u32) -> u32 {
    let (mut sum, mut shifted, mut place) = (0, other, 32);
    while place > 0 {
        place -= 1;
        if one >> place & 1 == 1 {
            sum ^= shifted;
        }
        shifted = shifted >> 1 ^ if shifted & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// Returns the bits of a packet's SCTP checksum that change when 16 bits of the packet change from `old` to `new`.
/// `bytes_behind` bytes of the packet follow these 16 bits. A wrong checksum stays wrong.
pub(super) fn change(old: u16, new: u16, bytes_behind: usize) -> u32 {
    // This is the CRC register after the two bytes that differ. The remaining bytes of both packets are equal, so each
    // of them adds a zero byte to the difference.
    let [first, second] = (old ^ new).to_be_bytes();
    let mut register = u32::from(first) | u32::from(second) << 8;
    for _ in 0..16 {
        register = register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    let bits = (bytes_behind as u32).wrapping_mul(8);
    let powers = POWERS.iter().enumerate();
    let factors = powers.filter(|(place, _)| bits >> place & 1 == 1);
    factors.fold(register, |register, (_, power)| product(*power, register))
}

#[cfg(test)]
pub(super) fn checksum(packet: &[u8]) -> u32 {
    let whole = packet.iter().fold(u32::MAX, |register, byte| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 }
        })
    });
    !whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_updated_sctp_checksum_equals_a_recomputed_checksum() {
        // This is the check value in the catalogue of CRCs.
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        let mut random = fastrand::Rng::with_seed(3);
        for length in [2, 3, 12, 13, 64, 1480, 9000] {
            let mut packet = vec![0; length];
            random.fill(&mut packet);
            let before = checksum(&packet);
            let at = random.usize(..length - 1);
            let (old, new) = (
                u16::from_be_bytes([packet[at], packet[at + 1]]),
                random.u16(..),
            );
            packet[at..at + 2].copy_from_slice(&new.to_be_bytes());
            let changed = change(old, new, length - at - 2);
            assert_eq!(before ^ changed, checksum(&packet), "{length}");
        }
    }
}
