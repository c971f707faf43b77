//! The body of the fuzz target `function_frames`; `cargo test` runs the same body over seeded noise.
//!
//! Each input is a chain of one or two functions, and frames that pass it in both directions. The frames are runts,
//! truncated or damaged, in memory with and without headroom and tailroom. Handlers get the packets that functions
//! punt, and others as well, since a memif peer may change a frame after a function has read it.

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use taut_function::{Context, EmptyBatches, Function, Handler, Passage, Punted};
use taut_functions::build;
use taut_port::pair::Lane;
use taut_port::{Batch, Packet, PoolHandle, Punt};
use taut_wire::{Protocol, Tunnel, UdpFlow};

/// The largest number of frames in one input.
const MOST_FRAMES: usize = 32;
/// The longest runt, bytes.
const RUNT: usize = 20;
/// Number of ports of each chain.
const PORTS: usize = 4;
/// Number of slots in each ring of a lane, the pair of rings between two threads.
const SLOTS: u32 = 32;

/// Functions and their settings; `{folder}` stands for the folder with their files. `plugin` is excluded: its library
/// would have to be built first.
const FUNCTIONS: &[(&str, &str)] = &[
    ("aes", "encrypt = [1]\nkey_file = \"{folder}/key\""),
    (
        "aes",
        "encrypt = [1]\nkey_file = \"{folder}/key\"\nmode = \"ctr\"",
    ),
    ("ats", ""),
    (
        "balance",
        "port = 1\nhops = [\"02:00:00:00:00:01\", \"02:00:00:00:00:02\"]",
    ),
    ("burn", "cycles = 0"),
    (
        "filter",
        "default = \"accept\"\nrules = [{ action = \"drop\", source = \"10.0.0.5\" }, \
         { action = \"accept\", protocol = \"udp\", destination_port = \"50-53\", priority = 3 }, \
         { action = \"drop\", destination = \"2001:db8:1::/124\", source_port = \"1000-1006\" }]",
    ),
    ("forward", ""),
    (
        "gtpu",
        "address = [\"192.0.2.1\", \"2001:db8::1\"]\nbearers = 16\nload = \"{folder}/bearers.csv\"\n\
         mac = \"02:00:00:00:00:0a\"",
    ),
    (
        "host",
        "port = 0\nmac = \"02:00:00:00:00:0a\"\naddresses = [\"10.0.0.1\", \"2001:db8::1\"]",
    ),
    (
        "impair",
        "loss = 0.1\nduplicate = 0.2\nreorder = 0.2\ndelay = 0.2\ncorrupt = 0.3\ndelay_time = \"1us\"",
    ),
    (
        "ips",
        "rules = [\"{folder}/rules\"]\nflows = 1024\nmemory = \"1 MB\"\ninner = true\nmax_time = \"1s\"\nhead_limit = \"1 KiB\"",
    ),
    ("lua", "file = \"{folder}/function.lua\""),
    ("mac-rewrite", "source = \"02:00:00:00:00:aa\""),
    ("mac-swap", ""),
    (
        "medium",
        "[gates]\ncycle_us = 2\nfirst = [[0, 1]]\nsecond = [[1, 2]]\nmbit_per_s = 100000",
    ),
    (
        "nat",
        "outside = [1]\naddress = \"203.0.113.1\"\nmappings = 16\nseed = 1",
    ),
    ("record", "ring = \"64 MB\"\nsnap = 64\nflows = 100"),
    (
        "resequence",
        "number = [0, 1]\nwait = \"1us\"\nwindow = 8\nlate = \"drop\"",
    ),
    ("resequence", "number = [1]\norder = \"flow\""),
    ("rlnc", "encode = [1]\nseed = 1\nspan = 64\npayload = 600"),
    (
        "rlnc",
        "encode = [1]\nseed = 1\ncode = \"block\"\nsymbols = 4\norder = \"in-order\"",
    ),
    ("rlnc", "recode = true\nseed = 1"),
    (
        "route",
        "interface = [{ mac = \"02:00:00:00:00:0a\", addresses = [\"10.0.0.1/16\", \"2001:db8::1/64\"] }, \
         { mac = \"02:00:00:00:00:0b\", addresses = [\"192.0.2.1/24\", \"2001:db8:1::1/64\"], mtu = 1280 }, \
         { port = 0, vlan = 7, mac = \"02:00:00:00:00:0c\", addresses = [\"10.7.0.1/24\"] }]",
    ),
    ("switch", "addresses = 64"),
    (
        "switch",
        "rule = [{ priority = 9, eth_type = \"arp\", arp_op = 1, actions = [\"controller\"] }, \
         { priority = 8, ip_proto = \"icmp\", icmp_type = 8, actions = [\"dec_ttl\", \"output:1\", \"output:2\"] }, \
         { priority = 7, udp_dst = 53, actions = [\"set:ip_src=10.9.9.9\", \"set:port_src=9\", \"goto:1\"] }, \
         { priority = 6, vlan = 7, actions = [\"set:vlan=8\", \"set:vlan_pcp=3\", \"in_port\"] }, \
         { priority = 0, actions = [\"set:ip_dscp=46\", \"set:ip_ecn=1\", \"set:ttl=9\", \"set:eth_src=02:00:00:00:00:01\", \
         \"flood\"] }, { table = 1, actions = [\"queue:3\", \"push_vlan\", \"push_vlan\", \"pop_vlan\", \"normal\"] }]",
    ),
    ("walk", "steps = 1\nbytes = \"4 kB\""),
    ("xor", "key = 90"),
];

