//! Packets through functions: every packet that the generator sent was received, or dropped with a counted cause.

use super::{sending, share_of};
use crate::support::program::{Program, run};
use crate::support::{Sockets, alone, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of packets, summed over all chains.
const PACKETS: u64 = 10_000_000_000;
/// The generator's rate: as fast as the rings accept. A chain that resolves addresses needs replies from the generator,
/// which sends replies only at a fixed rate.
const RATE: &str = "max";
const RATE_WITH_ANSWERS: &str = "2M";
const SECONDS: u64 = 20;
/// The timeout for programs that run at the lowest priority.
const PATIENCE: Duration = Duration::from_secs(1800);

struct Case {
    name: &'static str,
    /// The percentage of all packets that this chain gets; chains with cheaper packets get more.
    share: u64,
    functions: &'static str,
    /// Fields of the generated packets, in the syntax of `taut generate --set`.
    set: &'static [&'static str],
    /// The function that runs in the chain's folder while packets pass, until its flag is set; it returns the number of
    /// changes.
    beside: Option<fn(&Path, &AtomicBool) -> u64>,
}

const CASES: [Case; 6] = [
    Case {
        name: "switch",
        share: 10,
        // Of eight UDP ports, the packets of one are dropped, those of another one use a meter, and others use a group
        // or further tables.
        functions: RULES,
        set: &["dst_port=1000-1063 random", "src_port=1024-1200 random"],
        beside: None,
    },
    Case {
        name: "route",
        share: 10,
        functions: "[[function]]\nname = \"route\"\ncontrol = \"control.sock\"\n\
            [[function.interface]]\nmac = \"02:00:00:00:00:a0\"\naddresses = [\"10.0.0.1/24\"]\n\
            [[function.interface]]\nmac = \"02:00:00:00:00:a1\"\naddresses = [\"10.0.1.1/24\"]\n",
        set: &[
            "dst_mac=02:00:00:00:00:a0",
            "src_ip=10.0.0.7",
            "dst_ip=10.0.1.10-10.0.1.73 random",
        ],
        beside: Some(change_routes),
    },
    Case {
        name: "nat",
        share: 45,
        beside: None,
        functions: "[[function]]\nname = \"nat\"\noutside = [1]\naddress = \"203.0.113.1\"\n",
        set: &[
            "src_ip=10.0.0.1-10.0.0.250 random",
            "src_port=1024-1200 random",
        ],
    },
    Case {
        name: "gtpu",
        share: 25,
        beside: None,
        functions: "[[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\nload = \"bearers.csv\"\n",
        // One bearer in eleven drops its packets.
        set: &[
            "protocol=gtpu",
            "outer_src_ip=192.0.2.7",
            "outer_dst_ip=192.0.2.1",
            "teid=1-1100 random",
        ],
    },
    Case {
        name: "aes",
        share: 5,
        beside: None,
        functions: "[[function]]\nname = \"aes\"\nencrypt = [1]\nkey_file = \"link.key\"\n\
            [[function]]\nname = \"aes\"\nencrypt = [0]\nkey_file = \"link.key\"\n",
        set: &[],
    },
    Case {
        name: "rlnc",
        share: 5,
        beside: None,
        functions: "[[function]]\nname = \"rlnc\"\nencode = [1]\n\
            [[function]]\nname = \"rlnc\"\nencode = [0]\n",
        set: &[],
    },
];

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Returns the number of packets that a worker dropped, summed over all causes.
pub fn dropped(counters: &Value) -> u64 {
    let counters = counters.as_object().unwrap();
    let causes = counters
        .iter()
        .filter(|(name, _)| name.starts_with("dropped_"));
    causes.map(|(_, count)| number(count)).sum()
}

/// Sends through one chain until `packets` packets were sent; returns the number sent.
fn soak(case: &Case, packets: u64) -> u64 {
    let sockets = Sockets::new();
    let folder = scratch();
    fs::write(
        folder.path().join("link.key"),
        "00112233445566778899aabbccddeeff\n",
    )
    .unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(folder.path().join("link.key"), private).unwrap();
    let bearer = |teid| match teid {
        1..=1000 => format!("{teid},relay,{teid},198.18.0.9\n"),
        _ => format!("{teid},drop\n"),
    };
    let bearers: String = (1..=1100).map(bearer).collect();
    fs::write(folder.path().join("bearers.csv"), bearers).unwrap();
    let [west, east] = sockets.paths();
    let ports = [west, east].map(|path| format!("memif:{}", path.display()));
    let file = folder.path().join("chain.toml");
    fs::write(&file, format!("ports = {ports:?}\n{}", case.functions)).unwrap();
    let mut forward = Program::start(
        taut(&["forward", "--json", "--quiet"])
            .arg(&file)
            .current_dir(folder.path()),
    );
    forward.wait_for_stdout("started");
    let stop = Arc::new(AtomicBool::new(false));
    let beside = case.beside.map(|work| {
        let (stop, folder) = (Arc::clone(&stop), folder.path().to_owned());
        std::thread::spawn(move || work(&folder, &stop))
    });
    let (mut sent, mut received) = (0, 0);
    while sent < packets {
        let rate = match case.beside {
            Some(_) => RATE_WITH_ANSWERS,
            None => RATE,
        };
        let generate = format!("generate --rate {rate} --seconds {SECONDS} --warm-up 0");
        let line = sending(&generate, &sockets.ports("client", ""), case.set);
        // The generator prints its last line even if it has not sent all requested packets.
        let generated = Program::start(&mut taut(&line)).finish_within(PATIENCE);
        let summary = generated.last_json();
        let (stream, flow) = (&summary["streams"][0], &summary["flow"]);
        let [sent_now, received_now] = match case.beside {
            Some(_) => [
                &stream["tally"]["sent"],
                &stream["sequence"]["received_unique"],
            ],
            None => [&flow["sent"], &flow["received_in_all"]],
        };
        sent += number(sent_now);
        received += number(received_now);
        println!("{}: {sent} sent, {received} received", case.name);
    }
    stop.store(true, Ordering::Relaxed);
    if let Some(beside) = beside {
        println!("{}: {} changes beside", case.name, beside.join().unwrap());
    }
    let ended = forward.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    let summary = ended.last_json();
    println!("{}: {summary}", case.name);
    match case.name {
        "route" => routed(&summary, sent, received),
        _ => passed(&summary, sent, received),
    }
    sent
}

