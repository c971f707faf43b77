//! Meters: rate limits for the packets that use them.

use super::refusal::Refused;

pub(super) const MOST_METERS: usize = 4096;

/// The unit and value of a meter's rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// Limit in thousands of bits of frames a second.
    Kbps(u32),
    /// Limit in packets a second.
    Pps(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meter {
    pub id: u32,
    pub rate: Limit,
    /// The burst of the meter in the unit of its limit: thousands of bits, or packets. None for the default burst.
    pub burst: Option<u32>,
}

impl Meter {
    pub fn check(&self) -> Result<(), Refused> {
        match self.rate {
            Limit::Kbps(0) | Limit::Pps(0) => Err(Refused::NoRate),
            _ => Ok(()),
        }
    }
}
