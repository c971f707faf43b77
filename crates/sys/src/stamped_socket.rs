//! Datagrams of ordinary sockets with the time at which the kernel had them (`SO_TIMESTAMPNS` of socket(7)), and what
//! was sent with the times at which it went on (`SO_TIMESTAMPING`, the kernel's documentation,
//! networking/timestamping).

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Room for a stamp behind its header; whole words, as headers are aligned to them.
const CONTROL_WORDS: usize = 24;

/// Asks for stamps on what arrives at `socket`. Where nobody else has asked before, the kernel begins some milliseconds later, and until
/// then stamps datagrams when they are read.
///
/// # Errors
/// The kernel has none.
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

/// When a datagram that was sent went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// How many were sent before it since stamps were asked for.
    pub number: u32,
    /// Where it was.
    pub at: Station,
    /// When, since 1970.
    pub stamp: Duration,
}

/// Where the kernel stamps what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Station {
    /// On its way into the queue of the interface, behind all of the stack.
    Queue,
    /// At the driver, which hands it to the device.
    Driver,
}

/// Asks for stamps on what is sent through `socket`, which numbers it from 0 on. Stamps are to be taken by
/// [`departure`]: as long as any are there, whoever polls the socket is woken at once.
///
/// # Errors
/// The kernel has none.
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

/// Takes a stamp of what was sent; none if there is none now.
///
/// # Errors
/// The socket is gone.
pub fn departure(socket: &UdpSocket) -> io::Result<Option<Departure>> {
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message points to memory of ours, of the length that it says, that outlives the call.
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

/// Kinds of stamps, as the kernel numbers them: `SCM_TSTAMP_SND` and `SCM_TSTAMP_SCHED`.
const DRIVER: u32 = 0;
const QUEUE: u32 = 1;

/// Receives a datagram: its length, and when the kernel had it (since 1970), if it says so. What does not fit is cut off.
///
/// # Errors
/// As `UdpSocket::recv`.
pub fn receive_stamped(
    socket: &UdpSocket,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<Duration>)> {
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the message points to memory of ours, of the lengths that it says, that outlives the call.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok((length, stamp(&message)))
}

/// The first stamp of a message that the kernel has filled.
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

/// What the kernel writes beside a datagram, of which any bytes are a value.
trait Plain: Copy {}
impl Plain for libc::timespec {}
impl Plain for libc::sock_extended_err {}

/// What the first header of a message that the kernel has filled carries, of those of a wanted kind (level and type).
fn first<T: Plain>(
    message: &libc::msghdr,
    is_wanted: impl Fn((libc::c_int, libc::c_int)) -> bool,
) -> Option<T> {
    // SAFETY: the kernel has set `msg_controllen` to what it wrote into `msg_control`, which is still there.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: within what the kernel wrote, as the macros only give whole headers.
        let (kind, length) = unsafe {
            (
                ((*header).cmsg_level, (*header).cmsg_type),
                (*header).cmsg_len,
            )
        };
        // SAFETY: a calculation.
        let wanted = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as usize;
        if is_wanted(kind) && length >= wanted {
            // SAFETY: the header says that as many bytes lie behind it, any of which are a value; they need not be
            // aligned.
            return Some(unsafe { libc::CMSG_DATA(header).cast::<T>().read_unaligned() });
        }
        // SAFETY: as for the first one.
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
    fn a_datagram_has_its_length_and_a_stamp_between_sending_and_reading() {
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut bytes = [0; 16];
        far.send_to(b"plain", near.local_addr().unwrap()).unwrap();
        let (length, stamp) = receive_stamped(&near, &mut bytes).unwrap();
        assert_eq!((&bytes[..length], stamp), (&b"plain"[..], None));
        stamp_arrivals(&near).unwrap();
        // The first ones may be stamped late.
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
    fn what_was_sent_has_a_stamp_of_the_queue_and_one_of_the_driver_in_order() {
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
        // Whoever receives through the same socket still does.
        far.send_to(b"back", near.local_addr().unwrap()).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(receive_stamped(&near, &mut bytes).unwrap().0, 4);
    }
}
