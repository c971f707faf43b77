//! The workers of a chain: pinned threads, each with its part of every port and its own functions.

use crate::chain::Making;
use crate::counters::add_counts;
use crate::handoff::{Handoff, TeamName};
use crate::outcomes::{Outcomes, add_outcomes};
use crate::update::kept;
use crate::worker::is_stamped_by_the_day;
use crate::{
    Chain, ChainError, Counters, CountersView, End, QueueCounters, Replaced, Stage, UpdateError,
    Updates, Worker,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc};
use std::thread::JoinHandle;
use taut_function::{Count, Member, PortNames, Shared, Watcher};
use taut_port::{Joinable, Link, Part, PortCounters, PortError, Resources};
use taut_sys::{Clock, DeathWatch, InterruptionLog, at_death};

/// The callback for messages to the user. It gets one line at a time.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// The callback for link changes. It gets the spec of a port, as in the chain, and the port's new link state.
pub type TellLink = Arc<dyn Fn(&str, &Link) + Send + Sync>;

/// The callback for the end of a worker, called on the worker's thread. The worker's ports stay open until the callback
/// returns.
pub type AtEnd = Arc<dyn Fn(&End) + Send + Sync>;

/// The parameters for starting workers, other than their chain.
#[derive(Clone)]
pub struct Start {
    /// Clock of all workers.
    pub clock: Clock,
    /// Flag that ends the workers.
    pub stop: Arc<AtomicBool>,
    /// Flag that cancels slow preparations of functions.
    pub given_up: &'static AtomicBool,
    /// Callback for messages about opened ports, slow preparation, and workers that die.
    pub tell: Tell,
    /// Callback for links that go up and down.
    pub tell_link: TellLink,
    /// Callback for the end of a worker: [`AtEnd`].
    pub at_end: AtEnd,
}

type Thread = JoinHandle<(End, Outcomes)>;

/// A worker that is ready, its thread, and the channel on which the thread waits for a message before it starts its
/// loop.
type Ready = (Running, Thread, mpsc::Sender<()>);

/// The parts of each port (such as one of its queues, for one worker) that no worker has taken yet.
type Parts = Vec<std::vec::IntoIter<Part>>;

/// Handles of a running worker.
#[derive(Clone)]
struct Running {
    counters: Arc<Counters>,
    updates: Arc<Updates>,
}

/// The running workers of one chain.
pub struct Team {
    exchange: Arc<Exchange>,
    /// Watch that stops the workers when an auxiliary thread dies, because their packets depend on it.
    _deaths: DeathWatch,
}

/// Access from any thread to the running workers, to replace their functions, to add a worker, and to read their
/// counters.
pub struct Exchange {
    /// Workers, by index; workers are never removed.
    running: RwLock<Vec<Running>>,
    /// State of the team; locked while functions are replaced, and while a worker joins.
    present: Mutex<Present>,
    port_names: PortNames,
}

/// The state of a team that changes while it runs.
struct Present {
    /// Current functions of all workers.
    functions: Vec<Stage>,
    /// State that the functions of all workers share, by stage; stored if more workers can join.
    shared: Vec<Shared>,
    /// Resources for workers that join; None if no more can join.
    more: Option<More>,
    threads: Vec<Thread>,
}

/// Resources for workers that join running ones.
struct More {
    ports: Vec<Joinable>,
    chain: Chain,
    name: String,
    start: Start,
    team: TeamName,
    links: Arc<Links>,
}

/// The reason why a worker cannot join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The chain has no free core, or its workers have ended.
    #[error("{0}")]
    Unavailable(String),
    /// The worker cannot start.
    #[error(transparent)]
    Refused(#[from] ChainError),
}

/// The result of a worker that has ended; None if its thread panicked.
pub type Ended = Option<End>;

/// Divides each port of the chain into parts, one for each worker. If more workers can join later, the second list has
/// the functions that make parts for them, one per port; otherwise it is empty.
fn split_ports(chain: &Chain) -> Result<(Parts, Vec<Joinable>), ChainError> {
    let mut joinable: Vec<Joinable> = Vec::new();
    let mut parts = Parts::new();
    for spec in &chain.ports {
        let made = if chain.has_room() {
            let part = spec.joinable()?;
            let made: Result<Vec<Part>, _> = (0..chain.workers).map(&part).collect();
            joinable.push(part);
            made?
        } else {
            spec.parts(chain.workers)?
        };
        parts.push(made.into_iter());
    }
    Ok((parts, joinable))
}

