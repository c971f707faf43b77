//! Wireless stations that always have packets to send: their collision rate and their throughput. G. Bianchi,
//! "Performance analysis of the IEEE 802.11 distributed coordination function", IEEE JSAC 18(3), 2000.

use super::LinkError;
use super::phy::Phy;
use crate::estimate::{not_negative, positive};

/// Stations that contend for a channel by binary exponential backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contention {
    stations: u32,
    window: u32,
    stages: u32,
}

/// The long-run behaviour of each station in a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attempt {
    /// Probability that the station sends in a slot (tau).
    pub sends: f64,
    /// Probability that a transmission of the station collides (p).
    pub collides: f64,
}

/// Duration of a slot by its outcome, us.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slots {
    idle_us: f64,
    success_us: f64,
    collision_us: f64,
}

/// The joint performance of all stations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Saturated {
    /// The behaviour of each station in a slot.
    pub attempt: Attempt,
    /// Rate of packets without collision, of all stations together, per second.
    pub rate_pps: f64,
    /// Mean time from one packet of a station to its next, us. It includes access, retries and the packets of the other
    /// stations.
    pub packet_us: f64,
}

impl Contention {
    /// Returns the contention of `stations` that draw their first backoff from `window` slots (W). The window doubles
    /// after each collision, up to `stages` times (m).
    ///
    /// # Errors
    /// There is no station or no slot.
    pub fn new(stations: u32, window: u32, stages: u32) -> Result<Self, LinkError> {
        if stations == 0 {
            return Err(LinkError::Empty { what: "stations" });
        }
        if window == 0 {
            return Err(LinkError::Empty {
                what: "slots of a backoff window",
            });
        }
        Ok(Self {
            stations,
            window,
            stages,
        })
    }

    /// Returns the contention of `stations` with the backoff windows of `phy`.
    ///
    /// # Errors
    /// There is no station.
    pub fn of(phy: &Phy, stations: u32) -> Result<Self, LinkError> {
        let stages = ((phy.cw_max + 1) / (phy.cw_min + 1)).ilog2();
        Self::new(stations, phy.cw_min + 1, stages)
    }

    /// Returns the unique solution of the two equations that relate the probabilities of sending and colliding (Bianchi
    /// 2000, equations 7 and 9).
    pub fn attempt(&self) -> Attempt {
        let others = self.stations as i32 - 1;
        if others == 0 {
            return Attempt {
                sends: self.sends(0.0),
                collides: 0.0,
            };
        }
        // More collisions mean less sending, and less sending means fewer collisions, so the two curves cross exactly
        // once.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..200 {
            let middle = (low + high) / 2.0;
            let collides = 1.0 - (1.0 - self.sends(middle)).powi(others);
            if collides > middle {
                low = middle;
            } else {
                high = middle;
            }
        }
        let collides = (low + high) / 2.0;
        Attempt {
            sends: self.sends(collides),
            collides,
        }
    }

    /// Returns the joint performance of the stations for slots of the given durations (Bianchi 2000, equations 10 to
    /// 13).
    pub fn saturated(&self, slots: &Slots) -> Saturated {
        let attempt = self.attempt();
        let n = self.stations as i32;
        let idle = (1.0 - attempt.sends).powi(n);
        let success = f64::from(self.stations) * attempt.sends * (1.0 - attempt.sends).powi(n - 1);
        let collision = (1.0 - idle - success).max(0.0);
        let slot_us =
            idle * slots.idle_us + success * slots.success_us + collision * slots.collision_us;
        Saturated {
            attempt,
            rate_pps: success / slot_us * 1e6,
            packet_us: f64::from(self.stations) * slot_us / success,
        }
    }

    /// Returns the probability that a station sends in a slot, if its transmissions collide with probability
    /// `collides`.
    fn sends(&self, collides: f64) -> f64 {
        // Equation 7, with the sum written out, as its closed form divides by zero at a probability of one half.
        let window = f64::from(self.window);
        let doubled: f64 = (0..self.stages)
            .map(|stage| (2.0 * collides).powi(stage as i32))
            .sum();
        2.0 / (1.0 + window + collides * window * doubled)
    }
}

