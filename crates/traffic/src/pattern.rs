//! Patterns of a stream, which determine the intended send times of its packets, and the schedule of one trial.
//!
//! The rate of a pattern is its mean rate; for ramps and steps it is the rate to which the fractions refer.

use crate::Trace;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use taut_settings::duration;

/// The pattern of a stream's intended send times.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Pattern {
    /// `constant`: equal gaps (constant bit rate where all packets are of one size).
    #[default]
    Constant,
    /// `poisson`: independent gaps, exponentially distributed.
    Poisson,
    /// `burst(n, gap)`: n packets `gap` apart (0: back to back), then a pause such that the mean rate is the stream's
    /// rate.
    Burst {
        /// Number of packets in a burst.
        packets: u32,
        /// Time between two packets of a burst.
        gap: Duration,
    },
    /// `on-off(on, off)`: equal gaps during the on phase, no packets during the off phase.
    OnOff {
        /// Length of the on phase.
        on: Duration,
        /// Length of the off phase.
        off: Duration,
    },
    /// `ramp(from, to)`: the rate changes linearly during the trial, between two fractions of the stream's rate.
    Ramp {
        /// Fraction of the stream's rate at the start of the trial.
        from: f64,
        /// Fraction of the stream's rate at the end of the trial.
        to: f64,
    },
    /// `steps(a, b, ...)`: the trial is divided into equal parts, each with its fraction of the stream's rate.
    Steps(Vec<f64>),
    /// `trace(file, speed)`: the gaps of a capture, which is repeated until the trial ends.
    Trace(Trace),
}

/// Reason why a pattern cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern \"{text}\": {reason}")]
pub struct PatternError {
    text: String,
    reason: String,
}

/// Prefix of the text of a pattern that names a file.
const OF_FILE: &str = "trace(";

impl Pattern {
    /// Returns true if a pattern names a file; parsing the pattern reads the file.
    pub fn names_a_file(text: &str) -> bool {
        text.trim().starts_with(OF_FILE)
    }
}

const FORMS: &str = "expected constant, poisson, burst(PACKETS, GAP), on-off(ON, OFF), ramp(FROM%, TO%), \
                     steps(A%, B%, ...) or trace(FILE, SPEEDx), such as burst(32, 0us) or trace(in.pcap, 2x)";

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let pattern = match text.trim().strip_prefix(OF_FILE) {
            Some(rest) => parse_trace(rest),
            None => parse_plain(text.trim()),
        };
        pattern.map_err(|reason| PatternError {
            text: text.to_string(),
            reason,
        })
    }
}

/// Parses the text of a pattern that names a file, from the file's name on.
fn parse_trace(text: &str) -> Result<Pattern, String> {
    let inside = text.strip_suffix(')').ok_or(FORMS)?;
    // A file's name may contain commas.
    let (path, speed) = match inside.rsplit_once(',') {
        Some((path, speed)) if speed.ends_with('x') => (path, speed.trim()),
        _ => (inside, "1x"),
    };
    let times = speed.trim_end_matches('x').trim().parse::<f64>().ok();
    let times = times.filter(|times| (1e-3..=1e3).contains(times));
    let times = times.ok_or_else(|| {
        format!("\"{speed}\": expected a speed factor such as 2x or 0.5x (0.001x to 1000x)")
    })?;
    Trace::read(path.trim(), times).map(Pattern::Trace)
}

