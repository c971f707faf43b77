//! Attribution of late packets: which core's interruption delayed each of them. It compares the times of packets and
//! interruptions on one clock.
//!
//! A packet's excess is its latency minus the usual latency. Interruptions on the packet's path explain its lateness if
//! they last at least half of this excess. Matching is in time only, so it shows coincidence. On one clock, with gaps
//! and transit times of some µs, little else can coincide by chance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fraction of a packet's excess latency (the latency above the usual one) that interruptions on its path must last to
/// count as the cause.
const SHARE: f64 = 0.5;

/// The core on which an interruption occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Core {
    /// The generator's core, which sends and receives.
    Generator,
    /// The device's core.
    Device,
}

/// A period in which a core was interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Start of the gap, ns from the common start of all times.
    pub start_ns: f64,
    /// Length of the gap, ns.
    pub length_ns: f64,
    /// True if the gap is a tick of a periodic timer ([`crate::find_ticks`]).
    pub tick: bool,
}

impl Gap {
    fn end_ns(&self) -> f64 {
        self.start_ns + self.length_ns
    }
}

/// Cause of a packet's lateness.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A timer tick on the device's core.
    DeviceTick,
    /// Another interruption of the device's core.
    DeviceOther,
    /// A timer tick on the generator's core.
    GeneratorTick,
    /// Another interruption of the generator's core.
    GeneratorOther,
    /// The packet was sent while an earlier packet, delayed by another cause, was still in flight.
    Behind,
    /// No interruption and no delayed packet explains the latency.
    Unexplained,
}

impl Cause {
    /// All causes, in the order of tables and legends.
    pub const ALL: [Self; 6] = [
        Self::DeviceTick,
        Self::DeviceOther,
        Self::GeneratorTick,
        Self::GeneratorOther,
        Self::Behind,
        Self::Unexplained,
    ];

    /// Returns the name of the cause in a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceTick => "device's core: timer tick",
            Self::DeviceOther => "device's core: other interruption",
            Self::GeneratorTick => "generator's core: timer tick",
            Self::GeneratorOther => "generator's core: other interruption",
            Self::Behind => "queued behind one",
            Self::Unexplained => "unexplained",
        }
    }

    fn of(core: Core, tick: bool) -> Self {
        match (core, tick) {
            (Core::Device, true) => Self::DeviceTick,
            (Core::Device, false) => Self::DeviceOther,
            (Core::Generator, true) => Self::GeneratorTick,
            (Core::Generator, false) => Self::GeneratorOther,
        }
    }
}

/// Finds causes, packet after packet in the order of sending.
#[derive(Debug)]
pub struct Attribution {
    generator: Lost,
    device: Lost,
    usual_ns: f64,
    /// Latest arrival of a delayed packet whose cause is known, ns: a packet sent before this time waits behind that
    /// packet.
    behind_until_ns: f64,
}

/// The interruptions (gaps) of one core, and the index of the first one that can affect the next packet.
#[derive(Debug)]
struct Lost {
    gaps: Vec<Gap>,
    next: usize,
}

impl Lost {
    fn new(mut gaps: Vec<Gap>) -> Self {
        gaps.sort_by(|a, b| a.start_ns.total_cmp(&b.start_ns));
        Self { gaps, next: 0 }
    }

    /// Returns how long the core was interrupted between two times, ns, and whether most of that time was ticks.
    fn between(&mut self, from_ns: f64, to_ns: f64) -> (f64, bool) {
        while self
            .gaps
            .get(self.next)
            .is_some_and(|gap| gap.end_ns() <= from_ns)
        {
            self.next += 1;
        }
        let (mut ticks_ns, mut other_ns) = (0.0, 0.0);
        for gap in self.gaps[self.next..]
            .iter()
            .take_while(|gap| gap.start_ns < to_ns)
        {
            let shared = gap.end_ns().min(to_ns) - gap.start_ns.max(from_ns);
            if gap.tick {
                ticks_ns += shared.max(0.0);
            } else {
                other_ns += shared.max(0.0);
            }
        }
        (ticks_ns + other_ns, ticks_ns > other_ns)
    }
}

impl Attribution {
    /// Makes an attribution from the gaps of both cores and the latency of an undisturbed packet, such as the median.
    /// `device` is empty if the device does not report its gaps.
    pub fn new(generator: Vec<Gap>, device: Vec<Gap>, usual_ns: f64) -> Self {
        Self {
            generator: Lost::new(generator),
            device: Lost::new(device),
            usual_ns,
            behind_until_ns: f64::NEG_INFINITY,
        }
    }

