//! The air time of a frame in each generation of 802.11: preamble, symbols, acknowledgement, gaps around them. IEEE
//! 802.11-2020, clauses 15 and 16 (b), 17 and 18 (g), 19 (n), 21 (ac); 802.11ax-2021, clause 27.

use super::LinkError;

/// Bytes around a payload: header (24), check sequence (4), and LLC/SNAP header (8).
const HEADER_BYTES: u32 = 24 + 4 + 8;
/// Bytes around the payload of a QoS data frame: [`HEADER_BYTES`] plus the QoS control field (2).
const QOS_HEADER_BYTES: u32 = HEADER_BYTES + 2;
/// Length of an acknowledgement with its check sequence, bits.
const ACK_BITS: f64 = 14.0 * 8.0;
/// Length of the SERVICE field, bits.
const SERVICE_BITS: f64 = 16.0;
/// Length of the tail of a convolutional code, bits.
const TAIL_BITS: f64 = 6.0;
/// Preamble (16) and SIGNAL field (4) of 802.11a and g, with which frames of all later generations begin, us.
const LEGACY_PREAMBLE_US: f64 = 20.0;
/// An acknowledgement of legacy OFDM at 24 Mbit/s, the highest mandatory rate, us: two symbols of 96 bits.
const LEGACY_ACK_US: f64 = LEGACY_PREAMBLE_US + 8.0;

/// Generations of 802.11 that can send over several spatial streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// 802.11n, high throughput.
    N,
    /// 802.11ac, very high throughput.
    Ac,
    /// 802.11ax, high efficiency, for a single user.
    Ax,
}

/// The timing of one frame in a generation and mode: data rate, preamble, and the waits before and after.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phy {
    pub(crate) slot_us: f64,
    pub(crate) sifs_us: f64,
    /// Upper limit of the first backoff of a frame, slots.
    pub(crate) cw_min: u32,
    /// Upper limit of any backoff, slots.
    pub(crate) cw_max: u32,
    preamble_us: f64,
    symbol_us: f64,
    bits_per_symbol: f64,
    /// Bits that are sent in addition to the bytes of the frame.
    extra_bits: f64,
    header_bytes: u32,
    /// Silence after a frame, for compatibility with older receivers, us.
    extension_us: f64,
    pub(crate) ack_us: f64,
}

impl Phy {
    /// Returns 802.11b at 1, 2, 5.5 or 11 Mbit/s with the long preamble of 192 us, or with the short one of 96 us. The
    /// acknowledgement is sent at 1 Mbit/s if the frame is sent at 1 Mbit/s, otherwise at 2 Mbit/s.
    ///
    /// # Errors
    /// There is no such rate, or no short preamble at 1 Mbit/s.
    pub fn b(mbit_per_s: f64, short_preamble: bool) -> Result<Self, LinkError> {
        let lacks = |what| {
            Err(LinkError::NotInStandard {
                standard: "802.11b",
                what,
            })
        };
        if ![1.0, 2.0, 5.5, 11.0].contains(&mbit_per_s) {
            return lacks("such rate: use 1, 2, 5.5 or 11 Mbit/s");
        }
        if short_preamble && mbit_per_s == 1.0 {
            return lacks("short preamble at 1 Mbit/s");
        }
        let preamble_us = if short_preamble { 96.0 } else { 192.0 };
        Ok(Self {
            slot_us: 20.0,
            sifs_us: 10.0,
            cw_min: 31,
            cw_max: 1_023,
            preamble_us,
            // A symbol carries exactly one byte, so frames are not padded.
            symbol_us: 8.0 / mbit_per_s,
            bits_per_symbol: 8.0,
            extra_bits: 0.0,
            header_bytes: HEADER_BYTES,
            extension_us: 0.0,
            ack_us: preamble_us + ACK_BITS / mbit_per_s.min(2.0),
        })
    }

    /// Returns 802.11g without older stations (slots of 9 us) at 6 to 54 Mbit/s. It includes the 6 us of silence after
    /// each frame that the standard requires at 2.4 GHz (signal extension, clause 18).
    ///
    /// # Errors
    /// There is no such rate.
    pub fn g(mbit_per_s: f64) -> Result<Self, LinkError> {
        const EXTENSION_US: f64 = 6.0;
        let plain = Self::g_without_extension(mbit_per_s)?;
        Ok(Self {
            extension_us: EXTENSION_US,
            ack_us: plain.ack_us + EXTENSION_US,
            ..plain
        })
    }

