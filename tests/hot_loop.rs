//! The loops that packets pass through allocate no memory and make no system calls of their own.
#![allow(clippy::unwrap_used, unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::program::{PATIENCE, Program, run};
use support::{Sockets, alone, is_installed, taut};
use taut_engine::{Chain, Worker};
use taut_function::{Context, Function};
use taut_functions::FUNCTIONS;
use taut_port::{Batch, Link, PoolHandle, Port, PortCounters, PortSpec, Resources};
use taut_sys::Clock;
use taut_traffic::{InlineTap, Instrument, Stream, Summaries, TappedWire, Trial, sightings};
use taut_wire::{Protocol, StampLayout, Tunnel, UdpFlow};

thread_local! {
    /// Number of allocations of the current thread. The counter has no destructor and is initialised at compile time,
    /// so that counting does not allocate.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, extended by a counter for each thread.
struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator, which meets the contract of the trait.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the trait's contract, and the system's allocator has the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, new_size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn count() {
    // A thread that is ending may have no counter.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn specs(ports: &[String]) -> Vec<PortSpec> {
    ports
        .chunks(2)
        .map(|pair| PortSpec::parse(&pair[1]).unwrap())
        .collect()
}

#[test]
fn allocations_are_counted_for_the_allocating_thread() {
    let before = allocations();
    std::thread::spawn(|| drop(std::hint::black_box(vec![1_u8; 100])))
        .join()
        .unwrap();
    let after_other = allocations();
    drop(std::hint::black_box(vec![1_u8; 100]));
    assert!(allocations() > after_other);
    // Starting a thread allocates here; the vector in the other thread does not count.
    assert!(after_other - before < 20);
}

#[test]
fn worker_and_generator_threads_allocate_nothing_for_packets() {
    const WARM_UP: Trial = Trial {
        rate_pps: 100e3,
        duration: Duration::from_millis(300),
    };
    const TRIAL: Trial = Trial {
        rate_pps: 200e3,
        duration: Duration::from_millis(250),
    };
    let _turn = alone();
    for flush in ["each", "idle(32)", "full(32, 100us)", "every(50us)"] {
        let sockets = Sockets::new();
        let clock = Clock::calibrate(Duration::from_millis(20));
        let stop = AtomicBool::new(false);
        let (tell_allocated, allocated) = mpsc::channel();
        let (received, of_worker, of_instrument) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let specs = specs(&sockets.ports("client", ""));
                let mut resources = Resources::for_ports(&specs).unwrap();
                let ports = specs
                    .iter()
                    .map(|s| s.open(&mut resources).unwrap())
                    .collect();
                let functions =
                    vec![taut_functions::build("mac-swap", Default::default()).unwrap()];
                let mut worker = Worker::new(ports, functions, flush.parse().unwrap(), &clock);
                // A link change may allocate, as here; after the last change the loop allocates nothing.
                let mark = std::rc::Rc::new(Cell::new(None));
                let on_change = std::rc::Rc::clone(&mark);
                let mut up = 0;
                worker.on_link_change(move |_, link| {
                    up += usize::from(*link == Link::Up);
                    if up == 2 {
                        on_change.set(Some(allocations()));
                    }
                });
                worker.run(&stop);
                let end = allocations();
                tell_allocated
                    .send(mark.get().map(|start| end - start))
                    .unwrap();
            });
            let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
            let specs = specs(&sockets.ports("server", ""));
            let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
            instrument.wait_for_links(PATIENCE, &stop).unwrap();
            // The worker checks its links ten times a second, so the warm-up includes a check of links.
            instrument.run(WARM_UP, &mut Summaries::new(&clock), &stop);
            // Every trial has the same setup before its first packet, whatever its length.
            let short = Trial {
                rate_pps: 100.0,
                duration: Duration::from_millis(20),
            };
            let mut record = Summaries::new(&clock);
            let before = allocations();
            instrument.run(short, &mut record, &stop);
            let of_any_trial = allocations() - before;
            let mut record = Summaries::new(&clock);
            let before = allocations();
            let tally = instrument.run(TRIAL, &mut record, &stop);
            let of_instrument = allocations() - before - of_any_trial;
            stop.store(true, Ordering::Relaxed);
            (tally.received, allocated.recv().unwrap(), of_instrument)
        });
        assert!(received > 10_000, "{flush}: {received}");
        assert_eq!(
            (of_worker, of_instrument),
            (Some(0), 0),
            "{flush}: {received} packets"
        );
    }
}

