//! The placements of a chain's functions.

use serde::Deserialize;

/// The placement of a chain's functions: which functions share a worker, and how workers are joined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All functions are in one worker: batches pass from one to the next in place.
    #[default]
    Compact,
    /// Each function runs in a worker thread of one process; `pair` ports join the threads.
    Threads,
    /// Each function runs in a process; memif joins the processes.
    Processes,
    /// Each function runs in a network namespace, in the kernel or in user space; veth pairs join the namespaces.
    Namespaces,
    /// Neighbours that run in the same place share a network namespace: one pair of XDP programs, or one worker in user
    /// space. Otherwise this is [`Placement::Namespaces`].
    Hybrid,
    /// Each function runs in a virtual machine; vhost-user joins the machines.
    Vm,
}

impl Placement {
    /// Returns true if each segment runs in a network namespace of its own.
    pub fn is_in_namespaces(self) -> bool {
        matches!(self, Self::Namespaces | Self::Hybrid)
    }
}
