//! The manifest of a comparison that consists of many runs, each with a folder of its own. (Not from a publication.)

use super::{Lengths, describe};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::Surroundings;
use taut_bench::device::Device;
use taut_host::choose_cores;
use taut_measure::median;
use taut_results::{Experiment, LeftOut, Noise, PingPong, Run, Settings};
use taut_sys::Clock;

/// The name of the noise source that only the measuring process itself can count: its own preemption.
const PREEMPTION: &str = "preemption";

/// A comparison whose runs are in progress.
pub struct Whole {
    head: Experiment,
    surroundings: Surroundings,
}

impl Whole {
    /// Begins a comparison of the given devices.
    pub fn begin(
        settings: &Settings,
        command_line: &str,
        devices: &[Device],
        left_out: Vec<LeftOut>,
    ) -> Self {
        let cores = choose_cores();
        let clock = Clock::calibrate(Lengths::of(settings.mode).before);
        let devices = devices.iter().map(Device::info).collect();
        let mut head = describe(settings, command_line, &cores, &clock, devices);
        head.manifest.left_out = left_out;
        Self {
            head,
            surroundings: Surroundings::of(&cores),
        }
    }

    /// Returns the manifest as known before the first run.
    pub fn head(&self) -> &Experiment {
        &self.head
    }

    /// Returns the manifest after the last run, including the machine's activity during the runs.
    pub fn end(mut self, stop: &AtomicBool) -> Experiment {
        self.surroundings.look_again(&mut self.head.manifest, stop);
        self.head
    }
}

/// Writes into the comparison's manifest a summary of the manifests in `heads`, which are given with the ids of their
/// runs. The summary has the clock with the largest error, the median round trip of a cache line, and the noise on both
/// cores, before and during the runs.
pub fn sum_up(head: &mut Experiment, heads: &[(String, Experiment)], runs: &[Run]) {
    let clocks = heads.iter().map(|(_, of_run)| &of_run.clock);
    if let Some(worst) = clocks.max_by(|a, b| a.error_ppm.total_cmp(&b.error_ppm)) {
        head.clock = worst.clone();
    }
    let ping_pongs = heads.iter().filter_map(|(_, it)| it.ping_pong.as_ref());
    let p50s_ns: Vec<f64> = ping_pongs.clone().map(|it| it.p50_ns).collect();
    head.ping_pong = median(&p50s_ns).map(|p50_ns| PingPong {
        p50_ns,
        count: ping_pongs.map(|it| it.count).sum(),
    });
    let noise = &mut head.manifest.noise;
    noise.retain(|source| source.taken.is_none() && source.name != PREEMPTION);
    noise.extend(preempted(runs));
    noise.extend(taken(heads));
}

/// Returns how often the generator's processes were preempted at the constant rate; none if they never were.
fn preempted(runs: &[Run]) -> Option<Noise> {
    let sum = |name: &str| -> u64 {
        let activities = runs
            .iter()
            .filter_map(|run| Some(&run.cbr.as_ref()?.activity));
        activities.filter_map(|it| it[name].as_u64()).sum()
    };
    let times = sum("involuntary_switches");
    (times > 0).then(|| Noise {
        name: PREEMPTION.to_string(),
        detail: format!(
            "the scheduler took a thread of the generator's process off its CPU: {times} times in {} ms at the constant rate (cbr.json)",
            sum("duration_ms")
        ),
        taken: None,
        programs: Vec::new(),
    })
}

/// Returns, for each source of noise, the fraction of time that it took from busy loops on both cores before the runs.
/// The value is the median over the runs, and the detail names the run with the highest value.
fn taken(heads: &[(String, Experiment)]) -> Vec<Noise> {
    let mut by_name: BTreeMap<&str, Vec<(f64, &str, &Noise)>> = BTreeMap::new();
    for (id, head) in heads {
        for noise in &head.manifest.noise {
            if let Some(share) = noise.taken {
                by_name
                    .entry(&noise.name)
                    .or_default()
                    .push((share, id, noise));
            }
        }
    }
    let of_name = |(name, looks): (&str, Vec<(f64, &str, &Noise)>)| {
        let shares: Vec<f64> = looks.iter().map(|(share, ..)| *share).collect();
        let share = median(&shares)?;
        let (_, id, worst) = looks.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Noise {
            name: name.to_string(),
            detail: format!(
                "{:.1} % of the time, median of {} looks, one before each run; the worst, before {id}: {}",
                share * 100.0,
                looks.len(),
                worst.detail
            ),
            taken: Some(share),
            programs: Vec::new(),
        })
    };
    by_name.into_iter().filter_map(of_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{self, SMALL};

    #[test]
    fn run_summaries_are_merged_into_the_experiment_only_once() {
        let run = |error_ppm: f64, p50_ns: f64, share: f64| {
            let mut head = synthetic::experiment(&SMALL);
            head.clock.error_ppm = error_ppm;
            head.ping_pong = Some(PingPong { p50_ns, count: 10 });
            head.manifest.noise.push(Noise {
                name: "taken from a busy loop on CPU 0".to_string(),
                detail: format!("{share}"),
                taken: Some(share),
                programs: Vec::new(),
            });
            (format!("v1-r{p50_ns}"), head)
        };
        let heads = [run(1.0, 1.0, 0.01), run(3.0, 2.0, 0.05), run(2.0, 3.0, 0.0)];
        let mut head = synthetic::experiment(&SMALL);
        let standing = head.manifest.noise.len();
        for _ in 0..2 {
            sum_up(&mut head, &heads, &[]);
            assert_eq!(head.clock.error_ppm, 3.0);
            let ping_pong = head.ping_pong.clone().map(|it| (it.p50_ns, it.count));
            assert_eq!(ping_pong, Some((2.0, 30)));
            assert_eq!(head.manifest.noise.len(), standing + 1);
            let taken = &head.manifest.noise[standing];
            assert!(taken.taken.is_some_and(|share| (share - 0.01).abs() < 1e-9));
            assert!(
                taken.detail.contains("before v1-r2: 0.05"),
                "{}",
                taken.detail
            );
        }
    }
}
