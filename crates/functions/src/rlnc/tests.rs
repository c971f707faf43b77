#![allow(clippy::unwrap_used)]
use super::queue::complete;
use super::*;
use crate::build;
use std::net::IpAddr;
use taut_function::testing::seen;
use taut_wire::UdpFlow;

fn function(text: &str) -> Box<dyn Function> {
    build("rlnc", text.parse().unwrap()).unwrap()
}

/// Returns a packet of a flow; packets have different sizes and correct checksums.
fn frame(number: usize) -> Vec<u8> {
    let flow = number % 3;
    let v6 = flow == 2;
    let address = |last: u8| -> IpAddr {
        let text = if v6 {
            format!("2001:db8::{last:x}")
        } else {
            format!("10.0.{flow}.{last}")
        };
        text.parse().unwrap()
    };
    let flow = UdpFlow {
        src_ip: address(1),
        dst_ip: address(2),
        src_port: 1000 + flow as u16,
        dst_port: 2000,
        ttl: 64,
        ..UdpFlow::default()
    };
    let mut frame = flow.frame(90 + (number * 37) % 1300).unwrap();
    let Seen::Datagram(datagram) = seen(&frame) else {
        panic!("no datagram");
    };
    let mut random = fastrand::Rng::with_seed(number as u64);
    random.fill(&mut frame[datagram.payload()]);
    complete(&mut frame, &datagram).unwrap();
    if datagram.is_v4 {
        // A recovered packet has these fields.
        frame[18..20].fill(0);
        frame[20] = 0x40;
        complete(&mut frame, &datagram).unwrap();
    }
    frame
}

/// Passes frames through a function in batches of up to `burst`; empty batches release buffered packets.
fn pass(
    function: &mut dyn Function,
    frames: &[Vec<u8>],
    to_port: usize,
    burst: usize,
) -> Vec<Vec<u8>> {
    let pool = PoolHandle::new(64, false).unwrap();
    let context = Context {
        to_port,
        ..Context::default()
    };
    let mut out = Vec::new();
    let mut slow = Batch::new();
    let mut end = |batch: &mut Batch, out: &mut Vec<Vec<u8>>| {
        batch.settle(&mut slow);
        out.extend(batch.packets().iter().map(|it| it.bytes().to_vec()));
        batch.clear();
    };
    for frames in frames.chunks(burst) {
        let mut batch = Batch::new();
        for (index, frame) in frames.iter().enumerate() {
            pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packets_mut()[index]
                .bytes_mut()
                .copy_from_slice(frame);
        }
        function.process(&mut batch, &context);
        end(&mut batch, &mut out);
    }
    for _ in 0..20 {
        let mut batch = Batch::new();
        function.process(&mut batch, &context);
        end(&mut batch, &mut out);
    }
    out
}

fn count(function: &dyn Function, outcome: &str) -> u64 {
    function
        .outcomes()
        .into_iter()
        .find(|(name, _)| name.starts_with(outcome))
        .unwrap()
        .1
}

