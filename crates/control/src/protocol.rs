//! The messages between plant and controller in two formats: NCSbench's, and taut's own with the timestamps of every
//! stage.
//!
//! NCSbench's messages (`packet.py`, MIT) are numbers of 64 bits in the byte order of the machines that it ran on,
//! little-endian. A report is eleven numbers (88 bytes). The first are the sequence number and four times of the
//! previous sampling period in units of 100 ns (read, sent, received, applied). The pitch rate, two wheel angles, the
//! offset of the gyroscope, and two voltages follow, each multiplied by a million. A command is 24 numbers (192 bytes):
//! sequence number, time, and eleven pairs of voltages in microvolts. The first pair is the current one, the others are
//! predictions.
//!
//! Taut's own format begins with a mark and a version; extensions are only appended. All numbers are little-endian.
//!
//! | Bytes | Both |
//! |---|---|
//! | 4 | the mark `tCtl` |
//! | 1 | version, 1 |
//! | 1 | kind: 1 report, 2 command, 3 farewell |
//! | 1 | count of the kind's own numbers: sensors of a report, inputs of a command |
//! | 1 | inputs of the plant |
//! | 8 | sequence |
//! | 80 | stamps of this round, ns, in the order of [`Stage`]; 0 where not known |
//!
//! A report continues with the sampling period whose inputs are in force (its sequence number and the times of reading
//! and applying). The offset of the first sensor, the inputs in force and the readings follow. A command continues with
//! the inputs for eleven periods. A farewell has no further fields: it announces that the controller exits, and the
//! plant applies 0.

use crate::model::{Inputs, MOST_INPUTS, MOST_SENSORS, Readings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Port to which NCSbench's robot sends reports.
pub const REPORT_PORT: u16 = 34543;
/// Port at which NCSbench's robot receives commands.
pub const COMMAND_PORT: u16 = 34544;
/// Length of NCSbench's report, in bytes.
pub const NCSBENCH_REPORT_BYTES: usize = 88;
/// Length of NCSbench's command, in bytes.
pub const NCSBENCH_COMMAND_BYTES: usize = 192;
/// Number of input sets in a command: the current inputs and ten predictions.
pub const SLOTS: usize = 11;
/// Size of a buffer for a message, in bytes: no message of either format is longer.
pub const MOST_BYTES: usize = 512;

const MARK: [u8; 4] = *b"tCtl";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 96;
/// Greatest magnitude of a valid number in a message.
const MOST: f64 = 1e12;

/// Stages of a sampling period, in order (Gallenmüller, dissertation, Fig. 6.5): S is the direction from the plant's
/// sensors to the controller; A is the direction back to the actuators. APP is the application, STX and SRX the socket,
/// NTX and NRX the network interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Stage {
    /// The plant has read the sensors (`S,R`).
    Read,
    /// The plant has passed the report to the socket (`S,STX`).
    ReportSent,
    /// The report has left the plant's network interface (`S,NTX`).
    ReportLeft,
    /// The report has reached the controller's network interface (`S,NRX`).
    ReportReached,
    /// The controller has received the report from the socket (`S,SRX`).
    ReportReceived,
    /// The controller has passed the command to the socket (`A,STX`).
    CommandSent,
    /// The command has left the controller's network interface (`A,NTX`).
    CommandLeft,
    /// The command has reached the plant's network interface (`A,NRX`).
    CommandReached,
    /// The plant has received the command from the socket (`A,SRX`).
    CommandReceived,
    /// The plant has applied the inputs (`A,W`).
    Applied,
}

/// Number of stages.
pub const STAGES: usize = 10;

/// Timestamps of a sampling period by stage, ns; 0 where unknown. Plant and controller use their own clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamps(pub [u64; STAGES]);

impl Stamps {
    /// Returns the time of a stage, ns; `None` if it is unknown.
    pub fn at(&self, stage: Stage) -> Option<u64> {
        Some(self.0[stage as usize]).filter(|ns| *ns > 0)
    }

    /// Sets the time of a stage.
    pub fn set(&mut self, stage: Stage, ns: u64) {
        self.0[stage as usize] = ns;
    }

