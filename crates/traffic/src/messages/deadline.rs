//! Messages over the deadline transport: its connections over one UDP socket, one for each peer.

use super::clock::now_ns;
use super::socket::{is_for_now, udp_socket};
use super::transport::{Messages, Received, Told};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use taut_sys::{Alarm, DATAGRAMS_AT_A_TIME, Datagrams};
use taut_transport::wire::{self, MOST_DATAGRAM_BYTES};
use taut_transport::{Counts, Endpoint, EndpointError, Master, Notice, SendError, Settings};

/// Limit on the peers. A further peer gets no reply, so that forged addresses cannot fill the memory.
const MOST_PEERS: usize = 64;
/// Time after which a peer that has only sent hellos may be replaced by a new peer, ns.
const UNCONFIRMED_NS: u64 = 1_000_000_000;
/// Limit on the datagrams that are received before other work is done.
const TAKEN_AT_A_TIME: usize = 64;
/// Number of datagrams that the first receive call requests: usually one has arrived.
const TAKEN_AT_FIRST: usize = 4;
/// Limit on the messages that are received before due packets are sent.
const RECEIVED_AT_A_TIME: u32 = 16;
/// Limit on the messages that are queued before they are sent, if the caller neither receives nor waits.
const HANDED_OVER_AT_A_TIME: usize = 16;
/// Limit on the notices that wait for the caller.
const MOST_TOLD: usize = 64;
/// Sleeps shorter than this are busy-waited, because the kernel would wake the thread too late.
const SPIN: Duration = Duration::from_micros(20);
/// Sleeps up to this length use a timeout of their own; longer sleeps use the timer.
const LONG: Duration = Duration::from_micros(500);

/// The settings of all connections at one socket.
#[derive(Debug, Clone, Default)]
pub struct DeadlineSettings {
    /// Settings of each connection.
    pub settings: Settings,
    /// Key that all peers share; none for connections without a key.
    pub master: Option<Master>,
}

/// Connections of the deadline transport over one socket.
#[derive(Debug)]
pub struct DeadlineMessages {
    socket: UdpSocket,
    settings: DeadlineSettings,
    peers: BTreeMap<SocketAddr, Endpoint>,
    /// Counters of ended connections.
    ended: Counts,
    told: VecDeque<Told>,
    alarm: Alarm,
    timer: Timer,
    incoming: Datagrams<MOST_DATAGRAM_BYTES>,
    outgoing: Datagrams<MOST_DATAGRAM_BYTES>,
    /// Number of messages that were queued since packets were last sent.
    handed_over: usize,
    /// True if the last wait has received all datagrams, and the caller has not called `receive` since.
    is_drained: bool,
    /// Number of datagrams that belong to no connection and open none.
    strangers: u64,
    /// Number of receive calls of the caller.
    received: u32,
}

/// A timer that is set as rarely as possible. The next packet usually postpones the deadlines of connections, whereas a
/// sleep with a timeout sets and cancels the processor's timer each time.
#[derive(Debug)]
struct Timer {
    file: OwnedFd,
    /// Time at which the timer expires or has expired, ns.
    rings_ns: u64,
}

impl Timer {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self {
            file: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            rings_ns: 0,
        })
    }

    /// Ensures that the timer expires by `until_ns`. A timer that already expires earlier is left unchanged: the woken
    /// thread sets it again.
    fn ring_by(&mut self, now_ns: u64, until_ns: u64) -> io::Result<()> {
        if now_ns < self.rings_ns && self.rings_ns <= until_ns {
            return Ok(());
        }
        let time = |ns: u64| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec {
            it_interval: time(0),
            it_value: time(until_ns),
        };
        timerfd_settime(&self.file, TimerfdTimerFlags::ABSTIME, &once)?;
        self.rings_ns = until_ns;
        Ok(())
    }
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // A request for so few bytes is never truncated.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}

