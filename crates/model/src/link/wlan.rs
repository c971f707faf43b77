//! A wireless station alone on its channel: the time of a packet, by the published line and by the standard.
//! Gallenmüller's dissertation, section 6.4 (equations 6.5 to 6.7, after Bordim et al.); IEEE 802.11, clause 10.3.

use super::LinkError;
use super::phy::Phy;
use crate::estimate::{not_negative, positive};

/// Longest payload that [`line_of`] and [`Exchange::of`] cover, bytes.
const LONGEST_PAYLOAD_BYTES: u32 = 1_500;

/// A time per packet that is linear in the packet's length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Time for each byte, us.
    pub us_per_byte: f64,
    /// Time of a packet of zero bytes, us.
    pub us_per_packet: f64,
}

impl Line {
    /// The line of 802.11g at 54 Mbit/s, ad hoc: t = 0.15 x + 162.43 us for x bytes, by equation 6.5 of Gallenmüller's
    /// dissertation.
    ///
    /// First principles give 0.148 x + 161.2 us: [`Phy::g_without_extension`]. The terms in us are:
    ///
    /// - DIFS = 28, SIFS = 10, preamble and SIGNAL = 20
    /// - a mean backoff of 15 / 2 slots of 9
    /// - symbols of 4 for 16 + 6 + 8 (x + 36) bits, 216 each
    /// - an acknowledgement at 24 Mbit/s of 28
    ///
    /// The line omits the 6 us of silence after frames that the standard requires at 2.4 GHz. With the silence
    /// ([`Phy::g`]) a packet of zero bytes takes 173.2 us. Counted in fractions of symbols, with the silence after the
    /// data frame alone and 34 bytes of headers, a packet of zero bytes would take 162.53 us.
    pub const PUBLISHED: Line = Line {
        us_per_byte: 0.15,
        us_per_packet: 162.43,
    };

    /// Returns the time of a packet of `bytes`, us.
    pub fn time_us(&self, bytes: u32) -> f64 {
        self.us_per_byte * f64::from(bytes) + self.us_per_packet
    }

    /// Returns this straight-line model with the time in us that an implementation adds to each packet, by equation 6.6
    /// of Gallenmüller's dissertation. The time is 120 us in the dissertation's measurements, and 60 us in those of Bordim
    /// et al.
    ///
    /// # Errors
    /// The time is negative or not finite.
    pub fn with_implementation(self, us_per_packet: f64) -> Result<Self, LinkError> {
        let more = not_negative("the time of an implementation", us_per_packet)?;
        Ok(Self {
            us_per_packet: self.us_per_packet + more,
            ..self
        })
    }

    /// Returns the highest rate of packets of `bytes`, packets per second, by equation 6.7 of Gallenmüller's
    /// dissertation.
    pub fn highest_rate_pps(&self, bytes: u32) -> f64 {
        1e6 / self.time_us(bytes)
    }

    /// Returns the implementation's time per packet, us, from the rate measured while the station always sends: the
    /// time per packet minus the line's time. It is negative if the rate is above the line's highest rate.
    ///
    /// # Errors
    /// The rate is not a finite number above zero.
    pub fn implementation_us(&self, bytes: u32, measured_pps: f64) -> Result<f64, LinkError> {
        Ok(1e6 / positive("a measured rate", measured_pps)? - self.time_us(bytes))
    }
}

/// The parts of a station's time per packet, us, in the order in which they occur.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// Silence before the backoff (DIFS).
    pub difs_us: f64,
    /// Mean backoff of a first attempt.
    pub backoff_us: f64,
    /// Transmission of the frame: preamble, headers and payload in whole symbols.
    pub frame_us: f64,
    /// Gap before the acknowledgement (SIFS).
    pub sifs_us: f64,
    /// The acknowledgement of the frame.
    pub ack_us: f64,
}

impl Exchange {
    /// Returns the parts for a packet of `payload_bytes` with `phy`, for a lone station that always has packets to
    /// send.
    ///
    /// # Errors
    /// The payload is longer than 1,500 bytes.
    pub fn of(phy: &Phy, payload_bytes: u32) -> Result<Self, LinkError> {
        if payload_bytes > LONGEST_PAYLOAD_BYTES {
            return Err(LinkError::TooLong {
                bytes: payload_bytes,
                most: LONGEST_PAYLOAD_BYTES,
            });
        }
        Ok(Self {
            difs_us: phy.difs_us(),
            backoff_us: f64::from(phy.cw_min) / 2.0 * phy.slot_us,
            frame_us: phy.frame_us(payload_bytes),
            sifs_us: phy.sifs_us,
            ack_us: phy.ack_us,
        })
    }

    /// Returns the sum of the times of the frame exchange, us.
    pub fn total_us(&self) -> f64 {
        self.difs_us + self.backoff_us + self.frame_us + self.sifs_us + self.ack_us
    }
}

