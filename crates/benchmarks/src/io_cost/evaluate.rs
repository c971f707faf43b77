//! Evaluates the trials: medians over the repetitions with their intervals.

use super::facts::Results;
use super::knee::Knee;
use super::part::Part;
use super::trial::{Series, Trial};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use taut_bench::benchmark::Estimate;
use taut_bench::framework::{Events, Framework, Program, Transport};
use taut_figure::table;
use taut_measure::median;
use taut_measure::quantity::{rate, three_digits, time};
use taut_sys::Event;

/// The load in the published check of the model, cycles per packet (Gallenmüller 2021).
pub const CHECKED_LOAD: u32 = 350;

/// The results of a framework.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The framework's id.
    pub id: String,
    /// The framework's name in tables.
    pub label: String,
    /// The framework's forwarding program.
    pub program: Program,
    /// The transport of frames to the framework's forwarder.
    pub transport: Transport,
    /// Number of repetitions with data of this framework.
    pub repetitions: usize,
    /// Number of planned repetitions.
    pub planned: u32,
    /// Offered rate during the increase of the load, packets per second; none without a generator.
    pub offered_pps: Option<f64>,
    /// Median throughput without load, packets per second; none without a trial.
    pub throughput_pps: Option<f64>,
    /// Load at which the throughput begins to decline, cycles per packet. It is 0 for a device that creates its own
    /// frames, and none for a program without load or if no load lowered the throughput.
    pub knee_cycles: Option<Estimate>,
    /// Cycles of input and output per packet just above the knee, the load at which the throughput begins to decline;
    /// none without a knee. The value is f/n - c_task, with clock frequency f, throughput n and load c_task. For a
    /// device that creates its own frames, the value is f/n without load.
    pub io_cycles: Option<Estimate>,
    /// Idle cycles per packet without load at the offered rate (f/n - c_io); none without a generator.
    pub busy_wait_cycles: Option<Estimate>,
    /// Increase of the cycles per packet for each cycle of load above the knee. The slope is 1 if the model holds, and
    /// none with fewer than three loads above the knee.
    pub slope: Option<Estimate>,
    /// Busy cycles per packet without load at the offered rate, as the forwarder itself counts them; none if it does
    /// not count them.
    pub own_cycles: Option<Estimate>,
    /// Busy cycles per packet at saturation with the default burst, as the forwarder itself counts them; none if it
    /// does not count them.
    pub own_saturated_cycles: Option<Estimate>,
    /// Throughput at saturation, packets per second; none without a trial.
    pub saturated_pps: Option<Estimate>,
    /// Mean latency at 95 % of the throughput at saturation, ns; none without a generator.
    pub latency_avg_ns: Option<Estimate>,
    /// Hardware events per packet at saturation with the default burst; empty if no events were counted.
    pub events_saturated: BTreeMap<Event, Estimate>,
    /// Predicted and measured throughput at the load of the published check, packets per second; none if this load is
    /// below the knee.
    pub check_pps: Option<[f64; 2]>,
}

/// The results for one size of the list that packets walk through.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Walk {
    /// The framework's id.
    pub framework: String,
    /// Size of the list, bytes.
    pub list_bytes: u64,
    /// Number of links of the list that each packet follows.
    pub steps: u32,
    /// Median throughput, packets per second.
    pub throughput_pps: f64,
    /// Median number of hardware events per packet; empty if no events were counted.
    pub events: Events,
}

/// Smallest, median and largest result over the repetitions, at one value of the varied quantity.
pub type Spread = [f64; 3];

/// Trials by value of the varied quantity: for each value, one trial per repetition.
#[derive(Debug, Clone, Default)]
pub struct Points<'a, K: Ord> {
    by: BTreeMap<K, Vec<&'a Trial>>,
}

impl<'a, K: Ord + Copy> Points<'a, K> {
    /// Returns the spread of a result at each value of the varied quantity, without the values that have no result.
    pub fn spread(&self, figure: impl Fn(&Trial) -> Option<f64>) -> Vec<(K, Spread)> {
        self.by
            .iter()
            .filter_map(|(key, trials)| {
                let values: Vec<f64> = trials.iter().filter_map(|t| figure(t)).collect();
                Some((*key, spread(&values)?))
            })
            .collect()
    }

