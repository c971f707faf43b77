//! Selection of runs by the values of their variables.

use crate::build::BUILD;
use crate::error::ExperimentError;
use crate::folder::{Folder, IndexedRun, run_folder};
use crate::metrics;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use taut_measure::LatencyHistogram;
use taut_results::InsidePath;
use taut_settings::suggestion;

/// Maximum size of a histogram log, bytes: logs that this program writes are a hundred times smaller.
const MOST_LOG_BYTES: u64 = 16 << 20;

/// The counted runs of one experiment, or of two experiments that are overlaid.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    pub(crate) runs: Vec<IndexedRun>,
    /// Location of the files of each run: the results folder, and the run's folder relative to it.
    folders: Vec<(PathBuf, InsidePath)>,
    /// True if the runs belong to two experiments, distinguished by the variable [`SIDE`].
    pub(crate) overlaid: bool,
}

/// Name of the variable whose value is the experiment, A or B, to which a run belongs. No file can define a variable of
/// this name.
pub(crate) const SIDE: &str = "A or B";

/// Runs that share the values of some variables.
#[derive(Debug)]
pub(crate) struct Group {
    /// The shared values, in the order of the variables by which the runs are grouped.
    pub(crate) of: Vec<Value>,
    /// Indices of the runs in the group.
    pub(crate) members: Vec<usize>,
}

impl Runs {
    pub(crate) fn load(folder: &Folder) -> Result<Self, ExperimentError> {
        let mut runs = folder.index()?;
        runs.retain(|run| !run.warm_up);
        // The runs are sorted, so that results do not depend on the order in which the runs were made.
        runs.sort_by_key(|run| (run.variant, run.repetition));
        Ok(Self {
            folders: runs
                .iter()
                .map(|run| Ok((folder.path().to_owned(), run_folder(&run.id)?)))
                .collect::<Result<_, ExperimentError>>()?,
            runs,
            overlaid: false,
        })
    }

    /// Merges the runs of two experiments; the runs of each combination are next to each other.
    pub(crate) fn overlay(a: &Self, b: &Self) -> Self {
        let mut places = std::collections::HashMap::new();
        let mut all = Vec::new();
        for (side, runs) in [("A", a), ("B", b)] {
            for (run, folder) in runs.runs.iter().zip(&runs.folders) {
                let next = places.len();
                let place = *places.entry(key_of(&run.variables)).or_insert(next);
                let mut run = run.clone();
                run.id = format!("{side}/{}", run.id);
                run.variables.insert(SIDE.to_owned(), Value::from(side));
                all.push((place, side, run, folder.clone()));
            }
        }
        all.sort_by_key(|(place, side, run, _)| (*place, *side, run.repetition));
        let (runs, folders) = all
            .into_iter()
            .map(|(_, _, run, folder)| (run, folder))
            .unzip();
        Self {
            runs,
            folders,
            overlaid: true,
        }
    }

    /// Returns the runs by one of the two builds of an experiment with `--against`: `head` or `base`.
    pub(crate) fn of_build(&self, build: &str) -> Self {
        let is_other = |run: &&IndexedRun| run.variables.get(BUILD).is_none_or(|it| it != build);
        let others = self.runs.iter().filter(is_other);
        let others = others.map(|run| run.id.clone()).collect();
        let mut runs = self.clone();
        runs.without(&others);
        runs
    }

    /// Removes the runs with the names in `ids`.
    pub(crate) fn without(&mut self, ids: &BTreeSet<String>) {
        let kept: Vec<bool> = self.runs.iter().map(|run| !ids.contains(&run.id)).collect();
        let mut of_run = kept.iter();
        self.runs.retain(|_| *of_run.next().unwrap_or(&true));
        let mut of_folder = kept.iter();
        self.folders.retain(|_| *of_folder.next().unwrap_or(&true));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Groups the runs by the values of the variables `by`, in the order of the combinations.
    pub(crate) fn groups(&self, by: &[String]) -> Vec<Group> {
        self.groups_where(by, |_| true)
    }

    pub(crate) fn groups_where(
        &self,
        by: &[String],
        wanted: impl Fn(&IndexedRun) -> bool,
    ) -> Vec<Group> {
        let mut places = std::collections::HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| wanted(run)) {
            let of: Vec<Value> = by
                .iter()
                .map(|name| run.variables.get(name).cloned().unwrap_or_default())
                .collect();
            let key = serde_json::to_string(&of).unwrap_or_default();
            let place = *places.entry(key).or_insert_with(|| {
                groups.push(Group {
                    of,
                    members: Vec::new(),
                });
                groups.len() - 1
            });
            groups[place].members.push(index);
        }
        groups
    }