/// Number of chains of one or two functions.
#[allow(dead_code)] // the target has no use for it
pub fn chains() -> usize {
    FUNCTIONS.len() * (FUNCTIONS.len() + 1)
}

/// Returns the two bytes that select the chain with the given index.
#[allow(dead_code)]
pub fn chain(number: usize) -> (u8, u8) {
    let seconds = FUNCTIONS.len() + 1;
    ((number / seconds) as u8, (number % seconds) as u8)
}

/// Returns the names of the functions from which chains are built.
#[allow(dead_code)]
pub fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|(name, _)| *name)
}

thread_local! {
    /// The functions and memory, reused for all inputs: allocating them takes longer than passing a frame.
    static ALL: RefCell<All> = RefCell::new(All::made());
}

/// A function and its handler.
struct Stage {
    function: Box<dyn Function>,
    handler: Option<Box<dyn Handler>>,
}

impl Stage {
    fn made((name, settings): &(&str, &str), folder: &str) -> Self {
        let settings = settings.replace("{folder}", folder).parse();
        let mut function = build(name, settings.expect("settings")).expect(name);
        function.prepare().expect(name);
        let handler = function.handler();
        Self { function, handler }
    }
}

struct All {
    /// The functions for the first and the second position of a chain.
    stages: [Vec<Stage>; 2],
    templates: Vec<Vec<u8>>,
    pool: PoolHandle,
    /// Both endpoints of a lane (a pair of rings). Received frames stay in its rings, as those of a memif peer do.
    lane: (Lane, Lane),
    now_ticks: u64,
}

