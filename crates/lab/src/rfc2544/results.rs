//! The results folder of the benchmarks: settings in `bench.json`, a file per complete part of a frame
//! size in a repetition, the soak's intervals as lines.
//!
//! ```text
//! DIR/bench.json                        settings, machine, how it ended
//! DIR/trials/<size>/<part>-<n>.json     every trial of a part in repetition n
//! DIR/trials/<size>/latency-<n>-<load>.hlog   the latencies as an HdrHistogram log
//! DIR/soak/intervals.jsonl, soak.json   one line per interval, and the whole
//! DIR/figures/, summary.json, report.html     made from the above
//! ```

use crate::evaluate::SlowestPackets;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use taut_measure::{LatencyHistogram, Method, Summary, ThroughputResult};
use taut_results::{
    Manifest, Mode, ResultsError, histogram, read, read_each, read_head, read_json, refuse_results,
    write_json, write_whole,
};
use taut_tap::Inside;

/// A benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The highest rate that holds.
    Throughput,
    /// Latency at shares of it.
    Latency,
    /// Loss over the offered rate.
    Loss,
    /// The longest burst.
    BackToBack,
    /// One rate for a long time.
    Soak,
}

impl Part {
    /// Its name in files and on the progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Loss => "loss",
            Self::BackToBack => "back-to-back",
            Self::Soak => "soak",
        }
    }
}

/// What the device is held to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Packets per second at every frame size.
    pub min_throughput_pps: Option<f64>,
    /// 99th percentile at every load measured, ns.
    pub max_p99_ns: Option<f64>,
}

/// What is measured, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Lengths chosen by the user.
    pub mode: Mode,
    /// What is measured.
    pub parts: Vec<Part>,
    /// How the throughput is searched for.
    pub method: Method,
    /// How close a search comes, as a share of the rate.
    pub precision: f64,
    /// Share of packets that may be lost at the throughput.
    pub loss_tolerance: f64,
    /// Length of a full trial, s.
    pub trial_seconds: f64,
    /// Full trials that vote on a rate (MLRsearch).
    pub votes: u32,
    /// Whole searches, latency trials and loss curves per frame size.
    pub repetitions: u32,
    /// No higher rate is offered, packets per second.
    pub max_rate_pps: Option<f64>,
    /// Latency is measured at these shares of the throughput.
    pub shares: Vec<f64>,
    /// Latency and soak at this rate instead, packets per second.
    pub rate_pps: Option<f64>,
    /// Length of a latency trial, s.
    pub latency_seconds: f64,
    /// Searches for the longest burst per frame size.
    pub bursts: u32,
    /// The longest burst, s.
    pub longest_burst_seconds: f64,
    /// Length of the soak, s.
    pub soak_seconds: f64,
    /// Length of the intervals it is reported by, s.
    pub soak_interval_seconds: f64,
    /// Latency trials are watched on the device's wires as well.
    #[serde(default)]
    pub tap: bool,
    /// What the device is held to.
    pub limits: Limits,
    /// Seed of the arrivals of random patterns; none in results that do not state it.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl Settings {
    /// Whether `part` is measured.
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// `bench.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// What every results folder says.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// What was measured, and how.
    pub settings: Settings,
    /// The device under test.
    pub device: String,
    /// What it is.
    pub device_note: String,
    /// Frame sizes, frame check sequence included, as asked for.
    pub sizes: Vec<String>,
    /// Their averages, bytes.
    pub average_bytes: Vec<f64>,
}

impl Head {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// What a trial counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Packets per second offered: the rate asked for, or less where the generator came to its last packets late.
    pub offered_pps: f64,
    /// From the first packet due until the port had the last one, s.
    pub seconds: f64,
    /// Handed over.
    pub sent: u64,
    /// Different packets that came back.
    pub received: u64,
    /// The device's port had no room for them.
    pub refused: u64,
    /// The generator never came to them: neither sent nor lost.
    pub unsent: u64,
    /// Came back once more.
    pub duplicate: u64,
    /// Were overtaken (RFC 4737).
    pub reordered: u64,
    /// Came back damaged.
    pub corrupt: u64,
}

