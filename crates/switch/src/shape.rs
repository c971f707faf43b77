//! The state, other than rules, that a worker needs: the tuples of each table, groups, meters. The state is rebuilt and
//! swapped as a whole when a tuple, group or meter is added or removed.

use super::action::{ActionsError, PortNumber, steps};
use super::count::Count;
use super::group::{Group, GroupKind};
use super::meter::{Limit, Meter};
use super::table::{Mask, Tuple};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use taut_function::meter;

#[derive(Debug, Default)]
pub(super) struct Shape {
    pub tables: Vec<Table>,
    /// The groups, in order of their numbers.
    pub groups: Vec<(u32, Arc<GroupState>)>,
    pub meters: Vec<(u32, Arc<MeterState>)>,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    /// The tuples of a table, in descending order of the highest priority among their rules.
    pub tuples: Vec<Tuple>,
    /// The bits of the key that at least one tuple compares.
    pub asked: Mask,
}

impl Shape {
    pub fn group(&self, id: u32) -> Option<&GroupState> {
        find(&self.groups, id)
    }

    pub fn meter(&self, id: u32) -> Option<&MeterState> {
        find(&self.meters, id)
    }
}

fn find<T>(all: &[(u32, Arc<T>)], id: u32) -> Option<&T> {
    let at = all.binary_search_by_key(&id, |(id, _)| *id).ok()?;
    all.get(at).map(|(_, it)| &**it)
}

#[derive(Debug)]
pub(super) struct BucketState {
    pub weight: u32,
    pub watch: Option<PortNumber>,
    pub steps: Box<[u64]>,
    pub count: Count,
}

#[derive(Debug)]
pub(super) struct GroupState {
    pub kind: GroupKind,
    pub buckets: Box<[BucketState]>,
    pub count: Count,
    pub made: Instant,
    /// The sum of the weights of all buckets of the group.
    weights: u32,
}

impl GroupState {
    /// Creates the state of a group that was created at the time `made`.
    pub fn new(group: &Group, made: Instant) -> Result<Self, ActionsError> {
        let buckets: Box<[BucketState]> = group
            .buckets
            .iter()
            .map(|bucket| {
                Ok(BucketState {
                    weight: u32::from(bucket.weight),
                    watch: bucket.watch,
                    steps: steps(&bucket.actions, 0)?.into(),
                    count: Count::default(),
                })
            })
            .collect::<Result<_, ActionsError>>()?;
        Ok(Self {
            kind: group.kind,
            weights: buckets.iter().map(|bucket| bucket.weight).sum(),
            buckets,
            count: Count::default(),
            made,
        })
    }

    /// Returns the bucket of a flow in a group that assigns one bucket to each packet; none if no port is up.
    pub fn pick(&self, flow: u64, is_up: impl Fn(PortNumber) -> bool) -> Option<&BucketState> {
        let lives = |bucket: &&BucketState| bucket.watch.is_none_or(&is_up);
        if self.kind != GroupKind::Select || self.weights == 0 {
            return self.buckets.iter().find(lives);
        }
        // If a bucket is not live, only its flows move, to the next live bucket.
        let mut left = (flow % u64::from(self.weights)) as u32;
        let at = self.buckets.iter().position(|bucket| {
            let is_it = left < bucket.weight;
            left = left.wrapping_sub(bucket.weight);
            is_it
        })?;
        let (before, from) = self.buckets.split_at(at);
        from.iter().chain(before).find(lives)
    }
}

/// The state of a meter. Only the worker writes to it.
#[derive(Debug)]
pub(super) struct MeterState {
    due: AtomicU64,
    cost: u64,
    /// The burst of the meter, as a duration; a nanosecond has [`meter::UNITS_PER_NS`] units.
    burst: u64,
    is_packets: bool,
    /// The counts of all packets that used the meter, passed and dropped.
    pub came: Count,
    pub dropped: Count,
    pub made: Instant,
}

/// The default burst of a meter, as the time that the burst takes at the meter's rate, in nanoseconds.
const BURST_NS: u64 = 10_000_000;
const LEAST_BURST_BYTES: u64 = 15_000;
const LEAST_BURST_PACKETS: u64 = 32;

