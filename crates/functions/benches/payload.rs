//! A benchmark of the cost per packet of functions that touch whole payloads, in batches of 32 UDP datagrams. AES is
//! interleaved with `openssl speed` for the same size. `cargo bench -p taut-functions`
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::{Duration, Instant};
use taut_function::{Context, Function};
use taut_functions::{FUNCTIONS, build};
use taut_measure::ratio_interval;
use taut_port::{Batch, PoolHandle};
use taut_sys::ticks;
use taut_wire::UdpFlow;
use taut_xdp::functions::{KernelFunctions, KernelStage};

const PAIRS: usize = 9;
const DURATION: Duration = Duration::from_millis(200);
const BATCH: usize = 32;
/// The setting of a receiver of `aes` on the same machine as its sender, so that both use one clock.
const CLOCKS: &str = "clock_error = \"1ms\"";

/// Returns the time of the fastest block of batches through the given functions, ns per packet; the time includes
/// filling a batch. The first function is on the egress side, others on the ingress side.
fn fastest(functions: &mut [&mut dyn Function], payload_bytes: usize) -> f64 {
    let pool = PoolHandle::new(256, false).unwrap();
    // The requested length counts the frame check sequence, although the returned frame does not contain it.
    let frame = UdpFlow::default().frame(payload_bytes + 42 + 4).unwrap();
    let mut batch = Batch::new();
    let mut best = f64::INFINITY;
    let begun = Instant::now();
    while begun.elapsed() < DURATION {
        let start = Instant::now();
        for _ in 0..20 {
            pool.fill(&mut batch, BATCH, frame.len() as u16);
            for packet in batch.packets_mut() {
                packet.bytes_mut().copy_from_slice(&frame);
            }
            for (place, function) in functions.iter_mut().enumerate() {
                let context = Context {
                    now_ticks: ticks(),
                    from_port: place.min(1),
                    to_port: 1 - place.min(1),
                    ports: 2,
                };
                function.process(&mut batch, &context);
                assert_eq!(batch.dropped(), 0, "a function that drops costs nothing");
            }
            batch.clear();
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (20 * BATCH) as f64);
    }
    best
}

/// Returns the time of an XDP program with one function, in nanoseconds per frame.
fn in_the_kernel(name: &str, settings: &str, payload_bytes: usize) -> std::io::Result<u64> {
    let frame = UdpFlow::default().frame(payload_bytes + 42 + 4).unwrap();
    let function = FUNCTIONS
        .in_kernel(name, settings.parse().unwrap(), 1)
        .unwrap();
    let stages = vec![KernelStage {
        number: 0,
        function,
    }];
    let missing = |e: taut_sys::Error| std::io::Error::other(e.to_string());
    let functions = KernelFunctions::new(vec![Vec::new(), stages], None).map_err(missing)?;
    let program = functions.dry_run(1).map_err(missing)?;
    Ok(program.pass(&frame, 1_000_000)?.duration_ns)
}

fn function(name: &str, settings: &str) -> Box<dyn Function> {
    let mut function = build(name, settings.parse().unwrap()).unwrap();
    function.prepare().unwrap();
    function
}

