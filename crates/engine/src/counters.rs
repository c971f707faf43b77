//! Counters of a worker, which it publishes periodically and any thread can read.

use crate::{QueueCounters, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use taut_function::{Count, CountKind, Counted, Function};
use taut_port::PortCounters;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// A worker's counters: the worker stores them, other threads load them.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
            /// Counters by port, in the order of the chain; allocated at the first publication.
            ports: OnceLock<Box<[[AtomicU64; 10]]>>,
            /// Counters by port and queue, if there are queues.
            queues: OnceLock<Box<[Box<[[AtomicU64; 5]]>]>>,
            /// Counters that functions share with other threads.
            functions: OfFunctions,
            /// Counts of packets by function and outcome (the function's name for what happened to a packet).
            outcomes: Mutex<Outcomes>,
        }

        /// The values of [`Counters`] at one time.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct CountersView { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// Returns the counters as last published.
            pub fn read(&self) -> CountersView {
                CountersView { $($name: self.$name.load(Ordering::Relaxed)),* }
            }

            /// Returns the counters of each port, in the order of the chain, as last published.
            pub fn ports(&self) -> Vec<PortCounters> {
                let read = |it: &[AtomicU64; 10]| it.each_ref().map(|n| n.load(Ordering::Relaxed));
                let ports = self.ports.get().into_iter().flatten();
                ports.map(|it| PortCounters::of(read(it))).collect()
            }

            /// Publishes the counters of the port with index `number`, out of `of` ports of the worker.
            pub(crate) fn publish_port(&self, number: usize, of: usize, counted: &PortCounters) {
                let none = || (0..of).map(|_| Default::default()).collect();
                if let Some(port) = self.ports.get_or_init(none).get(number) {
                    for (count, now) in port.iter().zip(counted.counts()) {
                        count.store(now, Ordering::Relaxed);
                    }
                }
            }

            /// Returns the counters of the queues of each port as last published, the highest priority last. Without
            /// queues, the list is empty.
            pub fn queues(&self) -> Vec<Vec<QueueCounters>> {
                let read = |it: &[AtomicU64; 5]| {
                    QueueCounters::of(it.each_ref().map(|n| n.load(Ordering::Relaxed)))
                };
                let ports = self.queues.get().into_iter().flatten();
                ports.map(|queues| queues.iter().map(read).collect()).collect()
            }

            /// Allocates the counters of `queues` queues at each of `ports` ports.
            pub(crate) fn have_queues(&self, ports: usize, queues: usize) {
                let of_port = |_| (0..queues).map(|_| Default::default()).collect();
                self.queues.get_or_init(|| (0..ports).map(of_port).collect());
            }

            /// Publishes the counters of a queue of a port.
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

            /// Returns the counters that the worker's functions share with other threads; a clone keeps them alive.
            pub fn functions(&self) -> Vec<Arc<dyn Counted>> {
                let functions = self.functions.0.lock().unwrap_or_else(PoisonError::into_inner);
                functions.iter().filter_map(Weak::upgrade).collect()
            }

            /// Sets the shared counters of the worker's current functions.
            pub(crate) fn have_functions(&self, counted: impl Iterator<Item = Arc<dyn Counted>>) {
                let counted = counted.map(|it| Arc::downgrade(&it)).collect();
                *self.functions.0.lock().unwrap_or_else(PoisonError::into_inner) = counted;
            }

            /// Returns the counts of packets by function and outcome, as last published.
            pub fn outcomes(&self) -> Vec<Count> {
                self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).counts()
            }

            /// Sets the names of the worker's current functions, with which the counts of their packets are published.
            pub(crate) fn have_names(&self, stages: &[Stage]) {
                let names = stages.iter().map(|stage| stage.name.clone()).collect();
                *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner) =
                    Outcomes { names, each: Vec::new() };
            }

            /// Publishes, for each function of the worker, the number of packets with each outcome (the function's name
            /// for what happened to a packet).
            pub(crate) fn publish_outcomes(&self, functions: &[Box<dyn Function>]) {
                // A reader holds the lock only briefly; instead of waiting, the worker publishes again soon.
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
            /// Returns the counter called `name`; None if there is no such counter.
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

/// The counters of a worker's functions. The counters live as long as the functions.
#[derive(Default)]
struct OfFunctions(Mutex<Vec<Weak<dyn Counted>>>);

impl std::fmt::Debug for OfFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfFunctions").finish_non_exhaustive()
    }
}

