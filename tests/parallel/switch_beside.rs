//! A comparison of taut's switch and Open vSwitch: both get the same rules from `ovs-ofctl` and the same packets, and
//! send and count the same. A second test checks the memory of a switch while a million rules are added and removed.

use crate::support::program::{Finished, Program, run};
use crate::support::{by_scapy, bytes_of, is_installed, is_listened_on, scratch, taut};
use fastrand::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use taut_function::{Context, Function};
use taut_functions::build;
use taut_port::{Batch, PoolHandle};

const RULE_SETS: usize = 200;
const PACKETS: usize = 16;
const PORTS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);
/// The cookie of the lowest rule, which matches everything and therefore counts packets that match no other rule.
const LAST: u64 = 9_999;

/// A frame that left the switch, with the index of its egress port, from 1.
type Left = (usize, Vec<u8>);
/// Packets and bytes of each rule, by its cookie.
type Counts = BTreeMap<u64, (u64, u64)>;

fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

fn ofctl(target: &str, words: &[&str]) -> Finished {
    let mut command = Command::new("ovs-ofctl");
    command.args(["-O", "OpenFlow13", words[0], target]);
    run(command.args(&words[1..]))
}

/// Removes all rules of a switch and adds those of a file.
fn make_rules(target: &str, file: &Path) {
    let file = file.display().to_string();
    let told = ofctl(target, &["add-flows", &file]).success();
    assert!(told.stderr.is_empty(), "{target}: {told:?}");
}

fn counts(target: &str) -> Counts {
    let flows = ofctl(target, &["dump-flows"]).success().stdout;
    let mut counts = Counts::new();
    for line in flows.lines().filter(|line| line.contains("cookie=")) {
        let field = |name: &str| {
            let (_, behind) = line.split_once(name).unwrap();
            behind.split(',').next().unwrap().trim().to_string()
        };
        let cookie = field("cookie=0x");
        let cookie = u64::from_str_radix(&cookie, 16).unwrap();
        let number = |name: &str| field(name).parse::<u64>().unwrap();
        counts.insert(cookie, (number("n_packets="), number("n_bytes=")));
    }
    counts
}

/// taut's switch without a worker: the test itself passes packets to the switch.
struct Ours {
    function: Box<dyn Function>,
    pool: PoolHandle,
    target: String,
}

impl Ours {
    fn new() -> Self {
        let address = free_address();
        let settings = format!("openflow = \"{address}\"");
        let mut function = build("switch", settings.parse().unwrap()).unwrap();
        function.prepare().unwrap();
        let mut ours = Self {
            function,
            pool: PoolHandle::new(16, false).unwrap(),
            target: format!("tcp:{address}"),
        };
        // The switch learns the number of ports from the first pass.
        ours.pass(1, &[]);
        ours
    }

    fn pass(&mut self, in_port: usize, frame: &[u8]) -> Vec<Left> {
        let context = Context {
            now_ticks: taut_sys::ticks(),
            from_port: in_port - 1,
            to_port: (in_port - 1) ^ 1,
            ports: PORTS,
        };
        let mut batch = Batch::new();
        if !frame.is_empty() {
            self.pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        }
        self.function.process(&mut batch, &context);
        let mut left = Vec::new();
        if frame.is_empty() || !batch.is_kept(0) {
            return left;
        }
        batch.scatter(|packet, to, _, copies| {
            let first = to.map_or(context.to_port, usize::from);
            let copies = copies.iter().map(|(_, port)| usize::from(*port));
            let ports = std::iter::once(first).chain(copies);
            left.extend(ports.map(|port| (port + 1, packet.bytes().to_vec())));
        });
        left
    }
}

/// Open vSwitch with dummy ports: packets are sent to its control socket, and those that leave are written to files.
struct Theirs {
    _daemons: Vec<Program>,
    folder: tempfile::TempDir,
    control: UnixStream,
    target: String,
    /// The number of bytes already read from each port's file of sent frames.
    read: [usize; PORTS],
}

