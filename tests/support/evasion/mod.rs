//! Random evasions of rules, sent through an inspection to real receivers. The test checks the bytes that the
//! receiver's programs get, not the inspection's view of them.

pub mod attacks;
pub mod moves;
mod plan;
mod receiver;
mod sender;

use super::hosts::{Hosts, in_namespace, ip};
use super::program::{Program, run};
use attacks::{Attack, RULES, Target, is_handed};
use moves::{Case, Move};
use receiver::Receiver;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sender::{Connection, Ends, MAC, Wire};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_wire::{IpProtocol, Ipv4Repr, Mac};

/// Number of connections that are attacked at the same time.
const AT_A_TIME: usize = 100;
/// Ports of the sender. Two batches use different ports, as a server may still be processing the earlier batch.
const PORTS: std::ops::Range<u16> = 10_000..60_000;
/// The receiver's port for marks: packets whose arrival shows that all earlier packets have passed.
const MARKS: u16 = 9;
/// The time after which an HTTP server has read a request and logged it.
const SERVERS: Duration = Duration::from_millis(40);
/// The longest time that a packet may take from the sender to the receiver.
const MARK: Duration = Duration::from_secs(20);
/// The longest time that a harmless stream may take.
const PATIENCE: Duration = Duration::from_secs(8);

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 9);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const RECEIVER_SIX: Ipv6Addr = Ipv6Addr::new(0xfd00, 8, 0, 0, 0, 0, 0, 2);

/// Returns an inspection with rules against all attacks, for a chain file. It raises the TTL, so that no packet expires
/// at the router after the inspection.
pub fn inspection(folder: &Path) -> String {
    let rules = folder.join("evasion.rules");
    std::fs::write(&rules, RULES).unwrap();
    format!(
        "[[function]]\nname = \"ips\"\nmin_ttl = 4\nrules = [{rules:?}]\nevents = \"{0}/eve.json\"\ncontrol = \"{0}/sock\"\n",
        folder.display()
    )
}

/// A sender, a chain, a router and a receiver, in a line, which together show whether attacks pass the chain.
pub struct Oracle {
    wire: Wire,
    receiver: Receiver,
    marks: UdpSocket,
    mark: u32,
    next_port: u16,
    batch: u16,
    chain: Program,
    hosts: Hosts,
    home: Home,
}

/// The outcome of an attack or of a harmless stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver's program got the forbidden bytes of an attack, or all bytes of a harmless stream.
    Handed,
    NotHanded,
    /// The receiver got bytes that differ from those sent.
    Altered,
}

impl Oracle {
    /// Builds the oracle around the functions of a chain; `functions` returns them in the syntax of a chain file, and
    /// its argument is a folder for their files. Returns `None` if a requirement is missing.
    pub fn new(functions: impl FnOnce(&Path) -> String) -> Option<Self> {
        let hosts = Hosts::new(3, &[("ethtool", "ethtool")])?;
        let [sender, router, target] = [0, 1, 2].map(|at| hosts.all[at].0.clone());
        let chain = format!(
            "wait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={sender}\", \"veth:eth0,netns={router},address=10.7.0.1/24\"]\n{}",
            functions(hosts.folder.path())
        );
        for namespace in [&sender, &router, &target] {
            set(
                namespace,
                &[
                    "net.ipv6.conf.all.accept_dad=0",
                    "net.ipv6.conf.default.accept_dad=0",
                ],
            );
        }
        // The sender's kernel takes no part in the connection.
        set(&sender, &["net.ipv6.conf.default.disable_ipv6=1"]);
        let chain = hosts.up("evasion.toml", &chain);
        connect(&router, &target);
        let mac = run(in_namespace(&router, "cat").arg("/sys/class/net/eth0/address")).success();
        let mac: Vec<u8> = mac
            .stdout
            .trim()
            .split(':')
            .map(|it| u8::from_str_radix(it, 16).unwrap())
            .collect();
        let home = Home::new();
        home.enter(&target);
        let marks = UdpSocket::bind((RECEIVER, MARKS)).unwrap();
        let receiver = Receiver::start(&hosts.all[2], hosts.folder.path());
        home.enter(&sender);
        let wire = Wire::open("eth0", Mac(mac.try_into().unwrap()));
        home.leave();
        let mut oracle = Self {
            wire,
            receiver,
            marks,
            chain,
            hosts,
            mark: 0,
            batch: 0,
            next_port: PORTS.start,
            home,
        };
        oracle.wait_for_mark();
        Some(oracle)
    }

