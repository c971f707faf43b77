//! The port `af_packet` on a network interface through a packet socket (packet(7)). It works on every interface of
//! every kernel, and needs no driver support. Sending costs one copy, receiving none.
//!
//! Both rings are mapped (TPACKET_V2); packets are received in place and sent with one system call per batch.
//! TPACKET_V3 is not used, because it delivers packets in blocks, when a block is full or a timer expires. At 100 kpps
//! over a veth pair the median frame arrived after 0.7 to 1.1 ms with V3, and after 2 us with V2. At saturation V3
//! received no more packets than V2. The denser ring of V3 only bridges longer pauses of the receiver, and so does a
//! larger `ring`.

mod ring;
mod socket;
#[cfg(test)]
mod tests;

use crate::pool::HEADROOM_BYTES;
use crate::{
    Attachment, Backend, Batch, Handling, Link, Packet, PoolHandle, Port, PortCounters, PortError,
};
use crate::{BATCH_CAPACITY, Joinable, Part, PortSpec, Receives, Resources, Sends, Split};
use ring::{Arrival, RX_OVERHEAD_BYTES, Received, RxRing, TxRing};
use socket::{PacketSocket, RingMemory, Shape};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use taut_sys::Alarm;
use taut_sys::StampClock;
use taut_sys::interface::{self, ETHERNET_HEADER_BYTES, Interface, VLAN_TAG_BYTES};

/// The backend of specs `af_packet:INTERFACE[,ring=N][,qdisc=yes][,outgoing=yes|only][,stamps=kernel]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "af_packet",
    summary: "a network interface, through a packet socket; needs root or CAP_NET_RAW",
    target: "INTERFACE",
    options: &[
        (
            "ring",
            "frames of each ring, a power of two from 64 to 32768 (default 2048)",
        ),
        (
            "qdisc",
            "yes: what is sent passes the kernel's queueing, where captures and taut tap see it; no (default): \
             straight to the driver",
        ),
        (
            "outgoing",
            "yes: what others send through the interface is received, too; only: nothing but that; no (default): what arrives \
             there only",
        ),
        (
            "stamps",
            "kernel: when the kernel received each frame, beside when this program did",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPlace,
        sends: Sends::ByCopy,
    }],
    passes_on: false,
    wakes: true,
    probe,
    open,
    split: Split::Joinable(joinable),
    attachment: Attachment::Interface,
    typical_cycles: Some(15_000.0),
    loop_back: None,
};

const RING_FRAMES: u64 = 2048;

/// The range of sizes of a ring's frames, bytes. The size is a power of two that depends on the interface's MTU.
const FRAME_BYTES: std::ops::RangeInclusive<usize> = 2048..=16384;

struct AfPacketPort {
    name: String,
    interface: Interface,
    receiver: Receiver,
    shape: Shape,
    extras: Extras,
    group: Option<Arc<Group>>,
    tx_socket: PacketSocket,
    tx: TxRing,
    _tx_memory: RingMemory,
    counters: PortCounters,
    /// Arrival timestamps of the packets that the last receive call delivered; None if timestamps are not configured.
    stamps: Option<Vec<u64>>,
}

/// Optional settings of an `af_packet` receiver.
#[derive(Clone, Copy)]
struct Extras {
    /// True if the kernel writes an arrival timestamp for each frame.
    stamped: bool,
    outgoing: Outgoing,
}

/// The treatment of frames that other programs send through the interface: not received, received in addition to
/// arriving frames, or received exclusively.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outgoing {
    No,
    Too,
    Only,
}

struct Receiver {
    socket: PacketSocket,
    ring: RxRing,
    /// Record of the ring's frames that packets still use. It keeps the ring's memory mapped.
    ledger: PoolHandle,
}

impl Receiver {
    /// Makes the receiver of an interface. It receives all frames or, as one worker of a fanout group, some of the
    /// flows.
    fn new(
        socket: PacketSocket,
        shape: Shape,
        extras: Extras,
        interface: &Interface,
        group: Option<&Group>,
    ) -> io::Result<Self> {
        let headroom = u32::from(HEADROOM_BYTES);
        let memory = socket.map_rx_ring(shape, headroom, extras.outgoing != Outgoing::No)?;
        if extras.outgoing == Outgoing::Only {
            socket.receive_outgoing_only()?;
        }
        if extras.stamped {
            socket.stamp_arrivals()?;
        }
        match group {
            None => socket.receive_from(interface)?,
            Some(group) => {
                let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
                let of_it = group.filter(|(index, _)| *index == interface.index);
                let joined = socket.receive_share(interface, of_it.map(|(_, number)| number));
                *group = Some((interface.index, joined?));
                // Joining the fanout group has replaced the socket's filter, so the filter is set again.
                if extras.outgoing == Outgoing::Only {
                    socket.receive_outgoing_only()?;
                }
            }
        }
        // SAFETY: the mapping is a ring of this shape, page aligned; the ledger keeps the mapping as long as the port
        // or a received packet exists.
        let ring = unsafe { RxRing::new(memory.base(), shape.frame_bytes, shape.frames) };
        Ok(Self {
            socket,
            ring,
            ledger: PoolHandle::ledger_keeping(shape.frames, Box::new(memory)),
        })
    }
}

