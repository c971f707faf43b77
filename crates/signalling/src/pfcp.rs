//! PFCP messages of a session management function. Their elements, order and options are those that Open5GS (2.7) and
//! free5GC (3.4) write.

use super::mix::Procedure;
use std::net::{IpAddr, Ipv4Addr};
use taut_wire::pfcp::{
    ElementType as E, FTeid, Mbr, MessageType, NodeId, OuterHeaderCreation, SdfFilter, Seid,
    UeAddress, Volumes, Writer,
};

/// Types of PFCP elements that only control planes write.
const DESTINATION_INTERFACE: E = E(42);
const NETWORK_INSTANCE: E = E(22);
const PDN_TYPE: E = E(113);

const ACCESS: u8 = 0;
const CORE: u8 = 1;
const CONTROL: u8 = 3;
const FORWARD: u8 = 2;
const BUFFER_AND_NOTIFY: u8 = 0x0c;
const END_MARKER: u8 = 2;
/// The maximum bit rate of a session, uplink and downlink, kbit/s.
const KBPS: u64 = 1_000_000;
/// The number of bytes after which the user plane reports the usage of a session.
const THRESHOLD: u64 = 1 << 30;
/// The filter of all packets, as free5GC writes it.
const ALL_PACKETS: &[u8] = b"permit out ip from any to assigned";

/// The mobile core whose PFCP messages are imitated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Core {
    /// Open5GS: four detection rules, one usage rule, one buffering rule; tunnels chosen by the user plane.
    #[default]
    Open5gs,
    /// free5GC: two detection rules with a filter for all packets, two QoS and two usage rules; tunnels chosen by the
    /// core; every update repeats the detection rule.
    Free5gc,
}

/// The properties of a user that the messages contain.
#[derive(Debug, Clone, Copy)]
pub(super) struct User {
    /// The number of the user, from 0.
    pub number: u32,
    pub address: Ipv4Addr,
    /// The identifier that the peer gave the user's session.
    pub remote: u64,
    /// The identifier of the base station's tunnel.
    pub tunnel: u32,
    pub base_station: Ipv4Addr,
    /// The address of the load generator, which acts as the control plane.
    pub own: IpAddr,
}

impl User {
    fn seid(&self) -> Vec<u8> {
        seid(u64::from(self.number) + 1, self.own)
    }

    fn creation(&self) -> Vec<u8> {
        OuterHeaderCreation {
            teid: self.tunnel,
            v4: Some(self.base_station),
            v6: None,
        }
        .emit()
    }
}

fn seid(seid: u64, own: IpAddr) -> Vec<u8> {
    let (v4, v6) = match own {
        IpAddr::V4(own) => (Some(own), None),
        IpAddr::V6(own) => (None, Some(own)),
    };
    Seid { seid, v4, v6 }.emit()
}

/// Returns the request that sets an association up, or releases it.
pub(super) fn association(kind: MessageType, own: IpAddr, stamp: u32, sequence: u32) -> Writer {
    let mut writer = Writer::message(kind, None, sequence);
    writer.element(E::NODE_ID, &NodeId(own).emit());
    if kind == MessageType::ASSOCIATION_SETUP_REQUEST {
        writer.element(E::RECOVERY_TIME_STAMP, &stamp.to_be_bytes());
    }
    writer
}

/// Returns the request that begins a procedure.
pub(super) fn request(core: Core, procedure: Procedure, user: &User, sequence: u32) -> Writer {
    match procedure {
        Procedure::Attach => {
            let kind = MessageType::SESSION_ESTABLISHMENT_REQUEST;
            let mut writer = Writer::message(kind, Some(0), sequence);
            writer.element(E::NODE_ID, &NodeId(user.own).emit());
            writer.element(E::F_SEID, &user.seid());
            match core {
                Core::Open5gs => open5gs_session(&mut writer, user),
                Core::Free5gc => free5gc_session(&mut writer, user),
            }
            writer
        }
        Procedure::Detach => {
            let kind = MessageType::SESSION_DELETION_REQUEST;
            Writer::message(kind, Some(user.remote), sequence)
        }
        Procedure::Active | Procedure::Idle | Procedure::Handover => {
            let kind = MessageType::SESSION_MODIFICATION_REQUEST;
            let mut writer = Writer::message(kind, Some(user.remote), sequence);
            match core {
                Core::Open5gs => writer.grouped(E::UPDATE_FAR, &moved(procedure, user, 1, false)),
                Core::Free5gc => {
                    writer.element(E::F_SEID, &user.seid());
                    let pdr = free5gc_pdr(user, 2, CORE);
                    writer
                        .grouped(E::UPDATE_PDR, &pdr)
                        .grouped(E::UPDATE_FAR, &moved(procedure, user, 2, true))
                }
            };
            writer
        }
    }
}

