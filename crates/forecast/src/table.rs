//! Measured runs as a table of numbers, from any CSV file or from a results folder. An experiment's `metrics.csv` has a
//! row per run and metric (long format); it is converted to a row per run.

use crate::ForecastError;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use taut_model::model_file::Source;
use taut_results::{has, hex, open};

/// Names of the files that may contain the runs of a results folder; the first that exists is read.
const OF_A_FOLDER: [&str; 2] = ["runs.csv", "metrics.csv"];
/// Maximum size of a table, bytes.
const MOST_BYTES: u64 = 1 << 28;

/// A row of a table: numbers and texts, by the name of their column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Values that are numbers, by the name of their column.
    pub numbers: BTreeMap<String, f64>,
    /// Values that are not numbers, by the name of their column.
    pub texts: BTreeMap<String, String>,
}

/// A table of runs, with the files that they come from.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// One row for each run.
    pub rows: Vec<Row>,
    /// The files that the rows come from.
    pub sources: Vec<Source>,
}

impl Table {
    /// Reads CSV files and results folders into one table.
    ///
    /// # Errors
    /// There is no table, or it is damaged.
    pub fn read(paths: &[PathBuf]) -> Result<Self, ForecastError> {
        let mut all = Self::default();
        for path in paths {
            let (rows, source) = read_one(path)?;
            all.rows.extend(rows);
            all.sources.push(source);
        }
        Ok(all)
    }

    /// Removes all rows except those whose `column` equals `value`.
    ///
    /// # Errors
    /// No row has the value in the column.
    pub fn keep(&mut self, column: &str, value: &str) -> Result<(), ForecastError> {
        let number: Option<f64> = value.parse().ok();
        self.rows.retain(|row| {
            row.texts.get(column).is_some_and(|text| text == value)
                || (number.is_some() && row.numbers.get(column).copied() == number)
        });
        if self.rows.is_empty() {
            return Err(ForecastError::Wrong(format!(
                "no run has {column} = {value}"
            )));
        }
        Ok(())
    }

    /// Renames a column of the table.
    ///
    /// # Errors
    /// No row has the column `from`.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), ForecastError> {
        let mut found = false;
        for row in &mut self.rows {
            if let Some(value) = row.numbers.remove(from) {
                found = true;
                row.numbers.insert(to.to_owned(), value);
            }
        }
        if found {
            return Ok(());
        }
        Err(ForecastError::Wrong(format!(
            "no column \"{from}\" with numbers; there are {}",
            self.columns().join(", ")
        )))
    }

    /// Adds derived columns: `hand_overs`, the number of functions minus one, and `time_us`, the time per packet, from
    /// the rate `pps`. A row gets a column only if it has the value from which it is derived.
    pub fn derive(&mut self) {
        for row in &mut self.rows {
            if let Some(functions) = row.numbers.get("functions").copied() {
                row.numbers.insert("hand_overs".to_owned(), functions - 1.0);
            }
            if let Some(pps) = row.numbers.get("pps").copied().filter(|pps| *pps > 0.0) {
                row.numbers.entry("time_us".to_owned()).or_insert(1e6 / pps);
            }
        }
    }

    /// Returns the names of the columns that have a number in every row.
    pub fn columns(&self) -> Vec<String> {
        let Some(first) = self.rows.first() else {
            return Vec::new();
        };
        let everywhere =
            |name: &&String| self.rows.iter().all(|row| row.numbers.contains_key(*name));
        first.numbers.keys().filter(everywhere).cloned().collect()
    }
}

fn read_one(path: &Path) -> Result<(Vec<Row>, Source), ForecastError> {
    let (file, bytes) = read_bytes(path)?;
    let wrong = |why: String| ForecastError::Wrong(format!("{}: {why}", file.display()));
    let rows = rows_of(&bytes).map_err(|e| wrong(e.to_string()))?;
    if rows.is_empty() {
        return Err(wrong("the table has no runs".to_owned()));
    }
    let source = Source {
        name: file.display().to_string(),
        sha256: hex(&Sha256::digest(&bytes)),
        count: rows.len() as u64,
    };
    Ok((rows, source))
}

