//! Sends trains of probes at their intended times, without waiting for replies (open loop), and records the outcome of
//! each probe.
//!
//! One thread sends and receives: it sleeps in `poll` until a reply arrives or the next probe is due. The machine's
//! other processors thus remain free for the path.

use crate::messages::{
    DeadlineSettings, Messages, Transport, any_address_to, open as open_messages, widen,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use taut_measure::{Arrival, SequenceReport, SequenceTracker};
use taut_sys::{Station, departure, receive_stamped, stamp_arrivals, stamp_departures};
use taut_wire::{PROBE_BYTES, Probe, ProbeWay};

/// Interval between the first probes, which only check whether a server replies.
const HELLO_PAUSE: Duration = Duration::from_millis(100);

/// The longest plausible round trip.
const MOST_RTT: Duration = Duration::from_secs(10);

/// Sleeps shorter than this are busy-waited, because the kernel would wake the thread too late.
const SPIN: Duration = Duration::from_micros(20);

/// Number of probes that a late client sends before it checks for replies.
const SENT_BEFORE_LOOKING: u32 = 8;

/// A series of probes with equal intervals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Train {
    /// Interval between the intended send times of two probes.
    pub interval: Duration,
    /// Payload of each probe, bytes: 16 to [`super::MOST_BYTES`].
    pub size_bytes: usize,
    /// Number of probes in the series.
    pub count: u32,
    /// Time to wait for replies after the last probe was sent.
    pub patience: Duration,
}

/// Outcome of one probe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Intended send time, ns after the start of the session.
    pub due_ns: u64,
    /// Actual send time, ns after the start of the session.
    pub sent_ns: u64,
    /// Time from sending the probe to its first reply, ns; none if no reply arrived.
    pub rtt_ns: Option<u64>,
    /// Time from the arrival of the reply in the kernel until this program received it, ns: the last part of `rtt_ns`.
    /// None if the kernel does not report the arrival.
    pub wake_up_ns: Option<u64>,
    /// Times from sending the probe until it reached the interface's queue, and until it reached the driver, ns. None
    /// unless the kernel's timestamps were requested.
    pub departed_ns: [Option<u64>; 2],
    /// Number of replies to the probe, at most 255.
    pub arrivals: u8,
    /// True if a later probe got its first reply before this probe did.
    pub reordered: bool,
    /// True if the kernel rejected the probe.
    pub refused: bool,
}

impl Outcome {
    /// Returns the time from the intended send time to the first reply, ns, which includes waiting for the sender
    /// (coordinated omission). None if no reply arrived.
    pub fn rtt_from_intended_ns(&self) -> Option<u64> {
        self.rtt_ns
            .map(|rtt_ns| rtt_ns + self.sent_ns.saturating_sub(self.due_ns))
    }

    /// Returns the four parts of the round trip, ns, if all timestamps are known. The first part is the time in the
    /// sender's stack (m2 - m1), and the second the time in the queue up to the driver (m3 - m2). The third part is the
    /// path until the kernel received the reply. The fourth part is the time until this program received the reply
    /// (m6 - m5). The timestamps m1 to m6 are those of Gallenmüller 2021, section 6.3.
    pub fn stages_ns(&self) -> Option<[u64; 4]> {
        let ([Some(queue), Some(driver)], Some(rtt), Some(wake_up)) =
            (self.departed_ns, self.rtt_ns, self.wake_up_ns)
        else {
            return None;
        };
        let to_driver = driver.checked_sub(queue)?;
        let away = rtt.checked_sub(driver)?.checked_sub(wake_up)?;
        Some([queue, to_driver, away, wake_up])
    }
}

/// Result of a train.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainResult {
    /// Outcome of each probe that was due before the train ended, in the order of sending.
    pub probes: Vec<Outcome>,
    /// Loss, duplicates and reordering of the probes that the kernel accepted.
    pub sequence: SequenceReport,
    /// Probes that the kernel rejected.
    pub refused: u64,
    /// Replies to probes of earlier trains, which had counted these probes as lost.
    pub late: u64,
    /// Datagrams from the server that are not replies, or are replies to probes of another session.
    pub malformed: u64,
    /// Number of errors that report a closed port at the server's machine.
    pub unreachable: u64,
    /// Time from the intended send time of the first probe to the last send call, s.
    pub seconds: f64,
    /// True if the train was stopped before its end.
    pub stopped: bool,
}

