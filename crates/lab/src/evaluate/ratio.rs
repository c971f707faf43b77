//! The ratios between devices that the reference reports, from interleaved repetitions.
//! Published values: Stylianopoulos et al., DEBS 2020.

use std::collections::BTreeMap;

use serde::Serialize;
use taut_measure::{Summary, ratio_interval};

use crate::results::Kind;

use super::{CONFIDENCE, Device};

/// How one device's figure compares with another's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// The figure compared, for example `average latency`.
    pub figure: String,
    /// Id of the device above the line.
    pub over: String,
    /// Id of the device below the line.
    pub under: String,
    /// Median of the repetitions' ratios.
    pub median: f64,
    /// 95 % interval of the median over the repetitions; `None` with fewer than two.
    pub interval: Option<(f64, f64)>,
    /// Repetitions in which both were measured.
    pub pairs: u64,
    /// What the reference found, on other hardware.
    pub published: Option<f64>,
}

impl std::fmt::Display for Ratio {
    /// One line: `average latency, memif-full over memif-each: 97.1 (95 % CI 96.0 to 98.2, n = 3; published 9.8)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} over {}: {:.3} (",
            self.figure, self.over, self.under, self.median
        )?;
        if let Some((low, high)) = self.interval {
            write!(f, "95 % CI {low:.3} to {high:.3}, ")?;
        }
        write!(f, "n = {}", self.pairs)?;
        if let Some(published) = self.published {
            write!(f, "; published {published:.1}")?;
        }
        f.write_str(")")
    }
}

const RESAMPLES: usize = 2_000;

/// All ratios that the devices present allow, in a fixed order.
pub fn ratios(devices: &[Device], seed: u64) -> Vec<Ratio> {
    let mut out = Vec::new();
    let forwarders: Vec<&Device> = devices
        .iter()
        .filter(|device| device.info.kind == Kind::Forwarder)
        .collect();
    let mut compare = |figure: &str, over: &Device, under: &Device, values: Values, published| {
        out.extend(ratio(figure, over, under, values, published, seed));
    };
    for each in forwarders
        .iter()
        .filter(|device| policy(device) == Some("each"))
    {
        let same_io = |name: &str| {
            let same = |other: &&&Device| {
                (other.info.transport, &other.info.io) == (each.info.transport, &each.info.io)
                    && policy(other) == Some(name)
            };
            forwarders.iter().find(same)
        };
        if let Some(full) = same_io("full") {
            compare(
                "average latency",
                full,
                each,
                Values::Latency(|latency| Some(latency.avg_ns)),
                Some(9.8),
            );
            compare(
                "latency deviation",
                full,
                each,
                Values::Latency(|latency| Some(latency.std_ns)),
                Some(28.5 / 0.6),
            );
            compare("average jitter", full, each, Values::AverageJitter, None);
            compare("maximum jitter", full, each, Values::MaximumJitter, None);
            compare(
                "highest loss-free rate",
                each,
                full,
                Values::LossFree,
                Some(4.3 / 10.0),
            );
        }
        if let Some(idle) = same_io("idle") {
            compare(
                "median latency",
                idle,
                each,
                Values::Latency(|latency| Some(latency.p50_ns? as f64)),
                None,
            );
            compare(
                "99th percentile",
                idle,
                each,
                Values::Latency(|latency| Some(latency.p99_ns? as f64)),
                None,
            );
            if let Some(full) = same_io("full") {
                compare("highest loss-free rate", idle, full, Values::LossFree, None);
            } else {
                compare("highest loss-free rate", idle, each, Values::LossFree, None);
            }
        }
        for bridge in &forwarders {
            if bridge.info.io == "bridge" && bridge.info.transport == each.info.transport {
                compare(
                    "average latency",
                    bridge,
                    each,
                    Values::Latency(|latency| Some(latency.avg_ns)),
                    Some(16.8 / 5.7),
                );
            }
        }
    }
    out
}

/// A device's flush policy without its arguments: `full`, `each`, `every`, `idle`.
pub fn policy(device: &Device) -> Option<&str> {
    let flush = device.info.flush.as_deref()?;
    Some(flush.split('(').next().unwrap_or(flush).trim())
}

#[derive(Clone, Copy)]
enum Values {
    Latency(fn(&Summary) -> Option<f64>),
    AverageJitter,
    MaximumJitter,
    LossFree,
}

impl Values {
    fn of(self, device: &Device) -> BTreeMap<u32, f64> {
        let jitter = |figure: fn(&taut_measure::JitterSummary) -> f64| {
            let cbr = device.cbr.iter();
            cbr.filter_map(|(repetition, cbr)| Some((*repetition, figure(cbr.jitter.as_ref()?))))
                .collect()
        };
        match self {
            Values::Latency(figure) => device.per_repetition(figure),
            Values::AverageJitter => jitter(|jitter| jitter.avg_ns),
            Values::MaximumJitter => jitter(|jitter| jitter.max_ns as f64),
            Values::LossFree => device.loss_free_pps.clone(),
        }
    }
}

fn ratio(
    figure: &str,
    over: &Device,
    under: &Device,
    values: Values,
    published: Option<f64>,
    seed: u64,
) -> Option<Ratio> {
    let (above, below) = (values.of(over), values.of(under));
    let pairs: Vec<(f64, f64)> = above
        .iter()
        .filter_map(|(repetition, above)| Some((*above, *below.get(repetition)?)))
        .filter(|(above, below)| *above > 0.0 && *below > 0.0)
        .collect();
    let (above, below): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let paired = ratio_interval(&above, &below, CONFIDENCE, RESAMPLES, seed);
    let median = match &paired {
        Some(paired) => paired.median.point,
        None => pairs.first().map(|(above, below)| above / below)?,
    };
    Some(Ratio {
        figure: figure.to_owned(),
        over: over.info.id.clone(),
        under: under.info.id.clone(),
        median,
        interval: paired.map(|paired| (paired.median.low, paired.median.high)),
        pairs: pairs.len() as u64,
        published,
    })
}