    /// Reports whether the server of a case is available, and can identify the requests of the case despite its
    /// evasions.
    pub fn can(&self, case: &Case) -> bool {
        // An urgent byte that stays in the stream changes the request, and servers identify a request by its number.
        let is_asked_wrongly = matches!(case.attack, Attack::Response(_))
            && case
                .moves
                .iter()
                .any(|it| matches!(it, Move::Urgent { .. }));
        self.receiver.has(case.target) && !is_asked_wrongly
    }

    /// Returns the outcome of each case. Slow cases run together.
    pub fn run(&mut self, cases: &[Case]) -> Vec<Outcome> {
        let (long, short): (Vec<usize>, Vec<usize>) =
            (0..cases.len()).partition(|at| cases[*at].is_long());
        let mut outcomes = vec![Outcome::NotHanded; cases.len()];
        for places in short.chunks(AT_A_TIME).chain(long.chunks(AT_A_TIME)) {
            let batch: Vec<&Case> = places.iter().map(|at| &cases[*at]).collect();
            for (place, outcome) in places.iter().zip(self.run_batch(&batch)) {
                outcomes[*place] = outcome;
            }
        }
        outcomes
    }

    fn run_batch(&mut self, cases: &[&Case]) -> Vec<Outcome> {
        let first_port = self.ports(cases.len());
        self.receiver
            .begin(first_port..first_port + cases.len() as u16);
        let connect = |(number, case): (usize, &&Case)| {
            Connection::new(case, self.ends(case, first_port + number as u16))
        };
        let mut connections: Vec<_> = cases.iter().enumerate().map(connect).collect();
        let of_clients = cases
            .iter()
            .enumerate()
            .filter(|(_, case)| case.target == Target::Client);
        let to_sender = of_clients.map(|(number, case)| {
            let own = self.ends(case, first_port + number as u16).own;
            (SocketAddr::from(own), case.attack == Attack::Answer)
        });
        let to_sender: Vec<_> = to_sender.collect();
        self.home.enter(&self.hosts.all[2].0);
        self.receiver.connect(to_sender.into_iter());
        self.home.leave();
        let deadline = Instant::now() + PATIENCE;
        while !connections.iter().all(Connection::is_done) && Instant::now() < deadline {
            self.turn(&mut connections, first_port);
        }
        self.wait_for_mark();
        let until = Instant::now() + SERVERS;
        while Instant::now() < until {
            self.turn(&mut connections, first_port);
        }
        self.receiver.poll_servers();
        let mut outcomes = Vec::new();
        for (number, (case, connection)) in cases.iter().zip(&connections).enumerate() {
            let port = first_port + number as u16;
            let mut outcome = self.outcome(case, connection, port);
            while case.benign && outcome != Outcome::Handed && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
                self.receiver.poll_sockets();
                self.receiver.poll_servers();
                outcome = self.outcome(case, connection, port);
            }
            outcomes.push(outcome);
        }
        let mut last = Vec::new();
        connections.iter().for_each(|it| it.reset(&mut last));
        self.wire.send(&last);
        outcomes
    }

    /// Sends the packets that are due on the connections and processes those that have arrived.
    fn turn(&mut self, connections: &mut [Connection], first_port: u16) {
        let mut out = Vec::new();
        let now = Instant::now();
        for connection in connections.iter_mut() {
            connection.advance(now, &mut out);
        }
        self.wire.receive(|tcp| {
            let number = usize::from(tcp.destination_port().wrapping_sub(first_port));
            if let Some(connection) = connections.get_mut(number) {
                connection.take(tcp, &mut out);
            }
        });
        if out.is_empty() {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.wire.send(&out);
        self.receiver.poll_sockets();
    }

    fn outcome(&self, case: &Case, connection: &Connection, port: u16) -> Outcome {
        let got = self.receiver.got(port);
        let is_there = match case.attack {
            Attack::Response(_) => {
                let is_file = connection
                    .received
                    .windows(10)
                    .any(|it| it == b"text/plain");
                let is_asked_for = is_handed(case.attack, case.benign, got, &[]);
                connection.has_ended && is_file && is_asked_for
            }
            _ => is_handed(case.attack, case.benign, got, &case.payload()),
        };
        let is_stream = matches!(case.attack, Attack::Stream | Attack::Answer);
        let is_whole = !is_stream || got.get(1..).is_some_and(|it| it == case.payload());
        match is_there {
            false => Outcome::NotHanded,
            true if case.benign && !is_whole => Outcome::Altered,
            true => Outcome::Handed,
        }
    }

    /// Reserves `count` consecutive ports and returns the first.
    fn ports(&mut self, count: usize) -> u16 {
        if usize::from(PORTS.end - self.next_port) < count {
            self.next_port = PORTS.start;
            self.batch += 1;
        }
        let first = self.next_port;
        self.next_port += count as u16;
        first
    }

    fn ends(&self, case: &Case, port: u16) -> Ends {
        let [high, low] = self.batch.to_be_bytes();
        let (own, other): (IpAddr, IpAddr) = match case.v6 {
            false => (Ipv4Addr::new(10, 9, high, low).into(), RECEIVER.into()),
            true => (
                Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, self.batch).into(),
                RECEIVER_SIX.into(),
            ),
        };
        Ends {
            own: (own, port),
            other: (other, case.target.port()),
        }
    }

    /// Waits until the receiver gets a packet that was sent after all others. Fails if the packet does not arrive: the
    /// path is broken then, and outcomes of attacks are meaningless.
    fn wait_for_mark(&mut self) {
        let deadline = Instant::now() + MARK;
        self.marks
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        while Instant::now() < deadline {
            self.mark += 1;
            self.wire.send(&[mark(self.mark)]);
            let mut got = [0; 4];
            while self.marks.recv(&mut got).is_ok() {
                if u32::from_be_bytes(got) == self.mark {
                    return;
                }
            }
        }
        panic!("nothing comes through any more: {}", self.chain.stderr());
    }

    /// Returns the forbidden bytes that servers got after the time limit for them.
    pub fn late(&self) -> String {
        self.receiver.late().join("\n")
    }

    /// Stops the chain and returns the lines of its events.
    pub fn end(self) -> Vec<String> {
        let ended = self.chain.interrupt().success();
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        let events = std::fs::read_to_string(self.hosts.folder.path().join("eve.json"));
        events
            .unwrap_or_default()
            .lines()
            .map(str::to_string)
            .collect()
    }

    /// Returns each of the given cases with the smallest set of evasions with which it still reaches the receiver.
    pub fn minimised(&mut self, cases: &[Case]) -> Vec<Case> {
        let mut least = cases.to_vec();
        let mut going: Vec<usize> = (0..least.len()).collect();
        while !going.is_empty() {
            let without = |place: &usize| {
                let whole = least[*place].clone();
                (0..whole.moves.len()).map(move |at| {
                    let mut fewer = whole.clone();
                    fewer.moves.remove(at);
                    fewer
                })
            };
            let fewer: Vec<Vec<Case>> =
                going.iter().map(|place| without(place).collect()).collect();
            let outcomes = self.run(&fewer.concat());
            let mut rest = &outcomes[..];
            going = std::mem::take(&mut going)
                .into_iter()
                .zip(fewer)
                .filter_map(|(place, fewer)| {
                    let (own, others) = rest.split_at(fewer.len());
                    rest = others;
                    let at = own.iter().position(|it| *it == Outcome::Handed)?;
                    least[place] = fewer[at].clone();
                    Some(place)
                })
                .collect();
        }
        least
    }
}

