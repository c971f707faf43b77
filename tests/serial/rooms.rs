//! The list of crates in docs/ARCHITECTURE.md is complete, and lists each crate before its dependencies. The tests of
//! the crates replay every corpus of the fuzz targets.

use crate::support::rust_files;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the crates that the architecture page lists, from the top.
fn listed() -> Vec<String> {
    let page = fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    let (_, rooms) = page.split_once("\n## Rooms\n").unwrap();
    let rooms = rooms.split("\n## ").next().unwrap();
    let names = rooms.lines().filter_map(|line| {
        let name = line.strip_prefix("    crates/")?;
        Some(name.split_whitespace().next().unwrap().to_string())
    });
    names.collect()
}

/// Returns the crates of the project that a manifest depends on, without dev-dependencies.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut counts = false;
    for line in manifest.lines() {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            counts = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
        } else if counts && let Some(rest) = line.strip_prefix("taut-") {
            let name = rest.split(['.', ' ', '=']).next().unwrap();
            found.insert(name.to_string());
        }
    }
    found
}

#[test]
fn the_architecture_lists_every_crate_once() {
    let listed = listed();
    let folders = fs::read_dir("crates").unwrap();
    let folders = folders.map(|it| it.unwrap().file_name().into_string().unwrap());
    let folders: BTreeSet<String> = folders.collect();
    let names: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(names.len(), listed.len(), "twice in the list: {listed:?}");
    assert_eq!(names, folders);
}

#[test]
fn a_crate_depends_only_on_crates_listed_above_it() {
    let listed = listed();
    for (place, name) in listed.iter().enumerate() {
        let manifest = fs::read_to_string(format!("crates/{name}/Cargo.toml")).unwrap();
        let above: BTreeSet<String> = listed[..place].iter().cloned().collect();
        let wrong: Vec<String> = dependencies(&manifest)
            .difference(&above)
            .cloned()
            .collect();
        assert!(
            wrong.is_empty(),
            "{name} depends on {wrong:?}, which are not above it"
        );
    }
}

#[test]
fn dependencies_are_read_from_all_manifest_tables_except_dev_dependencies() {
    let manifest = "[dependencies]\ntaut-wire.workspace = true\nserde = \"1\"\n[dev-dependencies]\ntaut-bench.workspace = true\n\
                    [target.'cfg(loom)'.dependencies]\ntaut-port = { workspace = true }\n[features]\ntaut-x = []\n";
    let found: Vec<String> = dependencies(manifest).into_iter().collect();
    assert_eq!(found, ["port", "wire"]);
}

/// The tests of a crate replay the inputs that fuzzing found for its code.
#[test]
fn a_test_replays_every_fuzzing_corpus() {
    let tests = fs::read_dir("crates").unwrap().filter_map(|it| {
        let file = it.unwrap().path().join("tests/fuzz_bodies.rs");
        fs::read_to_string(file).ok()
    });
    let tests: String = tests.collect();
    for corpus in fs::read_dir("fuzz/corpora").unwrap() {
        let name = corpus.unwrap().file_name().into_string().unwrap();
        let target = name.strip_suffix(".tar.gz").unwrap();
        assert!(
            tests.contains(&format!("corpus::replay(\"{target}\", ")),
            "{name}"
        );
    }
}

/// Code distinguishes ports and functions by their properties (`Backend`, `Entry`), not by name. A new port or function
/// thus needs no change outside the crate that defines it.
#[test]
fn only_the_defining_crates_compare_port_and_function_names() {
    let comparisons = ["backend() ", "stage.name ", "stage.name.as_str() "];
    let mut files = Vec::new();
    for folder in ["src", "crates"] {
        rust_files(Path::new(folder), &mut files);
    }
    for file in files {
        let path = file.to_str().unwrap();
        if path.contains("crates/port/") || path.contains("/tests") || path.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let product = text.split("mod tests {").next().unwrap();
        for (number, line) in product.lines().enumerate() {
            let compares = comparisons.iter().any(|name| {
                let rest = line.split_once(name).map_or("", |(_, rest)| rest);
                ["== \"", "!= \"", "{"]
                    .iter()
                    .any(|it| rest.starts_with(it))
            });
            let matches = line.contains("matches!(") && line.contains("backend(),");
            assert!(!compares && !matches, "{path}:{}: {line}", number + 1);
        }
    }
}
