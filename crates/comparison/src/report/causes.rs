//! The causes of the slowest packets of each device: table, and the expected effect of timer ticks next to the measured
//! one.

use taut_bench::evaluate::Aliasing;
use taut_bench::report::Drawn;
use taut_bench::report::causes::cells;
use taut_figure::{Axis, Chart, Series, Style, scatter};
use taut_measure::quantity::{Quantity, count, rate, time};

use crate::evaluate::{Device, Evaluation};

/// Returns the rows of the table: a device's name, its number of outliers, and the fraction of each cause.
pub(super) fn rows(evaluation: &Evaluation) -> Vec<(String, Vec<String>)> {
    let row = |device: &Device| {
        let causes = device.causes.as_ref()?;
        let name = format!("{} ({})", device.info.label, device.info.transport.name());
        Some((name, cells(causes)))
    };
    evaluation.devices.iter().filter_map(row).collect()
}

/// Returns the device with the lowest latency, where ticks are most visible; none if no ticks were found.
fn lowest_with_ticks(evaluation: &Evaluation) -> Option<(&Device, &Aliasing)> {
    let with_ticks = evaluation.devices.iter().filter_map(|device| {
        let aliasing = device.causes.as_ref()?.aliasing.as_ref()?;
        Some((device, aliasing))
    });
    with_ticks.min_by(|(_, a), (_, b)| {
        let usual = |a: &Aliasing| a.scene.undisturbed_ns;
        usual(a).total_cmp(&usual(b))
    })
}

/// Returns the rate and the length of each kind of ticks.
fn ticks_in_words(aliasing: &Aliasing) -> String {
    let ticks: Vec<String> = aliasing
        .scene
        .interrupts
        .iter()
        .map(|i| format!("{:.4} a second for {}", i.per_second, time(i.cost_ns)))
        .collect();
    ticks.join(", ")
}

/// Draws the latency over time of the packets that a tick delayed, expected and measured. It shows the device with the
/// lowest latency, where ticks are most visible; none if no ticks were found.
pub(super) fn aliasing(evaluation: &Evaluation) -> Option<Drawn> {
    let (device, aliasing) = lowest_with_ticks(evaluation)?;
    let scene = &aliasing.scene;
    let expected: Vec<(f64, f64)> = scene
        .hits()
        .iter()
        .map(|hit| (hit.at_s, hit.latency_ns))
        .collect();
    let item = |label: &str, index, points| scatter::Item {
        series: Series {
            label: label.to_owned(),
            style: Style::of(index),
        },
        points,
    };
    let chart = Chart::new(
        "aliasing",
        "Packets held up by timer ticks, expected and measured",
        "Latency over time of the packets that a timer tick held up: as a simulation of both clocks expects, and as measured.",
    );
    let axis = |title, quantity| Axis {
        title,
        quantity,
        log: false,
    };
    // Packets that also waited for something other than a tick have higher latencies than expected. Shown in full, they
    // would make the expected values too small to read.
    let most = expected.iter().map(|point| point.1).fold(0.0, f64::max) * 2.0;
    let measured: Vec<(f64, f64)> = aliasing
        .measured
        .iter()
        .copied()
        .filter(|point| point.1 <= most)
        .collect();
    Some(Drawn {
        name: "aliasing",
        title: "Timer ticks, expected and measured",
        caption: format!(
            "{}, first repetition with ticks: {} of the packets held up by ticks, as noted by the loops, and those that a \
             simulation of the clocks expects: packets at {}, ticks found: {}. A constant rate samples ticks too seldom, which \
             draws slanted lines; their slope is the drift of one clock against the other (Gallenmüller, section 5.4).",
            device.info.label,
            count(measured.len() as u64),
            rate(scene.rate_pps),
            ticks_in_words(aliasing)
        ),
        svg: scatter::chart(
            &chart,
            axis("time (s)", Quantity::Seconds),
            axis("round-trip latency", Quantity::TimeNs),
            &[
                item("expected", 1, &expected),
                item("measured", 0, &measured),
            ],
        ),
        data: None,
    })
}
