//! Traffic from captures: the times and lengths of captured frames, and the frames themselves.

use std::fs::File;
use std::sync::Arc;
use taut_port::pcap::CaptureFile;
use taut_port::pcap::format::{Over, Scanner, Step, WINDOW_BYTES};
use taut_port::pcap::index::Source;
use taut_wire::MAX_FRAME_SIZE_BYTES;
use taut_wire::frame::{FRAME_CHECK_SEQUENCE_BYTES, MIN_FRAME_SIZE_BYTES};

/// Limit on the packets of a trace, because their times and lengths are stored in memory.
const MOST_PACKETS: usize = 10_000_000;

/// Limit on the stored bytes of frames.
const MOST_BYTES: usize = 256 << 20;

/// Number of bytes that a read call requests from the file.
const BLOCK_BYTES: usize = 16 * WINDOW_BYTES;

/// Times and lengths of a capture's packets, and the speed of their replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    path: Arc<str>,
    /// Time from the first packet to each packet, ns, at the captured speed.
    offsets_ns: Arc<[f64]>,
    /// Frame sizes in bytes, check sequence included, at least 64.
    size_bytes: Arc<[u32]>,
    /// Time from the first packet of a replay to the first packet of the next replay, ns.
    period_ns: f64,
    /// Speed of the replay as a factor: 2 is twice as fast as captured.
    speed: f64,
}

/// A packet of a capture.
struct Captured<'a> {
    /// Number of the packet in the file, from 1, as in Wireshark.
    number: usize,
    time_ns: Option<u64>,
    /// Length of the packet on the link, without frame check sequence, bytes.
    whole_bytes: usize,
    /// The frame; none if only its beginning was captured.
    frame: Option<&'a [u8]>,
}

impl Trace {
    /// Reads a capture for replay at `speed` times the captured speed. The gap before each repetition of the capture is
    /// the mean gap of the capture.
    ///
    /// # Errors
    /// The error names the fault of the file, and the packet's number if one packet is invalid.
    pub fn read(path: &str, speed: f64) -> Result<Self, String> {
        let (mut offsets_ns, mut size_bytes) = (Vec::new(), Vec::new());
        let (mut first, mut latest) = (None, 0);
        for_each_packet(path, |packet| {
            let number = packet.number;
            let Some(time) = packet.time_ns else {
                return Err(format!("packet {number} has no time"));
            };
            let first = *first.get_or_insert(time);
            if time < latest {
                return Err(format!(
                    "packet {number} is {} ns earlier than the one before it: put them in order with \
                     reordercap {path} SORTED",
                    latest - time
                ));
            }
            latest = time;
            if number > MOST_PACKETS {
                return Err(format!(
                    "more than {MOST_PACKETS} packets: extract a part with editcap -r {path} PART 1-{MOST_PACKETS}"
                ));
            }
            offsets_ns.push((time - first) as f64);
            size_bytes.push(frame_size(packet.whole_bytes));
            Ok(())
        })?;
        let span = offsets_ns.last().copied().unwrap_or(0.0);
        match offsets_ns.len() {
            0 => Err(format!("{path}: the file has no packets")),
            1 => Err(format!("{path}: only one packet, and a gap needs two")),
            _ if span == 0.0 => Err(format!(
                "{path}: all packets have the same time, so there is no gap"
            )),
            n => Ok(Self {
                path: path.into(),
                offsets_ns: offsets_ns.into(),
                size_bytes: size_bytes.into(),
                period_ns: span + span / (n - 1) as f64,
                speed,
            }),
        }
    }

    /// Returns the packet rate at the speed of the replay, packets per second.
    pub fn rate_pps(&self) -> f64 {
        self.offsets_ns.len() as f64 / self.period_ns * 1e9 * self.speed
    }

