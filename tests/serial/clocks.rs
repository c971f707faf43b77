//! Clocks of nodes: they are synchronised before a run and recorded, and other daemons run again afterwards.

use crate::support::program::Program;
use crate::support::{alone_and_root, scratch, taut};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

const FOLLOWS: &str = r#"
title = "t"
[plan]
repetitions = 1
[nodes.device]
clock = { by = "chrony", adjust = false }
setup = ["ip address add 10.98.0.1/24 dev eth0"]
[nodes.generator]
clock = { by = "chrony", reference = "device", address = "10.98.0.1", adjust = false, bound = "5ms", within = "30s" }
setup = ["ip address add 10.98.0.2/24 dev eth0"]
[[link]]
between = ["device:eth0", "generator:eth0"]
[[step]]
node = "generator"
run = "true"
[[claim]]
text = "The clocks agree"
value = "median('clock.generator.bound_ns')"
holds = "value > 0 and value < 5e6"
"#;

#[test]
fn clocks_of_nodes_are_synchronised_by_chrony_and_recorded() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    if Command::new("chronyd").arg("-v").output().is_err() {
        return println!("skipped: needs chronyd (package chrony)");
    }
    let place = scratch();
    fs::write(place.path().join("e.toml"), FOLLOWS).unwrap();
    let run = |file: &str, out: &str| {
        let mut command = taut(&["experiment", "run", file, "--out", out]);
        Program::start(command.current_dir(place.path())).finish()
    };
    let done = run("e.toml", "r").success();
    assert!(done.stdout.contains("The clocks agree"), "{done:?}");
    let record = fs::read_to_string(place.path().join("r/runs/v1-r1/run.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let clock = &record["clocks"][0];
    assert_eq!(
        (&clock["node"], &clock["reference"]),
        (&"generator".into(), &"device".into())
    );
    assert!(
        clock["after"]["bound_ns"].as_f64().unwrap() > 0.0,
        "{clock}"
    );
    // No clock is that exact.
    let exact = FOLLOWS.replace("5ms", "1ns").replace("30s", "2s");
    fs::write(place.path().join("exact.toml"), exact).unwrap();
    let failed = run("exact.toml", "exact");
    assert_eq!(failed.code(), Some(1), "{failed:?}");
    assert!(
        failed
            .stderr
            .contains("the clock is not within 0.0 us of the reference after 2 s: offset"),
        "{failed:?}"
    );
}

/// Writes a shell script into a folder, in the place of the program `name`.
fn stand_in(folder: &Path, name: &str, script: &str) {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Starts a step that keeps the clock, with programs that only claim to. Returns it with its standard input, once the
/// clock is synchronised.
fn keep_clock(folder: &Path) -> (Child, ChildStdin) {
    let here = folder.display();
    stand_in(
        folder,
        "chronyd",
        &format!("echo $PPID >{here}/keeper; exec sleep 1000"),
    );
    stand_in(
        folder,
        "chronyc",
        "echo 0A000001,10.0.0.1,9,1.0,-0.000001500,0.0,0.0,1.5,0.1,0.2,0.000040,0.000010,1.0,Normal",
    );
    // Of the services only chrony is active.
    stand_in(
        folder,
        "systemctl",
        &format!(
            r#"echo "$*" >>{here}/asked; case "$*" in "is-active --quiet chrony") ;; is-active*) exit 3 ;; esac"#
        ),
    );
    let order = concat!(
        r#"{"method":"chrony","address":"10.0.0.1","interface":null,"is_reference":false,"adjust":true,"#,
        r#""hardware":false,"bound_s":1e-4,"within_s":9}"#
    );
    let script = format!("exec taut node clock '{order}'");
    let mut command = taut(&[
        "node", "step", "--name", "clock", "--limit", "60", "--folder",
    ]);
    command.arg(folder).arg("--").arg(script);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut step = command.spawn().unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(step.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.contains("\"bound_ns\":31500"), "{line}");
    // The pipe stays open for the last reading.
    std::thread::spawn(move || output.lines().count());
    let stdin = step.stdin.take().unwrap();
    (step, stdin)
}

#[test]
fn time_services_run_again_after_a_run_and_after_kills() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    for is_killed in [false, true] {
        let place = scratch();
        let (mut step, stdin) = keep_clock(place.path());
        let asked = || fs::read_to_string(place.path().join("asked")).unwrap();
        assert!(asked().ends_with("stop chrony\n"), "{}", asked());
        let keeper = fs::read_to_string(place.path().join("keeper")).unwrap();
        if is_killed {
            let killed = Command::new("kill").args(["-KILL", keeper.trim()]).status();
            assert!(killed.unwrap().success());
        } else {
            drop(stdin);
        }
        step.wait().unwrap();
        assert!(
            asked().ends_with("stop chrony\nstart --no-block chrony\n"),
            "{}",
            asked()
        );
        assert!(!Path::new("/run/taut/clock-daemons.json").exists());
    }
}
