//! The port `pcap` on capture files: it receives the frames of one file, and writes sent frames to another. It supports
//! pcap and pcapng.
//!
//! Frames are read without a copy: a thread (`reader`) reads blocks of the file ahead and indexes their frames
//! (`index`, `format`), and packets refer to frames in these blocks. Files compressed by zstd are decompressed first
//! (`capture_file`). Sent frames are copied once, into blocks that another thread (`writer`) writes. There is no system
//! call per packet.

pub mod annotated;
mod blocks;
mod capture_file;
pub mod format;
pub mod index;
mod link;
mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

pub use annotated::{Annotated, write_annotated};
pub use capture_file::CaptureFile;

use crate::{
    Attachment, Backend, Batch, Breakdown, Handling, Link, Port, PortCounters, PortError, PortSpec,
};
use crate::{Receives, Resources, Sends, Split, Supply};
use index::End;
use reader::Reader;
use record::Format;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;
use taut_sys::{Clock, Locked, StampClock};
use writer::Writer;

/// The backend of specs
/// `pcap:FILE[,role=read|write][,out=FILE][,timing=fast|original][,repeat=N][,format=pcap|pcapng]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "pcap",
    summary: "capture files, pcap and pcapng: replays one, writes another; needs no root",
    target: "FILE",
    options: &[
        (
            "role",
            "read (delivers the frames of FILE, default) or write (writes FILE)",
        ),
        (
            "out",
            "with role=read: the file to write what is sent to (default: it is refused)",
        ),
        (
            "timing",
            "fast (as fast as they are taken, default) or original (as they were captured)",
        ),
        ("repeat", "times to read the file, 0 for ever (default 1)"),
        (
            "format",
            "of what is written, pcap or pcapng (default: by the file's ending, else pcap)",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPlace,
        sends: Sends::ByCopy,
    }],
    passes_on: false,
    wakes: false,
    probe: || Ok("always there".to_string()),
    open,
    split: Split::Never("the packets of a file come one after the other"),
    attachment: Attachment::Inside,
    typical_cycles: Some(100.0),
    loop_back: None,
};

/// The time for calibrating the cycle counter against the system's clock. An error of one part per million in the
/// calibration adds up to a millisecond in a quarter of an hour.
const CALIBRATION: Duration = Duration::from_millis(50);

struct PcapPort {
    input: Option<Input>,
    output: Option<Output>,
    counters: PortCounters,
}

struct Input {
    path: String,
    reader: Reader,
    /// Lock that keeps writers from the file as long as the port exists; None if the file system supports no locks.
    _claim: Option<Locked>,
}

struct Output {
    path: String,
    writer: Writer,
    /// Lock that keeps other readers and writers from the file until all frames are written; None if the file system
    /// supports no locks.
    _claim: Option<Locked>,
}

fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    let target = spec.target();
    let (input, output) = match (spec.option("role").unwrap_or("read"), spec.option("out")) {
        ("read", out) => (Some(target), out),
        ("write", None) => (None, Some(target)),
        ("write", Some(_)) => {
            return Err(spec.error("role=write and out=: give one or the other"));
        }
        (other, _) => return Err(spec.error(format!("role={other}: expected read or write"))),
    };
    if input.is_none() {
        for key in ["timing", "repeat"] {
            if spec.option(key).is_some() {
                return Err(spec.error(format!("{key} is for files that are read")));
            }
        }
    }
    if output.is_none() && spec.option("format").is_some() {
        return Err(spec.error("format is for files that are written; formats read are recognised"));
    }
    Ok(Box::new(PcapPort {
        input: input.map(|path| open_input(spec, path)).transpose()?,
        output: output.map(|path| open_output(spec, path)).transpose()?,
        counters: PortCounters::default(),
    }))
}

fn open_input(spec: &PortSpec, path: &str) -> Result<Input, PortError> {
    let what = format!("opening {spec}");
    let clock = match spec.option("timing").unwrap_or("fast") {
        "fast" => None,
        "original" => Some(Clock::calibrate(CALIBRATION)),
        other => return Err(spec.error(format!("timing={other}: expected fast or original"))),
    };
    let rounds = match spec.number("repeat", 0..=u64::MAX)?.unwrap_or(1) {
        0 => u64::MAX,
        rounds => rounds,
    };
    let file = File::open(path).map_err(|e| PortError::system(&what, e))?;
    let metadata = file.metadata().map_err(|e| PortError::system(&what, e))?;
    if !metadata.is_file() {
        return Err(spec.error(format!("{path} is not a file")));
    }
    let claim = writer::claim(&file, false, &what)?;
    let file = CaptureFile::of(file).map_err(|e| PortError::system(&what, e))?;
    let reader = Reader::start(file, rounds, clock, |end| spec.error(told(path, end)))?;
    Ok(Input {
        path: path.to_string(),
        reader,
        _claim: claim,
    })
}

