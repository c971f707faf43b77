//! Searches the throughput of simulated devices in virtual time, for a comparison with the library of RFC 9971's authors
//! by `docs/runs/mlrsearch.py`, which has the same devices.
//! `cargo run -p taut-measure --example mlrsearch -- FOLDER MIN_PPS MAX_PPS GOAL...` reads `devices.csv` in FOLDER and
//! writes `ours.csv`, a line per device and goal, and `our-trials.csv`.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use taut_measure::{
    Goal, Method, ThroughputResult, ThroughputSearch, ThroughputSettings, TrialOutcome, Wanted,
};

/// A simulated device.
struct Device {
    seed: u64,
    kind: String,
    capacity: f64,
    spread: f64,
    /// Number of trials at each load, by the bits of the load.
    earlier: HashMap<u64, u64>,
}

/// Returns a hash (splitmix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Returns a number from 0 to below 1 that depends on the keys only.
fn uniform(keys: &[u64]) -> f64 {
    let hash = keys.iter().fold(0, |value, key| mix(value ^ key));
    (hash >> 11) as f64 * 2_f64.powi(-53)
}

impl Device {
    fn parse(line: &str) -> Result<Self, Box<dyn Error>> {
        let fields: Vec<&str> = line.trim().split(',').collect();
        let [seed, kind, capacity, spread] = fields[..] else {
            return Err(format!("`{line}` is not device,kind,capacity,spread").into());
        };
        Ok(Self {
            seed: seed.parse()?,
            kind: kind.to_owned(),
            capacity: capacity.parse()?,
            spread: spread.parse()?,
            earlier: HashMap::new(),
        })
    }

    /// Returns how many of the `sent` packets of a trial come back.
    fn received(&self, wanted: Wanted, sent: u64, index: u64) -> u64 {
        let keys = [
            self.seed,
            wanted.rate_pps.to_bits(),
            wanted.seconds.to_bits(),
        ];
        let draw = |number| uniform(&[keys[0], keys[1], keys[2], index, number]);
        let (mut capacity, spread) = (self.capacity, self.spread);
        let over = wanted.rate_pps / self.capacity;
        let mut lost = 0;
        match self.kind.as_str() {
            "rare-loss" if draw(0) < spread => lost = 1 + (draw(1) * 0.01 * sent as f64) as u64,
            "knee" => {
                if draw(0) < (over - 1.0 + spread) / (2.0 * spread) {
                    lost = 1 + (draw(1) * 0.002 * sent as f64) as u64;
                }
                capacity *= 1.0 + spread;
            }
            "varying" => {
                let sum = draw(0) + draw(1) + draw(2) + draw(3);
                capacity *= 1.0 + spread * 1.732_050_807_568_877_2 * (sum - 2.0);
            }
            "inversion" if (1.0 - 2.0 * spread..1.0 - spread).contains(&over) => {
                lost = 1 + (0.05 * sent as f64) as u64;
            }
            "collapse" if over > 1.0 => capacity *= 1.0 - spread * (over - 1.0).min(1.0),
            "zero" => lost = 1 + (spread * sent as f64) as u64,
            _ => {}
        }
        let carried = (capacity * wanted.seconds) as u64;
        sent.min(carried).saturating_sub(lost)
    }

    fn measure(&mut self, wanted: Wanted) -> TrialOutcome {
        let count = self.earlier.entry(wanted.rate_pps.to_bits()).or_insert(0);
        let index = *count;
        *count += 1;
        let sent = ((wanted.rate_pps * wanted.seconds) as u64).max(1);
        TrialOutcome {
            offered_pps: wanted.rate_pps,
            sent,
            received: self.received(wanted, sent, index),
            refused: 0,
            generator_behind: false,
        }
    }
}

/// Returns a search for the goals, which have trials of equal length.
fn search(min_pps: f64, max_pps: f64, goals: &[Goal]) -> Result<ThroughputSearch, Box<dyn Error>> {
    let (first, others) = goals.split_first().ok_or("say a goal")?;
    let settings = ThroughputSettings {
        method: Method::Mlr,
        min_pps,
        max_pps,
        precision: first.width,
        loss_tolerance: first.loss_ratio,
        trial_seconds: first.final_trial_duration,
        votes: (first.duration_sum / first.final_trial_duration).round() as u32,
        exceed_ratio: first.exceed_ratio,
    };
    Ok(ThroughputSearch::new(settings)?.with_goals(others)?)
}

fn run(device: &mut Device, mut search: ThroughputSearch) -> ThroughputResult {
    while let Some(wanted) = search.next() {
        let outcome = device.measure(wanted);
        search.report(wanted, outcome);
    }
    search.result()
}

fn write(
    (results, trials): (&mut impl Write, &mut impl Write),
    seed: u64,
    found: &ThroughputResult,
) -> std::io::Result<()> {
    let known = |value: Option<f64>| value.map_or(String::new(), |it| format!("{it:?}"));
    let seconds: f64 = found.trials.iter().map(|trial| trial.seconds).sum();
    for (index, goal) in found.goals.iter().enumerate() {
        writeln!(
            results,
            "{seed},{index},{},{},{},{},{},{seconds}",
            known(goal.relevant_lower_bound),
            known(goal.relevant_upper_bound),
            known(goal.conditional_throughput),
            u8::from(goal.regular),
            found.trials.len(),
        )?;
    }
    for trial in &found.trials {
        let outcome = &trial.outcome;
        let (sent, received) = (outcome.sent, outcome.received);
        writeln!(
            trials,
            "{seed},{:?},{:?},{sent},{received}",
            outcome.offered_pps, trial.seconds
        )?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, min_pps, max_pps, goals @ ..] = &arguments[..] else {
        return Err("say FOLDER MIN_PPS MAX_PPS GOAL...".into());
    };
    let goals: Vec<Goal> = goals
        .iter()
        .map(|it| it.parse())
        .collect::<Result<_, _>>()?;
    let fresh = search(min_pps.parse()?, max_pps.parse()?, &goals)?;
    let folder = Path::new(folder);
    let create = |name: &str| File::create(folder.join(name)).map(BufWriter::new);
    let (mut results, mut trials) = (create("ours.csv")?, create("our-trials.csv")?);
    writeln!(
        results,
        "device,goal,lower,upper,conditional,regular,trials,seconds"
    )?;
    writeln!(trials, "device,load,seconds,sent,received")?;
    let devices = std::fs::read_to_string(folder.join("devices.csv"))?;
    for line in devices.lines().skip(1) {
        let mut device = Device::parse(line)?;
        let found = run(&mut device, fresh.clone());
        write((&mut results, &mut trials), device.seed, &found)?;
    }
    results.flush()?;
    trials.flush()?;
    Ok(())
}
