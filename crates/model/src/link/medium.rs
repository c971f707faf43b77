//! A medium that two directions share. It determines for each packet when it arrives, or that it is lost.
//!
//! Three ways of sharing are available: the contention of 802.11 ([`Wlan`]), time slots as in 5G ([`Slots`]), and the
//! gates of time-sensitive Ethernet ([`Gates`]). The medium reads no clock: the caller passes the time at which packets
//! are offered, and gets the time at which they arrive. A late call delays no packet, because a transmission begins at
//! the time at which the previous one ended. The same seed gives the same random draws.
//!
//! Sources: IEEE 802.11-2020, clause 10.3 (contention, retries); Gallenmüller's dissertation, section 6.4 (the time of
//! a packet); 3GPP TS 38.300, clauses 5.3 and 10.3 (slots, configured grants, HARQ); IEEE 802.1Q-2022, clause 8.6.8.4
//! (gates).

mod contention;
mod gates;
mod packet;
mod settings;
mod slots;

pub use packet::{Ended, Fate};
pub use settings::{Gates, Loss, MediumError, MediumSettings, Slots, Wlan};

use contention::{Contention, OnAir, contention, takes_part};
use fastrand::Rng;
use gates::{GatePlan, gate_plan};
use packet::Waiting;
use settings::{share, trace_times, traced, wrong};
use slots::{SlotPlan, slot_plan};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Maximum number of packets queued in one direction.
pub const MOST_QUEUED: u32 = 4096;

/// Counts of a medium since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediumCounts {
    /// Packets that arrived at a full queue, by direction.
    pub full: [u64; 2],
    /// Packets that were lost after all attempts, by direction.
    pub lost: [u64; 2],
    /// Packets that arrived, by direction.
    pub arrived: [u64; 2],
    /// Transmissions that two or more stations began at the same time.
    pub collisions: u64,
    /// Failed transmissions of the two directions that were repeated.
    pub repeated: u64,
    /// Time in which stations sent, waited for others or backed off, or in which slots and gates carried frames, ns.
    pub busy_ns: u64,
}

#[derive(Debug)]
enum Access {
    Contention(Contention),
    Slots(SlotPlan),
    Gates(GatePlan),
}

/// A packet whose outcome is determined. The fields are end time (ns), order of determination, direction, identifier,
/// true if the packet arrives, and start of its last transmission (ns).
type Decided = (u64, u64, usize, u32, bool, u64);

/// A medium that two directions share.
#[derive(Debug)]
pub struct SharedMedium {
    access: Access,
    queue: u32,
    queues: [VecDeque<Waiting>; 2],
    /// Packets whose outcome is determined but not yet returned by [`SharedMedium::take`].
    decided: BinaryHeap<Reverse<Decided>>,
    decided_of: [u32; 2],
    order: u64,
    loss: Loss,
    is_bad: bool,
    rng: Rng,
    counts: MediumCounts,
}

impl SharedMedium {
    /// Makes a medium on which no packet is on its way.
    ///
    /// # Errors
    /// A value is invalid, or the settings contain no way of sharing, or several.
    pub fn new(settings: &MediumSettings) -> Result<Self, MediumError> {
        if !(1..=MOST_QUEUED).contains(&settings.queue) {
            let queue = settings.queue;
            return wrong(format!(
                "queue = {queue}: expected 1 to {MOST_QUEUED} packets"
            ));
        }
        let loss = settings.loss.clone();
        for (key, it) in [
            ("loss.good", loss.good),
            ("loss.bad", loss.bad),
            ("loss.worsens", loss.worsens),
            ("loss.recovers", loss.recovers),
        ] {
            share(key, it)?;
        }
        for (_, lost) in &loss.trace {
            share("loss.trace", *lost)?;
        }
        trace_times("loss.trace", &loss.trace)?;
        let access = match (&settings.wlan, &settings.slots, &settings.gates) {
            (Some(wlan), None, None) => Access::Contention(contention(wlan)?),
            (None, Some(slots), None) => Access::Slots(slot_plan(slots)?),
            (None, None, Some(gates)) => Access::Gates(gate_plan(gates)?),
            _ => return wrong("give exactly one table for the medium: wlan, slots or gates"),
        };
        let mut medium = Self {
            access,
            queue: settings.queue,
            queues: [const { VecDeque::new() }; 2].map(|mut it: VecDeque<Waiting>| {
                it.reserve(settings.queue as usize);
                it
            }),
            decided: BinaryHeap::with_capacity(2 * settings.queue as usize),
            decided_of: [0; 2],
            order: 0,
            loss,
            is_bad: false,
            rng: Rng::with_seed(settings.seed),
            counts: MediumCounts::default(),
        };
        if let Access::Contention(contention) = &mut medium.access {
            for station in &mut contention.stations {
                station.backoff = medium.rng.u32(0..=contention.cw_min);
            }
        }
        Ok(medium)
    }

