//! Counters and histograms of a script, summed over its states; they remain accessible even if a state never ends.

use crate::lock::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use taut_lua::{Number, Pending};
use taut_measure::LatencyHistogram;

/// Limit on the counters and histograms of a script, summed over its states: a histogram takes 70 KB outside of Lua.
const MOST: usize = 4096;

/// The counts of a script.
#[derive(Debug, Default)]
pub struct Counted {
    /// Counters by name, over all tasks.
    pub counters: BTreeMap<String, f64>,
    /// Histograms by name, over all tasks.
    pub histograms: BTreeMap<String, LatencyHistogram>,
}

/// A histogram into which one Lua state of a script records.
#[derive(Clone)]
pub struct Recorded {
    pub histogram: Arc<Mutex<LatencyHistogram>>,
    pub pending: Pending,
}

/// Counter or histogram of one Lua state under one name.
pub enum Cell {
    Counter(Number),
    Histogram(Recorded),
}

/// Identifier of a Lua state of a script.
pub type StateNumber = u64;

/// Counts of a script's ended Lua states, and the counters and histograms of its running ones.
#[derive(Default)]
pub struct Counts {
    of_ended: Counted,
    of_live: Vec<(StateNumber, String, Cell)>,
}

impl Counts {
    /// Adds a counter or histogram of a Lua state.
    ///
    /// # Errors
    /// The script has the maximum number of counters and histograms already.
    pub fn add(&mut self, state: StateNumber, name: String, cell: Cell) -> Result<(), String> {
        let ended = self.of_ended.counters.len() + self.of_ended.histograms.len();
        if ended + self.of_live.len() >= MOST {
            return Err(format!(
                "a script has {MOST} counters and histograms at most, over all its tasks"
            ));
        }
        self.of_live.push((state, name, cell));
        Ok(())
    }

    /// Adds the counts of an ended Lua state to the totals.
    pub fn close(&mut self, state: StateNumber) {
        self.take(|number| number == state);
    }

    /// Removes and returns the counts of all Lua states, including running ones.
    pub fn whole(&mut self) -> Counted {
        self.take(|_| true);
        std::mem::take(&mut self.of_ended)
    }

    fn take(&mut self, mut which: impl FnMut(StateNumber) -> bool) {
        let of_ended = &mut self.of_ended;
        self.of_live.retain_mut(|(state, name, cell)| {
            if !which(*state) {
                return true;
            }
            let name = std::mem::take(name);
            match cell {
                Cell::Counter(number) => {
                    *of_ended.counters.entry(name).or_default() += number.get();
                }
                Cell::Histogram(recorded) => {
                    let whole = of_ended.histograms.entry(name).or_default();
                    whole.merge(&lock(&recorded.histogram));
                    record(whole, recorded.pending.values());
                }
            }
            false
        });
    }
}

/// Records the values of a script in the histogram `into`.
pub fn record(into: &mut LatencyHistogram, values: impl Iterator<Item = f64>) {
    values.for_each(|value| into.record(value.round() as u64));
}
