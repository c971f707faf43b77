//! Finds the cables between nodes: every node sends and receives frames on all its interfaces.

use super::probe::{InterfaceState, LinkReport};
use super::{LinkEndText, script, token};
use crate::definition::NodeDefinition;
use crate::error::ExperimentError;
use crate::name::is_plain_name;
use crate::node::address::NodeAddress;
use crate::node::{Node, Site, Step, of_roles};
use crate::role::Role;
use crate::secrets::Secrets;
use crate::variables::Values;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time for a node to start and to end, in addition to the duration of the test.
const GRACE: Duration = Duration::from_secs(30);
/// Interval between two checks whether a node has ended its test.
const POLL: Duration = Duration::from_millis(20);

/// A request to find the cables among nodes.
#[derive(Debug)]
pub struct WireRequest {
    /// Names and addresses of the nodes: `local`, `ssh://user@host:port` or `netns:NAME`.
    pub nodes: Vec<(String, String)>,
    /// Ends of cables to test, as node and interface; if the list is empty, all Ethernet interfaces that are up are
    /// tested.
    pub only: Vec<LinkEndText>,
    /// Duration of the test.
    pub time: Duration,
    /// Path of the file of this program, which is also run on nodes.
    pub program: PathBuf,
}

/// The cables that were found among nodes.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Wires {
    /// Pairs of interfaces, at least one of which has received frames from the other.
    pub wires: Vec<Wire>,
    /// Interfaces without a cable to another node, each with its state: `up`, `no carrier`, `down` or `missing`.
    pub unconnected: Vec<(LinkEndText, String)>,
    /// The LLDP announcements of other devices, as text.
    pub neighbours: Vec<String>,
}

/// A connection between two interfaces, by a cable or through a switch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
pub struct Wire {
    /// The two interfaces; the first one sends if only one direction works.
    pub between: [LinkEndText; 2],
    /// True if frames pass in both directions.
    pub both_ways: bool,
    /// True if there is no switch between the interfaces.
    pub direct: bool,
}

/// Finds the cables among nodes.
///
/// # Errors
/// An address is invalid, a node is unreachable or lacks the privilege, or the test was stopped.
pub fn find_wires(request: &WireRequest, stop: &AtomicBool) -> Result<Wires, ExperimentError> {
    let mut names = BTreeSet::new();
    for (name, _) in &request.nodes {
        if !is_plain_name(name) || !names.insert(name) {
            return Err(wrong(
                name,
                "names of nodes are unique and made of letters, digits, - and _: NAME=ADDRESS",
            ));
        }
    }
    if let Some(unknown) = request.only.iter().find(|end| !names.contains(&end.node)) {
        return Err(wrong(&unknown.node, "no node of this name is given"));
    }
    let place = taut_host::private::scratch().map_err(ExperimentError::io(std::env::temp_dir()))?;
    let token = token();
    let mut running = Vec::new();
    let mut nodes = Vec::new();
    let mut roles = Vec::new();
    for (name, address) in &request.nodes {
        let (role, namespace) = role_of(name, address)?;
        roles.push((name, role, namespace));
    }
    let made = of_roles(
        roles.iter().map(|(name, role, _)| (*name, role)),
        &request.program,
    )?;
    for (mut node, (_, _, namespace)) in made.into_iter().zip(&roles) {
        node.take(stop)?;
        node.begin(
            &Site {
                id: "wire",
                folder: place.path(),
                namespace: namespace.as_deref(),
                stop,
            },
            &[],
        )?;
        nodes.push(node);
    }
    for node in &nodes {
        let script = script_of(request, &token, node.role());
        running.push(start(&**node, place.path(), &script, request.time)?);
    }
    let deadline = Instant::now() + request.time + GRACE;
    let mut reports = BTreeMap::new();
    for (node, mut step) in nodes.iter().zip(running) {
        let code = loop {
            if let Some(code) = step.wait(POLL) {
                break code;
            }
            if stop.load(Ordering::Relaxed) || Instant::now() > deadline {
                step.close();
                return Err(ExperimentError::node(
                    node.role(),
                    "the test of its links was stopped",
                ));
            }
        };
        reports.insert(
            node.role().to_owned(),
            report_of(place.path(), node.role(), code)?,
        );
    }
    Ok(Wires::of(&reports, &request.only))
}

fn script_of(request: &WireRequest, token: &str, node: &str) -> String {
    let of_node = request.only.iter().filter(|end| end.node == node);
    let mut script = script(token, node, &[], request.time.as_secs_f64());
    for end in of_node {
        script += &format!(
            " --send {}",
            taut_host::ssh::quote_if_needed(&end.interface)
        );
    }
    script
}

/// Returns the role of a node, and the namespace of a node on this machine.
fn role_of(name: &str, address: &str) -> Result<(Role, Option<String>), ExperimentError> {
    let (address, namespace) = match address.strip_prefix("netns:") {
        Some(namespace) if is_plain_name(namespace) => {
            (NodeAddress::Local, Some(namespace.to_owned()))
        }
        Some(_) => {
            return Err(wrong(name, "netns: and the name of a network namespace"));
        }
        None => match NodeAddress::parse(address) {
            Ok(NodeAddress::Slurm | NodeAddress::Vm) => {
                return Err(wrong(
                    name,
                    "its wires are found where it is local or reached by ssh://",
                ));
            }
            Ok(address) => (address, None),
            Err(_) => {
                return Err(wrong(
                    name,
                    format!(
                        "`{address}` is no address: expected local, ssh://user@host:port or netns:NAME"
                    ),
                ));
            }
        },
    };
    let role = Role {
        address,
        definition: NodeDefinition::default(),
        variables: Values::new(),
        boot_limit: Duration::from_secs(1),
        clock: None,
        cables: Vec::new(),
    };
    Ok((role, namespace))
}

