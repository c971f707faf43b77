//! A pair of rings between two threads of one data plane, in which every frame carries a note: 52 bits chosen by the
//! sender.

use super::ring::ROOM_BYTES;
use super::{OPEN, PairPort};
use crate::{BATCH_CAPACITY, Batch, PortError};
use taut_sys::Alarm;

/// One endpoint of a ring pair. Both endpoints are opened by the same name, each on its own thread; a name can be used
/// once.
pub struct Lane {
    port: PairPort,
    notes: [u64; BATCH_CAPACITY],
    has_pushed: bool,
}

impl Lane {
    /// The length of the longest frame that a [`Lane`] passes, bytes.
    pub const LONGEST_FRAME_BYTES: usize = ROOM_BYTES;

    /// Opens an endpoint of the ring pair with the given name, with `slots` frames in each direction.
    ///
    /// # Errors
    /// There is no memory, or the name was already used.
    pub fn open(name: &str, slots: u32) -> Result<Self, PortError> {
        let taken = |reason| PortError::system(name.to_string(), std::io::Error::other(reason));
        Ok(Self {
            port: PairPort::join(name, Some(slots), taken)?,
            notes: [0; BATCH_CAPACITY],
            has_pushed: false,
        })
    }

    /// Copies a frame with a note of 52 bits into the ring; the other endpoint sees it after [`Lane::publish`]. Returns
    /// false if the ring is full or the other endpoint is closed.
    #[inline]
    pub fn push(&mut self, frame: &[u8], note: u64) -> bool {
        let pushed = frame.len() <= ROOM_BYTES
            && self.port.others_state() == OPEN
            && self.port.sender.push(frame, note);
        self.has_pushed |= pushed;
        pushed
    }

    /// Publishes the pushed frames to the other endpoint, and wakes it if it has requested that.
    #[inline]
    pub fn publish(&mut self) {
        if std::mem::take(&mut self.has_pushed) {
            self.port.sender.publish();
            self.port.joint.doorbells[self.port.end].ring();
        }
    }

    /// Receives the arrived frames into an empty batch, and returns their number. [`Lane::note`] returns the note of
    /// each.
    #[inline]
    pub fn receive(&mut self, batch: &mut Batch) -> usize {
        let notes = &mut self.notes;
        self.port.receive(batch, |index, note| {
            notes[index & (BATCH_CAPACITY - 1)] = note
        })
    }

    /// Returns the note (52 bits chosen by the sender) of the packet at `index` in the batch that was received last.
    #[inline]
    pub fn note(&self, index: usize) -> u64 {
        self.notes[index & (BATCH_CAPACITY - 1)]
    }

    /// Returns true if no frame is waiting.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.port.receiver.is_empty()
    }

    /// Returns true if the other endpoint is open.
    pub fn is_open(&self) -> bool {
        self.port.others_state() == OPEN
    }

    /// Arms `alarm`; see [`crate::Port::arm`].
    pub fn arm(&mut self, alarm: &mut Alarm) -> bool {
        self.port.joint.doorbells[1 - self.port.end].arm(alarm) && self.is_empty()
    }

    /// Disarms the alarm; see [`crate::Port::disarm`].
    pub fn disarm(&mut self) {
        self.port.joint.doorbells[1 - self.port.end].disarm();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_and_their_metadata_pass_until_the_ring_is_full() {
        let mut near = Lane::open("lane under test", 32).unwrap();
        let note = |number: u8| (1 << 52) - 1 - u64::from(number);
        assert!(!near.push(&[0; 60], note(0)), "nobody is there");
        let mut far = Lane::open("lane under test", 32).unwrap();
        let sent: Vec<u64> = (0..32).map(note).collect();
        for (number, note) in sent.iter().enumerate() {
            assert!(near.push(&[number as u8; 60], *note));
        }
        assert!(!near.push(&[32; 60], note(32)) && !near.push(&[0; 9000], note(0)));
        let mut batch = Batch::new();
        assert_eq!(far.receive(&mut batch), 0);
        near.publish();
        assert_eq!(far.receive(&mut batch), 32);
        for (number, expected) in sent.iter().enumerate() {
            assert_eq!(batch.packets()[number].bytes(), [number as u8; 60]);
            assert_eq!(far.note(number), *expected);
        }
        // The reply leaves through a port.
        assert!(far.push(batch.packets()[7].bytes(), sent[7]));
        batch.clear();
        far.publish();
        assert_eq!(near.receive(&mut batch), 1);
        assert_eq!((batch.packets()[0].bytes()[0], near.note(0)), (7, note(7)));
        drop(near);
        assert!(!far.is_open() && !far.push(&[0; 60], note(0)));
    }
}
