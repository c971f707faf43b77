//! `taut chain manifest`: descriptions of a chain for other systems, on standard output or as files.

use crate::support::program::run;
use crate::support::{names, scratch, taut};
use std::fs;

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
