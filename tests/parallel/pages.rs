//! Runs the blocks of the documentation as they are written: every command of a page works, or the page states why it
//! is not run.
//!
//! Blocks marked `sh` or `console` run in the order of their page, in one shell and a folder of their own, as root. The
//! network namespace has two interfaces `eth1` and `eth2` that a bridge joins, and the folder has a capture `in.pcap`.
//! A comment before a block changes that:
//!
//! - `<!-- not run: REASON -->`: the block is skipped
//! - `<!-- run: beside what follows -->`: the block runs in the background; with `, instead of what ran there` at the
//!   end, the blocks that already run in the background are stopped before
//! - `<!-- run: when what ran beside has ended -->`: the blocks in the background are stopped, then the block runs
//! - `<!-- run: may end with another code than 0 -->`: the exit code of the block is ignored
//! - `<!-- file: NAME -->`: the block, which may be of any kind, is saved as the file NAME

use crate::support::program::{Finished, Program, run};
use crate::support::{is_root, scratch, taut};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// The timeout for all blocks of a page together, seconds.
const PATIENCE: &str = "120";

/// A directive of a page: how the reader uses a block.
#[derive(Debug, PartialEq)]
enum Directive {
    Run,
    Beside { instead: bool },
    Alone,
    MayFail,
    Save(String),
    NotRun,
}

#[derive(Debug)]
struct Block {
    line: usize,
    text: String,
    way: Directive,
}

/// Returns the blocks with a directive, and those of the kinds `sh` and `console`. An error names the line of a
/// directive that does not fit its block.
fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut marker = None;
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(comment) = line
            .strip_prefix("<!-- ")
            .and_then(|line| line.strip_suffix(" -->"))
        {
            // `/made` ends a table that `./run reference` writes, and is no directive.
            marker = (comment != "/made").then_some(comment);
            continue;
        }
        let Some(kind) = line.trim_start().strip_prefix("```") else {
            if !line.trim().is_empty() {
                marker = None;
            }
            continue;
        };
        let body = lines.by_ref().map(|(_, line)| line);
        let text: Vec<&str> = body.take_while(|line| line.trim_start() != "```").collect();
        let way = way(kind, marker.take()).map_err(|e| format!("line {}: {e}", number + 1))?;
        found.extend(way.map(|way| Block {
            line: number + 1,
            text: text.join("\n") + "\n",
            way,
        }));
    }
    Ok(found)
}

fn way(kind: &str, marker: Option<&str>) -> Result<Option<Directive>, String> {
    let is_typed = matches!(kind, "sh" | "console");
    let way = match marker {
        None if is_typed => Directive::Run,
        None => return Ok(None),
        Some("run: beside what follows") if is_typed => Directive::Beside { instead: false },
        Some("run: beside what follows, instead of what ran there") if is_typed => {
            Directive::Beside { instead: true }
        }
        Some("run: when what ran beside has ended") if is_typed => Directive::Alone,
        Some("run: may end with another code than 0") if is_typed => Directive::MayFail,
        Some(marker) => match marker.split_once(": ") {
            Some(("not run", reason)) if is_typed && !reason.trim().is_empty() => Directive::NotRun,
            Some(("file", name)) if !name.contains('/') => Directive::Save(name.to_owned()),
            _ => return Err(format!("`{marker}` is no marker of a {kind} block")),
        },
    };
    Ok(Some(way))
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![Path::new(ROOT).join("README.md")];
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The script that sets up the environment of a page: two interfaces that a bridge joins, and folders for running
/// programs.
const SURROUNDINGS: &str = r#"
mount -t tmpfs tmpfs /run
mkdir /run/netns /run/lock
mount -t sysfs sysfs /sys
sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
ip link set lo up
ip netns add device
ip netns exec device sysctl -qw net.ipv6.conf.all.disable_ipv6=1
ip -n device link add bridge type bridge
ip -n device link set bridge up
for n in 1 2; do
    ip link add eth$n type veth peer name dev$n netns device
    ip link set eth$n arp off up
    ip -n device link set dev$n master bridge arp off up
done
for n in 1 2; do
    until ip -n device -d link show dev$n | grep -q 'state forwarding'; do sleep 0.05; done
done
beside=
end_beside() {
    for group in $beside; do
        kill -TERM -- "-$group" 2>/dev/null || true
        wait "$group" 2>/dev/null || true
    done
    beside=
}
trap 'end_beside; tail -n 20 "${0%/*}"/*.said 2>/dev/null || true' EXIT
"#;

/// Builds one script of the page. Each block is a sourced file, so that its definitions stay and `set -e` applies in
/// it.
fn script(blocks: &[Block], folder: &Path) -> String {
    let mut script = format!("set -e\n{SURROUNDINGS}");
    for block in blocks {
        let file = folder.join(format!("{}.sh", block.line));
        fs::write(&file, &block.text).unwrap();
        let file = file.display();
        let run = match &block.way {
            Directive::NotRun => continue,
            Directive::Run => format!(". {file}"),
            Directive::Alone => format!("end_beside\n. {file}"),
            Directive::MayFail => format!("(. {file}) || true"),
            Directive::Save(name) => format!("cp {file} ./{name}"),
            Directive::Beside { instead } => {
                let end = if *instead { "end_beside\n" } else { "" };
                // The next block waits for the first output, which shows that the program runs.
                format!(
                    "{end}setsid bash -e {file} >{file}.said 2>&1 &\nbeside=\"$beside $!\"\n\
                     until [ -s {file}.said ] || ! kill -0 $! 2>/dev/null; do sleep 0.1; done\nsleep 0.5"
                )
            }
        };
        script += &format!("echo \"== line {}\" >&2\n{run}\n", block.line);
    }
    script
}

/// Makes the capture that all pages use, in `folder`. The generator waits for seconds until packets come back, so no
/// page makes its own capture.
fn capture(folder: &Path) -> PathBuf {
    let file = folder.join("in.pcap");
    let port = format!("pcap:{},role=write", file.display());
    let mut generate = taut(&["generate", "--port", &port, "--rate", "10k"]);
    let made = run(generate.args(["--seconds", "0.1", "--warm-up", "0", "--max-loss", "1"]));
    assert!(
        made.code() == Some(0) || is_kept_from_its_core(&made),
        "{made:?}"
    );
    file
}

/// Prepares a folder like the reader's: the repository's files, a capture, and write access for new files.
fn place(folder: &Path, capture: &Path) -> PathBuf {
    let (place, programs) = (folder.join("place"), folder.join("programs"));
    fs::create_dir(&place).unwrap();
    fs::create_dir(&programs).unwrap();
    for entry in fs::read_dir(ROOT).unwrap().flatten() {
        if entry.file_name() != "results" {
            symlink(entry.path(), place.join(entry.file_name())).unwrap();
        }
    }
    fs::copy(capture, place.join("in.pcap")).unwrap();
    symlink(env!("CARGO_BIN_EXE_taut"), programs.join("taut")).unwrap();
    let sudo = programs.join("sudo");
    fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755)).unwrap();
    place
}

