//! BURN: spends a set number of cycles of the time-stamp counter per packet. (Gallenmüller 2021, section 5.1: SHEEP's
//! CPU loader.)
//!
//! Reading the counter in a loop would be coarse: it costs tens of cycles by itself. Instead, a chain of dependent
//! instructions of known duration runs for the cycles of the whole batch. Two fences keep other instructions from
//! running in parallel with the chain, which would hide its time. The costs of a step and of the rest of a call are
//! measured when the worker is created. Each call also measures its own duration, because the processor cannot predict
//! a loop of varying length exactly. The error is carried to the next call, so the mean is exact.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, settings,
};
use taut_measure::{Interval, mean_beside_median};
use taut_port::{Batch, PoolHandle, PortError};
use taut_sys::{ticks, wait_for_instructions};

/// The limit on cycles per packet: a full batch then occupies the worker for some hundredths of a second.
const MOST_CYCLES: u32 = 1_000_000;

pub(crate) const ENTRY: Entry = Entry {
    name: "burn",
    summary: "spends a number of cycles per packet",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        settings(table).and_then(|settings: Settings| {
            Ok(Box::new(Burn::new(settings.check()?.cycles)) as Box<dyn Function>)
        })
    },
    in_kernel: KernelVersion::No("what it costs is meant for a core of its own"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[(
    "cycles",
    "required",
    "cycles of the time-stamp counter per packet, 0 to 1000000",
)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    cycles: u32,
}

impl Settings {
    fn check(self) -> Result<Self, SettingsError> {
        if self.cycles > MOST_CYCLES {
            return Err(SettingsError(format!(
                "cycles: expected 0 to {MOST_CYCLES} per packet"
            )));
        }
        Ok(self)
    }
}

/// The measured costs of steps and calls on this core.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// The TSC ticks of one step of the burn loop.
    step_ticks: f64,
    /// The ticks of a call without steps: the calculation, the fences, and reading the counter.
    call_ticks: f64,
    /// The part of `call_ticks` that is outside a call's measurement of its own duration.
    unseen_ticks: f64,
    /// The ticks of a call that runs no steps and only adds to the debt, the cycles that are still to be spent.
    skip_ticks: f64,
}

/// The fraction by which a call may take longer than planned, in addition to a few mispredicted branches. A longer call
/// was interrupted, and the time beyond its plan does not count as spent.
const BELIEVED: f64 = 0.25;
const SURPRISE_TICKS: f64 = 100.0;
/// The TSC ticks that a burn leaves for its steps, so that it can compensate for an earlier burn that was too long.
const SLACK_TICKS: f64 = 25.0;
/// The resolution in which pending cycles are stored: parts per cycle.
const PARTS: f64 = 1024.0;

struct Burn {
    parts_per_packet: i64,
    /// The debt: cycles of packets that are not yet spent, in parts of a cycle. A negative value was spent in advance.
    owed_parts: i64,
    /// The part of the debt (the cycles still to be spent) that was added since the last call, minus the cost of the
    /// checks. This value, not the total debt, triggers the next call. With equal batches, calls are then at equal
    /// distances, which the processor predicts.
    waiting_parts: i64,
    /// The smallest debt (cycles still to be spent), in parts of a cycle, that triggers a call: about the cost of the
    /// call itself.
    least_parts: i64,
    skip_parts: i64,
    cost: Cost,
    steps_per_tick: f64,
    /// The ticks, in addition to [`BELIEVED`], by which a call may exceed its plan before it counts as interrupted.
    surprise_ticks: f64,
    /// The total TSC ticks of all burns, as the burns themselves have measured them.
    seen_ticks: u64,
    /// The result of the last chain of steps. The next chain starts from this value, so that it depends on the last
    /// chain.
    state: u64,
}

fn parts(cycles: f64) -> i64 {
    (cycles * PARTS).round() as i64
}

impl Burn {
    /// Creates a burn that is not calibrated yet: [`Function::prepare`] calibrates it on the worker's core. Until then
    /// each step counts as one cycle, regardless of its real duration.
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

