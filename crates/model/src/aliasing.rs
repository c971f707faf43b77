//! Model of the aliasing between periodic interrupts and periodic traffic. Packets sample the state of the interrupts,
//! mostly at less than twice the rate of the interrupts. The highest latencies over time therefore form straight lines,
//! whose period equals neither that of the packets nor that of the interrupts. (Gallenmüller, "Data-Driven Analysis and
//! Modeling of Packet Processing Systems", dissertation, TU München 2021, section 5.4, figure 5.13.)
//!
//! One core serves packets that arrive at a constant rate. Each source of interrupts occupies the core at a constant
//! rate, for a constant time each; overlapping interrupts are served one after the other. A packet that arrives during
//! an interrupt waits; a packet in service is interrupted.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A periodic interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interrupt {
    /// Interrupts per second, measured by the clock of the packets.
    pub per_second: f64,
    /// Duration of each interrupt, ns.
    pub cost_ns: f64,
    /// Time of the first interrupt, ns after the first packet.
    pub phase_ns: f64,
}

/// Traffic and interrupts on one core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Scene {
    /// Constant rate of the packets, packets per second.
    pub rate_pps: f64,
    /// Latency of an undisturbed packet, ns.
    pub undisturbed_ns: f64,
    /// Length of the measurement, s.
    pub seconds: f64,
    /// The periodic interrupts of the core; empty for an undisturbed core.
    pub interrupts: Vec<Interrupt>,
}

/// A delayed packet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// Time at which the packet was sent, s.
    pub at_s: f64,
    /// Latency of the packet, ns.
    pub latency_ns: f64,
}

/// The lines that one interrupt forms in the latencies over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Beat {
    /// Change, from one interrupt to the next, of the time from an interrupt to the packet nearest to it, ns. It is
    /// positive if that packet comes later after each interrupt.
    pub drift_ns: f64,
    /// Length of a line, s, in which the delay falls from the full cost of an interrupt to zero, or rises from zero to
    /// the full cost. `None` if `drift_ns` is zero.
    pub line_s: Option<f64>,
    /// Time from the start of a line to the start of the next, s; `None` if `drift_ns` is zero.
    pub recurs_s: Option<f64>,
}

impl Scene {
    /// Returns the delayed packets in the order of sending.
    pub fn hits(&self) -> Vec<Hit> {
        let gap_ns = 1e9 / self.rate_pps;
        let packets = (self.rate_pps * self.seconds).floor() as i64;
        let away = self.away();
        let mut hits = Vec::new();
        let mut next = 0;
        for (index, (start, end)) in away.iter().enumerate() {
            // The first delayed packet is still in service when the interruption starts, or arrives at that moment. The
            // last one arrives just before the interruption ends.
            let served = ((start - self.undisturbed_ns) / gap_ns).floor() as i64 + 1;
            let first = served.min((start / gap_ns).ceil() as i64);
            let last = ((end / gap_ns).ceil() as i64 - 1).min(packets - 1);
            for packet in first.max(next)..=last {
                let sent = packet as f64 * gap_ns;
                let delay = delay_ns(&away[index..], sent, self.undisturbed_ns);
                hits.push(Hit {
                    at_s: sent / 1e9,
                    latency_ns: self.undisturbed_ns + delay,
                });
                next = packet + 1;
            }
        }
        hits
    }

    /// Returns the highest latency in each of `bins` equal parts of the measurement, ns; without a delayed packet in a
    /// part, it is the latency of an undisturbed packet.
    pub fn worst_ns(&self, bins: usize) -> Vec<f64> {
        let mut worst = vec![self.undisturbed_ns; bins];
        for hit in self.hits() {
            let bin = (hit.at_s / self.seconds * bins as f64) as usize;
            if let Some(worst) = worst.get_mut(bin) {
                *worst = worst.max(hit.latency_ns);
            }
        }
        worst
    }

    /// Returns the properties of the lines that `interrupt` forms.
    pub fn beat(&self, interrupt: &Interrupt) -> Beat {
        let gap_ns = 1e9 / self.rate_pps;
        let period_ns = 1e9 / interrupt.per_second;
        let gaps = period_ns / gap_ns;
        let drift_ns = (gaps.round() - gaps) * gap_ns;
        // A smaller drift is a rounding error of the rates.
        let moves = drift_ns.abs() > 1e-6;
        let until = |ns: f64| moves.then(|| ns / drift_ns.abs() * period_ns / 1e9);
        Beat {
            drift_ns,
            line_s: until(interrupt.cost_ns.min(gap_ns)),
            recurs_s: until(gap_ns),
        }
    }

    /// Returns the periods in which interrupts occupy the core, as pairs of start and end in ns, in order and without
    /// overlap.
    fn away(&self) -> Vec<(f64, f64)> {
        let mut away: Vec<(f64, f64)> = Vec::new();
        for interrupt in &self.interrupts {
            let period_ns = 1e9 / interrupt.per_second;
            let starts = (0_u64..).map(|n| interrupt.phase_ns + n as f64 * period_ns);
            away.extend(
                starts
                    .take_while(|start| *start < self.seconds * 1e9)
                    .map(|start| (start, start + interrupt.cost_ns)),
            );
        }
        away.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut free_from = f64::NEG_INFINITY;
        for (start, end) in &mut away {
            let late = (free_from - *start).max(0.0);
            *start += late;
            *end += late;
            free_from = *end;
        }
        away
    }
}

