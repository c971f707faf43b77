//! HTTP/1.x of both directions of a connection (RFC 9112), read as bytes come. It is lenient, as those who attack are: what a server
//! might take for a message is one here.
//!
//! What buffers hold: `http.uri` is the target without scheme and host, decoded once, with `//`, `/./` and `/../` taken out of the
//! path; a header line is `Name: value` and CR LF whatever it ended in, lines that go on in the next are one; cookies are not among
//! them. Host names are in lower case and without port. What several headers of one name say is joined by `, `. Of bodies the first
//! bytes are kept, with the heads of chunks taken out; nothing is decompressed.

use crate::buffer::Buffer;
use std::ops::Range;

/// Bytes of a head that are kept; a longer one is a fault.
const HEAD_BYTES: usize = 8192;
/// Bytes that are made of a head: the shortest line, a colon and LF, becomes twice as long, and none more than that, with values that
/// are there a second time, such as the host's.
const MADE_BYTES: usize = 2 * HEAD_BYTES;
/// Bytes of a body that are kept.
const BODY_BYTES: usize = 4096;
/// Requests whose responses are awaited at a time.
const AWAITED: usize = 16;

pub use crate::buffer::BufferSet;

/// What is wrong with a message; from there on its direction is not read any more, but for the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpFault {
    /// A header line without a colon, with white space in front of its name or in it, or a second `Host`. It is kept.
    HeaderLine,
    /// Lengths that contradict each other: chunks count (RFC 9112 section 6.3), or the first length.
    Lengths,
    /// A head that is too long.
    LongHead,
    /// A first line that is none.
    FirstLine,
    /// A length of a chunk that is none.
    Chunk,
}

/// What became of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Bytes that were read; the others are to come again.
    pub consumed: usize,
    /// Buffers that are new, or have more in them.
    pub ready: BufferSet,
    /// What is wrong.
    pub fault: Option<HttpFault>,
}

/// Both directions of a connection.
#[derive(Debug, Default)]
pub struct Http {
    request: Side,
    response: Side,
    awaited: [Asked; AWAITED],
    asked: usize,
    answered: usize,
    /// Whether more requests were awaited than are kept: which response answers what is not known from there on.
    is_lost: bool,
}

/// What of a request matters for its response.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    /// The response has no body.
    is_head: bool,
    /// What follows a response that agrees is not HTTP.
    is_connect: bool,
    /// What follows status 101 is not HTTP.
    upgrades: bool,
}

/// Place of bytes in a head.
type Part = (u16, u16);

/// Where a direction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// In the head, or in front of one.
    #[default]
    Head,
    /// In a body of so many bytes more.
    Body(u64),
    /// In a body that ends with the connection.
    UntilClose,
    /// In the line with the length of a chunk, which may have white space in front; the length as far as it was read.
    ChunkLine(u64, Digits),
    /// In a chunk of so many bytes more.
    Chunk(u64),
    /// In the line end behind a chunk.
    ChunkEnd,
    /// In the lines behind the last chunk; bytes of the present line.
    Trailer(u32),
    /// Not read any more.
    Opaque,
}

/// Where the digits of a chunk's length are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digits {
    Ahead,
    Here,
    Over,
}

/// Header lines, beside the host, whose values are buffers of their own, by their names in lower case.
const VALUES: [(&[u8], Buffer); 10] = [
    (b"user-agent", Buffer::HttpUserAgent),
    (b"referer", Buffer::HttpReferer),
    (b"content-type", Buffer::HttpContentType),
    (b"accept", Buffer::HttpAccept),
    (b"accept-encoding", Buffer::HttpAcceptEncoding),
    (b"accept-language", Buffer::HttpAcceptLanguage),
    (b"connection", Buffer::HttpConnection),
    (b"content-length", Buffer::HttpContentLength),
    (b"location", Buffer::HttpLocation),
    (b"server", Buffer::HttpServer),
];

/// Those of them that requests do not have.
const OF_RESPONSES: [&[u8]; 2] = [b"location", b"server"];

#[derive(Debug)]
struct Side {
    state: State,
    head: Box<[u8; HEAD_BYTES]>,
    head_len: usize,
    /// Whether only a line end has been read since the last line end: then the next one ends the head.
    line_len: usize,
    body: Box<[u8; BODY_BYTES]>,
    body_len: usize,
    /// First line and its parts.
    line: Part,
    parts: [Part; 3],
    /// Header lines as they came.
    raw_headers: Part,
    /// What is made of the head: target or header lines in normal form, and so on.
    made: Box<[u8; MADE_BYTES]>,
    made_len: usize,
    target: Part,
    /// Host and port in the target, nothing if it has none.
    authority: Part,
    headers: Part,
    cookie: Part,
    host: Part,
    /// Those of [`VALUES`].
    values: [Part; VALUES.len()],
    header_names: Part,
    has: BufferSet,
}

impl Default for Side {
    fn default() -> Self {
        const NONE: Part = (0, 0);
        Self {
            state: State::Head,
            head: Box::new([0; HEAD_BYTES]),
            head_len: 0,
            line_len: 0,
            body: Box::new([0; BODY_BYTES]),
            body_len: 0,
            line: NONE,
            parts: [NONE; 3],
            raw_headers: NONE,
            made: Box::new([0; MADE_BYTES]),
            made_len: 0,
            target: NONE,
            authority: NONE,
            headers: NONE,
            cookie: NONE,
            host: NONE,
            values: [NONE; VALUES.len()],
            header_names: NONE,
            has: BufferSet::default(),
        }
    }
}

/// What a head says about the body behind it.
#[derive(Debug, Default)]
struct Framing {
    length: Option<u64>,
    is_chunked: bool,
    contradicts: bool,
    is_odd: bool,
    upgrades: bool,
}

/// A header line, with those that continue it.
struct Line {
    begin: usize,
    /// Behind its name, which is nothing without a colon.
    name_end: usize,
    colon: Option<usize>,
    /// Behind its last byte that is not white space.
    content_end: usize,
    /// Where the next one begins.
    next: usize,
}

