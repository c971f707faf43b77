//! Analysers: user code that receives packets, stores numbers for each flow, and fires triggers. (Gallenmüller 2021,
//! section 3.5: FlowScope's analysers.)
//!
//! Each analyser has its own thread and reader. A slow analyser misses packets, which are counted, and delays no other
//! thread. The numbers of an analyser are in a table of fixed size; if the table is full, the least recently seen flow
//! is replaced.

use crate::clock::PacketClock;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::flows::{BYTES_PER_FLOW, Flows, Seen, places_for};
use crate::lock;
use crate::record::Record;
use crate::ring::Reader;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_sys::filled_on_huge_pages;

/// Maximum number of flows of an analyser.
pub const MOST_FLOWS: usize = 10_000_000;
/// Maximum number of packets that an analyser accepts before each call of [`Analyser::look`].
pub const TOGETHER: usize = 64;
/// Time for which an analyser's thread sleeps when there are no packets to process.
const PAUSE: Duration = Duration::from_micros(200);
/// Interval at which the thread publishes the status of its analyser.
const TELL: Duration = Duration::from_millis(50);

/// The code of an analyser, which belongs to one thread.
pub trait Analyser {
    /// Returns how many numbers (counters, averages, ...) the analyser stores for each flow.
    fn numbers(&self) -> usize;

    /// Accepts a packet; up to [`TOGETHER`] packets are passed before each call of [`Analyser::look`]. `flow` is the
    /// row with the numbers of the packet's flow, and the index (0 or 1) of the endpoint that sent the packet. It is
    /// `None` for packets that are not IP.
    fn take(&mut self, record: &Record<'_>, flow: Option<(usize, u8)>);

    /// Processes the accepted packets, and changes the numbers in `rows`. Each row has [`Analyser::numbers`] numbers.
    /// Calls `fire` for triggers.
    ///
    /// # Errors
    /// Returns the failure of the analyser. The accepted packets are discarded even if the call fails.
    fn look(&mut self, rows: &mut [f64], fire: &mut dyn FnMut(Fired)) -> Result<(), Trouble>;

    /// Returns the counters that the analyser itself defines, by name.
    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// A request to fire a trigger, for example by an analyser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// Index of the trigger in the settings of the capture.
    pub trigger: usize,
    /// Time of the packet for which the trigger fires, nanoseconds since 1970; 0 means the current time.
    pub time_ns: u64,
    /// Cause for which an analyser fires a trigger, as text for users.
    pub cause: String,
}

/// A failure of an analyser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// Description of the failure, in one line.
    pub why: String,
    /// True if the analyser must not be called again.
    pub is_over: bool,
}

/// A constructor of an analyser, called on the analyser's own thread.
pub type Make = Box<dyn FnOnce() -> Result<Box<dyn Analyser>, String> + Send>;

/// The settings of an analyser.
pub struct Settings {
    /// Name of the analyser in the status.
    pub name: String,
    /// Filter of the packets that the analyser receives.
    pub filter: Filter,
    /// Maximum number of flows in the analyser's table.
    pub flows: usize,
    /// Constructor of the analyser.
    pub make: Make,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Settings");
        shown.field("name", &self.name).field("flows", &self.flows);
        shown.finish_non_exhaustive()
    }
}

/// Returns the memory for `flows` flows with `numbers` stored values each, in bytes.
pub fn bytes_for(flows: usize, numbers: usize) -> usize {
    flows * BYTES_PER_FLOW + places_for(flows) * numbers * size_of::<f64>()
}

/// The status of an analyser, for users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AnalyserStatus {
    /// Name of the analyser.
    pub name: String,
    /// Packets that the analyser has processed.
    pub packets: u64,
    /// Packets that were overwritten before the analyser could read them.
    pub missed: u64,
    /// Packets that were discarded because the analyser failed while it processed them, or had been stopped by an
    /// earlier failure.
    pub failed: u64,
    /// Capacity of the analyser's table of flows.
    pub room: u64,
    /// Number of flows in the analyser's table.
    pub known: u64,
    /// Flows that newer flows have replaced in the table.
    pub forgotten: u64,
    /// Number of times that the analyser has fired a trigger.
    pub fired: u64,
    /// Counters that the analyser itself defines, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// Description of the analyser's last failure; none if it has not failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The status of an analyser in a form that other threads can read.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Time up to which the analyser has processed all packets, ns since 1970.
    analysed_ns: AtomicU64,
    status: Mutex<AnalyserStatus>,
}

