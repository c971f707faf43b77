//! The rules by which the packets of one tunnel or user are classified (3GPP TS 29.244 section 5.2.1): the first
//! matching rule decides. Each rule has its own bearer, and thus a path, an action and rates like other bearers.

use super::bearer::Match;
use super::buffer::Held;
use super::flow::{FlowFilter, Looked};
use super::usage::Usage;
use std::sync::Arc;

/// The limit on the rules by which the packets of one tunnel or user are classified.
pub(super) const MOST_CHOICES: usize = 256;

/// All rules of one tunnel or user, in order of evaluation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Classifier(pub(super) Vec<Choice>);

/// One rule of a classifier.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// The position of the rule. With the number of the classifier, it identifies the rule's bearer.
    pub place: u8,
    pub is_uplink: bool,
    /// The filters of the rule. A packet has to match at least one of them; without filters, all packets match.
    pub filters: Vec<FlowFilter>,
    /// The QoS flows of matching packets, one bit each; 0 if packets of any QoS flow match.
    pub flows: u64,
    /// The usage rules that count the packets of the rule.
    pub usages: Vec<Arc<Usage>>,
    /// The state of the packets that this rule has buffered; none if the rule never buffers.
    pub held: Option<Arc<Held>>,
}

/// The reasons why no rule matches a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unclassified {
    NoRule,
    /// A rule would match if the packet belonged to another QoS flow.
    WrongFlow,
}

impl Choice {
    /// Returns true if the rule matches every packet, so that later rules are never evaluated.
    pub fn takes_all(&self) -> bool {
        self.filters.is_empty() && self.flows == 0
    }

    /// Returns true if the rule does more than a bearer can, such as filtering or counting usage.
    pub fn is_more_than_a_bearer(&self) -> bool {
        !(self.takes_all() && self.usages.is_empty() && self.held.is_none())
    }
}

impl Classifier {
    /// Returns the index of the rule that matches a packet. If a filter needs the parsed packet, `look` is called; it
    /// returns none for packets to which filters do not apply. `flow` is the QoS flow of the packet's mark.
    #[inline]
    pub(super) fn choose<'a>(
        &self,
        look: impl FnOnce() -> Option<Looked<'a>>,
        flow: impl FnOnce() -> Option<u8>,
    ) -> Result<usize, Unclassified> {
        match self.0.first() {
            Some(first) if first.takes_all() => return Ok(0),
            None => return Err(Unclassified::NoRule),
            Some(_) => {}
        }
        let (packet, flow) = (look(), flow());
        let mut unclassified = Unclassified::NoRule;
        for (place, choice) in self.0.iter().enumerate() {
            let fits = choice.filters.is_empty()
                || packet.as_ref().is_some_and(|packet| {
                    let mut filters = choice.filters.iter();
                    filters.any(|filter| filter.fits(packet))
                });
            if !fits {
                continue;
            }
            if choice.flows == 0 || flow.is_some_and(|flow| choice.flows >> flow & 1 == 1) {
                return Ok(place);
            }
            unclassified = Unclassified::WrongFlow;
        }
        Err(unclassified)
    }

    /// Returns the match of the bearer for rule `place` of classifier `number`.
    pub(super) fn match_of(number: u32, place: u8) -> Match {
        Match::Rule { number, place }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::{Headers, UdpFlow};

    fn choice(text: &str, flows: u64) -> Choice {
        let filters = match text {
            "" => Vec::new(),
            text => vec![FlowFilter::described(text).unwrap()],
        };
        Choice {
            filters,
            flows,
            ..Choice::default()
        }
    }

    #[test]
    fn the_first_matching_rule_classifies_a_packet() {
        let flow = UdpFlow {
            src_ip: "198.51.100.7".parse().unwrap(),
            dst_ip: "10.45.0.2".parse().unwrap(),
            src_port: 53,
            ..UdpFlow::default()
        };
        let frame = flow.frame(100).unwrap();
        let look = || Looked::of(&Headers::of(&frame), &frame, false);
        let dns = "permit out 17 from any 53 to assigned";
        let web = "permit out 6 from any 80 to assigned";
        let place = |choices: &[Choice], flow: Option<u8>| {
            Classifier(choices.to_vec()).choose(look, || flow)
        };
        assert_eq!(
            place(&[choice(web, 0), choice(dns, 0), choice("", 0)], None),
            Ok(1)
        );
        assert_eq!(place(&[choice("", 0), choice(dns, 0)], None), Ok(0));
        assert_eq!(place(&[choice(web, 0)], None), Err(Unclassified::NoRule));
        assert_eq!(place(&[], None), Err(Unclassified::NoRule));
        // Some packets have the mark of another flow, or no mark.
        let marked = [
            choice(dns, 1 << 9),
            choice(web, 0),
            choice("", 1 << 5 | 1 << 6),
        ];
        assert_eq!(place(&marked, Some(9)), Ok(0));
        assert_eq!(place(&marked, Some(6)), Ok(2));
        assert_eq!(place(&marked, Some(7)), Err(Unclassified::WrongFlow));
        assert_eq!(place(&marked, None), Err(Unclassified::WrongFlow));
        // An incomplete packet matches no filter.
        let rest = Classifier(vec![choice(dns, 0), choice("", 0)]);
        assert_eq!(rest.choose(|| None, || None), Ok(1));
    }
}