impl Http {
    /// Makes it ready for another connection.
    pub fn reset(&mut self) {
        for side in [&mut self.request, &mut self.response] {
            side.state = State::Head;
            side.begin();
        }
        (self.asked, self.answered, self.is_lost) = (0, 0, false);
    }

    /// Bytes of a direction are missing: it is not read any more.
    pub fn gap(&mut self, to_server: bool) {
        let side = if to_server {
            &mut self.request
        } else {
            &mut self.response
        };
        side.state = State::Opaque;
    }

    /// Takes bytes of a direction, up to where buffers of a message are complete; the caller looks at those and comes again with the
    /// rest.
    pub fn push(&mut self, to_server: bool, data: &[u8]) -> Pushed {
        let mut pushed = Pushed::default();
        while pushed.consumed < data.len() {
            let rest = &data[pushed.consumed..];
            let side = if to_server {
                &mut self.request
            } else {
                &mut self.response
            };
            let taken = match side.state {
                State::Opaque => {
                    pushed.consumed = data.len();
                    return pushed;
                }
                State::Head => {
                    let (taken, end) = side.head(rest);
                    pushed.consumed += taken;
                    match end {
                        HeadEnd::NotYet => return pushed,
                        HeadEnd::TooLong => {
                            side.state = State::Opaque;
                            pushed.fault = Some(HttpFault::LongHead);
                        }
                        HeadEnd::Here => self.head_is_here(to_server, &mut pushed),
                    }
                    return pushed;
                }
                State::Body(left) => {
                    let taken = left.min(rest.len() as u64) as usize;
                    let left = left - taken as u64;
                    side.state = if left == 0 {
                        State::Head
                    } else {
                        State::Body(left)
                    };
                    side.more_body(&rest[..taken], to_server, &mut pushed.ready);
                    taken
                }
                State::UntilClose => {
                    side.more_body(rest, to_server, &mut pushed.ready);
                    rest.len()
                }
                State::ChunkLine(length, digits) => {
                    let byte = rest[0];
                    match (char::from(byte).to_digit(16), digits) {
                        (Some(digit), Digits::Ahead | Digits::Here) if length < 1 << 56 => {
                            side.state =
                                State::ChunkLine(length << 4 | u64::from(digit), Digits::Here);
                        }
                        _ if byte == b'\n' => {
                            side.state = if length == 0 {
                                State::Trailer(0)
                            } else {
                                State::Chunk(length)
                            };
                        }
                        (_, Digits::Ahead) if matches!(byte, b' ' | b'\t') => {}
                        // An extension, which is passed over, or white space.
                        _ if digits == Digits::Over
                            || matches!(byte, b';' | b' ' | b'\t' | b'\r') =>
                        {
                            side.state = State::ChunkLine(length, Digits::Over);
                        }
                        _ => {
                            side.state = State::Opaque;
                            pushed.fault = Some(HttpFault::Chunk);
                        }
                    }
                    1
                }
                State::Chunk(left) => {
                    let taken = left.min(rest.len() as u64) as usize;
                    let left = left - taken as u64;
                    side.state = if left == 0 {
                        State::ChunkEnd
                    } else {
                        State::Chunk(left)
                    };
                    side.more_body(&rest[..taken], to_server, &mut pushed.ready);
                    taken
                }
                State::ChunkEnd => {
                    if rest[0] == b'\n' {
                        side.state = State::ChunkLine(0, Digits::Ahead);
                    } else if rest[0] != b'\r' {
                        side.state = State::Opaque;
                        pushed.fault = Some(HttpFault::Chunk);
                    }
                    1
                }
                State::Trailer(len) => {
                    side.state = match rest[0] {
                        b'\n' if len == 0 => State::Head,
                        b'\n' => State::Trailer(0),
                        b'\r' => State::Trailer(len),
                        _ => State::Trailer(len.saturating_add(1)),
                    };
                    1
                }
            };
            pushed.consumed += taken;
            let is_over = side.state == State::Head;
            if is_over {
                // The next message begins in memory of its own once this one was looked at.
                return pushed;
            }
        }
        pushed
    }

    /// The head of a message is complete: says what is in it and what follows.
    fn head_is_here(&mut self, to_server: bool, pushed: &mut Pushed) {
        let side = if to_server {
            &mut self.request
        } else {
            &mut self.response
        };
        let framing = match side.read_head(to_server) {
            Some(framing) => framing,
            None => {
                side.state = State::Opaque;
                pushed.fault = Some(HttpFault::FirstLine);
                return;
            }
        };
        pushed.ready = side.has;
        if framing.contradicts {
            pushed.fault = Some(HttpFault::Lengths);
        } else if framing.is_odd {
            pushed.fault = Some(HttpFault::HeaderLine);
        }
        let with_length = match (framing.is_chunked, framing.length) {
            (true, _) => Some(State::ChunkLine(0, Digits::Ahead)),
            (false, Some(0)) => Some(State::Head),
            (false, Some(length)) => Some(State::Body(length)),
            (false, None) => None,
        };
        if to_server {
            let method = side.of_head(side.parts[0]);
            let asked = Asked {
                is_head: method == b"HEAD",
                is_connect: method == b"CONNECT",
                upgrades: framing.upgrades,
            };
            if self.asked - self.answered < AWAITED {
                self.awaited[self.asked % AWAITED] = asked;
            } else {
                self.is_lost = true;
            }
            self.asked += 1;
            side.state = with_length.unwrap_or(State::Head);
            return;
        }
        let status: u16 = std::str::from_utf8(side.of_head(side.parts[1]))
            .ok()
            .and_then(|it| it.parse().ok())
            .unwrap_or(0);
        let asked = if self.answered < self.asked && !self.is_lost {
            self.awaited[self.answered % AWAITED]
        } else {
            Asked::default()
        };
        if !(100..200).contains(&status) && self.answered < self.asked {
            self.answered += 1;
        }
        // A tunnel from here on, whatever lengths the head has (RFC 9112 section 6.3).
        let is_tunnel = asked.is_connect && (200..300).contains(&status);
        side.state = match status {
            // Another protocol from here on.
            101 => State::Opaque,
            _ if is_tunnel => State::Opaque,
            100..=199 | 204 | 304 => State::Head,
            _ if asked.is_head => State::Head,
            _ => with_length.unwrap_or(State::UntilClose),
        };
        if is_tunnel || (status == 101 && asked.upgrades) {
            self.request.state = State::Opaque;
        }
    }

