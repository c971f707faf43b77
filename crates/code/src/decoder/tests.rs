#![allow(clippy::unwrap_used)]

use super::*;
use crate::field::product;
use crate::{Encoder, Recoder, Scheme};
use proptest::prelude::*;
use std::collections::BTreeMap;

const SIZE: usize = 48;

fn symbol(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let length = random.usize(1..=SIZE);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

#[derive(Debug, Clone)]
enum Sent {
    Source(u64),
    Repair(u64, Vec<u8>, Vec<u8>),
}

fn sent(scheme: Scheme, count: u64, density: f64, seed: u64) -> Vec<Sent> {
    let mut encoder = Encoder::new(scheme, SIZE, density, seed).unwrap();
    let mut all = Vec::new();
    for number in 0..count {
        encoder.push(&symbol(number));
        all.push(Sent::Source(number));
        while let Some(it) = encoder.next_repair() {
            all.push(Sent::Repair(
                it.first,
                it.coefficients.to_vec(),
                it.sum.to_vec(),
            ));
        }
    }
    all
}

/// Returns the symbols that a decoder knows after all packets, with the contents that it returned.
fn decoded(decoder: &mut Decoder, arrived: &[Sent]) -> BTreeMap<u64, Vec<u8>> {
    let mut known = BTreeMap::new();
    for packet in arrived {
        let mut recovered = |number: u64, symbol: &[u8]| {
            assert!(
                known.insert(number, symbol.to_vec()).is_none(),
                "{number} twice"
            );
        };
        match packet {
            Sent::Source(number) => {
                if decoder.source(*number, &symbol(*number), &mut recovered) == Ok(true) {
                    recovered(*number, &symbol(*number));
                }
            }
            Sent::Repair(first, coefficients, sum) => {
                let combination = Combination {
                    first: *first,
                    coefficients,
                    sum,
                };
                let _ = decoder.combination(&combination, &mut recovered);
            }
        }
    }
    known
}

fn is_right(known: &BTreeMap<u64, Vec<u8>>) {
    for (number, found) in known {
        let expected = symbol(*number);
        assert!(found.len() >= expected.len());
        assert_eq!(found[..expected.len()], expected);
        assert!(found[expected.len()..].iter().all(|it| *it == 0));
    }
}

/// Returns the numbers of the source symbols that all arrived packets together determine. The function solves all
/// equations in one elimination, as a reference for the decoder.
fn determined(arrived: &[Sent], count: usize) -> Vec<u64> {
    let mut rows: Vec<Vec<u8>> = arrived
        .iter()
        .map(|packet| {
            let mut row = vec![0; count];
            match packet {
                Sent::Source(number) => row[*number as usize] = 1,
                Sent::Repair(first, coefficients, _) => {
                    row[*first as usize..][..coefficients.len()].copy_from_slice(coefficients);
                }
            }
            row
        })
        .collect();
    let mut done = 0;
    for column in 0..count {
        let Some(pivot) = (done..rows.len()).find(|row| rows[*row][column] != 0) else {
            continue;
        };
        rows.swap(done, pivot);
        let factor = inverse(rows[done][column]);
        rows[done]
            .iter_mut()
            .for_each(|it| *it = product(*it, factor));
        let own = rows[done].clone();
        for (index, row) in rows.iter_mut().enumerate() {
            let coefficient = row[column];
            if index != done && coefficient != 0 {
                row.iter_mut()
                    .zip(&own)
                    .for_each(|(it, own)| *it ^= product(coefficient, *own));
            }
        }
        done += 1;
    }
    let single = |row: &&Vec<u8>| row.iter().filter(|it| **it != 0).count() == 1;
    let mut numbers: Vec<u64> = rows
        .iter()
        .filter(single)
        .filter_map(|row| row.iter().position(|it| *it != 0))
        .map(|column| column as u64)
        .collect();
    numbers.sort_unstable();
    numbers
}

fn lossy(all: &[Sent], loss: f64, seed: u64) -> Vec<Sent> {
    let mut random = fastrand::Rng::with_seed(seed);
    all.iter()
        .filter(|_| random.f64() >= loss)
        .cloned()
        .collect()
}

fn scheme() -> impl Strategy<Value = Scheme> {
    (1_usize..=40, 0.05_f64..2.0, any::<bool>()).prop_filter_map(
        "no repair",
        |(symbols, redundancy, block)| {
            let scheme = if block {
                Scheme::Block {
                    symbols,
                    redundancy,
                }
            } else {
                Scheme::Window {
                    symbols,
                    redundancy,
                }
            };
            Encoder::new(scheme, SIZE, 1.0, 0).is_ok().then_some(scheme)
        },
    )
}

proptest! {
    #[test]
    fn the_decoder_recovers_every_symbol_that_received_packets_determine(
        scheme in scheme(), count in 1_u64..100, density in 0.05_f64..=1.0, loss in 0.0_f64..0.7, seed: u64,
        shuffle: bool
    ) {
        let mut arrived = lossy(&sent(scheme, count, density, seed), loss, seed);
        if shuffle {
            fastrand::Rng::with_seed(seed).shuffle(&mut arrived);
            // The decoder takes the first packet that arrives as the beginning of the stream.
            arrived.sort_by_key(|packet| match packet {
                Sent::Source(number) => *number > 0,
                Sent::Repair(first, ..) => *first > 0,
            });
        }
        let Some(begin) = arrived.first().map(|packet| match packet {
            Sent::Source(number) => *number,
            Sent::Repair(first, coefficients, _) => {
                *first + coefficients.iter().position(|it| *it != 0).unwrap() as u64
            }
        }) else { return Ok(()) };
        // Packets with numbers before the beginning are rejected.
        let arrived: Vec<Sent> = arrived.into_iter().filter(|packet| match packet {
            Sent::Source(number) => *number >= begin,
            Sent::Repair(first, coefficients, _) => {
                *first + coefficients.iter().position(|it| *it != 0).unwrap() as u64 >= begin
            }
        }).collect();
        // The span is 256, because packets may be reordered by at most half of the span.
        let mut decoder = Decoder::new(SIZE, 256);
        let known = decoded(&mut decoder, &arrived);
        is_right(&known);
        let known: Vec<u64> = known.into_keys().collect();
        prop_assert_eq!(known, determined(&arrived, count as usize));
    }

    #[test]
    fn a_decoder_with_limited_window_outputs_correct_symbols_and_counters(
        scheme in scheme(), loss in 0.0_f64..0.5, seed: u64, span in 1_usize..50
    ) {
        let all = sent(scheme, 300, 1.0, seed);
        let mut decoder = Decoder::new(SIZE, span);
        let known = decoded(&mut decoder, &lossy(&all, loss, seed));
        is_right(&known);
        let account = decoder.account();
        prop_assert_eq!(known.len() as u64, account.sources - account.duplicates + account.recovered);
        let range = decoder.range();
        let undecided = range.clone().filter(|number| !known.contains_key(number)).count() as u64;
        let begin = range.end - known.len() as u64 - account.lost - undecided;
        prop_assert!(known.keys().next().is_none_or(|first| *first >= begin));
    }

    #[test]
    fn refused_packets_leave_the_decoder_unchanged_and_its_window_bounded(
        packets in proptest::collection::vec(
            (any::<u64>(), 0_u64..300, proptest::collection::vec(any::<u8>(), 0..300),
             proptest::collection::vec(any::<u8>(), 0..60), any::<bool>(), any::<bool>()), 1..60)
    ) {
        let mut decoder = Decoder::new(SIZE, 64);
        for (far, near, coefficients, sum, is_far, is_source) in packets {
            let first = if is_far { far } else { near };
            let before = decoder.clone();
            let refused = if is_source {
                decoder.source(first, &sum, |_, _| ()).err()
            } else {
                let combination = Combination { first, coefficients: &coefficients, sum: &sum };
                decoder.combination(&combination, |_, _| ()).err()
            };
            if refused.is_some() {
                prop_assert_eq!(before.account(), decoder.account());
                prop_assert_eq!(before.range(), decoder.range());
            }
            prop_assert!(decoder.range().count() <= 64);
        }
    }

    #[test]
    fn a_recoder_compensates_for_losses_on_both_of_its_links(seed: u64) {
        // A fifth of the packets is lost before the recoder and a fifth after it; the redundancy suffices for both
        // losses.
        let scheme = Scheme::Window { symbols: 16, redundancy: 1.0 };
        let all = lossy(&sent(scheme, 400, 1.0, seed), 0.2, seed);
        let mut recoder = Recoder::new(SIZE, 32, seed);
        let mut out = Vec::new();
        for packet in &all {
            match packet {
                Sent::Source(number) => recoder.push_source(*number, &symbol(*number)).unwrap(),
                Sent::Repair(first, coefficients, sum) => recoder
                    .push(&Combination { first: *first, coefficients, sum })
                    .unwrap(),
            }
            // No packet is forwarded unchanged: the decoder receives only recoded packets.
            for _ in 0..2 {
                let it = recoder.combine().unwrap();
                out.push(Sent::Repair(it.first, it.coefficients.to_vec(), it.sum.to_vec()));
            }
        }
        let mut decoder = Decoder::new(SIZE, 128);
        let known = decoded(&mut decoder, &lossy(&out, 0.2, !seed));
        is_right(&known);
        prop_assert!(known.len() >= 370, "{}", known.len());
    }
}

#[test]
fn eight_repair_packets_recover_eight_lost_packets_of_a_block() {
    // Eight packets of a block of 32 with eight repairs are lost; one in 255 random matrices of 8 x 8 is singular.
    let block = Scheme::Block {
        symbols: 32,
        redundancy: 0.25,
    };
    let mut whole = 0;
    for seed in 0..200 {
        let all = sent(block, 32, 1.0, seed);
        let mut numbers: Vec<u64> = (0..32).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut numbers);
        let gone = &numbers[..8];
        let arrived: Vec<Sent> = all
            .into_iter()
            .filter(|packet| !matches!(packet, Sent::Source(number) if gone.contains(number)))
            .collect();
        let mut decoder = Decoder::new(SIZE, 64);
        // This makes the decoder start at 0.
        decoder.make_room(0, 1).unwrap();
        let known = decoded(&mut decoder, &arrived);
        is_right(&known);
        whole += u64::from(known.len() == 32);
    }
    assert!(whole >= 195, "{whole} of 200");
}

