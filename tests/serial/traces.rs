//! Captures as the pattern of a stream: taut's packets with the capture's gaps and sizes, or the capture's own frames.

use crate::support::program::{Finished, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, scratch, taut};
use std::fs;
use std::path::Path;

/// Writes a pcap file in nanoseconds; returns its frames.
fn write_capture(path: &Path, gaps_ns_and_lengths: &[(u32, usize)]) -> Vec<Vec<u8>> {
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    let (mut at_ns, mut frames) = (0, Vec::new());
    for (index, (gap_ns, len)) in gaps_ns_and_lengths.iter().enumerate() {
        at_ns += gap_ns;
        for word in [1_700_000_000, at_ns, *len as u32, *len as u32] {
            file.extend(word.to_le_bytes());
        }
        let frame = vec![index as u8; *len];
        file.extend(&frame);
        frames.push(frame);
    }
    fs::write(path, file).unwrap();
    frames
}

/// Reads times and frames of a capture that taut wrote.
fn read_capture(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = fs::read(path).unwrap();
    assert_eq!(file[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut frames) = (24, Vec::new());
    while at < file.len() {
        let time_ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4));
        let len = word(at + 8) as usize;
        frames.push((time_ns, file[at + 16..at + 16 + len].to_vec()));
        at += 16 + len;
    }
    frames
}

fn generate(ports: &[String], pattern: &str, more: &[&str]) -> Finished {
    let mut arguments = vec!["generate", "--json", "--warm-up", "0", "--pattern", pattern];
    ports
        .iter()
        .for_each(|port| arguments.extend(["--port", port.as_str()]));
    arguments.extend(more);
    run(&mut taut(&arguments))
}

#[test]
fn frames_of_a_trace_are_repeated_unchanged_with_original_gaps() {
    let _turn = alone();
    let folder = scratch();
    let [trace, sent] = ["in.pcap", "out.pcap"].map(|name| folder.path().join(name));
    // The gaps add up to 75 ms, 60 ms of which are one gap.
    let packets = [(0, 60), (15_000_000, 700), (60_000_000, 1514)];
    let frames = write_capture(&trace, &packets);
    let pattern = format!("trace({})", trace.display());
    let port = format!("pcap:{},role=write", sent.display());
    let more = [
        "--set",
        "frames=trace",
        "--seconds",
        "0.27",
        "--max-loss",
        "1",
    ];
    undisturbed(|| {
        generate(std::slice::from_ref(&port), &pattern, &more).success();
        let out = read_capture(&sent);
        // With the mean gap after its last frame, a pass takes 112.5 ms: two passes are complete, and a third has sent
        // two packets.
        let bytes: Vec<_> = out.iter().map(|(_, frame)| frame).collect();
        let want: Vec<_> = frames.iter().cycle().take(8).collect();
        assert_eq!(bytes, want);
        let gaps_ms = out.windows(2).map(|w| (w[1].0 - w[0].0) as f64 / 1e6);
        let want_ms = [15.0, 60.0, 37.5].into_iter().cycle();
        let off_ms: Vec<f64> = gaps_ms
            .zip(want_ms)
            .map(|(gap, want)| (gap - want).abs())
            .collect();
        match off_ms.iter().all(|off| *off < 5.0) {
            true => Ok(()),
            false => Err(format!("off by {off_ms:?} ms")),
        }
    });
}

#[test]
fn packets_follow_the_times_and_sizes_of_a_trace() {
    let _turn = alone();
    let folder = scratch();
    let trace = folder.path().join("in.pcap");
    let packets: Vec<_> = (0..200)
        .map(|i| (if i % 10 == 0 { 1_000_000 } else { 50_000 }, 60 + i))
        .collect();
    write_capture(&trace, &packets);
    let pair = format!("pair:trace-{}", std::process::id());
    let ports = [pair.clone(), pair];
    let pattern = format!("trace({})", trace.display());
    undisturbed(|| {
        let finished = generate(&ports, &pattern, &["--size", "trace", "--seconds", "0.2"]);
        let summary = finished.last_json();
        let tally = &summary["streams"][0]["tally"];
        if tally["received"] != tally["owed"] {
            return Err(summary.to_string());
        }
        // 200 packets take 28.14 ms: six passes and most of a seventh are due.
        let owed = tally["owed"].as_u64().unwrap();
        assert!((1_400..1_440).contains(&owed), "{summary}");
        let bytes = summary["ports"][0]["tx_bytes"].as_u64().unwrap();
        let pass: u64 = packets.iter().map(|(_, len)| *len as u64).sum();
        let rest = owed - 1_400;
        let rest_bytes: u64 = packets[..rest as usize].iter().map(|p| p.1 as u64).sum();
        assert_eq!(bytes, 7 * pass + rest_bytes, "{summary}");
        Ok(())
    });
    let rate = generate(&ports, &pattern, &["--rate", "2k", "--seconds", "0.5"]).first_stream();
    let owed = rate["tally"]["owed"].as_u64().unwrap();
    assert!((990..1_010).contains(&owed), "{rate}");
}

#[test]
fn filler_frames_separate_packets_and_are_dropped_on_arrival() {
    let _turn = alone();
    let pair = format!("pair:fill-{}", std::process::id());
    let ports = [pair.clone(), pair];
    let more = [
        "--rate",
        "5k",
        "--pacing",
        "fill",
        "--line",
        "100Mbit/s",
        "--seconds",
        "0.3",
    ];
    undisturbed(|| {
        let stream = generate(&ports, "constant", &more).first_stream();
        let tally = &stream["tally"];
        let number = |name: &str| tally[name].as_u64().unwrap();
        if number("received") != 1_500 {
            return Err(stream.to_string());
        }
        assert_eq!((number("owed"), number("foreign")), (1_500, 0), "{stream}");
        assert_eq!(
            number("fillers_sent"),
            number("fillers_received"),
            "{stream}"
        );
        // From packet to packet there are 2500 bytes, which are two fillers. A stopped machine sends fewer fillers, as
        // the link becomes idle. A late machine sends more and shorter fillers, up to 29 frames of 84 bytes.
        match (300..=1_500 * 29).contains(&number("fillers_sent")) {
            true => Ok(()),
            false => Err(stream.to_string()),
        }
    });
}

#[test]
fn an_unusable_trace_is_refused_with_a_one_line_error() {
    let folder = scratch();
    let trace = folder.path().join("in.pcap");
    write_capture(&trace, &[(0, 60), (1000, 60)]);
    let whole = fs::read(&trace).unwrap();
    fs::write(&trace, &whole[..whole.len() - 9]).unwrap();
    for (file, part) in [
        (
            trace.display().to_string(),
            "in.pcap: truncated in packet 2",
        ),
        ("/nowhere/at-all.pcap".to_string(), "/nowhere/at-all.pcap"),
        (folder.path().display().to_string(), "not a file"),
    ] {
        let pattern = format!("trace({file})");
        let finished = generate(&["null:".to_string()], &pattern, &["--seconds", "0.1"]);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    }
}
