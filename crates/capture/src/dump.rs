//! Dumps: the packets that a trigger stores, in pcapng files or into a pipe.
//!
//! Each dump has a reader of its own, which begins the configured time before the trigger fired. The dump ends when all
//! packets up to its end time were processed. A trigger that fires again before then extends the same file.

use crate::compression::{self, Packer};
use crate::flow::Flow;
use crate::lock;
use crate::pcapng::{self, Section, Statistics};
use crate::record::Record;
use crate::ring::{Reader, Ring, Start};
use crate::trigger::Trigger;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

/// The destination of dumps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A folder with one file for each dump that a trigger begins.
    Folder(PathBuf),
    /// One file or pipe for all dumps.
    File(PathBuf),
    /// Standard output.
    Output,
}

/// The limits at which a dump file ends and the dump's next file begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roll {
    /// Size in bytes at which a file ends; none for no limit.
    pub bytes: Option<u64>,
    /// Time span of a file's packets at which the file ends; none for no limit.
    pub time: Option<Duration>,
}

impl Roll {
    /// Returns true if the file `output` has reached a limit with its last packet, which has the time `time_ns`.
    #[inline]
    fn ends(&self, output: &Output, time_ns: u64) -> bool {
        let first_ns = output.first_ns.unwrap_or(time_ns);
        let is_long = |time: Duration| time_ns.saturating_sub(first_ns) >= time.as_nanos() as u64;
        self.bytes.is_some_and(|bytes| output.bytes() >= bytes) || self.time.is_some_and(is_long)
    }
}

/// The result of a dump.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Dumped {
    /// Name of the trigger that started the dump.
    pub trigger: String,
    /// Time at which the trigger fired and began the dump, nanoseconds since 1970.
    pub fired_ns: u64,
    /// Path of the file, if the dump has a file of its own.
    pub file: Option<PathBuf>,
    /// Packets that were written. A power failure may lose those that the file system has not written to the disk yet.
    pub packets: u64,
    /// Number of bytes that were written to the file.
    pub file_bytes: u64,
    /// Packets that were overwritten in memory before they could be read, whether or not the filter matches them.
    pub missed: u64,
    /// Packets that were skipped because their flow had reached the cutoff.
    pub cut_off: u64,
    /// Packets that could not be written.
    pub lost: u64,
    /// Cause of the dump's last failed write; none if no write has failed.
    pub error: Option<String>,
}

/// Maximum number of flows whose bytes are counted for the cutoff of one dump; packets of further flows are all stored.
const MOST_FLOWS: usize = 1 << 20;
/// Number of bytes that are collected before they are written to the file.
const CHUNK_BYTES: usize = 1 << 20;

/// The counts of packets of dumps that were written, or could not be written.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    written: AtomicU64,
    lost: AtomicU64,
    error: Mutex<Option<String>>,
    /// Tally of several dumps together, if there is one: it also counts every packet of this tally.
    all: Option<Arc<Self>>,
}

impl Tally {
    /// Creates a tally whose packets are counted in `all` as well.
    fn part_of(all: &Arc<Self>) -> Arc<Self> {
        Arc::new(Self {
            all: Some(Arc::clone(all)),
            ..Self::default()
        })
    }

    /// Returns the number of packets that were written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the number of packets that could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn error(&self) -> Option<String> {
        lock(&self.error).clone()
    }

    fn write(&self, packets: u64) {
        self.written.fetch_add(packets, Ordering::Relaxed);
        if let Some(all) = &self.all {
            all.write(packets);
        }
    }

    fn lose(&self, packets: u64, why: &str) {
        self.lost.fetch_add(packets, Ordering::Relaxed);
        *lock(&self.error) = Some(why.to_string());
        if let Some(all) = &self.all {
            all.lose(packets, why);
        }
    }
}

/// The destination of a dump's bytes: a file, a pipe, or a fake disk.
pub(crate) trait Sink: Write {
    /// Truncates the file to `bytes` bytes; the next write begins there.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;

    /// Releases the page cache of the file, so that it displaces no other pages; bytes that are not on the disk yet are
    /// unaffected.
    fn let_go(&self);
}

impl Sink for File {
    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)?;
        self.seek(SeekFrom::Start(bytes)).map(drop)
    }

    fn let_go(&self) {
        let _ = fadvise(self, 0, None, Advice::DontNeed);
    }
}

