#![allow(clippy::unwrap_used)]

use super::*;
use crate::settings::{Clocks, Coding};
use fastrand::Rng;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn quick(scenario: &Scenario, path: &mut dyn Path) -> Simulated {
    let found = simulate(scenario, path).unwrap();
    assert_eq!(found.delivered_late, 0, "{:?}", found.counts);
    assert_eq!(found.delivered_disordered, 0, "{:?}", found.counts);
    let messages = found.messages.iter().map(Vec::len).sum::<usize>() as u64;
    assert!(
        found.asked_for_nothing <= messages,
        "{}",
        found.asked_for_nothing
    );
    found
}

#[test]
fn messages_on_a_lossless_path_take_only_the_path_delay() {
    let mut path = Delays::new(2 * MS, 1);
    let found = quick(&Scenario::default(), &mut path);
    for way in 0..2 {
        assert_eq!(found.messages[way].len(), 1_000);
        assert_eq!(found.in_time(way), 1.0, "{:?}", found.counts);
        let slow = |it: &&Fated| it.took_ns.is_none_or(|ns| ns >= 2 * MS + 50_000);
        let slow: Vec<&Fated> = found.messages[way].iter().filter(slow).collect();
        assert_eq!(slow, Vec::<&Fated>::new(), "{way}");
    }
    // Nothing was lost, so no repairs are sent.
    let sent = found.counts[0].sent;
    assert_eq!(
        (sent.repairs, sent.again, sent.not_sent),
        (0, 0, 0),
        "{sent:?}"
    );
    assert!(
        matches!(found.notices[0][..], [(_, Notice::Connected(_))]),
        "{:?}",
        found.notices
    );
}

#[test]
fn lost_messages_are_recovered_before_deadlines_that_allow_it() {
    for coding in [
        Coding::Off,
        Scenario::default().settings.coding,
        Coding::Window {
            symbols: 8,
            redundancy: Some(0.25),
        },
        Coding::Block {
            symbols: 8,
            redundancy: 0.25,
        },
    ] {
        let mut scenario = Scenario {
            messages: 5_000,
            ..Scenario::default()
        };
        scenario.settings.coding = coding;
        scenario.settings.target_ns = 20 * MS;
        let mut path = Delays::new(2 * MS, 1);
        path.loss = 0.05;
        let found = quick(&scenario, &mut path);
        for way in 0..2 {
            assert!(
                found.in_time(way) > 0.99,
                "{coding:?} {way}: {} {:?}",
                found.in_time(way),
                found.counts
            );
        }
    }
}

/// A path that loses the same packet numbers in both directions, so that a loss and its reply are lost together.
struct Counted {
    delays: Delays,
    lost: Vec<bool>,
    sent: [usize; 2],
}

impl Path for Counted {
    fn send(&mut self, now_ns: u64, way: usize, id: u32, bytes: u32) {
        let number = self.sent[way];
        self.sent[way] += 1;
        if !self.lost.get(number).is_some_and(|it| *it) {
            self.delays.send(now_ns, way, id, bytes);
        }
    }

    fn next_ns(&self) -> Option<u64> {
        self.delays.next_ns()
    }

    fn take(&mut self, now_ns: u64) -> Option<Passed> {
        self.delays.take(now_ns)
    }
}

#[test]
fn consecutive_losses_of_messages_and_feedback_are_recovered() {
    let mut missed = 0;
    for seed in 0..20 {
        let mut scenario = Scenario {
            interval_ns: 2 * MS,
            payload_bytes: 200,
            messages: 1_500,
            ..Scenario::default()
        };
        scenario.settings.target_ns = 10 * MS;
        let mut random = Rng::with_seed(seed);
        let mut lost = vec![false; 20_000];
        for number in 40..20_000 - 3 {
            if random.f64() < 0.01 / 3.0 {
                lost[number..number + 3].fill(true);
            }
        }
        let mut path = Counted {
            delays: Delays::new(MS / 10, seed),
            lost,
            sent: [0; 2],
        };
        let found = quick(&scenario, &mut path);
        let ways = [0, 1].map(|way| found.messages[way].iter().filter(|it| it.took_ns.is_none()));
        missed += ways.map(Iterator::count).iter().sum::<usize>();
    }
    assert!(missed < 10, "{missed} of 60,000");
}

