//! Prepares the nodes for a run: makes links between local nodes, brings nodes to their known state, waits for other
//! measurements, checks the free space, and records facts.

use super::attempt::Making;
use super::time::Time;
use super::{Driver, Failed};
use crate::agent::{Facts, Moment};
use crate::boot::check_image;
use crate::definition::Link;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::node::address::NodeAddress;
use crate::node::parcel::RunFile;
use crate::node::{Node, Site};
use crate::plan::PlannedRun;
use crate::role::{Role, end_of, is_cable};
use crate::wants;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_bench::benchmark::Observer;
use taut_host::Wiring;
use taut_host::private::MEASURING_PATIENCE;

/// Minimum free space of a node before a run, bytes.
const LEAST_FREE_BYTES: u64 = 64 << 20;
/// Difference between the clocks of two nodes above which the run gets a note, ns.
const CLOCKS_DIFFER_NS: i128 = 100_000_000;
/// Interval at which a node is queried whether another measurement has ended.
const MEASUREMENT_POLL: Duration = Duration::from_millis(300);

impl Driver<'_> {
    pub(super) fn begin_nodes(
        &mut self,
        planned: &PlannedRun,
        making: &mut Making,
        values: &Value,
    ) -> Result<(), Failed> {
        let experiment = &self.request.experiment;
        let files = experiment.files(values)?;
        let local: Vec<&str> = experiment.local_roles();
        if experiment.made_links().next().is_some() {
            making.wiring = Some(build_wiring(experiment, &local)?);
        }
        self.prepare_nodes(planned, making, &files, &local)?;
        self.prove_links(making)?;
        self.record_nodes(making)
    }

    /// Brings all nodes to their known state. The nodes are prepared concurrently, because booting takes long.
    fn prepare_nodes(
        &mut self,
        planned: &PlannedRun,
        making: &mut Making,
        files: &[RunFile],
        local: &[&str],
    ) -> Result<(), Failed> {
        let sites = self.nodes.iter().map(|node| Site {
            id: &planned.id,
            folder: &making.folder,
            namespace: making.wiring.as_ref().and_then(|wiring| {
                Some(wiring.namespace(local.iter().position(|name| *name == node.role())?))
            }),
            stop: self.stop,
        });
        let sites: Vec<Site<'_>> = sites.collect();
        let begun: Vec<_> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (node, site) in self.nodes.iter_mut().zip(sites) {
                threads.push(scope.spawn(move || node.begin(&site, files)));
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.filter_map(Result::ok).collect()
        });
        for notes in begun {
            making.record.notes.extend(notes?);
        }
        Ok(())
    }

    /// Waits for other measurements on the nodes, checks the nodes, and records facts about them.
    fn record_nodes(&mut self, making: &mut Making) -> Result<(), Failed> {
        let mut moments = Vec::new();
        let mut halting = BTreeMap::new();
        for node in &mut self.nodes {
            let role = node.role().to_owned();
            let waited = wait_for_measurement(&mut **node, self.observer, self.stop, self.time)?;
            making.began += waited;
            let (moment, ahead_ns, unsure_ns) = read_moment(&mut **node, &making.folder)?;
            enough_room(&role, &moment)?;
            moments.push((role.clone(), ahead_ns, unsure_ns));
            if let Some(why) = moment.halts.filter(|_| making.awake) {
                halting
                    .entry(why)
                    .or_insert_with(Vec::new)
                    .push(role.clone());
            }
            let facts = node.facts()?;
            if let Some(definition) = self.request.experiment.nodes.get(&role) {
                check_wants(&role, definition, &facts)?;
            }
            making
                .record
                .nodes
                .insert(role, self.request.folder.keep_facts(&facts)?);
        }
        for (why, roles) in halting {
            let roles = roles.join(", ");
            let note = format!("cores cannot be kept awake on {roles}, and halt when idle: {why}");
            self.note(making, note);
        }
        for (role, ahead_ns, unsure_ns) in moments {
            if ahead_ns.abs() > CLOCKS_DIFFER_NS + unsure_ns {
                let note = format!(
                    "the clock of node {role} is {:+.1} s from this machine's: times in its logs differ",
                    ahead_ns as f64 / 1e9
                );
                self.note(making, note);
            }
        }
        Ok(())
    }

    /// Adds a note to the record of the run, and to the state of the experiment unless that has the same note.
    pub(super) fn note(&mut self, making: &mut Making, note: String) {
        if !self.notes.contains(&note) && self.notes.len() < 20 {
            self.notes.push(note.clone());
        }
        making.record.notes.push(note);
    }
}

