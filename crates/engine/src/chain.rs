//! Chain files in TOML: ports, functions, flush policy and waiting policy. Each file describes one worker.
//!
//! ```toml
//! flush = "idle(32)"
//! wait = "poll"
//! burst = 32
//! core = 1
//! ports = ["memif:/run/west.sock,role=client", "memif:/run/east.sock,role=client"]
//!
//! [[function]]
//! name = "mac-swap"
//! ```

mod classification;
mod machine;
mod making;
mod placement;
mod replication;
mod stage;

pub use classification::Classification;
pub(crate) use classification::{class_of, unknown_chain};
pub use machine::{MachinePort, MachineSettings};
pub(crate) use making::{Making, build};
pub use placement::Placement;
pub use replication::{MOST_REPLICAS, Replication, SpreadBy};
pub use stage::{ChainError, Place, Stage};

use crate::{Flush, Queueing, Wait};
use classification::ClassifierKeys;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use taut_function::{Catalog, EmptyBatches, Function, Member, Needs, PortNames, Shared, Spread};
use taut_port::{PortSpec, backends};
use taut_settings::{SettingsFileError, duration, place_in};

/// The default maximum number of packets that one receive call takes: 32, as in DPDK. With larger bursts, the time in
/// which a burst is collected becomes visible in the latency.
pub const DEFAULT_BURST: usize = 32;

/// The largest burst that a chain may set, packets. A burst above 64 packets takes several batches.
pub const MOST_BURST: usize = 256;

/// A checked description of one worker chain: its ports, functions and policies.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The specs of the ports, in order. The worker connects the ports in pairs. If their number is odd, the last port
    /// sends the packets that it receives.
    pub ports: Vec<PortSpec>,
    /// Names of the ports, in their order; empty if the file gives no names.
    pub port_names: Vec<String>,
    /// Functions that every packet passes: in order from the first port of a pair, in reverse from the second.
    pub functions: Vec<Stage>,
    /// Rules that select the chain of each packet, if the functions form several chains.
    pub classification: Option<Classification>,
    /// Flush policy: when packets are sent.
    pub flush: Flush,
    /// Queues for packets whose egress port is full; None if such packets are dropped.
    pub queue: Option<Queueing>,
    /// Waiting policy: what the worker does while no packets arrive.
    pub wait: Wait,
    /// Maximum number of packets that one receive call takes from a port, 1 to [`MOST_BURST`].
    pub burst: usize,
    /// The core to run on; None leaves the choice to the scheduler.
    pub core: Option<usize>,
    /// Number of workers that run the chain. Each worker opens a separate part of every port, such as a queue.
    pub workers: usize,
    /// Cores of several workers. If empty, the program that runs the chain chooses the cores. Cores in excess of the
    /// number of workers are reserved for workers that join later.
    pub cores: Vec<usize>,
    /// Place where packets are forwarded: user space or kernel.
    pub place: Place,
    /// Name of a chain of several workers; None for the name of the chain file.
    pub name: Option<String>,
    /// Latency budget: the maximum round-trip time of a packet from one end of the chain to the other and back, through
    /// all functions. None if the chain has no budget.
    pub budget: Option<Duration>,
    /// Distribution of the functions over threads, processes, namespaces or virtual machines.
    pub placement: Placement,
    /// Properties of the virtual machines in which functions run; None for the defaults.
    pub machine: Option<MachineSettings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ports: Ports,
    flush: Option<toml::Spanned<String>>,
    queue: Option<toml::Spanned<Queueing>>,
    wait: Option<toml::Spanned<String>>,
    burst: Option<toml::Spanned<usize>>,
    core: Option<toml::Spanned<usize>>,
    workers: Option<toml::Spanned<usize>>,
    cores: Option<toml::Spanned<Vec<usize>>>,
    #[serde(default)]
    place: Place,
    name: Option<String>,
    budget: Option<toml::Spanned<String>>,
    #[serde(default)]
    placement: Placement,
    machine: Option<toml::Spanned<MachineSettings>>,
    #[serde(default, rename = "classifier")]
    rules: Vec<toml::Spanned<toml::Table>>,
    default: Option<toml::Spanned<String>>,
    #[serde(default, rename = "function")]
    functions: Vec<toml::Spanned<Stage>>,
}

/// An error in a chain file: the position in its text, and the reason.
type Wrong = (usize, String);

/// Parses the text of an optional setting; returns the default if the file does not contain the setting.
fn parsed<T: Default + FromStr<Err: Display>>(
    text: &Option<toml::Spanned<String>>,
) -> Result<T, Wrong> {
    text.as_ref().map_or_else(
        || Ok(T::default()),
        |text| {
            let value = text.get_ref().parse();
            value.map_err(|e: T::Err| (text.span().start, e.to_string()))
        },
    )
}

