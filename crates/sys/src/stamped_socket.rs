//! Datagrams of normal sockets with kernel timestamps: of arrival (`SO_TIMESTAMPNS` of socket(7)), and of departure
//! (`SO_TIMESTAMPING`, the kernel's documentation, networking/timestamping).

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The space for control messages (headers and timestamps), in words, because headers are aligned to words.
const CONTROL_WORDS: usize = 24;

/// Enables timestamps of arrival on `socket`. If no other socket had them enabled, the kernel starts to timestamp
/// arrivals some milliseconds later; until then it timestamps datagrams when they are read.
///
/// # Errors
/// The kernel does not support these timestamps.
pub fn stamp_arrivals(socket: &UdpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int that outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The timestamp of a sent datagram at one point of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// Number of datagrams that the socket has sent before this one, since timestamps were enabled.
    pub number: u32,
    /// Point of the path at which the kernel took the timestamp.
    pub at: Station,
    /// Time of the timestamp, since 1970.
    pub stamp: Duration,
}

/// A point at which the kernel takes a timestamp of a sent datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Station {
    /// The entry to the queue of the interface, after the whole network stack.
    Queue,
    /// The driver, which passes the datagram to the device.
    Driver,
}

/// Enables timestamps of the datagrams that are sent through `socket`; the kernel numbers these datagrams from 0. The
/// timestamps must be read with [`departure`]: while any is waiting, a poll of the socket returns immediately.
///
/// # Errors
/// The kernel does not support these timestamps.
pub fn stamp_departures(socket: &UdpSocket) -> io::Result<()> {
    let wanted: libc::c_uint = libc::SOF_TIMESTAMPING_TX_SCHED
        | libc::SOF_TIMESTAMPING_TX_SOFTWARE
        | libc::SOF_TIMESTAMPING_SOFTWARE
        | libc::SOF_TIMESTAMPING_OPT_ID
        | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    // SAFETY: the option's value is an int that outlives the call, and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPING,
            (&raw const wanted).cast(),
            size_of::<libc::c_uint>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Reads the timestamp of a sent datagram; None if no timestamp is waiting.
///
/// # Errors
/// The socket is closed.
pub fn departure(socket: &UdpSocket) -> io::Result<Option<Departure>> {
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: the structure contains only numbers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message points to memory of this process, which has the length that the message states and outlives
    // the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if length < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    let stamp = first::<libc::timespec>(&message, |kind| {
        kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)
    });
    let about = first::<libc::sock_extended_err>(&message, |kind| {
        kind == (libc::SOL_IP, libc::IP_RECVERR) || kind == (libc::SOL_IPV6, libc::IPV6_RECVERR)
    });
    Ok(stamp.zip(about).and_then(|(stamp, about)| {
        let at = match about.ee_info {
            DRIVER => Station::Driver,
            QUEUE => Station::Queue,
            _ => return None,
        };
        let is_stamp = about.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING;
        is_stamp.then_some(())?;
        Some(Departure {
            number: about.ee_data,
            at,
            stamp: since_1970(stamp)?,
        })
    }))
}

/// The kernel's numbers of two kinds of timestamps: `SCM_TSTAMP_SND` at the driver, `SCM_TSTAMP_SCHED` at the queue.
const DRIVER: u32 = 0;
const QUEUE: u32 = 1;

/// Receives a datagram. Returns its length, and its kernel timestamp (since 1970) if there is one. A datagram that does
/// not fit is truncated.
///
/// # Errors
/// The errors are those of `UdpSocket::recv`.
pub fn receive_stamped(
    socket: &UdpSocket,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<Duration>)> {
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: the structure contains only numbers and pointers, for which zero is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to memory of this process, which has the lengths that the message states and outlives
    // the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok((length, stamp(&message)))
}

/// Returns the kernel's arrival timestamp of a received message; none if the message has none.
fn stamp(message: &libc::msghdr) -> Option<Duration> {
    let at = first::<libc::timespec>(message, |kind| {
        kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)
    });
    at.and_then(since_1970)
}

fn since_1970(at: libc::timespec) -> Option<Duration> {
    let seconds = u64::try_from(at.tv_sec).ok()?;
    Some(Duration::new(seconds, u32::try_from(at.tv_nsec).ok()?))
}

/// A type that the kernel writes into a control message, for which any bytes are a valid value.
trait Plain: Copy {}
impl Plain for libc::timespec {}
impl Plain for libc::sock_extended_err {}

/// Returns the payload of the first control message of the given level and type, in a message that the kernel has
/// filled.
fn first<T: Plain>(
    message: &libc::msghdr,
    is_wanted: impl Fn((libc::c_int, libc::c_int)) -> bool,
) -> Option<T> {
    // SAFETY: the kernel has set `msg_controllen` to what it wrote into `msg_control`, which is still there.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: the header is within the bytes that the kernel wrote, because the macros return only complete
        // headers.
        let (kind, length) = unsafe {
            (
                ((*header).cmsg_level, (*header).cmsg_type),
                (*header).cmsg_len,
            )
        };
        // SAFETY: the macro only computes a number.
        let wanted = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as usize;
        if is_wanted(kind) && length >= wanted {
            // SAFETY: according to the header, a payload of the size of `T` follows it. Any bytes are a valid value,
            // and they need not be aligned.
            return Some(unsafe { libc::CMSG_DATA(header).cast::<T>().read_unaligned() });
        }
        // SAFETY: as for `CMSG_FIRSTHDR` above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::SystemTime;

    fn now() -> Duration {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
    }

    #[test]
    fn a_datagram_is_received_with_length_and_arrival_timestamp() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut bytes = [0; 16];
        far.send_to(b"plain", near.local_addr().unwrap()).unwrap();
        let (length, stamp) = receive_stamped(&near, &mut bytes).unwrap();
        assert_eq!((&bytes[..length], stamp), (&b"plain"[..], None));
        stamp_arrivals(&near).unwrap();
        // The first datagrams may be stamped late.
        let mut waited = Duration::ZERO;
        for _ in 0..100 {
            let before = now();
            far.send_to(b"stamped", near.local_addr().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let (length, stamp) = receive_stamped(&near, &mut bytes).unwrap();
            assert_eq!(&bytes[..length], b"stamped");
            let stamp = stamp.unwrap();
            waited = now().saturating_sub(stamp);
            if stamp >= before && waited >= Duration::from_millis(15) {
                break;
            }
        }
        assert!(waited >= Duration::from_millis(15), "{waited:?}");
        near.set_nonblocking(true).unwrap();
        let none = receive_stamped(&near, &mut bytes).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn sent_datagrams_have_queue_and_driver_timestamps_in_order() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = far.local_addr().unwrap();
        near.send_to(b"before", to).unwrap();
        assert_eq!(departure(&near).unwrap(), None);
        stamp_departures(&near).unwrap();
        for number in 0..3 {
            let before = now();
            near.send_to(b"stamped", to).unwrap();
            let mut seen = Vec::new();
            let begun = std::time::Instant::now();
            while seen.len() < 2 && begun.elapsed() < Duration::from_secs(20) {
                seen.extend(departure(&near).unwrap());
            }
            seen.sort_by_key(|it| it.stamp);
            assert_eq!(
                seen.iter().map(|it| (it.number, it.at)).collect::<Vec<_>>(),
                [(number, Station::Queue), (number, Station::Driver)]
            );
            assert!(seen[0].stamp >= before && seen[1].stamp <= now());
        }
        // Receiving through the same socket still works.
        far.send_to(b"back", near.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(receive_stamped(&near, &mut bytes).unwrap().0, 4);
    }
}
