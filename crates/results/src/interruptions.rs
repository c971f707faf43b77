//! `interruptions.json`: the interruptions of the generator's core and of the device's core in a measurement. The loop
//! on each core recorded its own interruptions.

use crate::error::ResultsError;
use crate::whole_file::write_whole;
use std::path::Path;

use serde::{Deserialize, Serialize};
use taut_model::Gap;
use taut_sys::{Clock, Interruption, LoggedInterruptions};
use taut_traffic::LoopInterruptions;

/// File with the interruptions of the cores of generator and device.
pub const RECORDED_INTERRUPTIONS: &str = "interruptions.json";

/// The interruptions of a measurement. Times are relative to the first scheduled packet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredInterruptions {
    /// Interruptions of the generator's loop.
    pub generator: CoreInterruptions,
    /// Interruptions of the device's loop; `None` if the device does not record them.
    pub device: Option<CoreInterruptions>,
}

/// The interruptions of one loop.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreInterruptions {
    /// Number of interruptions that were not recorded, because there was no space for them.
    pub unkept: u64,
    /// Start (ns, relative to the first scheduled packet) and length (ns) of each interruption, in order.
    pub each: Vec<(i64, u64)>,
}

impl MeasuredInterruptions {
    /// Returns the interruptions of the load generator's last trial: those in `own`, from the generator's loop, and
    /// those in `device_log`, from the device's loop. The device's are `None` without a log.
    ///
    /// # Errors
    /// The device's file cannot be read.
    pub fn of(
        own: &LoopInterruptions,
        device_log: Option<&Path>,
        clock: &Clock,
    ) -> Result<Self, taut_sys::Error> {
        let began = own.start_ticks();
        let device = device_log
            .map(|path| LoggedInterruptions::read(path).map(|log| device(&log, began, clock)))
            .transpose()?;
        Ok(Self {
            generator: CoreInterruptions {
                unkept: own.unkept(),
                each: in_ns(own.each(), began, clock),
            },
            device,
        })
    }

    /// Writes `interruptions.json`, without line breaks, because the file is long.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), ResultsError> {
        let path = dir.join(RECORDED_INTERRUPTIONS);
        let text = serde_json::to_vec(self).map_err(|source| ResultsError::Json {
            path: path.clone(),
            source,
        })?;
        write_whole(&path, &text)
    }
}

/// Selects the interruptions during the trial from the device's log, which begins at the start of the device.
/// Overwritten log entries count as not recorded only if the oldest remaining entry is already in the trial, because
/// only then may they belong to the trial.
fn device(log: &LoggedInterruptions, began: u64, clock: &Clock) -> CoreInterruptions {
    let in_trial = |one: &&Interruption| one.start_ticks + one.length_ticks > began;
    let first = log.each.iter().position(|one| in_trial(&one));
    CoreInterruptions {
        unkept: if first == Some(0) { log.overwritten } else { 0 },
        each: in_ns(first.map_or(&[], |first| &log.each[first..]), began, clock),
    }
}

fn in_ns(each: &[Interruption], began: u64, clock: &Clock) -> Vec<(i64, u64)> {
    let after = |ticks: u64| {
        let ns = clock.to_ns(ticks.abs_diff(began)).round() as i64;
        if ticks < began { -ns } else { ns }
    };
    let in_ns = |one: &Interruption| {
        let length = clock.to_ns(one.length_ticks).round() as u64;
        (after(one.start_ticks), length)
    };
    each.iter().map(in_ns).collect()
}

impl CoreInterruptions {
    /// Returns the interruptions as gaps, none of which is marked as a timer tick.
    pub fn gaps(&self) -> Vec<Gap> {
        let gap = |(start, length): &(i64, u64)| Gap {
            start_ns: *start as f64,
            length_ns: *length as f64,
            tick: false,
        };
        self.each.iter().map(gap).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_interruptions_are_timed_from_the_start_of_the_trial() {
        let clock = Clock {
            hz: 2e9,
            error_ppm: 0.0,
        };
        let one = |start_ticks, length_ticks| Interruption {
            start_ticks,
            length_ticks,
        };
        let mut log = LoggedInterruptions {
            each: vec![one(100, 50), one(900, 400), one(3_000, 8_000)],
            overwritten: 7,
            hz: 2e9,
        };
        let found = device(&log, 1_000, &clock);
        assert_eq!(
            (found.unkept, found.each),
            (0, vec![(-50, 200), (1_000, 4_000)])
        );
        log.each.remove(0);
        assert_eq!(device(&log, 1_000, &clock).unkept, 7);
        log.each.clear();
        assert_eq!(device(&log, 1_000, &clock), CoreInterruptions::default());
    }
}
