//! Counters of what a worker has done, published by it now and then and read by anybody.

use crate::{QueueCounters, Stage};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use taut_function::{Count, CountKind, Counted, Function};
use taut_port::PortCounters;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A worker's counters; the worker stores, others load.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
            /// Counters of each port; made when they are published first.
            ports: OnceLock<Box<[[AtomicU64; 10]]>>,
            /// Counters by port and queue, where there are queues.
            queues: OnceLock<Box<[Box<[[AtomicU64; 5]]>]>>,
            /// What functions count for others.
            functions: OfFunctions,
            /// What became of packets in functions.
            outcomes: Mutex<Outcomes>,
        }

        /// One reading of [`Counters`].
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct CountersView { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// The counters as they were published last.
            pub fn read(&self) -> CountersView {
                CountersView { $($name: self.$name.load(Ordering::Relaxed)),* }
            }

            /// Returns the counters of each port, in the order of the chain, as they were published last.
            pub fn ports(&self) -> Vec<PortCounters> {
                let read = |it: &[AtomicU64; 10]| it.each_ref().map(|n| n.load(Ordering::Relaxed));
                let ports = self.ports.get().into_iter().flatten();
                ports.map(|it| PortCounters::of(read(it))).collect()
            }

            /// Publishes those of port `number` of so many.
            pub(crate) fn publish_port(&self, number: usize, of: usize, counted: &PortCounters) {
                let none = || (0..of).map(|_| Default::default()).collect();
                if let Some(port) = self.ports.get_or_init(none).get(number) {
                    for (count, now) in port.iter().zip(counted.counts()) {
                        count.store(now, Ordering::Relaxed);
                    }
                }
            }

            /// Returns the counters of the queues of each port, the highest priority last, as they were published last;
            /// none without queues.
            pub fn queues(&self) -> Vec<Vec<QueueCounters>> {
                let read = |it: &[AtomicU64; 5]| {
                    QueueCounters::of(it.each_ref().map(|n| n.load(Ordering::Relaxed)))
                };
                let ports = self.queues.get().into_iter().flatten();
                ports.map(|queues| queues.iter().map(read).collect()).collect()
            }

            /// Makes room for those of so many queues at each of so many ports.
            pub(crate) fn have_queues(&self, ports: usize, queues: usize) {
                let of_port = |_| (0..queues).map(|_| Default::default()).collect();
                self.queues.get_or_init(|| (0..ports).map(of_port).collect());
            }

            /// Publishes those of a queue of a port.
            pub(crate) fn publish_queue(&self, port: usize, queue: usize, counted: &QueueCounters) {
                let of_port = self.queues.get().and_then(|ports| ports.get(port));
                for (count, now) in of_port
                    .and_then(|queues| queues.get(queue))
                    .into_iter()
                    .flatten()
                    .zip(counted.counts())
                {
                    count.store(now, Ordering::Relaxed);
                }
            }

            /// Returns what its functions count for others; whoever has it keeps it there.
            pub fn functions(&self) -> Vec<Arc<dyn Counted>> {
                let functions = self.functions.0.lock().unwrap_or_else(PoisonError::into_inner);
                functions.iter().filter_map(Weak::upgrade).collect()
            }

            /// Publishes what the functions count that it has from now on.
            pub(crate) fn have_functions(&self, counted: impl Iterator<Item = Arc<dyn Counted>>) {
                let counted = counted.map(|it| Arc::downgrade(&it)).collect();
                *self.functions.0.lock().unwrap_or_else(PoisonError::into_inner) = counted;
            }

            /// Returns what became of packets in its functions, as it was published last.
            pub fn outcomes(&self) -> Vec<Count> {
                self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).counts()
            }

            /// Says what the functions are called that it has from now on.
            pub(crate) fn have_names(&self, stages: &[Stage]) {
                let names = stages.iter().map(|stage| stage.name.clone()).collect();
                *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner) =
                    Outcomes { names, each: Vec::new() };
            }

            /// Publishes what became of packets in the functions so far.
            pub(crate) fn publish_outcomes(&self, functions: &[Box<dyn Function>]) {
                // Whoever reads is quick, and is not waited for: they are published again soon.
                if let Ok(mut outcomes) = self.outcomes.try_lock() {
                    outcomes.take(functions);
                }
            }

            /// Publishes the worker's own counters.
            pub(crate) fn publish(&self, view: &CountersView) {
                $(self.$name.store(view.$name, Ordering::Relaxed);)*
            }
        }

        impl CountersView {
            /// Returns the counter of that name; none if there is no such one.
            pub fn of_name(&self, name: &str) -> Option<u64> {
                $(if name == stringify!($name) {
                    return Some(self.$name);
                })*
                None
            }
        }

        impl std::ops::Add for CountersView {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name)),* }
            }
        }

        impl std::iter::Sum for CountersView {
            fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
                each.fold(Self::default(), |sum, it| sum + it)
            }
        }

        impl std::ops::Sub for CountersView {
            type Output = Self;

            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(earlier.$name)),* }
            }
        }
    };
}

