//! The folder of `taut generate --out`: complete files, whatever happens during the run.

use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, alone_and_root, is_installed, json, scratch, taut};
use std::fs;
use std::path::Path;
use std::process::Command;
use taut_results::SampleReader;

fn generate(arguments: &str, out: &Path) -> Command {
    let mut all: Vec<String> = vec!["generate".to_string()];
    all.extend(arguments.split_whitespace().map(String::from));
    all.extend(["--out".to_string(), out.display().to_string()]);
    taut(&all)
}

/// Returns the number of rows in a samples file, and of those with a latency; fails if a row is out of order.
fn rows_of(path: &Path) -> (u64, u64) {
    let mut reader = SampleReader::open(path).unwrap();
    let (mut next, mut arrived) = (0, 0);
    while let Some(block) = reader.next_block().unwrap() {
        for sample in block {
            assert_eq!(sample.sequence, next);
            next += 1;
            arrived += u64::from(sample.latency_ns.is_some());
        }
    }
    assert_eq!(reader.rows(), next);
    (next, arrived)
}

fn files_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Runs the generator against `taut forward` over memif.
fn against_forward(more: &str, out: &Path) -> Finished {
    let sockets = Sockets::new();
    let mut arguments = vec!["forward".to_string()];
    arguments.extend(sockets.ports("server", ""));
    arguments.push("--quiet".to_string());
    arguments.extend(RESTING.map(String::from));
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("forwarding");
    let ports = sockets.ports("client", "").join(" ");
    let finished = run(&mut generate(&format!("{ports} {more}"), out));
    forward.interrupt().success();
    finished
}

#[test]
fn samples_histogram_summary_and_worst_packets_agree() {
    let _turn = alone();
    undisturbed(|| {
        let folder = scratch();
        let out = folder.path().join("run");
        let more = "--rate 20k --seconds 0.5 --json --worst 5 --max-loss 1";
        let finished = against_forward(more, &out);
        if finished.stderr.contains("preempted the generator") {
            return Err(finished.stderr);
        }
        let finished = finished.success();
        let (summary, ours) = (finished.last_json(), finished.first_stream());
        let want = [
            "figures",
            "interruptions.json",
            "latency.hlog",
            "machine.json",
            "report.html",
            "samples.parquet",
            "slowest.json",
            "summary.json",
            "worst.pcapng",
        ];
        assert_eq!(files_in(&out), want);
        assert_eq!(json(&out.join("summary.json")), summary);
        let (rows, arrived) = rows_of(&out.join("samples.parquet"));
        let tally = |name: &str| ours["tally"][name].as_u64().unwrap();
        assert_eq!(rows, tally("sent") + tally("refused"));
        assert_eq!(
            arrived,
            ours["sequence"]["received_unique"].as_u64().unwrap()
        );
        assert_eq!(ours["samples"]["kept"], rows);
        let each = json(&out.join("slowest.json"));
        assert_eq!(each["each"].as_array().unwrap().len(), 10, "{each}");
        assert_eq!(each["by_cause"], ours["slowest"]["by_cause"]);
        // The folder alone is enough to write the page again, with the same bytes.
        let page = fs::read(out.join("report.html")).unwrap();
        let shown = run(&mut taut(&["report", &out.display().to_string(), "--json"])).success();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown.stdout).unwrap(),
            summary
        );
        assert!(page == fs::read(out.join("report.html")).unwrap());
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("What the slowest packets waited for"));
        let log = fs::read_to_string(out.join("latency.hlog")).unwrap();
        assert!(
            log.starts_with("#[Histogram log format version 1.3]"),
            "{log}"
        );

        let capture = fs::read(out.join("worst.pcapng")).unwrap();
        let text = String::from_utf8_lossy(&capture);
        for rank in 1..=5 {
            assert!(text.contains(&format!("worst {rank}: latency ")), "{rank}");
        }
        assert!(!text.contains("worst 6: "));
        if is_installed("tshark") {
            let shown = run(Command::new("tshark")
                .arg("-r")
                .arg(out.join("worst.pcapng"))
                .args([
                    "-T",
                    "fields",
                    "-e",
                    "frame.len",
                    "-e",
                    "frame.comment",
                    "-e",
                    "udp.dstport",
                ]))
            .success();
            let lines: Vec<&str> = shown.stdout.lines().collect();
            assert!((9..=45).contains(&lines.len()), "{shown:?}");
            assert!(
                lines.iter().all(|line| line.starts_with("60\t")),
                "{shown:?}"
            );
        } else {
            println!("skipped: needs tshark");
        }
        if arrived < rows {
            return Err(format!("lost by accident: {ours}"));
        }
        Ok(())
    });
}

