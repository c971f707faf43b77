//! The creation and deletion of users' connections (3GPP TS 29.274 sections 7.2.1, 7.2.2, 7.2.9 and 7.2.10).

use super::ask::{Ask, Refusal, Work, about, cause_of, ebi, end, look, need, read, refusal};
use super::context::{Bearer, Context, EBIS, Endpoint, Link, Pdn, number};
use super::node::{Node, UserKey};
use super::rules;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use taut_wire::gtpc::{
    Ambr, BearerQos, Cause, CauseValue, ElementType, Elements, FTeid, Interface, Paa, Writer,
};
use taut_wire::pfcp::{UeAddress, Writer as Rules};

/// The flag of an indication that makes the serving gateway inform the PDN gateway (TS 29.274 section 8.12, OI).
const OPERATION_INDICATION: u8 = 8;
/// The length of a user's IPv6 prefix, bits.
const PREFIX_BITS: u8 = 64;

/// A received request to create a connection.
pub(super) struct SessionRequest {
    pub sender: FTeid,
    pub is_s11: bool,
    pub imsi: Vec<u8>,
    pub paa: Paa,
    pub ambr: Option<Ambr>,
    pub pgw: Option<FTeid>,
    /// The bearers by identifier; the default bearer is the one with identifier `ebi`.
    pub bearers: BTreeMap<u8, Bearer>,
    pub ebi: u8,
}

impl SessionRequest {
    fn parse(elements: Elements<'_>) -> Result<Self, Refusal> {
        need(elements, ElementType::RAT_TYPE, 0)?;
        let missing = about(CauseValue::MANDATORY_IE_MISSING, ElementType::F_TEID, 0);
        let sender = end(elements, 0)?.ok_or(missing)?;
        let is_s11 = match sender.interface {
            Interface::S11_MME => true,
            Interface::S5_SGW_C => false,
            _ => {
                let wrong = CauseValue::MANDATORY_IE_INCORRECT;
                return Err(about(wrong, ElementType::F_TEID, 0));
            }
        };
        need(elements, ElementType::APN, 0)?;
        let first = need(elements, ElementType::BEARER_CONTEXT, 0)?;
        let missing = about(CauseValue::CONDITIONAL_IE_MISSING, ElementType::PAA, 0);
        let paa = look(elements, ElementType::PAA, 0)?.ok_or(missing)?;
        let wrong = about(CauseValue::MANDATORY_IE_INCORRECT, ElementType::PAA, 0);
        let paa = read(&paa, Paa::parse)?.ok_or(wrong)?;
        let ambr = look(elements, ElementType::AMBR, 0)?;
        let ambr = ambr.map(|it| read(&it, Ambr::parse)).transpose()?;
        let imsi = look(elements, ElementType::IMSI, 0)?;
        let mut bearers = BTreeMap::new();
        for context in elements.all(ElementType::BEARER_CONTEXT, 0) {
            let (ebi, bearer) = new_bearer(context.group(), is_s11)?;
            bearers.insert(ebi, bearer);
        }
        // A request about several bearers names the default bearer in an element of its own.
        let ebi = match look(elements, ElementType::EBI, 0)? {
            Some(linked) => ebi(&linked)?,
            None => ebi(&need(first.group(), ElementType::EBI, 0)?)?,
        };
        if !bearers.contains_key(&ebi) {
            let wrong = CauseValue::MANDATORY_IE_INCORRECT;
            return Err(about(wrong, ElementType::BEARER_CONTEXT, 0));
        }
        // The sender does not know the identifier of the PDN gateway yet, and writes 0.
        let pgw = look(elements, ElementType::F_TEID, 1)?;
        let pgw = pgw.map(|it| read(&it, FTeid::parse)).transpose()?;
        Ok(Self {
            sender,
            is_s11,
            imsi: imsi.map_or_else(Vec::new, |it| it.value.iter().copied().take(8).collect()),
            paa,
            ambr,
            pgw,
            bearers,
            ebi,
        })
    }

    /// Returns the key under which the user of the request is stored, if the user has an identity.
    fn key(&self) -> Option<UserKey> {
        let ebi = if self.is_s11 { 0 } else { self.ebi };
        (!self.imsi.is_empty()).then(|| (self.imsi.clone(), self.is_s11, ebi))
    }
}

