//! The port `null`, which discards sent packets and optionally generates packets. It shows the minimum cost of a port.

use crate::{
    Attachment, Backend, Batch, Handling, Link, PoolHandle, Port, PortCounters, PortError, PortSpec,
};
use crate::{Joinable, Part, Receives, Resources, Sends, Split, Supply, pcap};

/// The backend of specs `null:[source=N][,size=BYTES | ,frames=FILE]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "null",
    summary: "no device: swallows what is sent; with source=N also delivers bursts of N packets",
    target: "",
    options: &[
        (
            "source",
            "packets delivered per receive call, 0 to 64 (default 0)",
        ),
        (
            "size",
            "length of their frames with check sequence, 64 to 1518 bytes (default 64)",
        ),
        (
            "frames",
            "capture whose frames they are, over and over, instead of frames of nothing; 64 MiB at most",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPool,
        sends: Sends::FromAnywhere,
    }],
    passes_on: false,
    wakes: false,
    probe: || Ok("always there".to_string()),
    open,
    split: Split::Joinable(joinable),
    attachment: Attachment::Nothing,
    typical_cycles: None,
    loop_back: Some(|_, size| ["null:".to_string(), format!("null:source={size}")]),
};

/// The range of frame lengths that a source can have, in bytes with frame check sequence.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 64..=1518;
/// The length of the frame check sequence in bytes; frames in a port do not include it.
const CHECK_BYTES: u16 = 4;

/// The maximum total length of a capture's frames in memory, bytes.
const MOST_BYTES: usize = 64 << 20;

struct NullPort {
    pool: PoolHandle,
    source: usize,
    /// Length of the packets in bytes; for a capture, the length of its longest frame.
    len_bytes: u16,
    frames: Option<Frames>,
    counters: PortCounters,
}

/// The frames of a capture, in memory.
struct Frames {
    bytes: Vec<u8>,
    /// For each frame, the offset after its last byte.
    ends: Vec<usize>,
    /// Index of the next frame to deliver, and its offset in bytes.
    next: (usize, usize),
}

impl Frames {
    /// Reads all frames of a file, once.
    fn read(spec: &PortSpec, file: &str) -> Result<Self, PortError> {
        let capture = PortSpec::of(&format!("pcap:{file}"), pcap::BACKEND, file)?;
        let mut resources = Resources::for_ports(std::slice::from_ref(&capture))?;
        let mut port = capture.open(&mut resources)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let mut batch = Batch::new();
        loop {
            let received = port.rx(&mut batch);
            for packet in batch.packets() {
                bytes.extend_from_slice(packet.bytes());
                ends.push(bytes.len());
            }
            batch.clear();
            if bytes.len() > MOST_BYTES {
                return Err(spec.error(format!("frames={file}: more than 64 MiB of frames")));
            }
            match port.supply() {
                _ if received > 0 => {}
                Supply::Open => std::thread::yield_now(),
                Supply::Broken(it) => return Err(spec.error(format!("frames={file}: {}", it.why))),
                Supply::None | Supply::Ended => break,
            }
        }
        if ends.is_empty() {
            return Err(spec.error(format!("frames={file}: the file has no frames")));
        }
        let next = (0, 0);
        Ok(Self { bytes, ends, next })
    }

    /// Returns the length of the longest frame, bytes.
    fn longest(&self) -> usize {
        let begins = std::iter::once(&0).chain(&self.ends);
        let lengths = self.ends.iter().zip(begins).map(|(end, begin)| end - begin);
        lengths.max().unwrap_or(0)
    }

    #[inline]
    fn next(&mut self) -> &[u8] {
        let (number, begin) = self.next;
        let end = self.ends[number];
        self.next = match number + 1 == self.ends.len() {
            true => (0, 0),
            false => (number + 1, end),
        };
        &self.bytes[begin..end]
    }
}

fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    if !spec.target().is_empty() {
        return Err(spec.error("null has no target; write \"null:\""));
    }
    let source = spec.number("source", 0..=64)?.unwrap_or(0);
    let size = spec.number("size", FRAME_BYTES)?;
    let frames = spec.option("frames");
    if frames.is_some() && size.is_some() {
        return Err(spec.error("frames have lengths of their own: leave out size"));
    }
    let frames = frames.map(|file| Frames::read(spec, file)).transpose()?;
    let pool = resources.pool();
    let len_bytes = match &frames {
        Some(frames) => frames.longest(),
        None => size.unwrap_or(*FRAME_BYTES.start()) as usize - usize::from(CHECK_BYTES),
    };
    let room = pool.room();
    if frames.is_some() && len_bytes > room {
        return Err(spec.error(format!(
            "a frame of {len_bytes} bytes is too long: a packet buffer holds {room}"
        )));
    }
    Ok(Box::new(NullPort {
        pool,
        source: source as usize,
        len_bytes: len_bytes as u16,
        frames,
        counters: PortCounters::default(),
    }))
}

