//! A running capture: the ring, a thread that evaluates triggers, and one that writes dumps.
//!
//! Producers run in other threads, and share only the ring with these two. The trigger thread is the only one that
//! fires triggers, including requested ones, so a single thread decides whether a trigger extends a dump or begins one.
//! A dump ends once that thread has processed all packets up to the dump's end.

use crate::analyser::{self, AnalyserStatus, Analysing, Fired, Looking};
use crate::clock::PacketClock;
use crate::compression;
use crate::delays::{Delays, LookedAfter};
use crate::disk::DiskError;
use crate::dump::{Begin, Dump, Dumped, Dumps, Output, QueryOutput, Roll, Tally, Target};
use crate::filter::{Filter, MOST_FILTERS, Many, Matches};
use crate::flows::{By, Flows, FlowsStatus, Seen, Shown};
use crate::keeper::{self, Keeper};
use crate::lock;
use crate::record::{LONGEST_BYTES, PORTS, Record};
use crate::ring::{Count, Producer, Reader, Ring, RingError, Start};
use crate::trigger::{Limit, Trigger, Watch, When};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::{Clock, spawn_background, ticks};

/// Time after its timestamp at which a packet is assumed to be readable. A producer takes the timestamps of a batch and
/// publishes it without a pause, but may be preempted in between.
const SLACK: Duration = Duration::from_millis(100);
/// Maximum number of packets that are processed at once.
const AT_ONCE: usize = 4096;
/// Number of buckets that a ring has from the start; the others are added while packets arrive.
const FIRST_BUCKETS: u64 = 16;
/// Interval of timed packets: one of this many. It differs from all usual batch sizes.
const ONE_TIMED_OF: u32 = 31;
/// Number of flows in the status.
const FLOWS_SHOWN: usize = 20;
/// Maximum number of pending trigger requests of analysers.
const MOST_ASKED: usize = 1024;
/// Number of finished dumps that are kept in the status.
const REMEMBERED: usize = 256;
/// Pause of the threads when they have nothing to do.
const PAUSE: Duration = Duration::from_micros(200);
/// Maximum interval at which buffered bytes are written to a file.
const FLUSH: Duration = Duration::from_millis(500);

/// The settings of a capture.
#[derive(Debug)]
pub struct Settings {
    /// Size of the ring in bytes.
    pub ring_bytes: u64,
    /// Maximum size of the ring in bytes.
    pub most_bytes: u64,
    /// Size of a bucket in bytes.
    pub bucket_bytes: usize,
    /// Snap length: number of bytes that are stored of each frame.
    pub snap_bytes: usize,
    /// Triggers of the capture.
    pub triggers: Vec<Trigger>,
    /// Analysers of the capture.
    pub analysers: Vec<analyser::Settings>,
    /// Target of dumps; without it triggers only count.
    pub target: Option<Target>,
    /// Condition for a new file within a dump.
    pub roll: Roll,
    /// True if dump files in a folder are compressed by zstd. A single file for all dumps is compressed if its name
    /// ends in `.zst`.
    pub zstd: bool,
    /// Names of the ports, by number.
    pub ports: Vec<String>,
    /// Settings of the ring on disk.
    pub disk: Option<keeper::Settings>,
    /// Maximum number of flows in the flow table; 0 for no table.
    pub flows: usize,
    /// Longest time for which buckets are hidden from readers, as in Gallenmüller 2021; none if readers see packets as
    /// soon as they are published.
    pub classic: Option<Duration>,
    /// True if the trigger thread polls without rest, so that triggers fire without delay.
    pub polls: bool,
    /// Description of the timestamps, for the comments in files.
    pub times: String,
    /// Callback for failures while the capture ends, when its status is not available any more.
    pub tell: fn(&str),
}

impl Settings {
    /// Creates the ring, with this number of bytes at first.
    fn ring(&self, first_bytes: u64) -> Result<Arc<Ring>, RingError> {
        let most_bytes = self.most_bytes.max(self.ring_bytes);
        match self.classic {
            None => Ring::new(first_bytes, most_bytes, self.bucket_bytes),
            Some(hold) => Ring::classic(first_bytes, most_bytes, self.bucket_bytes, hold),
        }
    }
}

/// The counters of a trigger.
#[derive(Debug, Default)]
struct State {
    /// Time up to which its dump stores packets.
    until_ns: AtomicU64,
    fired: AtomicU64,
    begun: AtomicU64,
    limited: AtomicU64,
    /// Counts of the packets of its dumps.
    dumped: Arc<Tally>,
    /// Growth of the trigger's count since it was last evaluated.
    grown: AtomicU64,
}

