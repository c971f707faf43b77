//! `taut bench throughput`, `latency`, `loss`, `back-to-back`, `soak` and `rfc2544`: the benchmarks of
//! RFC 2544 on one device.

use crate::exit::{self, Failure};
use crate::report;
use crate::target::Target;
use crate::terminal::quantity;
use crate::terminal::watch::{self, Look, Status, Watch};
use crate::terminal::{Alone, Bar};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;
use taut_bench::benchmark::Observer;
use taut_bench::benchmark::fresh_folder;
use taut_live::Dashboard;
use taut_measure::{Goal, Method};
use taut_results::{LeftOut, Mode};
use taut_rfc2544::{BenchError, Lengths, Limits, Part, Plan, Settings};
use taut_sys::{Clock, LoggedInterruptions};
use taut_traffic::{Rate, Sizes};

/// Options of every benchmark.
#[derive(clap::Args)]
pub struct Common {
    #[command(flatten)]
    target: Target,
    /// Bytes of a frame with its check sequence, or a mix: 64, imix, 64:7,1518:1; may be repeated (default:
    /// the seven sizes of RFC 2544; --quick 64, 512, 1518; soak 64)
    #[arg(long, value_name = "SIZE")]
    size: Vec<Sizes>,
    /// Set a field of the frames, as in `taut generate`: 'src_port=1024-2048 random'; may be repeated (default: with
    /// --device, fields that get through it)
    #[arg(long, value_name = "FIELD=VALUES")]
    set: Vec<String>,
    /// Shortened, to check that it works; not with --full
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Trials of 60 s, as RFC 2544 requires: takes hours
    #[arg(long)]
    full: bool,
    /// Search method: mlr (votes), tst009 (loss verification), binary (one trial decides)
    #[arg(long, value_name = "METHOD", default_value = "mlr")]
    search: Method,
    /// Length of each trial in seconds (default: 1; --quick 0.05; --full 60)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    trial: Option<f64>,
    /// Searches, latency trials and loss curves per frame size, 1 to 1000 (default: 3; --quick 2)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Fraction of packets that may be lost at the throughput: 0.001 or 0.1%
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    loss_tolerance: f64,
    /// Further goal of the search (RFC 9971), such as loss=0.5%,trial=1,sum=21,exceed=0.5,width=0.5%; may be repeated;
    /// only with --search mlr
    #[arg(long, value_name = "GOAL")]
    goal: Vec<Goal>,
    /// Precision of a search, as a fraction of the rate (default: 0.005; --quick 0.02)
    #[arg(long, value_name = "SHARE", value_parser = share)]
    precision: Option<f64>,
    /// Highest rate that is offered, such as 5M or '100% of 10G' (default: what the generator can send)
    #[arg(long, value_name = "RATE")]
    max_rate: Option<Rate>,
    /// CPU of the generator (default: the one that `taut demo` uses)
    #[arg(long, value_name = "CPU")]
    core: Option<usize>,
    /// Seconds to wait for the peers of the ports
    #[arg(long, default_value_t = 10.0, value_parser = quantity::seconds)]
    wait: f64,
    /// Exit with code 1 if the throughput of a frame size is lower than this, or was not found
    #[arg(long, value_name = "RATE")]
    min_throughput: Option<Rate>,
    /// Exit with code 1 if the p99 latency at any load exceeds this, such as 50us, or is unknown: no loss-free rate, or
    /// too few packets came back
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    max_p99: Option<Duration>,
    /// Seed of the intended send times of random patterns (poisson): equal seeds give equal times (default: drawn,
    /// and stated in bench.json)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Options that all RFC 2544 benchmarks share.
    #[arg(long)]
    json: bool,
    /// Show a dashboard of the search, ended by key q, or plain lines without a terminal; not with --json
    #[arg(long, conflicts_with = "json")]
    live: bool,
    /// Serve the measurements as OpenMetrics at http://ADDRESS/metrics, such as 127.0.0.1:9100; port 0 takes a free
    /// port and prints it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
}

/// Further options of the benchmark of latency.
#[derive(clap::Args)]
pub struct Latency {
    /// Percentages of the throughput at which latency is measured
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "10,50,90", value_parser = percent)]
    at: Vec<f64>,
    /// Length of each latency trial in seconds (default: 5; --quick 0.3; --full 120)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    latency_seconds: Option<f64>,
    /// Watch latency trials on the device's veth links too: adds a row for the device only
    #[arg(long)]
    tap: bool,
    /// File of `taut forward --interruptions` behind --port, to find what the slowest packets waited for; not needed
    /// for a --device of taut's own
    #[arg(long, value_name = "FILE", requires = "port")]
    device_interruptions: Option<PathBuf>,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            at: vec![0.1, 0.5, 0.9],
            latency_seconds: None,
            tap: false,
            device_interruptions: None,
        }
    }
}

