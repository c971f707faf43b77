//! Messages as datagrams with parity beside them: behind so many messages goes the XOR of all, from which a single one
//! that is lost is made again. Nobody answers, nothing waits for its turn, and nothing has a deadline: what media over
//! RTP have
//! (RFC 8627, section 1.1.1), with a header of our own, and what the deadline transport is compared with.

use crate::wire::MOST_DATAGRAM_BYTES;

/// Bytes in front of a message: magic, messages of a group, place in it, 0, stream (4), group (4), length (2).
pub const PARITY_HEADER_BYTES: usize = 14;
/// Bytes of a message at most: packets are not cut into pieces.
pub const MOST_PARITY_PAYLOAD_BYTES: usize = MOST_DATAGRAM_BYTES - PARITY_HEADER_BYTES;

const MAGIC: u8 = 0xD2;
/// Messages of a group at most: so many bits, and one more, are kept of each.
const MOST_MESSAGES: u8 = 16;
/// Groups, from the latest on, that may still be repaired. A power of two, so that numbers may begin anew.
const GROUPS: usize = 64;

/// How many messages have a parity in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize(u8);

impl GroupSize {
    /// Takes 1 to 16 messages.
    pub fn new(messages: usize) -> Option<Self> {
        let messages = u8::try_from(messages).ok()?;
        (1..=MOST_MESSAGES)
            .contains(&messages)
            .then_some(Self(messages))
    }
}

/// What a packet says of itself.
struct Part<'a> {
    size: u8,
    /// Place in the group; `size` is that of the parity.
    index: u8,
    stream: u32,
    group: u32,
    /// Length of the message, or the XOR of all lengths.
    length: u16,
    bytes: &'a [u8],
}

impl<'a> Part<'a> {
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let (header, bytes) = packet.split_first_chunk::<PARITY_HEADER_BYTES>()?;
        let [MAGIC, size, index, 0, a, b, c, d, e, f, g, h, i, j] = *header else {
            return None;
        };
        let part = Self {
            size,
            index,
            stream: u32::from_be_bytes([a, b, c, d]),
            group: u32::from_be_bytes([e, f, g, h]),
            length: u16::from_be_bytes([i, j]),
            bytes,
        };
        let is_whole = index == size || usize::from(part.length) == bytes.len();
        let fits = bytes.len() <= MOST_PARITY_PAYLOAD_BYTES;
        ((1..=MOST_MESSAGES).contains(&size) && index <= size && is_whole && fits).then_some(part)
    }

    /// Writes the packet, and returns its length.
    fn emit(&self, packet: &mut [u8; MOST_DATAGRAM_BYTES]) -> usize {
        packet[..4].copy_from_slice(&[MAGIC, self.size, self.index, 0]);
        packet[4..8].copy_from_slice(&self.stream.to_be_bytes());
        packet[8..12].copy_from_slice(&self.group.to_be_bytes());
        packet[12..PARITY_HEADER_BYTES].copy_from_slice(&self.length.to_be_bytes());
        packet[PARITY_HEADER_BYTES..][..self.bytes.len()].copy_from_slice(self.bytes);
        PARITY_HEADER_BYTES + self.bytes.len()
    }
}

/// The XOR of messages and of their lengths.
#[derive(Debug, Clone, Default)]
struct Sum {
    length: u16,
    bytes: Vec<u8>,
}

impl Sum {
    fn clear(&mut self) {
        self.length = 0;
        self.bytes.clear();
    }

    fn add(&mut self, length: u16, bytes: &[u8]) {
        self.length ^= length;
        if self.bytes.len() < bytes.len() {
            self.bytes.resize(bytes.len(), 0);
        }
        let both = self.bytes.iter_mut().zip(bytes);
        both.for_each(|(sum, byte)| *sum ^= byte);
    }
}

/// The half that sends.
#[derive(Debug)]
pub struct ParitySender {
    size: GroupSize,
    stream: u32,
    group: u32,
    index: u8,
    sum: Sum,
}

