//! `taut demo`: compares packet forwarders on this machine and writes a report with plots.

use crate::exit::{self, Failure};
use crate::print;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;
use taut_lab::comparison::{self, Choice, ComparisonError, Observer, Plan};
use taut_lab::evaluate::{Evaluation, ratios, render_text_table, rows};
use taut_lab::results::{LeftOut, Mode, Results, Stage};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut demo                 about two and a half minutes
  taut demo --quick         under 40 seconds
  taut demo --full --out results/night
  taut demo --list-devices
  taut demo --devices memif-idle,memif-testpmd-io

Over memif shared memory: taut forward with flush full(32, 100us), every(50us), each and idle(32).
Over veth in network namespaces (as root): the Linux bridge, taut forward on AF_PACKET and AF_XDP and
in the kernel (XDP).
Each gets 64-byte frames at 100 kpkt/s, every packet measured, then a sweep up to saturation; devices
take turns in each repetition. Ends with a table, report.html and the figures as SVG.")]
pub struct Arguments {
    /// Shortened: see that it works
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Ten repetitions of a minute at the constant rate: hours
    #[arg(long)]
    full: bool,
    /// Results folder (default: a new one under ./results)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Seed of the order in which devices take turns
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Devices to measure: ids of --list-devices separated by commas, also with options as in taut generate --device, or
    /// `all`
    #[arg(long, value_name = "IDS", value_parser = Choice::parse)]
    devices: Option<Choice>,
    /// Say which devices there are, whether this machine can have them, and why not where not
    #[arg(long, conflicts_with_all = ["quick", "full", "out", "seed", "devices"])]
    list_devices: bool,
    /// Print the summary as JSON instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.list_devices {
        list_devices(arguments.json);
        return Ok(());
    }
    let mode = match (arguments.quick, arguments.full) {
        (true, _) => Mode::Quick,
        (_, true) => Mode::Full,
        _ => Mode::Default,
    };
    let _alone = Alone::claim()?;
    let stop = exit::stop_flag()?;
    let program = exit::own_program()?;
    let plan = Plan {
        mode,
        seed: arguments.seed,
        folder: arguments
            .out
            .clone()
            .unwrap_or_else(|| comparison::fresh_folder(Path::new("results"))),
        devices: arguments.devices.clone().unwrap_or_default(),
        program,
        command_line: std::env::args().collect::<Vec<_>>().join(" "),
    };
    let mut bar = Bar::new();
    let measured = comparison::run(&plan, &mut bar, stop);
    bar.clear();
    let folder = measured?;
    show(&folder, arguments.json)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Interrupted(
            "interrupted: only runs that were complete are shown".to_string(),
        ));
    }
    Ok(())
}

#[derive(Serialize)]
struct OfferRow {
    id: String,
    name: String,
    available: bool,
    by_default: bool,
    detail: String,
    note: String,
    command: String,
}

fn list_devices(json: bool) {
    let rows: Vec<OfferRow> = comparison::offers()
        .into_iter()
        .map(|offer| {
            let info = offer.device.info();
            OfferRow {
                id: offer.device.id.clone(),
                name: offer.device.full_name(),
                available: offer.here.is_ok(),
                by_default: offer.by_default,
                detail: offer.here.unwrap_or_else(|missing| missing.to_string()),
                note: info.note,
                command: info.command.join(" "),
            }
        })
        .collect();
    if json {
        print::line(serde_json::to_string_pretty(&rows).unwrap_or_default());
        return;
    }
    for row in rows {
        print::line(format!(
            "{:<4}{:<24}{}{}",
            if row.available { "yes" } else { "no" },
            row.id,
            row.name,
            if row.by_default {
                ""
            } else {
                " (when asked for)"
            }
        ));
        print::line(format!("    {}", row.detail));
    }
}

/// Writes the report of a results folder and prints its table.
pub fn show(folder: &Path, json: bool) -> Result<(), Failure> {
    let page = taut_lab::report::write(folder)?;
    if json {
        let path = folder.join("summary.json");
        let summary = std::fs::read_to_string(&path)
            .map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
        print::line(summary);
        return Ok(());
    }
    let results = Results::load(folder).map_err(taut_lab::report::ReportError::from)?;
    let evaluation = Evaluation::of(&results);
    print::line(render_text_table(&rows(&evaluation.devices)));
    for ratio in ratios(&evaluation.devices, results.experiment.settings.seed) {
        print::line(ratio);
    }
    for missing in &results.experiment.left_out {
        print::line(format!(
            "left out: {}: {} ({})",
            missing.what, missing.why, missing.how
        ));
    }
    for problem in &evaluation.problems {
        print::line(format!("note: {problem}"));
    }
    if results.experiment.stage != Stage::Finished {
        print::line("note: this experiment did not go to its end");
    }
    print::line(format!("report: {}", page.display()));
    Ok(())
}

/// Held while measuring: two measurements on the same cores would only measure each other.
pub(crate) struct Alone {
    _name: std::os::unix::net::UnixListener,
}

impl Alone {
    /// Binds an abstract socket name, which the kernel frees however this process ends.
    pub(crate) fn claim() -> Result<Self, Failure> {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::{SocketAddr, UnixListener};
        SocketAddr::from_abstract_name("taut-measuring")
            .and_then(|name| UnixListener::bind_addr(&name))
            .map(|_name| Self { _name })
            .map_err(|_| {
                Failure::Missing(
                    "another taut demo or taut bench is measuring on this machine; both would only measure each other: wait for it to end"
                        .to_string(),
                )
            })
    }
}

/// The progress bar. It is redrawn between measurements only: a redraw during one would take time from
/// one of the two cores.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }
}

impl Bar {
    /// Takes it off the terminal.
    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Observer for Bar {
    fn progress(&mut self, done: Duration, total: Duration, what: &str) {
        let left = total.saturating_sub(done).as_secs();
        self.0.set_length(total.as_millis() as u64);
        self.0.set_position(done.as_millis() as u64);
        self.0
            .set_message(format!("{}:{:02} left  {what}", left / 60, left % 60));
        self.0.tick();
        if self.0.is_hidden() {
            eprintln!(
                "{:>3} %  {}:{:02} left  {what}",
                100 * done.as_millis() / total.as_millis().max(1),
                left / 60,
                left % 60
            );
        }
    }

    fn left_out(&mut self, left_out: &LeftOut) {
        self.0.suspend(|| {
            eprintln!(
                "left out: {}: {} ({})",
                left_out.what, left_out.why, left_out.how
            )
        });
    }

    fn note(&mut self, text: &str) {
        self.0.suspend(|| eprintln!("note: {text}"));
    }
}

impl From<ComparisonError> for Failure {
    fn from(e: ComparisonError) -> Self {
        match e {
            ComparisonError::Nothing(_) => Self::Missing(e.to_string()),
            ComparisonError::Results(_) | ComparisonError::Affinity(_) => {
                Self::Input(e.to_string())
            }
        }
    }
}

impl From<taut_lab::report::ReportError> for Failure {
    fn from(e: taut_lab::report::ReportError) -> Self {
        Self::Input(e.to_string())
    }
}