/// The state of the last pcapng block of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// The file ends with a complete pcapng block.
    Whole,
    /// The file may end with a part of a pcapng block, which has to be truncated before the next write.
    Torn,
    /// The file may end with a part of a pcapng block that cannot be truncated: nothing is written any more.
    Broken,
}

/// A dump file that is being written. It consists of complete blocks, and is truncated to complete blocks when the disk
/// is full. In a compressed file, each write is a frame. Packets that could not be written are lost; later packets are
/// written once that is possible again.
#[derive(Debug)]
pub(crate) struct Output<F = File> {
    file: F,
    /// Name of the dump file while it is written, and its final name; none if the file is not renamed.
    names: Option<(PathBuf, PathBuf)>,
    is_regular: bool,
    pending: Vec<u8>,
    /// Number of packets in `pending` that each tally counts.
    waiting: Vec<(Arc<Tally>, u64)>,
    /// Length of the file header at the start of `pending`, in bytes: the file cannot be read without it.
    head_bytes: usize,
    packer: Option<Packer>,
    /// Length in bytes of the file before the first write.
    start: u64,
    /// Number of bytes of complete blocks or zstd frames in the file.
    written: u64,
    tail: Tail,
    /// Time of the first packet in the file, ns since 1970.
    first_ns: Option<u64>,
    /// Number of packets written to this file.
    packets: u64,
    /// Number of packets that could not be written to this file.
    lost: u64,
    /// Cause of the last failed write; none if no write has failed.
    error: Option<String>,
    /// True if the last write failed.
    is_failing: bool,
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
        let (mut file, names) = match target {
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
        // The file may already contain bytes of other programs (`>>` in a shell).
        let start = match is_regular {
            true if fcntl_getfl(&file)?.contains(OFlags::APPEND) => file.metadata()?.len(),
            true => file.stream_position()?,
            false => 0,
        };
        let mut head = Vec::with_capacity(CHUNK_BYTES + (CHUNK_BYTES >> 3));
        pcapng::section(&mut head, &Section::ours(comment));
        for port in ports {
            pcapng::interface(&mut head, port, snap);
        }
        let packer = zstd.then(Packer::new).transpose()?;
        Ok(Self::new(file, names, is_regular, start, head, packer))
    }
}

impl<F: Sink> Output<F> {
    fn new(
        file: F,
        names: Option<(PathBuf, PathBuf)>,
        is_regular: bool,
        start: u64,
        head: Vec<u8>,
        packer: Option<Packer>,
    ) -> Self {
        Self {
            file,
            names,
            is_regular,
            head_bytes: head.len(),
            pending: head,
            waiting: Vec::new(),
            packer,
            start,
            written: 0,
            tail: Tail::Whole,
            first_ns: None,
            packets: 0,
            lost: 0,
            error: None,
            is_failing: false,
        }
    }

    /// Returns the current length of the file in bytes. Pending bytes are included, except in a compressed file.
    fn bytes(&self) -> u64 {
        match self.packer {
            None => self.written + self.pending.len() as u64,
            Some(_) => self.written,
        }
    }

    fn put(&mut self, record: &Record<'_>, comment: &str, of: &Arc<Tally>) {
        self.first_ns.get_or_insert(record.facts.time_ns);
        match self.waiting.last_mut() {
            Some((last, packets)) if Arc::ptr_eq(last, of) => *packets += 1,
            _ => self.waiting.push((Arc::clone(of), 1)),
        }
        pcapng::packet(&mut self.pending, record, comment);
        if self.pending.len() >= CHUNK_BYTES {
            self.flush();
        }
    }

