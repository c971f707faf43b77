//! Handoff of packets from the worker that received them to their owner, through a pair of rings ([`Lane`]) between
//! every two workers. Therefore the state of a flow belongs to one worker, however ports spread packets.

use crate::CountersView;
use crate::slow::Made;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::{ANY, Context, Function, Member};
use taut_port::pair::Lane;
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_sys::Alarm;

/// The capacity of the ring between two workers, in each direction, packets.
const SLOTS: u32 = 512;

/// The bit that marks a packet of a slow path in the 52-bit note that a ring pair carries with each packet. Such a
/// packet continues after the function that made or released it.
const IS_MADE: u64 = 1 << 48;

/// The point in the chain at which a packet of another worker continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The packet entered through the port with this index and starts at the first function.
    Port(usize),
    /// The packet comes from a slow path and continues after the function that [`Made`] names.
    SlowPath(Made),
}

impl From {
    fn bits(self) -> Option<u64> {
        match self {
            Self::Port(port) => Some(port as u64),
            Self::SlowPath(made) => made.bits().map(|bits| bits | IS_MADE),
        }
    }

    fn of(bits: u64) -> Self {
        match bits & IS_MADE {
            0 => Self::Port(bits as usize),
            _ => Self::SlowPath(Made::of(bits & !IS_MADE)),
        }
    }
}

/// The number of teams (workers of one chain) created in this process. It makes the names of each team's ring pairs
/// unique.
static TEAMS: AtomicU64 = AtomicU64::new(0);

/// The unique name of the workers of one chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TeamName(u64);

