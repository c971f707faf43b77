//! Idle time of a worker: after an iteration without packets, whether the worker sleeps, for how long, and what wakes
//! it.

use crate::lanes::Lanes;
use crate::outbox::Outbox;
use crate::time::Time;
use crate::wait::{BEFORE_SLEEP, LONGEST_INTERRUPT_SLEEP, Wait};
use std::time::Duration;
use taut_function::Function;
use taut_port::Port;
use taut_sys::{Alarm, Clock};

/// A [`Wait`] policy, with times in cycles, and the worker's state in it.
pub(crate) struct Idle {
    policy: Policy,
    clock: Clock,
    time: Time,
    before_sleep_ticks: u64,
    /// Time, cycles, of the later of two events: the worker last had packets, or last woke up.
    looks_since_ticks: u64,
    /// Number of sleeps; `asleep_ticks` is the number of cycles spent in them.
    pub(crate) sleeps: u64,
    pub(crate) asleep_ticks: u64,
}

enum Policy {
    Poll,
    Yield,
    Sleep {
        at_most_ticks: u64,
        late: Lateness,
    },
    Interrupt {
        alarm: Alarm,
        /// True if ports and functions are prepared to wake the worker (armed), and the following iteration has not
        /// ended yet.
        armed: bool,
    },
}

impl Idle {
    pub(crate) fn new(wait: Wait, clock: &Clock, time: Time) -> Self {
        let in_ticks = |t: Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let mut before_sleep = BEFORE_SLEEP;
        let policy = match wait {
            Wait::Poll => Policy::Poll,
            Wait::Yield => Policy::Yield,
            Wait::Sleep { at_most } => {
                before_sleep = before_sleep.min(at_most);
                Policy::Sleep {
                    at_most_ticks: in_ticks(at_most),
                    late: Lateness::default(),
                }
            }
            Wait::Interrupt => Policy::Interrupt {
                alarm: Alarm::default(),
                armed: false,
            },
        };
        Self {
            policy,
            clock: *clock,
            time,
            before_sleep_ticks: in_ticks(before_sleep),
            looks_since_ticks: (time.now)(),
            sleeps: 0,
            asleep_ticks: 0,
        }
    }

