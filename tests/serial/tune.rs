//! `taut tune` on this machine: it reads settings, changes them, restores every byte, and records interruptions with
//! their causes.

use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, is_installed, scratch, taut};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const JOURNAL: &str = "/run/taut/tune.journal";

/// Returns the last CPU; `None` if the machine has only one.
fn quiet_cpu() -> Option<usize> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let last = online.trim().rsplit(['-', ',']).next().unwrap();
    let cpu = last.parse().unwrap();
    if cpu == 0 {
        println!("skipped: needs two CPUs");
        return None;
    }
    Some(cpu)
}

/// A guard that restores the machine's settings on drop, however the test ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = taut(&["tune", "revert"]).output();
    }
}

/// Returns the CPU for tests that change settings of the machine, or prints why there is none.
fn changeable() -> Option<usize> {
    if !taut_host::permissions::is_root() {
        println!("skipped: needs root (settings of the kernel)");
        return None;
    }
    if Path::new(JOURNAL).exists() {
        println!("skipped: taut tune apply is in force on this machine");
        return None;
    }
    quiet_cpu()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished:?}"))
}

/// Returns the state of the settings in a dry run: the contents of every file, the existing control groups, and the
/// settings of NIC drivers.
fn knobs(dry_run: &Value) -> BTreeMap<String, Option<Vec<u8>>> {
    let commands = dry_run.as_array().unwrap().iter();
    let mut found = BTreeMap::new();
    for command in commands.map(|command| command.as_str().unwrap()) {
        if let Some(words) = command.strip_prefix("ethtool -") {
            let words: Vec<&str> = words.split(' ').collect();
            let show = [
                "-".to_owned() + &words[0].to_lowercase(),
                words[1].to_owned(),
            ];
            let said = Command::new("ethtool").args(&show).output().unwrap();
            found.insert(format!("ethtool {}", show.join(" ")), Some(said.stdout));
            continue;
        }
        // The kernel changes the members of a control group by itself, so they are not compared.
        let paths = command.split_whitespace().filter(|word| {
            word.starts_with('/') && !word.contains("/tasks") && !word.contains("cgroup.procs")
        });
        found.extend(paths.map(|path| (path.to_owned(), fs::read(path).ok())));
    }
    found
}

#[test]
fn an_audit_reports_the_state_of_every_setting() {
    let Some(cpu) = quiet_cpu() else { return };
    let list = cpu.to_string();
    let finished = run(&mut taut(&["tune", "audit", "--cpus", &list, "--json"])).success();
    let audit = json(&finished);
    let findings = audit["findings"].as_array().unwrap();
    assert_eq!(findings.len(), taut_host::tune::settings().count());
    for finding in findings {
        let state = finding["state"].as_str().unwrap();
        assert!(
            ["ok", "bad", "unknown", "not-here"].contains(&state),
            "{finding}"
        );
        assert!(!finding["now"].as_str().unwrap().is_empty(), "{finding}");
    }
    let said = run(&mut taut(&["tune", "audit", "--cpus", &list]))
        .success()
        .stdout;
    for setting in taut_host::tune::settings() {
        assert!(said.contains(setting.name), "{}: {said}", setting.name);
    }
    // A machine without a bad setting is rare, and gives code 0.
    let bad = findings.iter().filter(|f| f["state"] == "bad").count();
    let checked = run(&mut taut(&["tune", "audit", "--cpus", &list, "--check"]));
    assert_eq!(checked.code(), Some(i32::from(bad > 0)), "{checked:?}");
}

#[test]
fn users_without_root_may_audit_but_not_apply_settings() {
    let Some(cpu) = quiet_cpu() else { return };
    let as_nobody = |arguments: &[&str]| {
        let program = taut(arguments);
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--",
        ]);
        command.arg(program.get_program()).args(program.get_args());
        run(&mut command)
    };
    if !taut_host::permissions::is_root() || as_nobody(&["--version"]).code() != Some(0) {
        return println!("skipped: needs root and a build folder that others can read");
    }
    let list = cpu.to_string();
    let audit = as_nobody(&["tune", "audit", "--cpus", &list]).success();
    assert!(audit.stdout.contains("Without root"), "{audit:?}");
    as_nobody(&["tune", "apply", "--cpus", &list, "--dry-run"]).success();
    let refused = as_nobody(&["tune", "apply", "--cpus", &list]);
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("sudo taut tune apply"),
        "{refused:?}"
    );
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    let heard = as_nobody(&["tune", "noise", "--cpus", &list, "--for", "200ms"]).success();
    assert!(heard.stdout.contains("needs root"), "{heard:?}");
    assert!(heard.stdout.contains("counted by the kernel"), "{heard:?}");
}

