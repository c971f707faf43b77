//! Computes the indicators of a run: delays by stage, late and lost commands, and the deviation of the plant from
//! balance.
//!
//! The indicators are those of Gallenmüller's dissertation, section 6.1.7 and tables 6.3 and 6.4. Where the printed
//! text differs from the computation behind its numbers, this module follows the computation. The network's delay is
//! half of the round trip without the controller's own time, which equation 6.1 does not subtract. The period is from
//! reading to applying. The last column of table 6.3, printed as the 99.9th percentile, is the 99th.

use crate::protocol::Stage;
use crate::station::{Outcome, Record};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_measure::rank::nearest_rank;
use taut_measure::{Interval, quantile_interval};

/// Probability with which intervals cover the median.
const CONFIDENCE: f64 = 0.95;

/// The distribution of a delay, ms, with the columns of table 6.3 of Gallenmüller's dissertation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Number of sampling periods in which the delay is known.
    pub count: usize,
    /// Median and its confidence interval; `None` with too few sampling periods for an interval.
    pub median_ms: Option<Interval>,
    /// Lower quartile of the delay, ms.
    pub q25_ms: f64,
    /// Upper quartile of the delay, ms.
    pub q75_ms: f64,
    /// 99th percentile of the delay, ms.
    pub p99_ms: f64,
    /// Maximum delay, ms.
    pub max_ms: f64,
}

impl Delay {
    /// Summarises delays in ms; `None` without delays.
    pub fn of(mut values_ms: Vec<f64>) -> Option<Self> {
        values_ms.sort_by(f64::total_cmp);
        let at = |q: f64| {
            let rank = nearest_rank(values_ms.len() as u64, q)?;
            values_ms.get(rank as usize).copied()
        };
        Some(Self {
            count: values_ms.len(),
            median_ms: quantile_interval(&values_ms, 0.5, CONFIDENCE),
            q25_ms: at(0.25)?,
            q75_ms: at(0.75)?,
            p99_ms: at(0.99)?,
            max_ms: *values_ms.last()?,
        })
    }
}

/// The indicators of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kpis {
    /// Number of sampling periods from the first command on.
    pub rounds: usize,
    /// Number of sampling periods in which the command arrived after the bound, the latest allowed time (`bound_ns` in
    /// the plant's settings).
    pub late: usize,
    /// Number of sampling periods in which no command arrived.
    pub lost: usize,
    /// Number of sequences of consecutive late or lost sampling periods, keyed by their length in sampling periods.
    pub runs: BTreeMap<usize, usize>,
    /// `d_P,S`: time from reading the sensors to sending the report.
    pub sensing: Option<Delay>,
    /// `d_N`: half of the round trip from sending the report to receiving the command, without the controller's time.
    pub network: Option<Delay>,
    /// `d_P,C`: time from receiving the report to sending the command.
    pub controller: Option<Delay>,
    /// `d_P,A`: time from receiving the command to applying it.
    pub actuating: Option<Delay>,
    /// Time from reading the sensors to receiving the command.
    pub round_trip: Option<Delay>,
    /// Time from reading the sensors to applying the command.
    pub period: Option<Delay>,
    /// Time from one reading of the sensors to the next.
    pub cycle: Option<Delay>,
    /// Delay of the report in the network; `None` unless plant and controller share one clock.
    pub there: Option<Delay>,
    /// Delay of the command in the network; `None` unless plant and controller share one clock.
    pub back: Option<Delay>,
    /// Absolute difference between the round trips of successive sampling periods, without the controller's time.
    pub jitter: Option<Delay>,
    /// Absolute difference between the network delays of successive reports; `None` unless plant and controller share
    /// one clock.
    #[serde(default)]
    pub jitter_there: Option<Delay>,
    /// Absolute difference between the network delays of successive commands; `None` unless plant and controller share
    /// one clock.
    #[serde(default)]
    pub jitter_back: Option<Delay>,
    /// Packets of the loop in the network (the bandwidth-delay product of Gallenmüller's dissertation, section 6.1.3);
    /// `None` unless plant and controller share one clock.
    #[serde(default)]
    pub in_flight: Option<InFlight>,
    /// The sum over all sampling periods of the balanced state's magnitude (Gallenmüller, equation 6.2; for the robot
    /// the pitch in degrees).
    pub sum_balance: f64,
    /// The sum over all sampling periods of the plant's distance from its start (Gallenmüller, equation 6.3; for the
    /// robot the wheels' angle in degrees).
    pub sum_travel: f64,
    /// The sum over all sampling periods of the mean magnitude of the plant's inputs in that period (Gallenmüller,
    /// equation 6.4; for the robot in volts).
    pub sum_inputs: f64,
    /// Greatest magnitude of the balanced state, in the unit of the plant's results.
    pub most_balance: f64,
    /// True if the plant fell.
    pub has_fallen: bool,
    /// Time of the fall, seconds after the reading that the first command replies to; `None` if the plant did not fall.
    pub fallen_s: Option<f64>,
    /// Time at which a plant that began down had erected itself, seconds after the reading that the first command
    /// replies to; `None` if it did not, or began upright.
    #[serde(default)]
    pub erected_s: Option<f64>,
}

