//! Plans the cores, batch and flush policy for a rate and a latency bound: predicts the result of each choice, and
//! selects one with the fewest cores. (Gallenmüller 2021, eqs. 5.1 to 5.7; latency by simulation.)

use crate::latency::{Asked, Latency, QUANTILES};
use crate::{Described, ForecastError};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;
use taut_engine::Flush;
use taut_model::estimate::Estimate;
use taut_model::queueing::{Arrivals, Vacations};
use taut_model::resource::{Costs, Machine, Packets};

/// Receive batch sizes that are tried, packets; each is combined with the flush policies that suit it.
const BURSTS: [usize; 4] = [1, 8, 32, 64];
/// Maximum number of cores with which a plan is tried.
const MOST_CORES: u32 = 256;
/// Largest load of a core that is tried, as a fraction of its saturation. Above it, any interruption builds a queue.
const MOST_LOAD: f64 = 0.95;

/// A latency bound, parsed from a text such as `p99.9<50us`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bound {
    /// Name of the quantile, such as `p99.9`.
    pub quantile: String,
    /// Largest latency at the quantile, ns.
    pub ns: f64,
}

impl std::str::FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = QUANTILES.map(|(name, _)| name);
        let wanted = || {
            format!(
                "expected a quantile and a time, such as p99.9<50us ({})",
                names.join(", ")
            )
        };
        let (quantile, time) = text.split_once('<').ok_or_else(wanted)?;
        let quantile = quantile.trim();
        let known = names.contains(&quantile);
        let time = taut_settings::duration(time.trim_start_matches('=').trim())
            .filter(|time| !time.is_zero());
        match (known, time) {
            (true, Some(time)) => Ok(Self {
                quantile: quantile.to_owned(),
                ns: time.as_nanos() as f64,
            }),
            _ => Err(wanted()),
        }
    }
}

/// The requirements of a plan.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Required rate, packets per second.
    pub rate_pps: f64,
    /// Mean length of a frame, bytes.
    pub frame_bytes: f64,
    /// Costs of packets, without the costs per batch.
    pub costs: Costs,
    /// The latency bound; `None` accepts any latency.
    pub bound: Option<Bound>,
    /// Length of the receive ring of a core, packets.
    pub ring: usize,
    /// The interruptions of each core by other work.
    pub vacations: Vacations,
    /// Seed of the simulation.
    pub seed: u64,
}

/// A choice of cores, batch and flush policy, with its predicted result.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Choice {
    /// Number of cores over which the packets are spread.
    pub cores: u32,
    /// Maximum number of packets received at a time.
    pub burst: usize,
    /// Flush policy, in the notation of chain files.
    pub flush: String,
    /// Latency of the packets on each core, with random arrivals.
    pub latency: Latency,
    /// True if the choice loses no packet and meets the latency bound, even at the upper end of the latency's interval.
    pub keeps: bool,
}

/// The result of planning.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Plan {
    /// The required rate, packets per second.
    pub rate_pps: f64,
    /// Rate that the machine's links and buses carry, packets per second, regardless of its cores; `None` if unknown.
    pub links_pps: Option<f64>,
    /// Number of the machine's cores; `None` if unknown.
    pub cores_there: Option<u32>,
    /// All choices with the number of cores at which the search ended, the lowest tail latency first. This number is
    /// the smallest at which a choice meets the bound, or the largest number tried if no choice meets the bound.
    pub options: Vec<Choice>,
    /// Index in `options` of the best choice: among those that meet the bound, the choice with the lowest tail latency.
    /// `None` if no choice meets the bound.
    pub best: Option<usize>,
}

/// Plans for a demand on a machine. Packets are assumed to spread evenly over the cores, and to arrive at each core at
/// random times (Poisson).
///
/// # Errors
/// The demand or the machine is invalid, or more than 256 cores would be needed.
pub fn plan(demand: &Demand, described: &Described) -> Result<Plan, ForecastError> {
    let machine = described.machine()?;
    let links_pps = links_pps(demand, &machine)?;
    let clock_hz = machine.clock_hz - machine.other_cycles_per_s;
    let full = asked(demand, clock_hz, 1, (64, Flush::Idle { n: 32 }))?.saturation_pps()?;
    let fewest = (demand.rate_pps / (full * MOST_LOAD)).ceil().max(1.0);
    if fewest > f64::from(MOST_CORES) {
        return Err(ForecastError::Wrong(format!(
            "{fewest:.0} cores would be needed, more than {MOST_CORES}: give the rate of one machine, and see taut model plan --machines"
        )));
    }
    let mut cores = fewest as u32;
    let mut options = loop {
        let options = choices(demand, clock_hz, cores)?;
        if options.iter().any(|option| option.keeps)
            || cores >= MOST_CORES.min(2 * fewest as u32 + 2)
        {
            break options;
        }
        cores += 1;
    };
    let tail_ns = |option: &Choice| tail_ns(option, demand.bound.as_ref());
    options.sort_by(|a, b| tail_ns(a).total_cmp(&tail_ns(b)));
    let best = options.iter().position(|option| option.keeps);
    Ok(Plan {
        rate_pps: demand.rate_pps,
        links_pps,
        cores_there: described.cores,
        options,
        best,
    })
}

