//! The transports of messages, and the trait that sends and receives through any of them.

use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use taut_transport::{Counts, Notice};

/// The longest message of any transport: what fits a datagram of IPv4 (65,535 bytes less 20 and 8 of headers).
pub const MOST_MESSAGE_BYTES: usize = 65_507;

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
