//! The results of probes: the report of all repetitions, as printed by `taut probe client --json`, and its folder.

mod files;
mod report;

pub use files::ProbeFolder;
pub use report::{is_probed, write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;
use taut_bench::measurement::Budget;
use taut_host::CpuShares;
use taut_measure::{Interval, LatencyHistogram, Summary, mean_beside_median};
use taut_results::Origin;
use taut_traffic::messages::Transport;
use taut_traffic::probe::{Train, TrainResult};
use taut_transport::Counts;

/// Confidence level of the interval of the median; an interval needs six repetitions or more.
const CONFIDENCE: f64 = 0.95;

/// The results of all probes. Times are round trips at the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeReport {
    /// Address of the server.
    pub server: SocketAddr,
    /// The transport protocol of probes and replies.
    #[serde(default)]
    pub transport: Transport,
    /// Counters of the transport protocol; none if it has no counters.
    #[serde(default)]
    pub connection: Option<Counts>,
    /// Payload of each probe, bytes.
    pub size_bytes: usize,
    /// Time between successive intended send times, ns.
    pub interval_ns: u64,
    /// Counts of the probes of all repetitions, by result.
    #[serde(flatten)]
    pub probes: ProbeCounts,
    /// Fraction of the sent probes that were lost; none if no probe was sent.
    pub lost_share: Option<f64>,
    /// Round-trip time from sending to the first reply; none without replies.
    pub rtt_ns: Option<Summary>,
    /// Round-trip time from the intended send time; none without replies.
    pub rtt_from_intended_ns: Option<Summary>,
    /// Part of the round-trip time between the reply's arrival in the kernel and in the client. It is none if the
    /// kernel does not report it.
    pub wake_up_ns: Option<Summary>,
    /// Stages of the round trips of those probes that the kernel timestamped at each point; none if timestamps were not
    /// requested.
    #[serde(default)]
    pub stages: Option<ProbeStages>,
    /// Send delay: time from the intended to the actual sending of a probe; none if no delay was recorded. Folders of
    /// version 0.1 contain the send delay only as [`ProbeReport::send_slip_ns`].
    pub send_delay_ns: Option<Summary>,
    /// Copy of [`ProbeReport::send_delay_ns`] under its old name, present until version 0.3; none in later results.
    pub send_slip_ns: Option<Summary>,
    /// Mean of the repetitions' mean round trips, ns, with the confidence interval of the median of these means; none
    /// without replies.
    pub rtt_mean_ns: Option<Interval>,
    /// Fraction of the probes within the latency budget; none without a budget.
    pub budget: Option<Budget>,
    /// Results of each repetition.
    pub repetitions: Vec<RepetitionReport>,
    /// Use of the processors of the client's machine during the measurement; none if the kernel's counters could not be
    /// read.
    pub cpu: Option<CpuShares>,
    /// CPU time of the client per sent probe, including the time in the kernel, ns; none if the CPU time is not known.
    /// Each probe is one sent and one received packet.
    #[serde(default)]
    pub cpu_per_probe_ns: Option<f64>,
    /// Number of probes in the sample file; none without a results folder.
    pub samples: Option<u64>,
    /// The time, command and software versions of the measurement.
    #[serde(flatten)]
    pub origin: Origin,
}

impl ProbeReport {
    /// Returns the send delay, from [`ProbeReport::send_slip_ns`] in folders that have it only under its old name; none
    /// if neither field is present.
    pub fn send_delay(&self) -> Option<&Summary> {
        self.send_delay_ns.as_ref().or(self.send_slip_ns.as_ref())
    }
}

/// The stages of probes' round trips. The timestamps m2 to m6 are named as in Gallenmüller's dissertation (TU München
/// 2021), section 6.3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeStages {
    /// Time in the sender's network stack, from sending until the datagram is in the interface's queue (m2 - m1).
    pub sender_ns: Summary,
    /// Time from the interface's queue until the driver has the datagram (m3 - m2).
    pub driver_ns: Summary,
    /// Time from the driver until the kernel receives the reply (m5 - m3): both directions, and the server.
    pub away_ns: Summary,
    /// Time from the kernel's receipt of the reply until the client receives it (m6 - m5).
    pub receiver_ns: Summary,
}

