//! The finding: a few sentences computed from the data, which the terminal and the page show alike. Every number in
//! these sentences is measured, or marked as published.

use crate::evaluate::{Device, Evaluation, MEDIAN, Ratio, policy};
use taut_measure::quantity::{ratio, three_digits, time};
use taut_results::{Completion, Experiment};

/// Maximum number of sentences in the finding.
const MOST_SENTENCES: usize = 3;

/// Returns up to three sentences about the results of the experiment, the most important one first. A ratio with a
/// reason in [`Ratio::withheld`] is not in a sentence.
pub fn sentences(
    experiment: &Experiment,
    evaluation: &Evaluation,
    ratios: &[Ratio],
) -> Vec<String> {
    let find = |figure: &str, over: &str, under: &str| {
        ratios.iter().find(|ratio| {
            ratio.figure == figure
                && ratio.withheld.is_none()
                && has(evaluation, &ratio.over, over)
                && has(evaluation, &ratio.under, under)
        })
    };
    let mut sentences = Vec::new();
    if let Some(found) = find(MEDIAN, "full", "each") {
        let rate = three_digits(experiment.settings.rate_pps / 1e3);
        sentences.extend(full_buffers(evaluation, found, &rate));
    }
    if let Some(found) = find("highest loss-free rate", "each", "full") {
        sentences.push(if found.found.point < 0.995 {
            format!(
                "Sending each packet at once costs {} % of the highest loss-free rate ({}; published: 57 %, on other hardware).",
                three_digits((1.0 - found.found.point) * 100.0),
                found.found.words(ratio)
            )
        } else {
            format!(
                "Sending each packet at once costs no throughput here: {} the loss-free rate ({}; published: 0.43×, on other hardware).",
                ratio(found.found.point),
                found.found.words(ratio)
            )
        });
    }
    if let Some(found) = find(MEDIAN, "idle", "each") {
        let rate = find("highest loss-free rate", "idle", "full");
        sentences.push(about_idle(found, rate));
    }
    if sentences.is_empty() {
        sentences.extend(against_the_first(evaluation, ratios));
    }
    if sentences.is_empty() {
        sentences.push(nothing(experiment, ratios));
    }
    sentences.truncate(MOST_SENTENCES);
    sentences
}

/// Compares the policies `full` and `each` by their median latencies; none if a median is unknown.
fn full_buffers(evaluation: &Evaluation, found: &Ratio, rate_kpps: &str) -> Option<String> {
    let [full, each] = [&found.over, &found.under].map(|id| {
        let mut devices = evaluation.devices.iter();
        let device = devices.find(|device| device.info.id == **id)?;
        Some(time(median_ns(device)?))
    });
    let (full, each) = (full?, each?);
    Some(format!(
        "At {rate_kpps} kpkt/s, packets that wait for a full buffer or its drain timer take {} as long at the median as packets that are \
         sent at once: {full} against {each} ({}).",
        ratio(found.found.point),
        found.found.words(ratio)
    ))
}

/// Returns the median, over the repetitions, of the median latency, ns; none if no repetition has a median.
fn median_ns(device: &Device) -> Option<f64> {
    let medians = device.per_repetition(|latency| Some(latency.p50_ns? as f64));
    taut_measure::median(&medians.into_values().collect::<Vec<_>>())
}

/// Compares the policy `idle` with `each` by the median latency, and with `full` by the loss-free rate if `rate` is
/// given.
fn about_idle(p50: &Ratio, rate: Option<&Ratio>) -> String {
    let mut sentence = format!(
        "Packets that are sent when the receive queue runs dry (idle) take {} as long at the median as packets that are sent at once ({})",
        ratio(p50.found.point),
        p50.found.words(ratio)
    );
    if let Some(rate) = rate {
        sentence.push_str(&format!(
            ", at {} the loss-free rate of the full buffer",
            ratio(rate.found.point)
        ));
    }
    sentence + "."
}

/// Compares the median latencies of devices that are not in the publication (Stylianopoulos et al., DEBS 2020): each
/// device with the first named one.
fn against_the_first(evaluation: &Evaluation, ratios: &[Ratio]) -> Vec<String> {
    let label = |id: &str| {
        let mut devices = evaluation.devices.iter();
        let device = devices.find(|device| device.info.id == id);
        device.map_or(id.to_owned(), |device| device.info.label.clone())
    };
    let medians = ratios
        .iter()
        .filter(|ratio| ratio.figure == MEDIAN && ratio.withheld.is_none());
    medians
        .map(|found| {
            format!(
                "{} has {} the median latency of {} ({}).",
                label(&found.over),
                ratio(found.found.point),
                label(&found.under),
                found.found.words(ratio)
            )
        })
        .collect()
}

fn nothing(experiment: &Experiment, ratios: &[Ratio]) -> String {
    let withheld = ratios.iter().find_map(|ratio| ratio.withheld.as_ref());
    let why = match (experiment.manifest.completion, withheld) {
        (_, Some(reason)) => reason.as_str(),
        (Completion::Finished, None) => "no two devices were measured twice",
        _ => "the experiment did not come far enough",
    };
    format!("No comparison can be stated: {why}.")
}

fn has(evaluation: &Evaluation, id: &str, wanted: &str) -> bool {
    let device = evaluation
        .devices
        .iter()
        .find(|device| device.info.id == id);
    device.and_then(policy) == Some(wanted)
}
