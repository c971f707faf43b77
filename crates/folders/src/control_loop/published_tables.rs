//! Tables 6.3 and 6.4 of Gallenmüller's dissertation (2021), which are shown next to the measured values.
//!
//! The last column of table 6.3 is labelled the 99.9th percentile but contains the 99th (recomputed from the public
//! recording).

use serde::Serialize;

/// A column of the published tables: machine A (i5-2520M) or B (i7-6700), over Ethernet or wireless LAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Column {
    /// Machine A with Ethernet, in the published tables.
    AWired,
    /// Machine A with wireless LAN, in the published tables.
    AWireless,
    /// Machine B with Ethernet, in the published tables.
    BWired,
    /// Machine B with wireless LAN, in the published tables.
    BWireless,
}

impl Column {
    /// The columns in the order of the dissertation's tables.
    pub const ALL: [Self; 4] = [Self::AWired, Self::AWireless, Self::BWired, Self::BWireless];

    /// Returns the name of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::AWired => "A wired",
            Self::AWireless => "A wireless",
            Self::BWired => "B wired",
            Self::BWireless => "B wireless",
        }
    }
}

/// Median, lower and upper quartile, and 99th percentile of a delay, ms.
pub type Row = [f64; 4];

/// The published delays in one column of table 6.3.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Table63 {
    /// Delay from the controller's receipt of a report to its command (d_P,C in the dissertation).
    pub controller: Row,
    /// Delay from reading the sensors to sending the report (d_P,S in the dissertation).
    pub sensing: Row,
    /// Delay of the network (d_N in the dissertation).
    pub network: Row,
    /// Delay from receiving the command to applying it (d_P,A in the dissertation).
    pub actuating: Row,
    /// Delay from reading the sensors to applying the command.
    pub period: Row,
}

/// The published sums and counts in one column of table 6.4.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Table64 {
    /// Sum of the robot's pitch over all sampling periods, degrees.
    pub pitch: f64,
    /// Sum of the wheels' angles over all sampling periods, degrees.
    pub wheels: f64,
    /// Sum of the motors' voltages over all sampling periods, V.
    pub volts: f64,
    /// Number of late or lost commands.
    pub late: usize,
}

/// Table 6.3 of the dissertation, with one entry for each column.
pub const TABLE_6_3: [Table63; 4] = [
    Table63 {
        controller: [0.94, 0.91, 0.97, 1.07],
        sensing: [3.55, 3.04, 4.24, 5.41],
        network: [4.38, 4.08, 5.03, 6.66],
        actuating: [22.20, 20.86, 23.16, 24.98],
        period: [35.77, 35.21, 36.41, 37.73],
    },
    Table63 {
        controller: [0.95, 0.92, 0.96, 1.05],
        sensing: [3.64, 3.03, 4.36, 6.20],
        network: [8.09, 7.54, 8.54, 10.88],
        actuating: [15.19, 13.79, 16.55, 19.94],
        period: [35.89, 35.22, 36.62, 38.97],
    },
    Table63 {
        controller: [0.39, 0.38, 0.39, 0.45],
        sensing: [3.89, 3.55, 4.49, 5.73],
        network: [4.61, 4.40, 4.82, 6.57],
        actuating: [22.38, 21.58, 23.10, 24.69],
        period: [36.02, 35.55, 36.54, 37.61],
    },
    Table63 {
        controller: [0.37, 0.37, 0.38, 0.43],
        sensing: [3.84, 3.49, 4.45, 6.39],
        network: [5.25, 4.85, 6.29, 8.74],
        actuating: [21.27, 19.49, 22.38, 24.84],
        period: [36.32, 35.70, 36.95, 38.76],
    },
];

/// Table 6.4 of the dissertation, with one entry for each column.
pub const TABLE_6_4: [Table64; 4] = [
    Table64 {
        pitch: 762.91,
        wheels: 152_090.0,
        volts: 2066.9,
        late: 0,
    },
    Table64 {
        pitch: 938.30,
        wheels: 217_080.0,
        volts: 2637.4,
        late: 10,
    },
    Table64 {
        pitch: 601.51,
        wheels: 179_590.0,
        volts: 2804.3,
        late: 0,
    },
    Table64 {
        pitch: 785.72,
        wheels: 129_440.0,
        volts: 2726.1,
        late: 1,
    },
];
