//! Exponentially distributed times by the ziggurat method, which rarely computes a logarithm. Marsaglia and Tsang, "The
//! ziggurat method for generating random variables", J. Statistical Software 5(8), 2000.

use std::sync::LazyLock;

use fastrand::Rng;

const LAYERS: usize = 256;
/// Start of the tail, in multiples of the mean, from Marsaglia and Tsang's table for the exponential density.
const TAIL: f64 = 7.697_117_470_131_05;
/// Area of each of the 256 layers, from Marsaglia and Tsang's table for the exponential density.
const AREA: f64 = 0.003_949_659_822_581_557;

/// Widths of the layers, the lowest first, and the density at each width.
struct Layers {
    width: [f64; LAYERS + 1],
    density: [f64; LAYERS + 1],
}

static LAYERS_OF_ALL: LazyLock<Layers> = LazyLock::new(|| {
    let mut width = [0.0; LAYERS + 1];
    // The lowest layer and the tail are treated as one rectangle of equal area, so the layer gets the width of this
    // rectangle.
    width[0] = AREA / (-TAIL).exp();
    width[1] = TAIL;
    for layer in 2..LAYERS {
        let below = width[layer - 1];
        width[layer] = -(AREA / below + (-below).exp()).ln();
    }
    Layers {
        width,
        density: width.map(|x| (-x).exp()),
    }
});

/// Draws an exponentially distributed time with mean `mean_ns`.
#[inline]
pub(crate) fn exponential_ns(rng: &mut Rng, mean_ns: f64) -> f64 {
    let Layers { width, density } = &*LAYERS_OF_ALL;
    loop {
        let bits = rng.u64(..);
        let layer = (bits & 0xff) as usize;
        // The upper 53 bits are independent of those that choose the layer.
        let x = (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64) * width[layer];
        if x < width[layer + 1] {
            return x * mean_ns;
        }
        if layer == 0 {
            // 1 - u is above zero, so the logarithm is finite.
            return (TAIL - (1.0 - rng.f64()).ln()) * mean_ns;
        }
        let height = density[layer] + (density[layer + 1] - density[layer]) * rng.f64();
        if height < (-x).exp() {
            return x * mean_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_draws_follow_the_exponential_distribution_into_the_tail() {
        let mut rng = Rng::with_seed(3);
        let count = 4_000_000;
        let mut draws: Vec<f64> = (0..count).map(|_| exponential_ns(&mut rng, 1.0)).collect();
        draws.sort_by(f64::total_cmp);
        // By the test of Kolmogorov and Smirnov, one in a thousand seeds exceeds 1.95 / sqrt(n).
        let furthest = draws
            .iter()
            .enumerate()
            .map(|(rank, x)| ((rank as f64 + 0.5) / f64::from(count) - (1.0 - (-x).exp())).abs());
        let furthest = furthest.fold(0.0, f64::max);
        assert!(furthest < 1.95 / f64::from(count).sqrt(), "{furthest}");
        let beyond = draws.iter().filter(|x| **x > TAIL + 1.0).count() as f64;
        let wanted = f64::from(count) * (-TAIL - 1.0).exp();
        assert!(
            (beyond - wanted).abs() < 4.0 * wanted.sqrt(),
            "{beyond} {wanted}"
        );
    }
}
