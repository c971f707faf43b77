//! Writer of SVG elements: escaped text, short numbers, no layout.

use std::fmt::Write;

/// An SVG document under construction. Coordinates and sizes are in user units (px at 100 %).
#[derive(Debug)]
pub struct Svg {
    out: String,
}

/// The position of a text relative to its anchor point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// The text begins at the point.
    Start,
    /// The text is centred on the point.
    Middle,
    /// The text ends at the point.
    End,
}

// One style for all figures, so that a page with many of them stays consistent.
const STYLE: &str = "\
.fig{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;font-size:12px;fill:#1a1a1a}\
.fig .tick{font-size:11px;fill:#444}.fig .axis{font-size:12px;fill:#1a1a1a}.fig .head{font-size:13px;font-weight:600}\
.fig .note{font-size:11px;fill:#555}.fig .grid{stroke:#e4e4e4;stroke-width:1}.fig .minor{stroke:#f2f2f2;stroke-width:1}\
.fig .frame{stroke:#333;stroke-width:1;fill:none}.fig .mark{stroke:#333;stroke-width:1}\
.fig .line{fill:none;stroke-width:1.8;stroke-linejoin:round}.fig .dots{fill:none;stroke-linecap:round}\
.fig .hit{fill:#fff;fill-opacity:0}.fig .empty{font-size:12px;fill:#666;font-style:italic}\
.fig .ink{stroke:#111}.fig .guide{stroke:#555}.fig .faint{stroke:#999}.fig .paper,.fig .published{fill:#fff}\
.fig .key{fill:#444}.fig .keyline{stroke:#444}.fig .solid{fill:#333}.fig .none{fill:#f2f2f2}\
.fig .strike{stroke:#ccc}.fig .rim{stroke:#fff}";

/// Style rules for a page that contains figures: they adapt the figures to a dark background if the reader prefers one.
/// A figure that is opened as a separate file stays light.
pub const DARK: &str = include_str!("dark.css");

impl Svg {
    /// Starts a document of `width` x `height` with an accessible title and description. `name` makes the ids of the
    /// document unique on a page with several figures.
    pub fn new(name: &str, width: f64, height: f64, title: &str, description: &str) -> Svg {
        let mut svg = Svg {
            out: String::with_capacity(64 * 1024),
        };
        let _ = writeln!(
            svg.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fig\" id=\"{name}\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
             role=\"img\" aria-labelledby=\"{name}-title {name}-desc\">\
             <title id=\"{name}-title\">{}</title><desc id=\"{name}-desc\">{}</desc><style>{STYLE}</style>",
            escape(title),
            escape(description),
            name = escape(name),
            w = number(width),
            h = number(height),
        );
        svg
    }

    /// Ends the document and returns its text.
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }

    /// Opens a group; every attribute value is escaped. A `data-tip` is also written as a title.
    pub fn open(&mut self, attributes: &[(&str, &str)]) {
        self.out.push_str("<g");
        self.attributes(attributes);
        self.out.push('>');
        self.title(attributes);
        self.out.push('\n');
    }

    /// Animates the position or the rotation (`kind`) of the group opened last. `values` holds the positions or angles
    /// at equally spaced moments, separated by `;`. The animation lasts `seconds` and repeats.
    pub fn animate_transform(&mut self, kind: &str, values: &str, seconds: f64) {
        let _ = writeln!(
            self.out,
            "<animateTransform attributeName=\"transform\" type=\"{kind}\" values=\"{values}\" dur=\"{}s\" repeatCount=\"indefinite\"/>",
            number(seconds)
        );
    }

    /// Animates `attribute` of the group opened last: the attribute jumps from one of `values` to the next, with the
    /// timing of [`Svg::animate_transform`].
    pub fn animate(&mut self, attribute: &str, values: &str, seconds: f64) {
        let _ = writeln!(
            self.out,
            "<animate attributeName=\"{attribute}\" calcMode=\"discrete\" values=\"{values}\" dur=\"{}s\" repeatCount=\"indefinite\"/>",
            number(seconds)
        );
    }

    /// Closes the SVG group opened last.
    pub fn close(&mut self) {
        self.out.push_str("</g>\n");
    }

    /// Draws a straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), attributes: &[(&str, &str)]) {
        let _ = write!(
            self.out,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"",
            number(from.0),
            number(from.1),
            number(to.0),
            number(to.1)
        );
        self.attributes(attributes);
        self.out.push_str("/>\n");
    }

    /// Draws a rectangle, given its upper left corner and size.
    pub fn rect(&mut self, corner: (f64, f64), size: (f64, f64), attributes: &[(&str, &str)]) {
        let _ = write!(
            self.out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            number(corner.0),
            number(corner.1),
            number(size.0.max(0.0)),
            number(size.1.max(0.0))
        );
        self.attributes(attributes);
        self.out.push_str("/>\n");
    }

    /// Draws a path from finished path data. A `data-tip` or `data-label` is also written as a title.
    pub fn path(&mut self, data: &str, attributes: &[(&str, &str)]) {
        let _ = write!(self.out, "<path d=\"{data}\"");
        self.attributes(attributes);
        self.out.push('>');
        self.title(attributes);
        self.out.push_str("</path>\n");
    }

    /// Writes the title that a browser displays at the pointer. It needs no script, so it also works for a file that is
    /// opened on its own.
    fn title(&mut self, attributes: &[(&str, &str)]) {
        let told = |(name, _): &&(&str, &str)| matches!(*name, "data-tip" | "data-label");
        if let Some((_, text)) = attributes.iter().find(told) {
            let _ = write!(
                self.out,
                "<title>{}</title>",
                escape(&text.replace('|', "\n"))
            );
        }
    }

    /// Writes a line of text; `class` is a text class of the document's style sheet.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let _ = write!(
            self.out,
            "<text x=\"{}\" y=\"{}\"",
            number(at.0),
            number(at.1)
        );
        self.anchored(anchor, class, text);
    }

    /// Writes a line of text turned to read upwards, as along a y axis.
    pub fn text_upwards(&mut self, at: (f64, f64), class: &str, text: &str) {
        let _ = write!(
            self.out,
            "<text transform=\"translate({} {}) rotate(-90)\"",
            number(at.0),
            number(at.1)
        );
        self.anchored(Anchor::Middle, class, text);
    }

    /// Writes a centred number on a coloured rectangle; `ink` is the colour of the digits.
    pub fn number_in(&mut self, at: (f64, f64), size: f64, ink: &str, text: &str) {
        let (x, y) = (number(at.0), number(at.1));
        let _ = writeln!(
            self.out,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>",
            escape(text)
        );
    }

    fn anchored(&mut self, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.out,
            " class=\"{class}\" text-anchor=\"{anchor}\">{}</text>",
            escape(text)
        );
    }

    fn attributes(&mut self, attributes: &[(&str, &str)]) {
        for (name, value) in attributes {
            let _ = write!(self.out, " {name}=\"{}\"", escape(value));
        }
    }
}

