//! The command's own help against docs/reference: every subcommand and option that it shows has its place there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const FOLDER: &str = "docs/reference";

/// What a command's help shows.
struct Help {
    subcommands: Vec<String>,
    options: Vec<String>,
}

fn help(path: &[String]) -> Help {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let output = command.args(path).arg("--help").output().unwrap();
    assert!(output.status.success(), "{path:?}: {output:?}");
    read_help(&String::from_utf8(output.stdout).unwrap())
}

/// Names stand at the beginnings of lines, what is said about them further in.
fn read_help(text: &str) -> Help {
    let after = text
        .split_once("\nCommands:\n")
        .map_or("", |(_, rest)| rest);
    let commands = after.lines().take_while(|line| !line.trim().is_empty());
    let names = commands.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let is_name = |line: &&str| {
        let indent = line.len() - line.trim_start().len();
        (1..=6).contains(&indent) && line.trim_start().starts_with('-')
    };
    let options = text.lines().filter(is_name).filter_map(|line| {
        let start = line.find("--")?;
        let long = line[start..].split(|c: char| !(c == '-' || c.is_ascii_alphanumeric()));
        long.into_iter().next().map(str::to_string)
    });
    Help {
        subcommands: names
            .filter(|name| *name != "help")
            .map(str::to_string)
            .collect(),
        options: options
            .filter(|name| name != "--help" && name != "--version")
            .collect(),
    }
}

/// The page's parts about each command by its first word, with the pages of the reference that they link to.
fn parts() -> BTreeMap<String, String> {
    let page = fs::read_to_string(format!("{FOLDER}/command.md")).unwrap();
    let mut parts: BTreeMap<String, String> = BTreeMap::new();
    for part in page.split("\n## taut ").skip(1) {
        let name = part.split_whitespace().next().unwrap();
        let text = parts.entry(name.to_string()).or_default();
        *text += part;
        for link in part.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let linked = Path::new(FOLDER).join(target);
            if target.ends_with(".md") && !target.contains("..") {
                let linked = fs::read_to_string(&linked);
                *text += &linked.unwrap_or_else(|e| panic!("{target}: {e}"));
            }
        }
    }
    parts
}

/// Whether the text has that word, and not only a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let goes_on = |c: char| c == '-' || c == '_' || c.is_ascii_alphanumeric();
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(goes_on) && !text[at + word.len()..].starts_with(goes_on)
    })
}

#[test]
fn every_subcommand_and_option_has_its_place_in_the_reference() {
    let parts = parts();
    let mut missing = Vec::new();
    let mut paths: Vec<Vec<String>> = vec![Vec::new()];
    let mut options = 0;
    while let Some(path) = paths.pop() {
        let shown = help(&path);
        let part = path.first().and_then(|name| parts.get(name));
        let has = |word: &str| part.is_some_and(|text| has_word(text, word));
        for option in &shown.options {
            options += 1;
            if !has(option) {
                missing.push(format!("taut {} {option}", path.join(" ")));
            }
        }
        for name in shown.subcommands {
            let is_there = match path.is_empty() {
                true => parts.contains_key(&name),
                false => has(&name),
            };
            if !is_there {
                missing.push(format!("taut {} {name}", path.join(" ")));
            }
            paths.push([path.clone(), vec![name]].concat());
        }
    }
    missing.sort();
    assert!(options > 100, "{options}");
    assert!(
        missing.is_empty(),
        "not in {FOLDER}/command.md: {missing:#?}"
    );
}

#[test]
fn names_are_read_where_they_stand() {
    let text = "Usage: x\n\nCommands:\n  one  Does --this\n  help  Print\n\nOptions:\n  -o, --out <DIR>\n          --no option\n      \
                --json  Print\n  -h, --help\n";
    let help = read_help(text);
    assert_eq!(help.subcommands, ["one"]);
    assert_eq!(help.options, ["--out", "--json"]);
    assert!(has_word("`--out DIR`", "--out") && !has_word("--output", "--out"));
}
