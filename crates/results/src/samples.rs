//! `samples.parquet`: one row per packet sent, written and read in blocks of bounded size.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use serde::Deserialize;

use super::ResultsError;

/// One packet of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Sample {
    /// Its number in the order of sending.
    pub sequence: u64,
    /// When it was due, ns after the measurement began.
    pub intended_send_ns: i64,
    /// How late it was sent, ns; held at 4.29 s.
    pub slip_ns: u32,
    /// Round trip from the send stamp, ns, held at 4.29 s; `None` for a packet that was lost or refused.
    pub latency_ns: Option<u32>,
}

const SCHEMA: &str = "message samples {
    required int64 sequence (integer(64, false));
    required int64 intended_send_ns;
    required int32 slip_ns (integer(32, false));
    optional int32 latency_ns (integer(32, false));
}";

/// Rows per row group: 24 bytes each in memory, so 6 MiB.
const BLOCK: usize = 1 << 18;

/// Writes samples; holds one block.
pub struct SampleWriter {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    block: Vec<Sample>,
}

impl SampleWriter {
    /// Creates the file.
    pub fn create(path: &Path) -> Result<SampleWriter, ResultsError> {
        let out = File::create(path).map_err(ResultsError::io(path))?;
        let damaged = damaged(path);
        let schema = Arc::new(parse_message_type(SCHEMA).map_err(&damaged)?);
        // Sequences and due times grow evenly: as differences they take almost no room.
        let evenly = |name: &str| ColumnPath::from(name.to_owned());
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_column_encoding(evenly("sequence"), Encoding::DELTA_BINARY_PACKED)
            .set_column_encoding(evenly("intended_send_ns"), Encoding::DELTA_BINARY_PACKED)
            .set_encoding(Encoding::DELTA_BINARY_PACKED)
            .build();
        let file =
            SerializedFileWriter::new(out, schema, Arc::new(properties)).map_err(&damaged)?;
        Ok(SampleWriter {
            path: path.to_owned(),
            file,
            block: Vec::with_capacity(BLOCK),
        })
    }

    /// Adds a packet, in the order of sending.
    pub fn push(&mut self, sample: Sample) -> Result<(), ResultsError> {
        self.block.push(sample);
        if self.block.len() == BLOCK {
            self.write_block()
        } else {
            Ok(())
        }
    }

    /// Writes what is left and the file's footer.
    pub fn finish(mut self) -> Result<(), ResultsError> {
        self.write_block()?;
        self.file.close().map_err(not_written(&self.path))?;
        Ok(())
    }

    fn write_block(&mut self) -> Result<(), ResultsError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let sequences: Vec<i64> = block.iter().map(|sample| sample.sequence as i64).collect();
        let due: Vec<i64> = block.iter().map(|sample| sample.intended_send_ns).collect();
        let slips: Vec<i32> = block.iter().map(|sample| sample.slip_ns as i32).collect();
        let latencies: Vec<i32> = block
            .iter()
            .filter_map(|sample| Some(sample.latency_ns? as i32))
            .collect();
        let present: Vec<i16> = block
            .iter()
            .map(|sample| i16::from(sample.latency_ns.is_some()))
            .collect();
        let mut write = || -> parquet::errors::Result<()> {
            let mut group = self.file.next_row_group()?;
            let mut index = 0;
            while let Some(mut column) = group.next_column()? {
                match index {
                    0 => column
                        .typed::<Int64Type>()
                        .write_batch(&sequences, None, None)?,
                    1 => column.typed::<Int64Type>().write_batch(&due, None, None)?,
                    2 => column
                        .typed::<Int32Type>()
                        .write_batch(&slips, None, None)?,
                    _ => {
                        column
                            .typed::<Int32Type>()
                            .write_batch(&latencies, Some(&present), None)?
                    }
                };
                column.close()?;
                index += 1;
            }
            group.close()?;
            Ok(())
        };
        write().map_err(not_written(&self.path))?;
        self.block = block;
        self.block.clear();
        Ok(())
    }
}

