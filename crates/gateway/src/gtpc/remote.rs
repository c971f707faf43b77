//! The GTP-C node as a serving gateway only: it creates connections at a PDN gateway, and relays the requests of that
//! gateway to the MME (3GPP TS 23.401 section 4.4.3.2).

use super::ask::{Ask, Refusal, Reply, Work, about, cause_of, ebi, end, look, need, read, refusal};
use super::bearers::{accepted, filters};
use super::context::{Bearer, Endpoint, Link};
use super::node::{Node, no_bearer};
use super::pending::Awaited;
use super::rules;
use taut_wire::gtpc::{
    BearerQos, Cause, CauseValue, ElementType, FTeid, Interface, Message, MessageType, Paa, Writer,
};
use taut_wire::pfcp::Writer as Rules;

impl Node {
    /// Requests a connection from a PDN gateway.
    pub(super) fn ask_gateway(
        &mut self,
        ask: &Ask<'_>,
        teid: u32,
        link: Link,
        pgw: Endpoint,
        work: &mut Work<'_>,
    ) -> Result<(), Refusal> {
        let sequence = self.sequence();
        let context = self.contexts.get_mut(&teid).ok_or(no_bearer(0))?;
        let peer = context.peer;
        let pdn = context.of_link(link).ok_or(no_bearer(0))?;
        let kind = MessageType::CREATE_SESSION_REQUEST;
        let mut writer = Writer::message(kind, Some(0), sequence);
        let own = FTeid::new(Interface::S5_SGW_C, teid, self.terms.node);
        for element in ask.message.elements.flatten() {
            match (element.element_type, element.instance) {
                (ElementType::F_TEID, 0) => writer.element(ElementType::F_TEID, &own.emit()),
                (ElementType::F_TEID, 1) | (ElementType::RECOVERY, 0) => &mut writer,
                (ElementType::BEARER_CONTEXT, 0) => {
                    let number = ebi(&need(element.group(), ElementType::EBI, 0)?)?;
                    let bearer = pdn.bearers.get(&number).ok_or(no_bearer(0))?;
                    writer.grouped(ElementType::BEARER_CONTEXT, 0, &at_gateway(number, bearer))
                }
                _ => writer.copied(&element),
            };
        }
        writer.element(ElementType::RECOVERY, &[self.restart]);
        let awaited = Awaited::Session {
            teid,
            link,
            reply: ask.later(peer),
        };
        self.send(pgw, sequence, writer, awaited, work)
    }

    /// Completes a connection from the PDN gateway's response, and responds to the MME.
    pub(super) fn gateway_answered(
        &mut self,
        teid: u32,
        link: Link,
        reply: &Reply,
        message: &Message<'_>,
        work: &mut Work<'_>,
    ) {
        match self.connected(teid, link, message, work) {
            Ok(cause) => {
                let mut writer = reply.writer(cause);
                self.describe(&mut writer, teid, link.ebi);
                self.reply(reply, writer, work);
            }
            Err(cause) => {
                self.end_link(teid, link, work);
                self.reply_refusal(reply, cause, work);
            }
        }
    }

    fn connected(
        &mut self,
        teid: u32,
        link: Link,
        message: &Message<'_>,
        work: &mut Work<'_>,
    ) -> Result<Cause, Refusal> {
        let elements = message.elements;
        let wrong = refusal(CauseValue::INVALID_REPLY_FROM_REMOTE_PEER);
        let cause = need(elements, ElementType::CAUSE, 0).map_err(|_| wrong)?;
        let cause = Cause {
            is_remote: true,
            offending: None,
            ..Cause::parse(cause.value).map_err(|_| wrong)?
        };
        if !cause.value.is_acceptance() {
            return Err(cause);
        }
        let gateway = end(elements, 1).ok().flatten().ok_or(wrong)?;
        let context = self.contexts.get_mut(&teid);
        let pdn = context.and_then(|it| it.of_link(link));
        let pdn = pdn.ok_or(refusal(CauseValue::CONTEXT_NOT_FOUND))?;
        let address = gateway.address().ok_or(wrong)?;
        pdn.pgw = Some(Endpoint {
            address,
            teid: gateway.teid,
        });
        if let Ok(Some(paa)) = look(elements, ElementType::PAA, 0)
            && let Ok(Some(paa)) = Paa::parse(paa.value)
        {
            pdn.paa = paa;
        }
        let mut rules = Rules::group();
        for group in elements.all(ElementType::BEARER_CONTEXT, 0) {
            let number = need(group.group(), ElementType::EBI, 0).and_then(|it| ebi(&it));
            let core = end(group.group(), 2).ok().flatten();
            let (Ok(number), Some(core)) = (number, core) else {
                continue;
            };
            if let Some(bearer) = pdn.bearers.get_mut(&number) {
                rules::move_core(&mut rules, bearer, &core);
                bearer.core = Some(core);
            }
        }
        if pdn
            .bearers
            .get(&link.ebi)
            .is_none_or(|it| it.core.is_none())
        {
            return Err(wrong);
        }
        let done = work
            .up
            .modify_local(pdn.seid, &rules, work.now, work.control);
        done.map_err(cause_of)?;
        Ok(cause)
    }

