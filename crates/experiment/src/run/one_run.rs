//! Makes one run: prepares the nodes, runs the commands in order, ends the background commands, and extracts the
//! metrics from the output.

use super::attempt::Making;
use super::commands::last_line;
use super::{Driver, Failed};
use crate::agent::COUNTERS;
use crate::counters::CounterReport;
use crate::duration::now;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::RunRecord;
use crate::metrics;
use crate::plan::PlannedRun;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

impl Driver<'_> {
    pub(super) fn begin(
        &self,
        planned: &PlannedRun,
        attempt: u32,
    ) -> Result<Making, ExperimentError> {
        Ok(Making {
            folder: self.request.folder.partial(&planned.id)?,
            began: self.time.now(),
            deadline: self.time.now(),
            wiring: None,
            background: Vec::new(),
            outputs: Vec::new(),
            awake: false,
            record: record_of(&self.request.experiment, planned, attempt),
        })
    }

    pub(super) fn one_run(
        &mut self,
        planned: &PlannedRun,
        making: &mut Making,
    ) -> Result<(), Failed> {
        let request = self.request;
        let experiment = &request.experiment;
        let variant = &experiment.variants[planned.variant];
        let context =
            |role: Option<&str>| experiment.context(variant, role, &planned.id, planned.repetition);
        making.awake = experiment.keeps_awake(&context(None))?;
        self.begin_nodes(planned, making, &context(None))?;
        self.set_up_once(making, &context)?;
        making.deadline = self.time.now() + experiment.limit;
        for role in experiment.nodes.keys() {
            let values = context(Some(role));
            for (index, command) in experiment.nodes[role].definition.setup.iter().enumerate() {
                let script = experiment.fill(command, &values)?;
                let name = format!("setup-{role}-{}", index + 1);
                self.foreground(making, &name, role, &script, &[])?;
            }
        }
        self.start_clocks(making)?;
        for task in &experiment.tasks {
            let role = experiment.role_of(task.node.as_ref())?;
            let values = context(Some(role));
            let script = experiment.fill(&task.run, &values)?;
            if task.background {
                let ready = match &task.ready {
                    Some(ready) => Some(experiment.fill(ready, &values)?),
                    None => None,
                };
                self.background(making, &task.name, role, &script, ready.as_deref())?;
            } else {
                self.foreground(making, &task.name, role, &script, &task.allowed)?;
                let mut patterns = Vec::new();
                for (name, pattern) in &task.extract {
                    patterns.push((name.clone(), experiment.fill(pattern, &values)?));
                }
                making.outputs.push((task.clone(), patterns));
            }
        }
        Ok(())
    }

    /// Ends background commands in reverse order of their start, and collects the files from the nodes.
    pub(super) fn end(
        &mut self,
        making: &mut Making,
        outcome: &Result<(), Failed>,
    ) -> Result<(), Failed> {
        let well = outcome.is_ok();
        let mut died = None;
        while let Some(mut running) = making.background.pop() {
            if let Some(code) = running.ended() {
                running.note_end(making, code);
                let last = last_line(making, &running.name);
                if code != 0 && well {
                    died = Some(format!(
                        "{} ended during the run with code {code}: {last}",
                        running.name
                    ));
                }
            } else {
                running.stop(making);
            }
        }
        let mut collected = Ok(());
        for node in &mut self.nodes {
            // The files of a stopped run are not collected.
            if !matches!(outcome, Err(Failed::Stopped)) {
                collected = collected.and(node.collect(&making.folder.join(node.role())));
            }
        }
        making.wiring = None;
        if well {
            collected?;
        }
        died.map_or(Ok(()), |reason| Err(Failed::Run(reason)))
    }

    /// Runs the commands of `setup_once` on the nodes that have booted since these commands ran. Their time limit is
    /// their own, and their time is not part of the run.
    fn set_up_once(
        &mut self,
        making: &mut Making,
        context: &impl Fn(Option<&str>) -> Value,
    ) -> Result<(), Failed> {
        let experiment = &self.request.experiment;
        let began = self.time.now();
        for (role, node) in &experiment.nodes {
            let booted = self.node(role)?.boot_id().to_owned();
            let commands = &node.definition.setup_once;
            if commands.is_empty() || self.set_up.get(role) == Some(&booted) {
                continue;
            }
            making.deadline = self.time.now() + node.boot_limit;
            for (index, command) in commands.iter().enumerate() {
                let script = experiment.fill(command, &context(Some(role)))?;
                let name = format!("setup-once-{role}-{}", index + 1);
                self.foreground(making, &name, role, &script, &[])?;
            }
            self.set_up.insert(role.clone(), booted);
        }
        making.began += self.time.since(began);
        Ok(())
    }

    /// Extracts the metrics of a run from the output of its commands.
    pub(super) fn gather(&mut self, making: &mut Making) -> Result<(), String> {
        self.gather_counters(making);
        self.gather_clocks(making);
        for (task, patterns) in std::mem::take(&mut making.outputs) {
            let read = |kind: &str| {
                let path = making
                    .folder
                    .join("logs")
                    .join(format!("{}.{kind}", task.name));
                let text = fs::read(path).unwrap_or_default();
                String::from_utf8_lossy(&text).into_owned()
            };
            let output = read("out");
            if task.json {
                let found = metrics::of_json(&output)
                    .ok_or_else(|| format!("{}: no JSON object in its output", task.name))?;
                let named = found
                    .into_iter()
                    .map(|(name, value)| (format!("{}{name}", task.prefix), value));
                making.record.metrics.extend(named);
                making.record.programs.extend(metrics::programs_of(&output));
            }
            for (name, pattern) in patterns {
                let value = metrics::of_pattern(&pattern, &(output.clone() + &read("err")))
                    .map_err(|reason| format!("{}: {name}: {reason}", task.name))?;
                making.record.metrics.insert(name, value);
            }
        }
        Ok(())
    }
}

