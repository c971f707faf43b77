#![allow(clippy::unwrap_used)]
use super::*;

/// Commands in virtual time: each run takes as many seconds as the value of its first metric.
struct Virtual {
    random: Rng,
    /// The head's values as multiples of the base's.
    ratios: Vec<f64>,
    noise: f64,
    now: f64,
    runs: u64,
    /// Number of runs after which the user interrupts the gate.
    stops_after: u64,
    /// Number of runs after which the head fails.
    fails_after: u64,
}

impl Virtual {
    fn new(ratios: &[f64]) -> Self {
        Self {
            random: Rng::with_seed(5),
            ratios: ratios.to_vec(),
            noise: 0.01,
            now: 0.0,
            runs: 0,
            stops_after: u64::MAX,
            fails_after: u64::MAX,
        }
    }
}

impl Runner for Virtual {
    fn run(&mut self, which: Which) -> Result<Vec<f64>, RunError> {
        self.runs += 1;
        if self.runs > self.stops_after {
            return Err(RunError::Stopped);
        }
        if self.runs > self.fails_after && which == Which::Head {
            return Err(RunError::Failed {
                reason: "exit code 3".to_owned(),
                printed: vec!["no <such> file".to_owned(), "giving up".to_owned()],
            });
        }
        let noise = 1.0 + self.noise * (self.random.f64() - 0.5);
        self.now += noise;
        let ratio = |ratio: &f64| match which {
            Which::Base => noise,
            Which::Head => noise * ratio,
        };
        Ok(self.ratios.iter().map(ratio).collect())
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.now)
    }
}

fn settings(limit: &str, metrics: &[&str]) -> Settings {
    Settings {
        commands: ["a | b".to_owned(), "<b>".to_owned()],
        metrics: metrics.iter().map(|it| it.parse().unwrap()).collect(),
        limit: limit.parse().unwrap(),
        level: 0.01,
        time: Duration::from_secs(1_000),
        pairs: 1_000,
        seed: 3,
    }
}

fn gate(settings: &Settings, runner: &mut Virtual) -> Outcome {
    run(settings, runner, &AtomicBool::new(false), |_, _| {}).unwrap()
}

#[test]
fn the_verdict_follows_the_limit_and_its_direction() {
    let cases = [
        ("3%", 1.10, Verdict::Worse),
        ("3%", 1.00, Verdict::Within),
        ("3%", 0.80, Verdict::Within),
        ("-5%", 0.80, Verdict::Worse),
        ("-5%", 1.00, Verdict::Within),
        ("-5%", 1.30, Verdict::Within),
    ];
    for (limit, ratio, verdict) in cases {
        let outcome = gate(&settings(limit, &["time"]), &mut Virtual::new(&[ratio]));
        assert_eq!(outcome.verdict, verdict, "{limit} {ratio}");
        let metric = &outcome.metrics[0];
        assert!((metric.ratio - ratio).abs() < 0.01, "{metric:?}");
        let interval = metric.interval.unwrap();
        assert!(
            interval.low < ratio && ratio < interval.high,
            "{interval:?}"
        );
        assert!(outcome.pairs.len() < 40, "{}", outcome.pairs.len());
    }
}

#[test]
fn one_worse_metric_ends_the_gate() {
    let outcome = gate(
        &settings("3%", &["time", "x"]),
        &mut Virtual::new(&[1.0, 1.2]),
    );
    assert_eq!(outcome.verdict, Verdict::Worse);
    assert_eq!(outcome.metrics[1].verdict, Verdict::Worse);
    assert_ne!(outcome.metrics[0].verdict, Verdict::Worse);
}

#[test]
fn a_gate_at_its_time_limit_reports_the_detectable_effect() {
    let mut short = settings("3%", &["time"]);
    short.time = Duration::from_secs(24);
    let outcome = gate(
        &short,
        &mut Virtual {
            noise: 0.2,
            ..Virtual::new(&[1.02])
        },
    );
    assert_eq!(outcome.verdict, Verdict::CannotTell);
    assert!(
        (8..=12).contains(&outcome.pairs.len()),
        "{}",
        outcome.pairs.len()
    );
    let metric = &outcome.metrics[0];
    assert!(metric.smallest_detectable.unwrap() > 0.03, "{metric:?}");
    let text = outcome.precision(metric);
    assert!(
        text.contains("beyond the limit in 80 % of cases; the ratio seen so far"),
        "{text}"
    );
}

