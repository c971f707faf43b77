//! Half an hour at 80 % of the loss-free rate, while bearers, mappings of addresses and the functions of the chain
//! change: memory stays flat, and every packet is counted.

use super::packets::{dropped, number};
use super::{held_by, loss_free_rate, sending, share_of};
use crate::support::program::Program;
use crate::support::{Sockets, alone, scratch, taut};
use std::fs;
use std::time::{Duration, Instant};

const SECONDS: u64 = 1800;
/// Number of bearers that are deleted and created again each second.
const BEARERS_PER_SECOND: &str = "20000";
/// The interval at which the functions of the chain are replaced.
const UPDATE: Duration = Duration::from_millis(500);
/// The allowed growth of memory after the first tenth of the run, kilobytes, for noise of the allocator.
const GROWTH_KB: u64 = 2048;

/// Returns the functions for users behind one gateway: packets from their tunnels get an outside address.
fn functions(control: &str, key: u8) -> [serde_json::Value; 4] {
    [
        serde_json::json!({"name": "gtpu", "address": "192.0.2.1", "load": "bearers.csv", "control": control}),
        serde_json::json!({"name": "nat", "outside": [1], "address": "203.0.113.1", "udp_timeout": "1s", "mappings_per_host": 65536}),
        serde_json::json!({"name": "xor", "key": key}),
        serde_json::json!({"name": "xor", "key": key}),
    ]
}

fn toml(functions: &[serde_json::Value]) -> String {
    let line = |(key, value): (&String, &serde_json::Value)| format!("{key} = {value}\n");
    let table = |function: &serde_json::Value| {
        let lines: String = function.as_object().unwrap().iter().map(line).collect();
        format!("[[function]]\n{lines}")
    };
    functions.iter().map(table).collect()
}

const TRAFFIC: [&str; 5] = [
    "protocol=gtpu",
    "outer_src_ip=192.0.2.7",
    "outer_dst_ip=192.0.2.1",
    "teid=1-1000 random",
    "src_port=1024-40000 random",
];

#[test]
#[ignore = "half an hour: ./run soak"]
fn memory_is_stable_and_losses_are_counted_while_bearers_change() {
    let _turn = alone();
    let seconds = share_of(SECONDS).max(20);
    let (sockets, folder) = (Sockets::new(), scratch());
    let bearers: String = (1..=1000)
        .map(|teid| format!("{teid},decapsulate\n"))
        .collect();
    fs::write(folder.path().join("bearers.csv"), bearers).unwrap();
    let control = folder.path().join("control.sock").display().to_string();
    let ports = sockets
        .paths()
        .map(|path| format!("memif:{}", path.display()));
    let chain = format!("ports = {ports:?}\n{}", toml(&functions(&control, 1)));
    let file = folder.path().join("chain.toml");
    fs::write(&file, chain).unwrap();
    let start = || {
        let mut forward = Program::start(
            taut(&["forward", "--json", "--quiet", "--control"])
                .arg(&file)
                .current_dir(folder.path()),
        );
        forward.wait_for_stdout("started");
        forward
    };
    let ends = sockets.ports("client", "");
    let searching = start();
    let rate = loss_free_rate(&ends, &TRAFFIC) * 0.8;
    drop(searching);

    let mut forward = start();
    let (rate_text, seconds_text) = (format!("{rate:.0}"), seconds.to_string());
    let generate = format!("generate --rate {rate_text} --seconds {seconds} --warm-up 0");
    let mut generator = Program::start(&mut taut(&sending(&generate, &ends, &TRAFFIC)));
    let csv = folder.path().join("bearers.csv").display().to_string();
    let churn = Program::start(&mut taut(&[
        "bearer",
        "--control",
        &control,
        "churn",
        &csv,
        "--rate",
        BEARERS_PER_SECOND,
        "--seconds",
        &seconds_text,
    ]));
    let begun = Instant::now();
    let (mut key, mut updates) = (1_u8, 0);
    let mut settled = None;
    while generator.is_running() {
        std::thread::sleep(UPDATE);
        key = key.wrapping_add(1);
        let functions = functions(&control, key);
        forward.say(&serde_json::json!({ "functions": functions }).to_string());
        updates += 1;
        if begun.elapsed().as_secs() >= seconds / 10 {
            let now = held_by(forward.id());
            let (descriptors, kilobytes) = *settled.get_or_insert(now);
            assert!(
                now.0 <= descriptors,
                "{} file descriptors, and after a tenth {descriptors}",
                now.0
            );
            assert!(
                now.1 <= kilobytes + GROWTH_KB,
                "{} kB, and after a tenth {kilobytes} kB",
                now.1
            );
        }
    }
    let summary = generator.finish().last_json();
    println!("{}", churn.finish().success().stdout);
    forward.wait_until("all updates answered", |stdout, _| {
        stdout.matches("\"event\":\"updated\"").count() >= updates
    });
    let held = held_by(forward.id());
    let ended = forward.interrupt().success();
    let counted = ended.last_json();
    println!(
        "{rate_text} pkt/s for {seconds} s, {updates} updates; held {settled:?}, then {held:?}\n{counted}"
    );
    assert_eq!(ended.stdout.matches("refused").count(), 0, "{ended:?}");
    let [out, back] = [0, 1].map(|port| &summary["ports"][port]);
    let counters = &counted["counters"];
    assert_eq!(number(&out["tx_packets"]), number(&counters["rx_packets"]));
    assert_eq!(number(&back["rx_packets"]), number(&counters["tx_packets"]));
    assert_eq!(
        number(&counters["rx_packets"]) - number(&counters["tx_packets"]),
        dropped(counters)
    );
}
