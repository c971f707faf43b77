//! Functions that users write, built and run: libraries from the C compiler and cargo, and captures that pass through
//! them.

use super::program::{Finished, run};
use super::{scratch, taut};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use taut_port::{Batch, PortSpec, Resources};
use taut_wire::UdpFlow;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the library of a source with `cc`, in `folder`.
pub fn library_of(source: &str, folder: &Path, name: &str) -> PathBuf {
    let (file, library) = (
        folder.join(format!("{name}.c")),
        folder.join(format!("lib{name}.so")),
    );
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I",
    ])
    .arg(Path::new(ROOT).join("crates/plugin/include"))
    .arg("-o")
    .args([&library, &file]);
    run(&mut cc).success();
    library
}

/// Builds the library of `examples/plugin-c` with its Makefile, in `folder`.
pub fn example_in_c(folder: &Path) -> PathBuf {
    let example = Path::new(ROOT).join("examples/plugin-c");
    for name in ["Makefile", "mac_swap.c"] {
        fs::copy(example.join(name), folder.join(name)).unwrap();
    }
    let include = format!("INCLUDE={ROOT}/crates/plugin/include");
    run(Command::new("make")
        .args([&include, "-s"])
        .current_dir(folder))
    .success();
    folder.join("libmac_swap.so")
}

/// Builds the library of `examples/plugin-rust` with cargo, in `folder`.
pub fn example_in_rust(folder: &Path) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([
            "build",
            "--release",
            "--offline",
            "--locked",
            "--quiet",
            "--manifest-path",
        ])
        .arg(Path::new(ROOT).join("examples/plugin-rust/Cargo.toml"))
        .arg("--target-dir")
        .arg(folder);
    run(&mut cargo).success();
    folder.join("release/libmac_swap.so")
}

/// Writes a capture of the given frames, `apart_us` microseconds apart.
pub fn write_capture(path: &Path, frames: &[Vec<u8>], apart_us: u32) {
    let number = |value: u32| value.to_le_bytes();
    // The header: version 2.4, no time zone, lengths up to 65535, Ethernet.
    let mut bytes = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65535, 1]
        .map(number)
        .concat();
    for (frame, at) in frames.iter().zip(0..) {
        let (length, us) = (frame.len() as u32, at * apart_us);
        bytes.extend(
            [us / 1_000_000, us % 1_000_000, length, length]
                .map(number)
                .concat(),
        );
        bytes.extend(frame);
    }
    fs::write(path, bytes).unwrap();
}

/// Returns the frames of a capture.
pub fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let spec = PortSpec::parse(&format!("pcap:{}", path.display())).unwrap();
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
    let mut port = spec.open(&mut resources).unwrap();
    let (mut frames, mut batch) = (Vec::new(), Batch::new());
    // A thread reads the file ahead, so the port may be empty for a moment before the file ends.
    while port.supply() == taut_port::Supply::Open {
        port.rx(&mut batch);
        frames.extend(batch.packets().iter().map(|packet| packet.bytes().to_vec()));
        batch.clear();
    }
    frames
}

/// Builds frames of all kinds, some too short to be valid.
pub fn frames(count: usize) -> Vec<Vec<u8>> {
    let frame = |number: usize| {
        let flow = UdpFlow {
            src_port: 1000 + number as u16,
            ..UdpFlow::default()
        };
        let mut frame = flow.frame(64 + number % 1400).unwrap();
        if number % 7 == 6 {
            frame.truncate(13);
        }
        frame
    };
    (0..count).map(frame).collect()
}

/// Captures that pass through functions.
pub struct Passage {
    pub folder: TempDir,
    pub frames: Vec<Vec<u8>>,
}

impl Passage {
    pub fn new(count: usize) -> Self {
        let (folder, frames) = (scratch(), frames(count));
        write_capture(&folder.path().join("in.pcap"), &frames, 1);
        Self { folder, frames }
    }

    /// Passes the capture through a chain of the given functions, in the syntax of a chain file. Returns the frames
    /// that leave, and the command's output.
    pub fn through(&self, functions: &str) -> (Vec<Vec<u8>>, Finished) {
        let path = |name: &str| self.folder.path().join(name);
        let (chain, out) = (path("chain.toml"), path("out.pcap"));
        let text = format!(
            "ports = [\"pcap:{}\", \"pcap:{},role=write\"]\n{functions}",
            path("in.pcap").display(),
            out.display()
        );
        fs::write(&chain, text).unwrap();
        let chain = chain.to_str().unwrap();
        let finished = run(&mut taut(&["forward", chain, "--quiet", "--json"]));
        let frames = match out.exists() {
            true => frames_of(&out),
            false => Vec::new(),
        };
        (frames, finished)
    }
}

/// Returns the number of packets with the given outcome in the summary.
pub fn outcome(finished: &Finished, name: &str) -> u64 {
    let summary = finished.last_json();
    summary["outcomes"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {summary}"))
}

/// Returns the line with which a command rejects its input.
pub fn refused(finished: &Finished) -> &str {
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    finished.stderr.trim_end()
}