/// Ends workers that have not started their loops: closes their channels, after which the threads close their ports and
/// exit.
fn close(ready: Vec<Ready>) {
    for (_, thread, begin) in ready {
        drop(begin);
        let _ = thread.join();
    }
}

fn begin(ready: Vec<Ready>) -> (Vec<Running>, Vec<Thread>) {
    let (mut running, mut threads) = (Vec::new(), Vec::new());
    for (worker, thread, begin) in ready {
        // The thread starts its loop after this message. An error means that the thread has ended.
        let _ = begin.send(());
        running.push(worker);
        threads.push(thread);
    }
    (running, threads)
}

impl Team {
    /// Starts the workers of the chain; all are ready when this function returns. Their threads are called `name`.
    ///
    /// # Errors
    /// Returns the error of the first worker that cannot start; no worker runs then.
    pub fn start(
        chain: &Chain,
        name: &str,
        start: &Start,
        mut log: Option<InterruptionLog>,
    ) -> Result<Self, ChainError> {
        let stop = Arc::clone(&start.stop);
        let deaths = at_death(move || stop.store(true, Ordering::Relaxed));
        let of = chain.workers;
        let (mut parts, joinable) = split_ports(chain)?;
        let team = TeamName::new();
        let links = Arc::new(Links::new(chain, &start.tell_link));
        let port_names = chain.names_of_ports();
        let shared = shared_by(&chain.functions, &port_names);
        let mut ready: Vec<Ready> = Vec::new();
        for number in 0..of {
            let member = Member { number, of };
            let work = Work {
                parts: parts.iter_mut().filter_map(Iterator::next).collect(),
                chain: chain.clone(),
                start: start.clone(),
                log: log.take(),
                member,
                team,
                links: Arc::clone(&links),
                shared: shared.clone(),
            };
            match work.start(name) {
                Ok(started) => ready.push(started),
                Err(e) => {
                    close(ready);
                    return Err(e);
                }
            }
        }
        let (running, threads) = begin(ready);
        let more = chain.has_room().then(|| More {
            ports: joinable,
            chain: chain.clone(),
            name: name.to_string(),
            start: start.clone(),
            team,
            links,
        });
        let present = Present {
            functions: chain.functions.clone(),
            shared: if more.is_some() { shared } else { Vec::new() },
            more,
            threads,
        };
        let exchange = Exchange {
            running: RwLock::new(running),
            present: Mutex::new(present),
            port_names,
        };
        Ok(Self {
            exchange: Arc::new(exchange),
            _deaths: deaths,
        })
    }

    /// Returns the team's [`Exchange`].
    pub fn exchange(&self) -> Arc<Exchange> {
        Arc::clone(&self.exchange)
    }

    /// Waits for all workers to end. Returns the result of each worker, and the numbers of packets by outcome, summed
    /// over all workers.
    pub fn join(self) -> (Vec<Ended>, Outcomes) {
        let (mut ends, mut sums) = (Vec::new(), Outcomes::new());
        let threads = {
            let mut present = self.exchange.present();
            // From here on no worker can join, and the shared state is dropped.
            (present.more, present.shared) = (None, Vec::new());
            std::mem::take(&mut present.threads)
        };
        for thread in threads {
            thread.thread().unpark();
            let ended = thread.join().ok();
            ends.push(ended.map(|(end, outcomes)| {
                add_outcomes(&mut sums, outcomes);
                end
            }));
        }
        (ends, sums)
    }
}

impl Exchange {
    /// Returns the counters of each worker.
    pub fn each(&self) -> Vec<CountersView> {
        self.running().iter().map(|it| it.counters.read()).collect()
    }

    /// Returns the summed counters of all workers.
    pub fn sum(&self) -> CountersView {
        self.running().iter().map(|it| it.counters.read()).sum()
    }

