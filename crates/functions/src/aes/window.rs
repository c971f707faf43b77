//! The window of packets of a session that were received already. (RFC 4303 section 3.4.3.)

/// The highest received packet number, and for this and the 63 numbers before it whether the packet was received. Older
/// packets count as received.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Window {
    highest: u64,
    /// Bit n is set if the packet with number `highest - n` was received.
    seen: u64,
}

impl Window {
    pub(super) fn is_new(&self, number: u64) -> bool {
        match self.highest.checked_sub(number) {
            None => true,
            Some(age) => age < 64 && self.seen >> age & 1 == 0,
        }
    }

    pub(super) fn see(&mut self, number: u64) {
        if let Some(age) = self.highest.checked_sub(number) {
            self.seen |= 1_u64.checked_shl(age as u32).unwrap_or(0);
        } else {
            let ahead = number - self.highest;
            self.seen = if ahead < 64 { self.seen << ahead } else { 0 } | 1;
            self.highest = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn sequence_numbers_are_accepted_once_within_a_window_of_64() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut window = Window::default();
        let mut seen = HashSet::new();
        let mut highest = 0_u64;
        for _ in 0..100_000 {
            let ahead = if random.u8(..) == 0 { 200 } else { 4 };
            let number = (highest + random.u64(..ahead)).saturating_sub(random.u64(..80));
            let is_new = !seen.contains(&number) && number + 64 > highest;
            assert_eq!(window.is_new(number), is_new, "{number} of {highest}");
            if is_new {
                window.see(number);
                seen.insert(number);
                highest = highest.max(number);
            }
        }
        assert!(seen.len() > 1000);
        window.see(u64::MAX);
        assert!(!window.is_new(u64::MAX) && window.is_new(u64::MAX - 63));
    }
}