#[test]
fn messages_to_a_peer_without_feedback_are_sent_only_once() {
    let mut scenario = Scenario {
        interval_ns: 2 * MS,
        messages: 1_500,
        ..Scenario::default()
    };
    scenario.settings.target_ns = 10 * MS;
    let mut lost = vec![false; 500];
    lost.resize(20_000, true);
    let mut path = Counted {
        delays: Delays::new(MS / 10, 1),
        lost,
        sent: [0; 2],
    };
    let found = quick(&scenario, &mut path);
    let sent = found.counts[0].sent;
    // Retransmissions stop after four target delays without feedback.
    assert!(sent.messages == 1_500 && sent.asked < 40, "{sent:?}");
}

#[test]
fn repair_packets_recover_losses_when_retransmission_is_too_late() {
    let share = |coding| {
        let mut scenario = Scenario {
            messages: 5_000,
            answers: false,
            ..Scenario::default()
        };
        scenario.settings.coding = coding;
        // The delay is 4 ms in each direction: no feedback arrives in time.
        scenario.settings.target_ns = 11 * MS;
        let mut path = Delays::new(4 * MS, 1);
        path.loss = 0.05;
        let found = quick(&scenario, &mut path);
        found.in_time(0)
    };
    let (without, with) = (
        share(Coding::Off),
        share(Coding::Window {
            symbols: 4,
            redundancy: Some(0.5),
        }),
    );
    assert!(without < 0.965, "{without}");
    assert!(with > 0.985, "{with}");
}

#[test]
fn a_target_delay_below_the_path_delay_is_reported_immediately() {
    let mut path = Delays::new(20 * MS, 1);
    let mut scenario = Scenario::default();
    scenario.settings.target_ns = 10 * MS;
    let found = quick(&scenario, &mut path);
    assert_eq!(found.in_time(0), 0.0);
    let (at_ns, notice) = found.notices[0][1];
    assert_eq!((at_ns, notice), (40 * MS, Notice::OutOfReach(0.0)));
}

#[test]
fn path_outage_and_recovery_are_both_reported() {
    let medium =
        "[loss]\ntrace = [[0, 0.0], [1500, 0.9], [2000, 0.0], [9000, 0.0]]\n[wlan]\nattempts = 1";
    let mut medium = SharedMedium::new(&toml(medium)).unwrap();
    let scenario = Scenario {
        messages: 400,
        interval_ns: 5 * MS,
        ..Scenario::default()
    };
    let found = quick(&scenario, &mut medium);
    let kinds: Vec<&str> = found.notices[0]
        .iter()
        .map(|(_, it)| match it {
            Notice::Connected(_) => "connected",
            Notice::OutOfReach(_) => "out",
            Notice::InReach(_) => "in",
            _ => "other",
        })
        .collect();
    assert!(kinds.starts_with(&["connected", "out", "in"]), "{kinds:?}");
}

fn toml(text: &str) -> taut_model::link::medium::MediumSettings {
    ::toml::from_str(text).unwrap()
}

