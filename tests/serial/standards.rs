//! docs/reference/standards.csv compared with the sources: it has a line for every clause that the sources cite.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const TABLE: &str = "docs/reference/standards.csv";
const STATES: [&str; 3] = ["done", "otherwise", "not done"];

/// Cited clauses (section numbers) by standard, such as `RFC 2544`.
type Clauses = BTreeMap<String, BTreeSet<String>>;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Joins a source to one line, without line breaks and comment markers.
fn flat(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let marks = ["//!", "///", "//", "/*", "*"];
        let mark = marks.iter().find(|mark| line.starts_with(**mark));
        mark.map_or(line, |mark| line[mark.len()..].trim_start())
    });
    lines.collect::<Vec<_>>().join(" ")
}

/// Returns the longest prefix of `text` with characters that satisfy `is`.
fn leading(text: &str, is: impl Fn(char) -> bool) -> &str {
    &text[..text.find(|c| !is(c)).unwrap_or(text.len())]
}

/// Returns the standard that `text` begins with, in normal form, and the length of its name in the text.
fn standard(text: &str) -> Option<(String, usize)> {
    let kinds = [
        "RFC ",
        "TS ",
        "TST ",
        "IEEE 802.",
        "802.1",
        "FIPS ",
        "SP 800-",
        "draft-ietf-",
        "I.371",
    ];
    let kind = *kinds.iter().find(|kind| text.starts_with(**kind))?;
    let rest = &text[kind.len()..];
    let number = match kind {
        "draft-ietf-" => leading(rest, |c| {
            c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit()
        }),
        "802.1" | "IEEE 802." | "SP 800-" => leading(rest, |c| c.is_ascii_alphanumeric()),
        "TS " => leading(rest, |c| c == '.' || c.is_ascii_digit()),
        _ => leading(rest, |c| c.is_ascii_digit()),
    };
    let number = number.trim_end_matches(['.', '-']);
    let is_one = match kind {
        "I.371" => true,
        "TS " => number.len() == 6 && number.as_bytes()[2] == b'.',
        _ => !number.is_empty(),
    };
    let length = kind.len() + number.len();
    // The year of an edition is not part of the name.
    let year = leading(&text[length..], |c| c == '-' || c.is_ascii_digit());
    let edition = if kind == "IEEE 802." { year.len() } else { 0 };
    let name = text[..length].trim_start_matches("IEEE ");
    is_one.then(|| (name.to_string(), length + edition))
}

/// Returns the clause number at the start of `text`, such as 5.2.1-3, 2(B) or 26, and its length in the text. If
/// `may_be_letter`, a capital letter also counts as a number.
fn number(text: &str, may_be_letter: bool) -> Option<(String, usize)> {
    let digits = leading(text, |c| c == '.' || c == '-' || c.is_ascii_digit());
    let digits = digits.trim_end_matches(['.', '-']);
    let rest = &text[digits.len()..];
    if digits.starts_with(|c: char| c.is_ascii_digit()) {
        if rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let part = rest.trim_start();
        let length = match part.as_bytes() {
            [b'(', b'A'..=b'Z', b')', ..] => text.len() - part.len() + 3,
            _ => digits.len(),
        };
        return Some((text[..length].replace(' ', ""), length));
    }
    let letter = text
        .chars()
        .next()
        .filter(|c| may_be_letter && c.is_ascii_uppercase())?;
    let ends = !text[1..].starts_with(|c: char| c.is_ascii_alphanumeric());
    ends.then(|| (letter.to_string(), 1))
}

/// Returns the clauses that `text` begins with, in the form of the page's lines, and their length in the text.
fn clauses(text: &str) -> Option<(Vec<String>, usize)> {
    if let Some(rest) = text.strip_prefix("REQ-") {
        let digits = leading(rest, |c| c.is_ascii_digit());
        return (!digits.is_empty()).then(|| (vec![format!("REQ-{digits}")], 4 + digits.len()));
    }
    let words = [
        ("sections ", ""),
        ("section ", ""),
        ("clause ", ""),
        ("appendix ", "appendix "),
        ("annex ", "annex "),
        ("table ", "table "),
        ("figure ", "figure "),
        ("equation ", "equation "),
    ];
    let (word, named) = words.iter().find(|(word, _)| text.starts_with(word))?;
    let may_be_letter = matches!(*word, "appendix " | "annex ");
    let mut at = word.len();
    let mut found = Vec::new();
    while let Some((clause, length)) = number(&text[at..], may_be_letter) {
        found.push(format!("{named}{clause}"));
        at += length;
        let joins = [", and ", ", ", " and ", " to "];
        let join = joins.iter().find(|join| {
            let rest = text[at..].strip_prefix(**join);
            rest.is_some_and(|rest| number(rest, may_be_letter).is_some())
        });
        match join {
            Some(join) => at += join.len(),
            None => break,
        }
    }
    (!found.is_empty()).then_some((found, at))
}

