//! UDP sockets, as all that carry messages make them.

use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Room asked for in the socket's queues, bytes; the kernel gives what it allows.
const QUEUE_BYTES: usize = 4 << 20;

/// An address of this machine for what is sent to `to`, with any port.
pub fn any_address_to(to: SocketAddr) -> SocketAddr {
    match to {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
    }
}

/// A UDP socket that never blocks, with long queues: a machine that takes the core away for milliseconds must not make losses of
/// its own.
pub(super) fn udp_socket(bind: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(bind)?;
    socket.set_nonblocking(true)?;
    widen(&socket);
    Ok(socket)
}

/// Whether an error says that there is nothing, or no room, now.
pub(super) fn is_for_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Asks for longer queues: a machine that takes the core away for milliseconds must not make losses of its own.
pub(crate) fn widen(socket: &UdpSocket) {
    // Refused or cut, they are as long as the system allows.
    let _ = sockopt::set_socket_recv_buffer_size(socket, QUEUE_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(socket, QUEUE_BYTES);
}
