//! A bearer: a match and an action. A bearer has two forms: text (a line of CSV, a JSON object) and the values that the
//! gateway uses.

use super::slot::{NO_QFI, Slot};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use taut_wire::gtpu::MOST_QFI;

/// The limit on the number of bearers.
pub(super) const MOST_BEARERS: usize = 4_000_000;
/// The limit on the number of paths: path numbers have 16 bits, and 0 means no path.
pub(super) const MOST_PATHS: usize = 65_535;

/// The criterion by which packets belong to a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Match {
    /// Packets that arrive in a tunnel; the value is the TEID of the tunnel, which is not 0.
    Teid(u32),
    /// Packets to the user at this address. Only the first 64 bits of an IPv6 address count, which are the user's own
    /// (TS 23.501 section 5.8.2.2).
    User(IpAddr),
    /// Packets that the rule at position `place` of packet classifier `number` matches; `number` is below 2^24. No
    /// arriving packet has this match: only classification assigns it.
    Rule {
        /// The number of the packet classifier, from 1.
        number: u32,
        /// The position of the rule in the classifier.
        place: u8,
    },
}

/// The first key of IPv4 addresses in the bearer table: above every TEID and below every IPv6 prefix in use.
const V4_KEYS: u64 = 1 << 32;
/// The first key of rules of a classifier in the bearer table: above every IPv4 address.
const RULE_KEYS: u64 = V4_KEYS << 1;
/// The first key of IPv6 prefixes in the bearer table. IPv6 prefixes with lower keys contain only special addresses
/// (::/30).
const V6_KEYS: u64 = RULE_KEYS << 1;

/// Returns true if a key of the bearer table belongs to a rule of a classifier.
#[inline]
pub(super) fn is_of_rule(key: u64) -> bool {
    (RULE_KEYS..V6_KEYS).contains(&key)
}

impl Match {
    /// Returns the key by which the bearer table finds packets of this match; 0 for a match that no bearer can have.
    #[inline(always)]
    pub(super) fn key(self) -> u64 {
        match self {
            Self::Teid(teid) => u64::from(teid),
            Self::User(IpAddr::V4(address)) => V4_KEYS | u64::from(address.to_bits()),
            Self::User(IpAddr::V6(address)) => {
                let prefix = (address.to_bits() >> 64) as u64;
                if prefix < V6_KEYS { 0 } else { prefix }
            }
            Self::Rule { number, place } => RULE_KEYS | u64::from(number) << 8 | u64::from(place),
        }
    }

    pub(super) fn of_key(key: u64) -> Self {
        if key < V4_KEYS {
            Self::Teid(key as u32)
        } else if key < RULE_KEYS {
            Self::User(Ipv4Addr::from_bits(key as u32).into())
        } else if is_of_rule(key) {
            let number = (key >> 8) as u32 & 0xff_ffff;
            let place = key as u8;
            Self::Rule { number, place }
        } else {
            Self::User(Ipv6Addr::from_bits(u128::from(key) << 64).into())
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Teid(teid) => write!(f, "{teid:#x}"),
            Self::User(address) => write!(f, "{address}"),
            Self::Rule { number, place } => write!(f, "rule {number}.{place}"),
        }
    }
}

/// Parses a number: decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl FromStr for Match {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_suffix("/64").unwrap_or(text);
        let matched = match number(text) {
            Some(teid) => Some(Self::Teid(teid)),
            None => address.parse().ok().map(Self::User),
        };
        matched.filter(|matched| matched.key() != 0).ok_or_else(|| {
            format!(
                "match \"{text}\": expected a TEID from 1 on, such as 0x10, or a user's IP address"
            )
        })
    }
}

/// The outer IP addresses of a tunnel's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    /// The outer address of the gateway.
    pub local: IpAddr,
    /// The outer address of the peer, of the same IP version as `local`.
    pub remote: IpAddr,
}

/// The addresses that user packets from a tunnel may have as their source: those of the tunnel's user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sources {
    /// The IPv4 address of the tunnel's user, 0 for none.
    pub v4: u32,
    /// The first 64 bits of the IPv6 addresses of the tunnel's user, 0 for none.
    pub v6: u64,
}

