//! Tests of the simulation: it agrees with the closed forms within the interval of its runs, and keeps invariants for
//! any run.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::queueing::crommelin::{ConstantService, loss_md1k};
use crate::queueing::{
    Arrivals, Observer, Replicated, ServiceTime, Vacations, closed_form, replicate,
};

const PACKETS: u64 = 100_000;
const RUNS: u64 = 12;

fn constant(ns: f64) -> ServiceTime {
    ServiceTime::constant(ns).unwrap()
}

fn exponential(ns: f64) -> ServiceTime {
    ServiceTime::exponential(ns).unwrap()
}

fn poisson(rate_pps: f64, service: ServiceTime) -> Processor {
    Processor::new(Arrivals::poisson(rate_pps).unwrap(), service)
}

fn runs(processor: &Processor) -> Replicated {
    replicate(processor, PACKETS, RUNS, 1).unwrap()
}

/// Checks that `wanted` is within the interval of the runs, widened by half of its length on either side. One in twenty
/// 95 % intervals misses, and the tests use more than twenty.
#[track_caller]
fn within(found: Option<taut_measure::Interval>, wanted: f64, rounding: f64) {
    let found = found.unwrap();
    let slack = (found.high - found.low) / 2.0 + rounding;
    assert!(
        found.low - slack <= wanted && wanted <= found.high + slack,
        "{wanted} is outside of {found:?}"
    );
    let relative = (found.high - found.low) / found.point.max(1e-12);
    assert!(
        relative < 0.4,
        "an interval as wide as {found:?} tells nothing"
    );
}

#[test]
fn one_server_agrees_with_pollaczek_and_khinchine() {
    for load in [0.1, 0.5, 0.8, 0.9] {
        for service in [
            constant(1_000.0),
            exponential(1_000.0),
            ServiceTime::from_bins(&[(500.0, 700.0, 9.0), (4_000.0, 5_000.0, 1.0)]).unwrap(),
        ] {
            let rate = load * 1e9 / service.mean_ns();
            let wanted = closed_form::mean_wait_ns(rate, &service).unwrap() + service.mean_ns();
            let found = runs(&poisson(rate, service));
            within(found.mean_latency_ns(), wanted, 0.0);
            within(found.utilisation(), load, 1e-4);
        }
    }
}

#[test]
fn quantiles_agree_with_closed_forms_of_exponential_and_constant_service() {
    for load in [0.3, 0.7, 0.9] {
        let found = runs(&poisson(load * 1e6, exponential(1_000.0)));
        let exact = ConstantService::new(load * 1e6, 1_000.0).unwrap();
        let found_constant = runs(&poisson(load * 1e6, constant(1_000.0)));
        for q in [0.5, 0.9, 0.99, 0.999] {
            let wanted = closed_form::latency_quantile_mm1_ns(load * 1e6, 1_000.0, q).unwrap();
            within(found.quantile_ns(q), wanted, wanted * 0.003);
            let wanted = exact.latency_quantile_ns(q).unwrap();
            within(found_constant.quantile_ns(q), wanted, wanted * 0.003);
        }
    }
}

#[test]
fn several_servers_agree_with_erlang() {
    for (servers, load) in [(2, 0.5), (2, 0.9), (8, 0.8)] {
        let rate = load * servers as f64 * 1e6;
        let found = runs(
            &poisson(rate, exponential(1_000.0))
                .with_servers(servers)
                .unwrap(),
        );
        let wanted = closed_form::mean_wait_mmc_ns(rate, 1_000.0, servers).unwrap() + 1_000.0;
        within(found.mean_latency_ns(), wanted, 0.0);
        within(found.utilisation(), load, 1e-4);
    }
}

#[test]
fn latency_with_polling_agrees_with_fuhrmann_and_cooper() {
    for load in [0.2, 0.8] {
        let found = runs(
            &poisson(load * 1e6, constant(1_000.0))
                .with_poll(600.0)
                .unwrap(),
        );
        let wait = closed_form::mean_wait_with_idle_vacations_ns(
            load * 1e6,
            &constant(1_000.0),
            &constant(600.0),
        );
        within(found.mean_latency_ns(), wait.unwrap() + 1_000.0, 0.0);
    }
}

