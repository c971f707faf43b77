//! The classifier of a chain file: rules that select the chain of each packet when several chains share ports.
//!
//! The first rule that matches a packet decides; a packet that no rule matches belongs to the default class. A rule
//! compares fields of the frame itself, without state, so all packets with the same fields have the same class:
//!
//! - The ethertype is that after up to two VLAN tags; `vlan` is the identifier of the outer tag.
//! - IP fields are those of the outermost IP header. A frame with a truncated or wrong header has none, and only rules
//!   without IP fields match it.
//! - A fragment, the first one included, has no ports, so that all fragments of a datagram have the same class.
//!
//! (The term "classifier" is that of RFC 7665, section 4.7: service function chaining.)

use crate::matching::{self, PortText, Prefix, ProtocolText};
use crate::tuple::{Seen, Tuple};
use crate::{SettingsError, each};
use serde::Deserialize;
use std::ops::RangeInclusive;
use taut_port::{BATCH_CAPACITY, Batch, Pairs};
use taut_wire::{EtherType, Ethernet, Headers, IpProtocol, Layer3, Vlan};
use taut_xdp::functions::{KernelClassRule, KernelClassifier, KernelFields};

/// The limit on rules of a classifier; a packet is compared with one rule after the other.
const MOST_RULES: usize = 1024;
/// The limit on chains of a classifier. The indices of the chains have to fit into a byte together with the classes
/// that are no chains.
const MOST_CHAINS: usize = 64;
const HIGHEST_DSCP: u8 = 63;
/// The names of the classes that are no chains: packets are forwarded without functions, or dropped.
pub const NO_CHAIN: [&str; 2] = ["forward", "drop"];

/// A classifier rule as the chain file contains it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    chain: String,
    port: Option<DevicePorts>,
    ethertype: Option<EtherTypeText>,
    vlan: Option<VlanText>,
    protocol: Option<ProtocolText>,
    source: Option<String>,
    destination: Option<String>,
    source_port: Option<PortText>,
    destination_port: Option<PortText>,
    dscp: Option<DscpText>,
    #[serde(default)]
    symmetric: bool,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a port of the chain, or a list of them"
)]
enum DevicePorts {
    One(u8),
    Several(Vec<u8>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"ipv4\", \"ipv6\", \"arp\" or a number, such as 0x88f7"
)]
enum EtherTypeText {
    Number(u16),
    Name(String),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a VLAN identifier from 0 to 4094, or \"none\""
)]
enum VlanText {
    Id(u16),
    Name(String),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a DSCP from 0 to 63, or a name such as \"ef\""
)]
enum DscpText {
    Number(u8),
    Name(String),
}

/// A rule of the classifier, prepared for comparison with packets.
#[derive(Debug, Clone)]
struct Rule {
    /// The ingress ports of matching packets, one bit each; none for all ports.
    ports: Option<[u64; 4]>,
    ethertype: Option<EtherType>,
    /// The identifier of the outer VLAN tag, or none if the rule compares no tag. The inner value is none if the rule
    /// requires frames without a tag.
    vlan: Option<Option<u16>>,
    ip: Option<IpRule>,
    class: u8,
}

/// The part of a classifier rule that only IP packets match.
#[derive(Debug, Clone, Default)]
struct IpRule {
    protocol: Option<IpProtocol>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    source_port: Option<RangeInclusive<u16>>,
    destination_port: Option<RangeInclusive<u16>>,
    dscp: Option<u8>,
}

/// The fields of a frame that classifier rules compare.
struct Fields {
    port: usize,
    ethertype: Option<EtherType>,
    vlan: Option<u16>,
    /// The addresses, protocol, ports and DSCP of an IP packet; none for other frames.
    ip: Option<(Tuple, u8)>,
}

/// The compiled rules of a chain file's classifier. The class of a packet is the index of its chain; the classes of
/// [`NO_CHAIN`] follow those of the chains.
#[derive(Debug, Clone)]
pub struct Classifier {
    rules: Vec<Rule>,
    default: u8,
    chains: usize,
    /// True if at least one rule compares VLAN tags.
    reads_tags: bool,
}