    fn at(&self, key: K) -> &[&'a Trial] {
        self.by.get(&key).map_or(&[], Vec::as_slice)
    }
}

/// An evaluated results folder.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The results folder that was evaluated.
    pub results: &'a Results,
    /// One row per framework, in their order.
    pub rows: Vec<Row>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates the trials in a results folder.
    pub fn of(results: &'a Results) -> Self {
        let mut evaluation = Self {
            results,
            rows: Vec::new(),
        };
        let frameworks = results.head.own.frameworks.iter();
        evaluation.rows = frameworks.map(|f| evaluation.row(f)).collect();
        evaluation
    }

    fn series(&self, id: &str, part: Part) -> impl Iterator<Item = &'a Series> {
        let id = id.to_string();
        self.results
            .outcomes
            .iter()
            .filter(move |s| s.framework == id && s.part == part)
    }

    /// Returns the trials by load. If a series repeats a load, the trial with the higher throughput counts.
    pub fn loads(&self, id: &str) -> Points<'a, u32> {
        let mut by: BTreeMap<u32, Vec<&Trial>> = BTreeMap::new();
        for series in self.series(id, Part::Load) {
            let mut best: BTreeMap<u32, &Trial> = BTreeMap::new();
            for trial in &series.trials {
                let known = best.entry(trial.work.burn_cycles).or_insert(trial);
                if trial.throughput_pps > known.throughput_pps {
                    *known = trial;
                }
            }
            for (load, trial) in best {
                by.entry(load).or_default().push(trial);
            }
        }
        Points { by }
    }

    /// Returns the trials by burst: those for latency if `latency` is true, else those for throughput.
    pub fn bursts(&self, id: &str, latency: bool) -> Points<'a, usize> {
        let mut by: BTreeMap<usize, Vec<&Trial>> = BTreeMap::new();
        let series = self.series(id, Part::Batch);
        for trial in series.flat_map(|s| &s.trials) {
            if trial.latency.is_some() == latency {
                by.entry(trial.work.burst).or_default().push(trial);
            }
        }
        Points { by }
    }

    /// Returns the trials by the size, in bytes, of the list that each packet walks.
    pub fn walks(&self, id: &str) -> Points<'a, u64> {
        let mut by: BTreeMap<u64, Vec<&Trial>> = BTreeMap::new();
        for trial in self.series(id, Part::Walk).flat_map(|s| &s.trials) {
            if let Some((_, bytes)) = trial.work.walk {
                by.entry(bytes).or_default().push(trial);
            }
        }
        Points { by }
    }

    /// Returns the cycles per memory access by size of the list. They are meaningful only for a framework without a
    /// generator, because the generator's rate could be the limit.
    pub fn access_cycles(&self, id: &str) -> Vec<(u64, Spread)> {
        let hz = self.results.head.tsc_hz;
        let mut by: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for series in self.series(id, Part::Walk) {
            let Some(bare) = series.trials.iter().find(|t| t.work.walk.is_none()) else {
                continue;
            };
            for trial in &series.trials {
                if let Some((steps, bytes)) = trial.work.walk {
                    let more = hz / trial.throughput_pps - hz / bare.throughput_pps;
                    by.entry(bytes)
                        .or_default()
                        .push(more / f64::from(steps.max(1)));
                }
            }
        }
        by.into_iter()
            .filter_map(|(bytes, values)| Some((bytes, spread(&values)?)))
            .collect()
    }

    /// Returns the busy cycles per packet at saturation with bursts of one packet, as the forwarder itself counts them;
    /// none if it does not count them.
    pub(super) fn alone_cycles(&self, id: &str) -> Option<Estimate> {
        Estimate::of(&figures(self.bursts(id, false).at(1), |t| {
            t.own.busy_cycles
        }))
    }

    /// Returns the results for every list that a framework's packets walked through.
    pub fn walked(&self, id: &str) -> Vec<Walk> {
        let walks = self.walks(id);
        let of = |trials: &[&Trial], figure: &dyn Fn(&Trial) -> Option<f64>| {
            median(&figures(trials, figure))
        };
        let walk = |(bytes, trials): (&u64, &Vec<&Trial>)| {
            Some(Walk {
                framework: id.to_string(),
                list_bytes: *bytes,
                steps: trials.first()?.work.walk?.0,
                throughput_pps: of(trials, &|t| Some(t.throughput_pps))?,
                events: Event::HARDWARE
                    .into_iter()
                    .filter_map(|e| Some((e, of(trials, &|t| t.events.get(&e).copied())?)))
                    .collect(),
            })
        };
        walks.by.iter().filter_map(walk).collect()
    }

    fn knees(&self, id: &str) -> impl Iterator<Item = Knee> {
        self.series(id, Part::Load).filter_map(|s| s.knee)
    }

    /// Returns the cycles of input and output per packet in each repetition: just above the knee, or without load for a
    /// device that creates its own frames.
    fn io_cycles(&self, framework: &Framework, throughputs: &[f64]) -> Vec<f64> {
        let hz = self.results.head.tsc_hz;
        if framework.has_generator() {
            let knees = self.knees(&framework.id);
            knees.filter_map(|knee| knee.io_cycles(hz)).collect()
        } else {
            throughputs.iter().map(|pps| hz / pps).collect()
        }
    }

    /// Returns the load at the knee in each of the `repetitions` that has one.
    fn knee_cycles(&self, framework: &Framework, repetitions: usize) -> Vec<f64> {
        if framework.has_generator() {
            let knees = self.knees(&framework.id);
            knees.filter_map(|knee| knee.at()).collect()
        } else if framework.can_be_loaded() {
            vec![0.0; repetitions]
        } else {
            Vec::new()
        }
    }

    /// Returns the predicted and the measured throughput at the load of the published check; none if this load is below
    /// the knee.
    fn check(
        &self,
        loads: &Points<'_, u32>,
        io: Estimate,
        throughputs: &[f64],
    ) -> Option<[f64; 2]> {
        let hz = self.results.head.tsc_hz;
        let loaded: Vec<f64> = loads
            .at(CHECKED_LOAD)
            .iter()
            .map(|t| t.throughput_pps)
            .collect();
        let measured = median(&loaded)?;
        let alone = hz / (io.point + f64::from(CHECKED_LOAD));
        let plateau = median(throughputs)?;
        // Below the knee the throughput is the offered rate, so there is no prediction to check.
        (alone < plateau).then_some([alone, measured])
    }

    fn row(&self, framework: &Framework) -> Row {
        let head = &self.results.head;
        let hz = head.tsc_hz;
        let estimate = |values: &[f64]| Estimate::of(values);
        let loads = self.loads(&framework.id);
        let unloaded = loads.at(0);
        let of_unloaded = |figure: fn(&Trial) -> Option<f64>| -> Vec<f64> {
            unloaded.iter().filter_map(|t| figure(t)).collect()
        };
        let throughputs = of_unloaded(|t| Some(t.throughput_pps));
        let io = self.io_cycles(framework, &throughputs);
        let knee = self.knee_cycles(framework, throughputs.len());
        let idle: Vec<f64> = self
            .knees(&framework.id)
            .filter_map(|knee| Some(hz / knee.plateau_pps - knee.io_cycles(hz)?))
            .collect();
        let bursts = self.bursts(&framework.id, false);
        let saturated = bursts.at(taut_engine::DEFAULT_BURST);
        let delayed = self.bursts(&framework.id, true);
        let io_cycles = estimate(&io);
        Row {
            id: framework.id.clone(),
            label: framework.label.clone(),
            program: framework.program,
            transport: framework.transport,
            repetitions: self.series(&framework.id, Part::Load).count(),
            planned: head.repetitions,
            offered_pps: median(&of_unloaded(|t| t.offered_pps)),
            throughput_pps: median(&throughputs),
            knee_cycles: estimate(&knee),
            io_cycles,
            busy_wait_cycles: estimate(&idle),
            slope: estimate(&self.slopes(&framework.id)),
            own_cycles: estimate(&of_unloaded(|t| t.own.busy_cycles)),
            own_saturated_cycles: estimate(&figures(saturated, |t| t.own.busy_cycles)),
            saturated_pps: estimate(&figures(saturated, |t| Some(t.throughput_pps))),
            latency_avg_ns: estimate(&figures(delayed.at(taut_engine::DEFAULT_BURST), |t| {
                t.latency.as_ref().map(|l| l.avg_ns)
            })),
            events_saturated: Event::HARDWARE
                .into_iter()
                .filter_map(|event| {
                    let counted = figures(saturated, |t| t.events.get(&event).copied());
                    Some((event, estimate(&counted)?))
                })
                .collect(),
            check_pps: io_cycles.and_then(|io| self.check(&loads, io, &throughputs)),
        }
    }

    /// Returns, for each repetition, the slope of the cycles per packet against the cycles of load above the knee, by
    /// least squares.
    fn slopes(&self, id: &str) -> Vec<f64> {
        let hz = self.results.head.tsc_hz;
        let fit = |series: &Series| {
            let from = series.knee.map_or(Some(0), |knee| knee.declined_at)?;
            let points: Vec<(f64, f64)> = series
                .trials
                .iter()
                .filter(|t| t.work.burn_cycles >= from)
                .map(|t| (f64::from(t.work.burn_cycles), hz / t.throughput_pps))
                .collect();
            slope(&points)
        };
        self.series(id, Part::Load).filter_map(fit).collect()
    }
}

