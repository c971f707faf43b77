//! What taut asks of the processor and the kernel that is no port: time, counters, memory, sleep, sockets and files.
//!
//! Time is [`ticks`], read once a batch, and a [`Clock`] that makes nanoseconds of them. A worker that sleeps waits on an
//! [`Alarm`], which a [`Doorbell`] of another thread rings. A loop that is taken its core away notices by a [`RoundWatch`] and
//! notes it in an [`InterruptionLog`] that other processes read. [`Mapping`] is memory that may be shared with another
//! process, of which packet pools and rings are made; an [`AlignedTable`] is on huge pages, and `lanes` are sixteen numbers
//! that a vector instruction loads from one at once; [`interface`] says what the kernel knows of a network interface;
//! [`compile_packet_filter`] has libpcap read an expression; a [`PatternDatabase`] is Vectorscan's.
//! What the system refuses is an [`Error`], which says what would help.
//!
//! Begin with `clock.rs`. There is `unsafe` here, as system calls take pointers; what is `unsafe` to call says what its
//! callers have to promise. Nothing in this room knows what a packet, a port or a function is.

mod alarm;
mod background;
mod buckets;
mod clock;
mod datagrams;
mod doorbell;
mod error;
mod event_counters;
mod fence;
mod hash_key;
mod huge_pages;
pub mod interface;
mod interruption;
mod interruption_log;
mod kernel_routes;
#[cfg(target_arch = "x86_64")]
pub mod lanes;
mod library;
mod linked_lines;
mod locked;
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
pub use event_counters::{Event, EventCounters, EventCounts};
pub use fence::wait_for_instructions;
pub use hash_key::HashKey;
pub use huge_pages::{AlignedTable, SharedNumber, filled_on_huge_pages};
pub use interruption::{Interruption, RoundWatch};
pub use interruption_log::{InterruptionLog, LoggedInterruptions, Work};
pub use kernel_routes::{
    Heard, KernelFact, KernelNextHop, KernelRoute, KernelRouteKind, KernelRoutes, LOCAL_TABLE,
    MAIN_TABLE,
};
pub use library::Library;
pub use linked_lines::{LINE_BYTES, LinkedLines, available_bytes};
pub use locked::Locked;
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
