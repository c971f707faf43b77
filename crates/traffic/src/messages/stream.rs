//! Messages over TCP, each preceded by its length in two bytes.
//!
//! Only [`Messages::wait`] blocks, and no peer can starve other peers. Connections are opened in the background, peers
//! are read round robin, and the peer that has been idle longest is replaced.

use super::socket::is_for_now;
use super::transport::{MOST_MESSAGE_BYTES, Messages, Received};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use taut_sys::Alarm;

/// Size of a length field, bytes.
const LENGTH_BYTES: usize = 2;
/// Limit on the bytes that wait for being sent to a peer; further messages are refused, as by a UDP socket.
const MOST_WAITING: usize = 4 << 20;
/// Limit on the peers. A further peer replaces an idle one.
const MOST_PEERS: usize = 64;
/// Number of bytes per read call.
const READ_BYTES: usize = 1 << 16;
/// Timeout for opening a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time after which a peer that neither sends nor receives anything is dropped.
const SILENT: Duration = Duration::from_secs(60);
/// Interval at which events are checked that cause no wakeup.
const SOON: Duration = Duration::from_millis(1);

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// The peer has connected, and has sent nothing yet.
    Unheard,
    /// The peer has connected and has sent data.
    Heard,
    /// This side is connecting to the peer, without a reply yet.
    Calling,
    /// This side has connected to the peer.
    Called,
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    stream: TcpStream,
    standing: Standing,
    /// Time of the connection attempt, and after that of the last data in either direction.
    last: Instant,
    /// Received data (`read`), and the number of bytes at its start that have been returned to the caller as messages
    /// (`taken`).
    read: Vec<u8>,
    taken: usize,
    /// Data that the kernel has not accepted yet.
    unsent: Vec<u8>,
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct StreamMessages {
    listener: TcpListener,
    peers: Vec<Peer>,
    /// Index of the peer that is read next.
    turn: usize,
    /// True if pending connections could not be accepted: the listener does not report these again.
    is_full: bool,
    /// Error of the latest connection attempt, until it is reported.
    failed: Option<io::Error>,
    alarm: Alarm,
    buffer: Vec<u8>,
}

impl StreamMessages {
    pub(super) fn open(bind: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(bind)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            peers: Vec::new(),
            turn: 0,
            is_full: false,
            failed: None,
            alarm: Alarm::default(),
            buffer: vec![0; READ_BYTES],
        })
    }

    fn add(
        &mut self,
        stream: TcpStream,
        address: SocketAddr,
        standing: Standing,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Only one connection at a time can use a remote address, so an older connection from this address has ended.
        self.peers.retain(|it| it.address != address);
        self.peers.push(Peer {
            address,
            stream,
            standing,
            last: Instant::now(),
            read: Vec::new(),
            taken: 0,
            unsent: Vec::new(),
            is_over: false,
        });
        Ok(())
    }

    /// Begins to open a connection; messages wait until it is open.
    fn call(&mut self, to: SocketAddr) -> io::Result<()> {
        if !self.has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        self.add(TcpStream::from(socket), to, Standing::Calling)
    }

    /// Returns true if there is a slot for one more peer. If necessary, drops the peer that has been idle longest.
    /// Peers that have never sent anything are dropped first; a peer to which this side has connected is never dropped.
    fn has_room(&mut self) -> bool {
        if self.peers.len() < MOST_PEERS {
            return true;
        }
        let others = self.peers.iter().enumerate();
        let oldest = others
            .filter(|(_, it)| it.standing <= Standing::Heard)
            .min_by_key(|(_, it)| (it.standing, it.last));
        match oldest.map(|(place, _)| place) {
            Some(place) => {
                self.peers.remove(place);
                true
            }
            None => false,
        }
    }

    /// Accepts pending connections, sends waiting data, and drops closed or idle peers.
    fn pump(&mut self) {
        self.is_full = false;
        for _ in 0..MOST_PEERS {
            // Connections that cannot be accepted (no slots, no descriptors) stay in the kernel, and are tried again
            // soon.
            match self.listener.accept() {
                Ok((stream, peer)) if self.has_room() => {
                    // A connection that has already closed is ignored.
                    let _ = self.add(stream, peer, Standing::Unheard);
                }
                Ok(_) => {}
                Err(e) if is_for_now(&e) || e.kind() == io::ErrorKind::ConnectionAborted => break,
                Err(_) => {
                    self.is_full = true;
                    break;
                }
            }
        }
        for peer in &mut self.peers {
            if let Err(e) = peer.look_after() {
                self.failed = Some(e);
            }
        }
        self.peers
            .retain(|peer| !peer.is_over || peer.whole().is_some());
    }
}

