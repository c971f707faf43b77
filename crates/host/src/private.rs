//! Folders and files that no other user has a hand in: made for this user alone, or checked before they are used.
//!
//! A path that others can guess, in a folder that they can write (`/tmp`), may be theirs already: a folder of their own, or
//! a link to somewhere else. What is found there is used only if it is this user's own.

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_sys::Locked;
use tempfile::TempDir;

/// Bits of a file's mode by which others than its owner may write.
const OTHERS_WRITE: u32 = 0o022;
/// Bit of a folder's mode by which only who owns an entry can rename or remove it.
const STICKY: u32 = 0o1000;

/// A fresh folder named after this process, mode 0700; gone when it is dropped.
///
/// # Errors
/// What the system says.
pub fn scratch() -> io::Result<TempDir> {
    scratch_in(&std::env::temp_dir(), &name_of_this_process())
}

/// Returns what the names of things of this process begin with, so that others see when they are left behind.
pub fn name_of_this_process() -> String {
    format!("taut-{}.{}-", numbering(), std::process::id())
}

/// Whether what is called `name` is of a process ([`name_of_this_process`]) that is no more. A name of another
/// container, where processes are numbered otherwise, is not judged: that container may share a folder for temporary
/// files with this one.
pub fn is_left_behind(name: &str) -> bool {
    let owner = name.strip_prefix("taut-").and_then(|rest| {
        let (numbered, rest) = rest.split_once('.')?;
        let (process, _) = rest.split_once('-')?;
        Some((numbered.parse::<u64>().ok()?, process.parse::<u32>().ok()?))
    });
    owner.is_some_and(|(numbered, process)| {
        numbered == numbering() && !Path::new(&format!("/proc/{process}")).exists()
    })
}

/// Removes what processes that were killed have left in a folder, as far as this user may: what is called after them.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if is_left_behind(&entry.file_name().to_string_lossy()) {
            // What cannot be removed is another user's, and stays for him.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns by what this process and others have their numbers: the PID namespace.
fn numbering() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Makes a folder as [`scratch`] does, in `parent`, with a name that begins with `prefix` and goes on at random.
///
/// # Errors
/// What the system says.
pub fn scratch_in(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Makes a folder of mode 0700 where there is none; one that is there has to pass [`check`].
///
/// # Errors
/// What the system says, or whose it is.
pub fn folder(path: &Path) -> io::Result<()> {
    make(path, 0o700)
}

/// Makes a folder as [`folder`] does, which others may read.
///
/// # Errors
/// As of [`folder`].
pub fn readable_folder(path: &Path) -> io::Result<()> {
    make(path, 0o755)
}

fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
        _ => check(path),
    }
}

/// Checks that this is a folder (not a link to one) that belongs to this user and that nobody else can write or
/// replace.
///
/// # Errors
/// What the system says, [`ErrorKind::NotFound`] among it, or whose it is.
pub fn check(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let own = geteuid().as_raw();
    if !found.is_dir() {
        return Err(not_ours("is not a folder"));
    }
    if found.uid() != own {
        let text = format!("belongs to user {}, not to {own}", found.uid());
        return Err(not_ours(&text));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(not_ours("can be written by other users"));
    }
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = fs::metadata(parent.unwrap_or(Path::new(".")))?;
    if can_be_replaced(&parent, own) {
        return Err(not_ours("lies where other users can replace it"));
    }
    Ok(())
}

/// Whether others than `own` and root can rename what lies in this folder.
fn can_be_replaced(parent: &Metadata, own: u32) -> bool {
    let is_foreign = parent.uid() != own && parent.uid() != 0;
    is_foreign || (parent.mode() & OTHERS_WRITE != 0 && parent.mode() & STICKY == 0)
}

fn not_ours(why: &str) -> io::Error {
    let otherwise = match geteuid().is_root() {
        true => "",
        false => ", or set XDG_RUNTIME_DIR to a folder of your own",
    };
    let text = format!("it {why}: remove it{otherwise}");
    io::Error::new(ErrorKind::PermissionDenied, text)
}

/// Returns where this user's running programs keep what others of his find them by: below `/run` for root, else below
/// `XDG_RUNTIME_DIR`, else in the folder for temporary files. It need not exist.
pub fn run_folder_path() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match own {
        _ if geteuid().is_root() => PathBuf::from("/run/taut"),
        Some(folder) => PathBuf::from(folder).join("taut"),
        None => std::env::temp_dir().join(format!("taut-{}", geteuid().as_raw())),
    }
}

/// The folder at [`run_folder_path`], made if it is not there.
///
/// # Errors
/// As of [`folder`], with the path.
pub fn run_folder() -> io::Result<PathBuf> {
    let path = run_folder_path();
    // Root's holds the journal of `taut tune`, which everybody may read.
    let made = match geteuid().is_root() {
        true => readable_folder(&path),
        false => folder(&path),
    };
    made.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    Ok(path)
}