#[test]
fn latency_with_random_interruptions_agrees_with_preemptive_priority_queueing() {
    for (load, service) in [(0.2, constant(1_000.0)), (0.7, exponential(1_000.0))] {
        let away = Vacations::none()
            .with_random(20_000.0, exponential(8_000.0))
            .unwrap();
        let rate = load * 1e6;
        let wanted =
            closed_form::mean_latency_with_interruptions_ns(rate, &service, &away).unwrap();
        within(
            runs(&poisson(rate, service).with_vacations(away)).mean_latency_ns(),
            wanted,
            0.0,
        );
    }
}

#[test]
fn simulated_batch_arrivals_agree_with_burkes_closed_form() {
    for packets in [4, 16] {
        let arrivals = Arrivals::batches(7e5, packets).unwrap();
        let found = runs(&Processor::new(arrivals, constant(1_000.0)));
        let wanted =
            closed_form::mean_wait_of_batches_ns(7e5, packets as usize, &constant(1_000.0))
                .unwrap();
        within(found.mean_latency_ns(), wanted + 1_000.0, 0.0);
    }
}

#[test]
fn loss_of_a_short_ring_agrees_with_the_closed_forms() {
    // The K of M/M/1/K counts the slots of the ring and the packet in service.
    for (load, ring) in [(0.8, 3), (1.0, 7), (1.5, 15)] {
        let found = runs(
            &poisson(load * 1e6, exponential(1_000.0))
                .with_ring(ring)
                .unwrap(),
        );
        within(
            found.loss(),
            closed_form::loss_mm1k(load * 1e6, 1_000.0, ring + 1).unwrap(),
            0.0,
        );
        let found = runs(
            &poisson(load * 1e6, constant(1_000.0))
                .with_ring(ring)
                .unwrap(),
        );
        within(
            found.loss(),
            loss_md1k(load * 1e6, 1_000.0, ring + 1).unwrap(),
            0.0,
        );
    }
}

#[test]
fn a_drain_timer_spreads_latency_evenly_over_its_period() {
    // By docs/explanation/buffering-and-latency.md, the delay has a mean of T / 2 and a standard deviation of
    // T / sqrt(12).
    let arrivals = Arrivals::constant(100_000.0).unwrap();
    let full = Flush::Full {
        packets: 32,
        drain_ns: 99_730.0,
    };
    let buffered = Processor::new(arrivals, constant(100.0))
        .with_flush(full)
        .unwrap();
    let run = simulate(&buffered, PACKETS, 1).unwrap();
    assert!(
        (run.mean_latency_ns / (100.0 + 49_865.0) - 1.0).abs() < 0.01,
        "{}",
        run.mean_latency_ns
    );
    let deviation = run.latency.std_ns().unwrap();
    assert!(
        (deviation / (99_730.0 / 12f64.sqrt()) - 1.0).abs() < 0.01,
        "{deviation}"
    );
    let every = buffered
        .clone()
        .with_flush(Flush::Every {
            period_ns: 99_730.0,
        })
        .unwrap();
    assert_eq!(
        simulate(&every, PACKETS, 1).unwrap().mean_latency_ns,
        run.mean_latency_ns
    );
    for flush in [Flush::Each, Flush::Idle { packets: 32 }] {
        let run = simulate(&buffered.clone().with_flush(flush).unwrap(), PACKETS, 1).unwrap();
        assert_eq!(run.latency.max_ns(), Some(100), "{flush:?}");
    }
}

#[test]
fn the_first_packet_of_a_full_send_batch_waits_longest() {
    // At 2 Mpkt/s with 32 buffered packets, the first packet waits for 31 more packets, and the last one for none.
    let arrivals = Arrivals::constant(2e6).unwrap();
    let full = Flush::Full {
        packets: 32,
        drain_ns: 1e9,
    };
    let run = simulate(
        &Processor::new(arrivals, constant(100.0))
            .with_flush(full)
            .unwrap(),
        320_000,
        1,
    )
    .unwrap();
    assert_eq!(
        (run.latency.min_ns(), run.latency.max_ns()),
        (Some(100), Some(31 * 500 + 100))
    );
}

