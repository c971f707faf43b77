//! Lua scripts: every example, the errors of a failing script, and the limits that stop a script that does not end.

use crate::support::program::{Finished, Program, run};
use crate::support::{alone, scratch, taut};
use std::fs;
use std::time::Duration;

const LOOP: [&str; 4] = ["--port", "pair:loop", "--port", "pair:loop"];

/// Runs an example over a pair of joined ports.
fn example(name: &str, ports: &[&str], arguments: &[&str]) -> Finished {
    let path = format!("examples/lua/{name}.lua");
    let mut words = vec!["script", &path, "--json"];
    words.extend(ports);
    words.push("--");
    words.extend(arguments);
    run(&mut taut(&words)).success()
}

/// Runs a script with the given arguments.
fn script(text: &str, arguments: &[&str]) -> Finished {
    let folder = scratch();
    let path = folder.path().join("test.lua");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let words = [&["script", path], arguments].concat();
    let mut finished = run(&mut taut(&words));
    finished.stderr = finished.stderr.replace(path, "test.lua");
    finished
}

#[track_caller]
fn number_after(text: &str, label: &str) -> u64 {
    let (_, rest) = text
        .split_once(label)
        .unwrap_or_else(|| panic!("no \"{label}\" in {text}"));
    let digits: String = rest
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

#[test]
fn the_udp_throughput_example_receives_every_packet() {
    let _turn = alone();
    let done = example("udp_throughput", &LOOP, &["20k", "64", "0.2"]);
    assert!(done.stdout.contains("lost 0,"), "{done:?}");
    assert!(done.stdout.contains("foreign 0"), "{done:?}");
    let crafted = done.last_json()["counters"]["crafted packets"].as_f64();
    assert!(crafted.unwrap() > 0.0, "{done:?}");
    assert!(!done.stdout.contains("received 0.000"), "{done:?}");
}

#[test]
fn l3_load_latency_measures_both_streams() {
    let _turn = alone();
    let done = example("l3_load_latency", &LOOP, &["20k", "4", "64", "0.2"]);
    let sent = number_after(&done.stdout, "load    sent ");
    assert!(sent > 0, "{done:?}");
    assert_eq!(number_after(&done.stdout, "received "), sent);
    assert_eq!(done.stdout.matches("latency min").count(), 2, "{done:?}");
}

#[test]
fn the_rfc2544_example_searches_every_frame_size() {
    let _turn = alone();
    let arguments = ["100000", "0.05", "3", "64", "512"];
    let done = example("rfc2544", &LOOP, &arguments);
    assert!(done.stdout.contains("  64 bytes: 0."), "{done:?}");
    assert!(done.stdout.contains(" 512 bytes: 0."), "{done:?}");
    // If no packet returns, no rate passes. Each step waits for packets for seconds, so there is only one step.
    let arguments = ["100000", "0.05", "1", "64"];
    let done = example("rfc2544", &["--port", "null:"], &arguments);
    assert!(
        done.stdout.contains("64 bytes: 0.000 Mpkt/s without"),
        "{done:?}"
    );
}

#[test]
fn the_tx_multi_core_example_sums_packets_over_all_tasks() {
    let _turn = alone();
    let ports = ["--port", "null:", "--port", "null:"];
    let done = example("tx_multi_core", &ports, &["10k", "0.2"]);
    let sent = ["port 1: ", "port 2: "].map(|port| number_after(&done.stdout, port));
    assert!(sent.iter().all(|sent| *sent > 0), "{done:?}");
    let sum = done.last_json()["counters"]["sent by all tasks"].as_f64();
    assert_eq!(sum, Some((sent[0] + sent[1]) as f64));
}

#[test]
fn the_timestamps_example_fills_its_own_latency_histogram() {
    let _turn = alone();
    let done = example("timestamps", &LOOP, &["0.2"]);
    let json = done.last_json();
    let received = number_after(&done.stdout, "received ");
    assert!(received > 0, "{done:?}");
    assert_eq!(
        json["histograms"]["latency by the script"]["count"],
        received
    );
    assert_eq!(json["counters"]["packets without a stamp"], 0.0);
}

#[test]
fn inner_packets_of_the_gtpu_flood_example_have_correct_checksums() {
    let _turn = alone();
    let done = example("gtpu_flood", &LOOP, &["20k", "0.2"]);
    // Every timestamp and checksum inside the tunnels is right, or they would not be recognised.
    let sent = number_after(&done.stdout, "sent ");
    let back = format!("{sent} came back, foreign 0");
    assert!(sent > 0 && done.stdout.contains(&back), "{done:?}");
}

#[test]
fn the_arp_responder_example_replies_to_requests() {
    let _turn = alone();
    let folder = scratch();
    let socket = folder.path().join("s");
    let server = format!("memif:{}", socket.display());
    let client = format!("memif:{},role=client", socket.display());
    let path = "examples/lua/arp_responder.lua";
    let arguments = [
        "script",
        path,
        "--port",
        &server,
        "--json",
        "--",
        "10.0.0.2",
        "02:00:00:00:00:02",
        "60",
    ];
    let responder = Program::start(&mut taut(&arguments));
    let asker = r#"
        local request = "\255\255\255\255\255\255\2\0\0\0\0\1\8\6\0\1\8\0\6\4\0\1\2\0\0\0\0\1\10\0\0\1\0\0\0\0\0\0\10\0\0\2"
        local replies, wrong = 0, 0
        local r = taut.send(taut.port(1), function(batch)
            for _, packet in ipairs(batch) do packet:set_bytes(0, request) end
        end, { rate = 1000, seconds = 0.2, stamp = false, on_receive = function(batch)
            for _, packet in ipairs(batch) do
                local arp = packet.arp
                if arp.op == 2 and arp.sender_mac == taut.mac("02:00:00:00:00:02") and taut.ip4_text(arp.sender_ip) == "10.0.0.2"
                    and arp.target_mac == 0x020000000001 and packet.eth.dst == 0x020000000001 then
                    replies = replies + 1
                else
                    wrong = wrong + 1
                end
            end
        end })
        print("sent " .. r.sent .. " replies " .. replies .. " wrong " .. wrong)"#;
    let asked = script(asker, &["--port", &client]).success();
    // On a busy machine the last replies may arrive too late, but no reply may be wrong.
    let replies = number_after(&asked.stdout, "replies ");
    assert!(replies > 0, "{asked:?}");
    assert_eq!(number_after(&asked.stdout, "wrong "), 0, "{asked:?}");
    let answered = responder.interrupt().success();
    let count = answered.last_json()["counters"]["answered"]
        .as_f64()
        .unwrap();
    let sent = number_after(&asked.stdout, "sent ");
    assert!(
        (replies..=sent).contains(&(count as u64)),
        "{asked:?} {answered:?}"
    );
}

#[test]
fn script_errors_name_the_file_line_and_call() {
    for (text, parts) in [
        (
            "local x = 1\nlocal y = nil + x",
            &["test.lua:2: attempt to perform arithmetic"][..],
        ),
        ("x = = 1", &["test.lua:1: unexpected symbol"]),
        ("\n\ntaut.stream { size = 63 }", &["test.lua:3: ", "63"]),
        (
            "\ntaut.stream { seize = 63 }",
            &["test.lua:2: taut.stream: ", "seize"],
        ),
        (
            "taut.stream { rate = '1 furlong' }",
            &["test.lua:1: taut.stream: ", "furlong"],
        ),
        (
            "\nlocal p = taut.port(2)",
            &["test.lua:2: taut.port(2): 1 ports were given"],
        ),
        (
            "taut.run { second = 1 }",
            &[
                "test.lua:1: taut.run: unknown key `second`",
                "did you mean `seconds`?",
            ],
        ),
        (
            "taut.run { seconds = -1 }",
            &["test.lua:1: taut.run: seconds = -1"],
        ),
        (
            "local function craft(batch)\n  batch[1].udp.dst_port = 70000\nend\ntaut.send(taut.port(1), craft, { seconds = 1 })",
            &[
                "test.lua:2: udp.dst_port: expected a number from 0 to 65535, got 70000",
                "in function <test.lua:1>",
            ],
        ),
        (
            "taut.send(taut.port(1), function(batch)\n  batch[1].tcp.seq = 1\nend, { seconds = 1 })",
            &["test.lua:2: the packet has no such header"],
        ),
        (
            "taut.send(taut.port(1), function(batch)\n  batch[1]:set_u8(60, 1)\nend, { seconds = 1 })",
            &["test.lua:2: bytes 60 to 60 are not in a packet of 60 bytes"],
        ),
        (
            "local kept\ntaut.send(taut.port(1), function(batch)\n  kept = kept or batch[1]\nend, { seconds = 0.01 })\nprint(kept.udp.dst_port)",
            &["test.lua:5: this packet is not there any more"],
        ),
        (
            "taut.send(taut.port(1), function() taut.run { seconds = 1 } end, { seconds = 1 })",
            &["test.lua:1: taut.run: a trial is running already"],
        ),
        (
            "function f() error('deliberate') end\nfunction main() taut.task(nil, 'f'):wait() end",
            &["test.lua:1: deliberate", "in task f"],
        ),
        (
            "function f() error('deliberate') end\nfunction main() taut.task(nil, 'f') while true do taut.sleep(0.01) end end",
            &["test.lua:1: deliberate", "in task f"],
        ),
        (
            "taut.task(nil, 'nobody')",
            &["test.lua:1: taut.task: expected a core"],
        ),
        (
            "local t = {} while true do t[#t + 1] = ('x'):rep(1e5) .. #t end",
            &["test.lua: not enough memory; give more with --memory"],
        ),
        (
            "io.open('/etc/passwd')",
            &["test.lua:1: attempt to index global 'io'"],
        ),
    ] {
        let done = script(text, &["--port", "null:", "--memory", "64"]);
        assert_eq!(done.code(), Some(2), "{text}: {done:?}");
        assert_eq!(
            done.stderr.trim_end().lines().count(),
            1,
            "{text}: {done:?}"
        );
        for part in parts {
            assert!(done.stderr.contains(part), "{text}: {}", done.stderr);
        }
    }
}

#[test]
fn an_endless_script_is_stopped_at_its_time_limit() {
    let craft = "taut.send(taut.port(1), function() while true do end end, { seconds = 1 })";
    for text in [
        "\nwhile true do end",
        craft,
        "function f() while true do end end\nfunction main() taut.task(nil, 'f'):wait() end",
    ] {
        let done = script(text, &["--port", "null:", "--limit-seconds", "0.2"]);
        assert_eq!(done.code(), Some(2), "{text}: {done:?}");
        assert!(
            done.stderr.contains("stopped after --limit-seconds 0.2"),
            "{done:?}"
        );
    }
}

/// A script that counts and measures; with [`HANG`] appended, it then blocks in a library function.
const COUNT: &str =
    "taut.counter('n'):add(3) for i = 1, 1500 do taut.histogram('h'):record(i) end ";
const HANG: &str = "string.find(('a'):rep(1e6), ('a*'):rep(50) .. 'b') ";

/// Checks that a stopped script causes exit code `code` and one line on standard error, and that the counter and
/// histogram of [`COUNT`] are printed.
#[track_caller]
fn assert_given_up(done: &Finished, code: i32) {
    assert_eq!(done.code(), Some(code), "{done:?}");
    assert_eq!(done.stderr.trim_end().lines().count(), 1, "{done:?}");
    let json = done.last_json();
    assert_eq!(json["counters"]["n"], 3.0, "{done:?}");
    assert_eq!(json["histograms"]["h"]["count"], 1500, "{done:?}");
}

#[test]
fn a_blocked_call_ends_at_the_limit_and_prints_counters() {
    let folder = scratch();
    let socket = folder.path().join("s");
    let server = format!("memif:{}", socket.display());
    let client = format!("{server},role=client");
    let run = "taut.run { stream = taut.stream {}, seconds = 0.01, rate = 1000 } ";
    for text in [
        format!("{COUNT}{run}{HANG}"),
        format!(
            "{COUNT}taut.send(taut.port(1), function() {HANG} end, {{ receive = taut.port(2), seconds = 1 }})"
        ),
        format!(
            "function f() {COUNT}{run}{HANG} end function main() taut.task(nil, 'f'):wait() end"
        ),
    ] {
        let ports = ["--port", &server, "--port", &client];
        let end = ["--limit-seconds", "0.3", "--json"];
        let done = script(&text, &[&ports[..], &end].concat());
        assert_given_up(&done, 2);
        let why = "in a call that does not return: stopped after --limit-seconds 0.3";
        assert!(done.stderr.contains(why), "{done:?}");
        assert!(!socket.exists(), "{text}");
    }
}

#[test]
fn processes_started_by_a_trusted_script_end_with_the_script() {
    let slept = format!("sleep 600.{}", std::process::id());
    let text = format!("{COUNT}print('begun') os.execute('{slept}; true') {HANG}");
    let end = ["--trust", "--limit-seconds", "0.3", "--json"];
    assert_given_up(&script(&text, &end), 2);
    let text = format!(
        "{COUNT}local ffi = require 'ffi' ffi.cdef 'unsigned sleep(unsigned);' ffi.C.sleep(600)"
    );
    assert_given_up(&script(&text, &end), 2);
    let running = fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words)
            .replace('\0', " ")
            .contains(&slept)
    });
    assert_eq!(running.count(), 0);
}

