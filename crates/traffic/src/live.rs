//! A live view of a running trial: counters that are always current, and distributions that the watcher requests.
//!
//! Only the loop of the trial accesses its histograms. The *watcher*, a thread that displays the view, requests them by
//! a flag that the loop reads once per packet. The loop then swaps its histograms for an empty set that the watcher has
//! sent before. There are no locks, and the loop copies nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use taut_measure::{GapRecorder, LatencyHistogram, SequenceTracker};
use taut_sys::Clock;

/// Number of the slowest packets that an interval lists.
pub const WORST_LISTED: usize = 5;

/// A packet with a long latency.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Slow {
    /// Latency of the packet, ns.
    pub latency_ns: u64,
    /// Sequence number of the packet.
    pub sequence: u64,
    /// Time of arrival of the packet, seconds after the start of the trial.
    pub seen_seconds: f64,
}

/// Distributions of the packets in one interval.
#[derive(Debug, Clone)]
pub struct Interval {
    /// Latencies from send timestamp to arrival.
    pub latency: LatencyHistogram,
    /// Gaps between successive sent packets.
    pub gaps: GapRecorder,
    /// Slowest packets, in descending order of latency; entries with latency 0 are unused.
    pub worst: [Slow; WORST_LISTED],
    /// Number of packets that had not come back when the interval ended, among those sent before the last packet that
    /// came back: lost, refused, corrupt, or reordered.
    pub missing: u64,
}

impl Interval {
    fn new() -> Self {
        Self {
            latency: LatencyHistogram::new(),
            gaps: GapRecorder::new(0.0),
            worst: [Slow::default(); WORST_LISTED],
            missing: 0,
        }
    }

    #[inline]
    fn is_slow(&self, latency_ns: u64) -> bool {
        latency_ns > self.worst[WORST_LISTED - 1].latency_ns
    }

    #[cold]
    fn note_slow(&mut self, slow: Slow) {
        let place = self
            .worst
            .partition_point(|w| w.latency_ns >= slow.latency_ns);
        if place < WORST_LISTED {
            self.worst[place..].rotate_right(1);
            self.worst[place] = slow;
        }
    }

    fn merge(&mut self, later: &Self) {
        self.latency.merge(&later.latency);
        self.gaps.merge(&later.gaps);
        for slow in later.worst {
            if self.is_slow(slow.latency_ns) {
                self.note_slow(slow);
            }
        }
        self.missing = later.missing;
    }

    fn clear(&mut self) {
        self.latency.clear();
        self.gaps.clear();
        self.worst = [Slow::default(); WORST_LISTED];
    }
}

/// Counters of a stream's packets since the start of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that the port accepted.
    pub sent: u64,
    /// Packets that did not fit into the port's ring.
    pub refused: u64,
    /// Intact packets that came back.
    pub received: u64,
    /// Corrupt packets that came back, assigned to the stream that their stamp names.
    pub corrupt: u64,
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            refused: self.refused.saturating_sub(earlier.refused),
            received: self.received.saturating_sub(earlier.received),
            corrupt: self.corrupt.saturating_sub(earlier.corrupt),
        }
    }
}

/// Counters that the loop writes and other threads read, on separate cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Published {
    /// The requested rate, packets per second, as the bits of an `f64`.
    asked_pps: AtomicU64,
    stamped: AtomicU64,
    refused: AtomicU64,
    received: AtomicU64,
    corrupt: AtomicU64,
    wanted: AtomicBool,
}

impl Published {
    fn read(&self) -> Counts {
        let refused = self.refused.load(Ordering::Relaxed);
        Counts {
            sent: self.stamped.load(Ordering::Relaxed).saturating_sub(refused),
            refused,
            received: self.received.load(Ordering::Relaxed),
            corrupt: self.corrupt.load(Ordering::Relaxed),
        }
    }
}

/// The loop's side of a live view, which is part of a [`crate::Record`].
pub struct Live {
    published: Arc<Published>,
    /// Number of packets that earlier trials sent.
    before: u64,
    refused: u64,
    received: u64,
    corrupt: u64,
    /// Distributions; none if only the counters are requested.
    distributions: Option<Distributions>,
}

struct Distributions {
    ns_per_tick: f64,
    current: Box<Interval>,
    /// Intended and actual send time of the last packet, ticks after the start; none before the first packet.
    last: Option<(u64, u64)>,
    full: SyncSender<Box<Interval>>,
    empty: Receiver<Box<Interval>>,
}

impl Live {
    /// Starts the next trial, whose sequence numbers begin at 0 again; the counters continue.
    pub fn next_trial(&mut self, asked_pps: f64) {
        self.before = self.published.stamped.load(Ordering::Relaxed);
        self.published
            .asked_pps
            .store(asked_pps.to_bits(), Ordering::Relaxed);
        if let Some(d) = &mut self.distributions {
            d.last = None;
        }
    }