    /// Returns a buffer of the present message of one direction.
    pub fn buffer_of(&self, to_server: bool, buffer: Buffer) -> Option<&[u8]> {
        let side = if to_server {
            &self.request
        } else {
            &self.response
        };
        if !side.has.contains(buffer) {
            return None;
        }
        side.buffer(buffer)
    }
}

enum HeadEnd {
    NotYet,
    Here,
    TooLong,
}

impl Side {
    /// Begins another message.
    fn begin(&mut self) {
        (self.head_len, self.line_len, self.body_len, self.made_len) = (0, 0, 0, 0);
        self.has = BufferSet::default();
    }

    /// Takes bytes of a head, up to the empty line that ends it.
    fn head(&mut self, data: &[u8]) -> (usize, HeadEnd) {
        if self.head_len == 0 {
            self.begin();
        }
        for (at, &byte) in data.iter().enumerate() {
            // Line ends in front of a message are passed over (RFC 9112 section 2.2).
            if self.head_len == 0 && matches!(byte, b'\r' | b'\n') {
                continue;
            }
            let Some(place) = self.head.get_mut(self.head_len) else {
                return (at, HeadEnd::TooLong);
            };
            *place = byte;
            self.head_len += 1;
            match byte {
                b'\n' if self.line_len == 0 => return (at + 1, HeadEnd::Here),
                b'\n' => self.line_len = 0,
                b'\r' => {}
                _ => self.line_len += 1,
            }
        }
        (data.len(), HeadEnd::NotYet)
    }

    fn of_head(&self, part: Part) -> &[u8] {
        &self.head[usize::from(part.0)..usize::from(part.1)]
    }

    /// Puts bytes behind what is made; what finds no room is left out.
    fn make(&mut self, bytes: &[u8]) {
        let room = MADE_BYTES - self.made_len;
        let taken = bytes.len().min(room);
        self.made[self.made_len..][..taken].copy_from_slice(&bytes[..taken]);
        self.made_len += taken;
    }

    /// Reads the head: none if its first line is none.
    fn read_head(&mut self, is_request: bool) -> Option<Framing> {
        let end = self.head_len;
        self.head_len = 0;
        let line_end = self.head[..end].iter().position(|&byte| byte == b'\n')?;
        let trimmed = line_end - usize::from(line_end > 0 && self.head[line_end - 1] == b'\r');
        self.line = (0, trimmed as u16);
        self.split_first_line(trimmed, is_request)?;
        self.raw_headers = ((line_end + 1) as u16, end as u16);
        let names: &[Buffer] = if is_request {
            &[
                Buffer::HttpMethod,
                Buffer::HttpUri,
                Buffer::HttpRawUri,
                Buffer::HttpProtocol,
                Buffer::HttpRequestLine,
                Buffer::HttpHeader,
                Buffer::HttpRawHeader,
                Buffer::HttpHeaderNames,
                Buffer::HttpStart,
            ]
        } else {
            &[
                Buffer::HttpProtocol,
                Buffer::HttpStatusCode,
                Buffer::HttpStatusMessage,
                Buffer::HttpResponseLine,
                Buffer::HttpHeader,
                Buffer::HttpRawHeader,
                Buffer::HttpHeaderNames,
                Buffer::HttpStart,
            ]
        };
        self.has = names.iter().copied().collect();
        if is_request {
            self.normalise_target();
        }
        Some(self.header_lines(line_end + 1, end, is_request))
    }

    /// Method, target, version; or version, status, reason.
    fn split_first_line(&mut self, end: usize, is_request: bool) -> Option<()> {
        let line = &self.head[..end];
        let is_space = |&byte: &u8| matches!(byte, b' ' | b'\t');
        let first = line.iter().position(is_space)?;
        let second_at = first + line[first..].iter().position(|byte| !is_space(byte))?;
        let part = |from: usize, to: usize| (from as u16, to as u16);
        if is_request {
            // The version is behind the last space; a target may have spaces in it.
            let last = line
                .iter()
                .rposition(is_space)
                .filter(|&last| last > second_at);
            let (target_end, version) = match last {
                Some(last) if line[last + 1..].starts_with(b"HTTP/") => (last, part(last + 1, end)),
                _ => (end, part(end, end)),
            };
            let trimmed = line[..target_end]
                .iter()
                .rposition(|byte| !is_space(byte))
                .map_or(second_at, |at| at + 1);
            self.parts = [
                part(0, first),
                part(second_at, trimmed.max(second_at)),
                version,
            ];
            return Some(());
        }
        if !line.starts_with(b"HTTP/") {
            return None;
        }
        let status_end = second_at
            + line[second_at..]
                .iter()
                .position(is_space)
                .unwrap_or(end - second_at);
        let reason = (status_end + 1).min(end);
        self.parts = [
            part(0, first),
            part(second_at, status_end),
            part(reason, end),
        ];
        Some(())
    }

    /// Decodes the target once, and takes out of its path what a server would.
    fn normalise_target(&mut self) {
        let from = self.made_len;
        let (begin, end) = (usize::from(self.parts[1].0), usize::from(self.parts[1].1));
        let mut at = begin;
        self.authority = (0, 0);
        if let Some((host, path)) = split_absolute(&self.head[begin..end]) {
            self.authority = ((begin + host.start) as u16, (begin + host.end) as u16);
            at = begin + path;
            if self.head[at..end].first() != Some(&b'/') {
                // The path that is meant where there is none.
                self.make(b"/");
            }
        }
        let mut in_query = false;
        while at < end && self.made_len < MADE_BYTES {
            let hex = |at: usize| char::from(self.head[at]).to_digit(16);
            let byte = match self.head[at] {
                b'%' if at + 2 < end => match (hex(at + 1), hex(at + 2)) {
                    (Some(high), Some(low)) => {
                        at += 2;
                        (high << 4 | low) as u8
                    }
                    _ => b'%',
                },
                byte => {
                    if byte == b'?' && !in_query {
                        self.fold_last(from);
                        in_query = true;
                    }
                    byte
                }
            };
            at += 1;
            if self.made_len == MADE_BYTES {
                break;
            }
            self.made[self.made_len] = byte;
            self.made_len += 1;
            if !in_query && byte == b'/' && self.made_len > from + 1 {
                self.fold_path(from);
            }
        }
        if !in_query {
            self.fold_last(from);
        }
        self.target = (from as u16, self.made_len as u16);
    }

