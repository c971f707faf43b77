//! The usage of a rule (URR, 3GPP TS 29.244 section 5.2.2): the volumes that all workers count together, and the limits
//! for notifications and for drops.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use taut_wire::pfcp::Volumes;

/// A volume limit that no byte count reaches.
const NEVER: u64 = u64::MAX;

/// The numbers of a user's bytes that were counted, uplink and downlink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub uplink: u64,
    pub downlink: u64,
}

impl Counted {
    /// Returns the total, uplink and downlink numbers of bytes, in this order.
    fn all(self) -> [u64; 3] {
        [
            self.uplink.saturating_add(self.downlink),
            self.uplink,
            self.downlink,
        ]
    }

    /// Returns the total, uplink and downlink counts that are `volumes` bytes higher than the counts in `self`;
    /// [`NEVER`] for an unset volume.
    pub fn and(self, volumes: &Volumes) -> [u64; 3] {
        let mut volumes = [volumes.total, volumes.uplink, volumes.downlink].into_iter();
        self.all().map(|since| {
            let volume = volumes.next().flatten();
            volume.map_or(NEVER, |volume| since.saturating_add(volume))
        })
    }

    /// Returns true if the bytes counted since `since` reach one of the volumes.
    pub fn reaches(self, volumes: &Volumes, since: Self) -> bool {
        let counted = self.all().into_iter().zip(since.all());
        let volumes = [volumes.total, volumes.uplink, volumes.downlink];
        let mut pairs = counted.zip(volumes);
        pairs.any(|((now, then), volume)| {
            volume.is_some_and(|most| now.saturating_sub(then) >= most)
        })
    }
}

/// The counters and limits of a usage rule. No other memory depends on these counters, so relaxed memory ordering
/// suffices.
#[derive(Debug)]
pub(super) struct Usage {
    /// The SEID (session identifier) of the session; `rule` is the identifier of the usage rule in that session.
    pub session: u64,
    pub rule: u32,
    uplink: AtomicU64,
    downlink: AtomicU64,
    /// The total, uplink and downlink byte counts at which the control plane is notified.
    tell_at: [AtomicU64; 3],
    /// The total, uplink and downlink byte counts at or above which all packets are dropped.
    stop_at: [AtomicU64; 3],
    /// True if a notification has been sent and not been processed yet.
    is_told: AtomicBool,
    /// True if the time quota of the rule is used up.
    is_closed: AtomicBool,
    /// The cycle counts of the first packet since the last call of [`Usage::take_times`], and of the last packet; 0 for
    /// none.
    first_ticks: AtomicU64,
    last_ticks: AtomicU64,
}

impl Usage {
    pub fn new(session: u64, rule: u32) -> Self {
        let never = || std::array::from_fn(|_| AtomicU64::new(NEVER));
        Self {
            session,
            rule,
            uplink: AtomicU64::new(0),
            downlink: AtomicU64::new(0),
            tell_at: never(),
            stop_at: never(),
            is_told: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            first_ticks: AtomicU64::new(0),
            last_ticks: AtomicU64::new(0),
        }
    }

    /// Returns the volumes that the rule has counted since its creation; they only grow.
    #[inline]
    pub fn counted(&self) -> Counted {
        Counted {
            uplink: self.uplink.load(Ordering::Relaxed),
            downlink: self.downlink.load(Ordering::Relaxed),
        }
    }