/// Builds a datagram whose arrival at the receiver shows that all earlier packets have passed.
fn mark(number: u32) -> Vec<u8> {
    let udp = [
        &4000u16.to_be_bytes()[..],
        &MARKS.to_be_bytes(),
        &[0, 12, 0, 0],
        &number.to_be_bytes(),
    ]
    .concat();
    let header = Ipv4Repr {
        traffic_class: 0,
        identification: number as u16,
        dont_fragment: false,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        source: SENDER,
        destination: RECEIVER,
        options: &[],
        payload_len_bytes: udp.len(),
    };
    let mut packet = vec![0; 20 + udp.len()];
    let mut ip = header.emit(&mut packet).unwrap();
    ip.payload_mut().copy_from_slice(&udp);
    packet
}

fn set(namespace: &str, settings: &[&str]) {
    run(in_namespace(namespace, "sysctl").arg("-qw").args(settings)).success();
}

/// Connects the receiver to the router, with a static neighbour entry for the sender.
fn connect(router: &str, target: &str) {
    for line in [
        &format!("link add eth1 netns {router} type veth peer name eth0 netns {target}"),
        &format!("-n {router} address add fd00:7::1/64 dev eth0"),
        &format!("-n {router} address add 10.8.0.1/24 dev eth1"),
        &format!("-n {router} address add fd00:8::1/64 dev eth1"),
        &format!("-n {router} link set eth1 up"),
        &format!("-n {target} address add 10.8.0.2/24 dev eth0"),
        &format!("-n {target} address add fd00:8::2/64 dev eth0"),
        &format!("-n {target} link set eth0 up"),
        &format!("-n {target} link set lo up"),
        &format!("-n {target} route add default via 10.8.0.1"),
        &format!("-n {target} route add default via fd00:8::1"),
        &format!("-n {router} neighbour replace 10.7.0.9 lladdr {MAC} dev eth0 nud permanent"),
        &format!("-n {router} neighbour replace fd00:7::9 lladdr {MAC} dev eth0 nud permanent"),
        &format!("-n {router} route add 10.9.0.0/16 via 10.7.0.9"),
        &format!("-n {router} route add fd00:9::/64 via fd00:7::9"),
    ] {
        ip(line);
    }
    for (namespace, interface) in [(router, "eth0"), (router, "eth1"), (target, "eth0")] {
        let mut command = in_namespace(namespace, "ethtool");
        command.args(["-K", interface, "tso", "off", "gso", "off", "gro", "off"]);
        run(&mut command).success();
    }
    set(
        router,
        &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"],
    );
    // Sockets that enable TCP fast open accept data in a SYN, without a cookie.
    set(
        target,
        &[
            "net.ipv4.tcp_fastopen=0x202",
            "net.core.somaxconn=4096",
            "net.ipv4.tcp_max_syn_backlog=4096",
        ],
    );
}

