//! Legends: a strip above the plot, or labels at the ends of the lines, moved apart where they would overlap.

use super::axes::Panel;
use super::svg::{Anchor, Svg, shortened, text_width};
use super::{Column, Series};

const ROW: f64 = 18.0;
const SWATCH: f64 = 26.0;

/// Draws a strip of keys (line, marker, label) from `corner` (left, top), wrapped to `width`; returns its height.
pub fn strip(svg: &mut Svg, corner: (f64, f64), width: f64, series: &[&Series]) -> f64 {
    let (mut x, mut y) = corner;
    for series in series {
        let label = shortened(&series.label, 12.0, width - SWATCH - 6.0);
        let room = SWATCH + 6.0 + text_width(&label, 12.0) + 16.0;
        if x > corner.0 && x + room > corner.0 + width + 16.0 {
            (x, y) = (corner.0, y + ROW);
        }
        key(svg, (x, y + ROW / 2.0), series);
        svg.text(
            (x + SWATCH + 6.0, y + ROW / 2.0 + 4.0),
            Anchor::Start,
            "label",
            &label,
        );
        x += room;
    }
    if series.is_empty() {
        0.0
    } else {
        y + ROW - corner.1
    }
}

/// Returns the height of the strip that [`strip`] draws.
pub fn strip_height(width: f64, series: &[&Series]) -> f64 {
    strip(
        &mut Svg::new("", 0.0, 0.0, "", ""),
        (0.0, 0.0),
        width,
        series,
    )
}

/// Returns a list of series for the legend strip of each column, and the height of the highest of these strips, px.
/// `bounds` contains the left edge and the width of each column.
pub fn strips<'a, T>(
    columns: &'a [Column<T>],
    bounds: &[(f64, f64)],
    series: impl Fn(&'a T) -> &'a Series,
) -> (Vec<Vec<&'a Series>>, f64) {
    let keys = columns
        .iter()
        .map(|column| column.items.iter().map(&series).collect())
        .collect::<Vec<Vec<_>>>();
    let heights = keys.iter().zip(bounds);
    let highest = heights
        .map(|(keys, (_, width))| strip_height(*width, keys))
        .fold(0.0, f64::max);
    (keys, highest)
}

/// Draws, above a panel, the marker and the label of its only series.
pub fn above(svg: &mut Svg, panel: &Panel, series: &Series) {
    let Series { label, style } = series;
    svg.path(
        &style.marker((panel.left + 4.0, panel.top - 10.0), 3.6),
        &[("fill", style.colour)],
    );
    let corner = (panel.left + 13.0, panel.top - 6.0);
    svg.text(corner, Anchor::Start, "label", label);
}

fn key(svg: &mut Svg, middle: (f64, f64), series: &Series) {
    let Series { style, .. } = series;
    svg.line(
        middle,
        (middle.0 + SWATCH, middle.1),
        &[
            ("stroke", style.colour),
            ("stroke-width", "1.8"),
            ("stroke-dasharray", style.dash),
        ],
    );
    svg.path(
        &style.marker((middle.0 + SWATCH / 2.0, middle.1), 3.2),
        &style.paint(),
    );
}

/// Writes labels to the right of `x`, each as near as possible to its wanted y position (px). Labels stay at least one
/// line apart and within `top..=bottom`; a thin line joins a moved label to its data.
pub fn at_ends(svg: &mut Svg, x: f64, top: f64, bottom: f64, ends: &[(f64, &Series)]) {
    let mut order: Vec<&(f64, &Series)> = ends.iter().collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let heights = apart(
        &order.iter().map(|end| end.0).collect::<Vec<_>>(),
        15.0,
        top,
        bottom,
    );
    for ((wanted, series), y) in order.into_iter().zip(heights) {
        svg.line(
            (x + 2.0, *wanted),
            (x + 16.0, y),
            &[("stroke", series.style.colour), ("stroke-width", "1")],
        );
        svg.path(
            &series.style.marker((x + 21.0, y), 3.2),
            &series.style.paint(),
        );
        svg.text((x + 29.0, y + 4.0), Anchor::Start, "label", &series.label);
    }
}

/// Returns the ascending positions `wanted`, moved so that neighbours are at least `gap` apart, and within `low..=high`
/// if there is enough space.
fn apart(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut placed: Vec<f64> = wanted.to_vec();
    // Positions are found by relaxation: two neighbours that are too close both move by half of the overlap, and the
    // outermost are kept within the bounds.
    for _ in 0..200 {
        for index in 1..placed.len() {
            let overlap = gap - (placed[index] - placed[index - 1]);
            if overlap > 0.0 {
                placed[index - 1] -= overlap / 2.0;
                placed[index] += overlap / 2.0;
            }
        }
        for (index, position) in placed.iter_mut().enumerate() {
            let before = index as f64 * gap;
            let after = (wanted.len() - 1 - index) as f64 * gap;
            *position = position.min(high - after).max(low + before);
        }
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_labels_are_moved_apart_within_the_bounds() {
        let placed = apart(&[98.0, 99.0, 100.0], 15.0, 0.0, 100.0);
        assert!(
            placed.windows(2).all(|pair| pair[1] - pair[0] > 14.9),
            "{placed:?}"
        );
        assert!(
            placed.iter().all(|y| (0.0..=100.0).contains(y)),
            "{placed:?}"
        );
    }

    #[test]
    fn labels_with_enough_space_are_not_moved() {
        assert_eq!(apart(&[10.0, 50.0], 15.0, 0.0, 100.0), [10.0, 50.0]);
    }
}
