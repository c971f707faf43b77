//! Commands of a run: starts them in the foreground and in the background, and waits for their exit.

use super::attempt::{Making, Running};
use super::{Driver, END_PATIENCE, Failed};
use crate::agent::{STOPPED, TIMED_OUT};
use crate::error::ExperimentError;
use crate::folder::CommandRecord;
use crate::node::{Node, Step};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Timeout for a background command to become ready.
const READY_PATIENCE: Duration = Duration::from_secs(20);
/// Interval between two checks whether a background command is ready.
const READY_POLL: Duration = Duration::from_millis(5);
/// Interval between two checks of the background commands while a foreground command runs.
const LOOK_AROUND: Duration = Duration::from_millis(250);
/// Exit code of `ssh` after the connection broke.
const CONNECTION_BROKE: i32 = 255;
/// Maximum time from the exit of a command on a node until the loss of the connection to the node is detected.
const LOSS_SHOWS: Duration = Duration::from_millis(500);
/// Interval between two checks whether the connection to a node has broken.
const LOSS_POLL: Duration = Duration::from_millis(20);

impl Driver<'_> {
    /// Runs a foreground command until it exits.
    pub(super) fn foreground(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
        allowed: &[i32],
    ) -> Result<(), Failed> {
        let mut running = self.start(making, name, role, script)?;
        let deadline = making.deadline + END_PATIENCE;
        let code = loop {
            // The interval is long, because this process may disturb a measurement on the same core.
            match running.step.wait(LOOK_AROUND) {
                Some(code) => break code,
                None if self.stop.load(Ordering::Relaxed) => {
                    running.stop(making);
                    return Err(Failed::Stopped);
                }
                None if self.time.now() > deadline => {
                    running.stop(making);
                    return Err(Failed::Run(self.too_long()));
                }
                None => {}
            }
        };
        running.note_end(making, code);
        let last = last_line(making, name);
        match code {
            0 => Ok(()),
            TIMED_OUT => Err(Failed::Run(self.too_long())),
            code if allowed.contains(&code) => {
                making.record.notes.push(format!("{name}: {last}"));
                Ok(())
            }
            _ if self.stop.load(Ordering::Relaxed) => Err(Failed::Stopped),
            code => Err(Failed::Run(match self.lost(role, code, &last) {
                Some(reason) => format!("node {role}: {reason} (during {name})"),
                None => format!("{name} on node {role} ended with code {code}: {last}"),
            })),
        }
    }

    fn too_long(&self) -> String {
        format!(
            "took longer than plan.limit allows ({})",
            self.request.experiment.definition.plan.limit
        )
    }

    /// Starts a background command and waits until it is ready.
    pub(super) fn background(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
        ready: Option<&str>,
    ) -> Result<(), Failed> {
        self.background_within(making, name, role, script, ready, READY_PATIENCE)
    }

    /// Starts a background command and waits until it is ready, for at most `patience`.
    pub(super) fn background_within(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
        ready: Option<&str>,
        patience: Duration,
    ) -> Result<(), Failed> {
        let mut running = self.start(making, name, role, script)?;
        let output = making.folder.join("logs").join(format!("{name}.out"));
        let errors = making.folder.join("logs").join(format!("{name}.err"));
        let deadline = self.time.now() + patience;
        let mut failure = None;
        while let Some(ready) = ready {
            let said =
                |path: &Path| fs::read_to_string(path).is_ok_and(|text| text.contains(ready));
            if said(&output) || said(&errors) {
                break;
            }
            if let Some(code) = running.ended() {
                running.note_end(making, code);
                let last = last_line(making, name);
                return Err(Failed::Run(format!(
                    "{name} on node {role} ended before it was ready (code {code}): {last}"
                )));
            }
            if self.stop.load(Ordering::Relaxed) {
                failure = Some(Failed::Stopped);
                break;
            }
            if self.time.now() > deadline {
                failure = Some(Failed::Run(format!(
                    "{name} on node {role} did not print `{ready}` within {} s",
                    patience.as_secs()
                )));
                break;
            }
            self.time.sleep(READY_POLL);
        }
        making.background.push(running);
        failure.map_or(Ok(()), Err)
    }

    pub(super) fn start(
        &self,
        making: &mut Making,
        name: &str,
        role: &str,
        script: &str,
    ) -> Result<Running, Failed> {
        let left = making.deadline.saturating_duration_since(self.time.now());
        if left.is_zero() {
            return Err(Failed::Run(self.too_long()));
        }
        let node = self.node(role)?;
        let log = |kind: &str| making.folder.join("logs").join(format!("{name}.{kind}"));
        let create = |path: PathBuf| File::create(&path).map_err(ExperimentError::io(path));
        let experiment = &self.request.experiment;
        let step = node.start(Step {
            name,
            script,
            limit: left,
            awake: making.awake,
            counters: experiment.counters_of(name),
            secrets: &self.secrets,
            program: experiment.program_of(&making.record.loops),
            logs: [create(log("out"))?, create(log("err"))?],
        })?;
        making.record.commands.push(CommandRecord {
            name: name.to_owned(),
            node: role.to_owned(),
            script: script.to_owned(),
            exit_code: None,
            begun_s: self.time.since(making.began).as_secs_f64(),
            seconds: 0.0,
        });
        Ok(Running {
            name: name.to_owned(),
            step,
            time: self.time,
            began: self.time.now(),
            command: making.record.commands.len() - 1,
        })
    }

    /// Returns the reason why a node is no longer available; `None` if it is available. The loss of a node is detected
    /// shortly after the exit of the node's commands.
    fn lost(&self, role: &str, code: i32, last: &str) -> Option<String> {
        // Slurm ends commands by a signal, and starts no more of them after their job has ended.
        let is_taken = code == STOPPED || last.starts_with("srun: error:");
        let taken = code == CONNECTION_BROKE || (self.allocated && is_taken);
        let node = self.node(role).ok().filter(|_| taken)?;
        let deadline = self.time.now() + LOSS_SHOWS;
        loop {
            let lost = node.lost();
            if lost.is_some() || self.time.now() > deadline {
                return lost;
            }
            self.time.sleep(LOSS_POLL);
        }
    }

    pub(super) fn node(&self, role: &str) -> Result<&dyn Node, Failed> {
        let node = self.nodes.iter().find(|node| node.role() == role);
        node.map(|node| &**node)
            .ok_or_else(|| Failed::Run(format!("unknown node {role}")))
    }
}

