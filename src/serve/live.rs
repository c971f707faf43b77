//! Running experiments and programs: an experiment is shown from the files in its folder, a forwarder or other program
//! from its metrics.

use crate::exit::Failure;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use taut_results::InsidePath;

/// Number of bytes that are read from the end of the list of runs.
const TAIL_BYTES: u64 = 1 << 20;
/// Maximum number of runs that are shown: the latest ones.
const MOST_RUNS: usize = 300;
/// Maximum number of bytes of an experiment's file that are read.
const MOST_FILE_BYTES: u64 = 1 << 20;
/// Maximum number of bytes of metrics that are read.
const MOST_METRICS_BYTES: u64 = 8 << 20;
/// The timeout of a program's reply with metrics.
const PATIENCE: Duration = Duration::from_millis(800);

/// Parses the address of a program's metrics, as the program prints it or the user enters it.
pub fn address(text: &str) -> Result<SocketAddr, Failure> {
    let bare = text.strip_prefix("http://").unwrap_or(text);
    let bare = bare.strip_suffix("/metrics").unwrap_or(bare);
    bare.parse().map_err(|_| {
        Failure::Input(format!(
            "--watch {text}: expected the address of a program's --metrics, such as 127.0.0.1:9100"
        ))
    })
}

/// Returns the progress of an experiment, its current runs, and the latest complete ones.
pub fn experiment(folder: &Path) -> Result<Value, String> {
    let state = super::index::read(folder, "state.json")?;
    let (runs, problem) = match latest_runs(folder) {
        Ok(runs) => (runs, None),
        Err(e) => (Vec::new(), Some(format!("runs.jsonl: {e}"))),
    };
    // If `runs` is a symbolic link, its files do not belong to the experiment.
    let is_own = InsidePath::new("runs").is_ok_and(|it| it.is_folder(folder));
    let names = is_own.then(|| fs::read_dir(folder.join("runs")));
    let names = names.into_iter().flatten().flatten();
    let names = names
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut making: Vec<String> = names
        .filter_map(|name| name.strip_suffix(".partial").map(str::to_owned))
        .collect();
    making.sort();
    Ok(json!({
        "stage": state["stage"], "done": state["done"], "planned": state["planned"],
        "failed": state["failed"], "making": making, "runs": runs, "shown": shown_metrics(folder),
        "problem": problem,
    }))
}

/// Returns the metrics that the tables and figures of the experiment show, in their order. The list is empty if the
/// experiment's file cannot be read.
fn shown_metrics(folder: &Path) -> Vec<String> {
    let text = InsidePath::new("experiment.toml")
        .ok()
        .and_then(|name| name.read(folder, MOST_FILE_BYTES).ok())
        .and_then(|text| String::from_utf8(text).ok())
        .unwrap_or_default();
    let file: toml::Table = toml::from_str(&text).unwrap_or_default();
    let mut shown = Vec::new();
    for (section, keys) in [
        ("table", &["metrics"][..]),
        ("figure", &["y", "value", "parts"][..]),
    ] {
        let all = file.get(section).and_then(toml::Value::as_array);
        for one in all.into_iter().flatten() {
            shown.extend(keys.iter().filter_map(|key| one.get(*key)).flat_map(texts));
        }
    }
    shown
}

