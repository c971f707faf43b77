//! The finding: one paragraph computed from the data. Every number in it is measured, or marked as published.

use crate::evaluate::{Evaluation, Ratio, Spread};
use taut_measure::quantity::{ratio, three_digits, time};
use taut_results::{Completion, Results};

/// Returns the result of the experiment.
pub fn paragraph(results: &Results, evaluation: &Evaluation, ratios: &[Ratio]) -> String {
    let mut sentences = Vec::new();
    let find = |figure: &str, over: &str, under: &str| {
        ratios.iter().find(|ratio| {
            ratio.figure == figure
                && has(evaluation, &ratio.over, over)
                && has(evaluation, &ratio.under, under)
        })
    };
    // The median of the repetitions' means is used, because the ratio next to it is the median of the repetitions'
    // ratios. Otherwise one disturbed repetition could make the two contradict each other.
    let average = |id: &str| {
        let device = evaluation
            .devices
            .iter()
            .find(|device| device.info.id == id)?;
        let averages = device.per_repetition(|latency| Some(latency.avg_ns));
        Some(time(Spread::of(averages.into_values())?.median))
    };
    if let Some(found) = find("average latency", "full", "each") {
        let (Some(full), Some(each)) = (average(&found.over), average(&found.under)) else {
            return nothing(results);
        };
        sentences.push(format!(
            "At {} kpkt/s, forwarding each packet at once had a {} lower average latency than waiting for a full buffer or its drain timer: \
             {each} against {full}, medians of the repetitions (published: 9.8×, 5.7 µs against 56.1 µs, on other hardware).",
            three_digits(results.experiment.settings.rate_pps / 1e3),
            ratio(found.found.point),
        ));
    }
    if let Some(found) = find("highest loss-free rate", "each", "full") {
        sentences.push(if found.found.point < 0.995 {
            format!("It gave up {} % of the highest loss-free rate for it (published: 57 %).", three_digits((1.0 - found.found.point) * 100.0))
        } else {
            format!("It gave up no throughput for it here ({} of the buffered loss-free rate; published: 0.43×).", ratio(found.found.point))
        });
    }
    if let (Some(p50), Some(p99)) = (
        find("median latency", "idle", "each"),
        find("99th percentile", "idle", "each"),
    ) {
        let rate = find("highest loss-free rate", "idle", "full");
        sentences.push(about_idle(p50, p99, rate));
    }
    if sentences.is_empty() {
        sentences.extend(against_the_first(evaluation, ratios));
    }
    if sentences.is_empty() {
        nothing(results)
    } else {
        sentences.join(" ")
    }
}

/// Compares the policy `idle` with `each` by two latencies, and with `full` by the loss-free rate if it is known.
fn about_idle(p50: &Ratio, p99: &Ratio, rate: Option<&Ratio>) -> String {
    let mut sentence = format!(
        "Flushing when the receive queue runs dry (idle) had {} the median and {} the 99th percentile of sending each at once",
        ratio(p50.found.point),
        ratio(p99.found.point)
    );
    if let Some(rate) = rate {
        sentence.push_str(&format!(
            ", and {} the loss-free rate of the full buffer",
            ratio(rate.found.point)
        ));
    }
    sentence + "."
}

/// Compares devices that are not in the reference with the first one named.
fn against_the_first(evaluation: &Evaluation, ratios: &[Ratio]) -> Vec<String> {
    let label = |id: &str| {
        let device = evaluation
            .devices
            .iter()
            .find(|device| device.info.id == id);
        device.map_or(id.to_owned(), |device| device.info.label.clone())
    };
    let averages = ratios
        .iter()
        .filter(|ratio| ratio.figure == "average latency");
    averages
        .map(|found| {
            format!(
                "{} had {} the average latency of {} ({}).",
                label(&found.over),
                ratio(found.found.point),
                label(&found.under),
                found.found.words(ratio)
            )
        })
        .collect()
}

fn nothing(results: &Results) -> String {
    let why = match results.experiment.manifest.completion {
        Completion::Finished => "no two devices were measured",
        _ => "the experiment did not come far enough",
    };
    format!("No comparison can be stated: {why}.")
}

fn has(evaluation: &Evaluation, id: &str, policy: &str) -> bool {
    let device = evaluation
        .devices
        .iter()
        .find(|device| device.info.id == id);
    device.and_then(crate::evaluate::policy) == Some(policy)
}
