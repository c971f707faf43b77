//! How long a rule takes to be in force: until the barrier behind it is answered, and until the first packet obeys it.

use super::device::{Plant, WEST};
use super::openflow::{Action, Asked, Change, Controller, Rule};
use super::part::{Lengths, Matching, Order};
use super::rules;
use super::trial::Seen;
use crate::benchmark::{Failed, Rig};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use taut_sys::{Clock, spawn_background, ticks};
use taut_traffic::{Record, Traffic, Trial as Rated};

/// Where the packets go that a rule is made for.
const AWAITED: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// Rate of these: a time on the wire is known to 5 µs.
const AWAITED_PPS: f64 = 200e3;
/// How long a rule stays, and stays away.
const HOLD: Duration = Duration::from_millis(20);
/// Arrivals that lie further apart belong to different stretches.
const APART: Duration = Duration::from_micros(100);
/// Stretches that are kept: a machine that takes the core away all the time makes as many.
const MOST_STRETCHES: usize = 100_000;

/// Packets that the awaited rule is for.
pub(super) fn traffic() -> Result<Traffic, String> {
    Traffic::of_settings(&[("size", "64"), ("dst_ip", &AWAITED.to_string())])
}

/// Makes rule after rule with a barrier behind each; then makes and takes out one again and again while packets for it are sent.
pub(super) fn measure(
    plant: &mut Plant,
    rig: &Rig<'_>,
    to: u32,
    (order, lengths): (Order, &Lengths),
    stop: &AtomicBool,
) -> Result<Seen, Failed> {
    let most = lengths.insertions.min(u32::from(u16::MAX) - 1);
    let controller = plant.controller()?;
    let mut barrier_ns = Vec::new();
    for number in 0..most {
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Stopped);
        }
        let rule = Rule {
            priority: priority(order, number, most),
            ..rules::rule(Matching::Exact, number, to)
        };
        controller.rule(Change::Add, &rule);
        let begun = ticks();
        controller.barrier()?;
        barrier_ns.push(rig.clock.to_ns(ticks() - begun));
    }
    let awaited = Rule {
        priority: priority(order, most, most),
        cookie: u64::from(most),
        asked: Asked {
            in_port: Some(WEST),
            ip_dst: Some((AWAITED, 32)),
            udp_dst: None,
        },
        meter: None,
        actions: vec![Action::Output(to)],
    };
    let Watched { changes, stretches } = on_wire(plant, rig.clock, awaited, lengths.on_wire)?;
    let (mut appeared_ns, mut vanished_ns, mut unseen) = (Vec::new(), Vec::new(), 0);
    for (at, change) in changes.iter().enumerate() {
        let next = changes.get(at + 1).map_or(u64::MAX, |it| it.added);
        match seen(change, next, &stretches) {
            Some([appeared, vanished]) => {
                appeared_ns.push(rig.clock.to_ns(appeared));
                vanished_ns.push(rig.clock.to_ns(vanished));
            }
            None => unseen += 1,
        }
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failed::Stopped);
    }
    Ok(Seen::Insertion {
        barrier_ns,
        appeared_ns,
        vanished_ns,
        unseen,
    })
}

/// Priority of the rule of this number, counted from 0, of so many and one more.
fn priority(order: Order, number: u32, most: u32) -> u16 {
    let priority = match order {
        Order::Increasing => number + 1,
        Order::Decreasing => most - number + 1,
        Order::Equal => 100,
    };
    priority as u16
}

/// When a rule was told to the switch, and when that it is to go.
#[derive(Debug, Clone, Copy)]
struct Changed {
    added: u64,
    deleted: u64,
}

/// Ticks from the message to the first packet that obeys a rule, and from the message that it is to go to the last one. None if no
/// packet came, or some came before.
fn seen(change: &Changed, next: u64, stretches: &[(u64, u64)]) -> Option<[u64; 2]> {
    let Changed { added, deleted } = *change;
    let is_early = |(first, last): &(u64, u64)| *first < added && *last > added;
    if stretches.iter().any(is_early) {
        return None;
    }
    let (first, _) = stretches.iter().find(|(first, _)| *first >= added)?;
    if *first >= deleted {
        return None;
    }
    let mut ends = stretches.iter().filter(|(first, _)| *first < next);
    let (_, last) = ends.next_back()?;
    Some([first - added, last.saturating_sub(deleted)])
}

