//! The port `af_xdp`: frames move between the worker's pool and the four rings.

use super::options::Wanted;
use super::program::Program;
use super::socket::{Binding, Living, Release, Rings, Shared, XdpSocket};
use super::stamp;
use crate::pool::slots::Pool;
use crate::{BATCH_CAPACITY, Batch, Link, Packet, PoolHandle, Port, PortCounters, PortError};
use crate::{Part, PortSpec, Resources};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::fs;
use std::mem;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use taut_sys::Alarm;
use taut_sys::StampClock;
use taut_sys::interface::{self, ETHERNET_HEADER_BYTES, Interface};

/// The maximum number of calls to the kernel for one batch. A call sends 32 frames or more, and returns early for each
/// frame that the driver drops.
const KICKS: usize = 2 * BATCH_CAPACITY;

/// The unique identifier of an interface of this machine: its network namespace, and its index there.
type InterfaceId = (u64, u32);

/// The XDP programs that this process has attached, one per interface. All ports on queues of an interface share its
/// program, in any worker.
static PROGRAMS: Mutex<Vec<(InterfaceId, std::sync::Weak<Program>)>> = Mutex::new(Vec::new());

/// Returns the XDP program that is attached to the interface. Attaches a program if there is none, and fails if the
/// attached program has other settings.
fn program(wanted: &Wanted, interface: &Interface) -> Result<Arc<Program>, PortError> {
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    programs.retain(|(_, program)| program.strong_count() > 0);
    let namespace = rustix::fs::stat("/proc/thread-self/ns/net").map_or(0, |it| it.st_ino);
    let place = (namespace, interface.index);
    let attached = programs.iter().find(|(known, _)| *known == place);
    if let Some(program) = attached.and_then(|(_, program)| program.upgrade()) {
        if program.settings != wanted.program || !wanted.modes.contains(&program.mode()) {
            return Err(wanted.spec.error(
                "an interface has one XDP program: give its ports the same filter, mode and stamps",
            ));
        }
        return Ok(program);
    }
    let program = Arc::new(Program::attach(
        &wanted.what(),
        wanted.name(),
        interface.index,
        wanted.modes,
        &wanted.program,
    )?);
    programs.push((place, Arc::downgrade(&program)));
    Ok(program)
}

/// The state for one existing interface. It is dropped when the interface is deleted, and made again when an interface
/// of that name exists again.
struct Session {
    program: Arc<Program>,
    queues: Vec<Queue>,
    /// Index of the queue from which the port receives next, in round robin order.
    next: usize,
    busy_poll: bool,
    need_wakeup: bool,
    books: Books,
}

/// One queue of the interface. Frames are sent only through the first queue, which keeps their order.
struct Queue {
    rings: Rings,
    socket: XdpSocket,
    /// Number of frames that are in the fill ring, in the receive ring, or in use by the kernel for receiving.
    receiving: u32,
    /// Check whether the kernel has released the queue, to be made after the socket is closed.
    release: Release,
}

/// The frames of the pool that the kernel owns. The pool counts each of them as in use until the kernel returns the
/// frame, or until [`Books::close`] learns that the kernel has released them all.
struct Books {
    pool: PoolHandle,
    /// For each slot, true if the kernel owns its frame.
    lent: Vec<bool>,
    /// Number of frames that are in the transmit ring, in the completion ring, or in use by the kernel for sending.
    sending: u32,
}

struct AfXdpPort {
    wanted: Wanted,
    /// Socket for looking up interfaces in the network namespace in which the port was opened (AF_XDP sockets cannot do
    /// that).
    lookup: OwnedFd,
    shared: Shared,
    pool: PoolHandle,
    /// Session; None while the interface does not exist.
    session: Option<Session>,
    interface: Interface,
    /// True if the kernel left frames in the transmit ring at the last send call, so that a later call has to send
    /// them.
    unsent: bool,
    counters: PortCounters,
    /// Arrival timestamps of the packets that the last receive call delivered; None if timestamps are not configured.
    stamps: Option<Vec<u64>>,
    /// Number of receive overruns in earlier sessions, before the interface was deleted and made again.
    overrun_before: u64,
}

pub(super) fn probe() -> Result<String, PortError> {
    let what = "AF_XDP sockets";
    XdpSocket::new().map_err(|e| interface::cannot_make_socket(what, "CONFIG_XDP_SOCKETS", e))?;
    Program::probe()?;
    Ok("AF_XDP sockets can be opened and XDP programs loaded".to_string())
}

