//! The client's control thread: connects, offers rings and the packet pool, and reconnects when the server has exited.

use super::channel::{Channel, ChannelError, wait};
use super::connection::{Connection, Handovers, Regions, RingPlace};
use super::fault::{Fault, interrupt_file};
use super::message::{MODE_ETHERNET, Message, VERSION};
use super::ring::{MIN_LOG2_RING_SIZE, Ring};
use super::{APPLICATION_NAME, Identity};
use crate::PortError;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_sys::Mapping;

/// The interval between two attempts to reach a server, ms.
const RETRY_MS: i64 = 20;

/// The memory that a client offers in addition to its rings: the packet pools of its workers, so that frames pass
/// without a copy.
pub(super) struct Offer {
    pub(super) path: PathBuf,
    pub(super) log2_ring_size: u8,
    /// Number of rings to receive from; the server may accept fewer.
    pub(super) rx_rings: u16,
    /// The pool of each worker: its file, and its size in bytes. Each worker has one ring to send through.
    pub(super) pools: Vec<(Arc<OwnedFd>, usize)>,
}

/// Runs the control thread until the port is closed.
pub(super) fn run(offer: &Offer, identity: &Identity, handovers: &Handovers, stop: BorrowedFd<'_>) {
    let mut last = String::new();
    loop {
        let end = match reach(&offer.path) {
            Ok(socket) => {
                let channel = Channel::new(socket, stop);
                match shake_hands(&channel, offer, identity) {
                    Ok(connection) => {
                        // `last` is cleared, so that the end of this connection is reported even if the previous
                        // connection ended for the same reason.
                        last.clear();
                        watch(&channel, connection, handovers)
                    }
                    Err(e) => {
                        if matches!(e, ChannelError::Protocol(_) | ChannelError::Stopping) {
                            channel.disconnect(&e.to_string());
                        }
                        e
                    }
                }
            }
            Err(e) => ChannelError::System(why_unreachable(&offer.path, e)),
        };
        if matches!(end, ChannelError::Stopping) {
            return;
        }
        let note = format!(
            "waiting for the memif server at {} ({end})",
            offer.path.display()
        );
        if note != last {
            handovers.withdraw(&note);
            last = note;
        }
        if wait(&[], stop, Some(RETRY_MS)).is_err() {
            return;
        }
    }
}

