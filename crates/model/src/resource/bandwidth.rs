//! Bandwidth of links, buses and memory, and the packet rates that they carry. (Gallenmüller 2021, Table 4.1; IEEE
//! 802.3, clause 4.4.2; PCI-SIG base specifications 1.0 to 5.0; JEDEC DDR3, DDR4, DDR5.)

use crate::estimate::{WrongValue, positive};

/// Overhead of an Ethernet frame on the wire, bytes: preamble and start 8, minimum gap 12.
pub const WIRE_OVERHEAD_BYTES: f64 = 20.0;

/// Packet rate limit of an Intel XL710 for frames of any size: it reaches 40 Gbit/s only with frames of 128 bytes or
/// more. (Gallenmüller 2021, section 4.1.1.)
pub const XL710_CAP_PPS: f64 = 33.7e6;

/// Names of Ethernet data rates, with the rate in bit/s.
pub const LINES: [(&str, f64); 8] = [
    ("1G", 1e9),
    ("2.5G", 2.5e9),
    ("10G", 10e9),
    ("25G", 25e9),
    ("40G", 40e9),
    ("100G", 100e9),
    ("200G", 200e9),
    ("400G", 400e9),
];

/// Returns the rate in bit/s of a name in [`LINES`]; `None` for other names.
pub fn line_bit_s(name: &str) -> Option<f64> {
    let line = LINES
        .iter()
        .find(|(line, _)| line.eq_ignore_ascii_case(name));
    line.map(|(_, bit_s)| *bit_s)
}

/// Returns the highest packet rate of an Ethernet link for frames of the given length, checksum (FCS) included.
///
/// # Errors
/// [`WrongValue`] for rates and lengths that are not above 0.
pub fn ethernet_pps(bit_s: f64, frame_bytes: f64) -> Result<f64, WrongValue> {
    let bit_s = positive("a line rate (bit/s)", bit_s)?;
    let frame_bytes = positive("a frame (bytes)", frame_bytes)?;
    Ok(bit_s / ((frame_bytes + WIRE_OVERHEAD_BYTES) * 8.0))
}

/// Returns the data rate of a PCI Express link in one direction, bit/s, after line coding: 8b/10b in generations 1 and
/// 2, 128b/130b in 3 to 5. The headers of PCI Express packets reduce the usable rate by about a tenth for large
/// packets. Returns `None` for other generations and widths.
pub fn pcie_bit_s(generation: u32, lanes: u32) -> Option<f64> {
    let lane_bit_s = match generation {
        1 => 2.5e9 * 8.0 / 10.0,
        2 => 5e9 * 8.0 / 10.0,
        3 => 8e9 * 128.0 / 130.0,
        4 => 16e9 * 128.0 / 130.0,
        5 => 32e9 * 128.0 / 130.0,
        _ => return None,
    };
    matches!(lanes, 1 | 2 | 4 | 8 | 16 | 32).then(|| lane_bit_s * f64::from(lanes))
}

/// Returns the data rate of memory, bit/s, for channels of 64 bit at `mega_transfers_s` million transfers per second.
///
/// # Errors
/// [`WrongValue`] for numbers that are not above 0.
pub fn memory_bit_s(mega_transfers_s: f64, channels: u32) -> Result<f64, WrongValue> {
    let transfers = positive("memory transfers (MT/s)", mega_transfers_s)?;
    let channels = positive("memory channels", f64::from(channels))?;
    Ok(transfers * 1e6 * 64.0 * channels)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns whether a value equals a printed number at the printed precision.
    fn rounds_to(value: f64, printed: f64, digits: i32) -> bool {
        (value - printed).abs() <= 0.5 * 10f64.powi(-digits) + 1e-9
    }

    #[test]
    fn packet_rates_of_smallest_frames_agree_with_table_4_1() {
        for (line, mpps) in [("10G", 14.88), ("40g", 59.52), ("100G", 148.81)] {
            let rate = ethernet_pps(line_bit_s(line).unwrap(), 64.0).unwrap();
            assert!(rounds_to(rate / 1e6, mpps, 2), "{line}: {rate}");
        }
        assert_eq!(line_bit_s("7G"), None);
    }

    #[test]
    fn bus_and_memory_bandwidths_agree_with_table_4_1() {
        for (generation, gbit_s) in [(2, 32.0), (3, 63.0), (4, 126.0)] {
            // The table prints 125 for the fourth generation; the rate after coding is 126.03.
            assert!(rounds_to(
                pcie_bit_s(generation, 8).unwrap() / 1e9,
                gbit_s,
                0
            ));
        }
        assert_eq!((pcie_bit_s(9, 8), pcie_bit_s(3, 7)), (None, None));
        for (transfers, gbit_s) in [(800.0, 51.0), (1_600.0, 102.0), (3_200.0, 205.0)] {
            assert!(rounds_to(
                memory_bit_s(transfers, 1).unwrap() / 1e9,
                gbit_s,
                0
            ));
        }
    }

    #[test]
    fn a_rate_capped_nic_reaches_line_rate_from_128_bytes() {
        assert!(ethernet_pps(40e9, 64.0).unwrap() > XL710_CAP_PPS);
        // The expected value is the line rate for frames of 128 bytes, computed by this model.
        assert!(rounds_to(
            ethernet_pps(40e9, 128.0).unwrap() / 1e6,
            33.78,
            2
        ));
        assert!((ethernet_pps(40e9, 128.0).unwrap() / XL710_CAP_PPS - 1.0).abs() < 0.003);
    }

    #[test]
    fn invalid_link_settings_are_refused() {
        assert!(ethernet_pps(f64::NAN, 64.0).is_err());
        assert!(ethernet_pps(10e9, -1.0).is_err());
        assert!(memory_bit_s(1_600.0, 0).is_err());
    }
}
