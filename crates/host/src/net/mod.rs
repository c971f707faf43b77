//! Networks inside this machine: namespaces, veth links between them, and testbeds built on both.
//!
//! [`Namespace`] and [`Veth`] are the building blocks, each removed when it is dropped. A [`Testbed`] is two namespaces
//! and two links for a generator and a device. A [`Wiring`] has one namespace for each machine of an experiment, and
//! the links between them. A [`VirtualSwitch`] connects virtual machines. Names begin with `taut` and contain the
//! process number, so that the next process removes those left by `kill -9`.

mod namespace;
pub mod testbed;
pub mod veth;
pub mod virtual_switch;
pub mod wiring;

pub use namespace::{Namespace, NamespaceGuard, namespace_exists, sweep_stale};
pub use testbed::{Steering, Testbed, TestbedBuilder};
pub use veth::{Veth, WireEnd, sweep_stale_wires};
pub use virtual_switch::{SwitchPort, VirtualSwitch};
pub use wiring::Wiring;

use crate::command::CommandError;
use crate::permissions::Missing;
use std::io;
use std::time::Duration;

/// The reason why namespaces or links could not be created, or a namespace could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A program, a kernel feature or a privilege is missing.
    #[error("network namespaces are unavailable here: {0}")]
    NotPossible(#[from] Missing),
    /// A set-up program failed.
    #[error("cannot set up the testbed: {0}")]
    Command(#[from] CommandError),
    /// An interface did not come up.
    #[error("interface {interface} in namespace {namespace} did not come up within {waited:?}")]
    NoCarrier {
        /// The namespace of the interface.
        namespace: String,
        /// The interface that did not come up.
        interface: String,
        /// The time spent waiting for the interface.
        waited: Duration,
    },
    /// The calling thread could not change its namespace.
    #[error("cannot enter network namespace {namespace}: {source}")]
    NotEntered {
        /// The namespace that could not be entered.
        namespace: String,
        /// The error that the operating system reported.
        source: io::Error,
    },
    /// The kernel's receive processing of an interface could not be moved to the requested CPU.
    #[error("cannot move the receive processing of {interface} to CPU {cpu}: {source}")]
    NotSteered {
        /// The interface whose receive processing could not be moved.
        interface: &'static str,
        /// The CPU to which receive processing should have moved.
        cpu: usize,
        /// The error that the operating system reported.
        source: io::Error,
    },
}