impl Sources {
    /// Returns true if a packet with this IP header comes from the user; false also for a truncated header, and for a
    /// header of another IP version.
    #[inline]
    pub(super) fn has(&self, header: &[u8]) -> bool {
        match header {
            [first, ..] if first >> 4 == 4 => {
                let source = header.get(12..).and_then(|it| it.first_chunk());
                self.v4 != 0 && source.is_some_and(|it| u32::from_be_bytes(*it) == self.v4)
            }
            [first, ..] if first >> 4 == 6 => {
                let source = header.get(8..).and_then(|it| it.first_chunk());
                self.v6 != 0 && source.is_some_and(|it| u64::from_be_bytes(*it) == self.v6)
            }
            _ => false,
        }
    }
}

/// The action on the packets of a bearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Packets are forwarded from one tunnel into another one.
    Relay {
        /// The TEID that the peer assigned to the tunnel.
        teid: u32,
        /// The addresses of the outgoing tunnel.
        path: Path,
    },
    /// Packets are encapsulated into a tunnel.
    Encapsulate {
        /// The TEID that the peer assigned to the tunnel.
        teid: u32,
        /// The QoS flow with which packets are marked, in a PDU session container; none for packets without a mark.
        qfi: Option<u8>,
        /// The addresses of the tunnel.
        path: Path,
    },
    /// Packets of the bearer are decapsulated.
    Decapsulate,
    /// Packets from these addresses are decapsulated. Others are dropped, and counted separately.
    DecapsulateFrom(Sources),
    /// Packets of the bearer are dropped.
    Drop,
    /// Packets are dropped because the control plane has closed a gate (TS 29.244 section 5.4.3), and counted
    /// separately.
    Block,
    /// Packets are dropped although the control plane requested buffering until the user is reached. A control plane
    /// that supports notifications is notified. The packets are counted separately.
    Hold,
    /// Packets are classified by rules, each of which has a bearer of its own.
    Classify {
        /// The number of the packet classifier, from 1.
        number: u32,
    },
}

const RELAY: u8 = 1;
const ENCAPSULATE: u8 = 2;
const DECAPSULATE: u8 = 3;
const DROP: u8 = 4;
const HOLD: u8 = 5;
const BLOCK: u8 = 6;
const CLASSIFY: u8 = 7;
/// The bit that is set in the kind of a bearer's action if the bearer has meters.
const METERED: u8 = 0x80;

/// The kind of an [`Action`] without its fields, as the data plane reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Relay,
    Encapsulate,
    Decapsulate,
    Drop,
    Hold,
    Block,
    Classify,
}

impl Slot {
    #[inline(always)]
    pub(super) fn kind(self) -> Kind {
        match self.action & !METERED {
            RELAY => Kind::Relay,
            ENCAPSULATE => Kind::Encapsulate,
            DECAPSULATE => Kind::Decapsulate,
            HOLD => Kind::Hold,
            BLOCK => Kind::Block,
            CLASSIFY => Kind::Classify,
            _ => Kind::Drop,
        }
    }

    #[inline(always)]
    pub(super) fn is_metered(self) -> bool {
        self.action & METERED != 0
    }

    pub(super) fn metered(self, is_metered: bool) -> Self {
        let action = self.action & !METERED | if is_metered { METERED } else { 0 };
        Self { action, ..self }
    }
}

/// One bearer of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bearer {
    /// The packets that the bearer applies to.
    pub matched: Match,
    /// The action on the packets of the bearer.
    pub action: Action,
}