    /// Returns 802.11g as [`Phy::g`], but without the silence after frames, as in the published line (see
    /// [`super::wlan::Line::PUBLISHED`]).
    ///
    /// # Errors
    /// There is no such rate.
    pub fn g_without_extension(mbit_per_s: f64) -> Result<Self, LinkError> {
        const RATES: [f64; 8] = [6.0, 9.0, 12.0, 18.0, 24.0, 36.0, 48.0, 54.0];
        const SYMBOL_US: f64 = 4.0;
        if !RATES.contains(&mbit_per_s) {
            let what = "such rate: use 6, 9, 12, 18, 24, 36, 48 or 54 Mbit/s";
            return Err(LinkError::NotInStandard {
                standard: "802.11g",
                what,
            });
        }
        // Acknowledgements are sent at the highest mandatory rate that is not above the rate of the frame.
        let mandatory = [24.0, 12.0, 6.0]
            .into_iter()
            .find(|&rate| rate <= mbit_per_s)
            .unwrap_or(6.0);
        let ack_symbols = ((SERVICE_BITS + TAIL_BITS + ACK_BITS) / (mandatory * SYMBOL_US)).ceil();
        Ok(Self {
            slot_us: 9.0,
            sifs_us: 10.0,
            cw_min: 15,
            cw_max: 1_023,
            preamble_us: LEGACY_PREAMBLE_US,
            symbol_us: SYMBOL_US,
            bits_per_symbol: mbit_per_s * SYMBOL_US,
            extra_bits: SERVICE_BITS + TAIL_BITS,
            header_bytes: HEADER_BYTES,
            extension_us: 0.0,
            ack_us: LEGACY_PREAMBLE_US + ack_symbols * SYMBOL_US,
        })
    }

    /// Returns 802.11n, ac or ax in the band of 5 GHz with modulation and coding `mcs` (of one stream), a channel of
    /// `mhz` and `streams`. Guard intervals are 0.8 us. Frames are sent one at a time (no aggregation), and
    /// acknowledged at 24 Mbit/s.
    ///
    /// # Errors
    /// The generation has no such modulation, channel or number of streams.
    pub fn streams(
        generation: Generation,
        mcs: usize,
        mhz: u32,
        streams: usize,
    ) -> Result<Self, LinkError> {
        let standard = match generation {
            Generation::N => "802.11n",
            Generation::Ac => "802.11ac",
            Generation::Ax => "802.11ax",
        };
        let lacks = |what| LinkError::NotInStandard { standard, what };
        let (most_mcs, most_streams) = match generation {
            Generation::N => (7, 4),
            Generation::Ac => (9, 8),
            Generation::Ax => (11, 8),
        };
        let coding = MODULATIONS.get(mcs).filter(|_| mcs <= most_mcs);
        let &(bits, numerator, denominator) = coding.ok_or(lacks("such modulation and coding"))?;
        let subcarriers = subcarriers(generation, mhz).ok_or(lacks("such channel width"))?;
        if !(1..=most_streams).contains(&streams) {
            return Err(lacks("so many streams"));
        }
        if generation == Generation::Ac && (mcs, mhz) == (9, 20) && ![3, 6].contains(&streams) {
            return Err(lacks("modulation 9 in 20 MHz with so many streams"));
        }
        let trainings = [1.0, 2.0, 4.0, 4.0, 6.0, 6.0, 8.0, 8.0][streams - 1];
        let fields_us = fields_us(generation, trainings);
        // 802.11ax uses a code without a tail on channels above 20 MHz. The model omits the tail at 20 MHz as well,
        // which is an error of 6 bits.
        let tail_bits = if generation == Generation::Ax {
            0.0
        } else {
            TAIL_BITS
        };
        Ok(Self {
            slot_us: 9.0,
            sifs_us: 16.0,
            cw_min: 15,
            cw_max: 1_023,
            preamble_us: LEGACY_PREAMBLE_US + fields_us,
            symbol_us: if generation == Generation::Ax {
                13.6
            } else {
                4.0
            },
            bits_per_symbol: f64::from(
                streams as u32 * subcarriers * bits * numerator / denominator,
            ),
            extra_bits: SERVICE_BITS + tail_bits,
            header_bytes: QOS_HEADER_BYTES,
            extension_us: 0.0,
            ack_us: LEGACY_ACK_US,
        })
    }

    /// Returns the data rate while symbols are sent, Mbit/s; preambles and gaps do not lower it.
    pub fn mbit_per_s(&self) -> f64 {
        self.bits_per_symbol / self.symbol_us
    }

    /// Returns the air time of a frame with `payload_bytes`, us.
    pub fn frame_us(&self, payload_bytes: u32) -> f64 {
        let bits = self.extra_bits + f64::from(8 * (payload_bytes + self.header_bytes));
        let symbols = (bits / self.bits_per_symbol).ceil();
        self.preamble_us + symbols * self.symbol_us + self.extension_us
    }

    /// Returns the silence after which a station may count down its backoff (DIFS), us: SIFS plus two slots.
    pub fn difs_us(&self) -> f64 {
        self.sifs_us + 2.0 * self.slot_us
    }
}

