//! Interruptions of the core (vacations), which occur regardless of waiting packets: periodic, random and recorded
//! ones. An interruption suspends a packet in service (preemptive resume), and overlapping interruptions are served one
//! after the other, as in `aliasing.rs`.

use std::sync::Arc;

use fastrand::Rng;

use super::exponential::exponential_ns;
use super::moments::ServiceMoments;
use super::service::ServiceTime;
use super::{NS_PER_S, QueueingError};
use crate::estimate::positive;

/// The sources of interruptions, and their rates.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Vacations {
    sources: Vec<Source>,
}

#[derive(Debug, Clone, PartialEq)]
struct Source {
    per_second: f64,
    /// Distribution of the durations of the interruptions that this source causes. If they are replayed from a
    /// recording, it is the distribution of the recorded durations.
    duration: ServiceTime,
    comes: Comes,
}

/// The arrival pattern of one source of interruptions.
#[derive(Debug, Clone, PartialEq)]
enum Comes {
    Periodically,
    AtRandom,
    /// The interruptions of a recording of `span_ns`, which repeats: pairs of start and length in order, ns.
    AsRecorded {
        each: Arc<[(f64, f64)]>,
        span_ns: f64,
    },
}

impl Vacations {
    /// Returns an empty set of interruptions.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns these interruptions plus periodic ones, `per_second` times a second and `duration_ns` each.
    ///
    /// # Errors
    /// A value is not a finite number above zero, or the interruptions take the entire core.
    pub fn with_periodic(self, per_second: f64, duration_ns: f64) -> Result<Self, QueueingError> {
        let duration =
            ServiceTime::constant(positive("the duration of an interruption", duration_ns)?)?;
        self.with(per_second, duration, Comes::Periodically)
    }

    /// Returns these interruptions plus random ones, `per_second` on average, with lengths drawn from `duration`, such
    /// as a list or a histogram of measured lengths.
    ///
    /// # Errors
    /// The rate is not a finite number above zero, or the interruptions take the entire core.
    pub fn with_random(
        self,
        per_second: f64,
        duration: ServiceTime,
    ) -> Result<Self, QueueingError> {
        self.with(per_second, duration, Comes::AtRandom)
    }

    /// Returns these interruptions plus those of a recording of `span_ns`: pairs of start and length in ns, in order.
    /// The recording begins at a random moment and repeats, which preserves clusters and trends. An empty recording has
    /// no effect.
    ///
    /// # Errors
    /// A start is outside of the recording or before the previous one, a length is not above zero, or the interruptions
    /// take the entire core.
    pub fn with_recorded(self, each: &[(f64, f64)], span_ns: f64) -> Result<Self, QueueingError> {
        let span_ns = positive("the length of a recording", span_ns)?;
        if each.is_empty() {
            return Ok(self);
        }
        for (index, &(start_ns, length_ns)) in each.iter().enumerate() {
            let earliest_ns = index.checked_sub(1).map_or(0.0, |before| each[before].0);
            // The comparison is written so that NaN is an error as well.
            if !(earliest_ns <= start_ns && start_ns < span_ns) {
                let what = "starts of interruptions within a recording";
                return Err(QueueingError::Unordered { what, index });
            }
            positive("the duration of an interruption", length_ns)?;
        }
        let lengths: Vec<f64> = each.iter().map(|(_, length_ns)| *length_ns).collect();
        let per_second = each.len() as f64 / span_ns * NS_PER_S;
        let duration = ServiceTime::from_samples(&lengths)?;
        let each = each.into();
        self.with(per_second, duration, Comes::AsRecorded { each, span_ns })
    }

    /// Returns these interruptions plus all interruptions of `others`.
    ///
    /// # Errors
    /// The interruptions take the entire core.
    pub fn with_all_of(self, others: &Self) -> Result<Self, QueueingError> {
        others.sources.iter().try_fold(self, |all, source| {
            all.with(
                source.per_second,
                source.duration.clone(),
                source.comes.clone(),
            )
        })
    }

    /// Returns the share of time in which the core is not interrupted, 0..1. It is one minus the sum over the sources
    /// of rate times mean duration.
    pub fn availability(&self) -> f64 {
        1.0 - self.share()
    }

    /// Returns the interruptions per second of all sources together.
    pub fn per_second(&self) -> f64 {
        self.sources.iter().map(|source| source.per_second).sum()
    }

    /// Returns the moments of the duration of an interruption, over all sources; `None` without interruptions.
    pub fn moments(&self) -> Option<ServiceMoments> {
        let rate = self.per_second();
        (rate > 0.0).then(|| {
            let mean = |of: fn(&ServiceMoments) -> f64| {
                let sum = self
                    .sources
                    .iter()
                    .map(|s| s.per_second * of(&s.duration.moments()));
                sum.sum::<f64>() / rate
            };
            ServiceMoments {
                mean_ns: mean(|m| m.mean_ns),
                second_ns2: mean(|m| m.second_ns2),
                third_ns3: mean(|m| m.third_ns3),
            }
        })
    }

