//! Pairs of joined ports in one process: packets sent through one port of a pair are received from the other. The two
//! ports may belong to two threads.
//!
//! Packets cannot change threads, because their pool belongs to one. Therefore a frame is copied once, into a slot of
//! the ring between them (`ring`), and received there in place.

mod lane;
mod ring;

pub use lane::Lane;

use crate::{
    Attachment, Backend, Batch, Handling, Link, Packet, PoolHandle, Port, PortCounters, PortError,
};
use crate::{Joinable, Part, PortSpec, Receives, Resources, Sends, Split, Supply};
use ring::{ROOM_BYTES, Receiver, Ring, Sender};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taut_sys::{Alarm, Doorbell};

/// The backend of specs `pair:NAME[,ring=N]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "pair",
    summary: "two ports of one process, joined: open the name twice; needs no root",
    target: "NAME",
    options: &[(
        "ring",
        "slots in each direction, a power of two from 32 to 16384 (default 1024)",
    )],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPlace,
        sends: Sends::ByCopy,
    }],
    passes_on: false,
    wakes: true,
    probe: || Ok("always there".to_string()),
    open,
    split: Split::Joinable(joinable),
    attachment: Attachment::Inside,
    typical_cycles: None,
    loop_back: Some(|name, _| [format!("pair:{name}"), format!("pair:{name}")]),
};

const RING_SLOTS: u32 = 1024;

/// The state of an endpoint of a pair that is not opened yet.
const AWAITED: u8 = 0;
const OPEN: u8 = 1;
const CLOSED: u8 = 2;

/// The state that both endpoints of a pair share.
struct Joint {
    /// Rings by index of the sending endpoint.
    rings: [Arc<Ring>; 2],
    /// Doorbells by index of the endpoint that rings them.
    doorbells: [Doorbell; 2],
    /// State of each endpoint.
    states: [AtomicU8; 2],
}

/// The pairs with at least one open endpoint, by name.
static PAIRS: Mutex<BTreeMap<String, Arc<Joint>>> = Mutex::new(BTreeMap::new());

fn pairs() -> MutexGuard<'static, BTreeMap<String, Arc<Joint>>> {
    PAIRS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PairPort {
    name: String,
    /// Index of this endpoint: 0 for the one that was opened first.
    end: usize,
    joint: Arc<Joint>,
    sender: Sender,
    receiver: Receiver,
    /// Record of the ring's slots that packets use. It keeps the ring alive.
    ledger: PoolHandle,
    counters: PortCounters,
}

fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    open_called(spec, spec.target())
}

/// Makes one pair of ports per worker; therefore the chain at the other end of the pairs must have as many workers.
fn joinable(spec: &PortSpec) -> Result<Joinable, PortError> {
    let spec = spec.clone();
    Ok(Box::new(move |worker| {
        let (spec, name) = (
            spec.clone(),
            format!("{} of worker {worker}", spec.target()),
        );
        Ok(Box::new(move |_: &mut Resources| open_called(&spec, &name)) as Part)
    }))
}

fn open_called(spec: &PortSpec, name: &str) -> Result<Box<dyn Port>, PortError> {
    let wanted = spec.number("ring", 32..=16384)?.map(|n| n as u32);
    if let Some(slots) = wanted
        && !slots.is_power_of_two()
    {
        return Err(spec.error(format!("ring={slots} is not a power of two")));
    }
    let port = PairPort::join(name, wanted, |reason| spec.error(reason))?;
    Ok(Box::new(port))
}

