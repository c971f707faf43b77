//! Review of an experiment before it runs: the number of runs, the commands, the duration, and missing requirements.

use crate::compare::LEVEL;
use crate::experiment::Experiment;
use crate::node::address::NodeAddress;
use crate::reach::Reached;
use crate::variables::Values;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;
use taut_bench::device::{Choice, offers};
use taut_measure::quantity::counted;
use taut_measure::runs_needed;

/// Minimum number of repetitions for a confidence interval of 95 %.
const INTERVAL_REPETITIONS: u32 = 6;

/// Review of an experiment before it runs: its runs, commands, duration and missing requirements.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Check {
    /// Title of the experiment, one line.
    pub title: String,
    /// Fingerprint of the plan; it is equal for equal files and seeds.
    pub fingerprint: String,
    /// Values of the loop variables in each combination; combination 1 is at index 0.
    pub variants: Vec<Values>,
    /// Names of the runs, in the order in which they are made.
    pub order: Vec<String>,
    /// Maximum number of runs, including those that `plan.until` may add.
    pub at_most_runs: usize,
    /// Minimum number of repetitions of each combination in the plan.
    pub repetitions: u32,
    /// Minimum number of repetitions for values with a confidence interval of 95 %.
    pub repetitions_for_interval: u32,
    /// Minimum number of repetitions with which a comparison with other results can show a difference.
    pub repetitions_for_comparison: u64,
    /// Expected total duration of all runs, s; `None` if the file does not define it.
    pub expected_s: Option<f64>,
    /// Maximum total duration of all runs, s.
    pub longest_s: f64,
    /// Commands of the first run.
    pub commands: Vec<PlannedCommand>,
    /// Results of contacting the nodes on other machines.
    pub nodes: Vec<Reached>,
    /// Missing requirements, one sentence each.
    pub missing: Vec<String>,
}

impl Check {
    /// Adds the results of contacting the nodes on other machines.
    pub fn add_nodes(&mut self, nodes: Vec<Reached>) {
        let not_ready = nodes.iter().filter(|node| !node.ready);
        self.missing.extend(not_ready.map(|node| node.text.clone()));
        self.nodes = nodes;
    }

    /// Returns text with the number of repetitions, and with the numbers of repetitions that an interval of 95 % and a
    /// comparison need.
    pub fn repetitions_in_words(&self) -> String {
        format!(
            "{} of each combination; a 95 % interval needs {}, a comparison of two results {} on each side",
            counted(self.repetitions, "repetition"),
            self.repetitions_for_interval,
            self.repetitions_for_comparison
        )
    }
}

/// A command of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlannedCommand {
    /// Name of the command.
    pub name: String,
    /// Role of the node that runs the command.
    pub node: String,
    /// Text for the shell on the node.
    pub script: String,
    /// True if the command keeps running during the following commands.
    pub background: bool,
}

impl Experiment {
    /// Returns the review; nothing is run.
    ///
    /// # Errors
    /// A template cannot be filled in.
    pub fn check(&self) -> Result<Check, crate::ExperimentError> {
        let order: Vec<String> = self.plan().into_iter().map(|run| run.id).collect();
        let schedule = &self.definition.plan;
        let at_most_runs = self.at_most_runs(order.len());
        Ok(Check {
            title: self.definition.title.clone(),
            fingerprint: self.fingerprint(),
            variants: self
                .variants
                .iter()
                .map(|variant| variant.loops.clone())
                .collect(),
            at_most_runs,
            repetitions: schedule.repetitions,
            repetitions_for_interval: INTERVAL_REPETITIONS,
            repetitions_for_comparison: runs_needed(
                self.variants.len() * self.compared_metrics().len().max(1),
                LEVEL,
            ),
            expected_s: self
                .expected()
                .map(|each| each.as_secs_f64() * order.len() as f64),
            longest_s: self.longest_s(at_most_runs),
            commands: self.first_commands()?,
            nodes: Vec::new(),
            missing: self.missing(),
            order,
        })
    }

    /// Returns the maximum total duration of all runs.
    pub fn longest(&self) -> Duration {
        let runs = self.at_most_runs(self.plan().len());
        Duration::try_from_secs_f64(self.longest_s(runs)).unwrap_or(Duration::MAX)
    }

    /// Returns the maximum number of runs, of which `planned` are certain.
    fn at_most_runs(&self, planned: usize) -> usize {
        let schedule = &self.definition.plan;
        let added = schedule
            .until
            .as_ref()
            .map_or(0, |until| until.at_most - schedule.repetitions);
        planned + added as usize * self.variants.len()
    }

    fn longest_s(&self, runs: usize) -> f64 {
        let each = (self.limit + Duration::from_secs(10)).as_secs_f64();
        each * runs as f64 * f64::from(self.definition.plan.attempts)
    }