fn is_sound(frame: &[u8]) {
    let Seen::Datagram(datagram) = seen(frame) else {
        panic!("no datagram: {frame:?}");
    };
    let mut again = frame.to_vec();
    assert_eq!(datagram.end, frame.len());
    complete(&mut again, &datagram).unwrap();
    assert_eq!(frame, again, "lengths and checksums");
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

#[test]
fn all_packets_arrive_when_losses_stay_within_the_redundancy() {
    // The coefficients have fixed seeds, because one random matrix in 255 is singular.
    for case in 0..40_u64 {
        let mut random = fastrand::Rng::with_seed(case);
        let block = case % 2 == 0;
        let burst = random.usize(1..=32);
        let count_of = random.usize(32..200);
        let code = if block {
            "code = 'block'"
        } else {
            "redundancy = 0.5"
        };
        let mut encoder = function(&format!(
            "encode = [1]\n{code}\nseed = {case}\nflush = '0ns'"
        ));
        let mut decoder = function(&format!("encode = [0]\n{code}"));
        let sent: Vec<Vec<u8>> = (0..count_of).map(frame).collect();
        let coded = pass(&mut *encoder, &sent, 1, burst);
        coded.iter().for_each(|it| is_sound(it));
        assert_eq!(count(&*encoder, "coded"), count_of as u64);
        assert!(coded.len() > count_of);
        // One of every nine packets is lost. The first packet is not, because the decoder begins there; the last
        // packets are not, because no later repair packet covers them.
        let last = coded.len() - if block { 0 } else { 12 };
        let arrived: Vec<Vec<u8>> = coded
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 9 != 4 || *index >= last)
            .map(|(_, frame)| frame.clone())
            .collect();
        let received = pass(&mut *decoder, &arrived, 1, burst);
        received.iter().for_each(|it| is_sound(it));
        assert_eq!(sorted(received), sorted(sent), "{case}");
        assert_eq!(count(&*decoder, "lost"), 0);
    }
}

#[test]
fn packets_are_decoded_unchanged_and_in_order_without_loss() {
    let mut encoder = function("encode = [1]");
    let mut decoder = function("encode = [0]");
    let sent: Vec<Vec<u8>> = (0..100).map(frame).collect();
    let coded = pass(&mut *encoder, &sent, 1, 32);
    assert_eq!(pass(&mut *decoder, &coded, 1, 32), sent);
    assert_eq!(count(&*decoder, "repairs taken in"), 25);
    assert_eq!(count(&*decoder, "recovered"), 0);
    // In the other direction, encoder and decoder exchange their roles.
    let coded = pass(&mut *decoder, &sent, 0, 7);
    assert_eq!(pass(&mut *encoder, &coded, 0, 7), sent);
}

#[test]
fn a_recoding_hop_compensates_losses_before_and_after_it() {
    let mut encoder = function("encode = [1]\nsymbols = 16\nredundancy = 0.5\nseed = 1");
    let mut hop = function("recode = true\nsymbols = 24\nredundancy = 0.5\nseed = 2");
    let mut decoder = function("encode = [0]\nsymbols = 16\nspan = 128");
    let sent: Vec<Vec<u8>> = (0..600).map(frame).collect();
    let lossy = |frames: Vec<Vec<u8>>, seed: u64| -> Vec<Vec<u8>> {
        let mut random = fastrand::Rng::with_seed(seed);
        frames.into_iter().filter(|_| random.f64() >= 0.1).collect()
    };
    let coded = lossy(pass(&mut *encoder, &sent, 1, 32), 3);
    let again = pass(&mut *hop, &coded, 1, 32);
    again.iter().for_each(|it| is_sound(it));
    assert_eq!(count(&*hop, "recoded"), coded.len() as u64);
    let received = pass(&mut *decoder, &lossy(again, 4), 1, 32);
    received.iter().for_each(|it| is_sound(it));
    // A fifth of the packets was lost.
    assert!(received.len() > 590, "{}", received.len());
    let all = sorted(sent);
    assert!(received.iter().all(|it| all.binary_search(it).is_ok()));
}

#[test]
fn lost_packets_are_recovered_despite_encoder_restarts_and_forged_sessions() {
    let mut decoder = function("encode = [0]");
    let sent: Vec<Vec<u8>> = (0..40).map(frame).collect();
    for _ in 0..2 {
        let mut encoder = function("encode = [1]");
        let mut coded = pass(&mut *encoder, &sent, 1, 32);
        let Seen::Datagram(datagram) = seen(&coded[20]) else {
            panic!("no datagram");
        };
        let mut forged = coded[20].clone();
        forged[datagram.payload().start + 4] ^= 0x55;
        coded.insert(21, forged);
        let lost = coded.remove(24);
        let received = pass(&mut *decoder, &coded, 1, 32);
        let mut expected = sorted(sent.clone());
        // The forged packet passes like any other, and the lost packets are recovered.
        expected.push(received.iter().find(|it| **it == sent[16]).unwrap().clone());
        assert_eq!(sorted(received).len(), expected.len(), "{}", lost.len());
    }
    assert_eq!(count(&*decoder, "lost"), 0);
}

