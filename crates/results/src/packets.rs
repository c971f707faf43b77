//! Writes one row per packet, as Parquet or CSV, while packets arrive. A row has the columns that
//! [`super::SampleReader`] reads, how often the packet arrived, and whether it was reordered, refused or corrupted.
//!
//! A file gets its final name when it is complete. If the disk is full, the file is truncated after its last complete
//! block of rows and closed properly, and also gets its final name. It is then valid, and its number of rows shows
//! which packets it contains.

use super::error::ResultsError;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, Int32Type, Int64Type};
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataWriter};
use parquet::file::metadata::{RowGroupMetaData, RowGroupMetaDataPtr};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::{ColumnPath, SchemaDescriptor};
use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use taut_traffic::Sampled;

/// One packet with all recorded values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketSample {
    /// Index of the packet in sending order.
    pub sequence: u64,
    /// Intended send time, ns after the measurement began.
    pub intended_send_ns: i64,
    /// Send delay, ns; at most 4.29 s is recorded.
    pub send_delay_ns: u32,
    /// Latency of the packet's first intact arrival, counted from the send timestamp, ns; at most 4.29 s is recorded.
    /// `None` without an intact arrival.
    pub latency_ns: Option<u32>,
    /// Number of intact arrivals, at most 255.
    pub arrivals: u8,
    /// True if a packet that was sent later came back earlier.
    pub reordered: bool,
    /// True if the packet was not sent, because the port's ring was full.
    pub refused: bool,
    /// True if the packet came back, but every arrival was corrupted.
    pub corrupt: bool,
    /// Frame size of the packet, frame check sequence included; `None` if unknown.
    pub frame_bytes: Option<u16>,
}

impl PacketSample {
    /// Returns the sample of packet `sequence` from the generator's record, with clock ticks converted to nanoseconds.
    /// The frame size is unknown.
    pub fn of(sequence: u64, packet: &Sampled, ns_per_tick: f64) -> Self {
        let ns = |ticks: u32| (f64::from(ticks) * ns_per_tick) as u32;
        Self {
            sequence,
            intended_send_ns: (packet.due_ticks as f64 * ns_per_tick) as i64,
            send_delay_ns: ns(packet.send_delay_ticks),
            latency_ns: packet.latency_ticks().map(ns),
            arrivals: packet.arrivals,
            reordered: packet.reordered,
            refused: packet.refused,
            corrupt: packet.corrupt,
            frame_bytes: None,
        }
    }
}

const SCHEMA: &str = "message samples {
    required int64 sequence (integer(64, false));
    required int64 intended_send_ns;
    required int32 send_delay_ns (integer(32, false));
    optional int32 latency_ns (integer(32, false));
    required int32 arrivals (integer(8, false));
    required boolean reordered;
    required boolean refused;
    required boolean corrupt;
    optional int32 frame_bytes (integer(16, false));
}";

const CSV_HEADER: &str = "sequence,intended_send_ns,send_delay_ns,latency_ns,arrivals,reordered,refused,corrupt,frame_bytes\n";

/// Number of rows in a block, which takes 8 MiB in memory. A block is a row group of Parquet, or the rows of CSV that
/// are written together.
const BLOCK: usize = 1 << 18;

/// File format of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketFormat {
    /// Parquet: compressed columns.
    Parquet,
    /// CSV: text.
    Csv,
}

impl PacketFormat {
    fn ending(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
        }
    }
}

enum Sink {
    Parquet(Box<ParquetSink>),
    Csv(CsvSink),
}

/// Writer of `samples.parquet` or `samples.csv`; it buffers one block.
pub struct PacketWriter {
    partial: PathBuf,
    whole: PathBuf,
    sink: Sink,
}

impl PacketWriter {
    /// Creates the sample file in `dir`; its name ends with `.partial` until the file is complete.
    pub fn create(dir: &Path, format: PacketFormat) -> Result<Self, ResultsError> {
        let whole = dir.join(format!("samples.{}", format.ending()));
        let partial = dir.join(format!("samples.{}.partial", format.ending()));
        let file = File::create(&partial).map_err(ResultsError::io(&partial))?;
        let sink = match format {
            PacketFormat::Parquet => {
                ParquetSink::create(file, &partial).map(|sink| Sink::Parquet(Box::new(sink)))?
            }
            PacketFormat::Csv => Sink::Csv(CsvSink::create(file, &partial)?),
        };
        Ok(Self {
            partial,
            whole,
            sink,
        })
    }

    /// Adds a packet, in the order of sending. After an error, only [`PacketWriter::finish`] may follow.
    pub fn push(&mut self, sample: &PacketSample) -> Result<(), ResultsError> {
        let written = match &mut self.sink {
            Sink::Parquet(sink) => sink.push(sample),
            Sink::Csv(sink) => sink.push(sample),
        };
        written.map_err(ResultsError::io(&self.whole))
    }

