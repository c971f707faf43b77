//! Splits the time of messages over the deadline transport by layer, from captures at both ends of the path.
//!
//! Gallenmüller's dissertation, section 6.3, timestamps each message at six points. At the sender these are m1 (the
//! application sends it), m2 (it leaves the transport) and m3 (its frame leaves). At the receiver they are m4 (it
//! arrives), m5 (the transport has it) and m6 (the application has it). Captures contain m3 and m4. The packets contain
//! the other timestamps, by the clock that programs of one machine share. A packet has its send time and the remaining
//! time of its message. Packets in the opposite direction have the time since the echoed packet arrived (m5). The reply
//! to a probe also has its own send time (m6, as servers reply immediately). Therefore the measured programs need no
//! change. A key only authenticates packets, so the fields are readable with a key too.

use super::capture_pair::{Reader, RecordingError};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;
use std::path::Path;
use taut_measure::{LatencyHistogram, Summary};
use taut_transport::wire::{self, Body};
use taut_wire::{Headers, IpProtocol, Probe, ProbeWay};

/// Maximum number of stored packets of each direction; later packets are only counted.
const MOST_PACKETS: usize = 1 << 21;
/// Length of a UDP header, bytes.
const UDP_BYTES: usize = 8;
/// Fraction of the packets with contradicting timestamps above which the result is rejected.
const MOST_CONTRADICTIONS: f64 = 0.5;
/// Longest plausible time between two timestamps of a message, ns: longer times are due to different clocks.
const LONGEST_NS: i64 = 60_000_000_000;

/// Reason why the captures give no times of messages.
#[derive(Debug, thiserror::Error)]
pub enum LayersError {
    /// A capture cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The captures contain no start of a connection.
    #[error(
        "no packet of the first capture opens a connection of the deadline transport: capture where packets are not encrypted, and start before \
         the client does"
    )]
    NoConnection,
    /// No message was observed in both captures.
    #[error(
        "no message was captured at both ends: give the client's capture first, then the server's"
    )]
    NothingMatched,
    /// The captures and the packets contain timestamps of different clocks.
    #[error(
        "timestamps contradict each other ({contradicting} of {all}): name the client's capture first, and record both with \
         `--stamps kernel` on this machine, without a reboot in between"
    )]
    Clocks {
        /// Number of packets with contradicting timestamps.
        contradicting: u64,
        /// Number of all packets.
        all: u64,
    },
}

/// The times of messages that both captures contain.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LayersReport {
    /// Times of messages from the endpoint that opened the connection.
    pub there: LayeredWay,
    /// Times of messages to the endpoint that opened the connection. The time m6 is known only for probes in the first
    /// direction, so `receiver_ns` and `took_ns` are none here.
    pub back: LayeredWay,
    /// Frames of both captures that do not belong to the connection.
    pub other_frames: u64,
    /// Packets of the connection that were not evaluated, because the maximum number of packets was stored already.
    pub not_remembered: u64,
}

/// The times of the messages that are sent in one direction.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LayeredWay {
    /// Messages of this direction in the captures, each counted once.
    pub messages: u64,
    /// Messages with all timestamps, to which the summaries apply.
    pub stamped: u64,
    /// Messages with contradicting timestamps.
    pub contradicting: u64,
    /// Time in the sender's transport: m2 - m1, ns. None without messages that have these timestamps.
    pub sender_ns: Option<Summary>,
    /// Time from the sender's transport until the frame leaves the sender's interface: m3 - m2, ns. None without
    /// messages that have these timestamps.
    pub out_ns: Option<Summary>,
    /// Time from the sender's interface to the receiver's interface: m4 - m3, ns. None without messages that have these
    /// timestamps.
    pub medium_ns: Option<Summary>,
    /// Time from the receiver's interface to the receiver's transport: m5 - m4, ns. None without messages that have
    /// these timestamps.
    pub in_ns: Option<Summary>,
    /// Time in the receiver's transport: m6 - m5, ns. None without messages that have these timestamps.
    pub receiver_ns: Option<Summary>,
    /// Total time: m6 - m1, ns. None without messages that have these timestamps.
    pub took_ns: Option<Summary>,
}

/// Reads both captures; the first is that of the side that opens the connection. The clock of the captures is
/// `ahead_ns` ahead of the clock of the measured programs.
///
/// # Errors
/// A capture cannot be read, or its packets cannot be evaluated.
pub fn layers(files: [&Path; 2], ahead_ns: i64) -> Result<LayersReport, LayersError> {
    let mut layers = Layers::default();
    for (place, file) in files.into_iter().enumerate() {
        let mut reader = Reader::open(file)?;
        while let Some(found) = reader.next()? {
            match found {
                Some((frame, _, time_ns)) => layers.see(place, time_ns, frame),
                None => layers.other_frames += 1,
            }
        }
    }
    layers.report(ahead_ns)
}