    /// Returns the summed counters of all workers at each port.
    pub fn ports(&self) -> Vec<PortCounters> {
        let mut sums: Vec<PortCounters> = Vec::new();
        for each in self.running() {
            let ports = each.counters.ports();
            sums.resize(sums.len().max(ports.len()), PortCounters::default());
            for (sum, port) in sums.iter_mut().zip(ports) {
                *sum = *sum + port;
            }
        }
        sums
    }

    /// Returns the counts of packets by function and outcome, summed over all workers.
    pub fn functions(&self) -> Vec<Count> {
        let mut counted = Vec::new();
        for function in self.running().iter().flat_map(|it| it.counters.functions()) {
            // Functions of several workers may share one counter, which must be added only once.
            if !counted.iter().any(|it| Arc::ptr_eq(it, &function)) {
                counted.push(function);
            }
        }
        let mut sums: Vec<Count> = Vec::new();
        add_counts(&mut sums, counted.iter().flat_map(|it| it.counts()));
        // Functions with shared counters report their outcomes there, so their published outcomes are skipped.
        let told: BTreeSet<String> = sums.iter().map(|it| it.function.clone()).collect();
        let mut outcomes = Vec::new();
        for worker in self.running() {
            let counts = worker.counters.outcomes().into_iter();
            add_counts(
                &mut outcomes,
                counts.filter(|it| !told.contains(&it.function)),
            );
        }
        sums.append(&mut outcomes);
        sums
    }

    /// Returns the summed counters of the queues of each port, the highest priority last.
    pub fn queues(&self) -> Vec<Vec<QueueCounters>> {
        let mut sums: Vec<Vec<QueueCounters>> = Vec::new();
        for each in self.running() {
            let ports = each.counters.queues();
            if sums.is_empty() {
                sums = ports;
                continue;
            }
            for (sum, more) in sums.iter_mut().flatten().zip(ports.into_iter().flatten()) {
                *sum = *sum + more;
            }
        }
        sums
    }

    /// Replaces functions as [`Updates::replace`] does, one worker after the other. The result has the longest pause of
    /// a worker. Workers that have died are skipped.
    ///
    /// # Errors
    /// The errors are those of [`Updates::replace`]. After an error, workers that already run the new functions return
    /// to the old ones.
    pub fn replace(&self, stages: &[Stage]) -> Result<Replaced, UpdateError> {
        let mut present = self.present();
        let mut done: Option<Replaced> = None;
        let running = self.running();
        let several = running.len() > 1;
        let mut shared = shared_by(stages, &self.port_names);
        for (number, worker) in running.iter().enumerate() {
            let replaced = worker
                .updates
                .replace_sharing(stages.to_vec(), shared.clone());
            match replaced {
                Ok(replaced) => {
                    let longest = done.map_or(0, |done| done.pause_ticks);
                    done = Some(Replaced {
                        pause_ticks: longest.max(replaced.pause_ticks),
                        ..replaced
                    });
                }
                Err(_) if several && worker.updates.is_ended() => {}
                Err(e) => {
                    let shared = shared_by(&present.functions, &self.port_names);
                    for worker in &running[..number] {
                        // The workers that were already updated return to the earlier functions.
                        let functions = present.functions.clone();
                        let _ = worker.updates.replace_sharing(functions, shared.clone());
                    }
                    return Err(e);
                }
            }
        }
        if present.more.is_some() {
            // Functions that stay keep their shared state.
            for (shared, before) in shared.iter_mut().zip(kept(&present.functions, stages)) {
                if let Some(before) = before {
                    *shared = present.shared[before].clone();
                }
            }
            present.shared = shared;
        }
        present.functions = stages.to_vec();
        done.ok_or(UpdateError::Unavailable("the workers have ended"))
    }

