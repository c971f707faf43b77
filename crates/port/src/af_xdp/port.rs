//! The port itself: frames travel between the worker's pool and the four rings.

use super::program::{Mode, Program};
use super::ring_entries;
use super::socket::{Rings, XdpSocket};
use crate::interface::{self, ETHERNET_HEADER_BYTES, Interface};
use crate::pool::Pool;
use crate::{BATCH_CAPACITY, Batch, Link, Packet, PoolHandle, Port, PortCounters, PortError};
use crate::{PortSpec, Resources};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::xdp::{XdpDesc, XdpDescOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::cell::RefCell;
use std::mem;
use std::rc::{Rc, Weak};

/// Calls to the kernel at most to get one batch sent: it sends 32 frames per call or more, and
/// returns early for each frame that the driver drops.
const KICKS: usize = 2 * BATCH_CAPACITY;

/// What the AF_XDP ports of one worker share.
#[derive(Clone, Default)]
pub(crate) struct Shared(Rc<RefCell<Living>>);

#[derive(Default)]
struct Living {
    /// Bound sockets, all on the worker's pool.
    sockets: Vec<Weak<OwnedFd>>,
    /// Attached programs by interface.
    programs: Vec<(u32, Weak<Program>)>,
}

/// What a spec asks for.
struct Wanted {
    what: String,
    name: String,
    queue: u32,
    entries: u32,
    modes: &'static [Mode],
}

/// Everything that depends on one particular interface: dropped and made anew when that is deleted
/// and comes back.
struct Session {
    program: Rc<Program>,
    rings: Rings,
    socket: XdpSocket,
    books: Books,
}

/// Frames of the pool that the kernel has.
struct Books {
    pool: PoolHandle,
    /// By slot.
    lent: Vec<bool>,
    /// In the fill ring, the receive ring or between.
    receiving: u32,
    /// In the transmit ring, the completion ring or between.
    sending: u32,
}

struct AfXdpPort {
    wanted: Wanted,
    /// Asks about interfaces in the network namespace the port was opened in (AF_XDP sockets cannot).
    lookup: OwnedFd,
    shared: Shared,
    pool: PoolHandle,
    /// None while the interface is gone.
    session: Option<Session>,
    interface: Interface,
    /// The kernel did not take all of the transmit ring, and will at a later call.
    unsent: bool,
    counters: PortCounters,
    /// Overruns of sessions past.
    overrun_before: u64,
}

pub(super) fn probe() -> Result<String, PortError> {
    let what = "AF_XDP sockets";
    XdpSocket::new().map_err(|e| interface::cannot_make_socket(what, "CONFIG_XDP_SOCKETS", e))?;
    Program::probe()?;
    Ok("AF_XDP sockets can be opened and XDP programs loaded".to_string())
}

pub(super) fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    spec.number("ring", 64..=32768)?;
    let wanted = Wanted {
        what: format!("opening {spec}"),
        name: spec.target().to_string(),
        queue: spec.number("queue", 0..=1023)?.unwrap_or(0) as u32,
        entries: ring_entries(spec).ok_or_else(|| spec.error("ring: want a power of two"))?,
        modes: match spec.option("mode") {
            None => &[Mode::Native, Mode::Generic],
            Some("native") => &[Mode::Native],
            Some("generic") => &[Mode::Generic],
            Some(_) => return Err(spec.error("mode: want native or generic")),
        },
    };
    let (pool, shared) = (resources.pool(), resources.xdp().clone());
    if !pool.stride_bytes().is_power_of_two() {
        return Err(spec.error("the worker's pool was made without regard to this port"));
    }
    let lookup = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| PortError::system(&wanted.what, e))?;
    let interface = Interface::find(&lookup, &wanted.name)
        .map_err(|e| interface::cannot_find(&wanted.what, &wanted.name, e))?;
    let session = Session::start(&wanted, &interface, &pool, &shared)?;
    Ok(Box::new(AfXdpPort {
        wanted,
        lookup,
        shared,
        pool,
        session: Some(session),
        interface,
        unsent: false,
        counters: PortCounters::default(),
        overrun_before: 0,
    }))
}

impl Wanted {
    /// Why the kernel does not let a socket have the queue.
    fn cannot_bind(&self, error: Errno) -> PortError {
        let Self {
            what, name, queue, ..
        } = self;
        match error {
            Errno::INVAL => PortError::missing(
                what,
                format!("queue {queue} of {name}, which has fewer; see: ethtool -l {name}"),
            ),
            Errno::BUSY => PortError::missing(
                what,
                format!("queue {queue} of {name} for itself; another AF_XDP socket has it"),
            ),
            Errno::NOBUFS => PortError::missing(
                what,
                "CAP_IPC_LOCK, or a higher limit on locked memory (ulimit -l), for its packet memory",
            ),
            Errno::PERM | Errno::ACCESS | Errno::AFNOSUPPORT => {
                interface::cannot_make_socket(what, "CONFIG_XDP_SOCKETS", error)
            }
            _ => PortError::system(what, error),
        }
    }
}

