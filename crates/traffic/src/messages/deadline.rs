//! Messages over the deadline transport: its connections over one UDP socket, one for each peer.

use super::{Messages, Received, Told, is_for_now, now_ns, udp_socket};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;
use taut_sys::Alarm;
use taut_transport::wire::{self, MOST_DATAGRAM_BYTES};
use taut_transport::{Counts, Endpoint, EndpointError, Master, Notice, SendError, Settings};

/// Peers at a time. One more is not answered: somebody who makes addresses up must not fill the memory.
const MOST_PEERS: usize = 64;
/// Time after which a peer that has said nothing but hello makes room for another, ns.
const UNCONFIRMED_NS: u64 = 1_000_000_000;
/// Datagrams that are taken in before others have their turn.
const TAKEN_AT_A_TIME: usize = 64;
/// Messages that are received before what is due is sent all the same.
const RECEIVED_AT_A_TIME: u32 = 16;
/// Notices that wait for somebody to ask.
const MOST_TOLD: usize = 64;
/// Sleeps shorter than this are spun away: the kernel would wake too late.
const SPIN: Duration = Duration::from_micros(20);

/// What is asked of connections.
#[derive(Debug, Clone, Default)]
pub struct DeadlineSettings {
    /// Settings of each connection.
    pub settings: Settings,
    /// Key that peers have to have.
    pub master: Option<Master>,
}

/// Connections of the deadline transport over one socket.
#[derive(Debug)]
pub struct DeadlineMessages {
    socket: UdpSocket,
    settings: DeadlineSettings,
    peers: BTreeMap<SocketAddr, Endpoint>,
    /// Counts of connections that are over.
    ended: Counts,
    told: VecDeque<Told>,
    alarm: Alarm,
    packet: Box<[u8; MOST_DATAGRAM_BYTES]>,
    /// Datagrams that belong to no connection and open none.
    strangers: u64,
    /// Messages that were asked for.
    received: u32,
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // So few are never cut.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

impl DeadlineMessages {
    /// Opens an address for connections.
    ///
    /// # Errors
    /// The address is taken, or not of this machine; the settings cannot be.
    pub fn open(bind: SocketAddr, settings: DeadlineSettings) -> io::Result<Self> {
        settings
            .settings
            .check(settings.master.is_some())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(Self {
            socket: udp_socket(bind)?,
            settings,
            peers: BTreeMap::new(),
            ended: Counts::default(),
            told: VecDeque::with_capacity(MOST_TOLD),
            alarm: Alarm::default(),
            packet: Box::new([0; MOST_DATAGRAM_BYTES]),
            strangers: 0,
            received: 0,
        })
    }