/// Returns the request that updates the downlink's forwarding rule. If `has_interface` is true, the update repeats the
/// destination interface and the network instance.
fn moved(procedure: Procedure, user: &User, far: u32, has_interface: bool) -> Writer {
    let mut rule = group(E::FAR_ID, &far.to_be_bytes());
    if procedure == Procedure::Idle {
        rule.element(E::APPLY_ACTION, &[BUFFER_AND_NOTIFY]);
        return rule;
    }
    rule.element(E::APPLY_ACTION, &[FORWARD]);
    let mut parameters = Writer::group();
    if has_interface {
        parameters.element(DESTINATION_INTERFACE, &[ACCESS]);
        parameters.element(NETWORK_INSTANCE, b"\x08internet");
    }
    parameters.element(E::OUTER_HEADER_CREATION, &user.creation());
    if procedure == Procedure::Handover {
        parameters.element(E::PFCPSMREQ_FLAGS, &[END_MARKER]);
    } else if has_interface {
        parameters.element(E::PFCPSMREQ_FLAGS, &[0]);
    }
    rule.grouped(E::UPDATE_FORWARDING_PARAMETERS, &parameters);
    rule
}

fn open5gs_session(writer: &mut Writer, user: &User) {
    let choose = FTeid::Choose {
        v4: true,
        v6: false,
        id: Some(5),
    };
    let own = FTeid::Choose {
        v4: true,
        v6: false,
        id: None,
    };
    for (id, precedence, source, far) in [
        (1_u16, 255_u32, CORE, 1_u32),
        (2, 255, ACCESS, 2),
        (3, 255, CONTROL, 1),
        (4, 1, ACCESS, 3),
    ] {
        let mut pdi = group(E::SOURCE_INTERFACE, &[source]);
        match source {
            ACCESS => {
                pdi.element(E::F_TEID, &choose.emit());
            }
            CONTROL => {
                pdi.element(E::F_TEID, &own.emit());
            }
            _ => {}
        }
        if source != CONTROL {
            pdi.element(NETWORK_INSTANCE, b"\x08internet");
            pdi.element(E::UE_IP_ADDRESS, &address(user, source == CORE));
        }
        match id {
            2 => drop(pdi.element(E::QFI, &[1])),
            4 => {
                let text = b"permit out 58 from ff02::2/128 to assigned";
                pdi.element(E::SDF_FILTER, &filter(text));
            }
            _ => {}
        }
        let mut rule = group(E::PDR_ID, &id.to_be_bytes());
        rule.element(E::PRECEDENCE, &precedence.to_be_bytes());
        rule.grouped(E::PDI, &pdi);
        if source != CORE {
            rule.element(E::OUTER_HEADER_REMOVAL, &[0]);
        }
        rule.element(E::FAR_ID, &far.to_be_bytes());
        if id <= 2 {
            rule.element(E::URR_ID, &1_u32.to_be_bytes());
            rule.element(E::QER_ID, &1_u32.to_be_bytes());
        }
        writer.grouped(E::CREATE_PDR, &rule);
    }
    open5gs_fars(writer, user);
    writer.grouped(E::CREATE_URR, &urr(1, 2));
    writer.grouped(E::CREATE_QER, &qer(1, Some(1)));
    writer.grouped(E::CREATE_BAR, &group(E::BAR_ID, &[1]));
    writer.element(PDN_TYPE, &[1]);
}

/// Writes the forwarding rules of a session as Open5GS does: to the user, to the network, and to the core itself.
fn open5gs_fars(writer: &mut Writer, user: &User) {
    let mut far = group(E::FAR_ID, &1_u32.to_be_bytes());
    far.element(E::APPLY_ACTION, &[BUFFER_AND_NOTIFY]);
    far.element(E::BAR_ID, &[1]);
    writer.grouped(E::CREATE_FAR, &far);
    let mut far = group(E::FAR_ID, &2_u32.to_be_bytes());
    far.element(E::APPLY_ACTION, &[FORWARD]);
    far.grouped(
        E::FORWARDING_PARAMETERS,
        &group(DESTINATION_INTERFACE, &[CORE]),
    );
    writer.grouped(E::CREATE_FAR, &far);
    let mut far = group(E::FAR_ID, &3_u32.to_be_bytes());
    far.element(E::APPLY_ACTION, &[FORWARD]);
    let mut parameters = group(DESTINATION_INTERFACE, &[CONTROL]);
    let to_core = OuterHeaderCreation {
        teid: 1,
        v4: Some(user.base_station),
        v6: None,
    };
    parameters.element(E::OUTER_HEADER_CREATION, &to_core.emit());
    far.grouped(E::FORWARDING_PARAMETERS, &parameters);
    writer.grouped(E::CREATE_FAR, &far);
}

