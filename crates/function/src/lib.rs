//! The trait [`Function`], which every network function implements, and code that several functions use.
//!
//! The types to know:
//!
//! - [`Function`]: sees each batch and marks or changes packets. A worker owns it.
//! - [`Entry`]: the name and one-line summary of a function, and its constructor from a table of settings.
//! - [`Context`]: the time and the ports that belong to a batch.
//!
//! The worker calls `prepare` once on its own core, then `process` for every batch. The function's [`Handler`]
//! processes punted packets on the slow path. A function declares its requirements ([`Needs`]), such as how several
//! workers can share the function ([`Spread`]). In [`Shared`] it finds the state that the function of the first worker
//! has created. `in_kernel.rs` describes the settings of a function's XDP programs. `counts.rs` has the counters that
//! other threads may read while a function runs. `taut-functions` lists all functions.
//!
//! # State that workers share
//!
//! A function declares by its [`Spread`] which worker may process a packet: any worker, the packet's owner, or only one
//! worker. The function of the first worker creates the shared state and puts it into [`Shared`], where the functions
//! of the other workers find it. The control plane of a function reaches the workers in two ways. `changes.rs` is a
//! ring of small changes per worker; the worker applies a few of them before each batch. `table_swap.rs` is a table
//! that is built separately and replaced as a whole. A worker reads one counter per batch, never waits, and returns the
//! old table to the thread that made it.

#![forbid(unsafe_code)]

pub mod budget;
mod catalog;
pub mod changes;
mod class;
pub mod classifier;
pub mod control_socket;
mod counts;
pub mod datagram;
pub mod fragment;
mod in_kernel;
pub mod macs;
pub mod matching;
pub mod meter;
pub mod mix;
pub mod mtu;
pub mod names;
pub mod reorder;
pub mod resize;
mod shared_state;
pub mod slow;
mod sync;
pub mod table_swap;
pub mod testing;
pub mod tuple;

pub use catalog::Catalog;
pub use class::Class;
pub use counts::{Count, CountKind, Counted, says_dropped};
pub use in_kernel::{KernelVersion, UpcallError, UpcallMade, UpcallVersion};
pub use shared_state::{PortNames, Shared};
pub use slow::{Handler, Passage, Punted, Send};
pub use table_swap::{InUse, Swapped};

use serde::de::DeserializeOwned;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use taut_port::{BATCH_CAPACITY, Batch, PortError};
use taut_settings::in_words;
use taut_sys::Alarm;

/// A network function: inspects the packets of a batch, changes them in place, and marks those to be dropped or punted.
/// One worker thread uses it, with one call per batch.
pub trait Function {
    /// Processes a batch. This method never reorders packets and never allocates memory.
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

    /// Returns the function's requirements on its chain and worker. The worker calls it once, after
    /// [`Function::prepare`].
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Prepares the function for a worker that will sleep: registers with `alarm` the descriptors that become readable
    /// when there is work. The worker makes one more iteration before it sleeps, and calls [`Function::disarm`] when it
    /// is awake. Returns false if the worker must keep polling: work is left, or the function cannot wake the worker.
    fn arm(&mut self, alarm: &mut Alarm) -> bool {
        let _ = alarm;
        self.needs().empty_batches != EmptyBatches::Polls
    }

    /// Ends the preparation for sleep, because the worker is awake.
    fn disarm(&mut self) {}

    /// Returns the number of packets that the function buffers, or will still emit for packets that it has processed. A
    /// function that is replaced at runtime is called with empty batches until this number is 0.
    fn held(&self) -> usize {
        0
    }

    /// Changes the number of instances of a function that spreads packets over several, while packets flow. The type of
    /// `settings` is known to the function. Returns false, without a change, if the function cannot do so.
    fn set_replicas(&mut self, settings: &dyn Any) -> bool {
        let _ = settings;
        false
    }

    /// Sets the index of the function's worker, and the state that the workers share. The method is called for one
    /// worker after another, before [`Function::prepare`].
    ///
    /// # Errors
    /// Fails if the function's settings do not allow this number of workers.
    fn join(&mut self, _: Member, _: &Shared) -> Result<(), SettingsError> {
        Ok(())
    }