    /// Returns the speed of the replay, relative to the capture.
    pub fn speed(&self) -> f64 {
        self.speed
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the frame sizes in bytes, check sequence included, in order.
    pub fn size_bytes(&self) -> &Arc<[u32]> {
        &self.size_bytes
    }

    /// Returns the time from the first packet to each packet, ns, at the captured speed.
    pub(crate) fn offsets_ns(&self) -> &Arc<[f64]> {
        &self.offsets_ns
    }

    /// Returns the time from the first packet of a replay to the first packet of the next, ns, at the captured speed.
    pub(crate) fn period_ns(&self) -> f64 {
        self.period_ns
    }

    /// Returns the frames as they were captured, with short ones padded to 60 bytes as a NIC does.
    ///
    /// # Errors
    /// Reading fails as in [`Trace::read`], or only the beginning of a packet was captured.
    pub fn frames(&self) -> Result<Vec<Vec<u8>>, String> {
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for_each_packet(&self.path, |packet| {
            let number = packet.number;
            let Some(frame) = packet.frame else {
                return Err(format!(
                    "packet {number} was cut short by the capture: capture whole frames (-s 0), or send \
                     frames made by taut with its sizes (size = \"trace\")"
                ));
            };
            let mut frame = frame.to_vec();
            let shortest = MIN_FRAME_SIZE_BYTES - FRAME_CHECK_SEQUENCE_BYTES;
            frame.resize(frame.len().max(shortest), 0);
            bytes += frame.len();
            if bytes > MOST_BYTES {
                return Err(format!(
                    "more than {} MiB of frames up to packet {number}: extract a part with editcap -r, or replay \
                    all of it through a pcap port (taut forward --port pcap:{})",
                    MOST_BYTES >> 20,
                    self.path
                ));
            }
            frames.push(frame);
            Ok(())
        })?;
        if frames.len() != self.offsets_ns.len() {
            return Err(format!("{} changed while it was read", self.path));
        }
        Ok(frames)
    }

    /// Checks that the generator can make frames of all sizes in the trace.
    ///
    /// # Errors
    /// The error names the first packet that is too long.
    pub(crate) fn check_sizes(&self) -> Result<(), String> {
        let long = |size: &u32| *size as usize > MAX_FRAME_SIZE_BYTES;
        match self.size_bytes.iter().position(long) {
            None => Ok(()),
            Some(index) => Err(format!(
                "{}: packet {} has {} bytes, more than the {MAX_FRAME_SIZE_BYTES} of any frame: it was captured \
                 before it was cut into frames (ethtool -K INTERFACE gro off gso off tso off)",
                self.path,
                index + 1,
                self.size_bytes[index]
            )),
        }
    }
}

fn frame_size(frame_bytes: usize) -> u32 {
    (frame_bytes + FRAME_CHECK_SEQUENCE_BYTES).max(MIN_FRAME_SIZE_BYTES) as u32
}

/// Calls `each` for every packet of a capture; an error of `each` stops the reading, and is returned with the file's
/// name as a prefix.
fn for_each_packet(
    path: &str,
    mut each: impl FnMut(Captured<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{path}: {e}");
    let file = open(path)?;
    let cut_off = |number| {
        Err(format!(
            "{path}: truncated in packet {number}: editcap {path} WHOLE keeps those before it"
        ))
    };
    let (mut scanner, mut offset, mut number) = (Scanner::new(), 0, 0);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let have = read_block(&file, &mut block, offset).map_err(wrong)?;
        let at_end = have < block.len();
        let mut at = 0;
        while at < have || offset == 0 && at == 0 {
            let (size, captured) = match scanner.step(&block[at.min(have)..have]) {
                Err(fault) => {
                    return Err(format!(
                        "{path}: damaged after packet {number}, at byte {}: {fault}",
                        offset + at as u64
                    ));
                }
                Ok(Step::More(_)) if at_end && number == 0 && have < WINDOW_BYTES && at == 0 => {
                    return Err(format!("{path}: too short for a capture"));
                }
                Ok(Step::More(_)) if at_end => return cut_off(number + 1),
                Ok(Step::More(_)) => break,
                Ok(Step::Frame {
                    before,
                    len,
                    time_ns,
                    size,
                }) => {
                    let packet = Captured {
                        number: number + 1,
                        time_ns,
                        whole_bytes: len,
                        frame: Some(&block[at + before..at + before + len]),
                    };
                    (size, Some(packet))
                }
                Ok(Step::Pass { over, size }) => (size, passed(path, over, number + 1)?),
            };
            if let Some(packet) = captured {
                number += 1;
                each(packet).map_err(|reason| format!("{path}: {reason}"))?;
            }
            at += size as usize;
        }
        offset += at as u64;
        if at_end {
            // A skipped record may have a length that exceeds the file.
            let is_cut = offset > 0 && file.read_at(&mut [0], offset - 1).map_err(wrong)? == 0;
            return if is_cut { cut_off(number) } else { Ok(()) };
        }
    }
}

/// Opens a capture, which must be a regular file.
fn open(path: &str) -> Result<CaptureFile, String> {
    let wrong = |e: std::io::Error| format!("{path}: {e}");
    let file = File::open(path).map_err(wrong)?;
    let metadata = file.metadata().map_err(wrong)?;
    if !metadata.is_file() {
        return Err(format!("{path}: not a file"));
    }
    CaptureFile::of(file).map_err(wrong)
}

/// Converts an item that the scanner skips into a packet without a frame; none if the item is no packet. `number` is
/// the packet's number in the file.
fn passed(path: &str, over: Over, number: usize) -> Result<Option<Captured<'static>>, String> {
    match over {
        Over::NoFrame => Ok(None),
        Over::CutFrame {
            whole_bytes,
            time_ns,
            ..
        } => Ok(Some(Captured {
            number,
            time_ns,
            whole_bytes: whole_bytes as usize,
            frame: None,
        })),
        Over::LongFrame => Err(format!(
            "{path}: packet {number} is longer than any frame: it was captured before it was cut into \
             frames (ethtool -K INTERFACE gro off gso off tso off)"
        )),
    }
}

