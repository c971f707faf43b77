//! The thread beside the worker: takes out rules whose time is over, and speaks to controllers.

use super::control::Control;
use super::openflow::{Gone, PacketOut, Plant, Session};
use super::{Bridge, Counts, Miss, Tables, places};
use crate::{Context, Handler, Punted, slow};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_port::{Batch, PoolHandle, PortError, Punt};
use taut_sys::{Alarm, Clock, Doorbell, spawn_background, ticks};

/// Timeouts are whole seconds: looks for rules whose time is over are this far apart.
const LOOK: Duration = Duration::from_millis(100);
/// Longest sleep while a controller has not taken all that is for it.
const RETRY: Duration = Duration::from_millis(1);
/// Tries to reach a controller are this far apart, and take no longer than
const RECONNECT: Duration = Duration::from_secs(1);
const CONNECT: Duration = Duration::from_millis(200);
const MOST_SESSIONS: usize = 64;
/// What is heard of a controller at a time.
const READ_BYTES: usize = 1 << 18;
/// Packets on their way to controllers, and from them.
const MOST_SHOWN: usize = 1024;
/// Longest frame that is shown or sent.
const MOST_FRAME_BYTES: usize = 9_216;
/// No port.
const NOWHERE: usize = 255;

/// Where controllers are.
#[derive(Debug, Clone, Default)]
pub(super) struct Controllers {
    /// Address at which they are waited for.
    pub listen: Option<SocketAddr>,
    /// Address of one that is called.
    pub call: Option<SocketAddr>,
    pub datapath: u64,
}

/// What the switch tells the thread, beside rules.
pub(super) struct Facts {
    /// Ports of the chain, once packets or their absence have shown them.
    pub ports: AtomicUsize,
    pub is_up: Arc<[AtomicBool]>,
}

impl Facts {
    pub fn is_up(&self, port: u8) -> bool {
        // Relaxed: nothing else is known by it.
        let state = self.is_up.get(usize::from(port));
        state.is_some_and(|it| it.load(Ordering::Relaxed))
    }
}

/// A packet that is to be shown to controllers.
struct Shown {
    in_port: u8,
    table: u8,
    by_rule: bool,
    frame: Vec<u8>,
}

/// Dropping it ends the thread.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    thread: Option<JoinHandle<()>>,
    handler: Option<Shower>,
}

