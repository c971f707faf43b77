//! BURN: spends a set number of cycles of the time-stamp counter per packet.
//! (Gallenmüller 2021, section 5.1: SHEEP's CPU loader.)
//!
//! Reading the counter in a loop would be coarse: it costs tens of cycles by itself. So a chain of
//! dependent instructions of known duration is run, as long as the whole batch owes, between two fences
//! that keep neighbouring work from hiding it. What a step and the rest of a call cost is measured when
//! the worker is made. How long a call really took is read each time, as no loop of varying length ends
//! without surprises for the processor, and what it missed is carried to the next: the mean is exact.

use crate::{Class, Context, Entry, Function, KernelVersion, SettingsError, Spread, settings};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use taut_measure::{Interval, mean_beside_median};
use taut_port::{Batch, PoolHandle, PortError};
use taut_sys::{ticks, wait_for_instructions};

/// Cycles per packet at most: a full batch then holds the worker for some hundredths of a second.
const MOST_CYCLES: u32 = 1_000_000;

pub(crate) const ENTRY: Entry = Entry {
    name: "burn",
    summary: "spends `cycles` cycles of the time-stamp counter per packet",
    class: Class::Advanced,
    ports: None,
    build: |table| {
        settings(table).and_then(|settings: Settings| {
            Ok(Box::new(Burn::new(settings.check()?.cycles)) as Box<dyn Function>)
        })
    },
    in_kernel: KernelVersion::No("what it costs is meant for a core of its own"),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    cycles: u32,
}

impl Settings {
    fn check(self) -> Result<Self, SettingsError> {
        if self.cycles > MOST_CYCLES {
            return Err(SettingsError(format!(
                "cycles: want 0 to {MOST_CYCLES} per packet"
            )));
        }
        Ok(self)
    }
}

/// Costs of the chain on this core.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// Ticks of one step.
    step_ticks: f64,
    /// Ticks of a call without steps: the reckoning, the fences, and reading the counter.
    call_ticks: f64,
    /// Ticks among these that the call does not see when it times itself.
    unseen_ticks: f64,
    /// Ticks of a call that spends nothing yet.
    skip_ticks: f64,
}

/// A call that took longer than planned by more than this share of it and a mispredicted branch or some
/// was interrupted, which is nobody's burning.
const BELIEVED: f64 = 0.25;
const SURPRISE_TICKS: f64 = 100.0;
/// Ticks that a call is to have left for steps, so that a call before it that was too long can be made up for.
const SLACK_TICKS: f64 = 25.0;
/// Debts are kept in such parts of a cycle.
const PARTS: f64 = 1024.0;

struct Burn {
    parts_per_packet: i64,
    /// Debt: what packets owe and was not spent yet; below zero, spent in advance. In parts of a cycle.
    owed_parts: i64,
    /// Debt that came since the last call, less what asking cost. That decides about the next, not the debt: with equal
    /// batches calls then come at equal distances, which the processor predicts.
    waiting_parts: i64,
    /// Debt that has to wait for a call to be worth its cost.
    least_parts: i64,
    skip_parts: i64,
    cost: Cost,
    steps_per_tick: f64,
    /// Ticks beyond the plan that a call may take to be believed, besides [`BELIEVED`].
    surprise_ticks: f64,
    /// Ticks that all calls took, as they timed themselves.
    seen_ticks: u64,
    /// End of the chain, so that the next one depends on it.
    state: u64,
}

fn parts(cycles: f64) -> i64 {
    (cycles * PARTS).round() as i64
}

impl Burn {
    /// Makes a burn that is not calibrated yet: [`Function::prepare`] does that on the core where it matters. Until
    /// then a step counts as a cycle, whatever it takes.
    fn new(cycles: u32) -> Self {
        let mut burn = Self {
            parts_per_packet: parts(f64::from(cycles)),
            owed_parts: 0,
            waiting_parts: 0,
            least_parts: 0,
            skip_parts: 0,
            cost: Cost {
                step_ticks: 1.0,
                call_ticks: 0.0,
                unseen_ticks: 0.0,
                skip_ticks: 0.0,
            },
            steps_per_tick: 1.0,
            surprise_ticks: f64::NEG_INFINITY,
            seen_ticks: 0,
            state: 1,
        };
        burn.least_parts = if cycles == 0 { i64::MAX } else { 0 };
        burn
    }

