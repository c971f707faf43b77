//! `taut tune noise`: the interruptions of a busy loop on this machine, without any packet.

use crate::exit::{self, Failure};
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_host::tune::noise::{CpuNoise, Heard, NoiseError, Peer, PeerFigures, Plan, listen, peers};
use taut_host::tune::{self, Root};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  sudo taut tune noise --cpus 1 --for 30s
  taut tune noise --cpus 1 --for 10s --json
  sudo taut tune noise --cpus 1 --for 30s --compare     with oslat and cyclictest (Debian: rt-tests) taking turns
  sudo taut tune noise --cpus 1 --for 5s --gaps gaps.csv

A loop on each CPU reads the clock and records every gap over 1 us. As root, the kernel's trace points name the cause
of each gap; without root, only the kernel's counters are shown. Ctrl-C ends the measurement with its results so far.")]
pub struct Arguments {
    /// CPUs to measure, such as 1 or 2-3,6
    #[arg(long, value_name = "LIST")]
    cpus: String,
    /// Time to measure, such as 30s or 500ms; with --compare for each program, in up to three measurements of whole
    /// seconds
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = quantity::some_time)]
    duration: Duration,
    /// Real-time priority of the loops (SCHED_FIFO), 1 to 99, only on CPUs that nothing else needs (default: an
    /// ordinary task)
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    /// Do not trace what the kernel did in the gaps: gaps are a little shorter, and have no causes
    #[arg(long)]
    no_trace: bool,
    /// Run oslat and cyclictest as well, interleaved on the first CPU, each for the same time
    #[arg(long)]
    compare: bool,
    /// Write every gap to this file (CSV): `cpu`, `start_ns` on CLOCK_MONOTONIC, `length_ns`, `cause`
    #[arg(long, value_name = "FILE")]
    gaps: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The largest number of measurements of each program in a comparison. A measurement takes whole seconds.
const ROUNDS: f64 = 3.0;
/// Number of causes that are shown as text; `--json` has all.
const SHOWN_CAUSES: usize = 15;
/// Number of kinds of interrupts that are shown from the kernel's counters.
const SHOWN_COUNTS: usize = 4;

#[derive(Serialize, JsonSchema)]
pub struct Results<'a> {
    #[serde(flatten)]
    heard: &'a Heard,
    /// Results of other programs that measure noise, interleaved with the measurements of taut.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    compared: Vec<PeerFigures>,
}

impl From<NoiseError> for Failure {
    fn from(e: NoiseError) -> Self {
        Self::Missing(e.to_string())
    }
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let root = Root::machine();
    let cpus = tune::online_cpus(&root, &arguments.cpus)?;
    let stop = exit::stop_flag()?;
    let plan = Plan {
        cpus,
        duration: arguments.duration,
        fifo: arguments.fifo,
        trace: !arguments.no_trace,
    };
    if arguments.fifo.is_some() && tune::is_every_cpu(&root, &plan.cpus)? {
        return Err(Failure::Input(
            "--fifo on every CPU would stop the whole machine; omit one from --cpus".to_owned(),
        ));
    }
    // An unwritable file is reported before the wait, not after.
    let file = arguments.gaps.as_deref().map(create).transpose()?;
    let (heard, compared) = match arguments.compare {
        true => compare(&plan, stop)?,
        false => (listen(&plan, stop)?, Vec::new()),
    };
    if let Some((file, path)) = file {
        write_gaps(file, &heard).map_err(|e| unwritable(path, &e))?;
    }
    if arguments.json {
        let results = Results {
            heard: &heard,
            compared,
        };
        print::line(serde_json::to_string_pretty(&results).unwrap_or_default());
    } else {
        print_heard(&heard);
        print_compared(&heard, &compared);
    }
    Ok(())
}

fn create(path: &Path) -> Result<(std::fs::File, &Path), Failure> {
    let file = std::fs::File::create(path).map_err(|e| unwritable(path, &e))?;
    Ok((file, path))
}