fn open_output(spec: &PortSpec, path: &str) -> Result<Output, PortError> {
    let what = format!("opening {spec} to write {path}");
    let ending = Path::new(path).extension().and_then(|e| e.to_str());
    let format = match (spec.option("format"), ending) {
        (Some("pcapng"), _) | (None, Some("pcapng" | "ntar")) => Format::Pcapng,
        (Some("pcap") | None, _) => Format::Pcap,
        (Some(other), _) => {
            return Err(spec.error(format!("format={other}: expected pcap or pcapng")));
        }
    };
    // The file is not truncated before it is locked, because another port may be reading it.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|e| PortError::system(&what, e))?;
    let claim = match file.metadata().is_ok_and(|m| m.is_file()) {
        true => writer::claim(&file, true, &what)?,
        false => None,
    };
    Ok(Output {
        path: path.to_string(),
        writer: Writer::start(file, format, &what)?,
        _claim: claim,
    })
}

/// Returns a text that describes why the frames of a file end.
fn told(path: &str, end: &End) -> String {
    match end {
        End::Whole => format!("end of {path}"),
        End::Truncated(0) => format!("{path} is empty, or ends before its first frame"),
        End::Truncated(at) => {
            format!("end of {path}, which was cut off in the record at byte {at}")
        }
        // An error in the first bytes means another kind of file, not damage.
        End::Damaged(at, fault) if *at == 0 || fault.is_of_its_kind => format!("{path} is {fault}"),
        End::Damaged(at, fault) => format!("{path} is damaged: at byte {at} is {fault}"),
        End::Unreadable(at, why) => format!("{path} cannot be read at byte {at}: {why}"),
    }
}

impl Input {
    /// Returns the state of the port's supply of frames.
    fn supply(&self) -> Supply {
        match self.reader.ended() {
            None => Supply::Open,
            Some(End::Whole | End::Truncated(_)) => Supply::Ended,
            Some(end) => Supply::Broken(Breakdown {
                why: told(&self.path, end),
                is_machines: matches!(end, End::Unreadable(..)),
            }),
        }
    }
}

impl Port for PcapPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        match &mut self.input {
            Some(input) => input.reader.rx(batch, &mut self.counters),
            None => 0,
        }
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let Some(output) = &mut self.output else {
            let n = batch.len();
            self.counters.tx_failed += n as u64;
            batch.clear();
            return n;
        };
        let (taken, bytes) = output.writer.tx(batch);
        self.counters.tx_packets += taken as u64;
        self.counters.tx_bytes += bytes;
        taken
    }

    fn link(&mut self) -> Link {
        if let Some(output) = &mut self.output {
            output.writer.look();
            return match output.writer.failure() {
                None => Link::Up,
                Some(why) => Link::Down(format!("writing {}: {why}", output.path)),
            };
        }
        match &self.input {
            Some(input) => match input.reader.ended() {
                None => Link::Up,
                Some(end) => Link::Down(format!(
                    "{}, after {} packets",
                    told(&input.path, end),
                    self.counters.rx_packets
                )),
            },
            None => Link::Up,
        }
    }

    fn arrival_stamps(&self) -> &[u64] {
        self.input.as_ref().map_or(&[], |it| it.reader.times_ns())
    }

    fn stamp_clock(&self) -> Option<StampClock> {
        self.input.as_ref().map(|_| StampClock::Recorded)
    }

    fn counters(&mut self) -> PortCounters {
        let mut counters = self.counters;
        if let Some(output) = &self.output {
            let lost = output.writer.lost();
            counters.tx_packets -= lost.frames;
            counters.tx_bytes -= lost.bytes;
            counters.tx_failed += lost.frames;
        }
        counters
    }

    fn supply(&mut self) -> Supply {
        if let Some(output) = &self.output
            && let Some(why) = output.writer.failure()
        {
            return Supply::Broken(Breakdown {
                why: format!("writing {}: {why}", output.path),
                is_machines: true,
            });
        }
        self.input.as_ref().map_or(Supply::None, Input::supply)
    }

    fn waits(&self) -> bool {
        self.input.is_some()
    }

    fn takes(&self) -> bool {
        self.output.is_some()
    }

    fn close(&mut self) {
        if let Some(output) = &mut self.output {
            output.writer.close();
        }
    }
}
