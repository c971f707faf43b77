//! The display of a running program: metrics for monitoring systems, and a dashboard that restores the terminal.

use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, is_installed, scratch, taut};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns the address of the metrics that a program prints.
fn metrics_address(program: &mut Program) -> String {
    program.wait_for_stderr("/metrics\n");
    let stderr = program.stderr();
    let start = stderr.find("http://").unwrap() + "http://".len();
    let end = stderr[start..].find("/metrics").unwrap() + start;
    stderr[start..end].to_string()
}

fn scrape(address: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(
            b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/openmetrics-text\r\n\r\n",
        )
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    body.to_string()
}

/// Returns the samples of a text, by name with labels; fails if it violates OpenMetrics 1.0.
fn samples_of(text: &str) -> BTreeMap<String, f64> {
    // Before the first trial there are no samples.
    assert!(text == "# EOF\n" || text.ends_with("\n# EOF\n"), "{text}");
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let (mut family, mut kind) = (String::new(), String::new());
    for line in text.lines() {
        assert!(!line.is_empty() && line == line.trim(), "{line:?}");
        if let Some(rest) = line.strip_prefix("# ") {
            let mut words = rest.splitn(3, ' ');
            let (what, name, value) = (words.next(), words.next(), words.next());
            match what.unwrap() {
                "TYPE" => {
                    family = name.unwrap().to_string();
                    kind = value.unwrap().to_string();
                    assert!(families.insert(family.clone()), "{family} twice");
                    let known = ["counter", "gauge", "histogram"];
                    assert!(known.contains(&kind.as_str()), "{line}");
                    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    assert!(
                        family.chars().all(plain) && !family.ends_with("_total"),
                        "{line}"
                    );
                }
                "UNIT" => {
                    assert_eq!(name, Some(family.as_str()));
                    assert!(family.ends_with(&format!("_{}", value.unwrap())), "{line}");
                }
                "HELP" => assert!(name == Some(family.as_str()) && value.is_some(), "{line}"),
                "EOF" => {}
                other => panic!("{other}"),
            }
            continue;
        }
        // The last space precedes the value, as only quoted label values contain spaces.
        let (name, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let bare = name.split('{').next().unwrap();
        let suffix = bare
            .strip_prefix(family.as_str())
            .unwrap_or_else(|| panic!("{line} in {family}"));
        let fits = match kind.as_str() {
            "counter" => suffix == "_total" && value >= 0.0,
            "gauge" => suffix.is_empty(),
            _ => ["_bucket", "_count", "_sum"].contains(&suffix),
        };
        assert!(fits, "{line} in {kind} {family}");
        if name.contains('{') {
            assert!(
                name.ends_with("\"}") && name.matches('"').count() % 2 == 0,
                "{line}"
            );
        }
        assert!(
            samples.insert(name.to_string(), value).is_none(),
            "{name} twice"
        );
    }
    samples
}

#[test]
fn a_generator_exports_increasing_metrics() {
    let _turn = alone();
    // A warm-up would wait for packets that never come back.
    let mut generator = Program::start(&mut taut(&[
        "generate",
        "--port",
        "null:",
        "--rate",
        "10k",
        "--seconds",
        "1000",
        "--warm-up",
        "0",
        "--metrics",
        "127.0.0.1:0",
    ]));
    let address = metrics_address(&mut generator);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let samples = samples_of(&scrape(&address));
        let name = samples
            .keys()
            .find(|name| name.starts_with("taut_generate_sent_packets_total"));
        // Samples are missing before the first update.
        let value = name.map_or(0.0, |name| samples[name]);
        if value > seen.last().copied().unwrap_or(0.0) {
            seen.push(value);
        }
        assert!(generator.is_running());
        std::thread::sleep(Duration::from_millis(100));
    }
    let samples = samples_of(&scrape(&address));
    let infinite = samples
        .iter()
        .find(|(name, _)| name.contains("le=\"+Inf\""))
        .unwrap();
    assert_eq!(*infinite.1, 0.0, "nothing comes back from null:");
    generator.interrupt().success();
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn a_forwarder_exports_its_counters() {
    let _turn = alone();
    let mut forward = Program::start(&mut taut(&[
        "forward",
        "--port",
        "null:source=32",
        "--port",
        "null:",
        "--metrics",
        "127.0.0.1:0",
        "--quiet",
    ]));
    let address = metrics_address(&mut forward);
    loop {
        let samples = samples_of(&scrape(&address));
        let [rx, tx] =
            ["received", "sent"].map(|what| samples[&format!("taut_forward_{what}_packets_total")]);
        assert!(samples.contains_key("taut_forward_dropped_packets_total{cause=\"tx_full\"}"));
        if rx > 0.0 {
            assert!(tx > 0.0);
            break;
        }
        assert!(forward.is_running());
    }
    forward.interrupt().success();
}

#[test]
fn a_capture_exports_its_counters() {
    let _turn = alone();
    let mut capture = Program::start(&mut taut(&[
        "capture",
        "--port",
        "null:source=32",
        "--ring",
        "64M",
        "--flows",
        "100",
        "--trigger",
        "by-hand",
        "--metrics",
        "127.0.0.1:0",
        "--quiet",
    ]));
    let address = metrics_address(&mut capture);
    loop {
        // The capture exports no samples before it starts.
        let samples = samples_of(&scrape(&address));
        let kept = samples.get("taut_capture_kept_packets_total");
        if kept.is_some_and(|kept| *kept > 0.0) {
            let zeros = [
                "taut_capture_triggers_fired_total{trigger=\"by-hand\"}",
                "taut_capture_known_flows",
            ];
            assert_eq!(zeros.map(|it| samples[it]), [0.0; 2]);
            break;
        }
        assert!(capture.is_running());
    }
    capture.interrupt().success();
}

#[test]
fn unavailable_metrics_addresses_cause_a_one_line_error() {
    let _turn = alone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for command in ["generate", "forward", "capture"] {
        for (address, part) in [
            (taken.as_str(), "in use"),
            ("9100", "such as 127.0.0.1:9100"),
        ] {
            let arguments = [command, "--port", "null:", "--metrics", address];
            let finished = run(&mut taut(&arguments));
            assert_eq!(finished.code(), Some(2), "{finished:?}");
            assert!(finished.stderr.contains(part), "{finished:?}");
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        }
    }
}

#[test]
fn live_output_without_a_terminal_has_plain_lines() {
    let _turn = alone();
    let arguments = [
        "generate",
        "--port",
        "null:",
        "--rate",
        "10k",
        "--seconds",
        "1.3",
        "--warm-up",
        "0",
        "--max-loss",
        "1",
        "--live",
    ];
    let finished = run(&mut taut(&arguments)).success();
    assert!(finished.stdout.contains("1 s  sent"), "{finished:?}");
    assert!(!finished.stdout.contains('\u{1b}'), "{finished:?}");
}

/// Runs taut on a pseudo-terminal, types `keys` once the dashboard shows `awaited`, and returns the terminal's output.
fn on_a_terminal(arguments: &str, awaited: &str, keys: &[u8]) -> String {
    let folder = scratch();
    let out = folder.path().join("typescript");
    let command = format!(
        "stty rows 40 cols 120; echo \"before=$(stty -g)\"; {} {arguments} --live; echo \"code $?\"; echo \"after=$(stty -g)\"",
        env!("CARGO_BIN_EXE_taut")
    );
    let mut terminal = Program::start(
        Command::new("script")
            .args(["-q", "-f", "-e", "-c", &command])
            .arg(&out)
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh"),
    );
    let read = || String::from_utf8_lossy(&std::fs::read(&out).unwrap_or_default()).into_owned();
    terminal.wait_until("a dashboard", |_, _| {
        read().contains(awaited) || read().contains("code 3")
    });
    terminal.type_bytes(keys);
    terminal.finish();
    read()
}

#[test]
fn the_terminals_modes_are_restored_at_exit() {
    let _turn = alone();
    if !is_installed("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    for (seconds, keys) in [("1000", &b"q"[..]), ("1000", b"\x03"), ("1.5", b"")] {
        let arguments = format!(
            "generate --port null: --rate 10k --seconds {seconds} --warm-up 0 --max-loss 1"
        );
        let shown = on_a_terminal(&arguments, "slowest", keys);
        let at = |text: &str| {
            shown
                .find(text)
                .unwrap_or_else(|| panic!("{text:?} in {shown:?}"))
        };
        // The output switches to the alternate screen and back, shows the cursor again, and only then prints the
        // summary.
        assert!(at("\u{1b}[?1049h") < at("\u{1b}[?1049l"));
        assert!(
            shown.rfind("\u{1b}[?25h") > shown.rfind("\u{1b}[?25l"),
            "{shown:?}"
        );
        assert!(
            shown.rfind("send delay") > shown.rfind("\u{1b}[?1049l"),
            "{shown:?}"
        );
        assert!(shown.contains("code 0"), "{shown:?}");
        // The beginning of the output also has the command line, with a $ in place of the modes.
        let modes = |name: &str| {
            let mut found = shown
                .split(name)
                .skip(1)
                .filter(|rest| !rest.starts_with('$'));
            let rest = found
                .next()
                .unwrap_or_else(|| panic!("{name} in {shown:?}"));
            rest.split_whitespace().next().map(String::from)
        };
        assert_eq!(modes("before="), modes("after="));
        assert!(modes("before=").is_some_and(|modes| modes.contains(':')));
    }
}

#[test]
fn a_capture_ends_on_a_key_and_restores_the_terminal() {
    let _turn = alone();
    if !is_installed("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    let arguments = "capture --port null:source=32 --ring 64M --flows 10 --trigger by-hand";
    let shown = on_a_terminal(arguments, "q ends the capture", b"q");
    for part in ["by-hand", "forgotten", "pkt/s", "code 0"] {
        assert!(shown.contains(part), "{part} in {shown:?}");
    }
    assert!(
        shown.rfind("packets kept in") > shown.rfind("\u{1b}[?1049l"),
        "{shown:?}"
    );
    assert!(!shown.contains("up\r\n"), "{shown:?}");
}

#[test]
fn a_robot_is_drawn_until_a_key_ends_the_run() {
    let _turn = alone();
    if !is_installed("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    let arguments = "control run --plant conveyor --periods 100000";
    let shown = on_a_terminal(arguments, "q ends the run", b"q");
    for part in ["conveyor", "missing", "stopped before all periods"] {
        assert!(shown.contains(part), "{part} in {shown:?}");
    }
    assert!(
        shown.rfind("stopped before all periods") > shown.rfind("\u{1b}[?1049l"),
        "{shown:?}"
    );
}

#[test]
fn a_benchmark_displays_its_trials_and_ends_on_a_key() {
    let _turn = alone();
    if !is_installed("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let folder = scratch();
        let arguments = format!(
            "bench throughput --device memif-idle --size 64 --trial 2 --out {}",
            folder.path().join("out").display()
        );
        // The dashboard's second line shows the first trial of the first search. The first screen may be older.
        let shown = on_a_terminal(&arguments, "1/3", b"q");
        if shown.contains("measurements would disturb each other") && Instant::now() < deadline {
            std::thread::sleep(Duration::from_secs(1));
            continue;
        }
        for word in ["throughput", "1/3"] {
            assert!(shown.contains(word), "{word}: {shown:?}");
        }
        assert!(shown.contains("\u{1b}[?1049l"), "{shown:?}");
        assert!(shown.contains("code 130"), "{shown:?}");
        assert!(folder.path().join("out/report.html").is_file());
        return;
    }
}

#[test]
fn a_benchmark_publishes_metrics_that_grow_across_trials() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("out").display().to_string();
    // There are too many repetitions to finish, so the benchmark ends only on request.
    let line = "bench throughput --device memif-idle --size 64 --trial 0.3 --repetitions 1000 \
                --metrics 127.0.0.1:0 --out";
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.push(&out);
    let mut bench = Program::start(&mut taut(&arguments));
    let address = metrics_address(&mut bench);
    let ended = {
        let mut last = 0.0;
        let mut grown = 0;
        while grown < 3 {
            let samples = samples_of(&scrape(&address));
            let mut sent = samples
                .iter()
                .filter(|(name, _)| name.starts_with("taut_generate_sent_packets_total"));
            let now = sent.next().map_or(0.0, |(_, value)| *value);
            assert!(now >= last, "{now} after {last}");
            grown += u32::from(now > last);
            last = now;
            assert!(bench.is_running(), "{}", bench.stderr());
            std::thread::sleep(Duration::from_millis(100));
        }
        // Without a dashboard, lines every few seconds have the current rate and the result so far.
        bench.wait_for_stderr("/1000: ");
        bench.interrupt()
    };
    assert_eq!(ended.code(), Some(130), "{ended:?}");
}

/// Closing the terminal ends the run.
#[test]
fn closing_the_terminal_ends_the_generator() {
    let _turn = alone();
    if !is_installed("script") {
        println!("skipped: needs script (util-linux)");
        return;
    }
    let watch = crate::support::leftovers::Watch::begin();
    let command = format!(
        "stty rows 40 cols 120; exec {} generate --port null: --rate 10k --seconds 1000 --warm-up 0 --live",
        env!("CARGO_BIN_EXE_taut")
    );
    let out = watch.temporary().join("typescript");
    let mut terminal = Program::start(
        watch
            .over(Command::new("script").args(["-q", "-f", "-c", &command]))
            .arg(&out)
            .env("TERM", "xterm-256color")
            .env("SHELL", "/bin/sh"),
    );
    let read = || String::from_utf8_lossy(&std::fs::read(&out).unwrap_or_default()).into_owned();
    terminal.wait_until("a dashboard", |_, _| read().contains("slowest"));
    terminal.kill();
    let deadline = Instant::now() + crate::support::program::PATIENCE;
    while !watch.processes().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", watch.processes());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn the_last_second_of_a_run_is_reported() {
    let _turn = alone();
    undisturbed(|| {
        let words = "generate --port null: --rate 1k --seconds 2 --warm-up 0 --max-loss 1 --json";
        let words: Vec<&str> = words.split(' ').collect();
        let finished = run(&mut taut(&words)).success();
        let lines = finished
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<serde_json::Value> = lines.collect();
        let mut seconds: Vec<u64> = lines
            .iter()
            .filter(|line| line["event"] == "second")
            .map(|line| line["sent"].as_u64().unwrap())
            .collect();
        // At the end, the generator waits for packets that never return, and sends none in those seconds.
        while seconds.last() == Some(&0) {
            seconds.pop();
        }
        // A busy machine may delay the counting thread for longer than half a second.
        match (seconds.len(), seconds.iter().sum()) {
            (2, 2000) => Ok(()),
            _ => Err(format!("{seconds:?}")),
        }
    });
}
