//! What controllers say, and what they hear.
#![allow(clippy::unwrap_used)]

use super::fields::{read_match, write_match};
use super::lists::{read_instructions, write_instructions};
use super::wire::{Reader, Writer, Wrong};
use crate::switch::action::Action;
use crate::switch::control::Rule;
use crate::switch::heard;
use crate::switch::key::{Field, Key};
use proptest::prelude::*;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![4, kind];
    message.extend((8 + body.len() as u16).to_be_bytes());
    message.extend([0, 0, 0, 7]);
    message.extend(body);
    message
}

/// Kinds of the answers, and the error of those that are errors.
fn answers(said: &[Vec<u8>]) -> Vec<(u8, Option<Wrong>)> {
    let said = said.concat();
    let answered = heard(&[&said]);
    let mut left = &answered[..];
    let mut found = Vec::new();
    while !left.is_empty() {
        let length = usize::from(u16::from_be_bytes([left[2], left[3]]));
        let (own, rest) = left.split_at(length);
        let half = |at: usize| u16::from_be_bytes([own[at], own[at + 1]]);
        found.push((own[1], (own[1] == 1).then(|| Wrong(half(8), half(10)))));
        left = rest;
    }
    found
}

fn rule_that(asks: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 40];
    body[24..36].fill(0xff);
    let length = 4 + asks.len() as u16;
    body.extend([0, 1]);
    body.extend(length.to_be_bytes());
    body.extend(asks);
    body.resize(40 + usize::from(length.next_multiple_of(8)), 0);
    message(14, &body)
}

#[test]
fn a_conversation_begins_with_a_greeting_and_needs_version_4() {
    assert_eq!(answers(&[]), [(0, None)]);
    let hello = message(0, &[]);
    let echo = message(2, b"are you there");
    assert_eq!(
        answers(&[hello.clone(), echo.clone()]),
        [(0, None), (3, None)]
    );
    assert_eq!(answers(&[echo]), [(0, None), (1, Some(Wrong::BAD_VERSION))]);
    let mut old = hello.clone();
    old[0] = 1;
    assert_eq!(answers(&[old]), [(0, None), (1, Some(Wrong(0, 0)))]);
    // A newer one, that says that it knows the older as well.
    let mut new = message(0, &[0, 1, 0, 8, 0, 0, 0, 1 << 4 | 1 << 6]);
    new[0] = 6;
    let features = message(5, &[]);
    assert_eq!(answers(&[new, features]), [(0, None), (6, None)]);
}

#[test]
fn what_a_rule_asks_for_must_make_sense() {
    for (asks, want) in [
        (&[0x80, 0, 22, 4, 10, 0, 0, 1][..], Wrong::BAD_PREREQUISITE),
        (
            &[0x80, 0, 10, 2, 8, 0, 0x80, 0, 10, 2, 8, 0],
            Wrong::DUPLICATE_FIELD,
        ),
        (&[0x80, 0, 0, 4, 0, 0, 0, 0], Wrong::BAD_VALUE),
        (&[0x80, 0, 0x7e, 1, 0], Wrong::BAD_FIELD),
        (&[0x80, 0, 10, 3, 8, 0, 0], Wrong::BAD_MATCH_LENGTH),
        (&[0x80, 0, 11, 4, 8, 0, 0xff, 0xff], Wrong::BAD_MASK),
        // A bit that the mask leaves out.
        (
            &[0x80, 0, 9, 12, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0],
            Wrong::BAD_VALUE,
        ),
    ] {
        let said = [message(0, &[]), rule_that(asks)];
        assert_eq!(answers(&said), [(0, None), (1, Some(want))], "{asks:x?}");
    }
    let sound = rule_that(&[0x80, 0, 10, 2, 8, 0, 0x80, 0, 22, 4, 10, 0, 0, 1]);
    assert_eq!(answers(&[message(0, &[]), sound]), [(0, None)]);
}