/// A packet of the deadline transport that contains a message.
#[derive(Debug, Clone, Copy)]
struct Packet {
    message: u64,
    sent_ns: u64,
    left_ns: u32,
    probe: Option<(ProbeWay, u16, u32)>,
    /// Times at which the packet was captured at its sender, and at its receiver, ns; none for a side that did not
    /// capture the packet.
    seen_ns: [Option<u64>; 2],
}

/// The connection of the deadline transport that is evaluated.
#[derive(Debug, Clone, Copy)]
struct Connection {
    number: u32,
    opener: (u128, u16),
}

#[derive(Debug, Default)]
struct Layers {
    connection: Option<Connection>,
    /// Target delays that the two endpoints have announced, ns.
    target_ns: [u64; 2],
    /// Packets with messages of each direction, by packet number.
    packets: [HashMap<u64, Packet>; 2],
    /// Times at which the receiver's transport got the packets of each direction (m5), by the packets' send times (m2).
    taken_ns: [HashMap<u64, u64>; 2],
    other_frames: u64,
    not_remembered: u64,
}

impl Layers {
    /// Processes a frame of the capture with the index `place`.
    fn see(&mut self, place: usize, time_ns: u64, frame: &[u8]) {
        if self.look(place, time_ns, frame).is_none() {
            self.other_frames += 1;
        }
    }

    fn look(&mut self, place: usize, time_ns: u64, frame: &[u8]) -> Option<()> {
        let headers = Headers::of(frame);
        if headers.protocol() != IpProtocol::UDP || headers.is_fragment() {
            return None;
        }
        let datagram = headers.transport_in(frame).get(UDP_BYTES..)?;
        let (header, body) = wire::parse(datagram).ok()?;
        let from = (headers.addresses_in(frame).0, headers.ports()?.0);
        if let (None, Body::Hello(_)) = (self.connection, &body) {
            self.connection = Some(Connection {
                number: header.connection,
                opener: from,
            });
        }
        let connection = self
            .connection
            .filter(|it| it.number == header.connection)?;
        let way = usize::from(from != connection.opener);
        match &body {
            Body::Hello(own) => self.target_ns[0] = own.target_ns,
            Body::Accept(accept) => self.target_ns[1] = accept.own.target_ns,
            _ => {}
        }
        if let Some((echoed_ns, held_ns)) = header.echo {
            let taken = &mut self.taken_ns[1 - way];
            if taken.len() < MOST_PACKETS {
                let at_ns = header.sent_ns.saturating_sub(u64::from(held_ns));
                taken.entry(echoed_ns).or_insert(at_ns);
            }
        }
        let Body::Data(data) = body else {
            return Some(());
        };
        let packets = &mut self.packets[way];
        if packets.len() >= MOST_PACKETS && !packets.contains_key(&header.packet) {
            self.not_remembered += 1;
            return Some(());
        }
        let packet = packets.entry(header.packet).or_insert(Packet {
            message: data.source,
            sent_ns: header.sent_ns,
            left_ns: data.left_ns,
            probe: Probe::parse(data.payload).map(|(way, it)| (way, it.session, it.sequence)),
            seen_ns: [None; 2],
        });
        packet.seen_ns[usize::from(place != way)].get_or_insert(time_ns);
        Some(())
    }

    /// Returns the time at which the application sent a packet's message (m1).
    fn given_ns(&self, way: usize, packet: &Packet) -> u64 {
        let deadline_ns = packet.sent_ns.saturating_add(u64::from(packet.left_ns));
        deadline_ns.saturating_sub(self.target_ns[way])
    }

    fn report(&self, ahead_ns: i64) -> Result<LayersReport, LayersError> {
        if self.connection.is_none() {
            return Err(LayersError::NoConnection);
        }
        let answers = self.packets[1].values().filter_map(|packet| {
            let (way, session, sequence) = packet.probe?;
            (way == ProbeWay::Answer).then(|| ((session, sequence), self.given_ns(1, packet)))
        });
        let answered_ns: HashMap<_, _> = answers.collect();
        let [there, back] = [0, 1].map(|way| self.way(way, ahead_ns, &answered_ns));
        let sum = |of: fn(&LayeredWay) -> u64| of(&there) + of(&back);
        let (stamped, contradicting) = (sum(|it| it.stamped), sum(|it| it.contradicting));
        let all = stamped + contradicting;
        if all == 0 {
            return Err(LayersError::NothingMatched);
        }
        if contradicting as f64 > MOST_CONTRADICTIONS * all as f64 {
            return Err(LayersError::Clocks { contradicting, all });
        }
        Ok(LayersReport {
            there,
            back,
            other_frames: self.other_frames,
            not_remembered: self.not_remembered,
        })
    }

