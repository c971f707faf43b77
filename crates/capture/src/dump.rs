//! Dumps: what a trigger keeps, in pcapng files or into a pipe.
//!
//! A dump has a reader of its own, which begins as long before the trigger fired as was asked for. It ends when all
//! packets up to its end were looked at, so that a trigger that fires again meanwhile goes on with the same file.

use crate::flow::Flow;
use crate::packed::{self, Packer};
use crate::pcapng::{self, Section, Statistics};
use crate::record::Record;
use crate::ring::{Reader, Ring, Start};
use crate::trigger::Trigger;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Place where dumps go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A folder: a file for each time that a trigger begins.
    Folder(PathBuf),
    /// One file, or a pipe, for all.
    File(PathBuf),
    /// Standard output.
    Output,
}

/// Sizes at which a file ends and the next one begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roll {
    /// Bytes of a file.
    pub bytes: Option<u64>,
    /// Time of its packets.
    pub time: Option<Duration>,
}

/// What came of a dump.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dumped {
    /// Name of the trigger.
    pub trigger: String,
    /// Time at which it fired first, nanoseconds since 1970.
    pub fired_ns: u64,
    /// File, as long as there is one of its own.
    pub file: Option<PathBuf>,
    /// Packets written.
    pub packets: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Packets that were written over in memory before they could be looked at, of all that passed.
    pub missed: u64,
    /// Packets that were left out, as their flow had had its bytes.
    pub cut_off: u64,
    /// Packets that could not be written.
    pub lost: u64,
    /// Why not.
    pub error: Option<String>,
}

/// Flows that are remembered for the cutoff of one dump; packets of others are kept.
const MOST_FLOWS: usize = 1 << 20;
/// Bytes that are written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A file that is being written: whole blocks, or cut back to whole blocks when the disk is full. Where it is compressed,
/// what is written in one go is a frame.
#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// Name while it is written, and after.
    names: Option<(PathBuf, PathBuf)>,
    is_regular: bool,
    pending: Vec<u8>,
    packer: Option<Packer>,
    /// Bytes of whole blocks, or frames, in the file.
    written: u64,
    /// Time of its first packet.
    first_ns: u64,
    packets: u64,
    failed: Option<String>,
}

impl Output {
    pub(crate) fn create(
        target: &Target,
        name: &str,
        ports: &[String],
        snap: u32,
        comment: &str,
        zstd: bool,
    ) -> io::Result<Self> {
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            options.open(path)
        };
        let (file, names) = match target {
            Target::Folder(folder) => {
                let (part, whole) = free_name(folder, name, zstd);
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                (options.open(&part)?, Some((part, whole)))
            }
            Target::File(path) => (open(path)?, None),
            Target::Output => (File::from(io::stdout().as_fd().try_clone_to_owned()?), None),
        };
        let is_regular = file.metadata()?.is_file();
        let mut pending = Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 3));
        pcapng::section(&mut pending, &Section::ours(comment));
        for port in ports {
            pcapng::interface(&mut pending, port, snap);
        }
        Ok(Self {
            file,
            names,
            is_regular,
            pending,
            packer: zstd.then(Packer::new).transpose()?,
            written: 0,
            first_ns: 0,
            packets: 0,
            failed: None,
        })
    }

    /// Bytes of the file, as far as they are known: those of the next frame are not.
    fn bytes(&self) -> u64 {
        match self.packer {
            None => self.written + self.pending.len() as u64,
            Some(_) => self.written,
        }
    }

    fn put(&mut self, record: &Record<'_>, comment: &str) {
        let facts = &record.facts;
        if self.packets == 0 {
            self.first_ns = facts.time_ns;
        }
        self.packets += 1;
        pcapng::packet(&mut self.pending, record, comment);
        if self.pending.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    /// Writes what there is. After an error nothing is written any more.
    pub(crate) fn flush(&mut self) {
        if self.failed.is_some() || self.pending.is_empty() {
            self.pending.clear();
            return;
        }
        let packed = match &mut self.packer {
            None => Ok(&self.pending[..]),
            Some(packer) => packer.pack(&self.pending),
        };
        let written = packed.and_then(|bytes| {
            self.file.write_all(bytes)?;
            Ok(bytes.len() as u64)
        });
        match written {
            Ok(bytes) => self.written += bytes,
            Err(error) => {
                if self.is_regular {
                    let _ = self.file.set_len(self.written);
                }
                self.failed = Some(error.to_string());
            }
        }
        if self.is_regular && self.pending.len() >= CHUNK_BYTES {
            // So that it pushes nothing else out of memory; what is not written yet is not touched.
            let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        }
        self.pending.clear();
    }

    /// Why nothing is written any more.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Ends the file, and gives it its name.
    fn finish(&mut self) {
        self.flush();
        if let Some((part, whole)) = self.names.take() {
            match std::fs::rename(&part, &whole) {
                Ok(()) => {}
                Err(error) => self.failed = self.failed.take().or(Some(error.to_string())),
            }
        }
    }
}

