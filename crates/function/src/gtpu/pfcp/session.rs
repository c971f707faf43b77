//! PFCP session: its rules as the control plane gives them (3GPP TS 29.244 section 7.5), and the bearers that follow
//! from them.
//!
//! A bearer is made for each tunnel and for each user's address. Where several detection rules name the same
//! one, that without a filter for single flows decides, then that of the lowest precedence value. Rules with such a
//! filter are refused where their packets would take another way.

use super::super::{Action, Bearer, Limit, Limits, Match, MeterName, Path, Wish};
use super::filter::Takes;
use super::settings::Filters;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use taut_wire::pfcp::{
    Cause, Element, ElementType, Elements, FTeid, FailedRule, Mbr, OuterHeaderCreation, UeAddress,
};

const ACCESS: u8 = 0;
const CORE: u8 = 1;
const N6_LAN: u8 = 2;

const APPLY_DROP: u8 = 1;
const APPLY_FORWARD: u8 = 2;
const APPLY_BUFFER: u8 = 4;
const SEND_END_MARKER: u8 = 2;
/// IP and GTP-U, of either version or of the tunnel's own (section 8.2.64): 6 is what Open5GS sends.
const GTPU_REMOVALS: [u8; 3] = [0, 1, 6];

/// Reason why a request is not granted, as the response says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub cause: Cause,
    pub offending: Option<ElementType>,
    pub failed: Option<FailedRule>,
}

impl Refusal {
    pub fn new(cause: Cause) -> Self {
        Self {
            cause,
            offending: None,
            failed: None,
        }
    }

    pub fn missing(element_type: ElementType) -> Self {
        Self {
            offending: Some(element_type),
            ..Self::new(Cause::MANDATORY_IE_MISSING)
        }
    }

    pub fn incorrect(element_type: ElementType) -> Self {
        Self {
            offending: Some(element_type),
            ..Self::new(Cause::MANDATORY_IE_INCORRECT)
        }
    }

    pub fn rule(failed: FailedRule) -> Self {
        Self {
            failed: Some(failed),
            ..Self::new(Cause::RULE_FAILURE)
        }
    }
}

/// A length inside an element lies.
impl From<taut_wire::Error> for Refusal {
    fn from(_: taut_wire::Error) -> Self {
        Self::new(Cause::INVALID_LENGTH)
    }
}

/// Packet detection rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Pdr {
    precedence: u32,
    source: u8,
    teid: Option<u32>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    /// Packets, of those of its tunnel or user, that the rule takes.
    takes: Takes,
    far: Option<u32>,
    qers: BTreeSet<u32>,
}

/// Forwarding action rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Far {
    action: u8,
    creation: Option<OuterHeaderCreation>,
}

/// QoS enforcement rule: its gates, its mark, and its maximum bit rates. Nothing is set aside for guaranteed ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Qer {
    qfi: Option<u8>,
    uplink_closed: bool,
    downlink_closed: bool,
    /// Maximum bit rates; none where 0 is written, as control planes do for what they do not limit.
    uplink_kbps: Option<NonZeroU64>,
    downlink_kbps: Option<NonZeroU64>,
}

/// A bearer, and the rates that its packets have to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limited {
    pub bearer: Bearer,
    pub limits: Limits,
}

/// Tunnel identifiers of the gateway's own choice, and the addresses they end at.
pub(super) trait Choose {
    /// An identifier that no bearer has.
    fn teid(&mut self) -> Option<u32>;
    fn v4(&self) -> Option<Ipv4Addr>;
    fn v6(&self) -> Option<Ipv6Addr>;
}

