//! What probes found: the account of all repetitions, as `taut probe client --json` prints it, and its folder.

mod files;
mod report;

pub use files::ProbeFolder;
pub use report::{is_probed, write};

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;
use taut_host::CpuShares;
use taut_measure::{Interval, LatencyHistogram, Summary, mean_beside_median};
use taut_results::Origin;
use taut_traffic::messages::Transport;
use taut_traffic::probe::{Train, TrainResult};
use taut_transport::Counts;

/// How often the interval beside the mean is to cover the median, from six repetitions on.
const CONFIDENCE: f64 = 0.95;

/// Everything that probes found. Times are round trips at the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Who answered.
    pub server: SocketAddr,
    /// What carried probes and answers.
    #[serde(default)]
    pub transport: Transport,
    /// What the transport counted; none of one that counts nothing.
    #[serde(default)]
    pub connection: Option<Counts>,
    /// Payload of each probe, bytes.
    pub size_bytes: usize,
    /// From one intended sending to the next, ns.
    pub interval_ns: u64,
    /// What became of them.
    #[serde(flatten)]
    pub probes: ProbeCounts,
    /// Share of those sent.
    pub lost_share: Option<f64>,
    /// From sending to the first answer.
    pub rtt_ns: Option<Summary>,
    /// From when the probe was to be sent.
    pub rtt_from_intended_ns: Option<Summary>,
    /// The part of round trips that their being read took: from when the kernel had the answer until the client had it. None
    /// where the kernel does not tell.
    pub wake_up_ns: Option<Summary>,
    /// Where round trips went, of probes that the kernel has stamped at each place; none where it was not asked to.
    #[serde(default)]
    pub stages: Option<ProbeStages>,
    /// Send delay: from when probes were to be sent to when they were. Folders of 0.1 have it only as
    /// [`ProbeReport::send_slip_ns`].
    pub send_delay_ns: Option<Summary>,
    /// As [`ProbeReport::send_delay_ns`], under the name that it has until 0.3.
    pub send_slip_ns: Option<Summary>,
    /// Mean of the repetitions' means, and beside it the interval of their median; none without answers.
    pub rtt_mean_ns: Option<Interval>,
    /// What fits the budget; none without one.
    pub budget: Option<Budget>,
    /// Each repetition.
    pub repetitions: Vec<RepetitionReport>,
    /// What the processors of the client's machine did meanwhile.
    pub cpu: Option<CpuShares>,
    /// CPU time of the client, its part of the kernel's included, over the probes that were sent, ns: each is a packet
    /// that leaves and one that comes.
    #[serde(default)]
    pub cpu_per_probe_ns: Option<f64>,
    /// Probes in the sample file; none without a folder.
    pub samples: Option<u64>,
    /// How all of it came about.
    #[serde(flatten)]
    pub origin: Origin,
}

impl ProbeReport {
    /// Returns the send delay, by whichever name it was written.
    pub fn send_delay(&self) -> Option<&Summary> {
        self.send_delay_ns.as_ref().or(self.send_slip_ns.as_ref())
    }
}

/// Where round trips went. Names of stamps are those of Gallenmüller's dissertation, section 6.3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeStages {
    /// From sending until the kernel put the datagram into the interface's queue: the stack (m2 - m1).
    pub sender_ns: Summary,
    /// From there until the driver had it (m3 - m2).
    pub driver_ns: Summary,
    /// Until the kernel had the answer: both ways, and the server.
    pub away_ns: Summary,
    /// Until the client had it (m6 - m5).
    pub receiver_ns: Summary,
}

/// A number of probes, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeCounts {
    /// Taken by the kernel.
    pub sent: u64,
    /// Answered in time.
    pub received: u64,
    /// Not answered, or too late.
    pub lost: u64,
    /// Answers beyond the first.
    pub duplicate: u64,
    /// Answered after a later one.
    pub reordered: u64,
    /// Answers after their repetition was over; their probes are among the lost.
    pub late: u64,
    /// Datagrams from the server that are no answers of this session.
    pub malformed: u64,
    /// Not taken by the kernel.
    pub refused: u64,
    /// How often another machine said that they cannot be delivered.
    pub unreachable: u64,
}

/// Time that round trips may take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// That time, ns.
    pub ns: u64,
    /// Packets that took no longer, as a share of those that were to be sent; lost ones did.
    pub share: f64,
}

/// One repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepetitionReport {
    /// What became of its probes.
    #[serde(flatten)]
    pub probes: ProbeCounts,
    /// Mean round trip, ns.
    pub rtt_mean_ns: Option<f64>,
    /// Longest round trip, ns.
    pub rtt_max_ns: Option<u64>,
}

/// Adds repetitions up.
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
    /// Of nothing yet.
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

    /// Adds a repetition.
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

    /// Round trips from sending.
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

    /// The whole of it.
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

    /// Round trips of a train in us; none where the probe was lost.
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
    fn means_are_of_repetitions_and_lost_probes_miss_the_budget() {
        let mut account = ProbeAccount::new(Some(Duration::from_micros(200)));
        account.add(&train(&[Some(100), Some(200), None]));
        account.add(&train(&[Some(300), Some(100), Some(350)]));
        let server = "127.0.0.1:9".parse().unwrap();
        let report = account.report(server, &TRAIN, None, Origin::default());
        let counts = report.probes;
        assert_eq!((counts.sent, counts.received, counts.lost), (6, 5, 1));
        assert_eq!((counts.late, report.lost_share), (2, Some(1.0 / 6.0)));
        // Of 150 and 250 us, not of the five round trips.
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
