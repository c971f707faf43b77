//! HTTP/2 without TLS (RFC 9113), with its header compression (RFC 7541). A message is a frame, with the state of its
//! stream.
//!
//! The headers of a stream, and the first bytes of its body, fill the buffers of HTTP like a request or a response.
//! Header lines are as sent, including those whose name begins with a colon, and `:path` is not normalised. If a header
//! block has several frames, it is reported with the last frame. Only the latest four streams of each direction are
//! stored.
//!
//! A library decodes the headers (HPACK). It allocates memory for each header that is not in a table; the limits here
//! bound that memory.

use crate::buffer::{Buffer, BufferSet};
use crate::cursor::Cursor;
use crate::findings::Findings;
use crate::framer::{Framed, Framers, Length};
use crate::http::memory::Memory;
use crate::http::target::normalise;
use crate::http::values::{OF_RESPONSES, VALUES};
use crate::record::{Mark, Record};
use loona_hpack::Decoder;

/// The bytes that a client sends before its first frame (RFC 9113 section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Number of bytes of the header of a frame.
const HEADER: usize = 9;
/// Number of streams of a direction that are stored.
const MOST_STREAMS: usize = 4;
/// Maximum length of a header block in bytes; after a longer block the headers of the direction are not parsed any
/// more.
const MOST_BLOCK: usize = 16 * 1024;
/// Maximum size of the header table (RFC 9113 section 6.5.2), as browsers offer it; the headers of a direction with a
/// larger table are not parsed any more.
const MOST_TABLE: usize = 64 * 1024;
/// Maximum number of bytes of a body that are stored.
const BODY_BYTES: usize = 4096;
/// Maximum number of fields of a header block. A field of two bytes may copy a name that is as long as a block, so this
/// limit bounds the work per block.
const MOST_FIELDS: usize = 256;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 0x20;

/// Names of the frame types, by their numbers.
pub const FRAME_TYPES: [&str; 10] = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RSTSTREAM",
    "SETTINGS",
    "PUSHPROMISE",
    "PING",
    "GOAWAY",
    "WINDOWUPDATE",
    "CONTINUATION",
];

/// Names of error codes, by their numbers (RFC 9113 section 7).
pub const ERROR_CODES: [&str; 14] = [
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
];

/// Names of settings, by their numbers from 1 (RFC 9113 section 6.5.2).
pub const SETTINGS_NAMES: [&str; 6] = [
    "SETTINGS_HEADER_TABLE_SIZE",
    "SETTINGS_ENABLE_PUSH",
    "SETTINGS_MAX_CONCURRENT_STREAMS",
    "SETTINGS_INITIAL_WINDOW_SIZE",
    "SETTINGS_MAX_FRAME_SIZE",
    "SETTINGS_MAX_HEADER_LIST_SIZE",
];

/// Returns the number that represents a setting and its value in [`Buffer::Http2Settings`].
pub fn setting(number: u16, value: u32) -> u64 {
    u64::from(number) << 32 | u64::from(value)
}

/// The parser of both directions of a connection.
#[derive(Default)]
pub struct Http2 {
    framers: Framers,
    sides: [Side; 2],
}

/// The state of one direction of an HTTP/2 connection.
#[derive(Default)]
struct Side {
    headers: Headers,
    streams: [Stream; MOST_STREAMS],
    /// Index in `streams` of the entry that the next new stream replaces.
    next: usize,
    /// Buffers of frames that belong to no stream.
    frame: Record,
}

/// The incomplete header block of a direction, and the decoder with its table.
#[derive(Default)]
struct Headers {
    decoder: Option<Decoder<'static>>,
    /// True if a header block was not decoded, so that the content of the table is unknown.
    is_lost: bool,
    block: Vec<u8>,
    /// Stream of the incomplete header block, and the type of the block's first frame; none between blocks.
    of: Option<(u32, u8)>,
    /// True if the stream ends with the header block.
    ends_stream: bool,
    /// Names and values of the decoded header block.
    fields: Record,
    /// Normalised target (`:path`) of a request.
    target: Option<Memory>,
}

