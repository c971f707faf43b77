//! The requests and replies of a gateway's control socket.

use super::bearer::{BearerText, Match, read_csv};
use super::control::{Control, Wish};
use super::refusal::Refused;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use taut_function::control_socket::{Decides, Loading, read_file, write};

/// A request, such as `{"op": "add", ...}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Adds bearers, all or none.
    Add {
        /// The bearers to add.
        bearers: Vec<BearerText>,
        /// True if an existing bearer is changed instead of refused.
        #[serde(default)]
        replace: bool,
    },
    /// Removes bearers, all or none.
    Remove {
        /// The matches of the bearers to remove.
        matches: Vec<String>,
    },
    /// Adds bearers from `bytes` bytes of CSV after this line, all or none.
    Load {
        /// The length of the CSV text in bytes.
        bytes: u64,
        /// True if an existing bearer is changed, as in `add`.
        #[serde(default)]
        replace: bool,
    },
    /// Lists every bearer as one JSON object per line; the reply has the number of these lines.
    List {},
    /// Returns the gateway's state: the number of bearers and its limit, and the packet counts by outcome.
    Status {},
}

/// The reply to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// True if the request was granted.
    pub ok: bool,
    /// The reason for a refusal; none if the request was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The number of the line with the error, from 1, in a loaded file; none for other errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The number of bearers that the request added, changed, removed or listed. In the reply to a status request, the
    /// number of existing bearers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearers: Option<usize>,
    /// The limit on the number of bearers; only in the reply to a status request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<usize>,
    /// The packet counts by outcome; only in the reply to a status request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<BTreeMap<String, u64>>,
    /// The counts of PFCP messages by outcome, and the number of sessions. Only in the reply to a status request, and
    /// only if PFCP is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pfcp: Option<BTreeMap<String, u64>>,
    /// The counts of GTP-C messages by outcome, and the number of sessions. Only in the reply to a status request, and
    /// only if GTP-C is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gtpc: Option<BTreeMap<String, u64>>,
}

impl Answer {
    fn done(bearers: usize) -> Self {
        Self {
            ok: true,
            bearers: Some(bearers),
            ..Self::default()
        }
    }

    fn wrong(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }
}

fn lock(control: &Mutex<Control>) -> std::sync::MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The control plane as the handler of requests that arrive at the control socket.
pub(super) struct Served(pub(super) Arc<Mutex<Control>>);

impl Decides for Served {
    fn settle(&self) -> Result<(), String> {
        lock(&self.0).settle().map_err(|stuck| stuck.to_string())
    }

    fn answer(
        &self,
        line: &[u8],
        input: &mut dyn Read,
        output: &mut dyn Write,
        loading: &Loading,
    ) -> std::io::Result<()> {
        answer(line, input, output, &self.0, loading)
    }
}

fn answer(
    line: &[u8],
    input: &mut dyn Read,
    output: &mut dyn Write,
    control: &Mutex<Control>,
    loading: &Loading,
) -> std::io::Result<()> {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(e) => return write(output, &Answer::wrong(format!("not a request: {e}"))),
    };
    let answer = match request {
        Request::Add { bearers, replace } => add(&bearers, replace, &mut lock(control)),
        Request::Remove { matches } => remove(&matches, &mut lock(control)),
        Request::Load { bytes, replace } => match read_file(bytes, input, output, loading)? {
            Ok(text) => load(&text, replace, &mut lock(control)),
            Err(wrong) => Answer::wrong(wrong),
        },
        Request::List {} => {
            let bearers: Vec<_> = lock(control).bearers().collect();
            write(output, &Answer::done(bearers.len()))?;
            for bearer in bearers {
                write(output, &BearerText::from(bearer))?;
            }
            return Ok(());
        }
        Request::Status {} => {
            let control = lock(control);
            let (bearers, room) = control.occupancy();
            let named = |counts: Vec<(&str, u64)>| {
                let named = counts.into_iter().map(|(name, n)| (name.to_string(), n));
                named.collect()
            };
            Answer {
                room: Some(room),
                packets: Some(named(control.outcomes())),
                pfcp: control
                    .signalling
                    .as_ref()
                    .map(|counts| named(counts.read())),
                gtpc: control.gtpc.as_ref().map(|counts| named(counts.read())),
                ..Answer::done(bearers)
            }
        }
    };
    write(output, &answer)
}

fn wish(bearer: super::Bearer, replace: bool) -> Wish {
    if replace {
        Wish::Put(bearer)
    } else {
        Wish::Add(bearer)
    }
}

fn granted(wishes: &[Wish], control: &mut Control) -> Result<Answer, (usize, Refused)> {
    control.grant(wishes).map(|()| Answer::done(wishes.len()))
}

fn add(bearers: &[BearerText], replace: bool, control: &mut Control) -> Answer {
    let checked: Result<Vec<_>, _> = bearers
        .iter()
        .map(|text| {
            let checked = text.check(control.own());
            let line = text.to_string();
            let wrong = |e| format!("{}: {e}", line.trim_end_matches(','));
            checked.map(|bearer| wish(bearer, replace)).map_err(wrong)
        })
        .collect();
    match checked {
        Ok(wishes) => {
            granted(&wishes, control).unwrap_or_else(|(_, e)| Answer::wrong(e.to_string()))
        }
        Err(e) => Answer::wrong(e),
    }
}

fn remove(matches: &[String], control: &mut Control) -> Answer {
    let matches: Result<Vec<Match>, _> = matches.iter().map(|text| text.parse()).collect();
    match matches {
        Ok(matches) => {
            let wishes: Vec<_> = matches.into_iter().map(Wish::Remove).collect();
            granted(&wishes, control).unwrap_or_else(|(_, e)| Answer::wrong(e.to_string()))
        }
        Err(e) => Answer::wrong(e),
    }
}

fn load(text: &str, replace: bool, control: &mut Control) -> Answer {
    let at = |line: usize, error: String| Answer {
        line: Some(line),
        ..Answer::wrong(error)
    };
    let bearers = match read_csv(text, control.own()) {
        Ok(bearers) => bearers,
        Err((line, error)) => return at(line, error),
    };
    if bearers.is_empty() {
        return Answer::wrong("the file has no bearers");
    }
    let wishes: Vec<_> = bearers.iter().map(|(_, b)| wish(*b, replace)).collect();
    granted(&wishes, control)
        .unwrap_or_else(|(number, e)| at(bearers.get(number).map_or(0, |b| b.0), e.to_string()))
}
