//! A load generator of control procedures: what session management functions and MMEs ask of a user plane when users
//! attach, go idle, return, move and detach, by PFCP (3GPP TS 29.244) or GTP-C (3GPP TS 29.274).
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
