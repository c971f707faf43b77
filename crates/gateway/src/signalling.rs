//! The thread that talks to control planes: by PFCP, by GTP-C, or by both, whose sessions share one table. It takes
//! several datagrams from a socket at a time and makes all their changes. It waits once until these are in force, and
//! then sends all responses.

use super::control::Control;
use super::settings::Checked;
use super::{gtpc, pfcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_port::PortError;
use taut_sys::{DATAGRAMS_AT_A_TIME, Datagrams, spawn_background};

/// The interval at which the thread checks whether it has to end, and whether messages to peers are due.
const LOOK: Duration = Duration::from_millis(50);
/// The interval at which the thread continues when more work is pending than one pass processes.
const SOON: Duration = Duration::from_millis(1);
/// The size of a socket's receive buffer, bytes. It has space for some thousand datagrams, because each datagram
/// occupies more memory than its length.
const RECEIVE_BYTES: usize = 4 << 20;
/// The length of the longest datagram, bytes.
const MOST_BYTES: usize = 1 << 16;

/// A message with its destination address.
pub(super) type Sent = (SocketAddr, Vec<u8>);

/// The thread that responds to PFCP and GTP-C messages. It ends when this value is dropped.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the thread, if the settings name PFCP or GTP-C.
    pub fn start(
        checked: &Checked,
        control: &Arc<Mutex<Control>>,
    ) -> Result<Option<Self>, PortError> {
        let Some(terms) = &checked.sessions else {
            return Ok(None);
        };
        let of_pfcp = checked.settings.pfcp.is_some();
        let pfcp = of_pfcp.then(|| listen("pfcp", terms.socket)).transpose()?;
        let gtpc = checked.gtpc.as_ref();
        let of_gtpc = gtpc.map(|terms| listen("gtpc", terms.socket));
        let of_gtpc = of_gtpc.transpose()?;
        let counts = Arc::new(pfcp::Counts::default());
        let now = Instant::now();
        let mut speaking = Speaking {
            node: pfcp::Node::new(terms, Arc::clone(&counts), now),
            gtpc: None,
            pfcp_socket: pfcp,
            gtpc_socket: of_gtpc,
            inbox: Datagrams::default(),
            outbox: Datagrams::default(),
        };
        if of_pfcp {
            lock(control).signalling = Some(counts);
        }
        if let Some(terms) = gtpc {
            let counts = Arc::new(gtpc::Counts::default());
            lock(control).gtpc = Some(Arc::clone(&counts));
            speaking.gtpc = Some(gtpc::Node::new(terms, counts, now));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, control) = (Arc::clone(&stop), Arc::clone(control));
        let serve = move || speaking.serve(&control, &stopped);
        Ok(Some(Self {
            thread: Some(spawn_background("gtpu-signalling", serve)?),
            stop,
        }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(protocol: &str, address: SocketAddr) -> Result<UdpSocket, PortError> {
    let listen = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        // Only root may set this size; other users get less.
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
        }
        Ok(socket)
    };
    let what = || format!("function \"gtpu\": {protocol} at {address}");
    listen().map_err(|e: std::io::Error| PortError::system(what(), e))
}

fn lock(control: &Mutex<Control>) -> std::sync::MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The protocols in use (PFCP, GTP-C), each with its socket.
struct Speaking {
    node: pfcp::Node,
    gtpc: Option<gtpc::Node>,
    pfcp_socket: Option<UdpSocket>,
    gtpc_socket: Option<UdpSocket>,
    inbox: Datagrams<MOST_BYTES>,
    outbox: Datagrams<MOST_BYTES>,
}

impl Speaking {
    fn serve(mut self, control: &Mutex<Control>, stop: &AtomicBool) {
        let mut next_look = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let wait = next_look.saturating_duration_since(Instant::now());
            self.wait(wait);
            // More datagrams may follow a full batch, but the timers are due as well.
            while self.take_pfcp(control) | self.take_gtpc(control) && Instant::now() < next_look {}
            let now = Instant::now();
            if now >= next_look {
                let wait = self.look(now, control);
                next_look = now + wait;
            } else {
                let due = self.node.due(now);
                let socket = self.pfcp_socket.as_ref();
                send(&mut self.outbox, socket, due);
            }
        }
    }

    /// Waits until a datagram arrives at a socket, but no longer than `most`.
    fn wait(&self, most: Duration) {
        let sockets = [&self.pfcp_socket, &self.gtpc_socket];
        let sockets = sockets.into_iter().flatten();
        let mut polled: Vec<_> = sockets
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        let most = Timespec::try_from(most).ok();
        // An interrupted wait is a short one.
        let _ = poll(&mut polled, most.as_ref());
    }

    /// Responds to one batch of PFCP datagrams; returns true if more may be waiting.
    fn take_pfcp(&mut self, control: &Mutex<Control>) -> bool {
        let Some(socket) = &self.pfcp_socket else {
            return false;
        };
        let Ok(count) = self.inbox.receive(socket, DATAGRAMS_AT_A_TIME) else {
            return false;
        };
        let (now, mut locked) = (Instant::now(), None);
        let mut responses = Vec::with_capacity(count);
        for index in 0..count {
            let Some((datagram, from)) = self.inbox.get(index) else {
                continue;
            };
            let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
            // Packets of untrusted sources must not make this thread take the lock of the table.
            if !self.node.knows(peer) {
                continue;
            }
            let control = locked.get_or_insert_with(|| lock(control));
            let response = self.node.handle(datagram, peer, now, control);
            responses.extend(response.map(|response| (from, response)));
        }
        // The changes that a response confirms must be in force when the peer reads the response. A peer that gets no
        // response retransmits its request.
        if locked.is_none_or(|mut control| control.settle().is_ok()) {
            send(&mut self.outbox, self.pfcp_socket.as_ref(), responses);
        }
        count == DATAGRAMS_AT_A_TIME
    }

    /// Responds to one batch of GTP-C datagrams; returns true if more may be waiting.
    fn take_gtpc(&mut self, control: &Mutex<Control>) -> bool {
        let (Some(socket), Some(gtpc)) = (&self.gtpc_socket, &mut self.gtpc) else {
            return false;
        };
        let Ok(count) = self.inbox.receive(socket, DATAGRAMS_AT_A_TIME) else {
            return false;
        };
        let (now, mut locked) = (Instant::now(), None);
        let mut messages = Vec::with_capacity(count);
        for index in 0..count {
            let Some((datagram, from)) = self.inbox.get(index) else {
                continue;
            };
            let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
            if !gtpc.knows(peer) {
                continue;
            }
            let control = locked.get_or_insert_with(|| lock(control));
            gtpc.handle(datagram, peer, now, &mut self.node, control, &mut messages);
        }
        if locked.is_none_or(|mut control| control.settle().is_ok()) {
            send(&mut self.outbox, self.gtpc_socket.as_ref(), messages);
        }
        count == DATAGRAMS_AT_A_TIME
    }

    /// Runs the timers of both protocols; returns the time until they run again.
    fn look(&mut self, now: Instant, control: &Mutex<Control>) -> Duration {
        let mut control = lock(control);
        let of_pfcp = self.node.look(now, &mut control);
        let mut of_gtpc = Vec::new();
        if let Some(gtpc) = &mut self.gtpc {
            gtpc.look(now, &mut self.node, &mut control, &mut of_gtpc);
        }
        drop(control);
        send(&mut self.outbox, self.pfcp_socket.as_ref(), of_pfcp);
        send(&mut self.outbox, self.gtpc_socket.as_ref(), of_gtpc);
        match self.node.is_behind() {
            true => SOON,
            false => LOOK,
        }
    }
}

/// Sends messages. A lost message gets no response and is therefore retransmitted.
fn send(outbox: &mut Datagrams<MOST_BYTES>, socket: Option<&UdpSocket>, messages: Vec<Sent>) {
    let Some(socket) = socket else {
        return;
    };
    for (to, message) in messages {
        if outbox.is_full() {
            outbox.send(socket);
        }
        outbox.add(to, |bytes| {
            bytes.get_mut(..message.len())?.copy_from_slice(&message);
            Some(message.len())
        });
    }
    if !outbox.is_empty() {
        outbox.send(socket);
    }
}
