//! Tests of DPDK ports on devices that need no hardware and no privilege.
#![allow(clippy::unwrap_used)]

use super::environment::environment;
use super::settings::mbufs_in_rings;
use crate::{BATCH_CAPACITY, Batch, Port, PortError, PortSpec, Resources};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a device name that is unique in this process.
fn device(driver: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{driver}{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

fn open(texts: &[&str]) -> Result<(Vec<Box<dyn Port>>, Resources), PortError> {
    let specs: Vec<_> = texts.iter().map(|t| PortSpec::parse(t).unwrap()).collect();
    let mut resources = Resources::for_ports(&specs)?;
    let ports = specs
        .iter()
        .map(|s| s.open(&mut resources))
        .collect::<Result<_, _>>()?;
    Ok((ports, resources))
}

/// Returns the text of the error with which opening the port spec `text` fails.
#[track_caller]
fn complaint(text: &str) -> String {
    match open(&[text]) {
        Ok(_) => panic!("{text} opens"),
        Err(error) => error.to_string(),
    }
}

/// Returns `n` packets of the pool, each starting with its number.
fn numbered(resources: &Resources, n: usize, len: u16) -> Batch {
    let mut batch = Batch::new();
    assert_eq!(resources.pool().fill(&mut batch, n, len), n);
    for (i, packet) in batch.packets_mut().iter_mut().enumerate() {
        packet.bytes_mut().fill(i as u8);
    }
    batch
}

fn numbers(batch: &Batch) -> Vec<u8> {
    batch.packets().iter().map(|p| p.bytes()[0]).collect()
}

#[test]
fn packets_leave_a_ring_complete_and_in_order() {
    let (mut ports, resources) = open(&[&format!("dpdk:{}", device("net_ring"))]).unwrap();
    let mut batch = numbered(&resources, 40, 60);
    assert_eq!(ports[0].tx(&mut batch), 40);
    assert!(batch.is_empty());
    assert_eq!(ports[0].rx(&mut batch), 40);
    assert_eq!(numbers(&batch), (0..40).collect::<Vec<u8>>());
    assert!(batch.packets().iter().all(|p| p.len() == 60));
    let counters = ports[0].counters();
    assert_eq!((counters.rx_packets, counters.rx_bytes), (40, 2400));
    assert_eq!((counters.tx_packets, counters.tx_bytes), (40, 2400));
}

#[test]
fn a_modified_packet_is_sent_without_a_copy() {
    let ring = device("net_ring");
    let (mut ports, resources) = open(&[&format!("dpdk:{ring}")]).unwrap();
    let mut batch = numbered(&resources, 2, 100);
    ports[0].tx(&mut batch);
    assert_eq!(ports[0].rx(&mut batch), 2);
    let first = &mut batch.packets_mut()[0];
    assert!(first.headroom() >= 128, "{}", first.headroom());
    assert!(first.prepend(4));
    first.bytes_mut()[..4].copy_from_slice(b"taut");
    batch.packets_mut()[1].truncate(60);
    let places: Vec<_> = batch.packets().iter().map(|p| p.data()).collect();
    assert_eq!(ports[0].tx(&mut batch), 2);
    assert_eq!(ports[0].rx(&mut batch), 2);
    let packets = batch.packets();
    assert_eq!(places, packets.iter().map(|p| p.data()).collect::<Vec<_>>());
    assert_eq!(
        (&packets[0].bytes()[..6], packets[0].len()),
        (&b"taut\0\0"[..], 104)
    );
    assert_eq!(packets[1].bytes(), [1; 60]);
}

#[test]
fn a_full_ring_leaves_packets_with_the_sender() {
    let (mut ports, resources) = open(&[&format!("dpdk:{}", device("net_ring"))]).unwrap();
    let (mut sent, mut batch) = (0, Batch::new());
    while batch.is_empty() {
        batch = numbered(&resources, BATCH_CAPACITY, 60);
        sent += ports[0].tx(&mut batch);
        assert!(sent < 100_000);
    }
    // The remaining packets are the end of the last batch, unchanged.
    let first = (BATCH_CAPACITY - batch.len()) as u8;
    assert_eq!(numbers(&batch), (first..64).collect::<Vec<_>>());
    let mut received = 0;
    let mut arrived = Batch::new();
    while ports[0].rx(&mut arrived) > 0 {
        received += arrived.len();
        arrived.clear();
    }
    assert_eq!(received, sent);
    // Refused packets of the port's own memory also stay with the caller.
    assert_eq!(ports[0].tx(&mut batch), usize::from(64 - first));
}

#[test]
fn no_buffer_leaks_when_packets_are_dropped_or_sent() {
    let [source, sink] = [device("net_null"), device("net_null")];
    let (mut ports, resources) = open(&[
        &format!("dpdk:{source},size=64,copy=0"),
        &format!("dpdk:{sink},size=64,no-rx=1"),
    ])
    .unwrap();
    let memory = resources
        .dpdk()
        .memory(mbufs_in_rings(resources.specs()))
        .unwrap();
    let mut batch = Batch::new();
    let mut forwarded = 0;
    for round in 0..2_000 {
        assert_eq!(ports[0].rx(&mut batch), BATCH_CAPACITY, "round {round}");
        assert_eq!(ports[1].rx(&mut Batch::new()), 0);
        if round % 3 == 0 {
            batch.clear();
        }
        forwarded += ports[1].tx(&mut batch);
        assert!(batch.is_empty());
        assert_eq!(memory.ledger.outstanding(), 0);
    }
    assert_eq!(ports[1].counters().tx_packets, forwarded as u64);
    assert_eq!(forwarded, 1_333 * BATCH_CAPACITY);
    ports.clear();
    let shim = environment().unwrap().shim;
    // SAFETY: the pool is alive.
    let in_use = unsafe { (shim.mempool_in_use)(memory.pool.pool) };
    assert_eq!(in_use, 0);
}

#[test]
fn an_exhausted_pool_stops_reception_until_packets_are_released() {
    let name = device("net_null");
    let (mut ports, _resources) = open(&[&format!("dpdk:{name},ring=64")]).unwrap();
    let mut hoard = Vec::new();
    loop {
        let mut batch = Batch::new();
        if ports[0].rx(&mut batch) == 0 {
            break;
        }
        hoard.push(batch);
        assert!(hoard.len() < 1_000);
    }
    hoard.pop();
    let mut batch = Batch::new();
    assert!(ports[0].rx(&mut batch) > 0);
    // Packets outlive their port and the last handle of their pool.
    ports.clear();
    drop(_resources);
    assert!(!batch.packets()[0].bytes().is_empty());
}

#[test]
fn frames_longer_than_a_buffer_are_counted_and_not_sent() {
    let (mut ports, _resources) = open(&[&format!("dpdk:{}", device("net_ring"))]).unwrap();
    let ledger = crate::PoolHandle::ledger(3);
    let mut memory = vec![7_u8; 4096];
    let mut batch = Batch::new();
    for (slot, len) in [60, 4000, 70].into_iter().enumerate() {
        ledger.count_out(1);
        // SAFETY: memory of its own that outlives the batch, which only reads it.
        batch.push(unsafe {
            let data = std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
            crate::Packet::new(data, len, 0, ledger.raw(), slot as u32)
        });
    }
    assert_eq!(ports[0].tx(&mut batch), 3);
    assert_eq!(ledger.outstanding(), 0);
    assert_eq!(ports[0].rx(&mut batch), 2);
    assert_eq!(batch.packets()[1].len(), 70);
    let counters = ports[0].counters();
    assert_eq!((counters.tx_packets, counters.tx_too_long), (2, 1));
}

#[test]
fn packets_pass_between_the_ports_of_two_threads() {
    let [first, second] = [device("net_null"), device("net_null")];
    let threads = [first, second].map(|name| {
        std::thread::spawn(move || {
            let (mut ports, _resources) = open(&[&format!("dpdk:{name}")]).unwrap();
            let mut batch = Batch::new();
            for _ in 0..500 {
                assert_eq!(ports[0].rx(&mut batch), BATCH_CAPACITY);
                assert_eq!(ports[0].tx(&mut batch), BATCH_CAPACITY);
            }
            ports[0].counters().rx_packets
        })
    });
    for thread in threads {
        assert_eq!(thread.join().unwrap(), 500 * BATCH_CAPACITY as u64);
    }
}

#[test]
fn opening_a_port_does_not_change_the_cpu_affinity() {
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    let (ports, _resources) = open(&[&format!("dpdk:{}", device("net_null"))]).unwrap();
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), before);
    drop(ports);
}