    /// Writes the pending bytes. If that fails, the pending packets are lost, but a file header stays pending, as the
    /// file cannot be read without it.
    pub(crate) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let is_large = self.pending.len() >= CHUNK_BYTES;
        match self.write_pending() {
            Ok(bytes) => {
                self.written += bytes;
                self.head_bytes = 0;
                self.pending.clear();
                self.is_failing = false;
                for (of, packets) in self.waiting.drain(..) {
                    of.write(packets);
                    self.packets += packets;
                }
            }
            Err(error) => {
                if self.tail != Tail::Broken {
                    self.tail = Tail::Torn;
                    self.mend();
                }
                self.is_failing = true;
                self.pending.truncate(self.head_bytes);
                let why = self.error.insert(error.to_string());
                for (of, packets) in self.waiting.drain(..) {
                    of.lose(packets, why);
                    self.lost += packets;
                }
            }
        }
        if self.is_regular && is_large {
            self.file.let_go();
        }
    }

    /// Returns the number of packets that could not be written to this file.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the cause of the last failed write; none if no write has failed.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns the reason why the last write failed; none if the last write succeeded.
    pub(crate) fn failing(&self) -> Option<&str> {
        self.error().filter(|_| self.is_failing)
    }

    fn write_pending(&mut self) -> io::Result<u64> {
        self.mend();
        if self.tail != Tail::Whole {
            let said = self.error.take().unwrap_or_default();
            return Err(io::Error::other(said));
        }
        let bytes = match &mut self.packer {
            None => &self.pending[..],
            Some(packer) => packer.pack(&self.pending)?,
        };
        self.file.write_all(bytes)?;
        Ok(bytes.len() as u64)
    }

    /// Truncates the file after its last complete block, because a failed write may have left part of a block.
    fn mend(&mut self) {
        if self.tail == Tail::Torn {
            self.tail = match self.is_regular {
                true if self.file.cut(self.start + self.written).is_ok() => Tail::Whole,
                true => Tail::Torn,
                false => Tail::Broken,
            };
        }
    }

    /// Closes the file and renames it to its final name, which is returned; an empty file is removed.
    fn finish(&mut self) -> Option<PathBuf> {
        self.flush();
        let (part, whole) = self.names.take()?;
        if self.written == 0 {
            let _ = std::fs::remove_file(&part);
            return None;
        }
        match std::fs::rename(&part, &whole) {
            Ok(()) => Some(whole),
            Err(error) => {
                self.error = self.error.take().or(Some(error.to_string()));
                Some(part)
            }
        }
    }
}

/// Returns two unused names in the folder: one for the file while it is written, and its final name.
fn free_name(folder: &Path, name: &str, zstd: bool) -> (PathBuf, PathBuf) {
    let ending = if zstd { compression::ENDING } else { "" };
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

/// Returns a time in the format of file names: `20261125T150000.123456789Z`.
pub(crate) fn name_of_time(time_ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(time_ns);
    let text = humantime::format_rfc3339_nanos(time).to_string();
    text.replace(['-', ':'], "")
}

/// Returns a time as text for users: RFC 3339, in UTC.
pub fn time_in_words(time_ns: u64) -> String {
    humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(time_ns)).to_string()
}

/// The settings that all dumps share.
#[derive(Debug)]
pub(crate) struct Dumps {
    pub ring: Arc<Ring>,
    pub target: Target,
    pub roll: Roll,
    /// True if files in a folder are compressed.
    pub zstd: bool,
    /// Description of the source of timestamps, for comments in dump files.
    pub times: String,
    /// Names of the ports; the index of a name is the number of its port.
    pub ports: Vec<String>,
    pub snap_bytes: u32,
}

impl Dumps {
    fn create(&self, name: &str, comment: &str) -> io::Result<Output> {
        let (ports, snap_bytes) = (&self.ports, self.snap_bytes);
        Output::create(&self.target, name, ports, snap_bytes, comment, self.zstd)
    }
}

/// The message that begins a dump.
#[derive(Debug)]
pub(crate) struct Begin {
    /// Index of the trigger that begins the dump.
    pub trigger: usize,
    pub fired_ns: u64,
    pub from_ns: u64,
    pub until_ns: u64,
    /// Time at which the trigger's previous dump ends, nanoseconds since 1970; 0 if there is none.
    pub ended_ns: u64,
    pub cause: String,
}

/// A dump that is being written.
#[derive(Debug)]
pub(crate) struct Dump {
    pub trigger: usize,
    reader: Reader,
    output: Option<Output>,
    /// Counts of the dump's packets; `result` contains all other data of the dump's status.
    tally: Arc<Tally>,
    result: Dumped,
    /// True if no file could be created for the dump, and the time of the next attempt has not come.
    waits: bool,
    cause: String,
    from_ns: u64,
    until_ns: u64,
    /// True if the dump cannot be extended, as its trigger has begun another dump.
    has_end: bool,
    flows: HashMap<Flow, u64>,
    /// True once the dump has written a packet to the output that it shares with other dumps.
    has_said: bool,
    /// Number of bytes of the dump's earlier files; `missed_before` and `lost_before` count the packets missed and lost before
    /// the current file began.
    bytes_before: u64,
    missed_before: u64,
    lost_before: u64,
}

