//! A PFCP session: the rules that the control plane has sent (3GPP TS 29.244 section 7.5), and the state that belongs
//! to them. `session/follow.rs` derives the session's bearers.

mod bearers;
mod follow;
mod rules;

use super::super::buffer::Held;
use super::super::sorted::Sorted;
use super::super::{Match, Wish};
use super::element::{find, look, of_type};
use super::filter::Filters;
use super::refusal::Refusal;
use super::settings::Terms;
use super::urr::{ASKED, ENDED, Moment, Urr};
use bearers::Followed;
use rules::{Bar, Far, NOTIFY, Pdr, Qer};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use taut_wire::pfcp::{
    Cause, Element, ElementType, Elements, FTeid, FailedRule, OuterHeaderCreation, UeAddress,
    Writer,
};

/// The limit on a session's usage rules, and on usage reports in a response: more would not fit into a message.
const MOST_REPORTS: usize = 512;
/// Flags of a session modification request (TS 29.244 section 8.2.31).
const DROP_BUFFERED: u8 = 1;
const SEND_END_MARKER: u8 = 2;
const REPORT_ALL: u8 = 4;
/// The supported values of outer header removal (TS 29.244 section 8.2.64): GTP-U over IPv4, over IPv6, or over either.
/// Open5GS sends 6, which means either.
const GTPU_REMOVALS: [u8; 3] = [0, 1, 6];

/// The actions and reports that a message requests in addition to changes of rules.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub created: Vec<CreatedPdr>,
    /// The tunnels for which an end marker is due, without duplicates.
    pub ended: Vec<OuterHeaderCreation>,
    /// The usage reports for the response.
    pub reports: Vec<Writer>,
    /// True if buffered packets are to be dropped.
    pub drops_held: bool,
}

/// The choice of tunnel identifiers by the gateway, and the addresses of the gateway's tunnel endpoints.
pub(super) trait Choose {
    /// Returns a tunnel identifier that no bearer has; none if no free identifier was found.
    fn teid(&mut self) -> Option<u32>;
    fn v4(&self) -> Option<Ipv4Addr>;
    fn v6(&self) -> Option<Ipv6Addr>;
    /// Returns an address for the user of a session, from the pools of the IP version (`is_v4`).
    fn user(&mut self, is_v4: bool) -> Result<IpAddr, Refusal>;
}

/// A detection rule with a tunnel endpoint or a user's address chosen by the gateway, for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct CreatedPdr {
    pub id: u16,
    pub teid: Option<FTeid>,
    pub user: Option<UeAddress>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Session {
    /// The session identifier (SEID) that this gateway assigned.
    pub up_seid: u64,
    /// The session identifier (SEID) that the control plane assigned.
    pub cp_seid: u64,
    /// The address of the peer that the session belongs to; none if the session has ended but its bearers are still in
    /// the table.
    pub owner: Option<IpAddr>,
    pdrs: Sorted<u16, Pdr>,
    fars: Sorted<u32, Far>,
    qers: Sorted<u32, Qer>,
    urrs: Sorted<u32, Urr>,
    bars: Sorted<u8, Bar>,
    /// The state of buffered packets, by forwarding rule. Rules that no longer buffer packets stay in the map.
    held: Sorted<u32, Arc<Held>>,
    /// The tunnel identifiers that the gateway chose, by the CHOOSE ID of the requests.
    chosen: BTreeMap<u8, u32>,
    /// The addresses that the session's user got from the gateway's pools.
    pub given: Vec<IpAddr>,
    /// The session's bearers in the table, and the classifier of their packets.
    pub followed: Followed,
}

impl Session {
    pub fn new(up_seid: u64, cp_seid: u64, owner: IpAddr) -> Self {
        Self {
            up_seid,
            cp_seid,
            owner: Some(owner),
            ..Self::default()
        }
    }