fn reach(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        // Non-blocking, because a server that does not accept must not block this thread.
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn why_unreachable(path: &Path, e: Errno) -> String {
    match e {
        Errno::NOENT => "no such socket yet: start the server first, or check the path".to_string(),
        Errno::AGAIN => "too many clients are waiting: the server accepts none".to_string(),
        Errno::CONNREFUSED => "nothing listens on it: the server has exited".to_string(),
        Errno::ACCESS | Errno::PERM => {
            use std::os::unix::fs::MetadataExt;
            let owner = std::fs::metadata(path).map_or_else(
                |_| "another user".to_string(),
                |m| format!("user {}", m.uid()),
            );
            format!("no permission: the socket belongs to {owner}; run as that user or as root")
        }
        e => std::io::Error::from(e).to_string(),
    }
}

/// Passes the connection to the data path and watches it until it ends.
fn watch(channel: &Channel<'_>, connection: Connection, handovers: &Handovers) -> ChannelError {
    let fault = Arc::clone(&connection.fault);
    handovers.publish(connection);
    loop {
        match wait(&[channel.socket(), fault.file()], channel.stop(), None) {
            Ok([false, false]) => {}
            Ok([_, true]) => {
                let end = ChannelError::Protocol(fault.reason().unwrap_or_default().to_string());
                channel.disconnect(&end.to_string());
                return end;
            }
            Ok([true, false]) => match channel.take() {
                Ok((message, _)) => {
                    return ChannelError::Protocol(format!("unexpected {message:?}"));
                }
                Err(e) => return e,
            },
            Err(e) => {
                channel.disconnect("port closed");
                return e;
            }
        }
    }
}

/// Performs the handshake with a server: agrees on the rings, makes them, and offers their memory and that of the
/// pools.
fn shake_hands(
    channel: &Channel<'_>,
    offer: &Offer,
    identity: &Identity,
) -> Result<Connection, ChannelError> {
    let rings = agree(channel.receive()?.0, offer)?;
    channel.send(
        &Message::Init {
            version: VERSION,
            id: identity.id,
            mode: MODE_ETHERNET,
            secret: identity.secret.clone(),
            name: APPLICATION_NAME.to_string(),
        },
        None,
    )?;
    channel.expect_ack()?;
    let connection = make_rings(&rings)?;
    add_regions(channel, &connection, offer)?;
    add_rings(channel, &connection)?;
    channel.send(
        &Message::Connect {
            interface: identity.interface(),
        },
        None,
    )?;
    match channel.receive()?.0 {
        Message::Connected { .. } => Ok(connection),
        other => Err(ChannelError::Protocol(format!(
            "expected Connected, got {other:?}"
        ))),
    }
}

/// The rings that client and server have agreed on: their size, the number of rings to send through, and the number of
/// rings to receive from.
struct Rings {
    log2_size: u8,
    tx: u16,
    rx: u16,
}

/// Returns the rings that a server with this Hello message accepts, at most the offered ones.
fn agree(greeting: Message, offer: &Offer) -> Result<Rings, ChannelError> {
    match greeting {
        Message::Hello {
            min_version,
            max_version,
            max_region,
            max_s2c_ring,
            max_c2s_ring,
            max_log2_ring_size,
            ..
        } => {
            if min_version > VERSION || max_version < VERSION {
                return Err(ChannelError::Protocol(
                    "the server does not speak memif 2.0".to_string(),
                ));
            }
            if max_log2_ring_size < MIN_LOG2_RING_SIZE {
                return Err(ChannelError::Protocol(format!(
                    "the server accepts rings of at most 2^{max_log2_ring_size} descriptors: {} are needed",
                    1 << MIN_LOG2_RING_SIZE
                )));
            }
            if usize::from(max_region) < offer.pools.len() {
                return Err(ChannelError::Protocol(format!(
                    "the server accepts {} regions, but {} are needed",
                    u32::from(max_region) + 1,
                    offer.pools.len() + 1
                )));
            }
            Ok(Rings {
                log2_size: offer.log2_ring_size.min(max_log2_ring_size),
                tx: (offer.pools.len() as u16).min(max_c2s_ring.saturating_add(1)),
                rx: offer.rx_rings.min(max_s2c_ring.saturating_add(1)),
            })
        }
        other => Err(ChannelError::Protocol(format!(
            "expected Hello, got {other:?}"
        ))),
    }
}

fn system(error: PortError) -> ChannelError {
    ChannelError::System(error.to_string())
}

/// Makes the rings, all of them in one region, and their connection.
fn make_rings(rings: &Rings) -> Result<Connection, ChannelError> {
    let Rings { log2_size, tx, rx } = *rings;
    let ring_bytes = Ring::bytes(log2_size).next_multiple_of(4096);
    let bytes = usize::from(tx + rx) * ring_bytes;
    let memory = Mapping::create_small("taut-rings", bytes).map_err(|e| system(e.into()))?;
    let place = |nth: u16| -> Result<RingPlace, ChannelError> {
        Ok(RingPlace {
            region: 0,
            offset_bytes: (usize::from(nth) * ring_bytes) as u32,
            log2_size,
            interrupt: interrupt_file().map_err(system)?,
        })
    };
    let connection = Connection {
        regions: Arc::new(Regions {
            _guards: Vec::new(),
            mapped: vec![memory],
        }),
        pool_region: 1,
        client_to_server: (0..tx).map(place).collect::<Result<_, _>>()?,
        server_to_client: (tx..tx + rx).map(place).collect::<Result<_, _>>()?,
        fault: Fault::new().map_err(system)?,
    };
    let places = connection.client_to_server.iter();
    for place in places.chain(&connection.server_to_client) {
        if let Some(ring) = connection.ring(place) {
            ring.initialise();
        }
    }
    Ok(connection)
}

/// Announces the region of the rings, followed by the region of each worker's pool.
fn add_regions(
    channel: &Channel<'_>,
    connection: &Connection,
    offer: &Offer,
) -> Result<(), ChannelError> {
    let rings = connection.regions.mapped.iter();
    let rings = rings.map(|region| (region.fd(), region.len()));
    let regions = rings.chain(offer.pools.iter().cloned());
    for (index, (file, size)) in regions.enumerate() {
        channel.send(
            &Message::AddRegion {
                index: index as u16,
                size_bytes: size as u64,
            },
            Some(file.as_fd()),
        )?;
        channel.expect_ack()?;
    }
    Ok(())
}

/// Announces the rings: those to send through, then those to receive from.
fn add_rings(channel: &Channel<'_>, connection: &Connection) -> Result<(), ChannelError> {
    let tx_rings = (0..).zip(&connection.client_to_server);
    let rx_rings = (0..).zip(&connection.server_to_client);
    let all = tx_rings.map(|ring| (true, ring));
    let all = all.chain(rx_rings.map(|ring| (false, ring)));
    for (client_to_server, (index, place)) in all {
        channel.send(
            &Message::AddRing {
                client_to_server,
                index,
                region: place.region,
                offset_bytes: place.offset_bytes,
                log2_ring_size: place.log2_size,
            },
            Some(place.interrupt.as_fd()),
        )?;
        channel.expect_ack().map_err(|e| match e {
            // DPDK announces more rings than it accepts.
            ChannelError::Refused(why) if index > 0 => {
                ChannelError::Refused(format!("{why}; it accepts at most queues={index}"))
            }
            other => other,
        })?;
    }
    Ok(())
}
