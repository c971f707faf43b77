//! The head of a message (first line and header lines): its lines are collected as they arrive, then parsed once.

use super::limits::HttpLimits;
use super::memory::Memory;
use super::state::State;
use super::token::is_token;
use super::unpack::{Coding, MOST_CODINGS, Unpacker};
use super::values::VALUES;
use crate::buffer::{Buffer, BufferSet};
use std::ops::Range;

/// Number of bytes that the parser examines after a line of white space, to decide whether the head continues.
pub(super) const AHEAD_BYTES: usize = 64;
/// Number of bytes of an invalid header line that are searched for a header that some servers find within the line.
const HIDDEN_BYTES: usize = 256;

/// A range of bytes in a head, or in the bytes derived from the head.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    from: u32,
    to: u32,
}

impl Part {
    pub fn new(from: usize, to: usize) -> Self {
        Self {
            from: from as u32,
            to: to as u32,
        }
    }

    pub fn range(self) -> Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// The parser of one direction of a connection.
#[derive(Debug)]
pub(super) struct Side {
    pub state: State,
    pub head: Memory,
    /// True if the first byte of the next message's head (first line and header lines) has arrived.
    pub is_in_head: bool,
    /// Offset of the current header line.
    line_at: usize,
    /// Offset after a line of white space at which the head may have ended; none if there is no such line.
    blank_end: Option<usize>,
    pub held: Held,
    pub body: Memory,
    pub unpacker: Unpacker,
    /// True if the body was reported as complete.
    pub is_whole: bool,
    /// True if bytes of the message were not stored or are missing, so that the message may have a body of unknown
    /// framing.
    pub is_cut: bool,
    /// First line with its line end; none until the line has arrived. The next two fields are that line without its
    /// end, and its three parts.
    first: Option<Part>,
    pub line: Part,
    pub parts: [Part; 3],
    /// Header lines as received.
    pub raw_headers: Part,
    /// Bytes derived from the head: normalised target and header lines, header names, cookies, and joined values.
    pub made: Memory,
    pub target: Part,
    /// Host and port in the request's target; empty if the target is not an absolute URI.
    pub authority: Part,
    pub headers: Part,
    pub cookie: Part,
    pub host: Part,
    /// Values of the header lines in [`VALUES`].
    pub values: [Part; VALUES.len()],
    pub header_names: Part,
    pub has: BufferSet,
}

impl Side {
    /// Returns the first line of the head, once it is complete.
    pub fn first_line(&self) -> Option<&[u8]> {
        self.first.map(|first| &self.head[first.range()])
    }
}

/// Bytes that are buffered until later bytes decide whether they belong to a head, to a body or to another message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub bytes: [u8; AHEAD_BYTES],
    pub len: usize,
    /// True if the meaning of the bytes is now known, so that they can be parsed.
    pub is_known: bool,
}

impl Held {
    const NONE: Self = Self {
        bytes: [0; AHEAD_BYTES],
        len: 0,
        is_known: false,
    };

    /// Stores bytes until the buffer is full; returns the number of stored bytes.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(AHEAD_BYTES - self.len);
        self.bytes[self.len..][..taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Returns the buffered bytes once their meaning is known, and empties the buffer.
    pub fn take_known(&mut self) -> Option<Self> {
        let is_there = self.is_known && self.len > 0;
        is_there.then(|| std::mem::replace(self, Self::NONE))
    }
}

/// The framing of the body, as the message's first line and header lines describe it.
#[derive(Debug, Default)]
pub(super) struct Framing {
    pub length: Option<u64>,
    pub is_chunked: bool,
    pub contradicts: bool,
    pub is_odd: bool,
    pub upgrades: bool,
    /// True if the requested upgrade is HTTP/2 without TLS.
    pub wants_http2: bool,
    /// The outermost content codings, in the order in which the sender applied them.
    codings: [Option<Coding>; MOST_CODINGS],
    transfer_coding: Option<Coding>,
    pub has_too_many_codings: bool,
}

impl Framing {
    /// Reads the names of codings. Unknown codings are ignored, so their bytes stay encoded.
    pub fn codings_in(&mut self, value: &[u8], of_transfer: bool) {
        let names = value.split(|&byte| !(byte.is_ascii_alphanumeric() || byte == b'-'));
        for coding in names.filter_map(Coding::of_name) {
            if of_transfer {
                self.has_too_many_codings |= self.transfer_coding.is_some();
                self.transfer_coding = Some(coding);
            } else {
                self.has_too_many_codings |= self.codings[0].is_some();
                self.codings.rotate_left(1);
                self.codings[MOST_CODINGS - 1] = Some(coding);
            }
        }
    }