/// Returns the rate that the links and buses carry, packets per second; `None` if it is unknown.
fn links_pps(demand: &Demand, machine: &Machine) -> Result<Option<f64>, ForecastError> {
    let packets = Packets::new(demand.frame_bytes, 1.0)?;
    let carried = machine.carried(&demand.costs, &packets, None)?;
    let links = carried
        .limits
        .iter()
        .filter(|limit| limit.resource != taut_model::resource::Resource::Processor);
    Ok(links
        .filter_map(|limit| Some(limit.rate_pps?.value))
        .reduce(f64::min))
}

/// Returns the parameters for the simulation of one core that receives an equal part of the rate, with a batch size and
/// a flush policy.
fn asked(
    demand: &Demand,
    clock_hz: f64,
    cores: u32,
    (burst, flush): (usize, Flush),
) -> Result<Asked, ForecastError> {
    let high = |estimate: Estimate| estimate.high;
    let byte = demand.costs.byte_cycles.times(demand.frame_bytes);
    Ok(Asked {
        packet_cycles: high(demand.costs.io_cycles) + high(demand.costs.task_cycles) + high(byte),
        batch_cycles: high(demand.costs.batch_cycles),
        clock_hz,
        arrivals: Arrivals::poisson(demand.rate_pps / f64::from(cores))?,
        burst,
        flush,
        ring: demand.ring,
        vacations: demand.vacations.clone(),
        observer: None,
        transfer_ns: 0.0,
        packets: 100_000,
        seed: demand.seed,
    })
}

/// Returns the predicted result of each batch size and flush policy whose cores are not overloaded.
fn choices(demand: &Demand, clock_hz: f64, cores: u32) -> Result<Vec<Choice>, ForecastError> {
    let mut options = Vec::new();
    for burst in BURSTS {
        for flush in policies(burst) {
            let asked = asked(demand, clock_hz, cores, (burst, flush))?;
            if asked.saturation_pps()? * MOST_LOAD < demand.rate_pps / f64::from(cores) {
                continue;
            }
            let latency = asked.forecast()?;
            let keeps = keeps(&latency, demand.bound.as_ref());
            options.push(Choice {
                cores,
                burst,
                flush: flush.to_string(),
                latency,
                keeps,
            });
        }
    }
    Ok(options)
}

/// Returns the latency at the quantile of the bound, or at `p99.9` without a bound, ns.
fn tail_ns(option: &Choice, bound: Option<&Bound>) -> f64 {
    let name = bound.map_or("p99.9", |bound| bound.quantile.as_str());
    option
        .latency
        .quantile(name)
        .map_or(f64::INFINITY, |quantile| quantile.ns)
}

fn policies(burst: usize) -> Vec<Flush> {
    let drain = Duration::from_micros(100);
    match burst {
        1 => vec![Flush::Each],
        burst => vec![
            Flush::Each,
            Flush::Idle { n: burst },
            Flush::Full { n: burst, drain },
        ],
    }
}

fn keeps(latency: &Latency, bound: Option<&Bound>) -> bool {
    let in_time = bound.is_none_or(|bound| {
        let found = latency.quantile(&bound.quantile);
        found.is_some_and(|quantile| quantile.high_ns <= bound.ns)
    });
    in_time && latency.loss == 0.0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn demand(rate_pps: f64, bound: Option<&str>) -> Demand {
        let given = |cycles| Estimate::given(cycles).unwrap();
        Demand {
            rate_pps,
            frame_bytes: 64.0,
            costs: Costs {
                batch_cycles: given(200.0),
                ..Costs::per_packet(given(100.0), given(200.0))
            },
            bound: bound.map(|text| text.parse().unwrap()),
            ring: 1024,
            vacations: Vacations::none(),
            seed: 1,
        }
    }

    fn machine() -> Described {
        Described {
            ghz: Some(3.0),
            line: Some("10G".to_owned()),
            ..Described::default()
        }
    }

    #[test]
    fn a_plan_uses_the_fewest_cores_sufficient_for_the_rate() {
        // A core carries 10 Mpkt/s at best.
        let one = plan(&demand(5e6, None), &machine()).unwrap();
        assert_eq!(one.options[one.best.unwrap()].cores, 1);
        let three = plan(&demand(20e6, None), &machine()).unwrap();
        assert_eq!(three.options[three.best.unwrap()].cores, 3);
        assert!((one.links_pps.unwrap() / 14.88e6 - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_tight_latency_bound_excludes_buffering_or_requires_more_cores() {
        let tight = plan(&demand(5e6, Some("p99<2us")), &machine()).unwrap();
        let best = &tight.options[tight.best.unwrap()];
        assert!(
            best.latency.quantile("p99").unwrap().high_ns <= 2_000.0
                && !best.flush.starts_with("full")
        );
        let never = plan(&demand(5e6, Some("p99<100ns")), &machine()).unwrap();
        assert_eq!(never.best, None);
        assert!(!never.options.is_empty());
    }

    #[test]
    fn a_latency_bound_consists_of_a_percentile_and_a_time() {
        assert_eq!(
            "p99.9<50us".parse(),
            Ok(Bound {
                quantile: "p99.9".to_owned(),
                ns: 50_000.0
            })
        );
        for wrong in [
            "", "p99.9", "p98<1us", "p99<", "p99<0us", "p99<-1us", "p99<NaN", "<1us",
        ] {
            assert!(wrong.parse::<Bound>().is_err(), "{wrong}");
        }
        let too_much = plan(&demand(1e12, None), &machine())
            .unwrap_err()
            .to_string();
        assert!(too_much.contains("cores would be needed"), "{too_much}");
    }
}
