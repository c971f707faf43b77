//! Overload from what was measured: the folders of `taut generate --out` of a plain forwarder and of a function between the same ports, at
//! a rate at which packets do not wait for each other. (Gallenmüller 2021, section 5.4.7, eqs. 5.9 and 5.10.)

use crate::ForecastError;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_measure::{LatencyHistogram, quantile_interval_ranks};
use taut_model::estimate::{Errors, Estimate, Prediction};
use taut_model::overload::{Interruption, Overload};
use taut_model::published;
use taut_results::{RECORDED_LATENCIES, read_json};

const CONFIDENCE: f64 = 0.95;
/// Packets of which a median is worth something.
const FEWEST: u64 = 100;
/// Share of packets that may be lost: of those a median knows nothing.
const MOST_LOST: f64 = 0.01;
/// Share of the time of a core above which packets wait for each other, so that latency is no service time.
const LONELY: f64 = 0.3;

/// Where a core with a function tips over.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TippingPoint {
    /// Time that the function takes the processor for a packet, µs: t_CPU.
    pub cpu_us: Estimate,
    /// Time that interruptions take of each second, µs: d_sum.
    pub interrupted_us_per_s: f64,
    /// The highest rate that the core keeps up with: R_max. Its errors are those of the published cases.
    pub highest: Prediction,
    /// Median latencies and rates of the two, the forwarder first.
    pub measured: [Latencies; 2],
    /// What to know about it.
    pub notes: Vec<String>,
}

/// What one of the folders says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latencies {
    /// Median, µs.
    pub median_us: Estimate,
    /// Packets that came back.
    pub packets: u64,
    /// Packets per second that were sent.
    pub sent_pps: f64,
    /// How the frames came to the device. None where the device was not set up by taut.
    pub transport: Option<String>,
    /// What took the device's core away. None where the device does not note that.
    pub interruptions: Option<Taken>,
}

/// How often and for how long a core was taken away.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Times a second.
    pub per_second: f64,
    /// Share of the time, 0 to 1.
    pub share: f64,
}

/// The part of `summary.json` that counts here.
#[derive(Deserialize)]
struct Summary {
    event: String,
    streams: Vec<Stream>,
    device: Option<Device>,
    #[serde(default)]
    device_interruptions: Option<Taken>,
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
    /// Reads the folder of a measurement of one stream.
    ///
    /// # Errors
    /// When it is the folder of something else, or too little came back.
    pub fn read(folder: &Path) -> Result<Self, ForecastError> {
        let wrong = |what: String| ForecastError::Wrong(format!("{}: {what}", folder.display()));
        let other = "want a folder of taut generate --out, with latencies of one stream";
        let summary: Summary = read_json(&folder.join("summary.json"))
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
        let log = std::fs::read(folder.join(RECORDED_LATENCIES)).ok();
        let histogram = log.and_then(|log| LatencyHistogram::read_hlog(&log).ok());
        let histogram = histogram.ok_or_else(|| {
            wrong(format!(
                "{other}; {RECORDED_LATENCIES} is missing or no histogram log"
            ))
        })?;
        let packets = histogram.count();
        let ranks = quantile_interval_ranks(packets, 0.5, CONFIDENCE);
        let at = |rank: u64| Some(histogram.value_at_rank(rank)? as f64 / 1e3);
        let median = ranks.filter(|_| packets >= FEWEST).and_then(|ranks| {
            let middle = histogram.quantile(0.5)? as f64 / 1e3;
            Some((middle, at(ranks.low)?, at(ranks.high)?, ranks.coverage))
        });
        let Some((median, low, high, coverage)) = median else {
            return Err(wrong(format!(
                "{packets} packets came back: a median wants {FEWEST} at least"
            )));
        };
        Ok(Self {
            // The ends are of buckets, and so may be the median.
            median_us: Estimate::new(median, low.min(median), high.max(median), coverage)?,
            packets,
            sent_pps: stream.sent_pps.unwrap_or(0.0),
            transport: summary.device.map(|device| device.transport),
            interruptions: summary.device_interruptions,
        })
    }
}

/// Predicts where a function tips over, from the latencies of a plain forwarder and of the function. Interruptions are those that are
/// given, or else those that the forwarder's core noted of itself, or the function's.
///
/// # Errors
/// When the function is not slower than the forwarder, or interruptions take all of the core.
pub fn tipping_point(
    forwarder: Latencies,
    function: Latencies,
    given: &[Interruption],
) -> Result<TippingPoint, ForecastError> {
    let mut notes = Vec::new();
    // A plain forwarder's rounds are short, so that its core notes what hides in those of the function.
    let noted = forwarder.interruptions.or(function.interruptions);
    let interruptions = match (given.is_empty(), noted) {
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
    };
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
    notes.push(
        "a bound from lonely packets: those of a busy core may take less; of four published cases it missed one".to_owned(),
    );
    Ok(TippingPoint {
        cpu_us: model.cpu_us,
        interrupted_us_per_s: model.interrupted_us_per_s,
        highest,
        measured: [forwarder, function],
        notes,
    })
}

/// The errors of the model on the four published cases, against where overload really began.
fn published_errors() -> Option<Errors> {
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

    /// A folder with packets that took so long, us.
    fn folder(latencies_us: &[u64], summary: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("summary.json"), summary).unwrap();
        let mut histogram = LatencyHistogram::new();
        for us in latencies_us {
            histogram.record_many(us * 1_000, 100);
        }
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
    fn r_max_is_what_interruptions_leave_over_what_the_function_adds() {
        let forwarder = read(&[2, 3, 4], LONELY_PACKETS).unwrap();
        let function = read(&[14, 15, 16], LONELY_PACKETS).unwrap();
        let found = tipping_point(forwarder.clone(), function.clone(), &[]).unwrap();
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
        let told = tipping_point(forwarder, function, &given).unwrap();
        assert_eq!(told.interrupted_us_per_s, 10_000.0);
    }

    #[test]
    fn what_makes_it_worth_less_is_told() {
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
        let notes = tipping_point(forwarder, function, &[])
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
    fn folders_of_something_else_are_refused_in_one_line() {
        let two = LONELY_PACKETS.replace("[{", "[{\"lost_share\": 0.0}, {");
        let lossy = LONELY_PACKETS.replace("\"lost_share\": 0.0", "\"lost_share\": 0.2");
        for (latencies, summary, says) in [
            (&[3][..], "{}", "want a folder of taut generate --out"),
            (
                &[3],
                "{\"event\": \"interval\", \"streams\": [], \"device\": null}",
                "want a folder",
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
        let error = tipping_point(same(), same(), &[]).unwrap_err().to_string();
        assert!(error.contains("longer than the plain forwarder"), "{error}");
    }
}
