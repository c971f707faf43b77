//! A trial: sets up receiver and transport, starts one generator, records its frames, and removes all of them.

use super::contender::{Contender, Program, RECEIVER_ADDRESS, Wanted};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taut_bench::benchmark::{Failed, Rig, Unit};
use taut_bench::framework::Transport;
use taut_host::testbed::{DEVICE_INTERFACES, GENERATOR_INTERFACES};
use taut_host::{DeviceProcess, Steering, Testbed};
use taut_measure::Precision;
use taut_port::PortSpec;
use taut_sys::Clock;
use taut_traffic::{Arrivals, Receiver};
use taut_wire::{Mac, UdpFlow};

/// Timeout for the first frame of a generator.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// Number of received frames after which a generator counts as sending its traffic, and not a handshake.
const FIRST_FRAMES: u64 = 20;
/// Warm-up before the count begins.
const WARM_UP: Duration = Duration::from_millis(150);
/// Requested rate for the measurement of a generator's highest paced rate, far above what any generator reaches.
const ALL_IT_CAN_PPS: f64 = 1e8;
/// Copies of the frame in the replayed capture.
const CAPTURED_FRAMES: usize = 1_000;

/// Address of the sender's interface, for the generators that need one.
const SENDER_ADDRESS: &str = "192.0.2.2/24";

/// The quantity that a trial measures, which also determines the frame size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The highest rate without pacing.
    Unpaced,
    /// The highest rate with pacing, measured with a requested rate that is far too high.
    Paced,
    /// The precision at a constant rate, packets per second.
    Rate(f64),
}

impl Part {
    /// Returns the name of the part for files and the progress bar.
    pub fn name(self) -> String {
        match self {
            Self::Unpaced => "unpaced".to_string(),
            Self::Paced => "paced".to_string(),
            Self::Rate(pps) => format!("{pps:.0}"),
        }
    }

    /// Returns the frame size in bytes, check sequence included: one size for the highest rate and one for precision,
    /// both as in the reference (Gallenmüller 2021).
    pub fn frame_size_bytes(self) -> usize {
        match self {
            Self::Unpaced | Self::Paced => 64,
            Self::Rate(_) => 128,
        }
    }

    fn pps(self) -> Option<f64> {
        match self {
            Self::Unpaced => None,
            Self::Paced => Some(ALL_IT_CAN_PPS),
            Self::Rate(pps) => Some(pps),
        }
    }
}

/// One trial of one generator, as observed by the receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The generator's id.
    pub generator: String,
    /// The quantity that the trial measured.
    pub part: Part,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Number of received frames.
    pub frames: u64,
    /// Mean frame size, frame check sequence included.
    pub frame_size_bytes: f64,
    /// Time from the first to the last frame, s.
    pub seconds: f64,
    /// Mean rate from the first to the last frame, packets per second.
    pub pps: f64,
    /// Frames lost because the receiver's ring was full.
    pub overrun: u64,
    /// Received frames that are not from the generator.
    pub foreign: u64,
    /// Number of interruptions of the receiver's core.
    pub interruptions: u64,
    /// Total length of the receiver's interruptions, s.
    pub interrupted_seconds: f64,
    /// Resolution of the receiver's timestamps, ns.
    pub resolution_ns: f64,
    /// Number of inter-departure times during the receiver's interruptions; 0 unless the trial measures precision.
    pub interrupted_gaps: u64,
    /// Precision of the inter-departure times outside of the receiver's interruptions; none unless the trial measures
    /// precision.
    pub precision: Option<Precision>,
    /// Mean squared error of all inter-departure times, ns²; none unless the trial measures precision.
    pub all_mean_squared_error_ns2: Option<f64>,
}

impl Trial {
    /// Evaluates the receiver's record of a trial.
    pub(super) fn of(
        generator: &str,
        part: Part,
        repetition: u32,
        arrivals: &Arrivals,
        overrun: u64,
        clock: &Clock,
    ) -> Self {
        let in_ns = |interrupted: bool| -> Vec<f64> {
            let gaps = arrivals.gaps.iter();
            gaps.filter(|gap| gap.is_interrupted() == interrupted)
                .map(|gap| clock.to_ns(gap.ticks().into()))
                .collect()
        };
        let mut trial = Self {
            generator: generator.to_string(),
            part,
            repetition,
            frames: arrivals.frames,
            frame_size_bytes: 0.0,
            seconds: arrivals.seconds,
            pps: arrivals.pps(),
            overrun,
            foreign: arrivals.foreign,
            interruptions: arrivals.interruptions,
            interrupted_seconds: arrivals.interrupted_seconds,
            resolution_ns: arrivals.resolution_ns,
            interrupted_gaps: 0,
            precision: None,
            all_mean_squared_error_ns2: None,
        };
        if arrivals.frames > 0 {
            trial.frame_size_bytes = arrivals.bytes as f64 / arrivals.frames as f64 + 4.0;
        }
        if let Part::Rate(pps) = part {
            let asked_ns = 1e9 / pps;
            let (mut clean, interrupted) = (in_ns(false), in_ns(true));
            let squares =
                |gaps: &[f64]| -> f64 { gaps.iter().map(|gap| (gap - asked_ns).powi(2)).sum() };
            let all = squares(&clean) + squares(&interrupted);
            let count = arrivals.gaps.len();
            trial.interrupted_gaps = interrupted.len() as u64;
            trial.all_mean_squared_error_ns2 = (count > 0).then(|| all / count as f64);
            trial.precision = Precision::of(&mut clean, asked_ns);
        }
        trial
    }
}