/// The state of an HTTP/2 stream, which carries one request or response.
#[derive(Default)]
struct Stream {
    /// Stream identifier; 0 for an unused entry.
    id: u32,
    record: Record,
    body: usize,
    /// End of the message's buffers in the record; buffers of the current frame follow.
    end: Mark,
}

/// The header of an HTTP/2 frame.
#[derive(Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Returns the length of the frame or the preface at the beginning of the given bytes.
fn length(bytes: &[u8]) -> Length {
    match bytes.first_chunk::<HEADER>() {
        None => Length::Unknown,
        Some(head) if PREFACE.starts_with(head) => Length::Bytes(PREFACE.len() as u64),
        Some(head) => {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            Length::Bytes(HEADER as u64 + u64::from(len))
        }
    }
}

impl Http2 {
    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        self.framers.reset();
        for side in &mut self.sides {
            side.headers.decoder = None;
            side.headers.is_lost = false;
            side.headers.of = None;
            side.streams.iter_mut().for_each(|stream| stream.id = 0);
        }
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
    }

    /// Parses the next bytes of a direction and reports each frame.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let direction = usize::from(!to_server);
        let side = &mut self.sides[direction];
        let mut faults = 0;
        let is_lost = self.framers.push(to_server, data, length, |it| {
            faults += u64::from(side.frame(to_server, it, found).is_none());
        });
        found.faults(faults + u64::from(is_lost));
    }
}

impl Side {
    /// Parses a frame and reports it; returns none if it is invalid.
    fn frame(
        &mut self,
        to_server: bool,
        framed: Framed<'_>,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        if framed.bytes.starts_with(PREFACE) {
            return Some(());
        }
        let mut from = Cursor(framed.bytes);
        from.take(3)?;
        let frame = Frame {
            kind: from.number(1)? as u8,
            flags: from.number(1)? as u8,
            // The highest bit is reserved.
            stream: from.number(4)? as u32 & 0x7fff_ffff,
        };
        let is_of_stream = matches!(frame.kind, DATA | HEADERS | PUSH_PROMISE | CONTINUATION);
        if is_of_stream && frame.stream == 0 {
            return None;
        }
        match frame.kind {
            DATA => self.data(frame, to_server, framed, from, found),
            HEADERS | PUSH_PROMISE | CONTINUATION => {
                self.header_frame(frame, to_server, framed, from, found)
            }
            _ => {
                self.frame.clear();
                let is_good = read_other(frame, &mut self.frame, from).is_some();
                found.tell(&self.frame, self.frame.has());
                (is_good || !framed.is_whole).then_some(())
            }
        }
    }

    /// Appends the content of a DATA frame to the body of its stream.
    fn data(
        &mut self,
        frame: Frame,
        to_server: bool,
        framed: Framed<'_>,
        from: Cursor<'_>,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        let content = without_padding(frame, framed, from)?;
        let buffer = Buffer::body_of(to_server);
        let is_known = self.streams.iter().any(|it| it.id == frame.stream);
        let stream = self.stream(frame.stream);
        let kept = content.0.len().min(BODY_BYTES - stream.body);
        match (stream.body, kept) {
            (_, 0) => {}
            (0, _) => stream.record.put(buffer, &[&content.0[..kept]]),
            _ => stream.record.extend(&content.0[..kept]),
        }
        stream.body += kept;
        stream.end = stream.record.mark();
        let mut ready: BufferSet = [Buffer::Http2FrameType].into_iter().collect();
        let ends_empty = is_known && stream.body == 0 && frame.flags & END_STREAM != 0;
        if kept > 0 || ends_empty {
            ready.insert(buffer);
        }
        stream.tell(frame, ready, found);
        Some(())
    }

    /// Appends the content of a frame to a header block, and decodes the block once it is complete.
    fn header_frame(
        &mut self,
        frame: Frame,
        to_server: bool,
        framed: Framed<'_>,
        from: Cursor<'_>,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        self.frame.clear();
        self.frame
            .put_number(Buffer::Http2FrameType, frame.kind.into());
        self.block_content(frame, framed, from, found)?;
        if frame.flags & END_HEADERS == 0 {
            found.tell(&self.frame, self.frame.has());
            return Some(());
        }
        let first = self.headers.of.take().map(|(_, kind)| kind);
        let is_read = self.headers.read(&mut self.frame);
        if first != Some(HEADERS) || is_read.is_none() {
            found.tell(&self.frame, self.frame.has());
            return is_read;
        }
        let place = self.place(frame.stream);
        let stream = &mut self.streams[place];
        stream.begin(frame.stream);
        fill(&mut stream.record, &mut self.headers, to_server);
        stream.end = stream.record.mark();
        // The buffers of the frame itself are added.
        for buffer in self.frame.has().iter() {
            for bytes in self.frame.buffers(buffer) {
                stream.record.put(buffer, &[bytes]);
            }
        }
        let mut ready = stream.record.has();
        // A second header block after the body contains trailers.
        let first = if to_server {
            &b":method"[..]
        } else {
            b":status"
        };
        if self.headers.ends_stream && value(&self.headers.fields, first).is_some() {
            ready.insert(Buffer::body_of(to_server));
        }
        found.tell(&stream.record, ready);
        stream.record.take_back(stream.end);
        Some(())
    }

    /// Appends the content of a frame to a header block. A CONTINUATION frame continues the block; any other frame
    /// begins a new block. Returns none if the frame is invalid.
    #[inline]
    fn block_content(
        &mut self,
        frame: Frame,
        framed: Framed<'_>,
        mut from: Cursor<'_>,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        if frame.kind == CONTINUATION {
            let is_next = self.headers.of.is_some_and(|(id, _)| id == frame.stream);
            if !is_next {
                found.tell(&self.frame, self.frame.has());
                return None;
            }
        } else {
            from = without_padding(frame, framed, from)?;
            if frame.kind == PUSH_PROMISE {
                from.take(4)?;
            } else if frame.flags & WITH_PRIORITY != 0 {
                priority(&mut self.frame, &mut from)?;
            }
            self.headers.begin(frame);
        }
        self.headers.more(framed, from);
        Some(())
    }

    /// Returns the stream with the identifier `id`; creates it if it is unknown.
    fn stream(&mut self, id: u32) -> &mut Stream {
        let place = self.place(id);
        let stream = &mut self.streams[place];
        if stream.id != id {
            stream.begin(id);
        }
        stream
    }

    /// Returns the index of the stream with the identifier `id`. If no entry has that stream, returns the index of the
    /// entry to replace.
    fn place(&mut self, id: u32) -> usize {
        let known = self.streams.iter().position(|stream| stream.id == id);
        known.unwrap_or_else(|| {
            self.next = (self.next + 1) % MOST_STREAMS;
            self.next
        })
    }
}

