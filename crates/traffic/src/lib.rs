//! The load generator, which sends and receives in one loop on one core; the inline tap; probes through ordinary
//! sockets.
//!
//! The types to know:
//!
//! - [`Traffic`]: the streams to send, from options or a traffic file; a [`Stream`] makes its packets from templates.
//! - [`Instrument`]: sends and receives in one loop on one core, for a [`Trial`] at a time, and returns a [`Tally`].
//! - [`Record`]: gets each packet that is sent, refused or received. [`Summaries`] stores histograms; [`Observed`] adds
//!   a live view, samples of every packet, and the frames of the slowest packets.
//!
//! A caller opens an [`Instrument`] with [`Traffic`], waits for links, and runs trials with a record of its choice. The
//! loop asks each stream's [`Schedule`] for due packets. Immediately before sending, it writes a *stamp* into each
//! packet: flow, sequence number and send timestamp. Immediately after receiving, it reads the time. A [`Sampler`]
//! passes every packet's times to another thread without waiting. [`Flood`] sends as fast as a port accepts,
//! [`Receiver`] measures other generators, and [`InlineTap`] relays between a generator and a device. [`probe`]
//! measures round trips between sockets, and [`control`] closes a control loop over them. Both use [`messages`]:
//! datagrams, streams, or the deadline transport.
//!
//! `examples/generator.rs` is a generator in 30 lines. A shorter one, on a port that discards all packets:
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//! use taut_traffic::{Instrument, Summaries, Traffic, Trial};
//!
//! let clock = taut_sys::Clock::calibrate(Duration::from_millis(5));
//! let traffic = Traffic::of_settings(&[("size", "imix")])?;
//! let mut instrument = Instrument::open(&[taut_port::PortSpec::parse("null:")?], traffic, clock)?;
//! let trial = Trial { rate_pps: 100e3, duration: Duration::from_millis(10) };
//! let tally = instrument.run(trial, &mut Summaries::new(&clock), &AtomicBool::new(false));
//! assert_eq!((tally.owed, tally.received), (1000, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Begin with `instrument/run.rs` (`run_with` is the loop), then `record/mod.rs` and `stream.rs`.
//!
//! # What is measured
//!
//! The load generator and the device under test are two processes on separate cores. A send timestamp is read
//! immediately before a frame is sent, and a receive timestamp immediately after it arrived. Both are read on one core
//! from one time-stamp counter, whose unit is called a *tick*. Latency is recorded from the actual and from the
//! intended send time. A packet that found the ring of the device full counts as *refused*. Therefore neither a late
//! load generator nor backpressure of the device hides waiting time.
//!
//! The loops of the load generator and of the worker record interruptions (`taut_sys::RoundWatch`), at one comparison
//! per iteration. An interruption is an iteration longer than 1 µs and longer than four times the mean iteration of its
//! kind (idle, or with packets). A worker writes them into a ring in a mapped file (`taut_sys::InterruptionLog`), which
//! the measuring process reads after the trial. Both read one counter, so `taut_model` can attribute a late packet to
//! an interruption.

#![forbid(unsafe_code)]

mod addresses;
pub mod control;
#[cfg(test)]
mod every_packet;
mod field;
mod flood;
mod gateway;
mod hand;
mod inline_tap;
mod instrument;
mod intended_latency;
mod interruptions;
mod line;
mod live;
pub mod messages;
mod pattern;
mod ping_pong;
pub mod probe;
mod rate;
mod receiver;
mod record;
mod samples;
mod sightings;
mod sizes;
mod slowest;
mod stations;
mod stream;
mod trace;
mod traffic;
mod worst;
mod zipf;

pub use field::{FieldError, FieldName, Order, Values};
pub use flood::{Flood, Flow, Share};
pub use hand::{Arrival, Hand, Replies, fill_checksums};
pub use inline_tap::{InlineTap, RelayAccount, TappedWire};
pub use instrument::{Gateways, Instrument, OpenPort, Tally, Trial, TrialError, drawn_seed};
pub use intended_latency::FromIntended;
pub use interruptions::{
    Interruptions, LoopInterruptions, Watched, interruptions, watch_interruptions,
};
pub use line::Pacing;
pub use live::{Counts, Interval, Live, Slow, StreamView, WORST_LISTED, live};
pub use pattern::{Pattern, PatternError, Schedule};
pub use ping_pong::{PingPong, ping_pong};
pub use rate::{Rate, RateError, bits_per_second};
pub use receiver::{Arrivals, Gap, Receiver};
pub use record::{
    Account, Observed, Record, Sequence, Sliced, Soaked, SoakedInterval, Soaking, Stretches,
    Summaries, WithLive,
};
pub use samples::{
    BLOCK_PACKETS, Block, Blocks, Sampled, Sampler, SamplerAccount, sampler, sampler_of_all,
};
pub use sightings::{SightingReader, SightingWriter, sightings};
pub use sizes::{Sizes, SizesError};
pub use slowest::Slowest;
pub use stream::{Load, Plan, Stream, StreamError};
pub use trace::Trace;
pub use traffic::{MOST_STREAMS, Traffic};
pub use worst::{Arrived, CONTEXT_FRAMES, KEPT_BYTES, WorstPackets};
