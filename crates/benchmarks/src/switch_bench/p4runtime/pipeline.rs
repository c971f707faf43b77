//! The user's pipeline: which of its tables takes a rule, and how its match fields and actions are named. From the
//! section `[p4]` of the topology file and the P4Info that this section names.

use super::p4info::{Action, Field, Match, P4Info, Table};
use super::protobuf::Message;
use super::text_format;
use crate::switch_bench::openflow::{Action as Does, Asked, Change, Rule};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Maximum length of a file, bytes.
const MOST_FILE: u64 = 256 << 20;

/// The section `[p4]` of a topology file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct P4 {
    /// File with the P4Info of the pipeline, in text or binary form. A relative path is below the topology file's
    /// folder.
    p4info: PathBuf,
    /// File with the pipeline for the switch; none if the switch keeps its pipeline.
    pipeline: Option<PathBuf>,
    /// Number of the device at its P4Runtime server.
    #[serde(default = "one")]
    device_id: u64,
    /// Tables for rules. The first table that can express a rule gets it.
    table: Vec<P4Table>,
}

fn one() -> u64 {
    1
}

/// A table for rules, and the names of its match fields and actions in the P4Info.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct P4Table {
    name: String,
    /// Match field with the ingress port.
    in_port: Option<String>,
    /// Match field with the IPv4 destination address.
    ip_dst: Option<String>,
    /// Match field with the UDP destination port.
    udp_dst: Option<String>,
    /// Action that sends packets through a port.
    send: String,
    /// Parameter of `send` with the egress port; none if it is the only parameter without a fixed value.
    port: Option<String>,
    /// Action that drops packets.
    drop: String,
    /// Values of other match fields and parameters, as decimal or hexadecimal numbers.
    #[serde(default)]
    fixed: BTreeMap<String, String>,
}

/// A pipeline whose names are found in its P4Info.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Pipeline {
    pub device_id: u64,
    /// Encoded `ForwardingPipelineConfig`; none if the switch keeps its pipeline.
    pub config: Option<Vec<u8>>,
    /// Number that identifies `config` at the switch.
    pub cookie: u64,
    tables: Vec<Known>,
}

/// A table with the ids of its match fields and actions.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    id: u32,
    keys: Vec<Key>,
    /// True if entries have a priority.
    has_priority: bool,
    /// True if entries have a meter that counts packets.
    has_meter: bool,
    /// Id of the action that sends, its parameter with the port, and its encoded other parameters.
    send: (u32, Field, Vec<Vec<u8>>),
    drop: u32,
}

/// A match field, and its value in entries.
#[derive(Debug, Clone, PartialEq)]
struct Key {
    field: Field,
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Source {
    InPort,
    IpDst,
    UdpDst,
    Fixed(u128),
}

impl P4 {
    /// Reads the files, relative to `folder`, and finds all names.
    ///
    /// # Errors
    /// A file is missing or invalid, or a name is not in the P4Info; the text names the key.
    pub fn open(&self, folder: &Path) -> Result<Pipeline, String> {
        let read = |key: &str, path: &Path| {
            let path = folder.join(path);
            let wrong = |why: String| format!("{key}: {}: {why}", path.display());
            let length = std::fs::metadata(&path).map_err(|e| wrong(e.to_string()))?;
            if !length.is_file() || length.len() > MOST_FILE {
                return Err(wrong("no file, or longer than 256 MiB".to_string()));
            }
            let bytes = std::fs::read(&path).map_err(|e| wrong(e.to_string()))?;
            Ok((path, bytes))
        };
        let (path, info) = read("p4info", &self.p4info)?;
        let info = as_binary(info).map_err(|why| format!("p4info: {}{why}", path.display()))?;
        let parsed = P4Info::read(&info);
        let parsed = parsed.map_err(|_| {
            let path = path.display();
            format!("p4info: {path}: no P4Info in text or binary form; write one with p4c --p4runtime-files")
        })?;
        let device = self.pipeline.as_deref();
        let device = device.map(|path| read("pipeline", path)).transpose()?;
        let tables = self.table.iter();
        let tables = tables.map(|table| Known::find(table, &parsed));
        let tables: Vec<Known> = tables.collect::<Result<_, _>>()?;
        if tables.is_empty() {
            return Err("table: expected at least one [[p4.table]]".to_string());
        }
        let (config, cookie) = match device {
            None => (None, 0),
            Some((_, device)) => {
                let digest = Sha256::new().chain_update(&info).chain_update(&device);
                let digest = digest.finalize();
                // 0 is the cookie of a switch without one.
                let cookie = digest
                    .iter()
                    .take(7)
                    .fold(1, |sum, it| sum << 8 | u64::from(*it));
                let config = Message::default().bytes(1, &info).bytes(2, &device);
                let config = config.message(3, &Message::default().number(1, cookie));
                (Some(config.0), cookie)
            }
        };
        Ok(Pipeline {
            device_id: self.device_id,
            config,
            cookie,
            tables,
        })
    }
}

/// Returns the binary form of a P4Info, which may be in text form.
fn as_binary(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    // The keys of the fields in the binary form are control characters.
    let is_text = bytes
        .iter()
        .all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace());
    match std::str::from_utf8(&bytes) {
        Ok(text) if is_text => {
            text_format::binary(text).map_err(|wrong| format!(":{}: {}", wrong.line, wrong.why))
        }
        _ => Ok(bytes),
    }
}

