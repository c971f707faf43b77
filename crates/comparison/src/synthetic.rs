//! A synthetic experiment with distributions like those of Stylianopoulos et al. (DEBS 2020), for the development of
//! figures and report. It has a buffered device with latencies spread evenly up to its drain timer, and unbuffered ones
//! with a peak and a tail.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use serde_json::json;
use taut_measure::{
    JitterRecorder, LadderSearch, LatencyHistogram, SearchSettings, Summary, TrialOutcome,
};

use taut_results::{
    CbrResult, Clock, Completion, DeviceInfo, Experiment, Folder, Kind, LeftOut, Manifest, Mode,
    Noise, PacketSample, PingPong, RunWriter, Settings, Sweep, SweepTrial, Transport,
};

/// The behaviour of a synthetic device.
#[derive(Clone, Copy)]
struct Shape {
    /// Latency of a packet that does not wait, ns.
    base_ns: f64,
    /// Maximum waiting time, ns. Waiting times are spread evenly from 0 to this maximum.
    wait_ns: f64,
    /// Standard deviation of the logarithm of the latency without waiting.
    spread: f64,
    /// Highest rate that the device forwards, packets per second.
    capacity_pps: f64,
    /// Number of slots of the device's receive ring.
    ring: f64,
}

pub struct Plan {
    pub repetitions: u32,
    pub packets: u64,
    pub seed: u64,
}

pub const SMALL: Plan = Plan {
    repetitions: 2,
    packets: 3_000,
    seed: 7,
};

/// A synthetic device: its entry in a manifest, and its behaviour.
struct MadeUp {
    id: &'static str,
    label: &'static str,
    transport: Transport,
    io: &'static str,
    flush: Option<&'static str>,
    flush_wait_ns: Option<u64>,
    shape: Shape,
}

impl MadeUp {
    /// Returns the manifest entry of the synthetic device.
    fn info(&self) -> DeviceInfo {
        let kind = if self.io == "loop" {
            Kind::Calibration
        } else {
            Kind::Forwarder
        };
        let command = format!("taut forward {}.toml", self.id);
        DeviceInfo {
            id: self.id.to_owned(),
            label: self.label.to_owned(),
            transport: self.transport,
            kind,
            io: self.io.to_owned(),
            flush: self.flush.map(str::to_owned),
            flush_wait_ns: self.flush_wait_ns,
            command: command.split(' ').map(str::to_owned).collect(),
            note: String::new(),
        }
    }
}

/// Returns the shape with the given values, in the order of its fields.
const fn shape(base_ns: f64, wait_ns: f64, spread: f64, capacity_pps: f64, ring: f64) -> Shape {
    Shape {
        base_ns,
        wait_ns,
        spread,
        capacity_pps,
        ring,
    }
}

/// The synthetic devices.
const DEVICES: [MadeUp; 11] = [
    MadeUp {
        id: "memif-full",
        label: "full(32, 100 µs)",
        transport: Transport::Memif,
        io: "memif",
        flush: Some("full(32, drain 100 us)"),
        flush_wait_ns: Some(100_000),
        shape: shape(720.0, 100_000.0, 0.06, 9.6e6, 1024.0),
    },
    MadeUp {
        id: "memif-each",
        label: "each",
        transport: Transport::Memif,
        io: "memif",
        flush: Some("each"),
        flush_wait_ns: None,
        shape: shape(700.0, 0.0, 0.05, 5.1e6, 1024.0),
    },
    MadeUp {
        id: "memif-every",
        label: "every(50 µs)",
        transport: Transport::Memif,
        io: "memif",
        flush: Some("every(50 us)"),
        flush_wait_ns: Some(50_000),
        shape: shape(720.0, 50_000.0, 0.06, 9.4e6, 1024.0),
    },
    MadeUp {
        id: "memif-idle",
        label: "idle(32)",
        transport: Transport::Memif,
        io: "memif",
        flush: Some("idle(32)"),
        flush_wait_ns: None,
        shape: shape(710.0, 0.0, 0.05, 9.7e6, 1024.0),
    },
    MadeUp {
        id: "veth-bridge",
        label: "Linux bridge",
        transport: Transport::Veth,
        io: "bridge",
        flush: None,
        flush_wait_ns: None,
        shape: shape(16_000.0, 0.0, 0.12, 0.61e6, 512.0),
    },
    MadeUp {
        id: "veth-packet-each",
        label: "AF_PACKET each",
        transport: Transport::Veth,
        io: "AF_PACKET",
        flush: Some("each"),
        flush_wait_ns: None,
        shape: shape(22_000.0, 0.0, 0.16, 0.42e6, 512.0),
    },
    MadeUp {
        id: "veth-packet-idle",
        label: "AF_PACKET idle(32)",
        transport: Transport::Veth,
        io: "AF_PACKET",
        flush: Some("idle(32)"),
        flush_wait_ns: None,
        shape: shape(22_300.0, 0.0, 0.15, 0.55e6, 512.0),
    },
    MadeUp {
        id: "veth-xdp-each",
        label: "AF_XDP each",
        transport: Transport::Veth,
        io: "AF_XDP",
        flush: Some("each"),
        flush_wait_ns: None,
        shape: shape(12_500.0, 0.0, 0.11, 0.72e6, 512.0),
    },
    MadeUp {
        id: "veth-xdp-idle",
        label: "AF_XDP idle(32)",
        transport: Transport::Veth,
        io: "AF_XDP",
        flush: Some("idle(32)"),
        flush_wait_ns: None,
        shape: shape(12_600.0, 0.0, 0.11, 0.95e6, 512.0),
    },
    MadeUp {
        id: "memif-loop",
        label: "loop-back",
        transport: Transport::Memif,
        io: "loop",
        flush: None,
        flush_wait_ns: None,
        shape: shape(180.0, 0.0, 0.03, 2e7, 1024.0),
    },
    MadeUp {
        id: "veth-loop",
        label: "loop-back",
        transport: Transport::Veth,
        io: "loop",
        flush: None,
        flush_wait_ns: None,
        shape: shape(9_000.0, 0.0, 0.1, 1.2e6, 512.0),
    },
];