fn free5gc_session(writer: &mut Writer, user: &User) {
    writer.grouped(E::CREATE_PDR, &free5gc_pdr(user, 1, ACCESS));
    writer.grouped(E::CREATE_PDR, &free5gc_pdr(user, 2, CORE));
    for (id, to) in [(1_u32, CORE), (2, ACCESS)] {
        let mut far = group(E::FAR_ID, &id.to_be_bytes());
        far.element(E::APPLY_ACTION, &[FORWARD]);
        let mut parameters = group(DESTINATION_INTERFACE, &[to]);
        parameters.element(NETWORK_INSTANCE, b"\x08internet");
        far.grouped(E::FORWARDING_PARAMETERS, &parameters);
        writer.grouped(E::CREATE_FAR, &far);
    }
    writer.grouped(E::CREATE_QER, &qer(1, None));
    writer.grouped(E::CREATE_QER, &qer(2, Some(9)));
    // The first usage rule is measured before QoS enforcement (MBQE).
    let mut first = urr(1, 2);
    first.element(E::MEASUREMENT_INFORMATION, &[1]);
    writer.grouped(E::CREATE_URR, &first);
    writer.grouped(E::CREATE_URR, &urr(2, 2));
    writer.element(PDN_TYPE, &[1]);
}

/// Returns a packet detection rule as free5GC writes it; the tunnel identifier is the user's number plus one.
fn free5gc_pdr(user: &User, id: u16, source: u8) -> Writer {
    let mut rule = group(E::PDR_ID, &id.to_be_bytes());
    rule.element(E::PRECEDENCE, &255_u32.to_be_bytes());
    let mut pdi = group(E::SOURCE_INTERFACE, &[source]);
    if source == ACCESS {
        let end = FTeid::Chosen {
            teid: user.number + 1,
            v4: Some(user.base_station),
            v6: None,
        };
        pdi.element(E::F_TEID, &end.emit());
    }
    pdi.element(NETWORK_INSTANCE, b"\x08internet");
    pdi.element(E::UE_IP_ADDRESS, &address(user, source == CORE));
    pdi.element(E::SDF_FILTER, &filter(ALL_PACKETS));
    rule.grouped(E::PDI, &pdi);
    if source == ACCESS {
        rule.element(E::OUTER_HEADER_REMOVAL, &[0]);
    }
    rule.element(E::FAR_ID, &u32::from(id).to_be_bytes());
    for number in [1_u32, 2] {
        rule.element(E::URR_ID, &number.to_be_bytes());
    }
    for number in [1_u32, 2] {
        rule.element(E::QER_ID, &number.to_be_bytes());
    }
    rule
}

fn address(user: &User, is_destination: bool) -> Vec<u8> {
    UeAddress {
        v4: Some(user.address),
        ..UeAddress::default()
    }
    .emit(is_destination)
}

fn filter(text: &[u8]) -> Vec<u8> {
    SdfFilter {
        description: Some(text),
        ..SdfFilter::default()
    }
    .emit()
}

/// Returns a usage rule that measures volume and reports after [`THRESHOLD`] bytes.
fn urr(id: u32, method: u8) -> Writer {
    let mut urr = group(E::URR_ID, &id.to_be_bytes());
    urr.element(E::MEASUREMENT_METHOD, &[method]);
    urr.element(E::REPORTING_TRIGGERS, &[2, 0, 0]);
    let volumes = Volumes {
        total: Some(THRESHOLD),
        ..Volumes::default()
    };
    urr.element(E::VOLUME_THRESHOLD, &volumes.emit());
    urr
}

fn qer(id: u32, qfi: Option<u8>) -> Writer {
    let mut qer = group(E::QER_ID, &id.to_be_bytes());
    qer.element(E::GATE_STATUS, &[0]);
    let rates = Mbr {
        uplink_kbps: KBPS,
        downlink_kbps: KBPS,
    };
    qer.element(E::MBR, &rates.emit());
    if let Some(qfi) = qfi {
        qer.element(E::QFI, &[qfi]);
    }
    qer
}

fn group(kind: E, value: &[u8]) -> Writer {
    let mut group = Writer::group();
    group.element(kind, value);
    group
}
