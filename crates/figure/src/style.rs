//! The look of series: colours that colour-blind readers can distinguish, plus dashes and markers for grey print. The
//! first colours are Okabe and Ito's, the rest follow Tol. For more than about ten series, colour alone is not enough,
//! so later series differ in dashes too.

use std::f64::consts::TAU;

use super::svg::Path;

/// The look of one series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Fill and line colour, `#rrggbb`.
    pub colour: &'static str,
    /// SVG dash array; empty for a solid line.
    pub dash: &'static str,
    marker: Marker,
    /// True if markers are outlines, as those of published points are.
    hollow: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marker {
    Circle,
    /// A polygon by its number of corners and the angle of the first one, in hundredths of a full turn (0 points
    /// right).
    Polygon(u8, u8),
    Star,
}

const COLOURS: [&str; 12] = [
    "#d55e00", "#0072b2", "#e69f00", "#009e73", "#4d4d4d", "#56b4e9", "#cc79a7", "#882255",
    "#999933", "#332288", "#117733", "#661100",
];
const DASHES: [&str; 5] = ["", "7 3", "2 2.5", "9 3 2 3", "4 2"];
const MARKERS: [Marker; 7] = [
    Marker::Circle,
    Marker::Polygon(4, 12),
    Marker::Polygon(3, 75),
    Marker::Polygon(4, 0),
    Marker::Polygon(3, 25),
    Marker::Star,
    Marker::Polygon(6, 0),
];

impl Style {
    /// Returns the style of the series at `index`; it is the same in every figure.
    pub fn of(index: usize) -> Style {
        Style {
            colour: COLOURS[index % COLOURS.len()],
            dash: DASHES[index % DASHES.len()],
            marker: MARKERS[index % MARKERS.len()],
            hollow: false,
        }
    }

    /// Returns the style of the published points at `index` of a figure: grey, dotted, with hollow markers.
    pub fn published(index: usize) -> Style {
        Style {
            marker: MARKERS[index % MARKERS.len()],
            hollow: true,
            ..Style::reference()
        }
    }

    /// Returns the SVG attributes of the style's marker.
    pub(super) fn paint(&self) -> Vec<(&'static str, &'static str)> {
        match self.hollow {
            true => vec![
                ("class", "published"),
                ("stroke", self.colour),
                ("stroke-width", "1.3"),
            ],
            false => vec![("fill", self.colour)],
        }
    }

    /// Returns the style of a reference for comparison that is not itself under test: thin and grey.
    pub fn reference() -> Style {
        Style {
            colour: "#8a8a8a",
            dash: "1 3",
            marker: Marker::Circle,
            hollow: false,
        }
    }

    /// Returns the same style without dashes, for the first of two compared series.
    pub fn solid(self) -> Style {
        Style { dash: "", ..self }
    }

    /// Returns the same style dashed, for the second of two compared series.
    pub fn dashed(self) -> Style {
        Style {
            dash: "5 4",
            ..self
        }
    }

    /// Returns the same style dotted, for a third series next to a solid and a dashed one.
    pub fn dotted(self) -> Style {
        Style {
            dash: "1.5 3",
            ..self
        }
    }

    /// Returns the style for a model of the series at `index`: the colour of that series, dotted.
    pub fn model(index: usize) -> Style {
        Style {
            colour: Style::of(index).colour,
            ..Style::reference()
        }
    }

    /// Returns the outline of the marker around a point; `radius` is that of a circle with equal area.
    pub(super) fn marker(&self, at: (f64, f64), radius: f64) -> String {
        let mut path = Path::default();
        let (corners, turn, radii): (u32, f64, &[f64]) = match self.marker {
            Marker::Circle => {
                path.circle(at.0, at.1, radius);
                return path.data().to_owned();
            }
            Marker::Polygon(3, turn) => (3, f64::from(turn) / 100.0, &[1.35]),
            Marker::Polygon(corners, turn) => {
                (u32::from(corners), f64::from(turn) / 100.0, &[1.25])
            }
            Marker::Star => (10, 0.75, &[1.5, 0.65]),
        };
        // The value 12 means an eighth of a turn, which whole hundredths cannot express. A square needs an eighth to
        // have horizontal edges.
        let turn = if turn == 0.12 { 0.125 } else { turn };
        for corner in 0..corners {
            let angle = TAU * (turn + f64::from(corner) / f64::from(corners));
            let reach = radius * radii[corner as usize % radii.len()];
            let (x, y) = (at.0 + reach * angle.cos(), at.1 + reach * angle.sin());
            if corner == 0 {
                path.move_to(x, y)
            } else {
                path.line_to(x, y)
            }
        }
        path.close();
        path.data().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_series_have_distinct_colours_and_neighbours_have_distinct_markers() {
        for index in 0..12 {
            for other in 0..index {
                assert_ne!(Style::of(index).colour, Style::of(other).colour);
            }
            assert_ne!(Style::of(index).marker, Style::of(index + 1).marker);
        }
    }

    /// Returns the contrast ratio of two colours `#rrggbb` (WCAG 2.2).
    fn contrast(one: &str, other: &str) -> f64 {
        let luminance = |colour: &str| -> f64 {
            let channel = |from: usize| {
                let value = u8::from_str_radix(&colour[from..from + 2], 16).unwrap_or(0);
                let value = f64::from(value) / 255.0;
                if value <= 0.04045 {
                    value / 12.92
                } else {
                    ((value + 0.055) / 1.055).powf(2.4)
                }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (one, other) = (luminance(one), luminance(other));
        (one.max(other) + 0.05) / (one.min(other) + 0.05)
    }

    #[test]
    fn series_and_text_have_enough_contrast_on_a_dark_page() {
        const PAGE: &str = "#14181d";
        let rule = |selector: &str| {
            let rule = crate::DARK.split_once(selector)?.1;
            Some(&rule.split_once(": #")?.1[..6])
        };
        for index in 0..12 {
            let colour = Style::of(index).colour;
            let on_dark = |attribute: &str| {
                let found = rule(&format!(
                    "svg.fig [{attribute}=\"{colour}\"] {{ {attribute}"
                ));
                found.map_or(colour.to_owned(), |found| format!("#{found}"))
            };
            assert_eq!(on_dark("stroke"), on_dark("fill"), "{colour}");
            let found = contrast(&on_dark("stroke"), PAGE);
            assert!(found >= 3.0, "{colour}: {found}");
        }
        for class in [".tick", ".axis", ".key", ".ink"] {
            let colour = rule(&format!("svg.fig {class}")).map(|it| format!("#{it}"));
            let found = colour.map_or(0.0, |colour| contrast(&colour, PAGE));
            assert!(found >= 4.5, "{class}: {found}");
        }
        assert!(contrast("#000000", "#ffffff") > 20.9);
    }

    #[test]
    fn sixty_series_have_distinct_lines_and_markers() {
        let line = |index| (Style::of(index).colour, Style::of(index).dash);
        let point = |index| {
            let Style { colour, marker, .. } = Style::of(index);
            (colour, format!("{marker:?}"))
        };
        for index in 0..60 {
            for other in 0..index {
                assert_ne!(line(index), line(other), "{index} {other}");
                assert_ne!(point(index), point(other), "{index} {other}");
            }
        }
    }
}
