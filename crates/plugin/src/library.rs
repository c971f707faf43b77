//! A loaded library of the right version with all of its functions.

use crate::abi::{ABI, AbiFn, Calls};
use crate::file::{Kind, OURS, kind, machine_name};
use std::ffi::{CStr, CString, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Reason why a library cannot be used, in one line.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system reported.
        source: io::Error,
    },
    /// The file is not a library.
    #[error("{} is not a shared library: build one with cc -shared -fPIC -o FILE.so", .0.display())]
    NoLibrary(PathBuf),
    /// The library is for another machine.
    #[error("{} is for {theirs}, this taut for {ours}: build it for this machine", path.display())]
    OtherMachine {
        /// Path of the file.
        path: PathBuf,
        /// Processor that the library is for.
        theirs: String,
        /// Processor of this program.
        ours: String,
    },
    /// The loader rejects the library.
    #[error("cannot load {}: {reason}", path.display())]
    NotLoaded {
        /// Path of the file.
        path: PathBuf,
        /// Error that the dynamic loader reported.
        reason: String,
    },
    /// The library lacks a function that the interface requires.
    #[error("{} has no function {function}: taut_function.h lists the functions needed", path.display())]
    NoFunction {
        /// Path of the file.
        path: PathBuf,
        /// Name of the function.
        function: String,
    },
    /// The library has another version of the interface.
    #[error(
        "{} uses version {theirs} of the interface, but this taut uses {ABI}: rebuild it with the taut_function.h of this \
         taut",
        path.display()
    )]
    OtherVersion {
        /// Path of the file.
        path: PathBuf,
        /// Version of the interface that the library uses.
        theirs: u32,
    },
    /// The library rejects its settings.
    #[error("{}: {reason}", path.display())]
    NotMade {
        /// Path of the file.
        path: PathBuf,
        /// Reason in the library's words.
        reason: String,
    },
}

/// A loaded library, which stays loaded until the process ends.
#[derive(Debug, Clone)]
pub struct Library {
    pub(crate) path: PathBuf,
    pub(crate) calls: Calls,
}

impl Library {
    /// Checks that the file is a library for this machine, without running it.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or is not a library for this machine.
    pub fn check(path: &Path) -> Result<(), LibraryError> {
        let path = path.to_path_buf();
        match kind(&path) {
            Ok(Kind::Ours) => Ok(()),
            Ok(Kind::For(theirs)) => Err(LibraryError::OtherMachine {
                path,
                theirs,
                ours: OURS.map_or_else(|| std::env::consts::ARCH.to_string(), machine_name),
            }),
            Ok(Kind::Other) => Err(LibraryError::NoLibrary(path)),
            Err(source) => Err(LibraryError::Unreadable { path, source }),
        }
    }

    /// Loads the library into this process, which runs the library's initialisers.
    ///
    /// # Errors
    /// Returns an error if [`Library::check`] does, if the loader rejects the library, or if the library lacks a
    /// function or has another version of the interface.
    pub fn load(path: &Path) -> Result<Self, LibraryError> {
        Self::check(path)?;
        let not_loaded = |reason: String| LibraryError::NotLoaded {
            path: path.to_path_buf(),
            reason: reason.lines().collect::<Vec<_>>().join("; "),
        };
        // The loader would search the system's folders for a name without a slash, so the path gets a folder.
        let place = Path::new(".").join(path);
        let name = CString::new(place.as_os_str().as_bytes());
        let name = name.map_err(|e| not_loaded(e.to_string()))?;
        // SAFETY: loading runs the library's code. The user who names the library in a chain file is responsible for
        // that code, as for a program that the user starts (SECURITY.md).
        let loaded = unsafe { taut_sys::Library::load(&[&name]) }.map_err(not_loaded)?;
        let find = |function: &CStr| -> Result<NonNull<c_void>, LibraryError> {
            loaded
                .symbol(function)
                .map_err(|_| LibraryError::NoFunction {
                    path: path.to_path_buf(),
                    function: function.to_string_lossy().into_owned(),
                })
        };
        let abi = find(c"taut_function_abi")?;
        // SAFETY: a library that exports a function of this name follows the header, which declares the function
        // without parameters and with a number as result. The library stays loaded.
        let theirs = unsafe { std::mem::transmute::<*mut c_void, AbiFn>(abi.as_ptr())() };
        if theirs != ABI {
            return Err(LibraryError::OtherVersion {
                path: path.to_path_buf(),
                theirs,
            });
        }
        let [make, process, free] = [
            c"taut_function_make",
            c"taut_function_process",
            c"taut_function_free",
        ]
        .map(find);
        let (make, process, free) = (make?.as_ptr(), process?.as_ptr(), free?.as_ptr());
        // SAFETY: the library has this version of the interface, and the header declares the functions of these names
        // with these types.
        let calls = unsafe {
            Calls {
                make: std::mem::transmute::<*mut c_void, crate::abi::MakeFn>(make),
                process: std::mem::transmute::<*mut c_void, crate::abi::ProcessFn>(process),
                free: std::mem::transmute::<*mut c_void, crate::abi::FreeFn>(free),
            }
        };
        Ok(Self {
            path: path.to_path_buf(),
            calls,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_invalid_library_causes_a_one_line_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let mut elf = std::fs::read("/proc/self/exe").unwrap();
        elf.truncate(64);
        let mut other = elf.clone();
        other[16] = 3;
        let mut broken = other.clone();
        other[18] = 243;
        broken.truncate(40);
        for (path, said) in [
            (folder.path().join("none.so"), "cannot read "),
            (folder.path().to_path_buf(), "cannot read "),
            (file("text.so", b"text"), "is not a shared library"),
            (file("empty.so", b""), "is not a shared library"),
            (file("other.so", &other), "is for RISC-V, this taut for "),
            (file("broken.so", &broken), "cannot load "),
        ] {
            let error = Library::load(&path).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
