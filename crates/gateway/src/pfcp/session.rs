//! PFCP session: its rules as the control plane sends them (3GPP TS 29.244 section 7.5), and the bearers derived from
//! them.
//!
//! A bearer is made for each tunnel and for each user's address. Its packets are sorted if several detection rules
//! apply to that tunnel or address, or if a rule has filters, QoS flows, usage or buffering. The matching rule of the
//! lowest precedence value decides, and has a bearer of its own.

use super::super::buffer::Held;
use super::super::sorting::{Choice, MOST_CHOICES};
use super::super::{Action, Bearer, Limit, Limits, Match, MeterName, Path, Sorting, Wish};
use super::element::{find, look, of_type};
use super::filter::Filters;
use super::refusal::Refusal;
use super::settings::{Applications, Terms};
use super::urr::{ASKED, ENDED, Moment, Urr};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;
use taut_wire::pfcp::{
    Cause, Element, ElementType, Elements, FTeid, FailedRule, Mbr, OuterHeaderCreation, UeAddress,
    Writer,
};

const ACCESS: u8 = 0;
const CORE: u8 = 1;
const N6_LAN: u8 = 2;

const APPLY_DROP: u8 = 1;
const APPLY_FORWARD: u8 = 2;
const APPLY_BUFFER: u8 = 4;
const NOTIFY: u8 = 8;
/// The limit on a session's usage rules, and on reports in a response: more would not fit into a message.
const MOST_REPORTS: usize = 512;
/// Flags of a modification (section 8.2.31).
const DROP_BUFFERED: u8 = 1;
const SEND_END_MARKER: u8 = 2;
const REPORT_ALL: u8 = 4;
/// Unit of the downlink data notification delay (section 8.2.28).
const DELAY_UNIT: Duration = Duration::from_millis(50);
/// The outer headers to remove (section 8.2.64): GTP-U over IPv4, over IPv6, or over either. Open5GS sends 6, which
/// means either.
const GTPU_REMOVALS: [u8; 3] = [0, 1, 6];

/// Packet detection rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Pdr {
    precedence: u32,
    source: u8,
    teid: Option<u32>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    /// The filters on packets of its tunnel or user; all packets match if there are none.
    filters: Filters,
    /// The QoS flows of matching packets, one bit each; 0 for all.
    flows: u64,
    far: Option<u32>,
    qers: BTreeSet<u32>,
    urrs: BTreeSet<u32>,
}

/// Forwarding action rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Far {
    action: u8,
    creation: Option<OuterHeaderCreation>,
    bar: Option<u8>,
}

/// Buffering action rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Bar {
    /// The time from the first buffered packet to its report.
    delay: Duration,
    /// The number of packets that the control plane suggests.
    packets: Option<u8>,
}

/// The sorting of the packets of one tunnel or user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sorted {
    pub number: u32,
    /// The position in the sorting of each detection rule.
    places: BTreeMap<u16, u8>,
    pub sorting: Arc<Sorting>,
}

/// The bearers and sortings derived from a session's rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Followed {
    pub bearers: BTreeMap<Match, Limited>,
    pub sorted: BTreeMap<Match, Sorted>,
}

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

/// QoS enforcement rule: its gates, its mark, and its maximum bit rates. Guaranteed bit rates reserve nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Qer {
    qfi: Option<u8>,
    uplink_closed: bool,
    downlink_closed: bool,
    /// The maximum bit rates. Control planes write 0 for an unlimited rate, which is none here.
    uplink_kbps: Option<NonZeroU64>,
    downlink_kbps: Option<NonZeroU64>,
}

/// A bearer, and the rate limits of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limited {
    pub bearer: Bearer,
    pub limits: Limits,
}

/// A detection rule of a tunnel or a user: its number, its filters, and its bearer.
type Detection = (u16, Choice, Limited);

/// The detection rules of each tunnel and user, in order of evaluation.
struct Detections {
    of_match: BTreeMap<Match, Vec<Detection>>,
    /// The number of bearers that they need.
    bearers: usize,
    most_bearers: usize,
}