/// Reason why a session with a probe server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A socket to the server cannot be opened.
    #[error("cannot send to {server}: {source}")]
    Socket {
        /// Address of the server.
        server: SocketAddr,
        /// Error that the operating system reported.
        source: std::io::Error,
    },
    /// The server does not reply.
    #[error("no reply from {server} within {} s: start `taut probe server` there, and check that nothing on the \
            path blocks UDP", .waited.as_secs_f64())]
    Silent {
        /// Address of the server.
        server: SocketAddr,
        /// Time waited.
        waited: Duration,
    },
    /// The server's machine reports that the port is closed.
    #[error("nothing listens on {server}: start `taut probe server` there")]
    Closed {
        /// Address of the server.
        server: SocketAddr,
    },
    /// The client was stopped before a server had replied.
    #[error("stopped before a server replied")]
    Stopped,
}

/// The transport that carries probes, and its settings.
#[derive(Debug, Clone, Default)]
pub struct Over {
    /// The transport that carries the probes.
    pub transport: Transport,
    /// The settings of the deadline transport.
    pub deadline: DeadlineSettings,
    /// True if the kernel timestamps datagrams as they leave; only for UDP.
    pub stamps_departures: bool,
}

/// The socket or transport object that carries probes.
#[derive(Debug)]
enum Carrier {
    /// A UDP socket, on which the kernel timestamps arrivals.
    Socket(UdpSocket),
    /// Another transport, and the address of the server.
    Messages(Box<dyn Messages>, SocketAddr),
}

impl Carrier {
    fn open(server: SocketAddr, over: &Over) -> std::io::Result<Self> {
        let any = any_address_to(server);
        if over.transport != Transport::Udp {
            let messages = open_messages(over.transport, any, &over.deadline)?;
            return Ok(Self::Messages(messages, server));
        }
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        socket.set_nonblocking(true)?;
        widen(&socket);
        // Without timestamps of arrivals, only one value is unknown: the time that this program took to receive a
        // reply.
        let _ = stamp_arrivals(&socket);
        if over.stamps_departures {
            stamp_departures(&socket)?;
        }
        Ok(Self::Socket(socket))
    }

