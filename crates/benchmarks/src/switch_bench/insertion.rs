//! The time that a switch needs to add, modify or delete a rule: until the barrier reply, and until packets obey the
//! change. The *observed rule* is one rule that is changed many times while the generator sends packets for it.

use super::keeper::Keeper;
use super::openflow::{Action, Asked, Change, Rule};
use super::outcome::{OnWire, Seen};
use super::part::{Lengths, Matching, Order};
use super::plant::Plant;
use super::rules;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use taut_bench::benchmark::{Failed, Rig};
use taut_sys::{Clock, spawn_background, ticks};
use taut_traffic::{Stretches, Traffic, Trial as Rated};

/// Destination address of the packets that match the observed rule.
const AWAITED: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// Rate of the packets that match the observed rule, which gives a resolution of 5 µs.
const AWAITED_PPS: f64 = 200e3;
/// Time between two changes of the observed rule, and thus also the time for which the rule stays deleted.
const HOLD: Duration = Duration::from_millis(20);
/// Minimum time without a received packet that separates two periods of arrivals.
const APART: Duration = Duration::from_micros(100);
/// Maximum number of stored arrival periods; a period lasts from one interruption of the machine to the next.
const MOST_STRETCHES: usize = 100_000;

/// Returns packets for the observed rule.
pub(super) fn traffic() -> Result<Traffic, String> {
    Traffic::of_settings(&[("size", "64"), ("dst_ip", &AWAITED.to_string())])
}

/// Adds many rules, modifies each, and deletes each, with a barrier after every change. Before these rules are deleted,
/// the observed rule is changed many times while packets for it are sent.
pub(super) fn measure(
    plant: &mut Plant,
    rig: &Rig<'_>,
    [from, to]: [u32; 2],
    (order, lengths): (Order, &Lengths),
    stop: &AtomicBool,
) -> Result<Seen, Failed> {
    let most = lengths.insertions.min(u32::from(u16::MAX) - 1);
    let all = |number: u32| Rule {
        priority: priority(order, number, most),
        ..rules::rule(Matching::Exact, number, [from, to])
    };
    let timed = |plant: &mut Plant, change: Change, rule: &dyn Fn(u32) -> Rule| {
        let controller = plant.controller()?;
        let mut barrier_ns = Vec::new();
        for number in 0..most {
            if stop.load(Ordering::Relaxed) {
                return Err(Failed::Stopped);
            }
            controller.queue(change, &rule(number))?;
            let begun = ticks();
            controller.confirm()?;
            barrier_ns.push(rig.clock.to_ns(ticks() - begun));
        }
        Ok(barrier_ns)
    };
    let dropping = |number: u32| Rule {
        actions: Vec::new(),
        ..all(number)
    };
    let made = timed(plant, Change::Add, &all)?;
    let modified = timed(plant, Change::Modify, &dropping)?;
    let awaited = observed_rule(priority(order, most, most), most.into(), [from, to]);
    let watched = on_wire(plant, rig.clock, awaited, lengths.on_wire)?;
    let deleted = timed(plant, Change::Delete, &all)?;
    let ([of_made, of_modified, of_deleted], unseen) = activation_times(&watched, rig.clock);
    if stop.load(Ordering::Relaxed) {
        return Err(Failed::Stopped);
    }
    Ok(Seen::Insertion {
        barrier_ns: [made, modified, deleted],
        made: of_made,
        modified: of_modified,
        deleted: of_deleted,
        unseen,
    })
}

/// Returns the observed rule. It forwards packets that enter through port `from` to port `to`.
fn observed_rule(priority: u16, cookie: u64, [from, to]: [u32; 2]) -> Rule {
    Rule {
        priority,
        cookie,
        asked: Asked {
            in_port: Some(from),
            ip_dst: Some((AWAITED, 32)),
            udp_dst: None,
        },
        meter: None,
        actions: vec![Action::Output(to)],
    }
}

/// Returns the priority of rule `number` (counted from 0) among `most` rules and the observed rule.
fn priority(order: Order, number: u32, most: u32) -> u16 {
    let priority = match order {
        Order::Increasing => number + 1,
        Order::Decreasing => most - number + 1,
        Order::Equal => 100,
    };
    priority as u16
}

/// The kind of a change of the observed rule, in the order in which the changes are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The observed rule is added, and forwards the packets.
    Made,
    /// The observed rule is modified to drop the packets.
    Silenced,
    /// The observed rule is modified to forward the packets again.
    Modified,
    /// The observed rule is deleted.
    Deleted,
}

/// A change of a rule, with the times of its message and of the reply to its barrier, in clock cycles.
#[derive(Debug, Clone, Copy)]
struct Changed {
    kind: Kind,
    told: u64,
    answered: u64,
}

/// Returns the cycles from a change's message to the first packet that obeys the change. If the rule stops forwarding,
/// the result is the cycles to the last packet that is forwarded; it is 0 if that packet arrived before the message.
/// The result is none if no packet arrived before the next change. For a rule that starts forwarding, it is also none
/// if a period of arrivals began before the message and lasted beyond it.
fn obeyed(change: &Changed, next: u64, stretches: &[(u64, u64)]) -> Option<u64> {
    let told = change.told;
    if matches!(change.kind, Kind::Silenced | Kind::Deleted) {
        // The rule forwarded packets before, so the last packet shows when it stopped.
        let (_, last) = stretches.iter().rfind(|(first, _)| *first < next)?;
        return Some(last.saturating_sub(told));
    }
    let is_early = |(first, last): &(u64, u64)| *first < told && *last > told;
    if stretches.iter().any(is_early) {
        return None;
    }
    let (first, _) = stretches.iter().find(|(first, _)| *first >= told)?;
    (*first < next).then(|| first - told)
}

