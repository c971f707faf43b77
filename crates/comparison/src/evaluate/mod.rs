//! Evaluates a results folder for figures, tables and the report: pools the repetitions of each device, and computes
//! their spread and the ratios between devices.

mod disturbance;
mod load;
mod ratio;
mod table;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use taut_bench::evaluate::{Causes, Collector, RunCauses, Timeline};
use taut_host::EnergyUse;
use taut_measure::{
    Interval, JitterRecorder, JitterSummary, LatencyHistogram, Limit, Summary, mean_beside_median,
};

use taut_results::{CbrResult, DeviceInfo, Results, Run};

pub use disturbance::Disturbance;
pub use load::LoadPoint;
pub(crate) use ratio::headline_pair;
pub use ratio::{MEDIAN, Ratio, policy, ratios};
pub use table::{Row, disturbed_rows, render_text_table, rows};

/// Confidence of an interval over at least six repetitions. An interval over fewer repetitions has its own, lower
/// confidence.
pub const CONFIDENCE: f64 = 0.95;

/// The evaluated results of all devices of an experiment.
#[derive(Debug)]
pub struct Evaluation {
    /// Devices in the order of the experiment. Devices without data are included, and empty.
    pub devices: Vec<Device>,
    /// The missing or unreadable files, one sentence each.
    pub problems: Vec<String>,
}

/// The results of one device, pooled over its repetitions.
#[derive(Debug)]
pub struct Device {
    /// The device that was measured.
    pub info: DeviceInfo,
    /// Index of the device in the experiment, which decides its colour in figures.
    pub index: usize,
    /// Number of planned repetitions.
    pub planned: u32,
    /// Results at the constant rate, by repetition.
    pub cbr: BTreeMap<u32, CbrResult>,
    /// Disturbance of the measurement at the constant rate, by repetition.
    pub disturbances: BTreeMap<u32, Disturbance>,
    /// Latency of each repetition, from the send timestamp.
    pub latencies: BTreeMap<u32, LatencyHistogram>,
    /// Latency of all repetitions, from the send timestamp.
    pub latency: LatencyHistogram,
    /// Latency of all repetitions, from the intended send time.
    pub latency_from_intended: LatencyHistogram,
    /// Differences between the latencies of successive packets, of all repetitions.
    pub jitter: LatencyHistogram,
    /// The slowest packets, and a selection of the others, over time.
    pub timeline: Timeline,
    /// The causes of the slowest packets; none without runs that logged interruptions.
    pub causes: Option<Causes>,
    /// Latency over offered rate, in increasing order of the rate.
    pub load: Vec<LoadPoint>,
    /// Highest loss-free rate by repetition.
    pub loss_free_pps: BTreeMap<u32, f64>,
    /// The reasons that ended the searches for the highest loss-free rate, each reason once.
    pub limited_by: Vec<Limit>,
}

/// Smallest, median and largest value over some repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Spread {
    /// Smallest value over the repetitions.
    pub min: f64,
    /// Median of the values over the repetitions.
    pub median: f64,
    /// Largest value over the repetitions.
    pub max: f64,
    /// Number of values from which the spread was computed.
    pub count: usize,
}

impl Spread {
    /// Returns the spread of the finite values; `None` without any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[half]
        } else {
            (values[half - 1] + values[half]) / 2.0
        };
        Some(Spread {
            min: first,
            median,
            max: last,
            count: values.len(),
        })
    }
}

impl Evaluation {
    /// Pools the results of the folder. It reads every sample once, block by block.
    pub fn of(results: &Results) -> Evaluation {
        let mut problems = results.problems.clone();
        let devices = results
            .experiment
            .devices
            .iter()
            .enumerate()
            .map(|(index, info)| {
                let runs: Vec<&Run> = results
                    .runs
                    .iter()
                    .filter(|run| run.device_id == info.id)
                    .collect();
                Device::of(
                    info,
                    index,
                    results.experiment.settings.repetitions,
                    &runs,
                    &mut problems,
                )
            })
            .collect();
        Evaluation { devices, problems }
    }
}

