//! Keywords for the protocols whose messages are records: the buffer of each keyword, and the syntax of its value.

use crate::buffer::Buffer;
use crate::http2::{ERROR_CODES, FRAME_TYPES, SETTINGS_NAMES, setting};
use crate::mqtt::{CONNECT_FLAGS, FLAGS, TYPES};
use crate::number::{number, within};
use crate::refusal::{Read, Refusal, unable, wrong};
use crate::rule::*;
use crate::{ftp, ike, ntp};

/// Keywords that select a buffer for the contents after them, each with its older name.
const BUFFERS: [(&str, &str, Buffer); 44] = [
    ("http.request_header", "", Buffer::HttpRequestHeader),
    ("http.response_header", "", Buffer::HttpResponseHeader),
    ("dns.queries.rrname", "", Buffer::DnsQuestion),
    ("dcerpc.stub_data", "dce_stub_data", Buffer::DceStub),
    ("sip.method", "sip_method", Buffer::SipMethod),
    ("sip.uri", "sip_uri", Buffer::SipUri),
    (
        "sip.request_line",
        "sip_request_line",
        Buffer::SipRequestLine,
    ),
    ("sip.stat_code", "sip_stat_code", Buffer::SipStatusCode),
    ("sip.stat_msg", "sip_stat_msg", Buffer::SipStatusMessage),
    (
        "sip.response_line",
        "sip_response_line",
        Buffer::SipResponseLine,
    ),
    ("sip.protocol", "sip_protocol", Buffer::SipProtocol),
    ("sip.from", "", Buffer::SipFrom),
    ("sip.to", "", Buffer::SipTo),
    ("sip.via", "", Buffer::SipVia),
    ("sip.user_agent", "", Buffer::SipUserAgent),
    ("sip.content_type", "", Buffer::SipContentType),
    ("sip.content_length", "", Buffer::SipContentLength),
    (
        "mqtt.connect.protocol_string",
        "",
        Buffer::MqttProtocolString,
    ),
    ("mqtt.connect.clientid", "", Buffer::MqttClientId),
    ("mqtt.connect.username", "", Buffer::MqttUsername),
    ("mqtt.connect.password", "", Buffer::MqttPassword),
    ("mqtt.connect.willtopic", "", Buffer::MqttWillTopic),
    ("mqtt.connect.willmessage", "", Buffer::MqttWillMessage),
    ("mqtt.publish.topic", "", Buffer::MqttPublishTopic),
    ("mqtt.publish.message", "", Buffer::MqttPublishMessage),
    ("mqtt.subscribe.topic", "", Buffer::MqttSubscribeTopic),
    ("mqtt.unsubscribe.topic", "", Buffer::MqttUnsubscribeTopic),
    (
        "http2.header_name",
        "http2_header_name",
        Buffer::Http2HeaderName,
    ),
    ("ftp.command", "", Buffer::FtpCommand),
    ("ftp.command_data", "", Buffer::FtpCommandData),
    ("ftp.reply", "", Buffer::FtpReply),
    ("ftp.completion_code", "", Buffer::FtpCompletionCode),
    ("ssh.proto", "ssh_proto", Buffer::SshProto),
    ("ssh.software", "ssh_software", Buffer::SshSoftware),
    ("ssh.hassh", "", Buffer::SshHassh),
    ("ssh.hassh.string", "", Buffer::SshHasshString),
    ("ssh.hassh.server", "", Buffer::SshHasshServer),
    ("ssh.hassh.server.string", "", Buffer::SshHasshServerString),
    ("ntp.reference_id", "", Buffer::NtpReferenceId),
    ("ike.init_spi", "", Buffer::IkeInitiatorSpi),
    ("ike.resp_spi", "", Buffer::IkeResponderSpi),
    ("ike.vendor", "", Buffer::IkeVendor),
    ("ike.key_exchange_payload", "", Buffer::IkeKeyExchange),
    ("ike.nonce_payload", "", Buffer::IkeNonce),
];

