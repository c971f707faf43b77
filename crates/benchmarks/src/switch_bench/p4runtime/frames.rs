//! Received side of gRPC: frames of HTTP/2 (RFC 9113), and in them messages and statuses of calls
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>).

use super::error::{P4Error, Status, code_name, printable};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use loona_hpack::Decoder;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// The flag of the last frame of a stream; for settings and pings, of a reply.
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

pub(super) const HEADER_BYTES: usize = 9;
/// Maximum length of a frame, bytes: the default of HTTP/2.
const MOST_FRAME: usize = 16_384;
/// Maximum length of all headers of a reply, bytes.
const MOST_HEADERS: usize = 1 << 16;
/// Maximum length of a message, bytes, and of all incomplete messages together.
const MOST_MESSAGE: usize = 64 << 20;
const HEADERS_OF_GRPC: [&str; 4] = [
    ":status",
    "grpc-status",
    "grpc-message",
    "grpc-status-details-bin",
];
/// Flag and length in front of a message.
pub(super) const PREFIX_BYTES: usize = 5;
/// Received bytes after which the server may send as many again.
const GRANTED: u32 = 1 << 20;

/// A frame of HTTP/2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads a frame.
    ///
    /// # Errors
    /// The connection ended, or the frame is too long.
    pub fn read(line: &mut impl Read) -> std::io::Result<Self> {
        let mut head = [0; HEADER_BYTES];
        line.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if length > MOST_FRAME {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        line.read_exact(&mut payload)?;
        Ok(Self {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
        })
    }

    /// Returns the bytes of a frame with this payload.
    pub fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.extend(&(payload.len() as u32).to_be_bytes()[1..]);
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn word(&self, at: usize) -> Result<u32, P4Error> {
        let word = self.payload.get(at..).and_then(|it| it.first_chunk::<4>());
        word.map(|it| u32::from_be_bytes(*it))
            .ok_or(P4Error::Damaged("a frame"))
    }

    /// Returns the payload without padding and priority.
    fn content(&self) -> Result<&[u8], P4Error> {
        let mut content = &self.payload[..];
        if self.flags & PADDED != 0 {
            let padding = usize::from(*content.first().ok_or(P4Error::Damaged("a frame"))?);
            let end = content.len().checked_sub(padding);
            content = end
                .and_then(|end| content.get(1..end))
                .ok_or(P4Error::Damaged("a frame"))?;
        }
        if self.kind == HEADERS && self.flags & PRIORITY != 0 {
            content = content.get(5..).ok_or(P4Error::Damaged("a frame"))?;
        }
        Ok(content)
    }
}

/// An event of a call or of the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A message on a stream.
    Message(u32, Vec<u8>),
    /// The status with which a stream ends.
    Ended(u32, Status),
    /// The initial window of streams, bytes.
    Limit(u32),
    /// More bytes may be sent on a stream; stream 0 is the connection.
    Window(u32, u32),
    /// Bytes to send to the server.
    Reply(Vec<u8>),
}

/// A header: its name and its value.
type Header = (String, Vec<u8>);

/// The received part of the streams.
pub(super) struct Receiver {
    decoder: Decoder<'static>,
    /// Bytes of incomplete messages, by stream.
    partial: BTreeMap<u32, Vec<u8>>,
    /// Stream, flags and bytes of headers whose last frame is missing.
    headers: Option<(u32, u8, Vec<u8>)>,
    /// Bytes received since the server was last allowed to send more.
    received: u32,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(),
            partial: BTreeMap::new(),
            headers: None,
            received: 0,
        }
    }
}

impl Receiver {
    /// Adds a stream that the client opens. Frames of other streams are ignored.
    pub fn open(&mut self, stream: u32) {
        self.partial.insert(stream, Vec::new());
    }

