//! Networks made of this machine's own parts: namespaces, veth wires between them, and what stands on both.
//!
//! [`Namespace`] and [`Veth`] are the parts, each gone when it is dropped. A [`Testbed`] is two namespaces and two wires
//! for a generator and a device, a [`Wiring`] as many as an experiment has machines, and a [`VirtualSwitch`] joins virtual
//! machines. Names begin with `taut` and hold the process number, so that what `kill -9` leaves behind is swept by the
//! next process.

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

/// Reason why namespaces or wires could not be made, or a namespace not be entered.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    /// A program, a kernel feature or a privilege is missing.
    #[error("network namespaces are not possible here: {0}")]
    NotPossible(#[from] Missing),
    /// A set-up program failed.
    #[error("cannot set up the testbed: {0}")]
    Command(#[from] CommandError),
    /// An interface did not come up.
    #[error("interface {interface} in namespace {namespace} did not come up within {waited:?}")]
    NoCarrier {
        /// The namespace.
        namespace: String,
        /// The interface.
        interface: String,
        /// Time that it was given.
        waited: Duration,
    },
    /// The calling thread could not change its namespace.
    #[error("cannot enter network namespace {namespace}: {source}")]
    NotEntered {
        /// The namespace.
        namespace: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Receive processing could not be moved to the CPU asked for.
    #[error("cannot move the receive processing of {interface} to CPU {cpu}: {source}")]
    NotSteered {
        /// The interface.
        interface: &'static str,
        /// The CPU.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
}
