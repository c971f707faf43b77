//! Accepts or drops packets by addresses, protocol and ports: the first matching rule decides.

use serde::Deserialize;
use std::ops::RangeInclusive;
use taut_function::matching::{PortText, Prefix, ProtocolText, ports, prefix, protocol};
use taut_function::tuple::{Seen, Tuple};
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, each, settings,
};
use taut_port::Batch;
use taut_wire::IpProtocol;
use taut_xdp::functions::{KernelFunction, KernelRule};

pub(crate) const ENTRY: Entry = Entry {
    name: "filter",
    summary: "accepts or drops IP packets by addresses, protocol and ports",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        Filter::new(settings(table)?).map(|filter| Box::new(filter) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Frames(|table, _| Filter::new(settings(table)?)?.in_kernel()),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "default",
        "required",
        "`accept` or `drop`: for packets that no rule matches",
    ),
    (
        "rules",
        "none",
        "up to 4096, in order: the first match decides",
    ),
];

/// The limit on rules; a packet is compared with one rule after the other.
const MOST_RULES: usize = 4096;
const HIGHEST_PRIORITY: u8 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Accept,
    Drop,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The action on packets that no rule matches.
    default: Action,
    #[serde(default)]
    rules: Vec<toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    action: Action,
    priority: Option<u8>,
    protocol: Option<ProtocolText>,
    source: Option<String>,
    destination: Option<String>,
    source_port: Option<PortText>,
    destination_port: Option<PortText>,
}

#[derive(Debug, Clone)]
struct Rule {
    action: Action,
    /// The priority of the queue in which accepted packets wait ([`Batch::set_priority`]); none leaves the priority to
    /// the packet's headers.
    priority: Option<u8>,
    protocol: Option<IpProtocol>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    source_port: Option<RangeInclusive<u16>>,
    destination_port: Option<RangeInclusive<u16>>,
}

impl Rule {
    fn new(text: RuleText) -> Result<Self, SettingsError> {
        let rule = Self {
            action: text.action,
            priority: text.priority,
            protocol: text.protocol.map(protocol).transpose()?,
            source: prefix("source", text.source)?,
            destination: prefix("destination", text.destination)?,
            source_port: ports("source_port", text.source_port)?,
            destination_port: ports("destination_port", text.destination_port)?,
        };
        let asks_ports = rule.source_port.is_some() || rule.destination_port.is_some();
        if asks_ports && rule.protocol.is_some_and(|it| !it.has_ports()) {
            return Err(SettingsError(
                "a rule with ports and a protocol that has none: leave either out".to_string(),
            ));
        }
        if let Some(priority) = rule.priority {
            if priority > HIGHEST_PRIORITY {
                return Err(SettingsError(format!(
                    "priority = {priority}: expected 0 to {HIGHEST_PRIORITY}, the highest"
                )));
            }
            if rule.action == Action::Drop {
                return Err(SettingsError(
                    "priority: dropped packets are not queued: leave it out".to_string(),
                ));
            }
        }
        Ok(rule)
    }

    fn in_kernel(&self) -> KernelRule {
        KernelRule {
            drops: self.action == Action::Drop,
            fields: taut_function::matching::in_kernel(
                self.protocol,
                [self.source, self.destination],
                [&self.source_port, &self.destination_port],
            ),
        }
    }

    #[inline]
    fn fits(&self, tuple: &Tuple) -> bool {
        let port_fits = |range: &Option<RangeInclusive<u16>>, port: Option<u16>| match range {
            None => true,
            Some(range) => port.is_some_and(|port| range.contains(&port)),
        };
        self.protocol.is_none_or(|it| it == tuple.protocol)
            && self.source.is_none_or(|it| it.has(tuple.source))
            && self.destination.is_none_or(|it| it.has(tuple.destination))
            && port_fits(&self.source_port, tuple.ports.map(|it| it.0))
            && port_fits(&self.destination_port, tuple.ports.map(|it| it.1))
    }
}

pub(crate) struct Filter {
    rules: Vec<Rule>,
    default: Action,
    accepted: u64,
    dropped: u64,
    by_default: [u64; 2],
    no_ip: u64,
    malformed: u64,
}

