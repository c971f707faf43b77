//! memif: shared-memory packet rings between two processes, as in DPDK's `net_memif` and VPP.
//!
//! A *server* listens on a UNIX socket. A *client* provides the memory: two rings and, here, its complete packet pool,
//! so that a client forwards between two memif ports without copying frames. The handshake runs on a control thread
//! (`server`, `client`). The data path (`client_queue`, `server_queue`) only gets established connections.
//!
//! Trust: lengths, offsets and indices from a peer are copied out of the shared memory once and checked before use.
//! Therefore a malicious peer can cause lost packets, but cannot violate the memory safety of this process, except for
//! the bytes of frames in flight. The peer can change the bytes of frames at any time, because the memory is shared by
//! design. A peer that truncates a region ends its connection (`shrink`), and so does a peer that writes an invalid
//! index. Interrupt files are event counters, and writes to them never block (`knock`). Do not share a pool with a peer
//! that you would not share a computer with.

pub mod by_hand;
mod channel;
mod client;
mod client_queue;
mod connection;
mod fault;
mod knock;
pub mod message;
mod ring;
mod round_robin;
mod server;
mod server_queue;
mod shrink;
#[cfg(test)]
mod tests;
mod wakes;

use crate::{
    Attachment, Backend, Batch, Handling, Link, Port, PortCounters, PortError, PortSpec, Receives,
};
use crate::{Part, Resources, Sends, Split};
use client_queue::ClientQueue;
use connection::{Connection, Handover, Handovers};
use fault::interrupt_file;
use knock::Knocker;
use ring::{MAX_LOG2_RING_SIZE, MIN_LOG2_RING_SIZE};
use rustix::io::write;
use server_queue::ServerQueue;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use taut_sys::Alarm;

/// The application name that taut sends in the handshake.
const APPLICATION_NAME: &str = concat!("taut ", env!("CARGO_PKG_VERSION"));

/// The default number of descriptors per ring, the same as DPDK's.
const DEFAULT_RING: u32 = 1024;

/// The maximum number of rings that a port receives from. A peer can send with one thread per ring.
const MOST_QUEUES: u64 = 8;

/// The backend of specs `memif:SOCKET-PATH[,role=server|client][,id=N][,ring=N][,queues=N][,secret=TEXT]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "memif",
    summary: "shared memory between two processes (DPDK net_memif and VPP speak it too); needs no root",
    target: "SOCKET-PATH",
    options: &[
        (
            "role",
            "server (listens, default) or client (connects, brings the memory, copies nothing)",
        ),
        ("id", "interface number on the socket (default 0)"),
        (
            "ring",
            "descriptors per ring, a power of two from 32 to 16384 (default 1024); the client's counts",
        ),
        (
            "queues",
            "rings to receive from, 1 to 8 (default 1): for a peer that sends with several threads",
        ),
        ("secret", "text of up to 23 bytes that both sides must give"),
    ],
    frames: |spec| (1 + queues(spec).unwrap_or(1)) * ring_size(spec).unwrap_or(DEFAULT_RING),
    aligned: false,
    handling: &[
        Handling {
            variant: "role=client",
            receives: Receives::InPool,
            sends: Sends::FromPool,
        },
        Handling {
            variant: "role=server",
            receives: Receives::InPlace,
            sends: Sends::ByCopy,
        },
    ],
    passes_on: false,
    wakes: true,
    probe: || Ok("server and client".to_string()),
    open,
    split: Split::Parts(split),
    attachment: Attachment::Process,
    typical_cycles: None,
    loop_back: Some(|name, _| ["server", "client"].map(|role| format!("memif:{name},role={role}"))),
};

/// The identity of an interface: its number on the socket, and the secret that a client must send.
#[derive(Debug, Clone)]
struct Identity {
    id: u32,
    secret: String,
}

impl Identity {
    fn interface(&self) -> String {
        format!("memif{}", self.id)
    }
}

fn ring_size(spec: &PortSpec) -> Result<u32, PortError> {
    let size = spec
        .number("ring", 1 << MIN_LOG2_RING_SIZE..=1 << MAX_LOG2_RING_SIZE)?
        .map_or(DEFAULT_RING, |n| n as u32);
    if size.is_power_of_two() {
        Ok(size)
    } else {
        Err(spec.error(format!("ring={size} is not a power of two")))
    }
}

fn queues(spec: &PortSpec) -> Result<u32, PortError> {
    Ok(spec
        .number("queues", 1..=MOST_QUEUES)?
        .map_or(1, |n| n as u32))
}

fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    let whole = split(spec, 1)?.pop();
    whole.ok_or_else(|| spec.error("no worker"))?(resources)
}

/// Gives each worker its own rings on one connection.
fn split(spec: &PortSpec, workers: usize) -> Result<Vec<Part>, PortError> {
    let identity = Identity {
        id: spec.number("id", 0..=u64::from(u32::MAX))?.unwrap_or(0) as u32,
        secret: spec.option("secret").unwrap_or_default().to_string(),
    };
    if identity.secret.len() > 23 {
        return Err(spec.error("secret: at most 23 bytes"));
    }
    if workers as u64 > MOST_QUEUES {
        return Err(spec.error(format!(
            "{workers} workers: the maximum is {MOST_QUEUES} rings"
        )));
    }
    let path = PathBuf::from(spec.target());
    let log2_ring_size = ring_size(spec)?.ilog2() as u8;
    let rx_rings = queues(spec)?.max(workers as u32) as u16;
    let handovers: Vec<_> = (0..workers).map(|_| Arc::<Handover>::default()).collect();
    let control = Arc::new(Control {
        stop: Arc::new(interrupt_file()?),
        thread: Mutex::new(None),
    });
    match spec.option("role").unwrap_or("server") {
        "server" => server_parts(&path, identity, rx_rings, handovers, &control),
        "client" => {
            let offer = client::Offer {
                path,
                log2_ring_size,
                rx_rings,
                pools: Vec::new(),
            };
            client_parts(spec, offer, identity, handovers, &control)
        }
        other => Err(spec.error(format!("role={other}: expected server or client"))),
    }
}

/// Listens at `path`, and returns the parts of a server, one for each worker.
fn server_parts(
    path: &Path,
    identity: Identity,
    rx_rings: u16,
    handovers: Vec<Arc<Handover>>,
    control: &Arc<Control>,
) -> Result<Vec<Part>, PortError> {
    let listener = server::Listener::bind(path)?;
    let all = Handovers(handovers.clone());
    all.note(&listener.waiting());
    control.start(move |stop| server::run(&listener, &identity, rx_rings, &all, stop))?;
    let part = |handover| {
        let control = Arc::clone(control);
        Box::new(move |resources: &mut Resources| {
            let queue = ServerQueue::new(resources.pool(), Knocker::shared()?);
            let port = MemifPort::new(Queue::Server(queue), handover, control);
            Ok(Box::new(port) as Box<dyn Port>)
        }) as Part
    };
    Ok(handovers.into_iter().map(part).collect())
}

/// Returns the parts of a client, one for each worker. The workers' pools are added to `offer` when all workers have
/// made theirs.
fn client_parts(
    spec: &PortSpec,
    offer: client::Offer,
    identity: Identity,
    handovers: Vec<Arc<Handover>>,
    control: &Arc<Control>,
) -> Result<Vec<Part>, PortError> {
    let all = Handovers(handovers.clone());
    all.note(&format!(
        "looking for the memif server at {}",
        offer.path.display()
    ));
    let workers = handovers.len();
    let begin = move |pools| {
        let offer = client::Offer { pools, ..offer };
        move |stop: BorrowedFd<'_>| client::run(&offer, &identity, &all, stop)
    };
    // The control thread starts after all workers have made their pools.
    let awaited = Arc::new(Mutex::new((Some(begin), vec![None; workers])));
    let part = |(worker, handover)| {
        let (control, awaited) = (Arc::clone(control), Arc::clone(&awaited));
        let spec = spec.clone();
        Box::new(move |resources: &mut Resources| {
            let pool = resources.pool();
            let Some(memory) = pool.memory() else {
                return Err(spec.error("the pool has no memory to offer"));
            };
            let mut awaited = awaited.lock().unwrap_or_else(PoisonError::into_inner);
            let (begin, pools) = &mut *awaited;
            pools[worker] = Some((memory.fd(), memory.len()));
            if let Some(pools) = pools.iter().cloned().collect::<Option<Vec<_>>>()
                && let Some(begin) = begin.take()
            {
                control.start(begin(pools))?;
            }
            let queue = ClientQueue::new(pool, Knocker::shared()?);
            let port = MemifPort::new(Queue::Client(queue), handover, control);
            Ok(Box::new(port) as Box<dyn Port>)
        }) as Part
    };
    Ok((0..).zip(handovers).map(part).collect())
}