/// A port that always has packets, and accepts a set number in each call.
struct Endless {
    pool: PoolHandle,
    layout: StampLayout,
    template: Vec<u8>,
    next: u64,
    takes: usize,
}

impl Endless {
    fn boxed() -> Box<dyn Port> {
        Self::taking(usize::MAX)
    }

    fn taking(takes: usize) -> Box<dyn Port> {
        let template = UdpFlow::default().frame(64).unwrap();
        Box::new(Self {
            pool: PoolHandle::new(256, false).unwrap(),
            layout: StampLayout::new(&template).unwrap(),
            template,
            next: 0,
            takes,
        })
    }
}

/// A function of a chain that sends every third packet back, assigns priorities to some, and copies some to both ports.
struct Everywhere;

impl Function for Everywhere {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        for index in 0..batch.len() {
            match index % 5 {
                0 => batch.send_to(index, context.from_port as u8),
                1 => batch.set_priority(index, (index % 8) as u8),
                2 => drop(batch.copy_to(index, context.from_port as u8)),
                3 => batch.mark_dropped(index),
                _ => {}
            }
        }
    }
}

#[test]
fn sending_copying_and_queueing_packets_allocates_nothing() {
    let clock = Clock::calibrate(Duration::from_millis(20));
    let chain = "ports = [\"null:\", \"null:\"]\nqueue = { packets = 100, bytes = 5000, priorities = 3, drop = \"codel(10us, 100us)\" }";
    let queue = Chain::parse(chain, "chain", FUNCTIONS)
        .unwrap()
        .queue
        .unwrap();
    let run = |duration: Duration| {
        let ports = vec![Endless::taking(6), Endless::taking(6)];
        let functions: Vec<Box<dyn Function>> = vec![Box::new(Everywhere)];
        let mut worker = Worker::new(ports, functions, "idle(32)".parse().unwrap(), &clock);
        worker.set_pool(PoolHandle::new(1024, false).unwrap());
        worker.set_queueing(&queue, &clock).unwrap();
        let stop = AtomicBool::new(false);
        let allocated = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(duration);
                stop.store(true, Ordering::Relaxed);
            });
            let before = allocations();
            worker.run(&stop);
            allocations() - before
        });
        (worker.counters().read(), allocated)
    };
    let (_, least) = run(Duration::ZERO);
    let (counted, allocated) = run(Duration::from_millis(300));
    for count in [
        counted.rounds,
        counted.dropped_queue_full,
        counted.dropped_codel,
        counted.dropped_by_function,
    ] {
        assert!(count > 1000, "{counted:?}");
    }
    assert_eq!(counted.dropped_no_copy, 0);
    assert_eq!(allocated, least);
}

impl Port for Endless {
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let n = self.pool.fill(batch, 32, self.template.len() as u16);
        for packet in batch.packets_mut() {
            packet.bytes_mut().copy_from_slice(&self.template);
            let frame = packet.bytes_mut();
            self.layout.write(frame, 1, self.next, 0).unwrap();
            self.next += 1;
        }
        n
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len().min(self.takes);
        batch.drop_front(n);
        n
    }

    fn link(&mut self) -> Link {
        Link::Up
    }

    fn counters(&mut self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_tap_in_line_allocates_nothing_for_packets() {
    let clock = Clock::calibrate(Duration::from_millis(20));
    let run = |duration: Duration| {
        let (writer, mut reader) = sightings(1 << 10);
        let wire = TappedWire {
            generator: Endless::boxed(),
            device: Endless::boxed(),
        };
        let tap = InlineTap::new(vec![wire], writer, &clock);
        let stop = AtomicBool::new(false);
        let allocated = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(duration);
                stop.store(true, Ordering::Relaxed);
            });
            let before = allocations();
            let account = tap.run(&stop, |_, _| ());
            assert_eq!((account.refused, account.undelivered), (0, 0));
            allocations() - before
        });
        let mut seen = reader.ring_full();
        reader.take(&clock, |_| seen += 1);
        (seen, allocated)
    };
    // The setup and the report make the same number of allocations, however many packets pass.
    let (_, least) = run(Duration::ZERO);
    let (seen, allocated) = run(Duration::from_millis(300));
    assert!(seen > 10_000, "{seen}");
    assert_eq!(allocated, least);
}