/// The status of a trigger, for users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerStatus {
    /// Name of the trigger.
    pub name: String,
    /// Number of times that it has fired.
    pub fired: u64,
    /// Number of dumps that it has begun.
    pub begun: u64,
    /// Number of dumps that it has not begun because of the limit per minute.
    pub limited: u64,
    /// Packets of its dumps that were written.
    #[serde(default)]
    pub written: u64,
    /// Packets of its dumps that could not be written.
    #[serde(default)]
    pub lost: u64,
}

/// The result of a query.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Number of packets written.
    pub packets: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Number of packets that the filter was evaluated on.
    pub looked_at: u64,
    /// Number of packets that were overwritten during the query.
    pub missed: u64,
    /// Number of bytes read from disk.
    pub disk_bytes_read: u64,
    /// Number of damaged blocks and index pages on disk, which may contain more packets.
    pub damaged: u64,
}

impl Found {
    fn written(self, output: QueryOutput, file: &Path) -> Result<Self, String> {
        let written = output.finish();
        let (packets, file_bytes) = written.map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Self {
            packets,
            file_bytes,
            ..self
        })
    }
}

/// The status of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Process identifier.
    pub process: u32,
    /// Size of the ring in bytes.
    pub ring_bytes: u64,
    /// Maximum size of the ring in bytes.
    pub most_bytes: u64,
    /// Packets that were stored in memory.
    pub kept: Count,
    /// Stored packets that were overwritten since.
    pub overwritten: Count,
    /// Packets for which there was no memory.
    pub lost: Count,
    /// Time of the oldest packet in memory, nanoseconds since 1970.
    pub oldest_ns: Option<u64>,
    /// Current time on the clock of the packets, nanoseconds since 1970.
    pub now_ns: u64,
    /// Number of buckets that were not overwritten because a reader used them.
    pub passed_over: u64,
    /// Number of packets that were overwritten before triggers were evaluated on them.
    pub not_looked_at: u64,
    /// Time from the timestamps of packets until triggers were evaluated; none if there is nothing to evaluate.
    #[serde(default)]
    pub looked_after: Option<LookedAfter>,
    /// Status of the triggers.
    pub triggers: Vec<TriggerStatus>,
    /// Status of the analysers.
    #[serde(default)]
    pub analysers: Vec<AnalyserStatus>,
    /// Dumps that are being written.
    pub dumping: Vec<Dumped>,
    /// Latest finished dumps.
    pub dumps: Vec<Dumped>,
    /// Status of the ring on disk.
    pub disk: Option<keeper::Status>,
    /// Status of the flow table, with the flows of the highest rates.
    pub flows: Option<FlowsStatus>,
    /// Current failures.
    pub trouble: Vec<String>,
}

impl Status {
    /// Returns the age of the oldest packet in memory, in seconds.
    pub fn looks_back_seconds(&self) -> f64 {
        let ns = self
            .oldest_ns
            .map_or(0, |it| self.now_ns.saturating_sub(it));
        ns as f64 / 1e9
    }

    /// Returns the packets and bytes stored per second since an earlier status.
    pub fn kept_per_second(&self, before: &Self) -> (f64, f64) {
        let seconds = self.now_ns.saturating_sub(before.now_ns).max(1) as f64 / 1e9;
        let packets = self.kept.packets - before.kept.packets;
        let bytes = self.kept.bytes - before.kept.bytes;
        (packets as f64 / seconds, bytes as f64 / seconds)
    }

    /// Returns the number of dumps that all triggers have begun.
    pub fn dumps_begun(&self) -> u64 {
        self.triggers.iter().map(|it| it.begun).sum()
    }
}

/// The state that the threads share.
#[derive(Debug)]
struct Together {
    ring: Arc<Ring>,
    triggers: Vec<Trigger>,
    states: Vec<State>,
    /// Time up to which all packets were processed.
    looked_ns: AtomicU64,
    not_looked_at: AtomicU64,
    /// Triggers that were requested to fire.
    asked: Mutex<Vec<Fired>>,
    analysers: Vec<analyser::Shown>,
    dumping: Mutex<Vec<Dumped>>,
    dumps: Mutex<VecDeque<Dumped>>,
    pipe_trouble: Mutex<Option<String>>,
    /// Failures while the capture ended.
    last_words: Mutex<Vec<String>>,
    flows: Option<Shown>,
    looked_after: Delays,
    /// Time after its timestamp at which a packet is assumed to be readable.
    slack: Duration,
    polls: bool,
    stop: AtomicBool,
    /// True if the ring still grows to its configured size; false once another size was requested.
    grows: AtomicBool,
}

