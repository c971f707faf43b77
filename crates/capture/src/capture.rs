//! A running capture: the ring, a thread that evaluates triggers (`reader.rs`), and a thread that writes dumps
//! (`dump_writer.rs`).
//!
//! Producers run in other threads, and share only the ring with these two threads. The trigger thread is the only one
//! that fires triggers, including requested ones, so a single thread decides whether a trigger extends a dump or begins
//! one. A dump ends once the trigger thread has processed all packets up to the dump's end.

mod dump_writer;
mod reader;
mod settings;
mod shared;
mod status;

pub use settings::{CaptureError, Settings};
pub use status::{Found, Status, TriggerStatus};

use crate::analyser::{self, Analysing, Fired, Looking};
use crate::clock::PacketClock;
use crate::dump::{Dumps, QueryOutput};
use crate::filter::{Filter, MOST_FILTERS};
use crate::flows::{By, Flows, FlowsStatus};
use crate::keeper::{self, Keeper};
use crate::lock;
use crate::record::{LONGEST_BYTES, PORTS, Record};
use crate::ring::{Producer, Ring, Start};
use dump_writer::start_dumps;
use reader::start_look;
use shared::{AT_ONCE, Together};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use taut_sys::{Clock, spawn_background};

/// Number of buckets that a ring has from the start; the others are added while packets arrive.
const FIRST_BUCKETS: u64 = 16;
/// Maximum number of flows that the status lists.
const FLOWS_SHOWN: usize = 20;

/// A capture that runs until it is dropped. All producers must be dropped before it.
#[derive(Debug)]
pub struct Capture {
    together: Arc<Together>,
    snap_bytes: usize,
    ports: Vec<String>,
    times: String,
    tell: fn(&str),
    /// Time at which the capture started, on the clock of the packets, nanoseconds since 1970.
    began_ns: u64,
    clock: Clock,
    clock_of_packets: PacketClock,
    disk: Option<Keeper>,
    threads: Vec<JoinHandle<()>>,
}

impl Capture {
    /// Starts a capture with the given settings.
    ///
    /// # Errors
    /// Returns an error if there is no memory, or if the target of dumps cannot be written to.
    pub fn start(settings: Settings) -> Result<Self, CaptureError> {
        if settings.triggers.len() > MOST_FILTERS {
            return Err(CaptureError::TooManyTriggers(settings.triggers.len()));
        }
        // The system needs about half a second to a second to provide each GB of memory. The ring therefore starts
        // small and grows while packets already arrive.
        let first_bytes = (FIRST_BUCKETS * settings.bucket_bytes as u64).min(settings.ring_bytes);
        let grows = first_bytes < settings.ring_bytes;
        let ring = settings.ring(first_bytes)?;
        let (triggers, flows) = (settings.triggers, settings.flows);
        let analysers = &settings.analysers;
        let together = Together::new(&ring, triggers, analysers, flows, settings.polls, grows);
        let together = Arc::new(together);
        let clock = Clock::calibrate(Duration::from_millis(20));
        let snap_bytes = settings.snap_bytes.min(LONGEST_BYTES as usize);
        let (ports, times, snap) = (settings.ports, settings.times, snap_bytes as u32);
        let disk = settings
            .disk
            .map(|disk| Keeper::start(disk, &ring, clock, &ports, &times, snap));
        let disk = disk.transpose()?;
        let (begin, begins) = channel();
        let mut threads = Vec::new();
        if let Some(target) = settings.target {
            let dumps = Dumps {
                ring: Arc::clone(&ring),
                target,
                roll: settings.roll,
                zstd: settings.zstd,
                times: times.clone(),
                ports: ports.clone(),
                snap_bytes: snap,
            };
            threads.push(start_dumps(&together, dumps, begins)?);
        }
        if grows {
            let (here, bytes) = (Arc::clone(&together), settings.ring_bytes);
            threads.push(spawn_background("capture-grow", move || here.grow(bytes))?);
        }
        let flows = (flows > 0).then(|| Flows::new(flows));
        let reader = ring.reader(Start::Now);
        let clock_of_packets = PacketClock::new(clock);
        let packets = clock_of_packets.clone();
        threads.push(start_look(&together, reader, packets, begin, flows)?);
        let mut capture = Self {
            together,
            snap_bytes,
            ports,
            times,
            tell: settings.tell,
            began_ns: PacketClock::new(clock).now(),
            clock,
            clock_of_packets,
            disk,
            threads,
        };
        for (number, analyser) in settings.analysers.into_iter().enumerate() {
            // If this fails, the capture is dropped, which ends the threads that have started.
            capture.start_analyser(number, analyser)?;
        }
        Ok(capture)
    }