/// Returns the one with this name or alias.
fn named<'a, T>(
    key: &str,
    name: &str,
    all: &'a [T],
    names: fn(&T) -> [&str; 2],
) -> Result<&'a T, String> {
    let found = all.iter().find(|it| names(it).contains(&name));
    found.ok_or_else(|| {
        let mut there: Vec<&str> = all.iter().map(|it| names(it)[0]).take(20).collect();
        if there.is_empty() {
            there.push("none");
        }
        format!(
            "{key}: the P4Info has no {name}; there are: {}",
            there.join(", ")
        )
    })
}

/// Parses a number in decimal or, after `0x`, in hexadecimal digits.
fn fixed_number(name: &str, text: &str) -> Result<u128, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| format!("fixed: {name}: {text} is no number"))
}

impl Known {
    fn find(asked: &P4Table, info: &P4Info) -> Result<Self, String> {
        let table = named("name", &asked.name, &info.tables, |it| {
            [&it.name, &it.alias]
        })?;
        let wrong = |key: &str, why: &str| Err(format!("{key}: {why} (table {})", asked.name));
        if table.is_const || table.is_indirect {
            return wrong(
                "name",
                "its entries are constant, or select members of a profile",
            );
        }
        let mut fixed = BTreeMap::new();
        for (name, text) in &asked.fixed {
            fixed.insert(name.as_str(), fixed_number(name, text)?);
        }
        let keys = keys(asked, table, &mut fixed)?;
        let has = |kinds: &[Match]| table.keys.iter().any(|it| kinds.contains(&it.kind));
        let action = |key: &str, name: &str| {
            let action = named(key, name, &info.actions, |it| [&it.name, &it.alias])?;
            match table.actions.contains(&action.id) {
                true => Ok(action),
                false => Err(format!("{key}: table {} has no action {name}", asked.name)),
            }
        };
        let drop = action("drop", &asked.drop)?;
        if !drop.parameters.is_empty() {
            return wrong("drop", "an action without parameters is expected");
        }
        let send = send(asked, action("send", &asked.send)?, &mut fixed)?;
        if let Some(name) = fixed.keys().next() {
            let why = format!("{name} is no match field or parameter, or has a name already");
            return wrong("fixed", &why);
        }
        Ok(Self {
            id: table.id,
            keys,
            has_priority: has(&[Match::Ternary, Match::Range, Match::Optional]),
            has_meter: info.packet_meters.contains(&table.id),
            send,
            drop: drop.id,
        })
    }

    /// Returns the encoded match fields for a rule; none if the table cannot express the rule.
    fn matches(&self, asked: &Asked) -> Option<Vec<Message>> {
        let has = |source: Source| self.keys.iter().any(|key| key.source == source);
        // Packets of a trial enter through one port, so that the address is enough.
        let is_port_needed = asked.in_port.is_some() && asked.ip_dst.is_none();
        if (is_port_needed && !has(Source::InPort))
            || (asked.ip_dst.is_some() && !has(Source::IpDst))
            || (asked.udp_dst.is_some() && !has(Source::UdpDst))
        {
            return None;
        }
        let mut fields = Vec::new();
        for Key { field, source } in &self.keys {
            let value = match source {
                Source::InPort => asked.in_port.map(|port| (u128::from(port), None)),
                Source::IpDst => asked
                    .ip_dst
                    .map(|(address, length)| (u128::from(address.to_bits()), Some(length))),
                Source::UdpDst => asked.udp_dst.map(|port| (u128::from(port), None)),
                Source::Fixed(number) => Some((*number, None)),
            };
            match value {
                Some((number, length)) => fields.extend(matching(field, number, length)?),
                None if field.kind == Match::Exact => return None,
                None => {}
            }
        }
        Some(fields)
    }

