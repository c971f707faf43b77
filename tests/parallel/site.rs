//! The documentation as a website: its contents list every page, links lead to existing targets, and mdBook builds it.

use crate::support::program::{PATIENCE, Program, run};
use crate::support::{is_installed, scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

const CONTENTS: &str = "docs/SUMMARY.md";

/// Returns all pages below `folder`, as paths from the root of the repository.
fn pages(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.insert(path);
        }
    }
    found
}

/// Returns the lines of a page outside of code blocks.
fn text(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        is_code ^= fence;
        !is_code && !fence && !line.starts_with("    ")
    })
}

/// Returns the targets of a page's links to files in the repository.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text(page) {
        // Text in code spans is no link.
        let bare: String = line.split('`').step_by(2).collect();
        let targets = bare.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split([')', ' ']).next());
        let here = targets.filter(|it| !it.contains("://") && !it.starts_with("mailto:"));
        found.extend(here.map(str::to_string));
    }
    found
}

/// Returns the anchor of a heading, as GitHub and mdBook build it.
fn name_of(heading: &str) -> String {
    let letters = heading.trim().to_lowercase();
    letters
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// Returns the anchors of a page's headings; repeated anchors are numbered.
fn headings(page: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for line in text(page).filter(|line| line.starts_with('#')) {
        let name = name_of(line.trim_start_matches('#'));
        let before = times.entry(name.clone()).or_default();
        names.insert(match *before {
            0 => name,
            n => format!("{name}-{n}"),
        });
        *before += 1;
    }
    names
}

/// Returns a path without `..`, for comparisons.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn the_contents_name_every_page_once() {
    let mut left = pages(Path::new("docs"));
    left.remove(Path::new(CONTENTS));
    for link in links(&fs::read_to_string(CONTENTS).unwrap()) {
        let page = Path::new("docs").join(&link);
        assert!(
            left.remove(&page),
            "{link}: no page, or twice in {CONTENTS}"
        );
    }
    assert!(left.is_empty(), "not in {CONTENTS}: {left:?}");
}

/// Returns whether the target of a link in `file` exists, with its heading.
fn leads_somewhere(file: &Path, link: &str) -> bool {
    let (name, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match name {
        "" => file.to_path_buf(),
        name => plain(&file.with_file_name(name)),
    };
    match target.extension() {
        Some(ending) if ending == "md" && !heading.is_empty() => {
            fs::read_to_string(&target).is_ok_and(|text| headings(&text).contains(heading))
        }
        _ => target.exists(),
    }
}

/// Returns the tables that a page names: the CSV file of each, and the keys of the rows, none for all rows.
fn tables(page: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let source = fs::read_to_string(page).unwrap();
    let mut found = Vec::new();
    for line in text(&source).filter(|line| line.starts_with('[')) {
        let Some((words, file)) = line.split_once("](") else {
            continue;
        };
        let file = file.strip_suffix(".csv)");
        let Some(file) = file.filter(|it| !it.contains([')', ' '])) else {
            continue;
        };
        let keys = words.split_once(" of ").map(|(_, keys)| keys);
        let keys = keys.into_iter().flat_map(|it| it.split(" beyond "));
        let file = plain(&page.with_file_name(format!("{file}.csv")));
        found.push((file, keys.map(str::to_string).collect()));
    }
    found
}

#[test]
fn tables_have_the_rows_that_pages_name_and_no_others() {
    let mut named: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut whole = BTreeSet::new();
    for (file, keys) in pages(Path::new("docs")).iter().flat_map(|it| tables(it)) {
        if keys.is_empty() {
            whole.insert(file.clone());
        }
        named.entry(file).or_default().extend(keys);
    }
    assert!(named.len() > 10, "{named:?}");
    for (file, keys) in named {
        let mut stored = BTreeSet::new();
        for row in csv::Reader::from_path(&file).unwrap().records() {
            let row = row.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            stored.insert(row[0].to_string());
            let links = row.iter().flat_map(links);
            let lost: Vec<String> = links.filter(|it| !leads_somewhere(&file, it)).collect();
            assert!(lost.is_empty(), "{}: {lost:?}", file.display());
        }
        let is_complete = stored == keys || keys.is_empty() && whole.contains(&file);
        let differences: Vec<_> = stored.symmetric_difference(&keys).collect();
        assert!(is_complete, "{}: {differences:?}", file.display());
    }
}

#[test]
fn the_pages_of_packages_contain_their_tables() {
    let folder = scratch();
    run(Command::new("cp")
        .args(["-R", "docs", "examples"])
        .arg(folder.path()))
    .success();
    let docs = folder.path().join("docs");
    run(Command::new("docs/tables.py").arg(&docs)).success();
    for page in pages(&docs) {
        let left = tables(&page);
        assert!(left.is_empty(), "{}: {left:?}", page.display());
    }
    let page = fs::read_to_string(docs.join("reference/command/bench.md")).unwrap();
    for part in [
        "\n| `--search METHOD` | `mlr` | ",
        "\n### soak\n\nAs `taut bench throughput`, and:\n\n| Option |",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn every_documentation_link_has_an_existing_target() {
    let mut all = pages(Path::new("docs"));
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from));
    let (mut lost, mut seen) = (Vec::new(), 0);
    for page in &all {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text) {
            seen += 1;
            if !leads_somewhere(page, &link) {
                lost.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    assert!(seen > 500, "{seen}");
}

#[test]
fn links_and_headings_are_parsed_from_markdown() {
    let page = "# One `two`: three\n[a](b.md#c) and `[no](link)`\n```sh\n# no heading\n[no](link)\n```\n\
        ## One two three\n[x](https://x.example) ![y](y.svg \"title\")\n";
    assert_eq!(links(page), ["b.md#c", "y.svg"]);
    let names: Vec<String> = headings(page).into_iter().collect();
    assert_eq!(names, ["one-two-three", "one-two-three-1"]);
}

#[test]
fn the_site_has_every_page_and_a_search() {
    if !is_installed("mdbook") {
        return println!("skipped: needs mdbook (./run site)");
    }
    let folder = scratch();
    let mut command = Command::new("mdbook");
    command.args(["build", "--dest-dir"]).arg(folder.path());
    Program::start(&mut command)
        .finish_within(PATIENCE)
        .success();
    for page in pages(Path::new("docs")) {
        let page = page.strip_prefix("docs").unwrap();
        let made = match page.to_str().unwrap() {
            "README.md" => PathBuf::from("index.html"),
            "SUMMARY.md" => continue,
            _ => page.with_extension("html"),
        };
        assert!(folder.path().join(&made).is_file(), "{}", made.display());
    }
    let page = fs::read_to_string(folder.path().join("reference/command/forward.html")).unwrap();
    assert!(page.contains("<code>--in-kernel</code></td>"), "no options");
    let files = fs::read_dir(folder.path()).unwrap().flatten();
    let mut names = files.map(|it| it.file_name().to_string_lossy().into_owned());
    assert!(names.any(|it| it.starts_with("searchindex")));
}

#[test]
fn every_documentation_table_has_a_header_row() {
    let mut pages = pages(Path::new("docs"));
    pages.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(PathBuf::from));
    for page in pages {
        let source = fs::read_to_string(&page).unwrap();
        let lines: Vec<&str> = text(&source).collect();
        let tables = lines.split(|line| !line.starts_with('|'));
        for table in tables.filter(|table| !table.is_empty()) {
            let rule = table.get(1).is_some_and(|line| line.starts_with("|--"));
            assert!(rule, "{}: no head above {:?}", page.display(), table[0]);
        }
    }
}
