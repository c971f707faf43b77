//! The header lines of a message: their normalised form for rules, and their description of the body's framing.

use super::head::{Framing, Part, Side};
use super::token::is_token;
use super::values::{OF_RESPONSES, VALUES};
use crate::buffer::{Buffer, BufferSet};
use std::ops::Range;

/// Header lines that describe how a body is encoded.
const BODY_HEADERS: [&[u8]; 2] = [b"transfer-encoding", b"content-encoding"];

/// A header line, including its continuation lines.
struct Line {
    begin: usize,
    /// Offset after the name; the name is empty if the line has no colon.
    name_end: usize,
    colon: Option<usize>,
    /// Offset after the last byte of the line that is not white space.
    content_end: usize,
    /// Offset of the next header line.
    next: usize,
}

impl Framing {
    /// Reads the value of `Content-Length`; the first of several values has precedence.
    fn length_in(&mut self, value: &[u8]) {
        // Some servers ignore text after the digits, accept a sign, or accept a bare CR as the end of the line.
        let digits = value.strip_prefix(b"+").unwrap_or(value);
        let count = digits.iter().take_while(|it| it.is_ascii_digit()).count();
        let length = digits[..count].iter().fold(0u64, |all, byte| {
            all.saturating_mul(10)
                .saturating_add(u64::from(byte - b'0'))
        });
        self.contradicts |= count != value.len() || count == 0;
        match self.length {
            _ if count == 0 => {}
            Some(before) => self.contradicts |= before != length,
            None => self.length = Some(length),
        }
    }
}

