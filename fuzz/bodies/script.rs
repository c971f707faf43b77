//! The body of the fuzz target for Lua scripts; `cargo test` runs the same body over seeded noise.

use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_port::PortSpec;
use taut_script::Script;
use taut_sys::Clock;

static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::calibrate(Duration::from_millis(2)));

/// The words from which scripts are built, as arbitrary bytes seldom form a word.
#[rustfmt::skip]
const WORDS: [&str; 96] = [
    "local a =", "local b =", "a", "b", "a.b", "a[1]", "taut", "taut.run", "taut.stream", "taut.send", "taut.receive",
    "taut.task(nil,", "taut.counter('c')", "taut.histogram('h')", ":add(", ":record(", ":percentile(", ":wait()", ".value",
    "taut.port(1)", "taut.port(2)", "taut.args", "taut.ports()", "taut.sleep(", "taut.now()", "taut.running()", "taut.ip4(",
    "taut.mac(", "stream =", "streams =", "seconds = 0.001,", "rate = 10000,", "rate =", "size =", "craft =", "on_receive =",
    "src_port = '1-9',", "pattern =", "'burst(32, 1us)'", "'f'", "'a'", "'a*'", "'(.-)%1'", "'%d'", "'64'", "0", "1", "-1",
    "1e9", "0/0", "2^53", "nil", "true", "{", "}", "(", ")", ",", ";", "\n", "..", "+", "*", "%", "==", "<", "#", "=", "and",
    "not", "function f()", "function main()", "function(batch)", "end", "if", "then", "else", "while true do", "for i = 1, 9 do",
    "for _, p in ipairs(batch) do", "return", "pcall(", "error(", "setmetatable(", "coroutine.wrap(", "string.rep(",
    "string.find(", "string.format(", "load(", "batch[1]", "p:set_u8(", "p.udp.dst_port", "p:bytes(", "p.eth.dst", "p:send_back()",
    "collectgarbage()",
];

/// Runs a script. Checks that it ends within its limits, and closes everything that it opened.
pub fn run(bytes: &[u8]) {
    let source = match bytes.split_first() {
        Some((first, rest)) if first % 2 == 0 => String::from_utf8_lossy(rest).into_owned(),
        _ => {
            let words = bytes
                .iter()
                .map(|byte| WORDS[usize::from(*byte) % WORDS.len()]);
            words.collect::<Vec<_>>().join(" ")
        }
    };
    let port = PortSpec::parse("pair:fuzz").expect("a port");
    let script = Script {
        path: "x.lua".into(),
        ports: vec![port.clone(), port],
        arguments: Vec::new(),
        trusted: false,
        limit: Some(Duration::from_millis(10)),
        last_words: Duration::ZERO,
        memory_bytes: 8 << 20,
        wait: Duration::from_millis(5),
        core: None,
        clock: *CLOCK,
    };
    let before = open_files();
    let ended = script.run_source(source, &AtomicBool::new(false));
    if let Err(e) = &ended.outcome {
        let said = e.to_string();
        assert!(
            said.starts_with("x.lua") && !said.contains('\n'),
            "{said:?}"
        );
    }
    // A call that does not return keeps its resources until the process ends.
    assert!(ended.is_stuck || open_files() <= before);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
