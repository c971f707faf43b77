//! Invalid input is reported in one line with the right exit code: never a panic, never a hang.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::refusals::{INPUT, LIMIT, MISSING, says, table};
use crate::support::testpmd::Testpmd;
use crate::support::{
    Sockets, alone, alone_and_root, as_nobody, as_nobody_works, is_installed, scratch, taut,
    testpmd,
};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn failed_trials_end_with_a_reason_and_exit_code() {
    let _turn = alone();
    table(
        &[],
        &[
            (
                "generate --port memif:w.sock --wait 0.2",
                MISSING,
                "waiting for a memif client at w.sock",
            ),
            (
                "generate --port memif:w.sock,role=client --wait 0.2",
                MISSING,
                "start the server first",
            ),
            (
                "generate --port null: --rate 1G --seconds 0.1 --warm-up 0",
                LIMIT,
                "were never sent",
            ),
            (
                "generate --port null: --rate 1k --seconds 0.1 --warm-up 0",
                LIMIT,
                "no packet came back",
            ),
            (
                "generate --port null: --rate 1k --seconds 0.1 --warm-up 0 --max-loss 0.5",
                LIMIT,
                "% lost, more than the",
            ),
        ],
    );
}

/// Returns the process that holds the lock for measuring in a folder of locks; `None` if no process holds the lock.
fn measuring(claims: &Path) -> Option<Pid> {
    let entries = fs::read_dir(claims).ok()?.flatten();
    let lock = entries.map(|it| it.path()).find(|it| {
        let name = it.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("measuring")
    })?;
    Pid::from_raw(fs::read_to_string(lock).ok()?.trim().parse().ok()?)
}

#[test]
fn an_unprivileged_demo_measures_memif_and_names_skipped_ports() {
    let _turn = alone();
    if !as_nobody_works() {
        return;
    }
    says(
        &run(&mut as_nobody(&["forward", "--port", "af_packet:lo"])),
        MISSING,
        "CAP_NET_RAW",
    );
    if cfg!(feature = "xdp") {
        says(
            &run(&mut as_nobody(&["forward", "--port", "af_xdp:lo"])),
            MISSING,
            "CAP_NET_RAW",
        );
    }
    let watch = Watch::begin();
    // The folder is like /tmp: files of one user cannot be replaced by another.
    fs::set_permissions(watch.temporary(), fs::Permissions::from_mode(0o1777)).unwrap();
    let folder = scratch();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let out = folder.path().join("results").display().to_string();
    let words = ["demo", "--quick", "--seconds", "0.1", "--out", &out];
    let mut begun = Program::start(watch.over(&mut as_nobody(&words)));
    // The test waits for the first complete run, so that there is a result.
    let index = Path::new(&out).join("runs.jsonl");
    begun.wait_until("a run", |_, _| {
        fs::metadata(&index).is_ok_and(|index| index.len() > 0)
    });
    // The measuring process is stopped, as if it got no CPU time. It therefore has to be killed, and leaves its lock.
    let claims = watch.temporary().join("taut-65534");
    begun.wait_until("a measurement", |_, _| {
        let measures = measuring(&claims);
        let stopped = measures.filter(|it| kill_process(*it, Signal::STOP).is_ok());
        stopped.is_some() && measuring(&claims) == stopped
    });
    let finished = begun.interrupt();
    assert_eq!(finished.code(), Some(130), "{finished:?}");
    watch.nothing_is_left();
    assert!(
        finished.stdout.contains("skipped: everything over veth"),
        "{finished:?}"
    );
    let page = fs::read_to_string(Path::new(&out).join("report.html")).unwrap();
    assert!(page.contains("everything over veth") && page.contains("CAP_SYS_ADMIN"));
    // Only the owner may write to the folder.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let closed = folder.path().join("closed").display().to_string();
    let finished = demo(&mut as_nobody(&["demo", "--quick", "--out", &closed]));
    let denied = |finished: &Finished| {
        assert_eq!(finished.code(), Some(MISSING), "{finished:?}");
        let last = last_line(finished);
        assert!(last.contains("Permission denied; check the path"), "{last}");
    };
    denied(&finished);
    // Every command that writes results reports the folder in this way.
    for command in [
        "bench latency --port pair:a --port pair:a --out",
        "bench io --only null --out",
        "bench generator --only taut-memif --out",
        "generate --port pair:a --port pair:a --seconds 0.1 --out",
    ] {
        let words: Vec<&str> = command.split(' ').chain([closed.as_str()]).collect();
        denied(&demo(&mut as_nobody(&words)));
    }
}

fn last_line(finished: &Finished) -> &str {
    finished.stderr.lines().last().unwrap_or_default()
}

/// Runs a demo to its end.
fn demo(command: &mut Command) -> Finished {
    Program::start(command).finish_within(Duration::from_secs(300))
}

