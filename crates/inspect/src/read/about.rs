//! Options about the rule itself, such as its identifier and its message, and options about flows, hosts and rates.

use super::reader::Reader;
use crate::buffer::Application;
use crate::number::number;
use crate::refusal::{Read, Refusal, unable, wrong};
use crate::requires::unmet;
use crate::rule::*;
use crate::syntax::{WrittenOption, parts};

/// Default time in seconds for which a bit of a host is set, as in Suricata. The next constant is the maximum: a year.
const HOST_BIT_SECONDS: u32 = 30;
const MOST_BIT_SECONDS: u32 = 365 * 86_400;

/// Default time in seconds for which `hostbits` sets a bit.
const ONE_HOST_SECONDS: u32 = 300;

impl Reader<'_> {
    /// Reads an option about the rule itself, or about flows and hosts. Returns false for other options.
    pub(super) fn about(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "msg" => rule.about.message = text(value),
            "sid" => rule.about.id = number(value)?,
            "rev" => rule.about.revision = number(value)?,
            "gid" => rule.about.group = number(value)?,
            "classtype" => rule.about.class = value.to_string(),
            "priority" => rule.about.priority = number(value)?,
            "reference" => {
                let (kind, place) = value.split_once(',').unwrap_or(("url", value));
                rule.about
                    .references
                    .push((kind.trim().to_string(), place.trim().to_string()));
            }
            "metadata" => {
                for part in value.split(',') {
                    let (key, value) = part.trim().split_once(' ').unwrap_or((part.trim(), ""));
                    rule.about
                        .metadata
                        .push((key.to_string(), value.trim().to_string()));
                }
            }
            // These options inform users, or are hints for the speed of other detectors.
            "target" | "rem" | "enable" | "prefilter" | "rawbytes" | "logto" => {}
            "requires" => {
                if let Some(what) = unmet(value, |name| self.knows(name))? {
                    return unable(what);
                }
            }
            "service" => self.services(value, rule),
            "flow" => self.flow(value, rule)?,
            "noalert" => rule.is_silent = true,
            "alert" => rule.is_told = true,
            "bypass" => rule.bypasses = true,
            "flowbits" => self.flow_bits(value, rule)?,
            "xbits" => self.host_bits(value, rule)?,
            "hostbits" => self.bits_of_one_host(value, rule)?,
            "detection_filter" => rule.rate = Some(rate(value, Some(RateKind::Filter))?),
            "threshold" => rule.rate = Some(rate(value, None)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads services of Snort 3: if an inspector identifies a flow as one of them, the rule matches on any port.
    /// Services without an inspector are identified by the ports alone.
    fn services(&mut self, value: &str, rule: &mut Rule) {
        for service in value.split(',') {
            rule.services.extend(match service.trim() {
                "http" => Some(Application::Http),
                "dns" => Some(Application::Dns),
                "ssl" | "https" => Some(Application::Tls),
                _ => None,
            });
        }
    }

    fn flow(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        for part in value.split(',') {
            let is_direction = |it| part.trim().ends_with(it);
            rule.flow.is_of_packets |= !["server", "client"].into_iter().any(is_direction);
            match part.trim() {
                "to_server" | "from_client" => rule.flow.to_server = Some(true),
                "to_client" | "from_server" => rule.flow.to_server = Some(false),
                "established" => rule.flow.established = Some(true),
                "not_established" => rule.flow.established = Some(false),
                // The rule is evaluated on each packet alone.
                "no_stream" => rule.is_positional = true,
                "only_stream" => rule.flow.only_stream = true,
                "stateless" | "no_frag" => {}
                "only_frag" => return Err(Refusal::NotUnderstood),
                other => {
                    return wrong(format!(
                        "{other:?}: expected to_server, to_client, established or stateless"
                    ));
                }
            }
        }
        Ok(())
    }

    fn flow_bits(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let mut parts = value.splitn(2, ',');
        let verb = parts.next().unwrap_or_default().trim();
        if verb == "noalert" {
            rule.is_silent = true;
            return Ok(());
        }
        let names = parts.next().unwrap_or_default();
        // In Snort 2, a group name follows the names of the bits.
        let names = names.split(',').next().unwrap_or_default().trim();
        if names.is_empty() {
            return wrong("expected the name of a bit");
        }
        if names.split(['|', '&']).any(|name| name.trim().is_empty()) {
            return wrong("expected a bit name on both sides of each | or &");
        }
        let any = names.contains('|');
        let numbers = names
            .split(['|', '&'])
            .map(|name| self.names.number(name.trim()));
        let Some(bits) = numbers.collect::<Option<Vec<_>>>() else {
            return wrong("too many names of bits in all");
        };
        rule.bits.push(match verb {
            "set" | "setx" => FlowBit::Set(bits),
            "unset" => FlowBit::Unset(bits),
            "toggle" => FlowBit::Toggle(bits),
            "isset" => FlowBit::IsSet { bits, any },
            "isnotset" => FlowBit::IsNotSet(bits),
            _ => {
                return wrong(format!(
                    "{verb:?}: expected set, unset, toggle, isset, isnotset or noalert"
                ));
            }
        });
        Ok(())
    }

    /// Reads `hostbits`, which has one host and no time.
    fn bits_of_one_host(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let track = match parts.get(2).copied() {
            None | Some("src") => "ip_src",
            Some("dst") => "ip_dst",
            Some(_) => return Err(Refusal::NotUnderstood),
        };
        match parts[..] {
            ["noalert"] => self.host_bits("noalert", rule),
            [verb, name] | [verb, name, _] => {
                let more = format!("track {track},expire {ONE_HOST_SECONDS}");
                self.host_bits(&format!("{verb},{name},{more}"), rule)
            }
            _ => wrong("expected the operation, the name of a bit, and src or dst"),
        }
    }

    fn host_bits(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        if parts[..] == ["noalert"] {
            rule.is_silent = true;
            return Ok(());
        }
        let [verb, name, more @ ..] = &parts[..] else {
            return wrong("expected the operation, the name of a bit, and its owner");
        };
        if name.is_empty() {
            return wrong("expected the name of the host bit after its operation");
        }
        let (mut track, mut seconds) = (None, HOST_BIT_SECONDS);
        for part in more {
            match part
                .split_once(' ')
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("track", "ip_src")) => track = Some(Track::Source),
                Some(("track", "ip_dst")) => track = Some(Track::Destination),
                Some(("track", "ip_pair")) => track = Some(Track::Both),
                Some(("expire", value)) => seconds = number(value)?,
                _ => return Err(Refusal::NotUnderstood),
            }
        }
        let Some(track) = track else {
            return wrong("expected track ip_src, ip_dst or ip_pair");
        };
        if !(1..=MOST_BIT_SECONDS).contains(&seconds) {
            return wrong(format!(
                "expire {seconds}: expected 1 to {MOST_BIT_SECONDS} seconds"
            ));
        }
        // A flow bit may have the same name as a host bit.
        let Some(bit) = self.names.number(&format!("host {name}")) else {
            return wrong("too many names of bits in all");
        };
        let verb = match *verb {
            "set" => HostBitVerb::Set(seconds),
            "unset" => HostBitVerb::Unset,
            "toggle" => HostBitVerb::Toggle(seconds),
            "isset" => HostBitVerb::IsSet,
            "isnotset" => HostBitVerb::IsNotSet,
            _ => {
                return wrong(format!(
                    "{verb:?}: expected set, unset, toggle, isset, isnotset or noalert"
                ));
            }
        };
        rule.host_bits.push(HostBit { bit, track, verb });
        Ok(())
    }
}

