//! The data path of a memif client or server without sockets or threads. The caller acts as the peer, with full access
//! to the shared memory.
//!
//! Tests and fuzz targets use it to show how the data path behaves with any peer, whatever the peer writes into the
//! rings at any time.

use super::client_queue::ClientQueue;
use super::connection::{Connection, Regions, RingPlace};
use super::fault::{Fault, interrupt_file};
use super::knock::Knocker;
use super::ring::Ring;
pub use super::ring::{Descriptor, FLAG_NEXT, MAX_LOG2_RING_SIZE, MIN_LOG2_RING_SIZE};
use super::server_queue::ServerQueue;
use super::{Link, Queue};
use crate::{Batch, Packet, PoolHandle, PortCounters, PortError};
use std::ops::Range;
use std::sync::Arc;
use taut_sys::Mapping;

/// The size in bytes of the region with rings and buffers.
pub const REGION_BYTES: usize = 16 << 10;

/// The role of taut in the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The client, which provides the memory: its packets are in the pool.
    Client,
    /// The server, which receives packets in place in the client's memory.
    Server,
}

/// The direction of the packets in one of the two rings, as seen from taut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The ring of packets from the peer.
    Received,
    /// The ring of packets to the peer.
    Sent,
}

/// A connected memif data path.
pub struct DataPath {
    queue: Queue,
    role: Role,
    pool: PoolHandle,
    to_server: Ring,
    to_client: Ring,
    /// Address range of the memory region that taut and the peer share.
    region: Range<usize>,
    fault: Arc<Fault>,
}

impl DataPath {
    /// Connects rings of `1 << log2_ring_size` descriptors. Frames of the client are in `pool`, and so are frames that
    /// a server gathers from several buffers.
    ///
    /// # Errors
    /// The machine lacks memory or file descriptors, or two rings of this size are larger than the region.
    pub fn new(role: Role, pool: PoolHandle, log2_ring_size: u8) -> Result<Self, PortError> {
        let memory = Mapping::create_small("taut-by-hand", REGION_BYTES)?;
        let start = memory.base().as_ptr() as usize;
        let place = |offset_bytes: usize| -> Result<RingPlace, PortError> {
            Ok(RingPlace {
                region: 0,
                offset_bytes: offset_bytes as u32,
                log2_size: log2_ring_size,
                interrupt: interrupt_file()?,
            })
        };
        let fault = Fault::new()?;
        let connection = Connection {
            pool_region: 1,
            client_to_server: vec![place(0)?],
            server_to_client: vec![place(Ring::bytes(log2_ring_size).next_multiple_of(64))?],
            regions: Arc::new(Regions {
                _guards: Vec::new(),
                mapped: vec![memory],
            }),
            fault: fault.clone(),
        };
        let rings = connection
            .rings(&connection.client_to_server)
            .zip(connection.rings(&connection.server_to_client));
        let Some(([to_server], [to_client])) = rings
            .as_ref()
            .map(|(a, b)| (a.as_slice(), b.as_slice()))
            .and_then(|(a, b)| Some((a.first_chunk()?, b.first_chunk()?)))
        else {
            return Err(PortError::bad_spec(
                log2_ring_size.to_string(),
                "rings of that size do not fit",
            ));
        };
        let (to_server, to_client) = (*to_server, *to_client);
        to_server.initialise();
        to_client.initialise();
        let knocker = Knocker::shared()?;
        let mut queue = match role {
            Role::Client => Queue::Client(ClientQueue::new(pool.clone(), knocker)),
            Role::Server => Queue::Server(ServerQueue::new(pool.clone(), knocker)),
        };
        queue.connect(connection);
        let path = Self {
            queue,
            role,
            pool,
            to_server,
            to_client,
            region: start..start + REGION_BYTES,
            fault,
        };
        path.ring(Direction::Sent).mask_interrupts();
        Ok(path)
    }

