//! The requests and replies of an inspection's control socket.

use super::events::Writer;
use super::outcome::{Counters, drops};
use super::rules::{Costs, Read, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taut_function::control_socket::{Decides, Loading, answer};
use taut_function::{Count, CountKind, Counted};

/// A request, such as `{"op": "reload"}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Reads all rule files again and puts the new rules in force.
    Reload {},
    /// Returns the rules with the highest cost.
    Top {
        /// The maximum number of rules in the reply.
        most: usize,
    },
    /// Returns the counters of the inspection.
    Status {},
}

/// The reply to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// True if the request succeeded.
    pub ok: bool,
    /// The reason why the request failed; none if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The result of reading the rules in force; none in a reply to [`Request::Top`] or after an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Read>,
    /// The rules with the highest cost, the highest first; none unless requested by [`Request::Top`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<Costs>>,
    /// The number of packets with each outcome; none unless requested by [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeMap<String, u64>>,
    /// The counters other than outcomes, by name; none unless requested by [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<BTreeMap<String, u64>>,
}

/// The control plane of the inspection, which all workers share.
pub(super) struct Deciding {
    pub rules: Arc<Rules>,
    pub events: Option<Writer>,
    pub counters: Mutex<Vec<Arc<Counters>>>,
}

/// The time limit for all workers to switch to new rules.
const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5000 });

/// Numbers of packets or events, by the name of their counter.
type Counts = BTreeMap<String, u64>;

impl Deciding {
    /// Returns the numbers of packets by outcome and the numbers of other events, summed over all workers.
    fn counted(&self) -> (Counts, Counts) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut outcomes, mut notes) = (Counts::new(), Counts::new());
        for counters in counters.iter() {
            for (name, count) in counters.outcomes() {
                *outcomes.entry(name.to_string()).or_insert(0) += count;
            }
            for (name, count) in counters.notes() {
                *notes.entry(name.to_string()).or_insert(0) += count;
            }
        }
        let lost = self.events.as_ref().map_or(0, Writer::lost);
        notes.insert("events_lost".to_string(), lost);
        let left_out = self.events.as_ref().map_or(0, Writer::left_out);
        notes.insert("alerts_left_out".to_string(), left_out);
        (outcomes, notes)
    }

    fn status(&self) -> Answer {
        let (outcomes, notes) = self.counted();
        Answer {
            ok: true,
            rules: Some(self.rules.read()),
            outcomes: Some(outcomes),
            notes: Some(notes),
            ..Answer::default()
        }
    }
}

impl Counted for Deciding {
    fn counts(&self) -> Vec<Count> {
        let count = |kind, name, about, count| Count {
            function: "ips".to_string(),
            kind,
            name,
            about,
            count,
        };
        let (outcomes, notes) = self.counted();
        let (hits, others) = self.rules.hits();
        let plain = |kind| move |(name, n)| count(kind, name, String::new(), n);
        let rules = hits.into_iter().map(|(about, n)| {
            let name = format!("{}:{}", about.group, about.id);
            count(CountKind::Rule, name, about.message, n)
        });
        let others = (others > 0).then(|| ("others".to_string(), others));
        let outcomes = outcomes.into_iter().map(|(name, n)| {
            let kind = CountKind::of_outcome(drops(&name));
            count(kind, name, String::new(), n)
        });
        let notes = notes.into_iter().map(plain(CountKind::Event));
        let others = others.into_iter().map(plain(CountKind::Rule));
        outcomes.chain(notes).chain(rules).chain(others).collect()
    }
}

impl Decides for Deciding {
    fn answer(
        &self,
        line: &[u8],
        _: &mut dyn std::io::Read,
        output: &mut dyn std::io::Write,
        _: &Loading,
    ) -> std::io::Result<()> {
        answer(line, output, |request| match request {
            Request::Status {} => Ok(self.status()),
            Request::Top { most } => Ok(Answer {
                ok: true,
                top: Some(self.rules.top(most)),
                ..Answer::default()
            }),
            Request::Reload {} => match self.rules.reload() {
                Ok(read) => Ok(Answer {
                    ok: true,
                    rules: Some(read),
                    ..Answer::default()
                }),
                Err(wrong) => Err(format!("the rules stay as they were: {wrong}")),
            },
        })
    }

    /// Waits until the workers use the new rules. A timeout is no error: a worker without packets is not called, and
    /// needs no rules until it gets packets.
    fn settle(&self) -> Result<(), String> {
        self.rules.settle(PATIENCE);
        Ok(())
    }
}
