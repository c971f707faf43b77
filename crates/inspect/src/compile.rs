//! Compiles rules into groups by protocol, direction and ports, with one multi-pattern search per group, and evaluates
//! them.
//!
//! One content of each rule is its *pattern*, if the rule has contents: the rule is evaluated only where the pattern
//! occurs. Patterns of the payload are searched for by group; those of a message's buffers whenever an inspector has
//! filled the buffer. Rules without a pattern are evaluated for every packet of their group.

use crate::buffer::{Application, Buffer, BufferSet};
use crate::by_address::{ByAddress, is_narrow};
use crate::evaluate::{Evaluator, Packet, Parts};
use crate::flow_bits::FlowBits;
use crate::host_bits::{HostBits, key_of};
use crate::ranges::Ranges;
use crate::rates::{Rated, Rates};
use crate::read::Names;
use crate::rule::*;
use crate::search::{Matcher, Scratch, Search};
use crate::transform::Transform;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Compiled rules.
#[derive(Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    names: Names,
    /// Groups by protocol ([`slot`]) and direction, to the server first.
    packets: [[ByPorts; 2]; 4],
    /// Groups by buffer and direction.
    messages: Vec<[Group; 2]>,
    /// Groups of the rules that need a complete body, by buffer and direction.
    whole: Vec<[Group; 2]>,
    /// Buffers of messages that any rule tests.
    asked: BufferSet,
    /// For each rule, whether it is evaluated with each piece of a body.
    of_pieces: Vec<bool>,
    /// Rules that test anomalies, with the bits of these; and the union of these bits.
    odd: Vec<(u32, u64)>,
    anomalies: u64,
}

/// The groups of the rules of one protocol and direction.
#[derive(Debug, Default)]
struct ByPorts {
    /// Rules for any port.
    any: Group,
    /// Groups by the receiver's port, and by the sender's port for rules that accept any receiver's port.
    receiver: ByPort,
    sender: ByPort,
}

#[derive(Debug, Default)]
struct ByPort {
    /// Number of the group by port, plus one; empty if there is none.
    ports: Box<[u16]>,
    groups: Vec<Group>,
}

/// Rules that are evaluated together.
#[derive(Debug, Default)]
struct Group {
    search: Option<Search>,
    /// Rules by pattern.
    found: Vec<Box<[u32]>>,
    /// Rules by pattern that may match once bytes after the pattern have arrived.
    going_on: Vec<Box<[u32]>>,
    /// Rules without a pattern: those about most addresses, and the others by the sender's address, or by the
    /// receiver's if that is more selective.
    always: Box<[u32]>,
    by_address: Option<Box<[ByAddress; 2]>>,
}

impl RuleSet {
    /// Compiles rules.
    ///
    /// # Errors
    /// Returns a text if a group has too many patterns.
    pub fn new(rules: Vec<Rule>, names: Names) -> Result<Self, String> {
        Self::with_matcher(rules, names, Matcher::default())
    }

