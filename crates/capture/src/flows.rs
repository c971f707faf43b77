//! A table of flows: statistics of each flow, and the flows with the highest rates at the moment. Memory is allocated
//! once, not per packet. (FlowScope has a flow tracker as well.)
//!
//! The slot of a flow has a cache line, and a byte of the flow's hash in an array of such bytes. A flow may be in any
//! of sixteen consecutive slots, beginning with the one that its hash selects. The bytes of all sixteen slots are
//! compared in one step, so a slot can be reassigned without a deletion mark. If all sixteen slots are in use, the
//! least recently seen flow is replaced. Packets are collected and looked up in batches, so that their cache misses
//! overlap.
//!
//! The flows with the highest rates in the last seconds are computed from samples: one of each `weight` packets, chosen
//! at random. The weight is 1 up to 32,768 packets per second. The cost per packet is one decrement of a counter. A
//! request for these flows takes 2 to 13 ms for any number of flows, and covers an exact time window. Alternatives cost
//! more: a decaying counter would need space in each line and a scan over all lines, and a sketch of frequent flows a
//! search for each packet. The rate of a flow with a fraction s of the packets has a relative standard error of at most
//! 1 / sqrt(65,536 s): 4 % for s = 0.01.

use crate::flow::Flow;
use crate::lock;
use crate::record::Record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_sys::filled_on_huge_pages;

/// Maximum number of flows of a table.
pub const MOST_FLOWS: usize = 100_000_000;
/// Number of bytes that a table takes for each flow.
pub const BYTES_PER_FLOW: usize = (size_of::<Line>() + 1) * PLACES / FLOWS;
/// Returns the approximate number of slots of a table with a capacity of this number of flows.
pub const fn places_for(flows: usize) -> usize {
    flows * PLACES / FLOWS
}
/// Maximum number of flows that are listed by bytes, and that are listed by packets.
pub const MOST_SHOWN: usize = 1000;

/// Number of slots for every [`FLOWS`] flows of capacity. In a table filled to its capacity, one flow in a thousand
/// finds no free slot.
const PLACES: usize = 7;
const FLOWS: usize = 4;
/// Number of table slots that may contain a given flow.
const GROUP: usize = 16;
/// Number of packets that are looked up together.
const TOGETHER: usize = 32;
/// Number of packet samples that are stored for the current rates.
const SAMPLES: usize = 1 << 16;
/// Target, ns, for the period that the stored samples cover.
const WINDOW_NS: u64 = 2_000_000_000;
/// Number of samples after which the sampling rate is checked.
const CHUNK: u64 = SAMPLES as u64 / 8;
/// Target, ns, for the time in which [`CHUNK`] samples are taken.
const CHUNK_NS: u64 = WINDOW_NS / 8;
/// Number of low bits by which times in nanoseconds are shortened in a line: the unit is 1.024 µs, and 48 bits cover
/// nine years.
const UNIT_SHIFT: u32 = 10;
const LONGEST_NUMBER: u64 = (1 << 48) - 1;
/// Timeout for a reply of the table's thread to a request for the status.
const PATIENCE: Duration = Duration::from_secs(2);

/// A number of 48 bits, in six bytes without alignment padding.
#[derive(Debug, Clone, Copy, Default)]
struct Number([u16; 3]);

impl Number {
    #[inline(always)]
    fn get(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 16 | u64::from(self.0[2]) << 32
    }

    #[inline(always)]
    fn of(value: u64) -> Self {
        let value = value.min(LONGEST_NUMBER);
        Self([value as u16, (value >> 16) as u16, (value >> 32) as u16])
    }
}

/// The statistics of a flow, in a cache line ("line"). A line without packets is free.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Line {
    addresses: (u128, u128),
    bytes: u64,
    ports: (u16, u16),
    protocol: u8,
    tcp_flags: u8,
    packets: Number,
    /// Time of the first packet, in units of 1.024 µs since the table began; `last` is the time of the last packet.
    first: Number,
    last: Number,
}

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    #[inline(always)]
    fn is_of(&self, flow: &Flow) -> bool {
        let addresses =
            (self.addresses.0 ^ flow.addresses.0) | (self.addresses.1 ^ flow.addresses.1);
        let ends = (self.ports, self.protocol) == (flow.ports, flow.protocol);
        (addresses == 0) & ends
    }

    fn flow(&self) -> Flow {
        Flow {
            addresses: self.addresses,
            ports: self.ports,
            protocol: self.protocol,
        }
    }
}

