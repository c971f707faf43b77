//! The note that accompanies a packet to a replica and back, in the 52 bits that a ring pair carries with each frame.

/// The number of bits that a ring pair carries with each frame.
#[cfg(test)]
pub(super) const BITS: u32 = 52;

/// The value in a note for a packet to which no function has assigned a priority.
const NO_PRIORITY: u8 = 0xf;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Note {
    /// The number of the packet among those of its ingress port.
    pub number: u16,
    pub from_port: u8,
    pub to_port: u8,
    /// The number of ports of the chain.
    pub ports: u8,
    /// The packet's priority in the queues of a full port, 0 to 7, if a function has set one.
    pub priority: Option<u8>,
    /// True if the replica has dropped the packet.
    pub is_dropped: bool,
}

impl Note {
    #[inline]
    pub fn bits(self) -> u64 {
        u64::from(self.number)
            | u64::from(self.from_port) << 16
            | u64::from(self.to_port) << 24
            | u64::from(self.ports) << 32
            | u64::from(self.priority.unwrap_or(NO_PRIORITY) & 0xf) << 40
            | u64::from(self.is_dropped) << 44
    }

    #[inline]
    pub fn of(bits: u64) -> Self {
        let priority = (bits >> 40) as u8 & 0xf;
        Self {
            number: bits as u16,
            from_port: (bits >> 16) as u8,
            to_port: (bits >> 24) as u8,
            ports: (bits >> 32) as u8,
            priority: (priority != NO_PRIORITY).then_some(priority),
            is_dropped: bits >> 44 & 1 == 1,
        }
    }

    /// Returns true if the contexts of two packets are equal for a function, so that they can be in one batch.
    #[inline]
    pub fn is_like(self, other: Self) -> bool {
        (self.from_port, self.to_port) == (other.from_port, other.to_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_the_bits_of_a_lane() {
        for (number, port, priority, is_dropped) in [
            (0, 0, None, false),
            (u16::MAX, 254, Some(7), true),
            (1, 1, Some(0), false),
        ] {
            let note = Note {
                number,
                from_port: port,
                to_port: port ^ 1,
                ports: 255,
                priority,
                is_dropped,
            };
            assert!(note.bits() < 1 << BITS);
            assert_eq!(Note::of(note.bits()), note);
        }
    }
}
