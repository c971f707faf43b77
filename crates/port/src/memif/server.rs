//! The server's control thread: listens, performs the handshake with one client at a time, and detects the end of its
//! connection.

use super::channel::{Channel, ChannelError, wait};
use super::connection::{Connection, Handovers, Regions, RingPlace};
use super::fault::Fault;
use super::message::{MODE_ETHERNET, Message, VERSION};
use super::ring::{MAX_LOG2_RING_SIZE, MIN_LOG2_RING_SIZE};
use super::shrink::Guard;
use super::{APPLICATION_NAME, Identity};
use crate::PortError;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_sys::Mapping;

/// The maximum number of regions of a client. Real clients use two; DPDK's zero-copy client uses one per memory segment
/// list.
const MAX_REGIONS: u16 = 64;

/// The time between two attempts to accept a client while the process has no free file descriptors, ms.
const ACCEPT_PAUSE_MS: i64 = 100;

/// A bound and listening socket file, which is removed when the listener is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Binds `path`. It replaces a socket file without a listener, whose owner was killed.
    pub(super) fn bind(path: &Path) -> Result<Self, PortError> {
        if let Some(folder) = path
            .parent()
            .filter(|f| !f.as_os_str().is_empty() && !f.is_dir())
        {
            return Err(PortError::missing(
                what(path),
                format!("the folder {} (mkdir -p it)", folder.display()),
            ));
        }
        let address = SocketAddrUnix::new(path).map_err(|_| {
            PortError::bad_spec(
                path.display().to_string(),
                "socket path longer than 107 bytes",
            )
        })?;
        let socket = fresh(path)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) => replace(path, &address, &socket)?,
            other => other.map_err(|e| PortError::system(what(path), e))?,
        }
        listen(&socket, 8).map_err(|e| PortError::system(what(path), e))?;
        Ok(Self {
            socket,
            path: path.to_path_buf(),
        })
    }

    /// Accepts the next client.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }

    /// Returns a text that says what the port waits for while no client is connected.
    pub(super) fn waiting(&self) -> String {
        format!("waiting for a memif client at {}", self.path.display())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn what(path: &Path) -> String {
    format!("memif socket {}", path.display())
}

/// Returns a socket that is not bound yet.
fn fresh(path: &Path) -> Result<OwnedFd, PortError> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| PortError::system(what(path), e))
}

/// Binds `socket` to the path of an existing socket file, which is deleted if it has no listener.
fn replace(path: &Path, address: &SocketAddrUnix, socket: &OwnedFd) -> Result<(), PortError> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Err(PortError::bad_spec(
            path.display().to_string(),
            "this path exists and is not a socket; choose another",
        ));
    }
    match connect(&fresh(path)?, address) {
        // `AGAIN` means that the server's backlog is full.
        Ok(()) | Err(Errno::AGAIN) => {
            return Err(PortError::missing(
                what(path),
                "a path that no running program listens on (one listens on this path: stop it, choose \
                another path, or connect to it with role=client)",
            ));
        }
        Err(Errno::CONNREFUSED) => {
            std::fs::remove_file(path).map_err(|e| PortError::system(what(path), e))?;
            bind(socket, address).map_err(|e| PortError::system(what(path), e))?;
        }
        Err(e) => return Err(PortError::system(what(path), e)),
    }
    Ok(())
}

/// Accepts clients until the port is closed. A client may add `rx_rings` rings to receive from, and one ring to send
/// through for each worker.
pub(super) fn run(
    listener: &Listener,
    identity: &Identity,
    rx_rings: u16,
    handovers: &Handovers,
    stop: BorrowedFd<'_>,
) {
    let waiting = listener.waiting();
    loop {
        match wait(&[listener.socket.as_fd()], stop, None) {
            Err(_) => return,
            Ok([false]) => continue,
            Ok([true]) => {}
        }
        let Ok(socket) = listener.accept() else {
            // There are no free file descriptors, so the client cannot be accepted and the listening socket stays
            // readable. The pause avoids a busy loop.
            if wait(&[], stop, Some(ACCEPT_PAUSE_MS)).is_err() {
                return;
            }
            continue;
        };
        let channel = Channel::new(socket, stop);
        let end = match shake_hands(&channel, identity, rx_rings, handovers.0.len() as u16) {
            Ok(connection) => {
                let fault = Arc::clone(&connection.fault);
                handovers.publish(connection);
                // The message is sent after the connection is published, because the client offers buffers as soon as
                // it receives the message.
                match channel.send(
                    &Message::Connected {
                        interface: identity.interface(),
                    },
                    None,
                ) {
                    Ok(()) => watch(&channel, listener, &fault),
                    Err(e) => e,
                }
            }
            Err(e) => e,
        };
        match end {
            ChannelError::Stopping => {
                channel.disconnect("port closed");
                return;
            }
            ChannelError::Closed | ChannelError::Refused(_) => {}
            ref other => channel.disconnect(&other.to_string()),
        }
        handovers.withdraw(&format!("{waiting} (last one: {end})"));
    }
}

