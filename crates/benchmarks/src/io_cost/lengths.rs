//! The lengths and repetitions of all trials, by mode.

use super::knee::KneeSettings;
use super::part::Part;
use std::time::Duration;
use taut_bench::framework::{Framework, Program, Transport};
use taut_results::Mode;

/// The lengths and repetitions of trials in one mode.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Number of interleaved repetitions.
    pub repetitions: u32,
    /// Length of each trial, without its warm-up.
    pub trial: Duration,
    /// Loads to try, cycles per packet.
    pub loads: Vec<u32>,
    /// Packets per receive call.
    pub bursts: Vec<usize>,
    /// Sizes of the linked list that packets walk through, bytes.
    pub lists: Vec<u64>,
    /// Number of links of the list that each packet follows.
    pub steps: u32,
    bisections: u32,
    short: bool,
}

/// Divisor of the machine's memory that limits the size of the largest list.
const LIST_SHARE: u64 = 4;

impl Lengths {
    /// Returns the lengths and repetitions of a mode. A quick benchmark takes less than a minute, the default some
    /// minutes. A list takes at most a quarter of `memory_bytes`.
    pub fn of(mode: Mode, memory_bytes: Option<u64>) -> Self {
        let most = memory_bytes.unwrap_or(1 << 30) / LIST_SHARE;
        let sizes = |step: u32, largest: u64| -> Vec<u64> {
            (12..=33)
                .step_by(step as usize)
                .map(|power| 1_u64 << power)
                .filter(|bytes| *bytes <= largest.min(most))
                .collect()
        };
        match mode {
            Mode::Quick => Self {
                repetitions: 2,
                trial: Duration::from_millis(30),
                loads: vec![0, 100, 350, 1_000],
                bursts: vec![1, 8, 32, 256],
                lists: sizes(3, 128 << 20),
                steps: 10,
                bisections: 3,
                short: true,
            },
            Mode::Default | Mode::Full => Self {
                repetitions: 6,
                trial: Duration::from_millis(100),
                loads: vec![
                    0, 25, 50, 100, 150, 200, 350, 600, 1_000, 1_500, 2_500, 4_000,
                ],
                bursts: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
                lists: sizes(1, 1 << 30),
                steps: 10,
                bisections: 6,
                short: false,
            },
        }
    }

    /// Returns the bursts to try with a program. `dpdk-testpmd` starts slowly, so fewer bursts are tried with it; in a
    /// quick run only its default burst.
    pub(super) fn bursts(&self, program: Program) -> &[usize] {
        match program {
            Program::Testpmd if self.short => &[taut_engine::DEFAULT_BURST],
            Program::Testpmd => &[1, 8, 32, 64, 256],
            _ => &self.bursts,
        }
    }

    /// Returns true if a part is measured in a repetition. Parts that appear only in figures are measured in fewer
    /// repetitions.
    pub(super) fn has_part(&self, part: Part, repetition: u32) -> bool {
        part == Part::Load || repetition <= if self.short { 1 } else { 3 }
    }

    /// Returns the settings of the search for the knee.
    pub(super) fn knee(&self) -> KneeSettings {
        KneeSettings {
            ladder: self.loads.clone(),
            most: 100_000,
            tolerance: 0.03,
            beyond: 3,
            bisections: self.bisections,
            resolution: 4,
        }
    }

    /// Returns the approximate duration of one part of a framework in one repetition.
    pub(super) fn estimate(&self, framework: &Framework, part: Part) -> Duration {
        let start = Duration::from_millis(match (framework.program, framework.transport) {
            (Program::Testpmd, Transport::Veth) => 550,
            (Program::Testpmd, _) => 450,
            (_, Transport::Veth) => 200,
            (Program::TautThread, _) => 60,
            _ => 120,
        });
        let capacity = match framework.transport {
            Transport::Veth => self.trial.mul_f64(6.0),
            Transport::Nothing => Duration::ZERO,
            _ => self.trial,
        };
        let each = start + self.trial;
        match part {
            Part::Load if !framework.can_be_loaded() => each * 2 + capacity,
            Part::Load => capacity + each * (self.loads.len() as u32 + self.bisections + 2),
            Part::Batch => {
                let bursts = self.bursts(framework.program).len() as u32;
                let starts = if framework.has_generator() { 2 } else { 1 };
                (each * starts + capacity) * bursts
            }
            // Creating a list of a gigabyte takes seconds.
            Part::Walk => {
                let making: u64 = self.lists.iter().map(|bytes| bytes >> 20).sum();
                each * self.lists.len() as u32 + Duration::from_millis(3 * making)
            }
        }
    }
}
