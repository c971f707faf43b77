//! Datagrams that one system call receives or sends together (`recvmmsg`(2), `sendmmsg`(2)). Datagrams of equal length
//! to the same address pass the kernel as one datagram, which the kernel splits on sending (`UDP_SEGMENT`, `udp`(7)).

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

/// The maximum number of datagrams per call.
pub const DATAGRAMS_AT_A_TIME: usize = 16;

/// The maximum number of payload bytes that pass the kernel as one datagram: the payload of the longest datagram over
/// IPv4.
const MOST_AS_ONE: usize = 65_507;

/// The control message for a payload that is to be split: its header, and the bytes of each datagram.
#[repr(C)]
struct Segments {
    header: libc::cmsghdr,
    bytes: u16,
}

/// The bytes of an IPv6 address structure, which is the longest one.
const NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// An address in the kernel's format: family, port, address; for IPv6 with the flow information before and the scope
/// identifier after the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
struct Name {
    bytes: [u8; NAME_BYTES],
    length: u32,
}

const NO_NAME: Name = Name {
    bytes: [0; NAME_BYTES],
    length: 0,
};

impl Name {
    fn address(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let part = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        match libc::c_int::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
            libc::AF_INET => Some((IpAddr::V4(Ipv4Addr::from(part(4))), port).into()),
            libc::AF_INET6 => {
                let mut address = [0; 16];
                address.copy_from_slice(&bytes[8..24]);
                let flow = u32::from_be_bytes(part(4));
                let scope = u32::from_ne_bytes(part(24));
                let address = Ipv6Addr::from(address);
                Some(SocketAddrV6::new(address, port, flow, scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for Name {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; NAME_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..][..field.len()].copy_from_slice(field);
        put(2, &address.port().to_be_bytes());
        let length = match address {
            SocketAddr::V4(address) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &SocketAddrV4::ip(&address).octets());
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(4, &address.flowinfo().to_be_bytes());
                put(8, &address.ip().octets());
                put(24, &address.scope_id().to_ne_bytes());
                NAME_BYTES
            }
        };
        Self {
            bytes,
            length: length as u32,
        }
    }
}

/// A buffer for several received or outgoing datagrams of up to `BYTES` bytes each, with their addresses.
#[derive(Debug)]
pub struct Datagrams<const BYTES: usize> {
    bytes: Box<[[u8; BYTES]]>,
    names: Box<[Name]>,
    lengths: [usize; DATAGRAMS_AT_A_TIME],
    count: usize,
    /// True until the kernel refuses to split a datagram; from then on, each datagram is passed separately.
    is_cut_up: bool,
}

impl<const BYTES: usize> Default for Datagrams<BYTES> {
    fn default() -> Self {
        Self {
            bytes: vec![[0; BYTES]; DATAGRAMS_AT_A_TIME].into(),
            names: vec![NO_NAME; DATAGRAMS_AT_A_TIME].into(),
            lengths: [0; DATAGRAMS_AT_A_TIME],
            count: 0,
            is_cut_up: true,
        }
    }
}

impl<const BYTES: usize> Datagrams<BYTES> {
    /// Returns the number of datagrams in the buffer.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns true if the buffer contains no datagrams.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the buffer is full.
    pub fn is_full(&self) -> bool {
        self.count == DATAGRAMS_AT_A_TIME
    }

    /// Returns one datagram with its address; None if the address family is unknown.
    ///
    /// # Panics
    /// Panics if there is no datagram `at`.
    pub fn get(&self, at: usize) -> Option<(&[u8], SocketAddr)> {
        assert!(at < self.count, "a datagram that is there");
        let address = self.names[at].address()?;
        Some((&self.bytes[at][..self.lengths[at]], address))
    }

    /// Adds a datagram for `to`. `write` writes its payload and returns the length. Returns false and adds nothing if
    /// the buffer is full or `write` returns None.
    pub fn add(
        &mut self,
        to: SocketAddr,
        write: impl FnOnce(&mut [u8; BYTES]) -> Option<usize>,
    ) -> bool {
        if self.is_full() {
            return false;
        }
        let Some(length) = write(&mut self.bytes[self.count]) else {
            return false;
        };
        self.lengths[self.count] = length.min(BYTES);
        self.names[self.count] = to.into();
        self.count += 1;
        true
    }

