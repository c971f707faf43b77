//! Tests of the numbers and of the restored order, in virtual time, with `impair` as the parallel part.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use taut_wire::UdpFlow;

const WAIT_TICKS: u64 = 1000;

fn function(text: &str) -> Resequence {
    let table: toml::Table = text.parse().unwrap();
    let mut made = Resequence::new(settings(table).unwrap()).unwrap();
    let ports: Vec<u8> = made.sides.iter().map(|side| side.port as u8).collect();
    made.set_ports(&ports, WAIT_TICKS);
    made
}

/// A frame of a flow; its last bytes are its number.
fn frame(flow: u16, number: u32) -> Vec<u8> {
    let flow = UdpFlow {
        src_port: 1000 + flow,
        ..UdpFlow::default()
    };
    let mut frame = flow.frame(84).unwrap();
    let end = frame.len();
    frame[end - 4..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(*frame.last_chunk().unwrap())
}

/// The ports and the time of a batch.
fn at(from_port: usize, to_port: usize, now_ticks: u64) -> Context {
    Context {
        now_ticks,
        from_port,
        to_port,
        ports: 2,
    }
}

/// Passes frames through a function; returns those that it keeps.
fn pass(function: &mut dyn Function, frames: &[Vec<u8>], context: &Context) -> Vec<Vec<u8>> {
    let pool = PoolHandle::new(128, false).unwrap();
    let mut batch = Batch::new();
    for (index, frame) in frames.iter().enumerate() {
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packet_mut(index).bytes_mut().copy_from_slice(frame);
    }
    function.process(&mut batch, context);
    batch.settle(&mut Batch::new());
    let frames = batch.packets().iter().map(|it| it.bytes().to_vec());
    frames.collect()
}

fn count(function: &Resequence, name: &str) -> u64 {
    function.count_of(name).unwrap()
}

#[test]
fn the_sequence_number_is_in_a_tag_after_vlan_tags() {
    let mut sender = function("number = [1]");
    let plain = frame(0, 7);
    let mut tagged = plain.clone();
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    let sent = pass(&mut sender, &[plain.clone(), tagged.clone()], &at(0, 1, 0));
    assert_eq!(sent[0][12..18], [0xf1, 0xc1, 0, 0, 0, 0]);
    assert_eq!(sent[1][12..22], [0x81, 0, 0, 5, 0xf1, 0xc1, 0, 0, 0, 1]);
    let mut receiver = function("number = [0]");
    let back = pass(&mut receiver, &sent, &at(0, 1, 0));
    assert_eq!(back, [plain, tagged]);
    assert_eq!(count(&receiver, "in order"), 2);
}

#[test]
fn packets_wait_for_a_missing_one_until_the_time_limit() {
    let (mut sender, mut receiver) = (function("number = [1]"), function("number = [0]"));
    let frames: Vec<_> = (0..5).map(|n| frame(0, n)).collect();
    let sent = pass(&mut sender, &frames, &at(0, 1, 0));
    let mut receive = |frames: &[Vec<u8>], now| -> Vec<u32> {
        let out = pass(&mut receiver, frames, &at(0, 1, now));
        out.iter().map(|it| number(it)).collect()
    };
    assert_eq!(receive(&[sent[0].clone(), sent[2].clone()], 0), [0]);
    assert!(receive(&[sent[3].clone()], 500).is_empty());
    assert!(receive(&[], 999).is_empty());
    assert_eq!(receive(&[], 1000), [2, 3]);
    // The late packet is not lost, and only its duplicate is dropped.
    assert_eq!(
        receive(&[sent[1].clone(), sent[1].clone(), sent[4].clone()], 1001),
        [1, 4]
    );
    assert_eq!(receiver.held(), 0);
    for (name, expected) in [
        ("in order", 2),
        ("reordered", 2),
        ("late, sent out of order", 1),
        ("dropped: duplicate", 1),
        ("missing numbers", 0),
        ("waits that timed out", 1),
    ] {
        assert_eq!(count(&receiver, name), expected, "{name}");
    }
}

#[test]
fn a_gap_in_one_flow_does_not_delay_another_flow() {
    let (mut sender, mut receiver) = (
        function("number = [1]\norder = 'flow'"),
        function("number = [0]\norder = 'flow'\nlate = 'drop'"),
    );
    let frames: Vec<_> = (0..6).map(|n| frame((n % 2) as u16, n)).collect();
    let mut sent = pass(&mut sender, &frames, &at(0, 1, 0));
    let first = sent.remove(2);
    pass(&mut receiver, &sent[..2], &at(0, 1, 0));
    let out = pass(&mut receiver, &sent[2..], &at(0, 1, 1));
    assert_eq!(out.iter().map(|it| number(it)).collect::<Vec<_>>(), [3, 5]);
    let out = pass(&mut receiver, &[], &at(0, 1, 5000));
    assert_eq!(out.iter().map(|it| number(it)).collect::<Vec<_>>(), [4]);
    assert!(pass(&mut receiver, &[first], &at(0, 1, 5001)).is_empty());
    assert_eq!(count(&receiver, "dropped: late"), 1);
}

#[test]
fn packets_of_other_ports_and_without_numbers_pass() {
    let mut both = function("number = [1]");
    let frames = vec![frame(0, 0), vec![1; 14], frame(0, 2)];
    assert_eq!(pass(&mut both, &frames, &at(2, 3, 0)), frames);
    assert_eq!(pass(&mut both, &frames, &at(1, 0, 0)), frames);
    assert_eq!(count(&both, "passed: another port"), 3);
    assert_eq!(count(&both, "passed: no number"), 3);
    // A frame without an EtherType cannot get a number.
    assert!(pass(&mut both, &[vec![1; 13]], &at(0, 1, 0)).is_empty());
    assert_eq!(count(&both, "dropped: no space for a number"), 1);
}

#[test]
fn settings_out_of_range_are_refused_with_the_key() {
    let wrong = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
    for (text, key) in [
        ("number = []", "number"),
        ("number = [1, 1]", "number"),
        ("number = [1]\nwindow = 1", "window = 1"),
        ("number = [1]\nwindow = 16385", "window = 16385"),
        ("number = [1]\nwait = '2s'", "wait"),
        ("number = [1]\norder = 'none'", "order"),
        ("number = [1]\nlate = 'never'", "late"),
    ] {
        assert!(wrong(text).starts_with(key), "{}", wrong(text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn order_is_restored_after_loss_duplication_and_reordering(
        seed in any::<u64>(),
        (loss, duplicate, reorder) in (0.0..0.2_f64, 0.0..0.2_f64, 0.0..0.3_f64),
        bursts in prop::collection::vec(1_usize..32, 1..40),
        per_flow in any::<bool>(),
    ) {
        let order = if per_flow { "flow" } else { "whole" };
        let mut sender = function(&format!("number = [1]\norder = '{order}'"));
        let mut receiver = function(&format!("number = [0]\norder = '{order}'"));
        let text = format!(
            "seed = {}\nloss = {loss}\nduplicate = {duplicate}\nreorder = {reorder}",
            seed >> 1
        );
        let mut path = crate::build("impair", text.parse().unwrap()).unwrap();
        let (mut now, mut next, mut arrived, mut out) = (0, 0, 0, Vec::new());
        for burst in bursts {
            now += 10;
            let frames: Vec<_> = (next..next + burst as u32).map(|n| frame((n % 3) as u16, n)).collect();
            next += burst as u32;
            let sent = pass(&mut sender, &frames, &at(0, 1, now));
            let through = pass(&mut *path, &sent, &at(0, 1, now));
            arrived += through.len();
            for part in through.chunks(32) {
                out.extend(pass(&mut receiver, part, &at(0, 1, now)));
            }
        }
        while receiver.held() > 0 {
            now += WAIT_TICKS;
            out.extend(pass(&mut receiver, &[], &at(0, 1, now)));
        }
        let late = count(&receiver, "late, sent out of order");
        let duplicates = count(&receiver, "dropped: duplicate");
        prop_assert_eq!(out.len() + duplicates as usize, arrived);
        let mut numbers: Vec<u32> = out.iter().map(|it| number(it)).collect();
        // Each packet leaves without its tag, and once.
        prop_assert!(out.iter().all(|it| it.len() == frame(0, 0).len()));
        let mut unordered = 0;
        for flow in 0..3 {
            let of_flow: Vec<u32> = numbers.iter().copied().filter(|n| n % 3 == flow).collect();
            unordered += of_flow.windows(2).filter(|two| two[0] > two[1]).count();
        }
        prop_assert!(unordered as u64 <= late);
        if !per_flow {
            let inversions = numbers.windows(2).filter(|two| two[0] > two[1]).count();
            prop_assert!(inversions as u64 <= late);
        }
        numbers.sort_unstable();
        prop_assert!(numbers.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn all_frames_pass_or_are_counted_and_none_remains(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..30),
        tagged in any::<u32>(),
    ) {
        let mut both = function("number = [0, 1]\nwindow = 8");
        let frames: Vec<Vec<u8>> = frames.into_iter().enumerate().map(|(at, mut frame)| {
            if tagged >> at & 1 == 1 && frame.len() > 14 {
                frame[12..14].copy_from_slice(&[0xf1, 0xc1]);
            }
            frame
        }).collect();
        let first = pass(&mut both, &frames, &at(0, 2, 0)).len();
        let rest = pass(&mut both, &[], &at(0, 2, 5000)).len();
        prop_assert_eq!(both.held(), 0);
        let outcomes = both.outcomes();
        let drops = outcomes.iter().filter(|(name, _)| name.starts_with("dropped"));
        let dropped: u64 = drops.map(|(_, count)| count).sum();
        prop_assert_eq!(first + rest + dropped as usize, frames.len());
    }
}
