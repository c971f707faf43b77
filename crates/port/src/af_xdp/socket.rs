//! An AF_XDP socket with its four rings mapped: all system calls of the backend's data path.

use super::ring::{Consumer, Layout, Producer};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING,
    XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc,
    XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, send, socket_with};
use std::cell::RefCell;
use std::mem::size_of;
use std::ptr::NonNull;
use std::rc::{Rc, Weak};
use std::time::Duration;
use taut_sys::Mapping;

/// The socket option for the maximum number of packets that the kernel sends per call (Linux 6.17).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// The socket options for busy polling, and for the NAPI identifier of a socket's last packet (asm-generic/socket.h).
const SO_BUSY_POLL: libc::c_int = 46;
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;

/// The maximum time for which a receive call runs the driver's queue, in µs. It returns earlier if the queue is empty.
const BUSY_POLL_MICROSECONDS: libc::c_int = 20;

/// Options for binding a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Binding {
    /// True if flags in the rings tell when a system call must wake the kernel.
    pub(super) need_wakeup: bool,
    /// True if the kernel copies frames, false for zero-copy; None lets the kernel choose by the driver's capabilities.
    pub(super) copy: Option<bool>,
}

/// The state that the AF_XDP ports of one worker share.
#[derive(Clone, Default)]
pub(crate) struct Shared(pub(super) Rc<RefCell<Living>>);

#[derive(Default)]
pub(super) struct Living {
    /// Bound sockets, all with the worker's pool as packet memory. A socket with the same binding can share the
    /// registration of this memory.
    pub(super) sockets: Vec<(Weak<OwnedFd>, Binding)>,
}

/// The number of attempts to bind a queue that a closed socket still occupies; the kernel frees it a little later.
const RELEASE_TRIES: u32 = 50;
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// A check for the release of a queue whose socket was closed. The kernel releases the queue some time later. Until
/// then, a zero-copy driver still reads and writes the socket's frames, and no other socket can be bound to the queue.
///
/// The value must be made in the network namespace of the interface.
#[derive(Debug)]
pub(super) struct Release {
    socket: XdpSocket,
    interface: u32,
    queue: u32,
    /// Packet memory of `socket`, of the smallest size with which that socket can be bound.
    _memory: Mapping,
}

impl Release {
    pub(super) fn new(interface: u32, queue: u32) -> Result<Self, Errno> {
        let memory = Mapping::create_small("taut-release", 4096).map_err(|_| Errno::NOMEM)?;
        let socket = XdpSocket::new()?;
        // SAFETY: the memory exists as long as the socket, and this process never accesses it.
        unsafe { socket.register(&memory, memory.len()) }?;
        sockopt::set_xdp_umem_fill_ring_size(&socket.0, 1)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket.0, 1)?;
        sockopt::set_xdp_rx_ring_size(&socket.0, 1)?;
        Ok(Self {
            socket,
            interface,
            queue,
            _memory: memory,
        })
    }

    /// Returns true if the kernel has released the queue of the closed socket.
    fn has_come(&self) -> bool {
        // Copy mode does not involve the driver, so this bind tests only whether the queue is free.
        let flags = SocketAddrXdpFlags::XDP_COPY;
        let address = SocketAddrXdp::new(flags, self.interface, self.queue);
        // A deleted interface has released all its queues.
        matches!(bind(&self.socket.0, &address), Ok(()) | Err(Errno::NODEV))
    }

    /// Waits until the kernel has released the queue; returns false after a timeout.
    pub(super) fn wait(self) -> bool {
        for _ in 0..RELEASE_TRIES {
            if self.has_come() {
                return true;
            }
            std::thread::sleep(RELEASE_PAUSE);
        }
        false
    }
}

/// The mapped memory of one ring.
#[derive(Debug)]
struct RingMemory {
    base: NonNull<u8>,
    len: usize,
}