    fn send(&mut self, payload: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Socket(socket) => socket.send(payload).map(drop),
            Self::Messages(messages, server) => messages.send_to(payload, *server),
        }
    }

    /// Receives a datagram. Returns its length, and the time since 1970 at which the kernel received it, if that time
    /// is known.
    fn receive(&mut self, received: &mut [u8]) -> std::io::Result<(usize, Option<Duration>)> {
        match self {
            Self::Socket(socket) => receive_stamped(socket, received),
            Self::Messages(messages, _) => match messages.receive(received)? {
                Some(it) => Ok((it.length, it.stamp)),
                None => Err(ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Waits until a datagram arrives, but no longer than `left`.
    fn wait(&mut self, left: Duration) {
        let socket = match self {
            Self::Socket(socket) => socket,
            Self::Messages(messages, _) => return messages.wait(left),
        };
        let timeout = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut watched = [PollFd::new(socket, PollFlags::IN)];
        // A signal ends the call as well; the loop checks all conditions.
        let _ = poll(&mut watched, Some(&timeout));
    }
}

/// A session of a probe client with its server.
#[derive(Debug)]
pub struct ProbeSession {
    carrier: Carrier,
    session: u16,
    begun: Instant,
    /// Sequence number that the next probe gets.
    next: u32,
    /// Sequence number of the first measured probe; earlier probes only checked for a server.
    measured_from: u32,
    payload: Vec<u8>,
    received: Vec<u8>,
    /// Number of sent datagrams, which the kernel uses as index of its departure timestamps; none if these are not
    /// requested.
    numbered: Option<u32>,
    /// The longest measured round trip, including late replies, ns.
    longest_rtt_ns: u64,
}

/// A datagram from the socket.
enum Taken {
    /// A reply, and the time since 1970 at which the kernel received it, if that time is known.
    Answer(Probe, Option<Duration>),
    Malformed,
    Unreachable,
    Nothing,
}

impl ProbeSession {
    /// Sends probes of `size_bytes` until one gets a reply: then addresses are resolved, and the path works.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn connect(
        server: SocketAddr,
        size_bytes: usize,
        wait: Duration,
        stop: &AtomicBool,
    ) -> Result<Self, ProbeError> {
        Self::connect_over(server, &Over::default(), size_bytes, wait, stop)
    }

    /// Connects like [`ProbeSession::connect`], through the transport of `over`.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn connect_over(
        server: SocketAddr,
        over: &Over,
        size_bytes: usize,
        wait: Duration,
        stop: &AtomicBool,
    ) -> Result<Self, ProbeError> {
        let carrier = Carrier::open(server, over);
        let carrier = carrier.map_err(|source| ProbeError::Socket { server, source })?;
        let stamps = over.stamps_departures && over.transport == Transport::Udp;
        Self::greet(carrier, server, size_bytes, wait, stamps, stop)
    }

    /// Connects like [`ProbeSession::connect`], through another implementation of [`Messages`], such as the caller's
    /// own.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn connect_by(
        messages: Box<dyn Messages>,
        server: SocketAddr,
        size_bytes: usize,
        wait: Duration,
        stop: &AtomicBool,
    ) -> Result<Self, ProbeError> {
        let carrier = Carrier::Messages(messages, server);
        Self::greet(carrier, server, size_bytes, wait, false, stop)
    }

    fn greet(
        carrier: Carrier,
        server: SocketAddr,
        size_bytes: usize,
        wait: Duration,
        stamps: bool,
        stop: &AtomicBool,
    ) -> Result<Self, ProbeError> {
        let failed = |source| ProbeError::Socket { server, source };
        let mut session = Self {
            carrier,
            session: fastrand::u16(..),
            begun: Instant::now(),
            next: 0,
            measured_from: 0,
            payload: Vec::new(),
            received: vec![0; super::MOST_BYTES + 1],
            numbered: stamps.then_some(0),
            longest_rtt_ns: 0,
        };
        let mut closed = false;
        while session.begun.elapsed() < wait || session.next == 0 {
            if stop.load(Ordering::Relaxed) {
                return Err(ProbeError::Stopped);
            }
            let hello = Train {
                interval: Duration::ZERO,
                size_bytes,
                count: 1,
                patience: HELLO_PAUSE,
            };
            let result = session.send_train(&hello, stop).map_err(failed)?;
            if result.sequence.received_unique > 0 || result.late > 0 {
                session.measured_from = session.next;
                return Ok(session);
            }
            closed = result.unreachable > 0;
            if closed {
                std::thread::sleep(HELLO_PAUSE);
            }
        }
        Err(if closed {
            ProbeError::Closed { server }
        } else {
            ProbeError::Silent {
                server,
                waited: wait,
            }
        })
    }

    /// Returns the longest measured round trip, including late replies: an estimate of the path's latency, available
    /// from the first reply on. It is at most ten seconds, even if a server forges send times.
    pub fn longest_round_trip(&self) -> Duration {
        Duration::from_nanos(self.longest_rtt_ns).min(MOST_RTT)
    }

    /// Sends a train and waits for its replies. It ends early when `stop` is set: the result contains the probes that
    /// were due by then.
    ///
    /// # Errors
    /// The socket fails permanently, for example because the probes are too long for the path.
    pub fn send_train(&mut self, train: &Train, stop: &AtomicBool) -> std::io::Result<TrainResult> {
        // Without this setting, sleeps end up to 50 us late. If the kernel refuses the setting, probes are sent late,
        // and the send delay shows that.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let sent = Sending::of(self, train).run(stop);
        let _ = set_current_timer_slack(None);
        sent
    }

    /// Returns the counters of the transport, if it has any.
    pub fn counts(&self) -> Option<taut_transport::Counts> {
        match &self.carrier {
            Carrier::Socket(_) => None,
            Carrier::Messages(messages, _) => messages.counts(),
        }
    }

    /// Returns the next notice of the transport about the server; none if there is no notice.
    pub fn told(&mut self) -> Option<taut_transport::Notice> {
        match &mut self.carrier {
            Carrier::Socket(_) => None,
            Carrier::Messages(messages, _) => messages.told().map(|it| it.notice),
        }
    }

    /// Sends a farewell to the server, if the transport has one.
    pub fn leave(&mut self) {
        if let Carrier::Messages(messages, _) = &mut self.carrier {
            messages.leave();
        }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn take(&mut self) -> std::io::Result<Taken> {
        match self.carrier.receive(&mut self.received) {
            Ok((length, stamp)) => Ok(match Probe::parse(&self.received[..length]) {
                Some((ProbeWay::Answer, probe)) if probe.session == self.session => {
                    Taken::Answer(probe, stamp)
                }
                _ => Taken::Malformed,
            }),
            Err(e) => match e.kind() {
                // This includes a TCP connection attempt without a reply: later probes cause another attempt.
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut => {
                    Ok(Taken::Nothing)
                }
                _ if is_from_afar(&e) => Ok(Taken::Unreachable),
                _ => Err(e),
            },
        }
    }
}

/// Returns true if an error is a report from another machine, which did not accept a datagram.
fn is_from_afar(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    )
}

