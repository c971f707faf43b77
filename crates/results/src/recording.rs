//! The folder of `taut generate --out`: samples that are written during the measurement, the latencies as a histogram
//! log, the slowest packets as a capture, and the summary.
//!
//! ```text
//! DIR/summary.json           what `--json` prints at the end; written last
//! DIR/samples.parquet        one row per packet sent (or samples.csv)
//! DIR/latency.hlog           the latencies as an HdrHistogram log
//! DIR/slowest.json           the slowest packets and the causes of their delay
//! DIR/interruptions.json     interruptions of the cores of generator and device
//! DIR/machine.json           facts about the machine
//! DIR/inside/latency.hlog    latencies of the device only, with a tap
//! DIR/worst.pcapng           the slowest packets and their neighbours, on request
//! DIR/report.html, figures/  made from the above
//! ```
//!
//! With several streams the samples, latency.hlog, slowest.json and worst.pcapng are in a folder per stream, `1-NAME`,
//! `2-NAME` and so on.

use super::error::ResultsError;
use super::interruptions::{MeasuredInterruptions, RECORDED_INTERRUPTIONS};
use super::packets::{PacketFormat, PacketSample, PacketWriter};
use super::whole_file::{write_json, write_whole};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use taut_host::Machine;
use taut_measure::LatencyHistogram;
use taut_port::pcap::{Annotated, write_annotated};
use taut_sys::Clock;
use taut_traffic::{Arrived, Blocks, Sampler, sampler};

/// File with the latencies of a stream as an HdrHistogram log.
pub const RECORDED_LATENCIES: &str = "latency.hlog";

/// File with the slowest packets of a stream.
pub const RECORDED_SLOWEST: &str = "slowest.json";

/// File with the facts about the machine that sent the traffic.
pub const RECORDED_MACHINE: &str = "machine.json";

/// Returns the name of each stream's subfolder in the recording's folder. The name is empty for a single stream, which
/// has no subfolder.
pub fn stream_names(names: &[String]) -> Vec<String> {
    match names {
        [_] => vec![String::new()],
        names => (1..)
            .zip(names)
            .map(|(number, name)| format!("{number}-{}", plain(name)))
            .collect(),
    }
}

/// The results folder of a run of `taut generate`, to which the running measurement writes.
#[derive(Debug)]
pub struct Recording {
    dir: PathBuf,
    /// The folder of each stream; `dir` itself if there is only one stream.
    streams: Vec<PathBuf>,
    /// True if the folder existed before the recording.
    was_there: bool,
}

