//! Evaluates the trials: medians over the repetitions with their intervals, and the comparison of taut with the other
//! generators.

use super::contender::{Contender, Program};
use super::facts::Results;
use super::trial::{Part, Trial};
use comfy_table::Table;
use schemars::JsonSchema;
use serde::Serialize;
use taut_bench::benchmark::Estimate;
use taut_bench::benchmark::tables::{disturbed_lines, marked};
use taut_bench::framework::Transport;
use taut_figure::table;
use taut_measure::quantity::{power, rate, share, time};
use taut_measure::{PairedRatio, Precision, ratio_interval};

const CONFIDENCE: f64 = 0.95;

/// The text in place of results for a generator that cannot pace.
pub(super) const CANNOT_PACE: &str = "no data: cannot pace";

/// The results of a generator.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The generator's id.
    pub id: String,
    /// The generator's name in tables.
    pub label: String,
    /// The generator's program.
    pub program: Program,
    /// The transport of the generator's frames.
    pub transport: Transport,
    /// Highest rate of 64-byte frames without pacing, packets per second; none without a trial.
    pub unpaced_pps: Option<Estimate>,
    /// Highest rate of 64-byte frames with pacing, packets per second; none without a trial.
    pub paced_pps: Option<Estimate>,
    /// Measured frame size in bytes, check sequence included, in trials that request 64 bytes; none without such a
    /// trial.
    pub frame_size_bytes: Option<f64>,
    /// Median fraction of the receiver's core that other programs took in the trials, 0 to 1.
    pub taken_share: f64,
    /// Accuracy and precision at each rate.
    pub rates: Vec<RateRow>,
    /// The reason why there are no rates; none for a generator that can pace.
    pub no_rates: Option<&'static str>,
}

/// The results of a generator at one rate.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct RateRow {
    /// Requested rate, packets per second.
    pub asked_pps: f64,
    /// Number of repetitions with data.
    pub repetitions: usize,
    /// Mean rate of a trial, packets per second: the estimate over the repetitions.
    pub pps: Estimate,
    /// Relative error of the rate: mean rate divided by the requested one, minus one.
    pub rate_error: Estimate,
    /// Mean squared error of the inter-departure times outside of the receiver's interruptions, ns².
    pub mean_squared_error_ns2: Estimate,
    /// Mean squared error of the inter-departure times, without the 0.1 % of them with the largest errors, ns².
    pub trimmed_squared_error_ns2: Estimate,
    /// Mean squared error of all inter-departure times, ns².
    pub all_mean_squared_error_ns2: Estimate,
    /// Median absolute error of the inter-departure times outside of interruptions, ns.
    pub median_absolute_error_ns: Estimate,
    /// 99th percentile of the absolute error of the inter-departure times, ns.
    pub p99_absolute_error_ns: Estimate,
    /// Fraction of the inter-departure times that are less than half as long as requested.
    pub bunched_share: Estimate,
    /// Number of inter-departure times outside of the receiver's interruptions, in all repetitions.
    pub gaps: u64,
    /// Number of inter-departure times outside of the interruptions that are more than 0.1 ms too long.
    pub pauses: u64,
    /// Number of inter-departure times during interruptions of the receiver.
    pub interrupted_gaps: u64,
    /// Number of packets lost in all repetitions because the receiver's ring was full.
    pub overrun: u64,
    /// Fractions of the inter-departure times in bins; a bin is one fiftieth of the requested inter-departure time
    /// wide.
    #[serde(skip)]
    pub shares: Vec<f64>,
}

/// Two generators under the same conditions, compared repetition by repetition.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Comparison {
    /// The name of the compared value, such as `packets per second over memif`.
    pub what: String,
    /// The id of the compared generator of taut.
    pub taut: String,
    /// The id of the best other generator.
    pub peer: String,
    /// The ratio of taut's value to that of the other generator, with its interval; above one if taut is better.
    pub ratio: PairedRatio,
}

