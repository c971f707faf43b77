//! The results folder of an experiment: what is in it, written so that a part is never taken for
//! the whole, and read back tolerant of what is missing.
//!
//! ```text
//! DIR/experiment.json                    settings, machine, devices, how it ended
//! DIR/runs/<device>/<repetition>/        one device in one repetition; `.partial` until complete
//!     cbr.json                           counts and summaries at the constant rate
//!     latency.hlog                       the latencies as an HdrHistogram log
//!     samples.parquet                    one row per packet sent
//!     interruptions.json                 when the cores of generator and device were taken away
//!     sweep.json                         trials over the offered rate
//! DIR/figures/*.svg, DIR/report.html     made from the above by [`crate::report::write`]
//! ```

mod buckets;
mod error;
mod experiment;
mod folder;
mod interruptions;
mod kept;
mod packets;
mod parts;
mod recording;
mod run;
mod samples;
mod table;

pub(crate) use buckets::{buckets, histogram};
pub use error::ResultsError;
pub use experiment::{
    Clock, DeviceInfo, Experiment, Kind, LeftOut, Mode, Noise, PingPong, Settings, Stage,
    Transport, busy,
};
pub(crate) use folder::{COMPARISON_HEAD, read_each, read_head, refuse_results};
pub use folder::{
    Folder, Results, Run, RunWriter, read_json, write_json, write_whole, write_whole_with,
};
pub use interruptions::{CoreInterruptions, MeasuredInterruptions};
pub(crate) use kept::each_kept_sample;
pub use packets::{PacketFormat, PacketSample, PacketWriter};
pub(crate) use parts::PartsFolder;
pub(crate) use recording::{RECORDED_LATENCIES, RECORDED_SLOWEST, stream_folders};
pub use recording::{Recording, SampleThread};
pub use run::{CbrResult, Sweep, SweepTrial};
pub use samples::{Sample, SampleReader, SampleWriter, is_only_numbers};
pub use table::{Cells, write_table};
