//! What the trials say: per frame size the throughput, latency quantiles, loss and bursts, each with the
//! spread or interval that its repetitions allow.

use super::results::{Counts, LoadLatency, Measured, Part, Results, Unit};
use crate::evaluate::SlowestSummary;
use crate::tapped::Inside;
use serde::Serialize;
use taut_figure::table;
use taut_measure::quantity::{count, rate, share, three_digits, time};
use taut_measure::{
    BufferTime, Interval, LatencyHistogram, Limit, mean_beside_median, median_interval,
};
use taut_model::Cause;
use taut_results::{Stage, histogram};

/// Quantiles of every latency.
pub(super) const QUANTILES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];

/// Packets that must lie beyond a quantile: p99.999 needs more than a million.
const BEYOND: f64 = 10.0;

/// How often an interval is to cover the median, from six repetitions on. With fewer it says what it covers.
const CONFIDENCE: f64 = 0.95;

/// Bytes on the wire around a frame: preamble, start delimiter, shortest gap (IEEE 802.3).
const WIRE_OVERHEAD_BYTES: f64 = 20.0;

/// Throughput of a frame size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThroughputRow {
    /// Mean over the repetitions, packets per second. A repetition in which no rate held counts as none.
    pub mean_pps: f64,
    /// The same, and beside it the interval of the repetitions' median.
    pub interval: Option<Interval>,
    /// The lowest repetition.
    pub min_pps: f64,
    /// The highest.
    pub max_pps: f64,
    /// Mean of the Conditional Throughput: less the loss that was tolerated.
    pub conditional_pps: f64,
    /// Bits per second of frames, check sequence included.
    pub layer2_bits: f64,
    /// Bits per second on a wire, preambles and gaps included.
    pub layer1_bits: f64,
    /// What stood in the way of more, in most repetitions.
    pub limited_by: Limit,
    /// Whether no rate below failed, in any repetition.
    pub monotonic: bool,
    /// Repetitions in which no rate held.
    pub none_held: u32,
    /// Complete searches.
    pub repetitions: u32,
}

impl ThroughputRow {
    /// What stood in the way of a higher rate.
    pub(super) fn limit(&self) -> &'static str {
        match (self.mean_pps > 0.0, self.limited_by) {
            (false, _) => "no rate held",
            (true, Limit::Device) => "the device",
            (true, Limit::Generator) => "the generator",
            (true, Limit::Range) => "the highest rate offered",
        }
    }
}

/// A quantile of latency.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct QuantileRow {
    /// Which: 0.99 is p99.
    pub quantile: f64,
    /// Its value in ns; none where too few packets lie beyond it.
    pub ns: Option<f64>,
    /// The median of the repetitions' own values, with its interval; none of a single repetition, and where one
    /// has too few packets.
    pub interval: Option<Interval>,
}

/// Latency at one load.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyRow {
    /// Share of the throughput; none where the rate was given.
    pub share: Option<f64>,
    /// Rate, packets per second.
    pub rate_pps: f64,
    /// Packets measured, all repetitions together.
    pub packets: u64,
    /// Mean, ns.
    pub mean_ns: Option<f64>,
    /// The largest, ns.
    pub max_ns: Option<u64>,
    /// By rising quantile.
    pub quantiles: Vec<QuantileRow>,
    /// Share of the packets that were lost.
    pub loss: f64,
    /// Packets that the generator never sent: it fell behind.
    pub unsent: u64,
    /// The same packets as seen on the device's wires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<InsideRow>,
    /// What the slowest packets waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestSummary>,
    #[serde(skip)]
    pub(super) worst: Worst,
    #[serde(skip)]
    pub(super) histogram: LatencyHistogram,
}

/// The slowest packets at one load, the repetitions end to end.
#[derive(Debug, Clone, Default)]
pub(super) struct Worst {
    /// When each was sent (s), its latency (ns), its cause.
    pub(super) packets: Vec<((f64, f64), Option<Cause>)>,
    /// When each repetition ends, s.
    pub(super) ends: Vec<f64>,
}

