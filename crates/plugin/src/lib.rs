//! Functions in shared libraries: code of other authors, called by an interface in C (`include/taut_function.h`).
//!
//! The types to know:
//!
//! - [`Library`]: a loaded library of the right version.
//! - [`State`]: the library's state for one worker, which processes each batch.
//! - [`Counts`]: packets by outcome, including those with an invalid verdict of the library.
//!
//! [`Library::check`] reads the file without running it, so that a supervisor can call it; [`Library::load`] is for the
//! process that runs the library. The verdict of a library on a packet is copied and checked before it takes effect.
//! Direct memory accesses of the library cannot be checked: it is trusted as much as taut itself. In a chain of several
//! processes, a library can only damage its own process.
//!
//! Begin with the header, then `state.rs`. The crate uses `unsafe`, as it calls code in C with addresses of packets.
//!
//! # Checks
//!
//! The library gets the unmarked packets of a batch as an array of 16 bytes each: address, length, headroom and
//! tailroom. `state.rs` compares the array before and after the call, packet by packet, and checks each difference
//! against the packet and the ports before it acts on it. The batch discards its parsed headers. The crate is separate
//! so that `taut-functions` stays without `unsafe`. Queries about settings, ports or class of a function run no code of
//! the library.

mod abi;
mod file;
mod library;
mod state;

pub use abi::Call;
pub use library::{Library, LibraryError};
pub use state::{Counts, State};
