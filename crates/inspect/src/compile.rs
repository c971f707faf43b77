//! Compiles rules into groups by protocol, direction and ports, with one multi-pattern search per group, and evaluates
//! them.
//!
//! One content of each rule is its *pattern*, if the rule has contents: the rule is evaluated only where the pattern
//! occurs. Patterns of the payload are searched for group by group. Patterns of a message buffer are searched for when
//! an inspector has filled that buffer. Rules without a pattern are evaluated for every packet of their group.
//!
//! `place.rs` decides with which buffer a rule is evaluated; `group.rs` and `set.rs` build the groups.

mod group;
mod place;
mod set;

use crate::buffer::BufferSet;
use crate::by_address::ByAddress;
use crate::evaluate::{Evaluator, Packet, Parts};
use crate::flow_bits::FlowBits;
use crate::host_bits::{HostBits, key_of};
use crate::rates::{Rated, Rates};
use crate::rule::*;
use crate::search::Scratch;
use group::Group;
use place::passes_flow;
use set::slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use set::RuleSet;

/// Returns true if a matching rule takes effect. A rule with `=>` tests a request and its response, as two halves. One
/// half takes effect if the other half has matched the same transaction; otherwise the matched half is noted in
/// `halves`.
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

/// The verdict on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verdict {
    /// No rule applies an action to the packet.
    #[default]
    None,
    /// A rule passes the packet's flow; no other rule changes that.
    Pass,
    /// A rule passes this packet; no other rule changes that.
    PassPacket,
    /// A rule drops the packet.
    Drop,
    /// A rule drops the packet and sends a reset to both endpoints.
    Reject,
}

impl Verdict {
    /// Returns true if the packet passes, so that no other rule is evaluated.
    pub fn lets_pass(self) -> bool {
        matches!(self, Self::Pass | Self::PassPacket)
    }

    /// Returns the verdict after another rule has matched.
    #[inline]
    fn after(self, rule: &Rule) -> Self {
        match rule.action {
            Action::Pass if passes_flow(rule) => Self::Pass,
            Action::Pass => Self::PassPacket,
            Action::Drop if self != Self::Reject => Self::Drop,
            Action::Reject => Self::Reject,
            _ => self,
        }
    }
}

/// Maximum number of matches of one packet that are logged.
pub const MOST_MATCHES: usize = 64;
/// Number of evaluations of groups and rules before the clock is read for the first time, if the time limit of the
/// packet is [`LONG_TICKS`] or more. That constant is about a millisecond, in cycles.
const UNTIMED_LOOKS: u32 = 16;
const LONG_TICKS: u64 = 2_000_000;

/// The evaluator of a rule set, with the memory of one worker.
#[derive(Debug)]
pub struct Inspector {
    evaluator: Evaluator,
    rates: Rates,
    host_bits: HostBits,
    scratch: Scratch,
    /// Rules to evaluate for the packet. An entry is twice the rule's index, plus 1 if the rule's pattern occurred in
    /// earlier bytes. `seen` has two bits for each rule, one for each possible entry; the bit is set while the entry is
    /// in this list.
    asked: Vec<u32>,
    seen: Vec<u64>,
    /// Matching rules that are to be logged.
    matches: Vec<u32>,
    /// Halves (request or response) of rules with `=>` that the last message matched while the rule's other half had
    /// not matched yet.
    halves: FlowBits,
    counters: Arc<[RuleCounters]>,
    /// Number of packets until the next packet whose rules are timed.
    until_timed: u32,
    /// Time limit for the rules of the packet, in cycles. The next fields are: the remaining evaluations without a
    /// clock reading, the deadline once the clock was read, and whether the deadline has passed.
    most_ticks: u64,
    looks: u32,
    until_ticks: u64,
    is_over_time: bool,
    /// True if the packet matched a rule that lets the rest of its flow bypass the inspection.
    bypasses: bool,
    /// Number of flow bits that could not be set because all eight bits of the flow were in use.
    pub bits_full: u64,
}

/// The counters of one rule's evaluations in one worker; other threads may read them.
#[derive(Debug, Default)]
pub struct RuleCounters {
    asked: AtomicU64,
    fitted: AtomicU64,
    ticks: AtomicU64,
    timed: AtomicU64,
}

/// The counts of a rule's evaluations and matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Number of times that the rule was evaluated.
    pub asked: u64,
    /// Number of times that the rule matched.
    pub fitted: u64,
    /// Cycles spent on the rule in packets whose rules are timed.
    pub ticks: u64,
    /// Number of evaluations in packets whose rules are timed.
    pub timed: u64,
}

