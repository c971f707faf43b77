//! Processing of packets of several chains on the same ports: each packet passes the functions of the chain that the
//! classifier selects.

use super::Worker;
use crate::CountersView;
use crate::classes::Classes;
use taut_function::Context;
use taut_port::{BATCH_CAPACITY, Batch, Direction};

impl Worker {
    /// Divides the batches of a burst by class, passes the packets of each class to the functions of its chain, and
    /// sends them. Packets of one class stay in order.
    #[inline(never)]
    pub(super) fn process_classes(
        &mut self,
        first: &mut Batch,
        more: &mut [Batch],
        context: &Context,
        ran_dry: bool,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let Some(mut classes) = self.classes.take() else {
            return;
        };
        // `take` leaves an empty list, which allocates nothing.
        let mut parts = std::mem::take(&mut classes.parts);
        for batch in std::iter::once(first).chain(more) {
            let together = classes.divide(batch, &mut parts, context.from_port);
            for (class, part) in parts.iter_mut().enumerate() {
                let packets = match together == Some(class) {
                    true => &mut *batch,
                    false => part,
                };
                if class == classes.dropped() {
                    own.dropped_by_function += packets.len() as u64;
                    packets.clear();
                } else if self.holds_packets || !packets.is_empty() {
                    self.process_class(packets, class, &classes, context);
                    self.send(context, packets, ran_dry, punted, own);
                }
            }
        }
        classes.parts = parts;
        self.classes = Some(classes);
    }

    /// Passes a batch to the functions of the chain of class `class`.
    fn process_class(
        &mut self,
        batch: &mut Batch,
        class: usize,
        classes: &Classes,
        context: &Context,
    ) {
        if self.holds_packets {
            batch.set_limit(BATCH_CAPACITY);
        }
        let (direction, count) = (
            Direction::from_port(context.from_port),
            self.functions.len(),
        );
        for place in (0..count).map(|step| direction.place(step, count)) {
            if classes.has(class, place) {
                batch.set_stage(self.numbers.all()[place]);
                self.functions[place].process(batch, context);
            }
        }
    }
}
