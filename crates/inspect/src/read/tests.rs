//! Tests of the rule reader: each rule is read and then evaluated on packets.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::anomaly::Anomaly;
use crate::buffer::{Application, Buffer, BufferSet};
use crate::compile::{Inspector, RuleSet, Verdict};
use crate::evaluate::{BodyPart, Message, Packet, Parts};
use crate::flow_bits::FlowBits;
use crate::http::Http;

fn read(rules: &str) -> Reading {
    let options = Options {
        dialect: Some(Dialect::Suricata),
        ..Options::default()
    };
    let mut reading = Reading::default();
    reading.read(rules, &options);
    reading
}

fn read_whole(rules: &str) -> Reading {
    let reading = read(rules);
    assert_eq!(reading.mistakes, [], "{rules}");
    assert_eq!(reading.left_out, 0, "{:?}", reading.not_understood);
    reading
}

/// Returns the verdict of rules on a packet, and the identifiers of those that match.
fn ask(
    rules: &str,
    packet: &Packet<'_>,
    parts: &Parts<'_>,
    ready: BufferSet,
) -> (Verdict, Vec<u32>) {
    let reading = read_whole(rules);
    let set = RuleSet::new(reading.rules, reading.names).unwrap();
    let mut inspector = Inspector::new(&set, 16);
    inspector.begin(u64::MAX);
    let bits = &mut FlowBits::default();
    let verdict = inspector.inspect(&set, packet, parts, true, ready, bits, 0);
    let ids = |&rule: &u32| set.rules()[rule as usize].about.id;
    let mut found: Vec<_> = inspector.matches().iter().map(ids).collect();
    found.sort_unstable();
    (verdict, found)
}

/// An IPv4 address, mapped into IPv6.
const V4: u128 = 0xffff_c000_0201;

/// Returns the numbers of the rules that match a UDP payload, counted from 1 in their order; each rule is its options.
fn of_payload(options: &[&str], payload: &[u8]) -> Vec<u32> {
    let packet = Packet {
        protocol: 17,
        source: V4,
        ..Packet::default()
    };
    let parts = Parts {
        payload,
        ..Parts::default()
    };
    ask(
        &numbered("udp", options),
        &packet,
        &parts,
        BufferSet::default(),
    )
    .1
}

fn numbered(protocol: &str, options: &[&str]) -> String {
    let lines = options.iter().zip(1..).map(|(options, number)| {
        format!("alert {protocol} any any -> any any ({options} sid:{number};)\n")
    });
    lines.collect()
}

/// Returns the numbers of the rules about a protocol that match an HTTP message, as in [`of_payload`].
fn of_http(protocol: &str, options: &[&str], to_server: bool, message: &[u8]) -> Vec<u32> {
    let mut http = Http::default();
    let (mut all, mut rest) = (Vec::new(), message);
    while !rest.is_empty() {
        let pushed = http.push(to_server, rest);
        rest = &rest[pushed.consumed..];
        let packet = Packet {
            protocol: 6,
            to_server,
            application: Some(Application::Http),
            ..Packet::default()
        };
        let parts = Parts {
            message: Message::Http {
                http: &http,
                is_request: to_server,
            },
            body: BodyPart {
                new_from: pushed.body_from,
                is_whole: pushed.body_is_whole,
                is_before: false,
            },
            ..Parts::default()
        };
        all.extend(ask(&numbered(protocol, options), &packet, &parts, pushed.ready).1);
    }
    all.sort_unstable();
    all.dedup();
    all
}

const REQUEST: &[u8] =
    b"POST /a%20B?x HTTP/1.1\r\nHost: one\r\nX-Two: three\r\nContent-Length: 3\r\n\r\ncmd";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nServer: Some\r\nContent-Length: 3\r\n\r\ncmd";