impl All {
    fn made() -> Self {
        // The files of a thread are removed when it ends.
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            let mut file = std::fs::File::create(path).expect("a file");
            file.write_all(text.as_bytes()).expect("a file");
            let owner_only = std::fs::Permissions::from_mode(0o600);
            file.set_permissions(owner_only).expect("a file");
        };
        file("key", &"0123456789abcdef".repeat(2));
        file("function.lua", LUA);
        file("rules", RULES);
        file("bearers.csv", BEARERS);
        let at = folder.path().display().to_string();
        let stages = || FUNCTIONS.iter().map(|it| Stage::made(it, &at)).collect();
        let lane = |name: &str| Lane::open(name, SLOTS).expect("memory");
        let name = format!("functions {:?}", std::thread::current().id());
        Self {
            stages: [stages(), stages()],
            templates: templates(),
            pool: PoolHandle::new(SLOTS, false).expect("memory"),
            lane: (lane(&name), lane(&name)),
            now_ticks: taut_sys::ticks(),
        }
    }

    /// Makes a frame: a runt or a truncated frame, with up to two bytes changed.
    fn frame(&self, [how, length, at, value, other_at, other_value]: [u8; 6]) -> Vec<u8> {
        let template = &self.templates[usize::from(how >> 2) % self.templates.len()];
        let longest = template.len();
        let length = match usize::from(length) {
            runt @ 0..=127 => runt % (RUNT + 1),
            cut @ 128..=191 => cut - 128 + RUNT,
            more => longest * (more - 191) / 64,
        };
        let mut frame = template[..length.min(longest)].to_vec();
        for (at, value) in [(at, value), (other_at, other_value)] {
            if let Some(byte) = frame.get_mut(usize::from(at)) {
                *byte = value;
            }
        }
        frame
    }

    /// Passes a frame through a chain, alone or with copies. Passes the packets that functions punt through the
    /// handlers of these functions.
    fn pass(
        &mut self,
        (first, second): (usize, Option<usize>),
        frame: &[u8],
        how: u8,
        number: usize,
        change_at: Option<(u8, u8)>,
    ) {
        self.now_ticks += 1 << (how & 31);
        let from_port = usize::from(how & 1);
        let context = Context {
            now_ticks: self.now_ticks,
            from_port,
            to_port: from_port ^ 1,
            ports: PORTS,
        };
        let mut batch = Batch::new();
        let copies = if how & 2 == 0 { 1 } else { 3 };
        for copy in 0..copies {
            let packet = self.packet(frame, how >> 2 ^ (number + copy) as u8);
            batch.push(packet);
        }
        let [firsts, seconds] = &mut self.stages;
        let mut chain: Vec<&mut Stage> = vec![&mut firsts[first]];
        chain.extend(second.map(|second| &mut seconds[second]));
        if from_port == 1 {
            chain.reverse();
        }
        // The second pass has an empty batch, with which functions send the packets that they have delayed.
        for round in 0..2 {
            for (number, stage) in (1..).zip(&mut chain) {
                if round == 0 || stage.function.needs().empty_batches != EmptyBatches::No {
                    // The headers are read before the peer that owns the memory changes them.
                    batch.read_headers();
                    change(&mut batch, change_at, number);
                    stage.function.process(&mut batch, &context);
                }
            }
            let mut punted = Batch::new();
            batch.settle(&mut punted);
            let sent = &mut |way: Passage, frame: &[u8]| way.to_port < PORTS && !frame.is_empty();
            for index in 0..punted.len() {
                let punted = Punted {
                    frame: punted.packets()[index].bytes(),
                    from_port,
                    cause: punted.cause(index),
                };
                let handlers = chain.iter_mut().filter_map(|it| it.handler.as_mut());
                let _ = { handlers }.any(|handler| handler.handle(&punted, sent));
            }
            let any = Punted {
                frame,
                from_port,
                cause: Punt::of_bits(u32::from(how >> 4) | (number as u32 * 61) << 4),
            };
            for handler in chain.iter_mut().filter_map(|it| it.handler.as_mut()) {
                handler.handle(&any, sent);
                handler.poll(sent);
            }
            batch.clear();
        }
    }

    /// Makes a packet of the given bytes. The last two bits of `memory` select where it lies: in the pool, with
    /// tailroom or with headroom only, or in a ring, with or without headroom.
    fn packet(&mut self, frame: &[u8], memory: u8) -> Packet {
        let len = frame.len() as u16;
        let mut packet = match memory % 4 {
            0 => self.pool.take(len).expect("room"),
            // There is no tailroom after the frame.
            1 => {
                let mut packet = self.pool.take(self.pool.room() as u16).expect("room");
                assert!(packet.drop_front(packet.len() as u16 - len));
                packet
            }
            more => {
                let mut batch = Batch::new();
                assert!(self.lane.0.push(frame, 0));
                self.lane.0.publish();
                assert_eq!(self.lane.1.receive(&mut batch), 1);
                let mut received = None;
                batch.take_front(1, |packet| received = Some(packet));
                let mut packet = received.expect("a packet");
                if more == 3 {
                    assert!(packet.prepend(packet.headroom() as u16));
                    packet.truncate(len);
                }
                packet
            }
        };
        packet.bytes_mut().copy_from_slice(frame);
        packet
    }
}

/// Passes frames through a chain; returns their number. The first two bytes select the chain. For each frame, two bytes
/// select how it is built and four how it is damaged.
pub fn frames(bytes: &[u8]) -> u64 {
    let Some((&[first, second], rest)) = bytes.split_first_chunk::<2>() else {
        return 0;
    };
    ALL.with_borrow_mut(|all| {
        let first = usize::from(first) % FUNCTIONS.len();
        let second = (usize::from(second) % (FUNCTIONS.len() + 1)).checked_sub(1);
        let mut passed = 0;
        for (number, how) in rest.chunks(6).take(MOST_FRAMES).enumerate() {
            let mut it = [0; 6];
            it[..how.len()].copy_from_slice(how);
            let frame = all.frame(it);
            // Every other frame is also changed while it passes the chain, at the byte at which it was damaged before.
            let change_at = (number % 2 == 1).then_some((it[4], it[5]));
            all.pass((first, second), &frame, it[0], number, change_at);
            passed += 1;
        }
        passed
    })
}

