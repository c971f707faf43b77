//! A port on a network interface through a packet socket (packet(7)): works on every interface of
//! every kernel, needs no driver support. One copy to send, none to receive.
//!
//! Both rings are mapped (TPACKET_V2); packets are received in place and sent with one system call
//! per batch. TPACKET_V3 is not used: it shows packets by the block, when one is full or a timer runs
//! out. At 100 kpps over a veth pair the median frame was seen after 0.7 to 1.1 ms so, after 2 us with
//! V2; at saturation V3 received no more (its denser ring only rides out longer pauses; so does a
//! larger `ring`).

mod ring;
mod socket;
#[cfg(test)]
mod tests;

use crate::interface::{self, ETHERNET_HEADER_BYTES, Interface, VLAN_TAG_BYTES};
use crate::pool::HEADROOM_BYTES;
use crate::{
    Alarm, Backend, Batch, Handling, Link, Packet, PoolHandle, Port, PortCounters, PortError,
};
use crate::{BATCH_CAPACITY, Part, PortSpec, Receives, Resources, Sends, Split, StampClock};
use ring::{Arrival, RX_OVERHEAD_BYTES, Received, RxRing, TxRing};
use socket::{PacketSocket, RingMemory, Shape};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

/// `af_packet:INTERFACE[,ring=N][,qdisc=yes][,stamps=kernel]`.
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
    split: Split::Parts(split),
};

const RING_FRAMES: u64 = 2048;

/// A frame's size is a power of two between these, by the interface's MTU.
const FRAME_BYTES: std::ops::RangeInclusive<usize> = 2048..=16384;

struct AfPacketPort {
    name: String,
    interface: Interface,
    rx_socket: PacketSocket,
    tx_socket: PacketSocket,
    rx: RxRing,
    tx: TxRing,
    /// The receive ring's frames that packets hold; keeps its memory.
    ledger: PoolHandle,
    _tx_memory: RingMemory,
    counters: PortCounters,
    /// Of the packets received last, where they are asked for.
    stamps: Option<Vec<u64>>,
}

fn probe() -> Result<String, PortError> {
    PacketSocket::new("packet sockets")?;
    Ok("packet sockets can be opened".to_string())
}

fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    open_in(spec, None)
}

/// The number of the group that the sockets of several workers are in, once the first one has made it.
type Group = Mutex<Option<u16>>;

/// A socket for each worker, among which the kernel spreads flows.
fn split(spec: &PortSpec, workers: usize) -> Result<Vec<Part>, PortError> {
    let group = Arc::<Group>::default();
    let part = |_| {
        let (spec, group) = (spec.clone(), Arc::clone(&group));
        Box::new(move |_: &mut Resources| open_in(&spec, Some(&group))) as Part
    };
    Ok((0..workers).map(part).collect())
}

