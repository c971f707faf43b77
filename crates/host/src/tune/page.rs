//! The documentation of settings as Markdown.

use super::setting::{Group, Setting};
use super::settings;

const INTRODUCTION: &str = "\
# Settings that `taut tune` knows

Each setting has its meaning, cost, commands and source. `taut tune audit --cpus CPUS` prints its state on this machine, and the commands of
`taut tune apply`. To undo a boot argument, remove it.
";

/// Returns the documentation of all settings, as Markdown.
#[must_use]
pub fn pages() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in Group::ALL {
        text += &format!("\n## {group:?}\n");
        for setting in settings().filter(|setting| setting.group == group) {
            text += &format!("\n##{}", page(setting));
        }
    }
    text
}

/// Returns how to see and change `setting`, its source and its profiles, each with a title.
#[must_use]
pub fn rows(setting: &Setting) -> Vec<(&'static str, String)> {
    let now = match setting.is_applied {
        true if setting.by_hand.is_empty() => "`taut tune apply` (back: `taut tune revert`)",
        _ => setting.by_hand,
    };
    let (command, remark) = match setting.see.split_once(" (") {
        Some((command, remark)) => (command, format!(" ({remark}")),
        None => (setting.see, String::new()),
    };
    let mut rows = vec![("Show", format!("`{command}`{remark}"))];
    for (title, text) in [
        ("Now", now),
        ("At boot", setting.boot),
        ("Host or BIOS", setting.below),
    ] {
        if !text.is_empty() {
            rows.push((title, text.to_owned()));
        }
    }
    rows.push(("Source", setting.source.to_owned()));
    let profiles: Vec<String> = setting
        .profiles
        .iter()
        .map(|profile| format!("`{profile:?}`").to_lowercase())
        .collect();
    rows.push(("Profiles", profiles.join(", ")));
    rows
}

/// Returns the documentation of `setting`, as Markdown.
#[must_use]
pub fn page(setting: &Setting) -> String {
    let rows: String = rows(setting)
        .iter()
        .map(|(title, text)| format!("| {title} | {} |\n", text.replace('|', "\\|")))
        .collect();
    format!(
        "# {}\n\n{}\n\n{}\n\n| | |\n|---|---|\n{rows}",
        setting.name, setting.what, setting.cost
    )
}
