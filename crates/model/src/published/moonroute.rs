//! MoonRoute's throughput over frequency, cores, table size and packet size. For each variable, a fit at two values
//! predicts the others. (Gallenmüller 2021, section 5.3, Figs. 5.7 to 5.9, eq. 5.8; the authors' data.)
//!
//! Memory accesses do not get faster with the clock of the core, so a packet takes `c / f + t_memory`.

use super::table::rows;
use super::{Check, CheckError, Group};
use crate::access::Edge;
use crate::estimate::{Estimate, WrongValue};
use crate::fit::{Design, LinearFit, Spread, choose, least_squares};
use crate::resource::bandwidth::ethernet_pps;

const CONFIDENCE: f64 = 0.95;
const LINE_BIT_S: f64 = 10e9;
const SMALLEST_BYTES: f64 = 64.0;
/// Number of ports of the machine on which cores and packet sizes were measured.
const PORTS: f64 = 2.0;
/// Size of the last-level cache of the machine on which frequencies and tables were measured, bytes.
const LLC_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// Size of a table entry, bytes.
const ENTRY_BYTES: f64 = 2.0;

const FREQUENCY: Group = Group {
    name: "MoonRoute, frequencies from 1.6 and 3.2 GHz",
    source: "Fig. 5.7, authors' data",
    unit: "Mpkt/s",
    limit: 0.03,
    held_out: true,
};
const FREQUENCY_FITTED: [f64; 2] = [1_600.0, 3_200.0];
const CORES: Group = Group {
    name: "MoonRoute, cores from 1 and 2",
    source: "Fig. 5.8, authors' data",
    ..FREQUENCY
};
const TABLE: Group = Group {
    name: "MoonRoute, tables from 2.2 and 3.2 GHz",
    source: "Fig. 5.9, authors' data",
    ..FREQUENCY
};
const TABLE_FITTED: [f64; 2] = [2_200.0, 3_200.0];
const SIZE: Group = Group {
    name: "MoonRoute, packet sizes from 64 to 256 B",
    source: "authors' data",
    ..FREQUENCY
};
const SIZE_FITTED_BYTES: f64 = 256.0;

/// A published rate, with the settings at which it was measured.
struct Row {
    series: &'static str,
    cores: f64,
    mhz: f64,
    x: f64,
    mpps: f64,
}

pub(super) fn checks() -> Result<Vec<Check>, CheckError> {
    let number = |field: &str| field.parse().unwrap_or(f64::NAN);
    let row = |fields: Vec<&'static str>| {
        let series = fields[0];
        let (x, mbit_s) = (number(fields[3]), number(fields[4]));
        let bytes = if series.starts_with("packet-size") {
            x
        } else {
            SMALLEST_BYTES
        };
        Row {
            series,
            cores: number(fields[1]),
            mhz: number(fields[2]),
            x,
            mpps: mbit_s / ((bytes + 20.0) * 8.0),
        }
    };
    let rows: Vec<Row> = rows(include_str!("../../data/moonroute.csv"))
        .map(row)
        .collect();
    let of = |prefix: &str| -> Vec<&Row> {
        rows.iter()
            .filter(|row| row.series.starts_with(prefix))
            .collect()
    };
    let mut checks = frequencies(&of("frequency-"))?;
    checks.extend(cores(&of("cores-"))?);
    checks.extend(tables(&of("table-size-"))?);
    checks.extend(sizes(&of("packet-size-"))?);
    Ok(checks)
}

/// Checks rates over frequencies. The fit has one cost in cycles for all tables, and one memory time for each table;
/// the memory time is zero for a table with a single entry.
fn frequencies(rows: &[&Row]) -> Result<Vec<Check>, CheckError> {
    let mut series: Vec<&str> = rows.iter().map(|row| row.series).collect();
    series.dedup();
    let terms = |row: &Row| -> Vec<f64> {
        let tables = series
            .iter()
            .skip(1)
            .map(|name| f64::from(u8::from(*name == row.series)));
        [1.0 / row.mhz].into_iter().chain(tables).collect()
    };
    let mut names = vec!["cycles"];
    names.extend(&series[1..]);
    let fitted = |row: &&&Row| FREQUENCY_FITTED.contains(&row.mhz);
    let fit = times(rows.iter().filter(fitted).copied(), &names, terms)?;
    let mut checks = Vec::new();
    for row in rows
        .iter()
        .filter(|row| !FREQUENCY_FITTED.contains(&row.mhz))
    {
        let what = format!(
            "{} at {} MHz",
            row.series.trim_start_matches("frequency-"),
            row.mhz
        );
        let rate = capped(
            fit.predict(&terms(row))?.map(|time_us| 1.0 / time_us),
            1.0,
            SMALLEST_BYTES,
        )?;
        checks.push(FREQUENCY.number(what, row.mpps, rate));
    }
    Ok(checks)
}

