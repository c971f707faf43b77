//! Soaks of half an hour at half the loss-free rate of a forwarder, while its drivers change what it does: a PFCP
//! control plane, BIRD, an OpenFlow controller. Every packet is counted, and neither memory nor open files grow. Each
//! piece prints its result as a line of JSON.

use super::packets::{number, passed, routed};
use super::{held_by, loss_free_rate, sending, share_of};
use crate::support::drivers::{bird, birdc, establishment, group, moved, networks, ofctl, simple};
use crate::support::hosts::Hosts;
use crate::support::program::{Finished, Program};
use crate::support::{Sockets, alone, scratch, taut};
use serde_json::{Value, json};
use std::fmt::Write;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use taut_model::fit::{Design, Spread, least_squares};
use taut_wire::pfcp::{Cause, ElementType as E, FTeid, Message, MessageType as M, Seid, Writer};

/// Length of each soak in seconds.
const SECONDS: u64 = 4 * PIECE_SECONDS;
/// Length of a piece of a soak in seconds; each piece has a forwarder of its own.
const PIECE_SECONDS: u64 = 1800;
/// The fraction of the loss-free rate at which packets are sent. On a shared machine, TAUT_SOAK_RATE can set the rate
/// in packets per second instead.
const LOAD: f64 = 0.5;
/// The interval at which the forwarder's memory and files are sampled.
const SAMPLE: Duration = Duration::from_secs(1);
/// The divisor of the settling time: memory must be stable after the first `1 / SETTLING` of a piece.
const SETTLING: u32 = 3;
const LEAST_SECONDS: u64 = 180;
/// The largest allowed rise of the least-squares line through resident memory, from the settling time to the end of the
/// piece, kilobytes. It allows for noise of the allocator.
const RISE_KB: f64 = 512.0;
/// The confidence level of the interval for the slope of the least-squares line through resident memory.
const CONFIDENCE: f64 = 0.95;

/// The timeout of a program that changes rules or sessions; long, because it runs at the lowest priority.
const PATIENCE: Duration = Duration::from_secs(900);

/// A function that changes how packets are handled; it returns the number of changes that it made.
type Change<'a> = Box<dyn FnMut() -> u64 + 'a>;

/// Runs a command to its end and checks that it succeeds.
fn patiently(command: &mut Command) -> Finished {
    Program::start(command).finish_within(PATIENCE).success()
}

struct Soak<'a> {
    name: &'a str,
    functions: &'a str,
    traffic: &'a [&'a str],
    /// The function that prepares the forwarder, which has just started, for the first packet, and returns the change
    /// to make during the soak. Its argument is the forwarder's folder.
    begin: &'a dyn Fn(&Path) -> Change<'a>,
    /// The function that checks that every packet is counted, from the forwarder's summary and the generator's sent and
    /// received counts.
    account: fn(&Value, u64, u64),
}

