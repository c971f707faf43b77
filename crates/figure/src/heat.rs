//! Heat maps: a value for each pair of two variables, as a colour and as a number. The colours are viridis (van der
//! Walt and Smith 2015): equal steps look equal, also in grey print and to colour-blind readers.

use super::svg::{Anchor, Svg, shortened, text_width};
use super::{Axis, Chart, Scale};
use taut_measure::quantity::Quantity;

/// One of the two variables of a heat map: its title and its values in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Side {
    /// Name of the variable, which is the title of its axis.
    pub title: String,
    /// Values of the variable as text, in order.
    pub labels: Vec<String>,
}

const COLOURS: [[u8; 3]; 10] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x28, 0x78],
    [0x3e, 0x4a, 0x89],
    [0x31, 0x68, 0x8e],
    [0x26, 0x82, 0x8e],
    [0x1f, 0x9e, 0x89],
    [0x35, 0xb7, 0x79],
    [0x6d, 0xcd, 0x59],
    [0xb4, 0xde, 0x2c],
    [0xfd, 0xe7, 0x25],
];
const RIGHT: f64 = 16.0;
const TOP: f64 = 50.0;

/// Draws `cells`: a row for each label of `y`, from the top, with a value for each label of `x`. Cells without a finite
/// value are hatched. `value` is the axis that maps values to colours; if it is logarithmic, equal ratios of values
/// have equal differences of colour.
pub fn chart(
    chart: &Chart<'_>,
    value: Axis<'_>,
    x: &Side,
    y: &Side,
    cells: &[Vec<Option<f64>>],
) -> String {
    let at = |row: usize, column: usize| {
        let found = cells.get(row)?.get(column).copied()??;
        found.is_finite().then_some(found)
    };
    let (rows, columns) = (y.labels.len(), x.labels.len());
    let all = (0..rows).flat_map(|row| (0..columns).filter_map(move |column| at(row, column)));
    let colours = Colours::of(value, all);
    let widest = y.labels.iter().map(|label| text_width(label, 11.0));
    let left = 34.5 + widest.fold(20.0, f64::max).min(chart.width() / 4.0);
    let wide = (chart.width() - left - RIGHT) / columns.max(1) as f64;
    let high = (520.0 / rows.max(1) as f64).clamp(3.0, 28.0);
    let bottom = TOP + rows as f64 * high;
    let mut svg = chart.svg(bottom + 46.0);
    colours.key(&mut svg, value, left, chart.width() - RIGHT);
    if rows * columns == 0 {
        let middle = (chart.width() / 2.0, bottom + 14.0);
        svg.text(middle, Anchor::Middle, "empty", "no data");
        return svg.finish();
    }
    for row in 0..rows {
        for column in 0..columns {
            let corner = (left + column as f64 * wide, TOP + row as f64 * high);
            let found = at(row, column);
            let said = found.map_or("no data".to_owned(), |v| value.quantity.text(v));
            let tip = format!(
                "{said}|{} {}|{} {}",
                x.title, x.labels[column], y.title, y.labels[row]
            );
            svg.open(&[("data-tip", &tip)]);
            cell(
                &mut svg,
                &colours,
                value.quantity,
                corner,
                (wide, high),
                found,
            );
            svg.close();
        }
    }
    label_rows(&mut svg, y, left, high);
    label_columns(&mut svg, x, (left, bottom), wide);
    let middle = (left + chart.width() - RIGHT) / 2.0;
    svg.text((middle, bottom + 36.0), Anchor::Middle, "axis", &x.title);
    svg.text_upwards((16.0, (TOP + bottom) / 2.0), "axis", &y.title);
    svg.finish()
}

/// Draws the labels of the rows at the left of the cells, which begin at `left` px.
fn label_rows(svg: &mut Svg, y: &Side, left: f64, high: f64) {
    for row in every(&y.labels, |_| 12.0, high) {
        let label = shortened(&y.labels[row], 11.0, left - 34.0);
        let middle = TOP + (row as f64 + 0.5) * high + 3.8;
        svg.text((left - 7.0, middle), Anchor::End, "tick", &label);
    }
}

/// Draws the labels of the columns below the cells, whose lower left corner is at (`left`, `bottom`) px.
fn label_columns(svg: &mut Svg, x: &Side, (left, bottom): (f64, f64), wide: f64) {
    // Labels wider than their columns are shortened, but not to less than three letters.
    let room = wide.max(36.0) - 6.0;
    let cut: Vec<String> = x
        .labels
        .iter()
        .map(|label| shortened(label, 11.0, room))
        .collect();
    for column in every(&cut, |label| text_width(label, 11.0) + 6.0, wide) {
        let middle = left + (column as f64 + 0.5) * wide;
        svg.text(
            (middle, bottom + 16.0),
            Anchor::Middle,
            "tick",
            &cut[column],
        );
    }
}

/// Returns the indices of the labels to draw, evenly spaced and as many as fit without overlap: all, every second,
/// every third and so on. `size` measures a label, and each label has `room`, both in px.
fn every(labels: &[String], size: impl Fn(&str) -> f64, room: f64) -> impl Iterator<Item = usize> {
    let widest = labels.iter().map(|label| size(label)).fold(0.0, f64::max);
    let step = (widest / room.max(1.0)).ceil().max(1.0) as usize;
    (0..labels.len()).step_by(step)
}

