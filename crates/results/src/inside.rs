//! File names from untrusted sources, checked so that they cannot lead out of a folder. A results folder may come from
//! such a source, so every file name in it is resolved through [`InsidePath`], which rejects both names and links that
//! lead elsewhere.

use crate::error::{LONGEST, NotInside, ResultsError};
use crate::whole_file::write_whole;
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Maximum length of a part of a name, bytes: the limit of file systems.
const LONGEST_PART: usize = 255;

/// The name of a file or folder inside another folder: relative, without `.`, `..` and control characters, at most 1024
/// bytes long.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InsidePath(String);

impl InsidePath {
    /// Checks that a name is a relative path inside a folder, and returns it.
    ///
    /// # Errors
    /// The name leads out of the folder, or is not valid for files.
    pub fn new(name: &str) -> Result<Self, NotInside> {
        let good = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= LONGEST_PART;
        let whole = name.len() <= LONGEST && !name.chars().any(char::is_control);
        if whole && name.split('/').all(good) {
            return Ok(Self(name.to_owned()));
        }
        Err(NotInside::of(name))
    }

    /// Checks the name of a file or folder directly in the folder, not further below.
    ///
    /// # Errors
    /// [`InsidePath::new`] refuses the name, or it contains a `/`.
    pub fn one(name: &str) -> Result<Self, NotInside> {
        match name.contains('/') {
            true => Err(NotInside::of(name)),
            false => Self::new(name),
        }
    }

    /// Checks a path, which must be valid UTF-8.
    ///
    /// # Errors
    /// The errors of [`InsidePath::new`].
    pub fn of(path: &Path) -> Result<Self, NotInside> {
        let text = path.to_str();
        Self::new(text.ok_or_else(|| NotInside::of(&path.to_string_lossy()))?)
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns this name, a `/`, and `below`: the name of the entry `below` in the folder with this name.
    ///
    /// # Errors
    /// The joined name is too long.
    pub fn join(&self, below: &Self) -> Result<Self, NotInside> {
        Self::new(&format!("{self}/{below}"))
    }

    /// Returns the path of this name in `folder`, for messages and for files that only this program creates.
    pub fn in_folder(&self, folder: &Path) -> PathBuf {
        folder.join(&self.0)
    }

    /// Opens the plain file of this name in `folder` to read it. No part of the name may be a link.
    ///
    /// # Errors
    /// The file does not exist, or is not a plain file.
    pub fn open(&self, folder: &Path) -> io::Result<File> {
        // Opening a pipe without a writer would block.
        let file = self.walk(folder, OFlags::RDONLY | OFlags::NONBLOCK)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(io::Error::other("not a plain file")),
        }
    }

    /// Replaces the file of this name in `folder` atomically; parent folders are created. If the name is a link, the
    /// link itself is replaced, not its target.
    ///
    /// # Errors
    /// A part of the name is a link, or the file system returns an error.
    pub fn write(&self, folder: &Path, text: &[u8]) -> Result<(), ResultsError> {
        let path = self.in_folder(folder);
        if let Some(above) = self.above() {
            above.make_folder(folder).map_err(ResultsError::io(&path))?;
        }
        write_whole(&path, text)
    }

    /// Reads the plain file of this name in `folder`, of at most `most` bytes.
    ///
    /// # Errors
    /// The errors of [`InsidePath::open`], or the file is larger.
    pub fn read(&self, folder: &Path, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(folder)?.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Err(io::Error::other(format!(
                "larger than the {most} bytes that such a file may have"
            )));
        }
        Ok(bytes)
    }

    /// Returns whether there is a plain file of this name in `folder`, without a link on the path.
    pub fn is_file(&self, folder: &Path) -> bool {
        self.open(folder).is_ok()
    }

    /// Returns whether there is a folder of this name in `folder`, without a link on the path.
    pub fn is_folder(&self, folder: &Path) -> bool {
        self.walk(folder, OFlags::DIRECTORY).is_ok()
    }

    /// Creates a file of this name in `folder`; parent folders are created. The program must have created `folder`
    /// itself.
    ///
    /// # Errors
    /// The file exists already, or the file system returns an error.
    pub fn create(&self, folder: &Path) -> io::Result<File> {
        let path = self.in_folder(folder);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        File::create_new(path)
    }

    /// Returns the folder of this name in `folder`, which is created with its parents if it does not exist. No part of
    /// the name may be a link.
    ///
    /// # Errors
    /// The name belongs to something other than a folder, or the file system returns an error.
    pub fn make_folder(&self, folder: &Path) -> io::Result<PathBuf> {
        if let Some(above) = self.above() {
            above.make_folder(folder)?;
        }
        let path = self.in_folder(folder);
        match fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => self.walk(folder, OFlags::DIRECTORY).map(|_| path),
        }
    }

    /// Returns the name of the folder that contains this file or folder; `None` if this name has only one part.
    fn above(&self) -> Option<Self> {
        let (above, _) = self.0.rsplit_once('/')?;
        Some(Self(above.to_owned()))
    }

    /// Returns the files in the folder of this name and in its subfolders, with names relative to `folder`; none if the
    /// folder does not exist. Links, and files with unprintable names, are skipped.
    ///
    /// # Errors
    /// The folder cannot be read, or a part of the name is a link.
    pub fn files(&self, folder: &Path) -> io::Result<Vec<Self>> {
        match self.walk(folder, OFlags::DIRECTORY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let below = files_below(&self.in_folder(folder))?;
        Ok(below
            .iter()
            .filter_map(|file| self.join(&Self::of(file).ok()?).ok())
            .collect())
    }

    /// Opens one part of the path after another, so that a link in any part is detected.
    fn walk(&self, folder: &Path, last: OFlags) -> io::Result<OwnedFd> {
        let step = |at: &OwnedFd, part: &str, how: OFlags| {
            let how = how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            openat(at, part, how, Mode::empty()).map_err(|e| {
                let is_link = matches!(e, Errno::LOOP | Errno::NOTDIR)
                    && rustix::fs::readlinkat(at, part, Vec::new()).is_ok();
                if is_link {
                    io::Error::other(format!("`{part}` is a link: put the file itself there"))
                } else {
                    e.into()
                }
            })
        };
        let mut at = open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let (above, name) = self.0.rsplit_once('/').unwrap_or(("", &self.0));
        for part in above.split('/').filter(|part| !part.is_empty()) {
            at = step(&at, part, OFlags::DIRECTORY)?;
        }
        step(&at, name, last)
    }
}

