//! The lists of unsafe code and of tests that docs/SECURITY.md names, compared with the sources.

use crate::support::rust_files;
use std::fs;
use std::path::{Path, PathBuf};

const UNSAFE: &str = "docs/unsafe.csv";
const TESTS: &str = "docs/security-tests.csv";

/// Counts the operations in the source that the compiler does not check.
fn unsafe_places(text: &str) -> usize {
    let code = text
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    let places = |line: &str| {
        let words = [
            "unsafe {",
            "unsafe fn",
            "unsafe impl",
            "unsafe extern",
            "unsafe trait",
        ];
        words
            .iter()
            .map(|word| line.matches(word).count())
            .sum::<usize>()
    };
    code.map(places).sum()
}

#[test]
fn the_security_page_lists_all_unsafe_code() {
    let mut files = Vec::new();
    rust_files(Path::new("crates"), &mut files);
    rust_files(Path::new("src"), &mut files);
    files.sort();
    let mut rows = "File,Places\n".to_string();
    for file in files {
        let places = unsafe_places(&fs::read_to_string(&file).unwrap());
        if places > 0 {
            rows += &format!("{},{places}\n", file.display());
        }
    }
    let listed = fs::read_to_string(UNSAFE).unwrap();
    assert!(listed == rows, "{UNSAFE} should be:\n{rows}");
}

/// Returns the rows of the table of tests in docs/SECURITY.md: what each tests, and its name.
fn tests() -> Vec<(String, String)> {
    let mut table = csv::Reader::from_path(TESTS).unwrap();
    table.deserialize().map(Result::unwrap).collect()
}

#[test]
fn every_test_named_for_an_untrusted_source_exists() {
    let mut files = Vec::new();
    for folder in ["crates", "src", "tests"] {
        rust_files(Path::new(folder), &mut files);
    }
    let text = |file: PathBuf| fs::read_to_string(file).unwrap();
    let all: String = files.into_iter().map(text).collect();
    let rows = tests();
    let spans = rows.iter().flat_map(|(_, tests)| tests.split('`'));
    let named: Vec<_> = spans.filter(|it| it.matches('_').count() > 2).collect();
    assert!(named.len() > 40, "{named:?}");
    let missing: Vec<_> = named
        .iter()
        .filter(|name| !all.contains(&format!("fn {name}()")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// Returns the cells of a table of the security page, without the head.
fn rows(table: &str) -> Vec<Vec<String>> {
    let mut table = csv::Reader::from_path(table).unwrap();
    let cells = |row: csv::StringRecord| row.iter().map(str::to_string).collect();
    table.records().map(|row| cells(row.unwrap())).collect()
}

#[test]
fn every_untrusted_source_on_the_security_page_has_tests() {
    let tests = tests();
    let tested: Vec<&str> = tests.iter().flat_map(|(row, _)| row.split("; ")).collect();
    let sources = rows("docs/security-sources.csv");
    let openings = rows("docs/security-openings.csv");
    assert!(sources.len() > 20 && openings.len() > 10);
    let untested: Vec<_> = sources
        .into_iter()
        .chain(openings)
        .filter(|row| {
            !["yes", "as DPDK does", "nobody"]
                .iter()
                .any(|it| row[1].starts_with(it))
        })
        .map(|row| row[0].split([',', '(']).next().unwrap().trim().to_string())
        .filter(|name| !tested.contains(&name.as_str()))
        .collect();
    assert!(untested.is_empty(), "{untested:?}");
}
