//! Loses, duplicates, delays, reorders, or corrupts packets on purpose: a device with known faults, to test a measuring
//! instrument. It chooses packets at random from a seed, or exactly the listed ones.
//!
//! It is the only function that changes the order of a batch. It stores copies of the packets that later packets
//! overtake, so that no ring waits for them. It releases the copies with empty batches as well ([`EmptyBatches`]).

use fastrand::Rng;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, KernelVersion, Needs, SettingsError, settings,
};
use taut_port::{Batch, Marks, Packet, PoolHandle, PortError};
use taut_settings::duration;
use taut_wire::claimed_stamp;

pub(crate) const ENTRY: Entry = Entry {
    name: "impair",
    summary: "loses, duplicates, reorders, delays or corrupts packets on purpose",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        let settings: Settings = settings(table)?;
        Ok(Box::new(Impair::new(settings)?) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("it keeps packets back, which an XDP program cannot"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "loss, duplicate, reorder, delay, corrupt",
        "0",
        "fractions of the packets, 0 to 1, with a sum of at most 1",
    ),
    (
        "lose_at, duplicate_at, reorder_at, delay_at, corrupt_at",
        "`[]`",
        "numbers of packets, counted from 0 in each direction as they arrive",
    ),
    ("distance", "3", "packets that overtake a reordered one"),
    (
        "delay_time",
        "`1ms`",
        "wait of a delayed packet, up to `1s`; others overtake it",
    ),
    (
        "seed",
        "1",
        "of the random choices: the same seed and packets give the same faults",
    ),
    (
        "log",
        "none",
        "CSV file, overwritten: `packet` (numbered as above), `to_port`, `flow` and `sequence` (of the \
         measurement stamp, if any), `action` (`lose`, `duplicate`, `reorder`, `delay`, `corrupt`)",
    ),
];

/// The limit on packets that are delayed or duplicated at a time.
const SLOTS: u32 = 1024;

/// The time after which a reordered packet leaves even if no packet has overtaken it. A load generator waits longer
/// than this for late packets.
const LONGEST_HOLD: Duration = Duration::from_millis(5);

/// The longest delay that the settings may give packets.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The number of packet counters: one for each egress port.
const DIRECTIONS: usize = 64;

/// The size of a write to the log, in bytes.
const LOG_BYTES: usize = 1 << 20;

/// The number of bytes at the start of a timestamp record that are never corrupted: magic, flow and sequence number.
/// The receiver can therefore still identify the packet.
const SPARED_BYTES: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Settings {
    seed: u64,
    loss: f64,
    duplicate: f64,
    reorder: f64,
    delay: f64,
    corrupt: f64,
    lose_at: Vec<u64>,
    duplicate_at: Vec<u64>,
    reorder_at: Vec<u64>,
    delay_at: Vec<u64>,
    corrupt_at: Vec<u64>,
    distance: u16,
    delay_time: String,
    log: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            delay: 0.0,
            corrupt: 0.0,
            lose_at: Vec::new(),
            duplicate_at: Vec::new(),
            reorder_at: Vec::new(),
            delay_at: Vec::new(),
            corrupt_at: Vec::new(),
            distance: 3,
            delay_time: "1ms".to_string(),
            log: None,
        }
    }
}

/// The impairment of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Lose,
    Duplicate,
    Reorder,
    Delay,
    Corrupt,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Lose => "lose",
            Self::Duplicate => "duplicate",
            Self::Reorder => "reorder",
            Self::Delay => "delay",
            Self::Corrupt => "corrupt",
        }
    }
}

/// The identity of a packet.
#[derive(Debug, Clone, Copy)]
struct Identity {
    /// The number of the packet in its direction, from 0.
    number: u64,
    to_port: usize,
    /// The flow and sequence number in the packet's timestamp record; none for a packet without a record.
    stamp: Option<(u16, u64)>,
}