/// Returns the texts in a TOML value: the text of a string, or the texts of the elements of an array.
fn texts(value: &toml::Value) -> Vec<String> {
    match value {
        toml::Value::String(text) => vec![text.clone()],
        toml::Value::Array(values) => values.iter().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}

/// Reads the last lines of the list of runs, except for an incomplete last line.
fn latest_runs(folder: &Path) -> io::Result<Vec<Value>> {
    let opened = InsidePath::new("runs.jsonl").map_err(io::Error::other)?;
    let mut file = match opened.open(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut tail)?;
    // The text after the last line end is empty or an incomplete line, and the first line may be incomplete.
    let mut lines: Vec<&[u8]> = tail.split(|byte| *byte == b'\n').collect();
    lines.pop();
    if from > 0 && !lines.is_empty() {
        lines.remove(0);
    }
    let first = lines.len().saturating_sub(MOST_RUNS);
    let runs = lines[first..].iter().map(|line| {
        let run: Value = serde_json::from_slice(line)?;
        Ok(
            json!({"id": run["id"], "warm_up": run["warm_up"], "seconds": run["seconds"],
            "variables": run["variables"], "metrics": run["metrics"]}),
        )
    });
    runs.collect()
}

/// Returns the current metrics of the program at the given address, as OpenMetrics.
pub fn metrics(address: SocketAddr) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut program = TcpStream::connect_timeout(&address, PATIENCE)?;
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::Error::from(ErrorKind::TimedOut)),
            false => Ok(left),
        }
    };
    program.set_write_timeout(Some(left()?))?;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n"
    );
    program.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 16 << 10];
    loop {
        program.set_read_timeout(Some(left()?))?;
        let read = match program.read(&mut part) {
            // A socket with a timeout reports it as `WouldBlock`.
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            read => read?,
        };
        if read == 0 {
            break;
        }
        answer.extend_from_slice(&part[..read]);
        if answer.len() as u64 > MOST_METRICS_BYTES {
            return Err(io::Error::other(
                "the reply is too long for metrics of taut",
            ));
        }
    }
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n");
    match head {
        Some(end) if answer.starts_with(b"HTTP/1.1 200 ") => Ok(answer.split_off(end + 4)),
        _ => Err(io::Error::other("the reply contains no metrics")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::TcpListener;
    use taut_live::metrics::Endpoint;

    #[test]
    fn metrics_addresses_parse_with_and_without_an_http_prefix() {
        for text in ["127.0.0.1:9100", "http://127.0.0.1:9100/metrics"] {
            assert_eq!(address(text).unwrap().to_string(), "127.0.0.1:9100");
        }
        for wrong in ["9100", "localhost:9100", "https://127.0.0.1:9100/metrics"] {
            let Err(Failure::Input(text)) = address(wrong) else {
                panic!("{wrong}")
            };
            assert!(text.starts_with(&format!("--watch {wrong}: ")), "{text}");
        }
    }

    #[test]
    fn an_unfinished_experiment_is_displayed_up_to_its_last_run() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert!(experiment(folder.path()).is_err());
        put(
            "state.json",
            r#"{"stage": "running", "done": 2, "planned": 4}"#,
        );
        let before = experiment(folder.path()).unwrap();
        assert_eq!(
            (&before["planned"], &before["runs"]),
            (&json!(4), &json!([]))
        );
        fs::create_dir_all(folder.path().join("runs/v1-r2.partial")).unwrap();
        fs::create_dir_all(folder.path().join("runs/v1-r1")).unwrap();
        let line = r#"{"id": "v1-r1", "seconds": 1.5, "variables": {"x": 1}, "metrics": {"a": 2}}"#;
        put("runs.jsonl", &format!("{line}\n{{\"id\": \"v1"));
        let now = experiment(folder.path()).unwrap();
        assert_eq!(now["making"], json!(["v1-r2"]));
        assert_eq!(now["runs"].as_array().unwrap().len(), 1, "{now}");
        assert_eq!(now["runs"][0]["metrics"]["a"], 2);
        assert_eq!(now["shown"], json!([]));
        put(
            "experiment.toml",
            "[[table]]\nmetrics = [\"b\", \"a\"]\n[[figure]]\nx = \"x\"\ny = \"c\"\n",
        );
        let now = experiment(folder.path()).unwrap();
        assert_eq!(now["shown"], json!(["b", "a", "c"]));
        // Only the latest of many runs are shown.
        put("runs.jsonl", &format!("{line}\n").repeat(20_000));
        let many = experiment(folder.path()).unwrap();
        assert_eq!(many["runs"].as_array().unwrap().len(), MOST_RUNS);
        put("runs.jsonl", "{\n");
        let broken = experiment(folder.path()).unwrap();
        assert!(
            broken["problem"]
                .as_str()
                .unwrap()
                .starts_with("runs.jsonl: "),
            "{broken}"
        );
    }

    #[test]
    fn metrics_are_read_from_endpoints_and_unresponsive_endpoints_time_out() {
        let endpoint = Endpoint::serve("127.0.0.1:0", || "x 1\n# EOF\n".to_string()).unwrap();
        assert_eq!(metrics(endpoint.address()).unwrap(), b"x 1\n# EOF\n");
        // Another program might get a free port before the test connects; no program listens at port 1.
        assert!(metrics("127.0.0.1:1".parse().unwrap()).is_err());
        // The system accepts the connection, but no program replies.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = metrics(silent.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