/// A detection rule whose tunnel's end was chosen here, to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreatedPdr {
    pub id: u16,
    pub teid: FTeid,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Session {
    /// The number that it has here.
    pub up_seid: u64,
    /// The number that the control plane gave it.
    pub cp_seid: u64,
    /// Address of the node that the session belongs to.
    pub owner: Option<IpAddr>,
    pdrs: BTreeMap<u16, Pdr>,
    fars: BTreeMap<u32, Far>,
    qers: BTreeMap<u32, Qer>,
    urrs: BTreeSet<u32>,
    /// Identifiers chosen for tunnels, by CHOOSE ID.
    chosen: BTreeMap<u8, u32>,
    /// Bearers that are in the table because of the session.
    pub bearers: BTreeMap<Match, Limited>,
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

    /// Makes the rules of a request, in this order: those that go, those that others refer to, those that refer.
    /// `ended` gets the tunnels that forwarding rules leave and are to end, each once. The session then has
    /// `most_rules` at most.
    pub fn apply(
        &mut self,
        elements: Elements<'_>,
        choose: &mut impl Choose,
        ended: &mut Vec<OuterHeaderCreation>,
        most_rules: usize,
    ) -> Result<Vec<CreatedPdr>, Refusal> {
        let all: Vec<Element<'_>> = elements.collect::<Result<_, _>>()?;
        let of = |kind: ElementType| all.iter().filter(move |e| e.element_type == kind);
        for rule in of(ElementType::REMOVE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            let gone = self.pdrs.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
        }
        for rule in of(ElementType::REMOVE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            let gone = self.fars.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Far(id)))?;
        }
        for rule in of(ElementType::REMOVE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            let gone = self.qers.remove(&id);
            gone.ok_or(Refusal::rule(FailedRule::Qer(id)))?;
        }
        for rule in of(ElementType::REMOVE_URR) {
            self.urrs.remove(&find(rule, ElementType::URR_ID)?.u32()?);
        }
        // Usage is not measured; that there are such rules is no reason to refuse a session.
        for rule in of(ElementType::CREATE_URR) {
            self.urrs.insert(find(rule, ElementType::URR_ID)?.u32()?);
        }
        for rule in of(ElementType::CREATE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            find(rule, ElementType::GATE_STATUS)?;
            self.qers.insert(id, Qer::default().with(rule)?);
        }
        for rule in of(ElementType::UPDATE_QER) {
            let id = find(rule, ElementType::QER_ID)?.u32()?;
            let qer = self.qers.get_mut(&id);
            let qer = qer.ok_or(Refusal::rule(FailedRule::Qer(id)))?;
            *qer = qer.with(rule)?;
        }
        for rule in of(ElementType::CREATE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            find(rule, ElementType::APPLY_ACTION)?;
            self.fars.insert(id, Far::default().with(id, rule)?);
        }
        for rule in of(ElementType::UPDATE_FAR) {
            let id = find(rule, ElementType::FAR_ID)?.u32()?;
            let far = self.fars.get_mut(&id);
            let far = far.ok_or(Refusal::rule(FailedRule::Far(id)))?;
            let before = far.creation;
            *far = far.with(id, rule)?;
            if let Some(parameters) = look(rule, ElementType::UPDATE_FORWARDING_PARAMETERS)?
                && let Some(flags) = look(&parameters, ElementType::PFCPSMREQ_FLAGS)?
                && flags.u8()? & SEND_END_MARKER != 0
                && let Some(before) = before.filter(|_| before != far.creation)
                && !ended.contains(&before)
            {
                ended.push(before);
            }
        }
        let mut created = Vec::new();
        for rule in of(ElementType::CREATE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            find(rule, ElementType::PRECEDENCE)?;
            find(rule, ElementType::PDI)?;
            let pdr = self.detection(id, Pdr::default(), rule, choose, &mut created)?;
            self.pdrs.insert(id, pdr);
        }
        for rule in of(ElementType::UPDATE_PDR) {
            let id = find(rule, ElementType::PDR_ID)?.u16()?;
            let before = self.pdrs.get(&id).cloned();
            let before = before.ok_or(Refusal::rule(FailedRule::Pdr(id)))?;
            let pdr = self.detection(id, before, rule, choose, &mut created)?;
            self.pdrs.insert(id, pdr);
        }
        if self.rules() > most_rules {
            return Err(Refusal::new(Cause::NO_RESOURCES));
        }
        Ok(created)
    }

    /// Counts the session's rules of all kinds, and what detection rules name of others: its memory is in proportion to
    /// them.
    pub fn rules(&self) -> usize {
        let named: usize = self.pdrs.values().map(|pdr| pdr.qers.len()).sum();
        self.pdrs.len() + self.fars.len() + self.qers.len() + self.urrs.len() + named
    }

    /// A detection rule as `rule` makes or changes it; what an update leaves out stays.
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
        let mut qers = BTreeSet::new();
        for element in rule.group() {
            let element = element?;
            if element.element_type == ElementType::QER_ID {
                qers.insert(element.u32()?);
            }
        }
        if !qers.is_empty() {
            pdr.qers = qers;
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
                // Users' addresses are the control plane's to give; we do not say that we could.
                return Err(Refusal::new(Cause::SERVICE_NOT_SUPPORTED));
            }
            (pdr.v4, pdr.v6) = (user.v4.or(pdr.v4), user.v6.or(pdr.v6));
        }
        let users: Vec<IpAddr> = pdr.users().collect();
        if let Some(takes) = Takes::of(&pdi, &users)? {
            pdr.takes = takes;
        }
        let Some(end) = look(&pdi, ElementType::F_TEID)? else {
            return Ok(pdr);
        };
        match FTeid::parse(end.value)? {
            FTeid::Chosen { teid: 0, .. } => return Err(Refusal::incorrect(ElementType::F_TEID)),
            FTeid::Chosen { teid, .. } => pdr.teid = Some(teid),
            FTeid::Choose { v4, v6, id: number } => {
                let known = number.and_then(|number| self.chosen.get(&number).copied());
                // Chosen once, it stays chosen.
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

    /// The bearers that follow from the rules.
    pub fn follow(
        &self,
        own: &[IpAddr],
        filters: Filters,
    ) -> Result<BTreeMap<Match, Limited>, Refusal> {
        let mut bearers = BTreeMap::new();
        let mut rules: Vec<_> = self.pdrs.iter().collect();
        rules.sort_by_key(|(id, pdr)| (pdr.takes != Takes::All, pdr.precedence, **id));
        let user = |of: fn(&Pdr) -> Option<IpAddr>| self.pdrs.values().find_map(of);
        let users = [
            user(|pdr| pdr.v4.map(IpAddr::V4)),
            user(|pdr| pdr.v6.map(IpAddr::V6)),
        ];
        for (id, pdr) in rules {
            let from_network = matches!(pdr.source, CORE | N6_LAN);
            let is_for_all = pdr.takes == Takes::All;
            // A rule for some flows may name neither tunnel nor user: it is about those of its session.
            let matches: Vec<Match> = match pdr.teid {
                Some(teid) => vec![Match::Teid(teid)],
                None if from_network && pdr.users().next().is_some() => {
                    pdr.users().map(Match::User).collect()
                }
                None if from_network => users.into_iter().flatten().map(Match::User).collect(),
                None if is_for_all => Vec::new(),
                None => {
                    let access = self.pdrs.values().filter(|pdr| pdr.source == ACCESS);
                    access.filter_map(|pdr| pdr.teid.map(Match::Teid)).collect()
                }
            };
            let is_tunnel = matches.iter().any(|m| matches!(m, Match::Teid(_)));
            let action = self.action(*id, pdr, is_tunnel, own)?;
            let failed = Refusal::rule(FailedRule::Pdr(*id));
            if !is_for_all && filters == Filters::Refuse {
                let same = |m: &Match| {
                    let known = bearers.get(m);
                    known.is_some_and(|known: &Limited| known.bearer.action == action)
                };
                let changes_nothing = !matches.is_empty() && matches.iter().all(same);
                if changes_nothing || pdr.takes.none_of(users.into_iter().flatten()) {
                    continue;
                }
                return Err(failed);
            }
            let limits = self.limits(*id, pdr)?;
            for matched in matches {
                if matched.key() == 0 {
                    return Err(failed);
                }
                let bearer = Bearer { matched, action };
                bearers.entry(matched).or_insert(Limited { bearer, limits });
            }
        }
        Ok(bearers)
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
        let (mut qfi, mut is_closed) = (None, false);
        for qer in &pdr.qers {
            let qer = self.qers.get(qer).ok_or(failed)?;
            is_closed |= if pdr.source == ACCESS {
                qer.uplink_closed
            } else {
                qer.downlink_closed
            };
            qfi = qfi.or(qer.qfi);
        }
        let action = Self::forwarding(far_id, far, qfi, is_tunnel, own)?;
        Ok(if is_closed { Action::Block } else { action })
    }

    /// The rates that packets of a detection rule have to keep.
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

    /// Returns what a forwarding rule does with packets of a tunnel or to a user.
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
            // To the user, and no tunnel is there yet.
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

    /// Returns what has to change in the table so that it says `new`, and before that the tunnels that end.
    pub fn wishes(
        &self,
        new: &BTreeMap<Match, Limited>,
        ended: &[OuterHeaderCreation],
        own: &[IpAddr],
    ) -> Vec<Wish> {
        let end = |tunnel: &OuterHeaderCreation| {
            let (teid, path) = (tunnel.teid, path(tunnel, own)?);
            Some(Wish::EndMarker { teid, path })
        };
        let mut wishes: Vec<_> = ended.iter().filter_map(end).collect();
        let gone = self.bearers.keys().filter(|m| !new.contains_key(m));
        wishes.extend(gone.map(|matched| Wish::Remove(*matched)));
        for (matched, Limited { bearer, limits }) in new {
            let old = self.bearers.get(matched);
            match old {
                Some(old) if old.bearer == *bearer => {}
                Some(_) => wishes.push(Wish::Put(*bearer)),
                None => wishes.push(Wish::Add(*bearer)),
            }
            if old.map_or(Limits::default(), |old| old.limits) != *limits {
                wishes.push(Wish::Limit(*matched, *limits));
            }
        }
        wishes
    }
}

impl Pdr {
    fn users(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let users = [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)];
        users.into_iter().flatten()
    }
}

