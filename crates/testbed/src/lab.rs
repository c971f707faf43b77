//! The laboratory: the requests of users that change its calendar and its queue. Each request is one transaction.

use crate::api::{
    self, ExtendRequest, Node, NodeState, Progress, ReserveRequest, SlurmJob, State, SubmitRequest,
};
use crate::calendar::{Calendar, Occupied, Reservation, Span};
use crate::error::LabError;
use crate::file::{LabFile, Name, Slurm};
use crate::process::Processes;
use crate::queue::{Waiting, plan};
use crate::store::{Ending, Job, Rows, Store, make_folder};
use crate::submission::{Submission, check};
use crate::time::{Seconds, now, parse, text};
use crate::token::TokenHash;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use taut_settings::suggestion;
use taut_sys::Locked;

/// Maximum number of reservations that are current or in the future.
const MOST_RESERVATIONS: usize = 1000;
/// Maximum number of waiting experiments.
const MOST_WAITING: u64 = 500;
/// Maximum number of ended experiments that the list of experiments contains.
const LISTED: usize = 200;
/// Maximum time by which the begin of a new reservation may be in the past, s: clocks differ, and requests take time.
const LATE: Seconds = 60;
/// Remaining time that is assumed for a running experiment that has exceeded its maximum duration, s.
const OVERTIME: Seconds = 60;

/// The user who sent a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking<'a> {
    /// Name of the user.
    pub user: &'a str,
    /// True if the user may change reservations and experiments of other users.
    pub admin: bool,
}

impl Asking<'_> {
    /// Checks that the user may change a reservation or experiment of the user `owner`; `what` names the reservation or
    /// experiment in the error.
    fn may_change(self, what: &str, owner: &str) -> Result<(), LabError> {
        match self.admin || self.user == owner {
            true => Ok(()),
            false => Err(LabError::Forbidden(format!("{what} belongs to {owner}"))),
        }
    }
}

/// A laboratory: its settings, its database, and the processes of its experiments.
pub struct Lab {
    pub(crate) file: LabFile,
    pub(crate) store: Store,
    pub(crate) processes: Processes,
    /// Flag and condition variable that wake the thread of the schedule when due work may exist.
    wake: (Mutex<bool>, Condvar),
    _alone: Locked,
}

