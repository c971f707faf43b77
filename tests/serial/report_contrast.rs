//! Reports in a browser: each text has enough contrast with its background, in light and in dark colours.

use crate::support::browser::Browser;
use crate::support::program::{PATIENCE, Program, run};
use crate::support::{alone, scratch, taut};
use std::fs;
use std::path::Path;

/// An experiment with a figure of each kind that takes numbers, and claims that hold, fail, agree and disagree.
const EXPERIMENT: &str = r#"
title = "Numbers"
about = "What this is about"
[loop]
x = [1, 2, 3, 4, 5]
y = ["a", "b"]
[plan]
repetitions = 2
[[step]]
name = "it"
run = "echo '{\"value\": {{ x }}.5, \"part\": {{ x }}}'; : {{ y }}"
json = true
[[table]]
name = "all"
title = "All"
rows = ["x", "y"]
metrics = ["it.value"]
[[figure]]
name = "line"
kind = "line"
x = "x"
y = "it.value"
by = ["y"]
published = [{ name = "a paper", source = "Paper 2020, Fig. 1", points = [[1, 1], [2, 3]] }]
[[figure]]
name = "scatter"
kind = "scatter"
x = "it.part"
y = "it.value"
[[figure]]
name = "box"
kind = "box"
by = ["x", "y"]
y = "it.value"
[[figure]]
name = "map"
kind = "heat-map"
x = "x"
y = "y"
value = "it.value"
[[figure]]
name = "stack"
kind = "stack"
by = ["x"]
parts = ["it.value", "it.part"]
[[claim]]
text = "Two is more"
ours = true
value = "median('it.value', x=2) - median('it.value', x=1)"
holds = "value > 0"
[[claim]]
text = "Two is less"
ours = true
value = "median('it.value', x=2) - median('it.value', x=1)"
holds = "value < 0"
[[claim]]
text = "As was published"
published = { value = 1.7, unit = "times", source = "Paper 2020, Fig. 1", origin = "printed" }
value = "median('it.value', x=2) / median('it.value', x=1)"
[[claim]]
text = "As was published, with another size"
published = { value = 17, unit = "times", source = "Paper 2020, Fig. 1", origin = "printed" }
value = "median('it.value', x=2) / median('it.value', x=1)"
[[claim]]
text = "The other way round"
published = { value = 1.7, unit = "times", source = "Paper 2020, Fig. 1", origin = "printed" }
value = "median('it.value', x=1) / median('it.value', x=2)"
"#;

#[track_caller]
fn is_readable(browser: &mut Option<Browser>, report: &Path) -> bool {
    assert!(report.is_file(), "{}", report.display());
    let url = format!("file://{}", report.display());
    match browser {
        Some(browser) => browser.go(&url),
        None => *browser = Browser::open(&url),
    }
    if let Some(browser) = browser {
        assert_eq!(
            browser.faint_texts(),
            Vec::<String>::new(),
            "{}",
            report.display()
        );
    }
    browser.is_some()
}

#[test]
fn every_text_of_the_reports_has_enough_contrast() {
    let _turn = alone();
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let mut browser = None;
    fs::write(path("numbers.toml"), EXPERIMENT).unwrap();
    for out in ["one", "two"] {
        let mut command = taut(&["experiment", "run"]);
        command.arg(path("numbers.toml")).arg("--out");
        run(command.arg(path(out))).success();
    }
    if !is_readable(&mut browser, &path("one/report.html")) {
        return;
    }
    let mut compare = taut(&["experiment", "compare"]);
    compare.args([path("one"), path("two")]);
    run(compare.arg("--out").arg(path("compared"))).success();
    is_readable(&mut browser, &path("compared/comparison.html"));
    let mut generate = taut(&["generate", "--device", "memif-loop", "--rate", "10k"]);
    generate.args(["--seconds", "0.3", "--max-loss", "1", "--out"]);
    run(generate.arg(path("generated"))).success();
    is_readable(&mut browser, &path("generated/report.html"));
    let devices = "memif-idle,memif-loop";
    let mut demo = taut(&["demo", "--quick", "--devices", devices, "--out"]);
    Program::start(demo.arg(path("demo")))
        .finish_within(2 * PATIENCE)
        .success();
    is_readable(&mut browser, &path("demo/report.html"));
    if let Some(browser) = browser {
        assert_eq!(browser.close(), Vec::<String>::new());
    }
}
