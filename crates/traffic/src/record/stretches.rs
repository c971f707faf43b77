//! Periods in which packets arrived without a long gap.

use super::{Record, compiled_here};
use std::time::Duration;
use taut_sys::{Clock, ticks};

/// A record of the periods in which packets arrived: the times of the first and the last arrival of each period, ticks.
#[derive(Debug)]
pub struct Stretches {
    apart_ticks: u64,
    seen: Vec<(u64, u64)>,
}

impl Stretches {
    /// Makes the record. A gap longer than `apart` between two arrivals separates two periods; at most `most` periods
    /// are stored.
    pub fn new(clock: &Clock, apart: Duration, most: usize) -> Self {
        Self {
            apart_ticks: clock.to_ticks(apart.as_nanos() as f64) as u64,
            seen: Vec::with_capacity(most),
        }
    }

    /// Returns the times of the first and the last arrival of each period, ticks.
    pub fn into_seen(self) -> Vec<(u64, u64)> {
        self.seen
    }
}

impl Record for Stretches {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, _: u64, _: u64, _: u64) {}

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, _: u64, _: u64, _: u64) {
        let now = ticks();
        if let Some((_, last)) = self.seen.last_mut()
            && now - *last < self.apart_ticks
        {
            *last = now;
        } else if self.seen.len() < self.seen.capacity() {
            self.seen.push((now, now));
        }
    }
}
