//! Sends messages as datagrams with parity: a parity packet with the XOR of all messages follows each group of
//! messages, and recovers a single lost message of the group. There are no acknowledgements, no reordering delay and no
//! deadlines. Media over RTP use the same scheme (RFC 8627, section 1.1.1); the header here is our own. The deadline
//! transport is compared with this scheme.

use crate::wire::MOST_DATAGRAM_BYTES;

/// Length of the header before a message, bytes: magic, group size, index in the group, 0, stream (4), group (4),
/// length (2).
pub const PARITY_HEADER_BYTES: usize = 14;
/// Limit on the length of a message, bytes: messages are not split.
pub const MOST_PARITY_PAYLOAD_BYTES: usize = MOST_DATAGRAM_BYTES - PARITY_HEADER_BYTES;

const MAGIC: u8 = 0xD2;
/// Limit on the messages of a group: a bitmap stores one bit for each message and one for the parity.
const MOST_MESSAGES: u8 = 16;
/// Number of latest groups in which a lost message may still be recovered. It is a power of two, so that group numbers
/// may wrap around.
const GROUPS: usize = 64;

/// The number of messages that share a parity packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupSize(u8);

impl GroupSize {
    /// Makes a group size of 1 to 16 messages; returns none for other numbers.
    pub fn new(messages: usize) -> Option<Self> {
        let messages = u8::try_from(messages).ok()?;
        (1..=MOST_MESSAGES)
            .contains(&messages)
            .then_some(Self(messages))
    }
}

/// The fields of a packet: a message of a group, or the group's parity.
struct Part<'a> {
    size: u8,
    /// Index of the message in its group; the parity has index `size`.
    index: u8,
    stream: u32,
    group: u32,
    /// Length of the message, bytes; in a parity packet, the XOR of the lengths of the group's messages.
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

/// The sender of messages with parity.
#[derive(Debug)]
pub struct ParitySender {
    size: GroupSize,
    stream: u32,
    group: u32,
    index: u8,
    sum: Sum,
}

impl ParitySender {
    /// Makes a sender for the stream with the number `stream`, which should be random.
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

    /// Writes the parity that is due after the message, and returns its length; none if no parity is due.
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

/// The received part of a group.
#[derive(Debug, Clone, Default)]
struct Group {
    number: u32,
    /// Number of messages of the group; 0 for an unused entry.
    size: u8,
    /// Bitmap of the messages that have arrived or were repaired, and of the parity.
    seen: u32,
    sum: Sum,
}

/// The messages that the receiver obtains from one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Brought<'a> {
    /// The packet's own message; none for a parity packet.
    pub message: Option<&'a [u8]>,
    /// A lost message that is recovered from this packet and earlier ones; none if this packet recovers no message.
    pub repaired: Option<&'a [u8]>,
}

/// The receiver of messages with parity.
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
    /// Processes a packet. An invalid packet, a duplicate, and a packet of a group that is too old yield nothing.
    pub fn receive<'a>(&'a mut self, packet: &'a [u8]) -> Brought<'a> {
        let Some(part) = Part::parse(packet) else {
            return Brought::default();
        };
        if self.stream != Some(part.stream) {
            // The peer has started a new stream.
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
        // The length in a parity may be invalid.
        if is_repairable && length <= group.sum.bytes.len() {
            group.seen |= missing;
            self.repaired += 1;
            brought.repaired = Some(&group.sum.bytes[..length]);
        }
        brought
    }

    /// Returns the number of repaired messages.
    pub fn repaired(&self) -> u64 {
        self.repaired
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns packets of messages that differ by number and length.
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
        fn parity_recovers_one_lost_packet_per_group_in_any_order(
            size in 1_usize..=16,
            lost in 0_usize..17,
            order in any::<u64>(),
        ) {
            let mut packets = packets(size, size);
            packets.remove(lost % (size + 1));
            fastrand::Rng::with_seed(order).shuffle(&mut packets);
            let mut receiver = ParityReceiver::default();
            let mut got: Vec<_> = packets.iter().flat_map(|it| brought(&mut receiver, it)).collect();
            // Duplicates yield nothing more.
            prop_assert!(packets.iter().all(|it| brought(&mut receiver, it).is_empty()));
            let mut all: Vec<_> = (0..size).map(message).collect();
            got.sort();
            all.sort();
            prop_assert_eq!(got, all);
        }
    }

    #[test]
    fn two_losses_in_a_group_leave_other_groups_intact() {
        let mut packets = packets(4, 8);
        // Two packets are of the first group, one of the second.
        for index in [6, 2, 1] {
            packets.remove(index);
        }
        let mut receiver = ParityReceiver::default();
        let got = packets.iter().flat_map(|it| brought(&mut receiver, it));
        assert_eq!(got.collect::<Vec<_>>(), [0, 3, 4, 6, 7, 5].map(message));
        assert_eq!(receiver.repaired(), 1);
    }

    #[test]
    fn the_receiver_accepts_a_restarted_sender_but_no_late_packets() {
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
    fn malformed_packets_yield_no_message() {
        let mut receiver = ParityReceiver::default();
        let good = packets(1, 1).remove(0);
        for (at, byte) in [(0, 0), (1, 0), (1, 17), (2, 2), (3, 1), (13, 99)] {
            let mut wrong = good.clone();
            wrong[at] = byte;
            assert_eq!(receiver.receive(&wrong), Brought::default(), "{at}");
        }
        assert_eq!(receiver.receive(&good[..13]), Brought::default());
        // The length of this parity is invalid.
        let mut parity = good.clone();
        (parity[2], parity[12]) = (1, 0xFF);
        assert_eq!(receiver.receive(&parity), Brought::default());
        assert_eq!([0, 17].map(GroupSize::new), [None, None]);
    }
}
