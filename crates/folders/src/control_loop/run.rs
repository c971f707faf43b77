//! Runs plant and controller of a control loop as processes: starts them, waits for them, ends them, and merges their
//! results.

use super::rounds::read_rounds;
use super::{ControlReport, ROUNDS};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;
use taut_control::{Kpis, Record, Stage};
use taut_host::{DeviceError, DeviceProcess, SshAddress};
use taut_results::ResultsError;

/// Timeout for plant or controller to report that it listens.
const START: Duration = Duration::from_secs(20);
/// Interval between checks of a running plant.
const LOOK: Duration = Duration::from_millis(20);

/// The machine or namespace on which plant or controller runs.
#[derive(Debug, Clone)]
pub enum Node {
    /// This machine, in the current namespace.
    Here,
    /// A network namespace of this machine.
    Namespace(String),
    /// Another machine, which has its own clock.
    Ssh(SshAddress),
}

/// Plant and controller of a control loop, and how and where to run them.
#[derive(Debug, Clone)]
pub struct Sides {
    /// Path of the `taut` program.
    pub program: PathBuf,
    /// Command-line options that both plant and controller get.
    pub options: Vec<String>,
    /// Processor core of the plant, and processor core of the controller.
    pub cores: [usize; 2],
    /// Nodes of the plant and of the controller. The plant runs here or in a namespace, because its results are read
    /// from a folder.
    pub nodes: [Node; 2],
    /// True if the plant is to print its state at each reading.
    pub watched: bool,
    /// Address at which the controller receives reports, and address at which the plant receives commands.
    pub addresses: [String; 2],
    /// Number of inputs of the plant.
    pub inputs: usize,
}

/// The reason why a run of a control loop has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Plant or controller did not start, or died.
    #[error(transparent)]
    Side(#[from] DeviceError),
    /// A results file could not be written or read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The folder for the output of plant and controller could not be created.
    #[error("cannot make a folder for the output of plant and controller: {0}")]
    Scratch(std::io::Error),
    /// Plant or controller printed unexpected output.
    #[error("{0}: not an output of plant or controller; do both sides run the same taut?")]
    Said(String),
    /// The user stopped the run.
    #[error("stopped before the loop finished")]
    Stopped,
}

/// Runs plant and controller until the plant ends, or until `watch` requests the end. `watch` receives each line that
/// the plant prints, and is also called regularly without a line. Both processes have ended when the function returns.
///
/// # Errors
/// Returns a [`RunError`] if plant or controller does not start, dies, or prints something unexpected. Also returns one
/// if a file cannot be written or read, or if the user stopped the run before the plant wrote its results.
pub fn run(
    sides: &Sides,
    mut report: ControlReport,
    stop: &AtomicBool,
    mut watch: impl FnMut(Option<&str>) -> bool,
) -> Result<(ControlReport, Vec<Record>), RunError> {
    let scratch = tempfile::Builder::new()
        .prefix("taut-control-")
        .tempdir()
        .map_err(RunError::Scratch)?;
    let folder = scratch.path();
    let log = folder.join("heard.csv");
    let [to_controller, to_plant] = &sides.addresses;
    let mut words = vec!["controller", "--bind", to_controller, "--answer-to-sender"];
    let log_text = log.display().to_string();
    let one_clock = !matches!(sides.nodes[1], Node::Ssh(_));
    if one_clock {
        words.extend(["--log", &log_text]);
    }
    let mut controller = start(sides, 1, "controller", &words, folder)?;
    let address = started(&mut controller)?;
    let out = folder.join("plant");
    let out_text = out.display().to_string();
    // The controller already listens, so a missing reply can only be the network's fault; 10 s are enough to wait.
    let mut words = vec!["plant", &address, "--bind", to_plant, "--out", &out_text];
    words.extend(["--patience", "10s"]);
    if sides.watched {
        words.push("--live");
    }
    let mut plant = start(sides, 0, "plant", &words, folder)?;
    started(&mut plant)?;
    wait_for_end(&mut plant, &mut controller, stop, &mut watch)?;
    let stopped = plant.is_alive();
    let plant_words = ended(plant)?;
    let controller_words = ended(controller)?;
    if stopped && !out.join(super::HEAD).exists() {
        return Err(RunError::Stopped);
    }
    let (of_plant, mut records) = read_plant(&out, &plant_words)?;
    if one_clock {
        let heard = std::fs::read_to_string(&log).map_err(ResultsError::io(&log))?;
        merge(&mut records, &heard);
    }
    report.end = of_plant.end;
    report.missed = of_plant.missed;
    report.plant_datagrams = of_plant.plant_datagrams;
    report.complaint = of_plant.complaint;
    add_summary(&mut report, &controller_words);
    report.kpis = Kpis::of(&records, sides.inputs, one_clock, None);
    report.kpis.has_fallen = of_plant.kpis.has_fallen;
    report.kpis.fallen_s = of_plant.kpis.fallen_s;
    report.kpis.erected_s = of_plant.kpis.erected_s;
    Ok((report, records))
}