/// Returns each synthetic device and its behaviour.
fn devices() -> Vec<(DeviceInfo, Shape)> {
    DEVICES
        .iter()
        .map(|device| (device.info(), device.shape))
        .collect()
}

pub fn experiment(plan: &Plan) -> Experiment {
    Experiment {
        manifest: Manifest {
            schema: Experiment::SCHEMA,
            title: "Packet forwarders compared on one machine".to_owned(),
            taut_version: "0.1.0".to_owned(),
            started: "2026-01-02T03:04:05Z".to_owned(),
            command_line: "taut demo --seed 7".to_owned(),
            completion: Completion::Finished,
        machine: json!({
            "cpu": {"model": "Made-up processor", "cores": 2, "caches": ["L1d 32 kB", "L2 1 MB", "L3 32 MB"]},
            "kernel": {"release": "6.1.0", "command_line": "quiet"},
            "virtual_machine": true,
            "isolated_cores": null,
        }),
        core_plan: "Core 0 runs the generator (sending and receiving in one loop), core 1 the device under test.".to_owned(),
        noise: vec![
            Noise { name: "virtual machine".to_owned(), detail: "The host may take a core away at any time; steal time was 0.1 %.".to_owned(), taken: None, programs: Vec::new() },
            Noise { name: "timer interrupts".to_owned(), detail: "250 per second on each core, a few µs each.".to_owned(), taken: None, programs: Vec::new() },
        ],
        failed_attempts: Vec::new(),
            left_out: vec![LeftOut {
            what: "Hardware time stamps".to_owned(),
            why: "The machine has no network card that takes them.".to_owned(),
            how: "Use a card with PTP support.".to_owned(),
        }],
        },
        settings: Settings {
            mode: Mode::Default,
            frame_size_bytes: 64,
            rate_pps: 100_000.0,
            cbr_seconds: plan.packets as f64 / 1e5,
            trial_seconds: 0.2,
            repetitions: plan.repetitions,
            seed: plan.seed,
        },
        devices: devices().into_iter().map(|(info, _)| info).collect(),
        clock: Clock { source: "TSC".to_owned(), hz: 2_445_406_000.0, error_ppm: 0.8 },
        ping_pong: Some(PingPong { p50_ns: 110.0, count: 1_000_000 }),
    }
}

/// Writes the results folder of a complete synthetic experiment.
pub fn write(dir: &Path, plan: &Plan) -> Folder {
    let folder = Folder::create(dir, &experiment(plan)).unwrap();
    for repetition in 1..=plan.repetitions {
        for (index, (info, shape)) in devices().into_iter().enumerate() {
            let seed = plan.seed * 1_000_003 + u64::from(repetition) * 101 + index as u64;
            let run = folder.begin_run(&info.id, repetition).unwrap();
            write_run(&run, shape, plan.packets, &mut Rng::with_seed(seed));
            run.finish().unwrap();
        }
    }
    folder
}