#[test]
fn invalid_tuning_arguments_cause_a_one_line_error() {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let rows = [
        ("audit --cpus x", 2, "not a list of CPUs"),
        ("audit --cpus 9999", 2, "CPU 9999 does not exist"),
        ("audit --profile fast", 2, "invalid value"),
        ("audit --root /nowhere", 3, "cannot be read"),
        (
            &format!("apply --cpus {} --dry-run", online.trim()),
            2,
            "the system needs one",
        ),
        ("apply --dry-run", 2, "required"),
        ("noise --cpus 9999", 2, "does not exist"),
        ("noise --cpus 0 --for 3", 2, "expected a time"),
        ("noise --cpus 0 --for 1s --fifo 100", 2, "1..=99"),
        (
            &format!("noise --cpus {} --for 1s --fifo 1", online.trim()),
            2,
            "omit one",
        ),
        (
            "noise --cpus 0 --for 1s --gaps /nowhere/gaps.csv",
            2,
            "/nowhere/gaps.csv",
        ),
        ("explain speed", 2, "no setting is named `speed`"),
        ("ablate --device none", 2, "none"),
        ("ablate --repetitions 0", 2, "1..=1000"),
        ("fit", 2, "required"),
        ("fit --p99 50us --repetitions 3", 2, "6..=1000"),
    ];
    for (line, code, fragment) in rows {
        let arguments: Vec<&str> = ["tune"].into_iter().chain(line.split(' ')).collect();
        let finished = run(&mut taut(&arguments));
        assert_eq!(finished.code(), Some(code), "{line}: {finished:?}");
        assert!(finished.stderr.contains(fragment), "{line}: {finished:?}");
        assert!(
            !finished.stderr.contains("panicked"),
            "{line}: {finished:?}"
        );
    }
}

/// Returns the changes that `taut tune apply` would make.
fn plan_of(cpus: &str) -> Value {
    let words = ["tune", "apply", "--cpus", cpus, "--dry-run", "--json"];
    json(&run(&mut taut(&words)).success())
}

#[test]
fn reverting_restores_every_changed_setting_exactly() {
    let _turn = alone();
    let Some(cpu) = changeable() else { return };
    let _restored = Restored;
    let list = cpu.to_string();
    let plan = plan_of(&list);
    let before = knobs(&plan);
    assert!(!before.is_empty());
    let applied = run(&mut taut(&["tune", "apply", "--cpus", &list, "--json"]));
    let during = knobs(&plan);
    let reverted = run(&mut taut(&["tune", "revert"]));
    let after = knobs(&plan);
    // A group may be refused, as in a container, and stays unchanged then.
    assert!(matches!(applied.code(), Some(0 | 3)), "{applied:?}");
    reverted.success();
    let differ = |a: &BTreeMap<_, _>, b: &BTreeMap<_, _>| {
        a.iter()
            .filter(|(path, value)| b.get(*path) != Some(*value))
            .count()
    };
    assert_eq!(after, before);
    assert!(applied.code() == Some(3) || differ(&before, &during) > 0);
    println!(
        "{} of {} files changed and came back",
        differ(&before, &during),
        before.len()
    );
    assert!(!Path::new(JOURNAL).exists());
    let again = run(&mut taut(&["tune", "revert"])).success();
    assert!(again.stdout.contains("nothing to revert"), "{again:?}");
}

#[test]
fn settings_can_be_restored_after_tune_apply_is_killed() {
    let _turn = alone();
    let Some(cpu) = changeable() else { return };
    let _restored = Restored;
    let list = cpu.to_string();
    let plan = plan_of(&list);
    let before = knobs(&plan);
    for delay_ms in [5, 20, 60, 150] {
        let program = Program::start(&mut taut(&["tune", "apply", "--cpus", &list]));
        std::thread::sleep(Duration::from_millis(delay_ms));
        let killed = program.kill();
        let reverted = run(&mut taut(&["tune", "revert"]));
        let after = knobs(&plan);
        println!(
            "killed after {delay_ms} ms ({:?}): {}",
            killed.signal(),
            reverted.stdout.trim()
        );
        assert_eq!(reverted.code(), Some(0), "{reverted:?}");
        assert_eq!(after, before);
    }
    assert!(!Path::new(JOURNAL).exists());
}

