//! A packet socket with its ring mapped, for receiving or for sending: all system calls of the backend.
//!
//! There are two sockets, because sending needs an option that would change the received frames (see
//! [`PacketSocket::map_tx_ring`]). The options are described in packet(7), the kernel's `packet_mmap` document and
//! `net/packet/af_packet.c`.

use crate::PortError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};
use std::io;
use std::mem::size_of;
use std::ptr::NonNull;
use taut_sys::interface::{Interface, cannot_make_socket};

/// The size in bytes of a block, the unit in which the kernel allocates a ring; it is a multiple of the frame size.
const BLOCK_BYTES: usize = 64 << 10;

/// The socket option with which each frame to be sent starts with a `struct virtio_net_hdr` (linux/if_packet.h).
const PACKET_VNET_HDR: libc::c_int = 15;

/// The number and size of a ring's frames.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Number of frames in the ring: a power of two, such that the frames fill at least one block.
    pub(super) frames: u32,
    /// Size of a frame, bytes: a power of two, at most the size of a block.
    pub(super) frame_bytes: usize,
}

impl Shape {
    fn bytes(&self) -> usize {
        self.frames as usize * self.frame_bytes
    }
}

/// The mapped memory of a receive or transmit ring. Packets received in place keep it alive.
#[derive(Debug)]
pub(super) struct RingMemory {
    base: NonNull<u8>,
    len: usize,
}