#[test]
fn pcap_and_pair_ports_allocate_nothing_for_packets() {
    let folder = support::scratch();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let open = |texts: [String; 2]| {
        let specs = texts.map(|text| PortSpec::parse(&text).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let ports = specs.map(|spec| spec.open(&mut resources).unwrap());
        (ports, resources)
    };
    let write = |name: &str| format!("pcap:{},role=write", file(name));
    let ([mut source, mut sink], _) = open(["null:source=32".to_string(), write("in.pcap")]);
    let mut batch = Batch::new();
    for _ in 0..1000 {
        source.rx(&mut batch);
        while !batch.is_empty() {
            sink.tx(&mut batch);
        }
    }
    drop((source, sink));
    let read = format!("pcap:{},repeat=0", file("in.pcap"));
    let pair = || "pair:hot-loop".to_string();
    let ([mut source, mut near], _) = open([read, pair()]);
    // The second port writes to /dev/null, as a file would fill the disk.
    let ([mut far, mut sink], _) = open([pair(), "pcap:/dev/null,role=write".to_string()]);
    let mut arrived = Batch::new();
    let mut pass_on = |packets: u64| {
        let goal = sink.counters().tx_packets + packets;
        let start = Instant::now();
        while sink.counters().tx_packets < goal {
            source.rx(&mut batch);
            near.tx(&mut batch);
            far.rx(&mut arrived);
            sink.tx(&mut arrived);
            assert!(start.elapsed() < PATIENCE);
        }
    };
    // After this many packets, every memory block has been used at least once.
    pass_on(300_000);
    let before = allocations();
    pass_on(1_000_000);
    assert_eq!(allocations() - before, 0);
}

#[test]
fn a_switch_with_rules_allocates_nothing_for_packets() {
    let rules = "[[meter]]\nid = 1\npps = 1000\n\
        [[group]]\nid = 1\ntype = \"all\"\nbuckets = [{ actions = [\"output:2\"] }, { actions = [\"output:3\"] }]\n\
        [[rule]]\nip_proto = \"udp\"\nactions = [\"set:ip_dst=10.0.0.1\", \"dec_ttl\", \"push_vlan\", \"goto:1\"]\n\
        [[rule]]\ntable = 1\nvlan = \"any\"\nactions = [\"pop_vlan\", \"meter:1\", \"queue:3\", \"group:1\", \"normal\"]\n";
    let mut switch = taut_functions::build("switch", rules.parse().unwrap()).unwrap();
    switch.prepare().unwrap();
    let context = Context {
        to_port: 1,
        ports: 4,
        ..Context::default()
    };
    let frame = UdpFlow::default().frame(100).unwrap();
    let pool = PoolHandle::new(256, false).unwrap();
    let mut batch = Batch::new();
    let mut pass = |rounds: usize| {
        for _ in 0..rounds {
            pool.fill(&mut batch, 32, frame.len() as u16);
            for packet in batch.packets_mut() {
                packet.bytes_mut().copy_from_slice(&frame);
            }
            switch.process(&mut batch, &context);
            batch.clear();
        }
    };
    pass(10);
    let before = allocations();
    pass(1000);
    assert_eq!(allocations() - before, 0);
    let outcomes = switch.outcomes();
    assert!(
        outcomes
            .iter()
            .any(|it| it.0 == "dropped by a meter" && it.1 > 1000),
        "{outcomes:?}"
    );
}

#[test]
fn an_inspection_allocates_nothing_for_packets() {
    let folder = support::scratch();
    let rules = folder.path().join("rules");
    let seen = "alert udp any any -> any 53 (msg:\"seen\"; sid:1;)\n";
    std::fs::write(&rules, taut_inspect::sample::rules() + seen).unwrap();
    // Alerts are raised faster than they are written. Checksums are ignored, as the test changes segments without
    // correcting their checksums.
    let settings = format!(
        "rules = [\"{}\"]\nevents = \"{1}/eve.json\"\nalerts = \"{1}/alerts.pcapng\"\nalerts_size = \"64 kB\"\n\
         max_time = \"1s\"\ninner = true\nchecksums = \"ignore\"\n",
        rules.display(),
        folder.path().display()
    );
    let mut ips = taut_functions::build("ips", settings.parse().unwrap()).unwrap();
    ips.prepare().unwrap();
    let context = Context {
        to_port: 1,
        ports: 2,
        ..Context::default()
    };
    let mut flow = UdpFlow {
        dst_port: 53,
        ..UdpFlow::default()
    };
    let datagram = flow.frame(500).unwrap();
    let tunnel = Tunnel {
        teid: 1,
        src_ip: flow.src_ip,
        dst_ip: flow.dst_ip,
    };
    let tunnelled = flow.frame_as(Protocol::Udp, Some(&tunnel), 500).unwrap();
    flow.dst_port = 80;
    let request = b"GET /index.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: test\r\nCookie: a=b\r\n\r\n";
    let size = 54 + request.len() + 4;
    let mut segment = flow.frame_as(Protocol::Tcp, None, size).unwrap();
    segment[54..][..request.len()].copy_from_slice(request);
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    let mut sequence = 1u32;
    // The number of allocations while packets were inspected.
    let counted = Cell::new(0);
    let mut pass = |rounds: usize| {
        for _ in 0..rounds {
            for kind in 0..3 {
                let frame = match kind {
                    0 => &mut datagram.clone(),
                    1 => &mut tunnelled.clone(),
                    _ => &mut segment,
                };
                if kind == 2 {
                    sequence = sequence.wrapping_add(request.len() as u32);
                    frame[38..42].copy_from_slice(&sequence.to_be_bytes());
                }
                let before = allocations();
                pool.fill(&mut batch, 1, frame.len() as u16);
                batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
                ips.process(&mut batch, &context);
                batch.clear();
                counted.set(counted.get() + allocations() - before);
            }
        }
    };
    // Regular expressions of rules allocate their memory at the first use.
    pass(100);
    counted.set(0);
    pass(10_000);
    assert_eq!(counted.get(), 0);
    let outcomes = ips.outcomes();
    assert!(outcomes.contains(&("passed", 3 * 10_100)), "{outcomes:?}");
}

#[test]
fn the_record_function_allocates_nothing_for_packets() {
    // The buckets are small, so that many are used.
    let settings = "ring = \"1 MB\"\nbucket = \"64 kB\"";
    let mut record = taut_functions::build("record", settings.parse().unwrap()).unwrap();
    record.prepare().unwrap();
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    let before = allocations();
    for _ in 0..10_000 {
        let context = Context {
            now_ticks: taut_sys::ticks(),
            ..Context::default()
        };
        pool.fill(&mut batch, 32, 60);
        record.process(&mut batch, &context);
        batch.clear();
    }
    assert_eq!(allocations() - before, 0);
    assert_eq!(record.outcomes()[0], ("recorded", 320_000));
}

#[test]
fn plugin_and_lua_functions_allocate_nothing_for_packets() {
    let folder = support::scratch();
    let library = support::own_functions::example_in_c(folder.path());
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/function-lua/mac_swap.lua"
    );
    for (name, file) in [("plugin", library.to_str().unwrap()), ("lua", script)] {
        let settings = format!("file = \"{file}\"");
        let mut function = taut_functions::build(name, settings.parse().unwrap()).unwrap();
        function.prepare().unwrap();
        let context = Context {
            to_port: 1,
            ports: 2,
            ..Context::default()
        };
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = Batch::new();
        let mut pass = |rounds: usize| {
            for round in 0..rounds {
                pool.fill(&mut batch, 32, 60);
                if round % 2 == 1 {
                    batch.mark_dropped(3);
                }
                function.process(&mut batch, &context);
                batch.clear();
            }
        };
        pass(1000);
        // Lua compiles frequent code at a random time; all packets after that allocate nothing.
        let mut rounds = 1000;
        let least = (0..5).map(|_| {
            let before = allocations();
            pass(10_000);
            rounds += 10_000;
            allocations() - before
        });
        let tries = if name == "lua" { 5 } else { 1 };
        assert!(least.take(tries).any(|made| made == 0), "{name}");
        let swapped = rounds / 2 * (32 + 31);
        assert!(
            function
                .outcomes()
                .contains(&("MAC addresses swapped", swapped)),
            "{name}"
        );
    }
}