/// Collects the citations of a source. A clause without a standard, in brackets or as "its section", belongs to the
/// last standard named.
fn cited(text: &str, all: &mut Clauses) {
    let text = flat(text);
    let mut last: Option<(String, usize)> = None;
    let mut behind = 0;
    for (at, c) in text.char_indices() {
        let before = &text[..at];
        let is_inside =
            before.ends_with(|c: char| c == '_' || c == '.' || c.is_ascii_alphanumeric());
        if at < behind || is_inside || !"RTI8FSdsctafe".contains(c) {
            continue;
        }
        if let Some((name, length)) = standard(&text[at..]) {
            behind = at + length;
            all.entry(name.clone()).or_default();
            last = Some((name, behind));
        } else if let Some((found, length)) = clauses(&text[at..]) {
            behind = at + length;
            let Some((name, end)) = &mut last else {
                continue;
            };
            let between = before[*end..].trim_matches([' ', ',']);
            let is_next = matches!(between, "" | "and" | "'s");
            if is_next || ["(", "its ", " as "].iter().any(|it| before.ends_with(it)) {
                all.entry(name.clone()).or_default().extend(found);
            }
            if is_next {
                *end = behind;
            }
        }
    }
}

/// Returns the normal forms of the standards in a cell such as `RFC 2992 and RFC 3549`.
fn standards(cell: &str) -> impl Iterator<Item = String> {
    let parts = cell.split(" and ").flat_map(|part| part.split(", "));
    parts.filter_map(|part| {
        let mut starts = part.char_indices();
        starts.find_map(|(at, _)| Some(standard(&part[at..])?.0))
    })
}

/// Returns the table's standards and clauses, and the errors in its lines.
fn table() -> (Clauses, Vec<String>) {
    let (mut all, mut wrong) = (Clauses::new(), Vec::new());
    for line in csv::Reader::from_path(TABLE).unwrap().records() {
        let line = line.unwrap();
        let cells: Vec<&str> = line.iter().collect();
        let [_, names, clause, state, _, places] = cells[..] else {
            panic!("{line:?}");
        };
        if !STATES.contains(&state) {
            wrong.push(format!("{names} {clause}: \"{state}\" is no state"));
        }
        let files: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        if files.is_empty() && state != "not done" {
            wrong.push(format!("{names} {clause}: where?"));
        }
        let gone = files.iter().filter(|file| !Path::new(file).exists());
        wrong.extend(gone.map(|file| format!("{names} {clause}: there is no {file}")));
        for name in standards(names) {
            all.entry(name).or_default().insert(clause.to_string());
        }
    }
    (all, wrong)
}

#[test]
fn the_standards_table_lists_every_clause_cited_in_code() {
    let mut files = Vec::new();
    for folder in ["crates", "src"] {
        sources(Path::new(folder), &mut files);
    }
    let mut all = Clauses::new();
    for file in files {
        let ending = file.extension().and_then(|it| it.to_str());
        if matches!(ending, Some("rs" | "c" | "h" | "html")) {
            cited(&fs::read_to_string(&file).unwrap(), &mut all);
        }
    }
    assert!(all.len() > 40, "{all:?}");
    let (listed, mut wrong) = table();
    for (name, clauses) in &all {
        match listed.get(name) {
            None => wrong.push(format!("{name} has no line")),
            Some(lines) => {
                let missing = clauses.difference(lines);
                wrong.extend(missing.map(|clause| format!("{name} {clause} has no line")));
            }
        }
    }
    assert!(wrong.is_empty(), "{TABLE}: {wrong:#?}");
}

#[test]
fn clauses_are_parsed_from_citations_in_comments() {
    let text = "//! As RFC 2544\n//! section 26.4 has it (its section 9, 3GPP TS 29.281 sections 5.1, 5.2 to 5.4 and figure 5.2.1-3).\n\
                /// (IEEE 802.1D-2004, table 7-5.) 802.1Q; Somebody 2021, section 7. RFC 1071, section 2 (B). It is 4 (a).\n\
                /* draft-ietf-x-y-15 (appendix A). RFC 6888 REQ-3. (section 8.2) */";
    let mut found = Clauses::new();
    cited(text, &mut found);
    let found: Vec<String> = found
        .into_iter()
        .map(|(name, clauses)| format!("{name}: {}", Vec::from_iter(clauses).join(", ")))
        .collect();
    let wanted = [
        "802.1D: table 7-5",
        "802.1Q: ",
        "RFC 1071: 2(B)",
        "RFC 2544: 26.4, 9",
        "RFC 6888: 8.2, REQ-3",
        "TS 29.281: 5.1, 5.2, 5.4, figure 5.2.1-3",
        "draft-ietf-x-y-15: appendix A",
    ];
    assert_eq!(found, wanted);
}
