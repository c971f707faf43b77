//! The files of a program that a virtual machine needs: the program itself and the libraries that it is linked to.

use crate::DeployError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the contents of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DeployError> {
    fs::read(path).map_err(|e| DeployError::system(format!("cannot read {}", path.display()), e))
}

/// Returns the libraries that a program or library is linked to, including the loader; none for a static program.
///
/// # Errors
/// `ldd` cannot be run.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>, DeployError> {
    libraries_of(&[program])
}

/// Returns the libraries that programs are linked to, including the loader.
///
/// # Errors
/// `ldd` cannot be run.
pub(super) fn libraries_of(programs: &[&Path]) -> Result<Vec<PathBuf>, DeployError> {
    let said = Command::new("ldd")
        .args(programs)
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| DeployError::system("cannot run ldd (package libc-bin)", e))?;
    Ok(libraries_in(&String::from_utf8_lossy(&said.stdout)))
}

/// Returns the paths in lines such as `libz.so.1 => /lib/libz.so.1 (0x7f)` and `/lib64/ld-linux-x86-64.so.2 (0x7f)`.
fn libraries_in(said: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let found = line.split("=>").last()?.trim();
        let path = found.split(" (").next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    // Of several programs, each has its own line first, without a tab.
    let lines = said.lines().filter(|line| line.starts_with('\t'));
    lines.filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_paths_are_parsed_from_ldd_output() {
        let said = "\tlinux-vdso.so.1 (0x00007efe63323000)\n\
                    \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007efe632d1000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007efe63325000)\n";
        assert_eq!(
            libraries_in(said),
            [
                Path::new("/lib/x86_64-linux-gnu/libz.so.1"),
                Path::new("/lib64/ld-linux-x86-64.so.2")
            ]
        );
        assert!(libraries_in("\tstatically linked\n").is_empty());
    }
}
