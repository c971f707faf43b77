//! The page that compares taut with other generators claims nothing that is not there.

use crate::support::program::run;
use crate::support::taut;
use std::fs;
use std::path::Path;

const PAGE: &str = "docs/explanation/compared-with-other-generators.md";

/// The code spans of the page's second column, which is taut's.
fn claims() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(PAGE).unwrap();
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| |"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let spans = cells[2].split('`').skip(1).step_by(2);
        (cells[1].to_string(), spans.map(String::from).collect())
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
            if span.starts_with("taut ") {
                command_is_there(&span);
            } else if span.contains('/') {
                let is_test = fs::read_to_string(&span).is_ok_and(|text| text.contains("#[test]"));
                assert!(is_test, "{what}: no tests in {span}");
            }
        }
    }
}

/// The subcommand has all options named, and a file named is there.
fn command_is_there(span: &str) {
    let words: Vec<&str> = span.split(' ').skip(1).collect();
    let subcommand: Vec<&str> = words
        .iter()
        .copied()
        .take_while(|word| !word.starts_with('-') && !word.contains('/'))
        .collect();
    let mut command = taut(&subcommand);
    let help = run(command.arg("--help")).success().stdout;
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
