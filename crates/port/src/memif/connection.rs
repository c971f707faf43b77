//! Established connections, and their handover from the control thread to the data path.

use super::fault::Fault;
use super::ring::{MAX_LOG2_RING_SIZE, MIN_LOG2_RING_SIZE, Ring};
use super::shrink::Guard;
use crate::PortCounters;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taut_sys::Mapping;

/// The position of a ring, as announced by the client, and its interrupt file.
#[derive(Debug)]
pub(super) struct RingPlace {
    pub(super) region: u16,
    pub(super) offset_bytes: u32,
    pub(super) log2_size: u8,
    pub(super) interrupt: OwnedFd,
}

/// The memory of a connection, which exists as long as one of its workers uses it.
#[derive(Debug)]
pub(super) struct Regions {
    /// Guards of the regions that the peer has made; they are dropped before the regions are unmapped.
    pub(super) _guards: Vec<Guard>,
    /// Mapped regions by index. The client has its pools mapped already, as regions 1 and higher, so its list has only
    /// region 0.
    pub(super) mapped: Vec<Mapping>,
}

/// An established connection with at least one ring in each direction, or one worker's part of it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) regions: Arc<Regions>,
    /// Number of the region that is the worker's pool; used only by the client.
    pub(super) pool_region: u16,
    pub(super) client_to_server: Vec<RingPlace>,
    pub(super) server_to_client: Vec<RingPlace>,
    pub(super) fault: Arc<Fault>,
}

impl Connection {
    /// Divides the connection among `workers` workers: every ring belongs to one worker. A worker that has no ring in
    /// one of the directions gets None.
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

    /// Makes the control thread end the connection because the peer wrote an invalid index, and counts that index.
    /// Later calls change nothing.
    #[cold]
    pub(super) fn end_for_wrong_index(&self, counters: &mut PortCounters) {
        if self.fault.raise(Fault::WRONG_INDEX) {
            counters.rx_malformed += 1;
        }
    }

    /// Returns the rings at the given positions in memory; None if one of them is not inside its region.
    pub(super) fn rings(&self, places: &[RingPlace]) -> Option<Vec<Ring>> {
        places.iter().map(|place| self.ring(place)).collect()
    }

    /// Returns the ring at `place`, if its size is supported and it is aligned and completely inside its region.
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

    /// Returns the address of the byte at `offset` of a region if `len` bytes from there on are inside the region.
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

/// Returns true if `len` bytes at `offset` are inside a region of `region_bytes` bytes, for any values from a peer.
#[inline(always)]
const fn lies_inside(offset: u32, len: usize, region_bytes: usize) -> bool {
    offset as usize <= region_bytes && len <= region_bytes - offset as usize
}

/// The handovers to the data paths of the workers that share a port, one for each worker.
#[derive(Debug)]
pub(super) struct Handovers(pub(super) Vec<Arc<Handover>>);

impl Handovers {
    /// Passes on an established connection; called by the control thread.
    pub(super) fn publish(&self, connection: Connection) {
        let workers = self.0.len();
        for (handover, share) in self.0.iter().zip(connection.shares(workers)) {
            match share {
                Some(share) => handover.publish(share),
                None => handover.withdraw(format!(
                    "the peer has too few rings for {workers} workers: give it as many queues"
                )),
            }
        }
    }

    /// Sets the text that says what the port waits for, such as a server; it is displayed as the link state.
    pub(super) fn note(&self, note: &str) {
        for handover in &self.0 {
            handover.note(note.to_string());
        }
    }

    /// Withdraws the connection, which has ended, and sets the reason; called by the control thread.
    pub(super) fn withdraw(&self, note: &str) {
        for handover in &self.0 {
            handover.withdraw(note.to_string());
        }
    }
}

/// The handover of a connection from a port's control thread to the data path.
///
/// The control thread increments `epoch` when it publishes or withdraws a connection. The data path reads `epoch` in
/// every call, which is a load of a cache line that rarely changes, and takes the lock only after a change.
#[derive(Debug, Default)]
pub(super) struct Handover {
    epoch: AtomicU32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// Reason why there is no connection, for display as the link state.
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

    /// Passes on an established connection; called by the control thread.
    pub(super) fn publish(&self, connection: Connection) {
        let mut state = self.state();
        state.connection = Some(connection);
        state.note.clear();
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Withdraws the connection, which has ended, and sets the reason; called by the control thread.
    pub(super) fn withdraw(&self, note: String) {
        let mut state = self.state();
        state.connection = None;
        state.note = note;
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Sets the text that says what the port waits for; called by the control thread.
    pub(super) fn note(&self, note: String) {
        self.state().note = note;
    }

    /// Returns the current epoch, and its connection at the first call in this epoch; called by the data path. The
    /// connection is None at later calls, and if it was withdrawn.
    pub(super) fn take(&self) -> (u32, Option<Connection>) {
        let mut state = self.state();
        (self.epoch(), state.connection.take())
    }

    /// Returns the reason why there is no connection.
    pub(super) fn why(&self) -> String {
        self.state().note.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests every pair of offset and length near a region's end, and pairs whose sum wraps around.
    #[test]
    fn peer_buffers_are_accepted_only_inside_a_memory_region() {
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
