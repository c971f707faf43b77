//! Predicts the highest rate of a function before overload, from the results folders of `taut generate --out`. The
//! first folder is from a plain forwarder, the second from the function between the same ports, both at a rate at which
//! packets do not queue. (Gallenmüller 2021, section 5.4.4, eqs. 5.9 and 5.10.) A third folder, of the function at a
//! higher rate without overload, gives a second prediction, by the queueing model (`taut_model::queueing::saturation`).
//! A folder of the function under bursts gives a third prediction, from the worker's own time for the packets.

use crate::ForecastError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_measure::{LatencyHistogram, median, median_interval};
use taut_model::estimate::{ErrorBasis, Errors, Estimate, Prediction};
use taut_model::overload::{Interruption, Overload};
use taut_model::published;
use taut_model::queueing::saturation::{
    CarriedRate, PUBLISHED_KPPS, lonely_service, service_when_busy,
};
use taut_model::queueing::{Arrivals, Effort, Processor, QueueingError, Vacations};
use taut_results::{RECORDED_LATENCIES, read_json};

const CONFIDENCE: f64 = 0.95;
/// Minimum number of runs for a median with a 95 % interval.
const FOR_CONFIDENCE: usize = 6;
/// Minimum number of packets for a useful median.
const FEWEST: u64 = 100;
/// Largest fraction of lost packets at which a median is accepted: lost packets have no latency.
const MOST_LOST: f64 = 0.01;
/// Size of the simulations: medians of queues converge fast.
const EFFORT: Effort = Effort {
    packets: 50_000,
    runs: 3,
    seed: 1,
};
/// Fraction of a core's time in use above which packets queue, so that latency is no longer the service time alone.
const LONELY: f64 = 0.3;
/// Mean number of packets from which a batch counts as full: larger batches hardly change the time per packet.
const FULL: f64 = 24.0;

/// The predictions of the highest rate that a core with a function sustains.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TippingPoint {
    /// Processor time of the function per packet, µs: t_CPU.
    pub cpu_us: Estimate,
    /// Time lost to interruptions in each second, µs: d_sum.
    pub interrupted_us_per_s: f64,
    /// The highest rate that the core sustains: R_max. Its errors are those of the predictions for the published cases.
    pub highest: Prediction,
    /// Median latencies and rates of the plain forwarder and of the function, in this order.
    pub measured: [Latencies; 2],
    /// The prediction of the queueing model; `None` without a folder of the function at a higher rate.
    pub queue: Option<Busy>,
    /// The prediction from the worker's own time under bursts; `None` without a folder of the function under bursts.
    pub work: Option<Full>,
    /// Notes for the reader about the meaning of the predictions.
    pub notes: Vec<String>,
}

/// The prediction from the worker's time under bursts, where packets come in full batches, as under overload.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Full {
    /// Time of the worker per packet, µs, receiving and sending included.
    pub cpu_us: f64,
    /// Mean number of packets in a batch.
    pub batch: f64,
    /// The highest rate that the core sustains, packets/s: the fraction of time without interruptions, divided by the
    /// time per packet.
    pub highest_pps: f64,
}

/// The prediction of the queueing model from latencies on a busy core.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Busy {
    /// Mean processor time of the function per packet, µs. The processor times are distributed like those of lonely
    /// packets (packets that arrive alone), shifted so that the model predicts the measured median latency.
    pub cpu_us: Estimate,
    /// The highest rate that the core sustains. Its errors are those of the predictions for the published cases.
    pub highest: Prediction,
    /// The latencies from which the prediction is derived, measured at a rate without overload.
    pub measured: Latencies,
}