/// Further options of the benchmark of back-to-back frames.
#[derive(clap::Args, Default)]
pub struct Bursts {
    /// Searches for the longest burst per frame size, 1 to 1000 (default: 10; --quick 3; --full 50)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    bursts: Option<u32>,
    /// Length of the longest burst that is tried, in seconds (default: 2; --quick 0.1)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    longest_burst: Option<f64>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench throughput --device memif-idle
  taut bench throughput --port af_packet:eth1 --port af_packet:eth2 --size 64 --size imix --search tst009
  taut bench throughput --device veth-bridge --quick --min-throughput 100k

The highest rate without loss (RFC 2544 section 26.1), for each frame size: 64, 128, 256, 512, 1024, 1280
and 1518 unless --size names others.")]
pub struct ThroughputArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench latency --device memif-idle --size 64
  taut bench latency --port af_xdp:eth1 --port af_xdp:eth2 --rate 100k --max-p99 50us

Searches for the throughput, then measures every packet at 10, 50 and 90 % of it (RFC 2544 section 26.2
asks for one packet of each trial); with --rate, at that rate and without a search.")]
pub struct LatencyArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    latency: Latency,
    /// Measure latency at this rate, without a search
    #[arg(long, conflicts_with = "at")]
    rate: Option<Rate>,
}

#[derive(clap::Args)]
#[command(after_help = "Example:
  taut bench loss --device veth-bridge --size 64

