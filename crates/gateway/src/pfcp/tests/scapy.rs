//! Tests with the PFCP messages that scapy made, in one conversation.

use super::super::super::scapy::messages;
use super::*;

/// The name of a message, and the expected cause of its response with the element or rule that it names; none for
/// messages without a cause.
type Wanted = (&'static str, Option<(Cause, Named)>);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Named {
    Nothing,
    Element(E),
    /// The type of a rule (TS 29.244 section 8.2.80: 0 PDR, 1 FAR) and its number.
    Rule(u8, u32),
}

const fn accepted(name: &'static str) -> Wanted {
    (name, Some((Cause::ACCEPTED, Named::Nothing)))
}

const fn missing(name: &'static str, element: E) -> Wanted {
    let cause = Cause::MANDATORY_IE_MISSING;
    (name, Some((cause, Named::Element(element))))
}

const fn refused(name: &'static str, cause: Cause) -> Wanted {
    (name, Some((cause, Named::Nothing)))
}

const fn rule(name: &'static str, kind: u8, number: u32) -> Wanted {
    (name, Some((Cause::RULE_FAILURE, Named::Rule(kind, number))))
}

const WANTED: [Wanted; 28] = [
    ("heartbeat", None),
    refused("establishment-without-association", Cause::NO_ASSOCIATION),
    missing("association-without-node", E::NODE_ID),
    missing("association-without-stamp", E::RECOVERY_TIME_STAMP),
    accepted("association"),
    missing("establishment-without-node", E::NODE_ID),
    missing("establishment-without-seid", E::F_SEID),
    missing("establishment-without-pdr", E::CREATE_PDR),
    missing("establishment-without-far", E::CREATE_FAR),
    missing("establishment-pdr-without-pdi", E::PDI),
    missing("establishment-far-without-action", E::APPLY_ACTION),
    rule("establishment-of-unknown-far", 0, 1),
    (
        "establishment-teid-0",
        Some((Cause::MANDATORY_IE_INCORRECT, Named::Element(E::F_TEID))),
    ),
    accepted("establishment"),
    accepted("move"),
    accepted("close-gate"),
    rule("update-unknown-far", 1, 9),
    accepted("remove-downlink"),
    rule("remove-unknown-pdr", 0, 2),
    accepted("deletion"),
    refused("deletion-again", Cause::SESSION_NOT_FOUND),
    refused("pfd-management", Cause::SERVICE_NOT_SUPPORTED),
    accepted("release"),
    ("version-2", None),
    ("length-lies", None),
    ("header-cut", None),
    ("element-cut", None),
    refused("element-length-lies", Cause::INVALID_LENGTH),
];

fn named(response: &Response) -> Named {
    let find = |kind: E| response.elements.iter().find(|(found, _)| *found == kind);
    if let Some((_, value)) = find(E::OFFENDING_IE) {
        return Named::Element(E(u16::from_be_bytes([value[0], value[1]])));
    }
    if let Some((_, value)) = find(E::FAILED_RULE_ID) {
        let number = value[1..]
            .iter()
            .fold(0, |n, byte| n << 8 | u32::from(*byte));
        return Named::Rule(value[0], number);
    }
    Named::Nothing
}

/// Returns a message's sequence number, which follows the session identifier, if it has one.
fn sequence(message: &[u8]) -> u32 {
    let at = if message[0] & 1 == 1 { 12 } else { 4 };
    u32::from_be_bytes([0, message[at], message[at + 1], message[at + 2]])
}

#[test]
fn every_scapy_pfcp_message_gets_the_expected_cause_and_effect() {
    let all = messages("pfcp/");
    assert_eq!(all.len(), WANTED.len());
    let mut core = Core::new(100);
    let user = Match::User(IpAddr::from(USER));
    let (mut seid, mut uplink) = (0_u64, None);
    for ((name, mut message), (wanted, outcome)) in all.into_iter().zip(WANTED) {
        assert_eq!(name, wanted);
        let of_session = message[0] & 1 == 1 && !name.starts_with("establishment");
        if of_session {
            // The session identifier is known only now.
            message[4..12].copy_from_slice(&seid.to_be_bytes());
        }
        let response = core.raw(&message, SMF);
        if let Some((cause, names)) = outcome {
            let response = Response::read(&response.unwrap(), sequence(&message));
            assert_eq!(response.kind, message[1] + 1, "{name}");
            assert_eq!(response.get(E::CAUSE), [cause.0], "{name}: {response:?}");
            assert_eq!(named(&response), names, "{name}");
            if name == "establishment" {
                assert_eq!(response.seid, Some(0x77));
                seid = response.up_seid();
                let created = response.created();
                assert_eq!((created.len(), created[0].0), (1, 1));
                uplink = Some(Match::Teid(created[0].1));
            }
        } else if name == "heartbeat" {
            let response = Response::read(&response.unwrap(), sequence(&message));
            assert_eq!(response.get(E::RECOVERY_TIME_STAMP).len(), 4);
        } else if name == "version-2" {
            let response = response.unwrap();
            assert_eq!(response[1], M::VERSION_NOT_SUPPORTED.0);
        } else {
            assert_eq!(response, None, "{name}");
        }
        let downlink = core.action(user);
        let to = |teid: u32, host: u8| {
            let action = downlink.unwrap();
            let Action::Encapsulate {
                teid: found,
                path,
                qfi,
            } = action
            else {
                panic!("{name}: {action:?}");
            };
            assert_eq!((found, qfi), (teid, Some(9)), "{name}");
            assert_eq!(path.remote, IpAddr::from([192, 0, 2, host]), "{name}");
        };
        match name {
            "establishment" => to(0x20, 7),
            "move" => to(0x30, 8),
            "close-gate" | "update-unknown-far" => assert_eq!(downlink, Some(Action::Block)),
            _ => assert_eq!(downlink, None, "{name}"),
        }
        let is_there = uplink.and_then(|teid| core.action(teid));
        let lives = seid != 0
            && !["deletion", "deletion-again", "pfd-management", "release"].contains(&name)
            && outcome.is_some()
            && name != "element-length-lies";
        assert_eq!(is_there, lives.then_some(Action::Decapsulate), "{name}");
    }
}

