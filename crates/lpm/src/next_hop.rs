//! Next hops in tables: small numbers, which the forwarder uses as an index into its own list.

use std::fmt;

use thiserror::Error;

/// Number of a next hop. 0 is *no route*, so a list of actions has *no route* as its first record.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop(u16);

/// Error for a number that does not fit into an entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("next hops are numbered from 1 to {most}, not {0}", most = NextHop::MOST)]
pub struct WrongNextHop(pub u32);

impl NextHop {
    /// No route.
    pub const NONE: Self = Self(0);
    /// The greatest number: an entry has 15 bits for it.
    pub const MOST: u32 = 0x7fff;

    /// Makes the next hop of a number.
    ///
    /// # Errors
    /// [`WrongNextHop`] for 0, which is no route, and for numbers above [`Self::MOST`].
    pub const fn new(number: u32) -> Result<Self, WrongNextHop> {
        if number == 0 || number > Self::MOST {
            return Err(WrongNextHop(number));
        }
        Ok(Self(number as u16))
    }

    /// Makes a next hop from the 15 bits of an entry.
    #[inline(always)]
    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// Returns the 15 bits of an entry.
    #[inline(always)]
    pub(crate) const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the number as an index: 0 where there is no route.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns whether there is a route.
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
    fn numbers_that_an_entry_cannot_hold_are_refused() {
        for wrong in [0, NextHop::MOST + 1, u32::MAX] {
            let said = format!("next hops are numbered from 1 to 32767, not {wrong}");
            assert_eq!(NextHop::new(wrong).map_err(|e| e.to_string()), Err(said));
        }
        let most = NextHop::new(NextHop::MOST).map(|hop| (hop.index(), hop.is_some()));
        assert_eq!(most, Ok((32_767, true)));
        assert!(!NextHop::NONE.is_some());
    }
}