impl Bearer {
    pub(super) fn path(&self) -> Option<Path> {
        match self.action {
            Action::Relay { path, .. } | Action::Encapsulate { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Returns the source addresses that packets of the bearer must have; none if the bearer does not check them.
    pub(super) fn sources(&self) -> Option<Sources> {
        match self.action {
            Action::DecapsulateFrom(sources) => Some(sources),
            _ => None,
        }
    }

    /// Returns the bearer's table entry. `path` is the index of the bearer's path, and `sources` that of its list of
    /// source addresses; an index of 0 means none.
    pub(super) fn slot(&self, path: u16, sources: u32) -> Slot {
        let (action, teid, qfi) = match self.action {
            Action::Relay { teid, .. } => (RELAY, teid, None),
            Action::Encapsulate { teid, qfi, .. } => (ENCAPSULATE, teid, qfi),
            Action::Decapsulate => (DECAPSULATE, 0, None),
            Action::DecapsulateFrom(_) => (DECAPSULATE, sources, None),
            Action::Drop => (DROP, 0, None),
            Action::Hold => (HOLD, 0, None),
            Action::Block => (BLOCK, 0, None),
            Action::Classify { number } => (CLASSIFY, number, None),
        };
        Slot {
            key: self.matched.key(),
            teid,
            path,
            qfi: qfi.unwrap_or(NO_QFI),
            action,
        }
    }

    /// Returns the bearer of a table entry; `path` and `sources` are the values whose numbers the entry has.
    pub(super) fn of_slot(slot: Slot, path: Option<Path>, sources: Option<Sources>) -> Self {
        let qfi = Some(slot.qfi).filter(|qfi| *qfi != NO_QFI);
        let teid = slot.teid;
        let action = match (slot.kind(), path) {
            (Kind::Relay, Some(path)) => Action::Relay { teid, path },
            (Kind::Encapsulate, Some(path)) => Action::Encapsulate { teid, qfi, path },
            (Kind::Decapsulate, _) => sources.map_or(Action::Decapsulate, Action::DecapsulateFrom),
            (Kind::Hold, _) => Action::Hold,
            (Kind::Block, _) => Action::Block,
            (Kind::Classify, _) => Action::Classify { number: teid },
            _ => Action::Drop,
        };
        Self {
            matched: Match::of_key(slot.key),
            action,
        }
    }
}

/// The name of the action on the packets of a bearer, as written in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Relay,
    Encapsulate,
    Decapsulate,
    Drop,
    Hold,
    Block,
    Rules,
}

/// A bearer as text: a JSON object with these keys, or a line of CSV in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BearerText {
    #[serde(rename = "match")]
    matched: String,
    action: Word,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    teid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remote: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    qfi: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    local: Option<IpAddr>,
}

/// The first line of a CSV file of bearers. The line may be omitted, and so may its last fields.
pub const CSV_HEADER: &str = "match,action,teid,remote,qfi,local";

impl FromStr for BearerText {
    type Err = String;

    /// Parses a line of CSV, in which the last fields may be omitted.
    fn from_str(line: &str) -> Result<Self, String> {
        if line.chars().all(|c| c == ',' || c.is_whitespace()) {
            let example = "10.45.0.2,encapsulate,0x20,192.0.2.9";
            return Err(format!("expected a bearer such as \"{example}\""));
        }
        let mut fields = line.split(',').map(str::trim);
        let mut next = || fields.next().filter(|field| !field.is_empty());
        let (matched, action) = (next(), next());
        let (teid, remote, qfi, local) = (next(), next(), next(), next());
        if let Some(more) = fields.next() {
            return Err(format!(
                "\"{more}\": expected six fields at most: {CSV_HEADER}"
            ));
        }
        let address = |name: &str, text: Option<&str>| {
            let wrong = |text: &str| format!("{name} \"{text}\": expected an IP address");
            text.map(|text| text.parse().map_err(|_| wrong(text)))
                .transpose()
        };
        let action = match action.unwrap_or_default() {
            "relay" => Word::Relay,
            "encapsulate" => Word::Encapsulate,
            "decapsulate" => Word::Decapsulate,
            "drop" => Word::Drop,
            "hold" => Word::Hold,
            "block" => Word::Block,
            other => {
                return Err(format!(
                    "action \"{other}\": expected relay, encapsulate, decapsulate, drop, hold or block"
                ));
            }
        };
        let teid = teid.map(|text| {
            number(text).ok_or_else(|| format!("teid \"{text}\": expected a number of 32 bits"))
        });
        let qfi = qfi.map(|text| {
            let wrong = || format!("qfi \"{text}\": expected 0 to {MOST_QFI}");
            text.parse().map_err(|_| wrong())
        });
        Ok(Self {
            matched: matched.unwrap_or_default().to_string(),
            action,
            teid: teid.transpose()?,
            remote: address("remote", remote)?,
            qfi: qfi.transpose()?,
            local: address("local", local)?,
        })
    }
}

impl BearerText {
    /// Validates the text and returns its bearer. `own` are the gateway's addresses. The default local address is the
    /// first address in `own` with the IP version of the peer's address.
    ///
    /// # Errors
    /// Returns the error in the text and the correct form.
    pub fn check(&self, own: &[IpAddr]) -> Result<Bearer, String> {
        let matched: Match = self.matched.parse()?;
        let is_user = matches!(matched, Match::User(_));
        if self.qfi.is_some_and(|qfi| qfi > MOST_QFI) {
            return Err(format!("qfi: expected 0 to {MOST_QFI}"));
        }
        let bare = self.teid.is_none() && self.remote.is_none() && self.local.is_none();
        let action = match (self.action, is_user) {
            (Word::Relay, false) if self.qfi.is_none() => {
                let (teid, path) = self.tunnel(own)?;
                Action::Relay { teid, path }
            }
            (Word::Relay, false) => {
                return Err("qfi: a relayed packet keeps the QoS flow that it has".to_string());
            }
            (Word::Encapsulate, true) => {
                let (teid, path) = self.tunnel(own)?;
                let qfi = self.qfi;
                Action::Encapsulate { teid, qfi, path }
            }
            (Word::Relay, true) | (Word::Decapsulate, true) => {
                return Err(format!(
                    "match {matched}: packets to a user can be encapsulated, dropped, held or blocked"
                ));
            }
            (Word::Encapsulate, false) => {
                return Err(format!(
                    "match {matched}: packets in a tunnel can be relayed, decapsulated, dropped, held or blocked"
                ));
            }
            (_, _) if !bare || self.qfi.is_some() => {
                return Err("teid, remote, qfi and local are of relay and encapsulate".to_string());
            }
            (Word::Decapsulate, false) => Action::Decapsulate,
            (Word::Drop, _) => Action::Drop,
            (Word::Hold, _) => Action::Hold,
            (Word::Block, _) => Action::Block,
            (Word::Rules, _) => {
                return Err("rules are set over PFCP only: expected another action".to_string());
            }
        };
        Ok(Bearer { matched, action })
    }