/// What was seen of a rule that was made and taken out again and again.
struct Watched {
    changes: Vec<Changed>,
    /// From when to when packets came.
    stretches: Vec<(u64, u64)>,
}

/// Sends packets from this thread while another one makes the rule and takes it out so many times.
fn on_wire(plant: &mut Plant, clock: Clock, rule: Rule, times: u32) -> Result<Watched, Failed> {
    let mut controller = plant.take_controller()?;
    let done = Arc::new(AtomicBool::new(false));
    let (tell, told) = sync_channel(1);
    let is_done = Arc::clone(&done);
    // Not on the generator's core, which is busy.
    let thread = spawn_background("controller", move || {
        let _ = tell.send(change(&mut controller, &rule, times));
        is_done.store(true, Ordering::Relaxed);
    });
    let thread = thread.map_err(|e| Failed::Broken(e.to_string()))?;
    let mut record = Stretches {
        apart_ticks: clock.to_ticks(APART.as_nanos() as f64) as u64,
        seen: Vec::with_capacity(MOST_STRETCHES),
    };
    let trial = Rated {
        rate_pps: AWAITED_PPS,
        // Until the other thread is done.
        duration: HOLD * (8 * times) + Duration::from_secs(60),
    };
    plant.instrument.run(trial, &mut record, &done);
    let _ = thread.join();
    let changes = told
        .recv()
        .map_err(|_| Failed::Broken("the controller's thread ended".to_string()))?;
    Ok(Watched {
        changes: changes?,
        stretches: record.seen,
    })
}

fn change(controller: &mut Controller, rule: &Rule, times: u32) -> Result<Vec<Changed>, Failed> {
    let mut changes = Vec::new();
    std::thread::sleep(HOLD);
    for _ in 0..times {
        let added = ticks();
        controller.rule(Change::Add, rule);
        controller.barrier()?;
        std::thread::sleep(HOLD);
        let deleted = ticks();
        controller.rule(Change::Delete, rule);
        controller.barrier()?;
        std::thread::sleep(HOLD);
        changes.push(Changed { added, deleted });
    }
    Ok(changes)
}

/// Record of when packets came: from the first to the last of each stretch without a longer pause, ticks.
struct Stretches {
    apart_ticks: u64,
    seen: Vec<(u64, u64)>,
}

impl Record for Stretches {
    #[inline(always)]
    fn sent(&mut self, _: u64, _: u64, _: u64) {}

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, _: u64, _: u64, _: u64) {
        let now = ticks();
        if let Some((_, last)) = self.seen.last_mut()
            && now - *last < self.apart_ticks
        {
            *last = now;
        } else if self.seen.len() < MOST_STRETCHES {
            self.seen.push((now, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_the_wire_are_those_of_the_first_and_the_last_packet() {
        let changes = [
            Changed {
                added: 1_000,
                deleted: 2_000,
            },
            Changed {
                added: 3_000,
                deleted: 4_000,
            },
        ];
        // The second stretch is what an interruption of the generator leaves of the first.
        let stretches = [(1_040, 1_500), (1_700, 2_030), (3_010, 3_990)];
        assert_eq!(seen(&changes[0], 3_000, &stretches), Some([40, 30]));
        // The last packet came before it was told: the rule was gone at once.
        assert_eq!(seen(&changes[1], u64::MAX, &stretches), Some([10, 0]));
    }

    #[test]
    fn a_rule_that_no_packet_obeyed_in_time_has_no_times() {
        let change = Changed {
            added: 1_000,
            deleted: 2_000,
        };
        assert_eq!(seen(&change, 3_000, &[]), None);
        assert_eq!(seen(&change, 3_000, &[(2_500, 2_600)]), None);
        assert_eq!(seen(&change, 3_000, &[(900, 1_900)]), None);
    }

    #[test]
    fn priorities_rise_fall_or_stay() {
        let of = |order| [0, 1, 2].map(|number| priority(order, number, 2));
        assert_eq!(of(Order::Increasing), [1, 2, 3]);
        assert_eq!(of(Order::Decreasing), [3, 2, 1]);
        assert_eq!(of(Order::Equal), [100, 100, 100]);
    }
}