impl Detections {
    /// Adds a rule to its tunnel or user. `users` are those that the rule itself names.
    fn add(
        &mut self,
        id: u16,
        limited: Limited,
        choice: &Choice,
        users: &[IpAddr],
    ) -> Result<(), Refusal> {
        let matched = limited.bearer.matched;
        if matched.key() == 0 {
            return Err(Refusal::rule(FailedRule::Pdr(id)));
        }
        let list = self.of_match.entry(matched).or_default();
        // No rule after one that matches all packets is evaluated.
        if list.last().is_some_and(|(_, last, _)| last.takes_all()) {
            return Ok(());
        }
        // The product of rules and tunnels may be large, so the limit is checked first.
        self.bearers += 1;
        if list.len() == MOST_CHOICES || self.bearers > self.most_bearers {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        let mut choice = choice.clone();
        let mut filters = choice.filters.iter();
        if filters.any(|filter| filter.takes_all(users)) {
            choice.filters.clear();
        }
        list.push((id, choice, limited));
        Ok(())
    }
}

impl Followed {
    /// Adds the bearers of a tunnel or a user with several rules, or with one rule that needs more than a bearer
    /// offers. `before` is the previous sorting.
    fn sort(
        &mut self,
        matched: Match,
        number: u32,
        mut list: Vec<Detection>,
        before: Option<&Sorted>,
    ) -> Result<(), Refusal> {
        let none = BTreeMap::new();
        let known = before.map_or(&none, |before| &before.places);
        let places = places(list.iter().map(|(id, ..)| *id), known)?;
        for (id, choice, limited) in &mut list {
            choice.place = places[id];
            limited.bearer.matched = Sorting::match_of(number, choice.place);
            self.bearers.insert(limited.bearer.matched, *limited);
        }
        let sort = Limited {
            bearer: Bearer {
                matched,
                action: Action::Sort { number },
            },
            limits: Limits::default(),
        };
        self.bearers.insert(matched, sort);
        let sorting = Sorting(list.into_iter().map(|(_, choice, _)| choice).collect());
        // An unchanged sorting stays the one that workers have.
        let sorting = match before {
            Some(before) if *before.sorting == sorting => Arc::clone(&before.sorting),
            _ => Arc::new(sorting),
        };
        let sorted = Sorted {
            number,
            places,
            sorting,
        };
        self.sorted.insert(matched, sorted);
        Ok(())
    }
}

/// The choice of tunnel identifiers by the gateway, and the addresses at which tunnels end.
pub(super) trait Choose {
    /// Returns an identifier that no bearer has.
    fn teid(&mut self) -> Option<u32>;
    fn v4(&self) -> Option<Ipv4Addr>;
    fn v6(&self) -> Option<Ipv6Addr>;
}

/// A detection rule with a tunnel endpoint chosen by the gateway, for the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreatedPdr {
    pub id: u16,
    pub teid: FTeid,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Session {
    /// The session identifier of this gateway.
    pub up_seid: u64,
    /// The session identifier of the control plane.
    pub cp_seid: u64,
    /// The address of the node that the session belongs to.
    pub owner: Option<IpAddr>,
    pdrs: BTreeMap<u16, Pdr>,
    fars: BTreeMap<u32, Far>,
    qers: BTreeMap<u32, Qer>,
    urrs: BTreeMap<u32, Urr>,
    bars: BTreeMap<u8, Bar>,
    /// The state of buffered packets, by forwarding rule. Rules that no longer buffer packets stay in the map.
    held: BTreeMap<u32, Arc<Held>>,
    /// The identifiers chosen for tunnels, by CHOOSE ID.
    chosen: BTreeMap<u8, u32>,
    /// The session's bearers in the table, and the sorting of their packets.
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

    /// Applies the rules of a request in this order: removed rules, rules that others refer to, rules that refer. The
    /// session then has at most `most_rules` rules.
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

    /// Removes the rules listed for removal, except usage rules.
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

    /// Removes the usage rules listed for removal, and adds their last reports to `reports`.
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

    /// Creates and updates enforcement rules.
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

    /// Creates and updates detection rules, and adds to `created` those with a tunnel endpoint chosen here.
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

    /// Adds the requested usage reports to `reports`, or those of all usage rules.
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

    /// Prepares the buffer of a forwarding rule that buffers packets.
    fn make_room(&mut self, far: u32) {
        let keeps = self.fars.get(&far).is_some_and(|it| it.keeps());
        if keeps && !self.held.contains_key(&far) {
            self.held
                .insert(far, Arc::new(Held::new(self.up_seid, far)));
        }
    }

    /// Activates the state that workers use in addition to the table, once all of a request is granted.
    pub fn arm(&mut self, terms: &Terms, moment: &Moment) {
        for urr in self.urrs.values_mut() {
            urr.arm(moment.now);
        }
        for (id, held) in &self.held {
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

    /// Returns the usage rule of that number.
    pub fn urr(&mut self, id: u32) -> Option<&mut Urr> {
        self.urrs.get_mut(&id)
    }

    /// Returns the numbers of all usage rules, and the time of the next check of each.
    pub fn timers(&self) -> impl Iterator<Item = (u32, std::time::Instant)> {
        let urrs = self.urrs.iter();
        urrs.filter_map(|(id, urr)| Some((*id, urr.due?)))
    }

    /// Returns reports of all usage, as the session ends.
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

    /// Returns true if a bearer of the session sends through a tunnel to that address.
    pub fn sends_to(&self, remote: IpAddr) -> bool {
        let mut bearers = self.followed.bearers.values();
        bearers.any(|it| it.bearer.path().is_some_and(|path| path.remote == remote))
    }

    /// Counts the session's rules of all kinds, and the rules that detection rules name. The session's memory is in
    /// proportion to this.
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
            let mut numbers = BTreeSet::new();
            for element in rule.group() {
                let element = element?;
                if element.element_type == kind {
                    numbers.insert(element.u32()?);
                }
            }
            if !numbers.is_empty() {
                *named = numbers;
            }
        }
        let Some(pdi) = look(rule, ElementType::PDI)? else {
            return Ok(pdr);
        };
        if let Some(source) = look(&pdi, ElementType::SOURCE_INTERFACE)? {
            pdr.source = source.u8()? & 0xf;
        } else if rule.element_type == ElementType::CREATE_PDR {
            return Err(Refusal::missing(ElementType::SOURCE_INTERFACE));
        }
        if let Some(user) = look(&pdi, ElementType::UE_IP_ADDRESS)? {
            let user = UeAddress::parse(user.value)?;
            if user.choose {
                // The control plane assigns users' addresses; this gateway does not advertise that it could.
                return Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED));
            }
            (pdr.v4, pdr.v6) = (user.v4.or(pdr.v4), user.v6.or(pdr.v6));
        }
        if let Some(filters) = Filters::of(id, &pdi)? {
            pdr.filters = filters;
        }
        let mut flows = 0;
        for element in pdi.group() {
            let element = element?;
            if element.element_type == ElementType::QFI {
                flows |= 1 << (element.u8()? & 0x3f);
            }
        }
        if flows != 0 {
            pdr.flows = flows;
        }
        let Some(end) = look(&pdi, ElementType::F_TEID)? else {
            return Ok(pdr);
        };
        match FTeid::parse(end.value)? {
            FTeid::Chosen { teid: 0, .. } => return Err(Refusal::incorrect(ElementType::F_TEID)),
            FTeid::Chosen { teid, .. } => pdr.teid = Some(teid),
            FTeid::Choose { v4, v6, id: number } => {
                let known = number.and_then(|number| self.chosen.get(&number).copied());
                // A chosen identifier stays.
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
                let teid = FTeid::Chosen { teid, v4, v6 };
                created.push(CreatedPdr { id, teid });
            }
        }
        Ok(pdr)
    }

    /// Returns the bearers derived from the rules, at most `most_bearers`; `number` chooses unused numbers for
    /// sortings.
    pub fn follow(
        &self,
        own: &[IpAddr],
        applications: Applications,
        most_bearers: usize,
        mut number: impl FnMut(&[u32]) -> Option<u32>,
    ) -> Result<Followed, Refusal> {
        let detections = self.detections(own, applications, most_bearers)?;
        let mut followed = Followed::default();
        let mut taken: Vec<u32> = Vec::new();
        for (matched, list) in detections {
            if let [(_, choice, limited)] = &list[..]
                && !choice.is_more_than_a_bearer()
            {
                followed.bearers.insert(matched, *limited);
                continue;
            }
            let before = self.followed.sorted.get(&matched);
            let number = match before {
                Some(before) => before.number,
                None => {
                    let number = number(&taken).ok_or(Refusal::new(Cause::NO_RESOURCES))?;
                    taken.push(number);
                    number
                }
            };
            followed.sort(matched, number, list, before)?;
        }
        Ok(followed)
    }

    /// Returns the detection rules of each tunnel and user in order of evaluation, with at most `most_bearers` bearers.
    fn detections(
        &self,
        own: &[IpAddr],
        applications: Applications,
        most_bearers: usize,
    ) -> Result<BTreeMap<Match, Vec<Detection>>, Refusal> {
        let known = self
            .pdrs
            .values()
            .flat_map(|pdr| pdr.filters.numbered())
            .collect();
        let (all_users, all_tunnels) = (self.users(), self.tunnels());
        let mut rules: Vec<_> = self.pdrs.iter().collect();
        // Applications are not detected, so rules for an application come last.
        rules.sort_by_key(|(id, pdr)| (pdr.filters.has_application, pdr.precedence, **id));
        let mut detections = Detections {
            of_match: BTreeMap::new(),
            bearers: 0,
            most_bearers,
        };
        for (id, pdr) in rules {
            let failed = Refusal::rule(FailedRule::Pdr(*id));
            if pdr.filters.has_application && applications == Applications::Refuse {
                return Err(failed);
            }
            let its_matches = pdr.matches();
            // A rule for some flows may name neither tunnel nor user; it then applies to those of its session.
            let matches = match &its_matches[..] {
                [] if pdr.is_from_network() => &all_users,
                [] if pdr.filters != Filters::default() => &all_tunnels,
                _ => &its_matches,
            };
            let is_tunnel = matches.iter().any(|m| matches!(m, Match::Teid(_)));
            let action = self.action(*id, pdr, is_tunnel, own)?;
            let limits = self.limits(*id, pdr)?;
            let choice = self.choice(pdr, &known).ok_or(failed)?;
            let its_users: Vec<_> = pdr.users().collect();
            for matched in matches.iter().copied() {
                let bearer = Bearer { matched, action };
                detections.add(*id, Limited { bearer, limits }, &choice, &its_users)?;
            }
        }
        Ok(detections.of_match)
    }

    /// Returns the users of the session, at most one per IP version.
    fn users(&self) -> Vec<Match> {
        let user = |of: fn(&Pdr) -> Option<IpAddr>| self.pdrs.values().find_map(of);
        let users = [
            user(|pdr| pdr.v4.map(IpAddr::V4)),
            user(|pdr| pdr.v6.map(IpAddr::V6)),
        ];
        users.into_iter().flatten().map(Match::User).collect()
    }

    /// Returns the session's tunnels from the access side.
    fn tunnels(&self) -> Vec<Match> {
        let access = self.pdrs.values().filter(|pdr| pdr.source == ACCESS);
        let tunnels: BTreeSet<u32> = access.filter_map(|pdr| pdr.teid).collect();
        tunnels.into_iter().map(Match::Teid).collect()
    }

    /// Returns a detection rule as one entry of a sorting; none if it names an unknown filter or usage rule.
    fn choice(
        &self,
        pdr: &Pdr,
        known: &BTreeMap<u32, &super::super::FlowFilter>,
    ) -> Option<Choice> {
        let usages = pdr
            .urrs
            .iter()
            .map(|id| Some(Arc::clone(&self.urrs.get(id)?.usage)));
        Some(Choice {
            place: 0,
            is_uplink: pdr.source == ACCESS,
            filters: pdr.filters.resolved(known)?,
            flows: pdr.flows,
            usages: usages.collect::<Option<_>>()?,
            held: pdr.far.and_then(|far| self.held.get(&far).cloned()),
        })
    }

    fn action(
        &self,
        id: u16,
        pdr: &Pdr,
        is_tunnel: bool,
        own: &[IpAddr],
    ) -> Result<Action, Refusal> {
        let failed = Refusal::rule(FailedRule::Pdr(id));
        let far_id = pdr.far.ok_or(failed)?;
        let far = self.fars.get(&far_id).ok_or(failed)?;
        if far.bar.is_some_and(|bar| !self.bars.contains_key(&bar)) {
            return Err(Refusal::rule(FailedRule::Far(far_id)));
        }
        let (mut qfi, mut is_closed) = (None, false);
        for qer in &pdr.qers {
            let qer = self.qers.get(qer).ok_or(failed)?;
            is_closed |= if pdr.source == ACCESS {
                qer.uplink_closed
            } else {
                qer.downlink_closed
            };
            // A rule without a mark says 0, which a rule with a mark overrides.
            qfi = qfi.filter(|qfi| *qfi != 0).or(qer.qfi).or(qfi);
        }
        let action = Self::forwarding(far_id, far, qfi, is_tunnel, own)?;
        Ok(if is_closed { Action::Block } else { action })
    }

    /// Returns the rate limits of a detection rule.
    fn limits(&self, id: u16, pdr: &Pdr) -> Result<Limits, Refusal> {
        let is_uplink = pdr.source == ACCESS;
        let mut limits = Limits::default();
        let mut free = limits.iter_mut();
        for rule in &pdr.qers {
            let kbps = self.qers.get(rule).and_then(|qer| match is_uplink {
                true => qer.uplink_kbps,
                false => qer.downlink_kbps,
            });
            if let Some(kbps) = kbps {
                let free = free.next().ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
                let meter = MeterName {
                    session: self.up_seid,
                    rule: *rule,
                    is_uplink,
                };
                *free = Some(Limit { meter, kbps });
            }
        }
        Ok(limits)
    }

    /// Returns the action of a forwarding rule for packets of a tunnel or to a user.
    fn forwarding(
        far_id: u32,
        far: &Far,
        qfi: Option<u8>,
        is_tunnel: bool,
        own: &[IpAddr],
    ) -> Result<Action, Refusal> {
        if far.action & APPLY_FORWARD == 0 {
            return Ok(if far.action & APPLY_BUFFER != 0 {
                Action::Hold
            } else {
                Action::Drop
            });
        }
        match (far.creation, is_tunnel) {
            (None, true) => Ok(Action::Decapsulate),
            // The packet goes to the user, and no tunnel exists yet.
            (None, false) => Ok(Action::Drop),
            (Some(creation), relays) => {
                let path = path(&creation, own);
                let path = path.ok_or(Refusal::rule(FailedRule::Far(far_id)))?;
                let teid = creation.teid;
                Ok(if relays {
                    Action::Relay { teid, path }
                } else {
                    Action::Encapsulate { teid, qfi, path }
                })
            }
        }
    }

    /// Returns the changes that turn the table into `new`. End markers for the tunnels in `ended` come first.
    pub fn wishes(
        &self,
        new: &Followed,
        ended: &[OuterHeaderCreation],
        own: &[IpAddr],
    ) -> Vec<Wish> {
        let end = |tunnel: &OuterHeaderCreation| {
            let (teid, path) = (tunnel.teid, path(tunnel, own)?);
            Some(Wish::EndMarker { teid, path })
        };
        let is_rule = |matched: &Match| matches!(matched, Match::Rule { .. });
        let mut wishes: Vec<_> = ended.iter().filter_map(end).collect();
        let old = &self.followed;
        let gone = |rules: bool| {
            let gone = old.bearers.keys().filter(|m| !new.bearers.contains_key(m));
            let gone = gone.filter(move |m| is_rule(m) == rules);
            gone.map(|matched| Wish::Remove(*matched))
        };
        wishes.extend(gone(false));
        // Rules are added before packets are sorted by them, and removed after that.
        for rules in [true, false] {
            if !rules {
                for (matched, sorted) in &new.sorted {
                    let is_known = old.sorted.get(matched).is_some_and(|known| known == sorted);
                    if !is_known {
                        let sorting = Some(Arc::clone(&sorted.sorting));
                        wishes.push(Wish::Sorting(sorted.number, sorting));
                    }
                }
            }
            for (matched, Limited { bearer, limits }) in &new.bearers {
                if is_rule(matched) != rules {
                    continue;
                }
                let old = old.bearers.get(matched);
                match old {
                    Some(old) if old.bearer == *bearer => {}
                    Some(_) => wishes.push(Wish::Put(*bearer)),
                    None => wishes.push(Wish::Add(*bearer)),
                }
                if old.map_or(Limits::default(), |old| old.limits) != *limits {
                    wishes.push(Wish::Limit(*matched, *limits));
                }
            }
        }
        wishes.extend(gone(true));
        for (matched, sorted) in &old.sorted {
            if !new.sorted.contains_key(matched) {
                wishes.push(Wish::Sorting(sorted.number, None));
            }
        }
        wishes
    }
}