/// Path data under construction: only absolute `M` and `L` commands, which the report's script can parse.
#[derive(Debug, Default)]
pub struct Path {
    data: String,
}

impl Path {
    /// Starts a new sub-path.
    pub fn move_to(&mut self, x: f64, y: f64) {
        let _ = write!(self.data, "M{},{}", number(x), number(y));
    }

    /// Draws a line from the last point.
    pub fn line_to(&mut self, x: f64, y: f64) {
        let _ = write!(self.data, "L{},{}", number(x), number(y));
    }

    /// Draws a dot: a line without length, visible through its round cap.
    pub fn dot(&mut self, x: f64, y: f64) {
        let _ = write!(self.data, "M{},{}h0", number(x), number(y));
    }

    /// Draws a circle, as two halves.
    pub fn circle(&mut self, x: f64, y: f64, radius: f64) {
        self.move_to(x - radius, y);
        for across in [2.0 * radius, -2.0 * radius].map(number) {
            let r = number(radius);
            let _ = write!(self.data, "a{r},{r} 0 0 1 {across},0");
        }
        self.close();
    }

    /// Closes the current sub-path.
    pub fn close(&mut self) {
        self.data.push('Z');
    }

    /// Returns a line through the points.
    pub fn through(points: impl IntoIterator<Item = (f64, f64)>) -> Path {
        let mut path = Path::default();
        for (index, (x, y)) in points.into_iter().enumerate() {
            if index == 0 {
                path.move_to(x, y)
            } else {
                path.line_to(x, y)
            }
        }
        path
    }

    /// Returns the path data.
    pub fn data(&self) -> &str {
        &self.data
    }
}

/// Returns a coordinate as text with at most one decimal, because further decimals are invisible; `0` for a value that
/// is not finite.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// Returns the approximate width in px of `text` at `size` px in a sans-serif face. The estimate assumes the wide face
/// DejaVu Sans, so it is more often too large than too small.
pub fn text_width(text: &str, size: f64) -> f64 {
    let em: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'l' | 'j' | '.' | ',' | ':' | ';' | '|' | '\'' | '!' | ' ' | '\u{202f}' => 0.32,
            'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.41,
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.95,
            c if c.is_ascii_uppercase() => 0.70,
            _ => 0.63,
        })
        .sum();
    em * size
}

/// Returns `text` if it is at most `width` px wide at `size` px, else its beginning and an ellipsis.
pub fn shortened(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if text_width(&short, size) + 0.6 * size > width {
            short.pop();
            break;
        }
    }
    short.trim_end().to_owned() + "…"
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0 has no control characters; they would make the file unreadable.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        let mut svg = Svg::new("f", 10.0, 10.0, "a<b & \"c\"", "d\u{0}");
        svg.open(&[("data-label", "x\"y")]);
        svg.close();
        let text = svg.finish();
        assert!(text.contains("a&lt;b &amp; &quot;c&quot;"));
        assert!(text.contains("data-label=\"x&quot;y\""));
        assert!(!text.contains('\u{0}'));
    }

    #[test]
    fn tooltips_for_scripts_are_also_written_as_svg_titles() {
        let mut svg = Svg::new("f", 10.0, 10.0, "", "");
        svg.path("M0,0", &[("data-tip", "a<|b")]);
        svg.path("M0,0", &[("fill", "none")]);
        let text = svg.finish();
        assert!(text.contains("<title>a&lt;\nb</title></path>"), "{text}");
        assert_eq!(text.matches("</title></path>").count(), 1);
    }

    #[test]
    fn long_text_is_truncated_to_the_available_width() {
        assert_eq!(shortened("short", 12.0, 100.0), "short");
        let cut = shortened("a very long name of a series", 12.0, 80.0);
        assert!(
            cut.ends_with('…') && text_width(&cut, 12.0) <= 80.0,
            "{cut}"
        );
        assert_eq!(shortened("wide", 12.0, 1.0), "…");
    }

    #[test]
    fn numbers_are_short_and_always_finite() {
        assert_eq!(number(1.0), "1");
        assert_eq!(number(-0.001), "0");
        assert_eq!(number(12.345), "12.3");
        assert_eq!(number(f64::NAN), "0");
        assert_eq!(number(f64::INFINITY), "0");
    }
}
