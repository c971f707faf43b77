//! An entry of the bearer table.

/// Entry of 16 bytes: four to a cache line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// Key that is matched, as [`super::Match::key`] gives it; 0 in an empty slot.
    pub key: u64,
    /// The identifier that packets get.
    pub teid: u32,
    /// Number of the path that packets take, 0 where they take none.
    pub path: u16,
    /// The QoS flow that they are marked with, or [`NO_QFI`].
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
