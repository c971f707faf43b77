//! Compiled rules: in evaluation order, and in groups by protocol, direction and port, or by the buffer of a message.

use super::group::{ByPort, ByPorts, Group};
use super::place::{bits_order, passes_flow, place_of, wants_whole_body};
use crate::buffer::{Application, Buffer, BufferSet};
use crate::by_address::ByAddress;
use crate::flow_bits::FlowBits;
use crate::read::Names;
use crate::rule::*;
use crate::search::{Matcher, Search};

/// Rules that were compiled for their evaluation.
#[derive(Debug, Default)]
pub struct RuleSet {
    pub(super) rules: Vec<Rule>,
    names: Names,
    /// Groups by protocol ([`slot`]) and direction (to the server, then to the client).
    pub(super) packets: [[ByPorts; 2]; 4],
    /// Groups of the rules about messages, by buffer and direction (to the server, then to the client).
    pub(super) messages: Vec<[Group; 2]>,
    /// Groups of the rules that need a complete body, by buffer and direction (to the server, then to the client).
    pub(super) whole: Vec<[Group; 2]>,
    /// Buffers of messages that at least one rule tests.
    asked: BufferSet,
    /// True for each rule that is evaluated whenever a part of a body arrives.
    pub(super) of_pieces: Vec<bool>,
    /// Rules that test anomalies, each with the bits of its anomalies; and the union of all these bits.
    pub(super) odd: Vec<(u32, u64)>,
    anomalies: u64,
}

impl RuleSet {
    /// Compiles rules for the inspection of packets.
    ///
    /// # Errors
    /// Returns a text if a group has too many patterns.
    pub fn new(rules: Vec<Rule>, names: Names) -> Result<Self, String> {
        Self::with_matcher(rules, names, Matcher::default())
    }

    /// Compiles rules, with `matcher` as the implementation of their pattern searches.
    ///
    /// # Errors
    /// Returns a text if a group has too many patterns, or if the matcher is unavailable on this machine.
    pub fn with_matcher(rules: Vec<Rule>, names: Names, matcher: Matcher) -> Result<Self, String> {
        let mut rules = in_halves(rules)?;
        // Pass rules come first, those for flows before those for packets; drop rules follow. Among rules with the same
        // action, those that change flow bits come first, so that later rules see the changes in the same packet.
        rules.sort_by_key(|rule| (rule.action, !passes_flow(rule), bits_order(rule)));
        let mut packets: [[Vec<u32>; 2]; 4] = Default::default();
        let mut messages: Vec<[Vec<u32>; 2]> = vec![Default::default(); Buffer::COUNT];
        let mut whole = messages.clone();
        for (rule, number) in rules.iter().zip(0u32..) {
            let directions = match rule.flow.to_server {
                Some(true) => 0..1,
                Some(false) => 1..2,
                None => 0..2,
            };
            let buffer = place_of(rule);
            for direction in directions {
                match buffer {
                    Some(buffer) if wants_whole_body(rule) => {
                        whole[buffer as usize][direction].push(number);
                    }
                    Some(buffer) => messages[buffer as usize][direction].push(number),
                    None => {
                        for slot in slots(rule.protocol) {
                            packets[*slot][direction].push(number);
                        }
                    }
                }
            }
        }
        let mut set = Self {
            names,
            ..Self::default()
        };
        for (slot, directions) in packets.iter().enumerate() {
            for (direction, numbers) in directions.iter().enumerate() {
                set.packets[slot][direction] = ByPorts::new(&rules, numbers, matcher)?;
            }
        }
        for (lists, groups) in [(&messages, &mut set.messages), (&whole, &mut set.whole)] {
            let group = |numbers: &[u32]| Group::new(&rules, numbers, matcher);
            for directions in lists {
                groups.push([group(&directions[0])?, group(&directions[1])?]);
            }
        }
        let steps = rules.iter().flat_map(|rule| &rule.steps);
        let of_messages = steps.filter(|step| step.buffer.application().is_some());
        set.asked = of_messages.map(|step| step.buffer).collect();
        let of_pieces =
            |rule| place_of(rule).is_some_and(Buffer::is_body) && !wants_whole_body(rule);
        set.of_pieces = rules.iter().map(of_pieces).collect();
        let odd = rules.iter().zip(0..).filter_map(|(rule, number)| {
            let bits = rule.anomalies();
            (bits != 0).then_some((number, bits))
        });
        set.odd = odd.collect();
        set.anomalies = set.odd.iter().fold(0, |all, (_, bits)| all | bits);
        set.rules = rules;
        Ok(set)
    }

