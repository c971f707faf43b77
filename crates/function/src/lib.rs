//! Trait [`Function`] and one file per network function.
//!
//! Adding a function is one file of the shape of `forward.rs` or `mac_swap.rs` (its tests at the bottom) and one line
//! in [`functions`].
//!
//! The types to know:
//!
//! - [`Function`]: sees each batch and marks or changes packets. A worker owns it.
//! - [`Entry`]: its name, its one-line summary, and how to make it from a table of settings.
//! - [`Context`]: the facts that come with a batch: the time, and the ports.
//!
//! A chain file names functions; [`build`] finds the [`Entry`] and makes each from its settings. The worker calls
//! `prepare` once on its own core, then `process` for every batch. Punted packets go to the function's [`Handler`] on
//! the slow path. A function declares how several workers can share it ([`Spread`]), and finds in [`Shared`] the state
//! that the first one made. `in_kernel.rs` describes the settings of a function's XDP programs.
//!
//! Begin with `mac_swap.rs`, then `filter.rs`; `nat/` and `gtpu/` are the large ones. `plugin.rs` and `lua.rs` are for
//! functions that are not part of taut. `counts.rs` has the counters that others may read while a function runs.
//!
//! # State that workers share
//!
//! A function says by its [`Spread`] which worker may process a packet: any, the packet's owner, or only one. The
//! function of the first worker makes shared state and puts it into [`Shared`], where the others find it. The control
//! plane of a function reaches the workers in two ways. `changes.rs` is a ring of small changes per worker, which takes
//! a few of them before each batch. `table_swap.rs` is a table that is built aside and replaced as a whole. A worker
//! reads one number per batch, never waits, and returns the old table to the thread that made it.
//!
//! # The gateway
//!
//! `gtpu/` keeps a table of 16-byte entries per worker, four to a cache line, and looks up a whole batch at once, so
//! that the cache misses overlap. The control plane (`control.rs`) has a table of the same form. It checks a set of
//! changes as a whole and sends it through a ring (`change.rs`). The control socket (`server.rs`) and PFCP (`pfcp/`)
//! both call it. A pure function computes the bearers of a PFCP session from its rules (`session.rs`), so a
//! modification is the difference of two results. The slow path sends replies (`answer.rs`); the worker sends end
//! markers, because they follow the last packet of their path.
//!
//! A meter stores a time and the cost of a byte (`meter.rs`). A bit in a bearer's entry says that the bearer has
//! meters, so other bearers cost nothing more. Meters are looked up last (`policing.rs`), and a packet above the rate
//! counts as dropped only. All workers share the meters, which the control plane creates (`limit.rs`).
//!
//! # The router
//!
//! `route/` looks up the destinations of a batch together in the tables of `taut-lpm`, which the control plane changes
//! in place. The result is the number of a next hop. The next hop is one word (`hop.rs`): egress port and MAC address,
//! slow path, or drop. A neighbour that moves thus costs one store, however many routes lead to it. A neighbour gets a
//! route of its own, so that every packet needs one lookup. ECMP divides the flows of a route by a table of 64 entries
//! (`group.rs`). The number of a next hop and the memory of a table are reused after every worker has finished a batch.
//! Neighbours are kept without clock and sockets (`neighbours.rs`), so tests run their timers in virtual time.
//!
//! If the kernel owns the routes, a thread receives changes by netlink and passes them to the control plane
//! (`follow.rs`). It subscribes before it reads all routes, so it misses none, and reads them again after an overrun.
//! Packets for the router itself go from the slow path to a kernel interface per port (`taps.rs`), where routing
//! daemons send and receive.
//!
//! # The inspection
//!
//! `ips/` processes a packet in steps, one file each, in the order of `plane.rs`: normaliser (`normalise.rs`), flow
//! (`flow.rs`), TCP state and stream reassembly (`connection.rs`), protocols and rules (`ask.rs`), verdict. Two
//! principles hold: a packet that its receiver would refuse is dropped, and a byte is fixed until its receiver has
//! acknowledged it. Each worker reassembles fragments itself; their frames wait on the slow path. The owner of a flow
//! depends on the addresses alone, because fragments have no ports. The function gets packets in memory that no peer
//! can write (`Function::judges_bytes`). All memory is allocated at the start: flow table, stream chunks, parsers that
//! flows borrow (`lend.rs`). Rules are compiled by the control plane (`rules.rs`) and swapped. Events go through a ring
//! to a thread that writes JSON (`events.rs`), packets of alerts through another one to a pcapng file
//! (`packet_file.rs`).

#![forbid(unsafe_code)]

