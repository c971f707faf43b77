//! The root of the files in which settings are read and written: the machine's own, or a synthetic tree in tests.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The folder that contains `/proc`, `/sys`, `/dev`, `/etc` and `/run`.
#[derive(Debug, Clone)]
pub struct Root {
    folder: PathBuf,
}

impl Root {
    /// Returns the root of this machine.
    #[must_use]
    pub fn machine() -> Self {
        Self::at(Path::new("/"))
    }

    /// Returns the tree below `folder`.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
        }
    }

    /// Returns true if the root is that of the running machine.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.folder == Path::new("/")
    }

    /// Returns the location of an absolute path below the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Returns the unchanged text of a file.
    pub(crate) fn raw(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the text of a file without leading and trailing white space; `None` if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(self.raw(path).ok()?.trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// Returns true if the file exists but this user may not read it.
    pub(crate) fn is_secret(&self, path: &str) -> bool {
        matches!(self.raw(path), Err(e) if e.kind() == ErrorKind::PermissionDenied)
    }

    /// Returns the names in a folder, with numbers in numerical order.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// Writes a setting in a single call, as the kernel requires.
    pub(crate) fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).open(self.path(path))?;
        if !self.is_machine() {
            file.set_len(0)?;
        }
        file.write_all(format!("{value}\n").as_bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Makes a synthetic file tree, in place of those of the kernel.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (TempDir, Root) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let root = Root::at(folder.path());
        (folder, root)
    }

    #[test]
    fn numeric_file_names_are_sorted_by_value() {
        let (_folder, root) = tree(&[("/proc/irq/10/a", ""), ("/proc/irq/9/a", "")]);
        assert_eq!(root.names("/proc/irq"), ["9", "10"]);
        assert!(root.names("/nothing").is_empty());
    }
}
