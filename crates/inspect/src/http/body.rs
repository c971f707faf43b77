//! The body of an HTTP message, after its head: delimited by its length, in chunks, or by the end of the connection, as
//! servers and clients interpret it.

use super::head::{AHEAD_BYTES, Side};
use super::outcome::{HttpFault, HttpLimit, Pushed, Then};
use super::state::{Ahead, Digits, State};
use super::unpack::Stopped;
use crate::buffer::Buffer;

/// Returns true if the first bytes of a body are a chunk-length line; none if more bytes are needed to decide.
fn is_chunk_line(bytes: &[u8]) -> Option<bool> {
    let begin = bytes.iter().position(|&byte| byte > b' ')?;
    let digits = bytes[begin..]
        .iter()
        .position(|byte| !byte.is_ascii_hexdigit())?;
    let behind = &bytes[begin + digits..];
    if digits == 0 {
        return Some(false);
    }
    if b"\r\n; \t".contains(&behind[0]) {
        return Some(true);
    }
    // Some servers skip other bytes up to the end of the line.
    memchr::memchr(b'\n', behind).map(|_| true)
}

/// Returns true if the first bytes after a message begin another response; none if more bytes are needed to decide.
fn is_response(bytes: &[u8]) -> Option<bool> {
    const WORD: &[u8] = b"HTTP/";
    let begin = bytes.iter().position(|&byte| !b"\r\n".contains(&byte))?;
    let line = &bytes[begin..];
    let len = line.len().min(WORD.len());
    match line[..len].eq_ignore_ascii_case(&WORD[..len]) {
        true if len == WORD.len() => Some(true),
        true => None,
        false => Some(false),
    }
}

impl Ahead {
    /// Returns the parser state that the bytes after a message's head imply, with the fault if they contradict the
    /// head; none if more bytes are needed.
    fn decide(self, bytes: &[u8], is_request: bool) -> Option<(State, Option<HttpFault>)> {
        match self {
            Self::Body(length) => Some((State::Body(length), None)),
            Self::Chunks(length) => Some(match (is_chunk_line(bytes)?, length) {
                (true, _) => (State::ChunkLine(0, Digits::Ahead), None),
                (false, Some(0)) => (State::Head, None),
                (false, Some(length)) => (State::Body(length), None),
                (false, None) => (State::UntilClose, is_request.then_some(HttpFault::Chunk)),
            }),
            Self::Message { is_chunked, length } => match (is_response(bytes)?, length) {
                (true, _) => Some((State::Head, None)),
                (false, length) if is_chunked => {
                    Some((State::Ahead(Self::Chunks(length)), Some(HttpFault::Body)))
                }
                (false, Some(length)) if length > 0 => {
                    Some((State::Body(length), Some(HttpFault::Body)))
                }
                (false, _) => Some((State::UntilClose, Some(HttpFault::Body))),
            },
        }
    }

    /// Returns the parser state to assume if too few bytes arrive to decide whether they belong to a body.
    fn undecided(self) -> State {
        match self {
            Self::Chunks(Some(length)) => State::Body(length),
            _ => State::UntilClose,
        }
    }
}