    /// Returns the rules in evaluation order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the names of the flow bits that the rules use.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the memory of all pattern searches in bytes.
    pub fn memory_bytes(&self) -> usize {
        let of = |group: &Group| {
            let by_address = group.by_address.iter().flat_map(|it| it.iter());
            let by_address: usize = by_address.map(ByAddress::memory_bytes).sum();
            by_address + group.search.as_ref().map_or(0, Search::memory_bytes)
        };
        let by_port = |by: &ByPort| by.groups.iter().map(of).sum::<usize>() + 2 * by.ports.len();
        let packets = self.packets.iter().flatten();
        let packets: usize = packets
            .map(|it| of(&it.any) + by_port(&it.receiver) + by_port(&it.sender))
            .sum();
        packets + self.of_messages().map(of).sum::<usize>()
    }

    /// Iterates over the pattern searches of all groups.
    pub(super) fn searches(&self) -> impl Iterator<Item = &Search> {
        let packets = self.packets.iter().flatten().flat_map(|it| {
            let by_ports = it.receiver.groups.iter().chain(&it.sender.groups);
            std::iter::once(&it.any).chain(by_ports)
        });
        let groups = packets.chain(self.of_messages());
        groups.filter_map(|group| group.search.as_ref())
    }

    /// Iterates over all groups of rules that test the buffers of messages.
    fn of_messages(&self) -> impl Iterator<Item = &Group> {
        self.messages.iter().chain(&self.whole).flatten()
    }

    /// Returns the anomalies that any rule tests, as bits of [`crate::anomaly::Anomaly`].
    #[inline]
    pub fn anomalies(&self) -> u64 {
        self.anomalies
    }

    /// Returns the buffers of messages that any rule tests.
    #[inline]
    pub fn asked(&self) -> BufferSet {
        self.asked
    }

    /// Returns true if any rule tests a buffer of this application protocol.
    pub fn asks(&self, application: Application) -> bool {
        let mut asked = self.asked.iter();
        asked.any(|buffer| buffer.applications().contains(&application))
    }
}

/// Splits each rule with `=>` into two rules, one for the request and one for the response.
fn in_halves(rules: Vec<Rule>) -> Result<Vec<Rule>, String> {
    let mut all = Vec::with_capacity(rules.len());
    let mut numbers = 0..FlowBits::MOST;
    for mut rule in rules {
        let Some(mut response) = rule.response.take() else {
            all.push(rule);
            continue;
        };
        let (Some(own), Some(other)) = (numbers.next(), numbers.next()) else {
            let most = FlowBits::MOST / 2;
            return Err(format!(
                "more than {most} rules about a request and its response"
            ));
        };
        rule.half = Some(Half { own, other });
        response.half = Some(Half {
            own: other,
            other: own,
        });
        all.extend([rule, *response]);
    }
    Ok(all)
}

/// Returns the index in `packets` of a protocol's groups.
pub(super) fn slot(protocol: u8) -> usize {
    match protocol {
        6 => 0,
        17 => 1,
        1 | 58 => 2,
        _ => 3,
    }
}

fn slots(protocol: Protocol) -> &'static [usize] {
    match protocol {
        Protocol::Tcp => &[0],
        Protocol::Udp => &[1],
        Protocol::Icmp => &[2],
        Protocol::Ip => &[0, 1, 2, 3],
    }
}