    /// Returns the cause of the next packet's latency; packets must be passed in the order of sending. Returns `None`
    /// for a packet that took no longer than usual.
    pub fn cause(&mut self, sent_ns: f64, latency_ns: f64) -> Option<Cause> {
        let received_ns = sent_ns + latency_ns;
        let excess_ns = latency_ns - self.usual_ns;
        if excess_ns <= 0.0 {
            return None;
        }
        let (device_ns, device_tick) = self.device.between(sent_ns, received_ns);
        let (generator_ns, generator_tick) = self.generator.between(sent_ns, received_ns);
        if device_ns.max(generator_ns) > 0.0 && device_ns + generator_ns >= SHARE * excess_ns {
            self.behind_until_ns = self.behind_until_ns.max(received_ns);
            // While the generator's core is interrupted, it observes nothing of the device. A tie therefore counts as
            // an interruption of the generator.
            return Some(if device_ns > generator_ns {
                Cause::of(Core::Device, device_tick)
            } else {
                Cause::of(Core::Generator, generator_tick)
            });
        }
        if sent_ns < self.behind_until_ns {
            self.behind_until_ns = self.behind_until_ns.max(received_ns);
            return Some(Cause::Behind);
        }
        Some(Cause::Unexplained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(start_ns: f64, length_ns: f64, tick: bool) -> Gap {
        Gap {
            start_ns,
            length_ns,
            tick,
        }
    }

    #[test]
    fn a_latency_spike_is_attributed_to_the_interrupted_core() {
        let generator = vec![gap(50_000.0, 9_000.0, false)];
        let device = vec![gap(10_000.0, 8_000.0, true), gap(90_000.0, 5_000.0, false)];
        let mut found = Attribution::new(generator, device, 2_000.0);
        // The cases are a packet with the usual latency, a packet sent during a tick, and a packet in flight during a
        // gap.
        assert_eq!(found.cause(1_000.0, 1_900.0), None);
        assert_eq!(found.cause(12_000.0, 8_000.0), Some(Cause::DeviceTick));
        assert_eq!(found.cause(49_000.0, 11_000.0), Some(Cause::GeneratorOther));
        assert_eq!(found.cause(89_000.0, 7_000.0), Some(Cause::DeviceOther));
        // There is no gap, or the gap is far too short to explain the latency.
        assert_eq!(found.cause(200_000.0, 9_000.0), Some(Cause::Unexplained));
        let mut short = Attribution::new(Vec::new(), vec![gap(1_000.0, 1_000.0, false)], 2_000.0);
        assert_eq!(short.cause(500.0, 30_000.0), Some(Cause::Unexplained));
    }

    #[test]
    fn packets_shortly_after_a_delayed_packet_are_attributed_to_it() {
        let mut found = Attribution::new(Vec::new(), vec![gap(0.0, 10_000.0, false)], 1_000.0);
        assert_eq!(found.cause(1_000.0, 12_000.0), Some(Cause::DeviceOther));
        // These packets were sent after the gap, each while an earlier delayed packet was still in flight.
        assert_eq!(found.cause(11_000.0, 5_000.0), Some(Cause::Behind));
        assert_eq!(found.cause(15_000.0, 4_000.0), Some(Cause::Behind));
        assert_eq!(found.cause(40_000.0, 4_000.0), Some(Cause::Unexplained));
    }

    #[test]
    fn packets_during_long_device_gaps_are_attributed_to_the_gap() {
        let mut found = Attribution::new(Vec::new(), vec![gap(0.0, 100_000.0, false)], 1_000.0);
        for number in 0..10 {
            let sent = 5_000.0 + f64::from(number) * 10_000.0;
            let latency = 100_000.0 - sent + 900.0;
            let cause = found.cause(sent, latency);
            assert_eq!(cause, Some(Cause::DeviceOther), "{number}");
        }
    }

    #[test]
    fn simultaneous_gaps_on_both_cores_are_attributed_to_the_generator() {
        let both = || vec![gap(0.0, 9_000.0, false)];
        let mut found = Attribution::new(both(), both(), 1_000.0);
        assert_eq!(found.cause(0.0, 10_000.0), Some(Cause::GeneratorOther));
    }
}