impl Dump {
    /// Begins a dump for a trigger that has fired.
    pub(crate) fn begin(
        dumps: &Dumps,
        trigger: &Trigger,
        of_trigger: &Arc<Tally>,
        begin: Begin,
    ) -> Self {
        Self {
            trigger: begin.trigger,
            reader: dumps.ring.reader(Start::At(begin.from_ns)),
            output: None,
            tally: Tally::part_of(of_trigger),
            result: Dumped {
                trigger: trigger.name.clone(),
                fired_ns: begin.fired_ns,
                ..Dumped::default()
            },
            waits: false,
            cause: begin.cause,
            from_ns: begin.from_ns,
            until_ns: begin.until_ns,
            has_end: false,
            flows: HashMap::new(),
            has_said: false,
            bytes_before: 0,
            missed_before: 0,
            lost_before: 0,
        }
    }

    /// Ends the dump at `until_ns`, because its trigger has begun another dump.
    pub(crate) fn ends(&mut self, until_ns: u64) {
        if !self.has_end {
            (self.until_ns, self.has_end) = (until_ns, true);
        }
    }

    /// Extends the dump to `until_ns`, unless its trigger has begun another dump. Returns the dump's end time.
    pub(crate) fn goes_on(&mut self, until_ns: u64) -> u64 {
        if !self.has_end {
            self.until_ns = self.until_ns.max(until_ns);
        }
        self.until_ns
    }

    /// Writes up to `most` packets of the ring with times up to `until_ns`. Returns the number of packets that were
    /// examined.
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
            tally,
            result,
            waits,
            flows,
            cause,
            has_said,
            ..
        } = self;
        let (from_ns, fired_ns) = (self.from_ns, result.fired_ns);
        let mut is_full = false;
        let looked = reader.read(until_ns, most, |record| {
            if !trigger.keep.matches(record.frame, record.facts.wire_bytes) {
                return;
            }
            if is_cut_off(flows, trigger.cutoff_bytes, record) {
                result.cut_off += 1;
                return;
            }
            let comment = || {
                let name = &trigger.name;
                let (from, at) = (time_in_words(from_ns), time_in_words(fired_ns));
                let times = &dumps.times;
                format!("trigger {name}: {cause} at {at}; packets from {from} on; {times}")
            };
            if let Some(shared) = shared {
                // A comment at the dump's first packet tells the reader of a shared output which trigger has fired.
                let said = match std::mem::replace(has_said, true) {
                    false => comment(),
                    true => String::new(),
                };
                shared.put(record, &said, tally);
                return;
            }
            let make = || {
                let name = format!("{}-{}", trigger.name, name_of_time(record.facts.time_ns));
                dumps.create(&name, &comment())
            };
            if let Some(output) = opened(output, waits, tally, make) {
                output.put(record, "", tally);
                is_full |= dumps.roll.ends(output, record.facts.time_ns);
            }
        });
        self.result.missed = self.reader.missed();
        if is_full {
            self.end_file();
        }
        looked
    }

    /// Writes the buffered packets, so that readers of the file find them, and retries after a failure.
    pub(crate) fn flush(&mut self) {
        self.waits = false;
        if let Some(output) = &mut self.output {
            output.flush();
        }
    }

    fn end_file(&mut self) {
        let Some(mut output) = self.output.take() else {
            return;
        };
        // The packets are flushed first, because the final result states whether they were written.
        output.flush();
        let missed = self.result.missed - self.missed_before;
        let lost = self.tally.lost() - self.lost_before;
        let statistics = Statistics {
            received: output.packets + missed + lost,
            dropped_by_interface: 0,
            dropped_by_system: missed + lost,
        };
        let first_ns = output.first_ns.unwrap_or_default();
        pcapng::statistics(&mut output.pending, 0, first_ns, &statistics);
        let file = output.finish();
        self.bytes_before += output.written;
        self.missed_before += missed;
        self.lost_before += lost;
        if output.error.is_some() {
            self.result.error = output.error;
        }
        if file.is_some() {
            self.result.file = file;
        }
    }

    /// Ends the dump, and returns its result.
    pub(crate) fn end(mut self) -> Dumped {
        self.end_file();
        self.so_far()
    }

    /// Returns the result of the dump up to now.
    pub(crate) fn so_far(&self) -> Dumped {
        let mut result = self.result.clone();
        (result.packets, result.lost) = (self.tally.written(), self.tally.lost());
        result.error = self.tally.error().or(result.error);
        result.file_bytes = self.bytes_before;
        if let Some(output) = &self.output {
            result.file_bytes += output.written;
            result.file = output.names.as_ref().map(|(part, _)| part.clone());
            result.error = output.error.clone().or(result.error);
        }
        result
    }
}