    /// Applies the rules of a request in this order: removals, then the rules to which other rules refer, then the
    /// referring rules. The session then has at most `most_rules` rules.
    pub fn apply(
        &mut self,
        elements: Elements<'_>,
        choose: &mut impl Choose,
        most_rules: usize,
        moment: &Moment,
    ) -> Result<Asked, Refusal> {
        let mut asked = Asked::default();
        let all: Vec<Element<'_>> = elements.collect::<Result<_, _>>()?;
        self.remove(&all)?;
        self.remove_urrs(&all, moment, &mut asked.reports)?;
        self.make_bars(&all)?;
        self.make_urrs(&all, moment)?;
        self.make_qers(&all)?;
        self.make_fars(&all, &mut asked.ended)?;
        self.make_pdrs(&all, choose, &mut asked.created)?;
        if self.rules() > most_rules {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        let flags = of_type(&all, ElementType::PFCPSMREQ_FLAGS).next();
        let flags = flags.map_or(Ok(0), |flags| flags.u8())?;
        asked.drops_held = flags & DROP_BUFFERED != 0;
        self.report(&all, flags & REPORT_ALL != 0, moment, &mut asked.reports)?;
        if self.urrs.len().max(asked.reports.len()) > MOST_REPORTS {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        Ok(asked)
    }

    /// Removes the session's rules that the request lists for removal, except usage rules.
    fn remove(&mut self, elements: &[Element<'_>]) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::REMOVE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            let gone = self.pdrs.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
        }
        for rule in of_type(elements, ElementType::REMOVE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            let gone = self.fars.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Far(id)))?;
            self.held.remove(&id);
        }
        for rule in of_type(elements, ElementType::REMOVE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            let gone = self.qers.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Qer(id)))?;
        }
        for rule in of_type(elements, ElementType::REMOVE_BAR) {
            let id = find(rule, ElementType::BAR_ID)?.u8()?;
            let gone = self.bars.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Bar(id)))?;
        }
        Ok(())
    }

    /// Removes the session's usage rules that the request lists for removal, and adds their last reports to `reports`.
    fn remove_urrs(
        &mut self,
        elements: &[Element<'_>],
        moment: &Moment,
        reports: &mut Vec<Writer>,
    ) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::REMOVE_URR) {
            let id = find(rule, ElementType::URR_ID)?.u32()?;
            let gone = self.urrs.remove(&id);
            let mut gone = gone.ok_or(Refusal::rule(FailedRule::Urr(id)))?;
            reports.push(gone.report(ENDED, moment));
            for pdr in self.pdrs.values_mut() {
                pdr.urrs.remove(&id);
            }
        }
        Ok(())
    }

    /// Creates and updates buffering rules.
    fn make_bars(&mut self, elements: &[Element<'_>]) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::CREATE_BAR) {
            let id = find(rule, ElementType::BAR_ID)?.u8()?;
            self.bars.insert(id, Bar::default().with(rule)?);
        }
        for rule in of_type(elements, ElementType::UPDATE_BAR) {
            let id = find(rule, ElementType::BAR_ID)?.u8()?;
            let bar = self.bars.get_mut(&id);
            let bar = bar.ok_or(Refusal::rule(FailedRule::Bar(id)))?;
            *bar = bar.with(rule)?;
        }
        Ok(())
    }

    /// Creates and updates usage rules.
    fn make_urrs(&mut self, elements: &[Element<'_>], moment: &Moment) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::CREATE_URR) {
            let id = find(rule, ElementType::URR_ID)?.u32()?;
            find(rule, ElementType::MEASUREMENT_METHOD)?;
            find(rule, ElementType::REPORTING_TRIGGERS)?;
            let urr = Urr::new(self.up_seid, id, moment).with(rule, moment)?;
            self.urrs.insert(id, urr);
        }
        for rule in of_type(elements, ElementType::UPDATE_URR) {
            let id = find(rule, ElementType::URR_ID)?.u32()?;
            let before = self.urrs.get(&id).cloned();
            let before = before.ok_or(Refusal::rule(FailedRule::Urr(id)))?;
            self.urrs.insert(id, before.with(rule, moment)?);
        }
        Ok(())
    }

    /// Creates and updates QoS enforcement rules.
    fn make_qers(&mut self, elements: &[Element<'_>]) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::CREATE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            find(rule, ElementType::GATE_STATUS)?;
            self.qers.insert(id, Qer::default().with(rule)?);
        }
        for rule in of_type(elements, ElementType::UPDATE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            let qer = self.qers.get_mut(&id);
            let qer = qer.ok_or(Refusal::rule(FailedRule::Qer(id)))?;
            *qer = qer.with(rule)?;
        }
        Ok(())
    }

    /// Creates and updates forwarding rules, and adds to `ended` the tunnels that need an end marker.
    fn make_fars(
        &mut self,
        elements: &[Element<'_>],
        ended: &mut Vec<OuterHeaderCreation>,
    ) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::CREATE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            find(rule, ElementType::APPLY_ACTION)?;
            self.fars.insert(id, Far::default().with(id, rule)?);
            self.make_room(id);
        }
        for rule in of_type(elements, ElementType::UPDATE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            let far = self.fars.get_mut(&id);
            let far = far.ok_or(Refusal::rule(FailedRule::Far(id)))?;
            let before = far.creation;
            *far = far.with(id, rule)?;
            let after = far.creation;
            self.make_room(id);
            if let Some(parameters) = look(rule, ElementType::UPDATE_FORWARDING_PARAMETERS)?
                && let Some(flags) = look(&parameters, ElementType::PFCPSMREQ_FLAGS)?
                && flags.u8()? & SEND_END_MARKER != 0
                && let Some(before) = before.filter(|_| before != after)
                && !ended.contains(&before)
            {
                ended.push(before);
            }
        }
        Ok(())
    }

    /// Creates and updates detection rules, and adds to `created` those with a tunnel endpoint that the gateway has
    /// chosen.
    fn make_pdrs(
        &mut self,
        elements: &[Element<'_>],
        choose: &mut impl Choose,
        created: &mut Vec<CreatedPdr>,
    ) -> Result<(), Refusal> {
        for rule in of_type(elements, ElementType::CREATE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            find(rule, ElementType::PRECEDENCE)?;
            find(rule, ElementType::PDI)?;
            let pdr = self.detection(id, Pdr::default(), rule, choose, created)?;
            self.pdrs.insert(id, pdr);
        }
        for rule in of_type(elements, ElementType::UPDATE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            let before = self.pdrs.get(&id).cloned();
            let before = before.ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
            let pdr = self.detection(id, before, rule, choose, created)?;
            self.pdrs.insert(id, pdr);
        }
        Ok(())
    }

    /// Adds usage reports to `reports`: of the usage rules that the elements request, and of all usage rules if
    /// `is_of_all` is set.
    fn report(
        &mut self,
        elements: &[Element<'_>],
        is_of_all: bool,
        moment: &Moment,
        reports: &mut Vec<Writer>,
    ) -> Result<(), Refusal> {
        let mut wanted = BTreeSet::new();
        if is_of_all {
            wanted.extend(self.urrs.keys().copied());
        }
        for query in of_type(elements, ElementType::QUERY_URR) {
            wanted.insert(find(query, ElementType::URR_ID)?.u32()?);
        }
        for id in wanted {
            let urr = self.urrs.get_mut(&id);
            let urr = urr.ok_or(Refusal::rule(FailedRule::Urr(id)))?;
            reports.push(urr.report(ASKED, moment));
        }
        Ok(())
    }

    /// Prepares the buffering state of a forwarding rule if the rule buffers packets.
    fn make_room(&mut self, far: u32) {
        let keeps = self.fars.get(&far).is_some_and(|it| it.keeps());
        if keeps && !self.held.contains_key(&far) {
            self.held
                .insert(far, Arc::new(Held::new(self.up_seid, far)));
        }
    }

    /// Activates the state that workers use in addition to the table. Called once the complete request is granted.
    pub fn arm(&mut self, terms: &Terms, moment: &Moment) {
        for urr in self.urrs.values_mut() {
            urr.arm(moment.now);
        }
        for (id, held) in self.held.iter() {
            let far = self.fars.get(id).copied().unwrap_or_default();
            let packets = far.bar.and_then(|bar| self.bars.get(&bar)?.packets);
            let most = packets
                .map_or(usize::MAX, usize::from)
                .min(terms.session_held);
            held.limit(most as u32, far.action & NOTIFY != 0);
            if !far.keeps() {
                held.tell_again();
            }
        }
    }

    /// Returns the usage rule with the given number; none if the session has no such rule.
    pub fn urr(&mut self, id: u32) -> Option<&mut Urr> {
        self.urrs.get_mut(&id)
    }

    /// Returns the numbers of all usage rules, and the time of the next check of each.
    pub fn timers(&self) -> impl Iterator<Item = (u32, std::time::Instant)> {
        let urrs = self.urrs.iter();
        urrs.filter_map(|(id, urr)| Some((*id, urr.due?)))
    }

    /// Returns the last reports of all usage rules, for the end of the session.
    pub fn last_reports(&mut self, moment: &Moment) -> Vec<Writer> {
        let urrs = self.urrs.values_mut();
        urrs.map(|urr| urr.report(ENDED, moment)).collect()
    }

    /// Returns the delay before the control plane is notified of packets buffered by a forwarding rule; none if it
    /// requests no notification.
    pub fn delay(&self, far: u32) -> Option<Duration> {
        let far = self
            .fars
            .get(&far)
            .filter(|it| it.keeps() && it.action & NOTIFY != 0)?;
        let bar = far.bar.and_then(|bar| self.bars.get(&bar));
        Some(bar.map_or(Duration::ZERO, |bar| bar.delay))
    }

    /// Returns the detection rules that use a forwarding rule.
    pub fn detected_for(&self, far: u32) -> impl Iterator<Item = u16> {
        let rules = self.pdrs.iter();
        rules.filter_map(move |(id, pdr)| (pdr.far == Some(far)).then_some(*id))
    }

    /// Re-enables the notification for the next buffered packet.
    pub fn tell_again(&self) {
        self.held.values().for_each(|held| held.tell_again());
    }

    /// Returns the requests that drop all packets buffered for the session.
    pub fn forget_held(&self) -> Vec<Wish> {
        let rules = self.followed.bearers.keys();
        let rules = rules.filter(|it| matches!(it, Match::Rule { .. }));
        rules.map(|matched| Wish::Forget(*matched)).collect()
    }

    /// Returns true if a bearer of the session sends through a tunnel to the given address.
    pub fn sends_to(&self, remote: IpAddr) -> bool {
        let mut bearers = self.followed.bearers.values();
        bearers.any(|it| it.bearer.path().is_some_and(|path| path.remote == remote))
    }

    /// Returns the number of the session's rules of all kinds, plus the number of references from its detection rules
    /// to enforcement rules, usage rules and filters. The session's memory is proportional to this sum.
    pub fn rules(&self) -> usize {
        let named = |pdr: &Pdr| pdr.qers.len() + pdr.urrs.len() + pdr.filters.said.len();
        let named: usize = self.pdrs.values().map(named).sum();
        let others = self.fars.len() + self.qers.len() + self.urrs.len() + self.bars.len();
        self.pdrs.len() + others + named
    }

    /// Returns a detection rule as `rule` creates or changes it; fields that an update omits stay.
    fn detection(
        &mut self,
        id: u16,
        mut pdr: Pdr,
        rule: &Element<'_>,
        choose: &mut impl Choose,
        created: &mut Vec<CreatedPdr>,
    ) -> Result<Pdr, Refusal> {
        if let Some(precedence) = look(rule, ElementType::PRECEDENCE)? {
            pdr.precedence = precedence.u32()?;
        }
        if let Some(removal) = look(rule, ElementType::OUTER_HEADER_REMOVAL)?
            && !GTPU_REMOVALS.contains(&removal.u8()?)
        {
            return Err(Refusal::rule(FailedRule::Pdr(id)));
        }
        if let Some(far) = look(rule, ElementType::FAR_ID)? {
            pdr.far = Some(far.u32()?);
        }
        for (kind, named) in [
            (ElementType::QER_ID, &mut pdr.qers),
            (ElementType::URR_ID, &mut pdr.urrs),
        ] {
            let numbers = numbers(rule, kind)?;
            if !numbers.is_empty() {
                *named = numbers;
            }
        }
        if let Some(pdi) = look(rule, ElementType::PDI)? {
            let is_new = rule.element_type == ElementType::CREATE_PDR;
            self.detect(id, &mut pdr, (&pdi, is_new), choose, created)?;
        }
        Ok(pdr)
    }

    /// Sets the packets that a detection rule matches, from its packet detection information; `is_new` is true if the
    /// rule is created.
    fn detect(
        &mut self,
        id: u16,
        pdr: &mut Pdr,
        (pdi, is_new): (&Element<'_>, bool),
        choose: &mut impl Choose,
        created: &mut Vec<CreatedPdr>,
    ) -> Result<(), Refusal> {
        let mut its = CreatedPdr {
            id,
            teid: None,
            user: None,
        };
        if let Some(source) = look(pdi, ElementType::SOURCE_INTERFACE)? {
            pdr.source = source.u8()? & 0xf;
        } else if is_new {
            return Err(Refusal::missing(ElementType::SOURCE_INTERFACE));
        }
        if let Some(user) = look(pdi, ElementType::UE_IP_ADDRESS)? {
            let user = UeAddress::parse(user.value)?;
            let user = self.given_to(user, choose)?;
            (pdr.v4, pdr.v6) = (user.v4.or(pdr.v4), user.v6.or(pdr.v6));
            if user.choose_v4 || user.choose_v6 {
                let v4 = user.v4.filter(|_| user.choose_v4);
                let v6 = user.v6.filter(|_| user.choose_v6);
                its.user = Some(UeAddress {
                    v4,
                    v6,
                    ..UeAddress::default()
                });
            }
        }
        if let Some(filters) = Filters::of(id, pdi)? {
            pdr.filters = filters;
        }
        let flows = flows(pdi)?;
        if flows != 0 {
            pdr.flows = flows;
        }
        if let Some(end) = look(pdi, ElementType::F_TEID)? {
            its.teid = self.endpoint(pdr, &end, choose)?;
        }
        if its.teid.is_some() || its.user.is_some() {
            created.push(its);
        }
        Ok(())
    }

    /// Returns a user's addresses, including those that the gateway chooses: all rules of a session get the same
    /// addresses.
    fn given_to(
        &mut self,
        mut user: UeAddress,
        choose: &mut impl Choose,
    ) -> Result<UeAddress, Refusal> {
        for (is_chosen, is_v4) in [(user.choose_v4, true), (user.choose_v6, false)] {
            if !is_chosen {
                continue;
            }
            let known = self.given.iter().find(|it| it.is_ipv4() == is_v4).copied();
            let address = match known {
                Some(address) => address,
                None => {
                    let address = choose.user(is_v4)?;
                    self.given.push(address);
                    address
                }
            };
            match address {
                IpAddr::V4(address) => user.v4 = Some(address),
                IpAddr::V6(address) => user.v6 = Some(address),
            }
        }
        Ok(user)
    }

    /// Sets the tunnel endpoint of a detection rule as the element `end` requests. Returns the endpoint if the gateway
    /// has chosen it.
    fn endpoint(
        &mut self,
        pdr: &mut Pdr,
        end: &Element<'_>,
        choose: &mut impl Choose,
    ) -> Result<Option<FTeid>, Refusal> {
        match FTeid::parse(end.value)? {
            FTeid::Chosen { teid: 0, .. } => Err(Refusal::incorrect(ElementType::F_TEID)),
            FTeid::Chosen { teid, .. } => {
                pdr.teid = Some(teid);
                Ok(None)
            }
            FTeid::Choose { v4, v6, id: number } => {
                let known = number.and_then(|number| self.chosen.get(&number).copied());
                // A rule keeps the identifier that was chosen for it before.
                let teid = match known.or(pdr.teid) {
                    Some(teid) => teid,
                    None => choose.teid().ok_or(Refusal::new(Cause::NO_RESOURCES))?,
                };
                if let Some(number) = number {
                    self.chosen.insert(number, teid);
                }
                let v4 = choose.v4().filter(|_| v4);
                let v6 = choose.v6().filter(|_| v6);
                if v4.is_none() && v6.is_none() {
                    return Err(Refusal::new(Cause::INVALID_F_TEID_ALLOCATION));
                }
                pdr.teid = Some(teid);
                Ok(Some(FTeid::Chosen { teid, v4, v6 }))
            }
        }
    }
}

/// Returns the numbers in the information elements of type `kind` of the group `rule`.
fn numbers(rule: &Element<'_>, kind: ElementType) -> Result<BTreeSet<u32>, Refusal> {
    let mut numbers = BTreeSet::new();
    for element in rule.group() {
        let element = element?;
        if element.element_type == kind {
            numbers.insert(element.u32()?);
        }
    }
    Ok(numbers)
}

/// Returns the QoS flows in the packet detection information, one bit each.
fn flows(pdi: &Element<'_>) -> Result<u64, Refusal> {
    let mut flows = 0;
    for element in pdi.group() {
        let element = element?;
        if element.element_type == ElementType::QFI {
            flows |= 1 << (element.u8()? & 0x3f);
        }
    }
    Ok(flows)
}