impl Soak<'_> {
    fn last(&self) {
        let seconds = share_of(SECONDS).max(LEAST_SECONDS);
        let asked = std::env::var("TAUT_SOAK_RATE");
        let rate = asked.map_or_else(|_| self.half_load(), |rate| rate.parse().unwrap());
        let pieces = seconds.div_ceil(PIECE_SECONDS);
        for piece in 1..=pieces {
            let mut row = self.piece(rate, seconds / pieces);
            row["piece"] = json!(format!("{piece} of {pieces}"));
            println!("{row}");
        }
    }

    fn start(&self, sockets: &Sockets, folder: &Path) -> Program {
        let ports = sockets
            .paths()
            .map(|path| format!("memif:{}", path.display()));
        let file = folder.join("chain.toml");
        let chain = format!(
            "ports = {ports:?}\nwait = \"sleep(50us)\"\n{}",
            self.functions
        );
        fs::write(&file, chain).unwrap();
        let mut forward = Program::start(
            taut(&["forward", "--json", "--quiet"])
                .arg(&file)
                .current_dir(folder),
        );
        forward.wait_for_stdout("started");
        forward
    }

    /// Returns half of the rate that the forwarder sustains while nothing changes.
    fn half_load(&self) -> f64 {
        let (sockets, folder) = (Sockets::new(), scratch());
        let _forward = self.start(&sockets, folder.path());
        let _change = (self.begin)(folder.path());
        loss_free_rate(&sockets.ports("client", ""), self.traffic) * LOAD
    }

    fn piece(&self, rate: f64, seconds: u64) -> Value {
        let (sockets, folder) = (Sockets::new(), scratch());
        let forward = self.start(&sockets, folder.path());
        let mut change = (self.begin)(folder.path());
        let generate = format!("generate --rate {rate:.0} --seconds {seconds} --warm-up 0");
        let line = sending(&generate, &sockets.ports("client", ""), self.traffic);
        let mut generator = Program::start(&mut taut(&line));
        let (begun, mut changes) = (Instant::now(), 0);
        let mut held = Held::default();
        while generator.is_running() {
            changes += change();
            let after = begun.elapsed();
            if after >= Duration::from_secs(seconds) / SETTLING {
                held.look(forward.id(), after);
            }
        }
        let stream = generator.finish().first_stream();
        let ended = forward.interrupt().success();
        assert!(!ended.stderr.contains("panicked"), "{ended:?}");
        let counted = ended.last_json();
        let sent = number(&stream["tally"]["sent"]);
        let received = number(&stream["sequence"]["received_unique"]);
        let mut row = json!({
            "soak": self.name, "seconds": seconds, "rate_pps": rate.round(), "sent": sent, "received": received,
            "refused": stream["tally"]["refused"], "changes": changes, "outcomes": seen(&counted["outcomes"], ""),
            "dropped": seen(&counted["counters"], "dropped_"),
        });
        held.stays(&mut row);
        (self.account)(&counted, sent, received);
        row
    }
}

/// Returns the counts above 0 whose names begin with `beginning`.
fn seen(counts: &Value, beginning: &str) -> Value {
    let counts = counts.as_object().unwrap().iter();
    let seen = counts.filter(|(name, count)| name.starts_with(beginning) && number(count) > 0);
    Value::Object(
        seen.map(|(name, count)| (name.clone(), count.clone()))
            .collect(),
    )
}

/// The resources of a process, sampled over time.
#[derive(Default)]
struct Held {
    /// The terms of the fitted line for each sample: 1, and the hours since the first packet was sent.
    terms: Vec<Vec<f64>>,
    kilobytes: Vec<f64>,
    descriptors: Vec<usize>,
    last: Duration,
}

impl Held {
    fn look(&mut self, process: u32, after: Duration) {
        if after < self.last + SAMPLE {
            return;
        }
        self.last = after;
        let (descriptors, kilobytes) = held_by(process);
        self.terms.push(vec![1.0, after.as_secs_f64() / 3600.0]);
        self.kilobytes.push(kilobytes as f64);
        self.descriptors.push(descriptors);
    }

    /// Adds a summary of the samples to `row`, the result of a piece, and checks that neither memory nor open files
    /// grow.
    fn stays(&self, row: &mut Value) {
        let names = ["at the start", "an hour"];
        let design = Design::new(&names, &self.terms, &self.kilobytes, Spread::Absolute).unwrap();
        let fit = least_squares(&design, CONFIDENCE).unwrap();
        let slope = &fit.coefficients[1];
        let most = self.descriptors.iter().max();
        row["descriptors"] = json!([self.descriptors[0], most]);
        row["memory_kb"] = json!([self.kilobytes[0], self.kilobytes.last()]);
        row["slope_kb_an_hour"] = json!([slope.low, slope.value, slope.high]);
        row["looks"] = json!(self.terms.len());
        let hours = self.terms[self.terms.len() - 1][1] - self.terms[0][1];
        assert!(slope.value * hours <= RISE_KB, "memory grows: {row}");
        assert_eq!(most, self.descriptors.first(), "open files grow: {row}");
    }
}

// ---- a gateway and its control plane ----

/// The largest number of sessions at one time, each with a tunnel.
const SESSIONS: u32 = 1000;
const BETWEEN_REQUESTS: Duration = Duration::from_millis(2);
const RESPONSE_TIME: Duration = Duration::from_secs(1);
/// Number of attempts to send a request before the gateway counts as dead.
const MOST_REQUESTS: usize = 60;