/// The latencies of one device at one rate, read from one results folder for each run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Latencies {
    /// Median over the runs' median latencies, µs, with its interval. Packets of a run depend on each other, so a
    /// single run has no interval: its confidence is 0.
    pub median_us: Estimate,
    /// Number of runs that the median is derived from.
    pub runs: usize,
    /// Number of packets that came back, in all runs together.
    pub packets: u64,
    /// Packets per second that were sent.
    pub sent_pps: f64,
    /// The kind of link between generator and device; `None` if taut did not set up the device.
    pub transport: Option<String>,
    /// Interruptions of the device's core; `None` if the device does not record them.
    pub interruptions: Option<Taken>,
    /// The worker's time for the packets; `None` if the device does not record it.
    pub work: Option<Work>,
    #[serde(skip)]
    histogram: LatencyHistogram,
}

/// The interruptions of a core: how many there are per second, and the fraction of the time that they take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Taken {
    /// Interruptions of the core per second.
    pub per_second: f64,
    /// Fraction of the time that interruptions take, 0 to 1.
    pub share: f64,
}

/// The time that a worker spent per packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// Time of the worker per packet, ns.
    pub packet_ns: f64,
    /// Mean number of packets in a batch.
    pub batch: f64,
}

/// The fields of `summary.json` that this module uses.
#[derive(Deserialize)]
struct Summary {
    event: String,
    streams: Vec<Stream>,
    device: Option<Device>,
    #[serde(default)]
    device_interruptions: Option<Taken>,
    #[serde(default)]
    device_work: Option<Work>,
}

#[derive(Deserialize)]
struct Stream {
    sent_pps: Option<f64>,
    lost_share: Option<f64>,
}

#[derive(Deserialize)]
struct Device {
    transport: String,
}

impl Latencies {
    /// Reads the results folders of one stream's measurements, one run per folder.
    ///
    /// # Errors
    /// There are no folders, a folder has no results of a stream, too few packets came back, or the transports differ.
    pub fn of_runs(folders: &[impl AsRef<Path>]) -> Result<Self, ForecastError> {
        let runs = folders.iter().map(|folder| Self::read(folder.as_ref()));
        Self::together(&runs.collect::<Result<Vec<_>, _>>()?)
    }

    /// Returns the latencies of all packets that came back.
    pub fn histogram(&self) -> &LatencyHistogram {
        &self.histogram
    }

    /// Combines several runs of one device: the median of each of their values, and all packets together.
    fn together(runs: &[Self]) -> Result<Self, ForecastError> {
        let wrong = |what: &str| ForecastError::Wrong(what.to_owned());
        let medians: Vec<f64> = runs.iter().map(|run| run.median_us.value).collect();
        let interval = median_interval(&medians, CONFIDENCE);
        let interval = interval.ok_or_else(|| wrong("give at least one folder"))?;
        let transport = runs[0].transport.clone();
        if runs.iter().any(|run| run.transport != transport) {
            return Err(wrong("runs of one device need the same transport"));
        }
        let mut histogram = LatencyHistogram::new();
        runs.iter().for_each(|run| histogram.merge(&run.histogram));
        let rates: Vec<f64> = runs.iter().map(|run| run.sent_pps).collect();
        // If one run lacks a value, the combined runs lack it too.
        let interruptions: Option<Vec<Taken>> = runs.iter().map(|run| run.interruptions).collect();
        let work: Option<Vec<Work>> = runs.iter().map(|run| run.work).collect();
        Ok(Self {
            median_us: Estimate::new(
                interval.point,
                interval.low,
                interval.high,
                interval.confidence,
            )?,
            runs: runs.len(),
            packets: runs.iter().map(|run| run.packets).sum(),
            sent_pps: median(&rates).unwrap_or(0.0),
            transport,
            interruptions: interruptions.map(|all| Taken {
                per_second: middle(&all, |it| it.per_second),
                share: middle(&all, |it| it.share),
            }),
            work: work.map(|all| Work {
                packet_ns: middle(&all, |it| it.packet_ns),
                batch: middle(&all, |it| it.batch),
            }),
            histogram,
        })
    }

