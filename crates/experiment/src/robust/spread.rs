//! Combinations and runs of the perturbations of an experiment.

use super::options::{add_values, literal_awake};
use super::scale::scaled;
use super::{
    AWAKE, AWAKE_SETTING, BASELINE, Block, PERTURBATION, Perturbation, Point, Robust, SEED_OFFSET,
};
use crate::definition::Scalar;
use crate::error::ExperimentError;
use crate::evaluate::formula::Formulas;
use crate::experiment::{Experiment, Variant};
use crate::variables::Values;
use serde_json::Value;
use std::collections::BTreeSet;

/// Number that is added to the seeds in commands by the perturbation of the seeds.
const SEED_STEP: u32 = 1000;

impl Experiment {
    /// Returns the combinations of `kept` that a claim uses, first unperturbed and then under each perturbation. Each
    /// entry of `kept` has a combination and its variables before references to other variables are replaced.
    pub(crate) fn spread(
        &self,
        robust: &Robust,
        kept: &[(Values, Variant)],
    ) -> Result<Vec<Variant>, ExperimentError> {
        let spans = self.spans();
        let used = self.used_by_claims(kept);
        let own = robust.points.iter();
        let own = own.filter(|point| {
            point
                .of_baseline(self.definition.plan.repetitions)
                .is_none()
        });
        let mut variants = Vec::new();
        for point in std::iter::once(None).chain(own.map(Some)) {
            for index in &used {
                let (raw, variant) = &kept[*index];
                let mut all = raw.clone();
                add_values(&self.options, &mut all);
                for change in point.iter().flat_map(|point| &point.changes) {
                    self.perturb(change, &mut all);
                }
                let mut loops = variant.loops.clone();
                let name = point.map_or(BASELINE, |point| &point.name);
                loops.insert(PERTURBATION.to_owned(), Value::from(name));
                variants.push(Variant {
                    loops,
                    variables: self.templates.resolve(&self.source, &all, &spans)?,
                });
            }
        }
        Ok(variants)
    }

    /// Returns the indices of the combinations that claims use; all indices if no claim uses any.
    fn used_by_claims(&self, kept: &[(Values, Variant)]) -> Vec<usize> {
        let planned: Vec<Values> = kept
            .iter()
            .map(|(_, variant)| variant.loops.clone())
            .collect();
        let claims = self.definition.claim.iter();
        // An invalid formula is reported later, with its position in the file.
        let used: BTreeSet<usize> = claims
            .filter_map(|claim| Formulas::taken(&planned, claim.value.get_ref()).ok())
            .flatten()
            .collect();
        match used.is_empty() {
            true => (0..kept.len()).collect(),
            false => used.into_iter().collect(),
        }
    }

    /// Applies a perturbation's change to the variables of a combination.
    fn perturb(&self, change: &Perturbation, all: &mut Values) {
        let name = self.variable_of(change);
        match change {
            Perturbation::Scale { variable, times } => {
                if let Some(value) = all.get_mut(name)
                    && let Some(new) = scaled(variable, value, *times)
                {
                    *value = new;
                }
            }
            Perturbation::Value { value, .. } => {
                all.insert(name.to_owned(), value_of(value));
            }
            Perturbation::Seed => {
                if let Some(offset) = all.get_mut(SEED_OFFSET) {
                    *offset = Value::from(SEED_STEP);
                }
            }
            Perturbation::Order { .. } | Perturbation::Repetitions { .. } => {}
        }
    }

    /// Returns the name of the variable that a change concerns; for an option of a command, the variable that replaces
    /// its value.
    fn variable_of<'a>(&'a self, change: &'a Perturbation) -> &'a str {
        let name = change.variable();
        match self.options.iter().find(|option| option.name == name) {
            Some(option) => &option.variable,
            None if name == AWAKE_SETTING && literal_awake(&self.definition).is_some() => AWAKE,
            None => name,
        }
    }

    /// Returns the planned blocks of runs of an experiment with perturbations. The first block has the unperturbed runs
    /// and the single perturbations of variables. The perturbations of the order follow, one block each, and then the
    /// pairs and the additional repetitions.
    pub(crate) fn blocks(&self, robust: &Robust) -> Vec<Block> {
        let plan = &self.definition.plan;
        let block = |points: Vec<Option<&Point>>| {
            let first = points.iter().flatten().next();
            let own = first.filter(|_| points.len() == 1);
            let names: BTreeSet<&str> = points
                .iter()
                .map(|point| point.map_or(BASELINE, |point| &point.name))
                .collect();
            let variants = self.variants.iter().enumerate();
            Block {
                variants: variants
                    .filter(|(_, variant)| names.contains(name_in(&variant.loops)))
                    .map(|(index, _)| index)
                    .collect(),
                order: own.and_then(|point| point.order()).unwrap_or(plan.order),
                repetitions: own
                    .and_then(|point| point.repetitions())
                    .unwrap_or(plan.repetitions),
            }
        };
        let is_alone = |point: &&Point| point.order().is_some() || point.repetitions().is_some();
        let points = robust.points.iter();
        let (alone, together): (Vec<&Point>, Vec<&Point>) = points.partition(|it| is_alone(it));
        let (pairs, single): (Vec<&Point>, Vec<&Point>) =
            together.into_iter().partition(|point| point.is_pair());
        let mut blocks = vec![block(
            std::iter::once(None)
                .chain(single.into_iter().map(Some))
                .collect(),
        )];
        blocks.extend(alone.into_iter().map(|point| block(vec![Some(point)])));
        blocks.push(block(pairs.into_iter().map(Some).collect()));
        blocks.retain(|block| !block.variants.is_empty());
        blocks
    }
}

/// Returns the name of a combination's perturbation.
pub(super) fn name_in(loops: &Values) -> &str {
    loops
        .get(PERTURBATION)
        .and_then(Value::as_str)
        .unwrap_or(BASELINE)
}

fn value_of(scalar: &Scalar) -> Value {
    serde_json::to_value(scalar).unwrap_or_default()
}
