//! Tests of a worker's slow path from outside: the handling of punted packets, and the forwarding of the other packets
//! during that time.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use taut_engine::{Counters, CountersView, Flush, Wait, Worker};
use taut_function::{Context, Function, Handler, Passage, Punted, Send};
use taut_port::{Batch, PoolHandle, Port, PortSpec, Punt, Resources};
use taut_sys::Clock;

const PATIENCE: Duration = Duration::from_secs(60);
/// First byte of the frames that the function [`Sorts`] punts.
const SLOW: u8 = 0xee;

/// A function that punts frames that begin with [`SLOW`].
struct Sorts {
    handler: Option<Box<dyn Handler>>,
}

impl Function for Sorts {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for index in 0..batch.len() {
            if batch.packets()[index].bytes()[0] == SLOW {
                batch.mark_punted(index, Punt::Neighbour);
            }
        }
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.handler.take()
    }
}

/// A handler that returns every frame to its sender.
struct Echoes;

impl Handler for Echoes {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        assert_eq!(punted.cause, Punt::Neighbour);
        while !send(Passage::of_own(punted.from_port), punted.frame) {
            std::thread::yield_now();
        }
        true
    }
}

/// A handler that blocks until it receives a message or the channel is closed.
struct Waits(mpsc::Receiver<()>);

impl Handler for Waits {
    fn handle(&mut self, _: &Punted<'_>, _: &mut Send<'_>) -> bool {
        // The call returns an error once the sender is dropped.
        let _ = self.0.recv();
        true
    }
}

/// The peer of a worker with a single port: the port at the opposite end of the link.
struct Near {
    port: Box<dyn Port>,
    pool: PoolHandle,
    batch: Batch,
}

impl Near {
    fn send(&mut self, bytes: &[u8]) {
        let mut packet = self.pool.take(bytes.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(bytes);
        self.batch.push(packet);
        let begun = Instant::now();
        while self.port.tx(&mut self.batch) == 0 {
            assert!(begun.elapsed() < PATIENCE, "the worker takes no more");
            std::thread::yield_now();
        }
    }

    /// Receives until at least one frame has arrived; returns the frames.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let begun = Instant::now();
        while self.port.rx(&mut self.batch) == 0 {
            assert!(begun.elapsed() < PATIENCE, "nothing came");
            std::thread::yield_now();
        }
        let frames = self.batch.packets().iter();
        let frames = frames.map(|packet| packet.bytes().to_vec()).collect();
        self.batch.clear();
        frames
    }
}

/// Runs a worker with one port of backend `pair`, and calls `beside` with the peer port.
fn with_worker(
    name: &str,
    wait: Wait,
    handler: impl Handler + 'static,
    beside: impl FnOnce(Near, &Counters),
) -> CountersView {
    let clock = Clock::calibrate(Duration::from_millis(5));
    let spec = PortSpec::parse(&format!("pair:{name}")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = {
        let (spec, stop) = (spec.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
            let port = spec.open(&mut resources).unwrap();
            let function = Sorts {
                handler: Some(Box::new(handler)),
            };
            let functions: Vec<Box<dyn Function>> = vec![Box::new(function)];
            let mut worker = Worker::new(vec![port], functions, Flush::default(), &clock);
            worker.set_wait(wait, &clock);
            worker.start_slow_path().unwrap();
            tell.send(worker.counters()).unwrap();
            worker.run(&stop);
            worker.counters().read()
        })
    };
    let counters = told.recv().unwrap();
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
    let port = spec.open(&mut resources).unwrap();
    let near = Near {
        port,
        pool: resources.pool(),
        batch: Batch::new(),
    };
    beside(near, &counters);
    stop.store(true, Ordering::Relaxed);
    worker.join().unwrap()
}

#[test]
fn slow_path_packets_leave_in_order_and_are_counted() {
    for (name, wait) in [
        ("slow-poll", Wait::Yield),
        ("slow-interrupt", Wait::Interrupt),
    ] {
        let total = 3000_u32;
        let done = with_worker(name, wait, Echoes, |mut near, _| {
            let (mut fast, mut slow) = (0, 0);
            let (mut fast_back, mut slow_back) = (0, 0);
            for number in 0..total {
                let is_slow = number % 3 == 0;
                let count = if is_slow { &mut slow } else { &mut fast };
                let mut frame = [0_u8; 60 + 7];
                frame[0] = if is_slow { SLOW } else { 1 };
                frame[14..18].copy_from_slice(&u32::to_be_bytes(*count));
                *count += 1;
                near.send(&frame);
                while fast + slow - fast_back - slow_back
                    > if number + 1 == total { 0 } else { 100 }
                {
                    for frame in near.receive() {
                        let back = if frame[0] == SLOW {
                            &mut slow_back
                        } else {
                            &mut fast_back
                        };
                        assert_eq!(frame.len(), 67);
                        assert_eq!(frame[14..18], u32::to_be_bytes(*back));
                        *back += 1;
                    }
                }
            }
        });
        assert_eq!(done.punted, u64::from(total / 3), "{name}");
        assert_eq!(done.from_slow_path, done.punted, "{name}");
        let waited = done.punted_wait_ticks / done.punted;
        assert!(0 < waited && waited < done.total_ticks, "{name}: {waited}");
        assert_eq!(done.tx_packets, u64::from(total), "{name}");
        assert_eq!(done.dropped(), 0, "{name}");
    }
}

#[test]
fn a_blocked_slow_path_does_not_delay_other_packets() {
    let (release, released) = mpsc::channel();
    let (slow, fast) = (5000_u64, 2000_u32);
    let done = with_worker(
        "slow-hangs",
        Wait::Yield,
        Waits(released),
        |mut near, counters| {
            for _ in 0..slow {
                near.send(&[SLOW; 60]);
            }
            for number in 0..fast {
                let mut frame = [1; 60];
                frame[20..24].copy_from_slice(&number.to_be_bytes());
                near.send(&frame);
                assert_eq!(near.receive(), [frame]);
            }
            let begun = Instant::now();
            while counters.read().dropped_punted + counters.read().punted < slow {
                assert!(begun.elapsed() < PATIENCE, "{:?}", counters.read());
                std::thread::sleep(Duration::from_millis(10));
            }
            drop(release);
        },
    );
    assert_eq!(done.punted + done.dropped_punted, slow);
    // The ring may be full while the thread handles one more batch.
    assert!((1024..=1024 + 64).contains(&done.punted), "{done:?}");
    assert_eq!(done.tx_packets, u64::from(fast));
    assert_eq!(done.dropped(), done.dropped_punted);
}
