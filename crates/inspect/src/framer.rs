//! Splits one direction of a stream into messages, independently of its segments. A message within one segment is not
//! copied. If a message is longer than [`MOST_MESSAGE`], its first bytes are reported and its other bytes are skipped.

/// Maximum number of bytes of a message that are stored.
pub const MOST_MESSAGE: usize = 16 * 1024 + 16;

/// The length of the message at the beginning of the received bytes, if they determine it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// The length is unknown: more bytes are needed.
    Unknown,
    /// The message has this number of bytes, at least one.
    Bytes(u64),
    /// More bytes are needed. The end of the message can be found in later bytes alone, like the end of a line.
    Open,
    /// The bytes are not a message: parsing of the direction stops.
    Fault,
}

/// A message, or the first bytes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framed<'a> {
    /// Received bytes of the message, up to [`MOST_MESSAGE`].
    pub bytes: &'a [u8],
    /// True if `bytes` contains the complete message.
    pub is_whole: bool,
}

/// The state of splitting one direction of a stream.
#[derive(Debug, Default)]
pub struct Framer {
    pending: Vec<u8>,
    /// Number of remaining bytes of the current message, which are skipped.
    skip: u64,
    /// True if the current message, whose length is unknown, is skipped up to its end.
    is_open: bool,
    is_lost: bool,
}

/// The state of splitting both directions of a stream.
#[derive(Debug, Default)]
pub struct Framers {
    /// State of each direction: to the server, then to the client.
    directions: [Framer; 2],
}

impl Framers {
    /// Resets both directions for another stream; their memory stays allocated.
    pub fn reset(&mut self) {
        self.directions.iter_mut().for_each(Framer::reset);
    }

    /// Returns true if neither direction is inside a message.
    pub fn are_between(&self) -> bool {
        self.directions.iter().all(Framer::is_between)
    }

    /// Stops splitting a direction whose message boundaries are unknown from here on.
    pub fn lose(&mut self, to_server: bool) {
        self.directions[usize::from(!to_server)].lose();
    }

    /// Calls [`Framer::push`] for a direction.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        length: impl Fn(&[u8]) -> Length,
        each: impl FnMut(Framed<'_>),
    ) -> bool {
        self.directions[usize::from(!to_server)].push(data, length, each)
    }
}

impl Framer {
    /// Resets the state for another stream; its memory stays allocated.
    pub fn reset(&mut self) {
        self.pending.clear();
        (self.skip, self.is_open, self.is_lost) = (0, false, false);
    }

    fn is_between(&self) -> bool {
        self.pending.is_empty() && self.skip == 0 && !self.is_open && !self.is_lost
    }

    /// Stops splitting the direction, because its message boundaries are unknown from here on.
    pub fn lose(&mut self) {
        self.pending.clear();
        self.is_lost = true;
    }

    /// Parses the next bytes of the stream and calls `each` with every complete message. `length` returns the length of
    /// the message at the beginning of the bytes that it gets. Returns true on a fault; nothing is parsed after a
    /// fault.
    pub fn push(
        &mut self,
        mut data: &[u8],
        length: impl Fn(&[u8]) -> Length,
        mut each: impl FnMut(Framed<'_>),
    ) -> bool {
        loop {
            data = self.behind_skipped(data);
            if self.is_lost || data.is_empty() {
                return false;
            }
            if self.is_open {
                match length(data) {
                    Length::Bytes(bytes) => (self.skip, self.is_open) = (bytes, false),
                    Length::Open => return false,
                    Length::Unknown | Length::Fault => {
                        self.lose();
                        return true;
                    }
                }
                continue;
            }
            let before = self.pending.len();
            if before > 0 {
                self.extend_pending(data, &length);
            }
            let bytes = if before > 0 { &self.pending } else { data };
            let (kept, skip) = match length(bytes) {
                Length::Bytes(all) => {
                    let kept = all.min(MOST_MESSAGE as u64).max(1);
                    (kept as usize, all.saturating_sub(kept))
                }
                Length::Unknown | Length::Open if bytes.len() < MOST_MESSAGE => (usize::MAX, 0),
                Length::Open => {
                    self.is_open = true;
                    (MOST_MESSAGE, 0)
                }
                Length::Unknown | Length::Fault => {
                    self.lose();
                    return true;
                }
            };
            let Some(message) = bytes.get(..kept) else {
                if before == 0 {
                    self.pending.extend_from_slice(data);
                }
                return false;
            };
            each(Framed {
                bytes: message,
                is_whole: skip == 0 && !self.is_open,
            });
            self.skip = skip;
            self.pending.clear();
            // The pending bytes did not contain the end of a message.
            data = &data[kept.saturating_sub(before)..];
        }
    }

    /// Returns the part of `data` after the bytes to skip.
    #[inline]
    fn behind_skipped<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let skipped = self.skip.min(data.len() as u64);
        self.skip -= skipped;
        // At most `data.len()` bytes are skipped here.
        &data[skipped as usize..]
    }