impl Drop for RingMemory {
    fn drop(&mut self) {
        // SAFETY: the range `mmap` gave us, unmapped once; the rings in it are dropped before.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) rx: Consumer<XdpDesc>,
    pub(super) tx: Producer<XdpDesc>,
    _memory: [RingMemory; 4],
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(super) struct XdpSocket(Rc<OwnedFd>);

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl XdpSocket {
    pub(super) fn new() -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map(|fd| Self(Rc::new(fd)))
    }

    /// Returns the descriptor, for sharing its packet memory with later sockets.
    pub(super) fn descriptor(&self) -> &Rc<OwnedFd> {
        &self.0
    }

    /// Registers `memory` as the packet memory of this socket, in chunks of `chunk_bytes`.
    ///
    /// # Safety
    /// The memory must stay mapped until the socket is closed, and nobody may make references to a chunk while it is in
    /// one of the socket's rings.
    pub(super) unsafe fn register(
        &self,
        memory: &Mapping,
        chunk_bytes: usize,
    ) -> Result<(), Errno> {
        sockopt::set_xdp_umem_reg(
            &self.0,
            XdpUmemReg {
                addr: memory.base().as_ptr() as u64,
                len: memory.len() as u64,
                chunk_size: chunk_bytes as u32,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            },
        )
    }

    /// Makes and maps the four rings, each of `size` entries.
    pub(super) fn map_rings(&self, size: u32) -> Result<Rings, Errno> {
        let fd = &self.0;
        sockopt::set_xdp_umem_fill_ring_size(fd, size)?;
        sockopt::set_xdp_umem_completion_ring_size(fd, size)?;
        sockopt::set_xdp_rx_ring_size(fd, size)?;
        sockopt::set_xdp_tx_ring_size(fd, size)?;
        let offsets = sockopt::xdp_mmap_offsets(fd)?;
        let frame = size_of::<u64>();
        let descriptor = size_of::<XdpDesc>();
        let (fill, a) = self.map(&offsets.fr, XDP_UMEM_PGOFF_FILL_RING, size, frame)?;
        let (completion, b) = self.map(&offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, size, frame)?;
        let (rx, c) = self.map(&offsets.rx, XDP_PGOFF_RX_RING, size, descriptor)?;
        let (tx, d) = self.map(&offsets.tx, XDP_PGOFF_TX_RING, size, descriptor)?;
        // SAFETY: the kernel says where the parts lie, and `_memory` keeps them mapped; both entry
        // types are integers only; a socket's rings are mapped once, when new.
        unsafe {
            Ok(Rings {
                fill: Producer::new(fill),
                completion: Consumer::new(completion),
                rx: Consumer::new(rx),
                tx: Producer::new(tx),
                _memory: [a, b, c, d],
            })
        }
    }

    fn map(
        &self,
        offsets: &XdpRingOffset,
        page: u64,
        size: u32,
        entry_bytes: usize,
    ) -> Result<(Layout, RingMemory), Errno> {
        // Kernels before 5.4 have no flags, and lack other features that are needed here.
        let flags = offsets.flags.ok_or(Errno::OPNOTSUPP)?;
        let len = offsets.desc as usize + size as usize * entry_bytes;
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &self.0,
                page,
            )
        }?;
        let memory = RingMemory {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            len,
        };
        // SAFETY: the kernel's offsets lie inside the ring's mapping.
        let at = |offset: u64| unsafe { memory.base.add(offset as usize) };
        let layout = Layout {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(flags).cast(),
            entries: at(offsets.desc),
            size,
        };
        Ok((layout, memory))
    }

    /// Binds the socket to one queue of an interface. If `shared` is given, the socket uses the packet memory of
    /// `shared`, which must have the same binding.
    pub(super) fn bind(
        &self,
        interface: u32,
        queue: u32,
        shared: Option<&OwnedFd>,
        binding: Binding,
    ) -> Result<(), Errno> {
        let mut flags = SocketAddrXdpFlags::empty();
        flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, binding.need_wakeup);
        flags.set(SocketAddrXdpFlags::XDP_COPY, binding.copy == Some(true));
        flags.set(
            SocketAddrXdpFlags::XDP_ZEROCOPY,
            binding.copy == Some(false),
        );
        let mut tries = RELEASE_TRIES;
        loop {
            let address = SocketAddrXdp::new(flags, interface, queue);
            let answer = match shared {
                None => bind(&self.0, &address),
                Some(other) => {
                    let mut addr = address;
                    // The kernel copies the other flags from the shared socket.
                    addr.set_flags(SocketAddrXdpFlags::XDP_SHARED_UMEM);
                    let shared_umem_fd = other.as_fd();
                    bind(
                        &self.0,
                        &SocketAddrXdpWithSharedUmem {
                            addr,
                            shared_umem_fd,
                        },
                    )
                }
            };
            tries -= 1;
            if answer != Err(Errno::BUSY) || tries == 0 {
                return answer;
            }
            std::thread::sleep(RELEASE_PAUSE);
        }
    }

    /// Sets the maximum number of packets that the kernel sends per call; older kernels ignore it and send 32.
    pub(super) fn set_send_budget(&self, packets: u32) {
        // SAFETY: the kernel reads one number, whose size is passed with it.
        let _ = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_XDP,
                XDP_MAX_TX_SKB_BUDGET,
                (&raw const packets).cast(),
                size_of::<u32>() as u32,
            )
        };
    }

    /// Enables busy polling: receive calls run the driver's queue, at most `packets` packets per call. The kernel
    /// itself does not run the queue then.
    pub(super) fn set_busy_poll(&self, packets: u32) -> Result<(), Errno> {
        self.set(SO_PREFER_BUSY_POLL, 1)?;
        self.set(SO_BUSY_POLL, BUSY_POLL_MICROSECONDS)?;
        self.set(SO_BUSY_POLL_BUDGET, packets as libc::c_int)
    }

    fn set(&self, option: libc::c_int, value: libc::c_int) -> Result<(), Errno> {
        // SAFETY: the kernel reads one number, whose size is passed with it.
        let answer = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const value).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        if answer < 0 {
            return Err(
                Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
            );
        }
        Ok(())
    }

    /// Returns the NAPI identifier of the driver's queue that receive calls run. It is None until the first frame has
    /// arrived from that queue, and if the driver gives its queues no identifier.
    pub(super) fn polled_queue(&self) -> Option<u32> {
        let mut number = 0_u32;
        let mut len = size_of::<u32>() as u32;
        // SAFETY: the kernel writes at most `len` bytes, the size of `number`.
        let answer = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_INCOMING_NAPI_ID,
                (&raw mut number).cast(),
                &raw mut len,
            )
        };
        (answer == 0 && number != 0).then_some(number)
    }

    /// Makes the kernel check the transmit ring.
    #[inline(always)]
    pub(super) fn wake_tx(&self) -> Result<(), Errno> {
        send(&self.0, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Makes the driver check the fill ring, and run its queue if busy polling is enabled.
    #[inline(always)]
    pub(super) fn wake_rx(&self) {
        let _ = recv(&self.0, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
    }

    /// Returns true if the driver uses the packet memory directly.
    pub(super) fn is_zero_copy(&self) -> bool {
        sockopt::xdp_options(&self.0)
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    /// Returns the number of frames lost for lack of space since the socket was made. The kernel's count of empty fill
    /// rings is not added: in copy mode such a frame is already counted as a drop, and drivers count attempts instead
    /// of frames.
    pub(super) fn overrun(&self) -> u64 {
        sockopt::xdp_statistics(&self.0).map_or(0, |s| s.rx_dropped + s.rx_ring_full.unwrap_or(0))
    }
}
