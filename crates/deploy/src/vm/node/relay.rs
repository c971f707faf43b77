//! Commands on a virtual machine over a connection: one connection for each command.
//!
//! The first line from the host is an [`Order`] in JSON; all further bytes are the command's standard input. The
//! machine replies with frames: a kind, a length (four bytes, big endian), and the bytes. The command's input ends with
//! the connection, so no command outlives the process that asked for it.

use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// Maximum length of a frame's bytes.
pub(super) const MOST_BYTES: usize = 64 << 10;
/// Timeout for a connection to the emulator on this host.
const CONNECT: Duration = Duration::from_secs(10);

/// A command for the agent of a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) token: String,
    /// Arguments of `taut` on the machine.
    pub(super) words: Vec<String>,
}

/// A part of the reply to a command: output, or the exit code.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// Bytes that the command wrote to its standard output.
    Out(Vec<u8>),
    /// Bytes that the command wrote to its standard error.
    Err(Vec<u8>),
    /// Exit code of the command, in the last frame of the reply.
    Code(u8),
}

impl Frame {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let code;
        let (kind, bytes) = match self {
            Self::Out(bytes) => (1, &bytes[..]),
            Self::Err(bytes) => (2, &bytes[..]),
            Self::Code(value) => {
                code = [*value];
                (3, &code[..])
            }
        };
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut whole = vec![kind];
        whole.extend(length.to_be_bytes());
        whole.extend(bytes);
        to.write_all(&whole)
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// The connection ends, or the bytes are no frame.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if length > MOST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        match (kind, &bytes[..]) {
            (1, _) => Ok(Self::Out(bytes)),
            (2, _) => Ok(Self::Err(bytes)),
            (3, [code]) => Ok(Self::Code(*code)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Runs `taut` with these arguments on the machine whose agent is at `address`, with the standard input and outputs of
/// this process. Returns the exit code.
///
/// # Errors
/// The machine cannot be reached, or ended before the command.
pub fn dial(address: SocketAddr, token: &str, words: Vec<String>) -> io::Result<u8> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_nodelay(true)?;
    let token = token.to_owned();
    let mut line = serde_json::to_vec(&Order { token, words })?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut input = stream.try_clone()?;
    std::thread::spawn(move || {
        // A failure is seen as the end of the reply.
        let _ = io::copy(&mut io::stdin(), &mut input);
        let _ = input.shutdown(Shutdown::Write);
    });
    loop {
        match Frame::read(&mut stream)? {
            Frame::Out(bytes) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Frame::Err(bytes) => io::stderr().write_all(&bytes)?,
            Frame::Code(code) => return Ok(code),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_unchanged_after_writing_and_reading() {
        let frames = [
            Frame::Out(b"a\n".to_vec()),
            Frame::Err(vec![0; MOST_BYTES]),
            Frame::Out(Vec::new()),
            Frame::Code(143),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut from = &bytes[..];
        for frame in &frames {
            assert_eq!(Frame::read(&mut from).unwrap(), *frame);
        }
        let end = Frame::read(&mut from).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn invalid_frames_are_refused() {
        for bytes in [
            &[4, 0, 0, 0, 0][..],
            &[1, 255, 255, 255, 255],
            &[3, 0, 0, 0, 2, 1, 1],
        ] {
            let refused = Frame::read(&mut &bytes[..]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