    /// The path is over: if its last segment is `.` or `..`, a slash is meant behind it (RFC 3986 section 5.2.4).
    fn fold_last(&mut self, begin: usize) {
        let path = self.made.get(begin..self.made_len).unwrap_or_default();
        let is_dots = path.ends_with(b"/.") || path.ends_with(b"/..");
        if is_dots && self.made_len < MADE_BYTES {
            self.made[self.made_len] = b'/';
            self.made_len += 1;
            self.fold_path(begin);
        }
    }

    /// The path ends in a slash: takes what is in front of it out if that is nothing, `.` or `..`.
    fn fold_path(&mut self, begin: usize) {
        let path = &self.made[begin..self.made_len - 1];
        let Some(slash) = path.iter().rposition(|&byte| byte == b'/') else {
            return;
        };
        match &path[slash + 1..] {
            b"" | b"." => self.made_len = begin + slash + 1,
            b".." => {
                let parent = path[..slash]
                    .iter()
                    .rposition(|&byte| byte == b'/')
                    .unwrap_or(slash);
                self.made_len = begin + parent + 1;
            }
            _ => {}
        }
    }

    /// The header line at `at`, of those that end at `end`.
    fn line_at(&self, at: usize, end: usize) -> Line {
        let mut next = line_end_of(&self.head[..end], at);
        // Lines that begin with white space belong to the one before.
        while next < end && matches!(self.head[next], b' ' | b'\t') {
            next = line_end_of(&self.head[..end], next);
        }
        // The first line has none before it: white space in front of it hides nothing.
        let begin = trim_start(&self.head[..next], at);
        let content_end = trim_end(&self.head[..next], begin);
        let colon = self.head[begin..content_end]
            .iter()
            .position(|&byte| byte == b':')
            .map(|it| it + begin);
        Line {
            begin,
            name_end: colon.map_or(begin, |colon| trim_end(&self.head[..colon], begin)),
            colon,
            content_end,
            next,
        }
    }

    /// Goes through the header lines: makes them normal, and finds those that are buffers of their own.
    fn header_lines(&mut self, begin: usize, end: usize, is_request: bool) -> Framing {
        let mut framing = Framing::default();
        let headers_from = self.made_len;
        let mut at = begin;
        let cookie_name: &[u8] = if is_request { b"cookie" } else { b"set-cookie" };
        let mut first_cookie = None;
        let mut repeated = BufferSet::default();
        while at < end {
            let line = self.line_at(at, end);
            let line_at = at;
            at = line.next;
            if line.content_end == line.begin {
                continue;
            }
            framing.is_odd |= line.begin != line_at;
            let Some(colon) = line.colon else {
                framing.is_odd = true;
                self.make_line(line.begin, line.content_end);
                continue;
            };
            let in_front = &self.head[line.begin..colon];
            framing.is_odd |= in_front.is_empty() || in_front.iter().any(u8::is_ascii_whitespace);
            let value = trim_start(&self.head[..line.content_end], colon + 1);
            let mut name = [0; 20];
            let name_len = line.name_end - line.begin;
            if name_len <= name.len() {
                name[..name_len].copy_from_slice(&self.head[line.begin..line.name_end]);
                name[..name_len].make_ascii_lowercase();
            }
            let name = &name[..name_len.min(20)];
            if name_len <= 20 && name == cookie_name {
                first_cookie = first_cookie.or(Some(line_at));
                continue;
            }
            let from = self.made_len;
            self.make_line_of(line.begin, line.name_end, value, line.content_end);
            // Where the value lies in what was made.
            let made_value = (from + name_len + 2).min(self.made_len);
            let made_end = self.made_len.saturating_sub(2).max(made_value);
            let part = (made_value as u16, made_end as u16);
            if name_len > 20 {
                continue;
            }
            match name {
                b"content-length" => self.content_length(part, &mut framing),
                b"transfer-encoding" => {
                    let value = &self.made[made_value..made_end];
                    framing.is_chunked |= ends_in_chunked(value);
                }
                b"upgrade" => framing.upgrades = true,
                _ => {}
            }
            let number = VALUES.iter().position(|(known, _)| *known == name);
            let (buffer, place) = match number {
                Some(_) if is_request && OF_RESPONSES.contains(&name) => continue,
                Some(number) => (VALUES[number].1, &mut self.values[number]),
                None if is_request && name == b"host" => (Buffer::HttpHost, &mut self.host),
                None => continue,
            };
            if self.has.contains(buffer) {
                repeated.insert(buffer);
            } else {
                *place = part;
                self.has.insert(buffer);
            }
        }
        self.headers = (headers_from as u16, self.made_len as u16);
        framing.is_odd |= repeated.contains(Buffer::HttpHost);
        if is_request {
            self.make_host(repeated.contains(Buffer::HttpHost));
        }
        for (number, (name, buffer)) in VALUES.into_iter().enumerate() {
            if repeated.contains(buffer) {
                self.values[number] = self.joined(name, |_, _| {});
            }
        }
        if let Some(first) = first_cookie {
            self.make_cookies(first, end, cookie_name);
        }
        self.make_names(begin, end);
        framing.contradicts |= framing.is_chunked && framing.length.is_some();
        framing
    }