    /// Writes the remaining rows, closes the file and renames it to its final name; returns the number of rows. If
    /// `after_error` is true, or writing fails, the file ends with the last complete block; without a complete block,
    /// the file is removed.
    pub fn finish(self, after_error: bool) -> Result<u64, ResultsError> {
        match self.end(after_error) {
            (_, Some(why)) => Err(why),
            (rows, None) => Ok(rows),
        }
    }

    /// Finishes the file as [`PacketWriter::finish`] does, but returns the number of rows even if an error occurs.
    pub fn end(mut self, after_error: bool) -> (u64, Option<ResultsError>) {
        let failed = |whole: &Path, why: Option<std::io::Error>| why.map(ResultsError::io(whole));
        let mut why = None;
        if !after_error {
            let written = match &mut self.sink {
                Sink::Parquet(sink) => sink.close(),
                Sink::Csv(sink) => sink.write_block(),
            };
            why = written.err();
        }
        if after_error || why.is_some() {
            let saved = match &mut self.sink {
                Sink::Parquet(sink) => sink.salvage(),
                Sink::Csv(sink) => sink.salvage(),
            };
            if saved.is_err() || self.written() == 0 {
                // An unreadable file is useless, and takes space on a full disk.
                let _ = fs::remove_file(&self.partial);
                return (0, failed(&self.whole, why.or(saved.err())));
            }
        }
        match fs::rename(&self.partial, &self.whole) {
            Ok(()) => (self.written(), failed(&self.whole, why)),
            Err(e) => (0, failed(&self.whole, why.or(Some(e)))),
        }
    }

    /// Returns the number of rows in complete blocks.
    pub fn written(&self) -> u64 {
        match &self.sink {
            Sink::Parquet(sink) => sink.rows,
            Sink::Csv(sink) => sink.rows,
        }
    }
}

struct ParquetSink {
    /// The writer; `None` after an error, or when the file is closed.
    file: Option<SerializedFileWriter<File>>,
    /// A second handle of the file, for truncation.
    raw: File,
    /// Metadata of each complete row group, and the file offset at which the row group ends.
    groups: Vec<(RowGroupMetaDataPtr, u64)>,
    rows: u64,
    sequences: Vec<i64>,
    due: Vec<i64>,
    send_delays: Vec<i32>,
    latencies: Vec<i32>,
    present: Vec<i16>,
    arrivals: Vec<i32>,
    reordered: Vec<bool>,
    refused: Vec<bool>,
    corrupt: Vec<bool>,
    frame_bytes: Vec<i32>,
    sized: Vec<i16>,
}

fn of_parquet(error: parquet::errors::ParquetError) -> std::io::Error {
    match error {
        // The caller gets the error of the system, without the library's wrapper.
        parquet::errors::ParquetError::External(source) => match source.downcast() {
            Ok(io) => *io,
            Err(other) => std::io::Error::other(other),
        },
        other => std::io::Error::other(other),
    }
}