#[test]
fn file_data_is_the_body_of_a_request_or_response() {
    let options = [
        "file.data; content:\"cmd\";",
        "file.data; content:\"cmd\"; flow:to_server;",
        "flow:to_client; file.data; content:\"cmd\";",
        "file.data; content:\"cmd\"; http.method; content:\"POST\";",
        "file.data; content:!\"x\";",
        "http.response_body; content:\"cmd\";",
    ];
    assert_eq!(of_http("http", &options, true, REQUEST), [1, 2, 4, 5]);
    assert_eq!(of_http("tcp", &options, false, RESPONSE), [1, 3, 5, 6]);
}

#[test]
fn a_relative_test_reads_the_buffer_of_its_preceding_content() {
    let options = [
        "content:\"/a\"; http_uri; isdataat:2,relative;",
        "content:\"/a\"; http_uri; isdataat:9,relative;",
        "uricontent:\"/a \"; byte_test:1,=,0x42,0,relative;",
        "content:\"/a\"; http_uri; byte_jump:1,0,relative,post_offset -32; isdataat:!4,relative;",
        "content:\"POST\"; http_method; uricontent:\"/a\"; isdataat:2,relative;",
        "content:\"cmd\"; http_client_body; byte_extract:1,-3,first,relative; byte_test:1,=,first,-1,relative;",
    ];
    assert_eq!(of_http("http", &options, true, REQUEST), [1, 3, 4, 5, 6]);
    let base64 =
        "content:\"/\"; http_uri; base64_decode:relative; base64_data; content:\"attack\";";
    let request = b"GET /YXR0YWNr HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(of_http("http", &[base64], true, request), [1]);
}

#[test]
fn all_tests_after_base64_data_examine_the_decoded_bytes() {
    let options = [
        "base64_decode; base64_data; content:\"att\"; content:\"ack\"; distance:0;",
        "base64_decode; base64_data; content:\"att\"; content:!\"x\"; bsize:6;",
        "base64_decode; base64_data; content:\"att\"; pkt_data; content:\"YXR\"; base64_data; content:\"k\";",
        "base64_decode; base64_data; content:\"att\"; content:\"x\";",
        "content:\"Y\"; base64_decode:offset 0; base64_data; content:\"attack\";",
    ];
    assert_eq!(of_payload(&options, b"YXR0YWNr"), [1, 2, 3, 5]);
}

#[test]
fn a_rule_for_one_ip_version_ignores_the_other_version() {
    let rules = "alert icmpv4 any any -> any any (sid:1;)\n\
                 alert icmpv6 any any -> any any (sid:2;)\n\
                 alert icmp any any -> any any (sid:3;)\n\
                 alert IPv4 any any -> any any (sid:4;)\n\
                 alert ip6 any any -> any any (sid:5;)\n\
                 alert IP any any -> any any (sid:6;)\n";
    let of = |protocol, source| {
        let packet = Packet {
            protocol,
            source,
            ..Packet::default()
        };
        ask(rules, &packet, &Parts::default(), BufferSet::default()).1
    };
    assert_eq!(of(1, V4), [1, 3, 4, 6]);
    assert_eq!(of(58, 0x2001_0db8 << 96), [2, 3, 5, 6]);
}

