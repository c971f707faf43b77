//! The XDP versions of functions. Each [`Entry`](crate::Entry) contains the version of its function.

use crate::{SettingsError, Shared};
use std::sync::Arc;
use taut_xdp::functions::KernelFunction;
use taut_xdp::upcall::UpcallPrograms;

/// The XDP version of a function.
#[derive(Clone, Copy)]
pub enum KernelVersion {
    /// The function has no XDP version; the value is the reason.
    No(&'static str),
    /// The function has an XDP version for frames that leave through one port. The value creates the version from the
    /// settings of the function and the index of the port.
    Frames(fn(toml::Table, usize) -> Result<KernelFunction, SettingsError>),
    /// The function has its own XDP programs. They forward or drop some frames, and pass all others to the worker
    /// (upcall).
    Upcall(UpcallVersion),
}

/// The XDP programs of a function, and the check whether they support the function's settings.
#[derive(Clone, Copy)]
pub struct UpcallVersion {
    /// Function that checks the settings, and whether the kernel supports them.
    pub check: fn(toml::Table) -> Result<(), SettingsError>,
    /// Function that makes the XDP programs from the settings, the number of ports, and the shared state. The worker's
    /// functions later get the same [`Shared`], which then contains the state that the XDP programs have stored.
    pub make: fn(toml::Table, usize, &Shared) -> UpcallMade,
}

/// The upcall programs (XDP programs with a worker), or the reason why they cannot be made.
pub type UpcallMade = Result<Arc<dyn UpcallPrograms>, UpcallError>;

/// The reason why a function's upcall programs (XDP programs with a worker) cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UpcallError {
    /// The settings are wrong, or the kernel does not support them.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The machine lacks a requirement of the programs.
    #[error(transparent)]
    System(#[from] taut_sys::Error),
}