impl ParquetSink {
    fn create(out: File, path: &Path) -> Result<Self, ResultsError> {
        let raw = out.try_clone().map_err(ResultsError::io(path))?;
        let schema =
            parse_message_type(SCHEMA).map_err(|e| ResultsError::io(path)(of_parquet(e)))?;
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            // Page indices follow the row groups in the file, so a truncated file would lack them.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_encoding(Encoding::DELTA_BINARY_PACKED);
        for flag in ["reordered", "refused", "corrupt"] {
            properties =
                properties.set_column_encoding(ColumnPath::from(flag.to_owned()), Encoding::PLAIN);
        }
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties.build()))
            .map_err(|e| ResultsError::io(path)(of_parquet(e)))?;
        Ok(Self {
            file: Some(file),
            raw,
            groups: Vec::new(),
            rows: 0,
            sequences: Vec::with_capacity(BLOCK),
            due: Vec::with_capacity(BLOCK),
            send_delays: Vec::with_capacity(BLOCK),
            latencies: Vec::with_capacity(BLOCK),
            present: Vec::with_capacity(BLOCK),
            arrivals: Vec::with_capacity(BLOCK),
            reordered: Vec::with_capacity(BLOCK),
            refused: Vec::with_capacity(BLOCK),
            corrupt: Vec::with_capacity(BLOCK),
            frame_bytes: Vec::with_capacity(BLOCK),
            sized: Vec::with_capacity(BLOCK),
        })
    }

    fn push(&mut self, sample: &PacketSample) -> std::io::Result<()> {
        self.sequences.push(sample.sequence as i64);
        self.due.push(sample.intended_send_ns);
        self.send_delays.push(sample.send_delay_ns as i32);
        if let Some(latency_ns) = sample.latency_ns {
            self.latencies.push(latency_ns as i32);
        }
        self.present.push(i16::from(sample.latency_ns.is_some()));
        self.arrivals.push(i32::from(sample.arrivals));
        self.reordered.push(sample.reordered);
        self.refused.push(sample.refused);
        self.corrupt.push(sample.corrupt);
        self.frame_bytes.extend(sample.frame_bytes.map(i32::from));
        self.sized.push(i16::from(sample.frame_bytes.is_some()));
        if self.sequences.len() == BLOCK {
            self.write_group().map_err(of_parquet)?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> parquet::errors::Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| !self.sequences.is_empty()) else {
            return Ok(());
        };
        let mut group = file.next_row_group()?;
        let mut index = 0;
        while let Some(mut column) = group.next_column()? {
            match index {
                0 | 1 => {
                    let values = [&self.sequences, &self.due][index];
                    column
                        .typed::<Int64Type>()
                        .write_batch(values, None, None)?
                }
                3 => column.typed::<Int32Type>().write_batch(
                    &self.latencies,
                    Some(&self.present),
                    None,
                )?,
                8 => column.typed::<Int32Type>().write_batch(
                    &self.frame_bytes,
                    Some(&self.sized),
                    None,
                )?,
                2 | 4 => {
                    let values = if index == 2 {
                        &self.send_delays
                    } else {
                        &self.arrivals
                    };
                    column
                        .typed::<Int32Type>()
                        .write_batch(values, None, None)?
                }
                flag => {
                    let values = [&self.reordered, &self.refused, &self.corrupt][(flag - 5).min(2)];
                    column.typed::<BoolType>().write_batch(values, None, None)?
                }
            };
            column.close()?;
            index += 1;
        }
        let group = group.close()?;
        file.flush()?;
        self.groups.push((group, file.bytes_written() as u64));
        self.rows += self.sequences.len() as u64;
        self.sequences.clear();
        self.due.clear();
        self.send_delays.clear();
        self.latencies.clear();
        self.present.clear();
        self.arrivals.clear();
        self.reordered.clear();
        self.refused.clear();
        self.corrupt.clear();
        self.frame_bytes.clear();
        self.sized.clear();
        Ok(())
    }

    fn close(&mut self) -> std::io::Result<()> {
        self.write_group().map_err(of_parquet)?;
        match self.file.take() {
            Some(file) => file.close().map(drop).map_err(of_parquet),
            None => Ok(()),
        }
    }

    /// Truncates the file after its last complete row group, and writes the footer there. If there is no space for the
    /// footer either, the file is truncated after the previous row group, and so on.
    fn salvage(&mut self) -> std::io::Result<()> {
        if let Some(file) = self.file.take() {
            // The writer's buffer must not be written after the footer.
            std::mem::forget(file);
        }
        let schema = parse_message_type(SCHEMA).map_err(of_parquet)?;
        let description = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        self.rows = 0;
        let mut outcome = Ok(());
        while let Some((_, whole_bytes)) = self.groups.last() {
            let groups = self.groups.iter().map(|(group, _)| (**group).clone());
            let groups: Vec<RowGroupMetaData> = groups.collect();
            let rows = groups.iter().map(RowGroupMetaData::num_rows).sum::<i64>();
            let file = FileMetaData::new(1, rows, None, None, Arc::clone(&description), None);
            let metadata = ParquetMetaData::new(file, groups);
            let mut footer = Vec::new();
            ParquetMetaDataWriter::new(&mut footer, &metadata)
                .finish()
                .map_err(of_parquet)?;
            self.raw.set_len(*whole_bytes)?;
            self.raw.seek(SeekFrom::Start(*whole_bytes))?;
            outcome = self.raw.write_all(&footer);
            if outcome.is_ok() {
                self.rows = u64::try_from(rows).unwrap_or(0);
                break;
            }
            self.groups.pop();
        }
        outcome
    }
}

struct CsvSink {
    out: BufWriter<File>,
    block: String,
    block_rows: u64,
    rows: u64,
    whole_bytes: u64,
}

impl CsvSink {
    fn create(file: File, path: &Path) -> Result<Self, ResultsError> {
        let mut out = BufWriter::new(file);
        out.write_all(CSV_HEADER.as_bytes())
            .and_then(|()| out.flush())
            .map_err(ResultsError::io(path))?;
        Ok(Self {
            out,
            block: String::new(),
            block_rows: 0,
            rows: 0,
            whole_bytes: CSV_HEADER.len() as u64,
        })
    }