pub mod aes;
mod ats;
mod balance;
#[cfg(test)]
mod batch_of;
mod budget;
pub mod burn;
mod changes;
mod class;
mod control_socket;
mod counts;
mod datagram;
mod filter;
mod forward;
pub mod gtpu;
mod host;
mod impair;
mod in_kernel;
pub mod ips;
#[cfg(test)]
mod lose;
mod lua;
mod mac_rewrite;
mod mac_swap;
mod medium;
mod mix;
mod mtu;
mod names;
mod nat;
mod plugin;
pub mod record;
mod resize;
pub mod rlnc;
pub mod route;
mod shared_state;
mod slow;
pub mod switch;
mod sync;
mod table_swap;
mod tuple;
mod walk;
mod xor;

pub use class::Class;
pub use counts::{Count, CountKind, Counted, says_dropped};
pub use in_kernel::{KernelVersion, UpcallError, UpcallMade, UpcallVersion, in_kernel, upcall};
pub use route::cut;
pub use shared_state::{PortNames, Shared};
pub use slow::{Handler, Passage, Punted, Send};
pub use table_swap::{InUse, Swapped};

use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_settings::{in_words, suggestion};
use taut_sys::Alarm;

/// A network function: inspects the packets of a batch, changes them in place, and marks those to be dropped or punted.
/// One worker thread uses it, with one call per batch.
pub trait Function {
    /// Processes a batch. It never reorders packets and never allocates.
    ///
    /// ```
    /// use taut_function::{Context, Function};
    /// use taut_port::Batch;
    ///
    /// /// Drops packets that are too short to be a frame.
    /// struct DropRunts;
    ///
    /// impl Function for DropRunts {
    ///     fn process(&mut self, batch: &mut Batch, _: &Context) {
    ///         for i in 0..batch.len() {
    ///             if batch.packets()[i].len() < 14 {
    ///                 batch.mark_dropped(i);
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    fn process(&mut self, batch: &mut Batch, context: &Context);

    /// Returns true if it buffers packets for later batches. It is then also called with empty batches, to which it can
    /// add them. Packets that are still buffered when the worker ends are lost.
    fn holds_packets(&self) -> bool {
        false
    }

    /// Returns true if a worker that sleeps can run it: it wakes the worker for all work without packets
    /// ([`Function::arm`]).
    fn wakes(&self) -> bool {
        !self.holds_packets()
    }