/// Counts of probes by their result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProbeCounts {
    /// Probes that the kernel accepted.
    pub sent: u64,
    /// Probes whose reply arrived before the end of their repetition.
    pub received: u64,
    /// Probes without a reply, or whose reply arrived after the end of their repetition.
    pub lost: u64,
    /// Further replies to a probe that was already answered.
    pub duplicate: u64,
    /// Number of probes whose reply arrived after the reply to a later probe.
    pub reordered: u64,
    /// Number of replies that arrived after the end of their repetition. Their probes count as lost.
    pub late: u64,
    /// Datagrams from the server that are not replies to probes of this measurement.
    pub malformed: u64,
    /// Number of probes that the kernel did not accept.
    pub refused: u64,
    /// Number of ICMP errors for undeliverable probes.
    pub unreachable: u64,
}

/// The results of one repetition of a probe measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RepetitionReport {
    /// Counts of the repetition's probes.
    #[serde(flatten)]
    pub probes: ProbeCounts,
    /// Mean round trip, ns; none without replies.
    pub rtt_mean_ns: Option<f64>,
    /// Longest round trip, ns; none without replies.
    pub rtt_max_ns: Option<u64>,
}

/// Accumulates the results of the repetitions of a probe measurement.
#[derive(Debug, Clone)]
pub struct ProbeAccount {
    budget_ns: Option<u64>,
    within: u64,
    rtt: LatencyHistogram,
    from_intended: LatencyHistogram,
    send_delay: LatencyHistogram,
    wake_up: LatencyHistogram,
    stages: [LatencyHistogram; 4],
    repetitions: Vec<RepetitionReport>,
}

impl ProbeAccount {
    /// Creates an accumulator without repetitions; with `budget`, it counts the probes within this round-trip time.
    pub fn new(budget: Option<Duration>) -> Self {
        Self {
            budget_ns: budget.map(|budget| budget.as_nanos() as u64),
            within: 0,
            rtt: LatencyHistogram::new(),
            from_intended: LatencyHistogram::new(),
            send_delay: LatencyHistogram::new(),
            wake_up: LatencyHistogram::new(),
            stages: [(); 4].map(|()| LatencyHistogram::new()),
            repetitions: Vec::new(),
        }
    }

    /// Adds the results of a repetition.
    pub fn add(&mut self, train: &TrainResult) {
        let mut own = LatencyHistogram::new();
        for probe in train.probes.iter().filter(|probe| !probe.refused) {
            self.send_delay
                .record(probe.sent_ns.saturating_sub(probe.due_ns));
            let Some(rtt_ns) = probe.rtt_ns else { continue };
            own.record(rtt_ns);
            if let Some(ns) = probe.wake_up_ns {
                self.wake_up.record(ns);
            }
            if let Some(stages) = probe.stages_ns() {
                let both = self.stages.iter_mut().zip(stages);
                both.for_each(|(stage, ns)| stage.record(ns));
            }
            self.within += u64::from(self.budget_ns.is_some_and(|budget| rtt_ns <= budget));
            if let Some(ns) = probe.rtt_from_intended_ns() {
                self.from_intended.record(ns);
            }
        }
        self.rtt.merge(&own);
        let sequence = &train.sequence;
        self.repetitions.push(RepetitionReport {
            probes: ProbeCounts {
                sent: sequence.sent,
                received: sequence.received_unique,
                lost: sequence.lost,
                duplicate: sequence.duplicate,
                reordered: sequence.reordered,
                late: train.late,
                malformed: train.malformed,
                refused: train.refused,
                unreachable: train.unreachable,
            },
            rtt_mean_ns: own.mean_ns(),
            rtt_max_ns: own.max_ns(),
        });
    }

    /// Returns the histogram of round-trip times, measured from the actual sending of each probe.
    pub fn rtt(&self) -> &LatencyHistogram {
        &self.rtt
    }

    fn stages(&self) -> Option<ProbeStages> {
        let [sender, driver, away, receiver] = self.stages.each_ref().map(Summary::from_histogram);
        Some(ProbeStages {
            sender_ns: sender?,
            driver_ns: driver?,
            away_ns: away?,
            receiver_ns: receiver?,
        })
    }

