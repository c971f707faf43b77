//! A setting's page of the documentation.

use super::Setting;

/// The page of `setting` in `docs/reference/tune`, as Markdown.
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
    let rows: String = rows
        .iter()
        .map(|(title, text)| format!("| {title} | {} |\n", text.replace('|', "\\|")))
        .collect();
    format!(
        "# {}\n\n{}\n\n{}\n\n| | |\n|---|---|\n{rows}\nGroup `{}` of `taut tune`: [Quieten a machine](../../how-to/quieten-a-machine.md).\n",
        setting.name, setting.what, setting.cost, setting.group
    )
}