#[test]
fn invalid_headers_are_dropped_and_every_corrupted_packet_is_counted() {
    let mut decoder = function("encode = [0]\nsymbols = 4");
    let plain = frame(1);
    assert_eq!(
        pass(&mut *decoder, std::slice::from_ref(&plain), 1, 1),
        [plain]
    );
    assert_eq!(count(&*decoder, "passed: not coded"), 1);
    let mut encoder = function("encode = [1]\nsymbols = 4");
    let coded = pass(
        &mut *encoder,
        &(0..200).map(frame).collect::<Vec<_>>(),
        1,
        32,
    );
    let mut random = fastrand::Rng::with_seed(9);
    let mut broken = Vec::new();
    for _ in 0..20 {
        for it in &coded {
            let mut it = it.clone();
            let Seen::Datagram(datagram) = seen(&it) else {
                continue;
            };
            let at = datagram.payload().start + random.usize(..30);
            it[at] = random.u8(..);
            if random.bool() {
                it.truncate(random.usize(..it.len()));
            }
            broken.push(it);
        }
    }
    let out = pass(&mut *decoder, &broken, 1, 32);
    let saw: u64 = decoder
        .outcomes()
        .iter()
        .filter(|(name, _)| !name.ends_with("above"))
        .map(|(_, n)| n)
        .sum();
    assert_eq!(saw, 1 + broken.len() as u64);
    assert!(count(&*decoder, "dropped: broken") > 0 && !out.is_empty());
    let mut hop = function("recode = true");
    pass(&mut *hop, &broken, 1, 32);
}

#[test]
fn invalid_rlnc_settings_are_refused_with_the_reason() {
    let wrong = |text: &str| build("rlnc", text.parse().unwrap()).err().unwrap().0;
    for (text, part) in [
        ("encode = [1]\nrecode = true", "leave one out"),
        ("encode = [64]", "0 to 63"),
        ("symbols = 0", "1 to 255"),
        ("redundancy = 0.0", "redundancy"),
        ("density = 0.0", "density"),
        ("payload = 0", "1 to 8192"),
        ("payload = 4000", "use at most"),
        ("span = 4", "8 (what a repair covers)"),
        ("flush = 'soon'", "such as 2ms"),
        ("code = 'turbo'", "turbo"),
        ("symbol = 8", "symbol"),
    ] {
        let found = wrong(text);
        assert!(found.contains(part), "{text}: {found}");
    }
}

/// Returns the index of each received frame in the list of sent frames.
fn places(received: &[Vec<u8>], sent: &[Vec<u8>]) -> Vec<usize> {
    let place = |frame: &Vec<u8>| sent.iter().position(|it| it == frame).unwrap();
    received.iter().map(place).collect()
}

