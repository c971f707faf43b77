//! The workers of a chain: threads, each pinned to its core, with its part of every port and functions of its own.

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

/// Callback for messages to people. It gets one line at a time.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Callback for link changes. It gets a port, as the chain has it, and its new link state.
pub type TellLink = Arc<dyn Fn(&str, &Link) + Send + Sync>;

/// Callback for the end of a worker, called on its thread; the worker's ports are open until it returns.
pub type AtEnd = Arc<dyn Fn(&End) + Send + Sync>;

/// Resources that starting workers takes beside their chain.
#[derive(Clone)]
pub struct Start {
    /// The clock of all of them.
    pub clock: Clock,
    /// Flag that ends the workers.
    pub stop: Arc<AtomicBool>,
    /// Ends the making of functions that take seconds.
    pub given_up: &'static AtomicBool,
    /// Callback for what ports make of their specs, for what takes seconds, and for workers that die.
    pub tell: Tell,
    /// Callback for links that go up and down.
    pub tell_link: TellLink,
    /// Callback for the end of a worker: [`AtEnd`].
    pub at_end: AtEnd,
}

type Thread = JoinHandle<(End, Outcomes)>;

/// Ways to a worker that runs.
#[derive(Clone)]
struct Running {
    counters: Arc<Counters>,
    updates: Arc<Updates>,
}

/// Workers of one chain that run.
pub struct Team {
    exchange: Arc<Exchange>,
    /// Stops the workers when a thread beside them dies: what it did for their packets nobody does any more.
    _deaths: DeathWatch,
}

/// Access, for any thread, to workers that run: gives them other functions, has another one join them, and reads what they
/// have counted.
pub struct Exchange {
    /// In order of their numbers; none ever leaves.
    running: RwLock<Vec<Running>>,
    /// Held while functions are replaced, and while a worker joins.
    present: Mutex<Present>,
    port_names: PortNames,
}

/// State of a team that changes while it runs.
struct Present {
    /// Functions that all workers have.
    functions: Vec<Stage>,
    /// State that the functions of all workers share, by stage; kept where more workers can join.
    shared: Vec<Shared>,
    /// Needs of workers that join; none where there can be no more.
    more: Option<More>,
    threads: Vec<Thread>,
}

/// Needs of workers that join others while those run.
struct More {
    ports: Vec<Joinable>,
    chain: Chain,
    name: String,
    start: Start,
    team: TeamName,
    links: Arc<Links>,
}

/// Reason why no worker joins.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The chain has no core left for one, or its workers have ended.
    #[error("{0}")]
    Unavailable(String),
    /// The worker cannot start.
    #[error(transparent)]
    Refused(#[from] ChainError),
}

/// End of a worker; none if its thread died.
pub type Ended = Option<End>;

