//! The schedule: starts due experiments, ends those that lose their nodes, and records the outcomes.

use crate::api::State;
use crate::calendar::Calendar;
use crate::error::LabError;
use crate::lab::{Lab, calendar, waiting};
use crate::process::Outcome;
use crate::queue::plan;
use crate::store::{Ending, Job};
use crate::time::{Seconds, now};
use rustix::process::Signal;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between two checks of the experiments' processes.
const LOOK: Duration = Duration::from_millis(250);
/// Time for a process to end on request; after this time it is killed.
const END: Duration = Duration::from_secs(60);
/// Maximum number of starts of an experiment whose process dies each time.
const MOST_STARTS: u32 = 3;

/// The thread that starts and ends experiments; dropping the value ends the thread, but no experiment.
pub struct Schedule {
    lab: Arc<Lab>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Schedule {
    /// Starts the schedule. `problem` is called with each new error that prevents the schedule from continuing at
    /// present.
    ///
    /// # Errors
    /// The operating system cannot start another thread.
    pub fn start(lab: &Arc<Lab>, problem: impl Fn(&LabError) + Send + 'static) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (own, stopped) = (Arc::clone(lab), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("schedule".to_owned());
        let thread = thread.spawn(move || {
            let mut asked = HashMap::new();
            let mut told = String::new();
            while !stopped.load(Ordering::Relaxed) {
                match own.look(&mut asked) {
                    Ok(()) => told.clear(),
                    Err(e) if e.to_string() == told => {}
                    Err(e) => {
                        problem(&e);
                        told = e.to_string();
                    }
                }
                own.wait(LOOK);
            }
        })?;
        Ok(Self {
            lab: Arc::clone(lab),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.lab.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Times at which the end of a process was requested, by the number of its experiment.
type Asked = HashMap<u64, Instant>;

impl Lab {
    /// Carries out the steps of the schedule that are due now. After an error, the remaining steps are left to the next
    /// call.
    fn look(&self, asked: &mut Asked) -> Result<(), LabError> {
        let running = self.store.read(|rows| rows.jobs(&[State::Running]))?;
        for job in running {
            if self.processes.is_alive(job.id)? {
                self.end_if_due(job, asked)?;
            } else {
                asked.remove(&job.id);
                self.settle(job)?;
            }
        }
        self.start_due()
    }

    /// Requests that the process of an experiment ends if the experiment is cancelled or may no longer use its nodes.
    fn end_if_due(&self, mut job: Job, asked: &mut Asked) -> Result<(), LabError> {
        if job.ending.is_none() {
            let calendar = self.store.read(|rows| calendar(rows, now()))?;
            if is_entitled(&job, &calendar, now()) {
                return Ok(());
            }
            job.ending = Some(Ending::Displaced);
            self.store.change(|rows| {
                // A user may have cancelled the experiment since it was read.
                match rows.job(job.id)? {
                    Some(it) if it.ending.is_none() => rows.update_job(&job),
                    _ => Ok(()),
                }
            })?;
        }
        match asked.get(&job.id) {
            None => {
                self.processes.signal(job.id, Signal::INT);
                asked.insert(job.id, Instant::now());
            }
            Some(at) if at.elapsed() > END => self.processes.signal(job.id, Signal::KILL),
            Some(_) => {}
        }
        Ok(())
    }

    /// Records the result of an experiment's process, which has ended.
    fn settle(&self, job: Job) -> Result<(), LabError> {
        let outcome = self.processes.outcome(job.id);
        let has_results = self.processes.progress(job.id).is_some();
        // If this service dies here, the process looks as if it was never started, and is started again.
        self.processes.forget(job.id);
        let settled = self.store.change(|rows| {
            let Some(mut job) = rows.job(job.id)? else {
                return Ok(());
            };
            let retry = self.file.retry && job.starts < MOST_STARTS;
            (job.state, job.reason) = after(outcome, &job, retry);
            job.ended = job.state.is_over().then(now);
            if !job.state.is_over() {
                job.ending = None;
            }
            if job.state.is_over() && has_results {
                rows.remove_files(job.id)?;
            }
            rows.update_job(&job)
        });
        self.wake();
        settled
    }

    /// Starts the experiments that are due.
    fn start_due(&self) -> Result<(), LabError> {
        let (waiting_jobs, calendar) = self.store.read(|rows| {
            let jobs = rows.jobs(&[State::Waiting])?;
            Ok((jobs, calendar(rows, now())?))
        })?;
        if waiting_jobs.is_empty() {
            return Ok(());
        }
        self.free_from_ended_reservations(&waiting_jobs, &calendar)?;
        let queue = waiting(&waiting_jobs);
        let planned = plan(now(), &queue, &calendar);
        for (job, span) in waiting_jobs.into_iter().zip(planned) {
            if span.is_some_and(|span| span.from <= now()) {
                self.start(job)?;
            }
        }
        Ok(())
    }

    /// Makes experiments wait for free nodes if their reservation has ended before they could start.
    fn free_from_ended_reservations(
        &self,
        jobs: &[Job],
        calendar: &Calendar,
    ) -> Result<(), LabError> {
        let is_over = |job: &&Job| {
            let own = job.reservation.map(|id| calendar.reservation(id));
            matches!(own, Some(None))
        };
        for job in jobs.iter().filter(is_over) {
            let mut job = job.clone();
            job.reservation = None;
            self.store.change(|rows| rows.update_job(&job))?;
        }
        Ok(())
    }

    fn start(&self, job: Job) -> Result<(), LabError> {
        let mut files = None;
        // The state is on disk before there is a process, so that no process is ever forgotten.
        let started = self.store.change(|rows| {
            let Some(mut job) = rows.job(job.id)? else {
                return Ok(false);
            };
            // Since the experiments were read, a user may have cancelled this one, or reserved its nodes.
            let calendar = calendar(rows, now())?;
            let mut running = calendar.running.iter();
            let is_free = running.all(|it| it.nodes.is_disjoint(&job.nodes));
            if job.state != State::Waiting || !is_free || !is_entitled(&job, &calendar, now()) {
                return Ok(false);
            }
            job.state = State::Running;
            job.started = Some(now());
            job.reason = None;
            job.starts += 1;
            files = Some(rows.files(job.id)?);
            rows.update_job(&job)?;
            Ok(true)
        })?;
        let (true, Some(files)) = (started, files) else {
            return Ok(());
        };
        let begun = self
            .processes
            .start(job.id, &job.name, &files, &job.changes);
        begun.or_else(|e| {
            self.store.change(|rows| {
                let Some(mut job) = rows.job(job.id)? else {
                    return Ok(());
                };
                job.state = State::Failed;
                job.reason = Some(format!("cannot start: {e}"));
                job.ended = Some(now());
                rows.update_job(&job)
            })
        })
    }
}

/// Returns true if a running experiment may still use its nodes: its reservation is current, or no reservation has the
/// nodes.
fn is_entitled(job: &Job, calendar: &Calendar, now: Seconds) -> bool {
    let mut reservations = calendar.reservations.iter();
    match job.reservation {
        Some(id) => reservations.any(|it| it.id == id && it.span.contains(now)),
        None => !reservations.any(|it| it.span.contains(now) && !it.nodes.is_disjoint(&job.nodes)),
    }
}

/// Returns the state of an experiment after the end of its process, and the reason for the state. `retry` is true if an
/// experiment whose process died is to be started again.
fn after(outcome: Outcome, job: &Job, retry: bool) -> (State, Option<String>) {
    let again = |why: &str| (State::Waiting, Some(why.to_owned()));
    match (outcome, job.ending) {
        (Outcome::Finished, _) => (State::Finished, None),
        (_, Some(Ending::Cancelled)) => (State::Cancelled, job.reason.clone()),
        (Outcome::Failed(reason), _) => (State::Failed, Some(reason)),
        (Outcome::NotStarted, _) => (State::Waiting, None),
        (_, Some(Ending::Displaced)) => again(
            "interrupted, as its time on the nodes was over: it continues with the missing runs",
        ),
        (Outcome::Interrupted, None) => {
            again("interrupted on the machine of the service: it continues with the missing runs")
        }
        (Outcome::Died, None) if retry => {
            again("its process died: it continues with the missing runs")
        }
        (Outcome::Died, None) => (
            State::Failed,
            Some(format!(
                "its process was killed, or its machine went down; complete runs are kept, and taut experiment retry \
                 {} makes the missing ones",
                job.id
            )),
        ),
    }
}
