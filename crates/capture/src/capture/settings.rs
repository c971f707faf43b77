//! The settings of a capture, and the reasons why it cannot begin.

use crate::analyser;
use crate::disk::DiskError;
use crate::dump::{Roll, Target};
use crate::filter::MOST_FILTERS;
use crate::keeper;
use crate::ring::{Ring, RingError};
use crate::trigger::Trigger;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The settings of a capture.
#[derive(Debug)]
pub struct Settings {
    /// Size of the ring in bytes.
    pub ring_bytes: u64,
    /// Size in bytes to which the ring can be enlarged while the capture runs.
    pub most_bytes: u64,
    /// Size in bytes of a bucket, the unit in which the ring is divided.
    pub bucket_bytes: usize,
    /// Snap length: number of bytes that are stored of each frame.
    pub snap_bytes: usize,
    /// Triggers of the capture.
    pub triggers: Vec<Trigger>,
    /// Analysers of the capture.
    pub analysers: Vec<analyser::Settings>,
    /// Destination of dumps; without a destination, triggers are only counted.
    pub target: Option<Target>,
    /// Size and time limits at which a dump file ends and its next file begins.
    pub roll: Roll,
    /// True if dump files in a folder are compressed by zstd. A single file for all dumps is compressed if its name
    /// ends in `.zst`.
    pub zstd: bool,
    /// Names of the ports; the index of a name is the number of its port.
    pub ports: Vec<String>,
    /// Settings of the ring on disk; none for no ring on disk.
    pub disk: Option<keeper::Settings>,
    /// Maximum number of flows in the flow table; 0 for no table.
    pub flows: usize,
    /// Longest time for which buckets are hidden from readers, as in Gallenmüller 2021; none if readers see packets as
    /// soon as they are published.
    pub classic: Option<Duration>,
    /// True if the trigger thread polls without rest, so that triggers fire without delay.
    pub polls: bool,
    /// Description of the source of timestamps, for the comments in dump files.
    pub times: String,
    /// Callback that reports failures while the capture ends, when its status is not available any more.
    pub tell: fn(&str),
}

impl Settings {
    /// Creates the ring, with an initial size of `first_bytes`.
    pub(super) fn ring(&self, first_bytes: u64) -> Result<Arc<Ring>, RingError> {
        let most_bytes = self.most_bytes.max(self.ring_bytes);
        match self.classic {
            None => Ring::new(first_bytes, most_bytes, self.bucket_bytes),
            Some(hold) => Ring::classic(first_bytes, most_bytes, self.bucket_bytes, hold),
        }
    }
}

/// The reason why a capture cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The ring cannot be created.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The number of triggers exceeds the maximum; the value is the number.
    #[error("{0} triggers: the maximum is {MOST_FILTERS}")]
    TooManyTriggers(usize),
    /// The destination of dumps cannot be written to.
    #[error("{what}: {error}")]
    Output {
        /// Name of the destination of dumps.
        what: String,
        /// Error that the operating system reported.
        error: io::Error,
    },
    /// The ring on disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An analyser cannot begin; the text is the reason.
    #[error("{0}")]
    Analyser(String),
    /// The system refuses a call.
    #[error(transparent)]
    System(#[from] taut_sys::Error),
}
