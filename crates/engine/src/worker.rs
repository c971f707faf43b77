//! The worker: one thread that runs receive -> functions -> send to completion. The loop is in this file; tasks outside
//! the loop, and rare ones, are in the files of `worker/`.

mod change;
mod classified;
mod fan_out;
mod housekeeping;
mod lanes;

use crate::classes::Classes;
use crate::handoff::Handoff;
use crate::idle::Idle;
use crate::interruptions::Interrupted;
use crate::lanes::Lanes;
use crate::outbox::Outbox;
use crate::outcomes::add_outcomes;
use crate::queues::Queues;
use crate::slow::SlowPath;
use crate::time::Time;
use crate::update::{Leaving, Numbers};
use crate::{
    Classification, Counters, CountersView, DEFAULT_BURST, Flush, Queueing, Stage, Updates, Wait,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use taut_function::{Context, EmptyBatches, Function, Member, Needs, Spread};
use taut_port::{
    BATCH_CAPACITY, Batch, Breakdown, Direction, Link, Pairs, PoolHandle, Port, PortError,
};
use taut_sys::{Clock, InterruptionLog, StampClock, ticks};

/// The period, in seconds, of publishing counters and checking links.
const PUBLISH_SECONDS: f64 = 0.1;

/// The reason why a worker's run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The worker's stop flag was set.
    Stopped,
    /// All input files have been read, and no other port can receive packets that the worker would forward.
    Done,
    /// A port has failed: its index, and the reason.
    Broken(usize, Breakdown),
}

/// The egress port for the packets of an ingress port.
#[derive(Clone, Copy)]
struct Egress {
    /// Index of the egress port.
    to: usize,
    /// True if packets of the ingress port must not be lost, as with a file: the worker then receives no more packets
    /// from this port than the egress port accepts.
    patient: bool,
    /// True if the egress port's link was up at the last check; only for a patient ingress port.
    open: bool,
}

/// The callback for link changes. It gets the port's index and the new link state.
type TellLink = Box<dyn FnMut(usize, &Link)>;

/// The work of one pinned thread: its ports, the paths between them, and the functions on those paths.
///
/// Everything is made before the loop starts. The loop itself allocates nothing, locks nothing and makes no system call
/// of its own, unless its [`Wait`] policy makes it sleep.
pub struct Worker {
    ports: Vec<Box<dyn Port>>,
    /// Egress port for the packets of each ingress port, by index of the ingress port.
    ways: Vec<Egress>,
    functions: Vec<Box<dyn Function>>,
    /// Properties that each function requires of the worker, in the order of the functions.
    needs: Vec<Needs>,
    /// Identifiers of the functions for the slow path.
    numbers: Numbers,
    /// Stages of the functions, if the functions may be replaced.
    stages: Vec<Stage>,
    /// Classes of the packets; None without a classifier: all packets then pass all functions.
    classes: Option<Box<Classes>>,
    updates: Arc<Updates>,
    /// Replaced functions that have not released all packets yet; None if there are no such functions.
    leaving: Option<Leaving>,
    /// Numbers of packets by outcome in the functions that were removed.
    past_outcomes: Vec<(&'static str, u64)>,
    /// True if a function delays packets, and therefore is also called without packets.
    holds_packets: bool,
    /// True if a function chooses egress ports.
    sends: bool,
    /// Transmit buffer of each port.
    outboxes: Vec<Outbox>,
    /// Packets of a batch by egress port; only used if the packets of a batch have different egress ports.
    parts: Vec<Batch>,
    /// Pool for copies of packets; None if no copies are made.
    copies: Option<PoolHandle>,
    lanes: Lanes,
    /// Index of the worker in its chain, and the number of workers.
    member: Member,
    /// Index of the function that determines the owners of packets; None if no function does, or if this worker is the
    /// only one.
    knows_homes: Option<usize>,
    idle: Idle,
    interrupted: Interrupted,
    /// Unit of each port's wall-clock timestamps, ns; 0 for a port without such timestamps.
    stamp_units_ns: Vec<u64>,
    /// Configured maximum number of packets per receive call.
    asked_burst: usize,
    /// Maximum number of packets per receive call; less than configured if a batch needs space for packets that
    /// functions add.
    burst: usize,
    publish_ticks: u64,
    counters: Arc<Counters>,
    on_link_change: TellLink,
}

impl Worker {
    /// Makes a worker over `ports`, taken in pairs: packets that enter one port of a pair leave through the other. If
    /// the number of ports is odd, packets that enter the last port leave through it again.
    pub fn new(
        ports: Vec<Box<dyn Port>>,
        functions: Vec<Box<dyn Function>>,
        flush: Flush,
        clock: &Clock,
    ) -> Self {
        let pairs = Pairs::of(ports.len());
        let ways = ports
            .iter()
            .enumerate()
            .map(|(from, port)| Egress {
                to: pairs.partner(from),
                patient: port.waits(),
                open: false,
            })
            .collect();
        let outboxes: Vec<_> = ports
            .iter()
            .map(|_| Outbox::new(flush, clock, ticks()))
            .collect();
        let mut worker = Self {
            parts: outboxes.iter().map(|_| Batch::new()).collect(),
            copies: None,
            lanes: Lanes::default(),
            member: Member::default(),
            knows_homes: None,
            outboxes,
            idle: Idle::new(Wait::Poll, clock, Time::default()),
            interrupted: Interrupted::new(clock),
            stamp_units_ns: ports.iter().map(|it| stamp_unit_ns(&**it)).collect(),
            ways,
            holds_packets: false,
            sends: false,
            numbers: Numbers::of(functions.len()),
            functions,
            needs: Vec::new(),
            stages: Vec::new(),
            classes: None,
            updates: Arc::default(),
            leaving: None,
            past_outcomes: Vec::new(),
            asked_burst: DEFAULT_BURST,
            burst: DEFAULT_BURST,
            publish_ticks: clock.to_ticks(PUBLISH_SECONDS * 1e9) as u64,
            counters: Arc::default(),
            on_link_change: Box::new(|_, _| {}),
            ports,
        };
        worker.suit_functions();
        worker
    }

