//! Tests of controllers' messages and the replies to them.
#![allow(clippy::unwrap_used)]

use super::changes::MOST_FRAME_BYTES;
use super::fields::{read_match, write_match};
use super::lists::{read_instructions, write_instructions};
use super::wire::{Reader, Writer, Wrong};
use super::{Gone, Plant, Session, Shown, Why, limit_output};
use crate::action::{Action, Instructions, To};
use crate::control::{Control, Rule};
use crate::facts::Facts;
use crate::heard;
use crate::key::{Field, Key};
use crate::scope::Of;
use proptest::prelude::*;
use std::time::{Duration, Instant};
use taut_port::pair::Lane;

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![4, kind];
    message.extend((8 + body.len() as u16).to_be_bytes());
    message.extend([0, 0, 0, 7]);
    message.extend(body);
    message
}

/// Returns the type of each reply to the messages `said`, and the error if the reply is an error.
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
fn an_openflow_session_requires_a_hello_with_wire_version_4() {
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
    // The hello has a newer version, and lists the older one as well.
    let mut new = message(0, &[0, 1, 0, 8, 0, 0, 0, 1 << 4 | 1 << 6]);
    new[0] = 6;
    let features = message(5, &[]);
    assert_eq!(answers(&[new, features]), [(0, None), (6, None)]);
}

/// Passes bytes of a controller to an OpenFlow session.
fn take(session: &mut Session, control: &mut Control, said: &[u8], now: Instant) {
    take_beside(&Facts::new(), session, control, said, now);
}

fn take_beside(
    facts: &Facts,
    session: &mut Session,
    control: &mut Control,
    said: &[u8],
    now: Instant,
) {
    let (mut generation, mut sent, mut removed, mut deposed) =
        (None, Vec::new(), Vec::new(), false);
    let mut plant = Plant {
        control,
        ports: 4,
        facts,
        datapath: 1,
        generation: &mut generation,
        sent: &mut sent,
        removed: &mut removed,
        deposed: &mut deposed,
    };
    session.take(said, now, &mut plant).unwrap();
    for (id, kept, why) in removed {
        session.flow_removed(&kept, control.count(id), why);
    }
}

#[test]
fn a_peer_that_reads_nothing_is_paused_and_then_disconnected() {
    let (now, mut control) = (Instant::now(), Control::new(64));
    let second = Duration::from_secs(1);
    for question in [message(2, &[7; 60_000]), vec![4, 0xfe, 0, 8, 0, 0, 0, 1]] {
        let mut session = Session::new(64, now);
        take(&mut session, &mut control, &message(0, &[]), now);
        for _ in 0..100_000 {
            if !session.listens() {
                break;
            }
            take(&mut session, &mut control, &question, now);
        }
        let waiting = session.output().len();
        assert!(!session.listens() && waiting < 400_000, "{waiting}");
        session.tick(now + 14 * second).unwrap();
        assert_eq!(session.output().len(), waiting);
        // A slow reader is not disconnected.
        session.was_sent(1, now + 14 * second);
        session.tick(now + 28 * second).unwrap();
        session.tick(now + 29 * second).unwrap_err();
    }
}

#[test]
fn pending_notifications_of_removed_flow_entries_are_bounded() {
    let (now, mut control) = (Instant::now(), Control::new(64));
    let mut session = Session::new(64, now);
    take(&mut session, &mut control, &message(0, &[]), now);
    let id = control
        .add(Rule {
            flags: 1,
            ..rule(Vec::new())
        })
        .unwrap();
    let kept = control.remove(id).unwrap();
    for _ in 0..64 {
        session.flow_removed(&kept, (0, 0), Gone::Deleted);
    }
    assert!(!session.is_behind());
    // The replies would take more than twice the bytes of the limit.
    for _ in 0..100_000 {
        session.flow_removed(&kept, (0, 0), Gone::Deleted);
    }
    assert!(session.output().len() < 2_000_000 && session.is_behind());
}

