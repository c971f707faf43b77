//! IPS: inspects packets by rules of Snort and Suricata, inline: each packet passes, is dropped or is rejected before
//! the next one is inspected. Gallenmüller 2021, section 5.4, measures the cost of such an IPS and the causes of late
//! packets.
//!
//! The worker finds the packet's flow (`flow.rs`), reassembles its stream, parses messages, and evaluates the rules
//! (`plane.rs`; `taut-inspect`). The control plane compiles the rules (`rules.rs`) and swaps them while packets flow.
//! Events go through a ring to a thread that writes (`events.rs`) lines (`eve.rs`) to a file or a socket (`target.rs`).
//!
//! # Design
//!
//! The inspection processes a packet in steps, one file each, in the order of `plane.rs`: normaliser (`normalise.rs`),
//! flow (`flow.rs`), TCP state and stream reassembly (`connection.rs`), protocols and rules (`ask.rs`), verdict. Two
//! principles hold: a packet that its receiver would refuse is dropped, and the value of a byte must not change until
//! its receiver has acknowledged the byte. Each worker reassembles fragments itself; their frames wait on the slow
//! path. The owner of a flow depends on the addresses alone, because fragments have no ports. The function gets packets
//! in memory that no peer can write (`Needs::own_bytes`). All memory is allocated at the start: flow table, stream
//! chunks, and the parsers that flows borrow (`lend.rs`). The control plane compiles rules and swaps them (`rules.rs`).
//! Events go through a ring to a thread that writes JSON (`events.rs`), and packets of alerts through another ring to a
//! pcapng file (`packet_file.rs`).

#![forbid(unsafe_code)]

mod ask;
mod connection;
#[cfg(test)]
mod evasions;
mod eve;
mod event;
mod events;
mod flow;
mod key;
mod lend;
mod normalise;
#[cfg(test)]
mod oddities;
mod outcome;
mod packet_file;
mod plane;
mod rules;
mod server;
mod settings;
mod slow;
#[cfg(test)]
mod suricata;
mod target;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transactions;
mod tunnel;

pub use rules::{Costs, Read, read_files};
pub use server::{Answer, Request};

use events::Writer;
use outcome::Counters;
use plane::Plane;
use rules::{Compiled, Rules, compile};
use server::Deciding;
use settings::{Checked, Settings};
use slow::SlowPath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taut_function::control_socket::ControlSocket;
use taut_function::{
    ANY, Class, Context, Counted, Entry, Function, Handler, KernelVersion, Member, Needs,
    PortNames, SettingsError, Shared, Spread, settings,
};
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_sys::Clock;