    /// Processes a frame.
    ///
    /// # Errors
    /// The frame violates the protocol, or the server closes the connection.
    pub fn take(&mut self, frame: &Frame) -> Result<Vec<Event>, P4Error> {
        if self.headers.is_some() && frame.kind != CONTINUATION {
            return Err(P4Error::Damaged("headers"));
        }
        match frame.kind {
            DATA => self.data(frame),
            HEADERS => {
                self.headers = Some((frame.stream, frame.flags, frame.content()?.to_vec()));
                self.end_headers(frame.flags)
            }
            CONTINUATION => {
                let (stream, _, block) =
                    self.headers.as_mut().ok_or(P4Error::Damaged("headers"))?;
                if *stream != frame.stream || block.len() + frame.payload.len() > MOST_HEADERS {
                    return Err(P4Error::Damaged("headers"));
                }
                block.extend(&frame.payload);
                self.end_headers(frame.flags)
            }
            RST_STREAM => {
                let text = format!("the stream is reset, HTTP/2 error {}", frame.word(0)?);
                let status = Status {
                    code: 14,
                    text,
                    ..Status::default()
                };
                Ok(self.end(frame.stream, status))
            }
            SETTINGS if frame.flags & END_STREAM == 0 => settings(&frame.payload),
            PING if frame.flags & END_STREAM == 0 => {
                let reply = Frame::bytes(PING, END_STREAM, 0, &frame.payload);
                Ok(vec![Event::Reply(reply)])
            }
            PUSH_PROMISE => Err(P4Error::Damaged("a push")),
            GOAWAY if frame.word(4)? != 0 => {
                let text = String::from_utf8_lossy(&frame.payload[8..]);
                let code = frame.word(4)?;
                let text = format!(": HTTP/2 error {code} {}", printable(&text));
                Err(P4Error::Closed(text.trim_end().to_string()))
            }
            WINDOW_UPDATE => Ok(vec![Event::Window(
                frame.stream,
                frame.word(0)? & 0x7fff_ffff,
            )]),
            _ => Ok(Vec::new()),
        }
    }

    fn data(&mut self, frame: &Frame) -> Result<Vec<Event>, P4Error> {
        let mut events = Vec::new();
        self.received += frame.payload.len() as u32;
        if self.received > GRANTED {
            let more = self.received.to_be_bytes();
            events.push(Event::Reply(Frame::bytes(WINDOW_UPDATE, 0, 0, &more)));
            self.received = 0;
        }
        let waiting: usize = self.partial.values().map(Vec::len).sum();
        let Some(partial) = self.partial.get_mut(&frame.stream) else {
            return Ok(events);
        };
        partial.extend(frame.content()?);
        if waiting > MOST_MESSAGE {
            return Err(P4Error::Damaged("a message"));
        }
        let mut at = 0;
        while let Some(prefix) = partial
            .get(at..)
            .and_then(|it| it.first_chunk::<PREFIX_BYTES>())
        {
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            // The client does not accept compressed messages.
            if prefix[0] != 0 || length > MOST_MESSAGE {
                return Err(P4Error::Damaged("a message"));
            }
            let start = at + PREFIX_BYTES;
            let Some(message) = partial.get(start..start + length) else {
                break;
            };
            events.push(Event::Message(frame.stream, message.to_vec()));
            at = start + length;
        }
        partial.drain(..at);
        if frame.flags & END_STREAM != 0 {
            let status = Status {
                code: 13,
                text: "the reply has no status".to_string(),
                ..Status::default()
            };
            events.extend(self.end(frame.stream, status));
        }
        Ok(events)
    }

    fn end_headers(&mut self, flags: u8) -> Result<Vec<Event>, P4Error> {
        if flags & END_HEADERS == 0 {
            return Ok(Vec::new());
        }
        let Some((stream, flags, block)) = self.headers.take() else {
            return Ok(Vec::new());
        };
        let headers = self.headers_of(&block)?;
        if let Some(status) = value(&headers, ":status").filter(|it| *it != b"200") {
            return Err(P4Error::Http(printable(&String::from_utf8_lossy(status))));
        }
        if flags & END_STREAM == 0 {
            return Ok(Vec::new());
        }
        let is_cut = self.partial.get(&stream).is_some_and(|it| !it.is_empty());
        let status = status(&headers)?;
        if is_cut && status.code == 0 {
            return Err(P4Error::Damaged("a message"));
        }
        Ok(self.end(stream, status))
    }

    /// Decodes a header block (RFC 7541), and returns its headers that gRPC defines.
    fn headers_of(&mut self, block: &[u8]) -> Result<Vec<Header>, P4Error> {
        let mut headers = Vec::new();
        let decoded = self.decoder.decode_with_cb(block, |name, value| {
            let known = HEADERS_OF_GRPC.iter().find(|it| it.as_bytes() == &name[..]);
            // A server may name a long header of its table many times.
            let known = known.filter(|_| headers.len() < HEADERS_OF_GRPC.len());
            headers.extend(known.map(|name| ((*name).to_string(), value.to_vec())));
        });
        match decoded {
            Ok(()) => Ok(headers),
            Err(_) => Err(P4Error::Damaged("headers")),
        }
    }

