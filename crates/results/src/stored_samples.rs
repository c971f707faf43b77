//! The samples in a folder of `--out`, read back packet by packet, from Parquet or CSV.

use crate::error::ResultsError;
use crate::folder::open_optional;
use crate::samples::{Sample, SampleReader};
use std::path::Path;

/// Passes every packet of `samples.parquet`, or of `samples.csv` if the former does not exist, to `each` in the order
/// of sending. Returns false if neither file exists. The files are in the subfolder `below` of `dir`, or in `dir`
/// itself if `below` is empty; links are not followed.
///
/// # Errors
/// The file cannot be read, or is damaged. In the latter case, the callback has received the packets before the damage.
pub fn each_kept_sample(
    dir: &Path,
    below: &str,
    mut each: impl FnMut(&Sample),
) -> Result<bool, ResultsError> {
    let name = |file: &str| match below {
        "" => file.to_owned(),
        below => format!("{below}/{file}"),
    };
    if let Some((file, path)) = open_optional(dir, &name("samples.parquet"))? {
        let mut reader = SampleReader::of(file, &path)?;
        while let Some(block) = reader.next_block()? {
            block.iter().for_each(&mut each);
        }
        return Ok(true);
    }
    let Some((file, path)) = open_optional(dir, &name("samples.csv"))? else {
        return Ok(false);
    };
    for sample in csv::Reader::from_reader(file).deserialize() {
        each(&sample.map_err(|e| ResultsError::Samples {
            path: path.clone(),
            reason: e.to_string(),
        })?);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{PacketFormat, PacketSample, PacketWriter};

    fn kept(dir: &Path) -> Result<Vec<Sample>, ResultsError> {
        let mut all = Vec::new();
        each_kept_sample(dir, "", |sample| all.push(*sample)).map(|_| all)
    }

    #[test]
    fn csv_and_parquet_files_contain_the_same_packets() {
        let read = [PacketFormat::Parquet, PacketFormat::Csv].map(|format| {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = PacketWriter::create(dir.path(), format).unwrap();
            for sequence in 0..10 {
                let sample = PacketSample {
                    sequence,
                    intended_send_ns: sequence as i64 * 100,
                    send_delay_ns: 7,
                    latency_ns: (sequence != 3).then_some(1_000),
                    arrivals: 1,
                    reordered: false,
                    refused: false,
                    corrupt: false,
                    frame_bytes: Some(64),
                };
                writer.push(&sample).unwrap();
            }
            writer.finish(false).unwrap();
            kept(dir.path()).unwrap()
        });
        assert_eq!(read[0], read[1]);
        assert_eq!((read[0].len(), read[0][3].latency_ns), (10, None));
        assert_eq!(read[0][4].latency_ns, Some(1_000));
    }

    #[test]
    fn a_table_with_the_old_send_delay_column_parses() {
        let dir = tempfile::tempdir().unwrap();
        let text = "sequence,intended_send_ns,slip_ns,latency_ns\n0,0,30,500\n";
        std::fs::write(dir.path().join("samples.csv"), text).unwrap();
        assert_eq!(kept(dir.path()).unwrap()[0].send_delay_ns, 30);
    }

    #[test]
    fn missing_files_yield_no_samples_and_errors_name_damaged_lines() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!each_kept_sample(dir.path(), "", |_| ()).unwrap());
        std::fs::write(
            dir.path().join("samples.csv"),
            "sequence,intended_send_ns,send_delay_ns,latency_ns\n0,0,0,5\nx,1\n",
        )
        .unwrap();
        let error = kept(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("samples.csv") && error.contains("line: 3"),
            "{error}"
        );
    }
}