impl Team {
    /// Starts the workers that the chain says; all are ready when this returns. Their threads are called `name`.
    ///
    /// # Errors
    /// Of the first one that cannot be; none runs then.
    pub fn start(
        chain: &Chain,
        name: &str,
        start: &Start,
        mut log: Option<InterruptionLog>,
    ) -> Result<Self, ChainError> {
        let stop = Arc::clone(&start.stop);
        let deaths = at_death(move || stop.store(true, Ordering::Relaxed));
        let of = chain.workers;
        let mut joinable: Vec<Joinable> = Vec::new();
        let mut parts: Vec<std::vec::IntoIter<Part>> = Vec::new();
        for spec in &chain.ports {
            let made = if chain.has_room() {
                let part = spec.joinable()?;
                let made: Result<Vec<Part>, _> = (0..of).map(&part).collect();
                joinable.push(part);
                made?
            } else {
                spec.parts(of)?
            };
            parts.push(made.into_iter());
        }
        let team = TeamName::new();
        let links = Arc::new(Links::new(chain, &start.tell_link));
        let port_names = chain.names_of_ports();
        let shared = shared_by(&chain.functions, &port_names);
        let mut ready: Vec<(Running, Thread, mpsc::Sender<()>)> = Vec::new();
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
                    // Those before it hear that nobody lets them begin, and close their ports.
                    for (_, thread, begin) in ready {
                        drop(begin);
                        let _ = thread.join();
                    }
                    return Err(e);
                }
            }
        }
        let (mut running, mut threads) = (Vec::new(), Vec::new());
        for (worker, thread, begin) in ready {
            // It waits for this.
            let _ = begin.send(());
            running.push(worker);
            threads.push(thread);
        }
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

    /// Waits for all of them to end: how each did, and what became of packets in their functions, together.
    pub fn join(self) -> (Vec<Ended>, Outcomes) {
        let (mut ends, mut sums) = (Vec::new(), Outcomes::new());
        let threads = {
            let mut present = self.exchange.present();
            // Nobody joins any more, and what the functions share goes with them.
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
    /// Returns what each worker has counted.
    pub fn each(&self) -> Vec<CountersView> {
        self.running().iter().map(|it| it.counters.read()).collect()
    }

    /// Returns what all of them have counted.
    pub fn sum(&self) -> CountersView {
        self.running().iter().map(|it| it.counters.read()).sum()
    }

    /// Returns what all of them have counted at each port.
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

    /// Returns what their functions count for others, all of them together.
    pub fn functions(&self) -> Vec<Count> {
        let mut counted = Vec::new();
        for function in self.running().iter().flat_map(|it| it.counters.functions()) {
            // Those of several workers may count together.
            if !counted.iter().any(|it| Arc::ptr_eq(it, &function)) {
                counted.push(function);
            }
        }
        let mut sums: Vec<Count> = Vec::new();
        add_counts(&mut sums, counted.iter().flat_map(|it| it.counts()));
        // Functions that count for others tell their outcomes themselves.
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

    /// Returns what all of them have counted of the queues of each port, the highest priority last.
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

    /// Replaces functions as [`Updates::replace`] does, one worker after the other; returns the longest pause of one.
    /// Workers that have died are passed over.
    ///
    /// # Errors
    /// As there; those that had the new functions already have the old ones again then.
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
                        // It had these.
                        let functions = present.functions.clone();
                        let _ = worker.updates.replace_sharing(functions, shared.clone());
                    }
                    return Err(e);
                }
            }
        }
        if present.more.is_some() {
            // Functions that stayed share what they did.
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

    /// Has one worker more join those that run, which go on meanwhile: it opens its part of every port on the next of the
    /// chain's cores. Returns that core.
    ///
    /// # Errors
    /// [`JoinError`]; the others run on as before.
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
                "the chain has no room for another worker: begin it with more cores than workers (cores = [...])"
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
                // It waits for this.
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

/// A place for what functions share, by stage, with the names of the chain's ports in it.
pub(crate) fn shared_by(stages: &[Stage], port_names: &PortNames) -> Vec<Shared> {
    stages.iter().map(|_| port_names.shared()).collect()
}

/// Work that a worker's thread is given.
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

/// The links of all workers, which are told as one for each port.
struct Links {
    names: Vec<String>,
    tell: TellLink,
    known: Mutex<Vec<PortLinks>>,
}

#[derive(Clone)]
struct PortLinks {
    /// Link state by worker; None for a worker that has not looked yet.
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

    /// There is a worker more, which has not looked yet; what is told stays until it has.
    fn expect_another(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter_mut().for_each(|it| it.by_worker.push(None));
    }

    /// The last of them did not come.
    fn expect_less(&self) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter_mut().for_each(|it| {
            it.by_worker.pop();
        });
    }

    /// A worker has found a link to be so; a port is up when it is for all of them.
    fn hear(&self, worker: usize, port: usize, link: &Link) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let it = &mut known[port];
        it.by_worker[worker] = Some(link.clone());
        let Some(all) = it.by_worker.iter().cloned().collect::<Option<Vec<_>>>() else {
            return;
        };
        // Which one is said where others are up.
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

/// Guard that ends all workers when the thread that has it panics: a chain with a hole carries nothing.
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
    /// Starts the thread. It is ready when this returns, and begins when it is let.
    fn start(self, name: &str) -> Result<(Running, Thread, mpsc::Sender<()>), ChainError> {
        let (tell, told) = mpsc::channel();
        let (begin, may_begin) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || self.run(&tell, &may_begin))
            .map_err(|e| PortError::system("starting a worker thread", e))?;
        let died = |_| {
            let dead = std::io::Error::other("it died while it started");
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

    /// Opens everything where it will be used.
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
        // Not kept here: it goes with the functions.
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
        worker.start_slow_path()?;
        // Where workers join later, no function has homes for packets.
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

/// A line with the worker that it is of, where there are several.
fn of_worker(member: Member, text: &str) -> String {
    match member.of {
        1 => text.to_string(),
        _ => format!("worker {}: {text}", member.number),
    }
}