/// A control plane that creates, changes and deletes sessions.
struct ControlPlane {
    socket: UdpSocket,
    sequence: u32,
    /// The gateway's identifiers of the sessions, by tunnel.
    sessions: Vec<Option<u64>>,
    random: fastrand::Rng,
}

impl ControlPlane {
    /// Creates the control plane with all sessions.
    fn new(gateway: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(gateway).unwrap();
        socket.set_read_timeout(Some(RESPONSE_TIME)).unwrap();
        let mut plane = Self {
            socket,
            sequence: 0,
            sessions: Vec::new(),
            random: fastrand::Rng::with_seed(1),
        };
        let node: (E, &[u8]) = (E::NODE_ID, &[0, 127, 0, 0, 1]);
        let stamp: (E, &[u8]) = (E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
        plane.ask(|sequence| simple(M::ASSOCIATION_SETUP_REQUEST, None, sequence, &[node, stamp]));
        for tunnel in 0..SESSIONS {
            let seid = plane.establish(tunnel);
            plane.sessions.push(Some(seid));
        }
        plane
    }

    /// Repeats a request until a response arrives; returns the response, which must report success.
    fn ask(&mut self, request: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
        self.sequence += 1;
        let request = request(self.sequence);
        let mut response = vec![0; 2048];
        for _ in 0..MOST_REQUESTS {
            self.socket.send(&request).unwrap();
            while let Ok(length) = self.socket.recv(&mut response) {
                let message = Message::parse(&response[..length]).unwrap();
                if message.sequence != self.sequence {
                    continue;
                }
                let mut elements = message.elements.map(Result::unwrap);
                let cause = elements.find(|it| it.element_type == E::CAUSE).unwrap();
                assert_eq!(cause.value, [Cause::ACCEPTED.0]);
                response.truncate(length);
                return response;
            }
        }
        panic!("request {} is not answered", self.sequence);
    }

    fn establish(&mut self, tunnel: u32) -> u64 {
        let end = FTeid::Chosen {
            teid: tunnel + 1,
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
        };
        let [.., high, low] = tunnel.to_be_bytes();
        let response = self.ask(|sequence| establishment(sequence, end, [10, 45, high, low]));
        let message = Message::parse(&response).unwrap();
        let mut elements = message.elements.map(Result::unwrap);
        let seid = elements.find(|it| it.element_type == E::F_SEID).unwrap();
        Seid::parse(seid.value).unwrap().seid
    }

    fn change(&mut self) {
        let tunnel = self.random.u32(..SESSIONS);
        let at = tunnel as usize;
        let Some(seid) = self.sessions[at] else {
            self.sessions[at] = Some(self.establish(tunnel));
            return;
        };
        match self.random.u8(..4) {
            0 => {
                self.ask(|sequence| simple(M::SESSION_DELETION_REQUEST, Some(seid), sequence, &[]));
                self.sessions[at] = None;
            }
            1 => {
                self.ask(|sequence| moved(sequence, seid, sequence, [192, 0, 2, 7]));
            }
            // The session starts to drop, or to forward, the packets from the tunnel.
            action => {
                let id: (E, &[u8]) = (E::FAR_ID, &[0, 0, 0, 1]);
                let far = group(&[id, (E::APPLY_ACTION, &[action - 1])]);
                self.ask(|sequence| {
                    let kind = M::SESSION_MODIFICATION_REQUEST;
                    let mut message = Writer::message(kind, Some(seid), sequence);
                    message.grouped(E::UPDATE_FAR, &far);
                    message.finish().unwrap()
                });
            }
        }
    }
}

/// Checks that every packet has one outcome. Only decapsulated packets leave through the second port.
fn tunnelled(summary: &Value, sent: u64, received: u64) {
    let outcomes = summary["outcomes"].as_object().unwrap();
    let of_packets = outcomes
        .iter()
        .filter(|(name, _)| !name.ends_with("beside the above"));
    let counted: u64 = of_packets.map(|(_, count)| number(count)).sum();
    let [tunnels, network] = [0, 1].map(|port| &summary["ports"][port]);
    assert_eq!(number(&tunnels["rx_packets"]), sent, "{summary}");
    assert_eq!(counted, sent, "{summary}");
    let lost = number(&network["tx_full"]) + number(&network["tx_failed"]);
    assert_eq!(
        number(&outcomes["decapsulated"]),
        received + lost,
        "{summary}"
    );
    assert_eq!(number(&network["tx_packets"]), received, "{summary}");
}

#[test]
#[ignore = "two hours: ./run soak"]
fn a_gateway_leaks_no_memory_while_sessions_change() {
    let _turn = alone();
    // The gateway uses a free port, as other programs may use the default one.
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gateway = free.local_addr().unwrap().to_string();
    drop(free);
    // The gateway has a number for each possible classifier, which takes 8 bytes from its first use on. The table is
    // small, so that all numbers have been used within minutes.
    let functions = format!(
        "[[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\nbearers = 8192\n\
         pfcp = {{ address = \"{gateway}\", peers = [\"127.0.0.1\"], heartbeat = \"none\" }}\n"
    );
    Soak {
        name: "gateway",
        functions: &functions,
        traffic: &[
            "protocol=gtpu",
            "outer_src_ip=192.0.2.7",
            "outer_dst_ip=192.0.2.1",
            "teid=1-1000 random",
        ],
        begin: &|_| {
            let mut plane = ControlPlane::new(&gateway);
            Box::new(move || {
                plane.change();
                sleep(BETWEEN_REQUESTS);
                1
            })
        },
        account: tunnelled,
    }
    .last();
}

// ---- a router and BIRD ----

/// The number of routes that are announced and withdrawn, in addition to those of the packets.
const NETWORKS: u32 = 1000;
const OF_PACKETS: &str = "route 10.0.1.32/27 blackhole;\nroute 10.0.1.16/28 blackhole;\n";
/// The time for which the routes stay announced, and then withdrawn.
const BETWEEN_ROUTES: Duration = Duration::from_millis(500);
/// The timeout for routes, which do not arrive while the port has no link.
const ROUTES_TIME: Duration = Duration::from_secs(5);

/// A BIRD on the router's host, which learns routes by BGP from a second BIRD over a separate cable.
struct Announcer {
    control: PathBuf,
    router: PathBuf,
    /// The daemons, which end with the soak.
    _daemons: [Program; 2],
    announces: bool,
}

impl Announcer {
    fn new(hosts: &Hosts, folder: &Path) -> Self {
        let router = "router id 10.8.0.1;\nprotocol device { scan time 1; }\nprotocol direct { ipv4; interface \"lan\", \"wan\"; }\n\
             protocol kernel { ipv4 { export where source = RTS_BGP; import none; }; }\n\
             protocol bgp { local 10.8.0.1 as 65000; neighbor 10.8.0.2 as 65001; connect delay time 1;\n\
             ipv4 { import all; export none; gateway recursive; }; }\n";
        let announcer = format!(
            "router id 10.8.0.2;\nprotocol device {{ }}\nprotocol static announced {{ ipv4;\n{}{OF_PACKETS}}}\n\
             protocol bgp {{ local 10.8.0.2 as 65001; neighbor 10.8.0.1 as 65000; connect delay time 1;\n\
             ipv4 {{ import none; export filter {{ bgp_next_hop = 10.0.1.10; accept; }}; }}; }}\n",
            networks(NETWORKS)
        );
        let daemons = [
            bird(&hosts.all[0], folder, "router", router),
            bird(&hosts.all[1], folder, "announcer", &announcer),
        ];
        Self {
            control: folder.join("announcer.ctl"),
            router: folder.join("control.sock"),
            _daemons: daemons,
            announces: true,
        }
    }