    /// Updates the worker's fields that depend on the functions.
    fn suit_functions(&mut self) {
        self.needs = self.functions.iter().map(|f| f.needs()).collect();
        self.holds_packets = self
            .needs
            .iter()
            .any(|it| it.empty_batches != EmptyBatches::No);
        self.sends = self.needs.iter().any(|it| it.chooses_ports);
        let own_bytes = self.needs.iter().any(|it| it.own_bytes);
        self.ports.iter_mut().for_each(|it| it.own_bytes(own_bytes));
        let counted = self.functions.iter().filter_map(|f| f.counted());
        let classes = self.classes.iter().map(|it| it.counted());
        self.counters.have_functions(counted.chain(classes));
        let mut needs = self.needs.iter();
        self.knows_homes = match self.lanes.handoff {
            Some(_) => needs.position(|it| it.spread == Spread::Homes),
            None => None,
        };
        self.burst = if self.holds_packets {
            // Because of this limit, functions that add packets find space for them in every batch.
            self.asked_burst.min(BATCH_CAPACITY / 2)
        } else {
            self.asked_burst
        };
    }

    /// Sets the maximum number of packets per receive call (1 to [`crate::MOST_BURST`]); the default is
    /// [`DEFAULT_BURST`].
    pub fn set_burst(&mut self, burst: usize) {
        self.asked_burst = burst;
        self.suit_functions();
    }

    /// Sets the waiting policy; the default is polling. [`Wait::Interrupt`] needs ports that can wake the worker
    /// ([`crate::Chain::check`]).
    pub fn set_wait(&mut self, wait: Wait, clock: &Clock) {
        self.idle = Idle::new(wait, clock, Time::default());
    }

    /// Sets the pool for copies of packets, which functions need to send one packet through several ports. Without a
    /// pool no copies are made.
    pub fn set_pool(&mut self, pool: PoolHandle) {
        self.copies = Some(pool);
    }

    /// Makes the worker queue packets for full ports instead of dropping them.
    ///
    /// # Errors
    /// The machine has no memory for the queues.
    pub fn set_queueing(&mut self, queueing: &Queueing, clock: &Clock) -> Result<(), PortError> {
        for outbox in &mut self.outboxes {
            outbox.set_queues(Queues::new(queueing, clock, Time::default())?);
        }
        self.counters
            .have_queues(self.outboxes.len(), queueing.priorities);
        Ok(())
    }

    /// Makes a classifier select the chain of each packet. `stages` are those of the worker's functions.
    pub(crate) fn set_classes(&mut self, classification: &Classification, stages: &[Stage]) {
        self.classes = Some(Box::new(Classes::new(classification, stages)));
        self.suit_functions();
    }

    /// Starts a slow path, if a function needs one.
    ///
    /// # Errors
    /// The machine lacks memory for the slow path, or cannot start its thread.
    pub fn start_slow_path(&mut self) -> Result<(), PortError> {
        let numbered = self.functions.iter_mut().zip(self.numbers.all());
        let handlers = numbered.filter_map(|(f, number)| Some((*number, f.handler()?)));
        SlowPath::provide(&mut self.lanes.slow, handlers)
    }

    /// Makes this worker one of several workers of its chain; `handoff` has the ring pairs to the others.
    pub(crate) fn join(&mut self, member: Member, handoff: Handoff) {
        self.member = member;
        self.lanes.handoff = Some(handoff);
        self.suit_functions();
    }

    /// Logs the interruptions of the worker in `log`.
    pub fn log_interruptions(&mut self, log: InterruptionLog) {
        self.interrupted.log_to(log);
    }

    /// Returns the counters, which any thread can read.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Returns the numbers of packets by outcome (what a function did with a packet), in the order of the chain.
    /// Outcomes with equal names are summed. Replaced functions are included.
    pub fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let mut sums = Vec::new();
        let present = self.functions.iter().flat_map(|f| f.outcomes());
        let leaving = self.leaving.iter().flat_map(Leaving::outcomes);
        add_outcomes(&mut sums, present.chain(leaving));
        add_outcomes(&mut sums, self.past_outcomes.iter().copied());
        add_outcomes(&mut sums, self.classes.iter().flat_map(|it| it.outcomes()));
        sums
    }

    /// Allows the functions, which were made from `stages`, to be replaced through the returned handle while the worker
    /// runs.
    pub fn updates(&mut self, stages: &[Stage]) -> Arc<Updates> {
        self.stages = stages.to_vec();
        self.counters.have_names(stages);
        Arc::clone(&self.updates)
    }

    /// Sets a callback for link changes. It gets the port's index and link state within 100 ms of the change.
    pub fn on_link_change(&mut self, tell: impl FnMut(usize, &Link) + 'static) {
        self.on_link_change = Box::new(tell);
    }

    /// Runs until `stop` is true, or until all input files have been read and their packets sent. At the end it sends
    /// buffered packets, closes the ports and publishes the final counters.
    pub fn run(&mut self, stop: &AtomicBool) -> End {
        let mut end = End::Stopped;
        let mut was_at_end = false;
        let mut own = CountersView::default();
        let mut links: Vec<Option<Link>> = self.ports.iter().map(|_| None).collect();
        let mut batches = batches_of(self.burst);
        let mut punted = Batch::new();
        let mut last = ticks();
        let mut publish_at = last;
        // These two flags are stored outside of the worker, because every iteration reads them.
        let (mut has_lanes, mut is_changing) = (self.lanes.are_any(), self.leaving.is_some());
        self.idle.begin();
        self.tell_counts(&own);
        while !stop.load(Ordering::Relaxed) {
            let mut received = 0;
            for from in 0..self.ports.len() {
                received += self.round(from, last, &mut batches, &mut punted, &mut own);
            }
            let mut had_packets = received > 0;
            if has_lanes {
                had_packets =
                    self.serve_lanes(had_packets, last, &mut batches[0], &mut punted, &mut own);
            }
            let now = ticks();
            let elapsed = now.wrapping_sub(last);
            own.busy_ticks += if had_packets { elapsed } else { 0 };
            own.rounds += 1;
            if self.interrupted.is_suspected(had_packets, elapsed) {
                let packets = had_packets.then_some(received as u64);
                self.interrupted
                    .note(packets, last, elapsed, &self.outboxes, &mut own);
            }
            // The time after any idle sleep. Sleeping must not count as lateness or as an interruption.
            let ready = self.idle.after_round(
                // Leaving functions must be called again, so the worker must not sleep now.
                had_packets || is_changing,
                now,
                &mut self.ports,
                &mut self.functions,
                &mut self.lanes,
                &self.outboxes,
            );
            own.total_ticks += ready.wrapping_sub(last);
            last = ready;
            if now.wrapping_sub(publish_at) < u64::MAX / 2 {
                self.look_around(&mut own, &mut links);
                publish_at = now + self.publish_ticks;
                // The worker ends after two successive checks that find a reason to end, so that the peers have had
                // time to receive the last packets.
                match self.end() {
                    Some(found) if was_at_end => {
                        end = found;
                        break;
                    }
                    found => was_at_end = found.is_some(),
                }
                // The time of these periodic tasks belongs to no iteration.
                let looked = ticks();
                own.total_ticks += looked.wrapping_sub(last);
                last = looked;
            }
            if is_changing || self.updates.is_wanted() {
                if self.change(last, &mut batches[0], &mut punted, &mut own) {
                    batches = batches_of(self.burst);
                    self.tell_new_functions(&own, &links);
                }
                (has_lanes, is_changing) = (self.lanes.are_any(), self.leaving.is_some());
                let changed = ticks();
                own.total_ticks += changed.wrapping_sub(last);
                last = changed;
            }
        }
        self.updates.end();
        for (outbox, port) in self.outboxes.iter_mut().zip(&mut self.ports) {
            outbox.flush(&mut **port);
        }
        for port in &mut self.ports {
            port.close();
        }
        // A port may fail while it is closed; that failure then is the reason why the run ended.
        if !matches!(end, End::Broken(..)) {
            end = self.broken().unwrap_or(end);
        }
        self.look_around(&mut own, &mut links);
        end
    }

