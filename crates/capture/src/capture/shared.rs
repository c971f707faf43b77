//! The state that the threads of a capture share: the ring, the counters of triggers, and the messages between the
//! threads.

use crate::analyser::{self, Fired};
use crate::delays::Delays;
use crate::dump::{Dumped, Tally};
use crate::flows::Shown;
use crate::lock;
use crate::ring::Ring;
use crate::trigger::{Trigger, When};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time from a packet's timestamp until the packet is assumed to be readable. A producer reads the timestamps of a
/// batch and publishes the batch without a pause, but may be preempted between the two.
const SLACK: Duration = Duration::from_millis(100);
/// Maximum number of packets that the trigger thread reads and processes together.
pub(super) const AT_ONCE: usize = 4096;
/// Maximum number of pending trigger requests of analysers.
const MOST_ASKED: usize = 1024;
/// Sleep of the capture's threads when they have nothing to do.
pub(super) const PAUSE: Duration = Duration::from_micros(200);

/// The state of a trigger: the end time of its dump, and its counters.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Time up to which the trigger's dump stores packets, ns since 1970; 0 before the first dump.
    pub(super) until_ns: AtomicU64,
    pub(super) fired: AtomicU64,
    pub(super) begun: AtomicU64,
    pub(super) limited: AtomicU64,
    /// Counts of the packets in the trigger's dumps.
    pub(super) dumped: Arc<Tally>,
    /// Growth of the count that fires this trigger, since the trigger was last evaluated.
    pub(super) grown: AtomicU64,
}

/// The state that the threads of a capture share.
#[derive(Debug)]
pub(super) struct Together {
    pub(super) ring: Arc<Ring>,
    pub(super) triggers: Vec<Trigger>,
    pub(super) states: Vec<State>,
    /// Time up to which the trigger thread has processed all packets, ns since 1970.
    pub(super) looked_ns: AtomicU64,
    pub(super) not_looked_at: AtomicU64,
    /// Triggers that were requested to fire, and have not fired yet.
    pub(super) asked: Mutex<Vec<Fired>>,
    pub(super) analysers: Vec<analyser::Shown>,
    pub(super) dumping: Mutex<Vec<Dumped>>,
    pub(super) dumps: Mutex<VecDeque<Dumped>>,
    pub(super) pipe_trouble: Mutex<Option<String>>,
    /// Failures that occurred while the capture ended.
    pub(super) last_words: Mutex<Vec<String>>,
    pub(super) flows: Option<Shown>,
    pub(super) looked_after: Delays,
    /// Time from a packet's timestamp until the packet is assumed to be readable.
    pub(super) slack: Duration,
    pub(super) polls: bool,
    pub(super) stop: AtomicBool,
    /// True if the ring still grows to its configured size; false once another size was requested.
    pub(super) grows: AtomicBool,
}

impl Together {
    /// Creates the state that the threads of a capture share, before the first of them runs.
    pub(super) fn new(
        ring: &Arc<Ring>,
        triggers: Vec<Trigger>,
        analysers: &[analyser::Settings],
        flows: usize,
        polls: bool,
        grows: bool,
    ) -> Self {
        Self {
            ring: Arc::clone(ring),
            states: triggers.iter().map(|_| State::default()).collect(),
            triggers,
            looked_ns: AtomicU64::new(0),
            not_looked_at: AtomicU64::new(0),
            asked: Mutex::default(),
            analysers: analysers.iter().map(analyser::Shown::new).collect(),
            dumping: Mutex::default(),
            dumps: Mutex::default(),
            pipe_trouble: Mutex::default(),
            last_words: Mutex::default(),
            flows: (flows > 0).then(|| Shown::new(flows)),
            looked_after: Delays::default(),
            slack: SLACK + ring.hold().unwrap_or_default(),
            polls,
            stop: AtomicBool::new(false),
            grows: AtomicBool::new(grows),
        }
    }

    /// Returns the index of each trigger that fires when a named count grows, and the name of that count.
    pub(super) fn counts(&self) -> impl Iterator<Item = (usize, &str)> {
        let triggers = self.triggers.iter().enumerate();
        triggers.filter_map(|(at, it)| match &it.when {
            When::Count(name) => Some((at, name.as_str())),
            _ => None,
        })
    }

    /// Requests a trigger to fire, for an analyser; waits while too many requests are pending.
    pub(super) fn ask(&self, fired: Fired) {
        loop {
            let mut asked = lock(&self.asked);
            if asked.len() < MOST_ASKED {
                asked.push(fired);
                return;
            }
            drop(asked);
            std::thread::sleep(PAUSE);
        }
    }

    /// Grows the ring to its configured size, one bucket at a time.
    pub(super) fn grow(&self, bytes: u64) {
        let step = self.ring.bucket_bytes() as u64;
        while self.grows.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) {
            let now = self.ring.bytes();
            if now + step > bytes || self.ring.resize(now + step) <= now {
                break;
            }
        }
        self.grows.store(false, Ordering::Relaxed);
    }
}
