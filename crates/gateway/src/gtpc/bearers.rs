//! Bearers of a connected user: their endpoints, idle users, and the creation and deletion of dedicated bearers (3GPP
//! TS 29.274 sections 7.2.3 to 7.2.8, 7.2.21 and 7.2.11).

use super::ask::{Ask, Refusal, Work, about, cause_of, ebi, end, look, need, read, refusal};
use super::context::{Bearer, Endpoint, Link, Pdn, of_number};
use super::node::{Node, no_bearer};
use super::pending::Awaited;
use super::rules::{self, Access};
use super::sessions::interfaces;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use taut_wire::gtpc::{
    BearerQos, Cause, CauseValue, ElementType, Elements, FTeid, Interface, MessageType,
    PacketFilter, TrafficFlow, TrafficFlowOperation, Writer,
};
use taut_wire::pfcp::{UeAddress, Writer as Rules};

/// The rule numbers of bearers for which the MME has not chosen a bearer identity yet.
const NEW_NUMBERS: std::ops::Range<u8> = 16..112;

impl Node {
    pub(super) fn modify_bearer(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let sender = end(elements, 0)?;
        let (_, context) = self.context(ask)?;
        let is_s11 = context.is_s11;
        // The base station's endpoint, or on S5/S8 that of the serving gateway.
        let instance = if is_s11 { 0 } else { 1 };
        let mut moved: BTreeMap<u8, Option<FTeid>> = BTreeMap::new();
        for group in elements.all(ElementType::BEARER_CONTEXT, 0) {
            let ebi = ebi(&need(group.group(), ElementType::EBI, 0)?)?;
            moved.insert(ebi, end(group.group(), instance)?);
        }
        if !moved.is_empty() && moved.keys().all(|ebi| context.of_bearer(*ebi).is_none()) {
            return Err(no_bearer(0));
        }
        for pdn in &mut context.pdns {
            move_bearers(pdn, &moved, work)?;
        }
        if moved.values().any(Option::is_some) {
            context.is_notified = false;
        }
        if let Some(sender) = sender {
            let address = sender.address().unwrap_or(context.peer.address);
            let teid = sender.teid;
            context.peer = Endpoint { address, teid };
        }
        let (peer, mut is_whole) = (context.peer, true);
        let mut groups = Vec::new();
        for ebi in moved.keys() {
            let mut group = Writer::group();
            group.element(ElementType::EBI, &[*ebi]);
            let found = context.of_bearer(*ebi).and_then(|pdn| pdn.bearers.get(ebi));
            let value = match found {
                Some(_) => CauseValue::REQUEST_ACCEPTED,
                None => CauseValue::CONTEXT_NOT_FOUND,
            };
            is_whole &= found.is_some();
            group.element(ElementType::CAUSE, &Cause::new(value).emit());
            if let Some(bearer) = found.filter(|_| is_s11) {
                group.element(ElementType::F_TEID, &bearer.uplink.emit());
            }
            groups.push(group);
        }
        let value = match is_whole {
            true => CauseValue::REQUEST_ACCEPTED,
            false => CauseValue::PARTIALLY_ACCEPTED,
        };
        let mut writer = ask.later(peer).writer(Cause::new(value));
        for group in groups {
            writer.grouped(ElementType::BEARER_CONTEXT, 0, &group);
        }
        Ok(Some(writer))
    }

    pub(super) fn release_access_bearers(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let (_, context) = self.context(ask)?;
        let peer = context.peer;
        for pdn in &mut context.pdns {
            let mut rules = Rules::group();
            for bearer in pdn.bearers.values_mut() {
                bearer.access = None;
                rules::move_access(&mut rules, bearer, Access::Idle, false);
            }
            let done = work
                .up
                .modify_local(pdn.seid, &rules, work.now, work.control);
            done.map_err(cause_of)?;
        }
        context.is_notified = false;
        let accepted = refusal(CauseValue::REQUEST_ACCEPTED);
        Ok(Some(ask.later(peer).writer(accepted)))
    }

