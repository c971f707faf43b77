//! The counters of packets by the result of coding, recoding or decoding them.

/// The numbers of packets by the result of coding, recoding or decoding them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub coded: u64,
    pub repairs_sent: u64,
    pub uncoded: u64,
    pub repairs_used: u64,
    pub recovered: u64,
    pub lost: u64,
    pub recoded: u64,
    pub other: u64,
    pub too_long: u64,
    pub not_coded: u64,
    pub malformed: u64,
    pub broken: u64,
    pub elsewhere: u64,
    pub no_room: u64,
    pub late: u64,
    pub waited: u64,
    pub overdue: u64,
}

impl Counts {
    /// Counts lost packets. The count saturates, because packet numbers may be forged.
    pub fn lose(&mut self, packets: u64) {
        self.lost = self.lost.saturating_add(packets);
    }
}

/// The decision whether a packet leaves (`Goes`) or is consumed by the function (`Ends`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Goes,
    Ends,
}