impl Worst {
    fn of(repetitions: &[&LoadLatency]) -> Self {
        let mut worst = Self::default();
        let mut begun = 0.0;
        for load in repetitions {
            for (sent, latency, cause) in load.slowest.iter().flat_map(|slowest| &slowest.each) {
                worst.packets.push(((begun + sent, *latency), Some(*cause)));
            }
            begun += load.counts.seconds;
            worst.ends.push(begun);
        }
        worst
    }
}

fn slowest(repetitions: &[&LoadLatency]) -> Option<SlowestSummary> {
    let each = repetitions
        .iter()
        .filter_map(|load| load.slowest.as_ref().map(|slowest| slowest.summary.clone()));
    each.reduce(|mut all, one| {
        all.merge(one);
        all
    })
}

/// Latency of the device alone.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct InsideRow {
    /// Packets seen entering and leaving.
    pub packets: u64,
    /// Share of those that entered and were not seen leaving.
    pub loss: f64,
    /// Frames that the tap did not see, or had no room for.
    pub missed: u64,
    /// Mean, ns.
    pub mean_ns: Option<f64>,
    /// By rising quantile, without intervals.
    pub quantiles: Vec<QuantileRow>,
    /// The largest, ns.
    pub max_ns: Option<u64>,
}

impl LatencyRow {
    /// `10 % of throughput`, or the rate.
    pub fn load(&self) -> String {
        let of = if self.share.is_some() {
            " of throughput"
        } else {
            ""
        };
        self.short_load() + of
    }

    /// `10 %`, or the rate.
    pub(super) fn short_load(&self) -> String {
        let per_cent = |share: f64| three_digits(share * 100.0);
        self.share.map_or_else(
            || rate(self.rate_pps),
            |share| format!("{} %", per_cent(share).trim_end_matches(".0")),
        )
    }
}

/// Loss at one offered rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossRow {
    /// Packets per second offered.
    pub offered_pps: f64,
    /// Lowest, middle and highest share lost over the repetitions.
    pub loss: [f64; 3],
    /// The generator fell behind at it, in one repetition at least.
    pub generator_behind: bool,
}

/// Back-to-back frames of a frame size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BurstRow {
    /// Mean over the repetitions, packets (RFC 9004).
    pub mean: f64,
    /// The same, and beside it the interval of the repetitions' median.
    pub interval: Option<Interval>,
    /// The shortest repetition.
    pub min: u64,
    /// The longest.
    pub max: u64,
    /// Standard deviation.
    pub deviation: f64,
    /// Rate at which bursts were handed over, packets per second.
    pub burst_pps: f64,
    /// What it says of the buffer; none if nothing filled it.
    pub buffer: Option<BufferTime>,
    /// Repetitions in which no burst failed.
    pub unlimited: u32,
    /// Repetitions.
    pub repetitions: u32,
}

/// A frame size.
#[derive(Debug, Clone, Serialize)]
pub struct SizeRow {
    /// As asked for.
    pub size: String,
    /// Average, bytes.
    pub average_bytes: f64,
    /// Highest rate that holds.
    pub throughput: Option<ThroughputRow>,
    /// By rising load.
    pub latency: Vec<LatencyRow>,
    /// By falling rate.
    pub loss: Vec<LossRow>,
    /// Longest burst.
    pub back_to_back: Option<BurstRow>,
}

/// A limit that was missed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Missed(pub String);