impl Session {
    fn start(
        wanted: &Wanted,
        interface: &Interface,
        pool: &PoolHandle,
        shared: &Shared,
    ) -> Result<Self, PortError> {
        let mut living = shared.0.borrow_mut();
        living.sockets.retain(|s| s.strong_count() > 0);
        living.programs.retain(|(_, p)| p.strong_count() > 0);
        let program = living.programs.iter().find(|(i, _)| *i == interface.index);
        let program = match program.and_then(|(_, p)| p.upgrade()) {
            Some(program) => program,
            None => Rc::new(Program::attach(
                &wanted.what,
                &wanted.name,
                interface.index,
                wanted.modes,
            )?),
        };
        let (socket, rings) = loop {
            let other = living.sockets.first().and_then(Weak::upgrade);
            match bound(wanted, interface, pool, other.as_deref(), program.mode) {
                Ok(done) => break done,
                // That socket's interface is gone; the port has not been asked about it yet.
                Err(Errno::BADF) if other.is_some() => drop(living.sockets.remove(0)),
                Err(error) => return Err(wanted.cannot_bind(error)),
            }
        };
        program
            .redirect(wanted.queue, &socket)
            .map_err(|e| PortError::system(&wanted.what, e))?;
        living.sockets.push(Rc::downgrade(socket.descriptor()));
        living
            .programs
            .push((interface.index, Rc::downgrade(&program)));
        let mut session = Self {
            program,
            rings,
            socket,
            books: Books {
                pool: pool.clone(),
                lent: vec![false; pool.slots()],
                receiving: 0,
                sending: 0,
            },
        };
        session.post(wanted.entries);
        Ok(session)
    }

    /// Gives the kernel empty frames until it has `entries`, or the pool is empty.
    #[inline(always)]
    fn post(&mut self, entries: u32) {
        let Self { books, rings, .. } = self;
        let mut missing = entries.saturating_sub(books.receiving);
        if missing == 0 {
            return;
        }
        missing = missing.min(rings.fill.room());
        for _ in 0..missing {
            let Some(packet) = books.pool.take(0) else {
                break;
            };
            rings.fill.push(books.lend(packet));
            books.receiving += 1;
        }
        rings.fill.publish();
        if rings.fill.needs_wakeup() {
            self.socket.wake_rx();
        }
    }

    /// Takes back the frames that have been sent.
    #[inline(always)]
    fn reap(&mut self) {
        while let Some(address) = self.rings.completion.next() {
            self.books.sending = self.books.sending.saturating_sub(1);
            if let Some(slot) = self.books.take_back(address) {
                // SAFETY: the pool is held by the books, the slot was counted out when it was lent.
                unsafe { Pool::give_back(self.books.pool.raw(), slot) };
            }
        }
        self.rings.completion.release();
    }
}

/// A socket on the wanted queue with its rings, on the packet memory of `other` if there is one, which
/// must be of the same pool.
fn bound(
    wanted: &Wanted,
    interface: &Interface,
    pool: &PoolHandle,
    other: Option<&OwnedFd>,
    mode: Mode,
) -> Result<(XdpSocket, Rings), Errno> {
    let socket = XdpSocket::new()?;
    if other.is_none() {
        let memory = pool.memory().ok_or(Errno::INVAL)?;
        // SAFETY: a session's books hold the pool until after its socket is closed, and a slot in a
        // ring is held by no packet.
        unsafe { socket.register(memory, pool.stride_bytes()) }?;
    }
    let rings = socket.map_rings(wanted.entries)?;
    socket.set_send_budget(BATCH_CAPACITY as u32);
    socket.bind(interface.index, wanted.queue, other, mode == Mode::Generic)?;
    Ok((socket, rings))
}

impl Books {
    /// Makes a packet's frame the kernel's; returns the packet's address in the packet memory.
    #[inline(always)]
    fn lend(&mut self, packet: Packet) -> u64 {
        let slot = packet.slot();
        self.lent[slot as usize] = true;
        let address = self.address(&packet);
        mem::forget(packet);
        address
    }

    /// Where a packet of the pool starts, from the start of the packet memory.
    #[inline(always)]
    fn address(&self, packet: &Packet) -> u64 {
        let base = self.pool.memory().map_or(0, |m| m.base().as_ptr() as u64);
        packet.data().as_ptr() as u64 - base
    }

    /// The packet itself if it lies in the pool, otherwise a copy that does. None if the pool is empty.
    #[inline(always)]
    fn own(&self, packet: Packet) -> Option<Packet> {
        if self.pool.owns(&packet) {
            return Some(packet);
        }
        let mut copy = self.pool.take(packet.len() as u16)?;
        crate::frame_copy::copy_bytes(packet.bytes(), copy.bytes_mut());
        Some(copy)
    }