    fn end(&mut self, stream: u32, status: Status) -> Vec<Event> {
        let is_open = self.partial.remove(&stream).is_some();
        is_open
            .then_some(Event::Ended(stream, status))
            .into_iter()
            .collect()
    }
}

/// Reads the server's settings, and confirms them.
fn settings(payload: &[u8]) -> Result<Vec<Event>, P4Error> {
    const INITIAL_WINDOW: u16 = 4;
    let mut events = Vec::new();
    for setting in payload.chunks_exact(6) {
        let number = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
        if u16::from_be_bytes([setting[0], setting[1]]) == INITIAL_WINDOW {
            let is_valid = number <= i32::MAX as u32;
            events.push(Event::Limit(number));
            is_valid.then_some(()).ok_or(P4Error::Damaged("settings"))?;
        }
    }
    events.push(Event::Reply(Frame::bytes(SETTINGS, END_STREAM, 0, &[])));
    Ok(events)
}

fn value<'a>(headers: &'a [Header], name: &str) -> Option<&'a [u8]> {
    let mut headers = headers.iter();
    let (_, value) = headers.find(|(it, _)| it == name)?;
    Some(value)
}

/// Reads the status of a call from the headers at its end.
fn status(headers: &[Header]) -> Result<Status, P4Error> {
    let code = value(headers, "grpc-status").and_then(|it| std::str::from_utf8(it).ok());
    let code = code.and_then(|it| it.parse().ok());
    let text = value(headers, "grpc-message").map(unescaped);
    let details = value(headers, "grpc-status-details-bin").map(of_base64);
    Ok(Status {
        code: code.ok_or(P4Error::Damaged("a status"))?,
        text: text.unwrap_or_default(),
        details: details.unwrap_or_default(),
    })
}

