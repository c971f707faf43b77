//! Measures the cost of a chain's functions, of the ports of one process and of a wakeup on this machine. A measurement
//! takes some milliseconds in this process, with warm caches and an otherwise idle core.

use crate::DeployError;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use taut_engine::{Chain, InKernel, Stage, functions_ticks, look_ticks, ports_ticks};
use taut_function::{Context, Function};
use taut_functions::FUNCTIONS;
use taut_measure::{median, median_interval};
use taut_model::estimate::{Estimate, WrongValue};
use taut_port::{Attachment, Backend, Batch, PoolHandle, Port, PortSpec, Resources};
use taut_sys::{Clock, ticks};
use taut_wire::UdpFlow;

const CONFIDENCE: f64 = 0.95;

/// Number of blocks of a measurement, of which the median is computed.
const BLOCKS: usize = 15;

/// Bytes around a UDP payload: Ethernet, IPv4, UDP, frame check sequence.
pub(crate) const AROUND_BYTES: usize = 14 + 20 + 8 + 4;

/// Timeout for two ports of this process to connect.
const LINK_PATIENCE: Duration = Duration::from_secs(5);

/// Number of buffers in the pool of a measurement.
const SLOTS: u32 = 1024;

/// A measured value: the median of several blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// Median of the blocks.
    pub median: f64,
    /// Lower limit of the median's confidence interval.
    pub low: f64,
    /// Upper limit of the median's confidence interval.
    pub high: f64,
    /// Number of blocks from which the median is computed.
    pub n: usize,
    /// Probability that the interval covers the true median, 0..1.
    pub coverage: f64,
}

impl Measured {
    fn of(values: &[f64]) -> Option<Self> {
        let interval = median_interval(values, CONFIDENCE)?;
        Some(Self {
            median: interval.point,
            low: interval.low,
            high: interval.high,
            n: values.len(),
            coverage: interval.confidence,
        })
    }

    /// Returns the value for the models: a value without an interval counts as exact.
    ///
    /// # Errors
    /// [`WrongValue`] for invalid numbers.
    pub(crate) fn estimate(self) -> Result<Estimate, WrongValue> {
        match self.n {
            0 => Estimate::given(self.median),
            // The interval of a single block covers nothing.
            _ => Estimate::new(
                self.median,
                self.low,
                self.high,
                self.coverage.max(f64::MIN_POSITIVE),
            ),
        }
    }
}

/// Cycles of the time-stamp counter per packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Cost {
    /// Cost of a packet that is processed alone; none if no packet reached the function.
    pub alone: Option<Measured>,
    /// Cost of a packet in a full batch; none if no packet reached the function.
    pub full: Option<Measured>,
}

/// Cost of a function in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct BothWays {
    /// Cost of packets that enter the chain at its first port.
    pub forth: Cost,
    /// Cost of the replies, which pass in the opposite direction.
    pub back: Cost,
}

/// Settings of a measurement: the duration of each of its blocks, and the batch size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) block: Duration,
    /// Packets in a full batch.
    pub(crate) batch: usize,
}

/// Number of functions in the longer chain of [`hand_over`]. The difference in cycles to a chain of one function is
/// divided by the difference in length.
const HANDING_OVER: usize = 9;

/// Passes of a batch through the chain of [`HANDING_OVER`] functions between two readings of the counter.
const PASSES: u64 = 64;

/// Measures the cost of passing a packet from one function of a worker to the next, as the worker does it. The result
/// is the additional cycles per function in a chain of functions that do nothing. It includes the call of a function,
/// which is also part of the function's own cost, so it is an upper bound. (Gallenmüller 2021, section 5.2.2, second
/// step.)
pub(crate) fn hand_over(chain: &Chain, effort: Effort) -> Result<Cost, DeployError> {
    let functions = |count: usize| {
        let forward = Stage::parse("forward", FUNCTIONS)?;
        Chain::new(chain.ports.clone(), vec![forward; count]).build_functions()
    };
    let (mut one, mut more) = (functions(1)?, functions(HANDING_OVER)?);
    let pool = PoolHandle::new(SLOTS, false)?;
    let mut batch = Batch::new();
    let context = Context {
        ports: 2,
        ..Context::default()
    };
    let mut cost = Cost::default();
    for (is_full, size) in [(false, 1), (true, effort.batch)] {
        batch.clear();
        pool.fill(&mut batch, size, 60);
        let mut cycles = |functions: &mut [Box<dyn Function>]| {
            let spent = functions_ticks(functions, &mut batch, context, PASSES);
            spent as f64 / (PASSES * size as u64) as f64
        };
        let mut block = || {
            let mut gained = Vec::new();
            let begun = Instant::now();
            while begun.elapsed() < effort.block {
                gained.push(cycles(&mut more) - cycles(&mut one));
            }
            // The median excludes interruptions, which are not part of the cost.
            let gained = median(&gained).unwrap_or_default();
            (gained / (HANDING_OVER - 1) as f64).max(0.0)
        };
        block();
        let blocks: Vec<f64> = (0..BLOCKS).map(|_| block()).collect();
        let measured = Measured::of(&blocks);
        if is_full {
            cost.full = measured;
        } else {
            cost.alone = measured;
        }
    }
    batch.clear();
    Ok(cost)
}

