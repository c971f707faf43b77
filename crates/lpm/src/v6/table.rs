//! Changes of an IPv6 table: the difference is planned first, then built separately and put in place entry by entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use super::fib::{Entry, Fib};
use super::part::{EntryLocation, Part};
use super::plan::{Plan, Range, key, ranges, split};
use super::{FIRST_BITS, LINE_BITS, MOST_LINES, MOST_NODES, NODE_BITS, RANGES};
use crate::grace::Grace;
use crate::{NextHop, PrefixV6, Rib, Route};

/// Number of routes up to which a line of ranges may replace a node with 256 entries.
const FEW_ROUTES: usize = RANGES / 2;

/// The size of a table's pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of nodes (256 entries, 1 KiB each).
    pub nodes: usize,
    /// Number of lines (up to sixteen ranges, 128 bytes each).
    pub lines: usize,
}

impl Capacity {
    /// Returns the minimum capacity for the routes of `rib`. Changes need more, as old and new parts exist at the same
    /// time until [`Table::quiesced`].
    pub fn of(rib: &Rib<u128>) -> Self {
        let mut sum = Self::default();
        for plan in first_level(&rib.iter().collect::<Vec<_>>()) {
            let (nodes, lines) = plan.needs();
            sum.nodes += nodes;
            sum.lines += lines;
        }
        sum
    }
}

/// Error for a change that does not fit into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the IPv6 table is full: {} nodes and {} lines of 128 bytes are free, and the routes need {} and {}; load fewer routes",
    free.nodes, free.lines, needed.nodes, needed.lines)]
pub struct Full {
    /// Free nodes and lines.
    pub free: Capacity,
    /// Nodes and lines that the change needs.
    pub needed: Capacity,
}

/// A table of routes, whose owner adds and deletes routes. Other threads look up addresses in its [`Fib`].
#[derive(Debug)]
pub struct Table {
    pub(super) rib: Rib<u128>,
    pub(super) fib: Arc<Fib>,
    free_nodes: Vec<u32>,
    free_lines: Vec<u32>,
    /// Number of ranges in use in each line, by index of the line.
    in_use: Vec<u8>,
    /// Retired nodes and lines, which readers may still access.
    pub(super) retired: Grace<Entry>,
}

impl Table {
    /// Makes an empty table, on huge pages where the kernel has some. It has at most 2^22 nodes and 2^26 lines.
    pub fn new(capacity: Capacity) -> Self {
        let nodes = capacity.nodes.min(MOST_NODES);
        let lines = capacity.lines.min(MOST_LINES);
        Self {
            rib: Rib::new(),
            free_nodes: (0..nodes as u32).rev().collect(),
            free_lines: (0..lines as u32).rev().collect(),
            in_use: vec![0; lines],
            fib: Arc::new(Fib::new(nodes, lines)),
            retired: Grace::default(),
        }
    }

    /// Returns the part of the table in which threads look up addresses. Only `self` changes it.
    pub fn fib(&self) -> &Arc<Fib> {
        &self.fib
    }

    /// Returns the routes of the table.
    pub fn rib(&self) -> &Rib<u128> {
        &self.rib
    }

    /// Returns the free nodes and lines, without those that wait for [`Self::quiesced`].
    pub fn free(&self) -> Capacity {
        Capacity {
            nodes: self.free_nodes.len(),
            lines: self.free_lines.len(),
        }
    }

    /// Returns the number of nodes and lines that wait for [`Self::quiesced`].
    pub fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Adds all routes of `rib`.
    ///
    /// # Errors
    /// Returns [`Full`] if the routes do not fit. An empty table stays empty; else the routes before the failing one
    /// are in the table.
    pub fn extend(&mut self, rib: &Rib<u128>) -> Result<(), Full> {
        if !self.rib.is_empty() {
            return rib
                .iter()
                .try_for_each(|(prefix, hop)| self.insert(prefix, hop).map(drop));
        }
        let needed = Capacity::of(rib);
        self.has_room(needed)?;
        self.rib = rib.clone();
        for (place, plan) in first_level(&rib.iter().collect::<Vec<_>>()).enumerate() {
            self.put(EntryLocation::First(place), &plan);
        }
        Ok(())
    }

    /// Adds a route, or replaces the next hop of the route for the same prefix. Returns the replaced next hop, if any.
    ///
    /// # Errors
    /// Returns [`Full`] if the route does not fit; the table is unchanged.
    pub fn insert(&mut self, prefix: PrefixV6, hop: NextHop) -> Result<Option<NextHop>, Full> {
        let before = self.rib.insert(prefix, hop);
        if before == Some(hop) {
            return Ok(before);
        }
        if let Err(full) = self.refresh(prefix) {
            match before {
                Some(before) => self.rib.insert(prefix, before),
                None => self.rib.remove(prefix),
            };
            return Err(full);
        }
        Ok(before)
    }

