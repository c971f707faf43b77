//! Zipf-distributed numbers by rejection-inversion (Hörmann and Derflinger, ACM TOMACS 6(3), 1996).

/// Draws 0 to `count` - 1, the k-th (from 1) with a probability proportional to k^-exponent.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    count: f64,
    exponent: f64,
    /// The integral of the envelope from its lower limit to 3/2, minus the weight of value 1.
    low: f64,
    /// The integral of the envelope up to count + 1/2.
    high: f64,
    /// A draw that lies at most this far below the integer that it is rounded to is accepted without a test.
    sure: f64,
}

impl Zipf {
    pub(crate) fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            count: count as f64,
            exponent,
            low: 0.0,
            high: 0.0,
            sure: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(zipf.count + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// Returns the integral of x^-exponent, in a form that is stable near exponent 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        let factor = if t.abs() > 1e-8 {
            t.exp_m1() / t
        } else {
            1.0 + t / 2.0
        };
        factor * log
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        let factor = if t.abs() > 1e-8 {
            t.ln_1p() / t
        } else {
            1.0 - t / 2.0
        };
        (factor * y).exp()
    }

    pub(crate) fn draw(&self, random: &mut fastrand::Rng) -> u64 {
        loop {
            let u = self.high + random.f64() * (self.low - self.high);
            let x = self.inverse(u);
            let k = (x + 0.5).floor().clamp(1.0, self.count);
            if k - x <= self.sure || u >= self.integral(k + 0.5) - self.weight(k) {
                return k as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_frequencies_follow_zipfs_law() {
        for exponent in [0.8, 1.0, 1.3] {
            let zipf = Zipf::new(1_000, exponent);
            let mut random = fastrand::Rng::with_seed(3);
            let mut counts = vec![0_u32; 1_000];
            let draws = 400_000;
            for _ in 0..draws {
                counts[zipf.draw(&mut random) as usize] += 1;
            }
            let total: f64 = (1..=1_000).map(|k| f64::from(k).powf(-exponent)).sum();
            for k in [1_usize, 2, 3, 10, 100] {
                let want = (k as f64).powf(-exponent) / total * f64::from(draws);
                let got = f64::from(counts[k - 1]);
                assert!(
                    (got - want).abs() < 5.0 * want.sqrt() + 1.0,
                    "{exponent} {k}: {got} for {want}"
                );
            }
        }
    }

    #[test]
    fn with_a_single_value_every_draw_is_index_zero() {
        let zipf = Zipf::new(1, 1.0);
        assert_eq!(zipf.draw(&mut fastrand::Rng::new()), 0);
    }
}
