//! The transport of messages as UDP datagrams with parity.

use super::socket::{is_for_now, udp_socket};
use super::transport::{Messages, Received};
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;
use taut_sys::Alarm;
use taut_transport::parity::{GroupSize, ParityReceiver, ParitySender};
use taut_transport::wire::MOST_DATAGRAM_BYTES;

/// Limit on the peers. A further peer replaces the peer that has been idle longest; the only loss is that peer's
/// pending repairs.
const MOST_PEERS: usize = 64;
/// Limit on the datagrams that one call receives.
const TAKEN_AT_A_TIME: usize = 64;

#[derive(Debug)]
struct Peer {
    sender: ParitySender,
    receiver: ParityReceiver,
    /// Time of the last use of this peer, as a count: the number of packets that the socket had sent and received by
    /// then.
    used: u64,
}

#[derive(Debug)]
pub(super) struct ParityMessages {
    socket: UdpSocket,
    alarm: Alarm,
    size: GroupSize,
    peers: BTreeMap<SocketAddr, Peer>,
    used: u64,
    packet: Box<[u8; MOST_DATAGRAM_BYTES]>,
    /// A recovered message. The caller gets it after the message that completed its group.
    repaired: Vec<u8>,
    repaired_of: Option<SocketAddr>,
}

impl ParityMessages {
    pub(super) fn open(bind: SocketAddr, messages: usize) -> io::Result<Self> {
        let Some(size) = GroupSize::new(messages) else {
            let text = format!("{messages} messages for each parity: expected 1 to 16");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        Ok(Self {
            socket: udp_socket(bind)?,
            alarm: Alarm::default(),
            size,
            peers: BTreeMap::new(),
            used: 0,
            packet: Box::new([0; MOST_DATAGRAM_BYTES]),
            repaired: Vec::new(),
            repaired_of: None,
        })
    }

    /// Returns the state of a peer, which is created if it is unknown.
    fn peer(
        peers: &mut BTreeMap<SocketAddr, Peer>,
        address: SocketAddr,
        size: GroupSize,
        used: u64,
    ) -> &mut Peer {
        if peers.len() >= MOST_PEERS && !peers.contains_key(&address) {
            let oldest = peers.iter().min_by_key(|(_, peer)| peer.used);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                peers.remove(&oldest);
            }
        }
        let peer = peers.entry(address).or_insert_with(|| Peer {
            sender: ParitySender::new(size, fastrand::u32(..)),
            receiver: ParityReceiver::default(),
            used,
        });
        peer.used = used;
        peer
    }

    /// Returns the recovered message that waits for the caller, if there is one.
    fn take_repaired(&mut self, message: &mut [u8]) -> Option<Received> {
        let from = self.repaired_of.take()?;
        let length = self.repaired.len().min(message.len());
        message[..length].copy_from_slice(&self.repaired[..length]);
        Some(Received {
            length,
            from,
            stamp: None,
        })
    }
}

impl Messages for ParityMessages {
    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        self.used += 1;
        let peer = Self::peer(&mut self.peers, to, self.size, self.used);
        let Some(length) = peer.sender.send(message, &mut self.packet) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let sent = self.socket.send_to(&self.packet[..length], to);
        if let Some(length) = peer.sender.parity(&mut self.packet) {
            // A packet that the kernel rejects is lost, as on the path.
            let _ = self.socket.send_to(&self.packet[..length], to);
        }
        sent.map(drop)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        if let Some(received) = self.take_repaired(message) {
            return Ok(Some(received));
        }
        for _ in 0..TAKEN_AT_A_TIME {
            let (length, from) = match self.socket.recv_from(&mut self.packet[..]) {
                Ok(it) => it,
                Err(e) if is_for_now(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
            self.used += 1;
            let peer = Self::peer(&mut self.peers, from, self.size, self.used);
            let brought = peer.receiver.receive(&self.packet[..length]);
            if let Some(repaired) = brought.repaired {
                self.repaired.clear();
                self.repaired.extend_from_slice(repaired);
                self.repaired_of = Some(from);
            }
            if let Some(own) = brought.message {
                let length = own.len().min(message.len());
                message[..length].copy_from_slice(&own[..length]);
                return Ok(Some(Received {
                    length,
                    from,
                    stamp: None,
                }));
            }
            if let Some(received) = self.take_repaired(message) {
                return Ok(Some(received));
            }
        }
        Ok(None)
    }

    fn wait(&mut self, at_most: Duration) {
        if self.repaired_of.is_some() {
            return;
        }
        self.alarm.clear();
        self.alarm.watch(self.socket.as_fd());
        self.alarm.wait(at_most);
    }
}