/// A buffered copy of a packet.
struct Held {
    packet: Packet,
    marks: Marks,
    identity: Identity,
    /// The action for which the packet waits. The copy of a duplicated packet waits only if it does not fit into the
    /// batch.
    action: Action,
    /// The number of unimpaired packets of the packet's flow that still have to pass before the packet leaves.
    left: u16,
    /// The number of unimpaired packets of the packet's flow that have overtaken the packet.
    passed: u16,
    since: Instant,
}

struct Impair {
    rng: Rng,
    /// The actions by probability, each with an upper limit. A packet gets the first action whose limit is above the
    /// random number (0 to 1) that is drawn for the packet.
    shares: [(f64, Action); 5],
    /// The packet numbers that the settings list, ascending, each with its action.
    listed: Vec<(u64, Action)>,
    distance: u16,
    delay_time: Duration,
    log: Option<Log>,
    counts: [u64; DIRECTIONS],
    pool: PoolHandle,
    held: Vec<Held>,
    out: Batch,
    /// The number of copies, requested by an earlier function for further egress ports, that were not made because
    /// there were too many.
    crowded: u64,
}

/// Checks that each probability is from 0 to 1, and that the sum of all probabilities is at most 1.
fn check_shares(shares: &[(&str, f64, Action)]) -> Result<(), SettingsError> {
    let mut end = 0.0;
    for &(key, share, _) in shares {
        if !(0.0..=1.0).contains(&share) {
            let text = format!("{key} = {share}: expected a share of the packets, 0 to 1");
            return Err(SettingsError(text));
        }
        end += share;
    }
    if end > 1.0 + 1e-9 {
        return Err(SettingsError(format!(
            "loss, duplicate, reorder, delay and corrupt add up to {end}: each packet gets at most one of them, \
            so the maximum is 1"
        )));
    }
    Ok(())
}

/// Returns the listed packet numbers with their actions, ascending.
fn listed(settings: &Settings) -> Result<Vec<(u64, Action)>, SettingsError> {
    let lists = [
        (&settings.lose_at, Action::Lose),
        (&settings.duplicate_at, Action::Duplicate),
        (&settings.reorder_at, Action::Reorder),
        (&settings.delay_at, Action::Delay),
        (&settings.corrupt_at, Action::Corrupt),
    ];
    let mut listed: Vec<(u64, Action)> = lists
        .iter()
        .flat_map(|(numbers, action)| numbers.iter().map(|number| (*number, *action)))
        .collect();
    listed.sort_by_key(|(number, _)| *number);
    if let Some(pair) = listed.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(SettingsError(format!(
            "packet {} is listed twice: a packet can be in only one of lose_at, duplicate_at, reorder_at, \
            delay_at, corrupt_at",
            pair[0].0
        )));
    }
    Ok(listed)
}

