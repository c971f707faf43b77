//! Trait [`Function`] and one file per network function.
//!
//! Adding a function is one file of the shape of `forward.rs` or `mac_swap.rs` (its tests at the bottom) and one line
//! in [`functions`].
//!
//! The types to know:
//!
//! - [`Function`]: sees each batch and marks or changes packets. A worker owns it.
//! - [`Entry`]: its name, what people read about it, and how to make it from a table of settings.
//! - [`Context`]: what a function is told with a batch: the time, and the ports.
//!
//! A chain file names functions; [`build`] finds the [`Entry`] and makes each from its settings. The worker calls
//! `prepare` once on its own core, then `process` for every batch. What a function punts goes to its [`Handler`] on the
//! slow path. Functions that several workers share say how ([`Spread`]), and find in [`Shared`] what the first one
//! made. `in_kernel.rs` says what the XDP programs of a function are told.
//!
//! Begin with `mac_swap.rs`, then `filter.rs`; `nat/` and `gtpu/` are the large ones. `plugin.rs` and `lua.rs` are for functions
//! that are not part of taut. `counts.rs` is what others may read of a function while it runs.
//!
//! # State that workers share
//!
//! A function says by its [`Spread`] which worker may process a packet: any, the packet's owner, or only one. The
//! function of the first worker makes shared state and puts it into [`Shared`], where the others find it. The control
//! plane of a function reaches the workers in two ways. `changes.rs` is a ring of small changes per worker, which takes
//! a few of them before each batch. `swapped.rs` is a table that is built aside and replaced as a whole: a worker reads
//! one number per batch, never waits, and returns the old table to the thread that made it.
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
//! slow path, or drop. So a neighbour that moves costs one store, however many routes lead to it. A neighbour gets a
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
mod shared;
mod slow;
mod swapped;
pub mod switch;
mod sync;
mod tuple;
mod walk;
mod xor;

pub use class::Class;
pub use counts::{Count, CountKind, Counted, says_dropped};
pub use in_kernel::{KernelVersion, UpcallError, UpcallMade, UpcallVersion, in_kernel, upcall};
pub use route::cut;
pub use shared::{PortNames, Shared};
pub use slow::{Handler, Passage, Punted, Send};
pub use swapped::{InUse, Swapped};

use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_settings::{in_words, suggestion};
use taut_sys::Alarm;

/// Network function: looks at the packets of a batch, changes them in place, and marks those that are to be dropped or
/// punted. Used by one worker thread; called once per batch.
pub trait Function {
    /// Handles a batch. Never reorders it and never allocates.
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

    /// Whether it keeps packets back for later batches. Then it is called with empty batches too, so that
    /// it can put them in; what it still keeps when the worker ends is lost.
    fn holds_packets(&self) -> bool {
        false
    }

    /// Whether a worker that sleeps until it is woken may have it: whatever there is to do without packets, it wakes the
    /// worker for ([`Function::arm`]).
    fn wakes(&self) -> bool {
        !self.holds_packets()
    }

