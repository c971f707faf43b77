//! Measures the cost of PFCP session rules per packet in the gateway. Uplink frames of 128 bytes arrive in a tunnel
//! with a bearer only, with a usage rule, or with 1 and 16 filters. The gateway runs alone, without ports. `cargo bench
//! --bench gtpu_rules`
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taut_function::Context;
use taut_gateway::Detached;
use taut_measure::ratio_interval;
use taut_port::{Batch, PoolHandle};
use taut_sys::{Clock, ticks};
use taut_wire::pfcp::{
    Cause, ElementType as E, FTeid, Message, MessageType as M, SdfFilter, Seid, Writer,
};
use taut_wire::{Protocol, Tunnel, UdpFlow};

const REPETITIONS: usize = 200;
const BATCHES: usize = 500;
const BATCH: usize = 32;
const TEID: u32 = 0x10;

struct Contender {
    name: &'static str,
    gateway: Detached,
}

fn group(elements: &[(E, &[u8])]) -> Writer {
    let mut group = Writer::group();
    for (kind, value) in elements {
        group.element(*kind, value);
    }
    group
}

fn smf() -> SocketAddr {
    "192.0.2.100:8805".parse().unwrap()
}

impl Contender {
    /// Creates a gateway with one session: `filters` rules with filters that match nothing, and one rule for all
    /// packets.
    fn new(name: &'static str, filters: u8, is_counted: bool) -> Self {
        let settings = "address = \"192.0.2.1\"\npfcp = { address = \"192.0.2.2\", peers = [\"192.0.2.100\"] }";
        let mut gateway = Detached::new(settings.parse().unwrap()).unwrap();
        let mut setup = Writer::message(M::ASSOCIATION_SETUP_REQUEST, None, 1);
        setup.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
        setup.element(E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
        ask(&mut gateway, setup);
        let mut session = Writer::message(M::SESSION_ESTABLISHMENT_REQUEST, Some(0), 2);
        session.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
        let seid = Seid {
            seid: 7,
            v4: Some([192, 0, 2, 100].into()),
            v6: None,
        };
        session.element(E::F_SEID, &seid.emit());
        let teid = FTeid::Chosen {
            teid: TEID,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
        };
        for rule in 0..=filters {
            let mut pdi = group(&[(E::SOURCE_INTERFACE, &[0]), (E::F_TEID, &teid.emit())]);
            if rule < filters {
                let text = format!("permit out 17 from 198.51.100.{rule} 80 to assigned");
                let filter = SdfFilter {
                    description: Some(text.as_bytes()),
                    ..SdfFilter::default()
                };
                pdi.element(E::SDF_FILTER, &filter.emit());
            }
            let mut pdr = group(&[(E::PDR_ID, &[0, rule]), (E::PRECEDENCE, &[0, 0, 0, rule])]);
            pdr.grouped(E::PDI, &pdi);
            pdr.element(E::FAR_ID, &[0, 0, 0, 1]);
            if is_counted {
                pdr.element(E::URR_ID, &[0, 0, 0, 1]);
            }
            session.grouped(E::CREATE_PDR, &pdr);
        }
        session.grouped(
            E::CREATE_FAR,
            &group(&[(E::FAR_ID, &[0, 0, 0, 1]), (E::APPLY_ACTION, &[2])]),
        );
        let urr = [
            (E::URR_ID, &[0, 0, 0, 1][..]),
            (E::MEASUREMENT_METHOD, &[2]),
            (E::REPORTING_TRIGGERS, &[2, 0, 0]),
        ];
        session.grouped(E::CREATE_URR, &group(&urr));
        ask(&mut gateway, session);
        Self { name, gateway }
    }

    /// Measures the cycles per packet.
    fn cycles(&mut self, pool: &PoolHandle, frame: &[u8]) -> f64 {
        let mut spent = 0;
        for _ in 0..BATCHES {
            let mut batch = Batch::new();
            pool.fill(&mut batch, BATCH, frame.len() as u16);
            for packet in batch.packets_mut() {
                packet.bytes_mut().copy_from_slice(frame);
            }
            let begun = ticks();
            let context = Context {
                from_port: 0,
                to_port: 1,
                now_ticks: begun,
                ports: 2,
            };
            self.gateway.process(&mut batch, &context);
            spent += ticks() - begun;
            assert_eq!((batch.len(), batch.dropped()), (BATCH, 0));
        }
        spent as f64 / (BATCHES * BATCH) as f64
    }
}

fn ask(gateway: &mut Detached, message: Writer) {
    let bytes = message.finish().unwrap();
    let response = gateway.hear(&bytes, smf(), Instant::now()).unwrap();
    gateway.take_changes();
    let mut elements = Message::parse(&response)
        .unwrap()
        .elements
        .map(Result::unwrap);
    let cause = elements.find(|it| it.element_type == E::CAUSE).unwrap();
    assert_eq!(cause.value, [Cause::ACCEPTED.0]);
}

fn main() {
    let cores = taut_host::choose_cores();
    taut_host::pin_current_thread(cores.device).unwrap();
    let clock = Clock::calibrate(Duration::from_millis(200));
    let tunnel = Tunnel {
        teid: TEID,
        src_ip: "192.0.2.7".parse().unwrap(),
        dst_ip: "192.0.2.1".parse().unwrap(),
    };
    let frame = UdpFlow::default().frame_as(Protocol::Udp, Some(&tunnel), 128);
    let frame = frame.unwrap();
    let pool = PoolHandle::new(256, false).unwrap();
    let mut contenders = [
        Contender::new("a bearer", 0, false),
        Contender::new("a usage rule", 0, true),
        Contender::new("1 filter before", 1, false),
        Contender::new("16 filters before", 16, false),
        Contender::new("16 filters, a usage rule", 16, true),
    ];
    let mut cycles: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..REPETITIONS {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let measured = contenders[at].cycles(&pool, &frame);
            cycles[at].push(measured);
        }
    }
    println!(
        "{REPETITIONS} interleaved repetitions of {BATCHES} batches of {BATCH}, frames of 128 bytes, clock {:.2} GHz",
        clock.hz * 1e-9
    );
    for (contender, all) in contenders.iter().zip(&cycles) {
        let mut sorted = all.clone();
        sorted.sort_by(f64::total_cmp);
        print!(
            "{:<28}{:>8.1} cycles a packet",
            contender.name,
            sorted[sorted.len() / 2]
        );
        match ratio_interval(all, &cycles[0], 0.95) {
            Some(r) => {
                let words = r.median.words(|value| format!("{value:.3}"));
                println!(", {:.3} ({words}) of a bearer's", r.median.point);
            }
            None => println!(),
        }
    }
}