    fn action(&self, rule: &Rule) -> Option<Message> {
        let action = match rule.actions[..] {
            [] => Message::default().number(1, u64::from(self.drop)),
            [Does::Output(port)] => {
                let (id, parameter, others) = &self.send;
                let port = value(parameter, u128::from(port))?;
                let port = Message::default()
                    .number(2, u64::from(parameter.id))
                    .bytes(3, &port);
                let action = Message::default()
                    .number(1, u64::from(*id))
                    .message(4, &port);
                others.iter().fold(action, |action, it| action.bytes(4, it))
            }
            _ => return None,
        };
        Some(Message::default().message(1, &action))
    }
}

/// Finds the match fields of a table, and removes their fixed values from `fixed`.
fn keys(
    asked: &P4Table,
    table: &Table,
    fixed: &mut BTreeMap<&str, u128>,
) -> Result<Vec<Key>, String> {
    let mut keys = Vec::new();
    for (key, name, source) in [
        ("in_port", &asked.in_port, Source::InPort),
        ("ip_dst", &asked.ip_dst, Source::IpDst),
        ("udp_dst", &asked.udp_dst, Source::UdpDst),
    ] {
        if let Some(name) = name {
            let field = named(key, name, &table.keys, |it| [it.name.as_str(); 2])?.clone();
            keys.push(Key { field, source });
        }
    }
    if keys.is_empty() {
        return Err(format!(
            "table {}: expected in_port, ip_dst or both",
            asked.name
        ));
    }
    for field in &table.keys {
        let is_known = keys.iter().any(|key| key.field.id == field.id);
        match fixed.remove(field.name.as_str()) {
            Some(_) if is_known => {
                return Err(format!("fixed: {} has a name already", field.name));
            }
            Some(number) => {
                if matching(field, number, None).is_none() {
                    return Err(format!("fixed: {}: {number} is too large", field.name));
                }
                keys.push(Key {
                    field: field.clone(),
                    source: Source::Fixed(number),
                });
            }
            None if !is_known && matches!(field.kind, Match::Exact | Match::Unknown) => {
                return Err(format!(
                    "table {}: the match field {} needs a value under `fixed`",
                    asked.name, field.name
                ));
            }
            None => {}
        }
    }
    keys.sort_by_key(|key| key.field.id);
    Ok(keys)
}

/// Finds the parameters of the action that sends, and removes their fixed values from `fixed`.
fn send(
    asked: &P4Table,
    action: &Action,
    fixed: &mut BTreeMap<&str, u128>,
) -> Result<(u32, Field, Vec<Vec<u8>>), String> {
    let mut others = Vec::new();
    let mut left = Vec::new();
    for parameter in &action.parameters {
        match fixed.remove(parameter.name.as_str()) {
            Some(number) => {
                let value = value(parameter, number);
                let value = value.ok_or_else(|| format!("fixed: {}: too large", parameter.name))?;
                let id = u64::from(parameter.id);
                others.push(Message::default().number(2, id).bytes(3, &value).0);
            }
            None => left.push(parameter),
        }
    }
    match left[..] {
        [port] if asked.port.as_ref().is_none_or(|name| *name == port.name) => {
            Ok((action.id, port.clone(), others))
        }
        _ => {
            let names: Vec<&str> = left.iter().map(|it| it.name.as_str()).collect();
            Err(format!(
                "port: expected one parameter of {} with the egress port, and values under `fixed` for all others; \
                 without a value are: {}",
                asked.send,
                names.join(", ")
            ))
        }
    }
}

/// Returns the shortest bytes of a value (P4Runtime Specification 1.4.1, section 8.4); none if it is wider than the
/// field. A field without a width takes the number as text.
fn value(field: &Field, number: u128) -> Option<Vec<u8>> {
    if field.bits == 0 {
        return Some(number.to_string().into_bytes());
    }
    let used = 128 - number.leading_zeros();
    if used > field.bits {
        return None;
    }
    let bytes = number.to_be_bytes();
    let skipped = (number.leading_zeros() / 8).min(15) as usize;
    Some(bytes[skipped..].to_vec())
}