    /// Writes the index of each packet's owner, a worker, into the last argument, at the packet's index in the batch.
    /// The value [`ANY`] leaves the packet at the worker that received it. Called only for functions that are
    /// [`Spread::Homes`]. The batch contains only frames that have just arrived at a port.
    fn homes(&self, _: &Batch, _: &Context, _homes: &mut [u8; BATCH_CAPACITY]) {}

    /// Receives, for each port of the chain, whether the port timestamps arriving packets by the time of day
    /// ([`Batch::arrivals`]). Called before [`Function::prepare`], and only if at least one port does.
    fn stamped_ports(&mut self, _: &[bool]) {}

    /// Allocates memory and does slow preparations such as calibration. Called once, on the worker's own core, before
    /// the first batch.
    ///
    /// # Errors
    /// Fails if the machine lacks a resource, such as memory, that the function needs.
    fn prepare(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    /// Prepares the function as [`Function::prepare`] does. This method reports slow steps to the watcher, and returns
    /// an error when the watcher requests the end of the preparation.
    ///
    /// # Errors
    /// Fails as [`Function::prepare`] does, or if the watcher stopped the preparation.
    fn prepare_watched(&mut self, _: &Watcher<'_>) -> Result<(), PortError> {
        self.prepare()
    }

    /// Informs the function that the link of a port went up or down. Each worker calls this method, at most ten times a
    /// second.
    fn link_changed(&mut self, _port: usize, _is_up: bool) {}

    /// Returns the handler that processes the function's punted packets on the slow path ([`Batch::mark_punted`]).
    /// Called once, after [`Function::prepare`].
    fn handler(&mut self) -> Option<Box<dyn Handler>> {
        None
    }

    /// Returns the number of packets by outcome (what the function did with them); empty if the function does not
    /// distinguish outcomes. Every processed packet counts once.
    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Returns true if packets with the outcome `outcome` are dropped.
    fn drops(&self, outcome: &str) -> bool {
        says_dropped(outcome)
    }

    /// Returns the count of an outcome or another event by its name. Returns none if the function has no such count, or
    /// if the count is unavailable at the moment. If the workers' instances of the function share one count, only the
    /// instance of the first worker returns it.
    fn count_of(&self, name: &str) -> Option<u64> {
        let outcomes = self.outcomes();
        let found = outcomes.iter().find(|outcome| outcome.0 == name);
        found.map(|outcome| outcome.1)
    }

    /// Receives the counts that [`Needs::counts`] names, in the same order: before the first batch, and then at most
    /// ten times a second. The counts are those of the function's worker and of all functions of that worker. The count
    /// for an unknown name is none.
    fn hear_counts(&mut self, _: &[Option<u64>]) {}

    /// Returns the counters that other threads may read while the function runs, if there are any. Called once, after
    /// [`Function::prepare`]. If the workers' instances of the function share counters, all of them return the same
    /// counters.
    fn counted(&self) -> Option<Arc<dyn Counted>> {
        None
    }
}

/// The requirements of a function on its chain and worker, and the properties that the chain checks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// The way in which several workers of a chain can share the function.
    pub spread: Spread,
    /// The calls without packets (with empty batches) that the function needs.
    pub empty_batches: EmptyBatches,
    /// True if the function chooses egress ports ([`Batch::send_to`]); its chain may then have any number of ports.
    pub chooses_ports: bool,
    /// True if the function creates or delays packets. Those packets lose the egress port that an earlier function
    /// chose, so the function cannot share a chain with a function that chooses egress ports.
    pub forgets_ports: bool,
    /// True if the verdicts of the function require bytes that no other process can change, during the call or later.
    /// Peers that share the ingress memory could change them ([`taut_port::Port::own_bytes`]).
    pub own_bytes: bool,
    /// True if the function only sets MAC addresses by egress port. Frames that later functions create without
    /// addresses ([`Passage::lacks_addresses`]) pass through the function as well.
    pub sets_addresses: bool,
    /// The names of the chain's counts that the function receives ([`Function::hear_counts`]).
    pub counts: Vec<String>,
}

/// The calls without packets (with empty batches) that a function needs. In such a call the function can add packets to
/// the empty batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EmptyBatches {
    /// The function is only called with packets.
    #[default]
    No,
    /// The function has work without packets. It wakes a worker that sleeps ([`Function::arm`]).
    Wakes,
    /// The function has work without packets and cannot wake a worker that sleeps. Packets that it still buffers when
    /// the worker ends are lost.
    Polls,
}