    /// Reads the results folder of a run.
    fn read(folder: &Path) -> Result<Self, ForecastError> {
        let wrong = |what: String| ForecastError::Wrong(format!("{}: {what}", folder.display()));
        let other = "expected a folder of taut generate --out, with latencies of one stream";
        let summary: Summary = read_json(folder, "summary.json")
            .ok()
            .filter(|summary: &Summary| summary.event == "summary")
            .ok_or_else(|| wrong(other.to_owned()))?;
        let [stream] = summary.streams.as_slice() else {
            return Err(wrong(format!("{other}; it has {}", summary.streams.len())));
        };
        let lost = stream.lost_share.unwrap_or(0.0);
        if lost > MOST_LOST {
            return Err(wrong(format!(
                "{:.1} % of the packets were lost: measure at a rate that is carried",
                100.0 * lost
            )));
        }
        let log = taut_results::read(folder, RECORDED_LATENCIES).ok();
        let histogram = log.and_then(|log| LatencyHistogram::read_hlog(&log).ok());
        let histogram = histogram.ok_or_else(|| {
            wrong(format!(
                "{other}; {RECORDED_LATENCIES} is missing or no histogram log"
            ))
        })?;
        let packets = histogram.count();
        let median = histogram.quantile(0.5).filter(|_| packets >= FEWEST);
        let Some(median_us) = median.map(|ns| ns as f64 / 1e3) else {
            return Err(wrong(format!(
                "{packets} packets came back: a median needs at least {FEWEST}"
            )));
        };
        Ok(Self {
            median_us: Estimate::new(median_us, median_us, median_us, 0.0)?,
            runs: 1,
            packets,
            sent_pps: stream.sent_pps.unwrap_or(0.0),
            transport: summary.device.map(|device| device.transport),
            interruptions: summary.device_interruptions,
            work: summary.device_work,
            histogram,
        })
    }
}

/// Returns the median, over the items of `of`, of the value that `told` extracts from each.
fn middle<T>(of: &[T], told: impl Fn(&T) -> f64) -> f64 {
    let values: Vec<f64> = of.iter().map(told).collect();
    median(&values).unwrap_or(0.0)
}

/// Predicts the highest rate of a function from the latencies of a plain forwarder and of the function. The queueing
/// model also uses the latencies of the `busy` function at a higher rate without overload. A third prediction uses the
/// worker's time under `bursts`. The core's interruptions are `given`. If `given` is empty, they are those that the
/// forwarder's core recorded; if it recorded none, those that the function's core recorded.
///
/// # Errors
/// The function is not slower than the forwarder, or interruptions take the entire core. The `busy` measurement is not
/// at a higher rate, or no service time explains its latencies. The worker under bursts recorded no time.
pub fn tipping_point(
    forwarder: Latencies,
    function: Latencies,
    busy: Option<Latencies>,
    bursts: Option<&Latencies>,
    given: &[Interruption],
) -> Result<TippingPoint, ForecastError> {
    let mut notes = Vec::new();
    let runs = forwarder.runs.min(function.runs);
    if runs < FOR_CONFIDENCE {
        notes.push(match runs {
            1 => format!("one run has no interval, as its packets depend on each other: give {FOR_CONFIDENCE} runs of each"),
            few => format!("the interval of {few} runs is their range: {FOR_CONFIDENCE} have one of 95 %"),
        });
    }
    // A plain forwarder's loop iterations are short, so its core also records interruptions that the function's long
    // iterations hide.
    let noted = forwarder.interruptions.or(function.interruptions);
    let interruptions = interruptions(given, noted, &mut notes);
    let model = Overload::new(function.median_us, forwarder.median_us, &interruptions)?;
    let highest = model.highest_rate(published_errors());
    if forwarder.transport != function.transport {
        let name = |of: &Latencies| of.transport.clone().unwrap_or_else(|| "unknown".to_owned());
        notes.push(format!(
            "the forwarder was reached over {}, the function over {}: the difference is not the function's alone",
            name(&forwarder),
            name(&function)
        ));
    }
    let load = function.sent_pps * model.cpu_us.value / 1e6;
    if load > LONELY {
        notes.push(format!(
            "the function was given {:.0} % of what it takes: packets waited for each other, so R_max is too low; measure at a lower rate",
            100.0 * load
        ));
    }
    let queue = busy
        .map(|busy| by_queue(&forwarder, &function, busy, &interruptions))
        .transpose()?;
    notes.push(match &queue {
        None => "a bound from lonely packets: those of a busy core may take less; of four published cases it missed one (--busy misses none)",
        Some(_) => "by the queue R_max is at least the rate that was carried, and all the better the nearer that is; R_max alone is a bound from lonely packets, which missed one of four published cases",
    }.to_owned());
    let interrupted = model.interrupted_us_per_s / 1e6;
    let work = bursts
        .map(|it| by_work(it, interrupted, &mut notes))
        .transpose()?;
    Ok(TippingPoint {
        queue,
        work,
        cpu_us: model.cpu_us,
        interrupted_us_per_s: model.interrupted_us_per_s,
        highest,
        measured: [forwarder, function],
        notes,
    })
}