impl File {
    /// Returns the ports, in the order of the file.
    fn ports(&self) -> Result<Vec<PortSpec>, Wrong> {
        let specs = self.ports.specs.iter();
        let parsed = specs.map(|spec| {
            PortSpec::parse(spec.get_ref()).map_err(|e| (spec.span().start, e.to_string()))
        });
        parsed.collect()
    }

    /// Returns the flush policy, the waiting policy and the maximum number of packets of a receive call (burst).
    fn policies(&self) -> Result<(Flush, Wait, usize), Wrong> {
        let (flush, wait) = (parsed(&self.flush)?, parsed(&self.wait)?);
        let burst = match &self.burst {
            None => DEFAULT_BURST,
            Some(burst) => {
                check_burst(*burst.get_ref()).map_err(|reason| (burst.span().start, reason))?
            }
        };
        Ok((flush, wait, burst))
    }

    /// Returns the latency budget, if the file sets one.
    fn budget(&self) -> Result<Option<Duration>, Wrong> {
        let budget = self.budget.as_ref().map(|budget| {
            let text = budget.get_ref();
            duration(text).filter(|t| !t.is_zero()).ok_or_else(|| {
                let reason = format!("budget \"{text}\": expected a time, such as 350us");
                (budget.span().start, reason)
            })
        });
        budget.transpose()
    }

    /// Checks each function and its settings, and replaces the names of ports by their numbers; `text` is the text of
    /// the file.
    fn check_functions(&mut self, text: &str, ports: usize, catalog: Catalog) -> Result<(), Wrong> {
        for (number, stage) in self.functions.iter_mut().enumerate() {
            let at = stage.span().start;
            let s = stage.get_mut();
            s.catalog = catalog;
            s.number_ports(&self.ports.names)
                .and_then(|()| {
                    match self.place {
                        Place::User => catalog.build(&s.name, s.settings.clone()).map(drop),
                        Place::Kernel => {
                            catalog.in_kernel(&s.name, s.settings.clone(), 0).map(drop)
                        }
                    }
                    .map_err(|e| e.to_string())
                })
                .and_then(|()| s.check_ports(ports))
                .and_then(|()| s.check_replicas(self.place))
                .map_err(|reason| {
                    let is_named = catalog.entry(&s.name).is_ok();
                    let about = if is_named { &reason } else { "name" };
                    let place = place_in(text, "function", number, about);
                    (place.unwrap_or(at), reason)
                })?;
        }
        Ok(())
    }

    /// Returns the position of a setting that a chain in the kernel cannot have, if the file has one.
    fn not_in_kernel(&self) -> Option<usize> {
        let flush = self.flush.as_ref().map(toml::Spanned::span);
        let queue = self.queue.as_ref().map(toml::Spanned::span);
        let core = self.core.as_ref().map(toml::Spanned::span);
        let burst = self.burst.as_ref().map(toml::Spanned::span);
        let wait = self.wait.as_ref().map(toml::Spanned::span);
        let workers = self.workers.as_ref().map(toml::Spanned::span);
        let cores = self.cores.as_ref().map(toml::Spanned::span);
        let any = flush
            .or(queue)
            .or(core)
            .or(burst)
            .or(wait)
            .or(workers)
            .or(cores);
        any.map(|span| span.start)
    }
}

/// The specs of the ports of a chain file, in the order of the file, and their names if they have any.
#[derive(Default)]
struct Ports {
    specs: Vec<toml::Spanned<String>>,
    names: Vec<String>,
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListOrTable;

        impl<'de> Visitor<'de> for ListOrTable {
            type Value = Ports;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of ports, or a table of them by name")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ports, A::Error> {
                let mut ports = Ports::default();
                while let Some(spec) = list.next_element()? {
                    ports.specs.push(spec);
                }
                Ok(ports)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Ports, A::Error> {
                let mut entries: Vec<(String, toml::Spanned<String>)> = Vec::new();
                while let Some(entry) = table.next_entry()? {
                    entries.push(entry);
                }
                // The TOML parser yields the entries in the order of their keys, so they are sorted by their position
                // in the file.
                entries.sort_by_key(|(_, spec)| spec.span().start);
                let (names, specs) = entries.into_iter().unzip();
                Ok(Ports { specs, names })
            }
        }

        deserializer.deserialize_any(ListOrTable)
    }
}

/// The maximum number of ports of a worker, because a packet stores its port number in one byte.
const MOST_PORTS: usize = 255;

/// The maximum number of workers of a chain.
const MOST_WORKERS: usize = 64;

/// The maximum number of packets in all queues of a chain together: half a gigabyte of memory.
const MOST_WAITING: usize = 262_144;

