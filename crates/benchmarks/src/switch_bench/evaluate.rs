//! Evaluates the points: medians over repetitions, the line of latency against the number of loops, the costs of rules
//! and actions, and the comparison of switches.

use super::Results;
use super::device::Switch;
use super::outcome::{Amplified, Latency, Seen, Trial};
use super::part::{Does, Matching, Order, Part};
use schemars::JsonSchema;
use serde::Serialize;
use taut_bench::benchmark::{Estimate, Warned};
use taut_measure::rank::nearest_rank;
use taut_measure::{Limit, ratio_interval};
use taut_model::fit::Coefficient;
use taut_model::hops::Hops;

const CONFIDENCE: f64 = 0.95;

/// The contents of `summary.json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Evaluation<'a> {
    pub tsc_hz: f64,
    /// The second switch, which multiplied traffic; none if the measured switch did so itself.
    pub amplifier: Option<&'a Switch>,
    pub switches: Vec<Row>,
    /// Comparisons of the first switch with each other switch.
    pub ratios: Vec<Compared>,
    pub left_out: &'a [taut_results::LeftOut],
    pub problems: &'a [String],
    #[serde(flatten)]
    pub(super) machine: Warned,
}

/// The results of a switch.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Row {
    pub switch: Switch,
    pub version: String,
    pub hops: Vec<HopRow>,
    pub line: Option<Line>,
    pub rules: Vec<RuleRow>,
    pub qos: Vec<QosRow>,
    /// Median latency of real-time packets without priority, divided by that with priority, at the highest background
    /// load; none if one of the two was not measured.
    pub qos_factor: Option<f64>,
    /// The p99 latency of real-time packets with priority at the highest background load, divided by their p99 latency
    /// without background traffic; none if one of the two was not measured.
    pub qos_loaded_over_unloaded: Option<f64>,
    pub insertion: Vec<InsertionRow>,
    pub amplify: Vec<AmplifyRow>,
    pub actions: Vec<ActionRow>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HopRow {
    pub loops: u32,
    pub min_ns: Option<Estimate>,
    pub p50_ns: Option<Estimate>,
    pub p99_ns: Option<Estimate>,
    /// Difference between the p99 latency and the minimum latency, ns; none with too few packets for a p99.
    pub spread_ns: Option<Estimate>,
    pub lost: f64,
}

