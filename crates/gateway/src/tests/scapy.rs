//! Tests with the GTP-U messages that scapy made.

use super::super::scapy::messages;
use super::*;

/// The name of each message, its expected outcome, and the type of the GTP-U message that the base station gets in
/// reply, if any.
const WANTED: [(&str, Outcome, Option<u8>); 24] = [
    ("plain", Outcome::Decapsulated, None),
    ("plain-v6-user", Outcome::Decapsulated, None),
    ("sequence", Outcome::Decapsulated, None),
    ("npdu", Outcome::Decapsulated, None),
    ("session", Outcome::Decapsulated, None),
    ("session-sequence", Outcome::Decapsulated, None),
    ("session-times", Outcome::Decapsulated, None),
    ("pdcp-session", Outcome::Decapsulated, None),
    ("unknown-extension-optional", Outcome::Decapsulated, None),
    (
        "unknown-extension-required",
        Outcome::UnknownExtension,
        None,
    ),
    ("unknown-teid", Outcome::UnknownTeid, Some(26)),
    ("end-marker", Outcome::Consumed, None),
    ("echo-request", Outcome::EchoAnswered, Some(2)),
    ("echo-response", Outcome::EchoUnasked, None),
    ("error-indication", Outcome::ErrorIndication, None),
    (
        "extension-headers-notification",
        Outcome::UnknownMessage,
        None,
    ),
    ("no-such-message", Outcome::UnknownMessage, None),
    ("version-2", Outcome::BadVersion, None),
    ("prime", Outcome::BadVersion, None),
    ("header-cut", Outcome::Malformed, None),
    ("options-cut", Outcome::Malformed, None),
    ("length-lies", Outcome::Malformed, None),
    ("extension-of-no-length", Outcome::Malformed, None),
    ("extension-longer-than-all", Outcome::Malformed, None),
];

#[test]
fn gtpu_messages_of_scapy_have_the_expected_outcomes() {
    let all = messages("gtpu/");
    assert_eq!(all.len(), WANTED.len());
    for ((name, frame), (wanted, outcome, answer)) in all.into_iter().zip(WANTED) {
        assert_eq!(name, wanted);
        let mut gateway = Bench::with("0x10,decapsulate");
        let left = gateway.pass(std::slice::from_ref(&frame), 0);
        assert_eq!(
            gateway.count(outcome),
            1,
            "{name}: {:?}",
            gateway.plane.counts
        );
        assert_eq!(gateway.counted(), 1, "{name}");
        if outcome == Outcome::Decapsulated {
            let [left] = left.as_slice() else {
                panic!("{name}: {left:?}")
            };
            let user = Ethernet::new(&left[..]).unwrap();
            let packet = user.payload();
            // scapy puts the user packet last.
            assert!(frame.ends_with(packet), "{name}");
            let text = b"user packet";
            let version = packet[0] >> 4;
            assert_eq!(version, if name == "plain-v6-user" { 6 } else { 4 });
            assert!(packet.ends_with(text), "{name}");
        } else {
            assert!(left.is_empty(), "{name}");
        }
        let answers = gateway.answers(0);
        assert_eq!(answers.len(), usize::from(answer.is_some()), "{name}");
        for frame in &answers {
            let opened = open(frame);
            assert_eq!(Some(opened.message), answer, "{name}");
            assert_eq!(opened.destination, address("192.0.2.7"), "{name}");
            if outcome == Outcome::EchoAnswered {
                assert_eq!(opened.sequence, Some(7));
            }
        }
    }
}

#[test]
fn scapy_messages_are_relayed_unchanged_after_the_teid() {
    let all = messages("gtpu/");
    let relayed = [
        "plain",
        "sequence",
        "session",
        "session-times",
        "pdcp-session",
        "unknown-extension-optional",
        "end-marker",
    ];
    for name in relayed {
        let (_, frame) = all.iter().find(|(n, _)| *n == name).unwrap();
        let mut gateway = Bench::with("0x10,relay,0x77,192.0.2.9");
        let left = gateway.pass(std::slice::from_ref(frame), 0);
        let [left] = left.as_slice() else {
            panic!("{name}: {left:?}")
        };
        assert_eq!(open(left).teid, 0x77, "{name}");
        // Nothing changes after the TEID.
        assert_eq!(left[50..frame.len()], frame[50..], "{name}");
    }
}
