//! The metrics that a gate compares: the time of a run, or a number in the JSON that the command prints or writes.

use std::path::PathBuf;
use std::str::FromStr;

/// A metric that a gate compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Time from the start of the command to its exit, s.
    Time,
    /// A number in the last JSON object on standard output, by its path: `latency_ns.p50_ns`.
    Printed(String),
    /// A number in a JSON file that the command writes.
    InFile {
        /// Path of the JSON file.
        file: PathBuf,
        /// Path of the number in the file, such as `latency_ns.p50_ns`.
        path: String,
    },
}

impl FromStr for Metric {
    type Err = String;

    /// Parses `time`, `FILE.json:path` or the path of a number. Indices of lists may be in brackets, as in
    /// `streams[1].lost`.
    fn from_str(text: &str) -> Result<Self, String> {
        let path_of = |text: &str| text.replace('[', ".").replace(']', "");
        match text.rsplit_once(':') {
            _ if text.trim().is_empty() => Err(
                "a metric is `time`, a path such as latency_ns.p50_ns, or FILE.json:path"
                    .to_owned(),
            ),
            Some((file, path)) if file.is_empty() || path.is_empty() => {
                Err(format!("`{text}` is not a metric: expected FILE.json:path"))
            }
            Some((file, path)) => Ok(Self::InFile {
                file: file.into(),
                path: path_of(path),
            }),
            None if text == "time" => Ok(Self::Time),
            None => Ok(Self::Printed(path_of(text))),
        }
    }
}

impl std::fmt::Display for Metric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Time => f.write_str("time"),
            Self::Printed(path) => f.write_str(path),
            Self::InFile { file, path } => write!(f, "{}:{path}", file.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_gate_metric_is_a_time_or_a_json_path() {
        assert_eq!("time".parse(), Ok(Metric::Time));
        let printed: Metric = "streams[1].lost".parse().unwrap();
        assert_eq!(printed, Metric::Printed("streams.1.lost".to_owned()));
        let file: Metric = "out/a.json:x.y".parse().unwrap();
        assert_eq!(file.to_string(), "out/a.json:x.y");
        for wrong in ["", " ", ":x", "a.json:"] {
            assert!(wrong.parse::<Metric>().is_err(), "{wrong:?}");
        }
    }
}
