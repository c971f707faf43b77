//! The generator and the instrument: frames, pacing, stamps, receivers, in one loop on one core.

#![forbid(unsafe_code)]

mod flood;
mod instrument;
mod interruptions;
mod pace;
mod ping_pong;
mod record;
mod stream;

pub use flood::{Flood, Flow};
pub use instrument::{Instrument, OpenPort, Tally, Trial, TrialError};
pub use interruptions::{Interruptions, interruptions};
pub use pace::Pace;
pub use ping_pong::{PingPong, ping_pong};
pub use record::{EveryPacket, Fate, Record, Summaries};
pub use stream::Stream;
