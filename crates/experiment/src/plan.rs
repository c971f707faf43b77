//! The plan of an experiment: its runs, and the order in which they are made.

use crate::definition::Order;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::robust::Block;
use crate::seed::seed_of;
use crate::variables::{plain, text_of};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use taut_results::hex;
use toml::Spanned;

/// Maximum number of runs in a plan, and in a results folder.
pub(crate) const MOST_RUNS: usize = 1_000_000;

/// A planned run: one repetition of a combination of the loop variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRun {
    /// Name of the run, independent of the order of runs: `v2-r1`, or `v2-w1` for a warm-up.
    pub id: String,
    /// Index of the combination, from 0.
    pub variant: usize,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// True if the run is a warm-up: made before the counted runs, and not counted itself.
    pub warm_up: bool,
}

impl PlannedRun {
    fn new(variant: usize, repetition: u32, warm_up: bool) -> Self {
        let letter = if warm_up { 'w' } else { 'r' };
        Self {
            id: format!("v{}-{letter}{repetition}", variant + 1),
            variant,
            repetition,
            warm_up,
        }
    }

    /// Returns the planned run with the given name; `None` if the name is invalid.
    pub(crate) fn of_id(id: &str) -> Option<Self> {
        let (variant, repetition) = id.strip_prefix('v')?.split_once('-')?;
        let variant = variant.parse::<usize>().ok()?.checked_sub(1)?;
        let warm_up = repetition.starts_with('w');
        let repetition = repetition.strip_prefix(['r', 'w'])?.parse().ok()?;
        Some(Self::new(variant, repetition, warm_up))
    }
}

impl Experiment {
    /// Refuses a plan that is too long to run, before it is built.
    pub(crate) fn check_length(&self) -> Result<(), ExperimentError> {
        let schedule = &self.definition.plan;
        let most = schedule
            .until
            .as_ref()
            .map_or(schedule.repetitions, |until| until.at_most);
        let each = u64::from(schedule.warm_up) + u64::from(most);
        let runs = each.saturating_mul(self.variants.len() as u64);
        if runs > MOST_RUNS as u64 {
            return Err(self.source.wrong_somewhere(format!(
                "{} combinations, {each} times each, are {runs} runs: a plan has at most {MOST_RUNS}",
                self.variants.len()
            )));
        }
        Ok(())
    }

    /// Returns the planned runs in order, without the runs that `plan.until` may add. Equal files and seeds give equal
    /// plans.
    pub fn plan(&self) -> Vec<PlannedRun> {
        let schedule = &self.definition.plan;
        let mut runs: Vec<PlannedRun> = Vec::new();
        for repetition in 1..=schedule.warm_up {
            runs.extend(self.round(repetition, true));
        }
        let counted = runs.len();
        if let Some(robust) = &self.robust {
            let blocks = self.blocks(robust);
            runs.extend(blocks.iter().flat_map(|block| self.runs_of(block)));
            return runs;
        }
        runs.extend(self.runs_of(&Block {
            variants: (0..self.variants.len()).collect(),
            order: schedule.order,
            repetitions: schedule.repetitions,
        }));
        // The sort is stable, so that each of the two groups keeps its order.
        runs[counted..].sort_by_cached_key(|run| !self.comes_first(run.variant));
        runs
    }

    /// Returns true if the combination has the values that `plan.first` lists.
    fn comes_first(&self, variant: usize) -> bool {
        let variables = &self.variants[variant].variables;
        let has_one = |(name, values): (&String, &Spanned<Vec<toml::Value>>)| {
            let wanted = values.get_ref().iter().map(plain);
            variables
                .get(name)
                .is_some_and(|value| wanted.flatten().any(|it| text_of(&it) == text_of(value)))
        };
        self.definition.plan.first.iter().all(has_one)
    }

    /// Returns the counted runs of the combinations in a block, in the block's order.
    fn runs_of(&self, block: &Block) -> Vec<PlannedRun> {
        let Block {
            variants,
            order,
            repetitions,
        } = block;
        let mut runs = Vec::new();
        match order {
            Order::Interleaved => {
                for repetition in 1..=*repetitions {
                    runs.extend(self.round_of(variants, repetition, false, *order));
                }
            }
            Order::Sequential | Order::Random => {
                for variant in variants {
                    runs.extend((1..=*repetitions).map(|r| PlannedRun::new(*variant, r, false)));
                }
                if *order == Order::Random {
                    fastrand::Rng::with_seed(self.definition.plan.seed).shuffle(&mut runs);
                }
            }
        }
        runs
    }

