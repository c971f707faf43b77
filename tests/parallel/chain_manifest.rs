//! `taut chain manifest`: descriptions of a chain for other systems, on standard output or as files.

use crate::support::program::run;
use crate::support::{is_installed, names, scratch, taut};
use std::fs;
use std::process::Command;

const CHAIN: &str = "name = \"edge\"\nports = [\"null:\", \"null:\"]\n[[function]]\nname = \"forward\"\n\
                     [[function]]\nname = \"xor\"\nkey = 7\n";

#[test]
fn manifests_on_standard_output_and_in_files_are_equal() {
    let folder = scratch();
    let file = folder.path().join("chain.toml");
    fs::write(&file, CHAIN).unwrap();
    for (system, count) in [("kubernetes", 7), ("openstack", 1)] {
        let out = folder.path().join(system);
        let printed = run(taut(&["chain", "manifest", system]).arg(&file)).success();
        run(taut(&["chain", "manifest", system, "--out"])
            .arg(&out)
            .arg(&file))
        .success();
        let files = names(&out);
        assert_eq!(files.len(), count, "{files:?}");
        for name in files {
            let text = fs::read_to_string(out.join(&name)).unwrap();
            assert!(printed.stdout.contains(text.trim_end()), "{name}");
        }
        assert_eq!(printed.stdout.matches("\n---\n").count(), count - 1);
    }
}

#[test]
fn unsupported_manifest_settings_cause_a_one_line_error() {
    let folder = scratch();
    let file = folder.path().join("chain.toml");
    let kernel = CHAIN.replace(
        "name = \"forward\"",
        "name = \"forward\"\nplace = \"kernel\"",
    );
    for (text, option, part) in [
        (kernel.as_str(), "--cpus=2", "leave it out"),
        (CHAIN, "--huge-pages=3", "expected an even number"),
        (CHAIN, "--out=/dev/null", "cannot write /dev/null"),
    ] {
        fs::write(&file, text).unwrap();
        let finished = run(taut(&["chain", "manifest", "kubernetes", option]).arg(&file));
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    }
}

/// The validator compares objects with the API server's own schemas: `pip install kubernetes-validate`.
#[test]
fn objects_of_kubernetes_manifests_follow_the_schemas_of_its_server() {
    if !is_installed("kubernetes-validate") {
        println!("skipped: needs kubernetes-validate");
        return;
    }
    let folder = scratch();
    let file = folder.path().join("chain.toml");
    fs::write(&file, CHAIN).unwrap();
    for options in [&[][..], &["--cpus=1", "--huge-pages=4"]] {
        let out = folder.path().join(format!("out{}", options.len()));
        let mut made = taut(&["chain", "manifest", "kubernetes", "--out"]);
        run(made.arg(&out).args(options).arg(&file)).success();
        for name in names(&out) {
            let mut validator = Command::new("kubernetes-validate");
            let finished = run(validator.arg("--strict").arg(out.join(&name)));
            assert_eq!(finished.code(), Some(0), "{name}: {finished:?}");
            // The networks are objects of Multus, of which the server has no schema.
            let is_known = finished.stdout.contains("passed for resource")
                || finished.stderr.contains("passed for resource");
            assert!(
                is_known || name.starts_with("network-"),
                "{name}: {finished:?}"
            );
        }
    }
}
