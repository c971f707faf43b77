//! The server thread of a switch, which removes expired rules, and serves controllers.

use super::bridge::Bridge;
use super::control::Control;
use super::facts::{Facts, MOST_PORTS};
use super::openflow::{Gone, PacketOut, Plant, Session, limit_output};
use super::packet_in::{NOWHERE, Shows, shown};
use super::pass::{Counts, Tables};
use super::settings::{Controllers, Miss};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_function::{Context, Handler, Passage, Punted, slow};
use taut_port::pair::Lane;
use taut_port::{Batch, PoolHandle, PortError};
use taut_sys::{Alarm, Clock, Doorbell, spawn_background, ticks};

/// The interval of checks for expired rules: timeouts are whole seconds.
const LOOK: Duration = Duration::from_millis(100);
/// The longest sleep while a controller has not read its pending output.
const RETRY: Duration = Duration::from_millis(1);
/// The interval between attempts to reach a controller. An attempt takes at most [`CONNECT`].
const RECONNECT: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_secs(5);
/// The limit on controllers that connect to the switch. The controller to which the switch connects does not count.
const MOST_SESSIONS: usize = 64;
/// The limit on the pending output for all controllers, in bytes.
const ALL_OUTPUT_BYTES: usize = 64 << 20;
/// The number of removed rules after which [`ALL_OUTPUT_BYTES`] is checked; the notifications of this many rules take up
/// to 2 MiB.
const TOLD_AT_ONCE: usize = 256;
/// The time for which the switch accepts no connections after a failure, such as a lack of file descriptors.
const DEAF: Duration = Duration::from_millis(500);
/// The limit on bytes that are read from a controller at a time.
const READ_BYTES: usize = 1 << 18;
/// The limits on packets in transit: `MOST_SENT` from controllers, `MOST_SHOWN` to controllers.
const MOST_SENT: usize = 1024;
const MOST_SHOWN: u32 = 1024;
/// The number of polls of the ring without a packet after which the thread requests a wakeup. A wakeup costs the worker
/// a system call.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// The number of ring pairs created in this process; it makes their names unique.
static LANES: AtomicU64 = AtomicU64::new(0);

/// The server thread. Dropping it ends the thread.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    thread: Option<JoinHandle<()>>,
    handler: Option<Sender>,
    /// The worker's endpoint of the ring pair through which packets reach controllers; none without controllers.
    lane: Option<Lane>,
}

impl Server {
    pub fn start(
        control: &Arc<Mutex<Control>>,
        controllers: &Controllers,
        facts: &Arc<Facts>,
        clock: &Clock,
    ) -> Result<Self, PortError> {
        let listener = listen(controllers)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (bell, slow_bell) = (Arc::new(Doorbell::new()?), Arc::new(Doorbell::new()?));
        let (send, sent) = sync_channel(MOST_SENT);
        let speaks = controllers.listen.is_some() || controllers.call.is_some();
        let name = format!("switch {}", LANES.fetch_add(1, Ordering::Relaxed));
        let lane = speaks.then(|| Lane::open(&name, MOST_SHOWN)).transpose()?;
        let handler = speaks.then(|| Sender {
            sent,
            slow_bell: Arc::clone(&slow_bell),
            facts: Arc::clone(facts),
            stop: Arc::clone(&stop),
        });
        let thread = Thread {
            control: Arc::clone(control),
            controllers: controllers.clone(),
            listener,
            sessions: Vec::new(),
            deaf_until: None,
            call: Call::default(),
            generation: None,
            facts: Arc::clone(facts),
            known_up: vec![true; MOST_PORTS].into(),
            clock: *clock,
            bell: Arc::clone(&bell),
            send,
            slow_bell,
            stop: Arc::clone(&stop),
            buffer: vec![0; READ_BYTES].into(),
        };
        let handle = thread.spawn(name, speaks)?;
        Ok(Self {
            stop,
            bell,
            thread: Some(handle),
            handler,
            lane,
        })
    }

