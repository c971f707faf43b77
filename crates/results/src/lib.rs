//! Writes and reads results folders. An incomplete part is never read as a complete one, and a missing part does not
//! prevent reading the rest.
//!
//! The types to know:
//!
//! - [`Manifest`]: the fields that every folder has: taut's version, the machine, its noise, and the completion.
//! - [`Recording`]: the folder of one measurement during the run; its [`SampleThread`] writes a row for each packet.
//! - [`Folder`] and [`Results`]: the folder of a comparison of devices, while it is written and after it was read.
//!
//! A measurement fills a folder ([`Recording`], [`Folder`], or [`PartsFolder`] for benchmarks), and its report reads
//! the folder again. Folders may come from untrusted sources, so no name leads out of the folder ([`InsidePath`],
//! [`read_json`], [`open`]). All files are written with [`write_json`] and [`write_whole`]: a file is either the old
//! one or the complete new one. [`PacketWriter`] writes `samples.parquet`, and [`SampleReader`] reads it. This crate
//! neither measures nor draws.
//!
//! Begin with `manifest.rs`, then `recording.rs`, then `folder.rs`.

#![forbid(unsafe_code)]

mod buckets;
mod error;
mod experiment;
mod folder;
mod inside;
mod interruptions;
mod manifest;
mod noise;
mod packets;
mod parts;
mod recording;
mod run;
mod samples;
mod stored_samples;
mod table;
mod whole_file;

pub use buckets::{buckets, histogram};
pub use error::{NotInside, ResultsError};
pub use experiment::{Clock, DeviceInfo, Experiment, Kind, Mode, PingPong, Settings, Transport};
pub use folder::{
    COMPARISON_HEAD, Folder, Results, Run, RunWriter, has, open, read, read_each, read_head,
    read_json, refuse_results, write,
};
pub use inside::{InsidePath, files_below};
pub use interruptions::{CoreInterruptions, MeasuredInterruptions, RECORDED_INTERRUPTIONS};
pub use manifest::{Completion, FailedAttempt, LeftOut, Manifest, Origin, hex, instant, moment};
pub use noise::{MOST_TAKEN, Noise, busy, busy_with, noise, programs, taken, taken_text};
pub use packets::{PacketFormat, PacketSample, PacketWriter};
pub use parts::PartsFolder;
pub use recording::{
    RECORDED_LATENCIES, RECORDED_MACHINE, RECORDED_SLOWEST, Recording, SampleThread,
    SamplesWritten, stream_names,
};
pub use run::{CbrResult, Sweep, SweepTrial};
pub use samples::{Sample, SampleReader, is_only_numbers};
pub use stored_samples::each_kept_sample;
pub use table::{Cells, write_table};
pub use whole_file::{write_json, write_whole, write_whole_with};
