//! The folder of a ring on disk and the names of its files. Symbolic links in the folder are not followed.

use super::DiskError;
use crate::compression;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fmt;
use std::fs::{DirBuilder, File, metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use taut_sys::Locked;

/// Mode bits of a file by which users other than its owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Mode bit of a folder by which only the owner of an entry can rename or remove it.
const STICKY: u32 = 0o1000;

/// Suffix of the file name of a segment, followed by [`compression::ENDING`] if the segment is compressed. The index of
/// the segment has a corresponding suffix.
const SEGMENT: &str = ".pcapng";
const INDEX: &str = ".index";
/// Suffix of the file name of an index that is incomplete.
const NEW_INDEX: &str = ".index.new";

/// The name of a segment: its number in the ring, the time of its first packet in nanoseconds since 1970, and whether
/// it is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) number: u64,
    pub(super) first_ns: u64,
    pub(super) zstd: bool,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012}-{:020}", self.number, self.first_ns)
    }
}

impl Name {
    fn parse(text: &str) -> Option<Self> {
        let (number, first_ns) = text.split_once('-')?;
        let name = Self {
            number: number.parse().ok()?,
            first_ns: first_ns.parse().ok()?,
            zstd: false,
        };
        // A name in any other spelling than that of this program is not accepted.
        (name.to_string() == text).then_some(name)
    }

    /// Parses the name of a segment file; none if the name has another format.
    fn of_segment(text: &str) -> Option<Self> {
        let (text, zstd) = without_zstd(text);
        let name = Self::parse(text.strip_suffix(SEGMENT)?)?;
        Some(Self { zstd, ..name })
    }

    /// Parses the name of an index file with the suffix `ending`; none if the name has another format.
    fn of_index(text: &str, ending: &str) -> Option<Self> {
        let (text, zstd) = without_zstd(text.strip_suffix(ending)?);
        Some(Self {
            zstd,
            ..Self::parse(text)?
        })
    }

    fn zstd(self) -> &'static str {
        if self.zstd { compression::ENDING } else { "" }
    }

    pub(super) fn segment(self) -> String {
        format!("{self}{SEGMENT}{}", self.zstd())
    }

    pub(super) fn index(self) -> String {
        format!("{self}{}{INDEX}", self.zstd())
    }

    fn new_index(self) -> String {
        format!("{self}{}{NEW_INDEX}", self.zstd())
    }
}

/// Returns a file name without the suffix of compressed files, and true if the name had that suffix.
fn without_zstd(text: &str) -> (&str, bool) {
    match text.strip_suffix(compression::ENDING) {
        Some(text) => (text, true),
        None => (text, false),
    }
}

/// An open folder of a ring on disk. File names are looked up in this folder even after its path has changed.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    /// Lock that excludes other writers; none for readers.
    _lock: Option<Locked<OwnedFd>>,
}

impl Folder {
    /// Opens a folder for reading.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn look(path: &Path) -> Result<Self, DiskError> {
        let failed = |e: Errno| DiskError::folder(path, e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: openat(CWD, path, flags, Mode::empty()).map_err(failed)?,
            path: path.to_owned(),
            _lock: None,
        })
    }

    /// Opens a folder for writing, exclusively for this process. This user has to own the folder. With `make`, the
    /// folder is created if it does not exist.
    ///
    /// # Errors
    /// Returns the error of the system, or an error if another user owns the folder or another process writes into it.
    pub(super) fn take(path: &Path, make: bool) -> Result<Self, DiskError> {
        let failed = |e: io::Error| DiskError::folder(path, e);
        if make {
            match DirBuilder::new().mode(0o700).create(path) {
                Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(e)),
                _ => {}
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(failed(not_ours("is not a folder"))),
            fd => fd.map_err(|e| failed(e.into()))?,
        };
        let found = fstat(&fd).map_err(|e| failed(e.into()))?;
        let own = geteuid().as_raw();
        if found.st_uid != own {
            let text = format!("belongs to user {}, not to {own}", found.st_uid);
            return Err(failed(not_ours(&text)));
        }
        if found.st_mode & OTHERS_WRITE != 0 {
            return Err(failed(not_ours("can be written by other users")));
        }
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        let parent = metadata(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        let is_foreign = parent.uid() != own && parent.uid() != 0;
        if is_foreign || (parent.mode() & OTHERS_WRITE != 0 && parent.mode() & STICKY == 0) {
            return Err(failed(not_ours("is where other users can replace it")));
        }
        let lock = fd.try_clone().and_then(Locked::exclusive);
        let lock = lock.map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => DiskError::Held {
                path: path.to_owned(),
            },
            _ => failed(e),
        })?;
        Ok(Self {
            fd,
            path: path.to_owned(),
            _lock: Some(lock),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the existing segments, in order.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn segments(&self) -> io::Result<Vec<Name>> {
        let mut names = self.named(Name::of_segment)?;
        names.sort_unstable();
        Ok(names)
    }

    /// Lists the folder, and returns each file name that `of` can parse.
    fn named(&self, of: impl Fn(&str) -> Option<Name>) -> io::Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            names.extend(entry.file_name().to_str().ok().and_then(&of));
        }
        Ok(names)
    }

    /// Removes the remains of a killed process: incomplete indexes, and indexes whose segment was removed.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn sweep(&self, segments: &[Name]) -> io::Result<()> {
        for name in self.named(|it| Name::of_index(it, NEW_INDEX))? {
            self.unlink(&name.new_index())?;
        }
        for name in self.named(|it| Name::of_index(it, INDEX))? {
            if segments.binary_search(&name).is_err() {
                self.unlink(&name.index())?;
            }
        }
        Ok(())
    }

    /// Opens a file for reading, and for truncation as well if `to_change` is set.
    ///
    /// # Errors
    /// Returns the error of the system, or an error if the entry is not a regular file.
    pub(super) fn open(&self, name: &str, to_change: bool) -> io::Result<File> {
        let access = match to_change {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
        };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = openat(&self.fd, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
            return Err(not_ours("is not a file"));
        }
        Ok(fd.into())
    }

    /// Creates the file of a segment. Uses direct I/O if `past_cache` is set and the file system supports it; returns
    /// whether it is used.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn create(&self, name: &str, past_cache: bool) -> io::Result<(File, bool)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(
            &self.fd,
            name,
            flags | OFlags::NOFOLLOW,
            Mode::from_raw_mode(0o600),
        )?;
        let past_cache = past_cache
            && fcntl_getfl(&fd)
                .and_then(|flags| fcntl_setfl(&fd, flags | OFlags::DIRECT))
                .is_ok();
        Ok((fd.into(), past_cache))
    }

    /// Writes an index atomically: it exists completely or not at all.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn write_index(&self, name: Name, bytes: &[u8]) -> io::Result<()> {
        use std::io::Write;
        let new = name.new_index();
        let written = match self.create(&new, false) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                self.unlink(&new)?;
                self.create(&new, false)
            }
            created => created,
        }
        .and_then(|(mut file, _)| file.write_all(bytes))
        .and_then(|()| Ok(renameat(&self.fd, &new, &self.fd, name.index())?));
        if written.is_err() {
            let _ = self.unlink(&new);
        }
        written
    }

    /// Removes a segment and its index. A missing file is no error.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub(super) fn remove(&self, name: Name) -> io::Result<()> {
        self.unlink(&name.segment())?;
        self.unlink(&name.index())
    }

    fn unlink(&self, name: &str) -> io::Result<()> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }
}