    /// Replaces the contents by the received datagrams, at most `at_most`. The call does not wait if the socket is
    /// non-blocking. Datagrams longer than `BYTES` are truncated. If fewer than `at_most` datagrams are returned, no
    /// more were waiting.
    ///
    /// # Errors
    /// The errors are those of `UdpSocket::recv_from`.
    pub fn receive(&mut self, socket: &UdpSocket, at_most: usize) -> io::Result<usize> {
        let at_most = at_most.min(DATAGRAMS_AT_A_TIME);
        self.count = 0;
        self.lengths[..at_most].fill(BYTES);
        let names = self.names[..at_most].iter_mut();
        names.for_each(|it| it.length = NAME_BYTES as u32);
        let runs = [1; DATAGRAMS_AT_A_TIME];
        let found = self.call(0, &runs[..at_most], |messages, count| {
            let socket = socket.as_raw_fd();
            // A blocking socket waits only for the first datagram.
            let flags = libc::MSG_WAITFORONE;
            // SAFETY: there are `count` headers; their addresses and lengths describe memory of this process that is
            // not shared and outlives the call.
            unsafe { libc::recvmmsg(socket, messages, count, flags, std::ptr::null_mut()) }
        })?;
        self.count = found;
        Ok(found)
    }

    /// Sends all datagrams in order, and empties the buffer. Returns the number of datagrams that the kernel refused.
    pub fn send(&mut self, socket: &UdpSocket) -> usize {
        let (mut at, mut refused) = (0, 0);
        while at < self.count {
            let mut runs = [0; DATAGRAMS_AT_A_TIME];
            let (mut messages, mut behind) = (0, at);
            while behind < self.count {
                runs[messages] = self.run(behind);
                behind += runs[messages];
                messages += 1;
            }
            let sent = self.call(at, &runs[..messages], |messages, count| {
                let socket = socket.as_raw_fd();
                // SAFETY: there are `count` headers; their addresses and lengths describe memory of this process that
                // outlives the call.
                unsafe { libc::sendmmsg(socket, messages, count, 0) }
            });
            match sent {
                Ok(sent) if sent > 0 => at += runs[..sent].iter().sum::<usize>(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A datagram exceeds the path MTU, or the device cannot split it. The datagrams may pass one by one.
                Err(e) if runs[0] > 1 && is_of_cutting(&e) => self.is_cut_up = false,
                // The error applies to the first datagram.
                _ => {
                    at += runs[0];
                    refused += runs[0];
                }
            }
        }
        self.count = 0;
        refused
    }

    /// Returns the number of datagrams from `at` that can pass the kernel as one: with the same address and length,
    /// except that the last one may be shorter.
    fn run(&self, at: usize) -> usize {
        let (name, length) = (self.names[at], self.lengths[at]);
        if !self.is_cut_up || length == 0 {
            return 1;
        }
        let mut run = 1;
        while at + run < self.count && self.lengths[at + run - 1] == length {
            let next = self.lengths[at + run];
            let is_alike = self.names[at + run] == name && (1..=length).contains(&next);
            if !is_alike || (run + 1) * length > MOST_AS_ONE {
                break;
            }
            run += 1;
        }
        run
    }

    /// Calls the system with one message header per run. A run is a number of successive datagrams that pass as one;
    /// the first run begins at `from`. After the call, the length of each datagram that is a run by itself is the
    /// length that the system returned.
    fn call(
        &mut self,
        from: usize,
        runs: &[usize],
        call: impl FnOnce(*mut libc::mmsghdr, libc::c_uint) -> libc::c_int,
    ) -> io::Result<usize> {
        // SAFETY: the structures contain only numbers and pointers, for which zero is a valid value.
        let (mut messages, mut parts, mut segments): (
            [libc::mmsghdr; DATAGRAMS_AT_A_TIME],
            [libc::iovec; DATAGRAMS_AT_A_TIME],
            [Segments; DATAGRAMS_AT_A_TIME],
        ) = unsafe { zeroed() };
        let bytes = self.bytes[from..].iter_mut().zip(&self.lengths[from..]);
        let count = runs.iter().sum();
        for (part, (bytes, length)) in parts.iter_mut().zip(bytes).take(count) {
            *part = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: *length,
            };
        }
        let mut at = 0;
        for (run, (message, segments)) in runs.iter().zip(messages.iter_mut().zip(&mut segments)) {
            let name = &mut self.names[from + at];
            let header = &mut message.msg_hdr;
            header.msg_name = name.bytes.as_mut_ptr().cast();
            header.msg_namelen = name.length;
            if *run > 1 {
                segments.header.cmsg_len = size_of::<libc::cmsghdr>() + size_of::<u16>();
                segments.header.cmsg_level = libc::SOL_UDP;
                segments.header.cmsg_type = libc::UDP_SEGMENT;
                segments.bytes = self.lengths[from + at] as u16;
                header.msg_control = (&raw mut *segments).cast();
                header.msg_controllen = size_of::<Segments>();
            }
            header.msg_iov = &raw mut parts[at];
            header.msg_iovlen = *run;
            at += run;
        }
        let done = call(messages.as_mut_ptr(), runs.len() as libc::c_uint);
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error())?;
        let mut at = from;
        for (run, message) in runs.iter().zip(&messages).take(done) {
            if *run == 1 {
                self.lengths[at] = (message.msg_len as usize).min(BYTES);
            }
            at += run;
        }
        Ok(done.min(runs.len()))
    }
}