impl Counts {
    /// Share of the packets offered that did not come back.
    pub fn loss(&self) -> f64 {
        let offered = self.sent + self.refused;
        let back = self.received.min(self.sent);
        (offered - back) as f64 / (offered as f64).max(1.0)
    }

    /// Whether all of it was sent, and came back.
    pub fn passed_whole(&self) -> bool {
        self.loss() == 0.0 && self.unsent == 0
    }
}

/// The latencies at one load, in slices of the trial: a bucket's lowest value (ns) and how many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadLatency {
    /// Share of the throughput; none where the rate was given.
    pub share: Option<f64>,
    /// What was counted.
    pub counts: Counts,
    /// Latencies of every packet.
    pub summary: Option<Summary>,
    /// Histograms of equal slices of time.
    pub slices: Vec<Vec<(u64, u64)>>,
    /// The same packets as a tap on the device's wires saw them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// The slowest packets and what they waited for; none where nothing came back, or measured before this was noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestPackets>,
}

impl LoadLatency {
    /// The slices as histograms.
    pub fn histograms(&self) -> Vec<LatencyHistogram> {
        self.slices.iter().map(|slice| histogram(slice)).collect()
    }
}

/// One burst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Packets asked for.
    pub length: u64,
    /// What was counted.
    pub counts: Counts,
}

/// Everything of one part of a frame size in one repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub enum Measured {
    /// A search.
    Throughput {
        /// What it found and every trial on the way.
        result: ThroughputResult,
    },
    /// Latency at every load.
    Latency {
        /// By rising load.
        loads: Vec<LoadLatency>,
    },
    /// Loss from the highest rate down.
    Loss {
        /// In the order they ran.
        points: Vec<Counts>,
    },
    /// A search for the longest burst.
    BackToBack {
        /// The longest that came through whole, packets.
        length: u64,
        /// No burst failed.
        unlimited: bool,
        /// All bursts, in order.
        bursts: Vec<Burst>,
    },
}

impl Measured {
    fn part(&self) -> Part {
        match self {
            Self::Throughput { .. } => Part::Throughput,
            Self::Latency { .. } => Part::Latency,
            Self::Loss { .. } => Part::Loss,
            Self::BackToBack { .. } => Part::BackToBack,
        }
    }
}

/// A file of `trials/`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// The frame size as asked for.
    pub size: String,
    /// From 1.
    pub repetition: u32,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
}

/// An interval of the soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakInterval {
    /// When it began, s after the start.
    pub start_seconds: f64,
    /// How long it lasted, s.
    pub seconds: f64,
    /// Packets that were handed over in it.
    pub sent: u64,
    /// Of these, how many came back.
    pub received: u64,
    /// Had no room in the device's ring.
    pub refused: u64,
    /// Latencies of those that came back.
    pub latency: Option<Summary>,
}

/// `soak/soak.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soak {
    /// The frame size as asked for.
    pub size: String,
    /// All of it.
    pub counts: Counts,
    /// Latencies of every packet.
    pub latency: Option<Summary>,
    /// Packets that came back more than an interval late: in the whole, not in an interval.
    pub late: u64,
    /// Intervals that were not kept because writing was slower than measuring.
    pub skipped_intervals: u64,
}

/// Name of the file that makes a folder one of these.
pub(crate) const HEAD: &str = "bench.json";

/// A results folder being filled.
pub(super) struct Folder {
    dir: PathBuf,
    /// Files of measurements.
    written: AtomicU32,
}

impl Folder {
    pub(super) fn create(dir: &Path, head: &Head) -> Result<Self, ResultsError> {
        refuse_results(dir)?;
        fs::create_dir_all(dir).map_err(ResultsError::io(dir))?;
        let folder = Self {
            dir: dir.to_owned(),
            written: AtomicU32::new(0),
        };
        folder.update(head)?;
        Ok(folder)
    }

    pub(super) fn update(&self, head: &Head) -> Result<(), ResultsError> {
        write_json(&self.dir.join(HEAD), head)
    }

