//! The resources that all measurements of a benchmark share, the unit (one part of a subject's measurement in one
//! repetition), and the reasons why a unit has no result.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use taut_host::baseline::BaselineError;
use taut_host::{AffinityError, CorePlan, DeviceError, TestbedError};
use taut_port::PortError;
use taut_results::FailedAttempt;
use taut_sys::Clock;
use taut_traffic::TrialError;

/// The resources that all measurements of a benchmark share: cores, clock, and the `taut` program.
#[derive(Debug, Clone, Copy)]
pub struct Rig<'a> {
    /// The list of failed attempts that were repeated.
    pub repeats: &'a Repeats,
    /// Path of the `taut` program.
    pub program: &'a Path,
    /// Cores of the generator (or receiver) and of the device.
    pub cores: &'a CorePlan,
    /// The clock of all timestamps.
    pub clock: Clock,
}

/// A list of failed attempts that were repeated. The code that repeats an attempt adds it to this list.
#[derive(Debug, Default)]
pub struct Repeats(Mutex<Vec<FailedAttempt>>);

impl Repeats {
    /// Notes that an attempt at `what` failed because of `why`.
    pub fn note(&self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push(FailedAttempt { what, why });
    }

    /// Removes and returns the attempts that were noted since the last call.
    pub(super) fn take(&self) -> Vec<FailedAttempt> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *noted)
    }
}

/// A single measurement: one part of one subject (such as a framework) in one repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit<P> {
    /// Index of the measured subject in the benchmark's list of subjects.
    pub subject: usize,
    /// The part of the subject that is measured, such as latency.
    pub part: P,
    /// Repetition, counted from 1.
    pub repetition: u32,
}

/// The reason why a measurement ([`Unit`]) has no result.
#[derive(Debug)]
pub enum Failed {
    /// The user stopped the measurement.
    Stopped,
    /// The measurement does not work on this machine; the value is the reason.
    Broken(String),
}

macro_rules! broken_from {
    ($($error:ty),*) => {$(
        impl From<$error> for Failed {
            fn from(e: $error) -> Self {
                Self::Broken(e.to_string())
            }
        }
    )*};
}
broken_from!(
    PortError,
    TestbedError,
    DeviceError,
    AffinityError,
    BaselineError,
    std::io::Error,
    taut_engine::ChainError,
    taut_wire::Error
);

impl From<TrialError> for Failed {
    fn from(e: TrialError) -> Self {
        match e {
            TrialError::Stopped => Self::Stopped,
            other => Self::Broken(other.to_string()),
        }
    }
}
