//! The latency of one pass through a switch. It is the slope of a least-squares line through latency over the number of
//! passes, which the code calls loops. (FLOWer; Gallenmüller 2021, section 3.4: the slope of the latency over loops is
//! the latency per pair of ports.)

use crate::fit::{Coefficient, Design, FitError, LinearFit, Spread, least_squares};

/// Probability that an interval covers the true value, if errors are normal and independent.
pub const CONFIDENCE: f64 = 0.95;

/// A line fitted to latency over the number of loops.
#[derive(Debug, Clone, PartialEq)]
pub struct Hops {
    /// Latency of the path without loops, in the unit of the points.
    pub without: Coefficient,
    /// Latency that each loop adds.
    pub per_loop: Coefficient,
    /// Share of the variance that the line explains.
    pub r_squared: f64,
    /// Mean residual for even and for odd numbers of loops, in this order, in the unit of the latency; `None` for a
    /// parity without points. A difference between the two means shows that every second loop takes longer, because
    /// pairs of ports differ.
    pub residual_by_parity: [Option<f64>; 2],
    /// The fit with all its details.
    pub fit: LinearFit,
}

impl Hops {
    /// Fits the line to pairs of number of loops and latency; several pairs may have the same number of loops.
    ///
    /// # Errors
    /// [`FitError`] for fewer than three points, and for points that all have the same number of loops.
    pub fn of(points: &[(f64, f64)]) -> Result<Self, FitError> {
        let rows: Vec<Vec<f64>> = points.iter().map(|(loops, _)| vec![1.0, *loops]).collect();
        let latencies: Vec<f64> = points.iter().map(|(_, latency)| *latency).collect();
        let design = Design::new(&["base", "pair"], &rows, &latencies, Spread::Absolute)?;
        let fit = least_squares(&design, CONFIDENCE)?;
        let of_parity = |odd: bool| {
            let residuals = points.iter().zip(&fit.residuals);
            let those: Vec<f64> = residuals
                .filter(|((loops, _), _)| (loops % 2.0 != 0.0) == odd)
                .map(|(_, residual)| *residual)
                .collect();
            (!those.is_empty()).then(|| those.iter().sum::<f64>() / those.len() as f64)
        };
        Ok(Self {
            without: fit.coefficients[0].clone(),
            per_loop: fit.coefficients[1].clone(),
            r_squared: fit.r_squared,
            residual_by_parity: [of_parity(false), of_parity(true)],
            fit,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::published::flower_medians;

    #[test]
    fn published_histograms_yield_the_published_latency_per_loop() {
        let hops = Hops::of(&flower_medians()).unwrap();
        assert_eq!(hops.fit.rows, 24);
        // The expected intervals use Student's t of 22 degrees of freedom at 97.5 %, 2.0739.
        let is = |coefficient: &Coefficient, value: f64, [low, high]: [f64; 2], within: f64| {
            let found = [coefficient.value, coefficient.low, coefficient.high];
            let pairs = found.into_iter().zip([value, low, high]);
            assert!(
                pairs
                    .into_iter()
                    .all(|(it, want)| (it - want).abs() < within),
                "{coefficient:?}"
            );
        };
        is(&hops.per_loop, 713.8, [712.257, 715.343], 0.01);
        is(&hops.without, 941.7, [920.985, 962.407], 0.05);
        assert!((hops.r_squared - 0.999_976).abs() < 1e-6, "{hops:?}");
        // Every other loop takes slightly longer.
        let [even, odd] = hops.residual_by_parity.map(Option::unwrap);
        assert!(
            (even + 15.9).abs() < 0.01 && (odd - 15.9).abs() < 0.01,
            "{even} {odd}"
        );
    }

    #[test]
    fn a_fitted_line_leaves_a_sawtooth_in_the_residuals() {
        let points: Vec<(f64, f64)> = (0..20)
            .map(|loops| {
                let saw = if loops % 2 == 0 { -4.0 } else { 4.0 };
                (f64::from(loops), 500.0 + 300.0 * f64::from(loops) + saw)
            })
            .collect();
        let hops = Hops::of(&points).unwrap();
        assert!((hops.per_loop.value - 300.0).abs() < 0.5, "{hops:?}");
        let [even, odd] = hops.residual_by_parity.map(Option::unwrap);
        assert!(even < -3.0 && odd > 3.0, "{even} {odd}");
    }

    #[test]
    fn too_few_or_constant_points_yield_no_line() {
        assert!(Hops::of(&[]).is_err());
        assert!(Hops::of(&[(0.0, 1.0), (1.0, 2.0)]).is_err());
        assert!(Hops::of(&[(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)]).is_err());
        let only_even = Hops::of(&[(0.0, 1.0), (2.0, 2.0), (4.0, 3.1)]).unwrap();
        assert_eq!(only_even.residual_by_parity[1], None);
    }
}