impl Lab {
    /// Opens the folder of a laboratory. `program` is the path of taut, which runs the experiments.
    ///
    /// # Errors
    /// Another service uses the folder, or the folder cannot be read or written.
    pub fn open(file: LabFile, program: &Path) -> Result<Self, LabError> {
        make_folder(&file.folder)?;
        let folder = std::fs::canonicalize(&file.folder).map_err(LabError::io(&file.folder))?;
        let opened = File::open(&folder).map_err(LabError::io(&folder))?;
        let alone = Locked::exclusive(opened).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => LabError::Unreadable {
                path: folder.clone(),
                reason: "another taut lab serve uses this folder: end that first".to_owned(),
            },
            _ => LabError::io(&folder)(e),
        })?;
        Ok(Self {
            store: Store::open(&folder)?,
            processes: Processes::new(&folder, program),
            file,
            wake: Default::default(),
            _alone: alone,
        })
    }

    /// Returns the user with this token.
    ///
    /// # Errors
    /// No user has this token.
    pub fn user_of(&self, token: &str) -> Result<Asking<'_>, LabError> {
        let hash = TokenHash::of(token);
        let mut users = self.file.users.iter();
        let found = users.find(|(_, user)| user.token == hash);
        let (name, user) = found.ok_or(LabError::Token)?;
        Ok(Asking {
            user: name.as_str(),
            admin: user.admin,
        })
    }

    /// Makes the schedule's thread check immediately for due work.
    pub(crate) fn wake(&self) {
        let (is_set, changed) = &self.wake;
        *is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Waits until [`Self::wake`] is called, for at most the time `most`.
    pub(crate) fn wait(&self, most: Duration) {
        let (is_set, changed) = &self.wake;
        let set = is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = changed.wait_timeout_while(set, most, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Returns the nodes of the laboratory, each with its current user.
    pub(crate) fn nodes(&self) -> Result<Vec<Node>, LabError> {
        if let Some(slurm) = &self.file.slurm {
            return slurm.nodes();
        }
        let calendar = self.store.read(|rows| calendar(rows, now()))?;
        let at = Span {
            from: now(),
            until: now() + 1,
        };
        let nodes = self.file.nodes.iter().map(|(name, node)| {
            let is_here = |nodes: &BTreeSet<String>| nodes.contains(name.as_str());
            let mut running = calendar.running.iter();
            let running = running.find(|it| is_here(&it.nodes));
            let mut reserved = calendar.reservations.iter();
            let reserved = reserved.find(|it| is_here(&it.nodes) && it.span.meets(at));
            let (state, holder) = match (running, reserved) {
                (Some(it), _) => (NodeState::Running, Some((&it.user, it.span))),
                (None, Some(it)) => (NodeState::Reserved, Some((&it.user, it.span))),
                (None, None) => (NodeState::Free, None),
            };
            Node {
                name: name.to_string(),
                at: node.at.as_str().to_owned(),
                cores: node.cores,
                properties: properties(&node.properties),
                state,
                user: holder.map(|(user, _)| user.clone()),
                until: holder.map(|(_, span)| text(span.until)),
            }
        });
        Ok(nodes.collect())
    }

    /// Returns the jobs of the Slurm cluster; none if Slurm does not manage the queue.
    pub(crate) fn jobs(&self) -> Result<Vec<SlurmJob>, LabError> {
        self.file.slurm.as_ref().map_or(Ok(Vec::new()), Slurm::jobs)
    }

    /// Returns all reservations that have not ended.
    pub(crate) fn reservations(&self) -> Result<Vec<api::Reservation>, LabError> {
        if let Some(slurm) = &self.file.slurm {
            return slurm.reservations();
        }
        let reservations = self.store.read(|rows| rows.reservations(now()))?;
        Ok(reservations.iter().map(shown).collect())
    }

    /// Reserves the requested nodes for the user.
    pub(crate) fn reserve(
        &self,
        asking: Asking<'_>,
        wish: &ReserveRequest,
    ) -> Result<api::Reservation, LabError> {
        if self.file.slurm.is_none() {
            self.check_nodes(&wish.nodes)?;
        }
        let now = now();
        let from = wish.from.as_deref().map(time).transpose()?.unwrap_or(now);
        if from + LATE < now {
            let from = text(from);
            return Err(LabError::Request(format!(
                "from {from}: this is in the past"
            )));
        }
        let until = end(wish.until.as_deref(), wish.seconds, from)?;
        let span = Span { from, until };
        self.check_span(span, now)?;
        if let Some(slurm) = &self.file.slurm {
            return slurm.reserve(asking.user, &names(&wish.nodes)?, span);
        }
        let id = self.store.change(|rows| {
            let calendar = calendar(rows, now)?;
            if calendar.reservations.len() >= MOST_RESERVATIONS {
                return Err(LabError::TooMany(format!(
                    "there are {MOST_RESERVATIONS} reservations, and no more are allowed: release some"
                )));
            }
            if let Some(conflict) = calendar.conflict(&wish.nodes, span, None) {
                return Err(LabError::Conflict(conflict.to_string()));
            }
            rows.add_reservation(asking.user, &wish.nodes, span)
        })?;
        self.wake();
        Ok(shown(&Reservation {
            id,
            user: asking.user.to_owned(),
            nodes: wish.nodes.clone(),
            span,
        }))
    }

    /// Changes the end of a reservation of the user.
    pub(crate) fn extend(
        &self,
        asking: Asking<'_>,
        id: &str,
        wish: &ExtendRequest,
    ) -> Result<api::Reservation, LabError> {
        if let Some(slurm) = &self.file.slurm {
            let one = owned(slurm, asking, id)?;
            let until = end(wish.until.as_deref(), wish.seconds, time(&one.until)?)?;
            let span = Span {
                from: time(&one.from)?,
                until,
            };
            self.check_span(span, now())?;
            slurm.extend(&one.id, until)?;
            let until = text(until);
            return Ok(api::Reservation { until, ..one });
        }
        let (id, now) = (number(id)?, now());
        let changed = self.store.change(|rows| {
            let calendar = calendar(rows, now)?;
            let mut one = one_of(&calendar, id)?.clone();
            asking.may_change(&format!("reservation {id}"), &one.user)?;
            one.span.until = end(wish.until.as_deref(), wish.seconds, one.span.until)?;
            if one.span.until <= now {
                return Err(LabError::Request(format!(
                    "until {}: this is in the past; release the reservation instead",
                    text(one.span.until)
                )));
            }
            self.check_span(one.span, now)?;
            if let Some(conflict) = calendar.conflict(&one.nodes, one.span, Some(id)) {
                return Err(LabError::Conflict(conflict.to_string()));
            }
            rows.set_end(id, one.span.until)?;
            Ok(one)
        })?;
        self.wake();
        Ok(shown(&changed))
    }

    /// Ends a reservation immediately. Experiments that wait for the reservation then wait for free nodes instead.
    pub(crate) fn release(
        &self,
        asking: Asking<'_>,
        id: &str,
    ) -> Result<api::Reservation, LabError> {
        if let Some(slurm) = &self.file.slurm {
            let one = owned(slurm, asking, id)?;
            return slurm.release(&one.id).map(|()| one);
        }
        let (id, now) = (number(id)?, now());
        let released = self.store.change(|rows| {
            let calendar = calendar(rows, now)?;
            let one = one_of(&calendar, id)?.clone();
            asking.may_change(&format!("reservation {id}"), &one.user)?;
            let mut running = calendar.running.iter();
            if let Some(it) = running.find(|it| it.reservation == Some(id)) {
                let experiment = it.experiment;
                return Err(LabError::Conflict(format!(
                    "experiment {experiment} runs in reservation {id}: cancel it first, or wait for its end"
                )));
            }
            rows.set_end(id, now)?;
            for mut job in rows.jobs(&[State::Waiting])? {
                if job.reservation == Some(id) {
                    job.reservation = None;
                    rows.update_job(&job)?;
                }
            }
            Ok(one)
        })?;
        self.wake();
        Ok(shown(&released))
    }

    /// Puts an experiment into the queue.
    pub(crate) fn submit(
        &self,
        asking: Asking<'_>,
        wish: &SubmitRequest,
    ) -> Result<api::Experiment, LabError> {
        let Submission {
            title,
            nodes,
            longest,
            files,
        } = check(wish, &self.file)?;
        let now = now();
        let id = self.store.change(|rows| {
            if rows.waiting()? >= MOST_WAITING {
                return Err(LabError::TooMany(format!(
                    "{MOST_WAITING} experiments wait, and no more are allowed: try again when some have run"
                )));
            }
            let calendar = calendar(rows, now)?;
            let reservation = self.reservation_for(asking, wish, &nodes, &calendar, now)?;
            let job = Job {
                id: 0,
                user: asking.user.to_owned(),
                name: wish.name.clone(),
                title: title.clone(),
                nodes: nodes.clone(),
                reservation,
                longest,
                changes: wish.into(),
                state: State::Waiting,
                reason: None,
                submitted: now,
                started: None,
                ended: None,
                ending: None,
                starts: 0,
            };
            rows.add_job(&job, &files)
        })?;
        self.wake();
        self.experiment(id)
    }

    /// Returns the number of the reservation in which a submitted experiment is to run.
    fn reservation_for(
        &self,
        asking: Asking<'_>,
        wish: &SubmitRequest,
        nodes: &BTreeSet<String>,
        calendar: &Calendar,
        now: Seconds,
    ) -> Result<Option<u64>, LabError> {
        let Some(id) = wish.reservation else {
            let current = calendar.reservation_of(asking.user, nodes, now);
            return Ok(current.map(|it| it.id));
        };
        if self.file.slurm.is_some() {
            let reason = "reservation: in a cluster, Slurm gives an experiment its nodes";
            return Err(LabError::Request(reason.to_owned()));
        }
        let one = one_of(calendar, id)?;
        if one.user != asking.user {
            let owner = &one.user;
            let reason = format!("reservation {id} belongs to {owner}");
            return Err(LabError::Forbidden(reason));
        }
        match nodes.difference(&one.nodes).next() {
            None => Ok(Some(id)),
            Some(node) => Err(LabError::Request(format!(
                "the experiment uses {node}, which reservation {id} does not have"
            ))),
        }
    }

    /// Returns the experiments that wait or run, and the last ones that have ended, in the order of submission.
    pub(crate) fn experiments(&self) -> Result<Vec<api::Experiment>, LabError> {
        let (calendar, active, ended) = self.store.read(|rows| {
            let active = rows.jobs(&[State::Waiting, State::Running])?;
            Ok((calendar(rows, now())?, active, rows.ended_jobs(LISTED)?))
        })?;
        let expected = expected(&active, &calendar, now());
        let mut all: Vec<Job> = ended.into_iter().chain(active).collect();
        all.sort_by_key(|job| job.id);
        let all = all.iter();
        Ok(all.map(|job| self.seen(job, &expected)).collect())
    }

    /// Returns the experiment with the number `id`.
    pub(crate) fn experiment(&self, id: u64) -> Result<api::Experiment, LabError> {
        let (calendar, waiting, job) = self.store.read(|rows| {
            let job = rows.job(id)?.ok_or_else(|| no_experiment(id))?;
            Ok((calendar(rows, now())?, rows.jobs(&[State::Waiting])?, job))
        })?;
        Ok(self.seen(&job, &expected(&waiting, &calendar, now())))
    }

    /// Cancels an experiment: a waiting experiment does not start, a running experiment is ended.
    pub(crate) fn cancel(&self, asking: Asking<'_>, id: u64) -> Result<api::Experiment, LabError> {
        self.store.change(|rows| {
            let mut job = rows.job(id)?.ok_or_else(|| no_experiment(id))?;
            asking.may_change(&format!("experiment {id}"), &job.user)?;
            match job.state {
                State::Waiting => {
                    job.state = State::Cancelled;
                    job.reason = Some(format!("cancelled by {}", asking.user));
                    job.ended = Some(now());
                }
                State::Running => {
                    job.ending = Some(Ending::Cancelled);
                    job.reason = Some(format!("cancelled by {}", asking.user));
                }
                state => {
                    let reason = format!("experiment {id} is {state}: nothing to cancel");
                    return Err(LabError::Conflict(reason));
                }
            }
            rows.update_job(&job)
        })?;
        self.wake();
        self.experiment(id)
    }

    /// Puts an experiment with missing runs into the queue again; it continues with these runs.
    pub(crate) fn retry(&self, asking: Asking<'_>, id: u64) -> Result<api::Experiment, LabError> {
        self.store.change(|rows| {
            let mut job = rows.job(id)?.ok_or_else(|| no_experiment(id))?;
            asking.may_change(&format!("experiment {id}"), &job.user)?;
            if !matches!(job.state, State::Failed | State::Cancelled) {
                let state = job.state;
                let reason = format!("experiment {id} is {state}: nothing to retry");
                return Err(LabError::Conflict(reason));
            }
            if let Some(node) = job.nodes.iter().find(|node| !self.has_node(node)) {
                let reason = format!("the laboratory has no node {node} any more");
                return Err(LabError::Conflict(reason));
            }
            let calendar = calendar(rows, now())?;
            let reservation = calendar.reservation_of(&job.user, &job.nodes, now());
            job.reservation = reservation.map(|it| it.id);
            (job.state, job.reason) = (State::Waiting, None);
            (job.ended, job.ending, job.starts) = (None, None, 0);
            rows.update_job(&job)
        })?;
        self.wake();
        self.experiment(id)
    }

    fn has_node(&self, name: &str) -> bool {
        self.file.nodes.keys().any(|it| it.as_str() == name)
    }

    fn check_nodes(&self, nodes: &BTreeSet<String>) -> Result<(), LabError> {
        if nodes.is_empty() {
            return Err(LabError::Request("name at least one node".to_owned()));
        }
        match nodes.iter().find(|node| !self.has_node(node)) {
            None => Ok(()),
            Some(node) => {
                let known = self.file.nodes.keys().map(|it| it.as_str());
                let near = suggestion(node, known);
                Err(LabError::Missing(format!("no node `{node}`{near}")))
            }
        }
    }

    /// Checks that a reservation is not longer, and does not end later, than the laboratory's limits allow.
    fn check_span(&self, span: Span, now: Seconds) -> Result<(), LabError> {
        let limits = &self.file.calendar;
        let in_words = |seconds| humantime::format_duration(Duration::from_secs(seconds));
        let reason = if span.until <= span.from {
            "the end is not after the begin".to_owned()
        } else if span.until - span.from > limits.longest.0 {
            let longest = in_words(limits.longest.0);
            format!("a reservation has at most {longest} here")
        } else if span.until > now + limits.ahead.0 {
            let ahead = in_words(limits.ahead.0);
            format!("a reservation ends at most {ahead} from now here")
        } else {
            return Ok(());
        };
        Err(LabError::Request(reason))
    }

    /// Returns an experiment as the service reports it to users.
    fn seen(&self, job: &Job, expected: &BTreeMap<u64, Seconds>) -> api::Experiment {
        let progress: Option<Progress> = match job.started {
            Some(_) => self.processes.progress(job.id),
            None => None,
        };
        api::Experiment {
            id: job.id,
            user: job.user.clone(),
            name: job.name.clone(),
            title: job.title.clone(),
            nodes: job.nodes.clone(),
            reservation: job.reservation,
            state: job.state,
            reason: job.reason.clone(),
            submitted: text(job.submitted),
            started: job.started.map(text),
            ended: job.ended.map(text),
            expected: expected.get(&job.id).copied().map(text),
            longest_s: job.longest,
            progress,
        }
    }
}

/// Returns the Slurm reservation `id`, after a check that the user may change it.
fn owned(slurm: &Slurm, asking: Asking<'_>, id: &str) -> Result<api::Reservation, LabError> {
    let mut all = slurm.reservations()?.into_iter();
    let missing = || LabError::Missing(format!("no reservation {id:?}"));
    let one = all.find(|it| it.id == id).ok_or_else(missing)?;
    asking.may_change(&format!("reservation {id}"), &one.user)?;
    Ok(one)
}

/// Checks the form of node names, which become part of an argument of a Slurm command. Slurm itself checks that the
/// nodes exist.
fn names(nodes: &BTreeSet<String>) -> Result<BTreeSet<String>, LabError> {
    if nodes.is_empty() {
        return Err(LabError::Request("name at least one node".to_owned()));
    }
    let checked = nodes.iter().map(|node| {
        let name = Name::try_from(node.clone());
        let name = name.map_err(|e| LabError::Request(format!("node {e}")))?;
        Ok(name.to_string())
    });
    checked.collect()
}

/// Returns the calendar with the reservations and running experiments in the database.
pub(crate) fn calendar(rows: &Rows<'_>, now: Seconds) -> Result<Calendar, LabError> {
    let reservations = rows.reservations(now)?;
    let running = rows.jobs(&[State::Running])?.into_iter().map(|job| {
        let from = job.started.unwrap_or(now);
        let longest = from.saturating_add(job.longest).max(now + OVERTIME);
        let own = reservations
            .iter()
            .find(|it| job.reservation == Some(it.id));
        Occupied {
            experiment: job.id,
            user: job.user,
            nodes: job.nodes,
            span: Span {
                from,
                until: own.map_or(longest, |it| longest.min(it.span.until)),
            },
            reservation: job.reservation,
        }
    });
    let running = running.collect();
    Ok(Calendar {
        reservations,
        running,
    })
}

/// Returns the waiting experiments among `jobs`, for the queue.
pub(crate) fn waiting(jobs: &[Job]) -> Vec<Waiting> {
    let jobs = jobs.iter().filter(|job| job.state == State::Waiting);
    let jobs = jobs.map(|job| Waiting {
        id: job.id,
        nodes: job.nodes.clone(),
        longest: job.longest,
        reservation: job.reservation,
    });
    jobs.collect()
}

/// Returns the latest start time of each waiting experiment, by the experiment's number.
fn expected(jobs: &[Job], calendar: &Calendar, now: Seconds) -> BTreeMap<u64, Seconds> {
    let waiting = waiting(jobs);
    let planned = plan(now, &waiting, calendar);
    let planned = waiting.iter().zip(planned);
    planned
        .filter_map(|(it, span)| Some((it.id, span?.from)))
        .collect()
}

fn shown(reservation: &Reservation) -> api::Reservation {
    api::Reservation {
        id: reservation.id.to_string(),
        user: reservation.user.clone(),
        nodes: reservation.nodes.clone(),
        from: text(reservation.span.from),
        until: text(reservation.span.until),
    }
}

fn properties(of: &BTreeMap<String, toml::Value>) -> BTreeMap<String, serde_json::Value> {
    let json = |value| serde_json::to_value(value).unwrap_or_default();
    of.iter()
        .map(|(name, value)| (name.clone(), json(value)))
        .collect()
}

fn one_of(calendar: &Calendar, id: u64) -> Result<&Reservation, LabError> {
    let missing = || LabError::Missing(format!("no current or future reservation {id}"));
    calendar.reservation(id).ok_or_else(missing)
}

fn no_experiment(id: u64) -> LabError {
    LabError::Missing(format!("no experiment {id}"))
}

fn time(text: &str) -> Result<Seconds, LabError> {
    parse(text).ok_or_else(|| {
        LabError::Request(format!(
            "{text:?}: expected a time in UTC such as 2026-12-01T09:00:00Z"
        ))
    })
}

/// Returns the end of a reservation: the time `until`, or the time `seconds` after `after`.
fn end(until: Option<&str>, seconds: Option<u64>, after: Seconds) -> Result<Seconds, LabError> {
    match (until, seconds) {
        (Some(until), None) => time(until),
        (None, Some(seconds)) => Ok(after.saturating_add(seconds)),
        _ => Err(LabError::Request(
            "say either `until` or `seconds`".to_owned(),
        )),
    }
}

/// Parses the number of an experiment or reservation.
pub(crate) fn number(id: &str) -> Result<u64, LabError> {
    let missing = || LabError::Missing(format!("{id:?} is not a number"));
    id.parse().map_err(|_| missing())
}