/// The setting that the short ablations switch: its file, and its value on.
const SWITCHED: (&str, &str) = ("/proc/sys/vm/swappiness", "10");

fn swappiness() -> String {
    fs::read_to_string(SWITCHED.0).unwrap().trim().to_owned()
}

/// Returns true if the condition `holds` becomes true within 20 s.
fn within_20_s(holds: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn an_ablation_measures_a_setting_and_restores_it() {
    let _turn = alone();
    if changeable().is_none() || swappiness() == SWITCHED.1 {
        return println!("skipped: needs root, two CPUs and swappiness as found");
    }
    let _restored = Restored;
    let (before, folder) = (swappiness(), scratch());
    let out = folder.path().join("out");
    let words = "tune ablate --quick --repetitions 1 --trial 0.05 --only swappiness --only clock-source --json --out";
    let mut words: Vec<&str> = words.split(' ').collect();
    words.push(out.to_str().unwrap());
    let summary = json(&run(&mut taut(&words)).success());
    assert_eq!(summary["settings"][0]["name"], "swappiness");
    assert_eq!(summary["fixed"][0]["name"], "clock-source");
    assert_eq!(summary["effects"].as_array().unwrap().len(), 3);
    assert_eq!(summary["effects"][0]["alone"]["ratio"]["count"], 1);
    assert_eq!(swappiness(), before);
    assert!(!Path::new(JOURNAL).exists());
}

#[test]
fn settings_are_restored_when_an_ablation_is_killed() {
    let _turn = alone();
    if changeable().is_none() || swappiness() == SWITCHED.1 {
        return println!("skipped: needs root, two CPUs and swappiness as found");
    }
    let _restored = Restored;
    let (before, folder) = (swappiness(), scratch());
    let out = folder.path().join("out");
    let words = "tune ablate --repetitions 9 --trial 20 --only swappiness --out";
    let mut words: Vec<&str> = words.split(' ').collect();
    words.push(out.to_str().unwrap());
    let program = Program::start(&mut taut(&words));
    // The setting is changed and restored once before the first trial.
    let is_on = || swappiness() == SWITCHED.1;
    assert!(within_20_s(is_on));
    program.kill();
    assert!(within_20_s(|| !is_on() && !Path::new(JOURNAL).exists()));
    assert_eq!(swappiness(), before);
}

#[test]
fn bulk_load_is_measured_in_a_group_that_is_removed() {
    let _turn = alone();
    let groups = [
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "/sys/fs/cgroup/cgroup.controllers",
    ];
    if changeable().is_none() || !groups.iter().any(|file| Path::new(file).exists()) {
        return println!("skipped: needs root, two CPUs and control groups");
    }
    let _restored = Restored;
    let folder = scratch();
    let out = folder.path().join("out");
    // Every trial holds the bound, as the bound is far above what any machine shows.
    let words = "tune fit --p99 10s --quick --trial 0.05 --rate 100k --only free --json --out";
    let mut words: Vec<&str> = words.split(' ').collect();
    words.extend([
        out.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "while :; do :; done",
    ]);
    let finished = run(&mut taut(&words));
    if finished.stderr.contains("not changed") {
        return println!("skipped: needs a writable group: {finished:?}");
    }
    let summary = json(&finished.success());
    let way = &summary["ways"][0];
    assert_eq!(
        (&way["held_level"], &way["limit"]),
        (&8.into(), &"nothing".into()),
        "{summary}"
    );
    assert!(
        way["bulk_cpus"]["point"].as_f64().unwrap() > 0.0,
        "{summary}"
    );
    for group in ["/sys/fs/cgroup/cpu/taut-bulk", "/sys/fs/cgroup/taut-bulk"] {
        assert!(!Path::new(group).exists());
    }
    assert!(!Path::new(JOURNAL).exists());
}

#[test]
fn unwritable_settings_are_reported_and_stay_unchanged() {
    let _turn = alone();
    let Some(cpu) = changeable() else { return };
    // This is like a container: /sys and /proc read-only, a /run of its own, no control groups.
    let script = format!(
        "mount -t tmpfs none /run && mount -t tmpfs none /sys/fs/cgroup && mount -o remount,bind,ro /sys && \
         mount --bind /proc/irq /proc/irq && mount -o remount,bind,ro /proc/irq && \
         mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
         {} tune apply --cpus {cpu}; code=$?; ls /run/taut; exit $code",
        env!("CARGO_BIN_EXE_taut")
    );
    let mut command = Command::new("unshare");
    let finished = run(command.args(["--mount", "--propagation", "private", "sh", "-c", &script]));
    if finished.stderr.contains("mount:") || finished.stderr.contains("unshare:") {
        return println!("skipped: needs mounts of its own: {}", finished.stderr);
    }
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    let said = finished.stderr.lines().last().unwrap();
    assert!(
        said.starts_with("taut: not changed: interrupts"),
        "{finished:?}"
    );
    assert!(said.contains("read-only"), "{finished:?}");
    assert!(!finished.stdout.contains("journal"), "{finished:?}");
}

#[test]
fn kernel_arguments_are_printed_with_the_boot_loaders_files() {
    let Some(cpu) = quiet_cpu() else { return };
    let list = cpu.to_string();
    let said = run(&mut taut(&["tune", "apply", "--cpus", &list, "--boot"]))
        .success()
        .stdout;
    let line = run(&mut taut(&[
        "tune", "apply", "--cpus", &list, "--boot", "--json",
    ]))
    .success();
    let arguments = json(&line);
    let arguments = arguments["arguments"].as_array().unwrap();
    for argument in arguments {
        assert!(
            said.lines()
                .next()
                .unwrap()
                .contains(argument.as_str().unwrap()),
            "{said}"
        );
    }
    if !arguments.is_empty() {
        assert!(
            said.contains("/etc/default/grub") && said.contains("systemd-boot"),
            "{said}"
        );
    }
    // Security mitigations are the owner's decision.
    assert!(!said.contains("mitigations"), "{said}");
}

/// Times at which a task was busy on the CPU: start and end on the monotonic clock, ns.
type Bursts = Arc<Mutex<Vec<(u64, u64)>>>;

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Runs a task of this process on `cpu` that sleeps, works for 2 us or more, and records these times.
fn disturb(cpu: usize, end: Arc<AtomicBool>, bursts: Bursts) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        taut_host::pin_current_thread(cpu).unwrap();
        // The task gets real-time priority if allowed; otherwise the scheduler decides.
        let _ = taut_host::set_realtime(1);
        let mut length_ns = 2_000;
        while !end.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_micros(700));
            let start = now_ns();
            let mut last = now_ns();
            while last < start + length_ns {
                last = now_ns();
            }
            bursts.lock().unwrap().push((start, last));
            // The lengths are 2 to 12 us.
            length_ns = 2_000 + (length_ns + 3_700) % 10_000;
        }
    })
}

