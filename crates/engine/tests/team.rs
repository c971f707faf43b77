//! Tests of several workers of one chain, each with its own rings to the peer.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_engine::{Chain, End, Exchange, Stage, Start, Team};
use taut_functions::FUNCTIONS;
use taut_port::{Batch, Joinable, Port, PortSpec, Resources};
use taut_sys::Clock;

const WORKERS: usize = 4;
const DIES: usize = 2;
const FRAME_BYTES: u16 = 60;
/// The maximum number of packets between the peer's ports: below the number of slots of any ring on the path.
const MOST_UNDER_WAY: u64 = 100;
/// The number of packets that each worker has to pass: several times [`MOST_UNDER_WAY`].
const EACH: u64 = 400;
/// A timeout longer than any pause of a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

static NEVER: AtomicBool = AtomicBool::new(false);

/// The peer's ports on the two links to a worker.
struct Far {
    west: Box<dyn Port>,
    /// Peer of the east port; None once it has died.
    east: Option<Box<dyn Port>>,
    sent: u64,
    seen: u64,
}

impl Far {
    /// Sends some packets to the worker and receives those that it has forwarded.
    fn step(&mut self, resources: &Resources) {
        let mut batch = Batch::new();
        let room = MOST_UNDER_WAY.saturating_sub(self.sent - self.seen);
        // A dead peer returns nothing: the rings overflow.
        let count = if self.east.is_some() { room.min(8) } else { 8 };
        resources
            .pool()
            .fill(&mut batch, count as usize, FRAME_BYTES);
        self.sent += self.west.tx(&mut batch) as u64;
        batch.clear();
        if let Some(east) = &mut self.east {
            self.seen += east.rx(&mut batch) as u64;
        }
    }
}

fn start(stop: &Arc<AtomicBool>, at_end: impl Fn() + Send + Sync + 'static) -> Start {
    Start {
        clock: Clock::calibrate(Duration::from_millis(2)),
        stop: Arc::clone(stop),
        given_up: &NEVER,
        tell: Arc::new(|_| ()),
        tell_link: Arc::new(|_, _| ()),
        at_end: Arc::new(move |_| at_end()),
    }
}

/// Sends packets until every worker has forwarded `more` of them; none is lost.
fn pass(far: &mut [Far], resources: &Resources, exchange: &Exchange, more: u64) {
    let begun = Instant::now();
    let before: Vec<u64> = far.iter().map(|it| it.seen).collect();
    while far
        .iter()
        .zip(&before)
        .any(|(it, before)| it.seen < before + more)
    {
        assert!(begun.elapsed() < PATIENCE, "{:?}", exchange.each());
        far.iter_mut().for_each(|it| it.step(resources));
        std::thread::yield_now();
    }
}

