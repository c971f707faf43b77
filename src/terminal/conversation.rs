//! A conversation with a function of a running forwarder, over its control socket.

use crate::exit::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The timeout of a reply: another client may be loading millions of entries.
const PATIENCE: Duration = Duration::from_secs(60);

/// The client's side of a control socket.
pub struct Conversation {
    /// The kind of the function that replies, as error messages name it, such as `gateway`.
    what: &'static str,
    socket: PathBuf,
    stream: UnixStream,
    lines: Lines<BufReader<UnixStream>>,
}

impl Conversation {
    /// Connects to the function called `function` through its control socket; `what` is its kind, as error messages
    /// name it.
    pub fn begin(what: &'static str, function: &str, socket: &Path) -> Result<Self, Failure> {
        let (stream, read) = connect(socket)
            .and_then(|stream| Ok((stream.try_clone()?, stream)))
            .map_err(|e| {
                Failure::Missing(format!(
                    "no {what} at {at}: {e}; start `taut forward` with the function {function} and its setting \
                    control = \"{at}\"",
                    at = socket.display(),
                ))
            })?;
        Ok(Self {
            what,
            socket: socket.to_path_buf(),
            stream,
            lines: BufReader::new(read).lines(),
        })
    }

    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends a request with its file; returns the first line of the reply.
    pub fn ask(&mut self, request: &impl Serialize, file: &[u8]) -> Result<String, Failure> {
        let mut asked = serde_json::to_vec(request).map_err(|e| self.failed(&e.into()))?;
        asked.push(b'\n');
        asked.extend(file);
        // A function that does not accept the file replies with the reason and stops reading, so the reply counts even
        // if sending fails.
        let sent = (&self.stream).write_all(&asked);
        let line = self.lines.next();
        match (line, sent) {
            (Some(Ok(line)), _) => Ok(line),
            (_, Err(unsent)) => Err(self.failed(&unsent)),
            (unheard, Ok(())) => {
                let unheard = unheard.and_then(Result::err);
                Err(self.failed(&unheard.unwrap_or(ErrorKind::UnexpectedEof.into())))
            }
        }
    }

    /// Reads a further line of a reply.
    pub fn line(&mut self) -> Result<String, Failure> {
        let line = self.lines.next();
        let line = line.unwrap_or(Err(ErrorKind::UnexpectedEof.into()));
        line.map_err(|e| self.failed(&e))
    }

    pub fn read<T: DeserializeOwned>(&self, line: &str) -> Result<T, Failure> {
        serde_json::from_str(line).map_err(|e| self.failed(&e.into()))
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        let why = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not reply".to_string(),
            _ => format!("sent no valid reply: {error}"),
        };
        Failure::Missing(format!(
            "the {} at {} {why}",
            self.what,
            self.socket.display()
        ))
    }
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads a file of at most `most_bytes` bytes; `what` describes it for messages.
pub fn read_file(path: &Path, what: &str, most_bytes: u64) -> Result<Vec<u8>, Failure> {
    let wrong = |e: String| Failure::Input(format!("{}: {e}", path.display()));
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    let read = file.take(most_bytes + 1).read_to_end(&mut text);
    match read.map_err(|e| wrong(e.to_string()))? as u64 {
        more if more > most_bytes => Err(wrong(format!(
            "a file of {what} may have up to {most_bytes} bytes: load it in parts"
        ))),
        _ => Ok(text),
    }
}