/// The network namespace in which the thread ran before the test.
struct Home(File);

impl Home {
    fn new() -> Self {
        Self(File::open("/proc/thread-self/ns/net").unwrap())
    }

    fn enter(&self, namespace: &str) {
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    fn leave(&self) {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

/// A table with three columns for each kind of evasion: the cases, the delivered cases, and those of the delivered
/// cases that would not have been delivered without the evasion.
#[derive(Default)]
pub struct Table {
    rows: BTreeMap<String, [usize; 3]>,
}

impl Table {
    fn add(&mut self, column: usize, case: &Case) {
        let mut kinds: BTreeSet<String> = case.moves.iter().map(Move::kind).collect();
        if case.moves.is_empty() {
            kinds.insert("none".to_string());
        }
        kinds.insert(format!("= {:?} to {:?}", case.attack, case.target));
        kinds.insert("= all".to_string());
        for kind in kinds {
            self.rows.entry(kind).or_default()[column] += 1;
        }
    }

    pub fn count(&mut self, case: &Case, outcome: Outcome) {
        self.add(0, case);
        if outcome == Outcome::Handed {
            self.add(1, case);
        }
    }

    /// Prints the table: a line for each kind of evasion.
    pub fn print(&self) {
        println!(
            "{:<36} {:>7} {:>7} {:>7}",
            "move", "sent", "handed", "by it"
        );
        for (kind, [sent, handed, by_it]) in &self.rows {
            println!("{kind:<36} {sent:>7} {handed:>7} {by_it:>7}");
        }
    }
}

/// The number of attacks whose evasions are minimised. More attacks would take long without new information.
const MINIMISED: usize = 300;

/// Sends the attacks of the given seeds and returns those that were delivered. Prints a table, then each delivered
/// attack with the smallest sufficient set of evasions.
fn attack(oracle: &mut Oracle, seeds: std::ops::Range<u64>) -> Vec<Case> {
    let mut table = Table::default();
    let mut handed: Vec<Case> = Vec::new();
    for first in seeds.clone().step_by(10 * AT_A_TIME) {
        let last = seeds.end.min(first + 10 * AT_A_TIME as u64);
        let cases = (first..last).map(|seed| Case::random(seed, false));
        let cases: Vec<Case> = cases.filter(|case| oracle.can(case)).collect();
        for (case, outcome) in cases.iter().zip(oracle.run(&cases)) {
            table.count(case, outcome);
            if outcome == Outcome::Handed {
                handed.push(case.clone());
            }
        }
    }
    let failures = oracle.minimised(&handed[..handed.len().min(MINIMISED)]);
    for failure in &failures {
        table.add(2, failure);
        println!("{}", line(failure));
    }
    table.print();
    failures
}

/// Fails if an attack of the given seeds is delivered, or if a harmless stream that is sent afterwards is not.
pub fn prove(mut oracle: Oracle, seeds: std::ops::Range<u64>) {
    /// Harmless streams that check whether the path still works.
    const HARMLESS: u64 = 50;
    let failures = attack(&mut oracle, seeds);
    let late = oracle.late();
    let harmed = harmed(&mut oracle, 0..HARMLESS);
    oracle.end();
    assert!(
        failures.is_empty(),
        "{} and more got through: see above",
        failures.len()
    );
    assert!(late.is_empty(), "a server was handed late: {late}");
    assert!(harmed.is_empty(), "{}", harmed.join("\n"));
}

/// Sends harmless streams of the given seeds and returns those that did not arrive complete.
pub fn harmed(oracle: &mut Oracle, seeds: std::ops::Range<u64>) -> Vec<String> {
    let cases: Vec<Case> = seeds.map(|seed| Case::random(seed, true)).collect();
    let cases: Vec<Case> = cases.into_iter().filter(|it| oracle.can(it)).collect();
    let outcomes = oracle.run(&cases);
    let harmed = cases
        .iter()
        .zip(outcomes)
        .filter(|(_, it)| *it != Outcome::Handed);
    harmed
        .map(|(case, outcome)| format!("{outcome:?} {}", line(case)))
        .collect()
}

/// Formats an attack with its evasions as a line of a file in tests/data/evasions.
pub fn line(case: &Case) -> String {
    serde_json::to_string(case).unwrap()
}

/// Reads the attacks in all files of tests/data/evasions. Each of them has got past an inspection before.
pub fn known() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/evasions");
    let files = super::names(&folder);
    let text: String = files
        .iter()
        .map(|file| std::fs::read_to_string(folder.join(file)).unwrap())
        .collect();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}
