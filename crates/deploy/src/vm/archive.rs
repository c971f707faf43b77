//! The archive that a kernel unpacks into its initial file system: cpio, format "newc".
//!
//! Source: the kernel's "initramfs buffer format" (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::path::{Component, Path};

/// File types in a mode, as in stat(2): folder, regular file, and symbolic link.
const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive that is built file by file.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    files: u32,
}

impl Archive {
    /// Adds a file, and its parent folders. If two files have the same name, the later one replaces the earlier one.
    pub fn file(&mut self, path: &Path, permissions: u32, content: &[u8]) {
        self.add(path, FILE | permissions, content);
    }

    /// Adds a symbolic link to `target`, and the parent folders of the link.
    pub fn link(&mut self, path: &Path, target: &Path) {
        self.add(path, LINK | 0o777, target.as_os_str().as_encoded_bytes());
    }

    fn add(&mut self, path: &Path, mode: u32, content: &[u8]) {
        let parts = names(path);
        for depth in 1..parts.len() {
            let folder = parts[..depth].join("/");
            if self.folders.insert(folder.clone()) {
                self.entry(&folder, FOLDER | 0o755, &[]);
            }
        }
        self.entry(&parts.join("/"), mode, content);
    }

    /// Adds an empty folder.
    pub fn folder(&mut self, name: &str) {
        if self.folders.insert(name.to_string()) {
            self.entry(name, FOLDER | 0o755, &[]);
        }
    }

    /// Returns the whole archive. The kernel also accepts several archives, one after the other.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let links = 1 + u32::from(mode & FOLDER != 0);
        let name_bytes = name.len() as u32 + 1;
        // The format is limited to 4 GiB, which no file here approaches.
        let length = content.len() as u32;
        // The fields are inode, mode, user, group, links, time, length, device and special device (major, minor each),
        // name, checksum.
        let fields = [
            self.files, mode, 0, 0, links, 0, length, 0, 0, 0, 0, name_bytes, 0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the components of `path` below the root, for a program with the root as working folder.
fn names(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::ParentDir => drop(names.pop()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns name, mode and content of each entry.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            let (mode, length, name_bytes) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_bytes - 1].to_vec()).unwrap();
            let from = (110 + name_bytes).next_multiple_of(4);
            all.push((name, mode, bytes[from..from + length].to_vec()));
            bytes = &bytes[(from + length).next_multiple_of(4)..];
        }
        all
    }

    #[test]
    fn each_folder_is_archived_once_before_its_files_and_links() {
        let mut archive = Archive::default();
        archive.folder("proc");
        archive.file(Path::new("/lib64/a.so"), 0o755, b"first");
        archive.file(Path::new("lib64/deep/../b.so"), 0o644, b"");
        archive.file(Path::new("../chain.toml"), 0o600, b"x");
        archive.link(Path::new("lib64/c.so"), Path::new("/lib64/a.so"));
        let found = entries(&archive.finish());
        let shown: Vec<(&str, u32)> = found.iter().map(|(n, m, _)| (n.as_str(), *m)).collect();
        assert_eq!(
            shown,
            [
                ("proc", 0o40755),
                ("lib64", 0o40755),
                ("lib64/a.so", 0o100_755),
                ("lib64/b.so", 0o100_644),
                ("chain.toml", 0o100_600),
                ("lib64/c.so", 0o120_777),
                ("TRAILER!!!", 0),
            ]
        );
        assert_eq!(found[2].2, b"first");
    }
}
