//! The first three moments of a time, which determine the mean values of queues, and the moments of sums of times.
//! Kleinrock, Queueing Systems, volume 1, appendix II.

/// Raw moments of a time: the means of its first, second and third power.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServiceMoments {
    /// Mean of the service time, ns.
    pub mean_ns: f64,
    /// Mean square of the service time, ns^2.
    pub second_ns2: f64,
    /// Mean cube of the service time, ns^3.
    pub third_ns3: f64,
}

impl ServiceMoments {
    /// Returns the variance, ns^2.
    pub fn variance_ns2(&self) -> f64 {
        (self.second_ns2 - self.mean_ns * self.mean_ns).max(0.0)
    }

    /// Returns the moments of the sum of this time and another, independent time.
    pub fn plus(&self, other: &ServiceMoments) -> ServiceMoments {
        ServiceMoments {
            mean_ns: self.mean_ns + other.mean_ns,
            second_ns2: self.second_ns2 + 2.0 * self.mean_ns * other.mean_ns + other.second_ns2,
            third_ns3: self.third_ns3
                + 3.0 * self.second_ns2 * other.mean_ns
                + 3.0 * self.mean_ns * other.second_ns2
                + other.third_ns3,
        }
    }

    /// Returns the moments of the sum of `count` independent times with these moments.
    pub fn times(&self, count: usize) -> ServiceMoments {
        // Variance and third central moment of independent times add up.
        let n = count as f64;
        let (mean, variance) = (self.mean_ns, self.variance_ns2());
        let third_central = self.third_ns3 - 3.0 * mean * variance - mean.powi(3);
        let (mean, variance) = (n * mean, n * variance);
        ServiceMoments {
            mean_ns: mean,
            second_ns2: variance + mean * mean,
            third_ns3: n * third_central + 3.0 * mean * variance + mean.powi(3),
        }
    }

    pub(crate) fn constant(ns: f64) -> Self {
        Self {
            mean_ns: ns,
            second_ns2: ns * ns,
            third_ns3: ns * ns * ns,
        }
    }

    pub(crate) fn uniform(low: f64, high: f64) -> Self {
        Self {
            mean_ns: (low + high) / 2.0,
            second_ns2: (low * low + low * high + high * high) / 3.0,
            third_ns3: (low + high) * (low * low + high * high) / 4.0,
        }
    }

    pub(crate) fn weighted(parts: impl Iterator<Item = (f64, ServiceMoments)>) -> Self {
        let mut sum = ServiceMoments::constant(0.0);
        let mut total = 0.0;
        for (weight, part) in parts {
            total += weight;
            sum.mean_ns += weight * part.mean_ns;
            sum.second_ns2 += weight * part.second_ns2;
            sum.third_ns3 += weight * part.third_ns3;
        }
        Self {
            mean_ns: sum.mean_ns / total,
            second_ns2: sum.second_ns2 / total,
            third_ns3: sum.third_ns3 / total,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::queueing::ServiceTime;

    #[test]
    fn a_batch_has_the_summed_moments_of_its_packets() {
        let (each, batch) = (
            ServiceTime::exponential(10.0).unwrap(),
            ServiceTime::constant(25.0).unwrap(),
        );
        // The sum of k exponential times has a gamma distribution, whose third moment is k(k + 1)(k + 2) times the
        // cubed mean of one time.
        let three = each.moments().times(3);
        assert!((three.second_ns2 - 12.0 * 100.0).abs() < 1e-6);
        assert!((three.third_ns3 - 60.0 * 1000.0).abs() < 1e-6);
        let one_by_one = each.moments().plus(&each.moments()).plus(&each.moments());
        assert!((one_by_one.third_ns3 - three.third_ns3).abs() < 1e-6);
        let whole = batch.moments().plus(&three);
        assert_eq!(whole.mean_ns, 55.0);
        assert!((whole.variance_ns2() - 300.0).abs() < 1e-6);
    }
}
