//! The segments in which the stream of a case is sent, and their order.

use super::moves::{Broken, Case, Cut, Move, Spoofed};
use std::time::Duration;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;

/// A TCP segment to be sent.
#[derive(Debug, Clone, Default)]
pub struct Segment {
    /// Position of the segment's first byte in the stream.
    pub at: i64,
    pub bytes: Vec<u8>,
    pub flags: u8,
    pub broken: Option<Broken>,
    /// The urgent pointer: the number of bytes up to and including the urgent byte.
    pub urgent: u16,
    pub cut: Option<Cut>,
    /// True if the segment has the source address of the peer.
    pub is_of_other: bool,
    /// True if the segment carries bytes of the original stream; false for a segment that an evasion added.
    pub is_true: bool,
}

impl Segment {
    pub fn new(at: i64, flags: u8, bytes: &[u8]) -> Self {
        Self {
            at,
            flags,
            bytes: bytes.to_vec(),
            ..Self::default()
        }
    }
}

#[derive(Debug, Clone)]
pub enum Step {
    Send(Segment),
    Wait(Duration),
}

/// The packets that an evasion sends before the connection is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A SYN with another sequence number, which the receiver ignores.
    Decoy(Broken),
    /// A SYN with another sequence number, followed by a reset for it.
    OpenedAndReset,
    SynAck,
}

/// All segments of a sender.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub openings: Vec<Opening>,
    pub in_syn: Vec<u8>,
    pub fast_open: bool,
    pub has_timestamps: bool,
    pub window: u16,
    pub steps: Vec<Step>,
    /// True if every segment is sent twice.
    pub twice: bool,
    /// The bytes of the stream.
    pub payload: Vec<u8>,
}

impl Plan {
    pub fn new(case: &Case) -> Self {
        let payload = case.payload();
        let whole = payload.chunks(1400).enumerate().map(|(at, bytes)| {
            let segment = Segment::new(at as i64 * 1400, PSH | ACK, bytes);
            Step::Send(Segment {
                is_true: true,
                ..segment
            })
        });
        let mut plan = Self {
            has_timestamps: true,
            window: 60_000,
            steps: whole.collect(),
            payload,
            ..Self::default()
        };
        for it in &case.moves {
            plan.apply(it);
        }
        plan
    }

    fn apply(&mut self, it: &Move) {
        match *it {
            Move::Split { .. }
            | Move::Pieces { .. }
            | Move::Swap { .. }
            | Move::Backward
            | Move::Repeat { .. }
            | Move::Overlap { .. }
            | Move::Contradict { .. }
            | Move::Urgent { .. }
            | Move::Fragments { .. } => self.rearrange(it),
            Move::DecoySyn { broken } => self.openings.push(Opening::Decoy(broken)),
            Move::OpenedBefore => self.openings.push(Opening::OpenedAndReset),
            Move::SynAckFirst => self.openings.push(Opening::SynAck),
            Move::SynData {
                bytes,
                other,
                fast_open,
            } => {
                let length = usize::from(bytes).min(self.payload.len());
                self.in_syn = if other {
                    others(length)
                } else {
                    self.payload[..length].to_vec()
                };
                self.fast_open = fast_open;
            }
            Move::NoTimestamps => self.has_timestamps = false,
            Move::Window { bytes } => self.window = bytes,
            Move::Reopen => self.twice = true,
            Move::Http(_) => {}
            _ => self.insert(it),
        }
    }

    /// Returns the indices of the segments that have the stream's bytes.
    fn true_ones(&self) -> Vec<usize> {
        let is_true = |step: &Step| matches!(step, Step::Send(it) if it.is_true);
        (0..self.steps.len())
            .filter(|at| is_true(&self.steps[*at]))
            .collect()
    }

    fn place(&self, which: u8) -> usize {
        let places = self.true_ones();
        places[usize::from(which) % places.len()]
    }

    fn segment(&mut self, place: usize) -> &mut Segment {
        match &mut self.steps[place] {
            Step::Send(segment) => segment,
            Step::Wait(_) => panic!("no segment at {place}"),
        }
    }

