//! Causes of gaps in a busy loop: the kernel event of each gap, and the total of each cause.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_sys::{Clock, Interruption};

use super::trace::{Event, What};

/// The name for the cause of unexplained gaps.
const UNEXPLAINED: &str = "unexplained";
/// Maximum time that entering and leaving the kernel takes, ns. A gap is attributed to the levels below the kernel
/// (hypervisor, firmware) if the kernel was inactive for longer than this, and for more than half of the gap.
const ENTRY_NS: f64 = 20_000.0;

/// A gap: a time in which the measuring loop did not run.
#[derive(Debug, Clone, PartialEq)]
pub struct Gap {
    /// The start of the gap on `CLOCK_MONOTONIC`, ns.
    pub start_ns: u64,
    /// The length of the gap, ns.
    pub length_ns: f64,
    /// The name of the kernel event, task or other cause of the gap.
    pub cause: String,
}

/// Statistics of all gaps that have the same cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// The name of the cause, such as that of a kernel event or a task.
    pub name: String,
    /// The number of gaps with this cause.
    pub count: u64,
    /// The number of gaps with this cause per second.
    pub per_second: f64,
    /// The median length of the gaps with this cause, ns.
    pub median_ns: f64,
    /// The length of the longest gap with this cause, ns.
    pub longest_ns: f64,
    /// The fraction of the time lost in all gaps that the gaps with this cause took, 0 to 1.
    pub share_of_lost: f64,
}

/// The gaps whose length is in one range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bin {
    /// The lower limit of the range, ns.
    pub from_ns: f64,
    /// The upper limit of the range, ns, which is not included.
    pub to_ns: f64,
    /// The number of gaps with a length in the range.
    pub count: u64,
}

/// The fractions of the stored gaps (times in which the measuring loop did not run) that have a known cause, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explained {
    /// The gaps with a known cause, as a fraction of the total length of all gaps.
    pub share_of_time: f64,
    /// The gaps with a known cause, as a fraction of the number of all gaps.
    pub share_of_gaps: f64,
}

/// Finds the causes of successive gaps.
pub(super) struct Causes<'a> {
    events: Option<&'a [Event]>,
    /// The index of the first event that may be in the next gap.
    next: usize,
    any_lost: bool,
    below: &'a str,
}

impl<'a> Causes<'a> {
    pub fn new(events: Option<&'a [Event]>, below: &'a str) -> Self {
        Self {
            events,
            next: 0,
            any_lost: events.is_some_and(|all| all.iter().any(|event| event.what == What::Lost)),
            below,
        }
    }

    /// Returns the cause of `gap`. Gaps have to be passed in the order of their start times.
    pub fn of(&mut self, gap: &Interruption, clock: &Clock) -> String {
        let Some(events) = self.events else {
            return UNEXPLAINED.to_owned();
        };
        let end = gap.start_ticks + gap.length_ticks;
        while events
            .get(self.next)
            .is_some_and(|event| event.ticks < gap.start_ticks)
        {
            self.next += 1;
        }
        let rest = &events[self.next..];
        let inside = rest.iter().take_while(|event| event.ticks <= end).count();
        let (covered, longest) = spans(&rest[..inside], end);
        self.next += inside;
        let length_ns = clock.to_ns(gap.length_ticks);
        let outside_ns = length_ns - clock.to_ns(covered);
        match longest {
            Some(name) if outside_ns < ENTRY_NS || outside_ns < length_ns / 2.0 => name,
            Some(name) => format!("{name}, mostly {}", self.below),
            None if self.any_lost => UNEXPLAINED.to_owned(),
            None => format!("{} (no event in the kernel)", self.below),
        }
    }
}

/// Returns how many ticks of a gap the kernel or other tasks used, and the name of the event or task that used most.
/// The time of a nested event is not part of the outer event's time, so that the parts add up.
fn spans(events: &[Event], end: u64) -> (u64, Option<String>) {
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    let mut open: Vec<String> = Vec::new();
    let mut task: Option<String> = None;
    let (mut covered, mut last) = (0, events.first().map_or(end, |event| event.ticks));
    let mut pass = |until: u64, last: &mut u64, open: &[String], task: &Option<String>| {
        let ticks = until.saturating_sub(*last);
        *last = until;
        if let Some(name) = open.last().or(task.as_ref()) {
            covered += ticks;
            *own.entry(name.clone()).or_default() += ticks;
        }
    };
    for event in events {
        pass(event.ticks, &mut last, &open, &task);
        match &event.what {
            What::Entry(name) => open.push(name.clone()),
            What::Exit => {
                open.pop();
            }
            // The trace has no end of such an event. The event lasts at least as long as its own tracing.
            What::Moment(name) if open.is_empty() && task.is_none() => open.push(name.clone()),
            What::Moment(_) | What::Lost => {}
            // The scheduler switches to the loop's own thread or to another task, which ends the events before.
            What::Switch(name) => {
                open.clear();
                task = (name != OWN_TASK).then(|| name.clone());
            }
        }
    }
    pass(end, &mut last, &open, &task);
    let longest = own.into_iter().max_by_key(|(_, ticks)| *ticks);
    (covered, longest.map(|(name, _)| name))
}

/// The name of the loop's thread, as set by [`super::listen`].
const OWN_TASK: &str = "task taut-noise";

