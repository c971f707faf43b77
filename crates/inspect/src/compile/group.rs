//! The groups of rules: the rules of one protocol and direction are grouped by port. Each group has one search for the
//! patterns of its rules.

use super::place::{goes_on, pattern};
use crate::by_address::{ByAddress, is_narrow};
use crate::ranges::Ranges;
use crate::rule::*;
use crate::search::{Matcher, Search};
use std::collections::HashMap;

/// The groups of the rules of one protocol and direction.
#[derive(Debug, Default)]
pub(super) struct ByPorts {
    /// Rules for any port.
    pub(super) any: Group,
    /// Groups by the receiver's port, and by the sender's port for rules that accept any receiver's port.
    pub(super) receiver: ByPort,
    pub(super) sender: ByPort,
}

#[derive(Debug, Default)]
pub(super) struct ByPort {
    /// For each port, the index of its group plus 1, or 0 if the port has no group. The array is empty if there are no
    /// groups.
    pub(super) ports: Box<[u16]>,
    pub(super) groups: Vec<Group>,
}

/// Rules that are evaluated together.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) search: Option<Search>,
    /// Rules to evaluate when a pattern occurs, by the index of the pattern in `search`.
    pub(super) found: Vec<Box<[u32]>>,
    /// Rules that may fail when their pattern occurs but match after later bytes have arrived, by the index of the
    /// pattern.
    pub(super) going_on: Vec<Box<[u32]>>,
    /// Rules without a pattern whose addresses are not indexed. `by_address` has the other rules without a pattern, by
    /// the sender's address, or by the receiver's address if that is more selective.
    pub(super) always: Box<[u32]>,
    pub(super) by_address: Option<Box<[ByAddress; 2]>>,
}

impl ByPorts {
    pub(super) fn new(rules: &[Rule], numbers: &[u32], matcher: Matcher) -> Result<Self, String> {
        let (mut any, mut receiver, mut sender) = (Vec::new(), Vec::new(), Vec::new());
        for &number in numbers {
            let rule = &rules[number as usize];
            let is_any =
                |side: &Side| side.ports.is_all() || !rule.services.is_empty() || rule.both_ways;
            match (is_any(&rule.source), is_any(&rule.destination)) {
                (_, false) => receiver.push(number),
                (false, true) => sender.push(number),
                (true, true) => any.push(number),
            }
        }
        Ok(Self {
            any: Group::new(rules, &any, matcher)?,
            receiver: ByPort::new(rules, &receiver, matcher, |rule| &rule.destination)?,
            sender: ByPort::new(rules, &sender, matcher, |rule| &rule.source)?,
        })
    }
}

impl ByPort {
    fn new(
        rules: &[Rule],
        numbers: &[u32],
        matcher: Matcher,
        side: impl Fn(&Rule) -> &Side,
    ) -> Result<Self, String> {
        if numbers.is_empty() {
            return Ok(Self::default());
        }
        // Ports at which a range begins or has ended: all ports between two of these edges have the same rules.
        let mut edges = vec![0u32, 65_536];
        for &number in numbers {
            for &(first, last) in side(&rules[number as usize]).ports.ranges() {
                edges.push(first.min(65_536) as u32);
                edges.push(last.min(65_535) as u32 + 1);
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let mut ports = vec![0; 65_536].into_boxed_slice();
        let mut groups = Vec::new();
        let mut known: HashMap<Vec<u32>, u16> = HashMap::new();
        for edge in edges.windows(2) {
            let (first, behind) = (edge[0], edge[1]);
            let has = |number: &&u32| side(&rules[**number as usize]).ports.has(first.into());
            let here: Vec<u32> = numbers.iter().filter(has).copied().collect();
            if here.is_empty() {
                continue;
            }
            let group = match known.get(&here) {
                Some(&group) => group,
                None => {
                    groups.push(Group::new(rules, &here, matcher)?);
                    let group = u16::try_from(groups.len())
                        .map_err(|_| "rules with too many different ports".to_string())?;
                    known.insert(here, group);
                    group
                }
            };
            ports[first as usize..behind as usize].fill(group);
        }
        Ok(Self { ports, groups })
    }

    #[inline]
    pub(super) fn group(&self, port: u16) -> Option<&Group> {
        let number = *self.ports.get(usize::from(port))?;
        self.groups.get(usize::from(number).checked_sub(1)?)
    }
}

impl Group {
    pub(super) fn new(rules: &[Rule], numbers: &[u32], matcher: Matcher) -> Result<Self, String> {
        let (mut always, mut by_source, mut by_destination) = (Vec::new(), Vec::new(), Vec::new());
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        let mut found: Vec<Vec<u32>> = Vec::new();
        let mut known: HashMap<Vec<u8>, usize> = HashMap::new();
        for &number in numbers {
            let rule = &rules[number as usize];
            let Some((_, bytes)) = pattern(rule) else {
                let sides = [&rule.source.addresses, &rule.destination.addresses];
                match sides.map(|it| !rule.both_ways && is_narrow(it)) {
                    [true, _] => by_source.push((number, &**sides[0])),
                    [false, true] => by_destination.push((number, &**sides[1])),
                    [false, false] => always.push(number),
                }
                continue;
            };
            let bytes = bytes.to_ascii_lowercase();
            let place = *known.entry(bytes.clone()).or_insert_with(|| {
                patterns.push(bytes);
                found.push(Vec::new());
                patterns.len() - 1
            });
            found[place].push(number);
        }
        let search = (!patterns.is_empty())
            .then(|| Search::new(&patterns, matcher))
            .transpose()
            .map_err(|e| format!("patterns of {} rules: {e}", numbers.len()))?;
        let going_on = found.iter().map(|here| {
            let each = here.iter().copied();
            each.filter(|&number| goes_on(&rules[number as usize]))
                .collect()
        });
        let mut sorted = |rules: &[(u32, &Ranges)]| {
            ByAddress::new(rules).unwrap_or_else(|| {
                always.extend(rules.iter().map(|(number, _)| *number));
                ByAddress::default()
            })
        };
        Ok(Self {
            search,
            by_address: match by_source.is_empty() && by_destination.is_empty() {
                true => None,
                false => Some(Box::new([sorted(&by_source), sorted(&by_destination)])),
            },
            going_on: going_on.collect(),
            found: found.into_iter().map(Into::into).collect(),
            always: always.into(),
        })
    }
}