    /// Prepares the worker's thread before its first iteration.
    pub(crate) fn begin(&mut self) {
        if !matches!(self.policy, Policy::Poll) {
            // Otherwise another task on the core would finish a time slice of milliseconds before the worker gets a
            // packet.
            taut_sys::request_short_slices();
        }
        if matches!(self.policy, Policy::Sleep { .. }) {
            // By default the kernel may end sleeps 50 us late (timer slack). If this call fails, that delay is learnt
            // as lateness.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        }
    }

    /// Sleeps or yields the core after an iteration that ended at `now_ticks`, if the policy requires it. Returns the
    /// start of the next iteration; if that is later than `now_ticks`, the worker was idle in between on purpose.
    #[inline(always)]
    pub(crate) fn after_round(
        &mut self,
        had_packets: bool,
        now_ticks: u64,
        ports: &mut [Box<dyn Port>],
        functions: &mut [Box<dyn Function>],
        lanes: &mut Lanes,
        outboxes: &[Outbox],
    ) -> u64 {
        if matches!(self.policy, Policy::Poll) {
            return now_ticks;
        }
        self.rest(had_packets, now_ticks, ports, functions, lanes, outboxes)
    }

    #[inline(never)]
    fn rest(
        &mut self,
        had_packets: bool,
        now_ticks: u64,
        ports: &mut [Box<dyn Port>],
        functions: &mut [Box<dyn Function>],
        lanes: &mut Lanes,
        outboxes: &[Outbox],
    ) -> u64 {
        if had_packets {
            self.looks_since_ticks = now_ticks;
            self.disarm(ports, functions, lanes);
            return now_ticks;
        }
        let looked_ticks = now_ticks.wrapping_sub(self.looks_since_ticks);
        match &mut self.policy {
            Policy::Poll => return now_ticks,
            Policy::Yield => {
                (self.time.make_way)();
                return (self.time.now)();
            }
            _ if looked_ticks < self.before_sleep_ticks => return now_ticks,
            Policy::Sleep {
                at_most_ticks,
                late,
            } => {
                let left_ticks = until_flush(now_ticks, outboxes).unwrap_or(u64::MAX);
                let Some(asked_ticks) = late.time_to_ask_for(*at_most_ticks, left_ticks) else {
                    (self.time.make_way)();
                    return (self.time.now)();
                };
                (self.time.sleep)(nanoseconds(&self.clock, asked_ticks));
                let awake_ticks = (self.time.now)();
                let slept_ticks = awake_ticks.wrapping_sub(now_ticks);
                late.learn(slept_ticks.saturating_sub(asked_ticks), *at_most_ticks);
            }
            Policy::Interrupt { alarm, armed } => {
                let until_flush = until_flush(now_ticks, outboxes);
                if until_flush == Some(0) {
                    return now_ticks;
                }
                if !*armed {
                    alarm.clear();
                    *armed = true;
                    let ready = ports.iter_mut().all(|port| port.arm(alarm))
                        && functions.iter_mut().all(|function| function.arm(alarm))
                        && lanes.arm(alarm);
                    if !ready {
                        self.looks_since_ticks = now_ticks;
                        self.disarm(ports, functions, lanes);
                    }
                    // One more iteration finds the packets that arrived before the ports were armed.
                    return now_ticks;
                }
                let flush = until_flush.map(|t| nanoseconds(&self.clock, t));
                alarm.wait(
                    flush.map_or(LONGEST_INTERRUPT_SLEEP, |t| t.min(LONGEST_INTERRUPT_SLEEP)),
                );
                self.disarm(ports, functions, lanes);
            }
        }
        let awake_ticks = (self.time.now)();
        self.sleeps += 1;
        self.asleep_ticks += awake_ticks.wrapping_sub(now_ticks);
        awake_ticks
    }

    fn disarm(
        &mut self,
        ports: &mut [Box<dyn Port>],
        functions: &mut [Box<dyn Function>],
        lanes: &mut Lanes,
    ) {
        if let Policy::Interrupt { armed, .. } = &mut self.policy
            && *armed
        {
            *armed = false;
            ports.iter_mut().for_each(|port| port.disarm());
            functions.iter_mut().for_each(|function| function.disarm());
            lanes.disarm();
        }
    }
}

/// Returns the cycles until the first transmit buffer has to be flushed; None if all are empty.
fn until_flush(now_ticks: u64, outboxes: &[Outbox]) -> Option<u64> {
    let waits = outboxes
        .iter()
        .filter_map(|outbox| outbox.due_in(now_ticks));
    waits.min()
}

fn nanoseconds(clock: &Clock, ticks: u64) -> Duration {
    Duration::from_nanos(clock.to_ns(ticks) as u64)
}

/// The initial and the maximum number of iterations before a sleep is tried again, on a machine that wakes up later
/// than the policy allows. Each such attempt may take a millisecond.
const LOOKS_BEFORE_NEXT_TRY: (u32, u32) = (512, 1 << 15);

/// An estimate of how much longer sleeps take than requested. The estimate rises fast and falls slowly, so that few
/// sleeps exceed it.
#[derive(Debug)]
struct Lateness {
    ticks: u64,
    /// Number of iterations until a sleep is tried again, if the machine wakes up too late for any sleep.
    looks_left: u32,
    /// Number of iterations between the last two sleeps. The number doubles each time a sleep ends late again.
    looks_before: u32,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            ticks: 0,
            looks_left: LOOKS_BEFORE_NEXT_TRY.0,
            looks_before: LOOKS_BEFORE_NEXT_TRY.0,
        }
    }
}

impl Lateness {
    /// Returns the duration to request for a sleep. The sleep must end within both limits: `at_most_ticks`, which the
    /// policy sets, and `left_ticks`, after which a flush is due. Returns None if the machine wakes up too late for
    /// that.
    fn time_to_ask_for(&mut self, at_most_ticks: u64, left_ticks: u64) -> Option<u64> {
        let shortest = at_most_ticks / 16;
        let enough = |ticks: &u64| *ticks > shortest;
        let longest = Some(at_most_ticks.saturating_sub(self.ticks)).filter(enough);
        if longest.is_none() {
            self.looks_left -= 1;
            if self.looks_left == 0 {
                self.looks_before = (self.looks_before * 2).min(LOOKS_BEFORE_NEXT_TRY.1);
                self.looks_left = self.looks_before;
                self.ticks = at_most_ticks.saturating_sub(shortest + 1);
            }
        }
        let before_flush = left_ticks.saturating_sub(self.ticks);
        longest.map(|t| t.min(before_flush)).filter(enough)
    }