/// Pairs of function and setting: the setting has effects outside of the process, so measurements omit it.
const REACHING_OUT: [(&str, &str); 3] = [("impair", "log"), ("gtpu", "control"), ("gtpu", "pfcp")];

fn kept_inside(stage: &Stage) -> Stage {
    let mut stage = Stage {
        // The cost is that of one instance.
        replicas: None,
        ..stage.clone()
    };
    for (name, key) in REACHING_OUT {
        if stage.name == name {
            stage.settings.remove(key);
        }
    }
    stage
}

/// Measures the cost of each function of the chain for UDP packets of a payload, in both directions. Each function gets
/// the packets as the preceding functions have changed them.
pub(crate) fn functions(
    chain: &Chain,
    payload_bytes: usize,
    effort: Effort,
) -> Result<Vec<BothWays>, DeployError> {
    // The requested size counts the frame check sequence, although the returned frame does not contain it.
    let frame = UdpFlow::default().frame(payload_bytes + AROUND_BYTES);
    let frame =
        frame.map_err(|e| DeployError::Chain(format!("payload of {payload_bytes} bytes: {e}")))?;
    let inside = Chain::new(
        chain.ports.clone(),
        chain.functions.iter().map(kept_inside).collect(),
    );
    let mut rounds = Rounds {
        functions: inside.build_functions()?,
        pool: PoolHandle::new(SLOTS, false)?,
        answers: chain.ports.len() > 1,
        overhead_ticks: look_ticks(),
        frame,
        batch: Batch::new(),
        slow: Batch::new(),
    };
    let count = rounds.functions.len();
    let mut all = vec![BothWays::default(); count];
    for (is_full, size) in [(false, 1), (true, effort.batch)] {
        // After this first, uncounted block, caches, tables and branch prediction are in a steady state.
        rounds.block(size, effort.block);
        let blocks: Vec<Block> = (0..BLOCKS)
            .map(|_| rounds.block(size, effort.block))
            .collect();
        for (index, both) in all.iter_mut().enumerate() {
            for (way, cost) in [&mut both.forth, &mut both.back].into_iter().enumerate() {
                let per_packet: Option<Vec<f64>> = blocks
                    .iter()
                    .map(|block| block.per_packet(way, index))
                    .collect();
                let measured = per_packet.and_then(|values| Measured::of(&values));
                if is_full {
                    cost.full = measured;
                } else {
                    cost.alone = measured;
                }
            }
        }
    }
    Ok(all)
}

/// Cycles and packets of each function, by direction.
struct Block {
    sums: [Vec<(u64, u64)>; 2],
}

impl Block {
    fn per_packet(&self, way: usize, function: usize) -> Option<f64> {
        let (ticks, packets) = self.sums[way][function];
        (packets > 0).then(|| ticks as f64 / packets as f64)
    }
}

/// The functions of a chain, which run without ports on packets of a pool.
struct Rounds {
    functions: Vec<Box<dyn Function>>,
    pool: PoolHandle,
    /// True if packets that leave the last function are turned into replies, which pass through the chain in the
    /// opposite direction.
    answers: bool,
    /// Cost of reading the time-stamp counter, cycles.
    overhead_ticks: u64,
    frame: Vec<u8>,
    batch: Batch,
    slow: Batch,
}

impl Rounds {
    fn block(&mut self, size: usize, duration: Duration) -> Block {
        let count = self.functions.len();
        let mut block = Block {
            sums: [vec![(0, 0); count], vec![(0, 0); count]],
        };
        let begun = Instant::now();
        while begun.elapsed() < duration {
            // The time is read only after eight rounds, so that reading the clock costs little.
            for _ in 0..8 {
                self.round(size, &mut block);
            }
        }
        block
    }