fn figures(trials: &[&Trial], figure: impl Fn(&Trial) -> Option<f64>) -> Vec<f64> {
    trials.iter().filter_map(|t| figure(t)).collect()
}

/// Returns the least-squares slope of a line through at least three points; none with fewer points, or if all points
/// have the same x.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean = |which: fn(&(f64, f64)) -> f64| points.iter().map(which).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (points.len() >= 3 && spread > 0.0).then(|| together / spread)
}

fn spread(values: &[f64]) -> Option<Spread> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some([least, median(values)?, most])
}

/// Formats a value and its interval: `92 (96 % 90 to 95)`; `-` without a value.
fn cycles(estimate: Option<&Estimate>) -> String {
    estimate.map_or("-".to_string(), |e| {
        format!("{} ({})", three_digits(e.point), e.short(three_digits))
    })
}

/// Returns the distinct events among `events`, in the order of tables.
pub(super) fn counted_events<'a>(events: impl Iterator<Item = &'a Event>) -> Vec<Event> {
    let there: std::collections::BTreeSet<Event> = events.copied().collect();
    there.into_iter().collect()
}

/// Columns of the table in the order in which a narrow terminal omits them, after the counted events.
const LEAST_IMPORTANT: [(usize, &str); 7] = [
    (5, "idle at that rate"),
    (3, "knee"),
    (6, "own count"),
    (1, "over"),
    (9, "latency"),
    (2, "offered"),
    (7, "own count, saturated"),
];
const FIRST_EVENT: usize = 10;