#[test]
fn a_stopped_gate_keeps_its_complete_pairs() {
    let mut runner = Virtual {
        stops_after: 9,
        ..Virtual::new(&[1.03])
    };
    let outcome = gate(&settings("3%", &["time"]), &mut runner);
    // The warm-up consists of two runs; the fourth pair is incomplete.
    assert!(
        outcome.interrupted && outcome.pairs.len() == 3,
        "{outcome:?}"
    );
    assert_eq!(outcome.verdict, Verdict::Stopped);
    assert_eq!(outcome.metrics[0].verdict, Verdict::CannotTell);
    let text = &outcome.stopped.as_ref().unwrap().text;
    assert_eq!(text, "stopped: interrupted in pair 4");
    assert!(junit(&outcome).contains("errors=\"0\" skipped=\"1\""));
    let precision = outcome.precision(&outcome.metrics[0]);
    assert!(
        precision.contains("too few pairs to foresee"),
        "{precision}"
    );
}

#[test]
fn a_failed_command_is_an_error_in_the_reports() {
    let mut runner = Virtual {
        fails_after: 12,
        ..Virtual::new(&[1.03, 0.5])
    };
    let outcome = gate(&settings("3%", &["time", "x"]), &mut runner);
    let stopped = outcome.stopped.as_ref().unwrap();
    assert_eq!(stopped.text, "stopped: head failed in pair 6 (exit code 3)");
    assert_eq!(outcome.verdict, Verdict::Stopped);
    assert!(!outcome.interrupted && outcome.pairs.len() == 5);
    let junit = junit(&outcome);
    let errors = outcome.metrics.iter();
    let errors = errors.filter(|it| it.verdict == Verdict::CannotTell);
    let counts = format!("failures=\"0\" errors=\"{}\" skipped=\"0\"", errors.count());
    assert!(junit.contains(&counts), "{junit}");
    assert!(
        junit.contains("<error message=\"stopped: head failed in pair 6"),
        "{junit}"
    );
    assert!(junit.contains("no &#60;such&#62; file"), "{junit}");
    let summary = markdown(&outcome);
    let head = "## taut gate: stopped: head failed in pair 6 (exit code 3)\n\n    no <such> file\n    giving up\n\n|";
    assert!(summary.starts_with(head), "{summary}");
}

#[test]
fn a_gate_whose_first_run_fails_writes_the_reason() {
    let mut runner = Virtual {
        fails_after: 0,
        ..Virtual::new(&[1.0])
    };
    let outcome = gate(&settings("3%", &["time"]), &mut runner);
    let folder = tempfile::tempdir().unwrap();
    write(&outcome, folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("pairs.csv"), "pair,first,metric,base,head\n");
    let report = read("junit.xml");
    assert!(
        report.contains("tests=\"1\" failures=\"0\" errors=\"1\""),
        "{report}"
    );
    let again: Outcome = serde_json::from_str(&read("gate.json")).unwrap();
    assert_eq!(
        again.stopped.unwrap().text,
        "stopped: head failed in the warm-up (exit code 3)"
    );
    assert!(again.metrics.is_empty() && !read("summary.md").contains("| metric |"));
}

#[test]
fn special_characters_of_command_lines_are_escaped_in_all_reports() {
    let outcome = gate(
        &settings("3%", &["time", "a|b<c>"]),
        &mut Virtual::new(&[1.1, 1.1]),
    );
    let folder = tempfile::tempdir().unwrap();
    write(&outcome, folder.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(
        read("junit.xml").contains("name=\"a|b&#60;c&#62;\""),
        "{}",
        read("junit.xml")
    );
    assert!(read("summary.md").contains("a\\|b<c>") && read("summary.md").contains("`a | b`"));
    assert_eq!(
        read("pairs.csv").lines().count(),
        1 + 2 * outcome.pairs.len()
    );
    assert!(read("ratio-2.svg").starts_with("<svg"));
    let again: Outcome = serde_json::from_str(&read("gate.json")).unwrap();
    // Numbers that were written and read again may differ in the last bit.
    assert_eq!(
        (again.verdict, again.pairs.len()),
        (outcome.verdict, outcome.pairs.len())
    );
    assert_eq!(again.metrics[1].metric, outcome.metrics[1].metric);
    assert!((again.metrics[1].ratio - outcome.metrics[1].ratio).abs() < 1e-12);
}