#[test]
fn every_code_block_that_is_not_run_states_a_reason() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        if let Err(e) = blocks(&text) {
            panic!("{}: {e}", page.display());
        }
    }
    let wrong = blocks("<!-- not run: -->\n```sh\ntaut\n```\n");
    assert!(wrong.is_err_and(|e| e.starts_with("line 2: ")));
    let two =
        "<!-- not run: a reason -->\n\n```sh\na\n```\ntext\n```console\nb\n```\n```text\nc\n```\n";
    let ways: Vec<Directive> = blocks(two).unwrap().into_iter().map(|b| b.way).collect();
    assert_eq!(ways, [Directive::NotRun, Directive::Run]);
}

/// Pages whose commands use both cores for a long time, and would disturb other tests and be disturbed by them. `./run
/// test` runs these pages separately.
const MEASURING: [&str; 16] = [
    "docs/how-to/an-encrypted-loss-protected-chain.md",
    "docs/how-to/benchmark-a-device.md",
    "docs/how-to/choose-a-flush-policy.md",
    "docs/how-to/compare-two-experiments.md",
    "docs/how-to/find-what-a-packet-costs.md",
    "docs/how-to/how-many-cores-do-i-need.md",
    "docs/how-to/measure-a-device.md",
    "docs/how-to/measure-a-generator.md",
    "docs/how-to/measure-a-switch.md",
    "docs/how-to/replay-a-capture.md",
    "docs/how-to/run-an-experiment.md",
    "docs/how-to/save-energy.md",
    "docs/how-to/talk-to-dpdk.md",
    "docs/how-to/use-dpdk-devices.md",
    "docs/how-to/watch-a-run.md",
    "docs/tutorial.md",
];

#[test]
fn commands_on_documentation_pages_run_as_printed() {
    if is_root() {
        work_as_typed(|page| !MEASURING.contains(&page));
    }
}

#[test]
fn commands_on_documentation_pages_that_measure_run_as_printed() {
    if is_root() {
        work_as_typed(|page| MEASURING.contains(&page));
    }
}

/// Reports whether the page failed with the error for a preempted loop, which is no fault of the page.
fn is_kept_from_its_core(finished: &Finished) -> bool {
    finished.code() == Some(1) && finished.stderr.contains("preempted the generator")
}

fn work_as_typed(wanted: impl Fn(&str) -> bool) {
    let shared = scratch();
    let capture = capture(shared.path());
    let mut complaints = Vec::new();
    for page in pages() {
        if !wanted(&page.strip_prefix(ROOT).unwrap().to_string_lossy()) {
            continue;
        }
        let blocks = blocks(&fs::read_to_string(&page).unwrap()).unwrap();
        let is_typed = |block: &Block| !matches!(block.way, Directive::NotRun | Directive::Save(_));
        if !blocks.iter().any(is_typed) {
            continue;
        }
        let folder = scratch();
        let place = place(folder.path(), &capture);
        let file = folder.path().join("page.sh");
        fs::write(&file, script(&blocks, folder.path())).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", folder.path().join("programs").display());
        let shut_in = "--net --mount --propagation private";
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE, "unshare"]);
        command.args(shut_in.split(' ')).arg("bash").arg(&file);
        let begun = std::time::Instant::now();
        let page = page.strip_prefix(ROOT).unwrap().display();
        let finished = Program::start(command.current_dir(place).env("PATH", path))
            .finish_within(Duration::from_secs(180));
        println!("{page}: {:.0} s", begun.elapsed().as_secs_f64());
        if is_kept_from_its_core(&finished) {
            println!("{page}: the machine was too busy for a rate that it asks for");
        } else if finished.code() != Some(0) {
            complaints.push(format!(
                "{page}: {}\n{}\n{}",
                finished.status, finished.stdout, finished.stderr
            ));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
