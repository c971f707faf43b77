//! `taut man`: writes a manual page for the command and one for each subcommand.

use crate::exit::Failure;
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::Path;

/// Start of a list of exit codes in a help text.
const CODES: &str = "Exit codes: ";

/// The closing help text of a command, by section of the manual page.
#[derive(Default)]
struct Closing {
    description: Vec<String>,
    examples: Vec<String>,
    exits: Vec<String>,
}

impl Closing {
    fn of(command: &Command) -> Self {
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let mut closing = Self::default();
        for paragraph in help.split("\n\n").filter(|it| !it.is_empty()) {
            match paragraph.split_once(':') {
                Some(("Example" | "Examples" | "Start with", rest)) => {
                    let lines = rest.strip_prefix('\n').map(str::to_owned);
                    let lines = lines.unwrap_or_else(|| format!("  {}", rest.trim()));
                    closing.examples.push(lines);
                }
                _ if paragraph.starts_with("Exit code") => closing.exits.push(paragraph.to_owned()),
                _ => closing.description.push(paragraph.to_owned()),
            }
        }
        closing
    }

    /// Returns the list of exit codes in a command's help; none if the command has no list of its own.
    fn codes(&self) -> Option<&str> {
        self.exits.iter().find_map(|it| it.strip_prefix(CODES))
    }
}

/// Writes the manual pages of all commands into a folder, which is created if it does not exist.
pub fn write_pages(folder: &Path) -> Result<(), Failure> {
    let mut command = crate::command().disable_help_subcommand(true);
    command.build();
    let closing = Closing::of(&command);
    let codes = closing.codes().unwrap_or_default();
    std::fs::create_dir_all(folder)
        .and_then(|()| write_page(&command, None, codes, folder))
        .map_err(|e| Failure::of_file(&e, format!("{}: {e}", folder.display())))
}

/// Writes the manual pages of a command and of its subcommands. `codes` are the exit codes of commands without a list
/// of their own.
fn write_page(
    command: &Command,
    parent: Option<&str>,
    codes: &str,
    folder: &Path,
) -> io::Result<()> {
    let name = command
        .get_display_name()
        .unwrap_or_else(|| command.get_name());
    for below in crate::shown(command) {
        write_page(below, Some(name), codes, folder)?;
    }
    let closing = Closing::of(command);
    let source = concat!("taut ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(with_repeated_values(command)).source(source);
    let mut page: Vec<u8> = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let mut more = Roff::new();
    for paragraph in &closing.description {
        more.control("PP", []);
        write_text(&mut more, paragraph);
    }
    more.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if crate::shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    closing_sections(&closing, parent, codes).to_writer(&mut page)?;
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    std::fs::write(folder.join(man.get_filename()), page)
}

/// Returns a command whose repeated positional arguments end in `...`, as pages print only the name of a value.
fn with_repeated_values(command: &Command) -> Command {
    command.clone().mut_args(|argument| {
        let name = argument.get_value_names().and_then(|names| names.first());
        let several = argument
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1);
        match name
            .filter(|_| several && argument.is_positional())
            .cloned()
        {
            Some(name) => argument.value_name(format!("{name}...")),
            None => argument,
        }
    })
}

/// Returns the sections about exit codes and examples, and the section that names the parent command.
fn closing_sections(closing: &Closing, parent: Option<&str>, codes: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in exit_codes(closing.codes().unwrap_or(codes)) {
        roff.control("TP", []);
        roff.text([bold(code)]);
        roff.text([roman(meaning)]);
    }
    for paragraph in closing.exits.iter().filter(|it| !it.starts_with(CODES)) {
        roff.control("PP", []);
        write_text(&mut roff, paragraph);
    }
    if !closing.examples.is_empty() {
        roff.control("SH", ["EXAMPLES"]);
    }
    for example in &closing.examples {
        write_text(&mut roff, example);
    }
    if let Some(parent) = parent {
        roff.control("SH", ["SEE ALSO"]);
        roff.text([bold(parent), roman("(1)")]);
    }
    roff
}

/// Splits a list such as "0 done, 2 bad input." into codes and meanings.
fn exit_codes(list: &str) -> Vec<(String, String)> {
    let list = list.replace('\n', " ");
    let mut codes: Vec<(String, String)> = Vec::new();
    for part in list.trim_end_matches('.').split(", ") {
        let (first, rest) = part.split_once(' ').unwrap_or((part, ""));
        if first.parse::<u8>().is_ok() {
            codes.push((first.to_owned(), rest.to_owned()));
        } else if let Some((_, meaning)) = codes.last_mut() {
            meaning.push_str(", ");
            meaning.push_str(part);
        }
    }
    codes
}

/// Writes a paragraph; indented lines are not filled.
fn write_text(roff: &mut Roff, text: &str) {
    let mut is_filled = true;
    for line in text.lines() {
        if line.starts_with("  ") == is_filled {
            is_filled = !is_filled;
            roff.control(if is_filled { "fi" } else { "nf" }, []);
        }
        roff.text([roman(line)]);
    }
    if !is_filled {
        roff.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Writes all pages, and returns those of the named commands.
    fn pages<const N: usize>(names: [&str; N]) -> [String; N] {
        let folder = tempfile::tempdir().unwrap();
        write_pages(folder.path()).unwrap_or_else(|e| panic!("{}", e.into_text()));
        assert!(std::fs::read_dir(folder.path()).unwrap().count() > 80);
        names.map(|name| {
            let path = folder.path().join(format!("{name}.1"));
            std::fs::read_to_string(path).unwrap()
        })
    }

    #[test]
    fn man_pages_name_the_version_and_the_accepted_arguments() {
        for page in pages(["taut-route-add", "taut-bearer-add"]) {
            let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
            assert!(
                title.contains(concat!("\"taut ", env!("CARGO_PKG_VERSION"))),
                "{title}"
            );
            assert!(page.contains("control"), "{page}");
            assert!(page.contains("..."), "{page}");
        }
    }

    #[test]
    fn man_pages_have_the_usual_sections() {
        let [command, forward, gate] = pages(["taut", "taut-forward", "taut-gate"]);
        for page in [&command, &forward, &gate] {
            let sections: Vec<&str> = page
                .lines()
                .filter_map(|it| it.strip_prefix(".SH "))
                .collect();
            for wanted in [
                "NAME",
                "SYNOPSIS",
                "DESCRIPTION",
                "OPTIONS",
                "\"EXIT STATUS\"",
                "EXAMPLES",
            ] {
                assert!(sections.contains(&wanted), "{wanted}: {sections:?}");
            }
            assert!(!sections.contains(&"EXTRA"), "{sections:?}");
        }
        assert!(forward.contains("bad input"), "{forward}");
        // The gate has a list of exit codes of its own.
        assert!(!gate.contains("bad input"), "{gate}");
        assert!(gate.contains("not worse"), "{gate}");
    }

    #[test]
    fn man_pages_list_each_exit_code_separately() {
        let codes = exit_codes("0 done, 3 no disk, no memory, 130\ninterrupted.");
        let wanted = [
            ("0", "done"),
            ("3", "no disk, no memory"),
            ("130", "interrupted"),
        ];
        assert_eq!(codes, wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
