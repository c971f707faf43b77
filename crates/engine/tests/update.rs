//! Tests of functions that are replaced under traffic: no packet is lost, none passes a mix of both lists, and the
//! counts and packets of old functions are not lost.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use taut_engine::{Chain, CountersView, End, Replaced, Stage, Updates, Worker};
use taut_functions::FUNCTIONS;
use taut_port::{Batch, Port, PortSpec, Resources};
use taut_sys::Clock;

/// The maximum number of packets in the rings: below the number of slots of any ring on the path, so that no ring can
/// overflow.
const MOST_UNDER_WAY: u64 = 300;
const FRAME_BYTES: u16 = 60;
/// Offset of the sequence number within a frame.
const NUMBER_AT: usize = 40;
/// A timeout longer than any pause of a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn chain(functions: &[&str], ports: &[String; 2], burst: usize) -> Chain {
    let ports = ports.iter().map(|text| PortSpec::parse(text).unwrap());
    let mut chain = Chain::new(ports.collect(), stages(functions));
    chain.burst = burst;
    chain
}

/// Parses functions. Replicas wait for each other's packets longer than any pause of a loaded machine, because packets
/// leave in another order after a wait that has timed out.
fn stages(functions: &[&str]) -> Vec<Stage> {
    let parse = |text: &&str| {
        let mut stage = Stage::parse(text, FUNCTIONS).unwrap();
        if let Some(replicas) = &mut stage.replicas {
            replicas.wait = PATIENCE;
        }
        stage
    };
    functions.iter().map(parse).collect()
}

/// The test's ports at the opposite ends of the two links to the worker.
struct Far {
    west: Box<dyn Port>,
    east: Box<dyn Port>,
    resources: Resources,
    sent: u64,
    /// Sequence numbers and first bytes of the received packets, in order of arrival.
    seen: Vec<(u64, u8)>,
}

impl Far {
    /// Sends packets while fewer than `most` have been sent in total and fewer than [`MOST_UNDER_WAY`] are in rings,
    /// and receives those that arrived.
    fn step(&mut self, most: u64) {
        let mut batch = Batch::new();
        let room = MOST_UNDER_WAY.saturating_sub(self.sent - self.seen.len() as u64);
        let count = room.min(most.saturating_sub(self.sent)).min(17) as usize;
        if count > 0 {
            let filled = self.resources.pool().fill(&mut batch, count, FRAME_BYTES);
            for packet in batch.packets_mut() {
                let bytes = packet.bytes_mut();
                bytes.fill(0);
                bytes[0] = 0x02;
                bytes[6] = 0x06;
                bytes[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&self.sent.to_be_bytes());
                self.sent += 1;
            }
            assert_eq!(self.west.tx(&mut batch), filled, "the first ring is full");
        }
        batch.clear();
        if self.east.rx(&mut batch) == 0 {
            std::thread::yield_now();
        }
        for packet in batch.packets() {
            let number = packet.bytes()[NUMBER_AT..].first_chunk().unwrap();
            self.seen
                .push((u64::from_be_bytes(*number), packet.bytes()[0]));
        }
    }

    /// Receives until all sent packets have arrived, or a timeout.
    fn finish(&mut self) {
        let begun = Instant::now();
        while (self.seen.len() as u64) < self.sent && begun.elapsed() < PATIENCE {
            self.step(0);
        }
    }

    fn numbers(&self) -> Vec<u64> {
        self.seen.iter().map(|(number, _)| *number).collect()
    }
}

