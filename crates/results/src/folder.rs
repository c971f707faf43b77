//! The results folder of a comparison, written and read back. A file appears under its name only when it is complete
//! (written under another name, then renamed), and a run's folder only when all its files exist.
//!
//! ```text
//! DIR/experiment.json                    settings, machine, devices, how it ended
//! DIR/runs/<device>/<repetition>/        one device in one repetition; `.partial` until complete
//!     cbr.json                           counts and summaries at the constant rate
//!     latency.hlog                       the latencies as an HdrHistogram log
//!     samples.parquet                    one row per packet sent
//!     interruptions.json                 interruptions of the cores of generator and device
//!     sweep.json                         trials over the offered rate
//! DIR/figures/*.svg, DIR/report.html     made from the above
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use taut_measure::LatencyHistogram;

use crate::error::{NotInside, ResultsError};
use crate::experiment::Experiment;
use crate::inside::InsidePath;
use crate::interruptions::{MeasuredInterruptions, RECORDED_INTERRUPTIONS};
use crate::noise::taken;
use crate::packets::{PacketFormat, PacketWriter};
use crate::run::{CbrResult, Sweep};
use crate::samples::SampleReader;
use crate::whole_file::write_json;

/// File that identifies results folders of `taut demo` and `taut bench comparison`.
pub const COMPARISON_HEAD: &str = "experiment.json";

/// Maximum size of a JSON file of results, bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of device runs in a comparison.
const MOST_RUNS: u64 = 100_000;

/// Checks that a folder contains no results of any command, and no other files that new results would be mixed with.
///
/// # Errors
/// The folder is not empty. The error names the file that identifies the existing results, or else another entry.
pub fn refuse_results(dir: &Path) -> Result<(), ResultsError> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let first = entries
        .map(|entry| entry.path())
        .min_by_key(|path| (path.extension().is_none_or(|e| e != "json"), path.clone()));
    match first {
        Some(path) => Err(ResultsError::Exists { path }),
        None => Ok(()),
    }
}

/// A results folder to which a measurement writes its results.
#[derive(Debug, Clone)]
pub struct Folder {
    dir: PathBuf,
}

impl Folder {
    /// Creates the folder and writes its `experiment.json`. A folder that contains results already is an error.
    pub fn create(dir: &Path, experiment: &Experiment) -> Result<Folder, ResultsError> {
        refuse_results(dir)?;
        fs::create_dir_all(dir.join("runs")).map_err(ResultsError::io(dir))?;
        let folder = Folder {
            dir: dir.to_owned(),
        };
        folder.update(experiment)?;
        Ok(folder)
    }

    /// Replaces `experiment.json`, for example at the end of the experiment.
    pub fn update(&self, experiment: &Experiment) -> Result<(), ResultsError> {
        write_json(&self.dir.join(COMPARISON_HEAD), experiment)
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Begins the run of a device in a repetition (counted from 1). A run that exists already is an error.
    pub fn begin_run(&self, device_id: &str, repetition: u32) -> Result<RunWriter, ResultsError> {
        check_device_id(device_id)?;
        let whole = self
            .dir
            .join("runs")
            .join(device_id)
            .join(repetition.to_string());
        if whole.exists() {
            return Err(ResultsError::Exists { path: whole });
        }
        let partial = whole.with_file_name(format!("{repetition}.partial"));
        fs::create_dir_all(&partial).map_err(ResultsError::io(&partial))?;
        Ok(RunWriter { partial, whole })
    }
}

/// Checks that a device's id is valid as the name of its folder.
fn check_device_id(id: &str) -> Result<(), ResultsError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:=()".contains(c);
    if id.is_empty() || id.starts_with('.') || !id.chars().all(plain) {
        return Err(ResultsError::DeviceId { id: id.to_owned() });
    }
    Ok(())
}

/// Writer of one run, into the folder `<repetition>.partial`. If it is dropped without [`RunWriter::finish`], the
/// folder keeps this name and is never read as a result.
#[derive(Debug)]
pub struct RunWriter {
    partial: PathBuf,
    whole: PathBuf,
}

impl RunWriter {
    /// Writes `cbr.json`, the result of the measurement at the constant rate.
    pub fn write_cbr(&self, result: &CbrResult) -> Result<(), ResultsError> {
        write_json(&self.partial.join("cbr.json"), result)
    }

    /// Writes `latency.hlog` as a log with one interval, which begins at `start` and lasts `duration`.
    pub fn write_histogram(
        &self,
        histogram: &LatencyHistogram,
        start: SystemTime,
        duration: Duration,
    ) -> Result<(), ResultsError> {
        let path = self.partial.join("latency.hlog");
        let mut out = BufWriter::new(File::create(&path).map_err(ResultsError::io(&path))?);
        histogram
            .write_hlog(&mut out, start, duration, None)
            .map_err(|source| ResultsError::Histogram {
                path: path.clone(),
                source,
            })?;
        out.flush().map_err(ResultsError::io(path))
    }