    fn round(&mut self, size: usize, block: &mut Block) {
        self.pool
            .fill(&mut self.batch, size, self.frame.len() as u16);
        for packet in self.batch.packets_mut() {
            packet.bytes_mut().copy_from_slice(&self.frame);
        }
        let to_port = usize::from(self.answers);
        self.way(0, to_port, &mut block.sums[0]);
        self.batch.settle(&mut self.slow);
        if self.answers {
            self.batch
                .packets_mut()
                .iter_mut()
                .for_each(|packet| turn_around(packet.bytes_mut()));
            self.way(1, 0, &mut block.sums[1]);
        }
        self.batch.clear();
        self.slow.clear();
    }

    fn way(&mut self, from_port: usize, to_port: usize, sums: &mut [(u64, u64)]) {
        let count = self.functions.len();
        for place in 0..count {
            let index = if from_port == 0 {
                place
            } else {
                count - 1 - place
            };
            let packets = (0..self.batch.len())
                .filter(|i| self.batch.is_kept(*i))
                .count();
            let context = Context {
                from_port,
                to_port,
                ports: 2,
                ..Context::default()
            };
            let function = std::slice::from_mut(&mut self.functions[index]);
            let spent = functions_ticks(function, &mut self.batch, context, 1);
            sums[index].0 += spent.saturating_sub(self.overhead_ticks);
            sums[index].1 += packets as u64;
        }
    }
}

/// Number of repetitions of a packet in a timed run of a kernel program; each run has an overhead of some 10 ms.
const KERNEL_REPEATS: u32 = 1000;
/// Number of repetitions for a program that lengthens packets, since each repetition processes the output of the
/// previous one.
const LENGTHENING_REPEATS: u32 = 16;

/// Measures the cost of a function in the kernel. Returns none if the kernel cannot run its program without an
/// interface, or if a requirement is missing. `hz` converts the kernel's nanoseconds to cycles.
pub(crate) fn in_kernel(
    chain: &Chain,
    stage: &Stage,
    payload_bytes: usize,
    hz: f64,
) -> Option<BothWays> {
    let single = Chain::new(chain.ports.clone(), vec![stage.clone()]);
    // An unmet requirement (usually root) must not prevent an estimate.
    let Ok(InKernel::Functions { functions, .. }) = single.in_kernel() else {
        return None;
    };
    let answers = chain.ports.len() > 1;
    let mut frame = UdpFlow::default()
        .frame(payload_bytes + AROUND_BYTES)
        .ok()?;
    let mut both = BothWays::default();
    let ways = [(usize::from(answers), &mut both.forth), (0, &mut both.back)];
    for (to_port, cost) in ways.into_iter().take(if answers { 2 } else { 1 }) {
        let program = functions.dry_run(to_port).ok()?;
        let passed = program.pass(&frame, 1).ok()?.frame;
        let lengthens = passed
            .as_ref()
            .is_some_and(|passed| passed.len() > frame.len());
        let repeats = if lengthens {
            LENGTHENING_REPEATS
        } else {
            KERNEL_REPEATS
        };
        let block = |_| Some(program.pass(&frame, repeats).ok()?.duration_ns as f64 * hz / 1e9);
        let blocks: Option<Vec<f64>> = (0..BLOCKS).map(block).collect();
        let measured = Measured::of(&blocks?);
        *cost = Cost {
            alone: measured,
            full: measured,
        };
        // A dropped packet has no reply.
        let Some(passed) = passed else {
            break;
        };
        frame = passed;
        turn_around(&mut frame);
    }
    Some(both)
}

/// Turns an IPv4 UDP frame into a reply by swapping addresses and ports; checksums remain valid.
fn turn_around(frame: &mut [u8]) {
    let is_plain = frame.len() >= 42 && frame[12..15] == [0x08, 0x00, 0x45] && frame[23] == 17;
    if is_plain {
        let mut swap = |a: usize, b: usize, length: usize| {
            let (front, rest) = frame.split_at_mut(b);
            front[a..a + length].swap_with_slice(&mut rest[..length]);
        };
        swap(0, 6, 6);
        swap(26, 30, 4);
        swap(34, 36, 2);
    }
}