/// Latency by number of loops: a least-squares line through the medians of all repetitions.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Line {
    pub per_loop_ns: Coefficient,
    pub without_ns: Coefficient,
    pub r_squared: f64,
    pub even_residual_ns: Option<f64>,
    pub odd_residual_ns: Option<f64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RuleRow {
    pub matching: Matching,
    pub rules: u32,
    pub pps: Option<Estimate>,
    /// The part that limited the rate in most repetitions, such as the generator; none in results that do not contain
    /// it.
    pub limited_by: Option<Limit>,
    /// Rate divided by the rate of plain forwarding in the same repetition: median over the repetitions that measured
    /// both. It is none without such a repetition.
    pub of_plain: Option<f64>,
    pub p50_ns: Option<Estimate>,
    pub p99_ns: Option<Estimate>,
    /// Time until all rules are added, divided by their number; none if no rules were added.
    pub rule_ns: Option<Estimate>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QosRow {
    pub load_percent: u32,
    pub priority: bool,
    pub p50_ns: Option<Estimate>,
    pub p99_ns: Option<Estimate>,
    pub max_ns: Option<Estimate>,
    pub lost: f64,
    pub background_p50_ns: Option<Estimate>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InsertionRow {
    pub order: Order,
    /// Number of rules that were added, in all repetitions together.
    pub rules: usize,
    /// Median time from adding a rule to the reply to the barrier after the rule; none if no rule was added.
    pub barrier_p50_ns: Option<Estimate>,
    /// 99th percentile of the time from adding a rule to the reply to the barrier after the rule; none if too few rules
    /// were added.
    pub barrier_p99_ns: Option<Estimate>,
    /// Median time from adding a rule to the barrier reply, for the first tenth of the rules; none if no rule was
    /// added.
    pub first_tenth_ns: Option<Estimate>,
    /// Median time from adding a rule to the barrier reply, for the last tenth of the rules; none if no rule was added.
    pub last_tenth_ns: Option<Estimate>,
    /// Median time from modifying the actions of a rule to the barrier reply; none if no rule was modified.
    pub modified_barrier_p50_ns: Option<Estimate>,
    /// Median time from deleting a rule to the barrier reply; none if no rule was deleted.
    pub deleted_barrier_p50_ns: Option<Estimate>,
    /// Median time from the message that adds a rule to the first packet that obeys the rule; none if no such packet
    /// was observed.
    pub appeared_ns: Option<Estimate>,
    /// Median time from the message that modifies a rule to the first packet that obeys the modified rule; none if no
    /// such packet was observed.
    pub modified_ns: Option<Estimate>,
    /// Median time from the message that deletes a rule to the last packet that obeys the rule; none if no such packet
    /// was observed.
    pub vanished_ns: Option<Estimate>,
    /// Median time from the message to the barrier reply, for the changes that `appeared_ns` includes; none if
    /// `appeared_ns` is none.
    pub appeared_barrier_ns: Option<Estimate>,
    /// Median time from the message to the barrier reply, for the changes that `modified_ns` includes; none if
    /// `modified_ns` is none.
    pub modified_barrier_ns: Option<Estimate>,
    /// Median time from the message to the barrier reply, for the changes that `vanished_ns` includes; none if
    /// `vanished_ns` is none.
    pub vanished_barrier_ns: Option<Estimate>,
    /// Number of changes whose effect on packets was not observed before the next change. They are not included in
    /// `appeared_ns`, `modified_ns` and `vanished_ns`.
    pub unseen: u32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AmplifyRow {
    pub cables: u32,
    pub copies: u32,
    pub fold: Option<Estimate>,
    /// Loss ratio at the cable end with the highest loss, at the low rate.
    pub most_lost: f64,
    /// Packets per second that the switch sent through all ports, at the highest input rate; none without a
    /// measurement.
    pub most_out_pps: Option<Estimate>,
    /// Packets per second that the switch received from the generator, at the highest input rate; none without a
    /// measurement.
    pub most_in_pps: Option<Estimate>,
    /// Loss ratio at the cable end with the highest loss, at the highest rate.
    pub most_lost_at_most: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ActionRow {
    pub does: Does,
    pub pps: Option<Estimate>,
    /// The part that limited the rate in most repetitions, such as the generator; none in results that do not contain
    /// it.
    pub limited_by: Option<Limit>,
    /// Time per packet that the action adds to plain forwarding, ns: median over the repetitions that measured both
    /// rates. It is none without such a repetition.
    pub costs_ns: Option<f64>,
    pub p50_ns: Option<Estimate>,
    pub p99_ns: Option<Estimate>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Compared {
    pub what: String,
    /// The other switch, with which the first switch is compared.
    pub beside: Switch,
    /// Ratio of the results; above 1 if the first switch is better.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
    pub pairs: u64,
}

impl<'a> Evaluation<'a> {
    pub fn of(results: &'a Results) -> Self {
        let switches = results.head.own.switches.iter();
        Self {
            tsc_hz: results.head.tsc_hz,
            amplifier: results.head.own.amplifier.as_ref(),
            switches: switches
                .map(|(switch, version)| Trials::of(results, switch).row(version))
                .collect(),
            ratios: ratios(results),
            left_out: &results.head.manifest.left_out,
            problems: &results.problems,
            machine: Warned::of(&results.head.manifest.noise),
        }
    }
}

/// The trials of a switch, in the order of points and repetitions.
struct Trials<'a> {
    switch: &'a Switch,
    all: Vec<&'a Trial>,
}

fn estimate(values: impl IntoIterator<Item = f64>) -> Option<Estimate> {
    Estimate::of(&values.into_iter().collect::<Vec<_>>())
}

fn percentiles(of: &[&Latency], which: fn(&Latency) -> Option<u64>) -> Option<Estimate> {
    estimate(of.iter().filter_map(|it| which(it)).map(|ns| ns as f64))
}

fn p50(of: &Latency) -> Option<u64> {
    of.latency.p50_ns
}

fn p99(of: &Latency) -> Option<u64> {
    of.latency.p99_ns
}

fn median(values: &[f64]) -> Option<f64> {
    taut_measure::median(values)
}

/// Returns the mean loss ratio over all repetitions.
fn lost(of: &[&Latency]) -> f64 {
    of.iter().map(|it| it.lost).sum::<f64>() / of.len().max(1) as f64
}

impl<'a> Trials<'a> {
    fn of(results: &'a Results, switch: &'a Switch) -> Self {
        let mut all: Vec<&Trial> = results.outcomes.iter().collect();
        all.retain(|trial| trial.switch == *switch);
        all.sort_by_key(|trial| (trial.part, trial.repetition));
        Self { switch, all }
    }

    /// Returns the points for which `want` returns a value, each with its repetitions.
    fn points<T>(&self, want: impl Fn(Part) -> Option<T>) -> Vec<(T, Vec<&'a Trial>)> {
        let groups = self.all.chunk_by(|a, b| a.part == b.part);
        let wanted = groups.filter_map(|group| Some((want(group[0].part)?, group.to_vec())));
        wanted.collect()
    }

    fn row(&self, version: &str) -> Row {
        let qos = self.qos();
        let highest = qos.iter().map(|row| row.load_percent).max();
        let at = |load: Option<u32>, priority: bool, which: fn(&QosRow) -> &Option<Estimate>| {
            let row = qos
                .iter()
                .find(|row| Some(row.load_percent) == load && row.priority == priority);
            row.and_then(|row| which(row).as_ref()).map(|it| it.point)
        };
        let over = |a: Option<f64>, b: Option<f64>| Some(a? / b?).filter(|it| it.is_finite());
        let qos_factor = over(
            at(highest, false, |row| &row.p50_ns),
            at(highest, true, |row| &row.p50_ns),
        );
        let qos_loaded_over_unloaded = over(
            at(highest, true, |row| &row.p99_ns),
            at(Some(0), true, |row| &row.p99_ns),
        );
        let (hops, line) = self.hops();
        Row {
            switch: self.switch.clone(),
            version: version.to_string(),
            hops,
            line,
            rules: self.rules(),
            qos_factor,
            qos_loaded_over_unloaded,
            qos,
            insertion: self.insertion(),
            amplify: self.amplify(),
            actions: self.actions(),
        }
    }

    fn hops(&self) -> (Vec<HopRow>, Option<Line>) {
        let points = self.points(|part| match part {
            Part::Hops { loops } => Some(loops),
            _ => None,
        });
        let mut medians = Vec::new();
        let mut rows = Vec::new();
        for (loops, trials) in points {
            let seen: Vec<&Latency> = trials
                .iter()
                .filter_map(|trial| match &trial.seen {
                    Seen::Latency(latency) => Some(latency),
                    _ => None,
                })
                .collect();
            let of_repetitions = seen.iter().filter_map(|it| p50(it));
            medians.extend(of_repetitions.map(|ns| (f64::from(loops), ns as f64)));
            let spread = |it: &&Latency| Some((p99(it)? - it.latency.min_ns) as f64);
            rows.push(HopRow {
                loops,
                min_ns: percentiles(&seen, |it| Some(it.latency.min_ns)),
                p50_ns: percentiles(&seen, p50),
                p99_ns: percentiles(&seen, p99),
                spread_ns: estimate(seen.iter().filter_map(spread)),
                lost: lost(&seen),
            });
        }
        let line = Hops::of(&medians).ok().map(|hops| Line {
            per_loop_ns: hops.per_loop,
            without_ns: hops.without,
            r_squared: hops.r_squared,
            even_residual_ns: hops.residual_by_parity[0],
            odd_residual_ns: hops.residual_by_parity[1],
        });
        (rows, line)
    }

    /// Returns the rates of a point, packets per second, each with its repetition.
    fn rates(&self, of: Part) -> Vec<(u32, f64)> {
        let trials = self.all.iter().filter(|trial| trial.part == of);
        let rates = trials.filter_map(|trial| Some((trial.repetition, rate_of(trial)?)));
        rates.collect()
    }

    fn rules(&self) -> Vec<RuleRow> {
        let plain = self.rates(Part::Rules {
            matching: Matching::Plain,
            rules: 0,
        });
        let points = self.points(|part| match part {
            Part::Rules { matching, rules } => Some((matching, rules)),
            _ => None,
        });
        let row = |((matching, rules), trials): ((Matching, u32), Vec<&Trial>)| {
            let of_plain: Vec<f64> = trials
                .iter()
                .filter_map(|trial| {
                    let (_, plain) = plain.iter().find(|(at, _)| *at == trial.repetition)?;
                    Some(rate_of(trial)? / plain)
                })
                .collect();
            let seen = latencies(&trials);
            let rule_ns = trials.iter().filter_map(|trial| match &trial.seen {
                Seen::Rate { rule_ns, .. } => *rule_ns,
                _ => None,
            });
            RuleRow {
                matching,
                rules,
                pps: estimate(trials.iter().filter_map(|trial| rate_of(trial))),
                limited_by: limit_of(&trials),
                of_plain: median(&of_plain),
                p50_ns: percentiles(&seen, p50),
                p99_ns: percentiles(&seen, p99),
                rule_ns: estimate(rule_ns),
            }
        };
        points.into_iter().map(row).collect()
    }

    fn qos(&self) -> Vec<QosRow> {
        let points = self.points(|part| match part {
            Part::Qos {
                load_percent,
                priority,
            } => Some((load_percent, priority)),
            _ => None,
        });
        let row = |((load_percent, priority), trials): ((u32, bool), Vec<&Trial>)| {
            let (mut real_time, mut background) = (Vec::new(), Vec::new());
            for trial in &trials {
                if let Seen::Classes {
                    real_time: first,
                    background: second,
                } = &trial.seen
                {
                    real_time.push(first);
                    background.extend(second);
                }
            }
            QosRow {
                load_percent,
                priority,
                p50_ns: percentiles(&real_time, p50),
                p99_ns: percentiles(&real_time, p99),
                max_ns: percentiles(&real_time, |it| Some(it.latency.max_ns)),
                lost: lost(&real_time),
                background_p50_ns: percentiles(&background, p50),
            }
        };
        points.into_iter().map(row).collect()
    }

    fn insertion(&self) -> Vec<InsertionRow> {
        let points = self.points(|part| match part {
            Part::Insertion { order } => Some(order),
            _ => None,
        });
        let row = |(order, trials): (Order, Vec<&Trial>)| {
            let mut barriers: [Vec<&[f64]>; 3] = Default::default();
            // For each repetition and kind of change, the median time until packets obey the change, and the median
            // time until the barrier reply for the same changes.
            let mut watched: [[Vec<f64>; 2]; 3] = Default::default();
            let mut all_unseen = 0;
            for trial in &trials {
                if let Seen::Insertion {
                    barrier_ns,
                    made,
                    modified,
                    deleted,
                    unseen,
                } = &trial.seen
                {
                    for (all, own) in barriers.iter_mut().zip(barrier_ns) {
                        all.push(own);
                    }
                    for (all, own) in watched.iter_mut().zip([made, modified, deleted]) {
                        all[0].extend(median(&own.wire_ns));
                        all[1].extend(median(&own.barrier_ns));
                    }
                    all_unseen += unseen;
                }
            }
            let each = |kind: usize, of: fn(&[f64]) -> Option<f64>| {
                estimate(barriers[kind].iter().filter_map(|it| of(it)))
            };
            let watched = watched.map(|kind| kind.map(estimate));
            let [
                [appeared, appeared_barrier],
                [modified, modified_barrier],
                [vanished, vanished_barrier],
            ] = watched;
            InsertionRow {
                order,
                rules: barriers[0].iter().map(|it| it.len()).sum(),
                barrier_p50_ns: each(0, median),
                barrier_p99_ns: each(0, p99_of),
                first_tenth_ns: each(0, |it| median(&it[..tenth(it)])),
                last_tenth_ns: each(0, |it| median(&it[it.len() - tenth(it)..])),
                modified_barrier_p50_ns: each(1, median),
                deleted_barrier_p50_ns: each(2, median),
                appeared_ns: appeared,
                modified_ns: modified,
                vanished_ns: vanished,
                appeared_barrier_ns: appeared_barrier,
                modified_barrier_ns: modified_barrier,
                vanished_barrier_ns: vanished_barrier,
                unseen: all_unseen,
            }
        };
        points.into_iter().map(row).collect()
    }

    fn amplify(&self) -> Vec<AmplifyRow> {
        let points = self.points(|part| match part {
            Part::Amplify { cables } => Some(cables),
            _ => None,
        });
        let row = |(cables, trials): (u32, Vec<&'a Trial>)| {
            let seen: Vec<(&Amplified, &Amplified)> = trials
                .iter()
                .filter_map(|trial| match &trial.seen {
                    Seen::Amplified { easy, most, .. } => Some((easy, most)),
                    _ => None,
                })
                .collect();
            let copies = trials.iter().find_map(|trial| match trial.seen {
                Seen::Amplified { copies, .. } => Some(copies),
                _ => None,
            });
            let worst = |of: &Amplified| of.lost.iter().copied().fold(0.0, f64::max);
            let worst_of = |which: fn(&(&'a Amplified, &'a Amplified)) -> &'a Amplified| {
                seen.iter().map(|it| worst(which(it))).fold(0.0, f64::max)
            };
            AmplifyRow {
                cables,
                copies: copies.unwrap_or(0),
                fold: estimate(seen.iter().map(|(easy, _)| easy.fold)),
                most_lost: worst_of(|it| it.0),
                most_out_pps: estimate(seen.iter().map(|(_, most)| most.out_pps)),
                most_in_pps: estimate(seen.iter().map(|(_, most)| most.in_pps)),
                most_lost_at_most: worst_of(|it| it.1),
            }
        };
        points.into_iter().map(row).collect()
    }

    fn actions(&self) -> Vec<ActionRow> {
        let least = self.rates(Part::Actions { does: Does::Output });
        let points = self.points(|part| match part {
            Part::Actions { does } => Some(does),
            _ => None,
        });
        let row = |(does, trials): (Does, Vec<&Trial>)| {
            let costs: Vec<f64> = trials
                .iter()
                .filter_map(|trial| {
                    let (_, least) = least.iter().find(|(at, _)| *at == trial.repetition)?;
                    Some(1e9 / rate_of(trial)? - 1e9 / least)
                })
                .collect();
            let seen = latencies(&trials);
            ActionRow {
                does,
                pps: estimate(trials.iter().filter_map(|trial| rate_of(trial))),
                limited_by: limit_of(&trials),
                costs_ns: median(&costs).filter(|_| does != Does::Output),
                p50_ns: percentiles(&seen, p50),
                p99_ns: percentiles(&seen, p99),
            }
        };
        points.into_iter().map(row).collect()
    }
}

/// Returns the part of the setup that limited the rate in most of the trials.
fn limit_of(trials: &[&Trial]) -> Option<Limit> {
    let limits = trials.iter().filter_map(|trial| match &trial.seen {
        Seen::Rate { limited_by, .. } => *limited_by,
        _ => None,
    });
    let limits: Vec<Limit> = limits.collect();
    let of = |wanted: Limit| limits.iter().filter(|limit| **limit == wanted).count();
    let most = if of(Limit::Generator) > of(Limit::Device) {
        Limit::Generator
    } else {
        Limit::Device
    };
    (!limits.is_empty()).then_some(most)
}

fn rate_of(trial: &Trial) -> Option<f64> {
    match &trial.seen {
        Seen::Rate { pps, .. } => Some(*pps),
        _ => None,
    }
}

fn latencies<'a>(trials: &[&'a Trial]) -> Vec<&'a Latency> {
    let seen = trials.iter().filter_map(|trial| match &trial.seen {
        Seen::Rate { latency, .. } => Some(latency),
        _ => None,
    });
    seen.collect()
}

