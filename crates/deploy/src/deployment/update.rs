//! Replaces the functions and workers of a running chain, while packets pass.

use super::{Deployment, Heard, Running, cores, name_of};
use crate::status::Condition;
use crate::{DeployError, Segment, segments, split};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_engine::{Chain, Order, Stage};
use taut_measure::quantity::counted;

/// Timeout for a worker to replace its functions: packets that the old functions have buffered may take a second to
/// leave.
const UPDATE_DEADLINE: Duration = Duration::from_secs(10);

impl Deployment {
    /// Replaces the functions of the chain by those of another file, segment by segment, while packets pass. If one
    /// segment fails, all keep the old functions. If the other file has more workers, the additional workers start
    /// first.
    pub(super) fn update(&mut self, chain: &Chain, file: &Path) -> Result<(), DeployError> {
        self.check_update(chain, file)?;
        // The number of segments is checked first, because the existing links connect exactly the current number of
        // segments.
        let (count, is) = (split(chain)?.len(), self.segments.len());
        if count != is {
            return Err(DeployError::Chain(format!(
                "{}: {} instead of {is}: an update keeps their number; take the chain down and up again, or \
                 use placement = \"compact\"",
                file.display(),
                counted(count, "segment")
            )));
        }
        let made = segments(chain, &self.laid.wires, &cores(chain)?)?;
        let functions = |running: &Running| running.segment.chain.functions.clone();
        let before: Vec<Vec<Stage>> = self.segments.iter().map(functions).collect();
        let changed: Vec<usize> = (0..made.len())
            .filter(|at| made[*at].chain.functions != before[*at])
            .collect();
        for at in &changed {
            let is = &self.segments[*at];
            let refused = |reason: &str| {
                Err(DeployError::Segment {
                    segment: is.segment.name.clone(),
                    reason: reason.to_string(),
                })
            };
            if is.segment.chain.place != made[*at].chain.place {
                return refused(
                    "it would go from user space to the kernel or back; take the chain down and up again, or give the function its \
                     present place (place = \"user\" or \"kernel\")",
                );
            }
            if is.condition != Condition::Up {
                return refused("its process is not running; try again");
            }
        }
        // Only a chain of one segment has several workers.
        for _ in self.chain.workers..chain.workers {
            self.add_worker()?;
        }
        for (done, at) in changed.iter().enumerate() {
            if let Err(reason) = self.replace(*at, &made[*at].chain.functions) {
                for back in &changed[..done] {
                    // An error is ignored: the worker has run these functions before, so it can run them again.
                    let _ = self.replace(*back, &before[*back]);
                }
                return Err(DeployError::Segment {
                    segment: self.segments[*at].segment.name.clone(),
                    reason,
                });
            }
        }
        for at in changed {
            self.rename(at, &made[at])?;
        }
        self.chain = chain.clone();
        self.file = file.to_path_buf();
        self.write_state()
    }

    /// Checks that the new chain file differs from the running chain only in its functions.
    fn check_update(&self, chain: &Chain, file: &Path) -> Result<(), DeployError> {
        let texts = |chain: &Chain| -> Vec<String> {
            chain
                .ports
                .iter()
                .map(|port| port.text().to_string())
                .collect()
        };
        let is = &self.chain;
        let differs = [
            ("name", name_of(chain, file)? != self.name),
            ("placement", chain.placement != is.placement),
            ("ports", texts(chain) != texts(is)),
            ("flush", chain.flush != is.flush),
            ("queue", chain.queue != is.queue),
            ("wait", chain.wait != is.wait),
            ("burst", chain.burst != is.burst),
            ("core", chain.core != is.core),
            (
                "workers",
                chain.workers < is.workers || (chain.workers > is.workers && !is.has_room()),
            ),
            ("cores", chain.cores != is.cores),
            ("place", chain.place != is.place),
            ("classifier", chain.classification != is.classification),
        ];
        match differs.into_iter().find(|(_, differs)| *differs) {
            None => Ok(()),
            Some((what, _)) => {
                let differs = match what.ends_with('s') {
                    true => "differ from those",
                    false => "differs from that",
                };
                Err(DeployError::Chain(format!(
                    "{}: its {what} {differs} of the running chain \"{}\": an update changes functions, and adds \
                    workers if cores are free; take the chain down and up again",
                    file.display(),
                    self.name
                )))
            }
        }
    }

    /// Makes a worker, or the programs of a segment in the kernel, replace the functions; returns when the replacement
    /// is complete.
    fn replace(&mut self, at: usize, functions: &[Stage]) -> Result<(), String> {
        // The places were set when the chain was split.
        let here = |stage: &Stage| Stage {
            place: None,
            ..stage.clone()
        };
        let functions = functions.iter().map(here).collect();
        self.order(
            at,
            Order {
                functions: Some(functions),
                ..Order::default()
            },
        )
    }

    /// Adds a worker to the only segment.
    fn add_worker(&mut self) -> Result<(), DeployError> {
        let order = Order {
            add_worker: true,
            ..Order::default()
        };
        self.order(0, order)
            .map_err(|reason| DeployError::Segment {
                segment: self.segments[0].segment.name.clone(),
                reason,
            })?;
        self.chain.workers += 1;
        self.segments[0].segment.chain.workers += 1;
        let same = self.segments[0].segment.clone();
        self.rename(0, &same)?;
        self.write_state()
    }

    /// Sends a command to the process of a segment; returns when the command has been carried out.
    fn order(&mut self, at: usize, order: Order) -> Result<(), String> {
        let running = &self.segments[at];
        let (process, worker) = (running.process, running.worker);
        let order = Order { worker, ..order };
        let gone = || "its process exited during the update".to_string();
        let child = self.processes[process].running.as_mut().ok_or_else(gone)?;
        child.order(&order).map_err(|_| gone())?;
        self.answer = None;
        let deadline = Instant::now() + UPDATE_DEADLINE;
        loop {
            if let Some(answer) = self.answer.take() {
                return answer;
            }
            if self.segments[at].condition != Condition::Up {
                return Err(gone());
            }
            match self
                .heard
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            {
                Ok(Heard::Word(word)) => {
                    self.hear(word);
                }
                Ok(other) => self.later.push_back(other),
                Err(_) => return Err(format!("no reply within {UPDATE_DEADLINE:?}")),
            }
        }
    }

    /// Updates the name of a segment, and the chain file with which its process is restarted.
    fn rename(&mut self, at: usize, now: &Segment) -> Result<(), DeployError> {
        let running = &mut self.segments[at];
        running.segment.name.clone_from(&now.name);
        running
            .segment
            .chain
            .functions
            .clone_from(&now.chain.functions);
        let file = self.folder.path().join(format!("{}.toml", now.name));
        fs::write(&file, running.segment.text())
            .map_err(|e| DeployError::system(format!("cannot write {}", file.display()), e))?;
        let known = &mut self.processes[running.process].launch.files[running.worker];
        if *known != file {
            let _ = fs::remove_file(&*known);
            *known = file;
        }
        Ok(())
    }
}
