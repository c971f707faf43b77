//! Programs that run in the kernel, as XDP programs or at its trace points, and the code that loads them, fills their
//! maps and reads their counters.
//!
//! The programs are written in C (`ebpf/`), compiled by clang when this crate is built, and included in the binary.
//! [`forward::KernelForwarder`] attaches a program to each interface of a chain; the program passes frames to another
//! interface. A [`forward::KernelProgram`] determines the processing: a change of addresses,
//! [`functions::KernelFunctions`] in order, or a function's own [`upcall::UpcallPrograms`]. Upcall programs pass
//! undecided frames up to the process; a [`gateway::KernelGateway`], a [`router::KernelRouter`] and a
//! [`switch::KernelSwitch`] have such programs. [`wire_tap::WireTap`] observes packets on veth links. Everything
//! attached is tied to descriptors of this process, so that the kernel removes everything when the process ends.
//!
//! Begin with `program.rs`, which loads and attaches. The `af_xdp` ports use that file as well: this crate therefore
//! does not depend on the port crate, identifies interfaces by name, and does not use batches. The crate needs feature
//! `xdp`; in builds without the feature, the same API exists and returns an error at the start.
//!
//! # Forwarding and functions
//!
//! [`forward::KernelForwarder`] attaches one XDP program per interface. A program is attached by a `bpf_link` that only
//! this process has open, so it cannot outlive the process. The `Entry` of each function declares whether it has a
//! version in the kernel; a chain with any other function is rejected with its name. The functions are one program
//! (`ebpf/xdp_functions.bpf.c`) that calls one C function after the other, as selected by constants that are written
//! before loading. The verifier checks each C function (`ebpf/function/`) separately, so its work does not grow with
//! the chain. A program can also process frames without an interface (`functions::DryRun`): a test compares both
//! versions of each function on ten thousand frames.
//!
//! # Gateway, router and switch
//!
//! The gateway's program looks bearers up in a map that has the same entries as the worker's table. The control plane
//! finds the map in the `Shared` state of the function, and writes to the map before it writes to the ring of each
//! worker. The router's maps of IPv4 routes and next hops also have the entries of the worker's tables and are mapped
//! into this process. A change copies each affected entry by one store. A worker in user space receives the frames that
//! the programs pass up ([`upcall::UpcallPrograms`]).
//!
//! # Wiretap
//!
//! [`wire_tap::WireTap`] uses trace points of sending and receiving, which see complete frames and need no change of
//! kernel code. The counters of the interfaces show how many frames the trace points missed.

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
