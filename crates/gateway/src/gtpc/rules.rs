//! A bearer as the rules of a session (3GPP TS 29.244 section 7.5). It has a detection rule for packets from the user,
//! one or several for packets to the user, and a forwarding rule for each direction.

use super::context::{Bearer, Pdn};
use crate::pfcp::CreatedPdr;
use std::fmt::Write;
use std::net::IpAddr;
use taut_wire::gtpc::{self, Direction, Interface, PacketFilter};
use taut_wire::pfcp::{
    ElementType as E, FTeid, Mbr, OuterHeaderCreation, SdfFilter, UeAddress, Writer,
};

/// Interfaces (TS 29.244 section 8.2.2), and actions of forwarding rules (section 8.2.26).
const ACCESS: u8 = 0;
const CORE: u8 = 1;
const DROP: u8 = 1;
const FORWARD: u8 = 2;
const BUFFER: u8 = 4;
const NOTIFY: u8 = 8;
/// The flag that requests an end marker (TS 29.244 section 8.2.31), and the flag that drops buffered packets.
const END_MARKER: u8 = 2;
const DROP_BUFFERED: u8 = 1;
/// The precedence value of detection rules without filters, which are evaluated after rules with filters (precedence
/// values up to 255).
const LAST: u32 = 256;
/// The identifier of the QoS enforcement rule for the total rate of a connection's bearers.
const AMBR: u32 = 0x100;

/// Returns the identifier of the uplink detection rule of the bearer with the given rule number.
fn uplink_pdr(number: u8) -> u16 {
    0x100 | u16::from(number)
}

fn downlink_pdr(number: u8) -> u16 {
    0x200 | u16::from(number)
}

fn filter_pdr(number: u8, filter: u8) -> u16 {
    0x1000 | u16::from(number) << 4 | u16::from(filter & 0xf)
}

fn uplink_far(number: u8) -> u32 {
    u32::from(number)
}

fn downlink_far(number: u8) -> u32 {
    0x100 | u32::from(number)
}

/// Returns the rule number of the bearer whose downlink packets the forwarding rule `far` buffers.
pub(super) fn number_of_far(far: u32) -> u8 {
    far as u8
}

/// The destination of packets to a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Packets are sent to this tunnel endpoint.
    At(gtpc::FTeid),
    /// Packets are buffered until the user's tunnel endpoint is known, without a notification of the MME.
    Soon,
    /// The user is idle: packets are buffered, and the first one is reported to the MME.
    Idle,
}

/// Writes the rules that all bearers of a connection share.
pub(super) fn add_connection(rules: &mut Writer, pdn: &Pdn) {
    if let Some(rates) = pdn.ambr.filter(|_| pdn.pgw.is_none()) {
        let mbr = Mbr {
            uplink_kbps: rates.uplink_kbps.into(),
            downlink_kbps: rates.downlink_kbps.into(),
        };
        rules.grouped(E::CREATE_QER, &qer(AMBR, mbr));
    }
}

/// Writes the rules of a new bearer. `user` has the addresses of the user, for the first bearer of a connection. The
/// rules of the bearer's filters are added later; until then, packets that match these filters use the default bearer.
pub(super) fn add_bearer(rules: &mut Writer, pdn: &Pdn, bearer: &Bearer, user: UeAddress) {
    let number = bearer.number;
    if pdn.pgw.is_none() && has_guaranteed_rates(bearer) {
        let mbr = Mbr {
            uplink_kbps: bearer.qos.mbr_uplink_kbps,
            downlink_kbps: bearer.qos.mbr_downlink_kbps,
        };
        rules.grouped(E::CREATE_QER, &qer(number.into(), mbr));
    }
    let qers = qers(pdn, bearer);
    let access = bearer.access.map_or(Access::Soon, Access::At);
    rules.grouped(E::CREATE_FAR, &core_far(pdn, bearer));
    let far = access_far(number, access, false, E::FORWARDING_PARAMETERS);
    rules.grouped(E::CREATE_FAR, &far);
    let mut pdi = group(E::SOURCE_INTERFACE, &[ACCESS]);
    pdi.element(E::F_TEID, &CHOOSE.emit());
    let up = pdr(uplink_pdr(number), LAST, &pdi, uplink_far(number), &qers);
    rules.grouped(E::CREATE_PDR, &up);
    let mut pdi = group(E::SOURCE_INTERFACE, &[CORE]);
    if pdn.pgw.is_some() {
        pdi.element(E::F_TEID, &CHOOSE.emit());
    } else if number == pdn.ebi {
        pdi.element(E::UE_IP_ADDRESS, &user.emit(true));
    } else {
        return;
    }
    let down = pdr(
        downlink_pdr(number),
        LAST,
        &pdi,
        downlink_far(number),
        &qers,
    );
    rules.grouped(E::CREATE_PDR, &down);
}

/// Writes the detection rules for the filters of a dedicated bearer.
pub(super) fn add_filters(rules: &mut Writer, pdn: &Pdn, bearer: &Bearer) {
    if pdn.pgw.is_none() {
        for filter in bearer.filters.values() {
            add_filter(rules, pdn, bearer, filter);
        }
    }
}

