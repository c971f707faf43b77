//! A comparison with Suricata: the same rules over the same packets, with alerts and drops packet by packet. Its
//! results were recorded in tests/data/suricata by the scripts in benches/peers/suricata.
#![allow(clippy::unwrap_used)]

use super::*;
use flate2::read::GzDecoder;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use taut_function::Punted;
use taut_function::testing::batch_of;
use taut_inspect::search::Matcher;
use taut_port::{Mark, Punt};

/// The known differences, by part of the corpus and packet number: `+` is an alert of taut alone, `-` is an alert of
/// Suricata alone. The reference page of `ips` gives the reasons.
const DIFFERENCES: &[(&str, &[&str])] = &[
    (
        "a drop is one of the flow; in Suricata of the packet alone where the rule asks about packets (`dsize`)",
        &[
            "sample 541 +dropped",
            "sample 542 +dropped",
            "sample 543 +dropped",
            "sample 544 +dropped",
            "sample 545 +dropped",
            "sample 546 +dropped",
        ],
    ),
    (
        "the language says that others than the bits of `+` may be set; Suricata wants one of them to be",
        &["headers 21 +4000010"],
    ),
    (
        "the language says that `any` fits every option; in Suricata it fits none",
        &["headers 33 +4000015"],
    ),
    (
        "the language says that `!` fits where the flags are not set; in Suricata it fits nothing",
        &[
            "headers 59 +4000025",
            "headers 60 +4000025",
            "headers 63 +4000025",
            "headers 66 +4000025",
        ],
    ),
    (
        "a stream that begins with a word of capital letters and a space is held for HTTP, as methods may be new",
        &["http 1414 +9000066"],
    ),
    (
        "rules about HTTP are asked when all headers are there, not when the line is that they look into",
        &["http 1428 -9000067", "http 1432 +9000067"],
    ),
    (
        "a match is written once; Suricata writes it again while its bytes are within its window",
        &[
            "streams 42 -13000004",
            "streams 52 -13000005",
            "streams 54 -13000005",
        ],
    ),
    (
        "rules that say where something is are asked about the packet alone, not about its stream",
        &[
            "streams 84 -13000008",
            "streams 188 -13000018",
            "streams 238 -13000023",
        ],
    ),
    (
        "a segment without flags goes no further, as ones with others that no end sends; Suricata lets it pass",
        &["headers 86 +dropped"],
    ),
    (
        "a segment that fills a gap is looked at with what came early; Suricata in line does not look back",
        &["streams 158 +13000015"],
    ),
];

/// The identifiers of the matching rules by packet, and the dropped packets; packets are numbered from 1.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    alerts: BTreeMap<usize, Vec<u64>>,
    dropped: BTreeSet<usize>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/suricata")
}

/// Returns the frames of a capture with their times in us.
fn frames(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut packed = GzDecoder::new(fs::File::open(file).unwrap());
    packed.read_to_end(&mut bytes).unwrap();
    let number = |at: usize| u64::from(u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()));
    assert_eq!(number(0), 0xa1b2_c3d4);
    let (mut frames, mut at) = (Vec::new(), 24);
    while at < bytes.len() {
        let len = number(at + 8) as usize;
        let at_us = number(at) * 1_000_000 + number(at + 4);
        frames.push((at_us, bytes[at + 16..][..len].to_vec()));
        at += 16 + len;
    }
    frames
}

/// Parses Suricata's results: a line `NUMBER: SID SID...` for each packet with matches, and `dropped: NUMBER...`.
fn recorded(text: &str) -> Said {
    let mut said = Said::default();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (packet, list) = line.split_once(':').unwrap();
        let numbers = list.split_whitespace().map(|it| it.parse().unwrap());
        if packet == "dropped" {
            said.dropped.extend(numbers.map(|it: u64| it as usize));
        } else {
            said.alerts
                .insert(packet.parse().unwrap(), numbers.collect());
        }
    }
    said
}