#[test]
fn delivery_over_the_published_wlan_model_meets_the_published_thresholds() {
    // Gallenmüller's dissertation, section 6.3: at least 97 % are in time from 3.25 ms between packets, 3.25 ms target
    // and 0.48 ms window on.
    for (interval, target, payload) in [
        (3.25, 3.25, 20),
        (3.25, 3.25, 1_400),
        (5.5, 3.25, 710),
        (10.0, 10.0, 1_400),
    ] {
        let mut medium =
            SharedMedium::new(&toml("queue = 64\n[wlan]\nimplementation_us = 120")).unwrap();
        let mut scenario = Scenario {
            interval_ns: (interval * 1e6) as u64,
            payload_bytes: payload,
            messages: 2_000,
            answers: false,
            ..Scenario::default()
        };
        scenario.settings.payload_bytes = payload;
        scenario.settings.target_ns = (target * 1e6) as u64;
        scenario.settings.window_ns = 480_000;
        scenario.settings.clocks = Clocks::Shared(10_000);
        let found = quick(&scenario, &mut medium);
        for way in 0..2 {
            assert!(
                found.in_time(way) >= 0.97,
                "{interval} {target} {payload} {way}: {} {:?}",
                found.in_time(way),
                found.counts
            );
        }
    }
}

#[test]
fn plain_datagrams_meet_no_more_deadlines_than_the_transport() {
    let mut worse = Vec::new();
    for interval in [1.0, 3.25, 10.0] {
        for target in [1.0, 3.25, 10.0] {
            for payload in [20, 710, 1_400] {
                let settings = toml("queue = 64\n[wlan]\nimplementation_us = 120");
                let mut scenario = Scenario {
                    interval_ns: (interval * 1e6) as u64,
                    payload_bytes: payload,
                    messages: 1_000,
                    answers: false,
                    ..Scenario::default()
                };
                scenario.settings.payload_bytes = payload;
                scenario.settings.target_ns = (target * 1e6) as u64;
                scenario.settings.window_ns = 2_000_000;
                scenario.settings.clocks = Clocks::Shared(0);
                let ours = quick(&scenario, &mut SharedMedium::new(&settings).unwrap());
                let theirs =
                    simulate_datagrams(&scenario, &mut SharedMedium::new(&settings).unwrap());
                // Plain datagrams deliver more messages in time only if the longer headers of the transport let both
                // directions fill the medium.
                let air_us = 162.43 + 120.0 + 0.15 * f64::from(payload as u32 + 28 + 54);
                let least = if 2.0 * air_us > interval * 1e3 {
                    0.75
                } else {
                    1.0
                };
                for way in 0..2 {
                    let (ours, theirs) = (ours.in_time(way), theirs.in_time(way));
                    if ours + 0.01 < least * theirs {
                        worse.push((interval, target, payload, way, ours, theirs));
                    }
                }
            }
        }
    }
    assert!(worse.is_empty(), "{worse:?}");
}

#[test]
fn messages_arrive_in_time_again_after_a_long_outage() {
    let medium =
        "[loss]\ntrace = [[0, 0.0], [2000, 1.0], [4000, 0.0], [60000, 0.0]]\n[wlan]\nattempts = 1";
    let mut medium = SharedMedium::new(&toml(medium)).unwrap();
    let scenario = Scenario {
        messages: 6_000,
        ..Scenario::default()
    };
    let found = quick(&scenario, &mut medium);
    let late: Vec<&Fated> = found.messages[0]
        .iter()
        .filter(|it| it.sent_ns > START_NS + 3_200 * MS)
        .collect();
    let in_time = late.iter().filter(|it| it.took_ns.is_some()).count();
    assert!(
        in_time as f64 > 0.99 * late.len() as f64,
        "{in_time} of {}: {:?}",
        late.len(),
        found.counts
    );
}

