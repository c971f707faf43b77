//! A test with many forged session establishments, from the address of an allowed peer: their memory is bounded.

use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taut_gateway::Detached;
use taut_wire::pfcp::{
    Cause, ElementType as E, FTeid, Message, MessageType as M, OuterHeaderCreation, Seid, Writer,
};

const ESTABLISHMENTS: u32 = 400_000;
/// The number of session establishments after which all limits are reached: the 16 MiB for responses have space for
/// some 60,000 responses.
const REACH_LIMITS: u32 = 150_000;
/// The limit on sessions in the gateway's settings.
const SESSIONS: u64 = 10_000;

fn group(elements: &[(E, &[u8])]) -> Writer {
    let mut group = Writer::group();
    for (kind, value) in elements {
        group.element(*kind, value);
    }
    group
}

/// Returns an establishment with an uplink tunnel and a downlink user address, which differ for each number.
fn establishment(number: u32) -> Vec<u8> {
    let seid = Seid {
        seid: u64::from(number),
        v4: Some([192, 0, 2, 100].into()),
        v6: None,
    };
    let mut message = Writer::message(
        M::SESSION_ESTABLISHMENT_REQUEST,
        Some(0),
        number & 0xff_ffff,
    );
    message.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
    message.element(E::F_SEID, &seid.emit());
    let creation = OuterHeaderCreation {
        teid: number + 1,
        v4: Some([192, 0, 2, 7].into()),
        v6: None,
    };
    let choose = FTeid::Choose {
        v4: true,
        v6: false,
        id: None,
    };
    let user = [&[2, 10], &number.to_be_bytes()[1..]].concat();
    for (id, source) in [(1_u8, 0_u8), (2, 1)] {
        let mut pdi = group(&[(E::SOURCE_INTERFACE, &[source])]);
        match source {
            0 => pdi.element(E::F_TEID, &choose.emit()),
            _ => pdi.element(E::UE_IP_ADDRESS, &user),
        };
        let mut pdr = group(&[(E::PDR_ID, &[0, id]), (E::PRECEDENCE, &[0, 0, 0, 255])]);
        pdr.grouped(E::PDI, &pdi);
        pdr.element(E::FAR_ID, &[0, 0, 0, id]);
        message.grouped(E::CREATE_PDR, &pdr);
        let mut far = group(&[(E::FAR_ID, &[0, 0, 0, id]), (E::APPLY_ACTION, &[2])]);
        if source == 1 {
            let to = group(&[(E::OUTER_HEADER_CREATION, &creation.emit())]);
            far.grouped(E::FORWARDING_PARAMETERS, &to);
        }
        message.grouped(E::CREATE_FAR, &far);
    }
    message.finish().unwrap_or_default()
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: usize = line
        .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0);
    kib << 10
}

fn cause(response: &[u8]) -> u8 {
    let message = Message::parse(response).ok();
    let causes = message.and_then(|message| {
        let mut elements = message.elements.flatten();
        elements.find(|e| e.element_type == E::CAUSE)
    });
    causes.map_or(0, |e| e.value[0])
}

#[test]
fn a_flood_of_session_establishments_needs_bounded_memory() {
    let settings = format!(
        "address = \"192.0.2.1\"\nbearers = 100000\n\
         pfcp = {{ address = \"192.0.2.1\", peers = [\"192.0.2.100\"], sessions = {SESSIONS} }}"
    );
    let mut gateway = Detached::new(settings.parse().expect("settings")).expect("a gateway");
    let peer: SocketAddr = "192.0.2.100:8805".parse().expect("an address");
    let begun = Instant::now();
    let mut now = begun;
    let mut setup = Writer::message(M::ASSOCIATION_SETUP_REQUEST, None, 0xff_ffff);
    setup.element(E::NODE_ID, &[0, 192, 0, 2, 100]);
    setup.element(E::RECOVERY_TIME_STAMP, &[0xe0, 0, 0, 1]);
    let setup = setup.finish().expect("a message");
    let response = gateway.hear(&setup, peer, now).expect("a response");
    assert_eq!(cause(&response), Cause::ACCEPTED.0);
    let at_first = resident_bytes();
    let mut at_limits = 0;
    let mut granted = 0;
    for number in 0..ESTABLISHMENTS {
        // The rate is a hundred thousand a second.
        now += Duration::from_micros(10);
        let response = gateway.hear(&establishment(number), peer, now);
        gateway.take_changes();
        match cause(&response.expect("a response")) {
            1 => granted += 1,
            refused => assert_eq!(refused, Cause::NO_RESOURCES.0),
        }
        if number == REACH_LIMITS {
            at_limits = resident_bytes();
        }
    }
    let (at_end, took) = (resident_bytes(), begun.elapsed());
    assert_eq!(granted, SESSIONS);
    gateway.sessions_hold().expect("limits that hold");
    gateway.tables_agree().expect("tables that agree");
    let counted = gateway.signalling();
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    println!(
        "{ESTABLISHMENTS} establishments in {took:?}: {:.1} MiB at first, {:.1} MiB after {REACH_LIMITS} of them, \
         {:.1} MiB at the end, {:.0} bytes a session; {counted:?}",
        mib(at_first),
        mib(at_limits),
        mib(at_end),
        (at_limits - at_first).saturating_sub(16 << 20) as f64 / SESSIONS as f64,
    );
    // The tolerance is for the allocator. If every request beyond the limits left even the smallest allocation, the
    // growth would be nearly twice the tolerance.
    assert!(at_end < at_limits + (4 << 20), "{at_limits}, then {at_end}");
    let forgotten = counted.iter().find(|c| c.0 == "responses forgotten early");
    assert!(forgotten.is_some_and(|c| c.1 > 0), "{counted:?}");
}
