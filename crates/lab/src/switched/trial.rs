//! One point of a measurement: a switch set up, filled with rules, sent through, and what was seen.

use super::device::{Layout, Plant, Queues, Switch, WEST, with_switch};
use super::openflow::{Action, Asked, Controller, GroupKind, Rule};
use super::part::{Does, Lengths, Matching, Part};
use super::{insertion, rules};
use crate::benchmark::{Failed, Rig, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_measure::Summary;
use taut_traffic::{
    Flood, Instrument, Load, Plan, Sizes, Stream, Summaries, Tally, Traffic, Trial as Rated,
};
use taut_wire::UdpFlow;

/// Offered before anything is counted.
const WARM_UP: Duration = Duration::from_millis(20);
/// Rate of the packets whose way through the loops is timed: one at a time in the switch.
const HOPS_PPS: f64 = 20e3;
/// Rate at which latency is measured beside the highest rate.
const LATENCY_PPS: f64 = 100e3;

/// Packets a second that the return port carries where it is to be overloaded, slots of its ring, and how many of these the generator
/// keeps: whoever waits there waits for what is left.
const RETURN_PPS: f64 = 500e3;
const RETURN_RING: u32 = 32;
const RETURN_KEPT: usize = 30;
/// Packets that wait in a queue of the switch.
const QUEUED: usize = 8_192;
const REAL_TIME_PPS: f64 = 20e3;
/// UDP ports of both classes, size of background frames: as published.
const REAL_TIME_PORT: u16 = 42;
const BACKGROUND_PORT: u16 = 43;
const BACKGROUND_BYTES: usize = 864;
/// Copies that the switch makes of each background packet, all of which leave through the return port; two come by cables.
const COPIES: u32 = 3;
const URGENT: u32 = 7;
/// Shortest trial beside background: until queues are as full as they get takes a share of it.
const MIN_QOS: Duration = Duration::from_millis(100);

/// Rate of the stream that is sent through all ports where none is to be lost.
const AMPLIFIED_PPS: f64 = 10e3;
/// Packets taken at a time there: a batch has room for 256 copies in all.
const AMPLIFIED_BURST: usize = 4;

/// What came of a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Which switch.
    pub switch: Switch,
    /// Which point.
    pub part: Part,
    /// From 1.
    pub repetition: u32,
    /// What was seen.
    pub seen: Seen,
}

/// What was seen at a point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Seen {
    /// Latency alone.
    Latency(Latency),
    /// The highest rate, and latency at a lower one.
    Rate {
        /// Packets a second that came through when as many as possible were offered.
        pps: f64,
        /// Latency of 100 kpkt/s.
        latency: Latency,
        /// Time that a rule took when all were made together, ns.
        rule_ns: Option<f64>,
    },
    /// Latency of both classes.
    Classes {
        /// Of real-time packets.
        real_time: Latency,
        /// Of background packets, if any were sent and came.
        background: Option<Latency>,
    },
    /// Times until rules were in force, ns.
    Insertion {
        /// From the message to the answer of the barrier behind it, rule by rule.
        barrier_ns: Vec<f64>,
        /// From the message to the first packet that obeys a new rule.
        appeared_ns: Vec<f64>,
        /// From the message to the last packet that obeys a rule that is taken out.
        vanished_ns: Vec<f64>,
        /// Rules that no packet obeyed while it was waited for.
        unseen: u32,
    },
    /// What became of one stream that was sent through all ports: at a rate that is easy, and at the highest.
    Amplified {
        /// Copies that the rule makes of a packet.
        copies: u32,
        /// At 10 kpkt/s.
        easy: Amplified,
        /// As many as the generator's port takes.
        most: Amplified,
    },
}

/// Latency of all packets of a stream, and how many did not come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Latency of those that came.
    pub latency: Summary,
    /// Share of those sent that did not come.
    pub lost: f64,
}

