//! The journal: the old value of each change, written to disk before the change is made.
//!
//! The format is JSON lines. The first line contains the target of the changes and the boot; each further line is a
//! change that is about to be made. A truncated line (full disk, power failure, kill) belongs to a change that was not
//! made; it is removed before the next line is added. Values set at run time do not survive a boot, so a journal of an
//! earlier boot is obsolete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use taut_sys::Locked;

use super::TuneError;
use super::root::Root;
use super::setting::{Group, Profile};
use super::step::Step;
use crate::private::readable_folder;

const FOLDER: &str = "/run/taut";
const FILE: &str = "/run/taut/tune.journal";

/// The header of the journal: the CPUs, the profile and the boot that the changes are for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalHeader {
    pub boot: String,
    pub cpus: String,
    pub profile: Profile,
}

/// An entry of the journal: a change that was about to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub setting: String,
    pub group: Group,
    pub step: Step,
    /// The value of the setting before the change.
    pub before: String,
}

/// The journal of this machine, locked by this process.
pub(super) struct Journal<'a> {
    root: &'a Root,
    _folder: Locked,
    pub head: Option<JournalHeader>,
    pub entries: Vec<Entry>,
}

/// Returns a text that identifies this boot.
pub(super) fn boot(root: &Root) -> String {
    let id = root.text("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default()
}

impl<'a> Journal<'a> {
    /// Opens and locks the journal, and removes a truncated last line. Fails with [`TuneError::Busy`] if another
    /// process has the journal open. A journal of an earlier boot is opened too; see [`Journal::is_stale`].
    pub fn open(root: &'a Root) -> Result<Self, TuneError> {
        let folder = root.path(FOLDER);
        let failed = |source| TuneError::Journal {
            path: root.path(FILE),
            source,
        };
        if let Some(above) = folder.parent() {
            fs::create_dir_all(above).map_err(failed)?;
        }
        readable_folder(&folder).map_err(failed)?;
        let folder = Locked::exclusive(File::open(&folder).map_err(failed)?);
        let folder = folder.map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => TuneError::Busy,
            _ => failed(e),
        })?;
        let (head, entries, whole) = parse(root)?;
        if let Some(bytes) = whole {
            let file = OpenOptions::new().write(true).open(root.path(FILE));
            let cut = file.and_then(|file| file.set_len(bytes));
            cut.map_err(failed)?;
        }
        Ok(Self {
            root,
            _folder: folder,
            head,
            entries,
        })
    }

    /// Returns true if the journal was written before the machine was last booted.
    pub fn is_stale(&self) -> bool {
        self.head
            .as_ref()
            .is_some_and(|head| head.boot != boot(self.root))
    }

    /// Starts a new journal with the given header.
    pub fn begin(&mut self, head: JournalHeader) -> io::Result<()> {
        let path = self.root.path(FILE);
        let mut file = File::create(&path)?;
        line(&mut file, &head)?;
        self.head = Some(head);
        self.entries.clear();
        Ok(())
    }

    /// Records a change that is about to be made. If the journal contains the change already, its first old value
    /// stays.
    pub fn note(&mut self, entry: Entry) -> io::Result<()> {
        if self.entries.iter().any(|noted| noted.step == entry.step) {
            return Ok(());
        }
        let mut file = OpenOptions::new().append(true).open(self.root.path(FILE))?;
        let before = file.metadata()?.len();
        if let Err(e) = line(&mut file, &entry) {
            // If the truncation fails too, the next process that opens the journal truncates the file.
            let _ = file.set_len(before);
            return Err(e);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Replaces the changes in the journal with `entries`.
    pub fn keep(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        let Some(head) = &self.head else {
            return Ok(());
        };
        let path = self.root.path(FILE);
        let new = path.with_extension("new");
        let mut file = File::create(&new)?;
        line(&mut file, head)?;
        for entry in &entries {
            line(&mut file, entry)?;
        }
        fs::rename(new, path)?;
        self.entries = entries;
        Ok(())
    }

    /// Removes the journal, since all values are restored.
    pub fn remove(self) -> io::Result<()> {
        match fs::remove_file(self.root.path(FILE)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

/// Reads the header and the entries of the journal below `root`; `None` and empty if there is no journal.
pub(super) fn read(root: &Root) -> Result<(Option<JournalHeader>, Vec<Entry>), TuneError> {
    parse(root).map(|(head, entries, _)| (head, entries))
}

/// The header and entries of a journal, and the total length of its complete lines, bytes, if a truncated line follows.
type Parsed = (Option<JournalHeader>, Vec<Entry>, Option<u64>);

fn parse(root: &Root) -> Result<Parsed, TuneError> {
    let path: PathBuf = root.path(FILE);
    let mut text = match fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok((None, Vec::new(), None)),
        Err(source) => return Err(TuneError::Journal { path, source }),
    };
    let whole = text.iter().rposition(|byte| *byte == b'\n');
    let whole = whole.map_or(0, |at| at + 1);
    let cut = (whole < text.len()).then_some(whole as u64);
    text.truncate(whole);
    let bad = |line, reason: serde_json::Error| TuneError::NotAJournal {
        path: root.path(FILE),
        line,
        reason: reason.to_string(),
    };
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').enumerate();
    let Some((_, head)) = lines.next() else {
        return Ok((None, Vec::new(), cut));
    };
    let head = serde_json::from_slice(head).map_err(|e| bad(1, e))?;
    let entries = lines.map(|(at, line)| serde_json::from_slice(line).map_err(|e| bad(at + 1, e)));
    Ok((Some(head), entries.collect::<Result<_, _>>()?, cut))
}

/// Writes one line, and returns after it is on the disk.
fn line(file: &mut File, what: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string(what)?;
    text.push('\n');
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