/// Reads a file, or the file of a folder that contains the runs. Returns its path and its bytes.
fn read_bytes(path: &Path) -> Result<(PathBuf, Vec<u8>), ForecastError> {
    let (file, opened) = match path.is_dir() {
        false => (path.to_owned(), fs::File::open(path)),
        true => {
            // The folder is untrusted input, so no file outside of it is read.
            let name = OF_A_FOLDER.iter().find(|name| has(path, name)).ok_or_else(|| {
                ForecastError::Wrong(format!(
                    "{}: no runs.csv or metrics.csv: expected a CSV file, the folder of taut bench costs, or that \
                    of an experiment after taut experiment show",
                    path.display()
                ))
            })?;
            let opened = open(path, name).map_err(|e| ForecastError::Wrong(e.to_string()))?;
            (path.join(name), Ok(opened))
        }
    };
    let failed = |source| ForecastError::File {
        path: file.clone(),
        source,
    };
    let mut bytes = Vec::new();
    let opened = opened.map_err(failed)?.take(MOST_BYTES + 1);
    { opened }.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(ForecastError::Wrong(format!(
            "{}: more than the {MOST_BYTES} bytes that a table may have",
            file.display()
        )));
    }
    Ok((file, bytes))
}

/// Returns the rows of a CSV file, one for each run.
fn rows_of(bytes: &[u8]) -> Result<Vec<Row>, csv::Error> {
    let mut reader = csv::Reader::from_reader(bytes);
    let head: Vec<String> = reader.headers()?.iter().map(str::to_owned).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record?;
        let mut row = Row::default();
        for (name, field) in head.iter().zip(record.iter()) {
            match field.trim().parse::<f64>() {
                Ok(number) if number.is_finite() => {
                    row.numbers.insert(name.clone(), number);
                }
                // A text cannot be fitted; this is reported when a fit uses its column.
                _ => {
                    row.texts.insert(name.clone(), field.to_owned());
                }
            }
        }
        rows.push(row);
    }
    let is_long = ["run", "metric", "value"]
        .iter()
        .all(|wanted| head.iter().any(|name| name == wanted));
    if is_long {
        rows = wide(rows);
    }
    Ok(rows)
}

/// Merges the metrics of each run into one row (wide format).
fn wide(long: Vec<Row>) -> Vec<Row> {
    let mut runs: BTreeMap<String, Row> = BTreeMap::new();
    for mut row in long {
        let (Some(run), Some(metric)) = (row.texts.remove("run"), row.texts.remove("metric"))
        else {
            continue;
        };
        let value = row.numbers.remove("value");
        let of_run = runs.entry(run).or_insert(row);
        if let Some(value) = value {
            of_run.numbers.insert(metric, value);
        }
    }
    runs.into_values().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn table(text: &str) -> Result<Table, ForecastError> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.csv"), text).unwrap();
        Table::read(&[folder.path().to_owned()])
    }

    #[test]
    fn long_tables_are_pivoted_and_wide_tables_stay_unchanged() {
        let long = "run,repetition,device,load,metric,value\nv1-r1,1,null,100,cycles,120\nv1-r1,1,null,100,pps,5\nv2-r1,1,pair,200,cycles,220\n";
        let mut found = table(long).unwrap();
        assert_eq!(found.rows.len(), 2);
        assert_eq!(found.rows[0].numbers["pps"], 5.0);
        assert_eq!(found.columns(), ["cycles", "load", "repetition"]);
        found.rename("load", "load_cycles").unwrap();
        found.keep("device", "pair").unwrap();
        assert_eq!(found.rows[0].numbers["load_cycles"], 200.0);
        let plain = table("bytes,time_us\n64,172.0\n1500,387.4\n").unwrap();
        assert_eq!((plain.rows.len(), plain.sources[0].sha256.len()), (2, 64));
    }

    #[test]
    fn invalid_tables_cause_a_one_line_error() {
        for (text, says) in [
            ("", "no runs"),
            ("a,b\n1\n", "metrics.csv"),
            ("a\n", "no runs"),
        ] {
            let error = table(text).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.lines().count() == 1,
                "{error}"
            );
        }
        let empty = tempfile::tempdir().unwrap();
        let error = Table::read(&[empty.path().to_owned()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("taut bench costs"), "{error}");
        let mut found = table("a,b\n1,x\n").unwrap();
        assert!(
            found
                .rename("c", "d")
                .unwrap_err()
                .to_string()
                .contains("there are a")
        );
        assert!(found.keep("b", "y").is_err());
    }
}