    /// Receives a full burst from one port, passes it to each function, and sends it, so that rings and caches handle
    /// the burst as a unit. A burst is one batch unless it exceeds [`BATCH_CAPACITY`]. Returns the number of received
    /// packets.
    #[inline(always)]
    fn round(
        &mut self,
        from: usize,
        now_ticks: u64,
        batches: &mut [Batch],
        punted: &mut Batch,
        own: &mut CountersView,
    ) -> usize {
        let way = self.ways[from];
        if way.patient && !self.may_take(from) {
            return 0;
        }
        let Some((first, more)) = batches.split_first_mut() else {
            return 0;
        };
        let (mut asked, mut used) = (first.room(), 0);
        let mut received = self.receive(from, first);
        // Reading packets of a file earlier has no advantage, so a burst of a patient port is one batch.
        while received == asked && used < more.len() && !way.patient {
            asked += more[used].room();
            received += self.receive(from, &mut more[used]);
            used += 1;
        }
        let ran_dry = received < asked;
        if received > 0 || self.holds_packets {
            own.batches += u64::from(received > 0);
            let context = Context {
                now_ticks,
                from_port: from,
                to_port: way.to,
                ports: self.ports.len(),
            };
            let more = &mut more[..used];
            if self.knows_homes.is_some() {
                self.hand_over(first, &context, punted, own);
                for batch in &mut *more {
                    self.hand_over(batch, &context, punted, own);
                }
            }
            if self.classes.is_some() {
                self.process_classes(first, more, &context, ran_dry, punted, own);
            } else {
                self.process(first, more, &context);
                self.send(&context, first, ran_dry && used == 0, punted, own);
                for (index, batch) in more.iter_mut().enumerate() {
                    self.send(&context, batch, ran_dry && index + 1 == used, punted, own);
                }
            }
        }
        let (outbox, out) = (&mut self.outboxes[way.to], &mut *self.ports[way.to]);
        outbox.tick(now_ticks, received == 0, way.patient, out);
        received
    }

    /// Receives as many packets as fit into a batch.
    #[inline(always)]
    fn receive(&mut self, from: usize, batch: &mut Batch) -> usize {
        let port = &mut self.ports[from];
        let received = port.rx(batch);
        let unit_ns = self.stamp_units_ns[from];
        if unit_ns > 0 {
            batch.set_arrivals(port.arrival_stamps(), unit_ns);
        }
        received
    }

    /// Passes all batches of a burst, the first and `more`, to each function. Usually there is only the first batch.
    #[inline(always)]
    fn process(&mut self, first: &mut Batch, more: &mut [Batch], context: &Context) {
        let holds_packets = self.holds_packets;
        if holds_packets {
            first.set_limit(BATCH_CAPACITY);
            for batch in &mut *more {
                batch.set_limit(BATCH_CAPACITY);
            }
        }
        let mut pass = |(function, number): (&mut Box<dyn Function>, &u8)| {
            first.set_stage(*number);
            function.process(first, context);
            for batch in &mut *more {
                if holds_packets || !batch.is_empty() {
                    batch.set_stage(*number);
                    function.process(batch, context);
                }
            }
        };
        let functions = self.functions.iter_mut().zip(self.numbers.all());
        match Direction::from_port(context.from_port) {
            Direction::Out => functions.for_each(&mut pass),
            Direction::Back => functions.rev().for_each(&mut pass),
        }
    }

    /// Removes the packets of a batch that functions have marked, and sends the remaining packets.
    #[inline(always)]
    fn send(
        &mut self,
        context: &Context,
        batch: &mut Batch,
        ran_dry: bool,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        let way = self.ways[context.from_port];
        self.settle(context, batch, punted, own);
        if batch.goes_together() {
            let (outbox, out) = (&mut self.outboxes[way.to], &mut *self.ports[way.to]);
            outbox.accept(batch, ran_dry, way.patient, out);
        } else {
            self.send_apart(way, batch, ran_dry, None, own);
        }
        if self.holds_packets {
            batch.set_limit(self.burst);
        }
    }

    /// Removes the marked packets from a batch: drops and counts those marked as dropped, and punts those marked as
    /// punted.
    #[inline(always)]
    fn settle(
        &mut self,
        context: &Context,
        batch: &mut Batch,
        punted: &mut Batch,
        own: &mut CountersView,
    ) {
        if batch.is_marked() {
            own.dropped_by_function += batch.settle(punted) as u64;
            if !punted.is_empty() {
                self.punt(context, punted, own);
            }
        }
    }

    /// Returns true if a patient ingress port may receive: its egress link is up and the egress port has accepted all
    /// earlier packets. If functions choose egress ports, all ports must have accepted their packets.
    fn may_take(&mut self, from: usize) -> bool {
        let Egress { to, open, .. } = self.ways[from];
        let mut outboxes = self.outboxes.iter_mut().zip(&mut self.ports).enumerate();
        open && outboxes.all(|(number, (outbox, port))| {
            (number != to && !self.sends) || outbox.catch_up(&mut **port)
        })
    }
}