#[test]
fn pass_rules_with_packet_conditions_pass_the_packet_only() {
    let packet = Packet {
        protocol: 6,
        source: V4,
        to_server: true,
        application: Some(Application::Http),
        payload_len: 3,
        ..Packet::default()
    };
    let parts = Parts {
        payload: b"cmd",
        ..Parts::default()
    };
    for (rule, verdict) in [
        (
            "tcp any any -> any any (flow:not_established;",
            Verdict::PassPacket,
        ),
        ("ip any any -> any any (ttl:0;", Verdict::PassPacket),
        (
            "tcp any any -> any any (content:\"cmd\"; depth:3;",
            Verdict::PassPacket,
        ),
        (
            "tcp any any -> any any (flow:to_server;",
            Verdict::PassPacket,
        ),
        (
            "tcp any any -> any any (flow:stateless;",
            Verdict::PassPacket,
        ),
        (
            "http any any -> any any (flow:to_server,not_established;",
            Verdict::PassPacket,
        ),
        (
            "ip any any -> any any (flowbits:isnotset,a;",
            Verdict::PassPacket,
        ),
        (
            "ip any any -> any any (flowbits:unset,a;",
            Verdict::PassPacket,
        ),
        (
            "tcp any any -> any any (xbits:isnotset,a,track ip_src;",
            Verdict::PassPacket,
        ),
        (
            "http any any -> any any (flowbits:isnotset,a;",
            Verdict::PassPacket,
        ),
        ("ip any any -> any any (flowbits:set,a;", Verdict::Pass),
        (
            "tcp any any -> any 0 (xbits:set,a,track ip_src,expire 9;",
            Verdict::Pass,
        ),
        ("ipv4 any any -> any any (", Verdict::Pass),
        ("tcp any any -> any 0 (", Verdict::Pass),
        (
            "tcp any any -> any any (app-layer-protocol:!tls;",
            Verdict::Pass,
        ),
        ("tcp any any -> any any (content:\"cmd\";", Verdict::Pass),
        ("ip 192.0.2.1 any -> any any (", Verdict::Pass),
        ("http any any -> any any (", Verdict::Pass),
        (
            "tcp any any -> any any (app-layer-protocol:http; flow:to_server;",
            Verdict::Pass,
        ),
    ] {
        let rules = format!("pass {rule} sid:1;)\ndrop ip any any -> any any (sid:2;)\n");
        let found = ask(&rules, &packet, &parts, BufferSet::default());
        assert_eq!(found, (verdict, vec![]), "{rule}");
    }
    // The pass rule for the flow takes effect before the pass rule for the packet, and its match is logged because of
    // `alert`.
    let both = "pass ip any any -> any any (ttl:0; sid:1;)\npass tcp any any -> any any (content:\"cmd\"; alert; sid:2;)\n";
    let found = ask(both, &packet, &parts, BufferSet::default());
    assert_eq!(found, (Verdict::Pass, vec![2]));
}

#[test]
fn rules_match_the_transformed_buffers() {
    let options = [
        "http.uri; to_uppercase; content:\"/A B\";",
        "http.uri.raw; url_decode; content:\"/a B\";",
        "http.uri; strip_whitespace; to_lowercase; content:\"/ab?\"; bsize:5;",
        "http.uri; to_md5; content:\"|00|\"; bsize:32;",
        "http.host; to_sha1; bsize:20; http.host; to_sha256; bsize:32; http.host; content:\"one\";",
        "http.host; dotprefix; content:\".one\"; bsize:4;",
        "http.host; xor:\"0f0f\"; content:\"`aj\";",
        "http.header; header_lowercase; content:\"x-two: three\";",
        "http.uri; to_lowercase; content:\"B\";",
        "http.uri; content:\"a\"; compress_whitespace; content:\"a\"; pcre:\"/a\\s/\";",
    ];
    assert_eq!(
        of_http("http", &options, true, REQUEST),
        [1, 2, 3, 5, 6, 7, 8, 10]
    );
    let base64 = ["http.uri; from_base64:offset 1; content:\"attack\"; startswith;"];
    let request = b"GET /YXR0YWNr HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(of_http("http", &base64, true, request), [1]);
    let many = "http.uri; to_md5; bsize:16; http.uri; to_sha1; bsize:20; http.uri; to_sha256; bsize:32; \
        http.host; to_md5; bsize:16; http.host; to_sha1; bsize:20;";
    assert_eq!(read(&numbered("http", &[many])).mistakes.len(), 1);
}

#[test]
fn a_buffer_too_long_to_transform_matches_nothing() {
    let options = [
        "pkt_data; to_uppercase; content:\"A\";",
        "pkt_data; to_uppercase; content:!\"B\";",
        "content:\"a\";",
    ];
    let mut payload = vec![b'a'; crate::transform::MOST_BYTES];
    assert_eq!(of_payload(&options, &payload), [1, 2, 3]);
    payload.push(b'a');
    assert_eq!(of_payload(&options, &payload), [3]);
}