    /// Prepares the unpacker for a body with these codings.
    pub fn begin_unpacking(&mut self, unpacker: &mut Unpacker) {
        if let Some(last) = self.transfer_coding.take() {
            self.has_too_many_codings |= self.codings[0].is_some();
            self.codings.rotate_left(1);
            self.codings[MOST_CODINGS - 1] = Some(last);
        }
        let mut all = [Coding::Gzip; MOST_CODINGS];
        let mut len = 0;
        for coding in self.codings.into_iter().flatten() {
            all[len] = coding;
            len += 1;
        }
        unpacker.begin(&all[..len]);
    }

    /// Reads `Transfer-Encoding`. Any mention of chunks counts, because the bytes of the body show whether it has
    /// chunks.
    pub fn transfer_in(&mut self, value: &[u8]) {
        self.is_chunked |= value
            .windows(b"chunked".len())
            .any(|it| it.eq_ignore_ascii_case(b"chunked"));
        self.codings_in(value, true);
    }

    /// Searches an invalid line for a header that some servers or clients find in it: after control characters, in
    /// continued lines, or without a line end before it.
    pub fn hidden_in(&mut self, line: &[u8]) {
        let mut clean = [0; HIDDEN_BYTES];
        let mut len = 0;
        for byte in line.iter().filter(|byte| byte.is_ascii_graphic()) {
            let Some(place) = clean.get_mut(len) else {
                break;
            };
            *place = byte.to_ascii_lowercase();
            len += 1;
        }
        let behind = |name: &[u8]| {
            let at = memchr::memmem::find(&clean[..len], name)?;
            clean[..len].get(at + name.len()..)
        };
        if let Some(value) = behind(b"transfer-encoding:") {
            self.transfer_in(value);
        }
        if let Some(value) = behind(b"content-encoding:") {
            self.codings_in(value, false);
        }
    }
}

/// The result of collecting bytes of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadEnd {
    NotYet,
    Here,
    /// The limit on stored bytes of a head (first line and header lines) is reached.
    Full,
    /// The bytes cannot be the beginning of a response: they are a body of HTTP/0.9, or not HTTP.
    NoResponse,
}

impl Side {
    pub fn new(head: usize, body: usize) -> Self {
        Self {
            state: State::Head,
            head: Memory::new(head),
            is_in_head: false,
            line_at: 0,
            blank_end: None,
            held: Held::NONE,
            body: Memory::new(body),
            unpacker: Unpacker::default(),
            is_whole: false,
            is_cut: false,
            first: None,
            line: Part::default(),
            parts: Default::default(),
            raw_headers: Part::default(),
            made: Memory::new(HttpLimits::made_of(head)),
            target: Part::default(),
            authority: Part::default(),
            headers: Part::default(),
            cookie: Part::default(),
            host: Part::default(),
            values: Default::default(),
            header_names: Part::default(),
            has: BufferSet::default(),
        }
    }

    /// Resets the parser of the direction for another connection.
    pub fn reset(&mut self) {
        self.state = State::Head;
        self.begin();
        (self.is_in_head, self.held) = (false, Held::NONE);
        for memory in [&mut self.head, &mut self.made, &mut self.body] {
            memory.forget();
        }
    }

    /// Begins another message of the direction.
    fn begin(&mut self) {
        for memory in [&mut self.head, &mut self.made, &mut self.body] {
            memory.truncate(0);
        }
        (self.line_at, self.blank_end, self.first) = (0, None, None);
        (self.is_whole, self.is_cut) = (false, false);
        self.unpacker.begin(&[]);
        self.has = BufferSet::default();
    }

