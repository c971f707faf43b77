//! Compares the rates at which programs record packets to files without loss. The programs are `taut capture`, tcpdump,
//! dumpcap, netsniff-ng, stenotype, and Zeek's Time Machine if it is built. Frames of 64 bytes pass over the same veth
//! and packet sockets, a second at each rate, interleaved. Needs root. `cargo bench --bench recorders`; an argument
//! selects the programs with that text in their names.
//!
//! The frames in the files are counted, not those in the programs' statistics. Each frame has a mark, which is searched
//! in all bytes written, whatever the file format. A rate is loss-free if the files contain every frame that the
//! interface accepted.
#![allow(clippy::unwrap_used)]

#[path = "peers/recorder/mod.rs"]
mod recorder;

use recorder::{RECORDERS, Recorder};
use std::path::Path;
use std::time::{Duration, Instant};
use taut_host::testbed::{DEVICE_INTERFACES, GENERATOR_INTERFACES};
use taut_host::{CorePlan, DeviceProcess, Testbed};
use taut_port::{Batch, PortSpec, Resources};
use taut_wire::UdpFlow;

/// Offered rates, packets per second; the last rate is the highest that one core sends.
const RATES: [u64; 5] = [125_000, 250_000, 500_000, 1_000_000, u64::MAX];
const DURATION: Duration = Duration::from_secs(1);
const REPETITIONS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(20);
const FRAME_BYTES: usize = 60;
/// The last bytes of each frame.
const MARK: [u8; 16] = *b"taut-recorders:)";

/// The number of frames sent, and the number of frames in the files.
struct Trial {
    sent: u64,
    written: u64,
    seconds: f64,
}

fn measure(recorder: &Recorder, rate: u64, cores: &CorePlan) -> Result<Trial, String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let testbed = Testbed::builder().build().map_err(|e| text(&e))?;
    let folder = tempfile::tempdir().map_err(|e| text(&e))?;
    let files = folder.path().join("files");
    std::fs::create_dir(&files).map_err(|e| text(&e))?;
    let command = (recorder.command)(&testbed, DEVICE_INTERFACES[0], &files);
    let process = DeviceProcess::start("recorder", command, cores.device, folder.path());
    let mut process = process.map_err(|e| text(&e))?;
    // The program has started once it has a packet socket.
    let begun = Instant::now();
    while !has_socket(process.id()) {
        process.check().map_err(|e| text(&e))?;
        if begun.elapsed() > PATIENCE {
            return Err("it opens no packet socket".to_string());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The program is ready a little later; no program reports when.
    std::thread::sleep(Duration::from_millis(500));
    let inside = testbed.enter_generator().map_err(|e| text(&e))?;
    let (sent, seconds) = send(rate).map_err(|e| text(&e))?;
    drop(inside);
    let written = settled(&files);
    let _ = process.stop();
    // Some programs write the remaining packets when they end.
    Ok(Trial {
        sent,
        written: written.max(marks(&files)),
        seconds,
    })
}

/// Reports whether a process, or the program that it has become by exec, has a packet socket in its network namespace.
fn has_socket(process: u32) -> bool {
    let sockets = std::fs::read_to_string(format!("/proc/{process}/net/packet"));
    sockets.is_ok_and(|text| text.lines().count() > 1)
}

/// Sends frames with the mark. Returns the number of frames that the interface accepted, and the time of sending, s.
fn send(rate: u64) -> Result<(u64, f64), taut_port::PortError> {
    let spec = format!("af_packet:{}", GENERATOR_INTERFACES[0]);
    let specs = [PortSpec::parse(&spec).unwrap()];
    let mut resources = Resources::for_ports(&specs)?;
    let mut port = specs[0].open(&mut resources)?;
    let pool = resources.pool();
    let frame = marked_frame();
    let mut out = Batch::new();
    let (begun, mut sent) = (Instant::now(), 0);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= DURATION && out.is_empty() {
            return Ok((sent, elapsed.as_secs_f64()));
        }
        let due = (elapsed.as_secs_f64() * rate as f64) as u64;
        if out.is_empty() && sent + 32 <= due {
            pool.fill(&mut out, 32, FRAME_BYTES as u16);
            for packet in out.packets_mut() {
                packet.bytes_mut().copy_from_slice(&frame);
            }
        }
        let before = out.len();
        port.tx(&mut out);
        sent += (before - out.len()) as u64;
    }
}

/// Builds a datagram with the mark after its headers.
fn marked_frame() -> Vec<u8> {
    let flow = UdpFlow::default();
    // The length includes a check sequence, which is absent here.
    let mut frame = flow.frame(FRAME_BYTES + 4).unwrap();
    let at = frame.len() - MARK.len();
    frame[at..].copy_from_slice(&MARK);
    frame
}

/// Counts the marked frames in all files once their number is stable.
fn settled(folder: &Path) -> u64 {
    let mut bytes = 0;
    let begun = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = size(folder);
        if now == bytes || begun.elapsed() > PATIENCE {
            return marks(folder);
        }
        bytes = now;
    }
}

/// Returns all files below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let each = entries.flatten().flat_map(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&path),
            Ok(kind) if kind.is_file() => vec![path],
            _ => Vec::new(),
        }
    });
    each.collect()
}

fn size(folder: &Path) -> u64 {
    let sizes = files(folder).into_iter().map(|path| path.metadata());
    sizes.flatten().map(|it| it.len()).sum()
}

fn marks(folder: &Path) -> u64 {
    let each = files(folder).into_iter().map(|path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        let (mut at, mut count) = (0, 0);
        while let Some(mark) = bytes.get(at..at + MARK.len()) {
            let is_it = mark == MARK;
            count += u64::from(is_it);
            at += if is_it { MARK.len() } else { 1 };
        }
        count
    });
    each.sum()
}

fn main() {
    // Arguments of cargo begin with a dash.
    let only = std::env::args().skip(1).find(|it| !it.starts_with('-'));
    let only = only.unwrap_or_default();
    let cores = taut_host::choose_cores();
    taut_host::pin_current_thread(cores.generator).unwrap();
    let asked = RECORDERS.iter().filter(|it| it.name.contains(&only));
    let (there, missing): (Vec<_>, Vec<_>) = asked.partition(|it| (it.is_there)());
    for recorder in missing {
        println!("{}: no data: needs {}", recorder.name, recorder.needs);
    }
    println!(
        "written of frames sent, in each of {REPETITIONS} turns of {DURATION:?}, at the rate in kpkt/s behind"
    );
    for rate in RATES {
        let mut said: Vec<String> = there.iter().map(|_| String::new()).collect();
        for _ in 0..REPETITIONS {
            for (recorder, said) in there.iter().zip(&mut said) {
                match measure(recorder, rate, &cores) {
                    Ok(it) => {
                        let share = it.written as f64 / it.sent.max(1) as f64;
                        let kpps = it.sent as f64 / it.seconds / 1e3;
                        let missing = it.sent.saturating_sub(it.written);
                        said.push_str(&format!("  {share:.4} ({missing} missing) at {kpps:.0}"));
                    }
                    Err(e) => said.push_str(&format!("  no data: {e}")),
                }
            }
        }
        for (recorder, said) in there.iter().zip(&said) {
            println!("{:<14}{said}", recorder.name);
        }
    }
}