/// Returns text for users without its quotes and escapes.
fn text(value: &str) -> String {
    let inner = value
        .strip_prefix('"')
        .and_then(|it| it.strip_suffix('"'))
        .unwrap_or(value);
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        text.push(if c == '\\' {
            chars.next().unwrap_or(c)
        } else {
            c
        });
    }
    text
}

fn rate(value: &str, kind: Option<RateKind>) -> Read<Rate> {
    let (mut kind, mut track, mut count, mut seconds) = (kind, None, None, None);
    let mut factor = None;
    for part in value.split(',') {
        let (name, value) = part
            .trim()
            .split_once([' ', ':'])
            .unwrap_or((part.trim(), ""));
        match (name, value.trim()) {
            ("type", "limit") => kind = Some(RateKind::Limit),
            ("type", "threshold") => kind = Some(RateKind::Every),
            ("type", "both") => kind = Some(RateKind::Once),
            ("type", "backoff") => seconds = Some(u32::MAX),
            ("multiplier", value) => factor = Some(number::<u32>(value)?),
            ("track", "by_flow") => track = Some(Track::Flow),
            ("track", "by_src") => track = Some(Track::Source),
            ("track", "by_dst") => track = Some(Track::Destination),
            ("track", "by_both") => track = Some(Track::Both),
            ("track", "by_rule") => track = Some(Track::Rule),
            ("count", count_) => count = Some(number(count_)?),
            ("seconds", seconds_) => seconds = Some(number(seconds_)?),
            _ => return Err(Refusal::NotUnderstood),
        }
    }
    if let Some(multiplier) = factor {
        if multiplier < 2 || kind.is_some() {
            return wrong("expected a multiplier of 2 or more, and type backoff");
        }
        kind = Some(RateKind::Backoff { multiplier });
    }
    match (kind, track, count, seconds) {
        (Some(kind), Some(track), Some(count), Some(seconds)) => Ok(Rate {
            kind,
            track,
            count,
            seconds,
        }),
        _ => wrong("expected track, count and seconds"),
    }
}