fn probe() -> Result<String, PortError> {
    PacketSocket::new("packet sockets")?;
    Ok("packet sockets can be opened".to_string())
}

fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    open_in(spec, None)
}

/// The fanout group of the workers' sockets: the index of the interface to which they are bound, and the group's
/// identifier. None until the first socket has made the group.
type Group = Mutex<Option<(u32, u16)>>;

/// Makes the packet sockets of the workers, one for each. The kernel spreads the flows over these sockets.
fn joinable(spec: &PortSpec) -> Result<Joinable, PortError> {
    let (spec, group) = (spec.clone(), Arc::<Group>::default());
    Ok(Box::new(move |_| {
        let (spec, group) = (spec.clone(), Arc::clone(&group));
        Ok(Box::new(move |_: &mut Resources| open_in(&spec, Some(group))) as Part)
    }))
}

fn open_in(spec: &PortSpec, group: Option<Arc<Group>>) -> Result<Box<dyn Port>, PortError> {
    let frames = spec.number("ring", 64..=32768)?.unwrap_or(RING_FRAMES) as u32;
    if !frames.is_power_of_two() {
        return Err(spec.error(format!("ring={frames}: expected a power of two")));
    }
    let queued = match spec.option("qdisc") {
        None | Some("no") => false,
        Some("yes") => true,
        Some(_) => return Err(spec.error("qdisc: expected yes or no")),
    };
    let outgoing = match spec.option("outgoing") {
        None | Some("no") => Outgoing::No,
        Some("yes") => Outgoing::Too,
        Some("only") => Outgoing::Only,
        Some(_) => return Err(spec.error("outgoing: expected yes, no or only")),
    };
    let stamped = match spec.option("stamps") {
        None => false,
        Some("kernel") => true,
        Some(_) => return Err(spec.error("stamps: expected kernel")),
    };
    let what = format!("opening {spec}");
    let name = spec.target();
    let rx_socket = PacketSocket::new(&what)?;
    let tx_socket = PacketSocket::new(&what)?;
    let interface =
        Interface::find(&rx_socket, name).map_err(|e| interface::cannot_find(&what, name, e))?;
    let failed = |e| PortError::system(&what, e);
    let frame_bytes = frame_bytes(interface.mtu_bytes);
    let shape = Shape {
        frames,
        frame_bytes,
    };
    let tx_memory = tx_socket.map_tx_ring(shape, queued).map_err(failed)?;
    let extras = Extras { stamped, outgoing };
    let receiver = Receiver::new(rx_socket, shape, extras, &interface, group.as_deref());
    let receiver = receiver.map_err(failed)?;
    tx_socket.send_to(&interface).map_err(failed)?;
    // SAFETY: the mapping is a ring of this shape, page aligned; the port keeps it.
    let tx = unsafe { TxRing::new(tx_memory.base(), frame_bytes, frames) };
    Ok(Box::new(AfPacketPort {
        name: name.to_string(),
        interface,
        receiver,
        shape,
        extras,
        group,
        tx_socket,
        tx,
        _tx_memory: tx_memory,
        counters: PortCounters::default(),
        stamps: stamped.then(|| Vec::with_capacity(BATCH_CAPACITY)),
    }))
}

/// Returns the size of a ring frame in bytes: the kernel's header, the headroom, and the longest tagged frame.
fn frame_bytes(mtu_bytes: usize) -> usize {
    let overhead = RX_OVERHEAD_BYTES + 32 + usize::from(HEADROOM_BYTES);
    (overhead + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES + mtu_bytes)
        .next_power_of_two()
        .clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end())
}

/// Reinserts the VLAN tag that the kernel removed from the frame.
#[cold]
fn insert_vlan(packet: &mut Packet, kind: u16, control: u16) {
    if packet.len() >= ETHERNET_HEADER_BYTES && packet.prepend(VLAN_TAG_BYTES as u16) {
        let bytes = packet.bytes_mut();
        bytes.copy_within(VLAN_TAG_BYTES..VLAN_TAG_BYTES + 12, 0);
        bytes[12..14].copy_from_slice(&kind.to_be_bytes());
        bytes[14..16].copy_from_slice(&control.to_be_bytes());
    }
}

impl AfPacketPort {
    /// Returns true if the kernel accepts a frame of the given length. The kernel does not report frames that it
    /// rejects.
    #[inline(always)]
    fn takes(&self, frame: &[u8]) -> bool {
        frame.len() > ETHERNET_HEADER_BYTES
            && frame.len() <= self.tx.room()
            && interface::fits(frame, self.interface.mtu_bytes)
    }