pub(super) fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    open_wanted(Wanted::of(spec)?, resources)
}

/// Divides the queues of a spec among the workers: equal numbers of consecutive queues.
pub(super) fn split(spec: &PortSpec, workers: usize) -> Result<Vec<Part>, PortError> {
    let queues = Wanted::of(spec)?.queues;
    let (first, count) = (*queues.start(), queues.count());
    if count < workers {
        return Err(spec.error(format!(
            "{workers} workers need as many queues, not {count}, as in queue=0-{}",
            workers - 1
        )));
    }
    let part = |worker: usize| {
        let spec = spec.clone();
        let [from, to] = [worker, worker + 1].map(|nth| first + (nth * count / workers) as u32);
        Box::new(move |resources: &mut Resources| {
            let mut wanted = Wanted::of(&spec)?;
            wanted.queues = from..=to - 1;
            open_wanted(wanted, resources)
        }) as Part
    };
    Ok((0..workers).map(part).collect())
}

fn open_wanted(wanted: Wanted, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    let spec = &wanted.spec;
    let (pool, shared) = (resources.pool(), resources.xdp().clone());
    if !pool.stride_bytes().is_power_of_two() {
        return Err(spec.error("the worker's packet pool was created without this port"));
    }
    let lookup = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| PortError::system(wanted.what(), e))?;
    let interface = Interface::find(&lookup, wanted.name())
        .map_err(|e| interface::cannot_find(&wanted.what(), wanted.name(), e))?;
    let session = Session::start(&wanted, &interface, &pool, &shared)?;
    let stamps = wanted
        .program
        .stamped
        .then(|| Vec::with_capacity(BATCH_CAPACITY));
    Ok(Box::new(AfXdpPort {
        wanted,
        lookup,
        shared,
        pool,
        session: Some(session),
        interface,
        unsent: false,
        counters: PortCounters::default(),
        stamps,
        overrun_before: 0,
    }))
}

impl Session {
    fn start(
        wanted: &Wanted,
        interface: &Interface,
        pool: &PoolHandle,
        shared: &Shared,
    ) -> Result<Self, PortError> {
        let mut living = shared.0.borrow_mut();
        living.sockets.retain(|(s, _)| s.strong_count() > 0);
        let mut session = Self {
            program: program(wanted, interface)?,
            queues: Vec::new(),
            next: 0,
            busy_poll: wanted.busy_poll,
            need_wakeup: wanted.need_wakeup,
            books: Books {
                pool: pool.clone(),
                lent: vec![false; pool.slots()],
                sending: 0,
            },
        };
        for queue in wanted.queues.clone() {
            session.add(wanted, interface, queue, &mut living)?;
        }
        Ok(session)
    }

    /// Starts receiving from one more queue of the interface.
    fn add(
        &mut self,
        wanted: &Wanted,
        interface: &Interface,
        queue: u32,
        living: &mut Living,
    ) -> Result<(), PortError> {
        let binding = wanted.binding(self.program.mode());
        let release = Release::new(interface.index, queue)
            .map_err(|e| PortError::system(wanted.what(), e))?;
        let (socket, rings) = loop {
            let alike = living.sockets.iter().position(|(_, b)| *b == binding);
            let other = alike.and_then(|at| living.sockets[at].0.upgrade());
            let pool = &self.books.pool;
            match (
                bound(
                    wanted,
                    interface.index,
                    queue,
                    pool,
                    other.as_deref(),
                    binding,
                ),
                alike,
            ) {
                (Ok(done), _) => break done,
                // The shared socket's interface was deleted and its port has not noticed yet, or its driver has other
                // capabilities than the driver of this interface.
                (Err(Errno::BADF | Errno::OPNOTSUPP), Some(at)) => drop(living.sockets.remove(at)),
                (Err(error), _) => return Err(wanted.cannot_bind(queue, error)),
            }
        };
        if self.busy_poll {
            socket
                .set_busy_poll(BATCH_CAPACITY as u32)
                .map_err(|e| wanted.cannot_poll(e))?;
        }
        self.program
            .redirect(queue, &socket)
            .map_err(|e| PortError::system(wanted.what(), e))?;
        let descriptor = Rc::downgrade(socket.descriptor());
        living.sockets.push((descriptor, binding));
        let mut queue = Queue {
            rings,
            socket,
            receiving: 0,
            release,
        };
        queue.post(&mut self.books, wanted.entries);
        self.queues.push(queue);
        Ok(())
    }

