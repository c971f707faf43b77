//! Detection of timer ticks among the gaps of a core: gaps on a regular grid with the period of a kernel's tick.
//!
//! Gap starts are folded at each candidate period, corrected by up to 100 ppm because the clocks of kernel and
//! measurement differ. The hundredth of the period with the most gaps is the grid's phase. The grid counts as a timer
//! if gaps occur at no less than half of its ticks, and three times as often as by chance. A scheduler that gives the
//! core to another task does so at a tick, so gaps that begin on the grid but are much longer than ticks are not ticks.

use crate::Gap;
use serde::{Deserialize, Serialize};

/// Tick rates of Linux builds (CONFIG_HZ), the highest first, because ticks at a rate also match the grids of the
/// divisors of that rate.
const KERNEL_HZ: [f64; 4] = [1000.0, 300.0, 250.0, 100.0];
/// Maximum relative difference of the clocks of kernel and measurement, parts per million.
const PPM: f64 = 100.0;
/// Number of bins into which a period is divided, to find the phase with the most gaps.
const PLACES: usize = 100;
/// Minimum fraction of the ticks at which a gap must occur.
const SEEN: f64 = 0.5;
/// Factor by which the number of gaps on the grid must exceed the number expected by chance.
const ABOVE_CHANCE: f64 = 3.0;
/// Upper limits on the length of a tick, both of which apply. The first is a multiple of the lower quartile of the
/// lengths of the gaps on the grid, the second is a length in ns.
const TIMES_QUARTILE: f64 = 4.0;
const LONGEST_NS: f64 = 100_000.0;
/// Minimum number of expected ticks; with fewer, no timer is reported.
const FEWEST: f64 = 20.0;

/// The grid of a periodic timer's ticks, as found in the gaps of one core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ticks {
    /// Period of the ticks by the measurement's clock, ns.
    pub period_ns: f64,
    /// Time of the first tick after the start of the measurement, ns.
    pub phase_ns: f64,
    /// Median length of the gaps that are ticks of this timer, ns.
    pub cost_ns: f64,
    /// Fraction of the timer's ticks at which a gap occurred, 0 to 1.
    pub seen: f64,
}

/// Marks the gaps of one core that are ticks of a timer, and returns the timer; `None` without one. `duration_ns` is
/// the length of the observation.
pub fn find_ticks(gaps: &mut [Gap], duration_ns: f64) -> Option<Ticks> {
    let starts: Vec<f64> = gaps.iter().map(|gap| gap.start_ns).collect();
    let grid = KERNEL_HZ
        .iter()
        .find_map(|hz| grid(&starts, 1e9 / hz, duration_ns))?;
    let (period_ns, phase_ns) = grid;
    let on_grid =
        |gap: &Gap| off_grid(gap.start_ns, period_ns, phase_ns).abs() <= period_ns / PLACES as f64;
    let all = lengths(gaps, on_grid);
    let longest_ns = (TIMES_QUARTILE * all.get(all.len() / 4)?).min(LONGEST_NS);
    let is_tick = |gap: &Gap| on_grid(gap) && gap.length_ns <= longest_ns;
    let lengths = lengths(gaps, is_tick);
    gaps.iter_mut().for_each(|gap| gap.tick = is_tick(gap));
    Some(Ticks {
        period_ns,
        phase_ns,
        cost_ns: *lengths.get(lengths.len() / 2)?,
        seen: (all.len() as f64 / (duration_ns / period_ns)).min(1.0),
    })
}

/// Returns the lengths of the selected gaps in ascending order, ns.
fn lengths(gaps: &[Gap], of: impl Fn(&Gap) -> bool) -> Vec<f64> {
    let some = gaps.iter().filter(|gap| of(gap));
    let mut lengths: Vec<f64> = some.map(|gap| gap.length_ns).collect();
    lengths.sort_by(f64::total_cmp);
    lengths
}

/// Returns the distance of a time from the nearest tick, ns.
fn off_grid(at_ns: f64, period_ns: f64, phase_ns: f64) -> f64 {
    let ticks = (at_ns - phase_ns) / period_ns;
    (ticks - ticks.round()) * period_ns
}