    /// Returns the stream of interruptions for `seed`. Periodic ones begin at a random moment of their period.
    pub fn stream(&self, seed: u64) -> VacationStream {
        self.stream_from(seed, Rng::with_seed(!seed).f64())
    }

    /// Returns the stream in which each recording begins at the fraction `phase` of its length. With equal phases,
    /// cores that were recorded together stay synchronous.
    pub(super) fn stream_from(&self, seed: u64, phase: f64) -> VacationStream {
        let mut rng = Rng::with_seed(seed);
        let clocks = self.sources.iter().map(|source| {
            let period_ns = NS_PER_S / source.per_second;
            let mut clock = Clock {
                next_ns: rng.f64() * period_ns,
                period_ns,
                duration: source.duration.clone(),
                comes: source.comes.clone(),
                place: 0,
                turn_ns: 0.0,
            };
            clock.begin(phase);
            clock
        });
        let clocks = clocks.collect();
        let mut stream = VacationStream {
            clocks,
            rng,
            start_ns: 0.0,
            end_ns: 0.0,
        };
        stream.advance();
        stream
    }

    fn share(&self) -> f64 {
        let taken = |source: &Source| source.per_second * source.duration.mean_ns() / NS_PER_S;
        self.sources.iter().map(taken).sum()
    }

    fn with(
        mut self,
        per_second: f64,
        duration: ServiceTime,
        comes: Comes,
    ) -> Result<Self, QueueingError> {
        positive("interruptions per second", per_second)?;
        self.sources.push(Source {
            per_second,
            duration,
            comes,
        });
        let share = self.share();
        if share < 1.0 {
            Ok(self)
        } else {
            Err(QueueingError::NeverAvailable { share })
        }
    }
}

/// The interruptions of one core in order.
#[derive(Debug, Clone)]
pub struct VacationStream {
    clocks: Vec<Clock>,
    rng: Rng,
    start_ns: f64,
    end_ns: f64,
}

#[derive(Debug, Clone)]
struct Clock {
    next_ns: f64,
    period_ns: f64,
    duration: ServiceTime,
    comes: Comes,
    /// Index of the next interruption in the recording, and start time of the recording's current repetition, ns.
    place: usize,
    turn_ns: f64,
}

impl Clock {
    /// Selects the first interruption of a recording that begins at the fraction `phase` of its length.
    fn begin(&mut self, phase: f64) {
        if let Comes::AsRecorded { each, span_ns } = &self.comes {
            self.turn_ns = -phase * span_ns;
            self.place = each.partition_point(|(start_ns, _)| start_ns + self.turn_ns < 0.0);
            self.find();
        }
    }

    /// Sets `next_ns` to the interruption at the current index of the recording, or to the first of the next
    /// repetition.
    fn find(&mut self) {
        if let Comes::AsRecorded { each, span_ns } = &self.comes {
            if self.place == each.len() {
                self.place = 0;
                self.turn_ns += span_ns;
            }
            self.next_ns = self.turn_ns + each[self.place].0;
        }
    }

    /// Returns the duration of the current interruption, and advances to the next one.
    fn take(&mut self, rng: &mut Rng) -> f64 {
        match &self.comes {
            Comes::Periodically => {
                self.next_ns += self.period_ns;
                self.duration.sample_ns(rng)
            }
            Comes::AtRandom => {
                let length_ns = self.duration.sample_ns(rng);
                self.next_ns += exponential_ns(rng, self.period_ns);
                length_ns
            }
            Comes::AsRecorded { each, .. } => {
                let length_ns = each[self.place].1;
                self.place += 1;
                self.find();
                length_ns
            }
        }
    }
}

impl VacationStream {
    /// Returns the first time at or after `now_ns` at which the core is not interrupted.
    #[inline]
    pub fn available_ns(&mut self, mut now_ns: f64) -> f64 {
        while self.start_ns <= now_ns {
            now_ns = now_ns.max(self.end_ns);
            self.advance();
        }
        now_ns
    }

    /// Returns the time at which work of `work_ns` that begins at `start_ns` is done, including interruptions.
    /// Successive start times must not be earlier than the last returned time.
    #[inline]
    pub fn done_ns(&mut self, start_ns: f64, work_ns: f64) -> f64 {
        let mut done_ns = start_ns + work_ns;
        while self.start_ns < done_ns {
            done_ns += (self.end_ns - self.start_ns.max(start_ns)).max(0.0);
            self.advance();
        }
        done_ns
    }

