//! The first question of a DNS message (RFC 1035 section 4.1).

use std::ops::Deref;

/// A domain name in dotted form, without the last dot. The bytes of labels are unchanged; a label may contain dots.
#[derive(Debug, Clone, Copy, Eq)]
pub struct Name {
    bytes: [u8; MOST_NAME],
    len: usize,
}

/// Maximum length of a name in dotted form (RFC 1035 section 3.1).
const MOST_NAME: usize = 255;
/// Maximum number of compression pointers that are followed.
const MOST_POINTERS: usize = 16;

impl Default for Name {
    fn default() -> Self {
        Self {
            bytes: [0; MOST_NAME],
            len: 0,
        }
    }
}

/// The comparison ignores the unused bytes after a name.
impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Deref for Name {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Name {
    /// Clears the name.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends bytes; returns false if they do not fit.
    pub fn extend(&mut self, bytes: &[u8]) -> bool {
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
                true
            }
            None => false,
        }
    }
}

/// A fault of a DNS message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsFault {
    /// The message is truncated.
    Short,
    /// The beginning of the message is no longer stored, because the message arrived in too many pieces.
    Cut,
    /// The message has no question.
    NoQuestion,
    /// A label is of an unknown type, or its pointers are invalid.
    Label,
    /// The name exceeds the maximum length.
    LongName,
}

/// The header and the first question of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question {
    /// Identifier of the DNS message.
    pub id: u16,
    /// True if the message is a response.
    pub is_response: bool,
    /// Operation code of the message: the kind of query.
    pub opcode: u8,
    /// Response code of the message.
    pub code: u8,
    /// Record type in the question.
    pub kind: u16,
    /// Class in the question.
    pub class: u16,
    /// Number of questions in the message.
    pub questions: u16,
    /// Number of answers in the message.
    pub answers: u16,
}

/// Reads the header and the first question of a message.
///
/// # Errors
/// Returns the fault of the message; `name` then contains the part that was read.
pub fn query(message: &[u8], name: &mut Name) -> Result<Question, DnsFault> {
    name.clear();
    let head = message.first_chunk::<12>().ok_or(DnsFault::Short)?;
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let questions = number(4);
    if questions == 0 {
        return Err(DnsFault::NoQuestion);
    }
    let mut at = 12;
    // Offset after the first compression pointer, where the question continues after the name; none without a pointer.
    let mut behind = None;
    let mut pointers = 0;
    loop {
        let len = *message.get(at).ok_or(DnsFault::Short)?;
        match len >> 6 {
            0 if len == 0 => {
                at += 1;
                break;
            }
            0 => {
                let label = message
                    .get(at + 1..at + 1 + usize::from(len))
                    .ok_or(DnsFault::Short)?;
                if !(name.is_empty() || name.extend(b".")) || !name.extend(label) {
                    return Err(DnsFault::LongName);
                }
                at += 1 + usize::from(len);
            }
            3 => {
                let low = *message.get(at + 1).ok_or(DnsFault::Short)?;
                behind.get_or_insert(at + 2);
                pointers += 1;
                let to = usize::from(len & 0x3f) << 8 | usize::from(low);
                if to >= at || pointers > MOST_POINTERS {
                    return Err(DnsFault::Label);
                }
                at = to;
            }
            _ => return Err(DnsFault::Label),
        }
    }
    let at = behind.unwrap_or(at);
    let tail = message
        .get(at..)
        .and_then(|rest| rest.first_chunk::<4>())
        .ok_or(DnsFault::Short)?;
    Ok(Question {
        id: number(0),
        is_response: head[2] & 0x80 != 0,
        opcode: head[2] >> 3 & 0xf,
        code: head[3] & 0xf,
        kind: u16::from_be_bytes([tail[0], tail[1]]),
        class: u16::from_be_bytes([tail[2], tail[3]]),
        questions,
        answers: number(6),
    })
}

/// Returns the first message in the bytes of a TCP stream, and the number of bytes up to the message's end. A length
/// precedes each message (RFC 1035 section 4.2.2) and is included in that number. Returns none if the message is
/// incomplete.
pub fn over_tcp(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let len = bytes.first_chunk::<2>()?;
    let end = 2 + usize::from(u16::from_be_bytes(*len));
    Some((bytes.get(2..end)?, end))
}

