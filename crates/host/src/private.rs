//! Private folders and files: created for this user alone, or checked before use.
//!
//! Another user may already own a guessable path in a shared folder (`/tmp`), either as a folder of that user, or as
//! a link to another path. An existing path is used only if it belongs to this user.

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

/// Bits of a file's mode that allow others than its owner to write.
const OTHERS_WRITE: u32 = 0o022;
/// The bit of a folder's mode with which only the owner of an entry can rename or remove it.
const STICKY: u32 = 0o1000;

/// Creates a folder named after this process, with mode 0700. The folder is removed when the returned value is dropped.
///
/// # Errors
/// The system reports an error.
pub fn scratch() -> io::Result<TempDir> {
    scratch_in(&std::env::temp_dir(), &name_of_this_process())
}

/// Returns the prefix for names of files and folders that this process creates. After this process has exited, other
/// processes recognise its remains by the prefix.
pub fn name_of_this_process() -> String {
    format!("taut-{}.{}-", numbering(), std::process::id())
}

/// Returns true if `name` is that of a process ([`name_of_this_process`]) that has exited. Returns false for names from
/// other containers: these number processes differently, and may share a folder for temporary files with this one.
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

/// Removes the folders that killed processes left in `parent`, identified by their names. Folders of other users
/// remain.
pub fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if is_left_behind(&entry.file_name().to_string_lossy()) {
            // Entries that cannot be removed belong to another user and stay.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the inode number of this process's PID namespace, in which process IDs are unique; 0 if unknown.
fn numbering() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Creates a folder as [`scratch`] does, in `parent`, with a name of `prefix` and random characters.
///
/// # Errors
/// The system reports an error.
pub fn scratch_in(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(prefix)
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

/// Creates a folder of mode 0700 if it does not exist; an existing one has to pass [`check`].
///
/// # Errors
/// The system reports an error, or another user owns the folder.
pub fn folder(path: &Path) -> io::Result<()> {
    make(path, 0o700)
}

/// Creates a folder that other users may read, and otherwise does the same as [`folder`].
///
/// # Errors
/// The errors are those of [`folder`].
pub fn readable_folder(path: &Path) -> io::Result<()> {
    make(path, 0o755)
}

fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
        _ => check(path),
    }
}

/// Checks that `path` is a folder (not a link to a folder) that belongs to this user and that no other user can write
/// or replace.
///
/// # Errors
/// The system reports an error, such as [`ErrorKind::NotFound`], or another user owns the folder.
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
        return Err(not_ours("is where other users can replace it"));
    }
    Ok(())
}

/// Returns true if users other than `own` and root can rename the entries of this folder.
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

/// Returns the folder in which this user's running programs publish their sockets and locks. It is below `/run` for
/// root, else below `XDG_RUNTIME_DIR`, else in the folder for temporary files. The folder need not exist.
pub fn run_folder_path() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match own {
        _ if geteuid().is_root() => PathBuf::from("/run/taut"),
        Some(folder) => PathBuf::from(folder).join("taut"),
        None => std::env::temp_dir().join(format!("taut-{}", geteuid().as_raw())),
    }
}

/// Returns the folder at [`run_folder_path`], created if it does not exist.
///
/// # Errors
/// The errors are those of [`folder`], with the path.
pub fn run_folder() -> io::Result<PathBuf> {
    let path = run_folder_path();
    // Root's folder contains the journal of `taut tune`, which all users may read.
    let made = match geteuid().is_root() {
        true => readable_folder(&path),
        false => folder(&path),
    };
    made.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    Ok(path)
}