/// Returns the share in time of both directions before, while and after ten other stations send.
fn shares_around_interference(seed: u64, late_target_ns: Option<u64>) -> [f64; 3] {
    let mut medium = toml(
        "[wlan]\nimplementation_us = 120\nstations = 10\n\
        active = [[0, 0], [11000, 10], [21000, 0], [60000, 0]]",
    );
    medium.seed = seed;
    let mut scenario = Scenario {
        interval_ns: 35 * MS,
        payload_bytes: 192,
        messages: 1_400,
        late_target_ns,
        seed,
        ..Scenario::default()
    };
    (scenario.settings.target_ns, scenario.settings.window_ns) = (2 * MS, 2 * MS);
    scenario.settings.in_time = 0.9;
    let found = quick(&scenario, &mut SharedMedium::new(&medium).unwrap());
    let share = |from_s: u64, to_s: u64| {
        let within = (START_NS + from_s * 1_000 * MS)..(START_NS + to_s * 1_000 * MS);
        let all = found.messages.iter().flatten();
        let all: Vec<&Fated> = all.filter(|it| within.contains(&it.sent_ns)).collect();
        all.iter().filter(|it| it.took_ns.is_some()).count() as f64 / all.len() as f64
    };
    // Within a second, the later target is demanded.
    [share(0, 10), share(11, 20), share(30, 45)]
}

#[test]
fn a_later_target_is_demanded_only_while_others_send() {
    for seed in 0..6 {
        let [before, fixed, after] = shares_around_interference(seed, None);
        assert!(
            before == 1.0 && after == 1.0 && fixed < 0.4,
            "{seed}: {before} {fixed} {after}"
        );
        let [before, late, after] = shares_around_interference(seed, Some(60 * MS));
        assert!(before == 1.0 && after > 0.97, "{seed}: {before} {after}");
        assert!(late > 0.75 && late > fixed + 0.3, "{seed}: {fixed} {late}");
    }
}

#[test]
fn one_slow_round_trip_never_silences_a_sender() {
    // The path is fast, but once, after the lowest round trip is forgotten, takes longer than twice the target.
    struct Once(Delays);
    impl Path for Once {
        fn send(&mut self, now_ns: u64, way: usize, id: u32, bytes: u32) {
            let is_slow = (12_000..12_100).contains(&((now_ns - START_NS) / MS));
            self.0.delay_ns = [if is_slow { 30 * MS } else { MS }; 2];
            self.0.send(now_ns, way, id, bytes);
        }
        fn next_ns(&self) -> Option<u64> {
            self.0.next_ns()
        }
        fn take(&mut self, now_ns: u64) -> Option<Passed> {
            self.0.take(now_ns)
        }
    }
    let scenario = Scenario {
        interval_ns: 35 * MS,
        messages: 600,
        ..Scenario::default()
    };
    let found = quick(&scenario, &mut Once(Delays::new(MS, 1)));
    let later = found.messages[0]
        .iter()
        .filter(|it| it.sent_ns > START_NS + 13_000 * MS);
    assert!(later.clone().count() > 200 && later.clone().all(|it| it.took_ns.is_some()));
}

/// Returns the model of the dissertation's channel: x bytes take t = 0.15 x + 282.43 us.
fn published_channel() -> SharedMedium {
    let text = "[wlan]\nimplementation_us = 120";
    SharedMedium::new(&toml(text)).unwrap()
}

#[test]
fn stages_of_a_message_add_up_to_its_delivery_time() {
    let mut scenario = Scenario {
        interval_ns: 5 * MS,
        payload_bytes: 365,
        answers: false,
        ..Scenario::default()
    };
    scenario.settings.clocks = Clocks::Shared(10_000);
    scenario.settings.window_ns = 2 * MS;
    let mut medium = published_channel();
    let ours = quick(&scenario, &mut medium);
    let mut medium = published_channel();
    let datagrams = simulate_datagrams(&scenario, &mut medium);
    for (found, receiver_ns) in [(&ours, 7 * MS..8 * MS), (&datagrams, 0..1)] {
        for way in 0..2 {
            let messages = found.messages[way].iter();
            let staged: Vec<_> = messages
                .filter_map(|it| it.took_ns.zip(it.stages))
                .collect();
            assert!(staged.len() > 990, "{way}: {}", staged.len());
            for (took_ns, it) in staged {
                assert_eq!(
                    it.sender_ns + it.access_ns + it.air_ns + it.receiver_ns,
                    took_ns
                );
                // Without any backoff the time is 67.5 us below the line of that model.
                let bytes = (it.air_ns as f64 / 1e3 - 282.43 + 67.5) / 0.15;
                assert!((390.0..520.0).contains(&bytes), "{bytes} {it:?}");
            }
            let last = found.messages[way].last().unwrap().stages.unwrap();
            assert!(receiver_ns.contains(&last.receiver_ns), "{last:?}");
        }
    }
}