#[test]
fn larger_batches_at_high_load_reduce_the_cost_per_packet() {
    let at = |rate: f64| {
        let arrivals = Arrivals::poisson(rate).unwrap();
        let processor = Processor::new(arrivals, constant(50.0))
            .with_batch_costs(300.0, 100.0)
            .unwrap();
        let processor = processor.with_receive_batch(32, Release::Batch).unwrap();
        simulate(
            &processor.with_flush(Flush::Idle { packets: 32 }).unwrap(),
            PACKETS,
            1,
        )
        .unwrap()
    };
    let (low, high) = (at(1e5), at(12e6));
    assert!(
        low.mean_batch < 1.1 && low.latency.quantile(0.5) == Some(450),
        "{low:?}"
    );
    // With batches of one, 1 / 450 ns = 2.2 Mpkt/s would be possible.
    assert!(
        high.mean_batch > 8.0 && high.loss() == 0.0,
        "{}",
        high.mean_batch
    );
}

#[test]
fn packets_of_a_send_batch_are_serialised_on_the_wire() {
    // With 32 buffered packets at 1 Mpkt/s and 100 ns on the wire each, the first packet waits for 31 arrivals and the
    // last for 31 departures.
    let arrivals = Arrivals::constant(1e6).unwrap();
    let full = Flush::Full {
        packets: 32,
        drain_ns: 1e9,
    };
    let processor = Processor::new(arrivals, constant(10.0))
        .with_flush(full)
        .unwrap()
        .with_wire(100.0)
        .unwrap();
    let run = simulate(&processor, 32_000, 1).unwrap();
    assert_eq!(
        (run.latency.max_ns(), run.latency.min_ns()),
        (Some(31 * 1_000 + 110), Some(32 * 100 + 10))
    );
    assert_eq!(processor.with_servers(2).unwrap().saturation_pps(), 2e7);
}

#[test]
fn excess_packets_are_dropped_once_the_ring_is_full() {
    let arrivals = Arrivals::constant(2e6).unwrap();
    let run = simulate(
        &Processor::new(arrivals, constant(1_000.0))
            .with_ring(512)
            .unwrap(),
        PACKETS,
        1,
    )
    .unwrap();
    assert!((run.loss() - 0.5).abs() < 0.01, "{}", run.loss());
    // An admitted packet waits for the whole ring.
    let median = run.latency.quantile(0.5).unwrap() as f64;
    assert!((median / 512_000.0 - 1.0).abs() < 0.01, "{median}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_is_served_or_dropped_reproducibly_from_the_seed(
        load in 0.05..2.0f64,
        pattern in 0..4u8,
        ring in 1..200usize,
        receive in 1..64usize,
        send in 1..64usize,
        policy in 0..4u8,
        servers in 1..4usize,
        poll in prop_oneof![Just(0.0), 1.0..500.0f64],
        interruptions in prop_oneof![Just(0.0), 10.0..5_000.0f64],
        whole in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let rate = load * servers as f64 * 1e6;
        let arrivals = match pattern {
            0 => Arrivals::constant(rate),
            1 => Arrivals::poisson(rate),
            2 => Arrivals::bursts(rate, 8, 67.2),
            _ => Arrivals::batches(rate, 8),
        }.unwrap();
        let flush = match policy {
            0 => Flush::Each,
            1 => Flush::Full { packets: send, drain_ns: 20_000.0 },
            2 => Flush::Idle { packets: send },
            _ => Flush::Every { period_ns: 5_000.0 },
        };
        let mut processor = Processor::new(arrivals, exponential(900.0))
            .with_batch_costs(50.0, 50.0).unwrap()
            .with_ring(ring).unwrap()
            .with_receive_batch(receive, if whole { Release::Batch } else { Release::Packet }).unwrap()
            .with_flush(flush).unwrap()
            .with_servers(servers).unwrap()
            .with_poll(poll).unwrap();
        if interruptions > 0.0 {
            processor = processor.with_vacations(Vacations::none().with_periodic(interruptions, 10_000.0).unwrap());
        }
        let run = simulate(&processor, 3_000, seed).unwrap();
        prop_assert_eq!(run.arrived, 3_000);
        prop_assert_eq!(run.served + run.dropped, run.arrived);
        prop_assert!((0.0..=1.0 + 1e-9).contains(&run.utilisation));
        let again = simulate(&processor, 3_000, seed).unwrap();
        prop_assert_eq!(&run.latency, &again.latency);
        prop_assert_eq!(run.mean_latency_ns.to_bits(), again.mean_latency_ns.to_bits());
    }
}

