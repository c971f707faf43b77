//! UDP sockets for the transports of messages.

use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Requested size of the socket's queues, bytes; the kernel may limit it.
const QUEUE_BYTES: usize = 4 << 20;

/// Returns the unspecified address, with any port, of the IP version of `to`.
pub fn any_address_to(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    }
}

/// Opens a non-blocking UDP socket with long queues, so that a preemption of milliseconds causes no losses.
pub(super) fn udp_socket(bind: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(bind)?;
    socket.set_nonblocking(true)?;
    widen(&socket);
    Ok(socket)
}

/// Returns true if an error only means that there are no data, or no space, at the moment.
pub(super) fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Requests longer queues for a socket, so that a preemption of milliseconds causes no losses.
pub(crate) fn widen(socket: &UdpSocket) {
    // If the kernel refuses or limits the request, the queues are as long as the system allows.
    let _ = sockopt::set_socket_recv_buffer_size(socket, QUEUE_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(socket, QUEUE_BYTES);
}