/// Returns the identifiers of the QoS enforcement rules that apply to a bearer.
fn qers(pdn: &Pdn, bearer: &Bearer) -> Vec<u32> {
    match (pdn.pgw, has_guaranteed_rates(bearer)) {
        (Some(_), _) => Vec::new(),
        (None, true) => vec![bearer.number.into()],
        (None, false) => pdn.ambr.map(|_| AMBR).into_iter().collect(),
    }
}

/// Writes the detection rule for one filter, if the filter is for packets to the user.
fn add_filter(rules: &mut Writer, pdn: &Pdn, bearer: &Bearer, filter: &PacketFilter) {
    if filter.direction == Direction::Uplink {
        return;
    }
    let pdi = filtered_pdi(user_of(pdn), filter);
    let id = filter_pdr(bearer.number, filter.id);
    let far = downlink_far(bearer.number);
    let down = pdr(id, filter.precedence.into(), &pdi, far, &qers(pdn, bearer));
    rules.grouped(E::CREATE_PDR, &down);
}

/// Writes the removal of a bearer's rules. `with_filters` is true if the rules of the bearer's filters were added.
pub(super) fn remove_bearer(rules: &mut Writer, pdn: &Pdn, bearer: &Bearer, with_filters: bool) {
    let number = bearer.number;
    let mut removed = |kind: E, id: E, number: &[u8]| {
        rules.grouped(kind, &group(id, number));
    };
    let mut pdrs = vec![uplink_pdr(number)];
    if pdn.pgw.is_some() || number == pdn.ebi {
        pdrs.push(downlink_pdr(number));
    }
    if pdn.pgw.is_none() && with_filters {
        let filters = bearer.filters.values();
        let filters = filters.filter(|it| it.direction != Direction::Uplink);
        pdrs.extend(filters.map(|it| filter_pdr(number, it.id)));
    }
    for pdr in pdrs {
        removed(E::REMOVE_PDR, E::PDR_ID, &pdr.to_be_bytes());
    }
    for far in [uplink_far(number), downlink_far(number)] {
        removed(E::REMOVE_FAR, E::FAR_ID, &far.to_be_bytes());
    }
    if pdn.pgw.is_none() && has_guaranteed_rates(bearer) {
        removed(E::REMOVE_QER, E::QER_ID, &u32::from(number).to_be_bytes());
    }
}

/// Writes a new destination for packets to the user; `ends` requests an end marker in the earlier tunnel.
pub(super) fn move_access(rules: &mut Writer, bearer: &Bearer, access: Access, ends: bool) {
    let far = access_far(bearer.number, access, ends, E::UPDATE_FORWARDING_PARAMETERS);
    rules.grouped(E::UPDATE_FAR, &far);
}

/// Writes a new destination for packets from the user: `core`, the tunnel endpoint at the PDN gateway.
pub(super) fn move_core(rules: &mut Writer, bearer: &Bearer, core: &gtpc::FTeid) {
    let mut far = group(E::FAR_ID, &uplink_far(bearer.number).to_be_bytes());
    far.element(E::APPLY_ACTION, &[FORWARD]);
    let mut parameters = Writer::group();
    parameters.element(E::OUTER_HEADER_CREATION, &creation(core));
    far.grouped(E::UPDATE_FORWARDING_PARAMETERS, &parameters);
    rules.grouped(E::UPDATE_FAR, &far);
}

/// Writes the request to drop all packets buffered for the session.
pub(super) fn drop_buffered(rules: &mut Writer) {
    rules.element(E::PFCPSMREQ_FLAGS, &[DROP_BUFFERED]);
}

/// Returns the user's addresses that the gateway has chosen.
pub(super) fn chosen_user(created: &[CreatedPdr]) -> Option<UeAddress> {
    created.iter().find_map(|it| it.user)
}

/// Returns this node's tunnel endpoints of a bearer: for packets from the user, and for those to the user.
pub(super) fn chosen_ends(
    created: &[CreatedPdr],
    number: u8,
    [up, down]: [Interface; 2],
) -> (Option<gtpc::FTeid>, Option<gtpc::FTeid>) {
    let of = |id: u16, interface| {
        let found = created.iter().find(|it| it.id == id)?;
        match found.teid? {
            FTeid::Chosen { teid, v4, v6 } => Some(gtpc::FTeid {
                interface,
                teid,
                v4,
                v6,
            }),
            FTeid::Choose { .. } => None,
        }
    };
    (of(uplink_pdr(number), up), of(downlink_pdr(number), down))
}

/// Returns true if a bearer's QoS class has guaranteed rates (TS 23.203 table 6.1.7-A).
fn has_guaranteed_rates(bearer: &Bearer) -> bool {
    matches!(bearer.qos.qci, 1..=4 | 65..=67 | 71..=76 | 82..=85)
}