    /// Returns the report of all repetitions.
    pub fn report(
        &self,
        server: SocketAddr,
        train: &Train,
        cpu: Option<CpuShares>,
        origin: Origin,
    ) -> ProbeReport {
        let mut probes = ProbeCounts::default();
        for of in self.repetitions.iter().map(|it| it.probes) {
            probes.add(of);
        }
        let means = self.repetitions.iter().filter_map(|it| it.rtt_mean_ns);
        let means: Vec<f64> = means.collect();
        let share = |part: u64| (probes.sent > 0).then(|| part as f64 / probes.sent as f64);
        let send_delay_ns = Summary::from_histogram(&self.send_delay);
        ProbeReport {
            server,
            transport: Transport::Udp,
            connection: None,
            size_bytes: train.size_bytes,
            interval_ns: train.interval.as_nanos() as u64,
            probes,
            lost_share: share(probes.lost),
            rtt_ns: Summary::from_histogram(&self.rtt),
            rtt_from_intended_ns: Summary::from_histogram(&self.from_intended),
            wake_up_ns: Summary::from_histogram(&self.wake_up),
            stages: self.stages(),
            send_delay_ns: send_delay_ns.clone(),
            send_slip_ns: send_delay_ns,
            rtt_mean_ns: mean_beside_median(&means, CONFIDENCE),
            budget: self
                .budget_ns
                .zip(share(self.within))
                .map(|(ns, share)| Budget { ns, share }),
            repetitions: self.repetitions.clone(),
            cpu,
            cpu_per_probe_ns: None,
            samples: None,
            origin,
        }
    }
}

impl ProbeCounts {
    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.lost += other.lost;
        self.duplicate += other.duplicate;
        self.reordered += other.reordered;
        self.late += other.late;
        self.malformed += other.malformed;
        self.refused += other.refused;
        self.unreachable += other.unreachable;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_measure::SequenceTracker;
    use taut_traffic::probe::Outcome;

    pub(super) const TRAIN: Train = Train {
        interval: Duration::from_millis(5),
        size_bytes: 256,
        count: 3,
        patience: Duration::from_secs(1),
    };

    /// Returns a train of probes with the given round-trip times in µs; `None` is a lost probe.
    pub(super) fn train(round_trips_us: &[Option<u64>]) -> TrainResult {
        let mut tracker = SequenceTracker::with_window(64);
        let outcome = |(at, rtt_us): (usize, &Option<u64>)| {
            let due_ns = at as u64 * 5_000_000;
            if rtt_us.is_some() {
                tracker.record(at as u64);
            }
            Outcome {
                due_ns,
                sent_ns: due_ns + 10_000,
                rtt_ns: rtt_us.map(|us| us * 1000),
                wake_up_ns: rtt_us.map(|us| us * 100),
                arrivals: u8::from(rtt_us.is_some()),
                ..Outcome::default()
            }
        };
        let probes = round_trips_us.iter().enumerate().map(outcome).collect();
        TrainResult {
            probes,
            sequence: tracker.finish(round_trips_us.len() as u64),
            refused: 0,
            late: 1,
            malformed: 0,
            unreachable: 0,
            seconds: 0.01,
            stopped: false,
        }
    }

    #[test]
    fn means_average_repetitions_and_lost_probes_count_as_over_budget() {
        let mut account = ProbeAccount::new(Some(Duration::from_micros(200)));
        account.add(&train(&[Some(100), Some(200), None]));
        account.add(&train(&[Some(300), Some(100), Some(350)]));
        let server = "127.0.0.1:9".parse().unwrap();
        let report = account.report(server, &TRAIN, None, Origin::default());
        let counts = report.probes;
        assert_eq!((counts.sent, counts.received, counts.lost), (6, 5, 1));
        assert_eq!((counts.late, report.lost_share), (2, Some(1.0 / 6.0)));
        // The mean is that of the two repetitions' means, 150 and 250 µs, not that of the five round trips.
        let mean = report.rtt_mean_ns.unwrap();
        assert!((mean.point - 200e3).abs() < 1.0 && (mean.low, mean.high) == (150e3, 250e3));
        assert_eq!(report.rtt_ns.unwrap().avg_ns, 210e3);
        assert_eq!(report.rtt_from_intended_ns.unwrap().avg_ns, 220e3);
        assert_eq!(report.wake_up_ns.unwrap().avg_ns, 21e3);
        let budget = report.budget.unwrap();
        assert_eq!((budget.ns, budget.share), (200_000, 0.5));
        let alone = ProbeAccount::new(None).report(server, &TRAIN, None, Origin::default());
        assert!(alone.rtt_mean_ns.is_none() && alone.budget.is_none() && alone.rtt_ns.is_none());
    }
}
