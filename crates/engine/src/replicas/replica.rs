//! One replica of a function: a thread with an instance of the function, and the ring pair to the thread.

use super::note::Note;
use crate::chain::{ChainError, Stage};
use crate::outcomes::Outcomes;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use taut_function::{Context, Function};
use taut_port::pair::Lane;
use taut_port::{Batch, PortError};
use taut_sys::{Alarm, spawn_background, ticks};

/// The limit on packets that are at a replica, or have returned and wait for earlier ones; a power of two.
pub(super) const SLOTS: u32 = 1024;

/// The number of polls without packets after which the thread sleeps until a wakeup.
const LOOKS: u32 = 400;

/// The longest sleep of the thread.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The number of batches between two publications of the packet counts under load.
const BETWEEN_OUTCOMES: u32 = 4096;

const READY: u8 = 1;
const FAILED: u8 = 2;

/// The number of ring pairs created in this process for replicas, which makes the name of each ring pair unique.
static LANES: AtomicU64 = AtomicU64::new(0);

type Ready = Result<(), ChainError>;

/// The state of a replica's thread that the worker reads.
#[derive(Default)]
struct Published {
    /// The state of the thread: 0 at the start, then [`READY`] or [`FAILED`].
    state: AtomicU8,
    outcomes: Mutex<Outcomes>,
}

/// The worker's handle of a replica. Dropping it ends the thread, which first processes all packets in its ring.
pub(super) struct Replica {
    pub lane: Lane,
    /// Number of packets at the replica, and of those that have returned and wait for earlier ones.
    pub outstanding: u32,
    /// True if the replica may get packets.
    pub is_ready: bool,
    /// True if the replica gets no more packets.
    pub retires: bool,
    published: Arc<Published>,
    ready: mpsc::Receiver<Ready>,
}

impl Replica {
    /// Starts a thread that makes an instance of the function, on `core` if given.
    pub fn start(stage: &Stage, core: Option<usize>) -> Result<Self, ChainError> {
        let name = format!("replica {}", LANES.fetch_add(1, Ordering::Relaxed));
        let lane = Lane::open(&name, SLOTS)?;
        let (tell, ready) = mpsc::channel();
        let published = Arc::new(Published::default());
        let (stage, own) = (stage.clone(), Arc::clone(&published));
        spawn_background("replica", move || {
            match begin(&stage, &name, core) {
                Ok((function, lane)) => {
                    own.state.store(READY, Ordering::Relaxed);
                    // The worker may have stopped waiting.
                    let _ = tell.send(Ok(()));
                    run(function, lane, &own);
                }
                Err(e) => {
                    own.state.store(FAILED, Ordering::Relaxed);
                    let _ = tell.send(Err(e));
                }
            }
        })?;
        Ok(Self {
            lane,
            outstanding: 0,
            is_ready: false,
            retires: false,
            published,
            ready,
        })
    }

    /// Waits until the replica's instance of the function is prepared.
    pub fn wait_until_ready(&mut self) -> Result<(), ChainError> {
        let died = |_| {
            let dead = std::io::Error::other("its thread exited while starting");
            ChainError::Port(PortError::system("a replica", dead))
        };
        self.ready.recv().map_err(died)??;
        self.is_ready = true;
        Ok(())
    }

    /// Returns true if the replica's instance of the function is prepared.
    #[inline]
    pub fn has_begun(&self) -> bool {
        // Relaxed: the lane orders the packets, and nothing else is read.
        self.published.state.load(Ordering::Relaxed) == READY
    }

    /// Returns true if the replica is retired and has returned all packets, or could not start.
    #[inline]
    pub fn is_over(&self) -> bool {
        let has_failed = || self.published.state.load(Ordering::Relaxed) == FAILED;
        (self.retires && self.outstanding == 0) || (!self.is_ready && has_failed())
    }