/// Reads the bearer context of a bearer to be created.
fn new_bearer(group: Elements<'_>, is_s11: bool) -> Result<(u8, Bearer), Refusal> {
    let number = ebi(&need(group, ElementType::EBI, 0)?)?;
    if !EBIS.contains(&number) {
        let wrong = CauseValue::MANDATORY_IE_INCORRECT;
        return Err(about(wrong, ElementType::EBI, 0));
    }
    let qos = need(group, ElementType::BEARER_QOS, 0)?;
    // The base station's endpoint, or on S5/S8 that of the serving gateway.
    let access = end(group, if is_s11 { 0 } else { 2 })?;
    if !is_s11 && access.is_none() {
        let missing = CauseValue::CONDITIONAL_IE_MISSING;
        return Err(about(missing, ElementType::F_TEID, 2));
    }
    let bearer = Bearer {
        number,
        qos: read(&qos, BearerQos::parse)?,
        uplink: FTeid::new(Interface::S1U_SGW, 0, Ipv4Addr::UNSPECIFIED.into()),
        downlink: None,
        access,
        core: None,
        filters: BTreeMap::new(),
    };
    Ok((number, bearer))
}

/// Returns the interface types of this node's tunnel endpoints for packets from and to a user.
pub(super) fn interfaces(is_s11: bool) -> [Interface; 2] {
    match is_s11 {
        true => [Interface::S1U_SGW, Interface::S5_SGW_U],
        false => [Interface::S5_PGW_U, Interface::S5_SGW_U],
    }
}

impl Node {
    pub(super) fn create_session(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let request = SessionRequest::parse(ask.message.elements)?;
        let known = ask.message.teid.filter(|teid| *teid != 0);
        match known.map(|teid| self.contexts.get(&teid)) {
            Some(None) => return Err(refusal(CauseValue::CONTEXT_NOT_FOUND)),
            Some(Some(context)) if !context.is_s11 || !request.is_s11 => {
                return Err(refusal(CauseValue::REQUEST_REJECTED));
            }
            _ => {}
        }
        // A new connection of a known user ends the earlier one (section 7.2.1).
        let before = request.key().and_then(|key| self.users.get(&key).copied());
        match (known, before) {
            (None, Some(before)) => self.forget_user(before, work),
            (Some(teid), _) => self.end_connection(teid, request.ebi, work),
            (None, None) => {}
        }
        if self.connections >= self.terms.sessions {
            return Err(refusal(CauseValue::NO_RESOURCES));
        }
        // The user no longer exists if the ended connection was its only one.
        let known = known.filter(|teid| self.contexts.contains_key(teid));
        let teid = known.unwrap_or_else(|| self.new_teid());
        let (pdn, cause) = self.establish(teid, &request, work)?;
        let (remote, link) = (pdn.pgw, pdn.link());
        self.add_connection(teid, &request, pdn);
        let Some(pgw) = remote else {
            let context = &self.contexts[&teid];
            let kind = ask.message.message_type.response();
            let mut writer = Writer::message(kind, Some(context.peer.teid), ask.message.sequence);
            writer.element(ElementType::CAUSE, &cause.emit());
            self.describe(&mut writer, teid, request.ebi);
            return Ok(Some(writer));
        };
        if let Err(refused) = self.ask_gateway(ask, teid, link, pgw, work) {
            self.end_connection(teid, request.ebi, work);
            return Err(refused);
        }
        self.put_off(ask);
        Ok(None)
    }

    /// Makes the session of a connection in the user plane. Returns the connection, and the cause with which the
    /// request is accepted.
    fn establish(
        &mut self,
        teid: u32,
        request: &SessionRequest,
        work: &mut Work<'_>,
    ) -> Result<(Pdn, Cause), Refusal> {
        let pgw = self.remote_gateway(request)?;
        let mut pdn = Pdn {
            ebi: request.ebi,
            seid: 0,
            paa: request.paa,
            ambr: request.ambr,
            pgw,
            bearers: request.bearers.clone(),
            prepared: BTreeSet::new(),
        };
        let mut cause = Cause::new(CauseValue::REQUEST_ACCEPTED);
        let mut user = UeAddress::default();
        if pgw.is_none() {
            (user, cause) = wanted_user(&request.paa, |is_v4| work.up.has_pool(is_v4))?;
        }
        let mut rules = Rules::group();
        rules::add_connection(&mut rules, &pdn);
        for bearer in pdn.bearers.values() {
            rules::add_bearer(&mut rules, &pdn, bearer, user);
        }
        let number = number(teid, pdn.ebi);
        let made = work
            .up
            .establish_local(number, &rules, work.now, work.control);
        let (seid, created) = made.map_err(cause_of)?;
        pdn.seid = seid;
        if pgw.is_none() {
            let chosen = rules::chosen_user(&created).unwrap_or_default();
            let v6 = chosen.v6.or(user.v6);
            pdn.paa = Paa {
                v4: chosen.v4.or(user.v4),
                // The lower half is the interface identifier that the user takes for its first, link-local address.
                v6: v6.map(|it| {
                    (
                        PREFIX_BITS,
                        Ipv6Addr::from_bits(it.to_bits() | u128::from(teid)),
                    )
                }),
            };
        }
        for bearer in pdn.bearers.values_mut() {
            let sides = interfaces(request.is_s11);
            let (uplink, downlink) = rules::chosen_ends(&created, bearer.number, sides);
            bearer.uplink = uplink.unwrap_or(bearer.uplink);
            bearer.downlink = downlink;
        }
        Ok((pdn, cause))
    }

