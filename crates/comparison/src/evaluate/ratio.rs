//! Ratios between devices, from interleaved repetitions: the ratios that the reference reports, with the published
//! values, and further ratios. The reference is Stylianopoulos et al., DEBS 2020.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use taut_measure::{
    Bounded, Interval, IntervalMethod, LatencyHistogram, Summary, bounded_ratio_interval,
};

use taut_results::{DeviceInfo, Kind};

use super::disturbance::withheld;
use super::{CONFIDENCE, Device};

/// The ratio of a value between two devices.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Ratio {
    /// The compared value, for example `average latency`.
    pub figure: String,
    /// Id of the device in the numerator.
    pub over: String,
    /// Id of the device in the denominator.
    pub under: String,
    /// Median of the ratios of the repetitions in which both devices were measured, with its confidence interval. The
    /// interval of a quantile is wide enough to include the possible influence of other programs.
    #[serde(flatten, serialize_with = "written")]
    #[schemars(with = "Written")]
    pub found: Interval,
    /// The ratio in Stylianopoulos et al. (DEBS 2020), on other hardware; none if they do not report it.
    pub published: Option<f64>,
    /// The reason why the ratio is not stated; none if it is.
    pub withheld: Option<String>,
}

/// A ratio between two devices as it is written to files.
#[derive(Serialize, JsonSchema)]
struct Written {
    /// Median of the ratios of the repetitions.
    median: f64,
    /// Bounds of the median's confidence interval; none for one repetition.
    interval: Option<(f64, f64)>,
    /// Number of repetitions in which both devices were measured.
    pairs: u64,
    /// Confidence of the median's interval, 0..1.
    coverage: f64,
    /// Method by which the median's interval was computed.
    method: IntervalMethod,
}

fn written<S: Serializer>(found: &Interval, serializer: S) -> Result<S::Ok, S::Error> {
    let written = Written {
        median: found.point,
        interval: (found.count > 1).then_some((found.low, found.high)),
        pairs: found.count,
        coverage: found.confidence,
        method: found.method,
    };
    written.serialize(serializer)
}

impl std::fmt::Display for Ratio {
    /// Formats one line: `average latency, memif-full over memif-each: 97.1 (96 % 96.0 to 98.2, n = 6; published 9.8)`,
    /// or `average latency, memif-full over memif-each: not stated, as 2.2 % of a core went to other programs`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(reason) = &self.withheld {
            let Self {
                figure,
                over,
                under,
                ..
            } = self;
            return write!(f, "{figure}, {over} over {under}: not stated, as {reason}");
        }
        write!(
            f,
            "{}, {} over {}: {:.3} ({}",
            self.figure,
            self.over,
            self.under,
            self.found.point,
            self.found.words(|value| format!("{value:.3}"))
        )?;
        if let Some(published) = self.published {
            write!(f, "; published {published:.1}")?;
        }
        f.write_str(")")
    }
}

/// Name of the ratio between the median latencies of two devices.
pub const MEDIAN: &str = "median latency";
const P90: &str = "90th percentile";
const P99: &str = "99th percentile";

/// Returns all ratios between the measured devices, in a fixed order.
pub fn ratios(devices: &[Device]) -> Vec<Ratio> {
    let mut out = Vec::new();
    let forwarders: Vec<&Device> = devices
        .iter()
        .filter(|device| device.info.kind == Kind::Forwarder)
        .collect();
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
            out.extend(of_full(full, each));
        }
        if let Some(idle) = same_io("idle") {
            out.extend(of_idle(idle, each, same_io("full").unwrap_or(each)));
        }
        for bridge in &forwarders {
            if bridge.info.io == "bridge" && bridge.info.transport == each.info.transport {
                out.extend(ratio(
                    "average latency",
                    bridge,
                    each,
                    Values::Latency(|latency| Some(latency.avg_ns)),
                    Some(16.8 / 5.7),
                ));
            }
        }
    }
    if out.is_empty() {
        out = against_the_first(&forwarders);
    }
    out
}

/// Returns the indices of the two devices whose median latencies the first sentence of the finding compares: `full` and
/// `each`, else `idle` and `each`, else the first two forwarders. Returns `None` with fewer than two forwarders.
pub(crate) fn headline_pair(infos: &[DeviceInfo]) -> Option<[usize; 2]> {
    let forwarders = || {
        let all = infos.iter().enumerate();
        all.filter(|(_, info)| info.kind == Kind::Forwarder)
    };
    let beside_each = |name: &str| {
        let mut of_each = forwarders().filter(|(_, info)| policy_of(info) == Some("each"));
        of_each.find_map(|(each, info)| {
            let is_beside = |other: &DeviceInfo| {
                (other.transport, &other.io) == (info.transport, &info.io)
                    && policy_of(other) == Some(name)
            };
            let found = forwarders().find(|(_, other)| is_beside(other));
            found.map(|(other, _)| [other, each])
        })
    };
    let two_first = || {
        let mut all = forwarders().map(|(index, _)| index);
        Some([all.next()?, all.next()?])
    };
    beside_each("full")
        .or_else(|| beside_each("idle"))
        .or_else(two_first)
}

