//! The pages that compare taut with other tools: every command and file that they name for taut exists.

use crate::support::program::run;
use crate::support::taut;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

const TABLE: &str = "docs/generators.csv";

/// Returns the rows of the comparison table: the compared point, and the code spans of the column about taut.
fn claims() -> Vec<(String, Vec<String>)> {
    let mut table = csv::Reader::from_path(TABLE).unwrap();
    assert_eq!(&table.headers().unwrap()[2], "taut");
    let rows = table.records().map(Result::unwrap);
    rows.map(|row| {
        let spans = spans(&row[2]).into_iter().map(String::from);
        (row[1].to_string(), spans.collect())
    })
    .collect()
}

#[test]
fn every_claim_names_a_test_or_a_command() {
    let claims = claims();
    assert!(claims.len() > 20, "{claims:?}");
    for (what, spans) in claims {
        assert!(!spans.is_empty(), "{what}: nothing backs it");
        for span in spans {
            backs(&what, &span);
        }
    }
}

/// Checks that a code span of the table names an existing command or test file.
fn backs(what: &str, span: &str) {
    if span.starts_with("taut ") {
        command_is_there(span);
    } else if let Some(bench) = span.strip_prefix("cargo bench ") {
        let words: Vec<&str> = bench.split(' ').collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let folder = after("-p").map_or("benches".to_string(), |package| {
            format!("crates/{}/benches", package.trim_start_matches("taut-"))
        });
        let name = after("--bench").unwrap_or_else(|| panic!("{what}: which of {span}"));
        let file = format!("{folder}/{name}.rs");
        assert!(Path::new(&file).exists(), "{what}: no {file} for {span}");
    } else if span.ends_with(".rs") {
        let is_test = fs::read_to_string(span).is_ok_and(|text| text.contains("#[test]"));
        assert!(is_test, "{what}: no tests in {span}");
    }
}

/// Returns the rows of a page's tables, each with its column headings.
fn rows(text: &str) -> Vec<(Vec<&str>, Vec<&str>)> {
    let mut rows = Vec::new();
    let mut heads: Vec<&str> = Vec::new();
    for line in text.lines() {
        let Some(inside) = line
            .strip_prefix("| ")
            .and_then(|line| line.strip_suffix(" |"))
        else {
            if !line.starts_with("|---") {
                heads.clear();
            }
            continue;
        };
        let cells: Vec<&str> = inside.split(" | ").map(str::trim).collect();
        if heads.is_empty() {
            heads = cells;
        } else {
            rows.push((heads.clone(), cells));
        }
    }
    rows
}

/// Returns the code spans of a text.
fn spans(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn bracketed(text: &str) -> Vec<&str> {
    let opened = text.split('[').skip(1);
    opened
        .filter_map(|rest| rest.split_once(']'))
        .map(|(inside, _)| inside)
        .collect()
}

/// Returns the numbers of a text, as they are written.
fn numbers(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ','))
        .map(|number| number.trim_matches(['.', ',']))
        .filter(|number| !number.is_empty())
        .collect()
}

#[test]
fn the_performance_page_matches_the_stored_measurements() {
    let mut python = Command::new("python3");
    let checked = python
        .args(["docs/runs/performance.py", "--check"])
        .output();
    let checked = checked.unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}

#[test]
fn every_cell_of_the_comparison_has_a_source() {
    let page = fs::read_to_string("docs/COMPARED.md").unwrap();
    let runs = fs::read_dir("docs/runs/measured").unwrap();
    let runs = runs.map(|it| it.unwrap().path());
    let mut texts: Vec<String> = runs.map(|it| fs::read_to_string(it).unwrap()).collect();
    for claim in csv::Reader::from_path("docs/runs/claims.csv")
        .unwrap()
        .records()
    {
        texts.extend(claim.unwrap().iter().map(str::to_string));
    }
    let measured: BTreeSet<&str> = texts.iter().flat_map(|it| numbers(it)).collect();
    let mut table = csv::Reader::from_path("docs/sources.csv").unwrap();
    let sources: BTreeSet<String> = table
        .records()
        .map(|it| it.unwrap()[0].to_string())
        .collect();
    let rows = rows(&page);
    assert!(rows.len() > 90, "{}", rows.len());
    for (heads, cells) in rows {
        let what = cells[0];
        assert_eq!(heads.len(), cells.len(), "{what}: {cells:?}");
        assert!(cells.iter().all(|cell| !cell.is_empty()), "{what}: empty");
        if heads[0] == "Beside" {
            let unknown: Vec<_> = numbers(cells[1]).difference(&measured).copied().collect();
            assert!(unknown.is_empty(), "{what}: not measured: {unknown:?}");
            let commands = spans(cells[2]);
            commands.iter().for_each(|command| backs(what, command));
            let is_told = !commands.is_empty() || cells[2].contains("runs/measured/");
            assert!(cells[1] == "not measured" || is_told, "{what}: no command");
            continue;
        }
        let claims = spans(cells[1]);
        let is_backed = !claims.is_empty() || cells[1].starts_with("no");
        assert!(is_backed, "{what}: nothing backs {}", cells[1]);
        claims.iter().for_each(|span| backs(what, span));
        for cell in &cells[2..] {
            let named = bracketed(cell);
            assert!(!named.is_empty(), "{what}: no source of {cell}");
            for name in named {
                assert!(sources.contains(name), "{what}: no source {name}");
            }
        }
    }
    let used: BTreeSet<&str> = page.lines().flat_map(bracketed).collect();
    let idle = sources.iter().filter(|it| !used.contains(it.as_str()));
    let idle: Vec<_> = idle.collect();
    assert!(idle.is_empty(), "sources that nothing is from: {idle:?}");
}

/// Checks that the subcommand has all options that the span names, and that a named file exists.
fn command_is_there(span: &str) {
    /// Help texts by subcommand, as many spans name the same subcommand.
    static HELPS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let words: Vec<&str> = span.split(' ').skip(1).collect();
    let subcommand: Vec<&str> = words
        .iter()
        .copied()
        .take_while(|word| !word.starts_with('-') && !word.contains('/'))
        .collect();
    let mut helps = HELPS.lock().unwrap();
    let help = helps.entry(subcommand.join(" ")).or_insert_with(|| {
        let mut command = taut(&subcommand);
        run(command.arg("--help")).success().stdout
    });
    for word in words {
        if word.starts_with("--") {
            let named = help.split(|c: char| !c.is_alphanumeric() && c != '-');
            assert!(
                named.into_iter().any(|found| found == word),
                "{span}: no {word}"
            );
        } else if word.contains('/') {
            assert!(Path::new(word).exists(), "{span}: no {word}");
        }
    }
}