fn unwritable(path: &Path, e: &std::io::Error) -> Failure {
    Failure::Input(format!("{}: {e}", path.display()))
}

fn write_gaps(file: std::fs::File, heard: &Heard) -> std::io::Result<()> {
    let mut out = csv::Writer::from_writer(file);
    out.write_record(["cpu", "start_ns", "length_ns", "cause"])?;
    for noise in &heard.cpus {
        let cpu = noise.cpu.to_string();
        for gap in &noise.gaps {
            let [start, length] = [gap.start_ns.to_string(), format!("{:.0}", gap.length_ns)];
            out.write_record([&cpu, &start, &length, &gap.cause])?;
        }
    }
    out.flush()
}

/// Measures noise with taut and with other programs (oslat, cyclictest), interleaved.
fn compare(plan: &Plan, stop: &AtomicBool) -> Result<(Heard, Vec<PeerFigures>), Failure> {
    let cpu = plan.cpus.first().copied().unwrap_or_default();
    let system_cpu = tune::other_cpu(&Root::machine(), &plan.cpus)?.unwrap_or(cpu);
    let asked_s = plan.duration.as_secs_f64();
    let rounds = asked_s.ceil().clamp(1.0, ROUNDS);
    let whole_s = (asked_s / rounds).ceil().max(1.0);
    let slice = Plan {
        duration: Duration::from_secs_f64(whole_s),
        ..plan.clone()
    };
    let folder = taut_host::private::scratch().map_err(|e| {
        Failure::Missing(format!(
            "cannot create a folder for the peers' results: {e}"
        ))
    })?;
    let mut heard: Option<Heard> = None;
    let mut figures: Vec<(Peer, Option<PeerFigures>)> = peers().map(|peer| (peer, None)).to_vec();
    for _ in 0..rounds as u32 {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let part = listen(&slice, stop)?;
        heard = Some(match heard {
            Some(so_far) => so_far.join(part),
            None => part,
        });
        for (peer, figures) in &mut figures {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let part = peer
                .run(cpu, system_cpu, whole_s as u64, plan.fifo, folder.path())
                .map_err(Failure::Missing)?;
            *figures = Some(match figures.take() {
                Some(so_far) => so_far.with(&part),
                None => part,
            });
        }
    }
    let heard = heard
        .ok_or_else(|| Failure::Interrupted("stopped before anything was measured".to_owned()))?;
    Ok((
        heard,
        figures
            .into_iter()
            .filter_map(|(_, figures)| figures)
            .collect(),
    ))
}

fn print_heard(heard: &Heard) {
    for noise in &heard.cpus {
        print_cpu(noise, heard);
    }
    if let Some(why) = &heard.untraced {
        print::line(format!("Causes unknown: {why}"));
    }
    if heard.stopped {
        print::line("Stopped before the end of --for.");
    }
}

fn print_cpu(noise: &CpuNoise, heard: &Heard) {
    let found = &noise.interruptions;
    let rate = |count: u64| count as f64 / found.seconds.max(1e-9);
    print::line(format!(
        "CPU {}, {:.1} s: {:.3} % of the time lost in gaps over 1 us; longest {}",
        noise.cpu,
        found.seconds,
        found.share * 100.0,
        quantity::time(found.longest_ns)
    ));
    print::line(format!(
        "  per second: {:.1} over 1 µs, {:.1} over 10 µs, {:.2} over 100 µs, {:.2} over 1 ms",
        rate(found.over_1_us),
        rate(found.over_10_us),
        rate(found.over_100_us),
        rate(found.over_1_ms)
    ));
    print_lengths(noise);
    print_causes(noise);
    print::line(format!(
        "  explained: {:.1} % of the lost time, {:.1} % of the gaps; CPU time of the loop itself: {:.4} %",
        // The value is never negative, nor the minus zero of an empty sum.
        (noise.explained.share_of_time * 100.0).max(0.0) + 0.0,
        (noise.explained.share_of_gaps * 100.0).max(0.0) + 0.0,
        noise.own_share * 100.0
    ));
    if noise.unkept > 0 {
        print::line(format!(
            "  {} more gaps were counted but not recorded: the buffer was full",
            noise.unkept
        ));
    }
    print_counted(noise.cpu, heard);
    print::line("");
}