    /// Adds bytes to the pending ones, up to the end of their message if it is known.
    #[inline]
    fn extend_pending(&mut self, data: &[u8], length: &impl Fn(&[u8]) -> Length) {
        let wanted = match length(&self.pending) {
            Length::Bytes(bytes) => bytes.min(MOST_MESSAGE as u64) as usize,
            _ => MOST_MESSAGE,
        };
        let taken = wanted.saturating_sub(self.pending.len()).min(data.len());
        self.pending.extend_from_slice(&data[..taken]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the length of messages that begin with their length, two bytes and at most 60,000.
    fn length(bytes: &[u8]) -> Length {
        match bytes.first_chunk::<2>() {
            None => Length::Unknown,
            Some(head) => match u16::from_be_bytes(*head) {
                60_001.. => Length::Fault,
                len => Length::Bytes(2 + u64::from(len)),
            },
        }
    }

    fn messages(stream: &[u8], cuts: &[usize]) -> (Vec<(Vec<u8>, bool)>, bool) {
        let (mut framer, mut found, mut fault) = (Framer::default(), Vec::new(), false);
        let mut push = |piece: &[u8]| {
            fault |= framer.push(piece, length, |it| {
                found.push((it.bytes.to_vec(), it.is_whole));
            });
            assert!(framer.pending.len() <= MOST_MESSAGE);
        };
        let (mut rest, mut cuts) = (stream, cuts.iter().cycle());
        while !rest.is_empty() {
            let cut = cuts.next().map_or(rest.len(), |&cut| cut.min(rest.len()));
            push(&rest[..cut]);
            rest = &rest[cut..];
        }
        (found, fault)
    }

    fn message(len: usize) -> Vec<u8> {
        let mut message = (len as u16).to_be_bytes().to_vec();
        message.resize(2 + len, len as u8);
        message
    }

    #[test]
    fn long_messages_are_truncated_and_later_messages_are_found() {
        let stream = [message(3), message(50_000), message(0), message(4)].concat();
        let (found, fault) = messages(&stream, &[]);
        assert!(!fault);
        assert_eq!(found.len(), 4);
        assert_eq!((found[1].0.len(), found[1].1), (MOST_MESSAGE, false));
        assert_eq!(found[3], (message(4), true));
        for cut in [1, 2, 3, 1000, MOST_MESSAGE, 30_000] {
            assert_eq!(messages(&stream, &[cut]), (found.clone(), false), "{cut}");
        }
    }

    #[test]
    fn parsing_stops_after_a_fault_or_missing_bytes() {
        let stream = [message(3), vec![0xff, 0xff], message(3)].concat();
        assert_eq!(messages(&stream, &[]), (vec![(message(3), true)], true));
        let mut framer = Framer::default();
        framer.lose();
        assert!(!framer.push(&stream, length, |_| unreachable!()));
        framer.reset();
        let mut found = 0;
        assert!(framer.push(&stream, length, |_| found += 1));
        assert_eq!(found, 1);
    }

    #[test]
    fn long_lines_are_truncated_and_later_lines_are_found() {
        let line = |bytes: &[u8]| match memchr::memchr(b'\n', bytes) {
            Some(end) => Length::Bytes(end as u64 + 1),
            None => Length::Open,
        };
        for len in [
            0,
            1,
            MOST_MESSAGE - 2,
            MOST_MESSAGE - 1,
            MOST_MESSAGE,
            40_000,
        ] {
            let stream = [&[b'x'; 40_000][..len], b"\nmore\n"].concat();
            for cut in [1, 1000, MOST_MESSAGE, usize::MAX] {
                let (mut framer, mut found) = (Framer::default(), Vec::new());
                for piece in stream.chunks(cut) {
                    let is_lost = framer.push(piece, line, |it| {
                        found.push((it.bytes.len(), it.is_whole));
                    });
                    assert!(!is_lost && framer.pending.len() <= MOST_MESSAGE);
                }
                let first = ((len + 1).min(MOST_MESSAGE), len < MOST_MESSAGE);
                assert_eq!(found, [first, (5, true)], "{len} {cut}");
                assert!(framer.is_between());
            }
        }
    }

    #[test]
    fn both_directions_of_a_stream_are_framed_independently() {
        let (mut framers, mut found) = (Framers::default(), 0);
        framers.push(true, &[0], length, |_| unreachable!());
        framers.push(false, &message(3), length, |_| found += 1);
        framers.lose(false);
        framers.push(false, &message(3), length, |_| unreachable!());
        framers.push(true, &[0], length, |_| found += 1);
        framers.reset();
        framers.push(false, &message(3), length, |_| found += 1);
        assert_eq!(found, 3);
    }

    #[test]
    fn a_message_of_unknown_length_faults_at_the_size_limit() {
        let mut framer = Framer::default();
        let unknown = |_: &[u8]| Length::Unknown;
        let faults = (0..MOST_MESSAGE).filter(|_| framer.push(b"x", unknown, |_| {}));
        assert_eq!(faults.count(), 1);
    }

    proptest! {
        #[test]
        fn messages_are_the_same_at_any_split_of_the_stream(
            lens in prop::collection::vec(0usize..60, 0..20),
            cuts in prop::collection::vec(1usize..50, 1..10),
        ) {
            let stream = lens.iter().flat_map(|&len| message(len)).collect::<Vec<_>>();
            let all = lens.iter().map(|&len| (message(len), true)).collect::<Vec<_>>();
            prop_assert_eq!(messages(&stream, &cuts), (all, false));
        }

        #[test]
        fn arbitrary_bytes_are_framed_equally_at_any_split(
            stream in prop::collection::vec(any::<u8>(), 0..300),
            cuts in prop::collection::vec(1usize..50, 1..10),
        ) {
            prop_assert_eq!(messages(&stream, &cuts), messages(&stream, &[]));
        }
    }
}
