//! The search for the knee: the highest load per packet at which the throughput is the same as without load.
//! (Gallenmüller 2021, section 5.1.)

use serde::{Deserialize, Serialize};

/// The settings of a search for the knee.
#[derive(Debug, Clone)]
pub struct KneeSettings {
    /// First loads to try, increasing from 0, cycles per packet. They are also the points of the report's figure.
    pub ladder: Vec<u32>,
    /// Maximum load, cycles per packet. If no load of `ladder` lowers the throughput, the last load is doubled up to
    /// this maximum.
    pub most: u32,
    /// Relative decrease at which the throughput counts as declined.
    pub tolerance: f64,
    /// Number of loads of `ladder` that are tried after the first decline of the throughput, for the figure.
    pub beyond: usize,
    /// Number of bisections between the highest load without a decline of the throughput and the lowest one with it.
    pub bisections: u32,
    /// The search ends when the highest load without a decline and the lowest load with one differ by less than this
    /// number of cycles.
    pub resolution: u32,
}

/// The result of a search for the knee.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// Throughput without additional cycles of load per packet, packets per second.
    pub plateau_pps: f64,
    /// Highest load at which the throughput did not decline, cycles per packet.
    pub holds_at: u32,
    /// Lowest load above `holds_at` at which the throughput declined, cycles per packet; none if it never declined.
    pub declined_at: Option<u32>,
    /// Throughput at `declined_at`, packets per second; none if the throughput never declined.
    pub declined_pps: Option<f64>,
}

impl Knee {
    /// Returns the knee, the middle between `holds_at` and `declined_at`; none if no load made the throughput decline.
    pub fn at(&self) -> Option<f64> {
        self.declined_at
            .map(|declined| f64::from(self.holds_at + declined) / 2.0)
    }

    /// Returns the cycles that input and output of a packet cost, for a time-stamp counter of `hz`; none if the
    /// throughput never declined. Just above the knee no cycle is idle, so input and output take all cycles that the
    /// load leaves (c_IO = f/n - c_task).
    pub fn io_cycles(&self, hz: f64) -> Option<f64> {
        let (load, pps) = (self.declined_at?, self.declined_pps?);
        Some(hz / pps - f64::from(load))
    }
}

/// A search for the knee in progress. The caller gets a load, tries it, and reports the throughput. A decline counts
/// only if two trials show it, because disturbances can only lower a throughput.
#[derive(Debug, Clone)]
pub struct KneeSearch {
    settings: KneeSettings,
    plateau_pps: Option<f64>,
    holds_at: u32,
    /// Loads at which the throughput declined, each with the higher throughput of its two trials.
    declined: Vec<(u32, f64)>,
    /// The load at which one trial showed a lower throughput, and that throughput; none if no load waits for its second
    /// trial.
    doubted: Option<(u32, f64)>,
    rung: usize,
    bisections: u32,
}

impl KneeSearch {
    /// Begins a search for the knee.
    pub fn new(settings: KneeSettings) -> Self {
        Self {
            settings,
            plateau_pps: None,
            holds_at: 0,
            declined: Vec::new(),
            doubted: None,
            rung: 0,
            bisections: 0,
        }
    }

    /// Returns the next load to try, cycles per packet; none when the search is complete.
    pub fn next_load(&self) -> Option<u32> {
        if let Some((load, _)) = self.doubted {
            return Some(load);
        }
        let climbed = self
            .settings
            .ladder
            .iter()
            .filter(|load| self.lowest_declined().is_some_and(|(low, _)| **load > low))
            .filter(|load| self.declined.iter().any(|(declined, _)| declined == *load))
            .count();
        if (climbed < self.settings.beyond || self.declined.is_empty())
            && let Some(load) = self.settings.ladder.get(self.rung)
        {
            return Some(*load);
        }
        let Some((declined, _)) = self.lowest_declined() else {
            let next = self.holds_at.max(1).saturating_mul(2);
            return (next <= self.settings.most).then_some(next);
        };
        let apart = declined - self.holds_at;
        let done = self.bisections >= self.settings.bisections;
        (!done && apart > self.settings.resolution.max(1)).then(|| self.holds_at + apart / 2)
    }

    /// Reports the throughput at the load that [`KneeSearch::next_load`] returned.
    pub fn report(&mut self, load: u32, pps: f64) {
        let on_ladder = self.settings.ladder.get(self.rung) == Some(&load);
        let Some(plateau) = self.plateau_pps else {
            // The first trial, which is without load, is repeated in the same way as a trial with a decline.
            match self.doubted.take() {
                None => self.doubted = Some((load, pps)),
                Some((_, before)) => {
                    self.plateau_pps = Some(pps.max(before));
                    self.rung += 1;
                }
            }
            return;
        };
        let best = self.doubted.map_or(pps, |(_, before)| before.max(pps));
        let held = best >= plateau * (1.0 - self.settings.tolerance);
        let expected = self.declined.iter().any(|(declined, _)| load > *declined);
        if !held && self.doubted.is_none() && !expected {
            self.doubted = Some((load, pps));
            return;
        }
        self.doubted = None;
        if held {
            self.holds_at = self.holds_at.max(load);
        } else {
            self.declined.push((load, best));
        }
        if on_ladder {
            self.rung += 1;
        } else if self.declined.iter().any(|(declined, _)| load < *declined) {
            self.bisections += 1;
        }
    }