/// Returns the table for a terminal with `width` columns.
pub(super) fn render_text_table(rows: &[Row], width: Option<usize>) -> String {
    let mut table = table::plain();
    let mut header: Vec<String> = [
        "framework",
        "over",
        "offered",
        "knee\ncycles",
        "c_IO\ncycles/packet",
        "idle at that rate\ncycles/packet",
        "own count\ncycles/packet",
        "own count, saturated\ncycles/packet",
        "saturated\nat",
        "latency at\n95 % of it",
    ]
    .map(str::to_string)
    .to_vec();
    let counted = counted_events(rows.iter().flat_map(|row| row.events_saturated.keys()));
    let short_label = |event: &Event| format!("{}\nper packet", event.label());
    header.extend(counted.iter().map(short_label));
    table.set_header(header);
    for row in rows {
        let short = |estimate: Option<&Estimate>| {
            estimate.map_or("-".to_string(), |e| three_digits(e.point))
        };
        let mut cells = vec![
            row.label.clone(),
            row.transport.name().to_string(),
            row.offered_pps.map_or("-".to_string(), rate),
            short(row.knee_cycles.as_ref()),
            cycles(row.io_cycles.as_ref()),
            short(row.busy_wait_cycles.as_ref()),
            short(row.own_cycles.as_ref()),
            short(row.own_saturated_cycles.as_ref()),
            row.saturated_pps.map_or("-".to_string(), |e| rate(e.point)),
            row.latency_avg_ns
                .map_or("-".to_string(), |e| time(e.point)),
        ];
        let counts = counted.iter().map(|e| row.events_saturated.get(e));
        cells.extend(counts.map(short));
        table.add_row(cells);
    }
    table::set_columns(&mut table, Some(2));
    let events = (FIRST_EVENT..).zip(counted.iter().map(|event| event.label()));
    let order: Vec<(usize, &str)> = events.chain(LEAST_IMPORTANT).collect();
    table::text(table, &order, width)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::IoCost;
    use super::super::facts::{Facts, HardwareCounters};
    use super::super::knee::Knee;
    use super::*;
    use crate::made_up::head;
    use taut_bench::benchmark::Benchmark;
    use taut_bench::framework::{Own, Work};

    #[test]
    fn an_estimate_is_printed_as_median_with_its_range() {
        let estimate = Estimate::of(&[90.0, 100.0, 95.0, 102.0, 91.0]).unwrap();
        assert_eq!(cycles(Some(&estimate)), "95.0 (range of 5: 90.0 to 102)");
    }

    const HZ: f64 = 2.6e9;

    /// Returns results of a null framework that costs 40 cycles and a memif framework that costs 100, at 10 Mpkt/s
    /// offered. Every repetition after the first costs 10 cycles more.
    pub(in super::super) fn made_up() -> Results {
        let (frameworks, _) = super::super::framework::possible();
        let wanted = |f: &Framework| ["null", "memif"].contains(&f.id.as_str());
        let frameworks: Vec<Framework> = frameworks.into_iter().filter(wanted).collect();
        let mut series = Vec::new();
        for framework in &frameworks {
            for repetition in 1..=3 {
                series.extend(series_of(framework, repetition));
            }
        }
        let facts = Facts {
            steps: 10,
            frame_size_bytes: 64,
            frameworks,
            hardware_counters: HardwareCounters::NoData("made up".to_string()),
            ..Facts::default()
        };
        Results {
            head: head(IoCost::DESCRIPTION.schema, facts),
            outcomes: series,
            problems: Vec::new(),
        }
    }

    fn series_of(framework: &Framework, repetition: u32) -> Vec<Series> {
        let more = f64::from(repetition - 1) * 10.0;
        let (io, offered) = if framework.has_generator() {
            (100.0 + more, Some(10e6))
        } else {
            (40.0 + more, None)
        };
        let trial = |work: Work, cycles: f64| Trial {
            work,
            offered_pps: offered,
            sent_pps: offered,
            throughput_pps: (HZ / cycles).min(offered.unwrap_or(f64::MAX)),
            own: Own {
                busy_cycles: Some(cycles),
                average_batch: None,
                pps: None,
            },
            events: Events::new(),
            latency: None,
            generator_behind: false,
        };
        let load = |burn_cycles: u32| {
            let work = Work {
                burn_cycles,
                ..Work::default()
            };
            trial(work, io + f64::from(burn_cycles))
        };
        let walk = |walk: Option<(u32, u64)>, access: f64| {
            let work = Work {
                walk,
                ..Work::default()
            };
            trial(work, io + 10.0 * access)
        };
        let whole = |part, knee, trials| Series {
            framework: framework.id.clone(),
            part,
            repetition,
            capacity_pps: offered,
            knee,
            trials,
        };
        let loads = vec![load(0), load(100), load(200), load(350), load(1_000)];
        let knee = framework.has_generator().then(|| Knee {
            plateau_pps: 10e6,
            holds_at: 150,
            declined_at: Some(200),
            declined_pps: Some(loads[2].throughput_pps),
        });
        let walks = vec![
            walk(None, 0.0),
            walk(Some((10, 4096)), 5.0),
            walk(Some((10, 1 << 20)), 25.0),
        ];
        vec![
            whole(Part::Load, knee, loads),
            whole(Part::Batch, None, vec![load(0)]),
            whole(Part::Walk, None, walks),
        ]
    }

    #[test]
    fn costs_knees_and_predictions_are_computed_from_the_trials() {
        let results = made_up();
        let rows = Evaluation::of(&results).rows;
        let (null, memif) = (&rows[0], &rows[1]);
        let io = null.io_cycles.unwrap();
        assert!((io.point - 50.0).abs() < 1e-6 && io.low >= 40.0 - 1e-6 && io.high <= 60.0 + 1e-6);
        assert_eq!(null.knee_cycles.unwrap().point, 0.0);
        assert!((memif.io_cycles.unwrap().point - 110.0).abs() < 1e-6);
        assert_eq!(memif.knee_cycles.unwrap().point, 175.0);
        // At 10 Mpkt/s there are 260 cycles per packet, of which 110 are used.
        assert!((memif.busy_wait_cycles.unwrap().point - 150.0).abs() < 1e-6);
        assert!((memif.own_cycles.unwrap().point - 110.0).abs() < 1e-6);
        for row in [null, memif] {
            assert!((row.slope.unwrap().point - 1.0).abs() < 1e-6, "{row:?}");
            let [predicted, measured] = row.check_pps.unwrap();
            assert!((predicted / measured - 1.0).abs() < 1e-6, "{row:?}");
            assert_eq!((row.repetitions, row.planned), (3, 3));
        }
        assert!(render_text_table(&rows, None).contains("50.0 (range of 3: 40.0 to 60.0)"));
    }

    #[test]
    fn event_counts_are_displayed_per_packet_and_only_if_counted() {
        let mut results = made_up();
        let nothing = Evaluation::of(&results).rows;
        assert!(nothing.iter().all(|row| row.events_saturated.is_empty()));
        assert!(!render_text_table(&nothing, None).contains("misses"));
        for series in results
            .outcomes
            .iter_mut()
            .filter(|s| s.framework == "memif")
        {
            let count = f64::from(series.repetition);
            for trial in &mut series.trials {
                trial.events = [(Event::L1dReadMisses, count), (Event::LlcMisses, 0.25)].into();
            }
        }
        let evaluation = Evaluation::of(&results);
        let (null, memif) = (&evaluation.rows[0], &evaluation.rows[1]);
        assert!(null.events_saturated.is_empty());
        assert_eq!(memif.events_saturated[&Event::L1dReadMisses].point, 2.0);
        let table = render_text_table(&evaluation.rows, None);
        assert!(
            table.contains("L1d read misses") && table.contains("0.25"),
            "{table}"
        );
        let walked = evaluation.walked("memif");
        assert_eq!(walked.len(), 2);
        assert_eq!((walked[1].list_bytes, walked[1].steps), (1 << 20, 10));
        assert_eq!(walked[1].events[&Event::LlcMisses], 0.25);
        assert!(
            evaluation
                .walked("null")
                .iter()
                .all(|w| w.events.is_empty())
        );
    }

    #[test]
    fn cycles_per_access_equal_the_cost_increase_per_walk_step() {
        let results = made_up();
        let access = Evaluation::of(&results).access_cycles("null");
        assert_eq!(access.len(), 2);
        assert!((access[0].1[1] - 5.0).abs() < 1e-6 && (access[1].1[1] - 25.0).abs() < 1e-6);
    }

    #[test]
    fn a_slope_needs_three_points_and_different_x_values() {
        let line: Vec<(f64, f64)> = (0..5)
            .map(|i| (f64::from(i), 100.0 + 1.5 * f64::from(i)))
            .collect();
        assert!((slope(&line).unwrap() - 1.5).abs() < 1e-9);
        assert_eq!(slope(&line[..2]), None);
        assert_eq!(slope(&[(1.0, 1.0); 4]), None);
    }
}