/// Runs one trial on the calling thread, which is pinned and may enter a namespace.
pub(super) fn measure(
    rig: &Rig<'_>,
    contender: &Contender,
    unit: &Unit<Part>,
    length: Duration,
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let (arrivals, overrun) = receive(rig, contender, unit.part, length, stop)?;
    Ok(Trial::of(
        &contender.id,
        unit.part,
        unit.repetition,
        &arrivals,
        overrun,
        &rig.clock,
    ))
}

fn receive(
    rig: &Rig<'_>,
    contender: &Contender,
    part: Part,
    length: Duration,
    stop: &AtomicBool,
) -> Result<(Arrivals, u64), Failed> {
    let scratch = taut_host::private::scratch()?;
    let folder = scratch.path();
    taut_host::pin_current_thread(rig.cores.generator)?;
    let socket = folder.join("generator.sock").display().to_string();
    // Values are dropped in reverse order: processes, then the receiver, then the namespace, then the testbed.
    let testbed = match contender.transport {
        // The kernel's receive work runs on the sender's core, so the receiver only reads the ring.
        Transport::Veth => Some(Testbed::builder().steering(Steering::Sender).build()?),
        _ => None,
    };
    let _inside = testbed.as_ref().map(Testbed::enter_generator).transpose()?;
    let mut receiver = open_receiver(testbed.as_ref(), &socket, rig.clock)?;
    let wanted = Wanted {
        end: if testbed.is_some() {
            DEVICE_INTERFACES[0]
        } else {
            &socket
        },
        pps: part.pps(),
        frame_size_bytes: part.frame_size_bytes(),
        cpu: rig.cores.device,
        folder,
        taut: rig.program,
        seconds: (START_PATIENCE + WARM_UP + length * 2).as_secs() as u32 + 10,
    };
    let (server, mut process) = start_generator(contender, testbed.as_ref(), &wanted)?;
    wait_for_frames(&mut receiver, &mut process, stop)?;
    // trafgen pins itself to the first CPU, which may be the receiver's.
    taut_host::pin_process_group(process.id(), rig.cores.device)?;
    if let Some(server) = &server {
        server.pause()?;
    }
    receiver.discard(WARM_UP);
    let overrun_before = receiver.overrun();
    let arrivals = record(&mut receiver, part, length, stop);
    let overrun = receiver.overrun() - overrun_before;
    if stop.load(Ordering::Relaxed) {
        return Err(Failed::Stopped);
    }
    process.check()?;
    // The generator may have exited after the connection ended. Its frames were counted already.
    let _ = process.stop();
    if arrivals.frames < 2 {
        return Err(Failed::Broken(format!(
            "no frames received in {:.1} s",
            length.as_secs_f64()
        )));
    }
    Ok((arrivals, overrun))
}

fn open_receiver(
    testbed: Option<&Testbed>,
    socket: &str,
    clock: Clock,
) -> Result<Receiver, Failed> {
    let spec = match testbed {
        Some(_) => format!("af_packet:{}", GENERATOR_INTERFACES[0]),
        None => format!("memif:{socket}"),
    };
    Ok(Receiver::open(&PortSpec::parse(&spec)?, clock)?)
}

/// Starts the generator, after the server that it needs, if any. Returns the server and the generator.
fn start_generator(
    contender: &Contender,
    testbed: Option<&Testbed>,
    wanted: &Wanted<'_>,
) -> Result<(Option<DeviceProcess>, DeviceProcess), Failed> {
    write_frames(wanted.folder, wanted.frame_size_bytes)?;
    std::fs::write(wanted.folder.join("frames.pkt"), wanted.pktgen_commands())?;
    let server = match (testbed, contender.program) {
        (Some(testbed), Program::Iperf3) => Some(start_server(testbed, wanted)?),
        _ => None,
    };
    let line = wanted.command(contender);
    let mut command = match testbed {
        Some(testbed) => testbed.command_in_device(&line[0]),
        None => Command::new(&line[0]),
    };
    command.args(&line[1..]);
    // testpmd does not delete its run-time files.
    command.env("RUNTIME_DIRECTORY", wanted.folder);
    let process = DeviceProcess::start("generator", command, wanted.cpu, wanted.folder)?;
    Ok((server, process))
}