/// What the functions of a worker count; goes with the functions.
#[derive(Default)]
struct OfFunctions(Mutex<Vec<Weak<dyn Counted>>>);

impl std::fmt::Debug for OfFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfFunctions").finish_non_exhaustive()
    }
}

/// What became of packets in the functions of a worker, since each began.
#[derive(Debug, Default)]
struct Outcomes {
    /// Names of the functions, in the order of the chain; none where nobody has said.
    names: Vec<String>,
    /// Number of the function, the outcome, whether packets went no further, and how many.
    each: Vec<(usize, &'static str, bool, u64)>,
}

impl Outcomes {
    fn take(&mut self, functions: &[Box<dyn Function>]) {
        self.each.clear();
        for (number, function) in functions.iter().enumerate() {
            let outcomes = function.outcomes().into_iter();
            let each = outcomes.map(|(name, count)| (number, name, function.drops(name), count));
            self.each.extend(each);
        }
    }

    fn counts(&self) -> Vec<Count> {
        let each = self
            .each
            .iter()
            .filter_map(|(number, name, is_drop, count)| {
                let function = self.names.get(*number)?;
                Some(outcome(function, name, *is_drop, *count))
            });
        each.collect()
    }
}

/// The count of an outcome of a function.
pub(crate) fn outcome(function: &str, name: &str, is_drop: bool, count: u64) -> Count {
    Count {
        function: function.to_string(),
        kind: CountKind::of_outcome(is_drop),
        name: name.to_string(),
        about: String::new(),
        count,
    }
}

/// Adds counts to others: to those of the same thing, or as new ones.
pub(crate) fn add_counts(sums: &mut Vec<Count>, counts: impl IntoIterator<Item = Count>) {
    for count in counts {
        let same = |it: &&mut Count| {
            (&it.function, it.kind, &it.name) == (&count.function, count.kind, &count.name)
        };
        match sums.iter_mut().find(same) {
            Some(sum) => sum.count += count.count,
            None => sums.push(count),
        }
    }
}

counters! {
    /// Packets received.
    rx_packets,
    /// Bytes received.
    rx_bytes,
    /// Packets handed over.
    tx_packets,
    /// Bytes handed over.
    tx_bytes,
    /// Dropped by a function.
    dropped_by_function,
    /// Handed to the slow path.
    punted,
    /// Ticks from when packets were received until the slow path came to them, the sum of all.
    punted_wait_ticks,
    /// Packets made by the slow path, and taken from it to be sent.
    from_slow_path,
    /// Handed to another worker of the chain, whose they are.
    handed_over,
    /// Dropped because the worker whose they are had no room for them.
    dropped_handoff,
    /// Dropped because the slow path had no room for it, or there is none.
    dropped_punted,
    /// Dropped because a function sent it to a port that there is not.
    dropped_no_port,
    /// Copies that were not made, for want of memory.
    dropped_no_copy,
    /// Dropped because the outgoing ring was full.
    dropped_tx_full,
    /// Dropped because the queue for the outgoing ring was full.
    dropped_queue_full,
    /// Dropped by CoDel, as packets waited too long for the outgoing ring.
    dropped_codel,
    /// Arrived, but the receive ring was full.
    dropped_rx_overrun,
    /// Arrived with an impossible description.
    dropped_malformed,
    /// Packets too long for a buffer or the outgoing link.
    dropped_too_long,
    /// Refused by the kernel or the peer.
    dropped_tx_failed,
    /// Bursts received: turns of a port that brought packets.
    batches,
    /// Rounds of the loop.
    rounds,
    /// Ticks spent in rounds that had packets.
    busy_ticks,
    /// Ticks since the start.
    total_ticks,
    /// Sleeps between rounds.
    sleeps,
    /// Ticks spent in them.
    asleep_ticks,
    /// Rounds in which the core was taken away: see [`taut_sys::RoundWatch`].
    interruptions,
    /// Ticks spent in them.
    interrupted_ticks,
    /// Of the ticks in rounds that had packets, those that were taken away: what interrupted ones took beyond what as many
    /// packets take on average.
    taken_busy_ticks,
}

impl CountersView {
    /// Packets per burst received.
    pub fn average_batch(&self) -> f64 {
        self.rx_packets as f64 / (self.batches.max(1)) as f64
    }