/// Returns the time that a packet sent at `sent` loses to interrupts; all times are in ns. `away` begins with the first
/// period that can delay the packet.
fn delay_ns(away: &[(f64, f64)], sent: f64, undisturbed_ns: f64) -> f64 {
    let mut done = sent + undisturbed_ns;
    for (start, end) in away {
        // A packet whose service time is zero waits only if it arrives while an interrupt occupies the core.
        if *start >= done && *start > sent {
            break;
        }
        done += (end - start.max(sent)).max(0.0);
    }
    done - sent - undisturbed_ns
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scene(rate_pps: f64, interrupts: &[(f64, f64)]) -> Scene {
        let interrupts = interrupts.iter().map(|(per_second, cost_ns)| Interrupt {
            per_second: *per_second,
            cost_ns: *cost_ns,
            phase_ns: 0.0,
        });
        Scene {
            rate_pps,
            undisturbed_ns: 0.0,
            seconds: 10.0,
            interrupts: interrupts.collect(),
        }
    }

    #[test]
    fn timers_in_phase_with_packets_always_or_never_delay_packets() {
        // At 10 kpkt/s and 250 interrupts a second, every 40th packet meets an interrupt, and always has the same
        // distance from its start.
        let mut scene = scene(10_000.0, &[(250.0, 6_000.0)]);
        let waits =
            |scene: &Scene| -> Vec<f64> { scene.hits().iter().map(|hit| hit.latency_ns).collect() };
        let found = waits(&scene);
        assert_eq!(found.len(), 2_500);
        assert!(found.iter().all(|wait| *wait == 6_000.0));
        // The interrupt starts 2 us before a packet, which waits for the rest of the interrupt.
        scene.interrupts[0].phase_ns = 100_000.0 - 2_000.0;
        let found = waits(&scene);
        assert_eq!(found.len(), 2_500);
        assert!(found.iter().all(|wait| (wait - 4_000.0).abs() < 1.0));
        scene.interrupts[0].phase_ns = 50_000.0;
        assert_eq!(scene.hits(), []);
        assert_eq!(scene.beat(&scene.interrupts[0]).line_s, None);
        assert_eq!(scene.worst_ns(4), vec![0.0; 4]);
    }

    #[test]
    fn without_aliasing_the_delayed_fraction_equals_the_interrupted_time() {
        // The interrupt rate is 100 times the golden ratio, the number that fractions approximate worst, so there is no
        // beat.
        let scene = scene(10_000.0, &[(161.803_398_875, 40_000.0)]);
        let share = scene.hits().len() as f64 / 100_000.0;
        let taken = 161.803_398_875 * 40e-6;
        assert!((share / taken - 1.0).abs() < 0.02, "{share} {taken}");
        // The delays are uniformly distributed from zero to the full cost.
        let hits = scene.hits();
        let mean = hits.iter().map(|hit| hit.latency_ns).sum::<f64>() / hits.len() as f64;
        assert!((mean / 20_000.0 - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn two_timers_produce_two_families_of_latency_lines() {
        // Costs as in Figure 5.13; the interrupts' clock is slightly slower than the packets' clock.
        let hz = 250.0 * (1.0 - 10e-6);
        let mut scene = scene(10_000.0, &[(hz, 8_200.0), (hz, 5_500.0)]);
        scene.interrupts[1].phase_ns = 2e6;
        let beat = scene.beat(&scene.interrupts[0]);
        assert!((beat.drift_ns + 40.0).abs() < 0.1, "{beat:?}");
        // A line falls from the full cost to zero within 205 interrupts, and the phase recurs after 2500 interrupts.
        assert!((beat.line_s.unwrap() - 0.82).abs() < 0.001);
        assert!((beat.recurs_s.unwrap() - 10.0).abs() < 0.01);
        scene.seconds = 30.0;
        let hits = scene.hits();
        for (of, cost_ns) in [(0, 8_200.0), (1, 5_500.0)] {
            // The two sources interrupt alternately, 20 packets apart, so every second interrupt belongs to this
            // source.
            let line: Vec<&Hit> = hits
                .iter()
                .filter(|hit| ((hit.at_s * 10_000.0).round() as u64 / 20) % 2 == of)
                .collect();
            let highest = line.iter().map(|hit| hit.latency_ns).fold(0.0, f64::max);
            assert!((highest - cost_ns).abs() < 41.0, "{highest}");
            let mut slopes = 0;
            let mut jumps = 0;
            for pair in line.windows(2) {
                if (pair[1].at_s - pair[0].at_s) < 0.005 {
                    let change = pair[1].latency_ns - pair[0].latency_ns;
                    assert!((change.abs() - 40.0).abs() < 1.0, "{change}");
                    slopes += 1;
                } else {
                    jumps += 1;
                }
            }
            assert!(slopes > 300 && (2..=3).contains(&jumps), "{slopes} {jumps}");
        }
    }

    #[test]
    fn an_interrupt_during_service_delays_the_packet_by_its_cost() {
        let mut scene = scene(1_000.0, &[(1_000.0, 5_000.0)]);
        scene.undisturbed_ns = 3_000.0;
        scene.interrupts[0].phase_ns = 1_000.0;
        assert!(scene.hits().iter().all(|hit| hit.latency_ns == 8_000.0));
        assert_eq!(scene.hits().len(), 10_000);
        // Two overlapping interrupts are served one after the other.
        scene.interrupts.push(scene.interrupts[0]);
        assert!(
            scene
                .hits()
                .iter()
                .all(|hit| (hit.latency_ns - 13_000.0).abs() < 0.1)
        );
        assert_eq!(scene.worst_ns(2).len(), 2);
    }
}