    /// Deletes the route for exactly this prefix. Returns its next hop; `None` if there is no such route.
    ///
    /// # Errors
    /// Returns [`Full`] if the replacement of the route does not fit; the table is unchanged.
    pub fn remove(&mut self, prefix: PrefixV6) -> Result<Option<NextHop>, Full> {
        let Some(before) = self.rib.remove(prefix) else {
            return Ok(None);
        };
        self.refresh(prefix).inspect_err(|_| {
            self.rib.insert(prefix, before);
        })?;
        Ok(Some(before))
    }

    /// Returns the generation: the number to pass to [`Self::quiesced`] after all look-ups that are in progress now
    /// have ended.
    pub fn generation(&self) -> u64 {
        self.retired.generation()
    }

    /// Frees the nodes and lines that were retired before [`Self::generation`] returned `generation`. The caller's
    /// obligations are those of [`crate::v4::Table::quiesced`].
    pub fn quiesced(&mut self, generation: u64) {
        for it in self.retired.quiesced(generation) {
            match it {
                Entry::Node(node) => self.free_nodes.push(node),
                Entry::Line(line) => self.free_lines.push(line),
                Entry::Hop(_) => {}
            }
        }
    }

    /// Updates the entries of the addresses of `prefix` to match the routing information base.
    fn refresh(&mut self, prefix: PrefixV6) -> Result<(), Full> {
        let mut parts = Vec::new();
        for first in key(prefix.network(), 0) >> 16..=key(prefix.last(), 0) >> 16 {
            let part = Part {
                address: u128::from(first) << 112,
                depth: FIRST_BITS,
                place: EntryLocation::First(first as usize),
            };
            self.narrow(part, prefix, &mut parts);
        }
        let mut changes = Vec::new();
        for part in parts {
            let routes = self.rib.within(part.prefix());
            let routes: Vec<_> = routes.filter(|(it, _)| it.length() > part.depth).collect();
            let inherited = self.rib.longest(part.prefix());
            let inherited = inherited.map_or(NextHop::NONE, |(_, hop)| hop);
            self.compare(part, &routes, inherited, prefix, &mut changes);
        }
        let mut needed = Capacity::default();
        for (_, plan) in &changes {
            let (nodes, lines) = plan.needs();
            needed.nodes += nodes;
            needed.lines += lines;
        }
        self.has_room(needed)?;
        for (place, plan) in changes {
            self.put(place, &plan);
        }
        Ok(())
    }

    /// Appends to `parts` the smallest parts of `part` that contain the addresses of `prefix` and all entries that may
    /// change.
    fn narrow(&self, part: Part, prefix: PrefixV6, parts: &mut Vec<Part>) {
        if prefix.length() <= part.depth {
            parts.push(part);
            return;
        }
        let mut routes = self.rib.within(part.prefix());
        match Entry::of_bits(self.at(part.place).load(Ordering::Relaxed)) {
            Entry::Node(node) if routes.nth(FEW_ROUTES).is_some() => {
                let byte = |address: u128| (key(address, part.depth) >> 24) as usize;
                (byte(prefix.network())..=byte(prefix.last()))
                    .for_each(|byte| self.narrow(part.of_node(node, byte), prefix, parts));
            }
            Entry::Line(line) if prefix.length() > part.depth + LINE_BITS => {
                let start = key(prefix.network(), part.depth);
                let place = self.fib.place(line, start);
                let narrower = part.of_line(line, place.min(self.ranges_of(line) - 1), start);
                let entry = Entry::of_bits(self.at(narrower.place).load(Ordering::Relaxed));
                let mut routes = self.rib.within(narrower.prefix());
                // The range may cover several values, or the change may delete the last longer route within it.
                let is_kept = !matches!(entry, Entry::Hop(_))
                    && routes.any(|(it, _)| it.length() > narrower.depth);
                if is_kept {
                    self.narrow(narrower, prefix, parts);
                } else {
                    parts.push(part);
                }
            }
            _ => parts.push(part),
        }
    }

    /// Appends to `changes` the stores that `part` needs for the addresses of `changed`.
    fn compare(
        &self,
        part: Part,
        routes: &[Route<u128>],
        inherited: NextHop,
        changed: PrefixV6,
        changes: &mut Vec<(EntryLocation, Plan)>,
    ) {
        let depth = part.depth;
        let present = Entry::of_bits(self.at(part.place).load(Ordering::Relaxed));
        let found = ranges(routes, depth, inherited);
        let is_dense = found.as_ref().is_none_or(|it| it.len() > RANGES / 2);
        match (present, found) {
            (Entry::Node(node), _) if is_dense => {
                let parts = split(routes, depth, inherited).enumerate();
                for (byte, (routes, inherited)) in parts {
                    let part = part.of_node(node, byte);
                    let here = part.prefix();
                    if here.covers(changed) || changed.covers(here) {
                        self.compare(part, routes, inherited, changed, changes);
                    }
                }
            }
            (Entry::Line(line), Some(found)) if self.has_starts(line, &found) => {
                for (number, (start, range)) in found.into_iter().enumerate() {
                    let place = EntryLocation::Line(line, number);
                    let entry = Entry::of_bits(self.at(place).load(Ordering::Relaxed));
                    match (entry, range) {
                        (Entry::Hop(hop), Range::Hop(now)) if hop == now => {}
                        (Entry::Node(_) | Entry::Line(_), Range::Deeper(routes, inherited)) => {
                            let part = part.of_line(line, number, start);
                            self.compare(part, routes, inherited, changed, changes);
                        }
                        (_, range) => changes.push((place, Plan::of_range(range, depth))),
                    }
                }
            }
            (_, found) => {
                let plan = match found {
                    Some(found) => Plan::of_ranges(&found, depth),
                    None => Plan::new(routes, depth, inherited),
                };
                match (present, &plan) {
                    (Entry::Hop(hop), Plan::Hop(now)) if hop == *now => {}
                    _ => changes.push((part.place, plan)),
                }
            }
        }
    }