fn tenth(values: &[f64]) -> usize {
    values.len().div_ceil(10)
}

/// Returns the 99th percentile by nearest rank; `None` if there are too few values.
fn p99_of(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = nearest_rank(sorted.len() as u64, 0.99)?;
    (sorted.len() >= 100).then(|| sorted[rank as usize])
}

/// Compares the first switch's rate and its time per rule with those of each other switch, in the same repetitions.
fn ratios(results: &Results) -> Vec<Compared> {
    let mut switches = results.head.own.switches.iter();
    let Some((first, _)) = switches.next() else {
        return Vec::new();
    };
    let others = switches.flat_map(|(other, _)| compared(results, first, other));
    others.collect()
}

fn compared(results: &Results, first: &Switch, beside: &Switch) -> Vec<Compared> {
    let both = [first, beside].map(|switch| Trials::of(results, switch));
    let mut compared = Vec::new();
    for (part, _) in both[0].points(Some) {
        for value in compared_values(part) {
            compared.extend(compare(&both, part, &value));
        }
    }
    compared
}

/// A value by which two switches are compared.
struct ComparedValue {
    name: &'static str,
    of: fn(&Trial) -> Option<f64>,
    /// True if a lower value is better, as for times.
    less: bool,
}

const RATE: ComparedValue = ComparedValue {
    name: "rate",
    of: rate_of,
    less: false,
};

