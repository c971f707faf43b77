//! Lua scripts for the generator: a script configures streams and tasks, makes and changes packets, reads those that
//! arrive, and counts.
//!
//! Whole batches cross into Lua, which LuaJIT compiles; packets are lent by `taut_lua`. Every task is a thread with a
//! state of its own, in which the script's top level runs first.
//!
//! The types to know:
//!
//! - [`Script`]: a file and what it may use: ports, arguments, memory, time.
//! - [`Ended`]: how it ended, and what it had counted by then.
//! - [`Counted`]: its counters and histograms, summed over all its states.
//!
//! `taut script` fills a [`Script`] and calls [`Script::run`]. That makes a Lua state (`api.rs` has what the functions
//! of the table `taut` do on this side, `taut.lua` the part in Lua), runs the file's top level and then its `main`. A
//! trial is one of `taut_traffic::Instrument`, whose packets a hand makes and sees. A task is a thread (`tasks.rs`) with
//! one more such state; values go between states by `value.rs`, and all of them share what is in `script.rs`.
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
