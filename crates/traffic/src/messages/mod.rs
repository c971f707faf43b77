//! Messages between programs, whatever carries them: UDP, UDP with parity, TCP, or the deadline transport.
//!
//! [`open`] gives something that sends messages to addresses and says what came from which, as a UDP socket does; so what measures
//! or controls over it is the same for all.

mod datagram;
mod deadline;
mod parity;
mod stream;

pub use deadline::{DeadlineMessages, DeadlineSettings};

use datagram::DatagramMessages;
use parity::ParityMessages;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use stream::StreamMessages;
use taut_transport::{Counts, Notice};

/// The longest message of any of them.
pub const MOST_MESSAGE_BYTES: usize = crate::probe::MOST_BYTES;

/// What carries messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A datagram each, come what may.
    #[default]
    Udp,
    /// A datagram each, and behind so many the XOR of them.
    Fec,
    /// A stream without delay (`TCP_NODELAY`); each message behind its length.
    Tcp,
    /// In time and in order, or not at all.
    Deadline,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Fec, Self::Tcp, Self::Deadline];

    /// Returns its name as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Fec => "fec",
            Self::Tcp => "tcp",
            Self::Deadline => "deadline",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| format!("{text}: want udp, fec, tcp or deadline"))
    }
}

/// What becomes known beside messages, of the peer at an address.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// What is known.
    pub notice: Notice,
}

/// Sends messages to addresses, and receives them. Nothing blocks but [`Messages::wait`].
pub trait Messages: std::fmt::Debug + Send {
    /// Returns the address at which messages come in.
    ///
    /// # Errors
    /// The socket is gone.
    fn address(&self) -> io::Result<SocketAddr>;

    /// Sends a message, or begins to.
    ///
    /// # Errors
    /// The message is not taken: now ([`io::ErrorKind::WouldBlock`]), or at all.
    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Returns the next message that is there: its length in `message`, and from whom it is. What is longer than `message` is cut off.
    ///
    /// # Errors
    /// What other machines let be known of what was sent, and what is wrong with the socket; [`io::ErrorKind::WouldBlock`] is none.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>>;

    /// Waits until a message may be there, or for that long.
    fn wait(&mut self, at_most: Duration);

    /// Returns what has become known beside messages.
    fn told(&mut self) -> Option<Told> {
        None
    }

    /// Returns counts of all connections so far, where the transport keeps any.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Takes leave of all peers, where the transport has a way to.
    fn leave(&mut self) {}
}

/// A message that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Its length.
    pub length: usize,
    /// From whom it is.
    pub from: SocketAddr,
    /// Time since 1970 at which the kernel had it, where that is known.
    pub stamp: Option<Duration>,
}

/// Opens an address for messages. With parity, as many messages have one in common as the coding of the settings
/// combines.
///
/// # Errors
/// The address is taken, or not of this machine; the settings cannot be ([`io::ErrorKind::InvalidInput`]).
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

/// An address of this machine for what is sent to `to`, with any port.
pub fn any_address_to(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, which programs of one machine share, and which is never 0 when anybody asks.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A UDP socket that never blocks, with long queues: a machine that takes the core away for milliseconds must not make losses of
/// its own.
fn udp_socket(bind: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(bind)?;
    socket.set_nonblocking(true)?;
    crate::probe::widen(&socket);
    Ok(socket)
}

/// Whether an error says that there is nothing, or no room, now.
fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests;