/// A train in progress.
struct Sending<'a> {
    session: &'a mut ProbeSession,
    train: Train,
    /// Sequence number of the first probe of the train.
    first: u32,
    begun_ns: u64,
    tracker: SequenceTracker,
    answered: u32,
    /// `first_number` is the index of the train's first datagram, and `numbered` contains the probe of each datagram
    /// from that index on. Both serve to match timestamps to probes.
    first_number: u32,
    numbered: Vec<u32>,
    result: TrainResult,
}

impl<'a> Sending<'a> {
    fn of(session: &'a mut ProbeSession, train: &Train) -> Self {
        let filler = |at: usize| at as u8;
        session.payload = (0..train.size_bytes.max(PROBE_BYTES)).map(filler).collect();
        Self {
            train: *train,
            first: session.next,
            begun_ns: session.now_ns(),
            first_number: session.numbered.unwrap_or(0),
            numbered: Vec::new(),
            session,
            tracker: SequenceTracker::with_window(train.count as usize),
            answered: 0,
            result: TrainResult {
                probes: Vec::with_capacity(train.count as usize),
                sequence: SequenceTracker::with_window(1).finish(0),
                refused: 0,
                late: 0,
                malformed: 0,
                unreachable: 0,
                seconds: 0.0,
                stopped: false,
            },
        }
    }

    fn run(mut self, stop: &AtomicBool) -> std::io::Result<TrainResult> {
        let interval_ns = self.train.interval.as_nanos() as u64;
        let patience_ns = self.train.patience.as_nanos() as u64;
        let mut last_sent_ns = self.begun_ns;
        loop {
            let sent = self.result.probes.len() as u32;
            let all_sent = sent == self.train.count;
            let next_ns = if all_sent {
                last_sent_ns.saturating_add(patience_ns)
            } else {
                self.begun_ns
                    .saturating_add(u64::from(sent).saturating_mul(interval_ns))
            };
            let now_ns = self.session.now_ns();
            if stop.load(Ordering::Relaxed) {
                self.result.stopped = !all_sent;
                break;
            }
            if now_ns >= next_ns {
                if all_sent {
                    // After a preemption, datagrams that arrived during it are received first.
                    while self.receive()? {}
                    self.take_departures()?;
                    break;
                }
                last_sent_ns = self.send(next_ns)?;
            }
            // A late client sends a few probes before receiving, so that receiving does not delay it further.
            if now_ns < next_ns || sent.is_multiple_of(SENT_BEFORE_LOOKING) || all_sent {
                while self.receive()? {}
                self.take_departures()?;
            }
            let complete = u64::from(self.answered) + self.result.refused;
            if self.result.probes.len() as u32 == self.train.count
                && complete == u64::from(self.train.count)
            {
                break;
            }
            if now_ns < next_ns {
                self.wait(next_ns);
            }
        }
        let sent = self.result.probes.len() as u64;
        // Refused probes were never sent, so they do not count as lost.
        self.result.sequence = self.tracker.finish(sent);
        self.result.sequence.sent -= self.result.refused;
        self.result.sequence.lost -= self.result.refused.min(self.result.sequence.lost);
        self.result.seconds = (last_sent_ns - self.begun_ns) as f64 / 1e9;
        Ok(self.result)
    }

