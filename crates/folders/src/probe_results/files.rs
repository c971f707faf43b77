//! The results folder of `taut probe client --out`.
//!
//! ```text
//! DIR/summary.json            what `--json` prints
//! DIR/samples.parquet         one row per probe (or samples.csv), with the columns of `taut generate --out`
//! DIR/latency.hlog            round trips as an HdrHistogram log
//! DIR/report.html, figures/   made from the above by [`super::write`]
//! ```

use super::ProbeReport;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use taut_bench::report::ReportError;
use taut_measure::LatencyHistogram;
use taut_results::{PacketFormat, PacketSample, PacketWriter, Recording, ResultsError};
use taut_traffic::probe::TrainResult;

/// A results folder to which a running measurement adds its samples.
pub struct ProbeFolder {
    recording: Recording,
    writer: Option<PacketWriter>,
    written: u64,
    first_due_ns: Option<u64>,
    problem: Option<ResultsError>,
}

impl ProbeFolder {
    /// Creates the results folder, unless it already contains results. Samples are stored only if a format is given.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created, or contains results.
    pub fn create(dir: &Path, format: Option<PacketFormat>) -> Result<Self, ResultsError> {
        let recording = Recording::create(dir, &[String::new()])?;
        let writer = format.map(|format| PacketWriter::create(dir, format));
        Ok(Self {
            recording,
            writer: writer.transpose()?,
            written: 0,
            first_due_ns: None,
            problem: None,
        })
    }

    /// Removes the folder, because nothing was measured.
    pub fn discard(self) {
        if let Some(writer) = self.writer {
            // No row was written, so there is no file whose errors could matter.
            let _ = writer.finish(true);
        }
        self.recording.discard();
    }

    /// Adds the samples of a repetition to the sample file.
    pub fn write(&mut self, train: &TrainResult) {
        let held = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        for probe in &train.probes {
            let Some(writer) = self.writer.as_mut().filter(|_| self.problem.is_none()) else {
                return;
            };
            let first_ns = *self.first_due_ns.get_or_insert(probe.due_ns);
            let pushed = writer.push(&PacketSample {
                sequence: self.written,
                intended_send_ns: probe.due_ns.saturating_sub(first_ns) as i64,
                send_delay_ns: held(probe.sent_ns.saturating_sub(probe.due_ns)),
                latency_ns: probe.rtt_ns.map(held),
                arrivals: probe.arrivals,
                reordered: probe.reordered,
                refused: probe.refused,
                corrupt: false,
                frame_bytes: None,
            });
            self.written += 1;
            self.problem = pushed.err();
        }
    }

    /// Closes the sample file, and writes histogram, summary and report. Adds the number of stored samples to `report`;
    /// returns the path of the page.
    ///
    /// # Errors
    /// Returns the first error. Everything that could be written is in the folder.
    pub fn finish(
        self,
        report: &mut ProbeReport,
        rtt: &LatencyHistogram,
        begun: SystemTime,
        duration: Duration,
    ) -> Result<PathBuf, ReportError> {
        let mut problem = self.problem;
        if let Some(writer) = self.writer {
            let (rows, why) = writer.end(problem.is_some());
            report.samples = Some(rows);
            problem = problem.or(why);
        }
        if rtt.count() > 0 {
            let written = self.recording.write_histogram(0, rtt, begun, duration);
            problem = problem.or(written.err());
        }
        let written = serde_json::to_value(&*report)
            .map_err(|e| ResultsError::io(self.recording.path())(e.into()))
            .and_then(|summary| self.recording.write_summary(&summary));
        match problem.or(written.err()) {
            Some(problem) => Err(problem.into()),
            None => super::write(self.recording.path()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::{TRAIN, train};
    use super::super::{ProbeAccount, ProbeReport};
    use super::*;
    use taut_results::Origin;

    #[test]
    fn probe_folders_contain_one_row_per_probe_and_a_summary() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = ProbeFolder::create(dir.path(), Some(PacketFormat::Csv)).unwrap();
        let mut account = ProbeAccount::new(None);
        for round_trips in [[Some(100), None], [Some(300), Some(50)]] {
            let train = train(&round_trips);
            account.add(&train);
            folder.write(&train);
        }
        let server = "192.0.2.1:9".parse().unwrap();
        let mut report = account.report(server, &TRAIN, None, Origin::default());
        let (now, length) = (SystemTime::now(), Duration::from_secs(1));
        folder
            .finish(&mut report, account.rtt(), now, length)
            .unwrap();
        let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let rows: Vec<String> = text("samples.csv").lines().map(String::from).collect();
        assert_eq!(rows.len(), 5);
        assert_eq!(rows[1], "0,0,10000,100000,1,false,false,false,");
        assert_eq!(rows[2], "1,5000000,10000,,0,false,false,false,");
        assert_eq!(report.samples, Some(4));
        let read: ProbeReport = serde_json::from_str(&text("summary.json")).unwrap();
        assert_eq!((read.probes, read.samples), (report.probes, Some(4)));
        assert!(text("figures/cdf.svg").contains("256 bytes to 192.0.2.1:9"));
        let log = LatencyHistogram::read_hlog(text("latency.hlog").as_bytes()).unwrap();
        assert_eq!(log.count(), 3);
        let again = ProbeFolder::create(dir.path(), None).err().unwrap();
        assert!(again.to_string().contains("exists"), "{again}");
    }

    #[test]
    fn a_discarded_probe_folder_is_deleted() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("probe");
        ProbeFolder::create(&dir, Some(PacketFormat::Parquet))
            .unwrap()
            .discard();
        assert!(!dir.exists());
    }
}
