//! The generator and the instrument: frames, patterns, stamps, receivers, in one loop on one core.

#![forbid(unsafe_code)]

mod field;
mod flood;
mod hand;
mod instrument;
mod interruptions;
mod pattern;
mod ping_pong;
mod rate;
mod record;
mod sizes;
mod stream;
mod traffic;
mod zipf;

pub use field::{FieldError, FieldName, Order, Values};
pub use flood::{Flood, Flow};
pub use hand::{Arrival, Hand, fill_checksums};
pub use instrument::{Instrument, OpenPort, Tally, Trial, TrialError};
pub use interruptions::{Interruptions, interruptions};
pub use pattern::{Pattern, PatternError, Schedule, Trace};
pub use ping_pong::{PingPong, ping_pong};
pub use rate::{Rate, RateError};
pub use record::{EveryPacket, Fate, Record, Summaries};
pub use sizes::{Sizes, SizesError};
pub use stream::{Load, Plan, Stream, StreamError};
pub use traffic::{MOST_STREAMS, Traffic, TrafficError};
