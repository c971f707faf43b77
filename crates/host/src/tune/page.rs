//! What the documentation says of settings.

use super::setting::{Group, Setting};
use super::settings;

const INTRODUCTION: &str = "\
# Settings that `taut tune` knows

Of each setting: what it is, what it costs and why, how to see, change and undo it, and who says so. `taut tune audit`
says how each stands on this machine, and [Quieten a machine](../how-to/quieten-a-machine.md) what to do about it.
`taut tune explain NAME` prints one of them, `taut tune explain --all` this page.
";

/// The page of all settings, `docs/reference/tune.md`, as Markdown.
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

/// What the documentation says of `setting`, as Markdown.
#[must_use]
pub fn page(setting: &Setting) -> String {
    let or = |text: &str, otherwise: &str| match text {
        "" => otherwise.to_owned(),
        text => text.to_owned(),
    };
    let now = or(
        setting.by_hand,
        if setting.is_applied {
            "`taut tune apply` does it; `taut tune audit --cpus CPUS` prints the commands."
        } else {
            "Nothing at run time."
        },
    );
    let undo = match setting.is_applied {
        true => "`taut tune revert`",
        false if setting.by_hand.is_empty() && setting.boot.is_empty() => "There, as it was done.",
        false if setting.by_hand.is_empty() => "Take the argument out again.",
        false => "As said in brackets above.",
    };
    let (command, remark) = match setting.see.split_once(" (") {
        Some((command, remark)) => (command, format!(" ({remark}")),
        None => (setting.see, String::new()),
    };
    let mut rows = vec![
        ("See it", format!("`{command}`{remark}")),
        ("Change it now", now),
    ];
    for (title, text) in [
        ("Change it at boot", setting.boot),
        ("Change it below", setting.below),
    ] {
        if !text.is_empty() {
            rows.push((title, text.to_owned()));
        }
    }
    rows.push(("Undo it", undo.to_owned()));
    rows.push(("Source", setting.source.to_owned()));
    let profiles: Vec<String> = setting
        .profiles
        .iter()
        .map(|profile| format!("`{profile:?}`").to_lowercase())
        .collect();
    rows.push(("Matters in profiles", profiles.join(", ")));
    rows.push(("Group", format!("`{}`", setting.group)));
    let rows: String = rows
        .iter()
        .map(|(title, text)| format!("| {title} | {} |\n", text.replace('|', "\\|")))
        .collect();
    format!(
        "# {}\n\n{}\n\n{}\n\n| | |\n|---|---|\n{rows}",
        setting.name, setting.what, setting.cost
    )
}
