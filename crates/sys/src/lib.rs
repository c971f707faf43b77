//! The interface to the processor and the kernel, except ports: time, counters, memory, sleep, sockets and files.
//!
//! [`ticks`] reads the time once per batch, and a [`Clock`] converts it to nanoseconds. A sleeping worker waits on an
//! [`Alarm`], which the [`Doorbell`] of another thread rings. A loop detects its interruptions with a [`RoundWatch`]
//! and records them in an [`InterruptionLog`], which other processes read. [`Mapping`] is memory that can be shared
//! with another process; packet pools and rings are made of it. An [`AlignedTable`] is on huge pages; the module
//! `lanes` has vectors of sixteen numbers that one instruction loads from such a table. [`interface`] returns the
//! kernel's state of a network interface; [`compile_packet_filter`] compiles an expression with libpcap; a
//! [`PatternDatabase`] uses Vectorscan. A failed system call returns an [`Error`], which says how to fix it.
//!
//! Start reading at `clock.rs`. The crate has `unsafe` code because system calls take pointers; each `unsafe` function
//! documents what its callers must guarantee. Nothing in this crate knows packets, ports or functions.

mod alarm;
mod background;
mod buckets;
mod clock;
mod datagrams;
mod doorbell;
mod error;
mod event_counters;
mod fence;
mod file_lock;
mod hash_key;
mod huge_pages;
pub mod interface;
mod interruption;
mod interruption_log;
mod kernel_routes;
#[cfg(target_arch = "x86_64")]
pub mod lanes;
mod library;
mod link_socket;
mod linked_lines;
mod memory;
mod packet_filter;
mod pattern_database;
mod prefetch;
mod private_socket;
mod stamped_socket;
mod time_slice;
mod word_sum;

pub use alarm::Alarm;
pub use background::{DeadThread, DeathWatch, at_death, dead_threads, spawn as spawn_background};
pub use buckets::{Bucket, Buckets, Lease, Look, TAGS, Taken};
pub use clock::{Clock, ClockReading, StampClock, ticks};
pub use datagrams::{DATAGRAMS_AT_A_TIME, Datagrams};
pub use doorbell::Doorbell;
pub use error::Error;
pub use event_counters::{Event, EventCounters, EventCounts, FamilyCounters};
pub use fence::wait_for_instructions;
pub use file_lock::Locked;
pub use hash_key::HashKey;
pub use huge_pages::{AlignedTable, SharedNumber, filled_on_huge_pages};
pub use interruption::{Interruption, RoundWatch};
pub use interruption_log::{InterruptionLog, LoggedInterruptions, Work};
pub use kernel_routes::{
    Heard, KernelFact, KernelNextHop, KernelRoute, KernelRouteKind, KernelRoutes, LOCAL_TABLE,
    MAIN_TABLE,
};
pub use library::Library;
pub use link_socket::{Arrival, LinkSocket};
pub use linked_lines::{LINE_BYTES, LinkedLines, available_bytes};
pub use memory::Mapping;
#[doc(hidden)]
pub use packet_filter::ask_libpcap;
pub use packet_filter::{
    FilterInstruction, LONGEST_EXPRESSION_BYTES, PacketFilterError, compile_packet_filter,
};
pub use pattern_database::{PatternDatabase, PatternDatabaseError, PatternScratch};
pub use prefetch::prefetch;
pub use private_socket::listen_privately;
pub use stamped_socket::{
    Departure, Station, departure, receive_stamped, stamp_arrivals, stamp_departures,
};
pub use time_slice::{SHORTEST_SLICE, request_short_slices};
pub use word_sum::sum_of_halves;