/// Makes the links between local nodes.
fn build_wiring(experiment: &Experiment, local: &[&str]) -> Result<Wiring, Failed> {
    let number = |role: &str| local.iter().position(|name| *name == role).unwrap_or(0);
    let mut cables = Vec::new();
    for link in experiment.made_links() {
        let [(near, near_interface), (far, far_interface)] = [
            end_of(&experiment.source, &link.between[0])?,
            end_of(&experiment.source, &link.between[1])?,
        ];
        cables.push([(number(near), near_interface), (number(far), far_interface)]);
    }
    Wiring::build(local.len(), &cables).map_err(|e| Failed::Run(e.to_string()))
}

/// Reads the properties of a node that change over time. Returns these properties, the time by which the node's clock
/// is ahead of this machine's clock, ns, and the maximum error of that time, ns.
fn read_moment(
    node: &mut dyn Node,
    folder: &Path,
) -> Result<(Moment, i128, i128), ExperimentError> {
    let asked = crate::agent::moment(folder);
    let moment = node.moment()?;
    let answered = crate::agent::moment(folder);
    let middle = i128::from(asked.time_ns) / 2 + i128::from(answered.time_ns) / 2;
    // The node read its clock at an unknown moment between the request and the reply, so the error is up to half of
    // that time.
    let unsure_ns = i128::from(answered.time_ns.saturating_sub(asked.time_ns)) / 2;
    let ahead_ns = i128::from(moment.time_ns) - middle;
    Ok((moment, ahead_ns, unsure_ns))
}

/// Waits until no other process measures on a node, because concurrent measurements invalidate each other. Returns the
/// waiting time.
fn wait_for_measurement(
    node: &mut dyn Node,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
    time: Time,
) -> Result<Duration, Failed> {
    let began = time.now();
    let mut told = false;
    while let Some(held) = node.moment()?.measuring {
        let role = node.role();
        let minutes = MEASURING_PATIENCE.as_secs() / 60;
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        if time.since(began) > MEASURING_PATIENCE {
            return Err(Failed::Run(format!(
                "another taut still measures on node {role} after {minutes} minutes ({held})"
            )));
        }
        if !told {
            observer.note(&format!(
                "another taut measures on node {role} ({held}): waiting for it to end, {minutes} minutes at most"
            ));
            told = true;
        }
        time.sleep(MEASUREMENT_POLL);
    }
    Ok(time.since(began))
}

/// Checks that a node has enough free space for a run.
pub(crate) fn enough_room(role: &str, moment: &Moment) -> Result<(), ExperimentError> {
    if moment.free_bytes >= LEAST_FREE_BYTES {
        return Ok(());
    }
    Err(ExperimentError::node(
        role,
        format!(
            "{} MiB are free where runs are, {} MiB are needed: free space there",
            moment.free_bytes >> 20,
            LEAST_FREE_BYTES >> 20
        ),
    ))
}

/// Refuses a node that has not booted the image, or does not have the facts, that the experiment requires.
pub(crate) fn check_wants(name: &str, role: &Role, facts: &Facts) -> Result<(), ExperimentError> {
    if let Some(boot) = &role.definition.boot {
        check_image(name, boot, facts)?;
    }
    for (fact, wanted) in &role.definition.wants {
        let wanted = wanted.get_ref();
        match wants::fact(facts, fact) {
            Some(found) if found == *wanted => {}
            Some(found) => {
                return Err(ExperimentError::node(
                    name,
                    format!("{fact} is `{found}`, and the experiment wants `{wanted}`"),
                ));
            }
            None => {
                return Err(ExperimentError::node(
                    name,
                    format!("it does not state {fact}, and the experiment wants `{wanted}`"),
                ));
            }
        }
    }
    Ok(())
}