#[test]
fn an_interrupted_observer_receives_returned_packets_late() {
    // Random pauses of m = 8 us on average, 2,500 a second, and lonely packets with 10 us of transit. A packet is sent
    // while the observer runs. At its return, the observer is interrupted with probability a/(1 + a) (1 - exp(-(1 + a)
    // 10/8)), where a = 0.02. The packet then waits for m more on average.
    let away = Vacations::none()
        .with_random(2_500.0, exponential(8_000.0))
        .unwrap();
    let processor = poisson(5_000.0, constant(1_000.0))
        .with_transfer(9_000.0)
        .unwrap();
    let found = runs(&processor.with_observer(Observer::new(away)));
    let share = 0.02 / 1.02 * (1.0 - f64::exp(-1.02 * 10.0 / 8.0));
    let mean = found.mean_latency_ns().unwrap();
    let extra = mean.point - 10_000.0;
    assert!((extra / (share * 8_000.0) - 1.0).abs() < 0.06, "{mean:?}");
}

#[test]
fn recorded_interruptions_stop_observer_and_device_at_the_same_time() {
    // The observer is interrupted for 100 us of each ms. The intended send times are 1 us apart, and packets take 10 us
    // of transit; delayed packets are sent together. Only those in transit when the interruption begins are received
    // late, 1 % of all, after 100 to 109 us.
    let pauses = [(300_000.0, 100_000.0)];
    let recorded = Vacations::none().with_recorded(&pauses, 1e6).unwrap();
    let alone = Processor::new(Arrivals::constant(1e6).unwrap(), constant(0.0))
        .with_transfer(10_000.0)
        .unwrap();
    let observed = alone.clone().with_observer(Observer::new(recorded.clone()));
    let found = runs(&observed);
    let mean = found.mean_latency_ns().unwrap();
    let latency = found.latency;
    assert!(
        (mean.point - (10_000.0 + 0.01 * 95_000.0)).abs() < 60.0,
        "{mean:?}"
    );
    assert_eq!(latency.quantile(0.5), Some(10_000));
    let of = |q: f64| latency.quantile(q).unwrap();
    assert!(of(0.989) < 10_100 && of(0.992) > 99_000 && of(1.0) < 110_500);
    // The device is interrupted at the same time as the observer. No packet is sent in this time, so the device delays
    // only the packets that are about to leave.
    let both = runs(&observed.with_vacations(recorded.clone())).latency;
    let share = |histogram: &LatencyHistogram| {
        let late = histogram.iter().filter(|bin| bin.low_ns > 10_500);
        late.map(|bin| bin.count).sum::<u64>() as f64 / histogram.count() as f64
    };
    assert!(
        (share(&both) - share(&latency)).abs() < 0.002,
        "{}",
        share(&both)
    );
    // Without the observer, the device delays all packets that arrive during its interruption.
    let device = runs(&alone.with_vacations(recorded)).latency;
    assert!((share(&device) - 0.1).abs() < 0.002, "{}", share(&device));
}

#[test]
fn replayed_periodic_interruptions_have_the_effect_of_generated_interruptions() {
    let service = constant(700.0);
    let of = |away: Vacations| runs(&poisson(1e6, service.clone()).with_vacations(away));
    let periodic = of(Vacations::none().with_periodic(250.0, 8_000.0).unwrap());
    let each: Vec<(f64, f64)> = (0..5).map(|n| (f64::from(n) * 4e6, 8_000.0)).collect();
    let recorded = of(Vacations::none().with_recorded(&each, 20e6).unwrap());
    for q in [0.5, 0.99, 0.999] {
        within(
            recorded.quantile_ns(q),
            periodic.quantile_ns(q).unwrap().point,
            5.0,
        );
    }
}