/// Returns the positions of detection rules; those that have one keep it.
fn places(
    ids: impl Iterator<Item = u16>,
    known: &BTreeMap<u16, u8>,
) -> Result<BTreeMap<u16, u8>, Refusal> {
    let ids: BTreeSet<u16> = ids.collect();
    if ids.len() > MOST_CHOICES {
        return Err(Refusal::new(Cause::NO_RESOURCES));
    }
    let mut places: BTreeMap<u16, u8> = BTreeMap::new();
    places.extend(known.iter().filter(|(id, _)| ids.contains(id)));
    let taken: BTreeSet<u8> = places.values().copied().collect();
    let mut free = (0..=u8::MAX).filter(|place| !taken.contains(place));
    for id in ids {
        if !places.contains_key(&id)
            && let Some(place) = free.next()
        {
            places.insert(id, place);
        }
    }
    Ok(places)
}

impl Bar {
    /// Returns the rule with the changes in `rule`.
    fn with(mut self, rule: &Element<'_>) -> Result<Self, Refusal> {
        if let Some(delay) = look(rule, ElementType::DOWNLINK_DATA_NOTIFICATION_DELAY)? {
            self.delay = DELAY_UNIT * u32::from(delay.u8()?);
        }
        if let Some(packets) = look(rule, ElementType::SUGGESTED_BUFFERING_PACKETS_COUNT)? {
            self.packets = Some(packets.u8()?);
        }
        Ok(self)
    }
}

