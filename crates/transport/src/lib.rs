//! The deadline transport: messages that arrive in time and in order, or not at all.
//!
//! An application says how long a message may take (the *target delay*). The sender sends what can still arrive in time, adds
//! redundancy, and sends again what was lost if there is time for it; the receiver delivers in order what has come in time,
//! and nothing else. Both sides tell their application when the target cannot be met. The idea is that of PRRT (Gallenmüller's
//! dissertation, 2021, section 6.3); its packets and constants were not published, those here are ours (`wire.rs`,
//! docs/reference/transport.md).
//!
//! The types to know:
//!
//! - [`Endpoint`]: one side of a connection, which sends and receives. It reads no clock and no socket: it is told what time it is
//!   and what has come, and asked what is to be sent, what is to be delivered, and when to be asked again.
//! - [`Settings`]: target delay, receive window, [`Coding`], how often the receiver answers.
//! - [`Notice`]: what an application is told.
//! - [`simulate`]: two endpoints over a made-up path in virtual time.
//!
//! Beside them: [`parity`], datagrams with parity, which they are compared with. Below them: [`wire`], the packets;
//! `offset.rs`, what is known of the other side's clock; `pace.rs`, how fast to send;
//! `sender.rs` and `receiver.rs`, the two halves.
//!
//! Begin with `endpoint.rs`, then `receiver.rs` and `sender.rs`. No I/O.

#![forbid(unsafe_code)]

mod endpoint;
mod key;
mod offset;
mod pace;
pub mod parity;
mod present;
mod receiver;
mod sender;
mod settings;
mod side;
pub mod simulation;
pub mod wire;

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
