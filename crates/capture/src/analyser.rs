//! Analysers: code of others that sees packets, remembers numbers of each flow, and has triggers fire. (Gallenmüller 2021,
//! section 3.5: FlowScope's analysers.)
//!
//! Each has a thread and a reader of its own: a slow one misses packets, which is counted, and holds up nobody else.
//! What it remembers lies in a table of fixed size; where there is no room, the flow goes that was seen longest ago.

use crate::clock::PacketClock;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::flows::{BYTES_PER_FLOW, Flows, Seen, places_for};
use crate::lock;
use crate::record::Record;
use crate::ring::Reader;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_sys::filled_on_huge_pages;

/// Flows that an analyser can remember.
pub const MOST_FLOWS: usize = 10_000_000;
/// Packets that it looks at in one go, at most.
pub const TOGETHER: usize = 64;
/// Pause when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Its state is told this often.
const TELL: Duration = Duration::from_millis(50);

/// Looks at packets; one thread's.
pub trait Analyser {
    /// Numbers that it remembers of each flow.
    fn numbers(&self) -> usize;

    /// Takes a packet, [`TOGETHER`] at most until [`Analyser::look`]: with the row of its flow's numbers, and which end of
    /// the flow has sent it; none if it is no IP packet.
    fn take(&mut self, record: &Record<'_>, flow: Option<(usize, u8)>);

    /// Looks at what it has taken, and changes the numbers: rows of as many as it remembers. Calls `fire` for triggers.
    ///
    /// # Errors
    /// What went wrong. All packets that it has taken are gone then too.
    fn look(&mut self, rows: &mut [f64], fire: &mut dyn FnMut(Fired)) -> Result<(), Trouble>;

    /// What it counts itself, by name.
    fn counts(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// A trigger that an analyser has fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired {
    /// Number of the trigger.
    pub trigger: usize,
    /// Time of the packet for which it fires, nanoseconds since 1970; 0 is now.
    pub time_ns: u64,
    /// Why.
    pub cause: String,
}

/// What went wrong in an analyser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// In a line.
    pub why: String,
    /// Whether it is not to be asked again.
    pub is_over: bool,
}

/// Makes an analyser, on the thread that will have it.
pub type Make = Box<dyn FnOnce() -> Result<Box<dyn Analyser>, String> + Send>;

/// An analyser, as it is set up.
pub struct Settings {
    /// Name, for people.
    pub name: String,
    /// Packets that it sees.
    pub filter: Filter,
    /// Flows that are remembered.
    pub flows: usize,
    /// Makes it.
    pub make: Make,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Settings");
        shown.field("name", &self.name).field("flows", &self.flows);
        shown.finish_non_exhaustive()
    }
}

/// Bytes of memory that so many flows take, with so many numbers each.
pub fn bytes_for(flows: usize, numbers: usize) -> usize {
    flows * BYTES_PER_FLOW + places_for(flows) * numbers * size_of::<f64>()
}

/// State of an analyser, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnalyserStatus {
    /// Its name.
    pub name: String,
    /// Packets that it has looked at.
    pub packets: u64,
    /// Packets that were written over before it could.
    pub missed: u64,
    /// Packets that it was shown when it failed, or after.
    pub failed: u64,
    /// Flows that it has room for.
    pub room: u64,
    /// Flows that it remembers.
    pub known: u64,
    /// Flows that had to go for others.
    pub forgotten: u64,
    /// Triggers that it has had fire.
    pub fired: u64,
    /// What it counts itself, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, u64>,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What others see of an analyser.
#[derive(Debug)]
pub(crate) struct Shown {
    /// Time up to which it has looked at all packets.
    analysed_ns: AtomicU64,
    status: Mutex<AnalyserStatus>,
}

impl Shown {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            // Nobody has to be waited for before it has begun.
            analysed_ns: AtomicU64::new(u64::MAX),
            status: Mutex::new(AnalyserStatus {
                name: settings.name.clone(),
                room: settings.flows as u64,
                ..AnalyserStatus::default()
            }),
        }
    }

    /// Time up to which all packets were looked at. What fired for them was told before (acquire).
    pub(crate) fn analysed_ns(&self) -> u64 {
        self.analysed_ns.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> AnalyserStatus {
        lock(&self.status).clone()
    }
}

/// Numbers of flows.
struct States {
    flows: Flows,
    /// How many there are of each.
    each: usize,
    /// Of all places.
    numbers: Vec<f64>,
    /// Places of the flows in rows; none for one whose place another one has got meanwhile.
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

    /// The row of a packet's flow, and which end has sent the packet; none if it is no IP packet.
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
                    // Of a flow that had to go for this one.
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

    /// Takes the numbers of all rows back.
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

/// What an analyser's thread works with.
pub(crate) struct Analysing<'a> {
    pub(crate) shown: &'a Shown,
    pub(crate) reader: Reader,
    pub(crate) clock: PacketClock,
    /// Time after which packets with a stamp are taken to be readable.
    pub(crate) slack: Duration,
    pub(crate) filter: Filter,
    pub(crate) room: usize,
}

impl Analysing<'_> {
    /// Shows packets to an analyser until `is_over`, and all that is there then.
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
                let mut fired = 0;
                let looked = analyser.look(&mut states.row_numbers, &mut |it| {
                    fired += 1;
                    fire(it);
                });
                states.settle();
                counted.fired += fired;
                match looked {
                    Ok(()) => counted.packets += taken,
                    Err(trouble) => {
                        counted.failed += taken;
                        has_ended = trouble.is_over;
                        counted.error = Some(trouble.why);
                    }
                }
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
            // Release: what fired for packets up to there.
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

/// Says that somebody looks at packets there, and at its end that nobody does any more, whatever has ended it.
pub(crate) struct Looking<'a>(&'a Shown);

impl<'a> Looking<'a> {
    /// Holds back the end of all dumps until that one has looked at their packets.
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

        /// Whatever comes together: the numbers of a flow are what was made of them, from 0 on after it was forgotten.
        #[test]
        fn numbers_stay_with_their_flow(
            flows in proptest::collection::vec(0..200_u16, 1..2000),
            room in 1..300_usize,
            together in 1..TOGETHER,
        ) {
            let mut states = States::new(room, 2);
            // Packets of each flow since it began, as they would be if none was forgotten.
            let mut seen: HashMap<u16, f64> = HashMap::new();
            for (at, part) in flows.chunks(together).enumerate() {
                for flow in part {
                    let frame = frame(*flow);
                    let facts = Facts { time_ns: 1 + at as u64 * 10_000, wire_bytes: frame.len() as u32, ..Facts::default() };
                    let (row, sender) = states.row_of(&Record { facts, frame: &frame }).unwrap();
                    prop_assert_eq!(sender, 0);
                    let numbers = &mut states.row_numbers[row * 2..row * 2 + 2];
                    // The first number says whose they are, the second one counts.
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