/// The evaluated trials of a folder.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The results folder that was evaluated.
    pub results: &'a Results,
    /// One row per generator, in the order in which the results list the generators.
    pub rows: Vec<Row>,
    /// The comparisons of taut with the other generators.
    pub comparisons: Vec<Comparison>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates a results folder.
    pub fn of(results: &'a Results) -> Self {
        let rows = results.head.own.generators.iter().map(|c| row(results, c));
        let mut evaluation = Self {
            results,
            rows: rows.collect(),
            comparisons: Vec::new(),
        };
        evaluation.comparisons = evaluation.compare();
        evaluation
    }

    /// Returns the ratio of `a` to `b`, each a generator and a part, over the repetitions in which both were measured.
    fn ratio(
        &self,
        a: (&str, Part),
        b: (&str, Part),
        figure: fn(&Trial) -> Option<f64>,
    ) -> Option<PairedRatio> {
        let (mut left, mut right) = (Vec::new(), Vec::new());
        for trial in trials(self.results, a.0, a.1) {
            let other = trials(self.results, b.0, b.1).find(|t| t.repetition == trial.repetition);
            if let (Some(a), Some(b)) = (figure(trial), other.and_then(figure)) {
                left.push(a);
                right.push(b);
            }
        }
        ratio_interval(&left, &right, CONFIDENCE)
    }

    /// Compares the highest rate of taut with that of each other generator over the same transport. For each rate, also
    /// compares the mean squared error of taut with that of the best other generator over the same transport at the
    /// same rate. If there is no such generator, the best one over any transport at any rate is used.
    fn compare(&self) -> Vec<Comparison> {
        let mut all = Vec::new();
        for ours in self.rows.iter().filter(is_ours) {
            let over = format!("over {}", ours.transport.name());
            for peer in self
                .rows
                .iter()
                .filter(|row| !is_ours(row) && row.transport == ours.transport)
            {
                let ratio = self.ratio((&ours.id, Part::Unpaced), (&peer.id, Part::Unpaced), |t| {
                    Some(t.pps)
                });
                all.extend(ratio.map(|ratio| Comparison {
                    what: format!("packets per second {over}"),
                    taut: ours.label.clone(),
                    peer: peer.label.clone(),
                    ratio,
                }));
            }
            let rates = ours.rates.iter();
            all.extend(rates.filter_map(|at| self.compare_precision(ours, at)));
        }
        all
    }

    /// Compares the mean squared error of `ours` at one rate; none if no other generator was measured.
    fn compare_precision(&self, ours: &Row, at: &RateRow) -> Option<Comparison> {
        let same = |row: &&Row| !is_ours(row) && row.transport == ours.transport;
        let of = |rows: &[&'_ Row], only_same_rate: bool| {
            let rates = rows
                .iter()
                .flat_map(|row| row.rates.iter().map(move |r| (*row, r)));
            rates
                .filter(|(_, r)| !only_same_rate || r.asked_pps == at.asked_pps)
                .map(|(row, r)| {
                    (
                        row.id.clone(),
                        row.label.clone(),
                        row.transport,
                        r.asked_pps,
                        r.mean_squared_error_ns2.point,
                    )
                })
                .min_by(|a, b| a.4.total_cmp(&b.4))
        };
        let here: Vec<&Row> = self.rows.iter().filter(same).collect();
        let anywhere: Vec<&Row> = self.rows.iter().filter(|row| !is_ours(row)).collect();
        let (id, label, transport, pps, _) = of(&here, true).or_else(|| of(&anywhere, false))?;
        // The other generator's error is the numerator, so the ratio is above one if ours is smaller.
        let ratio = self.ratio(
            (&id, Part::Rate(pps)),
            (&ours.id, Part::Rate(at.asked_pps)),
            squared_error,
        )?;
        let over = ours.transport.name();
        Some(Comparison {
            what: format!("mean squared error at {} over {over}", rate(at.asked_pps)),
            taut: ours.label.clone(),
            peer: format!("{label} at {} over {}", rate(pps), transport.name()),
            ratio,
        })
    }
}

fn is_ours(row: &&Row) -> bool {
    row.program == Program::Taut
}

fn squared_error(trial: &Trial) -> Option<f64> {
    trial.precision.as_ref().map(|p| p.mean_squared_error_ns2)
}

fn trials<'a>(
    results: &'a Results,
    id: &str,
    part: Part,
) -> impl Iterator<Item = &'a Trial> + use<'a> {
    let id = id.to_string();
    let of = move |t: &&Trial| t.generator == id && t.part == part;
    results.outcomes.iter().filter(of)
}