/// Records the frames that arrive within `length`.
fn record(receiver: &mut Receiver, part: Part, length: Duration, stop: &AtomicBool) -> Arrivals {
    match part {
        Part::Rate(pps) => {
            // The record has 50 % spare capacity, so that a generator that is far too fast is noticed.
            let room = (pps * length.as_secs_f64() * 1.5) as usize + 1_000;
            receiver.watch(length, room, stop)
        }
        _ => receiver.count(length, stop),
    }
}

fn wait_for_frames(
    receiver: &mut Receiver,
    process: &mut DeviceProcess,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let begun = Instant::now();
    let mut came = 0;
    while came < FIRST_FRAMES {
        came += receiver.discard(Duration::from_millis(5));
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        process.check()?;
        if begun.elapsed() > START_PATIENCE {
            return Err(Failed::Broken(format!(
                "no frame received in {} s; last output: {}",
                START_PATIENCE.as_secs(),
                process.last_lines()
            )));
        }
    }
    Ok(())
}

/// Starts the server that iperf3 connects to before it sends, on the generator's CPU.
fn start_server(testbed: &Testbed, wanted: &Wanted<'_>) -> Result<DeviceProcess, Failed> {
    testbed.add_addresses([&format!("{RECEIVER_ADDRESS}/24"), SENDER_ADDRESS])?;
    // This thread is in the receiver's namespace, and so are the processes that it starts.
    let mut command = Command::new("timeout");
    let seconds = wanted.seconds.to_string();
    command.args(["--kill-after=1", &seconds, "iperf3", "--server"]);
    command.args(["--one-off", "--forceflush"]);
    let mut server = DeviceProcess::start("server", command, wanted.cpu, wanted.folder)?;
    server.wait_for_line(|line| line.contains("listening"), START_PATIENCE)?;
    Ok(server)
}

/// Writes the frame to send, as a capture and as trafgen's list of bytes.
fn write_frames(folder: &Path, frame_size_bytes: usize) -> Result<(), Failed> {
    let frame = UdpFlow {
        dst_mac: Mac(taut_host::testbed::GENERATOR_MACS[0]),
        ..UdpFlow::default()
    }
    .frame(frame_size_bytes)?;
    let bytes: Vec<String> = frame.iter().map(|byte| format!("0x{byte:02x}")).collect();
    std::fs::write(
        folder.join("frames.cfg"),
        format!("{{ {} }}\n", bytes.join(", ")),
    )?;
    std::fs::write(folder.join("frames.pcap"), capture(&frame))?;
    Ok(())
}

/// Returns a classic capture file (pcap 2.4, microseconds, Ethernet) with copies of one frame.
fn capture(frame: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut word = |value: u32| file.extend(value.to_le_bytes());
    for value in [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1] {
        word(value);
    }
    for microseconds in 0..CAPTURED_FRAMES as u32 {
        let length = frame.len() as u32;
        file.extend(
            [0, microseconds, length, length]
                .iter()
                .flat_map(|v| v.to_le_bytes()),
        );
        file.extend(frame);
    }
    file
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_traffic::Gap;

    #[test]
    fn interrupted_gaps_are_counted_separately_but_included_in_total_error() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let ticks = |ns: f64| clock.to_ticks(ns) as u64;
        let mut gaps = vec![Gap::new(ticks(1_000.0), false); 98];
        gaps.push(Gap::new(ticks(101_000.0), true));
        gaps.push(Gap::new(0, true));
        let arrivals = Arrivals {
            frames: 101,
            bytes: 101 * 124,
            seconds: 199e-6,
            gaps,
            interruptions: 1,
            ..Arrivals::default()
        };
        let trial = Trial::of("x", Part::Rate(1e6), 1, &arrivals, 0, &clock);
        let clean = trial.precision.unwrap();
        assert_eq!((clean.count, trial.interrupted_gaps), (98, 2));
        assert!(clean.mean_squared_error_ns2 < 2.0, "{clean:?}");
        let all = trial.all_mean_squared_error_ns2.unwrap();
        let expected = (1e10 + 1e6) / 100.0;
        assert!((all / expected - 1.0).abs() < 1e-3, "{all}");
        assert_eq!(trial.frame_size_bytes, 128.0);
        assert!((trial.pps / (100.0 / 199e-6) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_written_capture_contains_only_copies_of_the_frame() {
        let folder = tempfile::tempdir().unwrap();
        write_frames(folder.path(), 128).unwrap();
        let path = folder.path().join("frames.pcap");
        let spec = PortSpec::parse(&format!("pcap:{}", path.display())).unwrap();
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut receiver = Receiver::open(&spec, clock).unwrap();
        let stop = AtomicBool::new(false);
        let read = receiver.watch(Duration::from_millis(200), CAPTURED_FRAMES * 2, &stop);
        assert_eq!(
            (read.frames, read.bytes, read.foreign),
            (CAPTURED_FRAMES as u64, CAPTURED_FRAMES as u64 * 124, 0)
        );
        let list = std::fs::read_to_string(folder.path().join("frames.cfg")).unwrap();
        assert_eq!(list.matches("0x").count(), 124);
    }
}
