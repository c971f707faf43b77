//! Packets that came to one worker of a chain and belong to another: a pair of rings ([`Lane`]) between every two of them, so that
//! what a function knows is one worker's, however ports spread packets.

use crate::CountersView;
use crate::slow::Made;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::{ANY, Context, Function, Member};
use taut_port::pair::Lane;
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_sys::Alarm;

/// Packets that may wait between two workers, in each direction.
const SLOTS: u32 = 512;

/// Bit of a note that says that the packet has met functions already, and where it goes on.
const IS_MADE: u64 = 1 << 48;

/// Place at which packets of another worker go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// The first function: they came in through the port of that number.
    Port(usize),
    /// Functions behind one whose slow path has let them go.
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

/// Teams of this process, the lanes of each of which have names of their own.
static TEAMS: AtomicU64 = AtomicU64::new(0);

/// Workers of one chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TeamName(u64);

impl TeamName {
    /// Makes a name that there was not before.
    pub(crate) fn new() -> Self {
        Self(TEAMS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A worker's ends of the lanes to all others.
pub(crate) struct Handoff {
    /// Lanes by worker; none to the worker itself.
    lanes: Vec<Option<Lane>>,
    /// The worker that is listened to first: the next one each time.
    first: usize,
    arrived: Batch,
}

impl Handoff {
    /// Opens the lanes of a worker; called on its thread. Packets cross once the other worker has done the same.
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

    /// Sends those packets of a batch away whose home is another worker, as `function` says, and marks them as dropped; there they go
    /// on at `from`. Those that it has no room for are counted and gone.
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
            // None to itself, and none of that number where any will do.
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

    /// Whether another worker has sent something.
    #[inline(always)]
    pub(crate) fn has_come(&mut self) -> bool {
        self.lanes.iter_mut().flatten().any(|lane| !lane.is_empty())
    }

    /// Hands what others have sent to `each`, in batches of packets that go on at the same place; each is to be empty again when
    /// that returns. A batch from every worker at most.
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
                // Whatever was not taken has nowhere to go.
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

    /// The first byte of a packet says whose it is.
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

    /// Returns what a worker is handed: port and second byte of each packet.
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
    fn packets_reach_their_worker_in_order_with_their_port_and_others_stay() {
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
    fn what_a_worker_has_no_room_for_is_counted_as_is_what_one_that_has_ended_would_get() {
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
    fn what_a_slow_path_has_let_go_says_to_its_worker_where_it_goes_on() {
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