#[test]
fn each_stream_has_a_separate_results_folder() {
    let _turn = alone();
    let folder = scratch();
    let traffic = folder.path().join("two.toml");
    let text =
        "[[stream]]\nname = \"voice\"\nrate = \"1k\"\n[[stream]]\nname = \"bulk\"\nrate = \"2k\"\n";
    fs::write(&traffic, text).unwrap();
    let out = folder.path().join("run");
    // A warm-up would wait for packets that never come back.
    let arguments = format!(
        "{} --port null: --seconds 0.2 --warm-up 0 --max-loss 1",
        traffic.display()
    );
    run(&mut generate(&arguments, &out)).success();
    assert_eq!(
        files_in(&out),
        [
            "1-voice",
            "2-bulk",
            "figures",
            "interruptions.json",
            "machine.json",
            "report.html",
            "summary.json"
        ]
    );
    let summary = json(&out.join("summary.json"));
    for (index, name) in ["1-voice", "2-bulk"].into_iter().enumerate() {
        let (rows, arrived) = rows_of(&out.join(name).join("samples.parquet"));
        assert_eq!(summary["streams"][index]["samples"]["kept"], rows);
        assert_eq!(arrived, 0);
    }
}

#[test]
fn an_existing_results_folder_is_not_overwritten() {
    let _turn = alone();
    let folder = scratch();
    let arguments = "--port null: --rate 1k --seconds 0.1 --warm-up 0 --max-loss 1 --samples csv";
    run(&mut generate(arguments, folder.path())).success();
    let before = fs::read(folder.path().join("samples.csv")).unwrap();
    let again = run(&mut generate(arguments, folder.path()));
    assert_eq!(again.code(), Some(2), "{again:?}");
    assert!(again.stderr.contains("exists already"), "{again:?}");
    assert_eq!(fs::read(folder.path().join("samples.csv")).unwrap(), before);
}

#[test]
fn a_run_that_cannot_begin_leaves_no_folder() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("run");
    let socket = folder.path().join("nobody.sock");
    let arguments = format!("--port memif:{},role=client --wait 0.1", socket.display());
    let finished = run(&mut generate(&arguments, &out));
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    assert!(!out.exists());
}

#[test]
fn ctrl_c_leaves_complete_results_files() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("run");
    let arguments = "--port null: --rate 50k --seconds 1000 --warm-up 0 --json";
    let mut generator = Program::start(&mut generate(arguments, &out));
    generator.wait_for_stdout("\"second\":1");
    let stream = generator.interrupt().success().first_stream();
    assert_eq!(stream["tally"]["stopped"], true);
    let (rows, _) = rows_of(&out.join("samples.parquet"));
    let tally = |name: &str| stream["tally"][name].as_u64().unwrap();
    assert_eq!(rows, tally("sent") + tally("refused"));
    assert_eq!(
        files_in(&out),
        [
            "figures",
            "interruptions.json",
            "latency.hlog",
            "machine.json",
            "report.html",
            "samples.parquet",
            "summary.json"
        ]
    );
}

/// A full disk is reported, and the written part is intact. The folder is on a file system in memory that is too small.
/// Its size depends on the format, as rows of CSV need more space than Parquet.
#[test]
fn a_full_disk_is_reported_and_written_samples_stay_complete() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for (format, size) in [("parquet", "512k"), ("csv", "20m")] {
        let folder = scratch();
        let [small, kept] = ["small", "kept"].map(|name| folder.path().join(name));
        fs::create_dir(&small).unwrap();
        let script = format!(
            "mount -t tmpfs -o size={size} tmpfs {small} || exit 99\n\
             {taut} generate --port null: --rate 1M --seconds 1.2 --warm-up 0 --max-loss 1 --samples {format} \
             --out {small}/run\n\
             code=$?\ncp -r {small}/run {kept}\nexit $code\n",
            taut = env!("CARGO_BIN_EXE_taut"),
            small = small.display(),
            kept = kept.display()
        );
        let finished = run(Command::new("unshare").args(["-m", "sh", "-c", &script]));
        if finished.code() == Some(99) {
            println!("skipped: needs a mount namespace");
            return;
        }
        assert_eq!(finished.code(), Some(3), "{finished:?}");
        let last = finished.stderr.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("taut: ") && last.contains("No space left"),
            "{finished:?}"
        );
        assert!(finished.stdout.contains("sent "), "{finished:?}");
        let path = kept.join(format!("samples.{format}"));
        let rows = if format == "csv" {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.ends_with('\n'));
            text.lines().count() as u64 - 1
        } else {
            rows_of(&path).0
        };
        // The file has complete blocks of rows.
        assert!(rows > 0 && rows.is_multiple_of(1 << 18), "{rows}");
        assert!(
            !files_in(&kept)
                .iter()
                .any(|name| name.starts_with("samples") && name.ends_with("partial"))
        );
    }
}
