//! The state of users: their connections, and the bearers of these (3GPP TS 23.401 section 5.7).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use taut_wire::gtpc::{Ambr, BearerQos, FTeid, Paa, PacketFilter};

/// The lowest identifier of a bearer (TS 29.274 section 8.8), and the highest that older nodes use.
pub(super) const EBIS: std::ops::RangeInclusive<u8> = 5..=15;

/// The control endpoint of a peer.
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
    /// True if the peer is an MME.
    pub is_s11: bool,
    /// The identity of the user as the peer wrote it; empty if there is none.
    pub imsi: Vec<u8>,
    pub pdns: Vec<Pdn>,
    /// True if the user is idle and a notification of downlink data waits for the MME.
    pub is_notified: bool,
}

impl Context {
    /// Returns the connection that has a bearer.
    pub fn of_bearer(&mut self, ebi: u8) -> Option<&mut Pdn> {
        self.pdns
            .iter_mut()
            .find(|it| it.bearers.contains_key(&ebi))
    }

    /// Returns the bearer's identifier and connection, by the numbers of the connection and of the bearer's rules.
    pub fn of_number(&self, pdn: u8, number: u8) -> Option<(u8, &Pdn)> {
        let pdn = self.pdns.iter().find(|it| it.ebi == pdn)?;
        let found = pdn.bearers.iter().find(|it| it.1.number == number)?;
        Some((*found.0, pdn))
    }

    /// Returns a connection, if it is still the same one.
    pub fn of_link(&mut self, link: Link) -> Option<&mut Pdn> {
        let is_same = |it: &&mut Pdn| (it.ebi, it.seid) == (link.ebi, link.seid);
        self.pdns.iter_mut().find(is_same)
    }

    /// Returns the connection with that default bearer.
    pub fn of_default(&mut self, ebi: u8) -> Option<&mut Pdn> {
        self.pdns.iter_mut().find(|it| it.ebi == ebi)
    }
}

/// The name of a connection: its default bearer, and the session, by which a later connection with the same bearer
/// differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link {
    pub ebi: u8,
    pub seid: u64,
}

/// A connection of a user to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pdn {
    /// The default bearer.
    pub ebi: u8,
    /// The session that has the bearers in the table.
    pub seid: u64,
    pub paa: Paa,
    /// The rates of all bearers together that have no guaranteed ones.
    pub ambr: Option<Ambr>,
    /// The PDN gateway, if this node is only a serving gateway.
    pub pgw: Option<Endpoint>,
    pub bearers: BTreeMap<u8, Bearer>,
    /// The numbers of the rules of bearers that wait for the MME.
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

/// A bearer with the endpoints of its tunnels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bearer {
    /// The number of its rules: the bearer's identifier, or more if an MME has still to choose that.
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

/// Returns the number of a connection in the sessions, from this node's endpoint of the user and the default bearer.
pub(super) fn number(teid: u32, ebi: u8) -> u64 {
    u64::from(teid) << 8 | u64::from(ebi)
}

/// Returns the endpoint and the default bearer of which [`number`] has made a number.
pub(super) fn of_number(number: u64) -> (u32, u8) {
    ((number >> 8) as u32, number as u8)
}