    pub(crate) fn ids(&self, group: &Group) -> Vec<String> {
        group
            .members
            .iter()
            .map(|index| self.runs[*index].id.clone())
            .collect()
    }

    /// Returns the values of a metric in all runs that have it.
    pub(crate) fn values<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = f64> + 'a {
        self.runs.iter().filter_map(move |run| number(run, metric))
    }

    /// Returns the values of a metric, or of a variable, in a group.
    pub(crate) fn values_of(&self, group: &Group, metric: &str) -> Vec<f64> {
        group
            .members
            .iter()
            .filter_map(|index| number(&self.runs[*index], metric))
            .collect()
    }

    /// Returns the message that a metric does not exist, with a suggestion for a similar name.
    pub(crate) fn no_metric(&self, metric: &str) -> String {
        let known: BTreeSet<&str> = self
            .runs
            .iter()
            .flat_map(|run| run.metrics.keys())
            .map(String::as_str)
            .collect();
        format!(
            "no run has the metric `{metric}`{}",
            suggestion(metric, known)
        )
    }
}

/// Returns a key for the values of variables. The key is independent of the order of the variables.
pub(crate) fn key_of(variables: &crate::variables::Values) -> String {
    let sorted: std::collections::BTreeMap<_, _> = variables.iter().collect();
    serde_json::to_string(&sorted).unwrap_or_default()
}

/// Returns the value of a metric, or of a numeric variable, in a run.
pub(crate) fn number(run: &IndexedRun, name: &str) -> Option<f64> {
    metrics::find(&run.metrics, name)
        .or_else(|| run.variables.get(name).and_then(Value::as_f64))
        .or_else(|| {
            run.variables
                .get(name)
                .and_then(Value::as_str)
                .and_then(as_number)
        })
        .filter(|value| value.is_finite())
}

/// Parses a text such as `100k`, `1.5M` or `2e6` as a number.
fn as_number(text: &str) -> Option<f64> {
    let text = text.trim();
    let (digits, factor) = match text.chars().last()? {
        'k' => (&text[..text.len() - 1], 1e3),
        'M' => (&text[..text.len() - 1], 1e6),
        'G' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    digits.parse::<f64>().ok().map(|value| value * factor)
}

/// Returns the latencies of all packets in a group, merged from the histogram logs of its runs. The memory is
/// independent of the number of packets and runs.
pub(crate) fn latencies(
    runs: &Runs,
    group: &Group,
    samples: &str,
) -> Result<LatencyHistogram, String> {
    let mut all = LatencyHistogram::new();
    for index in &group.members {
        let run = &runs.runs[*index];
        let (results, folder) = &runs.folders[*index];
        let logs = logs_of(results, folder, samples).map_err(|e| format!("run {}: {e}", run.id))?;
        if logs.is_empty() {
            return Err(format!("run {} has no {samples}/latency.hlog", run.id));
        }
        for log in logs {
            let wrong =
                |e: &dyn std::fmt::Display| format!("{}: {e}", log.in_folder(results).display());
            let text = log.read(results, MOST_LOG_BYTES).map_err(|e| wrong(&e))?;
            let read = LatencyHistogram::read_hlog(&text).map_err(|e| wrong(&e))?;
            all.merge(&read);
        }
    }
    Ok(all)
}

/// Returns two columns of the CSV file `file` of each run in a group, from any node of the run that wrote the file.
///
/// # Errors
/// A run has no such file, or the file lacks a column or is no CSV file.
pub(crate) fn rows(
    runs: &Runs,
    group: &Group,
    file: &str,
    columns: [&str; 2],
) -> Result<Vec<(f64, f64)>, String> {
    let mut all = Vec::new();
    for index in &group.members {
        let (results, folder) = &runs.folders[*index];
        let end = format!("/{file}");
        let files = folder.files(results).map_err(|e| e.to_string())?;
        let Some(found) = files.iter().find(|path| path.as_str().ends_with(&end)) else {
            return Err(format!("run {} has no {file}", runs.runs[*index].id));
        };
        let wrong =
            |e: &dyn std::fmt::Display| format!("{}: {e}", found.in_folder(results).display());
        let text = found.read(results, MOST_LOG_BYTES).map_err(|e| wrong(&e))?;
        all.extend(columns_of(text.as_ref(), columns).map_err(|e| wrong(&e))?);
    }
    Ok(all)
}

/// Returns two columns of a CSV file with a header line; rows without a number in both columns are skipped.
fn columns_of(text: &[u8], columns: [&str; 2]) -> Result<Vec<(f64, f64)>, String> {
    let mut reader = csv::Reader::from_reader(text);
    let head = reader.headers().map_err(|e| e.to_string())?;
    let place = |column: &str| {
        let found = head.iter().position(|name| name == column);
        found.ok_or_else(|| format!("no column {column}"))
    };
    let (x, y) = (place(columns[0])?, place(columns[1])?);
    let mut points = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let number = |at: usize| record.get(at)?.trim().parse::<f64>().ok();
        points.extend(number(x).zip(number(y)));
    }
    Ok(points)
}

