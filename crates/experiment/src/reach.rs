//! Reach of the machines of an experiment: asked as a run asks when it starts, and given back at once.

use crate::agent::Facts;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::node::address::NodeAddress;
use crate::node::{Node, of_role};
use crate::role::Role;
use crate::run::{cluster, enough_room};
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time that all machines together may take, the copy of this program included.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(20);

/// A node that was asked.
#[derive(Debug, Clone, Serialize)]
pub struct Reached {
    /// Role of the node.
    pub node: String,
    /// Whether a run could begin there now.
    pub ready: bool,
    /// Description of the node, or what is wrong and what to do.
    pub text: String,
}

impl Experiment {
    /// Reaches for every node that is on another machine, all at once: takes it, brings `program` there, looks at its
    /// free space, and leaves it. One line for each.
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
            for (name, role) in far {
                let late = &late;
                asked.push((name, scope.spawn(move || ask(name, role, program, late))));
            }
            while asked.iter().any(|(_, thread)| !thread.is_finished()) {
                if stop.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                    late.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(TICK);
            }
            // All are kept until all have answered: two roles may be on one machine.
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
                            format!("no answer within {} s", PATIENCE.as_secs()),
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

/// The node, which is taken as long as this is kept, and what it is.
fn ask(
    name: &str,
    role: &Role,
    program: &Path,
    stop: &AtomicBool,
) -> Result<(Box<dyn Node>, String), ExperimentError> {
    let mut node = of_role(name, role, program)?;
    node.take(stop)?;
    let moment = node.moment()?;
    enough_room(name, &moment)?;
    let Facts {
        host_name,
        system,
        architecture,
        ..
    } = node.facts()?;
    let text = format!(
        "node {name}: reachable: {host_name}, {system}, {architecture}, {:.1} GiB free",
        moment.free_bytes as f64 / f64::from(1 << 30)
    );
    Ok((node, text))
}
