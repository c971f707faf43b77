//! A network between plant and controller in virtual time, with delay, jitter and lost exchanges, single or in bursts.
//! Delays and losses can also be replayed from a recording.

use crate::protocol::Stage;
use crate::station::Record;
use schemars::JsonSchema;
use serde::Serialize;

/// Settings of a link, for both directions.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct LinkSettings {
    /// Delay of each direction, ns; additional to recorded delays.
    pub delay_ns: u64,
    /// Largest additional delay of each direction, drawn uniformly, ns.
    pub jitter_ns: u64,
    /// Fraction of the exchanges that are lost, 0..1.
    pub loss: f64,
    /// Number of consecutive exchanges that each loss affects.
    pub burst: u32,
    /// Number of exchanges from the beginning of one loss to the beginning of the next, for periodic losses; `loss` is
    /// then ignored. 0 for random losses.
    pub every: u32,
    /// Recorded delays of both directions, ns, replayed in a loop: one pair per exchange, `None` for a lost exchange.
    /// `delay_ns` and `jitter_ns` are added.
    #[serde(skip)]
    pub recorded_ns: Vec<Option<[u64; 2]>>,
    /// For each recorded exchange, true while the controller's transport has notified it that the usual target delay is
    /// out of reach; empty if there are no notices.
    #[serde(skip)]
    pub noticed: Vec<bool>,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            delay_ns: 0,
            jitter_ns: 0,
            loss: 0.0,
            burst: 1,
            every: 0,
            recorded_ns: Vec::new(),
            noticed: Vec::new(),
        }
    }
}

/// Returns the delays of both directions in a run, ns, in the format of [`LinkSettings::recorded_ns`]. If the clocks of
/// plant and controller differ, only the sum of both delays is known, and each direction gets half of that sum.
/// Exchanges whose command never arrived count as lost.
pub fn recorded(records: &[Record], one_clock: bool) -> Vec<Option<[u64; 2]>> {
    let each = records.iter().map(|it| {
        let stamps = &it.stamps;
        let both = stamps.between(Stage::ReportSent, Stage::CommandReceived)?;
        let between = |from, to| stamps.between(from, to);
        let ways = [
            between(Stage::ReportSent, Stage::ReportReceived),
            between(Stage::CommandSent, Stage::CommandReceived),
        ];
        if let ([Some(there), Some(back)], true) = (ways, one_clock) {
            return Some([there, back]);
        }
        let controller = between(Stage::ReportReceived, Stage::CommandSent).unwrap_or(0);
        let half = both.saturating_sub(controller) / 2;
        Some([half, half])
    });
    each.collect()
}

/// The state of a link.
#[derive(Debug, Clone)]
pub struct Link {
    settings: LinkSettings,
    random: fastrand::Rng,
    round: u64,
    left: u32,
}

impl Link {
    /// Makes a link; links with the same settings and seed lose and delay the same exchanges.
    pub fn new(settings: &LinkSettings, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let phase = random.u64(0..u64::from(settings.every.max(1)));
        Self {
            settings: settings.clone(),
            random,
            round: phase,
            left: 0,
        }
    }

    /// Returns true if the transport's notices say that the usual target delay is out of reach in the exchange of the
    /// last call of [`Link::round`].
    pub fn is_noticed(&self) -> bool {
        let noticed = &self.settings.noticed;
        let last = self.round.wrapping_sub(1) as usize;
        !noticed.is_empty() && noticed[last % noticed.len()]
    }

    /// Returns the delays of the next exchange, to the controller and back, ns; `None` if the exchange is lost.
    pub fn round(&mut self) -> Option<[u64; 2]> {
        let settings = &self.settings;
        let number = self.round;
        self.round += 1;
        // The probability of a burst is such that the lost rounds have the configured ratio.
        let burst = settings.burst.max(1);
        let begins = if settings.every > 0 {
            self.round.is_multiple_of(u64::from(settings.every))
        } else {
            let good = f64::from(burst) * (1.0 - settings.loss);
            self.random.f64() < settings.loss / (settings.loss + good)
        };
        if self.left == 0 && begins {
            self.left = burst;
        }
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        let recorded = match settings.recorded_ns.len() as u64 {
            0 => [0; 2],
            length => settings.recorded_ns[(number % length) as usize]?,
        };
        let (delay_ns, jitter_ns) = (settings.delay_ns, settings.jitter_ns);
        Some(recorded.map(|ns| {
            let own = delay_ns + self.random.u64(0..=jitter_ns);
            ns.saturating_add(own)
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_loss_ratio_is_as_configured_for_any_burst_length() {
        for burst in [1, 3, 10] {
            let settings = LinkSettings {
                loss: 0.1,
                burst,
                ..LinkSettings::default()
            };
            let mut link = Link::new(&settings, 5);
            let lost = (0..200_000).filter(|_| link.round().is_none()).count();
            let share = lost as f64 / 200_000.0;
            // The bound is six standard deviations of the ratio for bursts of ten rounds.
            assert!((share - 0.1).abs() < 0.013, "{burst}: {share}");
        }
    }

    #[test]
    fn regular_losses_have_the_configured_burst_length() {
        let settings = LinkSettings {
            burst: 3,
            every: 40,
            ..LinkSettings::default()
        };
        let mut link = Link::new(&settings, 5);
        let lost: Vec<bool> = (0..400).map(|_| link.round().is_none()).collect();
        let runs: Vec<usize> = lost
            .split(|lost| !lost)
            .map(<[bool]>::len)
            .filter(|length| *length > 0)
            .collect();
        assert!(
            runs.len() >= 9 && runs[1..runs.len() - 1].iter().all(|run| *run == 3),
            "{runs:?}"
        );
    }

    #[test]
    fn delays_stay_within_the_jitter_and_recorded_delays_are_replayed() {
        let mut settings = LinkSettings {
            delay_ns: 100,
            jitter_ns: 50,
            ..LinkSettings::default()
        };
        let mut link = Link::new(&settings, 5);
        for _ in 0..1000 {
            assert!(
                link.round()
                    .unwrap()
                    .iter()
                    .all(|ns| (100..=150).contains(ns))
            );
        }
        (settings.delay_ns, settings.jitter_ns) = (10, 0);
        settings.recorded_ns = vec![Some([1, 2]), None, Some([3, 4])];
        let mut link = Link::new(&settings, 5);
        let rounds: Vec<_> = (0..4).map(|_| link.round()).collect();
        assert_eq!(
            rounds,
            [Some([11, 12]), None, Some([13, 14]), Some([11, 12])]
        );
    }
}
