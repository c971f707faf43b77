//! The results folders below a folder: the index finds them, and reads each again when it has changed.

use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use taut_results::{InsidePath, has};

/// Files that identify a results folder; the first existing one is used.
const HEADS: [&str; 8] = [
    "state.json",
    "experiment.json",
    "bench.json",
    "io.json",
    "costs.json",
    "generators.json",
    "switch.json",
    "summary.json",
];
/// The deepest level of folders that is searched.
const DEEPEST: usize = 4;
/// The largest number of results folders that are listed.
const MOST_FOLDERS: usize = 100_000;
/// The maximum size of a manifest that is read, bytes.
const MOST_HEAD_BYTES: u64 = 16 << 20;
/// The maximum length of a command line in the list, characters.
const MOST_COMMAND: usize = 500;
/// Files that may contain a results folder's report; the first existing one is shown. Published folders have
/// `index.html`.
const REPORTS: [&str; 2] = ["report.html", "index.html"];
/// Time between two scans of the folders.
const LOOK: Duration = Duration::from_secs(2);

/// The entry of a results folder in the list.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Entry {
    /// Path relative to the folder that is served.
    pub name: String,
    /// The command that wrote the results, such as `bench rfc2544`.
    pub kind: String,
    /// The command line for the list, without the folder of its program, and shortened if it is long.
    pub command: String,
    pub title: String,
    /// Start time, RFC 3339, UTC.
    pub started: String,
    pub stage: String,
    /// Number of complete runs; `None` if the manifest has no such number. The field `planned` has the number of
    /// planned runs.
    pub done: Option<u64>,
    pub planned: Option<u64>,
    /// Number of claims by verdict.
    pub verdicts: BTreeMap<String, u64>,
    pub has_report: bool,
    /// True if the folder can be compared with others.
    pub is_experiment: bool,
    /// The error that makes the folder unreadable; `None` if it is readable.
    pub problem: Option<String>,
}

/// Modification times of a results folder's manifest, verdicts and reports when the index read them; `None` for a
/// missing file.
type Stamp = [Option<SystemTime>; 4];

/// All results folders below a folder.
#[derive(Debug)]
pub struct Index {
    dir: PathBuf,
    known: Mutex<HashMap<String, (Stamp, Entry)>>,
}

impl Index {
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_path_buf(),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, (Stamp, Entry)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.known().len()
    }

    /// Returns the path of the results folder with the given name, if it is in the list.
    pub fn path_of(&self, name: &str) -> Option<PathBuf> {
        self.known().contains_key(name).then(|| match name {
            "." => self.dir.clone(),
            name => self.dir.join(name),
        })
    }

    pub fn as_json(&self) -> String {
        let known = self.known();
        let mut entries: Vec<&Entry> = known.values().map(|(_, entry)| entry).collect();
        // The latest come first; those without a known start come last.
        entries.sort_by(|a, b| (&b.started, &a.name).cmp(&(&a.started, &b.name)));
        serde_json::to_string(&entries).unwrap_or_default()
    }

    /// Scans the folders again, and reads those that have changed.
    pub fn look(&self) {
        let mut found = Vec::new();
        look_below(&self.dir, String::new(), 0, &mut found);
        let mut known = self.known();
        let mut before = std::mem::take(&mut *known);
        // Requests wait while changed folders are read, which is short except for the first time.
        for (name, head) in found {
            let folder = match name.as_str() {
                "." => self.dir.clone(),
                name => self.dir.join(name),
            };
            let changed = |file: &str| {
                fs::symlink_metadata(folder.join(file))
                    .and_then(|it| it.modified())
                    .ok()
            };
            let stamp = [
                changed(head),
                changed("summary.json"),
                changed(REPORTS[0]),
                changed(REPORTS[1]),
            ];
            let entry = match before.remove(&name) {
                Some((same, entry)) if same == stamp => entry,
                _ => entry_of(&folder, &name, head),
            };
            known.insert(name, (stamp, entry));
        }
    }
}