    /// Sets the measured cost of steps and calls.
    fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
        self.steps_per_tick = 1.0 / cost.step_ticks;
        self.surprise_ticks = SURPRISE_TICKS;
        self.skip_parts = parts(cost.skip_ticks);
        if self.parts_per_packet > 0 {
            self.least_parts = parts(cost.call_ticks + SLACK_TICKS);
        }
    }

    /// Adds the cycles of `packets` packets to the debt, the cycles still to be spent. Returns true if the debt is
    /// large enough for a call; otherwise the cost of this check counts as spent.
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

    /// Returns the number of steps of a burn that executes all pending cycles.
    #[inline(always)]
    fn steps(&self) -> u64 {
        let ticks = self.owed_parts as f64 / PARTS - self.cost.call_ticks;
        (ticks * self.steps_per_tick) as u64
    }

    /// Subtracts the ticks of a call of `steps` steps from the debt, the cycles still to be spent: the measured
    /// duration, or the planned duration if the call was interrupted.
    #[inline(always)]
    fn settle(&mut self, steps: u64, seen_ticks: u64) {
        let planned = self.cost.call_ticks + steps as f64 * self.cost.step_ticks;
        let took = seen_ticks as f64 + self.cost.unseen_ticks;
        let is_believed = took - planned < BELIEVED * planned + self.surprise_ticks;
        self.owed_parts -= parts(if is_believed { took } else { planned });
    }

    /// Runs as many steps as the pending cycles allow, and subtracts the cost of these steps.
    #[inline(never)]
    fn spend(&mut self) {
        let steps = self.steps();
        let (state, seen_ticks) = run_chain(self.state, steps);
        self.state = state;
        self.seen_ticks = self.seen_ticks.wrapping_add(seen_ticks);
        self.settle(steps, seen_ticks);
        // Later work must not overlap the calculation, which counts as spent.
        wait_for_instructions();
    }
}

impl Function for Burn {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            ..Needs::default()
        }
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

/// Runs `steps` steps, each of which needs the result of the one before. Returns the result of the last step, and the
/// ticks from before the first step to after the last one.
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

/// The number of calls timed together, so that the cost of reading the counter is negligible.
const CALLS: u32 = 64;
/// The number of repetitions. Their lower quartile is used, because interruptions only make calls longer.
const REPETITIONS: usize = 129;
/// The two loop lengths, in steps, from which the cost of a step is derived.
const STEPS: [u32; 2] = [8, 264];