/// Number of packets in the network at a time, of both directions together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InFlight {
    /// Mean over time of the number of packets in the network.
    pub mean: f64,
    /// Largest number of packets in the network at one time.
    pub most: usize,
}

impl InFlight {
    /// Computes the number of packets in the network from their times of sending and receiving, ns; `None` without two
    /// different times.
    fn of(ways: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        // At equal times a packet arrives before another is sent.
        let changes = ways.flat_map(|(sent, received)| [(sent, 1), (received, -1)]);
        let mut changes: Vec<(u64, i32)> = changes.collect();
        changes.sort_unstable();
        let passed_ns = changes.last()?.0 - changes.first()?.0;
        let (mut now, mut most, mut sum_ns, mut last_ns) = (0_i32, 0, 0.0, changes[0].0);
        for (at_ns, change) in changes {
            sum_ns += f64::from(now) * (at_ns - last_ns) as f64;
            now += change;
            (most, last_ns) = (now.max(most), at_ns);
        }
        (passed_ns > 0).then(|| Self {
            mean: sum_ns / passed_ns as f64,
            most: usize::try_from(most).unwrap_or(0),
        })
    }
}

/// The two directions of the network, as the stages at which a message is sent and received.
const WAYS: [(Stage, Stage); 2] = [
    (Stage::ReportSent, Stage::ReportReceived),
    (Stage::CommandSent, Stage::CommandReceived),
];

