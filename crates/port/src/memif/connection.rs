//! Established connections, and how the control thread hands them to the data path.

use super::fault::Fault;
use super::ring::{MAX_LOG2_RING_SIZE, MIN_LOG2_RING_SIZE, Ring};
use super::shrink::Guard;
use crate::PortCounters;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taut_sys::Mapping;

/// Place of a ring, as the client announced it, and its interrupt file.
#[derive(Debug)]
pub(super) struct RingPlace {
    pub(super) region: u16,
    pub(super) offset_bytes: u32,
    pub(super) log2_size: u8,
    pub(super) interrupt: OwnedFd,
}

/// The memory of a connection, for as long as one of its workers uses it.
#[derive(Debug)]
pub(super) struct Regions {
    /// Guards of the regions that the peer has made: dropped before the regions are unmapped.
    pub(super) _guards: Vec<Guard>,
    /// The mapped regions by index. The client's pools, from region 1 on, it maps itself: for the
    /// client this list has region 0 only.
    pub(super) mapped: Vec<Mapping>,
}

/// An established connection with at least one ring in each direction, or one worker's share of it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) regions: Arc<Regions>,
    /// Region that is the worker's pool; for the client only.
    pub(super) pool_region: u16,
    pub(super) client_to_server: Vec<RingPlace>,
    pub(super) server_to_client: Vec<RingPlace>,
    pub(super) fault: Arc<Fault>,
}

impl Connection {
    /// A share for each of so many workers: every ring is of one, and a worker has none where there are not rings in both
    /// directions for it.
    pub(super) fn shares(self, workers: usize) -> Vec<Option<Self>> {
        let Self {
            regions,
            pool_region,
            client_to_server,
            server_to_client,
            fault,
        } = self;
        let mut shares: Vec<Self> = (0..workers)
            .map(|worker| Self {
                regions: Arc::clone(&regions),
                pool_region: pool_region + worker as u16,
                client_to_server: Vec::new(),
                server_to_client: Vec::new(),
                fault: Arc::clone(&fault),
            })
            .collect();
        for (nth, place) in client_to_server.into_iter().enumerate() {
            shares[nth % workers].client_to_server.push(place);
        }
        for (nth, place) in server_to_client.into_iter().enumerate() {
            shares[nth % workers].server_to_client.push(place);
        }
        let has_both =
            |it: &Self| !it.client_to_server.is_empty() && !it.server_to_client.is_empty();
        shares
            .into_iter()
            .map(|it| Some(it).filter(has_both))
            .collect()
    }

    /// The peer moved an index to where it cannot be: counts that once and has the control thread end the connection.
    #[cold]
    pub(super) fn end_for_wrong_index(&self, counters: &mut PortCounters) {
        if self.fault.raise(Fault::WRONG_INDEX) {
            counters.rx_malformed += 1;
        }
    }

    /// Returns all rings, with their places; none if one does not lie inside its region.
    pub(super) fn rings(&self, places: &[RingPlace]) -> Option<Vec<Ring>> {
        places.iter().map(|place| self.ring(place)).collect()
    }

    /// The ring at `place`, if it is of a size that is spoken here and lies whole and aligned inside its region.
    pub(super) fn ring(&self, place: &RingPlace) -> Option<Ring> {
        if !(MIN_LOG2_RING_SIZE..=MAX_LOG2_RING_SIZE).contains(&place.log2_size) {
            return None;
        }
        let memory = self.bytes(
            place.region,
            place.offset_bytes,
            Ring::bytes(place.log2_size),
        )?;
        if !(memory.as_ptr() as usize).is_multiple_of(64) {
            return None;
        }
        // SAFETY: inside a region that is mapped as long as this connection lives, aligned, and used
        // as a ring only. The data path keeps the connection for as long as it keeps the ring.
        Some(unsafe { Ring::at(memory, place.log2_size) })
    }

    /// The start of `len` bytes at `offset` of a region, if they all lie inside it.
    #[inline(always)]
    pub(super) fn bytes(&self, region: u16, offset: u32, len: usize) -> Option<NonNull<u8>> {
        let region = self.regions.mapped.get(usize::from(region))?;
        if !lies_inside(offset, len, region.len()) {
            return None;
        }
        // SAFETY: inside the mapping, as just checked.
        Some(unsafe { region.base().add(offset as usize) })
    }
}

/// Whether `len` bytes at `offset` lie inside a region of that many bytes, whatever a peer says of both.
#[inline(always)]
const fn lies_inside(offset: u32, len: usize, region_bytes: usize) -> bool {
    offset as usize <= region_bytes && len <= region_bytes - offset as usize
}

/// The hand-overs to the data paths of all workers that share a port.
#[derive(Debug)]
pub(super) struct Handovers(pub(super) Vec<Arc<Handover>>);

impl Handovers {
    /// Control thread: a connection stands.
    pub(super) fn publish(&self, connection: Connection) {
        let workers = self.0.len();
        for (handover, share) in self.0.iter().zip(connection.shares(workers)) {
            match share {
                Some(share) => handover.publish(share),
                None => handover.withdraw(format!(
                    "the peer has not rings for all {workers} workers: give it as many queues"
                )),
            }
        }
    }

    /// Notes what is being waited for.
    pub(super) fn note(&self, note: &str) {
        for handover in &self.0 {
            handover.note(note.to_string());
        }
    }

    /// Control thread: it is gone.
    pub(super) fn withdraw(&self, note: &str) {
        for handover in &self.0 {
            handover.withdraw(note.to_string());
        }
    }
}

/// The hand-over between a port's control thread and its data path.
///
/// The data path looks at `epoch` (one load of a line that hardly ever changes) on every call, and
/// takes the lock only when it changed.
#[derive(Debug, Default)]
pub(super) struct Handover {
    epoch: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// Reason why there is no connection, for people.
    note: String,
}

impl Handover {
    #[inline(always)]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Control thread: a connection stands.
    pub(super) fn publish(&self, connection: Connection) {
        let mut state = self.state();
        state.connection = Some(connection);
        state.note.clear();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Control thread: it is gone.
    pub(super) fn withdraw(&self, note: String) {
        let mut state = self.state();
        state.connection = None;
        state.note = note;
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Control thread: what is being waited for.
    pub(super) fn note(&self, note: String) {
        self.state().note = note;
    }

    /// Data path: the present epoch and its connection (once).
    pub(super) fn take(&self) -> (u32, Option<Connection>) {
        let mut state = self.state();
        (self.epoch(), state.connection.take())
    }

    /// Returns why there is no connection.
    pub(super) fn why(&self) -> String {
        self.state().note.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of values around a region's end, and those that wrap a sum around.
    #[test]
    fn no_offset_and_length_of_any_peer_reach_beyond_a_region() {
        let largest = u32::MAX as usize;
        for region_bytes in [0, 1, 64, 300, largest] {
            let near = |end: usize| (0..=400).chain(end.saturating_sub(400)..=end);
            let lengths = || near(largest).chain([usize::MAX - 1, usize::MAX]);
            for offset in near(largest).chain(near(region_bytes)) {
                for len in lengths().chain(near(region_bytes)) {
                    let end = offset as u128 + len as u128;
                    let is_inside = lies_inside(offset as u32, len, region_bytes);
                    assert_eq!(is_inside, end <= region_bytes as u128, "{offset} {len}");
                }
            }
        }
    }
}