#[test]
fn the_noise_detector_finds_injected_pauses_without_its_own_overhead() {
    let _turn = alone();
    let Some(cpu) = quiet_cpu() else { return };
    undisturbed(|| {
        let folder = scratch();
        let file = folder.path().join("gaps.csv");
        let (end, bursts) = (Arc::new(AtomicBool::new(false)), Bursts::default());
        let task = disturb(cpu, Arc::clone(&end), Arc::clone(&bursts));
        let list = cpu.to_string();
        let path = file.display().to_string();
        let line = [
            "tune", "noise", "--cpus", &list, "--for", "1s", "--gaps", &path, "--json",
        ];
        let finished = run(&mut taut(&line));
        end.store(true, Ordering::Relaxed);
        task.join().unwrap();
        let noise = json(&finished.success());
        let text = fs::read_to_string(&file).unwrap();
        let gaps: Vec<(u64, u64)> = text
            .lines()
            .skip(1)
            .map(|line| {
                let fields: Vec<&str> = line.split(',').collect();
                let start: u64 = fields[1].parse().unwrap();
                (start, start + fields[2].parse::<u64>().unwrap())
            })
            .collect();
        let (first, last) = match (gaps.first(), gaps.last()) {
            (Some(first), Some(last)) => (first.0, last.1),
            _ => return Err("no gap at all".to_owned()),
        };
        let bursts = bursts.lock().unwrap();
        let inside: Vec<_> = bursts
            .iter()
            .filter(|burst| burst.0 > first && burst.1 < last)
            .collect();
        // The clocks are read within a microsecond of each other.
        const SLACK_NS: u64 = 1_000;
        let found = inside
            .iter()
            .filter(|burst| {
                let at = gaps.partition_point(|gap| gap.0 <= burst.0 + SLACK_NS);
                at > 0 && gaps[at - 1].1 + SLACK_NS >= burst.1
            })
            .count();
        let own_share = noise["cpus"][0]["own_share"].as_f64().unwrap();
        println!(
            "{found} of {} bursts found; own share {own_share}",
            inside.len()
        );
        if inside.len() < 300 {
            return Err(format!(
                "only {} bursts: the machine is too busy",
                inside.len()
            ));
        }
        if found as f64 <= inside.len() as f64 * 0.99 {
            return Err(format!("{found} of {} bursts found", inside.len()));
        }
        if own_share >= 0.001 {
            return Err(format!("the loop took {own_share} for itself"));
        }
        Ok(())
    });
}