/// Returns the least-squares line through the packet times of `phy` for payloads of 0 to 1,500 bytes. A line suffices,
/// because measurements do not resolve the steps of whole symbols.
pub fn line_of(phy: &Phy) -> Line {
    let lengths = 0..=LONGEST_PAYLOAD_BYTES;
    let count = f64::from(LONGEST_PAYLOAD_BYTES + 1);
    let fixed = Exchange::of(phy, 0).map_or(0.0, |parts| parts.total_us() - parts.frame_us);
    let mean_length = f64::from(LONGEST_PAYLOAD_BYTES) / 2.0;
    let mean = lengths.clone().map(|x| phy.frame_us(x)).sum::<f64>() / count;
    let (mut products, mut squares) = (0.0, 0.0);
    for length in lengths {
        let away = f64::from(length) - mean_length;
        products += away * (phy.frame_us(length) - mean);
        squares += away * away;
    }
    let us_per_byte = products / squares;
    Line {
        us_per_byte,
        us_per_packet: fixed + mean - us_per_byte * mean_length,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::link::phy::Generation;

    #[test]
    fn published_rates_follow_from_the_published_fit_of_frame_times() {
        // The expected values are the equations of Gallenmüller's dissertation, section 6.4, evaluated for six sizes:
        // without and with 120 us of implementation time.
        let real = Line::PUBLISHED.with_implementation(120.0).unwrap();
        for (bytes, ideal, implemented) in [
            (64, 5_813.0, 3_424.0),
            (256, 4_979.0, 3_117.0),
            (512, 4_180.0, 2_784.0),
            (1_024, 3_164.0, 2_293.0),
            (1_400, 2_685.0, 2_031.0),
            (1_500, 2_581.0, 1_971.0),
        ] {
            assert!(
                (Line::PUBLISHED.highest_rate_pps(bytes) - ideal).abs() < 1.0,
                "{bytes}"
            );
            let rate = real.highest_rate_pps(bytes);
            assert!((rate - implemented).abs() < 1.0, "{bytes}: {rate}");
            let back = Line::PUBLISHED.implementation_us(bytes, rate).unwrap();
            assert!((back - 120.0).abs() < 1e-9);
        }
        // The expected rates for packets of 1,500 bytes are 31.0 and 23.7 Mbit/s.
        assert!((Line::PUBLISHED.highest_rate_pps(1_500) * 0.012 - 31.0).abs() < 0.05);
    }

    #[test]
    fn phy_timing_reproduces_the_published_frame_time_line() {
        let found = line_of(&Phy::g_without_extension(54.0).unwrap());
        assert!((found.us_per_byte / 0.15 - 1.0).abs() < 0.02, "{found:?}");
        assert!(
            (found.us_per_packet / 162.43 - 1.0).abs() < 0.01,
            "{found:?}"
        );
        // With the silence that the standard requires, the line differs by more than six percent.
        let standard = line_of(&Phy::g(54.0).unwrap());
        assert!((standard.us_per_packet - 173.2).abs() < 0.1, "{standard:?}");
        // The time is counted in fractions of symbols, with 34 bytes of headers and the silence after the data frame
        // alone.
        let fractions =
            28.0 + 67.5 + 20.0 + (22.0 + 272.0) / 54.0 + 6.0 + 10.0 + 20.0 + 134.0 / 24.0;
        assert!((fractions - 162.53f64).abs() < 0.01, "{fractions}");
    }

    #[test]
    fn the_times_of_a_frame_exchange_add_up_correctly() {
        let parts = Exchange::of(&Phy::g_without_extension(54.0).unwrap(), 1_500).unwrap();
        assert_eq!(
            (parts.difs_us, parts.backoff_us, parts.sifs_us, parts.ack_us),
            (28.0, 67.5, 10.0, 28.0)
        );
        assert_eq!(parts.total_us(), 381.5);
        assert!(Exchange::of(&Phy::g(54.0).unwrap(), 1_501).is_err());
    }

    #[test]
    fn later_wlan_generations_reduce_only_the_time_per_byte() {
        let old = line_of(&Phy::b(11.0, false).unwrap());
        let g = line_of(&Phy::g(54.0).unwrap());
        let n = line_of(&Phy::streams(Generation::N, 7, 40, 2).unwrap());
        let ac = line_of(&Phy::streams(Generation::Ac, 9, 80, 2).unwrap());
        let ax = line_of(&Phy::streams(Generation::Ax, 11, 80, 2).unwrap());
        let lines = [old, g, n, ac, ax];
        assert!(
            lines.is_sorted_by(|a, b| a.us_per_byte > b.us_per_byte),
            "{lines:?}"
        );
        // Access, preamble and acknowledgement have taken some 170 us since 2003.
        assert!(
            lines[1..]
                .iter()
                .all(|line| (165.0..215.0).contains(&line.us_per_packet)),
            "{lines:?}"
        );
    }

    #[test]
    fn invalid_wlan_times_and_rates_are_refused() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Line::PUBLISHED.with_implementation(bad).is_err());
            assert!(Line::PUBLISHED.implementation_us(64, bad).is_err());
        }
    }
}
