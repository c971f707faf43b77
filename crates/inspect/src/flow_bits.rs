//! Bits that rules set for a flow, or for a transaction within a flow.

/// The bits that rules have set for a flow, at most eight at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowBits([u16; 8]);

impl FlowBits {
    /// Upper bound of bit numbers, exclusive.
    pub const MOST: u16 = u16::MAX;

    /// Returns true if a bit is set.
    #[inline]
    pub fn has(&self, bit: u16) -> bool {
        self.0.contains(&(bit + 1))
    }

    /// Sets a bit; returns false if eight other bits are set already.
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

    /// Sets all bits that are set in `other`; returns false if more than eight bits would be set.
    pub fn set_all(&mut self, other: FlowBits) -> bool {
        let mut all = true;
        for bit in other.0.iter().filter(|it| **it != 0) {
            all &= self.set(bit - 1);
        }
        all
    }

    /// Clears a bit.
    pub fn unset(&mut self, bit: u16) {
        self.0
            .iter_mut()
            .filter(|it| **it == bit + 1)
            .for_each(|it| *it = 0);
    }
}
