//! Lua scripts for the generator: a script configures streams and tasks, makes and changes packets, reads
//! those that arrive, and counts.
//!
//! Whole batches cross into Lua, which LuaJIT compiles; packets are reached through `lua/`, the only part with `unsafe`. Every
//! task is a thread with a state of its own, in which the script's top level runs first.

mod api;
mod counts;
mod explain;
mod headers;
mod lua;
mod results;
mod run;
mod task;
mod value;

pub use counts::Counted;
use explain::explain;
pub use run::{Ended, LAST_WORDS, Script, ScriptError};
