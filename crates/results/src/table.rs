//! Parquet files of arbitrary tables: named columns of texts or numbers.

use super::error::ResultsError;
use super::whole_file::write_whole_with;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use parquet::{basic, errors::Result};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The cells of a column, top to bottom.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    /// A column of texts.
    Text(Vec<String>),
    /// A column of numbers; NaN marks a missing number.
    Number(Vec<f64>),
}

/// Writes a table atomically. All columns have the same length.
///
/// # Errors
/// The file system returns an error, or columns differ in length.
pub fn write_table(
    path: &Path,
    columns: &[(String, Cells)],
) -> std::result::Result<(), ResultsError> {
    write_whole_with(path, |out| {
        write(out, columns).map_err(std::io::Error::other)
    })
}

fn write(out: File, columns: &[(String, Cells)]) -> Result<()> {
    let fields: Result<Vec<_>> = columns
        .iter()
        .map(|(name, cells)| {
            let field = match cells {
                Cells::Text(_) => Type::primitive_type_builder(name, basic::Type::BYTE_ARRAY)
                    .with_logical_type(Some(basic::LogicalType::String)),
                Cells::Number(_) => Type::primitive_type_builder(name, basic::Type::DOUBLE),
            };
            field
                .with_repetition(basic::Repetition::REQUIRED)
                .build()
                .map(Arc::new)
        })
        .collect();
    let schema = Type::group_type_builder("table")
        .with_fields(fields?)
        .build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .build();
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
    let mut group = file.next_row_group()?;
    for (_, cells) in columns {
        let Some(mut column) = group.next_column()? else {
            break;
        };
        match cells {
            Cells::Text(texts) => {
                let texts: Vec<ByteArray> = texts
                    .iter()
                    .map(|text| ByteArray::from(text.as_str()))
                    .collect();
                column
                    .typed::<ByteArrayType>()
                    .write_batch(&texts, None, None)?
            }
            Cells::Number(numbers) => column
                .typed::<DoubleType>()
                .write_batch(numbers, None, None)?,
        };
        column.close()?;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    #[test]
    fn a_written_table_reads_back_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let columns = [
            (
                "name".to_owned(),
                Cells::Text(vec!["a".into(), "b, c".into()]),
            ),
            ("value".to_owned(), Cells::Number(vec![1.5, -2.0])),
        ];
        write_table(&path, &columns).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<(String, f64)> = reader
            .get_row_iter(None)
            .unwrap()
            .map(|row| row.unwrap())
            .map(|row| {
                (
                    row.get_string(0).unwrap().clone(),
                    row.get_double(1).unwrap(),
                )
            })
            .collect();
        assert_eq!(rows, [("a".to_owned(), 1.5), ("b, c".to_owned(), -2.0)]);
    }

    #[test]
    fn columns_of_different_lengths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let columns = [
            ("a".to_owned(), Cells::Number(vec![1.0])),
            ("b".to_owned(), Cells::Number(vec![])),
        ];
        assert!(write_table(&path, &columns).is_err());
        assert!(!path.exists());
    }
}
