//! The gateway's XDP programs in the kernel, and their maps, which the taut process changes.

use std::sync::Arc;
use taut_xdp::gateway::KernelGateway;

/// The maps of the XDP programs; none if packets pass only through user space.
pub(super) type Kernel = Option<Arc<KernelGateway>>;
