//! Bits that rules set for a flow, or for one transaction of it.

/// Bits of a flow that rules set: eight at most at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowBits([u16; 8]);

impl FlowBits {
    /// Numbers that bits can have: those below this one.
    pub const MOST: u16 = u16::MAX;

    /// Says whether a bit is set.
    #[inline]
    pub fn has(&self, bit: u16) -> bool {
        self.0.contains(&(bit + 1))
    }

    /// Sets it; false if there is no room.
    pub fn set(&mut self, bit: u16) -> bool {
        self.has(bit)
            || match self.0.iter_mut().find(|it| **it == 0) {
                Some(free) => {
                    *free = bit + 1;
                    true
                }
                None => false,
            }
    }

    /// Sets all of another; false if there was no room for one of them.
    pub fn set_all(&mut self, other: FlowBits) -> bool {
        let mut all = true;
        for bit in other.0.iter().filter(|it| **it != 0) {
            all &= self.set(bit - 1);
        }
        all
    }

    /// Sets it no longer.
    pub fn unset(&mut self, bit: u16) {
        self.0
            .iter_mut()
            .filter(|it| **it == bit + 1)
            .for_each(|it| *it = 0);
    }
}