    fn ring(&self, direction: Direction) -> Ring {
        match (self.role, direction) {
            (Role::Client, Direction::Sent) | (Role::Server, Direction::Received) => self.to_server,
            (Role::Client, Direction::Received) | (Role::Server, Direction::Sent) => self.to_client,
        }
    }

    /// Receives packets; see [`Port::rx`](crate::Port::rx).
    pub fn rx(&mut self, batch: &mut Batch) -> usize {
        self.queue.rx(batch)
    }

    /// Sends packets; see [`Port::tx`](crate::Port::tx).
    pub fn tx(&mut self, batch: &mut Batch) -> usize {
        self.queue.tx(batch)
    }

    /// Returns the counters; see [`Port::counters`](crate::Port::counters).
    pub fn counters(&self) -> PortCounters {
        self.queue.counters()
    }

    /// Returns the link state, which is down once the data path has requested that the connection be closed.
    pub fn link(&self) -> Link {
        match self.fault.reason() {
            Some(reason) => Link::Down(reason.to_string()),
            None => Link::Up,
        }
    }

    /// Returns true if a packet was received in place, so that it is in the shared region instead of the pool.
    pub fn is_in_place(&self, packet: &Packet) -> bool {
        !self.pool.owns(packet)
    }

    /// Returns the number of existing packets that were received in place.
    pub fn in_place(&self) -> usize {
        match &self.queue {
            Queue::Client(_) => 0,
            Queue::Server(queue) => queue.in_place(),
        }
    }

    /// Returns true if all bytes of a received packet are in the pool, or, for a role that receives without copying, in
    /// the memory shared with the peer.
    pub fn holds(&self, packet: &Packet) -> bool {
        let start = packet.data().as_ptr() as usize;
        let inside =
            |range: &Range<usize>| range.start <= start && start + packet.len() <= range.end;
        let pool = self.pool.memory().map_or(0..0, |memory| {
            let start = memory.base().as_ptr() as usize;
            start..start + memory.len()
        });
        inside(&pool) || self.role == Role::Server && inside(&self.region)
    }

    /// Releases the connection. Returns false and does nothing while packets are in the connection's memory. After
    /// success, only packets of the pool itself are in use.
    pub fn disconnect(&mut self) -> bool {
        self.queue.disconnect()
    }

    /// Returns the index of the ring that taut writes, as the peer reads it.
    pub fn index(&self, direction: Direction) -> u16 {
        match self.role {
            Role::Client => self.ring(direction).head(),
            Role::Server => self.ring(direction).tail(),
        }
    }

    /// Sets the index of the ring that the peer writes to any value.
    pub fn move_index(&self, direction: Direction, to: u16) {
        match self.role {
            Role::Client => self.ring(direction).publish_tail(to),
            Role::Server => self.ring(direction).publish_head(to),
        }
    }

    /// Overwrites the index of the ring that only taut may write, as a peer that violates the protocol does.
    pub fn move_our_index(&self, direction: Direction, to: u16) {
        match self.role {
            Role::Client => self.ring(direction).publish_head(to),
            Role::Server => self.ring(direction).publish_tail(to),
        }
    }

    /// Reads the descriptor at index `at` of a ring, acting as the peer.
    pub fn descriptor(&self, direction: Direction, at: u16) -> Descriptor {
        self.ring(direction).read(at)
    }

    /// Writes the descriptor at index `at` of a ring, acting as the peer.
    pub fn describe(&self, direction: Direction, at: u16, descriptor: Descriptor) {
        self.ring(direction).write(at, descriptor);
    }

