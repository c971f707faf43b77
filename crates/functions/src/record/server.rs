//! The requests and replies of a recording's control socket.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use taut_capture::capture::{Capture, Found, Status};
use taut_capture::filter::Filter;
use taut_capture::flows::{By, FlowsStatus};
use taut_function::control_socket::{Decides, Loading, answer};

/// A request, such as `{"op": "status"}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Returns the state of the recording.
    Status {},
    /// Fires a trigger.
    Trigger {
        /// The name of the trigger.
        name: String,
        /// The reason why the trigger fires, for the comments in capture files.
        #[serde(default)]
        cause: String,
    },
    /// Resizes the ring in which packets are recorded.
    Resize {
        /// The new size of the ring of packets in bytes.
        bytes: u64,
    },
    /// Returns the flows that send most at the moment.
    Flows {
        /// The limit on the number of flows in the reply.
        most: usize,
        /// The quantity by which the flows in the reply are sorted.
        #[serde(default)]
        by: By,
    },
    /// Writes packets from memory and disk into a file.
    Query {
        /// The filter expression that the packets match.
        filter: String,
        /// The earliest time of packets that are written, nanoseconds since 1970.
        from_ns: u64,
        /// The latest time of packets that are written, nanoseconds since 1970.
        to_ns: u64,
        /// The file, written by the process that has the capture.
        file: PathBuf,
    },
}

/// The reply to a request on the control socket.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// True if the request was granted.
    pub ok: bool,
    /// The reason for a refusal; none if the request was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The state of the recording; only in the reply to a status request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The size of the ring of packets in bytes; only in the reply to a resize request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring_bytes: Option<u64>,
    /// The flows that send most; only in the reply to a request for flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<FlowsStatus>,
    /// The result of a query; only in the reply to a query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Found>,
}

/// The control plane of a recording: the capture, which all workers share.
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
                let none = "this capture does not track flows: start it with --flows, or with flows in its settings";
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