impl Theirs {
    fn new() -> Self {
        let folder = scratch();
        let file = |name: &str| folder.path().join(name).display().to_string();
        let until_there = |name: &str, program: &Program| {
            let deadline = Instant::now() + PATIENCE;
            while !is_listened_on(&folder.path().join(name)) {
                assert!(Instant::now() < deadline, "{}", program.stderr());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        run(Command::new("ovsdb-tool").args(["create", &file("ovs.db"), schema])).success();
        let mut server = Command::new("ovsdb-server");
        server.args([
            file("ovs.db"),
            format!("--remote=punix:{}", file("db.sock")),
            format!("--unixctl={}", file("db.ctl")),
            "--verbose=syslog:off".to_string(),
        ]);
        let server = Program::start(&mut server);
        until_there("db.sock", &server);
        let db = format!("unix:{}", file("db.sock"));
        let set = |words: &[&str]| {
            let mut command = Command::new("ovs-vsctl");
            command.args(["--timeout=30", &format!("--db={db}")]);
            run(command.args(words)).success();
        };
        set(&["--no-wait", "init"]);
        let mut daemon = Command::new("ovs-vswitchd");
        daemon.env("OVS_RUNDIR", folder.path()).args([
            &db,
            "--enable-dummy",
            &format!("--unixctl={}", file("switch.ctl")),
            "--verbose=syslog:off",
        ]);
        let daemon = Program::start(&mut daemon);
        until_there("switch.ctl", &daemon);
        let bridge = "datapath_type=dummy fail_mode=secure";
        let mut words = vec!["add-br", "br0", "--", "set", "Bridge", "br0"];
        words.extend(bridge.split(' '));
        set(&words);
        for port in 1..=PORTS {
            let name = format!("p{port}");
            let request = format!("ofport_request={port}");
            let written = format!("options:tx_pcap={}", file(&format!("{name}.pcap")));
            set(&[
                "add-port",
                "br0",
                &name,
                "--",
                "set",
                "Interface",
                &name,
                "type=dummy",
                &request,
                &written,
            ]);
        }
        until_there("br0.mgmt", &daemon);
        let control = UnixStream::connect(folder.path().join("switch.ctl")).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            target: format!("unix:{}", file("br0.mgmt")),
            _daemons: vec![daemon, server],
            folder,
            control,
            read: [24; PORTS],
        }
    }

    fn tell(&mut self, method: &str, words: &[String]) -> Value {
        let request = json!({"id": 0, "method": method, "params": words});
        self.control
            .write_all(request.to_string().as_bytes())
            .unwrap();
        let mut answers = serde_json::Deserializer::from_reader(&self.control).into_iter();
        let answer: Value = answers.next().unwrap().unwrap();
        assert!(answer["error"].is_null(), "{method} {words:?}: {answer}");
        answer
    }

    fn receive(&mut self, in_port: usize, frame: &[u8]) {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        self.tell("netdev-dummy/receive", &[format!("p{in_port}"), hex]);
    }

    /// Waits until `packets` packets are counted; returns the counts of the rules.
    fn settled(&mut self, packets: u64, first_table: &[u64]) -> Counts {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.tell("revalidator/purge", &[]);
            let counts = counts(&self.target);
            let seen = first_table.iter().map(|cookie| counts[cookie].0);
            if seen.sum::<u64>() == packets {
                return counts;
            }
            assert!(Instant::now() < deadline, "{counts:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the frames that have left the switch since the last call.
    fn left(&mut self) -> Vec<Left> {
        let mut left = Vec::new();
        for port in 1..=PORTS {
            let file = self.folder.path().join(format!("p{port}.pcap"));
            let bytes = fs::read(file).unwrap_or_default();
            let at = &mut self.read[port - 1];
            while let Some(head) = bytes.get(*at..*at + 16) {
                let length = u32::from_ne_bytes(head[8..12].try_into().unwrap()) as usize;
                let Some(frame) = bytes.get(*at + 16..*at + 16 + length) else {
                    break;
                };
                left.push((port, frame.to_vec()));
                *at += 16 + length;
            }
        }
        left
    }
}

fn one_of<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(..all.len())]
}

const MACS: [&str; 5] = [
    "02:00:00:00:00:01",
    "02:00:00:00:00:02",
    "02:00:00:00:00:03",
    "ff:ff:ff:ff:ff:ff",
    "01:00:5e:00:00:01",
];
const TRANSPORT_PORTS: [u16; 3] = [42, 43, 1000];

/// Draws a rule's match, and the fields whose values may vary in packets that match.
fn asked(random: &mut Rng) -> (Vec<String>, Vec<String>) {
    let (mut asked, mut changes) = (Vec::new(), Vec::new());
    if random.bool() {
        asked.push(format!("in_port={}", random.usize(1..=PORTS)));
    }
    match random.u8(..6) {
        0 => asked.push(format!("dl_dst={}", one_of(random, &MACS))),
        1 => asked.push(format!("dl_src={}", one_of(random, &MACS[..3]))),
        2 => asked.push("dl_dst=01:00:00:00:00:00/01:00:00:00:00:00".to_string()),
        _ => {}
    }
    for field in ["eth_dst", "eth_src"] {
        changes.push(format!("set_field:02:00:00:00:09:09->{field}"));
    }
    match random.u8(..8) {
        0 => asked.push("dl_vlan=0xffff".to_string()),
        1 => asked.push("vlan_vid=0x1000/0x1000".to_string()),
        2 | 3 => {
            asked.push(format!("dl_vlan={}", one_of(random, &[5, 6])));
            if random.bool() {
                asked.push(format!("dl_vlan_pcp={}", one_of(random, &[0, 3])));
            }
            changes.push("set_field:4103->vlan_vid".to_string());
            changes.push("set_field:6->vlan_pcp".to_string());
            changes.push("pop_vlan".to_string());
        }
        _ => {}
    }
    let prefix = |random: &mut Rng| match random.u8(..3) {
        0 => format!("10.0.{}.0/24", random.u8(..2)),
        1 => "10.0.0.0/16".to_string(),
        _ => format!("10.0.{}.{}", random.u8(..2), random.u8(1..5)),
    };
    let kind = one_of(
        random,
        &[
            "", "", "arp", "ip", "ip", "udp", "tcp", "icmp", "ipv6", "udp6",
        ],
    );
    if !kind.is_empty() {
        asked.push(kind.to_string());
    }
    match kind {
        "arp" => match random.u8(..3) {
            0 => asked.push(format!("arp_op={}", random.u8(1..3))),
            1 => asked.push(format!("arp_tpa=10.0.0.{}", random.u8(1..5))),
            _ => {}
        },
        "ip" | "udp" | "tcp" | "icmp" => {
            match random.u8(..4) {
                0 => asked.push(format!("nw_dst={}", prefix(random))),
                1 => asked.push(format!("nw_src={}", prefix(random))),
                2 => asked.push(format!("ip_dscp={}", one_of(random, &[0, 46]))),
                _ => {}
            }
            for field in ["ip_src", "ip_dst"] {
                changes.push(format!("set_field:192.0.2.7->{field}"));
            }
            changes.push("set_field:10->ip_dscp".to_string());
            changes.push("dec_ttl".to_string());
        }
        "ipv6" | "udp6" => {
            match random.u8(..3) {
                0 => asked.push(format!("ipv6_dst=2001:db8::{}", random.u8(1..5))),
                1 => asked.push("ipv6_src=2001:db8::/126".to_string()),
                _ => {}
            }
            changes.push("set_field:2001:db8:9::1->ipv6_dst".to_string());
            changes.push("dec_ttl".to_string());
        }
        _ => {}
    }
    match kind {
        "udp" | "tcp" | "udp6" => {
            if random.bool() {
                let port = one_of(random, &TRANSPORT_PORTS);
                asked.push(format!("tp_{}={port}", one_of(random, &["src", "dst"])));
            }
            let protocol = if kind == "tcp" { "tcp" } else { "udp" };
            for field in ["src", "dst"] {
                changes.push(format!("set_field:4242->{protocol}_{field}"));
            }
        }
        "icmp" => asked.push(format!("icmp_type={}", one_of(random, &[0, 8]))),
        _ => {}
    }
    (asked, changes)
}

/// Draws a rule set as a file for `ovs-ofctl add-flows`, and the cookies of its first table.
fn rules(random: &mut Rng) -> (String, Vec<u64>) {
    let (mut text, mut first_table) = ("delete\n".to_string(), vec![LAST]);
    let many = random.u64(1..12);
    for number in 1..=many {
        let table = u8::from(random.u8(..) < 50);
        let (mut asked, mut changes) = asked(random);
        // No two rules have the same priority, as their order would be undefined.
        asked.insert(
            0,
            format!("table={table},priority={number},cookie={number}"),
        );
        if table == 0 {
            first_table.push(number);
        }
        let mut actions = Vec::new();
        for _ in 0..random.usize(..3).min(changes.len()) {
            actions.push(changes.swap_remove(random.usize(..changes.len())));
        }
        // Tags change after the headers that follow them, and are removed last.
        actions.sort_by_key(|action| (action.contains("vlan"), action == "pop_vlan"));
        // By the specification, a new tag copies the number and priority of the existing tag. Open vSwitch sets
        // priority 0.
        if random.u8(..) < 40 && !actions.iter().any(|action| action.contains("vlan")) {
            actions.push(
                "push_vlan:0x8100,set_field:4196->vlan_vid,set_field:2->vlan_pcp".to_string(),
            );
        }
        match random.u8(..10) {
            0 => actions.push("flood".to_string()),
            1 => actions.push("in_port".to_string()),
            2 => actions.push(format!("group:{}", random.u8(1..4))),
            3 if table == 0 => actions.push("goto_table:1".to_string()),
            4 => actions = vec!["drop".to_string()],
            _ => {
                let mut ports: Vec<usize> = (1..=PORTS).collect();
                random.shuffle(&mut ports);
                ports.truncate(random.usize(1..4));
                actions.extend(ports.iter().map(|port| format!("output:{port}")));
            }
        }
        text += &format!("add {},actions={}\n", asked.join(","), actions.join(","));
    }
    text += &format!("add table=0,priority=0,cookie={LAST},actions=drop\n");
    (text, first_table)
}

const GROUPS: [&str; 3] = [
    "group_id=1,type=all,bucket=output:2,bucket=output:3",
    "group_id=2,type=indirect,bucket=set_field:02:00:00:00:08:08->eth_dst,output:4",
    "group_id=3,type=ff,bucket=watch_port:1,output:1,bucket=watch_port:2,output:2",
];

#[test]
fn flow_entries_act_and_count_as_in_open_vswitch() {
    if !["ovs-vswitchd", "ovsdb-server", "ovs-ofctl", "ovs-vsctl"]
        .into_iter()
        .all(is_installed)
    {
        println!("skipped: needs openvswitch (package openvswitch-switch)");
        return;
    }
    let many = (RULE_SETS * PACKETS).to_string();
    let Some(frames) = by_scapy("scapy_frames.py", &["25", &many]) else {
        return;
    };
    let mut frames = frames.lines().map(bytes_of);
    let (mut ours, mut theirs) = (Ours::new(), Theirs::new());
    for group in GROUPS {
        for target in [&ours.target, &theirs.target] {
            ofctl(target, &["add-group", group]).success();
        }
    }
    let file = theirs.folder.path().join("rules.txt");
    let mut random = Rng::with_seed(25);
    let mut all_left = 0;
    for set in 0..RULE_SETS {
        let (text, first_table) = rules(&mut random);
        fs::write(&file, &text).unwrap();
        for target in [&ours.target, &theirs.target] {
            make_rules(target, &file);
        }
        // Open vSwitch may apply earlier rules to cached flows for a while, despite the barrier, so its cache is
        // cleared.
        theirs.tell("revalidator/purge", &[]);
        let mut left_ours = Vec::new();
        for frame in frames.by_ref().take(PACKETS) {
            let in_port = random.usize(1..=PORTS);
            left_ours.extend(ours.pass(in_port, &frame));
            theirs.receive(in_port, &frame);
        }
        // Open vSwitch counts a packet before it sends it, so the test waits for the last packets.
        let mut left_theirs = theirs.left();
        let deadline = Instant::now() + Duration::from_secs(5);
        while left_theirs.len() < left_ours.len() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
            left_theirs.extend(theirs.left());
        }
        let counts_theirs = theirs.settled(PACKETS as u64, &first_table);
        left_theirs.extend(theirs.left());
        assert_eq!(
            counts(&ours.target),
            counts_theirs,
            "rule set {set}:\n{text}"
        );
        // The packets' own numbers give the order, as ports write separate files.
        let order = |(port, frame): &Left| (frame[frame.len() - 4..].to_vec(), *port);
        left_ours.sort_by_key(order);
        left_theirs.sort_by_key(order);
        assert_eq!(left_ours, left_theirs, "rule set {set}:\n{text}");
        all_left += left_ours.len();
    }
    // A large part of the packets leaves through some port.
    assert!(all_left > RULE_SETS * PACKETS / 4, "{all_left}");
}

