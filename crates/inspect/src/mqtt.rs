//! MQTT 3.1, 3.1.1 and 5 (OASIS MQTT Version 5.0, chapter 3). A message is a control packet.
//!
//! A number that is not in a packet has no buffer. The exception is a reason code that version 5 allows a packet to
//! omit: its buffer contains 0.

use crate::buffer::{Buffer, BufferSet};
use crate::cursor::Cursor;
use crate::findings::Findings;
use crate::framer::{Framed, Framers, Length};
use crate::record::Record;

const CONNECT: u8 = 1;
const CONNACK: u8 = 2;
const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const PUBCOMP: u8 = 7;
const SUBSCRIBE: u8 = 8;
const SUBACK: u8 = 9;
const UNSUBSCRIBE: u8 = 10;
const UNSUBACK: u8 = 11;
const DISCONNECT: u8 = 14;
const AUTH: u8 = 15;

/// Names of the packet types, by their numbers from 1.
pub const TYPES: [&str; 15] = [
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
];

/// Flags of a CONNECT packet, each with its name in rules and its bit.
pub const CONNECT_FLAGS: [(&str, u64); 5] = [
    ("username", USERNAME as u64),
    ("password", PASSWORD as u64),
    ("will_retain", 0x20),
    ("will", WILL as u64),
    ("clean_session", 0x02),
];
const USERNAME: u8 = 0x80;
const PASSWORD: u8 = 0x40;
const WILL: u8 = 0x04;

/// Flags of any packet, each with its name in rules and its bit.
pub const FLAGS: [(&str, u64); 2] = [("dup", 8), ("retain", 1)];

/// Maximum number of bytes of a variable-length number.
pub(crate) const MOST_LENGTH: usize = 4;
/// The first version of MQTT whose packets have properties.
const WITH_PROPERTIES: u8 = 5;

/// The parser of both directions of a connection.
#[derive(Debug, Default)]
pub struct Mqtt {
    framers: Framers,
    record: Record,
    /// Version in the client's CONNECT packet; 0 until that packet arrives.
    version: u8,
}

/// Returns the length of the packet at the beginning of the given bytes.
fn length(bytes: &[u8]) -> Length {
    let behind = &bytes[1.min(bytes.len())..];
    match variable(behind) {
        Some((len, taken)) => Length::Bytes(len + 1 + taken as u64),
        None if behind.len() < MOST_LENGTH => Length::Unknown,
        None => Length::Fault,
    }
}

/// Reads a variable-length number, seven bits in each byte. Returns the number and its length in bytes; none if the
/// number is incomplete or too long.
pub(crate) fn variable(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (place, &byte) in bytes.iter().take(MOST_LENGTH).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            return Some((number, place + 1));
        }
    }
    None
}

impl Mqtt {
    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        self.framers.reset();
        self.version = 0;
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
    }

    /// Parses the next bytes of a direction and reports each packet.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let Self {
            framers,
            record,
            version,
        } = self;
        let mut faults = 0;
        let is_lost = framers.push(to_server, data, length, |it| {
            let mut packet = Packet { record, version };
            let is_whole = packet.read(it).is_some();
            faults += u64::from(!is_whole && it.is_whole);
            found.tell(record, record.has());
        });
        found.faults(faults + u64::from(is_lost));
    }
}

/// The control packet that is being parsed.
struct Packet<'a> {
    record: &'a mut Record,
    version: &'a mut u8,
}

