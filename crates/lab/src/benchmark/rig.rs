//! What the units of a benchmark share, what a unit is, and why one has no outcome.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use taut_host::{AffinityError, CorePlan, DeviceError, TestbedError};
use taut_port::PortError;
use taut_results::FailedAttempt;
use taut_sys::Clock;
use taut_traffic::TrialError;

/// What all units of a benchmark share.
#[derive(Debug, Clone, Copy)]
pub struct Rig<'a> {
    /// Attempts that failed and were made again.
    pub repeats: &'a Repeats,
    /// The `taut` program.
    pub program: &'a Path,
    /// Cores of generator (or receiver) and device.
    pub cores: &'a CorePlan,
    /// The clock of all stamps.
    pub clock: Clock,
}

/// Attempts that failed and were made again, noted by whoever makes them again.
#[derive(Debug, Default)]
pub struct Repeats(Mutex<Vec<FailedAttempt>>);

impl Repeats {
    /// Notes that an attempt at `what` failed.
    pub fn note(&self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), why.into());
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push(FailedAttempt { what, why });
    }

    /// Returns what was noted since it was asked last.
    pub(super) fn take(&self) -> Vec<FailedAttempt> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *noted)
    }
}

/// A part of one subject in one repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit<P> {
    /// Index of the subject.
    pub subject: usize,
    /// What of it is measured.
    pub part: P,
    /// Repetition, counted from 1.
    pub repetition: u32,
}

/// Why a unit has no outcome.
#[derive(Debug)]
pub enum Failed {
    /// Somebody told it to stop.
    Stopped,
    /// It does not work here.
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