    /// Records a sent packet.
    #[inline(always)]
    pub fn sent(
        &mut self,
        sequence: u64,
        due_ticks: u64,
        send_delay_ticks: u64,
        seen: &SequenceTracker,
    ) {
        self.published
            .stamped
            .store(self.before + sequence + 1, Ordering::Relaxed);
        let Some(d) = &mut self.distributions else {
            return;
        };
        let sent_ticks = due_ticks + send_delay_ticks;
        if let Some((last_due, last_sent)) = d.last.replace((due_ticks, sent_ticks)) {
            let gap_ns = sent_ticks.saturating_sub(last_sent) as f64 * d.ns_per_tick;
            let asked_ns = due_ticks.saturating_sub(last_due) as f64 * d.ns_per_tick;
            d.current.gaps.record_asked(gap_ns.round() as u64, asked_ns);
        }
        if self.published.wanted.load(Ordering::Relaxed) {
            self.hand_over(seen);
        }
    }

    /// Records a packet that did not fit into the port's ring.
    #[inline(always)]
    pub fn refused(&mut self) {
        self.refused += 1;
        self.published
            .refused
            .store(self.refused, Ordering::Relaxed);
    }

    /// Records an intact packet that came back.
    #[inline(always)]
    pub fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64) {
        self.received += 1;
        self.published
            .received
            .store(self.received, Ordering::Relaxed);
        let Some(d) = &mut self.distributions else {
            return;
        };
        let latency_ns = (latency_ticks as f64 * d.ns_per_tick) as u64;
        d.current.latency.record(latency_ns);
        if d.current.is_slow(latency_ns) {
            d.current.note_slow(Slow {
                latency_ns,
                sequence,
                seen_seconds: seen_ticks as f64 * d.ns_per_tick / 1e9,
            });
        }
    }

    /// Records a corrupt packet that came back.
    #[cold]
    pub fn corrupt(&mut self) {
        self.corrupt += 1;
        self.published
            .corrupt
            .store(self.corrupt, Ordering::Relaxed);
    }

    #[cold]
    fn hand_over(&mut self, seen: &SequenceTracker) {
        let Some(d) = &mut self.distributions else {
            return;
        };
        if let Ok(next) = d.empty.try_recv() {
            let mut current = std::mem::replace(&mut d.current, next);
            current.missing = seen.missing_below_highest();
            // Relaxed suffices: the interval itself goes through a channel.
            self.published.wanted.store(false, Ordering::Relaxed);
            // The channel has space: only one empty set is in flight at a time.
            let _ = d.full.try_send(current);
        }
    }
}

/// The watcher's side of a live view: the current state of one stream.
pub struct StreamView {
    /// The stream's name.
    pub name: String,
    /// The requested rate of the last trial, packets per second.
    pub asked_pps: f64,
    /// Counters since the start.
    pub counts: Counts,
    /// Increase of the counters between the last two updates of the view.
    pub last_counts: Counts,
    /// Time between the last two updates of the view, s.
    pub last_seconds: f64,
    /// The last complete interval; none before the first interval has ended, and for a view that has only counters.
    pub last: Option<Box<Interval>>,
    /// Sum of all intervals since the start.
    pub total: Interval,
    looked: Instant,
    published: Arc<Published>,
    full: Receiver<Box<Interval>>,
    empty: SyncSender<Box<Interval>>,
}

impl StreamView {
    /// Requests the distributions of the interval that ends now.
    pub fn ask(&self) {
        self.published.wanted.store(true, Ordering::Relaxed);
    }

    /// Receives available data, and waits up to `patience` for a requested interval. The loop passes an interval only
    /// when it handles a packet of the stream, so an idle stream delays its interval.
    pub fn look(&mut self, patience: Duration) {
        let handed_over = if self.published.wanted.load(Ordering::Relaxed) && !patience.is_zero() {
            self.full.recv_timeout(patience).ok()
        } else {
            self.full.try_recv().ok()
        };
        if let Some(interval) = handed_over {
            self.total.merge(&interval);
            if let Some(mut old) = self.last.replace(interval) {
                old.clear();
                let _ = self.empty.try_send(old);
            }
        }
        self.asked_pps = f64::from_bits(self.published.asked_pps.load(Ordering::Relaxed));
        let counts = self.published.read();
        let now = Instant::now();
        self.last_counts = counts - self.counts;
        self.last_seconds = (now - self.looked).as_secs_f64();
        self.counts = counts;
        self.looked = now;
    }