impl Packet<'_> {
    /// Parses a packet up to its first invalid field; returns none if its header is invalid.
    fn read(&mut self, framed: Framed<'_>) -> Option<()> {
        self.record.clear();
        let mut from = Cursor(framed.bytes);
        let first = from.number(1)? as u8;
        let (kind, flags) = (first >> 4, first & 0xf);
        let (_, taken) = variable(from.0)?;
        from.take(taken)?;
        self.record.put_number(Buffer::MqttType, kind.into());
        self.record.put_number(Buffer::MqttFlags, flags.into());
        let qos = flags >> 1 & 3;
        self.record.put_number(Buffer::MqttQos, qos.into());
        if kind == CONNECT {
            *self.version = connect_version(from)?;
        }
        if *self.version > 0 {
            let version = (*self.version).into();
            self.record.put_number(Buffer::MqttProtocolVersion, version);
        }
        match kind {
            CONNECT => self.connect(&mut from),
            CONNACK => {
                let session = from.number(1)? & 1;
                self.record.put_number(Buffer::MqttSessionPresent, session);
                self.reason(&mut from)
            }
            PUBLISH => self.publish(qos, &mut from),
            PUBACK..=PUBCOMP => {
                from.take(2)?;
                self.reason_of_later_version(&mut from)
            }
            SUBSCRIBE => {
                self.identifier_and_properties(&mut from)?;
                while !from.0.is_empty() {
                    let topic = from.string(2)?;
                    self.record.put(Buffer::MqttSubscribeTopic, &[topic]);
                    from.take(1)?;
                }
                Some(())
            }
            UNSUBSCRIBE => {
                self.identifier_and_properties(&mut from)?;
                while !from.0.is_empty() {
                    let topic = from.string(2)?;
                    self.record.put(Buffer::MqttUnsubscribeTopic, &[topic]);
                }
                Some(())
            }
            SUBACK | UNSUBACK => {
                self.identifier_and_properties(&mut from)?;
                while !from.0.is_empty() {
                    self.reason(&mut from)?;
                }
                Some(())
            }
            DISCONNECT | AUTH => self.reason_of_later_version(&mut from),
            _ => Some(()),
        }
    }

    fn has_properties(&self) -> bool {
        *self.version >= WITH_PROPERTIES
    }

    fn properties(&self, from: &mut Cursor<'_>) -> Option<()> {
        if self.has_properties() {
            let (len, taken) = variable(from.0)?;
            from.take(taken)?;
            from.take(usize::try_from(len).ok()?)?;
        }
        Some(())
    }

    fn identifier_and_properties(&self, from: &mut Cursor<'_>) -> Option<()> {
        from.take(2)?;
        self.properties(from)
    }

    fn reason(&mut self, from: &mut Cursor<'_>) -> Option<()> {
        let code = from.number(1)?;
        self.record.put_number(Buffer::MqttReasonCode, code);
        Some(())
    }

    /// Reads a reason code if the protocol version has one; an omitted code counts as 0.
    fn reason_of_later_version(&mut self, from: &mut Cursor<'_>) -> Option<()> {
        if !self.has_properties() {
            return Some(());
        }
        self.reason(&mut if from.0.is_empty() {
            Cursor(&[0])
        } else {
            *from
        })
    }

    fn connect(&mut self, from: &mut Cursor<'_>) -> Option<()> {
        let name = from.string(2)?;
        self.record.put(Buffer::MqttProtocolString, &[name]);
        from.take(1)?;
        let flags = from.number(1)? as u8;
        self.record
            .put_number(Buffer::MqttConnectFlags, flags.into());
        from.take(2)?;
        self.properties(from)?;
        self.string(Buffer::MqttClientId, from)?;
        if flags & WILL != 0 {
            self.properties(from)?;
            self.string(Buffer::MqttWillTopic, from)?;
            self.string(Buffer::MqttWillMessage, from)?;
        }
        if flags & USERNAME != 0 {
            self.string(Buffer::MqttUsername, from)?;
        }
        if flags & PASSWORD != 0 {
            self.string(Buffer::MqttPassword, from)?;
        }
        Some(())
    }

    fn string(&mut self, buffer: Buffer, from: &mut Cursor<'_>) -> Option<()> {
        self.record.put(buffer, &[from.string(2)?]);
        Some(())
    }

    fn publish(&mut self, qos: u8, from: &mut Cursor<'_>) -> Option<()> {
        self.string(Buffer::MqttPublishTopic, from)?;
        if qos > 0 {
            from.take(2)?;
        }
        self.properties(from)?;
        self.record.put(Buffer::MqttPublishMessage, &[from.0]);
        Some(())
    }
}