/// Fills `block` with the bytes from `offset` on, up to the end of the file; returns the number of bytes.
fn read_block(file: &CaptureFile, block: &mut [u8], offset: u64) -> std::io::Result<usize> {
    let mut have = 0;
    while have < block.len() {
        match file.read_at(&mut block[have..], offset + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::{Pattern, Schedule, Traffic};
    use std::time::Duration;
    use tempfile::NamedTempFile;

    const MS: u64 = 1_000_000;

    /// Returns a pcap file with nanosecond times; frames are (time, captured bytes, bytes on the link).
    fn pcap(packets: &[(u64, usize, usize)]) -> Vec<u8> {
        let mut file = Vec::new();
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
            file.extend(word.to_le_bytes());
        }
        for (index, (time_ns, captured, whole)) in packets.iter().enumerate() {
            for word in [
                (time_ns / 1_000_000_000) as u32,
                (time_ns % 1_000_000_000) as u32,
                *captured as u32,
                *whole as u32,
            ] {
                file.extend(word.to_le_bytes());
            }
            file.extend(vec![index as u8; *captured]);
        }
        file
    }

    fn written(bytes: &[u8]) -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    /// Returns a capture of four packets in 3 ms with unequal gaps; a replay takes 4 ms.
    fn uneven() -> NamedTempFile {
        let start = 1_700_000_000 * 1_000_000_000;
        let packets = [(0, 60), (MS / 10, 1514), (MS / 5, 60), (3 * MS, 590)];
        written(&pcap(
            &packets.map(|(at, len): (u64, usize)| (start + at, len, len)),
        ))
    }

    fn traffic(settings: &[(&str, &str)], file: &NamedTempFile) -> Result<Traffic, String> {
        let path = file.path().display().to_string();
        let settings: Vec<(&str, String)> = settings
            .iter()
            .map(|(key, value)| (*key, value.replace("FILE", &path)))
            .collect();
        let settings: Vec<(&str, &str)> = settings.iter().map(|(k, v)| (*k, v.as_str())).collect();
        Traffic::of_settings(&settings)
    }

    /// Returns the intended send times in microseconds in a trial of `ms` milliseconds at 1000 packets a second.
    fn dues_us(settings: &[(&str, &str)], ms: u64) -> Vec<u64> {
        let file = uneven();
        let traffic = traffic(settings, &file).unwrap();
        let rate = traffic.rates_pps(1000.0)[0];
        let (pattern, length) = (traffic.streams()[0].pattern(), Duration::from_millis(ms));
        let mut schedule = Schedule::new(pattern, rate, length, 0, 1e9, 1);
        let mut dues = Vec::new();
        while !schedule.is_over() {
            dues.push((schedule.due_ticks() as f64 / 1e3).round() as u64);
            schedule.advance();
        }
        dues
    }

    #[test]
    fn send_gaps_repeat_the_gaps_of_the_capture_cyclically() {
        let pattern = ("pattern", "trace(FILE)");
        assert_eq!(dues_us(&[pattern], 4), [0, 100, 200, 3000]);
        // The result is the packets due within the time, not their mean number.
        assert_eq!(dues_us(&[pattern], 1), [0, 100, 200]);
        let twice = [0, 100, 200, 3000, 4000, 4100, 4200];
        assert_eq!(dues_us(&[pattern], 6), twice);
    }

    #[test]
    fn speed_and_rate_scale_the_gaps() {
        let fast = [("pattern", "trace(FILE, 2x)")];
        assert_eq!(dues_us(&fast, 2), [0, 50, 100, 1500]);
        // 4 packets in 4 ms are 1000 a second.
        let rate = [("pattern", "trace(FILE)"), ("rate", "500")];
        assert_eq!(dues_us(&rate, 8), [0, 200, 400, 6000]);
        let share = [("pattern", "trace(FILE)"), ("share", "1")];
        assert_eq!(dues_us(&share, 4), [0, 100, 200, 3000]);
    }

    #[test]
    fn each_trial_repeats_the_sizes_of_the_trace_in_order() {
        let file = uneven();
        let settings = [("pattern", "trace(FILE)"), ("size", "trace")];
        let mut traffic = traffic(&settings, &file).unwrap();
        let stream = &mut traffic.streams_mut()[0];
        assert!(stream.is_measured());
        let mut lengths =
            |n: usize| -> Vec<u16> { (0..n).map(|_| stream.next().1).collect::<Vec<_>>() };
        assert_eq!(lengths(6), [60, 1514, 60, 590, 60, 1514]);
        traffic.streams_mut()[0].restart();
        assert_eq!(traffic.streams_mut()[0].next().1, 60);
    }

    #[test]
    fn trace_frames_leave_unchanged_except_for_configured_mac_addresses() {
        let file = uneven();
        let settings = [
            ("pattern", "trace(FILE)"),
            ("frames", "trace"),
            ("dst_mac", "02:aa:00:00:00:01"),
        ];
        let mut traffic = traffic(&settings, &file).unwrap();
        let stream = &mut traffic.streams_mut()[0];
        assert!(!stream.is_measured());
        let pool = taut_port::PoolHandle::new(4, false).unwrap();
        for index in 0..5_u8 {
            let (template, len) = stream.next();
            let mut packet = pool.take(len).unwrap();
            stream.fill(template, &mut packet);
            assert_eq!(packet.bytes()[..6], [2, 0xaa, 0, 0, 0, 1]);
            assert!(packet.bytes()[6..].iter().all(|byte| *byte == index % 4));
        }
    }

    #[test]
    fn a_trace_with_truncated_frames_gives_only_times_and_sizes() {
        let file = written(&pcap(&[(0, 60, 1514), (MS, 60, 700)]));
        let sized = [("pattern", "trace(FILE)"), ("size", "trace")];
        let sized = traffic(&sized, &file).unwrap();
        let sizes: Vec<_> = sized.streams()[0].sizes().parts().to_vec();
        assert_eq!(sizes, [(704, 1), (1518, 1)]);
        let frames = [("pattern", "trace(FILE)"), ("frames", "trace")];
        let message = traffic(&frames, &file).unwrap_err();
        assert!(message.contains("packet 1 was cut short"), "{message}");
    }

    #[test]
    fn errors_in_a_trace_name_the_file_and_the_packet() {
        let good = pcap(&[(0, 60, 60), (MS, 60, 60)]);
        let mut damaged = good.clone();
        damaged[24 + 76 + 8..24 + 76 + 12].copy_from_slice(&[0xff; 4]);
        let cases: [(&[u8], &str); 9] = [
            (b"", "too short for a capture"),
            (b"GIF89a, not a capture", "neither pcap nor pcapng"),
            (&good[..24], "the file has no packets"),
            (&good[..24 + 76], "only one packet"),
            (&good[..good.len() - 1], "truncated in packet 2"),
            (&damaged, "damaged after packet 1"),
            (
                &pcap(&[(MS, 60, 60), (MS, 60, 60)]),
                "all packets have the same time",
            ),
            (
                &pcap(&[(0, 60, 60), (MS, 60, 60), (MS - 7, 60, 60)]),
                "packet 3 is 7 ns earlier",
            ),
            (&[0x1f, 0x8b, 8, 0, 0, 0], "gunzip"),
        ];
        for (bytes, part) in cases {
            let file = written(bytes);
            let message = traffic(&[("pattern", "trace(FILE)")], &file).unwrap_err();
            assert!(message.contains(part), "{part}: {message}");
            assert!(message.contains(&file.path().display().to_string()));
            assert!(!message.contains('\n'));
        }
        let long = written(&pcap(&[(0, 9300, 9300), (MS, 60, 60)]));
        let sized = [("pattern", "trace(FILE)"), ("size", "trace")];
        let message = traffic(&sized, &long).unwrap_err();
        assert!(message.contains("packet 1 has 9304 bytes"), "{message}");
        assert!(traffic(&sized[..1], &long).is_ok());
    }

    #[test]
    fn settings_that_conflict_with_a_trace_are_refused() {
        let file = uneven();
        for (settings, part) in [
            (&[("size", "trace")][..], "needs pattern"),
            (&[("frames", "trace")], "needs pattern"),
            (
                &[("pattern", "trace(FILE)"), ("frames", "all")],
                "expected trace",
            ),
            (
                &[("pattern", "trace(FILE, 2x)"), ("rate", "1k")],
                "speed or a rate",
            ),
            (&[("pattern", "trace(FILE, 0x)")], "speed factor"),
            (
                &[
                    ("pattern", "trace(FILE)"),
                    ("frames", "trace"),
                    ("ttl", "3"),
                ],
                "leave out ttl",
            ),
            (
                &[
                    ("pattern", "trace(FILE)"),
                    ("frames", "trace"),
                    ("src_mac", "02:00:00:00:00:01-02:00:00:00:00:09"),
                ],
                "src_mac may be one address",
            ),
            (&[("pattern", "trace(/nowhere/x.pcap)")], "/nowhere/x.pcap"),
        ] {
            let message = traffic(settings, &file).unwrap_err();
            assert!(message.contains(part), "{settings:?}: {message}");
        }
    }

    #[test]
    fn a_printed_trace_pattern_parses_to_the_same_pattern() {
        let file = uneven();
        let pattern: Pattern = format!("trace({}, 0.5x)", file.path().display())
            .parse()
            .unwrap();
        assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern);
    }
}