impl PairPort {
    /// Opens the first or the second endpoint of the pair with the given name.
    fn join(
        name: &str,
        wanted: Option<u32>,
        wrong: impl Fn(String) -> PortError,
    ) -> Result<Self, PortError> {
        let mut pairs = pairs();
        let (end, joint) = match pairs.get(name) {
            None => {
                let slots = wanted.unwrap_or(RING_SLOTS);
                let joint = Arc::new(Joint {
                    rings: [Arc::new(Ring::new(slots)?), Arc::new(Ring::new(slots)?)],
                    doorbells: [Doorbell::new()?, Doorbell::new()?],
                    states: [AtomicU8::new(OPEN), AtomicU8::new(AWAITED)],
                });
                pairs.insert(name.to_string(), Arc::clone(&joint));
                (0, joint)
            }
            Some(joint) if joint.states[1].load(Ordering::Relaxed) == AWAITED => {
                let slots = joint.rings[0].size();
                if wanted.is_some_and(|wanted| wanted != slots) {
                    return Err(wrong(format!("the other end was opened with ring={slots}")));
                }
                joint.states[1].store(OPEN, Ordering::Release);
                (1, Arc::clone(joint))
            }
            Some(_) => {
                return Err(wrong(format!(
                    "both ends of pair {name} were opened already; choose another name"
                )));
            }
        };
        let (out, back) = (&joint.rings[end], &joint.rings[1 - end]);
        // SAFETY: each endpoint of a pair is opened once, which the lock and the states ensure.
        let (sender, receiver) = unsafe {
            (
                Sender::new(Arc::clone(out)),
                Receiver::new(Arc::clone(back)),
            )
        };
        Ok(Self {
            name: name.to_string(),
            end,
            sender,
            receiver,
            ledger: PoolHandle::ledger_keeping(back.size(), Box::new(Arc::clone(back))),
            joint,
            counters: PortCounters::default(),
        })
    }

    /// Receives the arrived frames, up to the capacity of `batch`; returns their number. Passes each packet's index and
    /// its note (bits chosen by the sender) to `note`.
    #[inline(always)]
    fn receive(&mut self, batch: &mut Batch, mut note: impl FnMut(usize, u64)) -> usize {
        if self.ledger.has_returned() {
            self.ledger
                .drain_returned(|place| self.receiver.give_back(place));
            self.receiver.publish();
        }
        let before = batch.len();
        let mut bytes = 0;
        while batch.room() > 0 {
            let Some(arrived) = self.receiver.next() else {
                break;
            };
            bytes += u64::from(arrived.len);
            self.ledger.count_out(1);
            note(batch.len(), arrived.note);
            // SAFETY: the slot is ours until `give_back`, which runs after the slot has returned to the ledger; frame
            // and headroom are in the slot; the ledger keeps the memory.
            batch.push(unsafe {
                Packet::new(
                    arrived.data,
                    arrived.len,
                    crate::pool::HEADROOM_BYTES,
                    self.ledger.raw(),
                    arrived.place,
                )
            });
        }
        let received = batch.len() - before;
        self.counters.rx_packets += received as u64;
        self.counters.rx_bytes += bytes;
        received
    }

    /// Returns the state of the other endpoint. The load is an acquire: everything that the endpoint did before it set
    /// this state is visible.
    #[inline(always)]
    fn others_state(&self) -> u8 {
        self.joint.states[1 - self.end].load(Ordering::Acquire)
    }
}

impl Port for PairPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        self.receive(batch, |_, _| ())
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        if self.others_state() != OPEN {
            return 0;
        }
        let mut taken = 0;
        for packet in batch.packets() {
            let frame = packet.bytes();
            if frame.len() > ROOM_BYTES {
                self.counters.tx_too_long += 1;
            } else if self.sender.push(frame, 0) {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += frame.len() as u64;
            } else {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.sender.publish();
            self.joint.doorbells[self.end].ring();
        }
        batch.drop_front(taken);
        taken
    }

    fn link(&mut self) -> Link {
        let name = &self.name;
        match self.others_state() {
            OPEN => Link::Up,
            AWAITED => Link::Down(format!("waiting for the other end: open pair:{name} again")),
            _ => Link::Down(format!("the other end of pair {name} is closed")),
        }
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        self.joint.doorbells[1 - self.end].arm(alarm)
    }

    fn disarm(&mut self) {
        self.joint.doorbells[1 - self.end].disarm();
    }

    fn supply(&mut self) -> Supply {
        if self.others_state() == CLOSED && self.receiver.is_empty() {
            Supply::Ended
        } else {
            Supply::Open
        }
    }

    fn takes(&self) -> bool {
        self.others_state() != CLOSED
    }
}