    /// Returns the destination of the worker's packets for controllers.
    pub fn shows(&mut self) -> Shows<'_> {
        self.lane.as_mut().map_or(Shows::Nobody, Shows::Thread)
    }

    /// Returns the handler on the slow path, which sends the packets of controllers; none without controllers, and
    /// after the first call.
    pub fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.handler
            .take()
            .map(|it| Box::new(it) as Box<dyn Handler>)
    }
}

/// Returns the socket on which the switch listens for controllers; none if it does not listen.
fn listen(controllers: &Controllers) -> Result<Option<TcpListener>, PortError> {
    let listen = |address: &SocketAddr| {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let listener = controllers.listen.as_ref().map(listen).transpose();
    listener.map_err(|e: std::io::Error| {
        let address = controllers.listen.map(|it| it.to_string());
        let what = format!(
            "function \"switch\": openflow {}",
            address.unwrap_or_default()
        );
        PortError::system(what, e)
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        // Relaxed: the flag only requests the end of the thread.
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The handler on the slow path, which sends the packets of controllers.
struct Sender {
    sent: Receiver<(u8, Vec<u8>)>,
    slow_bell: Arc<Doorbell>,
    facts: Arc<Facts>,
    stop: Arc<AtomicBool>,
}

impl Handler for Sender {
    fn handle(&mut self, _: &Punted<'_>, _: &mut slow::Send<'_>) -> bool {
        false
    }

    fn poll(&mut self, send: &mut slow::Send<'_>) -> bool {
        self.slow_bell.disarm();
        let mut came = false;
        while let Ok((port, frame)) = self.sent.try_recv() {
            if !send(Passage::of_own(port.into()), &frame) {
                self.facts.lose();
            }
            came = true;
        }
        came
    }

    fn arm(&mut self, alarm: &mut Alarm) {
        self.slow_bell.arm(alarm);
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

struct Peer {
    stream: TcpStream,
    session: Session,
    is_called: bool,
    /// True if the controller has closed its sending side; its earlier messages are still processed.
    has_ended: bool,
}

impl Peer {
    /// Reads the controller's next bytes, if its session accepts more bytes; returns the number of bytes read.
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if !self.session.listens() || self.has_ended {
            return Ok(0);
        }
        match self.stream.read(buffer) {
            Ok(0) => {
                self.has_ended = true;
                Ok(0)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            read => read,
        }
    }
}

/// The connection that the switch makes to a controller. A separate thread connects, because a timeout takes long.
#[derive(Default)]
struct Call {
    /// The time of the last attempt to connect; none before the first one.
    called: Option<Instant>,
    /// The channel on which the established connection arrives; none if no attempt is running.
    reached: Option<Receiver<TcpStream>>,
}

impl Call {
    /// Returns the connection, once it is established. Otherwise starts another attempt, if none is running and
    /// [`RECONNECT`] has passed since the last one.
    fn answer(&mut self, address: SocketAddr, bell: &Arc<Doorbell>) -> Option<TcpStream> {
        match self.reached.as_ref().map(Receiver::try_recv) {
            Some(Ok(stream)) => {
                self.reached = None;
                return Some(stream);
            }
            Some(Err(TryRecvError::Empty)) => return None,
            Some(Err(TryRecvError::Disconnected)) => self.reached = None,
            None => {}
        }
        if self
            .called
            .is_none_or(|called| called.elapsed() >= RECONNECT)
        {
            self.called = Some(Instant::now());
            let (tell, reached) = sync_channel(1);
            let bell = Arc::clone(bell);
            let calls = spawn_background("switch-call", move || {
                if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT) {
                    let _ = tell.try_send(stream);
                    bell.ring();
                }
            });
            self.reached = calls.is_ok().then_some(reached);
        }
        None
    }
}

struct Thread {
    control: Arc<Mutex<Control>>,
    controllers: Controllers,
    listener: Option<TcpListener>,
    sessions: Vec<Peer>,
    /// The time until which no connection of a controller is accepted; none if connections are accepted.
    deaf_until: Option<Instant>,
    call: Call,
    generation: Option<u64>,
    facts: Arc<Facts>,
    /// The link state of each port in the last notification to controllers; true for up.
    known_up: Box<[bool]>,
    clock: Clock,
    bell: Arc<Doorbell>,
    send: SyncSender<(u8, Vec<u8>)>,
    slow_bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    buffer: Box<[u8]>,
}

impl Thread {
    /// Starts the server thread, and returns when the thread runs. If `speaks` is true, the thread serves controllers,
    /// and opens the ring pair `name`.
    fn spawn(mut self, name: String, speaks: bool) -> Result<JoinHandle<()>, PortError> {
        // An endpoint of a lane belongs to the thread that has opened the endpoint.
        let (tell, started) = sync_channel(1);
        let handle = spawn_background("switch", move || {
            let lane = speaks.then(|| Lane::open(&name, MOST_SHOWN)).transpose();
            match lane {
                Ok(lane) => {
                    let _ = tell.send(Ok(()));
                    self.run(lane);
                }
                Err(e) => drop(tell.send(Err(e))),
            }
        })?;
        let died = |_| {
            let dead = std::io::Error::other("its thread exited while starting");
            PortError::system("function \"switch\"", dead)
        };
        started.recv().map_err(died)??;
        Ok(handle)
    }

    fn run(&mut self, mut lane: Option<Lane>) {
        let mut alarm = Alarm::default();
        let (mut batch, mut looks) = (Batch::new(), LOOKS);
        let mut looked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let has_shown = lane
                .as_mut()
                .is_some_and(|lane| self.show_all(lane, &mut batch));
            if has_shown {
                looks = 0;
            }
            let mut did = has_shown | self.connect() | self.hear();
            if looked.elapsed() >= LOOK {
                let is_end = self.expire();
                did |= !is_end;
                if is_end {
                    looked = Instant::now();
                    self.tell_of_ports();
                    self.ask();
                }
            }
            let waits = self.flush();
            if did {
                continue;
            }
            if looks < LOOKS {
                looks += 1;
                std::thread::sleep(BETWEEN_LOOKS);
                continue;
            }
            alarm.clear();
            if let Some(listener) = self.listener.as_ref().filter(|_| !self.is_deaf()) {
                alarm.watch(listener.as_fd());
            }
            let listening = |peer: &&Peer| peer.session.listens() && !peer.has_ended;
            for peer in self.sessions.iter().filter(listening) {
                alarm.watch(peer.stream.as_fd());
            }
            let is_quiet = lane.as_mut().is_none_or(|lane| lane.arm(&mut alarm));
            if self.bell.arm(&mut alarm) && is_quiet {
                alarm.wait(if waits { RETRY } else { LOOK });
            }
            self.bell.disarm();
            if let Some(lane) = &mut lane {
                lane.disarm();
            }
        }
    }

    fn is_deaf(&self) -> bool {
        self.deaf_until.is_some_and(|until| Instant::now() < until)
    }

    /// Accepts connections of controllers, and connects to the configured one. Returns true if a connection has been
    /// accepted or established.
    fn connect(&mut self) -> bool {
        let mut did = false;
        if self.listener.is_some() && !self.is_deaf() {
            did = self.let_in();
        }
        let is_there = self.sessions.iter().any(|peer| peer.is_called);
        if let Some(address) = self.controllers.call.filter(|_| !is_there)
            && let Some(stream) = self.call.answer(address, &self.bell)
        {
            self.begin(stream, true);
            did = true;
        }
        did
    }

    fn let_in(&mut self) -> bool {
        let mut did = false;
        loop {
            let Some(listener) = &self.listener else {
                return did;
            };
            match listener.accept() {
                Ok((stream, _)) => {
                    let called = self.sessions.iter().filter(|peer| peer.is_called);
                    if self.sessions.len() - called.count() < MOST_SESSIONS {
                        self.begin(stream, false);
                    }
                    did = true;
                }
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock => return did,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    // The process may have no free file descriptors: without a pause, the next attempt would follow
                    // immediately.
                    _ => {
                        self.deaf_until = Some(Instant::now() + DEAF);
                        return did;
                    }
                },
            }
        }
    }

    fn begin(&mut self, stream: TcpStream, is_called: bool) {
        let is_ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
        if is_ready.is_ok() {
            let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
            self.sessions.push(Peer {
                stream,
                session: Session::new(control.room(), Instant::now()),
                is_called,
                has_ended: false,
            });
        }
    }

    /// Processes the messages of controllers, one controller after the other. Returns true if there were any.
    fn hear(&mut self) -> bool {
        let now = Instant::now();
        let mut did = false;
        let mut gone = Vec::new();
        for place in 0..self.sessions.len() {
            let (mut sent, mut removed, mut deposed) = (Vec::new(), Vec::new(), false);
            let peer = &mut self.sessions[place];
            let read = peer.read(&mut self.buffer);
            let mut is_over = read.is_err();
            let many = read.unwrap_or(0);
            if many > 0 || peer.session.goes_on() {
                did = true;
                let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
                let facts = &self.facts;
                let mut plant = Plant {
                    control: &mut control,
                    ports: facts.ports.load(Ordering::Relaxed),
                    facts,
                    datapath: self.controllers.datapath,
                    generation: &mut self.generation,
                    sent: &mut sent,
                    removed: &mut removed,
                    deposed: &mut deposed,
                };
                let heard = peer.session.take(&self.buffer[..many], now, &mut plant);
                is_over |= heard.is_err();
                facts
                    .ended
                    .fetch_add(u64::from(heard.is_err()), Ordering::Relaxed);
            }
            let is_done = !peer.session.has_more() && peer.session.output().is_empty();
            if is_over || peer.has_ended && is_done {
                gone.push(place);
            }
            if deposed {
                let others = self
                    .sessions
                    .iter_mut()
                    .enumerate()
                    .filter(|(other, _)| *other != place);
                others.for_each(|(_, peer)| peer.session.depose());
            }
            for packet in sent {
                self.packet_out(&packet);
            }
            self.tell(removed);
        }
        for place in gone.into_iter().rev() {
            let mut peer = self.sessions.remove(place);
            // The pending output may contain the reason for the disconnection.
            let _ = peer.stream.write(peer.session.output());
        }
        did
    }

    /// Notifies controllers of links that went up or down.
    fn tell_of_ports(&mut self) {
        let ports = self.facts.ports.load(Ordering::Relaxed);
        for port in 0..ports.min(MOST_PORTS - 1) as u8 {
            let is_up = self.facts.is_up(port);
            let known = &mut self.known_up[usize::from(port)];
            if std::mem::replace(known, is_up) != is_up {
                for peer in &mut self.sessions {
                    peer.session.port_status(port, is_up);
                }
            }
        }
    }

    /// Sends echo requests to idle controllers, and closes the connections of those that do not reply.
    fn ask(&mut self) {
        let (now, facts) = (Instant::now(), &self.facts);
        self.sessions.retain_mut(|peer| {
            let is_there = peer.session.tick(now).is_ok();
            // Relaxed: the number is a statistic.
            facts
                .ended
                .fetch_add(u64::from(!is_there), Ordering::Relaxed);
            is_there
        });
    }

    /// Notifies controllers of removed rules, each with the reason.
    fn tell(&mut self, removed: Vec<(super::control::RuleId, super::control::Kept, Gone)>) {
        if removed.is_empty() {
            return;
        }
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        for some in removed.chunks(TOLD_AT_ONCE) {
            for (id, kept, why) in some {
                let count = control.count(*id);
                for peer in &mut self.sessions {
                    peer.session.flow_removed(kept, count, *why);
                }
            }
            limit_output(
                ALL_OUTPUT_BYTES,
                self.sessions.iter_mut().map(|it| &mut it.session),
            );
        }
    }

    /// Removes expired rules among the next few timed rules; returns true when all timed rules have been checked.
    fn expire(&mut self) -> bool {
        let ticks_per_s = self.clock.to_ticks(1e9) as u64;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let (expired, is_end) = control.expired(Instant::now(), ticks(), ticks_per_s);
        control.tell();
        drop(control);
        let why = |is_idle: bool| if is_idle { Gone::Idle } else { Gone::Hard };
        let removed = expired.into_iter();
        self.tell(
            removed
                .map(|(id, kept, is_idle)| (id, kept, why(is_idle)))
                .collect(),
        );
        is_end
    }

    /// Sends the packets that arrive from the worker to controllers; returns true if there were any.
    fn show_all(&mut self, lane: &mut Lane, batch: &mut Batch) -> bool {
        let received = lane.receive(batch);
        for (index, packet) in batch.packets().iter().enumerate() {
            self.show(lane.note(index), packet.bytes());
        }
        batch.clear();
        received > 0
    }

    fn show(&mut self, note: u64, frame: &[u8]) {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = shown(note, &control);
        drop(control);
        for peer in &mut self.sessions {
            if !peer.session.packet_in(shown, frame) {
                self.facts.lose();
            }
        }
    }

    /// Sends pending output to controllers, and closes the connections of those that were too slow to read it. Returns
    /// true if some output is still pending.
    fn flush(&mut self) -> bool {
        let (now, facts) = (Instant::now(), &self.facts);
        limit_output(
            ALL_OUTPUT_BYTES,
            self.sessions.iter_mut().map(|it| &mut it.session),
        );
        self.sessions.retain_mut(|peer| {
            if peer.session.is_behind() {
                // Relaxed: the number is a statistic.
                facts.ended.fetch_add(1, Ordering::Relaxed);
                return false;
            }
            while !peer.session.output().is_empty() {
                match peer.stream.write(peer.session.output()) {
                    Ok(many) if many > 0 => peer.session.was_sent(many, now),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    _ => return false,
                }
            }
            true
        });
        self.sessions
            .iter()
            .any(|peer| !peer.session.output().is_empty())
    }

    /// Executes the actions of a controller's message on the packet that it contains.
    fn packet_out(&mut self, packet: &PacketOut) {
        let length = u16::try_from(packet.frame.len()).unwrap_or(u16::MAX);
        let mut batch = Batch::new();
        let pool = PoolHandle::new(4, false).ok();
        let pool = pool.filter(|pool| pool.fill(&mut batch, 1, length) == 1);
        let Some(pool) = pool else {
            self.facts.lose();
            return;
        };
        batch.packets_mut()[0]
            .bytes_mut()
            .copy_from_slice(&packet.frame);
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let context = Context {
            now_ticks: ticks(),
            from_port: packet.in_port.map_or(NOWHERE, usize::from),
            // There is no default egress port for this packet.
            to_port: NOWHERE,
            ports: self.facts.ports.load(Ordering::Relaxed),
        };
        let tables = Tables {
            context: &context,
            shape: control.shape(),
            memory: control.memory(),
            // Only the worker counts packets by rule.
            rule_counts: &[],
            miss: Miss::Drop,
            pool: Some(&pool),
            clock: &self.clock,
            facts: &self.facts,
            is_worker: false,
        };
        let (mut bridge, mut counts) = (Bridge::new(4), Counts::default());
        let mut shown = Vec::new();
        let shows = Shows::Here(&mut shown);
        tables.send(&mut batch, packet, (&mut bridge, &mut counts), shows);
        drop(control);
        for (note, frame) in shown {
            self.show(note, &frame);
        }
        let kept: Vec<bool> = (0..batch.len()).map(|it| batch.is_kept(it)).collect();
        let mut kept = kept.into_iter();
        let mut all: Vec<(u8, Vec<u8>)> = Vec::new();
        batch.scatter(|packet, to, _, copies| {
            let ports = to.into_iter().chain(copies.iter().map(|(_, to)| *to));
            if kept.next() == Some(true) {
                all.extend(ports.map(|port| (port, packet.bytes().to_vec())));
            }
        });
        for one in all {
            // Packets beyond the worker's capacity are lost, as on a link that is fully used.
            if self.send.try_send(one).is_err() {
                self.facts.lose();
            }
        }
        self.slow_bell.ring();
    }
}