    /// Returns the TEID and the path of a bearer that sends through a tunnel.
    fn tunnel(&self, own: &[IpAddr]) -> Result<(u32, Path), String> {
        let (Some(teid), Some(remote)) = (self.teid.filter(|teid| *teid != 0), self.remote) else {
            return Err("a tunnel needs teid (not 0) and remote".to_string());
        };
        let same = |local: &IpAddr| local.is_ipv4() == remote.is_ipv4();
        let local = match self.local {
            Some(local) if same(&local) => local,
            Some(local) => {
                return Err(format!(
                    "local {local} and remote {remote}: expected addresses of one IP version"
                ));
            }
            None => *own.iter().find(|local| same(local)).ok_or_else(|| {
                format!("remote {remote}: the gateway has no address of that IP version")
            })?,
        };
        Ok((teid, Path { local, remote }))
    }
}

impl From<Bearer> for BearerText {
    fn from(bearer: Bearer) -> Self {
        let (action, teid, qfi) = match bearer.action {
            Action::Relay { teid, .. } => (Word::Relay, Some(teid), None),
            Action::Encapsulate { teid, qfi, .. } => (Word::Encapsulate, Some(teid), qfi),
            Action::Decapsulate | Action::DecapsulateFrom(_) => (Word::Decapsulate, None, None),
            Action::Drop => (Word::Drop, None, None),
            Action::Hold => (Word::Hold, None, None),
            Action::Block => (Word::Block, None, None),
            Action::Classify { .. } => (Word::Rules, None, None),
        };
        Self {
            matched: bearer.matched.to_string(),
            action,
            teid,
            remote: bearer.path().map(|path| path.remote),
            qfi,
            local: bearer.path().map(|path| path.local),
        }
    }
}

impl fmt::Display for BearerText {
    /// Writes the bearer as a line of CSV.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Word::Relay => "relay",
            Word::Encapsulate => "encapsulate",
            Word::Decapsulate => "decapsulate",
            Word::Drop => "drop",
            Word::Hold => "hold",
            Word::Block => "block",
            Word::Rules => "rules",
        };
        write!(f, "{},{action},", self.matched)?;
        if let Some(teid) = self.teid {
            write!(f, "{teid:#x}")?;
        }
        let address = |address: Option<IpAddr>| address.map_or(String::new(), |a| a.to_string());
        let qfi = self.qfi.map_or(String::new(), |qfi| qfi.to_string());
        write!(f, ",{},{qfi},{}", address(self.remote), address(self.local))
    }
}