/// The way in which the workers of a chain can share a function, with one instance each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Spread {
    /// Any worker may process any packet.
    Any,
    /// A packet has to go to its owner, the worker that has the state of the packet's flow ([`Function::homes`]).
    Homes,
    /// One worker has to process all packets.
    #[default]
    No,
}

/// The position of one instance of a function among the instances in all workers of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The index of this instance among all of them, from 0.
    pub number: usize,
    /// The number of instances, one per worker.
    pub of: usize,
}

impl Default for Member {
    /// Returns the position of a single instance: index 0 of 1.
    fn default() -> Self {
        Self { number: 0, of: 1 }
    }
}

/// The value in place of an owner's index for a packet that any worker may process ([`Function::homes`]).
pub const ANY: u8 = u8::MAX;

/// The connection to a caller that waits while functions are prepared. The functions report progress to the caller, and
/// stop when the caller requests it.
#[derive(Clone, Copy)]
pub struct Watcher<'a> {
    /// The flag that is set when the functions are no longer needed.
    pub stop: &'a AtomicBool,
    /// The callback for messages about slow steps, in words for people.
    pub tell: &'a dyn Fn(&str),
}

impl std::fmt::Debug for Watcher<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// The time and the ports that belong to a batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context {
    /// The time at which the worker began this iteration, in ticks of [`taut_sys::ticks`].
    pub now_ticks: u64,
    /// The index of the ingress port in the chain, from 0.
    pub from_port: usize,
    /// The index of the default egress port in the chain, from 0. A function may choose another egress port for a
    /// packet.
    pub to_port: usize,
    /// The number of ports of the chain.
    pub ports: usize,
}

/// A function that a chain can contain.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name of the function in chain files and on the command line.
    pub name: &'static str,
    /// The summary for people, one line.
    pub summary: &'static str,
    /// The class of the function, which states how much of a packet it reads and changes.
    pub class: Class,
    /// The settings key whose value is the index of a port, from 0, or a list of such indices. Chain files may contain
    /// the names of the ports instead. None if no key refers to ports.
    pub ports: Option<&'static str>,
    /// The descriptions of the settings. A test compares their keys with the keys that the constructor accepts.
    pub settings: &'static [Setting],
    /// Returns the names of the files that a function with these settings reads, apart from files named by the key
    /// `load` or by a key that ends in `_file`.
    pub files: fn(&toml::Table) -> Vec<&str>,
    /// The constructor, which reads the settings from the function's table in the chain file.
    pub build: fn(toml::Table) -> Result<Box<dyn Function>, SettingsError>,
    /// The XDP version of the function.
    pub in_kernel: KernelVersion,
}

impl Entry {
    /// Returns true if the function has an XDP version.
    pub fn runs_in_kernel(&self) -> bool {
        !matches!(self.in_kernel, KernelVersion::No(_))
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The description of a setting: its key, its default (`required` if there is none) and its meaning. Several keys with
/// one description are joined by commas. Words to be typed are in backticks.
pub type Setting = (&'static str, &'static str, &'static str);

/// The reason why a function cannot be made from its settings. The text begins with the wrong key, if the error is in a
/// key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Returns the file names that the value of a key in a function's settings contains: one text, or a list of texts.
pub fn file_names<'a>(settings: &'a toml::Table, key: &str) -> Vec<&'a str> {
    match settings.get(key) {
        Some(toml::Value::Array(several)) => several.iter().filter_map(|it| it.as_str()).collect(),
        one => one.and_then(|it| it.as_str()).into_iter().collect(),
    }
}

/// Reads a function's settings; unknown keys are errors if the type has `deny_unknown_fields`.
///
/// # Errors
/// Fails if a key is unknown or a value has the wrong type.
pub fn settings<T: DeserializeOwned>(table: toml::Table) -> Result<T, SettingsError> {
    table
        .try_into()
        .map_err(|e: toml::de::Error| SettingsError(in_words(&e)))
}

/// Converts each table in a list of tables with `make`. The list is the value of a settings key. An error states which
/// table is wrong.
///
/// # Errors
/// Fails if a table is wrong, or as `make` does.
pub fn each<T: DeserializeOwned, U>(
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