    /// Share of time spent on packets, 0 to 1.
    pub fn busy(&self) -> f64 {
        self.busy_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Ticks spent on packets, without those in which somebody else had the core.
    pub fn own_busy_ticks(&self) -> u64 {
        self.busy_ticks.saturating_sub(self.taken_busy_ticks)
    }

    /// Share of time asleep, 0 to 1.
    pub fn asleep(&self) -> f64 {
        self.asleep_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Share of time in which the core was taken away, 0 to 1.
    pub fn interrupted(&self) -> f64 {
        self.interrupted_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_causes().iter().map(|(_, n)| n).sum()
    }

    /// Returns every cause of loss by name, and its count.
    pub fn dropped_causes(&self) -> [(&'static str, u64); 12] {
        [
            ("function", self.dropped_by_function),
            ("punted", self.dropped_punted),
            ("handoff", self.dropped_handoff),
            ("no such port", self.dropped_no_port),
            ("no copy", self.dropped_no_copy),
            ("tx full", self.dropped_tx_full),
            ("queue full", self.dropped_queue_full),
            ("codel", self.dropped_codel),
            ("rx overrun", self.dropped_rx_overrun),
            ("malformed", self.dropped_malformed),
            ("too long", self.dropped_too_long),
            ("tx failed", self.dropped_tx_failed),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_function::Context;
    use taut_port::Batch;

    struct Telling;

    impl Function for Telling {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn outcomes(&self) -> Vec<(&'static str, u64)> {
            vec![("passed", 3), ("dropped: odd", 2)]
        }
    }

    #[test]
    fn what_became_of_packets_is_told_by_function_and_outcome() {
        let functions: Vec<Box<dyn Function>> = vec![Box::new(Telling), Box::new(Telling)];
        let counters = Counters::default();
        counters.publish_outcomes(&functions);
        assert!(
            counters.outcomes().is_empty(),
            "nobody has said what they are called"
        );
        let stages = ["first", "second"].map(|name| name.parse::<Stage>().unwrap());
        counters.have_names(&stages);
        counters.publish_outcomes(&functions);
        let mut told = counters.outcomes();
        assert_eq!(told.len(), 4);
        assert_eq!(told[1], outcome("first", "dropped: odd", true, 2));
        assert_eq!(told[2], outcome("second", "passed", false, 3));
        add_counts(&mut told, counters.outcomes());
        assert_eq!((told.len(), told[3].count), (4, 4));
        // Other functions begin at nothing.
        counters.have_names(&stages[..1]);
        assert!(counters.outcomes().is_empty());
    }
}
