//! The GTP-C messages of an MME.

use super::mix::Procedure;
use super::pfcp::User;
use taut_wire::gtpc::{BearerQos, ElementType as E, FTeid, Interface, MessageType, Paa, Writer};

const EBI: u8 = 5;

/// Returns the request that begins a procedure.
pub(super) fn request(procedure: Procedure, user: &User, sequence: u32) -> Writer {
    let teid = user.remote as u32;
    match procedure {
        Procedure::Attach => create(user, sequence),
        Procedure::Active | Procedure::Handover => {
            let kind = MessageType::MODIFY_BEARER_REQUEST;
            let mut writer = Writer::message(kind, Some(teid), sequence);
            let mut bearer = Writer::group();
            let end = FTeid::new(Interface::S1U_ENODEB, user.tunnel, user.base_station.into());
            bearer
                .element(E::EBI, &[EBI])
                .element(E::F_TEID, &end.emit());
            writer.grouped(E::BEARER_CONTEXT, 0, &bearer);
            writer
        }
        Procedure::Idle => {
            let kind = MessageType::RELEASE_ACCESS_BEARERS_REQUEST;
            Writer::message(kind, Some(teid), sequence)
        }
        Procedure::Detach => {
            let kind = MessageType::DELETE_SESSION_REQUEST;
            let mut writer = Writer::message(kind, Some(teid), sequence);
            writer.element(E::EBI, &[EBI]);
            writer.element(E::INDICATION, &[8, 0]);
            writer
        }
    }
}

fn create(user: &User, sequence: u32) -> Writer {
    let kind = MessageType::CREATE_SESSION_REQUEST;
    let mut writer = Writer::message(kind, Some(0), sequence);
    let sender = FTeid::new(Interface::S11_MME, user.number + 1, user.own);
    // The IMSI has fifteen digits: 00101 and the number of the user. Each byte has two digits, the first one in its
    // lower half.
    let digits = format!("00101{:010}F", user.number);
    let digits: Vec<u8> = digits
        .bytes()
        .map(|it| char::from(it).to_digit(16).unwrap_or(0) as u8)
        .collect();
    let imsi: Vec<u8> = digits.chunks(2).map(|it| it[0] | it[1] << 4).collect();
    let paa = Paa {
        v4: Some(user.address),
        v6: None,
    };
    let qos = BearerQos {
        arp: 0x48,
        qci: 9,
        ..BearerQos::default()
    };
    let mut bearer = Writer::group();
    bearer
        .element(E::EBI, &[EBI])
        .element(E::BEARER_QOS, &qos.emit());
    writer
        .element(E::IMSI, &imsi)
        .element(E::SERVING_NETWORK, &[0, 0xf1, 0x10])
        .element(E::RAT_TYPE, &[6])
        .element(E::F_TEID, &sender.emit())
        .element(E::APN, b"\x08internet")
        .element(E::SELECTION_MODE, &[0])
        .element(E::PDN_TYPE, &[1])
        .element(E::PAA, &paa.emit())
        .element(E::APN_RESTRICTION, &[0])
        .element(E::AMBR, &[0, 0x0f, 0x42, 0x40, 0, 0x0f, 0x42, 0x40])
        .grouped(E::BEARER_CONTEXT, 0, &bearer);
    writer
}