impl TeamName {
    /// Returns a name that is unique in this process.
    pub(crate) fn new() -> Self {
        Self(TEAMS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A worker's endpoints of the ring pairs to all other workers.
pub(crate) struct Handoff {
    /// Ring pairs by index of the other worker; None for this worker itself.
    lanes: Vec<Option<Lane>>,
    /// Index of the worker whose ring pair is read first; the index advances with each call.
    first: usize,
    arrived: Batch,
}

impl Handoff {
    /// Opens the ring pairs of a worker, on the worker's own thread. Packets can pass through a ring pair once the
    /// worker at its opposite end has opened it too.
    pub(crate) fn open(TeamName(team): TeamName, member: Member) -> Result<Self, PortError> {
        let Member { number, of } = member;
        let lane = |other: usize| {
            let (low, high) = (number.min(other), number.max(other));
            let name = format!("team {team}, workers {low} and {high}");
            (other != number)
                .then(|| Lane::open(&name, SLOTS))
                .transpose()
        };
        Ok(Self {
            lanes: (0..of).map(lane).collect::<Result<_, _>>()?,
            first: 0,
            arrived: Batch::new(),
        })
    }

    /// Sends packets to their owners, as determined by `function`, and marks them as dropped in this batch. Their owner
    /// continues with them at `from`. A packet for a full ring is lost and counted.
    pub(crate) fn send(
        &mut self,
        function: &dyn Function,
        batch: &mut Batch,
        context: &Context,
        from: From,
        own: &mut CountersView,
    ) {
        let mut homes = [ANY; BATCH_CAPACITY];
        function.homes(batch, context, &mut homes);
        let Some(from) = from.bits() else { return };
        for (index, home) in homes.iter().take(batch.len()).enumerate() {
            // There is no lane to the worker itself. The number that means "any worker" has no lane either.
            let Some(Some(lane)) = self.lanes.get_mut(usize::from(*home)) else {
                continue;
            };
            if lane.push(batch.packets()[index].bytes(), from) {
                own.handed_over += 1;
            } else {
                own.dropped_handoff += 1;
            }
            batch.mark_dropped(index);
        }
        for lane in self.lanes.iter_mut().flatten() {
            lane.publish();
        }
    }

    /// Returns true if another worker has sent packets to this one that are not received yet.
    #[inline(always)]
    pub(crate) fn has_come(&mut self) -> bool {
        self.lanes.iter_mut().flatten().any(|lane| !lane.is_empty())
    }

    /// Passes the packets of other workers to `each`, in batches of packets that continue at the same point. `each`
    /// must return the batch empty. At most one batch is read from every worker.
    pub(crate) fn receive(&mut self, batch: &mut Batch, mut each: impl FnMut(From, &mut Batch)) {
        let count = self.lanes.len();
        for turn in 0..count {
            let Some(lane) = &mut self.lanes[(self.first + turn) % count] else {
                continue;
            };
            let received = lane.receive(&mut self.arrived);
            let mut done = 0;
            while done < received {
                let from = lane.note(done);
                let same = (done..received).take_while(|index| lane.note(*index) == from);
                let many = same.count().min(batch.room());
                self.arrived.move_up_to(many, batch);
                done += many;
                each(From::of(from), batch);
                // `each` left packets in the batch, and there is nowhere to send them.
                batch.clear();
            }
        }
        self.first = (self.first + 1) % count;
    }

    pub(crate) fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let mut lanes = self.lanes.iter_mut().flatten();
        lanes.all(|lane| lane.arm(alarm))
    }

    pub(crate) fn disarm(&mut self) {
        self.lanes.iter_mut().flatten().for_each(Lane::disarm);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    /// A function for which the first byte of a packet is the number of its owner.
    struct ByFirstByte;

    impl Function for ByFirstByte {
        fn process(&mut self, _: &mut Batch, _: &Context) {}

        fn homes(&self, batch: &Batch, _: &Context, homes: &mut [u8; BATCH_CAPACITY]) {
            for (packet, home) in batch.packets().iter().zip(homes) {
                *home = packet.bytes()[0];
            }
        }
    }

    fn team(of: usize) -> Vec<Handoff> {
        let name = TeamName::new();
        let members = (0..of).map(|number| Member { number, of });
        members
            .map(|member| Handoff::open(name, member).unwrap())
            .collect()
    }

    /// Returns the ingress port and second byte of each packet that the worker received by handoff.
    fn taken(worker: &mut Handoff) -> Vec<(usize, u8)> {
        let (mut batch, mut all) = (Batch::limited(16), Vec::new());
        while worker.has_come() {
            worker.receive(&mut batch, |from, batch| {
                assert!((1..=16).contains(&batch.len()));
                let From::Port(port) = from else {
                    panic!("{from:?}")
                };
                all.extend(batch.packets().iter().map(|it| (port, it.bytes()[1])));
            });
        }
        all
    }

    #[test]
    fn handoff_preserves_packet_order_and_ingress_port() {
        let mut team = team(3);
        let pool = PoolHandle::new(256, false).unwrap();
        let mut own = CountersView::default();
        let mut expected: Vec<Vec<(usize, u8)>> = vec![Vec::new(); 3];
        let mut stayed = 0;
        for number in 0..40_u8 {
            let from_port = usize::from(number % 2);
            let mut batch = Batch::new();
            pool.fill(&mut batch, 5, 60);
            for packet in batch.packets_mut() {
                let home = fastrand::choice([0, 1, 2, ANY]).unwrap();
                packet.bytes_mut()[..2].copy_from_slice(&[home, number]);
                match expected.get_mut(usize::from(home)) {
                    Some(of_it) if home > 0 => of_it.push((from_port, number)),
                    _ => stayed += 1,
                }
            }
            let context = Context {
                from_port,
                ..Context::default()
            };
            let from = From::Port(from_port);
            team[0].send(&ByFirstByte, &mut batch, &context, from, &mut own);
            batch.settle(&mut Batch::new());
            stayed -= batch.len();
        }
        assert_eq!(stayed, 0);
        let all: Vec<_> = team.iter_mut().map(taken).collect();
        assert_eq!(all, expected);
        let handed: usize = expected.iter().map(Vec::len).sum();
        assert_eq!((own.handed_over, own.dropped_handoff), (handed as u64, 0));
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn packets_to_a_full_or_ended_worker_count_as_dropped() {
        let mut team = team(2);
        let pool = PoolHandle::new(64, false).unwrap();
        let mut own = CountersView::default();
        let send = |to: &mut Handoff, own: &mut CountersView| {
            let mut batch = Batch::new();
            pool.fill(&mut batch, 64, 60);
            for packet in batch.packets_mut() {
                packet.bytes_mut()[0] = 1;
            }
            let context = Context::default();
            to.send(&ByFirstByte, &mut batch, &context, From::Port(0), own);
        };
        for _ in 0..9 {
            send(&mut team[0], &mut own);
        }
        assert_eq!((own.handed_over, own.dropped_handoff), (512, 64));
        assert_eq!(taken(&mut team[1]).len(), 512);
        team.pop();
        send(&mut team[0], &mut own);
        assert_eq!((own.handed_over, own.dropped_handoff), (512, 128));
    }

    #[test]
    fn handoff_preserves_the_function_at_which_a_packet_continues() {
        let mut team = team(2);
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, 60);
        batch.packets_mut()[0].bytes_mut()[0] = 1;
        let from = From::SlowPath(Made {
            way: taut_function::Passage::between(2, 1),
            function: 9,
        });
        let (context, mut own) = (Context::default(), CountersView::default());
        team[0].send(&ByFirstByte, &mut batch, &context, from, &mut own);
        let mut got = Vec::new();
        team[1].receive(&mut Batch::new(), |from, _| got.push(from));
        assert_eq!(got, [from]);
    }
}
