//! Programs that run in the kernel, as XDP programs or at its trace points, and what loads, fills and counts them.
//!
//! The programs are written in C (`ebpf/`), compiled by clang when this crate is built, and carried in the binary.
//! [`forward::KernelForwarder`] attaches one to each interface of a chain, which hands frames to another interface;
//! what happens to frames on the way is a [`forward::KernelProgram`]: a change of addresses,
//! [`functions::KernelFunctions`] in order, or a function's own [`upcall::UpcallPrograms`], which hand up what they do not
//! decide: a [`gateway::KernelGateway`], a [`router::KernelRouter`] or a [`switch::KernelSwitch`].
//! [`wire_tap::WireTap`] watches packets cross veth wires. Everything attached hangs on descriptors of this process, so that
//! nothing stays in the kernel when it ends.
//!
//! Begin with `program.rs`, which loads and attaches, and which the `af_xdp` ports use as well: so this room lies below the
//! ports, takes interfaces by name, and knows nothing of batches. It is built with feature `xdp`; without it everything is
//! there and says what is lacking when it is started.

pub mod forward;
pub mod functions;
pub mod gateway;
mod mode;
#[cfg(feature = "xdp")]
pub mod program;
pub mod router;
pub mod switch;
pub mod upcall;
pub mod wire_tap;

pub use mode::Mode;