impl DeadlineMessages {
    /// Opens a socket for connections at an address.
    ///
    /// # Errors
    /// The address is in use, or not of this machine; the settings are invalid.
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
            timer: Timer::new()?,
            incoming: Datagrams::default(),
            outgoing: Datagrams::default(),
            handed_over: 0,
            is_drained: false,
            strangers: 0,
            received: 0,
        })
    }

    /// Returns the number of datagrams that belong to no connection and open none.
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Returns the number of connections.
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Receives and processes arrived datagrams.
    fn take_in(&mut self) -> io::Result<()> {
        let mut refused = None;
        let (mut taken, mut wanted) = (0, TAKEN_AT_FIRST);
        self.is_drained = false;
        while taken < TAKEN_AT_A_TIME && !self.is_drained {
            let count = match self.incoming.receive(&self.socket, wanted) {
                Ok(it) => it,
                Err(e) if is_for_now(&e) => 0,
                Err(e) => {
                    // The error is about an earlier datagram, so later datagrams can still be received.
                    refused = Some(e);
                    taken += 1;
                    continue;
                }
            };
            taken += count;
            self.is_drained = count < wanted;
            wanted = DATAGRAMS_AT_A_TIME;
            let now_ns = now_ns();
            for at in 0..count {
                let Some((packet, from)) = self.incoming.get(at) else {
                    continue;
                };
                if let Some(endpoint) = self.peers.get_mut(&from)
                    && !(endpoint.has_ended() && wire::is_hello(packet))
                {
                    endpoint.receive(now_ns, packet);
                } else {
                    self.meet(now_ns, at, from)?;
                }
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Replies to the datagram at index `at`, which is from an unknown peer.
    fn meet(&mut self, now_ns: u64, at: usize, from: SocketAddr) -> io::Result<()> {
        if self.peers.len() >= MOST_PEERS {
            self.make_room(now_ns);
        }
        let (packet, _) = self.incoming.get(at).unwrap_or((&[], from));
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

    /// Removes the peer that has been idle longest, of the peers whose connection has ended or whose idle timeout has
    /// expired. Forged addresses thus cannot exclude other peers.
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

    /// Removes the peer with address `peer`, if there is one, and adds its counters to those of ended connections.
    fn forget(&mut self, peer: SocketAddr) {
        if let Some(endpoint) = self.peers.remove(&peer) {
            self.ended.add(&endpoint.counts());
        }
    }

    /// Sends all due packets, as many as possible per system call.
    fn give_out(&mut self) {
        self.handed_over = 0;
        let mut over = None;
        let now_ns = now_ns();
        for (to, endpoint) in &mut self.peers {
            while self
                .outgoing
                .add(*to, |packet| endpoint.transmit(now_ns, packet))
            {
                if self.outgoing.is_full() {
                    // Packets that the kernel rejects are lost, as on the path.
                    self.outgoing.send(&self.socket);
                }
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
        self.outgoing.send(&self.socket);
        if let Some(peer) = over {
            self.forget(peer);
        }
    }

    /// Writes the next message that is due for delivery into `message`, and returns its length and source; none if no
    /// message is due.
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

    /// Returns the time of the next action if no packet arrives.
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
        let is_new = self.peers.get(&to).is_none_or(Endpoint::has_ended);
        if is_new {
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
        self.handed_over += 1;
        // In all other cases the message leaves together with later messages, when the caller receives or waits.
        if is_new || taken.is_err() || self.handed_over >= HANDED_OVER_AT_A_TIME {
            self.give_out();
        }
        match taken {
            Ok(_) => Ok(()),
            Err(SendError::Full(_)) => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) => Err(io::Error::new(io::ErrorKind::InvalidInput, e)),
        }
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        // Datagrams that were received during a wait need no system call.
        let mut received = self.deliver(message);
        let mut taken = Ok(());
        if received.is_none() {
            // Queued messages leave before the socket is polled again.
            let is_drained = std::mem::take(&mut self.is_drained);
            if self.handed_over > 0 || is_drained {
                self.give_out();
            }
            // The caller has received everything since its last wait, and is about to wait again.
            if is_drained {
                return Ok(None);
            }
            taken = self.take_in();
            self.is_drained = false;
            received = self.deliver(message);
        }
        // Other packets leave when the caller has replied, or when it waits. If the caller only receives, they leave
        // after every few messages.
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
        if self.handed_over > 0 {
            self.give_out();
        }
        let now = now_ns();
        let due_ns = self.wake_ns(now).map(|ns| ns.saturating_sub(now));
        let time = due_ns.map_or(at_most, |ns| Duration::from_nanos(ns).min(at_most));
        if time >= SPIN {
            self.alarm.clear();
            self.alarm.watch(self.socket.as_fd());
            let until_ns = now.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            if time >= LONG && self.timer.ring_by(now, until_ns).is_ok() {
                self.alarm.watch(self.timer.file.as_fd());
                self.alarm.wait(None);
            } else {
                self.alarm.wait(time);
            }
        }
        // The woken thread does the due work; the caller that waits receives messages.
        let _ = self.take_in();
        let now = now_ns();
        if self.peers.values().all(|it| !it.has_delivery(now)) {
            self.give_out();
        }
    }

    fn told(&mut self) -> Option<Told> {
        self.told.pop_front()
    }

    fn set_target(&mut self, target_ns: u64) -> io::Result<()> {
        let wrong = |e| io::Error::new(io::ErrorKind::InvalidInput, e);
        let settings = Settings {
            target_ns,
            ..self.settings.settings
        };
        settings
            .check(self.settings.master.is_some())
            .map_err(wrong)?;
        self.settings.settings = settings;
        let mut peers = self.peers.values_mut();
        peers
            .try_for_each(|it| it.set_target(target_ns))
            .map_err(wrong)
    }

    fn counts(&self) -> Option<Counts> {
        let mut all = self.ended;
        let open = self.peers.values().map(Endpoint::counts);
        open.for_each(|counts| all.add(&counts));
        Some(all)
    }

    fn leave(&mut self) {
        // Waiting messages are not sent after a farewell.
        self.give_out();
        for endpoint in self.peers.values_mut() {
            endpoint.leave();
        }
        self.give_out();
    }
}