/// Whether a Parquet file has nothing but numbers: no column of text, and no words beside the columns.
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

/// Reads samples block by block; holds one row group, as large as its writer made it.
pub struct SampleReader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    next_group: usize,
}

impl SampleReader {
    /// Opens the file and checks that the columns are there.
    pub fn open(path: &Path) -> Result<SampleReader, ResultsError> {
        let input = File::open(path).map_err(ResultsError::io(path))?;
        let file = SerializedFileReader::new(input).map_err(damaged(path))?;
        let found = file.metadata().file_metadata().schema_descr();
        let names: Vec<&str> = found.columns().iter().map(|column| column.name()).collect();
        let wanted = ["sequence", "intended_send_ns", "slip_ns", "latency_ns"];
        // Those of `taut generate --out` have more behind them.
        if !names.starts_with(&wanted) {
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

    /// Packets in the file.
    pub fn rows(&self) -> u64 {
        u64::try_from(self.file.metadata().file_metadata().num_rows()).unwrap_or(0)
    }

    /// The next block in the order of sending; `None` at the end.
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
        let (slips, _) = read_column(group.get_column_reader(2)?, short, rows)?;
        let (latencies, present) = read_column(group.get_column_reader(3)?, short, rows)?;
        let mut latencies = latencies.into_iter();
        let mut samples = Vec::with_capacity(rows);
        for (((sequence, due), slip), present) in sequences.iter().zip(due).zip(slips).zip(present)
        {
            let latency_ns = if present == 1 {
                latencies.next().map(|ns| ns as u32)
            } else {
                None
            };
            samples.push(Sample {
                sequence: *sequence as u64,
                intended_send_ns: due,
                slip_ns: slip as u32,
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

/// All values of a column, and for each row whether it has one (empty for a required column).
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

fn not_written(path: &Path) -> impl FnOnce(parquet::errors::ParquetError) -> ResultsError {
    let refused = ResultsError::io(path);
    move |error| {
        refused(match error {
            // What the file system said, without the library's wrapping.
            parquet::errors::ParquetError::External(source) => std::io::Error::other(source),
            other => std::io::Error::other(other),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample(sequence: u64) -> Sample {
        Sample {
            sequence,
            intended_send_ns: sequence as i64 * 10_000 - 5,
            slip_ns: (sequence % 77) as u32,
            latency_ns: (sequence % 1000 != 3).then_some(u32::MAX - sequence as u32),
        }
    }

    #[test]
    fn samples_come_back_as_written_across_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        let count = BLOCK as u64 * 2 + 17;
        let mut writer = SampleWriter::create(&path).unwrap();
        (0..count).for_each(|sequence| writer.push(sample(sequence)).unwrap());
        writer.finish().unwrap();

        let mut reader = SampleReader::open(&path).unwrap();
        assert_eq!(reader.rows(), count);
        let mut next = 0;
        while let Some(block) = reader.next_block().unwrap() {
            assert!(block.len() <= BLOCK);
            for read in block {
                assert_eq!(read, sample(next));
                next += 1;
            }
        }
        assert_eq!(next, count);
    }

    #[test]
    fn a_file_without_samples_is_empty_not_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        SampleWriter::create(&path).unwrap().finish().unwrap();
        assert_eq!(
            SampleReader::open(&path).unwrap().next_block().unwrap(),
            None
        );
    }

    #[test]
    fn a_cut_file_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("samples.parquet");
        let mut writer = SampleWriter::create(&path).unwrap();
        (0..100).for_each(|sequence| writer.push(sample(sequence)).unwrap());
        writer.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        let error = SampleReader::open(&path).err().unwrap().to_string();
        assert!(
            error.contains("samples.parquet") && error.contains("damaged"),
            "{error}"
        );
    }
}