/// Returns the results of taut's inspection.
fn inspected(rules: &str, frames: &[(u64, Vec<u8>)], more: &str) -> Said {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    fs::write(folder.path().join("rules"), rules).unwrap();
    // The largest capture has 94 kB of 194 flows.
    let text = format!(
        "rules = [\"{path}/rules\"]\nlanguage = \"suricata\"\nevents = \"{path}/eve.json\"\nmax_time = \"1s\"\n\
         flows = 8192\nmemory = \"8 MB\"\n{more}\
         [variables]\nHOME_NET = \"10.0.0.0/8\"\nEXTERNAL_NET = \"!$HOME_NET\"\n"
    );
    let mut function = (ENTRY.build)(text.parse().unwrap()).unwrap();
    function.prepare().unwrap();
    let mut slow = function.handler().unwrap();
    let clock = Clock::calibrate(Duration::from_millis(2));
    let begin_us = frames.first().map_or(0, |it| it.0);
    let mut said = Said::default();
    // Events are in order: the number of events per packet assigns them to packets.
    let mut events = Vec::new();
    for (number, (at_us, frame)) in (1..).zip(frames) {
        let alerts = function.count_of("alerts").unwrap();
        let since_ns = (at_us - begin_us) as f64 * 1e3;
        let from_port = usize::from(frame[5] == 1);
        let context = Context {
            now_ticks: clock.to_ticks(1e9 + since_ns) as u64,
            from_port,
            to_port: 1 - from_port,
            ports: 2,
        };
        let mut batch = batch_of(frame, 64);
        function.process(&mut batch, &context);
        match batch.mark(0) {
            Some(Mark::Punted(cause @ (Punt::Fragment | Punt::LastFragment))) => {
                let punted = Punted {
                    frame,
                    from_port,
                    cause,
                };
                slow.handle(&punted, &mut |_, _| true);
                events.push((number, function.count_of("alerts").unwrap() - alerts));
            }
            mark => {
                events.push((number, function.count_of("alerts").unwrap() - alerts));
                if mark.is_some() {
                    said.dropped.insert(number);
                }
            }
        }
    }
    drop((function, slow));
    said.alerts = alerts_by_packet(&folder.path().join("eve.json"), events);
    said
}

/// Returns the identifiers of the matching rules by packet, from a file of events and the number of alerts per packet.
fn alerts_by_packet(file: &Path, counts: Vec<(usize, u64)>) -> BTreeMap<usize, Vec<u64>> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut ids = lines
        .filter(|it| it["event_type"] == "alert")
        .map(|it| it["alert"]["signature_id"].as_u64().unwrap());
    let mut alerts = BTreeMap::new();
    for (number, count) in counts {
        let mut of_packet: Vec<u64> = ids.by_ref().take(count as usize).collect();
        assert_eq!(of_packet.len() as u64, count);
        of_packet.sort_unstable();
        if count > 0 {
            alerts.insert(number, of_packet);
        }
    }
    assert_eq!(ids.next(), None);
    alerts
}

/// Returns the differences between both results, one line each.
fn differences(name: &str, ours: &Said, theirs: &Said) -> Vec<String> {
    let mut lines = Vec::new();
    let none = Vec::new();
    let packets: BTreeSet<_> = ours.alerts.keys().chain(theirs.alerts.keys()).collect();
    for packet in packets {
        let of = |said: &Said| said.alerts.get(packet).unwrap_or(&none).clone();
        let (ours, theirs) = (of(ours), of(theirs));
        for (mark, here, there) in [('+', &ours, &theirs), ('-', &theirs, &ours)] {
            let mut left = there.clone();
            for sid in here {
                match left.iter().position(|it| it == sid) {
                    Some(place) => drop(left.remove(place)),
                    None => lines.push(format!("{name} {packet} {mark}{sid}")),
                }
            }
        }
    }
    for packet in ours.dropped.symmetric_difference(&theirs.dropped) {
        let mark = if ours.dropped.contains(packet) {
            '+'
        } else {
            '-'
        };
        lines.push(format!("{name} {packet} {mark}dropped"));
    }
    lines
}

#[test]
fn alerts_and_drops_equal_those_of_suricata_except_known_differences() {
    let mut names: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .filter_map(|it| {
            let name = it.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".alerts").map(str::to_string)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 15, "{names:?}");
    let mut found = Vec::new();
    for name in &names {
        let read = |end: &str| fs::read_to_string(folder().join(format!("{name}.{end}"))).unwrap();
        if name == "sample" {
            assert_eq!(read("rules"), taut_inspect::sample::rules());
        }
        let theirs = recorded(&read("alerts"));
        let frames = frames(&folder().join(format!("{name}.pcap.gz")));
        let ours = inspected(&read("rules"), &frames, "");
        found.extend(differences(name, &ours, &theirs));
    }
    let known: BTreeSet<_> = DIFFERENCES.iter().flat_map(|it| it.1.iter()).collect();
    let unknown: Vec<_> = found
        .iter()
        .filter(|it| !known.contains(&it.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "not as Suricata has it, nor a difference that is known: {unknown:#?}"
    );
    assert_eq!(
        found.len(),
        known.len(),
        "some of the known differences are gone; left are {found:#?}"
    );
}

#[test]
fn vectorscan_and_automaton_matchers_yield_equal_alerts_and_drops() {
    if let Err(reason) = Matcher::Vectorscan.check() {
        println!("skipped: {reason}");
        return;
    }
    for name in ["contents", "flows", "http", "sample", "streams"] {
        let rules = fs::read_to_string(folder().join(format!("{name}.rules"))).unwrap();
        let frames = frames(&folder().join(format!("{name}.pcap.gz")));
        let automaton = inspected(&rules, &frames, "");
        let other = inspected(&rules, &frames, "matcher = \"vectorscan\"\n");
        assert_eq!(automaton, other, "{name}");
    }
}