    /// The values of all header lines of a name, with `, ` between them, behind what was made; `finish` gets where each begins.
    fn joined(&mut self, name: &[u8], finish: impl Fn(&mut Self, usize)) -> Part {
        let from = self.made_len;
        let (mut at, end) = (usize::from(self.headers.0), usize::from(self.headers.1));
        let mut is_first = true;
        while at < end {
            let next = line_end_of(&self.made[..end], at);
            let line = &self.made[at..next];
            let is_of_name = line
                .split_at_checked(name.len())
                .is_some_and(|(it, rest)| it.eq_ignore_ascii_case(name) && rest.starts_with(b": "));
            if is_of_name {
                if !is_first {
                    self.make(b", ");
                }
                is_first = false;
                let value = at + name.len() + 2;
                let len = next
                    .saturating_sub(value + 2)
                    .min(MADE_BYTES - self.made_len);
                let to = self.made_len;
                self.made.copy_within(value..value + len, to);
                self.made_len += len;
                finish(self, to);
            }
            at = next;
        }
        (from as u16, self.made_len as u16)
    }

    /// All cookies from the line at `at` on, with `, ` between them, behind what was made.
    fn make_cookies(&mut self, mut at: usize, end: usize, name: &[u8]) {
        let from = self.made_len;
        let mut is_first = true;
        while at < end {
            let line = self.line_at(at, end);
            at = line.next;
            let Some(colon) = line.colon else { continue };
            if !self.head[line.begin..line.name_end].eq_ignore_ascii_case(name) {
                continue;
            }
            if !is_first {
                self.make(b", ");
            }
            is_first = false;
            let value = trim_start(&self.head[..line.content_end], colon + 1);
            self.make_from_head(value, line.content_end);
        }
        self.cookie = (from as u16, self.made_len as u16);
        self.has.insert(Buffer::HttpCookie);
        self.has.insert(Buffer::HttpRawCookie);
    }

    /// The names of all header lines from the one at `at` on, behind what was made.
    fn make_names(&mut self, mut at: usize, end: usize) {
        let from = self.made_len;
        self.make(b"\r\n");
        while at < end {
            let line = self.line_at(at, end);
            at = line.next;
            if line.colon.is_some() {
                self.make_from_head(line.begin, line.name_end);
                self.make(b"\r\n");
            }
        }
        self.make(b"\r\n");
        self.header_names = (from as u16, self.made_len as u16);
    }

    /// The host, behind what was made: what the target says counts before any header (RFC 9112 section 3.2.2).
    fn make_host(&mut self, is_repeated: bool) {
        let from = self.made_len;
        let (begin, end) = (usize::from(self.authority.0), usize::from(self.authority.1));
        if begin < end {
            self.make_from_head(begin, end);
            self.has.insert(Buffer::HttpHost);
        } else if is_repeated {
            self.host = self.joined(b"host", Self::name_of_host);
            return;
        } else if self.has.contains(Buffer::HttpHost) {
            let (begin, end) = (usize::from(self.host.0), usize::from(self.host.1));
            let len = (end - begin).min(MADE_BYTES - from);
            self.made.copy_within(begin..begin + len, from);
            self.made_len += len;
        } else {
            return;
        }
        self.name_of_host(from);
        self.host = (from as u16, self.made_len as u16);
    }

    /// What was made from `from` on is a host: puts it in lower case, and takes its port away.
    fn name_of_host(&mut self, from: usize) {
        let value = &mut self.made[from..self.made_len];
        value.make_ascii_lowercase();
        match value.iter().rposition(|&byte| byte == b':') {
            // Not one within the brackets of an address of IPv6.
            Some(colon) if !value[colon..].contains(&b']') => self.made_len = from + colon,
            _ => {}
        }
    }

    fn content_length(&self, part: Part, framing: &mut Framing) {
        let value = &self.made[usize::from(part.0)..usize::from(part.1)];
        let is_digits =
            !value.is_empty() && value.len() <= 18 && value.iter().all(u8::is_ascii_digit);
        let length = value.iter().fold(0u64, |all, byte| {
            all.wrapping_mul(10)
                .wrapping_add(u64::from(byte.wrapping_sub(b'0')))
        });
        match framing.length {
            _ if !is_digits => framing.contradicts = true,
            Some(before) => framing.contradicts |= before != length,
            None => framing.length = Some(length),
        }
    }

    fn make_from_head(&mut self, begin: usize, end: usize) {
        let taken = (end - begin).min(MADE_BYTES - self.made_len);
        self.made[self.made_len..][..taken].copy_from_slice(&self.head[begin..begin + taken]);
        self.made_len += taken;
    }

    /// A line without a name.
    fn make_line(&mut self, begin: usize, end: usize) {
        self.make_from_head(begin, end);
        self.make(b"\r\n");
    }

    /// `Name: value`, a value over several lines as one.
    fn make_line_of(&mut self, begin: usize, name_end: usize, value: usize, end: usize) {
        self.make_from_head(begin, name_end);
        self.make(b": ");
        let mut at = value;
        while at < end {
            let line = self.head[at..end]
                .iter()
                .position(|&byte| byte == b'\n')
                .map_or(end, |it| at + it);
            let content_end = if line < end {
                trim_end(&self.head[..line], at)
            } else {
                line
            };
            self.make_from_head(at, content_end);
            if line >= end {
                break;
            }
            self.make(b" ");
            at = trim_start(&self.head[..end], line + 1);
        }
        self.make(b"\r\n");
    }

    /// Keeps bytes of a body, as long as there is room.
    fn more_body(&mut self, data: &[u8], is_request: bool, ready: &mut BufferSet) {
        let taken = data.len().min(BODY_BYTES - self.body_len);
        if taken == 0 {
            return;
        }
        self.body[self.body_len..][..taken].copy_from_slice(&data[..taken]);
        self.body_len += taken;
        let buffer = if is_request {
            Buffer::HttpClientBody
        } else {
            Buffer::HttpServerBody
        };
        self.has.insert(buffer);
        ready.insert(buffer);
    }