/// Compares the decoded blocks with theory. With uniform coefficients, n combinations determine n symbols with the
/// probability that a random matrix is regular, the product of 1 - 256^-i for i from 1 to n.
#[test]
fn the_decoding_probability_agrees_with_theory() {
    const TRIALS: u32 = 40_000;
    let n = 4;
    let probability: f64 = (1..=n).map(|i| 1.0 - 256_f64.powi(-i)).product();
    let mut random = fastrand::Rng::with_seed(1);
    let mut whole = 0;
    for _ in 0..TRIALS {
        let mut decoder = Decoder::new(1, n as usize);
        decoder.make_room(0, n as u64).unwrap();
        let mut known = 0;
        for _ in 0..n {
            let coefficients: Vec<u8> = (0..n).map(|_| random.u8(..)).collect();
            let combination = Combination {
                first: 0,
                coefficients: &coefficients,
                sum: &[0],
            };
            let _ = decoder.combination(&combination, |_, _| known += 1);
        }
        whole += u32::from(known == n);
    }
    let expected = f64::from(TRIALS) * probability;
    let spread = (expected * (1.0 - probability)).sqrt();
    let off = (f64::from(whole) - expected).abs() / spread;
    assert!(off < 5.0, "{whole} of {TRIALS}, expected {expected}");
}

