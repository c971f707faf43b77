//! The transports of messages, and the trait that sends and receives through any of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use taut_transport::{Counts, Notice};

/// Limit on the length of a message with any transport, bytes: the payload of an IPv4 datagram (65,535 minus 20 and 8
/// bytes of headers).
pub const MOST_MESSAGE_BYTES: usize = 65_507;

/// A transport of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A datagram per message, without recovery.
    #[default]
    Udp,
    /// One datagram per message, and one datagram per group with the XOR of the group's messages.
    Fec,
    /// A TCP connection without Nagle's delay (`TCP_NODELAY`); each message is preceded by its length.
    Tcp,
    /// The deadline transport: in time and in order, or not at all.
    Deadline,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 4] = [Self::Udp, Self::Fec, Self::Tcp, Self::Deadline];

    /// Returns the name of the transport in options.
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
        found.ok_or_else(|| format!("{text}: expected udp, fec, tcp or deadline"))
    }
}

/// A notice of the transport about one peer, for example that the peer has replied or has left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// The notice of the transport, such as that the peer has replied or has left.
    pub notice: Notice,
}

/// An object that sends messages to addresses, and receives messages. Only [`Messages::wait`] blocks.
pub trait Messages: std::fmt::Debug + Send {
    /// Returns the address at which messages arrive.
    ///
    /// # Errors
    /// The socket is closed.
    fn address(&self) -> io::Result<SocketAddr>;

    /// Sends a message, or queues it for sending.
    ///
    /// # Errors
    /// The message is rejected: temporarily ([`io::ErrorKind::WouldBlock`]) or permanently.
    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()>;

    /// Writes the next received message into `message`, and returns the length and the source of that message. Returns
    /// none if there is no message. A message longer than `message` is truncated.
    ///
    /// # Errors
    /// Errors of the socket, and errors that other machines report about sent messages; [`io::ErrorKind::WouldBlock`]
    /// is not an error.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>>;

    /// Waits until a message may have arrived, but no longer than `at_most`.
    fn wait(&mut self, at_most: Duration);

    /// Returns the next notice of the transport; none if there is no notice.
    fn told(&mut self) -> Option<Told> {
        None
    }

    /// Sets the target delay of later messages to all peers, ns, if the transport has one.
    ///
    /// # Errors
    /// The target delay is out of range.
    fn set_target(&mut self, target_ns: u64) -> io::Result<()> {
        let _ = target_ns;
        Ok(())
    }

    /// Returns the counters of all connections, if the transport has any.
    fn counts(&self) -> Option<Counts> {
        None
    }

    /// Sends a farewell to all peers, if the transport has one.
    fn leave(&mut self) {}
}

/// Length and source of a received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Length of the message, bytes.
    pub length: usize,
    /// Address that sent the message.
    pub from: SocketAddr,
    /// Time since 1970 at which the kernel received the message, if it is known.
    pub stamp: Option<Duration>,
}
