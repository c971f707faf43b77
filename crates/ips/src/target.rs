//! The target of events: a file, or a reader at a socket. Events that the target does not accept are counted and
//! dropped. A full disk, a removed file, and a slow or absent reader therefore use no memory. Writing continues when
//! the target accepts events again.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::{File, OpenOptions, symlink_metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The interval between attempts to connect a socket, and between checks of a file's path.
const AGAIN: Duration = Duration::from_secs(1);
/// The time that a reader may take for one write.
const PATIENCE: Duration = Duration::from_millis(500);

/// Opens a file to append to. Links are not followed: a user with write access to the folder must not redirect root's
/// writes.
pub(super) fn append_to(path: &str) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    OpenOptions::new()
        .create(true)
        .read(true)
        .append(true)
        .mode(0o640)
        .custom_flags(flags)
        .open(path)
}

/// Returns true if a file was removed from its path, or replaced there.
pub(super) fn is_gone(file: &File, path: &str) -> bool {
    let Ok(ours) = file.metadata() else {
        return false;
    };
    let is_other = match symlink_metadata(path) {
        Ok(there) => (there.dev(), there.ino()) != (ours.dev(), ours.ino()),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    ours.is_file() && is_other
}

/// The destination of event lines: a file or a socket.
pub(super) struct Target {
    path: String,
    sink: Sink,
    /// The time of the last check of the path; none before the first check.
    looked: Option<Instant>,
    /// The unwritten rest of a line. It is written before later lines, so that readers find complete lines.
    rest: Vec<u8>,
}

enum Sink {
    File(File),
    /// A socket, while a reader is connected.
    Socket(Option<UnixStream>),
}

impl Target {
    /// Opens a file, or stores the socket path after `unix:`.
    ///
    /// # Errors
    /// Fails if the file cannot be opened.
    pub fn open(text: &str) -> io::Result<Self> {
        let (path, sink) = match text.strip_prefix("unix:") {
            Some(path) => (path, Sink::Socket(None)),
            None => (text, Sink::File(append_to(text)?)),
        };
        Ok(Self {
            path: path.to_string(),
            sink,
            looked: None,
            rest: Vec::new(),
        })
    }

    /// Writes complete lines. Returns how many lines were not accepted; a partly written line from an earlier call
    /// counts as well.
    pub fn write(&mut self, lines: &[u8]) -> u64 {
        let cut = self.look();
        let (taken, lost) = match &mut self.sink {
            Sink::File(file) => write(file, &mut self.rest, lines),
            Sink::Socket(Some(stream)) => write(stream, &mut self.rest, lines),
            Sink::Socket(None) => return cut + count(lines),
        };
        match (&mut self.sink, taken) {
            (Sink::Socket(stream), Err(error)) if !is_slow(&error) => {
                *stream = None;
                cut + lost + self.give_up()
            }
            _ => cut + lost,
        }
    }

    /// Discards the rest of a partly written line; returns the number of lines lost by this.
    pub fn give_up(&mut self) -> u64 {
        u64::from(!std::mem::take(&mut self.rest).is_empty())
    }

    /// Checks at an interval whether the file is still at its path, or whether a reader listens at the socket again.
    /// Returns how many lines a change of file or reader has truncated.
    fn look(&mut self) -> u64 {
        if self.looked.is_some_and(|it| it.elapsed() < AGAIN) {
            return 0;
        }
        self.looked = Some(Instant::now());
        match &mut self.sink {
            Sink::File(file) if is_gone(file, &self.path) => match append_to(&self.path) {
                Ok(new) => *file = new,
                Err(_) => return 0,
            },
            Sink::Socket(stream @ None) => {
                *stream = listener(&self.path).ok();
                return 0;
            }
            _ => return 0,
        }
        self.give_up()
    }
}

/// Connects to the listener at the given path, without waiting for it.
fn listener(path: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns true if the error means that the reader has not read the earlier data yet.
fn is_slow(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

/// Writes the end of an earlier line and then complete lines, until the sink accepts no more. The rest of a partly
/// written line becomes `rest`. Returns how many lines were not accepted, and the reason.
fn write(sink: &mut impl Write, rest: &mut Vec<u8>, lines: &[u8]) -> (io::Result<()>, u64) {
    let until = Instant::now() + PATIENCE;
    let (taken, result) = put(sink, rest, until);
    rest.drain(..taken);
    if result.is_err() {
        return (result, count(lines));
    }
    let (taken, result) = put(sink, lines, until);
    let (before, behind) = lines.split_at(taken);
    if before.last().is_none_or(|&byte| byte == b'\n') {
        return (result, count(behind));
    }
    let end = behind.iter().position(|&byte| byte == b'\n');
    let (end, lost) = behind.split_at(end.map_or(behind.len(), |at| at + 1));
    rest.extend_from_slice(end);
    (result, count(lost))
}

/// Writes bytes until all are written, the sink fails, or the time `until` has passed. Returns the number of written
/// bytes, and the error if not all were written.
fn put(sink: &mut impl Write, bytes: &[u8], until: Instant) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        match sink.write(&bytes[taken..]) {
            Ok(0) => return (taken, Err(ErrorKind::WriteZero.into())),
            Ok(more) => taken += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (taken, Err(error)),
        }
        if taken < bytes.len() && Instant::now() > until {
            return (taken, Err(ErrorKind::TimedOut.into()));
        }
    }
    (taken, Ok(()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::net::UnixListener;

    /// A disk with space for a number of bytes.
    struct Disk {
        there: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room - self.there.len());
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            self.there.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        /// At whatever byte and for however long the disk is full, the file contains only complete lines, and all other
        /// lines are counted as lost.
        #[test]
        fn full_disks_leave_complete_lines_and_lost_lines_are_counted(
            writes in proptest::collection::vec((0..5_usize, 0..60_usize), 1..20),
        ) {
            let mut disk = Disk { there: Vec::new(), room: 0 };
            let (mut rest, mut lost, mut number) = (Vec::new(), 0, 0_u64);
            for (lines, more_room) in writes {
                disk.room += more_room;
                let text: String = (0..lines).map(|_| { number += 1; format!("line {number}\n") }).collect();
                lost += write(&mut disk, &mut rest, text.as_bytes()).1;
                prop_assert!(rest.len() < 16);
            }
            disk.room = usize::MAX;
            lost += write(&mut disk, &mut rest, b"").1;
            prop_assert!(rest.is_empty());
            let text = String::from_utf8(disk.there).unwrap();
            prop_assert!(text.is_empty() || text.ends_with('\n'));
            let numbers: Vec<u64> = text.lines().map(|it| it.strip_prefix("line ").unwrap().parse().unwrap()).collect();
            prop_assert!(numbers.is_sorted_by(|a, b| a < b));
            prop_assert_eq!(numbers.len() as u64 + lost, number);
        }
    }

    #[test]
    fn removed_files_are_recreated_but_symbolic_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eve.json");
        let text = path.to_str().unwrap();
        let mut target = Target::open(text).unwrap();
        assert_eq!(target.write(b"one\n"), 0);
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        target.looked = None;
        assert_eq!(target.write(b"two\n"), 0);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        // Nothing is written through a symbolic link at the path, because the link may lead to another file.
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        target.looked = None;
        assert_eq!(target.write(b"three\n"), 0);
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn lines_to_a_full_device_are_lost_and_not_buffered() {
        let Ok(mut target) = Target::open("/dev/full") else {
            return;
        };
        assert_eq!(target.write(b"one\ntwo\n"), 2);
        assert_eq!((target.rest.len(), target.give_up()), (0, 0));
    }

    #[test]
    fn slow_or_closed_readers_lose_only_complete_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sock");
        let mut target = Target::open(&format!("unix:{}", path.display())).unwrap();
        assert_eq!(target.write(b"nobody\n"), 1);
        let listening = UnixListener::bind(&path).unwrap();
        target.looked = None;
        let line = [&[b'x'; 9_999][..], b"\n"].concat();
        let mut written = 0;
        // The socket becomes full at some time, because its reader reads nothing.
        let lost = loop {
            written += 1;
            match target.write(&line) {
                0 if target.rest.is_empty() => {}
                lost => break lost,
            }
        };
        assert_eq!(target.write(&line), 1);
        let (reader, _) = listening.accept().unwrap();
        let mut lines = BufReader::new(reader).lines();
        for _ in 0..written - 2 {
            assert_eq!(lines.next().unwrap().unwrap().len(), 9_999);
        }
        assert_eq!(target.write(b"on it goes\n"), 0);
        let next = lines.find(|it| it.as_ref().unwrap().len() != 9_999);
        assert_eq!(next.unwrap().unwrap(), "on it goes");
        drop(lines);
        assert_eq!(target.write(b"gone\n"), 1);
        target.looked = None;
        assert_eq!(target.write(b"again\n"), 0);
        let (mut reader, _) = listening.accept().unwrap();
        drop(target);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "again\n");
        assert!(lost <= 1);
    }
}