/// Returns the encoded `FieldMatch` of a value, or of a network if a prefix `length` is given. The inner `None` matches
/// every value. The result is none if the field cannot express the value.
fn matching(field: &Field, number: u128, length: Option<u8>) -> Option<Option<Message>> {
    let exact = value(field, number)?;
    let bits = field.bits;
    let length = length.map_or(bits, u32::from);
    if length > bits {
        return None;
    }
    if length == 0 && bits > 0 {
        return (field.kind != Match::Exact).then_some(None);
    }
    let ones = |many: u32| u128::MAX.checked_shr(128 - many.min(128)).unwrap_or(0);
    let is_whole = length == bits;
    let message = Message::default();
    let (kind, inner) = match field.kind {
        Match::Exact if is_whole => (2, message.bytes(1, &exact)),
        Match::Ternary => {
            let mask = value(field, ones(bits) & !ones(bits - length))?;
            (3, message.bytes(1, &exact).bytes(2, &mask))
        }
        Match::Prefix => (4, message.bytes(1, &exact).number(2, u64::from(length))),
        Match::Range => {
            let last = value(field, number | ones(bits - length))?;
            (6, message.bytes(1, &exact).bytes(2, &last))
        }
        Match::Optional if is_whole => (7, message.bytes(1, &exact)),
        _ => return None,
    };
    let id = u64::from(field.id);
    Some(Some(Message::default().number(1, id).message(kind, &inner)))
}

impl Pipeline {
    /// Returns the encoded `Update` for a change of a rule; none if no table can express the rule.
    pub(super) fn update(
        &self,
        change: Change,
        rule: &Rule,
        meter_pps: Option<u32>,
    ) -> Option<Message> {
        self.tables.iter().find_map(|table| {
            let fields = table.matches(&rule.asked)?;
            let mut entry = Message::default().number(1, u64::from(table.id));
            entry = fields.iter().fold(entry, |entry, it| entry.message(2, it));
            let is_deleted = change == Change::Delete;
            if !is_deleted {
                entry = entry.message(3, &table.action(rule)?);
            }
            if table.has_priority {
                entry = entry.number(4, u64::from(rule.priority.max(1)));
            }
            if rule.meter.is_some() && !is_deleted {
                let pps = u64::from(meter_pps.filter(|_| table.has_meter)?);
                let meter = (1..=4).fold(Message::default(), |it, field| it.number(field, pps));
                entry = entry.message(6, &meter);
            }
            let kind = match change {
                Change::Add => 1,
                Change::Modify => 2,
                Change::Delete => 3,
            };
            let entity = Message::default().message(2, &entry);
            Some(Message::default().number(1, kind).message(2, &entity))
        })
    }

    /// Returns true if a table can express rules with this match.
    pub fn matches(&self, asked: &Asked) -> bool {
        let mut tables = self.tables.iter();
        tables.any(|table| table.matches(asked).is_some())
    }

    /// Returns true if the table of rules with this match has priorities.
    pub fn has_priorities(&self, asked: &Asked) -> bool {
        let mut tables = self.tables.iter();
        let table = tables.find(|table| table.matches(asked).is_some());
        table.is_some_and(|table| table.has_priority)
    }

    /// Returns true if entries with this match have a meter that counts packets.
    pub fn has_meters(&self, asked: &Asked) -> bool {
        let mut tables = self.tables.iter();
        let table = tables.find(|table| table.matches(asked).is_some());
        table.is_some_and(|table| table.has_meter)
    }

    /// Returns the ids of the tables that get rules.
    pub fn table_ids(&self) -> impl Iterator<Item = u32> {
        self.tables.iter().map(|table| table.id)
    }

    /// Returns true if the ports of the tables are wide enough for port `number`.
    pub fn has_port(&self, number: u32) -> bool {
        let mut tables = self.tables.iter();
        tables.all(|table| value(&table.send.1, u128::from(number)).is_some())
    }
}

/// Returns the match of packets to one address or a network, as rules of the measurements have it.
pub(in super::super) fn to_network(in_port: u32, length: u8) -> Asked {
    Asked {
        in_port: Some(in_port),
        ip_dst: Some((Ipv4Addr::new(10, 0, 0, 0), length)),
        udp_dst: None,
    }
}