    /// Takes the sent frames from the completion ring and returns them to the pool.
    #[inline(always)]
    fn reap(&mut self) {
        let completion = &mut self.queues[0].rings.completion;
        while let Some(address) = completion.next() {
            self.books.sending = self.books.sending.saturating_sub(1);
            if let Some(slot) = self.books.take_back(address) {
                // SAFETY: the books keep the pool alive, and the slot has been counted out since its frame was passed
                // to the kernel.
                unsafe { Pool::give_back(self.books.pool.raw(), slot) };
            }
        }
        completion.release();
    }
}

impl Session {
    /// Returns the number of frames that the sockets have lost for lack of space since the session began.
    fn overrun(&self) -> u64 {
        self.queues.iter().map(|q| q.socket.overrun()).sum()
    }
}

impl Drop for Session {
    /// Closes the sockets. Their frames return to the pool once the kernel has released all of them; otherwise they are
    /// never used again.
    fn drop(&mut self) {
        // All sockets are closed before the first wait, so that the kernel releases their queues in parallel.
        let releases: Vec<_> = mem::take(&mut self.queues)
            .into_iter()
            .map(|queue| queue.release)
            .collect();
        self.books.close(|| releases.into_iter().all(Release::wait));
    }
}

impl Queue {
    /// Puts empty frames into the fill ring until the kernel has `entries` frames for receiving, or the pool is empty.
    #[inline(always)]
    fn post(&mut self, books: &mut Books, entries: u32) {
        let mut missing = entries.saturating_sub(self.receiving);
        if missing == 0 {
            return;
        }
        let fill = &mut self.rings.fill;
        missing = missing.min(fill.room());
        for _ in 0..missing {
            let Some(packet) = books.pool.take(0) else {
                break;
            };
            fill.push(books.lend(packet));
            self.receiving += 1;
        }
        fill.publish();
        if fill.needs_wakeup() {
            self.socket.wake_rx();
        }
    }

    /// Appends the arrived frames to `batch`, up to its capacity.
    #[inline(always)]
    fn receive(
        &mut self,
        books: &mut Books,
        batch: &mut Batch,
        counters: &mut PortCounters,
        stamps: &mut Option<Vec<u64>>,
    ) {
        let rx = &mut self.rings.rx;
        while batch.room() > 0 {
            let Some(frame) = rx.next() else {
                break;
            };
            self.receiving = self.receiving.saturating_sub(1);
            match books.received(frame) {
                Some(mut packet) => {
                    if let Some(stamps) = stamps {
                        stamps.push(stamp::take(&mut packet));
                    }
                    counters.rx_bytes += packet.len() as u64;
                    batch.push(packet);
                }
                None => counters.rx_malformed += 1,
            }
        }
        rx.release();
    }
}

/// Binds a socket on one queue with its rings. It uses the packet memory of `other`, if given, which must be of the
/// same pool.
fn bound(
    wanted: &Wanted,
    interface: u32,
    queue: u32,
    pool: &PoolHandle,
    other: Option<&OwnedFd>,
    binding: Binding,
) -> Result<(XdpSocket, Rings), Errno> {
    let socket = XdpSocket::new()?;
    if other.is_none() {
        let memory = pool.memory().ok_or(Errno::INVAL)?;
        // SAFETY: a session's books keep the pool alive until after its socket is closed, and no packet uses a slot
        // that is in a ring.
        unsafe { socket.register(memory, pool.stride_bytes()) }?;
    }
    let rings = socket.map_rings(wanted.entries)?;
    socket.set_send_budget(BATCH_CAPACITY as u32);
    socket.bind(interface, queue, other, binding)?;
    Ok((socket, rings))
}

impl Books {
    /// Lends a packet's frame to the kernel; returns the frame's offset in the packet memory.
    #[inline(always)]
    fn lend(&mut self, packet: Packet) -> u64 {
        let slot = packet.slot();
        self.lent[slot as usize] = true;
        let address = self.address(&packet);
        mem::forget(packet);
        address
    }

    /// Returns the offset of a packet of the pool in the packet memory.
    #[inline(always)]
    fn address(&self, packet: &Packet) -> u64 {
        let base = self.pool.memory().map_or(0, |m| m.base().as_ptr() as u64);
        packet.data().as_ptr() as u64 - base
    }

