//! `--samples`: how the packets of a measurement are written.

use taut_results::PacketFormat;

/// How samples are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Samples {
    Parquet,
    Csv,
    None,
}

impl Samples {
    /// The files' format; none where none are written.
    pub fn format(self) -> Option<PacketFormat> {
        match self {
            Self::Parquet => Some(PacketFormat::Parquet),
            Self::Csv => Some(PacketFormat::Csv),
            Self::None => None,
        }
    }
}