impl Classifier {
    /// Compiles rules that name `chains`; `ports` is the number of ports of the worker. `default` is the class of
    /// packets that no rule matches: a chain, `forward` or `drop`.
    ///
    /// # Errors
    /// Fails with the number of the invalid rule and its invalid key.
    pub fn new(
        rules: Vec<toml::Table>,
        default: &str,
        chains: &[String],
        ports: usize,
    ) -> Result<Self, SettingsError> {
        let wrong = |text: String| Err(SettingsError(text));
        match (rules.len(), chains.len()) {
            (count, _) if count > MOST_RULES => {
                return wrong(format!(
                    "{count} rules: the maximum is {MOST_RULES}, as the search is linear"
                ));
            }
            (_, count) if count > MOST_CHAINS => {
                return wrong(format!("{count} chains: the maximum is {MOST_CHAINS}"));
            }
            _ => {}
        }
        let class = |name: &str| class_of(name, chains);
        let both = each("classifier", rules, |text| Rule::both(text, &class, ports))?;
        let default =
            class(default).map_err(|e| SettingsError(format!("default = \"{default}\": {e}")))?;
        let rules: Vec<Rule> = both.into_iter().flatten().collect();
        Ok(Self {
            reads_tags: rules.iter().any(|rule| rule.vlan.is_some()),
            rules,
            default,
            chains: chains.len(),
        })
    }

    /// Returns the number of classes: chains, and those of [`NO_CHAIN`].
    pub fn classes(&self) -> usize {
        self.chains + NO_CHAIN.len()
    }

    /// Returns the number of chains, which is the class of packets that are forwarded without functions. The next class
    /// is that of dropped packets.
    pub fn chains(&self) -> usize {
        self.chains
    }

    /// Returns the classifier in the form of the kernel's programs, for a chain with `ports` ports. `of_function` is the
    /// class of each function.
    pub fn in_kernel(&self, of_function: Vec<u8>, ports: usize) -> KernelClassifier {
        let rules = |to: usize| {
            let from = Pairs::of(ports).partner(to);
            let rules = self.rules.iter().filter(|rule| rule.is_for_port(from));
            rules.map(Rule::in_kernel).collect()
        };
        KernelClassifier {
            rules: (0..ports).map(rules).collect(),
            default: self.default,
            chains: self.chains,
            of_function,
        }
    }

    /// Writes the class of each packet of a batch that has arrived at port `port` into `classes`. If all packets have
    /// the same class, returns that class.
    #[inline]
    pub fn classify(
        &self,
        batch: &mut Batch,
        port: usize,
        classes: &mut [u8; BATCH_CAPACITY],
    ) -> Option<u8> {
        batch.read_headers();
        let mut differ = 0;
        for index in 0..batch.len() {
            let headers = batch.headers(index);
            let class = self.class(port, &headers, batch.packets()[index].bytes());
            classes[index & (BATCH_CAPACITY - 1)] = class;
            differ |= class ^ classes[0];
        }
        (differ == 0).then_some(classes[0])
    }

    /// Returns the class of a frame that has arrived at port `port`.
    #[inline]
    pub fn class(&self, port: usize, headers: &Headers, frame: &[u8]) -> u8 {
        let fields = self.fields(port, headers, frame);
        let rule = self.rules.iter().find(|rule| rule.matches(&fields));
        rule.map_or(self.default, |rule| rule.class)
    }

    #[inline]
    fn fields(&self, port: usize, headers: &Headers, frame: &[u8]) -> Fields {
        let (ethertype, vlan) = match headers.layer3() {
            Layer3::Ipv4 if !self.reads_tags => (Some(EtherType::IPV4), None),
            Layer3::Ipv6 if !self.reads_tags => (Some(EtherType::IPV6), None),
            _ => match Ethernet::new(frame) {
                Ok(ethernet) => {
                    let id = match ethernet.vlan() {
                        Vlan::Untagged => None,
                        Vlan::Single(outer) | Vlan::Double { outer, .. } => Some(outer.id()),
                    };
                    (Some(ethernet.ethertype()), id)
                }
                Err(_) => (None, None),
            },
        };
        let ip = match Seen::of(headers, frame) {
            Seen::Tuple(tuple) => Some((tuple, dscp(headers, frame))),
            Seen::NoIp | Seen::Malformed => None,
        };
        Fields {
            port,
            ethertype,
            vlan,
            ip,
        }
    }
}

