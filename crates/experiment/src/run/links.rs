//! Tests the real cables of an experiment before a run.

use super::attempt::Making;
use super::commands::last_line;
use super::{Driver, Failed};
use crate::links::{Judged, LinkEndText, LinkReport, PATIENCE, judge, script, token};
use crate::role::end_of;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval between two checks whether a node has ended its link test.
const POLL: Duration = Duration::from_millis(5);
/// Time for a node to start and to end, in addition to the duration of the link test.
const GRACE: Duration = Duration::from_secs(10);
/// Exit code of taut if the machine lacks something that the command needs, such as a privilege.
const LACKS: i32 = 3;

impl Driver<'_> {
    /// Tests the cables of the experiment, and records them. A node that may not send frames gets a note instead.
    pub(super) fn prove_links(&mut self, making: &mut Making) -> Result<(), Failed> {
        let cables = self.cables()?;
        if cables.is_empty() {
            return Ok(());
        }
        making.deadline = self.time.now() + PATIENCE + GRACE;
        let token = token();
        let roles: BTreeSet<&str> = cables
            .iter()
            .flatten()
            .map(|end| end.node.as_str())
            .collect();
        let mut running = Vec::new();
        for role in roles {
            let ends = cables.iter().flatten().filter(|end| end.node == role);
            let interfaces: Vec<&str> = ends.map(|end| end.interface.as_str()).collect();
            let script = script(&token, role, &interfaces, PATIENCE.as_secs_f64());
            running.push((
                role,
                self.start(making, &format!("links-{role}"), role, &script)?,
            ));
        }
        let mut reports = BTreeMap::new();
        for (role, mut step) in running {
            let code = loop {
                match step.step.wait(POLL) {
                    Some(code) => break code,
                    None if self.stop.load(Ordering::Relaxed) => {
                        step.stop(making);
                        return Err(Failed::Stopped);
                    }
                    None => {}
                }
            };
            step.note_end(making, code);
            match report(making, role) {
                Some(report) => {
                    reports.insert(role.to_owned(), report);
                }
                None if code == LACKS => {
                    let why = last_line(making, &format!("links-{role}"));
                    let note = format!("the links of node {role} are not proven: {why}");
                    self.note(making, note);
                }
                None => {
                    let why = last_line(making, &format!("links-{role}"));
                    return Err(Failed::Run(format!(
                        "links of node {role} (code {code}): {why}"
                    )));
                }
            }
        }
        self.note_links(making, &cables, &reports)
    }

    /// Records the links that passed the test; fails the run if a link differs from the experiment file.
    fn note_links(
        &mut self,
        making: &mut Making,
        cables: &[[LinkEndText; 2]],
        reports: &BTreeMap<String, LinkReport>,
    ) -> Result<(), Failed> {
        let reported =
            |link: &&[LinkEndText; 2]| link.iter().all(|end| reports.contains_key(&end.node));
        let known: Vec<[LinkEndText; 2]> = cables.iter().filter(reported).cloned().collect();
        let Judged { proven, faults } = judge(&known, reports);
        if !faults.is_empty() {
            return Err(Failed::Run(faults.join(". ")));
        }
        for link in proven.iter().filter(|link| !link.direct) {
            let [near, far] = &link.between;
            self.note(making, format!("link {near}-{far} goes through a switch"));
        }
        making.record.links = proven;
        Ok(())
    }

    /// Returns the links of the experiment file that are real cables.
    fn cables(&self) -> Result<Vec<[LinkEndText; 2]>, Failed> {
        let experiment = &self.request.experiment;
        let mut cables = Vec::new();
        for link in experiment.cables() {
            let mut ends = Vec::new();
            for end in &link.between {
                let (node, interface) = end_of(&experiment.source, end)?;
                ends.push(LinkEndText {
                    node: node.to_owned(),
                    interface: interface.to_owned(),
                });
            }
            if let Ok(ends) = ends.try_into() {
                cables.push(ends);
            }
        }
        Ok(cables)
    }
}

fn report(making: &Making, role: &str) -> Option<LinkReport> {
    let path = making.folder.join("logs").join(format!("links-{role}.out"));
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}
