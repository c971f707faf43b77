//! Forwarding curves of a Linux router, forwarded over offered rate. The knee of a curve is the rate at which it
//! becomes flat; a fit at two packet sizes predicts the knee for all other sizes. (The authors' data of "The pos
//! Framework", Gallenmüller et al. 2021: bare metal, seven sizes, 0.1 to 2 Mpkt/s.)

use super::table::numbers;
use super::{Check, CheckError, Group};
use crate::fit::{Design, Spread, choose};
use crate::resource::bandwidth::ethernet_pps;

const CONFIDENCE: f64 = 0.95;
/// Packet sizes to which the cost of a packet is fitted, bytes.
const FITTED: [f64; 2] = [64.0, 512.0];
/// Frame check sequence, which the published sizes exclude, bytes.
const FCS_BYTES: f64 = 4.0;
const LINE_BIT_S: f64 = 10e9;
/// Share of the offered rate above which all packets count as forwarded: the generator's rate has an error of one
/// percent.
const ALL: f64 = 0.99;
const KNEES: Group = Group {
    name: "pos, knees of sizes not fitted",
    source: "authors' data",
    unit: "Mpkt/s",
    limit: 0.02,
    held_out: true,
};

pub(super) fn checks() -> Result<Vec<Check>, CheckError> {
    let curves = numbers(include_str!("../../data/pos.csv"));
    // At points whose forwarded rate is below the offered rate, the forwarded rate shows the time per packet.
    let overloaded: Vec<(f64, f64)> = curves
        .iter()
        .filter(|row| row[2] < ALL * row[1])
        .map(|row| (row[0], row[2]))
        .collect();
    let fitted: Vec<&(f64, f64)> = overloaded
        .iter()
        .filter(|(size, _)| FITTED.contains(size))
        .collect();
    let rows: Vec<Vec<f64>> = fitted.iter().map(|(size, _)| vec![1.0, *size]).collect();
    let times_us: Vec<f64> = fitted.iter().map(|(_, rate)| 1e6 / rate).collect();
    let design = Design::new(&["packet", "byte"], &rows, &times_us, Spread::Relative)?;
    let choice = choose(&design, &[vec![0], vec![0, 1]], CONFIDENCE)?;
    let mut checks = Vec::new();
    for curve in curves.chunk_by(|a, b| a[0] == b[0]) {
        let size = curve[0][0];
        if FITTED.contains(&size) {
            continue;
        }
        let terms: Vec<f64> = choice.terms.iter().map(|term| [1.0, size][*term]).collect();
        let line = ethernet_pps(LINE_BIT_S, size + FCS_BYTES)? / 1e6;
        let knee = choice
            .fit
            .predict(&terms)?
            .map(|time_us| (1.0 / time_us).min(line));
        let what = if knee.value < line {
            "processor"
        } else {
            "line"
        };
        let what = format!("{size} B, bound by the {what}");
        checks.push(KNEES.number(what, measured_knee(size, &overloaded), knee));
    }
    Ok(checks)
}

/// Returns the knee of the curve for packets of `size`, Mpkt/s. It is the mean of the forwarded rates at offered rates
/// that overload the router.
fn measured_knee(size: f64, overloaded: &[(f64, f64)]) -> f64 {
    let rates: Vec<f64> = overloaded
        .iter()
        .filter(|row| row.0 == size)
        .map(|row| row.1)
        .collect();
    rates.iter().sum::<f64>() / rates.len() as f64 / 1e6
}