/// A name in the folder that there is not yet: for a file while it is written, and after.
fn free_name(folder: &Path, name: &str, zstd: bool) -> (PathBuf, PathBuf) {
    let ending = if zstd { packed::ENDING } else { "" };
    let mut number = 0;
    loop {
        let suffix = match number {
            0 => String::new(),
            number => format!("-{number}"),
        };
        let whole = folder.join(format!("{name}{suffix}.pcapng{ending}"));
        let part = folder.join(format!("{name}{suffix}.pcapng{ending}.part"));
        if !whole.exists() && !part.exists() {
            return (part, whole);
        }
        number += 1;
    }
}

/// A time as names of files have it: `20261125T150000.123456789Z`.
pub(crate) fn name_of_time(time_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(time_ns);
    let text = humantime::format_rfc3339_nanos(time).to_string();
    text.replace(['-', ':'], "")
}

/// A time for people: RFC 3339, in UTC.
pub fn time_in_words(time_ns: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(time_ns)).to_string()
}

/// What all dumps have in common.
#[derive(Debug)]
pub(crate) struct Dumps {
    pub ring: Arc<Ring>,
    pub target: Target,
    pub roll: Roll,
    /// Files in a folder are compressed.
    pub zstd: bool,
    /// What times of packets are.
    pub times: String,
    /// Names of the ports, by number.
    pub ports: Vec<String>,
    pub snap_bytes: u32,
}

/// What a dump begins with.
#[derive(Debug)]
pub(crate) struct Begin {
    /// Number of the trigger.
    pub trigger: usize,
    pub fired_ns: u64,
    pub from_ns: u64,
    pub until_ns: u64,
    /// Time up to which the dump of the trigger before it goes.
    pub ended_ns: u64,
    pub cause: String,
}

/// A dump that is being written.
#[derive(Debug)]
pub(crate) struct Dump {
    pub trigger: usize,
    reader: Reader,
    output: Option<Output>,
    result: Dumped,
    cause: String,
    from_ns: u64,
    until_ns: u64,
    /// Its trigger has begun another one.
    has_end: bool,
    flows: HashMap<Flow, u64>,
    /// Packets of the pieces before the one that is being written.
    packets_before: u64,
    bytes_before: u64,
    missed_before: u64,
}

impl Dump {
    /// Begins a dump for a trigger that has fired.
    pub(crate) fn begin(dumps: &Dumps, trigger: &Trigger, begin: Begin) -> Self {
        Self {
            trigger: begin.trigger,
            reader: dumps.ring.reader(Start::At(begin.from_ns)),
            output: None,
            result: Dumped {
                trigger: trigger.name.clone(),
                fired_ns: begin.fired_ns,
                ..Dumped::default()
            },
            cause: begin.cause,
            from_ns: begin.from_ns,
            until_ns: begin.until_ns,
            has_end: false,
            flows: HashMap::new(),
            packets_before: 0,
            bytes_before: 0,
            missed_before: 0,
        }
    }

    /// Has it end there, as its trigger has begun another one.
    pub(crate) fn ends(&mut self, until_ns: u64) {
        if !self.has_end {
            (self.until_ns, self.has_end) = (until_ns, true);
        }
    }

    /// Has it go on until then, if its trigger has begun no other one. Returns the time up to which it goes.
    pub(crate) fn goes_on(&mut self, until_ns: u64) -> u64 {
        if !self.has_end {
            self.until_ns = self.until_ns.max(until_ns);
        }
        self.until_ns
    }