#[test]
fn a_slave_changes_nothing_and_an_old_election_is_over() {
    let role = |role: u8, generation: u64| {
        let body = [&[0, 0, 0, role, 0, 0, 0, 0][..], &generation.to_be_bytes()].concat();
        message(24, &body)
    };
    let said = [
        message(0, &[]),
        role(3, 5),
        rule_that(&[]),
        role(2, 4),
        role(2, 6),
        rule_that(&[]),
        message(20, &[]),
    ];
    let slave = (1, Some(Wrong::IS_SLAVE));
    let stale = (1, Some(Wrong::STALE_ROLE));
    assert_eq!(
        answers(&said),
        [(0, None), (25, None), slave, stale, (25, None), (21, None)]
    );
}

#[test]
fn a_long_answer_comes_in_parts() {
    let mut said = vec![message(0, &[])];
    for number in 0..60_u8 {
        said.push(rule_that(&[0x80, 0, 6, 6, 2, 0, 0, 0, 0, number]));
    }
    let all = [
        &[0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0][..],
        &[0xff; 8],
        &[0; 20],
        &[0, 1, 0, 4, 0, 0, 0, 0],
    ];
    let question = message(18, &all.concat());
    said.push(question.clone());
    let one = answers(&said);
    assert_eq!(one, [(0, None), (19, None)]);
    let tables = message(18, &[0, 12, 0, 0, 0, 0, 0, 0]);
    let parts = answers(&[message(0, &[]), tables]);
    assert_eq!(parts, [(0, None), (19, None)]);
}

fn key() -> impl Strategy<Value = (Key, Key)> {
    let ports = (any::<u16>(), any::<u16>(), any::<bool>());
    (
        any::<u32>(),
        any::<u32>(),
        0_u128..255,
        any::<u64>(),
        any::<u64>(),
        ports,
    )
        .prop_map(
            |(address, prefix, port, mac, mac_mask, (source, destination, is_v6))| {
                let (mut value, mut mask) = (Key::default(), Key::default());
                let mut ask = |field: Field, wanted: u128, bits: u128| {
                    mask.set(field, bits);
                    value.set(field, wanted & bits);
                };
                let mac_mask = u128::from(mac_mask) & Field::EthSource.whole();
                ask(Field::InPort, port, 0xffff);
                ask(Field::EthSource, u128::from(mac), mac_mask);
                ask(Field::EthType, if is_v6 { 0x86dd } else { 0x0800 }, 0xffff);
                ask(Field::IpProtocol, 6, 0xff);
                ask(Field::SourcePort, u128::from(source), 0xffff);
                if destination % 2 == 0 {
                    ask(Field::DestinationPort, u128::from(destination), 0xffff);
                    ask(Field::Ttl, 7, 0xff);
                }
                let bits = u128::from(prefix);
                ask(
                    Field::Source,
                    u128::from(address),
                    if is_v6 { bits << 40 | bits } else { bits },
                );
                (value, mask)
            },
        )
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        (0_u8..4).prop_map(Action::Output),
        Just(Action::InPort),
        Just(Action::Flood),
        (0_u8..8).prop_map(Action::Queue),
        any::<u32>().prop_map(Action::Group),
        (0_u128..256).prop_map(|ttl| Action::Set(Field::Ttl, ttl)),
        any::<u16>().prop_map(|port| Action::Set(Field::SourcePort, u128::from(port))),
        Just(Action::DecrementTtl),
        Just(Action::PopVlan),
        Just(Action::PushVlan(crate::switch::action::CUSTOMER_TAG)),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_it_was((value, mask) in key(), actions in prop::collection::vec(action(), 0..20)) {
        let mut writer = Writer::default();
        write_match(&mut writer, &value, &mask);
        prop_assert_eq!(writer.0.len() % 8, 0);
        prop_assert_eq!(read_match(&mut Reader(&writer.0)), Ok((value, mask)));
        let mut rule = Rule {
            table: 0,
            priority: 1,
            value,
            mask,
            actions: vec![Action::Meter(3)],
            cookie: 0,
            flags: 0,
            idle_s: 0,
            hard_s: 0,
        };
        rule.actions.extend(actions);
        rule.actions.push(Action::Goto(7));
        let mut writer = Writer::default();
        write_instructions(&mut writer, &rule);
        prop_assert_eq!(read_instructions(Reader(&writer.0), 4), Ok(rule.actions));
    }
}