/// Numbers of packets by outcome (such as a cause of a drop) in the functions of a worker, since each function started.
#[derive(Debug, Default)]
struct Outcomes {
    /// Names of the functions, in the order of the chain; empty if they were not set.
    names: Vec<String>,
    /// One entry per outcome: index of the function, name of the outcome, true if the outcome is a drop, and count of
    /// packets.
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

/// Returns the named count of packets with one outcome of a function.
pub(crate) fn outcome(function: &str, name: &str, is_drop: bool, count: u64) -> Count {
    Count {
        function: function.to_string(),
        kind: CountKind::of_outcome(is_drop),
        name: name.to_string(),
        about: String::new(),
        count,
    }
}

/// Adds each of `counts` to the entry of `sums` with the same function and outcome, or appends the count if there is no
/// such entry.
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
    /// Packets sent.
    tx_packets,
    /// Bytes sent.
    tx_bytes,
    /// Packets dropped by a function.
    dropped_by_function,
    /// Packets punted to the slow path.
    punted,
    /// Cycles from the receipt of a punted packet until the slow path processes the packet, summed over all packets.
    punted_wait_ticks,
    /// Packets that the worker received from the slow path to send them.
    from_slow_path,
    /// Packets handed off to another worker of the chain, their owner.
    handed_over,
    /// Packets dropped because the handoff ring to their owner was full.
    dropped_handoff,
    /// Packets dropped because the ring to the slow path was full, or because there is no slow path.
    dropped_punted,
    /// Packets dropped because a function chose an egress port that does not exist.
    dropped_no_port,
    /// Copies of packets that were not made because the buffer pool was empty.
    dropped_no_copy,
    /// Packets dropped because the transmit ring was full.
    dropped_tx_full,
    /// Packets dropped because the queue in front of the transmit ring was full.
    dropped_queue_full,
    /// Packets dropped by CoDel, because packets waited too long for the transmit ring.
    dropped_codel,
    /// Packets dropped at arrival because the receive ring was full.
    dropped_rx_overrun,
    /// Packets dropped because they arrived with an invalid descriptor.
    dropped_malformed,
    /// Packets dropped because they were too long for a buffer or the egress link.
    dropped_too_long,
    /// Packets dropped because the kernel or the peer refused them.
    dropped_tx_failed,
    /// Bursts received: receive calls that returned packets.
    batches,
    /// Iterations of the worker's loop (receive, process, send).
    rounds,
    /// Cycles spent in iterations with packets.
    busy_ticks,
    /// Cycles since the worker started its loop.
    total_ticks,
    /// Sleeps between iterations.
    sleeps,
    /// Cycles spent in sleeps.
    asleep_ticks,
    /// Interrupted iterations of the worker's loop: see [`taut_sys::RoundWatch`].
    interruptions,
    /// Cycles spent in interrupted iterations of the worker's loop.
    interrupted_ticks,
    /// The part of `busy_ticks` that interruptions took: the cycles of interrupted iterations in excess of the average
    /// for the same number of packets.
    taken_busy_ticks,
}

impl CountersView {
    /// Returns the mean number of packets per received burst.
    pub fn average_batch(&self) -> f64 {
        self.rx_packets as f64 / (self.batches.max(1)) as f64
    }

    /// Returns the fraction of time that the worker spent in iterations with packets, 0 to 1.
    pub fn busy(&self) -> f64 {
        self.busy_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Returns the cycles spent in iterations with packets, without those of interruptions.
    pub fn own_busy_ticks(&self) -> u64 {
        self.busy_ticks.saturating_sub(self.taken_busy_ticks)
    }

    /// Returns the fraction of time that the worker spent in sleeps, 0 to 1.
    pub fn asleep(&self) -> f64 {
        self.asleep_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Returns the fraction of time that the worker spent in interrupted iterations, 0 to 1.
    pub fn interrupted(&self) -> f64 {
        self.interrupted_ticks as f64 / (self.total_ticks.max(1)) as f64
    }

    /// Returns the number of packets dropped for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped_causes().iter().map(|(_, n)| n).sum()
    }

    /// Returns the name of every cause of loss in the worker, and the number of packets lost for that cause.
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
    use taut_functions::FUNCTIONS;
    use taut_port::Batch;

    struct Telling;

    impl Function for Telling {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn outcomes(&self) -> Vec<(&'static str, u64)> {
            vec![("passed", 3), ("dropped: odd", 2)]
        }
    }

    #[test]
    fn packet_counts_are_reported_per_function_and_result() {
        let functions: Vec<Box<dyn Function>> = vec![Box::new(Telling), Box::new(Telling)];
        let counters = Counters::default();
        counters.publish_outcomes(&functions);
        assert!(
            counters.outcomes().is_empty(),
            "nobody has said what they are called"
        );
        let stages = ["first", "second"].map(|name| Stage::parse(name, FUNCTIONS).unwrap());
        counters.have_names(&stages);
        counters.publish_outcomes(&functions);
        let mut told = counters.outcomes();
        assert_eq!(told.len(), 4);
        assert_eq!(told[1], outcome("first", "dropped: odd", true, 2));
        assert_eq!(told[2], outcome("second", "passed", false, 3));
        add_counts(&mut told, counters.outcomes());
        assert_eq!((told.len(), told[3].count), (4, 4));
        // New functions start at zero.
        counters.have_names(&stages[..1]);
        assert!(counters.outcomes().is_empty());
    }
}
