//! The worker's access to the meters: which meters each bearer has, and the checks of their rates.

use super::slot::Slot;
use super::table::{Matching, Table};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use taut_function::meter::{SharedMeter, UNITS_PER_NS};
use taut_sys::{Clock, filled_on_huge_pages, ticks};

/// The number of meters of a bearer: one for its session and one for its flow.
pub const METERS_PER_BEARER: usize = 2;

/// The numbers of a bearer's meters, from 1; 0 for none.
pub(super) type Meters = [u32; METERS_PER_BEARER];

pub(super) const UNMETERED: Meters = [0; METERS_PER_BEARER];

/// The duration of the calibration of the gateway's clock, which happens at its first use.
const CALIBRATION: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Policing {
    /// The numbers of each bearer's meters. The table has the form of a bearer table, with the numbers of meters in
    /// place of a tunnel, and is looked up a batch at a time.
    bearers: Table,
    meters: SharedMeters,
}

/// The meters of all workers, and their clock.
#[derive(Debug, Clone)]
pub(super) struct SharedMeters {
    /// The meters of all bearers; the index of a meter is its number minus 1.
    all: Arc<Vec<SharedMeter>>,
    begun_ticks: u64,
    units_per_tick: f64,
}

impl SharedMeters {
    /// Allocates the meters for at most `bearers` bearers.
    pub fn new(bearers: usize) -> Self {
        let units_per_tick = match bearers {
            0 => 0.0,
            _ => UNITS_PER_NS as f64 * Clock::calibrate(CALIBRATION).to_ns(1),
        };
        let meters = filled_on_huge_pages(bearers * METERS_PER_BEARER, SharedMeter::default);
        Self {
            all: Arc::new(meters),
            begun_ticks: ticks(),
            units_per_tick,
        }
    }

    /// Returns the time since `then_ticks`, by the gateway's clock.
    pub fn age(&self, then_ticks: u64) -> Duration {
        let units = ticks().saturating_sub(then_ticks) as f64 * self.units_per_tick;
        Duration::try_from_secs_f64(units / UNITS_PER_NS as f64 * 1e-9).unwrap_or_default()
    }

    /// Restarts a meter with a new cost of a byte.
    pub fn begin(&self, number: u32, cost: u64) {
        if let Some(meter) = self.all.get((number as usize).wrapping_sub(1)) {
            meter.begin(cost);
        }
    }
}

impl Policing {
    /// Creates the policing of at most `bearers` bearers. Workers share `meters`.
    pub fn new(bearers: usize, meters: SharedMeters) -> Self {
        Self {
            bearers: Table::new(Matching::Hash, bearers),
            meters,
        }
    }

    /// Assigns meters to a bearer, or removes them.
    pub fn assign(&mut self, key: u64, meters: Meters) {
        if meters == UNMETERED {
            self.bearers.remove(key);
        } else {
            let has_room = self.bearers.set(entry(key, meters));
            debug_assert!(has_room, "whoever decides has counted");
        }
    }

    /// Returns the numbers of the meters of a bearer.
    pub fn meters_of(&self, key: u64) -> Meters {
        self.bearers
            .get(key)
            .map_or(UNMETERED, |entry| meters(&entry))
    }

    /// Converts `ticks` to the time unit of meters.
    pub fn moment(&self, ticks: u64) -> u64 {
        let SharedMeters {
            begun_ticks,
            units_per_tick,
            ..
        } = self.meters;
        (ticks.saturating_sub(begun_ticks) as f64 * units_per_tick) as u64
    }

    /// Looks up the meters of a batch's bearers.
    pub fn look_up(&self, keys: &[u64], found: &mut [Slot]) {
        self.bearers.look_up(keys, found);
        // These loads are independent of each other, like those of the table. If the packets were processed one by one,
        // each load would wait for the one before.
        let costs = found.iter().flat_map(places);
        black_box(costs.fold(0, |sum, place| {
            sum ^ self
                .meters
                .all
                .get(place)
                .map_or(0, |meter| meter.read().cost)
        }));
    }

