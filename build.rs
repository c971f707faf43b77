//! Passes the commit of the sources to `taut --version`.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A file that does not exist would make cargo run this again in each build.
    let log = ".git/logs/HEAD";
    if Path::new(log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    let words = ["rev-parse", "--short=8", "HEAD"];
    let commit = Command::new("git").args(words).output();
    let commit = commit.ok().filter(|it| it.status.success());
    let commit = commit.and_then(|it| String::from_utf8(it.stdout).ok());
    let commit = commit.unwrap_or_else(|| "unknown: not built from a repository".to_owned());
    println!("cargo::rustc-env=TAUT_COMMIT={}", commit.trim());
}