#[test]
fn unusable_packets_are_refused_with_the_reason() {
    let mut decoder = Decoder::new(10, 16);
    let mut combination = |first, coefficients: &[u8], sum: &[u8]| {
        let it = Combination {
            first,
            coefficients,
            sum,
        };
        decoder.combination(&it, |_, _| ())
    };
    assert_eq!(combination(0, &[1], &[0; 11]), Err(Refused::TooLong));
    assert_eq!(combination(0, &[], &[0; 5]), Err(Refused::Range));
    assert_eq!(combination(0, &[0, 0], &[0; 5]), Err(Refused::Range));
    assert_eq!(combination(0, &[1; 17], &[0; 5]), Err(Refused::Range));
    assert_eq!(combination(u64::MAX, &[1, 1], &[0; 5]), Err(Refused::Range));
    assert_eq!(combination(100, &[1, 1], &[0; 5]), Ok(true));
    assert_eq!(combination(99, &[1, 1], &[0; 5]), Err(Refused::TooOld));
    // Numbers from 102 on are ahead by half of the span, which is the limit.
    assert_eq!(combination(110, &[1], &[0; 5]), Err(Refused::TooFarAhead));
    for number in [109, 117, 125] {
        assert_eq!(combination(number, &[1], &[0; 5]), Ok(true), "{number}");
    }
    assert_eq!(combination(109, &[1], &[0; 5]), Err(Refused::TooOld));
    assert_eq!(
        decoder.source(u64::MAX, &[], |_, _| ()),
        Err(Refused::Range)
    );
    assert_eq!(decoder.source(125, &[], |_, _| ()), Ok(false));
    assert_eq!(decoder.account().lost, 125 - 15 - 100 - 1);
    // Unknown symbols within the span count as lost when the decoder restarts.
    decoder.begin_again();
    assert_eq!(decoder.account().lost, 126 - 100 - 3);
    assert_eq!(decoder.source(1 << 40, &[], |_, _| ()), Ok(true));
}