/// Returns an error in the user's request about a node.
fn wrong(node: &str, reason: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::Unknown(format!("node {node}: {reason}"))
}

fn start(
    node: &dyn Node,
    place: &std::path::Path,
    script: &str,
    time: Duration,
) -> Result<Box<dyn crate::node::StepUnderWay>, ExperimentError> {
    let log = |kind: &str| {
        let path = place.join(format!("{}.{kind}", node.role()));
        File::create(&path).map_err(ExperimentError::io(path))
    };
    node.start(Step {
        name: "links",
        script,
        limit: time + GRACE,
        awake: false,
        counters: &[],
        secrets: &Secrets::default(),
        program: None,
        logs: [log("out")?, log("err")?],
    })
}

fn report_of(
    place: &std::path::Path,
    role: &str,
    code: i32,
) -> Result<LinkReport, ExperimentError> {
    let read = |kind: &str| {
        std::fs::read_to_string(place.join(format!("{role}.{kind}"))).unwrap_or_default()
    };
    let parsed = serde_json::from_str(read("out").trim());
    parsed.map_err(|_| {
        let errors = read("err");
        let last = errors
            .trim()
            .lines()
            .next_back()
            .unwrap_or("no reason given")
            .to_owned();
        ExperimentError::node(role, format!("cannot test its links (code {code}): {last}"))
    })
}

impl Wires {
    /// Combines the reports of the nodes into a list of cables.
    fn of(reports: &BTreeMap<String, LinkReport>, only: &[LinkEndText]) -> Self {
        let mut heard: BTreeMap<(LinkEndText, LinkEndText), bool> = BTreeMap::new();
        for (role, report) in reports {
            for seen in &report.sightings {
                let from = LinkEndText {
                    node: seen.node.clone(),
                    interface: seen.interface.clone(),
                };
                let to = LinkEndText {
                    node: role.clone(),
                    interface: seen.at.clone(),
                };
                heard.insert((from, to), seen.direct);
            }
        }
        let mut wires: BTreeSet<Wire> = BTreeSet::new();
        for ((from, to), direct) in &heard {
            let back = heard.get(&(to.clone(), from.clone()));
            if back.is_some() && to < from {
                continue;
            }
            wires.insert(Wire {
                between: [from.clone(), to.clone()],
                both_ways: back.is_some(),
                direct: *direct && back.is_none_or(|back| *back),
            });
        }
        let connected: BTreeSet<&LinkEndText> =
            wires.iter().flat_map(|wire| &wire.between).collect();
        let unconnected = unconnected(reports, only, &connected);
        Self {
            neighbours: neighbours(reports),
            unconnected,
            wires: wires.into_iter().collect(),
        }
    }
}

fn unconnected(
    reports: &BTreeMap<String, LinkReport>,
    only: &[LinkEndText],
    connected: &BTreeSet<&LinkEndText>,
) -> Vec<(LinkEndText, String)> {
    let mut found = Vec::new();
    for (node, report) in reports {
        let mut states: BTreeMap<&str, &str> = BTreeMap::new();
        for end in only.iter().filter(|end| end.node == *node) {
            states.insert(&end.interface, "missing");
        }
        for (name, state) in &report.interfaces {
            states.insert(
                name,
                match state {
                    InterfaceState::Up => "up",
                    InterfaceState::NoCarrier => "no carrier",
                    InterfaceState::Down => "down",
                },
            );
        }
        for (interface, state) in states {
            let end = LinkEndText {
                node: node.clone(),
                interface: interface.to_owned(),
            };
            let is_wanted = only.is_empty() || only.contains(&end);
            if is_wanted && !connected.contains(&end) {
                found.push((end, state.to_owned()));
            }
        }
    }
    found
}

fn neighbours(reports: &BTreeMap<String, LinkReport>) -> Vec<String> {
    let all = reports.iter().flat_map(|(node, report)| {
        let of_node = report.neighbours.iter();
        of_node.map(move |it| match it.description.as_str() {
            "" => format!("{node}:{} sees {} port {}", it.at, it.name, it.port),
            about => format!(
                "{node}:{} sees {} port {} ({about})",
                it.at, it.name, it.port
            ),
        })
    });
    all.collect()
}

impl std::fmt::Display for Wires {
    /// Writes one line per cable, then the interfaces without a cable.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for wire in &self.wires {
            let [near, far] = &wire.between;
            let arrow = if wire.both_ways { "<->" } else { "-->" };
            write!(f, "{near} {arrow} {far}")?;
            if !wire.both_ways {
                write!(f, "  one direction only")?;
            }
            if !wire.direct {
                write!(f, "  through a switch")?;
            }
            writeln!(f)?;
        }
        for (end, state) in &self.unconnected {
            writeln!(f, "{end}  no wire found ({state})")?;
        }
        for neighbour in &self.neighbours {
            writeln!(f, "{neighbour} by LLDP")?;
        }
        Ok(())
    }
}