    /// Returns the PDN gateway of a connection if it is another node.
    fn remote_gateway(&self, request: &SessionRequest) -> Result<Option<Endpoint>, Refusal> {
        let address = request.pgw.and_then(|it| it.address());
        let Some(address) = address.filter(|it| request.is_s11 && *it != self.terms.node) else {
            return Ok(None);
        };
        if !self.peers.contains_key(&address) {
            return Err(refusal(CauseValue::REMOTE_PEER_NOT_RESPONDING));
        }
        let teid = request.pgw.map_or(0, |it| it.teid);
        Ok(Some(Endpoint { address, teid }))
    }

    fn add_connection(&mut self, teid: u32, request: &SessionRequest, pdn: Pdn) {
        if let Some(key) = request.key() {
            self.users.insert(key, teid);
        }
        let address = request.sender.address();
        let peer = Endpoint {
            address: address.unwrap_or(self.terms.node),
            teid: request.sender.teid,
        };
        let context = self.contexts.entry(teid).or_insert_with(|| Context {
            peer,
            is_s11: request.is_s11,
            imsi: request.imsi.clone(),
            pdns: Vec::new(),
            is_notified: false,
        });
        context.peer = peer;
        context.pdns.push(pdn);
        self.connections += 1;
    }

    /// Writes the information elements that describe a connection in the response to the request for it.
    pub(super) fn describe(&self, writer: &mut Writer, teid: u32, ebi: u8) {
        let Some(context) = self.contexts.get(&teid) else {
            return;
        };
        let Some(pdn) = context.pdns.iter().find(|it| it.ebi == ebi) else {
            return;
        };
        let own = |interface, teid| FTeid::new(interface, teid, self.terms.node).emit();
        if context.is_s11 {
            writer.element(ElementType::F_TEID, &own(Interface::S11_SGW, teid));
        }
        let gateway = match pdn.pgw {
            None => own(Interface::S5_PGW_C, teid),
            Some(pgw) => FTeid::new(Interface::S5_PGW_C, pgw.teid, pgw.address).emit(),
        };
        writer.instance(ElementType::F_TEID, 1, &gateway);
        writer.element(ElementType::PAA, &pdn.paa.emit());
        writer.element(ElementType::APN_RESTRICTION, &[0]);
        for (ebi, bearer) in &pdn.bearers {
            let mut group = Writer::group();
            group.element(ElementType::EBI, &[*ebi]);
            let accepted = Cause::new(CauseValue::REQUEST_ACCEPTED);
            group.element(ElementType::CAUSE, &accepted.emit());
            let end = bearer.uplink.emit();
            // The endpoint of the PDN gateway has instance 2, even if this node is the PDN gateway.
            let core = match (context.is_s11, &bearer.core) {
                (true, Some(core)) => Some(core.emit()),
                (true, None) => {
                    let interface = Interface::S5_PGW_U;
                    Some(
                        FTeid {
                            interface,
                            ..bearer.uplink
                        }
                        .emit(),
                    )
                }
                (false, _) => None,
            };
            group.instance(
                ElementType::F_TEID,
                if context.is_s11 { 0 } else { 2 },
                &end,
            );
            if let Some(core) = core {
                group.instance(ElementType::F_TEID, 2, &core);
            }
            if !context.is_s11 {
                group.element(ElementType::CHARGING_ID, &bearer.uplink.teid.to_be_bytes());
            }
            writer.grouped(ElementType::BEARER_CONTEXT, 0, &group);
        }
        writer.element(ElementType::RECOVERY, &[self.restart]);
    }