/// Returns the paths of the histogram logs that all nodes of a run have written. The logs are in the folder `samples`
/// of each node, or else in folders below it.
fn logs_of(results: &Path, run: &InsidePath, samples: &str) -> Result<Vec<InsidePath>, String> {
    let told = |e: &dyn std::fmt::Display| e.to_string();
    let name = InsidePath::new("latency.hlog").map_err(|e| told(&e))?;
    let samples = InsidePath::new(samples).map_err(|e| told(&e))?;
    let nodes = std::fs::read_dir(run.in_folder(results));
    let mut logs = Vec::new();
    for node in nodes.into_iter().flatten().flatten() {
        // Only folders contain samples, and a link does not count as a folder.
        let Ok(node) = InsidePath::of(Path::new(&node.file_name())) else {
            continue;
        };
        if !results.join(run.as_str()).join(node.as_str()).is_dir() {
            continue;
        }
        let folder = run
            .join(&node)
            .and_then(|node| node.join(&samples))
            .map_err(|e| told(&e))?;
        let found = folder.files(results).map_err(|e| told(&e))?;
        let direct = folder.join(&name).map_err(|e| told(&e))?;
        if found.contains(&direct) {
            logs.push(direct);
        } else {
            let end = format!("/{name}");
            logs.extend(
                found
                    .into_iter()
                    .filter(|file| file.as_str().ends_with(&end)),
            );
        }
    }
    logs.sort();
    Ok(logs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn points_are_read_from_named_columns_of_a_csv_file() {
        let text = b"latency_us,due_s,other\n7.5,0.1,x\n-,0.2,x\n9,0.3,x\n";
        let points = columns_of(text, ["due_s", "latency_us"]).unwrap();
        assert_eq!(points, [(0.1, 7.5), (0.3, 9.0)]);
        let missing = columns_of(text, ["due_s", "size"]).unwrap_err();
        assert_eq!(missing, "no column size");
    }

    #[test]
    fn samples_in_a_folder_hide_samples_in_its_subfolders() {
        let run = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let folder = run.path().join("v1").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("latency.hlog"), "").unwrap();
            folder.join("latency.hlog")
        };
        // The latencies inside the device are in a folder below that of the round-trip latencies.
        let all = [
            "gen/latency/inside",
            "gen/latency",
            "gen/demo/runs/a/1",
            "gen/demo/runs/a/2",
        ];
        let [inside, direct, first, second] = all.map(put);
        let logs = |samples: &str| {
            let found = logs_of(run.path(), &InsidePath::new("v1").unwrap(), samples).unwrap();
            let paths = found.iter().map(|log| log.in_folder(run.path()));
            paths.collect::<Vec<_>>()
        };
        assert_eq!(logs("latency"), [direct]);
        assert_eq!(logs("latency/inside"), [inside]);
        assert_eq!(logs("demo"), [first, second]);
        assert!(logs("nothing").is_empty());
        // A link on the path is reported, not followed.
        std::os::unix::fs::symlink("/", run.path().join("v1/gen/root")).unwrap();
        let link = logs_of(run.path(), &InsidePath::new("v1").unwrap(), "root").unwrap_err();
        assert!(link.contains("is a link"), "{link}");
    }

    #[test]
    fn rates_with_suffixes_such_as_100k_are_parsed_as_numbers() {
        assert_eq!(as_number("100k"), Some(100_000.0));
        assert_eq!(as_number("1.5M"), Some(1.5e6));
        assert_eq!(as_number("7"), Some(7.0));
        assert_eq!(as_number("fast"), None);
        assert_eq!(as_number(""), None);
    }
}