    /// Counts a packet that passes, of `bytes` bytes. Returns true if the control plane is to be notified; later calls
    /// return false until that notification is processed.
    #[inline]
    pub fn count(&self, is_uplink: bool, bytes: u64, now_ticks: u64) -> bool {
        let volume = if is_uplink {
            &self.uplink
        } else {
            &self.downlink
        };
        volume.fetch_add(bytes, Ordering::Relaxed);
        if self.first_ticks.load(Ordering::Relaxed) == 0 {
            // If several workers have a first packet at the same moment, the time of any of these packets may be
            // stored.
            self.first_ticks.store(now_ticks.max(1), Ordering::Relaxed);
        }
        self.last_ticks.store(now_ticks.max(1), Ordering::Relaxed);
        self.reaches(&self.tell_at) && !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Returns true if a quota is used up, so that no packet passes.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed) || self.reaches(&self.stop_at)
    }

    #[inline]
    fn reaches(&self, limits: &[AtomicU64; 3]) -> bool {
        let counted = self.counted().all();
        let mut pairs = counted.iter().zip(limits);
        pairs.any(|(now, at)| *now >= at.load(Ordering::Relaxed))
    }

    /// Re-enables the notification of the control plane after it could not be sent.
    pub fn tell_again(&self) {
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// Sets the total, uplink and downlink counts ([`Counted::and`]) that cause a notification and that end the quota,
    /// and whether the time quota is used up. The caller has processed the last notification.
    pub fn limit(&self, tell_at: [u64; 3], stop_at: [u64; 3], is_closed: bool) {
        for (limits, volumes) in [(&self.tell_at, tell_at), (&self.stop_at, stop_at)] {
            for (at, volume) in limits.iter().zip(volumes) {
                at.store(volume, Ordering::Relaxed);
            }
        }
        self.is_closed.store(is_closed, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// Returns the cycle counts of the first and last packet since the last call, if there were any.
    pub fn take_times(&self) -> Option<(u64, u64)> {
        let first = self.first_ticks.swap(0, Ordering::Relaxed);
        let last = self.last_ticks.swap(0, Ordering::Relaxed);
        (first != 0).then(|| (first, last.max(first)))
    }

    /// Returns the cycle count of the first packet since the last call of [`Usage::take_times`], if there was one.
    pub fn first_ticks(&self) -> Option<u64> {
        Some(self.first_ticks.load(Ordering::Relaxed)).filter(|ticks| *ticks != 0)
    }
}

/// Two counters are equal if they are the same object, not if their counts are equal.
impl PartialEq for Usage {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Usage {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volumes(total: Option<u64>, uplink: Option<u64>, downlink: Option<u64>) -> Volumes {
        Volumes {
            total,
            uplink,
            downlink,
        }
    }

    #[test]
    fn thresholds_are_reported_once_and_a_reached_quota_stops_packets() {
        let usage = Usage::new(1, 2);
        assert!(!usage.count(true, 1_000_000, 5) && !usage.is_spent());
        let since = usage.counted();
        let none = volumes(None, None, None);
        let downlink = volumes(None, None, Some(100));
        usage.limit(since.and(&downlink), since.and(&none), false);
        assert!(!usage.count(true, 500, 6));
        assert!(!usage.count(false, 99, 7));
        assert!(usage.count(false, 1, 8));
        assert!(!usage.count(false, 1, 9), "nobody has looked yet");
        usage.tell_again();
        assert!(usage.count(false, 1, 9));
        let since = usage.counted();
        let total = volumes(Some(10), None, None);
        usage.limit(since.and(&none), since.and(&total), false);
        assert!(!usage.is_spent());
        usage.count(true, 4, 10);
        usage.count(false, 6, 11);
        assert!(usage.is_spent());
        usage.limit(since.and(&none), since.and(&none), true);
        assert!(usage.is_spent(), "its time is over");
        assert_eq!(usage.take_times(), Some((5, 11)));
        assert_eq!(usage.take_times(), None);
    }

    proptest! {
        /// The notification is sent with the first packet that reaches a volume, regardless of the packets before it.
        #[test]
        fn a_usage_notification_is_sent_when_the_volume_is_reached(
            before: u32, most in (1u64..5000, 1u64..5000, 1u64..5000),
            packets in proptest::collection::vec((any::<bool>(), 1u64..1500), 1..20),
        ) {
            let usage = Usage::new(1, 1);
            usage.count(true, before.into(), 1);
            let since = usage.counted();
            let most = volumes(Some(most.0), Some(most.1), Some(most.2));
            let none = volumes(None, None, None);
            usage.limit(since.and(&most), since.and(&none), false);
            let mut was_told = false;
            for (is_uplink, bytes) in packets {
                was_told |= usage.count(is_uplink, bytes, 1);
                prop_assert_eq!(was_told, usage.counted().reaches(&most, since));
            }
        }
    }
}