/// Changes a byte of all packets in a ring, as the peer that owns the memory may.
fn change(batch: &mut Batch, change_at: Option<(u8, u8)>, number: u8) {
    let Some((at, value)) = change_at else {
        return;
    };
    for index in 0..batch.len() {
        if batch.packets()[index].is_in_ring() {
            let frame = batch.packet_mut_but_headers(index).bytes_mut();
            // Most of the bytes that functions read are at the beginning.
            if let Some(byte) = frame.get_mut(usize::from(at) % 64) {
                *byte = value.wrapping_mul(number);
            }
        }
    }
}

const LUA: &str = r#"
local seen = taut.counter("seen")
function process(batch)
    for i = 1, batch.n do
        local packet = batch[i]
        seen:add(1)
        if packet.len > 13 then packet.eth.src = packet.eth.dst end
        if packet.ip4.present and packet.ip4.ttl == 1 then packet:drop() end
        if packet.udp.present then packet.udp.src_port = packet.udp.dst_port end
        if packet.tcp.present then packet:punt() end
    end
end
"#;

const RULES: &str = "alert udp any any -> any any (content:\"a\"; byte_jump:1,0,relative; isdataat:2,relative; sid:1;)\n\
    drop dns any any -> any any (dns.query; content:\"a\"; nocase; sid:2;)\n\
    alert tcp any any -> any any (flow:established; content:\"ab\"; depth:20; pcre:\"/a(b|c)+/\"; sid:5;)\n\
    drop icmp any any -> any any (itype:8; dsize:>3; sid:6;)\n";

const BEARERS: &str = "7,relay,0x20,192.0.2.9\n8,decapsulate\n9,relay,0x21,2001:db8::9\n10.0.0.2,encapsulate,0x30,192.0.2.9,9\n\
    192.0.2.1,encapsulate,0x30,192.0.2.9,9\n2001:db8:1::/64,encapsulate,0x31,2001:db8::9\n10.7.0.0,drop\n";

/// Makes frames with all headers that functions parse.
fn templates() -> Vec<Vec<u8>> {
    let tunnel = |v6: bool| Tunnel {
        teid: 7,
        src_ip: if v6 { "2001:db8::2" } else { "192.0.2.100" }
            .parse()
            .expect("an address"),
        dst_ip: if v6 { "2001:db8::1" } else { "192.0.2.1" }
            .parse()
            .expect("an address"),
    };
    let flow = |v6: bool| {
        let mut flow = UdpFlow {
            src_ip: [10, 0, 0, 2].into(),
            dst_ip: [192, 0, 2, 1].into(),
            src_port: 53,
            dst_port: 53,
            ..UdpFlow::default()
        };
        if v6 {
            flow.src_ip = "2001:db8::2".parse().expect("an address");
            flow.dst_ip = "2001:db8:1::2".parse().expect("an address");
        }
        flow
    };
    let mut all = Vec::new();
    for v6 in [false, true] {
        for tunnel in [None, Some(tunnel(false)), Some(tunnel(true))] {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                for size in [160, 1400] {
                    let frame = flow(v6).frame_as(protocol, tunnel.as_ref(), size);
                    all.push(frame.expect("a frame"));
                }
            }
        }
    }
    // Echo requests to a router have a tag, are fragmented, or have options.
    let mut echo = all[0].clone();
    (echo[23], echo[34], echo[35]) = (1, 8, 0);
    let mut error = echo.clone();
    (error[34], error[42], error[51]) = (3, 0x45, 17);
    let mut fragment = all[0].clone();
    (fragment[20], fragment[21]) = (0x3f, 0xff);
    let mut options = all[0].clone();
    (options[14], options[34]) = (0x4f, 7);
    let tagged = [&all[0][..12], &[0x81, 0, 0x60, 7][..], &all[0][12..]].concat();
    let arp = |operation: u8| {
        let fixed = [
            0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 9, 10, 0, 0, 2,
        ];
        let header = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 8, 6]].concat();
        [&header[..], &fixed, &[0; 6], &[10, 0, 0, 1]].concat()
    };
    let mut solicitation = flow(true).frame(86).expect("a frame");
    let of_all = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 1];
    (solicitation[20], solicitation[21], solicitation[54]) = (58, 255, 135);
    solicitation[38..54].copy_from_slice(&of_all);
    all.extend([
        echo,
        error,
        fragment,
        options,
        tagged,
        arp(1),
        arp(2),
        solicitation,
    ]);
    all
}