#[test]
fn the_demo_completes_on_a_single_core() {
    let _turn = alone();
    if !is_installed("taskset") {
        println!("skipped: needs taskset (package util-linux)");
        return;
    }
    let folder = scratch();
    let core = taut_host::choose_cores().generator.to_string();
    let mut command = Command::new("taskset");
    command.args([
        "-c",
        &core,
        env!("CARGO_BIN_EXE_taut"),
        "demo",
        "--quick",
        "--seconds",
        "0.1",
        "--repetitions",
        "1",
        "--devices",
        // The list has a device of each kind: shared memory, the kernel, kernel ports.
        "memif-idle,veth-bridge,veth-af-packet-idle",
        "--out",
    ]);
    let finished = demo(command.arg(folder.path().join("results"))).success();
    assert!(finished.stdout.contains("report:"), "{finished:?}");
}

#[test]
fn unwritable_results_folders_are_refused_with_the_reason() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (watch, folder) = (Watch::begin(), scratch());
    fs::write(folder.path().join("file"), "text").unwrap();
    let mut command = taut(&["demo", "--quick", "--out"]);
    let finished = demo(watch.over(command.arg(folder.path().join("file"))));
    says(&finished, INPUT, "Not a directory");
    // The disk is full before the first run is written.
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none {disk} && exec {taut} demo --quick --out {disk}/results",
        disk = disk.display(),
        taut = env!("CARGO_BIN_EXE_taut")
    );
    let finished = demo(watch.over(Command::new("unshare").args(["-m", "sh", "-c", &script])));
    watch.nothing_is_left();
    assert_eq!(finished.code(), Some(MISSING), "{finished:?}");
    let said = last_line(&finished);
    assert!(
        said.contains("No space left on device; check") && said.contains("free space"),
        "{said}"
    );
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

#[test]
fn missing_and_damaged_results_folders_are_refused_with_the_reason() {
    let _turn = alone();
    table(
        &[("file", b"text")],
        &[
            ("report folder", INPUT, "no results here"),
            ("report nowhere", INPUT, "no such folder"),
            ("report file", INPUT, "no such folder"),
        ],
    );
    // The results are those of a real demo, which is ended after its first run over memif. They are then damaged.
    let folder = scratch();
    let out = folder.path().join("results");
    let samples = |out: &Path| {
        let path = out.join("runs/v1-r1/local/comparison/runs/memif-idle/1/samples.parquet");
        path.exists().then_some(path)
    };
    let words = ["demo", "--quick", "--seconds", "0.1"];
    let devices = ["--devices", "memif-idle", "--out"];
    let mut measuring = Program::start(taut(&words).args(devices).arg(&out));
    measuring.wait_until("a run", |_, _| samples(&out).is_some());
    measuring.interrupt();
    let report = || run(taut(&["report"]).arg(&out));
    report().success();

    // A results folder is never overwritten.
    let again = demo(taut(&["demo", "--quick", "--out"]).arg(&out));
    assert_eq!(again.code(), Some(INPUT), "{again:?}");
    assert!(last_line(&again).contains("exists already"), "{again:?}");

    // A damaged run is named and skipped.
    let path = samples(&out).unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let finished = report();
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    assert!(
        (finished.stdout.clone() + &finished.stderr).contains("samples.parquet"),
        "{finished:?}"
    );
    fs::write(&path, &whole).unwrap();

    let experiment = out.join("experiment.json");
    let text = fs::read_to_string(&experiment).unwrap();
    fs::write(&experiment, &text[..text.len() / 2]).unwrap();
    says(&report(), INPUT, "experiment.json: line");
    fs::write(
        &experiment,
        text.replacen("\"schema\": 1", "\"schema\": 999", 1),
    )
    .unwrap();
    says(&report(), INPUT, "schema 999, this taut reads");
    fs::write(&experiment, "[]").unwrap();
    says(&report(), INPUT, "experiment.json");
}

#[test]
fn foreign_packets_are_counted_and_not_measured() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    let sockets = Sockets::new();
    let mut testpmd = Testpmd::start("server", &sockets.paths());
    testpmd.forward("txonly");
    let mut arguments = vec!["generate".to_string()];
    arguments.extend(sockets.ports("client", ""));
    // None of the generator's packets returns. Each trial waits for its packets, and so would a warm-up.
    let trial = ["--rate", "1k", "--seconds", "0.5", "--warm-up", "0"];
    arguments.extend(trial.map(String::from));
    arguments.push("--json".to_string());
    let finished = run(&mut taut(&arguments));
    let stream = finished.first_stream();
    assert!(
        stream["tally"]["foreign"].as_u64().unwrap() > 1_000,
        "{stream}"
    );
    assert_eq!(stream["tally"]["received"], 0, "{stream}");
    assert!(stream["latency_ns"].is_null(), "{stream}");
    assert_eq!(finished.code(), Some(LIMIT), "{finished:?}");
}

#[test]
fn no_command_panics_when_the_reader_closes_the_pipe() {
    let _turn = alone();
    for line in [
        "forward --port null: --seconds 1.2",
        "generate --port null: --seconds 1.2 --warm-up 0 --rate 1k --max-loss 1",
        "ports",
        "doctor",
        "completions bash",
        "--help",
    ] {
        let mut child = taut(&line.split(' ').collect::<Vec<_>>())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        reader.read_line(&mut String::new()).unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
}
