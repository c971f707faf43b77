//! The documentation of settings as Markdown.

use super::setting::{Group, Setting};
use super::settings;

const INTRODUCTION: &str = "\
# Settings that `taut tune` knows

Each setting has its meaning, cost, commands and source. `taut tune audit --cpus CPUS` prints its state on this machine, and the commands of
`taut tune apply`; [Quieten a machine](../how-to/quieten-a-machine.md) says what to do about it. To undo a boot argument, remove it.
`taut tune explain NAME` prints one setting, `taut tune explain --all` this page.
";

/// Returns the page of all settings, `docs/reference/tune.md`, as Markdown.
#[must_use]
pub fn pages() -> String {
    let mut text = INTRODUCTION.to_owned();
    for group in Group::ALL {
        let name = group.to_string();
        text += &format!("\n## {}{}\n", name[..1].to_uppercase(), &name[1..]);
        for setting in settings().filter(|setting| setting.group == group) {
            text += &format!("\n##{}", page(setting));
        }
    }
    text
}

/// Returns the documentation of `setting`, as Markdown.
#[must_use]
pub fn page(setting: &Setting) -> String {
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
    let rows: String = rows
        .iter()
        .map(|(title, text)| format!("| {title} | {} |\n", text.replace('|', "\\|")))
        .collect();
    format!(
        "# {}\n\n{}\n\n{}\n\n| | |\n|---|---|\n{rows}",
        setting.name, setting.what, setting.cost
    )
}