/// Returns the folder for files that this user downloads once and keeps, such as kernels. It is below `XDG_CACHE_HOME`,
/// else below `.cache` in the home folder, else below `/var/cache`. The folder need not exist.
pub fn cache_folder_path() -> PathBuf {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = of("XDG_CACHE_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| of("HOME").map(|home| Path::new(&home).join(".cache")));
    folder.unwrap_or_else(|| "/var/cache".into()).join("taut")
}

/// A lock file of one process. The lock ends when this value is dropped, or when the process ends for any reason. The
/// file contains the process number.
#[derive(Debug)]
pub struct Lock {
    file: Locked,
}

/// Reason why a lock is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has the lock.
    #[error("in use by {}", by.map_or("another process".to_owned(), |by| format!("process {by}")))]
    Held {
        /// The process number of the holder, if the holder has written it yet.
        by: Option<u32>,
    },
    /// The lock file cannot be created or opened, or does not belong to this user.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Lock {
    /// Locks the file at `path`, which is created if it does not exist. Its folder has to belong to this user.
    ///
    /// # Errors
    /// [`LockError::Held`], and errors of the system.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let file = Self::open(path, OFlags::RDWR | OFlags::CREATE)?;
        let mut file = Self::lock(file, Locked::exclusive)?;
        // The file is emptied only after it has been locked, because it contains the number of the holder.
        file.get().set_len(0)?;
        file.get_mut()
            .write_all(format!("{}\n", std::process::id()).as_bytes())?;
        Ok(Self { file })
    }

    /// Returns the holder of the lock file at `path`; `None` if no process has the lock. The call locks the file for a
    /// moment: a process that tries to lock the file at that moment fails, and succeeds at its next attempt.
    fn holder(path: &Path) -> Option<LockError> {
        let file = Self::open(path, OFlags::RDONLY).ok()?;
        let refused = Self::lock(file, Locked::shared).err();
        refused.filter(|e| matches!(e, LockError::Held { .. }))
    }

    /// Locks an open lock file. If another process has the lock, the error contains the process number in the file.
    fn lock(file: File, how: impl FnOnce(File) -> io::Result<Locked>) -> Result<Locked, LockError> {
        let mut other = file.try_clone()?;
        how(file).map_err(|e| match e.kind() {
            ErrorKind::WouldBlock => {
                let mut text = String::new();
                // A longer text is not a process number.
                let _ = (&mut other).take(16).read_to_string(&mut text);
                let by = text.trim().parse().ok();
                LockError::Held { by }
            }
            _ => e.into(),
        })
    }

    /// Opens the lock file at `path`, which has to belong to this user.
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

    /// Returns true if the locked file is still the file at `path`; false if an earlier holder has removed it.
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

/// The name of the claim that a process takes to run an experiment on this machine.
pub const EXPERIMENT: &str = "experiment";
/// The name of the claim that a process takes to measure on this machine.
pub const MEASURING: &str = "measuring";
/// Timeout of processes that wait for the claim [`MEASURING`].
pub const MEASURING_PATIENCE: Duration = Duration::from_secs(600);

/// The interval between checks whether a claim on a resource of the machine is free.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A claim on a resource that exists once per machine. The claim ends when this value is dropped or the process ends.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _lock: Lock,
}

impl Claim {
    /// Takes the claim called `what`, such as `experiment`. Each network namespace counts as a separate machine. Root
    /// and each user have separate claims, so that no user can prevent another from measuring.
    ///
    /// # Errors
    /// Another process has the claim, or the system reports an error.
    pub fn take(what: &str) -> Result<Self, LockError> {
        loop {
            let path = run_folder()?.join(Self::name(what));
            let lock = match Lock::take(&path) {
                // The previous holder has removed the folder, so the next attempt creates it again.
                Err(LockError::System(e)) if e.kind() == ErrorKind::NotFound => continue,
                lock => lock?,
            };
            // The previous holder may have removed the file before it was locked here; the lock would then protect
            // nothing.
            if lock.is_at(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
    }
}

impl Claim {
    /// Takes a claim like [`Claim::take`], but waits for its holder up to the time `most` or until `stop` is set. If
    /// the claim is still taken at the second attempt, `told` is called once, with an error that names the holder.
    ///
    /// # Errors
    /// Another process still has the claim, or the system reports an error.
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

    /// Returns the holder of the claim `what`, with its process number if it is known; `None` if the claim is free. The
    /// call does not take the claim.
    pub fn holder(what: &str) -> Option<LockError> {
        Lock::holder(&run_folder_path().join(Self::name(what)))
    }

    /// Returns the name of the lock file for the claim `what` on this machine.
    fn name(what: &str) -> String {
        let machine = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
        format!("{what}-{machine}.lock")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // The file is removed while the lock is in use, so processes that wait for it notice the removal.
        let _ = fs::remove_file(&self.path);
        // The folder is removed if it is empty.
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
    fn a_new_private_folder_is_accessible_only_to_its_user() {
        let folder = own_folder();
        let mode = fs::metadata(folder.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        check(folder.path()).unwrap();
    }

    #[test]
    fn an_existing_private_folder_is_reused() {
        let parent = own_folder();
        let path = parent.path().join("x");
        let missing = check(&path).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        folder(&path).unwrap();
        folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn folders_that_other_users_can_change_are_refused() {
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
        // Without the sticky bit other users can rename entries of the folder.
        let inside = open.join("own");
        let said = why(&inside);
        assert!(said.contains("replace it"), "{said}");
        fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
        folder(&inside).unwrap();
    }

    #[test]
    fn a_scratch_folder_of_an_exited_process_is_stale() {
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
    fn a_waiting_process_gets_the_released_lock_or_times_out() {
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
    fn a_lock_names_its_process_and_follows_no_symbolic_link() {
        let parent = own_folder();
        let path = parent.path().join("lock");
        let held = Lock::take(&path).unwrap();
        assert!(held.is_at(&path));
        let said = Lock::take(&path).unwrap_err().to_string();
        assert_eq!(said, format!("in use by process {}", std::process::id()));
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
