//! Look-ups of sixteen addresses at a time, by vector instructions: level by level as in `fib.rs`.

use std::sync::atomic::{Ordering, fence};

use taut_sys::lanes::{ALL_LANES, LANES, Lanes, OnLanes, Which, Wide};

use super::fib::{BATCH_BYTES, Fib, IS_LINE, IS_NODE};
use super::{
    FIRST_BITS, HALF_ENTRIES, HALF_RANGES, LINE_BITS, LINE_ENTRIES, MOST_LINES, MOST_NODES,
    NODE_BITS,
};
use crate::NextHop;

/// Number of vectors in the largest batch.
const MOST_GROUPS: usize = 4;

/// A batch, of at most [`MOST_GROUPS`] times [`LANES`] addresses.
pub(super) struct LookUp<'a> {
    pub fib: &'a Fib,
    pub addresses: &'a [[u8; 16]],
    pub hops: &'a mut [NextHop],
}

impl OnLanes for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, wide: Wide) {
        let groups = self.addresses.as_chunks::<LANES>().0;
        let hops = self.hops.as_chunks_mut::<LANES>().0;
        match (groups.as_chunks().0, hops.as_chunks_mut().0) {
            ([all], [hops]) => together::<MOST_GROUPS>(wide, self.fib, all, hops),
            _ => {
                let pairs = groups.as_chunks::<2>().0.iter();
                for (pair, hops) in pairs.zip(hops.as_chunks_mut::<2>().0) {
                    together(wide, self.fib, pair, hops);
                }
            }
        }
    }
}

/// Looks up `G` vectors of addresses. Each step is done for all vectors before the next step.
#[inline(always)]
fn together<const G: usize>(
    wide: Wide,
    fib: &Fib,
    groups: &[[[u8; 16]; LANES]; G],
    hops: &mut [[NextHop; LANES]; G],
) {
    let all = |number: u32| wide.all(number);
    // The first and second 32 bits of each address.
    let mut keys = [(all(0), all(0)); G];
    let mut entries = [all(0); G];
    let mut any = 0;
    for ((group, keys), entries) in groups.iter().zip(&mut keys).zip(&mut entries) {
        *keys = words(wide, group, 0);
        let places = keys.0.down(all(32 - u32::from(FIRST_BITS)));
        *entries = entries.loaded(ALL_LANES, &fib.first, places);
        any |= entries.having(all(IS_NODE | IS_LINE));
    }
    if any != 0 {
        further(wide, fib, groups, &keys, &mut entries);
    }
    for (hops, entries) in hops.iter_mut().zip(entries) {
        *hops = entries.halves().map(NextHop::of_bits);
    }
}

/// Continues look-ups from their first-level entries to next hops.
#[inline(always)]
fn further<const G: usize>(
    wide: Wide,
    fib: &Fib,
    groups: &[[[u8; 16]; LANES]; G],
    keys: &[(Lanes, Lanes); G],
    entries: &mut [Lanes; G],
) {
    let all = |number: u32| wide.all(number);
    let having = |bits: u32, entries: &[Lanes; G]| entries.map(|it| it.having(all(bits)));
    let any = |which: &[Which; G]| which.iter().any(|it| *it != 0);
    // Number of address bits consumed for each address.
    let mut depths = [all(u32::from(FIRST_BITS)); G];
    for byte in u32::from(FIRST_BITS) / 8..BATCH_BYTES as u32 {
        let nodes = having(IS_NODE, entries);
        if !any(&nodes) {
            break;
        }
        fence(Ordering::Acquire);
        for (at, which) in nodes.into_iter().enumerate() {
            let key = if byte < 4 { keys[at].0 } else { keys[at].1 };
            let value = key.down(all(24 - byte % 4 * 8)).and(all(0xff));
            let node = entries[at].and(all(MOST_NODES as u32 - 1));
            let place = node.up(all(u32::from(NODE_BITS))).or(value);
            entries[at] = entries[at].loaded(which, &fib.nodes, place);
            depths[at] = depths[at].plus_in(which, all(u32::from(NODE_BITS)));
        }
    }
    let lines = having(IS_LINE, entries);
    if any(&lines) {
        fence(Ordering::Acquire);
        in_lines(wide, fib, groups, keys, &lines, &depths, entries);
    }
    let rest = having(IS_NODE | IS_LINE, entries);
    if any(&rest) {
        for (at, group) in groups.iter().enumerate().filter(|(at, _)| rest[*at] != 0) {
            let depths = depths[at].plus_in(lines[at], all(u32::from(LINE_BITS)));
            let mut found = entries[at].numbers();
            fib.go_on(group, &mut found, depths.numbers().map(|depth| depth as u8));
            entries[at] = wide.lanes(&found);
        }
    }
}