    /// Returns the time from one stage to a later one, ns; `None` if the time of either is unknown or the timestamps go
    /// backwards.
    pub fn between(&self, from: Stage, to: Stage) -> Option<u64> {
        self.at(to)?.checked_sub(self.at(from)?)
    }
}

/// The times of a sampling period, as a plant's report states them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// Sequence number of the report of the sampling period.
    pub sequence: u64,
    /// Time at which the sensors were read, ns.
    pub read_ns: u64,
    /// Time at which the report was sent, ns; `None` unless the report has NCSbench's format.
    pub sent_ns: Option<u64>,
    /// Time at which the command was received, ns; `None` unless the report has NCSbench's format.
    pub received_ns: Option<u64>,
    /// Time at which the inputs were applied, ns.
    pub applied_ns: Option<u64>,
}

/// A report of a plant.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Number of the period, from 1.
    pub sequence: u64,
    /// Time at which the sensors were read, ns of the plant's clock. NCSbench's reports lack this time; it is then
    /// assumed to be one nominal period after the reading of the previous sampling period.
    pub read_ns: u64,
    /// Timestamps in the message; all unknown (0) with NCSbench's format.
    pub stamps: Stamps,
    /// The sampling period whose inputs are in force; with NCSbench's format, the previous sampling period.
    pub previous: Option<Round>,
    /// Estimated offset of the first sensor, in the unit of that sensor's readings.
    pub offset: f64,
    /// Inputs that the plant applies at present.
    pub applied: Inputs,
    /// Readings of the sensors.
    pub readings: Readings,
}

/// A command of a controller.
#[derive(Debug, Clone, PartialEq)]
pub struct Command {
    /// Sequence number of the report to which the command replies.
    pub sequence: u64,
    /// Time at which the command was sent, ns of the controller's clock.
    pub time_ns: u64,
    /// The current inputs, then the predicted inputs for the following periods.
    pub inputs: [Inputs; SLOTS],
}

/// A message of the plant or of the controller.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// A report of the plant.
    Report(Report),
    /// A command and its timestamps; NCSbench's commands have none.
    Command(Command, Stamps),
    /// The controller's announcement that it exits.
    Farewell,
}

/// The format of the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// NCSbench's format.
    #[default]
    Ncsbench,
    /// Taut's own format.
    Taut,
}

/// Reason why a datagram is not a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No message of this format has the datagram's length, which is the value, in bytes.
    #[error("{0} bytes: not the length of any message of this format")]
    Length(usize),
    /// The datagram does not begin with the marker of the format.
    #[error("not a message of taut: both sides need --protocol taut")]
    Mark,
    /// The datagram has another version of the format; the value is that version.
    #[error("protocol version {0}, this side has {VERSION}: use the same taut on both sides")]
    Version(u8),
    /// A value is invalid; the text describes the value.
    #[error("invalid value: {0}")]
    Value(&'static str),
}

/// Numbers of sensors and inputs in the messages of a plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of sensors of the plant.
    pub sensors: usize,
    /// Number of inputs of the plant.
    pub inputs: usize,
}

impl Format {
    /// Returns true if messages of this format have enough space for a plant of this shape.
    pub fn carries(self, shape: Shape) -> bool {
        match self {
            Self::Ncsbench => shape.sensors <= 3 && shape.inputs <= 2,
            Self::Taut => shape.sensors <= MOST_SENSORS && shape.inputs <= MOST_INPUTS,
        }
    }

    /// Parses a received datagram.
    ///
    /// # Errors
    /// The datagram is no message of this format, or has another version.
    pub fn parse(
        self,
        bytes: &[u8],
        shape: Shape,
        period_ns: u64,
    ) -> Result<Message, ProtocolError> {
        match self {
            Self::Ncsbench => ncsbench(bytes, period_ns),
            Self::Taut => taut(bytes, shape),
        }
    }