/// Parses the text of a pattern that names no file.
fn parse_plain(text: &str) -> Result<Pattern, String> {
    let (name, arguments) = match text.split_once('(') {
        None => (text, Vec::new()),
        Some((name, rest)) => {
            let inside = rest.strip_suffix(')').ok_or(FORMS)?;
            (name.trim(), inside.split(',').map(str::trim).collect())
        }
    };
    match (name, &arguments[..]) {
        ("constant" | "cbr", []) => Ok(Pattern::Constant),
        ("poisson", []) => Ok(Pattern::Poisson),
        ("burst", [packets, gap @ ..]) if gap.len() <= 1 => {
            let packets = packets.parse().ok().filter(|n| (1..=1_000_000).contains(n));
            let packets = packets.ok_or("expected a burst of 1 to 1000000 packets")?;
            let gap = gap.first().map_or(Ok(Duration::ZERO), |g| parse_time(g))?;
            Ok(Pattern::Burst { packets, gap })
        }
        ("on-off", [on, off]) => {
            let (on, off) = (parse_time(on)?, parse_time(off)?);
            if on.is_zero() {
                return Err("the time on must not be 0".to_string());
            }
            Ok(Pattern::OnOff { on, off })
        }
        ("ramp", [from, to]) => {
            let (from, to) = (parse_share(from)?, parse_share(to)?);
            if from + to <= 0.0 {
                return Err("a ramp from 0 to 0 sends nothing".to_string());
            }
            Ok(Pattern::Ramp { from, to })
        }
        ("steps", shares @ [_, ..]) => {
            let shares = shares
                .iter()
                .map(|s| parse_share(s))
                .collect::<Result<Vec<_>, _>>()?;
            if shares.iter().sum::<f64>() <= 0.0 {
                return Err("steps of 0 send nothing".to_string());
            }
            Ok(Pattern::Steps(shares))
        }
        _ => Err(FORMS.to_string()),
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    duration(text).ok_or_else(|| format!("\"{text}\": expected a time such as 10us, 1.5ms or 1s"))
}

/// Parses a percentage of the stream's rate, and returns it as a fraction.
fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text
        .strip_suffix('%')
        .and_then(|p| p.trim().parse::<f64>().ok());
    percent
        .filter(|p| (0.0..=10_000.0).contains(p))
        .map(|p| p / 100.0)
        .ok_or_else(|| format!("\"{text}\": expected a share of the rate such as 50%"))
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: &f64| format!("{}%", (share * 1e6).round() / 1e4);
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Poisson => f.write_str("poisson"),
            Self::Burst { packets, gap } => write!(f, "burst({packets}, {}ns)", gap.as_nanos()),
            Self::OnOff { on, off } => {
                write!(f, "on-off({}ns, {}ns)", on.as_nanos(), off.as_nanos())
            }
            Self::Ramp { from, to } => write!(f, "ramp({}, {})", percent(from), percent(to)),
            Self::Steps(shares) => {
                let shares: Vec<_> = shares.iter().map(percent).collect();
                write!(f, "steps({})", shares.join(", "))
            }
            Self::Trace(trace) => write!(f, "trace({}, {}x)", trace.path(), trace.speed()),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

impl Pattern {
    /// Returns the number of packets in a trial; for `poisson` the expected number.
    pub fn packets(&self, rate_pps: f64, duration: Duration) -> u64 {
        let share = match self {
            Self::Ramp { from, to } => (from + to) / 2.0,
            Self::Steps(shares) => shares.iter().sum::<f64>() / shares.len() as f64,
            Self::Trace(trace) => return trace_packets(trace, rate_pps, duration),
            _ => 1.0,
        };
        (rate_pps * share * duration.as_secs_f64()).round().max(1.0) as u64
    }
}

/// Returns the number of packets of a repeated trace that are due before `duration` is over. With unequal gaps the
/// number differs from mean rate times duration.
fn trace_packets(trace: &Trace, rate_pps: f64, duration: Duration) -> u64 {
    let offsets_ns = trace.offsets_ns();
    // The trial ends at this time of the trace.
    let end_ns = duration.as_nanos() as f64 * trace_scale(trace, rate_pps).recip();
    let passes = (end_ns / trace.period_ns()).floor();
    let rest_ns = end_ns - passes * trace.period_ns();
    let rest = offsets_ns.partition_point(|offset| *offset < rest_ns);
    (passes as u64 * offsets_ns.len() as u64 + rest as u64).max(1)
}

/// Returns the ratio of the gaps at `rate_pps` to the captured gaps.
fn trace_scale(trace: &Trace, rate_pps: f64) -> f64 {
    trace.offsets_ns().len() as f64 / trace.period_ns() * 1e9 / rate_pps
}

/// Intended send times of one stream in one trial. They do not depend on the actual send times: a late generator gets
/// times in the past, from which its send delay is computed.
#[derive(Debug, Clone)]
pub struct Schedule {
    due_ticks: u64,
    start_ticks: u64,
    /// Index of the next packet, from 0.
    next: u64,
    total: u64,
    kind: Kind,
}

/// State of a schedule, by pattern. All times are in ticks after the start.
#[derive(Debug, Clone)]
enum Kind {
    Constant {
        gap: f64,
    },
    Poisson {
        gap: f64,
        at: f64,
        length: f64,
        random: fastrand::Rng,
    },
    Burst {
        packets: u64,
        gap: f64,
        period: f64,
    },
    OnOff {
        gap_on: f64,
        on: f64,
        period: f64,
    },
    /// A linear change of the rate; both rates are in packets per tick.
    Ramp {
        from: f64,
        slope: f64,
    },
    Steps {
        /// Rates of the steps, packets per tick.
        rates: Vec<f64>,
        length: f64,
        step: usize,
        /// Number of packets due before the current step.
        before: f64,
    },
    Trace {
        offsets: Arc<[f64]>,
        scale: f64,
        period: f64,
    },
}

impl Kind {
    /// Returns the state of a schedule that begins; `length` is the length of the trial in ticks.
    fn of(pattern: &Pattern, rate_pps: f64, length: f64, hz: f64, seed: u64) -> Self {
        let ticks = |t: Duration| t.as_secs_f64() * hz;
        let gap = hz / rate_pps;
        match pattern {
            Pattern::Constant => Self::Constant { gap },
            Pattern::Poisson => Self::Poisson {
                gap,
                at: 0.0,
                length,
                random: fastrand::Rng::with_seed(seed),
            },
            Pattern::Burst {
                packets,
                gap: within,
            } => {
                let (packets, period) = (u64::from(*packets), f64::from(*packets) * gap);
                Self::Burst {
                    packets,
                    // A burst longer than its period would overlap with the next one.
                    gap: ticks(*within).min(gap),
                    period,
                }
            }
            Pattern::OnOff { on, off } => {
                let (on, off) = (ticks(*on), ticks(*off));
                Self::OnOff {
                    gap_on: gap * on / (on + off),
                    on,
                    period: on + off,
                }
            }
            Pattern::Ramp { from, to } => Self::Ramp {
                from: from / gap,
                slope: (to - from) / gap / length,
            },
            Pattern::Steps(shares) => Self::Steps {
                rates: shares.iter().map(|share| share / gap).collect(),
                length: length / shares.len() as f64,
                step: 0,
                before: 0.0,
            },
            Pattern::Trace(trace) => {
                let scale = trace_scale(trace, rate_pps) * hz / 1e9;
                Self::Trace {
                    offsets: Arc::clone(trace.offsets_ns()),
                    scale,
                    period: trace.period_ns() * scale,
                }
            }
        }
    }
}

impl Schedule {
    /// Makes the schedule of `pattern` that begins at `start_ticks`; `hz` is the number of ticks per second. Equal
    /// seeds give equal schedules.
    pub fn new(
        pattern: &Pattern,
        rate_pps: f64,
        duration: Duration,
        start_ticks: u64,
        hz: f64,
        seed: u64,
    ) -> Self {
        let length = duration.as_secs_f64() * hz;
        let kind = Kind::of(pattern, rate_pps, length, hz, seed);
        let total = match pattern {
            // Gaps are drawn one by one; this limits an endless series of tiny gaps.
            Pattern::Poisson => u64::MAX,
            _ => pattern.packets(rate_pps, duration),
        };
        let mut schedule = Self {
            due_ticks: 0,
            start_ticks,
            next: 0,
            total,
            kind,
        };
        schedule.find_due();
        schedule
    }

    /// Returns the intended time of the next packet, in ticks; `u64::MAX` when there is none.
    #[inline(always)]
    pub fn due_ticks(&self) -> u64 {
        self.due_ticks
    }

    /// Returns the index of the next packet, which equals the number of earlier packets.
    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if no packet is left: all packets have been sent or skipped.
    #[inline(always)]
    pub fn is_over(&self) -> bool {
        self.due_ticks == u64::MAX
    }

    /// Advances to the next packet.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.next += 1;
        self.find_due();
    }

    /// Returns the number of remaining packets; for `poisson` the expected number.
    pub fn left(&self) -> u64 {
        match &self.kind {
            _ if self.is_over() => 0,
            Kind::Poisson {
                gap, at, length, ..
            } => ((length - at) / gap).round().max(1.0) as u64,
            _ => self.total - self.next,
        }
    }

    #[inline(always)]
    fn find_due(&mut self) {
        if self.next >= self.total {
            self.due_ticks = u64::MAX;
            return;
        }
        let k = self.next as f64;
        let offset = match &mut self.kind {
            Kind::Constant { gap } => k * *gap,
            Kind::Poisson {
                gap,
                at,
                length,
                random,
            } => {
                // f64() is below 1, so the logarithm is finite.
                *at -= *gap * (1.0 - random.f64()).ln();
                if *at >= *length {
                    self.total = self.next;
                    self.due_ticks = u64::MAX;
                    return;
                }
                *at
            }
            Kind::Burst {
                packets,
                gap,
                period,
            } => {
                let burst = self.next / *packets;
                burst as f64 * *period + (self.next - burst * *packets) as f64 * *gap
            }
            Kind::OnOff { gap_on, on, period } => {
                let sending = k * *gap_on;
                let cycle = (sending / *on).floor();
                cycle * *period + (sending - cycle * *on)
            }
            // The time at which the integral of the rate reaches k, in a form that is stable for slopes near 0.
            Kind::Ramp { from, slope } => {
                let root = (*from * *from + 2.0 * *slope * k).max(0.0).sqrt();
                if k == 0.0 {
                    0.0
                } else {
                    2.0 * k / (*from + root)
                }
            }
            Kind::Steps {
                rates,
                length,
                step,
                before,
            } => loop {
                let here = rates[*step] * *length;
                if k < *before + here || *step + 1 == rates.len() {
                    break *step as f64 * *length + (k - *before) / rates[*step].max(1e-18);
                }
                *before += here;
                *step += 1;
            },
            Kind::Trace {
                offsets,
                scale,
                period,
            } => {
                let n = offsets.len() as u64;
                let pass = self.next / n;
                pass as f64 * *period + offsets[(self.next - pass * n) as usize] * *scale
            }
        };
        self.due_ticks = self.start_ticks + offset as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HZ: f64 = 1e9;

    /// Returns the intended send times of a trial, ns after its start.
    fn dues(pattern: &str, rate_pps: f64, duration: Duration) -> Vec<u64> {
        let pattern: Pattern = pattern.parse().unwrap();
        let mut schedule = Schedule::new(&pattern, rate_pps, duration, 1_000, HZ, 7);
        let mut dues = Vec::new();
        while !schedule.is_over() {
            dues.push(schedule.due_ticks() - 1_000);
            schedule.advance();
        }
        assert_eq!(schedule.left(), 0);
        dues
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_constant_rate_is_exact_despite_gaps_of_fractional_nanoseconds() {
        let pattern = Pattern::Constant;
        let mut schedule = Schedule::new(&pattern, 1e9 / 2_593.7, 10_000 * MS, 1_000, HZ, 0);
        for _ in 0..1_000_000 {
            schedule.advance();
        }
        assert!((schedule.due_ticks() as f64 - 1_000.0 - 2_593.7e6).abs() < 2.0);
    }

    #[test]
    fn a_constant_rate_schedules_rate_times_duration_packets() {
        assert_eq!(dues("constant", 100_000.0, 20 * MS).len(), 2_000);
        assert_eq!(dues("constant", 1e6, 3 * MS)[..3], [0, 1_000, 2_000]);
    }

    #[test]
    fn bursts_have_the_configured_mean_rate() {
        let dues = dues("burst(4, 100ns)", 1e6, 8 * MS);
        assert_eq!(dues[..6], [0, 100, 200, 300, 4_000, 4_100]);
        assert_eq!(dues.len(), 8_000);
        assert!(*dues.last().unwrap() < 8_000_000);
    }

    #[test]
    fn an_on_off_pattern_sends_only_during_its_on_periods() {
        let dues = dues("on-off(1ms, 3ms)", 250_000.0, 16 * MS);
        assert_eq!(dues.len(), 4_000);
        assert!(dues.iter().all(|t| t % 4_000_000 < 1_000_000));
    }

    #[test]
    fn a_ramp_schedules_packets_in_proportion_to_its_area() {
        let dues = dues("ramp(0%, 100%)", 1e6, 10 * MS);
        assert_eq!(dues.len(), 5_000);
        let first_half = dues.iter().filter(|t| **t < 5_000_000).count();
        assert!((1_245..1_255).contains(&first_half), "{first_half}");
        assert!(dues.windows(2).all(|w| w[0] <= w[1]));
        assert!(*dues.last().unwrap() < 10_000_000);
    }

    #[test]
    fn each_step_of_a_pattern_has_its_configured_rate() {
        let dues = dues("steps(10%, 0%, 100%)", 1e6, 30 * MS);
        let within = |a: u64, b: u64| {
            dues.iter()
                .filter(|t| (a * 1_000_000..b * 1_000_000).contains(*t))
                .count()
        };
        assert_eq!(
            (within(0, 10), within(10, 20), within(20, 30)),
            (1_000, 0, 10_000)
        );
    }

    #[test]
    fn poisson_gaps_pass_a_kolmogorov_smirnov_test() {
        // There are a million packets, with gaps so long that the rounding to nanoseconds is negligible.
        let dues = dues("poisson", 1e4, 100_000 * MS);
        let mut gaps: Vec<f64> = dues.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        gaps.sort_by(f64::total_cmp);
        let n = gaps.len() as f64;
        let distance = gaps
            .iter()
            .enumerate()
            .map(|(i, gap)| (1.0 - (-gap / 100_000.0).exp() - (i as f64 + 0.5) / n).abs())
            .fold(0.0, f64::max);
        // The limit is the critical value of the Kolmogorov-Smirnov test at the 1 % level.
        assert!(distance < 1.63 / n.sqrt(), "{distance}");
        assert!((n / 1_000_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn patterns_parse_and_errors_name_a_valid_form() {
        for text in [
            "constant",
            "poisson",
            "burst(32, 100ns)",
            "on-off(1000ns, 5000ns)",
            "ramp(10%, 100%)",
            "steps(10%, 0%, 50%)",
        ] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("sine", "expected constant"),
            ("burst(0)", "1 to 1000000"),
            ("burst(3, 5)", "a time such as"),
            ("on-off(0s, 1s)", "must not be 0"),
            ("ramp(5, 9)", "share of the rate"),
            ("ramp(0%, 0%)", "sends nothing"),
            ("steps(0%)", "send nothing"),
            ("poisson(", "expected constant"),
        ] {
            let message = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
