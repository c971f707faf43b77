//! The requests and replies of a router's control socket.

use super::control::Control;
use super::prefix::Network;
use super::refusal::Refused;
use super::status::{NeighbourText, RouteText, Status};
use super::text::{self, Asked, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use taut_function::control_socket::{Decides, Loading, read_file, write};
use taut_sys::MAIN_TABLE;

/// A request, such as `{"op": "add", ...}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Adds routes, in order, given in the format of `ip route`.
    Add {
        /// The routes to add.
        routes: Vec<String>,
        /// True if a route whose prefix already has a route replaces that route; false if it is refused.
        #[serde(default)]
        replace: bool,
    },
    /// Removes routes, in order.
    Remove {
        /// The prefixes of the routes to remove, each followed by `table N` if it is not in the main table.
        prefixes: Vec<String>,
    },
    /// Adds the routes in the `bytes` bytes of text after this line.
    Load {
        /// The length of the text in bytes.
        bytes: u64,
        /// True if existing routes are replaced, as in `add`.
        #[serde(default)]
        replace: bool,
    },
    /// Lists every route as one JSON object per line; the reply has the number of these lines.
    List {},
    /// Returns the route of an address, and the route's neighbours.
    Show {
        /// The destination address whose route is requested.
        address: IpAddr,
        /// The number of the table; the main one by default.
        #[serde(default = "main_table")]
        table: u32,
    },
    /// Returns the router's state: the numbers of routes, neighbours and next hops.
    Status {},
}

fn main_table() -> u32 {
    MAIN_TABLE
}

/// The reply to a request at the control socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// True if the request was granted.
    pub ok: bool,
    /// The reason for a refusal; none if the request was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The number, from 1, of the line of the text that contains the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The number of routes added, changed, removed or listed. If a route is refused, this is the number of routes
    /// before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<usize>,
    /// The route of the requested address, in the reply to `show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<RouteText>,
    /// The neighbours to which `route` leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub neighbours: Option<Vec<NeighbourText>>,
    /// The number of packets that workers have sent by the next hop of `route`, including packets of other routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The other routes that contain the address: those less specific than `route`, longest prefix first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covering: Option<Vec<RouteText>>,
    /// The state of the router, in the reply to `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

impl Answer {
    fn done(routes: usize) -> Self {
        Self {
            ok: true,
            routes: Some(routes),
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

fn lock(control: &Mutex<Control>) -> MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The control plane, as clients of the control socket reach it.
pub(super) struct Served(pub(super) Arc<Mutex<Control>>);

impl Decides for Served {
    /// Does nothing: tables are changed in place, so a change is in force before the reply to its request is sent.
    fn settle(&self) -> Result<(), String> {
        Ok(())
    }

    fn answer(
        &self,
        line: &[u8],
        input: &mut dyn Read,
        output: &mut dyn Write,
        loading: &Loading,
    ) -> std::io::Result<()> {
        let request: Request = match serde_json::from_slice(line) {
            Ok(request) => request,
            Err(e) => return write(output, &Answer::wrong(format!("not a request: {e}"))),
        };
        let answer = match request {
            Request::Add { routes, replace } => add(&routes.join("\n"), replace, &self.0),
            Request::Load { bytes, replace } => match read_file(bytes, input, output, loading)? {
                Ok(text) => add(&text, replace, &self.0),
                Err(wrong) => Answer::wrong(wrong),
            },
            Request::Remove { prefixes } => remove(&prefixes, &mut lock(&self.0)),
            Request::List {} => {
                let routes = lock(&self.0).list();
                write(output, &Answer::done(routes.len()))?;
                for route in routes {
                    write(output, &route)?;
                }
                return Ok(());
            }
            Request::Show { address, table } => show(address, table, &lock(&self.0)),
            Request::Status {} => Answer {
                ok: true,
                status: Some(lock(&self.0).status()),
                ..Answer::default()
            },
        };
        write(output, &answer)
    }
}

fn show(address: IpAddr, table: u32, control: &Control) -> Answer {
    let ids = control.table_ids();
    let Some(at) = ids.iter().position(|id| *id == table) else {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        return Answer::wrong(format!(
            "unknown table {table}; the tables are {}",
            ids.join(", ")
        ));
    };
    match control.show(at as u8, address) {
        None => Answer::wrong(format!("no route to {address}")),
        Some((route, neighbours)) => Answer {
            ok: true,
            route: Some(route),
            neighbours: Some(neighbours),
            packets: control.packets_towards(at as u8, address),
            covering: Some(control.covering(at as u8, address)),
            ..Answer::default()
        },
    }
}

/// The error message for a request to change routes while routes come from the kernel.
const KERNELS: &str =
    "the routes are the kernel's: change them there (ip route, or a routing daemon)";

/// Adds the routes in `text`, in order. If a route is refused, the reply has the number of routes that are in force.
pub(super) fn add(text: &str, replace: bool, control: &Mutex<Control>) -> Answer {
    if lock(control).are_kernels() {
        return Answer::wrong(KERNELS);
    }
    let (interfaces, tables) = {
        let control = lock(control);
        (control.interfaces(), control.table_ids())
    };
    let routes = match text::parse(text, &interfaces, &tables) {
        Ok(routes) => routes,
        Err((line, error)) => {
            return Answer {
                line: Some(line),
                ..Answer::wrong(error)
            };
        }
    };
    if routes.is_empty() {
        return Answer::wrong("the file has no routes");
    }
    let count = routes.len();
    // The lock is released between routes: the slow path and other requests wait for it.
    for (done, Asked { network, target }) in routes.into_iter().enumerate() {
        if let Err(error) = set(network, target, replace, &mut lock(control)) {
            return Answer {
                routes: Some(done),
                ..Answer::wrong(error)
            };
        }
    }
    Answer::done(count)
}

fn set(
    network: Network,
    target: Target,
    replace: bool,
    control: &mut Control,
) -> Result<(), String> {
    let prefix = network.prefix;
    match control.get(network) {
        Some(Target::Local) => return Err(format!("{prefix} is the router's own address")),
        Some(_) if control.is_network_of_interface(network) => {
            return Err(format!("{prefix} is the network of an interface"));
        }
        Some(_) if !replace => return Err(format!("{prefix} has a route already")),
        _ => {}
    }
    let set = control.set(network, target);
    set.map_err(|e| format!("{prefix}: {e}"))
}

fn remove(prefixes: &[String], control: &mut Control) -> Answer {
    if control.are_kernels() {
        return Answer::wrong(KERNELS);
    }
    for (done, text) in prefixes.iter().enumerate() {
        let removed = text::network(text, &control.table_ids()).and_then(|network| {
            let prefix = network.prefix;
            let is_own = matches!(control.get(network), Some(Target::Local));
            if is_own || control.is_network_of_interface(network) {
                return Err(format!("{prefix} belongs to an interface"));
            }
            let removed = control.remove(network);
            match removed.map_err(|e: Refused| format!("{prefix}: {e}"))? {
                true => Ok(()),
                false => Err(format!("{prefix} has no route")),
            }
        });
        if let Err(error) = removed {
            return Answer {
                routes: Some(done),
                ..Answer::wrong(error)
            };
        }
    }
    Answer::done(prefixes.len())
}