    /// Sends the next probe, with the intended time `due_ns`; returns the actual send time.
    fn send(&mut self, due_ns: u64) -> std::io::Result<u64> {
        let sequence = self.session.next;
        let mut sent_ns = 0;
        let mut refused = true;
        // An error of an earlier datagram is reported to the next send call, which then has not sent anything.
        for _ in 0..2 {
            sent_ns = self.session.now_ns();
            let probe = Probe {
                session: self.session.session,
                sequence,
                sent_ns,
            };
            probe.emit(&mut self.session.payload);
            match self.session.carrier.send(&self.session.payload) {
                Ok(()) => {
                    refused = false;
                    if let Some(number) = &mut self.session.numbered {
                        *number = number.wrapping_add(1);
                        self.numbered.push(self.result.probes.len() as u32);
                    }
                    break;
                }
                Err(e) if is_from_afar(&e) => self.result.unreachable += 1,
                Err(e) if is_for_now(&e) => break,
                Err(e) => return Err(e),
            }
        }
        self.session.next = self.session.next.wrapping_add(1);
        self.result.refused += u64::from(refused);
        self.result.probes.push(Outcome {
            due_ns,
            sent_ns,
            refused,
            ..Outcome::default()
        });
        Ok(sent_ns)
    }

    /// Reads the kernel's departure timestamps of sent datagrams.
    fn take_departures(&mut self) -> std::io::Result<()> {
        let (Some(_), Carrier::Socket(socket)) = (self.session.numbered, &self.session.carrier)
        else {
            return Ok(());
        };
        while let Some(departure) = departure(socket)? {
            let index = departure.number.wrapping_sub(self.first_number) as usize;
            let probe = self.numbered.get(index).copied();
            // The clocks are compared each time, because the clock of the timestamps may be set at any time.
            let (Some(probe), Some(passed_ns)) = (probe, since(departure.stamp)) else {
                continue;
            };
            let at_ns = self.session.now_ns().saturating_sub(passed_ns);
            if let Some(outcome) = self.result.probes.get_mut(probe as usize) {
                let station = match departure.at {
                    Station::Queue => 0,
                    Station::Driver => 1,
                };
                outcome.departed_ns[station] = Some(at_ns.saturating_sub(outcome.sent_ns));
            }
        }
        Ok(())
    }

    /// Receives datagrams; returns true if there may be more.
    fn receive(&mut self) -> std::io::Result<bool> {
        let taken = self.session.take()?;
        let now_ns = self.session.now_ns();
        match taken {
            Taken::Nothing => return Ok(false),
            Taken::Malformed => self.result.malformed += 1,
            Taken::Unreachable => self.result.unreachable += 1,
            Taken::Answer(probe, stamp) => {
                let offset = probe.sequence.wrapping_sub(self.first);
                match self.result.probes.get_mut(offset as usize) {
                    Some(outcome) if outcome.sent_ns == probe.sent_ns => {
                        let arrival = self.tracker.record(u64::from(offset));
                        outcome.arrivals = outcome.arrivals.saturating_add(1);
                        if outcome.rtt_ns.is_none() {
                            let rtt_ns = now_ns.saturating_sub(probe.sent_ns);
                            outcome.rtt_ns = Some(rtt_ns);
                            self.session.longest_rtt_ns = self.session.longest_rtt_ns.max(rtt_ns);
                            // This time can exceed the round trip only if the clock was set during it; then it is
                            // discarded.
                            outcome.wake_up_ns = stamp.and_then(since).filter(|ns| *ns <= rtt_ns);
                            outcome.reordered = arrival == Arrival::Reordered;
                            self.answered += 1;
                        }
                    }
                    // The reply belongs to an earlier train: the offset of an earlier probe wraps to the upper half of
                    // the range.
                    None if offset > u32::MAX / 2 => {
                        let since = probe.sequence.wrapping_sub(self.session.measured_from);
                        self.result.late += u64::from(since <= u32::MAX / 2);
                        let rtt_ns = now_ns.saturating_sub(probe.sent_ns);
                        self.session.longest_rtt_ns = self.session.longest_rtt_ns.max(rtt_ns);
                    }
                    _ => self.result.malformed += 1,
                }
            }
        }
        Ok(true)
    }

    /// Waits until a datagram arrives, but no longer than until `until_ns`.
    fn wait(&mut self, until_ns: u64) {
        let left_ns = until_ns.saturating_sub(self.session.now_ns());
        let left = Duration::from_nanos(left_ns);
        if left < SPIN {
            return;
        }
        self.session.carrier.wait(left);
    }
}