impl Shown {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            // Until the analyser has started, no dump waits for it.
            analysed_ns: AtomicU64::new(u64::MAX),
            status: Mutex::new(AnalyserStatus {
                name: settings.name.clone(),
                room: settings.flows as u64,
                ..AnalyserStatus::default()
            }),
        }
    }

    /// Returns the time up to which the analyser has processed all packets, ns since 1970. The acquire load makes the
    /// triggers that it has requested for these packets visible.
    pub(crate) fn analysed_ns(&self) -> u64 {
        self.analysed_ns.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> AnalyserStatus {
        lock(&self.status).clone()
    }
}

/// The numbers that an analyser stores for flows.
struct States {
    flows: Flows,
    /// Number of values that the analyser stores for each flow.
    each: usize,
    /// Values of all table entries, `each` for every entry.
    numbers: Vec<f64>,
    /// Table entry of each row's flow; `None` if the entry was reassigned to another flow during the batch.
    rows: Vec<Option<usize>>,
    row_numbers: Vec<f64>,
}

impl States {
    fn new(room: usize, each: usize) -> Self {
        let flows = Flows::new(room);
        let numbers = filled_on_huge_pages(flows.places() * each, || 0.0);
        Self {
            flows,
            each,
            numbers,
            rows: Vec::with_capacity(TOGETHER),
            row_numbers: Vec::with_capacity(TOGETHER * each),
        }
    }

    /// Returns the row of a packet's flow, and the index of the endpoint that sent the packet; none if the packet is
    /// not IP.
    fn row_of(&mut self, record: &Record<'_>) -> Option<(usize, u8)> {
        let (flow, tcp_flags, sender) = Flow::with_tcp_flags(record)?;
        let (place, is_new) = self.flows.place(Seen {
            flow,
            tcp_flags,
            bytes: record.facts.wire_bytes,
            time_ns: record.facts.time_ns,
        });
        let there = self.rows.iter().position(|it| *it == Some(place));
        let row = match (there, is_new) {
            (Some(row), false) => row,
            (there, _) => {
                if let Some(row) = there {
                    // The row's flow was replaced in the table by the flow of this packet.
                    self.rows[row] = None;
                }
                self.rows.push(Some(place));
                let numbers = &mut self.numbers[place * self.each..][..self.each];
                if is_new {
                    numbers.fill(0.0);
                }
                self.row_numbers.extend_from_slice(numbers);
                self.rows.len() - 1
            }
        };
        Some((row, sender))
    }

    /// Copies the numbers of all rows, which the analyser may have changed, back into the table.
    fn settle(&mut self) {
        for (row, place) in self.rows.iter().enumerate() {
            if let Some(place) = place {
                let from = &self.row_numbers[row * self.each..][..self.each];
                self.numbers[place * self.each..][..self.each].copy_from_slice(from);
            }
        }
        self.rows.clear();
        self.row_numbers.clear();
    }
}

/// The context of an analyser's thread: the capture's ring and the analyser's status.
pub(crate) struct Analysing<'a> {
    pub(crate) shown: &'a Shown,
    pub(crate) reader: Reader,
    pub(crate) clock: PacketClock,
    /// Time from a packet's timestamp until the packet is assumed to be readable.
    pub(crate) slack: Duration,
    pub(crate) filter: Filter,
    pub(crate) room: usize,
}

