//! A learning bridge's table: for each MAC address, the port at which a frame from it last arrived. (IEEE 802.1D-2004,
//! sections 7.7 to 7.9 and 7.12.6.)

use std::hash::BuildHasher;
use taut_function::mix::Seeded;
use taut_wire::Mac;

/// The number of slots of the table for MAC addresses with the same hash.
pub(super) const WAYS: usize = 4;

/// A MAC address, with the port and time at which a frame from it last arrived.
#[derive(Debug, Clone, Copy)]
struct Known {
    mac: Mac,
    /// The index of the port at which the last frame arrived; `u8::MAX` marks an empty slot.
    port: u8,
    seen_ticks: u64,
}

const NOBODY: Known = Known {
    mac: Mac([0; 6]),
    port: u8::MAX,
    seen_ticks: 0,
};

#[derive(Debug)]
pub(super) struct Learned {
    pub age_ticks: u64,
    /// The hash function for addresses. Its seed is secret, so that a sender cannot evict a chosen address by sending
    /// frames from a few other addresses.
    hashes: Seeded,
    /// The sets of [`WAYS`] slots; their number is a power of two.
    table: Vec<[Known; WAYS]>,
}

impl Learned {
    pub fn new(addresses: usize) -> Self {
        Self {
            age_ticks: 0,
            hashes: Seeded::default(),
            table: vec![[NOBODY; WAYS]; addresses.div_ceil(WAYS).next_power_of_two()],
        }
    }

    fn set_of(&self, mac: Mac) -> usize {
        let [a, b, c, d, e, f] = mac.0;
        let word = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        self.hashes.hash_one(word) as usize & (self.table.len() - 1)
    }

    /// Stores the port at which a frame from an address arrived. It uses the slot of this address, else an empty or
    /// expired slot, else the slot that was idle for longest.
    pub fn learn(&mut self, mac: Mac, port: u8, now_ticks: u64) {
        let set = self.set_of(mac);
        let places = &mut self.table[set];
        let own = places.iter().position(|known| known.mac == mac);
        let place = own.or_else(|| {
            let free = |known: &Known| match known.port {
                u8::MAX => 0,
                _ => known.seen_ticks,
            };
            (0..WAYS).min_by_key(|place| free(&places[*place]))
        });
        if let Some(place) = place {
            places[place] = Known {
                mac,
                port,
                seen_ticks: now_ticks,
            };
        }
    }

    /// Returns the port at which a frame from the address last arrived; none if the address is unknown, or its entry
    /// has expired.
    pub fn port_of(&self, mac: Mac, now_ticks: u64) -> Option<u8> {
        let known = self.table[self.set_of(mac)];
        let known = known.iter().find(|known| known.mac == mac)?;
        let is_young = now_ticks.wrapping_sub(known.seen_ticks) < self.age_ticks;
        (known.port != u8::MAX && is_young).then_some(known.port)
    }
}

/// Returns true for addresses that bridges do not forward: spanning tree, pause, link discovery. (IEEE 802.1D-2004,
/// table 7-10.)
pub(super) fn is_reserved(mac: Mac) -> bool {
    matches!(mac.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(number: u8) -> Mac {
        Mac([2, 0, 0, 0, 0, number])
    }

    #[test]
    fn a_learned_address_expires_when_its_host_is_idle() {
        let mut learned = Learned::new(16);
        learned.age_ticks = 100;
        learned.learn(mac(1), 3, 0);
        assert_eq!(learned.port_of(mac(1), 99), Some(3));
        assert_eq!(learned.port_of(mac(1), 100), None);
    }

    #[test]
    fn addresses_colliding_in_one_table_rarely_collide_in_other_tables() {
        let first = Learned::new(4096);
        let victim = mac(1);
        let numbers = (0..100_000_u32).map(|number| {
            let [a, b, c, d] = number.to_be_bytes();
            Mac([6, 0, a, b, c, d])
        });
        let of_its_set = numbers.filter(|mac| first.set_of(*mac) == first.set_of(victim));
        let of_its_set: Vec<_> = of_its_set.take(WAYS).collect();
        assert_eq!(of_its_set.len(), WAYS);
        let is_kept = || {
            let mut other = Learned::new(4096);
            other.age_ticks = 100;
            other.learn(victim, 3, 0);
            for mac in &of_its_set {
                other.learn(*mac, 2, 1);
            }
            other.port_of(victim, 2) == Some(3)
        };
        assert!((0..20).filter(|_| is_kept()).count() > 15);
    }

    #[test]
    fn an_address_flood_evicts_the_oldest_addresses_in_bounded_memory() {
        let mut learned = Learned::new(4);
        learned.age_ticks = 1_000;
        for number in 0..200 {
            learned.learn(mac(number), 0, u64::from(number));
        }
        assert_eq!(learned.table.len(), 1);
        assert!((196..200).all(|n| learned.port_of(mac(n), 200).is_some()));
        assert!((0..196).all(|n| learned.port_of(mac(n), 200).is_none()));
    }
}