    pub(super) fn delete_session(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let linked = look(elements, ElementType::EBI, 0)?;
        let linked = linked.map(|it| ebi(&it)).transpose()?;
        let (teid, context) = self.context(ask)?;
        let peer = context.peer;
        let only = match &context.pdns[..] {
            [only] => Some(only.ebi),
            _ => None,
        };
        let ebi = linked.or(only);
        let missing = about(CauseValue::CONDITIONAL_IE_MISSING, ElementType::EBI, 0);
        let ebi = ebi.ok_or(missing)?;
        let pdn = context.of_default(ebi);
        let pdn = pdn.ok_or(super::node::no_bearer(0))?;
        let (pgw, link) = (pdn.pgw, pdn.link());
        let indication = look(elements, ElementType::INDICATION, 0)?;
        let is_for_gateway = indication
            .and_then(|it| it.value.first().copied())
            .is_some_and(|flags| flags & OPERATION_INDICATION != 0);
        if let Some(pgw) = pgw.filter(|_| is_for_gateway) {
            self.end_at_gateway(ask, teid, link, (pgw, peer), work)?;
            self.put_off(ask);
            return Ok(None);
        }
        self.end_connection(teid, ebi, work);
        Ok(Some(
            ask.later(peer)
                .writer(refusal(CauseValue::REQUEST_ACCEPTED)),
        ))
    }

    /// Ends the connection that a [`Link`] identifies, unless a later connection has replaced it.
    pub(super) fn end_link(&mut self, teid: u32, link: Link, work: &mut Work<'_>) {
        let context = self.contexts.get_mut(&teid);
        if context.is_some_and(|it| it.of_link(link).is_some()) {
            self.end_connection(teid, link.ebi, work);
        }
    }

    /// Ends a connection of a user, and removes a user without connections.
    pub(super) fn end_connection(&mut self, teid: u32, ebi: u8, work: &mut Work<'_>) {
        let Some(context) = self.contexts.get_mut(&teid) else {
            return;
        };
        let place = context.pdns.iter().position(|it| it.ebi == ebi);
        if let Some(place) = place {
            let gone = context.pdns.remove(place);
            work.up.delete_local(gone.seid, work.control);
            self.connections -= 1;
        }
        if context.pdns.is_empty() {
            let gone = self.contexts.remove(&teid);
            let imsi = gone.map_or_else(Vec::new, |it| it.imsi);
            for key in [(imsi.clone(), true, 0), (imsi, false, ebi)] {
                if self.users.get(&key) == Some(&teid) {
                    self.users.remove(&key);
                }
            }
        }
    }

    /// Ends all connections of a user, and removes the user.
    pub(super) fn forget_user(&mut self, teid: u32, work: &mut Work<'_>) {
        while let Some(pdn) = self.contexts.get(&teid).and_then(|it| it.pdns.first()) {
            let ebi = pdn.ebi;
            self.end_connection(teid, ebi, work);
        }
    }
}

/// Returns the addresses that a user gets, or that are to be chosen, and the cause with which the request is accepted.
/// One address is enough for a user who requests both IP versions.
fn wanted_user(paa: &Paa, has_pool: impl Fn(bool) -> bool) -> Result<(UeAddress, Cause), Refusal> {
    let mut user = UeAddress {
        v4: paa.v4.filter(|it| !it.is_unspecified()),
        v6: paa.v6.map(|it| it.1).filter(|it| it.to_bits() >> 64 != 0),
        ..UeAddress::default()
    };
    user.v6 = user
        .v6
        .map(|it| Ipv6Addr::from_bits(it.to_bits() >> 64 << 64));
    user.choose_v4 = paa.v4.is_some() && user.v4.is_none() && has_pool(true);
    user.choose_v6 = paa.v6.is_some() && user.v6.is_none() && has_pool(false);
    let has_v4 = user.v4.is_some() || user.choose_v4;
    let has_v6 = user.v6.is_some() || user.choose_v6;
    let value = match (has_v4 == paa.v4.is_some(), has_v6 == paa.v6.is_some()) {
        (true, true) => CauseValue::REQUEST_ACCEPTED,
        _ if has_v4 || has_v6 => CauseValue::NEW_PDN_TYPE_DUE_TO_NETWORK_PREFERENCE,
        _ => return Err(refusal(CauseValue::PREFERRED_PDN_TYPE_NOT_SUPPORTED)),
    };
    Ok((user, Cause::new(value)))
}
