//! The soak: a constant rate for hours in constant memory, with every interval written as soon as it ends.

use super::results::{IntervalFile, Part, Soak, SoakInterval};
use super::session::{Progress, Session, counts};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::Duration;
use taut_bench::device::RunError;
use taut_measure::quantity::rate;
use taut_measure::{LatencyHistogram, Summary};
use taut_results::ResultsError;
use taut_traffic::{SoakedInterval, Soaking, Trial};

/// Number of interval buffers that circulate between the measuring and the writing thread, enough for a slow disk.
const SPARE: usize = 6;

/// Interval at which the writer checks for finished intervals.
const LOOK: Duration = Duration::from_millis(50);

/// Returns the line of the intervals file for an interval of `seconds`; `None` for the placeholder before the first
/// interval.
fn line(interval: &SoakedInterval, interval_seconds: f64, seconds: f64) -> Option<SoakInterval> {
    Some(SoakInterval {
        start_seconds: interval.number? as f64 * interval_seconds,
        seconds,
        sent: interval.sent.saturating_sub(interval.refused),
        received: interval.received,
        refused: interval.refused,
        latency: Summary::from_histogram(&interval.latency),
    })
}

/// Returns the number of packets of an interval (an integer, at least 1), and the length in seconds that these packets
/// need at `rate_pps`.
fn interval(rate_pps: f64, asked_seconds: f64) -> (u64, f64) {
    let packets = (rate_pps * asked_seconds).round().max(1.0);
    (packets as u64, packets / rate_pps)
}

/// The writer of finished intervals, which runs in a thread of its own.
struct Writer<'a, 'b> {
    file: &'a mut IntervalFile,
    progress: &'a mut Progress<'b>,
    /// Description of the soak in the progress display.
    what: &'a str,
    interval_seconds: f64,
    /// Flag that the user sets to stop the soak.
    stop: &'a AtomicBool,
    /// Flag that the writer sets to end the soak.
    halt: &'a AtomicBool,
}

impl Writer<'_, '_> {
    /// Writes each interval when it is finished, until the channel is closed. Returns the latencies of all written
    /// intervals.
    fn run(
        self,
        is_finished: Receiver<Box<SoakedInterval>>,
        give_back: SyncSender<Box<SoakedInterval>>,
    ) -> Result<LatencyHistogram, ResultsError> {
        let mut whole = LatencyHistogram::new();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                self.halt.store(true, Ordering::Relaxed);
            }
            match is_finished.try_recv() {
                Ok(interval) => {
                    let length = self.interval_seconds;
                    if let Some(line) = line(&interval, length, length) {
                        whole.merge(&interval.latency);
                        if let Err(e) = self.file.push(&line) {
                            // The soak ends, because the results of later intervals could not be stored either.
                            self.halt.store(true, Ordering::Relaxed);
                            return Err(e);
                        }
                    }
                    let _ = give_back.try_send(interval);
                    self.progress.tell(self.what);
                }
                Err(TryRecvError::Empty) => std::thread::sleep(LOOK),
                Err(TryRecvError::Disconnected) => return Ok(whole),
            }
        }
    }
}

/// Writes the intervals that the record still contains at the end of the soak, and adds their latencies to `whole`.
fn write_last(
    [before, present]: &[Box<SoakedInterval>; 2],
    (rate_pps, interval_seconds): (f64, f64),
    file: &mut IntervalFile,
    whole: &mut LatencyHistogram,
) -> Result<(), ResultsError> {
    if let Some(line) = line(before, interval_seconds, interval_seconds) {
        whole.merge(&before.latency);
        file.push(&line)?;
    }
    let seconds = (present.sent as f64 / rate_pps).min(interval_seconds);
    if present.sent > 0
        && let Some(line) = line(present, interval_seconds, seconds)
    {
        whole.merge(&present.latency);
        file.push(&line)?;
    }
    Ok(())
}

/// Runs a soak at `rate_pps`. If the soak is stopped, all complete intervals remain in the folder.
pub(super) fn run(session: &mut Session<'_, '_>, rate_pps: f64) -> Result<(), RunError> {
    let (per_interval, interval_seconds) =
        interval(rate_pps, session.settings.soak_interval_seconds);
    let ns_per_tick = session.instrument.clock().to_ns(1);
    let (mut record, is_finished, give_back) = Soaking::new(ns_per_tick, per_interval, SPARE);
    let trial = Trial {
        rate_pps,
        duration: Duration::from_secs_f64(session.settings.soak_seconds),
    };
    let mut file = session.folder.begin_soak()?;
    let what = format!(
        "{} {}: {}",
        session.sizes[0],
        Part::Soak.name(),
        rate(rate_pps)
    );
    let halt = AtomicBool::new(false);
    let writer = Writer {
        file: &mut file,
        progress: &mut *session.progress,
        what: &what,
        interval_seconds,
        stop: session.stop,
        halt: &halt,
    };
    let live = session.live.as_mut();
    let instrument = &mut *session.instrument;
    let (tally, soaked, written) = std::thread::scope(|scope| {
        let writer = scope.spawn(move || writer.run(is_finished, give_back));
        let tally = instrument.run_watched(trial, &mut record, live, &halt);
        // Finishing the record closes the channel, which ends the writer.
        let soaked = record.finish();
        let written = writer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (tally, soaked, written)
    });
    let mut whole = written?;
    let lengths = (rate_pps, interval_seconds);
    write_last(&soaked.last, lengths, &mut file, &mut whole)?;
    let account = soaked.sequence.finish(tally.sent + tally.refused);
    session.folder.write_soak(&Soak {
        size: session.sizes[0].to_string(),
        counts: counts(rate_pps, &tally, &account),
        latency: Summary::from_histogram(&whole),
        late: soaked.late,
        skipped_intervals: soaked.skipped,
    })?;
    if tally.stopped {
        return Err(RunError::Stopped);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soak_interval_contains_a_whole_number_of_packets() {
        assert_eq!(interval(1000.0, 0.5), (500, 0.5));
        // The interval has one packet, not 1.4, so that the intervals of an hour add up to an hour.
        assert_eq!(interval(14.0, 0.1), (1, 1.0 / 14.0));
        assert_eq!(interval(0.5, 1.0), (1, 2.0));
    }
}