impl TryFrom<String> for InsidePath {
    type Error = NotInside;

    fn try_from(name: String) -> Result<Self, NotInside> {
        Self::new(&name)
    }
}

impl From<InsidePath> for String {
    fn from(path: InsidePath) -> Self {
        path.0
    }
}

impl std::fmt::Display for InsidePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns every plain file below `folder`, as paths relative to it, sorted. No link is followed.
///
/// # Errors
/// A folder cannot be read.
pub fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(relative) = folders.pop() {
        for entry in fs::read_dir(folder.join(&relative))? {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_that_leave_the_folder_or_are_malformed_are_refused() {
        for name in ["a", "a/b.json", "...", "-x", "a b", "ä/ö"] {
            assert_eq!(InsidePath::new(name).unwrap().as_str(), name);
        }
        let long = "x".repeat(256);
        let deep = "x/".repeat(600) + "x";
        for name in [
            "",
            "/",
            "/a",
            "..",
            "a/..",
            "../a",
            "a/../b",
            ".",
            "./a",
            "a//b",
            "a/",
            "a\0",
            "a\nb",
            "\u{1b}[2J",
            "\u{9b}x",
            &long,
            &deep,
        ] {
            let refusal = InsidePath::new(name).unwrap_err().to_string();
            assert!(
                !refusal.contains(char::is_control) && refusal.len() < 300,
                "{refusal}"
            );
        }
    }

    #[test]
    fn only_plain_files_below_the_folder_are_opened() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("in");
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::write(folder.join("a/b/file"), "text").unwrap();
        fs::write(place.path().join("outside"), "secret").unwrap();
        symlink("../outside", folder.join("link")).unwrap();
        symlink("a", folder.join("way")).unwrap();
        let open = |name: &str| InsidePath::new(name).unwrap().read(&folder, 10);
        assert_eq!(open("a/b/file").unwrap(), b"text");
        for (name, part) in [
            ("link", "is a link"),
            ("way/b/file", "is a link"),
            ("a", "not a plain file"),
        ] {
            let refusal = open(name).unwrap_err().to_string();
            assert!(refusal.contains(part), "{name}: {refusal}");
        }
        assert_eq!(open("none").unwrap_err().kind(), io::ErrorKind::NotFound);
        let refusal = InsidePath::new("a/b/file")
            .unwrap()
            .read(&folder, 3)
            .unwrap_err();
        assert!(refusal.to_string().contains("larger than"), "{refusal}");
        // The folder itself may be reached by a link: its name comes from the user.
        symlink(&folder, place.path().join("results")).unwrap();
        assert!(
            InsidePath::new("a/b/file")
                .unwrap()
                .open(&place.path().join("results"))
                .is_ok()
        );
    }

    #[test]
    fn files_below_a_name_are_listed_relative_to_the_folder() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir_all(place.path().join("a/b")).unwrap();
        for name in ["a/b/one", "a/two", "a/odd\u{1}name"] {
            fs::write(place.path().join(name), "").unwrap();
        }
        symlink("/", place.path().join("a/root")).unwrap();
        let files = |name: &str| InsidePath::new(name).unwrap().files(place.path());
        let names: Vec<String> = files("a").unwrap().into_iter().map(String::from).collect();
        assert_eq!(names, ["a/b/one", "a/two"]);
        assert!(files("none").unwrap().is_empty());
        assert!(
            files("a/root")
                .unwrap_err()
                .to_string()
                .contains("is a link")
        );
    }
}
