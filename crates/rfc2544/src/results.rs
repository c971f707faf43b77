//! The results folder of the benchmarks. It contains the settings in `bench.json`, and one file for each complete test
//! of a frame size in a repetition. For a soak, it contains a file with one line for each interval.
//!
//! ```text
//! DIR/bench.json                        settings, machine, how it ended
//! DIR/trials/<size>/<part>-<n>.json     every trial of a part in repetition n
//! DIR/trials/<size>/latency-<n>-<load>.hlog   the latencies as an HdrHistogram log
//! DIR/soak/intervals.jsonl, soak.json   one line per interval, and the complete soak
//! DIR/figures/, summary.json, report.html     made from the above
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use taut_bench::evaluate::SlowestPackets;
use taut_measure::{Goal, LatencyHistogram, Method, Summary, ThroughputResult};
use taut_results::{
    Manifest, Mode, ResultsError, histogram, read, read_each, read_head, read_json, refuse_results,
    write_json, write_whole,
};
use taut_tap::Inside;

/// A benchmark of RFC 2544.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// The highest loss-free rate.
    Throughput,
    /// Latency at fractions of the throughput.
    Latency,
    /// Loss over the offered rate.
    Loss,
    /// The longest burst that the device forwards without loss.
    BackToBack,
    /// Latency and loss at a constant rate for a long time.
    Soak,
}

impl Part {
    /// Returns the name for files and the progress bar.
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

/// Limits that the device must meet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Minimum throughput for every frame size, packets per second; none for no limit.
    pub min_throughput_pps: Option<f64>,
    /// Maximum 99th percentile of latency at every load, ns; none for no limit.
    pub max_p99_ns: Option<f64>,
}

/// The measured parts and their settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The mode that the user selected, which sets the lengths.
    pub mode: Mode,
    /// The parts of the benchmark that were measured.
    pub parts: Vec<Part>,
    /// The search method for the throughput.
    pub method: Method,
    /// Precision of a search, as a fraction of the rate.
    pub precision: f64,
    /// Tolerated loss ratio at the throughput.
    pub loss_tolerance: f64,
    /// Length of a full trial, s.
    pub trial_seconds: f64,
    /// Number of full trials that vote on a rate (MLRsearch).
    pub votes: u32,
    /// Goals of MLRsearch in addition to the first goal, which follows from the other settings.
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// Number of searches, latency trials and loss curves per frame size.
    pub repetitions: u32,
    /// Maximum offered rate, packets per second; none if only the generator limits the rate.
    pub max_rate_pps: Option<f64>,
    /// Fractions of the throughput at which latency is measured.
    pub shares: Vec<f64>,
    /// Rate for latency and soak, packets per second. It replaces the fractions of the throughput; none if the
    /// fractions are used.
    pub rate_pps: Option<f64>,
    /// Length of a latency trial, s.
    pub latency_seconds: f64,
    /// Number of searches for the longest burst per frame size.
    pub bursts: u32,
    /// Length of the longest burst to try, s.
    pub longest_burst_seconds: f64,
    /// Length of the soak, s.
    pub soak_seconds: f64,
    /// Length of the soak's report intervals, s.
    pub soak_interval_seconds: f64,
    /// True if a wiretap also observes latency trials on the device's links.
    #[serde(default)]
    pub tap: bool,
    /// Limits that the device must meet.
    pub limits: Limits,
    /// Seed for the arrivals of random patterns; none in results that do not contain it.
    #[serde(default)]
    pub seed: Option<u64>,
}

impl Settings {
    /// Returns true if `part` is measured.
    pub fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

/// The contents of `bench.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The fields that every results folder has.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// The measured parts and their settings.
    pub settings: Settings,
    /// The device under test.
    pub device: String,
    /// Description of the device.
    pub device_note: String,
    /// Frame sizes as configured, frame check sequence included.
    pub sizes: Vec<String>,
    /// Mean size of the frames of each entry of `sizes`, bytes.
    pub average_bytes: Vec<f64>,
}

impl Head {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// The counts of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Offered rate, packets per second: the requested rate, or less if the generator was late with its last packets.
    pub offered_pps: f64,
    /// Time from the first scheduled packet until the port accepted the last one, s.
    pub seconds: f64,
    /// Packets that were sent.
    pub sent: u64,
    /// Distinct packets that came back.
    pub received: u64,
    /// Packets that the device's port refused, because its ring was full.
    pub refused: u64,
    /// Scheduled packets that the generator did not send. They count neither as sent nor as lost.
    pub unsent: u64,
    /// Additional copies of packets that came back.
    pub duplicate: u64,
    /// Packets that came back reordered (RFC 4737).
    pub reordered: u64,
    /// Packets that came back corrupted.
    pub corrupt: u64,
}

impl Counts {
    /// Returns the fraction of the offered packets that did not come back.
    pub fn loss(&self) -> f64 {
        let offered = self.sent + self.refused;
        let back = self.received.min(self.sent);
        (offered - back) as f64 / (offered as f64).max(1.0)
    }