/// Maximum number of messages per call whose questions are read: more than a frame of 64 KiB contains.
pub const MOST_MESSAGES: usize = 8192;

/// The position of the parser in a TCP stream of DNS messages, each of which has a length prefix (RFC 1035 section
/// 4.2.2). All messages are found, at any split into segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Framing {
    /// First byte of a message's length prefix whose second byte has not arrived.
    length: Option<u8>,
    /// Number of remaining bytes of the current message. `come` is the number of its bytes that have arrived.
    left: u16,
    come: u16,
    /// True if the question of the current message was read, or is no longer readable.
    is_read: bool,
    /// True if bytes are missing, so that the boundaries of messages are unknown.
    is_lost: bool,
}

impl Framing {
    /// Stops parsing the stream because some of its bytes are missing.
    pub fn lose(&mut self) {
        self.is_lost = true;
    }

    /// Parses the next bytes of the stream, `bytes[new_from..]`; `bytes[..new_from]` are the bytes directly before
    /// them. Calls `each` with the question and its name once a message has arrived up to the end of its first
    /// question, at most [`MOST_MESSAGES`] times. Returns the number of messages above that limit.
    pub fn push(
        &mut self,
        bytes: &[u8],
        new_from: usize,
        name: &mut Name,
        mut each: impl FnMut(Result<Question, DnsFault>, &Name),
    ) -> usize {
        if self.is_lost {
            return 0;
        }
        let mut at = new_from;
        let mut read = 0;
        while let Some(&byte) = bytes.get(at) {
            if self.left == 0 {
                at += 1;
                match self.length.take() {
                    None => self.length = Some(byte),
                    Some(high) => {
                        self.left = u16::from_be_bytes([high, byte]);
                        self.come = 0;
                        self.is_read = false;
                    }
                }
                continue;
            }
            let taken = (bytes.len() - at).min(usize::from(self.left));
            at += taken;
            // Both numbers are at most the length of the message, which has 16 bits.
            self.left -= taken as u16;
            self.come += taken as u16;
            if self.is_read {
                continue;
            }
            // If the message arrived in many pieces, its beginning is no longer stored.
            let message = at.checked_sub(usize::from(self.come));
            let question = match message.and_then(|from| bytes.get(from..at)) {
                Some(message) => query(message, name),
                None => Err(DnsFault::Cut),
            };
            if question == Err(DnsFault::Short) && self.left > 0 {
                continue;
            }
            self.is_read = true;
            read += 1;
            if read <= MOST_MESSAGES {
                each(question, name);
            }
        }
        read.saturating_sub(MOST_MESSAGES)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn message(questions: u16, rest: &[u8]) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 0x01, 0x00];
        message.extend(questions.to_be_bytes());
        message.extend([0; 6]);
        message.extend(rest);
        message
    }

    #[test]
    fn cleared_dns_names_compare_equal_to_new_dns_names() {
        let (mut used, mut fresh) = (Name::default(), Name::default());
        assert!(used.extend(b"long.example"));
        used.clear();
        assert_eq!(used, fresh);
        assert!(used.extend(b"a.example") && fresh.extend(b"a.example"));
        assert_eq!(used, fresh);
        assert!(fresh.extend(b".") && used != fresh);
    }

    #[test]
    fn a_query_name_is_parsed_into_dotted_text() {
        let mut name = Name::default();
        let asked = message(1, b"\x03wWw\x07example\x03com\x00\x00\x01\x00\x01");
        let question = query(&asked, &mut name).unwrap();
        assert_eq!(&name[..], b"wWw.example.com");
        assert_eq!(
            (
                question.id,
                question.kind,
                question.class,
                question.is_response
            ),
            (0x1234, 1, 1, false)
        );
        let framed = [&(asked.len() as u16).to_be_bytes()[..], &asked, b"more"].concat();
        assert_eq!(over_tcp(&framed), Some((&asked[..], asked.len() + 2)));
        assert_eq!(over_tcp(&framed[..20]), None);
    }

    #[test]
    fn circular_or_endless_dns_names_are_refused() {
        let mut name = Name::default();
        let read = |rest: &[u8], name: &mut Name| query(&message(1, rest), name);
        assert_eq!(
            read(b"\xc0\x0c\x00\x01\x00\x01", &mut name),
            Err(DnsFault::Label)
        );
        assert_eq!(
            read(b"\x01a\xc0\x0c\x00\x01\x00\x01", &mut name),
            Err(DnsFault::Label)
        );
        assert_eq!(
            read(b"\x80\x00\x01\x00\x01", &mut name),
            Err(DnsFault::Label)
        );
        assert_eq!(read(b"\x05abc", &mut name), Err(DnsFault::Short));
        assert_eq!(read(b"\x01a\x00\x00\x01", &mut name), Err(DnsFault::Short));
        assert_eq!(
            query(&message(0, b""), &mut name),
            Err(DnsFault::NoQuestion)
        );
        let long: Vec<u8> = std::iter::repeat_n(
            b"\x3faaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa".to_vec(),
            5,
        )
        .flatten()
        .collect();
        assert_eq!(read(&long, &mut name), Err(DnsFault::LongName));
    }

    /// Returns the names in the questions of a stream that is split into pieces of `size` bytes, each passed with up to
    /// `window` bytes before it.
    fn asked(stream: &[u8], size: usize, window: usize) -> (Vec<String>, usize, usize) {
        let (mut framing, mut name) = (Framing::default(), Name::default());
        let (mut names, mut faults, mut more) = (Vec::new(), 0, 0);
        let mut at = 0usize;
        for piece in stream.chunks(size) {
            let from = at.saturating_sub(window);
            at += piece.len();
            let new_from = at - piece.len() - from;
            more +=
                framing.push(
                    &stream[from..at],
                    new_from,
                    &mut name,
                    |question, name| match question {
                        Ok(_) => names.push(String::from_utf8_lossy(name).into_owned()),
                        Err(_) => faults += 1,
                    },
                );
        }
        (names, faults, more)
    }

    #[test]
    fn dns_messages_of_a_stream_are_parsed_at_any_split() {
        let mut stream = Vec::new();
        for number in 0..9u8 {
            let label = [b'a' + number; 3];
            let rest = [b"\x03", &label[..], b"\x03net\x00\x00\x01\x00\x01 and more"].concat();
            let message = message(1, &rest);
            stream.extend((message.len() as u16).to_be_bytes());
            stream.extend(message);
        }
        // The stream also has a message without a question, and a message without bytes.
        stream.extend([0, 12]);
        stream.extend(message(0, b""));
        stream.extend([0, 0]);
        let (names, faults, more) = asked(&stream, usize::MAX, 0);
        assert_eq!((names.len(), faults, more), (9, 1, 0));
        assert_eq!((&*names[0], &*names[8]), ("aaa.net", "iii.net"));
        for size in 1..=stream.len() {
            assert_eq!(
                asked(&stream, size, 256),
                (names.clone(), faults, 0),
                "{size}"
            );
        }
        // Without the earlier bytes, a split question cannot be read, but later ones can.
        let (few, faults, _) = asked(&stream, 40, 0);
        assert!(few.len() < 9 && few.len() + faults == 10, "{few:?}");
    }

    #[test]
    fn the_number_of_dns_messages_parsed_per_segment_is_limited() {
        let message = message(1, b"\x01a\x00\x00\x01\x00\x01");
        let framed = [&(message.len() as u16).to_be_bytes()[..], &message].concat();
        let stream = framed.repeat(MOST_MESSAGES + 100);
        let (names, _, more) = asked(&stream, usize::MAX, 0);
        assert_eq!((names.len(), more), (MOST_MESSAGES, 100));
    }

    #[test]
    fn dns_parsing_of_a_stream_stops_after_missing_bytes() {
        let mut framing = Framing::default();
        framing.lose();
        let bytes = [&[0, 17][..], &message(1, b"\x00\x00\x01\x00\x01")].concat();
        let mut called = 0;
        framing.push(&bytes, 0, &mut Name::default(), |_, _| called += 1);
        assert_eq!(called, 0);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut name = Name::default();
            let _ = query(&bytes, &mut name);
            let _ = over_tcp(&bytes);
        }
    }
}