/// The error text for settings that a chain in the kernel cannot have.
pub const NOT_IN_KERNEL: &str = "the kernel has neither flush policy, queues, waiting policy, burst, workers nor core to choose: \
                                 leave out flush, queue, wait, burst, workers, core and cores, or place = \"kernel\"";

impl Chain {
    /// Returns a chain of one worker with the defaults of a chain file.
    pub fn new(ports: Vec<PortSpec>, functions: Vec<Stage>) -> Self {
        Self {
            ports,
            port_names: Vec::new(),
            functions,
            classification: None,
            flush: Flush::default(),
            queue: None,
            wait: Wait::default(),
            burst: DEFAULT_BURST,
            core: None,
            workers: 1,
            cores: Vec::new(),
            place: Place::default(),
            name: None,
            budget: None,
            placement: Placement::default(),
            machine: None,
        }
    }

    /// Reads a chain file that names functions of the given catalog.
    ///
    /// # Errors
    /// The error names the file and line, the fault, and the remedy.
    pub fn load(path: &Path, catalog: Catalog) -> Result<Self, ChainError> {
        let text = SettingsFileError::read(path)?;
        Self::parse(&text, &path.display().to_string(), catalog)
    }

    /// Parses the text of a chain file called `name`, which names functions of the given catalog.
    ///
    /// # Errors
    /// The errors are those of [`Chain::load`].
    pub fn parse(text: &str, name: &str, catalog: Catalog) -> Result<Self, ChainError> {
        let wrong =
            |at, reason: String| ChainError::File(SettingsFileError::wrong(text, name, at, reason));
        let mut file: File = toml::from_str(text)
            .map_err(|e| ChainError::File(SettingsFileError::of_toml(text, name, &e)))?;
        let wrong_at = |(at, reason): Wrong| wrong(Some(at), reason);
        let ports = file.ports().map_err(wrong_at)?;
        let (flush, wait, burst) = file.policies().map_err(wrong_at)?;
        let budget = file.budget();
        file.check_functions(text, ports.len(), catalog)
            .map_err(wrong_at)?;
        if file.place == Place::Kernel
            && let Some(at) = file.not_in_kernel()
        {
            return Err(wrong(Some(at), NOT_IN_KERNEL.to_string()));
        }
        let classifier = ClassifierKeys {
            rules: std::mem::take(&mut file.rules),
            default: file.default.take(),
        };
        let (names, count) = (&file.ports.names, ports.len());
        let classification =
            Classification::of_file(classifier, &file.functions, names, count, text)
                .map_err(wrong_at)?;
        let functions = file
            .functions
            .into_iter()
            .map(toml::Spanned::into_inner)
            .collect();
        if let (Some(_), Some(cores)) = (&file.core, &file.cores) {
            let text = "core is for one worker, cores for several: leave one of them out";
            return Err(wrong(Some(cores.span().start), text.to_string()));
        }
        let at_workers = file.workers.as_ref().map(|it| it.span().start);
        let at_workers = at_workers.or(file.cores.as_ref().map(|it| it.span().start));
        let machine = file.machine.as_ref();
        if let Some((at, Err(reason))) = machine.map(|it| (it.span().start, it.get_ref().check())) {
            return Err(wrong(Some(at), reason));
        }
        let cores = file.cores.map(toml::Spanned::into_inner);
        let cores = cores.unwrap_or_default();
        let chain = Self {
            ports,
            port_names: file.ports.names,
            functions,
            classification,
            flush,
            queue: file.queue.map(toml::Spanned::into_inner),
            wait,
            burst,
            core: file.core.map(toml::Spanned::into_inner),
            workers: file
                .workers
                .map_or(cores.len().max(1), toml::Spanned::into_inner),
            cores,
            place: file.place,
            name: file.name,
            budget: budget.map_err(wrong_at)?,
            placement: file.placement,
            machine: file.machine.map(toml::Spanned::into_inner),
        };
        chain
            .check_workers()
            .map_err(|reason| wrong(at_workers, reason))?;
        chain.check_rest().map_err(|reason| wrong(None, reason))?;
        Ok(chain)
    }

    /// Checks that the chain is valid.
    ///
    /// # Errors
    /// The error describes the first invalid value.
    pub fn check(&self) -> Result<(), String> {
        self.check_workers()?;
        self.check_rest()
    }

    /// Checks that the queues fit into memory.
    fn check_queue(&self) -> Result<(), String> {
        let Some(queue) = &self.queue else {
            return Ok(());
        };
        let queues = queue.priorities * self.ports.len() * self.workers;
        match queue.packets * queues {
            slots if slots > MOST_WAITING => Err(format!(
                "queue: {} packets in each of {queues} queues: expected at most {MOST_WAITING} in total",
                queue.packets
            )),
            _ => Ok(()),
        }
    }

