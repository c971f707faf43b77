//! A load against the gateway of this tree, without sockets and in virtual time.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taut_gateway::Detached;
use taut_signalling::{Core, Load, Measured, Mix, Plan, Protocol};
use taut_wire::pfcp::{ElementType, MessageType, NodeId, Writer};

const OWN: [u8; 4] = [192, 0, 2, 100];

fn socket(port: u16) -> SocketAddr {
    (OWN, port).into()
}

/// A gateway with a PFCP or GTP-C association to the load, and the virtual time.
struct Net {
    gateway: Detached,
    begun: Instant,
    now_ns: u64,
    random: fastrand::Rng,
    /// In each direction, one of `lost_in` messages is lost; no message is lost if it is 0.
    lost_in: u32,
}

impl Net {
    fn new(sessions: usize, lost_in: u32) -> Self {
        let bearers = sessions * 12;
        let text = format!(
            "address = \"192.0.2.1\"\nbearers = {bearers}\npools = [\"10.0.0.0/8\"]\n\
             pfcp = {{ address = \"192.0.2.2\", peers = [\"192.0.2.100\"], sessions = {bearers}, \
             peer_sessions = {bearers}, heartbeat = \"none\" }}\n\
             gtpc = {{ address = \"192.0.2.3\", peers = [\"192.0.2.100\"], sessions = {sessions}, echo = \"none\" }}\n"
        );
        let begun = Instant::now();
        let mut gateway = Detached::new(text.parse().unwrap()).unwrap();
        gateway.restart(begun).unwrap();
        let mut setup = Writer::message(MessageType::ASSOCIATION_SETUP_REQUEST, None, 0);
        setup.element(ElementType::NODE_ID, &NodeId(OWN.into()).emit());
        setup.element(ElementType::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
        let setup = setup.finish().unwrap();
        gateway.hear(&setup, socket(8805), begun).unwrap();
        Self {
            gateway,
            begun,
            now_ns: 0,
            random: fastrand::Rng::with_seed(7),
            lost_in,
        }
    }

    fn is_lost(&mut self) -> bool {
        self.lost_in > 0 && self.random.u32(..self.lost_in) == 0
    }

    /// Passes messages between load and gateway until `is_over` returns true.
    fn run(&mut self, load: &mut Load, protocol: Protocol, is_over: impl Fn(&Load, u64) -> bool) {
        let mut message = Vec::new();
        while !is_over(load, self.now_ns) {
            self.now_ns += 1_000_000;
            let now = self.begun + Duration::from_nanos(self.now_ns);
            let mut heard = Vec::new();
            while load.next(self.now_ns, &mut message) {
                if self.is_lost() {
                    continue;
                }
                match protocol {
                    Protocol::Pfcp(_) => {
                        heard.extend(self.gateway.hear(&message, socket(8805), now));
                    }
                    Protocol::Gtpc => {
                        let sent = self.gateway.hear_gtpc(&message, socket(2123), now);
                        heard.extend(sent.into_iter().map(|it| it.1));
                    }
                }
            }
            self.gateway.take_changes();
            for bytes in heard {
                if !self.is_lost() {
                    load.heard(&bytes, self.now_ns);
                }
            }
        }
    }
}

fn loaded(protocol: Protocol, sessions: u32, lost_in: u32, procedures: u64) -> (Measured, Net) {
    let mut load = Load::new(Plan {
        protocol,
        sessions,
        mix: Mix::default(),
        rate: 0,
        window: 32,
        response_ns: 20_000_000,
        repeats: 10,
        own: OWN.into(),
        base_station: [192, 0, 2, 7].into(),
        seed: 3,
    });
    let mut net = Net::new(sessions as usize, lost_in);
    net.run(&mut load, protocol, |load, _| load.is_full());
    let attached = load.next_phase(net.now_ns).measured(1.0, load.sessions());
    assert_eq!(attached.procedures, u64::from(sessions), "{attached:?}");
    let begun = cpu_seconds();
    // The phase lasts a millisecond for each window of 32 procedures.
    let end = net.now_ns + procedures / 32 * 1_000_000;
    net.run(&mut load, protocol, |_, now| now >= end);
    let seconds = cpu_seconds() - begun;
    let mixed = load
        .next_phase(net.now_ns)
        .measured(seconds, load.sessions());
    (mixed, net)
}

#[test]
fn every_procedure_of_each_core_is_accepted() {
    for protocol in [
        Protocol::Pfcp(Core::Open5gs),
        Protocol::Pfcp(Core::Free5gc),
        Protocol::Gtpc,
    ] {
        let (measured, net) = loaded(protocol, 100, 0, 2000);
        assert_eq!(
            (measured.refused, measured.lost),
            (0, 0),
            "{protocol:?} {measured:?}"
        );
        assert_eq!(measured.by_procedure.len(), 5, "{measured:?}");
        net.gateway.tables_agree().unwrap();
        net.gateway.sessions_hold().unwrap();
    }
}

#[test]
fn lost_messages_are_retransmitted() {
    for protocol in [Protocol::Pfcp(Core::Free5gc), Protocol::Gtpc] {
        let (measured, net) = loaded(protocol, 50, 5, 2000);
        assert!(measured.repeated > 30, "{measured:?}");
        assert_eq!(
            (measured.refused, measured.lost),
            (0, 0),
            "{protocol:?} {measured:?}"
        );
        net.gateway.tables_agree().unwrap();
        net.gateway.sessions_hold().unwrap();
    }
}

/// Returns the processor time that this process has used, seconds; other processes do not change it.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the resident memory of this process, bytes.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0
}

/// Prints the processor time of a procedure and the memory of a session; both include the load generator's own.
#[test]
#[ignore = "a measurement"]
fn procedures_per_second_and_memory_per_session() {
    const SESSIONS: u32 = 100_000;
    for protocol in [
        Protocol::Pfcp(Core::Open5gs),
        Protocol::Pfcp(Core::Free5gc),
        Protocol::Gtpc,
    ] {
        let before = resident();
        let (measured, net) = loaded(protocol, SESSIONS, 0, 200_000);
        let bytes = (resident() - before) / f64::from(SESSIONS);
        let rate = measured.procedures_per_second;
        println!(
            "{protocol:?}: {rate:.0} procedures per second of processor time, {bytes:.0} bytes per session"
        );
        drop(net);
    }
}