impl Far {
    /// Changed by what `rule` says.
    fn with(mut self, id: u32, rule: &Element<'_>) -> Result<Self, Refusal> {
        if let Some(action) = look(rule, ElementType::APPLY_ACTION)? {
            self.action = action.u8()?;
            if self.action & (APPLY_DROP | APPLY_FORWARD | APPLY_BUFFER) == 0 {
                return Err(Refusal::rule(FailedRule::Far(id)));
            }
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
                let creation = creation.filter(|creation| creation.teid != 0);
                let failed = Refusal::rule(FailedRule::Far(id));
                self.creation = Some(creation.ok_or(failed)?);
            }
        }
        Ok(self)
    }
}

impl Qer {
    /// Changed by what `rule` says.
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

/// Returns where the tunnel goes, by an IP version that the gateway has an address of.
fn path(creation: &OuterHeaderCreation, own: &[IpAddr]) -> Option<Path> {
    let remotes = [creation.v4.map(IpAddr::V4), creation.v6.map(IpAddr::V6)];
    remotes.into_iter().flatten().find_map(|remote| {
        let same = |local: &&IpAddr| local.is_ipv4() == remote.is_ipv4();
        let local = *own.iter().find(same)?;
        Some(Path { local, remote })
    })
}

/// The first element of a type in a group, if there is one.
pub(super) fn look<'a>(
    group: &Element<'a>,
    element_type: ElementType,
) -> Result<Option<Element<'a>>, Refusal> {
    for element in group.group() {
        let element = element?;
        if element.element_type == element_type {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// The first element of a type in a group, which has to be there.
fn find<'a>(group: &Element<'a>, element_type: ElementType) -> Result<Element<'a>, Refusal> {
    look(group, element_type)?.ok_or(Refusal::missing(element_type))
}
