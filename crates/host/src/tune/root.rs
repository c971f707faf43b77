//! Root of the files in which settings are read and written: the machine's own, or a made-up tree of them in tests.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The folder below which `/proc`, `/sys`, `/dev`, `/etc` and `/run` lie.
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

    /// The tree below `folder`.
    #[must_use]
    pub fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
        }
    }

    /// Whether the root is that of the running machine.
    #[must_use]
    pub fn is_machine(&self) -> bool {
        self.folder == Path::new("/")
    }

    /// Returns where an absolute path lies.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text as it is.
    pub(crate) fn raw(&self, path: &str) -> io::Result<String> {
        let bytes = fs::read(self.path(path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's text without the space around it; none if it cannot be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        Some(self.raw(path).ok()?.trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// Whether the file is there and this user may not read it.
    pub(crate) fn is_secret(&self, path: &str) -> bool {
        matches!(self.raw(path), Err(e) if e.kind() == ErrorKind::PermissionDenied)
    }

    /// The names in a folder, numbers in their order.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        names
    }

    /// Writes a setting in one call, as the kernel wants it.
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

    /// A made-up tree.
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
    fn names_that_are_numbers_come_in_their_order() {
        let (_folder, root) = tree(&[("/proc/irq/10/a", ""), ("/proc/irq/9/a", "")]);
        assert_eq!(root.names("/proc/irq"), ["9", "10"]);
        assert!(root.names("/nothing").is_empty());
    }
}