    fn way(&self, way: usize, ahead_ns: i64, answered_ns: &HashMap<(u16, u32), u64>) -> LayeredWay {
        // The packet that delivered each message, as a message may have been retransmitted.
        let mut messages: HashMap<u64, &Packet> = HashMap::new();
        for packet in self.packets[way].values() {
            let came_ns = |it: &Packet| (it.seen_ns[1].unwrap_or(u64::MAX), it.sent_ns);
            let first = messages.entry(packet.message).or_insert(packet);
            if came_ns(packet) < came_ns(first) {
                *first = packet;
            }
        }
        let mut stages = [(); 6].map(|()| LatencyHistogram::new());
        let (mut stamped, mut contradicting) = (0, 0);
        for packet in messages.values() {
            let Some(stamps) = self.stamps(way, ahead_ns, packet, answered_ns) else {
                continue;
            };
            let steps = stamps.windows(2).map(|it| it[1].saturating_sub(it[0]));
            if steps.clone().any(|ns| !(0..LONGEST_NS).contains(&ns)) {
                contradicting += 1;
                continue;
            }
            stamped += 1;
            for (stage, ns) in stages.iter_mut().zip(steps) {
                stage.record(ns as u64);
            }
            if let [first, .., last] = stamps[..]
                && way == 0
            {
                stages[5].record((last - first) as u64);
            }
        }
        let [sender_ns, out_ns, medium_ns, in_ns, receiver_ns, took_ns] =
            stages.each_ref().map(Summary::from_histogram);
        LayeredWay {
            messages: messages.len() as u64,
            stamped,
            contradicting,
            sender_ns,
            out_ns,
            medium_ns,
            in_ns,
            receiver_ns,
            took_ns,
        }
    }