impl Analysing<'_> {
    /// Passes packets to an analyser until `is_over` returns true, and after that the remaining packets of the ring.
    pub(crate) fn run(
        mut self,
        analyser: &mut dyn Analyser,
        is_over: impl Fn() -> bool,
        fire: impl Fn(Fired),
    ) {
        let mut states = States::new(self.room, analyser.numbers());
        let mut has_ended = false;
        let mut counted = AnalyserStatus::default();
        let mut told = Instant::now();
        loop {
            let is_last = is_over();
            let settled_ns = self
                .clock
                .now()
                .saturating_sub(self.slack.as_nanos() as u64);
            let (mut last_ns, mut taken) = (0, 0);
            let read = self.reader.read(u64::MAX, TOGETHER, |record| {
                last_ns = record.facts.time_ns;
                if self.filter.matches(record.frame, record.facts.wire_bytes) {
                    taken += 1;
                    if !has_ended {
                        analyser.take(record, states.row_of(record));
                    }
                }
            });
            counted.missed = self.reader.missed();
            if taken > 0 && !has_ended {
                has_ended = process(analyser, &mut states, taken, &mut counted, &fire);
            } else {
                counted.failed += taken;
            }
            if told.elapsed() >= TELL || (is_last && read == 0) {
                told = Instant::now();
                counted.counts = analyser.counts();
                self.tell(&counted, &states.flows);
            }
            let analysed_ns = match (is_last && read == 0, read < TOGETHER) {
                (true, _) => u64::MAX,
                (_, true) => settled_ns,
                (_, false) => last_ns.saturating_sub(1).min(settled_ns),
            };
            // Release: triggers for packets up to this time were sent before.
            self.shown.analysed_ns.store(analysed_ns, Ordering::Release);
            if analysed_ns == u64::MAX {
                return;
            }
            if read == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn tell(&self, counted: &AnalyserStatus, flows: &Flows) {
        let mut status = lock(&self.shown.status);
        status.packets = counted.packets;
        status.missed = counted.missed;
        status.failed = counted.failed;
        status.fired = counted.fired;
        (status.known, status.forgotten) = (flows.known(), flows.forgotten());
        status.counts.clone_from(&counted.counts);
        if status.error != counted.error {
            status.error.clone_from(&counted.error);
        }
    }
}

/// Processes the packets that an analyser has accepted, and counts them. Returns true if the analyser must not be
/// called again.
#[inline]
fn process(
    analyser: &mut dyn Analyser,
    states: &mut States,
    taken: u64,
    counted: &mut AnalyserStatus,
    fire: &impl Fn(Fired),
) -> bool {
    let mut fired = 0;
    let looked = analyser.look(&mut states.row_numbers, &mut |it| {
        fired += 1;
        fire(it);
    });
    states.settle();
    counted.fired += fired;
    match looked {
        Ok(()) => {
            counted.packets += taken;
            false
        }
        Err(trouble) => {
            counted.failed += taken;
            counted.error = Some(trouble.why);
            trouble.is_over
        }
    }
}

/// A guard that marks an analyser as active, and as inactive when the guard is dropped, whatever the cause.
pub(crate) struct Looking<'a>(&'a Shown);

impl<'a> Looking<'a> {
    /// Marks the analyser as active: dumps then end only after the analyser has processed their packets.
    pub(crate) fn at(shown: &'a Shown) -> Self {
        shown.analysed_ns.store(0, Ordering::Release);
        Self(shown)
    }
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.analysed_ns.store(u64::MAX, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::Facts;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn frame(flow: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([1; 6], [2; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1000 + flow, 53)
            .write(&mut frame, &[])
            .unwrap();
        frame
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Each flow has stored values of its own. A flow that was replaced in the table starts with values of 0 when
        /// it returns.
        #[test]
        fn flows_have_separate_counters_that_restart_at_zero_after_eviction(
            flows in proptest::collection::vec(0..200_u16, 1..2000),
            room in 1..300_usize,
            together in 1..TOGETHER,
        ) {
            let mut states = States::new(room, 2);
            // The number of packets of each flow since its first packet, as if no flow was ever replaced.
            let mut seen: HashMap<u16, f64> = HashMap::new();
            for (at, part) in flows.chunks(together).enumerate() {
                for flow in part {
                    let frame = frame(*flow);
                    let facts = Facts { time_ns: 1 + at as u64 * 10_000, wire_bytes: frame.len() as u32, ..Facts::default() };
                    let (row, sender) = states.row_of(&Record { facts, frame: &frame }).unwrap();
                    prop_assert_eq!(sender, 0);
                    let numbers = &mut states.row_numbers[row * 2..row * 2 + 2];
                    // The first number identifies the flow, the second one counts.
                    let begun = numbers[0] == 0.0;
                    prop_assert!(begun || numbers[0] == f64::from(*flow) + 1.0);
                    prop_assert!(!begun || numbers[1] == 0.0);
                    numbers[0] = f64::from(*flow) + 1.0;
                    numbers[1] += 1.0;
                    let count = seen.entry(*flow).or_default();
                    *count = if begun { 1.0 } else { *count + 1.0 };
                    prop_assert_eq!(numbers[1], *count);
                }
                states.settle();
            }
            if states.flows.forgotten() == 0 {
                for (flow, count) in seen {
                    prop_assert_eq!(count, flows.iter().filter(|it| **it == flow).count() as f64);
                }
            }
        }
    }
}
