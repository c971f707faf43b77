//! Control loops that were run: the report, as `taut control run --json` prints it, its folder, and the run of both sides
//! as processes.
//!
//! ```text
//! DIR/summary.json     what `--json` prints
//! DIR/rounds.csv       one row for each period: stamps, what became of it, how the plant stood
//! DIR/report.html, figures/   made from these by [`write_report`]
//! ```

mod published;
mod report;
mod rounds;
mod run;
mod shown;

pub use published::{Column, TABLE_6_3, TABLE_6_4, Table63, Table64};
pub use report::{is_controlled, write_report};
pub use rounds::{RoundsError, read_rounds, rounds_text};
pub use run::{Node, RunError, Sides, run};
pub use shown::{PUBLISHED, is_published, outcome, rows, runs};

use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_control::{Kpis, Record};
use taut_results::{ResultsError, read, read_head, refuse_results, write_json, write_whole};
use taut_traffic::control::{Datagrams, End};

/// File that the folder is known by.
pub const HEAD: &str = "summary.json";
/// File of the rounds.
pub const ROUNDS: &str = "rounds.csv";
const SCHEMA: u32 = 1;

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlReport {
    /// Layout of the folder.
    pub schema: u32,
    /// `taut control`, to be told from other summaries.
    pub kind: String,
    /// The command line, which repeats the run.
    pub command_line: String,
    /// When it began.
    pub started: String,
    /// Name of the plant.
    pub plant: String,
    /// Units of balance and travel.
    pub units: [String; 2],
    /// Whether time was virtual.
    pub is_virtual: bool,
    /// How it was run.
    pub settings: serde_json::Value,
    /// Why it ended.
    pub end: End,
    /// Periods without a reading, as the process was held up.
    pub missed: u64,
    /// What came over the plant's socket.
    pub plant_datagrams: Datagrams,
    /// What came over the controller's, where it is known.
    pub controller_datagrams: Option<Datagrams>,
    /// What was wrong with the first datagram that was no message, on either side.
    pub complaint: Option<String>,
    /// The figures.
    pub kpis: Kpis,
}

impl ControlReport {
    /// A report of now, without figures.
    pub fn new(command_line: String, plant: &taut_control::Model) -> Self {
        Self {
            schema: SCHEMA,
            kind: "taut control".to_owned(),
            command_line,
            started: taut_results::instant(std::time::SystemTime::now()),
            plant: plant.name().to_owned(),
            units: plant.parts().units.clone(),
            is_virtual: false,
            settings: serde_json::Value::Null,
            end: End::Stopped,
            missed: 0,
            plant_datagrams: Datagrams::default(),
            controller_datagrams: None,
            complaint: None,
            kpis: Kpis::default(),
        }
    }

    /// Writes the folder.
    ///
    /// # Errors
    /// There is something in it, or the file system refuses.
    pub fn write(&self, dir: &Path, records: &[Record]) -> Result<(), ResultsError> {
        refuse_results(dir)?;
        std::fs::create_dir_all(dir).map_err(ResultsError::io(dir))?;
        write_whole(&dir.join(ROUNDS), rounds_text(records).as_bytes())?;
        // Last: a folder with a head is whole.
        write_json(&dir.join(HEAD), self)
    }

    /// Reads the rounds of a folder.
    ///
    /// # Errors
    /// There are none, or they are damaged.
    pub fn read_records(dir: &Path) -> Result<Vec<Record>, ResultsError> {
        let path = dir.join(ROUNDS);
        let text = read(dir, ROUNDS)?;
        read_rounds(&String::from_utf8_lossy(&text)).map_err(|e| ResultsError::Samples {
            path,
            reason: e.to_string(),
        })
    }

    /// Reads a folder's report.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn read(dir: &Path) -> Result<Self, ResultsError> {
        read_head(dir, HEAD, SCHEMA)
    }
}