#[test]
fn one_ctrl_c_ends_a_blocked_call() {
    let folder = scratch();
    let path = folder.path().join("test.lua");
    fs::write(&path, format!("{COUNT}print('begun') {HANG}")).unwrap();
    let mut program = Program::start(&mut taut(&["script", path.to_str().unwrap(), "--json"]));
    program.wait_for_stdout("begun");
    assert_given_up(&program.interrupt(), 130);
}

#[test]
fn memory_that_a_script_uses_outside_lua_is_limited() {
    for (text, part) in [
        (
            "function f() end local t = {} for i = 1, 30 do t = { t, t } end taut.task(nil, 'f', t)",
            "the maximum is 64 MB",
        ),
        (
            "for i = 1, 1e6 do taut.counter('c' .. i) end",
            "4096 counters and histograms at most",
        ),
        (
            "for i = 1, 1e6 do taut.histogram('h' .. i) end",
            "4096 counters and histograms at most",
        ),
        (
            "function f() taut.sleep(600) end function main() for i = 1, 1e6 do taut.task(nil, 'f') end end",
            "256 tasks have not been waited for",
        ),
    ] {
        let done = script(text, &["--limit-seconds", "60"]);
        assert_eq!(done.code(), Some(2), "{text}: {done:?}");
        assert!(done.stderr.contains(part), "{text}: {done:?}");
    }
}

