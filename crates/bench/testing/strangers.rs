//! A test of malicious results folders. Each file of a report is replaced by a link to the outside, or by a file that
//! blocks its reader. The test checks that nothing outside is read, created or replaced, and that nothing blocks.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;
use taut_results::files_below;

/// Writes the report of a folder, and returns the path of its page.
type Write<E> = fn(&Path) -> Result<PathBuf, E>;

/// The folders that reports write.
const WRITTEN: [&str; 2] = ["figures", "models"];

/// Writes the reports of copies of the results folder `folder`, and checks their effects. In each copy, one file or
/// folder is replaced by a link to the outside, or one file by a special file that would block its reader. `write`
/// writes the report of a folder, and returns the path of its page.
pub(crate) fn check<E: Display + 'static>(folder: &Path, write: Write<E>) {
    let shown = |place: &Place| shown(place, write);
    let mut files = files_below(folder).unwrap();
    let is_written = |file: &PathBuf| {
        WRITTEN.iter().any(|it| file.starts_with(it)) || file.as_path() == Path::new("report.html")
    };
    files.retain(|file| !is_written(file));
    let honest = shown(&Place::of(folder)).unwrap();
    let is_harmless = |place: &Place, what: &str| place.is_harmless(shown, &honest, what);
    // One file of each kind is tested, because files of one kind are read in the same way. Their names differ only in
    // digits, and their folders are equally deep.
    let kind = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy();
        let name: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
        (file.components().count(), name)
    };
    let kinds: BTreeMap<_, _> = files.iter().rev().map(|it| (kind(it), it)).collect();
    let waits = ["pipe", "/dev/zero", "/proc/self/fd/0"];
    for (file, waits) in kinds.values().copied().zip(waits.iter().cycle()) {
        for trap in [*waits, "outside"] {
            let place = Place::of(folder);
            let name = place.inside.join(file);
            match trap {
                "pipe" => {
                    fs::remove_file(&name).unwrap();
                    assert!(
                        Command::new("mkfifo")
                            .arg(&name)
                            .status()
                            .unwrap()
                            .success()
                    );
                }
                "outside" => place.put_outside(file),
                device => {
                    fs::remove_file(&name).unwrap();
                    symlink(device, &name).unwrap();
                }
            }
            is_harmless(&place, &format!("{} as {trap}", file.display()));
        }
    }
    let above = |file: &&PathBuf| {
        file.ancestors()
            .skip(1)
            .map(Path::to_owned)
            .collect::<Vec<_>>()
    };
    let folders = kinds.values().flat_map(above);
    let folders: BTreeMap<usize, PathBuf> =
        folders.map(|it| (it.components().count(), it)).collect();
    for below in folders.values().filter(|it| !it.as_os_str().is_empty()) {
        let place = Place::of(folder);
        place.put_outside(below);
        is_harmless(&place, &format!("{} outside", below.display()));
    }
    for written in WRITTEN {
        let place = Place::of(folder);
        let _ = fs::remove_dir_all(place.inside.join(written));
        symlink(place.outside.path(), place.inside.join(written)).unwrap();
        let before = place.contents();
        let _ = shown(&place);
        assert_eq!(place.contents(), before, "{written} outside");
    }
}

/// A copy of a results folder, and a folder outside of it.
struct Place {
    _folder: tempfile::TempDir,
    inside: PathBuf,
    outside: tempfile::TempDir,
}

impl Place {
    fn of(folder: &Path) -> Self {
        let at = tempfile::tempdir().unwrap();
        let inside = at.path().join("in");
        let copied = Command::new("cp")
            .arg("-r")
            .arg(folder)
            .arg(&inside)
            .status();
        assert!(copied.unwrap().success());
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "do not look").unwrap();
        Self {
            _folder: at,
            inside,
            outside,
        }
    }

    fn put_outside(&self, part: &Path) {
        let (from, to) = (self.inside.join(part), self.outside.path().join("moved"));
        let moved = Command::new("mv").args([&from, &to]).status();
        assert!(moved.unwrap().success());
        symlink(to, from).unwrap();
    }

    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let outside = self.outside.path();
        let files = files_below(outside).unwrap();
        let read = |file: PathBuf| (file.clone(), fs::read(outside.join(file)).unwrap());
        files.into_iter().map(read).collect()
    }

    fn is_harmless(
        &self,
        shown: impl Fn(&Self) -> Result<String, String>,
        honest: &str,
        what: &str,
    ) {
        let before = self.contents();
        let page = shown(self);
        // The page must differ from that of the original folder: the report mentions the missing file, and reads no
        // file outside the folder.
        assert_ne!(page.as_deref(), Ok(honest), "{what}");
        assert_eq!(self.contents(), before, "{what}");
    }
}

/// Returns the page of the report, or the error.
fn shown<E: Display + 'static>(place: &Place, write: Write<E>) -> Result<String, String> {
    let (tell, told) = channel();
    let dir = place.inside.clone();
    std::thread::spawn(move || {
        let page = write(&dir).map_err(|e| e.to_string());
        let page = page.and_then(|it| fs::read_to_string(it).map_err(|e| e.to_string()));
        let _ = tell.send(page);
    });
    told.recv_timeout(Duration::from_secs(120))
        .expect("it hangs")
}