/// Returns the unit of a port's wall-clock timestamps, of arrival or capture, ns; 0 without such timestamps.
fn stamp_unit_ns(port: &dyn Port) -> u64 {
    match port.stamp_clock() {
        Some(StampClock::Realtime { unit_ns }) => unit_ns.into(),
        Some(StampClock::Recorded) => 1,
        _ => 0,
    }
}

/// Returns true if a port timestamps arriving packets by the time of day.
pub(crate) fn is_stamped_by_the_day(port: &dyn Port) -> bool {
    matches!(port.stamp_clock(), Some(StampClock::Realtime { .. }))
}

/// Returns as many empty batches as a burst of the given size needs.
fn batches_of(burst: usize) -> Vec<Batch> {
    let starts = (0..burst).step_by(BATCH_CAPACITY);
    starts.map(|start| Batch::limited(burst - start)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;
    use std::time::Duration;
    use taut_port::{Packet, PortCounters, Punt, Supply};

    /// A port that delivers the given bursts, stops the worker after the last one, and logs the size of every send.
    struct Scripted {
        pool: PoolHandle,
        bursts: Vec<usize>,
        sent: Rc<RefCell<Vec<usize>>>,
        room: usize,
        stop: Arc<AtomicBool>,
    }

    impl Port for Scripted {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            match self.bursts.pop() {
                Some(n) => self.pool.fill(batch, n, 60),
                None => {
                    self.stop.store(true, Ordering::Relaxed);
                    0
                }
            }
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len().min(self.room);
            self.sent.borrow_mut().push(n);
            batch.take_front(n, drop);
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// A port that delivers numbered packets in bursts of random size, and logs the numbers of sent packets.
    struct Counting {
        pool: PoolHandle,
        number: u8,
        left: u8,
        sent: Rc<RefCell<Vec<[u8; 2]>>>,
        done: Rc<RefCell<usize>>,
        stop: Arc<AtomicBool>,
        /// Maximum number of packets accepted per call; the actual number is random.
        most: usize,
    }

    impl Port for Counting {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            if self.left == 0 {
                return 0;
            }
            let before = batch.len();
            let received =
                self.pool
                    .fill(batch, usize::from(self.left.min(fastrand::u8(1..40))), 60);
            for packet in &mut batch.packets_mut()[before..] {
                packet.bytes_mut()[..2].copy_from_slice(&[self.number, self.left]);
                self.left -= 1;
            }
            if self.left == 0 {
                *self.done.borrow_mut() += 1;
                if *self.done.borrow() == 4 {
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
            received
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let count = match self.most {
                BATCH_CAPACITY => batch.len(),
                most => batch.len().min(fastrand::usize(0..=most)),
            };
            let mut sent = self.sent.borrow_mut();
            batch.take_front(count, |packet| {
                sent.push([packet.bytes()[0], packet.bytes()[1]])
            });
            count
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// Expected packets by index of the egress port.
    type Expected = Rc<RefCell<[Vec<[u8; 2]>; 4]>>;

    /// A function that randomly drops, punts, copies and redirects packets, and logs the expected packets of each port.
    struct AtRandom {
        expected: Expected,
        copies: Rc<RefCell<u64>>,
    }

    impl Function for AtRandom {
        fn process(&mut self, batch: &mut Batch, context: &Context) {
            let mut expected = self.expected.borrow_mut();
            for index in 0..batch.len() {
                let number = [0, 1].map(|at| batch.packets()[index].bytes()[at]);
                let mut to = context.to_port as u8;
                let dice = fastrand::u8(0..10);
                if dice < 4 {
                    to = fastrand::u8(0..5);
                    batch.send_to(index, to);
                }
                match fastrand::u8(0..10) {
                    0 => batch.mark_dropped(index),
                    1 => batch.mark_punted(index, Punt::Local),
                    more => {
                        for _ in 7..more {
                            let copy = fastrand::u8(0..4);
                            assert!(batch.copy_to(index, copy));
                            *self.copies.borrow_mut() += 1;
                            expected[usize::from(copy)].push(number);
                        }
                        // The function also chooses a port that does not exist, for which no packet is expected.
                        if let Some(expected) = expected.get_mut(usize::from(to)) {
                            expected.push(number);
                        }
                        continue;
                    }
                }
            }
        }
    }

    #[test]
    fn every_packet_leaves_its_port_in_order_or_is_counted() {
        at_random(BATCH_CAPACITY, "");
    }

    #[test]
    fn queued_packets_leave_in_order_or_are_counted() {
        for queue in [
            "queue = 1000",
            "queue = 10",
            "queue = { packets = 64, bytes = 900 }",
            "queue = { packets = 64, drop = \"codel(1us, 20us)\" }",
        ] {
            at_random(20, queue);
        }
    }

    /// Tests four ports that accept at most `most` packets per call, with the given queues.
    fn at_random(most: usize, queue: &str) {
        #[derive(serde::Deserialize)]
        struct File {
            queue: Option<Queueing>,
        }
        let File { queue } = toml::from_str(queue).unwrap();
        for (round, flush) in ["idle(32)", "each", "full(16, 10us)", "every(5us)"]
            .into_iter()
            .cycle()
            .take(40)
            .enumerate()
        {
            fastrand::seed(round as u64);
            let (stop, done) = (Arc::new(AtomicBool::new(false)), Rc::default());
            let pool = PoolHandle::new(4096, false).unwrap();
            let sent: Vec<Rc<RefCell<Vec<[u8; 2]>>>> = (0..4).map(|_| Rc::default()).collect();
            let port = |number: usize| {
                Box::new(Counting {
                    pool: pool.clone(),
                    number: number as u8,
                    left: 255,
                    sent: Rc::clone(&sent[number]),
                    done: Rc::clone(&done),
                    stop: Arc::clone(&stop),
                    most,
                }) as Box<dyn Port>
            };
            let (expected, copies): (Expected, Rc<RefCell<u64>>) = Default::default();
            let function = AtRandom {
                expected: Rc::clone(&expected),
                copies: Rc::clone(&copies),
            };
            let clock = Clock::calibrate(Duration::from_millis(1));
            let functions: Vec<Box<dyn Function>> = vec![Box::new(function)];
            let flush = flush.parse().unwrap();
            let mut worker = Worker::new((0..4).map(port).collect(), functions, flush, &clock);
            worker.set_pool(pool.clone());
            if let Some(queue) = &queue {
                worker.set_queueing(queue, &clock).unwrap();
            }
            worker.run(&stop);
            let counted = worker.counters().read();
            let left: u64 = sent.iter().map(|sent| sent.borrow().len() as u64).sum();
            assert_eq!(counted.dropped_no_copy, 0);
            assert_eq!(4 * 255 + *copies.borrow(), left + counted.dropped());
            for (to, sent) in sent.iter().enumerate() {
                for from in 0..4 {
                    let of_it = |all: &[[u8; 2]]| -> Vec<u8> {
                        let of_it = all.iter().filter(|it| it[0] == from);
                        of_it.map(|it| it[1]).collect()
                    };
                    let expected = of_it(&expected.borrow()[to]);
                    let sent = of_it(&sent.borrow());
                    if queue.is_none() {
                        assert_eq!(sent, expected, "{flush} {from} to {to}");
                    }
                    // Packets dropped at a full port are missing, but the others must be in order.
                    let mut expected = expected.iter();
                    let mut in_order = sent.iter().map(|sent| expected.any(|it| it == sent));
                    assert!(in_order.all(|it| it), "{flush} {from} to {to}: {sent:?}");
                }
            }
            drop(worker);
            assert_eq!(pool.outstanding(), 0);
        }
    }

    /// A port that logs the arguments of the calls of [`Port::own_bytes`].
    struct OwnBytes(Rc<RefCell<Vec<bool>>>);

    impl Port for OwnBytes {
        fn rx(&mut self, _: &mut Batch) -> usize {
            0
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            batch.len()
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }

        fn own_bytes(&mut self, wanted: bool) {
            self.0.borrow_mut().push(wanted);
        }
    }

    /// A function that reads packets more than once, so that no peer may change them in between.
    struct ReadsTwice;

    impl Function for ReadsTwice {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn needs(&self) -> Needs {
            Needs {
                own_bytes: true,
                ..Needs::default()
            }
        }
    }

    #[test]
    fn ports_copy_packets_for_functions_that_need_private_bytes() {
        let clock = Clock::calibrate(Duration::from_millis(1));
        for needs in [false, true] {
            let logs: [Rc<RefCell<Vec<bool>>>; 2] = Default::default();
            let port =
                |log: &Rc<RefCell<Vec<bool>>>| Box::new(OwnBytes(Rc::clone(log))) as Box<dyn Port>;
            let functions: Vec<Box<dyn Function>> = match needs {
                true => vec![Box::new(ReadsTwice)],
                false => Vec::new(),
            };
            let flush = "each".parse().unwrap();
            let _worker = Worker::new(logs.iter().map(port).collect(), functions, flush, &clock);
            assert!(logs.iter().all(|log| log.borrow().last() == Some(&needs)));
        }
    }

    /// Runs a worker with the flush policy `flush` over one port that delivers `bursts`; returns the sizes of the
    /// worker's sends, and its counters.
    fn sends(flush: &str, bursts: &[usize], room: usize) -> (Vec<usize>, CountersView) {
        let stop = Arc::new(AtomicBool::new(false));
        let sent = Rc::new(RefCell::new(Vec::new()));
        let port = Scripted {
            pool: PoolHandle::new(256, false).unwrap(),
            bursts: bursts.iter().rev().copied().collect(),
            sent: Rc::clone(&sent),
            room,
            stop: Arc::clone(&stop),
        };
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut worker = Worker::new(
            vec![Box::new(port)],
            Vec::new(),
            flush.parse().unwrap(),
            &clock,
        );
        worker.run(&stop);
        let counters = worker.counters().read();
        (sent.take(), counters)
    }

    #[test]
    fn flush_each_sends_every_packet_separately() {
        assert_eq!(sends("each", &[3, 0, 1], 64).0, [1, 1, 1, 1]);
    }

    #[test]
    fn flush_full_sends_full_buffers_and_remaining_packets_at_exit() {
        assert_eq!(sends("full(4, 1s)", &[3, 3, 1, 3], 64).0, [4, 4, 2]);
    }

    #[test]
    fn flush_idle_sends_on_empty_queues_and_batches_under_load() {
        assert_eq!(
            sends("idle(32)", &[1, 0, 5, 32, 32, 2], 64).0,
            [1, 5, 32, 32, 2]
        );
        assert_eq!(sends("idle(64)", &[32, 32, 32, 1], 64).0, [64, 33]);
    }

    #[test]
    fn flush_every_sends_on_timer_expiry_or_full_buffer() {
        assert_eq!(sends("every(1s)", &[32, 32, 3], 64).0, [64, 3]);
        let (sent, _) = sends("every(1ns)", &[2, 2], 64);
        assert_eq!(sent.iter().sum::<usize>(), 4);
        assert_eq!(sent.len(), 2);
    }

    /// An event in a worker's iteration.
    #[derive(Debug, PartialEq, Clone)]
    enum Event {
        Received(usize),
        Seen(usize),
        Sent(Vec<u8>),
    }

    type Events = Rc<RefCell<Vec<Event>>>;

    /// A port with numbered packets, which stops the worker after the last one, and logs its calls.
    struct Queue {
        pool: PoolHandle,
        waiting: usize,
        next: u8,
        events: Events,
        stop: Arc<AtomicBool>,
    }

    impl Port for Queue {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            if self.waiting == 0 {
                self.stop.store(true, Ordering::Relaxed);
            }
            let n = self.pool.fill(batch, self.waiting, 60);
            for packet in batch.packets_mut() {
                packet.bytes_mut()[0] = self.next;
                self.next = self.next.wrapping_add(1);
            }
            self.waiting -= n;
            self.events.borrow_mut().push(Event::Received(n));
            n
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len();
            let numbers = batch.packets().iter().map(|p| p.bytes()[0]).collect();
            batch.clear();
            self.events.borrow_mut().push(Event::Sent(numbers));
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// A function that drops every packet whose number is a multiple of ten.
    struct DropTens(Events);

    impl Function for DropTens {
        fn process(&mut self, batch: &mut Batch, _: &Context) {
            self.0.borrow_mut().push(Event::Seen(batch.len()));
            for index in 0..batch.len() {
                if batch.packets()[index].bytes()[0].is_multiple_of(10) {
                    batch.mark_dropped(index);
                }
            }
        }
    }

    /// Runs a worker with burst size `burst` and flush policy `flush` on `waiting` packets, all of which are there from
    /// the start. Returns the events in order, and the counters of the worker.
    fn events(burst: usize, waiting: usize, flush: &str) -> (Vec<Event>, CountersView) {
        let events = Events::default();
        let function = Box::new(DropTens(Rc::clone(&events)));
        events_with(function, &events, burst, waiting, flush)
    }

    fn events_with(
        function: Box<dyn Function>,
        events: &Events,
        burst: usize,
        waiting: usize,
        flush: &str,
    ) -> (Vec<Event>, CountersView) {
        let stop = Arc::new(AtomicBool::new(false));
        let queue = Queue {
            pool: PoolHandle::new(1024, false).unwrap(),
            waiting,
            next: 0,
            events: Rc::clone(events),
            stop: Arc::clone(&stop),
        };
        let clock = Clock::calibrate(Duration::from_millis(2));
        let flush = flush.parse().unwrap();
        let mut worker = Worker::new(vec![Box::new(queue)], vec![function], flush, &clock);
        worker.set_burst(burst);
        worker.run(&stop);
        let counters = worker.counters().read();
        (events.take(), counters)
    }

    fn sent(events: Vec<Event>) -> Vec<u8> {
        let sent = events.into_iter().filter_map(|event| match event {
            Event::Sent(packets) => Some(packets),
            _ => None,
        });
        sent.flatten().collect()
    }

    #[test]
    fn all_batches_of_a_burst_arrive_before_processing_begins() {
        let (seen, counters) = events(150, 140, "idle(64)");
        let order: Vec<(char, usize)> = seen
            .iter()
            .map(|event| match event {
                Event::Received(n) => ('r', *n),
                Event::Seen(n) => ('f', *n),
                Event::Sent(packets) => ('s', packets.len()),
            })
            .collect();
        // The bursts of 64, 64 and 12 packets lose 14 of their packets: 57, 58 and 11 are left.
        let round = [
            ('r', 64),
            ('r', 64),
            ('r', 12),
            ('f', 64),
            ('f', 64),
            ('f', 12),
            ('s', 64),
            ('s', 62),
        ];
        assert_eq!(order[..round.len()], round);
        assert_eq!((counters.batches, counters.dropped_by_function), (1, 14));
        assert_eq!(counters.dropped(), 14);
    }

    #[test]
    fn any_burst_size_preserves_order_and_drops_only_marked_packets() {
        let wanted: Vec<u8> = (0..=255).filter(|n| n % 10 != 0).collect();
        for burst in [1, 63, 64, 65, 128, 200, crate::MOST_BURST] {
            for flush in ["each", "full(7, 1ms)", "every(1ms)", "idle(32)", "idle(64)"] {
                let (seen, counters) = events(burst, 256, flush);
                assert_eq!(sent(seen), wanted, "bursts of {burst}, {flush}");
                let bursts = 256_usize.div_ceil(burst) as u64;
                assert_eq!(counters.batches, bursts, "bursts of {burst}, {flush}");
            }
        }
    }

    /// A function that delays every packet at least until the next batch.
    #[derive(Default)]
    struct OneBehind(VecDeque<Packet>);

    impl Function for OneBehind {
        fn process(&mut self, batch: &mut Batch, _: &Context) {
            let before = self.0.len();
            batch.take_front(batch.len(), |packet| self.0.push_back(packet));
            for packet in self.0.drain(..before.min(batch.room())) {
                batch.push(packet);
            }
        }

        fn needs(&self) -> Needs {
            Needs {
                empty_batches: EmptyBatches::Polls,
                ..Needs::default()
            }
        }
    }

    #[test]
    fn packets_stored_by_functions_all_leave_after_long_bursts() {
        let function = Box::<OneBehind>::default();
        let (seen, _) = events_with(function, &Events::default(), 200, 200, "idle(64)");
        let sent = sent(seen);
        assert_eq!(sent, (0..200).collect::<Vec<u8>>());
    }

    /// A port that delivers a packet at each call, and ends the worker.
    struct OneMore {
        pool: PoolHandle,
        stop: Arc<AtomicBool>,
    }

    impl Port for OneMore {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            self.stop.store(true, Ordering::Relaxed);
            self.pool.fill(batch, 1, 60)
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len();
            batch.clear();
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// A function that logs its calls.
    struct Called {
        name: char,
        calls: Rc<RefCell<Vec<(usize, char)>>>,
    }

    impl Function for Called {
        fn process(&mut self, _: &mut Batch, context: &Context) {
            self.calls.borrow_mut().push((context.from_port, self.name));
        }
    }

    #[test]
    fn packets_in_reverse_direction_pass_the_last_function_first() {
        for burst in [DEFAULT_BURST, 128] {
            let stop = Arc::new(AtomicBool::new(false));
            let calls = Rc::default();
            let called = |name| {
                Box::new(Called {
                    name,
                    calls: Rc::clone(&calls),
                }) as Box<dyn Function>
            };
            let clock = Clock::calibrate(Duration::from_millis(2));
            let functions = vec![called('a'), called('b')];
            let port = || OneMore {
                pool: PoolHandle::new(256, false).unwrap(),
                stop: Arc::clone(&stop),
            };
            let ports: Vec<Box<dyn Port>> = vec![Box::new(port()), Box::new(port())];
            let mut worker = Worker::new(ports, functions, Flush::default(), &clock);
            worker.set_burst(burst);
            worker.run(&stop);
            let calls = calls.borrow();
            let of = |port| calls.iter().filter(move |(from, _)| *from == port);
            let names = |port| of(port).map(|(_, name)| *name).take(2).collect::<String>();
            assert_eq!([names(0), names(1)], ["ab", "ba"]);
        }
    }

    /// A function that never releases its packets.
    struct Hoarder;

    impl Function for Hoarder {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn needs(&self) -> Needs {
            Needs {
                empty_batches: EmptyBatches::Polls,
                ..Needs::default()
            }
        }

        fn held(&self) -> usize {
            7
        }

        fn outcomes(&self) -> Vec<(&'static str, u64)> {
            vec![("hoarded", 7)]
        }
    }

    /// A function that requests the counts of other functions.
    struct Curious {
        names: Vec<String>,
        told: Rc<RefCell<Vec<Vec<Option<u64>>>>>,
    }

    impl Function for Curious {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn needs(&self) -> Needs {
            Needs {
                counts: self.names.clone(),
                ..Needs::default()
            }
        }

        fn hear_counts(&mut self, counts: &[Option<u64>]) {
            self.told.borrow_mut().push(counts.to_vec());
        }
    }

    #[test]
    fn functions_receive_the_counts_of_other_functions_and_the_worker() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let told = Rc::default();
        let curious = Curious {
            names: ["hoarded", "rx_packets", "nothing"]
                .map(String::from)
                .into(),
            told: Rc::clone(&told),
        };
        let functions: Vec<Box<dyn Function>> =
            vec![Box::new(Hoarder), Box::new(curious), Box::new(Hoarder)];
        let mut worker = Worker::new(Vec::new(), functions, Flush::default(), &clock);
        let own = CountersView {
            rx_packets: 5,
            ..CountersView::default()
        };
        worker.tell_counts(&own);
        assert_eq!(*told.borrow(), [[Some(14), Some(5), None]]);
        // A run passes the counts once at its start and once at its end.
        worker.run(&AtomicBool::new(true));
        assert_eq!(told.borrow().len(), 3);
    }

    #[test]
    fn packets_stored_too_long_by_replaced_functions_count_as_lost() {
        let stop = AtomicBool::new(false);
        let clock = Clock::calibrate(Duration::from_millis(2));
        let ports: Vec<Box<dyn Port>> = vec![Box::new(Slow {
            rooms: vec![1],
            calls: 0,
            looks: 0,
            seen: Rc::default(),
        })];
        let functions: Vec<Box<dyn Function>> = vec![Box::new(Hoarder)];
        let mut worker = Worker::new(ports, functions, Flush::default(), &clock);
        worker.set_burst(64);
        let updates = worker.updates(&[]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                updates.replace(Vec::new()).unwrap();
                // The second change waits until the functions that the first one replaced have released their packets,
                // or until the time limit.
                let begun = std::time::Instant::now();
                updates.replace(Vec::new()).unwrap();
                assert!(begun.elapsed() > crate::LONGEST_DRAIN / 2);
                stop.store(true, Ordering::Relaxed);
            });
            worker.run(&stop);
        });
        assert_eq!(worker.counters().read().dropped_by_function, 7);
        assert_eq!(worker.outcomes(), [("hoarded", 7)]);
        // No function adds packets any more, so a burst needs no spare space.
        assert_eq!(worker.burst, 64);
    }

    #[test]
    fn flush_idle_sends_buffered_packets_once_the_queue_is_empty() {
        assert_eq!(sends("idle(64)", &[32, 0, 5], 64).0, [32, 5]);
    }

    /// A port that delivers numbered packets like a file, until none is left, and logs the packets sent to it.
    struct File {
        pool: PoolHandle,
        left: u64,
        next: u64,
        supply: Supply,
    }

    impl Port for File {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let n = self.pool.fill(batch, self.left.min(64) as usize, 60);
            for packet in &mut batch.packets_mut()[..] {
                packet.bytes_mut()[..8].copy_from_slice(&self.next.to_be_bytes());
                self.next += 1;
            }
            self.left -= n as u64;
            n
        }

        fn tx(&mut self, _: &mut Batch) -> usize {
            panic!("sent into what takes nothing")
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }

        fn supply(&mut self) -> Supply {
            if self.left == 0 {
                self.supply.clone()
            } else {
                Supply::Open
            }
        }

        fn waits(&self) -> bool {
            true
        }

        fn takes(&self) -> bool {
            false
        }
    }

    /// A port that accepts a few packets per call and logs their numbers; its link comes up at the second check.
    struct Slow {
        rooms: Vec<usize>,
        calls: usize,
        looks: usize,
        seen: Rc<RefCell<Vec<u64>>>,
    }

    impl Port for Slow {
        fn rx(&mut self, _: &mut Batch) -> usize {
            0
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            assert!(self.looks >= 2, "sent before the link was up");
            let room = self.rooms[self.calls % self.rooms.len()].min(batch.len());
            self.calls += 1;
            batch.take_front(room, |packet| {
                let number = packet.bytes().first_chunk().copied().unwrap_or_default();
                self.seen.borrow_mut().push(u64::from_be_bytes(number));
            });
            room
        }

        fn link(&mut self) -> Link {
            self.looks += 1;
            if self.looks >= 2 {
                Link::Up
            } else {
                Link::Down("not yet".to_string())
            }
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    fn replay(flush: &str, packets: u64, rooms: &[usize], supply: Supply) -> (Vec<u64>, u64, End) {
        replay_in_bursts(DEFAULT_BURST, flush, packets, rooms, supply)
    }

    fn replay_in_bursts(
        burst: usize,
        flush: &str,
        packets: u64,
        rooms: &[usize],
        supply: Supply,
    ) -> (Vec<u64>, u64, End) {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let clock = Clock::calibrate(Duration::from_millis(2));
        let file = File {
            pool: PoolHandle::new(256, false).unwrap(),
            left: packets,
            next: 0,
            supply,
        };
        let slow = Slow {
            rooms: rooms.to_vec(),
            calls: 0,
            looks: 0,
            seen: Rc::clone(&seen),
        };
        let ports: Vec<Box<dyn Port>> = vec![Box::new(file), Box::new(slow)];
        let mut worker = Worker::new(ports, Vec::new(), flush.parse().unwrap(), &clock);
        worker.publish_ticks = clock.to_ticks(1e6) as u64;
        worker.set_burst(burst);
        let end = worker.run(&AtomicBool::new(false));
        (seen.take(), worker.counters().read().dropped(), end)
    }

    #[test]
    fn replayed_packets_leave_in_order_and_the_run_ends_afterwards() {
        for flush in [
            "each",
            "full(7, 1ms)",
            "full(64, 1ms)",
            "every(1ms)",
            "idle(32)",
            "idle(64)",
        ] {
            for rooms in [&[64][..], &[0, 3, 64], &[1, 0], &[5, 64, 0, 0]] {
                for burst in [1, DEFAULT_BURST, 200] {
                    let (seen, dropped, end) =
                        replay_in_bursts(burst, flush, 1000, rooms, Supply::Ended);
                    let of = format!("bursts of {burst}, {flush} {rooms:?}");
                    assert_eq!(seen, (0..1000).collect::<Vec<_>>(), "{of}");
                    assert_eq!((dropped, end), (0, End::Done), "{of}");
                }
            }
        }
    }

    #[test]
    fn packets_before_the_damage_in_a_capture_are_forwarded() {
        let breakdown = Breakdown {
            why: "at byte 5".to_string(),
            is_machines: false,
        };
        let broken = Supply::Broken(breakdown.clone());
        let (seen, dropped, end) = replay("idle(32)", 100, &[1, 0, 0], broken);
        assert_eq!((seen.len(), dropped), (100, 0));
        assert_eq!(end, End::Broken(0, breakdown));
    }

    /// A port that can wake a worker and logs its calls. It has no packets, but can be set to have one after each
    /// arming.
    struct Waking {
        pool: PoolHandle,
        just_before: bool,
        there: usize,
        calls: Rc<RefCell<Vec<&'static str>>>,
        begun: std::time::Instant,
        stop: Arc<AtomicBool>,
    }

    impl Port for Waking {
        fn rx(&mut self, batch: &mut Batch) -> usize {
            let mut calls = self.calls.borrow_mut();
            calls.push("look");
            let over = calls.len() > 20 && self.begun.elapsed() > Duration::from_millis(50);
            self.stop.fetch_or(over, Ordering::Relaxed);
            self.pool.fill(batch, std::mem::take(&mut self.there), 60)
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len();
            batch.clear();
            n
        }

        fn arm(&mut self, _: &mut taut_sys::Alarm) -> bool {
            self.calls.borrow_mut().push("arm");
            self.there = usize::from(self.just_before);
            true
        }

        fn disarm(&mut self) {
            self.calls.borrow_mut().push("disarm");
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    /// Returns the calls that a worker makes to its one port during 50 ms, and the worker's counters. If `just_before`
    /// is set, the port has a packet after each arming.
    fn rested(wait: &str, just_before: bool) -> (Vec<&'static str>, CountersView) {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let stop = Arc::new(AtomicBool::new(false));
        let calls = Rc::new(RefCell::new(Vec::new()));
        let port = Waking {
            pool: PoolHandle::new(256, false).unwrap(),
            just_before,
            there: 0,
            calls: Rc::clone(&calls),
            begun: std::time::Instant::now(),
            stop: Arc::clone(&stop),
        };
        let mut worker = Worker::new(vec![Box::new(port)], Vec::new(), Flush::default(), &clock);
        worker.set_wait(wait.parse().unwrap(), &clock);
        worker.run(&stop);
        (calls.take(), worker.counters().read())
    }

    #[test]
    fn a_worker_polls_once_more_between_arming_wakeup_and_sleeping() {
        let (calls, counters) = rested("interrupt", true);
        let arms = calls.iter().enumerate().filter(|(_, call)| **call == "arm");
        let mut arms: Vec<usize> = arms.map(|(at, _)| at).collect();
        assert!(arms.len() > 1);
        // The last arming is not checked, because the run may have ended right after it.
        arms.pop();
        for at in arms {
            assert_eq!(calls.get(at + 1..at + 3), Some(&["look", "disarm"][..]));
        }
        assert_eq!(counters.sleeps, 0);
    }

    #[test]
    fn a_worker_sleeps_only_under_wait_policies_that_allow_sleeping() {
        for (wait, sleeps) in [
            ("poll", false),
            ("yield", false),
            ("sleep(1ms)", true),
            ("interrupt", true),
        ] {
            let (calls, counters) = rested(wait, false);
            assert_eq!(counters.sleeps > 0, sleeps, "{wait}");
            assert_eq!(counters.asleep() > 0.0, sleeps, "{wait}");
            assert!(counters.asleep() <= 1.0, "{wait}: {counters:?}");
            let armed = calls.iter().filter(|call| **call == "arm").count();
            let disarmed = calls.iter().filter(|call| **call == "disarm").count();
            assert_eq!(armed > 0, wait == "interrupt", "{wait}");
            assert!(armed - disarmed <= 1, "{wait}: {armed} and {disarmed}");
        }
    }

    /// A port without packets that simulates an interruption of 3 ms in one iteration.
    struct Interrupting {
        round: u32,
        stop: Arc<AtomicBool>,
    }

    impl Port for Interrupting {
        fn rx(&mut self, _: &mut Batch) -> usize {
            self.round += 1;
            if self.round == 500 {
                std::thread::sleep(Duration::from_millis(3));
            }
            self.stop.fetch_or(self.round == 1_000, Ordering::Relaxed);
            0
        }

        fn tx(&mut self, _: &mut Batch) -> usize {
            0
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    #[test]
    fn a_preempted_iteration_is_counted_and_logged_as_an_interruption() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gaps");
        let stop = Arc::new(AtomicBool::new(false));
        let port = Interrupting {
            round: 0,
            stop: Arc::clone(&stop),
        };
        let mut worker = Worker::new(vec![Box::new(port)], Vec::new(), Flush::default(), &clock);
        worker.log_interruptions(InterruptionLog::create(&path, clock.hz).unwrap());
        worker.run(&stop);
        let counters = worker.counters().read();
        let noted = taut_sys::LoggedInterruptions::read(&path).unwrap().each;
        let work = taut_sys::Work::read(&path).unwrap();
        assert_eq!(
            (work.packets, work.batches),
            (counters.rx_packets, counters.batches)
        );
        let busy = counters.busy_ticks - counters.taken_busy_ticks;
        assert_eq!(work.ticks, busy);
        // The machine may add interruptions of its own.
        assert!(counters.interruptions >= 1);
        assert_eq!(noted.len() as u64, counters.interruptions);
        let sum: u64 = noted.iter().map(|one| one.length_ticks).sum();
        assert_eq!(sum, counters.interrupted_ticks);
        let longest = noted.iter().map(|one| one.length_ticks).max().unwrap();
        assert!(clock.to_ns(longest) >= 3e6, "{noted:?}");
    }

    #[test]
    fn packets_refused_by_a_full_transmit_ring_are_counted() {
        let (_, counters) = sends("idle(32)", &[10, 10], 4);
        assert_eq!(counters.dropped_tx_full, 12);
        assert_eq!(counters.batches, 2);
    }
}