impl Device {
    fn of(
        info: &DeviceInfo,
        index: usize,
        planned: u32,
        runs: &[&Run],
        problems: &mut Vec<String>,
    ) -> Device {
        let mut device = Device {
            load: load::points(runs),
            ..Device::new(info, index, planned)
        };
        for run in runs {
            device.add_constant_rate(run, problems);
            device.add_sweep(run, problems);
        }
        if let Err(error) = device.read_samples(runs) {
            problems.push(error.to_string());
        }
        for latency in device.latencies.values() {
            device.latency.merge(latency);
        }
        device
    }

    /// Returns a device for which no repetition was added yet.
    pub(crate) fn new(info: &DeviceInfo, index: usize, planned: u32) -> Device {
        Device {
            info: info.clone(),
            index,
            planned,
            cbr: BTreeMap::new(),
            disturbances: BTreeMap::new(),
            latencies: BTreeMap::new(),
            latency: LatencyHistogram::new(),
            latency_from_intended: LatencyHistogram::new(),
            jitter: LatencyHistogram::new(),
            timeline: Timeline::default(),
            causes: None,
            load: Vec::new(),
            loss_free_pps: BTreeMap::new(),
            limited_by: Vec::new(),
        }
    }

    /// Adds the summary of a run at the constant rate, and its disturbance.
    pub(crate) fn add_constant_rate(&mut self, run: &Run, problems: &mut Vec<String>) {
        if let Some(cbr) = &run.cbr {
            let disturbance = Disturbance::of(run, cbr);
            self.disturbances.insert(run.repetition, disturbance);
            self.cbr.insert(run.repetition, cbr.clone());
        } else {
            problems.push(format!(
                "{}, repetition {}: no measurement at the constant rate",
                self.info.id, run.repetition
            ));
        }
    }

    /// Adds the highest loss-free rate of a run.
    fn add_sweep(&mut self, run: &Run, problems: &mut Vec<String>) {
        match run
            .sweep
            .as_ref()
            .and_then(|sweep| sweep.search.as_ref())
            .filter(|search| search.complete)
        {
            Some(search) => {
                // A repetition without any loss-free rate counts as zero. Skipping it would make the device look
                // better.
                if search.loss_free_pps.is_none() {
                    problems.push(format!(
                        "{}, repetition {}: no rate held, which counts as 0, and in no ratio",
                        self.info.id, run.repetition
                    ));
                }
                let held_pps = search.loss_free_pps.unwrap_or(0.0);
                self.loss_free_pps.insert(run.repetition, held_pps);
                if !self.limited_by.contains(&search.limited_by) {
                    self.limited_by.push(search.limited_by);
                }
            }
            None => problems.push(format!(
                "{}, repetition {}: no finished sweep",
                self.info.id, run.repetition
            )),
        }
    }

    fn read_samples(&mut self, runs: &[&Run]) -> Result<(), taut_results::ResultsError> {
        let mut readers = Vec::new();
        for run in runs {
            let causes = RunCauses::of(run);
            let reader = run.samples()?;
            readers.extend(reader.map(|reader| (run.repetition, reader, causes)));
        }
        let total = readers.iter().map(|(_, reader, _)| reader.rows()).sum();
        let mut timeline = Collector::new(total);
        for (repetition, mut reader, mut causes) in readers {
            let latency = self.latencies.entry(repetition).or_default();
            let mut jitter = JitterRecorder::new();
            timeline.begin_repetition();
            while let Some(block) = reader.next_block()? {
                for sample in block {
                    let cause = causes.as_mut().and_then(|causes| causes.of_next(&sample));
                    timeline.record(&sample, cause);
                    if let Some(latency_ns) = sample.latency_ns.map(u64::from) {
                        latency.record(latency_ns);
                        self.latency_from_intended
                            .record(latency_ns.saturating_add(sample.send_delay_ns.into()));
                        jitter.record(sample.sequence, latency_ns);
                    }
                }
            }
            self.jitter.merge(jitter.histogram());
            if let Some(causes) = causes {
                self.causes.get_or_insert_default().merge(causes.finish());
            }
        }
        self.timeline = timeline.finish();
        Ok(())
    }

    /// Returns the latency of all repetitions, from the samples; none if no repetition measured latency. Without
    /// samples it is pooled from the summaries of the runs, without percentiles, which cannot be pooled.
    pub fn latency_summary(&self) -> Option<Summary> {
        Summary::from_histogram(&self.latency).or_else(|| {
            let summaries: Vec<&Summary> = self
                .cbr
                .values()
                .filter_map(|cbr| cbr.latency.as_ref())
                .collect();
            match summaries.as_slice() {
                [] => None,
                [only] => Some((*only).clone()),
                many => Some(pool(many)),
            }
        })
    }

