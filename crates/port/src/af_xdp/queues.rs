//! Parsing of the queues and ring size in a spec.

use crate::PortSpec;
use std::ops::RangeInclusive;

/// The default number of entries of each of a socket's four rings.
pub(super) const RING_ENTRIES: u32 = 2048;

/// Returns the number of entries of each ring in a spec; None if the number is invalid.
pub(super) fn ring_entries(spec: &PortSpec) -> Option<u32> {
    let entries = spec.number("ring", 64..=32768).ok()?;
    let entries = entries.map_or(RING_ENTRIES, |n| n as u32);
    entries.is_power_of_two().then_some(entries)
}

/// The maximum number of queues of a port, which is the size of the XDP program's map of sockets.
const MOST_QUEUES: u32 = 1024;

/// Returns the queues in a spec; None if the option is neither a queue nor a range of queues.
pub(super) fn queues(spec: &PortSpec) -> Option<RangeInclusive<u32>> {
    let text = spec.option("queue").unwrap_or("0");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < MOST_QUEUES).then_some(first..=last)
}
