//! Messages over TCP, each behind its length in two bytes.

use super::{MOST_MESSAGE_BYTES, Messages, Received, is_for_now};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;
use taut_sys::Alarm;

/// Bytes of a length.
const LENGTH_BYTES: usize = 2;
/// Bytes that wait to be sent to a peer, at most: what is beyond is refused, as by a UDP socket.
const MOST_WAITING: usize = 4 << 20;
/// Peers at a time.
const MOST_PEERS: usize = 64;
/// Bytes that are read at a time.
const READ_BYTES: usize = 1 << 16;
/// Longest time to wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// What came and is not yet a whole message; what of it was handed out.
    read: Vec<u8>,
    taken: usize,
    /// What the kernel did not take yet.
    unsent: Vec<u8>,
    is_over: bool,
}

#[derive(Debug)]
pub(super) struct StreamMessages {
    listener: TcpListener,
    peers: HashMap<SocketAddr, Peer>,
    alarm: Alarm,
    buffer: Vec<u8>,
}

impl StreamMessages {
    pub(super) fn open(bind: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(bind)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            peers: HashMap::new(),
            alarm: Alarm::default(),
            buffer: vec![0; READ_BYTES],
        })
    }

    fn add(&mut self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        self.peers.insert(
            peer,
            Peer {
                stream,
                read: Vec::new(),
                taken: 0,
                unsent: Vec::new(),
                is_over: false,
            },
        );
        Ok(())
    }

    /// Takes connections that wait, and sends what waits.
    fn pump(&mut self) {
        while self.peers.len() < MOST_PEERS
            && let Ok((stream, peer)) = self.listener.accept()
        {
            // One that is gone again is none.
            let _ = self.add(stream, peer);
        }
        for peer in self.peers.values_mut() {
            peer.flush();
        }
        self.peers
            .retain(|_, peer| !peer.is_over || peer.whole().is_some());
    }
}

impl Peer {
    fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => self.end(),
                Ok(sent) => {
                    self.unsent.drain(..sent);
                }
                Err(e) if is_for_now(&e) => return,
                Err(_) => self.end(),
            }
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        self.unsent.clear();
    }

    /// Where the next whole message lies in what was read.
    fn whole(&self) -> Option<std::ops::Range<usize>> {
        let (length, _) = self.read[self.taken..].split_first_chunk::<LENGTH_BYTES>()?;
        let from = self.taken + LENGTH_BYTES;
        let to = from + usize::from(u16::from_be_bytes(*length));
        (to <= self.read.len()).then_some(from..to)
    }

    fn read(&mut self, buffer: &mut [u8]) {
        if self.is_over {
            return;
        }
        match self.stream.read(buffer) {
            Ok(0) => self.is_over = true,
            Ok(length) => {
                self.read.drain(..self.taken);
                self.taken = 0;
                self.read.extend_from_slice(&buffer[..length]);
            }
            Err(e) if is_for_now(&e) => {}
            Err(_) => self.is_over = true,
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
        if self.peers.get(&to).is_none_or(|it| it.is_over) {
            let stream = TcpStream::connect_timeout(&to, CONNECT)?;
            self.add(stream, to)?;
        }
        let Some(peer) = self.peers.get_mut(&to) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        peer.flush();
        if peer.unsent.len() + message.len() > MOST_WAITING {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        peer.unsent
            .extend_from_slice(&(message.len() as u16).to_be_bytes());
        peer.unsent.extend_from_slice(message);
        peer.flush();
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        self.pump();
        for (from, peer) in &mut self.peers {
            if peer.whole().is_none() {
                peer.read(&mut self.buffer);
            }
            let Some(range) = peer.whole() else {
                continue;
            };
            let length = range.len().min(message.len());
            message[..length].copy_from_slice(&peer.read[range.start..][..length]);
            peer.taken = range.end;
            return Ok(Some(Received {
                length,
                from: *from,
                stamp: None,
            }));
        }
        Ok(None)
    }

    fn wait(&mut self, at_most: Duration) {
        self.pump();
        self.alarm.clear();
        self.alarm.watch(self.listener.as_fd());
        let mut waits = false;
        for peer in self.peers.values().filter(|it| !it.is_over) {
            self.alarm.watch(peer.stream.as_fd());
            waits |= !peer.unsent.is_empty();
        }
        // What the kernel does not take yet it takes soon.
        let soon = Duration::from_millis(1);
        self.alarm
            .wait(if waits { at_most.min(soon) } else { at_most });
    }
}