fn start(
    sides: &Sides,
    side: usize,
    name: &str,
    words: &[&str],
    folder: &Path,
) -> Result<DeviceProcess, RunError> {
    let all = ["control"].iter().chain(words).copied();
    let options = sides.options.iter().map(String::as_str);
    let all = all.chain(options).chain(["--until-stdin-closes", "--json"]);
    let command = match &sides.nodes[side] {
        Node::Here => {
            let mut command = Command::new(&sides.program);
            command.args(all);
            command
        }
        Node::Namespace(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]);
            command.arg(&sides.program).args(all);
            command
        }
        Node::Ssh(address) => {
            let words: Vec<&str> = ["taut"].into_iter().chain(all).collect();
            address.command(&[], &words)
        }
    };
    Ok(DeviceProcess::start(
        name,
        command,
        sides.cores[side],
        folder,
    )?)
}

/// Waits until plant or controller reports the address at which it listens.
fn started(side: &mut DeviceProcess) -> Result<String, RunError> {
    let line = side.wait_for_line(|line| line.contains("\"started\""), START)?;
    let said: serde_json::Value =
        serde_json::from_str(&line).map_err(|_| RunError::Said(line.clone()))?;
    let address = said["address"].as_str().map(str::to_owned);
    address.ok_or(RunError::Said(line))
}

/// Waits until the plant ends, or until the user or `watch` requests the end.
fn wait_for_end(
    plant: &mut DeviceProcess,
    controller: &mut DeviceProcess,
    stop: &AtomicBool,
    watch: &mut impl FnMut(Option<&str>) -> bool,
) -> Result<(), RunError> {
    while plant.is_alive() {
        let mut asked = stop.load(Ordering::Relaxed) || watch(None);
        while let Some(line) = plant.next_line()? {
            asked |= watch(Some(&line));
        }
        if asked {
            break;
        }
        controller.check()?;
        sleep(LOOK);
    }
    Ok(())
}

/// Ends the process of the plant or controller, and returns everything that the process printed on standard output.
fn ended(side: DeviceProcess) -> Result<String, RunError> {
    let stdout = side.stdout().to_owned();
    match side.stop() {
        // A plant that has fallen exits with code 1.
        Ok(_) | Err(DeviceError::Died { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    std::fs::read_to_string(&stdout).map_err(|e| ResultsError::io(&stdout)(e).into())
}

/// Reads the results of the plant from the folder `out`. If there are none, the error contains the plant's output
/// `words`.
fn read_plant(out: &Path, words: &str) -> Result<(ControlReport, Vec<Record>), RunError> {
    let report = ControlReport::read(out).map_err(|e| {
        let words = words.trim();
        if words.is_empty() {
            RunError::Results(e)
        } else {
            RunError::Said(format!("plant: {words}"))
        }
    })?;
    let path = out.join(ROUNDS);
    let text = std::fs::read_to_string(&path).map_err(ResultsError::io(&path))?;
    let records = read_rounds(&text).map_err(|e| RunError::Said(e.to_string()))?;
    Ok((report, records))
}

/// Adds the datagram counts and the error in the summary that the controller printed to the report.
fn add_summary(report: &mut ControlReport, controller_words: &str) {
    let said = controller_words.lines().rev();
    let summary = said
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|value| value["event"] == "summary");
    if let Some(summary) = summary {
        report.controller_datagrams = serde_json::from_value(summary["datagrams"].clone()).ok();
        let complaint = summary["complaint"].as_str().map(str::to_owned);
        report.complaint = report.complaint.take().or(complaint);
    }
}

/// Adds to `records` the times at which the controller received reports and sent commands. They are from the
/// controller's own log (`heard`), because NCSbench's messages do not contain them.
fn merge(records: &mut [Record], heard: &str) {
    let rows = heard.lines().skip(1).filter_map(|line| {
        let mut fields = line.split(',').map(|field| field.parse::<u64>().ok());
        Some((fields.next()??, [fields.next()??, fields.next()??]))
    });
    let heard: BTreeMap<u64, [u64; 2]> = rows.collect();
    for record in records {
        if let Some([received_ns, sent_ns]) = heard.get(&record.sequence) {
            record.stamps.set(Stage::ReportReceived, *received_ns);
            record.stamps.set(Stage::CommandSent, *sent_ns);
        }
    }
}