fn print_lengths(noise: &CpuNoise) {
    print::line("\n  gaps by length (bars: logarithm of the count)");
    let most = noise
        .histogram
        .iter()
        .map(|bin| bin.count)
        .max()
        .unwrap_or(0)
        .max(1);
    for bin in &noise.histogram {
        const WIDTH: u64 = 40;
        // The scale is logarithmic, as a single long gap matters.
        let share = ((bin.count + 1) as f64).ln() / ((most + 1) as f64).ln();
        let bar = "#".repeat((share * WIDTH as f64).round() as usize);
        let from = quantity::time(bin.from_ns);
        print::line(format!("  {from:>10} {:>9} {bar}", bin.count));
    }
}

fn print_causes(noise: &CpuNoise) {
    print::line(
        "\n  causes                                       a second     median    longest  share of lost time",
    );
    for cause in noise.causes.iter().take(SHOWN_CAUSES) {
        print::line(format!(
            "  {:<42} {:>10.2} {:>10} {:>10} {:>10.1} %",
            cause.name,
            cause.per_second,
            quantity::time(cause.median_ns),
            quantity::time(cause.longest_ns),
            cause.share_of_lost * 100.0
        ));
    }
    if noise.causes.len() > SHOWN_CAUSES {
        let more = noise.causes.len() - SHOWN_CAUSES;
        print::line(format!("  and {more} more (--json)"));
    }
}

/// Prints the kernel's own counters over the measured time.
fn print_counted(cpu: usize, heard: &Heard) {
    let Some(core) = heard.counted.cores.iter().find(|core| core.cpu == cpu) else {
        return;
    };
    let seconds = heard.counted.duration_ms.max(1) as f64 / 1e3;
    let list = |counts: &[taut_host::noise::Count]| {
        let shown = counts.iter().take(SHOWN_COUNTS);
        let parts: Vec<String> = shown
            .map(|count| format!("{} {:.1}/s", count.name, count.count as f64 / seconds))
            .collect();
        if parts.is_empty() {
            "none".to_owned()
        } else {
            parts.join(", ")
        }
    };
    print::line(format!(
        "  counted by the kernel: interrupts: {}",
        list(&core.interrupts)
    ));
    print::line(format!(
        "                         soft interrupts: {}",
        list(&core.softirqs)
    ));
    print::line(format!(
        "                         steal time: {} ms; switches away from the loop: {}",
        core.steal_ms, heard.counted.involuntary_switches
    ));
}

fn print_compared(heard: &Heard, compared: &[PeerFigures]) {
    let (Some(first), false) = (heard.cpus.first(), compared.is_empty()) else {
        return;
    };
    print::line(
        "In the same run, interleaved     measures              over 10 us a second      mean    longest",
    );
    let row =
        |name: &str, measures: &str, over: Option<f64>, mean_ns: Option<f64>, longest_ns: f64| {
            print::line(format!(
                "  {name:<30} {measures:<22} {:>18} {:>9} {:>10}",
                over.map_or("-".to_owned(), |over| format!("{over:.1}")),
                mean_ns.map_or("-".to_owned(), quantity::time),
                quantity::time(longest_ns)
            ));
        };
    let found = &first.interruptions;
    let over = found.over_10_us as f64 / found.seconds.max(1e-9);
    row(
        "taut tune noise",
        "busy loop",
        Some(over),
        None,
        found.longest_ns,
    );
    for peer in compared {
        row(
            &peer.program,
            &peer.measures,
            peer.over_10_us_per_second,
            peer.mean_ns,
            peer.longest_ns,
        );
    }
}