    pub(super) fn write(&self, unit: &Unit) -> Result<(), ResultsError> {
        let name = format!("{}-{}.json", unit.measured.part().name(), unit.repetition);
        write_json(&self.of_size(&unit.size)?.join(name), unit)?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes a histogram log beside the trials of a size.
    pub(super) fn write_log(&self, size: &str, name: &str, log: &[u8]) -> Result<(), ResultsError> {
        write_whole(&self.of_size(size)?.join(name), log)
    }

    /// Whether nothing was measured yet.
    pub(super) fn is_empty(&self) -> bool {
        self.written.load(Ordering::Relaxed) == 0
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Begins the file of the soak's intervals.
    pub(super) fn begin_soak(&self) -> Result<IntervalFile, ResultsError> {
        let dir = self.dir.join("soak");
        fs::create_dir_all(&dir).map_err(ResultsError::io(&dir))?;
        let path = dir.join("intervals.jsonl");
        let file = fs::File::create(&path).map_err(ResultsError::io(&path))?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(IntervalFile { path, file })
    }

    pub(super) fn write_soak(&self, soak: &Soak) -> Result<(), ResultsError> {
        write_json(&self.dir.join("soak").join("soak.json"), soak)
    }

    fn of_size(&self, size: &str) -> Result<PathBuf, ResultsError> {
        let dir = self.dir.join("trials").join(size_folder(size));
        fs::create_dir_all(&dir).map_err(ResultsError::io(&dir))?;
        Ok(dir)
    }
}

/// A size as the name of a folder: `64-7-594-4` for `64:7,594:4`.
fn size_folder(size: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    size.chars().map(plain).take(100).collect()
}

/// The soak's intervals, a line each.
pub(super) struct IntervalFile {
    path: PathBuf,
    file: fs::File,
}

impl IntervalFile {
    /// Appends a line, whole: what was written stays whatever happens next.
    pub(super) fn push(&mut self, interval: &SoakInterval) -> Result<(), ResultsError> {
        let mut line = serde_json::to_vec(interval).map_err(|source| ResultsError::Json {
            path: self.path.clone(),
            source,
        })?;
        line.push(b'\n');
        self.file
            .write_all(&line)
            .map_err(ResultsError::io(&self.path))
    }
}

/// A results folder read back.
#[derive(Debug)]
pub struct Results {
    /// Its `bench.json`.
    pub head: Head,
    /// Every complete part.
    pub units: Vec<Unit>,
    /// The soak's intervals.
    pub intervals: Vec<SoakInterval>,
    /// The soak as a whole.
    pub soak: Option<Soak>,
    /// What cannot be read, one sentence each.
    pub problems: Vec<String>,
}

impl Results {
    /// Reads a folder. Files that are damaged are named in `problems` and left out.
    ///
    /// # Errors
    /// When `bench.json` is missing or unreadable.
    pub fn load(dir: &Path) -> Result<Self, ResultsError> {
        let mut results = Self {
            head: read_head(dir, HEAD, Head::SCHEMA)?,
            units: Vec::new(),
            intervals: Vec::new(),
            soak: None,
            problems: Vec::new(),
        };
        for size in results.head.sizes.clone() {
            results.load_size(dir, &format!("trials/{}", size_folder(&size)));
        }
        results.load_soak(dir);
        Ok(results)
    }

    fn load_size(&mut self, dir: &Path, below: &str) {
        // A size that was not begun has no folder.
        let (units, problems) = read_each(dir, below).unwrap_or_default();
        self.units.extend(units);
        self.problems.extend(problems);
    }

    fn load_soak(&mut self, dir: &Path) {
        let name = "soak/intervals.jsonl";
        let text = match read(dir, name) {
            Ok(text) => text,
            Err(ResultsError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                return;
            }
            Err(e) => return self.problems.push(e.to_string()),
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        for (line, text) in (1..).zip(lines) {
            match serde_json::from_slice(text) {
                Ok(interval) => self.intervals.push(interval),
                Err(e) => self
                    .problems
                    .push(format!("{}:{line}: {e}", dir.join(name).display())),
            }
        }
        match read_json(dir, "soak/soak.json") {
            Ok(soak) => self.soak = Some(soak),
            Err(e) => self.problems.push(e.to_string()),
        }
    }
}