/// The properties of a packet that the table counts.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Flow of the packet.
    pub flow: Flow,
    /// Flags of the packet's TCP header, 0 if it has none.
    pub tcp_flags: u8,
    /// Length of the packet's frame on the wire, bytes.
    pub bytes: u32,
    /// Timestamp of the packet, nanoseconds since 1970.
    pub time_ns: u64,
}

impl Seen {
    /// Returns the properties of a packet; none if it is no IP packet.
    #[inline]
    pub fn of(record: &Record<'_>) -> Option<Self> {
        let (flow, tcp_flags, _) = Flow::with_tcp_flags(record)?;
        Some(Self {
            flow,
            tcp_flags,
            bytes: record.facts.wire_bytes,
            time_ns: record.facts.time_ns,
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    seen: Seen,
    hash: u64,
    /// Slot of the flow as found by the first look-up; the slot may be reassigned before the packet is counted.
    place: usize,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    time_ns: u64,
    place: u32,
    /// Part of the flow's hash, by which a later check detects that the slot was reassigned.
    hash: u32,
    bytes: u32,
    /// Number of packets that the sample represents.
    weight: u32,
}

/// The status of a flow, for users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowStatus {
    /// IP protocol.
    pub protocol: u8,
    /// Addresses of both endpoints.
    pub addresses: [IpAddr; 2],
    /// Ports of both endpoints, 0 if there are none.
    pub ports: [u16; 2],
    /// Packets in both directions.
    pub packets: u64,
    /// Sum of the lengths of the packets' frames on the wire, bytes.
    pub bytes: u64,
    /// Time of the first packet, to a microsecond, nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of the last packet, nanoseconds since 1970.
    pub last_ns: u64,
    /// All flags that occurred in TCP headers: FIN is 1, SYN 2, RST 4, PSH 8, ACK 16.
    pub tcp_flags: u8,
    /// Current packet rate, packets per second, averaged over about the last two seconds; 0 if it was not computed.
    pub packets_per_second: u64,
    /// Current bit rate of the frames, bits per second, averaged over about the last two seconds; 0 if it was not
    /// computed.
    pub bits_per_second: u64,
}

/// Writes both endpoints and the protocol of the flow.
impl fmt::Display for FlowStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            1 => write!(f, "ICMP")?,
            6 => write!(f, "TCP")?,
            17 => write!(f, "UDP")?,
            58 => write!(f, "ICMPv6")?,
            132 => write!(f, "SCTP")?,
            other => write!(f, "protocol {other}")?,
        }
        let end = |at: usize| match self.ports {
            [0, 0] => self.addresses[at].to_string(),
            ports => SocketAddr::new(self.addresses[at], ports[at]).to_string(),
        };
        write!(f, " {} - {}", end(0), end(1))
    }
}

/// The flows of a table with the highest rates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Top {
    /// Flows with the most bytes per second, in descending order.
    pub by_bytes: Vec<FlowStatus>,
    /// Flows with the most packets per second, in descending order.
    pub by_packets: Vec<FlowStatus>,
}

/// The status of a table of flows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowsStatus {
    /// Capacity of the table in flows.
    pub room: u64,
    /// Number of flows in the table.
    pub known: u64,
    /// Flows that newer flows have replaced in the table.
    pub forgotten: u64,
    /// Flows with the highest current rates.
    pub top: Vec<FlowStatus>,
}

/// The rate by which flows are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Flows with the most bytes come first.
    #[default]
    Bytes,
    /// Flows with the most packets come first.
    Packets,
}

/// A table of flows with the statistics of each.
#[derive(Debug)]
pub struct Flows {
    lines: Vec<Line>,
    /// One byte of the hash of the flow in each line, 0 for a free line.
    tags: Vec<u8>,
    /// Number of slots that a flow's hash may select as the flow's first one.
    homes: u64,
    seeds: [u64; 4],
    waiting: Vec<Waiting>,
    /// Time at which the table began, ns since 1970.
    begun_ns: u64,
    known: u64,
    forgotten: u64,
    samples: Samples,
}