/// Decodes `%20` and the like.
fn unescaped(text: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let digits = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let digits = digits.and_then(|it| std::str::from_utf8(it).ok());
        match digits.and_then(|it| u8::from_str_radix(it, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                at += 3;
            }
            None => {
                bytes.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Decodes Base64 with or without padding; returns nothing for other text.
fn of_base64(text: &[u8]) -> Vec<u8> {
    let padding =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    let decoded = GeneralPurpose::new(&STANDARD, padding).decode(text);
    decoded.unwrap_or_default()
}

/// Returns the first error of a batch's single updates, with the number of the update, counted from 1; none if the
/// details of the status are missing. (P4Runtime Specification 1.4.1, section 12.3.)
pub(super) fn first_error(details: &[u8]) -> Option<(usize, String)> {
    use super::protobuf::{Fields, last};
    const NAME: &str = "a status";
    let of_updates = Fields::of(details, NAME)
        .filter_map(Result::ok)
        .filter(|(field, _)| *field == 3);
    of_updates.enumerate().find_map(|(at, (_, any))| {
        let error = last(any.bytes(), 2, NAME).ok()??.bytes();
        let code = last(error, 1, NAME).ok()??.number();
        let text = last(error, 2, NAME).ok()?.map(|it| it.text());
        let text = printable(text.as_deref().unwrap_or_default());
        let text = match text.is_empty() {
            true => code_name(code).to_string(),
            false => format!("{}: {text}", code_name(code)),
        };
        (code != 0).then_some((at + 1, text))
    })
}

/// Feeds a server's bytes to the receiving side, with streams 1 and 3 open, and returns the number of its events, for
/// fuzzing.
pub fn fuzz(mut bytes: &[u8]) -> usize {
    let mut receiver = Receiver::default();
    receiver.open(1);
    receiver.open(3);
    let mut many = 0;
    while let Ok(frame) = Frame::read(&mut bytes) {
        let Ok(events) = receiver.take(&frame) else {
            break;
        };
        many += events.len();
        for event in events {
            if let Event::Ended(_, status) = event {
                let _ = first_error(&status.details);
            }
        }
    }
    many
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::protobuf::Message;
    use super::*;
    use loona_hpack::Encoder;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Frame {
        Frame {
            kind,
            flags,
            stream: 1,
            payload: payload.to_vec(),
        }
    }

    fn receiver() -> Receiver {
        let mut receiver = Receiver::default();
        receiver.open(1);
        receiver
    }

    fn headers(list: &[(&str, &str)]) -> Vec<u8> {
        let list = list.iter();
        Encoder::new().encode(list.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[test]
    fn messages_are_joined_from_frames_and_end_with_a_status() {
        let mut receiver = receiver();
        let block = headers(&[(":status", "200"), ("content-type", "application/grpc")]);
        let (one, two) = block.split_at(4);
        assert_eq!(receiver.take(&frame(HEADERS, 0, one)).unwrap(), []);
        let rest = frame(CONTINUATION, END_HEADERS, two);
        assert_eq!(receiver.take(&rest).unwrap(), []);
        let padded = frame(DATA, PADDED, &[2, 0, 0, 0, 0, 3, b'a', 0, 0]);
        assert_eq!(receiver.take(&padded).unwrap(), []);
        let more = frame(DATA, 0, &[b'b', b'c', 0, 0, 0, 0, 0]);
        let events = receiver.take(&more).unwrap();
        let expected = [
            Event::Message(1, b"abc".to_vec()),
            Event::Message(1, Vec::new()),
        ];
        assert_eq!(events, expected);
        let block = headers(&[("grpc-status", "7"), ("grpc-message", "not%20primary%")]);
        let last = frame(HEADERS, END_HEADERS | END_STREAM, &block);
        let [Event::Ended(1, status)] = &receiver.take(&last).unwrap()[..] else {
            unreachable!("it has ended");
        };
        assert_eq!(status.to_string(), "PERMISSION_DENIED: not primary%");
    }

    #[test]
    fn violations_of_the_protocol_are_refused() {
        let status = headers(&[("grpc-status", "0")]);
        let not_found = headers(&[(":status", "404")]);
        for frames in [
            vec![frame(DATA, 0, &[1, 0, 0, 0, 1, 0])],
            vec![frame(DATA, 0, &[0, 255, 255, 255, 255])],
            vec![frame(DATA, PADDED, &[9, 0])],
            vec![
                frame(DATA, 0, &[0, 0, 0, 0, 9]),
                frame(HEADERS, END_HEADERS | END_STREAM, &status),
            ],
            vec![frame(HEADERS, END_HEADERS, &not_found)],
            vec![frame(HEADERS, 0, &status), frame(DATA, 0, &[])],
            vec![frame(HEADERS, END_HEADERS | END_STREAM, &[])],
            vec![frame(CONTINUATION, END_HEADERS, &status)],
            vec![frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0xff])],
            vec![frame(PUSH_PROMISE, 0, &[])],
            vec![frame(GOAWAY, 0, &[0, 0, 0, 1, 0, 0, 0, 2])],
            vec![frame(GOAWAY, 0, &[])],
            vec![frame(SETTINGS, 0, &[0, 4, 128, 0, 0, 1])],
            vec![frame(WINDOW_UPDATE, 0, &[1])],
        ] {
            let mut receiver = receiver();
            let mut taken = frames.iter().map(|it| receiver.take(it));
            assert!(taken.any(|it| it.is_err()), "{frames:?}");
        }
        assert!(Frame::read(&mut &[1, 0, 0, 0, 0, 0, 0, 0, 0][..]).is_err());
    }

    #[test]
    fn pings_and_settings_are_answered_and_the_window_is_renewed() {
        let mut receiver = receiver();
        let events = receiver.take(&frame(PING, 0, b"12345678")).unwrap();
        let reply = Frame::bytes(PING, END_STREAM, 0, b"12345678");
        assert_eq!(events, [Event::Reply(reply)]);
        let events = receiver.take(&frame(SETTINGS, 0, &[0, 4, 0, 0, 0, 9]));
        assert_eq!(events.unwrap()[0], Event::Limit(9));
        let full = frame(DATA, 0, &[0; MOST_FRAME]);
        let replies = (0..65).flat_map(|_| receiver.take(&full).unwrap());
        let replies = replies.filter(|it| matches!(it, Event::Reply(_)));
        assert_eq!(replies.count(), 1);
    }

    #[test]
    fn the_first_failed_update_of_a_batch_is_named() {
        let any = |code| {
            let error = Message::default().number(1, code).bytes(2, b"exists");
            Message::default().message(2, &error)
        };
        let details = Message::default().number(1, 2);
        let details = details.message(3, &any(0)).message(3, &any(6));
        let expected = (2, "ALREADY_EXISTS: exists".to_string());
        assert_eq!(first_error(&details.0), Some(expected));
        assert_eq!(first_error(&[3, 4]), None);
        assert_eq!(of_base64(b"YWJjZA=="), b"abcd");
        assert_eq!(of_base64(b"YWJj"), b"abc");
    }
}