fn joinable(spec: &PortSpec) -> Result<Joinable, PortError> {
    let spec = spec.clone();
    Ok(Box::new(move |_| {
        let spec = spec.clone();
        Ok(Box::new(move |resources: &mut Resources| open(&spec, resources)) as Part)
    }))
}

impl Port for NullPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let before = batch.len();
        let n = self.pool.fill(batch, self.source, self.len_bytes);
        self.counters.rx_packets += n as u64;
        let Some(frames) = &mut self.frames else {
            self.counters.rx_bytes += n as u64 * u64::from(self.len_bytes);
            return n;
        };
        for packet in &mut batch.packets_mut()[before..] {
            let frame = frames.next();
            packet.truncate(frame.len() as u16);
            packet.bytes_mut().copy_from_slice(frame);
            self.counters.rx_bytes += frame.len() as u64;
        }
        n
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.counters.tx_packets += n as u64;
        self.counters.tx_bytes += batch.packets().iter().map(|p| p.len() as u64).sum::<u64>();
        batch.clear();
        n
    }

    fn link(&mut self) -> Link {
        Link::Up
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }

    fn supply(&mut self) -> Supply {
        if self.source == 0 {
            Supply::None
        } else {
            Supply::Open
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::Path;

    fn opened(text: &str) -> Result<(Box<dyn Port>, Resources), PortError> {
        let spec = PortSpec::parse(text)?;
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec))?;
        Ok((spec.open(&mut resources)?, resources))
    }

    /// Writes a capture of frames of the given lengths in bytes. Every byte of a frame is the frame's number, from 1.
    fn capture(path: &Path, lengths: &[u32]) {
        let words = |words: &[u32]| words.iter().flat_map(|it| it.to_le_bytes()).collect();
        let mut bytes: Vec<u8> = words(&[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65535, 1]);
        for (length, number) in lengths.iter().zip(1..) {
            bytes.extend::<Vec<u8>>(words(&[0, 0, *length, *length]));
            bytes.extend(vec![number; *length as usize]);
        }
        std::fs::write(path, bytes).unwrap();
    }

    #[test]
    fn repeated_frames_contain_no_changes_made_by_the_receiver() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("three.pcap");
        capture(&path, &[60, 1514, 61]);
        let (mut port, _resources) =
            opened(&format!("null:source=4,frames={}", path.display())).unwrap();
        let mut batch = Batch::new();
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert_eq!(port.rx(&mut batch), 4);
            for packet in batch.packets_mut() {
                assert!(packet.bytes().iter().all(|byte| *byte == packet.bytes()[0]));
                seen.push((packet.bytes()[0], packet.len()));
                packet.bytes_mut().fill(0);
            }
            port.tx(&mut batch);
        }
        let round = [(1, 60), (2, 1514), (3, 61)];
        assert_eq!(seen, round.repeat(4));
        let counters = port.counters();
        assert_eq!((counters.rx_packets, counters.rx_bytes), (12, 4 * 1635));
        assert_eq!((counters.tx_packets, counters.tx_bytes), (12, 4 * 1635));
    }

    #[test]
    fn an_invalid_capture_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.pcap");
        let text = format!("null:source=1,frames={}", path.display());
        let refused = |text: &str| opened(text).err().unwrap().to_string();
        assert!(
            refused(&text).contains("No such file"),
            "{}",
            refused(&text)
        );
        capture(&path, &[]);
        assert!(
            refused(&text).contains("the file has no frames"),
            "{}",
            refused(&text)
        );
        capture(&path, &[9000]);
        let long = refused(&text);
        assert!(
            long.contains("a frame of 9000 bytes") || long.contains("no frame"),
            "{long}"
        );
        capture(&path, &[60]);
        let both = format!("{text},size=64");
        assert!(
            refused(&both).contains("leave out size"),
            "{}",
            refused(&both)
        );
        std::fs::write(&path, "no capture").unwrap();
        assert!(refused(&text).contains("some.pcap"), "{}", refused(&text));
    }
}