The loss at the highest rate of the generator and at lower rates in steps of a tenth of it, until two
successive trials are loss-free (RFC 2544 section 26.3).")]
pub struct LossArguments {
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
#[command(after_help = "Example:
  taut bench back-to-back --device veth-bridge --size 64

The longest burst without loss, averaged over repetitions, and the buffer that implies, corrected by the
throughput (RFC 2544 section 26.4, RFC 9004).")]
pub struct BackToBackArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    bursts: Bursts,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench soak --device memif-idle --size 64 --rate 1M --seconds 14400
  taut bench soak --port memif:/tmp/a.sock --port memif:/tmp/b.sock --rate 100k --seconds 60 --interval 1

One rate for hours (half of the throughput unless --rate is given), in constant memory: each interval
is written as soon as it ends. Ctrl-C ends the soak with a complete report of the intervals so far.")]
pub struct SoakArguments {
    #[command(flatten)]
    common: Common,
    /// Rate of the soak, without a search (default: half of the throughput, which is searched first)
    #[arg(long)]
    rate: Option<Rate>,
    /// Length of the soak in seconds (default: 3600; --quick 10)
    #[arg(long, value_parser = quantity::seconds)]
    seconds: Option<f64>,
    /// Length of the intervals that the report shows, in seconds (default: a 240th of the soak, at least 1)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    interval: Option<f64>,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut bench rfc2544 --device memif-idle --quick
  taut bench rfc2544 --device veth-bridge --out results/bridge
  taut bench rfc2544 --port memif:/tmp/west.sock --port memif:/tmp/east.sock --size 64 --size 1518

Throughput, latency, loss and back-to-back frames in one report.")]
pub struct AllArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    latency: Latency,
    #[command(flatten)]
    bursts: Bursts,
    /// Soak for this many seconds in addition, at half of the throughput of the first frame size (default: no soak)
    #[arg(long, value_name = "SECONDS", value_parser = quantity::seconds)]
    soak: Option<f64>,
}

pub fn throughput(arguments: &ThroughputArguments) -> Result<(), Failure> {
    let settings = settings(
        &arguments.common,
        vec![Part::Throughput],
        &Latency::default(),
        &Bursts::default(),
    );
    measure(&arguments.common, settings?, None, None)
}

pub fn latency(arguments: &LatencyArguments) -> Result<(), Failure> {
    let parts = match arguments.rate {
        Some(_) => vec![Part::Latency],
        None => vec![Part::Throughput, Part::Latency],
    };
    let common = &arguments.common;
    let settings = settings(common, parts, &arguments.latency, &Bursts::default())?;
    let log = arguments.latency.device_interruptions.as_deref();
    measure(common, settings, arguments.rate, log)
}

pub fn loss(arguments: &LossArguments) -> Result<(), Failure> {
    let settings = settings(
        &arguments.common,
        vec![Part::Loss],
        &Latency::default(),
        &Bursts::default(),
    );
    measure(&arguments.common, settings?, None, None)
}

pub fn back_to_back(arguments: &BackToBackArguments) -> Result<(), Failure> {
    let parts = vec![Part::Throughput, Part::BackToBack];
    let common = &arguments.common;
    let settings = settings(common, parts, &Latency::default(), &arguments.bursts)?;
    measure(common, settings, None, None)
}

pub fn soak(arguments: &SoakArguments) -> Result<(), Failure> {
    let parts = match arguments.rate {
        Some(_) => vec![Part::Soak],
        None => vec![Part::Throughput, Part::Soak],
    };
    let common = &arguments.common;
    if common.size.len() > 1 {
        let line = "--size: a soak needs a single frame size (a mix such as imix counts as one)";
        return Err(Failure::Input(line.to_string()));
    }
    let mut settings = settings(common, parts, &Latency::default(), &Bursts::default())?;
    let usual = if common.quick { 10.0 } else { 3600.0 };
    let seconds = arguments.seconds.unwrap_or(usual);
    set_soak(&mut settings, seconds, arguments.interval)?;
    measure(common, settings, arguments.rate, None)
}

pub fn all(arguments: &AllArguments) -> Result<(), Failure> {
    let mut parts = vec![
        Part::Throughput,
        Part::Latency,
        Part::Loss,
        Part::BackToBack,
    ];
    parts.extend(arguments.soak.map(|_| Part::Soak));
    let common = &arguments.common;
    let mut settings = settings(common, parts, &arguments.latency, &arguments.bursts)?;
    if let Some(seconds) = arguments.soak {
        set_soak(&mut settings, seconds, None)?;
    }
    let log = arguments.latency.device_interruptions.as_deref();
    measure(common, settings, None, log)
}

/// Shortest duration of a soak test and of its intervals, s.
const SHORTEST_INTERVAL: f64 = 0.1;

fn set_soak(settings: &mut Settings, seconds: f64, interval: Option<f64>) -> Result<(), Failure> {
    let interval = interval.unwrap_or((seconds / 240.0).max(1.0)).min(seconds);
    if seconds < SHORTEST_INTERVAL || interval < SHORTEST_INTERVAL {
        return Err(Failure::Input(format!(
            "a soak and its intervals must last at least {SHORTEST_INTERVAL} s"
        )));
    }
    settings.soak_seconds = seconds;
    settings.soak_interval_seconds = interval;
    Ok(())
}

fn settings(
    common: &Common,
    parts: Vec<Part>,
    latency: &Latency,
    bursts: &Bursts,
) -> Result<Settings, Failure> {
    let mode = match (common.quick, common.full) {
        (true, _) => Mode::Quick,
        (_, true) => Mode::Full,
        _ => Mode::Default,
    };
    let lengths = Lengths::of(mode);
    let within = |name: &str, given: Option<f64>, usual: Duration| match given {
        None => Ok(usual.as_secs_f64()),
        Some(seconds) if (0.005..=86_400.0).contains(&seconds) => Ok(seconds),
        Some(_) => Err(Failure::Input(format!(
            "{name}: expected 0.005 to 86400 seconds"
        ))),
    };
    let precision = common.precision.unwrap_or(lengths.precision);
    if precision < 1e-4 {
        let line = "--precision: expected at least 0.0001";
        return Err(Failure::Input(line.to_string()));
    }
    if !common.goal.is_empty() && common.search != Method::Mlr {
        let line = "--goal: only --search mlr searches for several goals";
        return Err(Failure::Input(line.to_string()));
    }
    Ok(Settings {
        mode,
        parts,
        method: common.search,
        precision,
        loss_tolerance: common.loss_tolerance,
        trial_seconds: within("--trial", common.trial, lengths.trial)?,
        votes: lengths.votes,
        goals: common.goal.clone(),
        repetitions: common.repetitions.unwrap_or(lengths.repetitions),
        max_rate_pps: None,
        shares: latency.at.clone(),
        rate_pps: None,
        latency_seconds: within(
            "--latency-seconds",
            latency.latency_seconds,
            lengths.latency,
        )?,
        bursts: bursts.bursts.unwrap_or(lengths.bursts),
        longest_burst_seconds: within(
            "--longest-burst",
            bursts.longest_burst,
            lengths.longest_burst,
        )?,
        soak_seconds: 0.0,
        tap: latency.tap,
        soak_interval_seconds: 1.0,
        limits: Limits {
            min_throughput_pps: None,
            max_p99_ns: common.max_p99.map(|time| time.as_nanos() as f64),
        },
        seed: Some(common.seed.unwrap_or_else(taut_traffic::drawn_seed)),
    })
}

fn share(text: &str) -> Result<f64, String> {
    match quantity::share(text)? {
        1.0 => Err("expected a fraction below 1, such as 0.001 or 0.1%".to_string()),
        share => Ok(share),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 200.0 => Ok(value / 100.0),
        _ => Err("expected per cent of the throughput, such as 10,50,90".to_string()),
    }
}

/// Converts a rate to packets per second, for all frame sizes. A rate in bits, or as a fraction of a line, is converted
/// only for a single frame size, and rejected for several.
fn pps(rate: Rate, sizes: &[Sizes], name: &str) -> Result<f64, Failure> {
    let of = |size: &Sizes| {
        rate.packets_per_second(size.average_bytes())
            .map_err(|e| Failure::Input(format!("{name}: {e}")))
    };
    match (rate, sizes) {
        (Rate::Packets(pps), _) => Ok(pps),
        (_, [only]) => of(only),
        (_, []) => Err(Failure::Input("no frame size is given".to_string())),
        (_, [first, ..]) => {
            of(first)?;
            Err(Failure::Input(format!(
                "{name}: with several frame sizes, expected packets per second, such as 100k; or give one --size"
            )))
        }
    }
}

/// Checks that the command measures the metrics that the options `--max-p99` and `--min-throughput` limit.
fn check_limits(common: &Common, parts: &[Part]) -> Result<(), Failure> {
    let measures = |of: &[Part]| parts.iter().any(|part| of.contains(part));
    for (name, is_set, is_measured) in [
        (
            "--max-p99",
            common.max_p99.is_some(),
            measures(&[Part::Latency, Part::Soak]),
        ),
        (
            "--min-throughput",
            common.min_throughput.is_some(),
            measures(&[Part::Throughput]),
        ),
    ] {
        if is_set && !is_measured {
            return Err(Failure::Input(format!(
                "{name}: this command does not measure what the limit applies to"
            )));
        }
    }
    Ok(())
}

/// Returns the frame sizes from the options, or else the default sizes of the mode.
fn sizes(common: &Common, settings: &Settings) -> Result<Vec<Sizes>, Failure> {
    let sizes = if common.size.is_empty() {
        let mut usual = Lengths::of(settings.mode).sizes;
        // By default a soak runs with one frame size, as it runs at one rate.
        let is_soak = settings.parts.last() == Some(&Part::Soak) && settings.parts.len() <= 2;
        usual.truncate(if is_soak { 1 } else { usual.len() });
        usual
    } else {
        common.size.clone()
    };
    for (index, size) in sizes.iter().enumerate() {
        if sizes[..index].contains(size) {
            return Err(Failure::Input(format!("--size {size} is given twice")));
        }
    }
    Ok(sizes)
}

/// Splits the options `--set FIELD=VALUES` into names and values of frame fields.
fn fields(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    given
        .iter()
        .map(|set| {
            let pair = set
                .split_once('=')
                .map(|(k, v)| (k.to_string(), v.to_string()));
            pair.ok_or_else(|| {
                Failure::Input(format!(
                    "--set {set}: expected FIELD=VALUES, such as dst_port=1024-2048"
                ))
            })
        })
        .collect()
}

fn measure(
    common: &Common,
    mut settings: Settings,
    rate: Option<Rate>,
    device_log: Option<&Path>,
) -> Result<(), Failure> {
    check_limits(common, &settings.parts)?;
    if let Some(path) = device_log {
        LoggedInterruptions::read(path)?;
    }
    let device = common.target.device_under_test()?;
    let sizes = sizes(common, &settings)?;
    let limit = |rate: Option<Rate>, name| rate.map(|r| pps(r, &sizes, name)).transpose();
    settings.rate_pps = limit(rate, "--rate")?;
    settings.max_rate_pps = limit(common.max_rate, "--max-rate")?;
    settings.limits.min_throughput_pps = limit(common.min_throughput, "--min-throughput")?;
    let fields = fields(&common.set)?;
    let _alone = Alone::claim()?;
    let stop = exit::stop_flag()?;
    let program = exit::own_program()?;
    let plan = Plan {
        device,
        sizes,
        fields,
        settings,
        folder: common
            .out
            .clone()
            .unwrap_or_else(|| fresh_folder(Path::new("results"), "bench")),
        program,
        clock: Clock::calibrate(Duration::from_millis(200)),
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
        core: common.core,
        patience: Duration::from_secs_f64(common.wait),
        device_log: device_log.map(Path::to_path_buf),
    };
    let folder = watched(common, &plan, stop)?;
    let shown = report::show(&folder, common.json);
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted(
            "interrupted: only complete results are shown".to_string(),
        ));
    }
    shown
}

