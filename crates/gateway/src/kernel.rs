//! The programs in the kernel, as the gateway in the process uses them.

use std::sync::Arc;
use taut_xdp::gateway::KernelGateway;

/// The maps of the programs, if packets pass in the kernel.
pub(super) type Kernel = Option<Arc<KernelGateway>>;