fn user_of(pdn: &Pdn) -> UeAddress {
    UeAddress {
        v4: pdn.paa.v4,
        v6: pdn.paa.v6.map(|it| it.1),
        ..UeAddress::default()
    }
}

fn group(kind: E, value: &[u8]) -> Writer {
    let mut group = Writer::group();
    group.element(kind, value);
    group
}

const CHOOSE: FTeid = FTeid::Choose {
    v4: true,
    v6: true,
    id: None,
};

fn creation(end: &gtpc::FTeid) -> Vec<u8> {
    let gtpc::FTeid { teid, v4, v6, .. } = *end;
    OuterHeaderCreation { teid, v4, v6 }.emit()
}

fn qer(id: u32, rates: Mbr) -> Writer {
    let mut qer = group(E::QER_ID, &id.to_be_bytes());
    qer.element(E::GATE_STATUS, &[0]);
    qer.element(E::MBR, &rates.emit());
    qer
}

/// Returns the forwarding rule for packets from the user.
fn core_far(pdn: &Pdn, bearer: &Bearer) -> Writer {
    let mut far = group(E::FAR_ID, &uplink_far(bearer.number).to_be_bytes());
    let mut parameters = group(E(42), &[CORE]);
    let action = match (pdn.pgw, &bearer.core) {
        (Some(_), None) => DROP,
        (Some(_), Some(core)) => {
            parameters.element(E::OUTER_HEADER_CREATION, &creation(core));
            FORWARD
        }
        (None, _) => FORWARD,
    };
    far.element(E::APPLY_ACTION, &[action]);
    far.grouped(E::FORWARDING_PARAMETERS, &parameters);
    far
}

/// Returns the forwarding rule for packets to the user.
fn access_far(number: u8, access: Access, ends: bool, parameters: E) -> Writer {
    let mut far = group(E::FAR_ID, &downlink_far(number).to_be_bytes());
    let end = match access {
        Access::At(end) => {
            far.element(E::APPLY_ACTION, &[FORWARD]);
            end
        }
        Access::Soon => {
            far.element(E::APPLY_ACTION, &[BUFFER]);
            return far;
        }
        Access::Idle => {
            far.element(E::APPLY_ACTION, &[BUFFER | NOTIFY]);
            return far;
        }
    };
    let mut group = Writer::group();
    group.element(E::OUTER_HEADER_CREATION, &creation(&end));
    if ends {
        group.element(E::PFCPSMREQ_FLAGS, &[END_MARKER]);
    }
    far.grouped(parameters, &group);
    far
}

fn pdr(id: u16, precedence: u32, pdi: &Writer, far: u32, qers: &[u32]) -> Writer {
    let mut pdr = group(E::PDR_ID, &id.to_be_bytes());
    pdr.element(E::PRECEDENCE, &precedence.to_be_bytes());
    pdr.grouped(E::PDI, pdi);
    pdr.element(E::FAR_ID, &far.to_be_bytes());
    for qer in qers {
        pdr.element(E::QER_ID, &qer.to_be_bytes());
    }
    pdr
}

/// Returns the packet detection information of a filter.
fn filtered_pdi(user: UeAddress, filter: &PacketFilter) -> Writer {
    let mut pdi = group(E::SOURCE_INTERFACE, &[CORE]);
    pdi.element(E::UE_IP_ADDRESS, &user.emit(true));
    let text = description(filter);
    let filter = SdfFilter {
        description: Some(text.as_bytes()),
        traffic_class: filter.traffic_class,
        security_parameters: filter.security_parameters,
        flow_label: filter.flow_label,
        id: None,
    };
    pdi.element(E::SDF_FILTER, &filter.emit());
    pdi
}

/// Returns a filter as the text of a flow description (TS 29.212 section 5.4.2).
fn description(filter: &PacketFilter) -> String {
    let mut text = "permit out ".to_string();
    // Writing into a string does not fail.
    let _ = match filter.protocol {
        Some(protocol) => write!(text, "{protocol}"),
        None => write!(text, "ip"),
    };
    let mut end = |word: &str, address: Option<(IpAddr, u8)>, ports: Option<(u16, u16)>| {
        let _ = match address {
            Some((address, length)) => write!(text, " {word} {address}/{length}"),
            None => write!(text, " {word} any"),
        };
        let _ = match ports {
            Some((first, last)) if first == last => write!(text, " {first}"),
            Some((first, last)) => write!(text, " {first}-{last}"),
            None => Ok(()),
        };
    };
    end("from", filter.remote, filter.remote_ports);
    end("to", filter.local, filter.local_ports);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_written_as_flow_descriptions() {
        let mut filter = PacketFilter::default();
        assert_eq!(description(&filter), "permit out ip from any to any");
        filter.protocol = Some(17);
        filter.remote = Some(([198, 51, 100, 0].into(), 24));
        filter.remote_ports = Some((53, 53));
        filter.local_ports = Some((1000, 2000));
        assert_eq!(
            description(&filter),
            "permit out 17 from 198.51.100.0/24 53 to any 1000-2000"
        );
    }
}