fn row(results: &Results, contender: &Contender) -> Row {
    let pps = |part| {
        let values: Vec<f64> = trials(results, &contender.id, part)
            .map(|t| t.pps)
            .collect();
        Estimate::of(&values)
    };
    let rates = results
        .head
        .own
        .rates
        .iter()
        .filter(|rates| rates.transport == contender.transport && contender.paces())
        .flat_map(|rates| &rates.pps);
    // Over veth, the kernel works for the packets on the receiver's core, which is no interruption by others.
    let is_interrupted = |trial: &&Trial| {
        let is_own = trial.generator == contender.id && trial.seconds > 0.0;
        is_own && contender.transport != Transport::Veth
    };
    let taken: Vec<f64> = results
        .outcomes
        .iter()
        .filter(is_interrupted)
        .map(|trial| trial.interrupted_seconds / trial.seconds)
        .collect();
    let sizes: Vec<f64> = trials(results, &contender.id, Part::Unpaced)
        .map(|t| t.frame_size_bytes)
        .collect();
    Row {
        id: contender.id.clone(),
        label: contender.label.clone(),
        program: contender.program,
        transport: contender.transport,
        unpaced_pps: pps(Part::Unpaced),
        paced_pps: pps(Part::Paced),
        frame_size_bytes: taut_measure::median(&sizes),
        taken_share: taut_measure::median(&taken).unwrap_or_default(),
        rates: rates
            .filter_map(|pps| rate_row(results, contender, *pps))
            .collect(),
        no_rates: (!contender.paces()).then_some(CANNOT_PACE),
    }
}

fn rate_row(results: &Results, contender: &Contender, asked_pps: f64) -> Option<RateRow> {
    let all: Vec<(&Trial, &Precision)> = trials(results, &contender.id, Part::Rate(asked_pps))
        .filter_map(|trial| Some((trial, trial.precision.as_ref()?)))
        .collect();
    let estimate = |figure: &dyn Fn(&Trial, &Precision) -> f64| {
        let values: Vec<f64> = all.iter().map(|(t, p)| figure(t, p)).collect();
        Estimate::of(&values)
    };
    let sum = |figure: fn(&Trial, &Precision) -> u64| all.iter().map(|(t, p)| figure(t, p)).sum();
    let gaps: u64 = sum(|_, p| p.count);
    let bins = all.first().map_or(0, |(_, p)| p.bins.len());
    let in_bin = |bin: usize| -> u64 { all.iter().filter_map(|(_, p)| p.bins.get(bin)).sum() };
    Some(RateRow {
        asked_pps,
        repetitions: all.len(),
        pps: estimate(&|t, _| t.pps)?,
        rate_error: estimate(&|t, _| t.pps / asked_pps - 1.0)?,
        mean_squared_error_ns2: estimate(&|_, p| p.mean_squared_error_ns2)?,
        trimmed_squared_error_ns2: estimate(&|_, p| p.trimmed_squared_error_ns2)?,
        all_mean_squared_error_ns2: estimate(&|t, _| {
            t.all_mean_squared_error_ns2.unwrap_or_default()
        })?,
        median_absolute_error_ns: estimate(&|_, p| p.median_absolute_error_ns)?,
        p99_absolute_error_ns: estimate(&|_, p| p.p99_absolute_error_ns)?,
        bunched_share: estimate(&|_, p| p.bunched_share)?,
        gaps,
        pauses: sum(|_, p| p.pauses),
        interrupted_gaps: sum(|t, _| t.interrupted_gaps),
        overrun: sum(|t, _| t.overrun),
        shares: (0..bins)
            .map(|bin| in_bin(bin) as f64 / gaps.max(1) as f64)
            .collect(),
    })
}

/// Formats the relative error of a rate, with its sign.
pub(super) fn signed(error: f64) -> String {
    let text = share(error.abs());
    match text.as_str() {
        "0 %" => text,
        _ if error < 0.0 => format!("-{text}"),
        _ => format!("+{text}"),
    }
}

impl Row {
    /// Returns the generator's label, with a star if other programs disturbed its trials.
    pub(super) fn marked(&self) -> String {
        marked(&self.label, self.taken_share)
    }
}

/// Returns a line for each generator whose trials other programs disturbed.
pub(super) fn disturbed(rows: &[Row]) -> Vec<String> {
    disturbed_lines(rows.iter().map(|row| (row.label.as_str(), row.taken_share)))
}