    /// Writes packets up to that time, `most` at most. Returns how many were looked at.
    pub(crate) fn write(
        &mut self,
        dumps: &Dumps,
        shared: &mut Option<Output>,
        trigger: &Trigger,
        until_ns: u64,
        most: usize,
    ) -> usize {
        let Self {
            reader,
            output,
            result,
            flows,
            cause,
            ..
        } = self;
        let (from_ns, fired_ns) = (self.from_ns, result.fired_ns);
        let mut is_full = false;
        let looked = reader.read(until_ns, most, |record| {
            if !trigger.keep.matches(record.frame, record.facts.wire_bytes) {
                return;
            }
            if let Some(cutoff) = trigger.cutoff_bytes
                && let Some(flow) = Flow::of(record)
                && (flows.len() < MOST_FLOWS || flows.contains_key(&flow))
            {
                let bytes = flows.entry(flow).or_insert(0);
                *bytes += u64::from(record.facts.wire_bytes);
                if *bytes - u64::from(record.facts.wire_bytes) >= cutoff {
                    result.cut_off += 1;
                    return;
                }
            }
            let comment = || {
                let name = &trigger.name;
                let (from, at) = (time_in_words(from_ns), time_in_words(fired_ns));
                let times = &dumps.times;
                format!("trigger {name}: {cause} at {at}; packets from {from} on; {times}")
            };
            if let Some(shared) = shared {
                // Who reads a pipe finds there why packets follow.
                let said = if result.packets == 0 {
                    comment()
                } else {
                    String::new()
                };
                result.packets += 1;
                shared.put(record, &said);
                return;
            }
            if output.is_none() {
                let name = format!("{}-{}", trigger.name, name_of_time(record.facts.time_ns));
                match Output::create(
                    &dumps.target,
                    &name,
                    &dumps.ports,
                    dumps.snap_bytes,
                    &comment(),
                    dumps.zstd,
                ) {
                    Ok(made) => *output = Some(made),
                    Err(error) => {
                        result.lost += 1;
                        result.error = Some(error.to_string());
                        return;
                    }
                }
            }
            if let Some(output) = output {
                output.put(record, "");
                let is_long = |time: Duration| {
                    record.facts.time_ns.saturating_sub(output.first_ns) >= time.as_nanos() as u64
                };
                is_full |= dumps
                    .roll
                    .bytes
                    .is_some_and(|bytes| output.bytes() >= bytes)
                    || dumps.roll.time.is_some_and(is_long);
            }
        });
        self.result.missed = self.reader.missed();
        if is_full {
            self.end_file();
        }
        looked
    }

    /// Writes what was gathered, so that who looks at the file finds it.
    pub(crate) fn flush(&mut self) {
        if let Some(output) = &mut self.output {
            output.flush();
        }
    }

    fn end_file(&mut self) {
        let Some(mut output) = self.output.take() else {
            return;
        };
        let missed = self.result.missed - self.missed_before;
        let statistics = Statistics {
            received: output.packets + missed,
            dropped_by_interface: 0,
            dropped_by_system: missed,
        };
        pcapng::statistics(&mut output.pending, 0, output.first_ns, &statistics);
        let file = output.names.as_ref().map(|(_, whole)| whole.clone());
        output.finish();
        self.packets_before += output.packets;
        self.bytes_before += output.written;
        self.missed_before = self.result.missed;
        if output.failed.is_some() {
            self.result.error = output.failed;
        }
        self.result.file = file;
        self.result.packets = self.packets_before;
        self.result.file_bytes = self.bytes_before;
    }

    /// Ends the dump.
    pub(crate) fn end(mut self) -> Dumped {
        self.end_file();
        self.result
    }

    /// What there is of it so far.
    pub(crate) fn so_far(&self) -> Dumped {
        let mut result = self.result.clone();
        if let Some(output) = &self.output {
            result.packets = self.packets_before + output.packets;
            result.file_bytes = self.bytes_before + output.bytes();
            result.file = output.names.as_ref().map(|(part, _)| part.clone());
            result.error = output.failed.clone().or(result.error);
        }
        result
    }
}

/// The file that a query writes: it gets its name when it is whole, and goes if it is not finished.
pub(crate) struct QueryOutput(Output);

impl Drop for QueryOutput {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.0.names {
            let _ = std::fs::remove_file(part);
        }
    }
}

impl QueryOutput {
    pub(crate) fn create(
        path: &Path,
        ports: &[String],
        snap_bytes: u32,
        times: &str,
    ) -> io::Result<Self> {
        let is_other = std::fs::metadata(path).is_ok_and(|it| !it.is_file());
        // A pipe, or a device, is written as it is.
        let part = match is_other {
            true => path.to_path_buf(),
            false => {
                let mut name = path.file_name().unwrap_or_default().to_os_string();
                name.push(".part");
                path.with_file_name(name)
            }
        };
        let mut output = Output::create(
            &Target::File(part.clone()),
            "",
            ports,
            snap_bytes,
            &format!("taut capture query; {times}"),
            packed::is_wanted(path),
        )?;
        output.names = (!is_other).then(|| (part, path.to_path_buf()));
        Ok(Self(output))
    }

    pub(crate) fn put(&mut self, record: &Record<'_>) {
        self.0.put(record, "");
    }

    /// Why nothing is written any more.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.0.failed()
    }

    /// Ends it; packets and bytes of the file.
    pub(crate) fn finish(mut self) -> Result<(u64, u64), String> {
        self.0.flush();
        if let Some(error) = self.0.failed.take() {
            return Err(error);
        }
        self.0.finish();
        match self.0.failed.take() {
            Some(error) => Err(error),
            None => Ok((self.0.packets, self.0.written)),
        }
    }
}
