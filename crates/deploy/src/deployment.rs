//! A running chain and its supervisor, which starts its processes, reads their messages, restarts those that die, and
//! stops everything.

mod drain;
mod gap;
mod hear;
mod update;

use crate::control::{self, Answer, Asked, Reply, Request};
use crate::ends::{self, Laid};
use crate::process::{Launch, Process, Word};
use crate::run_folder::RunFolder;
use crate::status::Condition;
use crate::vm::Accelerator;
use crate::{DeployError, Segment, SegmentStatus, Status, segments, split};
use drain::Drain;
use gap::Gap;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use taut_engine::{Chain, Count, CountersView, Order, Place, Placement};
use taut_functions::FUNCTIONS;
use taut_port::{PortCounters, PortSpec};

/// Timeout for processes to start passing packets; a machine under load takes seconds.
const START_DEADLINE: Duration = Duration::from_secs(20);
/// Timeout for virtual machines to start passing packets: several emulated ones on few cores take tens of seconds.
const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// Timeout for a process to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(3);
/// Delay before a process that died is restarted: the first delay and the longest; it doubles with each failed start.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Interval in which the supervisor checks for a stop request.
const LOOK: Duration = Duration::from_millis(100);
/// Longest name of a chain, so that the paths of its sockets fit into socket addresses.
const LONGEST_NAME: usize = 40;

/// An event that the supervisor processes.
enum Heard {
    Word(Word),
    Asked(Asked),
    InputClosed,
}

impl From<Word> for Heard {
    fn from(word: Word) -> Self {
        Self::Word(word)
    }
}

impl From<Asked> for Heard {
    fn from(asked: Asked) -> Self {
        Self::Asked(asked)
    }
}

/// A segment, and its reported state.
struct Running {
    segment: Segment,
    /// Index of the segment's process; `worker` is the index of its worker in that process.
    process: usize,
    worker: usize,
    namespace: Option<String>,
    condition: Condition,
    /// State of each link, by port: the reason why the link is down, or none if it is up.
    links: BTreeMap<String, Option<String>>,
    /// Counters of all earlier starts of the process; `now` has the counters of the current start.
    before: CountersView,
    now: CountersView,
    /// Counters of the current start in the last reply to a request for counters; they may be later than `now`.
    told: CountersView,
    /// Counts of the segment's functions since the current start of its process.
    counts: Vec<Count>,
    /// Counters of the segment's ports when the segment had read all its capture files; empty before.
    at_end: Vec<PortCounters>,
    lost_while_down: u64,
}

impl Running {
    /// Replaces the counters `now` by those in `told`, if `told` is later.
    fn count_as_told(&mut self) {
        let told = std::mem::take(&mut self.told);
        if told.rx_packets > self.now.rx_packets || told.tx_packets > self.now.tx_packets {
            self.now = told;
        }
    }
}

/// A process, running or waiting for a restart.
struct Kept {
    launch: Launch,
    running: Option<Process>,
    /// Number of earlier starts of the process.
    starts: u32,
    since: Instant,
    since_time: SystemTime,
    /// Time of the next start, if the process waits for a restart.
    due: Option<Instant>,
    back_off: Duration,
    /// Last line of the process's standard error, in its current start or an earlier one.
    said: String,
    last_words: String,
}

/// A running chain. Dropping this value stops the chain; the log of its supervisor then remains, if there is one.
pub struct Deployment {
    name: String,
    file: PathBuf,
    /// The current description of the chain.
    chain: Chain,
    up_since: SystemTime,
    segments: Vec<Running>,
    // Processes must end before their links are removed.
    processes: Vec<Kept>,
    heard: Receiver<Heard>,
    words: Sender<Heard>,
    laid: Laid,
    folder: RunFolder,
    gaps: Vec<Gap>,
    /// The drain of the last packets; none until a port at an end of the chain has read its capture file completely.
    drain: Option<Drain>,
    /// Reply of a worker to the pending command; none until the worker replies. At most one command is pending.
    answer: Option<Result<(), String>>,
    /// The events that arrived while a command waited for its reply.
    later: VecDeque<Heard>,
    /// Channel for the reply to the peer that requested the end of the chain; the peer waits until the chain has ended.
    ended_by: Option<Reply>,
}