    /// Returns the metrics that a comparison of two results tests: the metrics that the experiment file names.
    fn compared_metrics(&self) -> BTreeSet<&str> {
        let definition = &self.definition;
        let plain = definition.shown_metrics();
        let claims = definition
            .claim
            .iter()
            .flat_map(|claim| first_arguments(claim.value.get_ref()));
        let until = definition
            .plan
            .until
            .iter()
            .map(|until| until.metric.as_str());
        let all = plain.chain(claims).chain(until);
        all.filter(|name| !self.is_variable(name)).collect()
    }

    /// Returns true if a combination has a variable with the given name.
    fn is_variable(&self, name: &str) -> bool {
        let mut variants = self.variants.iter();
        variants.any(|variant| variant.variables.contains_key(name))
    }

    /// Returns the commands of the first run, with variables filled in.
    pub(crate) fn first_commands(&self) -> Result<Vec<PlannedCommand>, crate::ExperimentError> {
        let plan = self.plan();
        let first = &plan[0];
        let variant = &self.variants[first.variant];
        let mut commands = Vec::new();
        for task in &self.tasks {
            let role = self.role_of(task.node.as_ref())?;
            let values = self.context(variant, Some(role), &first.id, first.repetition);
            let script = self
                .templates
                .fill(task.run.get_ref(), &values)
                .map_err(|reason| self.source.wrong(task.run.span(), reason))?;
            commands.push(PlannedCommand {
                name: task.name.clone(),
                node: role.to_owned(),
                script,
                background: task.background,
            });
        }
        Ok(commands)
    }

    /// Returns the requirements that this machine lacks: programs of local steps, devices.
    fn missing(&self) -> Vec<String> {
        let mut missing: Vec<String> = match self.secrets() {
            Ok(secrets) => secrets
                .unset
                .iter()
                .map(|name| format!("the secret ${name} is not set in the environment"))
                .collect(),
            Err(e) => vec![e.to_string()],
        };
        let mut seen = BTreeSet::new();
        for variant in &self.variants {
            for task in &self.tasks {
                let Ok(role) = self.role_of(task.node.as_ref()) else {
                    continue;
                };
                if self.nodes[role].address != NodeAddress::Local {
                    continue;
                }
                let values = self.context(variant, Some(role), "v1-r1", 1);
                let Ok(script) = self.templates.fill(task.run.get_ref(), &values) else {
                    continue;
                };
                let program = script.split_whitespace().next().unwrap_or("").to_owned();
                let plain = program
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
                if program != "taut" && plain && seen.insert(program.clone()) && !is_there(&program)
                {
                    missing.push(format!("`{program}` is not installed"));
                }
            }
            if let Some(device) = self
                .definition
                .device
                .as_ref()
                .and_then(|device| device.id.as_ref())
            {
                let values = self.context(variant, None, "v1-r1", 1);
                if let Ok(id) = self.templates.fill(device.get_ref(), &values)
                    && seen.insert(format!("device {id}"))
                {
                    missing.extend(why_not(&id));
                }
            }
        }
        if self.made_links().next().is_some()
            && let Err(lacks) = taut_host::permissions::can_make_namespaces()
        {
            missing.push(format!("links between local nodes: {lacks}"));
        }
        missing
    }
}

/// Returns the metrics that a formula uses: the quoted first arguments of its calls.
fn first_arguments(formula: &str) -> Vec<&str> {
    let parts: Vec<&str> = formula.split(['\'', '"']).collect();
    let pairs = parts.windows(2);
    let of_calls = pairs.filter(|pair| pair[0].trim_end().ends_with('('));
    of_calls.map(|pair| pair[1]).collect()
}

fn is_there(program: &str) -> bool {
    // Only the shell itself knows its built-in commands.
    std::process::Command::new("sh")
        .args(["-c", "command -v \"$1\"", "sh", program])
        .output()
        .is_ok_and(|output| output.status.success())
}

fn why_not(id: &str) -> Option<String> {
    if let Err(reason) = Choice::parse(id) {
        return Some(reason);
    }
    let offer = offers().into_iter().find(|offer| offer.device.id == id)?;
    offer
        .here
        .err()
        .map(|reason| format!("device {id}: {reason}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::changes::Changes;
    use std::path::Path;

    #[test]
    fn a_check_reports_the_number_of_repetitions_needed_for_verdicts() {
        let text = crate::TEMPLATE;
        let experiment =
            Experiment::parse(text, "e.toml", Path::new("."), &Changes::default()).unwrap();
        let metrics: Vec<_> = experiment.compared_metrics().into_iter().collect();
        let named = [
            "latency_ns.avg_ns",
            "latency_ns.p50_ns",
            "latency_ns.p99_ns",
            "lost",
        ];
        assert_eq!(metrics, named);
        // 24 comparisons: four metrics of six combinations.
        assert_eq!(
            experiment.check().unwrap().repetitions_in_words(),
            "3 repetitions of each combination; a 95 % interval needs 6, a comparison of two results 7 on each side"
        );
    }
}
