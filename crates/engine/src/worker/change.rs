//! Changes of a worker's functions while packets flow: replaces the functions between two iterations, and lets replaced
//! functions release their packets.

use super::{Worker, is_stamped_by_the_day};
use crate::chain::{Making, unknown_chain};
use crate::outcomes::add_outcomes;
use crate::update::{self, Leaving, Replaced, Request};
use crate::{ChainError, CountersView, Stage};
use taut_function::{Context, Shared};
use taut_port::{BATCH_CAPACITY, Batch};
use taut_sys::ticks;

impl Worker {
    /// Replaces the worker's functions on request, between two iterations, and lets earlier replaced functions release
    /// their packets. Returns true if the functions have changed. The next change starts after the previous one has
    /// ended.
    #[cold]
    pub(super) fn change(
        &mut self,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) -> bool {
        let mut changed = false;
        if self.leaving.is_none()
            && let Some(Request {
                stages,
                shared,
                answer,
            }) = self.updates.take()
        {
            let replaced = self.replace(stages, &shared, now_ticks);
            changed = replaced.is_ok();
            // The requesting thread may have stopped waiting.
            let _ = answer.send(replaced);
        }
        if let Some(mut leaving) = self.leaving.take() {
            self.drain(&mut leaving, now_ticks, batch, punted, own);
            if leaving.is_over() {
                own.dropped_by_function += leaving.held() as u64;
                add_outcomes(&mut self.past_outcomes, leaving.outcomes());
            } else {
                self.leaving = Some(leaving);
            }
        }
        changed
    }

    fn replace(
        &mut self,
        stages: Vec<Stage>,
        shared: &[Shared],
        now_ticks: u64,
    ) -> Result<Replaced, ChainError> {
        let classes = self.classes.as_ref();
        if let Some(stage) = classes.and_then(|it| it.unknown_chain(&stages)) {
            return Err(unknown_chain(stage));
        }
        let stamped: Vec<_> = self
            .ports
            .iter()
            .map(|it| is_stamped_by_the_day(&**it))
            .collect();
        let leaving = update::replace(
            &mut self.functions,
            &mut self.numbers,
            &mut self.lanes.slow,
            &Making {
                member: self.member,
                shared,
                stamped: &stamped,
                ..Making::default()
            },
            &self.stages,
            &stages,
        )?;
        let made = leaving.made;
        self.leaving = Some(leaving);
        self.counters.have_names(&stages);
        if let Some(classes) = &mut self.classes {
            classes.suit(&stages);
        }
        self.stages = stages;
        self.suit_functions();
        Ok(Replaced {
            kept: self.functions.len() - made,
            made,
            pause_ticks: ticks().wrapping_sub(now_ticks),
        })
    }

    /// Calls the replaced functions once in each direction, so that they release packets.
    fn drain(
        &mut self,
        leaving: &mut Leaving,
        now_ticks: u64,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        for from in 0..self.ways.len() {
            let way = self.ways[from];
            if way.patient && !self.may_take(from) {
                continue;
            }
            let context = Context {
                now_ticks,
                from_port: from,
                to_port: way.to,
                ports: self.ports.len(),
            };
            for chain in 0..leaving.chains() {
                batch.set_limit(BATCH_CAPACITY);
                let numbers = self.numbers.all();
                leaving.process(chain, &mut self.functions, numbers, batch, &context);
                self.send(&context, batch, true, punted, own);
                batch.set_limit(self.burst);
            }
        }
    }
}