/// The syntax of a keyword's value, and its effect.
#[derive(Clone, Copy)]
enum Written {
    /// The value is a number or a range.
    Number,
    /// Several numbers and inclusive ranges, one of which has to match.
    Numbers,
    /// A number, or a name from the list; the names are numbered upwards from the given number.
    Name(&'static [&'static str], i64),
    /// Names of bits that must be set, or must be clear if the name follows a `!`.
    Flags(&'static [(&'static str, u64)]),
    /// One of the listed words, each of which has a numeric value.
    Word(&'static [(&'static str, i64)]),
    /// Name of an HTTP/2 setting, followed by a number or a range.
    Setting,
    /// Name of an IKE attribute, followed by its value.
    Attribute,
    /// A number or a range that is compared with the length of the buffer.
    Len,
}

/// Keywords that test a number, each with its older name, its buffer, and the syntax of its value.
const NUMBERS: [(&str, &str, Buffer, Written); 24] = [
    (
        "dcerpc.opnum",
        "dce_opnum",
        Buffer::DceOpnum,
        Written::Numbers,
    ),
    ("mqtt.type", "", Buffer::MqttType, Written::Name(&TYPES, 1)),
    ("mqtt.flags", "", Buffer::MqttFlags, Written::Flags(&FLAGS)),
    ("mqtt.qos", "", Buffer::MqttQos, Written::Number),
    (
        "mqtt.reason_code",
        "mqtt.connack.return_code",
        Buffer::MqttReasonCode,
        Written::Number,
    ),
    (
        "mqtt.connack.session_present",
        "",
        Buffer::MqttSessionPresent,
        Written::Word(&[
            ("yes", 1),
            ("true", 1),
            ("1", 1),
            ("no", 0),
            ("false", 0),
            ("0", 0),
        ]),
    ),
    (
        "mqtt.protocol_version",
        "",
        Buffer::MqttProtocolVersion,
        Written::Number,
    ),
    (
        "mqtt.connect.flags",
        "",
        Buffer::MqttConnectFlags,
        Written::Flags(&CONNECT_FLAGS),
    ),
    (
        "http2.frametype",
        "",
        Buffer::Http2FrameType,
        Written::Name(&FRAME_TYPES, 0),
    ),
    (
        "http2.errorcode",
        "",
        Buffer::Http2ErrorCode,
        Written::Name(&ERROR_CODES, 0),
    ),
    ("http2.priority", "", Buffer::Http2Priority, Written::Number),
    ("http2.window", "", Buffer::Http2Window, Written::Number),
    (
        "http2.size_update",
        "",
        Buffer::Http2SizeUpdate,
        Written::Number,
    ),
    (
        "http2.settings",
        "",
        Buffer::Http2Settings,
        Written::Setting,
    ),
    (
        "ftp.dynamic_port",
        "",
        Buffer::FtpDynamicPort,
        Written::Number,
    ),
    ("ftp.mode", "", Buffer::FtpMode, Written::Word(&ftp::MODES)),
    (
        "ftp.reply_received",
        "",
        Buffer::FtpReplyReceived,
        Written::Word(&[("yes", 1), ("on", 1), ("no", 0), ("off", 0)]),
    ),
    ("ntp.version", "", Buffer::NtpVersion, Written::Number),
    ("ntp.stratum", "", Buffer::NtpStratum, Written::Number),
    (
        "ntp.mode",
        "",
        Buffer::NtpMode,
        Written::Name(&ntp::MODES, 0),
    ),
    ("ike.exchtype", "", Buffer::IkeExchangeType, Written::Number),
    (
        "ike.key_exchange_payload_length",
        "",
        Buffer::IkeKeyExchange,
        Written::Len,
    ),
    (
        "ike.nonce_payload_length",
        "",
        Buffer::IkeNonce,
        Written::Len,
    ),
    (
        "ike.chosen_sa_attribute",
        "",
        Buffer::IkeChosen,
        Written::Attribute,
    ),
];

