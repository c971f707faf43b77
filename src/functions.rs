//! `taut functions`: the functions that a chain can name, and their settings.

use crate::exit::Failure;
use crate::terminal::print;
use clap::builder::PossibleValuesParser;
use schemars::JsonSchema;
use serde::Serialize;
use taut_figure::table::{plain, set_columns, terminal_width, text};
use taut_function::Entry;
use taut_functions::FUNCTIONS;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  taut functions\n  taut functions nat\n  taut functions --json | jq -r '.[] | select(.in_kernel) | .name'"
)]
pub struct Arguments {
    /// Function whose settings are printed (default: a line about each function)
    #[arg(value_parser = PossibleValuesParser::new(FUNCTIONS.0.iter().map(|entry| entry.name)), hide_possible_values = true)]
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize, JsonSchema)]
pub struct Row {
    name: &'static str,
    summary: &'static str,
    class: &'static str,
    in_kernel: bool,
    settings: Vec<Described>,
}

#[derive(Serialize, JsonSchema)]
struct Described {
    keys: Vec<&'static str>,
    default: &'static str,
    meaning: &'static str,
}

impl Row {
    fn of(entry: &'static Entry) -> Self {
        let settings = entry.settings.iter();
        Self {
            name: entry.name,
            summary: entry.summary,
            class: entry.class.name(),
            in_kernel: entry.runs_in_kernel(),
            settings: settings
                .map(|(keys, default, meaning)| Described {
                    keys: keys.split(", ").collect(),
                    default,
                    meaning,
                })
                .collect(),
        }
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let all = FUNCTIONS.0.iter();
    let wanted = all.filter(|entry| arguments.name.as_deref().is_none_or(|it| it == entry.name));
    let rows: Vec<Row> = wanted.map(Row::of).collect();
    match (arguments.json, &arguments.name) {
        (true, _) => print::line(serde_json::to_string_pretty(&rows).unwrap_or_default()),
        (false, Some(_)) => rows.iter().for_each(show),
        (false, None) => list(&rows),
    }
    Ok(())
}

fn list(rows: &[Row]) {
    let mut table = plain();
    for row in rows {
        let place = if row.in_kernel { "kernel" } else { "" };
        table.add_row([row.name, place, row.summary]);
    }
    set_columns(&mut table, None);
    print::line(text(table, &[(1, "kernel")], terminal_width()).trim_end());
}

/// Prints the settings of a function: a line with key and default, and the meaning below it.
fn show(row: &Row) {
    let kernel = if row.in_kernel {
        ", also in the kernel"
    } else {
        ""
    };
    print::line(format!(
        "{}: {} ({}{kernel})",
        row.name, row.summary, row.class
    ));
    for setting in &row.settings {
        let keys = setting.keys.join(", ");
        print::line(format!("\n  {keys}  ({})", without_marks(setting.default)));
        let width = terminal_width().unwrap_or(100).max(40) - 6;
        for line in lines(&without_marks(setting.meaning), width) {
            print::line(format!("      {line}"));
        }
    }
}

/// Returns a text without Markdown's marks of words to be typed and of emphasis.
fn without_marks(text: &str) -> String {
    text.replace('`', "").replace("**", "")
}

/// Breaks a text into lines of at most `width` characters; a longer word has a line of its own.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_setting_descriptions_are_wrapped_at_spaces() {
        assert_eq!(lines("one two three", 7), ["one two", "three"]);
        assert_eq!(lines("abcdefgh ij", 4), ["abcdefgh", "ij"]);
        assert!(lines("", 10).is_empty());
    }

    #[test]
    fn keys_that_share_a_description_are_listed_separately() {
        let all = FUNCTIONS.0.iter().map(Row::of);
        let impair: Vec<Row> = all.filter(|row| row.name == "impair").collect();
        let keys: Vec<&str> = impair[0]
            .settings
            .iter()
            .flat_map(|it| it.keys.clone())
            .collect();
        assert!(
            keys.contains(&"loss") && keys.contains(&"corrupt_at"),
            "{keys:?}"
        );
    }
}