#[test]
fn cpu_noise_is_measured_with_its_causes() {
    let _turn = alone();
    let Some(cpu) = quiet_cpu() else { return };
    let list = cpu.to_string();
    let finished = run(&mut taut(&[
        "tune", "noise", "--cpus", &list, "--for", "1s", "--json",
    ]))
    .success();
    let heard = json(&finished);
    let noise = &heard["cpus"][0];
    assert_eq!(noise["cpu"], cpu);
    let all = noise["interruptions"]["over_1_us"].as_u64().unwrap();
    let sum = |list: &Value| {
        list.as_array()
            .unwrap()
            .iter()
            .map(|one| one["count"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(
        (sum(&noise["causes"]), sum(&noise["histogram"])),
        (all, all)
    );
    if heard["untraced"].is_null() {
        assert!(
            noise["explained"]["share_of_gaps"].as_f64().unwrap() > 0.5,
            "{noise}"
        );
    }
    let counted = &heard["counted"]["cores"][0];
    assert!(
        !counted["interrupts"].as_array().unwrap().is_empty(),
        "{counted}"
    );
}

#[test]
fn an_interrupted_noise_measurement_prints_its_results() {
    let _turn = alone();
    let Some(cpu) = quiet_cpu() else { return };
    let mut program = Program::start(&mut taut(&[
        "tune",
        "noise",
        "--cpus",
        &cpu.to_string(),
        "--for",
        "600s",
    ]));
    let id = program.id();
    program.wait_until("its loop", |_, _| {
        taut_host::process::thread_named(id, "taut-noise").is_some()
    });
    let started = Instant::now();
    let finished = program.interrupt().success();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(
        finished.stdout.contains("Stopped before the end"),
        "{finished:?}"
    );
}

#[test]
fn oslat_and_cyclictest_are_run_for_comparison() {
    let _turn = alone();
    let Some(cpu) = quiet_cpu() else { return };
    if !(is_installed("oslat") && is_installed("cyclictest") && taut_host::permissions::is_root()) {
        return println!("skipped: needs root, and oslat and cyclictest (rt-tests)");
    }
    let list = cpu.to_string();
    let line = [
        "tune",
        "noise",
        "--cpus",
        &list,
        "--for",
        "2s",
        "--compare",
        "--json",
    ];
    let heard = json(&run(&mut taut(&line)).success());
    let seconds = heard["cpus"][0]["interruptions"]["seconds"]
        .as_f64()
        .unwrap();
    assert!((1.9..2.5).contains(&seconds), "{seconds}");
    let compared = heard["compared"].as_array().unwrap();
    let names: Vec<_> = compared
        .iter()
        .map(|peer| peer["program"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["oslat", "cyclictest"]);
    for peer in compared {
        assert!(peer["longest_ns"].as_f64().unwrap() > 0.0, "{peer}");
    }
}

#[test]
fn tune_explains_one_setting_as_it_explains_all() {
    let printed = run(&mut taut(&["tune", "explain", "--all"]))
        .success()
        .stdout;
    for setting in taut_host::tune::settings() {
        let name = setting.name;
        let one = run(&mut taut(&["tune", "explain", name])).success().stdout;
        assert!(printed.contains(&format!("\n##{one}")), "{name}");
    }
}