    /// Notifies the MME of the first packet that is buffered for an idle user.
    pub(super) fn notify(&mut self, session: u64, far: u32, work: &mut Work<'_>) {
        let (teid, pdn) = of_number(session);
        let sequence = self.sequence();
        let Some(context) = self.contexts.get_mut(&teid) else {
            return;
        };
        let found = context.of_number(pdn, rules::number_of_far(far));
        let Some((ebi, pdn)) = found.filter(|_| !context.is_notified) else {
            return;
        };
        let arp = pdn.bearers.get(&ebi).map_or(0, |it| it.qos.arp);
        let peer = context.peer;
        context.is_notified = true;
        let kind = MessageType::DOWNLINK_DATA_NOTIFICATION;
        let mut writer = Writer::message(kind, Some(peer.teid), sequence);
        writer.element(ElementType::EBI, &[ebi]);
        writer.element(ElementType::ARP, &[arp]);
        self.counts.add(super::counts::Counted::Notified, 1);
        let awaited = Awaited::Notification { teid };
        if self.send(peer, sequence, writer, awaited, work).is_err() {
            self.unreachable(teid, work);
        }
    }

    /// Drops the packets that are buffered for a user whom the MME could not reach. The next packet that is buffered
    /// for the user is reported again.
    pub(super) fn unreachable(&mut self, teid: u32, work: &mut Work<'_>) {
        let Some(context) = self.contexts.get_mut(&teid) else {
            return;
        };
        context.is_notified = false;
        for pdn in &context.pdns {
            if pdn.bearers.values().any(|it| it.access.is_some()) {
                continue;
            }
            let mut rules = Rules::group();
            rules::drop_buffered(&mut rules);
            let _ = work
                .up
                .modify_local(pdn.seid, &rules, work.now, work.control);
        }
    }

    /// Prepares a dedicated bearer that a user requests (TS 29.274 section 7.2.5), and requests its creation from the
    /// MME.
    pub(super) fn bearer_resource(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let linked = ebi(&need(elements, ElementType::EBI, 0)?)?;
        let transaction = need(elements, ElementType::PTI, 0)?;
        let flows = need(elements, ElementType::TAD, 0)?;
        let qos = look(elements, ElementType::FLOW_QOS, 0)?;
        let filters = filters(&flows)?;
        let (teid, context) = self.context(ask)?;
        let (peer, is_s11) = (context.peer, context.is_s11);
        let pdn = context.of_default(linked).ok_or(no_bearer(0))?;
        if pdn.pgw.is_some() {
            return Err(refusal(CauseValue::SERVICE_NOT_SUPPORTED));
        }
        let link = pdn.link();
        let arp = pdn.bearers.get(&linked).map_or(0, |it| it.qos.arp);
        // The QoS of a flow has the layout of a bearer's QoS, without the first byte.
        let whole = qos.map(|it| [&[arp][..], it.value].concat());
        let qos = match &whole {
            Some(value) => BearerQos::parse(value)
                .map_err(|_| about(CauseValue::INVALID_LENGTH, ElementType::FLOW_QOS, 0))?,
            None => BearerQos {
                arp,
                qci: 9,
                ..BearerQos::default()
            },
        };
        let bearer = self.prepare_bearer(teid, link, (qos, filters, None), work)?;
        let kind = MessageType::CREATE_BEARER_REQUEST;
        let mut writer = Writer::message(kind, Some(peer.teid), ask.message.sequence);
        writer.copied(&transaction);
        writer.element(ElementType::EBI, &[linked]);
        let mut group = Writer::group();
        group.element(ElementType::EBI, &[0]);
        group.element(ElementType::BEARER_TFT, &template(&flows));
        let instance = if is_s11 { 0 } else { 1 };
        group.instance(ElementType::F_TEID, instance, &bearer.uplink.emit());
        group.element(ElementType::BEARER_QOS, &qos.emit());
        writer.grouped(ElementType::BEARER_CONTEXT, 0, &group);
        let awaited = Awaited::Created {
            teid,
            link,
            bearers: vec![bearer.clone()],
            reply: None,
        };
        let sent = self.send(peer, ask.message.sequence, writer, awaited, work);
        if let Err(refused) = sent {
            self.remove_prepared(teid, link, &bearer, work);
            return Err(refused);
        }
        Ok(None)
    }