#[test]
fn each_http_header_line_is_matched_separately() {
    let options = [
        "http.request_header; content:\"X-Two: three\"; startswith; endswith;",
        "http.request_header; content:\"Host\"; content:\"three\";",
        "http.request_header; bsize:9; content:\"Host\";",
        "http.response_header; content:\"Server: Some\"; bsize:12;",
        "http.request_header; content:\"Host\"; http.request_header; content:\"three\";",
        "http.request_header; content:\"Host\"; http.request_header; content:\"nowhere\";",
    ];
    assert_eq!(of_http("http", &options, true, REQUEST), [1, 3, 5]);
    assert_eq!(of_http("http", &options, false, RESPONSE), [4]);
}

#[test]
fn rules_can_match_an_absent_buffer() {
    let options = [
        "http.referer; absent;",
        "http.uri; content:\"/a B\"; http.referer; absent;",
        "http.uri; content:\"/other\"; http.referer; absent;",
        "http.host; absent;",
        "http.host; absent:or_else; content:\"one\";",
        "http.host; content:\"one\"; absent: or_else;",
        "http.host; absent:or_else; content:\"two\";",
        "http.host; absent:or_else; content:!\"two\";",
        "http.referer; absent:or_else; content:\"two\"; pcre:\"/x/\";",
        "http.cookie; absent;",
        "http.request_body; absent;",
        "http.request_body; absent:or_else; content:!\"x\";",
        "http.method; content:\"POST\"; file.data; absent:or_else; content:\"cmd\";",
        "http.referer; to_lowercase; absent; http.host; absent:or_else; content:\"one\";",
    ];
    assert_eq!(
        of_http("http", &options, true, REQUEST),
        [1, 2, 5, 6, 8, 9, 10, 12, 13, 14]
    );
    let bare =
        b"POST /other HTTP/1.0\r\nReferer: two x\r\nCookie: a=b\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        of_http("http", &options, true, bare),
        [4, 5, 6, 7, 8, 9, 11, 12, 13]
    );
    let options = [
        "http.cookie; absent;",
        "http.referer; absent;",
        "file.data; absent;",
        "http.stat_code; content:\"5\"; file.data; absent;",
        "file.data; absent:or_else; content:\"cmd\";",
    ];
    assert_eq!(of_http("http", &options, false, RESPONSE), [1, 5]);
    for (head, is_told) in [
        ("200 OK\r\nContent-Length: 0", true),
        ("204 OK", true),
        ("304 OK\r\nContent-Length: 3", true),
        ("100 OK", false),
        ("200 OK", false),
        ("200 OK\r\nTransfer-Encoding: chunked", false),
    ] {
        let head = format!("HTTP/1.1 {head}\r\n\r\n");
        let wanted: &[u32] = if is_told { &[1, 3, 5] } else { &[1] };
        let found = of_http("http", &options, false, head.as_bytes());
        assert_eq!(found, wanted, "{head}");
    }
    let chunked = b"HTTP/1.1 500 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(of_http("http", &options, false, chunked), [1, 3, 4, 5]);
    for wrong in [
        "absent;",
        "http.referer; absent:or_else;",
        "http.referer; absent; content:\"a\";",
        "http.referer; absent:else; content:\"a\";",
    ] {
        assert_eq!(
            read(&numbered("http", &[wrong])).mistakes.len(),
            1,
            "{wrong}"
        );
    }
    let unknown = read(&numbered("http", &["http.header; absent;"]));
    assert_eq!((unknown.left_out, unknown.mistaken), (1, 0));
}