    #[inline(always)]
    fn packet(&self, frame: Received) -> Packet {
        let ledger = &self.receiver.ledger;
        ledger.count_out(1);
        // SAFETY: the ring's protocol makes the frame ours until `give_back`, which runs after the frame's slot has
        // returned to the ledger; the ledger keeps the memory.
        let mut packet = unsafe {
            Packet::new(
                frame.data,
                frame.len,
                frame.headroom,
                ledger.raw(),
                frame.slot,
            )
        };
        if let Some((kind, control)) = frame.vlan {
            insert_vlan(&mut packet, kind, control);
        }
        packet
    }
}

impl AfPacketPort {
    /// Moves the port to another interface.
    #[cold]
    fn move_to(&mut self, interface: &Interface) -> io::Result<()> {
        match self.group.as_deref() {
            // Only the binding of the sockets changes; the rings stay in use.
            None => self.receiver.socket.receive_from(interface)?,
            // A socket that has been in a fanout group cannot be bound again.
            Some(group) => {
                let socket = PacketSocket::new("packet sockets").map_err(io::Error::other)?;
                let anew = Receiver::new(socket, self.shape, self.extras, interface, Some(group))?;
                self.counters.rx_overrun += self.receiver.socket.take_drops();
                self.receiver = anew;
            }
        }
        self.tx_socket.send_to(interface)
    }
}

impl Port for AfPacketPort {
    fn fits(&self, frame: &[u8]) -> bool {
        interface::fits(frame, self.interface.mtu_bytes)
    }

    fn rx(&mut self, batch: &mut Batch) -> usize {
        let Receiver { ring, ledger, .. } = &mut self.receiver;
        ledger.drain_returned(|slot| ring.give_back(slot));
        let before = batch.len();
        if let Some(stamps) = &mut self.stamps {
            stamps.clear();
        }
        while batch.room() > 0 {
            match self.receiver.ring.next() {
                Some(Arrival::Frame(frame)) => {
                    if let Some(stamps) = &mut self.stamps {
                        stamps.push(frame.kernel_stamp_ns);
                    }
                    let packet = self.packet(frame);
                    self.counters.rx_bytes += packet.len() as u64;
                    batch.push(packet);
                }
                Some(Arrival::TooLong) => self.counters.rx_too_long += 1,
                Some(Arrival::Malformed) => self.counters.rx_malformed += 1,
                None => break,
            }
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        received
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let (mut taken, mut queued) = (0, 0);
        for packet in batch.packets() {
            if self.takes(packet.bytes()) {
                if !self.tx.push(packet.bytes()) {
                    break;
                }
                queued += 1;
            }
            taken += 1;
        }
        if queued > 0 {
            self.tx_socket.kick();
        }
        let left = self.tx.withdraw(queued);
        if left > 0 {
            // The interface is down, the peer's queue is full, or the socket has no memory for more frames. Frames that
            // the kernel has not started to send stay with the caller; otherwise they would wait in the ring until the
            // next call.
            queued -= left;
            let mut sent = 0;
            taken = batch
                .packets()
                .iter()
                .take(taken)
                .take_while(|p| {
                    sent += u32::from(self.takes(p.bytes()));
                    sent <= queued
                })
                .count();
        }
        for packet in batch.packets().iter().take(taken) {
            if self.takes(packet.bytes()) {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += packet.len() as u64;
            } else if packet.len() > ETHERNET_HEADER_BYTES {
                self.counters.tx_too_long += 1;
            } else {
                self.counters.tx_failed += 1;
            }
        }
        batch.drop_front(taken);
        taken
    }

    fn link(&mut self) -> Link {
        let now = match Interface::find(&self.receiver.socket, &self.name) {
            Ok(now) => now,
            Err(error) => return Link::Down(interface::lost(&self.name, &error)),
        };
        if now.index != self.interface.index {
            // The interface was deleted and created again under the same name.
            if let Err(error) = self.move_to(&now) {
                return Link::Down(format!("binding to the new {}: {error}", self.name));
            }
        }
        self.interface = now;
        now.passes(&self.name).into()
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        // The socket is readable until the last received frame has been taken and returned.
        alarm.watch(self.receiver.socket.as_fd());
        true
    }

    fn arrival_stamps(&self) -> &[u64] {
        self.stamps.as_deref().unwrap_or_default()
    }

    fn stamp_clock(&self) -> Option<StampClock> {
        self.stamps
            .as_ref()
            .map(|_| StampClock::Realtime { unit_ns: 1 })
    }

    fn counters(&mut self) -> PortCounters {
        self.counters.rx_overrun += self.receiver.socket.take_drops();
        self.counters
    }
}