#[test]
fn only_trusted_scripts_may_create_streams_from_files() {
    let text = "taut.stream { pattern = ' trace(/no/such/file)' }";
    let refused = script(text, &[]);
    assert!(
        refused.stderr.contains("reads a file: give --trust"),
        "{refused:?}"
    );
    let trusted = script(text, &["--trust"]);
    assert!(trusted.stderr.contains("/no/such/file"), "{trusted:?}");
    assert!(!trusted.stderr.contains("--trust"), "{trusted:?}");
}

#[test]
fn ctrl_c_ends_traffic_and_the_script_finishes() {
    let folder = scratch();
    let path = folder.path().join("test.lua");
    fs::write(
        &path,
        "print('begun')\nlocal r = taut.run { stream = taut.stream {}, seconds = 1000, rate = 1000 }\nprint('stopped', r.stopped)",
    )
    .unwrap();
    let mut program = Program::start(&mut taut(&[
        "script",
        path.to_str().unwrap(),
        "--port",
        "null:",
    ]));
    program.wait_for_stdout("begun");
    std::thread::sleep(Duration::from_millis(50));
    let done = program.interrupt().success();
    assert!(done.stdout.contains("stopped\ttrue"), "{done:?}");
    fs::write(&path, "print('begun')\nwhile true do end").unwrap();
    let mut program = Program::start(&mut taut(&["script", path.to_str().unwrap()]));
    program.wait_for_stdout("begun");
    let done = program.interrupt();
    assert_eq!(done.code(), Some(130), "{done:?}");
    assert!(done.stderr.contains("test.lua:2: stopped"), "{done:?}");
}

