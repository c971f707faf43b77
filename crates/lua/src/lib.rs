//! Lua states that borrow packets, for scripts of the generator and for functions of a chain.
//!
//! Complete batches are passed to Lua code, which LuaJIT compiles. A script has access to packets during a call, and
//! every access is checked. A script that is not trusted has access to neither files nor programs.
//!
//! The types to know:
//!
//! - [`LuaState`]: a state, and the packets that it borrows.
//! - [`Ends`]: stops the script of a state, from any thread.
//! - [`FunctionScript`]: a script that is a function of a chain.
//! - [`AnalyserScript`]: a script that sees captured packets, and stores numbers of flows.
//!
//! Begin with `state.rs`, the only file with `unsafe`, and `memory.lua`, which accesses the memory of packets. The
//! other files use these two: `packet.lua` provides packets with named fields, `function.rs` and `function.lua` a
//! function of a chain, `analyser.rs` and `analyser.lua` an analyser. Further functions for a generator's script are in
//! `taut-script`. `explain.rs` formats an error as one line.
//!
//! # Checks
//!
//! A script accesses packets through LuaJIT's `ffi`, which an untrusted script cannot use itself; `memory.lua` checks
//! every offset against the length of the packet. Headers are parsed when a script requests one. Instructions are not
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