/// Returns the last line in the log of a command, for an error message.
pub(super) fn last_line(making: &Making, name: &str) -> String {
    let read = |kind: &str| {
        let text =
            fs::read(making.folder.join("logs").join(format!("{name}.{kind}"))).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    };
    let errors = reason_of(&read("err"));
    if errors.is_empty() {
        reason_of(&read("out"))
    } else {
        errors
    }
}

/// Returns the line of an output that explains a failure: the first line that reports an error, such as `error: ...`,
/// or else the last line. Many programs print their usage after an error.
fn reason_of(output: &str) -> String {
    let mut lines = output.trim().lines().map(str::trim);
    let says_so = |line: &&str| line.starts_with("error:") || line.starts_with("Error:");
    let last = lines.clone().next_back().unwrap_or_default();
    lines.find(says_so).unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run::fake::{Came, Course, Trial, World};
    use crate::run::time::made_up::passed;

    /// Experiment file with a device that runs in the background, and a measurement.
    const DEVICE: &str = r#"
title = "t"
[plan]
repetitions = 1
limit = "60s"
[[step]]
name = "device"
run = "device"
background = true
ready = "here"
[[step]]
name = "measure"
run = "measure"
"#;

    /// Makes the only run of the experiment on a fake node, where the device's command behaves as `device` describes,
    /// and the measurement's command as `measure` describes.
    fn run(device: Course, measure: Course) -> (Trial, Came) {
        let trial = Trial::new(DEVICE);
        let came = trial.run(World::new(move |asked| match asked.script {
            "device" => device.clone(),
            _ => measure.clone(),
        }));
        (trial, came)
    }

    /// Returns the reason why a run failed in which the commands of device and measurement behave as given.
    fn failure(device: Course, measure: Course) -> String {
        let (trial, _) = run(device, measure);
        let failures = trial.folder().failures().unwrap();
        failures[0].failure.clone().unwrap()
    }

    fn ready() -> Course {
        Course::goes_on().prints(Duration::from_secs(2), "here")
    }

    #[test]
    fn a_device_is_ready_before_the_measurement_and_stopped_afterwards() {
        let (trial, came) = run(ready(), Course::ends(10, 0));
        let expected = [
            "begin v1-r1",
            "device",
            "measure",
            "end device",
            "collect v1-r1",
        ];
        assert_eq!(came.happened, expected);
        let commands = trial.folder().run("v1-r1").unwrap().commands;
        let [device, measure] = &commands[..] else {
            panic!("{commands:?}");
        };
        assert_eq!((device.begun_s, device.exit_code), (0.0, Some(STOPPED)));
        assert_eq!((measure.seconds, measure.exit_code), (10.0, Some(0)));
        // Readiness is checked every 5 ms, so it is noticed up to 5 ms late.
        assert_eq!(measure.begun_s, 2.005);
    }

    #[test]
    fn a_device_that_is_never_ready_fails_the_run() {
        let why = failure(Course::goes_on(), Course::ends(10, 0));
        assert_eq!(why, "device on node local did not print `here` within 20 s");
        let early = Course::ends(1, 3).prints(Duration::ZERO, "error: no such port");
        let why = failure(early, Course::ends(10, 0));
        let expected =
            "device on node local ended before it was ready (code 3): error: no such port";
        assert_eq!(why, expected);
    }

    #[test]
    fn a_device_that_ends_during_the_measurement_fails_the_run() {
        let dies = Course::ends(5, 3).prints(Duration::ZERO, "here");
        let why = failure(dies, Course::ends(10, 0));
        assert_eq!(why, "device ended during the run with code 3: here");
    }

    #[test]
    fn a_device_that_does_not_stop_in_time_is_killed() {
        let deaf = Course {
            deaf: true,
            ..ready()
        };
        let (_, came) = run(deaf, Course::ends(10, 0));
        let last = ["end device", "kill device", "collect v1-r1"];
        assert_eq!(came.happened[3..], last);
        assert!(came.took >= Duration::from_secs(12) + END_PATIENCE);
    }

    #[test]
    fn a_run_is_stopped_at_its_time_limit() {
        let expected = "took longer than plan.limit allows (60s)";
        // The node itself ends the command at the time limit, and reports that.
        assert_eq!(failure(ready(), Course::ends(58, TIMED_OUT)), expected);
        // The node does not end the command, so the experiment does.
        let (trial, came) = run(ready(), Course::goes_on());
        let failures = trial.folder().failures().unwrap();
        assert_eq!(failures[0].failure.as_deref(), Some(expected));
        let most = Duration::from_secs(60) + END_PATIENCE + LOOK_AROUND;
        assert!(came.took <= most, "{:?}", came.took);
        // No time is left for the next command.
        let text = format!("{DEVICE}\n[[step]]\nname = \"next\"\nrun = \"next\"\n");
        let trial = Trial::new(&text);
        let came = trial.run(World::new(|asked| match asked.script {
            "device" => ready(),
            _ => Course::ends(58, 0),
        }));
        assert_eq!(
            trial.folder().failures().unwrap()[0].failure.as_deref(),
            Some(expected)
        );
        assert!(!came.happened.iter().any(|what| what == "next"));
    }

    #[test]
    fn a_broken_connection_is_distinguished_from_a_failed_command() {
        let lost_after = |time| {
            let trial = Trial::new(DEVICE);
            let mut world = World::new(|asked| match asked.script {
                "device" => ready(),
                _ => Course::ends(1, CONNECTION_BROKE).prints(Duration::ZERO, "bye"),
            });
            world.lost = Some((passed() + time, "the connection to it broke".to_owned()));
            trial.run(world);
            trial.folder().failures().unwrap()[0]
                .failure
                .clone()
                .unwrap()
        };
        // The node reports its loss shortly after the end of the command.
        let why = lost_after(Duration::from_millis(3300));
        assert_eq!(
            why,
            "node local: the connection to it broke (during measure)"
        );
        let why = lost_after(Duration::from_secs(60));
        assert_eq!(why, "measure on node local ended with code 255: bye");
    }

    #[test]
    fn the_error_line_of_standard_error_is_the_failure_reason() {
        let usage = "error: unexpected argument '--sied' found\n\nUsage: taut generate\n\nFor more information, try '--help'.\n";
        assert_eq!(
            reason_of(usage),
            "error: unexpected argument '--sied' found"
        );
        assert_eq!(
            reason_of("1 %\n99 %\ntaut: no such port\n"),
            "taut: no such port"
        );
        assert_eq!(reason_of("\n"), "");
    }
}
