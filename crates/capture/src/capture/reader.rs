//! The thread that reads all packets, evaluates triggers, fires them, and counts flows.

use super::settings::CaptureError;
use super::shared::{AT_ONCE, PAUSE, Together};
use crate::analyser;
use crate::clock::PacketClock;
use crate::dump::Begin;
use crate::filter::{Many, Matches};
use crate::flows::{Flows, Seen};
use crate::lock;
use crate::record::Record;
use crate::ring::Reader;
use crate::trigger::{Limit, Trigger, Watch, When};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use taut_sys::{spawn_background, ticks};

/// Number of packets of which one is timed, from its timestamp to the evaluation of triggers. The number is coprime to
/// usual batch sizes, so that packets at all positions of a batch are timed.
const ONE_TIMED_OF: u32 = 31;

/// Starts the thread that reads all packets.
pub(super) fn start_look(
    together: &Arc<Together>,
    reader: Reader,
    clock: PacketClock,
    begin: Sender<Begin>,
    flows: Option<Flows>,
) -> Result<JoinHandle<()>, CaptureError> {
    let here = Arc::clone(together);
    let thread = spawn_background("capture-look", move || {
        look(&here, reader, clock, &begin, flows);
    })?;
    Ok(thread)
}

/// Reads all packets, fires triggers, and counts flows.
fn look(
    together: &Together,
    mut reader: Reader,
    mut clock: PacketClock,
    begin: &Sender<Begin>,
    mut flows: Option<Flows>,
) {
    let counts: Vec<_> = together.counts().collect();
    let mut watching = Watching::new(&together.triggers);
    let mut firing = Firing::new(together, begin);
    firing.fire_always();
    let mut untimed = ONE_TIMED_OF;
    loop {
        let is_over = together.stop.load(Ordering::Acquire);
        let now_ns = clock.now();
        // This time is read before the requests of the analysers, so that all requests up to this time are processed.
        let analysed_ns = analysed_ns(together);
        firing.fire_asked(now_ns);
        firing.fire_grown(&counts, now_ns);
        let (mut read, mut last_ns) = (0, 0);
        if !watching.with_filters.is_empty() || flows.is_some() {
            read = reader.read(u64::MAX, AT_ONCE, |record| {
                last_ns = record.facts.time_ns;
                untimed -= 1;
                if untimed == 0 {
                    untimed = ONE_TIMED_OF;
                    let delay_ns = clock.of(ticks()).saturating_sub(last_ns);
                    together.looked_after.count(delay_ns);
                }
                if let Some(flows) = &mut flows
                    && let Some(seen) = Seen::of(record)
                {
                    flows.see(seen);
                }
                watching.see(record, &clock, &mut firing);
            });
            let missed = reader.missed();
            together.not_looked_at.store(missed, Ordering::Relaxed);
        }
        if let (Some(flows), Some(shown)) = (&mut flows, &together.flows) {
            flows.tell(shown, if read < AT_ONCE { now_ns } else { last_ns });
        }
        let settled_ns = now_ns.saturating_sub(together.slack.as_nanos() as u64);
        if read < AT_ONCE {
            watching.miss(settled_ns, &mut firing);
        }
        let looked_ns = looked_up_to(is_over, read, last_ns, settled_ns).min(analysed_ns);
        // Release: decisions about packets up to this time were made before.
        together.looked_ns.store(looked_ns, Ordering::Release);
        if looked_ns == u64::MAX {
            return;
        }
        if read == 0 {
            pause(together.polls);
        }
    }
}

fn pause(polls: bool) {
    match polls {
        true => std::hint::spin_loop(),
        false => std::thread::sleep(PAUSE),
    }
}

/// Returns the time up to which every analyser has processed all packets, ns since 1970.
fn analysed_ns(together: &Together) -> u64 {
    let analysed = together.analysers.iter().map(analyser::Shown::analysed_ns);
    analysed.min().unwrap_or(u64::MAX)
}

/// Returns the time up to which all packets were read, ns since 1970. The last read call returned `read` packets, the
/// last of which has the time `last_ns`.
fn looked_up_to(is_over: bool, read: usize, last_ns: u64, settled_ns: u64) -> u64 {
    match (is_over && read == 0, read < AT_ONCE) {
        (true, _) => u64::MAX,
        (_, true) => settled_ns,
        (_, false) => last_ns.saturating_sub(1).min(settled_ns),
    }
}

/// The state of the triggers that packets, or their absence, can fire.
struct Watching<'a> {
    triggers: &'a [Trigger],
    /// Indices of the triggers with a filter, in the order of the filters in `many`.
    with_filters: Vec<usize>,
    many: Many,
    matches: Matches,
    /// State of each trigger, in the order of `triggers`.
    watches: Vec<Watch>,
}