/// The samples of packets from which the current rates of flows are computed.
#[derive(Debug)]
struct Samples {
    kept: Vec<Sample>,
    next: usize,
    weight: u32,
    /// Remaining packets in the group of `weight` packets of which one is sampled; `pick` is the value of `left` at
    /// which a packet is sampled.
    left: u32,
    pick: u32,
    random: u64,
    chunk_began_ns: u64,
    taken: u64,
    /// Memory for computing the flows with the highest rates; `order` and `sums` are reused by the next request.
    order: Vec<u32>,
    sums: Vec<Sum>,
}

/// The sum over the samples of one flow.
#[derive(Debug, Clone, Copy)]
struct Sum {
    place: u32,
    packets: u64,
    bytes: u64,
}

/// Returns the exclusive or of the two halves of the 128-bit product of `a` and `b`.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

impl Flows {
    /// Creates a table for the given number of flows.
    pub fn new(room: usize) -> Self {
        let homes = (room.clamp(1, MOST_FLOWS) * PLACES).div_ceil(FLOWS);
        let places = homes + GROUP - 1;
        let mut random = RandomState::new().build_hasher();
        // The secret seed prevents an attacker from choosing flows that share a slot.
        let mut seed = || {
            random.write_u8(0);
            random.finish() | 1
        };
        Self {
            lines: filled_on_huge_pages(places, Line::default),
            tags: filled_on_huge_pages(places, || 0),
            homes: homes as u64,
            seeds: std::array::from_fn(|_| seed()),
            waiting: Vec::with_capacity(TOGETHER),
            begun_ns: 0,
            known: 0,
            forgotten: 0,
            samples: Samples::new(seed()),
        }
    }

    /// Accepts a packet, which is counted when a batch of packets is complete, or by [`Flows::settle`].
    #[inline]
    pub fn see(&mut self, seen: Seen) {
        let hash = hash(&self.seeds, &seen.flow);
        self.waiting.push(Waiting {
            seen,
            hash,
            place: 0,
        });
        if self.waiting.len() == TOGETHER {
            self.settle();
        }
    }

    /// Counts the pending packets in the table.
    pub fn settle(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        if let Some(first) = waiting.first()
            && self.begun_ns == 0
        {
            self.begun_ns = first.seen.time_ns;
            self.samples.chunk_began_ns = first.seen.time_ns;
        }
        // No iteration depends on an earlier one, so that the cache misses of all iterations overlap.
        for it in &mut waiting {
            let home = self.home(it.hash);
            let same = self.same_tags(home, tag(it.hash));
            it.place = match same {
                0 => home,
                same => home + first_of(same),
            };
        }
        let mut found = 0_u32;
        for it in &waiting {
            found += u32::from(self.lines[it.place].is_of(&it.seen.flow));
        }
        // The slot found here may be reassigned before this packet is counted, so it is looked up again.
        std::hint::black_box(found);
        for it in &waiting {
            let is_there = self.lines[it.place].is_of(&it.seen.flow) && self.tags[it.place] != 0;
            let place = if is_there {
                it.place
            } else {
                self.place_of(it)
            };
            self.count(place, &it.seen);
            self.samples.see(place, it);
        }
        waiting.clear();
        self.waiting = waiting;
    }

    /// Returns the number of slots of the table.
    pub fn places(&self) -> usize {
        self.lines.len()
    }

    /// Counts a packet immediately; returns the slot of its flow, and whether the flow is new there. A flow keeps its
    /// slot until it is replaced.
    pub fn place(&mut self, seen: Seen) -> (usize, bool) {
        if self.begun_ns == 0 {
            self.begun_ns = seen.time_ns;
        }
        let hash = hash(&self.seeds, &seen.flow);
        let place = self.place_of(&Waiting {
            seen,
            hash,
            place: 0,
        });
        let is_new = self.lines[place].packets.get() == 0;
        self.count(place, &seen);
        (place, is_new)
    }