impl Slots {
    /// Returns slot durations: `idle_us` if no station sends, `success_us` if one station sends, and `collision_us` if
    /// several send.
    ///
    /// # Errors
    /// A time is negative or not finite, or the time of a success is zero.
    pub fn new(idle_us: f64, success_us: f64, collision_us: f64) -> Result<Self, LinkError> {
        Ok(Self {
            idle_us: not_negative("the time of an idle slot", idle_us)?,
            success_us: positive("the time of a success", success_us)?,
            collision_us: not_negative("the time of a collision", collision_us)?,
        })
    }

    /// Returns the slot durations of `phy` for packets of `payload_bytes` (basic access). A success takes frame, SIFS,
    /// acknowledgement and DIFS; a collision takes frame and DIFS.
    pub fn of(phy: &Phy, payload_bytes: u32) -> Self {
        let frame_us = phy.frame_us(payload_bytes);
        Self {
            idle_us: phy.slot_us,
            success_us: frame_us + phy.sifs_us + phy.ack_us + phy.difs_us(),
            collision_us: frame_us + phy.difs_us(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::link::wlan::Exchange;

    // The times are those of table II of the paper, us at 1 Mbit/s: a packet with its headers, an acknowledgement, and
    // the gaps.
    const FRAME_US: f64 = 8_184.0 + 272.0 + 128.0;
    const ACK_US: f64 = 112.0 + 128.0;
    const SIFS_US: f64 = 28.0;
    const DIFS_US: f64 = 128.0;
    const SLOT_US: f64 = 50.0;
    const PROPAGATION_US: f64 = 1.0;

    fn basic() -> Slots {
        let success = FRAME_US + SIFS_US + PROPAGATION_US + ACK_US + DIFS_US + PROPAGATION_US;
        Slots::new(SLOT_US, success, FRAME_US + DIFS_US + PROPAGATION_US).unwrap()
    }

    /// Returns the share of time for payloads, which Bianchi's paper calls throughput.
    fn throughput(contention: &Contention) -> f64 {
        contention.saturated(&basic()).rate_pps * 8_184e-6
    }

    #[test]
    fn the_fixed_point_satisfies_both_equations_of_bianchi() {
        for (stations, window, stages) in [
            (2, 32, 3),
            (10, 32, 3),
            (50, 32, 5),
            (50, 128, 3),
            (1_000, 16, 6),
        ] {
            let Attempt { sends, collides } =
                Contention::new(stations, window, stages).unwrap().attempt();
            let from_sends = 1.0 - (1.0 - sends).powi(stations as i32 - 1);
            assert!((collides - from_sends).abs() < 1e-9);
            // The expected value is equation 7 in the closed form of the paper.
            let (p, w, m) = (collides, f64::from(window), stages as i32);
            let closed = 2.0 * (1.0 - 2.0 * p)
                / ((1.0 - 2.0 * p) * (w + 1.0) + p * w * (1.0 - (2.0 * p).powi(m)));
            assert!((sends / closed - 1.0).abs() < 1e-6, "{sends} {closed}");
        }
    }

    #[test]
    fn without_backoff_stages_the_attempt_rate_is_independent_of_stations() {
        // By equation 8, the probability of sending does not depend on the number of stations.
        for stations in [1, 2, 50] {
            let attempt = Contention::new(stations, 32, 0).unwrap().attempt();
            assert!((attempt.sends - 2.0 / 33.0).abs() < 1e-12);
        }
    }

    #[test]
    fn the_optimal_transmission_probability_agrees_with_the_paper() {
        // The paper's optimum: tau = 1 / (n K) with K = sqrt(T / 2) is optimal; K = 9.334 for basic access and the
        // paper's packets.
        let slots = (FRAME_US + DIFS_US + PROPAGATION_US) / SLOT_US;
        assert!(((slots / 2.0).sqrt() - 9.334).abs() < 5e-4);
        // A window of twice n K slots reaches the optimum for any number of stations.
        for stations in [10, 50] {
            let best = (2.0 * f64::from(stations) * 9.334 - 1.0).round() as u32;
            let at = |window| throughput(&Contention::new(stations, window, 0).unwrap());
            assert!(at(best) > at(best * 2) && at(best) > at(best / 2));
            assert!(at(best) > 0.999 * at(best * 11 / 10) && at(best) > 0.999 * at(best * 9 / 10));
        }
    }

    #[test]
    fn throughput_falls_with_more_stations_and_rises_with_larger_windows() {
        // In the paper's figures, the throughput with a window of 32 and 3 stages falls from 5 to 50 stations; with a
        // window of 128 and 3 stages it hardly falls.
        let at = |stations, window, stages| {
            throughput(&Contention::new(stations, window, stages).unwrap())
        };
        assert!(at(5, 32, 3) > at(10, 32, 3) && at(10, 32, 3) > at(50, 32, 3));
        assert!(at(50, 128, 3) > at(50, 32, 5) && at(50, 32, 5) > at(50, 32, 3));
        assert!((0.7..0.87).contains(&at(10, 32, 5)), "{}", at(10, 32, 5));
    }

    #[test]
    fn the_fixed_point_agrees_with_simulated_random_backoff() {
        for (stations, window, stages) in [(5, 32, 3), (20, 32, 5)] {
            let wanted = Contention::new(stations, window, stages).unwrap().attempt();
            let found = drawn(stations as usize, window, stages, 300_000);
            assert!(
                (found.sends / wanted.sends - 1.0).abs() < 0.03,
                "{found:?} {wanted:?}"
            );
            assert!(
                (found.collides / wanted.collides - 1.0).abs() < 0.03,
                "{found:?} {wanted:?}"
            );
        }
    }

    /// Simulates the backoffs of the stations slot by slot.
    fn drawn(stations: usize, window: u32, stages: u32, slots: u32) -> Attempt {
        let mut rng = fastrand::Rng::with_seed(11);
        let mut stage = vec![0; stations];
        let mut left: Vec<u32> = (0..stations).map(|_| rng.u32(..window)).collect();
        let (mut attempts, mut collisions) = (0_u32, 0_u32);
        for _ in 0..slots {
            let sending: Vec<usize> = (0..stations)
                .filter(|&station| left[station] == 0)
                .collect();
            attempts += sending.len() as u32;
            let collide = sending.len() > 1;
            if collide {
                collisions += sending.len() as u32;
            }
            left.iter_mut()
                .for_each(|slots| *slots = slots.saturating_sub(1));
            for station in sending {
                stage[station] = if collide {
                    (stage[station] + 1).min(stages)
                } else {
                    0
                };
                left[station] = rng.u32(..window << stage[station]);
            }
        }
        let sends = f64::from(attempts) / f64::from(slots) / stations as f64;
        Attempt {
            sends,
            collides: f64::from(collisions) / f64::from(attempts),
        }
    }

    #[test]
    fn a_packet_of_a_single_station_takes_one_frame_exchange() {
        let phy = Phy::g(54.0).unwrap();
        let alone = Contention::of(&phy, 1)
            .unwrap()
            .saturated(&Slots::of(&phy, 1_000));
        let exchange = Exchange::of(&phy, 1_000).unwrap().total_us();
        assert!(
            (alone.packet_us / exchange - 1.0).abs() < 1e-9,
            "{} {exchange}",
            alone.packet_us
        );
        assert_eq!(Contention::of(&phy, 1), Contention::new(1, 16, 6));
    }

    #[test]
    fn zero_stations_and_invalid_slot_times_are_refused() {
        assert!(Contention::new(0, 32, 3).is_err());
        assert!(Contention::new(1, 0, 3).is_err());
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Slots::new(bad, 1.0, 1.0).is_err());
            assert!(Slots::new(1.0, bad, 1.0).is_err());
            assert!(Slots::new(1.0, 1.0, bad).is_err());
        }
    }
}