impl Recording {
    /// Makes the folder. A folder that contains a recording already is an error.
    pub fn create(dir: &Path, stream_names: &[String]) -> Result<Self, ResultsError> {
        let was_there = dir.is_dir();
        fs::create_dir_all(dir).map_err(ResultsError::io(dir))?;
        let folder = |name: String| match name.is_empty() {
            true => dir.to_owned(),
            false => dir.join(name),
        };
        let names = self::stream_names(stream_names);
        let streams: Vec<_> = names.into_iter().map(folder).collect();
        for stream in &streams {
            fs::create_dir_all(stream).map_err(ResultsError::io(stream))?;
            let files = [
                "samples.parquet",
                "samples.csv",
                RECORDED_LATENCIES,
                RECORDED_SLOWEST,
                "inside/latency.hlog",
                "worst.pcapng",
            ];
            let mut paths = files.map(|file| stream.join(file)).to_vec();
            let own = ["summary.json", RECORDED_INTERRUPTIONS, RECORDED_MACHINE];
            paths.extend(own.map(|file| dir.join(file)));
            if let Some(path) = paths.into_iter().find(|path| path.exists()) {
                return Err(ResultsError::Exists { path });
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            streams,
            was_there,
        })
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Removes the sample files, and the folders that become empty, after a run in which nothing was measured.
    pub fn discard(self) {
        for stream in &self.streams {
            for file in ["samples.parquet", "samples.csv"] {
                // An error is ignored, because the file may not exist yet.
                let _ = fs::remove_file(stream.join(file));
            }
            if *stream != self.dir {
                let _ = fs::remove_dir(stream);
            }
        }
        if !self.was_there {
            let _ = fs::remove_dir(&self.dir);
        }
    }

    /// Starts a thread that writes the samples of the stream with index `stream`. The frame sizes of successive packets
    /// are `sizes` in bytes, repeated; they are unknown if `sizes` is empty. Returns the thread, and the sampler to
    /// which the generator's loop passes the samples.
    pub fn sample(
        &self,
        stream: usize,
        format: PacketFormat,
        clock: &Clock,
        sizes: Arc<[u16]>,
    ) -> Result<(Sampler, SampleThread), ResultsError> {
        let dir = &self.streams[stream];
        let writer = PacketWriter::create(dir, format)?;
        let (sampler, blocks) = sampler(self.streams.len());
        let problem = Arc::<OnceLock<String>>::default();
        let told = Arc::clone(&problem);
        let ns_per_tick = clock.to_ns(1);
        let thread = std::thread::Builder::new()
            .name("samples".to_string())
            .spawn(move || write_all(writer, &blocks, ns_per_tick, &sizes, &told))
            .map_err(ResultsError::io(dir))?;
        Ok((sampler, SampleThread { thread, problem }))
    }

    /// Writes a stream's `latency.hlog` as a log with one interval, which begins at `start` and lasts `duration`.
    pub fn write_histogram(
        &self,
        stream: usize,
        histogram: &LatencyHistogram,
        start: SystemTime,
        duration: Duration,
    ) -> Result<(), ResultsError> {
        write_log(
            &self.streams[stream].join(RECORDED_LATENCIES),
            histogram,
            start,
            duration,
        )
    }

    /// Writes a stream's `slowest.json`, its slowest packets with their causes.
    pub fn write_slowest(
        &self,
        stream: usize,
        slowest: &impl Serialize,
    ) -> Result<(), ResultsError> {
        write_json(&self.streams[stream].join(RECORDED_SLOWEST), slowest)
    }

    /// Writes `inside/latency.hlog`, in the form of [`Self::write_histogram`]. It contains the latencies that a wiretap
    /// on the device's links measured.
    pub fn write_inside(
        &self,
        histogram: &LatencyHistogram,
        start: SystemTime,
        duration: Duration,
    ) -> Result<(), ResultsError> {
        let dir = self.dir.join("inside");
        fs::create_dir_all(&dir).map_err(ResultsError::io(&dir))?;
        write_log(&dir.join("latency.hlog"), histogram, start, duration)
    }

    /// Writes a stream's `worst.pcapng`, a capture of its slowest packets; `start` is the time at which the run began.
    pub fn write_worst(
        &self,
        stream: usize,
        frames: &[Arrived],
        clock: &Clock,
        start: SystemTime,
    ) -> Result<(), ResultsError> {
        let path = self.streams[stream].join("worst.pcapng");
        let start_ns = start
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64);
        let comments: Vec<String> = frames.iter().map(|frame| comment(frame, clock)).collect();
        let annotated = frames
            .iter()
            .zip(&comments)
            .map(|(frame, comment)| Annotated {
                time_ns: start_ns + clock.to_ns(frame.seen_ticks) as u64,
                frame: &frame.bytes,
                len_bytes: frame.len_bytes,
                comment,
            });
        let mut file = Vec::new();
        write_annotated(&mut file, annotated).map_err(ResultsError::io(&path))?;
        write_whole(&path, &file)
    }

    /// Writes `interruptions.json`, the interruptions of the generator's and of the device's core.
    pub fn write_interruptions(&self, found: &MeasuredInterruptions) -> Result<(), ResultsError> {
        found.write(&self.dir)
    }

    /// Writes the facts about this machine to `machine.json`.
    pub fn write_machine(&self) -> Result<(), ResultsError> {
        write_json(&self.dir.join(RECORDED_MACHINE), &Machine::read())
    }

    /// Writes `summary.json`, the summary of the run's results.
    pub fn write_summary(&self, summary: &impl Serialize) -> Result<(), ResultsError> {
        write_json(&self.dir.join("summary.json"), summary)
    }
}

fn write_log(
    path: &Path,
    histogram: &LatencyHistogram,
    start: SystemTime,
    duration: Duration,
) -> Result<(), ResultsError> {
    let mut text = Vec::new();
    histogram
        .write_hlog(&mut text, start, duration, None)
        .map_err(|source| ResultsError::Histogram {
            path: path.to_owned(),
            source,
        })?;
    write_whole(path, &text)
}