#[test]
fn additional_workers_start_under_traffic_without_packet_loss() {
    let cores = [0; 3];
    let name = std::process::id();
    let ports = ["west", "east"].map(|end| format!("pair:joined-{name}-{end}"));
    let specs = ports.map(|text| PortSpec::parse(&text).unwrap());
    let mut chain = Chain::new(
        specs.to_vec(),
        vec![Stage::parse("mac-swap", FUNCTIONS).unwrap()],
    );
    chain.cores = cores.to_vec();
    let stop = Arc::new(AtomicBool::new(false));
    let team = Team::start(&chain, "worker", &start(&stop, || ()), None).unwrap();
    let exchange = team.exchange();

    let mut resources = Resources::for_ports(&specs).unwrap();
    let joinable = specs.each_ref().map(|spec| spec.joinable().unwrap());
    let another = |number: usize, resources: &mut Resources| {
        let [west, east] = joinable
            .each_ref()
            .map(|part: &Joinable| part(number).unwrap());
        Far {
            west: west(resources).unwrap(),
            east: Some(east(resources).unwrap()),
            sent: 0,
            seen: 0,
        }
    };
    let mut far = vec![another(0, &mut resources)];
    pass(&mut far, &resources, &exchange, EACH);
    for joined in 1..cores.len() {
        // Packets are in the rings while the worker joins, and the other workers continue.
        let core = std::thread::scope(|scope| {
            let joins = scope.spawn(|| exchange.add_worker());
            while !joins.is_finished() {
                far.iter_mut().for_each(|it| it.step(&resources));
            }
            joins.join().unwrap().unwrap()
        });
        assert_eq!(core, cores[joined]);
        far.push(another(joined, &mut resources));
        pass(&mut far, &resources, &exchange, EACH);
        // All workers get new functions, including those that join later.
        let stages = ["xor(key=7)", "forward"].map(|it| Stage::parse(it, FUNCTIONS).unwrap());
        exchange.replace(&stages[..joined]).unwrap();
        pass(&mut far, &resources, &exchange, EACH);
    }
    let none_left = exchange.add_worker().unwrap_err().to_string();
    assert!(
        none_left.contains("each of the chain's 3 cores"),
        "{none_left}"
    );
    // Receives the packets that are still in rings.
    let begun = Instant::now();
    let mut batch = Batch::new();
    for it in &mut far {
        while it.seen < it.sent {
            assert!(begun.elapsed() < PATIENCE, "{:?}", exchange.each());
            it.seen += it.east.as_mut().unwrap().rx(&mut batch) as u64;
            batch.clear();
            std::thread::yield_now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (ends, _) = team.join();
    assert!(
        ends.iter().all(|end| *end == Some(End::Stopped)),
        "{ends:?}"
    );
    let each = exchange.each();
    assert_eq!(each.len(), far.len());
    for (it, counted) in far.iter().zip(each) {
        assert_eq!((counted.rx_packets, counted.tx_packets), (it.sent, it.seen));
        assert_eq!(counted.dropped(), 0, "{counted:?}");
    }
    let ended = exchange.add_worker().unwrap_err().to_string();
    assert!(ended.contains("no core"), "{ended}");
}

#[test]
fn three_workers_continue_after_a_port_of_the_fourth_fails() {
    let name = std::process::id();
    let ports = ["west", "east"].map(|end| format!("pair:team-{name}-{end}"));
    let specs = ports.map(|text| PortSpec::parse(&text).unwrap());
    let mut chain = Chain::new(
        specs.to_vec(),
        vec![Stage::parse("mac-swap", FUNCTIONS).unwrap()],
    );
    chain.workers = WORKERS;
    let stop = Arc::new(AtomicBool::new(false));
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let start = start(&stop, move || ended.store(true, Ordering::Relaxed));
    let team = Team::start(&chain, "worker", &start, None).unwrap();
    let exchange = team.exchange();

    let mut resources = Resources::for_ports(&specs).unwrap();
    let [west, east] = specs.each_ref().map(|spec| spec.parts(WORKERS).unwrap());
    let mut far: Vec<Far> = west
        .into_iter()
        .zip(east)
        .map(|(west, east)| Far {
            west: west(&mut resources).unwrap(),
            east: Some(east(&mut resources).unwrap()),
            sent: 0,
            seen: 0,
        })
        .collect();
    let until = |far: &mut Vec<Far>, what: &str, is_so: &dyn Fn(&[Far]) -> bool| {
        let begun = Instant::now();
        while !is_so(far) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {:?}", exchange.each());
            far.iter_mut().for_each(|it| it.step(&resources));
            std::thread::yield_now();
        }
    };
    until(&mut far, "all of them pass packets", &|far| {
        far.iter().all(|it| it.seen > EACH)
    });
    far[DIES].east = None;
    let before: Vec<u64> = far.iter().map(|it| it.seen).collect();
    until(&mut far, "one ends and the others go on", &|far| {
        let mut each = far.iter().zip(&before).enumerate();
        each.all(|(number, (it, before))| number == DIES || it.seen > before + 5 * EACH)
            && has_ended.load(Ordering::Relaxed)
    });
    // Receives until all packets that were still in rings have arrived.
    let begun = Instant::now();
    while far.iter().any(|it| it.east.is_some() && it.seen < it.sent) {
        assert!(begun.elapsed() < PATIENCE);
        let mut batch = Batch::new();
        for it in &mut far {
            it.seen += it
                .east
                .as_mut()
                .map_or(0, |east| east.rx(&mut batch) as u64);
            batch.clear();
        }
        std::thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    let (ends, _) = team.join();
    // The worker whose peer has died ends by itself; the others are stopped.
    let wanted = |number| {
        if number == DIES {
            End::Done
        } else {
            End::Stopped
        }
    };
    let wanted: Vec<_> = (0..WORKERS).map(|number| Some(wanted(number))).collect();
    assert_eq!(ends, wanted);
    for (number, (it, counted)) in far.iter().zip(exchange.each()).enumerate() {
        assert_eq!(
            counted.rx_packets,
            counted.tx_packets + counted.dropped(),
            "{number}: {counted:?}"
        );
        if number != DIES {
            assert_eq!(
                (counted.rx_packets, counted.tx_packets),
                (it.sent, it.seen),
                "{number}"
            );
        }
    }
}