impl MeterState {
    /// Creates the state of a meter that was created at the time `made`.
    pub fn new(meter: &Meter, made: Instant) -> Self {
        let (per_s, is_packets) = match meter.rate {
            Limit::Kbps(kbps) => (kbps, false),
            Limit::Pps(pps) => (pps, true),
        };
        let rate = NonZeroU64::new(u64::from(per_s)).unwrap_or(NonZeroU64::MIN);
        let cost = meter::cost(rate);
        let at_once = match (meter.burst, is_packets) {
            (Some(burst), _) => u64::from(burst) * meter::KBIT_BYTES,
            (None, false) => LEAST_BURST_BYTES,
            (None, true) => LEAST_BURST_PACKETS * meter::KBIT_BYTES,
        };
        let of_bytes = meter::price(cost, at_once);
        Self {
            due: AtomicU64::new(0),
            cost,
            burst: match meter.burst {
                Some(_) => of_bytes,
                None => of_bytes.max(BURST_NS * meter::UNITS_PER_NS),
            },
            is_packets,
            came: Count::default(),
            dropped: Count::default(),
            made,
        }
    }

    /// Returns true if a packet of `bytes` bytes that arrives now is within the meter's rate.
    pub fn passes(&self, now_ns: u64, bytes: usize, now_ticks: u64) -> bool {
        let now = now_ns.saturating_mul(meter::UNITS_PER_NS);
        self.came.add(bytes, now_ticks);
        let due = self.due.load(Ordering::Relaxed);
        if due > now.saturating_add(self.burst) {
            self.dropped.add(bytes, now_ticks);
            return false;
        }
        let bytes = if self.is_packets {
            meter::KBIT_BYTES
        } else {
            bytes as u64
        };
        let due = due.max(now).saturating_add(meter::price(self.cost, bytes));
        self.due.store(due, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::group::Bucket;

    fn passed(rate: Limit, burst: Option<u32>, every_ns: u64, seconds: u64, bytes: usize) -> u64 {
        let meter = MeterState::new(&Meter { id: 1, rate, burst }, Instant::now());
        let many = seconds * 1_000_000_000 / every_ns;
        (0..many)
            .filter(|number| meter.passes(1 + number * every_ns, bytes, 0))
            .count() as u64
    }

    #[test]
    fn meters_pass_the_configured_rate_and_burst() {
        let packets = passed(Limit::Pps(1000), Some(10), 100_000, 10, 60);
        assert!((10_000..=10_012).contains(&packets), "{packets}");
        let packets = passed(Limit::Kbps(8000), Some(80), 100_000, 10, 1000);
        // 8 Mbit/s are 1,000 packets of 1,000 bytes a second; a burst of 80 kbit is ten such packets.
        assert!((10_000..=10_012).contains(&packets), "{packets}");
        // A slow flow passes completely.
        assert_eq!(passed(Limit::Pps(1000), Some(1), 2_000_000, 10, 60), 5000);
    }

    #[test]
    fn flows_spread_by_weight_and_move_only_from_dead_ports() {
        let bucket = |weight, port| Bucket {
            weight,
            watch: Some(port),
            actions: vec![Action::port(port)],
        };
        let group = Group {
            id: 1,
            kind: GroupKind::Select,
            buckets: vec![bucket(1, 0), bucket(2, 1), bucket(1, 2)],
        };
        let group = GroupState::new(&group, Instant::now()).unwrap_or_else(|e| panic!("{e}"));
        let pick = |flow, dead| {
            group
                .pick(flow, |port| port != dead)
                .and_then(|it| it.watch)
        };
        let all: Vec<_> = (0..8).map(|flow| pick(flow, 9)).collect();
        assert_eq!(all.iter().filter(|port| **port == Some(1)).count(), 4);
        for (flow, before) in (0..8).zip(&all) {
            let now = pick(flow, 1);
            match before {
                Some(1) => assert_eq!(now, Some(2)),
                before => assert_eq!(now, *before),
            }
        }
    }
}