/// Returns the name of a chain: the `name` in its chain file, otherwise the name of the file.
///
/// # Errors
/// Fails if the name is not usable as a folder name.
pub fn name_of(chain: &Chain, file: &Path) -> Result<String, DeployError> {
    let of_file = || {
        file.file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    };
    let name = chain.name.clone().or_else(of_file).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty()
        || name.len() > LONGEST_NAME
        || !name.chars().all(plain)
        || name.starts_with('.')
    {
        return Err(DeployError::Chain(format!(
            "name \"{name}\": expected 1 to {LONGEST_NAME} letters, digits, -, _ and ., the first no dot"
        )));
    }
    Ok(name)
}

/// Returns the cores for a chain's workers, in the order of the workers: all cores that this process may use. The first
/// is the chain's `core` or else a measured device's core; the order wraps around.
pub(crate) fn cores(chain: &Chain) -> Result<Vec<usize>, DeployError> {
    let allowed: Vec<usize> = taut_host::allowed_cpus().into_iter().collect();
    let first = chain
        .core
        .unwrap_or_else(|| taut_host::choose_cores().device);
    let at = allowed.iter().position(|core| *core == first).ok_or_else(|| {
        DeployError::Chain(format!(
            "core {first} is not among those that this process may use (/proc/self/status, Cpus_allowed_list)"
        ))
    })?;
    Ok([&allowed[at..], &allowed[..at]].concat())
}

