//! One point of a measurement: sets a switch up, fills it with rules, sends traffic, and records the observations.

use super::ability::COPIES;
use super::device::Switch;
use super::keeper::Keeper;
use super::openflow::{Action, Asked, GroupKind, Rule};
use super::outcome::{Amplified, Latency, Seen, Trial};
use super::part::{Does, Lengths, Matching, Part};
use super::plant::{Layout, Plant, Queues, Site, sending, with_switch};
use super::topology::{Wires, Wiring};
use super::{insertion, rules};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::benchmark::{Failed, Rig, Unit};
use taut_measure::Limit;
use taut_traffic::{
    Flood, Flow, Instrument, Load, Plan, Sizes, Stream, Summaries, Traffic, Trial as Rated,
};
use taut_wire::UdpFlow;

/// Warm-up before the count begins.
const WARM_UP: Duration = Duration::from_millis(20);
/// Rate of the packets whose latency through the loops is measured. The rate is so low that the switch has one packet
/// at a time.
const HOPS_PPS: f64 = 20e3;
/// Rate at which latency is measured in addition to the highest rate.
const LATENCY_PPS: f64 = 100e3;

/// Packets per second that an overloaded return port carries.
const RETURN_PPS: f64 = 500e3;
/// Number of slots in the ring of an overloaded return port.
const RETURN_RING: u32 = 32;
/// Number of the [`RETURN_RING`] slots whose buffers the generator keeps, so that the switch can use only the remaining
/// slots.
const RETURN_KEPT: usize = 30;
/// Size of each queue of the switch, packets.
const QUEUED: usize = 8_192;
const REAL_TIME_PPS: f64 = 20e3;
/// UDP port of real-time packets, as published for FLOWer.
const REAL_TIME_PORT: u16 = 42;
/// UDP port of background packets, as published for FLOWer.
const BACKGROUND_PORT: u16 = 43;
/// Size of background frames, bytes, as published for FLOWer.
const BACKGROUND_BYTES: usize = 864;
const URGENT: u32 = 7;
/// Minimum length of a trial with background traffic, because the queues need a part of the trial to fill.
const MIN_QOS: Duration = Duration::from_millis(100);

/// Rate of the stream through all ports at which no packet should be lost.
const AMPLIFIED_PPS: f64 = 10e3;
/// Packets per receive call for the stream through all ports. The value is small, because a batch has space for only
/// 256 copies.
const AMPLIFIED_BURST: usize = 4;

/// Measures a point on the calling thread.
pub(super) fn measure(
    rig: &Rig<'_>,
    (switch, wires): (&Switch, &Wires),
    unit: &Unit<Part>,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let at = At {
        site: Site { rig, switch, wires },
        lengths,
        stop,
    };
    let seen = match unit.part {
        Part::Hops { loops } => at.hops(loops),
        Part::Rules { matching, rules } => at.rules(matching, rules),
        Part::Qos {
            load_percent,
            priority,
        } => at.qos(load_percent, priority),
        Part::Insertion { order } => {
            let layout = Layout {
                rules: lengths.insertions,
                ..at.two_ports()
            };
            let traffic = insertion::traffic().map_err(Failed::Broken)?;
            at.with(&layout, traffic, |plant| {
                let ends = [layout.wiring.first, layout.wiring.last];
                insertion::measure(plant, rig, ends, (order, lengths), stop)
            })
        }
        Part::Amplify { cables } => at.amplify(cables),
        Part::Actions { does } => at.actions(does),
    };
    Ok(Trial {
        switch: switch.clone(),
        part: unit.part,
        repetition: unit.repetition,
        seen: seen?,
    })
}

/// The switch, the stop flag and other values that the measurements of all points share.
struct At<'a> {
    site: Site<'a>,
    lengths: &'a Lengths,
    stop: &'a AtomicBool,
}

