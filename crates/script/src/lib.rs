//! Lua scripts for the generator: a script configures streams and tasks, makes and changes packets, reads those that
//! arrive, and counts.
//!
//! Whole batches are passed to Lua, which LuaJIT compiles; `taut_lua` gives access to packets. Every task is a thread
//! with its own state, in which the script's top level runs first.
//!
//! The types to know:
//!
//! - [`Script`]: a file and its resources: ports, arguments, memory, time.
//! - [`Ended`]: the outcome, and the counts by then.
//! - [`Counted`]: its counters and histograms, summed over all its states.
//!
//! `taut script` fills a [`Script`] and calls [`Script::run`]. It makes a Lua state, and runs the file's top level and
//! then its `main`. The functions of the table `taut` are in `api.rs` (Rust) and `taut.lua` (Lua). A trial is one of
//! `taut_traffic::Instrument`, in which a `Hand` makes and sees packets. A task is a thread (`tasks.rs`) with another
//! such state. Values are passed between states by `value.rs`, and all of them share the data in `script.rs`.
//!
//! Begin with `run.rs`, then `api.rs`.

#![forbid(unsafe_code)]

mod api;
mod counts;
mod lock;
mod results;
mod run;
mod script;
mod tasks;
mod value;

pub use counts::Counted;
pub use run::{Ended, ScriptError};
pub use script::{LAST_WORDS, Script};