    /// Writes a report to `bytes`; returns the length of the message.
    pub fn emit_report(self, report: &Report, shape: Shape, bytes: &mut [u8; MOST_BYTES]) -> usize {
        let mut to = Writer { bytes, at: 0 };
        match self {
            Self::Ncsbench => {
                let round = report.previous;
                let time = |ns: Option<u64>| whole(ns.unwrap_or(0) / 100);
                to.i64(whole(report.sequence));
                to.i64(time(round.map(|it| it.read_ns)));
                to.i64(time(round.and_then(|it| it.sent_ns)));
                to.i64(time(round.and_then(|it| it.received_ns)));
                to.i64(time(round.and_then(|it| it.applied_ns)));
                for reading in &report.readings[..3] {
                    to.i64(millionths(*reading));
                }
                to.i64(millionths(report.offset));
                for input in report.applied {
                    to.i64(millionths(input));
                }
            }
            Self::Taut => {
                let sensors = shape.sensors.min(MOST_SENSORS);
                to.head(
                    Kind::Report,
                    sensors,
                    shape,
                    report.sequence,
                    &report.stamps,
                );
                let round = report.previous;
                to.u64(round.map_or(0, |it| it.sequence));
                to.u64(round.map_or(0, |it| it.read_ns));
                to.u64(round.and_then(|it| it.applied_ns).unwrap_or(0));
                to.f64(report.offset);
                for input in &report.applied[..shape.inputs.min(MOST_INPUTS)] {
                    to.f64(*input);
                }
                for reading in &report.readings[..sensors] {
                    to.f64(*reading);
                }
            }
        }
        to.at
    }

    /// Writes a command to `bytes`; returns the length of the message.
    pub fn emit_command(
        self,
        command: &Command,
        stamps: &Stamps,
        shape: Shape,
        bytes: &mut [u8; MOST_BYTES],
    ) -> usize {
        let mut to = Writer { bytes, at: 0 };
        match self {
            Self::Ncsbench => {
                to.i64(whole(command.sequence));
                to.i64(whole(command.time_ns / 100));
                for input in command.inputs.iter().flatten() {
                    to.i64(millionths(*input));
                }
            }
            Self::Taut => {
                let inputs = shape.inputs.min(MOST_INPUTS);
                to.head(Kind::Command, inputs, shape, command.sequence, stamps);
                for slot in &command.inputs {
                    for input in &slot[..inputs] {
                        to.f64(*input);
                    }
                }
            }
        }
        to.at
    }

