//! The record of one message: the buffers and numbers that a parser found in it. Its memory is bounded, and allocated
//! at the first write.
//!
//! Protocol parsers fill records, and rules test them. A buffer may occur several times, such as the topics of one
//! subscription; each is an instance of its own. A number is an instance of eight bytes, most significant byte first.

use crate::buffer::{Buffer, BufferSet};

/// Maximum number of bytes of a record; further bytes are truncated.
pub const MOST_BYTES: usize = 24 * 1024;
/// Maximum number of instances in a record.
pub const MOST_INSTANCES: usize = 512;

/// The buffers and numbers of one message.
#[derive(Debug, Default)]
pub struct Record {
    bytes: Vec<u8>,
    instances: Vec<Instance>,
    is_cut: bool,
}

/// The buffer and the range of bytes of one instance in a record.
#[derive(Debug, Clone, Copy)]
struct Instance {
    buffer: Buffer,
    from: usize,
    to: usize,
}

/// A state of a record to which it can be reset.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mark {
    bytes: usize,
    instances: usize,
}

impl Record {
    /// Removes all instances from the record. The record does not release its memory.
    pub fn clear(&mut self) {
        self.take_back(Mark::default());
        self.is_cut = false;
    }

    /// Adds an instance of `buffer` with the concatenated bytes of `pieces`.
    pub fn put(&mut self, buffer: Buffer, pieces: &[&[u8]]) {
        if self.instances.len() == MOST_INSTANCES {
            self.is_cut = true;
            return;
        }
        let from = self.bytes.len();
        self.instances.push(Instance {
            buffer,
            from,
            to: from,
        });
        pieces.iter().for_each(|piece| self.extend(piece));
    }

    /// Appends bytes to the instance that was added last.
    pub fn extend(&mut self, piece: &[u8]) {
        let room = MOST_BYTES - self.bytes.len();
        self.is_cut |= piece.len() > room;
        if let Some(last) = self.instances.last_mut() {
            self.bytes
                .extend_from_slice(&piece[..piece.len().min(room)]);
            last.to = self.bytes.len();
        }
    }

    /// Adds `number` as an instance of `buffer`.
    pub fn put_number(&mut self, buffer: Buffer, number: u64) {
        self.put(buffer, &[&number.to_be_bytes()]);
    }

    /// Returns a mark for the current end of the record.
    pub fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes.len(),
            instances: self.instances.len(),
        }
    }

    /// Removes all instances that were added after the mark `to`.
    pub fn take_back(&mut self, to: Mark) {
        self.bytes.truncate(to.bytes);
        self.instances.truncate(to.instances);
    }

    /// Returns true if some bytes or instances did not fit into the record.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the set of buffers that the record contains.
    pub fn has(&self) -> BufferSet {
        self.instances.iter().map(|it| it.buffer).collect()
    }

    /// Returns the first instance of a buffer.
    pub fn buffer(&self, buffer: Buffer) -> Option<&[u8]> {
        self.buffer_from(buffer, 0).map(|(bytes, _)| bytes)
    }

    /// Returns the first instance of a buffer at position `place` or later, and the position after that instance.
    /// Positions begin with 0.
    pub fn buffer_from(&self, buffer: Buffer, place: usize) -> Option<(&[u8], usize)> {
        let mut rest = self.instances.iter().enumerate().skip(place);
        let (at, found) = rest.find(|(_, it)| it.buffer == buffer)?;
        Some((self.bytes.get(found.from..found.to)?, at + 1))
    }

    /// Returns all instances of a buffer, in their order.
    pub fn buffers(&self, buffer: Buffer) -> impl Iterator<Item = &[u8]> {
        let mut place = 0;
        std::iter::from_fn(move || {
            let (bytes, behind) = self.buffer_from(buffer, place)?;
            place = behind;
            Some(bytes)
        })
    }

    /// Returns the first instance of `buffer` as a number.
    pub fn number(&self, buffer: Buffer) -> Option<u64> {
        number_of(self.buffer(buffer)?)
    }
}

/// Returns an instance as a number; none if it does not have eight bytes.
pub fn number_of(instance: &[u8]) -> Option<u64> {
    instance.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_a_buffer_are_returned_in_insertion_order() {
        let mut record = Record::default();
        record.put(Buffer::SipVia, &[b"one"]);
        record.put_number(Buffer::MqttQos, 2);
        record.put(Buffer::SipVia, &[b"t", b"wo"]);
        assert!(record.buffers(Buffer::SipVia).eq([&b"one"[..], b"two"]));
        assert_eq!(record.number(Buffer::MqttQos), Some(2));
        assert_eq!(record.number(Buffer::SipVia), None);
        assert_eq!(record.buffer(Buffer::SipTo), None);
        assert!(record.has().iter().eq([Buffer::SipVia, Buffer::MqttQos]));
    }

    #[test]
    fn a_record_is_rolled_back_to_its_last_mark() {
        let mut record = Record::default();
        record.put(Buffer::SipVia, &[b"one"]);
        let mark = record.mark();
        record.put(Buffer::SipTo, &[b"two"]);
        record.take_back(mark);
        assert!(record.has().iter().eq([Buffer::SipVia]));
        record.extend(b" more");
        assert_eq!(record.buffer(Buffer::SipVia), Some(&b"one more"[..]));
    }

    #[test]
    fn records_are_limited_in_bytes_and_buffer_instances() {
        let mut record = Record::default();
        record.put(Buffer::SipVia, &[&[7; MOST_BYTES - 1], b"ab"]);
        assert!(record.is_cut());
        assert_eq!(
            record.buffer(Buffer::SipVia).map(<[u8]>::len),
            Some(MOST_BYTES)
        );
        record.clear();
        assert!(!record.is_cut());
        (0..=MOST_INSTANCES).for_each(|_| record.put(Buffer::SipTo, &[]));
        assert!(record.is_cut());
        assert_eq!(record.buffers(Buffer::SipTo).count(), MOST_INSTANCES);
    }
}