#[test]
fn dns_queries_rrname_also_matches_responses_unlike_dns_query() {
    let options = [
        "dns.query; content:\"name\";",
        "dns.queries.rrname; content:\"name\";",
    ];
    for (is_response, buffer, wanted) in [
        (false, Buffer::DnsQuery, &[1, 2][..]),
        (true, Buffer::DnsQuestion, &[2]),
    ] {
        let packet = Packet {
            protocol: 17,
            application: Some(Application::Dns),
            ..Packet::default()
        };
        let name = b"a.name";
        let parts = Parts {
            message: Message::Dns { name, is_response },
            ..Parts::default()
        };
        let ready = [buffer].into_iter().collect();
        assert_eq!(
            ask(&numbered("dns", &options), &packet, &parts, ready).1,
            wanted
        );
    }
}

#[test]
fn byte_keywords_accept_a_width_from_a_variable() {
    let options = [
        "byte_extract:1,0,width; byte_test:width,=,0x0304,1;",
        "byte_extract:1,0,width; byte_jump:width,1; isdataat:!1,relative;",
        "byte_extract:1,3,width; byte_test:width,=,0,0;",
        "byte_extract:1,0,width; byte_extract:width,1,read; byte_test:2,=,read,1;",
    ];
    assert_eq!(of_payload(&options, b"\x02\x03\x04\x09"), [1, 4]);
}

#[test]
fn rules_may_exclude_an_application_protocol() {
    let options = [
        "app-layer-protocol:!http;",
        "app-layer-protocol:!tls;",
        "app-layer-protocol:http,either;",
        "app-layer-protocol:!smtp,final;",
    ];
    let of = |application, is_unrecognised| {
        let packet = Packet {
            protocol: 6,
            application,
            is_unrecognised,
            ..Packet::default()
        };
        ask(
            &numbered("tcp", &options),
            &packet,
            &Parts::default(),
            BufferSet::default(),
        )
        .1
    };
    assert_eq!(of(Some(Application::Http), false), [2, 3, 4]);
    assert_eq!(of(Some(Application::Tls), false), [1, 4]);
    assert!(of(None, false).is_empty());
    assert_eq!(of(None, true), [1, 2, 4]);
}

#[test]
fn event_and_checksum_rules_match_malformed_packets() {
    let options = [
        "stream-event:reassembly_overlap_different_data;",
        "stream-event:pkt_invalid_ack;",
        "tcpv4-csum:invalid;",
        "tcpv4-csum:valid;",
        "udpv4-csum:invalid;",
        "ipv4-csum:\"invalid\";",
    ];
    let of = |odd: &[Anomaly]| {
        let packet = Packet {
            protocol: 6,
            source: V4,
            anomalies: odd.iter().map(|it| it.bit()).sum(),
            ..Packet::default()
        };
        ask(
            &numbered("ip", &options),
            &packet,
            &Parts::default(),
            BufferSet::default(),
        )
        .1
    };
    assert_eq!(of(&[]), [4]);
    assert_eq!(of(&[Anomaly::Overlap, Anomaly::Checksum]), [1, 3]);
    assert_eq!(
        of(&[Anomaly::BadAcknowledgement, Anomaly::HeaderChecksum]),
        [2, 4, 6]
    );
}

#[test]
fn entropy_rules_compare_the_entropy_of_the_selected_bytes() {
    let options = [
        "entropy: value = 2;",
        "entropy: value > 1.9, bytes 4;",
        "entropy: offset 6, value 1;",
        "entropy:offset 7, bytes 1, value 0;",
        "entropy: value 1-2;",
        "entropy: value !1-2;",
        "entropy: value <= 2;",
        "entropy: value < 2;",
        "entropy: value != 2;",
        "entropy: bytes 9, value >= 0;",
        "entropy: offset 9, value >= 0;",
        "content:\"cd\"; entropy: offset 8, value 0;",
    ];
    assert_eq!(of_payload(&options, b"abcdabcd"), [1, 2, 3, 4, 6, 7, 12]);
    let body = [
        "http.request_body; entropy: value > 1.5;",
        "entropy: value 9;",
    ];
    assert_eq!(of_http("http", &body, true, REQUEST), [1]);
    for wrong in [
        "value 5-4",
        "value x",
        "bytes 1",
        "value > 1, more 2",
        "value inf",
    ] {
        let reading = read(&numbered("ip", &[&format!("entropy: {wrong};")]));
        assert_eq!(reading.mistakes.len(), 1, "{wrong}");
    }
}