#[test]
fn pending_output_of_all_peers_together_is_bounded() {
    let (now, mut control) = (Instant::now(), Control::new(64));
    let mut sessions: Vec<Session> = (0..64).map(|_| Session::new(64, now)).collect();
    let id = control
        .add(Rule {
            flags: 1,
            ..rule(Vec::new())
        })
        .unwrap();
    let kept = control.remove(id).unwrap();
    for (number, session) in sessions.iter_mut().enumerate() {
        take(session, &mut control, &message(0, &[]), now);
        for _ in 0..100 * number {
            session.flow_removed(&kept, (0, 0), Gone::Deleted);
        }
    }
    let all = |sessions: &[Session]| sessions.iter().map(|it| it.output().len()).sum::<usize>();
    let before = all(&sessions);
    limit_output(before, sessions.iter_mut());
    assert_eq!(all(&sessions), before);
    limit_output(before / 2, sessions.iter_mut());
    assert!((1..=before / 2).contains(&all(&sessions)));
    // The sessions whose peers have read most are kept, and the other sessions get no more output.
    let behind = sessions.iter().position(Session::is_behind).unwrap();
    assert!(sessions[behind..].iter().all(Session::is_behind) && behind > 32);
    sessions[63].flow_removed(&kept, (0, 0), Gone::Deleted);
    assert!(sessions[63].output().is_empty());
}

#[test]
fn a_peer_without_hello_or_echo_replies_is_disconnected() {
    let (now, mut control) = (Instant::now(), Control::new(64));
    let second = Duration::from_secs(1);
    let mut session = Session::new(64, now);
    session.tick(now + 4 * second).unwrap();
    session.tick(now + 5 * second).unwrap_err();
    let mut session = Session::new(64, now);
    take(&mut session, &mut control, &message(0, &[]), now);
    let mut at = now;
    let asked = |session: &mut Session, at: Instant| {
        let asked = session.output().to_vec();
        session.was_sent(asked.len(), at);
        asked
    };
    asked(&mut session, now);
    for _ in 0..10 {
        at += 4 * second;
        session.tick(at).unwrap();
        assert!(asked(&mut session, at).is_empty());
        at += second;
        session.tick(at).unwrap();
        session.tick(at).unwrap();
        assert_eq!(asked(&mut session, at), [4, 2, 0, 8, 0, 0, 0, 0]);
        take(&mut session, &mut control, &message(3, &[]), at);
    }
    session.tick(at + 14 * second).unwrap();
    session.tick(at + 15 * second).unwrap_err();
}

fn rule(actions: Vec<Action>) -> Rule {
    Rule {
        table: 0,
        priority: 1,
        value: Key::default(),
        mask: Key::default(),
        does: actions.into(),
        cookie: 0,
        flags: 0,
        idle_s: 0,
        hard_s: 0,
    }
}

/// Returns a request for the statistics of all rules.
fn all_rules() -> Vec<u8> {
    let asked = [
        &[0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0][..],
        &[0xff; 8],
        &[0; 20],
        &[0, 1, 0, 4, 0, 0, 0, 0],
    ];
    message(18, &asked.concat())
}

/// Returns the number of entries in a multipart reply to `question`. The parts of the reply are read one by one; little
/// output is pending at any time.
fn entries(session: &mut Session, control: &mut Control, question: &[u8]) -> usize {
    let now = Instant::now();
    take(session, control, &message(0, &[]), now);
    session.was_sent(session.output().len(), now);
    let mut said = [question, &message(20, &[])].concat();
    let (mut many, mut is_last) = (0, false);
    loop {
        take(session, control, &said, now);
        said.clear();
        let waiting = session.output().to_vec();
        assert!(waiting.len() < 400_000, "{}", waiting.len());
        session.was_sent(waiting.len(), now);
        let mut left = &waiting[..];
        while !left.is_empty() {
            let length = usize::from(u16::from_be_bytes([left[2], left[3]]));
            let (part, rest) = left.split_at(length);
            left = rest;
            // The reply to a barrier after the request follows the last part.
            assert_eq!(part[1] == 21, is_last);
            if is_last {
                assert!(left.is_empty());
                return many;
            }
            assert_eq!(part[1], 19);
            is_last = part[11] & 1 == 0;
            let mut entries = &part[16..];
            while !entries.is_empty() {
                let length = usize::from(u16::from_be_bytes([entries[0], entries[1]]));
                entries = &entries[length..];
                many += 1;
            }
        }
    }
}

