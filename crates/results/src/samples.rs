//! Reads `samples.parquet`: one row per packet sent, in blocks of bounded size. [`super::PacketWriter`] writes it.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde::Deserialize;

use super::error::ResultsError;

/// One packet of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Sample {
    /// Index of the packet in sending order.
    pub sequence: u64,
    /// Intended send time, ns after the measurement began.
    pub intended_send_ns: i64,
    /// Send delay, ns; at most 4.29 s is recorded. Files of taut 0.1 call it `slip_ns`.
    #[serde(alias = "slip_ns")]
    pub send_delay_ns: u32,
    /// Latency from the send timestamp, ns; at most 4.29 s is recorded. `None` for a packet that was lost or refused.
    pub latency_ns: Option<u32>,
}

/// Returns whether a Parquet file contains only numbers: no text columns and no text metadata.
pub fn is_only_numbers(file: File) -> bool {
    let Ok(file) = SerializedFileReader::new(file) else {
        return false;
    };
    let metadata = file.metadata().file_metadata();
    let has_text = metadata.schema_descr().columns().iter().any(|column| {
        let kind = column.physical_type();
        matches!(kind, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY)
    });
    !has_text && metadata.key_value_metadata().is_none_or(Vec::is_empty)
}

/// Reader of samples, block by block. A block is a row group of the file, and the reader buffers one block.
pub struct SampleReader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    next_group: usize,
}

impl SampleReader {
    /// Opens the file and checks that it has the required columns.
    pub fn open(path: &Path) -> Result<SampleReader, ResultsError> {
        let input = File::open(path).map_err(ResultsError::io(path))?;
        Self::of(input, path)
    }

    /// Reads a sample file that is already open, as [`SampleReader::open`] does; errors name `path`.
    pub fn of(input: File, path: &Path) -> Result<SampleReader, ResultsError> {
        let file = SerializedFileReader::new(input).map_err(damaged(path))?;
        let found = file.metadata().file_metadata().schema_descr();
        let names: Vec<&str> = found.columns().iter().map(|column| column.name()).collect();
        let columns = |delay| ["sequence", "intended_send_ns", delay, "latency_ns"];
        let (wanted, former) = (columns("send_delay_ns"), columns("slip_ns"));
        // Files of `taut generate --out` have further columns.
        if !names.starts_with(&wanted) && !names.starts_with(&former) {
            let reason = format!("columns {names:?} instead of {wanted:?}");
            return Err(ResultsError::Samples {
                path: path.to_owned(),
                reason,
            });
        }
        Ok(SampleReader {
            path: path.to_owned(),
            file,
            next_group: 0,
        })
    }