    /// Returns the numbers of packets by outcome in the replica's function, as last published.
    pub fn outcomes(&self) -> Outcomes {
        let outcomes = self.published.outcomes.lock();
        outcomes.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Makes the instance of the function on the thread that uses it.
fn begin(
    stage: &Stage,
    name: &str,
    core: Option<usize>,
) -> Result<(Box<dyn Function>, Lane), ChainError> {
    if let Some(core) = core {
        taut_host::pin_current_thread(core)?;
    }
    let wrong = |reason: String| ChainError::Function {
        function: stage.name.clone(),
        reason,
    };
    let built = stage.catalog.build(&stage.name, stage.settings.clone());
    let mut function = built.map_err(|e| wrong(e.to_string()))?;
    function.prepare().map_err(ChainError::Port)?;
    if function.handler().is_some() {
        return Err(wrong(
            "replicas: it punts packets to a slow path, which replicas do not have: leave it out"
                .to_string(),
        ));
    }
    let lane = Lane::open(name, SLOTS)?;
    Ok((function, lane))
}

/// Processes packets until the worker has closed the ring pair and all packets in it are processed.
fn run(mut function: Box<dyn Function>, mut lane: Lane, published: &Published) {
    let (mut arrived, mut batch, mut alarm) = (Batch::new(), Batch::new(), Alarm::default());
    let (mut looks, mut unpublished) = (0, 0);
    loop {
        let received = lane.receive(&mut arrived);
        if received > 0 {
            if !pass(
                &mut *function,
                &mut lane,
                &mut arrived,
                &mut batch,
                received,
            ) {
                return;
            }
            (looks, unpublished) = (0, unpublished + 1);
            if unpublished > BETWEEN_OUTCOMES && publish(&*function, published) {
                unpublished = 0;
            }
            continue;
        }
        if unpublished > 0 && publish(&*function, published) {
            unpublished = 0;
        }
        if !lane.is_open() {
            return;
        }
        if looks < LOOKS {
            looks += 1;
            std::thread::yield_now();
        } else {
            alarm.clear();
            if lane.arm(&mut alarm) {
                alarm.wait(LONGEST_SLEEP);
            }
            lane.disarm();
        }
    }
}

/// Passes the received packets to the function and returns all of them to the worker. Returns false if the worker has
/// closed the ring pair.
fn pass(
    function: &mut dyn Function,
    lane: &mut Lane,
    arrived: &mut Batch,
    batch: &mut Batch,
    received: usize,
) -> bool {
    let mut done = 0;
    while done < received {
        let first = Note::of(lane.note(done));
        let is_like = |index: &usize| Note::of(lane.note(*index)).is_like(first);
        let same = (done..received).take_while(is_like).count();
        arrived.move_up_to(same, batch);
        let context = Context {
            now_ticks: ticks(),
            from_port: usize::from(first.from_port),
            to_port: usize::from(first.to_port),
            ports: usize::from(first.ports),
        };
        for index in 0..batch.len() {
            if let Some(priority) = Note::of(lane.note(done + index)).priority {
                batch.set_priority(index, priority);
            }
        }
        function.process(batch, &context);
        for index in 0..batch.len() {
            let frame = batch.packets()[index].bytes();
            // A replica has no slow path, so punted packets are dropped.
            let fits = frame.len() <= Lane::LONGEST_FRAME_BYTES;
            let note = Note {
                is_dropped: !batch.is_kept(index) || !fits,
                priority: batch.marks(index).priority(),
                ..Note::of(lane.note(done + index))
            };
            let frame = if note.is_dropped { &[] } else { frame };
            while !lane.push(frame, note.bits()) {
                lane.publish();
                if !lane.is_open() {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        lane.publish();
        batch.clear();
        done += same;
    }
    true
}

/// Publishes the function's numbers of packets by outcome. Returns false if a reader has the lock; the thread does not
/// wait for it.
fn publish(function: &dyn Function, published: &Published) -> bool {
    let Ok(mut outcomes) = published.outcomes.try_lock() else {
        return false;
    };
    *outcomes = function.outcomes();
    true
}
