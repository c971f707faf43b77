//! Functions made from the stages of a chain, with their replicas.

use super::stage::{ChainError, Place, Stage};
use crate::replicas::Replicas;
use taut_function::{Function, Member, SettingsError, Shared, Watcher};

impl Stage {
    /// Checks that the function exists and accepts its settings when it runs in a worker.
    ///
    /// # Errors
    /// The error states the fault of the function's name or settings, and the remedy.
    pub fn check(&self) -> Result<(), ChainError> {
        let built = self.catalog.build(&self.name, self.settings.clone());
        let checked = built.map_err(|e| e.to_string()).and_then(|made| {
            let replicas = self.replicas.as_ref();
            replicas.map_or(Ok(()), |_| Replicas::check(&*made))
        });
        checked.map_err(|reason| ChainError::Function {
            function: self.name.clone(),
            reason,
        })
    }

    /// Checks that the function can have its replicas (several instances) in this place.
    pub(super) fn check_replicas(&self, place: Place) -> Result<(), String> {
        match (&self.replicas, place) {
            (None, _) => Ok(()),
            (Some(_), Place::Kernel) => Err(
                "replicas: supported in user space only: leave out replicas, or place = \"kernel\""
                    .to_string(),
            ),
            (Some(_), Place::User) => self.check().map_err(|e| match e {
                ChainError::Function { reason, .. } => reason,
                other => other.to_string(),
            }),
        }
    }

    /// Makes the function only to query its properties; returns None if its settings are wrong.
    pub(super) fn made(&self) -> Option<Box<dyn Function>> {
        let made = self.catalog.build(&self.name, self.settings.clone()).ok()?;
        Some(match &self.replicas {
            None => made,
            Some(replication) => Box::new(Replicas::new(self, replication)),
        })
    }

    /// Makes the function, ready to run on the calling thread's core.
    fn build(&self, shared: &Shared, making: &Making<'_>) -> Result<Box<dyn Function>, ChainError> {
        let wrong = |e: SettingsError| ChainError::Function {
            function: self.name.clone(),
            reason: e.to_string(),
        };
        if let Some(replication) = &self.replicas {
            let mut replicas = Replicas::new(self, replication);
            replicas.prepare()?;
            return Ok(Box::new(replicas));
        }
        let built = self.catalog.build(&self.name, self.settings.clone());
        let mut function = built.map_err(wrong)?;
        function.join(making.member, shared).map_err(wrong)?;
        if making.stamped.contains(&true) {
            function.stamped_ports(making.stamped);
        }
        match making.watcher {
            Some(watcher) => function.prepare_watched(watcher)?,
            None => function.prepare()?,
        }
        Ok(function)
    }
}

/// Makes the functions of the given stages, ready to run on the calling thread's core. `shared` has, by stage, the
/// state that the functions of several workers share. Stages with an entry in `kept` are skipped, because their
/// functions exist already.
pub(crate) fn build(
    stages: &[Stage],
    kept: &[bool],
    making: &Making<'_>,
) -> Result<Vec<Option<Box<dyn Function>>>, ChainError> {
    let each = stages.iter().enumerate().map(|(at, stage)| {
        if kept.get(at) == Some(&true) {
            return Ok(None);
        }
        let shared = making.shared.get(at).cloned().unwrap_or_default();
        stage.build(&shared, making).map(Some)
    });
    each.collect()
}

/// The context in which functions are made for a worker.
#[derive(Clone, Copy, Default)]
pub(crate) struct Making<'a> {
    /// Index of the worker in its chain, and the number of workers.
    pub(crate) member: Member,
    /// State that the functions of all workers share, by index of the stage.
    pub(crate) shared: &'a [Shared],
    /// For each port, true if the port timestamps packets on arrival; empty if unknown.
    pub(crate) stamped: &'a [bool],
    /// Watcher that receives the progress of a slow construction, and can cancel it; None if no caller watches.
    pub(crate) watcher: Option<&'a Watcher<'a>>,
}