/// Returns the period and the phase, ns, of a grid on which the gaps lie, with a period near `nominal_ns`; `None` if
/// there is no such grid.
fn grid(starts: &[f64], nominal_ns: f64, duration_ns: f64) -> Option<(f64, f64)> {
    let expected = duration_ns / nominal_ns;
    if expected < FEWEST || (starts.len() as f64) < SEEN * expected {
        return None;
    }
    // With this step between candidate periods, the position of the last tick changes by half a bin per candidate.
    let step_ppm = (1e6 * 0.5 / PLACES as f64 / expected).max(0.1);
    let steps = (PPM / step_ppm).ceil() as i32;
    let corrected = |step: i32| nominal_ns * (1.0 + f64::from(step) * step_ppm / 1e6);
    let (_, mut period_ns, place) = (-steps..=steps)
        .map(|step| {
            let (count, place) = fullest(starts, corrected(step));
            (count, corrected(step), place)
        })
        .max_by_key(|(count, ..)| *count)?;
    let mut phase_ns = (place as f64 + 0.5) * period_ns / PLACES as f64;
    // The line is fitted twice, because the first fit improves the selection of the gaps on the grid.
    for _ in 0..2 {
        (period_ns, phase_ns) = fitted(starts, period_ns, phase_ns)?;
    }
    let within = period_ns / PLACES as f64;
    let on_grid = starts.iter().filter(|start| {
        let off = off_grid(**start, period_ns, phase_ns);
        off.abs() <= within
    });
    let on_grid = on_grid.count() as f64;
    let by_chance = starts.len() as f64 * 2.0 / PLACES as f64;
    (on_grid >= SEEN * expected && on_grid >= ABOVE_CHANCE * by_chance)
        .then(|| (period_ns, phase_ns.rem_euclid(period_ns)))
}

/// Returns the index of the period's bin with the most gaps, and their number.
fn fullest(starts: &[f64], period_ns: f64) -> (usize, usize) {
    let mut counts = [0_usize; PLACES];
    for start in starts {
        let place = start.rem_euclid(period_ns) / period_ns * PLACES as f64;
        counts[(place as usize).min(PLACES - 1)] += 1;
    }
    let fullest = counts.iter().enumerate().max_by_key(|(_, count)| **count);
    fullest.map_or((0, 0), |(place, count)| (*count, place))
}

/// Returns period and phase of the grid by a least-squares fit to the gaps on it, ns.
fn fitted(starts: &[f64], period_ns: f64, phase_ns: f64) -> Option<(f64, f64)> {
    let near = 2.0 * period_ns / PLACES as f64;
    let on_grid = starts
        .iter()
        .filter(|start| off_grid(**start, period_ns, phase_ns).abs() <= near);
    let points: Vec<(f64, f64)> = on_grid
        .map(|start| (((start - phase_ns) / period_ns).round(), *start))
        .collect();
    let n = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n.max(1.0);
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (spread > 0.0).then(|| {
        let period = together / spread;
        (period, y - period * x)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SECONDS: f64 = 5.0;

    fn gap(start_ns: f64, length_ns: f64) -> Gap {
        Gap {
            start_ns,
            length_ns,
            tick: false,
        }
    }

    fn noise(random: &mut fastrand::Rng, count: usize) -> Vec<Gap> {
        let at = |random: &mut fastrand::Rng| random.f64() * SECONDS * 1e9;
        (0..count).map(|_| gap(at(random), 30_000.0)).collect()
    }

    #[test]
    fn timer_ticks_are_identified_among_other_interruptions_despite_clock_error() {
        for (hz, ppm) in [(250.0, 0.0), (1000.0, 37.0), (100.0, -80.0), (300.0, 5.0)] {
            let mut random = fastrand::Rng::with_seed(7);
            let period = 1e9 / hz * (1.0 + ppm / 1e6);
            let count = (SECONDS * 1e9 / period) as usize;
            let mut gaps: Vec<Gap> = (0..count)
                // One in ten ticks is missing, and each tick is up to 3 us late.
                .filter(|n| n % 10 != 3)
                .map(|n| {
                    gap(
                        123_456.0 + n as f64 * period + random.f64() * 3_000.0,
                        6_000.0,
                    )
                })
                .collect();
            let ticks = gaps.len();
            gaps.extend(noise(&mut random, 400));
            gaps.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
            let found = find_ticks(&mut gaps, SECONDS * 1e9).unwrap();
            let error_ppm = (found.period_ns / period - 1.0).abs() * 1e6;
            assert!(error_ppm < 1.0, "{hz} Hz: {found:?}");
            assert_eq!(found.cost_ns, 6_000.0);
            assert!((0.85..1.0).contains(&found.seen), "{found:?}");
            let marked = gaps
                .iter()
                .filter(|gap| gap.tick && gap.length_ns < 7_000.0);
            assert!(marked.count() >= ticks - 2, "{hz} Hz");
            // A gap that begins at a tick but takes far longer is not a tick.
            assert!(gaps.iter().all(|gap| !gap.tick || gap.length_ns < 7_000.0));
        }
    }

    #[test]
    fn interruptions_at_random_times_are_not_mistaken_for_timer_ticks() {
        for count in [0, 50, 700, 5_000] {
            let mut random = fastrand::Rng::with_seed(count as u64);
            let mut gaps = noise(&mut random, count);
            assert_eq!(find_ticks(&mut gaps, SECONDS * 1e9), None, "{count}");
            assert!(gaps.iter().all(|gap| !gap.tick));
        }
    }

    #[test]
    fn a_too_short_recording_yields_no_timer_ticks() {
        let mut gaps: Vec<Gap> = (0..15).map(|n| gap(f64::from(n) * 4e6, 5_000.0)).collect();
        assert_eq!(find_ticks(&mut gaps, 15.0 * 4e6), None);
    }
}