impl Impair {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let shares = [
            ("loss", settings.loss, Action::Lose),
            ("duplicate", settings.duplicate, Action::Duplicate),
            ("reorder", settings.reorder, Action::Reorder),
            ("delay", settings.delay, Action::Delay),
            ("corrupt", settings.corrupt, Action::Corrupt),
        ];
        check_shares(&shares)?;
        if settings.distance == 0 {
            let text = "distance = 0: expected the number of packets that overtake a reordered packet, 1 or more";
            return Err(SettingsError(text.to_string()));
        }
        let delay_time = duration(&settings.delay_time).filter(|time| *time <= LONGEST_DELAY);
        let delay_time = delay_time.ok_or_else(|| {
            let text = &settings.delay_time;
            SettingsError(format!(
                "delay_time = \"{text}\": expected a time up to 1s, such as 500us"
            ))
        })?;
        let listed = listed(&settings)?;
        let mut upper = 0.0;
        Ok(Self {
            rng: Rng::with_seed(settings.seed),
            shares: shares.map(|(_, share, action)| {
                upper += share;
                (upper, action)
            }),
            listed,
            distance: settings.distance,
            delay_time,
            log: settings.log.map(Log::new),
            counts: [0; DIRECTIONS],
            pool: PoolHandle::new(SLOTS, false).map_err(|e| SettingsError(e.to_string()))?,
            held: Vec::with_capacity(SLOTS as usize),
            out: Batch::new(),
            crowded: 0,
        })
    }

    /// Chooses the action on packet `number`; none lets the packet pass unchanged.
    fn choose(&mut self, number: u64) -> Option<Action> {
        let found = self.listed.binary_search_by_key(&number, |(n, _)| *n);
        // The number is drawn in any case, so that lists do not change the seed's effect on other packets.
        let drawn = self.rng.f64();
        match found {
            Ok(index) => Some(self.listed[index].1),
            Err(_) => self
                .shares
                .iter()
                .find(|(upper, _)| drawn < *upper)
                .map(|(_, action)| *action),
        }
    }

    fn note(&mut self, identity: Identity, action: Action) {
        if let Some(log) = &mut self.log {
            log.note(identity, action);
        }
    }

    fn copy(&self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.pool.take(packet.len() as u16)?;
        copy.bytes_mut().copy_from_slice(packet.bytes());
        Some(copy)
    }

    /// Processes the next packet for port `to_port`, with its marks. Packets that an earlier function has dropped are
    /// not passed to this method.
    fn pass(&mut self, mut packet: Packet, marks: Marks, to_port: usize) {
        let number = self.counts[to_port % DIRECTIONS];
        self.counts[to_port % DIRECTIONS] += 1;
        let stamp = claimed_stamp(packet.bytes());
        let identity = Identity {
            number,
            to_port,
            stamp: stamp.map(|(stamp, _)| (stamp.flow, stamp.sequence)),
        };
        match self.choose(number) {
            Some(Action::Lose) => {
                self.note(identity, Action::Lose);
                self.out.push(packet);
                self.out.mark_dropped(self.out.len() - 1);
                return;
            }
            Some(Action::Corrupt) => {
                let from = stamp.map_or(0, |(_, offset)| offset + SPARED_BYTES);
                damage(&mut self.rng, packet.bytes_mut(), from);
                self.note(identity, Action::Corrupt);
                self.push(packet, &marks);
                return;
            }
            Some(action @ (Action::Reorder | Action::Delay)) => {
                if let Some(copy) = self.copy(&packet) {
                    self.hold(copy, marks, identity, action);
                    return;
                }
            }
            Some(Action::Duplicate) => {
                if let Some(copy) = self.copy(&packet) {
                    self.note(identity, Action::Duplicate);
                    self.hold(copy, marks.clone(), identity, Action::Duplicate);
                }
            }
            None => {}
        }
        let flow = |identity: &Identity| identity.stamp.map(|(flow, _)| flow);
        for held in &mut self.held {
            let same_way = held.identity.to_port == to_port;
            if same_way && held.action == Action::Reorder && flow(&held.identity) == flow(&identity)
            {
                held.left = held.left.saturating_sub(1);
                held.passed = held.passed.saturating_add(1);
            }
        }
        self.push(packet, &marks);
    }

    fn push(&mut self, packet: Packet, marks: &Marks) {
        self.crowded += self.out.push_marked(packet, marks) as u64;
    }

    fn hold(&mut self, packet: Packet, marks: Marks, identity: Identity, action: Action) {
        self.held.push(Held {
            packet,
            marks,
            identity,
            action,
            left: self.distance,
            passed: 0,
            since: Instant::now(),
        });
    }

    /// Releases packets for `to_port` that are due, until `most` packets leave in this batch.
    fn release(&mut self, to_port: usize, most: usize) {
        let mut index = 0;
        while index < self.held.len() && self.out.len() < most {
            let held = &self.held[index];
            let due = match held.action {
                Action::Reorder => held.left == 0 || held.since.elapsed() >= LONGEST_HOLD,
                Action::Delay => held.since.elapsed() >= self.delay_time,
                _ => true,
            };
            if held.identity.to_port != to_port || !due {
                index += 1;
                continue;
            }
            let held = self.held.remove(index);
            // A packet that was not overtaken is in order, and is not logged; a duplicate was logged when it was made.
            if held.passed > 0 || held.action == Action::Delay {
                self.note(held.identity, held.action);
            }
            self.push(held.packet, &held.marks);
        }
    }
}