#[test]
fn a_device_can_be_reopened_only_after_it_is_closed() {
    let text = format!("dpdk:{}", device("net_null"));
    for _ in 0..3 {
        let (ports, _resources) = open(&[&text]).unwrap();
        assert!(
            complaint(&text).contains("in use by another port"),
            "{}",
            complaint(&text)
        );
        assert!(ports[0].details().contains("net_null"));
    }
}

#[test]
fn unsupported_device_options_cause_a_one_line_error() {
    let null = device("net_null");
    for (text, part) in [
        ("dpdk:net_nul0".to_string(), "has no device \"net_nul0\""),
        ("dpdk:0000:ff:1f.7".to_string(), "no such device"),
        ("dpdk:bla bla".to_string(), "has no device"),
        (
            format!("dpdk:{null},rate=100"),
            "a driver that limits rates",
        ),
        (format!("dpdk:{null},stamps=hardware"), "stamps no packets"),
        (format!("dpdk:{null},stamps=soft"), "expected hardware"),
        (format!("dpdk:{null},rss=17"), "1 to 16"),
        (format!("dpdk:{null},mtu=9000"), "1500 to 2022"),
        (
            format!("dpdk:{},rss=4", device("net_ring")),
            "cannot spread",
        ),
        (format!("dpdk:{null},size=x"), "receive queue"),
        (format!("dpdk:{null},nonsense=1"), "refuses its arguments"),
        (format!("dpdk:{null},ring=3"), "64 to 32768"),
        (
            format!("dpdk:{},rx_pcap=/nowhere.pcap", device("net_pcap")),
            "No such file",
        ),
        (
            format!("dpdk:{},iface=nowhere0", device("net_af_packet")),
            "No such device",
        ),
        (
            format!("dpdk:{},iface=/nowhere/x.sock", device("net_vhost")),
            "No such file",
        ),
        (format!("dpdk:{}", device("net_memif")), "Failed to connect"),
    ] {
        let message = complaint(&text);
        println!("{message}");
        assert!(message.contains(part), "{text}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    // A failed attempt does not prevent a later success.
    open(&[&format!("dpdk:{null}")]).unwrap();
}

#[test]
fn a_capture_file_is_read_through_dpdk_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["in.pcap", "out.pcap"].map(|name| folder.path().join(name));
    let frames: Vec<Vec<u8>> = (0..150_u8)
        .map(|i| vec![i; 60 + 9 * usize::from(i)])
        .collect();
    std::fs::write(&paths[0], capture(&frames)).unwrap();
    let name = device("net_pcap");
    let spec = |path: &Path, key: &str| format!("{key}={}", path.display());
    let (mut ports, _resources) = open(&[&format!(
        "dpdk:{name},{},{},stamps=hardware",
        spec(&paths[0], "rx_pcap"),
        spec(&paths[1], "tx_pcap")
    )])
    .unwrap();
    let mut batch = Batch::new();
    let (mut passed, mut stamps) = (0, Vec::new());
    while ports[0].rx(&mut batch) > 0 {
        stamps.extend_from_slice(ports[0].arrival_stamps());
        passed += ports[0].tx(&mut batch);
        assert!(batch.is_empty());
    }
    assert!(ports[0].arrival_stamps().is_empty());
    drop(ports);
    // The first timestamp is 1 s, followed by microseconds.
    assert_eq!(stamps, (1_000_000..1_000_150).collect::<Vec<u64>>());
    assert_eq!(passed, frames.len());
    assert_eq!(frames_of(&std::fs::read(&paths[1]).unwrap()), frames);
}

#[test]
fn frames_of_several_mbufs_are_counted_as_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.pcap");
    // DPDK's driver takes an mbuf for every 2 kB; only frames that fit into one mbuf are complete.
    let frames = [vec![1; 60], vec![2; 5000], vec![3; 2048], vec![4; 61]];
    std::fs::write(&path, capture(&frames)).unwrap();
    let text = format!("dpdk:{},rx_pcap={}", device("net_pcap"), path.display());
    let (mut ports, _resources) = open(&[&text]).unwrap();
    let mut batch = Batch::new();
    assert_eq!(ports[0].rx(&mut batch), 3);
    let lengths: Vec<_> = batch.packets().iter().map(|p| p.len()).collect();
    assert_eq!(
        (numbers(&batch), lengths),
        (vec![1, 3, 4], vec![60, 2048, 61])
    );
    let counters = ports[0].counters();
    assert_eq!((counters.rx_packets, counters.rx_too_long), (3, 1));
    assert_eq!(counters.rx_bytes, 60 + 2048 + 61);
}

/// Returns a capture file (libpcap's classic format, microseconds, little endian).
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (i, frame) in frames.iter().enumerate() {
        for word in [1, i as u32, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

fn frames_of(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut frames = Vec::new();
    while let Some((header, data)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(data[..len].to_vec());
        rest = &data[len..];
    }
    frames
}