    /// Returns one run for every combination, in an order drawn from the seed and the repetition.
    pub(crate) fn round(&self, repetition: u32, warm_up: bool) -> Vec<PlannedRun> {
        let all: Vec<usize> = (0..self.variants.len()).collect();
        self.round_of(&all, repetition, warm_up, self.definition.plan.order)
    }

    fn round_of(
        &self,
        variants: &[usize],
        repetition: u32,
        warm_up: bool,
        order: Order,
    ) -> Vec<PlannedRun> {
        let mut runs: Vec<PlannedRun> = variants
            .iter()
            .map(|variant| PlannedRun::new(*variant, repetition, warm_up))
            .collect();
        if order != Order::Sequential {
            let seed = seed_of(self.definition.plan.seed, &format!("{repetition}{warm_up}"));
            fastrand::Rng::with_seed(seed).shuffle(&mut runs);
        }
        runs
    }

    /// Returns a fingerprint that is equal for experiments with equal plans: combinations, order and commands.
    pub fn fingerprint(&self) -> String {
        let mut digest = Sha256::new();
        for run in self.plan() {
            digest.update(run.id.as_bytes());
            digest.update([0]);
        }
        for variant in &self.variants {
            digest.update(serde_json::to_vec(&variant.variables).unwrap_or_default());
        }
        for task in &self.tasks {
            digest.update(task.run.get_ref().as_bytes());
            digest.update([0]);
        }
        if let Some(awake) = &self.definition.awake {
            digest.update(awake.get_ref().to_string().as_bytes());
        }
        hex(&digest.finalize()[..8])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Changes;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn parse(text: &str) -> Result<Experiment, String> {
        Experiment::parse(text, "e.toml", Path::new("."), &Changes::default())
            .map_err(|e| e.to_string())
    }

    const SMALL: &str = r#"
title = "t"
[loop]
a = [1, 2]
b = ["x", "y", "z"]
[[step]]
run = "echo {{ a }} {{ b }} {{ seed }}"
"#;

    #[test]
    fn the_plan_depends_only_on_file_and_seed() {
        let ids = |text: &str| {
            parse(text)
                .unwrap()
                .plan()
                .into_iter()
                .map(|run| run.id)
                .collect::<Vec<_>>()
        };
        let first = ids(SMALL);
        assert_eq!(first.len(), 18);
        assert_eq!(first, ids(SMALL));
        let other = format!("{SMALL}\n[plan]\nseed = 2");
        assert_ne!(first, ids(&other));
        let (mut a, mut b) = (first, ids(&other));
        a.sort();
        b.sort();
        assert_eq!(a, b);
        assert_ne!(
            parse(SMALL).unwrap().fingerprint(),
            parse(&other).unwrap().fingerprint()
        );
    }

    #[test]
    fn interleaved_plans_run_every_combination_before_the_second_repetition() {
        let plan = parse(SMALL).unwrap().plan();
        for (index, round) in plan.chunks(6).enumerate() {
            assert!(round.iter().all(|run| run.repetition == index as u32 + 1));
            let mut variants: Vec<usize> = round.iter().map(|run| run.variant).collect();
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2, 3, 4, 5]);
        }
        let orders: BTreeSet<Vec<usize>> = plan
            .chunks(6)
            .map(|round| round.iter().map(|run| run.variant).collect())
            .collect();
        assert!(orders.len() > 1, "each round has an order of its own");
    }

    #[test]
    fn combinations_requested_first_complete_their_repetitions_first() {
        let runs = |plan: &str| {
            let text = format!("{SMALL}\n[plan]\nwarm_up = 1\n{plan}");
            let experiment = parse(&text).unwrap();
            (experiment.plan(), experiment.fingerprint())
        };
        for order in ["interleaved", "random", "sequential"] {
            let order = format!("order = '{order}'");
            let (usual, of_usual) = runs(&order);
            let (plan, fingerprint) =
                runs(&format!("{order}\nfirst = {{ a = [2], b = ['x', 'z'] }}"));
            assert_ne!(fingerprint, of_usual);
            // Warm-ups keep their places; of the others, each group keeps its order.
            let (warm_ups, counted) = usual.split_at(6);
            let is_first = |run: &&PlannedRun| [3, 5].contains(&run.variant);
            let first = counted.iter().filter(is_first);
            let others = counted.iter().filter(|run| !is_first(run));
            let mut wanted = warm_ups.to_vec();
            wanted.extend(first.chain(others).cloned());
            assert_eq!(plan, wanted, "{order}");
        }
        assert_eq!(runs("").1, runs("first = {}").1);
    }

    #[test]
    fn conditions_exclude_combinations_from_the_plan() {
        let text = format!("{SMALL}\n[plan]\nonly = ['a == 1 or b == \"z\"']");
        let experiment = parse(&text).unwrap();
        assert_eq!(experiment.variants().len(), 4);
    }
}