/// The control thread of a port. The thread ends when the last reference to this value is dropped.
struct Control {
    stop: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    fn start(&self, body: impl FnOnce(BorrowedFd<'_>) + Send + 'static) -> Result<(), PortError> {
        let stop = Arc::clone(&self.stop);
        let thread = std::thread::Builder::new()
            .name("memif".to_string())
            .spawn(move || body(stop.as_fd()))
            .map_err(|e| PortError::system("memif: cannot start the control thread", e))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = write(&*self.stop, &1_u64.to_ne_bytes());
        let thread = self
            .thread
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

/// The data path of a client or a server, which perform different operations on the rings.
enum Queue {
    Client(ClientQueue),
    Server(ServerQueue),
}

impl Queue {
    #[inline(always)]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        match self {
            Self::Client(queue) => queue.rx(batch),
            Self::Server(queue) => queue.rx(batch),
        }
    }

    #[inline(always)]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        match self {
            Self::Client(queue) => queue.tx(batch),
            Self::Server(queue) => queue.tx(batch),
        }
    }

    fn connect(&mut self, connection: Connection) {
        match self {
            Self::Client(queue) => queue.connect(connection),
            Self::Server(queue) => queue.connect(connection),
        }
    }

    /// Releases the connection; returns false if packets are still in its memory.
    fn disconnect(&mut self) -> bool {
        match self {
            Self::Client(queue) => queue.disconnect(),
            Self::Server(queue) => queue.disconnect(),
        }
    }

    fn is_connected(&self) -> bool {
        match self {
            Self::Client(queue) => queue.is_connected(),
            Self::Server(queue) => queue.is_connected(),
        }
    }

    fn arm(&self, alarm: &mut Alarm) {
        match self {
            Self::Client(queue) => queue.arm(alarm),
            Self::Server(queue) => queue.arm(alarm),
        }
    }

    fn disarm(&self) {
        match self {
            Self::Client(queue) => queue.disarm(),
            Self::Server(queue) => queue.disarm(),
        }
    }

    fn counters(&self) -> PortCounters {
        match self {
            Self::Client(queue) => queue.counters,
            Self::Server(queue) => queue.counters,
        }
    }
}

struct MemifPort {
    /// Control thread of the port. It is dropped first, so that the peer is notified before its packets are released.
    _control: Arc<Control>,
    queue: Queue,
    /// Counter of the handover (`epoch`) at which the connection of `queue` was supplied.
    epoch: u32,
    /// New connection, with its epoch, that waits until every packet of the previous one has been returned.
    waiting: Option<(u32, Option<Connection>)>,
    handover: Arc<Handover>,
}

impl MemifPort {
    fn new(queue: Queue, handover: Arc<Handover>, control: Arc<Control>) -> Self {
        Self {
            _control: control,
            queue,
            epoch: 0,
            waiting: None,
            handover,
        }
    }

    /// Replaces the port's connection by a new one from the control thread, or releases a connection that has ended.
    #[cold]
    fn refresh(&mut self) {
        if self
            .waiting
            .as_ref()
            .is_none_or(|(epoch, _)| *epoch != self.handover.epoch())
        {
            self.waiting = Some(self.handover.take());
        }
        if self.queue.disconnect()
            && let Some((epoch, connection)) = self.waiting.take()
        {
            self.epoch = epoch;
            if let Some(connection) = connection {
                self.queue.connect(connection);
            }
        }
    }
}

impl Port for MemifPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.handover.epoch() != self.epoch {
            self.refresh();
        }
        self.queue.rx(batch)
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if self.handover.epoch() != self.epoch {
            self.refresh();
        }
        self.queue.tx(batch)
    }

    fn link(&mut self) -> Link {
        if self.handover.epoch() != self.epoch {
            self.refresh();
        }
        if self.queue.is_connected() && self.handover.epoch() == self.epoch {
            Link::Up
        } else {
            Link::Down(self.handover.why())
        }
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        self.queue.arm(alarm);
        // A new connection that `refresh` has not adopted yet may already have packets, so the caller must not sleep.
        self.handover.epoch() == self.epoch
    }

    fn disarm(&mut self) {
        self.queue.disarm();
    }

    fn counters(&mut self) -> PortCounters {
        self.queue.counters()
    }

    /// Sets whether a server copies received frames to memory that its peer cannot write to. The call has no effect on
    /// a client, because a client's own pool is always shared with the server.
    fn own_bytes(&mut self, wanted: bool) {
        if let Queue::Server(queue) = &mut self.queue {
            queue.copies = wanted;
        }
    }
}