    /// Changes the segments of the stream: their content, number or order.
    fn rearrange(&mut self, it: &Move) {
        match *it {
            Move::Split { at } => {
                let at = self.payload.len() as i64 * i64::from(at) / 1000;
                let covers = |it: &Segment| it.at < at && at < it.at + it.bytes.len() as i64;
                let places = self.true_ones();
                if let Some(place) = places
                    .into_iter()
                    .find(|place| covers(self.segment(*place)))
                {
                    let first = self.segment(place);
                    let mut second = first.clone();
                    second.bytes = first.bytes.split_off((at - first.at) as usize);
                    second.at = at;
                    self.steps.insert(place + 1, Step::Send(second));
                }
            }
            Move::Pieces { bytes } => {
                // The size limits the number of segments, as each packet takes time.
                let size = usize::from(bytes).max(self.payload.len() / 100);
                self.steps = std::mem::take(&mut self.steps)
                    .into_iter()
                    .flat_map(|step| pieces(step, size))
                    .collect();
            }
            Move::Swap { one, other } => {
                let (one, other) = (self.place(one), self.place(other));
                self.steps.swap(one, other);
            }
            Move::Backward => self.steps.reverse(),
            Move::Repeat { which } => {
                let place = self.place(which);
                let again = self.steps[place].clone();
                self.steps.insert(place + 1, again);
            }
            Move::Overlap {
                which,
                before,
                after,
                other,
            } => {
                let place = self.place(which);
                let length = self.payload.len() as i64;
                let stream = self.payload.clone();
                let segment = self.segment(place);
                let end = segment.at + segment.bytes.len() as i64;
                let from = (segment.at - i64::from(before)).clamp(0, length);
                let to = (end + i64::from(after)).clamp(0, length);
                let (from, to) = (from.min(segment.at.max(0)), to.max(end.min(length)));
                let part = |from: i64, to: i64| match other {
                    true => others((to - from).max(0) as usize),
                    false => stream[from as usize..to.max(from) as usize].to_vec(),
                };
                let bytes = [part(from, segment.at), segment.bytes.clone(), part(end, to)].concat();
                segment.at = from;
                segment.bytes = bytes;
            }
            Move::Contradict { which, first } => {
                let place = self.place(which);
                let mut twin = self.segment(place).clone();
                twin.bytes = others(twin.bytes.len());
                twin.is_true = false;
                self.steps
                    .insert(place + usize::from(!first), Step::Send(twin));
            }
            Move::Urgent { at } => self.add_urgent_byte(at),
            Move::Fragments { which, cut } => {
                let place = self.place(which);
                self.segment(place).cut = Some(cut);
            }
            _ => unreachable!("{it:?} changes no segment"),
        }
    }

    /// Inserts an urgent byte into the stream. A socket without SO_OOBINLINE removes the byte again.
    fn add_urgent_byte(&mut self, at: u16) {
        let at = self.payload.len() as i64 * i64::from(at) / 1000;
        self.payload.insert(at as usize, b'u');
        for step in &mut self.steps {
            let Step::Send(segment) = step else { continue };
            let end = segment.at + segment.bytes.len() as i64;
            if segment.at <= at && at < end {
                segment.bytes.insert((at - segment.at) as usize, b'u');
                segment.flags |= URG;
                segment.urgent = (at - segment.at) as u16 + 1;
            } else if segment.at > at {
                segment.at += 1;
            }
        }
    }

    /// Inserts segments between those of the stream.
    fn insert(&mut self, it: &Move) {
        let (which, behind) = match *it {
            Move::Decoy { which, first, .. } => (which, !first),
            Move::Reset { which, .. }
            | Move::End { which, .. }
            | Move::KeepAlive { which, .. }
            | Move::Spoof { which, .. }
            | Move::SynAgain { which, .. }
            | Move::Silence { which, .. } => (which, false),
            _ => unreachable!("{it:?} puts nothing in between"),
        };
        // The new segment may also follow the last segment of the stream. The sender then sends the unacknowledged
        // bytes again.
        let places = self.true_ones();
        let (place, of_stream) = match places.get(usize::from(which) % (places.len() + 1)) {
            Some(place) => (*place, self.segment(*place).clone()),
            None => (
                self.steps.len(),
                Segment::new(self.payload.len() as i64, 0, &[]),
            ),
        };
        let mut added = Segment::new(of_stream.at, 0, &[]);
        match *it {
            Move::Decoy { broken, .. } => {
                added.bytes = others(of_stream.bytes.len());
                (added.flags, added.broken) = (PSH | ACK, Some(broken));
            }
            Move::Reset { broken, .. } => (added.flags, added.broken) = (RST | ACK, Some(broken)),
            Move::End { broken, .. } => (added.flags, added.broken) = (FIN | ACK, Some(broken)),
            Move::KeepAlive { bytes, .. } => {
                added.at -= 1;
                (added.flags, added.bytes) = (ACK, others(usize::from(bytes)));
            }
            Move::Spoof { what, .. } => {
                added.is_of_other = true;
                added.flags = match what {
                    Spoofed::Reset => RST | ACK,
                    Spoofed::End => FIN | ACK,
                    Spoofed::SynAck => SYN | ACK,
                    Spoofed::Data => PSH | ACK,
                };
                added.bytes = others(if what == Spoofed::Data { 40 } else { 0 });
            }
            Move::SynAgain { ack, .. } => {
                added.flags = if ack { SYN | ACK } else { SYN };
                added.at += 70_000;
            }
            _ => {}
        }
        let step = match *it {
            Move::Silence { milliseconds, .. } => {
                Step::Wait(Duration::from_millis(milliseconds.into()))
            }
            _ => Step::Send(added),
        };
        let place = (place + usize::from(behind)).min(self.steps.len());
        self.steps.insert(place, step);
    }
}

/// Returns bytes of the given length that match no rule of the inspection.
pub fn others(length: usize) -> Vec<u8> {
    vec![b'x'; length]
}

fn pieces(step: Step, size: usize) -> Vec<Step> {
    match step {
        Step::Send(whole) if whole.is_true && whole.bytes.len() > size => {
            let piece = |(number, bytes): (usize, &[u8])| {
                let at = whole.at + (number * size) as i64;
                Step::Send(Segment {
                    at,
                    bytes: bytes.to_vec(),
                    ..whole.clone()
                })
            };
            whole.bytes.chunks(size).enumerate().map(piece).collect()
        }
        other => vec![other],
    }
}
