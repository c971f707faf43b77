//! FLOWer: latency over the number of port pairs of a switch that real-time traffic passes. (Gallenmüller 2021, section
//! 3.4; a least-squares fit to the authors' data gives 714 ns a pair; the text states 729 ns for the first step.)

use super::table::numbers;
use super::{Check, CheckError, Group};
use crate::estimate::Estimate;
use crate::fit::Coefficient;
use crate::hops::{CONFIDENCE, Hops};

const LINE: Group = Group {
    name: "FLOWer, line over 24 loops",
    source: "section 3.4, authors' data",
    unit: "ns",
    limit: 0.001,
    held_out: false,
};
const LOOPS: Group = Group {
    name: "FLOWer, odd loops from even ones",
    limit: 0.03,
    held_out: true,
    ..LINE
};

/// Returns the published medians as pairs: the number of loops, and the latency in ns.
pub fn medians() -> Vec<(f64, f64)> {
    let rows = numbers(include_str!("../../data/flower.csv"));
    rows.iter().map(|row| (row[0], row[2])).collect()
}

pub(super) fn checks() -> Result<Vec<Check>, CheckError> {
    let all = medians();
    let line = Hops::of(&all)?;
    let of = |coefficient: &Coefficient| {
        Estimate::new(
            coefficient.value,
            coefficient.low,
            coefficient.high,
            CONFIDENCE,
        )
    };
    let pair = format!("a pair of ports more (R² {:.6})", line.r_squared);
    let mut checks = vec![
        LINE.number(pair, 714.0, of(&line.per_loop)?),
        LINE.number("without a pair".to_owned(), 942.0, of(&line.without)?),
    ];
    let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().partition(|(pairs, _)| pairs % 2.0 == 0.0);
    let from_even = Hops::of(&even)?.fit;
    for (pairs, measured) in odd {
        let what = format!("{pairs} pairs");
        checks.push(LOOPS.number(what, measured, from_even.predict(&[1.0, pairs])?));
    }
    Ok(checks)
}