/// Counts the bytes of a packet's flow. Returns true if the flow had reached the cutoff before the packet.
#[inline]
fn is_cut_off(flows: &mut HashMap<Flow, u64>, cutoff: Option<u64>, record: &Record<'_>) -> bool {
    if let Some(cutoff) = cutoff
        && let Some(flow) = Flow::of(record)
        && (flows.len() < MOST_FLOWS || flows.contains_key(&flow))
    {
        let bytes = flows.entry(flow).or_insert(0);
        *bytes += u64::from(record.facts.wire_bytes);
        return *bytes - u64::from(record.facts.wire_bytes) >= cutoff;
    }
    false
}

/// Returns the output for a packet; `make` creates the output if there is none. If `make` fails, or has failed and the
/// time of the next attempt has not come, the packet counts as lost, and the result is none.
#[inline]
fn opened<'a>(
    output: &'a mut Option<Output>,
    waits: &mut bool,
    tally: &Tally,
    make: impl FnOnce() -> io::Result<Output>,
) -> Option<&'a mut Output> {
    if output.is_none() && *waits {
        let why = tally.error().unwrap_or_default();
        tally.lose(1, &why);
        return None;
    }
    if output.is_none() {
        match make() {
            Ok(made) => *output = Some(made),
            Err(error) => {
                tally.lose(1, &error.to_string());
                *waits = true;
                return None;
            }
        }
    }
    output.as_mut()
}