    /// Compiles rules, with this matcher for their patterns.
    ///
    /// # Errors
    /// Returns a text if a group has too many patterns, or if the matcher is unavailable on this machine.
    pub fn with_matcher(rules: Vec<Rule>, names: Names, matcher: Matcher) -> Result<Self, String> {
        let mut rules = in_halves(rules)?;
        // Pass rules come first, those about flows before those about packets; drop rules follow. Among rules of one
        // action, those that change flow bits come first, so that later rules see the changes of the same packet.
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

    /// Returns the names of flow bits.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the number of bytes of memory of all searches.
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

    /// Iterates over all searches.
    fn searches(&self) -> impl Iterator<Item = &Search> {
        let packets = self.packets.iter().flatten().flat_map(|it| {
            let by_ports = it.receiver.groups.iter().chain(&it.sender.groups);
            std::iter::once(&it.any).chain(by_ports)
        });
        let groups = packets.chain(self.of_messages());
        groups.filter_map(|group| group.search.as_ref())
    }

    /// Iterates over all groups of messages.
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

    /// Returns true if any rule has a buffer of this application protocol.
    pub fn asks(&self, application: Application) -> bool {
        let mut asked = self.asked.iter();
        asked.any(|buffer| buffer.applications().contains(&application))
    }
}

/// Splits each rule with `=>` into two, one about requests and one about responses.
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

/// Returns true if a matching rule counts. One half of a rule with `=>` counts if the other half has matched the same
/// transaction; otherwise it is noted in `halves`.
#[inline]
fn is_whole(rule: &Rule, parts: &Parts<'_>, halves: &mut FlowBits, bits_full: &mut u64) -> bool {
    let Some(half) = rule.half else {
        return true;
    };
    let Some(noted) = parts.message.halves() else {
        return false;
    };
    if noted.has(half.other) {
        return true;
    }
    *bits_full += u64::from(!halves.set(half.own));
    false
}

/// Returns the position of a rule among others by its use of flow and host bits: rules that only change bits come
/// first, rules that only test them come last.
fn bits_order(rule: &Rule) -> u8 {
    let asks = |bit: &FlowBit| matches!(bit, FlowBit::IsSet { .. } | FlowBit::IsNotSet(_));
    let of_hosts = &rule.host_bits;
    let (has_asked, has_changed) = (
        rule.bits.iter().any(asks) || of_hosts.iter().any(HostBit::asks),
        rule.bits.iter().any(|bit| !asks(bit)) || of_hosts.iter().any(|bit| !bit.asks()),
    );
    match (has_changed, has_asked) {
        (true, false) => 0,
        (true, true) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// Returns true if a pass rule is about the flow, as Suricata decides by its type. Such a rule tests messages, the
/// stream, or only the protocol and the two ends. Other rules are about the packet.
fn passes_flow(rule: &Rule) -> bool {
    let is_of_flow = |step: &Step| match step.buffer {
        Buffer::Payload | Buffer::Base64 => rule.protocol == Protocol::Tcp && !rule.is_positional,
        other => other.application().is_some(),
    };
    let is_about_flow = match rule.steps.is_empty() {
        true => asks_flow(rule),
        false => rule.steps.iter().any(is_of_flow),
    };
    rule.action == Action::Pass && is_about_flow
}

/// Returns true if a rule without contents is about flows. Such a rule may test the protocol, then also the direction,
/// and the two ends. It may set flow bits but not test them, as they change from packet to packet.
fn asks_flow(rule: &Rule) -> bool {
    let is_version = |test: &HeaderTest| matches!(test, HeaderTest::IpVersion(_));
    let sets = |bit: &FlowBit| matches!(bit, FlowBit::Set(_));
    let is_of_protocol = !rule.applications.is_empty() || !rule.not_applications.is_empty();
    rule.headers.iter().all(is_version)
        && !rule.flow.is_of_packets
        && (is_of_protocol || rule.flow.to_server.is_none())
        && rule.bits.iter().all(sets)
        && !rule.host_bits.iter().any(HostBit::asks)
}

/// Returns true if bytes after the pattern of a rule may make it match.
fn goes_on(rule: &Rule) -> bool {
    let grows = |step: &&Step| step.buffer == Buffer::Payload || step.buffer.is_body();
    !rule.is_positional && rule.steps.iter().filter(grows).count() > 1
}

/// Returns true if a rule tests the absence of a content in a body, or the length of a body: both are known only at the
/// end of the body.
fn wants_whole_body(rule: &Rule) -> bool {
    rule.steps.iter().any(|step| {
        let of_whole = match &step.test {
            Test::Content(content) => content.not || content.at_end,
            Test::Regex { not, .. } | Test::DataAt { not, .. } => *not,
            Test::Len(_) | Test::Entropy { .. } | Test::Absent { .. } => true,
            _ => false,
        };
        step.buffer.is_body() && of_whole
    })
}

/// Returns the index of the packet groups of a protocol.
fn slot(protocol: u8) -> usize {
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

/// Returns the buffer whose messages the rule is evaluated with; none if it is evaluated with packets.
fn place_of(rule: &Rule) -> Option<Buffer> {
    let pattern = pattern(rule).map(|(buffer, _)| buffer);
    let last = stage(rule);
    let is_last = |step: &&Step| step.buffer.stage() == last;
    let of_last = || Some(rule.needed_steps().find(is_last)?.buffer);
    // An absent body is reported too, but a header only if it is present: the version is in every head.
    let lacking = || match rule.steps.iter().find(is_last)?.buffer {
        body if body.is_body() => Some(body),
        _ => Some(Buffer::HttpProtocol),
    };
    let place = pattern.or_else(of_last).or_else(lacking);
    place.filter(|buffer| buffer.application().is_some())
}

/// Returns the stage at which all buffers of a rule are present.
fn stage(rule: &Rule) -> u8 {
    let stages = rule.steps.iter().map(|step| step.buffer.stage());
    stages.max().unwrap_or(0)
}

/// Returns the content of a rule that is searched for, and its buffer. That is the content that the rule names, or else
/// the most selective one. Among contents of messages it is one of those that arrive last.
fn pattern(rule: &Rule) -> Option<(Buffer, &[u8])> {
    let last = stage(rule);
    let contents = rule.needed_steps().filter_map(|step| match &step.test {
        Test::Content(content)
            if !content.not
                && (step.buffer == Buffer::Payload || step.buffer.application().is_some())
                && step.transforms.iter().all(Transform::keeps_letters)
                && step.buffer.stage() == last =>
        {
            // The leading dot may be absent from the buffer itself.
            let bytes = match step.transforms.contains(&Transform::Dot) {
                true => content.bytes.strip_prefix(b"."),
                false => None,
            };
            Some((
                step.buffer,
                bytes.unwrap_or(&content.bytes),
                content.is_fast,
            ))
        }
        _ => None,
    });
    let best = contents.max_by_key(|(_, bytes, is_fast)| {
        let rarity: u32 = bytes.iter().map(|&byte| rarity(byte)).sum();
        (*is_fast && !bytes.is_empty(), rarity)
    });
    best.map(|(buffer, bytes, _)| (buffer, bytes))
        .filter(|(_, bytes)| !bytes.is_empty())
}

/// Returns the selectivity of a byte: low for padding, medium for letters, high for all others.
fn rarity(byte: u8) -> u32 {
    match byte {
        0 | 0xff => 1,
        1 | b' ' | b'\r' | b'\n' | b'.' | b'/' => 3,
        byte if byte.is_ascii_alphanumeric() => 4,
        _ => 6,
    }
}

impl ByPorts {
    fn new(rules: &[Rule], numbers: &[u32], matcher: Matcher) -> Result<Self, String> {
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
    fn group(&self, port: u16) -> Option<&Group> {
        let number = *self.ports.get(usize::from(port))?;
        self.groups.get(usize::from(number).checked_sub(1)?)
    }
}

impl Group {
    fn new(rules: &[Rule], numbers: &[u32], matcher: Matcher) -> Result<Self, String> {
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

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verdict {
    /// No rule applies an action to it.
    #[default]
    None,
    /// A rule passes its flow, whatever other rules say.
    Pass,
    /// A rule passes this packet, whatever other rules say.
    PassPacket,
    /// A rule drops it.
    Drop,
    /// A rule drops it and notifies both ends.
    Reject,
}

impl Verdict {
    /// Returns true if the packet passes, so that no other rule is evaluated.
    pub fn lets_pass(self) -> bool {
        matches!(self, Self::Pass | Self::PassPacket)
    }
}

/// Maximum number of matches of one packet that are logged.
pub const MOST_MATCHES: usize = 64;
/// Number of groups and rules of a packet that are evaluated without a look at the clock, if the time limit is a
/// millisecond or more.
const UNTIMED_LOOKS: u32 = 16;
const LONG_TICKS: u64 = 2_000_000;

/// Evaluates the rules of a set, with the memory of one worker.
#[derive(Debug)]
pub struct Inspector {
    evaluator: Evaluator,
    rates: Rates,
    host_bits: HostBits,
    scratch: Scratch,
    /// Rules to be evaluated, as twice their numbers, plus one if their pattern occurred in earlier bytes; and one bit
    /// for each rule in the list.
    asked: Vec<u32>,
    seen: Vec<u64>,
    /// Matching rules that are to be logged.
    matches: Vec<u32>,
    /// Halves of rules that matched while the other half has not matched yet.
    halves: FlowBits,
    counters: Arc<[RuleCounters]>,
    /// Packets until the next one whose rules are timed.
    until_timed: u32,
    /// Time limit for the rules of the packet, in cycles; remaining checks without the clock; the deadline, once the
    /// clock was read; and whether it has passed.
    most_ticks: u64,
    looks: u32,
    until_ticks: u64,
    is_over_time: bool,
    /// True if a rule about the packet has matched that passes the rest of its flow.
    bypasses: bool,
    /// Number of flow bits that could not be set because all eight were in use.
    pub bits_full: u64,
}

/// The counters of a rule in one worker; other threads may read them.
#[derive(Debug, Default)]
pub struct RuleCounters {
    asked: AtomicU64,
    fitted: AtomicU64,
    ticks: AtomicU64,
    timed: AtomicU64,
}

/// The counts of a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Number of evaluations.
    pub asked: u64,
    /// Number of matches.
    pub fitted: u64,
    /// Cycles spent on the rule in timed packets.
    pub ticks: u64,
    /// Number of evaluations in timed packets.
    pub timed: u64,
}

impl RuleCounters {
    /// Returns the current counts.
    pub fn counts(&self) -> RuleCounts {
        RuleCounts {
            asked: self.asked.load(Relaxed),
            fitted: self.fitted.load(Relaxed),
            ticks: self.ticks.load(Relaxed),
            timed: self.timed.load(Relaxed),
        }
    }
}

/// Adds to a counter that only one thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

/// One packet of this many has its rules timed.
const TIMED_ONE_IN: u32 = 64;
/// Maximum plausible measurement in cycles; a longer one counts as interrupted, because the core ran something else.
const INTERRUPTED_TICKS: u64 = 100_000;

impl Inspector {
    /// Creates an inspector for a set, with space for this number of rate counters.
    pub fn new(set: &RuleSet, counters: usize) -> Self {
        let rules = set.rules.len();
        Self {
            evaluator: Evaluator::default(),
            rates: Rates::new(counters),
            host_bits: HostBits::new(match set.rules.iter().any(|it| !it.host_bits.is_empty()) {
                true => counters,
                false => 0,
            }),
            scratch: Scratch::new(set.searches()),
            asked: Vec::with_capacity(2 * rules),
            seen: vec![0; rules.div_ceil(32)],
            matches: Vec::with_capacity(MOST_MATCHES),
            halves: FlowBits::default(),
            counters: (0..rules).map(|_| RuleCounters::default()).collect(),
            until_timed: TIMED_ONE_IN,
            most_ticks: u64::MAX,
            looks: 0,
            until_ticks: u64::MAX,
            is_over_time: false,
            bypasses: false,
            bits_full: 0,
        }
    }

    /// Returns the rules of the last packet that are to be logged, as indices into [`RuleSet::rules`].
    pub fn matches(&self) -> &[u32] {
        &self.matches
    }

    /// Takes the halves of rules with `=>` that the last message matched, while the other half has not matched yet. The
    /// caller stores them with the transaction.
    #[inline]
    pub fn take_halves(&mut self) -> FlowBits {
        std::mem::take(&mut self.halves)
    }

    /// Returns the counters of all rules.
    pub fn counters(&self) -> Arc<[RuleCounters]> {
        Arc::clone(&self.counters)
    }

    /// Begins another packet, with a time limit for its rules in cycles of [`taut_sys::ticks`]; [`u64::MAX`] is no
    /// limit. The clock is read before each group and each rule, so one of them may exceed the limit. If the limit is a
    /// millisecond or more, the clock is not read before the first 16 of them, and most packets have no more.
    #[inline]
    pub fn begin(&mut self, most_ticks: u64) {
        self.most_ticks = most_ticks;
        let is_long = most_ticks >= LONG_TICKS;
        self.looks = if is_long { UNTIMED_LOOKS } else { 0 };
        self.until_ticks = u64::MAX;
        (self.is_over_time, self.bypasses) = (false, false);
    }

    /// Returns whether a rule with the option `bypass` matched the packet.
    #[inline]
    pub fn bypasses(&self) -> bool {
        self.bypasses
    }

    /// Returns true if the deadline passed before all rules were evaluated.
    #[inline]
    pub fn is_over_time(&self) -> bool {
        self.is_over_time
    }

    #[inline]
    fn has_time(&mut self) -> bool {
        if self.looks > 0 {
            self.looks -= 1;
            return true;
        }
        self.has_time_by_clock()
    }

    #[inline(never)]
    fn has_time_by_clock(&mut self) -> bool {
        if self.most_ticks != u64::MAX && !self.is_over_time {
            let now = taut_sys::ticks();
            self.until_ticks = self.until_ticks.min(now.saturating_add(self.most_ticks));
            self.is_over_time = now >= self.until_ticks;
        }
        !self.is_over_time
    }

    /// Returns the number of rules that needed too many steps, or tested a transformed buffer that is too long for a
    /// transform.
    pub fn given_up(&self) -> u64 {
        self.evaluator.given_up
    }

    /// Evaluates the rules on a packet. `with_packet` is false if only messages are evaluated, as the payload was
    /// inspected before; `ready` contains the buffers of messages that are new.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is another thing, and it is called in one place"
    )]
    pub fn inspect(
        &mut self,
        set: &RuleSet,
        packet: &Packet<'_>,
        parts: &Parts<'_>,
        with_packet: bool,
        ready: BufferSet,
        bits: &mut FlowBits,
        now_s: u32,
    ) -> Verdict {
        self.matches.clear();
        let direction = usize::from(!packet.to_server);
        if with_packet {
            let by_ports = &set.packets[slot(packet.protocol)][direction];
            for group in [
                Some(&by_ports.any),
                by_ports.receiver.group(packet.destination_port),
                by_ports.sender.group(packet.source_port),
            ]
            .into_iter()
            .flatten()
            {
                if !self.has_time() {
                    break;
                }
                self.search(group, packet, parts.payload, parts.new_from);
            }
        }
        for buffer in ready.with_parts().iter() {
            if !self.has_time() {
                break;
            }
            let (new_from, seen) = match buffer.is_body() {
                true => (parts.body.new_from, parts.body.seen()),
                false => (0, 0),
            };
            let wants_whole = buffer.is_body() && parts.body.is_whole;
            if wants_whole
                && parts.buffer(buffer).is_none()
                && let Some(groups) = set.whole.get(buffer as usize)
            {
                // A rule may test that there is no payload.
                self.search(&groups[direction], packet, &[], 0);
            }
            for data in parts.buffers(buffer) {
                if let Some(groups) = set.messages.get(buffer as usize) {
                    let data = data.get(seen..).unwrap_or_default();
                    self.search(&groups[direction], packet, data, new_from - seen);
                }
                if wants_whole && let Some(groups) = set.whole.get(buffer as usize) {
                    self.search(&groups[direction], packet, data, 0);
                }
            }
        }
        if self.asked.is_empty() {
            return Verdict::None;
        }
        self.ask(set, packet, parts, bits, now_s)
    }

    /// Evaluates only the rules that test the anomalies of a packet: no other rule applies to a packet that its
    /// receiver discards.
    pub fn inspect_odd(
        &mut self,
        set: &RuleSet,
        packet: &Packet<'_>,
        parts: &Parts<'_>,
        bits: &mut FlowBits,
        now_s: u32,
    ) -> Verdict {
        self.matches.clear();
        for &(rule, wanted) in &set.odd {
            if wanted & packet.anomalies != 0 {
                ask_for(&mut self.seen, &mut self.asked, 2 * rule);
            }
        }
        match self.asked.is_empty() {
            true => Verdict::None,
            false => self.ask(set, packet, parts, bits, now_s),
        }
    }

    #[inline]
    fn search(&mut self, group: &Group, packet: &Packet<'_>, data: &[u8], new_from: usize) {
        for &rule in &group.always {
            ask_for(&mut self.seen, &mut self.asked, 2 * rule);
        }
        if let Some(by_address) = &group.by_address {
            self.ask_for_addresses(by_address, packet);
        }
        let Some(search) = &group.search else {
            return;
        };
        let Self {
            scratch,
            seen,
            asked,
            ..
        } = self;
        let mut found = |pattern: usize, end: usize| {
            // An earlier search found this pattern, but not all other bytes that a rule needs may have been present.
            if end <= new_from {
                for &rule in &group.going_on[pattern] {
                    ask_for(seen, asked, 2 * rule + 1);
                }
                return;
            }
            // The first rule of a pattern stands for all of its rules, as padding matches at every byte.
            let rules = &group.found[pattern];
            if rules
                .first()
                .is_some_and(|&rule| is_asked_for(seen, 2 * rule))
            {
                return;
            }
            for &rule in rules {
                ask_for(seen, asked, 2 * rule);
            }
        };
        if !search.find(scratch, data, &mut found) {
            // Without scratch memory for the search, all rules are evaluated.
            for pattern in 0..group.found.len() {
                found(pattern, usize::MAX);
            }
        }
    }

    /// Selects the rules that apply to the addresses of a packet. It is not inlined, which keeps it out of the code for
    /// packets without such rules.
    #[inline(never)]
    fn ask_for_addresses(&mut self, by_address: &[ByAddress; 2], packet: &Packet<'_>) {
        let [source, destination] = by_address;
        let about = [
            source.rules_of(packet.source),
            destination.rules_of(packet.destination),
        ];
        for &rule in about.into_iter().flatten() {
            ask_for(&mut self.seen, &mut self.asked, 2 * rule);
        }
    }

    fn ask(
        &mut self,
        set: &RuleSet,
        packet: &Packet<'_>,
        parts: &Parts<'_>,
        bits: &mut FlowBits,
        now_s: u32,
    ) -> Verdict {
        self.until_timed -= 1;
        let is_timed = self.until_timed == 0;
        if is_timed {
            self.until_timed = TIMED_ONE_IN;
        }
        // The rules are in the order of their actions, pass rules first.
        self.asked.sort_unstable();
        let mut verdict = Verdict::None;
        let mut asked = std::mem::take(&mut self.asked);
        let mut last = None;
        for &entry in &asked {
            self.seen[entry as usize / 64] &= !(1 << (entry % 64));
            let (number, came_before) = (entry / 2, entry % 2 == 1);
            let is_again = last.replace(number) == Some(number);
            if is_again || verdict.lets_pass() || !self.has_time() {
                continue;
            }
            let rule = &set.rules[number as usize];
            let began = if is_timed { taut_sys::ticks() } else { 0 };
            let mut fits = self.host_bits_fit(rule, packet, now_s)
                && self.evaluator.fits(rule, packet, parts, bits);
            let is_asked_again = parts.body.new_from > 0 && set.of_pieces[number as usize];
            if fits && (came_before || is_asked_again) {
                // The match is logged once, when the last required bytes have arrived, even if they arrive again.
                fits = !self.evaluator.fits(rule, packet, &parts.before(), bits);
            }
            let counters = &self.counters[number as usize];
            add(&counters.asked, 1);
            let took = if is_timed {
                taut_sys::ticks().saturating_sub(began)
            } else {
                0
            };
            if is_timed && took < INTERRUPTED_TICKS {
                add(&counters.ticks, took);
                add(&counters.timed, 1);
            }
            if !fits || !is_whole(rule, parts, &mut self.halves, &mut self.bits_full) {
                continue;
            }
            let rated = self.rated(number, rule, packet, now_s);
            if rated == Rated::NotYet {
                continue;
            }
            add(&self.counters[number as usize].fitted, 1);
            self.bypasses |= rule.bypasses;
            self.change_bits(rule, packet, bits, now_s);
            match rule.action {
                Action::Pass if passes_flow(rule) => verdict = Verdict::Pass,
                Action::Pass => verdict = Verdict::PassPacket,
                Action::Drop if verdict != Verdict::Reject => verdict = Verdict::Drop,
                Action::Reject => verdict = Verdict::Reject,
                _ => {}
            }
            let is_written = !rule.is_silent
                && rated == Rated::Counts
                && (rule.action != Action::Pass || rule.is_told);
            if is_written && self.matches.len() < MOST_MATCHES {
                self.matches.push(number);
            }
        }
        asked.clear();
        self.asked = asked;
        verdict
    }

    /// Counts a packet that a rule matches, and returns whether the rate of the rule allows the match.
    #[inline]
    fn rated(&mut self, number: u32, rule: &Rule, packet: &Packet<'_>, now_s: u32) -> Rated {
        let Some(rate) = &rule.rate else {
            return Rated::Counts;
        };
        let key = match rate.track {
            Track::Source => packet.source,
            Track::Destination => packet.destination,
            Track::Both => packet.source ^ packet.destination.rotate_left(1),
            Track::Rule => 0,
            Track::Flow => packet.flow.into(),
        };
        self.rates.count(number, rate, key, now_s)
    }

    /// Changes the bits of the flow and of the hosts after a rule has matched.
    fn change_bits(&mut self, rule: &Rule, packet: &Packet<'_>, bits: &mut FlowBits, now_s: u32) {
        for change in &rule.bits {
            self.bits_full += u64::from(!change_bits(change, bits));
        }
        for change in &rule.host_bits {
            let key = key_of(change.track, packet.source, packet.destination);
            match change.verb {
                HostBitVerb::Set(seconds) => {
                    self.host_bits.set(change.bit, key, now_s, seconds);
                }
                HostBitVerb::Toggle(seconds) if !self.host_bits.has(change.bit, key, now_s) => {
                    self.host_bits.set(change.bit, key, now_s, seconds);
                }
                HostBitVerb::Unset | HostBitVerb::Toggle(_) => {
                    self.host_bits.unset(change.bit, key);
                }
                HostBitVerb::IsSet | HostBitVerb::IsNotSet => {}
            }
        }
    }

    /// Returns true if the bits of hosts satisfy a rule.
    #[inline]
    fn host_bits_fit(&self, rule: &Rule, packet: &Packet<'_>, now_s: u32) -> bool {
        rule.host_bits.iter().filter(|it| it.asks()).all(|test| {
            let key = key_of(test.track, packet.source, packet.destination);
            let is_set = self.host_bits.has(test.bit, key, now_s);
            is_set == (test.verb == HostBitVerb::IsSet)
        })
    }
}

#[inline]
fn is_asked_for(seen: &[u64], entry: u32) -> bool {
    seen[entry as usize / 64] & (1 << (entry % 64)) != 0
}

#[inline]
fn ask_for(seen: &mut [u64], asked: &mut Vec<u32>, entry: u32) {
    if !is_asked_for(seen, entry) {
        seen[entry as usize / 64] |= 1 << (entry % 64);
        asked.push(entry);
    }
}

/// Changes the bits of the flow as the rule says; returns false if all bits were in use.
fn change_bits(change: &FlowBit, bits: &mut FlowBits) -> bool {
    match change {
        FlowBit::Set(names) => names.iter().all(|&bit| bits.set(bit)),
        FlowBit::Unset(names) => {
            names.iter().for_each(|&bit| bits.unset(bit));
            true
        }
        FlowBit::Toggle(names) => names.iter().all(|&bit| {
            if bits.has(bit) {
                bits.unset(bit);
                true
            } else {
                bits.set(bit)
            }
        }),
        FlowBit::IsSet { .. } | FlowBit::IsNotSet(_) => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::evaluate::{BodyPart, Message};
    use crate::http::{Http, Pushed};
    use crate::read::{Dialect, Options, Reading};

    fn set(rules: &str) -> RuleSet {
        let mut reading = Reading::default();
        reading.read(rules, &Options::default());
        assert_eq!(reading.mistakes, []);
        RuleSet::new(reading.rules, reading.names).unwrap()
    }

    #[test]
    fn a_rule_means_what_its_language_says() {
        let fits = |dialect, options: &str, payload: &[u8]| {
            let mut reading = Reading::default();
            let options = format!("alert udp any any -> any any ({options}; sid:1;)");
            let dialect = Options {
                dialect: Some(dialect),
                ..Options::default()
            };
            reading.read(&options, &dialect);
            assert_eq!(reading.mistakes, []);
            let set = RuleSet::new(reading.rules, reading.names).unwrap();
            let mut inspector = Inspector::new(&set, 16);
            let packet = Packet {
                protocol: 17,
                ttl: payload.len() as u8,
                ..Packet::default()
            };
            let parts = Parts {
                payload,
                ..Parts::default()
            };
            let (none, bits) = (BufferSet::default(), &mut FlowBits::default());
            inspector.begin(u64::MAX);
            inspector.inspect(&set, &packet, &parts, true, none, bits, 0);
            inspector.matches().len() == 1
        };
        // Positions before the beginning are the beginning, and numbers that are read have no sign.
        const FROM_BEFORE: &str =
            "content:\"k\"; byte_jump:0,0,relative,post_offset -9; content:\"1\"; distance:0";
        const BELOW_ZERO: &str = "byte_extract:1,0,a; byte_math:bytes 1,offset 1,oper -,rvalue a,result b; byte_test:1,<,b,2";
        for (options, payload, in_snort, in_suricata) in [
            ("content:\"k\"; isdataat:3,relative", "k123", false, true),
            ("content:\"k\"; isdataat:3,relative", "k1234", true, true),
            ("content:\"k\"; isdataat:!1,relative", "k1", true, false),
            ("isdataat:4", "k123", false, false),
            ("ttl:2-4", "12", true, false),
            ("ttl:2-4", "123", true, true),
            ("content:\"k\"; pcre:\"/^1/R\"", "k1", true, true),
            (FROM_BEFORE, "1k2", true, true),
            (BELOW_ZERO, "91k", true, true),
        ] {
            let found = [Dialect::Snort3, Dialect::Suricata]
                .map(|dialect| fits(dialect, options, payload.as_bytes()));
            assert_eq!(found, [in_snort, in_suricata], "{options} {payload}");
        }
    }

    #[test]
    fn a_relative_test_moves_with_its_content_into_a_buffer() {
        let mut reading = Reading::default();
        let options = Options {
            dialect: Some(Dialect::Suricata),
            ..Options::default()
        };
        let rule = "alert http any any -> any any (content:\"/a\"; isdataat:!1,relative; nocase; http_uri; \
            content:\"b\"; http_content_type; content:\"c\"; http_header_names; content:\"d\"; http_cookie; \
            http_content_len; byte_test:0,<,10,0,string,dec; http_start; content:\"e\"; sid:1;)";
        reading.read(rule, &options);
        assert_eq!((&reading.mistakes[..], reading.rules.len()), (&[][..], 1));
        let buffers: Vec<_> = reading.rules[0].steps.iter().map(|it| it.buffer).collect();
        let wanted = [
            Buffer::HttpUri,
            Buffer::HttpUri,
            Buffer::Payload,
            Buffer::HttpContentType,
            Buffer::HttpCookie,
            Buffer::HttpContentLength,
            Buffer::HttpStart,
        ];
        assert_eq!(buffers, wanted);
    }

    #[test]
    fn a_match_split_across_segments_is_reported_once() {
        let set = set(
            "alert tcp any any -> any any (content:\"longest\"; content:\"b\"; distance:0; sid:1;)\n\
                       alert tcp any any -> any any (content:\"longest\"; sid:2;)\n",
        );
        let mut inspector = Inspector::new(&set, 16);
        let packet = Packet {
            protocol: 6,
            ..Packet::default()
        };
        let mut found = Vec::new();
        for (payload, new_from) in [("longest", 0), ("longest b", 7), ("longest b, b", 9)] {
            let parts = Parts {
                payload: payload.as_bytes(),
                new_from,
                ..Parts::default()
            };
            inspector.begin(u64::MAX);
            let (none, bits) = (BufferSet::default(), &mut FlowBits::default());
            inspector.inspect(&set, &packet, &parts, true, none, bits, 0);
            let ids = |&rule: &u32| set.rules()[rule as usize].about.id;
            found.push(inspector.matches().iter().map(ids).collect::<Vec<_>>());
        }
        assert_eq!(found, [vec![2], vec![1], vec![]]);
    }

    /// Returns the identifiers of the rules that match at each piece of a request, and at its end.
    fn fitting(set: &RuleSet, pieces: &[&[u8]]) -> Vec<Vec<u64>> {
        let mut inspector = Inspector::new(set, 16);
        let packet = Packet {
            protocol: 6,
            to_server: true,
            application: Some(Application::Http),
            ..Packet::default()
        };
        let mut http = Http::default();
        let mut ask = |http: &Http, pushed: Pushed, found: &mut Vec<u64>| {
            let parts = Parts {
                message: Message::Http {
                    http,
                    is_request: true,
                },
                body: BodyPart {
                    new_from: pushed.body_from,
                    is_whole: pushed.body_is_whole,
                    is_before: false,
                },
                ..Parts::default()
            };
            inspector.begin(u64::MAX);
            let bits = &mut FlowBits::default();
            inspector.inspect(set, &packet, &parts, false, pushed.ready, bits, 0);
            let ids = |&rule: &u32| u64::from(set.rules()[rule as usize].about.id);
            found.extend(inspector.matches().iter().map(ids));
            found.sort_unstable();
        };
        let mut all = Vec::new();
        for piece in pieces {
            let mut found = Vec::new();
            let mut rest = *piece;
            while !rest.is_empty() {
                let pushed = http.push(true, rest);
                rest = &rest[pushed.consumed..];
                ask(&http, pushed, &mut found);
            }
            all.push(found);
        }
        let pushed = http.close(true);
        let mut found = Vec::new();
        ask(&http, pushed, &mut found);
        all.push(found);
        all
    }

    const OF_HEAD_AND_BODY: &str = "alert http any any -> any any (http.uri; content:\"/very\"; http.request_body; content:\"cmd=\"; sid:1;)\n\
        alert http any any -> any any (http.method; content:\"POST\"; http.request_body; pcre:\"/c.d=/\"; sid:2;)\n\
        alert http any any -> any any (http.uri; content:\"/very\"; http.request_body; content:!\"other\"; sid:3;)\n\
        alert http any any -> any any (http.uri; content:\"/very\"; http.request_body; bsize:>9; sid:4;)\n\
        alert http any any -> any any (http.request_body; content:\"cmd=\"; content:\"last\"; distance:0; sid:5;)\n\
        alert http any any -> any any (http.uri; content:\"/very\"; sid:6;)\n";

    #[test]
    fn rules_about_head_and_body_fit_however_the_message_comes() {
        let head: &[u8] = b"POST /very HTTP/1.1\r\nContent-Length: 13\r\n\r\n";
        let body: &[u8] = b"a&cmd=ls&last";
        let whole = [head, body].concat();
        let set = set(OF_HEAD_AND_BODY);
        for cut in 1..whole.len() {
            let found = fitting(&set, &[&whole[..cut], &whole[cut..]]);
            let mut all: Vec<_> = found.concat();
            all.sort_unstable();
            assert_eq!(all, [1, 2, 3, 4, 5, 6], "cut at {cut}: {found:?}");
        }
        let bytes: Vec<&[u8]> = whole.chunks(1).collect();
        let mut all = fitting(&set, &bytes).concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5, 6]);
        let other = b"POST /very HTTP/1.1\r\nContent-Length: 7\r\n\r\nanother";
        assert_eq!(fitting(&set, &[other]).concat(), [6]);
    }

    #[test]
    fn a_match_in_a_body_is_reported_once_per_message() {
        let head: &[u8] = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let rule = "alert http any any -> any any (http.request_body; content:\"cmd=\"; sid:1;)\n";
        let chunk: &[u8] = b"5\r\ncmd=a\r\n";
        let end: &[u8] = b"0\r\n\r\n";
        let found = fitting(
            &set(rule),
            &[head, chunk, chunk, chunk, end, head, chunk, chunk, end],
        );
        let none: Vec<u64> = vec![];
        let mut wanted = vec![none; 10];
        (wanted[1], wanted[6]) = (vec![1], vec![1]);
        assert_eq!(found, wanted);
    }

    #[test]
    fn rules_that_there_is_no_time_for_are_not_asked() {
        let set = set("drop udp any any -> any any (content:\"evil\"; sid:1;)\n\
                       alert udp any any -> any 53 (msg:\"any\"; sid:2;)\n");
        let mut inspector = Inspector::new(&set, 16);
        let packet = Packet {
            protocol: 17,
            destination_port: 53,
            payload_len: 4,
            to_server: true,
            ..Packet::default()
        };
        let parts = Parts {
            payload: b"evil",
            ..Parts::default()
        };
        let mut ask = |most_ticks| {
            inspector.begin(most_ticks);
            let none = BufferSet::default();
            let bits = &mut FlowBits::default();
            let verdict = inspector.inspect(&set, &packet, &parts, true, none, bits, 0);
            (verdict, inspector.matches().len(), inspector.is_over_time())
        };
        assert_eq!(ask(u64::MAX), (Verdict::Drop, 2, false));
        assert_eq!(ask(0), (Verdict::None, 0, true));
        // The rest of that packet does not carry over to the next one.
        assert_eq!(ask(u64::MAX), (Verdict::Drop, 2, false));
        assert_eq!(ask(u64::MAX - 1), (Verdict::Drop, 2, false));
    }
}
