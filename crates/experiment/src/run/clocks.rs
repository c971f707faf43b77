//! Synchronises the clocks of nodes before a run, and records their errors.

use super::attempt::Making;
use super::{Driver, Failed};
use crate::clock::{ClockReading, ClockRecord, READY};
use std::fs;
use std::time::Duration;

/// Time for a node to start and to end, in addition to the time limit `within`.
const GRACE: Duration = Duration::from_secs(15);

impl Driver<'_> {
    /// Synchronises the clocks of the nodes, beginning with the reference nodes. The clocks stay synchronised until the
    /// run ends.
    pub(super) fn start_clocks(&mut self, making: &mut Making) -> Result<(), Failed> {
        let request = self.request;
        let experiment = &request.experiment;
        // Waiting for clocks is not part of the run's duration.
        let left = making.deadline.saturating_duration_since(self.time.now());
        let clocks = experiment.nodes.iter();
        let clocks = clocks.filter_map(|(name, role)| Some((name, role.clock.as_ref()?)));
        let (references, followers): (Vec<_>, Vec<_>) =
            clocks.partition(|(_, clock)| clock.is_reference);
        for (role, clock) in references.into_iter().chain(followers) {
            let within = Duration::from_secs_f64(clock.within_s);
            // The command runs until the run ends, which is not known here.
            making.deadline = self.time.now() + experiment.limit + 10 * (within + GRACE);
            let order = serde_json::to_string(clock).unwrap_or_default();
            let script = format!("exec taut node clock '{order}'");
            let name = format!("clock-{role}");
            self.background_within(making, &name, role, &script, Some(READY), within + GRACE)?;
        }
        making.deadline = self.time.now() + left;
        Ok(())
    }

    /// Adds the errors of the nodes' clocks to the record and the metrics of the run.
    pub(super) fn gather_clocks(&mut self, making: &mut Making) {
        let request = self.request;
        for (role, node) in &request.experiment.nodes {
            let reference = node
                .definition
                .clock
                .as_ref()
                .and_then(|it| it.reference.as_ref());
            let (Some(clock), Some(reference)) = (&node.clock, reference) else {
                continue;
            };
            let log = making.folder.join("logs").join(format!("clock-{role}.out"));
            let text = fs::read_to_string(log).unwrap_or_default();
            let mut readings = text.lines().filter_map(|it| serde_json::from_str(it).ok());
            let Some(before) = readings.next() else {
                continue;
            };
            let after: Option<ClockReading> = readings.next();
            let record = ClockRecord {
                node: role.clone(),
                reference: reference.get_ref().clone(),
                method: clock.method,
                before,
                after,
            };
            let bound_ns = clock.bound_s * 1e9;
            match after {
                None => self.note(
                    making,
                    format!("the clock of node {role} was not read after the run"),
                ),
                Some(after) if after.bound_ns > bound_ns => {
                    let us = after.bound_ns / 1e3;
                    let note = format!(
                        "the clock of node {role} left its bound during the run: {us:.1} us"
                    );
                    self.note(making, note);
                }
                Some(_) => {}
            }
            // The larger error counts for the whole run.
            let worst = after
                .filter(|it| it.bound_ns > before.bound_ns)
                .unwrap_or(before);
            for (name, value) in [
                ("offset_ns", worst.offset_ns),
                ("path_delay_ns", worst.path_delay_ns),
                ("root_dispersion_ns", worst.root_dispersion_ns),
                ("bound_ns", worst.bound_ns),
            ] {
                making
                    .record
                    .metrics
                    .insert(format!("clock.{role}.{name}"), value);
            }
            making.record.clocks.push(record);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::run::fake::{Came, Course, Trial, World};
    use std::time::Duration;
    use taut_results::Completion;

    const FOLLOWS: &str = r#"
title = "t"
[plan]
repetitions = 1
[nodes.generator]
at = "local"
clock = { by = "chrony", reference = "device", address = "10.0.0.2", adjust = false, within = "30s" }
[nodes.device]
at = "local"
clock = { by = "chrony" }
[[step]]
node = "generator"
run = "measure"
"#;

    /// Runs the experiment; the follower's clock meets its bound after `after`.
    fn run(after: Duration) -> (Trial, Came) {
        let trial = Trial::new(FOLLOWS);
        let came = trial.run(World::new(move |asked| {
            let reading =
                r#"{"offset_ns":-1500,"path_delay_ns":40,"root_dispersion_ns":10,"bound_ns":1530}"#;
            match asked.script {
                "measure" => Course::ends(1, 0),
                clock if clock.contains("\"is_reference\":true") => {
                    Course::goes_on().prints(Duration::ZERO, &reading.replace("1530", "0"))
                }
                _ => Course::goes_on().prints(after, reading),
            }
        }));
        (trial, came)
    }

    #[test]
    fn clocks_are_synchronised_before_the_first_command_and_recorded() {
        let (trial, came) = run(Duration::from_secs(20));
        assert_eq!(came.state.completion, Completion::Finished);
        let order = |part: &str| {
            came.happened
                .iter()
                .position(|it| it.contains(part))
                .unwrap()
        };
        let (reference, follower) = (order("true,"), order("10.0.0.2"));
        assert!(
            reference < follower && follower < order("measure"),
            "{:?}",
            came.happened
        );
        // The reference is the last to end.
        assert!(
            came.happened
                .iter()
                .filter(|it| it.starts_with("end exec taut node clock"))
                .count()
                == 2
        );
        let record = trial.folder().run("v1-r1").unwrap();
        let clock = &record.clocks[0];
        assert_eq!(
            (clock.node.as_str(), clock.reference.as_str()),
            ("generator", "device")
        );
        assert_eq!(record.metrics["clock.generator.bound_ns"], 1530.0);
        assert_eq!(record.metrics["clock.generator.offset_ns"], -1500.0);
        assert_eq!(record.clocks.len(), 1);
    }

    #[test]
    fn a_run_fails_if_a_clock_misses_its_bound() {
        let (trial, came) = run(Duration::MAX / 4);
        assert_eq!(came.state.completion, Completion::Incomplete);
        let failures = trial.folder().failures().unwrap();
        let why = failures[0].failure.as_deref().unwrap();
        assert!(
            why.starts_with("clock-generator on node generator did not print"),
            "{why}"
        );
        assert!(!came.happened.contains(&"measure".to_owned()));
    }

    #[test]
    fn settings_of_clocks_are_checked() {
        let wrong = |from: &str, to: &str| {
            let text = FOLLOWS.replace(from, to);
            let changes = crate::Changes::default();
            let read =
                crate::Experiment::parse(&text, "e.toml", std::path::Path::new("."), &changes);
            read.unwrap_err().to_string()
        };
        for (from, to, reason) in [
            (", adjust = false", "", "set `adjust = false`"),
            (", address = \"10.0.0.2\"", "", "name the `address`"),
            ("10.0.0.2", "10.0.0.2' ; x", "`address` is that of a host"),
            ("\"device\"", "\"other\"", "unknown node"),
            (
                "{ by = \"chrony\" }",
                "{ by = \"ptp\", interface = \"eth0\" }",
                "the same `by`",
            ),
            ("{ by = \"chrony\" }", "{ by = \"ptp\" }", "the same `by`"),
            ("within = \"30s\"", "within = \"x\"", "is not a time"),
            (
                "\"chrony\", reference",
                "\"ntp\", reference",
                "expected \"chrony\" or \"ptp\"",
            ),
        ] {
            let error = wrong(from, to);
            assert!(error.contains(reason), "{error}");
        }
    }
}