/// Returns the causes of gaps, the largest fraction of lost time first.
pub(super) fn sum_up(gaps: &[Gap], seconds: f64) -> Vec<Cause> {
    let mut lengths: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for gap in gaps {
        lengths.entry(&gap.cause).or_default().push(gap.length_ns);
    }
    let lost: f64 = gaps.iter().map(|gap| gap.length_ns).sum();
    let mut causes: Vec<Cause> = lengths
        .into_iter()
        .map(|(name, mut lengths)| {
            lengths.sort_by(f64::total_cmp);
            Cause {
                name: name.to_owned(),
                count: lengths.len() as u64,
                per_second: lengths.len() as f64 / seconds.max(1e-9),
                median_ns: lengths[lengths.len() / 2],
                longest_ns: lengths.last().copied().unwrap_or(0.0),
                share_of_lost: lengths.iter().sum::<f64>() / lost.max(1.0),
            }
        })
        .collect();
    causes.sort_by(|a, b| b.share_of_lost.total_cmp(&a.share_of_lost));
    causes
}

/// Returns the number of gaps per range of lengths, shortest first. The limits of the ranges are powers of two of a
/// microsecond.
pub(super) fn histogram(gaps: &[Gap]) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    for gap in gaps {
        while bins.last().is_none_or(|bin| gap.length_ns >= bin.to_ns) {
            let from_ns = bins.last().map_or(1e3, |bin| bin.to_ns);
            bins.push(Bin {
                from_ns,
                to_ns: from_ns * 2.0,
                count: 0,
            });
        }
        if let Some(bin) = bins
            .iter_mut()
            .rev()
            .find(|bin| gap.length_ns >= bin.from_ns)
        {
            bin.count += 1;
        }
    }
    bins
}

/// Returns the fractions of the lost time and of the number of gaps that have a known cause.
pub(super) fn explained(gaps: &[Gap]) -> Explained {
    let known = || gaps.iter().filter(|gap| gap.cause != UNEXPLAINED);
    let time = |gaps: &mut dyn Iterator<Item = &Gap>| gaps.map(|gap| gap.length_ns).sum::<f64>();
    Explained {
        share_of_time: time(&mut known()) / time(&mut gaps.iter()).max(1.0),
        share_of_gaps: known().count() as f64 / gaps.len().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW: &str = "hypervisor";

    fn clock() -> Clock {
        Clock {
            hz: 1e9,
            error_ppm: 0.0,
        }
    }

    fn entry(ticks: u64, name: &str) -> Event {
        let what = What::Entry(name.to_owned());
        Event { ticks, what }
    }

    fn exit(ticks: u64) -> Event {
        let what = What::Exit;
        Event { ticks, what }
    }

    fn switch(ticks: u64, name: &str) -> Event {
        let what = What::Switch(name.to_owned());
        Event { ticks, what }
    }

    fn gap(start_ticks: u64, length_ticks: u64) -> Interruption {
        Interruption {
            start_ticks,
            length_ticks,
        }
    }

    #[test]
    fn a_noise_gap_is_attributed_to_its_longest_kernel_event() {
        let events = [
            entry(1_000, "timer"),
            exit(3_000),
            entry(3_100, "soft"),
            exit(4_000),
            entry(20_000, "disk"),
            exit(22_000),
            switch(40_000, "task cc"),
            entry(41_000, "timer"),
            exit(42_000),
            switch(60_000, OWN_TASK),
        ];
        let mut causes = Causes::new(Some(&events), BELOW);
        assert_eq!(causes.of(&gap(900, 3_500), &clock()), "timer");
        let below = "hypervisor (no event in the kernel)";
        assert_eq!(causes.of(&gap(10_000, 5_000), &clock()), below);
        assert_eq!(causes.of(&gap(19_000, 4_000), &clock()), "disk");
        assert_eq!(causes.of(&gap(39_500, 21_000), &clock()), "task cc");
    }

    #[test]
    fn interruptions_longer_than_kernel_work_are_attributed_to_the_hypervisor() {
        let events = [entry(1_000, "timer"), exit(3_000)];
        let mut causes = Causes::new(Some(&events), BELOW);
        assert_eq!(
            causes.of(&gap(900, 480_000), &clock()),
            "timer, mostly hypervisor"
        );
    }

    #[test]
    fn an_interruption_without_a_complete_trace_is_unexplained() {
        assert_eq!(
            Causes::new(None, BELOW).of(&gap(0, 5_000), &clock()),
            UNEXPLAINED
        );
        let lost = [Event {
            ticks: 0,
            what: What::Lost,
        }];
        assert_eq!(
            Causes::new(Some(&lost), BELOW).of(&gap(10, 5_000), &clock()),
            UNEXPLAINED
        );
    }

    #[test]
    fn every_noise_gap_counts_in_the_sums_and_the_histogram() {
        let gap = |length_ns: f64, cause: &str| Gap {
            start_ns: 0,
            length_ns,
            cause: cause.to_owned(),
        };
        let gaps = [
            gap(1_500.0, "timer"),
            gap(1_700.0, "timer"),
            gap(9_000.0, UNEXPLAINED),
        ];
        let causes = sum_up(&gaps, 2.0);
        assert_eq!((causes[0].name.as_str(), causes[0].count), (UNEXPLAINED, 1));
        assert_eq!((causes[1].per_second, causes[1].median_ns), (1.0, 1_700.0));
        let bins = histogram(&gaps);
        assert_eq!(
            bins.iter().map(|bin| bin.count).collect::<Vec<_>>(),
            [2, 0, 0, 1]
        );
        let explained = explained(&gaps);
        assert!((explained.share_of_gaps - 2.0 / 3.0).abs() < 1e-9);
        assert!((explained.share_of_time - 3_200.0 / 12_200.0).abs() < 1e-9);
        assert!(sum_up(&[], 1.0).is_empty() && histogram(&[]).is_empty());
    }
}
