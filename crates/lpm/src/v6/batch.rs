//! Batch look-ups, by vector instructions where the machine has them.

use super::fib::Fib;
#[cfg(target_arch = "x86_64")]
use super::wide::LookUp;
use crate::next_hop::NextHop;

/// Number of addresses of a batch that are looked up together.
const TOGETHER: usize = 64;
/// Number of addresses of a smaller batch.
const FEW: usize = 32;

impl Fib {
    /// Looks up a batch: `hops[i]` becomes the next hop of `addresses[i]`, up to the shorter length. All addresses pass
    /// a level before the next one, so the loads of a level overlap.
    #[inline]
    pub fn lookup_batch(&self, addresses: &[[u8; 16]], hops: &mut [NextHop]) {
        let count = addresses.len().min(hops.len());
        let (batches, rest) = addresses[..count].as_chunks::<TOGETHER>();
        let (places, others) = hops[..count].as_chunks_mut::<TOGETHER>();
        for (addresses, hops) in batches.iter().zip(places) {
            self.look_up_together(addresses, hops);
        }
        for (addresses, hops) in rest.chunks(FEW).zip(others.chunks_mut(FEW)) {
            if let (Ok(addresses), Ok(hops)) = (addresses.try_into(), (&mut *hops).try_into()) {
                self.look_up_together::<FEW>(addresses, hops);
                continue;
            }
            let mut padded = ([[0; 16]; FEW], [NextHop::NONE; FEW]);
            padded.0[..addresses.len()].copy_from_slice(addresses);
            self.look_up_together(&padded.0, &mut padded.1);
            hops.copy_from_slice(&padded.1[..hops.len()]);
        }
    }

    #[inline]
    fn look_up_together<const N: usize>(&self, addresses: &[[u8; 16]; N], hops: &mut [NextHop; N]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = self.wide {
            return wide.run(LookUp {
                fib: self,
                addresses,
                hops,
            });
        }
        self.look_up_plainly(addresses, hops);
    }
}
