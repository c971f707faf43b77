//! The gateway as the user plane of a mobile core (UPF, SGW-U, PGW-U). Sessions arrive by PFCP (3GPP TS 29.244), from
//! configured peers only, or from the gateway's own control plane (`gtpc`).

mod counts;
mod echo;
mod element;
mod filter;
mod node;
mod refusal;
mod requests;
mod responses;
mod session;
mod settings;
mod urr;

pub(super) use counts::Counts;
pub(super) use node::{Node, Told};
pub(super) use responses::Responses;
pub(super) use session::CreatedPdr;
pub(super) use settings::{
    Applications, Common, LostPeers, MOST_HELD, MOST_REPEATS, MOST_SESSIONS, RESPONSE_BYTES,
    Settings, Socket, Terms, time_of,
};

#[cfg(test)]
mod tests;