/// Returns the values of a point by which switches are compared.
fn compared_values(part: Part) -> Vec<ComparedValue> {
    match part {
        Part::Rules { .. } => vec![
            RATE,
            ComparedValue {
                name: "p99",
                of: |trial| {
                    latencies(&[trial])
                        .first()
                        .and_then(|it| p99(it))
                        .map(|ns| ns as f64)
                },
                less: true,
            },
            ComparedValue {
                name: "rules made together",
                of: |trial| match &trial.seen {
                    Seen::Rate { rule_ns, .. } => *rule_ns,
                    _ => None,
                },
                less: true,
            },
        ],
        Part::Insertion { .. } => vec![
            ComparedValue {
                name: "barrier",
                of: |trial| barrier_of(trial, 0),
                less: true,
            },
            ComparedValue {
                name: "barrier, modified",
                of: |trial| barrier_of(trial, 1),
                less: true,
            },
            ComparedValue {
                name: "barrier, deleted",
                of: |trial| barrier_of(trial, 2),
                less: true,
            },
            ComparedValue {
                name: "first packet",
                of: |trial| match &trial.seen {
                    Seen::Insertion { made, .. } => median(&made.wire_ns),
                    _ => None,
                },
                less: true,
            },
        ],
        Part::Actions { .. } => vec![RATE],
        Part::Hops { .. } | Part::Qos { .. } | Part::Amplify { .. } => Vec::new(),
    }
}

