//! The crates as libraries of others: each can be packaged, and those for outsiders say what they are.

use crate::support::program::{PATIENCE, Program};
use crate::support::{names, scratch};
use std::fs;
use std::process::Command;

/// Crates with examples on their front pages or beside them.
const FOR_OTHERS: [&str; 5] = ["port", "wire", "measure", "traffic", "engine"];

#[test]
fn every_crate_is_packaged_without_a_registry() {
    let folder = scratch();
    let cargo = std::env::var("CARGO").unwrap_or("cargo".to_string());
    let mut command = Command::new(cargo);
    // All together: what a crate takes of the others is nowhere else. Only packed, as building them is done already.
    command.args(["package", "--workspace", "--no-verify", "--offline"]);
    command
        .args(["--allow-dirty", "--target-dir"])
        .arg(folder.path());
    let said = Program::start(&mut command)
        .finish_within(2 * PATIENCE)
        .success();
    // Nothing else is wrong with any: each says what it is, and lacks no file that it names.
    let warnings = said.stderr.lines().filter(|it| it.starts_with("warning: "));
    let others: Vec<&str> = warnings.filter(|it| *it != NO_PAGE).collect();
    assert!(others.is_empty(), "{others:?}");
    let made = names(&folder.path().join("package"));
    for each in FOR_OTHERS {
        let name = format!("taut-{each}-{}.crate", env!("CARGO_PKG_VERSION"));
        assert!(made.contains(&name), "{name}: {made:?}");
    }
}

/// What packaging says of a crate that has no page of its own on the net.
const NO_PAGE: &str = "warning: manifest has no documentation, homepage or repository";

#[test]
fn crates_for_others_say_what_they_are_and_have_an_example() {
    for each in FOR_OTHERS {
        let text = fs::read_to_string(format!("crates/{each}/Cargo.toml")).unwrap();
        let manifest: toml::Table = text.parse().unwrap();
        let package = &manifest["package"];
        assert!(
            package["description"].as_str().unwrap().len() > 20,
            "{each}"
        );
        for field in ["readme", "license", "version"] {
            assert_eq!(
                package[field]["workspace"].as_bool(),
                Some(true),
                "{each}: {field}"
            );
        }
        let front = fs::read_to_string(format!("crates/{each}/src/lib.rs")).unwrap();
        let blocks = front.lines().filter(|line| line.starts_with("//! ```"));
        assert!(blocks.count() >= 2, "{each}: no example in front");
    }
    for example in [
        "crates/engine/examples/forwarder.rs",
        "crates/traffic/examples/generator.rs",
    ] {
        let text = fs::read_to_string(example).unwrap();
        let (_, body) = text.split_once("fn main()").unwrap();
        assert!(
            body.lines().count() <= 36,
            "{example}: {}",
            body.lines().count()
        );
    }
}
