//! The overload model: the highest rate that a core sustains, from the latency of single packets. (Gallenmüller 2021,
//! section 5.4.4, eqs. 5.9 and 5.10, tables 5.5 and 5.6.)
//!
//! The processor time of a function is its latency minus that of a plain forwarder: `t_CPU = t_e2e - 2 t_transfer`.
//! Interruptions take `d_sum` of each second, so `R_max = (1 s - d_sum) / t_CPU`. The model uses the median instead of
//! the mean. The true rate is lower if service times have a long tail, and higher for a function that needs less time
//! per packet under load (batches).

use crate::estimate::{Errors, Estimate, Prediction, WrongValue, not_negative, positive};
use serde::{Deserialize, Serialize};

const US_PER_S: f64 = 1e6;

/// A periodic interruption of the core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interruption {
    /// Name of the interruption.
    pub name: String,
    /// Interruptions per second.
    pub rate_hz: f64,
    /// Delay of a packet by one interruption, µs.
    pub duration_us: f64,
}

/// The overload model: the processor time of a packet, and the time lost to interruptions.
#[derive(Debug, Clone, PartialEq)]
pub struct Overload {
    /// Processor time of a packet, µs: t_CPU.
    pub cpu_us: Estimate,
    /// Time lost to interruptions in each second, µs: d_sum.
    pub interrupted_us_per_s: f64,
}

impl Overload {
    /// Makes the model from two median latencies and from the interruptions of the core. The latencies are those of the
    /// function and of a plain forwarder between the same ports, both at a low rate.
    ///
    /// # Errors
    /// [`WrongValue`] if the function is not slower than the plain forwarder, or if interruptions are invalid or take
    /// the whole second.
    pub fn new(
        function_us: Estimate,
        forwarder_us: Estimate,
        interruptions: &[Interruption],
    ) -> Result<Self, WrongValue> {
        let more = "µs that the function takes longer than the plain forwarder";
        let value = positive(more, function_us.value - forwarder_us.value)?;
        let confidence = function_us.plus(forwarder_us).confidence;
        let cpu_us = Estimate::new(
            value,
            // If the lower end of t_CPU is 0, the rate has a lower bound but no upper one.
            (function_us.low - forwarder_us.high).max(0.0),
            function_us.high - forwarder_us.low,
            confidence,
        )?;
        Ok(Self {
            cpu_us,
            interrupted_us_per_s: interrupted_us_per_s(interruptions)?,
        })
    }

    /// Returns R_max, packets per second. The upper end of its interval is infinite if the latencies do not show that
    /// the function takes any time.
    pub fn highest_rate(&self, errors: Option<Errors>) -> Prediction {
        let left_us = US_PER_S - self.interrupted_us_per_s;
        Prediction {
            estimate: self.cpu_us.map(|cpu_us| left_us / cpu_us),
            unit: "packets/s".to_owned(),
            errors,
            outside: Vec::new(),
        }
    }
}

/// Returns the time lost to interruptions in each second, µs: d_sum.
///
/// # Errors
/// [`WrongValue`] for rates and durations that are negative or not finite, and if interruptions take the whole second.
pub fn interrupted_us_per_s(interruptions: &[Interruption]) -> Result<f64, WrongValue> {
    let mut sum_us = 0.0;
    for interruption in interruptions {
        let rate = not_negative("interruptions per second", interruption.rate_hz)?;
        sum_us += rate * not_negative("an interruption (µs)", interruption.duration_us)?;
    }
    positive(
        "µs of each second that interruptions leave",
        US_PER_S - sum_us,
    )?;
    Ok(sum_us)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn given(value: f64) -> Estimate {
        Estimate::given(value).unwrap()
    }

    #[test]
    fn an_uncertain_latency_makes_the_rate_uncertain() {
        let function = Estimate::new(14.5, 14.0, 15.0, 0.95).unwrap();
        let forwarder = Estimate::new(3.1, 3.0, 3.2, 0.95).unwrap();
        let rate = Overload::new(function, forwarder, &[])
            .unwrap()
            .highest_rate(None)
            .estimate;
        assert!((rate.value - 1e6 / 11.4).abs() < 1e-6);
        assert!((rate.low - 1e6 / 12.0).abs() < 1e-6);
        assert!((rate.high - 1e6 / 10.8).abs() < 1e-6);
        assert!((rate.confidence - 0.9).abs() < 1e-9);
        let hardly_known = Estimate::new(3.2, 3.0, 3.4, 0.95).unwrap();
        let rate = Overload::new(hardly_known, forwarder, &[])
            .unwrap()
            .highest_rate(None);
        assert!(rate.estimate.high.is_infinite());
    }

    #[test]
    fn a_function_that_takes_no_time_is_refused() {
        let error = Overload::new(given(3.0), given(3.1), &[])
            .unwrap_err()
            .to_string();
        assert!(error.contains("longer than the plain forwarder"), "{error}");
    }

    #[test]
    fn interruptions_that_leave_no_processing_time_are_refused() {
        let always = |rate_hz, duration_us| Interruption {
            name: "timer".to_owned(),
            rate_hz,
            duration_us,
        };
        assert!(interrupted_us_per_s(&[always(1_000.0, 1_000.0)]).is_err());
        assert!(interrupted_us_per_s(&[always(-1.0, 1.0)]).is_err());
        assert!(interrupted_us_per_s(&[always(1.0, f64::NAN)]).is_err());
    }
}
