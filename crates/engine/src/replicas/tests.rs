//! Tests of replicas: the exact order, no loss, and changes of their number while packets flow.
#![allow(clippy::unwrap_used)]

use super::*;
use std::time::Instant;
use taut_functions::FUNCTIONS;
use taut_port::PoolHandle;
use taut_sys::ticks;
use taut_wire::UdpFlow;

/// A timeout longer than any pause of a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest wait of a packet for earlier ones in these tests, which no test reaches.
const WAIT: &str = "1s";

/// A function with replicas, and the packets that have left it.
struct Bench {
    function: Replicas,
    pool: PoolHandle,
    sent: u32,
    /// The numbers of the packets that left, by ingress port; dropped ones are absent.
    left: [Vec<u32>; 2],
    dropped: u32,
}

impl Bench {
    fn new(function: &str, replicas: &str) -> Self {
        let mut stage = Stage::parse(function, FUNCTIONS).unwrap();
        stage.replicas = Some(replication(replicas));
        stage.check().unwrap();
        let mut function = Replicas::new(&stage, stage.replicas.as_ref().unwrap());
        function.prepare().unwrap();
        Self {
            function,
            pool: PoolHandle::new(256, false).unwrap(),
            sent: 0,
            left: [Vec::new(), Vec::new()],
            dropped: 0,
        }
    }

    /// Passes a batch of `count` new packets of three flows, from an ingress port.
    fn pass(&mut self, from_port: usize, count: usize) {
        let mut batch = Batch::new();
        for index in 0..count {
            let flow = UdpFlow {
                src_port: 1000 + (self.sent % 3) as u16,
                ..UdpFlow::default()
            };
            let mut frame = flow.frame(84).unwrap();
            frame[6..10].copy_from_slice(&self.sent.to_be_bytes());
            self.pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packet_mut(index).bytes_mut().copy_from_slice(&frame);
            self.sent += 1;
        }
        let context = Context {
            now_ticks: ticks(),
            from_port,
            to_port: 1 - from_port,
            ports: 2,
        };
        self.function.process(&mut batch, &context);
        self.dropped += batch.dropped();
        batch.settle(&mut Batch::new());
        for packet in batch.packets() {
            let number = *packet.bytes()[6..].first_chunk().unwrap();
            self.left[from_port].push(u32::from_be_bytes(number));
        }
    }

    /// Passes packets from both ports until `count` have been sent, with less than 500 in the replicas.
    fn run(&mut self, count: u32) {
        let begun = Instant::now();
        while self.sent < count && begun.elapsed() < PATIENCE {
            let more = if self.function.held() < 500 { 20 } else { 0 };
            self.pass(0, more);
            self.pass(1, more / 2);
            std::thread::yield_now();
        }
    }

    fn finish(&mut self) {
        let begun = Instant::now();
        while self.function.held() > 0 && begun.elapsed() < PATIENCE {
            self.pass(0, 0);
            self.pass(1, 0);
            std::thread::yield_now();
        }
        assert_eq!(self.function.held(), 0);
    }

    /// Passes empty batches until each replica has `left` packets.
    fn finish_with(&mut self, left: u32) {
        let begun = Instant::now();
        let has_more = |it: &Replica| it.outstanding > left;
        while self.function.replicas.iter().flatten().any(has_more) && begun.elapsed() < PATIENCE {
            self.pass(0, 0);
            std::thread::yield_now();
        }
    }

    fn count(&self, name: &str) -> u64 {
        self.function.count_of(name).unwrap_or_default()
    }
}

fn replication(text: &str) -> Replication {
    #[derive(serde::Deserialize)]
    struct File {
        replicas: Replication,
    }
    let text = format!("replicas = {{ wait = \"{WAIT}\", {text} }}");
    toml::from_str::<File>(&text).unwrap().replicas
}

fn is_sorted(numbers: &[u32]) -> bool {
    numbers.windows(2).all(|two| two[0] < two[1])
}

#[test]
fn packets_leave_replicas_completely_and_in_order() {
    for replicas in ["count = 1", "count = 3", "count = 3, spread = \"flow\""] {
        let mut bench = Bench::new("burn(cycles=500)", replicas);
        bench.run(6000);
        bench.finish();
        assert!(bench.left.iter().all(|it| is_sorted(it)), "{replicas}");
        let left = bench.left[0].len() + bench.left[1].len();
        assert_eq!((left as u32, bench.dropped), (bench.sent, 0), "{replicas}");
        assert_eq!(bench.count("waits that timed out"), 0);
    }
}

#[test]
fn packets_that_replicas_drop_delay_no_other_packet() {
    // TOML rules cannot be written on one line of a command, so the filter drops all by default.
    let mut bench = Bench::new("filter(default=drop)", "count = 2");
    bench.run(1000);
    bench.finish();
    assert_eq!(bench.dropped, bench.sent);
    assert_eq!(bench.count("dropped by default"), u64::from(bench.sent));
}

#[test]
fn the_number_of_replicas_changes_without_loss_or_reordering() {
    let mut bench = Bench::new("burn(cycles=300)", "count = 1");
    for (count, until) in [(4, 3000), (2, 6000), (1, 8000), (3, 11_000)] {
        let next = replication(&format!("count = {count}"));
        assert!(bench.function.set_replicas(&next));
        bench.run(until);
    }
    let begun = Instant::now();
    while bench.function.active.len() != 3 && begun.elapsed() < PATIENCE {
        bench.pass(0, 1);
        std::thread::yield_now();
    }
    bench.finish();
    assert_eq!(bench.function.active.len(), 3);
    assert!(bench.left.iter().all(|it| is_sorted(it)));
    let left = bench.left[0].len() + bench.left[1].len();
    assert_eq!((left as u32, bench.dropped), (bench.sent, 0));
}

#[test]
fn packets_without_space_at_any_replica_are_dropped() {
    let mut bench = Bench::new("forward", "count = 2");
    let fill = |bench: &mut Bench, packets| {
        for replica in bench.function.replicas.iter_mut().flatten() {
            replica.outstanding = packets;
        }
    };
    fill(&mut bench, SLOTS - 10);
    bench.pass(0, 32);
    let busy = bench.count("dropped: all replicas busy");
    assert_eq!((busy, bench.dropped), (12, 12));
    bench.finish_with(SLOTS - 10);
    fill(&mut bench, 0);
    assert_eq!(bench.left[0].len(), 20);
    assert!(is_sorted(&bench.left[0]));
}

#[test]
fn functions_that_keep_state_have_no_replicas() {
    for (function, reason) in [
        ("nat(outside=[1], address=192.0.2.1)", "keeps state"),
        ("impair", "keeps state"),
        ("switch", "keeps state"),
    ] {
        let mut stage = Stage::parse(function, FUNCTIONS).unwrap();
        stage.replicas = Some(replication("count = 2"));
        let wrong = stage.check().unwrap_err().to_string();
        assert!(
            wrong.contains("replicas: it ") && wrong.contains(reason),
            "{wrong}"
        );
    }
}