#[test]
fn a_one_way_receiver_sends_nothing_and_outages_are_measured() {
    let mut scenario = Scenario {
        is_one_way: true,
        interval_ns: 10_000_000,
        messages: 100,
        ..Scenario::default()
    };
    scenario.settings.target_ns = 10 * MS;
    for found in [
        simulate(&scenario, &mut Delays::new(MS, 1)).unwrap(),
        simulate_datagrams(&scenario, &mut Delays::new(MS, 1)),
    ] {
        assert_eq!((found.messages[0].len(), found.messages[1].len()), (100, 0));
        assert_eq!((found.in_time(0), found.longest_gap_ns(1)), (1.0, 0));
        assert!((9 * MS..11 * MS).contains(&found.longest_gap_ns(0)));
    }
    // The datagrams of 50 ms are lost.
    let fated = |number: u64| Fated {
        sent_ns: number * 10 * MS,
        took_ns: (!(3..8).contains(&number)).then_some(MS),
        stages: None,
    };
    let found = Simulated {
        messages: [(0..20).map(fated).collect(), Vec::new()],
        ..Simulated::default()
    };
    assert_eq!(found.longest_gap_ns(0), 60 * MS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Checks that nothing is delivered late or out of order, whatever the path does and however the clocks differ.
    #[test]
    fn no_message_is_delivered_late_or_out_of_order(
        seed in any::<u64>(),
        delays in (0_u64..5 * MS, 0_u64..5 * MS), jitter_ns in 0_u64..8 * MS,
        loss in 0.0..0.3_f64, burst in 1..20_u32, copies in 0.0..0.3_f64,
        clock in (-1_000_000_000_i64..1_000_000_000, -100.0..100.0_f64),
        interval_ns in 100_000_u64..5 * MS, target_ns in MS..40 * MS, window_ns in 50_000_u64..40 * MS,
        code in 0..4_usize, answers in any::<bool>(), feedback_every in 1..16_u32,
        late_target_ns in prop::option::of(MS..80 * MS),
    ) {
        let mut path = Delays::new(0, seed);
        path.delay_ns = [delays.0, delays.1];
        (path.jitter_ns, path.loss, path.burst, path.copies) = (jitter_ns, loss, burst, copies);
        let coding = [
            Coding::Off,
            Coding::Window { symbols: 8, redundancy: None },
            Coding::Window { symbols: 4, redundancy: Some(0.5) },
            Coding::Block { symbols: 5, redundancy: 0.4 },
        ][code];
        let scenario = Scenario {
            settings: Settings { target_ns, window_ns, coding, feedback_every, kept: 256, ..Settings::default() },
            interval_ns,
            payload_bytes: 40,
            messages: 600,
            answers,
            is_one_way: false,
            late_target_ns,
            clock,
            seed,
        };
        let found = simulate(&scenario, &mut path).unwrap();
        prop_assert_eq!(found.delivered_late, 0);
        prop_assert_eq!(found.delivered_disordered, 0);
        prop_assert!(found.asked_for_nothing < 1_200, "{}", found.asked_for_nothing);
        for way in 0..2 {
            let received = found.counts[1 - way].received;
            let delivered = found.messages[way].iter().filter(|it| it.took_ns.is_some()).count() as u64;
            prop_assert_eq!(received.in_time, delivered);
            prop_assert!(received.in_time + received.missed <= found.messages[way].len() as u64);
        }
        prop_assert_eq!(found.counts[0].malformed + found.counts[1].malformed, 0);
    }
}