    /// Returns the number of packets in the file.
    pub fn rows(&self) -> u64 {
        u64::try_from(self.file.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// Returns the next block, in the order of sending; `None` at the end of the file.
    pub fn next_block(&mut self) -> Result<Option<Vec<Sample>>, ResultsError> {
        if self.next_group == self.file.num_row_groups() {
            return Ok(None);
        }
        let block = self
            .read_group(self.next_group)
            .map_err(damaged(&self.path))?;
        self.next_group += 1;
        Ok(Some(block))
    }

    fn read_group(&self, index: usize) -> parquet::errors::Result<Vec<Sample>> {
        let group = self.file.get_row_group(index)?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        let (sequences, _) = read_column(group.get_column_reader(0)?, long, rows)?;
        let (due, _) = read_column(group.get_column_reader(1)?, long, rows)?;
        let (send_delays, _) = read_column(group.get_column_reader(2)?, short, rows)?;
        let (latencies, present) = read_column(group.get_column_reader(3)?, short, rows)?;
        let mut latencies = latencies.into_iter();
        let mut samples = Vec::with_capacity(rows);
        for (((sequence, due), send_delay), present) in
            sequences.iter().zip(due).zip(send_delays).zip(present)
        {
            let latency_ns = if present == 1 {
                latencies.next().map(|ns| ns as u32)
            } else {
                None
            };
            samples.push(Sample {
                sequence: *sequence as u64,
                intended_send_ns: due,
                send_delay_ns: send_delay as u32,
                latency_ns,
            });
        }
        if samples.len() == rows {
            Ok(samples)
        } else {
            Err(parquet::errors::ParquetError::EOF(
                "columns of unequal length".to_owned(),
            ))
        }
    }
}

type Typed<T> = fn(ColumnReader) -> Option<ColumnReaderImpl<T>>;

fn long(reader: ColumnReader) -> Option<ColumnReaderImpl<Int64Type>> {
    if let ColumnReader::Int64ColumnReader(typed) = reader {
        Some(typed)
    } else {
        None
    }
}

fn short(reader: ColumnReader) -> Option<ColumnReaderImpl<Int32Type>> {
    if let ColumnReader::Int32ColumnReader(typed) = reader {
        Some(typed)
    } else {
        None
    }
}

/// Returns the values of a column, and a list that states for each row whether it has a value (1) or not (0). The list
/// is empty for a required column, in which every row has a value.
fn read_column<T: DataType>(
    reader: ColumnReader,
    typed: Typed<T>,
    rows: usize,
) -> parquet::errors::Result<(Vec<T::T>, Vec<i16>)> {
    let mut column = typed(reader).ok_or_else(|| {
        parquet::errors::ParquetError::General("a column of another type than expected".to_owned())
    })?;
    let mut values = Vec::with_capacity(rows);
    let mut present = Vec::with_capacity(rows);
    let mut read = 0;
    while read < rows {
        let (records, _, _) =
            column.read_records(rows - read, Some(&mut present), None, &mut values)?;
        if records == 0 {
            break;
        }
        read += records;
    }
    Ok((values, present))
}

fn damaged(path: &Path) -> impl Fn(parquet::errors::ParquetError) -> ResultsError {
    let path = path.to_owned();
    move |error| ResultsError::Samples {
        path: path.clone(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    use crate::{PacketFormat, PacketSample, PacketWriter};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    fn write(dir: &Path, packets: u64) -> PathBuf {
        let mut writer = PacketWriter::create(dir, PacketFormat::Parquet).unwrap();
        for sequence in 0..packets {
            let sample = PacketSample {
                sequence,
                ..PacketSample::default()
            };
            writer.push(&sample).unwrap();
        }
        writer.finish(false).unwrap();
        dir.join("samples.parquet")
    }

    #[test]
    fn a_file_without_samples_is_not_reported_as_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 0);
        assert_eq!(
            SampleReader::open(&path).unwrap().next_block().unwrap(),
            None
        );
    }

    #[test]
    fn a_file_with_the_old_send_delay_column_parses() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        let schema = "message samples { required int64 sequence (integer(64, false)); required int64 intended_send_ns;
            required int32 slip_ns (integer(32, false)); optional int32 latency_ns (integer(32, false)); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = File::create(&path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for value in [7, 1_000] {
            let mut column = group.next_column().unwrap().unwrap();
            let typed = column.typed::<Int64Type>();
            typed.write_batch(&[value], None, None).unwrap();
            column.close().unwrap();
        }
        for (value, present) in [(30, None), (500, Some(&[1][..]))] {
            let mut column = group.next_column().unwrap().unwrap();
            let typed = column.typed::<Int32Type>();
            typed.write_batch(&[value], present, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let sample = Sample {
            sequence: 7,
            intended_send_ns: 1_000,
            send_delay_ns: 30,
            latency_ns: Some(500),
        };
        let mut reader = SampleReader::open(&path).unwrap();
        assert_eq!(reader.next_block().unwrap(), Some(vec![sample]));
    }

    #[test]
    fn the_error_for_a_truncated_file_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = write(dir.path(), 100);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = SampleReader::open(&path).err().unwrap().to_string();
        assert!(
            error.contains("samples.parquet") && error.contains("damaged"),
            "{error}"
        );
    }
}
