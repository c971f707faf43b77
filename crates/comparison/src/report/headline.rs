//! The first sentence of the finding while the runs of a comparison are still being made. It needs only the median
//! latencies of two devices, so each new run is read once, without its samples.

use super::finding::sentences;
use crate::evaluate::{Device, Evaluation, MEDIAN, Ratio, headline_pair, ratios};
use taut_measure::{LEAST_PAIRS, LatencyHistogram};
use taut_results::{Experiment, Run, read};

/// Maximum number of sentences that are printed about one comparison while its runs are in progress.
const MOST_LINES: u32 = 3;

/// The first sentence about a comparison whose runs are in progress.
#[derive(Debug)]
pub struct Headline {
    /// The comparison, with the two compared devices only.
    experiment: Experiment,
    evaluation: Evaluation,
    told: Told,
    /// Number of sentences that [`Self::news`] has returned.
    lines: u32,
}

/// The kind of the last sentence that was printed about the comparison.
#[derive(Debug, Clone, Copy)]
enum Told {
    Nothing,
    /// The sentence said that the ratio is not stated.
    Withheld,
    /// The sentence stated the ratio; the value is the logarithm of its upper bound over its lower bound.
    Stated(f64),
}

impl Headline {
    /// Creates the state without runs; `None` if the comparison has fewer than two forwarders.
    pub fn begin(experiment: &Experiment) -> Option<Self> {
        let mut pair = headline_pair(&experiment.devices)?;
        // Devices are in the order of the experiment, as in the report.
        pair.sort_unstable();
        let mut experiment = experiment.clone();
        experiment.devices = pair.map(|index| experiment.devices[index].clone()).to_vec();
        let planned = experiment.settings.repetitions;
        let devices = experiment.devices.iter().zip(pair);
        let devices = devices.map(|(info, index)| Device::new(info, index, planned));
        let evaluation = Evaluation {
            devices: devices.collect(),
            problems: Vec::new(),
        };
        Some(Self {
            experiment,
            evaluation,
            told: Told::Nothing,
            lines: 0,
        })
    }

    /// Returns whether the sentence is about this device.
    pub fn is_about(&self, device_id: &str) -> bool {
        let mut devices = self.experiment.devices.iter();
        devices.any(|device| device.id == device_id)
    }

    /// Adds a run of one of the two devices. A run without readable latencies is skipped; the report names it.
    pub fn add(&mut self, run: &Run) {
        let Evaluation { devices, problems } = &mut self.evaluation;
        let device = devices.iter_mut().find(|it| it.info.id == run.device_id);
        let log = read(&run.dir, &format!("{}/latency.hlog", run.name)).ok();
        let latency = log.and_then(|log| LatencyHistogram::read_hlog(&log).ok());
        if let (Some(device), Some(latency)) = (device, latency) {
            device.add_constant_rate(run, problems);
            device.latencies.insert(run.repetition, latency);
        }
    }

    /// Returns the sentence if there is something new to say: the first statement, one after a withheld ratio, or one
    /// with an interval of less than half the width. There are at most three sentences.
    pub fn news(&mut self) -> Option<String> {
        let all = ratios(&self.evaluation.devices);
        let median = all.iter().find(|ratio| ratio.figure == MEDIAN)?;
        let now = Told::of(median);
        let is_news = match (self.told, now) {
            // A withheld ratio is reported only after enough repetitions.
            (Told::Nothing, Told::Withheld) => median.found.count >= LEAST_PAIRS,
            (Told::Nothing | Told::Withheld, Told::Stated(_)) => true,
            (Told::Stated(before), Told::Stated(width)) => 2.0 * width < before,
            _ => false,
        };
        if !is_news || self.lines == MOST_LINES {
            return None;
        }
        self.told = now;
        self.lines += 1;
        let ratios = std::slice::from_ref(median);
        let sentences = sentences(&self.experiment, &self.evaluation, ratios);
        sentences.into_iter().next()
    }
}

impl Told {
    fn of(ratio: &Ratio) -> Self {
        match ratio.withheld {
            Some(_) => Self::Withheld,
            None => Self::Stated((ratio.found.high / ratio.found.low).ln()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::synthetic::{self, Plan};
    use taut_results::Results;

    /// Returns results of eight repetitions, and the folder that contains them.
    fn made_up() -> (tempfile::TempDir, Results) {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("made-up");
        let plan = Plan {
            repetitions: 8,
            packets: 3_000,
            seed: 7,
        };
        synthetic::write(&dir, &plan);
        let results = Results::load(&dir).unwrap();
        (parent, results)
    }

    #[test]
    fn the_first_comparison_is_printed_after_the_third_repetition() {
        let (_parent, mut results) = made_up();
        let mut headline = Headline::begin(&results.experiment).unwrap();
        results.runs.retain(|run| headline.is_about(&run.device_id));
        assert_eq!(results.runs.len(), 2 * 8);
        results.runs.sort_by_key(|run| run.repetition);
        let mut told = Vec::new();
        for (index, run) in results.runs.iter().enumerate() {
            headline.add(run);
            told.extend(headline.news().map(|sentence| (index + 1, sentence)));
        }
        let (after, first) = &told[0];
        assert_eq!(*after, 6, "{told:?}");
        assert!(
            first.starts_with("At 100 kpkt/s") && first.contains("n = 3"),
            "{first}"
        );
        assert!(told.len() <= 3, "{told:?}");
    }

    #[test]
    fn a_missing_comparison_is_explained_after_the_third_repetition() {
        let (_parent, mut results) = made_up();
        // The medians of these two are almost equal, and other programs took much of the time at first.
        let alike = ["memif-each", "memif-idle"];
        let is_alike = |id: &str| alike.contains(&id);
        results.experiment.devices.retain(|it| is_alike(&it.id));
        let mut headline = Headline::begin(&results.experiment).unwrap();
        results.runs.retain(|run| headline.is_about(&run.device_id));
        results.runs.sort_by_key(|run| run.repetition);
        let mut told = Vec::new();
        for (index, run) in results.runs.iter_mut().enumerate() {
            run.taken = Some(if index < 6 { 0.45 } else { 0.0 });
            headline.add(run);
            told.extend(headline.news().map(|sentence| (index + 1, sentence)));
        }
        let (after, first) = &told[0];
        assert_eq!(*after, 6, "{told:?}");
        assert!(
            first.starts_with("No comparison can be stated: 45.0 % of a core"),
            "{first}"
        );
    }

    #[test]
    fn a_single_forwarder_yields_no_comparison() {
        let mut experiment = synthetic::experiment(&synthetic::SMALL);
        experiment
            .devices
            .retain(|it| ["memif-idle", "memif-loop"].contains(&it.id.as_str()));
        assert!(Headline::begin(&experiment).is_none());
    }
}