/// Returns the time since `stamp` (a time since 1970), ns; none if `stamp` is in the future.
fn since(stamp: Duration) -> Option<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Some(now.ok()?.checked_sub(stamp)?.as_nanos() as u64)
}

/// Returns true if an error means that the kernel has no space for a datagram at the moment.
fn is_for_now(e: &std::io::Error) -> bool {
    e.kind() == ErrorKind::WouldBlock
        || e.kind() == ErrorKind::Interrupted
        || e.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::probe::ProbeServer;
    use taut_wire::probe;

    const TRAIN: Train = Train {
        interval: Duration::from_micros(500),
        size_bytes: 64,
        count: 40,
        patience: Duration::from_millis(300),
    };

    /// Starts a session with a server whose replies `answer` determines: how often the server replies to a probe, and
    /// to which earlier probe the server replies afterwards.
    fn against(
        address: &str,
        answer: impl Fn(u32) -> usize + Send + 'static,
    ) -> Result<(ProbeSession, impl FnOnce()), ProbeError> {
        let socket = UdpSocket::bind(address).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let server = socket.local_addr().unwrap();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut payload = [0; 2000];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut payload) else {
                    continue;
                };
                let (_, asked) = Probe::parse(&payload[..length]).unwrap();
                assert!(probe::answer(&mut payload[..length]));
                for _ in 0..answer(asked.sequence) {
                    socket.send_to(&payload[..length], client).unwrap();
                }
            }
        });
        let never = AtomicBool::new(false);
        let session = ProbeSession::connect(server, 64, Duration::from_secs(20), &never)?;
        Ok((session, move || {
            stop.store(true, Ordering::Relaxed);
            thread.join().unwrap();
        }))
    }

    #[test]
    fn a_rate_search_succeeds_despite_round_trips_beyond_its_timeout() {
        let (mut session, end) = against("127.0.0.1:0", |_| {
            std::thread::sleep(Duration::from_millis(300));
            1
        })
        .unwrap();
        let never = AtomicBool::new(false);
        // The server sleeps for each hello. At one probe in two seconds, the sleep delays replies but lets no queue
        // build up.
        std::thread::sleep(Duration::from_secs(1));
        let settings = taut_measure::ThroughputSettings {
            method: taut_measure::Method::Binary,
            min_pps: 0.5,
            max_pps: 0.5,
            precision: 0.5,
            loss_tolerance: 0.0,
            trial_seconds: 1.0,
            votes: 1,
            exceed_ratio: taut_measure::EXCEED_RATIO,
        };
        let search = taut_measure::ThroughputSearch::new(settings).unwrap();
        let found = crate::probe::search_rate(&mut session, search, 64, &never, |_| {}).unwrap();
        end();
        assert_eq!(found.found.rate_pps, Some(0.5), "{found:?}");
        assert!(session.longest_round_trip() >= Duration::from_millis(300));
    }

    #[test]
    fn every_probe_is_counted_as_received_lost_or_duplicated() {
        // Every fifth probe is lost and every seventh is duplicated; the first probe is the hello.
        let (mut session, end) = against("127.0.0.1:0", |sequence| {
            match (sequence % 5 == 4, sequence % 7 == 3) {
                (true, _) => 0,
                (_, true) => 2,
                _ => 1,
            }
        })
        .unwrap();
        let first = session.next;
        let never = AtomicBool::new(false);
        let result = session.send_train(&TRAIN, &never).unwrap();
        end();
        let numbers = first..first + 40;
        let lost = numbers.clone().filter(|n| n % 5 == 4).count() as u64;
        let twice = numbers.filter(|n| n % 5 != 4 && n % 7 == 3).count() as u64;
        assert_eq!((result.sequence.sent, result.sequence.lost), (40, lost));
        assert_eq!(result.sequence.duplicate, twice);
        assert_eq!((result.sequence.reordered, result.malformed), (0, 0));
        assert!(!result.stopped && result.refused == 0 && result.probes.len() == 40);
        for (at, outcome) in result.probes.iter().enumerate() {
            assert_eq!(
                outcome.rtt_ns.is_none(),
                (first + at as u32) % 5 == 4,
                "{at}: {outcome:?}"
            );
            assert!(outcome.sent_ns >= outcome.due_ns);
            let begun_ns = result.probes[0].due_ns;
            assert_eq!(outcome.due_ns, begun_ns + at as u64 * 500_000);
        }
    }

    #[test]
    fn kernel_timestamps_split_a_round_trip_into_stages() {
        let server = ProbeServer::bind("127.0.0.1:0").unwrap();
        let address = server.address().unwrap();
        let stop = AtomicBool::new(false);
        let over = Over {
            stamps_departures: true,
            ..Over::default()
        };
        let result = std::thread::scope(|scope| {
            let running = scope.spawn(|| server.run(&stop));
            let never = AtomicBool::new(false);
            let wait = Duration::from_secs(20);
            let session = ProbeSession::connect_over(address, &over, 64, wait, &never);
            let mut session = session.unwrap();
            let result = session.send_train(&TRAIN, &never).unwrap();
            stop.store(true, Ordering::Relaxed);
            running.join().unwrap();
            result
        });
        let staged: Vec<_> = result
            .probes
            .iter()
            .filter_map(|it| it.stages_ns().zip(it.rtt_ns))
            .collect();
        // The kernel may not have timestamped the first replies yet.
        assert!(staged.len() >= 20, "{:?}", result.probes);
        for (stages, rtt_ns) in staged {
            assert_eq!(stages.iter().sum::<u64>(), rtt_ns);
        }
        let plain = Outcome::default();
        assert_eq!(plain.stages_ns(), None);
    }

    #[test]
    fn probe_sessions_are_distinguished_and_old_replies_count_as_late() {
        let (mut session, end) = against("127.0.0.1:0", |_| 1).unwrap();
        let never = AtomicBool::new(false);
        session.send_train(&TRAIN, &never).unwrap();
        // This simulates late replies to probes of an earlier train.
        let mut sending = Sending::of(&mut session, &TRAIN);
        let old = sending.first - 3;
        let mut payload = [0; 16];
        let mut hand_over = |sending: &mut Sending<'_>, session, sequence| {
            Probe {
                session,
                sequence,
                sent_ns: 5,
            }
            .emit(&mut payload);
            sending.session.carrier.send(&payload).unwrap();
            let begun = Instant::now();
            while !sending.receive().unwrap() {
                assert!(begun.elapsed() < Duration::from_secs(20));
            }
        };
        let own = sending.session.session;
        hand_over(&mut sending, own, old);
        assert_eq!((sending.result.late, sending.result.malformed), (1, 0));
        hand_over(&mut sending, own.wrapping_add(1), old);
        hand_over(&mut sending, own, old + 1000);
        assert_eq!((sending.result.late, sending.result.malformed), (1, 2));
        end();
    }

    #[test]
    fn probe_trains_run_over_ipv6_and_end_on_request() {
        let Ok((mut session, end)) = against("[::1]:0", |_| 1) else {
            println!("skipped: needs IPv6 on the loop-back interface");
            return;
        };
        let never = AtomicBool::new(false);
        let result = session.send_train(&TRAIN, &never).unwrap();
        assert_eq!(
            (result.sequence.received_unique, result.stopped),
            (40, false)
        );
        let now = AtomicBool::new(true);
        let result = session.send_train(&TRAIN, &now).unwrap();
        assert!(result.stopped && result.sequence.sent == 0);
        end();
    }

    #[test]
    fn a_closed_or_unresponsive_server_address_is_reported() {
        // The address was bound and released, so that no other program uses it.
        let address = ProbeServer::bind("127.0.0.1:0").unwrap().address().unwrap();
        let never = AtomicBool::new(false);
        let closed = ProbeSession::connect(address, 16, Duration::from_millis(50), &never);
        let said = closed.unwrap_err().to_string();
        assert!(said.contains("nothing listens"), "{said}");
        let mute = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = mute.local_addr().unwrap();
        let silent = ProbeSession::connect(address, 16, Duration::from_millis(50), &never);
        let said = silent.unwrap_err().to_string();
        assert!(
            said.contains("no reply") && said.contains("0.05 s"),
            "{said}"
        );
        let now = AtomicBool::new(true);
        let stopped = ProbeSession::connect(address, 16, Duration::from_secs(9), &now);
        assert!(matches!(stopped, Err(ProbeError::Stopped)));
    }
}