    /// Adds a bearer without its filters to the table, before the MME has accepted the bearer.
    pub(super) fn prepare_bearer(
        &mut self,
        teid: u32,
        link: Link,
        (qos, filters, core): (BearerQos, BTreeMap<u8, PacketFilter>, Option<FTeid>),
        work: &mut Work<'_>,
    ) -> Result<Bearer, Refusal> {
        let context = self.contexts.get_mut(&teid).ok_or(no_bearer(0))?;
        let sides = interfaces(context.is_s11);
        let pdn = context.of_link(link).ok_or(no_bearer(0))?;
        let used = |number: &u8| {
            pdn.prepared.contains(number) || pdn.bearers.values().any(|it| it.number == *number)
        };
        let mut free = NEW_NUMBERS.filter(|number| !used(number));
        let number = free.next().ok_or(refusal(CauseValue::NO_RESOURCES))?;
        let mut bearer = Bearer {
            number,
            qos,
            uplink: FTeid::new(Interface::S1U_SGW, 0, Ipv4Addr::UNSPECIFIED.into()),
            downlink: None,
            access: None,
            core,
            filters,
        };
        let mut rules = Rules::group();
        rules::add_bearer(&mut rules, pdn, &bearer, UeAddress::default());
        let made = work
            .up
            .modify_local(pdn.seid, &rules, work.now, work.control);
        let (uplink, downlink) = rules::chosen_ends(&made.map_err(cause_of)?, number, sides);
        bearer.uplink = uplink.unwrap_or(bearer.uplink);
        bearer.downlink = downlink;
        pdn.prepared.insert(number);
        Ok(bearer)
    }

    /// Removes a bearer that no MME has accepted.
    pub(super) fn remove_prepared(
        &mut self,
        teid: u32,
        link: Link,
        bearer: &Bearer,
        work: &mut Work<'_>,
    ) {
        let context = self.contexts.get_mut(&teid);
        let Some(pdn) = context.and_then(|it| it.of_link(link)) else {
            return;
        };
        pdn.prepared.remove(&bearer.number);
        let mut rules = Rules::group();
        rules::remove_bearer(&mut rules, pdn, bearer, false);
        let _ = work
            .up
            .modify_local(pdn.seid, &rules, work.now, work.control);
    }

    /// Sets a prepared bearer's identifier and endpoint from the MME's response, and adds its filters.
    pub(super) fn complete_bearer(
        &mut self,
        teid: u32,
        link: Link,
        (ebi, access): (u8, FTeid),
        mut bearer: Bearer,
        work: &mut Work<'_>,
    ) -> Result<(), Refusal> {
        let context = self.contexts.get_mut(&teid).ok_or(no_bearer(0))?;
        if context.of_bearer(ebi).is_some() {
            return Err(refusal(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER));
        }
        let pdn = context.of_link(link).ok_or(no_bearer(0))?;
        let mut rules = Rules::group();
        rules::move_access(&mut rules, &bearer, Access::At(access), false);
        rules::add_filters(&mut rules, pdn, &bearer);
        let made = work
            .up
            .modify_local(pdn.seid, &rules, work.now, work.control);
        made.map_err(cause_of)?;
        bearer.access = Some(access);
        pdn.prepared.remove(&bearer.number);
        pdn.bearers.insert(ebi, bearer);
        Ok(())
    }

    /// Sends the MME a request to delete the bearers that the MME's command names (TS 29.274 section 7.2.17.1).
    pub(super) fn delete_bearer_command(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        need(elements, ElementType::BEARER_CONTEXT, 0)?;
        let mut ebis = Vec::new();
        for group in elements.all(ElementType::BEARER_CONTEXT, 0) {
            ebis.push(ebi(&need(group.group(), ElementType::EBI, 0)?)?);
        }
        let (teid, context) = self.context(ask)?;
        let peer = context.peer;
        let first = ebis.first().copied().unwrap_or(0);
        let pdn = context.of_bearer(first).ok_or(no_bearer(0))?;
        if ebis.iter().any(|ebi| !pdn.bearers.contains_key(ebi)) {
            return Err(no_bearer(0));
        }
        if pdn.pgw.is_some() {
            return Err(refusal(CauseValue::SERVICE_NOT_SUPPORTED));
        }
        let (linked, link) = (pdn.ebi, pdn.link());
        if ebis.contains(&linked) {
            ebis.clear();
        }
        let kind = MessageType::DELETE_BEARER_REQUEST;
        let mut writer = Writer::message(kind, Some(peer.teid), ask.message.sequence);
        if ebis.is_empty() {
            writer.element(ElementType::EBI, &[linked]);
        }
        for ebi in &ebis {
            writer.instance(ElementType::EBI, 1, &[*ebi]);
        }
        let awaited = Awaited::Removed {
            teid,
            link,
            bearers: ebis,
            reply: None,
        };
        self.send(peer, ask.message.sequence, writer, awaited, work)?;
        Ok(None)
    }

