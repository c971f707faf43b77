//! A model that reassembles datagrams byte for byte and without limits. The results of [`Fragments`] are compared with
//! it.

use super::tests::{TCP, UDP, check_that_all_comes_back, fragment};
use super::*;

use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

#[derive(Debug, PartialEq)]
enum Said {
    Kept,
    Duplicate,
    Whole(Vec<u8>),
    Dropped(FragmentFault),
}

/// The bytes of all datagrams, stored one by one and without limits.
#[derive(Default)]
struct Model {
    overlap: Overlap,
    datagrams: HashMap<(u16, u8), ModelDatagram>,
}

#[derive(Default)]
struct ModelDatagram {
    bytes: BTreeMap<usize, u8>,
    end: Option<usize>,
    protocol: Option<u8>,
    is_given_up: bool,
}

impl Model {
    fn push(&mut self, id: (u16, u8), at: usize, more: bool, data: &[u8], protocol: u8) -> Said {
        let overlap = self.overlap;
        let it = self.datagrams.entry(id).or_default();
        if it.is_given_up {
            return Said::Dropped(FragmentFault::GivenUp);
        }
        let give_up = |it: &mut ModelDatagram, fault| {
            it.is_given_up = true;
            Said::Dropped(fault)
        };
        if more && !data.len().is_multiple_of(8) {
            return give_up(it, FragmentFault::Length);
        }
        if at == 0 && protocol == TCP && data.len() < 16 {
            return give_up(it, FragmentFault::TinyFirst);
        }
        let end = at + data.len();
        let last = it.bytes.keys().next_back().map_or(0, |last| last + 1);
        let other_end = match it.end {
            Some(known) => end > known || more == (end == known),
            None => !more && last >= end,
        };
        let other_protocol = at == 0 && it.protocol.is_some_and(|known| known != protocol);
        if other_end || other_protocol {
            return match overlap {
                Overlap::Drop => give_up(it, FragmentFault::Overlap),
                Overlap::First => Said::Dropped(FragmentFault::Contradiction),
            };
        }
        let places = || (at..).zip(data.iter().copied());
        let differs =
            places().any(|(place, byte)| it.bytes.get(&place).is_some_and(|old| *old != byte));
        if differs && overlap == Overlap::Drop {
            return give_up(it, FragmentFault::Overlap);
        }
        if !differs && places().all(|(place, _)| it.bytes.contains_key(&place)) {
            return Said::Duplicate;
        }
        for (place, byte) in places() {
            it.bytes.entry(place).or_insert(byte);
        }
        if !more {
            it.end = Some(end);
        }
        if at == 0 {
            it.protocol = Some(protocol);
        }
        if it.end != Some(it.bytes.len()) {
            return Said::Kept;
        }
        let whole = it.bytes.values().copied().collect();
        self.datagrams.remove(&id);
        Said::Whole(whole)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn fragment_reassembly_agrees_with_a_simple_model(
        sent in prop::collection::vec((0..3u16, 0..12usize, 1..5usize, 0..40u8, any::<bool>()), 1..60),
        scale in 1..12usize,
        is_v6: bool,
        is_first: bool,
    ) {
        let overlap = if is_first { Overlap::First } else { Overlap::Drop };
        let mut kept = Fragments::new(FragmentLimits::default(), overlap);
        let mut model = Model { overlap, ..Model::default() };
        for (id, at, units, how, more) in sent {
            // Most fragments belong to one datagram, whose length is not a multiple of the 8-byte offset unit.
            let (at, end) = (at * 8 * scale, 96 * scale + 5);
            let len = match (more, how) {
                (true, 0) | (false, 0..4) => units * 8 * scale - 3,
                (true, _) => units * 8 * scale,
                (false, _) => end - at,
            };
            if at == 0 && !more || more && at + len > end && how > 3 {
                continue;
            }
            // Most bytes are a function of their offset, so that overlapping fragments agree; one byte may differ.
            let mut data: Vec<u8> = (at..at + len).map(|it| (it / 3) as u8).collect();
            if how == 1 {
                data[len / 2] ^= 0x80;
            }
            let protocol = if how == 2 { TCP } else { UDP };
            let packet = fragment(is_v6, id, protocol, at, more, &data);
            let id = if is_v6 { (id, 0) } else { (id, protocol) };
            let expected = model.push(id, at, more, &data, protocol);
            let outcome = match kept.push(0, 0, &packet) {
                Outcome::Whole(packet) => {
                    let begin = if is_v6 { 48 } else { 20 };
                    Said::Whole(packet[begin..].to_vec())
                }
                Outcome::Kept => Said::Kept,
                Outcome::Duplicate => Said::Duplicate,
                Outcome::Dropped(fault) => Said::Dropped(fault),
            };
            prop_assert_eq!(outcome, expected);
        }
        check_that_all_comes_back(&mut kept);
    }
}