    fn buffer(&self, buffer: Buffer) -> Option<&[u8]> {
        let made = |part: Part| &self.made[usize::from(part.0)..usize::from(part.1)];
        Some(match buffer {
            Buffer::HttpMethod => self.of_head(self.parts[0]),
            Buffer::HttpRawUri => self.of_head(self.parts[1]),
            Buffer::HttpUri => made(self.target),
            Buffer::HttpProtocol if self.has.contains(Buffer::HttpMethod) => {
                self.of_head(self.parts[2])
            }
            Buffer::HttpProtocol => self.of_head(self.parts[0]),
            Buffer::HttpStatusCode => self.of_head(self.parts[1]),
            Buffer::HttpStatusMessage => self.of_head(self.parts[2]),
            Buffer::HttpRequestLine | Buffer::HttpResponseLine => self.of_head(self.line),
            Buffer::HttpHeader => made(self.headers),
            Buffer::HttpRawHeader => self.of_head(self.raw_headers),
            Buffer::HttpCookie | Buffer::HttpRawCookie => made(self.cookie),
            Buffer::HttpHost => made(self.host),
            Buffer::HttpHeaderNames => made(self.header_names),
            Buffer::HttpStart => self.of_head((0, self.raw_headers.1)),
            Buffer::HttpClientBody | Buffer::HttpServerBody => &self.body[..self.body_len],
            _ => {
                let number = VALUES.iter().position(|(_, known)| *known == buffer)?;
                made(self.values[number])
            }
        })
    }
}

/// The place behind the line end of the line at `at`.
fn line_end_of(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(bytes.len(), |it| at + it + 1)
}

/// Where in an absolute target host and port are, and where its path begins; none for another target.
fn split_absolute(target: &[u8]) -> Option<(Range<usize>, usize)> {
    let scheme = target.iter().position(|&byte| byte == b':')?;
    let is_scheme = target[..scheme]
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    if scheme == 0 || !is_scheme || !target[scheme..].starts_with(b"://") {
        return None;
    }
    let begin = scheme + 3;
    let path = target[begin..]
        .iter()
        .position(|byte| b"/?#".contains(byte))
        .map_or(target.len(), |it| begin + it);
    // A user may be named in front of the host.
    let host = target[begin..path]
        .iter()
        .rposition(|&byte| byte == b'@')
        .map_or(begin, |it| begin + it + 1);
    Some((host..path, path))
}

fn trim_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..]
        .iter()
        .rposition(|byte| !byte.is_ascii_whitespace())
        .map_or(from, |it| from + it + 1)
}

fn trim_start(bytes: &[u8], from: usize) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.iter()
        .position(|byte| !byte.is_ascii_whitespace())
        .map_or(bytes.len().max(from), |it| from + it)
}

