//! `taut doctor`: the report about a machine is correct, and has one line for each check and a command for each fix.

use crate::support::program::{Finished, run};
use crate::support::{as_nobody, as_nobody_works, is_installed, nobody, taut};
use serde_json::Value;
use std::process::Command;

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

/// Returns the checks that `taut doctor` reports, by name, after testing the properties that all of them share.
#[track_caller]
fn checks(finished: &Finished) -> Vec<Value> {
    let told: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"));
    let checks = told["checks"].as_array().unwrap().clone();
    for check in &checks {
        let text = |field: &str| check[field].as_str().unwrap();
        assert_eq!(
            text("mend").is_empty(),
            text("verdict") == "well",
            "{check}"
        );
        assert!(
            !text("found").is_empty() && !text("found").contains('\n'),
            "{check}"
        );
    }
    let missing = checks
        .iter()
        .filter(|it| it["verdict"] == "missing")
        .count();
    assert_eq!(told["missing"], missing);
    let code = if missing == 0 { 0 } else { 3 };
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    assert_eq!(
        finished.stderr.lines().count(),
        usize::from(missing > 0),
        "{finished:?}"
    );
    checks
}

#[track_caller]
fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    let found = checks.iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {checks:?}"))
}

#[test]
fn doctor_reports_the_same_findings_as_ports_and_tune_audit() {
    let told = checks(&run(&mut taut(&["doctor", "--json"])));
    let ports = run(&mut taut(&["ports", "--json"])).success();
    let ports: Value = serde_json::from_str(&ports.stdout).unwrap();
    for port in ports.as_array().unwrap() {
        let name = format!("port {}", port["name"].as_str().unwrap());
        let works = check(&told, &name)["verdict"] == "well";
        assert_eq!(Value::from(works), port["available"], "{name}");
    }
    for name in ["rights", "cores", "folders", "huge pages", "clock", "noise"] {
        check(&told, name);
    }
    let audit = run(&mut taut(&["tune", "audit", "--json"])).success();
    let audit: Value = serde_json::from_str(&audit.stdout).unwrap();
    let bad = audit["findings"].as_array().unwrap().iter();
    let bad: Vec<_> = bad.filter(|it| it["state"] == "bad").collect();
    let settings = told.iter().skip_while(|it| it["name"] != "noise").skip(1);
    let settings: Vec<_> = settings.collect();
    assert!(settings.len() <= 5, "{settings:?}");
    // The audit is about this machine's last CPU, which is the device's CPU if there are two.
    let device = taut_host::choose_cores().device.to_string();
    if audit["cpus"].as_str() == Some(device.as_str()) {
        for setting in settings {
            assert!(
                bad.iter().any(|it| it["name"] == setting["name"]),
                "{setting}"
            );
        }
    }
    let shown = run(&mut taut(&["doctor"]));
    assert!(shown.stdout.lines().count() <= 40, "{shown:?}");
    assert!(shown.stdout.starts_with("ok       ports"), "{shown:?}");
}

#[test]
fn doctor_reports_missing_capabilities_to_an_unprivileged_user() {
    if !as_nobody_works() {
        return;
    }
    let told = checks(&run(&mut as_nobody(&["doctor", "--json"])));
    let rights = check(&told, "rights");
    assert_eq!(rights["verdict"], "missing");
    let mend = rights["mend"].as_str().unwrap();
    assert!(mend.starts_with("sudo setcap cap_net_raw,"), "{mend}");
    assert!(mend.ends_with(TAUT), "{mend}");
    // All checks that lack rights report the same fix, which is printed once.
    let port = check(&told, "port af_packet");
    assert!(
        port["found"].as_str().unwrap().contains("CAP_NET_RAW"),
        "{port}"
    );
    assert_eq!(port["mend"], rights["mend"]);
    for name in ["port memif", "port null", "port pcap"] {
        assert_eq!(check(&told, name)["verdict"], "well", "{name}");
    }
    let settings = told.iter().skip_while(|it| it["name"] != "noise").skip(1);
    for setting in settings {
        let mend = setting["mend"].as_str().unwrap();
        assert!(
            !mend.starts_with("echo ") && !mend.starts_with("taut tune apply"),
            "{mend}"
        );
    }
}

#[test]
fn doctor_reports_folders_that_are_not_writable() {
    if !as_nobody_works() {
        return;
    }
    let mut command = as_nobody(&["doctor", "--json"]);
    command
        .current_dir("/proc")
        .env("XDG_RUNTIME_DIR", "/proc/run")
        .env("XDG_CACHE_HOME", "/proc/cache");
    let told = checks(&run(&mut command));
    let folders = check(&told, "folders");
    assert_eq!(folders["verdict"], "missing");
    assert_eq!(
        folders["found"],
        "not writable: /proc/run/taut (sockets and locks), /proc/results (results), \
         /proc/cache/taut (kernels of virtual machines)"
    );
    let mend = folders["mend"].as_str().unwrap();
    assert!(
        mend.starts_with("export XDG_RUNTIME_DIR=FOLDER; cd FOLDER"),
        "{mend}"
    );
}

#[test]
fn doctor_reports_a_missing_second_core() {
    let cpu = taut_host::choose_cores().device.to_string();
    let mut command = Command::new("taskset");
    command.args(["-c", &cpu, TAUT, "doctor", "--json"]);
    let told = checks(&run(&mut command));
    let cores = check(&told, "cores");
    assert_eq!(cores["verdict"], "missing");
    assert!(
        cores["found"]
            .as_str()
            .unwrap()
            .starts_with(&format!("only CPU {cpu} ")),
        "{cores}"
    );
    let noise = check(&told, "noise")["found"].as_str().unwrap();
    // If a test measures at the same time, the doctor reports this instead of measuring noise.
    let is_told = [
        &format!("CPU {cpu} in "),
        "not listened to, as another taut measures",
    ];
    assert!(is_told.iter().any(|it| noise.starts_with(*it)), "{noise}");
}

#[test]
fn doctor_reports_missing_privileges_and_does_not_hang() {
    if !as_nobody_works() {
        return;
    }
    for (mapped, says) in [
        (&["unshare", "--user", "--net"][..], "without CAP_NET_RAW"),
        // Root of a user namespace has some rights, but not those of the machine.
        (
            &["unshare", "--user", "--map-root-user", "--net"][..],
            "root of a user namespace without CAP_BPF",
        ),
    ] {
        let tried = run(&mut nobody(&[mapped, &["true"]].concat()));
        if !is_installed("unshare") || tried.code() != Some(0) {
            println!(
                "skipped: needs user namespaces for ordinary users ({})",
                tried.stderr.trim()
            );
            return;
        }
        let told = checks(&run(&mut nobody(
            &[mapped, &[TAUT, "doctor", "--json"]].concat(),
        )));
        let rights = check(&told, "rights");
        assert!(rights["found"].as_str().unwrap().contains(says), "{rights}");
    }
}
