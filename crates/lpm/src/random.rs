//! Random routes for the tests of tables: many are within each other, some have the longest lengths.

use crate::{NextHop, PrefixV4, PrefixV6};

pub(crate) struct Changes {
    pub random: fastrand::Rng,
}

impl Changes {
    pub fn new(seed: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
        }
    }

    pub fn hop(&mut self) -> NextHop {
        NextHop::of_bits(self.random.u16(1..=0x7fff))
    }

    /// Returns a random route of any length. Prefixes longer than /24 are within 16,384 of the /24 networks.
    pub fn route_v4(&mut self) -> (PrefixV4, NextHop) {
        let address = self.random.u32(..);
        // Short prefixes are rare, because each of them changes millions of entries.
        let least = if self.random.u16(..) < 4 { 0 } else { 9 };
        let length = self.random.u8(least..=32).max(self.random.u8(least..=24));
        let address = if length > 24 {
            address & 0x3f_ffff | 0x0a00_0000
        } else {
            address
        };
        (PrefixV4::of(address, length), self.hop())
    }

    /// Returns a random route of any length within sixteen /20 networks; some routes are close to others.
    pub fn route_v6(&mut self) -> (PrefixV6, NextHop) {
        let spread = self.random.u128(..);
        let near = self.random.u128(..) & self.random.u128(..) & self.random.u128(..);
        let rest = if self.random.bool() { spread } else { near };
        let address = 0x2a00 << 112 | (rest >> 12 & ((1 << 116) - 1));
        let length = match self.random.u16(..4096) {
            0 => self.random.u8(..=20),
            1..200 => self.random.u8(65..=128),
            _ => self.random.u8(29..=64),
        };
        (PrefixV6::of(address, length), self.hop())
    }
}