/// Returns the tables for a terminal.
pub(super) fn render_text_table(evaluation: &Evaluation<'_>, width: Option<usize>) -> String {
    let mut bandwidth = made(&[
        "generator",
        "over",
        "64-byte frames\nat most",
        "with pacing",
    ]);
    let mut precision = made(&[
        "generator",
        "over",
        "asked",
        "rate\nerror",
        "gap error\nmedian",
        "\np99",
        "MSE\nns2",
        "best\n99.9 %",
        "bunched",
        "pauses",
    ]);
    for row in &evaluation.rows {
        let name = [row.marked(), row.transport.name().to_string()];
        let pps = |e: Option<Estimate>| e.map_or("-".to_string(), |e| rate(e.point));
        let [label, over] = name.clone();
        bandwidth.add_row([label, over, pps(row.unpaced_pps), pps(row.paced_pps)]);
        for at in &row.rates {
            let [label, over] = name.clone();
            precision.add_row([
                label,
                over,
                rate(at.asked_pps),
                signed(at.rate_error.point),
                time(at.median_absolute_error_ns.point),
                time(at.p99_absolute_error_ns.point),
                power(at.mean_squared_error_ns2.point),
                power(at.trimmed_squared_error_ns2.point),
                share(at.bunched_share.point),
                at.pauses.to_string(),
            ]);
        }
    }
    let precision = text(
        precision,
        &[
            (7, "best 99.9 %"),
            (9, "pauses"),
            (6, "mean squared error"),
            (5, "p99 of the gap error"),
            (1, "over"),
        ],
        width,
    );
    let bandwidth = text(bandwidth, &[(1, "over")], width);
    bandwidth + "\n" + &precision + &without_rates(&evaluation.rows)
}

/// Returns a line with the names of the generators without rows in the table of precision; empty if there are none.
fn without_rates(rows: &[Row]) -> String {
    let of = |row: &Row| Some((row.no_rates?, row.label.clone()));
    let (reasons, labels): (Vec<&str>, Vec<String>) = rows.iter().filter_map(of).unzip();
    match reasons.first() {
        Some(reason) => format!("{reason}: {}\n", labels.join(", ")),
        None => String::new(),
    }
}

fn made(header: &[&str]) -> Table {
    let mut table = table::plain();
    table.set_header(header.iter().copied());
    table
}

fn text(mut table: Table, least_important: &[(usize, &str)], width: Option<usize>) -> String {
    table::set_columns(&mut table, Some(2));
    table::text(table, least_important, width)
}