/// Flips one random bit of `frame` at or after byte `from`. If `from` is 0 or beyond the frame, the bit is in the bytes
/// after the Ethernet header instead.
fn damage(rng: &mut Rng, frame: &mut [u8], from: usize) {
    let start = if from > 0 && from < frame.len() {
        from
    } else {
        14.min(frame.len().saturating_sub(1))
    };
    if let Some(rest) = frame.get_mut(start..).filter(|rest| !rest.is_empty()) {
        let at = rng.usize(..rest.len());
        rest[at] ^= 1 << rng.u8(..8);
    }
}

impl Function for Impair {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if batch.is_empty() && self.held.is_empty() {
            return;
        }
        self.out.clear();
        let arrived = batch.len();
        // A worker's batches contain at most as many packets as its burst size.
        let limit = arrived + batch.room();
        let mut index = 0;
        batch.take_marked(|packet, marks| {
            if marks.is_kept() {
                self.pass(packet, marks, context.to_port);
            } else {
                self.push(packet, &marks);
            }
            index += 1;
            self.release(context.to_port, limit - (arrived - index));
        });
        self.release(context.to_port, limit);
        self.out.take_marked(|packet, marks| {
            // Because of the limit above, the batch has space for these copies.
            batch.push_marked(packet, &marks);
        });
    }

    fn needs(&self) -> Needs {
        Needs {
            empty_batches: EmptyBatches::Polls,
            ..Needs::default()
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![("copies not made: too many in a burst", self.crowded)]
    }

    fn held(&self) -> usize {
        self.held.len()
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.log.as_mut().map_or(Ok(()), Log::create)
    }
}

/// A log with one line of CSV for each impaired packet.
struct Log {
    path: PathBuf,
    /// The file of the log; None before it is created, and once writing has failed.
    out: Option<BufWriter<File>>,
}

impl Log {
    fn new(path: PathBuf) -> Self {
        Self { path, out: None }
    }

    /// Creates the log file, or overwrites an existing one.
    fn create(&mut self) -> Result<(), PortError> {
        let wrong = |e: std::io::Error| {
            let path = self.path.display();
            let what = format!("function \"impair\": log \"{path}\" is not a writable file");
            PortError::system(what, e)
        };
        let file = File::create(&self.path).map_err(wrong)?;
        let mut out = BufWriter::with_capacity(LOG_BYTES, file);
        writeln!(out, "packet,to_port,flow,sequence,action").map_err(wrong)?;
        self.out = Some(out);
        Ok(())
    }

    fn note(&mut self, identity: Identity, action: Action) {
        let Some(out) = &mut self.out else {
            return;
        };
        let Identity {
            number,
            to_port,
            stamp,
        } = identity;
        let written = match stamp {
            Some((flow, sequence)) => {
                writeln!(
                    out,
                    "{number},{to_port},{flow},{sequence},{}",
                    action.name()
                )
            }
            None => writeln!(out, "{number},{to_port},,,{}", action.name()),
        };
        if let Err(e) = written {
            self.fail(&e);
        }
    }