/// The expected causes of the responses to messages about a session with filters, usage, buffering and QoS flows.
const WANTED_OF_FLOWS: [Wanted; 13] = [
    accepted("association"),
    accepted("establishment"),
    accepted("forward"),
    accepted("query"),
    rule("query-unknown", 3, 7),
    missing("urr-without-method", E::MEASUREMENT_METHOD),
    rule("filter-denies", 0, 5),
    refused("filter-cut", Cause::INVALID_LENGTH),
    rule("filter-unnamed", 0, 5),
    missing("bar-without-id", E::BAR_ID),
    accepted("remove-urr"),
    accepted("all-usage"),
    accepted("deletion"),
];

#[test]
fn scapy_sessions_with_flows_usage_and_buffering_are_installed() {
    let all = messages("upf/");
    assert_eq!(all.len(), WANTED_OF_FLOWS.len());
    let mut core = Core::new(100);
    let (mut seid, mut uplink) = (0_u64, None);
    let encapsulated = |teid, host| Action::Encapsulate {
        teid,
        qfi: Some(9),
        path: to([192, 0, 2, host]),
    };
    for ((name, mut message), (wanted, outcome)) in all.into_iter().zip(WANTED_OF_FLOWS) {
        assert_eq!(name, wanted);
        if message[0] & 1 == 1 && name != "establishment" {
            message[4..12].copy_from_slice(&seid.to_be_bytes());
        }
        let response = core.raw(&message, SMF).unwrap();
        let response = Response::read(&response, sequence(&message));
        let (cause, names) = outcome.unwrap();
        assert_eq!(response.get(E::CAUSE), [cause.0], "{name}: {response:?}");
        assert_eq!(named(&response), names, "{name}");
        let reports = |kind: E| {
            let reports = response.elements.iter().filter(|it| it.0 == kind);
            reports.count()
        };
        match name {
            "establishment" => {
                seid = response.up_seid();
                let created = response.created();
                assert_eq!(created[0].1, created[1].1);
                uplink = Some(Match::Teid(created[0].1));
                let downlink = core.actions(USER_MATCH);
                assert_eq!(downlink, [encapsulated(0x30, 8), Action::Hold]);
                // One rule refers to the filter of the other rule.
                let [first, second] = [USER_MATCH, uplink.unwrap()].map(|matched| {
                    let Some(Action::Classify { number }) =
                        core.control.get(matched).map(|it| it.action)
                    else {
                        panic!("{matched} is not classified");
                    };
                    core.control.classifier(number).unwrap().0[0].clone()
                });
                assert_eq!((first.filters.len(), &first.filters), (1, &second.filters));
                assert!(!first.is_uplink && second.is_uplink);
                assert_eq!(first.usages[0].rule, 2);
            }
            "association" => continue,
            "query" | "remove-urr" => assert_eq!(reports(E::USAGE_REPORT_IN_MODIFICATION), 1),
            "all-usage" => assert_eq!(reports(E::USAGE_REPORT_IN_MODIFICATION), 1),
            "deletion" => {
                assert_eq!(reports(E::USAGE_REPORT_IN_DELETION), 1);
                assert_eq!((core.count(), core.control.classifiers().len()), (0, 0));
                continue;
            }
            "forward" => {
                let downlink = core.actions(USER_MATCH);
                assert_eq!(downlink, [encapsulated(0x30, 8), encapsulated(0x20, 7)]);
            }
            _ => {}
        }
        assert_eq!(
            core.actions(uplink.unwrap()),
            [Action::Decapsulate; 2],
            "{name}"
        );
        core.node.check(&core.control).unwrap();
    }
}
