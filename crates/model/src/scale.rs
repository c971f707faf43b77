//! Scaling: the number of cores and machines that a load needs if it exceeds a single machine, and the limit of each
//! machine.
//!
//! The state (say, bearers of gateways) and the packets are spread evenly over machines. The less state a machine
//! stores, the cheaper are accesses, so the cycles of a packet may depend on the bytes that a machine stores.
//! (Gallenmüller 2021, eqs. 5.1 to 5.5, applied per machine; Lange et al. 2015 count bearers per gateway.)

use crate::estimate::{Estimate, WrongValue, not_negative, positive};
use crate::resource::{Carried, Costs, Machine, Packets, Resource};
use schemars::JsonSchema;
use serde::Serialize;

/// Maximum number of machines in a table.
pub const MOST_MACHINES: u32 = 1_000;

/// A load that all machines together carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Total number of state entries, such as bearers.
    pub entries: f64,
    /// Memory per entry, bytes.
    pub entry_bytes: f64,
    /// Packets per second offered to all machines together.
    pub offered_pps: f64,
}

/// The limit that a machine reaches first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// The memory of the machine, which has to hold its share of the state.
    State,
    /// A resource that packets use, and that limits the packet rate.
    Rate(Resource),
}

/// The load of each machine for one number of machines.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// Number of machines that share the load.
    pub machines: u32,
    /// State entries on each machine.
    pub entries: f64,
    /// Bytes of state on each machine.
    pub state_bytes: f64,
    /// Packets per second offered to each machine.
    pub offered_pps: f64,
    /// Packets per second that one core carries with this amount of state.
    pub core_pps: Estimate,
    /// Packets per second that a machine carries with all its cores.
    pub carried_pps: Estimate,
    /// Number of cores that a machine needs. `None` if no number suffices, because another resource limits the rate.
    pub cores: Option<u32>,
    /// The limit that a machine would reach first if the load grew.
    pub bound: Bound,
    /// Share of the limiting resource that the load of a machine uses; above 1, the machine does not carry its load.
    pub used: f64,
    /// True if each machine carries its part of the demand even at the lower end of the interval of `carried_pps`.
    pub carries: bool,
}

/// Returns a row for each number in `machines`.
///
/// `machine` describes each of these machines with all its cores, and `memory_bytes` is its memory for state. `cycles`
/// returns the cycles of a packet by the bytes of state on a machine.
///
/// # Errors
/// [`WrongValue`] for an invalid demand, machine or cycles, and for no or more than [`MOST_MACHINES`] machines.
pub fn table(
    demand: &Demand,
    machine: &Machine,
    memory_bytes: f64,
    packets: &Packets,
    cycles: impl Fn(f64) -> Estimate,
    machines: &[u32],
) -> Result<Vec<Row>, WrongValue> {
    let row = |count: &u32| row(demand, machine, memory_bytes, packets, &cycles, *count);
    machines.iter().map(row).collect()
}

