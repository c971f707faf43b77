//! The rules of a session as the control plane sends them: detection, forwarding, buffering and QoS enforcement (3GPP
//! TS 29.244 section 7.5).

use super::super::element::look;
use super::super::filter::Filters;
use super::super::refusal::Refusal;
use crate::Match;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU64;
use std::time::Duration;
use taut_wire::pfcp::{Element, ElementType, FailedRule, Mbr, OuterHeaderCreation};

pub(super) const ACCESS: u8 = 0;
const CORE: u8 = 1;
const N6_LAN: u8 = 2;

const APPLY_DROP: u8 = 1;
pub(super) const APPLY_FORWARD: u8 = 2;
pub(super) const APPLY_BUFFER: u8 = 4;
pub(super) const NOTIFY: u8 = 8;
/// The unit of the downlink data notification delay (TS 29.244 section 8.2.28).
const DELAY_UNIT: Duration = Duration::from_millis(50);

/// A packet detection rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Pdr {
    pub(super) precedence: u32,
    pub(super) source: u8,
    pub(super) teid: Option<u32>,
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
    /// The filters on packets of the rule's tunnel or user; all packets match if there are none.
    pub(super) filters: Filters,
    /// The QoS flows of matching packets, one bit each; 0 for packets of any QoS flow.
    pub(super) flows: u64,
    pub(super) far: Option<u32>,
    pub(super) qers: BTreeSet<u32>,
    pub(super) urrs: BTreeSet<u32>,
}

/// A forwarding action rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Far {
    pub(super) action: u8,
    pub(super) creation: Option<OuterHeaderCreation>,
    pub(super) bar: Option<u8>,
}

/// A buffering action rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bar {
    /// The time from the first buffered packet to its report to the control plane.
    pub(super) delay: Duration,
    /// The number of packets to buffer that the control plane suggests; none if it suggests no number.
    pub(super) packets: Option<u8>,
}

/// A QoS enforcement rule: its gates, its mark, and its maximum bit rates. Guaranteed bit rates have no effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Qer {
    pub(super) qfi: Option<u8>,
    pub(super) uplink_closed: bool,
    pub(super) downlink_closed: bool,
    /// The maximum bit rates in kbit/s. Control planes write 0 for an unlimited rate, which is stored as none.
    pub(super) uplink_kbps: Option<NonZeroU64>,
    pub(super) downlink_kbps: Option<NonZeroU64>,
}

impl Bar {
    /// Returns this rule, changed as the element `rule` requests.
    pub(super) fn with(mut self, rule: &Element<'_>) -> Result<Self, Refusal> {
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
    pub(super) fn users(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let users = [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)];
        users.into_iter().flatten()
    }

    pub(super) fn is_from_network(&self) -> bool {
        matches!(self.source, CORE | N6_LAN)
    }

    /// Returns the match of the tunnel that the rule names. For a rule without a tunnel, returns the matches of its
    /// users if it is about packets from the network, and otherwise nothing.
    pub(super) fn matches(&self) -> Vec<Match> {
        match self.teid {
            Some(teid) => vec![Match::Teid(teid)],
            None if self.is_from_network() => self.users().map(Match::User).collect(),
            None => Vec::new(),
        }
    }
}

impl Far {
    /// Returns true if the forwarding rule buffers packets.
    pub(super) fn keeps(&self) -> bool {
        self.action & APPLY_BUFFER != 0 && self.action & APPLY_FORWARD == 0
    }

    /// Returns this rule, changed as the element `rule` requests.
    pub(super) fn with(mut self, id: u32, rule: &Element<'_>) -> Result<Self, Refusal> {
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
    /// Returns this rule, changed as the element `rule` requests.
    pub(super) fn with(mut self, rule: &Element<'_>) -> Result<Self, Refusal> {
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
