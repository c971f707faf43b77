//! Measures the cost of a random access on this machine: the function `walk` over lists of many sizes, timed packet by
//! packet in this process. (Gallenmüller 2021, sections 4.1.3 and 5.2.2.)

use crate::DeployError;
use std::time::{Duration, Instant};
use taut_engine::{Chain, Stage, functions_ticks};
use taut_function::{Context, Function};
use taut_functions::FUNCTIONS;
use taut_measure::median;
use taut_port::{Batch, PoolHandle, PortSpec};

/// Steps per packet: enough to make the cost of reading the counter small, even where a step takes a few cycles.
const STEPS: i64 = 256;
/// Threshold for interrupted packets, as a multiple of the typical time of a packet in the block. Packets above it are
/// ignored.
const INTERRUPTED: f64 = 4.0;
/// Packets per block: some milliseconds for a list in memory.
const BLOCK_PACKETS: usize = 64;
/// Smallest number of blocks. More are measured if there is time.
const LEAST_BLOCKS: usize = 8;
/// Steps that load a list, or the part of it that fits, into the caches before the measurement.
const WARM_UP_STEPS: u64 = 1 << 22;
/// Bytes that a step reads: a cache line.
const STEP_BYTES: u64 = 64;

/// Cycles of one memory access in a linked list of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccessCost {
    /// Size of the linked list, bytes.
    pub bytes: u64,
    /// Cycles of the time-stamp counter per access, in the fastest block. The fastest counts because interruptions and
    /// other users of caches and memory only add cycles.
    pub cycles: f64,
    /// Difference between the lower quartile of the blocks and the fastest one, as a fraction of the fastest.
    pub scatter: f64,
    /// Number of measured blocks of accesses.
    pub blocks: usize,
}

/// Measures lists of the given sizes on a core, each for the time `each` plus the preparation. `stop` is checked
/// between two lists.
///
/// # Errors
/// `walk` does not support a size, or the machine lacks the memory.
pub fn access_costs(
    sizes: &[u64],
    core: usize,
    each: Duration,
) -> Result<Vec<AccessCost>, DeployError> {
    let measure = || {
        taut_host::pin_current_thread(core).map_err(|e| DeployError::Chain(e.to_string()))?;
        let mut bench = Bench::new()?;
        sizes
            .iter()
            .map(|bytes| bench.measure(*bytes, each))
            .collect()
    };
    // The measurement has its own thread, because that thread is pinned to a core.
    std::thread::scope(|scope| scope.spawn(measure).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A packet, and the objects that `walk` needs to process it.
struct Bench {
    ports: Vec<PortSpec>,
    batch: Batch,
    _pool: PoolHandle,
}

impl Bench {
    fn new() -> Result<Self, DeployError> {
        let pool = PoolHandle::new(1, false)?;
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, 60);
        Ok(Self {
            ports: vec![PortSpec::parse("null:")?],
            batch,
            _pool: pool,
        })
    }

    fn walk(&self, bytes: u64, steps: i64) -> Result<Vec<Box<dyn Function>>, DeployError> {
        let stage = Stage::parse(&format!("walk(steps={steps}, bytes={bytes})"), FUNCTIONS)?;
        let chain = Chain::new(self.ports.clone(), vec![stage]);
        Ok(chain.build_functions()?)
    }

    fn measure(&mut self, bytes: u64, each: Duration) -> Result<AccessCost, DeployError> {
        // A packet without steps gives the cost of the call, and of reading the counter.
        let mut nowhere = self.walk(4096, 0)?;
        let mut walk = self.walk(bytes, STEPS)?;
        let lap = (2 * bytes / STEP_BYTES).min(WARM_UP_STEPS);
        for _ in 0..lap / STEPS.unsigned_abs() {
            self.pass(&mut walk);
        }
        let (mut blocks, mut around) = (Vec::new(), f64::INFINITY);
        let begun = Instant::now();
        while blocks.len() < LEAST_BLOCKS || begun.elapsed() < each {
            around = around.min(self.block(&mut nowhere));
            blocks.push(self.block(&mut walk));
        }
        // The minima with and without steps are computed separately. Otherwise, the smallest difference would be that
        // of the pair in which the packet without steps was disturbed most.
        for block in &mut blocks {
            *block = (*block - around).max(0.0) / STEPS as f64;
        }
        blocks.sort_unstable_by(f64::total_cmp);
        let (least, quarter) = (blocks[0], blocks[blocks.len() / 4]);
        Ok(AccessCost {
            bytes,
            cycles: least,
            scatter: (quarter - least) / least.max(f64::MIN_POSITIVE),
            blocks: blocks.len(),
        })
    }

    /// Returns the mean cycles of the packets that were not interrupted.
    fn block(&mut self, functions: &mut [Box<dyn Function>]) -> f64 {
        let packets: Vec<f64> = (0..BLOCK_PACKETS).map(|_| self.pass(functions)).collect();
        let most = INTERRUPTED * median(&packets).unwrap_or_default();
        let (mut sum, mut count) = (0.0, 0.0);
        for cycles in packets.into_iter().filter(|cycles| *cycles <= most) {
            sum += cycles;
            count += 1.0;
        }
        sum / count
    }

    fn pass(&mut self, functions: &mut [Box<dyn Function>]) -> f64 {
        functions_ticks(functions, &mut self.batch, Context::default(), 1) as f64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn memory_accesses_cost_more_cycles_than_cache_accesses() {
        let core = taut_host::choose_cores().device;
        let sizes = [16 << 10, 64 << 20];
        let found = access_costs(&sizes, core, Duration::from_millis(5)).unwrap();
        assert!(found[0].cycles > 0.5, "{found:?}");
        assert!(found[1].cycles > 2.0 * found[0].cycles, "{found:?}");
        assert!(
            found
                .iter()
                .all(|cost| cost.blocks >= LEAST_BLOCKS && cost.scatter >= 0.0)
        );
        assert!(access_costs(&[1], core, Duration::ZERO).is_err());
    }
}
