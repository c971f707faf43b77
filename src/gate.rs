//! `taut gate`: decides whether a change made a program worse, by runs of both versions in pairs.

mod init;

use crate::exit::{self, Failure};
use crate::terminal::Bar;
use crate::terminal::print;
use clap::{Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use taut_experiment::fresh_folder;
use taut_experiment::gate::{self, Commands, GateError, Limit, Metric, Outcome, Settings, Verdict};
use taut_lab::benchmark::Observer;

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
interrupted."
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
    if folder.join("gate.json").exists() {
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
    let outcome = outcome.map_err(|e| match e {
        GateError::Stopped => Failure::Interrupted("stopped before the first pair".to_string()),
        GateError::Failed { .. } => Failure::Input(e.to_string()),
        GateError::Io { ref source, .. } => Failure::of_file(source, e.to_string()),
    })?;
    gate::write(&outcome, &folder)?;
    if arguments.json {
        print::line(serde_json::to_string(&outcome).unwrap_or_default());
    } else {
        show(&outcome, &folder);
    }
    if outcome.interrupted {
        return Err(Failure::Interrupted(
            "interrupted: the pairs so far are in the folder".to_string(),
        ));
    }
    let worse: Vec<&str> = of_verdict(&outcome, Verdict::Worse).collect();
    let open: Vec<&str> = of_verdict(&outcome, Verdict::CannotTell).collect();
    match outcome.verdict {
        Verdict::Within => Ok(()),
        Verdict::Worse => Err(Failure::Limit(format!(
            "worse than the limit of {}: {}",
            outcome.limit,
            worse.join(", ")
        ))),
        Verdict::CannotTell => Err(Failure::Undecided(format!(
            "cannot tell in {} pairs whether it is worse than the limit of {}: {}; --seconds and --pairs allow more",
            outcome.pairs.len(),
            outcome.limit,
            open.join(", ")
        ))),
    }
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

fn show(outcome: &Outcome, folder: &std::path::Path) {
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
    fn levels_and_times_outside_their_range_are_refused() {
        assert_eq!(level("0.05"), Ok(0.05));
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1_500)));
        for wrong in ["0", "-1", "nan", "x", "1e99"] {
            assert!(level(wrong).is_err() && seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_empty_metric_is_an_input_error() {
        let time = metrics(&["time".to_owned()]);
        assert!(time.is_ok_and(|found| found == [Metric::Time]));
        let wrong = metrics(&[String::new()]);
        assert!(matches!(wrong, Err(Failure::Input(text)) if text.starts_with("--metric: ")));
    }
}