/// Returns the buffer that a keyword selects.
pub(crate) fn buffer_of(keyword: &str) -> Option<Buffer> {
    let is = |it: &&(&str, &str, Buffer)| keyword == it.0 || keyword == it.1;
    BUFFERS.iter().find(is).map(|it| it.2)
}

/// Returns the steps for a keyword with a value; none if the keyword is not one of this module.
pub(crate) fn steps_of(keyword: &str, value: &str) -> Read<Option<Vec<Step>>> {
    if matches!(keyword, "dcerpc.iface" | "dce_iface") {
        return interface(value).map(Some);
    }
    if keyword == "ftp.reply_received" && matches!(value, "no" | "off") {
        // A parser cannot report that a command will never get a reply.
        return unable(format!("{keyword}:{value}"));
    }
    let is = |it: &&(&str, &str, Buffer, Written)| keyword == it.0 || keyword == it.1;
    let Some((_, _, buffer, written)) = NUMBERS.iter().find(is) else {
        return Ok(None);
    };
    let test = match written {
        Written::Number => Test::Number(vec![one_number(value)?]),
        Written::Numbers => {
            let each = value.split(',').map(|part| within(part.trim(), true));
            Test::Number(each.collect::<Read<_>>()?)
        }
        Written::Name(names, first) => Test::Number(vec![name_or_number(value, names, *first)?]),
        Written::Flags(flags) => bits(value, flags)?,
        Written::Word(words) => match words.iter().find(|(word, _)| *word == value) {
            Some((_, number)) => Test::Number(vec![exactly(*number, false)]),
            None => {
                let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                return wrong(format!("{value:?}: expected one of {}", words.join(", ")));
            }
        },
        Written::Setting => Test::Number(vec![of_setting(value)?]),
        Written::Attribute => Test::Content(of_attribute(value)?),
        Written::Len => Test::Len(one_number(value)?),
    };
    Ok(Some(vec![step(*buffer, test)]))
}

fn step(buffer: Buffer, test: Test) -> Step {
    Step {
        buffer,
        transforms: Vec::new(),
        instance: 0,
        test,
    }
}

fn exactly(number: i64, not: bool) -> Within {
    Within {
        least: number,
        most: number,
        not,
    }
}

/// Reads a number or a range. A selection by index among several numbers is not supported.
fn one_number(value: &str) -> Read<Within> {
    match value.contains(',') {
        true => Err(Refusal::NotUnderstood),
        false => within(value, false),
    }
}

fn name_or_number(value: &str, names: &[&str], first: i64) -> Read<Within> {
    let (not, name) = match value.strip_prefix('!') {
        Some(rest) => (true, rest.trim()),
        None => (false, value),
    };
    let place = names.iter().position(|it| it.eq_ignore_ascii_case(name));
    match place {
        Some(place) => Ok(exactly(first + place as i64, not)),
        // The text after a comma is the index of the number to test.
        None if name.starts_with(|it: char| it.is_ascii_alphabetic()) && !name.contains(',') => {
            wrong(format!(
                "{name:?}: expected a number or one of {}",
                names.join(", ")
            ))
        }
        None => one_number(value),
    }
}

/// Reads names of bits, separated by commas, as a test of these bits.
fn bits(value: &str, flags: &[(&str, u64)]) -> Read<Test> {
    let (mut set, mut unset) = (0, 0);
    for part in value.split(',') {
        let (bits, name) = match part.trim().strip_prefix('!') {
            Some(name) => (&mut unset, name.trim()),
            None => (&mut set, part.trim()),
        };
        match flags.iter().find(|(known, _)| *known == name) {
            Some((_, bit)) => *bits |= bit,
            None if name.starts_with(|it: char| !it.is_ascii_alphabetic()) => {
                return Err(Refusal::NotUnderstood);
            }
            None => {
                let names: Vec<_> = flags.iter().map(|(name, _)| *name).collect();
                return wrong(format!("{name:?}: expected one of {}", names.join(", ")));
            }
        }
    }
    Ok(Test::Flags { set, unset })
}

