//! Tests that a frame from a slow path passes only the functions after the one that sent it, in its own direction.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use taut_engine::{Flush, Wait, Worker};
use taut_function::{Context, Function, Handler, Needs, Passage, Punted, Send};
use taut_port::{Batch, PoolHandle, Port, PortSpec, Punt, Resources};
use taut_sys::Clock;

const PATIENCE: Duration = Duration::from_secs(60);
/// The offset in a test frame of the number of names; the names that functions write follow this number.
const NAMES_AT: usize = 50;
const FRAME_BYTES: usize = 80;

/// A function that writes its name into each packet that passes it.
struct Named {
    name: u8,
    sets_addresses: bool,
}

impl Function for Named {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for index in 0..batch.len() {
            if batch.is_kept(index) {
                let bytes = batch.packet_mut(index).bytes_mut();
                bytes[NAMES_AT] += 1;
                bytes[NAMES_AT + usize::from(bytes[NAMES_AT])] = self.name;
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs {
            sets_addresses: self.sets_addresses,
            ..Needs::default()
        }
    }
}

/// A function that punts all packets; its handler sends them onward.
struct Maker {
    way: Option<fn(&Punted<'_>) -> Passage>,
}

impl Function for Maker {
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for index in 0..batch.len() {
            if batch.is_kept(index) {
                batch.mark_punted(index, Punt::Local);
            }
        }
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        self.way.take().map(|way| Box::new(Sends(way)) as _)
    }
}

struct Sends(fn(&Punted<'_>) -> Passage);

impl Handler for Sends {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        // The names written before the punt are removed, so that the frame lists only the functions that it passes
        // afterwards.
        let mut frame = punted.frame.to_vec();
        frame[NAMES_AT] = 0;
        assert!(send((self.0)(punted), &frame));
        true
    }
}

/// A function with a handler that accepts any packet. This handler must not be called before the handler of the punting
/// function.
struct Takes;

impl Function for Takes {
    fn process(&mut self, _: &mut Batch, _: &Context) {}

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        Some(Box::new(TakesAll))
    }
}

struct TakesAll;

impl Handler for TakesAll {
    fn handle(&mut self, _: &Punted<'_>, _: &mut Send<'_>) -> bool {
        true
    }
}

/// Sends one frame into port `from` of a worker with the functions given by letters. `M` is a [`Maker`], `T` is a
/// [`Takes`], and a capital letter marks a function that sets MAC addresses. All others only write their names. Returns
/// the egress port, the names and the bytes of each received frame.
fn through(
    name: &str,
    functions: &'static str,
    from: usize,
    frame: Vec<u8>,
    way: fn(&Punted<'_>) -> Passage,
) -> Vec<(usize, String, Vec<u8>)> {
    let clock = Clock::calibrate(Duration::from_millis(5));
    let specs: Vec<_> = (0..2)
        .map(|port| PortSpec::parse(&format!("pair:{name}-{port}")).unwrap())
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = {
        let (specs, stop) = (specs.clone(), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut resources = Resources::for_ports(&specs).unwrap();
            let open = |spec: &PortSpec| spec.open(&mut resources).unwrap();
            let ports: Vec<_> = specs.iter().map(open).collect();
            let make = |name: char| match name {
                'M' => Box::new(Maker { way: Some(way) }) as Box<dyn Function>,
                'T' => Box::new(Takes),
                name => Box::new(Named {
                    name: name as u8,
                    sets_addresses: name.is_ascii_uppercase(),
                }),
            };
            let functions = functions.chars().map(make).collect();
            let mut worker = Worker::new(ports, functions, Flush::default(), &clock);
            worker.set_pool(resources.pool());
            worker.set_wait(Wait::Yield, &clock);
            worker.start_slow_path().unwrap();
            tell.send(()).unwrap();
            worker.run(&stop);
            worker.counters().read()
        })
    };
    told.recv().unwrap();
    let mut resources = Resources::for_ports(&specs).unwrap();
    let mut ports: Vec<Box<dyn Port>> = specs
        .iter()
        .map(|spec| spec.open(&mut resources).unwrap())
        .collect();
    let pool: PoolHandle = resources.pool();
    let mut batch = Batch::new();
    let mut packet = pool.take(frame.len() as u16).unwrap();
    packet.bytes_mut().copy_from_slice(&frame);
    batch.push(packet);
    assert_eq!(ports[from].tx(&mut batch), 1);
    let (mut came, begun) = (Vec::new(), Instant::now());
    let mut last = None;
    // If there are two frames, they arrive together: a short wait after the last frame is enough.
    while last.is_none_or(|last: Instant| last.elapsed() < Duration::from_millis(20)) {
        assert!(begun.elapsed() < PATIENCE, "{functions}: nothing came");
        for (number, port) in ports.iter_mut().enumerate() {
            if port.rx(&mut batch) > 0 {
                for packet in batch.packets() {
                    let bytes = packet.bytes().to_vec();
                    let many = bytes.get(NAMES_AT).map_or(0, |many| usize::from(*many));
                    let names = bytes.get(NAMES_AT + 1..NAMES_AT + 1 + many);
                    let names = String::from_utf8_lossy(names.unwrap_or_default());
                    came.push((number, names.to_string(), bytes.clone()));
                }
                batch.clear();
                last = Some(Instant::now());
            }
        }
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let counters = worker.join().unwrap();
    // Fragments count as frames from the slow path.
    assert_eq!(
        (counters.punted, counters.from_slow_path),
        (1, came.len() as u64)
    );
    assert_eq!(counters.dropped(), 0, "{counters:?}");
    came
}

fn one(
    name: &str,
    functions: &'static str,
    from: usize,
    way: fn(&Punted<'_>) -> Passage,
) -> (usize, String) {
    let came = through(name, functions, from, vec![0; FRAME_BYTES], way);
    let [(port, names, _)] = &came[..] else {
        panic!("{came:?}")
    };
    (*port, names.clone())
}

#[test]
fn a_stored_packet_continues_after_the_function_that_stored_it() {
    let on = |punted: &Punted<'_>| Passage::between(punted.from_port, punted.from_port ^ 1);
    assert_eq!(one("held-out", "abMcd", 0, on), (1, "cd".to_string()));
    assert_eq!(one("held-back", "abMcd", 1, on), (0, "ba".to_string()));
    assert_eq!(one("held-first", "Mcd", 1, on), (0, String::new()));
}

#[test]
fn emitted_frames_follow_the_direction_of_their_egress_port() {
    let back = |punted: &Punted<'_>| Passage::of_own(punted.from_port);
    let on = |punted: &Punted<'_>| Passage::of_own(punted.from_port ^ 1);
    assert_eq!(one("own-back", "abMcd", 0, back), (0, "ba".to_string()));
    assert_eq!(one("own-back-2", "abMcd", 1, back), (1, "cd".to_string()));
    assert_eq!(one("own-on", "abMcd", 0, on), (1, "cd".to_string()));
    // The egress port equals the ingress port: a packet from port 0 to port 0 continues in the direction of port 0.
    let turned = |punted: &Punted<'_>| Passage::between(punted.from_port, punted.from_port);
    assert_eq!(one("turned", "abMcd", 0, turned), (0, "cd".to_string()));
}

#[test]
fn earlier_functions_only_add_missing_mac_addresses_to_emitted_frames() {
    let bare = |punted: &Punted<'_>| Passage {
        lacks_addresses: true,
        ..Passage::of_own(punted.from_port)
    };
    assert_eq!(one("bare", "aBMcDe", 0, bare), (0, "DBa".to_string()));
    assert_eq!(one("bare-out", "aBMcDe", 1, bare), (1, "BcDe".to_string()));
}

#[test]
fn a_punted_packet_reaches_the_handler_of_its_function_first() {
    let on = |punted: &Punted<'_>| Passage::between(punted.from_port, punted.from_port ^ 1);
    assert_eq!(one("handlers", "TaMbT", 0, on), (1, "b".to_string()));
}

#[test]
fn oversized_packets_are_fragmented_after_the_last_function() {
    let cut = |punted: &Punted<'_>| Passage {
        mtu: Some(100),
        ..Passage::between(punted.from_port, punted.from_port ^ 1)
    };
    let mut frame = vec![0; 14 + 220];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 220, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 1, 1,
    ]);
    let came = through("cut", "aMb", 0, frame, cut);
    let sizes: Vec<_> = came
        .iter()
        .map(|(port, _, bytes)| (*port, bytes.len()))
        .collect();
    assert_eq!(sizes, [(1, 14 + 100), (1, 14 + 100), (1, 14 + 60)]);
    // The name was written before fragmentation, so it is only in the first fragment.
    assert_eq!(came[0].1, "b");
    let of_all: Vec<_> = came.iter().flat_map(|(_, _, bytes)| &bytes[34..]).collect();
    assert_eq!(of_all.iter().filter(|it| ***it == b'b').count(), 1);
    for (_, _, bytes) in &came {
        let header = taut_wire::Ipv4::new(&bytes[14..]).unwrap();
        header.verify_checksum().unwrap();
    }
}
