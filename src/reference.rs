//! The tables of subcommands, options and functions' settings in docs/reference, compared with the command line and the
//! functions; `./run reference` writes the tables.

#![allow(clippy::unwrap_used)]

use crate::shown;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use taut_functions::FUNCTIONS;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference");

/// The path of a command as the user types it, and the command.
type Named = (String, clap::Command);

/// Collects all commands that help shows, including nested ones.
fn commands(command: &clap::Command, path: &str, found: &mut Vec<Named>) {
    for below in shown(command) {
        let path = format!("{path} {}", below.get_name());
        found.push((path.clone(), below.clone()));
        commands(below, &path, found);
    }
}

fn shown_arguments(command: &clap::Command) -> impl Iterator<Item = &clap::Arg> {
    let hidden = ["help", "version", "json-schema"];
    let all = command.get_arguments().filter(|it| !it.is_hide_set());
    all.filter(move |argument| !hidden.contains(&argument.get_id().as_str()))
}

/// Returns a text in the form of a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Returns an argument as the user types it: `--rate RATE`, `CHAIN...`.
fn typed(argument: &clap::Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let mut values: Vec<String> = names.iter().map(ToString::to_string).collect();
    if values.is_empty() {
        values.push(argument.get_id().as_str().to_uppercase());
    }
    let several = argument
        .get_num_args()
        .is_some_and(|count| count.max_values() > values.len());
    let values = values.join(" ") + if several { "..." } else { "" };
    match argument.get_long() {
        None => values,
        Some(long) if argument.get_action().takes_values() => format!("--{long} {values}"),
        Some(long) => format!("--{long}"),
    }
}

/// Returns the default of an argument, and its help without the default.
fn default_and_help(argument: &clap::Arg) -> (String, String) {
    let help = argument
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let defaults = argument.get_default_values();
    if argument.get_action().takes_values() && !defaults.is_empty() {
        let defaults: Vec<_> = defaults.iter().map(|it| it.to_string_lossy()).collect();
        let text = defaults.join(",");
        let cell = if text.is_empty() {
            text
        } else {
            format!("`{text}`")
        };
        return (cell, help);
    }
    let split = help.split_once(" (default: ").and_then(|(before, rest)| {
        let mut open = 1;
        let end = rest.find(|c| {
            open += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            open == 0
        })?;
        Some((
            rest[..end].to_string(),
            format!("{before}{}", &rest[end + 1..]),
        ))
    });
    split.unwrap_or((String::new(), help))
}

/// Returns the values that an argument may have, if there are only a few.
fn choices(argument: &clap::Arg) -> String {
    let values = argument.get_possible_values();
    if values.is_empty() || !argument.get_action().takes_values() {
        return String::new();
    }
    let names = values.iter().filter(|value| !value.is_hide_set());
    let names: Vec<_> = names
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    format!("; one of {}", names.join(", "))
}

/// Returns the table of a command's arguments, without those that `other` has with the same text.
fn options(command: &clap::Command, other: Option<&clap::Command>) -> String {
    let others: Vec<String> = other
        .iter()
        .flat_map(|it| shown_arguments(it).map(row))
        .collect();
    let mut table = String::new();
    for row in shown_arguments(command).map(row) {
        if others.contains(&row) {
            continue;
        }
        if table.is_empty() {
            table += "| Option | Default | Meaning |\n|---|---|---|\n";
        }
        table += &row;
    }
    if table.is_empty() {
        table += "None.\n";
    }
    table
}

fn row(argument: &clap::Arg) -> String {
    let (default, help) = default_and_help(argument);
    let (typed, help) = (cell(&typed(argument)), cell(&help));
    let choices = choices(argument);
    format!("| `{typed}` | {default} | {help}{choices} |\n")
}

/// Returns the table of a command's subcommands, with links to their pages.
fn subcommands(command: &clap::Command) -> String {
    let mut table = "| Command | Does |\n|---|---|\n".to_string();
    for below in shown(command) {
        let about = below
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let (name, about) = (below.get_name(), cell(&about));
        let page = format!("command/{name}.md");
        match command.get_name() == "taut" && Path::new(FOLDER).join(&page).exists() {
            true => writeln!(table, "| [`{name}`]({page}) | {about} |").unwrap(),
            false => writeln!(table, "| `{name}` | {about} |").unwrap(),
        }
    }
    table
}