/// Returns the interruptions `given`; if there are none, returns the interruptions that a device recorded.
fn interruptions(
    given: &[Interruption],
    noted: Option<Taken>,
    notes: &mut Vec<String>,
) -> Vec<Interruption> {
    match (given.is_empty(), noted) {
        (true, Some(taken)) if taken.per_second > 0.0 => vec![Interruption {
            name: "as noted".to_owned(),
            rate_hz: taken.per_second,
            duration_us: taken.share / taken.per_second * 1e6,
        }],
        (true, None) => {
            notes.push("the devices do not note their interruptions: there are taken to be none (--interrupt)".to_owned());
            Vec::new()
        }
        _ => given.to_vec(),
    }
}

/// Returns the rate that a worker sustains if each packet takes as long as under bursts.
fn by_work(
    bursts: &Latencies,
    interrupted: f64,
    notes: &mut Vec<String>,
) -> Result<Full, ForecastError> {
    let work = bursts.work.filter(|work| work.packet_ns > 0.0);
    let work = work.ok_or_else(|| {
        ForecastError::Wrong(
            "the device did not record the time of its worker during bursts: expected one that taut set up, of one \
            worker, for a second or more".to_owned(),
        )
    })?;
    if work.batch < FULL {
        notes.push(format!(
            "batches of {:.1} packets: a packet of a full batch takes less, so R_max by the worker's time is too low; send bursts ('--pattern burst(32, 0ns)')",
            work.batch
        ));
    }
    Ok(Full {
        cpu_us: work.packet_ns / 1e3,
        batch: work.batch,
        highest_pps: (1.0 - interrupted) * 1e9 / work.packet_ns,
    })
}