    /// Steps and calls cost this from now on.
    fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
        self.steps_per_tick = 1.0 / cost.step_ticks;
        self.surprise_ticks = SURPRISE_TICKS;
        self.skip_parts = parts(cost.skip_ticks);
        if self.parts_per_packet > 0 {
            self.least_parts = parts(cost.call_ticks + SLACK_TICKS);
        }
    }

    /// Takes what `packets` packets owe. True when it is enough for a call; if not, having asked was
    /// spent.
    #[inline(always)]
    fn owes_a_call(&mut self, packets: usize) -> bool {
        let more = packets as i64 * self.parts_per_packet;
        self.owed_parts += more;
        self.waiting_parts += more;
        if self.waiting_parts < self.least_parts {
            self.owed_parts -= self.skip_parts;
            self.waiting_parts -= self.skip_parts;
            return false;
        }
        self.waiting_parts = 0;
        true
    }

    /// The steps of a call that spends all that is owed.
    #[inline(always)]
    fn steps(&self) -> u64 {
        let ticks = self.owed_parts as f64 / PARTS - self.cost.call_ticks;
        (ticks * self.steps_per_tick) as u64
    }

    /// Takes what a call of `steps` steps spent off the debt: what it took, or was to take if it was
    /// interrupted.
    #[inline(always)]
    fn settle(&mut self, steps: u64, seen_ticks: u64) {
        let planned = self.cost.call_ticks + steps as f64 * self.cost.step_ticks;
        let took = seen_ticks as f64 + self.cost.unseen_ticks;
        let is_believed = took - planned < BELIEVED * planned + self.surprise_ticks;
        self.owed_parts -= parts(if is_believed { took } else { planned });
    }

    /// Spends what is owed.
    #[inline(never)]
    fn spend(&mut self) {
        let steps = self.steps();
        let (state, seen_ticks) = run_chain(self.state, steps);
        self.state = state;
        self.seen_ticks = self.seen_ticks.wrapping_add(seen_ticks);
        self.settle(steps, seen_ticks);
        // What follows must not hide behind the reckoning, which counts as spent.
        wait_for_instructions();
    }
}

impl Function for Burn {
    fn spread(&self) -> Spread {
        Spread::Any
    }

    #[inline]
    fn process(&mut self, batch: &mut Batch, _: &Context) {
        if self.owes_a_call(batch.len()) {
            self.spend();
        }
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        self.set_cost(calibrate()?);
        Ok(())
    }
}

/// Runs `steps` steps, each of which needs the result of the one before, and nothing beside them: the end
/// of the chain, and ticks from before the first step to after the last.
#[inline(never)]
fn run_chain(state: u64, steps: u64) -> (u64, u64) {
    wait_for_instructions();
    let begin = ticks();
    let mut state = state;
    for _ in 0..steps {
        // No product of two steps is a step of the same form, so the compiler cannot shorten the chain.
        state = state.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let state = black_box(state);
    wait_for_instructions();
    (state, ticks().wrapping_sub(begin))
}

/// Calls timed together, so that reading the counter does not count.
const CALLS: u32 = 64;
/// Repetitions, of which the lower quartile counts: interruptions only ever add.
const REPETITIONS: usize = 129;
/// The two lengths that the cost of a step is the difference of.
const STEPS: [u32; 2] = [8, 264];

/// Measures what a step and a call cost: some milliseconds.
///
/// # Errors
/// When there is no memory for a packet.
fn calibrate() -> Result<Cost, PortError> {
    // The core is to run as fast as it will.
    let (warm, mut state) = (ticks(), 1);
    while ticks().wrapping_sub(warm) < 4_000_000 {
        (state, _) = run_chain(state, 1_000);
    }
    let pool = PoolHandle::new(4, false)?;
    let mut packet = Batch::new();
    pool.fill(&mut packet, 1, 60);
    // As long as nothing is known of the cost, a packet owes as many steps as cycles. The last one owes
    // nothing and is asked anyway.
    let mut burns = [STEPS[0], STEPS[1], 0].map(Burn::new);
    let mut samples = [const { Vec::new() }; 3];
    let mut unseen = Vec::new();
    // In turns, so that a change of the core's frequency meets all of them.
    for _ in 0..REPETITIONS {
        for (burn, samples) in burns.iter_mut().zip(&mut samples) {
            let seen = burn.seen_ticks;
            let called: &mut dyn Function = black_box(burn);
            let begin = ticks();
            for _ in 0..CALLS {
                called.process(black_box(&mut packet), &Context::default());
            }
            let took = ticks().wrapping_sub(begin);
            samples.push(took as f64 / f64::from(CALLS));
            let seen = burn.seen_ticks.wrapping_sub(seen);
            if seen > 0 {
                unseen.push(took.saturating_sub(seen) as f64 / f64::from(CALLS));
            }
        }
    }
    let [short, long, skip] = samples.map(|mut samples| quantile(&mut samples, 0.25));
    Ok(cost_of(short, long, skip, quantile(&mut unseen, 0.5)))
}

/// The cost from what calls of both lengths and calls without work took, and what of a call's time it did
/// not see itself.
fn cost_of(short_ticks: f64, long_ticks: f64, skip_ticks: f64, unseen_ticks: f64) -> Cost {
    let difference = f64::from(STEPS[1] - STEPS[0]);
    let step_ticks = ((long_ticks - short_ticks) / difference).max(0.01);
    Cost {
        step_ticks,
        call_ticks: (short_ticks - f64::from(STEPS[0]) * step_ticks).max(0.0),
        unseen_ticks,
        skip_ticks: skip_ticks.max(0.0),
    }
}

fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * q) as usize;
    values.get(at).copied().unwrap_or(0.0)
}