/// Measures the cost of a step and of a call, which takes some milliseconds.
///
/// # Errors
/// Fails if there is no memory for a packet.
fn calibrate() -> Result<Cost, PortError> {
    // The loop brings the core to its full frequency.
    let (warm, mut state) = (ticks(), 1);
    while ticks().wrapping_sub(warm) < 4_000_000 {
        (state, _) = run_chain(state, 1_000);
    }
    let pool = PoolHandle::new(4, false)?;
    let mut packet = Batch::new();
    pool.fill(&mut packet, 1, 60);
    // Until the cost is known, each pending cycle counts as one step. The last burn has no steps, but it is called like
    // the others.
    let mut burns = [STEPS[0], STEPS[1], 0].map(Burn::new);
    let mut samples = [const { Vec::new() }; 3];
    let mut unseen = Vec::new();
    // The calls are interleaved, so that a frequency change affects all of them.
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

/// Derives the costs from measured ticks: of calls with short and long chains, of calls without steps, and of the part
/// that a call's own timing misses.
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

/// The difference between the cycles that a burn takes per packet and the configured cycles, measured by its caller.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, JsonSchema)]
pub struct BurnError {
    /// The configured cycles per packet.
    pub cycles: u32,
    /// The packets per batch.
    pub batch: usize,
    /// The number of timed blocks of batches.
    pub count: usize,
    /// The number of blocks that were excluded because they were interrupted.
    pub disturbed: usize,
    /// The mean over the blocks that were not excluded: the cycles per packet beyond the configured number.
    pub mean_cycles: f64,
    /// The confidence interval of the median, over the blocks, of the cycles per packet beyond the configured number.
    pub interval: Option<Interval>,
}

impl BurnError {
    /// Returns true if the burn is accurate: within 2 % from 50 cycles on, within 3 cycles below.
    pub fn is_within_bounds(&self) -> bool {
        let bound = if self.cycles < 50 {
            3.0
        } else {
            0.02 * f64::from(self.cycles)
        };
        self.mean_cycles.abs() < bound
    }
}

/// The maximum number of batches in a timed block of [`measure_error`].
const BATCHES_PER_BLOCK: usize = 32;
/// The limit on the cycles of a block, because longer blocks are more likely to be interrupted.
const BLOCK_CYCLES: usize = 100_000;
/// The number of blocks timed in [`measure_error`].
const BLOCKS: usize = 200;
/// The limit above which a block counts as interrupted: the ticks of the median block times the first value, plus the
/// second value in ticks.
const DISTURBED: (f64, f64) = (1.1, 500.0);

/// Measures the error of a burn of `cycles` per packet on the calling thread's core, in batches of `batch` packets. The
/// error is the additional time compared with the same batches without the function, minus the configured cycles.
///
/// # Errors
/// Fails if there is no memory for packets.
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

/// Returns the ticks of each of [`BLOCKS`] blocks; a block calls `call` `batches` times.
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

    /// Simulates a batch of `packets` packets on a core where calls take `surprise` ticks longer and whose counter is
    /// at `now`. Returns the ticks that the batch costs.
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
    fn burned_cycles_equal_the_configured_cost_at_any_batch_size() {
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
                    // The burn lags by the debt that waits for a call, and by the rounding of the counter.
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
    fn small_costs_per_packet_accumulate_into_evenly_spaced_burns() {
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
    fn a_burn_corrects_for_slow_cores_but_not_for_interruptions() {
        let mut burn = burn(10_000);
        assert!(burn.owes_a_call(1));
        let steps = burn.steps();
        let planned = COST.call_ticks + steps as f64 * COST.step_ticks;
        let left = burn.owed_parts - parts(planned);
        let seen = |took: f64| (took - COST.unseen_ticks).round() as u64;
        let about =
            |burn: &Burn, cycles: f64| (burn.owed_parts - left - parts(cycles)).abs() <= parts(0.5);
        // The call was one percent slower, so the next packet owes that much less.
        burn.settle(steps, seen(planned * 1.01));
        assert!(about(&burn, -0.01 * planned), "{}", burn.owed_parts);
        burn.owed_parts = left + parts(planned);
        burn.settle(steps, seen(planned + 60_000.0));
        assert!(about(&burn, 0.0), "{}", burn.owed_parts);
    }

    #[test]
    fn a_cost_of_zero_cycles_burns_nothing() {
        let mut burn = burn(0);
        assert!((0..100).all(|_| !burn.owes_a_call(64)));
    }

    #[test]
    fn call_and_step_costs_are_derived_from_two_loop_lengths() {
        let cost = cost_of(41.0 + 8.0 * 3.7, 41.0 + 264.0 * 3.7, 2.0, 20.0);
        assert!((cost.step_ticks - 3.7).abs() < 1e-9 && (cost.call_ticks - 41.0).abs() < 1e-9);
        // Even if an interruption makes the long chain look shorter than the short one, the burn must end.
        let cost = cost_of(100.0, 50.0, 1.0, 0.0);
        assert!(cost.step_ticks > 0.0 && cost.call_ticks >= 0.0);
    }

    #[test]
    fn the_burn_loop_executes_exactly_the_configured_number_of_steps() {
        let chain = |state, steps| run_chain(state, steps).0;
        let by_hand = (0..100).fold(5, |state, _| chain(state, 1));
        assert_eq!(chain(5, 100), by_hand);
        assert_ne!(chain(5, 100), chain(5, 99));
    }

    #[test]
    fn burn_errors_below_three_cycles_or_two_percent_are_accepted() {
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
    fn a_burn_error_covers_all_measured_blocks() {
        let error = measure_error(100, 8).unwrap();
        assert_eq!((error.cycles, error.batch, error.count), (100, 8, BLOCKS));
        assert!(error.disturbed < error.count && error.mean_cycles.is_finite());
    }

    #[test]
    fn invalid_burn_settings_are_refused_with_the_valid_range() {
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
