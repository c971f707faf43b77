//! `--samples`: the file format for the samples of a measurement.

use taut_results::PacketFormat;

/// The file format of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Samples {
    Parquet,
    Csv,
    None,
}

impl Samples {
    /// Returns the format of the sample files; `None` if no samples are written.
    pub fn format(self) -> Option<PacketFormat> {
        match self {
            Self::Parquet => Some(PacketFormat::Parquet),
            Self::Csv => Some(PacketFormat::Csv),
            Self::None => None,
        }
    }
}