    /// Offers the medium a frame of `bytes`, with its Ethernet header, in direction `way`; `id` identifies it. Returns
    /// false if the queue is full: the packet is then lost and counted. Times of successive calls must not decrease.
    ///
    /// # Panics
    /// If `way` is neither 0 nor 1.
    pub fn offer(&mut self, now_ns: u64, way: usize, id: u32, bytes: u32) -> bool {
        let waiting = self.queues[way].len() as u32 + self.decided_of[way];
        if waiting >= self.queue {
            self.counts.full[way] += 1;
            return false;
        }
        let packet = Waiting {
            id,
            bytes,
            since_ns: now_ns,
        };
        match &mut self.access {
            Access::Contention(_) => {
                self.queues[way].push_back(packet);
                self.begin();
                self.make_up(now_ns);
            }
            Access::Slots(_) => {
                let decided = self.in_slots(way, &packet);
                self.decide(way, id, decided);
            }
            Access::Gates(_) => {
                let decided = self.through_gates(way, &packet);
                self.decide(way, id, decided);
            }
        }
        true
    }

    /// Returns the time of the next event, ns: a packet's outcome becomes known, or a transmission ends. The time may
    /// change when a packet is offered. The caller has to call [`SharedMedium::take`] at this time, so that the next
    /// transmission can begin. `None` if nothing is pending.
    pub fn next_ns(&self) -> Option<u64> {
        let current = match &self.access {
            Access::Contention(contention) => contention.current.map(|it| it.end_ns),
            _ => None,
        };
        current.or_else(|| self.decided.peek().map(|Reverse((ns, ..))| *ns))
    }

    /// Returns the earliest packet that ended at or before `now_ns`, if any. Callers repeat the call until it returns
    /// `None`.
    pub fn take(&mut self, now_ns: u64) -> Option<Ended> {
        if let Some(Reverse((at_ns, _, way, id, arrives, begun_ns))) = self.decided.peek().copied()
            && at_ns <= now_ns
        {
            self.decided.pop();
            self.decided_of[way] -= 1;
            return Some(self.ended((begun_ns, at_ns), way, id, arrives));
        }
        loop {
            let Access::Contention(contention) = &mut self.access else {
                return None;
            };
            let was = contention.current.filter(|it| it.end_ns <= now_ns)?;
            contention.current = None;
            contention.free_ns = was.end_ns;
            let ended = was.done.and_then(|(way, fate)| {
                let packet = self.queues[way].pop_front()?;
                Some((way, packet.id, fate))
            });
            self.begin();
            if let Some((way, id, fate)) = ended {
                let times = (was.begun_ns, was.end_ns);
                return Some(self.ended(times, way, id, fate == Fate::Arrives));
            }
        }
    }

    /// Returns the counts up to now.
    pub fn counts(&self) -> MediumCounts {
        self.counts
    }

    fn ended(
        &mut self,
        (begun_ns, at_ns): (u64, u64),
        way: usize,
        id: u32,
        arrives: bool,
    ) -> Ended {
        let fate = if arrives {
            self.counts.arrived[way] += 1;
            Fate::Arrives
        } else {
            self.counts.lost[way] += 1;
            Fate::Lost
        };
        Ended {
            at_ns,
            begun_ns,
            way,
            id,
            fate,
        }
    }

    fn decide(&mut self, way: usize, id: u32, (begun_ns, at_ns, arrives): (u64, u64, bool)) {
        let decided = (at_ns, self.order, way, id, arrives, begun_ns);
        self.decided.push(Reverse(decided));
        self.order += 1;
        self.decided_of[way] += 1;
    }

    /// Returns whether a transmission that ends at `at_ns` is lost.
    fn is_lost(&mut self, at_ns: u64) -> bool {
        let loss = &self.loss;
        let changes = if self.is_bad {
            loss.recovers
        } else {
            loss.worsens
        };
        // All draws are made in any case, so that one kind of loss does not change the draws of another.
        let (change, drawn, by_trace) = (self.rng.f64(), self.rng.f64(), self.rng.f64());
        if change < changes {
            self.is_bad = !self.is_bad;
        }
        let share = if self.is_bad { loss.bad } else { loss.good };
        drawn < share || by_trace < traced(&loss.trace, at_ns).unwrap_or(0.0)
    }

