//! Next hops in tables: small numbers, each of which is an index into the forwarder's own list.

use std::fmt;

use thiserror::Error;

/// A next hop: an index into the forwarder's list of actions. Index 0 means *no route*, so the first record of that
/// list is the action for packets without a route.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop(u16);

/// Error for an index that does not fit into an entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("next hops are numbered from 1 to {most}, not {0}", most = NextHop::MOST)]
pub struct WrongNextHop(pub u32);

impl NextHop {
    /// No route.
    pub const NONE: Self = Self(0);
    /// The greatest index: an entry of a table has 15 bits for it.
    pub const MOST: u32 = 0x7fff;

    /// Makes the next hop with the given index.
    ///
    /// # Errors
    /// Returns [`WrongNextHop`] for 0, which is no route, and for numbers above [`Self::MOST`].
    pub const fn new(number: u32) -> Result<Self, WrongNextHop> {
        if number == 0 || number > Self::MOST {
            return Err(WrongNextHop(number));
        }
        Ok(Self(number as u16))
    }

    /// Makes a next hop from the 15 bits that an entry of a table stores.
    #[inline(always)]
    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the 15 bits that an entry of a table stores.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the index in the forwarder's list; 0 means *no route*.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns true for every next hop but *no route*.
    #[inline(always)]
    pub const fn is_some(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Debug for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hop_numbers_outside_the_entry_range_are_refused() {
        for wrong in [0, NextHop::MOST + 1, u32::MAX] {
            let said = format!("next hops are numbered from 1 to 32767, not {wrong}");
            assert_eq!(NextHop::new(wrong).map_err(|e| e.to_string()), Err(said));
        }
        let most = NextHop::new(NextHop::MOST).map(|hop| (hop.index(), hop.is_some()));
        assert_eq!(most, Ok((32_767, true)));
        assert!(!NextHop::NONE.is_some());
    }
}
