//! Constant packet rate: when packet k is due.

/// Fractions of a tick kept: 2^-24 each, so that a week at a million packets a second is off by less
/// than a microsecond.
const FRACTION_BITS: u32 = 24;

/// A constant packet rate. Due times never drift and never shift: a generator that fell behind sees
/// due times in the past, which is how its slip is known.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    due_fixed: u128,
    gap_fixed: u128,
}

impl Pace {
    /// Starts at `start_ticks`, one packet every `gap_ticks` (at least a fraction of a tick).
    pub fn new(start_ticks: u64, gap_ticks: f64) -> Self {
        let scale = f64::from(1_u32 << FRACTION_BITS);
        Self {
            due_fixed: u128::from(start_ticks) << FRACTION_BITS,
            gap_fixed: (gap_ticks * scale).max(1.0) as u128,
        }
    }

    /// When the next packet is due, in ticks.
    #[inline(always)]
    pub fn due_ticks(&self) -> u64 {
        (self.due_fixed >> FRACTION_BITS) as u64
    }

    /// Goes on to the packet after.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.due_fixed += self.gap_fixed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_with_a_fraction_keeps_the_rate() {
        let mut pace = Pace::new(1_000, 2_593.7);
        for _ in 0..1_000_000 {
            pace.advance();
        }
        let want = 1_000.0 + 2_593.7e6;
        assert!(
            (pace.due_ticks() as f64 - want).abs() < 2.0,
            "{}",
            pace.due_ticks()
        );
    }

    #[test]
    fn gaps_below_a_tick_make_progress() {
        let mut pace = Pace::new(0, 0.25);
        for _ in 0..8 {
            pace.advance();
        }
        assert_eq!(pace.due_ticks(), 2);
    }
}
