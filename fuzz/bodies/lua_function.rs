//! The body of the fuzz target for functions in Lua; `cargo test` runs the same body over seeded noise.

use std::path::Path;
use std::time::Duration;
use taut_lua::{Call, FunctionScript, Host};
use taut_port::{Batch, PoolHandle};
use taut_wire::UdpFlow;

/// The words from which scripts are built, as arbitrary bytes seldom form a word.
#[rustfmt::skip]
const WORDS: [&str; 64] = [
    "local a =", "local b =", "a", "b", "a.b", "a[1]", "taut", "taut.settings", "taut.settings.x", "taut.counter('c')", ":add(",
    ".value", "taut.worker", "taut.ip4(", "taut.mac(", "print", "batch", "batch.n", "batch[1]", "batch[a]", "batch[64]", "kept = batch[1]",
    "kept:u8(0)", "p:drop()", "p:punt()", "p:send_to(", "p:send_to(1)", "p.len", "p:u8(", "p:set_u8(", "p:u48(", "p:set_u48(", "p:bytes(",
    "p:set_bytes(", "p.eth.dst", "p.eth.dst =", "p.ip4.src", "p.udp.dst_port", "p.udp.dst_port =", "p.tcp.present", "p.user.ip4.src", "p.eth = 1",
    "0", "1", "-1", "60", "1e9", "0/0", "2^53", "nil", "true", "{", "}", "(", ")", ",", "\n", "..", "+", "==", "if", "then", "end", "pcall(",
];

/// Starts a script, or checks that it is refused with one line. Checks that each packet is counted once, whatever the
/// script does.
pub fn run(bytes: &[u8]) {
    let source = match bytes.split_first() {
        Some((first, rest)) if first % 2 == 0 => String::from_utf8_lossy(rest).into_owned(),
        _ => {
            let words = bytes
                .iter()
                .map(|byte| WORDS[usize::from(*byte) % WORDS.len()]);
            let words = words.collect::<Vec<_>>().join(" ");
            format!("function process(batch) for _, p in ipairs(batch) do {words} end end")
        }
    };
    let settings = toml_of("x = [1, \"a\"]");
    let host = Host {
        settings: &settings,
        worker: 0,
        workers: 1,
        sends: true,
        hz: 1e9,
        limit: Duration::from_millis(10),
    };
    let mut script = match FunctionScript::start_source(&source, Path::new("x.lua"), &host) {
        Ok(script) => script,
        Err(line) => return is_line(&line),
    };
    let pool = PoolHandle::new(8, false).expect("memory");
    let frame = UdpFlow::default().frame(64).expect("a frame");
    for round in 0..2 {
        let mut batch = Batch::new();
        for length in [60, 20, 60, 9] {
            let mut packet = pool.take(length).expect("room");
            packet
                .bytes_mut()
                .copy_from_slice(&frame[..usize::from(length)]);
            batch.push(packet);
        }
        if round == 1 {
            batch.mark_dropped(2);
        }
        let before = script.counts();
        let call = Call {
            ports: 2,
            ..Call::default()
        };
        if let Some(line) = script.process(&mut batch, &call) {
            is_line(&line);
        }
        let (seen, now) = (4 - round, script.counts());
        assert_eq!(now.seen - before.seen, seen);
        let kept = (0..4).filter(|index| batch.is_kept(*index)).count() as u64;
        assert_eq!(now.kept() - before.kept(), kept);
        assert!((0..4).all(|index| batch.egress(index).is_none_or(|port| port < 2)));
    }
}

fn toml_of(text: &str) -> toml::Table {
    text.parse().expect("a table")
}

fn is_line(said: &str) {
    assert!(
        said.starts_with("x.lua") && !said.contains('\n'),
        "{said:?}"
    );
}
