//! The folder of a ring: its files, by their names; nothing in it leads elsewhere.

use super::DiskError;
use crate::packed;
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

/// Bits of a file's mode by which others than its owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Bit of a folder's mode by which only who owns an entry can rename or remove it.
const STICKY: u32 = 0o1000;

/// A segment, which is followed by [`packed::ENDING`] if it is compressed, as the name of its index is.
const SEGMENT: &str = ".pcapng";
const INDEX: &str = ".index";
/// An index that is not complete.
const NEW_INDEX: &str = ".index.new";

/// Name of a segment: its number in the ring, the time of its first packet in nanoseconds since 1970, and whether it is
/// compressed.
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
        // As it is written, and in no other way.
        (name.to_string() == text).then_some(name)
    }

    /// The name of the segment that is called so.
    fn of_segment(text: &str) -> Option<Self> {
        let (text, zstd) = without_zstd(text);
        let name = Self::parse(text.strip_suffix(SEGMENT)?)?;
        Some(Self { zstd, ..name })
    }

    /// The name of the segment whose index is called so.
    fn of_index(text: &str, ending: &str) -> Option<Self> {
        let (text, zstd) = without_zstd(text.strip_suffix(ending)?);
        Some(Self {
            zstd,
            ..Self::parse(text)?
        })
    }

    fn zstd(self) -> &'static str {
        if self.zstd { packed::ENDING } else { "" }
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

/// A name without the ending of what is compressed, and whether it has it.
fn without_zstd(text: &str) -> (&str, bool) {
    match text.strip_suffix(packed::ENDING) {
        Some(text) => (text, true),
        None => (text, false),
    }
}

/// A folder that is open: it stays the same one, whatever becomes of its path.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    /// Held by who writes.
    _lock: Option<Locked<OwnedFd>>,
}

impl Folder {
    /// Opens a folder to read in.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn look(path: &Path) -> Result<Self, DiskError> {
        let failed = |e: Errno| DiskError::folder(path, e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            fd: openat(CWD, path, flags, Mode::empty()).map_err(failed)?,
            path: path.to_owned(),
            _lock: None,
        })
    }

    /// Takes a folder of this user's own to write in, for this process alone; with `make`, it is made where there is
    /// none.
    ///
    /// # Errors
    /// What the system says, whose it is, or that another process has it.
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
            return Err(failed(not_ours("lies where other users can replace it")));
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

    /// The segments that are there, in order.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn segments(&self) -> io::Result<Vec<Name>> {
        let mut names = self.named(Name::of_segment)?;
        names.sort_unstable();
        Ok(names)
    }

    /// Names that stand for something in the folder.
    fn named(&self, of: impl Fn(&str) -> Option<Name>) -> io::Result<Vec<Name>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            names.extend(entry.file_name().to_str().ok().and_then(&of));
        }
        Ok(names)
    }

    /// Removes what a process that was killed left: half of an index, and an index whose segment is gone.
    ///
    /// # Errors
    /// What the system says.
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

    /// Opens a file to read it, or to cut it too.
    ///
    /// # Errors
    /// What the system says, or that it is no file.
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

    /// Makes the file of a segment, which is written past the page cache if the file system can do that; says whether
    /// it is.
    ///
    /// # Errors
    /// What the system says.
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

    /// Writes an index: it is there as a whole or not at all.
    ///
    /// # Errors
    /// What the system says.
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

    /// Removes a segment and its index. What is not there is no error.
    ///
    /// # Errors
    /// What the system says.
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
    fn names_are_read_as_they_are_written_and_in_no_other_way() {
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
    fn folders_that_others_can_change_are_refused_and_files_are_this_users_alone() {
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
    fn what_a_killed_process_left_is_removed() {
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
