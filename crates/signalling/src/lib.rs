//! A load generator of control procedures, by PFCP (3GPP TS 29.244) or GTP-C (3GPP TS 29.274). It sends the requests
//! that session management functions and MMEs send when users attach, go idle, return, move and detach.
//!
//! `load.rs` selects the messages and their times, retransmits requests without a response, and counts the responses,
//! in virtual time and without I/O. `pfcp.rs` and `gtpc.rs` write the messages. `drive.rs` connects a load to a socket.

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
