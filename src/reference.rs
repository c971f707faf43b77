//! The tables of docs/reference that are made from code: `options.csv`, `subcommands.csv`, `settings.csv` of functions,
//! `tune.csv` of settings of the machine. `./run reference` writes them. A page links to a table; docs/tables.py
//! replaces the link by the table in the site and in the packages.

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

/// Returns a text on one line.
fn flat(text: &str) -> String {
    text.replace('\n', " ")
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

/// Returns the values that an argument accepts, if there are only a few.
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

/// Returns an argument as a row of `options.csv`, without the command.
fn row(argument: &clap::Arg) -> [String; 3] {
    let (default, help) = default_and_help(argument);
    let typed = format!("`{}`", typed(argument));
    [typed, default, flat(&help) + &choices(argument)]
}

/// Returns a CSV text with the line `heading` and the lines `rows`.
fn csv<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut lines = csv::Writer::from_writer(Vec::new());
    lines.write_record(heading).unwrap();
    for row in rows {
        lines.write_record(row).unwrap();
    }
    String::from_utf8(lines.into_inner().unwrap()).unwrap()
}

/// Returns `options.csv`: the arguments of each command.
fn options(all: &[Named]) -> String {
    let rows = all.iter().flat_map(|(path, command)| {
        shown_arguments(command).map(move |argument| {
            let [option, default, meaning] = row(argument);
            [path.clone(), option, default, meaning]
        })
    });
    csv(["Command", "Option", "Default", "Meaning"], rows)
}

/// Returns `subcommands.csv`: the subcommands of each command that has some.
fn subcommands(all: &[Named]) -> String {
    let rows = all.iter().flat_map(|(path, command)| {
        shown(command).map(move |below| {
            let about = about(below);
            [path.clone(), format!("`{}`", below.get_name()), about]
        })
    });
    csv(["Command", "Subcommand", "Does"], rows)
}

/// Returns `settings.csv`: the settings of each function.
fn settings() -> String {
    let rows = FUNCTIONS.0.iter().flat_map(|function| {
        function.settings.iter().map(|(keys, default, meaning)| {
            let keys: Vec<String> = keys.split(", ").map(|key| format!("`{key}`")).collect();
            let (name, default) = (function.name.to_string(), default.to_string());
            [name, keys.join(", "), default, flat(meaning)]
        })
    });
    csv(["Function", "Setting", "Default", "Meaning"], rows)
}

/// Returns `tune.csv`: what `taut tune explain` prints about each setting of the machine.
fn machine_settings() -> String {
    let rows = taut_host::tune::settings().flat_map(|setting| {
        let about = [
            ("Meaning", setting.what.to_owned()),
            ("Cost", setting.cost.to_owned()),
        ];
        let rows = about.into_iter().chain(taut_host::tune::rows(setting));
        rows.map(|(point, text)| {
            let (group, name) = (format!("{:?}", setting.group), setting.name.to_owned());
            [group, name, point.to_owned(), text]
        })
    });
    csv(["Group", "Setting", "Point", "Text"], rows)
}

fn about(command: &clap::Command) -> String {
    flat(
        &command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default(),
    )
}

/// Returns the Markdown table of all commands, with links to their pages.
fn index(command: &clap::Command) -> String {
    let mut table = "| Command | Does |\n|---|---|\n".to_string();
    for below in shown(command) {
        let (name, about) = (below.get_name(), about(below).replace('|', "\\|"));
        writeln!(table, "| [`{name}`](command/{name}.md) | {about} |").unwrap();
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

/// Compares a file of the reference with `text`, and writes it if an environment variable requests that. Returns true
/// if the file is current.
fn is_current(file: &Path, text: &str) -> bool {
    if fs::read_to_string(file).is_ok_and(|found| found == text) {
        return true;
    }
    let is_writing = std::env::var_os("TAUT_WRITE_REFERENCE").is_some();
    if is_writing {
        fs::write(file, text).unwrap();
    }
    is_writing
}

#[test]
fn the_reference_has_every_command_option_and_setting() {
    let root = crate::command();
    let mut all = vec![("taut".to_string(), root.clone())];
    commands(&root, "taut", &mut all);
    let folder = Path::new(FOLDER);
    let mut files = vec![
        (folder.join("options.csv"), options(&all)),
        (folder.join("subcommands.csv"), subcommands(&all[1..])),
        (folder.join("settings.csv"), settings()),
        (folder.join("tune.csv"), machine_settings()),
    ];
    let page = folder.join("command.md");
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- commands of taut -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /made -->\n").unwrap();
    let index = index(&root);
    let text = format!("{before}<!-- commands of taut -->\n{index}<!-- /made -->\n{after}");
    files.push((page, text));
    files.retain(|(file, text)| !is_current(file, text));
    let stale: Vec<PathBuf> = files.into_iter().map(|(file, _)| file).collect();
    assert!(stale.is_empty(), "`./run reference` writes: {stale:#?}");
}

#[test]
fn each_command_and_function_has_a_link_to_its_table() {
    let mut all = vec![];
    commands(&crate::command(), "taut", &mut all);
    let with_options = all
        .iter()
        .filter(|(_, command)| shown_arguments(command).next().is_some());
    let mut missing: Vec<String> = with_options
        .map(|(path, _)| format!("Options of {path}"))
        .collect();
    let functions = FUNCTIONS.0.iter().filter(|it| !it.settings.is_empty());
    missing.extend(functions.map(|it| format!("Settings of {}", it.name)));
    let mut files = Vec::new();
    pages(Path::new(FOLDER), &mut files);
    let text: String = files
        .iter()
        .map(|it| fs::read_to_string(it).unwrap())
        .collect();
    missing.retain(|name| {
        ![" beyond", "]("]
            .iter()
            .any(|end| text.contains(&format!("\n[{name}{end}")))
    });
    assert!(missing.is_empty(), "no page has a link for: {missing:#?}");
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
    let rows: Vec<[String; 3]> = shown_arguments(&command).map(row).collect();
    let want = [
        ["`CHAIN...`", "", "A file | more"],
        ["`--rate RATE`", "`1`", "Rate"],
        ["`--wait TIME`", "idle(2 s)", "Time; of one"],
        ["`--all`", "", "All"],
        ["`--kind KIND`", "", "Kind; one of `a`, `b`"],
    ];
    assert_eq!(rows, want);
}