/// Precision of a burn, measured from outside.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct BurnError {
    /// Cycles per packet asked for.
    pub cycles: u32,
    /// Packets per batch.
    pub batch: usize,
    /// Blocks of batches that were timed.
    pub count: usize,
    /// Blocks among them that were left out because the machine took time from them.
    pub disturbed: usize,
    /// Mean of the cycles per packet that the other blocks took beyond those asked for.
    pub mean_cycles: f64,
    /// Mean as above, and beside it the interval of the blocks' median.
    pub interval: Option<Interval>,
}

impl BurnError {
    /// Whether the burn keeps to its word: within 2 % from 50 cycles on, within 3 cycles below.
    pub fn is_within_bounds(&self) -> bool {
        let bound = if self.cycles < 50 {
            3.0
        } else {
            0.02 * f64::from(self.cycles)
        };
        self.mean_cycles.abs() < bound
    }
}

/// Batches timed together in [`measure_error`], and cycles that a block is to stay below if it can: the
/// longer it is, the surer it is interrupted.
const BATCHES_PER_BLOCK: usize = 32;
const BLOCK_CYCLES: usize = 100_000;
/// Blocks timed in [`measure_error`].
const BLOCKS: usize = 200;
/// A block this much longer than the median was interrupted: share and ticks.
const DISTURBED: (f64, f64) = (1.1, 500.0);

/// Measures the error of a burn of `cycles` per packet on the calling thread's core, in batches of
/// `batch` packets: what the batches take longer than they would without the function.
///
/// # Errors
/// When there is no memory for packets.
pub fn measure_error(cycles: u32, batch: usize) -> Result<BurnError, PortError> {
    let mut burn: Box<dyn Function> = Box::new(Burn::new(cycles));
    burn.prepare()?;
    let pool = PoolHandle::new(128, false)?;
    let mut packets = Batch::new();
    let batch = pool.fill(&mut packets, batch.max(1), 60);
    let batches = (BLOCK_CYCLES / (cycles as usize * batch).max(1)).clamp(1, BATCHES_PER_BLOCK);
    let context = Context::default();
    let nothing = quantile(
        &mut time_blocks(batches, || _ = black_box(&mut packets)),
        0.5,
    );
    let blocks = time_blocks(batches, || burn.process(black_box(&mut packets), &context));
    let most = quantile(&mut blocks.clone(), 0.5) * DISTURBED.0 + DISTURBED.1;
    let errors: Vec<f64> = blocks
        .iter()
        .filter(|ticks| **ticks <= most)
        .map(|ticks| (ticks - nothing) / (batches * batch) as f64 - f64::from(cycles))
        .collect();
    Ok(BurnError {
        cycles,
        batch,
        count: blocks.len(),
        disturbed: blocks.len() - errors.len(),
        mean_cycles: errors.iter().sum::<f64>() / errors.len().max(1) as f64,
        interval: mean_beside_median(&errors, 0.95),
    })
}

