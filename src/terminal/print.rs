//! Printing to terminals and pipes: a closed pipe is no error.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::Write;
use std::path::Path;
use taut_engine::{Event, Report};
use taut_port::Link;

use crate::exit::Failure;

/// Prints a line on standard output immediately, with control sequences shown as text.
pub fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = out
        .write_all(whole_line(&text.to_string()).as_bytes())
        .and_then(|()| out.flush());
}

/// Prints an event as JSON.
pub fn report(report: &Report) {
    line(serde_json::to_string(report).unwrap_or_default());
}

/// Prints that the link of a port went up or down.
pub fn link(port: &str, link: &Link) {
    match link {
        Link::Up => note(format_args!("{port}: up")),
        Link::Down(why) => note(format_args!("{port}: down: {why}")),
    }
}

/// Prints a link change as JSON.
pub fn link_report(port: &str, link: &Link) {
    let down = match link {
        Link::Up => None,
        Link::Down(why) => Some(why.clone()),
    };
    let port = port.to_string();
    report(&Event::Link { port, down }.into());
}

/// Prints a note on standard error, after the program's name.
pub fn note(text: impl Display) {
    say(format_args!(
        "taut: {}",
        without_error_numbers(&text.to_string())
    ));
}

/// Returns a system error's text without its number.
fn without_error_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        match rest.strip_prefix(')') {
            Some(rest) if rest.len() + 1 < part.len() => plain += rest,
            _ => plain = plain + " (os error " + part,
        }
    }
    plain
}

/// Prints a line on standard error. It is a single write, so that lines of several programs on one terminal stay
/// intact.
pub fn say(text: impl Display) {
    let _ = std::io::stderr().write_all(whole_line(&text.to_string()).as_bytes());
}

fn whole_line(text: &str) -> String {
    let mut line = shown(text).into_owned();
    line.push('\n');
    line
}

/// Escapes control characters and those that change the writing direction, as JSON does. Names in untrusted results can
/// then neither hide nor forge output, and JSON keeps its meaning.
pub fn shown(text: &str) -> Cow<'_, str> {
    let commands = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(commands) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if commands(c) {
            let _ = write!(plain, "\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    Cow::Owned(plain)
}

/// Prints a table: rows below their headings.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let mut text = taut_figure::table::plain();
    text.set_header(head);
    for row in rows {
        text.add_row(row);
    }
    taut_figure::table::set_columns(&mut text, None);
    let width = taut_figure::table::terminal_width();
    line(taut_figure::table::text(text, &[], width));
}

/// Prints a value as one line of JSON.
pub fn json(value: &impl serde::Serialize) {
    line(serde_json::to_string(value).unwrap_or_default());
}

/// Prints the path of the report page, if there is one.
pub fn page(page: Option<&Path>) {
    if let Some(page) = page {
        line(format!("report: {}", page.display()));
    }
}

/// Prints the `summary.json` of a results folder.
pub fn summary(folder: &Path) -> Result<(), Failure> {
    let summary = taut_results::read(folder, "summary.json")?;
    line(String::from_utf8_lossy(&summary).trim_end());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_error_numbers_are_removed_from_messages() {
        let plain = |text| without_error_numbers(text);
        assert_eq!(
            plain("a: No such file (os error 2); b: Denied (os error 13)"),
            "a: No such file; b: Denied"
        );
        for other in ["", "a", "a (os error )", "a (os error x)", "a (os error 2"] {
            assert_eq!(plain(other), other);
        }
    }

    #[test]
    fn control_characters_are_escaped_before_printing() {
        assert_eq!(shown("a\tb\n\u{e4} \u{2013}"), "a\tb\n\u{e4} \u{2013}");
        assert_eq!(
            shown("\u{1b}[2J\rdone\u{9b}1m\u{202e}x\u{7}"),
            "\\u001b[2J\\u000ddone\\u009b1m\\u202ex\\u0007"
        );
        // A JSON reader gets the original text back from the escaped one.
        let json = serde_json::json!({ "name": "\u{9b}\u{202e}\u{1b}" });
        let printed = shown(&json.to_string()).into_owned();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&printed).ok(),
            Some(json)
        );
    }
}