    fn learn(&mut self, late_ticks: u64, at_most_ticks: u64) {
        // A single outlier says little about the next sleep, so its effect is limited.
        let late_ticks = late_ticks.min(at_most_ticks);
        if late_ticks > self.ticks {
            self.ticks += (late_ticks - self.ticks).div_ceil(2);
        } else {
            self.ticks -= (self.ticks - late_ticks) / 256;
            self.looks_before = LOOKS_BEFORE_NEXT_TRY.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::made_up;

    /// Simulates sleeps that end late by `late`, and packets that arrive randomly, with at most `gap` between two
    /// packets. Returns the number of sleeps, and the waiting time of each packet, sorted.
    fn waits(at_most: Duration, late: Duration, gap: Duration) -> (u64, Vec<u64>) {
        let time = made_up::time();
        made_up::wake_late(late);
        let mut idle = Idle::new(Wait::Sleep { at_most }, &made_up::CLOCK, time);
        let mut seed = fastrand::Rng::with_seed(3);
        let mut due = std::iter::repeat_with(|| seed.u64(0..gap.as_nanos() as u64));
        let mut next = (time.now)() + due.next().unwrap_or_default();
        let mut waits = Vec::new();
        while waits.len() < 1_000 {
            // An iteration takes a microsecond.
            made_up::pass(Duration::from_micros(1));
            let now = (time.now)();
            let has_come = now >= next;
            if has_come {
                waits.push(now - next);
                next = now + due.next().unwrap_or_default();
            }
            idle.after_round(has_come, now, &mut [], &mut [], &mut Lanes::default(), &[]);
        }
        waits.sort_unstable();
        (idle.sleeps, waits)
    }

    #[test]
    fn no_packet_waits_longer_than_the_configured_sleep_time() {
        let most = Duration::from_millis(10);
        for late in [Duration::ZERO, Duration::from_micros(60)] {
            let (sleeps, waits) = waits(most, late, 3 * most);
            assert!(sleeps > 1_000, "{sleeps}");
            // The worker learns the lateness from its first sleeps.
            let longest = waits[waits.len() - 3];
            assert!(longest <= most.as_nanos() as u64, "{longest}");
            assert!(
                longest > most.as_nanos() as u64 / 2,
                "it hardly slept: {longest}"
            );
        }
    }

    #[test]
    fn a_worker_hardly_sleeps_when_wakeups_are_late() {
        let [short, ms] = [50, 1000].map(Duration::from_micros);
        let (sleeps, waits) = waits(short, ms, 5 * ms);
        let late = waits.iter().filter(|wait| **wait > 50_000).count();
        assert!(late < waits.len() / 10, "{late} of {}", waits.len());
        assert!(sleeps > 1, "it is tried again");
    }

    #[test]
    fn most_sleeps_end_in_time_once_wakeup_lateness_is_measured() {
        let mut seed = fastrand::Rng::with_seed(5);
        let (mut late, mut too_long, mut slept) = (Lateness::default(), 0, 0);
        for sleep in 0..20_000 {
            let Some(asked) = late.time_to_ask_for(50_000, u64::MAX) else {
                continue;
            };
            // Measured on a virtual machine: 15 to 35 us, and occasionally ten times that.
            let by = seed.u64(15_000..35_000) * if seed.u8(..) == 0 { 10 } else { 1 };
            late.learn(by, 50_000);
            if sleep > 1_000 {
                slept += 1;
                too_long += u32::from(asked + by > 50_000);
            }
        }
        assert!(slept > 10_000, "{slept}");
        assert!(too_long < slept / 5, "{too_long} of {slept}");
    }

    #[test]
    fn after_late_wakeups_a_worker_rarely_tries_to_sleep() {
        let mut late = Lateness::default();
        let mut asked = Vec::new();
        for round in 0..100_000 {
            if late.time_to_ask_for(10_000, u64::MAX).is_some() {
                asked.push(round);
                late.learn(40_000, 10_000);
            }
        }
        // The worker sleeps a few times to learn the lateness, then once in hundreds of iterations.
        assert!((3..1_000).contains(&asked.len()), "{}", asked.len());
        assert!(asked.last() > Some(&90_000), "never asked again");
    }

    #[test]
    fn a_sleep_ends_before_a_flush_is_due() {
        let mut late = Lateness {
            ticks: 1_000,
            ..Lateness::default()
        };
        assert_eq!(late.time_to_ask_for(50_000, 20_000), Some(19_000));
        assert_eq!(late.time_to_ask_for(50_000, 2_000), None);
        assert_eq!(late.time_to_ask_for(50_000, 0), None);
        assert_eq!(late.ticks, 1_000);
    }
}