impl Side {
    /// Parses the header line at offset `at`; the header lines end at offset `end`.
    fn line_at(&self, at: usize, end: usize) -> Line {
        let mut next = line_end_of(&self.head[..end], at);
        // A line that begins with white space, or with a byte that some servers treat as white space, continues the
        // line before.
        while next < end && self.head[next] <= b' ' && !b"\r\n".contains(&self.head[next]) {
            next = line_end_of(&self.head[..end], next);
        }
        // The first header line cannot continue another line, so its leading white space is skipped.
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

    /// Normalises the header lines, stores the values that are separate buffers, and returns the framing of the body.
    pub fn header_lines(&mut self, is_request: bool) -> Framing {
        let mut framing = Framing::default();
        let headers_from = self.made.len();
        let Range { start: begin, end } = self.raw_headers.range();
        let mut at = begin;
        let cookie_name: &[u8] = if is_request { b"cookie" } else { b"set-cookie" };
        let mut first_cookie = None;
        let mut repeated = BufferSet::default();
        while at < end {
            let line = self.line_at(at, end);
            let line_at = std::mem::replace(&mut at, line.next);
            if line.content_end == line.begin {
                continue;
            }
            let name = &self.head[line.begin..line.name_end];
            let is_odd = line.begin != line_at
                || line.colon != Some(line.name_end)
                || name.is_empty()
                || !name.iter().all(|&byte| is_token(byte));
            framing.is_odd |= is_odd;
            let content = &self.head[line_at..line.content_end];
            let is_read = BODY_HEADERS.iter().any(|it| name.eq_ignore_ascii_case(it));
            let is_cut = || memchr::memchr2(b'\r', b'\n', content).is_some();
            if memchr::memchr(0, content).is_some() || (!is_read && (is_odd || is_cut())) {
                framing.hidden_in(content);
            }
            if line.colon.is_none() {
                self.make_line(line.begin, line.content_end);
            } else if name.eq_ignore_ascii_case(cookie_name) {
                first_cookie = first_cookie.or(Some(line_at));
            } else {
                self.header_line(&line, is_request, &mut repeated, &mut framing);
            }
        }
        self.headers = Part::new(headers_from, self.made.len());
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

    /// Normalises a header line, and reads its value if it describes the body.
    fn header_line(
        &mut self,
        line: &Line,
        is_request: bool,
        repeated: &mut BufferSet,
        framing: &mut Framing,
    ) {
        let colon = line.colon.unwrap_or(line.name_end);
        let value = trim_start(&self.head[..line.content_end], colon + 1);
        let from = self.made.len();
        self.make_line_of(line.begin, line.name_end, value, line.content_end);
        let name = &self.head[line.begin..line.name_end];
        // The position of the value in the normalised bytes.
        let begin = (from + name.len() + 2).min(self.made.len());
        let part = Part::new(begin, self.made.len().saturating_sub(2).max(begin));
        let made = &self.made[part.range()];
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"content-length") {
            framing.length_in(made);
        } else if is(BODY_HEADERS[0]) {
            framing.transfer_in(made);
        } else if is(BODY_HEADERS[1]) {
            framing.codings_in(made, false);
        } else if is(b"upgrade") {
            framing.upgrades = true;
            let names = |it: &[u8]| it.eq_ignore_ascii_case(b"h2c");
            framing.wants_http2 |= made.windows(3).any(names);
        }
        let number = VALUES.iter().position(|(known, _)| is(known));
        let (buffer, place) = match number {
            Some(_) if is_request && OF_RESPONSES.into_iter().any(is) => return,
            Some(number) => (VALUES[number].1, &mut self.values[number]),
            None if is_request && is(b"host") => (Buffer::HttpHost, &mut self.host),
            None => return,
        };
        if self.has.contains(buffer) {
            repeated.insert(buffer);
        } else {
            *place = part;
            self.has.insert(buffer);
        }
    }

    /// Appends the values of all header lines with the name `name`, joined by `, `, to the normalised bytes. Calls
    /// `finish` after each value with the offset at which the value begins.
    fn joined(&mut self, name: &[u8], finish: impl Fn(&mut Self, usize)) -> Part {
        let from = self.made.len();
        let Range { start: mut at, end } = self.headers.range();
        let mut is_first = true;
        while at < end {
            let next = line_end_of(&self.made[..end], at);
            let line = &self.made[at..next];
            let is_of_name = line
                .split_at_checked(name.len())
                .is_some_and(|(it, rest)| it.eq_ignore_ascii_case(name) && rest.starts_with(b": "));
            if is_of_name {
                if !is_first {
                    self.made.push(b", ");
                }
                is_first = false;
                let value = at + name.len() + 2;
                let to = self.made.len();
                self.made.push_own(value..next.saturating_sub(2).max(value));
                finish(self, to);
            }
            at = next;
        }
        Part::new(from, self.made.len())
    }

    /// Appends all cookies in the header lines from offset `at` to offset `end`, joined by `, `, to the normalised
    /// bytes.
    fn make_cookies(&mut self, mut at: usize, end: usize, name: &[u8]) {
        let from = self.made.len();
        let mut is_first = true;
        while at < end {
            let line = self.line_at(at, end);
            at = line.next;
            let Some(colon) = line.colon else { continue };
            if !self.head[line.begin..line.name_end].eq_ignore_ascii_case(name) {
                continue;
            }
            if !is_first {
                self.made.push(b", ");
            }
            is_first = false;
            let value = trim_start(&self.head[..line.content_end], colon + 1);
            self.make_from_head(value, line.content_end);
        }
        self.cookie = Part::new(from, self.made.len());
        self.has.insert(Buffer::HttpCookie);
        self.has.insert(Buffer::HttpRawCookie);
    }

    /// Appends the names of all header lines from offset `at` to offset `end` to the normalised bytes.
    fn make_names(&mut self, mut at: usize, end: usize) {
        let from = self.made.len();
        self.made.push(b"\r\n");
        while at < end {
            let line = self.line_at(at, end);
            at = line.next;
            if line.colon.is_some() {
                self.make_from_head(line.begin, line.name_end);
                self.made.push(b"\r\n");
            }
        }
        self.made.push(b"\r\n");
        self.header_names = Part::new(from, self.made.len());
    }

    /// Appends the host to the normalised bytes: the target has precedence over any header (RFC 9112 section 3.2.2).
    fn make_host(&mut self, is_repeated: bool) {
        let from = self.made.len();
        let authority = self.authority.range();
        if !authority.is_empty() {
            self.made.push(&self.head[authority]);
            self.has.insert(Buffer::HttpHost);
        } else if is_repeated {
            self.host = self.joined(b"host", Self::name_of_host);
            return;
        } else if self.has.contains(Buffer::HttpHost) {
            self.made.push_own(self.host.range());
        } else {
            return;
        }
        self.name_of_host(from);
        self.host = Part::new(from, self.made.len());
    }

    /// Converts the host at the end of the normalised bytes, from `from` on, to lower case and removes its port.
    fn name_of_host(&mut self, from: usize) {
        let value = &mut self.made[from..];
        value.make_ascii_lowercase();
        match value.iter().rposition(|&byte| byte == b':') {
            // A colon within the brackets of an IPv6 address begins no port.
            Some(colon) if !value[colon..].contains(&b']') => self.made.truncate(from + colon),
            _ => {}
        }
    }

    fn make_from_head(&mut self, begin: usize, end: usize) {
        self.made.push(&self.head[begin..end]);
    }

    /// Appends a header line without a name to the normalised bytes.
    fn make_line(&mut self, begin: usize, end: usize) {
        self.make_from_head(begin, end);
        self.made.push(b"\r\n");
    }

    /// Appends a header line to the normalised bytes as `Name: value`; a continued value becomes one line.
    fn make_line_of(&mut self, begin: usize, name_end: usize, value: usize, end: usize) {
        self.make_from_head(begin, name_end);
        self.made.push(b": ");
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
            self.made.push(b" ");
            at = trim_start(&self.head[..end], line + 1);
        }
        self.made.push(b"\r\n");
    }

    pub fn buffer(&self, buffer: Buffer) -> Option<&[u8]> {
        let made = |part: Part| &self.made[part.range()];
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
            Buffer::HttpStart => &self.head,
            Buffer::HttpClientBody | Buffer::HttpServerBody => &self.body,
            _ => {
                let number = VALUES.iter().position(|(_, known)| *known == buffer)?;
                made(self.values[number])
            }
        })
    }
}

/// Returns the offset after the end of the line that begins at `at`.
fn line_end_of(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|&byte| byte == b'\n')
        .map_or(bytes.len(), |it| at + it + 1)
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