    /// Requests the end of a connection from the PDN gateway.
    pub(super) fn end_at_gateway(
        &mut self,
        ask: &Ask<'_>,
        teid: u32,
        link: Link,
        (pgw, peer): (Endpoint, Endpoint),
        work: &mut Work<'_>,
    ) -> Result<(), Refusal> {
        let sequence = self.sequence();
        let kind = MessageType::DELETE_SESSION_REQUEST;
        let mut writer = Writer::message(kind, Some(pgw.teid), sequence);
        writer.element(ElementType::EBI, &[link.ebi]);
        let awaited = Awaited::SessionEnd {
            teid,
            link,
            reply: ask.later(peer),
        };
        self.send(pgw, sequence, writer, awaited, work)
    }

    /// Returns the connection that a request of a PDN gateway is about, if it belongs to that gateway. The result has
    /// this node's endpoint, the connection, and the endpoints of the MME and the gateway.
    fn of_gateway(
        &mut self,
        ask: &Ask<'_>,
        find: impl Fn(&super::context::Pdn) -> bool,
    ) -> Result<(u32, Link, Endpoint, Endpoint), Refusal> {
        let from = ask.from.ip();
        let (teid, context) = self.context(ask)?;
        let peer = context.peer;
        let mut pdns = context.pdns.iter();
        let pdn = pdns.find(|it| it.pgw.is_some_and(|it| it.address == from) && find(it));
        let pdn = pdn.ok_or(no_bearer(0))?;
        let pgw = pdn.pgw.ok_or(no_bearer(0))?;
        Ok((teid, pdn.link(), peer, pgw))
    }

    /// Relays a PDN gateway's request to create bearers to the MME.
    pub(super) fn relay_new_bearers(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let linked = ebi(&need(elements, ElementType::EBI, 0)?)?;
        need(elements, ElementType::BEARER_CONTEXT, 0)?;
        let (teid, link, peer, pgw) = self.of_gateway(ask, |it| it.ebi == linked)?;
        let sequence = self.sequence();
        let kind = MessageType::CREATE_BEARER_REQUEST;
        let mut writer = Writer::message(kind, Some(peer.teid), sequence);
        let mut bearers = Vec::new();
        for element in elements.flatten() {
            if (element.element_type, element.instance) != (ElementType::BEARER_CONTEXT, 0) {
                writer.copied(&element);
                continue;
            }
            match self.prepare_relayed(teid, link, &element, work) {
                Ok(bearer) => {
                    let mut group = Writer::group();
                    for inner in element.group().flatten() {
                        if inner.element_type != ElementType::F_TEID {
                            group.copied(&inner);
                        }
                    }
                    group.instance(ElementType::F_TEID, 0, &bearer.uplink.emit());
                    if let Some(core) = bearer.core {
                        group.instance(ElementType::F_TEID, 1, &core.emit());
                    }
                    writer.grouped(ElementType::BEARER_CONTEXT, 0, &group);
                    bearers.push(bearer);
                }
                Err(refused) => {
                    for bearer in &bearers {
                        self.remove_prepared(teid, link, bearer, work);
                    }
                    return Err(refused);
                }
            }
        }
        let awaited = Awaited::Created {
            teid,
            link,
            bearers: bearers.clone(),
            reply: Some(ask.later(pgw)),
        };
        if let Err(refused) = self.send(peer, sequence, writer, awaited, work) {
            for bearer in &bearers {
                self.remove_prepared(teid, link, bearer, work);
            }
            return Err(refused);
        }
        self.put_off(ask);
        Ok(None)
    }

    fn prepare_relayed(
        &mut self,
        teid: u32,
        link: Link,
        element: &taut_wire::gtpc::Element<'_>,
        work: &mut Work<'_>,
    ) -> Result<Bearer, Refusal> {
        let group = element.group();
        let flows = need(group, ElementType::BEARER_TFT, 0)?;
        let qos = need(group, ElementType::BEARER_QOS, 0)?;
        let qos = read(&qos, BearerQos::parse)?;
        let missing = about(CauseValue::MANDATORY_IE_MISSING, ElementType::F_TEID, 1);
        let core = end(group, 1)?.ok_or(missing)?;
        let filters = filters(&flows)?;
        self.prepare_bearer(teid, link, (qos, filters, Some(core)), work)
    }