    /// Prepares it for a worker that will sleep: has `alarm` watch the descriptors that become readable when there is
    /// work. The worker makes one more iteration before it sleeps, and calls [`Function::disarm`] when it is awake.
    /// Returns false if the worker must keep polling: work is left, or the function cannot wake it.
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        self.wakes()
    }

    /// Ends the preparation for sleep, because the worker is awake.
    fn disarm(&mut self) {}

    /// Returns the number of packets that it buffers, or will still emit for packets that it has processed. A function
    /// that is replaced at runtime is called with empty batches until this is 0.
    fn held(&self) -> usize {
        0
    }

    /// Returns how several workers of a chain can share the function.
    fn spread(&self) -> Spread {
        Spread::No
    }

    /// Sets its worker's number and the state that the workers share. Called for one worker after another, before
    /// [`Function::prepare`].
    ///
    /// # Errors
    /// Fails if its settings do not suffice for that many workers.
    fn join(&mut self, _: Member, _: &Shared) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Writes the owner of each packet of the batch, by index, for functions that are [`Spread::Homes`]; [`ANY`] leaves
    /// the packet at its worker. The batch contains only frames that have just arrived at a port.
    fn homes(&self, _: &Batch, _: &Context, _homes: &mut [u8; BATCH_CAPACITY]) {}

    /// Sets which ports of the chain timestamp arriving packets by the time of day ([`Batch::arrivals`]). Called before
    /// [`Function::prepare`] if any port does.
    fn stamped_ports(&mut self, _: &[bool]) {}

    /// Allocates memory and does slow preparations such as calibration. Called once, on the worker's own core, before
    /// the first batch.
    ///
    /// # Errors
    /// Fails if the machine lacks something that the function needs.
    fn prepare(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Prepares as [`Function::prepare`] does. It reports slow steps to the watcher and stops at its request.
    ///
    /// # Errors
    /// Fails as [`Function::prepare`] does, or if it was stopped.
    fn prepare_watched(&mut self, _: &Watcher<'_>) -> Result<(), PortError> {
        self.prepare()
    }

    /// Returns true if it chooses egress ports ([`Batch::send_to`]); its chain may then have any number of ports.
    fn sends(&self) -> bool {
        false
    }

    /// Returns true if it creates or delays packets. Those lose the egress port that an earlier function chose, so it
    /// cannot share a chain with a function that chooses egress ports.
    fn forgets_ports(&self) -> bool {
        false
    }

    /// Returns true if its verdicts require bytes that nobody else can change, during the call or later. Peers that
    /// share the ingress memory could change them ([`taut_port::Port::own_bytes`]).
    fn judges_bytes(&self) -> bool {
        false
    }

    /// Returns true if it only sets MAC addresses by egress port. Frames that later functions create without addresses
    /// ([`Passage::lacks_addresses`]) pass through it as well.
    fn sets_addresses(&self) -> bool {
        false
    }

    /// Reports that the link of a port went up or down. Each worker calls it, at most ten times a second.
    fn link_changed(&mut self, _port: usize, _is_up: bool) {}

    /// Returns the handler that processes the function's punted packets on the slow path ([`Batch::mark_punted`]).
    /// Called once, after [`Function::prepare`].
    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        None
    }

    /// Returns the number of packets by outcome, for functions that distinguish outcomes: every processed packet counts
    /// once.
    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns true if packets with that outcome go no further.
    fn drops(&self, outcome: &str) -> bool {
        says_dropped(outcome)
    }

    /// Returns a count by name: of an outcome, or of another event. Returns none if it has no such count, or cannot
    /// read it at the moment. If the functions of all workers count together, the first one returns it.
    fn count_of(&self, name: &str) -> Option<u64> {
        let outcomes = self.outcomes();
        let found = outcomes.iter().find(|outcome| outcome.0 == name);
        found.map(|outcome| outcome.1)
    }

    /// Returns the names of the chain's counts that it needs ([`Function::hear_counts`]).
    fn wanted_counts(&self) -> &[String] {
        &[]
    }

    /// Receives the counts that it needs, in order: before the first batch, and then at most ten times a second. The
    /// counts are those of its worker and the worker's functions; none if nothing counts under that name.
    fn hear_counts(&mut self, _: &[Option<u64>]) {}

    /// Returns the counters that others may read while it runs, if it has any. Called once, after
    /// [`Function::prepare`]. Functions of several workers that count together return the same.
    fn counted(&self) -> Option<Arc<dyn Counted>> {
        None
    }
}

/// The ways in which the workers of a chain can share a function, with one instance each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Any worker may have any packet.
    Any,
    /// A packet has to go to its owner, the worker that has its state ([`Function::homes`]).
    Homes,
    /// One worker has to process all packets.
    No,
}

/// The position of one instance of a function among those with the same settings, one per worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The index of the instance, from 0.
    pub number: usize,
    /// The number of instances.
    pub of: usize,
}

impl Default for Member {
    /// Returns the position of a single instance: index 0 of 1.
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

/// The value for a packet that any worker may process ([`Function::homes`]).
pub const ANY: u8 = u8::MAX;

/// The means to report progress to a caller that waits for functions, and to stop.
#[derive(Clone, Copy)]
pub struct Watcher<'a> {
    /// The flag that is set when the functions are no longer needed.
    pub stop: &'a AtomicBool,
    /// The callback that receives messages about slow steps, in words for people.
    pub tell: &'a dyn Fn(&str),
}

impl std::fmt::Debug for Watcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// The facts that a function may know beyond the packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// The time at which the worker began this iteration, in ticks of [`taut_sys::ticks`].
    pub now_ticks: u64,
    /// The number of the ingress port, in the order of the chain.
    pub from_port: usize,
    /// The number of the default egress port, in the order of the chain; packets may be sent elsewhere.
    pub to_port: usize,
    /// The number of ports of the chain.
    pub ports: usize,
}

/// A function that can be named in a chain.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name of the function in chain files and on the command line.
    pub name: &'static str,
    /// The summary for people, one line.
    pub summary: &'static str,
    /// The class: how much of a packet the function touches.
    pub class: Class,
    /// The key of its settings that names ports of the chain. Its value is a number from 0 or a list of them; chain
    /// files may use port names.
    pub ports: Option<&'static str>,
    /// The constructor, which reads the keys of its table in the chain file.
    pub build: fn(toml::Table) -> Result<Box<dyn Function>, SettingsError>,
    /// The XDP version of the function.
    pub in_kernel: KernelVersion,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Returns every function of this build.
