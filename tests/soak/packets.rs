//! Packets through functions: what the generator sent was received, or dropped by a cause that has a counter.

use super::share_of;
use crate::support::program::Program;
use crate::support::{Sockets, alone, scratch, taut};
use serde_json::Value;
use std::fs;
use std::time::Duration;

/// Packets of all chains together.
const PACKETS: u64 = 10_000_000_000;
/// The generator sends what the rings take.
const RATE: &str = "max";
const SECONDS: u64 = 20;

struct Case {
    name: &'static str,
    /// Of all packets, in per cent: more where a packet costs less.
    share: u64,
    functions: &'static str,
    /// Fields of the traffic.
    set: &'static [&'static str],
}

const CASES: [Case; 4] = [
    Case {
        name: "nat",
        share: 55,
        functions: "[[function]]\nname = \"nat\"\noutside = [1]\naddress = \"203.0.113.1\"\n",
        set: &[
            "src_ip=10.0.0.1-10.0.0.250 random",
            "src_port=1024-1200 random",
        ],
    },
    Case {
        name: "gtpu",
        share: 35,
        functions: "[[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\nload = \"bearers.csv\"\n",
        // One in eleven is told to be dropped.
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
        functions: "[[function]]\nname = \"aes\"\nencrypt = [1]\nkey_file = \"link.key\"\n\
            [[function]]\nname = \"aes\"\nencrypt = [0]\nkey_file = \"link.key\"\n",
        set: &[],
    },
    Case {
        name: "rlnc",
        share: 5,
        functions: "[[function]]\nname = \"rlnc\"\nencode = [1]\n\
            [[function]]\nname = \"rlnc\"\nencode = [0]\n",
        set: &[],
    },
];

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Drops of a worker by all causes.
pub fn dropped(counters: &Value) -> u64 {
    let counters = counters.as_object().unwrap();
    let causes = counters
        .iter()
        .filter(|(name, _)| name.starts_with("dropped_"));
    causes.map(|(_, count)| number(count)).sum()
}

/// Sends through one chain until so many packets were sent; how many that were.
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
    let (mut sent, mut received) = (0, 0);
    while sent < packets {
        let seconds = SECONDS.to_string();
        let mut arguments = vec![
            "generate",
            "--json",
            "--size",
            "128",
            "--rate",
            RATE,
            "--seconds",
            &seconds,
            "--warm-up",
            "0",
        ];
        let ports = sockets.ports("client", "");
        arguments.extend(ports.iter().map(String::as_str));
        for field in case.set {
            arguments.extend(["--set", field]);
        }
        // The last line is there also where not all was sent that was asked for.
        let generated =
            Program::start(&mut taut(&arguments)).finish_within(Duration::from_secs(SECONDS * 10));
        let summary = generated.last_json();
        sent += number(&summary["flow"]["sent"]);
        received += number(&summary["flow"]["received_in_all"]);
        println!("{}: {sent} sent, {received} received", case.name);
    }
    let ended = forward.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    let summary = ended.last_json();
    let counters = &summary["counters"];
    println!("{}: {summary}", case.name);
    assert_eq!(number(&counters["rx_packets"]), sent, "{}", case.name);
    assert_eq!(number(&counters["tx_packets"]), received, "{}", case.name);
    // What functions add is taken out by the chain: repairs are no packets of anybody.
    let repairs = &summary["outcomes"]["repairs taken in"];
    let lost = dropped(counters) - repairs.as_u64().unwrap_or(0);
    assert_eq!(sent - received, lost, "{}", case.name);
    sent
}

#[test]
#[ignore = "about an hour: ./run soak"]
fn every_packet_is_sent_on_or_dropped_by_cause() {
    let _turn = alone();
    let all = share_of(PACKETS);
    let sent: u64 = CASES
        .iter()
        .map(|case| soak(case, all * case.share / 100))
        .sum();
    println!("{sent} packets in all");
}