/// The ticks of each block of `batches` calls.
fn time_blocks(batches: usize, mut call: impl FnMut()) -> Vec<f64> {
    (0..BLOCKS)
        .map(|_| {
            let begin = ticks();
            for _ in 0..batches {
                call();
            }
            ticks().wrapping_sub(begin) as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COST: Cost = Cost {
        step_ticks: 3.7,
        call_ticks: 81.0,
        unseen_ticks: 20.0,
        skip_ticks: 2.0,
    };

    fn burn(cycles: u32) -> Burn {
        let mut burn = Burn::new(cycles);
        burn.set_cost(COST);
        burn
    }

    /// Ticks that a batch of so many packets costs, on a core where calls take `surprise` longer and whose
    /// counter stands at `now`.
    fn spent(burn: &mut Burn, packets: usize, surprise: f64, now: &mut f64) -> f64 {
        if !burn.owes_a_call(packets) {
            return COST.skip_ticks;
        }
        let steps = burn.steps();
        let took = COST.call_ticks + steps as f64 * COST.step_ticks + surprise;
        let before = now.floor();
        *now += took - COST.unseen_ticks;
        burn.settle(steps, (now.floor() - before) as u64);
        took
    }

    #[test]
    fn what_is_spent_follows_what_packets_owe_whatever_the_batches() {
        for cycles in [3, 7, 20, 49, 50, 350, 10_000] {
            for sizes in [&[1][..], &[32], &[1, 64, 3], &[2, 5]] {
                for surprise in [0.0, 18.0] {
                    let mut burn = burn(cycles);
                    let batches: Vec<usize> = sizes.iter().copied().cycle().take(999).collect();
                    let owed = batches.iter().sum::<usize>() as f64 * f64::from(cycles);
                    let mut now = 0.0;
                    let each = batches
                        .iter()
                        .map(|n| spent(&mut burn, *n, surprise, &mut now));
                    let spent: f64 = each.sum();
                    // Behind by what waits for a call, and what the counter's ticks round off.
                    let behind = owed - spent;
                    let most = COST.call_ticks + SLACK_TICKS + COST.step_ticks;
                    assert!(
                        (-surprise - 10.0..most + 10.0).contains(&behind),
                        "{cycles} cycles, {sizes:?}, {surprise}: {behind} behind"
                    );
                }
            }
        }
    }

    #[test]
    fn small_debts_wait_until_a_call_is_worth_it_and_calls_are_evenly_spaced() {
        let mut burn = burn(30);
        for surprise in [0.0, 40.0, 7.0] {
            let calls: Vec<bool> = (0..8)
                .map(|_| spent(&mut burn, 1, surprise, &mut 0.0) > 2.0)
                .collect();
            assert_eq!(
                calls,
                [false, false, false, true, false, false, false, true]
            );
        }
    }

    #[test]
    fn a_slower_core_is_made_up_for_and_an_interruption_is_not() {
        let mut burn = burn(10_000);
        assert!(burn.owes_a_call(1));
        let steps = burn.steps();
        let planned = COST.call_ticks + steps as f64 * COST.step_ticks;
        let left = burn.owed_parts - parts(planned);
        let seen = |took: f64| (took - COST.unseen_ticks).round() as u64;
        let about =
            |burn: &Burn, cycles: f64| (burn.owed_parts - left - parts(cycles)).abs() <= parts(0.5);
        // One percent slower: as much less is owed for the next packet.
        burn.settle(steps, seen(planned * 1.01));
        assert!(about(&burn, -0.01 * planned), "{}", burn.owed_parts);
        burn.owed_parts = left + parts(planned);
        burn.settle(steps, seen(planned + 60_000.0));
        assert!(about(&burn, 0.0), "{}", burn.owed_parts);
    }

    #[test]
    fn no_cycles_are_no_calls() {
        let mut burn = burn(0);
        assert!((0..100).all(|_| !burn.owes_a_call(64)));
    }

    #[test]
    fn cost_is_read_from_two_lengths() {
        let cost = cost_of(41.0 + 8.0 * 3.7, 41.0 + 264.0 * 3.7, 2.0, 20.0);
        assert!((cost.step_ticks - 3.7).abs() < 1e-9 && (cost.call_ticks - 41.0).abs() < 1e-9);
        // A core so disturbed that the long one looked shorter still gives a burn that ends.
        let cost = cost_of(100.0, 50.0, 1.0, 0.0);
        assert!(cost.step_ticks > 0.0 && cost.call_ticks >= 0.0);
    }

    #[test]
    fn a_chain_is_as_long_as_its_steps() {
        let chain = |state, steps| run_chain(state, steps).0;
        let by_hand = (0..100).fold(5, |state, _| chain(state, 1));
        assert_eq!(chain(5, 100), by_hand);
        assert_ne!(chain(5, 100), chain(5, 99));
    }

    #[test]
    fn bounds_are_three_cycles_below_fifty_and_two_percent_from_there() {
        let of = |cycles, mean_cycles| BurnError {
            cycles,
            batch: 32,
            count: 1,
            disturbed: 0,
            mean_cycles,
            interval: None,
        };
        assert!(of(10, -2.9).is_within_bounds() && !of(10, 3.0).is_within_bounds());
        assert!(of(1_000, 19.0).is_within_bounds() && !of(1_000, -20.0).is_within_bounds());
    }

    #[test]
    fn a_measured_error_counts_its_blocks() {
        let error = measure_error(100, 8).unwrap();
        assert_eq!((error.cycles, error.batch, error.count), (100, 8, BLOCKS));
        assert!(error.disturbed < error.count && error.mean_cycles.is_finite());
    }

    #[test]
    fn wrong_settings_say_what_is_wanted() {
        let message = |toml: &str| {
            let table: toml::Table = toml.parse().unwrap();
            (ENTRY.build)(table).err().map(|e| e.0).unwrap_or_default()
        };
        assert!(message("cycles = 2000000").contains("0 to 1000000"));
        assert!(message("").contains("cycles"));
        assert!(message("cycles = -1").contains("-1"));
        assert_eq!(message("cycles = 0"), "");
    }
}