impl Kpis {
    /// Computes the indicators of the sampling periods of a plant with `inputs` inputs; `one_clock` is true if plant
    /// and controller have the same clock.
    pub fn of(records: &[Record], inputs: usize, one_clock: bool, fallen_ns: Option<u64>) -> Self {
        let ms = |ns: u64| ns as f64 / 1e6;
        let between = |from: Stage, to: Stage| {
            let each = records.iter().filter_map(|it| it.stamps.between(from, to));
            Delay::of(each.map(ms).collect())
        };
        let network = records.iter().filter_map(both_ways);
        let pairs = records.windows(2);
        let jitter =
            pairs.filter_map(|pair| Some(ms(both_ways(&pair[0])?.abs_diff(both_ways(&pair[1])?))));
        let cycle = records.windows(2).filter_map(|pair| {
            let next_to = pair[1].sequence == pair[0].sequence + 1;
            let (first, second) = (
                pair[0].stamps.at(Stage::Read)?,
                pair[1].stamps.at(Stage::Read)?,
            );
            second.checked_sub(first).filter(|_| next_to).map(ms)
        });
        let one_way = |from, to| one_clock.then(|| between(from, to)).flatten();
        let jitter_of = |(from, to)| {
            let pairs = records.windows(2).filter(|_| one_clock);
            let each = pairs.filter_map(|pair| {
                let delay = |it: &Record| it.stamps.between(from, to);
                Some(ms(delay(&pair[0])?.abs_diff(delay(&pair[1])?)))
            });
            Delay::of(each.collect())
        };
        let in_network = records.iter().filter(|_| one_clock).flat_map(|it| {
            let way = |(from, to)| {
                let (sent, received) = (it.stamps.at(from)?, it.stamps.at(to)?);
                (sent <= received).then_some((sent, received))
            };
            WAYS.into_iter().filter_map(way).collect::<Vec<_>>()
        });
        // Adding 0.0 turns the sum of an empty list, -0.0, into 0.0.
        let sum =
            |value: fn(&Record) -> f64| 0.0 + records.iter().map(|it| value(it).abs()).sum::<f64>();
        let mean_input = |it: &Record| {
            let all = it.inputs.iter().take(inputs).map(|input| input.abs());
            all.sum::<f64>() / inputs.max(1) as f64
        };
        let first_ns = records.first().and_then(|it| it.stamps.at(Stage::Read));
        let fallen_s = fallen_ns.zip(first_ns);
        Self {
            rounds: records.len(),
            late: count(records, Outcome::Late),
            lost: count(records, Outcome::Lost),
            runs: runs(records.iter().map(|it| it.outcome != Outcome::InTime)),
            sensing: between(Stage::Read, Stage::ReportSent),
            network: Delay::of(network.map(|ns| ms(ns) / 2.0).collect()),
            controller: between(Stage::ReportReceived, Stage::CommandSent),
            actuating: between(Stage::CommandReceived, Stage::Applied),
            round_trip: between(Stage::Read, Stage::CommandReceived),
            period: between(Stage::Read, Stage::Applied),
            cycle: Delay::of(cycle.collect()),
            there: one_way(Stage::ReportSent, Stage::ReportReceived),
            back: one_way(Stage::CommandSent, Stage::CommandReceived),
            jitter: Delay::of(jitter.collect()),
            jitter_there: jitter_of(WAYS[0]),
            jitter_back: jitter_of(WAYS[1]),
            in_flight: InFlight::of(in_network),
            sum_balance: sum(|it| it.balance),
            sum_travel: sum(|it| it.travel),
            sum_inputs: 0.0 + records.iter().map(mean_input).sum::<f64>(),
            most_balance: records
                .iter()
                .map(|it| it.balance.abs())
                .fold(0.0, f64::max),
            has_fallen: fallen_ns.is_some(),
            fallen_s: fallen_s.map(|(at, from)| at.saturating_sub(from) as f64 / 1e9),
            erected_s: None,
        }
    }

    /// Adds the time at which a plant that began down had erected itself, ns.
    #[must_use]
    pub fn with_erected(mut self, records: &[Record], erected_ns: Option<u64>) -> Self {
        let first_ns = records.first().and_then(|it| it.stamps.at(Stage::Read));
        let since = erected_ns.zip(first_ns);
        self.erected_s = since.map(|(at, from)| at.saturating_sub(from) as f64 / 1e9);
        self
    }
}

/// Half of the window over which [`pitch_of_rates`] averages to estimate the drift, ns.
const DRIFT_NS: u64 = 1_000_000_000;

/// Returns the pitch, computed from pairs of time (ns) and gyroscope rate, for recordings without the pitch. The rates
/// are integrated by trapezoids. From each value, the mean of all values within a second before and after is
/// subtracted, because a balancing robot is upright on average and the integral drifts. The unit is that of the rates
/// times seconds.
///
/// The filter behind table 6.4 is not published; this filter is taut's own.
pub fn pitch_of_rates(readings: &[(u64, f64)]) -> Vec<f64> {
    let mut angle = 0.0;
    let mut angles: Vec<f64> = Vec::with_capacity(readings.len());
    for (number, (at_ns, rate)) in readings.iter().enumerate() {
        if let Some((before_ns, before)) = number.checked_sub(1).map(|it| readings[it]) {
            angle += (rate + before) / 2.0 * at_ns.saturating_sub(before_ns) as f64 / 1e9;
        }
        angles.push(angle);
    }
    let near = |at_ns: u64| {
        let from = readings.partition_point(|(ns, _)| ns.saturating_add(DRIFT_NS) < at_ns);
        let to = readings.partition_point(|(ns, _)| *ns <= at_ns.saturating_add(DRIFT_NS));
        &angles[from..to]
    };
    let drift = |at_ns: u64| {
        let near = near(at_ns);
        near.iter().sum::<f64>() / near.len().max(1) as f64
    };
    let each = readings.iter().zip(&angles);
    each.map(|((at_ns, _), angle)| angle - drift(*at_ns))
        .collect()
}