    /// Starts the thread of an analyser, and waits until the analyser is ready.
    fn start_analyser(
        &mut self,
        number: usize,
        settings: analyser::Settings,
    ) -> Result<(), CaptureError> {
        let here = Arc::clone(&self.together);
        let reader = here.ring.reader(Start::Now);
        let clock = self.clock();
        let (give_made, made) = channel();
        let thread = spawn_background("capture-analyse", move || {
            let shown = &here.analysers[number];
            // The guard exists before the capture learns that the analyser is ready, so that even a capture that ends
            // immediately waits for the analyser.
            let _looking = Looking::at(shown);
            let made = (settings.make)();
            let (told, analyser) = match made {
                Ok(analyser) => (Ok(()), Some(analyser)),
                Err(why) => (Err(why), None),
            };
            // The receiver still waits for the result.
            let _ = give_made.send(told);
            let Some(mut analyser) = analyser else {
                return;
            };
            let analysing = Analysing {
                shown,
                reader,
                clock,
                slack: here.slack,
                filter: settings.filter,
                room: settings.flows,
            };
            let is_over = || here.stop.load(Ordering::Acquire);
            analysing.run(&mut *analyser, is_over, |fired| here.ask(fired));
        });
        self.threads.push(thread?);
        let made = made.recv();
        made.unwrap_or_else(|_| Err(format!("analyser {}: its thread died", number + 1)))
            .map_err(CaptureError::Analyser)
    }

    /// Creates another producer.
    pub fn producer(&self) -> Producer {
        self.together.ring.producer(self.snap_bytes)
    }

    /// Creates a clock that timestamps the packets of one producer. The times of clocks created soon after the start of
    /// the capture differ by a fraction of a microsecond.
    pub fn clock(&self) -> PacketClock {
        self.clock_of_packets.clone()
    }

    /// Returns the current time on the clock of the packets, nanoseconds since 1970.
    fn now_ns(&self) -> u64 {
        PacketClock::new(self.clock).now()
    }