    /// Checks the settings whose validity does not depend on the number of workers.
    fn check_rest(&self) -> Result<(), String> {
        let needs: Vec<(&Stage, Needs)> = self
            .functions
            .iter()
            .filter_map(|stage| Some((stage, stage.made()?.needs())))
            .collect();
        let first = |of: fn(&Needs) -> bool| {
            let found = needs.iter().find(|(_, needs)| of(needs));
            found.map(|(stage, _)| *stage)
        };
        let chooses = first(|it| it.chooses_ports);
        match self.ports.len() {
            0 => Err("no ports: a chain needs one port, or pairs of ports".to_string()),
            n if n > MOST_PORTS => {
                Err(format!("{n} ports: the maximum per worker is {MOST_PORTS}"))
            }
            n if n > 1 && n % 2 == 1 && chooses.is_none() => Err(format!(
                "{n} ports: give one port (packets go back out of it) or pairs of ports, or a function that selects \
                the egress port, such as switch"
            )),
            ports => {
                check_burst(self.burst)?;
                self.check_queue()?;
                if self.classification.is_some() {
                    Classification::check(self.placement)?;
                }
                if let (Some(forgets), Some(chooses)) = (first(|it| it.forgets_ports), chooses) {
                    return Err(format!(
                        "function \"{}\" emits packets of its own, for which \"{}\" cannot select an egress port: \
                        give each a chain of its own",
                        forgets.name, chooses.name
                    ));
                }
                let polls = first(|it| it.empty_batches == EmptyBatches::Polls);
                self.check_wait(polls)?;
                for stage in &self.functions {
                    let named = stage.check_ports(ports);
                    named.map_err(|reason| format!("function \"{}\": {reason}", stage.name))?;
                }
                Ok(())
            }
        }
    }

    /// Checks that the chain can run with its number of workers.
    fn check_workers(&self) -> Result<(), String> {
        let workers = self.workers;
        if !(1..=MOST_WORKERS).contains(&workers) {
            return Err(format!("workers = {workers}: expected 1 to {MOST_WORKERS}"));
        }
        let cores = self.cores.len();
        if cores != 0 && cores < workers {
            return Err(format!(
                "cores: {cores} for {workers} workers; give one per worker"
            ));
        }
        if let Some(twice) = (1..cores).find(|at| self.cores[..*at].contains(&self.cores[*at])) {
            return Err(format!("cores: {} is listed twice", self.cores[twice]));
        }
        if self.has_room() {
            return self.check_room();
        }
        if workers == 1 {
            return Ok(());
        }
        if self.core.is_some() {
            return Err(format!(
                "core: {workers} workers need one each: cores = [...]"
            ));
        }
        if self.placement != Placement::Compact {
            return Err(format!(
                "workers = {workers}: only of a chain with placement = \"compact\""
            ));
        }
        for port in &self.ports {
            port.check_workers(workers).map_err(|e| e.to_string())?;
        }
        self.check_spread()
    }

