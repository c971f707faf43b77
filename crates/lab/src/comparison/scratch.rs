//! A folder for the sockets and the output of a device while it is measured.

use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) use taut_host::private::scratch as folder;

/// Where a device of ours notes when its core was taken away; gone when it is dropped.
#[derive(Debug)]
pub struct Notes {
    _folder: TempDir,
    path: PathBuf,
}

impl Notes {
    /// In a fresh folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> std::io::Result<Self> {
        let folder = folder()?;
        Ok(Self {
            path: folder.path().join("interruptions"),
            _folder: folder,
        })
    }

    /// The file, which the device makes.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the folders of processes that were killed. What cannot be removed (another user's) stays.
pub(crate) fn sweep_stale() {
    // Without the right to look for namespaces nothing of ours can have been left there.
    let _ = taut_host::Testbed::sweep_stale();
    sweep_stale_in(&std::env::temp_dir());
}

fn sweep_stale_in(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name
            .to_string_lossy()
            .strip_prefix("taut-")
            .and_then(|rest| {
                let (pid, _) = rest.split_once('-')?;
                pid.parse::<u32>().ok()
            });
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folders_of_dead_processes_go_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        let alive = format!("taut-{}-x", std::process::id());
        let names = ["taut-4294967295-x", &alive, "taut-bench-1", "other"];
        for name in names {
            std::fs::create_dir(parent.path().join(name)).unwrap();
        }
        sweep_stale_in(parent.path());
        let there = names.map(|name| parent.path().join(name).exists());
        assert_eq!(there, [false, true, true, true]);
    }
}