    /// Returns the ring in which the capture stores packets.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.together.ring
    }

    /// Changes the size of the ring, as [`Ring::resize`] does.
    pub fn resize(&self, bytes: u64) -> u64 {
        self.together.grows.store(false, Ordering::Relaxed);
        self.together.ring.resize(bytes)
    }

    /// Returns the index of each trigger that fires when a named count grows, and the name of that count.
    pub fn counts(&self) -> impl Iterator<Item = (usize, &str)> {
        self.together.counts()
    }

    /// Reports that the count of the trigger with index `at` has grown by `by`, which fires the trigger. Never blocks.
    pub fn grew(&self, at: usize, by: u64) {
        if let Some(state) = self.together.states.get(at) {
            state.grown.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Fires the trigger `name`; `cause` says why it was requested.
    ///
    /// # Errors
    /// Returns the names of the existing triggers if there is no trigger of that name.
    pub fn fire(&self, name: &str, cause: &str) -> Result<(), String> {
        let triggers = &self.together.triggers;
        let Some(at) = triggers.iter().position(|it| it.name == name) else {
            let known: Vec<_> = triggers.iter().map(|it| it.name.as_str()).collect();
            return Err(match known.is_empty() {
                true => format!("no trigger {name}: none is configured"),
                false => format!("no trigger {name}: the triggers are {}", known.join(", ")),
            });
        };
        lock(&self.together.asked).push(Fired {
            trigger: at,
            time_ns: 0,
            cause: cause.to_string(),
        });
        Ok(())
    }

    /// Writes the packets that match a filter, with timestamps within a range, from disk and memory into a file.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be written.
    pub fn query(
        &self,
        filter: &Filter,
        from_ns: u64,
        to_ns: u64,
        file: &Path,
    ) -> Result<Found, String> {
        let failed = |error: io::Error| format!("{}: {error}", file.display());
        let made = QueryOutput::create(file, &self.ports, self.snap_bytes as u32, &self.times);
        let mut output = made.map_err(failed)?;
        let ring = self.ring();
        // Packets that are in memory are read from there, and are protected during the query.
        let mut reader = ring.reader(Start::At(from_ns));
        let memory_ns = reader.next_ns().unwrap_or(u64::MAX).max(from_ns);
        let until_ns = to_ns.min(self.now_ns());
        let mut found = Found::default();
        if let Some(disk) = &self.disk
            && memory_ns > from_ns
        {
            disk.flush();
            let to_ns = until_ns.min(memory_ns - 1);
            found = Self::from_disk(disk.folder(), filter, from_ns, to_ns, &mut output)?;
        }
        loop {
            let read = reader.read(until_ns, AT_ONCE, |record| {
                if filter.matches(record.frame, record.facts.wire_bytes) {
                    output.put(record);
                }
            });
            found.looked_at += read as u64;
            if read < AT_ONCE {
                break;
            }
        }
        found.missed = reader.missed();
        found.written(output, file)
    }

    fn from_disk(
        folder: &Path,
        filter: &Filter,
        from_ns: u64,
        to_ns: u64,
        output: &mut QueryOutput,
    ) -> Result<Found, String> {
        let put = |record: &Record<'_>| {
            output.put(record);
            match output.error() {
                Some(error) => Err(error.to_string()),
                None => Ok(()),
            }
        };
        let asked = keeper::query(folder, filter, from_ns, to_ns, put);
        let (disk, ended) = asked.map_err(|e| e.to_string())?;
        ended?;
        Ok(Found {
            looked_at: disk.packets,
            disk_bytes_read: disk.bytes_read + disk.index_bytes_read,
            damaged: disk.damaged,
            ..Found::default()
        })
    }

    /// Returns the status of the capture.
    pub fn status(&self) -> Status {
        let together = &self.together;
        let ring = &together.ring;
        let triggers = together.triggers.iter().zip(&together.states);
        let mut trouble: Vec<_> = lock(&together.pipe_trouble).iter().cloned().collect();
        let disk = self.disk.as_ref().map(Keeper::status);
        trouble.extend(disk.as_ref().and_then(|it| it.error.clone()));
        Status {
            process: std::process::id(),
            ring_bytes: ring.bytes(),
            most_bytes: ring.most_bytes(),
            kept: ring.kept(),
            overwritten: ring.overwritten(),
            lost: ring.lost(),
            oldest_ns: ring.oldest_ns(),
            began_ns: self.began_ns,
            now_ns: self.now_ns(),
            passed_over: ring.passed_over(),
            not_looked_at: together.not_looked_at.load(Ordering::Relaxed),
            looked_after: together.looked_after.read(),
            triggers: triggers
                .map(|(trigger, state)| TriggerStatus {
                    name: trigger.name.clone(),
                    fired: state.fired.load(Ordering::Relaxed),
                    begun: state.begun.load(Ordering::Relaxed),
                    limited: state.limited.load(Ordering::Relaxed),
                    written: state.dumped.written(),
                    lost: state.dumped.lost(),
                })
                .collect(),
            analysers: together
                .analysers
                .iter()
                .map(analyser::Shown::status)
                .collect(),
            dumping: lock(&together.dumping).clone(),
            dumps: lock(&together.dumps).iter().cloned().collect(),
            disk,
            flows: together
                .flows
                .as_ref()
                .map(|it| it.status(FLOWS_SHOWN, By::Bytes)),
            trouble,
        }
    }

    /// Returns up to `most` flows with the highest current rates, sorted by `by`; none if the capture has no flow
    /// table.
    pub fn flows(&self, most: usize, by: By) -> Option<FlowsStatus> {
        let flows = self.together.flows.as_ref()?;
        Some(flows.status_now(most, by))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.together.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let mut words = std::mem::take(&mut *lock(&self.together.last_words));
        if let Some(disk) = self.disk.take() {
            let before = disk.status().lost;
            let last = disk.finish();
            if last.lost > before {
                let why = last.error.unwrap_or_default();
                words.push(format!(
                    "{} packets were not written to disk: {why}",
                    last.lost - before
                ));
            }
        }
        words.iter().for_each(|words| (self.tell)(words));
    }
}