/// Returns true if an error means that the kernel or the device cannot split these datagrams.
fn is_of_cutting(error: &io::Error) -> bool {
    let kinds = [libc::EINVAL, libc::EIO, libc::EMSGSIZE, libc::EOPNOTSUPP];
    error.raw_os_error().is_some_and(|it| kinds.contains(&it))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn socket(address: &str) -> UdpSocket {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    }

    #[test]
    fn several_datagrams_are_sent_and_received_per_call_in_order() {
        for here in ["127.0.0.1:0", "[::1]:0"] {
            // Some machines have no IPv6.
            let Ok(near) = UdpSocket::bind(here) else {
                continue;
            };
            near.set_nonblocking(true).unwrap();
            let far = socket(here);
            let (from, to) = (near.local_addr().unwrap(), far.local_addr().unwrap());
            let mut out = Datagrams::<64>::default();
            assert!(!out.add(to, |_| None));
            let mut number = 0_u8;
            while out.add(to, |bytes| {
                bytes.fill(number);
                Some(usize::from(number))
            }) {
                number += 1;
            }
            assert!(out.is_full());
            assert_eq!(usize::from(number), DATAGRAMS_AT_A_TIME);
            assert_eq!((out.send(&near), out.len()), (0, 0));
            // On the loopback interface, sent datagrams have already arrived.
            let mut came = Datagrams::<64>::default();
            assert_eq!(came.receive(&far, 3).unwrap(), 3);
            assert_eq!(came.get(2), Some((&[2; 2][..], from)));
            let left = DATAGRAMS_AT_A_TIME - 3;
            assert_eq!(came.receive(&far, 100).unwrap(), left);
            for at in 0..left {
                let length = at + 3;
                assert_eq!(came.get(at), Some((&vec![length as u8; length][..], from)));
            }
            near.send_to(&[7; 100], to).unwrap();
            assert_eq!(came.receive(&far, DATAGRAMS_AT_A_TIME).unwrap(), 1);
            assert_eq!(came.get(0), Some((&[7; 64][..], from)));
            let none = came.receive(&far, DATAGRAMS_AT_A_TIME).unwrap_err();
            assert_eq!(
                (none.kind(), came.is_empty()),
                (io::ErrorKind::WouldBlock, true)
            );
        }
    }

    #[test]
    fn datagrams_of_equal_length_are_separated_on_receipt() {
        let near = socket("127.0.0.1:0");
        let far = socket("127.0.0.1:0");
        let other = socket("127.0.0.1:0");
        let [to, elsewhere] = [&far, &other].map(|it| it.local_addr().unwrap());
        let mut out = Datagrams::<9000>::default();
        let lengths = [500, 500, 500, 200, 200, 1400, 1400, 0, 1400, 7, 8];
        for (number, length) in lengths.into_iter().enumerate() {
            let to = if number == 1 { elsewhere } else { to };
            assert!(out.add(to, |bytes| {
                bytes[..length].fill(number as u8);
                Some(length)
            }));
        }
        let runs: Vec<usize> = [0, 1, 2, 3, 4, 5, 7, 8, 10].map(|at| out.run(at)).into();
        assert_eq!(runs, [1, 1, 2, 2, 1, 2, 1, 2, 1]);
        assert_eq!(out.send(&near), 0);
        let mut came = Datagrams::<9000>::default();
        assert_eq!(came.receive(&far, DATAGRAMS_AT_A_TIME).unwrap(), 10);
        let here = lengths.into_iter().enumerate().filter(|it| it.0 != 1);
        for (at, (number, length)) in here.enumerate() {
            let (bytes, _) = came.get(at).unwrap();
            assert_eq!(bytes, vec![number as u8; length], "{number}");
        }
        assert_eq!(came.receive(&other, 4).unwrap(), 1);
        assert_eq!(came.get(0).unwrap().0, [1; 500]);
        // Together these datagrams are too long to leave as one.
        let mut out = Datagrams::<4200>::default();
        while out.add(to, |bytes| Some(bytes.len())) {}
        assert_eq!(out.send(&near), 0);
        assert_eq!(
            came.receive(&far, DATAGRAMS_AT_A_TIME).unwrap(),
            DATAGRAMS_AT_A_TIME
        );
    }

    #[test]
    fn a_refused_datagram_does_not_delay_later_datagrams() {
        let near = socket("127.0.0.1:0");
        let far = socket("127.0.0.1:0");
        let to = far.local_addr().unwrap();
        let mut out = Datagrams::<8>::default();
        // Port 0 and a destination of the other address family are refused.
        for to in [
            to,
            "127.0.0.1:0".parse().unwrap(),
            "[::1]:9".parse().unwrap(),
            to,
        ] {
            assert!(out.add(to, |bytes| {
                bytes[0] = 1;
                Some(1)
            }));
        }
        assert_eq!(out.send(&near), 2);
        let mut came = Datagrams::<8>::default();
        assert_eq!(came.receive(&far, DATAGRAMS_AT_A_TIME).unwrap(), 2);
    }
}