impl Side {
    /// Parses bytes after the head of a message, up to the next point where the parser state changes.
    pub fn step_body(
        &mut self,
        data: &[u8],
        is_request: bool,
        pushed: &mut Pushed,
    ) -> (usize, Then) {
        let byte = data[0];
        let taken = match self.state {
            State::Ahead(ahead) => self.look_ahead(ahead, data, is_request, pushed),
            State::LongHead(line_len, ahead) => {
                self.state = match byte {
                    b'\n' if line_len == 0 => ahead.map_or(State::Head, State::Ahead),
                    b'\n' => State::LongHead(0, ahead),
                    b'\r' => State::LongHead(line_len, ahead),
                    _ => State::LongHead(line_len.saturating_add(1), ahead),
                };
                1
            }
            State::Body(left) | State::Chunk(left) => {
                self.counted_bytes(left, data, is_request, pushed)
            }
            State::ChunkLine(length, digits) => self.chunk_line(length, digits, byte, pushed),
            State::ChunkEnd => match byte {
                b'\n' => {
                    self.state = State::ChunkLine(0, Digits::Ahead);
                    1
                }
                b'\r' => 1,
                _ => self.chunk_is_none(pushed),
            },
            State::Trailer(len) => {
                self.state = match byte {
                    b'\n' if len == 0 => State::Head,
                    b'\n' => State::Trailer(0),
                    b'\r' => State::Trailer(len),
                    _ => State::Trailer(len.saturating_add(1)),
                };
                1
            }
            State::UntilClose | State::Head | State::Tunnel => {
                self.more_body(data, is_request, pushed);
                data.len()
            }
        };
        // If a message has no body, there is nothing to report except that the body is complete.
        let is_told = taken == 0 && self.body.is_empty() && self.is_whole;
        if self.state != State::Head || is_told {
            // A fault is reported alone, so that the reports do not depend on how the bytes are split.
            return match (pushed.fault, pushed.limit) {
                (None, None) => (taken, Then::GoOn),
                _ => (taken, Then::Stop),
            };
        }
        // The next message starts only after the caller has evaluated this message, because both use the same memory.
        self.end_body(is_request, pushed);
        (taken, Then::Stop)
    }

    /// Stores bytes of a body or a chunk of which `left` bytes have not arrived yet. Returns the number of bytes
    /// stored.
    #[inline]
    fn counted_bytes(
        &mut self,
        left: u64,
        data: &[u8],
        is_request: bool,
        pushed: &mut Pushed,
    ) -> usize {
        let taken = left.min(data.len() as u64) as usize;
        let is_chunk = matches!(self.state, State::Chunk(_));
        self.state = match (left - taken as u64, is_chunk) {
            (0, false) => State::Head,
            (0, true) => State::ChunkEnd,
            (left, false) => State::Body(left),
            (left, true) => State::Chunk(left),
        };
        self.more_body(&data[..taken], is_request, pushed);
        taken
    }

    /// Decides which kind of body follows. Stores the bytes if they are too few to decide. Returns the number of bytes
    /// stored.
    fn look_ahead(
        &mut self,
        ahead: Ahead,
        data: &[u8],
        is_request: bool,
        pushed: &mut Pushed,
    ) -> usize {
        let mut both = self.held;
        both.push(data);
        let decided = ahead.decide(&both.bytes[..both.len], is_request);
        let is_full = both.len == AHEAD_BYTES;
        match decided.or(is_full.then(|| (ahead.undecided(), None))) {
            None => {
                let taken = both.len - self.held.len;
                self.held = both;
                taken
            }
            Some((state, fault)) => {
                self.state = state;
                self.held.is_known = self.held.len > 0;
                pushed.fault = pushed.fault.or(fault);
                0
            }
        }
    }