impl Stream {
    fn begin(&mut self, id: u32) {
        self.record.clear();
        (self.id, self.body, self.end) = (id, 0, Mark::default());
    }

    /// Reports a frame of the stream.
    fn tell(
        &mut self,
        frame: Frame,
        ready: BufferSet,
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        self.record
            .put_number(Buffer::Http2FrameType, frame.kind.into());
        found.tell(&self.record, ready);
        self.record.take_back(self.end);
    }
}

impl Headers {
    fn begin(&mut self, frame: Frame) {
        // If another header block interrupts a block, the interrupted one was not decoded.
        self.is_lost |= self.of.is_some();
        self.of = Some((frame.stream, frame.kind));
        self.ends_stream = frame.flags & END_STREAM != 0;
        self.block.clear();
    }

    fn more(&mut self, framed: Framed<'_>, from: Cursor<'_>) {
        let fits = framed.is_whole && from.0.len() <= MOST_BLOCK - self.block.len();
        if fits {
            self.block.extend_from_slice(from.0);
        }
        self.is_lost |= !fits;
    }

    /// Decodes the header block into `fields`, and stores in `frame` the changes of the dynamic table's size that the
    /// block contains. Returns none if this or an earlier block cannot be decoded.
    fn read(&mut self, frame: &mut Record) -> Option<()> {
        if self.is_lost {
            return None;
        }
        self.is_lost = true;
        let (mut rest, mut count) = (Cursor(&self.block), 0);
        while !rest.0.is_empty() {
            match pass_over_field(&mut rest)? {
                Some(size) => frame.put_number(Buffer::Http2SizeUpdate, size),
                None => count += 1,
            }
        }
        if count > MOST_FIELDS {
            return None;
        }
        let fields = &mut self.fields;
        fields.clear();
        let decoder = self.decoder.get_or_insert_with(|| {
            let mut decoder = Decoder::new();
            decoder.set_max_allowed_table_size(MOST_TABLE);
            decoder
        });
        let read = decoder.decode_with_cb(&self.block, |name, value| {
            fields.put(Buffer::Http2HeaderName, &[&name]);
            fields.put(Buffer::HttpRawHeader, &[&value]);
        });
        self.is_lost = read.is_err();
        read.ok()
    }
}