    /// Returns the first of the consecutive slots in which a flow may be.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * u128::from(self.homes)) >> 64) as usize
    }

    /// Returns one byte for each slot from `home` on, with a bit set if the slot has the hash byte `tag`. Bits after
    /// the first set bit may be wrong.
    #[inline(always)]
    fn same_tags(&self, home: usize, tag: u8) -> u128 {
        const ONES: u128 = u128::MAX / 0xff;
        let mut bytes = [0; GROUP];
        bytes.copy_from_slice(&self.tags[home..home + GROUP]);
        let differ = u128::from_le_bytes(bytes) ^ (ONES * u128::from(tag));
        differ.wrapping_sub(ONES) & !differ & (ONES << 7)
    }

    /// Returns the slot of a packet's flow; inserts the flow if it is not in the table.
    fn place_of(&mut self, it: &Waiting) -> usize {
        let home = self.home(it.hash);
        let tag = tag(it.hash);
        let mut same = self.same_tags(home, tag);
        while same != 0 {
            let place = home + first_of(same);
            if self.tags[place] == tag && self.lines[place].is_of(&it.seen.flow) {
                return place;
            }
            same &= same - 1;
        }
        let free = self.same_tags(home, 0);
        let place = match free {
            // Only the lowest set bit is always correct.
            0 => {
                self.forgotten += 1;
                self.known -= 1;
                let group = home..home + GROUP;
                let last = |place: &usize| self.lines[*place].last.get();
                group.min_by_key(last).unwrap_or(home)
            }
            free => home + first_of(free),
        };
        self.known += 1;
        self.tags[place] = tag;
        self.lines[place] = Line {
            addresses: it.seen.flow.addresses,
            ports: it.seen.flow.ports,
            protocol: it.seen.flow.protocol,
            first: self.since_begin(it.seen.time_ns),
            ..Line::default()
        };
        place
    }

    #[inline(always)]
    fn since_begin(&self, time_ns: u64) -> Number {
        Number::of(time_ns.saturating_sub(self.begun_ns) >> UNIT_SHIFT)
    }

    #[inline(always)]
    fn count(&mut self, place: usize, seen: &Seen) {
        let last = self.since_begin(seen.time_ns);
        let line = &mut self.lines[place];
        line.packets = Number::of(line.packets.get() + 1);
        line.bytes += u64::from(seen.bytes);
        line.last = last;
        line.tcp_flags |= seen.tcp_flags;
    }

    /// Returns the number of flows in the table.
    pub fn known(&self) -> u64 {
        self.known
    }

    /// Returns the number of flows that newer flows have replaced.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns all flows in the table, without their current rates.
    pub fn all(&self) -> impl Iterator<Item = (Flow, FlowStatus)> + '_ {
        let known = self.lines.iter().filter(|it| it.packets.get() > 0);
        known.map(|line| (line.flow(), self.status(line)))
    }

    fn status(&self, line: &Line) -> FlowStatus {
        let address = |bits| IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical();
        let time_ns = |time: Number| self.begun_ns + (time.get() << UNIT_SHIFT);
        FlowStatus {
            protocol: line.protocol,
            addresses: [address(line.addresses.0), address(line.addresses.1)],
            ports: [line.ports.0, line.ports.1],
            packets: line.packets.get(),
            bytes: line.bytes,
            first_ns: time_ns(line.first),
            last_ns: time_ns(line.last),
            tcp_flags: line.tcp_flags,
            packets_per_second: 0,
            bits_per_second: 0,
        }
    }

    /// Returns the flows of the last two seconds with the highest rates: up to `most` by bytes, and up to `most` by
    /// packets. Replaced flows are missing.
    pub fn top(&mut self, most: usize, now_ns: u64) -> Top {
        self.settle();
        let from_ns = now_ns.saturating_sub(WINDOW_NS).max(self.begun_ns);
        let samples = &self.samples;
        // If samples arrive too fast, the stored samples cover a shorter time.
        let from_ns = match samples.kept.get(samples.next) {
            Some(oldest) => from_ns.max(oldest.time_ns),
            None => from_ns,
        };
        let seconds = now_ns.saturating_sub(from_ns).max(1_000_000) as f64 / 1e9;
        let (lines, seeds) = (&self.lines, &self.seeds);
        let mut sums = self.samples.sums(from_ns, |place, part| {
            hash(seeds, &lines[place].flow()) as u32 == part
        });
        let mut sorted = |key: fn(&Sum) -> u64| {
            let most = most.min(sums.len());
            if most > 0 {
                sums.select_nth_unstable_by_key(most - 1, |it| std::cmp::Reverse(key(it)));
                sums[..most].sort_unstable_by_key(|it| std::cmp::Reverse((key(it), it.place)));
            }
            let shown = sums[..most].iter().map(|it| FlowStatus {
                packets_per_second: (it.packets as f64 / seconds).round() as u64,
                bits_per_second: (it.bytes as f64 * 8.0 / seconds).round() as u64,
                ..self.status(&self.lines[it.place as usize])
            });
            shown.collect()
        };
        let top = Top {
            by_bytes: sorted(|it| it.bytes),
            by_packets: sorted(|it| it.packets),
        };
        self.samples.sums = sums;
        top
    }

    /// Counts the pending packets, and publishes the status of the table to other threads.
    pub fn tell(&mut self, shown: &Shown, now_ns: u64) {
        self.settle();
        self.samples.pace(now_ns);
        shown.known.store(self.known, Ordering::Relaxed);
        shown.forgotten.store(self.forgotten, Ordering::Relaxed);
        if shown.asked.swap(false, Ordering::Acquire) {
            let top = self.top(MOST_SHOWN, now_ns);
            *lock(&shown.top) = top;
            // Release: a thread that sees this value finds the reply.
            shown.answers.fetch_add(1, Ordering::Release);
        }
    }
}