    /// Completes new bearers that the MME's response accepts, and removes the others. Responds to the PDN gateway if it
    /// has requested the bearers.
    pub(super) fn created(
        &mut self,
        teid: u32,
        link: Link,
        bearers: Vec<Bearer>,
        reply: Option<&Reply>,
        message: Option<&Message<'_>>,
        work: &mut Work<'_>,
    ) {
        let is_s11 = self.contexts.get(&teid).is_none_or(|it| it.is_s11);
        let found = message.map_or_else(Vec::new, |it| accepted(it.elements, is_s11));
        let mut groups = Vec::new();
        for (place, bearer) in bearers.into_iter().enumerate() {
            let new = found.get(place).copied().flatten();
            let (downlink, core) = (bearer.downlink, bearer.core);
            let done = match new {
                Some(new) => self.complete_bearer(teid, link, new, bearer.clone(), work),
                None => Err(refusal(CauseValue::REQUEST_REJECTED)),
            };
            if done.is_err() {
                self.remove_prepared(teid, link, &bearer, work);
            }
            let mut group = Writer::group();
            group.element(ElementType::EBI, &[new.map_or(0, |it| it.0)]);
            let accepted = refusal(CauseValue::REQUEST_ACCEPTED);
            let cause = done.err().unwrap_or(accepted);
            group.element(ElementType::CAUSE, &cause.emit());
            for (instance, end) in [(2, downlink), (3, core)] {
                if let Some(end) = end {
                    group.instance(ElementType::F_TEID, instance, &end.emit());
                }
            }
            groups.push((cause.value.is_acceptance(), group));
        }
        let Some(reply) = reply else {
            return;
        };
        let value = match groups.iter().filter(|it| it.0).count() {
            0 => CauseValue::REQUEST_REJECTED,
            all if all == groups.len() => CauseValue::REQUEST_ACCEPTED,
            _ => CauseValue::PARTIALLY_ACCEPTED,
        };
        let mut writer = reply.writer(refusal(value));
        for (_, group) in &groups {
            writer.grouped(ElementType::BEARER_CONTEXT, 0, group);
        }
        self.reply(reply, writer, work);
    }

    /// Relays a PDN gateway's request for changes of bearers to the MME.
    pub(super) fn relay_changed_bearers(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let first = need(elements, ElementType::BEARER_CONTEXT, 0)?;
        let first = ebi(&need(first.group(), ElementType::EBI, 0)?)?;
        let (_, _, peer, pgw) = self.of_gateway(ask, |it| it.bearers.contains_key(&first))?;
        let reply = ask.later(pgw);
        self.pass_on(ask, peer, Awaited::Changed { reply }, work)
    }

    /// Relays a PDN gateway's request for the removal of bearers to the MME.
    pub(super) fn relay_removed_bearers(
        &mut self,
        ask: &Ask<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let elements = ask.message.elements;
        let linked = look(elements, ElementType::EBI, 0)?;
        let linked = linked.map(|it| ebi(&it)).transpose()?;
        let mut bearers = Vec::new();
        if linked.is_none() {
            let first = look(elements, ElementType::EBI, 1)?;
            let missing = about(CauseValue::CONDITIONAL_IE_MISSING, ElementType::EBI, 1);
            first.ok_or(missing)?;
            for element in elements.all(ElementType::EBI, 1) {
                bearers.push(ebi(&element)?);
            }
        }
        let is_it = |pdn: &super::context::Pdn| match linked {
            Some(linked) => pdn.ebi == linked,
            None => bearers.iter().all(|ebi| pdn.bearers.contains_key(ebi)),
        };
        let (teid, link, peer, pgw) = self.of_gateway(ask, is_it)?;
        let awaited = Awaited::Removed {
            teid,
            link,
            bearers,
            reply: Some(ask.later(pgw)),
        };
        self.pass_on(ask, peer, awaited, work)
    }

    /// Relays the information elements of a PDN gateway's request to an MME.
    fn pass_on(
        &mut self,
        ask: &Ask<'_>,
        peer: Endpoint,
        awaited: Awaited,
        work: &mut Work<'_>,
    ) -> Result<Option<Writer>, Refusal> {
        let sequence = self.sequence();
        let kind = ask.message.message_type;
        let mut writer = Writer::message(kind, Some(peer.teid), sequence);
        for element in ask.message.elements.flatten() {
            writer.copied(&element);
        }
        self.send(peer, sequence, writer, awaited, work)?;
        self.put_off(ask);
        Ok(None)
    }

    /// Relays a response of an MME to the PDN gateway.
    pub(super) fn pass_back(&mut self, reply: &Reply, message: &Message<'_>, work: &mut Work<'_>) {
        let mut writer = Writer::message(reply.kind, Some(reply.teid), reply.sequence);
        for element in message.elements.flatten() {
            writer.copied(&element);
        }
        self.reply(reply, writer, work);
    }
}

/// Returns the bearer context by which a serving gateway describes a bearer to a PDN gateway.
fn at_gateway(ebi: u8, bearer: &Bearer) -> Writer {
    let mut group = Writer::group();
    group.element(ElementType::EBI, &[ebi]);
    if let Some(end) = bearer.downlink {
        group.instance(ElementType::F_TEID, 2, &end.emit());
    }
    group.element(ElementType::BEARER_QOS, &bearer.qos.emit());
    group
}