    fn routes(&self) -> u64 {
        let mut status = taut(&["route", "--control"]);
        let status = patiently(status.arg(&self.router).args(["status", "--json"]));
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        number(&status["status"]["routes_v4"])
    }

    /// Announces or withdraws the routes; returns the number of routes added to or removed from the router's table.
    fn change(&mut self) -> u64 {
        let before = self.routes();
        self.announces = !self.announces;
        let word = if self.announces { "enable" } else { "disable" };
        patiently(&mut birdc(&self.control, &format!("{word} announced")));
        let deadline = Instant::now() + ROUTES_TIME;
        loop {
            let now = self.routes();
            if (now >= u64::from(NETWORKS)) == self.announces || Instant::now() > deadline {
                return now.abs_diff(before);
            }
            sleep(BETWEEN_ROUTES / 10);
        }
    }
}

#[test]
#[ignore = "two hours: ./run soak"]
fn a_router_leaks_no_memory_while_bird_changes_routes() {
    let _turn = alone();
    let Some(hosts) = Hosts::new(2, &[("bird", "bird2")]) else {
        return;
    };
    hosts.join_two();
    let functions = format!(
        "[[function]]\nname = \"route\"\nroutes = \"kernel\"\nnetns = \"{}\"\ncontrol = \"control.sock\"\n\
         [[function.interface]]\nname = \"lan\"\nmac = \"02:00:00:00:00:a0\"\naddresses = [\"10.0.0.1/24\"]\n\
         [[function.interface]]\nname = \"wan\"\nmac = \"02:00:00:00:00:a1\"\naddresses = [\"10.0.1.1/24\"]\n",
        hosts.all[0].0
    );
    Soak {
        name: "router",
        functions: &functions,
        traffic: &[
            "dst_mac=02:00:00:00:00:a0",
            "src_ip=10.0.0.7",
            "dst_ip=10.0.1.10-10.0.1.73 random",
        ],
        begin: &|folder| {
            let mut announcer = Announcer::new(&hosts, folder);
            Box::new(move || {
                let changes = announcer.change();
                sleep(BETWEEN_ROUTES);
                changes
            })
        },
        account: routed,
    }
    .last();
}

// ---- a switch and its controller ----

const RULES: u64 = 100;
/// The number of rule slots of the switch. A switch has touched all of its memory after adding this many rules, because
/// it uses new slots before it reuses old ones.
const ROOM: u64 = 1024;
/// The time for which the rules stay installed, and then removed.
const BETWEEN_RULES: Duration = Duration::from_millis(500);

/// Returns rules in the syntax of `ovs-ofctl`; half of the packets match the first ones.
fn rules() -> String {
    (0..RULES).fold(String::new(), |mut text, number| {
        let actions = ["drop", "output:2", "meter:1,output:2", "group:1"][number as usize % 4];
        let port = 1000 + number;
        let _ = writeln!(
            text,
            "cookie=7,priority=9,in_port=1,udp,tp_dst={port},actions={actions}"
        );
        text
    })
}

#[test]
#[ignore = "two hours: ./run soak"]
fn a_switch_leaks_no_memory_while_flow_entries_change() {
    let _turn = alone();
    let address = "127.0.0.1:16754";
    let functions = format!(
        "[[function]]\nname = \"switch\"\nopenflow = \"{address}\"\nmost_rules = {ROOM}\n\
         rule = [{{ priority = 1, in_port = 0, actions = [\"output:1\"] }}]\n"
    );
    Soak {
        name: "switch",
        functions: &functions,
        traffic: &["dst_port=950-1049 random"],
        begin: &|folder| {
            let file = folder.join("rules").display().to_string();
            fs::write(&file, rules()).unwrap();
            let say = |words: &[&str]| patiently(&mut ofctl(address, words));
            say(&["add-meter", "meter=1,pktps,bands=type=drop,rate=1000"]);
            say(&["add-group", "group_id=1,type=all,bucket=actions=output:2"]);
            let mut rounds = 0;
            Box::new(move || {
                say(&["add-flows", &file]);
                sleep(BETWEEN_RULES);
                // The test also changes the meter and the group while rules refer to them.
                rounds += 1;
                let rate = 1000 + rounds % 1000;
                say(&[
                    "mod-meter",
                    &format!("meter=1,pktps,bands=type=drop,rate={rate}"),
                ]);
                say(&[
                    "mod-group",
                    "group_id=1,type=select,bucket=actions=output:2",
                ]);
                sleep(BETWEEN_RULES);
                say(&["del-flows", "cookie=7/-1"]);
                sleep(BETWEEN_RULES);
                2 * RULES + 2
            })
        },
        account: passed,
    }
    .last();
}
