//! Queues and rings that a spec asks for.

use crate::PortSpec;
use std::ops::RangeInclusive;

/// Entries of each ring unless asked otherwise.
pub(super) const RING_ENTRIES: u32 = 2048;

/// Entries of each ring that a spec asks for; none if what it says is no such number.
pub(super) fn ring_entries(spec: &PortSpec) -> Option<u32> {
    let entries = spec.number("ring", 64..=32768).ok()?;
    let entries = entries.map_or(RING_ENTRIES, |n| n as u32);
    entries.is_power_of_two().then_some(entries)
}

/// Queues with higher numbers have no place in the XDP program's map.
const MOST_QUEUES: u32 = 1024;

/// The queues that a spec asks for; none if what it says is no queue or range of queues.
pub(super) fn queues(spec: &PortSpec) -> Option<RangeInclusive<u32>> {
    let text = spec.option("queue").unwrap_or("0");
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < MOST_QUEUES).then_some(first..=last)
}