    /// Collects bytes of a head (first line and header lines), up to the empty line at its end. Returns the number of
    /// bytes used, and whether the head is complete.
    pub fn take_head(&mut self, data: &[u8], is_request: bool) -> (usize, HeadEnd) {
        let mut at = 0;
        if !self.is_in_head {
            // Line ends before a message are skipped (RFC 9112 section 2.2).
            at = data
                .iter()
                .position(|byte| !b"\r\n".contains(byte))
                .unwrap_or(data.len());
            if at == data.len() {
                return (at, HeadEnd::NotYet);
            }
            self.begin();
            self.is_in_head = true;
        }
        let came_before = self.head.len();
        while at < data.len() {
            let line_end = memchr::memchr(b'\n', &data[at..]).map(|it| at + it + 1);
            let end = line_end.unwrap_or(data.len());
            let taken = self.head.push(&data[at..end]);
            at += taken;
            if let Some(blank_end) = self.blank_end
                && self.ends_at(blank_end)
            {
                return (self.end_at(blank_end, at, came_before), HeadEnd::Here);
            }
            if at < end {
                return (at, HeadEnd::Full);
            }
            if line_end.is_some() {
                match self.line_is_over(is_request) {
                    HeadEnd::NotYet => self.line_at = self.head.len(),
                    end => return (at, end),
                }
            }
        }
        let is_none = !is_request && self.first.is_none() && self.is_no_response();
        let end = if is_none {
            HeadEnd::NoResponse
        } else {
            HeadEnd::NotYet
        };
        (at, end)
    }

    /// Handles the end of the current line and returns whether the head is complete.
    fn line_is_over(&mut self, is_request: bool) -> HeadEnd {
        let line = &self.head[self.line_at..];
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        if self.first.is_none() {
            let is_first = if is_request {
                true
            } else {
                starts_http(line) == Some(true)
            };
            if is_first {
                self.first = Some(Part::new(self.line_at, self.head.len()));
                let is_over = is_request && is_of_first_version(line);
                return if is_over {
                    HeadEnd::Here
                } else {
                    HeadEnd::NotYet
                };
            }
            // Clients skip lines before the status line that begin with white space.
            return match line[0] <= b' ' {
                true => HeadEnd::NotYet,
                false => HeadEnd::NoResponse,
            };
        }
        match line.iter().all(|byte| b"\r\n".contains(byte)) {
            true => return HeadEnd::Here,
            false if is_blank => self.blank_end = Some(self.head.len()),
            false => self.blank_end = None,
        }
        HeadEnd::NotYet
    }

    /// Returns true if the current line can be neither the status line of a response nor a blank line before it.
    fn is_no_response(&self) -> bool {
        let line = &self.head[self.line_at..];
        line.first().is_some_and(|&byte| byte > b' ') && starts_http(line) == Some(false)
    }

    /// Returns true if the line of white space before the offset `blank_end` ended the head, because no header line
    /// follows it.
    fn ends_at(&mut self, blank_end: usize) -> bool {
        let next = &self.head[blank_end..];
        let next = &next[..next.len().min(AHEAD_BYTES)];
        match next.iter().position(|&byte| !is_token(byte)) {
            Some(at) if at > 0 && next[at] == b':' => self.blank_end = None,
            // A header line may follow the white space.
            Some(0) if next[0].is_ascii_whitespace() => {}
            Some(_) => return true,
            None if next.len() >= AHEAD_BYTES => self.blank_end = None,
            None => {}
        }
        false
    }

    /// Ends the head at the offset `blank_end` and returns how many of the new bytes belong to the head. Earlier bytes
    /// after that offset are buffered.
    fn end_at(&mut self, blank_end: usize, taken: usize, came_before: usize) -> usize {
        let from_now = self.head.len() - blank_end.max(came_before).min(self.head.len());
        if blank_end < came_before {
            self.held = Held::NONE;
            self.held.push(&self.head[blank_end..came_before]);
            self.held.is_known = true;
        }
        self.head.truncate(blank_end);
        taken - from_now
    }

    pub fn of_head(&self, part: Part) -> &[u8] {
        &self.head[part.range()]
    }

    /// Returns the length of the head's incomplete last line in bytes.
    pub fn line_len(&self) -> u32 {
        let line = &self.head[self.line_at..];
        line.iter().filter(|&&byte| byte != b'\r').count() as u32
    }

    /// Returns the method of a request.
    pub fn method(&self) -> &[u8] {
        self.of_head(self.parts[0])
    }