    /// Returns whether the ranges of a line start at the same values as `found`, regardless of their entries.
    fn has_starts(&self, line: u32, found: &[(u32, Range<'_>)]) -> bool {
        let starts = found.iter().map(|(start, _)| *start);
        found.len() == self.ranges_of(line)
            && starts.enumerate().all(|(place, wanted)| {
                let start = self.fib.start(line, place);
                start.is_none_or(|it| it.load(Ordering::Relaxed) == wanted)
            })
    }

    /// Returns the number of ranges in use in a line.
    pub(super) fn ranges_of(&self, line: u32) -> usize {
        self.in_use[line as usize].into()
    }

    fn has_room(&self, needed: Capacity) -> Result<(), Full> {
        let free = self.free();
        if needed.nodes > free.nodes || needed.lines > free.lines {
            return Err(Full { free, needed });
        }
        Ok(())
    }

    fn at(&self, place: EntryLocation) -> &AtomicU32 {
        match place {
            EntryLocation::First(place) => &self.fib.first[place],
            EntryLocation::Node(node, place) => &self.fib.node(node)[place],
            EntryLocation::Line(line, place) => self.fib.range(line, place),
        }
    }

    /// Builds a plan, for which there must be enough space, stores its entry at `place`, and retires the old entry.
    fn put(&mut self, place: EntryLocation, plan: &Plan) {
        let before = self.at(place).load(Ordering::Relaxed);
        let now = self.make(plan);
        // The release order ensures that a reader of the entry finds the node or line filled.
        self.at(place).store(now.bits(), Ordering::Release);
        if let EntryLocation::Line(line, place) = place {
            // Unused ranges copy the entry of the last range in use.
            if place + 1 == self.ranges_of(line) {
                let others = (place + 1..RANGES).map(|other| self.fib.range(line, other));
                others.for_each(|it| it.store(now.bits(), Ordering::Release));
            }
        }
        self.retire(Entry::of_bits(before));
    }

    fn make(&mut self, plan: &Plan) -> Entry {
        match plan {
            Plan::Hop(hop) => Entry::Hop(*hop),
            Plan::Node(plans) => {
                let entries: Vec<Entry> = plans.iter().map(|plan| self.make(plan)).collect();
                let node = self
                    .free_nodes
                    .pop()
                    .unwrap_or_else(|| unreachable!("there is room"));
                for (place, entry) in self.fib.node(node).iter().zip(entries) {
                    place.store(entry.bits(), Ordering::Relaxed);
                }
                Entry::Node(node)
            }
            Plan::Line(ranges) => {
                let made: Vec<(u32, Entry)> = ranges
                    .iter()
                    .map(|(start, plan)| (*start, self.make(plan)))
                    .collect();
                let line = self
                    .free_lines
                    .pop()
                    .unwrap_or_else(|| unreachable!("there is room"));
                let last = made.last().map_or(0, |(_, entry)| entry.bits());
                self.in_use[line as usize] = made.len() as u8;
                let made = made.into_iter().map(|(start, entry)| (start, entry.bits()));
                let all = made.chain(std::iter::repeat((u32::MAX, last)));
                for (place, (start, bits)) in all.take(RANGES).enumerate() {
                    if let Some(its_start) = self.fib.start(line, place) {
                        its_start.store(start, Ordering::Relaxed);
                    }
                    self.fib.range(line, place).store(bits, Ordering::Relaxed);
                }
                Entry::Line(line)
            }
        }
    }

    /// Retires a node or line, and all nodes and lines below it.
    fn retire(&mut self, entry: Entry) {
        let fib = Arc::clone(&self.fib);
        let below: Vec<&AtomicU32> = match entry {
            Entry::Hop(_) => return,
            Entry::Node(node) => fib.node(node).iter().collect(),
            Entry::Line(line) => (0..self.ranges_of(line))
                .map(|place| fib.range(line, place))
                .collect(),
        };
        for bits in below {
            self.retire(Entry::of_bits(bits.load(Ordering::Relaxed)));
        }
        self.retired.retire(entry);
    }
}

/// Returns the plan of each entry of the first level.
fn first_level(routes: &[Route<u128>]) -> impl Iterator<Item = Plan> {
    let upper = split(routes, 0, NextHop::NONE);
    let both = upper.flat_map(|(routes, inherited)| split(routes, NODE_BITS, inherited));
    both.map(|(routes, inherited)| Plan::new(routes, FIRST_BITS, inherited))
}
