//! The gateway as the user plane of a mobile core (UPF, SGW-U, PGW-U): sessions arrive by PFCP (3GPP TS 29.244), over
//! UDP, from configured peers only.

mod counts;
mod echo;
mod element;
mod filter;
mod node;
mod refusal;
mod requests;
mod responses;
mod session;
mod settings;
mod urr;

pub(super) use counts::Counts;
pub(super) use node::Node;
pub(super) use settings::{Settings, Terms};

use super::control::Control;
use rustix::net::sockopt;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_port::PortError;
use taut_sys::spawn_background;

/// The interval at which the thread checks whether it has to end, and which messages to peers are due.
const LOOK: Duration = Duration::from_millis(50);

/// The interval at which the thread continues when more work is pending than one pass processes.
const SOON: Duration = Duration::from_millis(1);
/// The size of the socket's receive buffer, bytes. It has space for some thousand datagrams, because each datagram
/// occupies more memory than its length.
const RECEIVE_BYTES: usize = 4 << 20;

/// The thread that responds to PFCP messages. It ends when this value is dropped.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(terms: &Terms, control: &Arc<Mutex<Control>>) -> Result<Self, PortError> {
        let address = terms.socket;
        let what = || format!("function \"gtpu\": pfcp at {address}");
        let listen = || {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(LOOK))?;
            // Only root may set this size; other users get less.
            if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BYTES).is_err() {
                let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
            }
            Ok(socket)
        };
        let socket = listen().map_err(|e: std::io::Error| PortError::system(what(), e))?;
        let counts = Arc::new(Counts::default());
        let node = Node::new(terms, Arc::clone(&counts), Instant::now());
        lock(control).signalling = Some(counts);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, control) = (Arc::clone(&stop), Arc::clone(control));
        let serve = move || serve(&socket, node, &control, &stopped);
        Ok(Self {
            thread: Some(spawn_background("gtpu-pfcp", serve)?),
            stop,
        })
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

fn lock(control: &Mutex<Control>) -> std::sync::MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(socket: &UdpSocket, mut node: Node, control: &Mutex<Control>, stop: &AtomicBool) {
    let mut datagram = vec![0; 1 << 16];
    let (mut next_look, mut waits) = (Instant::now(), LOOK);
    while !stop.load(Ordering::Relaxed) {
        let received = socket.recv_from(&mut datagram);
        let now = Instant::now();
        if let Ok((length, from)) = received {
            answer(socket, &mut node, control, &datagram[..length], from, now);
        }
        let messages = if now >= next_look {
            let messages = node.look(now, &mut lock(control));
            let wait = if node.is_behind() { SOON } else { LOOK };
            if wait != waits && socket.set_read_timeout(Some(wait)).is_ok() {
                waits = wait;
            }
            next_look = now + wait;
            messages
        } else {
            node.due(now)
        };
        for (to, message) in messages {
            // A lost message gets no response and is therefore retransmitted.
            let _ = socket.send_to(&message, to);
        }
    }
}

fn answer(
    socket: &UdpSocket,
    node: &mut Node,
    control: &Mutex<Control>,
    datagram: &[u8],
    from: SocketAddr,
    now: Instant,
) {
    let peer = SocketAddr::new(from.ip().to_canonical(), from.port());
    // Packets of untrusted sources must not make this thread take the lock of the table.
    if !node.knows(peer) {
        return;
    }
    let mut control = lock(control);
    let response = node.handle(datagram, peer, now, &mut control);
    // The changes that a response confirms must be in force when the peer reads the response.
    let settled = control.settle();
    drop(control);
    if let (Some(response), Ok(())) = (response, settled) {
        // A peer that gets no response retransmits its request.
        let _ = socket.send_to(&response, from);
    }
}

#[cfg(test)]
mod tests;