    /// Returns the packet itself if it is in the pool, otherwise a copy in the pool. None if the pool is empty.
    #[inline(always)]
    fn own(&self, packet: Packet) -> Option<Packet> {
        if self.pool.owns(&packet) {
            return Some(packet);
        }
        let mut copy = self.pool.take(packet.len() as u16)?;
        crate::frame_copy::copy_bytes(packet.bytes(), copy.bytes_mut());
        Some(copy)
    }

    /// Returns to the pool all frames that the kernel still has, if `has_let_go` returns true.
    fn close(&mut self, has_let_go: impl FnOnce() -> bool) {
        if !has_let_go() {
            return;
        }
        for (slot, lent) in self.lent.iter_mut().enumerate() {
            if mem::take(lent) {
                // SAFETY: the books keep the pool alive, and the slot has been counted out since its frame was passed
                // to the kernel.
                unsafe { Pool::give_back(self.pool.raw(), slot as u32) };
            }
        }
    }

    /// Returns the slot at an address and records that the kernel no longer has it; None if the kernel did not have it.
    #[inline(always)]
    fn take_back(&mut self, address: u64) -> Option<u32> {
        let slot = address / self.pool.stride_bytes() as u64;
        let lent = self.lent.get_mut(slot as usize)?;
        mem::take(lent).then_some(slot as u32)
    }

    /// Returns the packet that the kernel describes; None if the description is invalid.
    #[inline(always)]
    fn received(&mut self, frame: XdpDesc) -> Option<Packet> {
        let stride = self.pool.stride_bytes();
        let offset = frame.addr as usize % stride;
        if offset + frame.len as usize > stride {
            return None;
        }
        let slot = self.take_back(frame.addr)?;
        let base = self.pool.memory()?.base();
        // SAFETY: the slot is one of the pool's. It has been counted out since its frame was passed to the kernel, and
        // the kernel has just returned it, so this side alone owns it. Frame and headroom were checked to be inside the
        // slot.
        unsafe {
            let data = base.add(slot as usize * stride + offset);
            Some(Packet::new(
                data,
                frame.len as u16,
                offset as u16,
                self.pool.raw(),
                slot,
            ))
        }
    }
}

/// The limits on the length of frames that the interface accepts; the kernel does not check them.
#[derive(Clone, Copy)]
struct Limits {
    room: usize,
    mtu_bytes: usize,
}

impl Limits {
    #[inline(always)]
    fn take(self, frame: &[u8]) -> bool {
        frame.len() > ETHERNET_HEADER_BYTES
            && frame.len() <= self.room
            && interface::fits(frame, self.mtu_bytes)
    }
}

impl AfXdpPort {
    /// Makes the kernel send the frames in the transmit ring.
    #[inline(always)]
    fn kick(&mut self) {
        let Some(session) = &self.session else { return };
        let Queue { rings, socket, .. } = &session.queues[0];
        self.unsent = false;
        let mut before = rings.tx.waiting();
        for _ in 0..KICKS {
            let answer = socket.wake_tx();
            let left = rings.tx.waiting();
            match answer {
                // The driver dropped one frame; the others are still in the ring.
                Err(Errno::BUSY) => self.counters.tx_failed += 1,
                Ok(()) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
                // The interface is down or deleted: `link` reports that, and calls this again when it is back.
                Err(_) => return,
            }
            self.unsent = left > 0;
            if left == 0 || left == before {
                return;
            }
            before = left;
        }
    }

    /// Ends a session whose interface was deleted or renamed. The session's frames return to the pool, unless the
    /// driver still uses them.
    fn end(&mut self) {
        if let Some(session) = self.session.take() {
            self.overrun_before += session.overrun();
        }
        self.unsent = false;
    }
}

impl Port for AfXdpPort {
    fn fits(&self, frame: &[u8]) -> bool {
        interface::fits(frame, self.interface.mtu_bytes)
    }

    fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.unsent {
            self.kick();
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.clear();
        }
        let Some(session) = &mut self.session else {
            return 0;
        };
        let before = batch.len();
        let queues = session.queues.len();
        for _ in 0..queues {
            let queue = &mut session.queues[session.next];
            // Begins after the queue of the last call, so that a busy queue does not starve the others.
            session.next = if session.next + 1 == queues {
                0
            } else {
                session.next + 1
            };
            if session.busy_poll && queue.rings.rx.is_empty() {
                queue.socket.wake_rx();
            }
            queue.receive(
                &mut session.books,
                batch,
                &mut self.counters,
                &mut self.stamps,
            );
            queue.post(&mut session.books, self.wanted.entries);
            if batch.room() == 0 {
                break;
            }
        }
        session.reap();
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        received
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let Some(session) = &mut self.session else {
            return 0;
        };
        session.reap();
        let limits = Limits {
            room: self.pool.room(),
            mtu_bytes: self.interface.mtu_bytes,
        };
        // `room` is the number of frames that fit into the transmit ring and that the completion ring can still report
        // as sent. `copies` is the number of free frames in the pool for copies.
        let mut room = self
            .wanted
            .entries
            .saturating_sub(session.books.sending)
            .min(session.queues[0].rings.tx.room());
        let mut copies = self.pool.available();
        let mut taken = 0;
        for packet in batch.packets() {
            if limits.take(packet.bytes()) {
                let copied = usize::from(!self.pool.owns(packet));
                if room == 0 || copies < copied {
                    break;
                }
                room -= 1;
                copies -= copied;
            }
            taken += 1;
        }
        let counters = &mut self.counters;
        let tx = &mut session.queues[0].rings.tx;
        batch.take_front(taken, |packet| {
            let len = packet.len();
            if limits.take(packet.bytes()) {
                if let Some(packet) = session.books.own(packet) {
                    tx.push(XdpDesc {
                        addr: session.books.lend(packet),
                        len: len as u32,
                        options: XdpDescOptions::empty(),
                    });
                    session.books.sending += 1;
                    counters.tx_packets += 1;
                    counters.tx_bytes += len as u64;
                }
            } else if len > ETHERNET_HEADER_BYTES {
                counters.tx_too_long += 1;
            } else {
                counters.tx_failed += 1;
            }
        });
        tx.publish();
        if tx.waiting() > 0 && (!session.need_wakeup || tx.needs_wakeup()) {
            self.kick();
        }
        taken
    }

    fn link(&mut self) -> Link {
        let name = self.wanted.name();
        let now = match Interface::find(&self.lookup, name) {
            Ok(now) => now,
            Err(error) => {
                let link = Link::Down(interface::lost(name, &error));
                self.end();
                return link;
            }
        };
        if now.index != self.interface.index || self.session.is_none() {
            // The interface was deleted and created again under the same name.
            self.end();
            match Session::start(&self.wanted, &now, &self.pool, &self.shared) {
                Ok(session) => self.session = Some(session),
                Err(error) => return Link::Down(error.to_string()),
            }
        }
        self.interface = now;
        let link = Link::from(now.passes(self.wanted.name()));
        if link.is_up() {
            self.kick();
        }
        link
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        for queue in self.session.iter().flat_map(|session| &session.queues) {
            alarm.watch(queue.socket.as_fd());
        }
        !self.unsent
    }

    fn arrival_stamps(&self) -> &[u64] {
        self.stamps.as_deref().unwrap_or_default()
    }

    fn stamp_clock(&self) -> Option<StampClock> {
        self.stamps.as_ref().map(|_| StampClock::Monotonic)
    }

    fn counters(&mut self) -> PortCounters {
        let now = self.session.as_ref().map_or(0, Session::overrun);
        self.counters.rx_overrun = self.overrun_before + now;
        self.counters
    }

    fn details(&self) -> String {
        let Some(session) = &self.session else {
            return String::new();
        };
        let zero_copy = session.queues[0].socket.is_zero_copy();
        let mut details = format!(
            "{} XDP, {}",
            session.program.mode(),
            if zero_copy {
                "the driver copies nothing"
            } else {
                "the kernel copies each frame"
            }
        );
        if session.queues.len() > 1 {
            let (first, last) = (self.wanted.queues.start(), self.wanted.queues.end());
            details += &format!(", queues {first} to {last}");
        }
        let filter = &session.program.settings.filter;
        if !filter.is_all() {
            details += &format!(", takes {filter} and leaves the rest");
        }
        if session.busy_poll {
            details += &self.polled(session);
        }
        details
    }
}

