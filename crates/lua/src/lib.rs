//! Lua states that packets are lent to, for scripts of the generator and for functions of a chain.
//!
//! Whole batches cross into Lua, which LuaJIT compiles. A script sees packets for the length of a call, and every
//! access is checked. Unless it is trusted it reaches neither files nor programs.
//!
//! The types to know:
//!
//! - [`LuaState`]: a state, and the packets that are lent to it.
//! - [`Ends`]: ends what a state does, from any thread.
//! - [`FunctionScript`]: a script that is a function of a chain.
//! - [`AnalyserScript`]: a script that sees what is captured, and remembers numbers of flows.
//!
//! Begin with `state.rs` and `memory.lua`, the only part with `unsafe`. `packet.lua` makes packets with named fields of
//! that, `function.rs` and `function.lua` a function of a chain, `analyser.rs` and `analyser.lua` an analyser; what a
//! generator's script sees besides lies with `taut-script`. `explain.rs` makes one line of an error.
//!
//! # Checks
//!
//! A script accesses packets through LuaJIT's `ffi`, which an untrusted script cannot reach itself; `memory.lua` checks
//! every offset against the length of the packet. Headers are parsed when a script asks for one. Instructions are not
//! counted, because LuaJIT would then leave compiled code. Instead a thread checks whether the call for one batch still
//! runs (`watch.rs`), and sets the hook that ends the script.

mod analyser;
mod explain;
mod function;
mod headers;
mod packet;
mod state;
mod watch;

pub use analyser::{AnalyserHost, AnalyserScript, Asked, Failure, MOST_NUMBERS, PacketFacts};
pub use explain::{explain, line_of};
pub use function::{Call, Counts, FunctionScript, Host, LIMIT, MOST_BYTES};
pub use headers::{ABSENT, HEADERS, locate};
pub use state::{Ends, Lending, Lent, LuaState, Number, Numbers, Pending, SAMPLES, Samples};
