//! The target delay that an application demands: its usual one, or a later one while the usual one is out of reach.
//!
//! Gallenmüller's dissertation (section 6.3) proposes that a notice of the transport makes the controller of a plant
//! accept a longer delay; it does not say how. Here the usual target is tried again when the later one has been in
//! reach for a time. That time doubles with each vain try, as AARF does for the rates of 802.11 (Lacage, Manshaei and
//! Turletti, MSWiM 2004).

use crate::endpoint::Notice;

/// Time for which the later target must be in reach before the usual one is tried: at first, and at most, ns.
const TRY_NS: std::ops::RangeInclusive<u64> = 2_000_000_000..=32_000_000_000;

/// The target delay of one direction, chosen by the notices of its sender's endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    usual_ns: u64,
    late_ns: u64,
    is_late: bool,
    /// Time since which the later target delay can be met, ns; `None` while it cannot be met.
    reached_ns: Option<u64>,
    /// Time at which the usual target was last tried again, ns; `None` before.
    tried_ns: Option<u64>,
    wait_ns: u64,
}

impl Demand {
    /// Makes a demand that begins with the usual target delay, ns.
    pub fn new(usual_ns: u64, late_ns: u64) -> Self {
        Self {
            usual_ns,
            late_ns,
            is_late: false,
            reached_ns: None,
            tried_ns: None,
            wait_ns: *TRY_NS.start(),
        }
    }

    /// Returns the target delay to set, ns.
    pub fn target_ns(&self) -> u64 {
        if self.is_late {
            self.late_ns
        } else {
            self.usual_ns
        }
    }

    /// Returns true while the later target delay is demanded.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// Processes a notice of the endpoint. Returns true if the target delay changes.
    pub fn hear(&mut self, now_ns: u64, notice: Notice) -> bool {
        match notice {
            Notice::OutOfReach(_) if self.is_late => self.reached_ns = None,
            Notice::OutOfReach(_) => {
                let was_vain = self
                    .tried_ns
                    .is_some_and(|ns| now_ns.saturating_sub(ns) < self.wait_ns);
                self.wait_ns = if was_vain {
                    (2 * self.wait_ns).min(*TRY_NS.end())
                } else {
                    *TRY_NS.start()
                };
                (self.is_late, self.reached_ns) = (true, None);
                return true;
            }
            Notice::InReach(_) if self.is_late => self.reached_ns = Some(now_ns),
            _ => {}
        }
        false
    }

    /// Tries the usual target delay again if it is time. Returns true if the target delay changes. Callers call it now
    /// and then, such as before each message.
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        let since = self.reached_ns.filter(|_| self.is_late);
        let is_due = since.is_some_and(|ns| now_ns.saturating_sub(ns) >= self.wait_ns);
        if is_due {
            (self.is_late, self.reached_ns, self.tried_ns) = (false, None, Some(now_ns));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_usual_target_is_tried_later_after_each_vain_try() {
        let mut demand = Demand::new(5, 50);
        let mut now = 0;
        for wait in [2, 4, 8, 16, 32, 32] {
            assert!(demand.hear(now, Notice::OutOfReach(0.5)));
            assert_eq!((demand.target_ns(), demand.is_late()), (50, true));
            assert!(!demand.is_due(now + 100 * S), "not in reach yet");
            assert!(!demand.hear(now, Notice::InReach(1.0)));
            assert!(!demand.is_due(now + wait * S - 1));
            now += wait * S;
            assert!(demand.is_due(now));
            assert_eq!(demand.target_ns(), 5);
            now += S;
        }
        // The usual target has lasted, so that the next time is the first again.
        now += 100 * S;
        assert!(demand.hear(now, Notice::OutOfReach(0.5)));
        demand.hear(now, Notice::InReach(1.0));
        assert!(demand.is_due(now + 2 * S));
    }
}