/// Returns the number of rules to add and remove: with `TAUT_SOAK` set, a million.
fn churn() -> u32 {
    let soak = std::env::var("TAUT_SOAK").is_ok();
    if soak { 1_000_000 } else { 100_000 }
}

/// Returns the resident memory of a process, kB.
fn resident_kb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|it| it.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Builds a message of OpenFlow 1.3.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![4, kind];
    message.extend((8 + body.len() as u16).to_be_bytes());
    message.extend([0, 0, 0, 1]);
    message.extend(body);
    message
}

/// Builds the message that adds or deletes a rule for an IPv4 address, with output to port 2.
fn flow_mod(number: u32, is_made: bool) -> Vec<u8> {
    let mut body = [0; 16].to_vec();
    body.extend([0, if is_made { 0 } else { 4 }, 0, 0, 0, 0, 0, 100]);
    body.extend([[0xff; 4], [0xff; 4], [0xff; 4], [0; 4]].concat());
    // The match has 22 bytes: the type of IPv4, and the address.
    body.extend([0, 1, 0, 18, 0x80, 0, 5 << 1, 2, 8, 0]);
    body.extend([0x80, 0, 12 << 1, 4]);
    body.extend(number.to_be_bytes());
    body.extend([0; 6]);
    if is_made {
        body.extend([0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2]);
        body.extend([0; 8]);
    }
    message(14, &body)
}