/// Everything, evaluated.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// Of what.
    pub results: &'a Results,
    /// By frame size, in the order asked for.
    pub rows: Vec<SizeRow>,
    /// Limits that were missed.
    pub missed: Vec<Missed>,
    /// What a reader must know: too few packets, a generator that fell behind, holes.
    pub warnings: Vec<String>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates a folder's results.
    pub fn of(results: &'a Results) -> Self {
        let sizes = results.head.sizes.iter().zip(&results.head.average_bytes);
        let rows: Vec<SizeRow> = sizes
            .map(|(size, bytes)| {
                let units: Vec<&Unit> = results.units.iter().filter(|u| u.size == *size).collect();
                let throughput = throughput(&units, *bytes);
                SizeRow {
                    size: size.clone(),
                    average_bytes: *bytes,
                    latency: latency(&units),
                    loss: loss(&units),
                    back_to_back: bursts(&units, throughput.as_ref()),
                    throughput,
                }
            })
            .collect();
        let missed = missed(results, &rows);
        let warnings = warnings(results, &rows);
        Self {
            results,
            rows,
            missed,
            warnings,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn throughput(units: &[&Unit], bytes: f64) -> Option<ThroughputRow> {
    let complete: Vec<_> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Throughput { result } if result.complete => Some(result),
            _ => None,
        })
        .collect();
    // A device that holds no rate at times passes nothing then: left out, it would look the better for it.
    let or_none = |rate: Option<f64>| rate.unwrap_or(0.0);
    let rates: Vec<f64> = complete.iter().map(|r| or_none(r.rate_pps)).collect();
    let conditional = complete.iter().map(|r| or_none(r.conditional_pps));
    let conditional: Vec<f64> = conditional.collect();
    let mean_pps = mean(&rates);
    let of_limit = |limit: Limit| complete.iter().filter(|r| r.limited_by == limit).count();
    let limited_by = [Limit::Device, Limit::Generator, Limit::Range]
        .into_iter()
        // The first of those that are equally frequent.
        .rev()
        .max_by_key(|limit| of_limit(*limit))?;
    (!complete.is_empty()).then(|| ThroughputRow {
        mean_pps,
        interval: mean_beside_median(&rates, CONFIDENCE),
        min_pps: rates.iter().copied().fold(f64::INFINITY, f64::min),
        max_pps: rates.iter().copied().fold(0.0, f64::max),
        conditional_pps: mean(&conditional),
        layer2_bits: mean_pps * bytes * 8.0,
        layer1_bits: mean_pps * (bytes + WIRE_OVERHEAD_BYTES) * 8.0,
        limited_by,
        monotonic: complete.iter().all(|r| r.monotonic),
        none_held: complete.iter().filter(|r| r.rate_pps.is_none()).count() as u32,
        repetitions: complete.len() as u32,
    })
}

fn latency(units: &[&Unit]) -> Vec<LatencyRow> {
    let repetitions: Vec<&Vec<LoadLatency>> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Latency { loads } => Some(loads),
            _ => None,
        })
        .collect();
    let loads = repetitions
        .iter()
        .map(|loads| loads.len())
        .max()
        .unwrap_or(0);
    (0..loads)
        .map(|index| {
            let of_load: Vec<&LoadLatency> = repetitions
                .iter()
                .filter_map(|loads| loads.get(index))
                .collect();
            latency_row(&of_load)
        })
        .collect()
}

/// A quantile, if enough packets lie beyond it.
fn carried(histogram: &LatencyHistogram, quantile: f64) -> Option<u64> {
    // 1 - 0.99999 is a little less than 0.00001.
    let enough = histogram.count() as f64 * (1.0 - quantile) >= BEYOND * (1.0 - 1e-9);
    histogram.quantile(quantile).filter(|_| enough)
}

fn inside_row(repetitions: &[&LoadLatency]) -> Option<InsideRow> {
    let seen: Vec<&Inside> = repetitions
        .iter()
        .filter_map(|load| load.inside.as_ref())
        .collect();
    if seen.is_empty() {
        return None;
    }
    let mut whole = LatencyHistogram::new();
    seen.iter()
        .for_each(|inside| whole.merge(&histogram(&inside.histogram)));
    let sum = |of: fn(&Inside) -> u64| seen.iter().map(|inside| of(inside)).sum::<u64>();
    let of_quantile = |quantile| QuantileRow {
        quantile,
        ns: carried(&whole, quantile).map(|ns| ns as f64),
        interval: None,
    };
    Some(InsideRow {
        packets: whole.count(),
        loss: sum(|i| i.lost) as f64 / (sum(|i| i.entered) as f64).max(1.0),
        missed: sum(|i| i.missed),
        mean_ns: whole.mean_ns(),
        quantiles: QUANTILES.map(of_quantile).to_vec(),
        max_ns: seen
            .iter()
            .filter_map(|i| Some(i.summary.as_ref()?.max_ns))
            .max(),
    })
}

/// The slices of a repetition together.
fn whole(load: &LoadLatency) -> LatencyHistogram {
    let mut whole = LatencyHistogram::new();
    load.histograms().iter().for_each(|one| whole.merge(one));
    whole
}