#[test]
fn long_replies_consist_of_complete_messages_paced_by_the_reader() {
    let mut control = Control::new(10_000);
    for number in 0..10_000 {
        let mut one = rule(vec![Action::port(1)]);
        one.mask.set(Field::EthSource, Field::EthSource.whole());
        one.value.set(Field::EthSource, number);
        control.add(one).unwrap();
    }
    let mut session = Session::new(10_000, Instant::now());
    assert_eq!(entries(&mut session, &mut control, &all_rules()), 10_000);
    // The rules are as long as possible.
    let mut control = Control::new(4096);
    let address = Action::Set(Field::EthSource, Of::Any, 1);
    for port in 0..5 {
        let mut one = rule(vec![address; 2000]);
        one.mask.set(Field::InPort, 0xffff);
        one.value.set(Field::InPort, port);
        control.add(one).unwrap();
    }
    assert!(control.add(rule(vec![address; 2001])).is_err());
    let mut session = Session::new(4096, Instant::now());
    assert_eq!(entries(&mut session, &mut control, &all_rules()), 5);
}

#[test]
fn packet_out_frames_too_short_or_too_long_are_refused() {
    let packet_out = |frame: &[u8], tags: usize| {
        let tag = [0, 17, 0, 8, 0x81, 0, 0, 0];
        let mut actions = tag.repeat(tags);
        actions.extend([0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut body = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfd];
        body.extend((actions.len() as u16).to_be_bytes());
        body.extend([0; 6]);
        body.extend(actions);
        body.extend(frame);
        message(13, &body)
    };
    let most = MOST_FRAME_BYTES;
    for (length, tags, is_sent) in [
        (0, 0, false),
        (0, 1, false),
        (13, 0, false),
        (14, 1, true),
        (most, 0, true),
        (most + 1, 0, false),
        (most - 3, 1, false),
        (9216, 0, false),
    ] {
        let said = [message(0, &[]), packet_out(&vec![0; length], tags)];
        let mut want = vec![(0, None)];
        if !is_sent {
            want.push((1, Some(Wrong::BAD_PACKET)));
        }
        assert_eq!(answers(&said), want, "{length} {tags}");
    }
    // The longest frame that is not refused fits into the ring and into a buffer.
    let mut near = Lane::open("frames of controllers", 32).unwrap();
    let _far = Lane::open("frames of controllers", 32).unwrap();
    assert!(near.push(&vec![0; most], 0) && !near.push(&vec![0; most + 1], 0));
    assert_eq!(taut_port::PoolHandle::new(4, false).unwrap().room(), most);
}

#[test]
fn an_invalid_match_is_refused_with_the_openflow_error_code() {
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
        // The value has a bit that the mask lacks.
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

/// Returns a message that adds a rule of table 1 with the given match and instructions.
fn rule_with(asks: &[u8], instructions: &[u8]) -> Vec<u8> {
    let mut rule = rule_that(asks);
    rule[8 + 16] = 1;
    rule.extend(instructions);
    let length = rule.len() as u16;
    rule[2..4].copy_from_slice(&length.to_be_bytes());
    rule
}

/// Returns an instruction of type `number` with the given actions.
fn listed(number: u8, actions: &[&[u8]]) -> Vec<u8> {
    let actions = actions.concat();
    let length = 8 + actions.len() as u16;
    let mut listed = vec![0, number];
    listed.extend(length.to_be_bytes());
    listed.extend([0; 4]);
    listed.extend(actions);
    listed
}

/// Returns an OpenFlow action that sets the field with number `number` to `value`.
fn sets(number: u8, value: &[u8]) -> Vec<u8> {
    let length = (8 + value.len()).next_multiple_of(8);
    let mut sets = vec![
        0,
        25,
        0,
        length as u8,
        0x80,
        0,
        number << 1,
        value.len() as u8,
    ];
    sets.extend(value);
    sets.resize(length, 0);
    sets
}

const PUSH: &[u8] = &[0, 17, 0, 8, 0x81, 0, 0, 0];
const POP: &[u8] = &[0, 18, 0, 8, 0, 0, 0, 0];

#[test]
fn setting_a_field_requires_a_match_that_implies_the_field() {
    let ipv4 = [0x80, 0, 10, 2, 8, 0];
    let ipv6 = [0x80, 0, 10, 2, 0x86, 0xdd];
    let arp = [0x80, 0, 10, 2, 8, 6];
    let with = |protocol: u8| [&ipv4[..], &[0x80, 0, 20, 1, protocol]].concat();
    let tagged = [0x80, 0, 13, 4, 0x10, 0, 0x10, 0];
    let vlan = sets(6, &[0x10, 7]);
    let v4 = sets(11, &[10, 0, 0, 1]);
    let v6 = sets(26, &[1; 16]);
    let no = Some(Wrong::MATCH_INCONSISTENT);
    for (asks, actions, want) in [
        (&ipv4[..], vec![&v4[..]], None),
        (&ipv4, vec![&v6], no),
        (&ipv6, vec![&v6], None),
        (&ipv6, vec![&v4], no),
        (&arp, vec![&v4], no),
        (&arp, vec![&sets(22, &[10, 0, 0, 1])], None),
        (&[], vec![&sets(4, &[2; 6])], None),
        (&[], vec![&sets(8, &[1])], no),
        (&ipv6, vec![&sets(8, &[1])], None),
        (&with(6), vec![&sets(14, &[0, 1])], None),
        (&with(17), vec![&sets(14, &[0, 1])], no),
        (&with(6), vec![&sets(19, &[8])], no),
        (&with(1), vec![&sets(19, &[8])], None),
        (&with(132), vec![&sets(17, &[0, 1])], None),
        // The actions add and remove tags.
        (&[], vec![&vlan], no),
        (&tagged, vec![&vlan], None),
        (&[], vec![PUSH, &vlan], None),
        (&tagged, vec![POP, &vlan], no),
        (&tagged, vec![POP, PUSH, &sets(7, &[3])], None),
        // The packets of the match have no time to live.
        (&[], vec![&[0, 23, 0, 8, 9, 0, 0, 0]], no),
    ] {
        for number in [3, 4] {
            let rule = rule_with(asks, &listed(number, &actions));
            let want = want.map(|wrong| (1, Some(wrong)));
            let want: Vec<_> = [(0, None)].into_iter().chain(want).collect();
            assert_eq!(
                answers(&[message(0, &[]), rule]),
                want,
                "{asks:x?} {actions:x?}"
            );
        }
    }
    // An action set changes tags first, whatever the order of its actions.
    let rule = rule_with(&[], &listed(3, &[&vlan, PUSH]));
    assert_eq!(answers(&[message(0, &[]), rule]), [(0, None)]);
}

#[test]
fn actions_without_a_valid_target_are_refused_with_their_error() {
    let goto = |table: u8| [0, 1, 0, 8, table, 0, 0, 0];
    let group = |bucket: &[u8]| {
        let length = 16 + bucket.len() as u16;
        let mut body = vec![0, 0, 0, 0, 0, 0, 0, 1];
        body.extend(length.to_be_bytes());
        body.extend([0, 0]);
        body.extend([0xff; 8]);
        body.extend([0; 4]);
        body.extend(bucket);
        message(15, &body)
    };
    for (said, want) in [
        (rule_with(&[], &goto(0)), Some(Wrong(3, 2))),
        (rule_with(&[], &goto(1)), Some(Wrong(3, 2))),
        (rule_with(&[], &goto(2)), None),
        (rule_with(&[], &goto(200)), Some(Wrong(3, 2))),
        (group(&[0, 22, 0, 8, 0, 0, 0, 2]), Some(Wrong(6, 5))),
        (group(&[0, 18, 0, 8, 0, 0, 0, 0]), Some(Wrong(6, 12))),
        (
            rule_with(&[], &listed(4, &[&[0, 21, 0, 8, 0, 0, 0, 8]])),
            Some(Wrong(2, 8)),
        ),
    ] {
        let want = want.map(|wrong| (1, Some(wrong)));
        let want: Vec<_> = [(0, None)].into_iter().chain(want).collect();
        assert_eq!(answers(&[message(0, &[]), said.clone()]), want, "{said:x?}");
    }
}

#[test]
fn flow_statistics_return_the_added_flow_entries_unchanged() {
    let output = |port: u32, most: u16| {
        let mut output = vec![0, 0, 0, 16];
        output.extend(port.to_be_bytes());
        output.extend(most.to_be_bytes());
        output.resize(16, 0);
        output
    };
    let (one, flood, all) = (
        output(1, 0xffe5),
        output(0xffff_fffb, 3),
        output(0xffff_fffc, 0),
    );
    let controller = output(0xffff_fffd, 128);
    let clear = [0, 5, 0, 8, 0, 0, 0, 0];
    let goto = [0, 1, 0, 8, 9, 0, 0, 0];
    for instructions in [
        listed(4, &[&controller, &one, &flood, &all]),
        listed(3, &[PUSH, &all, &one]),
        clear.to_vec(),
        [
            &listed(4, &[&controller])[..],
            &clear,
            &listed(3, &[&flood]),
            &goto,
        ]
        .concat(),
    ] {
        let said = [message(0, &[]), rule_with(&[], &instructions), all_rules()];
        let answered = heard(&[&said.concat()]);
        assert!(answered.ends_with(&instructions), "{instructions:x?}");
    }
}

/// Returns the messages in the session's output that wait for the peer.
fn waiting(session: &mut Session) -> Vec<Vec<u8>> {
    let waiting = session.output().to_vec();
    session.was_sent(waiting.len(), Instant::now());
    let (mut left, mut messages) = (&waiting[..], Vec::new());
    while !left.is_empty() {
        let length = usize::from(u16::from_be_bytes([left[2], left[3]]));
        messages.push(left[..length].to_vec());
        left = &left[length..];
    }
    messages
}

#[test]
fn a_peer_receives_only_the_events_that_it_requests() {
    let (now, control) = (Instant::now(), &mut Control::new(64));
    let session = &mut Session::new(64, now);
    take(session, control, &message(0, &[]), now);
    waiting(session);
    let id = control
        .add(Rule {
            flags: 1,
            ..rule(Vec::new())
        })
        .unwrap();
    let kept = control.remove(id).unwrap();
    let happens = |session: &mut Session| -> Vec<(u8, u8)> {
        for why in [Why::NoMatch, Why::Action] {
            let shown = Shown {
                in_port: Some(2),
                table: 0,
                why,
                cookie: 7,
                has_rule: true,
            };
            assert!(session.packet_in(shown, &[1; 60]));
        }
        for why in [Gone::Idle, Gone::Hard, Gone::Deleted, Gone::WithGroup] {
            session.flow_removed(&kept, (0, 0), why);
        }
        session.port_status(2, false);
        let told = waiting(session).into_iter();
        let reason = |it: &[u8]| match it[1] {
            10 => it[14],
            11 => it[18],
            _ => it[8],
        };
        told.map(|it| (it[1], reason(&it))).collect()
    };
    let all = [
        (10, 0),
        (10, 1),
        (11, 0),
        (11, 1),
        (11, 2),
        (11, 3),
        (12, 2),
    ];
    assert_eq!(happens(session), all);
    let masks = |masks: [u8; 6]| masks.map(|it| [0, 0, 0, it]).concat();
    let ask = |session: &mut Session, control: &mut Control| {
        take(session, control, &message(26, &[]), now);
        let answer = waiting(session).remove(0);
        assert_eq!(answer[1], 27);
        answer[8..].to_vec()
    };
    assert_eq!(ask(session, control), masks([7, 0, 7, 7, 15, 0]));
    let wanted = masks([2, 1, 0, 4, 4, 8]);
    take(session, control, &message(28, &wanted), now);
    assert_eq!(ask(session, control), wanted);
    assert_eq!(happens(session), [(10, 1), (11, 2)]);
    // The controller becomes a slave.
    let slave = [&[0, 0, 0, 3, 0, 0, 0, 0][..], &[0; 8]].concat();
    take(session, control, &message(24, &slave), now);
    waiting(session);
    assert_eq!(happens(session), [(10, 0), (11, 3), (12, 2)]);
    take(session, control, &message(28, &wanted[..23]), now);
    assert_eq!(waiting(session)[0][8..12], [0, 1, 0, 6]);
}

#[test]
fn a_peer_sets_the_snap_length_of_unmatched_packets() {
    let (now, control) = (Instant::now(), &mut Control::new(64));
    let session = &mut Session::new(64, now);
    take(session, control, &message(0, &[]), now);
    waiting(session);
    let seen = |session: &mut Session, has_rule: bool| {
        let shown = Shown {
            in_port: None,
            table: 0,
            why: Why::NoMatch,
            cookie: 7,
            has_rule,
        };
        session.packet_in(shown, &[1; 60]);
        let told = waiting(session).remove(0);
        assert_eq!(told[12..14], [0, 60]);
        told.len() - 8 - 16 - 8 - 2
    };
    for (said, without, want) in [(None, 60, 0xffff), (Some(20), 20, 20), (Some(0), 0, 0)] {
        if let Some(most) = said {
            take(session, control, &message(9, &[0, 0, 0, most]), now);
        }
        take(session, control, &message(7, &[]), now);
        let config = waiting(session).remove(0);
        let own = u16::from_be_bytes([config[10], config[11]]);
        assert_eq!((config[1], own), (8, want));
        assert_eq!((seen(session, false), seen(session, true)), (without, 60));
    }
    take(session, control, &message(9, &[0, 1, 0, 0]), now);
    assert_eq!(waiting(session)[0][8..12], [0, 10, 0, 0]);
}

#[test]
fn ports_groups_and_meters_report_their_counts_and_ages() {
    let (now, control) = (Instant::now(), &mut Control::new(64));
    let session = &mut Session::new(64, now);
    let facts = Facts::new();
    facts.port_counts[2].received.add_some(3, 200, 1);
    facts.port_counts[2].sent.add_some(5, 400, 1);
    facts.port_counts[2].sent_out.add_some(1, 60, 1);
    let group = [0, 0, 2, 0, 0, 0, 0, 1, 0, 16, 0, 0];
    let group = [&group[..], &[0xff; 8], &[0; 4]].concat();
    let meter = [
        0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 16, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let said = [
        message(0, &[]),
        message(15, &group),
        message(29, &meter),
        message(18, &[0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]),
        message(
            18,
            &[0, 6, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xfc, 0, 0, 0, 0],
        ),
        message(
            18,
            &[0, 9, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
        ),
    ];
    take_beside(&facts, session, control, &said.concat(), now);
    let answers = waiting(session);
    let kinds: Vec<_> = answers.iter().map(|it| (it[1], it[9])).collect();
    assert_eq!(kinds[1..], [(19, 4), (19, 6), (19, 9)]);
    let number = |message: &[u8], at: usize| {
        u64::from_be_bytes(message[16 + at..16 + at + 8].try_into().unwrap())
    };
    let counts = [8, 16, 24, 32, 40].map(|at| number(&answers[1], at));
    assert_eq!(counts, [3, 6, 200, 460, u64::MAX]);
    // These are seconds and the remaining nanoseconds.
    for (answer, at) in answers[1..].iter().zip([104, 32, 32]) {
        assert_ne!(number(answer, at), 0);
    }
    // A change of the rate does not create a new meter.
    let made = control.next_meter(1).unwrap().1.made;
    let mut other = meter;
    other[1] = 1;
    take(session, control, &message(29, &other), now);
    assert_eq!(control.next_meter(1).unwrap().1.made, made);
}

#[test]
fn slaves_cannot_change_rules_and_stale_role_requests_are_refused() {
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
fn statistics_that_fit_one_message_are_sent_in_one_message() {
    let mut said = vec![message(0, &[])];
    for number in 0..60_u8 {
        said.push(rule_that(&[0x80, 0, 6, 6, 2, 0, 0, 0, 0, number]));
    }
    said.push(all_rules());
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
    let to = prop_oneof![
        (0_u8..4).prop_map(To::Port),
        Just(To::InPort),
        Just(To::Flood),
        Just(To::All),
        Just(To::Normal),
        Just(To::Controller),
    ];
    prop_oneof![
        (to, any::<u16>()).prop_map(|(to, most)| Action::Output(to, most)),
        (0_u8..8).prop_map(Action::Queue),
        any::<u32>().prop_map(Action::Group),
        (0_u128..256).prop_map(|ttl| Action::Set(Field::Ttl, Of::Ip, ttl)),
        any::<u16>().prop_map(|it| Action::Set(Field::SourcePort, Of::Tcp, u128::from(it))),
        Just(Action::DecrementTtl),
        Just(Action::PopVlan),
        Just(Action::PushVlan(crate::action::CUSTOMER_TAG)),
    ]
}

proptest! {
    #[test]
    fn emitted_matches_and_instructions_parse_to_the_same_values(
        (value, mask) in key(),
        apply in prop::collection::vec(action(), 0..20),
        write in prop::collection::vec(action(), 0..20),
        clears: bool,
    ) {
        let mut writer = Writer::default();
        write_match(&mut writer, &value, &mask);
        prop_assert_eq!(writer.0.len() % 8, 0);
        prop_assert_eq!(read_match(&mut Reader(&writer.0)), Ok((value, mask)));
        let mut does = Instructions { apply: vec![Action::Meter(3)], clears, write };
        does.apply.extend(apply);
        does.apply.push(Action::Goto(7));
        let mut writer = Writer::default();
        write_instructions(&mut writer, &does);
        prop_assert_eq!(read_instructions(Reader(&writer.0), 4, (value, mask)), Ok(does));
    }
}