    /// Returns the status of a response, 0 if it has none.
    pub fn status(&self) -> u16 {
        let text = std::str::from_utf8(self.of_head(self.parts[1]));
        text.ok().and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    /// Parses the head; returns none if its first line is invalid.
    pub fn read_head(&mut self, is_request: bool) -> Option<Framing> {
        let whole = Part::new(0, self.head.len());
        let first = self.first.unwrap_or(whole).range();
        let begin = match is_request {
            true => first.start,
            false => first.start + blank_len(&self.head[first.clone()]),
        };
        let mut end = first.end;
        while end > begin && b"\r\n".contains(&self.head[end - 1]) {
            end -= 1;
        }
        self.line = Part::new(begin, end);
        self.split_first_line(is_request)?;
        self.raw_headers = Part::new(first.end, self.head.len());
        let names: &[Buffer] = if is_request {
            &[
                Buffer::HttpMethod,
                Buffer::HttpUri,
                Buffer::HttpRawUri,
                Buffer::HttpRequestLine,
            ]
        } else {
            &[
                Buffer::HttpStatusCode,
                Buffer::HttpStatusMessage,
                Buffer::HttpResponseLine,
            ]
        };
        let both = [
            Buffer::HttpProtocol,
            Buffer::HttpHeader,
            Buffer::HttpRawHeader,
            Buffer::HttpHeaderNames,
            Buffer::HttpStart,
        ];
        self.has = names.iter().copied().chain(both).collect();
        if is_request {
            self.normalise_target(self.parts[1]);
        }
        let mut framing = self.header_lines(is_request);
        if memchr::memchr2(b'\r', 0, self.of_head(self.line)).is_some() {
            framing.hidden_in(&self.head[self.line.range()]);
        }
        Some(framing)
    }

    /// Splits the first line into method, target and version, or version, status and reason; returns none if the line
    /// is invalid.
    fn split_first_line(&mut self, is_request: bool) -> Option<()> {
        let Range { start: begin, end } = self.line.range();
        let line = &self.head[..end];
        let is_space = |&byte: &u8| matches!(byte, b' ' | b'\t');
        let find = |from: usize, space: bool| {
            let found = line[from..].iter().position(|it| is_space(it) == space);
            found.map_or(end, |it| from + it)
        };
        let first = find(begin, true);
        let second = find(first, false);
        if is_request {
            let is_method = first > begin && line[begin..first].iter().all(|&it| is_token(it));
            if !is_method || second == end {
                return None;
            }
            // The version follows the last space; a target may contain spaces.
            let last = line.iter().rposition(is_space).filter(|&it| it > second);
            let (target_end, version) = match last {
                Some(last) if line[last + 1..].starts_with(b"HTTP/") => {
                    (last, Part::new(last + 1, end))
                }
                _ => (end, Part::new(end, end)),
            };
            let trimmed = line[..target_end].iter().rposition(|it| !is_space(it));
            let target = Part::new(second, trimmed.map_or(second, |it| it + 1).max(second));
            self.parts = [Part::new(begin, first), target, version];
            return Some(());
        }
        if starts_http(&line[begin..]) != Some(true) {
            return None;
        }
        let status_end = find(second, true);
        self.parts = [
            Part::new(begin, first),
            Part::new(second, status_end),
            Part::new((status_end + 1).min(end), end),
        ];
        Some(())
    }
}

/// Returns the number of bytes of white space and control characters at the beginning of `line`.
fn blank_len(line: &[u8]) -> usize {
    let begin = line.iter().position(|&byte| byte > b' ');
    begin.unwrap_or(line.len())
}

/// Returns true if clients accept a line as the first line of a response: letters in either case, after any white
/// space. Returns none if the line is too short to decide.
fn starts_http(line: &[u8]) -> Option<bool> {
    const WORD: &[u8] = b"HTTP";
    let line = &line[blank_len(line)..];
    let len = line.len().min(WORD.len());
    match line[..len].eq_ignore_ascii_case(&WORD[..len]) {
        true if len == WORD.len() => Some(true),
        true => None,
        false => Some(false),
    }
}

/// Returns true if a request line has no version (HTTP/0.9), so that no header lines follow.
fn is_of_first_version(line: &[u8]) -> bool {
    let target = line.strip_prefix(b"GET ").unwrap_or_default().trim_ascii();
    !target.is_empty() && !target.iter().any(|byte| b" \t".contains(byte))
}