/// Returns a trial without content, for tests.
#[cfg(test)]
pub(super) fn made_up_trial(id: &str, part: Part) -> Trial {
    Trial {
        generator: id.to_string(),
        part,
        repetition: 1,
        frames: 0,
        frame_size_bytes: 64.0,
        seconds: 1.0,
        pps: 0.0,
        overrun: 0,
        foreign: 0,
        interruptions: 0,
        interrupted_seconds: 0.0,
        resolution_ns: 30.0,
        interrupted_gaps: 0,
        precision: None,
        all_mean_squared_error_ns2: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Generators;
    use super::super::facts::{Facts, Rates};
    use super::*;
    use crate::made_up::head;
    use taut_bench::benchmark::Benchmark;

    fn contender(id: &str, program: Program, transport: Transport) -> Contender {
        Contender {
            id: id.to_string(),
            label: id.to_string(),
            program,
            transport,
            port: String::new(),
            note: String::new(),
        }
    }

    /// Returns a trial in which every inter-departure time is off by `error_ns`, alternately too long and too short.
    fn trial(id: &str, repetition: u32, asked_pps: f64, error_ns: f64) -> Trial {
        let asked_ns = 1e9 / asked_pps;
        let mut gaps = [asked_ns - error_ns, asked_ns + error_ns].repeat(500);
        let precision = Precision::of(&mut gaps, asked_ns);
        Trial {
            repetition,
            pps: asked_pps * 0.999,
            all_mean_squared_error_ns2: precision.as_ref().map(|p| p.mean_squared_error_ns2 * 2.0),
            precision,
            ..made_up_trial(id, Part::Rate(asked_pps))
        }
    }

    fn made_up() -> Results {
        let mut trials = Vec::new();
        for repetition in 1..=3 {
            let more = f64::from(repetition);
            let bandwidth = |id: &str, pps| Trial {
                repetition,
                pps,
                ..made_up_trial(id, Part::Unpaced)
            };
            trials.extend([
                bandwidth("ours", 12e6 + more),
                bandwidth("testpmd", 6e6 + more / 2.0),
                trial("ours", repetition, 1e6, 10.0),
                trial("ours-veth", repetition, 1e5, 100.0),
                trial("good", repetition, 1e5, 1_000.0),
                trial("bad", repetition, 1e5, 2_000.0),
            ]);
        }
        let rates = |transport, pps| Rates {
            transport,
            pps: vec![pps],
            why: String::new(),
        };
        let facts = Facts {
            rates: vec![rates(Transport::Memif, 1e6), rates(Transport::Veth, 1e5)],
            generators: vec![
                contender("ours", Program::Taut, Transport::Memif),
                contender("testpmd", Program::Testpmd, Transport::Memif),
                contender("ours-veth", Program::Taut, Transport::Veth),
                contender("good", Program::Trafgen, Transport::Veth),
                contender("bad", Program::Iperf3, Transport::Veth),
            ],
        };
        Results {
            head: head(Generators::DESCRIPTION.schema, facts),
            outcomes: trials,
            problems: Vec::new(),
        }
    }

    #[test]
    fn pacing_and_rate_errors_are_computed_from_the_trials() {
        let results = made_up();
        let evaluation = Evaluation::of(&results);
        let at = &evaluation.rows[0].rates[0];
        assert!((at.mean_squared_error_ns2.point - 100.0).abs() < 1e-6);
        assert!((at.all_mean_squared_error_ns2.point - 200.0).abs() < 1e-6);
        assert!((at.median_absolute_error_ns.point - 10.0).abs() < 1e-6);
        assert!((at.rate_error.point + 0.001).abs() < 1e-9);
        assert_eq!((at.gaps, at.repetitions, at.pauses), (3_000, 3, 0));
        assert!((at.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let testpmd = &evaluation.rows[1];
        assert!(testpmd.rates.is_empty() && testpmd.no_rates == Some(CANNOT_PACE));
        let text = render_text_table(&evaluation, None);
        assert!(
            text.contains(CANNOT_PACE) && text.contains("12.0 Mpkt/s"),
            "{text}"
        );
    }

    #[test]
    fn generators_of_disturbed_trials_are_marked() {
        let mut results = made_up();
        let evaluation = Evaluation::of(&results);
        assert!(disturbed(&evaluation.rows).is_empty());
        let of_testpmd = results.outcomes.iter_mut();
        for trial in of_testpmd.filter(|trial| trial.generator == "testpmd") {
            trial.interrupted_seconds = 0.04;
        }
        let evaluation = Evaluation::of(&results);
        assert_eq!(
            disturbed(&evaluation.rows),
            ["* testpmd: 4.0 % of a core went to other programs"]
        );
        let text = render_text_table(&evaluation, None);
        assert!(
            text.contains("testpmd *") && !text.contains("ours *"),
            "{text}"
        );
    }

    #[test]
    fn taut_is_compared_with_the_best_generator_at_equal_rate() {
        let results = made_up();
        let found = Evaluation::of(&results).comparisons;
        let says: Vec<(String, f64)> = found
            .iter()
            .map(|c| (format!("{} {}", c.taut, c.peer), c.ratio.median.point))
            .collect();
        let expected = [
            ("ours testpmd", 2.0),
            ("ours good at 100 kpkt/s over veth", 10_000.0),
            ("ours-veth good at 100 kpkt/s over veth", 100.0),
        ];
        assert_eq!(says.len(), expected.len(), "{says:?}");
        for ((text, ratio), (expected_text, expected_ratio)) in says.iter().zip(expected) {
            assert_eq!(text, expected_text);
            assert!((ratio / expected_ratio - 1.0).abs() < 1e-6, "{says:?}");
        }
    }

    #[test]
    fn rate_errors_are_printed_with_their_sign() {
        assert_eq!(signed(0.0), "0 %");
        assert_eq!(signed(-0.05), "-5.00 %");
        assert_eq!(signed(0.05), "+5.00 %");
    }
}