impl Filter {
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        let count = settings.rules.len();
        if count > MOST_RULES {
            return Err(SettingsError(format!(
                "{count} rules: the maximum is {MOST_RULES}, as the search is linear"
            )));
        }
        Ok(Self {
            rules: each("rules", settings.rules, Rule::new)?,
            default: settings.default,
            accepted: 0,
            dropped: 0,
            by_default: [0; 2],
            no_ip: 0,
            malformed: 0,
        })
    }

    /// Returns the version of the function that runs in XDP programs.
    ///
    /// # Errors
    /// Fails if a rule sets a priority, because XDP has no queue.
    fn in_kernel(&self) -> Result<KernelFunction, SettingsError> {
        if let Some(at) = self.rules.iter().position(|rule| rule.priority.is_some()) {
            return Err(SettingsError(format!(
                "rules {}: priority: the kernel has no queues: leave it out, or place = \"kernel\"",
                at + 1
            )));
        }
        Ok(KernelFunction::Filter {
            rules: self.rules.iter().map(Rule::in_kernel).collect(),
            default_drops: self.default == Action::Drop,
        })
    }

    /// Returns the verdict on a packet.
    #[inline]
    fn decide(&mut self, seen: Seen) -> Verdict {
        let tuple = match seen {
            Seen::Tuple(tuple) => tuple,
            Seen::NoIp => {
                self.no_ip += 1;
                return Verdict::Accept(None);
            }
            Seen::Malformed => {
                self.malformed += 1;
                return Verdict::Drop;
            }
        };
        let rule = self.rules.iter().find(|rule| rule.fits(&tuple));
        match rule {
            Some(rule) if rule.action == Action::Accept => {
                self.accepted += 1;
                Verdict::Accept(rule.priority)
            }
            Some(_) => {
                self.dropped += 1;
                Verdict::Drop
            }
            None if self.default == Action::Accept => {
                self.by_default[0] += 1;
                Verdict::Accept(None)
            }
            None => {
                self.by_default[1] += 1;
                Verdict::Drop
            }
        }
    }

    #[cfg(test)]
    fn accepts(&mut self, seen: Seen) -> bool {
        matches!(self.decide(seen), Verdict::Accept(_))
    }
}

/// The verdict of the rules on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The packet passes. The value is the priority that the matching rule sets; none if the rule sets no priority.
    Accept(Option<u8>),
    Drop,
}