impl Together {
    /// Creates the state that the threads of a capture share, before the first of them runs.
    fn new(
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

    /// Returns the triggers about counts: their numbers, and the names of the counts.
    fn counts(&self) -> impl Iterator<Item = (usize, &str)> {
        let triggers = self.triggers.iter().enumerate();
        triggers.filter_map(|(at, it)| match &it.when {
            When::Count(name) => Some((at, name.as_str())),
            _ => None,
        })
    }

    /// Requests a trigger to fire, for an analyser; waits while too many requests are pending.
    fn ask(&self, fired: Fired) {
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
    fn grow(&self, bytes: u64) {
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

/// A capture that runs until it is dropped. All producers must be dropped before it.
#[derive(Debug)]
pub struct Capture {
    together: Arc<Together>,
    snap_bytes: usize,
    ports: Vec<String>,
    times: String,
    tell: fn(&str),
    clock: Clock,
    clock_of_packets: PacketClock,
    disk: Option<Keeper>,
    threads: Vec<JoinHandle<()>>,
}

/// The reason why a capture cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The ring cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// There are more triggers than can be evaluated at once.
    #[error("{0} triggers: there can be {MOST_FILTERS}")]
    TooManyTriggers(usize),
    /// The target of dumps cannot be written to.
    #[error("{what}: {error}")]
    Output {
        /// Name of the target.
        what: String,
        /// Error of the system.
        error: io::Error,
    },
    /// The ring on disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An analyser cannot begin.
    #[error("{0}")]
    Analyser(String),
    /// The system refuses a call.
    #[error(transparent)]
    System(#[from] taut_sys::Error),
}

impl Capture {
    /// Starts a capture.
    ///
    /// # Errors
    /// Returns an error if there is no memory, or if the target of dumps cannot be written to.
    pub fn start(settings: Settings) -> Result<Self, CaptureError> {
        if settings.triggers.len() > MOST_FILTERS {
            return Err(CaptureError::TooManyTriggers(settings.triggers.len()));
        }
        // The system needs about half a second to a second per GB to provide memory: packets do not have to wait for
        // that.
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
        let (here, packets) = (Arc::clone(&together), clock_of_packets.clone());
        threads.push(spawn_background("capture-look", move || {
            look(&here, reader, packets, &begin, flows);
        })?);
        let mut capture = Self {
            together,
            snap_bytes,
            ports,
            times,
            tell: settings.tell,
            clock,
            clock_of_packets,
            disk,
            threads,
        };
        for (number, analyser) in settings.analysers.into_iter().enumerate() {
            // If this fails, dropping the capture ends what has begun.
            capture.start_analyser(number, analyser)?;
        }
        Ok(capture)
    }

    /// Starts the thread of an analyser, and waits until it is ready.
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
            // The guard exists before the capture learns that the analyser is ready: one that ends at once waits for it
            // as well.
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

    /// Creates a clock for the packets of one producer. All clocks created soon after the start agree to a fraction of
    /// a microsecond.
    pub fn clock(&self) -> PacketClock {
        self.clock_of_packets.clone()
    }

    /// Returns the current time.
    fn now_ns(&self) -> u64 {
        PacketClock::new(self.clock).now()
    }

    /// Returns the ring.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.together.ring
    }

    /// Changes the size of the ring, as [`Ring::resize`] does.
    pub fn resize(&self, bytes: u64) -> u64 {
        self.together.grows.store(false, Ordering::Relaxed);
        self.together.ring.resize(bytes)
    }

    /// Returns the triggers about counts: their numbers, and the names of the counts.
    pub fn counts(&self) -> impl Iterator<Item = (usize, &str)> {
        self.together.counts()
    }

    /// Reports that the count of the trigger with index `at` has grown by `by`. Never blocks.
    pub fn grew(&self, at: usize, by: u64) {
        if let Some(state) = self.together.states.get(at) {
            state.grown.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Fires a trigger, with the cause of the request.
    ///
    /// # Errors
    /// Returns the existing names if there is no trigger of that name.
    pub fn fire(&self, name: &str, cause: &str) -> Result<(), String> {
        let triggers = &self.together.triggers;
        let Some(at) = triggers.iter().position(|it| it.name == name) else {
            let known: Vec<_> = triggers.iter().map(|it| it.name.as_str()).collect();
            return Err(match known.is_empty() {
                true => format!("there is no trigger {name}, and no other one"),
                false => format!("there is no trigger {name}: there are {}", known.join(", ")),
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

    /// Returns the flows with the highest rates at the moment; none if there is no flow table.
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
    // The numbers of ports stand for their names, which are no longer known.
    let ports: Vec<_> = (0..PORTS).map(|port| format!("port {port}")).collect();
    let failed = |error: io::Error| format!("{}: {error}", file.display());
    let made = QueryOutput::create(file, &ports, LONGEST_BYTES, "times as they were captured");
    let mut output = made.map_err(failed)?;
    let found = Capture::from_disk(folder, filter, from_ns, to_ns, &mut output)?;
    found.written(output, file)
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
        // Read before the requests of the analysers, so that these are complete up to that time.
        let analysed = together.analysers.iter().map(analyser::Shown::analysed_ns);
        let analysed_ns = analysed.min().unwrap_or(u64::MAX);
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
        let looked_ns = match (is_over && read == 0, read < AT_ONCE) {
            (true, _) => u64::MAX,
            (_, true) => settled_ns,
            (_, false) => last_ns.saturating_sub(1).min(settled_ns),
        };
        let looked_ns = looked_ns.min(analysed_ns);
        // Release: decisions about packets up to this time were made before.
        together.looked_ns.store(looked_ns, Ordering::Release);
        if looked_ns == u64::MAX {
            return;
        }
        if read > 0 {
            continue;
        }
        match together.polls {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(PAUSE),
        }
    }
}

/// The state of the triggers that are about packets.
struct Watching<'a> {
    triggers: &'a [Trigger],
    /// Numbers of the triggers with a filter, in the order of `many`.
    with_filters: Vec<usize>,
    many: Many,
    matches: Matches,
    /// Watch for each trigger.
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

    /// Fires the triggers that a packet fires.
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

    /// Fires the silence triggers whose time without a packet has ended by `settled_ns`.
    fn miss(&mut self, settled_ns: u64, firing: &mut Firing<'_>) {
        for at in &self.with_filters {
            if let Some(ns) = self.watches[*at].misses(&self.triggers[*at].when, settled_ns) {
                firing.fire(*at, ns, "silence");
            }
        }
    }
}

/// The context for firing triggers.
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

    /// Fires the triggers that fire when a capture begins.
    fn fire_always(&mut self) {
        let together = self.together;
        for (at, trigger) in together.triggers.iter().enumerate() {
            if matches!(trigger.when, When::Always) {
                self.fire(at, 0, "the capture began");
            }
        }
    }

    /// Fires the triggers that were requested to fire.
    fn fire_asked(&mut self, now_ns: u64) {
        let asked: Vec<_> = std::mem::take(&mut *lock(&self.together.asked));
        for it in asked {
            let time_ns = if it.time_ns == 0 { now_ns } else { it.time_ns };
            self.fire(it.trigger, time_ns, &it.cause);
        }
    }

    /// Fires the triggers in `counts` whose counts have grown.
    fn fire_grown(&mut self, counts: &[(usize, &str)], now_ns: u64) {
        let together = self.together;
        for (at, name) in counts {
            let grown = &together.states[*at].grown;
            // Reading first usually leaves the cache line with the thread that writes it.
            if grown.load(Ordering::Relaxed) > 0 {
                let by = grown.swap(0, Ordering::Relaxed);
                self.fire(*at, now_ns, &format!("{name} grew by {by}"));
            }
        }
    }

    /// Lets a trigger extend its dump, or begin a new one.
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
            // Nothing is written twice.
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

/// Starts the thread that writes dumps.
fn start_dumps(
    together: &Arc<Together>,
    dumps: Dumps,
    begins: Receiver<Begin>,
) -> Result<JoinHandle<()>, CaptureError> {
    let failed = |error| CaptureError::Output {
        what: match &dumps.target {
            Target::Folder(path) | Target::File(path) => path.display().to_string(),
            Target::Output => "standard output".to_string(),
        },
        error,
    };
    let shared = match &dumps.target {
        Target::Folder(path) => {
            std::fs::create_dir_all(path).map_err(failed)?;
            None
        }
        target => {
            let (ports, snap_bytes) = (&dumps.ports, dumps.snap_bytes);
            let comment = format!("taut capture; {}", dumps.times);
            let zstd = matches!(target, Target::File(path) if compression::is_wanted(path));
            let output = Output::create(target, "", ports, snap_bytes, &comment, zstd);
            Some(output.map_err(failed)?)
        }
    };
    let here = Arc::clone(together);
    let thread = spawn_background("capture-dump", move || {
        write_dumps(&here, &dumps, shared, &begins);
    })?;
    Ok(thread)
}

/// Writes dumps until all packets were processed and the last one has ended.
fn write_dumps(
    together: &Together,
    dumps: &Dumps,
    mut shared: Option<Output>,
    begins: &Receiver<Begin>,
) {
    let mut running: Vec<Dump> = Vec::new();
    let mut flushed = Instant::now();
    loop {
        // Acquire: read before the requests below, so that no dump begins after the end.
        let looked_ns = together.looked_ns.load(Ordering::Acquire);
        // Read before the dumps that begin, so that a dump that ends because of another one is never extended.
        let untils = together
            .states
            .iter()
            .map(|it| it.until_ns.load(Ordering::Acquire));
        let untils: Vec<_> = untils.collect();
        while let Ok(begin) = begins.try_recv() {
            let trigger = &together.triggers[begin.trigger];
            let before = running.iter_mut().filter(|it| it.trigger == begin.trigger);
            before.for_each(|dump| dump.ends(begin.ended_ns));
            let tally = &together.states[begin.trigger].dumped;
            running.push(Dump::begin(dumps, trigger, tally, begin));
        }
        let mut has_more = false;
        let mut ended = Vec::new();
        running = running
            .into_iter()
            .filter_map(|mut dump| {
                let trigger = &together.triggers[dump.trigger];
                let until_ns = dump.goes_on(untils[dump.trigger]);
                let looked = dump.write(
                    dumps,
                    &mut shared,
                    trigger,
                    until_ns.min(looked_ns),
                    AT_ONCE,
                );
                has_more |= looked == AT_ONCE;
                if looked < AT_ONCE && looked_ns > until_ns {
                    // After the flush it is known which packets were written.
                    shared.iter_mut().for_each(Output::flush);
                    ended.push(dump.end());
                    return None;
                }
                Some(dump)
            })
            .collect();
        let is_time = flushed.elapsed() >= FLUSH;
        if is_time || !ended.is_empty() {
            flushed = Instant::now();
            running.iter_mut().for_each(Dump::flush);
        }
        if let Some(shared) = &mut shared
            && (is_time || (!has_more && shared.failing().is_none()))
        {
            shared.flush();
            *lock(&together.pipe_trouble) = shared.failing().map(str::to_string);
        }
        if !running.is_empty() || !ended.is_empty() {
            *lock(&together.dumping) = running.iter().map(Dump::so_far).collect();
        }
        let mut last = lock(&together.dumps);
        for dumped in ended {
            if let Some(error) = &dumped.error
                && together.stop.load(Ordering::Relaxed)
            {
                let words = format!("trigger {}: {error}", dumped.trigger);
                lock(&together.last_words).push(words);
            }
            if last.len() == REMEMBERED {
                last.pop_front();
            }
            last.push_back(dumped);
        }
        drop(last);
        if looked_ns == u64::MAX && running.is_empty() {
            if let Some(shared) = &shared
                && let Some(error) = shared.error()
            {
                let words = format!("{} packets were not written: {error}", shared.lost());
                lock(&together.last_words).push(words);
            }
            return;
        }
        if !has_more {
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pcapng::{Block, read};
    use crate::record::{DROPPED, Facts};
    use crate::ring::BUCKET_BYTES;
    use etherparse::PacketBuilder;
    use std::collections::BTreeMap;

    /// Returns the packets of a file: time and number.
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

    /// Returns all dumps of a folder by the name of the trigger, in order.
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

    /// The files of a trigger contain every packet of its times that its filter matches, once. The test has hundreds of
    /// triggers with random filters and times, and packets of two producers; libpcap's own interpreter is the reference
    /// for the filters.
    #[test]
    fn a_trigger_dumps_each_matching_packet_of_its_period_once() {
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
                // Each packet has a time of its own.
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

    /// An analyser that fires trigger 0 for all packets of a batch, and takes long to begin.
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
    fn an_ending_capture_writes_the_dumps_that_analysers_request() {
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
    fn triggers_fire_on_verdict_rate_silence_and_request_within_limits() {
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
        // The rest of each flow after a hundred bytes is cut off: frames have 46 or 58.
        assert_eq!(found["cut"].len(), 3 + 1 + 3);
        assert!(found["fate"].len() <= 16 && !found["fate"].is_empty());
    }

    /// The failures that captures of these tests have reported at their end.
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
        // The status of the disk is gone at the end, too.
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
