//! A virtual machine for each function (Xia et al., JSAC 2019): QEMU with Debian's kernel and this program as the first and only one
//! inside, joined to others by vhost-user.
//!
//! A machine has no disk: all that it needs is an archive that the kernel unpacks into memory. `taut forward` runs in
//! it as it would anywhere; its standard input and output are lines of the machine that end at who started it, so it is
//! told to end, and tells its counters, as if it were a process here.

mod archive;
mod cabling;
mod guest;
mod image;
mod kernel;
mod machine;

/// A machine's network cards, west and east, as Linux names them inside.
pub const CARDS: [&str; 2] = ["eth0", "eth1"];

pub use archive::Archive;
pub use cabling::{Cabling, can_run_chains, switch_port};
pub use guest::run_guest;
pub use image::libraries;
pub use kernel::{Kernel, Module};
pub use machine::{Accelerator, Control, Machine, MachineSpec, can_make_machines};
