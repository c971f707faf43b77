//! The state of users: their connections to networks, and the bearers of each connection (3GPP TS 23.401 section 5.7).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use taut_wire::gtpc::{Ambr, BearerQos, FTeid, Paa, PacketFilter};

/// The lowest identifier of a bearer (TS 29.274 section 8.8), and the highest that older nodes use.
pub(super) const EBIS: std::ops::RangeInclusive<u8> = 5..=15;

/// The endpoint of a peer for control messages (GTP-C).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub address: IpAddr,
    pub teid: u32,
}

/// A user on S11, with connections to one or several networks; or a single connection of a user on S5/S8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Context {
    /// The endpoint of the MME, or of the serving gateway on S5/S8.
    pub peer: Endpoint,
    /// True if the peer is an MME (interface S11), false if it is a serving gateway (S5/S8).
    pub is_s11: bool,
    /// The identity of the user as the peer wrote it; empty if there is none.
    pub imsi: Vec<u8>,
    pub pdns: Vec<Pdn>,
    /// True if the user is idle and a notification of downlink data waits for the MME.
    pub is_notified: bool,
}

impl Context {
    /// Returns the connection to which the bearer with the given identifier belongs.
    pub fn of_bearer(&mut self, ebi: u8) -> Option<&mut Pdn> {
        self.pdns
            .iter_mut()
            .find(|it| it.bearers.contains_key(&ebi))
    }

    /// Returns the identifier and the connection of a bearer, which is given by the connection's default bearer and the
    /// bearer's rule number.
    pub fn of_number(&self, pdn: u8, number: u8) -> Option<(u8, &Pdn)> {
        let pdn = self.pdns.iter().find(|it| it.ebi == pdn)?;
        let found = pdn.bearers.iter().find(|it| it.1.number == number)?;
        Some((*found.0, pdn))
    }

    /// Returns the connection that a [`Link`] identifies; none if it has ended, even if a later connection has the same
    /// default bearer.
    pub fn of_link(&mut self, link: Link) -> Option<&mut Pdn> {
        let is_same = |it: &&mut Pdn| (it.ebi, it.seid) == (link.ebi, link.seid);
        self.pdns.iter_mut().find(is_same)
    }

    /// Returns the connection with the given default bearer.
    pub fn of_default(&mut self, ebi: u8) -> Option<&mut Pdn> {
        self.pdns.iter_mut().find(|it| it.ebi == ebi)
    }
}

/// The identity of a connection: its default bearer and its session. A later connection with the same default bearer
/// has another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub ebi: u8,
    pub seid: u64,
}

/// A connection of a user to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pdn {
    /// The identifier of the connection's default bearer.
    pub ebi: u8,
    /// The identifier of the session in the user plane that has the connection's bearers in the table.
    pub seid: u64,
    pub paa: Paa,
    /// The limit on the total rate of all bearers without guaranteed rates.
    pub ambr: Option<Ambr>,
    /// The control endpoint of the PDN gateway, if this node is only a serving gateway.
    pub pgw: Option<Endpoint>,
    pub bearers: BTreeMap<u8, Bearer>,
    /// The rule numbers of bearers that the MME has not accepted yet.
    pub prepared: BTreeSet<u8>,
}

impl Pdn {
    pub fn link(&self) -> Link {
        Link {
            ebi: self.ebi,
            seid: self.seid,
        }
    }
}

/// A bearer of a user's connection, with the endpoints of its tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bearer {
    /// The bearer's rule number: its identifier, or a higher number if it was prepared before the MME chose the
    /// identifier.
    pub number: u8,
    pub qos: BearerQos,
    /// This node's endpoint for packets from the user.
    pub uplink: FTeid,
    /// This node's endpoint for packets from the PDN gateway, if this node is only a serving gateway.
    pub downlink: Option<FTeid>,
    /// The endpoint of the base station, or of the serving gateway on S5/S8; none while the user is idle.
    pub access: Option<FTeid>,
    /// The endpoint of the PDN gateway, if this node is only a serving gateway.
    pub core: Option<FTeid>,
    /// The filters of a dedicated bearer, by identifier.
    pub filters: BTreeMap<u8, PacketFilter>,
}

/// Returns the number that identifies a connection in the user plane's sessions: this node's TEID of the user, and the
/// default bearer.
pub(super) fn number(teid: u32, ebi: u8) -> u64 {
    u64::from(teid) << 8 | u64::from(ebi)
}

/// Returns the TEID and the default bearer in a number that [`number`] has made.
pub(super) fn of_number(number: u64) -> (u32, u8) {
    ((number >> 8) as u32, number as u8)
}