#[test]
fn in_order_delivery_works_despite_loss_and_reordering() {
    for case in 0..40_u64 {
        let mut random = fastrand::Rng::with_seed(case);
        let code = if case % 2 == 0 {
            "code = 'block'"
        } else {
            "redundancy = 0.5"
        };
        let mut encoder = function(&format!(
            "encode = [1]\n{code}\nseed = {case}\nflush = '0ns'"
        ));
        let mut decoder = function(&format!(
            "encode = [0]\n{code}\norder = 'in-order'\npatience = '100s'\nspan = 256"
        ));
        let burst = random.usize(1..=64);
        let sent: Vec<Vec<u8>> = (0..random.usize(64..200)).map(frame).collect();
        let coded = pass(&mut *encoder, &sent, 1, burst);
        let last = coded.len() - 14;
        let mut arrived: Vec<Vec<u8>> = coded
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 9 != 4 || *index >= last)
            .map(|(_, frame)| frame.clone())
            .collect();
        // Neighbouring packets are swapped, and some are duplicated; the first packet stays in place, because it marks
        // the beginning.
        for _ in 0..10 {
            let at = random.usize(1..arrived.len() - 14);
            arrived.swap(at, at + random.usize(1..6));
            arrived.insert(at + 6, arrived[at].clone());
        }
        let received = pass(&mut *decoder, &arrived, 1, burst);
        received.iter().for_each(|it| is_sound(it));
        if case % 2 == 1 {
            assert_eq!(
                places(&received, &sent),
                (0..sent.len()).collect::<Vec<_>>(),
                "{case}"
            );
        } else {
            // A block may have lost more than its repair packets recover; later packets then wait.
            let found = places(&received, &sent);
            assert!(
                found.iter().copied().eq(0..found.len()),
                "{case}: {found:?}"
            );
        }
        assert_eq!(count(&*decoder, "not waited for"), 0);
        // Every packet has one outcome; those that leave are the uncoded and the recovered.
        let left = count(&*decoder, "uncoded") + count(&*decoder, "recovered");
        assert!(left >= received.len() as u64 && left <= sent.len() as u64);
        assert!(count(&*decoder, "waited") > 0 && count(&*decoder, "dropped: behind") > 0);
    }
}

#[test]
fn in_order_delivery_waits_for_missing_packets_until_the_timeout() {
    let sent: Vec<Vec<u8>> = (0..40).map(frame).collect();
    let mut encoder = function("encode = [1]\nredundancy = 0.001");
    let mut coded = pass(&mut *encoder, &sent, 1, 32);
    coded.truncate(40);
    let missing = coded.remove(20);
    // The timeout, which is 0 here, releases the waiting packets immediately.
    let mut decoder = function("encode = [0]\norder = 'in-order'\npatience = '0ns'");
    let received = pass(&mut *decoder, &coded, 1, 64);
    let expected: Vec<usize> = (0..40).filter(|place| *place != 20).collect();
    assert_eq!(places(&received, &sent), expected);
    assert_eq!(count(&*decoder, "not waited for"), 1);
    // A packet that comes after all others is too late.
    assert!(pass(&mut *decoder, std::slice::from_ref(&missing), 1, 1).is_empty());
    assert_eq!(count(&*decoder, "dropped: behind its turn"), 1);

    // The span releases the waiting packets, as soon as the decoder can no longer recover the missing packet.
    let mut decoder =
        function("encode = [0]\norder = 'in-order'\npatience = '100s'\nspan = 16\nsymbols = 8");
    let received = pass(&mut *decoder, &coded, 1, 1);
    assert_eq!(places(&received, &sent), expected);
    assert_eq!(count(&*decoder, "lost"), 1);
    assert_eq!(count(&*decoder, "not waited for"), 0);
    // Fewer packets than the span follow a gap, so these packets wait.
    let mut decoder = function("encode = [0]\norder = 'in-order'\npatience = '100s'");
    assert_eq!(pass(&mut *decoder, &coded, 1, 64).len(), 20);
    assert_eq!(count(&*decoder, "waited"), 19);
    // Another sender begins: waiting packets are released before its packets.
    let mut encoder = function("encode = [1]\nredundancy = 0.001");
    let again = pass(&mut *encoder, &sent, 1, 32);
    let received = pass(&mut *decoder, &again[..40], 1, 64);
    assert_eq!(received.len(), 19 + 40);
}