/// Serves an established connection until it ends; other clients are refused as the interface is in use.
fn watch(channel: &Channel<'_>, listener: &Listener, fault: &Fault) -> ChannelError {
    loop {
        match wait(
            &[channel.socket(), fault.file(), listener.socket.as_fd()],
            channel.stop(),
            None,
        ) {
            Err(e) => return e,
            Ok([from_client, from_data_path, from_listener]) => {
                if from_data_path && let Some(reason) = fault.reason() {
                    return ChannelError::Protocol(reason.to_string());
                }
                if from_client {
                    match channel.take() {
                        Ok((message, _)) => {
                            return ChannelError::Protocol(format!("unexpected {message:?}"));
                        }
                        Err(e) => return e,
                    }
                }
                if from_listener {
                    match listener.accept() {
                        Ok(socket) => {
                            Channel::new(socket, channel.stop()).disconnect("already connected");
                        }
                        Err(_) => {
                            if let Err(e) = wait(&[], channel.stop(), Some(ACCEPT_PAUSE_MS)) {
                                return e;
                            }
                        }
                    }
                }
            }
        }
    }
}

fn protocol<T>(text: impl Into<String>) -> Result<T, ChannelError> {
    Err(ChannelError::Protocol(text.into()))
}

fn system<T>(error: PortError) -> Result<T, ChannelError> {
    Err(ChannelError::System(error.to_string()))
}

/// Returns true if a peer's file is an event counter, the only kind of file that is safe to read and write whatever the
/// peer does with it.
fn is_event_counter(file: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|kind| kind == Path::new("anon_inode:[eventfd]"))
}