    /// Stores `rest`, which has to be parsed before any bytes that arrive later.
    pub fn hold_rest(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.held.push(rest);
            self.held.is_known = true;
        }
    }

    fn chunk_line(&mut self, length: u64, digits: Digits, byte: u8, pushed: &mut Pushed) -> usize {
        match (char::from(byte).to_digit(16), digits) {
            (Some(digit), Digits::Ahead | Digits::Here) if length < 1 << 56 => {
                self.state = State::ChunkLine(length << 4 | u64::from(digit), Digits::Here);
            }
            (_, Digits::Ahead) if byte <= b' ' => {}
            (_, Digits::Here | Digits::Over) if byte == b'\n' => {
                self.state = match length {
                    0 => State::Trailer(0),
                    length => State::Chunk(length),
                };
            }
            // This is a chunk extension, or other bytes that some servers skip like an extension.
            (None, Digits::Here) | (_, Digits::Over) => {
                self.state = State::ChunkLine(length, Digits::Over);
            }
            _ => return self.chunk_is_none(pushed),
        }
        1
    }

    /// Handles an invalid chunk: all later bytes are reported unchanged. Returns 0, the number of bytes used.
    fn chunk_is_none(&mut self, pushed: &mut Pushed) -> usize {
        self.state = State::UntilClose;
        pushed.fault = pushed.fault.or(Some(HttpFault::Chunk));
        0
    }

    /// Handles bytes that are not a head: they are reported as a body. Another request may follow such a request; such
    /// a response continues up to the end of the connection.
    pub fn head_is_none(&mut self, is_request: bool, pushed: &mut Pushed) {
        pushed.fault = Some(HttpFault::FirstLine);
        self.head_becomes_body();
        self.body_has_grown(0, is_request, pushed);
        self.state = if is_request {
            self.end_body(is_request, pushed);
            State::Head
        } else {
            State::UntilClose
        };
    }

    fn head_becomes_body(&mut self) {
        self.is_in_head = false;
        self.body.push(&self.head);
    }

    /// Gives up the message boundaries: later bytes belong to no known message and are reported unchanged.
    pub fn lose(&mut self) {
        self.unpacker.begin(&[]);
        self.held.is_known = self.held.len > 0;
        if self.is_in_head {
            self.head_becomes_body();
        }
        self.is_cut = true;
        self.state = State::UntilClose;
    }

    /// Handles the end of the connection: a body without a length is then complete.
    pub fn close(&mut self, is_request: bool, pushed: &mut Pushed) {
        let is_none = self.state == State::Head && self.is_in_head;
        if is_none {
            self.head_is_none(is_request, pushed);
        }
        if matches!(self.state, State::Head | State::Tunnel) {
            return;
        }
        let held = std::mem::take(&mut self.held.len);
        let bytes = self.held.bytes;
        self.more_body(&bytes[..held], is_request, pushed);
        self.end_body(is_request, pushed);
    }

    /// Stores bytes of a body, up to the limit.
    fn more_body(&mut self, data: &[u8], is_request: bool, pushed: &mut Pushed) {
        let before = self.body.len();
        // The first bytes of a body revoke an earlier report that the message has no body.
        self.is_whole &= before > 0 || data.is_empty() || self.body.room() == 0;
        let stopped = match self.unpacker.is_packed() {
            true => self.unpacker.push(data, &mut self.body),
            false => {
                self.body.push(data);
                Ok(())
            }
        };
        match stopped {
            Ok(()) => {}
            Err(Stopped::Broken) => pushed.fault = pushed.fault.or(Some(HttpFault::Packing)),
            Err(Stopped::Ratio) => pushed.limit = pushed.limit.or(Some(HttpLimit::Ratio)),
        }
        self.body_has_grown(before, is_request, pushed);
    }

    /// Reports the new bytes of a body; reports once that the body is complete.
    fn body_has_grown(&mut self, before: usize, is_request: bool, pushed: &mut Pushed) {
        let buffer = Buffer::body_of(is_request);
        if self.body.len() > before {
            if !pushed.ready.contains(buffer) {
                pushed.body_from = before;
            }
            self.has.insert(buffer);
            pushed.ready.insert(buffer);
        }
        if self.body.room() == 0 && !self.is_whole {
            self.is_whole = true;
            pushed.body_is_whole = true;
            pushed.limit = pushed.limit.or(Some(HttpLimit::Body));
        }
    }

    /// Ends the current body: stores its last decoded bytes, and reports that it is complete.
    fn end_body(&mut self, is_request: bool, pushed: &mut Pushed) {
        let before = self.body.len();
        self.unpacker.finish(&mut self.body);
        self.body_has_grown(before, is_request, pushed);
        self.body_is_whole(is_request, pushed);
    }

    /// Reports that the body is complete, even if there is no body.
    pub fn body_is_whole(&mut self, is_request: bool, pushed: &mut Pushed) {
        let buffer = Buffer::body_of(is_request);
        if self.is_whole || (self.is_cut && !self.has.contains(buffer)) {
            return;
        }
        if !pushed.ready.contains(buffer) {
            pushed.body_from = self.body.len();
        }
        pushed.ready.insert(buffer);
        pushed.body_is_whole = true;
        self.is_whole = true;
    }
}