/// Returns the nanoseconds that `openssl speed` reports per block of `bytes` bytes; none if openssl is not installed.
fn openssl(cipher: &str, bytes: usize) -> Option<f64> {
    let output = Command::new("openssl")
        .args(["speed", "-elapsed", "-mr", "-seconds", "1", "-bytes"])
        .args([&bytes.to_string(), "-evp", cipher])
        .output()
        .ok()?;
    // The line is "+F:22:AES-256-GCM:1234567890.12": bytes per second.
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().find(|line| line.starts_with("+F:"))?;
    let per_second: f64 = line.rsplit(':').next()?.parse().ok()?;
    Some(bytes as f64 / per_second * 1e9)
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let key = |bytes: usize| {
        let path = folder.path().join(format!("{bytes}.key"));
        std::fs::write(&path, "0123456789abcdef".repeat(bytes / 8)).unwrap();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let (short, long) = (key(16), key(32));
    let aes = |mode: &str, key: &str, more: &str| {
        let text =
            format!("encrypt = [1]\nmode = \"{mode}\"\nkey_file = \"{key}\"\nmtu = 9000\n{more}");
        function("aes", &text)
    };
    // The mapping forwards to itself: the same frame passes repeatedly.
    let nat = "outside = [1]\naddress = \"198.18.0.1\"\n\
               forward = [{ protocol = \"udp\", port = 31238, to = \"198.18.0.1:31238\" }]";
    println!("ns per packet beyond filling the batch");
    for payload in [64, 256, 1400] {
        let bare = fastest(&mut [], payload);
        let cost = |name: &str, mut function: Box<dyn Function>| {
            let all = fastest(&mut [&mut *function], payload);
            println!("  {payload} bytes, {name}: {:.0}", all - bare);
        };
        cost("xor", function("xor", "key = 90"));
        cost("ats", function("ats", ""));
        cost("nat, one flow", function("nat", nat));
        cost("aes gcm 128", aes("gcm", &short, ""));
        let (mut sender, mut receiver) = (aes("gcm", &short, ""), aes("gcm", &short, CLOCKS));
        // Packets sent before the receiver began are refused.
        std::thread::sleep(Duration::from_millis(5));
        let both = fastest(&mut [&mut *sender, &mut *receiver], payload);
        println!(
            "  {payload} bytes, aes gcm 128 and back: {:.0}",
            both - bare
        );
        cost("aes gcm 256", aes("gcm", &long, ""));
        cost("aes ctr 128", aes("ctr", &short, ""));
        cost("aes ctr 256", aes("ctr", &long, ""));
        cost(
            "aes ctr 128 byte by byte",
            aes("ctr", &short, "byte_wise = true"),
        );
        cost("rlnc window of 8", function("rlnc", "encode = [1]"));
        cost(
            "rlnc block of 32",
            function("rlnc", "encode = [1]\ncode = \"block\""),
        );
    }
    println!("ns per packet in the kernel, with its way there and back");
    for payload in [64, 256, 1400] {
        for (name, settings) in [
            ("forward", ""),
            ("mac-swap", ""),
            ("xor", "key = 90"),
            ("filter", "default = \"accept\""),
            ("nat", nat),
        ] {
            match in_the_kernel(name, settings, payload) {
                Ok(ns) => println!("  {payload} bytes, {name}: {ns}"),
                Err(e) => println!("  {payload} bytes, {name}: no data: {e}"),
            }
        }
    }
    println!("rate beside openssl speed ({PAIRS} pairs, spread)");
    for (payload, mode, cipher, key) in [
        (1400, "gcm", "aes-256-gcm", &long),
        (1400, "gcm", "aes-128-gcm", &short),
        (1400, "ctr", "aes-256-ctr", &long),
        (1400, "ctr", "aes-128-ctr", &short),
        (256, "ctr", "aes-256-ctr", &long),
        (256, "gcm", "aes-256-gcm", &long),
    ] {
        let pair = || {
            let bare = fastest(&mut [], payload);
            let ours = fastest(&mut [&mut *aes(mode, key, "")], payload) - bare;
            openssl(cipher, payload).map(|theirs| (ours, theirs))
        };
        let pairs: Option<(Vec<f64>, Vec<f64>)> = (0..PAIRS).map(|_| pair()).collect();
        let Some((ours, theirs)) = pairs else {
            println!("  openssl: no data: needs the program openssl");
            return;
        };
        let ratio = ratio_interval(&theirs, &ours, 0.95).unwrap();
        println!(
            "  {cipher}, {payload} bytes: {:.2} ({})",
            ratio.median.point,
            ratio.median.words(|value| format!("{value:.2}"))
        );
    }
}
