//! Points over two axes. Points that would cover each other are drawn as one, more opaque for more points, and the
//! legend states their number.

use super::axes::{Hover, Panel};
use super::svg::Svg;
use super::{Axis, Chart, Series};
use std::collections::BTreeMap;
use taut_measure::quantity::count;

/// The points of one series; those with a coordinate that is not finite are skipped.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Label and style of the series.
    pub series: Series,
    /// The points, x and y.
    pub points: &'a [(f64, f64)],
}

/// Edge lengths of the square cells whose points are drawn as one mark, px. The smallest cell that leaves at most
/// `MARKS` marks is used, or else the largest.
const CELLS: [f64; 3] = [4.0, 7.0, 11.0];
const MARKS: usize = 1_500;

/// The points of one series in one cell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Heap {
    count: u64,
    x: f64,
    y: f64,
}

/// Draws the points of all series in one panel.
pub fn chart(chart: &Chart<'_>, x: Axis<'_>, y: Axis<'_>, items: &[Item<'_>]) -> String {
    let points = || items.iter().flat_map(|item| finite(item.points));
    let scales = (
        x.scale(points().map(|point| point.0)),
        y.scale(points().map(|point| point.1)),
    );
    let keys: Vec<Series> = items.iter().map(counted).collect();
    let keys: Vec<&Series> = keys.iter().collect();
    chart.draw(
        Hover::Nearest,
        (scales.0, x.title),
        (scales.1, y.title),
        &keys,
        |svg, panel| {
            if points().next().is_none() {
                panel.empty(svg, "no data");
            }
            // Large series are drawn first, because they would cover small series that are drawn before them.
            let mut order: Vec<&Item<'_>> = items.iter().collect();
            order.sort_by_key(|item| std::cmp::Reverse(item.points.len()));
            for item in order {
                draw_heaps(svg, panel, item);
            }
        },
    )
}

fn finite(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    let points = points.iter().copied();
    points.filter(|(x, y)| x.is_finite() && y.is_finite())
}

/// Returns the series with its number of points in the label, because merged points cannot be counted in the figure.
fn counted(item: &Item<'_>) -> Series {
    let n = count(finite(item.points).count() as u64);
    Series {
        label: format!("{} (n = {n})", item.series.label),
        style: item.series.style,
    }
}

fn draw_heaps(svg: &mut Svg, panel: &Panel, item: &Item<'_>) {
    let Series { label, style } = &item.series;
    let (cell, heaps) = marks(panel, item.points);
    let most = heaps.iter().map(|heap| heap.count).max().unwrap_or(1) as f64;
    for heap in heaps {
        let n = heap.count as f64;
        let at = format!(
            "{label}|{} at {}",
            panel.y.quantity.text(heap.y / n),
            panel.x.quantity.text(heap.x / n)
        );
        let tip = if heap.count == 1 {
            at
        } else {
            format!("{at} on average|{} points here", count(heap.count))
        };
        // The opacity follows the logarithm of the counts, as cells of few points would be invisible otherwise.
        let part = n.ln() / most.ln().max(1.0);
        let radius = 2.2 + part * (cell / 2.0 - 1.8).max(0.5);
        let opacity = format!("{:.2}", 0.5 + 0.45 * part);
        let outline = style.marker((panel.px(heap.x / n), panel.py(heap.y / n)), radius);
        svg.path(
            &outline,
            &[
                ("fill", style.colour),
                ("fill-opacity", &opacity),
                ("data-tip", &tip),
            ],
        );
    }
}

/// Merges the points by the smallest cells that leave at most `MARKS` marks, or else by the largest cells. Returns the
/// edge length of these cells, px, and the merged points.
fn marks(panel: &Panel, points: &[(f64, f64)]) -> (f64, Vec<Heap>) {
    let mut cell = CELLS[0];
    let mut found = heaps(panel, points, cell);
    for larger in &CELLS[1..] {
        if found.len() <= MARKS {
            break;
        }
        cell = *larger;
        found = heaps(panel, points, cell);
    }
    (cell, found)
}

/// Returns the points merged by cells of `side` px: their number, and the sums of their coordinates.
fn heaps(panel: &Panel, points: &[(f64, f64)], side: f64) -> Vec<Heap> {
    let mut cells: BTreeMap<(i64, i64), Heap> = BTreeMap::new();
    for (x, y) in finite(points) {
        let cell = |px: f64| (px / side).floor() as i64;
        let heap = cells
            .entry((cell(panel.px(x)), cell(panel.py(y))))
            .or_default();
        heap.count += 1;
        heap.x += x;
        heap.y += y;
    }
    cells.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scale;
    use taut_measure::quantity::Quantity;

    #[test]
    fn thinned_scatter_plots_count_every_point_with_few_marks() {
        let panel = Panel {
            left: 50.0,
            top: 10.0,
            width: 300.0,
            height: 200.0,
            x: Scale::linear(Quantity::Number, 0.0, 1.0),
            y: Scale::linear(Quantity::Number, 0.0, 1.0),
        };
        let mut random = fastrand::Rng::with_seed(1);
        let mut points: Vec<(f64, f64)> = (0..100_000)
            .map(|_| (random.f64(), random.f64() * random.f64()))
            .collect();
        points.push((f64::NAN, 1.0));
        let (cell, heaps) = marks(&panel, &points);
        assert_eq!(heaps.iter().map(|heap| heap.count).sum::<u64>(), 100_000);
        assert!(cell > CELLS[0] && heaps.len() <= MARKS, "{}", heaps.len());
        let (cell, heaps) = marks(&panel, &points[..5]);
        assert_eq!((cell, heaps.len()), (CELLS[0], 5));
    }
}
