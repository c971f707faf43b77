//! Bits that rules set for hosts, and for pairs of hosts, for a limited time: `xbits` of Suricata.

use crate::rule::Track;
use taut_sys::HashKey;

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u128,
    /// Bit number plus 1; 0 if the entry is free.
    bit: u32,
    /// Time in seconds at which the bit expires.
    until_s: u32,
}

impl Slot {
    fn is_set(&self, now_s: u32) -> bool {
        self.bit != 0 && self.until_s.wrapping_sub(now_s) as i32 > 0
    }
}

/// The host bits of one worker, in a table of fixed size. A bit can be in any of a few entries. If all of these entries
/// are in use, a new bit replaces the one that expires first. Workers do not share bits.
#[derive(Debug)]
pub struct HostBits {
    slots: Box<[Slot]>,
    hash_key: HashKey,
    /// Number of bits that were replaced before they expired.
    pub forgotten: u64,
}

/// Number of entries in which a given bit can be stored.
const WAYS: usize = 8;

/// Returns the key under which a host bit is stored: the sender, the receiver, or a combination of both hosts that is
/// equal in either direction. Returns 0 for other values of `track`.
pub fn key_of(track: Track, source: u128, destination: u128) -> u128 {
    match track {
        Track::Source => source,
        Track::Destination => destination,
        Track::Both => source.min(destination) ^ source.max(destination).rotate_left(1),
        Track::Rule | Track::Flow => 0,
    }
}

impl HostBits {
    /// Creates a table for `bits` bits, rounded up to a power of two.
    pub fn new(bits: usize) -> Self {
        Self {
            slots: vec![Slot::default(); bits.next_power_of_two().max(WAYS)].into(),
            hash_key: HashKey::default(),
            forgotten: 0,
        }
    }

    /// Returns true if a bit is set for `key` at the time `now_s`.
    pub fn has(&self, bit: u16, key: u128, now_s: u32) -> bool {
        let bit = u32::from(bit) + 1;
        let mut ways = self.slots[self.ways_of(bit, key)].iter();
        ways.any(|slot| slot.bit == bit && slot.key == key && slot.is_set(now_s))
    }

    /// Sets a bit for `key` until `seconds` seconds after `now_s`.
    pub fn set(&mut self, bit: u16, key: u128, now_s: u32, seconds: u32) {
        let bit = u32::from(bit) + 1;
        let ways = self.ways_of(bit, key);
        let ways = &mut self.slots[ways];
        let same = |slot: &Slot| slot.bit == bit && slot.key == key;
        let place = ways.iter().position(same);
        let place = place.or_else(|| ways.iter().position(|slot| !slot.is_set(now_s)));
        let place = place.unwrap_or_else(|| {
            self.forgotten += 1;
            let left = |at: &usize| ways[*at].until_s.wrapping_sub(now_s);
            (0..WAYS).min_by_key(left).unwrap_or(0)
        });
        ways[place] = Slot {
            key,
            bit,
            until_s: now_s.wrapping_add(seconds),
        };
    }

    /// Clears a bit of `key`.
    pub fn unset(&mut self, bit: u16, key: u128) {
        let bit = u32::from(bit) + 1;
        let ways = self.ways_of(bit, key);
        for slot in &mut self.slots[ways] {
            if slot.bit == bit && slot.key == key {
                *slot = Slot::default();
            }
        }
    }

    fn ways_of(&self, bit: u32, key: u128) -> std::ops::Range<usize> {
        let halves = (key as u64, (key >> 64) as u64);
        let hash = self.hash_key.hash([halves, (bit.into(), 0)]);
        let first = (hash as usize) & (self.slots.len() - 1) & !(WAYS - 1);
        first..first + WAYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_bit_expires_after_the_configured_time() {
        let mut bits = HostBits::new(64);
        assert!(!bits.has(0, 7, 5));
        bits.set(0, 7, 5, 10);
        assert!(bits.has(0, 7, 14) && !bits.has(0, 7, 15));
        assert!(!bits.has(1, 7, 5) && !bits.has(0, 8, 5));
        bits.set(0, 7, 14, 10);
        assert!(bits.has(0, 7, 23));
        bits.unset(0, 7);
        assert!(!bits.has(0, 7, 14));
        // The clock may wrap around.
        bits.set(0, 7, u32::MAX, 10);
        assert!(bits.has(0, 7, 8) && !bits.has(0, 7, 9));
        let both = |one, other| key_of(Track::Both, one, other);
        assert!(both(1, 2) == both(2, 1) && both(1, 2) != both(1, 3));
    }

    #[test]
    fn hosts_rarely_collide_in_two_tables_with_different_keys() {
        let (one, other) = (HostBits::new(1 << 13), HostBits::new(1 << 13));
        let meets = |bits: &HostBits, host| bits.ways_of(1, host) == bits.ways_of(1, 0);
        let chosen: Vec<u128> = (1..100_000).filter(|host| meets(&one, *host)).collect();
        assert!((40..200).contains(&chosen.len()), "{}", chosen.len());
        let met = chosen.iter().filter(|host| meets(&other, **host));
        assert!(met.count() < 20);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_host_is_always_stored() {
        let mut bits = HostBits::new(1024);
        for host in 0..100_000 {
            bits.set(3, host, 5, 10);
            assert!(bits.has(3, host, 5));
        }
        assert!(bits.forgotten > 90_000);
        assert_eq!(bits.slots.len(), 1024);
    }
}