/// The file that a query for captured packets writes. It gets its final name when it is complete; an incomplete file is
/// removed.
pub(crate) struct QueryOutput(Output, Arc<Tally>);

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
        // A pipe or a device is written directly.
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
            compression::is_wanted(path),
        )?;
        output.names = (!is_other).then(|| (part, path.to_path_buf()));
        Ok(Self(output, Arc::default()))
    }

    pub(crate) fn put(&mut self, record: &Record<'_>) {
        self.0.put(record, "", &self.1);
    }

    /// Returns the cause of a failed write; none if no write has failed.
    pub(crate) fn error(&self) -> Option<&str> {
        self.0.error()
    }

    /// Completes the file; returns its number of packets and its size in bytes.
    pub(crate) fn finish(mut self) -> Result<(u64, u64), String> {
        self.0.flush();
        if let Some(error) = self.0.error.take() {
            return Err(error);
        }
        self.0.finish();
        match self.0.error.take() {
            Some(error) => Err(error),
            None => Ok((self.0.packets, self.0.written)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::pcapng::{Block, read};
    use crate::record::Facts;

    /// A fake disk with a given number of free bytes.
    #[derive(Debug, Default)]
    struct Disk {
        bytes: Vec<u8>,
        at: usize,
        room: usize,
        cannot_cut: bool,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.room.saturating_sub(self.at));
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.resize(self.bytes.len().max(self.at + fits), 0);
            self.bytes[self.at..self.at + fits].copy_from_slice(&bytes[..fits]);
            self.at += fits;
            Ok(fits)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Disk {
        fn cut(&mut self, bytes: u64) -> io::Result<()> {
            if self.cannot_cut {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.truncate(bytes as usize);
            self.at = bytes as usize;
            Ok(())
        }

        fn let_go(&self) {}
    }

    fn output(room: usize, is_regular: bool, zstd: bool) -> Output<Disk> {
        let disk = Disk {
            bytes: b"before".to_vec(),
            at: 6,
            room,
            ..Disk::default()
        };
        let mut head = Vec::new();
        pcapng::section(&mut head, &Section::ours("a test"));
        pcapng::interface(&mut head, "a", 0);
        let packer = zstd.then(|| Packer::new().unwrap());
        Output::new(disk, None, is_regular, 6, head, packer)
    }

    fn put(output: &mut Output<Disk>, packets: u64, of: &Arc<Tally>) {
        let frame = [7; 1000];
        for _ in 0..packets {
            let facts = Facts {
                wire_bytes: 1000,
                ..Facts::default()
            };
            output.put(
                &Record {
                    facts,
                    frame: &frame,
                },
                "",
                of,
            );
        }
    }

    /// Returns the number of packets in a file on the fake disk, which must consist of complete blocks and nothing
    /// else.
    fn packets(disk: &Disk, is_packed: bool) -> u64 {
        let (before, mut rest) = disk.bytes.split_at(6);
        assert_eq!(before, b"before");
        let unpacked;
        if is_packed {
            let mut to = vec![0; 64 << 20];
            let size = compression::Unpacker::new()
                .unwrap()
                .unpack(rest, &mut to)
                .unwrap();
            to.truncate(size);
            unpacked = to;
            rest = &unpacked;
        }
        let (mut found, mut blocks) = (0, 0);
        while let Some((block, size)) = read(rest) {
            found += u64::from(matches!(block, Block::Packet(_)));
            blocks += 1;
            rest = &rest[size..];
        }
        assert!(rest.is_empty(), "{} bytes at the end", rest.len());
        assert!(blocks >= 2 || (blocks, found) == (0, 0), "no head");
        found
    }

    #[test]
    fn packets_count_as_written_when_the_file_has_their_bytes() {
        for zstd in [false, true] {
            let all = Arc::new(Tally::default());
            let [one, other] = [(), ()].map(|()| Tally::part_of(&all));
            // At first the disk has no space, not even for the file header.
            let mut output = output(10, true, zstd);
            put(&mut output, 3, &one);
            assert_eq!((one.written(), one.lost()), (0, 0));
            output.flush();
            assert_eq!((one.written(), one.lost()), (0, 3));
            assert!(output.failing().is_some() && output.error().is_some());
            assert_eq!(output.file.bytes, b"before");
            // Then the disk has space for everything, and after that for half of a chunk.
            output.file.room = usize::MAX;
            put(&mut output, 2500, &one);
            put(&mut output, 10, &other);
            output.flush();
            assert_eq!((one.written(), one.lost()), (2500, 3));
            assert_eq!((other.written(), other.lost()), (10, 0));
            assert!(output.failing().is_none());
            output.file.room = output.file.bytes.len() + 20;
            put(&mut output, 5, &one);
            put(&mut output, 6, &other);
            output.flush();
            assert_eq!((one.written(), one.lost()), (2500, 8));
            assert_eq!((other.written(), other.lost()), (10, 6));
            assert_eq!(packets(&output.file, zstd), 2510);
            output.file.room = usize::MAX;
            put(&mut output, 1, &other);
            output.finish();
            assert_eq!(packets(&output.file, zstd), 2511);
            assert_eq!((output.packets, output.lost), (2511, 14));
            assert_eq!((all.written(), all.lost()), (2511, 14));
            assert_eq!(6 + output.written, output.file.bytes.len() as u64);
        }
    }

    #[test]
    fn no_packet_is_written_after_an_incomplete_block() {
        let tally = Arc::new(Tally::default());
        let mut torn = output(2000, true, false);
        torn.file.cannot_cut = true;
        put(&mut torn, 5, &tally);
        torn.flush();
        torn.file.room = usize::MAX;
        let before = torn.file.bytes.clone();
        put(&mut torn, 5, &tally);
        torn.flush();
        assert!(torn.file.bytes == before);
        assert!(
            torn.failing().unwrap().contains("no storage space"),
            "{torn:?}"
        );
        torn.file.cannot_cut = false;
        put(&mut torn, 5, &tally);
        torn.flush();
        assert_eq!(packets(&torn.file, false), 5);
        assert_eq!((tally.written(), tally.lost()), (5, 10));
        // An incomplete block cannot be truncated in a pipe, so nothing may be written after it.
        let tally = Arc::new(Tally::default());
        let mut pipe = output(2000, false, false);
        put(&mut pipe, 5, &tally);
        pipe.flush();
        pipe.file.room = usize::MAX;
        put(&mut pipe, 5, &tally);
        pipe.flush();
        assert_eq!((tally.written(), tally.lost()), (0, 10));
        assert_eq!(pipe.file.bytes.len(), 2000);
    }
}