/// Returns the table of a function's settings.
fn settings(name: &str) -> String {
    let mut table = "| Setting | Default | Meaning |\n|---|---|---|\n".to_string();
    for (keys, default, meaning) in FUNCTIONS.entry(name).unwrap().settings {
        let keys: Vec<String> = keys.split(", ").map(|key| format!("`{key}`")).collect();
        writeln!(
            table,
            "| {} | {default} | {} |",
            keys.join(", "),
            cell(meaning)
        )
        .unwrap();
    }
    table
}

/// Collects the pages of the reference, including those in nested folders.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
}

/// Returns a page with its tables replaced. `made` returns the table for the comment before it, such as `options of
/// taut bench loss beyond taut bench throughput`.
fn rewritten(page: &str, mut made: impl FnMut(&str) -> String) -> String {
    const END: &str = "<!-- /made -->";
    const KINDS: [&str; 3] = ["options of ", "commands of ", "settings of "];
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        text += line;
        text.push('\n');
        let marker = line
            .strip_prefix("<!-- ")
            .and_then(|line| line.strip_suffix(" -->"));
        if let Some(marker) = marker.filter(|it| KINDS.iter().any(|kind| it.starts_with(kind))) {
            lines.by_ref().find(|line| *line == END).unwrap();
            text += &made(marker);
            text += END;
            text.push('\n');
        }
    }
    text
}

#[test]
fn the_reference_has_every_command_option_and_setting() {
    let mut all = vec![("taut".to_string(), crate::command())];
    commands(&crate::command(), "taut", &mut all);
    let mut missing: Vec<String> = all
        .iter()
        .filter(|(_, command)| shown_arguments(command).next().is_some())
        .map(|(path, _)| format!("options of {path}"))
        .collect();
    let functions = FUNCTIONS.0.iter().filter(|it| !it.settings.is_empty());
    missing.extend(functions.map(|it| format!("settings of {}", it.name)));
    let (mut files, mut stale) = (Vec::new(), Vec::new());
    pages(Path::new(FOLDER), &mut files);
    for file in files {
        let page = fs::read_to_string(&file).unwrap();
        let text = rewritten(&page, |marker| {
            let (marker, beyond) = match marker.split_once(" beyond ") {
                Some((marker, other)) => (marker, Some(other)),
                None => (marker, None),
            };
            missing.retain(|it| it != marker);
            let (kind, path) = marker.split_once(" of ").unwrap();
            let find = |path: &str| {
                let found = all.iter().find(|(name, _)| name == path);
                &found
                    .unwrap_or_else(|| panic!("{}: {marker}", file.display()))
                    .1
            };
            match kind {
                "options" => options(find(path), beyond.map(find)),
                "settings" => settings(path),
                _ => subcommands(find(path)),
            }
        });
        if text != page {
            if std::env::var_os("TAUT_WRITE_REFERENCE").is_some() {
                fs::write(&file, text).unwrap();
            } else {
                stale.push(file);
            }
        }
    }
    assert!(
        missing.is_empty(),
        "no page has `<!-- ... -->` for: {missing:#?}"
    );
    assert!(stale.is_empty(), "`./run reference` writes: {stale:#?}");
}

#[test]
fn option_tables_list_each_options_syntax_default_and_meaning() {
    let command = clap::Command::new("x")
        .arg(clap::Arg::new("chain").num_args(0..).help("A file | more"))
        .arg(
            clap::Arg::new("rate")
                .long("rate")
                .default_value("1")
                .help("Rate"),
        )
        .arg(
            clap::Arg::new("wait")
                .long("wait")
                .value_name("TIME")
                .help("Time (default: idle(2 s)); of one"),
        )
        .arg(
            clap::Arg::new("all")
                .long("all")
                .action(clap::ArgAction::SetTrue)
                .help("All"),
        )
        .arg(
            clap::Arg::new("kind")
                .long("kind")
                .value_parser(["a", "b"])
                .help("Kind"),
        );
    let table = options(&command, None);
    let rows: Vec<&str> = table.lines().skip(2).collect();
    let want = [
        "| `CHAIN...` |  | A file \\| more |",
        "| `--rate RATE` | `1` | Rate |",
        "| `--wait TIME` | idle(2 s) | Time; of one |",
        "| `--all` |  | All |",
        "| `--kind KIND` |  | Kind; one of `a`, `b` |",
    ];
    assert_eq!(rows, want);
    let other = clap::Command::new("y").arg(clap::Arg::new("all").long("all").help("All"));
    let more = command.mut_arg("all", |it| it.action(clap::ArgAction::Set));
    assert_eq!(options(&more, Some(&more)), "None.\n");
    assert_eq!(options(&more, Some(&other)).lines().count(), 6);
}
