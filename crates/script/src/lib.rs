//! Lua scripts for the generator: a script configures streams and tasks, makes and changes packets, reads those that
//! arrive, and counts.
//!
//! Lua functions get whole batches, and LuaJIT compiles them; `taut_lua` gives access to packets. Every task is a
//! thread with its own state, in which the script's top level runs first.
//!
//! The types to know:
//!
//! - [`Script`]: a file and its resources: ports, arguments, memory, time.
//! - [`Ended`]: the outcome of a script, and its counts when it ended.
//! - [`Counted`]: the counters and histograms of a script, summed over all its states.
//!
//! `taut script` fills a [`Script`] and calls [`Script::run`], which makes a Lua state and runs the file's top level
//! and then its `main`. The functions of the table `taut` are in `api.rs` (Rust) and `taut.lua` (Lua). A trial runs on
//! the load generator (`taut_traffic::Instrument`), for which a `Hand` makes packets and reads those that arrive. A
//! task is a thread (`tasks.rs`) with a Lua state of its own. `value.rs` passes values between states; all states share
//! the data in `script.rs`.
//!
//! Begin with `run.rs`, then `api.rs`.

#![forbid(unsafe_code)]

mod api;
mod counts;
mod lock;
mod meeting;
mod results;
mod run;
mod script;
mod tasks;
mod value;

pub use counts::Counted;
pub use run::{Ended, ScriptError};
pub use script::{LAST_WORDS, Script};