impl Rule {
    /// Returns the rule as it is written, and the rule for the opposite direction if it is symmetric.
    fn both(
        text: RuleText,
        class: &impl Fn(&str) -> Result<u8, String>,
        ports: usize,
    ) -> Result<Vec<Self>, SettingsError> {
        let wrong = |text: &str| Err(SettingsError(text.to_string()));
        let chain = class(&text.chain)
            .map_err(|e| SettingsError(format!("chain = \"{}\": {e}", text.chain)))?;
        let ip = IpRule {
            protocol: text.protocol.map(matching::protocol).transpose()?,
            source: matching::prefix("source", text.source)?,
            destination: matching::prefix("destination", text.destination)?,
            source_port: matching::ports("source_port", text.source_port)?,
            destination_port: matching::ports("destination_port", text.destination_port)?,
            dscp: text.dscp.map(dscp_of).transpose()?,
        };
        let asks_ports = ip.source_port.is_some() || ip.destination_port.is_some();
        if asks_ports && ip.protocol.is_some_and(|it| !it.has_ports()) {
            return wrong("a rule with ports and a protocol that has none: leave either out");
        }
        let rule = Self {
            ports: text.port.map(|it| mask_of(it, ports)).transpose()?,
            ethertype: text.ethertype.map(ethertype_of).transpose()?,
            vlan: text.vlan.map(vlan_of).transpose()?,
            ip: ip.is_any().then_some(ip),
            class: chain,
        };
        if !text.symmetric {
            return Ok(vec![rule]);
        }
        if rule.ports.is_some() {
            return wrong("symmetric is for both directions, port for one: leave either out");
        }
        let mirrored = rule.ip.clone().map(IpRule::mirrored);
        let mirrored = Self {
            ip: mirrored,
            ..rule.clone()
        };
        Ok(vec![rule, mirrored])
    }

    fn in_kernel(&self) -> KernelClassRule {
        KernelClassRule {
            ethertype: self.ethertype.map(|it| it.0),
            vlan: self.vlan,
            ip: self.ip.as_ref().map(IpRule::in_kernel),
            dscp: self.ip.as_ref().and_then(|it| it.dscp),
            class: self.class,
        }
    }

    #[inline]
    fn is_for_port(&self, port: usize) -> bool {
        let of_port = |ports: &[u64; 4]| ports[port / 64 % 4] >> (port % 64) & 1 == 1;
        self.ports.as_ref().is_none_or(of_port)
    }

    #[inline]
    fn matches(&self, fields: &Fields) -> bool {
        self.is_for_port(fields.port)
            && self.ethertype.is_none_or(|it| fields.ethertype == Some(it))
            && self.vlan.is_none_or(|it| fields.vlan == it)
            && match (&self.ip, &fields.ip) {
                (None, _) => true,
                (Some(rule), Some((tuple, dscp))) => rule.matches(tuple, *dscp),
                (Some(_), None) => false,
            }
    }
}

impl IpRule {
    /// Returns true if the rule compares any field.
    fn is_any(&self) -> bool {
        self.protocol.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || self.source_port.is_some()
            || self.destination_port.is_some()
            || self.dscp.is_some()
    }

    fn in_kernel(&self) -> KernelFields {
        matching::in_kernel(
            self.protocol,
            [self.source, self.destination],
            [&self.source_port, &self.destination_port],
        )
    }

    /// Returns the rule for packets in the opposite direction.
    fn mirrored(self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..self
        }
    }

    #[inline]
    fn matches(&self, tuple: &Tuple, dscp: u8) -> bool {
        let ports = tuple.ports.filter(|_| !tuple.is_fragment);
        let port_fits = |range: &Option<RangeInclusive<u16>>, port: Option<u16>| match range {
            None => true,
            Some(range) => port.is_some_and(|port| range.contains(&port)),
        };
        self.protocol.is_none_or(|it| it == tuple.protocol)
            && self.dscp.is_none_or(|it| it == dscp)
            && self.source.is_none_or(|it| it.has(tuple.source))
            && self.destination.is_none_or(|it| it.has(tuple.destination))
            && port_fits(&self.source_port, ports.map(|it| it.0))
            && port_fits(&self.destination_port, ports.map(|it| it.1))
    }
}