/// Returns the times until packets obey the changes: of added, modified and deleted rules. Also returns the number of
/// changes whose effect was not observed.
fn activation_times(watched: &Watched, clock: Clock) -> ([OnWire; 3], u32) {
    let Watched { changes, stretches } = watched;
    let mut seen: [OnWire; 3] = Default::default();
    let mut unseen = 0;
    for (at, change) in changes.iter().enumerate() {
        let next = changes.get(at + 1).map_or(u64::MAX, |it| it.told);
        let on_wire = match change.kind {
            Kind::Made => &mut seen[0],
            Kind::Modified => &mut seen[1],
            Kind::Deleted => &mut seen[2],
            Kind::Silenced => continue,
        };
        match obeyed(change, next, stretches) {
            Some(wire) => {
                on_wire.wire_ns.push(clock.to_ns(wire));
                let barrier = change.answered.saturating_sub(change.told);
                on_wire.barrier_ns.push(clock.to_ns(barrier));
            }
            None => unseen += 1,
        }
    }
    (seen, unseen)
}

/// The observations of a rule that was changed many times: arrivals of its packets, and the changes.
struct Watched {
    changes: Vec<Changed>,
    /// Start and end of each period in which packets arrived, in clock cycles.
    stretches: Vec<(u64, u64)>,
}

/// Sends packets from this thread while another thread adds, modifies and deletes the rule `times` times.
fn on_wire(plant: &mut Plant, clock: Clock, rule: Rule, times: u32) -> Result<Watched, Failed> {
    let mut controller = plant.take_controller()?;
    let done = Arc::new(AtomicBool::new(false));
    let (tell, told) = sync_channel(1);
    let is_done = Arc::clone(&done);
    // The generator's core is busy with sending, so the thread of the controller runs on another core.
    let thread = spawn_background("controller", move || {
        let changed = change(&mut controller, &rule, times);
        let _ = tell.send((changed, controller));
        is_done.store(true, Ordering::Relaxed);
    });
    let thread = thread.map_err(|e| Failed::Broken(e.to_string()))?;
    let mut record = Stretches::new(&clock, APART, MOST_STRETCHES);
    let trial = Rated {
        rate_pps: AWAITED_PPS,
        // The other thread ends the trial before this limit.
        duration: HOLD * (8 * times) + Duration::from_secs(60),
    };
    plant.instrument.run(trial, &mut record, &done);
    let _ = thread.join();
    let (changes, controller) = told
        .recv()
        .map_err(|_| Failed::Broken("the controller's thread ended".to_string()))?;
    plant.give_controller(controller);
    Ok(Watched {
        changes: changes?,
        stretches: record.into_seen(),
    })
}

fn change(controller: &mut Keeper, rule: &Rule, times: u32) -> Result<Vec<Changed>, Failed> {
    let silent = Rule {
        actions: Vec::new(),
        ..rule.clone()
    };
    let mut changes = Vec::new();
    std::thread::sleep(HOLD);
    for _ in 0..times {
        for (kind, change, rule) in [
            (Kind::Made, Change::Add, rule),
            (Kind::Silenced, Change::Modify, &silent),
            (Kind::Modified, Change::Modify, rule),
            (Kind::Deleted, Change::Delete, rule),
        ] {
            let told = ticks();
            controller.queue(change, rule)?;
            controller.confirm()?;
            changes.push(Changed {
                kind,
                told,
                answered: ticks(),
            });
            std::thread::sleep(HOLD);
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(kind: Kind, told: u64) -> Changed {
        Changed {
            kind,
            told,
            answered: told + 5,
        }
    }

    #[test]
    fn activation_times_derive_from_the_first_and_the_last_packet() {
        // The first period is split in two by an interruption of the generator.
        let stretches = [(1_040, 1_500), (1_700, 2_030), (3_010, 3_990)];
        let of = |kind, told, next| obeyed(&changed(kind, told), next, &stretches);
        assert_eq!(of(Kind::Made, 1_000, 2_000), Some(40));
        assert_eq!(of(Kind::Silenced, 2_000, 3_000), Some(30));
        assert_eq!(of(Kind::Modified, 3_000, 4_000), Some(10));
        // The last packet arrived before the message, so the time is zero.
        assert_eq!(of(Kind::Deleted, 4_000, u64::MAX), Some(0));
    }

    #[test]
    fn a_flow_entry_without_timely_packets_has_no_activation_time() {
        let made = changed(Kind::Made, 1_000);
        assert_eq!(obeyed(&made, 3_000, &[]), None);
        assert_eq!(obeyed(&made, 2_000, &[(2_500, 2_600)]), None);
        assert_eq!(obeyed(&made, 3_000, &[(900, 1_900)]), None);
        assert_eq!(obeyed(&changed(Kind::Deleted, 1_000), 3_000, &[]), None);
    }

    #[test]
    fn rule_priorities_increase_decrease_or_stay_equal_as_configured() {
        let of = |order| [0, 1, 2].map(|number| priority(order, number, 2));
        assert_eq!(of(Order::Increasing), [1, 2, 3]);
        assert_eq!(of(Order::Decreasing), [3, 2, 1]);
        assert_eq!(of(Order::Equal), [100, 100, 100]);
    }
}