    /// The slot that an address lies in, if the kernel had it; it is ours from now on.
    #[inline(always)]
    fn take_back(&mut self, address: u64) -> Option<u32> {
        let slot = address / self.pool.stride_bytes() as u64;
        let lent = self.lent.get_mut(slot as usize)?;
        mem::take(lent).then_some(slot as u32)
    }

    /// The packet that the kernel describes; none if it cannot be.
    #[inline(always)]
    fn received(&mut self, frame: XdpDesc) -> Option<Packet> {
        let stride = self.pool.stride_bytes();
        let offset = frame.addr as usize % stride;
        if offset + frame.len as usize > stride {
            return None;
        }
        let slot = self.take_back(frame.addr)?;
        let base = self.pool.memory()?.base();
        // SAFETY: the slot is one of the pool's and was lent, so it is counted out and nobody else
        // has it; frame and headroom were checked to lie in it.
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

impl Drop for Books {
    /// The last of a session to be dropped: the socket is closed, so all frames are ours.
    fn drop(&mut self) {
        for (slot, lent) in self.lent.iter().enumerate() {
            if *lent {
                // SAFETY: the pool is held by the books, the slot was counted out when it was lent.
                unsafe { Pool::give_back(self.pool.raw(), slot as u32) };
            }
        }
    }
}

/// What the interface takes; the kernel does not check.
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
    /// Has the kernel send what is in the transmit ring.
    #[inline(always)]
    fn kick(&mut self) {
        let Some(session) = &self.session else { return };
        self.unsent = false;
        let mut before = session.rings.tx.waiting();
        for _ in 0..KICKS {
            let answer = session.socket.wake_tx();
            let left = session.rings.tx.waiting();
            match answer {
                // The driver dropped one frame; the others wait.
                Err(Errno::BUSY) => self.counters.tx_failed += 1,
                Ok(()) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
                // Interface down or gone: `link` tells, and kicks when it is back.
                Err(_) => return,
            }
            self.unsent = left > 0;
            if left == 0 || left == before {
                return;
            }
            before = left;
        }
    }

    /// Ends a session whose interface is gone; the pool has its frames back.
    fn end(&mut self) {
        if let Some(session) = self.session.take() {
            self.overrun_before += session.socket.overrun();
        }
        self.unsent = false;
    }
}

impl Port for AfXdpPort {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.unsent {
            self.kick();
        }
        let Some(session) = &mut self.session else {
            return 0;
        };
        let before = batch.len();
        while batch.room() > 0 {
            let Some(frame) = session.rings.rx.next() else {
                break;
            };
            session.books.receiving = session.books.receiving.saturating_sub(1);
            match session.books.received(frame) {
                Some(packet) => {
                    self.counters.rx_bytes += packet.len() as u64;
                    batch.push(packet);
                }
                None => self.counters.rx_malformed += 1,
            }
        }
        session.rings.rx.release();
        session.reap();
        session.post(self.wanted.entries);
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
        // As many as the kernel can report as sent, and as there are frames to copy into.
        let mut room = self
            .wanted
            .entries
            .saturating_sub(session.books.sending)
            .min(session.rings.tx.room());
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
        batch.take_front(taken, |packet| {
            let len = packet.len();
            if limits.take(packet.bytes()) {
                if let Some(packet) = session.books.own(packet) {
                    session.rings.tx.push(XdpDesc {
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
        session.rings.tx.publish();
        if session.rings.tx.waiting() > 0 && session.rings.tx.needs_wakeup() {
            self.kick();
        }
        taken
    }

    fn link(&mut self) -> Link {
        let name = &self.wanted.name;
        let now = match Interface::find(&self.lookup, name) {
            Ok(now) => now,
            Err(error) => {
                let link = interface::lost(name, &error);
                self.end();
                return link;
            }
        };
        if now.index != self.interface.index || self.session.is_none() {
            // Deleted and made again under the same name.
            self.end();
            match Session::start(&self.wanted, &now, &self.pool, &self.shared) {
                Ok(session) => self.session = Some(session),
                Err(error) => return Link::Down(error.to_string()),
            }
        }
        self.interface = now;
        let link = now.link(&self.wanted.name);
        if link.is_up() {
            self.kick();
        }
        link
    }

    fn counters(&mut self) -> PortCounters {
        let now = self.session.as_ref().map_or(0, |s| s.socket.overrun());
        self.counters.rx_overrun = self.overrun_before + now;
        self.counters
    }

    fn details(&self) -> String {
        self.session.as_ref().map_or_else(String::new, |session| {
            let copies = if session.socket.is_zero_copy() {
                "the driver copies nothing"
            } else {
                "the kernel copies each frame"
            };
            format!("{} XDP, {copies}", session.program.mode)
        })
    }
}
