//! Passes the commit of the sources to `taut --version`, and the stored schemas to `--json-schema`.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

const SCHEMAS: &str = "docs/reference/schemas";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    pass_commit();
    pass_schemas();
}

/// Writes a list of the names of the stored schemas, each with its text.
fn pass_schemas() {
    println!("cargo::rerun-if-changed={SCHEMAS}");
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let folder = Path::new(&root).join(SCHEMAS);
    let files = std::fs::read_dir(&folder).expect(SCHEMAS);
    let mut files: Vec<_> = files.map(|it| it.expect(SCHEMAS).path()).collect();
    files.sort();
    let mut list = "&[\n".to_owned();
    for file in files
        .iter()
        .filter(|it| it.extension().is_some_and(|end| end == "json"))
    {
        let name = file.file_stem().unwrap_or_default();
        writeln!(list, "({name:?}, include_str!({file:?})),").expect("a string takes all");
    }
    list += "]\n";
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("schemas.rs"), list).expect("OUT_DIR is writable");
}

fn pass_commit() {
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
