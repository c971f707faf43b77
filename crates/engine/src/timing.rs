//! Timing of functions and ports without a worker. All measurements use this code, so that their results are
//! comparable; it is compiled with the same options as the worker.

use taut_function::{Context, Function};
use taut_port::{Batch, Port};
use taut_sys::ticks;

/// The number of pairs of reads of the time-stamp counter of which the median is computed.
const LOOKS: usize = 1001;

/// Returns the cycles that functions take for `passes` passes of a batch through all of them. The cost of reading the
/// TSC is included ([`look_ticks`]). All passes get the same context, with
/// the time at which the first one starts.
#[inline(never)]
pub fn functions_ticks(
    functions: &mut [Box<dyn Function>],
    batch: &mut Batch,
    context: Context,
    passes: u64,
) -> u64 {
    let before = ticks();
    let context = Context {
        now_ticks: before,
        ..context
    };
    for _ in 0..passes {
        for function in functions.iter_mut() {
            function.process(batch, &context);
        }
    }
    ticks().wrapping_sub(before)
}

/// Sends a batch on the port `from` and receives it on the port `to`, which is joined to it. Returns the cycles of both
/// calls and the number of received packets. The received packets are in the batch afterwards. The cost of reading the
/// TSC is included twice.
#[inline(never)]
pub fn ports_ticks(from: &mut dyn Port, to: &mut dyn Port, batch: &mut Batch) -> (u64, usize) {
    let before = ticks();
    from.tx(batch);
    let sent = ticks();
    batch.clear();
    let again = ticks();
    let received = to.rx(batch);
    let spent = sent.wrapping_sub(before) + ticks().wrapping_sub(again);
    (spent, received)
}

/// Returns the median of the cycles between two successive reads of the time-stamp counter.
pub fn look_ticks() -> u64 {
    let mut all = [0; LOOKS];
    for look in &mut all {
        let before = ticks();
        *look = ticks().wrapping_sub(before);
    }
    all.sort_unstable();
    all[LOOKS / 2]
}