/// Reads the name of an HTTP/2 setting, followed by a number or a range.
fn of_setting(value: &str) -> Read<Within> {
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let end = value.find(|it| !is_of_name(it)).unwrap_or(value.len());
    let (name, rest) = (&value[..end], value[end..].trim());
    let Some(place) = SETTINGS_NAMES.iter().position(|it| *it == name) else {
        return wrong(format!(
            "{name:?}: expected one of {}",
            SETTINGS_NAMES.join(", ")
        ));
    };
    let asked = match rest {
        "" => within(">=0", false)?,
        rest => one_number(rest)?,
    };
    if asked.not {
        return Err(Refusal::NotUnderstood);
    }
    let number = place as u16 + 1;
    let bounded = |value: i64| setting(number, value.clamp(0, u32::MAX.into()) as u32) as i64;
    Ok(Within {
        least: bounded(asked.least),
        most: bounded(asked.most),
        not: false,
    })
}

/// Reads the name of an IKE attribute and its value. Returns a content to search for: the attribute as it is written in
/// [`Buffer::IkeChosen`].
fn of_attribute(value: &str) -> Read<Content> {
    let (name, value) = value.split_once('=').unwrap_or((value, ""));
    let name = name.trim();
    if !ike::ATTRIBUTES.iter().any(|it| it.0 == name) {
        let names = ike::ATTRIBUTES.map(|it| it.0);
        return wrong(format!("{name:?}: expected one of {}", names.join(", ")));
    }
    let mut bytes = Vec::new();
    // The buffer always has enough space.
    let _ = ike::write_attribute(&mut bytes, name, number(value)?);
    Ok(content(bytes))
}

/// Reads the UUID of an interface, followed by an optional version and `any_frag`.
fn interface(value: &str) -> Read<Vec<Step>> {
    let mut parts = value.split(',').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let mut steps = vec![step(Buffer::DceInterface, Test::Content(uuid(name)?))];
    let mut is_any_fragment = false;
    for part in parts {
        let how = match part.chars().next() {
            _ if part == "any_frag" => {
                is_any_fragment = true;
                continue;
            }
            Some('<') => (Comparison::Less, false),
            Some('>') => (Comparison::Greater, false),
            Some('=') => (Comparison::Equal, false),
            Some('!') => (Comparison::Equal, true),
            _ => {
                return wrong(format!(
                    "{part:?}: expected a version such as =1, or any_frag"
                ));
            }
        };
        let version = number(&part[1..])?;
        steps.push(interface_byte(16, 2, how, version));
    }
    if !is_any_fragment {
        steps.push(interface_byte(18, 1, (Comparison::Equal, false), 1));
    }
    Ok(steps)
}

/// Returns a step that compares `value` with the number of `bytes` bytes at `offset` in [`Buffer::DceInterface`].
fn interface_byte(offset: i64, bytes: i64, (how, not): (Comparison, bool), value: i64) -> Step {
    let field = Field {
        bytes: Number::Is(bytes),
        offset: Number::Is(offset),
        relative: false,
        form: Form::Big,
        mask: 0,
    };
    let value = Number::Is(value);
    step(
        Buffer::DceInterface,
        Test::Byte {
            field,
            how,
            not,
            value,
        },
    )
}