/// A lock file that one process holds, until it is dropped or the process ends, however it ends. It says who that is.
#[derive(Debug)]
pub struct Lock {
    file: Locked,
}

/// Reason why a lock cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody holds it.
    #[error("held by {}", by.map_or("another process".to_owned(), |by| format!("process {by}")))]
    Held {
        /// Process number of the holder, if it has been written yet.
        by: Option<u32>,
    },
    /// The lock cannot be made or opened, or is not this user's own.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Lock {
    /// Takes the lock file at `path`, which is made if it is not there. It has to lie in a folder of this user's own.
    ///
    /// # Errors
    /// [`LockError::Held`], and what the system says.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let file = Self::open(path, OFlags::RDWR | OFlags::CREATE)?;
        let mut file = Self::lock(file, Locked::exclusive)?;
        // Emptied only by who holds it.
        file.get().set_len(0)?;
        file.get_mut()
            .write_all(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(Self { file })
    }

    /// Returns who holds the lock file at `path`, without taking it: whoever takes it at this moment is refused, and has it
    /// at its next try.
    fn holder(path: &Path) -> Option<LockError> {
        let file = Self::open(path, OFlags::RDONLY).ok()?;
        let refused = Self::lock(file, Locked::shared).err();
        refused.filter(|e| matches!(e, LockError::Held { .. }))
    }

    /// Locks an open lock file, and reads who holds it if that is refused.
    fn lock(file: File, how: impl FnOnce(File) -> io::Result<Locked>) -> Result<Locked, LockError> {
        let mut other = file.try_clone()?;
        how(file).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => {
                let mut text = String::new();
                // Longer than any process number is nobody's.
                let _ = (&mut other).take(16).read_to_string(&mut text);
                let by = text.trim().parse().ok();
                LockError::Held { by }
            }
            _ => e.into(),
        })
    }

    /// Opens the lock file at `path`, which has to be a file of this user's own.
    fn open(path: &Path, how: OFlags) -> Result<File, LockError> {
        let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(CWD, path, flags, Mode::from_raw_mode(0o600));
        let file = File::from(file.map_err(io::Error::from)?);
        let found = fstat(&file).map_err(io::Error::from)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(not_ours("is not a file").into());
        }
        if found.st_uid != geteuid().as_raw() {
            let text = format!("belongs to user {}", found.st_uid);
            return Err(not_ours(&text).into());
        }
        Ok(file)
    }

    /// Whether the lock is still the file at `path`: whoever held it before may have removed it.
    pub fn is_at(&self, path: &Path) -> bool {
        let there = fs::symlink_metadata(path);
        there.is_ok_and(|there| {
            self.file
                .get()
                .metadata()
                .is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        })
    }
}

/// The claim of whoever makes the runs of an experiment on this machine.
pub const EXPERIMENT: &str = "experiment";
/// The claim of whoever measures on this machine, and how long others wait for it.
pub const MEASURING: &str = "measuring";
/// See [`MEASURING`].
pub const MEASURING_PATIENCE: Duration = Duration::from_secs(600);

/// Time between two looks of whoever waits for a claim, whether it is free.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Claim on what this machine has once, held by this process until it is dropped or the process ends.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _lock: Lock,
}