impl At<'_> {
    fn with<T>(
        &self,
        layout: &Layout,
        traffic: Traffic,
        measure: impl FnOnce(&mut Plant) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        with_switch(self.site, layout, traffic, self.stop, measure)
    }

    /// Returns the layout of a switch with `cables` cables and, if it has an amplifier, `links` links to it.
    fn layout(&self, cables: u32, links: u32) -> Layout {
        let wires = self.site.wires;
        let links = if wires.amplifier.is_some() { links } else { 0 };
        Layout::of(match &wires.topology {
            Some(topology) => topology.wiring(cables, links),
            None => Wiring::built_in(cables, links),
        })
    }

    fn two_ports(&self) -> Layout {
        self.layout(0, 1)
    }

    fn hops(&self, loops: u32) -> Result<Seen, Failed> {
        let layout = Layout {
            flush: Some("each"),
            ..self.layout(self.lengths.most_loops(), 1)
        };
        self.with(&layout, one_flow()?, |plant| {
            let path = path(&layout.wiring, loops);
            plant.keeper()?.rules(path, self.stop)?;
            self.latency(&mut plant.instrument, HOPS_PPS)
                .map(Seen::Latency)
        })
    }

    fn rules(&self, matching: Matching, count: u32) -> Result<Seen, Failed> {
        let layout = Layout {
            rules: count,
            is_plain: matching == Matching::Plain,
            ..self.two_ports()
        };
        let Wiring { first, last, .. } = layout.wiring;
        let traffic = rules::traffic(matching, count).map_err(Failed::Broken)?;
        self.with(&layout, traffic, |plant| {
            let mut rule_ns = None;
            if !layout.is_plain {
                let begun = std::time::Instant::now();
                let all = (0..count).map(|number| rules::rule(matching, number, [first, last]));
                plant.keeper()?.rules(all, self.stop)?;
                let by_itself = [Switch::ByHand, Switch::TautInKernel];
                let is_told = !by_itself.contains(self.site.switch);
                rule_ns =
                    is_told.then(|| begun.elapsed().as_nanos() as f64 / f64::from(count.max(1)));
            } else if let Ok(bridge @ Keeper::Bridge(_)) = plant.keeper() {
                // A bridge with only two ports forwards like a switch with one rule for each port.
                bridge.rules([sending(first, vec![Action::Output(last)])], self.stop)?;
            }
            // The warm-up lasts until packets have matched every rule.
            let each = self.site.switch.first_packet();
            self.rate(&mut plant.instrument, WARM_UP + each * count, rule_ns)
        })
    }

    fn actions(&self, does: Does) -> Result<Seen, Failed> {
        let layout = self.two_ports();
        self.with(&layout, one_flow()?, |plant| {
            let ends = [layout.wiring.first, layout.wiring.last];
            let rule = doing(does, ends, plant.keeper()?);
            plant.keeper()?.rules([rule], self.stop)?;
            self.rate(&mut plant.instrument, WARM_UP, None)
        })
    }

    fn qos(&self, load_percent: u32, priority: bool) -> Result<Seen, Failed> {
        let layout = Layout {
            queues: Some(Queues {
                packets: QUEUED,
                priorities: if priority { 2 } else { 1 },
            }),
            return_ring: Some(RETURN_RING),
            ..self.layout(COPIES - 1, COPIES)
        };
        // For a switch that is set up here, the generator limits the return port's capacity, so a configured one does
        // not apply.
        let carried = self.site.wires.return_pps();
        let carried = carried.filter(|_| !self.site.switch.is_set_up());
        let background_pps =
            carried.unwrap_or(RETURN_PPS) * f64::from(load_percent) / 100.0 / f64::from(COPIES);
        // A switch that this machine sets up has one queue even without priority. On other switches, rules without
        // priority select no queue.
        let has_queues = priority || self.site.switch.is_set_up();
        let traffic = classes(background_pps).map_err(Failed::Broken)?;
        self.with(&layout, traffic, |plant| {
            let ClassRules { switch, amplifier } = class_rules(&layout.wiring, has_queues);
            plant.keeper()?.rules(switch, self.stop)?;
            if !amplifier.is_empty() {
                plant.amplifier()?.rules(amplifier, self.stop)?;
            }
            let instrument = &mut plant.instrument;
            if carried.is_none() {
                instrument.set_return_line(Some((RETURN_PPS, RETURN_KEPT)));
            }
            let clock = *instrument.clock();
            let mut records = [Summaries::new(&clock), Summaries::new(&clock)];
            let trial = Rated {
                rate_pps: REAL_TIME_PPS,
                duration: self.lengths.trial.max(MIN_QOS),
            };
            let tallies = instrument.run_streams(trial, &mut records, self.stop);
            instrument.set_return_line(None);
            let real_time = Latency::of(&tallies[0], &records[0])?;
            let background = tallies.get(1).map(|tally| Latency::of(tally, &records[1]));
            Ok(Seen::Classes {
                real_time,
                background: background.transpose()?,
            })
        })
    }

    fn amplify(&self, cables: u32) -> Result<Seen, Failed> {
        let layout = Layout {
            burst: Some(AMPLIFIED_BURST),
            ..self.layout(cables, cables)
        };
        self.with(&layout, one_flow()?, |plant| {
            let Amplifying {
                multiplying,
                back,
                ends,
            } = amplifying(&layout.wiring, *self.site.switch == Switch::Bridge);
            let copies = multiplying.actions.len() as u32;
            match layout.wiring.before.is_some() {
                true => {
                    plant.amplifier()?.rules([multiplying.clone()], self.stop)?;
                    plant.keeper()?.rules(back, self.stop)?;
                }
                false => {
                    let all = std::iter::once(multiplying.clone()).chain(back);
                    plant.keeper()?.rules(all, self.stop)?;
                }
            }
            let counted = (multiplying.cookie, ends.as_slice());
            let easy = self.amplified(plant, counted, Some(AMPLIFIED_PPS))?;
            let most = self.amplified(plant, counted, None)?;
            Ok(Seen::Amplified { copies, easy, most })
        })
    }

    /// Sends the stream for a trial. Counts the copies by the rules of the ports through which they come back.
    fn amplified(
        &self,
        plant: &mut Plant,
        (multiplying, ends): (u64, &[u32]),
        rate_pps: Option<f64>,
    ) -> Result<Amplified, Failed> {
        let before = self.counters(plant)?;
        let flood = Flood {
            rate_pps,
            warm_up: Duration::ZERO,
            duration: self.lengths.trial,
            share: None,
        };
        let flow = plant.instrument.flood(flood, self.stop);
        if flow.stopped {
            return Err(Failed::Stopped);
        }
        let received = flow.received_in_all + plant.instrument.drain();
        let after = self.counters(plant)?;
        let (Some(before), Some(after)) = (before, after) else {
            // Without counters, the loss is known only from the packets that came back.
            let sent = flow.sent.max(1);
            return Ok(Amplified {
                in_pps: sent as f64 / flow.seconds,
                out_pps: received as f64 / flow.seconds,
                fold: received as f64 / sent as f64,
                lost: Vec::new(),
            });
        };
        let more = |which: fn(&Counted) -> &BTreeMap<u64, u64>, cookie: u64| {
            let of = |counters: &Counted| which(counters).get(&cookie).copied().unwrap_or(0);
            of(&after).saturating_sub(of(&before))
        };
        let sent = more(|it| &it.multiplying, multiplying);
        if sent == 0 {
            return Err(Failed::Broken("the rule has seen no packet".to_string()));
        }
        let ends = ends.iter();
        let ends: Vec<u64> = ends
            .map(|port| more(|it| &it.back, u64::from(*port)))
            .collect();
        let out = ends.iter().sum::<u64>() + received;
        Ok(Amplified {
            in_pps: sent as f64 / flow.seconds,
            out_pps: out as f64 / flow.seconds,
            fold: received as f64 / sent as f64,
            lost: ends
                .iter()
                .map(|came| 1.0 - *came as f64 / sent as f64)
                .collect(),
        })
    }

    /// Reads the counters of the switches until the counters no longer change, at most eleven times, while no packets
    /// are sent. Returns none if the switches have no counters.
    fn counters(&self, plant: &mut Plant) -> Result<Option<Counted>, Failed> {
        let pause = self.site.switch.counts_every();
        let mut read = || -> Result<Option<Counted>, Failed> {
            let back = plant.keeper()?.counters()?;
            let multiplying = plant.amplifier()?.counters()?;
            Ok(back
                .zip(multiplying)
                .map(|(back, multiplying)| Counted { multiplying, back }))
        };
        let mut last = read()?;
        for _ in 0..10 {
            if last.is_none() {
                break;
            }
            std::thread::sleep(pause);
            let now = read()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    /// Measures the highest rate, and the latency at a lower rate.
    fn rate(
        &self,
        instrument: &mut Instrument,
        warm_up: Duration,
        rule_ns: Option<f64>,
    ) -> Result<Seen, Failed> {
        let flood = Flood {
            rate_pps: None,
            warm_up,
            duration: self.lengths.trial,
            share: None,
        };
        let flow = instrument.flood(flood, self.stop);
        if flow.stopped {
            return Err(Failed::Stopped);
        }
        if flow.received == 0 {
            return Err(Failed::Broken("no packet came through".to_string()));
        }
        instrument.drain();
        Ok(Seen::Rate {
            pps: flow.received_pps(),
            limited_by: Some(limit_of(&flow)),
            latency: self.latency(instrument, LATENCY_PPS)?,
            rule_ns,
        })
    }

    fn latency(&self, instrument: &mut Instrument, rate_pps: f64) -> Result<Latency, Failed> {
        let clock = *instrument.clock();
        let trial = |duration| Rated { rate_pps, duration };
        instrument.run(trial(WARM_UP), &mut Summaries::new(&clock), self.stop);
        let mut record = Summaries::new(&clock);
        let tally = instrument.run(trial(self.lengths.trial), &mut record, self.stop);
        Latency::of(&tally, &record)
    }
}

fn one_flow() -> Result<Traffic, Failed> {
    let stream = Stream::new(&UdpFlow::default(), 64);
    let stream = stream.map_err(|e| Failed::Broken(e.to_string()))?;
    Ok(stream.into())
}

/// Numbers of packets that rules have matched, by cookie: at the switch that multiplies traffic, and at the switch
/// through which packets come back.
#[derive(Debug, PartialEq)]
struct Counted {
    multiplying: BTreeMap<u64, u64>,
    back: BTreeMap<u64, u64>,
}

/// Returns rules that send the generator's packets through `loops` cables, one after another, and back.
fn path(wiring: &Wiring, loops: u32) -> Vec<Rule> {
    let mut at = wiring.first;
    let mut rules = Vec::new();
    for [near, far] in wiring.cables.iter().take(loops as usize) {
        rules.push(sending(at, vec![Action::Output(*near)]));
        at = *far;
    }
    rules.push(sending(at, vec![Action::Output(wiring.last)]));
    rules
}

/// Returns the part of the setup that limited the rate of a flood: the generator if the switch accepted and returned
/// nearly all its packets.
fn limit_of(flow: &Flow) -> Limit {
    let offered = flow.sent + flow.refused;
    // Up to a hundredth of the packets may be in flight when the count begins or ends.
    if flow.received * 100 >= offered * 99 {
        Limit::Generator
    } else {
        Limit::Device
    }
}

/// The rules that make a switch multiply a stream.
struct Amplifying {
    /// The rule that sends the generator's packets through many ports. It belongs to the amplifier, if there is one.
    multiplying: Rule,
    /// The rules that send the copies back.
    back: Vec<Rule>,
    /// The ports through which copies come back.
    ends: Vec<u32>,
}

/// Returns the rules that multiply a stream. Each cable carries two copies, one from each end, or one copy if the
/// switch cannot distinguish returning packets from others.
fn amplifying(wiring: &Wiring, is_one_way: bool) -> Amplifying {
    let (from, to, ends): (u32, Vec<u32>, Vec<u32>) = match &wiring.before {
        Some(before) => (
            before.first,
            before.links.iter().map(|[own, _]| *own).collect(),
            before.links.iter().map(|[_, port]| *port).collect(),
        ),
        None if is_one_way => (
            wiring.first,
            wiring.cables.iter().map(|[near, _]| *near).collect(),
            wiring.cables.iter().map(|[_, far]| *far).collect(),
        ),
        None => {
            let ends: Vec<u32> = wiring.cables.iter().flatten().copied().collect();
            let to = ends.iter().copied().chain([wiring.last]);
            (wiring.first, to.collect(), ends)
        }
    };
    let back = ends.iter();
    Amplifying {
        multiplying: sending(from, to.into_iter().map(Action::Output).collect()),
        back: back
            .map(|port| sending(*port, vec![Action::Output(wiring.last)]))
            .collect(),
        ends,
    }
}

/// Returns the real-time packets, and background packets if their rate is above zero.
fn classes(background_pps: f64) -> Result<Traffic, String> {
    let plan = |name: &str, dst_port, bytes, pps, priority| Plan {
        name: name.to_string(),
        flow: UdpFlow {
            dst_port,
            ..UdpFlow::default()
        },
        sizes: Sizes::one(bytes),
        load: Load::Fixed(pps),
        priority,
        ..Plan::default()
    };
    let mut plans = vec![plan("real time", REAL_TIME_PORT, 64, REAL_TIME_PPS, 1)];
    if background_pps > 0.0 {
        let size = BACKGROUND_BYTES;
        plans.push(plan("background", BACKGROUND_PORT, size, background_pps, 0));
    }
    let streams: Result<Vec<Stream>, _> = plans.into_iter().map(Stream::of).collect();
    Traffic::of(streams.map_err(|e| e.to_string())?)
}

/// The rules for real-time and background packets.
struct ClassRules {
    switch: Vec<Rule>,
    /// The rules of the amplifier, if there is one.
    amplifier: Vec<Rule>,
}

/// Returns the rules for real-time and background packets. Real-time packets go directly to the return port. Without an
/// amplifier, one copy of each background packet also does, and the other copies return over cables. With an amplifier,
/// all copies return over the amplifier's links.
fn class_rules(wiring: &Wiring, has_queues: bool) -> ClassRules {
    let last = Action::Output(wiring.last);
    let class = |in_port: u32, udp_dst, actions| Rule {
        priority: 200,
        asked: Asked {
            in_port: Some(in_port),
            udp_dst: Some(udp_dst),
            ..Asked::default()
        },
        actions,
        ..Rule::default()
    };
    let in_queue = |queue: u32, mut actions: Vec<Action>| {
        if has_queues {
            actions.insert(0, Action::Queue(queue));
        }
        actions
    };
    let real_time = class(wiring.first, REAL_TIME_PORT, in_queue(URGENT, vec![last]));
    let feeds = wiring.feeds();
    let back = |port: &u32| sending(*port, in_queue(0, vec![last]));
    let mut switch = vec![real_time];
    let mut amplifier = Vec::new();
    match &wiring.before {
        Some(before) => {
            let links = before.links.iter().map(|[own, _]| Action::Output(*own));
            let links: Vec<Action> = links.collect();
            let first = links.iter().copied().take(1).collect();
            amplifier.push(class(before.first, REAL_TIME_PORT, first));
            amplifier.push(class(before.first, BACKGROUND_PORT, links));
            switch.extend(feeds.iter().map(back));
        }
        None => {
            let near = wiring.cables.iter().map(|[near, _]| Action::Output(*near));
            let copies = in_queue(0, near.chain([last]).collect());
            switch.push(class(wiring.first, BACKGROUND_PORT, copies));
            switch.extend(feeds.iter().skip(1).map(back));
        }
    }
    ClassRules { switch, amplifier }
}

/// Returns a rule that applies the action `does` to packets from the generator and sends the packets back. Also adds
/// the meter or the group that the action needs.
fn doing(does: Does, [west, east]: [u32; 2], keeper: &mut Keeper) -> Rule {
    /// The limit of a meter that drops no packet, because it is above every possible rate.
    const METER_PPS: u32 = 100_000_000;
    let out = Action::Output(east);
    let bucket = (vec![out], east);
    let (one, two) = ([bucket.clone()], [bucket.clone(), bucket]);
    let mut meter = None;
    let actions = match does {
        Does::Output => vec![out],
        Does::Meter => {
            keeper.meter(1, METER_PPS);
            meter = Some(1);
            vec![out]
        }
        Does::SetClass => vec![Action::SetDscp(46), out],
        Does::SetAddress => vec![Action::SetDestination(Ipv4Addr::new(10, 9, 9, 9)), out],
        Does::Tag => vec![Action::PushVlan, Action::PopVlan, out],
        Does::GroupAll => {
            keeper.group(1, GroupKind::All, &one);
            vec![Action::Group(1)]
        }
        Does::GroupSelect => {
            keeper.group(1, GroupKind::Select, &two);
            vec![Action::Group(1)]
        }
        Does::GroupFailover => {
            keeper.group(1, GroupKind::FastFailover, &two);
            vec![Action::Group(1)]
        }
    };
    let flow = UdpFlow::default();
    Rule {
        asked: Asked {
            in_port: Some(west),
            udp_dst: Some(flow.dst_port),
            ..Asked::default()
        },
        meter,
        ..sending(west, actions)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn path_rules_forward_packets_from_each_loop_to_the_next() {
        let wiring = Wiring::built_in(3, 0);
        let hops = |loops| -> Vec<(u32, Action)> {
            let rules = path(&wiring, loops).into_iter();
            rules
                .map(|rule| (rule.asked.in_port.unwrap(), rule.actions[0]))
                .collect()
        };
        assert_eq!(hops(0), [(1, Action::Output(8))]);
        assert_eq!(
            hops(2),
            [
                (1, Action::Output(2)),
                (3, Action::Output(4)),
                (5, Action::Output(8))
            ]
        );
    }

    #[test]
    fn the_generator_limits_a_flood_that_returns_without_loss() {
        let flow = |refused, received| Flow {
            sent: 1_000,
            refused,
            received,
            ..Flow::default()
        };
        assert_eq!(limit_of(&flow(0, 995)), Limit::Generator);
        assert_eq!(limit_of(&flow(0, 900)), Limit::Device);
        assert_eq!(limit_of(&flow(500, 1_000)), Limit::Device);
    }

    fn outputs(rule: &Rule) -> usize {
        let outputs = rule.actions.iter();
        outputs.filter(|it| matches!(it, Action::Output(_))).count()
    }

    #[test]
    fn the_switch_copies_background_traffic_if_there_is_no_amplifier() {
        let wiring = Wiring::built_in(COPIES - 1, 0);
        let rules = class_rules(&wiring, true);
        assert!(rules.amplifier.is_empty());
        let rules = rules.switch;
        assert_eq!(outputs(&rules[1]), COPIES as usize);
        assert_eq!(rules.len(), 4);
        assert_eq!(rules[0].actions[0], Action::Queue(URGENT));
        assert_eq!(classes(0.0).unwrap().streams().len(), 1);
        assert_eq!(classes(1e5).unwrap().streams().len(), 2);
        let amplified = amplifying(&wiring, false);
        assert_eq!(outputs(&amplified.multiplying), 2 * 2 + 1);
        assert_eq!((amplified.back.len(), amplified.ends.len()), (4, 4));
        let one_way = amplifying(&wiring, true);
        assert_eq!(outputs(&one_way.multiplying), 2);
        assert_eq!(one_way.ends, [3, 5]);
    }

    #[test]
    fn an_amplifier_before_the_switch_copies_the_background_traffic() {
        let wiring = Wiring::built_in(0, COPIES);
        let rules = class_rules(&wiring, false);
        assert_eq!(outputs(&rules.amplifier[0]), 1);
        assert_eq!(outputs(&rules.amplifier[1]), COPIES as usize);
        assert_eq!(rules.switch.len(), 1 + COPIES as usize);
        let all = rules.switch.iter().flat_map(|rule| &rule.actions);
        assert!(all.into_iter().all(|it| *it == Action::Output(4)));
        let amplified = amplifying(&wiring, false);
        assert_eq!(outputs(&amplified.multiplying), 3);
        assert_eq!(amplified.ends, [1, 2, 3]);
    }
}