impl ParitySender {
    /// Makes a sender whose stream has that number, which is to be drawn.
    pub fn new(size: GroupSize, stream: u32) -> Self {
        Self {
            size,
            stream,
            group: 0,
            index: 0,
            sum: Sum::default(),
        }
    }

    /// Writes the packet of a message, and returns its length; none if the message is too long.
    pub fn send(
        &mut self,
        message: &[u8],
        packet: &mut [u8; MOST_DATAGRAM_BYTES],
    ) -> Option<usize> {
        let length = u16::try_from(message.len()).ok()?;
        if message.len() > MOST_PARITY_PAYLOAD_BYTES {
            return None;
        }
        let written = self.part(self.index, length, message).emit(packet);
        self.sum.add(length, message);
        self.index += 1;
        Some(written)
    }

    /// Writes the parity that is due behind the message, and returns its length; none if none is.
    pub fn parity(&mut self, packet: &mut [u8; MOST_DATAGRAM_BYTES]) -> Option<usize> {
        if self.index < self.size.0 {
            return None;
        }
        let part = self.part(self.size.0, self.sum.length, &self.sum.bytes);
        let written = part.emit(packet);
        self.sum.clear();
        self.group = self.group.wrapping_add(1);
        self.index = 0;
        Some(written)
    }

    fn part<'a>(&self, index: u8, length: u16, bytes: &'a [u8]) -> Part<'a> {
        Part {
            size: self.size.0,
            index,
            stream: self.stream,
            group: self.group,
            length,
            bytes,
        }
    }
}

/// A group as far as it has come.
#[derive(Debug, Clone, Default)]
struct Group {
    number: u32,
    /// 0 of none.
    size: u8,
    /// A bit for each message that has come or was repaired, and one for the parity.
    seen: u32,
    sum: Sum,
}

/// Messages that a packet brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Brought<'a> {
    /// Its own.
    pub message: Option<&'a [u8]>,
    /// One that was lost, and is made from it and what had come before.
    pub repaired: Option<&'a [u8]>,
}

/// The half that receives.
#[derive(Debug)]
pub struct ParityReceiver {
    stream: Option<u32>,
    latest: u32,
    groups: Vec<Group>,
    repaired: u64,
}

impl Default for ParityReceiver {
    fn default() -> Self {
        Self {
            stream: None,
            latest: 0,
            groups: vec![Group::default(); GROUPS],
            repaired: 0,
        }
    }
}

impl ParityReceiver {
    /// Takes a packet in. What is none brings nothing, nor does one that came before or comes much too late.
    pub fn receive<'a>(&'a mut self, packet: &'a [u8]) -> Brought<'a> {
        let Some(part) = Part::parse(packet) else {
            return Brought::default();
        };
        if self.stream != Some(part.stream) {
            // The other side has begun anew.
            self.stream = Some(part.stream);
            self.latest = part.group;
            self.groups.iter_mut().for_each(|group| group.size = 0);
        }
        let behind = self.latest.wrapping_sub(part.group) as i32;
        if behind < 0 {
            self.latest = part.group;
        } else if behind >= GROUPS as i32 {
            return Brought::default();
        }
        let group = &mut self.groups[part.group as usize % GROUPS];
        if (group.number, group.size) != (part.group, part.size) {
            (group.number, group.size, group.seen) = (part.group, part.size, 0);
            group.sum.clear();
        }
        let bit = 1 << part.index;
        if group.seen & bit != 0 {
            return Brought::default();
        }
        group.seen |= bit;
        group.sum.add(part.length, part.bytes);
        let parity = 1_u32 << part.size;
        let missing = (2 * parity - 1) & !group.seen;
        let is_repairable = missing.count_ones() == 1 && missing != parity;
        let length = usize::from(group.sum.length);
        let mut brought = Brought {
            message: (part.index < part.size).then_some(part.bytes),
            repaired: None,
        };
        // A parity may say what cannot be.
        if is_repairable && length <= group.sum.bytes.len() {
            group.seen |= missing;
            self.repaired += 1;
            brought.repaired = Some(&group.sum.bytes[..length]);
        }
        brought
    }

