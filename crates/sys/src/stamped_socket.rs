//! Datagrams of ordinary sockets with the time at which the kernel had them (`SO_TIMESTAMPNS` of socket(7)).

use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Room for a stamp behind its header; whole words, as headers are aligned to them.
const CONTROL_WORDS: usize = 8;

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
        let wanted = unsafe { libc::CMSG_LEN(size_of::<libc::timespec>() as u32) } as usize;
        if kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) && length >= wanted {
            // SAFETY: the header says that as many bytes lie behind it; they need not be aligned.
            let at: libc::timespec = unsafe {
                libc::CMSG_DATA(header)
                    .cast::<libc::timespec>()
                    .read_unaligned()
            };
            let seconds = u64::try_from(at.tv_sec).ok()?;
            return Some(Duration::new(seconds, u32::try_from(at.tv_nsec).ok()?));
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
}
