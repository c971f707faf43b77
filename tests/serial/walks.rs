//! The walks through the code in docs/ARCHITECTURE.md: each file that they name exists and contains the functions named
//! with it.

use std::fs;

const HEADING: &str = "\n## Three walks through the code\n";

/// Returns each file that a text names, with the functions named after it: "`src/a.rs`: `run`, `show`".
fn steps(text: &str) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let parts: Vec<&str> = text.split('`').collect();
    let mut goes_on = false;
    for pair in parts.chunks(2) {
        let [between, code] = pair else {
            break;
        };
        if code.ends_with(".rs") {
            found.push((code.to_string(), Vec::new()));
            goes_on = true;
            continue;
        }
        let is_first = between.trim() == ":";
        goes_on &= is_first || between.trim() == ",";
        if goes_on && let Some((_, functions)) = found.last_mut() {
            functions.push(code.to_string());
        }
    }
    found
}

/// Returns the code spans in the sentences of a step. Every span that looks like a function must be in a file of that
/// step.
fn others(step: &str) -> Vec<String> {
    let words = step.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| word.chars().all(|c| c == '_' || c.is_ascii_lowercase());
    words.filter(is_name).map(str::to_string).collect()
}

fn has_function(file: &str, name: &str) -> bool {
    let code = fs::read_to_string(file).unwrap_or_default();
    [format!("fn {name}("), format!("fn {name}<")]
        .iter()
        .any(|it| code.contains(it))
}

#[test]
fn every_function_named_in_the_architecture_walkthrough_exists() {
    let page = fs::read_to_string("docs/ARCHITECTURE.md").unwrap();
    let (_, walks) = page.split_once(HEADING).unwrap();
    let walks = walks.split("\n## ").next().unwrap();
    assert_eq!(walks.matches("\n### ").count(), 3);
    // A step ends before the next line that begins with a number, or an empty one.
    let begins = |line: &str| line.is_empty() || line.starts_with(|c: char| c.is_ascii_digit());
    let mut all: Vec<String> = vec![String::new()];
    for line in walks.lines().filter(|line| !line.starts_with('#')) {
        if begins(line) {
            all.push(String::new());
        }
        *all.last_mut().unwrap() += line;
        *all.last_mut().unwrap() += " ";
    }
    let mut wrong = Vec::new();
    let mut count = 0;
    for step in all.iter().filter(|step| !step.trim().is_empty()).skip(1) {
        let named = steps(step);
        for (file, functions) in &named {
            count += 1;
            if functions.is_empty() {
                wrong.push(format!("{file} without a function: {step}"));
            }
            let gone = functions.iter().filter(|name| !has_function(file, name));
            wrong.extend(gone.map(|name| format!("{file} has no function {name}")));
        }
        let gone = others(step);
        let gone = gone
            .iter()
            .filter(|name| !named.iter().any(|(file, _)| has_function(file, name)));
        wrong
            .extend(gone.map(|name| format!("no file of this step has a function {name}: {step}")));
    }
    assert!(count > 30, "{count}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn files_and_functions_are_parsed_from_walkthrough_steps() {
    let found = steps("1. `a/b.rs`: `run`, `show` do what `other` says; `c.rs`: `x`.");
    let named = |file: &str, names: &[&str]| {
        (
            file.to_string(),
            names.iter().map(|it| it.to_string()).collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        found,
        [named("a/b.rs", &["run", "show"]), named("c.rs", &["x"])]
    );
    assert_eq!(others("`run` of `a.rs` and `taut x`"), ["run"]);
}
