//! Swaps source and destination MAC address, so that a frame can return through a bridge. (DPDK's testpmd calls it
//! `macswap`.)

use serde::Deserialize;
use taut_function::{Class, Context, Entry, Function, KernelVersion, Needs, Spread, settings};
use taut_port::Batch;
use taut_wire::ethernet::Ethernet;
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;

pub(crate) const ENTRY: Entry = Entry {
    name: "mac-swap",
    summary: "swaps source and destination MAC address",
    class: Class::Basic,
    ports: None,
    settings: &[],
    files: |_| Vec::new(),
    build: |table| settings(table).map(|Settings {}| Box::new(MacSwap) as Box<dyn Function>),
    in_kernel: KernelVersion::Frames(|_, _| Ok(KernelFunction::Headers(HeaderChange::SWAP))),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {}

struct MacSwap;

impl Function for MacSwap {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for i in 0..batch.len() {
            // The slow path needs the original addresses of punted packets.
            if !batch.is_kept(i) {
                continue;
            }
            match Ethernet::new(batch.packet_mut_but_headers(i).bytes_mut()) {
                Ok(mut frame) => frame.swap_addresses(),
                Err(_) => batch.mark_dropped(i),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    #[test]
    fn mac_addresses_are_swapped_and_runts_are_dropped() {
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, 60);
        pool.fill(&mut batch, 1, 9);
        pool.fill(&mut batch, 1, 60);
        for place in [0, 2] {
            batch.packets_mut()[place].bytes_mut()[..14]
                .copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0]);
        }
        batch.mark_punted(2, taut_port::Punt::Local);
        MacSwap.process(&mut batch, &Context::default());
        assert_eq!(
            batch.packets()[0].bytes()[..12],
            [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
        );
        assert!(batch.is_kept(0) && !batch.is_kept(1));
        // Packets for the slow path stay unchanged.
        assert_eq!(batch.packets()[2].bytes()[..6], [1; 6]);
    }
}