    /// Adds one worker while the others run: it opens its part of every port on the next free core of the chain.
    /// Returns that core.
    ///
    /// # Errors
    /// Returns [`JoinError`] if the worker cannot join; the other workers are not affected.
    pub fn add_worker(&self) -> Result<usize, JoinError> {
        let unavailable = |text: String| Err(JoinError::Unavailable(text));
        let mut present = self.present();
        let Present {
            functions,
            shared,
            more,
            threads,
        } = &mut *present;
        let Some(more) = more else {
            return unavailable(
                "the chain has no core for another worker: start it with more cores than workers (cores = [...])"
                    .to_string(),
            );
        };
        let running = self.running();
        let number = running.len();
        let Some(core) = more.chain.cores.get(number).copied() else {
            return unavailable(format!(
                "each of the chain's {number} cores has a worker already"
            ));
        };
        if running.iter().all(|it| it.updates.is_ended()) {
            return unavailable("the workers have ended".to_string());
        }
        let parts = more.ports.iter().map(|part| part(number));
        let parts = parts.collect::<Result<_, _>>().map_err(ChainError::from)?;
        more.links.expect_another();
        let work = Work {
            parts,
            chain: Chain {
                functions: functions.clone(),
                ..more.chain.clone()
            },
            start: more.start.clone(),
            log: None,
            member: Member {
                number,
                of: number + 1,
            },
            team: more.team,
            links: Arc::clone(&more.links),
            shared: shared.clone(),
        };
        match work.start(&more.name) {
            Ok((worker, thread, begin)) => {
                // The thread waits for this message.
                let _ = begin.send(());
                threads.push(thread);
                let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
                running.push(worker);
                Ok(core)
            }
            Err(e) => {
                more.links.expect_less();
                Err(e.into())
            }
        }
    }

    fn running(&self) -> Vec<Running> {
        self.running
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the initial shared state of each stage, which contains only the names of the chain's ports.
pub(crate) fn shared_by(stages: &[Stage], port_names: &PortNames) -> Vec<Shared> {
    stages.iter().map(|_| port_names.shared()).collect()
}

/// The values that the thread of a worker gets to start with.
struct Work {
    parts: Vec<Part>,
    chain: Chain,
    start: Start,
    log: Option<InterruptionLog>,
    member: Member,
    team: TeamName,
    links: Arc<Links>,
    shared: Vec<Shared>,
}

/// The link states of the ports of all workers, combined into one link state for each port of the chain.
struct Links {
    names: Vec<String>,
    tell: TellLink,
    known: Mutex<Vec<PortLinks>>,
}

#[derive(Clone)]
struct PortLinks {
    /// Link state by worker; None for a worker that has not checked yet.
    by_worker: Vec<Option<Link>>,
    told: Option<Link>,
}

impl Links {
    fn new(chain: &Chain, tell: &TellLink) -> Self {
        let none = PortLinks {
            by_worker: vec![None; chain.workers],
            told: None,
        };
        Self {
            names: chain.ports.iter().map(ToString::to_string).collect(),
            tell: Arc::clone(tell),
            known: Mutex::new(vec![none; chain.ports.len()]),
        }
    }

    /// Adds a worker without link state. Reported link states do not change until this worker has checked its links.
    fn expect_another(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter_mut().for_each(|it| it.by_worker.push(None));
    }

    /// Removes the last worker, which failed to start.
    fn expect_less(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter_mut().for_each(|it| {
            it.by_worker.pop();
        });
    }

    /// Records the link state of one worker's port, and reports a change. A port is up if it is up for all workers.
    fn hear(&self, worker: usize, port: usize, link: &Link) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let it = &mut known[port];
        it.by_worker[worker] = Some(link.clone());
        let Some(all) = it.by_worker.iter().cloned().collect::<Option<Vec<_>>>() else {
            return;
        };
        // Name the worker only if the links of others are up.
        let some_are_up = all.iter().any(Link::is_up);
        let down = all
            .iter()
            .enumerate()
            .find_map(|(worker, link)| match link {
                Link::Up => None,
                Link::Down(why) if some_are_up => {
                    Some(Link::Down(format!("worker {worker}: {why}")))
                }
                Link::Down(why) => Some(Link::Down(why.clone())),
            });
        let now = down.unwrap_or(Link::Up);
        if it.told.as_ref() == Some(&now) {
            return;
        }
        (self.tell)(&self.names[port], &now);
        it.told = Some(now);
    }
}

type Begun = Result<(Arc<Counters>, Arc<Updates>), ChainError>;

/// A guard that ends all workers if its thread panics, because a chain without one of its workers is incomplete.
struct EndAll<'a>(&'a Start);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::Relaxed);
            (self.0.at_end)(&End::Stopped);
        }
    }
}