    /// Returns how many messages were made from others.
    pub fn repaired(&self) -> u64 {
        self.repaired
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Packets of messages that are told apart by number and length.
    fn packets(size: usize, count: usize) -> Vec<Vec<u8>> {
        let mut sender = ParitySender::new(GroupSize::new(size).unwrap(), 7);
        let mut packet = [0; MOST_DATAGRAM_BYTES];
        let mut all = Vec::new();
        for number in 0..count {
            let length = sender.send(&message(number), &mut packet).unwrap();
            all.push(packet[..length].to_vec());
            if let Some(length) = sender.parity(&mut packet) {
                all.push(packet[..length].to_vec());
            }
        }
        all
    }

    fn message(number: usize) -> Vec<u8> {
        vec![number as u8; 1 + number * 7 % 40]
    }

    fn brought(receiver: &mut ParityReceiver, packet: &[u8]) -> Vec<Vec<u8>> {
        let Brought { message, repaired } = receiver.receive(packet);
        let both = [message, repaired].into_iter().flatten();
        both.map(<[u8]>::to_vec).collect()
    }

    proptest! {
        #[test]
        fn one_lost_packet_of_a_group_costs_no_message_in_any_order(
            size in 1_usize..=16,
            lost in 0_usize..17,
            order in any::<u64>(),
        ) {
            let mut packets = packets(size, size);
            packets.remove(lost % (size + 1));
            fastrand::Rng::with_seed(order).shuffle(&mut packets);
            let mut receiver = ParityReceiver::default();
            let mut got: Vec<_> = packets.iter().flat_map(|it| brought(&mut receiver, it)).collect();
            // What comes twice brings nothing more.
            prop_assert!(packets.iter().all(|it| brought(&mut receiver, it).is_empty()));
            let mut all: Vec<_> = (0..size).map(message).collect();
            got.sort();
            all.sort();
            prop_assert_eq!(got, all);
        }
    }

    #[test]
    fn two_that_are_lost_of_a_group_stay_so_and_other_groups_are_not_touched() {
        let mut packets = packets(4, 8);
        // Two of the first group, one of the second.
        for index in [6, 2, 1] {
            packets.remove(index);
        }
        let mut receiver = ParityReceiver::default();
        let got = packets.iter().flat_map(|it| brought(&mut receiver, it));
        assert_eq!(got.collect::<Vec<_>>(), [0, 3, 4, 6, 7, 5].map(message));
        assert_eq!(receiver.repaired(), 1);
    }

    #[test]
    fn who_begins_anew_is_heard_and_what_is_much_too_late_is_not() {
        let all = packets(2, 200);
        let mut receiver = ParityReceiver::default();
        assert_eq!(brought(&mut receiver, all.last().unwrap()).len(), 0);
        assert_eq!(brought(&mut receiver, &all[0]).len(), 0);
        assert_eq!(brought(&mut receiver, &all[3 * 90]).len(), 1);
        let mut sender = ParitySender::new(GroupSize::new(2).unwrap(), 8);
        let mut packet = [0; MOST_DATAGRAM_BYTES];
        let length = sender.send(b"anew", &mut packet).unwrap();
        assert_eq!(brought(&mut receiver, &packet[..length]), [b"anew"]);
    }

    #[test]
    fn what_is_no_packet_brings_nothing() {
        let mut receiver = ParityReceiver::default();
        let good = packets(1, 1).remove(0);
        for (at, byte) in [(0, 0), (1, 0), (1, 17), (2, 2), (3, 1), (13, 99)] {
            let mut wrong = good.clone();
            wrong[at] = byte;
            assert_eq!(receiver.receive(&wrong), Brought::default(), "{at}");
        }
        assert_eq!(receiver.receive(&good[..13]), Brought::default());
        // A parity whose length cannot be.
        let mut parity = good.clone();
        (parity[2], parity[12]) = (1, 0xFF);
        assert_eq!(receiver.receive(&parity), Brought::default());
        assert_eq!([0, 17].map(GroupSize::new), [None, None]);
    }
}
