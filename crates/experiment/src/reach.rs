//! Reachability check of an experiment's machines: each is contacted as at the start of a run, then released.

use crate::agent::Facts;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::node::address::NodeAddress;
use crate::node::{Node, Power, of_roles};
use crate::role::Role;
use crate::run::{check_wants, cluster, enough_room};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Timeout for contacting all machines together, including the copy of this program to them.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);

/// The result of contacting a node.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Reached {
    /// Role of the node.
    pub node: String,
    /// True if a run could begin on the node at the time of the check.
    pub ready: bool,
    /// Description of the node if it is ready; otherwise the reason and the remedy.
    pub text: String,
}

impl Experiment {
    /// Contacts all nodes on other machines concurrently: reserves each node, copies `program` to it, reads its free
    /// space, and releases it. Returns one result per node.
    pub fn reach(&self, program: &Path, stop: &AtomicBool) -> Vec<Reached> {
        if self.is_on_slurm() {
            return vec![reached("slurm", cluster::would_take(self))];
        }
        let far = self
            .nodes
            .iter()
            .filter(|(_, role)| role.address != NodeAddress::Local);
        let (late, begun) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let mut asked = Vec::new();
            let names: Vec<&String> = far.clone().map(|(name, _)| name).collect();
            let nodes = match of_roles(far, program) {
                Ok(nodes) => nodes,
                Err(e) => return vec![reached("local", Err(e))],
            };
            for (name, node) in names.into_iter().zip(nodes) {
                let (late, role) = (&late, &self.nodes[name]);
                asked.push((name, scope.spawn(move || ask(name, role, node, late))));
            }
            while asked.iter().any(|(_, thread)| !thread.is_finished()) {
                if stop.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                    late.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(TICK);
            }
            // All reservations are kept until all nodes have replied, so that a second role on the same machine is
            // refused, as it would be before the first run.
            let answers: Vec<_> = asked
                .into_iter()
                .map(|(name, thread)| (name, thread.join()))
                .collect();
            answers
                .iter()
                .map(|(name, answer)| match answer {
                    Ok(Ok((_, text))) => reached(name, Ok(text.clone())),
                    Ok(Err(_)) if late.load(Ordering::Relaxed) => reached(
                        name,
                        Err(ExperimentError::node(
                            name,
                            format!("no reply within {} s", PATIENCE.as_secs()),
                        )),
                    ),
                    Ok(Err(e)) => reached(name, Err(ExperimentError::Unknown(e.to_string()))),
                    Err(_) => reached(name, Err(ExperimentError::node(name, "asking it failed"))),
                })
                .collect()
        })
    }
}

fn reached(node: &str, answer: Result<String, ExperimentError>) -> Reached {
    Reached {
        node: node.to_owned(),
        ready: answer.is_ok(),
        text: answer.unwrap_or_else(|e| e.to_string()),
    }
}

/// Contacts a node. Returns the node and its description. The machine remains reserved until the returned node is
/// dropped.
fn ask(
    name: &str,
    role: &Role,
    mut node: Box<dyn Node>,
    stop: &AtomicBool,
) -> Result<(Box<dyn Node>, String), ExperimentError> {
    node.take(stop)?;
    let moment = node.moment()?;
    enough_room(name, &moment)?;
    let reset = role.definition.reset.as_deref();
    let mut power = String::new();
    if let Some(interface) = reset.and_then(|reset| Power::parse(reset).ok()?) {
        let state = interface.status();
        let state =
            state.map_err(|reason| ExperimentError::node(name, format!("its reset: {reason}")))?;
        power = format!(", {state}");
    }
    let facts = node.facts()?;
    check_wants(name, role, &facts)?;
    let Facts {
        host_name,
        system,
        architecture,
        ..
    } = facts;
    let text = format!(
        "node {name}: reachable: {host_name}, {system}, {architecture}, {:.1} GiB free{power}",
        moment.free_bytes as f64 / f64::from(1 << 30)
    );
    Ok((node, text))
}