struct Done {
    counters: CountersView,
    outcomes: Vec<(&'static str, u64)>,
    end: End,
}

/// Runs a worker with the given functions between two links, and calls `drive` with the ports at the opposite ends.
fn between<T>(
    functions: &[&str],
    burst: usize,
    drive: impl FnOnce(&mut Far, &Arc<Updates>) -> T,
) -> (T, Done) {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let (process, run) = (std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let ports = ["west", "east"].map(|end| format!("pair:update-{process}-{run}-{end}"));
    let chain = chain(functions, &ports, burst);
    let clock = Clock::calibrate(Duration::from_millis(2));
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = {
        let (chain, stop) = (chain.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut resources = Resources::for_ports(&chain.ports).unwrap();
            let ports = chain.ports.iter().map(|spec| spec.open(&mut resources));
            let ports = ports.map(Result::unwrap).collect();
            let functions = chain.build_functions().unwrap();
            let mut worker = Worker::new(ports, functions, chain.flush, &clock);
            worker.set_burst(chain.burst);
            tell.send(worker.updates(&chain.functions)).unwrap();
            let end = worker.run(&stop);
            Done {
                counters: worker.counters().read(),
                outcomes: worker.outcomes(),
                end,
            }
        })
    };
    let updates = told.recv().unwrap();
    let mut resources = Resources::for_ports(&chain.ports).unwrap();
    let mut open = |index: usize| chain.ports[index].open(&mut resources).unwrap();
    let (west, east) = (open(0), open(1));
    let mut far = Far {
        west,
        east,
        resources,
        sent: 0,
        seen: Vec::new(),
    };
    let driven = drive(&mut far, &updates);
    stop.store(true, Ordering::Relaxed);
    (driven, worker.join().unwrap())
}

fn replace(updates: &Updates, functions: &[&str]) -> Replaced {
    updates.replace(stages(functions)).unwrap()
}

#[test]
fn a_thousand_updates_under_traffic_lose_and_reorder_no_packet() {
    for burst in [32, 128] {
        let lists: [&[&str]; 4] = [
            &["mac-swap"],
            &["forward", "mac-swap", "mac-swap"],
            &[],
            &["mac-swap", "forward", "mac-swap", "mac-swap"],
        ];
        let (far, done) = between(lists[0], burst, |far, updates| {
            let updater = {
                let updates = Arc::clone(updates);
                std::thread::spawn(move || {
                    for time in 1..=1000 {
                        replace(&updates, lists[time % lists.len()]);
                    }
                })
            };
            while !updater.is_finished() {
                far.step(u64::MAX);
            }
            updater.join().unwrap();
            // On a loaded machine all updates may happen between two packets, so both lists are tried again.
            for list in [lists[0], lists[1]] {
                replace(updates, list);
                far.step(u64::MAX);
                far.finish();
            }
            (far.sent, far.numbers(), far.seen.clone())
        });
        let (sent, numbers, seen) = far;
        assert!(
            numbers.iter().copied().eq(0..sent),
            "{} of {sent}",
            numbers.len()
        );
        assert_eq!((done.counters.dropped(), done.end), (0, End::Stopped));
        assert_eq!(done.counters.tx_packets, sent);
        // Each packet passes one list completely: its addresses are swapped or not.
        assert!(seen.iter().all(|(_, first)| [0x02, 0x06].contains(first)));
        for first in [0x02, 0x06] {
            assert!(seen.iter().any(|(_, seen)| *seen == first), "{first}");
        }
    }
}

#[test]
fn replicas_start_and_end_under_traffic_without_loss_or_reordering() {
    let ((sent, numbers), done) = between(&["mac-swap(replicas=1)"], 32, |far, updates| {
        for count in [3, 1, 4, 2] {
            for _ in 0..300 {
                far.step(u64::MAX);
            }
            let replaced = replace(updates, &[&format!("mac-swap(replicas={count})")]);
            assert_eq!((replaced.kept, replaced.made), (1, 0));
        }
        far.finish();
        (far.sent, far.numbers())
    });
    assert!(
        numbers.iter().copied().eq(0..sent),
        "{} of {sent}, {:?}",
        numbers.len(),
        done.outcomes
    );
    assert_eq!((done.counters.dropped(), done.end), (0, End::Stopped));
    for name in ["dropped: all replicas busy", "waits that timed out"] {
        assert!(done.outcomes.contains(&(name, 0)), "{:?}", done.outcomes);
    }
}

#[test]
fn packets_stored_by_old_functions_drain_through_later_functions() {
    const PACKETS: u64 = 100;
    let before = ["impair(delay=1.0, delay_time=200ms)", "mac-swap"];
    let (seen, done) = between(&before, 32, |far, updates| {
        while far.sent < PACKETS {
            far.step(PACKETS);
        }
        // Waits until the packets have reached the worker; packets that arrive later would pass the new functions.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(50) {
            far.step(PACKETS);
        }
        let replaced = replace(updates, &["mac-swap", "forward"]);
        assert_eq!((replaced.kept, replaced.made), (1, 1));
        far.finish();
        far.seen.clone()
    });
    assert_eq!(seen.len() as u64, PACKETS);
    assert!(seen.iter().all(|(_, first)| *first == 0x06), "{seen:?}");
    assert_eq!(done.counters.dropped(), 0);
}

#[test]
fn packet_counts_of_replaced_functions_stay_in_the_total() {
    const PACKETS: u64 = 200;
    let ((), done) = between(&["xor(key=1)"], 32, |far, updates| {
        while far.sent < PACKETS / 2 {
            far.step(PACKETS / 2);
        }
        far.finish();
        assert_eq!(replace(updates, &["xor(key=2)", "forward"]).made, 2);
        while far.sent < PACKETS {
            far.step(PACKETS);
        }
        far.finish();
        // A function that stays continues its counts, and is not counted twice.
        assert_eq!(replace(updates, &["xor(key=2)"]).kept, 1);
    });
    let counted: u64 = done.outcomes.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, PACKETS, "{:?}", done.outcomes);
}

#[test]
fn a_refused_update_leaves_the_worker_unchanged() {
    let (numbers, done) = between(&["mac-swap"], 32, |far, updates| {
        let wrong = vec![Stage::parse("xor(key=300)", FUNCTIONS).unwrap()];
        assert!(updates.replace(wrong).is_err());
        while far.sent < 50 {
            far.step(50);
        }
        far.finish();
        far.seen.clone()
    });
    assert_eq!(numbers.len(), 50);
    assert!(numbers.iter().all(|(_, first)| *first == 0x06));
    assert_eq!(done.counters.dropped(), 0);
}