    /// Writes a farewell to `bytes`; returns the length of the message, or 0 for NCSbench, which has no farewell.
    pub fn emit_farewell(self, shape: Shape, bytes: &mut [u8; MOST_BYTES]) -> usize {
        let mut to = Writer { bytes, at: 0 };
        if self == Self::Taut {
            to.head(Kind::Farewell, 0, shape, 0, &Stamps::default());
        }
        to.at
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Report = 1,
    Command = 2,
    Farewell = 3,
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a number in millionths as NCSbench writes it: truncated, not rounded.
fn millionths(value: f64) -> i64 {
    // The conversion saturates, and NaN becomes 0.
    (value * 1e6) as i64
}

fn ncsbench(bytes: &[u8], period_ns: u64) -> Result<Message, ProtocolError> {
    let mut from = Reader { bytes, at: 0 };
    match bytes.len() {
        NCSBENCH_REPORT_BYTES => from.ncsbench_report(period_ns).map(Message::Report),
        NCSBENCH_COMMAND_BYTES => {
            let command = from.ncsbench_command()?;
            Ok(Message::Command(command, Stamps::default()))
        }
        length => Err(ProtocolError::Length(length)),
    }
}

fn taut(bytes: &[u8], shape: Shape) -> Result<Message, ProtocolError> {
    let mut from = Reader { bytes, at: 0 };
    let head = Head::read(&mut from, shape)?;
    match head.kind {
        1 => {
            head.check(bytes, 8 * (4 + head.inputs + head.numbers), shape.sensors)?;
            head.report(&mut from).map(Message::Report)
        }
        2 => {
            head.check(bytes, 8 * SLOTS * head.inputs, head.inputs)?;
            let command = head.command(&mut from)?;
            Ok(Message::Command(command, head.stamps))
        }
        3 => {
            head.check(bytes, 0, 0)?;
            Ok(Message::Farewell)
        }
        _ => Err(ProtocolError::Value("a message of this kind")),
    }
}

/// The header that reports and commands of taut's own format share.
struct Head {
    kind: u8,
    /// Number of sensors in a report, or number of inputs in a command.
    numbers: usize,
    /// Number of inputs of the plant.
    inputs: usize,
    sequence: u64,
    stamps: Stamps,
}

impl Head {
    /// Parses the header of a message for a plant of the given shape.
    fn read(from: &mut Reader<'_>, shape: Shape) -> Result<Self, ProtocolError> {
        let bytes = from.bytes;
        if bytes.len() < 5 || bytes[..4] != MARK {
            return Err(ProtocolError::Mark);
        }
        if bytes[4] != VERSION {
            return Err(ProtocolError::Version(bytes[4]));
        }
        if bytes.len() < HEAD_BYTES {
            return Err(ProtocolError::Length(bytes.len()));
        }
        let (kind, numbers, inputs) = (bytes[5], usize::from(bytes[6]), usize::from(bytes[7]));
        if inputs != shape.inputs {
            return Err(ProtocolError::Value(
                "the number of inputs differs from that of the plant",
            ));
        }
        from.at = 8;
        let sequence = from.u64();
        let mut stamps = Stamps::default();
        for stamp in &mut stamps.0 {
            *stamp = from.u64();
        }
        Ok(Self {
            kind,
            numbers,
            inputs,
            sequence,
            stamps,
        })
    }

    /// Rejects a message that has another count of numbers than `numbers`, or another length after the header than
    /// `rest` bytes.
    fn check(&self, bytes: &[u8], rest: usize, numbers: usize) -> Result<(), ProtocolError> {
        if self.numbers != numbers {
            return Err(ProtocolError::Value(
                "another number of sensors or inputs than the plant has",
            ));
        }
        if bytes.len() == HEAD_BYTES + rest {
            Ok(())
        } else {
            Err(ProtocolError::Length(bytes.len()))
        }
    }

    /// Parses a report after its header; the length was checked.
    fn report(&self, from: &mut Reader<'_>) -> Result<Report, ProtocolError> {
        let (round, read_ns, applied_ns) = (from.u64(), from.u64(), from.u64());
        let offset = from.f64()?;
        let mut applied = [0.0; MOST_INPUTS];
        for input in &mut applied[..self.inputs] {
            *input = from.f64()?;
        }
        let mut readings = [0.0; MOST_SENSORS];
        for reading in &mut readings[..self.numbers] {
            *reading = from.f64()?;
        }
        if self.sequence == 0 {
            return Err(ProtocolError::Value("a sequence number below 1"));
        }
        if applied_ns > 0 && (applied_ns < read_ns || round >= self.sequence) {
            return Err(ProtocolError::Value("stamps that go backwards"));
        }
        let Some(this_ns) = self.stamps.at(Stage::Read) else {
            return Err(ProtocolError::Value(
                "a report without the time of its reading",
            ));
        };
        Ok(Report {
            sequence: self.sequence,
            read_ns: this_ns,
            stamps: self.stamps,
            previous: (applied_ns > 0).then_some(Round {
                sequence: round,
                read_ns,
                sent_ns: None,
                received_ns: None,
                applied_ns: Some(applied_ns),
            }),
            offset,
            applied,
            readings,
        })
    }

    /// Parses a command after its header; the length was checked.
    fn command(&self, from: &mut Reader<'_>) -> Result<Command, ProtocolError> {
        let mut all = [[0.0; MOST_INPUTS]; SLOTS];
        for slot in &mut all {
            for input in &mut slot[..self.inputs] {
                *input = from.f64()?;
            }
        }
        if self.sequence == 0 {
            return Err(ProtocolError::Value("a sequence number below 1"));
        }
        Ok(Command {
            sequence: self.sequence,
            time_ns: self.stamps.at(Stage::CommandSent).unwrap_or(0),
            inputs: all,
        })
    }
}

/// Writer of the numbers of a message.
struct Writer<'a> {
    bytes: &'a mut [u8; MOST_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn i64(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn f64(&mut self, value: f64) {
        self.bytes(&value.to_le_bytes());
    }

    fn head(&mut self, kind: Kind, numbers: usize, shape: Shape, sequence: u64, stamps: &Stamps) {
        self.bytes(&MARK);
        // The counts are at most six and two, so that each fits one byte.
        self.bytes(&[VERSION, kind as u8, numbers as u8, shape.inputs as u8]);
        self.u64(sequence);
        for stamp in stamps.0 {
            self.u64(stamp);
        }
    }
}

