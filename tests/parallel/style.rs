//! The sources have the project's format and wording: those checks of `./run lint` that build nothing.

use crate::support::program::run;
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
