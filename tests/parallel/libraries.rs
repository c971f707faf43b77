//! The crates as libraries for other projects: each can be packaged, and the public crates have a description.

use crate::support::program::{PATIENCE, Program};
use crate::support::{names, scratch};
use std::fs;
use std::process::Command;

/// Crates with examples, in the documentation of the crate or in its folder `examples`.
const FOR_OTHERS: [&str; 5] = ["port", "wire", "measure", "traffic", "engine"];

#[test]
fn every_crate_is_packaged_without_a_registry() {
    let folder = scratch();
    let cargo = std::env::var("CARGO").unwrap_or("cargo".to_string());
    let mut command = Command::new(cargo);
    // All crates are packaged together, as their dependencies on each other are not published. They are not built again
    // for this.
    command.args(["package", "--workspace", "--no-verify", "--offline"]);
    command
        .args(["--allow-dirty", "--target-dir"])
        .arg(folder.path());
    let said = Program::start(&mut command)
        .finish_within(2 * PATIENCE)
        .success();
    // Each crate has a description and all files that it names, so there are no further warnings.
    let warnings = said.stderr.lines().filter(|it| it.starts_with("warning: "));
    let others: Vec<&str> = warnings.filter(|it| *it != NO_PAGE).collect();
    assert!(others.is_empty(), "{others:?}");
    let made = names(&folder.path().join("package"));
    for each in FOR_OTHERS {
        let name = format!("taut-{each}-{}.crate", env!("CARGO_PKG_VERSION"));
        assert!(made.contains(&name), "{name}: {made:?}");
    }
}

/// The warning about a crate without a web page of its own.
const NO_PAGE: &str = "warning: manifest has no documentation, homepage or repository";

#[test]
fn public_crates_have_a_description_and_an_example() {
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