    fn advance(&mut self) {
        let Some(clock) = self
            .clocks
            .iter_mut()
            .min_by(|a, b| a.next_ns.total_cmp(&b.next_ns))
        else {
            (self.start_ns, self.end_ns) = (f64::INFINITY, f64::INFINITY);
            return;
        };
        self.start_ns = clock.next_ns.max(self.end_ns);
        self.end_ns = self.start_ns + clock.take(&mut self.rng);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn availability_is_the_fraction_of_time_without_interruptions() {
        // Gallenmüller's dissertation, table 5.6: 2949.9 us per second of the bare host, 8891.6 us of the virtual
        // machine.
        let host = Vacations::none()
            .with_periodic(166.7, 10_900.0)
            .unwrap()
            .with_periodic(83.3, 13_600.0)
            .unwrap();
        assert!(((1.0 - host.availability()) * 1e6 - 2949.9).abs() < 0.1);
        let machine = Vacations::none()
            .with_periodic(166.7, 17_500.0)
            .and_then(|some| some.with_periodic(83.3, 19_200.0))
            .and_then(|some| some.with_periodic(250.0, 17_500.0))
            .unwrap();
        assert!(((1.0 - machine.availability()) * 1e6 - 8891.6).abs() < 0.1);
        assert_eq!(Vacations::none().availability(), 1.0);
        assert_eq!(Vacations::none().moments(), None);
        assert!((host.moments().unwrap().mean_ns - 2_949_900.0 / 250.0).abs() < 1.0);
    }

    #[test]
    fn work_is_delayed_by_interruptions_that_overlap_the_work() {
        let mut stream = Vacations::none()
            .with_periodic(1e6, 100.0)
            .unwrap()
            .stream(1);
        let first = stream.start_ns;
        assert_eq!(stream.done_ns(first - 10.0, 5.0), first - 5.0);
        assert_eq!(stream.done_ns(first - 10.0, 20.0), first + 110.0);
        assert_eq!(stream.available_ns(first + 1_050.0), first + 1_100.0);
        assert_eq!(stream.available_ns(first + 1_200.0), first + 1_200.0);
    }

    #[test]
    fn coinciding_interruptions_are_delayed_until_earlier_interruptions_end() {
        let both = Vacations::none()
            .with_periodic(1e6, 300.0)
            .unwrap()
            .with_periodic(1.1e6, 300.0)
            .unwrap();
        let mut stream = both.stream(9);
        let mut last_end = 0.0;
        for _ in 0..1_000 {
            assert!(stream.start_ns >= last_end);
            last_end = stream.end_ns;
            stream.advance();
        }
        let share = 2_100.0 / 2.1 * 300.0 / last_end;
        assert!((share - 0.63).abs() < 0.32, "{share}");
    }

    #[test]
    fn a_recording_starts_at_any_phase_and_repeats_cyclically() {
        let each = [(100.0, 10.0), (150.0, 20.0), (900.0, 30.0)];
        let recorded = Vacations::none().with_recorded(&each, 1_000.0).unwrap();
        assert!((recorded.availability() - 0.94).abs() < 1e-12);
        let next = |stream: &mut VacationStream| {
            let found = (stream.start_ns, stream.end_ns);
            stream.advance();
            found
        };
        for (phase, first) in [(0.0, 0), (0.12, 1), (0.5, 2), (0.95, 3)] {
            let mut stream = recorded.stream_from(1, phase);
            for place in first..first + 7 {
                let (start, length) = each[place % 3];
                let start = start + 1_000.0 * ((place / 3) as f64 - phase);
                let (found, end) = next(&mut stream);
                assert!(
                    (found - start).abs() < 1e-9 && (end - start - length).abs() < 1e-9,
                    "{phase}"
                );
            }
        }
        assert_eq!(
            Vacations::none().with_recorded(&[], 1e9),
            Ok(Vacations::none())
        );
        for wrong in [
            &[(5.0, 1.0), (4.0, 1.0)][..],
            &[(f64::NAN, 1.0)],
            &[(1_000.0, 1.0)],
            &[(-1.0, 1.0)],
            &[(1.0, 0.0)],
            &[(0.0, 2e3)],
        ] {
            assert!(
                Vacations::none().with_recorded(wrong, 1_000.0).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn interruptions_that_leave_no_processing_time_are_refused() {
        let all = Vacations::none().with_periodic(1e6, 1_000.0);
        assert_eq!(all, Err(QueueingError::NeverAvailable { share: 1.0 }));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Vacations::none().with_periodic(bad, 100.0).is_err());
            assert!(Vacations::none().with_periodic(100.0, bad).is_err());
        }
    }
}
