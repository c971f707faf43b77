//! A load generator of control procedures, by PFCP (3GPP TS 29.244) or GTP-C (3GPP TS 29.274). It asks a user plane for
//! what session management functions and MMEs ask for when users attach, go idle, return, move and detach.
//!
//! `load.rs` decides what is sent when, repeats what is not answered, and accounts for the answers, in virtual time and
//! without I/O. `pfcp.rs` and `gtpc.rs` write the messages. `drive.rs` connects a load to a socket.

#![forbid(unsafe_code)]

mod account;
mod drive;
mod gtpc;
mod load;
mod mix;
mod pfcp;

pub use account::{Account, Measured, ProcedureRow};
pub use drive::{DriveError, Driven, drive};
pub use load::{Load, Plan, Protocol};
pub use mix::{Mix, Procedure};
pub use pfcp::Core;
