//! Rules, groups and meters as people write them: in the chain file or in a file of their own.

use super::action::{Action, CUSTOMER_TAG, SERVICE_TAG, To, WHOLE};
use super::control::Rule;
use super::group::{Bucket, Group, GroupKind};
use super::key::{Field, Key, TAGGED};
use super::meter::{Limit, Meter};
use super::scope::Of;
use serde::Deserialize;
use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;
use taut_function::{SettingsError, each};
use taut_settings::duration;
use taut_wire::{EtherType, IpProtocol, Mac, VlanTag};

/// The priority of a rule that sets none. (OpenFlow's default, 0x8000.)
const USUAL_PRIORITY: u16 = 0x8000;

/// The contents of a file of rules, groups and meters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub rule: Vec<toml::Table>,
    #[serde(default)]
    pub group: Vec<toml::Table>,
    #[serde(default)]
    pub meter: Vec<toml::Table>,
}

/// The rules, groups and meters of a file after parsing.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub rules: Vec<Rule>,
    pub groups: Vec<Group>,
    pub meters: Vec<Meter>,
}

impl File {
    pub fn read(self) -> Result<Rules, SettingsError> {
        Ok(Rules {
            rules: each("rule", self.rule, RuleText::read)?,
            groups: each("group", self.group, GroupText::read)?,
            meters: each("meter", self.meter, MeterText::read)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a name")]
enum Value {
    Number(u32),
    Name(String),
}

impl Value {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(u64::from(*number)),
            Self::Name(name) => number(name),
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => write!(f, "\"{name}\""),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(default)]
    table: u8,
    #[serde(default = "usual_priority")]
    priority: u16,
    #[serde(default)]
    cookie: u64,
    idle_timeout: Option<String>,
    hard_timeout: Option<String>,
    in_port: Option<u8>,
    eth_src: Option<String>,
    eth_dst: Option<String>,
    eth_type: Option<Value>,
    vlan: Option<Value>,
    vlan_pcp: Option<u8>,
    ip_proto: Option<Value>,
    ip_src: Option<String>,
    ip_dst: Option<String>,
    dscp: Option<u8>,
    ecn: Option<u8>,
    ttl: Option<u8>,
    port_src: Option<u16>,
    port_dst: Option<u16>,
    udp_src: Option<u16>,
    udp_dst: Option<u16>,
    tcp_src: Option<u16>,
    tcp_dst: Option<u16>,
    icmp_type: Option<u8>,
    icmp_code: Option<u8>,
    arp_op: Option<u16>,
    actions: Vec<String>,
}

fn usual_priority() -> u16 {
    USUAL_PRIORITY
}

/// The match of a rule while its fields are parsed.
#[derive(Default)]
struct Asked {
    value: Key,
    mask: Key,
}

impl Asked {
    /// Adds a field to the match; fails if the match already has another value for the field.
    fn for_bits(
        &mut self,
        key: &str,
        field: Field,
        value: u128,
        mask: u128,
    ) -> Result<(), SettingsError> {
        if value & !field.whole() != 0 {
            return Err(SettingsError(format!(
                "{key} = {value}: expected 0 to {}",
                field.whole()
            )));
        }
        let (own_mask, own) = (self.mask.get(field), self.value.get(field));
        if own_mask != 0 && (own_mask, own) != (mask, value) {
            return Err(SettingsError(format!(
                "{key}: contradicts another key of the rule: no packet matches both"
            )));
        }
        self.mask.set(field, mask);
        self.value.set(field, value & mask);
        Ok(())
    }

    fn whole(&mut self, key: &str, field: Field, value: u128) -> Result<(), SettingsError> {
        self.for_bits(key, field, value, field.whole())
    }
}

impl RuleText {
    fn read(self) -> Result<Rule, SettingsError> {
        let mut asked = Asked::default();
        self.ask_link(&mut asked)?;
        self.ask_ip(&mut asked)?;
        self.ask_ports(&mut asked)?;
        let mut actions = Vec::new();
        for text in &self.actions {
            actions.extend(action(text)?);
        }
        super::action::steps(&actions, self.table)
            .map_err(|e| SettingsError(format!("actions: {e}")))?;
        Ok(Rule {
            table: self.table,
            priority: self.priority,
            value: asked.value,
            mask: asked.mask,
            does: actions.into(),
            cookie: self.cookie,
            flags: 0,
            idle_s: seconds("idle_timeout", self.idle_timeout.as_deref())?,
            hard_s: seconds("hard_timeout", self.hard_timeout.as_deref())?,
        })
    }

    fn ask_link(&self, asked: &mut Asked) -> Result<(), SettingsError> {
        if let Some(port) = self.in_port {
            asked.whole("in_port", Field::InPort, u128::from(port))?;
        }
        for (key, field, text) in [
            ("eth_src", Field::EthSource, &self.eth_src),
            ("eth_dst", Field::EthDestination, &self.eth_dst),
        ] {
            if let Some(text) = text {
                let (value, mask) = masked_mac(key, text)?;
                asked.for_bits(key, field, value & mask, mask)?;
            }
        }
        if let Some(kind) = &self.eth_type {
            let number = match kind {
                Value::Name(name) => match name.as_str() {
                    "ip" | "ipv4" => Some(0x0800),
                    "arp" => Some(0x0806),
                    "ipv6" => Some(0x86dd),
                    _ => kind.number(),
                },
                Value::Number(_) => kind.number(),
            };
            let number = number.filter(|it| *it <= 0xffff).ok_or_else(|| {
                SettingsError(format!(
                    "eth_type = {kind}: expected ipv4, ipv6, arp or a number such as \"0x88cc\""
                ))
            })?;
            asked.whole("eth_type", Field::EthType, u128::from(number))?;
        }
        if let Some(vlan) = &self.vlan {
            let value = match vlan {
                Value::Name(name) if name == "none" => 0,
                Value::Name(name) if name == "any" => {
                    let tagged = u128::from(TAGGED);
                    return asked.for_bits("vlan", Field::VlanId, tagged, tagged);
                }
                _ => match vlan.number() {
                    Some(id) if id <= u64::from(VlanTag::MAX_ID) => {
                        u128::from(TAGGED) | u128::from(id)
                    }
                    _ => {
                        return Err(SettingsError(format!(
                            "vlan = {vlan}: expected 0 to {}, \"any\" or \"none\"",
                            VlanTag::MAX_ID
                        )));
                    }
                },
            };
            asked.whole("vlan", Field::VlanId, value)?;
        }
        if let Some(priority) = self.vlan_pcp {
            asked.whole("vlan_pcp", Field::VlanPriority, u128::from(priority))?;
        }
        if let Some(operation) = self.arp_op {
            asked.whole("arp_op", Field::EthType, u128::from(EtherType::ARP.0))?;
            asked.whole("arp_op", Field::ArpOperation, u128::from(operation))?;
        }
        Ok(())
    }

    fn ask_ip(&self, asked: &mut Asked) -> Result<(), SettingsError> {
        for (key, field, text) in [
            ("ip_src", Field::Source, &self.ip_src),
            ("ip_dst", Field::Destination, &self.ip_dst),
        ] {
            let Some(text) = text else { continue };
            let (kind, value, mask) = prefix(text).ok_or_else(|| {
                SettingsError(format!(
                    "{key} = \"{text}\": expected an address, or a network whose other bits are 0, such as \"10.1.0.0/16\""
                ))
            })?;
            // ARP has IPv4 addresses, too.
            let is_arp = asked.value.get(Field::EthType) == u128::from(EtherType::ARP.0);
            if !(is_arp && kind == EtherType::IPV4) {
                asked.whole(key, Field::EthType, u128::from(kind.0))?;
            }
            if mask != 0 {
                asked.for_bits(key, field, value, mask)?;
            }
        }
        if let Some(protocol) = &self.ip_proto {
            let number = match protocol {
                Value::Name(name) => match name.as_str() {
                    "icmp" => Some(1),
                    "tcp" => Some(6),
                    "udp" => Some(17),
                    "icmpv6" => Some(58),
                    "sctp" => Some(132),
                    _ => protocol.number(),
                },
                Value::Number(_) => protocol.number(),
            };
            let number = number.filter(|it| *it <= 0xff).ok_or_else(|| {
                SettingsError(format!(
                    "ip_proto = {protocol}: expected tcp, udp, sctp, icmp, icmpv6 or a number from 0 to 255"
                ))
            })?;
            asked.whole("ip_proto", Field::IpProtocol, u128::from(number))?;
        }
        for (key, field, value) in [
            ("dscp", Field::Dscp, self.dscp),
            ("ecn", Field::Ecn, self.ecn),
            ("ttl", Field::Ttl, self.ttl),
        ] {
            if let Some(value) = value {
                asked.whole(key, field, u128::from(value))?;
            }
        }
        Ok(())
    }

    fn ask_ports(&self, asked: &mut Asked) -> Result<(), SettingsError> {
        let (udp, tcp) = (Some(IpProtocol::UDP), Some(IpProtocol::TCP));
        for (key, protocol, field, port) in [
            ("port_src", None, Field::SourcePort, self.port_src),
            ("port_dst", None, Field::DestinationPort, self.port_dst),
            ("udp_src", udp, Field::SourcePort, self.udp_src),
            ("udp_dst", udp, Field::DestinationPort, self.udp_dst),
            ("tcp_src", tcp, Field::SourcePort, self.tcp_src),
            ("tcp_dst", tcp, Field::DestinationPort, self.tcp_dst),
        ] {
            let Some(port) = port else { continue };
            if let Some(protocol) = protocol {
                asked.whole(key, Field::IpProtocol, u128::from(protocol.0))?;
            } else if asked.mask.get(Field::IpProtocol) == 0 {
                return Err(SettingsError(format!(
                    "{key}: give the protocol of the port (ip_proto), or write udp{0} or tcp{0}",
                    &key[4..]
                )));
            }
            asked.whole(key, field, u128::from(port))?;
        }
        for (key, field, value) in [
            ("icmp_type", Field::SourcePort, self.icmp_type),
            ("icmp_code", Field::DestinationPort, self.icmp_code),
        ] {
            let Some(value) = value else { continue };
            let protocol = IpProtocol(asked.value.get(Field::IpProtocol) as u8);
            if !matches!(protocol, IpProtocol::ICMP | IpProtocol::ICMPV6) {
                return Err(SettingsError(format!(
                    "{key}: needs ip_proto = \"icmp\" or \"icmpv6\""
                )));
            }
            asked.whole(key, field, u128::from(value))?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupText {
    id: u32,
    #[serde(rename = "type")]
    kind: GroupKind,
    buckets: Vec<BucketText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BucketText {
    #[serde(default = "one")]
    weight: u16,
    watch_port: Option<u8>,
    actions: Vec<String>,
}

fn one() -> u16 {
    1
}

impl GroupText {
    fn read(self) -> Result<Group, SettingsError> {
        let bucket = |text: BucketText| {
            let mut actions = Vec::new();
            for text in &text.actions {
                actions.extend(action(text)?);
            }
            Ok(Bucket {
                weight: text.weight,
                watch: text.watch_port,
                actions,
            })
        };
        let buckets: Result<_, SettingsError> = self.buckets.into_iter().map(bucket).collect();
        let group = Group {
            id: self.id,
            kind: self.kind,
            buckets: buckets?,
        };
        group.check().map_err(|e| SettingsError(e.to_string()))?;
        Ok(group)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeterText {
    id: u32,
    kbps: Option<u32>,
    pps: Option<u32>,
    burst: Option<u32>,
}

impl MeterText {
    fn read(self) -> Result<Meter, SettingsError> {
        let rate = match (self.kbps, self.pps) {
            (Some(kbps), None) => Limit::Kbps(kbps),
            (None, Some(pps)) => Limit::Pps(pps),
            _ => return Err(SettingsError("give either kbps or pps".to_string())),
        };
        let meter = Meter {
            id: self.id,
            rate,
            burst: self.burst,
        };
        meter.check().map_err(|e| SettingsError(e.to_string()))?;
        Ok(meter)
    }
}

/// Parses the text of an action; none for "drop", which is no action.
fn action(text: &str) -> Result<Option<Action>, SettingsError> {
    let wrong = |want: &str| SettingsError(format!("action \"{text}\": expected {want}"));
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name.trim(), Some(argument.trim())),
        None => (text.trim(), None),
    };
    let action = match (name, argument) {
        ("drop", None) => return Ok(None),
        ("in_port", None) => Action::Output(To::InPort, 0),
        ("flood", None) => Action::Output(To::Flood, 0),
        ("normal", None) => Action::Output(To::Normal, 0),
        ("controller", None) => Action::Output(To::Controller, WHOLE),
        ("dec_ttl", None) => Action::DecrementTtl,
        ("pop_vlan", None) => Action::PopVlan,
        ("push_vlan", None) => Action::PushVlan(CUSTOMER_TAG),
        ("push_vlan", Some(kind)) => {
            let kind = number(kind).map(|it| EtherType(it as u16));
            let kind = kind.filter(|it| [CUSTOMER_TAG, SERVICE_TAG].contains(it));
            Action::PushVlan(kind.ok_or_else(|| wrong("push_vlan:0x8100 or push_vlan:0x88a8"))?)
        }
        ("output", Some(port)) => {
            let port = port.parse().ok().filter(|port| *port < u8::MAX);
            Action::port(
                port.ok_or_else(|| wrong("output:N, a port of the chain by its number, from 0"))?,
            )
        }
        ("queue", Some(queue)) => {
            let queue = queue.parse().ok().filter(|queue| *queue < 8);
            Action::Queue(queue.ok_or_else(|| wrong("queue:N, 0 to 7"))?)
        }
        ("group", Some(id)) => Action::Group(id.parse().map_err(|_| wrong("group:ID"))?),
        ("meter", Some(id)) => Action::Meter(id.parse().map_err(|_| wrong("meter:ID"))?),
        ("goto", Some(table)) => Action::Goto(table.parse().map_err(|_| wrong("goto:TABLE"))?),
        ("set", Some(assigned)) => {
            let (field, of, value) = assigned
                .split_once('=')
                .and_then(|(field, value)| set_text(field.trim(), value.trim()))
                .ok_or_else(|| {
                    wrong(
                        "set:FIELD=VALUE with eth_src, eth_dst, vlan, vlan_pcp, ip_src, ip_dst, ip_dscp, ip_ecn, ttl, port_src \
                         or port_dst",
                    )
                })?;
            Action::Set(field, of, value)
        }
        _ => {
            return Err(wrong(
                "output:N, in_port, flood, normal, controller, drop, queue:N, group:ID, meter:ID, set:FIELD=VALUE, dec_ttl, \
                 push_vlan, pop_vlan or goto:TABLE",
            ));
        }
    };
    Ok(Some(action))
}

fn set_text(field: &str, value: &str) -> Option<(Field, Of, u128)> {
    let set = |field: Field, of: Of, value: Option<u128>| {
        let value = value.filter(|value| value & !field.whole() == 0)?;
        Some((field, of, value))
    };
    let plain = number(value).map(u128::from);
    let mac = Mac::from_str(value).ok().map(mac_number);
    let address = value.parse::<IpAddr>().ok();
    let of_address = match address {
        Some(IpAddr::V6(_)) => Of::Ipv6,
        _ => Of::Ipv4OrArp,
    };
    let address = address.map(address_number);
    match field {
        "eth_src" => set(Field::EthSource, Of::Any, mac),
        "eth_dst" => set(Field::EthDestination, Of::Any, mac),
        "vlan" => set(
            Field::VlanId,
            Of::Any,
            plain.filter(|id| *id <= u128::from(VlanTag::MAX_ID)),
        ),
        "vlan_pcp" => set(Field::VlanPriority, Of::Any, plain),
        "ip_src" => set(Field::Source, of_address, address),
        "ip_dst" => set(Field::Destination, of_address, address),
        "ip_dscp" | "dscp" => set(Field::Dscp, Of::Ip, plain),
        "ip_ecn" | "ecn" => set(Field::Ecn, Of::Ip, plain),
        "ttl" => set(Field::Ttl, Of::Ip, plain),
        "port_src" => set(Field::SourcePort, Of::Ports, plain),
        "port_dst" => set(Field::DestinationPort, Of::Ports, plain),
        _ => None,
    }
}

fn seconds(key: &str, text: Option<&str>) -> Result<u16, SettingsError> {
    let Some(text) = text else { return Ok(0) };
    let whole = duration(text).filter(|it| it.subsec_nanos() == 0 && !it.is_zero());
    let whole = whole.and_then(|it| u16::try_from(it.as_secs()).ok());
    whole.ok_or_else(|| {
        SettingsError(format!(
            "{key}: expected whole seconds, \"1s\" to \"65535s\", not \"{text}\""
        ))
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

pub(super) fn mac_number(mac: Mac) -> u128 {
    mac.0
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn address_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn masked_mac(key: &str, text: &str) -> Result<(u128, u128), SettingsError> {
    let (mac, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
    match (Mac::from_str(mac), Mac::from_str(mask)) {
        (Ok(mac), Ok(mask)) => Ok((mac_number(mac), mac_number(mask))),
        _ => Err(SettingsError(format!(
            "{key} = \"{text}\": expected a MAC address, such as \"02:00:00:00:00:01\", or one with a mask after a slash"
        ))),
    }
}

/// Parses a network: returns the EtherType of its IP version, its address bits, and its mask; none if the text is no
/// network.
fn prefix(text: &str) -> Option<(EtherType, u128, u128)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let (kind, whole) = match address {
        IpAddr::V4(_) => (EtherType::IPV4, 32),
        IpAddr::V6(_) => (EtherType::IPV6, 128),
    };
    let length = length.unwrap_or(whole);
    let others = whole.checked_sub(length)?;
    let all = u128::MAX >> (128 - whole);
    let mask = all & u128::MAX.checked_shl(others).unwrap_or(0);
    let bits = address_number(address);
    (bits & !mask == 0).then_some((kind, bits, mask))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Rules, SettingsError> {
        toml::from_str::<File>(text).unwrap().read()
    }

    #[test]
    fn keys_of_a_rule_are_parsed_into_match_and_actions() {
        let rules = read(
            "[[rule]]\npriority = 7\nin_port = 2\nudp_dst = 42\nip_dst = \"10.1.0.0/16\"\nvlan = 5\n\
             idle_timeout = \"10s\"\nactions = [\"set:eth_dst=02:00:00:00:00:09\", \"queue:7\", \"output:1\", \"output:3\"]\n",
        )
        .unwrap();
        let rule = &rules.rules[0];
        assert_eq!((rule.priority, rule.idle_s, rule.hard_s), (7, 10, 0));
        for (field, value, mask) in [
            (Field::InPort, 2, 0xffff),
            (Field::IpProtocol, 17, 0xff),
            (Field::DestinationPort, 42, 0xffff),
            (Field::EthType, 0x0800, 0xffff),
            (Field::Destination, 0x0a01_0000, 0xffff_0000),
            (Field::VlanId, 0x1005, 0x1fff),
            (Field::Ttl, 0, 0),
        ] {
            assert_eq!((rule.value.get(field), rule.mask.get(field)), (value, mask));
        }
        assert_eq!(
            rule.does.apply,
            [
                Action::Set(Field::EthDestination, Of::Any, 0x0200_0000_0009),
                Action::Queue(7),
                Action::port(1),
                Action::port(3)
            ]
        );
    }

    #[test]
    fn errors_in_a_switch_file_name_the_rule_and_key() {
        for (text, want) in [
            (
                "[[rule]]\nactions = [\"fly\"]",
                "rule 1: action \"fly\": expected output:N",
            ),
            ("[[rule]]\nactions = [\"output:300\"]", "expected output:N"),
            ("[[rule]]\nport_dst = 5\nactions = []", "udp_dst or tcp_dst"),
            (
                "[[rule]]\nudp_dst = 5\ntcp_dst = 5\nactions = []",
                "tcp_dst: contradicts another key of the rule",
            ),
            (
                "[[rule]]\nip_dst = \"10.1.0.1/16\"\nactions = []",
                "whose other bits are 0",
            ),
            (
                "[[rule]]\neth_type = \"ipv6\"\nip_dst = \"10.1.0.1\"\nactions = []",
                "ip_dst: contradicts another key",
            ),
            ("[[rule]]\nvlan = 4095\nactions = []", "expected 0 to 4094"),
            (
                "[[rule]]\ndscp = 64\nactions = []",
                "dscp = 64: expected 0 to 63",
            ),
            (
                "[[rule]]\nactions = [\"output:1\", \"pop_vlan\"]",
                "actions: actions that modify a packet",
            ),
            (
                "[[rule]]\nidle_timeout = \"1ms\"\nactions = []",
                "whole seconds",
            ),
            ("[[rule]]\ncolour = 1\nactions = []", "colour"),
            ("[[meter]]\nid = 1\n", "either kbps or pps"),
            (
                "[[group]]\nid = 1\ntype = \"all\"\nbuckets = [{ actions = [\"dec_ttl\"] }]",
                "group 1",
            ),
        ] {
            let message = read(text).map(|_| ()).unwrap_err().0;
            assert!(message.contains(want), "{text}: {message}");
        }
    }
}