/// Returns the ratios between a device with flush policy `full` and a device with flush policy `each`.
fn of_full(full: &Device, each: &Device) -> Vec<Ratio> {
    let ratios = [
        ratio(MEDIAN, full, each, Values::Quantile(0.5), None),
        ratio(P90, full, each, Values::Quantile(0.9), None),
        ratio(
            "average latency",
            full,
            each,
            Values::Latency(|latency| Some(latency.avg_ns)),
            Some(9.8),
        ),
        ratio(
            "latency deviation",
            full,
            each,
            Values::Latency(|latency| Some(latency.std_ns)),
            Some(28.5 / 0.6),
        ),
        ratio("average jitter", full, each, Values::AverageJitter, None),
        ratio("maximum jitter", full, each, Values::MaximumJitter, None),
        ratio(
            "highest loss-free rate",
            each,
            full,
            Values::LossFree,
            Some(4.3 / 10.0),
        ),
    ];
    ratios.into_iter().flatten().collect()
}

/// Returns the ratios of a device with the policy `idle`: latencies over those of `each`, and the loss-free rate over
/// that of `base`.
fn of_idle(idle: &Device, each: &Device, base: &Device) -> Vec<Ratio> {
    let ratios = [
        ratio(MEDIAN, idle, each, Values::Quantile(0.5), None),
        ratio(P99, idle, each, Values::Quantile(0.99), None),
        ratio("highest loss-free rate", idle, base, Values::LossFree, None),
    ];
    ratios.into_iter().flatten().collect()
}

/// Returns ratios for devices that Stylianopoulos et al. (DEBS 2020) do not compare: each other device over the first
/// device.
fn against_the_first(forwarders: &[&Device]) -> Vec<Ratio> {
    let Some((first, others)) = forwarders.split_first() else {
        return Vec::new();
    };
    let figures: [(&str, Values); 4] = [
        (
            "average latency",
            Values::Latency(|latency| Some(latency.avg_ns)),
        ),
        (MEDIAN, Values::Quantile(0.5)),
        (P99, Values::Quantile(0.99)),
        ("highest loss-free rate", Values::LossFree),
    ];
    let of_pair = |other: &&Device| {
        let other: &Device = other;
        figures.map(|(figure, values)| ratio(figure, other, first, values, None))
    };
    others.iter().flat_map(of_pair).flatten().collect()
}

/// Returns a device's flush policy without its arguments: `full`, `each`, `every`, `idle`; none for a device without a
/// policy.
pub fn policy(device: &Device) -> Option<&str> {
    policy_of(&device.info)
}

fn policy_of(info: &DeviceInfo) -> Option<&str> {
    let flush = info.flush.as_deref()?;
    Some(flush.split('(').next().unwrap_or(flush).trim())
}

#[derive(Clone, Copy)]
enum Values {
    /// A quantile of the latency, 0..1.
    Quantile(f64),
    Latency(fn(&Summary) -> Option<f64>),
    AverageJitter,
    MaximumJitter,
    LossFree,
}

impl Values {
    fn of(self, device: &Device) -> BTreeMap<u32, Bounded> {
        let exact = |values: BTreeMap<u32, f64>| {
            let values = values.into_iter();
            values
                .map(|(repetition, value)| (repetition, Bounded::exact(value)))
                .collect()
        };
        let jitter = |figure: fn(&taut_measure::JitterSummary) -> f64| {
            let cbr = device.cbr.iter();
            cbr.filter_map(|(repetition, cbr)| Some((*repetition, figure(cbr.jitter.as_ref()?))))
                .collect()
        };
        match self {
            Values::Quantile(q) => device.quantiles(q),
            Values::Latency(figure) => exact(device.per_repetition(figure)),
            Values::AverageJitter => exact(jitter(|jitter| jitter.avg_ns)),
            Values::MaximumJitter => exact(jitter(|jitter| jitter.max_ns as f64)),
            Values::LossFree => exact(device.loss_free_pps.clone()),
        }
    }
}

impl Device {
    /// Returns a quantile of the latency in each repetition, ns, with bounds for its value without the disturbance by
    /// other programs. Repetitions with fewer than ten packets beyond the quantile are skipped.
    fn quantiles(&self, q: f64) -> BTreeMap<u32, Bounded> {
        let of = |(repetition, latency): (&u32, &LatencyHistogram)| {
            let disturbance = self.disturbances.get(repetition)?;
            let is_enough = latency.count() as f64 * (1.0 - q) >= 10.0;
            let value = Bounded::quantile(latency, q, disturbance.disturbed())?;
            is_enough.then_some((*repetition, value))
        };
        self.latencies.iter().filter_map(of).collect()
    }
}

fn ratio(
    figure: &str,
    over: &Device,
    under: &Device,
    values: Values,
    published: Option<f64>,
) -> Option<Ratio> {
    let (above, below) = (values.of(over), values.of(under));
    let pairs = above
        .iter()
        .filter_map(|(repetition, above)| above.over(*below.get(repetition)?));
    let found = bounded_ratio_interval(&pairs.collect::<Vec<_>>(), CONFIDENCE)?;
    let is_robust = matches!(values, Values::Quantile(_));
    Some(Ratio {
        figure: figure.to_owned(),
        over: over.info.id.clone(),
        under: under.info.id.clone(),
        withheld: withheld(&found, is_robust, over, under),
        found,
        published,
    })
}
