//! The folder of `taut tap --out`.
//!
//! ```text
//! DIR/summary.json                       what `--json` prints; written last
//! DIR/<interface>/latency.hlog           time inside the device of packets that entered there
//! DIR/<interface>/flow-<n>/samples.parquet   one row per packet (or samples.csv)
//! ```
//!
//! Samples have the columns of `taut generate --out`. `intended_send_ns` is the time of entry, measured from the first
//! observation; `latency_ns` is the time inside; `arrivals` is the number of times that the packet left.

use super::report::TapReport;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use taut_measure::{Crossed, CrossingAccount};
use taut_results::{PacketFormat, PacketSample, PacketWriter, ResultsError, write_whole};

/// A folder into which a wiretap writes its packets and its report.
pub struct TapFolder {
    dir: PathBuf,
    format: Option<PacketFormat>,
    writers: BTreeMap<(usize, u16), PacketWriter>,
    problem: Option<ResultsError>,
}

impl TapFolder {
    /// Creates the folder. A folder that is not empty is rejected. Without a format no samples are stored.
    ///
    /// # Errors
    /// The folder cannot be created or is not empty.
    pub fn create(dir: &Path, format: Option<PacketFormat>) -> Result<Self, ResultsError> {
        fs::create_dir_all(dir).map_err(ResultsError::io(dir))?;
        let mut entries = fs::read_dir(dir).map_err(ResultsError::io(dir))?;
        if let Some(entry) = entries.next() {
            let path = entry.map_err(ResultsError::io(dir))?.path();
            return Err(ResultsError::Exists { path });
        }
        Ok(Self {
            dir: dir.to_owned(),
            format,
            writers: BTreeMap::new(),
            problem: None,
        })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Removes the folder if it is still empty.
    pub fn discard(self) {
        let _ = fs::remove_dir(&self.dir);
    }

    pub(super) fn write(&mut self, packet: &Crossed, interface: &str, first_ns: u64) {
        let Some(format) = self.format else { return };
        if self.problem.is_some() {
            return;
        }
        if let Err(problem) = self.try_write(packet, interface, first_ns, format) {
            self.problem = Some(problem);
        }
    }

    fn try_write(
        &mut self,
        packet: &Crossed,
        interface: &str,
        first_ns: u64,
        format: PacketFormat,
    ) -> Result<(), ResultsError> {
        use std::collections::btree_map::Entry;
        let writer = match self.writers.entry((packet.side, packet.flow)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let flow = format!("flow-{}", packet.flow);
                let dir = self.dir.join(interface).join(flow);
                fs::create_dir_all(&dir).map_err(ResultsError::io(&dir))?;
                entry.insert(PacketWriter::create(&dir, format)?)
            }
        };
        let held = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        writer.push(&PacketSample {
            sequence: packet.sequence,
            intended_send_ns: packet.entered_ns.saturating_sub(first_ns) as i64,
            send_delay_ns: 0,
            latency_ns: packet.left.map(|(_, ns)| held(ns)),
            arrivals: packet.departures,
            reordered: packet.reordered,
            refused: false,
            corrupt: false,
            frame_bytes: None,
        })
    }

    /// Closes the samples, and writes the histograms and the summary; returns the number of stored packets and the
    /// first error.
    pub(super) fn finish<'a>(
        self,
        sides: impl Iterator<Item = (&'a String, &'a CrossingAccount)>,
        begun: SystemTime,
        duration: Duration,
        report: &mut TapReport,
    ) -> (u64, Result<(), ResultsError>) {
        let mut problem = self.problem;
        let failed = problem.is_some();
        let mut kept = 0;
        for writer in self.writers.into_values() {
            let (rows, why) = writer.end(failed);
            kept += rows;
            problem = problem.or(why);
        }
        report.samples = Some(kept);
        for (interface, account) in sides.filter(|(_, account)| account.left() > 0) {
            let path = self.dir.join(interface).join("latency.hlog");
            let mut text = Vec::new();
            let written = account
                .latency
                .write_hlog(&mut text, begun, duration, None)
                .map_err(|source| ResultsError::Histogram {
                    path: path.clone(),
                    source,
                })
                .and_then(|()| {
                    let dir = self.dir.join(interface);
                    fs::create_dir_all(&dir).map_err(ResultsError::io(&dir))?;
                    write_whole(&path, &text)
                });
            problem = problem.or(written.err());
        }
        let text = serde_json::to_string_pretty(&report).unwrap_or_default() + "\n";
        let written = write_whole(&self.dir.join("summary.json"), text.as_bytes());
        problem = problem.or(written.err());
        (kept, problem.map_or(Ok(()), Err))
    }
}
