//! Other programs that measure noise, for comparison: `oslat` and `cyclictest` of Debian's rt-tests.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A program whose results are compared with taut's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// oslat, a busy loop that measures noise in the same way as taut.
    Oslat,
    /// cyclictest, which sets timers and measures the latency of the wakeups.
    Cyclictest,
}

/// The results of a program, summed over all time slices in which the program ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PeerFigures {
    /// The name of the program, such as `oslat`.
    pub program: String,
    /// The quantity that the program measures.
    pub measures: String,
    /// The time for which the program ran, s.
    pub seconds: f64,
    /// The number of interruptions longer than 10 µs, per second; `None` if wakeup latencies are measured.
    pub over_10_us_per_second: Option<f64>,
    /// The mean wakeup latency, ns; `None` if interruptions are measured.
    pub mean_ns: Option<f64>,
    /// The longest wakeup latency or interruption, ns.
    pub longest_ns: f64,
}

/// Returns the programs that measure noise, in the order of reports.
#[must_use]
pub fn peers() -> [Peer; 2] {
    [Peer::Oslat, Peer::Cyclictest]
}

impl Peer {
    /// Returns the program's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Oslat => "oslat",
            Self::Cyclictest => "cyclictest",
        }
    }

    fn arguments(
        self,
        cpu: usize,
        system_cpu: usize,
        seconds: u64,
        fifo: Option<u8>,
    ) -> Vec<String> {
        let text = match self {
            Self::Oslat => format!("-q -c {cpu} -C {system_cpu} -D {seconds}"),
            Self::Cyclictest => format!("-q -t 1 -a {cpu} -i 1000 -D {seconds} --default-system"),
        };
        let mut words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        if let Some(priority) = fifo {
            words.extend([
                if self == Self::Oslat { "-f" } else { "-p" }.to_owned(),
                priority.to_string(),
            ]);
        }
        words
    }

    /// Runs the program on `cpu` for whole seconds, with its main thread on `system_cpu`, and its results in `folder`.
    ///
    /// # Errors
    /// One line: the missing requirement, or the program's own error message.
    pub fn run(
        self,
        cpu: usize,
        system_cpu: usize,
        seconds: u64,
        fifo: Option<u8>,
        folder: &Path,
    ) -> Result<PeerFigures, String> {
        const GRACE: Duration = Duration::from_secs(30);
        let program = self.program();
        if !crate::is_installed(program) {
            return Err(format!(
                "`{program}` is not on the search path; get it with: apt-get install rt-tests"
            ));
        }
        super::super::enter_partition(cpu);
        let file = folder.join(program);
        let errors = folder.join("errors");
        let said =
            std::fs::File::create(&errors).map_err(|e| format!("{}: {e}", errors.display()))?;
        let mut child = Command::new(program)
            .args(self.arguments(cpu, system_cpu, seconds, fifo))
            .arg(format!("--json={}", file.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()
            .map_err(|e| format!("cannot run `{program}`: {e}"))?;
        let deadline = Instant::now() + Duration::from_secs(seconds) + GRACE;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("`{program}` did not end"));
                }
            }
        };
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let read = if status.success() {
            self.read(&text)
        } else {
            None
        };
        read.ok_or_else(|| failure(program, status, &errors))
    }

    /// Returns the figures in `text`, the results that the program wrote.
    fn read(self, text: &str) -> Option<PeerFigures> {
        let value: Value = serde_json::from_str(text).ok()?;
        let thread = &value["thread"]["0"];
        let longest_ns = thread["max"].as_f64()? * 1e3;
        let (measures, seconds, over, mean_ns) = match self {
            Self::Oslat => {
                let seconds = thread["duration"].as_f64()?;
                let over = thread["histogram"]
                    .as_object()?
                    .iter()
                    .filter_map(|(us, count)| {
                        // The name of a histogram bucket is its upper limit, µs.
                        us.parse::<u64>()
                            .ok()
                            .filter(|us| *us > 10)
                            .and(count.as_f64())
                    });
                (
                    "busy loop",
                    seconds,
                    Some(over.sum::<f64>() / seconds),
                    None,
                )
            }
            Self::Cyclictest => {
                let mean_ns = thread["avg"].as_f64()? * 1e3;
                let seconds = thread["cycles"].as_f64()? / 1e3;
                ("wake-up by a timer", seconds, None, Some(mean_ns))
            }
        };
        Some(PeerFigures {
            program: self.program().to_owned(),
            measures: measures.to_owned(),
            seconds,
            over_10_us_per_second: over,
            mean_ns,
            longest_ns,
        })
    }
}

/// Returns the reason why a program has no results, from the file with its error messages.
fn failure(program: &str, status: ExitStatus, errors: &Path) -> String {
    let said = std::fs::read_to_string(errors).unwrap_or_default();
    // The last line may be a label without a text, so the last line with a text is used.
    let lines = said
        .lines()
        .map(|line| line.trim_start_matches("ERROR:").trim());
    let line = lines.rev().find(|line| !line.is_empty());
    let line = line.unwrap_or("no results");
    let otherwise = match crate::permissions::is_root() {
        true => "",
        false => "; it may need root: sudo taut tune noise ... --compare",
    };
    format!("`{program}` failed ({status}): {line}{otherwise}")
}

impl PeerFigures {
    /// Returns the sum of these results and the results of another time slice of the same program.
    #[must_use]
    pub fn with(self, other: &Self) -> Self {
        let seconds = self.seconds + other.seconds;
        let weighed = |a: Option<f64>, b: Option<f64>| {
            Some((a? * self.seconds + b? * other.seconds) / seconds.max(1e-9))
        };
        Self {
            over_10_us_per_second: weighed(self.over_10_us_per_second, other.over_10_us_per_second),
            mean_ns: weighed(self.mean_ns, other.mean_ns),
            longest_ns: self.longest_ns.max(other.longest_ns),
            seconds,
            ..self
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn oslat_and_cyclictest_results_are_parsed_and_merged() {
        let oslat = r#"{"thread": {"0": {"cpu": 1, "min": 1, "avg": 1.04, "max": 24, "duration": 2.0,
            "histogram": {"1": 28645724, "10": 5, "11": 14, "32": 6}}}}"#;
        let figures = Peer::Oslat.read(oslat).unwrap();
        assert_eq!(
            (figures.over_10_us_per_second, figures.longest_ns),
            (Some(10.0), 24_000.0)
        );
        let cyclictest = r#"{"thread": {"0": {"histogram": {}, "cycles": 1000, "min": 34, "max": 90, "avg": 20.0}}}"#;
        let figures = Peer::Cyclictest.read(cyclictest).unwrap();
        let other = PeerFigures {
            mean_ns: Some(40_000.0),
            longest_ns: 1e6,
            ..figures.clone()
        };
        let both = figures.with(&other);
        assert_eq!(
            (both.mean_ns, both.longest_ns, both.seconds),
            (Some(30_000.0), 1e6, 2.0)
        );
        assert_eq!(Peer::Oslat.read("{}"), None);
        assert_eq!(Peer::Oslat.read("x"), None);
    }
}
