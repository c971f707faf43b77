//! Messages between programs over any transport: UDP, UDP with parity, TCP, or the deadline transport.
//!
//! [`open`] returns an object that sends messages to addresses and returns the source of each received message, as a
//! UDP socket does. Measurements and control loops thus use the same code for all transports.

mod clock;
mod datagram;
mod deadline;
mod parity;
mod socket;
mod stream;
mod transport;

pub(crate) use clock::now_ns;
pub use deadline::{DeadlineMessages, DeadlineSettings};
pub use socket::any_address_to;
pub(crate) use socket::widen;
pub use transport::{MOST_MESSAGE_BYTES, Messages, Received, Told, Transport};

use datagram::DatagramMessages;
use parity::ParityMessages;
use std::io;
use std::net::SocketAddr;
use stream::StreamMessages;

/// Opens a socket for messages at an address. With parity, a group has as many messages as the coding of the settings
/// combines.
///
/// # Errors
/// The address is in use, or not of this machine; the settings are invalid ([`io::ErrorKind::InvalidInput`]).
pub fn open(
    transport: Transport,
    bind: SocketAddr,
    settings: &DeadlineSettings,
) -> io::Result<Box<dyn Messages>> {
    Ok(match transport {
        Transport::Udp => Box::new(DatagramMessages::open(bind)?),
        Transport::Fec => {
            let messages = settings.settings.coding.symbols();
            Box::new(ParityMessages::open(bind, messages)?)
        }
        Transport::Tcp => Box::new(StreamMessages::open(bind)?),
        Transport::Deadline => Box::new(DeadlineMessages::open(bind, settings.clone())?),
    })
}

#[cfg(test)]
mod tests;
