//! Batch look-ups, by vector instructions where the machine has them.

use super::fib::Fib;
#[cfg(target_arch = "x86_64")]
use super::wide::LookUp;
use crate::next_hop::NextHop;

impl Fib {
    /// Looks up a batch: `hops[i]` becomes the next hop of `addresses[i]`, up to the shorter length. Loads for
    /// different addresses are independent, so the cache misses of a batch overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[u32], hops: &mut [NextHop]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = self.wide {
            let count = addresses.len().min(hops.len());
            return wide.run(LookUp {
                fib: self,
                addresses: &addresses[..count],
                hops: &mut hops[..count],
            });
        }
        self.look_up_plainly(addresses, hops);
    }
}