/// Looks up the lanes of `which` in the lines that their entries refer to.
#[inline(always)]
fn in_lines<const G: usize>(
    wide: Wide,
    fib: &Fib,
    groups: &[[[u8; 16]; LANES]; G],
    keys: &[(Lanes, Lanes); G],
    which: &[Which; G],
    depths: &[Lanes; G],
    entries: &mut [Lanes; G],
) {
    let all = |number: u32| wide.all(number);
    let table = &fib.lines;
    let mut their_keys = [all(0); G];
    let mut places = [all(0); G];
    for at in 0..G {
        let (first, second) = keys[at];
        let (depth, word_bits) = (depths[at], all(32));
        // Shifts by more than 31, or by less than 0, yield zero.
        let mut key = first.up(depth).or(second.down(word_bits.minus(depth)));
        if which[at] & !depth.at_most(word_bits) != 0 {
            let (third, _) = words(wide, &groups[at], 2);
            key = key.or(second.up(depth.minus(word_bits)));
            key = key.or(third.down(all(64).minus(depth)));
        }
        their_keys[at] = key;
        let line = entries[at].and(all(MOST_LINES as u32 - 1));
        let place = line.up(all(LINE_ENTRIES.ilog2()));
        let second_half = all(0).loaded(which[at], table, place);
        let behind = second_half.at_most(key) & which[at];
        places[at] = place.plus_in(behind, all(HALF_ENTRIES as u32));
    }
    for step in [4, 2, 1] {
        for at in 0..G {
            let starts = all(0).loaded(which[at], table, places[at].plus_in(ALL_LANES, all(step)));
            let behind = starts.at_most(their_keys[at]) & which[at];
            places[at] = places[at].plus_in(behind, all(step));
        }
    }
    for at in 0..G {
        let place = places[at].plus_in(ALL_LANES, all(HALF_RANGES as u32));
        entries[at] = entries[at].loaded(which[at], table, place);
    }
}

/// Returns two consecutive 32-bit words of each address, as two vectors; the first word is at byte 4 * `number`.
#[inline(always)]
fn words(wide: Wide, group: &[[u8; 16]; LANES], number: u32) -> (Lanes, Lanes) {
    let four: [Lanes; 4] = std::array::from_fn(|at| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|it| group[4 * at + it]);
        wide.four(&[a, b, c, d])
    });
    let places = |place: fn(u32) -> u32| std::array::from_fn(|lane| place(lane as u32));
    // In `low`, the first words of the first eight addresses precede their second words; `high` has those of the other
    // eight.
    let stride = wide.lanes(&places(|lane| lane % 8 * 4 + lane / 8));
    let stride = stride.plus_in(ALL_LANES, wide.all(number));
    let low = wide.pick(four[0], stride, four[1]);
    let high = wide.pick(four[2], stride, four[3]);
    let first = wide.lanes(&places(|lane| lane % 8 + lane / 8 * 16));
    let second = first.plus_in(ALL_LANES, wide.all(8));
    (
        wide.pick(low, first, high).swapped(),
        wide.pick(low, second, high).swapped(),
    )
}