impl Work {
    /// Starts the thread of a worker. The worker is ready when this function returns, and starts its loop after a
    /// message on the returned channel.
    fn start(self, name: &str) -> Result<Ready, ChainError> {
        let (tell, told) = mpsc::channel();
        let (begin, may_begin) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || self.run(&tell, &may_begin))
            .map_err(|e| PortError::system("cannot start a worker thread", e))?;
        let died = |_| {
            let dead = std::io::Error::other("it exited while starting");
            PortError::system("a worker thread", dead)
        };
        let (counters, updates) = told.recv().map_err(died)??;
        Ok((Running { counters, updates }, thread, begin))
    }

    fn run(
        mut self,
        tell: &mpsc::Sender<Begun>,
        may_begin: &mpsc::Receiver<()>,
    ) -> (End, Outcomes) {
        let none = (End::Stopped, Outcomes::new());
        let mut worker = match self.set_up() {
            Ok(worker) => worker,
            Err(e) => {
                let _ = tell.send(Err(e));
                return none;
            }
        };
        let updates = worker.updates(&self.chain.functions);
        let _ = tell.send(Ok((worker.counters(), updates)));
        if may_begin.recv().is_err() {
            return none;
        }
        let start = self.start.clone();
        let _end_all = EndAll(&start);
        let end = worker.run(&self.start.stop);
        if let (End::Broken(port, why), true) = (&end, self.member.of > 1) {
            let spec = &self.chain.ports[*port];
            self.tell(&format!("{spec}: {}; the other workers go on", why.why));
        }
        (self.start.at_end)(&end);
        (end, worker.outcomes())
    }

    /// Opens the worker's ports and makes its functions, on the thread that uses them.
    fn set_up(&mut self) -> Result<Worker, ChainError> {
        let chain = &self.chain;
        let core = chain.cores.get(self.member.number).copied();
        if let Some(core) = core.or(chain.core) {
            taut_host::pin_current_thread(core)?;
        }
        let mut resources = Resources::for_ports(&chain.ports)?;
        let mut ports = Vec::new();
        for (spec, part) in chain.ports.iter().zip(std::mem::take(&mut self.parts)) {
            let port = part(&mut resources)?;
            if !port.details().is_empty() {
                self.tell(&format!("{spec}: {}", port.details()));
            }
            ports.push(port);
        }
        // The shared state is taken out of this structure, so that it lives only as long as the functions.
        let shared = std::mem::take(&mut self.shared);
        let watcher = Watcher {
            stop: self.start.given_up,
            tell: &|text| self.tell(text),
        };
        let stamped: Vec<_> = ports
            .iter()
            .map(|it| is_stamped_by_the_day(&**it))
            .collect();
        let functions = chain.build_functions_for(&Making {
            member: self.member,
            shared: &shared,
            stamped: &stamped,
            watcher: Some(&watcher),
        })?;
        let mut worker = Worker::new(ports, functions, chain.flush, &self.start.clock);
        worker.set_pool(resources.pool());
        worker.set_burst(chain.burst);
        worker.set_wait(chain.wait, &self.start.clock);
        if let Some(queueing) = &chain.queue {
            worker.set_queueing(queueing, &self.start.clock)?;
        }
        if let Some(classification) = &chain.classification {
            worker.set_classes(classification, &chain.functions);
        }
        worker.start_slow_path()?;
        // If workers can join later, no function assigns packets to owners.
        if self.member.of > 1 && !chain.has_room() {
            worker.join(self.member, Handoff::open(self.team, self.member)?);
        }
        if let Some(log) = self.log.take() {
            worker.log_interruptions(log);
        }
        let (links, number) = (Arc::clone(&self.links), self.member.number);
        worker.on_link_change(move |port, link| links.hear(number, port, link));
        Ok(worker)
    }

    fn tell(&self, text: &str) {
        (self.start.tell)(&of_worker(self.member, text));
    }
}

/// Returns `text` with the index of the worker in front, if the chain has several workers.
fn of_worker(member: Member, text: &str) -> String {
    match member.of {
        1 => text.to_string(),
        _ => format!("worker {}: {text}", member.number),
    }
}