impl Function for Filter {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &Context) {
        batch.read_headers();
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            let seen = Seen::of(&headers, batch.packets()[i].bytes());
            match self.decide(seen) {
                Verdict::Accept(None) => {}
                Verdict::Accept(Some(priority)) => batch.set_priority(i, priority),
                Verdict::Drop => batch.mark_dropped(i),
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("accepted by a rule", self.accepted),
            ("accepted by default", self.by_default[0]),
            ("accepted: no IP", self.no_ip),
            ("dropped by a rule", self.dropped),
            ("dropped by default", self.by_default[1]),
            ("dropped: malformed", self.malformed),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::IpAddr;
    use taut_function::testing::batch_of;
    use taut_function::tuple::mapped;
    use taut_wire::{Headers, UdpFlow};

    fn seen(frame: &[u8]) -> Seen {
        Seen::of(&Headers::of(frame), frame)
    }

    fn filter(text: &str) -> Result<Filter, SettingsError> {
        let table: toml::Table = text.parse().unwrap();
        settings(table).and_then(Filter::new)
    }

    fn frame(source: &str, destination: &str, ports: (u16, u16)) -> Vec<u8> {
        let flow = UdpFlow {
            src_ip: source.parse().unwrap(),
            dst_ip: destination.parse().unwrap(),
            src_port: ports.0,
            dst_port: ports.1,
            ..UdpFlow::default()
        };
        flow.frame(100).unwrap()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let mut filter = filter(
            r#"
            default = "drop"
            rules = [
                { action = "drop", source = "10.0.0.66" },
                { action = "accept", protocol = "udp", source = "10.0.0.0/8", destination_port = 53 },
                { action = "accept", destination = "2001:db8::/32", source_port = "1000-2000" },
                { action = "accept", protocol = 17, destination = "192.0.2.0/31", source_port = 7, destination_port = "9-9" },
            ]
            "#,
        )
        .unwrap();
        for (source, destination, ports, goes_on) in [
            ("10.0.0.66", "192.0.2.9", (5, 53), false),
            ("10.9.9.9", "192.0.2.9", (5, 53), true),
            ("10.9.9.9", "192.0.2.9", (5, 54), false),
            ("11.0.0.1", "192.0.2.9", (5, 53), false),
            ("2001:db8:9::1", "2001:db8::5", (1000, 1), true),
            ("2001:db8:9::1", "2001:db8::5", (2000, 1), true),
            ("2001:db8:9::1", "2001:db8::5", (2001, 1), false),
            ("2001:db8:9::1", "2001:db9::5", (1000, 1), false),
            ("198.51.100.1", "192.0.2.1", (7, 9), true),
            ("198.51.100.1", "192.0.2.2", (7, 9), false),
            ("198.51.100.1", "192.0.2.1", (8, 9), false),
        ] {
            let frame = frame(source, destination, ports);
            assert_eq!(
                filter.accepts(seen(&frame)),
                goes_on,
                "{source} {destination} {ports:?}"
            );
        }
        let counts: Vec<u64> = filter.outcomes().into_iter().map(|(_, n)| n).collect();
        assert_eq!(counts, [4, 0, 0, 1, 6, 0]);
    }

    #[test]
    fn a_rule_sets_the_priority_of_packets_it_accepts() {
        let text = "default = 'accept'\nrules = [{ action = 'accept', destination_port = 42, priority = 6 }]";
        let mut filter = filter(text).unwrap();
        let mut batch = batch_of(&frame("10.0.0.1", "10.0.0.2", (1, 42)), 0);
        filter.process(&mut batch, &Context::default());
        assert!(batch.is_kept(0) && !batch.goes_together());
        batch.scatter(|_, to, priority, _| assert_eq!((to, priority), (None, 6)));
        let mut batch = batch_of(&frame("10.0.0.1", "10.0.0.2", (1, 43)), 0);
        filter.process(&mut batch, &Context::default());
        assert!(batch.goes_together());
        assert!(filter.in_kernel().err().unwrap().0.contains("no queues"));
    }

    #[test]
    fn port_rules_skip_portless_packets_and_truncated_packets_are_dropped() {
        let mut filter = filter(
            "default = 'accept'\nrules = [{ action = 'drop', destination_port = '0-65535' }]",
        )
        .unwrap();
        let udp = frame("10.0.0.1", "10.0.0.2", (1, 2));
        assert!(!filter.accepts(seen(&udp)));
        let mut icmp = udp.clone();
        icmp[23] = 1;
        assert!(filter.accepts(seen(&icmp)));
        let mut later = udp.clone();
        later[21] = 5;
        assert!(filter.accepts(seen(&later)));
        let mut arp = udp.clone();
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(filter.accepts(seen(&arp)));
        // The first fragment ends before its ports.
        let mut short = udp[..36].to_vec();
        short[16..18].copy_from_slice(&22_u16.to_be_bytes());
        short[20] = 0x20;
        assert!(!filter.accepts(seen(&short)));
        for length in 0..34 {
            assert!(!filter.accepts(seen(&udp[..length])), "{length}");
        }
        assert_eq!(filter.outcomes()[5].1, 35);
    }

    #[test]
    fn a_prefix_matches_exactly_the_addresses_with_equal_leading_bits() {
        for length in 0..=32 {
            let base = 0xCB00_7155_u32 & u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let text = format!("{}/{length}", std::net::Ipv4Addr::from_bits(base));
            let prefix = Prefix::parse(&text).unwrap();
            let has = |bits: u32| prefix.has(mapped(std::net::Ipv4Addr::from_bits(bits).into()));
            assert!(has(base) && has(0xCB00_7155));
            for bit in 0..32 {
                assert_eq!(has(base ^ 1 << bit), bit < 32 - length, "{text} {bit}");
            }
            let v6: IpAddr = "2001:db8::1".parse().unwrap();
            assert!(!prefix.has(mapped(v6)));
        }
        let all = Prefix::parse("::/0").unwrap();
        assert!(all.has(0) && all.has(u128::MAX));
    }

    #[test]
    fn the_error_for_an_invalid_rule_names_rule_and_key() {
        let wrong = |rule: &str| {
            filter(&format!(
                "default = 'drop'\nrules = [{{ action = 'drop' }}, {{ action = 'accept', {rule} }}]"
            ))
            .err()
            .unwrap()
            .0
        };
        assert!(wrong("source = '10.0.0.1/8'").contains("rules 2: source = \"10.0.0.1/8\""));
        assert!(wrong("destination = '10.0.0.0/33'").contains("destination"));
        assert!(wrong("source_port = '5-4'").contains("1024-65535"));
        assert!(wrong("destination_port = '70000'").contains("70000"));
        assert!(wrong("protocol = 'quic'").contains("expected tcp, udp"));
        assert!(wrong("protocol = 'icmp', source_port = 5").contains("has none"));
        assert!(wrong("protocl = 'udp'").starts_with("rules 2: unknown key `protocl`"));
        assert!(wrong("priority = 8").contains("expected 0 to 7"));
        assert!(wrong("priority = -1").starts_with("rules 2: priority"));
        assert!(wrong("protocol = 256").starts_with("rules 2: protocol: expected \"tcp\""));
        assert!(filter("rules = []").err().unwrap().0.contains("default"));
    }
}