/// Returns the row with the fewest machines that carry the demand; `None` if [`MOST_MACHINES`] do not suffice.
///
/// # Errors
/// The errors of [`table`].
pub fn fewest(
    demand: &Demand,
    machine: &Machine,
    memory_bytes: f64,
    packets: &Packets,
    cycles: impl Fn(f64) -> Estimate,
) -> Result<Option<Row>, WrongValue> {
    for count in 1..=MOST_MACHINES {
        let row = row(demand, machine, memory_bytes, packets, &cycles, count)?;
        if row.carries {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

fn row(
    demand: &Demand,
    machine: &Machine,
    memory_bytes: f64,
    packets: &Packets,
    cycles: &dyn Fn(f64) -> Estimate,
    machines: u32,
) -> Result<Row, WrongValue> {
    let count = positive("machines", f64::from(machines))?;
    not_negative("machines below 1,001", f64::from(MOST_MACHINES) - count)?;
    let entries = not_negative("entries of state", demand.entries)? / count;
    let state_bytes = entries * not_negative("an entry (bytes)", demand.entry_bytes)?;
    let offered_pps = positive("an offered rate (packets/s)", demand.offered_pps)? / count;
    let memory_bytes = positive("memory for state (bytes)", memory_bytes)?;
    let costs = Costs::per_packet(cycles(state_bytes), Estimate::ZERO);
    let all = machine.carried(&costs, packets, None)?;
    let one = Machine {
        cores: 1,
        ..*machine
    };
    let processor = |carried: &Carried| {
        let limit = carried
            .limits
            .iter()
            .find(|limit| limit.resource == Resource::Processor);
        limit
            .and_then(|limit| limit.rate_pps)
            .unwrap_or(carried.highest.estimate)
    };
    let core_pps = processor(&one.carried(&costs, packets, None)?);
    let carried_pps = all.highest.estimate;
    let of_state = state_bytes / memory_bytes;
    let of_rate = offered_pps / carried_pps.value;
    let (bound, used) = if of_state > of_rate {
        (Bound::State, of_state)
    } else {
        (Bound::Rate(all.binding), of_rate)
    };
    let cores = (offered_pps / core_pps.low).ceil();
    let carries = of_state <= 1.0 && offered_pps <= carried_pps.low;
    Ok(Row {
        machines,
        entries,
        state_bytes,
        offered_pps,
        core_pps,
        carried_pps,
        cores: carries.then_some(cores.max(1.0) as u32),
        bound,
        used,
        carries,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::access::{Hierarchy, PUBLISHED_SHARE};

    const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

    /// Demand of a country's bearers: each has 128 B of state and gets 2 packets a second.
    const COUNTRY: Demand = Demand {
        entries: 1e8,
        entry_bytes: 128.0,
        offered_pps: 2e8,
    };

    fn machine() -> Machine {
        Machine {
            ethernet_bit_s: Some(100e9),
            ..Machine::new(16, 3e9).unwrap()
        }
    }

    /// Returns the cycles of a packet: 300 plus two accesses to `state_bytes` of state.
    fn cycles(state_bytes: f64) -> Estimate {
        let memory = Hierarchy::published(PUBLISHED_SHARE).unwrap();
        let access = memory.cycles(state_bytes.max(1.0)).unwrap();
        Estimate::new(300.0, 290.0, 310.0, 0.95)
            .unwrap()
            .plus(Estimate::given(2.0 * access).unwrap())
    }

    fn packets() -> Packets {
        Packets::new(400.0, 32.0).unwrap()
    }

    #[test]
    fn a_countrys_bearers_fit_on_ten_machines_with_six_cores() {
        let rows = table(
            &COUNTRY,
            &machine(),
            8.0 * GIB,
            &packets(),
            cycles,
            &[1, 10, 100, 1_000],
        )
        .unwrap();
        let carries: Vec<bool> = rows.iter().map(|row| row.carries).collect();
        assert_eq!(carries, [false, true, true, true]);
        assert!(rows[0].used > 1.0 && rows[0].cores.is_none());
        // In the second row, 20 million packets a second at nearly 800 cycles each need 5.3 of 16 cores.
        assert_eq!(rows[1].cores, Some(6));
        assert_eq!(rows[3].cores, Some(1));
        assert!(
            rows[3].core_pps.value > rows[1].core_pps.value,
            "less state is nearer"
        );
    }

    #[test]
    fn the_computed_number_of_machines_is_the_smallest_sufficient_number() {
        let fewest = fewest(&COUNTRY, &machine(), 8.0 * GIB, &packets(), cycles)
            .unwrap()
            .unwrap();
        let rows = [fewest.machines - 1, fewest.machines];
        let rows = table(&COUNTRY, &machine(), 8.0 * GIB, &packets(), cycles, &rows).unwrap();
        assert!(!rows[0].carries && rows[1].carries);
        assert_eq!(rows[1].bound, Bound::Rate(Resource::Ethernet));
    }

    #[test]
    fn memory_is_the_limit_for_large_state_and_few_packets() {
        let idle = Demand {
            offered_pps: 1e3,
            entry_bytes: 4_096.0,
            ..COUNTRY
        };
        let row = fewest(&idle, &machine(), 8.0 * GIB, &packets(), cycles)
            .unwrap()
            .unwrap();
        assert_eq!(
            (row.machines, row.bound, row.cores),
            (48, Bound::State, Some(1))
        );
    }

    #[test]
    fn a_demand_beyond_a_thousand_machines_yields_no_result() {
        let flood = Demand {
            offered_pps: 1e12,
            ..COUNTRY
        };
        assert_eq!(
            fewest(&flood, &machine(), 8.0 * GIB, &packets(), cycles),
            Ok(None)
        );
    }

    #[test]
    fn invalid_demands_are_refused() {
        let of = |demand: Demand, machines: u32| {
            table(&demand, &machine(), GIB, &packets(), cycles, &[machines])
        };
        assert!(of(COUNTRY, 0).is_err());
        assert!(of(COUNTRY, 1_001).is_err());
        assert!(
            of(
                Demand {
                    offered_pps: f64::NAN,
                    ..COUNTRY
                },
                1
            )
            .is_err()
        );
        assert!(
            of(
                Demand {
                    entries: -1.0,
                    ..COUNTRY
                },
                1
            )
            .is_err()
        );
    }
}