#[test]
fn rules_match_vlan_tags_by_id_and_layer() {
    let options = [
        "vlan.id:200;",
        "vlan.id:0x12c,1;",
        "vlan.id:300,-1;",
        "vlan.id:300,-2;",
        "vlan.id:!200,any;",
        "vlan.id:!500,all;",
        "vlan.id:>200,all;",
        "vlan.id:100-300,0;",
        "vlan.layers:0;",
        "vlan.layers:!1;",
        "vlan.layers:>1;",
    ];
    let of = |ids: &[u16]| {
        let mut packet = Packet {
            protocol: 17,
            ..Packet::default()
        };
        ids.iter().for_each(|it| packet.vlans.push(*it));
        let rules = numbered("ip", &options);
        ask(&rules, &packet, &Parts::default(), BufferSet::default()).1
    };
    assert_eq!(of(&[]), [9, 10]);
    assert_eq!(of(&[300]), [3, 5, 6, 7]);
    assert_eq!(of(&[200, 300]), [1, 2, 3, 5, 6, 8, 10, 11]);
    assert_eq!(of(&[300, 200]), [1, 4, 5, 6, 10, 11]);
    for three in ["vlan.id:1,2;", "vlan.id:1,-3;", "vlan.layers:3;"] {
        let reading = read(&numbered("ip", &[three]));
        assert_eq!((reading.left_out, reading.mistaken), (1, 0), "{three}");
    }
}

#[test]
fn a_rule_may_require_any_supported_keyword() {
    for (name, is_read) in [
        ("sid", true),
        ("content", true),
        ("nocase", true),
        ("pcre", true),
        ("http.uri", true),
        ("tls_sni", true),
        ("to_md5", true),
        ("mqtt.type", true),
        ("dcerpc.iface", true),
        ("tcpv4-csum", true),
        ("requires", true),
        ("tcp.hdr", true),
        ("vlan.id", true),
        ("foobar", false),
        ("", false),
    ] {
        let reading = read(&numbered("ip", &[&format!("requires: keyword {name};")]));
        assert_eq!(reading.mistakes, [], "{name}");
        assert_eq!(reading.rules.len() == 1, is_read, "{name}");
        assert!(reading.names.is_empty());
    }
}

#[test]
fn rules_with_flow_only_stream_match_only_packets_in_streams() {
    let options = [
        "flow:only_stream;",
        "content:\"k\"; flow:only_stream;",
        "content:\"k\";",
    ];
    let of = |is_in_stream| {
        let packet = Packet {
            protocol: 6,
            is_in_stream,
            ..Packet::default()
        };
        let parts = Parts {
            payload: b"k",
            ..Parts::default()
        };
        ask(
            &numbered("tcp", &options),
            &packet,
            &parts,
            BufferSet::default(),
        )
        .1
    };
    assert_eq!((of(true), of(false)), (vec![1, 2, 3], vec![3]));
}

