//! A results folder of a device that carries a million packets a second, for tests.
#![allow(clippy::unwrap_used)]

use super::results::{
    Burst, Counts, Folder, Head, Limits, LoadLatency, Measured, Part, Settings, Soak, SoakInterval,
    Unit,
};
use std::path::PathBuf;
use taut_bench::evaluate::{Causes, SlowestPackets, SlowestSummary};
use taut_measure::{
    EXCEED_RATIO, LatencyHistogram, Method, ThroughputSearch, ThroughputSettings, TrialOutcome,
};
use taut_model::Cause;
use taut_results::Manifest;
use taut_results::{Completion, Mode};

const CAPACITY_PPS: f64 = 1e6;

fn head(completion: Completion) -> Head {
    Head {
        manifest: Manifest {
            completion,
            machine: serde_json::json!({"cpu": "made up"}),
            ..crate::manifest::manifest(Head::SCHEMA)
        },
        settings: Settings {
            mode: Mode::Default,
            parts: vec![
                Part::Throughput,
                Part::Latency,
                Part::Loss,
                Part::BackToBack,
                Part::Soak,
            ],
            method: Method::Mlr,
            precision: 0.01,
            loss_tolerance: 0.0,
            trial_seconds: 1.0,
            votes: 3,
            goals: Vec::new(),
            repetitions: 2,
            max_rate_pps: None,
            shares: vec![0.1, 0.9],
            rate_pps: None,
            latency_seconds: 1.0,
            bursts: 2,
            longest_burst_seconds: 2.0,
            soak_seconds: 10.0,
            tap: false,
            soak_interval_seconds: 1.0,
            limits: Limits {
                min_throughput_pps: Some(2e6),
                max_p99_ns: Some(1_000.0),
            },
            seed: Some(7),
        },
        device: "a made-up device".to_string(),
        device_note: "carries a million a second".to_string(),
        sizes: vec!["64".to_string(), "imix".to_string()],
        average_bytes: vec![64.0, 361.8],
    }
}

fn counts(offered_pps: f64) -> Counts {
    let sent = offered_pps as u64;
    Counts {
        offered_pps,
        seconds: 1.0,
        sent,
        received: sent.min(CAPACITY_PPS as u64),
        ..Counts::default()
    }
}

pub(super) fn load(share: f64, packets: u64) -> LoadLatency {
    let slice = |n: u64| -> Vec<(u64, u64)> {
        (0..packets / 10)
            .map(|i| (1_000 + n * 10 + i % 500, 1))
            .collect()
    };
    let slices: Vec<Vec<(u64, u64)>> = (0..10).map(slice).collect();
    let mut whole = LatencyHistogram::new();
    slices
        .iter()
        .flatten()
        .for_each(|(ns, n)| whole.record_many(*ns, *n));
    LoadLatency {
        share: Some(share),
        counts: counts(share * CAPACITY_PPS),
        summary: taut_measure::Summary::from_histogram(&whole),
        slices,
        inside: None,
        slowest: slowest(packets),
    }
}

/// Returns two slow packets: one that a tick on the device's core delayed, and one without a known cause. Returns none
/// if `packets` is 0.
fn slowest(packets: u64) -> Option<SlowestPackets> {
    let summary = SlowestSummary {
        above_ns: 1_590.0,
        causes: Causes {
            spikes: 2,
            by_cause: [(Cause::DeviceTick, 1), (Cause::Unexplained, 1)].into(),
            device_known: true,
            ..Causes::default()
        },
    };
    let each = vec![
        (0.25, 1_590.0, Cause::DeviceTick),
        (0.5, 1_599.0, Cause::Unexplained),
    ];
    (packets > 0).then_some(SlowestPackets { summary, each })
}

pub(super) fn throughput() -> Measured {
    let mut search = ThroughputSearch::new(ThroughputSettings {
        method: Method::Mlr,
        min_pps: 10.0,
        max_pps: 1e7,
        precision: 0.01,
        loss_tolerance: 0.0,
        trial_seconds: 1.0,
        votes: 3,
        exceed_ratio: EXCEED_RATIO,
    })
    .unwrap();
    while let Some(wanted) = search.next() {
        let sent = (wanted.rate_pps * wanted.seconds) as u64;
        let outcome = TrialOutcome {
            offered_pps: wanted.rate_pps,
            sent,
            received: sent.min((CAPACITY_PPS * wanted.seconds) as u64),
            refused: 0,
            generator_behind: false,
        };
        search.report(wanted, outcome);
    }
    Measured::Throughput {
        result: search.result(),
    }
}

/// Writes a folder with all parts for 64 bytes, and only an empty latency part for imix.
pub(super) fn folder(completion: Completion) -> (tempfile::TempDir, PathBuf) {
    folder_of(completion, 100_000)
}

/// Writes the same folder as [`folder`], but with `packets` packets at the higher of two loads.
pub(super) fn folder_of(completion: Completion, packets: u64) -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("made-up");
    let folder = Folder::create(&dir, &head(completion)).unwrap();
    let write = |size: &str, repetition, measured| {
        let size = size.to_string();
        let unit = Unit {
            size,
            repetition,
            measured,
        };
        folder.write(&unit).unwrap();
    };
    for repetition in 1..=2 {
        write("64", repetition, throughput());
        let loads = vec![load(0.1, 100), load(0.9, packets)];
        write("64", repetition, Measured::Latency { loads });
        let points = [4e6, 3e6, 2e6, 1e6, 5e5].map(counts).to_vec();
        write("64", repetition, Measured::Loss { points });
        let burst = Burst {
            length: 4_096,
            counts: Counts {
                seconds: 4_096.0 / 4e6,
                sent: 4_096,
                ..counts(4e6)
            },
        };
        write(
            "64",
            repetition,
            Measured::BackToBack {
                length: 4_000,
                unlimited: false,
                bursts: vec![burst],
            },
        );
    }
    let loads = vec![load(0.1, 0)];
    write("imix", 1, Measured::Latency { loads });
    let mut soak = folder.begin_soak().unwrap();
    for second in 0..10 {
        let load = load(0.5, 1_000);
        soak.push(&SoakInterval {
            start_seconds: f64::from(second),
            seconds: 1.0,
            sent: 1_000,
            received: 1_000 - u64::from(second == 5),
            refused: 0,
            latency: load.summary,
        })
        .unwrap();
    }
    let whole = Soak {
        size: "64".to_string(),
        counts: Counts {
            seconds: 10.0,
            sent: 10_000,
            received: 9_999,
            ..counts(1e3)
        },
        latency: load(0.5, 1_000).summary,
        late: 0,
        skipped_intervals: 0,
    };
    folder.write_soak(&whole).unwrap();
    (parent, dir)
}