impl Deployment {
    /// Starts the chain of `file`; `program` is the path of taut. Returns when packets pass between all of its
    /// segments.
    ///
    /// # Errors
    /// The chain cannot be started; everything that was created for it is then removed. The error is
    /// [`DeployError::Stopped`] if `stop` is set during the start.
    pub fn up(
        chain: &Chain,
        file: &Path,
        program: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, DeployError> {
        let name = name_of(chain, file)?;
        // The folder is created first, because its lock reserves the name of the chain. Remains of a dead chain of that
        // name are removed.
        let folder = RunFolder::take(&name)?;
        if chain.placement.is_in_namespaces() || chain.ports.iter().any(PortSpec::is_wire) {
            control::sweep();
        }
        ends::check(chain)?;
        let parts = split(chain)?;
        let cores = cores(chain)?;
        let laid = match chain.placement {
            Placement::Vm => {
                let core = cores[parts.len() % cores.len()];
                ends::lay_for_machines(chain, &parts, folder.path(), core)?
            }
            _ => ends::lay(chain, &parts, folder.path())?,
        };
        let made = segments(chain, &laid.wires, &cores)?;
        let (words, heard) = channel();
        let mut deployment = Self {
            name,
            file: file.to_path_buf(),
            chain: chain.clone(),
            up_since: SystemTime::now(),
            segments: Vec::new(),
            processes: Vec::new(),
            heard,
            words,
            laid,
            folder,
            gaps: Vec::new(),
            drain: None,
            answer: None,
            later: VecDeque::new(),
            ended_by: None,
        };
        deployment.arrange(made, program)?;
        deployment.start_all(stop)?;
        deployment.write_state()?;
        let socket = deployment.folder.path().join("control.sock");
        control::listen(&socket, deployment.words.clone())?;
        // The chain has started. If it ends without a request from here on, the log must remain to explain why.
        deployment.folder.leave(true);
        Ok(deployment)
    }

    /// Assigns segments to processes.
    fn arrange(&mut self, made: Vec<Segment>, program: &Path) -> Result<(), DeployError> {
        let one_process = self.chain.placement == Placement::Threads;
        for (at, segment) in made.into_iter().enumerate() {
            let path = self.folder.path();
            let file = path.join(format!("{}.toml", segment.name));
            fs::write(&file, segment.text())
                .map_err(|e| DeployError::system(format!("cannot write {}", file.display()), e))?;
            let namespace = self.laid.namespaces.get(at);
            let namespace = namespace.map(|namespace| namespace.name().to_owned());
            let (process, worker) = if one_process { (0, at) } else { (at, 0) };
            if worker > 0 {
                self.processes[process].launch.files.push(file);
            } else {
                let log = match one_process {
                    true => "threads.log".to_string(),
                    false => format!("{}.log", segment.name),
                };
                self.processes.push(Kept {
                    launch: Launch {
                        program: program.to_path_buf(),
                        namespace: namespace.clone(),
                        files: vec![file],
                        cards: self.laid.cards.get(at).map(Vec::from).unwrap_or_default(),
                        log: path.join(log),
                    },
                    running: None,
                    starts: 0,
                    since: Instant::now(),
                    since_time: SystemTime::now(),
                    due: None,
                    back_off: BACK_OFF[0],
                    said: String::new(),
                    last_words: String::new(),
                });
            }
            self.segments.push(Running {
                segment,
                process,
                worker,
                namespace,
                condition: Condition::Starting,
                links: BTreeMap::new(),
                before: CountersView::default(),
                now: CountersView::default(),
                told: CountersView::default(),
                counts: Vec::new(),
                at_end: Vec::new(),
                lost_while_down: 0,
            });
        }
        Ok(())
    }

    /// Starts all processes, and waits until packets pass between all segments.
    fn start_all(&mut self, stop: &AtomicBool) -> Result<(), DeployError> {
        // An interface receives frames before any process reads them, so sources start when all others are running.
        let is_late = |running: &Running| {
            let mut ports = running.segment.chain.ports.iter();
            self.chain.placement.is_in_namespaces() && ports.any(PortSpec::is_source)
        };
        let (late, early): (Vec<_>, Vec<_>) = self.segments.iter().partition(|s| is_late(s));
        for turn in [early, late].map(|turn| turn.iter().map(|s| s.process).collect()) {
            let mut turn: Vec<usize> = turn;
            turn.dedup();
            for number in turn {
                self.start(number)?;
            }
            self.wait_until_up(stop)?;
        }
        Ok(())
    }

    fn start(&mut self, number: usize) -> Result<(), DeployError> {
        let kept = &mut self.processes[number];
        kept.due = None;
        let process = Process::start(&kept.launch, number, kept.starts, &self.words)?;
        kept.running = Some(process);
        kept.since = Instant::now();
        kept.since_time = SystemTime::now();
        Ok(())
    }

    /// Waits until all workers run and the links between them carry packets.
    fn wait_until_up(&mut self, stop: &AtomicBool) -> Result<(), DeployError> {
        let patience = match self.chain.placement {
            Placement::Vm => BOOT_DEADLINE,
            _ => START_DEADLINE,
        };
        let deadline = Instant::now() + patience;
        while let Some(late) = self.late() {
            if stop.load(Ordering::Relaxed) {
                return Err(DeployError::Stopped);
            }
            if Instant::now() >= deadline {
                return Err(DeployError::Segment {
                    segment: late,
                    reason: format!("no packets pass after {patience:?}"),
                });
            }
            if let Ok(Heard::Word(word)) = self.heard.recv_timeout(LOOK) {
                self.hear(word);
            }
            let dead = |running: &&Running| running.condition == Condition::Down;
            if let Some(dead) = self.segments.iter().find(dead) {
                return Err(DeployError::Segment {
                    segment: dead.segment.name.clone(),
                    reason: self.processes[dead.process].last_words.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns the name of a segment that does not pass packets yet; none if all do. Links to peers outside the chain
    /// do not count, because such peers may come up later.
    fn late(&self) -> Option<String> {
        let is_started = |running: &&Running| self.processes[running.process].running.is_some();
        let late = self.segments.iter().filter(is_started).find(|running| {
            running.condition == Condition::Starting
                || running.condition == Condition::Up && !self.is_joined(running)
        });
        late.map(|running| running.segment.name.clone())
    }

    /// Returns true if the links of a segment to other segments are connected on both sides.
    fn is_joined(&self, running: &Running) -> bool {
        let chain = &running.segment.chain;
        let mut wires = chain
            .ports
            .iter()
            .filter(|port| self.laid.is_ours(port.text()));
        wires.all(|port| {
            let key = match chain.place {
                Place::User => port.text(),
                Place::Kernel => port.target(),
            };
            running.links.get(key) == Some(&None)
        })
    }

    /// Runs the chain until `stop` is set, a peer requests its end, or `stdin` closes (if it is watched). It also ends
    /// when a port at an end of the chain has read its file and the packets of that file have passed. `each_second`
    /// gets the state and the counters of the last second.
    ///
    /// # Errors
    /// A process cannot be restarted.
    pub fn keep_up(
        &mut self,
        stop: &AtomicBool,
        watch_stdin: bool,
        mut each_second: impl FnMut(u64, &Status, &[CountersView]),
    ) -> Result<(), DeployError> {
        if watch_stdin {
            let words = self.words.clone();
            thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                words.send(Heard::InputClosed)
            });
        }
        let begun = Instant::now();
        let mut second = 0;
        let mut before = self.counted();
        while !stop.load(Ordering::Relaxed) && !self.has_ended() {
            let heard = match self.later.pop_front() {
                Some(heard) => Ok(heard),
                None => self.heard.recv_timeout(LOOK),
            };
            match heard {
                Ok(Heard::Word(word)) => {
                    if self.hear(word) {
                        self.write_state()?;
                    }
                }
                Ok(Heard::Asked(asked)) => {
                    if !self.answer(asked) {
                        break;
                    }
                }
                Ok(Heard::InputClosed) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.laid.check().map_err(|e| DeployError::Segment {
                segment: "switch".to_string(),
                reason: crate::error::in_one_line(&e),
            })?;
            self.restart_due()?;
            self.close_gaps();
            if self.is_drained() {
                break;
            }
            if begun.elapsed() >= Duration::from_secs(second + 1) {
                second = begun.elapsed().as_secs();
                let now = self.counted();
                let during: Vec<_> = now
                    .iter()
                    .zip(&before)
                    .map(|(now, then)| *now - *then)
                    .collect();
                each_second(second, &self.status(), &during);
                before = now;
            }
        }
        Ok(())
    }

    /// Restarts each dead process whose restart delay has passed.
    fn restart_due(&mut self) -> Result<(), DeployError> {
        for number in 0..self.processes.len() {
            if self.processes[number]
                .due
                .is_some_and(|due| Instant::now() >= due)
            {
                self.processes[number].starts += 1;
                self.start(number)?;
            }
        }
        Ok(())
    }

    /// Stops the chain; returns the last state of the chain.
    pub fn down(mut self) -> Status {
        self.end_processes();
        let last = self.status();
        let asked = self.ended_by.take();
        self.folder.leave(false);
        drop(self);
        if let Some(asked) = asked {
            asked.send_and_wait(Answer {
                error: None,
                status: Some(last.clone()),
            });
        }
        last
    }

    /// Returns the state of the chain.
    pub fn status(&self) -> Status {
        Status {
            name: self.name.clone(),
            file: self.file.display().to_string(),
            placement: placement_text(self.chain.placement).to_string(),
            supervisor: std::process::id(),
            up_since: seconds_since_1970(self.up_since),
            segments: self
                .segments
                .iter()
                .map(|s| self.segment_status(s))
                .collect(),
        }
    }

    fn segment_status(&self, running: &Running) -> SegmentStatus {
        let chain = &running.segment.chain;
        let kept = &self.processes[running.process];
        let counters = running.before + running.now;
        let dropped = counters
            .dropped_causes()
            .into_iter()
            .filter(|(_, n)| *n > 0);
        SegmentStatus {
            name: running.segment.name.clone(),
            functions: chain
                .functions
                .iter()
                .map(|stage| stage.name.clone())
                .collect(),
            place: match chain.place {
                Place::Kernel => "kernel",
                Place::User => "user",
            }
            .to_string(),
            namespace: running.namespace.clone(),
            machine: (self.chain.placement == Placement::Vm)
                .then(|| Accelerator::best().name().to_string()),
            core: chain.core,
            wait: (chain.place == Place::User).then(|| chain.wait.to_string()),
            ports: chain
                .ports
                .iter()
                .map(|port| port.text().to_string())
                .collect(),
            links_down: running
                .links
                .iter()
                .filter_map(|(port, down)| Some((port.clone(), down.clone()?)))
                .collect(),
            condition: running.condition,
            pid: kept.running.as_ref().map(Process::id),
            up_since: kept
                .running
                .as_ref()
                .map(|_| seconds_since_1970(kept.since_time)),
            restarts: kept.starts,
            last_words: kept.last_words.clone(),
            counters,
            counts: running.counts.clone(),
            lost_while_down: running.lost_while_down,
            dropped: dropped.map(|(cause, n)| (cause.to_string(), n)).collect(),
        }
    }

    fn counted(&self) -> Vec<CountersView> {
        self.segments.iter().map(|s| s.before + s.now).collect()
    }

    fn has_ended(&self) -> bool {
        self.segments
            .iter()
            .all(|s| s.condition == Condition::Ended)
    }

    /// Returns true if the segment at an end of the chain has read its file, and all following segments are drained.
    /// Segments are drained one after the other.
    fn is_drained(&mut self) -> bool {
        let (count, now) = (self.segments.len(), Instant::now());
        // The threads of a single process need no drain: each ends by itself after its neighbour has ended.
        if self.processes.len() < 2 {
            return false;
        }
        if self.drain.is_none() {
            let ended = |at: &usize| self.segments[*at].condition == Condition::Ended;
            let Some(end) = [0, count - 1].into_iter().find(ended) else {
                return false;
            };
            self.drain = Drain::begin(end, count, &self.segments[end].at_end, now);
        }
        if let Some(drain) = self.drain.take_if(|drain| drain.is_over(now)) {
            self.drain = drain.next(count, now);
        }
        let Some(drain) = &mut self.drain else {
            return true;
        };
        let asks = drain.asks(now).then_some(drain.segment);
        if let Some(segment) = asks {
            self.ask_counters(segment);
        }
        false
    }

    /// Starts counting the losses on the links of a segment that has died. Each process has one segment, except a
    /// process that runs all segments as threads and has no neighbours.
    fn open_gaps(&mut self, at: usize) {
        if self.processes.len() < 2 {
            return;
        }
        // Gaps of neighbouring segments that wait for counters of this segment are discarded, because its counters are
        // lost with its process.
        self.gaps.retain(|gap| gap.neighbour != at);
        for neighbour in [at.wrapping_sub(1), at + 1] {
            if neighbour < self.segments.len() {
                let mut gaps = self.gaps.iter_mut();
                match gaps.find(|gap| (gap.segment, gap.neighbour) == (at, neighbour)) {
                    Some(gap) => gap.reopen(),
                    None => self.gaps.push(Gap::new(at, neighbour)),
                }
                self.ask_counters(neighbour);
            }
        }
    }

    /// Requests the counters of the neighbours of each restarted segment, to determine the packets lost during its
    /// outage.
    fn close_gaps(&mut self) {
        let mut gaps = std::mem::take(&mut self.gaps);
        for gap in &mut gaps {
            let running = &self.segments[gap.segment];
            if running.condition == Condition::Up && self.is_joined(running) && gap.close() {
                self.ask_counters(gap.neighbour);
            }
        }
        self.gaps = gaps;
    }

    /// Passes the counters of a segment to the outages ([`Gap`]) of its dead neighbours, and adds up the losses of the
    /// outages that have ended.
    fn fill_gaps(&mut self, neighbour: usize, ports: &[PortCounters]) {
        let segments = &mut self.segments;
        self.gaps.retain_mut(|gap| {
            if gap.neighbour != neighbour {
                return true;
            }
            let lost = gap.hear(ports);
            segments[gap.segment].lost_while_down += lost.unwrap_or(0);
            lost.is_none()
        });
    }

    /// Requests the counters of a process.
    fn ask_counters(&mut self, at: usize) {
        if let Some(child) = &mut self.processes[at].running {
            // An error is ignored: the end of the process is reported separately.
            let _ = child.order(&Order::default());
        }
    }

    /// Handles a request and replies to it. Returns false if the request ends the chain; its reply is then sent when
    /// the chain has ended.
    fn answer(&mut self, asked: Asked) -> bool {
        match asked.request {
            Request::Status => {
                asked.reply.send(Answer {
                    error: None,
                    status: Some(self.status()),
                });
                true
            }
            Request::Update { file, text } => {
                let updated = Chain::parse(&text, &file, FUNCTIONS)
                    .map_err(DeployError::from)
                    .and_then(|chain| self.update(&chain, Path::new(&file)));
                asked.reply.send(Answer {
                    error: updated.err().map(|e| e.to_string()),
                    status: Some(self.status()),
                });
                true
            }
            Request::Down => {
                self.ended_by = Some(asked.reply);
                false
            }
        }
    }

    /// Ends all processes, by force if necessary, and reads their last counters.
    fn end_processes(&mut self) {
        for kept in &mut self.processes {
            if let Some(process) = &mut kept.running {
                process.tell_to_end();
            }
        }
        let deadline = Instant::now() + END_DEADLINE;
        while self.processes.iter().any(|kept| kept.running.is_some()) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok(Heard::Word(word)) => {
                    self.hear(word);
                }
                Ok(Heard::Asked(_) | Heard::InputClosed) => {}
                Err(_) => break,
            }
        }
        // A process that ends too slowly reports no final counters, so its last reported counters are used.
        for running in &mut self.segments {
            running.count_as_told();
        }
        for kept in &mut self.processes {
            kept.running = None;
            kept.due = None;
        }
    }

    /// Writes the state of the chain to a file, which is read if the supervisor has died.
    fn write_state(&self) -> Result<(), DeployError> {
        let path = self.folder.path().join("state.json");
        let new = path.with_extension("new");
        let text = serde_json::to_string_pretty(&self.status()).unwrap_or_default();
        fs::write(&new, text + "\n")
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| DeployError::system(format!("cannot write {}", path.display()), e))
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        self.end_processes();
    }
}

/// Returns the name of a placement in chain files.
pub fn placement_text(placement: Placement) -> &'static str {
    match placement {
        Placement::Compact => "compact",
        Placement::Threads => "threads",
        Placement::Processes => "processes",
        Placement::Namespaces => "namespaces",
        Placement::Hybrid => "hybrid",
        Placement::Vm => "vm",
    }
}

fn seconds_since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
