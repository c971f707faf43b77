//! Functions in shared libraries: code that others wrote, called by an interface of C
//! (`include/taut_function.h`).
//!
//! The types to know:
//!
//! - [`Library`]: a library that is loaded, of the right version.
//! - [`State`]: what it made for one worker; sees each batch.
//! - [`Counts`]: what became of packets, also of those with which the library did what it may not.
//!
//! [`Library::check`] looks at the file and runs nothing of it, so that a supervisor can; [`Library::load`] is for the
//! process that is to run it. What a library says of a packet is copied out and checked before it is believed. What it
//! does to memory by itself nobody can check: it is trusted as taut is, and a chain of processes keeps what it breaks
//! to its own process.
//!
//! Begin with the header, then `state.rs`. There is `unsafe` here, as code in C is called with addresses of packets.
//!
//! # Checks
//!
//! The library gets the unmarked packets of a batch as an array of 16 bytes each: address, length, headroom and
//! tailroom. `state.rs` compares the array before and after the call, packet by packet, and checks each difference
//! against the packet and the ports before it acts on it. The batch discards its parsed headers. The crate is separate
//! so that `taut-function` stays without `unsafe`. A question about settings, ports or class of a function is answered
//! without running any code of the library.

mod abi;
mod file;
mod library;
mod state;

pub use abi::Call;
pub use library::{Library, LibraryError};
pub use state::{Counts, State};