    /// Returns all timestamps of a message, by the clock of the programs: m1 to m6 in the first direction, m1 to m5 in
    /// the other. Returns none if any is missing.
    fn stamps(
        &self,
        way: usize,
        ahead_ns: i64,
        packet: &Packet,
        answered_ns: &HashMap<(u16, u32), u64>,
    ) -> Option<Vec<i64>> {
        let own = |ns: u64| i64::try_from(ns).ok();
        let [near_ns, far_ns] = packet.seen_ns;
        let taken_ns = *self.taken_ns[way].get(&packet.sent_ns)?;
        let mut stamps = vec![
            own(self.given_ns(way, packet))?,
            own(packet.sent_ns)?,
            own(near_ns?)?.checked_sub(ahead_ns)?,
            own(far_ns?)?.checked_sub(ahead_ns)?,
            own(taken_ns)?,
        ];
        if way == 0 {
            let (_, session, sequence) = packet.probe?;
            stamps.push(own(*answered_ns.get(&(session, sequence))?)?);
        }
        Some(stamps)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_transport::wire::{Accept, Data, Header, Hello, Kind};

    const US: u64 = 1_000;
    /// Time by which the captures' clock is ahead of the programs' clock, ns.
    const AHEAD: u64 = 1_000_000_000_000;
    const TARGET: u64 = 10_000 * US;

    fn frame(way: usize, header: &Header, body: &Body<'_>) -> Vec<u8> {
        let mut payload = [0; wire::MOST_DATAGRAM_BYTES];
        let length = wire::emit(header, body, &mut payload);
        let mut frame = vec![0; 12];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((28 + length as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        let hosts = [[192, 0, 2, 1], [192, 0, 2, 2]];
        frame.extend([hosts[way], hosts[1 - way]].concat());
        let ports = [5000_u16, 8621];
        for number in [ports[way], ports[1 - way], 8 + length as u16, 0] {
            frame.extend(number.to_be_bytes());
        }
        frame.extend(&payload[..length]);
        frame.resize(frame.len().max(60), 0);
        frame
    }

    fn header(kind: Kind, packet: u64, sent_ns: u64, echo: Option<(u64, u32)>) -> Header {
        Header {
            kind,
            is_tagged: false,
            connection: 77,
            packet,
            sent_ns,
            echo,
            feedback: None,
        }
    }

    fn hello() -> Hello {
        Hello {
            random: [1; 16],
            payload_bytes: 100,
            symbols: 0,
            target_ns: TARGET,
        }
    }

    /// Makes a probe, or its reply, which was sent at `given_ns`.
    fn data(message: u64, payload: &[u8], given_ns: u64, sent_ns: u64) -> Body<'_> {
        Body::Data(Data {
            source: message,
            left_ns: (given_ns + TARGET - sent_ns) as u32,
            gap_ns: u32::MAX,
            open: 0,
            payload,
        })
    }

    fn question(sequence: u32) -> [u8; 20] {
        let mut payload = [0; 20];
        let probe = Probe {
            session: 3,
            sequence,
            sent_ns: 1,
        };
        probe.emit(&mut payload);
        payload
    }

    /// Captures a frame at its sender and at its receiver, `near_ns` and `far_ns` after it was sent.
    fn pass(layers: &mut Layers, way: usize, frame: &[u8], near_ns: u64, far_ns: u64) {
        layers.see(way, AHEAD + near_ns, frame);
        layers.see(1 - way, AHEAD + far_ns, frame);
    }

    fn opened() -> Layers {
        let mut layers = Layers::default();
        let opens = frame(0, &header(Kind::Hello, 0, 1, None), &Body::Hello(hello()));
        pass(&mut layers, 0, &opens, 2, 3);
        let accept = Body::Accept(Accept {
            own: hello(),
            answers: [1; 16],
        });
        let accepts = frame(1, &header(Kind::Accept, 0, 4, Some((1, 1))), &accept);
        pass(&mut layers, 1, &accepts, 5, 6);
        layers
    }

    fn median(summary: &Option<Summary>) -> u64 {
        (summary.as_ref().unwrap().p50_ns.unwrap() + 500) / 1_000
    }

    #[test]
    fn all_stages_are_measured_despite_retransmissions_and_foreign_packets() {
        let mut layers = opened();
        for number in 0..20_u64 {
            let given = (1_000 + 1_000 * number) * US;
            let payload = question(number as u32);
            let lost = number % 5 == 4;
            // A lost packet is sent again 500 us later, as another packet.
            let mut sent = given + 10 * US;
            let packet = 2 * number + 1;
            let asks = frame(
                0,
                &header(Kind::Data, packet, sent, None),
                &data(number, &payload, given, sent),
            );
            layers.see(0, AHEAD + sent + 20 * US, &asks);
            if lost {
                sent += 500 * US;
                let again = frame(
                    0,
                    &header(Kind::Data, packet + 1, sent, None),
                    &data(number, &payload, given, sent),
                );
                pass(&mut layers, 0, &again, sent + 20 * US, sent + 320 * US);
            } else {
                layers.see(1, AHEAD + sent + 320 * US, &asks);
            }
            let taken = sent + 360 * US;
            let delivered = taken + 50 * US;
            let mut answer = payload;
            assert!(taut_wire::probe::answer(&mut answer));
            let leaves = delivered + 5 * US;
            let echo = Some((sent, (leaves - taken) as u32));
            let answers = frame(
                1,
                &header(Kind::Data, number + 1, leaves, echo),
                &data(number, &answer, delivered, leaves),
            );
            pass(
                &mut layers,
                1,
                &answers,
                leaves + 20 * US,
                leaves + 320 * US,
            );
        }
        layers.see(0, AHEAD, &[0; 60]);
        let report = layers.report(AHEAD as i64).unwrap();
        let there = &report.there;
        assert_eq!(
            (
                there.messages,
                there.stamped,
                there.contradicting,
                report.other_frames
            ),
            (20, 20, 0, 1)
        );
        let medians = [
            &there.sender_ns,
            &there.out_ns,
            &there.medium_ns,
            &there.in_ns,
            &there.receiver_ns,
            &there.took_ns,
        ];
        assert_eq!(medians.map(median), [10, 20, 300, 40, 50, 420]);
        // Four packets were lost before.
        let longest_ns = there.sender_ns.as_ref().unwrap().max_ns;
        assert!(longest_ns.abs_diff(510 * US) < US, "{longest_ns}");
        // No packet contains the arrival of replies.
        assert_eq!((report.back.messages, report.back.stamped), (20, 0));
    }

    #[test]
    fn errors_explain_why_the_layers_cannot_be_reported() {
        let said =
            |layers: &Layers, ahead: u64| layers.report(ahead as i64).unwrap_err().to_string();
        assert!(said(&Layers::default(), 0).contains("start before the client"));
        let mut layers = opened();
        assert!(said(&layers, 0).contains("the client's capture first"));
        let payload = question(1);
        let asks = frame(
            0,
            &header(Kind::Data, 1, 100 * US, None),
            &data(0, &payload, 90 * US, 100 * US),
        );
        pass(&mut layers, 0, &asks, 110 * US, 120 * US);
        let mut answer = payload;
        taut_wire::probe::answer(&mut answer);
        let answers = frame(
            1,
            &header(Kind::Data, 1, 150 * US, Some((100 * US, 10 * US as u32))),
            &data(0, &answer, 145 * US, 150 * US),
        );
        pass(&mut layers, 1, &answers, 160 * US, 170 * US);
        assert_eq!(layers.report(AHEAD as i64).unwrap().there.stamped, 1);
        // The timestamps are those of another machine.
        assert!(said(&layers, AHEAD + 1_000_000).contains("contradict"));
    }
}