/// Removes the padding from the content of a frame (RFC 9113 section 6.1).
fn without_padding<'a>(
    frame: Frame,
    framed: Framed<'_>,
    mut from: Cursor<'a>,
) -> Option<Cursor<'a>> {
    if frame.flags & PADDED == 0 {
        return Some(from);
    }
    let padding = from.number(1)? as usize;
    let kept = match framed.is_whole {
        true => from.0.len().checked_sub(padding)?,
        false => from.0.len(),
    };
    Some(Cursor(&from.0[..kept]))
}

/// Skips the identifier of the stream that a stream depends on, and reads the weight of the dependent stream after it.
/// Returns none if bytes are missing.
fn priority(record: &mut Record, from: &mut Cursor<'_>) -> Option<()> {
    from.take(4)?;
    record.put_number(Buffer::Http2Priority, from.number(1)?);
    Some(())
}

/// Skips a field of a header block, or a size change of the table, and returns the new size in that case (RFC 7541
/// chapter 6). Returns none if the bytes are neither of them.
fn pass_over_field(from: &mut Cursor<'_>) -> Option<Option<u64>> {
    let first = *from.0.first()?;
    match first {
        0x80.. => {
            integer(from, 7)?;
        }
        0x20..0x40 => return Some(Some(integer(from, 5)?)),
        _ => {
            let bits = if first >= 0x40 { 6 } else { 4 };
            let strings = if integer(from, bits)? == 0 { 2 } else { 1 };
            for _ in 0..strings {
                let len = integer(from, 7)?;
                from.take(usize::try_from(len).ok()?)?;
            }
        }
    }
    Some(None)
}