fn latency_row(repetitions: &[&LoadLatency]) -> LatencyRow {
    let each: Vec<LatencyHistogram> = repetitions.iter().map(|load| whole(load)).collect();
    let mut histogram = LatencyHistogram::new();
    each.iter().for_each(|one| histogram.merge(one));
    let packets = histogram.count();
    let quantiles = QUANTILES
        .into_iter()
        .map(|quantile| {
            let value = carried(&histogram, quantile);
            // Packets of a repetition share its mood, and so do slices of it: only repetitions are independent.
            let own = each.iter().map(|one| carried(one, quantile));
            let own: Option<Vec<f64>> = own.map(|ns| ns.map(|ns| ns as f64)).collect();
            let interval = own
                .and_then(|own| median_interval(&own, CONFIDENCE))
                .filter(|interval| interval.count > 1);
            QuantileRow {
                quantile,
                ns: value.map(|ns| ns as f64),
                interval,
            }
        })
        .collect();
    let sum = |of: fn(&Counts) -> u64| repetitions.iter().map(|r| of(&r.counts)).sum::<u64>();
    let offered = sum(|c| c.sent + c.refused);
    let max_ns = repetitions
        .iter()
        .filter_map(|r| Some(r.summary.as_ref()?.max_ns))
        .max();
    let means: Vec<(f64, f64)> = repetitions
        .iter()
        .filter_map(|r| Some((r.summary.as_ref()?.avg_ns, r.summary.as_ref()?.count as f64)))
        .collect();
    let weight: f64 = means.iter().map(|m| m.1).sum();
    LatencyRow {
        share: repetitions.first().and_then(|r| r.share),
        rate_pps: mean(
            &repetitions
                .iter()
                .map(|r| r.counts.offered_pps)
                .collect::<Vec<_>>(),
        ),
        packets,
        mean_ns: (weight > 0.0).then(|| means.iter().map(|m| m.0 * m.1).sum::<f64>() / weight),
        max_ns,
        quantiles,
        loss: (offered - sum(|c| c.received).min(offered)) as f64 / (offered as f64).max(1.0),
        unsent: sum(|c| c.unsent),
        inside: inside_row(repetitions),
        slowest: slowest(repetitions),
        worst: Worst::of(repetitions),
        histogram,
    }
}

fn loss(units: &[&Unit]) -> Vec<LossRow> {
    let repetitions: Vec<&Vec<Counts>> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Loss { points } => Some(points),
            _ => None,
        })
        .collect();
    let longest = repetitions
        .iter()
        .map(|points| points.len())
        .max()
        .unwrap_or(0);
    (0..longest)
        .map(|index| {
            let at: Vec<&Counts> = repetitions.iter().filter_map(|p| p.get(index)).collect();
            let mut losses: Vec<f64> = at.iter().map(|c| c.loss()).collect();
            losses.sort_by(f64::total_cmp);
            LossRow {
                offered_pps: mean(&at.iter().map(|c| c.offered_pps).collect::<Vec<_>>()),
                loss: [
                    losses[0],
                    losses[losses.len() / 2],
                    losses[losses.len() - 1],
                ],
                generator_behind: at.iter().any(|c| c.unsent > 0),
            }
        })
        .collect()
}

