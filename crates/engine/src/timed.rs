//! What functions and ports take by themselves, timed without a worker: in one place, so that all who ask mean the same, and compiled as the
//! worker is.

use taut_function::{Context, Function};
use taut_port::{Batch, Port};
use taut_sys::ticks;

/// Looks at the counter of which the middle one is taken.
const LOOKS: usize = 1001;

/// Ticks that functions take with a batch, one behind the other, `passes` times over. What looking at the counter takes is part of it
/// ([`look_ticks`]). The context's time is that at which it begins.
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

/// Ticks that it takes to send a batch on one port and to receive it on the one that is joined with it, and how many packets came, which
/// are in the batch then. What looking at the counter takes is part of it, twice.
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

/// Ticks that two looks at the counter in a row differ by, mostly.
pub fn look_ticks() -> u64 {
    let mut all = [0; LOOKS];
    for look in &mut all {
        let before = ticks();
        *look = ticks().wrapping_sub(before);
    }
    all.sort_unstable();
    all[LOOKS / 2]
}