/// Runs the benchmark `plan` with the display that `common` selects.
fn watched(common: &Common, plan: &Plan, stop: &AtomicBool) -> Result<PathBuf, Failure> {
    let (_endpoint, metrics) = watch::endpoint(common.metrics.as_deref())?;
    let look = if common.live && Dashboard::is_possible() {
        Look::Dashboard
    } else {
        Look::Nothing
    };
    let is_watched = look == Look::Dashboard || metrics.is_some();
    let (live, mut views) = is_watched
        .then(|| taut_traffic::live(&plan.device.name(), 0.0, Some(&plan.clock)))
        .map(|(live, view)| (live, vec![view]))
        .unzip();
    let status = Mutex::new(Status::default());
    let watch = Watch {
        look,
        title: plan.device.name(),
        planned_seconds: 0.0,
        status: Some(&status),
        metrics,
        samples: &[],
        stop,
    };
    let (started, has_started) = mpsc::channel();
    let mut telling = Telling {
        bar: (look != Look::Dashboard).then(Bar::new),
        status: &status,
        started,
        has_told: false,
    };
    let measured = std::thread::scope(|scope| {
        let measuring = scope.spawn(move || {
            let measured = taut_rfc2544::run(plan, &mut telling, live, stop);
            telling.clear();
            measured
        });
        if let Some(views) = &mut views {
            watch.run(views, &has_started);
        }
        measuring
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Ok(measured?)
}

/// Reports the progress of a benchmark to the progress bar or the dashboard.
struct Telling<'a> {
    bar: Option<Bar>,
    status: &'a Mutex<Status>,
    started: mpsc::Sender<()>,
    has_told: bool,
}

impl Telling<'_> {
    fn clear(&self) {
        self.bar.iter().for_each(Bar::clear);
    }
}