/// The entry of `ips` in the list of functions.
pub const ENTRY: Entry = Entry {
    name: "ips",
    summary: "inspects packets inline by rules of Snort 3 or Suricata",
    class: Class::Advanced,
    ports: None,
    settings: SETTINGS,
    files: |settings| taut_function::file_names(settings, "rules"),
    build: |table| {
        let checked = settings::<Settings>(table)?.check()?;
        // Errors in rules are reported when the chain is read.
        let compiled = compile(&checked, checked.refuses.chain).map_err(SettingsError)?;
        Ok(Box::new(Ips::new(checked, compiled)) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::No("it keeps flows and looks into payloads"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "rules",
        "none",
        "rule files. A rule with an error is skipped; `taut ips status` shows the first error, `taut ips check` \
         all",
    ),
    (
        "strict",
        "not set",
        "what an error refuses besides its rule: `true`: chain and reload (the old rules stay); not set: a \
         reload; `false`: nothing",
    ),
    (
        "variables",
        "none",
        "table of names in rules, such as `HOME_NET = \"[10.0.0.0/8]\"`, `EXTERNAL_NET = \"!$HOME_NET\"`: \
         addresses, or ports if the name ends in `_PORTS`. An undefined name in a rule is an error",
    ),
    (
        "language",
        "by content of each file",
        "`\"snort3\"` or `\"suricata\"`: the same has two spellings (`http_uri; content:\"x\"` and \
         `content:\"x\"; http_uri`)",
    ),
    (
        "lenient",
        "`false`",
        "`true` loads a rule without its unsupported part, so it matches more than it should; else the rule is \
         skipped",
    ),
    (
        "alert_only",
        "`false`",
        "nothing is dropped; matches are logged as `allowed`",
    ),
    (
        "events",
        "none",
        "file to which events are appended, or `unix:PATH`, a listening socket",
    ),
    (
        "alerts",
        "none",
        "pcapng file of packets with alerts; comments have number, revision and message of the rules. An existing \
         file gets a new section",
    ),
    (
        "alerts_size",
        "`\"100 MB\"`",
        "maximum size of the file `alerts`, at least `\"64 kB\"`. Packets beyond it, or beyond 1 MiB waiting, are skipped and \
         counted (`alerts_left_out`)",
    ),
    ("control", "none", "path of a socket for `taut ips`"),
    (
        "flows",
        "65536",
        "flows per worker, 1,024 to 16,777,216; when full, one of eight is replaced",
    ),
    (
        "memory",
        "`\"64 MB\"`",
        "stream bytes per worker: unacknowledged, out of order, and the last 256 of each direction",
    ),
    (
        "overload",
        "`\"queue\"`",
        "when packets arrive without a pause for longer than `bound`: `\"queue\"` (they wait in the port's ring, \
         whose size bounds their latency), `\"bypass\"` (they pass uninspected, flows of more than 1 MiB \
         permanently), `\"drop\"`",
    ),
    (
        "bound",
        "`\"1ms\"`",
        "the time after which `overload` applies",
    ),
    (
        "max_time",
        "`\"50ms\"`",
        "maximum time of rules per packet, `\"1us\"` to `\"1s\"`; then the other rules are skipped. It is checked \
         before each rule, so one rule may exceed it; interruptions count",
    ),
    (
        "over_time",
        "`\"drop\"`",
        "a packet over `max_time`, unless a rule dropped it: `\"drop\"` (of TCP also the rest of its flow), or \
         `\"pass\"`",
    ),
    (
        "inner",
        "`false`",
        "`true` inspects the packet in a tunnel: IP in IP, GRE (IP, Ethernet, ERSPAN II), VXLAN (UDP port 4789), \
         Teredo (3544), GTP-U (2152), NSH, up to three nested. Other frames are inspected as they are. Rejected \
         packets in tunnels are dropped without a message. Fragments in tunnels are reassembled; fragments of \
         outer packets are not inspected",
    ),
    (
        "checksums",
        "`\"drop\"`",
        "wrong checksums of IPv4, TCP, UDP or ICMP: `\"drop\"`; or `\"ignore\"`, for links that fill them in \
         later, such as veth without `tx off`",
    ),
    (
        "overlap",
        "`\"drop\"`",
        "repeated bytes that differ, in a stream or fragments: `\"drop\"` the segment or datagram, or \
         `\"first\"`: rules see the first copy, and the packet passes",
    ),
    (
        "midstream",
        "`\"inspect\"`",
        "connections whose opening was not seen: `\"inspect\"` from there on, `\"pass\"`, or `\"drop\"`",
    ),
    (
        "urgent",
        "`\"clear\"`",
        "segments with urgent data: `\"clear\"` removes the mark, so that all receivers read what rules read; \
         `\"drop\"`; `\"pass\"`",
    ),
    (
        "min_ttl",
        "0",
        "minimum TTL or hop limit on leaving. Set it to the remaining hops, so that no packet ends before its \
         receiver",
    ),
    (
        "head_limit",
        "`\"64 KiB\"`",
        "stored bytes of an HTTP head, up to `\"1 MiB\"`",
    ),
    (
        "body_limit",
        "`\"100 kB\"`",
        "stored bytes of an HTTP body, decompressed, up to `\"16 MiB\"`",
    ),
    (
        "matcher",
        "`\"aho-corasick\"`",
        "search for contents: built in, or by the library `\"vectorscan\"` (or Hyperscan 5), without which \
         the chain is refused. Rely on the default: Vectorscan 5.4.9 with AVX-512 missed contents in the last 34 \
         bytes (with hundreds of contents; taut pads with zeros). `cargo bench -p taut-inspect --bench search` \
         compares both",
    ),
    (
        "fragments",
        "`\"inspect\"`",
        "fragments wait up to 30 s for their datagram and pass if it does; or `\"pass\"` uninspected. They leave \
         as fragments, which `nat` and `aes` drop",
    ),
];

/// The compiled rules of an inspection for measurements, which writes no events, has no control socket and drops
/// nothing.
#[derive(Debug)]
pub struct Looking {
    checked: Checked,
    compiled: Compiled,
    shared: Shared,
}

impl Looking {
    /// Creates a function with these rules and its own flow table.
    ///
    /// # Errors
    /// Fails if the function cannot share the state of the earlier functions.
    pub fn function(&mut self) -> Result<Box<dyn Function>, SettingsError> {
        // The compiled rules are passed to the first function, which puts them in force for all functions.
        let compiled = std::mem::take(&mut self.compiled);
        let mut function = Ips::new(self.checked.clone(), compiled);
        function.join(Member::default(), &self.shared)?;
        Ok(Box::new(function))
    }
}

/// Compiles the rules of an inspection for measurements ([`Looking`]). Also returns the result of reading the rules.
///
/// # Errors
/// Fails as a chain with these settings does.
pub fn looking(table: toml::Table) -> Result<(Looking, Read), SettingsError> {
    let mut checked = Checked {
        events: None,
        alerts: None,
        control: None,
        ..settings::<Settings>(table)?.check()?
    };
    checked.policies.alert_only = true;
    let compiled = compile(&checked, checked.refuses.chain).map_err(SettingsError)?;
    let read = compiled.1.clone();
    let shared = Shared::default();
    Ok((
        Looking {
            checked,
            compiled,
            shared,
        },
        read,
    ))
}

/// Returns a warning about the rules with errors, if there are any.
fn warning(read: &Read) -> Option<String> {
    let first = read.first_mistake.as_ref()?;
    let rules = if read.mistaken == 1 {
        "rule is"
    } else {
        "rules are"
    };
    Some(format!(
        "{} {rules} skipped because of errors: {first}",
        read.mistaken
    ))
}

/// The state that the `ips` functions of all workers share.
#[derive(Clone)]
struct Together {
    deciding: Arc<Deciding>,
    _socket: Option<Arc<ControlSocket>>,
}

struct Ips {
    checked: Checked,
    /// The rules that were compiled when the chain was read; the first worker puts them in force.
    compiled: Compiled,
    member: Member,
    shared: Shared,
    together: Option<Together>,
    counters: Arc<Counters>,
    plane: Option<Plane>,
}

impl Ips {
    fn new(checked: Checked, compiled: Compiled) -> Self {
        Self {
            checked,
            compiled,
            member: Member::default(),
            shared: Shared::default(),
            together: None,
            counters: Arc::default(),
            plane: None,
        }
    }
}

impl Function for Ips {
    fn process(&mut self, batch: &mut Batch, context: &Context) {
        if let Some(plane) = &mut self.plane {
            plane.process(batch, context);
        }
    }

    /// Requires that both directions of a flow go to one worker, and that packets are in memory that no peer can write.
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Homes,
            own_bytes: true,
            ..Needs::default()
        }
    }

    fn homes(&self, batch: &Batch, _: &Context, homes: &mut [u8; BATCH_CAPACITY]) {
        for (packet, home) in batch.packets().iter().zip(homes) {
            let hash = plane::hash_of(packet.bytes(), self.checked.policies.inner);
            *home = hash.map_or(ANY, |hash| {
                ((u64::from(hash) * self.member.of as u64) >> 32) as u8
            });
        }
    }

    fn join(&mut self, member: Member, shared: &Shared) -> Result<(), SettingsError> {
        self.member = member;
        self.shared = shared.clone();
        Ok(())
    }

    fn prepare(&mut self) -> Result<(), PortError> {
        let checked = &self.checked;
        let workers = self.member.of;
        let compiled = std::mem::take(&mut self.compiled);
        let ports = PortNames::found_in(&self.shared);
        let together = self.shared.found_or_made(|| {
            if let Some(line) = warning(&compiled.1) {
                eprintln!("taut: ips: {line}");
            }
            let rules = Arc::new(Rules::new(checked, compiled, workers));
            let alerts = checked
                .alerts
                .as_ref()
                .map(|(file, most)| (&file[..], *most));
            let events = Writer::start(checked.events.as_deref(), alerts, &rules, ports)?;
            let deciding = Arc::new(Deciding {
                rules,
                events,
                counters: Mutex::default(),
            });
            let socket = ControlSocket::start_at("ips", checked.control.as_ref(), &deciding)?;
            Ok::<_, PortError>(Together {
                deciding,
                _socket: socket.map(Arc::new),
            })
        })?;
        let deciding = &together.deciding;
        let counters = Arc::clone(&self.counters);
        let events = deciding
            .events
            .as_ref()
            .map(|writer| writer.worker(&counters));
        deciding
            .counters
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&counters));
        let clock = Clock::calibrate(Duration::from_millis(2));
        self.plane = Some(Plane::new(
            checked,
            self.member,
            &deciding.rules,
            counters,
            events,
            &clock,
        )?);
        self.together = Some(together);
        Ok(())
    }

    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        Some(Box::new(SlowPath::new(
            self.checked.policies.inner,
            &self.counters,
        )))
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        self.counters.outcomes().collect()
    }

    fn drops(&self, outcome: &str) -> bool {
        outcome::drops(outcome)
    }

    /// Returns the count of an outcome or another event, or the number of matches of a rule (`alert 2019401`). All
    /// workers share the matches, so only the instance of the first worker returns them.
    fn count_of(&self, name: &str) -> Option<u64> {
        if let Some(id) = name.strip_prefix("alert ") {
            let rules = &self.together.as_ref()?.deciding.rules;
            return match self.member.number {
                0 => rules.fitted(id.parse().ok()?),
                _ => None,
            };
        }
        let counts = self.counters.outcomes().chain(self.counters.notes());
        counts.into_iter().find(|it| it.0 == name).map(|it| it.1)
    }

    fn counted(&self) -> Option<Arc<dyn Counted>> {
        let together = self.together.as_ref()?;
        Some(Arc::clone(&together.deciding) as Arc<dyn Counted>)
    }
}
