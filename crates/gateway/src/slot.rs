//! An entry of the bearer table.

/// An entry of 16 bytes in the bearer table: four to a cache line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// The key from [`super::Match::key`]; 0 in an empty slot.
    pub key: u64,
    /// The TEID that is written into outgoing packets. In an entry that decapsulates, the number of the source
    /// addresses that packets may have, 0 for all.
    pub teid: u32,
    /// The number of the path on which packets are sent, 0 for none.
    pub path: u16,
    /// The QoS flow that packets are marked with, or [`NO_QFI`].
    pub qfi: u8,
    pub action: u8,
}

pub(super) const NO_QFI: u8 = 0xff;

impl Slot {
    pub const EMPTY: Self = Self {
        key: 0,
        teid: 0,
        path: 0,
        qfi: NO_QFI,
        action: 0,
    };
}