impl Peer {
    /// Sends waiting data, and closes connections whose timeout has expired.
    ///
    /// # Errors
    /// A connection to a peer could not be opened.
    fn look_after(&mut self) -> io::Result<()> {
        if self.is_over {
            return Ok(());
        }
        let silent = self.last.elapsed();
        let flushed = self.flush();
        if self.standing == Standing::Calling {
            flushed?;
            if self.standing == Standing::Calling && silent > CONNECT {
                self.end();
                return Err(io::ErrorKind::TimedOut.into());
            }
        } else if silent > SILENT {
            self.end();
        }
        Ok(())
    }

    /// Sends waiting data, up to the amount that the kernel accepts.
    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent @ 1..) => {
                    self.unsent.drain(..sent);
                    self.has_moved();
                }
                Err(e) if is_for_now(&e) => return Ok(()),
                Ok(_) => self.end(),
                Err(e) => {
                    self.end();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Records that data was sent or received now.
    fn has_moved(&mut self) {
        self.last = Instant::now();
        if self.standing == Standing::Calling {
            self.standing = Standing::Called;
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        self.unsent.clear();
    }

    /// Returns the range of the next message in the received data; none if the message is incomplete.
    fn whole(&self) -> Option<std::ops::Range<usize>> {
        let (length, _) = self.read[self.taken..].split_first_chunk::<LENGTH_BYTES>()?;
        let from = self.taken + LENGTH_BYTES;
        let to = from + usize::from(u16::from_be_bytes(*length));
        (to <= self.read.len()).then_some(from..to)
    }

    fn read(&mut self, buffer: &mut [u8]) {
        if self.is_over || self.standing == Standing::Calling {
            return;
        }
        match self.stream.read(buffer) {
            Ok(0) => self.end(),
            Ok(length) => {
                self.read.drain(..self.taken);
                self.taken = 0;
                self.read.extend_from_slice(&buffer[..length]);
                self.has_moved();
            }
            Err(e) if is_for_now(&e) => {}
            Err(_) => self.end(),
        }
    }
}

impl Messages for StreamMessages {
    fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        if message.len() > MOST_MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let there = |peers: &[Peer]| peers.iter().position(|it| it.address == to);
        if there(&self.peers).is_none() {
            self.call(to)?;
        }
        let place = there(&self.peers).ok_or(io::ErrorKind::NotConnected)?;
        let peer = &mut self.peers[place];
        // A closed peer is not called back for a reply: its messages were read before, and it no longer listens.
        if peer.is_over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        peer.flush()?;
        if peer.unsent.len() + message.len() > MOST_WAITING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        peer.unsent
            .extend_from_slice(&(message.len() as u16).to_be_bytes());
        peer.unsent.extend_from_slice(message);
        peer.flush()
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        self.pump();
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let peers = self.peers.len();
        for place in (0..peers).map(|step| (self.turn + step) % peers) {
            let peer = &mut self.peers[place];
            if peer.whole().is_none() {
                peer.read(&mut self.buffer);
            }
            let Some(range) = peer.whole() else {
                continue;
            };
            let length = range.len().min(message.len());
            message[..length].copy_from_slice(&peer.read[range.start..][..length]);
            peer.taken = range.end;
            if peer.standing == Standing::Unheard {
                peer.standing = Standing::Heard;
            }
            self.turn = place + 1;
            return Ok(Some(Received {
                length,
                from: peer.address,
                stamp: None,
            }));
        }
        Ok(None)
    }

    fn wait(&mut self, at_most: Duration) {
        self.pump();
        self.alarm.clear();
        if !self.is_full {
            self.alarm.watch(self.listener.as_fd());
        }
        let mut waits = self.is_full;
        for peer in self.peers.iter().filter(|it| !it.is_over) {
            self.alarm.watch(peer.stream.as_fd());
            waits |= !peer.unsent.is_empty();
        }
        // Data that the kernel rejects now are sent soon.
        self.alarm
            .wait(if waits { at_most.min(SOON) } else { at_most });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{bind, listen, socket};

    const HERE: &str = "127.0.0.1:0";
    const PATIENCE: Duration = Duration::from_secs(20);

    fn here() -> (StreamMessages, SocketAddr) {
        let messages = StreamMessages::open(HERE.parse().unwrap()).unwrap();
        let at = messages.address().unwrap();
        (messages, at)
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        [&(message.len() as u16).to_be_bytes()[..], message].concat()
    }

    fn next(messages: &mut StreamMessages) -> (Vec<u8>, SocketAddr) {
        let begun = Instant::now();
        let mut message = [0; 100];
        while begun.elapsed() < PATIENCE {
            if let Ok(Some(received)) = messages.receive(&mut message) {
                return (message[..received.length].to_vec(), received.from);
            }
            messages.wait(Duration::from_millis(10));
        }
        panic!("no message came: {messages:?}");
    }

    /// Returns an address at which connections get no reply, and the sockets that keep it so.
    fn nobody_answers() -> (SocketAddr, Vec<std::os::fd::OwnedFd>) {
        let socket = || {
            let flags = SocketFlags::NONBLOCK;
            socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
        };
        let listener = socket();
        bind(&listener, &HERE.parse::<SocketAddr>().unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let listener = TcpListener::from(listener);
        let at = listener.local_addr().unwrap();
        let mut kept: Vec<_> = (0..8).map(|_| socket()).collect();
        for socket in &kept {
            let _ = connect(socket, &at);
        }
        kept.push(listener.into());
        (at, kept)
    }

    #[test]
    fn replies_to_a_disconnected_peer_are_refused_immediately() {
        let (mut messages, at) = here();
        // The address is unique to this test: at the address that all tests use, another test could take the client's
        // port.
        let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&client, &SocketAddr::from(([127, 0, 0, 7], 0))).unwrap();
        connect(&client, &at).unwrap();
        let mut client = TcpStream::from(client);
        client.write_all(&framed(b"question").repeat(100)).unwrap();
        let (_, from) = next(&mut messages);
        set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let listener = TcpListener::bind(from).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut refused = 0;
        for _ in 1..100 {
            assert_eq!(next(&mut messages).0, b"question");
            let sent = messages.send_to(b"answer", from);
            refused += usize::from(sent.is_err());
        }
        // The kernel may accept a few messages before it learns that the peer has closed the connection.
        assert!(refused > 50, "{refused}");
        assert!(listener.accept().is_err());
    }

    #[test]
    fn messages_of_other_peers_arrive_while_a_connection_opens() {
        let (mut messages, at) = here();
        let (nobody, _kept) = nobody_answers();
        let begun = Instant::now();
        messages.send_to(b"hello", nobody).unwrap();
        let mut client = TcpStream::connect(at).unwrap();
        client.write_all(&framed(b"question")).unwrap();
        let (_, from) = next(&mut messages);
        messages.send_to(b"answer", from).unwrap();
        let mut answer = [0; 8];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..], framed(b"answer"));
        let is_calling = |messages: &StreamMessages| {
            let mut peers = messages.peers.iter();
            peers.any(|it| it.standing == Standing::Calling)
        };
        assert!(is_calling(&messages) || begun.elapsed() > CONNECT);
        // The failure is reported once.
        let mut message = [0; 100];
        let failed = loop {
            assert!(begun.elapsed() < PATIENCE, "{messages:?}");
            match messages.receive(&mut message) {
                Err(e) => break e,
                Ok(_) => messages.wait(Duration::from_millis(10)),
            }
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
        assert!(!is_calling(&messages) && messages.receive(&mut message).is_ok());
    }

    #[test]
    fn a_refused_connection_is_reported_and_can_be_reopened() {
        let (mut messages, _) = here();
        let closed = TcpListener::bind(HERE).unwrap();
        let to = closed.local_addr().unwrap();
        drop(closed);
        let refused = messages.send_to(b"hello", to).or_else(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => Ok(()),
            _ => Err(e),
        });
        refused.unwrap();
        let begun = Instant::now();
        let mut message = [0; 100];
        while !messages.peers.is_empty() && begun.elapsed() < PATIENCE {
            if let Err(e) = messages.receive(&mut message) {
                assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
            }
        }
        let listener = TcpListener::bind(to).unwrap();
        messages.send_to(b"hello", to).unwrap();
        let (mut client, _) = listener.accept().unwrap();
        let mut hello = [0; 7];
        while messages.peers[0].standing == Standing::Calling {
            messages.wait(Duration::from_millis(10));
        }
        client.read_exact(&mut hello).unwrap();
        assert_eq!(hello[..], framed(b"hello"));
    }

    #[test]
    fn idle_connections_expire_and_make_space_for_new_connections() {
        let (mut messages, at) = here();
        let mut first = TcpStream::connect(at).unwrap();
        first.write_all(&framed(b"first")).unwrap();
        let (_, first_from) = next(&mut messages);
        let silent: Vec<_> = (0..2 * MOST_PEERS)
            .map(|_| TcpStream::connect(at).unwrap())
            .collect();
        let mut last = TcpStream::connect(at).unwrap();
        last.write_all(&framed(b"last")).unwrap();
        let (message, last_from) = next(&mut messages);
        assert_eq!(
            (message, messages.peers.len()),
            (b"last".to_vec(), MOST_PEERS)
        );
        // The peer that had sent something has not been replaced.
        messages.send_to(b"answer", first_from).unwrap();
        for peer in &mut messages.peers {
            if peer.address != last_from {
                peer.last = peer.last.checked_sub(SILENT + CONNECT).unwrap();
            }
        }
        messages.pump();
        let left: Vec<_> = messages.peers.iter().map(|it| it.address).collect();
        assert_eq!(left, [last_from]);
        drop(silent);
    }

    #[test]
    fn a_peer_with_many_requests_does_not_delay_other_peers() {
        let (mut messages, at) = here();
        let mut much = TcpStream::connect(at).unwrap();
        much.write_all(&framed(b"much").repeat(2_000)).unwrap();
        next(&mut messages);
        let mut little = TcpStream::connect(at).unwrap();
        little.write_all(&framed(b"little")).unwrap();
        let (mut begun, mut turns) = (Instant::now(), 0);
        loop {
            assert!(begun.elapsed() < PATIENCE);
            if messages.peers.len() < 2 {
                messages.pump();
                begun = Instant::now();
                continue;
            }
            turns += 1;
            if next(&mut messages).0 == b"little" {
                break;
            }
            // The bytes of the peer with one request may take a while to arrive.
            let mut peeked = [0];
            let there = messages.peers[1].stream.peek(&mut peeked);
            turns = if there.is_ok() { turns } else { 0 };
        }
        assert!(turns <= 2, "{turns}");
    }
}
