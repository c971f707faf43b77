//! The body of the fuzz target for NAT; `cargo test` runs the same body over seeded noise.

use std::cell::RefCell;
use taut_function::{Context, Function};
use taut_functions::build;
use taut_port::{Batch, PoolHandle};

/// Longest frame that is tried, bytes.
const MOST: usize = 1500;

thread_local! {
    /// The function and its memory, reused for all inputs: allocating it takes longer than passing a frame.
    static NAT: RefCell<(Box<dyn Function>, PoolHandle)> = RefCell::new(made());
}

fn made() -> (Box<dyn Function>, PoolHandle) {
    let settings = "outside = [1]\naddress = \"203.0.113.1\"\nmappings = 16\nseed = 1\n";
    let mut nat = build("nat", settings.parse().expect("settings")).expect("a function");
    nat.prepare().expect("memory");
    (nat, PoolHandle::new(1, false).expect("memory"))
}

/// Passes a frame in both directions. Checks that the frame is counted once in each direction and keeps its length.
pub fn frame(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MOST)];
    NAT.with_borrow_mut(|(nat, pool)| {
        let before = counted(&**nat);
        for to_port in [1, 0] {
            let mut batch = Batch::new();
            pool.fill(&mut batch, 1, bytes.len() as u16);
            batch.packets_mut()[0].bytes_mut().copy_from_slice(bytes);
            let context = Context {
                to_port,
                ..Context::default()
            };
            nat.process(&mut batch, &context);
            assert_eq!(batch.packets()[0].len(), bytes.len());
        }
        assert_eq!(counted(&**nat), before + 2);
    });
}

fn counted(nat: &dyn Function) -> u64 {
    nat.outcomes().iter().map(|(_, count)| count).sum()
}
