//! Rules that the packets of one tunnel or user are sorted by (3GPP TS 29.244 section 5.2.1): the first that a packet
//! fits decides. Each rule has a bearer of its own, and with it path, action and rates as other bearers.

use super::bearer::Match;
use super::flow::{FlowFilter, Looked};
use super::held::Held;
use super::usage::Usage;
use std::sync::Arc;

/// Rules that the packets of one tunnel or user may be sorted by.
pub(super) const MOST_CHOICES: usize = 256;

/// All rules of one tunnel or user, the one that is asked first in front.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sorting(pub(super) Vec<Choice>);

/// One of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Choice {
    /// Names the rule's bearer, together with the number of the sorting.
    pub place: u8,
    pub is_uplink: bool,
    /// Filters of which a packet has to fit one; all packets fit if there is none.
    pub filters: Vec<FlowFilter>,
    /// QoS flows of which a packet has to be marked with one, a bit each; 0 for whatever mark.
    pub flows: u64,
    /// What its packets are counted by.
    pub usages: Vec<Arc<Usage>>,
    /// Where its packets may be kept back, and were.
    pub held: Option<Arc<Held>>,
}

/// Why no rule takes a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsorted {
    NoRule,
    /// One would, were it marked with another QoS flow.
    WrongFlow,
}

impl Choice {
    /// Whether rules behind it are never asked.
    pub fn takes_all(&self) -> bool {
        self.filters.is_empty() && self.flows == 0
    }

    /// Whether there is more to it than to a bearer.
    pub fn is_more_than_a_bearer(&self) -> bool {
        !(self.takes_all() && self.usages.is_empty() && self.held.is_none())
    }
}

impl Sorting {
    /// Returns the place in the list of the rule that takes a packet: `look` reads it, if that is necessary, and none
    /// where it is no packet that filters could be asked about; `flow` is the QoS flow that it is marked with.
    #[inline]
    pub(super) fn choose<'a>(
        &self,
        look: impl FnOnce() -> Option<Looked<'a>>,
        flow: impl FnOnce() -> Option<u8>,
    ) -> Result<usize, Unsorted> {
        match self.0.first() {
            Some(first) if first.takes_all() => return Ok(0),
            None => return Err(Unsorted::NoRule),
            Some(_) => {}
        }
        let (packet, flow) = (look(), flow());
        let mut unsorted = Unsorted::NoRule;
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
            unsorted = Unsorted::WrongFlow;
        }
        Err(unsorted)
    }

    /// Match of the bearer of a rule of the sorting with that number.
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
    fn the_first_rule_that_a_packet_fits_decides() {
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
        let place =
            |choices: &[Choice], flow: Option<u8>| Sorting(choices.to_vec()).choose(look, || flow);
        assert_eq!(
            place(&[choice(web, 0), choice(dns, 0), choice("", 0)], None),
            Ok(1)
        );
        assert_eq!(place(&[choice("", 0), choice(dns, 0)], None), Ok(0));
        assert_eq!(place(&[choice(web, 0)], None), Err(Unsorted::NoRule));
        assert_eq!(place(&[], None), Err(Unsorted::NoRule));
        // Marks: of another flow, or none.
        let marked = [
            choice(dns, 1 << 9),
            choice(web, 0),
            choice("", 1 << 5 | 1 << 6),
        ];
        assert_eq!(place(&marked, Some(9)), Ok(0));
        assert_eq!(place(&marked, Some(6)), Ok(2));
        assert_eq!(place(&marked, Some(7)), Err(Unsorted::WrongFlow));
        assert_eq!(place(&marked, None), Err(Unsorted::WrongFlow));
        // What is no whole packet fits no filter.
        let rest = Sorting(vec![choice(dns, 0), choice("", 0)]);
        assert_eq!(rest.choose(|| None, || None), Ok(1));
    }
}