fn write_run(run: &RunWriter, shape: Shape, packets: u64, random: &mut Rng) {
    let mut writer = run.samples().unwrap();
    let (mut latency, mut intended, mut jitter) = (
        LatencyHistogram::new(),
        LatencyHistogram::new(),
        JitterRecorder::new(),
    );
    let mut send_delays = LatencyHistogram::new();
    let mut lost = 0;
    for sequence in 0..packets {
        let due_ns = sequence as f64 * 10_000.0;
        let send_delay_ns = (20.0
            + random.f64() * 15.0
            + if random.f64() < 1e-4 {
                4_000.0 * random.f64()
            } else {
                0.0
            }) as u32;
        let latency_ns = (random.f64() >= 3e-6).then(|| one_latency(shape, due_ns, random) as u32);
        writer
            .push(&PacketSample {
                sequence,
                intended_send_ns: due_ns as i64,
                send_delay_ns,
                latency_ns,
                arrivals: latency_ns.is_some().into(),
                ..PacketSample::default()
            })
            .unwrap();
        send_delays.record(send_delay_ns.into());
        match latency_ns.map(u64::from) {
            Some(ns) => {
                latency.record(ns);
                intended.record(ns + u64::from(send_delay_ns));
                jitter.record(sequence, ns);
            }
            None => lost += 1,
        }
    }
    writer.finish(false).unwrap();
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045);
    run.write_histogram(
        &latency,
        start,
        Duration::from_secs_f64(packets as f64 / 1e5),
    )
    .unwrap();
    run.write_cbr(&CbrResult {
        offered_pps: 1e5,
        sent_pps: 99_999.7,
        received_pps: 99_999.6,
        sent: packets,
        received: packets - lost,
        lost,
        refused: 0,
        duplicate: 0,
        reordered: 0,
        corrupt: 0,
        foreign: 2,
        saturated: 0,
        latency: Summary::from_histogram(&latency),
        latency_from_intended: Summary::from_histogram(&intended),
        jitter: jitter.summary(),
        send_delay: Summary::from_histogram(&send_delays),
        activity: json!({"interrupts": 12}),
        energy: None,
    })
    .unwrap();
    run.write_sweep(&sweep(shape, random)).unwrap();
}

fn one_latency(shape: Shape, due_ns: f64, random: &mut Rng) -> f64 {
    // The sum of uniform values is close enough to a normal one, without another dependency.
    let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
    let mut ns = shape.base_ns * (shape.spread * normal).exp();
    if shape.wait_ns > 0.0 {
        // The timer fires at fixed times, so a packet waits until the timer fires next.
        ns += shape.wait_ns - (due_ns * 1.000_37) % shape.wait_ns;
    }
    if (due_ns * 1.000_013) % 4_000_000.0 < 8_000.0 {
        ns += 8_000.0 - (due_ns * 1.000_013) % 4_000_000.0;
    }
    if random.f64() < 2e-5 {
        ns += 20_000.0 * (1.0 / (1.0 - random.f64())).powf(0.6);
    }
    ns
}

fn sweep(shape: Shape, random: &mut Rng) -> Sweep {
    let capacity = shape.capacity_pps * (1.0 + 0.06 * (random.f64() - 0.5));
    let settings = SearchSettings {
        start_pps: 1e4,
        factor: 1.6,
        max_pps: 3e7,
        lossy_trials_after_first: 1,
        bisections: 5,
    };
    let mut search = LadderSearch::new(settings).unwrap();
    let mut trials = Vec::new();
    while let Some(offered_pps) = search.next_rate_pps() {
        let generator_behind = offered_pps > 1.6e7;
        let sent = (offered_pps * 0.2) as u64;
        let received = sent.min((capacity * 0.2) as u64);
        search.report(TrialOutcome {
            offered_pps,
            sent,
            received,
            refused: 0,
            generator_behind,
        });
        let load = (offered_pps / capacity).min(0.995);
        let queueing = if received < sent {
            shape.ring / capacity * 1e9
        } else {
            load / (1.0 - load) * 1e9 / capacity
        };
        let wait = shape.wait_ns.min(31e9 / offered_pps) / 2.0;
        let latencies: Vec<u64> = (0..2_000)
            .map(|_| {
                (shape.base_ns + (wait + queueing) * 2.0 * random.f64()) as u64 + random.u64(0..200)
            })
            .collect();
        trials.push(SweepTrial {
            offered_pps,
            sent_pps: offered_pps,
            received_pps: received as f64 / 0.2,
            sent,
            received,
            lost: sent - received,
            refused: 0,
            behind: generator_behind,
            latency: Summary::from_samples(&latencies),
            seconds: 0.2,
        });
    }
    Sweep {
        trials,
        search: Some(search.result()),
    }
}
