//! GTPU: the user plane of a mobile gateway (3GPP TS 29.281). It relays packets between tunnels as a serving gateway
//! does (Lange et al., CNSM 2015), and terminates tunnels as a UPF or PDN gateway does.
//!
//! Each batch goes through three passes: read the headers of all packets, look up their bearers, apply the actions
//! (`plane`). The bearers change between batches: each time, a worker takes a few changes from a ring (`change`).
//!
//! A session of a 5G core may also need flow filters, usage reports, buffering and QFI marks. A **classifier**
//! implements these for the packets of one tunnel or user. The bearer names its classifier. The first matching rule of
//! the classifier names another bearer, so every rule has a path, an action and rates like any bearer. A bearer without
//! a classifier is looked up and applied as if classifiers did not exist. A packet with a classifier leaves the fast
//! path at the point where undeliverable packets are dropped (`left_out`), gets a second lookup, and returns to the
//! fast path. Classifiers are immutable. The control plane makes them and sends them to the workers through the ring of
//! changes. All workers share the usage counters (`usage`) and the buffered packets (`buffer`). Workers notify the
//! control plane through a ring (`event`), from which PFCP's thread makes reports (`pfcp`).
//!
//! # Design
//!
//! Each worker has a table of 16-byte entries, four to a cache line, and looks up a complete batch in one pass, so that
//! the cache misses overlap. The control plane (`control.rs`) has a table of the same form. It checks a set of changes
//! as a whole and sends the set through a ring (`change.rs`). The control socket (`server.rs`) and PFCP (`pfcp/`) both
//! call the control plane. A pure function computes the bearers of a PFCP session from the session's rules
//! (`pfcp/session/follow.rs`), so a modification is the difference of two results. The slow path sends replies
//! (`answer.rs`); the worker creates end markers, because an end marker follows the last packet of its path.
//!
//! A meter stores a time and the cost of a byte (`meter.rs`). A bit in a bearer's entry marks bearers that have meters,
//! so other bearers cost nothing more. Meters are looked up last (`policing.rs`), and a packet above the rate is
//! counted as dropped only. All workers share the meters, which the control plane creates (`limit.rs`).
//!
//! With GTP-C (`gtpc/`) the gateway is its own control plane. It makes sessions by the same rules as a remote one, so
//! everything after the messages is shared. One thread serves both protocols (`signalling.rs`).

#![forbid(unsafe_code)]

mod answer;
mod bearer;
mod buffer;
mod change;
mod churn;
mod classifier;
mod control;
mod counted;
mod event;
mod flow;
mod gtpc;
mod in_kernel;
mod kernel;
mod known_paths;
mod limit;
mod numbered;
mod outcome;
mod parser;
mod peers;
mod pfcp;
mod plane;
mod policing;
mod pools;
mod refusal;
mod rewrite;
mod rules;
#[cfg(test)]
mod scapy;
mod server;
mod settings;
mod signalling;
mod slot;
mod sorted;
mod standalone;
mod state;
mod table;
mod usage;

pub use bearer::{Action, Bearer, BearerText, CSV_HEADER, Match, Path, Sources, read_csv};
pub use churn::{Churned, bearers_of, churn};
pub use classifier::Classifier;
pub use control::{Control, Wish};
pub use flow::FlowFilter;
pub use limit::{Limit, Limits, MeterName};
pub use outcome::{OUTCOMES, Outcome};
pub use policing::METERS_PER_BEARER;
pub use refusal::Refused;
pub use server::{Answer, Request};
pub use standalone::Detached;
pub use table::{BYTES_PER_BEARER, Matching};
pub use taut_function::control_socket::MOST_FILE_BYTES;

use answer::Answering;
use change::changes;
use kernel::Kernel;
use parser::Own;
use peers::Peers;
use plane::Plane;
use policing::SharedMeters;
use server::Served;
use settings::{Checked, Settings};
use state::Together;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use taut_function::control_socket::ControlSocket;
use taut_function::{
    Class, Context, EmptyBatches, Entry, Function, Handler, KernelVersion, Member, Needs,
    SettingsError, Shared, Spread, settings,
};
use taut_port::{Batch, PortError};
use taut_sys::Alarm;
use taut_xdp::gateway::KernelGateway;