    /// Returns the knee found up to now; none before the throughput without load is known.
    pub fn knee(&self) -> Option<Knee> {
        let declined = self.lowest_declined();
        Some(Knee {
            plateau_pps: self.plateau_pps?,
            holds_at: self.holds_at,
            declined_at: declined.map(|(load, _)| load),
            declined_pps: declined.map(|(_, pps)| pps),
        })
    }

    /// Returns the lowest load with a decline (and its throughput) above the highest load without a decline; none if no
    /// such load declined. A decline at a lower load was a disturbance.
    fn lowest_declined(&self) -> Option<(u32, f64)> {
        self.declined
            .iter()
            .filter(|(load, _)| *load > self.holds_at)
            .min_by_key(|(load, _)| *load)
            .copied()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HZ: f64 = 2.6e9;

    fn settings() -> KneeSettings {
        KneeSettings {
            ladder: vec![0, 50, 100, 200, 400, 800, 1600],
            most: 10_000,
            tolerance: 0.02,
            beyond: 1,
            bisections: 12,
            resolution: 3,
        }
    }

    /// Returns the throughput of a core with `io_cycles` of input and output per packet while `offered_pps` arrive.
    fn core(io_cycles: f64, offered_pps: f64, load: u32) -> f64 {
        offered_pps.min(HZ / (io_cycles + f64::from(load)))
    }

    fn search(settings: KneeSettings, mut throughput: impl FnMut(u32) -> f64) -> (Knee, usize) {
        let mut search = KneeSearch::new(settings);
        let mut trials = 0;
        while let Some(load) = search.next_load() {
            search.report(load, throughput(load));
            trials += 1;
            assert!(trials < 60, "{search:?}");
        }
        (search.knee().unwrap(), trials)
    }

    #[test]
    fn a_clean_curve_yields_the_knee_and_the_io_cost() {
        for (io_cycles, offered_pps) in [(100.0, 10e6), (250.0, 4e6), (900.0, 1.5e6), (60.0, 35e6)]
        {
            let (knee, _) = search(settings(), |load| core(io_cycles, offered_pps, load));
            let expected = HZ / offered_pps - io_cycles;
            let found = knee.at().unwrap();
            // A decline of 2 % is detected only when the load exceeds the knee by 2 % of all cycles per packet.
            let late = 0.025 * HZ / offered_pps + 3.0;
            assert!(
                (-3.0..late).contains(&(found - expected)),
                "{found} not {expected}"
            );
            let cost = knee.io_cycles(HZ).unwrap();
            assert!((cost - io_cycles).abs() < 0.5, "{cost} not {io_cycles}");
        }
    }

    #[test]
    fn disturbed_trials_do_not_hide_the_knee() {
        // The model has 0.5 % of noise, and one trial in twelve is disturbed.
        let disturbed = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let (knee, _) = search(settings(), |load| {
                let spoilt = if random.u32(..12) == 0 { 0.6 } else { 1.0 };
                core(250.0, 4e6, load) * (1.0 - 0.005 * random.f64()) * spoilt
            });
            (knee.at().unwrap(), knee.io_cycles(HZ).unwrap())
        };
        // A search fails if both trials of a load are disturbed; the median over repetitions tolerates such a failure.
        let good = (0..200)
            .map(disturbed)
            .filter(|(knee, cost)| (knee - 400.0).abs() < 25.0 && (cost - 250.0).abs() < 12.0)
            .count();
        assert!(good > 150, "{good} of 200");
    }

    #[test]
    fn the_knee_of_a_core_without_idle_cycles_is_zero() {
        let (knee, _) = search(settings(), |load| core(70.0, 1e12, load));
        assert_eq!(knee.holds_at, 0);
        assert!(knee.at().unwrap() < 4.0, "{knee:?}");
        assert!((knee.io_cycles(HZ).unwrap() - 70.0).abs() < 0.1);
    }

    #[test]
    fn a_throughput_that_never_declines_has_no_knee() {
        let (knee, trials) = search(settings(), |_| 1e5);
        assert_eq!((knee.at(), knee.io_cycles(HZ)), (None, None));
        assert_eq!((knee.holds_at, trials), (6400, 10));
    }

    #[test]
    fn a_knee_beyond_the_ladder_is_found_by_doubling() {
        let (knee, _) = search(settings(), |load| core(9_000.0, 200e3, load));
        assert!((knee.at().unwrap() - 4_000.0).abs() < 350.0, "{knee:?}");
        assert!((knee.io_cycles(HZ).unwrap() - 9_000.0).abs() < 0.5);
    }

    #[test]
    fn loads_beyond_the_knee_are_tried_once_for_the_figure() {
        let mut tried = Vec::new();
        let all = KneeSettings {
            beyond: 99,
            ..settings()
        };
        search(all, |load| {
            tried.push(load);
            core(100.0, 10e6, load)
        });
        let ladder: Vec<u32> = tried
            .iter()
            .copied()
            .filter(|l| settings().ladder.contains(l))
            .collect();
        assert_eq!(ladder, [0, 0, 50, 100, 200, 200, 400, 800, 1600]);
    }
}