#[test]
fn a_forged_packet_with_a_distant_number_prevents_no_recovery() {
    let scheme = Scheme::Window {
        symbols: 8,
        redundancy: 0.5,
    };
    let all = sent(scheme, 200, 1.0, 1);
    for ahead in [1, 8, 31, 32, 33, 1000, 1 << 16, 1 << 40] {
        let mut decoder = Decoder::new(SIZE, 64);
        let mut arrived = 0;
        let mut recovered = Vec::new();
        for packet in &all {
            match packet {
                // These packets are lost, each immediately before a forged packet. A forged packet whose number is near
                // is sent only once.
                Sent::Source(number) if *number == 13 || (ahead > 32 && number % 25 == 13) => {
                    let (end, lost) = (decoder.range().end, decoder.account().lost);
                    let taken = decoder.source(end + ahead - 1, &[7; 9], |_, _| ());
                    assert_eq!(taken.is_ok(), ahead <= 32, "{ahead}");
                    assert!(ahead <= 32 || decoder.range().end == end);
                    assert!(decoder.account().lost <= lost + 32);
                }
                Sent::Source(number) => {
                    let known = decoder.source(*number, &symbol(*number), |number, _| {
                        recovered.push(number);
                    });
                    arrived += u64::from(known.is_ok());
                }
                Sent::Repair(first, coefficients, sum) => {
                    let it = Combination {
                        first: *first,
                        coefficients,
                        sum,
                    };
                    let _ = decoder.combination(&it, |number, _| recovered.push(number));
                }
            }
        }
        assert!(arrived > 190, "{ahead}: {arrived}");
        if ahead > 32 {
            assert_eq!(recovered, [13, 38, 63, 88, 113, 138, 163, 188], "{ahead}");
        }
    }
}

#[test]
fn each_packet_costs_a_bounded_number_of_row_operations() {
    let mut random = fastrand::Rng::with_seed(2);
    for span in [16, 64, 200] {
        let mut decoder = Decoder::new(SIZE, span);
        let mut most = 0;
        let mut number = 0;
        for round in 0..20 {
            // The rows cover the whole range; the next packet is as far ahead as allowed.
            for _ in 0..random.usize(span / 4..span) {
                let coefficients: Vec<u8> = (0..span).map(|_| random.u8(..)).collect();
                let it = Combination {
                    first: number,
                    coefficients: &coefficients,
                    sum: &[1],
                };
                decoder.operations = 0;
                let _ = decoder.combination(&it, |_, _| ());
                most = most.max(decoder.operations);
            }
            decoder.operations = 0;
            let ahead = decoder.range().end + reach(span) - 1;
            if round % 2 == 0 {
                decoder.source(ahead, &[1], |_, _| ()).unwrap();
            } else {
                let coefficients: Vec<u8> = (0..span).map(|_| random.u8(..)).collect();
                let it = Combination {
                    first: ahead + 1 - span as u64,
                    coefficients: &coefficients,
                    sum: &[1],
                };
                let _ = decoder.combination(&it, |_, _| ());
            }
            most = most.max(decoder.operations);
            number = decoder.range().start;
        }
        let bound = decoder.most_row_operations();
        assert!(most as usize <= bound, "{most} of {bound} with {span}");
        assert!(most as usize > bound / 8, "{most} of {bound} with {span}");
    }
}