    /// Removes the bearers `ebis` of a connection, or the whole connection if `ebis` is empty.
    pub(super) fn remove_bearers(
        &mut self,
        teid: u32,
        link: Link,
        ebis: &[u8],
        work: &mut Work<'_>,
    ) {
        if ebis.is_empty() {
            return self.end_link(teid, link, work);
        }
        let context = self.contexts.get_mut(&teid);
        let Some(pdn) = context.and_then(|it| it.of_link(link)) else {
            return;
        };
        let mut rules = Rules::group();
        let mut gone = Vec::new();
        for ebi in ebis.iter().filter(|ebi| **ebi != link.ebi) {
            if let Some(bearer) = pdn.bearers.remove(ebi) {
                gone.push(bearer);
            }
        }
        for bearer in &gone {
            rules::remove_bearer(&mut rules, pdn, bearer, true);
        }
        let _ = work
            .up
            .modify_local(pdn.seid, &rules, work.now, work.control);
    }
}

/// Sends the packets of a connection's bearers to new endpoints. An end marker follows the last packet to an old
/// endpoint.
fn move_bearers(
    pdn: &mut Pdn,
    moved: &BTreeMap<u8, Option<FTeid>>,
    work: &mut Work<'_>,
) -> Result<(), Refusal> {
    let mut rules = Rules::group();
    let ends = |ebi: &u8| moved.get(ebi).copied().flatten();
    let mut any = false;
    for (ebi, bearer) in &pdn.bearers {
        let Some(access) = ends(ebi) else {
            continue;
        };
        let leaves = bearer.access.is_some_and(|before| before != access);
        rules::move_access(&mut rules, bearer, Access::At(access), leaves);
        any = true;
    }
    if !any {
        return Ok(());
    }
    let done = work
        .up
        .modify_local(pdn.seid, &rules, work.now, work.control);
    done.map_err(cause_of)?;
    for (ebi, bearer) in &mut pdn.bearers {
        bearer.access = ends(ebi).or(bearer.access);
    }
    Ok(())
}

/// Returns the filters, by identifier, in a traffic flow template (TFT) or traffic aggregate that creates a template or
/// adds filters.
pub(super) fn filters(
    element: &taut_wire::gtpc::Element<'_>,
) -> Result<BTreeMap<u8, PacketFilter>, Refusal> {
    let wrong = |value| about(value, element.element_type, element.instance);
    let flow = read(element, TrafficFlow::parse)?;
    let creates = [
        TrafficFlowOperation::CREATE_NEW_TFT,
        TrafficFlowOperation::ADD_PACKET_FILTERS,
    ];
    if !creates.contains(&flow.operation) {
        return Err(wrong(CauseValue::SEMANTIC_ERROR_IN_TFT));
    }
    let mut filters = BTreeMap::new();
    for filter in flow.filters() {
        let filter = filter.map_err(|_| wrong(CauseValue::SYNTACTIC_ERROR_IN_TFT))?;
        filters.insert(filter.id, filter);
    }
    match filters.is_empty() {
        true => Err(wrong(CauseValue::SEMANTIC_ERROR_IN_TFT)),
        false => Ok(filters),
    }
}

/// Returns the traffic flow template (TFT) of a new bearer: the filters of the traffic aggregate `flows`, with the
/// operation that creates a template.
fn template(flows: &taut_wire::gtpc::Element<'_>) -> Vec<u8> {
    let mut value = flows.value.to_vec();
    if let Some(first) = value.first_mut() {
        *first = TrafficFlowOperation::CREATE_NEW_TFT.0 << 5 | *first & 0xf;
    }
    value
}

/// Returns the identifier and the tunnel endpoint of each bearer in a response, in order; none for a bearer that the
/// response refuses.
pub(super) fn accepted(elements: Elements<'_>, is_s11: bool) -> Vec<Option<(u8, FTeid)>> {
    let groups = elements.all(ElementType::BEARER_CONTEXT, 0);
    let read = |group: Elements<'_>| {
        let cause = need(group, ElementType::CAUSE, 0).ok()?;
        let cause = Cause::parse(cause.value).ok()?;
        let number = ebi(&need(group, ElementType::EBI, 0).ok()?).ok()?;
        let access = end(group, if is_s11 { 0 } else { 2 }).ok()??;
        let is_valid = super::context::EBIS.contains(&number);
        (cause.value.is_acceptance() && is_valid).then_some((number, access))
    };
    groups.map(|it| read(it.group())).collect()
}