    #[cold]
    fn fail(&mut self, e: &std::io::Error) {
        eprintln!(
            "taut: impair: {}: {e}; the log ends here, traffic goes on",
            self.path.display()
        );
        // Dropping the writer would flush its buffer, which would fail again.
        if let Some(out) = self.out.take() {
            drop(out.into_parts());
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.out.as_mut().map(Write::flush) {
            self.fail(&e);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn impair(settings: &str) -> Impair {
        let mut impair = Impair::new(toml::from_str(settings).unwrap()).unwrap();
        impair.prepare().unwrap();
        impair
    }

    /// Passes packets through in batches of the given sizes; returns the first bytes of the packets that leave, and
    /// which of these are marked.
    fn through(impair: &mut Impair, batches: &[usize]) -> Vec<(u8, bool)> {
        through_limited(impair, batches, 64)
    }

    fn through_limited(impair: &mut Impair, batches: &[usize], limit: usize) -> Vec<(u8, bool)> {
        let pool = PoolHandle::new(256, false).unwrap();
        let (mut next, mut seen) = (0_u8, Vec::new());
        for &n in batches {
            let mut batch = Batch::limited(limit);
            pool.fill(&mut batch, n, 60);
            for packet in batch.packets_mut() {
                packet.bytes_mut().fill(0);
                packet.bytes_mut()[0] = next;
                next = next.wrapping_add(1);
            }
            impair.process(&mut batch, &Context::default());
            let packets = batch.packets().iter().enumerate();
            seen.extend(packets.map(|(i, p)| (p.bytes()[0], batch.is_kept(i))));
        }
        seen
    }

    #[test]
    fn only_listed_packets_are_lost_duplicated_reordered_or_corrupted() {
        let mut all = impair(
            "lose_at = [1]\nduplicate_at = [4]\nreorder_at = [5]\ncorrupt_at = [9]\ndistance = 2\n",
        );
        let seen = through(&mut all, &[3, 4, 5]);
        let kept: Vec<u8> = seen.iter().filter(|s| s.1).map(|s| s.0).collect();
        assert_eq!(kept, [0, 2, 3, 4, 4, 6, 7, 5, 8, 9, 10, 11]);
        assert_eq!(seen.iter().find(|s| !s.1), Some(&(1, false)));
    }

    #[test]
    fn corruption_flips_one_bit_after_the_ethernet_header() {
        let mut one = impair("corrupt = 1.0\n");
        let pool = PoolHandle::new(8, false).unwrap();
        for _ in 0..100 {
            let mut batch = Batch::new();
            pool.fill(&mut batch, 1, 60);
            batch.packets_mut()[0].bytes_mut().fill(0);
            one.process(&mut batch, &Context::default());
            let bytes = batch.packets()[0].bytes();
            assert_eq!(bytes.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
            assert!(bytes[..14].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn reordering_is_logged_only_if_a_packet_was_overtaken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        let mut last = impair(&format!("reorder_at = [2]\nlog = {path:?}\n"));
        assert_eq!(through(&mut last, &[3]).len(), 2);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut batch = Batch::new();
        while batch.is_empty() && Instant::now() < deadline {
            last.process(&mut batch, &Context::default());
        }
        assert_eq!(batch.packets()[0].bytes()[0], 2);
        drop(last);
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, "packet,to_port,flow,sequence,action\n");
    }

    #[test]
    fn a_delayed_packet_leaves_after_its_delay_and_is_logged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        let mut late = impair(&format!(
            "delay_at = [1]\ndelay_time = \"30ms\"\nlog = {path:?}\n"
        ));
        let begun = Instant::now();
        let mut seen = through(&mut late, &[3, 60, 60]);
        // The check is skipped if the machine stood still for the whole delay.
        if begun.elapsed() < Duration::from_millis(30) {
            assert!(seen.iter().all(|(number, _)| *number != 1));
        }
        while seen.len() < 123 {
            assert!(begun.elapsed() < Duration::from_secs(10));
            let mut batch = Batch::new();
            late.process(&mut batch, &Context::default());
            seen.extend(batch.packets().iter().map(|p| (p.bytes()[0], true)));
        }
        assert!(begun.elapsed() >= Duration::from_millis(30));
        assert_eq!(seen.iter().filter(|(number, _)| *number == 1).count(), 1);
        drop(late);
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text, "packet,to_port,flow,sequence,action\n1,0,,,delay\n");
    }

    #[test]
    fn the_impairment_log_is_created_when_the_worker_starts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.csv");
        let settings = format!("log = {path:?}\n");
        let mut built = Impair::new(toml::from_str(&settings).unwrap()).unwrap();
        assert!(!path.exists());
        built.prepare().unwrap();
        assert!(path.exists());
        let settings = "log = \"/nowhere/at/all\"\n";
        let mut built = Impair::new(toml::from_str(settings).unwrap()).unwrap();
        let message = built.prepare().unwrap_err().to_string();
        assert!(message.contains("a writable file"), "{message}");
    }

    #[test]
    fn duplication_preserves_drop_and_punt_marks_of_earlier_functions() {
        let mut none = impair("duplicate_at = [0]\n");
        let pool = PoolHandle::new(8, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 3, 60);
        batch.mark_dropped(1);
        batch.mark_punted(2, taut_port::Punt::Local);
        none.process(&mut batch, &Context::default());
        let mut slow = Batch::new();
        assert_eq!(batch.len(), 4);
        assert_eq!(batch.settle(&mut slow), 1);
        assert_eq!((batch.len(), slow.len()), (2, 1));
    }

    #[test]
    fn delayed_and_duplicated_packets_retain_their_egress_ports() {
        let mut device = impair("duplicate_at = [0]\nreorder_at = [1]\ndistance = 1\n");
        let pool = PoolHandle::new(16, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 4, 60);
        for index in 0..4 {
            batch.send_to(index, 10 + index as u8);
        }
        batch.copy_to(0, 20);
        batch.copy_to(1, 21);
        device.process(&mut batch, &Context::default());
        let mut ways = Vec::new();
        batch.scatter(|_, port, _, copies| {
            ways.push((port.unwrap(), copies.first().map(|(_, port)| *port)));
        });
        ways.sort_unstable();
        let doubled = (10, Some(20));
        assert_eq!(
            ways,
            [doubled, doubled, (11, Some(21)), (12, None), (13, None)]
        );
    }

    #[test]
    fn invalid_impairment_settings_are_refused_with_the_valid_range() {
        for (settings, part) in [
            ("loss = 1.5\n", "0 to 1"),
            ("loss = 0.6\ncorrupt = 0.6\n", "add up to 1.2"),
            ("distance = 0\n", "1 or more"),
            (
                "lose_at = [3]\ncorrupt_at = [3]\n",
                "packet 3 is listed twice",
            ),
            ("delay_time = \"2s\"\n", "up to 1s"),
            ("delay_time = \"soon\"\n", "such as 500us"),
            ("jitter = 1\n", "unknown key `jitter`"),
        ] {
            let error = (ENTRY.build)(toml::from_str(settings).unwrap()).err();
            let text = error.map(|e| e.0).unwrap_or_default();
            assert!(text.contains(part), "{settings}: {text}");
        }
    }

    proptest! {
        /// For all probabilities, only marked packets are lost, and nothing waits forever.
        #[test]
        fn every_packet_leaves_the_function_or_is_marked_as_dropped(
            seed in any::<u64>(), batches in prop::collection::vec(0_usize..=64, 1..4), distance in 1_u16..9,
            limit in 1_usize..=64,
        ) {
            let mut device = impair(&format!(
                "seed = {seed}\nloss = 0.2\nduplicate = 0.3\nreorder = 0.2\ndelay = 0.1\n\
                 distance = {distance}\n"
            ));
            let mut seen = through_limited(&mut device, &batches, limit);
            let sent: usize = batches.iter().map(|n| (*n).min(limit)).sum();
            let deadline = Instant::now() + Duration::from_secs(10);
            while !device.held.is_empty() && Instant::now() < deadline {
                let mut batch = Batch::limited(limit);
                device.process(&mut batch, &Context::default());
                seen.extend(batch.packets().iter().map(|p| (p.bytes()[0], true)));
            }
            let mut numbers: Vec<u8> = seen.iter().map(|s| s.0).collect();
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(numbers.len(), sent);
            prop_assert_eq!(device.pool.outstanding(), 0);
        }
    }
}