/// Checks rates over the number of cores: the rate of one core times their number, capped at line rate.
fn cores(rows: &[&Row]) -> Result<Vec<Check>, CheckError> {
    let mut checks = Vec::new();
    for series in rows.chunk_by(|a, b| (a.series, a.mhz) == (b.series, b.mhz)) {
        let (fitted, others): (Vec<&Row>, Vec<&Row>) =
            series.iter().partition(|row| row.cores <= 2.0);
        let counts: Vec<Vec<f64>> = fitted.iter().map(|row| vec![row.cores]).collect();
        let rates: Vec<f64> = fitted.iter().map(|row| row.mpps).collect();
        let design = Design::new(&["rate of a core"], &counts, &rates, Spread::Relative)?;
        let fit = least_squares(&design, CONFIDENCE)?;
        for row in others {
            let name = row.series.trim_start_matches("cores-");
            let what = format!("{name}, {} cores at {} MHz", row.cores, row.mhz);
            let rate = capped(fit.predict(&[row.cores])?, PORTS, SMALLEST_BYTES)?;
            checks.push(CORES.number(what, row.mpps, rate));
        }
    }
    Ok(checks)
}

/// Checks rates over table sizes. The fit has cycles, a time per access that misses the cache, and the table's share of
/// the cache. The rates of two slow cores that share the cache are predicted from those of one fast core.
fn tables(rows: &[&Row]) -> Result<Vec<Check>, CheckError> {
    let is_fitted = |row: &Row| row.cores == 1.0 && TABLE_FITTED.contains(&row.mhz);
    let terms = |row: &Row, share: f64| {
        let missed = 1.0 - Edge::new(share * LLC_BYTES).within(row.x * ENTRY_BYTES);
        vec![1.0 / row.mhz, missed]
    };
    let mut best: Option<(f64, LinearFit)> = None;
    for share in (20..=130).map(|percent| f64::from(percent) / 100.0) {
        let fitted = rows.iter().filter(|row| is_fitted(row)).copied();
        let fit = times(fitted, &["cycles", "memory"], |row| terms(row, share))?;
        if best
            .as_ref()
            .is_none_or(|(_, best)| fit.residual_std < best.residual_std)
        {
            best = Some((share, fit));
        }
    }
    let mut checks = Vec::new();
    let Some((share, fit)) = best else {
        return Ok(checks);
    };
    for row in rows.iter().filter(|row| !is_fitted(row)) {
        let what = format!(
            "2^{} networks, cores: {}, {} MHz",
            row.x.log2(),
            row.cores,
            row.mhz
        );
        let rate = fit
            .predict(&terms(row, share))?
            .map(|time_us| row.cores / time_us);
        checks.push(TABLE.number(what, row.mpps, capped(rate, 1.0, SMALLEST_BYTES)?));
    }
    Ok(checks)
}

/// Checks how the rate depends on the packet size. The fit has a time per packet and, if BIC selects that term, a time
/// per byte. The rate is capped at line rate.
fn sizes(rows: &[&Row]) -> Result<Vec<Check>, CheckError> {
    let (fitted, others): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.x <= SIZE_FITTED_BYTES);
    let columns: Vec<Vec<f64>> = fitted.iter().map(|row| vec![1.0, row.x]).collect();
    let times_us: Vec<f64> = fitted.iter().map(|row| 1.0 / row.mpps).collect();
    let design = Design::new(&["packet", "byte"], &columns, &times_us, Spread::Relative)?;
    let choice = choose(&design, &[vec![0], vec![0, 1]], CONFIDENCE)?;
    let mut checks = Vec::new();
    for row in others {
        let terms: Vec<f64> = choice
            .terms
            .iter()
            .map(|term| [1.0, row.x][*term])
            .collect();
        let rate = choice.fit.predict(&terms)?.map(|time_us| 1.0 / time_us);
        checks.push(SIZE.number(
            format!("{} B", row.x),
            row.mpps,
            capped(rate, PORTS, row.x)?,
        ));
    }
    Ok(checks)
}

/// Fits the time of a packet, µs.
fn times<'a>(
    rows: impl Iterator<Item = &'a Row>,
    names: &[&str],
    terms: impl Fn(&Row) -> Vec<f64>,
) -> Result<LinearFit, CheckError> {
    let (columns, times_us): (Vec<Vec<f64>>, Vec<f64>) =
        rows.map(|row| (terms(row), row.cores / row.mpps)).unzip();
    let design = Design::new(names, &columns, &times_us, Spread::Relative)?;
    Ok(least_squares(&design, CONFIDENCE)?)
}

/// Returns a rate (Mpkt/s) capped at the line rate of `ports` ports. If the line rate is below the whole interval of
/// the rate, the interval of the result has length zero.
fn capped(rate: Estimate, ports: f64, bytes: f64) -> Result<Estimate, WrongValue> {
    let line = ports * ethernet_pps(LINE_BIT_S, bytes)? / 1e6;
    Ok(rate.map(|rate| rate.min(line)))
}
