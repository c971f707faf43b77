//! A virtual machine for each function (Xia et al., JSAC 2019): QEMU runs Debian's kernel, which starts this program as
//! its first and only process. The machines are connected by vhost-user.
//!
//! A machine has no disk: an archive that the kernel unpacks into memory contains all files. `taut forward` runs
//! unchanged in the machine. Serial lines connect the standard input and output of `taut forward` to the process that
//! started the machine. That process therefore stops it and reads its counters as for a process on the host.

mod archive;
mod cabling;
mod guest;
mod image;
mod kernel;
mod libraries;
mod machine;
mod node;
mod ports;

pub use archive::Archive;
pub use cabling::{Cabling, can_run_chains, switch_port};
pub use guest::run_guest;
pub use kernel::{Kernel, Module};
pub use libraries::libraries;
pub use machine::{Accelerator, Control, Machine, MachineSpec, can_make_machines};
pub use node::{CableEnd, Card, NodeMachine, dial, keep_machine};
pub use ports::ports_inside;