/// Returns the hash of a flow with the given random seeds.
#[inline(always)]
fn hash(seeds: &[u64; 4], flow: &Flow) -> u64 {
    let [a, b, c, d] = *seeds;
    let (one, other) = flow.addresses;
    let ends = fold(one as u64 ^ a, (one >> 64) as u64 ^ b)
        ^ fold(other as u64 ^ c, (other >> 64) as u64 ^ d).rotate_left(29);
    let rest =
        u64::from(flow.ports.0) | u64::from(flow.ports.1) << 16 | u64::from(flow.protocol) << 32;
    fold(ends ^ a, fold(rest ^ d, b))
}

/// Returns the byte of a flow's hash that is stored in `tags`, never 0. The highest bits of the hash select the slot.
#[inline(always)]
fn tag(hash: u64) -> u8 {
    (hash as u8).max(1)
}

/// Returns the index, from 0, of the first byte that has a bit set; 16 if no bit is set.
#[inline(always)]
fn first_of(bits: u128) -> usize {
    bits.trailing_zeros() as usize / 8
}

impl Samples {
    fn new(random: u64) -> Self {
        Self {
            kept: Vec::with_capacity(SAMPLES),
            next: 0,
            weight: 1,
            left: 1,
            pick: 0,
            random,
            chunk_began_ns: 0,
            taken: 0,
            order: Vec::with_capacity(SAMPLES),
            sums: Vec::with_capacity(SAMPLES),
        }
    }

    #[inline(always)]
    fn see(&mut self, place: usize, it: &Waiting) {
        self.left -= 1;
        if self.left == self.pick {
            self.take(Sample {
                time_ns: it.seen.time_ns,
                place: place as u32,
                hash: it.hash as u32,
                bytes: it.seen.bytes,
                weight: self.weight,
            });
        }
        if self.left == 0 {
            self.draw();
        }
    }

    /// Draws which of the next packets is sampled.
    fn draw(&mut self) {
        // xorshift64, Marsaglia 2003.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left = self.weight;
        self.pick = ((u128::from(self.random) * u128::from(self.weight)) >> 64) as u32;
    }

    fn take(&mut self, sample: Sample) {
        match self.kept.get_mut(self.next) {
            Some(oldest) => *oldest = sample,
            None => self.kept.push(sample),
        }
        self.next = (self.next + 1) % SAMPLES;
        self.taken += 1;
        if self.taken == CHUNK {
            self.pace(sample.time_ns);
        }
    }