impl Server {
    pub fn start(
        control: &Arc<Mutex<Control>>,
        controllers: &Controllers,
        facts: &Arc<Facts>,
        clock: &Clock,
    ) -> Result<Self, PortError> {
        let listen = |address: &SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = controllers.listen.as_ref().map(listen).transpose();
        let listener = listener.map_err(|e: std::io::Error| {
            let address = controllers.listen.map(|it| it.to_string());
            let what = format!(
                "function \"switch\": openflow {}",
                address.unwrap_or_default()
            );
            PortError::system(what, e)
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let (bell, slow_bell) = (Arc::new(Doorbell::new()?), Arc::new(Doorbell::new()?));
        let (show, shown) = sync_channel(MOST_SHOWN);
        let (send, sent) = sync_channel(MOST_SHOWN);
        let speaks = controllers.listen.is_some() || controllers.call.is_some();
        let handler = speaks.then(|| Shower {
            show,
            bell: Arc::clone(&bell),
            sent,
            slow_bell: Arc::clone(&slow_bell),
            stop: Arc::clone(&stop),
        });
        let mut thread = Thread {
            control: Arc::clone(control),
            controllers: controllers.clone(),
            listener,
            sessions: Vec::new(),
            called: None,
            generation: None,
            facts: Arc::clone(facts),
            clock: *clock,
            bell: Arc::clone(&bell),
            shown,
            send,
            slow_bell,
            stop: Arc::clone(&stop),
            buffer: vec![0; READ_BYTES].into(),
        };
        let handle = spawn_background("switch", move || thread.run())?;
        Ok(Self {
            stop,
            bell,
            thread: Some(handle),
            handler,
        })
    }

    /// What is done on the slow path; asked for once.
    pub fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.handler
            .take()
            .map(|it| Box::new(it) as Box<dyn Handler>)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Relaxed: it says only that it is time to go.
        self.stop.store(true, Ordering::Relaxed);
        self.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// On the slow path: hands on what is to be shown, and sends what controllers send.
struct Shower {
    show: SyncSender<Shown>,
    bell: Arc<Doorbell>,
    sent: Receiver<(u8, Vec<u8>)>,
    slow_bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
}

impl Handler for Shower {
    fn handle(&mut self, punted: &Punted<'_>, _: &mut slow::Send<'_>) -> bool {
        let Punt::Shown { table, by_rule } = punted.cause else {
            return false;
        };
        let shown = Shown {
            in_port: punted.from_port as u8,
            table,
            by_rule,
            frame: punted.frame.to_vec(),
        };
        // What controllers have no time for is lost, as if their line were.
        if self.show.try_send(shown).is_ok() {
            self.bell.ring();
        }
        true
    }

    fn poll(&mut self, send: &mut slow::Send<'_>) -> bool {
        self.slow_bell.disarm();
        let mut came = false;
        while let Ok((port, frame)) = self.sent.try_recv() {
            send(usize::from(port), &frame);
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
}

struct Thread {
    control: Arc<Mutex<Control>>,
    controllers: Controllers,
    listener: Option<TcpListener>,
    sessions: Vec<Peer>,
    /// When the controller was called last.
    called: Option<Instant>,
    generation: Option<u64>,
    facts: Arc<Facts>,
    clock: Clock,
    bell: Arc<Doorbell>,
    shown: Receiver<Shown>,
    send: SyncSender<(u8, Vec<u8>)>,
    slow_bell: Arc<Doorbell>,
    stop: Arc<AtomicBool>,
    buffer: Box<[u8]>,
}

impl Thread {
    fn run(&mut self) {
        let mut alarm = Alarm::default();
        let mut looked = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            let did = self.connect() | self.hear() | self.show();
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.expire();
            }
            let waits = self.flush();
            if did {
                continue;
            }
            alarm.clear();
            if let Some(listener) = &self.listener {
                alarm.watch(listener.as_fd());
            }
            for peer in &self.sessions {
                alarm.watch(peer.stream.as_fd());
            }
            if self.bell.arm(&mut alarm) {
                alarm.wait(if waits { RETRY } else { LOOK });
            }
            self.bell.disarm();
        }
    }

    /// Takes in controllers that call, and calls the one that is to be called.
    fn connect(&mut self) -> bool {
        let mut came = Vec::new();
        if let Some(listener) = &self.listener {
            while let Ok((stream, _)) = listener.accept() {
                came.push((stream, false));
            }
        }
        let is_there = self.sessions.iter().any(|peer| peer.is_called);
        let is_time = self
            .called
            .is_none_or(|called| called.elapsed() >= RECONNECT);
        if let Some(address) = self.controllers.call.filter(|_| !is_there && is_time) {
            self.called = Some(Instant::now());
            let stream = TcpStream::connect_timeout(&address, CONNECT);
            came.extend(stream.ok().map(|stream| (stream, true)));
        }
        let did = !came.is_empty();
        for (stream, is_called) in came {
            let is_ready = stream.set_nonblocking(true).and(stream.set_nodelay(true));
            if is_ready.is_ok() && self.sessions.len() < MOST_SESSIONS {
                self.sessions.push(Peer {
                    stream,
                    session: Session::new(),
                    is_called,
                });
            }
        }
        did
    }

    /// Hears what controllers say.
    fn hear(&mut self) -> bool {
        let mut did = false;
        let mut gone = Vec::new();
        for place in 0..self.sessions.len() {
            let (mut sent, mut removed, mut deposed) = (Vec::new(), Vec::new(), false);
            let peer = &mut self.sessions[place];
            let is_over = match peer.stream.read(&mut self.buffer) {
                Ok(0) => true,
                Ok(many) => {
                    did = true;
                    let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
                    let facts = &self.facts;
                    let mut plant = Plant {
                        control: &mut control,
                        ports: facts.ports.load(Ordering::Relaxed),
                        is_up: &|port| facts.is_up(port),
                        datapath: self.controllers.datapath,
                        generation: &mut self.generation,
                        sent: &mut sent,
                        removed: &mut removed,
                        deposed: &mut deposed,
                    };
                    peer.session.take(&self.buffer[..many], &mut plant).is_err()
                }
                Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            };
            if is_over {
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
            // What it was told last may be why.
            let _ = peer.stream.write(peer.session.output());
        }
        did
    }

    fn tell(&mut self, removed: Vec<(super::control::RuleId, super::control::Kept, Gone)>) {
        if removed.is_empty() {
            return;
        }
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, kept, why) in removed {
            let count = control.count(id);
            for peer in &mut self.sessions {
                peer.session.flow_removed(&kept, count, why);
            }
        }
    }

    fn expire(&mut self) {
        let ticks_per_s = self.clock.to_ticks(1e9) as u64;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let expired = control.expired(Instant::now(), ticks(), ticks_per_s);
        control.tell();
        drop(control);
        let why = |is_idle: bool| if is_idle { Gone::Idle } else { Gone::Hard };
        let removed = expired.into_iter();
        self.tell(
            removed
                .map(|(id, kept, is_idle)| (id, kept, why(is_idle)))
                .collect(),
        );
    }

    fn show(&mut self) -> bool {
        let mut did = false;
        while let Ok(shown) = self.shown.try_recv() {
            did = true;
            for peer in &mut self.sessions {
                let Shown {
                    in_port,
                    table,
                    by_rule,
                    frame,
                } = &shown;
                peer.session.packet_in(*in_port, *table, *by_rule, frame);
            }
        }
        did
    }

    /// Sends controllers what is for them; whether something is left.
    fn flush(&mut self) -> bool {
        self.sessions.retain_mut(|peer| {
            let output = peer.session.output();
            while !output.is_empty() {
                match peer.stream.write(output) {
                    Ok(many) if many > 0 => drop(output.drain(..many)),
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    _ => return false,
                }
            }
            true
        });
        self.sessions
            .iter_mut()
            .any(|peer| !peer.session.output().is_empty())
    }

    /// Does to a packet what a controller says.
    fn packet_out(&mut self, packet: &PacketOut) {
        let Ok(length) = u16::try_from(packet.frame.len().min(MOST_FRAME_BYTES)) else {
            return;
        };
        let Ok(pool) = PoolHandle::new(4, false) else {
            return;
        };
        let mut batch = Batch::new();
        if pool.fill(&mut batch, 1, length) == 0 {
            return;
        }
        batch.packets_mut()[0]
            .bytes_mut()
            .copy_from_slice(&packet.frame[..usize::from(length)]);
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let context = Context {
            now_ticks: ticks(),
            from_port: packet.in_port.map_or(NOWHERE, usize::from),
            // No packet goes the usual way: there is none.
            to_port: NOWHERE,
            ports: self.facts.ports.load(Ordering::Relaxed),
        };
        let tables = Tables {
            context: &context,
            shape: control.shape(),
            memory: control.memory(),
            // The worker alone counts.
            rule_counts: &[],
            miss: Miss::Drop,
            pool: Some(&pool),
            clock: &self.clock,
            facts: &self.facts,
        };
        let (mut bridge, mut counts) = (Bridge::new(4), Counts::default());
        tables.send(&mut batch, packet, &mut bridge, &mut counts);
        drop(control);
        let kept = places(u64::from(batch.is_kept(0))).count();
        let mut all: Vec<(u8, Vec<u8>)> = Vec::new();
        batch.scatter(|packet, to, _, copies| {
            let ports = to.into_iter().chain(copies.iter().map(|(_, to)| *to));
            all.extend(ports.map(|port| (port, packet.bytes().to_vec())));
        });
        if kept == 0 {
            return;
        }
        for one in all {
            // What the worker has no time for is lost, as on a line that is full.
            let _ = self.send.try_send(one);
        }
        self.slow_bell.ring();
    }
}
