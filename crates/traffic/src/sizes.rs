//! Frame sizes of a stream: one size, a mix with weights, or every size of a range.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use taut_wire::{MAX_FRAME_SIZE_BYTES, MIN_FRAME_SIZE_BYTES};

/// Frame sizes, frame check sequence included, each with its fraction of the packets.
///
/// The text is `64`, `64:7,594:4,1518:1` (size:weight), `64-1518` (every size equally often) or `imix`: the simple
/// Internet mix, 7 packets of 64 bytes, 4 of 594 and 1 of 1518.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sizes {
    text: String,
    /// Frame sizes and their weights.
    parts: Vec<(usize, u32)>,
    /// Indices into `parts` in the order of sending, if the order is fixed.
    sequence: Option<Arc<[u32]>>,
}

/// Reason why sizes cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("size \"{text}\": {reason}")]
pub struct SizesError {
    text: String,
    reason: String,
}

const IMIX: [(usize, u32); 3] = [(64, 7), (594, 4), (1518, 1)];
/// Limit on the sum of weights, which is the length of the sequence of sizes.
const MOST_WEIGHT: u32 = 65_536;

impl Sizes {
    /// Makes sizes with one size for all packets.
    pub fn one(frame_size_bytes: usize) -> Self {
        Self {
            text: frame_size_bytes.to_string(),
            parts: vec![(frame_size_bytes, 1)],
            sequence: None,
        }
    }

    /// Makes the sizes of a trace, in the order of the trace.
    pub(crate) fn of_trace(size_bytes: &[u32]) -> Self {
        let mut weights = BTreeMap::new();
        for size in size_bytes {
            *weights.entry(*size).or_insert(0_u32) += 1;
        }
        let parts: Vec<_> = weights
            .iter()
            .map(|(size, weight)| (*size as usize, *weight))
            .collect();
        let index = |size: &u32| {
            let found = parts.binary_search_by_key(&(*size as usize), |part| part.0);
            found.unwrap_or_default() as u32
        };
        let sequence = size_bytes.iter().map(index).collect();
        Self {
            text: "trace".to_string(),
            parts,
            sequence: Some(sequence),
        }
    }

    /// Returns the different sizes, with their weights.
    pub fn parts(&self) -> &[(usize, u32)] {
        &self.parts
    }

    /// Returns the mean frame size in bytes, frame check sequence included.
    pub fn average_bytes(&self) -> f64 {
        let total: f64 = self.parts.iter().map(|p| f64::from(p.1)).sum();
        let bytes: f64 = self.parts.iter().map(|p| p.0 as f64 * f64::from(p.1)).sum();
        bytes / total
    }

    /// Returns indices into [`Sizes::parts`], in which each size occurs as often as its weight. The order is mixed; for
    /// a trace, it is the order of the trace.
    pub fn order(&self, seed: u64) -> Arc<[u32]> {
        if let Some(sequence) = &self.sequence {
            return Arc::clone(sequence);
        }
        let parts = self.parts.iter().enumerate();
        let mut order: Vec<u32> = parts
            .flat_map(|(i, (_, weight))| std::iter::repeat_n(i as u32, *weight as usize))
            .collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        order.into()
    }
}

impl FromStr for Sizes {
    type Err = SizesError;

    fn from_str(text: &str) -> Result<Self, SizesError> {
        let error = |reason: String| SizesError {
            text: text.to_string(),
            reason,
        };
        let size = |s: &str| {
            s.trim()
                .parse::<usize>()
                .ok()
                .filter(|n| (MIN_FRAME_SIZE_BYTES..=MAX_FRAME_SIZE_BYTES).contains(n))
                .ok_or_else(|| {
                    error(format!(
                        "expected bytes from {MIN_FRAME_SIZE_BYTES} to {MAX_FRAME_SIZE_BYTES}, frame check \
                         sequence included: 64, 64:7,594:4,1518:1, 64-1518 or imix"
                    ))
                })
        };
        let parts = if text == "imix" {
            IMIX.to_vec()
        } else if let Some((low, high)) = text.split_once('-') {
            let (low, high) = (size(low)?, size(high)?);
            if low > high {
                return Err(error(format!("{low} is more than {high}")));
            }
            (low..=high).map(|size| (size, 1)).collect()
        } else {
            text.split(',')
                .map(|part| match part.split_once(':') {
                    None => Ok((size(part)?, 1)),
                    Some((bytes, weight)) => {
                        let weight = weight.trim().parse::<u32>().ok().filter(|w| *w > 0);
                        let weight = weight.ok_or_else(|| {
                            error("expected a whole number as weight after each colon".to_string())
                        })?;
                        Ok((size(bytes)?, weight))
                    }
                })
                .collect::<Result<Vec<_>, _>>()?
        };
        if parts.iter().map(|p| u64::from(p.1)).sum::<u64>() > u64::from(MOST_WEIGHT) {
            return Err(error(format!("weights add up to more than {MOST_WEIGHT}")));
        }
        Ok(Self {
            text: text.to_string(),
            parts,
            sequence: None,
        })
    }
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Sizes {
    type Error = SizesError;

    fn try_from(text: String) -> Result<Self, SizesError> {
        text.parse()
    }
}

impl From<Sizes> for String {
    fn from(sizes: Sizes) -> Self {
        sizes.text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_frequency_of_frame_sizes_in_a_mix_follows_weights() {
        let mix: Sizes = "imix".parse().unwrap();
        let order = mix.order(1);
        let of = |i| order.iter().filter(|n| **n == i).count();
        assert_eq!((of(0), of(1), of(2)), (7, 4, 1));
        assert!((mix.average_bytes() - (7.0 * 64.0 + 4.0 * 594.0 + 1518.0) / 12.0).abs() < 1e-9);
    }

    #[test]
    fn a_size_range_contains_every_size_between_its_limits() {
        let range: Sizes = "64-70".parse().unwrap();
        assert_eq!(range.parts().len(), 7);
        assert_eq!(range.average_bytes(), 67.0);
    }

    #[test]
    fn errors_for_invalid_sizes_name_the_valid_values() {
        for (text, part) in [
            ("63", "64 to 9216"),
            ("big", "64 to 9216"),
            ("100-64", "more than"),
            ("64:0", "number as weight"),
            ("64:70000", "add up"),
        ] {
            let message = text.parse::<Sizes>().unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