/// Returns the round trip from sending the report to receiving the command, without the controller's time, ns.
fn both_ways(it: &Record) -> Option<u64> {
    let whole = it
        .stamps
        .between(Stage::ReportSent, Stage::CommandReceived)?;
    whole.checked_sub(
        it.stamps
            .between(Stage::ReportReceived, Stage::CommandSent)?,
    )
}

fn count(records: &[Record], outcome: Outcome) -> usize {
    records.iter().filter(|it| it.outcome == outcome).count()
}

/// Counts the sequences of consecutive true values, by length.
fn runs(missed: impl Iterator<Item = bool>) -> BTreeMap<usize, usize> {
    let mut runs = BTreeMap::new();
    let mut length = 0;
    for missed in missed.chain([false]) {
        if missed {
            length += 1;
        } else if length > 0 {
            *runs.entry(length).or_default() += 1;
            length = 0;
        }
    }
    runs
}

/// The recovery from a push: the time until the plant balanced again, and the largest deviation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recovered {
    /// Time from the push until the balanced state stays within the band, s.
    pub seconds: f64,
    /// Greatest magnitude of the balanced state after the push, in the unit of the plant's results.
    pub most_balance: f64,
}

/// Returns the recovery of a plant that was pushed at `push_ns`: it ends when the balanced state begins to stay within
/// `band` for a second. Returns `None` if the plant did not recover.
pub fn recovered(records: &[Record], push_ns: u64, band: f64) -> Option<Recovered> {
    let after = records.iter().filter_map(|it| {
        let read_ns = it.stamps.at(Stage::Read)?;
        (read_ns >= push_ns).then_some((read_ns, it.balance.abs()))
    });
    let after: Vec<(u64, f64)> = after.collect();
    let outside = after.iter().rposition(|(_, balance)| *balance > band);
    let back = match outside {
        Some(last) => after.get(last + 1)?.0,
        None => after.first()?.0,
    };
    let quiet_ns = after.last()?.0.checked_sub(back)?;
    (quiet_ns >= 1_000_000_000).then(|| Recovered {
        seconds: (back - push_ns) as f64 / 1e9,
        most_balance: after
            .iter()
            .map(|(_, balance)| *balance)
            .fold(0.0, f64::max),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::protocol::Stamps;

    fn record(sequence: u64, balance: f64, outcome: Outcome) -> Record {
        let mut stamps = Stamps::default();
        let start = sequence * 35_000_000;
        for (stage, ms) in [
            (Stage::Read, 0),
            (Stage::ReportSent, 3),
            (Stage::ReportReceived, 10),
            (Stage::CommandSent, 11),
            (Stage::CommandReceived, 16),
            (Stage::Applied, 32),
        ] {
            stamps.set(stage, start + ms * 1_000_000);
        }
        Record {
            sequence,
            stamps,
            outcome,
            balance,
            travel: -2.0,
            inputs: [1.0, -3.0],
            readings: [0.0; 6],
            prediction: None,
        }
    }

    #[test]
    fn the_network_delay_excludes_the_time_of_the_controller() {
        let records: Vec<Record> = (1..=20).map(|k| record(k, 1.0, Outcome::InTime)).collect();
        let kpis = Kpis::of(&records, 2, true, None);
        let at = |delay: &Option<Delay>| delay.as_ref().unwrap().median_ms.unwrap().point;
        assert_eq!(at(&kpis.sensing), 3.0);
        assert_eq!(at(&kpis.network), 6.0, "(13 - 1) / 2");
        assert_eq!((at(&kpis.there), at(&kpis.back)), (7.0, 5.0));
        assert_eq!((at(&kpis.actuating), at(&kpis.period)), (16.0, 32.0));
        assert_eq!((at(&kpis.cycle), at(&kpis.jitter)), (35.0, 0.0));
        assert_eq!(
            (kpis.sum_balance, kpis.sum_travel, kpis.sum_inputs),
            (20.0, 40.0, 40.0)
        );
        let apart = Kpis::of(&records, 2, false, None);
        assert_eq!(apart.there, None);
        assert_eq!((apart.jitter_there, apart.in_flight), (None, None));
    }

    #[test]
    fn jitter_and_packets_in_flight_are_counted_by_direction() {
        // Reports take 7 and 9 ms by turns, commands always 5 ms, of 35 ms.
        let mut records: Vec<Record> = (1..=20).map(|k| record(k, 1.0, Outcome::InTime)).collect();
        for it in records.iter_mut().step_by(2) {
            let sent_ns = it.stamps.at(Stage::ReportSent).unwrap();
            it.stamps.set(Stage::ReportSent, sent_ns - 2_000_000);
        }
        let kpis = Kpis::of(&records, 2, true, None);
        let most = |delay: &Option<Delay>| delay.as_ref().unwrap().max_ms;
        assert_eq!(
            (most(&kpis.jitter_there), most(&kpis.jitter_back)),
            (2.0, 0.0)
        );
        let found = kpis.in_flight.unwrap();
        // 20 commands of 5 ms and 10 reports each of 7 and 9 ms, from 1 ms after the first reading to 16 ms after the
        // last one, 665 ms later.
        assert_eq!(found.most, 1);
        assert!((found.mean - 260.0 / 680.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn consecutive_losses_are_counted_by_run_length() {
        use Outcome::{InTime, Late, Lost};
        let outcomes = [Lost, InTime, Late, Lost, InTime, Lost];
        let records: Vec<Record> = outcomes
            .into_iter()
            .enumerate()
            .map(|(k, outcome)| record(k as u64 + 1, 0.0, outcome))
            .collect();
        let kpis = Kpis::of(&records, 2, true, None);
        assert_eq!((kpis.late, kpis.lost), (1, 3));
        assert_eq!(kpis.runs, BTreeMap::from([(1, 2), (2, 1)]));
    }

    #[test]
    fn pitch_is_recovered_from_gyroscope_rates_with_constant_offset() {
        let swing = |s: f64| (s * std::f64::consts::TAU * 2.0).sin();
        let rates = (0..2000).map(|k| {
            let s = f64::from(k) * 0.005;
            let rate = (swing(s + 1e-4) - swing(s - 1e-4)) / 2e-4;
            (k as u64 * 5_000_000, rate + 3.0)
        });
        let pitch = pitch_of_rates(&rates.collect::<Vec<_>>());
        for (k, pitch) in pitch.iter().enumerate().take(1700).skip(300) {
            assert!((pitch - swing(k as f64 * 0.005)).abs() < 0.02, "{k}");
        }
    }

    #[test]
    fn a_plant_counts_as_recovered_after_one_calm_second() {
        let quiet = |k: u64| if (10..20).contains(&k) { 5.0 } else { 0.1 };
        let records: Vec<Record> = (1..=80)
            .map(|k| record(k, quiet(k), Outcome::InTime))
            .collect();
        let push_ns = 10 * 35_000_000;
        let found = recovered(&records, push_ns, 1.0).unwrap();
        assert!((found.seconds - 0.35).abs() < 1e-9 && found.most_balance == 5.0);
        assert_eq!(recovered(&records[..30], push_ns, 1.0), None);
    }
}
