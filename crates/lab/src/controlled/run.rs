//! Both sides of a loop as processes: started, waited for, ended, and their accounts brought together.

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

/// Longest time that a side takes to say that it is there.
const START: Duration = Duration::from_secs(20);
/// Pause between looks at a plant that runs.
const LOOK: Duration = Duration::from_millis(20);

/// Where a side runs.
#[derive(Debug, Clone)]
pub enum Node {
    /// Here.
    Here,
    /// In a network namespace of this machine.
    Namespace(String),
    /// On another machine, whose clock is another one.
    Ssh(SshAddress),
}

/// The two sides.
#[derive(Debug, Clone)]
pub struct Sides {
    /// The file of this program.
    pub program: PathBuf,
    /// Options that both get.
    pub options: Vec<String>,
    /// Core of each: plant, controller.
    pub cores: [usize; 2],
    /// Where each runs; the plant here or in a namespace, as its results are read from a folder.
    pub nodes: [Node; 2],
    /// Whether the plant says how it stands at each reading.
    pub watched: bool,
    /// Address at which the controller hears reports, and the plant commands.
    pub addresses: [String; 2],
    /// Inputs of the plant.
    pub inputs: usize,
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A side did not start or died.
    #[error(transparent)]
    Side(#[from] DeviceError),
    /// A file could not be written or read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A folder for what the sides write could not be made.
    #[error("cannot make a folder for what both sides say: {0}")]
    Scratch(std::io::Error),
    /// What a side wrote is not what it writes.
    #[error("{0}: not what a side of the loop says; are both of the same taut?")]
    Said(String),
    /// It was told to stop.
    #[error("stopped before the loop had run")]
    Stopped,
}

/// Runs both sides until the plant is done, or until `watch` asks for the end: it is shown each line that the plant prints, and
/// asked now and then without one. Whatever happens, neither outlives this.
///
/// # Errors
/// [`RunError`].
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
    // The controller listens already, so that nobody answers only where the network does not let it.
    let mut words = vec!["plant", &address, "--bind", to_plant, "--out", &out_text];
    words.extend(["--patience", "10s"]);
    if sides.watched {
        words.push("--live");
    }
    let mut plant = start(sides, 0, "plant", &words, folder)?;
    started(&mut plant)?;
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
    let stopped = plant.is_alive();
    let plant_words = ended(plant)?;
    let controller_words = ended(controller)?;
    if stopped && !out.join(super::HEAD).exists() {
        return Err(RunError::Stopped);
    }
    let of_plant = ControlReport::read(&out).map_err(|e| {
        let words = plant_words.trim();
        if words.is_empty() {
            RunError::Results(e)
        } else {
            RunError::Said(format!("plant: {words}"))
        }
    })?;
    let path = out.join(ROUNDS);
    let text = std::fs::read_to_string(&path).map_err(ResultsError::io(&path))?;
    let mut records = read_rounds(&text).map_err(|e| RunError::Said(e.to_string()))?;
    if one_clock {
        let heard = std::fs::read_to_string(&log).map_err(ResultsError::io(&log))?;
        merge(&mut records, &heard);
    }
    report.end = of_plant.end;
    report.missed = of_plant.missed;
    report.plant_datagrams = of_plant.plant_datagrams;
    report.complaint = of_plant.complaint;
    let said = controller_words.lines().rev();
    let summary = said
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|value| value["event"] == "summary");
    if let Some(summary) = summary {
        report.controller_datagrams = serde_json::from_value(summary["datagrams"].clone()).ok();
        let complaint = summary["complaint"].as_str().map(str::to_owned);
        report.complaint = report.complaint.or(complaint);
    }
    report.kpis = Kpis::of(&records, sides.inputs, one_clock, None);
    report.kpis.has_fallen = of_plant.kpis.has_fallen;
    report.kpis.fallen_s = of_plant.kpis.fallen_s;
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

/// Waits until a side says where it listens.
fn started(side: &mut DeviceProcess) -> Result<String, RunError> {
    let line = side.wait_for_line(|line| line.contains("\"started\""), START)?;
    let said: serde_json::Value =
        serde_json::from_str(&line).map_err(|_| RunError::Said(line.clone()))?;
    let address = said["address"].as_str().map(str::to_owned);
    address.ok_or(RunError::Said(line))
}

/// Ends a side, and gives its last words.
fn ended(side: DeviceProcess) -> Result<String, RunError> {
    let stdout = side.stdout().to_owned();
    match side.stop() {
        // A plant that has fallen says so with code 1.
        Ok(_) | Err(DeviceError::Died { .. }) => {}
        Err(e) => return Err(e.into()),
    }
    std::fs::read_to_string(&stdout).map_err(|e| ResultsError::io(&stdout)(e).into())
}

/// Fills in when the controller had reports and sent commands, which NCSbench's messages do not say.
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
