//! Disturbances of a running generator: the receiver ends, the device stops and continues, the system time jumps. Each
//! is reported correctly, and nothing hangs.

use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, is_installed, scratch, taut};
use rustix::process::Signal;
use std::fs;
use std::process::Command;
use std::time::Duration;

fn start_forward(sockets: &Sockets) -> Program {
    let core = taut_host::choose_cores().device.to_string();
    let mut arguments = vec!["forward".to_string(), "--core".to_string(), core];
    arguments.extend(sockets.ports("server", ""));
    arguments.extend(RESTING.map(String::from));
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("forwarding");
    forward
}

fn start_generate(sockets: &Sockets, seconds: &str) -> Program {
    let core = taut_host::choose_cores().generator.to_string();
    let mut arguments = vec!["generate".to_string(), "--core".to_string(), core];
    arguments.extend(sockets.ports("client", ""));
    arguments.extend(
        [
            "--rate",
            "5k",
            "--json",
            "--max-loss",
            "0.02",
            "--seconds",
            seconds,
        ]
        .map(String::from),
    );
    let mut generate = Program::start(&mut taut(&arguments));
    generate.wait_for_stdout("\"second\":1");
    generate
}

#[test]
fn a_killed_device_causes_counted_loss_and_code_1() {
    let _turn = alone();
    let sockets = Sockets::new();
    let forward = start_forward(&sockets);
    let generate = start_generate(&sockets, "2.3");
    forward.kill();
    let finished = generate.finish();
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    let stream = finished.first_stream();
    let tally = |name: &str| stream["tally"][name].as_u64().unwrap();
    assert!(tally("received") > 1_000, "{stream}");
    // Every packet of the schedule is counted as sent, refused or unsent. The packets of more than a second did not
    // return.
    assert_eq!(
        tally("owed"),
        tally("sent") + tally("refused") + tally("unsent"),
        "{stream}"
    );
    assert!(tally("owed") - tally("received") > 5_000, "{stream}");
}

#[test]
fn a_paused_device_raises_latency_and_loses_no_accepted_packet() {
    let _turn = alone();
    undisturbed(|| {
        let sockets = Sockets::new();
        let forward = start_forward(&sockets);
        let generate = start_generate(&sockets, "1.6");
        forward.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(150));
        forward.signal(Signal::CONT);
        let finished = generate.finish();
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
        let stream = finished.first_stream();
        let tally = |name: &str| stream["tally"][name].as_u64().unwrap();
        // The ring holds packets while the device is stopped. Packets that do not fit are refused, not lost. The device
        // drops packets only if the generator is preempted while they come back.
        if stream["lost"] != 0 || tally("received") != tally("sent") {
            return Err(format!("packets were lost: {stream}"));
        }
        let longest_ns = stream["latency_ns"]["max_ns"].as_u64().unwrap();
        if longest_ns > 100_000_000 {
            Ok(())
        } else {
            Err(format!("it stood still for 150 ms: {stream}"))
        }
    });
    // A device that never wakes up must not block the generator.
    let sockets = Sockets::new();
    let forward = start_forward(&sockets);
    let generate = start_generate(&sockets, "1.2");
    forward.signal(Signal::STOP);
    let finished = generate.finish();
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    forward.signal(Signal::CONT);
    forward.interrupt().success();
}

/// A library that shifts the system time by a day, forwards or back, at each read, and counts the reads.
const JUMPING_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static unsigned readings;
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int outcome = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += ++readings % 2 ? 86400 : -86400;
    return outcome;
}
__attribute__((destructor)) static void tell(void) {
    FILE *file = fopen(getenv("READINGS"), "w");
    if (file) { fprintf(file, "%u", readings); fclose(file); }
}
"#;

#[test]
fn a_jump_of_the_system_clock_disturbs_no_measurement() {
    let _turn = alone();
    if !is_installed("cc") {
        println!("skipped: needs a C compiler (cc)");
        return;
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("clock.c"), JUMPING_CLOCK).unwrap();
    run(Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([path("clock.so"), path("clock.c")])
        .arg("-ldl"))
    .success();
    let mut command = taut(&["generate", "--port", "pair:a", "--port", "pair:a"]);
    command.args(["--rate", "5k", "--seconds", "1.5", "--json", "--out"]);
    command
        .arg(path("out"))
        .env("LD_PRELOAD", path("clock.so"))
        .env("READINGS", path("readings"));
    let finished = run(&mut command);
    let stream = finished.first_stream();
    let readings: u32 = fs::read_to_string(path("readings"))
        .unwrap()
        .parse()
        .unwrap();
    assert!(readings > 0, "the clock of the test was not used");
    let seconds = stream["tally"]["seconds"].as_f64().unwrap();
    assert!((1.4..60.0).contains(&seconds), "{stream}");
    assert_eq!(stream["lost"], 0, "{stream}");
    for times in ["latency_ns", "send_delay_ns"] {
        // A jump of a day would be 86 400 s.
        let longest_ns = stream[times]["max_ns"].as_u64().unwrap();
        assert!(longest_ns < 60_000_000_000, "{times}: {stream}");
    }
}