/// Returns the protocol version in a CONNECT packet, which follows the protocol name; none if the packet is too short.
fn connect_version(mut from: Cursor<'_>) -> Option<u8> {
    from.string(2)?;
    Some(from.number(1)? as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::testing::{numbers, texts, whole_as_cut};

    fn packet(first: u8, body: &[u8]) -> Vec<u8> {
        let mut packet = vec![first];
        let mut len = body.len();
        loop {
            let byte = (len & 0x7f) as u8;
            len >>= 7;
            packet.push(byte | if len > 0 { 0x80 } else { 0 });
            if len == 0 {
                break;
            }
        }
        packet.extend(body);
        packet
    }

    fn string(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u16).to_be_bytes()[..], text].concat()
    }

    fn connect(version: u8) -> Vec<u8> {
        let properties: &[u8] = if version == 5 { b"\x02\x17\x01" } else { b"" };
        let strings = [b"me", b"wt", b"wm", b"us", b"pw"].map(|text| string(text));
        let head = [&string(b"MQTT")[..], &[version, 0xc6, 0, 60], properties].concat();
        let will = if version == 5 { &b"\x00"[..] } else { b"" };
        let rest = [&strings[0][..], will, &strings[1..].concat()].concat();
        packet(0x10, &[head, rest].concat())
    }

    #[test]
    fn a_connect_message_yields_client_id_will_and_credentials() {
        for version in [4, 5] {
            let (found, counts) = whole_as_cut(Application::Mqtt, &[(true, connect(version))]);
            assert_eq!((found.len(), counts.faults), (1, 0));
            for (buffer, text) in [
                (Buffer::MqttProtocolString, "MQTT"),
                (Buffer::MqttClientId, "me"),
                (Buffer::MqttWillTopic, "wt"),
                (Buffer::MqttWillMessage, "wm"),
                (Buffer::MqttUsername, "us"),
                (Buffer::MqttPassword, "pw"),
            ] {
                assert_eq!(texts(&found[0], buffer), [text]);
            }
            for (buffer, number) in [
                (Buffer::MqttType, 1),
                (Buffer::MqttProtocolVersion, version.into()),
                (Buffer::MqttConnectFlags, 0xc6),
            ] {
                assert_eq!(numbers(&found[0], buffer), [number]);
            }
        }
    }

    #[test]
    fn mqtt_topics_messages_and_reason_codes_are_parsed() {
        let publish = [&string(b"a/b")[..], &[0, 1], b"text"].concat();
        let subscribe = [&[0, 2][..], &string(b"one"), &[0], &string(b"two"), &[1]].concat();
        let unsubscribe = [&[0, 3][..], &string(b"one"), &string(b"two")].concat();
        let pieces = [
            (true, connect(4)),
            (false, packet(0x20, &[1, 0])),
            (true, packet(0x3b, &publish)),
            (true, packet(0x82, &subscribe)),
            (false, packet(0x90, &[0, 2, 0, 0x80])),
            (true, packet(0xa2, &unsubscribe)),
            (true, packet(0xe0, b"")),
        ];
        let (found, counts) = whole_as_cut(Application::Mqtt, &pieces);
        assert_eq!((found.len(), counts.faults), (7, 0));
        assert_eq!(numbers(&found[1], Buffer::MqttSessionPresent), [1]);
        assert_eq!(numbers(&found[1], Buffer::MqttReasonCode), [0]);
        assert_eq!(texts(&found[2], Buffer::MqttPublishTopic), ["a/b"]);
        assert_eq!(texts(&found[2], Buffer::MqttPublishMessage), ["text"]);
        assert_eq!(numbers(&found[2], Buffer::MqttFlags), [0xb]);
        assert_eq!(numbers(&found[2], Buffer::MqttQos), [1]);
        assert_eq!(texts(&found[3], Buffer::MqttSubscribeTopic), ["one", "two"]);
        assert_eq!(numbers(&found[4], Buffer::MqttReasonCode), [0, 0x80]);
        assert_eq!(
            texts(&found[5], Buffer::MqttUnsubscribeTopic),
            ["one", "two"]
        );
        assert!(numbers(&found[6], Buffer::MqttReasonCode).is_empty());
    }

    #[test]
    fn properties_and_reason_codes_of_mqtt_version_5_are_parsed() {
        let publish = [&string(b"t")[..], b"\x03\x01\x01\x01", b"text"].concat();
        let pieces = [
            (true, connect(5)),
            (false, packet(0x20, &[0, 0x86, 0])),
            (true, packet(0x30, &publish)),
            (false, packet(0x40, &[0, 1, 0x10, 0])),
            (false, packet(0x40, &[0, 1])),
            (true, packet(0xe0, b"")),
        ];
        let (found, counts) = whole_as_cut(Application::Mqtt, &pieces);
        assert_eq!(counts.faults, 0);
        assert_eq!(texts(&found[2], Buffer::MqttPublishMessage), ["text"]);
        let codes = [1, 3, 4, 5].map(|at| numbers(&found[at], Buffer::MqttReasonCode));
        assert_eq!(codes, [[0x86], [0x10], [0], [0]]);
    }

    #[test]
    fn truncated_mqtt_packets_are_faults_and_later_packets_are_parsed() {
        let pieces = [
            (true, packet(0x30, b"\x00\x09a")),
            (true, packet(0x82, b"\x00")),
            (true, packet(0xc0, b"")),
            (true, b"\x30\xff\xff\xff\xff".to_vec()),
            (true, packet(0xc0, b"")),
        ];
        let (found, counts) = whole_as_cut(Application::Mqtt, &pieces);
        assert_eq!((found.len(), counts.faults), (3, 3));
    }

    #[test]
    fn the_first_bytes_of_a_long_message_are_stored() {
        let publish = [&string(b"t")[..], &[b'x'; 60_000]].concat();
        let mut parser = crate::protocols::Parser::Mqtt(Mqtt::default());
        let pieces = [(true, [packet(0x30, &publish), packet(0xc0, b"")].concat())];
        let (found, counts) = crate::protocols::testing::read_cut(&mut parser, &pieces, &[1460]);
        assert_eq!((found.len(), counts.faults), (2, 0));
        assert!(texts(&found[0], Buffer::MqttPublishMessage)[0].len() > 16_000);
    }
}
