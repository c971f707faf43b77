//! Changes to the experiment file that a user requests: `--set`, `--repetitions`, and the further options of `taut
//! demo`.

use crate::build::Build;
use crate::definition::Definition;
use crate::error::ExperimentError;
use crate::robust::{PERTURBATION, Robust};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_settings::suggestion;
use toml::Spanned;

/// Changes to the experiment file that a user requests: shorter runs, fewer values, a different number of repetitions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Changes {
    /// Names of variables and their new values, written as in the experiment file; the value of a loop variable is a
    /// list or a range.
    pub set: Vec<(String, String)>,
    /// Number of counted runs of each combination; `None` keeps the number in the experiment file.
    pub repetitions: Option<u32>,
    /// Seed of the order of runs; `None` keeps the seed in the experiment file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Maximum duration of a run, such as `60s`; `None` keeps the limit in the experiment file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// For some variables, the values whose combinations run before all others (`plan.first`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub first: BTreeMap<String, Vec<String>>,
    /// The perturbations whose runs are made in addition to those of the unchanged experiment; `None` without
    /// perturbations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub robust: Option<Robust>,
    /// The other build of taut, which also makes each run; `None` if only one build makes the runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Build>,
}

impl Changes {
    pub(crate) fn apply(&self, definition: &mut Definition) -> Result<(), ExperimentError> {
        if let Some(repetitions) = self.repetitions {
            definition.plan.repetitions = repetitions;
            if let Some(until) = &mut definition.plan.until {
                until.at_most = until.at_most.max(repetitions);
            }
        }
        if let Some(seed) = self.seed {
            definition.plan.seed = seed;
        }
        if let Some(limit) = &self.limit {
            definition.plan.limit.clone_from(limit);
        }
        for (name, values) in &self.first {
            let values = values.iter().cloned().map(toml::Value::String);
            let values = Spanned::new(0..0, values.collect());
            definition.plan.first.insert(name.clone(), values);
        }
        for (name, text) in &self.set {
            let as_value: Option<toml::Value> =
                toml::from_str::<toml::Table>(&format!("x = {text}"))
                    .ok()
                    .and_then(|mut table| table.remove("x"));
            let value = as_value.unwrap_or_else(|| toml::Value::String(text.clone()));
            let zips = definition
                .zip
                .iter_mut()
                .filter_map(|zip| zip.get_mut(name));
            let in_loops = definition
                .loops
                .get_mut(name)
                .into_iter()
                .chain(zips)
                .next();
            let place = match in_loops {
                // A single value is a list of one.
                Some(place) if !(value.is_array() || value.is_table()) => {
                    *place = Spanned::new(place.span(), toml::Value::Array(vec![value]));
                    continue;
                }
                Some(place) => Some(place),
                None => definition.variables.get_mut(name),
            };
            let Some(place) = place else {
                let known = definition.variables.keys().chain(definition.loops.keys());
                return Err(ExperimentError::Unknown(format!(
                    "--set {name}: the experiment has no such variable{}",
                    suggestion(name, known.map(String::as_str))
                )));
            };
            *place = Spanned::new(place.span(), value);
        }
        if self.against.is_some() {
            Build::add_to(definition)?;
        }
        if self.robust.is_some() {
            // All claims have the same number of repetitions, so that their intervals can be compared.
            definition.plan.until = None;
            let mut blocks = definition.zip.iter();
            let is_taken = definition.variables.contains_key(PERTURBATION)
                || definition.loops.contains_key(PERTURBATION)
                || blocks.any(|zip| zip.contains_key(PERTURBATION));
            if is_taken {
                return Err(ExperimentError::Unknown(format!(
                    "the experiment has a variable `{PERTURBATION}`, which is the name of the perturbations: rename it"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Experiment;
    use std::path::Path;

    const SMALL: &str = r#"
title = "t"
[loop]
a = [1, 2]
b = ["x", "y", "z"]
[[step]]
run = "echo {{ a }} {{ b }} {{ seed }}"
"#;

    #[test]
    fn only_values_defined_in_the_experiment_file_can_be_overridden() {
        let set = |name: &str, value: &str| {
            let changes = Changes {
                set: vec![(name.into(), value.into())],
                repetitions: Some(1),
                seed: Some(7),
                limit: Some("3s".into()),
                ..Changes::default()
            };
            Experiment::parse(SMALL, "e.toml", Path::new("."), &changes)
        };
        let seven = set("a", "7").unwrap();
        assert_eq!(seven.plan().len(), 3);
        assert_eq!(
            (seven.definition().plan.seed, seven.limit.as_secs()),
            (7, 3)
        );
        assert_eq!(set("b", "['x', 'q']").unwrap().plan().len(), 4);
        assert_eq!(
            set("b", "plain text").unwrap().variants()[0].loops["b"],
            "plain text"
        );
        assert!(
            set("c", "1")
                .unwrap_err()
                .to_string()
                .contains("no such variable")
        );
    }

    #[test]
    fn runs_with_the_values_requested_first_begin_the_plan() {
        let parsed = |changes: &Changes| {
            let parsed = Experiment::parse(SMALL, "e.toml", Path::new("."), changes);
            parsed.map_err(|e| e.to_string())
        };
        let first = |value: &str| Changes {
            first: BTreeMap::from([("b".to_owned(), vec![value.to_owned()])]),
            ..Changes::default()
        };
        let plan = parsed(&first("z")).unwrap().plan();
        assert!(plan[..6].iter().all(|run| run.variant % 3 == 2), "{plan:?}");
        assert!(parsed(&first("q")).unwrap_err().contains("b = q"));
        // A list of values by `--set` may omit a value of the file's list.
        let set = vec![("b".to_owned(), "['x', 'y']".to_owned())];
        let less = Changes { set, ..first("z") };
        assert_eq!(parsed(&less).unwrap().plan().len(), 12);
        // Results folders of earlier versions have no such key.
        let stored = serde_json::to_string(&Changes::default()).unwrap();
        assert!(!stored.contains("first"), "{stored}");
        assert_eq!(
            serde_json::from_str::<Changes>(&stored).unwrap(),
            Changes::default()
        );
    }
}
