//! Margin of a claim: the distance from its interval to the bound of its condition.

use crate::evaluate::formula::Formulas;
use crate::evaluate::verdict::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_measure::quantity::plain;

/// Distance from the interval of a claim's value to the nearest bound of its condition.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Margin {
    /// The bound of the condition, such as 2 of `value > 2`.
    pub bound: f64,
    /// Distance in the unit of the value. It is positive if the whole interval meets the condition. If only a part of
    /// the interval meets it, it is minus the distance from the bound to the farther end. If no part meets it, it is
    /// minus the distance to the nearer end.
    pub distance: f64,
    /// The distance as a fraction of the bound; `None` if the bound is 0.
    pub share: Option<f64>,
}

impl Margin {
    /// Returns the margin of a verdict; `None` if the verdict has no value, or its condition has no bound.
    pub(crate) fn of(verdict: &Verdict) -> Option<Self> {
        let value = verdict.value?;
        let bounds = bounds(&verdict.condition);
        let [low, high] = verdict.interval.unwrap_or([value; 2]);
        let ends = [low.min(value), value, high.max(value)];
        let signed = |at: f64| -> Option<(f64, f64)> {
            let nearest = bounds.iter().copied().min_by(|a, b| {
                let distance = |bound: &f64| (at - bound).abs();
                distance(a).total_cmp(&distance(b))
            })?;
            let distance = (at - nearest).abs();
            let holds = Formulas::try_at(&verdict.condition, at).ok()?;
            Some((nearest, if holds { distance } else { -distance }))
        };
        let all: Vec<(f64, f64)> = ends.into_iter().filter_map(signed).collect();
        let none_holds = all.iter().all(|(_, distance)| *distance <= 0.0);
        let by_distance = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let (bound, distance) = *if none_holds {
            all.iter().max_by(by_distance)?
        } else {
            all.iter().min_by(by_distance)?
        };
        Some(Self {
            bound,
            distance,
            share: (bound != 0.0).then(|| distance / bound.abs()),
        })
    }
}

impl std::fmt::Display for Margin {
    /// Writes the margin as a share of the bound, `+35 %`, or in the unit of the value.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.distance < 0.0 { "-" } else { "+" };
        match self.share {
            Some(share) if share.abs() >= 9.995 => write!(f, "{sign}{} times", plain(share.abs())),
            Some(share) => write!(f, "{sign}{} %", plain(share.abs() * 100.0)),
            None => write!(f, "{sign}{}", plain(self.distance.abs())),
        }
    }
}

/// Returns the numbers in a condition at which its result changes.
fn bounds(condition: &str) -> Vec<f64> {
    let holds = |at: f64| Formulas::try_at(condition, at).ok();
    let changes = |bound: &f64| {
        let step = bound.abs().max(1e-6) * 1e-9;
        let [below, at, above] = [bound - step, *bound, bound + step].map(holds);
        below != at || at != above
    };
    numbers(condition).filter(changes).collect()
}

/// Returns the numbers in a text, with the minus sign directly before them.
fn numbers(text: &str) -> impl Iterator<Item = f64> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let bytes = text.as_bytes();
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            let start = at;
            let rest = &text[start..];
            let c = rest.chars().next()?;
            if !is_of_word(c) {
                at += c.len_utf8();
                continue;
            }
            let mut end = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
            // The word continues after the sign of an exponent, as in 1e-6.
            if c.is_ascii_digit()
                && rest[..end].ends_with(['e', 'E'])
                && rest[end..].starts_with(['-', '+'])
            {
                let more = &rest[end + 1..];
                end += 1 + more.find(|c| !is_of_word(c)).unwrap_or(more.len());
            }
            at = start + end;
            if let Ok(number) = rest[..end].replace('_', "").parse::<f64>()
                && c.is_ascii_digit()
            {
                let is_negative = text[..start].trim_end().ends_with('-');
                return Some(if is_negative { -number } else { number });
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn margin(condition: &str, value: f64, interval: Option<[f64; 2]>) -> Option<Margin> {
        let verdict = serde_json::json!({
            "text": "", "published": "", "formula": "", "value": value, "interval": interval,
            "repetitions": 6, "condition": condition, "verdict": "holds", "note": "",
        });
        Margin::of(&serde_json::from_value(verdict).unwrap())
    }

    #[test]
    fn margins_are_distances_from_interval_to_bound() {
        let twice = |value, interval| margin("value > 2", value, interval).unwrap();
        assert_eq!(twice(4.0, Some([3.0, 5.0])).distance, 1.0);
        assert_eq!(twice(4.0, Some([3.0, 5.0])).to_string(), "+50 %");
        // A part of the interval is beyond the bound, so the margin is the distance to its farther end.
        assert_eq!(twice(3.0, Some([1.5, 5.0])).share, Some(-0.25));
        // The complete interval is beyond the bound, so the margin is the distance to its nearer end.
        assert_eq!(twice(1.0, Some([0.5, 1.8])).to_string(), "-10 %");
        assert_eq!(twice(60.0, None).to_string(), "+29 times");
        let between = margin("value > 0.8 and value < 1.25", 1.2, None).unwrap();
        assert_eq!(between.bound, 1.25);
        assert_eq!(margin("value >= 1e-3", 0.5, None).unwrap().bound, 1e-3);
        assert_eq!(margin("value < -1.5", -2.0, None).unwrap().distance, 0.5);
        assert_eq!(margin("value > 0", 3.0, None).unwrap().to_string(), "+3");
        assert_eq!(margin("value == 1", 1.0, None).unwrap().distance, 0.0);
        assert_eq!(margin("true", 1.0, None), None);
    }
}