/// A stream that went through all ports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Amplified {
    /// Packets a second that came into the switch from the generator.
    pub in_pps: f64,
    /// Packets a second that left it through all of its ports.
    pub out_pps: f64,
    /// Packets that came back for each that was sent.
    pub fold: f64,
    /// Share of the copies that did not come out of each cable's ends, in the order of the ports.
    pub lost: Vec<f64>,
}

impl Latency {
    fn of(tally: &Tally, record: &Summaries) -> Result<Self, Failed> {
        if tally.stopped {
            return Err(Failed::Stopped);
        }
        let latency = Summary::from_histogram(&record.latency);
        let latency = latency.ok_or_else(|| Failed::Broken("no packet came back".to_string()))?;
        let lost = record.sequence.finish(tally.sent).lost;
        Ok(Self {
            latency,
            lost: lost as f64 / tally.sent.max(1) as f64,
        })
    }
}

/// Measures a point on the calling thread.
pub(super) fn measure(
    rig: &Rig<'_>,
    switch: Switch,
    unit: &Unit<Part>,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let at = At {
        rig,
        switch,
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
                ..Layout::TWO_PORTS
            };
            let traffic = insertion::traffic().map_err(Failed::Broken)?;
            with_switch(rig, (switch, &layout), traffic, stop, |plant| {
                insertion::measure(plant, rig, layout.east(), (order, lengths), stop)
            })
        }
        Part::Amplify { cables } => at.amplify(cables),
        Part::Actions { does } => at.actions(does),
    };
    Ok(Trial {
        switch,
        part: unit.part,
        repetition: unit.repetition,
        seen: seen?,
    })
}