    /// Simulates the transmissions of other stations that end by `now_ns`, because a packet's waiting time depends on
    /// these transmissions.
    fn make_up(&mut self, now_ns: u64) {
        while let Access::Contention(contention) = &mut self.access
            && let Some(was) = contention.current
            && was.end_ns <= now_ns
            && was.done.is_none()
        {
            contention.free_ns = was.end_ns;
            contention.current = None;
            self.begin();
        }
    }

    /// Begins the next transmission, if a packet is queued and the medium is free.
    fn begin(&mut self) {
        let Access::Contention(contention) = &mut self.access else {
            return;
        };
        if contention.current.is_some() {
            return;
        }
        let first_ns = |queue: &VecDeque<Waiting>| queue.front().map(|it| it.since_ns);
        let first = self.queues.iter().filter_map(first_ns).min();
        // Other stations are simulated only while a packet is queued.
        let Some(first) = first else {
            return;
        };
        let (from_ns, busy_ns) = contention.count_down(first, &self.queues);
        let attempt = contention.attempt(from_ns, &self.queues);
        self.counts.busy_ns += busy_ns + (attempt.end_ns - from_ns);
        self.counts.collisions += u64::from(attempt.collides);
        let is_lost = self.is_lost(attempt.end_ns);
        let Access::Contention(contention) = &mut self.access else {
            return;
        };
        let fails = attempt.collides || is_lost;
        let mut done = None;
        for number in 0..contention.stations.len() {
            let active = contention.active(from_ns);
            if contention.stations[number].backoff > 0
                || !takes_part(number, &self.queues, active, from_ns)
            {
                continue;
            }
            let gives_up = contention.settle(number, fails, &mut self.rng);
            let is_ours = number < self.queues.len();
            self.counts.repeated += u64::from(is_ours && fails && !gives_up);
            if is_ours && (!fails || gives_up) {
                let fate = if fails { Fate::Lost } else { Fate::Arrives };
                // A transmission reports one packet only. If both directions collide and both give up their frame, the
                // second direction therefore gives up its frame at its next transmission.
                if done.is_none() {
                    done = Some((number, fate));
                } else {
                    contention.stations[number].attempts = contention.attempts - 1;
                }
            }
        }
        contention.current = Some(OnAir {
            end_ns: attempt.end_ns,
            begun_ns: attempt.begun_ns,
            done,
        });
    }

    /// Returns when the transmission of a packet begins and ends in its slots, ns, and whether the packet arrives.
    fn in_slots(&mut self, way: usize, packet: &Waiting) -> (u64, u64, bool) {
        let Access::Slots(plan) = &mut self.access else {
            return (packet.since_ns, packet.since_ns, true);
        };
        let (attempts, harq_ns, processing_ns, slot_ns) = (
            plan.attempts,
            plan.harq_ns,
            plan.processing_ns,
            plan.slot_ns,
        );
        let asked_ns = if way == 1 { plan.grant_ns } else { 0 };
        let mut from_ns = packet.since_ns + asked_ns;
        let mut arrives = false;
        let (mut begun_ns, mut end_ns) = (from_ns, from_ns);
        for attempt in 0..attempts {
            let Access::Slots(plan) = &mut self.access else {
                break;
            };
            let slot = plan.slot_for(way, from_ns, packet.bytes);
            begun_ns = slot * slot_ns;
            end_ns = begun_ns + slot_ns + processing_ns;
            self.counts.busy_ns += slot_ns * u64::from(packet.bytes) / u64::from(plan.slot_bytes);
            self.counts.repeated += u64::from(attempt > 0);
            if !self.is_lost(end_ns) {
                arrives = true;
                break;
            }
            from_ns = end_ns + harq_ns;
        }
        // Upper layers deliver packets in order, so a packet waits for the retransmissions of the packets before it.
        if let Access::Slots(plan) = &mut self.access {
            end_ns = end_ns.max(plan.last_ns[way]);
            plan.last_ns[way] = end_ns;
        }
        (begun_ns, end_ns, arrives)
    }

