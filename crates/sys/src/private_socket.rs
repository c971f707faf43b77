//! A Unix socket that only its owner can connect to.

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The maximum number of clients that wait to be accepted, the same as in the standard library.
const BACKLOG: i32 = 128;

/// Listens at `path`, whose file has mode 0600 from the start: the kernel copies the mode of the bound socket (Linux,
/// `unix_bind_bsd` in net/unix/af_unix.c). An existing file at the path is not changed, and a link is not followed.
///
/// # Errors
/// The error that the operating system reported.
pub fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    #[test]
    #[cfg_attr(miri, ignore = "makes a socket")]
    fn private_sockets_admit_only_their_owner_and_replace_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = listen_privately(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut client = UnixStream::connect(&path).unwrap();
        client.write_all(b"x").unwrap();
        let mut byte = [0];
        listener.accept().unwrap().0.read_exact(&mut byte).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).unwrap();
        for taken in [&path, &link] {
            let refused = listen_privately(taken).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        }
        assert!(!folder.path().join("elsewhere").exists());
    }
}