/// Measures the cost of receiving and sending a packet for a worker with ports of the given backend. Returns none for
/// backends that do not allow both sides of a link in this process. Both sides are on one core: passing packets between
/// two cores costs more.
pub(crate) fn io(
    backend: &Backend,
    payload_bytes: usize,
    effort: Effort,
) -> Result<Option<Cost>, DeployError> {
    let folder = taut_host::private::scratch()
        .map_err(|e| DeployError::system("cannot make a folder for a socket", e))?;
    let length = (payload_bytes + AROUND_BYTES - 4) as u16;
    let overhead_ticks = look_ticks();
    let mut cost = Cost::default();
    for (is_full, size) in [(false, 1), (true, effort.batch)] {
        let socket = folder.path().join(format!("{size}.sock"));
        let Some(mut ends) = Ends::open(backend, &socket.display().to_string(), size)? else {
            return Ok(None);
        };
        let mut block = || {
            let (mut spent, mut packets) = (0_u64, 0_u64);
            let begun = Instant::now();
            while begun.elapsed() < effort.block {
                for way in 0..ends.ways {
                    let (ticks, count) = ends.pass(way, size, length);
                    spent += ticks.saturating_sub(2 * overhead_ticks);
                    packets += count;
                }
            }
            (packets > 0).then(|| spent as f64 / packets as f64)
        };
        block();
        let blocks: Option<Vec<f64>> = (0..BLOCKS).map(|_| block()).collect();
        let measured = blocks.and_then(|values| Measured::of(&values));
        if is_full {
            cost.full = measured;
        } else {
            cost.alone = measured;
        }
    }
    Ok(Some(cost))
}

/// The two sides of a link: two connected ports.
struct Ends {
    ports: [Box<dyn Port>; 2],
    /// Resources of each port, as in two processes.
    resources: [Resources; 2],
    /// Number of directions in which packets pass.
    ways: usize,
}