/// Whether chunks are what a list of codings ends in (RFC 9112 section 6.1).
fn ends_in_chunked(value: &[u8]) -> bool {
    let last = value
        .rsplit(|&byte| byte == b',')
        .next()
        .unwrap_or_default();
    last.trim_ascii().eq_ignore_ascii_case(b"chunked")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// What is in the buffers of a message.
    type Message = Vec<(Buffer, Vec<u8>)>;

    /// All messages of a direction: what each has in its buffers at its end, whichever way the bytes are cut.
    fn messages(
        http: &mut Http,
        to_server: bool,
        pieces: &[&[u8]],
    ) -> (Vec<Message>, Vec<HttpFault>) {
        let (mut all, mut faults) = (Vec::<Message>::new(), Vec::new());
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let pushed = http.push(to_server, rest);
                assert!(pushed.consumed > 0);
                rest = &rest[pushed.consumed..];
                faults.extend(pushed.fault);
                let is_head = pushed.ready.contains(Buffer::HttpHeader);
                let now = pushed
                    .ready
                    .iter()
                    .map(|it| (it, http.buffer_of(to_server, it).unwrap().to_vec()));
                if is_head {
                    all.push(now.collect());
                } else if let Some(last) = all.last_mut() {
                    for (buffer, bytes) in now {
                        last.retain(|it| it.0 != buffer);
                        last.push((buffer, bytes));
                    }
                }
            }
        }
        (all, faults)
    }

    fn get(message: &[(Buffer, Vec<u8>)], buffer: Buffer) -> &str {
        message
            .iter()
            .find(|it| it.0 == buffer)
            .map_or("-", |it| std::str::from_utf8(&it.1).unwrap())
    }

    const REQUESTS: &[u8] = b"POST /a%2Fb/./c/../d//e?x=%41/../y HTTP/1.1\r\nHost: WWW.Example.com:8080\r\nUser-Agent:  curl/8\r\n\
        Cookie: a=1\r\nX-Long: one\r\n  two\r\nContent-Length: 5\r\nCookie: b=2\r\n\r\nhelloGET / HTTP/1.0\nAccept: */*\n\n\
        PUT /u HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5;x=y\r\nabcde\r\n3\r\nfgh\r\n0\r\nTrailer: x\r\n\r\nHEAD /h HTTP/1.1\r\n\r\n";

    #[test]
    fn requests_one_behind_the_other_are_read() {
        let (all, faults) = messages(&mut Http::default(), true, &[REQUESTS]);
        assert_eq!((all.len(), faults), (4, vec![]));
        let first = &all[0];
        assert_eq!(get(first, Buffer::HttpMethod), "POST");
        assert_eq!(
            get(first, Buffer::HttpRawUri),
            "/a%2Fb/./c/../d//e?x=%41/../y"
        );
        assert_eq!(get(first, Buffer::HttpUri), "/a/b/d/e?x=A/../y");
        assert_eq!(get(first, Buffer::HttpHost), "www.example.com");
        assert_eq!(get(first, Buffer::HttpUserAgent), "curl/8");
        assert_eq!(get(first, Buffer::HttpCookie), "a=1, b=2");
        assert_eq!(
            get(first, Buffer::HttpHeader),
            "Host: WWW.Example.com:8080\r\nUser-Agent: curl/8\r\nX-Long: one two\r\nContent-Length: 5\r\n"
        );
        assert_eq!(get(first, Buffer::HttpClientBody), "hello");
        assert_eq!(get(&all[1], Buffer::HttpProtocol), "HTTP/1.0");
        assert_eq!(get(&all[1], Buffer::HttpAccept), "*/*");
        assert_eq!(get(&all[2], Buffer::HttpClientBody), "abcdefgh");
        assert_eq!(get(&all[3], Buffer::HttpMethod), "HEAD");
    }

    #[test]
    fn responses_end_where_their_requests_say() {
        let mut http = Http::default();
        messages(
            &mut http,
            true,
            &[b"HEAD / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"],
        );
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found here\r\nSet-Cookie: s=1\r\n\
            Content-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\n\r\nall the rest HTTP/1.1 500 x\r\n\r\n";
        let (all, faults) = messages(&mut http, false, &[answers]);
        assert_eq!((all.len(), faults), (4, vec![]));
        assert_eq!(get(&all[2], Buffer::HttpStatusCode), "404");
        assert_eq!(get(&all[2], Buffer::HttpStatusMessage), "Not Found here");
        assert_eq!(get(&all[2], Buffer::HttpCookie), "s=1");
        assert_eq!(get(&all[2], Buffer::HttpServerBody), "abc");
        assert!(get(&all[3], Buffer::HttpServerBody).starts_with("all the rest"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let faults =
            |to_server, bytes: &[u8]| messages(&mut Http::default(), to_server, &[bytes]).1;
        assert_eq!(
            faults(true, b"GET / HTTP/1.1\r\nno colon\r\n\r\n"),
            [HttpFault::HeaderLine]
        );
        assert_eq!(
            faults(
                true,
                b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc"
            ),
            [HttpFault::Lengths]
        );
        let both =
            b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert_eq!(faults(true, both), [HttpFault::Lengths]);
        assert_eq!(
            faults(
                true,
                b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n"
            ),
            [HttpFault::Chunk]
        );
        assert_eq!(
            faults(false, b"SSH-2.0-x y\r\n\r\n"),
            [HttpFault::FirstLine]
        );
        assert_eq!(
            faults(
                true,
                &[b"GET / HTTP/1.1\r\nX: ", &[b'a'; 9000][..]].concat()
            ),
            [HttpFault::LongHead]
        );
    }

    proptest! {
        #[test]
        fn messages_are_the_same_however_bytes_are_cut(cuts in prop::collection::vec(0usize..REQUESTS.len(), 0..12)) {
            let mut cuts = cuts;
            cuts.extend([0, REQUESTS.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|it| &REQUESTS[it[0]..it[1]]).collect();
            let whole = messages(&mut Http::default(), true, &[REQUESTS]);
            prop_assert_eq!(messages(&mut Http::default(), true, &pieces), whole);
        }

        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..300, to_server in any::<bool>()) {
            let mut http = Http::default();
            messages(&mut http, to_server, &[&bytes]);
            http.reset();
            let mut damaged = REQUESTS.to_vec();
            let at = at % damaged.len();
            damaged.splice(at..at, bytes);
            messages(&mut http, true, &[&damaged]);
        }
    }

    #[test]
    fn a_response_that_nobody_asked_for_answers_no_later_request() {
        let mut http = Http::default();
        let unasked = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        messages(&mut http, false, &[unasked]);
        messages(&mut http, true, &[b"HEAD / HTTP/1.1\r\n\r\n"]);
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 404 No\r\n\r\n";
        let (all, faults) = messages(&mut http, false, &[answers]);
        assert_eq!((all.len(), faults), (2, vec![]));
    }

    #[test]
    fn nothing_made_of_a_head_finds_no_room() {
        let head = |line: &[u8], n: usize, rest: &[u8]| {
            [b"POST /x HTTP/1.1\r\n", &line.repeat(n)[..], rest].concat()
        };
        let rest = b"Transfer-Encoding: chunked\r\nHost: h\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
        for (line, n) in [(&b"a:b\n"[..], 1640), (b":\n", 4050), (b"Accept:\n", 1000)] {
            let (all, faults) = messages(&mut Http::default(), true, &[&head(line, n, rest)]);
            assert!(faults.iter().all(|it| *it == HttpFault::HeaderLine));
            assert_eq!(get(&all[0], Buffer::HttpHost), "h");
            assert_eq!(get(&all[0], Buffer::HttpClientBody), "body");
        }
        let long = "h".repeat(8100);
        let request = format!("GET / HTTP/1.1\nHost:{long}\n\n");
        let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
        assert_eq!(get(&all[0], Buffer::HttpHost), long);
    }

    #[test]
    fn names_and_the_start_are_as_sent() {
        let request: &[u8] = b"POST / HTTP/1.1\r\nHost: h\r\nno name\r\nCookie: c=1\r\nAccept-Encoding: gzip\r\nAccept-Language: de\r\n\
            Connection: close\r\nContent-Length: 2\r\n\r\nhi";
        let (all, _) = messages(&mut Http::default(), true, &[request]);
        let start = std::str::from_utf8(&request[..request.len() - 2]).unwrap();
        for (buffer, expected) in [
            (
                Buffer::HttpHeaderNames,
                "\r\nHost\r\nCookie\r\nAccept-Encoding\r\nAccept-Language\r\nConnection\r\nContent-Length\r\n\r\n",
            ),
            (Buffer::HttpStart, start),
            (Buffer::HttpAcceptEncoding, "gzip"),
            (Buffer::HttpAcceptLanguage, "de"),
            (Buffer::HttpConnection, "close"),
            (Buffer::HttpContentLength, "2"),
        ] {
            assert_eq!(get(&all[0], buffer), expected);
        }
    }

    #[test]
    fn headers_that_come_again_are_joined() {
        let request = b"GET / HTTP/1.1\r\nHost: A:80\r\nUser-Agent: one\r\nAccept: x\r\nReferer: r\r\nX-Host: n\r\nContent-Type: t\r\n\
            HOST: b\r\nuser-agent : two\r\n more\r\nAccept:\r\nAccept: y\r\nReferer: q\r\nContent-Type: u\r\n\r\n";
        let (all, faults) = messages(&mut Http::default(), true, &[request]);
        assert_eq!(faults, [HttpFault::HeaderLine]);
        for (buffer, expected) in [
            (Buffer::HttpHost, "a, b"),
            (Buffer::HttpUserAgent, "one, two more"),
            (Buffer::HttpAccept, "x, , y"),
            (Buffer::HttpReferer, "r, q"),
            (Buffer::HttpContentType, "t, u"),
        ] {
            assert_eq!(get(&all[0], buffer), expected);
        }
        let both = b"Server: one\r\nLocation: /a\r\nServer: two\r\nContent-Length: 0\r\n\r\n";
        let response = [&b"HTTP/1.1 302 Found\r\n"[..], both].concat();
        let (all, _) = messages(&mut Http::default(), false, &[&response]);
        assert_eq!(get(&all[0], Buffer::HttpServer), "one, two");
        assert_eq!(get(&all[0], Buffer::HttpLocation), "/a");
        // Requests do not have them.
        let request = [&b"GET / HTTP/1.1\r\n"[..], both].concat();
        let (all, _) = messages(&mut Http::default(), true, &[&request]);
        assert!(all[0].iter().all(|it| it.0 != Buffer::HttpServer));
        let faults = |bytes: &[u8]| messages(&mut Http::default(), true, &[bytes]).1;
        assert_eq!(
            faults(b"GET / HTTP/1.1\nHost: a\nHost: a\n\n"),
            [HttpFault::HeaderLine]
        );
        assert_eq!(faults(b"GET / HTTP/1.1\nAccept: a\nAccept: a\n\n"), []);
    }

    #[test]
    fn the_host_in_a_target_counts_before_the_header() {
        for (target, expected) in [
            ("http://Evil/x", "evil"),
            ("http://user:word@evil:80", "evil"),
            ("https://[2001:DB8::1]:443?q", "[2001:db8::1]"),
            ("http:///x", "good"),
            ("/http://evil/", "good"),
            ("evil:443", "good"),
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: good\r\n\r\n");
            let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
            assert_eq!(get(&all[0], Buffer::HttpHost), expected, "{target}");
            assert_eq!(get(&all[0], Buffer::HttpRawUri), target);
        }
        let request = b"GET http://evil/ HTTP/1.1\r\n\r\n";
        let (all, _) = messages(&mut Http::default(), true, &[request]);
        assert_eq!(get(&all[0], Buffer::HttpHost), "evil");
    }

    #[test]
    fn all_cookies_are_kept() {
        let request = [
            &b"GET / HTTP/1.1\r\n"[..],
            &b"Cookie: a=1\r\nX: y\r\n".repeat(20),
            b"\r\n",
        ]
        .concat();
        let (all, _) = messages(&mut Http::default(), true, &[&request]);
        assert_eq!(get(&all[0], Buffer::HttpCookie), ["a=1"; 20].join(", "));
        assert_eq!(get(&all[0], Buffer::HttpHeader), "X: y\r\n".repeat(20));
    }

    #[test]
    fn white_space_hides_nothing() {
        for blank in [" ", "\t", " \r\n ", "\r"] {
            let request = format!(
                "POST / HTTP/1.1\r\n{blank}Host: h\r\nTransfer-Encoding: chunked\r\n\r\n \t4 \r\nbody\r\n 0\r\n\r\n"
            );
            let (all, faults) = messages(&mut Http::default(), true, &[request.as_bytes()]);
            assert_eq!(faults, [HttpFault::HeaderLine], "{blank:?}");
            assert_eq!(get(&all[0], Buffer::HttpHost), "h");
            assert!(get(&all[0], Buffer::HttpHeader).starts_with("Host: h\r\n"));
            assert_eq!(get(&all[0], Buffer::HttpClientBody), "body");
        }
    }

    #[test]
    fn a_tunnel_begins_where_the_server_agrees() {
        const NEXT: &[u8] = b"GET /next HTTP/1.1\r\n\r\n";
        let connect = b"CONNECT h:443 HTTP/1.1\r\n\r\n";
        let upgrade = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
        let plain = b"GET / HTTP/1.1\r\n\r\n";
        for (request, status, is_read) in [
            (&connect[..], 200, false),
            (connect, 405, true),
            (connect, 101, true),
            (upgrade, 101, false),
            (upgrade, 200, true),
            (plain, 101, true),
            (plain, 200, true),
        ] {
            let mut http = Http::default();
            messages(&mut http, true, &[request]);
            let answer = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
            messages(&mut http, false, &[answer.as_bytes()]);
            let (all, _) = messages(&mut http, true, &[NEXT]);
            assert_eq!(all.len(), usize::from(is_read), "{status}");
        }
    }

    #[test]
    fn with_more_requests_awaited_than_are_kept_all_are_ordinary() {
        let mut http = Http::default();
        messages(&mut http, true, &[&b"HEAD / HTTP/1.1\r\n\r\n".repeat(16)]);
        messages(&mut http, true, &[&b"GET / HTTP/1.1\r\n\r\n".repeat(4)]);
        let answers = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".repeat(20);
        let (all, faults) = messages(&mut http, false, &[&answers]);
        assert_eq!((all.len(), faults), (20, vec![]));
        assert!(
            all.iter()
                .all(|it| get(it, Buffer::HttpServerBody) == "abc")
        );
    }

    #[test]
    fn paths_are_folded_as_servers_do() {
        let table = [
            ("/a/..", "/"),
            ("/a/.?b/..", "/a/?b/.."),
            ("/../../a", "/a"),
            ("/a:/../b//c", "/b/c"),
            ("/x://../y", "/y"),
            ("http://host/../x", "/x"),
            ("http://host/a/../x//y", "/x/y"),
            ("http://host", "/"),
            ("http://host?a=/../b", "/?a=/../b"),
            ("HTTP://host:80/%61", "/a"),
            ("http:///x", "/x"),
            ("/http://host/x", "/http:/host/x"),
            ("host:443", "host:443"),
            ("/%2e%2e/%252e", "/%2e"),
            ("*", "*"),
            ("..", ".."),
        ];
        for (target, expected) in table {
            let request = format!("GET {target} HTTP/1.1\r\n\r\n");
            let (all, _) = messages(&mut Http::default(), true, &[request.as_bytes()]);
            let found = all.first().map_or("", |first| get(first, Buffer::HttpUri));
            assert_eq!(found, expected, "{target}");
        }
    }
}