impl Drop for PairPort {
    fn drop(&mut self) {
        let mut pairs = pairs();
        self.joint.states[self.end].store(CLOSED, Ordering::Release);
        if self.others_state() != OPEN {
            pairs.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::interface_tests::{Opened, frame_bytes, open};
    use std::time::{Duration, Instant};

    /// Opens both endpoints of a pair. The name must be unique, because the tests share a process.
    fn both(name: &str, options: &str) -> (Opened, Opened) {
        let spec = format!("pair:{name}{options}");
        (open(&spec).unwrap(), open(&spec).unwrap())
    }

    fn message(spec: &str) -> String {
        open(spec).err().unwrap().to_string()
    }

    #[test]
    fn frames_pass_in_both_directions_while_the_ring_wraps() {
        let (mut a, mut b) = both("cross", ",ring=32");
        for number in 0..if cfg!(miri) { 70 } else { 1000 } {
            let bytes = frame_bytes(number, 60 + number as usize * 37 % 1900);
            a.send(&bytes);
            assert_eq!(b.receive_one(), bytes);
            b.send(&bytes);
            assert_eq!(a.receive_one(), bytes);
        }
        assert_eq!(b.resources.pool().outstanding(), 0);
    }

    #[test]
    fn a_full_ring_leaves_packets_with_the_sender() {
        let (mut a, mut b) = both("full", ",ring=32");
        let mut batch = Batch::new();
        for number in 0..40 {
            a.load(&mut batch, &frame_bytes(number, 60));
        }
        assert_eq!(a.port.tx(&mut batch), 32);
        assert_eq!(batch.len(), 8);
        let mut received = Batch::new();
        b.receive(&mut received, 32);
        assert_eq!(a.port.tx(&mut batch), 0);
        received.clear();
        assert_eq!(b.port.rx(&mut received), 0);
        assert_eq!(a.port.tx(&mut batch), 8);
        assert_eq!(a.port.counters().tx_packets, 40);
    }

    #[test]
    fn a_frame_longer_than_a_slot_is_counted() {
        let (mut a, mut b) = both("long", "");
        let mut batch = Batch::new();
        let long = frame_bytes(1, ROOM_BYTES);
        a.load(&mut batch, &long);
        assert!(batch.packets_mut()[0].prepend(1));
        a.load(&mut batch, &long);
        assert_eq!(a.port.tx(&mut batch), 2);
        assert_eq!(a.port.counters().tx_too_long, 1);
        assert_eq!(b.receive_one(), long);
    }

    #[test]
    fn a_pair_reports_closed_endpoints_and_refuses_a_third_endpoint() {
        let mut a = open("pair:life,ring=64").unwrap();
        let Link::Down(why) = a.port.link() else {
            panic!("up alone")
        };
        assert!(why.contains("open pair:life again"), "{why}");
        let mut batch = Batch::new();
        a.load(&mut batch, &frame_bytes(0, 60));
        assert_eq!(a.port.tx(&mut batch), 0);
        let other_size = message("pair:life,ring=128");
        assert!(other_size.contains("ring=64"), "{other_size}");
        let mut b = open("pair:life").unwrap();
        assert!(a.port.link().is_up() && b.port.link().is_up());
        assert!(message("pair:life").contains("both ends"));
        b.send(&frame_bytes(1, 60));
        drop(b);
        assert!(message("pair:life").contains("both ends"));
        let Link::Down(why) = a.port.link() else {
            panic!("up again")
        };
        assert!(why.contains("closed"), "{why}");
        assert_eq!(a.port.tx(&mut batch), 0);
        // Packets that were sent before the other endpoint closed still arrive.
        assert_eq!(a.port.supply(), Supply::Open);
        assert_eq!(a.receive_one(), frame_bytes(1, 60));
        assert_eq!(a.port.supply(), Supply::Ended);
        drop(a);
        let (mut a, mut b) = both("life", "");
        a.send(&frame_bytes(2, 60));
        assert_eq!(b.receive_one(), frame_bytes(2, 60));
    }

    #[test]
    fn packets_remain_valid_after_both_endpoints_close() {
        let (mut a, mut b) = both("outlive", "");
        a.send(&frame_bytes(3, 60));
        let mut batch = Batch::new();
        b.receive(&mut batch, 1);
        drop((a, b));
        assert_eq!(batch.packets()[0].bytes(), frame_bytes(3, 60));
    }

    #[test]
    fn the_endpoints_of_a_pair_work_on_different_threads() {
        let (name, total) = (
            "pair:threads,ring=32",
            if cfg!(miri) { 100 } else { 20_000 },
        );
        let mut near = open(name).unwrap();
        let far = std::thread::spawn(move || {
            let mut far = open(name).unwrap();
            let (mut batch, mut echoed) = (Batch::new(), 0);
            while echoed < total {
                far.port.rx(&mut batch);
                echoed += far.port.tx(&mut batch);
                std::thread::yield_now();
            }
            assert_eq!(far.port.counters().rx_packets, total as u64);
        });
        let (mut out, mut back, mut sent, mut seen) = (Batch::new(), Batch::new(), 0, 0);
        while seen < total as u64 {
            while out.room() > 0 && sent < total as u64 {
                near.load(&mut out, &frame_bytes(sent, 60 + sent as usize % 64));
                sent += 1;
            }
            near.port.tx(&mut out);
            near.port.rx(&mut back);
            for packet in back.packets() {
                assert!(packet.bytes() == frame_bytes(seen, 60 + seen as usize % 64));
                seen += 1;
            }
            back.clear();
            std::thread::yield_now();
        }
        far.join().unwrap();
    }

    /// Receives at least one packet, and sleeps while there is none; returns the number of sleeps.
    fn receive_asleep(end: &mut Opened, batch: &mut Batch) -> u32 {
        let (mut alarm, mut sleeps) = (Alarm::default(), 0);
        while end.port.rx(batch) == 0 {
            alarm.clear();
            let armed = end.port.arm(&mut alarm);
            let there = end.port.rx(batch) > 0;
            if armed && !there {
                let begun = Instant::now();
                alarm.wait(Duration::from_secs(30));
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(20), "asleep on it: {took:?}");
                sleeps += 1;
            }
            end.port.disarm();
            if there {
                break;
            }
        }
        sleeps
    }

    #[test]
    #[cfg_attr(miri, ignore = "sleeps in the kernel")]
    fn a_sleeping_endpoint_is_woken_for_every_packet() {
        const TOTAL: u64 = 1_000;
        let name = "pair:woken,ring=32";
        // The endpoint that is opened first rings the first doorbell.
        let mut near = open(name).unwrap();
        let joint = Arc::clone(&pairs()["woken"]);
        // Sometimes the sender waits until the receiver sleeps, because on a busy machine the receiver would rarely
        // sleep.
        let wait = |joint: &Joint, end: usize, number: u64| {
            while number % 100 == 99 && !joint.doorbells[end].is_armed() {
                std::thread::yield_now();
            }
        };
        let far = std::thread::spawn({
            let joint = Arc::clone(&joint);
            move || {
                let (mut far, mut batch, mut sleeps) = (open(name).unwrap(), Batch::new(), 0);
                for number in 0..TOTAL {
                    sleeps += receive_asleep(&mut far, &mut batch);
                    wait(&joint, 1, number);
                    // The echo wakes the other endpoint in the same way.
                    assert_eq!(far.port.tx(&mut batch), 1);
                }
                sleeps
            }
        });
        let (mut batch, mut sleeps) = (Batch::new(), 0);
        for number in 0..TOTAL {
            (0..number % 1024).for_each(|_| std::hint::spin_loop());
            wait(&joint, 0, number);
            near.send(&frame_bytes(number, 60));
            sleeps += receive_asleep(&mut near, &mut batch);
            assert_eq!(batch.packets()[0].bytes(), frame_bytes(number, 60));
            batch.clear();
        }
        let far_sleeps = far.join().unwrap();
        assert!(
            sleeps >= 8 && far_sleeps >= 8,
            "slept {sleeps} and {far_sleeps} times"
        );
    }

    #[test]
    fn ring_sizes_other_than_powers_of_two_are_refused() {
        assert!(message("pair:odd,ring=100").contains("power of two"));
    }
}