    /// Samples fewer packets if samples arrive faster than the target rate, and more packets if they arrive more
    /// slowly.
    fn pace(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.chunk_began_ns);
        if self.taken < CHUNK && elapsed_ns < 2 * CHUNK_NS {
            return;
        }
        let too_fast =
            self.taken as f64 / CHUNK as f64 * CHUNK_NS as f64 / elapsed_ns.max(1) as f64;
        let before = self.weight;
        self.weight = (f64::from(before) * too_fast.min(64.0))
            .clamp(1.0, 1e9)
            .ceil() as u32;
        (self.taken, self.chunk_began_ns) = (0, now_ns);
        // The position of the next sample is drawn again: the position drawn with the former high weight may lie far
        // ahead.
        if self.weight < before {
            self.draw();
        }
    }

    /// Returns the sum of each flow's samples since `from_ns`. `is_there` returns true if the slot still belongs to the
    /// flow with the given hash; other flows are omitted.
    fn sums(&mut self, from_ns: u64, is_there: impl Fn(usize, u32) -> bool) -> Vec<Sum> {
        let kept = &self.kept;
        self.order.clear();
        let recent = (0..kept.len() as u32).filter(|at| kept[*at as usize].time_ns >= from_ns);
        self.order.extend(recent);
        let flow = |at: u32| (kept[at as usize].place, kept[at as usize].hash);
        self.order.sort_unstable_by_key(|at| flow(*at));
        let mut sums = std::mem::take(&mut self.sums);
        sums.clear();
        for of_flow in self.order.chunk_by(|a, b| flow(*a) == flow(*b)) {
            let (place, hash) = flow(of_flow[0]);
            if !is_there(place as usize, hash) {
                continue;
            }
            let mut sum = Sum {
                place,
                packets: 0,
                bytes: 0,
            };
            for at in of_flow {
                let sample = &kept[*at as usize];
                sum.packets += u64::from(sample.weight);
                sum.bytes += u64::from(sample.weight) * u64::from(sample.bytes);
            }
            sums.push(sum);
        }
        sums
    }
}

/// The status of a flow table in a form that other threads can read.
#[derive(Debug, Default)]
pub struct Shown {
    room: u64,
    known: AtomicU64,
    forgotten: AtomicU64,
    /// True if another thread requests the flows with the highest rates.
    asked: AtomicBool,
    answers: AtomicU64,
    top: Mutex<Top>,
}

impl Shown {
    /// Creates the status for a table of the given capacity.
    pub fn new(room: usize) -> Self {
        Self {
            room: room as u64,
            ..Self::default()
        }
    }

    /// Returns the status, with up to `most` flows of the highest rates at the last request, sorted by `by`.
    pub fn status(&self, most: usize, by: By) -> FlowsStatus {
        self.asked.store(true, Ordering::Release);
        let top = lock(&self.top);
        let top = match by {
            By::Bytes => &top.by_bytes,
            By::Packets => &top.by_packets,
        };
        FlowsStatus {
            room: self.room,
            known: self.known.load(Ordering::Relaxed),
            forgotten: self.forgotten.load(Ordering::Relaxed),
            top: top.iter().take(most).cloned().collect(),
        }
    }