    /// Returns true if all packets were sent and came back.
    pub fn passed_whole(&self) -> bool {
        self.loss() == 0.0 && self.unsent == 0
    }
}

/// The latencies at one load, in slices of the trial. A slice is a list of buckets with lowest value (ns) and count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadLatency {
    /// Fraction of the throughput; none if the rate was configured.
    pub share: Option<f64>,
    /// The counts of the latency trial.
    pub counts: Counts,
    /// Latency of every packet; none if no packet came back.
    pub summary: Option<Summary>,
    /// Latency histograms, one for each of the equally long time slices of the trial.
    pub slices: Vec<Vec<(u64, u64)>>,
    /// Latency of the device alone, for the same packets, as a wiretap observed it on the device's links; none without
    /// a wiretap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// The slowest packets with their causes. None if too few packets came back for a median, if the device's log cannot
    /// be read, or in results of versions that did not store them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestPackets>,
}

impl LoadLatency {
    /// Returns the slices as histograms.
    pub fn histograms(&self) -> Vec<LatencyHistogram> {
        self.slices.iter().map(|slice| histogram(slice)).collect()
    }
}

/// One burst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// Requested length of the burst, packets.
    pub length: u64,
    /// The counts of the burst.
    pub counts: Counts,
}

/// The results of one part for a frame size in one repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub enum Measured {
    /// A search for the throughput.
    Throughput {
        /// The result, and every trial of the search.
        result: ThroughputResult,
    },
    /// Latency at every load.
    Latency {
        /// Latencies by load, in increasing order.
        loads: Vec<LoadLatency>,
    },
    /// Loss from the highest rate downwards.
    Loss {
        /// The counts in the order of the trials.
        points: Vec<Counts>,
    },
    /// A search for the longest burst.
    BackToBack {
        /// Longest burst without loss, packets.
        length: u64,
        /// True if no burst failed, up to the longest one that may be tried.
        unlimited: bool,
        /// All bursts, in the order of the trials.
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

/// The content of one file of the folder `trials`: the results of a part for a frame size in one repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Unit {
    /// Frame size as configured.
    pub size: String,
    /// The number of the repetition, from 1.
    pub repetition: u32,
    /// The results in the file.
    #[serde(flatten)]
    pub measured: Measured,
}

/// An interval of the soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoakInterval {
    /// Start of the interval, s after the start of the soak.
    pub start_seconds: f64,
    /// Length of the interval, s.
    pub seconds: f64,
    /// Number of packets that were sent in the interval.
    pub sent: u64,
    /// Number of packets of the interval that came back.
    pub received: u64,
    /// Number of packets of the interval that the device's port refused, because its ring was full.
    pub refused: u64,
    /// Latency of the interval's packets that came back; none if no packet came back.
    pub latency: Option<Summary>,
}

/// The contents of `soak/soak.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Soak {
    /// Frame size as configured.
    pub size: String,
    /// The counts of the complete soak.
    pub counts: Counts,
    /// Latency of every packet; none if no packet came back.
    pub latency: Option<Summary>,
    /// Number of packets that came back more than an interval late. These packets are in the counts of the complete
    /// soak, but in those of no interval.
    pub late: u64,
    /// Intervals that were not stored because writing was slower than measuring.
    pub skipped_intervals: u64,
}

/// The name of the file that identifies results folders of RFC 2544 benchmarks.
pub const HEAD: &str = "bench.json";

/// A results folder to which a running benchmark writes.
pub(super) struct Folder {
    dir: PathBuf,
    /// Number of measurement files that were written.
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

    /// Writes a histogram log next to the trials of a size.
    pub(super) fn write_log(&self, size: &str, name: &str, log: &[u8]) -> Result<(), ResultsError> {
        write_whole(&self.of_size(size)?.join(name), log)
    }

    /// Returns true if no measurement file was written yet.
    pub(super) fn is_empty(&self) -> bool {
        self.written.load(Ordering::Relaxed) == 0
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Creates the file for the soak's intervals.
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

/// Returns a frame size as a folder name: `64-7-594-4` for `64:7,594:4`.
fn size_folder(size: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    size.chars().map(plain).take(100).collect()
}

/// The file of the soak's intervals, one line each.
pub(super) struct IntervalFile {
    path: PathBuf,
    file: fs::File,
}

impl IntervalFile {
    /// Appends a complete line, so that written lines survive any later failure.
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

/// A results folder that was read back.
#[derive(Debug)]
pub struct Results {
    /// The contents of `bench.json`.
    pub head: Head,
    /// The parts of the benchmark that are complete.
    pub units: Vec<Unit>,
    /// The stored intervals of the soak.
    pub intervals: Vec<SoakInterval>,
    /// The complete soak; none if no soak was completed.
    pub soak: Option<Soak>,
    /// The files that cannot be read, one sentence each.
    pub problems: Vec<String>,
}

impl Results {
    /// Reads a folder. Damaged files are skipped and named in `problems`.
    ///
    /// # Errors
    /// Returns an error if `bench.json` is missing or unreadable.
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
        // A size without any trial has no folder.
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