    /// Checks that the functions can be distributed over several workers.
    fn check_spread(&self) -> Result<(), String> {
        let workers = self.workers;
        let mut knows_homes: Option<&str> = None;
        for stage in &self.functions {
            let Some(mut made) = stage.made() else {
                continue;
            };
            let name = &stage.name;
            match made.needs().spread {
                Spread::Any => {}
                Spread::No => {
                    return Err(format!(
                        "function \"{name}\": one worker must process all packets: leave out workers = {workers}"
                    ));
                }
                Spread::Homes => {
                    if let Some(other) = knows_homes.replace(name) {
                        return Err(format!(
                            "functions \"{other}\" and \"{name}\" both select the worker of a packet: leave out \
                            workers = {workers}"
                        ));
                    }
                    let member = Member {
                        number: 0,
                        of: workers,
                    };
                    made.join(member, &Shared::default())
                        .map_err(|e| format!("function \"{name}\": {e}"))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the names of the ports for display: those in the chain file, or else the target of each port, such as
    /// its interface.
    pub(crate) fn names_of_ports(&self) -> PortNames {
        let names = self.ports.iter().enumerate().map(|(number, spec)| {
            let given = self.port_names.get(number).cloned();
            given.unwrap_or_else(|| match spec.target() {
                "" => spec.to_string(),
                target => target.to_string(),
            })
        });
        PortNames(names.collect())
    }

    /// Returns true if `cores` lists more cores than `workers`, so that workers can join later.
    pub fn has_room(&self) -> bool {
        self.cores.len() > self.workers
    }

    /// Checks that further workers can join while others run; called only if the chain has cores for further workers.
    fn check_room(&self) -> Result<(), String> {
        let most = self.cores.len();
        let all = Self {
            workers: most,
            ..self.clone()
        };
        all.check_workers()?;
        let otherwise = format!("or leave out workers, to start with {most}");
        for port in &self.ports {
            if let Err(e) = port.check_joinable() {
                return Err(format!(
                    "cores: more than workers = {}: {e}; {otherwise}",
                    self.workers
                ));
            }
        }
        let knows = self.functions.iter().find(|stage| {
            let spread = stage.made().map(|made| made.needs().spread);
            spread.is_some_and(|spread| spread != Spread::Any)
        });
        knows.map_or(Ok(()), |stage| {
            Err(format!(
                "cores: more than workers = {}: function \"{}\" distributes packets over the initial number of \
                workers; {otherwise}",
                self.workers, stage.name
            ))
        })
    }

    /// Checks that every port and every function can wake the worker, if the waiting policy sleeps until a wakeup.
    /// `asleep` is a function that cannot wake the worker; None if all functions can.
    fn check_wait(&self, asleep: Option<&Stage>) -> Result<(), String> {
        if self.wait != Wait::Interrupt {
            return Ok(());
        }
        let otherwise = "use sleep(50us), or another waiting policy";
        if let Some(port) = self.ports.iter().find(|port| !port.wakes()) {
            let waking = backends().iter().filter(|b| b.wakes).map(|b| b.name);
            let waking: Vec<_> = waking.collect();
            return Err(format!(
                "wait \"interrupt\": {port} cannot wake the worker ({} can): {otherwise}",
                waking.join(", ")
            ));
        }
        asleep.map_or(Ok(()), |stage| {
            Err(format!(
                "wait \"interrupt\": {} sends packets of its own, for which nothing wakes the worker: {otherwise}",
                stage.name
            ))
        })
    }

    /// Makes the functions of the chain, ready to run on the calling thread's core.
    ///
    /// # Errors
    /// The name or a setting of a function is wrong (files are checked for that when they are read), or the machine
    /// lacks what a function needs.
    pub fn build_functions(&self) -> Result<Vec<Box<dyn Function>>, ChainError> {
        self.build_functions_for(&Making::default())
    }

    pub(crate) fn build_functions_for(
        &self,
        making: &Making<'_>,
    ) -> Result<Vec<Box<dyn Function>>, ChainError> {
        let made = build(&self.functions, &[], making)?;
        Ok(made.into_iter().flatten().collect())
    }
}

fn check_burst(burst: usize) -> Result<usize, String> {
    if (1..=MOST_BURST).contains(&burst) {
        Ok(burst)
    } else {
        Err(format!("burst {burst}: expected 1 to {MOST_BURST} packets"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_functions::FUNCTIONS;

    #[test]
    fn a_chain_file_sets_flush_core_ports_and_functions() {
        let chain = Chain::parse(
            "flush = \"full(32, 100us)\"\ncore = 1\nports = [\"null:\", \"null:source=8\"]\n[[function]]\nname = \"mac-swap\"\n",
            "x.toml", FUNCTIONS)
        .unwrap();
        assert_eq!(chain.flush.to_string(), "full(32, 100us)");
        assert_eq!((chain.ports.len(), chain.core), (2, Some(1)));
        assert_eq!(chain.functions[0].name, "mac-swap");
        assert_eq!(chain.build_functions().unwrap().len(), 1);
    }

    #[test]
    fn a_chain_file_sets_name_budget_and_placement() {
        let chain = Chain::parse(
            "name = \"edge\"\nbudget = \"350us\"\nplacement = \"namespaces\"\nports = [\"null:\", \"null:\"]\n\
             [[function]]\nname = \"forward\"\nplace = \"kernel\"\n[[function]]\nname = \"xor\"\nkey = 7\n",
            "x.toml", FUNCTIONS)
        .unwrap();
        assert_eq!(chain.name.as_deref(), Some("edge"));
        assert_eq!(chain.budget, Some(Duration::from_micros(350)));
        assert_eq!(chain.placement, Placement::Namespaces);
        let places: Vec<_> = chain.functions.iter().map(|stage| stage.place).collect();
        assert_eq!(places, [Some(Place::Kernel), None]);
        let wrong = Chain::parse(
            "budget = \"soon\"\nports = [\"null:\"]\n",
            "x.toml",
            FUNCTIONS,
        )
        .unwrap_err();
        assert!(
            wrong
                .to_string()
                .contains("x.toml:1:10: budget \"soon\": expected a time"),
            "{wrong}"
        );
    }

    #[test]
    fn spare_cores_require_ports_and_functions_that_admit_more_workers() {
        let read = |workers: usize, port: &str, function: &str| {
            let text = format!(
                "workers = {workers}\ncores = [0, 1]\nports = [\"{port}\", \"null:\"]\n[[function]]\n{function}\n"
            );
            Chain::parse(&text, "x.toml", FUNCTIONS).map_err(|e| e.to_string())
        };
        let forward = "name = \"forward\"";
        let chain = read(1, "null:", forward).unwrap();
        assert_eq!((chain.workers, chain.has_room()), (1, true));
        assert!(!read(2, "null:", forward).unwrap().has_room());
        let nat = "name = \"nat\"\noutside = [1]\naddress = \"192.0.2.1\"";
        for (workers, port, function, part) in [
            (
                1,
                "memif:/x",
                forward,
                "\"memif:/x\": no worker can join it while it is open",
            ),
            (
                1,
                "null:",
                nat,
                "function \"nat\" distributes packets over the initial number",
            ),
            (
                1,
                "null:",
                "name = \"rlnc\"",
                "one worker must process all packets",
            ),
            (3, "null:", forward, "cores: 2 for 3 workers"),
        ] {
            let wrong = read(workers, port, function).unwrap_err();
            assert!(
                wrong.starts_with("x.toml:1:") && wrong.contains(part),
                "{wrong}"
            );
        }
    }

    #[test]
    fn port_names_in_function_settings_become_port_numbers() {
        let text = |named: &str| {
            format!(
                "ports = {{ wan = \"null:source=8\", lan = \"null:\" }}\n[[function]]\nname = \"nat\"\n\
                 outside = {named}\naddress = \"192.0.2.1\"\n"
            )
        };
        let outside = |named: &str| {
            let chain = Chain::parse(&text(named), "x.toml", FUNCTIONS).unwrap();
            assert_eq!(chain.ports[0].text(), "null:source=8");
            chain.functions[0].settings["outside"].to_string()
        };
        assert_eq!(outside("[\"lan\"]"), "[1]");
        assert_eq!(outside("[\"wan\", 1]"), "[0, 1]");
        let wrong = |text: &str| {
            Chain::parse(text, "x.toml", FUNCTIONS)
                .unwrap_err()
                .to_string()
        };
        let unknown = wrong(&text("[\"lam\"]"));
        assert!(
            unknown.contains("x.toml:4:11: ") && unknown.contains("did you mean `lan`?"),
            "{unknown}"
        );
        let unnamed = wrong(
            "ports = [\"null:\", \"null:\"]\n[[function]]\nname = \"nat\"\noutside = [\"lan\"]\n\
             address = \"192.0.2.1\"\n",
        );
        assert!(unnamed.contains("have no names"), "{unnamed}");
        assert!(
            wrong("ports = 7").contains("a list of ports"),
            "{}",
            wrong("ports = 7")
        );
        let twice = wrong("ports = { a = \"null:\", a = \"null:\" }");
        assert!(twice.contains("x.toml:1:"), "{twice}");
    }

    #[test]
    fn the_burst_size_is_parsed_and_has_a_default() {
        let burst = |text: &str| Chain::parse(text, "x.toml", FUNCTIONS).unwrap().burst;
        assert_eq!(burst("ports = [\"null:\"]\n"), DEFAULT_BURST);
        assert_eq!(burst("burst = 256\nports = [\"null:\"]\n"), MOST_BURST);
    }

    #[test]
    fn a_function_argument_is_parsed_with_and_without_settings() {
        let stage = Stage::parse("mac-swap", FUNCTIONS).unwrap();
        assert_eq!((stage.name.as_str(), stage.settings.len()), ("mac-swap", 0));
        let stage = Stage::parse("walk( steps=10, bytes = 32 kB )", FUNCTIONS).unwrap();
        assert_eq!(stage.name, "walk");
        assert_eq!(stage.settings["steps"], toml::Value::Integer(10));
        assert_eq!(stage.settings["bytes"].as_str(), Some("32 kB"));
        let stage = Stage::parse("x(a=true, b=0.5, c=\"7\")", FUNCTIONS).unwrap();
        assert_eq!(stage.settings["a"].as_bool(), Some(true));
        assert_eq!(stage.settings["b"].as_float(), Some(0.5));
        assert_eq!(stage.settings["c"].as_str(), Some("7"));
        let text = "nat(outside=[1, 0], address=203.0.113.1, more=[\"192.0.2.1\"])";
        let stage = Stage::parse(text, FUNCTIONS).unwrap();
        assert_eq!(stage.settings["outside"].to_string(), "[1, 0]");
        assert_eq!(stage.settings["address"].as_str(), Some("203.0.113.1"));
        assert_eq!(stage.settings["more"].to_string(), "[\"192.0.2.1\"]");
        let stage = Stage::parse("x(a=[], b=[a, [2]])", FUNCTIONS).unwrap();
        assert_eq!(stage.settings["a"].to_string(), "[]");
        assert_eq!(stage.settings["b"].to_string(), "[\"a\", [2]]");
        assert_eq!(Stage::parse("burn()", FUNCTIONS).unwrap().name, "burn");
    }

    #[test]
    fn an_invalid_function_argument_is_refused_with_a_remedy() {
        for (text, part) in [
            ("", "such as burn(cycles=100)"),
            ("burn(cycles=1", "such as burn(cycles=100)"),
            ("burn(1)", "such as burn(cycles=100)"),
            ("(cycles=1)", "such as burn(cycles=100)"),
            ("burn(cycles=1, cycles=2)", "given twice"),
            (
                "nat(outside=[1)",
                "outside: expected a list to its end: [1]",
            ),
            (
                "filter(default=drop, rules=[{ action = drop }])",
                "rules: tables are not supported here: use a chain file",
            ),
        ] {
            let message = Stage::parse(text, FUNCTIONS).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn ports_are_named_by_their_key_or_by_their_target() {
        let names = |text: &str| {
            Chain::parse(text, "x.toml", FUNCTIONS)
                .unwrap()
                .names_of_ports()
                .0
        };
        let named = names("ports = { wan = \"null:source=8\", lan = \"null:\" }");
        assert_eq!(*named, ["wan", "lan"]);
        let unnamed = names("ports = [\"af_packet:eth0,ring=64\", \"null:\"]");
        assert_eq!(*unnamed, ["eth0", "null:"]);
    }

    #[test]
    fn the_error_for_wrong_settings_names_the_function() {
        let chain = Chain {
            functions: vec![
                Stage::parse("burn(cycles=1)", FUNCTIONS).unwrap(),
                Stage::parse("burn(cycles=x)", FUNCTIONS).unwrap(),
            ],
            ..Chain::parse("ports = [\"null:\"]", "x.toml", FUNCTIONS).unwrap()
        };
        let message = chain.build_functions().err().unwrap().to_string();
        assert!(message.starts_with("function \"burn\": "), "{message}");
    }

    #[test]
    fn functions_that_name_missing_ports_are_refused() {
        let key = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(key.path(), "0123456789abcdef".repeat(2)).unwrap();
        let aes = format!("key_file = \"{}\"\nencrypt", key.path().display());
        let hops = "hops = [\"02:00:00:00:00:01\"]\nport";
        let named = |key: &str, list: &str, ports: &str, settings: &str| {
            let text = format!(
                "ports = [{}]\n[[function]]\nname = \"{key}\"\n{settings} = {list}\n",
                vec!["\"null:\""; ports.parse().unwrap()].join(",")
            );
            Chain::parse(&text, "x.toml", FUNCTIONS).map_err(|e| e.to_string())
        };
        for (name, settings) in [
            ("aes", aes.as_str()),
            ("nat", "address = \"203.0.113.1\"\noutside"),
            ("rlnc", "encode"),
            ("gtpu", "address = \"192.0.2.1\"\ntunnels"),
            ("balance", hops),
        ] {
            let list = |port: usize| match name {
                "balance" => port.to_string(),
                _ => format!("[{port}]"),
            };
            let named = |port, ports| named(name, &list(port), ports, settings);
            let key = settings.lines().last().unwrap();
            assert!(named(1, "2").is_ok(), "{name}: {:?}", named(1, "2"));
            let wrong = named(2, "2").unwrap_err();
            let said = format!("{key} = {}: this chain has ports 0 and 1", list(2));
            assert!(wrong.contains(&said), "{wrong}");
            let wrong = named(1, "1").unwrap_err();
            assert!(wrong.contains("this chain has port 0 only"), "{wrong}");
            let wrong = named(7, "4").unwrap_err();
            assert!(wrong.contains("this chain has ports 0 to 3"), "{wrong}");
        }
        // This chain does not come from a file.
        let mut chain = Chain::parse("ports = [\"null:\"]", "x.toml", FUNCTIONS).unwrap();
        chain.functions = vec![Stage::parse("balance(port=0, hops=x)", FUNCTIONS).unwrap()];
        assert_eq!(chain.check(), Ok(()), "found where it is made");
        let settings = "port = 9\nhops = [\"02:00:00:00:00:01\"]";
        chain.functions[0].settings = settings.parse().unwrap();
        let wrong = chain.check().unwrap_err();
        let said = "function \"balance\": port = 9: this chain has port 0 only";
        assert_eq!(wrong, said);
        chain.functions = vec![Stage::parse("rlnc(encode=[9])", FUNCTIONS).unwrap()];
        assert!(chain.check().unwrap_err().contains("encode = [9]"));
        let one = Stage::parse("nat(outside=1, address=192.0.2.1)", FUNCTIONS);
        let wrong = one.unwrap().check().unwrap_err().to_string();
        assert!(
            wrong.contains("outside = 1: expected a list: [1]"),
            "{wrong}"
        );
    }

    #[test]
    fn chain_file_errors_name_file_line_and_column() {
        for (text, part) in [
            ("ports = [\"null:\"\n", "x.toml:"),
            (
                "ports = [\"null:\"]\nflsh = \"each\"\n",
                "x.toml:2:1: unknown key `flsh`: expected one of `ports`, ",
            ),
            (
                "ports = [\n\"null:\",\n\"nul:\"]\n",
                "x.toml:3:1: port \"nul:\"",
            ),
            (
                "ports = [\"null:\"]\nflush = \"sometimes\"\n",
                "x.toml:2:9: flush \"sometimes\"",
            ),
            (
                "ports = [\"null:\"]\n\n[[function]]\nname = \"snort\"\n",
                "x.toml:4:8: no function \"snort\"",
            ),
            (
                "ports = [\"null:\"]\nburst = 257\n",
                "x.toml:2:9: burst 257: expected 1 to 256",
            ),
            (
                "ports = [\"null:\"]\nplace = \"kernel\"\ncore = 1\n",
                "x.toml:3:8: the kernel has neither",
            ),
            (
                "ports = [\"null:\"]\nflush = \"each\"\nplace = \"kernel\"\n",
                "x.toml:2:9: the kernel has neither",
            ),
            (
                "ports = [\"null:\"]\nwait = \"doze\"\n",
                "x.toml:2:8: wait \"doze\": expected poll",
            ),
            (
                "ports = [\"null:\"]\nwait = \"poll\"\nplace = \"kernel\"\n",
                "x.toml:2:8: the kernel has neither",
            ),
            (
                "ports = [\"tap:t\", \"pcap:x\"]\nwait = \"interrupt\"\n",
                "pcap:x cannot wake the worker (af_packet, af_xdp, memif, pair, tap can): use sleep(50us)",
            ),
            (
                "ports = [\"tap:t\"]\nwait = \"interrupt\"\n[[function]]\nname = \"impair\"\n",
                "impair sends packets of its own",
            ),
            (
                "ports = [\"null:\"]\nplace = \"moon\"\n",
                "x.toml:2:9: place = \"moon\": expected \"user\" or \"kernel\"",
            ),
            (
                "ports = [\"null:\"]\nflus = \"each\"\n",
                "; did you mean `flush`?",
            ),
            (
                "ports = [\"null:\"]\nburst = -1\n",
                "x.toml:2:9: burst = -1: expected a whole number, 0 or more",
            ),
            (
                "ports = [\"null:\"]\n[function]\nname = \"xor\"\n",
                "function: expected a list: write `[[function]]`",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"burn\"\n\ncycls = 7\n",
                "x.toml:5:1: unknown key `cycls`: expected `cycles`; did you mean `cycles`?",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"burn\"\n\ncycles = -7\n",
                "x.toml:5:10: cycles = -7: expected a whole number",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"burn\"\n",
                "x.toml:2:1: the key `cycles` is missing",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"walk\"\nsteps = 1\nbytes = -1\n",
                "x.toml:5:9: bytes: expected a size such as \"32 kB\"",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"xor\"\nkey = \"7\"\n",
                "x.toml:4:7: key = \"7\": expected a whole number",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"forward\"\n[[function]]\nname = \"filter\"\n\
                 default = \"drop\"\nrules = [\n  { action = \"drop\" },\n  { action = \"drop\", protocl = \"udp\" },\n]\n",
                "x.toml:9:22: rules 2: unknown key `protocl`",
            ),
            (
                "ports = [\"null:\"]\n[[function]]\nname = \"balance\"\nhops = [\"02:00:00:00:00:01\"]\nport = 1\n",
                "x.toml:5:8: port = 1: this chain has port 0 only",
            ),
            ("ports = []\n", "no ports"),
            ("ports = [\"null:\",\"null:\",\"null:\"]\n", "3 ports"),
            (
                "ports = [\"null:\",\"null:\"]\n[[function]]\nname = \"switch\"\n[[function]]\nname = \"rlnc\"\nencode = [1]\n",
                "\"rlnc\" emits packets of its own, for which \"switch\" cannot select an egress port",
            ),
            ("flush = \"each\"\n", "the key `ports` is missing"),
        ] {
            let message = Chain::parse(text, "x.toml", FUNCTIONS)
                .unwrap_err()
                .to_string();
            assert!(message.contains(part), "{message}");
            assert!(!message.contains('\n'), "one line: {message}");
        }
    }
}