/// Reads the UUID of an interface and returns it as a content at the beginning of the buffer.
fn uuid(name: &str) -> Read<Content> {
    let lens: Vec<_> = name.split('-').map(str::len).collect();
    let digits: Vec<u8> = name
        .chars()
        .filter_map(|it| it.to_digit(16).map(|digit| digit as u8))
        .collect();
    if lens != [8, 4, 4, 4, 12] || digits.len() != 32 {
        return wrong(format!(
            "{name:?}: expected a name such as 12345778-1234-abcd-ef00-0123456789ac"
        ));
    }
    let bytes: Vec<_> = digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect();
    Ok(Content {
        depth: Some(Number::Is(bytes.len() as i64)),
        offset: Some(Number::Is(0)),
        ..content(bytes)
    })
}

/// Returns a content test for the given bytes at any position.
fn content(bytes: Vec<u8>) -> Content {
    Content {
        bytes: bytes.into(),
        any_case: false,
        not: false,
        offset: None,
        depth: None,
        distance: None,
        within: None,
        at_end: false,
        is_fast: false,
    }
}

#[cfg(test)]
mod tests {
    use crate::buffer::{Application, BufferSet};
    use crate::compile::{Inspector, RuleSet};
    use crate::evaluate::{Message, Packet, Parts};
    use crate::flow_bits::FlowBits;
    use crate::protocols::{Datagrams, Parser};
    use crate::read::{Dialect, Options, Reading};
    use crate::record::Record;

    fn reading(rules: &str) -> Reading {
        let options = Options {
            dialect: Some(Dialect::Suricata),
            ..Options::default()
        };
        let mut reading = Reading::default();
        reading.read(rules, &options);
        reading
    }

    /// Returns which rules match messages of the client's stream: positions in `rules`, from 1. A rule is written as
    /// action, protocol and options.
    fn fitting(application: Application, rules: &[&str], stream: &[u8]) -> Vec<u32> {
        let lines = rules.iter().zip(1..).map(|(rule, number)| {
            let (head, options) = rule.split_once(' ').unwrap_or((rule, ""));
            format!("alert {head} any any -> any any ({options} sid:{number};)\n")
        });
        let reading = reading(&lines.collect::<String>());
        assert!(reading.mistakes.is_empty(), "{:?}", reading.mistakes);
        assert_eq!(reading.left_out, 0, "{:?}", reading.not_understood);
        let Ok(set) = RuleSet::new(reading.rules, reading.names) else {
            return Vec::new();
        };
        let mut inspector = Inspector::new(&set, 16);
        let packet = Packet {
            protocol: match application {
                Application::Ntp | Application::Ike => 17,
                _ => 6,
            },
            to_server: true,
            application: Some(application),
            ..Packet::default()
        };
        let mut found = Vec::new();
        let mut ask = |record: &Record, ready: BufferSet| {
            let parts = Parts {
                message: Message::Record(record),
                ..Parts::default()
            };
            inspector.begin(u64::MAX);
            let bits = &mut FlowBits::default();
            inspector.inspect(&set, &packet, &parts, false, ready, bits, 0);
            let ids = inspector.matches().iter();
            found.extend(ids.map(|&rule| set.rules()[rule as usize].about.id));
        };
        match Parser::new(application) {
            Some(mut parser) => parser.push(true, stream, &mut ask),
            None => Datagrams::default().read(application, true, stream, &mut ask),
        };
        found.sort_unstable();
        found
    }

    #[test]
    fn mqtt_rules_match_types_flags_and_qos() {
        let rules = [
            "mqtt mqtt.type:SUBSCRIBE;",
            "mqtt mqtt.type:8;",
            "mqtt mqtt.type:!SUBSCRIBE;",
            "mqtt mqtt.type:PUBLISH;",
            "mqtt mqtt.flags:!retain,!dup;",
            "mqtt mqtt.flags:retain;",
            "mqtt mqtt.qos:>0; mqtt.type:7-9;",
            "mqtt mqtt.qos:1-2;",
            "tcp mqtt.type:SUBSCRIBE;",
        ];
        let subscribe = b"\x82\x0c\x00\x01\x00\x03one\x00\x00\x01b\x00";
        assert_eq!(
            fitting(Application::Mqtt, &rules, subscribe),
            [1, 2, 5, 7, 9]
        );
    }