/// Returns the mean service time at which the queueing model predicts the median latency that was measured in `busy`,
/// and the saturation of a core with that service time.
fn by_queue(
    forwarder: &Latencies,
    function: &Latencies,
    busy: Latencies,
    interruptions: &[Interruption],
) -> Result<Busy, ForecastError> {
    if busy.sent_pps <= function.sent_pps {
        return Err(ForecastError::Wrong(format!(
            "the busy function was given {:.0} packets a second, the lonely one {:.0}: expected a higher rate, one \
            that it carries",
            busy.sent_pps, function.sent_pps
        )));
    }
    let mut vacations = Vacations::none();
    let mut held_up = 0.0;
    for one in interruptions {
        vacations = vacations.with_periodic(one.rate_hz, 1e3 * one.duration_us)?;
        // An interruption delays the packets that arrive while it lasts, and the packets in transit when it begins.
        let way_us = function.median_us.value - forwarder.median_us.value;
        held_up += one.rate_hz * (one.duration_us + way_us.max(0.0)) / 1e6;
    }
    let transfer_ns = 1e3 * forwarder.median_us.value;
    let service = lonely_service(&function.histogram, transfer_ns, f64::min(held_up, 0.5))?;
    let lonely = Processor::new(Arrivals::constant(busy.sent_pps)?, service)
        .with_transfer(transfer_ns)?
        .with_vacations(vacations);
    let at = |median_us: f64| -> Result<(f64, f64), ForecastError> {
        let carried = CarriedRate::new(busy.sent_pps, 0.5, 1e3 * median_us)?;
        let service = service_when_busy(&lonely, &carried, EFFORT).map_err(|e| match e {
            QueueingError::OutOfReach { .. } => ForecastError::Wrong(format!(
                "no queue of the function has a median of {median_us:.1} us at {:.0} packets a second: measure at a rate that it carries, between the same ports",
                busy.sent_pps
            )),
            other => other.into(),
        })?;
        let mean_us = service.mean_ns() / 1e3;
        Ok((mean_us, lonely.with_service(service).saturation_pps()))
    };
    let median = &busy.median_us;
    let (value, low, high) = (at(median.value)?, at(median.low)?, at(median.high)?);
    let estimate = |value: f64, one: f64, other: f64| {
        let (low, high) = (one.min(other).min(value), one.max(other).max(value));
        Estimate::new(value, low, high, median.confidence)
    };
    Ok(Busy {
        cpu_us: estimate(value.0, low.0, high.0)?,
        highest: Prediction {
            estimate: estimate(value.1, low.1, high.1)?,
            unit: "packets/s".to_owned(),
            errors: Errors::of(ErrorBasis::Published, PUBLISHED_KPPS),
            outside: Vec::new(),
        },
        measured: busy,
    })
}

