//! `taut gate`: decides whether a change made a program worse, by runs of both versions in pairs.

mod init;

use crate::exit::{self, Failure};
use crate::terminal::Bar;
use crate::terminal::print;
use crate::terminal::quantity;
use clap::{Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_bench::benchmark::Observer;
use taut_experiment::gate::{self, Commands, Metric, Outcome, Settings, Stopped, Verdict, Which};
use taut_experiment::{Limit, fresh_folder};

/// Maximum length of a command in an error message, characters.
const LONGEST_COMMAND: usize = 100;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  taut gate --base './old' --head './new'
  taut gate --base 'old/taut generate --device memif-idle --seconds 1 --json' \\
            --head 'new/taut generate --device memif-idle --seconds 1 --json' --metric 'streams[0].latency_ns.p50_ns'
  taut gate --base ... --head ... --metric out.json:rate --worse -5%
  taut gate init github > .github/workflows/gate.yml

Each pair runs both commands once with `sh -c`, in random order, so programs that run beside disturb both alike. After
each pair a sequential test decides; it may look after every pair without more false alarms. The folder has gate.json,
pairs.csv, junit.xml, summary.md and a figure for each metric.

Exit codes: 0 not worse, 1 worse, 2 a command failed or has no such metric, 4 the time or the pairs do not suffice, 130
interrupted. After 2 and 130 the folder has the pairs before."
)]
pub struct Arguments {
    #[command(subcommand)]
    what: Option<What>,
    /// Command line of the shell that runs the version to compare with
    #[arg(long, value_name = "COMMAND", required = true)]
    base: Option<String>,
    /// Command line of the shell that runs the version that must not be worse
    #[arg(long, value_name = "COMMAND", required = true)]
    head: Option<String>,
    /// Metric to compare: time (of a run, in seconds), the path of a number in the JSON that the command prints, or
    /// FILE.json:path; may be repeated
    #[arg(long, value_name = "METRIC", default_value = "time")]
    metric: Vec<String>,
    /// Change that is worse than allowed, such as 3%, or -5% where a lower value is worse
    #[arg(
        long,
        value_name = "LIMIT",
        default_value = "3%",
        allow_hyphen_values = true
    )]
    worse: Limit,
    /// Highest probability of a wrong verdict
    #[arg(long, default_value = "0.01", value_parser = level)]
    level: f64,
    /// Maximum time in seconds; no pair begins that would probably end later
    #[arg(long, default_value = "600", value_parser = seconds)]
    seconds: Duration,
    /// Maximum number of pairs
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Time in seconds after which a run is killed, which ends the gate
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    timeout: Duration,
    /// Seed of the order within the pairs (default: random)
    #[arg(long)]
    seed: Option<u64>,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Print a workflow file that runs the gate for each change
    Init {
        /// The service that runs the workflow
        service: Service,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Service {
    Github,
    Gitlab,
}

fn level(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(level) if level > 0.0 && level < 0.5 => Ok(level),
        _ => Err("expected a probability above 0 and below 0.5, such as 0.01".to_string()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse::<f64>().ok().filter(|it| *it > 0.0);
    time.and_then(|it| Duration::try_from_secs_f64(it).ok())
        .ok_or_else(|| "expected seconds above 0, such as 600".to_string())
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if let Some(What::Init { service }) = &arguments.what {
        print::line(match service {
            Service::Github => init::GITHUB.trim_end(),
            Service::Gitlab => init::GITLAB.trim_end(),
        });
        return Ok(());
    }
    let settings = Settings {
        commands: [&arguments.base, &arguments.head].map(|it| it.clone().unwrap_or_default()),
        metrics: metrics(&arguments.metric)?,
        limit: arguments.worse,
        level: arguments.level,
        time: arguments.seconds,
        pairs: arguments.pairs as usize,
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 53)),
    };
    let stop = exit::stop_flag()?;
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => fresh_folder("results".as_ref(), "gate"),
    };
    if has_results(&folder) {
        return Err(Failure::Input(format!(
            "{} already has the results of a gate: name another folder",
            folder.display()
        )));
    }
    std::fs::create_dir_all(&folder)
        .map_err(|e| Failure::of_file(&e, format!("{}: {e}", folder.display())))?;
    let mut bar = Bar::new();
    let mut runner = Commands::new(&settings, &folder, arguments.timeout, stop);
    let began = std::time::Instant::now();
    let seen = |pairs: usize, standing: &str| {
        let what = format!("pair {pairs}: head / base {standing}");
        bar.progress(began.elapsed(), settings.time, &what);
    };
    let outcome = gate::run(&settings, &mut runner, stop, seen);
    bar.clear();
    let outcome = outcome?;
    gate::write(&outcome, &folder)?;
    if arguments.json {
        print::line(serde_json::to_string(&outcome).unwrap_or_default());
    } else {
        show(&outcome, &folder);
    }
    end(&outcome)
}

/// Reports whether a folder has the results of a gate. A gate that ended in its warm-up has no results to keep.
fn has_results(folder: &Path) -> bool {
    let text = std::fs::read(folder.join("gate.json"));
    let of_text = |text: Vec<u8>| serde_json::from_slice::<Outcome>(&text);
    text.is_ok_and(|text| of_text(text).map_or(true, |it| !it.pairs.is_empty()))
}

