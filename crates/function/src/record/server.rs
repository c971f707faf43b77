//! What the control socket of a recording is asked, and answers.

use crate::control_socket::{Decides, Loading, answer};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use taut_capture::capture::{Capture, Found, Status};
use taut_capture::filter::Filter;
use taut_capture::flows::{By, FlowsStatus};

/// Request: `{"op": "status"}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// State.
    Status {},
    /// Have a trigger fire.
    Trigger {
        /// Its name.
        name: String,
        /// Why, as comments in files are to say.
        #[serde(default)]
        cause: String,
    },
    /// Make the ring larger or smaller.
    Resize {
        /// Its size, bytes.
        bytes: u64,
    },
    /// The flows that send most at the moment.
    Flows {
        /// How many.
        most: usize,
        /// What they are sorted by.
        #[serde(default)]
        by: By,
    },
    /// Write packets from memory and disk into a file.
    Query {
        /// Expression that they fit.
        filter: String,
        /// Time of the first, nanoseconds since 1970.
        from_ns: u64,
        /// Time of the last.
        to_ns: u64,
        /// The file, which the process writes that has the capture.
        file: PathBuf,
    },
}

/// Answer to a request.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request was granted.
    pub ok: bool,
    /// Reason why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// State.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Size of the ring after a change, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_bytes: Option<u64>,
    /// Flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsStatus>,
    /// What a query has found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
}

/// What all workers share.
pub(super) struct Deciding {
    pub capture: Capture,
}

impl Deciding {
    fn granted(&self, request: Request) -> Result<Answer, String> {
        let mut answer = Answer {
            ok: true,
            ..Answer::default()
        };
        match request {
            Request::Status {} => answer.status = Some(self.capture.status()),
            Request::Trigger { name, cause } => {
                let cause = match cause.is_empty() {
                    true => "somebody asked",
                    false => &cause,
                };
                self.capture.fire(&name, cause)?;
            }
            Request::Resize { bytes } => {
                answer.ring_bytes = Some(self.capture.resize(bytes));
            }
            Request::Flows { most, by } => {
                let flows = self.capture.flows(most, by);
                let none = "this capture tells no flows apart: start it with --flows, or with flows in its settings";
                answer.flows = Some(flows.ok_or(none)?);
            }
            Request::Query {
                filter,
                from_ns,
                to_ns,
                file,
            } => {
                let filter = Filter::new(&filter).map_err(|e| e.to_string())?;
                answer.found = Some(self.capture.query(&filter, from_ns, to_ns, &file)?);
            }
        }
        Ok(answer)
    }
}

impl Decides for Deciding {
    fn answer(
        &self,
        line: &[u8],
        _: &mut dyn io::Read,
        output: &mut dyn io::Write,
        _: &Loading,
    ) -> io::Result<()> {
        answer(line, output, |request| self.granted(request))
    }

    fn settle(&self) -> Result<(), String> {
        Ok(())
    }
}