    /// Returns when the transmission of a packet through its gate begins and ends, ns, and whether the packet arrives.
    fn through_gates(&mut self, way: usize, packet: &Waiting) -> (u64, u64, bool) {
        let Access::Gates(plan) = &mut self.access else {
            return (packet.since_ns, packet.since_ns, true);
        };
        // The 24 bytes are preamble, check sequence and gap, which occupy the wire as well.
        let takes_ns = (f64::from(packet.bytes + 24) * plan.ns_per_byte).round() as u64;
        let from_ns = packet.since_ns.max(plan.free_ns[way]);
        let begins_ns = plan.opens_ns(way, from_ns, takes_ns);
        plan.free_ns[way] = begins_ns + takes_ns;
        let end_ns = plan.free_ns[way] + plan.delay_ns;
        self.counts.busy_ns += takes_ns;
        let arrives = !self.is_lost(end_ns);
        (begins_ns, end_ns, arrives)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn medium(text: &str) -> SharedMedium {
        SharedMedium::new(&toml::from_str(text).unwrap()).unwrap()
    }

    /// Keeps the queues of the directions in `ways` full for this long; returns the packets that arrived in each.
    fn saturated(medium: &mut SharedMedium, ways: &[usize], bytes: u32, ns: u64) -> [u64; 2] {
        let mut now = 0;
        let mut arrived = [0; 2];
        for way in ways {
            (0..8).for_each(|id| assert!(medium.offer(0, *way, id, bytes)));
        }
        while let Some(next_ns) = medium.next_ns().filter(|it| *it <= ns) {
            now = now.max(next_ns);
            while let Some(ended) = medium.take(now) {
                arrived[ended.way] += u64::from(ended.fate == Fate::Arrives);
                medium.offer(now, ended.way, ended.id, bytes);
            }
        }
        arrived
    }

    #[test]
    fn one_station_gets_the_published_rate_for_every_size() {
        for (payload, wanted) in [(64, 3_424.0), (512, 2_784.0), (1_400, 2_031.0)] {
            let mut medium = medium("[wlan]\nimplementation_us = 120");
            let [arrived, _] = saturated(&mut medium, &[0], payload + 14, 10_000 * MS);
            let rate = arrived as f64 / 10.0;
            assert!((rate / wanted - 1.0_f64).abs() < 0.01, "{payload}: {rate}");
            assert_eq!(medium.counts().collisions, 0);
        }
    }

    #[test]
    fn two_senders_share_the_medium_fairly_and_collide_as_published() {
        let mut medium = medium("[wlan]");
        let [one, other] = saturated(&mut medium, &[0, 1], 500, 20_000 * MS);
        let (one, other) = (one as f64, other as f64);
        let jain = (one + other).powi(2) / (2.0 * (one * one + other * other));
        assert!(jain > 0.999, "{one} {other}");
        // For two stations with 16 slots, Bianchi's equations give a collision probability of 0.105 (his figure 2
        // begins at five stations).
        let counts = medium.counts();
        let attempts = one + other + 2.0 * counts.collisions as f64;
        let share = 2.0 * counts.collisions as f64 / attempts;
        assert!((0.07..0.16).contains(&share), "{share} {counts:?}");
    }

    #[test]
    fn three_other_stations_reduce_throughput_to_about_a_quarter() {
        let mut alone = medium("[wlan]");
        let mut among = medium("[wlan]\nstations = 3\nstation_bytes = 500");
        let [one, _] = saturated(&mut alone, &[0], 500, 10_000 * MS);
        let [shared, _] = saturated(&mut among, &[0], 500, 10_000 * MS);
        let share = shared as f64 / one as f64;
        assert!((0.18..0.32).contains(&share), "{share}");
    }

    #[test]
    fn a_lone_packet_waits_for_stations_that_always_send() {
        let wait_ns = |text: &str| {
            let mut medium = medium(text);
            let mut waited_ns = 0;
            for number in 0..2_000 {
                let at_ns = (number + 1) * 35_123_456;
                assert!(medium.offer(at_ns, 0, 0, 100));
                let mut now_ns = at_ns;
                let ended = loop {
                    let next_ns = medium.next_ns().unwrap();
                    assert!(next_ns > now_ns, "time does not go back");
                    now_ns = next_ns;
                    if let Some(ended) = medium.take(now_ns) {
                        break ended;
                    }
                };
                assert_eq!(medium.take(now_ns), None);
                waited_ns += ended.at_ns - at_ns;
            }
            let busy = medium.counts().busy_ns as f64 / (2_000.0 * 35_123_456.0);
            (waited_ns as f64 / 2_000.0, busy)
        };
        let (alone_ns, busy_alone) = wait_ns("[wlan]");
        let (among_ns, busy_among) = wait_ns("[wlan]\nstations = 4");
        // On average, a packet waits for half of a transmission of 1,500 bytes (507 us by the dissertation's equation),
        // and then for its turn among five stations.
        assert!(
            (among_ns - alone_ns) / 1e3 > 1_000.0,
            "{alone_ns} {among_ns}"
        );
        assert!(
            (among_ns - alone_ns) / 1e3 < 5_000.0,
            "{alone_ns} {among_ns}"
        );
        assert!(
            busy_alone < 0.02 && busy_among > 0.95,
            "{busy_alone} {busy_among}"
        );
    }

    #[test]
    fn late_polling_returns_the_same_frame_outcomes_as_prompt_polling() {
        let settings = "seed = 3\n[wlan]";
        let [mut prompt, mut late] = [medium(settings), medium(settings)];
        for medium in [&mut prompt, &mut late] {
            (0..5).for_each(|id| assert!(medium.offer(1000, 0, id, 100)));
        }
        let mut ends = Vec::new();
        while let Some(ns) = prompt.next_ns() {
            ends.extend(std::iter::from_fn(|| prompt.take(ns)));
        }
        let all: Vec<Ended> = std::iter::from_fn(|| late.take(u64::MAX)).collect();
        assert_eq!((all.len(), &all), (5, &ends));
    }

    #[test]
    fn full_queues_and_undeliverable_frames_are_counted() {
        let mut medium = medium("queue = 4\n[loss]\ngood = 1.0\n[wlan]\nattempts = 3");
        let taken = (0..6).filter(|id| medium.offer(0, 1, *id, 100)).count();
        assert_eq!((taken, medium.counts().full), (4, [0, 2]));
        let all: Vec<Ended> = std::iter::from_fn(|| medium.take(u64::MAX)).collect();
        assert!(all.iter().all(|it| it.fate == Fate::Lost));
        assert_eq!((all.len(), medium.counts().lost), (4, [0, 4]));
        assert_eq!(medium.counts().repeated, 8);
    }

    #[test]
    fn losses_follow_the_configured_burst_model_or_trace() {
        let mut medium =
            medium("[loss]\nbad = 1.0\nworsens = 0.02\nrecovers = 0.2\n[wlan]\nattempts = 1");
        let [arrived, _] = saturated(&mut medium, &[0], 100, 20_000 * MS);
        let lost = medium.counts().lost[0] as f64;
        let share = lost / (lost + arrived as f64);
        assert!((share - 0.0909).abs() < 0.015, "{share}");
        let loss = Loss {
            trace: vec![(0.0, 0.0), (10.0, 1.0), (20.0, 0.0)],
            ..Loss::default()
        };
        let at = [5, 15, 25, 35, 45].map(|ms| traced(&loss.trace, ms * MS).unwrap_or(0.0));
        assert_eq!(at, [0.0, 1.0, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn frames_use_slots_of_their_direction_and_losses_are_retransmitted() {
        let slots = "[slots]\npattern = \"DDSU\"\nslot_us = 500\nslot_bytes = 2000\n";
        let mut medium = medium(slots);
        // The first packet misses the slot that has already begun; its slot is the second of the cycle.
        assert!(medium.offer(100_000, 0, 1, 1_000));
        assert!(medium.offer(100_000, 0, 2, 1_000));
        assert!(medium.offer(100_000, 0, 3, 1_000));
        assert!(medium.offer(100_000, 1, 4, 1_000));
        let ends: Vec<_> = std::iter::from_fn(|| medium.take(u64::MAX))
            .map(|it| (it.id, it.at_ns / 1000))
            .collect();
        assert_eq!(ends, [(1, 1000), (2, 1000), (4, 2000), (3, 2500)]);
        let mut lossy = self::medium(&format!(
            "[loss]\ngood = 1.0\n{slots}attempts = 2\nharq_us = 1000"
        ));
        lossy.offer(0, 0, 1, 100);
        let ended = lossy.take(u64::MAX).unwrap();
        assert_eq!((ended.fate, ended.at_ns), (Fate::Lost, 2_500_000));
    }

    #[test]
    fn a_frame_that_does_not_fit_a_gate_window_waits() {
        let mut medium = medium(
            "[gates]\ncycle_us = 100\nfirst = [[0, 20]]\nsecond = [[50, 70]]\nmbit_per_s = 1000",
        );
        // 1,000 bytes and their overhead take 8.192 us.
        (0..3).for_each(|id| assert!(medium.offer(2_000, 0, id, 1_000)));
        assert!(medium.offer(2_000, 1, 9, 1_000));
        let ends: Vec<_> = std::iter::from_fn(|| medium.take(u64::MAX))
            .map(|it| (it.id, it.at_ns))
            .collect();
        assert_eq!(ends, [(0, 10_192), (1, 18_384), (9, 58_192), (2, 108_192)]);
    }

    #[test]
    fn invalid_medium_settings_are_refused_with_their_key() {
        for (text, wanted) in [
            ("", "one table"),
            (
                "[wlan]\n[gates]\ncycle_us=9\nfirst=[]\nsecond=[]",
                "one table",
            ),
            ("queue = 0\n[wlan]", "queue = 0"),
            (
                "[wlan]\nimplementation_us = -1",
                "wlan.implementation_us = -1",
            ),
            ("[wlan]\nstandard = \"z\"", "expected published"),
            ("[wlan]\nstandard = \"g\"", "needs a rate"),
            ("[wlan]\nstandard = \"n\"\nmcs = 7", "needs both"),
            ("[wlan]\nstandard = \"g\"\nmbit_per_s = 7", "has no"),
            ("[loss]\ngood = 2\n[wlan]", "loss.good = 2"),
            (
                "[loss]\ntrace = [[5, 0], [5, 1]]\n[wlan]",
                "is not later than",
            ),
            ("[loss]\ntrace = [[-5, 0]]\n[wlan]", "loss.trace"),
            ("[wlan]\nstations = 2\nactive = [[0, 3]]", "wlan.active: 3"),
            (
                "[wlan]\nactive = [[5, 0], [5, 0]]",
                "wlan.active: 5 ms is not",
            ),
            ("[slots]\npattern = \"DD\"", "for each direction"),
            ("[slots]\npattern = \"DX\"", "none of D, U and S"),
            (
                "[slots]\npattern = \"DU\"\nslot_us = 0",
                "slots.slot_us = 0",
            ),
            (
                "[gates]\ncycle_us = -5\nfirst=[]\nsecond=[]",
                "gates.cycle_us = -5",
            ),
            (
                "[gates]\ncycle_us = 50\nfirst=[[0,20]]\nsecond=[[40,60]]",
                "within the cycle",
            ),
            (
                "[gates]\ncycle_us = 50\nfirst=[[0,20]]\nsecond=[[40,45]]",
                "every frame fits",
            ),
        ] {
            let settings: MediumSettings = toml::from_str(text).unwrap();
            let error = SharedMedium::new(&settings).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    proptest! {
        /// For any sequence of arrivals, each accepted packet ends once, in order of its direction, and times do not
        /// decrease.
        #[test]
        fn every_accepted_packet_is_delivered_or_lost_exactly_once(
            kind in 0..4_usize, seed in any::<u64>(), loss in 0.0..1.0_f64,
            packets in proptest::collection::vec((0_u64..2 * MS, 0..2_usize, 60_u32..1_514), 1..80),
        ) {
            let access = [
                "[wlan]\nstations = 1",
                "[wlan]\nstations = 3\nactive = [[0, 0], [1, 3], [7, 1], [9, 0], [30, 0]]",
                "[slots]\npattern = \"DSU\"",
                "[gates]\ncycle_us = 100\nfirst = [[0, 20]]\nsecond = [[50, 70]]",
            ][kind];
            let mut medium = medium(&format!("seed = {}\nqueue = 8\n[loss]\ngood = {loss}\n{access}", seed >> 1));
            let (mut now, mut taken) = (0, [Vec::new(), Vec::new()]);
            let mut ended = [Vec::new(), Vec::new()];
            let mut last = 0;
            let mut end = |medium: &mut SharedMedium, now: u64, ended: &mut [Vec<u32>; 2]| {
                while let Some(it) = medium.take(now) {
                    assert!(it.at_ns >= last && it.at_ns <= now);
                    last = it.at_ns;
                    ended[it.way].push(it.id);
                }
            };
            for (id, (pause, way, bytes)) in packets.iter().enumerate() {
                now += pause;
                end(&mut medium, now, &mut ended);
                if medium.offer(now, *way, id as u32, *bytes) {
                    taken[*way].push(id as u32);
                }
            }
            end(&mut medium, u64::MAX, &mut ended);
            prop_assert_eq!(ended, taken);
            let counts = medium.counts();
            let all = counts.full.iter().chain(&counts.lost).chain(&counts.arrived).sum::<u64>();
            prop_assert_eq!(all, packets.len() as u64);
        }
    }
}