    /// Readies it for a worker that will sleep: has `alarm` watch what becomes readable when there is something to do. The
    /// worker makes one more round before it sleeps, and calls [`Function::disarm`] when it is awake. False if it needs
    /// to be called instead: work is left undone, or it cannot wake anybody.
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        self.wakes()
    }

    /// The worker is awake.
    fn disarm(&mut self) {}

    /// Packets that it keeps at this moment, or will still make of those that it saw. One that is replaced while it
    /// runs is called with empty batches until this is 0.
    fn held(&self) -> usize {
        0
    }

    /// Says how several workers of a chain can have the function.
    fn spread(&self) -> Spread {
        Spread::No
    }

    /// Says which of the workers' it is, and where what they share is: called before [`Function::prepare`], of one after the
    /// other.
    ///
    /// # Errors
    /// When what its settings give it is not enough for so many.
    fn join(&mut self, _: Member, _: &Shared) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Writes down the home of each packet of the batch, by place, for functions that are [`Spread::Homes`]; [`ANY`]
    /// leaves it where it is. Only frames as they come in from a port are asked about.
    fn homes(&self, _: &Batch, _: &Context, _homes: &mut [u8; BATCH_CAPACITY]) {}

    /// Is told which ports of the chain stamp packets when they arrive, by the time of day ([`Batch::arrivals`]): called before
    /// [`Function::prepare`] where any does.
    fn stamped_ports(&mut self, _: &[bool]) {}

    /// Gets what takes time or memory: called once, on the worker's own core, before the first batch.
    ///
    /// # Errors
    /// When the machine lacks something.
    fn prepare(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Prepares as [`Function::prepare`] does, for somebody who wants to be told what takes seconds, and may want it no
    /// more.
    ///
    /// # Errors
    /// As [`Function::prepare`]; when it was stopped.
    fn prepare_watched(&mut self, _: &Watcher<'_>) -> Result<(), PortError> {
        self.prepare()
    }

    /// Whether it sends packets to ports of its own choice ([`Batch::send_to`]): then a chain may have any number of them.
    fn sends(&self) -> bool {
        false
    }

    /// Whether it makes packets or lets go of some later, which then leave through the usual port wherever a function has sent those
    /// that they come of: no function that sends packets can be in its chain.
    fn forgets_ports(&self) -> bool {
        false
    }

    /// Whether what it says of a packet would be worth nothing if somebody changed its bytes meanwhile or afterwards, as those could who
    /// share the memory that packets come in through ([`taut_port::Port::own_bytes`]).
    fn judges_bytes(&self) -> bool {
        false
    }

    /// Whether it does nothing but set MAC addresses by the port that packets leave through. Frames that functions behind it make
    /// without any ([`Passage::lacks_addresses`]) see it as well.
    fn sets_addresses(&self) -> bool {
        false
    }

    /// Called when the link of a port comes or goes, ten times a second at most, by each worker.
    fn link_changed(&mut self, _port: usize, _is_up: bool) {}

    /// Returns what is done on the slow path with the packets that the function punts ([`Batch::mark_punted`]); asked
    /// for once, after [`Function::prepare`].
    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        None
    }

    /// Returns what became of packets in it, by cause, for functions that tell causes apart: every packet that they saw
    /// is counted once.
    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Whether packets with that outcome go no further.
    fn drops(&self, outcome: &str) -> bool {
        says_dropped(outcome)
    }

    /// Returns how often something has happened in it, by name: an outcome, or what else it counts. None if it counts no such
    /// thing, or cannot say at the moment. Where functions of all workers count together, the first one says it.
    fn count_of(&self, name: &str) -> Option<u64> {
        let outcomes = self.outcomes();
        let found = outcomes.iter().find(|outcome| outcome.0 == name);
        found.map(|outcome| outcome.1)
    }

    /// Names of counts of the chain that it wants to know ([`Function::hear_counts`]).
    fn wanted_counts(&self) -> &[String] {
        &[]
    }

    /// Called with the counts that it wants, in their order: before the first batch, and then ten times a second at most.
    /// They are those of the functions of its worker and of the worker itself; none where nobody counts such a thing.
    fn hear_counts(&mut self, _: &[Option<u64>]) {}

    /// Returns what others may read of its counters while it runs, for functions that have such: asked for once, after
    /// [`Function::prepare`]. Functions of several workers that count together return the same.
    fn counted(&self) -> Option<Arc<dyn Counted>> {
        None
    }
}

/// Way in which several workers of a chain can have a function, one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Any worker may have any packet.
    Any,
    /// A packet has to go to the worker that knows what it is about, its home ([`Function::homes`]).
    Homes,
    /// One worker has to have all packets.
    No,
}

/// Number of a function among several of the same settings, each of which has a worker of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Number, from 0.
    pub number: usize,
    /// How many functions there are.
    pub of: usize,
}

impl Default for Member {
    /// The only one.
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

/// No worker in particular ([`Function::homes`]).
pub const ANY: u8 = u8::MAX;

/// Somebody who waits for functions to be ready.
#[derive(Clone, Copy)]
pub struct Watcher<'a> {
    /// Flag that is set once nobody wants the functions any more.
    pub stop: &'a AtomicBool,
    /// Callback that is told what takes seconds, in words for people.
    pub tell: &'a dyn Fn(&str),
}

impl std::fmt::Debug for Watcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// Facts that a function may know beyond the packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// Time at which the worker began this round, in ticks of [`taut_sys::ticks`].
    pub now_ticks: u64,
    /// Number of the port that the packets came in through, in the order of the chain.
    pub from_port: usize,
    /// Number of the port that the packets leave through unless they are sent elsewhere, in the order of the chain.
    pub to_port: usize,
    /// Ports of the chain.
    pub ports: usize,
}

/// A function that can be named in a chain.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name of the function in chain files and on the command line.
    pub name: &'static str,
    /// Summary for people, one line.
    pub summary: &'static str,
    /// Class: how much of a packet the function touches.
    pub class: Class,
    /// The key of its settings that names ports of the chain: a number from 0 or a list of them, in chain files also their names.
    pub ports: Option<&'static str>,
    /// Makes it from the keys of its table in the chain file.
    pub build: fn(toml::Table) -> Result<Box<dyn Function>, SettingsError>,
    /// What does the same inside the kernel.
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

/// Reason why a function cannot be made from its settings; begins with the key that it is about, if there is one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Reads a function's settings; unknown keys are errors if the type says `deny_unknown_fields`.
fn settings<T: DeserializeOwned>(table: toml::Table) -> Result<T, SettingsError> {
    table
        .try_into()
        .map_err(|e: toml::de::Error| SettingsError(in_words(&e)))
}

/// Makes something of each table of the list under that key; what is wrong says in which of them.
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

/// The function of that name, made from its settings.
///
/// # Errors
/// When there is none of that name, or the settings are wrong.
pub fn build(name: &str, table: toml::Table) -> Result<Box<dyn Function>, SettingsError> {
    (entry(name)?.build)(table)
}

/// That of the function of that name; else which ones there are.
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
    fn the_function_that_contributors_are_shown_is_one_that_is_tested() {
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
    fn what_a_function_before_has_dropped_is_left_alone_and_not_counted() {
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
