//! Packet socket that sends frames on chosen interfaces and receives those of one EtherType on all interfaces of the
//! network namespace (packet(7)).

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;
use std::mem::{size_of, zeroed};
use std::time::{Duration, Instant};

/// A packet socket for the frames of one EtherType.
#[derive(Debug)]
pub struct LinkSocket {
    socket: OwnedFd,
    ethertype: u16,
}

/// A frame that a [`LinkSocket`] has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Length of the frame, bytes; a longer frame than the buffer is truncated.
    pub len_bytes: usize,
    /// Index of the interface on which the frame arrived.
    pub interface: u32,
}

impl LinkSocket {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// The kernel's error, `EPERM` without CAP_NET_RAW.
    pub fn open(ethertype: u16) -> io::Result<Self> {
        let protocol = libc::c_int::from(ethertype.to_be());
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call has no pointers.
        let socket = unsafe { libc::socket(libc::AF_PACKET, kind, protocol) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the kernel has just opened this descriptor for the caller alone.
            socket: unsafe { OwnedFd::from_raw_fd(socket) },
            ethertype,
        })
    }

    /// Receives frames to a multicast address on the interface with index `interface`, as long as the socket is open.
    ///
    /// # Errors
    /// The kernel's error, `ENODEV` without such an interface.
    pub fn join(&self, interface: u32, address: [u8; 6]) -> io::Result<()> {
        let mut request = libc::packet_mreq {
            mr_ifindex: interface.cast_signed(),
            mr_type: libc::PACKET_MR_MULTICAST as libc::c_ushort,
            mr_alen: 6,
            mr_address: [0; 8],
        };
        request.mr_address[..6].copy_from_slice(&address);
        // SAFETY: the option's value is one `packet_mreq` that outlives the call, and its size is given.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const request).cast(),
                size_of::<libc::packet_mreq>() as libc::socklen_t,
            )
        };
        done(result as isize).map(drop)
    }

    /// Sends a frame on the interface with index `interface`.
    ///
    /// # Errors
    /// The kernel's error: `ENETDOWN` if the interface is down, `ENXIO` without such an interface.
    pub fn send(&self, interface: u32, frame: &[u8]) -> io::Result<()> {
        // SAFETY: a `sockaddr_ll` is plain data; all zeroes is a valid one.
        let mut to: libc::sockaddr_ll = unsafe { zeroed() };
        to.sll_family = libc::AF_PACKET as libc::c_ushort;
        to.sll_protocol = self.ethertype.to_be();
        to.sll_ifindex = interface.cast_signed();
        // SAFETY: frame and address outlive the call, and their sizes are given.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        done(sent).map(drop)
    }

    /// Receives a frame; `None` if none arrives by `until`.
    ///
    /// # Errors
    /// The kernel's error, except `ENETDOWN`, which the kernel reports once after an interface went down.
    pub fn receive(&self, bytes: &mut [u8], until: Instant) -> io::Result<Option<Arrival>> {
        loop {
            match self.take(bytes) {
                Ok(Some(arrival)) => return Ok(Some(arrival)),
                // The frame is an outgoing one of this machine.
                Ok(None) => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => continue,
                Err(e) => return Err(e),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait(self.socket.as_fd(), left)?;
        }
    }

    fn take(&self, bytes: &mut [u8]) -> io::Result<Option<Arrival>> {
        // SAFETY: as above.
        let mut from: libc::sockaddr_ll = unsafe { zeroed() };
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the buffer, the address and its size are this process's memory of the given sizes.
        let length = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
                (&raw mut from).cast(),
                &raw mut size,
            )
        };
        let len_bytes = done(length)?;
        Ok(
            (from.sll_pkttype != libc::PACKET_OUTGOING).then(|| Arrival {
                len_bytes,
                interface: from.sll_ifindex.cast_unsigned(),
            }),
        )
    }
}

fn wait(socket: BorrowedFd<'_>, left: Duration) -> io::Result<()> {
    let time = rustix::time::Timespec {
        tv_sec: left.as_secs().min(3600) as i64,
        tv_nsec: left.subsec_nanos().into(),
    };
    let mut waiting = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    match poll(&mut waiting, Some(&time)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Returns the length that a call returned, or the kernel's error.
fn done(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