#[test]
fn adding_and_deleting_flow_entries_leaks_no_memory() {
    let folder = scratch();
    let address = free_address();
    let chain: PathBuf = folder.path().join("switch.toml");
    let text = format!(
        "wait = \"sleep(50us)\"\nports = [\"null:\", \"null:\"]\n[[function]]\nname = \"switch\"\nopenflow = \"{address}\"\n"
    );
    fs::write(&chain, text).unwrap();
    let mut switch = Program::start(taut(&["forward", "--quiet"]).arg(&chain));
    switch.wait_for_stdout("forwarding");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&message(0, &[])).unwrap();
    let hear = |stream: &mut TcpStream, wanted: u8| {
        loop {
            let mut head = [0; 8];
            stream.read_exact(&mut head).unwrap();
            let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
            let mut body = vec![0; length - 8];
            stream.read_exact(&mut body).unwrap();
            assert_ne!(head[1], 1, "an error: {body:?}");
            if head[1] == wanted {
                break;
            }
        }
    };
    /// Number of rules that are installed at a time.
    const AT_ONCE: u32 = 5_000;
    let rounds = churn() / AT_ONCE;
    let mut after_first = 0;
    for round in 0..rounds {
        for is_made in [true, false] {
            let first = round * AT_ONCE;
            let all = (first..first + AT_ONCE).map(|number| flow_mod(number, is_made));
            let mut all: Vec<u8> = all.flatten().collect();
            all.extend(message(20, &[]));
            stream.write_all(&all).unwrap();
            hear(&mut stream, 21);
        }
        // All of the switch's memory is in use by then.
        if round == rounds / 5 {
            after_first = resident_kb(switch.id());
        }
    }
    let grown = resident_kb(switch.id()).saturating_sub(after_first);
    assert!(grown <= 2_048, "{grown} kB more than {after_first} kB");
    let flows = ofctl_or_nothing(&format!("tcp:{address}"));
    assert!(!flows.contains("cookie="), "{flows}");
    switch.interrupt().success();
}

/// Returns the rules of the switch, or an empty text if `ovs-ofctl` is not installed.
fn ofctl_or_nothing(target: &str) -> String {
    match is_installed("ovs-ofctl") {
        true => ofctl(target, &["dump-flows"]).success().stdout,
        false => String::new(),
    }
}
