//! The gateway as the user plane of a mobile core (UPF, SGW-U, PGW-U): sessions come by PFCP (3GPP TS 29.244),
//! over UDP, from configured peers only.

mod filter;
mod node;
mod session;

use super::control::Control;
use node::Node;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_port::{PortError, spawn_beside};
use taut_wire::pfcp::UDP_PORT;

/// How soon the thread sees that it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The address to listen at, its port where that is not the usual one, and who may ask.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    address: Listen,
    peers: Vec<IpAddr>,
    node_id: Option<IpAddr>,
    #[serde(default)]
    filters: Filters,
}

/// What to do with rules for single flows whose packets would have to take another way than the others of their tunnel or
/// user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Filters {
    #[default]
    Refuse,
    /// Their packets take the way of the others.
    Ignore,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(
    untagged,
    expecting = "want an IP address such as \"192.0.2.1\", or one with a port: \"192.0.2.1:8805\""
)]
enum Listen {
    Socket(SocketAddr),
    Usual(IpAddr),
}

impl Settings {
    /// What is wrong with them.
    pub fn check(&self) -> Result<(), String> {
        if self.peers.is_empty() {
            return Err("pfcp: peers: want the control plane's address, or several".to_string());
        }
        if self.node_id().is_unspecified() {
            return Err(
                "pfcp: node_id: want an address by which others know this node".to_string(),
            );
        }
        Ok(())
    }

    fn socket(&self) -> SocketAddr {
        match self.address {
            Listen::Socket(socket) => socket,
            Listen::Usual(address) => (address, UDP_PORT).into(),
        }
    }

    fn node_id(&self) -> IpAddr {
        self.node_id.unwrap_or(self.socket().ip())
    }
}

/// The thread that answers. Dropping it ends it.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(settings: &Settings, control: &Arc<Mutex<Control>>) -> Result<Self, PortError> {
        let address = settings.socket();
        let what = || format!("function \"gtpu\": pfcp at {address}");
        let listen = || {
            let socket = UdpSocket::bind(address)?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok(socket)
        };
        let socket = listen().map_err(|e: std::io::Error| PortError::system(what(), e))?;
        let node = Node::new(settings.node_id(), &settings.peers, settings.filters);
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, control) = (Arc::clone(&stop), Arc::clone(control));
        let serve = move || serve(&socket, node, &control, &stopped);
        Ok(Self {
            thread: Some(spawn_beside("gtpu-pfcp", serve)?),
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

fn serve(socket: &UdpSocket, mut node: Node, control: &Mutex<Control>, stop: &AtomicBool) {
    let mut datagram = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut datagram) else {
            continue;
        };
        let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
        let response = node.handle(&datagram[..length], from.ip().to_canonical(), &mut control);
        // What the response promises is in force when it is read.
        let settled = control.settle();
        drop(control);
        if let (Some(response), Ok(())) = (response, settled) {
            // A peer that is not there asks again.
            let _ = socket.send_to(&response, from);
        }
    }
}

#[cfg(test)]
mod tests;