    /// Returns true, and counts the packet, if the packet is within all rates of its bearer. `found` has the bearer's
    /// meters from [`Policing::look_up`].
    #[inline(always)]
    pub fn admits(&self, found: &Slot, now: u64, bytes: u16) -> bool {
        let meters = places(found).map(|place| self.meters.all.get(place));
        let admits = |meter: &Option<&SharedMeter>| meter.is_none_or(|m| m.read().passes(now));
        if !meters.iter().all(admits) {
            return false;
        }
        for meter in meters.into_iter().flatten() {
            meter.charge(now, bytes);
        }
        true
    }
}

fn entry(key: u64, [first, second]: Meters) -> Slot {
    let [a, b, qfi, action] = second.to_ne_bytes();
    Slot {
        key,
        teid: first,
        path: u16::from_ne_bytes([a, b]),
        qfi,
        action,
    }
}

/// Returns the indices of the meters in a table entry; the index of a missing meter is invalid.
#[inline(always)]
fn places(entry: &Slot) -> [usize; METERS_PER_BEARER] {
    meters(entry).map(|number| (number as usize).wrapping_sub(1))
}

/// Returns the numbers of the meters in a table entry; none if there is no entry.
#[inline(always)]
fn meters(entry: &Slot) -> Meters {
    if entry.key == 0 {
        return UNMETERED;
    }
    let [a, b] = entry.path.to_ne_bytes();
    let second = u32::from_ne_bytes([a, b, entry.qfi, entry.action]);
    [entry.teid, second]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU64;
    use taut_function::meter::cost;

    fn found(policing: &Policing, key: u64) -> Slot {
        let mut found = [Slot::default()];
        policing.look_up(&[key], &mut found);
        found[0]
    }

    /// Returns the number of packets of 1500 bytes that pass in one burst.
    fn burst(policing: &Policing, key: u64, now: u64) -> usize {
        let found = found(policing, key);
        (0..1000)
            .take_while(|_| policing.admits(&found, now, 1500))
            .count()
    }

    #[test]
    fn a_bearer_obeys_all_its_meters_including_shared_meters() {
        let meters = SharedMeters::new(10);
        let mut policing = Policing::new(10, meters.clone());
        let kbps = |kbps| cost(NonZeroU64::new(kbps).unwrap());
        // The bursts are 150000, 15000, and 30000 bytes.
        for (number, rate) in [(1, 120_000), (2, 1000), (3, 24_000)] {
            meters.begin(number, kbps(rate));
        }
        policing.assign(7, [1, 0]);
        policing.assign(8, [1, 2]);
        policing.assign(9, [3, 1]);
        // The rate of the flow limits this bearer; packets that the flow's meter drops do not count in the session's
        // meter.
        assert_eq!(burst(&policing, 8, 0), 11);
        assert!((20..=21).contains(&burst(&policing, 9, 0)));
        assert!((68..=70).contains(&burst(&policing, 7, 0)));
        assert_eq!(burst(&policing, 9, 0), 0);
        // A missing entry limits nothing.
        assert_eq!(burst(&policing, 10, 0), 1000);
        policing.assign(8, UNMETERED);
        assert_eq!(burst(&policing, 8, 0), 1000);
        policing.assign(8, [2, 0]);
        assert_eq!(burst(&policing, 8, 0), 0);
        // A meter that was restarted with another rate has counted no packet.
        meters.begin(2, kbps(1000));
        assert_eq!(burst(&policing, 8, 0), 11);
    }

    #[test]
    fn policing_times_are_derived_from_the_calibrated_clock() {
        let policing = Policing::new(1, SharedMeters::new(1));
        let clock = Clock::calibrate(CALIBRATION);
        let second = policing.meters.begun_ticks + clock.to_ticks(1e9) as u64;
        let error = policing.moment(second) as f64 / (1e9 * UNITS_PER_NS as f64) - 1.0;
        // The bound allows for two calibrations of 20 ms on a busy machine.
        assert!(error.abs() < 0.01, "{error}");
        assert_eq!(policing.moment(0), 0);
    }

    #[test]
    fn the_meters_of_a_bearer_need_the_documented_memory() {
        let meters = METERS_PER_BEARER * size_of::<SharedMeter>();
        assert_eq!(meters, super::super::BYTES_PER_BEARER);
    }

    proptest! {
        #[test]
        fn a_bearer_entry_stores_two_meter_indices(key in 1u64.., first: u32, second: u32) {
            prop_assert_eq!(meters(&entry(key, [first, second])), [first, second]);
        }
    }
}