impl Observer for Telling<'_> {
    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        if !self.has_told {
            self.has_told = true;
            // An error is ignored: it means that no display waits for the message.
            let _ = self.started.send(());
        }
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = Status {
            doing: what.to_string(),
            left: total.saturating_sub(done),
        };
        if let Some(bar) = &mut self.bar {
            bar.progress(done, total, what);
        }
    }

    fn left_out(&mut self, left_out: &LeftOut) {
        if let Some(bar) = &mut self.bar {
            bar.left_out(left_out);
        }
    }

    fn note(&mut self, text: &str) {
        if let Some(bar) = &mut self.bar {
            bar.note(text);
        }
    }
}

impl From<BenchError> for Failure {
    fn from(e: BenchError) -> Self {
        match e {
            BenchError::Device(_) => Self::Missing(e.to_string()),
            BenchError::Results(e) => e.into(),
            BenchError::Affinity(_) | BenchError::Input(_) => Self::Input(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn fractions_and_percentages_parse_and_errors_name_a_valid_form() {
        assert_eq!(percent("90%"), Ok(0.9));
        assert_eq!(share("0.001"), Ok(0.001));
        for (wrong, part) in [
            (percent("0"), "10,50,90"),
            (percent("x"), "10,50,90"),
            (share("1"), "below 1"),
            (share("-0.1"), "0 to 1"),
        ] {
            assert!(wrong.unwrap_err().contains(part));
        }
    }

    #[test]
    fn rates_in_bits_need_one_frame_size() {
        let sizes: Vec<Sizes> = [64, 1518].map(Sizes::one).into();
        let bits: Rate = "512Mbit/s".parse().unwrap();
        assert_eq!(pps(bits, &sizes[..1], "--rate").unwrap(), 1e6);
        assert!(pps(bits, &sizes, "--rate").is_err());
        assert_eq!(pps(Rate::Packets(5.0), &sizes, "--rate").unwrap(), 5.0);
    }
}