fn bursts(units: &[&Unit], throughput: Option<&ThroughputRow>) -> Option<BurstRow> {
    let mut lengths = Vec::new();
    let (mut rates, mut unlimited_in) = (Vec::new(), 0);
    for unit in units {
        if let Measured::BackToBack {
            length,
            unlimited,
            bursts,
        } = &unit.measured
        {
            lengths.push(*length);
            unlimited_in += u32::from(*unlimited);
            // The longest says best how fast they were handed over.
            let longest = bursts.iter().max_by_key(|burst| burst.length);
            rates.extend(
                longest.map(|b| (b.counts.sent + b.counts.refused) as f64 / b.counts.seconds),
            );
        }
    }
    let values: Vec<f64> = lengths.iter().map(|length| *length as f64).collect();
    let (mean_length, burst_pps) = (mean(&values), mean(&rates));
    let squares: f64 = values.iter().map(|v| (v - mean_length).powi(2)).sum();
    Some(BurstRow {
        mean: mean_length,
        interval: mean_beside_median(&values, CONFIDENCE),
        min: *lengths.iter().min()?,
        max: *lengths.iter().max()?,
        deviation: (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt(),
        burst_pps,
        buffer: throughput
            .filter(|_| unlimited_in == 0)
            .and_then(|t| BufferTime::of(mean_length, burst_pps, t.mean_pps)),
        unlimited: unlimited_in,
        repetitions: values.len() as u32,
    })
}

fn missed(results: &Results, rows: &[SizeRow]) -> Vec<Missed> {
    let limits = results.head.settings.limits;
    let mut missed = Vec::new();
    for row in rows {
        if let (Some(least), Some(found)) = (limits.min_throughput_pps, &row.throughput)
            && found.mean_pps < least
        {
            missed.push(Missed(format!(
                "throughput of {} bytes is {}, less than the {} asked for",
                row.size,
                rate(found.mean_pps),
                rate(least)
            )));
        }
        for load in &row.latency {
            let p99 = load.quantiles.iter().find(|q| q.quantile == 0.99);
            let of = format!("{} bytes at {}", row.size, rate(load.rate_pps));
            missed.extend(too_slow(limits.max_p99_ns, p99.and_then(|q| q.ns), &of));
        }
    }
    if let Some(soak) = &results.soak {
        let p99 = soak.latency.as_ref().and_then(|l| l.p99_ns);
        let of = format!(
            "{} bytes in the soak at {}",
            soak.size,
            rate(soak.counts.offered_pps)
        );
        missed.extend(too_slow(limits.max_p99_ns, p99.map(|ns| ns as f64), &of));
    }
    missed
}

/// Whether the 99th percentile of a load misses its limit; one that is not known does.
fn too_slow(most: Option<f64>, p99: Option<f64>, of: &str) -> Option<Missed> {
    let most = most?;
    let text = match p99 {
        Some(ns) if ns <= most => return None,
        Some(ns) => format!(
            "p99 of {of} is {}, more than the {} asked for",
            time(ns),
            time(most)
        ),
        None => format!("p99 of {of} is not known: too few packets came back"),
    };
    Some(Missed(text))
}

/// What lies between both latencies.
pub(super) const DEVICE_ONLY: &str = "Device only: between the wires on both sides of the device, as a tap saw it. \
    The rest of the latency is the generator's: handing frames to the kernel, being woken, its receive ring.";

fn warnings(results: &Results, rows: &[SizeRow]) -> Vec<String> {
    let settings = &results.head.settings;
    let mut warnings = Vec::new();
    let mut few: Option<(f64, u64)> = None;
    for row in rows {
        if let Some(found) = &row.throughput {
            match found.limited_by {
                Limit::Device => {}
                Limit::Generator => warnings.push(format!(
                    "{} bytes: the generator could not offer more; the device may be faster",
                    row.size
                )),
                Limit::Range => warnings.push(format!(
                    "{} bytes: the highest rate offered held; the device may be faster",
                    row.size
                )),
            }
            if !found.monotonic {
                warnings.push(format!(
                    "{} bytes: a rate below one that held failed; one figure does not describe this device, see the loss curve",
                    row.size
                ));
            }
            if found.none_held > 0 {
                warnings.push(format!(
                    "{} bytes: no rate held in {} of {} repetitions, which count as 0",
                    row.size, found.none_held, found.repetitions
                ));
            }
        }
        let has_buffer = row
            .back_to_back
            .as_ref()
            .is_some_and(|b| b.buffer.is_some());
        if has_buffer && settings.loss_tolerance > 0.0 {
            warnings.push(format!(
                "{} bytes: the buffer is estimated from a throughput that may lose {}; RFC 9004 section 5 asks for one without loss",
                row.size,
                share(settings.loss_tolerance)
            ));
        }
        for load in &row.latency {
            if load.packets == 0 {
                warnings.push(format!(
                    "{} bytes at {}: no data: nothing came back with a stamp",
                    row.size,
                    rate(load.rate_pps)
                ));
            } else if let Some(first) = load.quantiles.iter().find(|q| q.ns.is_none()) {
                let worst = few.get_or_insert((first.quantile, load.packets));
                if first.quantile < worst.0 {
                    *worst = (first.quantile, load.packets);
                }
            }
            if let Some(inside) = &load.inside {
                if inside.packets == 0 {
                    warnings.push(format!(
                        "{} bytes at {}: no data of the device only: the tap saw no packet on both wires",
                        row.size,
                        rate(load.rate_pps)
                    ));
                }
                if inside.missed > 0 {
                    warnings.push(format!(
                        "{} bytes at {}: the tap missed {} frames: its losses are not to be trusted",
                        row.size,
                        rate(load.rate_pps),
                        count(inside.missed)
                    ));
                }
            }
            if load.unsent > 0 {
                warnings.push(format!(
                    "{} bytes at {}: the generator fell behind by {} packets; the load was lower than that",
                    row.size,
                    rate(load.rate_pps),
                    count(load.unsent)
                ));
            }
        }
        if settings.has(Part::Latency)
            && row.latency.is_empty()
            && results.head.manifest.stage == Stage::Finished
        {
            warnings.push(format!(
                "{} bytes: no latency, as no rate held to measure it at",
                row.size
            ));
        }
    }
    if let Some((quantile, packets)) = few {
        warnings.push(format!(
            "too few packets for {} and above at some loads: it needs {} or more, there were {}; see --latency-seconds",
            percentile(quantile),
            count((BEYOND / (1.0 - quantile)).round() as u64),
            count(packets)
        ));
    }
    if let Some(soak) = &results.soak {
        if soak.counts.unsent > 0 && results.head.manifest.stage == Stage::Finished {
            warnings.push(format!(
                "soak: the generator never sent {} packets",
                count(soak.counts.unsent)
            ));
        }
        if soak.skipped_intervals > 0 {
            warnings.push(format!(
                "soak: {} intervals were lost because the disk was too slow",
                soak.skipped_intervals
            ));
        }
        if soak.latency.is_none() {
            warnings.push("soak: no data: nothing came back".to_string());
        }
    }
    for unit in &results.units {
        if let Measured::Throughput { result } = &unit.measured
            && !result.complete
        {
            warnings.push(format!(
                "{} bytes, repetition {}: the search did not end; it had found {} after {} trials",
                unit.size,
                unit.repetition,
                result.rate_pps.map_or("nothing".to_string(), rate),
                result.trials.len()
            ));
        }
    }
    warnings
}

/// `p99.9`.
pub(super) fn percentile(quantile: f64) -> String {
    format!(
        "p{}",
        taut_measure::quantity::Quantity::Quantile.tick(quantile)
    )
}

/// Gbit/s of a bit rate.
pub(super) fn gigabits(bits: f64) -> String {
    format!("{} Gbit/s", three_digits(bits / 1e9))
}

/// The interval of the repetitions' median, in the unit of `show`; empty of a single one.
pub(super) fn beside(interval: Option<&Interval>, show: fn(f64) -> String) -> String {
    interval
        .filter(|i| i.count > 1)
        .map_or(String::new(), |i| i.short(show))
}

/// Points of a loss curve that are told on a terminal: those next to where losses end.
const MOST_LOSSES: usize = 6;

/// The tables for a terminal so many columns wide.
pub fn render_text(evaluation: &Evaluation<'_>, width: Option<usize>) -> String {
    use comfy_table::CellAlignment;
    let mut out = Vec::new();
    let mut add = |head: Vec<String>, least_important: &[(usize, &str)], rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        let mut table = table::plain();
        table.set_header(head);
        rows.into_iter().for_each(|row| {
            table.add_row(row);
        });
        table
            .column_iter_mut()
            .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        out.push(
            table::text(table, least_important, width)
                .trim_end()
                .to_string(),
        );
    };
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_string()).collect::<Vec<_>>();
    let rows = &evaluation.rows;
    add(
        words(&[
            "frame",
            "throughput",
            "median repetition",
            "lowest",
            "highest",
            "frames",
            "on a wire",
            "limited by",
        ]),
        &[
            (6, "on a wire"),
            (5, "frames"),
            (3, "lowest"),
            (4, "highest"),
        ],
        rows.iter()
            .filter_map(|row| {
                let t = row.throughput.as_ref()?;
                Some(vec![
                    row.size.clone(),
                    rate(t.mean_pps),
                    beside(t.interval.as_ref(), rate),
                    rate(t.min_pps),
                    rate(t.max_pps),
                    gigabits(t.layer2_bits),
                    gigabits(t.layer1_bits),
                    t.limit().to_string(),
                ])
            })
            .collect(),
    );
    let mut head = words(&["frame", "load", "rate", "packets", "lost"]);
    let quantile_names = QUANTILES.map(percentile);
    head.extend(quantile_names.iter().cloned());
    head.push("max".to_string());
    let least_important: Vec<(usize, &str)> = [(2, "rate"), (3, "packets")]
        .into_iter()
        .chain(
            (5..)
                .zip(&quantile_names)
                .skip(1)
                .step_by(2)
                .map(|(at, name)| (at, name.as_str())),
        )
        .collect();
    add(
        head,
        &least_important,
        rows.iter()
            .flat_map(|row| row.latency.iter().map(move |load| (row, load)))
            .flat_map(|(row, load)| {
                let mut cells = vec![
                    row.size.clone(),
                    load.load(),
                    rate(load.rate_pps),
                    count(load.packets),
                    share(load.loss),
                ];
                let value = |ns: Option<f64>| ns.map_or("no data".to_string(), time);
                cells.extend(load.quantiles.iter().map(|q| value(q.ns)));
                cells.push(value(load.max_ns.map(|ns| ns as f64)));
                let inside = load.inside.as_ref().map(|inside| {
                    let mut cells = words(&["", "device only", ""]);
                    let lost = match inside.missed {
                        0 => share(inside.loss),
                        // What the tap missed would count as lost.
                        _ => "n/a".to_string(),
                    };
                    cells.extend([count(inside.packets), lost]);
                    cells.extend(inside.quantiles.iter().map(|q| value(q.ns)));
                    cells.push(value(inside.max_ns.map(|ns| ns as f64)));
                    cells
                });
                std::iter::once(cells).chain(inside)
            })
            .collect(),
    );
    add(
        words(&[
            "frame",
            "longest burst",
            "median repetition",
            "shortest",
            "longest",
            "buffer, corrected",
        ]),
        &[(3, "shortest"), (4, "longest")],
        rows.iter()
            .filter_map(|row| {
                let b = row.back_to_back.as_ref()?;
                Some(vec![
                    row.size.clone(),
                    count(b.mean.round() as u64),
                    beside(b.interval.as_ref(), three_digits),
                    count(b.min),
                    count(b.max),
                    match b.buffer {
                        Some(buffer) => format!(
                            "{} packets, {}",
                            count(buffer.corrected_packets.round() as u64),
                            time(buffer.corrected_seconds * 1e9)
                        ),
                        None => "never filled: no burst was too long".to_string(),
                    },
                ])
            })
            .collect(),
    );
    if rows
        .iter()
        .flat_map(|row| &row.latency)
        .any(|load| load.inside.is_some())
    {
        out.push(DEVICE_ONLY.to_string());
    }
    for row in rows {
        for (load, slowest) in row
            .latency
            .iter()
            .filter_map(|l| Some((l, l.slowest.as_ref()?)))
        {
            out.push(format!(
                "slowest of {} at {}: {}",
                row.size,
                rate(load.rate_pps),
                slowest.line()
            ));
        }
    }
    for row in rows.iter().filter(|row| !row.loss.is_empty()) {
        let left_out = row.loss.len().saturating_sub(MOST_LOSSES);
        let higher = match left_out {
            0 => String::new(),
            n => format!("; {n} higher rates, in the report, lost as well"),
        };
        let points: Vec<String> = row.loss[left_out..]
            .iter()
            .map(|point| format!("{} at {}", share(point.loss[1]), rate(point.offered_pps)))
            .collect();
        out.push(format!(
            "loss of {}: {}{higher}",
            row.size,
            points.join(", ")
        ));
    }
    if let Some(soak) = &evaluation.results.soak {
        let quantiles = soak.latency.as_ref().map_or("no data".to_string(), |l| {
            format!(
                "p50 {}, p99 {}, max {}",
                l.p50_ns.map_or("n/a".to_string(), |ns| time(ns as f64)),
                l.p99_ns.map_or("n/a".to_string(), |ns| time(ns as f64)),
                time(l.max_ns as f64)
            )
        });
        out.push(format!(
            "soak of {}: {} at {} for {} s, {} lost; {quantiles}",
            soak.size,
            count(soak.counts.sent),
            rate(soak.counts.offered_pps),
            three_digits(soak.counts.seconds),
            share(soak.counts.loss()),
        ));
    }
    out.join("\n\n")
}
