//! The frame sizes, durations and repetitions of a benchmark's parts, by mode.

use std::time::Duration;
use taut_results::Mode;
use taut_traffic::Sizes;

/// Frame sizes of RFC 2544 section 9.1 for Ethernet.
const RFC_SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// The frame sizes, durations and repetitions of one mode.
#[derive(Debug, Clone)]
pub struct Lengths {
    /// Frame sizes.
    pub sizes: Vec<Sizes>,
    /// Length of each full trial.
    pub trial: Duration,
    /// Number of searches, latency trials and loss curves per frame size.
    pub repetitions: u32,
    /// Number of full trials that vote on a rate.
    pub votes: u32,
    /// Precision of a search, as a fraction of the rate.
    pub precision: f64,
    /// Length of each latency trial.
    pub latency: Duration,
    /// Number of searches for the longest burst per frame size.
    pub bursts: u32,
    /// The longest burst to try: RFC 2544 section 26.4 requires 2 s.
    pub longest_burst: Duration,
}

impl Lengths {
    /// Returns the lengths of a mode. Quick takes less than a minute, default about 20 minutes for all parts. Full has
    /// trials of 60 s (RFC 2544 section 24) and takes hours.
    pub fn of(mode: Mode) -> Self {
        let ms = Duration::from_millis;
        let sizes = |which: &[usize]| which.iter().map(|size| Sizes::one(*size)).collect();
        match mode {
            Mode::Quick => Self {
                sizes: sizes(&[64, 512, 1518]),
                trial: ms(50),
                repetitions: 2,
                votes: 3,
                precision: 0.02,
                latency: ms(300),
                bursts: 3,
                longest_burst: ms(100),
            },
            Mode::Default => Self {
                sizes: sizes(&RFC_SIZES),
                trial: ms(1_000),
                repetitions: 3,
                votes: 5,
                precision: 0.005,
                latency: ms(5_000),
                bursts: 10,
                longest_burst: ms(2_000),
            },
            Mode::Full => Self {
                sizes: sizes(&RFC_SIZES),
                trial: ms(60_000),
                repetitions: 3,
                votes: 5,
                precision: 0.005,
                latency: ms(120_000),
                bursts: 50,
                longest_burst: ms(2_000),
            },
        }
    }
}