fn not_ours(why: &str) -> io::Error {
    let text = format!("it {why}: name another");
    io::Error::new(ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_canonical_names_of_segment_and_index_files_are_parsed() {
        let name = Name {
            number: 12,
            first_ns: 1_700_000_000_000_000_001,
            zstd: false,
        };
        let text = name.to_string();
        assert_eq!(text, "000000000012-01700000000000000001");
        assert_eq!(Name::parse(&text), Some(name));
        for zstd in [false, true] {
            let name = Name { zstd, ..name };
            assert_eq!(Name::of_segment(&name.segment()), Some(name));
            assert_eq!(Name::of_index(&name.index(), INDEX), Some(name));
            assert_eq!(Name::of_index(&name.new_index(), INDEX), None);
            assert_eq!(name.segment().ends_with(".pcapng.zst"), zstd);
        }
        for other in [
            "12-01700000000000000001",
            "+00000000012-01700000000000000001",
            "a-b",
            "",
        ] {
            assert_eq!(Name::parse(other), None);
        }
    }

    #[test]
    fn folders_writable_by_other_users_are_refused_and_files_private() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("ring");
        let why = |path: &Path| Folder::take(path, true).unwrap_err().to_string();
        let link = parent.path().join("link");
        symlink("/", &link).unwrap();
        assert!(why(&link).contains("not a folder"), "{}", why(&link));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(why(&path).contains("written by other users"));
        assert!(why(&path.join("inside")).contains("replace it"));
        fs::remove_dir(path.join("inside")).unwrap();
        fs::remove_dir(&path).unwrap();
        assert!(Folder::take(&path, false).is_err());
        let folder = Folder::take(&path, true).unwrap();
        assert_eq!(metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert!(matches!(
            Folder::take(&path, true),
            Err(DiskError::Held { .. })
        ));
        folder.create("x", false).unwrap();
        assert_eq!(metadata(path.join("x")).unwrap().mode() & 0o777, 0o600);
        symlink("/etc/passwd", path.join("y")).unwrap();
        assert!(folder.open("y", false).is_err());
        assert!(folder.open(".", false).is_err());
    }

    #[test]
    fn files_left_by_a_killed_process_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = Folder::take(&parent.path().join("ring"), true).unwrap();
        let (one, two) = (
            Name {
                number: 1,
                first_ns: 1,
                zstd: false,
            },
            Name {
                number: 1,
                first_ns: 1,
                zstd: true,
            },
        );
        for name in [
            one.segment(),
            one.index(),
            two.index(),
            one.new_index(),
            "notes".into(),
        ] {
            folder.create(&name, false).unwrap();
        }
        let segments = folder.segments().unwrap();
        assert_eq!(segments, [one]);
        folder.sweep(&segments).unwrap();
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|it| it.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort_unstable();
        assert_eq!(left, [one.index(), one.segment(), "notes".into()]);
    }
}
