//! Random coefficients of a combination.

use fastrand::Rng;

/// A source of random coefficients. A fraction `density` of the coefficients is not 0; in this fraction, all values
/// from 1 to 255 are equally probable.
#[derive(Debug, Clone)]
pub struct Coefficients {
    random: Rng,
    /// Density in units of 2^-32: a 32-bit draw of at least this value gives 0.
    density: u64,
}

impl Coefficients {
    /// Makes a source of coefficients. A fraction `density` of them is nonzero; with a density of 1, all are nonzero.
    /// The seed makes the coefficients repeatable.
    pub fn new(density: f64, seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            density: (density.clamp(0.0, 1.0) * 2_f64.powi(32)) as u64,
        }
    }

    /// Draws one coefficient, which is not 0 if `not_zero` is set.
    pub(crate) fn draw_one(&mut self, coefficient: &mut u8, not_zero: bool) {
        let drawn = not_zero || u64::from(self.random.u32(..)) < self.density;
        *coefficient = if drawn { self.random.u8(1..) } else { 0 };
    }

    /// Draws all coefficients of a combination. At least one is not 0.
    pub fn draw(&mut self, coefficients: &mut [u8]) {
        if coefficients.is_empty() {
            return;
        }
        for coefficient in coefficients.iter_mut() {
            self.draw_one(coefficient, false);
        }
        if coefficients.iter().all(|it| *it == 0) {
            let any = self.random.usize(..coefficients.len());
            coefficients[any] = self.random.u8(1..);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_follow_the_density_and_repeat_with_the_same_seed() {
        for (density, expected) in [(1.0, 10_000.0), (0.25, 2_500.0), (0.0, 100.0)] {
            let draw = |seed| {
                let mut coefficients = Coefficients::new(density, seed);
                let mut rows = [[0; 100]; 100];
                rows.iter_mut().for_each(|row| coefficients.draw(row));
                rows
            };
            let rows = draw(1);
            assert!(rows.iter().all(|row| row.iter().any(|it| *it != 0)));
            let others = rows.iter().flatten().filter(|it| **it != 0).count() as f64;
            // The bound is five standard deviations.
            let spread = 5.0 * (10_000.0 * density * (1.0 - density)).sqrt();
            assert!((others - expected).abs() <= spread, "{density}: {others}");
            assert_eq!(rows, draw(1));
            assert_ne!(rows, draw(2));
        }
    }
}