    /// Returns the current status with up to `most` flows sorted by `by`, or the previous status if the table's thread
    /// does not reply in time.
    pub fn status_now(&self, most: usize, by: By) -> FlowsStatus {
        let before = self.answers.load(Ordering::Acquire);
        let deadline = Instant::now() + PATIENCE;
        self.asked.store(true, Ordering::Release);
        while self.answers.load(Ordering::Acquire) == before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.status(most, by)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const BEGUN_NS: u64 = 1_700_000_000_000_000_000;
    /// Resolution of the times in a line of the table, ns.
    const UNIT_NS: u64 = 1 << UNIT_SHIFT;

    fn flow(number: u32) -> Flow {
        // The flows are IPv4 and IPv6, with and without ports, and one has only zeros.
        let number = u128::from(number);
        Flow {
            addresses: match number % 2 {
                0 => (number, number * 3),
                _ => (0xffff_0a00_0000 + number, 0xffff_0b00_0000),
            },
            ports: ((number % 7) as u16, (number % 5) as u16),
            protocol: [0, 6, 17][number as usize % 3],
        }
    }

    fn seen(number: u32, bytes: u32, time_ns: u64) -> Seen {
        Seen {
            flow: flow(number),
            tcp_flags: 1 << (bytes % 8),
            bytes,
            time_ns,
        }
    }

    #[derive(Debug, Default, Clone, PartialEq)]
    struct Expected {
        packets: u64,
        bytes: u64,
        first_ns: u64,
        last_ns: u64,
        tcp_flags: u8,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A table with enough space counts like a map. A table without enough space replaces the least recently seen
        /// flow of a group, and its counts of the remaining flows are correct.
        #[test]
        fn flow_tables_and_hash_maps_give_equal_packet_counts(
            room in prop_oneof![Just(4000_usize), 1..40_usize],
            packets in prop::collection::vec((0..200_u32, 1..1519_u32, 0..5_000_000_u64), 1..2000),
        ) {
            let mut flows = Flows::new(room);
            let mut map: HashMap<u32, Expected> = HashMap::new();
            let mut time_ns = BEGUN_NS;
            let mut new = 0;
            for (number, bytes, pause_ns) in packets {
                time_ns += pause_ns;
                let seen = seen(number, bytes, time_ns);
                let tcp_flags = seen.tcp_flags;
                flows.see(seen);
                if room < 200 {
                    flows.settle();
                    let is_new = {
                        let all: HashMap<_, _> = flows.all().collect();
                        all[&flow(number)].packets == 1
                    };
                    if is_new {
                        map.remove(&number);
                        new += 1;
                    }
                }
                let it = map.entry(number).or_insert_with(|| {
                    Expected { first_ns: time_ns, ..Expected::default() }
                });
                it.packets += 1;
                it.bytes += u64::from(bytes);
                it.last_ns = time_ns;
                it.tcp_flags |= tcp_flags;
            }
            flows.settle();
            let all: HashMap<_, _> = flows.all().collect();
            prop_assert_eq!(all.len() as u64, flows.known());
            if room >= 200 {
                prop_assert_eq!(flows.forgotten(), 0);
                prop_assert_eq!(all.len(), map.len());
            } else {
                prop_assert_eq!(flows.known() + flows.forgotten(), new);
                prop_assert!(all.len() <= room * 7 / 4 + GROUP);
            }
            for (number, it) in map {
                let Some(found) = all.get(&flow(number)) else {
                    prop_assert!(room < 200);
                    continue;
                };
                prop_assert_eq!((found.packets, found.bytes, found.tcp_flags), (it.packets, it.bytes, it.tcp_flags));
                prop_assert!(found.first_ns <= it.first_ns && found.first_ns + UNIT_NS > it.first_ns);
                prop_assert!(found.last_ns <= it.last_ns && found.last_ns + UNIT_NS > it.last_ns);
            }
        }

        #[test]
        fn a_48_bit_counter_saturates_and_does_not_wrap(value in any::<u64>()) {
            prop_assert_eq!(Number::of(value).get(), value.min(LONGEST_NUMBER));
        }

        /// The search finds all bytes equal to the tag. The first match is always correct; after it, there may be wrong
        /// ones.
        #[test]
        fn a_tag_search_finds_the_first_match_in_a_group(tags in prop::array::uniform16(0..4_u8), tag in 0..4_u8) {
            let mut flows = Flows::new(16);
            flows.tags[..GROUP].copy_from_slice(&tags);
            let bits = flows.same_tags(0, tag);
            match tags.iter().position(|it| *it == tag) {
                Some(at) => prop_assert_eq!(first_of(bits), at),
                None => prop_assert_eq!(bits, 0),
            }
            for (at, it) in tags.iter().enumerate() {
                prop_assert!(*it != tag || bits >> (8 * at) & 0x80 != 0);
            }
        }
    }

    #[test]
    fn the_least_recently_updated_flow_is_evicted() {
        // The table is so small that nearly all its slots form one group.
        let mut flows = Flows::new(1);
        for number in 0..16 {
            flows.see(seen(number, 100, BEGUN_NS + u64::from(number) * 1_000_000));
        }
        flows.see(seen(0, 100, BEGUN_NS + 20_000_000));
        flows.settle();
        let known = |flows: &Flows| -> Vec<Flow> { flows.all().map(|it| it.0).collect() };
        assert_eq!(flows.forgotten(), 16 - flows.known());
        let before = flows.forgotten();
        flows.see(seen(99, 100, BEGUN_NS + 21_000_000));
        flows.settle();
        let found = known(&flows);
        assert!(found.contains(&flow(0)) && found.contains(&flow(99)));
        assert!(flows.forgotten() <= before + 1);
    }

    #[test]
    fn a_flow_table_filled_to_capacity_evicts_few_flows() {
        let room = 100_000;
        let mut flows = Flows::new(room);
        for number in 0..room as u32 {
            flows.see(seen(number, 100, BEGUN_NS + u64::from(number)));
        }
        flows.settle();
        assert!(
            flows.forgotten() < room as u64 / 300,
            "{}",
            flows.forgotten()
        );
        assert_eq!(flows.known() + flows.forgotten(), room as u64);
    }

    #[test]
    fn flows_are_printed_with_their_addresses_protocol_and_known_ports() {
        let flows = Flows::new(1);
        let mut flow = FlowStatus {
            addresses: ["10.0.0.1", "fd00::1"].map(|it| it.parse().unwrap()),
            ports: [80, 1000],
            protocol: 6,
            ..flows.status(&Line::default())
        };
        assert_eq!(flow.to_string(), "TCP 10.0.0.1:80 - [fd00::1]:1000");
        (flow.protocol, flow.ports) = (89, [0, 0]);
        assert_eq!(flow.to_string(), "protocol 89 10.0.0.1 - fd00::1");
    }

    #[test]
    fn low_rate_packets_are_all_sampled_and_old_rates_expire() {
        let mut flows = Flows::new(100);
        let mut time_ns = BEGUN_NS;
        for round in 0..4000_u32 {
            time_ns += 1_000_000;
            // The first flow sends more bytes, the second flow more packets.
            flows.see(seen(1, 1500, time_ns));
            for _ in 0..2 {
                flows.see(seen(2, 100, time_ns));
            }
            if round < 1000 {
                flows.see(seen(3, 9000, time_ns));
            }
        }
        let top = flows.top(10, time_ns);
        let shown = |top: &[FlowStatus]| -> Vec<_> {
            let all = top
                .iter()
                .map(|it| (it.bits_per_second, it.packets_per_second));
            all.collect()
        };
        assert_eq!(
            shown(&top.by_bytes),
            [(12_006_000, 1001), (1_600_800, 2001)]
        );
        assert_eq!(
            shown(&top.by_packets),
            [(1_600_800, 2001), (12_006_000, 1001)]
        );
        assert_eq!(top.by_bytes[0].packets, 4000);
        assert_eq!(flows.top(1, time_ns).by_packets.len(), 1);
        assert_eq!(flows.top(10, time_ns + 3_000_000_000), Top::default());
    }

    /// A million packets per second, a tenth of which belong to one flow, are followed by very few packets; the
    /// reported rates stay accurate.
    #[test]
    fn estimated_packet_rates_stay_accurate_when_the_load_drops() {
        let mut flows = Flows::new(2000);
        let mut random = fastrand::Rng::with_seed(3);
        let mut time_ns = BEGUN_NS;
        for number in 0..3_000_000_u32 {
            time_ns += 1000;
            let of = match random.u8(..10) {
                0 => 0,
                _ => random.u32(1..1000),
            };
            flows.see(seen(of, 1000, time_ns));
            if number % 4096 == 0 {
                flows.settle();
                flows.samples.pace(time_ns);
            }
        }
        let top = flows.top(3, time_ns);
        let most = &top.by_packets[0];
        let off = most.packets_per_second as f64 / 1e5 - 1.0;
        // The bound is five standard errors of half of the samples, which is their number after the sampling rate was
        // halved.
        assert!(off.abs() < 5.0 / (32_768.0_f64 * 0.1).sqrt(), "{off}");
        assert!(top.by_packets[1].packets_per_second < 3_000);
        // These packets arrive for four seconds, and the sampling rate is checked again after each half second.
        for _ in 0..400 {
            time_ns += 10_000_000;
            flows.samples.pace(time_ns);
            flows.see(seen(5, 1000, time_ns));
            flows.settle();
        }
        // All packets of the second before this one were sampled.
        time_ns += 1_000_000_000;
        let top = flows.top(3, time_ns);
        let of_five = top
            .by_packets
            .iter()
            .find(|it| it.packets == top.by_packets[0].packets);
        assert!(of_five.unwrap().packets_per_second >= 25, "{top:?}");
    }

    #[test]
    fn status_requests_return_previous_counts_unless_current_counts_are_requested() {
        let mut flows = Flows::new(10);
        let shown = Shown::new(10);
        flows.see(seen(1, 100, BEGUN_NS));
        flows.tell(&shown, BEGUN_NS + 1_000_000_000);
        let status = shown.status(10, By::Bytes);
        assert_eq!((status.room, status.known, status.forgotten), (10, 1, 0));
        assert_eq!(status.top, []);
        flows.tell(&shown, BEGUN_NS + 1_000_000_000);
        assert_eq!(shown.status(10, By::Packets).top[0].bits_per_second, 800);
        assert_eq!(shown.status(0, By::Packets).top, []);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| shown.status_now(10, By::Bytes));
            while !asking.is_finished() {
                flows.tell(&shown, BEGUN_NS + 1_000_000_000);
            }
            assert_eq!(asking.join().unwrap().top.len(), 1);
        });
    }
}
