//! The reasons why a device could not be set up or measured.

use taut_host::{BaselineError, DeviceError, TestbedError};
use taut_port::PortError;
use taut_results::ResultsError;
use taut_traffic::TrialError;

/// The reason why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user stopped the run.
    #[error("the run was stopped before it finished")]
    Stopped,
    /// The results cannot be written, which ends the experiment.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The load generator cannot be connected to the device.
    #[error(transparent)]
    Instrument(TrialError),
    /// The generator's core cannot be used.
    #[error(transparent)]
    Core(#[from] taut_host::AffinityError),
    /// The device does not work on this machine.
    #[error("{0}")]
    Device(String),
}

impl From<TrialError> for RunError {
    fn from(e: TrialError) -> Self {
        match e {
            TrialError::Stopped => Self::Stopped,
            other => Self::Instrument(other),
        }
    }
}

impl From<PortError> for RunError {
    fn from(e: PortError) -> Self {
        Self::Instrument(e.into())
    }
}

impl From<taut_sys::Error> for RunError {
    fn from(e: taut_sys::Error) -> Self {
        PortError::from(e).into()
    }
}

impl From<TestbedError> for RunError {
    fn from(e: TestbedError) -> Self {
        Self::Device(e.to_string())
    }
}

impl From<DeviceError> for RunError {
    fn from(e: DeviceError) -> Self {
        Self::Device(e.to_string())
    }
}

impl From<BaselineError> for RunError {
    fn from(e: BaselineError) -> Self {
        Self::Device(e.to_string())
    }
}