fn cell(
    svg: &mut Svg,
    colours: &Colours,
    quantity: Quantity,
    (x, y): (f64, f64),
    (wide, high): (f64, f64),
    found: Option<f64>,
) {
    // Neighbouring cells overlap a little, because rounding could leave gaps through which the page is visible.
    let size = (wide + 0.4, high + 0.4);
    let Some(found) = found else {
        svg.rect((x, y), size, &[("class", "none")]);
        svg.line((x, y + high), (x + wide, y), &[("class", "strike")]);
        return;
    };
    let (fill, ink) = colours.at(found);
    svg.rect((x, y), size, &[("fill", &fill)]);
    let texts = [quantity.text(found), quantity.tick(found)];
    // A number is drawn in a small size rather than shortened, and not at all where it would be illegible.
    let fits =
        |text: &String, size: f64| text_width(text, size) + 2.0 <= wide && size + 2.0 <= high;
    let fitting = [11.0, 9.0].into_iter().find_map(|size| {
        let text = texts.iter().find(|text| fits(text, size))?;
        Some((text, size))
    });
    if let Some((text, size)) = fitting {
        let middle = (x + wide / 2.0, y + high / 2.0 + size * 0.35);
        svg.number_in(middle, size, ink, text);
    }
}

/// The mapping of a range of values to colours.
struct Colours {
    range: Scale,
}

impl Colours {
    fn of(value: Axis<'_>, values: impl Iterator<Item = f64>) -> Colours {
        let positive = |v: &f64| !value.log || *v > 0.0;
        let (min, max) = values
            .filter(positive)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |ends, v| {
                (ends.0.min(v), ends.1.max(v))
            });
        let plain = Scale::linear(value.quantity, 0.0, 1.0);
        let range = if value.log && max > min {
            Scale {
                min,
                max,
                ..Scale::log(value.quantity, [min, max])
            }
        } else if max > min {
            Scale { min, max, ..plain }
        } else if min.is_finite() {
            Scale {
                min,
                max: min,
                ..plain
            }
        } else {
            plain
        };
        Colours { range }
    }

    /// Returns the fill colour for a value, and a text colour that is legible on the fill.
    fn at(&self, value: f64) -> (String, &'static str) {
        let place = self.range.place(value);
        let place = if place.is_finite() { place } else { 0.0 };
        let along = place * (COLOURS.len() - 1) as f64;
        let index = (along as usize).min(COLOURS.len() - 2);
        let part = along - index as f64;
        let channel = |which: usize| {
            let (from, to) = (COLOURS[index][which], COLOURS[index + 1][which]);
            f64::from(from) + part * (f64::from(to) - f64::from(from))
        };
        let colour = [channel(0), channel(1), channel(2)];
        let ink = if luminance(colour) > EVEN {
            "#000"
        } else {
            "#fff"
        };
        let [red, green, blue] = colour.map(|part| part.round() as u8);
        (format!("#{red:02x}{green:02x}{blue:02x}"), ink)
    }

    /// Draws the bar that maps colours to values, from `left` to `right` px.
    fn key(&self, svg: &mut Svg, value: Axis<'_>, left: f64, right: f64) {
        const STEPS: u32 = 40;
        let title = shortened(value.title, 12.0, right - left);
        svg.text((left, 14.0), Anchor::Start, "axis", &title);
        let wide = ((right - left) * 0.5).min(260.0);
        let (low, high) = [self.range.min, self.range.max]
            .map(|v| value.quantity.text(v))
            .into();
        let start = left + text_width(&low, 11.0) + 6.0;
        svg.text((left, 32.0), Anchor::Start, "tick", &low);
        for step in 0..STEPS {
            let part = f64::from(step) / f64::from(STEPS);
            let (fill, _) = self.at(self.range.value_at(part));
            let each = wide / f64::from(STEPS);
            let corner = (start + part * wide, 22.0);
            svg.rect(corner, (each + 0.4, 12.0), &[("fill", &fill)]);
        }
        svg.text((start + wide + 6.0, 32.0), Anchor::Start, "tick", &high);
    }
}

/// The relative luminance on which black and white text have the same contrast.
const EVEN: f64 = 0.179;

/// Returns the relative luminance of a colour of WCAG 2.2, 0 to 1. Its parts are 0 to 255.
fn luminance(colour: [f64; 3]) -> f64 {
    let [red, green, blue] = colour.map(|part| match part / 255.0 {
        part if part <= 0.04045 => part / 12.92,
        part => ((part + 0.055) / 1.055).powf(2.4),
    });
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: Axis<'_> = Axis {
        title: "p99",
        quantity: Quantity::TimeNs,
        log: true,
    };

    #[test]
    fn heat_map_luminance_rises_with_values_and_text_has_contrast() {
        let colours = Colours::of(VALUE, [1.0, 1e6].into_iter());
        let light = |value: f64| {
            let (fill, ink) = colours.at(value);
            let rgb = u32::from_str_radix(&fill[1..], 16).unwrap_or(0);
            let parts = [rgb >> 16, rgb >> 8 & 255, rgb & 255];
            (luminance(parts.map(f64::from)), ink)
        };
        let mut before = 0.0;
        for power in 0..=240 {
            let (found, ink) = light(10_f64.powf(f64::from(power) / 40.0));
            assert!(found >= before - 0.002, "{power}");
            let contrast = match ink {
                "#000" => (found + 0.05) / 0.05,
                _ => 1.05 / (found + 0.05),
            };
            assert!(contrast >= 4.5, "{power}: {contrast}");
            before = found;
        }
    }

    #[test]
    fn heat_maps_of_one_value_or_none_have_colours() {
        for values in [vec![], vec![5.0], vec![5.0, 5.0], vec![0.0]] {
            let (fill, _) = Colours::of(VALUE, values.into_iter()).at(5.0);
            assert_eq!(fill.len(), 7);
        }
    }
}