/// Returns the errors of the highest rate that the bound predicts for the four published cases, compared with the
/// observed start of overload.
pub(crate) fn published_errors() -> Option<Errors> {
    let summaries = published::summaries(&published::checks().ok()?);
    let seen = summaries
        .into_iter()
        .find(|it| it.group == published::OVERLOAD_AS_SEEN);
    seen.map(|seen| seen.errors)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::{Duration, SystemTime};
    use taut_model::queueing::{ServiceTime, replicate};

    /// Makes a folder with packets of the given latencies, us.
    fn folder(latencies_us: &[u64], summary: &str) -> tempfile::TempDir {
        let mut histogram = LatencyHistogram::new();
        for us in latencies_us {
            histogram.record_many(us * 1_000, 100);
        }
        folder_of(&histogram, summary)
    }

    fn folder_of(histogram: &LatencyHistogram, summary: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("summary.json"), summary).unwrap();
        let mut log = Vec::new();
        histogram
            .write_hlog(
                &mut log,
                SystemTime::UNIX_EPOCH,
                Duration::from_secs(1),
                None,
            )
            .unwrap();
        std::fs::write(folder.path().join(RECORDED_LATENCIES), log).unwrap();
        folder
    }

    const LONELY_PACKETS: &str = r#"{"event": "summary", "streams": [{"sent_pps": 10000.0, "lost_share": 0.0}],
        "device": {"transport": "memif"}, "device_interruptions": {"per_second": 250.0, "share": 0.0029499}}"#;

    fn read(latencies_us: &[u64], summary: &str) -> Result<Latencies, ForecastError> {
        Latencies::read(folder(latencies_us, summary).path())
    }

    #[test]
    fn r_max_divides_uninterrupted_time_by_the_added_function_cost() {
        let forwarder = read(&[2, 3, 4], LONELY_PACKETS).unwrap();
        let function = read(&[14, 15, 16], LONELY_PACKETS).unwrap();
        let found = tipping_point(forwarder.clone(), function.clone(), None, None, &[]).unwrap();
        assert!((found.cpu_us.value - 12.0).abs() < 0.05, "{found:?}");
        assert!((found.interrupted_us_per_s - 2949.9).abs() < 1e-6);
        let expected = (1e6 - 2949.9) / found.cpu_us.value;
        assert!((found.highest.estimate.value - expected).abs() < 1e-6);
        assert_eq!(found.highest.errors.unwrap().count, 4);
        let given = [Interruption {
            name: "timer".to_owned(),
            rate_hz: 1_000.0,
            duration_us: 10.0,
        }];
        let told = tipping_point(forwarder, function, None, None, &given).unwrap();
        assert_eq!(told.interrupted_us_per_s, 10_000.0);
    }

    #[test]
    fn confidence_intervals_use_runs_and_are_missing_for_one_run() {
        let runs = |medians: &[u64]| {
            let runs = medians.iter().map(|us| read(&[*us], LONELY_PACKETS));
            Latencies::together(&runs.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
        };
        let six = runs(&[14, 15, 16, 17, 18, 19]).median_us;
        let near = |value: f64, wanted: f64| (value - wanted).abs() < 0.01 * wanted;
        assert!(near(six.low, 14.0) && near(six.high, 19.0), "{six:?}");
        assert!(near(six.value, 16.5) && six.confidence > 0.95, "{six:?}");
        let one = tipping_point(runs(&[3]), runs(&[15]), None, None, &[]).unwrap();
        assert_eq!(one.highest.estimate.confidence, 0.0);
        assert!(
            one.notes
                .iter()
                .any(|note| note.contains("one run has no interval"))
        );
        let [plain, function] = [[3; 6], [15; 6]].map(|us| runs(&us));
        assert_eq!((plain.runs, plain.packets), (6, 600));
        let many = tipping_point(plain, function, None, None, &[]).unwrap();
        assert!(many.highest.estimate.confidence > 0.9, "{many:?}");
        let mut other = read(&[15], LONELY_PACKETS).unwrap();
        other.transport = Some("veth".to_owned());
        let mixed = Latencies::together(&[read(&[15], LONELY_PACKETS).unwrap(), other]);
        assert!(mixed.unwrap_err().to_string().contains("same transport"));
    }

    #[test]
    fn the_highest_rate_is_derived_from_full_batches() {
        let of = |work: &str| {
            let summary = format!("{{\"device_work\": {work}, {}", &LONELY_PACKETS[1..]);
            let bursts = read(&[14, 15, 16], &summary).unwrap();
            let [forwarder, function] =
                [[2, 3, 4], [14, 15, 16]].map(|us| read(&us, LONELY_PACKETS).unwrap());
            tipping_point(forwarder, function, None, Some(&bursts), &[])
        };
        let found = of(r#"{"packet_ns": 500.0, "batch": 31.5}"#).unwrap();
        let full = found.work.unwrap();
        assert!(
            (full.highest_pps - (1.0 - 0.0029499) * 2e6).abs() < 1e-6,
            "{full:?}"
        );
        let about_batches = |notes: &[String]| notes.iter().any(|note| note.contains("batches of"));
        assert!(!about_batches(&found.notes));
        let single = of(r#"{"packet_ns": 500.0, "batch": 1.0}"#).unwrap();
        assert!(about_batches(&single.notes));
        assert!(
            of("null")
                .unwrap_err()
                .to_string()
                .contains("did not record")
        );
    }

    /// Returns the latencies of a simulated queue at a rate, with a service time in ns.
    fn measured(rate_pps: f64, service_ns: f64) -> Latencies {
        let service = ServiceTime::from_bins(&[
            (service_ns - 500.0, service_ns, 9.0),
            (service_ns, service_ns + 4_500.0, 1.0),
        ]);
        let processor = Processor::new(Arrivals::constant(rate_pps).unwrap(), service.unwrap())
            .with_transfer(3_000.0)
            .unwrap()
            .with_vacations(Vacations::none().with_periodic(250.0, 11_800.0).unwrap());
        let latency = replicate(&processor, 50_000, 3, 77).unwrap().latency;
        let summary = LONELY_PACKETS.replace("10000", &rate_pps.to_string());
        Latencies::read(folder_of(&latency, &summary).path()).unwrap()
    }

    #[test]
    fn the_packet_cost_is_derived_from_the_queue_under_load() {
        // A lonely packet takes 14 us and a packet of a busy core takes 12 us. 5 % of the packets take up to 4.5 us
        // more.
        let (forwarder, function) = (measured(1e4, 500.0), measured(1e4, 14_000.0));
        let busy = measured(75_000.0, 12_000.0);
        let find = |busy| tipping_point(forwarder.clone(), function.clone(), busy, None, &[]);
        let bound = find(None).unwrap();
        assert_eq!(bound.queue, None);
        let found = find(Some(busy)).unwrap();
        assert_eq!(found.highest, bound.highest);
        let queue = found.queue.unwrap();
        let truth_us = 0.9 * 11.75 + 0.1 * 14.25;
        let truth_pps = (1e6 - 250.0 * 11.8) / truth_us;
        let (cpu, highest) = (queue.cpu_us, queue.highest.estimate);
        assert!((cpu.value / truth_us - 1.0).abs() < 0.05, "{cpu:?}");
        assert!(
            (highest.value / truth_pps - 1.0).abs() < 0.05,
            "{highest:?}"
        );
        assert!(highest.low <= highest.value && highest.value <= highest.high);
        assert!(highest.value > 75_000.0, "{highest:?}");
        assert_eq!(queue.highest.errors.unwrap().count, 4);
        // The bound is too low, because it is derived from the time of lonely packets.
        let bound = bound.highest.estimate.value;
        assert!(bound < 0.93 * truth_pps, "{bound}");
        // The first `busy` folder is not at a higher rate. The second cannot be of the same function, because its
        // packets take less time than those of the forwarder.
        let faster = read(&[1], &LONELY_PACKETS.replace("10000", "20000")).unwrap();
        for (busy, says) in [
            (measured(5_000.0, 12_000.0), "expected a higher rate"),
            (faster, "no queue of the function"),
        ] {
            let error = find(Some(busy)).err().unwrap().to_string();
            assert!(
                error.contains(says) && error.lines().count() == 1,
                "{error}"
            );
        }
    }

    #[test]
    fn notes_name_each_cause_that_makes_a_forecast_less_reliable() {
        let of = |transport: &str, rate: &str| {
            let text = LONELY_PACKETS
                .replace("memif", transport)
                .replace("10000", rate);
            text.split(", \"device_interruptions\"")
                .next()
                .unwrap()
                .to_owned()
                + "}"
        };
        let forwarder = read(&[3], &of("memif", "10000")).unwrap();
        let function = read(&[15], &of("veth", "60000")).unwrap();
        let notes = tipping_point(forwarder, function, None, None, &[])
            .unwrap()
            .notes
            .join("\n");
        for part in [
            "do not note",
            "over memif, the function over veth",
            "72 % of what it takes",
        ] {
            assert!(notes.contains(part), "{notes}");
        }
    }

    #[test]
    fn unsuitable_result_folders_cause_a_one_line_error() {
        let two = LONELY_PACKETS.replace("[{", "[{\"lost_share\": 0.0}, {");
        let lossy = LONELY_PACKETS.replace("\"lost_share\": 0.0", "\"lost_share\": 0.2");
        for (latencies, summary, says) in [
            (&[3][..], "{}", "expected a folder of taut generate --out"),
            (
                &[3],
                "{\"event\": \"interval\", \"streams\": [], \"device\": null}",
                "expected a folder",
            ),
            (&[3], two.as_str(), "it has 2"),
            (&[3], lossy.as_str(), "20.0 % of the packets were lost"),
            (&[], LONELY_PACKETS, "0 packets came back"),
        ] {
            let error = read(latencies, summary).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let same = || read(&[3], LONELY_PACKETS).unwrap();
        let error = tipping_point(same(), same(), None, None, &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("longer than the plain forwarder"), "{error}");
    }
}
