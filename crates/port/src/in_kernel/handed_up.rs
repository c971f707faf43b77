//! The port for frames that an XDP program passes to user space. It reads frames from the program's ring, and sends
//! through the interface without the program. The port is for low frame rates: each sent frame costs a system call, and
//! the receiver sleeps while no frames arrive.

use crate::{Batch, Link, Packet, PoolHandle, Port, PortCounters, PortError, PortSpec};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::cell::RefCell;
use std::rc::Rc;
use taut_sys::interface::{self, Interface};
use taut_xdp::upcall::{HandedUp, UpcallPrograms};

/// The number of frames from the XDP program that the worker and its functions may use at a time.
const POOL_SLOTS: u32 = 1024;

/// The frames that were read from the XDP program's ring.
#[derive(Default)]
struct Arrived {
    packets: Vec<Packet>,
    too_long: u64,
    no_room: u64,
}

pub(super) struct HandedUpPort {
    ring: HandedUp,
    arrived: Rc<RefCell<Arrived>>,
    socket: OwnedFd,
    name: String,
    index: u32,
    counters: PortCounters,
}

impl HandedUpPort {
    pub(super) fn new(
        programs: &dyn UpcallPrograms,
        number: usize,
        spec: &PortSpec,
    ) -> Result<Self, PortError> {
        let name = spec.target().to_string();
        let what = || format!("sending out of {name}");
        // Without a protocol the socket only sends.
        let socket = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|e| interface::cannot_make_socket(what(), "packet sockets", e))?;
        let found = Interface::find(&socket, &name)
            .map_err(|e| interface::cannot_find(&what(), &name, e))?;
        let pool = PoolHandle::new(POOL_SLOTS, false)?;
        let arrived = Rc::<RefCell<Arrived>>::default();
        let brought = Rc::clone(&arrived);
        let ring = HandedUp::new(&what(), programs, number, move |frame| {
            brought.borrow_mut().take(frame, &pool);
        })?;
        Ok(Self {
            ring,
            arrived,
            socket,
            name,
            index: found.index,
            counters: PortCounters::default(),
        })
    }

    fn send(&self, bytes: &[u8]) -> bool {
        // SAFETY: an address of that kind is plain data; all zeroes is a valid one.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = self.index as i32;
        // SAFETY: frame and address outlive the call, and have the lengths that are passed.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        sent == bytes.len() as isize
    }
}

impl Arrived {
    fn take(&mut self, frame: Option<&[u8]>, pool: &PoolHandle) {
        let Some(bytes) = frame.filter(|bytes| bytes.len() <= pool.room()) else {
            self.too_long += 1;
            return;
        };
        let Some(mut packet) = pool.take(bytes.len() as u16) else {
            self.no_room += 1;
            return;
        };
        packet.bytes_mut().copy_from_slice(bytes);
        self.packets.push(packet);
    }
}

impl Port for HandedUpPort {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        if self.ring.show(batch.room()) == 0 {
            return 0;
        }
        let mut arrived = self.arrived.borrow_mut();
        self.counters.rx_overrun = arrived.no_room;
        self.counters.rx_too_long = arrived.too_long;
        let n = arrived.packets.len();
        for packet in arrived.packets.drain(..) {
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += packet.len() as u64;
            batch.push(packet);
        }
        n
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        for packet in batch.packets() {
            if self.send(packet.bytes()) {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += packet.len() as u64;
            } else {
                self.counters.tx_failed += 1;
            }
        }
        batch.clear();
        n
    }

    fn link(&mut self) -> Link {
        match Interface::find(self.socket.as_fd(), &self.name) {
            Ok(found) => {
                self.index = found.index;
                found.passes(&self.name).into()
            }
            Err(error) => Link::Down(interface::lost(&self.name, &error)),
        }
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }
}
