//! Groups, which distribute packets over buckets. (OpenFlow 1.3.5, section 5.6.)

use super::action::{Action, ActionsError, MOST_ACTIONS, PortNumber, To, steps};
use super::refusal::Refused;
use serde::Deserialize;

pub(super) const MOST_GROUPS: usize = 4096;
pub(super) const MOST_BUCKETS: usize = 256;

/// The ways in which a group distributes packets. (OpenFlow 1.3.5, section 5.6.1.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GroupKind {
    /// Every bucket gets a copy of the packet.
    All,
    /// Each flow is assigned to one bucket, which gets its packets.
    Select,
    /// The group has a single bucket, which gets all packets.
    Indirect,
    /// All packets go to the first bucket with a port that is up.
    FastFailover,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bucket {
    pub weight: u16,
    /// The watched port: the bucket gets packets only while the link of this port is up. None for a bucket without a
    /// watched port.
    pub watch: Option<PortNumber>,
    pub actions: Vec<Action>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub id: u32,
    pub kind: GroupKind,
    pub buckets: Vec<Bucket>,
}

impl Group {
    pub fn check(&self) -> Result<(), Refused> {
        if self.buckets.len() > MOST_BUCKETS {
            return Err(Refused::TooMany);
        }
        let actions = self.buckets.iter().map(|bucket| bucket.actions.len());
        if actions.sum::<usize>() > MOST_ACTIONS {
            return Err(ActionsError::TooMany.into());
        }
        if self.kind == GroupKind::Indirect && self.buckets.len() != 1 {
            return Err(Refused::NotOneBucket);
        }
        for bucket in &self.buckets {
            let leads_on = |action: &Action| {
                matches!(
                    action,
                    Action::Goto(_) | Action::Meter(_) | Action::Output(To::Normal, _)
                )
            };
            let only_sends = |action: &Action| {
                let is_output = matches!(action, Action::Output(..) | Action::Group(_));
                is_output || matches!(action, Action::Queue(_))
            };
            let is_chained = |action: &Action| matches!(action, Action::Group(_));
            if bucket.actions.iter().any(is_chained) {
                return Err(Refused::Chained);
            }
            if bucket.actions.iter().any(leads_on)
                || self.kind == GroupKind::All && !bucket.actions.iter().all(only_sends)
            {
                return Err(Refused::BadBucket);
            }
            if self.kind == GroupKind::Select && bucket.weight == 0 {
                return Err(Refused::NoWeight);
            }
            if self.kind == GroupKind::FastFailover && bucket.watch.is_none() {
                return Err(Refused::WatchesNothing);
            }
            steps(&bucket.actions, 0)?;
        }
        Ok(())
    }
}