/// Writes packets that an earlier capture has left in a folder, as [`Capture::query`] does.
///
/// # Errors
/// Returns the reason why the folder cannot be read, or the file not written.
pub fn query_disk(
    folder: &Path,
    filter: &Filter,
    from_ns: u64,
    to_ns: u64,
    file: &Path,
) -> Result<Found, String> {
    // Port numbers replace the names, because only the capture that wrote the packets knew the names.
    let ports: Vec<_> = (0..PORTS).map(|port| format!("port {port}")).collect();
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    let made = QueryOutput::create(file, &ports, LONGEST_BYTES, "times as they were captured");
    let mut output = made.map_err(failed)?;
    let found = Capture::from_disk(folder, filter, from_ns, to_ns, &mut output)?;
    found.written(output, file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dump::{Roll, Target};
    use crate::pcapng::{Block, read};
    use crate::record::{DROPPED, Facts};
    use crate::ring::BUCKET_BYTES;
    use crate::trigger::{Trigger, When};
    use etherparse::PacketBuilder;
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::time::Instant;

    /// Returns the packets of a dump file, each with its timestamp in ns and its number.
    fn packets(file: &Path) -> Vec<(u64, u32)> {
        let bytes = std::fs::read(file).unwrap();
        let (mut rest, mut found) = (&bytes[..], Vec::new());
        while let Some((block, size)) = read(rest) {
            if let Block::Packet(record) = block {
                found.push((record.facts.time_ns, number(record.frame)));
            }
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "{} bytes at the end", rest.len());
        found
    }

    fn frame(flow: u16, number: u32) -> Vec<u8> {
        let [a, b] = flow.to_be_bytes();
        let builder =
            PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, a, b], [10, 9, 9, 9], 64);
        let mut frame = Vec::new();
        let payload = number.to_be_bytes();
        match flow % 2 {
            0 => builder.udp(1000 + flow, 53).write(&mut frame, &payload),
            _ => builder
                .tcp(1000 + flow, 80, number, 1)
                .write(&mut frame, &payload),
        }
        .unwrap();
        frame
    }

    fn number(frame: &[u8]) -> u32 {
        u32::from_be_bytes(*frame.last_chunk().unwrap())
    }

    fn settings(triggers: Vec<Trigger>, folder: &Path) -> Settings {
        Settings {
            ring_bytes: 4 * BUCKET_BYTES as u64,
            most_bytes: 0,
            bucket_bytes: BUCKET_BYTES,
            snap_bytes: 65_535,
            triggers,
            analysers: Vec::new(),
            target: Some(Target::Folder(folder.to_path_buf())),
            roll: Roll::default(),
            zstd: false,
            ports: vec!["a".to_string(), "b".to_string()],
            disk: None,
            flows: 0,
            classic: None,
            polls: false,
            times: "times are those of a test".to_string(),
            tell: |_| (),
        }
    }

    fn trigger(name: &str, when: When, keep: &str) -> Trigger {
        Trigger {
            name: name.to_string(),
            when,
            keep: Filter::new(keep).unwrap(),
            before: Duration::from_millis(5),
            after: Duration::from_millis(5),
            cutoff_bytes: None,
            most_per_minute: 10_000,
        }
    }

    /// Returns the packets in all dumps of a folder, in order, by the name of the trigger.
    fn dumped(folder: &Path) -> BTreeMap<String, Vec<(u64, u32)>> {
        let mut all: BTreeMap<String, Vec<(u64, u32)>> = BTreeMap::new();
        let mut files: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|it| it.unwrap().path())
            .collect();
        files.sort();
        for file in files {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.ends_with(".pcapng"), "{name}");
            let trigger = name.rsplit_once('-').unwrap().0.to_string();
            all.entry(trigger).or_default().extend(packets(&file));
        }
        all
    }

    fn has_libpcap() -> bool {
        let has = Filter::new("udp").is_ok_and(|_| true);
        if !has {
            println!("skipped: needs libpcap");
        }
        has
    }

    /// The files of each trigger contain, exactly once, every packet that is within the trigger's times and matches the
    /// trigger's filter. The test has hundreds of triggers with random filters and times, and packets of two producers;
    /// libpcap's own interpreter is the reference for the filters.
    #[test]
    fn dumps_contain_each_matching_packet_of_their_time_span_once() {
        if !has_libpcap() {
            return;
        }
        let mut random = fastrand::Rng::with_seed(7);
        let mut cases = 0;
        for round in 0..4 {
            // Few packets fire each trigger, so that its times do not overlap.
            let expression = |random: &mut fastrand::Rng| {
                let flow = random.u16(..256);
                let [a, b] = flow.to_be_bytes();
                match random.u8(..4) {
                    0 => format!("src host 10.0.{a}.{b}"),
                    1 => format!("port {}", 1000 + flow),
                    2 => format!("tcp[4:4] = {}", random.u32(..4000)),
                    _ => format!("udp and src net 10.0.{a}.{}/31", b & !1),
                }
            };
            let wanted: Vec<_> = (0..100)
                .map(|at| {
                    let when = expression(&mut random);
                    let keep = match random.u8(..3) {
                        0 => when.clone(),
                        1 => String::new(),
                        _ => expression(&mut random),
                    };
                    let times = [random.u64(..400), random.u64(..400)];
                    (
                        format!("t{at}"),
                        when,
                        keep,
                        times.map(Duration::from_micros),
                    )
                })
                .collect();
            let triggers = wanted
                .iter()
                .map(|(name, when, keep, [before, after])| Trigger {
                    before: *before,
                    after: *after,
                    ..trigger(name, When::Packet(Filter::new(when).unwrap()), keep)
                });
            let folder = tempfile::tempdir().unwrap();
            let capture = Capture::start(settings(triggers.collect(), folder.path())).unwrap();
            let mut producers = [capture.producer(), capture.producer()];
            let mut clock = capture.clock();
            let mut all = Vec::new();
            let mut last_ns = 0;
            for number in 0..4000 {
                let flow = random.u16(..256);
                let frame = frame(flow, number);
                // Each packet has a different timestamp.
                let mut time_ns = clock.now();
                while time_ns <= last_ns + 5_000 {
                    time_ns = clock.now();
                }
                last_ns = time_ns;
                let facts = Facts {
                    time_ns,
                    wire_bytes: frame.len() as u32,
                    ..Facts::default()
                };
                let producer = &mut producers[usize::from(random.bool())];
                producer.put(facts, &frame);
                producer.publish();
                all.push((time_ns, number, frame));
            }
            drop(producers);
            let not_looked_at = capture.status().not_looked_at;
            drop(capture);
            assert_eq!(not_looked_at, 0);
            let found = dumped(folder.path());
            for (name, when, keep, [before, after]) in &wanted {
                let program = |text: &str| match text {
                    "" => None,
                    text => Some(taut_sys::compile_packet_filter(text, true).unwrap()),
                };
                let (when, keep) = (program(when), program(keep));
                let lets = |program: &Option<Vec<_>>, frame: &[u8]| {
                    let len = frame.len() as u32;
                    program
                        .as_ref()
                        .is_none_or(|it| taut_sys::ask_libpcap(it, frame, len).unwrap() > 0)
                };
                let fired: Vec<_> = all
                    .iter()
                    .filter(|it| lets(&when, &it.2))
                    .map(|it| it.0)
                    .collect();
                let (before, after) = (before.as_nanos() as u64, after.as_nanos() as u64);
                let is_near =
                    |ns: u64| fired.iter().any(|t| (t - before..=t + after).contains(&ns));
                let expected: Vec<_> = all
                    .iter()
                    .filter(|it| lets(&keep, &it.2) && is_near(it.0))
                    .map(|it| (it.0, it.1))
                    .collect();
                let written = found.get(name).cloned().unwrap_or_default();
                let differs = written.iter().zip(&expected).position(|(a, b)| a != b);
                assert!(
                    written == expected,
                    "round {round}, {name}: {} packets, not {}; the first that differs: {differs:?}; begun {:?}, expected {:?}; {} fired; {before} {after}",
                    written.len(),
                    expected.len(),
                    written.first(),
                    expected.first(),
                    fired.len()
                );
                cases += 1;
            }
        }
        assert_eq!(cases, 400);
    }

    /// An analyser that fires trigger 0 for all packets of a batch, and takes long to start.
    struct Late(u64);

    impl analyser::Analyser for Late {
        fn numbers(&self) -> usize {
            std::thread::sleep(Duration::from_millis(50));
            0
        }

        fn take(&mut self, record: &Record<'_>, _: Option<(usize, u8)>) {
            self.0 = record.facts.time_ns;
        }

        fn look(
            &mut self,
            _: &mut [f64],
            fire: &mut dyn FnMut(Fired),
        ) -> Result<(), analyser::Trouble> {
            fire(Fired {
                trigger: 0,
                time_ns: self.0,
                cause: "late".to_string(),
            });
            Ok(())
        }
    }

    #[test]
    fn dumps_requested_by_analysers_are_written_when_the_capture_ends() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(vec![trigger("late", When::Asked, "")], folder.path());
        settings.analysers.push(analyser::Settings {
            name: "late".to_string(),
            filter: Filter::new("").unwrap(),
            flows: 0,
            make: Box::new(|| Ok(Box::new(Late(0)))),
        });
        let capture = Capture::start(settings).unwrap();
        let mut producer = capture.producer();
        let frame = frame(0, 1);
        let facts = Facts {
            time_ns: capture.clock().now(),
            wire_bytes: frame.len() as u32,
            ..Facts::default()
        };
        producer.put(facts, &frame);
        drop(producer);
        drop(capture);
        assert_eq!(dumped(folder.path())["late"], [(facts.time_ns, 1)]);
    }

    #[test]
    fn triggers_of_each_kind_fire_within_their_limits_per_minute() {
        if !has_libpcap() {
            return;
        }
        let udp = || Filter::new("udp").unwrap();
        let over = Duration::from_millis(50);
        let flags = DROPPED;
        let kinds = [
            (
                "fate",
                When::Fate {
                    filter: udp(),
                    flags,
                },
            ),
            (
                "rate",
                When::Rate {
                    filter: udp(),
                    packets: 10,
                    over,
                },
            ),
            (
                "silence",
                When::Silence {
                    filter: udp(),
                    over,
                },
            ),
            ("asked", When::Asked),
            ("always", When::Always),
        ];
        let mut triggers: Vec<_> = kinds
            .into_iter()
            .map(|(name, when)| trigger(name, when, "udp"))
            .collect();
        triggers.push(Trigger {
            most_per_minute: 1,
            before: Duration::ZERO,
            after: Duration::ZERO,
            ..trigger("limited", When::Packet(udp()), "")
        });
        triggers.push(Trigger {
            cutoff_bytes: Some(100),
            ..trigger("cut", When::Always, "")
        });
        let folder = tempfile::tempdir().unwrap();
        let capture = Capture::start(settings(triggers, folder.path())).unwrap();
        let mut producer = capture.producer();
        let mut clock = capture.clock();
        let mut put = |flow: u16, count: u32, flags: u16| {
            for number in 0..count {
                let frame = frame(flow, number);
                let facts = Facts {
                    time_ns: clock.now(),
                    wire_bytes: frame.len() as u32,
                    port: 0,
                    flags,
                };
                producer.put(facts, &frame);
                producer.publish();
            }
        };
        put(0, 5, 0);
        put(0, 1, DROPPED);
        put(1, 1, DROPPED);
        put(2, 10, 0);
        assert!(
            capture
                .fire("nobody", "")
                .unwrap_err()
                .contains("fate, rate")
        );
        capture.fire("asked", "a look").unwrap();
        let fired = |name: &str| {
            let status = capture.status();
            let all = status.triggers.into_iter();
            all.filter(|it| it.name == name)
                .map(|it| it.fired)
                .sum::<u64>()
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while fired("silence") == 0 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!([fired("fate"), fired("rate"), fired("asked")], [1, 1, 1]);
        let status = capture.status();
        assert_eq!((status.kept.packets, status.lost.packets), (17, 0));
        let limited = status
            .triggers
            .iter()
            .find(|it| it.name == "limited")
            .unwrap();
        assert_eq!((limited.fired, limited.begun), (16, 1));
        drop(producer);
        drop(capture);
        let found = dumped(folder.path());
        assert_eq!(found["always"].len(), 16);
        assert_eq!(found["limited"].len(), 1);
        // The cutoff stores a hundred bytes of each flow; frames have 46 or 58 bytes.
        assert_eq!(found["cut"].len(), 3 + 1 + 3);
        assert!(found["fate"].len() <= 16 && !found["fate"].is_empty());
    }

    /// The failures that the captures of the tests reported at their end.
    static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn put(capture: &Capture, producer: &mut Producer, numbers: std::ops::Range<u32>) {
        let mut clock = capture.clock();
        for number in numbers {
            let frame = frame(0, number);
            let facts = Facts {
                time_ns: clock.now(),
                wire_bytes: frame.len() as u32,
                ..Facts::default()
            };
            producer.put(facts, &frame);
            producer.publish();
        }
    }

    #[test]
    fn unwritable_packets_count_as_lost_and_not_as_written() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let always = || vec![trigger("all", When::Always, "")];
        let full = Capture::start(Settings {
            target: Some(Target::File("/dev/full".into())),
            tell: |words| lock(&TOLD).push(words.to_string()),
            disk: Some(keeper::Settings {
                folder: disk.clone(),
                bytes: 1 << 30,
                zstd: false,
            }),
            ..settings(always(), folder.path())
        })
        .unwrap();
        let mut producer = full.producer();
        put(&full, &mut producer, 0..100);
        let deadline = Instant::now() + Duration::from_secs(20);
        while full.status().triggers[0].lost < 100 || full.status().disk.unwrap().packets < 100 {
            assert!(Instant::now() < deadline, "{:?}", full.status());
            std::thread::sleep(Duration::from_millis(1));
        }
        let status = full.status();
        let dump = &status.dumping[0];
        assert_eq!((status.triggers[0].written, dump.packets), (0, 0));
        assert!(status.trouble[0].contains("space"), "{status:?}");
        // The folder is removed, so that the last packets cannot be written to disk. The status is not available any
        // more when the capture ends, so this failure has to be reported as well.
        std::fs::remove_dir_all(&disk).unwrap();
        drop(producer);
        drop(full);
        let told = lock(&TOLD).join("\n");
        assert!(told.contains("100 packets were not written: "), "{told}");
        assert!(
            told.contains("packets were not written to disk: "),
            "{told}"
        );

        // A folder that is removed and created again is written to as soon as it exists.
        let dumps = folder.path().join("dumps");
        let capture = Capture::start(Settings {
            roll: Roll {
                bytes: Some(1),
                time: None,
            },
            ..settings(always(), &dumps)
        })
        .unwrap();
        std::fs::remove_dir(&dumps).unwrap();
        let mut producer = capture.producer();
        put(&capture, &mut producer, 0..10);
        while capture.status().triggers[0].lost < 10 {
            assert!(Instant::now() < deadline, "{:?}", capture.status());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::create_dir(&dumps).unwrap();
        let mut number = 10;
        while capture.status().triggers[0].written == 0 {
            assert!(Instant::now() < deadline, "{:?}", capture.status());
            put(&capture, &mut producer, number..number + 1);
            number += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        let status = loop {
            let status = capture.status();
            if status.triggers[0].written + status.triggers[0].lost == u64::from(number) {
                break status;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        drop(producer);
        drop(capture);
        let found = &dumped(&dumps)["all"];
        assert_eq!(found.len() as u64, status.triggers[0].written);
    }

    #[test]
    fn a_query_searches_memory_and_disk_and_reports_full_disks() {
        if !has_libpcap() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        let capture = Capture::start(Settings {
            ring_bytes: 2 << 16,
            bucket_bytes: 1 << 16,
            target: None,
            disk: Some(keeper::Settings {
                folder: disk.clone(),
                bytes: 1 << 30,
                zstd: false,
            }),
            ..settings(Vec::new(), folder.path())
        })
        .unwrap();
        let mut producer = capture.producer();
        let mut clock = capture.clock();
        for number in 0..20_000 {
            let frame = frame((number % 64) as u16, number);
            let facts = Facts {
                time_ns: clock.now(),
                wire_bytes: frame.len() as u32,
                ..Facts::default()
            };
            producer.put(facts, &frame);
            producer.publish();
            // The packets are sent as fast as they are stored, so that none is missed.
            if number % 256 == 255 {
                let deadline = Instant::now() + Duration::from_secs(20);
                while capture.status().disk.unwrap().packets < u64::from(number) - 255 {
                    assert!(Instant::now() < deadline);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        assert!(capture.ring().overwritten().packets > 0);
        let filter = Filter::new("src host 10.0.0.6").unwrap();
        let file = folder.path().join("found.pcapng");
        std::thread::sleep(Duration::from_millis(5));
        let found = capture.query(&filter, 0, u64::MAX, &file).unwrap();
        let expected: Vec<_> = (0..20_000).filter(|it| it % 64 == 6).collect();
        let numbers: Vec<_> = packets(&file).into_iter().map(|it| it.1).collect();
        assert_eq!(found.packets as usize, expected.len());
        assert_eq!(numbers, expected);
        let full = Path::new("/dev/full");
        let error = capture.query(&filter, 0, u64::MAX, full).unwrap_err();
        assert!(
            error.contains("/dev/full") && error.contains("space"),
            "{error}"
        );
        let gone = folder.path().join("none/found.pcapng");
        assert!(capture.query(&filter, 0, u64::MAX, &gone).is_err());
        drop(producer);
        drop(capture);
        // The folder can be queried without the capture.
        let found = query_disk(&disk, &filter, 0, u64::MAX, &file).unwrap();
        assert_eq!(found.packets as usize, expected.len());
        assert_eq!(found.looked_at, 20_000);
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(files.len(), 2, "{files:?}");
    }
}