    /// Returns how many datagrams came that belong to no connection and open none.
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Returns how many connections there are.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Takes in what has come.
    fn take_in(&mut self) -> io::Result<()> {
        let mut refused = None;
        for _ in 0..TAKEN_AT_A_TIME {
            let (length, from) = match self.socket.recv_from(&mut self.packet[..]) {
                Ok(it) => it,
                Err(e) if is_for_now(&e) => break,
                Err(e) => {
                    // Of a datagram sent before: the next ones are there all the same.
                    refused = Some(e);
                    continue;
                }
            };
            let now_ns = now_ns();
            let packet = &self.packet[..length];
            if let Some(endpoint) = self.peers.get_mut(&from)
                && !(endpoint.has_ended() && wire::is_hello(packet))
            {
                endpoint.receive(now_ns, packet);
                continue;
            }
            self.meet(now_ns, length, from)?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Answers somebody who is not known yet.
    fn meet(&mut self, now_ns: u64, length: usize, from: SocketAddr) -> io::Result<()> {
        if self.peers.len() >= MOST_PEERS {
            self.make_room(now_ns);
        }
        let packet = &self.packet[..length];
        if !wire::is_hello(packet) || self.peers.len() >= MOST_PEERS {
            self.strangers += 1;
            return Ok(());
        }
        let DeadlineSettings { settings, master } = &self.settings;
        match Endpoint::accept(*settings, master.clone(), random()?, now_ns, packet) {
            Ok(endpoint) => {
                self.forget(from);
                self.peers.insert(from, endpoint);
            }
            Err(EndpointError::Wire(wire::WireError::Version(_))) => {
                self.strangers += 1;
                let mut answer = [0; MOST_DATAGRAM_BYTES];
                if let Some(length) = taut_transport::refuse(packet, now_ns, &mut answer) {
                    let _ = self.socket.send_to(&answer[..length], from);
                }
            }
            Err(_) => self.strangers += 1,
        }
        Ok(())
    }

    /// Forgets the peer that has been silent longest, if that is long enough, so that nobody keeps others out by addresses that are
    /// made up.
    fn make_room(&mut self, now_ns: u64) {
        let silence_ns = self.settings.settings.silence_ns;
        let is_over = |endpoint: &Endpoint| {
            let patience_ns = if endpoint.is_confirmed() {
                silence_ns
            } else {
                UNCONFIRMED_NS
            };
            endpoint.has_ended() || endpoint.silent_ns(now_ns) >= patience_ns
        };
        let over = self.peers.iter().filter(|(_, endpoint)| is_over(endpoint));
        let oldest = over.max_by_key(|(_, endpoint)| endpoint.silent_ns(now_ns));
        if let Some(peer) = oldest.map(|(peer, _)| *peer) {
            self.forget(peer);
        }
    }

    /// Forgets a peer, if there is one of that address, but for its counts.
    fn forget(&mut self, peer: SocketAddr) {
        if let Some(endpoint) = self.peers.remove(&peer) {
            self.ended.add(&endpoint.counts());
        }
    }

    /// Sends what is due.
    fn give_out(&mut self) {
        let mut over = None;
        for (to, endpoint) in &mut self.peers {
            let mut at_ns = now_ns();
            while let Some(length) = endpoint.transmit(at_ns, &mut self.packet) {
                // What the kernel does not take is lost, as on the way.
                let _ = self.socket.send_to(&self.packet[..length], *to);
                at_ns = now_ns();
            }
            while let Some(notice) = endpoint.notice() {
                if self.told.len() == MOST_TOLD {
                    self.told.pop_front();
                }
                self.told.push_back(Told { peer: *to, notice });
                if matches!(notice, Notice::Silent | Notice::Refused(_)) {
                    over = Some(*to);
                }
            }
        }
        if let Some(peer) = over {
            self.forget(peer);
        }
    }

    /// The next message that is to be delivered.
    fn deliver(&mut self, message: &mut [u8]) -> Option<Received> {
        let now_ns = now_ns();
        self.peers.iter_mut().find_map(|(from, endpoint)| {
            let delivery = endpoint.deliver(now_ns)?;
            let length = delivery.payload.len().min(message.len());
            message[..length].copy_from_slice(&delivery.payload[..length]);
            Some(Received {
                length,
                from: *from,
                stamp: None,
            })
        })
    }

    /// When anything is due that nobody sends.
    fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        let due = self.peers.values().filter_map(|it| it.wake_ns(now_ns));
        due.min()
    }
}

impl Messages for DeadlineMessages {
    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.peers.get(&to).is_none_or(Endpoint::has_ended) {
            if self.peers.len() >= MOST_PEERS {
                return Err(io::Error::other(format!(
                    "{MOST_PEERS} connections are open"
                )));
            }
            let DeadlineSettings { settings, master } = &self.settings;
            let endpoint = Endpoint::open(*settings, master.clone(), random()?, now_ns())
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
            self.forget(to);
            self.peers.insert(to, endpoint);
        }
        let taken = match self.peers.get_mut(&to) {
            Some(endpoint) => endpoint.send(now_ns(), message),
            None => Err(SendError::Ended),
        };
        self.give_out();
        match taken {
            Ok(_) => Ok(()),
            Err(SendError::Full(_)) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => Err(io::Error::new(io::ErrorKind::InvalidInput, e)),
        }
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        // What has been taken in while somebody waited needs no call of the system.
        if let Some(received) = self.deliver(message) {
            return Ok(Some(received));
        }
        let taken = self.take_in();
        let received = self.deliver(message);
        // What is to be said beside the message goes out when whoever has it has answered, or waits; and now and then, for whoever
        // only receives.
        self.received = self.received.wrapping_add(1);
        if received.is_none() || self.received.is_multiple_of(RECEIVED_AT_A_TIME) {
            self.give_out();
        }
        match received {
            Some(received) => Ok(Some(received)),
            None => taken.map(|()| None),
        }
    }

    fn wait(&mut self, at_most: Duration) {
        let now = now_ns();
        let due_ns = self.wake_ns(now).map(|ns| ns.saturating_sub(now));
        let time = due_ns.map_or(at_most, |ns| Duration::from_nanos(ns).min(at_most));
        if time >= SPIN {
            self.alarm.clear();
            self.alarm.watch(self.socket.as_fd());
            self.alarm.wait(time);
        }
        // Whoever was woken by something due does it; messages are asked for by who waits.
        let _ = self.take_in();
        if self.peers.values().all(|it| !it.has_delivery(now_ns())) {
            self.give_out();
        }
    }

    fn told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    fn counts(&self) -> Option<Counts> {
        let mut all = self.ended;
        let open = self.peers.values().map(Endpoint::counts);
        open.for_each(|counts| all.add(&counts));
        Some(all)
    }

    fn leave(&mut self) {
        for endpoint in self.peers.values_mut() {
            endpoint.leave();
        }
        self.give_out();
    }
}