fn open_in(spec: &PortSpec, group: Option<&Group>) -> Result<Box<dyn Port>, PortError> {
    let frames = spec.number("ring", 64..=32768)?.unwrap_or(RING_FRAMES) as u32;
    if !frames.is_power_of_two() {
        return Err(spec.error(format!("ring={frames}: want a power of two")));
    }
    let queued = match spec.option("qdisc") {
        None | Some("no") => false,
        Some("yes") => true,
        Some(_) => return Err(spec.error("qdisc: want yes or no")),
    };
    let stamped = match spec.option("stamps") {
        None => false,
        Some("kernel") => true,
        Some(_) => return Err(spec.error("stamps: want kernel")),
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
    let headroom_bytes = u32::from(HEADROOM_BYTES);
    let rx_memory = rx_socket
        .map_rx_ring(shape, headroom_bytes)
        .map_err(failed)?;
    let tx_memory = tx_socket.map_tx_ring(shape, queued).map_err(failed)?;
    if stamped {
        rx_socket.stamp_arrivals().map_err(failed)?;
    }
    match group {
        None => rx_socket.receive_from(&interface).map_err(failed)?,
        Some(group) => {
            let mut number = group.lock().unwrap_or_else(PoisonError::into_inner);
            let joined = rx_socket.receive_share(&interface, *number);
            *number = Some(joined.map_err(failed)?);
        }
    }
    tx_socket.send_to(&interface).map_err(failed)?;
    // SAFETY: each mapping is a ring of this shape, page aligned; the ledger keeps the first for as
    // long as the port or a received packet lives, the port the second.
    let (rx, tx) = unsafe {
        (
            RxRing::new(rx_memory.base(), frame_bytes, frames),
            TxRing::new(tx_memory.base(), frame_bytes, frames),
        )
    };
    Ok(Box::new(AfPacketPort {
        name: name.to_string(),
        interface,
        rx_socket,
        tx_socket,
        rx,
        tx,
        ledger: PoolHandle::ledger_keeping(frames, Box::new(rx_memory)),
        _tx_memory: tx_memory,
        counters: PortCounters::default(),
        stamps: stamped.then(|| Vec::with_capacity(BATCH_CAPACITY)),
    }))
}

/// Room for what the kernel puts before a frame, our headroom, and the longest tagged frame.
fn frame_bytes(mtu_bytes: usize) -> usize {
    let overhead = RX_OVERHEAD_BYTES + 32 + usize::from(HEADROOM_BYTES);
    (overhead + ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES + mtu_bytes)
        .next_power_of_two()
        .clamp(*FRAME_BYTES.start(), *FRAME_BYTES.end())
}

/// Puts the tag back that the kernel took out of the frame.
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
    /// Whether the kernel would take the frame (which it does not say when it does not).
    #[inline(always)]
    fn takes(&self, frame: &[u8]) -> bool {
        frame.len() > ETHERNET_HEADER_BYTES
            && frame.len() <= self.tx.room()
            && interface::fits(frame, self.interface.mtu_bytes)
    }

    #[inline(always)]
    fn packet(&self, frame: Received) -> Packet {
        self.ledger.count_out(1);
        // SAFETY: the ring says the frame is ours until `give_back`, which its slot's return to the
        // ledger brings about; the ledger keeps the memory.
        let mut packet = unsafe {
            Packet::new(
                frame.data,
                frame.len,
                frame.headroom,
                self.ledger.raw(),
                frame.slot,
            )
        };
        if let Some((kind, control)) = frame.vlan {
            insert_vlan(&mut packet, kind, control);
        }
        packet
    }
}

impl Port for AfPacketPort {
    fn fits(&self, frame: &[u8]) -> bool {
        interface::fits(frame, self.interface.mtu_bytes)
    }

    fn rx(&mut self, batch: &mut Batch) -> usize {
        self.ledger.drain_returned(|slot| self.rx.give_back(slot));
        let before = batch.len();
        if let Some(stamps) = &mut self.stamps {
            stamps.clear();
        }
        while batch.room() > 0 {
            match self.rx.next() {
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
        if queued > 0 && self.tx_socket.kick().is_err() {
            // Interface down, or the other end full: what the kernel has left stays the caller's.
            queued -= self.tx.withdraw(queued);
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
        let now = match Interface::find(&self.rx_socket, &self.name) {
            Ok(now) => now,
            Err(error) => return interface::lost(&self.name, &error),
        };
        if now.index != self.interface.index {
            // Deleted and made again under the same name: the rings stay, the binding moves.
            let bound = self.rx_socket.receive_from(&now);
            if let Err(error) = bound.and_then(|()| self.tx_socket.send_to(&now)) {
                return Link::Down(format!("binding to the new {}: {error}", self.name));
            }
        }
        self.interface = now;
        now.link(&self.name)
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        // Readable for as long as the frame received last has not been taken and given back.
        alarm.watch(self.rx_socket.as_fd());
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
        self.counters.rx_overrun += self.rx_socket.take_drops();
        self.counters
    }
}
