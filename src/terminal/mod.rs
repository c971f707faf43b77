//! Terminal output common to the commands that measure: exclusive use of the machine, a progress bar, and the final
//! output.

pub mod conversation;
pub mod print;
pub mod quantity;
pub mod secrets;
pub mod socket;
pub mod watch;

use crate::exit::{self, Failure};
use crate::report;
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_bench::benchmark::Observer;
use taut_host::private::{Claim, LockError, MEASURING, MEASURING_PATIENCE};
use taut_results::LeftOut;

/// Measures while no other measurement runs, with a progress bar, and shows the resulting folder. After Ctrl-C, the
/// folder contains the completed part.
pub fn measure_alone<E: Into<Failure>>(
    json: bool,
    measure: impl FnOnce(&mut Bar, &AtomicBool) -> Result<PathBuf, E>,
) -> Result<(), Failure> {
    let _alone = Alone::claim()?;
    let stop = exit::stop_flag()?;
    let mut bar = Bar::new();
    let measured = measure(&mut bar, stop);
    bar.clear();
    report::show(&measured.map_err(Into::into)?, json)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted(
            "interrupted: only complete results are shown".to_string(),
        ));
    }
    Ok(())
}

/// The lock of this machine for measuring: two measurements on the same cores would disturb each other.
pub struct Alone {
    _claim: Claim,
}

impl Alone {
    /// Takes the machine's lock for measuring, as [`Alone::claim_for`] does.
    pub fn claim() -> Result<Self, Failure> {
        Self::claim_for(MEASURING)
    }

    /// Takes the machine's lock for measuring or for experiments, which the kernel releases however this process ends.
    ///
    /// Waits for another measurement to end, for at most [`MEASURING_PATIENCE`].
    pub fn claim_for(what: &str) -> Result<Self, Failure> {
        let stop = exit::stop_flag()?;
        let minutes = MEASURING_PATIENCE.as_secs() / 60;
        let told = |held: &LockError| {
            print::note(format_args!(
                "another taut measures on this machine ({held}): waiting up to {minutes} minutes for it to end"
            ));
        };
        match Claim::wait_for(what, MEASURING_PATIENCE, stop, told) {
            Ok(_claim) => Ok(Self { _claim }),
            Err(LockError::Held { .. }) if stop.load(Ordering::Relaxed) => Err(
                Failure::Interrupted("stopped before anything was measured".to_string()),
            ),
            Err(held @ LockError::Held { .. }) => Err(Failure::Missing(format!(
                "another taut still measures on this machine after {minutes} minutes ({held}); two measurements would disturb each other"
            ))),
            Err(e) => Err(Failure::Missing(format!(
                "cannot lock this machine for measuring: {e}"
            ))),
        }
    }
}

/// Time between two progress lines within the same tenth (10 %) of the progress, if standard error is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// The progress bar, or lines if standard error is no terminal. It is redrawn only between measurements, as redrawing
/// uses one of the two measuring cores.
pub struct Bar {
    bar: ProgressBar,
    lines: Lines,
    /// True if sentences about the results so far are printed.
    has_findings: bool,
}

/// The rule by which progress lines are printed: the first in each tenth of the progress, and a further one when
/// [`BETWEEN_LINES`] has passed since the last.
#[derive(Default)]
struct Lines {
    /// Time of the last printed line, and its progress in tenths; `None` before the first line.
    last: Option<(Instant, u128)>,
}

impl Lines {
    /// Returns true if a line is to be printed now. The caller then prints it.
    fn is_due(&mut self, now: Instant, percent: u128) -> bool {
        let tenth = percent / 10;
        let due = self.last.is_none_or(|(at, printed)| {
            tenth > printed || now.saturating_duration_since(at) >= BETWEEN_LINES
        });
        if due {
            self.last = Some((now, tenth));
        }
        due
    }
}

impl Bar {
    pub fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            lines: Lines::default(),
            has_findings: false,
        }
    }

    /// Returns the bar, which prints sentences about the results so far if `has_findings` is true.
    pub fn with_findings(self, has_findings: bool) -> Self {
        Self {
            has_findings,
            ..self
        }
    }
}

impl Bar {
    /// Removes the progress bar from the terminal.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Bar {
    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        let done = done.min(total);
        let left = (total - done).as_secs();
        self.bar.set_length(total.as_millis() as u64);
        self.bar.set_position(done.as_millis() as u64);
        self.bar
            .set_message(format!("{}:{:02} left  {what}", left / 60, left % 60));
        self.bar.tick();
        let percent = 100 * done.as_millis() / total.as_millis().max(1);
        if self.bar.is_hidden() && self.lines.is_due(Instant::now(), percent) {
            print::say(format_args!(
                "{percent:>3} %  {}:{:02} left  {what}",
                left / 60,
                left % 60
            ));
        }
    }

    fn left_out(&mut self, left_out: &LeftOut) {
        self.bar.suspend(|| {
            print::say(format_args!(
                "skipped: {}: {} ({})",
                left_out.what, left_out.why, left_out.how
            ));
        });
    }

    fn note(&mut self, text: &str) {
        self.bar
            .suspend(|| print::say(format_args!("note: {text}")));
    }

    fn finding(&mut self, text: &str) {
        if self.has_findings {
            self.bar.suspend(|| print::say(text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_printed_at_each_tenth_and_every_few_seconds() {
        let begun = Instant::now();
        let mut lines = Lines::default();
        let calls = [
            (0, 0, true),
            (1, 9, false),
            (2, 10, true),
            (3, 9, false),
            (6, 11, false),
            (7, 12, true),
            (8, 35, true),
        ];
        for (second, percent, due) in calls {
            let now = begun + Duration::from_secs(second);
            assert_eq!(lines.is_due(now, percent), due, "{second} s, {percent} %");
        }
    }
}