#[test]
fn an_invalid_order_setting_is_refused() {
    for (settings, part) in [
        (
            "recode = true\norder = 'in-order'",
            "leave it out with recode",
        ),
        ("order = 'in-order'\npatience = 'long'", "expected a time"),
        ("order = 'sorted'", "in-order"),
    ] {
        let Err(refused) = build("rlnc", settings.parse().unwrap()) else {
            panic!("{settings}");
        };
        assert!(refused.to_string().contains(part), "{refused}");
    }
}

/// Returns the frame with `number` as the packet number in its coding header.
fn numbered(frame: &[u8], number: u64) -> Vec<u8> {
    let Seen::Datagram(datagram) = seen(frame) else {
        panic!("no datagram");
    };
    let mut frame = frame.to_vec();
    frame[datagram.payload().start + 8..][..8].copy_from_slice(&number.to_be_bytes());
    frame
}

#[test]
fn a_forged_sequence_number_causes_no_loss_in_a_stream() {
    for order in ["", "order = 'in-order'\npatience = '100s'"] {
        for number in [
            200,
            60_000,
            1 << 40,
            1 << 62,
            1 << 63,
            u64::MAX - 10,
            u64::MAX,
        ] {
            let mut encoder = function("encode = [1]\nseed = 1");
            let sent: Vec<Vec<u8>> = (0..40).map(frame).collect();
            let mut coded = pass(&mut *encoder, &sent, 1, 32);
            // The packet with the huge number replaces a packet that a repair packet recovers.
            coded[24] = numbered(&coded[20], number);
            let mut decoder = function(&format!("encode = [0]\n{order}"));
            let received = pass(&mut *decoder, &coded, 1, 32);
            assert_eq!(count(&*decoder, "recovered"), 1, "{number}");
            assert_eq!(count(&*decoder, "lost"), 0, "{number}");
            let all = sorted(sent.clone());
            assert!(all.iter().all(|it| received.contains(it)), "{number}");
        }
    }
}

#[test]
fn decoding_recovers_after_a_first_packet_with_huge_sequence_number() {
    let mut encoder = function("encode = [1]");
    let sent: Vec<Vec<u8>> = (0..40).map(frame).collect();
    let coded = pass(&mut *encoder, &sent, 1, 32);
    for number in [u64::MAX - 20, (1 << 63) - 20] {
        let mut decoder = function("encode = [0]\norder = 'in-order'\npatience = '0ns'");
        let mut recoder = function("recode = true");
        let first = [
            numbered(&coded[0], number),
            numbered(&coded[1], number + 10),
        ];
        pass(&mut *decoder, &first, 1, 1);
        pass(&mut *recoder, &first, 1, 1);
        // The decoder follows the later packets once there are enough of them: after a span of packets if their numbers
        // are lower, and otherwise immediately.
        for _ in 0..3 {
            pass(&mut *decoder, &coded, 1, 32);
        }
        assert!(count(&*decoder, "repairs taken in") > 0, "{number}");
    }
}

#[test]
fn decoding_continues_after_an_outage_of_any_length() {
    for outage in [20, 33, 1_000, 80_000] {
        let mut encoder = function("encode = [1]\nseed = 1\nsymbols = 8");
        let sent: Vec<Vec<u8>> = (0..40).map(frame).collect();
        let before = pass(&mut *encoder, &sent, 1, 32);
        pass(&mut *encoder, &vec![frame(1); outage], 1, 64);
        let mut coded = pass(&mut *encoder, &sent, 1, 32);
        coded.remove(24);
        for order in ["", "order = 'in-order'"] {
            let mut decoder = function(&format!("encode = [0]\n{order}"));
            pass(&mut *decoder, &before, 1, 32);
            pass(&mut *decoder, &coded, 1, 32);
            assert_eq!(count(&*decoder, "recovered"), 1, "{outage} {order}");
            // Missing packets within the decoder's history may still be recovered, so they do not count as lost.
            let lost = if outage > 32 { outage as u64 } else { 0 };
            assert_eq!(count(&*decoder, "lost"), lost, "{outage} {order}");
        }
    }
}
