//! FWD: passes every packet unchanged. (Xiang et al., JSAC 2019; DPDK's testpmd calls it `io`.)

use serde::Deserialize;
use taut_function::{Class, Context, Entry, Function, KernelVersion, Needs, Spread, settings};
use taut_port::Batch;
use taut_xdp::forward::HeaderChange;
use taut_xdp::functions::KernelFunction;

pub(crate) const ENTRY: Entry = Entry {
    name: "forward",
    summary: "passes every packet unchanged",
    class: Class::Elementary,
    ports: None,
    settings: &[],
    files: |_| Vec::new(),
    build: |table| settings(table).map(|Settings {}| Box::new(Forward) as Box<dyn Function>),
    in_kernel: KernelVersion::Frames(|_, _| Ok(KernelFunction::Headers(HeaderChange::NONE))),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {}

struct Forward;

impl Function for Forward {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    #[inline]
    fn process(&mut self, _: &mut Batch, _: &Context) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    #[test]
    fn forwarded_packets_stay_unchanged() {
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 2, 60);
        batch.packets_mut()[1].bytes_mut().fill(7);
        Forward.process(&mut batch, &Context::default());
        assert_eq!(batch.len(), 2);
        assert!(batch.is_kept(0) && batch.is_kept(1));
        assert_eq!(batch.packets()[1].bytes(), [7; 60]);
    }
}
