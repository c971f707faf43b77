//! LOSE: drops one packet in N, evenly, to test how the next device handles losses.

use serde::Deserialize;
use std::num::NonZeroU32;
use taut_function::{Class, Context, Entry, Function, KernelVersion, Needs, Spread, settings};
use taut_port::Batch;

pub(crate) const ENTRY: Entry = Entry {
    name: "lose",
    summary: "drops one packet in `one_in`, evenly",
    class: Class::Elementary,
    ports: None,
    settings: &[("one_in", "required", "one packet of so many is dropped")],
    files: |_| Vec::new(),
    build: |table| {
        settings(table).map(|settings| Box::new(Lose::new(settings)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("it has no version there"),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    one_in: NonZeroU32,
}

struct Lose {
    one_in: u32,
    /// The number of packets until the next drop.
    left: u32,
}

impl Lose {
    fn new(Settings { one_in }: Settings) -> Self {
        let one_in = one_in.get();
        Self {
            one_in,
            left: one_in,
        }
    }
}

impl Function for Lose {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, _: &Context) {
        for i in 0..batch.len() {
            self.left -= 1;
            if self.left == 0 {
                self.left = self.one_in;
                batch.mark_dropped(i);
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
    fn losses_are_evenly_spaced_across_batches() {
        let pool = PoolHandle::new(8, false).unwrap();
        let mut lose = Lose::new(Settings {
            one_in: NonZeroU32::new(3).unwrap(),
        });
        let mut kept = Vec::new();
        for _ in 0..2 {
            let mut batch = Batch::new();
            pool.fill(&mut batch, 4, 60);
            lose.process(&mut batch, &Context::default());
            kept.extend((0..4).map(|i| batch.is_kept(i)));
        }
        assert_eq!(kept, [true, true, false, true, true, false, true, true]);
    }

    #[test]
    fn a_loss_of_one_in_zero_is_refused() {
        let wrong = (ENTRY.build)("one_in = 0".parse().unwrap()).err().unwrap();
        assert!(wrong.0.starts_with("one_in"), "{wrong}");
    }
}