/// Checks that a chain received only packets that the generator sent. Each of them was received by the generator or
/// dropped with a counted cause.
pub fn passed(summary: &Value, sent: u64, received: u64) {
    let counters = &summary["counters"];
    assert_eq!(number(&counters["rx_packets"]), sent, "{summary}");
    assert_eq!(number(&counters["tx_packets"]), received, "{summary}");
    // Repair packets are not user packets: one function of the chain adds them, and another one removes them.
    let repairs = &summary["outcomes"]["repairs taken in"];
    let lost = dropped(counters) - repairs.as_u64().unwrap_or(0);
    assert_eq!(sent - received, lost, "{summary}");
}

/// The function `switch` of a chain file, with rules in two tables, a meter and a group.
const RULES: &str = "[[function]]
name = \"switch\"
meter = [{ id = 1, pps = 100000 }]
group = [{ id = 1, type = \"select\", buckets = [{ actions = [\"output:1\"] }, { actions = [\"set:ip_dscp=46\", \"output:1\"] }] }]
rule = [
    { priority = 9, in_port = 0, udp_dst = 1000, actions = [\"drop\"] },
    { priority = 9, in_port = 0, udp_dst = 1001, actions = [\"meter:1\", \"output:1\"] },
    { priority = 9, in_port = 0, udp_dst = 1002, actions = [\"group:1\"] },
    { priority = 9, in_port = 0, udp_dst = 1003, actions = [\"dec_ttl\", \"goto:1\"] },
    { priority = 1, in_port = 0, ip_src = \"198.18.0.0/15\", actions = [\"output:1\"] },
    { table = 1, priority = 9, eth_type = \"ipv4\", udp_src = 1100, actions = [\"drop\"] },
    { table = 1, priority = 1, actions = [\"output:1\"] },
]
";

/// Changes the routes of half of the destinations, and other routes, as fast as possible.
fn change_routes(folder: &Path, stop: &AtomicBool) -> u64 {
    let mut changes = 0;
    while !stop.load(Ordering::Relaxed) {
        for verb in ["add", "del"] {
            for route in [
                "10.0.1.32/27 via 10.0.1.10",
                "10.20.0.0/16 via 10.0.1.11",
                "10.0.1.16/28 via 10.0.1.12",
            ] {
                let route = match verb {
                    "add" => route,
                    _ => route.split(' ').next().unwrap(),
                };
                let line = ["route", "--control", "control.sock", verb, route];
                run(taut(&line).current_dir(folder)).success();
                changes += 1;
            }
        }
    }
    changes
}

/// Checks that every packet of a router has one counted outcome, and that forwarded packets arrived or met a full ring.
pub fn routed(summary: &Value, sent: u64, received: u64) {
    let counters = &summary["counters"];
    let outcomes = summary["outcomes"].as_object().unwrap();
    // The slow path counts the outcomes of the packets that it receives.
    let is_end = |name: &str| !name.ends_with("beside the above") && name != "to the slow path";
    let causes = outcomes.iter().filter(|(name, _)| is_end(name));
    let counted: u64 = causes.map(|(_, count)| number(count)).sum();
    let of = |name: &str| number(&outcomes[name]);
    // The generator's ARP replies arrived as well.
    let got = number(&counters["rx_packets"]);
    assert!(got >= sent, "{got} of {sent}");
    assert_eq!(
        counted + number(&counters["dropped_punted"]),
        got,
        "{summary}"
    );
    let on = of("forwarded") + of("slow path: forwarded");
    let made = number(&counters["from_slow_path"]) - of("slow path: forwarded");
    let full = number(&counters["dropped_tx_full"]);
    assert!(
        on >= received && on - received <= full && on - received + made >= full,
        "{on} {received} {full} {made}"
    );
}

/// Sends the packets of the chain called `name`: its percentage of all packets.
fn every_packet_through(name: &str) {
    let _turn = alone();
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let sent = soak(case, share_of(PACKETS) * case.share / 100);
    println!("{name}: {sent} packets in all");
}

macro_rules! every_packet {
    ($($test:ident $name:literal)*) => {$(
        #[test]
        #[ignore = "minutes to half an hour: ./run soak"]
        fn $test() {
            every_packet_through($name);
        }
    )*};
}

every_packet! {
    every_packet_through_switch_is_sent_on_or_dropped_by_cause "switch"
    every_packet_through_route_is_sent_on_or_dropped_by_cause "route"
    every_packet_through_nat_is_sent_on_or_dropped_by_cause "nat"
    every_packet_through_gtpu_is_sent_on_or_dropped_by_cause "gtpu"
    every_packet_through_aes_is_sent_on_or_dropped_by_cause "aes"
    every_packet_through_rlnc_is_sent_on_or_dropped_by_cause "rlnc"
}