/// Returns a stream's name with the characters that are invalid in a folder's name replaced by `_`.
fn plain(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    name.chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

fn comment(frame: &Arrived, clock: &Clock) -> String {
    let latency = taut_measure::quantity::time(clock.to_ns(frame.latency_ticks));
    let seen = clock.to_ns(frame.seen_ticks) / 1e9;
    let what = match frame.rank {
        Some(rank) => format!("worst {rank}: "),
        None => String::new(),
    };
    format!(
        "{what}latency {latency}, packet {}, {seen:.6} s after the start",
        frame.sequence
    )
}

/// The thread that writes the samples of a stream to a file.
pub struct SampleThread {
    thread: JoinHandle<SamplesWritten>,
    problem: Arc<OnceLock<String>>,
}

impl SampleThread {
    /// Returns the thread's first error, after which the thread writes nothing more; `None` without an error.
    pub fn problem(&self) -> Option<&str> {
        self.problem.get().map(String::as_str)
    }

    /// Waits until the file is closed (the [`Sampler`] must have finished).
    pub fn join(self) -> SamplesWritten {
        let died = || {
            let source = std::io::Error::other("the writing thread died");
            SamplesWritten {
                problem: Some(ResultsError::io("samples")(source)),
                ..SamplesWritten::default()
            }
        };
        self.thread.join().unwrap_or_else(|_| died())
    }
}

/// The result of writing a stream's samples.
#[derive(Debug, Default)]
pub struct SamplesWritten {
    /// Number of rows in the file.
    pub rows: u64,
    /// Number of packets that are missing in the file because of an error.
    pub lost: u64,
    /// The error because of which packets are missing; `None` without an error.
    pub problem: Option<ResultsError>,
}

fn write_all(
    mut writer: PacketWriter,
    blocks: &Blocks,
    ns_per_tick: f64,
    sizes: &[u16],
    problem: &OnceLock<String>,
) -> SamplesWritten {
    let (mut failed, mut taken) = (None, 0);
    while let Some(block) = blocks.next() {
        taken += block.packets.len() as u64;
        // After an error, samples are only counted.
        let left = match failed {
            None => &block.packets[..],
            Some(_) => &[],
        };
        for (sequence, packet) in (block.first..).zip(left) {
            let sample = PacketSample {
                frame_bytes: size_of(sequence, sizes),
                ..PacketSample::of(sequence, packet, ns_per_tick)
            };
            if let Err(error) = writer.push(&sample) {
                let _ = problem.set(error.to_string());
                failed = Some(error);
                break;
            }
        }
        blocks.give_back(block);
    }
    let (rows, unfinished) = writer.end(failed.is_some());
    SamplesWritten {
        rows,
        lost: taken - rows.min(taken),
        problem: failed.or(unfinished),
    }
}

/// Returns the frame size of packet `sequence`; `None` if there are no sizes.
fn size_of(sequence: u64, sizes: &[u16]) -> Option<u16> {
    let place = sequence.checked_rem(sizes.len() as u64)?;
    sizes.get(place as usize).copied()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SampleReader;
    use taut_traffic::Record;

    const CLOCK: Clock = Clock {
        hz: 2e9,
        error_ppm: 0.0,
    };

    #[test]
    fn samples_are_stored_in_nanoseconds_and_never_overwrite_files() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["only".to_string()];
        let recording = Recording::create(dir.path(), &names).unwrap();
        let (mut sampler, thread) = recording
            .sample(0, PacketFormat::Parquet, &CLOCK, Arc::new([64, 128]))
            .unwrap();
        for sequence in 0..10_000 {
            sampler.sent(sequence, sequence * 2000, 20);
            sampler.received(sequence, 200, 0);
        }
        assert_eq!(sampler.finish().not_kept, 0);
        let written = thread.join();
        assert!(written.rows == 10_000 && written.lost == 0 && written.problem.is_none());
        let mut reader = SampleReader::open(&dir.path().join("samples.parquet")).unwrap();
        let sample = reader.next_block().unwrap().unwrap()[9_999];
        assert_eq!(
            (
                sample.sequence,
                sample.intended_send_ns,
                sample.send_delay_ns,
                sample.latency_ns
            ),
            (9_999, 9_999_000, 10, Some(100))
        );
        let again = Recording::create(dir.path(), &names)
            .unwrap_err()
            .to_string();
        assert!(
            again.contains("samples.parquet") && again.contains("exists"),
            "{again}"
        );
    }

    #[test]
    fn the_frame_size_of_a_sample_follows_its_sequence_number() {
        let sizes = [0, 1, 2].map(|sequence| size_of(sequence, &[64, 128]));
        assert_eq!(sizes, [Some(64), Some(128), Some(64)]);
        assert_eq!(size_of(7, &[]), None);
    }

    #[test]
    fn samples_that_a_full_disk_refuses_are_lost_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording::create(dir.path(), &["only".to_string()]).unwrap();
        let partial = dir.path().join("samples.parquet.partial");
        std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
        let (mut sampler, thread) = recording
            .sample(0, PacketFormat::Parquet, &CLOCK, Arc::new([64, 128]))
            .unwrap();
        for sequence in 0..10_000 {
            sampler.sent(sequence, sequence * 2000, 20);
        }
        assert_eq!(sampler.finish().not_kept, 0);
        let written = thread.join();
        assert_eq!((written.rows, written.lost), (0, 10_000), "{written:?}");
        assert!(written.problem.unwrap().to_string().contains("space"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn streams_with_similar_names_have_separate_folders() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["a/b", "a b"].map(String::from);
        let recording = Recording::create(dir.path(), &names).unwrap();
        let mut histogram = LatencyHistogram::new();
        histogram.record(5);
        recording
            .write_histogram(1, &histogram, SystemTime::now(), Duration::from_secs(1))
            .unwrap();
        assert!(dir.path().join("1-a_b").is_dir());
        assert!(dir.path().join("2-a_b/latency.hlog").is_file());
    }
}
