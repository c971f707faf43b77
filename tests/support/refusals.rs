//! Invalid input is reported in one line with the right exit code: never a panic, never a hang.

use super::program::{Finished, run};
use super::{scratch, taut};
use std::fs;

pub const LIMIT: i32 = 1;
pub const INPUT: i32 = 2;
pub const MISSING: i32 = 3;

/// Checks that the program exited with `code` and printed one line on standard error that contains `fragment`.
#[track_caller]
pub fn says(finished: &Finished, code: i32, fragment: &str) {
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    let lines: Vec<_> = finished.stderr.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].starts_with("taut: "),
        "{finished:?}"
    );
    let said = finished.stderr.to_lowercase();
    assert!(
        said.contains(&fragment.to_lowercase()),
        "no `{fragment}`: {finished:?}"
    );
    assert!(!said.contains("panicked"), "{finished:?}");
}

/// Runs each command line in a temporary folder with `files`, and compares exit code and message with the expected
/// ones.
#[track_caller]
pub fn table(files: &[(&str, &[u8])], rows: &[(&str, i32, &str)]) {
    let folder = scratch();
    for (name, content) in files {
        fs::write(folder.path().join(name), content).unwrap();
    }
    fs::create_dir(folder.path().join("folder")).unwrap();
    for (line, code, fragment) in rows {
        let arguments: Vec<_> = line.split(' ').map(|word| word.replace('~', " ")).collect();
        let finished = run(taut(&arguments).current_dir(folder.path()));
        println!("taut {line}");
        says(&finished, *code, fragment);
    }
}
