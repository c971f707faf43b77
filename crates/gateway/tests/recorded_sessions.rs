//! Replays of recorded PFCP sessions between control planes and this gateway (`tests/data/5g`). Each request gets the
//! recorded response, except for requests that were wrongly refused.
//!
//! `free5gc-session.pcap` is the SMF of free5GC with UERANSIM: a session, a second QoS flow, a user that is idle and
//! paged. The other two files are from pfcpsim: one is unchanged, the other lacks the zeros that pfcpsim writes for a
//! missing tunnel.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_gateway::Detached;
use taut_wire::Ipv4;
use taut_wire::Udp;
use taut_wire::pfcp::{Cause, ElementType as E, Message, MessageType as M, Seid};

const UPF: [u8; 4] = [10, 100, 0, 2];
const SMF: [u8; 4] = [10, 100, 0, 100];
/// The offset of a session identifier in a message that has one.
const SEID_AT: usize = 4;

/// A recorded message: true if the control plane sent it, and its bytes.
type Said = (bool, Vec<u8>);

/// Reads the PFCP messages of a capture file, of Ethernet and IPv4.
fn recorded(name: &str) -> Vec<Said> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/5g");
    let file = std::fs::read(folder.join(name)).unwrap();
    let mut rest = &file[24..];
    let mut all = Vec::new();
    while let Some((head, behind)) = rest.split_first_chunk::<16>() {
        let length = u32::from_le_bytes(head[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = behind.split_at(length);
        rest = behind;
        let ip = Ipv4::new(&frame[14..]).unwrap();
        let is_asked = ip.destination().octets() == UPF;
        assert!(is_asked || ip.destination().octets() == SMF);
        let udp = Udp::new(ip.payload()).unwrap();
        all.push((is_asked, udp.payload().to_vec()));
    }
    all
}

fn value(message: &[u8], kind: E) -> Option<Vec<u8>> {
    let mut elements = Message::parse(message).unwrap().elements.flatten();
    let found = elements.find(|it| it.element_type == kind)?;
    Some(found.value.to_vec())
}

fn seid(message: &[u8]) -> Option<u64> {
    Some(Seid::parse(&value(message, E::F_SEID)?).unwrap().seid)
}

/// Replays the control plane's messages to a new gateway. Returns the sequence number, the recorded cause and the new
/// cause of each request to which both responses have a cause.
fn replayed(name: &str) -> (Detached, Vec<(u32, u8, u8)>) {
    let settings = "address = [\"192.0.2.1\"]\nbearers = 100\n\
         pfcp = { address = \"10.100.0.2\", peers = [\"10.100.0.100\"], heartbeat = \"none\" }";
    let mut gateway = Detached::new(settings.parse().unwrap()).unwrap();
    let from = SocketAddr::from((SMF, 8805));
    let said = recorded(name);
    // The map has the recorded and new session identifiers.
    let mut seids = HashMap::new();
    let (mut causes, mut now) = (Vec::new(), Instant::now());
    for (at, (is_asked, message)) in said.iter().enumerate() {
        let request = Message::parse(message).unwrap();
        if !is_asked {
            continue;
        }
        let mut bytes = message.clone();
        if let Some(mapped) = request.seid.and_then(|then| seids.get(&then)) {
            bytes[SEID_AT..SEID_AT + 8].copy_from_slice(&u64::to_be_bytes(*mapped));
        }
        now += Duration::from_millis(10);
        let response = gateway.hear(&bytes, from, now);
        gateway.take_changes();
        gateway.look(now);
        gateway.sessions_hold().unwrap();
        gateway.tables_agree().unwrap();
        let Some(response) = response else {
            let kinds = [M::SESSION_REPORT_RESPONSE, M::HEARTBEAT_RESPONSE];
            assert!(kinds.contains(&request.message_type), "{request:?}");
            continue;
        };
        let answers = |it: &&Said| {
            let it = (it.0, Message::parse(&it.1).unwrap());
            let (kind, sequence) = (request.message_type.response(), request.sequence);
            !it.0 && (it.1.message_type, it.1.sequence) == (kind, sequence)
        };
        let then = &said[at..].iter().find(answers).unwrap().1;
        if let (Some(then), Some(now)) = (seid(then), seid(&response)) {
            seids.insert(then, now);
        }
        let cause = |of: &[u8]| value(of, E::CAUSE).map(|it| it[0]);
        if let (Some(then), Some(now)) = (cause(then), cause(&response)) {
            causes.push((request.sequence, then, now));
        }
    }
    (gateway, causes)
}

/// Returns the requests that the gateway answers with another cause than the recorded one: sequence number, recorded
/// cause and new cause of each.
fn otherwise(causes: &[(u32, u8, u8)]) -> Vec<(u32, u8, u8)> {
    let differs = |it: &&(u32, u8, u8)| it.1 != it.2;
    causes.iter().filter(differs).copied().collect()
}

#[test]
fn all_messages_of_the_free5gc_smf_are_accepted() {
    let (mut gateway, causes) = replayed("free5gc-session.pcap");
    // The causes are those of association, session, base station, idle, base station, end.
    let accepted = Cause::ACCEPTED.0;
    assert_eq!(causes.len(), 6, "{causes:?}");
    assert!(
        causes.iter().all(|it| (it.1, it.2) == (accepted, accepted)),
        "{causes:?}"
    );
    assert_eq!(gateway.control().occupancy().0, 0);
}

#[test]
fn pfcpsim_sessions_with_zero_tunnels_are_accepted() {
    let (accepted, failed) = (Cause::ACCEPTED.0, Cause::RULE_FAILURE.0);
    let (_, causes) = replayed("pfcpsim-zero-tunnel.pcap");
    assert_eq!(otherwise(&causes), [(2, failed, accepted)], "{causes:?}");
    let (_, causes) = replayed("pfcpsim-sessions.pcap");
    // Request 6 has a rule that buffers, and is accepted here. Request 9 has a filter for `udp` and stays refused,
    // because flow descriptions have protocol numbers (TS 29.212 section 5.4.2).
    assert_eq!(otherwise(&causes), [(6, failed, accepted)], "{causes:?}");
    assert!(causes.contains(&(9, failed, failed)), "{causes:?}");
}