/// Reads an integer whose prefix is the last `bits` bits of a byte (RFC 7541 section 5.1). Returns none if the integer
/// is incomplete or too long.
fn integer(from: &mut Cursor<'_>, bits: u32) -> Option<u64> {
    let most = (1 << bits) - 1;
    let mut number = from.number(1)? & most;
    if number < most {
        return Some(number);
    }
    for shift in [0, 7, 14, 21, 28] {
        let byte = from.number(1)?;
        number += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Reads a frame that contains neither a header block nor a body; returns none if the frame is too short.
fn read_other(frame: Frame, record: &mut Record, mut from: Cursor<'_>) -> Option<()> {
    record.put_number(Buffer::Http2FrameType, frame.kind.into());
    match frame.kind {
        PRIORITY => priority(record, &mut from)?,
        RST_STREAM => record.put_number(Buffer::Http2ErrorCode, from.number(4)?),
        GOAWAY => {
            from.take(4)?;
            record.put_number(Buffer::Http2ErrorCode, from.number(4)?);
        }
        WINDOW_UPDATE => {
            let bytes = from.number(4)? & 0x7fff_ffff;
            record.put_number(Buffer::Http2Window, bytes);
        }
        SETTINGS => {
            while !from.0.is_empty() {
                let (number, value) = (from.number(2)? as u16, from.number(4)? as u32);
                record.put_number(Buffer::Http2Settings, setting(number, value));
            }
        }
        _ => {}
    }
    Some(())
}

/// Returns the value of the first field with the name `wanted`.
fn value<'a>(fields: &'a Record, wanted: &'a [u8]) -> Option<&'a [u8]> {
    values(fields, wanted).next()
}

/// Returns the values of all fields with the name `wanted`.
fn values<'a>(fields: &'a Record, wanted: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    pairs(fields)
        .filter(move |(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

fn pairs(fields: &Record) -> impl Iterator<Item = (&[u8], &[u8])> {
    let names = fields.buffers(Buffer::Http2HeaderName);
    names.zip(fields.buffers(Buffer::HttpRawHeader))
}

/// Stores the fields of a request or a response in a record.
fn fill(record: &mut Record, headers: &mut Headers, is_request: bool) {
    const LINE_END: &[u8] = b"\r\n";
    let Headers { fields, target, .. } = headers;
    let fields = &*fields;
    for (name, _) in pairs(fields) {
        record.put(Buffer::Http2HeaderName, &[name]);
    }
    record.put(Buffer::HttpHeaderNames, &[LINE_END]);
    for (name, _) in pairs(fields) {
        record.extend(name);
        record.extend(LINE_END);
    }
    record.extend(LINE_END);
    for buffer in [Buffer::HttpHeader, Buffer::HttpRawHeader] {
        record.put(buffer, &[]);
        for (name, value) in pairs(fields) {
            for piece in [name, b": ", value, LINE_END] {
                record.extend(piece);
            }
        }
    }
    record.put(Buffer::HttpProtocol, &[b"HTTP/2"]);
    match is_request {
        true => {
            let target = target.get_or_insert_with(|| Memory::new(MOST_BLOCK));
            fill_request(record, fields, target);
        }
        false => fill_response(record, fields),
    }
    for (name, buffer) in VALUES {
        if !(is_request && OF_RESPONSES.contains(&name)) {
            join(record, &[buffer], (fields, name), b", ");
        }
    }
}

fn fill_request(record: &mut Record, fields: &Record, target: &mut Memory) {
    let method = value(fields, b":method").unwrap_or_default();
    let path = value(fields, b":path").unwrap_or_default();
    record.put(Buffer::HttpMethod, &[method]);
    // A server decodes `:path` like the target of HTTP/1.1 (RFC 9113 section 8.3.1).
    target.truncate(0);
    normalise(path, target);
    record.put(Buffer::HttpUri, &[&target[..]]);
    record.put(Buffer::HttpRawUri, &[path]);
    let line = [method, b" ", path, b" HTTP/2\r\n"];
    record.put(Buffer::HttpRequestLine, &line);
    if let Some(host) = value(fields, b":authority").or_else(|| value(fields, b"host")) {
        record.put(Buffer::HttpHost, &[]);
        for byte in without_port(host) {
            record.extend(&[byte.to_ascii_lowercase()]);
        }
    }
    let cookies = [Buffer::HttpCookie, Buffer::HttpRawCookie];
    // A client may send each cookie in a field of its own (RFC 9113 section 8.2.3).
    join(record, &cookies, (fields, b"cookie"), b"; ");
}

fn fill_response(record: &mut Record, fields: &Record) {
    let code = value(fields, b":status").unwrap_or_default();
    record.put(Buffer::HttpStatusCode, &[code]);
    record.put(Buffer::HttpStatusMessage, &[]);
    record.put(Buffer::HttpResponseLine, &[b"HTTP/2 ", code, b"\r\n"]);
    let cookies = [Buffer::HttpCookie, Buffer::HttpRawCookie];
    join(record, &cookies, (fields, b"set-cookie"), b", ");
}

/// Stores the values of all fields with one name, joined by a separator, in each of `buffers`.
fn join(record: &mut Record, buffers: &[Buffer], (fields, name): (&Record, &[u8]), between: &[u8]) {
    for &buffer in buffers {
        for (place, value) in values(fields, name).enumerate() {
            if place == 0 {
                record.put(buffer, &[]);
            } else {
                record.extend(between);
            }
            record.extend(value);
        }
    }
}

/// Returns an authority without its port. The port follows the last colon, unless that colon is within an address in
/// brackets.
fn without_port(authority: &[u8]) -> &[u8] {
    match memchr::memrchr(b':', authority) {
        Some(colon) if authority[colon..].iter().all(|&byte| byte != b']') => &authority[..colon],
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::findings::Counts;
    use crate::protocols::Parser;
    use crate::protocols::testing::{Said, numbers, texts, whole_as_cut};
    use loona_hpack::Encoder;
    use proptest::prelude::*;

    fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
        let mut frame = (content.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(content);
        frame
    }

    fn block(encoder: &mut Encoder<'_>, fields: &[(&str, &str)]) -> Vec<u8> {
        let fields = fields.iter();
        encoder.encode(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    const REQUEST: [(&str, &str); 8] = [
        (":method", "GET"),
        (":path", "/a?b"),
        (":authority", "WWW.example.org:8080"),
        ("user-agent", "curl/7.61.0"),
        ("accept", "*/*"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-long", "a value that is put into the table"),
    ];

    #[test]
    fn http2_targets_are_decoded_like_http1_targets() {
        let mut client = Encoder::new();
        let mut request = |path| {
            let fields = [(":method", "GET"), (":path", path)];
            frame(HEADERS, END_HEADERS, 1, &block(&mut client, &fields))
        };
        let paths = ["/x/%2e%2e//%65vil?a=%20", "*", "", "http://a.example"];
        let pieces = [(true, paths.map(&mut request).concat())];
        let (found, counts) = whole_as_cut(Application::Http2, &pieces);
        assert_eq!(counts.faults, 0);
        let of = |buffer| {
            found
                .iter()
                .map(|it| texts(it, buffer).concat())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(Buffer::HttpUri), ["/evil?a= ", "*", "", "/"]);
        assert_eq!(of(Buffer::HttpRawUri), paths);
    }

    #[test]
    fn http2_messages_set_the_same_rule_buffers_as_http1() {
        let (mut client, mut server) = (Encoder::new(), Encoder::new());
        let to_server: Vec<u8> = [1, 3]
            .into_iter()
            .flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &block(&mut client, &REQUEST)))
            .collect();
        let response = block(&mut server, &[(":status", "404"), ("server", "nghttpx")]);
        let to_client = [
            frame(HEADERS, END_HEADERS, 1, &response),
            frame(DATA, 0, 1, b""),
            frame(DATA, 0, 1, b"not "),
            frame(DATA, PADDED, 1, b"\x02found\0\0"),
        ]
        .concat();
        let pieces = [(true, [PREFACE, &to_server].concat()), (false, to_client)];
        let (found, counts) = whole_as_cut(Application::Http2, &pieces);
        assert_eq!((found.len(), counts.faults), (6, 0));
        let lines = ":method: GET\r\n:path: /a?b\r\n:authority: WWW.example.org:8080\r\n\
            user-agent: curl/7.61.0\r\naccept: */*\r\ncookie: a=1\r\ncookie: b=2\r\n\
            x-long: a value that is put into the table\r\n";
        for said in &found[..2] {
            for (buffer, text) in [
                (Buffer::HttpMethod, "GET"),
                (Buffer::HttpUri, "/a?b"),
                (Buffer::HttpRawUri, "/a?b"),
                (Buffer::HttpHost, "www.example.org"),
                (Buffer::HttpUserAgent, "curl/7.61.0"),
                (Buffer::HttpCookie, "a=1; b=2"),
                (Buffer::HttpRequestLine, "GET /a?b HTTP/2\r\n"),
                (Buffer::HttpProtocol, "HTTP/2"),
                (Buffer::HttpHeader, lines),
            ] {
                assert_eq!(texts(said, buffer), [text], "{buffer:?}");
            }
            assert_eq!(texts(said, Buffer::Http2HeaderName).len(), REQUEST.len());
            assert_eq!(numbers(said, Buffer::Http2FrameType), [1]);
        }
        for (buffer, text) in [
            (Buffer::HttpStatusCode, "404"),
            (Buffer::HttpStatusMessage, ""),
            (Buffer::HttpResponseLine, "HTTP/2 404\r\n"),
            (Buffer::HttpServer, "nghttpx"),
            (Buffer::HttpHeaderNames, "\r\n:status\r\nserver\r\n\r\n"),
        ] {
            assert_eq!(texts(&found[2], buffer), [text], "{buffer:?}");
        }
        // The headers are present with the body, too.
        assert!(texts(&found[3], Buffer::HttpServerBody).is_empty());
        assert_eq!(texts(&found[4], Buffer::HttpServerBody), ["not "]);
        assert_eq!(texts(&found[5], Buffer::HttpServerBody), ["not found"]);
        assert_eq!(texts(&found[5], Buffer::HttpStatusCode), ["404"]);
        assert_eq!(numbers(&found[5], Buffer::Http2FrameType), [0]);
    }

    #[test]
    fn a_split_header_block_is_parsed_with_its_last_frame() {
        let block = block(&mut Encoder::new(), &REQUEST);
        let priority = [&b"\x00\x00\x00\x00\xff"[..], &block[..5]].concat();
        let frames = [
            frame(HEADERS, WITH_PRIORITY, 1, &priority),
            frame(CONTINUATION, 0, 1, &block[5..9]),
            frame(CONTINUATION, END_HEADERS, 1, &block[9..]),
        ];
        let (found, counts) = whole_as_cut(Application::Http2, &[(true, frames.concat())]);
        assert_eq!((found.len(), counts.faults), (3, 0));
        assert_eq!(numbers(&found[0], Buffer::Http2Priority), [255]);
        assert!(texts(&found[1], Buffer::HttpUri).is_empty());
        assert_eq!(texts(&found[2], Buffer::HttpUri), ["/a?b"]);
    }

    #[test]
    fn values_of_settings_window_and_error_frames_are_parsed() {
        let settings = b"\x00\x01\x00\x00\x10\x01\x00\x04\x00\x00\xff\xff";
        let frames = [
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW_UPDATE, 0, 0, b"\x80\x00\x87\x4a"),
            frame(RST_STREAM, 0, 1, b"\x00\x00\x00\x08"),
            frame(GOAWAY, 0, 0, b"\x00\x00\x00\x01\x00\x00\x00\x02bye"),
            frame(PRIORITY, 0, 1, b"\x00\x00\x00\x00\x10"),
            frame(0xfa, 0, 0, b"?"),
        ];
        let (found, counts) = whole_as_cut(Application::Http2, &[(true, frames.concat())]);
        assert_eq!(counts.faults, 0);
        let of = |at: usize, buffer| numbers(&found[at], buffer);
        assert_eq!(
            of(0, Buffer::Http2Settings),
            [setting(1, 4097), setting(4, 65_535)]
        );
        assert_eq!(of(1, Buffer::Http2Window), [34_634]);
        assert_eq!(of(2, Buffer::Http2ErrorCode), [8]);
        assert_eq!(of(3, Buffer::Http2ErrorCode), [2]);
        assert_eq!(of(4, Buffer::Http2Priority), [16]);
        assert_eq!(of(5, Buffer::Http2FrameType), [0xfa]);
    }

    fn read(frames: &[Vec<u8>]) -> (Vec<Said>, Counts) {
        whole_as_cut(Application::Http2, &[(true, frames.concat())])
    }

    #[test]
    fn headers_after_an_unreadable_block_are_skipped() {
        let good = frame(HEADERS, END_HEADERS, 3, &[0x82, 0x84]);
        // The faults are an index beyond the table, a table that is too large, and a block that another block
        // interrupts.
        let (found, counts) = read(&[frame(HEADERS, END_HEADERS, 1, &[0xff, 0x7f]), good.clone()]);
        assert_eq!((found.len(), counts.faults), (2, 2));
        let (_, counts) = read(&[frame(HEADERS, END_HEADERS, 1, b"\x3f\xff\xff\x07\x82")]);
        assert_eq!(counts.faults, 1);
        let (_, counts) = read(&[frame(HEADERS, 0, 1, &[0x82]), good.clone(), good.clone()]);
        assert_eq!(counts.faults, 2);
        let (found, counts) = read(&[good.clone(), good]);
        assert_eq!((found.len(), counts.faults), (2, 0));
    }

    #[test]
    fn size_updates_of_the_header_table_are_reported() {
        let (found, counts) = read(&[frame(HEADERS, END_HEADERS, 1, b"\x20\x3f\xe1\x1f\x82")]);
        assert_eq!(counts.faults, 0);
        assert_eq!(numbers(&found[0], Buffer::Http2SizeUpdate), [0, 4096]);
    }

    #[test]
    fn truncated_frames_and_frames_without_a_stream_are_faults() {
        let (found, counts) = read(&[
            frame(RST_STREAM, 0, 1, b"\x00"),
            frame(DATA, PADDED, 1, b"\x09abc"),
            frame(DATA, 0, 0, b"abc"),
            frame(HEADERS, END_HEADERS | WITH_PRIORITY, 1, b"abc"),
            frame(CONTINUATION, END_HEADERS, 1, b"abc"),
            frame(6, 0, 0, &[0; 8]),
        ]);
        assert_eq!((found.len(), counts.faults), (3, 5));
    }

    #[test]
    fn a_header_block_beyond_the_maximum_length_is_a_fault() {
        let part = [0x82; 1000];
        let mut frames = vec![frame(HEADERS, 0, 1, &part)];
        frames.extend((0..40).map(|_| frame(CONTINUATION, 0, 1, &part)));
        frames.push(frame(CONTINUATION, END_HEADERS, 1, &part));
        let mut http2 = Http2::default();
        let mut found = Findings::new(|_: &Record, _| {});
        frames
            .iter()
            .for_each(|it| http2.push(true, it, &mut found));
        assert!(http2.sides[0].headers.block.len() <= MOST_BLOCK);
        assert_eq!(found.counts().faults, 1);
    }

    #[test]
    fn the_port_is_removed_from_an_http2_authority() {
        assert_eq!(without_port(b"a.example:80"), b"a.example");
        assert_eq!(without_port(b"a.example"), b"a.example");
        assert_eq!(without_port(b"[::1]"), b"[::1]");
        assert_eq!(without_port(b"[::1]:80"), b"[::1]");
    }

    #[test]
    fn a_header_block_with_too_many_fields_is_a_fault() {
        let most = frame(HEADERS, END_HEADERS, 1, &[0x82; MOST_FIELDS]);
        let (found, counts) = read(std::slice::from_ref(&most));
        assert_eq!(counts.faults, 0);
        assert_eq!(texts(&found[0], Buffer::Http2HeaderName).len(), MOST_FIELDS);
        let (_, counts) = read(&[
            frame(HEADERS, END_HEADERS, 1, &[0x82; MOST_FIELDS + 1]),
            most,
        ]);
        assert_eq!(counts.faults, 2);
    }

    proptest! {
        /// The counted fields are those that the library decodes.
        #[test]
        fn the_field_count_equals_the_number_of_decoded_fields(
            block in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..4, 0x80u8..0xbe], 0..60),
        ) {
            let (mut rest, mut count) = (Cursor(&block), 0);
            let mut is_good = true;
            while is_good && !rest.0.is_empty() {
                match pass_over_field(&mut rest) {
                    Some(size) => count += usize::from(size.is_none()),
                    None => is_good = false,
                }
            }
            let mut read = 0;
            let mut decoder = Decoder::new();
            decoder.set_max_allowed_table_size(MOST_TABLE);
            if decoder.decode_with_cb(&block, |_, _| read += 1).is_ok() {
                prop_assert!(is_good);
                prop_assert_eq!(read, count);
            }
        }
    }

    /// The worst possible block copies the longest name of the table as often as possible.
    #[test]
    #[ignore = "a measurement, for a build with optimisation"]
    fn the_time_of_the_worst_header_block_is_printed() {
        let name = "x".repeat(12_000);
        // The first header block sets the size of the table to 64 KiB.
        let mut long = b"\x3f\xe1\xff\x03".to_vec();
        long.extend(Encoder::new().encode([(name.as_bytes(), &b""[..])]));
        long.extend([0x40 | 62, 0].repeat(MOST_FIELDS - 1));
        let mut parser = Parser::Http2(Box::default());
        let begun = std::time::Instant::now();
        parser.push(true, &frame(HEADERS, END_HEADERS, 1, &long), |_, _| {});
        println!("{:?} for {} bytes", begun.elapsed(), long.len());
    }
}