/// Finds the results folders below a folder. Returns their names, each with the file that identifies the folder.
fn look_below(dir: &Path, name: String, level: usize, found: &mut Vec<(String, &'static str)>) {
    let is_there = |head: &&&str| fs::symlink_metadata(dir.join(head)).is_ok_and(|it| it.is_file());
    if let Some(head) = HEADS.iter().find(is_there) {
        let name = if name.is_empty() {
            ".".to_owned()
        } else {
            name
        };
        found.push((name, head));
        return;
    }
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    if level == DEEPEST {
        return;
    }
    for entry in entries.flatten() {
        let is_folder = entry.file_type().is_ok_and(|it| it.is_dir());
        let Some(own) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !is_folder || own.starts_with('.') || own.ends_with(".partial") {
            continue;
        }
        let name = if name.is_empty() {
            own
        } else {
            format!("{name}/{own}")
        };
        look_below(&entry.path(), name, level + 1, found);
        if found.len() >= MOST_FOLDERS {
            return;
        }
    }
}

/// Reads a JSON file of a results folder. It has to be a plain file of limited length, as a pipe would block the
/// reader.
pub fn read(folder: &Path, name: &str) -> Result<Value, String> {
    let name = InsidePath::new(name).map_err(|e| e.to_string())?;
    let text = name.read(folder, MOST_HEAD_BYTES);
    let text = text.map_err(|e| e.to_string())?;
    serde_json::from_slice(&text).map_err(|e| e.to_string())
}

/// Returns the name of a results folder's report; `None` if the folder has no report.
pub fn report_of(folder: &Path) -> Option<&'static str> {
    REPORTS.into_iter().find(|name| has(folder, name))
}

fn entry_of(folder: &Path, name: &str, head: &str) -> Entry {
    let mut entry = Entry {
        name: name.to_owned(),
        has_report: report_of(folder).is_some(),
        is_experiment: head == "state.json",
        ..Entry::default()
    };
    let value = match read(folder, head) {
        Ok(value) => value,
        Err(e) => {
            entry.problem = Some(format!("{head}: {e}"));
            return entry;
        }
    };
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    entry.title = text("title");
    entry.started = text("started");
    entry.stage = text("stage");
    entry.kind = kind_of(&text("command_line"));
    entry.command = command_of(&text("command_line"));
    entry.done = value["done"].as_u64();
    entry.planned = value["planned"].as_u64();
    if entry.is_experiment
        && let Ok(summary) = read(folder, "summary.json")
    {
        for claim in summary["verdicts"].as_array().into_iter().flatten() {
            let verdict = match claim["verdict"].as_str().unwrap_or("no-data") {
                // Older results write `reproduced` for any condition that is met.
                "reproduced" => "holds",
                "not-reproduced" => "fails",
                other => other,
            };
            let verdict = verdict.to_owned();
            *entry.verdicts.entry(verdict).or_default() += 1;
        }
    }
    entry
}

/// Returns the subcommand of a command line: its words up to the first option or file.
fn kind_of(command_line: &str) -> String {
    let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|it| it.is_ascii_lowercase());
    let words = command_line.split_whitespace().skip(1);
    words
        .take_while(is_word)
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Returns a command line without the folder of its program, shortened to [`MOST_COMMAND`] characters.
fn command_of(command_line: &str) -> String {
    let (program, arguments) = command_line.split_once(' ').unwrap_or((command_line, ""));
    let program = program.rsplit('/').next().unwrap_or(program);
    let whole = format!("{program} {arguments}");
    let mut command: String = whole.trim_end().chars().take(MOST_COMMAND).collect();
    if whole.trim_end().chars().nth(MOST_COMMAND).is_some() {
        command.push('…');
    }
    command
}

/// A file of a results folder.
#[derive(Debug, Serialize)]
pub struct Listed {
    pub name: String,
    pub bytes: u64,
}

/// Adds the plain files below `dir`, with names that begin with `below`; returns false if there are more than `most`.
pub fn files_below(dir: &Path, below: &Path, files: &mut Vec<Listed>, most: usize) -> bool {
    let Ok(entries) = fs::read_dir(dir.join(below)) else {
        return true;
    };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = below.join(entry.file_name());
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if !files_below(dir, &path, files, most) {
                return false;
            }
        } else if kind.is_file()
            && let Some(name) = path.to_str()
        {
            if files.len() == most {
                return false;
            }
            let bytes = entry.metadata().map_or(0, |it| it.len());
            let name = name.to_owned();
            files.push(Listed { name, bytes });
        }
    }
    true
}

/// A thread that scans the folders periodically until dropped.
#[derive(Debug)]
pub struct Watching {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    pub fn begin(index: &Arc<Index>) -> io::Result<Self> {
        let stop: Arc<AtomicBool> = Arc::default();
        let (index, stopped) = (Arc::clone(index), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("taut-serve".to_owned());
        let thread = thread.spawn(move || {
            loop {
                std::thread::park_timeout(LOOK);
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                index.look();
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_commands_omit_the_folder_of_the_program() {
        assert_eq!(
            command_of("/usr/bin/taut probe client /x"),
            "taut probe client /x"
        );
        assert_eq!(command_of("taut"), "taut");
        assert_eq!(command_of(""), "");
        let long = command_of(&format!("taut {}", "x".repeat(2 * MOST_COMMAND)));
        assert_eq!(long.chars().count(), MOST_COMMAND + 1);
        assert!(long.ends_with("x…"));
    }
}
