//! Look-ups of sixteen addresses at a time, by vector instructions.

use taut_sys::lanes::{LANES, OnLanes, Wide};

use super::fib::{Fib, IS_BLOCK};
use crate::NextHop;

/// A batch with the same number of addresses and next hops.
pub(super) struct LookUp<'a> {
    pub fib: &'a Fib,
    pub addresses: &'a [u32],
    pub hops: &'a mut [NextHop],
}

impl OnLanes for LookUp<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, wide: Wide) {
        let (groups, rest) = self.addresses.as_chunks::<LANES>();
        let (hops, others) = self.hops.as_chunks_mut::<LANES>();
        // All loads of four groups are issued before the first result is needed.
        let fours = groups.as_chunks::<4>();
        let places = hops.as_chunks_mut::<4>();
        for (four, hops) in fours.0.iter().zip(places.0) {
            together(wide, self.fib, four, hops);
        }
        for (group, hops) in fours.1.iter().zip(places.1) {
            let (group, hops) = (std::slice::from_ref(group), std::slice::from_mut(hops));
            if let (Ok(group), Ok(hops)) = (group.try_into(), hops.try_into()) {
                together::<1>(wide, self.fib, group, hops);
            }
        }
        self.fib.look_up_plainly(rest, others);
    }
}

#[inline(always)]
fn together<const G: usize>(
    wide: Wide,
    fib: &Fib,
    groups: &[[u32; LANES]; G],
    hops: &mut [[NextHop; LANES]; G],
) {
    let mut any = wide.all(0);
    for (group, hops) in groups.iter().zip(hops.iter_mut()) {
        let entries = wide.lanes(group).loaded_by_upper_bits(wide, fib.first());
        *hops = entries.halves().map(NextHop::of_bits);
        any = any.or(entries);
    }
    // Few addresses are in a /24 with longer prefixes.
    if any.having(wide.all(IS_BLOCK.into())) != 0 {
        fib.look_further(groups.as_flattened(), hops.as_flattened_mut());
    }
}