/// Returns the number of data subcarriers in a channel of `mhz`; `None` if the generation has no such channel.
fn subcarriers(generation: Generation, mhz: u32) -> Option<u32> {
    let count = match (generation, mhz) {
        (Generation::N | Generation::Ac, 20) => 52,
        (Generation::N | Generation::Ac, 40) => 108,
        (Generation::Ac, 80) => 234,
        (Generation::Ac, 160) => 468,
        (Generation::Ax, 20) => 234,
        (Generation::Ax, 40) => 468,
        (Generation::Ax, 80) => 980,
        (Generation::Ax, 160) => 1_960,
        _ => return None,
    };
    Some(count)
}

/// Returns the time of the fields between the legacy preamble and the data, us, with the given number of long
/// trainings.
fn fields_us(generation: Generation, trainings: f64) -> f64 {
    // Signal, short training, long trainings, second signal.
    match generation {
        Generation::N => 8.0 + 4.0 + 4.0 * trainings,
        Generation::Ac => 8.0 + 4.0 + 4.0 * trainings + 4.0,
        Generation::Ax => 4.0 + 8.0 + 4.0 + 7.2 * trainings,
    }
}

/// Modulation and coding by index: bits per subcarrier, and the code rate as numerator and denominator.
const MODULATIONS: [(u32, u32, u32); 12] = [
    (1, 1, 2),
    (2, 1, 2),
    (2, 3, 4),
    (4, 1, 2),
    (4, 3, 4),
    (6, 2, 3),
    (6, 3, 4),
    (6, 5, 6),
    (8, 3, 4),
    (8, 5, 6),
    (10, 3, 4),
    (10, 5, 6),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn wlan_phy_rates_agree_with_the_standard_tables() {
        for (generation, mcs, mhz, streams, wanted) in [
            (Generation::N, 7, 20, 1, 65.0),
            (Generation::N, 7, 40, 4, 540.0),
            (Generation::N, 0, 20, 1, 6.5),
            (Generation::Ac, 9, 80, 1, 390.0),
            (Generation::Ac, 9, 160, 8, 6_240.0),
            (Generation::Ax, 0, 20, 1, 8.6),
            (Generation::Ax, 11, 80, 1, 600.5),
            (Generation::Ax, 11, 160, 8, 9_607.8),
        ] {
            let rate = Phy::streams(generation, mcs, mhz, streams)
                .unwrap()
                .mbit_per_s();
            assert!(
                (rate - wanted).abs() < 0.06,
                "{generation:?} {mcs} {mhz} {streams}: {rate}"
            );
        }
        assert_eq!(Phy::g(54.0).unwrap().mbit_per_s(), 54.0);
        assert!((Phy::b(5.5, false).unwrap().mbit_per_s() - 5.5).abs() < 1e-12);
    }

    #[test]
    fn frame_times_equal_those_calculated_by_hand() {
        // At 54 Mbit/s, a payload of 1,500 bytes has 22 + 8 x 1,536 bits, which take 57 symbols of 216 bits.
        assert_eq!(
            Phy::g_without_extension(54.0).unwrap().frame_us(1_500),
            20.0 + 57.0 * 4.0
        );
        assert_eq!(Phy::g(54.0).unwrap().frame_us(1_500), 254.0);
        // At 11 Mbit/s, a frame takes 192 us for the preamble, followed by 1,536 bytes.
        let long = Phy::b(11.0, false).unwrap().frame_us(1_500);
        assert!(
            (long - (192.0 + 1_536.0 * 8.0 / 11.0)).abs() < 1e-9,
            "{long}"
        );
        assert_eq!(Phy::g_without_extension(54.0).unwrap().ack_us, 28.0);
        assert_eq!(Phy::g_without_extension(6.0).unwrap().ack_us, 44.0);
        assert_eq!(
            Phy::streams(Generation::N, 7, 20, 1).unwrap().preamble_us,
            36.0
        );
        assert_eq!(
            Phy::streams(Generation::Ac, 7, 80, 1).unwrap().preamble_us,
            40.0
        );
    }

    #[test]
    fn rates_outside_the_standards_are_refused() {
        assert!(Phy::b(3.0, false).is_err());
        assert!(Phy::b(1.0, true).is_err());
        assert!(Phy::g(11.0).is_err());
        assert!(Phy::g(f64::NAN).is_err());
        assert!(Phy::streams(Generation::N, 8, 20, 1).is_err());
        assert!(Phy::streams(Generation::N, 7, 80, 1).is_err());
        assert!(Phy::streams(Generation::Ac, 9, 20, 1).is_err());
        assert!(Phy::streams(Generation::Ax, 11, 20, 0).is_err());
        assert!(Phy::streams(Generation::Ax, 12, 20, 1).is_err());
    }
}