    #[test]
    fn all_conditions_on_a_buffer_apply_to_the_same_instance() {
        let rules = [
            "mqtt mqtt.subscribe.topic; content:\"one\";",
            "mqtt mqtt.subscribe.topic; content:\"two\";",
            "mqtt mqtt.subscribe.topic; content:\"one\"; content:\"two\";",
            "mqtt mqtt.subscribe.topic; content:\"t\"; content:!\"one\";",
            "mqtt mqtt.subscribe.topic; content:\"t\"; content:\"o\"; distance:1; within:1;",
            "mqtt mqtt.subscribe.topic; bsize:3; content:\"tw\"; startswith; mqtt.type:SUBSCRIBE;",
            "mqtt mqtt.subscribe.topic; pcre:\"/^two$/\"; mqtt.unsubscribe.topic; bsize:0;",
        ];
        let subscribe = b"\x82\x0e\x00\x01\x00\x03one\x00\x00\x03two\x00";
        assert_eq!(
            fitting(Application::Mqtt, &rules, subscribe),
            [1, 2, 4, 5, 6]
        );
    }

    #[test]
    fn http2_rules_match_settings_and_error_codes_by_name() {
        let rules = [
            "http2 http2.settings:SETTINGS_HEADER_TABLE_SIZE>1000;",
            "http2 http2.settings:SETTINGS_HEADER_TABLE_SIZE>4097;",
            "http2 http2.settings:SETTINGS_ENABLE_PUSH;",
            "http2 http2.settings:SETTINGS_ENABLE_PUSH=0;",
            "http2 http2.settings:SETTINGS_MAX_FRAME_SIZE;",
            "http2 http2.frametype:GOAWAY; http2.errorcode:INTERNAL_ERROR;",
            "http2 http2.errorcode:!NO_ERROR;",
            "http2 http2.errorcode:CANCEL;",
        ];
        let stream =
            b"\x00\x00\x0c\x04\x00\0\0\0\0\x00\x01\x00\x00\x10\x01\x00\x02\x00\x00\x00\x00\
            \x00\x00\x08\x07\x00\0\0\0\0\x00\x00\x00\x00\x00\x00\x00\x02";
        assert_eq!(fitting(Application::Http2, &rules, stream), [1, 3, 4, 6, 7]);
    }

    #[test]
    fn http_rules_also_match_http2_requests() {
        let rules = [
            "http http.uri; content:\"/\"; http.method; content:\"GET\";",
            "http1 http.uri; content:\"/\";",
            "http2 http.uri; content:\"/\"; http2.header_name; content:\":path\";",
            "tcp http.uri; bsize:1;",
        ];
        let stream = b"\x00\x00\x02\x01\x05\0\0\0\x01\x82\x84";
        assert_eq!(fitting(Application::Http2, &rules, stream), [1, 3, 4]);
    }

    #[test]
    fn invalid_keyword_values_are_errors_or_unsupported() {
        let wrong = [
            "mqtt.type:NOTHING",
            "mqtt.type:",
            "mqtt.flags:up",
            "mqtt.flags:",
            "mqtt.connack.session_present:perhaps",
            "ftp.mode:xactive",
            "ftp.mode:!active",
            "ftp.reply_received:no no",
            "http2.settings:SETTINGS_NOTHING",
            "http2.settings:SETTINGS_ENABLE_PUSH!",
            "dce_iface:12345778",
            "dce_iface:zz345778-1234-abcd-ef00-0123456789ac",
            "dce_iface:12345778-1234-abcd-ef00-0123456789ac,1",
            "dce_opnum:1,x",
        ];
        for option in wrong {
            let reading = reading(&format!("alert ip any any -> any any ({option}; sid:1;)"));
            assert!(reading.rules.is_empty(), "{option}");
            assert_eq!(reading.mistakes.len(), 1, "{option}");
        }
        for option in ["http2.window:1,all", "mqtt.type:CONNECT,0", "mqtt.flags:>2"] {
            let reading = reading(&format!("alert ip any any -> any any ({option}; sid:1;)"));
            assert_eq!(
                (reading.left_out, reading.mistakes.len()),
                (1, 0),
                "{option}"
            );
        }
    }

