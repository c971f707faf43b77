//! Propagation delay: of light through a fibre, and of radio through air. Speed of light: SI; indices of refraction:
//! ITU-T G.652 fibre at 1,550 nm (data sheets: 1.468), air at sea level.
//!
//! CALVIN (Xiang et al., figure 2) counts 0.25 ms for 2 x 25 km of fibre and names 3.34 us/km. That is the speed of
//! light in vacuum, at which 50 km take 0.167 ms. Glass has 4.90 us/km and 0.245 ms, so the paper's 0.25 ms fit glass
//! and its 3.34 us/km do not.

use super::LinkError;
use crate::estimate::not_negative;

/// Speed of light in vacuum, km per us (SI, exact).
const KM_PER_US: f64 = 0.299_792_458;

/// The medium that a signal travels through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Vacuum: the lower bound for all media.
    Vacuum,
    /// Air at sea level, for radio and free-space light.
    Air,
    /// Single-mode fibre.
    Fibre,
    /// Twisted pair or coaxial cable with foamed insulation: about two thirds of the speed of light in vacuum.
    Copper,
}

impl Medium {
    /// Returns the index of refraction: the factor by which a signal is slower than in vacuum.
    pub fn refraction(self) -> f64 {
        match self {
            Medium::Vacuum => 1.0,
            Medium::Air => 1.000_3,
            Medium::Fibre => 1.468,
            Medium::Copper => 1.5,
        }
    }

    /// Returns the propagation delay, us per km.
    pub fn us_per_km(self) -> f64 {
        self.refraction() / KM_PER_US
    }

    /// Returns the propagation delay over `km`, us.
    ///
    /// # Errors
    /// The distance is negative or not finite.
    pub fn delay_us(self, km: f64) -> Result<f64, LinkError> {
        Ok(not_negative("a distance", km)? * self.us_per_km())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn propagation_delays_agree_with_the_speed_of_light_per_medium() {
        assert!((Medium::Vacuum.us_per_km() - 3.336).abs() < 0.001);
        assert!((Medium::Air.us_per_km() - 3.34).abs() < 0.005);
        assert!((Medium::Fibre.us_per_km() - 4.897).abs() < 0.001);
        let there_and_back = Medium::Fibre.delay_us(50.0).unwrap();
        assert!(
            (there_and_back / 250.0 - 1.0).abs() < 0.03,
            "{there_and_back}"
        );
        assert!((Medium::Vacuum.delay_us(50.0).unwrap() - 166.8).abs() < 0.1);
    }

    #[test]
    fn negative_and_non_finite_distances_are_refused() {
        assert_eq!(Medium::Fibre.delay_us(0.0), Ok(0.0));
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Medium::Air.delay_us(bad).is_err());
        }
    }
}