/// Parses a CSV file of bearers. An error in one line refuses the complete file.
///
/// # Errors
/// Returns the number of the first wrong line, from 1, and the error in it.
pub fn read_csv(text: &str, own: &[IpAddr]) -> Result<Vec<(usize, Bearer)>, (usize, String)> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()));
    lines
        .filter(|(number, line)| {
            let is_header =
                *number == 1 && line.starts_with("match") && CSV_HEADER.starts_with(line);
            !(line.is_empty() || line.starts_with('#') || is_header)
        })
        .map(|(number, line)| {
            let bearer = line.parse().and_then(|text: BearerText| text.check(own));
            bearer.map(|b| (number, b)).map_err(|e| (number, e))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn own() -> [IpAddr; 2] {
        ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]
    }

    #[test]
    fn a_printed_bearer_parses_to_the_same_bearer() {
        for line in [
            "0x10,relay,0x20,192.0.2.9,,192.0.2.1",
            "10.45.0.2,encapsulate,0x20,192.0.2.9,9,192.0.2.1",
            "2001:db8:1::,encapsulate,0x20,2001:db8::9,,2001:db8::1",
            "0xffffffff,decapsulate,,,,",
            "10.45.0.3,drop,,,,",
            "0x11,hold,,,,",
            "0x12,block,,,,",
        ] {
            let text: BearerText = line.parse().unwrap();
            let bearer = text.check(&own()).unwrap();
            assert_eq!(BearerText::from(bearer).to_string(), line);
            let json = serde_json::to_string(&BearerText::from(bearer)).unwrap();
            let again: BearerText = serde_json::from_str(&json).unwrap();
            assert_eq!(again.check(&[]).unwrap(), bearer);
            let slot = bearer.slot(7, 0);
            assert_eq!(Bearer::of_slot(slot, bearer.path(), None), bearer);
        }
        let short: BearerText = "16, relay, 32, 192.0.2.9".parse().unwrap();
        let bearer = short.check(&own()).unwrap();
        assert_eq!(bearer.path().unwrap().local, own()[0]);
        let prefix: BearerText = "2001:db8:1::/64,drop".parse().unwrap();
        assert_eq!(
            prefix.check(&[]).unwrap().matched.key(),
            0x2001_0db8_0001_0000
        );
    }

    #[test]
    fn the_error_for_an_invalid_bearer_line_names_a_remedy() {
        for (line, part) in [
            (
                "",
                "expected a bearer such as \"10.45.0.2,encapsulate,0x20,192.0.2.9\"",
            ),
            ("1", "action \"\": expected relay,"),
            ("0,decapsulate", "expected a TEID from 1 on"),
            ("4294967296,decapsulate", "expected a TEID from 1 on"),
            ("::1,drop", "or a user's IP address"),
            ("x,drop", "match \"x\""),
            ("1,nat", "action \"nat\": expected relay,"),
            ("1,relay,2", "needs teid (not 0) and remote"),
            ("1,relay,0,192.0.2.9", "needs teid (not 0) and remote"),
            ("1,relay,z,192.0.2.9", "teid \"z\""),
            ("1,relay,2,192.0.2.999", "remote \"192.0.2.999\""),
            ("1,relay,2,192.0.2.9,5", "keeps the QoS flow"),
            ("1,relay,2,192.0.2.9,,2001:db8::1", "of one IP version"),
            ("1,decapsulate,2", "are of relay and encapsulate"),
            (
                "1,encapsulate,2,192.0.2.9",
                "match 0x1: packets in a tunnel",
            ),
            ("10.45.0.2,decapsulate", "packets to a user"),
            (
                "10.45.0.2,encapsulate,1,192.0.2.9,64",
                "qfi: expected 0 to 63",
            ),
            ("10.45.0.2,encapsulate,1,192.0.2.9,256", "qfi \"256\""),
            ("1,drop,,,,,x", "six fields at most"),
        ] {
            let text = format!("{CSV_HEADER}\n# a comment\n\n{line} \n");
            let text = if line.is_empty() {
                "\n\n\n , ".to_string()
            } else {
                text
            };
            let (number, error) = read_csv(&text, &own()).unwrap_err();
            assert_eq!(number, 4, "{line}");
            assert!(error.contains(part), "{line}: {error}");
        }
        let none = read_csv("1,relay,2,192.0.2.9", &[]).unwrap_err();
        assert!(none.1.contains("no address of that IP version"));
    }
}