impl AfXdpPort {
    /// Returns a text that says whether kernel and driver accepted busy polling.
    fn polled(&self, session: &Session) -> String {
        let ids: Vec<_> = session
            .queues
            .iter()
            .filter_map(|q| q.socket.polled_queue())
            .map(|id| id.to_string())
            .collect();
        if ids.is_empty() {
            return ", busy polling has no effect: the driver names no queue to poll (before Linux 6.13 it \
                    does so with the first frame)"
                .to_string();
        }
        let mut text = format!(", busy polling of NAPI {}", ids.join(" "));
        let folder = format!("/sys/class/net/{}", self.wanted.name());
        let number = |file: &str| {
            let text = fs::read_to_string(format!("{folder}/{file}")).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let (hard, timeout) = (number("napi_defer_hard_irqs"), number("gro_flush_timeout"));
        if hard == Some(0) || timeout == Some(0) {
            text += &format!(
                " beside interrupts (echo 2 > {folder}/napi_defer_hard_irqs and echo 200000 > \
                 {folder}/gro_flush_timeout leave them off)"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    /// A simulated zero-copy driver that releases its frames late.
    #[derive(Default)]
    struct SlowDriver {
        /// Addresses of the frames that the driver still reads or writes.
        has: Vec<u64>,
    }

    const SLOTS: u32 = 64;

    fn books() -> Books {
        let pool = PoolHandle::new(SLOTS, true).unwrap();
        Books {
            lent: vec![false; pool.slots()],
            pool,
            sending: 0,
        }
    }

    /// Returns the free slots of the pool.
    fn free_slots(pool: &PoolHandle) -> BTreeSet<u32> {
        let mut packets = Vec::new();
        packets.extend(std::iter::from_fn(|| pool.take(0)));
        packets.iter().map(Packet::slot).collect()
    }

    fn lend(books: &mut Books, driver: &mut SlowDriver, n: usize) {
        for _ in 0..n {
            let packet = books.pool.take(60).unwrap();
            driver.has.push(books.lend(packet));
        }
    }

    /// Tests every descriptor address in the packet memory and around it, with all lengths near the end of its slot.
    #[test]
    fn no_malformed_descriptor_yields_data_outside_its_slot() {
        let mut books = books();
        let (stride, slots) = (books.pool.stride_bytes(), books.pool.slots());
        let base = books.pool.memory().unwrap().base().as_ptr() as usize;
        while let Some(packet) = books.pool.take(0) {
            books.lend(packet);
        }
        let addresses = (0..3 * stride as u64)
            .chain((slots as u64 - 1) * stride as u64..(slots as u64 + 2) * stride as u64)
            .chain([u64::MAX - stride as u64, u64::MAX - 1, u64::MAX, 1 << 48]);
        for addr in addresses {
            let (slot, offset) = (addr / stride as u64, addr as usize % stride);
            let left = stride - offset;
            for len in [0, 1, left - 1, left, left + 1, 0xffff, 0x1_0000] {
                let frame = XdpDesc {
                    addr,
                    len: len as u32,
                    options: XdpDescOptions::empty(),
                };
                let is_lent = books.lent.get(slot as usize).copied();
                let is_there = is_lent == Some(true) && len <= left;
                let Some(packet) = books.received(frame) else {
                    assert!(!is_there, "{addr} {len}");
                    continue;
                };
                let at = packet.data().as_ptr() as usize - base;
                assert!(is_there && at == addr as usize && packet.len() == len);
                assert!(at % stride + len <= stride);
                // The frame is valid only once, until it is passed to the kernel again.
                assert!(books.received(frame).is_none());
                books.lend(packet);
            }
        }
        books.close(|| true);
    }

    #[test]
    fn no_frame_is_reused_before_the_driver_returns_it() {
        let mut books = books();
        let (pool, stride) = (books.pool.clone(), books.pool.stride_bytes() as u64);
        let mut driver = SlowDriver::default();
        lend(&mut books, &mut driver, 40);
        // The driver returns some frames while the socket is open.
        for address in driver.has.drain(..10) {
            let slot = books.take_back(address).unwrap();
            // SAFETY: the slot has been counted out since its frame was passed to the kernel, and was taken back just
            // now.
            unsafe { pool.return_slot(slot) };
        }
        let its_slots: BTreeSet<u32> = driver.has.iter().map(|at| (at / stride) as u32).collect();
        let mut looks = 0;
        books.close(|| {
            for _ in 0..5 {
                looks += 1;
                assert!(free_slots(&pool).is_disjoint(&its_slots), "look {looks}");
            }
            true
        });
        assert_eq!((looks, pool.outstanding()), (5, 0));
        assert_eq!(free_slots(&pool).len(), SLOTS as usize);
    }

    #[test]
    fn closing_a_port_never_frees_frames_that_the_driver_owns() {
        let mut books = books();
        let pool = books.pool.clone();
        let mut driver = SlowDriver::default();
        lend(&mut books, &mut driver, 40);
        books.close(|| false);
        drop(books);
        assert_eq!(pool.outstanding(), 40);
        assert_eq!(free_slots(&pool).len(), SLOTS as usize - 40);
    }
}