impl Claim {
    /// Takes what is called so, such as `experiment`. A machine is a network namespace here. Root's claims and those of each
    /// user are apart, so that nobody can keep another from measuring.
    ///
    /// # Errors
    /// Who holds it, or what the system says.
    pub fn take(what: &str) -> Result<Self, LockError> {
        loop {
            let path = run_folder()?.join(Self::name(what));
            let lock = match Lock::take(&path) {
                // Whoever held the last one has removed the folder.
                Err(LockError::System(e)) if e.kind() == ErrorKind::NotFound => continue,
                lock => lock?,
            };
            // Whoever held it may have removed it meanwhile.
            if lock.is_at(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Claim {
    /// Takes a claim as [`Claim::take`] does, but waits for whoever holds it, for so long at most or until `stop` is
    /// set; who that is, is told once, if it holds it at the second look as well.
    ///
    /// # Errors
    /// Who holds it still, or what the system says.
    pub fn wait_for(
        what: &str,
        most: Duration,
        stop: &AtomicBool,
        told: impl FnOnce(&LockError),
    ) -> Result<Self, LockError> {
        let deadline = Instant::now() + most;
        let (mut looks, mut told) = (0, Some(told));
        loop {
            match Self::take(what) {
                Err(held @ LockError::Held { .. })
                    if Instant::now() < deadline && !stop.load(Ordering::Relaxed) =>
                {
                    looks += 1;
                    if let Some(told) = told.take_if(|_| looks == 2) {
                        told(&held);
                    }
                    std::thread::sleep(LOOK_AGAIN);
                }
                taken => return taken,
            }
        }
    }

    /// Returns who holds what is called `what`: the process if it is known, none if it is free. It takes nothing.
    pub fn holder(what: &str) -> Option<LockError> {
        Lock::holder(&run_folder_path().join(Self::name(what)))
    }

    /// Returns the name of the lock file of what is called `what` on this machine.
    fn name(what: &str) -> String {
        let machine = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        format!("{what}-{machine}.lock")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // While it is held: whoever waits for it sees that it is no longer there.
        let _ = fs::remove_file(&self.path);
        // Where nothing else is in it.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    fn own_folder() -> TempDir {
        scratch().unwrap()
    }

    #[test]
    fn a_fresh_folder_is_this_users_alone() {
        let folder = own_folder();
        let mode = fs::metadata(folder.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        check(folder.path()).unwrap();
    }

    #[test]
    fn a_folder_is_made_once_and_found_again() {
        let parent = own_folder();
        let path = parent.path().join("x");
        let missing = check(&path).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        folder(&path).unwrap();
        folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn folders_that_others_can_change_are_refused() {
        let parent = own_folder();
        let path = parent.path().join("x");
        let why = |path: &Path| folder(path).unwrap_err().to_string();
        fs::write(&path, "").unwrap();
        assert!(why(&path).contains("not a folder"));
        let link = parent.path().join("link");
        symlink("/", &link).unwrap();
        assert!(why(&link).contains("not a folder"));
        let open = parent.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(why(&open).contains("written by other users"));
        // Without the sticky bit others rename what lies in it.
        let inside = open.join("own");
        let said = why(&inside);
        assert!(said.contains("replace it"), "{said}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        folder(&inside).unwrap();
    }

    #[test]
    fn a_scratch_is_left_behind_by_a_process_that_is_no_more_and_was_numbered_as_this_one() {
        let own = scratch().unwrap();
        let name = own.path().file_name().unwrap().to_str().unwrap();
        assert!(!is_left_behind(name), "{name}");
        let dead = format!("taut-{}.4294967295-x", numbering());
        assert!(is_left_behind(&dead));
        for other in ["taut-1.4294967295-x", "taut-4294967295-x", "taut-x", "x"] {
            assert!(!is_left_behind(other), "{other}");
        }
    }

    #[test]
    fn a_claim_is_waited_for_until_it_is_free_or_the_time_is_over() {
        let never = AtomicBool::new(false);
        let most = Duration::from_secs(20);
        let wait = |what: &str, most, told: &mut u32| {
            Claim::wait_for(what, most, &never, |held| {
                assert!(held.to_string().contains(&std::process::id().to_string()));
                *told += 1;
            })
        };
        let held = Claim::take("test-of-waiting").unwrap();
        assert!(Claim::holder("test-of-waiting").is_some());
        let mut told = 0;
        wait("test-of-waiting", Duration::ZERO, &mut told).unwrap_err();
        wait("test-of-waiting", Duration::from_millis(120), &mut told).unwrap_err();
        assert_eq!(told, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let mut told = 0;
                wait("test-of-waiting", most, &mut told).map(|_| told)
            });
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert!(Claim::holder("test-of-waiting").is_none());
        let left = run_folder().unwrap().join(Claim::name("test-of-waiting"));
        fs::write(&left, "1\n").unwrap();
        assert!(Claim::holder("test-of-waiting").is_none());
        assert_eq!(fs::read_to_string(&left).unwrap(), "1\n");
        let stopped = AtomicBool::new(true);
        let _held = Claim::take("test-of-waiting").unwrap();
        Claim::wait_for("test-of-waiting", most, &stopped, |_| ()).unwrap_err();
    }

    #[test]
    fn a_lock_says_who_holds_it_and_follows_no_link() {
        let parent = own_folder();
        let path = parent.path().join("lock");
        let held = Lock::take(&path).unwrap();
        assert!(held.is_at(&path));
        let said = Lock::take(&path).unwrap_err().to_string();
        assert_eq!(said, format!("held by process {}", std::process::id()));
        fs::remove_file(&path).unwrap();
        assert!(!held.is_at(&path));
        let target = parent.path().join("target");
        fs::write(&target, "precious").unwrap();
        symlink(&target, &path).unwrap();
        assert!(matches!(Lock::take(&path), Err(LockError::System(_))));
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        drop(held);
        fs::remove_file(&path).unwrap();
        fs::write(
            &path,
            "4294967295 of an earlier one, longer than what follows",
        )
        .unwrap();
        let held = Lock::take(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
        drop(held);
        Lock::take(&path).unwrap();
    }
}