impl RuleCounters {
    /// Returns the current counts of the rule.
    pub fn counts(&self) -> RuleCounts {
        RuleCounts {
            asked: self.asked.load(Relaxed),
            fitted: self.fitted.load(Relaxed),
            ticks: self.ticks.load(Relaxed),
            timed: self.timed.load(Relaxed),
        }
    }
}

/// Adds `more` to a counter that only one thread writes.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

/// The rules of one packet out of this number of packets are timed.
const TIMED_ONE_IN: u32 = 64;
/// Maximum plausible measurement in cycles; a longer one counts as interrupted, because the core ran something else.
const INTERRUPTED_TICKS: u64 = 100_000;

impl Inspector {
    /// Creates an inspector for `set`, with space for `counters` rate counters.
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

    /// Removes and returns the halves of rules with `=>` that the last message matched while the other half had not
    /// matched yet. The caller stores them with the transaction.
    #[inline]
    pub fn take_halves(&mut self) -> FlowBits {
        std::mem::take(&mut self.halves)
    }

    /// Returns the counters of all rules, by index of the rule.
    pub fn counters(&self) -> Arc<[RuleCounters]> {
        Arc::clone(&self.counters)
    }

    /// Begins the next packet. `most_ticks` is the time limit for its rules in cycles of [`taut_sys::ticks`];
    /// [`u64::MAX`] means no limit. The clock is read before each group and each rule; an evaluation that is running at
    /// the limit is completed. If the limit is about a millisecond or more, the clock is not read before the first 16
    /// evaluations; most packets need no more than 16.
    #[inline]
    pub fn begin(&mut self, most_ticks: u64) {
        self.most_ticks = most_ticks;
        let is_long = most_ticks >= LONG_TICKS;
        self.looks = if is_long { UNTIMED_LOOKS } else { 0 };
        self.until_ticks = u64::MAX;
        (self.is_over_time, self.bypasses) = (false, false);
    }

    /// Returns true if a rule with the option `bypass` matched the packet.
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

    /// Returns the number of rules that needed too many steps, or had to transform a buffer longer than the limit of
    /// transforms.
    pub fn given_up(&self) -> u64 {
        self.evaluator.given_up
    }

    /// Evaluates the rules on a packet. `with_packet` is false if the payload was inspected before, so that only rules
    /// about messages are evaluated. `ready` contains the buffers of messages that are new or have grown.
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
                // A rule may test that the payload is empty.
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

    /// Evaluates only the rules that test the anomalies of a packet. It is meant for packets that their receiver
    /// discards, to which no other rule applies.
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
            // An earlier search found this pattern, but rules with this pattern may have failed because other bytes
            // were missing.
            if end <= new_from {
                for &rule in &group.going_on[pattern] {
                    ask_for(seen, asked, 2 * rule + 1);
                }
                return;
            }
            // If the first rule of a pattern is already listed, so are the others. This check saves time when a pattern
            // of padding bytes matches at every byte.
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

    /// Adds the rules that apply to the addresses of a packet. The function is not inlined, to keep its code off the
    /// path of packets without such rules.
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
        // Rules are sorted by action, pass rules first.
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
                // The match is logged once, when the last required bytes have arrived. Retransmitted bytes do not log
                // it again.
                fits = !self.evaluator.fits(rule, packet, &parts.before(), bits);
            }
            self.count_evaluation(number, is_timed, began);
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
            verdict = verdict.after(rule);
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

    /// Counts an evaluation of a rule, and the cycles since `began` if it is timed.
    #[inline]
    fn count_evaluation(&self, number: u32, is_timed: bool, began: u64) {
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
    }

    /// Counts a match of a rule that has a rate (`detection_filter` or `threshold`). Returns whether the match takes
    /// effect and whether it is logged.
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

    /// Returns true if the host bits (`xbits`) of the packet's sender and receiver satisfy the tests of a rule.
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

/// Changes the bits of the flow as `change` requests; returns false if all bits were in use.
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
    use crate::buffer::{Application, Buffer};
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
    fn a_rule_matches_according_to_its_dialect() {
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
        // A position before the beginning counts as the beginning, and numbers read from a buffer are unsigned.
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
    fn relative_byte_tests_use_the_buffer_of_the_preceding_content() {
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

    /// Returns, for each piece of a request and then for its end, the identifiers of the rules that match there.
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
    fn rules_on_http_head_and_body_match_at_any_split() {
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
    fn rule_evaluation_stops_at_the_time_limit_of_a_packet() {
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
        // The rules that were not evaluated for that packet do not carry over to the next packet.
        assert_eq!(ask(u64::MAX), (Verdict::Drop, 2, false));
        assert_eq!(ask(u64::MAX - 1), (Verdict::Drop, 2, false));
    }
}