impl Experiment {
    /// Returns the links that are real cables.
    pub(super) fn cables(&self) -> impl Iterator<Item = &Link> {
        let links = self.definition.link.iter();
        links.filter(|link| is_cable(link, &self.nodes))
    }

    /// Returns the links that taut makes for each run.
    pub(crate) fn made_links(&self) -> impl Iterator<Item = &Link> {
        let links = self.definition.link.iter();
        links.filter(|link| !is_cable(link, &self.nodes))
    }

    /// Returns the roles of nodes on this machine.
    fn local_roles(&self) -> Vec<&str> {
        let local = self
            .nodes
            .iter()
            .filter(|(_, role)| role.address == NodeAddress::Local);
        local.map(|(name, _)| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run::fake::{Came, Course, Trial, World};
    use crate::run::time::made_up::passed;
    use taut_results::Completion;

    const ONE: &str = r#"
title = "t"
[plan]
repetitions = 1
[[step]]
run = "measure"
"#;

    /// Makes the only run of the experiment, after `change` has changed the environment of the fake nodes.
    fn run(change: impl FnOnce(&mut World)) -> (Trial, Came) {
        let mut world = World::new(|_| Course::ends(10, 0));
        change(&mut world);
        let trial = Trial::new(ONE);
        let came = trial.run(world);
        (trial, came)
    }

    #[test]
    fn the_run_time_excludes_waiting_for_another_measurement() {
        let minutes = Duration::from_secs(300);
        let (trial, came) = run(|world| world.measuring_until = passed() + minutes);
        assert_eq!(came.state.completion, Completion::Finished);
        assert!(came.took >= minutes && came.took < minutes + Duration::from_secs(11));
        assert_eq!(trial.folder().index().unwrap()[0].seconds, 10.0);
        // The message is printed once.
        let told = "another taut measures on node local (process 7): waiting for it to end, 10 minutes at most";
        assert_eq!(came.told.notes, [told]);
    }

    #[test]
    fn a_run_fails_if_another_measurement_does_not_end() {
        let (trial, came) = run(|world| world.measuring_until = Duration::MAX);
        assert_eq!(came.state.completion, Completion::Incomplete);
        let most = MEASURING_PATIENCE + 2 * MEASUREMENT_POLL;
        assert!(came.took > MEASURING_PATIENCE && came.took < most);
        let why = "another taut still measures on node local after 10 minutes (process 7)";
        let failures = trial.folder().failures().unwrap();
        assert_eq!(failures[0].failure.as_deref(), Some(why));
    }

    #[test]
    fn waiting_for_another_measurement_can_be_interrupted() {
        let (trial, came) = run(|world| {
            world.measuring_until = Duration::MAX;
            world.ctrl_c_at = Some(passed() + Duration::from_secs(5));
        });
        assert_eq!(came.state.completion, Completion::Interrupted);
        assert!(came.took < Duration::from_secs(6), "{:?}", came.took);
        assert!(trial.folder().failures().unwrap().is_empty());
        assert_eq!(came.happened, ["begin v1-r1"]);
    }

    #[test]
    fn a_node_without_free_space_fails_the_run() {
        let (trial, came) = run(|world| world.free_bytes = 5 << 20);
        let why = "node local: 5 MiB are free where runs are, 64 MiB are needed: free space there";
        let failures = trial.folder().failures().unwrap();
        assert_eq!(failures[0].failure.as_deref(), Some(why));
        assert_eq!(came.happened, ["begin v1-r1", "collect v1-r1"]);
    }

    #[test]
    fn a_clock_difference_between_nodes_is_reported_in_a_note() {
        let (trial, came) = run(|world| world.clock_ahead_ns = 7_000_000_000);
        let note =
            "the clock of node local is +7.0 s from this machine's: times in its logs differ";
        assert_eq!(came.state.notes, [note]);
        assert_eq!(trial.folder().run("v1-r1").unwrap().notes, [note]);
        let (_, came) = run(|_| {});
        assert!(came.state.notes.is_empty(), "{:?}", came.state.notes);
    }
}