    /// Starts `samples.parquet`; call [`PacketWriter::finish`] before [`RunWriter::finish`].
    pub fn samples(&self) -> Result<PacketWriter, ResultsError> {
        PacketWriter::create(&self.partial, PacketFormat::Parquet)
    }

    /// Writes `interruptions.json`, the interruptions of the generator's and of the device's core.
    pub fn write_interruptions(&self, found: &MeasuredInterruptions) -> Result<(), ResultsError> {
        found.write(&self.partial)
    }

    /// Writes `sweep.json`, the trials over a series of offered rates.
    pub fn write_sweep(&self, sweep: &Sweep) -> Result<(), ResultsError> {
        write_json(&self.partial.join("sweep.json"), sweep)
    }

    /// Completes the run: renames its folder from `<repetition>.partial` to `<repetition>`.
    pub fn finish(self) -> Result<(), ResultsError> {
        fs::rename(&self.partial, &self.whole).map_err(ResultsError::io(self.partial))
    }
}

/// Reads every JSON file in the subfolder `below` of a results folder, in the order of their names. Also returns a
/// sentence for each file that cannot be read.
///
/// # Errors
/// The folder cannot be read, or is a link.
pub fn read_each<T: DeserializeOwned>(
    dir: &Path,
    below: &str,
) -> Result<(Vec<T>, Vec<String>), ResultsError> {
    let below = inside(dir, below)?;
    let path = below.in_folder(dir);
    if !below.is_folder(dir) && path.exists() {
        let why = io::Error::other("not a folder, or a link: put the folder itself there");
        return Err(ResultsError::io(path)(why));
    }
    let mut names: Vec<String> = fs::read_dir(&path)
        .map_err(ResultsError::io(&path))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    for name in names {
        match read_json(dir, &format!("{below}/{name}")) {
            Ok(one) => read.push(one),
            Err(e) => problems.push(e.to_string()),
        }
    }
    Ok((read, problems))
}

/// The contents of a results folder.
#[derive(Debug)]
pub struct Results {
    /// Path of the folder.
    pub dir: PathBuf,
    /// The content of `experiment.json` in this folder.
    pub experiment: Experiment,
    /// Complete runs of the devices in `experiment`, sorted by device, then by repetition.
    pub runs: Vec<Run>,
    /// One sentence for each part that is missing or unreadable.
    pub problems: Vec<String>,
}

/// The results of one run. Parts that were not measured are `None`.
#[derive(Debug)]
pub struct Run {
    /// Id of the device that was measured.
    pub device_id: String,
    /// Number of the repetition, counted from 1.
    pub repetition: u32,
    /// The results folder that contains the run.
    pub dir: PathBuf,
    /// The run's own folder in `dir`.
    pub name: InsidePath,
    /// The measurement at the constant rate.
    pub cbr: Option<CbrResult>,
    /// The sweep over the offered rate.
    pub sweep: Option<Sweep>,
    /// The interruptions at the constant rate.
    pub interruptions: Option<MeasuredInterruptions>,
    /// Fraction of its time that a busy loop on a measured core lost to other programs before the run, 0..1. The value
    /// is the larger fraction of the two cores; `None` if it was not measured.
    pub taken: Option<f64>,
}

impl Run {
    /// Opens the run's samples; `None` when it has none.
    pub fn samples(&self) -> Result<Option<SampleReader>, ResultsError> {
        open_optional(&self.dir, &format!("{}/samples.parquet", self.name))?
            .map(|(file, path)| SampleReader::of(file, &path))
            .transpose()
    }

    /// Returns true if the run's folder has a plain file named `file`.
    pub fn has(&self, file: &str) -> bool {
        has(&self.dir, &format!("{}/{file}", self.name))
    }
}

impl Results {
    /// Reads a results folder. Only an `experiment.json` that is missing or unreadable is an error; runs that are
    /// missing, unfinished or damaged are named in `problems` and skipped.
    pub fn load(dir: &Path) -> Result<Results, ResultsError> {
        Self::load_below(dir, None)
    }

    /// Reads a results folder as [`Results::load`] does, from the subfolder `below` of `dir`. The path must not contain
    /// a link.
    pub fn load_below(dir: &Path, below: Option<&InsidePath>) -> Result<Results, ResultsError> {
        let named = |name: &str| match below {
            Some(below) => format!("{below}/{name}"),
            None => name.to_owned(),
        };
        let head = named(COMPARISON_HEAD);
        let read = read_head(dir, &head, Experiment::SCHEMA);
        let experiment: Experiment = match read {
            Err(ResultsError::Io { source, .. })
                if !dir.is_dir() || source.kind() == io::ErrorKind::NotFound =>
            {
                return Err(ResultsError::none(dir));
            }
            read => read?,
        };
        let mut results = Results {
            dir: dir.to_owned(),
            experiment,
            runs: Vec::new(),
            problems: Vec::new(),
        };
        let (devices, repetitions) = (
            results.experiment.devices.len() as u64,
            u64::from(results.experiment.settings.repetitions),
        );
        if devices.saturating_mul(repetitions) > MOST_RUNS {
            return Err(ResultsError::TooMany {
                path: dir.join(head),
                most: MOST_RUNS,
            });
        }
        for device in results.experiment.devices.clone() {
            check_device_id(&device.id)?;
            for repetition in 1..=results.experiment.settings.repetitions {
                let name = named(&format!("runs/{}/{repetition}", device.id));
                results.load_run(inside(dir, &name)?, &device.id, repetition);
            }
        }
        Ok(results)
    }