    #[test]
    fn ftp_rules_match_commands_with_their_data_mode_and_port() {
        let rules = [
            "ftp ftp.command; content:\"USER\"; ftp.command_data; content:\"anonymous\"; bsize:9;",
            "ftp ftp.command; content:\"PASS\"; ftp.command_data; content:\"anonymous\";",
            "ftp ftp.mode:active;",
            "ftp ftp.mode:passive;",
            "ftp ftp.dynamic_port:>59913; ftp.command; content:\"PORT\";",
            "ftp ftp.dynamic_port:59913-59915; flow:to_server;",
            "ftp ftp.dynamic_port:<=59913;",
            "tcp ftp.command; content:\"PORT\"; ftp.mode:active;",
        ];
        let stream = b"user anonymous\r\nPORT 192,168,0,13,234,10\r\n";
        assert_eq!(fitting(Application::Ftp, &rules, stream), [1, 3, 5, 6, 8]);
    }

    #[test]
    fn ssh_rules_match_versions_software_and_algorithms() {
        let rules = [
            "ssh ssh.proto; content:\"2.0\"; bsize:3;",
            "ssh ssh_software; content:\"Soft\"; startswith;",
            "ssh ssh.software; content:\"comment\";",
            "ssh ssh.hassh.string; content:\";\";",
            "ssh ssh.hassh.string; content:\";;;\"; bsize:3; ssh.software; content:\"Soft\";",
            "ssh ssh.hassh.server.string; content:\";\";",
            "ssh ssh.hassh; content:\"95420f9d932ddd22833f17b96a80bedb\"; bsize:32;",
            "ssh content:\"Soft_1.0 a\";",
        ];
        let stream = [
            b"SSH-2.0-Soft_1.0 a comment\r\n\0\0\0\x36\0\x14",
            &[0; 52][..],
        ]
        .concat();
        assert_eq!(fitting(Application::Ssh, &rules, &stream), [1, 2, 4, 5, 7]);
    }

    #[test]
    fn ntp_rules_match_version_mode_stratum_and_reference_id() {
        let rules = [
            "ntp ntp.version:4;",
            "ntp ntp.version:<4; ntp.stratum:>=2;",
            "ntp ntp.mode:client;",
            "ntp ntp.mode:!server;",
            "udp ntp.mode:3; ntp.stratum:0-9;",
            "ntp ntp.reference_id; content:\"LOCL\"; bsize:4;",
            "ntp flow:to_client; ntp.version:3;",
        ];
        let mut message = [0; 48];
        (message[0], message[1]) = (0x1b, 2);
        message[12..16].copy_from_slice(b"LOCL");
        assert_eq!(fitting(Application::Ntp, &rules, &message), [2, 3, 4, 5, 6]);
    }

    #[test]
    fn ike_rules_match_header_fields_and_payloads() {
        let rules = [
            "ike ike.init_spi; content:\"0000000000000007\"; ike.exchtype:2;",
            "ikev2 ike.exchtype:>2;",
            "ike ike.nonce_payload; content:\"abc\"; ike.nonce_payload_length:<4;",
            "ike ike.nonce_payload_length:>3;",
            "ike ike.key_exchange_payload_length:<200;",
            "udp ike.vendor; content:\"2b\"; endswith;",
        ];
        let head = b"\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0\x0a\x10\x02\0\0\0\0\0\0\0\0\x29";
        let message = [&head[..], b"\x0d\0\0\x07abc\0\0\0\x06\x1a\x2b"].concat();
        assert_eq!(fitting(Application::Ike, &rules, &message), [1, 3, 6]);
    }