#[test]
fn the_worker_makes_no_system_call_for_packets() {
    let _turn = alone();
    if !is_installed("strace") {
        println!("skipped: needs strace");
        return;
    }
    if run(Command::new("strace").args(["-o", "/dev/null", "true"])).code() != Some(0) {
        println!("skipped: needs permission to trace (ptrace)");
        return;
    }
    let sockets = Sockets::new();
    let mut arguments = vec![
        "forward".to_string(),
        "--quiet".to_string(),
        "--json".to_string(),
        // The worker stores packets, and other threads read the stored packets.
        "--function".to_string(),
        "record(ring=64 MB)".to_string(),
    ];
    arguments.extend(sockets.ports("client", ""));
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("started");
    let worker = thread_named(forward.id(), "worker");

    let stream = Stream::new(&UdpFlow::default(), 64).unwrap();
    let clock = Clock::calibrate(Duration::from_millis(20));
    let stop = AtomicBool::new(false);
    let specs = specs(&sockets.ports("server", ""));
    let mut instrument = Instrument::open(&specs, stream, clock).unwrap();
    instrument.wait_for_links(PATIENCE, &stop).unwrap();
    let trial = |rate_pps: f64| Trial {
        rate_pps,
        duration: Duration::from_millis(500),
    };
    // This run gives the worker time to report that its links are up.
    instrument.run(trial(100e3), &mut Summaries::new(&clock), &stop);
    let trace = support::scratch();
    let calls = trace.path().join("calls");
    let mut strace = Program::start(
        Command::new("strace")
            .args(["-qq", "-p", &worker, "-o"])
            .arg(&calls),
    );
    let tracer = format!("/proc/{}/task/{worker}/status", forward.id());
    let deadline = Instant::now() + PATIENCE;
    while std::fs::read_to_string(&tracer)
        .unwrap()
        .contains("TracerPid:\t0\n")
    {
        assert!(
            Instant::now() < deadline && strace.is_running(),
            "{}",
            strace.stderr()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let tally = instrument.run(trial(200e3), &mut Summaries::new(&clock), &stop);
    strace.interrupt();
    let calls = std::fs::read_to_string(&calls).unwrap();
    assert!(tally.received > 10_000, "{tally:?}");
    // The worker also checks its links in memory, without system calls. The remaining calls are for interruptions by
    // the operating system.
    assert!(
        calls.lines().count() < 20,
        "{} packets:\n{calls}",
        tally.received
    );
    forward.interrupt().success();
}

/// Returns the identifier of the thread of process `pid` with the given name.
fn thread_named(pid: u32, name: &str) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten();
    threads
        .into_iter()
        .find(|thread| {
            let comm = std::fs::read_to_string(thread.path().join("comm"));
            comm.is_ok_and(|comm| comm.trim() == name)
        })
        .map(|thread| thread.file_name().into_string().unwrap())
        .unwrap()
}