    /// Sets the present time as the start of the view; called when the trial begins.
    pub fn start(&mut self) {
        self.looked = Instant::now();
    }
}

/// Makes both sides of the live view of one stream. With `clock` the view has counters and distributions, otherwise
/// only counters.
pub fn live(name: &str, asked_pps: f64, clock: Option<&Clock>) -> (Live, StreamView) {
    let published = Arc::<Published>::default();
    published
        .asked_pps
        .store(asked_pps.to_bits(), Ordering::Relaxed);
    let (full, take_full) = sync_channel(2);
    let (give_empty, empty) = sync_channel(2);
    // There are three sets in all: the loop's, one in flight, and the displayed one.
    for _ in 0..if clock.is_some() { 2 } else { 0 } {
        let _ = give_empty.try_send(Box::new(Interval::new()));
    }
    let live = Live {
        published: Arc::clone(&published),
        before: 0,
        refused: 0,
        received: 0,
        corrupt: 0,
        distributions: clock.map(|clock| Distributions {
            ns_per_tick: clock.to_ns(1),
            current: Box::new(Interval::new()),
            last: None,
            full,
            empty,
        }),
    };
    let view = StreamView {
        name: name.to_string(),
        asked_pps,
        counts: Counts::default(),
        last_counts: Counts::default(),
        last_seconds: 0.0,
        last: None,
        total: Interval::new(),
        looked: Instant::now(),
        published,
        full: take_full,
        empty: give_empty,
    };
    (live, view)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CLOCK: Clock = Clock {
        hz: 1e9,
        error_ppm: 0.0,
    };

    #[test]
    fn live_intervals_are_returned_on_request_and_sum_to_totals() {
        let (mut live, mut view) = live("one", 1.0, Some(&CLOCK));
        let mut seen = SequenceTracker::new();
        let mut sequence = 0;
        for second in 1..=5_u64 {
            for _ in 0..100 {
                live.sent(sequence, sequence * 1000, 0, &seen);
                if sequence % 100 != 7 {
                    live.received(sequence, second * 100, sequence);
                    seen.record(sequence);
                }
                sequence += 1;
            }
            view.ask();
            live.sent(sequence, sequence * 1000, 0, &seen);
            seen.record(sequence);
            live.received(sequence, second * 100, sequence);
            sequence += 1;
            view.look(Duration::from_secs(10));
            let last = view.last.as_ref().unwrap();
            assert_eq!(last.latency.max_ns(), Some(second * 100));
            assert_eq!(last.worst[0].latency_ns, second * 100);
            assert_eq!(view.last_counts.sent, 101);
            assert_eq!(view.total.latency.count(), second * 100 - 1);
        }
        assert_eq!(view.total.missing, 5);
        assert_eq!(view.total.worst.map(|w| w.latency_ns), [500; 5]);
        assert_eq!(view.counts.sent, 505);
        assert_eq!(view.counts.received, 500);
    }

    #[test]
    fn live_counters_continue_from_one_trial_to_the_next() {
        let (mut live, mut view) = live("one", 1.0, Some(&CLOCK));
        for (trial, asked_pps) in [1e3, 2e3, 4e3].into_iter().enumerate() {
            live.next_trial(asked_pps);
            let mut seen = SequenceTracker::new();
            for sequence in 0..10 {
                live.sent(sequence, sequence * 1000, 0, &seen);
                live.received(sequence, 50, sequence);
                seen.record(sequence);
            }
            view.look(Duration::ZERO);
            let sent = (trial as u64 + 1) * 10;
            assert_eq!((view.counts.sent, view.asked_pps), (sent, asked_pps));
            assert_eq!(view.last_counts.received, 10);
        }
        view.ask();
        live.sent(10, 10_000, 0, &SequenceTracker::new());
        view.look(Duration::from_secs(10));
        assert_eq!(view.total.gaps.histogram().max_ns(), Some(1000));
    }

    #[test]
    fn a_viewer_that_reads_no_intervals_does_not_block_sending() {
        let (mut live, view) = live("one", 1.0, Some(&CLOCK));
        let seen = SequenceTracker::new();
        for sequence in 0..1000 {
            view.ask();
            live.sent(sequence, 0, 0, &seen);
        }
        assert_eq!(view.published.read().sent, 1000);
    }

    #[test]
    fn counters_are_published_even_without_latency_distributions() {
        let (mut live, mut view) = live("one", 1.0, None);
        live.sent(0, 0, 0, &SequenceTracker::new());
        live.refused();
        live.corrupt();
        view.ask();
        view.look(Duration::ZERO);
        let want = Counts {
            sent: 0,
            refused: 1,
            received: 0,
            corrupt: 1,
        };
        assert_eq!((view.counts, view.last.is_some()), (want, false));
    }
}