/// Performs the handshake with a client: announces the limits, admits the client, and accepts its regions and rings.
fn shake_hands(
    channel: &Channel<'_>,
    identity: &Identity,
    rx_rings: u16,
    tx_rings: u16,
) -> Result<Connection, ChannelError> {
    channel.send(
        &Message::Hello {
            name: APPLICATION_NAME.to_string(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: MAX_REGIONS - 1,
            max_s2c_ring: tx_rings - 1,
            max_c2s_ring: rx_rings - 1,
            max_log2_ring_size: MAX_LOG2_RING_SIZE,
        },
        None,
    )?;
    admit(channel, identity)?;
    Added::receive(channel, rx_rings, tx_rings)?.connection()
}

/// Receives the client's Init message, and admits the client if it requests the interface of this port.
fn admit(channel: &Channel<'_>, identity: &Identity) -> Result<(), ChannelError> {
    match channel.receive()?.0 {
        Message::Init {
            version,
            id,
            mode,
            secret,
            ..
        } => {
            if version != VERSION {
                return protocol(format!(
                    "memif version {}.{} instead of 2.0",
                    version >> 8,
                    version & 255
                ));
            }
            if mode != MODE_ETHERNET {
                return protocol(format!(
                    "interface mode {mode}: only Ethernet (0) is supported"
                ));
            }
            if id != identity.id {
                return Err(ChannelError::Mismatch(format!(
                    "a client requests interface id {id}, but this socket has id {}: set the same id= on both sides",
                    identity.id
                )));
            }
            if secret != identity.secret {
                return Err(ChannelError::Mismatch(
                    "a client has another secret: set the same secret= on both sides".to_owned(),
                ));
            }
            channel.send(&Message::Ack, None)
        }
        other => protocol(format!("expected Init, got {other:?}")),
    }
}

/// The regions and rings that a client has announced in the handshake, in the order of their indices.
#[derive(Default)]
struct Added {
    regions: Vec<Mapping>,
    client_to_server: Vec<RingPlace>,
    server_to_client: Vec<RingPlace>,
}

impl Added {
    /// Receives regions and rings until the client's Connect message.
    fn receive(channel: &Channel<'_>, rx_most: u16, tx_most: u16) -> Result<Self, ChannelError> {
        let mut added = Self::default();
        loop {
            match channel.receive()? {
                (Message::AddRegion { index, size_bytes }, Some(file)) => {
                    added.add_region(index, size_bytes, file)?;
                }
                (
                    Message::AddRing {
                        client_to_server,
                        index,
                        region,
                        offset_bytes,
                        log2_ring_size,
                    },
                    Some(interrupt),
                ) => {
                    let place = RingPlace {
                        region,
                        offset_bytes,
                        log2_size: log2_ring_size,
                        interrupt,
                    };
                    let (direction, most) = if client_to_server {
                        (&mut added.client_to_server, rx_most)
                    } else {
                        (&mut added.server_to_client, tx_most)
                    };
                    add_ring(direction, most, index, place)?;
                }
                (Message::Connect { .. }, _) => return Ok(added),
                (Message::AddRegion { .. } | Message::AddRing { .. }, None) => {
                    return protocol("a region or ring without its file descriptor");
                }
                (other, _) => {
                    return protocol(format!(
                        "expected a region, a ring or Connect, got {other:?}"
                    ));
                }
            }
            channel.send(&Message::Ack, None)?;
        }
    }

    /// Adds the region with index `index`, which must be one above the index of the region added before.
    fn add_region(
        &mut self,
        index: u16,
        size_bytes: u64,
        file: OwnedFd,
    ) -> Result<(), ChannelError> {
        if usize::from(index) != self.regions.len() || index >= MAX_REGIONS {
            return protocol(format!("region {index} out of order"));
        }
        let size = usize::try_from(size_bytes).or_else(|_| protocol("region too large"))?;
        let region = Mapping::adopt(file, size).or_else(|e| protocol(e.to_string()))?;
        self.regions.push(region);
        Ok(())
    }

    /// Returns the connection over these regions and rings, if each ring is inside its region and there is one in each
    /// direction.
    fn connection(self) -> Result<Connection, ChannelError> {
        if self.client_to_server.is_empty() || self.server_to_client.is_empty() {
            return protocol("Connect before a ring in each direction was added");
        }
        let fault = Fault::new().or_else(system)?;
        let guards = self
            .regions
            .iter()
            .map(|region| Guard::new(region.pages(), &fault).or_else(system))
            .collect::<Result<_, _>>()?;
        let connection = Connection {
            regions: Arc::new(Regions {
                _guards: guards,
                mapped: self.regions,
            }),
            pool_region: 1,
            client_to_server: self.client_to_server,
            server_to_client: self.server_to_client,
            fault,
        };
        let places = connection.client_to_server.iter();
        for place in places.chain(&connection.server_to_client) {
            match connection.ring(place) {
                Some(ring) if ring.has_cookie() => {}
                Some(_) => return protocol("a ring without the memif cookie"),
                None => return protocol("a ring outside its region"),
            }
        }
        Ok(connection)
    }
}

/// Adds the ring with index `index` to the rings of a direction. The index must be one above that of the ring added
/// before, and below `most`, the announced number of rings.
fn add_ring(
    direction: &mut Vec<RingPlace>,
    most: u16,
    index: u16,
    place: RingPlace,
) -> Result<(), ChannelError> {
    if !is_event_counter(&place.interrupt) {
        return protocol("a ring's interrupt file is no event counter (eventfd)");
    }
    if !(MIN_LOG2_RING_SIZE..=MAX_LOG2_RING_SIZE).contains(&place.log2_size) {
        return protocol(format!(
            "a ring of 2^{} descriptors: expected {} to {}",
            place.log2_size,
            1 << MIN_LOG2_RING_SIZE,
            1 << MAX_LOG2_RING_SIZE
        ));
    }
    if usize::from(index) != direction.len() || index >= most {
        return protocol(format!(
            "ring {index}: the maximum in that direction is {most}, numbered in order"
        ));
    }
    direction.push(place);
    Ok(())
}