impl<'a> Watching<'a> {
    fn new(triggers: &'a [Trigger]) -> Self {
        let with_filters: Vec<_> = (0..triggers.len())
            .filter(|at| triggers[*at].when.filter().is_some())
            .collect();
        let filters = with_filters
            .iter()
            .filter_map(|at| triggers[*at].when.filter().cloned());
        // The number of filters was checked before.
        let many = Many::new(filters.collect()).unwrap_or_default();
        Self {
            triggers,
            with_filters,
            many,
            matches: Matches::default(),
            watches: triggers.iter().map(|_| Watch::default()).collect(),
        }
    }

    /// Fires the triggers whose condition this packet meets.
    #[inline(always)]
    fn see(&mut self, record: &Record<'_>, clock: &PacketClock, firing: &mut Firing<'_>) {
        if self.with_filters.is_empty() {
            return;
        }
        let (frame, wire_bytes) = (record.frame, record.facts.wire_bytes);
        self.many.matches(frame, wire_bytes, &mut self.matches);
        for hit in self.matches.iter() {
            let at = self.with_filters[hit];
            if self.watches[at].sees(&self.triggers[at].when, record, clock) {
                firing.fire(at, record.facts.time_ns, "a packet");
            }
        }
    }

    /// Fires the silence triggers for which no packet has arrived for the required time, as of `settled_ns`.
    fn miss(&mut self, settled_ns: u64, firing: &mut Firing<'_>) {
        for at in &self.with_filters {
            if let Some(ns) = self.watches[*at].misses(&self.triggers[*at].when, settled_ns) {
                firing.fire(*at, ns, "silence");
            }
        }
    }
}

/// The context that is needed to fire triggers.
struct Firing<'a> {
    together: &'a Together,
    begin: &'a Sender<Begin>,
    limits: Vec<Limit>,
}

impl<'a> Firing<'a> {
    fn new(together: &'a Together, begin: &'a Sender<Begin>) -> Self {
        let triggers = together.triggers.iter();
        Self {
            together,
            begin,
            limits: triggers.map(|it| Limit::new(it.most_per_minute)).collect(),
        }
    }

    /// Fires the triggers with the condition [`When::Always`], which fire when a capture begins.
    fn fire_always(&mut self) {
        let together = self.together;
        for (at, trigger) in together.triggers.iter().enumerate() {
            if matches!(trigger.when, When::Always) {
                self.fire(at, 0, "the capture began");
            }
        }
    }

    /// Fires the triggers that a user or an analyser has requested to fire.
    fn fire_asked(&mut self, now_ns: u64) {
        let asked: Vec<_> = std::mem::take(&mut *lock(&self.together.asked));
        for it in asked {
            let time_ns = if it.time_ns == 0 { now_ns } else { it.time_ns };
            self.fire(it.trigger, time_ns, &it.cause);
        }
    }

    /// Fires the triggers in `counts` (index and name of the count) whose counts have grown.
    fn fire_grown(&mut self, counts: &[(usize, &str)], now_ns: u64) {
        let together = self.together;
        for (at, name) in counts {
            let grown = &together.states[*at].grown;
            // A plain load comes first, because it usually leaves the cache line with the core of the thread that
            // writes it.
            if grown.load(Ordering::Relaxed) > 0 {
                let by = grown.swap(0, Ordering::Relaxed);
                self.fire(*at, now_ns, &format!("{name} grew by {by}"));
            }
        }
    }

    /// Fires a trigger: extends the trigger's current dump, or begins a new one if the limit per minute allows it.
    fn fire(&mut self, at: usize, now_ns: u64, cause: &str) {
        let (trigger, state) = (&self.together.triggers[at], &self.together.states[at]);
        state.fired.fetch_add(1, Ordering::Relaxed);
        let before_ns = trigger.before.as_nanos() as u64;
        let after_ns = match trigger.when {
            When::Always => u64::MAX - 1,
            _ => trigger.after.as_nanos() as u64,
        };
        let ended_ns = state.until_ns.load(Ordering::Relaxed);
        let until_ns = now_ns.saturating_add(after_ns);
        if ended_ns > 0 && now_ns <= ended_ns {
            state.until_ns.fetch_max(until_ns, Ordering::Release);
        } else if self.limits[at].lets(now_ns) {
            state.begun.fetch_add(1, Ordering::Relaxed);
            // A packet that the trigger's previous dump contains is not written again.
            let from_ns = now_ns.saturating_sub(before_ns).max(match ended_ns {
                0 => 0,
                ended_ns => ended_ns + 1,
            });
            // The receiver does not exist if dumps have no target.
            let _ = self.begin.send(Begin {
                trigger: at,
                fired_ns: now_ns,
                from_ns,
                until_ns,
                ended_ns,
                cause: cause.to_string(),
            });
            // Release: a thread that sees this value finds the message too.
            state.until_ns.store(until_ns, Ordering::Release);
        } else {
            state.limited.fetch_add(1, Ordering::Relaxed);
        }
    }
}
