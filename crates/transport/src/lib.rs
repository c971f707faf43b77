//! The deadline transport delivers messages in time and in order, or not at all.
//!
//! The *target delay* is the time within which a message must be delivered; the application sets it. The sender sends
//! messages that can still arrive in time, adds redundancy, and retransmits lost messages if there is time. A *repair*
//! is a packet with a linear combination of messages, from which the receiver recovers lost messages. The receiver
//! delivers only messages that arrive in time, in order. Both endpoints notify their application when the target cannot
//! be met. The idea is that of PRRT (Gallenmüller's dissertation, 2021, section 6.3). The packet formats and constants
//! of PRRT were not published; taut defines its own (`wire.rs`, docs/reference/transport.md).
//!
//! The types to know:
//!
//! - [`Endpoint`]: one side of a connection, which sends and receives. It reads no clock and no socket: the caller
//!   passes the time and the received packets. The caller also takes packets and messages from it, and asks for the
//!   time of the next call.
//! - [`Settings`]: target delay, receive window, [`Coding`], feedback interval.
//! - [`Notice`]: a notice for the application; [`Demand`] chooses a target delay by notices.
//! - [`simulate`]: two endpoints over a simulated path in virtual time.
//!
//! In addition, [`parity`] has datagrams with parity, for comparison. The layers below are [`wire`], the packets;
//! `offset.rs`, the offset of the peer's clock; `pace.rs`, the send rate; `sender.rs` and `receiver.rs`, the sending
//! and receiving of an endpoint's messages.
//!
//! Begin with `endpoint.rs`, then `receiver.rs` and `sender.rs`. The crate does no I/O.

#![forbid(unsafe_code)]

mod demand;
mod endpoint;
mod key;
mod offset;
mod pace;
pub mod parity;
mod receiver;
mod sender;
mod settings;
mod side;
pub mod simulation;
mod slot_bitmap;
pub mod wire;

pub use demand::Demand;
pub use endpoint::{Counts, Endpoint, EndpointError, Notice, SendError, refuse};
pub use key::{Master, MasterError};
pub use receiver::Received;
pub use sender::Sent;
pub use settings::{Clocks, Coding, Settings, WrongSettings};
pub use side::Side;
pub use simulation::{
    Delays, Passed, Path, Scenario, Simulated, Stages, simulate, simulate_datagrams,
};
pub use wire::MOST_PAYLOAD_BYTES;