    fn push(&mut self, s: &PacketSample) -> std::io::Result<()> {
        use std::fmt::Write as _;
        let latency = s.latency_ns.map(|ns| ns.to_string()).unwrap_or_default();
        let size = s.frame_bytes.map(|it| it.to_string()).unwrap_or_default();
        // Writing to memory cannot fail.
        let _ = writeln!(
            self.block,
            "{},{},{},{latency},{},{},{},{},{size}",
            s.sequence,
            s.intended_send_ns,
            s.send_delay_ns,
            s.arrivals,
            s.reordered,
            s.refused,
            s.corrupt
        );
        self.block_rows += 1;
        if self.block_rows == BLOCK as u64 {
            self.write_block()?;
        }
        Ok(())
    }

    fn write_block(&mut self) -> std::io::Result<()> {
        // The block is larger than the writer's buffer, so the writer passes the block straight to the file.
        self.out.write_all(self.block.as_bytes())?;
        self.out.flush()?;
        self.whole_bytes += self.block.len() as u64;
        self.rows += self.block_rows;
        self.block.clear();
        self.block_rows = 0;
        Ok(())
    }

    fn salvage(&mut self) -> std::io::Result<()> {
        self.out.get_ref().set_len(self.whole_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::SampleReader;
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    fn sample(sequence: u64) -> PacketSample {
        let fate = sequence % 5;
        PacketSample {
            sequence,
            intended_send_ns: sequence as i64 * 100,
            send_delay_ns: (sequence % 77) as u32,
            latency_ns: (fate > 1).then_some(900 + sequence as u32),
            arrivals: fate.saturating_sub(1) as u8,
            reordered: fate == 3,
            refused: fate == 0,
            corrupt: fate == 1,
            frame_bytes: sequence.is_multiple_of(2).then_some(64 + fate as u16),
        }
    }

    fn write(dir: &Path, format: PacketFormat, rows: u64) -> PacketWriter {
        let mut writer = PacketWriter::create(dir, format).unwrap();
        (0..rows).for_each(|sequence| writer.push(&sample(sequence)).unwrap());
        writer
    }

    fn check_parquet(path: &Path, rows: u64) {
        let mut reader = SampleReader::open(path).unwrap();
        assert_eq!(reader.rows(), rows);
        let mut next = 0;
        while let Some(block) = reader.next_block().unwrap() {
            for read in block {
                let want = sample(next);
                assert_eq!((read.sequence, read.latency_ns), (next, want.latency_ns));
                next += 1;
            }
        }
        assert_eq!(next, rows);
        let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        for (index, row) in file.get_row_iter(None).unwrap().take(1000).enumerate() {
            let text = row.unwrap().to_string();
            let want = sample(index as u64);
            let size = want
                .frame_bytes
                .map_or("null".to_owned(), |it| it.to_string());
            for part in [
                format!("frame_bytes: {size}"),
                format!("arrivals: {}", want.arrivals),
                format!("reordered: {}", want.reordered),
                format!("refused: {}", want.refused),
                format!("corrupt: {}", want.corrupt),
            ] {
                assert!(text.contains(&part), "{part} in {text}");
            }
        }
    }

    #[test]
    fn parquet_rows_of_several_blocks_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let rows = BLOCK as u64 + 17;
        let writer = write(dir.path(), PacketFormat::Parquet, rows);
        assert!(!dir.path().join("samples.parquet").exists());
        assert_eq!(writer.finish(false).unwrap(), rows);
        check_parquet(&dir.path().join("samples.parquet"), rows);
        assert!(!dir.path().join("samples.parquet.partial").exists());
    }

    #[test]
    fn an_interrupted_file_ends_with_its_last_complete_block() {
        for format in [PacketFormat::Parquet, PacketFormat::Csv] {
            let dir = tempfile::tempdir().unwrap();
            let writer = write(dir.path(), format, BLOCK as u64 * 2 + 100);
            assert_eq!(writer.finish(true).unwrap(), BLOCK as u64 * 2);
            let path = dir.path().join(format!("samples.{}", format.ending()));
            match format {
                PacketFormat::Parquet => check_parquet(&path, BLOCK as u64 * 2),
                PacketFormat::Csv => {
                    let text = fs::read_to_string(path).unwrap();
                    assert_eq!(text.lines().count(), BLOCK * 2 + 1);
                    assert!(text.ends_with('\n'));
                }
            }
        }
    }

    #[test]
    fn an_interruption_before_the_first_complete_block_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let writer = write(dir.path(), PacketFormat::Parquet, 100);
        assert_eq!(writer.finish(true).unwrap(), 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn csv_rows_list_each_packet_with_unknown_latency_blank() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), PacketFormat::Csv, 4)
            .finish(false)
            .unwrap();
        let text = fs::read_to_string(dir.path().join("samples.csv")).unwrap();
        let want = format!(
            "{CSV_HEADER}0,0,0,,0,false,true,false,64\n1,100,1,,0,false,false,true,\n\
             2,200,2,902,1,false,false,false,66\n3,300,3,903,2,true,false,false,\n"
        );
        assert_eq!(text, want);
    }
}