    /// Requests a wakeup, acting as the peer, or withdraws the request.
    pub fn sleep(&self, sleeps: bool) {
        if sleeps {
            self.ring(Direction::Sent).unmask_interrupts();
        } else {
            self.ring(Direction::Sent).mask_interrupts();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LOG2: u8 = MIN_LOG2_RING_SIZE;
    const SIZE: u16 = 1 << LOG2;

    /// The slots of the pool: enough for both rings when full, and for the packets that a test keeps.
    const SLOTS: u32 = 160;

    /// The number of steps of a random test; it is low under Miri, which is slow.
    const STEPS: usize = if cfg!(miri) { 20 } else { 60 };

    fn data_path(role: Role) -> (DataPath, PoolHandle) {
        let pool = PoolHandle::new(SLOTS, false).unwrap();
        (DataPath::new(role, pool.clone(), LOG2).unwrap(), pool)
    }

    fn buffer(number: u16) -> Descriptor {
        Descriptor {
            flags: 0,
            region: 0,
            length: 60,
            offset: 4096 + 64 * u32::from(number),
        }
    }

    #[test]
    fn a_decreasing_ring_head_delivers_no_slot_twice() {
        let (mut path, _pool) = data_path(Role::Server);
        for at in 0..SIZE {
            path.describe(Direction::Received, at, buffer(at));
        }
        let mut held = Vec::new();
        for head in [SIZE, 1, 1, 1] {
            let mut batch = Batch::new();
            path.move_index(Direction::Received, head);
            path.rx(&mut batch);
            held.push(batch);
        }
        let taken: usize = held.iter().map(Batch::len).sum();
        assert_eq!(taken, usize::from(SIZE), "of a ring of {SIZE}");
        assert_eq!(path.counters().rx_malformed, 1, "said once");
        assert!(!path.link().is_up(), "the connection is to end");
        held.clear();
        assert!(path.disconnect());
    }

    #[test]
    fn an_invalid_ring_index_ends_the_connection() {
        for role in [Role::Client, Role::Server] {
            for direction in [Direction::Received, Direction::Sent] {
                // An index before the last one, and indexes beyond the free slots.
                for wrong in [u16::MAX, SIZE + 1, 1 << 15] {
                    let (mut path, pool) = data_path(role);
                    path.move_index(direction, wrong);
                    let mut batch = Batch::new();
                    assert_eq!(path.rx(&mut batch), 0);
                    // Sends more packets than the ring holds, so that sent packets must be reclaimed.
                    for _ in 0..2 {
                        pool.fill(&mut batch, usize::from(SIZE), 60);
                        path.tx(&mut batch);
                    }
                    assert_eq!(
                        path.counters().rx_malformed,
                        1,
                        "{role:?} {direction:?} {wrong}"
                    );
                    assert!(!path.link().is_up());
                    batch.clear();
                    assert!(path.disconnect());
                    assert_eq!(pool.outstanding(), 0);
                }
            }
        }
    }

    /// A step of a test: an action of the peer in the shared memory, or a call of taut.
    #[derive(Debug, Clone)]
    enum Step {
        Move(Direction, u16),
        /// Advances the peer's index by the given number, as peers that follow the protocol do.
        Advance(Direction, u16),
        MoveOurs(Direction, u16),
        Describe(Direction, u16, Descriptor),
        /// Fills every descriptor of the ring with valid buffers.
        DescribeAll(Direction),
        Sleep(bool),
        Receive(usize),
        Send(usize),
        /// Forwards the oldest batch that the test keeps.
        SendHeld,
        /// Drops the packets of the given number of the batches that the test keeps.
        Drop(usize),
    }

    fn direction() -> impl Strategy<Value = Direction> + Clone {
        prop_oneof![Just(Direction::Received), Just(Direction::Sent)]
    }

    fn index() -> impl Strategy<Value = u16> + Clone {
        prop_oneof![0..2 * SIZE, u16::MAX - 8..=u16::MAX, any::<u16>()]
    }

    fn descriptor() -> impl Strategy<Value = Descriptor> {
        let near_the_end = REGION_BYTES as u32 - 64..REGION_BYTES as u32 + 64;
        (
            prop_oneof![4 => Just(0), 2 => Just(FLAG_NEXT), 1 => any::<u16>()],
            prop_oneof![4 => Just(0_u16), 2 => Just(1), 1 => any::<u16>()],
            prop_oneof![4 => 0_u32..2100, 1 => Just(0), 1 => 65_530_u32..65_540, 1 => any::<u32>()],
            prop_oneof![4 => 0..REGION_BYTES as u32, 2 => near_the_end, 1 => any::<u32>()],
        )
            .prop_map(|(flags, region, length, offset)| Descriptor {
                flags,
                region,
                length,
                offset,
            })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (direction(), index()).prop_map(|(d, to)| Step::Move(d, to)),
            6 => (direction(), 0..=SIZE).prop_map(|(d, by)| Step::Advance(d, by)),
            1 => (direction(), index()).prop_map(|(d, to)| Step::MoveOurs(d, to)),
            3 => (direction(), index(), descriptor()).prop_map(|(d, at, what)| Step::Describe(d, at, what)),
            2 => direction().prop_map(Step::DescribeAll),
            1 => any::<bool>().prop_map(Step::Sleep),
            6 => (1..=64_usize).prop_map(Step::Receive),
            4 => (1..=64_usize).prop_map(Step::Send),
            2 => Just(Step::SendHeld),
            2 => (1..4_usize).prop_map(Step::Drop),
        ]
    }

    /// Runs the steps of a test. They may contain any actions of the peer, and may keep packets for any time.
    fn survives(role: Role, steps: Vec<Step>) {
        let (mut path, pool) = data_path(role);
        let mut held: std::collections::VecDeque<Batch> = [].into();
        let mut moved = [0_u16; 2];
        for step in steps {
            match step {
                Step::Move(d, to) => {
                    moved[d as usize] = to;
                    path.move_index(d, to);
                }
                Step::Advance(d, by) => {
                    let to = moved[d as usize].wrapping_add(by);
                    moved[d as usize] = to;
                    path.move_index(d, to);
                }
                Step::MoveOurs(d, to) => path.move_our_index(d, to),
                Step::Describe(d, at, what) => path.describe(d, at, what),
                Step::DescribeAll(d) => (0..SIZE).for_each(|at| path.describe(d, at, buffer(at))),
                Step::Sleep(sleeps) => path.sleep(sleeps),
                Step::Receive(n) => {
                    let mut batch = Batch::limited(n);
                    path.rx(&mut batch);
                    held.push_back(batch);
                }
                Step::Send(n) => {
                    let mut batch = Batch::new();
                    pool.fill(&mut batch, n, 60 * n as u16 / 2);
                    path.tx(&mut batch);
                    held.push_back(batch);
                }
                Step::SendHeld => {
                    if let Some(mut batch) = held.pop_front() {
                        path.tx(&mut batch);
                    }
                }
                Step::Drop(n) => drop(held.drain(..n.min(held.len()))),
            }
            let mut places = BTreeSet::new();
            let mut in_place = 0;
            for packet in held.iter().flat_map(Batch::packets) {
                assert!(path.holds(packet), "{packet:?}");
                assert!(
                    places.insert((packet.pool(), packet.slot())),
                    "{packet:?} was given out twice"
                );
                in_place += usize::from(path.is_in_place(packet));
                let bytes = packet.bytes();
                std::hint::black_box((bytes.first(), bytes.last()));
            }
            assert_eq!(path.in_place(), in_place);
            assert!(in_place <= usize::from(SIZE));
        }
        assert_eq!(path.disconnect(), path.in_place() == 0);
        held.clear();
        assert!(path.disconnect());
        assert_eq!((pool.outstanding(), pool.available()), (0, SLOTS as usize));
    }

    proptest! {
        #[test]
        fn a_misbehaving_client_causes_only_packet_loss(steps in proptest::collection::vec(step(), 1..STEPS)) {
            survives(Role::Server, steps);
        }

        #[test]
        fn a_misbehaving_server_causes_only_packet_loss(steps in proptest::collection::vec(step(), 1..STEPS)) {
            survives(Role::Client, steps);
        }
    }
}
