//! RESEQUENCE: numbers the packets that enter a parallel part of the path, and restores their order after it.
//!
//! The number travels in a redundancy tag, the R-TAG of IEEE 802.1CB, section 7.8: EtherType 0xF1C1, two reserved
//! bytes, and two bytes of sequence number, after the VLAN tags. The reserved bytes, which receivers ignore, have the
//! group of flows that shares a number space. The order is restored by [`taut_function::reorder`].

mod tag;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use std::collections::VecDeque;
use std::time::Duration;
use tag::Tag;
use taut_function::reorder::{Arrival, MOST_WINDOW, Reorder, ReorderCounts};
use taut_function::tuple::Seen;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, KernelVersion, Needs, SettingsError, settings,
};
use taut_port::{BATCH_CAPACITY, Batch, Marks, Packet, PoolHandle, PortError};
use taut_settings::duration;
use taut_sys::Clock;

pub(crate) const ENTRY: Entry = Entry {
    name: "resequence",
    summary: "numbers packets before a parallel part of the path and restores their order behind it",
    class: Class::Advanced,
    ports: Some("number"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| Resequence::new(settings(table)?).map(|it| Box::new(it) as Box<dyn Function>),
    in_kernel: KernelVersion::No("it keeps packets back, which an XDP program cannot"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "number",
        "required",
        "ports of the parallel part: packets that leave through them get numbers, packets that arrive from them are \
         put in order",
    ),
    (
        "order",
        "`whole`",
        "`whole`: of all packets; `flow`: of the packets of each flow, in 64 groups of flows",
    ),
    (
        "wait",
        "`1ms`",
        "longest time for which a packet waits for earlier ones, up to `1s`",
    ),
    (
        "window",
        "256",
        "packets from the missing one to the last that may wait, 2 to 16384, rounded up to a power of two",
    ),
    (
        "late",
        "`send`",
        "packets that arrive after they were given up: `send` them out of order, or `drop` them",
    ),
];

/// The number of groups of flows with a number space of their own.
const GROUPS: usize = 64;

/// The limit on packets that wait, over all groups and ports.
const SLOTS: u32 = 4096;

/// The longest time that the setting for the wait may have.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The time of the measurement of the clock.
const CALIBRATION: Duration = Duration::from_millis(2);

/// The seed of the hash that assigns a flow to one of the [`GROUPS`] number spaces.
const SEED: u64 = 0x5345_5155;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Scope {
    #[default]
    Whole,
    Flow,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LateAction {
    #[default]
    Send,
    Drop,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    number: Vec<u8>,
    #[serde(default)]
    order: Scope,
    #[serde(default = "default_wait")]
    wait: String,
    #[serde(default = "default_window")]
    window: usize,
    #[serde(default)]
    late: LateAction,
}

fn default_wait() -> String {
    "1ms".to_string()
}

fn default_window() -> usize {
    256
}

/// A packet that waits or is about to leave, with its marks.
type Kept = (Packet, Marks);

/// The state of one port of the parallel part of the path.
struct Side {
    port: usize,
    /// The sequence number of the next packet to send, by group of flows.
    next: Vec<u16>,
    /// The received packets that wait for earlier ones, by group of flows.
    streams: Vec<Reorder<Kept>>,
    /// The released packets, in order, until a batch has space.
    ready: VecDeque<Kept>,
    /// The number of packets that wait, over all groups of flows.
    waiting: usize,
}

/// The numbers of packets by the result of numbering them or of restoring their order.
#[derive(Default)]
struct Counts {
    numbered: u64,
    in_order: u64,
    reordered: u64,
    late: u64,
    unnumbered: u64,
    elsewhere: u64,
    dropped_late: u64,
    duplicate: u64,
    no_space: u64,
}

struct Resequence {
    scope: Scope,
    late: LateAction,
    wait: Duration,
    window: usize,
    sides: Vec<Side>,
    pool: PoolHandle,
    out: Batch,
    counts: Counts,
}

impl Side {
    fn new(port: u8, groups: usize, window: usize, wait_ticks: u64) -> Self {
        Self {
            port: port.into(),
            next: vec![0; groups],
            streams: (0..groups)
                .map(|_| Reorder::new(window, wait_ticks))
                .collect(),
            ready: VecDeque::with_capacity(SLOTS as usize + BATCH_CAPACITY),
            waiting: 0,
        }
    }

    /// Releases the packets that have waited for an earlier packet for the maximum time.
    fn expire(&mut self, now_ticks: u64) {
        if self.waiting == 0 {
            return;
        }
        for stream in &mut self.streams {
            if stream.waiting() > 0 {
                let before = stream.waiting();
                stream.expire(now_ticks, &mut |kept| self.ready.push_back(kept));
                self.waiting -= before - stream.waiting();
            }
        }
    }
}

impl Resequence {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let Settings {
            number,
            order,
            wait,
            window,
            late,
        } = settings;
        let twice = |at: usize| number[..at].contains(&number[at]);
        if number.is_empty() || (0..number.len()).any(twice) {
            return Err(SettingsError(
                "number: expected one or more different ports, such as [1]".to_string(),
            ));
        }
        if !(2..=MOST_WINDOW).contains(&window) {
            return Err(SettingsError(format!(
                "window = {window}: expected 2 to {MOST_WINDOW} packets"
            )));
        }
        let limit = duration(&wait).filter(|it| !it.is_zero() && *it <= LONGEST_WAIT);
        let limit = limit.ok_or_else(|| {
            SettingsError(format!(
                "wait = \"{wait}\": expected a time up to 1s, such as 500us"
            ))
        })?;
        let mut made = Self {
            scope: order,
            late,
            wait: limit,
            window,
            sides: Vec::new(),
            pool: PoolHandle::new(SLOTS, false).map_err(|e| SettingsError(e.to_string()))?,
            out: Batch::new(),
            counts: Counts::default(),
        };
        made.set_ports(&number, u64::MAX);
        Ok(made)
    }

    /// Creates the state of the ports of the parallel part; a packet waits for `wait_ticks` at most.
    fn set_ports(&mut self, ports: &[u8], wait_ticks: u64) {
        let groups = match self.scope {
            Scope::Whole => 1,
            Scope::Flow => GROUPS,
        };
        let side = |port: &u8| Side::new(*port, groups, self.window, wait_ticks);
        self.sides = ports.iter().map(side).collect();
    }

    fn side(&self, port: usize) -> Option<usize> {
        self.sides.iter().position(|side| side.port == port)
    }

    /// Numbers the packets that leave through a port of the parallel part.
    fn number(&mut self, batch: &mut Batch, to_port: usize) {
        if batch.goes_together() && self.side(to_port).is_none() {
            return;
        }
        if self.scope == Scope::Flow {
            batch.read_headers();
        }
        for index in 0..batch.len() {
            if !batch.is_kept(index) {
                continue;
            }
            let Some(at) = self.side(batch.leaves_through(index, to_port)) else {
                continue;
            };
            let group = match self.scope {
                Scope::Whole => 0,
                Scope::Flow => {
                    let headers = batch.headers(index);
                    match Seen::of(&headers, batch.packets()[index].bytes()) {
                        Seen::Tuple(tuple) => tuple.flow_hash(SEED) as usize % GROUPS,
                        Seen::NoIp | Seen::Malformed => 0,
                    }
                }
            };
            let number = &mut self.sides[at].next[group];
            let tag = Tag {
                group: group as u16,
                number: *number,
            };
            if tag.insert(batch.packet_mut(index), &self.pool) {
                *number = number.wrapping_add(1);
                self.counts.numbered += 1;
            } else {
                batch.mark_dropped(index);
                self.counts.no_space += 1;
            }
        }
    }

    /// Puts packets from a port of the parallel part in order.
    fn restore(&mut self, at: usize, batch: &mut Batch, now_ticks: u64) {
        self.sides[at].expire(now_ticks);
        let passed = match self.sides[at].waiting == 0 && self.sides[at].ready.is_empty() {
            true => self.pass_due(at, batch),
            false => 0,
        };
        if passed == batch.len() && self.sides[at].ready.is_empty() {
            return;
        }
        self.out.clear();
        let mut index = 0;
        batch.take_marked(|packet, marks| {
            if index < passed || !marks.is_kept() {
                self.out.push_marked(packet, &marks);
            } else {
                self.arrive(at, packet, marks, now_ticks);
            }
            index += 1;
        });
        self.out.take_marked(|packet, marks| {
            batch.push_marked(packet, &marks);
        });
        let ready = &mut self.sides[at].ready;
        let fits = batch.room().min(ready.len());
        for (packet, marks) in ready.drain(..fits) {
            batch.push_marked(packet, &marks);
        }
    }

    /// Passes the first packets of a batch as long as each is due. Returns their number.
    #[inline]
    fn pass_due(&mut self, at: usize, batch: &mut Batch) -> usize {
        let side = &mut self.sides[at];
        for index in 0..batch.len() {
            if !batch.is_kept(index) {
                continue;
            }
            let Some((tag, offset)) = Tag::of(batch.packets()[index].bytes()) else {
                self.counts.unnumbered += 1;
                continue;
            };
            let group = usize::from(tag.group) % side.streams.len();
            if !side.streams[group].pass(tag.number) {
                return index;
            }
            Tag::remove(batch.packet_mut(index), offset, &self.pool);
            self.counts.in_order += 1;
        }
        batch.len()
    }

    /// Accepts a packet that may have to wait, or that is late.
    fn arrive(&mut self, at: usize, mut packet: Packet, marks: Marks, now_ticks: u64) {
        let side = &mut self.sides[at];
        let Some((tag, offset)) = Tag::of(packet.bytes()) else {
            self.counts.unnumbered += 1;
            side.ready.push_back((packet, marks));
            return;
        };
        Tag::remove(&mut packet, offset, &self.pool);
        let group = usize::from(tag.group) % side.streams.len();
        let stream = &mut side.streams[group];
        let (pool, ready) = (&self.pool, &mut side.ready);
        let before = stream.waiting();
        let kept = |(packet, marks): Kept| match copy(pool, &packet) {
            Some(copy) => Ok((copy, marks)),
            None => Err((packet, marks)),
        };
        let (arrival, back) =
            stream.arrive(tag.number, (packet, marks), now_ticks, kept, &mut |it| {
                ready.push_back(it);
            });
        side.waiting = side.waiting + stream.waiting() - before;
        match (arrival, back) {
            (Arrival::InOrder, _) => self.counts.in_order += 1,
            (Arrival::Early, _) => self.counts.reordered += 1,
            (Arrival::Late, Some(kept)) if self.late == LateAction::Send => {
                self.counts.late += 1;
                side.ready.push_back(kept);
            }
            (arrival, Some((packet, marks))) => {
                match arrival {
                    Arrival::Late => self.counts.dropped_late += 1,
                    _ => self.counts.duplicate += 1,
                }
                self.out.push_marked(packet, &marks);
                self.out.mark_dropped(self.out.len() - 1);
            }
            (_, None) => {}
        }
    }

    /// Returns the counters of the reordering buffers that count no packets by result, summed over all groups and
    /// ports.
    fn sums(&self) -> ReorderCounts {
        let streams = self.sides.iter().flat_map(|side| &side.streams);
        streams.fold(ReorderCounts::default(), |sum, stream| {
            let of_it = stream.counts();
            ReorderCounts {
                missing: sum.missing + of_it.missing,
                timeouts: sum.timeouts + of_it.timeouts,
                longest_ticks: sum.longest_ticks.max(of_it.longest_ticks),
                restarts: sum.restarts + of_it.restarts,
            }
        })
    }
}

/// Returns a copy of a packet from `pool`; none if the pool is empty or its slots are too small.
fn copy(pool: &PoolHandle, packet: &Packet) -> Option<Packet> {
    let mut copy = pool.take(u16::try_from(packet.len()).ok()?)?;
    copy.bytes_mut().copy_from_slice(packet.bytes());
    Some(copy)
}

impl Function for Resequence {
    fn needs(&self) -> Needs {
        Needs {
            empty_batches: EmptyBatches::Polls,
            ..Needs::default()
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let clock = Clock::calibrate(CALIBRATION);
        let wait_ticks = clock.to_ticks(self.wait.as_nanos() as f64) as u64;
        let ports: Vec<u8> = self.sides.iter().map(|side| side.port as u8).collect();
        self.set_ports(&ports, wait_ticks);
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        match self.side(context.from_port) {
            Some(at) => self.restore(at, batch, context.now_ticks),
            None if self.side(context.to_port).is_none() => {
                self.counts.elsewhere += batch.len() as u64 - u64::from(batch.dropped());
            }
            None => {}
        }
        if !batch.is_empty() {
            self.number(batch, context.to_port);
        }
    }

    fn held(&self) -> usize {
        let held = |side: &Side| side.waiting + side.ready.len();
        self.sides.iter().map(held).sum()
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let (counts, sums) = (&self.counts, self.sums());
        vec![
            ("numbered", counts.numbered),
            ("in order", counts.in_order),
            ("reordered", counts.reordered),
            ("late, sent out of order", counts.late),
            ("passed: no number", counts.unnumbered),
            ("passed: another port", counts.elsewhere),
            ("dropped: late", counts.dropped_late),
            ("dropped: duplicate", counts.duplicate),
            ("dropped: no space for a number", counts.no_space),
            ("missing numbers", sums.missing),
            ("waits that timed out", sums.timeouts),
            ("restarts of the sender", sums.restarts),
        ]
    }
}