/// Returns the failure with the exit code for the outcome of a gate, or `Ok` if no metric is worse.
fn end(outcome: &Outcome) -> Result<(), Failure> {
    if let Some(stopped) = &outcome.stopped {
        return Err(failure_of(outcome, stopped));
    }
    let worse: Vec<&str> = of_verdict(outcome, Verdict::Worse).collect();
    let open: Vec<&str> = of_verdict(outcome, Verdict::CannotTell).collect();
    match outcome.verdict {
        Verdict::Within => Ok(()),
        Verdict::Worse => Err(Failure::Limit(format!(
            "worse than the limit of {}: {}",
            outcome.limit,
            worse.join(", ")
        ))),
        Verdict::CannotTell | Verdict::Stopped => Err(Failure::Undecided(format!(
            "cannot tell in {} pairs whether it is worse than the limit of {}: {}; --seconds and --pairs allow more",
            outcome.pairs.len(),
            outcome.limit,
            open.join(", ")
        ))),
    }
}

/// Describes in one line the end of a gate that was interrupted or whose command failed.
fn failure_of(outcome: &Outcome, stopped: &Stopped) -> Failure {
    let pairs = quantity::counted(outcome.pairs.len(), "pair");
    let kept = format!("{pairs} before that are in the folder");
    let command = match stopped.command {
        None => return Failure::Interrupted(format!("{}; {kept}", stopped.text)),
        Some(Which::Base) => &outcome.base,
        Some(Which::Head) => &outcome.head,
    };
    let printed = match stopped.printed.join(" | ") {
        lines if lines.is_empty() => String::new(),
        lines => format!(": {lines}"),
    };
    let shown: String = command.chars().take(LONGEST_COMMAND).collect();
    let more = if shown == *command { "" } else { "..." };
    let shown = shown.replace(|c: char| c.is_control(), " ");
    Failure::Input(format!(
        "{}, `{shown}{more}`{printed}; {kept}",
        stopped.text
    ))
}

fn metrics(texts: &[String]) -> Result<Vec<Metric>, Failure> {
    let metrics = texts.iter().map(|text| text.parse::<Metric>());
    metrics
        .collect::<Result<_, String>>()
        .map_err(|e| Failure::Input(format!("--metric: {e}")))
}

fn of_verdict(outcome: &Outcome, wanted: Verdict) -> impl Iterator<Item = &str> {
    let metrics = outcome.metrics.iter();
    metrics
        .filter(move |it| it.verdict == wanted)
        .map(|it| it.metric.as_str())
}

fn show(outcome: &Outcome, folder: &Path) {
    for metric in &outcome.metrics {
        print::line(outcome.sentence(metric));
        print::line(format!("  {}", outcome.medians(metric)));
        print::line(format!("  {}", outcome.precision(metric)));
    }
    print::line(format!("results: {}", folder.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significance_levels_and_times_out_of_range_are_refused() {
        assert_eq!(level("0.05"), Ok(0.05));
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1_500)));
        for wrong in ["0", "-1", "nan", "x", "1e99"] {
            assert!(level(wrong).is_err() && seconds(wrong).is_err(), "{wrong}");
        }
    }

    fn outcome(stopped: Stopped) -> Outcome {
        Outcome {
            schema: 1,
            taut: String::new(),
            started: String::new(),
            seconds: 1.0,
            verdict: Verdict::Stopped,
            base: "old".to_owned(),
            head: "new ".repeat(99),
            limit: Limit {
                share: 0.03,
                less_is_worse: false,
            },
            level: 0.01,
            power: 0.8,
            seed: 1,
            cpu_model: None,
            interrupted: stopped.command.is_none(),
            stopped: Some(stopped),
            metrics: Vec::new(),
            pairs: Vec::new(),
        }
    }

    #[test]
    fn a_stopped_gate_prints_command_and_output_on_one_line() {
        let failed = |command: Option<Which>, printed: &[&str]| {
            end(&outcome(Stopped {
                text: "stopped: in pair 1".to_owned(),
                command,
                pair: 1,
                reason: String::new(),
                printed: printed.iter().map(|it| (*it).to_owned()).collect(),
            }))
        };
        let base = failed(Some(Which::Base), &["a", "b"]);
        let text = "stopped: in pair 1, `old`: a | b; 0 pairs before that are in the folder";
        assert!(
            matches!(&base, Err(Failure::Input(it)) if it == text),
            "{base:?}"
        );
        let head = failed(Some(Which::Head), &[]);
        assert!(
            matches!(&head, Err(Failure::Input(it)) if it.contains("new ...`; 0 pairs")),
            "{head:?}"
        );
        let interrupted = failed(None, &[]);
        let text = "stopped: in pair 1; 0 pairs before that are in the folder";
        assert!(matches!(&interrupted, Err(Failure::Interrupted(it)) if it == text));
    }

    #[test]
    fn an_empty_metric_is_an_input_error() {
        let time = metrics(&["time".to_owned()]);
        assert!(time.is_ok_and(|found| found == [Metric::Time]));
        let wrong = metrics(&[String::new()]);
        assert!(matches!(wrong, Err(Failure::Input(text)) if text.starts_with("--metric: ")));
    }
}