/// Returns the median time, ns, until the barrier reply to a change: adding (0), modifying (1) or deleting (2) a rule.
/// Returns none for another measurement, or without such changes.
fn barrier_of(trial: &Trial, change: usize) -> Option<f64> {
    match &trial.seen {
        Seen::Insertion { barrier_ns, .. } => median(&barrier_ns[change]),
        _ => None,
    }
}

/// Compares a value of the first of `both` switches with that of the second, at one point; none if no repetition
/// measured the value of both.
fn compare(both: &[Trials<'_>; 2], part: Part, value: &ComparedValue) -> Option<Compared> {
    let [ours, theirs] = both.each_ref().map(|trials| -> Vec<(u32, f64)> {
        let those = trials.all.iter().filter(|trial| trial.part == part);
        those
            .filter_map(|trial| Some((trial.repetition, (value.of)(trial)?)))
            .collect()
    });
    let pairs = ours.iter().filter_map(|(repetition, ours)| {
        let (_, theirs) = theirs.iter().find(|(at, _)| at == repetition)?;
        Some((*ours, *theirs))
    });
    let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
    let ratio = if value.less {
        ratio_interval(&theirs, &ours, CONFIDENCE)?
    } else {
        ratio_interval(&ours, &theirs, CONFIDENCE)?
    };
    Some(Compared {
        what: format!("{} {}: {}", part.measurement(), part.point(), value.name),
        beside: both[1].switch.clone(),
        ratio: ratio.median.point,
        low: ratio.median.low,
        high: ratio.median.high,
        pairs: ratio.pairs,
    })
}
