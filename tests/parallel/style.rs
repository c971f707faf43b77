//! The sources have the project's format and wording: those checks of `./run lint` that build nothing.

use crate::support::program::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn sources_pass_the_wording_check() {
    run(Command::new("python3").args(["docs/wording.py", "check"])).success();
}

#[test]
fn sources_are_formatted() {
    let fmt = |arguments: &[&str]| run(Command::new("cargo").arg("fmt").args(arguments));
    if fmt(&["--version"]).code() != Some(0) {
        println!("skipped: needs rustfmt (rustup component add rustfmt)");
        return;
    }
    fmt(&["--all", "--check"]).success();
    fmt(&["--manifest-path", "fuzz/Cargo.toml", "--check"]).success();
}

#[test]
fn crates_without_documentation_tests_have_no_examples() {
    for folder in fs::read_dir("crates").unwrap() {
        let folder = folder.unwrap().path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        if !manifest.contains("\ndoctest = false\n") {
            continue;
        }
        for file in sources_below(&folder.join("src")) {
            let text = fs::read_to_string(&file).unwrap();
            let fences = text.lines().map(str::trim_start);
            let mut fences = fences.filter_map(|line| {
                let doc = line.strip_prefix("///").or(line.strip_prefix("//!"))?;
                doc.trim_start().strip_prefix("```")
            });
            // Every second fence ends a block.
            while let Some(language) = fences.next() {
                let is_example = matches!(language, "" | "rust" | "no_run" | "should_panic");
                assert!(!is_example, "{}: nobody runs its example", file.display());
                fences.next();
            }
        }
    }
}

/// Returns the Rust files below a folder.
fn sources_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources_below(&path));
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
    found
}