/// Returns the class called `name`: a chain, or one of [`NO_CHAIN`].
fn class_of(name: &str, chains: &[String]) -> Result<u8, String> {
    let known = chains.iter().map(String::as_str).chain(NO_CHAIN);
    let found = known.clone().position(|known| known == name);
    found.map(|at| at as u8).ok_or_else(|| {
        let names: Vec<_> = known.clone().collect();
        format!(
            "expected {}{}: a chain has functions with chain = \"...\"",
            names.join(", "),
            taut_settings::suggestion(name, known)
        )
    })
}

/// Returns a set of port indices as a mask, one bit for each.
fn mask_of(given: DevicePorts, ports: usize) -> Result<[u64; 4], SettingsError> {
    let list = match given {
        DevicePorts::One(port) => vec![port],
        DevicePorts::Several(list) => list,
    };
    let mut mask = [0; 4];
    for port in list {
        if usize::from(port) >= ports {
            return Err(SettingsError(format!(
                "port = {port}: this chain has ports 0 to {}",
                ports.saturating_sub(1)
            )));
        }
        mask[usize::from(port / 64)] |= 1 << (port % 64);
    }
    Ok(mask)
}

fn ethertype_of(text: EtherTypeText) -> Result<EtherType, SettingsError> {
    let name = match text {
        EtherTypeText::Number(number) => return Ok(EtherType(number)),
        EtherTypeText::Name(name) => name,
    };
    match name.as_str() {
        "ipv4" => Ok(EtherType::IPV4),
        "ipv6" => Ok(EtherType::IPV6),
        "arp" => Ok(EtherType::ARP),
        _ => Err(SettingsError(format!(
            "ethertype = \"{name}\": expected ipv4, ipv6, arp or a number, such as 0x88f7"
        ))),
    }
}

fn vlan_of(text: VlanText) -> Result<Option<u16>, SettingsError> {
    match text {
        VlanText::Id(id) if id <= taut_wire::VlanTag::MAX_ID => Ok(Some(id)),
        VlanText::Name(name) if name == "none" => Ok(None),
        VlanText::Id(id) => Err(id.to_string()),
        VlanText::Name(name) => Err(format!("\"{name}\"")),
    }
    .map_err(|given| {
        SettingsError(format!(
            "vlan = {given}: expected a VLAN identifier from 0 to 4094, or \"none\""
        ))
    })
}

/// Returns the DSCP that `text` gives as a number or a name (RFC 2474, RFC 2597, RFC 3246).
fn dscp_of(text: DscpText) -> Result<u8, SettingsError> {
    let wrong = |given: String| {
        SettingsError(format!(
            "dscp = {given}: expected a number from 0 to 63, ef, cs0 to cs7, or af11 to af43"
        ))
    };
    let name = match text {
        DscpText::Number(number) if number <= HIGHEST_DSCP => return Ok(number),
        DscpText::Number(number) => return Err(wrong(number.to_string())),
        DscpText::Name(name) => name,
    };
    let found = match name.as_bytes() {
        b"ef" => Some(46),
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') * 8),
        [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
            Some((class - b'0') * 8 + (drop - b'0') * 2)
        }
        _ => None,
    };
    found.ok_or_else(|| wrong(format!("\"{name}\"")))
}

/// Returns the DSCP of an IP packet; 0 for other frames.
#[inline]
fn dscp(headers: &Headers, frame: &[u8]) -> u8 {
    let first = frame.get(headers.ip()..).and_then(|it| it.first_chunk());
    match (headers.layer3(), first) {
        (Layer3::Ipv4, Some([_, b])) => b >> 2,
        (Layer3::Ipv6, Some([a, b])) => (a & 0xf) << 2 | b >> 6,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