#[test]
fn unsupported_or_unmatchable_rules_are_skipped_with_a_reason() {
    for (rule, reason) in [
        (
            "dns any any -> any any (http.uri; content:\"x\";",
            "a buffer of http in a rule about dns",
        ),
        (
            "smtp any any -> any any (file.data; content:\"x\";",
            "a buffer of http in a rule about smtp",
        ),
        (
            "udp any any -> any any (tls.sni; content:\"x\";",
            "tls over another protocol than its own",
        ),
        (
            "tcp any any -> any any (ntp.version:4;",
            "ntp over another protocol than its own",
        ),
        (
            "http any any -> any any (flow:to_client; http.uri; content:\"x\";",
            "buffers of the other direction",
        ),
        (
            "http any any -> any any (http.uri; content:\"x\"; http.stat_code; content:\"200\";",
            "buffers of the other direction",
        ),
        (
            "tls:client_hello_done any any -> any any (",
            "hook tls:client_hello_done without a buffer",
        ),
        ("tcp:flow_start any any -> any any (", "hook tcp:flow_start"),
        (
            "http1:request_trailer any any -> any any (",
            "hook http1:request_trailer",
        ),
        (
            "tcp any any -> any any (requires:version >= 9;",
            "requires version >= 9",
        ),
        (
            "tcp any any -> any any (requires:feature lua;",
            "requires feature lua",
        ),
        (
            "tcp any any -> any any (stream-event:wrong_thread;",
            "stream-event:wrong_thread",
        ),
        (
            "tcp any any -> any any (app-layer-protocol:!dnp3;",
            "app-layer-protocol:dnp3",
        ),
        (
            "tcp any any -> any any (app-layer-protocol:http,original;",
            "app-layer-protocol with original",
        ),
        (
            "http any any -> any any (pcre:\"/(x)/U, flow:name\";",
            "pcre that stores its matches",
        ),
        (
            "snmp any any -> any any (",
            "snmp: not a protocol that taut reads",
        ),
        (
            "http any any -> any any (frame:http1.request; content:\"x\";",
            "frame",
        ),
        (
            "http any any -> any any (http.uri; to_md5:1; content:\"x\";",
            "to_md5",
        ),
    ] {
        let reading = read(&format!("alert {rule} sid:1;)\n"));
        assert_eq!(reading.mistakes, [], "{rule}");
        let reasons: Vec<_> = reading.not_understood.keys().collect();
        assert_eq!(reasons, [reason], "{rule}");
    }
}

#[test]
fn rules_of_other_projects_are_parsed_and_invalid_rules_reported() {
    read_whole(
        "alert tls:client_hello_done any any -> any any (tls.sni; content:\"x\"; sid:1;)\n\
         alert dns:request_complete any any -> any any (dns.query; content:\"x\"; sid:2;)\n\
         alert http1:request_complete any any -> any any (http.uri; content:\"x\"; sid:3;)\n\
         alert HTTP any any -> any any (content:\"x\"; pcre:/x/U; sid:4;)\n\
         alert tcp any any -> any any (threshold:type backoff, track by_flow, count 1, multiplier 10; sid:5;)\n\
         alert tcp any any -> any any (detection_filter:track by_flow, count 1, seconds 3; sid:6;)\n\
         alert tcp any any -> any any (requires:version >= 8.0.0; sid:7;)\n\
         alert dcerpc any any -> any any (dcerpc.stub_data; content:\"x\"; sid:8;)\n",
    );
    for wrong in [
        "threshold:type backoff, track by_flow, count 1, multiplier 1",
        "threshold:type limit, track by_flow, count 1, multiplier 2, seconds 3",
        "threshold:type backoff, track by_flow, count 1",
        "xor:\"\"",
        "xor:\"0\"",
        "from_base64:mode other",
        "tcpv4-csum:perhaps",
        "byte_test:11,=,1,0",
        "byte_test:9,=,1,0",
        "byte_test:unknown,=,1,0",
    ] {
        let reading = read(&format!("alert tcp any any -> any any ({wrong}; sid:1;)\n"));
        assert_eq!(reading.mistakes.len(), 1, "{wrong}");
    }
}