impl Ends {
    fn open(backend: &Backend, name: &str, size: usize) -> Result<Option<Self>, DeployError> {
        let Some(loop_back) = backend.loop_back else {
            return Ok(None);
        };
        let ends = loop_back(name, size);
        let specs = [PortSpec::parse(&ends[0])?, PortSpec::parse(&ends[1])?];
        let mut resources = [
            Resources::for_ports(&specs[..1])?,
            Resources::for_ports(&specs[1..])?,
        ];
        let mut ports = [
            specs[0].open(&mut resources[0])?,
            specs[1].open(&mut resources[1])?,
        ];
        let patience = Instant::now() + LINK_PATIENCE;
        while !ports.iter_mut().all(|port| port.link().is_up()) {
            if Instant::now() > patience {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Some(Self {
            ports,
            resources,
            ways: match backend.attachment {
                Attachment::Nothing => 1,
                _ => 2,
            },
        }))
    }

    /// Returns the cycles of sending on one port and receiving on the other, and the number of packets that arrived.
    fn pass(&mut self, from: usize, size: usize, length: u16) -> (u64, u64) {
        let mut batch = Batch::new();
        self.resources[from].pool().fill(&mut batch, size, length);
        let [first, second] = &mut self.ports;
        let (spent, received) = match from {
            0 => ports_ticks(&mut **first, &mut **second, &mut batch),
            _ => ports_ticks(&mut **second, &mut **first, &mut batch),
        };
        (spent, received as u64)
    }
}

/// Measures the time, ns, from waking a sleeping thread through a file descriptor until it runs. Returns the median,
/// and the longest of `times` wakeups.
pub(crate) fn wake_up(clock: &Clock, times: usize) -> Result<(Measured, f64), DeployError> {
    let failed = |e: std::io::Error| DeployError::system("cannot measure a wake-up", e);
    let (mut asleep, mut waker) = std::io::pipe().map_err(failed)?;
    let slept = std::thread::spawn(move || -> std::io::Result<Vec<u64>> {
        let mut stamps = Vec::with_capacity(times);
        for _ in 0..times {
            asleep.read_exact(&mut [0])?;
            stamps.push(ticks());
        }
        Ok(stamps)
    });
    let mut woken = Vec::with_capacity(times);
    for _ in 0..times {
        // The pause is long enough for the other thread, and its core, to fall asleep.
        std::thread::sleep(Duration::from_millis(1));
        woken.push(ticks());
        waker.write_all(&[0]).map_err(failed)?;
    }
    let died = || failed(std::io::Error::other("the sleeping thread died"));
    let stamps = slept.join().map_err(|_| died())?.map_err(failed)?;
    let waits: Vec<f64> = woken
        .iter()
        .zip(&stamps)
        .map(|(before, after)| clock.to_ns(after.saturating_sub(*before)))
        .collect();
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let measured = Measured::of(&waits).ok_or_else(died)?;
    Ok((measured, longest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::backends;

    const EFFORT: Effort = Effort {
        block: Duration::from_millis(1),
        batch: 16,
    };

    fn measured(names: &[&str]) -> Vec<BothWays> {
        let stages = names
            .iter()
            .map(|text| Stage::parse(text, FUNCTIONS).unwrap());
        let ports = ["null:", "null:"].map(|text| PortSpec::parse(text).unwrap());
        let chain = Chain::new(ports.to_vec(), stages.collect());
        functions(&chain, 256, EFFORT).unwrap()
    }

    /// Returns how often the scheduler has preempted this thread.
    fn preemptions() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn the_measured_cost_of_function_burn_agrees_with_its_setting() {
        const ATTEMPTS: usize = 10;
        for attempt in 1..=ATTEMPTS {
            let before = preemptions();
            let all = measured(&["forward", "burn(cycles=5000)"]);
            let preempted = preemptions() - before;
            let of = |cost: &Cost| [cost.alone.unwrap(), cost.full.unwrap()];
            let burns = [of(&all[1].forth), of(&all[1].back)].concat();
            for cost in &burns {
                assert!(cost.low <= cost.median && cost.median <= cost.high);
                assert_eq!(cost.n, BLOCKS);
            }
            let is_near = |m: &Measured| (4500.0..6000.0).contains(&m.median);
            if burns.iter().all(is_near) && all[0].forth.full.unwrap().median < 1000.0 {
                return;
            }
            assert!(preempted > 0, "not preempted, but {all:?}");
            println!("repeated: attempt {attempt} of {ATTEMPTS}, preempted {preempted} times");
        }
        println!("not measured: machine busy in each of {ATTEMPTS} attempts");
    }

    #[test]
    fn a_function_that_no_packet_reaches_has_no_cost() {
        let all = measured(&["impair(loss=1.0)", "forward"]);
        assert!(all[0].forth.full.is_some());
        assert_eq!(
            (all[1].forth, all[1].back),
            (Cost::default(), Cost::default())
        );
    }

    #[test]
    fn replies_swap_addresses_and_ports_and_pass_functions_in_reverse() {
        let frame = UdpFlow::default().frame(100).unwrap();
        let mut answer = frame.clone();
        turn_around(&mut answer);
        assert_eq!(answer[0..6], frame[6..12]);
        assert_eq!(answer[26..30], frame[30..34]);
        assert_eq!(answer[34..36], frame[36..38]);
        turn_around(&mut answer);
        assert_eq!(answer, frame);
        // Packets are encrypted in one direction and decrypted in the other, so their length is unchanged.
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!(
            "ports = [\"null:\", \"null:\"]\n[[function]]\nname = \"aes\"\nencrypt = [1]\nkey_file = \"{}\"\n\
             [[function]]\nname = \"forward\"\n",
            key.display()
        );
        let chain = Chain::parse(&text, "x.toml", FUNCTIONS).unwrap();
        let all = functions(&chain, 256, EFFORT).unwrap();
        assert!(all.iter().all(|both| both.back.full.is_some()), "{all:?}");
    }

    #[test]
    fn kernel_functions_are_timed_in_the_kernel_where_possible() {
        let ports = ["null:", "null:"].map(|text| PortSpec::parse(text).unwrap());
        let xor = Stage::parse("xor(key=7)", FUNCTIONS).unwrap();
        let chain = Chain::new(ports.to_vec(), vec![xor]);
        match in_kernel(&chain, &chain.functions[0], 1400, 1e9) {
            Some(both) => assert!(both.back.full.unwrap().median > 0.0, "{both:?}"),
            None => eprintln!("skipped: needs root and a build with XDP"),
        }
    }

    #[test]
    fn io_costs_are_measured_only_for_ports_without_network_interfaces() {
        let backend = |name: &str| backends().iter().find(|it| it.name == name).unwrap();
        for name in ["null", "pair", "memif"] {
            let cost = io(backend(name), 256, EFFORT).unwrap().unwrap();
            assert!(
                cost.full.unwrap().median < cost.alone.unwrap().median + 1e5,
                "{name}"
            );
        }
        assert_eq!(io(backend("af_xdp"), 256, EFFORT).unwrap(), None);
    }

    #[test]
    fn the_measured_wakeup_latency_is_positive() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let (typical, longest) = wake_up(&clock, 20).unwrap();
        assert!(typical.median > 0.0 && typical.median <= longest);
        assert_eq!(typical.n, 20);
    }
}