pub fn functions() -> &'static [Entry] {
    &[
        aes::ENTRY,
        ats::ENTRY,
        balance::ENTRY,
        burn::ENTRY,
        filter::ENTRY,
        forward::ENTRY,
        gtpu::ENTRY,
        host::ENTRY,
        impair::ENTRY,
        ips::ENTRY,
        lua::ENTRY,
        mac_rewrite::ENTRY,
        mac_swap::ENTRY,
        medium::ENTRY,
        nat::ENTRY,
        plugin::ENTRY,
        record::ENTRY,
        rlnc::ENTRY,
        route::ENTRY,
        switch::ENTRY,
        walk::ENTRY,
        xor::ENTRY,
    ]
}

/// The reason why a function cannot be made from its settings. It begins with the key that it is about, if there is
/// one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Reads a function's settings; unknown keys are errors if the type has `deny_unknown_fields`.
fn settings<T: DeserializeOwned>(table: toml::Table) -> Result<T, SettingsError> {
    table
        .try_into()
        .map_err(|e: toml::de::Error| SettingsError(in_words(&e)))
}

/// Converts each table of the list under that key; an error names the table.
fn each<T: DeserializeOwned, U>(
    key: &str,
    list: Vec<toml::Table>,
    make: impl Fn(T) -> Result<U, SettingsError>,
) -> Result<Vec<U>, SettingsError> {
    let numbered = list.into_iter().zip(1..);
    let made = numbered.map(|(table, number)| {
        settings(table)
            .and_then(&make)
            .map_err(|SettingsError(reason)| SettingsError(format!("{key} {number}: {reason}")))
    });
    made.collect()
}

/// Returns the function of that name, made from its settings.
///
/// # Errors
/// Fails if there is none of that name, or if the settings are wrong.
pub fn build(name: &str, table: toml::Table) -> Result<Box<dyn Function>, SettingsError> {
    (entry(name)?.build)(table)
}

/// Returns the entry of the function of that name; the error lists the known names.
fn entry(name: &str) -> Result<&'static Entry, SettingsError> {
    let found = functions().iter().find(|entry| entry.name == name);
    found.ok_or_else(|| {
        let known: Vec<_> = functions().iter().map(|f| f.name).collect();
        let meant = suggestion(name, known.iter().copied());
        SettingsError(format!(
            "no function \"{name}\"; there are {}{meant}",
            known.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_contributing_page_contains_the_tested_example_function() {
        let (page, file) = (
            include_str!("../../../CONTRIBUTING.md"),
            include_str!("lose.rs"),
        );
        assert!(page.contains(&format!("```rust\n{file}```")));
    }

    #[test]
    fn unknown_functions_and_settings_are_named() {
        let message =
            |r: Result<Box<dyn Function>, SettingsError>| r.err().map(|e| e.0).unwrap_or_default();
        assert!(
            message(build("snort", toml::Table::new()))
                .contains("there are aes, ats, balance, burn, filter, ")
        );
        assert!(message(build("xro", toml::Table::new())).contains("did you mean `xor`?"));
        assert!(!message(build("日本", toml::Table::new())).contains("did you mean"));
        assert!(!message(build("zzzz", toml::Table::new())).contains("did you mean"));
        let table = toml::Table::from_iter([("speed".to_string(), toml::Value::Integer(9))]);
        assert!(message(build("forward", table)).contains("speed"));
    }

    #[test]
    fn packets_dropped_by_an_earlier_function_are_unchanged_and_uncounted() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "0123456789abcdef".repeat(2)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let aes = |port| format!("encrypt = [{port}]\nkey_file = \"{}\"", key.display());
        for (name, settings) in [
            ("aes", aes(0)),
            ("aes", aes(1)),
            ("ats", String::new()),
            (
                "balance",
                "port = 1\nhops = [\"02:00:00:00:00:01\"]".to_string(),
            ),
            ("filter", "default = \"drop\"\nrules = []".to_string()),
            ("rlnc", "encode = [1]".to_string()),
            ("xor", "key = 90".to_string()),
        ] {
            let mut function = build(name, settings.parse().unwrap()).unwrap();
            function.prepare().unwrap();
            let frame = taut_wire::UdpFlow::default().frame(100).unwrap();
            let pool = taut_port::PoolHandle::new(4, false).unwrap();
            let mut batch = Batch::new();
            pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packets_mut()[0].bytes_mut().copy_from_slice(&frame);
            batch.mark_dropped(0);
            let context = Context {
                to_port: 1,
                ..Context::default()
            };
            function.process(&mut batch, &context);
            assert_eq!(batch.packets()[0].bytes(), frame, "{name}");
            let counted: u64 = function.outcomes().iter().map(|outcome| outcome.1).sum();
            assert_eq!(counted, 0, "{name}: {:?}", function.outcomes());
        }
    }
}