    fn load_run(&mut self, name: InsidePath, device_id: &str, repetition: u32) {
        let dir = self.dir.clone();
        if !name.is_folder(&dir) {
            let unfinished = inside(&dir, &format!("{name}.partial"));
            let unfinished = unfinished.is_ok_and(|it| it.is_folder(&dir));
            let state = if unfinished {
                "not finished"
            } else {
                "missing"
            };
            self.problems
                .push(format!("{device_id}, repetition {repetition}: {state}"));
            return;
        }
        let mut run = Run {
            device_id: device_id.to_owned(),
            repetition,
            dir: dir.clone(),
            name: name.clone(),
            cbr: None,
            sweep: None,
            interruptions: None,
            taken: taken(&self.experiment.manifest.noise),
        };
        match read_optional(&dir, &format!("{name}/cbr.json")) {
            Ok(cbr) => run.cbr = cbr,
            Err(error) => self.problems.push(error.to_string()),
        }
        match read_optional(&dir, &format!("{name}/sweep.json")) {
            Ok(sweep) => run.sweep = sweep,
            Err(error) => self.problems.push(error.to_string()),
        }
        match read_optional(&dir, &format!("{name}/{RECORDED_INTERRUPTIONS}")) {
            Ok(found) => run.interruptions = found,
            Err(error) => self.problems.push(error.to_string()),
        }
        self.runs.push(run);
    }
}

fn read_optional<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<Option<T>, ResultsError> {
    match read_json(dir, name) {
        Err(ResultsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// Checks the name of a file in the results folder `dir`; an error contains `dir`.
fn inside(dir: &Path, name: &str) -> Result<InsidePath, ResultsError> {
    InsidePath::new(name).map_err(|source: NotInside| ResultsError::NotInside {
        path: dir.to_owned(),
        source,
    })
}

/// Returns whether a results folder has a plain file with the given name, without a link on the path.
pub fn has(dir: &Path, name: &str) -> bool {
    InsidePath::new(name).is_ok_and(|name| name.is_file(dir))
}

/// Opens a plain file of a results folder by its name. Links are not followed.
///
/// # Errors
/// The file does not exist, or is not a plain file.
pub fn open(dir: &Path, name: &str) -> Result<File, ResultsError> {
    let name = inside(dir, name)?;
    name.open(dir)
        .map_err(ResultsError::io(name.in_folder(dir)))
}

/// Opens a file as [`open`] does, and returns it with its path for messages; `None` if it does not exist.
pub(crate) fn open_optional(
    dir: &Path,
    name: &str,
) -> Result<Option<(File, PathBuf)>, ResultsError> {
    match open(dir, name) {
        Ok(file) => Ok(Some((file, dir.join(name)))),
        Err(ResultsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Reads a plain file of a results folder by its name, up to the maximum size of a JSON file. Links are not followed.
///
/// # Errors
/// The file does not exist, is not a plain file, or is larger than the maximum size of a JSON file.
pub fn read(dir: &Path, name: &str) -> Result<Vec<u8>, ResultsError> {
    let name = inside(dir, name)?;
    name.read(dir, MOST_BYTES)
        .map_err(ResultsError::io(name.in_folder(dir)))
}

/// Writes a file of a results folder atomically by its name; parent folders are created. Links are not followed.
///
/// # Errors
/// A part of the name is a link, or the file system returns an error.
pub fn write(dir: &Path, name: &str, text: &[u8]) -> Result<(), ResultsError> {
    inside(dir, name)?.write(dir, text)
}

/// Reads a JSON file of a results folder by its name. Links are not followed.
///
/// # Errors
/// The file does not exist, or does not have the expected form.
pub fn read_json<T: DeserializeOwned>(dir: &Path, name: &str) -> Result<T, ResultsError> {
    parse_json(&dir.join(name), &read(dir, name)?)
}

fn parse_json<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, ResultsError> {
    serde_json::from_slice(text).map_err(|source| ResultsError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Reads the file that identifies a results folder, if its layout version is supported. The version is checked first,
/// because the other fields may differ in another version.
///
/// # Errors
/// The file cannot be read, or has another layout.
pub fn read_head<T: DeserializeOwned>(
    dir: &Path,
    name: &str,
    supported: u32,
) -> Result<T, ResultsError> {
    let text = read(dir, name)?;
    let path = dir.join(name);
    let value: serde_json::Value = parse_json(&path, &text)?;
    let found = value["schema"].as_u64().unwrap_or(0) as u32;
    if found != supported {
        return Err(ResultsError::Schema {
            path,
            found,
            supported,
        });
    }
    parse_json(&path, &text)
}