/// The entry of function GTPU in the list of functions.
pub const ENTRY: Entry = Entry {
    name: "gtpu",
    summary: "is a mobile gateway: relays between GTP-U tunnels and terminates them",
    class: Class::Basic,
    ports: Some("tunnels"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        let settings: Settings = settings(table)?;
        Ok(Box::new(Gateway::new(settings.check()?)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Upcall(in_kernel::UPCALL),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "address",
        "required",
        "the gateway's address, or a list: where tunnels end",
    ),
    (
        "bearers",
        "100000",
        "maximum number of bearers, 1 to 4000000. Each takes, from the start, 32 bytes in the data plane (with \
         `pfcp` or `gtpc` 120) and 32 in the control plane",
    ),
    (
        "matching",
        "`hash`",
        "others are for study, with the same verdicts: `linear` searches the table by TEID or user address; \
         `rules` compares with one bearer after another, each field under a mask, and needs 304 bytes per bearer \
         instead of 32",
    ),
    (
        "mtu",
        "1500",
        "longest outer IP packet in bytes, 1280 to 65535",
    ),
    (
        "mac",
        "none: no replies",
        "MAC address, or a list with one per port, for replies to ARP and neighbour discovery for the gateway's \
         addresses",
    ),
    (
        "others",
        "`drop`",
        "`forward`: pass frames that are not the gateway's unchanged",
    ),
    (
        "tunnels",
        "all ports",
        "numbers of the ports that accept tunnels, such as `[0]`. GTP-U to the gateway through others, also an \
         echo request, is dropped without a reply",
    ),
    ("load", "none", "a CSV file read at the start"),
    ("control", "none", "path of the control socket"),
    (
        "pfcp",
        "none",
        "PFCP, such as `{ address = \"192.0.2.1\", peers = [\"192.0.2.100\"] }`",
    ),
    (
        "gtpc",
        "none",
        "GTP-C, such as `{ address = \"192.0.2.2\", peers = [\"192.0.2.100\"] }`",
    ),
    (
        "pools",
        "none",
        "prefixes from which users get addresses, such as `[\"10.45.0.0/16\", \"2001:db8:45::/48\"]`",
    ),
    (
        "source_check",
        "`true`",
        "`false`: user packets from tunnels of sessions pass with any source address",
    ),
];

/// The gateway function of one worker, complete after `prepare`.
struct Gateway {
    checked: Checked,
    kernel: Kernel,
    plane: Option<Plane>,
    /// The state that the functions of all workers share, which includes [`Deciding`].
    shared: Shared,
    /// The number of replies of the slow path that were lost because the slow path's ring was full.
    lost_answers: Arc<AtomicU64>,
}

/// The control plane and its sockets, shared by the gateways of all workers. The sockets close with the last gateway.
struct Deciding {
    control: Arc<Mutex<Control>>,
    _server: Option<ControlSocket>,
    _signalling: Option<signalling::Server>,
}

impl Gateway {
    fn new(checked: Checked) -> Self {
        Self {
            checked,
            kernel: None,
            plane: None,
            shared: Shared::default(),
            lost_answers: Arc::default(),
        }
    }

    fn start(&mut self) -> Result<Control, PortError> {
        let Checked { own, settings, .. } = &self.checked;
        let (sender, receiver) = changes(self.kernel.clone())?;
        let meters = SharedMeters::new(settings.metered_bearers());
        let kernel = self.kernel.clone();
        let all = Together {
            meters,
            held: settings.held(),
            peers: Peers::new(),
        };
        let mut plane = Plane::new(&self.checked, receiver, kernel, all.clone())?;
        let mut control = Control::new(own.clone(), settings.bearers, sender, all);
        if let Some(file) = &settings.load {
            let wrong = |line: Option<usize>, what: String| {
                let line = line.map_or(String::new(), |line| format!("{line}: "));
                let spec = format!("function \"gtpu\": load {}:{line}", file.display());
                PortError::system(
                    spec.trim_end().trim_end_matches(':').to_string(),
                    std::io::Error::other(what),
                )
            };
            let text = std::fs::read_to_string(file).map_err(|e| wrong(None, e.to_string()))?;
            let bearers = read_csv(&text, own).map_err(|(line, e)| wrong(Some(line), e))?;
            // The worker does not run yet, so this thread applies the worker's changes.
            plane
                .load(&mut control, &bearers)
                .map_err(|(line, e)| wrong(Some(line), e))?;
        }
        self.plane = Some(plane);
        Ok(control)
    }

    /// Prepares the first worker's gateway, which creates the shared state.
    fn begin(&mut self) -> Result<Deciding, PortError> {
        let control = Arc::new(Mutex::new(self.start()?));
        let settings = &self.checked.settings;
        let served = Arc::new(Served(Arc::clone(&control)));
        let server = ControlSocket::start_at("gtpu", settings.control.as_ref(), &served)?;
        let signalling = signalling::Server::start(&self.checked, &control)?;
        Ok(Deciding {
            control,
            _server: server,
            _signalling: signalling,
        })
    }

    /// Prepares the data plane of another worker, with a copy of the bearer table.
    fn follow(&mut self, deciding: &Deciding) -> Result<(), PortError> {
        let (sender, receiver) = changes(None)?;
        let control = deciding.control.lock();
        let mut control = control.unwrap_or_else(PoisonError::into_inner);
        let mut plane = Plane::new(&self.checked, receiver, None, control.together())?;
        control.add_worker(sender, |change| plane.copy(change));
        self.plane = Some(plane);
        Ok(())
    }
}

impl Function for Gateway {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            empty_batches: EmptyBatches::Wakes,
            ..Needs::default()
        }
    }

    fn join(&mut self, _: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.shared = shared.clone();
        self.kernel = shared.lock(|kernel: &mut Option<Arc<KernelGateway>>| kernel.clone());
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if let Some(plane) = &mut self.plane {
            plane.process(batch, context);
        }
    }

    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let Some(plane) = &mut self.plane else {
            return true;
        };
        plane.held_back() == 0 && plane.receiver.ring.arm(alarm)
    }

    fn disarm(&mut self) {
        if let Some(plane) = &mut self.plane {
            plane.receiver.ring.disarm();
        }
    }

    fn held(&self) -> usize {
        self.plane.as_ref().map_or(0, Plane::held_back)
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let shared = self.shared.clone();
        shared.lock(|deciding| match deciding {
            Some(deciding) => self.follow(deciding),
            None => {
                *deciding = Some(self.begin()?);
                Ok(())
            }
        })
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        let own = Own::new(&self.checked.own);
        let macs = self.checked.macs.clone();
        let answering = Answering::new(own, macs, Arc::clone(&self.lost_answers));
        Some(Box::new(answering))
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let counts = self
            .plane
            .as_ref()
            .map_or([0; OUTCOMES.len()], |p| p.counts);
        let mut outcomes = outcome::all(counts, &self.kernel);
        outcomes.push((
            "answers lost, beside the above",
            self.lost_answers.load(Ordering::Relaxed),
        ));
        outcomes
    }

    fn drops(&self, outcome: &str) -> bool {
        outcome::drops(outcome)
    }
}

#[cfg(test)]
mod tests;