impl Driver<'_> {
    /// Adds the event counts of the commands to the metrics, and notes which counters are missing.
    fn gather_counters(&mut self, making: &mut Making) {
        let mut missing: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for task in &self.request.experiment.tasks {
            let role = self.request.experiment.role_of(task.node.as_ref());
            let Some(role) = role.ok().filter(|_| !task.counters.is_empty()) else {
                continue;
            };
            let file = making.folder.join(role).join(COUNTERS);
            let file = file.join(format!("{}.json", task.name));
            let read = fs::read(file).ok();
            let report = read.and_then(|it| serde_json::from_slice::<CounterReport>(&it).ok());
            for (name, count) in report.iter().flat_map(|it| &it.counts) {
                let metric = format!("{}.counters.{name}", task.name);
                making.record.metrics.insert(metric, *count);
            }
            for (name, why) in report.into_iter().flat_map(|it| it.missing) {
                let names = missing.entry(why).or_default();
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        for (why, names) in missing {
            self.note(making, format!("not counted: {}: {why}", names.join(", ")));
        }
    }
}

/// Returns the record of a run at its beginning.
pub(super) fn record_of(experiment: &Experiment, planned: &PlannedRun, attempt: u32) -> RunRecord {
    let variant = &experiment.variants[planned.variant];
    RunRecord {
        id: planned.id.clone(),
        variant: planned.variant + 1,
        repetition: planned.repetition,
        warm_up: planned.warm_up,
        loops: variant.loops.clone(),
        variables: variant.variables.clone(),
        started: now(),
        seconds: 0.0,
        attempt,
        failure: None,
        commands: Vec::new(),
        nodes: BTreeMap::new(),
        metrics: BTreeMap::new(),
        programs: Vec::new(),
        links: Vec::new(),
        clocks: Vec::new(),
        notes: Vec::new(),
        files: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::run::fake::{Course, Trial, World};
    use std::time::Duration;

    #[test]
    fn commands_start_in_order_and_end_in_reverse_order() {
        let trial = Trial::new(
            r#"
title = "t"
[plan]
repetitions = 1
[nodes.a]
at = "local"
setup = ["set up a"]
[nodes.b]
at = "local"
setup = ["set up b"]
[[step]]
node = "a"
run = "first device"
background = true
[[step]]
node = "b"
run = "second device"
background = true
[[step]]
node = "a"
run = "measure"
"#,
        );
        let came = trial.run(World::new(|asked| match asked.script {
            "first device" | "second device" => Course::goes_on(),
            _ => Course::ends(1, 0),
        }));
        let commands: Vec<&String> = came
            .happened
            .iter()
            .filter(|what| !what.starts_with("begin") && !what.starts_with("collect"))
            .collect();
        let expected = [
            "set up a",
            "set up b",
            "first device",
            "second device",
            "measure",
            "end second device",
            "end first device",
        ];
        assert_eq!(commands, expected);
    }

    const ONCE: &str = r#"
title = "t"
[plan]
repetitions = 3
[nodes.a]
at = "local"
setup_once = ["set up once"]
setup = ["set up"]
[[step]]
run = "measure"
"#;

    #[test]
    fn setup_once_runs_again_only_after_a_boot() {
        let count = |boots_after: usize| {
            let trial = Trial::new(ONCE);
            let mut world = World::new(|asked| match asked.script {
                "set up once" => Course::ends(100, 0),
                _ => Course::ends(1, 0),
            });
            world.boots_after = boots_after;
            let came = trial.run(world);
            let of = |what: &str| came.happened.iter().filter(|it| *it == what).count();
            assert_eq!((of("set up"), of("measure")), (3, 3));
            // Its time is not that of the run, nor limited by `plan.limit`.
            let index = trial.folder().index().unwrap();
            assert!(index.iter().all(|run| run.seconds == 2.0), "{index:?}");
            of("set up once")
        };
        assert_eq!(count(usize::MAX), 1);
        assert_eq!(count(2), 2);
    }

    #[test]
    fn a_node_with_other_firmware_than_wanted_fails_the_run() {
        let text = ONCE.replace(
            "setup = ",
            "wants = { \"bios.LogicalProc\" = \"Disabled\" }\nsetup = ",
        );
        let run = |value: Option<&str>| {
            let trial = Trial::new(&text);
            let mut world = World::new(|_| Course::ends(1, 0));
            let value = value.map(|it| ("bios.LogicalProc".to_owned(), it.to_owned()));
            world.firmware.extend(value);
            trial.run(world);
            let failures = trial.folder().failures().unwrap();
            failures.into_iter().next().and_then(|it| it.failure)
        };
        assert_eq!(run(Some("Disabled")), None);
        assert_eq!(
            run(Some("Enabled")).unwrap(),
            "node a: bios.LogicalProc is `Enabled`, and the experiment wants `Disabled`"
        );
        assert_eq!(
            run(None).unwrap(),
            "node a: it does not state bios.LogicalProc, and the experiment wants `Disabled`"
        );
    }

    #[test]
    fn runs_of_the_second_build_use_the_program_given() {
        let text = r#"
title = "t"
[plan]
repetitions = 1
[[step]]
run = "device"
background = true
[[step]]
name = "measure"
run = "measure"
extract = { rate = 'rate (\d+)' }
[[claim]]
text = "the head has a rate"
value = "median('rate')"
holds = "value == 17"
[[claim]]
text = "both have the same"
value = "median('rate', build='head') / median('rate', build='base')"
holds = "value == 1"
"#;
        let against = Some(crate::Build {
            program: "/other/taut".to_owned(),
            version: "taut 0.1.0".to_owned(),
        });
        let changes = crate::Changes {
            against,
            ..crate::Changes::default()
        };
        let trial = Trial::with(text, changes);
        let came = trial.run(World::new(|asked| match asked.script {
            "device" => Course::goes_on(),
            _ => Course::ends(1, 0).prints(Duration::ZERO, "rate 17"),
        }));
        for run in trial.folder().index().unwrap() {
            let begin = format!("begin {}", run.id);
            let mut steps = came.happened.iter().skip_while(|what| **what != begin);
            let by = match run.variables["build"].as_str() {
                Some("base") => " by /other/taut",
                _ => "",
            };
            assert_eq!(steps.nth(1).unwrap(), &format!("device{by}"));
            assert_eq!(steps.next().unwrap(), &format!("measure{by}"));
        }
        let folder = trial.folder();
        let experiment = folder.experiment().unwrap();
        let found = crate::evaluate::Evaluation::of(&experiment, folder).unwrap();
        let verdicts = found.verdicts.iter().map(|it| it.value);
        assert_eq!(verdicts.collect::<Vec<_>>(), [Some(17.0), Some(1.0)]);
        let builds = found.builds.unwrap();
        assert_eq!(
            (builds.metrics.len(), builds.base.as_str()),
            (1, "taut 0.1.0")
        );
        assert_eq!(builds.metrics[0].comparison.runs, [1, 1]);
        let lead = builds.lead();
        assert!(lead.starts_with("Too few runs to test 1 metric"), "{lead}");
    }

    #[test]
    fn metrics_are_extracted_from_command_output() {
        let text = r#"
title = "t"
[plan]
repetitions = 1
[[step]]
name = "measure"
run = "measure"
extract = { rate = 'rate (\d+)' }
"#;
        let trial = Trial::new(text);
        trial.run(World::new(|_| {
            Course::ends(1, 0).prints(Duration::ZERO, "rate 17")
        }));
        let index = trial.folder().index().unwrap();
        assert_eq!(index[0].metrics["rate"], 17.0);
        // A run without metrics is not a result.
        let trial = Trial::new(text);
        trial.run(World::new(|_| Course::ends(1, 0)));
        let failures = trial.folder().failures().unwrap();
        let why = failures[0].failure.as_deref().unwrap();
        assert!(why.starts_with("measure: rate: "), "{why}");
    }
}