impl RingMemory {
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: this is the range that `mmap` returned, unmapped once; the port and the packets that use it keep it
        // alive.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A packet socket (packet(7)).
#[derive(Debug)]
pub(super) struct PacketSocket(OwnedFd);

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PacketSocket {
    /// Makes a socket that receives nothing until it is bound.
    pub(super) fn new(what: &str) -> Result<Self, PortError> {
        socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .map(Self)
        .map_err(|e| cannot_make_socket(what, "CONFIG_PACKET", e).into())
    }

    /// Makes and maps the receive ring, with `headroom_bytes` for this process before each frame. If requested, the
    /// ring also receives frames that other programs send through the interface.
    pub(super) fn map_rx_ring(
        &self,
        shape: Shape,
        headroom_bytes: u32,
        with_outgoing: bool,
    ) -> io::Result<RingMemory> {
        let ignored = libc::c_int::from(!with_outgoing);
        self.set(libc::PACKET_IGNORE_OUTGOING, &ignored)?;
        self.set(libc::PACKET_RESERVE, &headroom_bytes)?;
        self.map_ring(libc::PACKET_RX_RING, shape)
    }

    /// Makes and maps the transmit ring. Frames go directly to the driver, or through the kernel's queueing discipline.
    ///
    /// With `PACKET_VNET_HDR`, a header before each frame sets how many bytes the kernel copies into the head of its
    /// own packet. Otherwise all but the Ethernet header would be attached as pages of the ring, which virtual
    /// interfaces then copy page by page. On a veth pair, sending and receiving took 1257 ns per frame with this
    /// header, and 1606 ns without (60 bytes, batches of 32). Long frames also took a fifth less time.
    pub(super) fn map_tx_ring(&self, shape: Shape, queued: bool) -> io::Result<RingMemory> {
        // The kernel skips malformed frames; otherwise they would block the ring.
        self.set(libc::PACKET_LOSS, &1)?;
        self.set(libc::PACKET_QDISC_BYPASS, &libc::c_int::from(!queued))?;
        self.set(PACKET_VNET_HDR, &1)?;
        self.map_ring(libc::PACKET_TX_RING, shape)
    }

    /// Makes the kernel stamp each frame on arrival: software timestamps of SO_TIMESTAMPING.
    pub(super) fn stamp_arrivals(&self) -> io::Result<()> {
        let wanted = libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE;
        self.set_at(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &wanted)?;
        self.set(libc::PACKET_TIMESTAMP, &wanted)
    }

    /// Receives only frames that other programs send through the interface. A kernel filter drops arriving frames
    /// before they reach the ring.
    pub(super) fn receive_outgoing_only(&self) -> io::Result<()> {
        // A load from an offset of this value or more reads metadata of the frame (linux/filter.h).
        const KIND_AT: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
        let instruction = |code: u32, jf, k| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf,
            k,
        };
        let program = [
            instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, KIND_AT),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                1,
                libc::PACKET_OUTGOING.into(),
            ),
            instruction(libc::BPF_RET | libc::BPF_K, 0, u32::MAX),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
        ];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
    }

    fn map_ring(&self, ring: libc::c_int, shape: Shape) -> io::Result<RingMemory> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: (shape.bytes() / BLOCK_BYTES) as u32,
            tp_frame_size: shape.frame_bytes as u32,
            tp_frame_nr: shape.frames,
        };
        self.set(libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V2)?;
        self.set(ring, &request)?;
        let len = shape.bytes();
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &self.0,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(RingMemory { base, len })
    }

    /// Receives all frames that arrive at `interface`, for any destination.
    pub(super) fn receive_from(&self, interface: &Interface) -> io::Result<()> {
        self.bind(interface, libc::ETH_P_ALL as u16)?;
        self.set(
            libc::PACKET_ADD_MEMBERSHIP,
            &libc::packet_mreq {
                mr_ifindex: interface.index as i32,
                mr_type: libc::PACKET_MR_PROMISC as u16,
                mr_alen: 0,
                mr_address: [0; 8],
            },
        )
    }

    /// Receives as [`PacketSocket::receive_from`] does, but only the flows that the kernel's hash assigns to this
    /// socket of the fanout group. Both directions of a flow have the same hash. The first socket makes the group.
    /// Returns the group's identifier.
    pub(super) fn receive_share(
        &self,
        interface: &Interface,
        group: Option<u16>,
    ) -> io::Result<u16> {
        // A socket can join only while it receives. Until it has joined, it would receive everything, so a filter drops
        // all frames.
        let nothing = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: 0,
        };
        let filter = libc::sock_fprog {
            len: 1,
            filter: (&raw const nothing).cast_mut(),
        };
        self.set_at(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
        self.receive_from(interface)?;
        let by_hash = libc::PACKET_FANOUT_HASH;
        let wanted = match group {
            Some(number) => u32::from(number) | by_hash << 16,
            None => (by_hash | libc::PACKET_FANOUT_FLAG_UNIQUEID) << 16,
        };
        self.set(libc::PACKET_FANOUT, &wanted)?;
        self.set_at(libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32)?;
        let mut joined = 0_u32;
        let mut len = size_of::<u32>() as u32;
        // SAFETY: the kernel writes at most `len` bytes, the size of `joined`.
        check(unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_FANOUT,
                (&raw mut joined).cast(),
                &raw mut len,
            )
        })?;
        Ok(joined as u16)
    }

    /// Binds the socket to `interface` for sending only.
    pub(super) fn send_to(&self, interface: &Interface) -> io::Result<()> {
        self.bind(interface, 0)
    }

    fn bind(&self, interface: &Interface, protocol: u16) -> io::Result<()> {
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol.to_be(),
            sll_ifindex: interface.index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is a whole `sockaddr_ll`, and its size is passed with it.
        check(unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        })
    }

    /// Makes the kernel send the frames marked in the transmit ring. The result of the call is ignored, because the
    /// ring shows which frames were sent.
    #[inline(always)]
    pub(super) fn kick(&self) {
        let _ = send(&self.0, &[], SendFlags::DONTWAIT);
    }

    /// Returns the number of packets that the kernel dropped since the last call because no frame of the ring was free.
    pub(super) fn take_drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut len = size_of::<libc::tpacket_stats>() as u32;
        // SAFETY: the kernel writes at most `len` bytes, the size of the result's variable.
        let answer = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &raw mut len,
            )
        };
        if answer == 0 {
            u64::from(stats.tp_drops)
        } else {
            0
        }
    }

    fn set<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        self.set_at(libc::SOL_PACKET, option, value)
    }

    fn set_at<T>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        // SAFETY: the kernel reads the value, whose size is passed with it; for a filter, also the instructions that
        // the value points to.
        check(unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                level,
                option,
                std::ptr::from_ref(value).cast(),
                size_of::<T>() as u32,
            )
        })
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
