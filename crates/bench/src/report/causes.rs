//! The causes of the slowest packets in tables and figures: cells and colours.

use std::collections::BTreeSet;

use taut_model::Cause;

use crate::evaluate::Causes;
use taut_figure::{Series, Style};
use taut_measure::quantity::{count, share};

/// Returns the colour of a latency outlier's cause: warm for the device, cold for the generator, grey for all other
/// causes.
fn style(cause: Cause) -> Style {
    match cause {
        Cause::DeviceTick => Style::of(2),
        Cause::DeviceOther => Style::of(0),
        Cause::GeneratorTick => Style::of(5),
        Cause::GeneratorOther => Style::of(1),
        Cause::Behind => Style::of(6),
        Cause::Unexplained => Style::of(4),
    }
}

/// Returns the figures' series of packets that have the given cause.
fn series(cause: Cause) -> Series {
    Series {
        label: cause.name().to_owned(),
        style: style(cause),
    }
}

/// Returns a series for each cause that occurs among the packets, for the legend.
pub fn keys(causes: impl Iterator<Item = Option<Cause>>) -> Vec<Series> {
    let present: BTreeSet<Cause> = causes.flatten().collect();
    let all = Cause::ALL.into_iter();
    all.filter(|cause| present.contains(cause))
        .map(series)
        .collect()
}

/// Groups a device's slowest packets (time in s, latency in ns, cause) by cause. Packets without a known cause have the
/// device's colour.
pub fn by_cause(
    worst: &[((f64, f64), Option<Cause>)],
    own: Style,
) -> Vec<(Series, Vec<(f64, f64)>)> {
    let of = |cause: Option<Cause>| -> Vec<(f64, f64)> {
        let with = worst.iter().filter(|(_, found)| *found == cause);
        with.map(|(point, _)| *point).collect()
    };
    let unknown = Series {
        label: "one of the worst".to_owned(),
        style: own,
    };
    let known = Cause::ALL.map(|cause| (series(cause), of(Some(cause))));
    std::iter::once((unknown, of(None)))
        .chain(known)
        .filter(|(_, points)| !points.is_empty())
        .collect()
}

/// Returns the number of slowest packets, and the fraction of them with each cause, as cells of a table.
pub fn cells(causes: &Causes) -> Vec<String> {
    let shares = Cause::ALL.map(|cause| cell(causes, cause));
    std::iter::once(count(causes.spikes))
        .chain(shares)
        .collect()
}

fn cell(causes: &Causes, cause: Cause) -> String {
    let of_device = matches!(cause, Cause::DeviceTick | Cause::DeviceOther);
    if of_device && !causes.device_known {
        return "not known".to_owned();
    }
    share(causes.share(cause))
}