    /// Returns the jitter of all repetitions; `None` without samples.
    pub fn jitter_summary(&self) -> Option<JitterSummary> {
        Some(JitterSummary {
            count: self.jitter.count(),
            avg_ns: self.jitter.mean_ns()?,
            max_ns: self.jitter.max_ns()?,
            std_ns: self.jitter.std_ns()?,
        })
    }

    /// Returns the value that `figure` selects from each repetition's latency summary, by repetition.
    pub fn per_repetition(&self, figure: impl Fn(&Summary) -> Option<f64>) -> BTreeMap<u32, f64> {
        let of = |cbr: &CbrResult| figure(cbr.latency.as_ref()?);
        self.cbr
            .iter()
            .filter_map(|(repetition, cbr)| Some((*repetition, of(cbr)?)))
            .collect()
    }

    /// Returns the mean, over the repetitions, of the value that `figure` selects from the energy use; none if no
    /// repetition has the value.
    pub fn mean_energy(&self, figure: impl Fn(&EnergyUse) -> Option<f64>) -> Option<f64> {
        let of = |cbr: &CbrResult| figure(cbr.energy.as_ref()?);
        let found: Vec<f64> = self.cbr.values().filter_map(of).collect();
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    }

    /// Returns an estimate from the repetitions' mean latencies, ns: their mean, and the confidence interval of their
    /// median. None without latencies.
    pub fn average_interval(&self) -> Option<Interval> {
        let averages: Vec<f64> = self
            .per_repetition(|latency| Some(latency.avg_ns))
            .into_values()
            .collect();
        mean_beside_median(&averages, CONFIDENCE)
    }

    /// Returns the spread of the highest loss-free rate over the repetitions, packets per second; none without a
    /// search.
    pub fn loss_free_spread(&self) -> Option<Spread> {
        Spread::of(self.loss_free_pps.values().copied())
    }
}

/// Returns count, extremes, mean and deviation of several summaries combined.
fn pool(summaries: &[&Summary]) -> Summary {
    let count: u64 = summaries.iter().map(|summary| summary.count).sum();
    let weighted = |value: &dyn Fn(&Summary) -> f64| -> f64 {
        summaries
            .iter()
            .map(|summary| summary.count as f64 * value(summary))
            .sum::<f64>()
            / count as f64
    };
    let avg_ns = weighted(&|summary| summary.avg_ns);
    let variance = weighted(&|summary| summary.std_ns.powi(2) + (summary.avg_ns - avg_ns).powi(2));
    Summary {
        count,
        min_ns: summaries
            .iter()
            .map(|summary| summary.min_ns)
            .min()
            .unwrap_or(0),
        avg_ns,
        p50_ns: None,
        p90_ns: None,
        p95_ns: None,
        p99_ns: None,
        p99_9_ns: None,
        p99_99_ns: None,
        p99_999_ns: None,
        max_ns: summaries
            .iter()
            .map(|summary| summary.max_ns)
            .max()
            .unwrap_or(0),
        std_ns: variance.sqrt(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn pooled_summaries_equal_the_summary_of_all_samples() {
        let (a, b) = ([5u64, 9, 40], [1u64, 2]);
        let pooled = pool(&[
            &Summary::from_samples(&a).unwrap(),
            &Summary::from_samples(&b).unwrap(),
        ]);
        let all = Summary::from_samples(&[5u64, 9, 40, 1, 2]).unwrap();
        assert_eq!(
            (pooled.count, pooled.min_ns, pooled.max_ns),
            (all.count, all.min_ns, all.max_ns)
        );
        assert!(
            (pooled.avg_ns - all.avg_ns).abs() < 1e-9 && (pooled.std_ns - all.std_ns).abs() < 1e-9
        );
    }

    #[test]
    fn a_spread_ignores_nan_values() {
        let spread = Spread::of([3.0, f64::NAN, 1.0]).unwrap();
        assert_eq!(
            (spread.min, spread.median, spread.max, spread.count),
            (1.0, 2.0, 3.0, 2)
        );
        assert_eq!(Spread::of([]), None);
    }
}