/// Reads numbers in sequence; the caller has checked the length.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn word(&mut self) -> [u8; 8] {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[self.at..self.at + 8]);
        self.at += 8;
        word
    }

    fn i64(&mut self) -> i64 {
        i64::from_le_bytes(self.word())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.word())
    }

    fn f64(&mut self) -> Result<f64, ProtocolError> {
        let value = f64::from_le_bytes(self.word());
        let right = value.abs() <= MOST;
        right
            .then_some(value)
            .ok_or(ProtocolError::Value("a number beyond 1e12"))
    }

    /// Reads a time in units of 100 ns, and returns it in ns.
    fn time_ns(&mut self) -> Result<u64, ProtocolError> {
        let hundreds = u64::try_from(self.i64()).ok();
        let ns = hundreds.and_then(|hundreds| hundreds.checked_mul(100));
        ns.ok_or(ProtocolError::Value("a time below 0 or beyond all clocks"))
    }

    /// Reads a number in millionths.
    fn millionths(&mut self) -> Result<f64, ProtocolError> {
        let value = self.i64() as f64 / 1e6;
        let right = value.abs() <= MOST;
        right
            .then_some(value)
            .ok_or(ProtocolError::Value("a number beyond 1e12"))
    }

    fn sequence(&mut self) -> Result<u64, ProtocolError> {
        let number = u64::try_from(self.i64()).ok().filter(|number| *number > 0);
        number.ok_or(ProtocolError::Value("a sequence number below 1"))
    }

    fn ncsbench_report(&mut self, period_ns: u64) -> Result<Report, ProtocolError> {
        let sequence = self.sequence()?;
        let times = [
            self.time_ns()?,
            self.time_ns()?,
            self.time_ns()?,
            self.time_ns()?,
        ];
        let [read_ns, sent_ns, received_ns, applied_ns] = times;
        let known = |ns: u64| Some(ns).filter(|ns| *ns > 0);
        let mut readings = [0.0; MOST_SENSORS];
        for reading in &mut readings[..3] {
            *reading = self.millionths()?;
        }
        let offset = self.millionths()?;
        let applied = [self.millionths()?, self.millionths()?];
        // Until NCSbench's robot has received a command, its reports state the time of its start in place of the times
        // of the previous round.
        let previous = (received_ns > 0).then(|| Round {
            sequence: sequence - 1,
            read_ns,
            sent_ns: known(sent_ns),
            received_ns: known(received_ns),
            applied_ns: known(applied_ns),
        });
        Ok(Report {
            sequence,
            read_ns: read_ns.saturating_add(period_ns),
            stamps: Stamps::default(),
            previous,
            offset,
            applied,
            readings,
        })
    }

    fn ncsbench_command(&mut self) -> Result<Command, ProtocolError> {
        let mut command = Command {
            sequence: self.sequence()?,
            time_ns: self.time_ns()?,
            inputs: [[0.0; MOST_INPUTS]; SLOTS],
        };
        for input in command.inputs.iter_mut().flatten() {
            *input = self.millionths()?;
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const ROBOT: Shape = Shape {
        sensors: 3,
        inputs: 2,
    };
    const PERIOD_NS: u64 = 35_000_000;

    fn report() -> Report {
        let mut stamps = Stamps::default();
        stamps.set(Stage::Read, 5_000);
        Report {
            sequence: 7,
            read_ns: 5_000,
            stamps,
            previous: Some(Round {
                sequence: 6,
                read_ns: 1_000,
                sent_ns: None,
                received_ns: None,
                applied_ns: Some(4_000),
            }),
            offset: 0.25,
            applied: [1.5, -1.5],
            readings: [3.0, -4.0, 5.0, 0.0, 0.0, 0.0],
        }
    }

    #[test]
    fn ncsbench_reports_have_the_documented_packet_format() {
        let mut sent = report();
        sent.previous = Some(Round {
            sequence: 6,
            read_ns: 12_300,
            sent_ns: Some(45_600),
            received_ns: Some(78_900),
            applied_ns: Some(99_900),
        });
        let mut bytes = [0; MOST_BYTES];
        let length = Format::Ncsbench.emit_report(&sent, ROBOT, &mut bytes);
        assert_eq!(length, NCSBENCH_REPORT_BYTES);
        let numbers: Vec<i64> = bytes[..length]
            .chunks(8)
            .map(|word| i64::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(
            numbers,
            [
                7, 123, 456, 789, 999, 3_000_000, -4_000_000, 5_000_000, 250_000, 1_500_000,
                -1_500_000
            ]
        );
        let read = Format::Ncsbench
            .parse(&bytes[..length], ROBOT, PERIOD_NS)
            .unwrap();
        let Message::Report(read) = read else {
            panic!("{read:?}");
        };
        assert_eq!(
            (read.previous, read.readings),
            (sent.previous, sent.readings)
        );
        assert_eq!(read.read_ns, 12_300 + PERIOD_NS);
    }

    #[test]
    fn messages_with_wrong_length_version_marker_or_values_are_refused() {
        let mut bytes = [0; MOST_BYTES];
        let length = Format::Taut.emit_report(&report(), ROBOT, &mut bytes);
        let parse = |bytes: &[u8]| Format::Taut.parse(bytes, ROBOT, PERIOD_NS);
        assert_eq!(parse(&bytes[..length]).unwrap(), Message::Report(report()));
        assert_eq!(
            parse(&bytes[..length - 1]),
            Err(ProtocolError::Length(length - 1))
        );
        assert_eq!(
            parse(&bytes[..length + 1]),
            Err(ProtocolError::Length(length + 1))
        );
        let mut other = bytes;
        other[4] = 2;
        assert_eq!(parse(&other[..length]), Err(ProtocolError::Version(2)));
        other[0] = 0;
        assert_eq!(parse(&other[..length]), Err(ProtocolError::Mark));
        let mut other = bytes;
        other[HEAD_BYTES + 16..HEAD_BYTES + 24].copy_from_slice(&1_u64.to_le_bytes());
        assert_eq!(
            parse(&other[..length]),
            Err(ProtocolError::Value("stamps that go backwards"))
        );
        let mut other = bytes;
        other[length - 8..length].copy_from_slice(&f64::NAN.to_le_bytes());
        assert!(parse(&other[..length]).is_err());
        let length = Format::Taut.emit_farewell(ROBOT, &mut bytes);
        assert_eq!(parse(&bytes[..length]), Ok(Message::Farewell));
    }

    #[test]
    fn delays_between_decreasing_or_missing_timestamps_are_unknown() {
        let mut stamps = Stamps::default();
        stamps.set(Stage::Read, 5);
        stamps.set(Stage::Applied, 4);
        assert_eq!(stamps.between(Stage::Read, Stage::Applied), None);
        assert_eq!(stamps.between(Stage::Read, Stage::ReportSent), None);
    }

    proptest! {
        #[test]
        fn a_parsed_command_equals_the_sent_command(
            sequence in 1_u64..1 << 60,
            values in proptest::collection::vec(-8_000_000_i64..8_000_000, 2 * SLOTS),
            times in proptest::collection::vec(0_u64..1 << 60, STAGES),
        ) {
            let mut command = Command { sequence, time_ns: 0, inputs: [[0.0; 2]; SLOTS] };
            for (input, value) in command.inputs.iter_mut().flatten().zip(&values) {
                *input = *value as f64 / 1e6;
            }
            let stamps = Stamps(times.try_into().unwrap());
            let mut bytes = [0; MOST_BYTES];
            let length = Format::Taut.emit_command(&command, &stamps, ROBOT, &mut bytes);
            command.time_ns = stamps.at(Stage::CommandSent).unwrap_or(0);
            prop_assert_eq!(
                Format::Taut.parse(&bytes[..length], ROBOT, PERIOD_NS),
                Ok(Message::Command(command.clone(), stamps))
            );
            let length = Format::Ncsbench.emit_command(&command, &stamps, ROBOT, &mut bytes);
            prop_assert_eq!(length, NCSBENCH_COMMAND_BYTES);
            let read = Format::Ncsbench.parse(&bytes[..length], ROBOT, PERIOD_NS).unwrap();
            let Message::Command(read, _) = read else { panic!("{read:?}") };
            for (read, sent) in read.inputs.iter().flatten().zip(command.inputs.iter().flatten()) {
                prop_assert!((read - sent).abs() < 1.001e-6);
            }
        }
    }
}