impl Pdr {
    fn users(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let users = [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)];
        users.into_iter().flatten()
    }

    fn is_from_network(&self) -> bool {
        matches!(self.source, CORE | N6_LAN)
    }

    /// Returns the tunnel that the rule names, or else its users, if the rule is about packets from the network.
    fn matches(&self) -> Vec<Match> {
        match self.teid {
            Some(teid) => vec![Match::Teid(teid)],
            None if self.is_from_network() => self.users().map(Match::User).collect(),
            None => Vec::new(),
        }
    }
}

impl Far {
    /// Returns true if packets are to be buffered.
    fn keeps(&self) -> bool {
        self.action & APPLY_BUFFER != 0 && self.action & APPLY_FORWARD == 0
    }

    /// Returns the rule with the changes in `rule`.
    fn with(mut self, id: u32, rule: &Element<'_>) -> Result<Self, Refusal> {
        if let Some(action) = look(rule, ElementType::APPLY_ACTION)? {
            self.action = action.u8()?;
            if self.action & (APPLY_DROP | APPLY_FORWARD | APPLY_BUFFER) == 0 {
                return Err(Refusal::rule(FailedRule::Far(id)));
            }
        }
        if let Some(bar) = look(rule, ElementType::BAR_ID)? {
            self.bar = Some(bar.u8()?);
        }
        let parameters = [
            ElementType::FORWARDING_PARAMETERS,
            ElementType::UPDATE_FORWARDING_PARAMETERS,
        ];
        for kind in parameters {
            if let Some(parameters) = look(rule, kind)?
                && let Some(creation) = look(&parameters, ElementType::OUTER_HEADER_CREATION)?
            {
                let creation = OuterHeaderCreation::parse(creation.value)?;
                self.creation = creation.filter(|creation| creation.teid != 0);
                // Without forwarding, an invalid tunnel does not matter (table 7.5.2.3-1): control planes write zeros.
                if self.creation.is_none() && self.action & APPLY_FORWARD != 0 {
                    return Err(Refusal::rule(FailedRule::Far(id)));
                }
            }
        }
        Ok(self)
    }
}

