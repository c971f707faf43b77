//! The results of a control loop: the report that `taut control run --json` prints, its folder, and the start of plant
//! and controller as processes.
//!
//! ```text
//! DIR/summary.json     what `--json` prints
//! DIR/rounds.csv       one row for each sampling period: timestamps, result, state of the plant
//! DIR/report.html, figures/   made from these by [`write_report`]
//! ```

mod published_tables;
mod report;
mod rounds;
mod run;
mod shown;

pub use published_tables::{Column, TABLE_6_3, TABLE_6_4, Table63, Table64};
pub use report::{is_controlled, write_report};
pub use rounds::{RoundsError, read_rounds, rounds_text};
pub use run::{Node, RunError, Sides, run};
pub use shown::{PUBLISHED, has_stayed_down, is_published, outcome, rows, runs};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use taut_control::{Kpis, Record};
use taut_results::{ResultsError, read, read_head, refuse_results, write_json, write_whole};
use taut_traffic::control::{Datagrams, End};

/// The summary of a run; a results folder of a control loop is recognized by this file.
pub const HEAD: &str = "summary.json";
/// The file with one row for each sampling period.
pub const ROUNDS: &str = "rounds.csv";
/// Version of the layout of the results folder.
pub const SCHEMA: u32 = 1;

/// The result of one run of a control loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ControlReport {
    /// Version of the layout of the results folder.
    pub schema: u32,
    /// The constant `taut control`, which distinguishes this summary from other summaries.
    pub kind: String,
    /// The command line that repeats the run.
    pub command_line: String,
    /// The time at which the run began, RFC 3339.
    pub started: String,
    /// Name of the plant.
    pub plant: String,
    /// Units of the plant's balance and of its travel, such as degrees and metres.
    pub units: [String; 2],
    /// True if the run took place in virtual time.
    pub is_virtual: bool,
    /// The scenario of the run in six parts; none in folders of older versions, and for a run of the plant or
    /// controller alone.
    #[serde(default)]
    pub scenario: Option<ScenarioParts>,
    /// The settings of the run, by name.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub settings: serde_json::Value,
    /// The reason why the run ended.
    pub end: End,
    /// Number of sampling periods without a sensor reading, because the plant's process was delayed.
    pub missed: u64,
    /// Counts of the datagrams that the plant's socket received.
    pub plant_datagrams: Datagrams,
    /// Counts of the datagrams that the controller's socket received, if known.
    pub controller_datagrams: Option<Datagrams>,
    /// The error in the first invalid datagram that plant or controller received; none if all datagrams were valid.
    pub complaint: Option<String>,
    /// The key performance indicators of the control loop.
    pub kpis: Kpis,
}

/// The description of a control loop's scenario in six parts (Gallenmüller's dissertation, TU München 2021, section
/// 6.1.2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScenarioParts {
    /// Application software: plant, controller and their settings.
    pub application: String,
    /// Network stack: format and transport of messages.
    pub network_stack: String,
    /// Topology: where plant and controller are, and how they are connected.
    pub topology: String,
    /// Physical environment of the plant.
    pub environment: String,
    /// Interference: other traffic, and imposed delays and losses.
    pub interference: String,
    /// Hardware that plant and controller ran on.
    pub hardware: String,
}

impl ScenarioParts {
    /// Returns the six parts of the scenario, each with its name.
    pub fn named(&self) -> [(&'static str, &str); 6] {
        [
            ("application software", &self.application),
            ("network stack", &self.network_stack),
            ("topology", &self.topology),
            ("physical environment", &self.environment),
            ("interference", &self.interference),
            ("hardware", &self.hardware),
        ]
    }
}

impl ControlReport {
    /// Returns a report that starts at the current time and has no results.
    pub fn new(command_line: String, plant: &taut_control::Model) -> Self {
        Self {
            schema: SCHEMA,
            kind: "taut control".to_owned(),
            command_line,
            started: taut_results::instant(std::time::SystemTime::now()),
            plant: plant.name().to_owned(),
            units: plant.parts().units.clone(),
            is_virtual: false,
            scenario: None,
            settings: serde_json::Value::Null,
            end: End::Stopped,
            missed: 0,
            plant_datagrams: Datagrams::default(),
            controller_datagrams: None,
            complaint: None,
            kpis: Kpis::default(),
        }
    }

    /// Writes the results of a control loop, and one record for each sampling period, into the folder `dir`.
    ///
    /// # Errors
    /// Returns an error if the folder is not empty, or the file system reports an error.
    pub fn write(&self, dir: &Path, records: &[Record]) -> Result<(), ResultsError> {
        refuse_results(dir)?;
        std::fs::create_dir_all(dir).map_err(ResultsError::io(dir))?;
        write_whole(&dir.join(ROUNDS), rounds_text(records).as_bytes())?;
        // The summary is written last, so a folder that has it is complete.
        write_json(&dir.join(HEAD), self)
    }

    /// Reads the table of sampling periods from a folder.
    ///
    /// # Errors
    /// Returns an error if the table is missing or damaged.
    pub fn read_records(dir: &Path) -> Result<Vec<Record>, ResultsError> {
        let path = dir.join(ROUNDS);
        let text = read(dir, ROUNDS)?;
        read_rounds(&String::from_utf8_lossy(&text)).map_err(|e| ResultsError::Samples {
            path,
            reason: e.to_string(),
        })
    }

    /// Reads the report of a folder.
    ///
    /// # Errors
    /// Returns an error if the report is missing or damaged.
    pub fn read(dir: &Path) -> Result<Self, ResultsError> {
        read_head(dir, HEAD, SCHEMA)
    }
}
