//! Sentences of `taut demo` while it measures.

use crate::support::program::Program;
use crate::support::{alone, scratch, taut};
use std::time::Duration;

#[test]
fn the_quick_demo_prints_preliminary_results_before_its_last_runs() {
    let _turn = alone();
    let folder = scratch();
    let demo = |more: &str, out: &str| {
        let mut command = taut(&["demo", "--quick", "--seconds", "0.1", "--devices"]);
        command.arg("memif-full,memif-each,memif-loop");
        command.args(more.split_whitespace()).arg("--out");
        let demo = Program::start(command.arg(folder.path().join(out)));
        demo.finish_within(Duration::from_secs(120)).success()
    };
    let finished = demo("", "told");
    let so_far = |line: &&str| line.starts_with("so far, after ") && line.contains(" of 9 runs: ");
    let told = finished.stderr.lines().filter(so_far).count();
    assert!((1..=3).contains(&told), "{finished:?}");
    let finished = demo("--json", "json");
    assert!(!finished.stderr.contains("so far"), "{finished:?}");
}