#[test]
fn header_buffers_exist_only_in_packets_with_these_headers() {
    let options = [
        "ipv4.hdr; content:\"|40 06|\"; offset:8; depth:2;",
        "tcp.hdr; content:\"|00 50|\"; offset:2; depth:2; ipv4.hdr; byte_test:1,=,0x45,0;",
        "ipv6.hdr; content:\"|40|\";",
        "udp.hdr; content:\"|50|\";",
        "content:\"k\"; tcp.hdr; bsize:20;",
        "tcp.hdr; content:\"k\";",
    ];
    let ip = b"\x45\0\0\x29\0\x01\x40\0\x40\x06\0\0\xc0\0\x02\x01\xc0\0\x02\x02";
    let tcp = b"\x90\0\0\x50\0\0\0\x01\0\0\0\x01\x50\x10\0\0\0\0\0\0";
    let packet = Packet {
        protocol: 6,
        source: V4,
        ip_header: ip,
        transport_header: tcp,
        ..Packet::default()
    };
    let parts = Parts {
        payload: b"k",
        ..Parts::default()
    };
    let found = ask(
        &numbered("tcp", &options),
        &packet,
        &parts,
        BufferSet::default(),
    )
    .1;
    assert_eq!(found, [1, 2, 5]);
    let rules = "pass tcp any any -> any any (tcp.hdr; content:\"|00 50|\"; sid:1;)\n";
    let found = ask(rules, &packet, &parts, BufferSet::default()).0;
    assert_eq!(found, Verdict::PassPacket);
}

#[test]
fn rules_compare_packet_and_byte_counts_of_a_flow() {
    let options = [
        "flow.pkts:toserver,=3;",
        "flow.pkts:toclient,>1;",
        "flow.pkts:either,<2;",
        "flow.bytes:toserver,>=300;",
        "flow.bytes:either,>301;",
    ];
    let packet = Packet {
        protocol: 6,
        flow_packets: [3, 1],
        flow_bytes: [300, 40],
        ..Packet::default()
    };
    let found = ask(
        &numbered("tcp", &options),
        &packet,
        &Parts::default(),
        BufferSet::default(),
    )
    .1;
    assert_eq!(found, [1, 3, 4]);
}

#[test]
fn host_bits_apply_to_the_sender_by_default() {
    let rules = "alert ip any any -> any any (hostbits:set,a; hostbits:noalert; sid:1;)\n\
                 alert ip any any -> any any (hostbits:isset,a,src; sid:2;)\n\
                 alert ip any any -> any any (hostbits:isset,a,dst; sid:3;)\n";
    let packet = Packet {
        source: V4,
        destination: V4 + 1,
        ..Packet::default()
    };
    let found = ask(rules, &packet, &Parts::default(), BufferSet::default()).1;
    assert_eq!(found, [2]);
}

#[test]
fn transaction_rules_have_buffers_of_both_request_and_response() {
    let rule = |header: &str, options: &str| format!("{header} ({options} sid:1;)\n");
    let http = "alert http any any => 192.0.2.1 80";
    let of_both = "http.uri; content:\"a\"; http.stat_code; content:\"200\";";
    let reading = read_whole(&rule(http, of_both));
    let response = reading.rules[0].response.as_ref().unwrap();
    assert_eq!(reading.rules.len(), 1);
    assert_eq!(reading.rules[0].flow.to_server, Some(true));
    assert_eq!(response.flow.to_server, Some(false));
    assert!(response.source.ports.has(80) && !response.source.ports.has(81));
    assert!(response.destination.ports.has(81));
    let left_out = |text: &str| {
        let reading = read(text);
        assert_eq!((reading.rules.len(), reading.left_out), (0, 1), "{text}");
        reading.not_understood.keys().next().unwrap().clone()
    };
    for (text, why) in [
        (
            rule(http, "http.uri; content:\"a\";"),
            "without buffers of both messages",
        ),
        (
            rule(http, &format!("flow:to_server; {of_both}")),
            "with a direction",
        ),
        (
            rule(http, &format!("ttl:3; {of_both}")),
            "with tests of headers",
        ),
        (
            rule(http, &format!("http.cookie; content:\"a\"; {of_both}")),
            "with a buffer that both messages have: add to_server or to_client",
        ),
        (
            rule("alert dns any any => any any", "dns.query; content:\"a\";"),
            "of another protocol than HTTP/1",
        ),
    ] {
        assert_eq!(left_out(&text), format!("=> {why}"));
    }
    let wrong = read(&rule(http, "http.uri: to_client; content:\"a\";"));
    assert_eq!(
        wrong.mistakes[0].1.reason,
        "http.uri: a buffer of the other message"
    );
}