/// What all points have in common.
struct At<'a> {
    rig: &'a Rig<'a>,
    switch: Switch,
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
        with_switch(self.rig, (self.switch, layout), traffic, self.stop, measure)
    }

    fn hops(&self, loops: u32) -> Result<Seen, Failed> {
        let layout = Layout {
            cables: self.lengths.most_loops(),
            flush: Some("each"),
            ..Layout::TWO_PORTS
        };
        self.with(&layout, one_flow()?, |plant| {
            plant.controller()?.rules(path(&layout, loops))?;
            self.latency(&mut plant.instrument, HOPS_PPS)
                .map(Seen::Latency)
        })
    }

    fn rules(&self, matching: Matching, count: u32) -> Result<Seen, Failed> {
        let layout = Layout {
            rules: count,
            is_plain: matching == Matching::Plain,
            ..Layout::TWO_PORTS
        };
        let traffic = rules::traffic(matching, count).map_err(Failed::Broken)?;
        self.with(&layout, traffic, |plant| {
            let mut rule_ns = None;
            if !layout.is_plain {
                let begun = std::time::Instant::now();
                let all = (0..count).map(|number| rules::rule(matching, number, layout.east()));
                plant.controller()?.rules(all)?;
                rule_ns = Some(begun.elapsed().as_nanos() as f64 / f64::from(count.max(1)));
            }
            // Until every rule has had its packets. Open vSwitch makes a flow of its own of each address by the first one.
            let each = match self.switch {
                Switch::Taut => Duration::from_micros(1),
                Switch::OpenVSwitch => Duration::from_micros(20),
            };
            self.rate(&mut plant.instrument, WARM_UP + each * count, rule_ns)
        })
    }

    fn actions(&self, does: Does) -> Result<Seen, Failed> {
        let layout = Layout::TWO_PORTS;
        self.with(&layout, one_flow()?, |plant| {
            let rule = doing(does, layout.east(), plant.controller()?);
            plant.controller()?.rules([rule])?;
            self.rate(&mut plant.instrument, WARM_UP, None)
        })
    }

    fn qos(&self, load_percent: u32, priority: bool) -> Result<Seen, Failed> {
        if self.switch == Switch::OpenVSwitch {
            let why = "its user-space datapath has no queues of strict priority";
            return Err(Failed::Broken(why.to_string()));
        }
        let layout = Layout {
            cables: COPIES - 1,
            queues: Some(Queues {
                packets: QUEUED,
                priorities: if priority { 2 } else { 1 },
            }),
            return_ring: Some(RETURN_RING),
            ..Layout::TWO_PORTS
        };
        let background_pps = RETURN_PPS * f64::from(load_percent) / 100.0 / f64::from(COPIES);
        let traffic = classes(background_pps).map_err(Failed::Broken)?;
        self.with(&layout, traffic, |plant| {
            plant.controller()?.rules(class_rules(&layout))?;
            let instrument = &mut plant.instrument;
            instrument.set_return_line(Some((RETURN_PPS, RETURN_KEPT)));
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
            cables,
            burst: Some(AMPLIFIED_BURST),
            ..Layout::TWO_PORTS
        };
        self.with(&layout, one_flow()?, |plant| {
            plant.controller()?.rules(amplifying(&layout))?;
            let easy = self.amplified(plant, &layout, Some(AMPLIFIED_PPS))?;
            let most = self.amplified(plant, &layout, None)?;
            Ok(Seen::Amplified {
                copies: 2 * cables + 1,
                easy,
                most,
            })
        })
    }

    /// Sends the stream for a while, and counts by the rules of the ports that its copies come back through.
    fn amplified(
        &self,
        plant: &mut Plant,
        layout: &Layout,
        rate_pps: Option<f64>,
    ) -> Result<Amplified, Failed> {
        let before = self.counters(plant.controller()?)?;
        let flood = Flood {
            rate_pps,
            warm_up: Duration::ZERO,
            duration: self.lengths.trial,
        };
        let flow = plant.instrument.flood(flood, self.stop);
        if flow.stopped {
            return Err(Failed::Stopped);
        }
        let received = flow.received_in_all + plant.instrument.drain();
        let after = self.counters(plant.controller()?)?;
        let count = |cookie: u32| {
            let of = |counters: &BTreeMap<u64, u64>| {
                counters.get(&u64::from(cookie)).copied().unwrap_or(0)
            };
            of(&after).saturating_sub(of(&before))
        };
        let sent = count(WEST);
        if sent == 0 {
            return Err(Failed::Broken("the rule has seen no packet".to_string()));
        }
        let ends: Vec<u64> = (WEST + 1..layout.east()).map(count).collect();
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

    /// The counters of a switch at rest: read until they stay.
    fn counters(&self, controller: &mut Controller) -> Result<BTreeMap<u64, u64>, Failed> {
        // Open vSwitch brings them up to date about twice a second.
        let pause = Duration::from_millis(match self.switch {
            Switch::Taut => 5,
            Switch::OpenVSwitch => 1_100,
        });
        let mut last = controller.counters()?;
        for _ in 0..10 {
            std::thread::sleep(pause);
            let now = controller.counters()?;
            if now == last {
                break;
            }
            last = now;
        }
        Ok(last)
    }

    /// The highest rate, and the latency at a lower one.
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

/// Rules that send what comes from the generator through so many cables, one after the other, and back.
fn path(layout: &Layout, loops: u32) -> Vec<Rule> {
    let mut at = WEST;
    let mut rules = Vec::new();
    for number in 0..loops {
        let [near, far] = layout.cable(number);
        rules.push(sending(at, vec![Action::Output(near)]));
        at = far;
    }
    rules.push(sending(at, vec![Action::Output(layout.east())]));
    rules
}

/// A rule about a port, whose number is its cookie.
fn sending(in_port: u32, actions: Vec<Action>) -> Rule {
    Rule {
        priority: 100,
        cookie: u64::from(in_port),
        asked: Asked {
            in_port: Some(in_port),
            ..Asked::default()
        },
        meter: None,
        actions,
    }
}

/// Rules that send all that comes from the generator through all ports, and what comes back by cables to it.
fn amplifying(layout: &Layout) -> Vec<Rule> {
    let ends = WEST + 1..layout.east();
    let back = ends.map(|port| sending(port, vec![Action::Output(layout.east())]));
    let flood = sending(WEST, vec![Action::Flood]);
    std::iter::once(flood).chain(back).collect()
}

/// Real-time packets, and background packets if any are wanted.
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

/// Rules of both classes: real-time packets go to the return port at once, of background packets one copy does and the others come
/// there by cables.
fn class_rules(layout: &Layout) -> Vec<Rule> {
    let east = Action::Output(layout.east());
    let class = |udp_dst, actions| Rule {
        priority: 200,
        asked: Asked {
            in_port: Some(WEST),
            udp_dst: Some(udp_dst),
            ..Asked::default()
        },
        actions,
        ..Rule::default()
    };
    let cables: Vec<[u32; 2]> = (0..layout.cables).map(|it| layout.cable(it)).collect();
    let mut background = vec![Action::Queue(0)];
    background.extend(cables.iter().map(|[near, _]| Action::Output(*near)));
    background.push(east);
    let mut rules = vec![
        class(REAL_TIME_PORT, vec![Action::Queue(URGENT), east]),
        class(BACKGROUND_PORT, background),
    ];
    let back = |[_, far]: &[u32; 2]| sending(*far, vec![Action::Queue(0), east]);
    rules.extend(cables.iter().map(back));
    rules
}

/// The rule that does this to packets from the generator and sends them back; makes the meter or the group that it wants.
fn doing(does: Does, east: u32, controller: &mut Controller) -> Rule {
    /// More than ever come: nothing is to be dropped.
    const METER_PPS: u32 = 100_000_000;
    let out = Action::Output(east);
    let bucket = (vec![out], east);
    let (one, two) = ([bucket.clone()], [bucket.clone(), bucket]);
    let mut meter = None;
    let actions = match does {
        Does::Output => vec![out],
        Does::Meter => {
            controller.meter(1, METER_PPS);
            meter = Some(1);
            vec![out]
        }
        Does::SetClass => vec![Action::SetDscp(46), out],
        Does::SetAddress => vec![Action::SetDestination(Ipv4Addr::new(10, 9, 9, 9)), out],
        Does::Tag => vec![Action::PushVlan, Action::PopVlan, out],
        Does::GroupAll => {
            controller.group(1, GroupKind::All, &one);
            vec![Action::Group(1)]
        }
        Does::GroupSelect => {
            controller.group(1, GroupKind::Select, &two);
            vec![Action::Group(1)]
        }
        Does::GroupFailover => {
            controller.group(1, GroupKind::FastFailover, &two);
            vec![Action::Group(1)]
        }
    };
    let flow = UdpFlow::default();
    Rule {
        asked: Asked {
            in_port: Some(WEST),
            udp_dst: Some(flow.dst_port),
            ..Asked::default()
        },
        meter,
        ..sending(WEST, actions)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_way_through_loops_goes_from_the_far_end_of_each_to_the_near_end_of_the_next() {
        let layout = Layout {
            cables: 3,
            ..Layout::TWO_PORTS
        };
        let hops = |loops| -> Vec<(u32, Action)> {
            let rules = path(&layout, loops).into_iter();
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
    fn background_comes_back_as_often_as_it_is_copied() {
        let layout = Layout {
            cables: COPIES - 1,
            ..Layout::TWO_PORTS
        };
        let rules = class_rules(&layout);
        let outputs = rules[1].actions.iter();
        let copies = outputs.filter(|it| matches!(it, Action::Output(_))).count();
        assert_eq!(copies, COPIES as usize);
        assert_eq!(rules.len(), 4);
        assert_eq!(rules[0].actions[0], Action::Queue(URGENT));
        assert_eq!(classes(0.0).unwrap().streams().len(), 1);
        assert_eq!(classes(1e5).unwrap().streams().len(), 2);
        let amplified = amplifying(&layout);
        assert_eq!(amplified.len(), 1 + 2 * 2);
    }
}