#[test]
fn only_a_trusted_script_can_write_files() {
    let folder = scratch();
    let file = folder.path().join("written");
    let text = format!(
        "local f = io.open('{}', 'w') f:write('x') f:close()",
        file.display()
    );
    assert_eq!(script(&text, &[]).code(), Some(2));
    assert!(!file.exists());
    script(&text, &["--trust"]).success();
    assert_eq!(fs::read(&file).unwrap(), b"x");
}

#[test]
fn fields_set_by_a_script_arrive_in_the_packet() {
    // Each packet gets a number from the script, and is read again by name and by byte on arrival.
    let text = r#"
        local n, seen, bad = 0, 0, 0
        taut.send(taut.port(1), function(batch)
            for _, p in ipairs(batch) do
                n = n + 1
                p.eth.src = 0x020000000000 + n
                p.ip4.src, p.ip4.ttl = "10.1.2.3", 1 + n % 255
                p.udp.src_port = 5000 + n % 1000
                p:set_u32(p.payload.offset + 18, n)
            end
        end, { rate = 20000, seconds = 0.1, size = 100, receive = taut.port(2), src_port = "5000-6000", on_receive = function(batch)
            for _, p in ipairs(batch) do
                seen = seen + 1
                local i = p:u32(64 - 4)
                if not (i == p.sequence + 1 and p.eth.src == 0x020000000000 + i and p.ip4.src == 0x0a010203 and p:u8(22) == 1 + i % 255
                    and p.udp.src_port == 5000 + i % 1000 and p:u16(34) == p.udp.src_port and p.sequence == i - 1
                    and p.stream == 1 and p.latency_ns > 0 and p.len == 96) then
                    bad = bad + 1
                end
            end
        end })
        print(seen, bad)"#;
    let done = script(text, &LOOP).success();
    let (seen, bad) = done.stdout.trim().split_once('\t').unwrap();
    assert!(seen.parse::<u64>().unwrap() > 0 && bad == "0", "{done:?}");
}

#[test]
fn ports_of_scripts_leave_no_sockets_behind() {
    let folder = scratch();
    let socket = folder.path().join("left");
    let spec = format!("memif:{}", socket.display());
    let done = script("taut.run { seconds = 1, wait = 0.05 }", &["--port", &spec]);
    assert_eq!(done.code(), Some(3), "{done:?}");
    assert!(
        done.stderr.contains("waited 0.1 s") || done.stderr.contains("waited 0.0 s"),
        "{done:?}"
    );
    assert!(!socket.exists());
}