impl Qer {
    /// Returns the rule with the changes in `rule`.
    fn with(mut self, rule: &Element<'_>) -> Result<Self, Refusal> {
        if let Some(gates) = look(rule, ElementType::GATE_STATUS)? {
            let gates = gates.u8()?;
            self.downlink_closed = gates & 3 != 0;
            self.uplink_closed = gates >> 2 & 3 != 0;
        }
        if let Some(qfi) = look(rule, ElementType::QFI)? {
            self.qfi = Some(qfi.u8()? & 0x3f);
        }
        if let Some(rates) = look(rule, ElementType::MBR)? {
            let rates = Mbr::parse(rates.value)?;
            self.uplink_kbps = NonZeroU64::new(rates.uplink_kbps);
            self.downlink_kbps = NonZeroU64::new(rates.downlink_kbps);
        }
        Ok(self)
    }
}

/// Returns the destination of the tunnel, for an IP version in which the gateway has an address.
fn path(creation: &OuterHeaderCreation, own: &[IpAddr]) -> Option<Path> {
    let remotes = [creation.v4.map(IpAddr::V4), creation.v6.map(IpAddr::V6)];
    remotes.into_iter().flatten().find_map(|remote| {
        let same = |local: &&IpAddr| local.is_ipv4() == remote.is_ipv4();
        let local = *own.iter().find(same)?;
        Some(Path { local, remote })
    })
}