    #[test]
    fn chosen_ike_attributes_are_matched_only_from_the_server() {
        let all =
            "ike.chosen_sa_attribute:alg_hash=2; ike.chosen_sa_attribute: sa_key_length = 128";
        for (option, left_out, mistakes) in [
            (all, 0, 0),
            ("ike.chosen_sa_attribute:alg_hash=2; flow:to_server", 1, 0),
            ("ike.chosen_sa_attribute:alg_none=2", 0, 1),
            ("ike.chosen_sa_attribute:alg_hash", 0, 1),
            ("ike.chosen_sa_attribute:alg_hash=4294967296", 0, 1),
            (
                "ike.init_spi; content:\"a\"; ike.resp_spi; content:\"a\"",
                1,
                0,
            ),
        ] {
            let reading = reading(&format!("alert ike any any -> any any ({option}; sid:1;)"));
            let found = (reading.left_out, reading.mistakes.len());
            assert_eq!(found, (left_out, mistakes), "{option}");
        }
    }

    #[test]
    fn ftp_rules_with_contradicting_directions_are_skipped() {
        for (option, left_out) in [
            ("flow:to_client; ftp.command; content:\"USER\"", 1),
            ("ftp.reply; content:\"a\"; ftp.command; content:\"b\"", 1),
            (
                "ftp.reply; content:\"a\"; ftp.completion_code; content:\"1\"",
                0,
            ),
            ("ftp.reply_received:yes; flow:to_server", 1),
            ("ftp.reply_received:on", 0),
            ("ftp.reply_received:no", 1),
            ("ftp.reply_received:off", 1),
        ] {
            let reading = reading(&format!("alert ftp any any -> any any ({option}; sid:1;)"));
            assert_eq!(
                (reading.left_out, reading.mistakes.len()),
                (left_out, 0),
                "{option}"
            );
        }
    }

    #[test]
    fn dcerpc_rules_match_calls_by_interface_version_and_operation_number() {
        let uuid = "dce_iface:03020100-0504-0706-0809-0a0b0c0d0e0f";
        let with = |more: &str| format!("dcerpc {uuid}{more}");
        let rules = [
            with("; dce_opnum:15;"),
            with(",=2; dce_opnum:1-3,14-16;"),
            with(",>2;"),
            with(",!1,any_frag; dce_opnum:!4;"),
            "dcerpc dce_stub_data; content:\"stub\"; dce_iface:13020100-0504-0706-0809-0a0b0c0d0e0f;".into(),
            "dcerpc dce_stub_data; content:\"stub\"; dce_opnum:<15;".into(),
        ];
        let names: Vec<u8> = (0..16).collect();
        let context = [&[0, 0, 1, 0][..], &names, &[2, 0, 0, 0], &[0; 20]].concat();
        let bind = [&[0; 8][..], &[1, 0, 0, 0], &context].concat();
        let ack = [&[0; 8][..], &[0, 0, 0, 0], &[1, 0, 0, 0], &[0; 24]].concat();
        let call = [&[0; 4][..], &[0, 0, 15, 0], b"stub"].concat();
        let message = |kind: u8, body: &[u8]| {
            let len = (16 + body.len()) as u8;
            let head = [5, 0, kind, 3, 0x10, 0, 0, 0, len, 0, 0, 0, 1, 0, 0, 0];
            [&head[..], body].concat()
        };
        // The parser accepts a response from either end.
        let stream = [message(11, &bind), message(12, &ack), message(0, &call)].concat();
        let rules: Vec<&str> = rules.iter().map(|rule| &**rule).collect();
        assert_eq!(fitting(Application::DceRpc, &rules, &stream), [1, 2, 4]);
    }
}
