//! The OpenMetrics text format 1.0: families of metrics with type, unit and help, samples with labels.

use std::fmt::Write;

/// The meaning of a family's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that only increases; samples are called `NAME_total`.
    Counter,
    /// A metric with a current value, which may fall.
    Gauge,
    /// Counts of the values up to each of several limits; see [`Exposition::histogram`].
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// OpenMetrics text that is built one metric family at a time.
///
/// ```
/// use taut_live::metrics::{Exposition, Kind};
/// let mut text = Exposition::new();
/// text.family("taut_sent_packets", Kind::Counter, "packets", "Handed to the port.");
/// text.sample(&[("stream", "voice")], 12.0);
/// assert!(text.finish().contains("taut_sent_packets_total{stream=\"voice\"} 12\n"));
/// ```
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    name: String,
    suffix: &'static str,
}

impl Exposition {
    /// Makes a text without metric families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a metric family. The name must end with its unit, if there is one.
    pub fn family(&mut self, name: &str, kind: Kind, unit: &str, help: &str) {
        debug_assert!(
            unit.is_empty() || name.ends_with(&format!("_{unit}")),
            "{name}"
        );
        debug_assert!(!name.ends_with("_total"), "{name}");
        self.name = name.to_string();
        self.suffix = if kind == Kind::Counter { "_total" } else { "" };
        // Writing to memory does not fail.
        let _ = writeln!(self.text, "# TYPE {name} {}", kind.name());
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name} {}", escaped(help));
    }

    /// Adds a sample of the last family (not for histograms).
    pub fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        self.line(self.suffix, labels, value);
    }

    /// Adds a metric family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Kind, unit: &str, help: &str, value: f64) {
        self.family(name, kind, unit, help);
        self.sample(&[], value);
    }

    /// Adds a histogram of the last family. `at_most` contains each limit, in increasing order, with the number of
    /// values up to it. `count` is the number of all values, and `sum` is their sum.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        at_most: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        for (limit, n) in at_most.into_iter().chain([(f64::INFINITY, count)]) {
            let limit = number(limit);
            let labels = [labels, &[("le", limit.as_str())]].concat();
            self.line("_bucket", &labels, n as f64);
        }
        self.line("_count", labels, count as f64);
        self.line("_sum", labels, sum);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.text, "{}{suffix}{labels} {}", self.name, number(value));
    }

    /// Returns the complete text.
    pub fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

/// Joins the words of a name, as label values require: `tx full` becomes `tx_full`.
pub(super) fn one_word(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    words.join("_").to_ascii_lowercase()
}

/// Converts the text to the text format 0.0.4 of Prometheus, for clients that do not request OpenMetrics: families have
/// the names of their samples, and no units.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut suffix = "";
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        // Writing to memory does not fail.
        let _ = match words[..] {
            ["#", "EOF"] | ["#", "UNIT", ..] => Ok(()),
            ["#", "TYPE", name, kind] => {
                suffix = if kind == Kind::Counter.name() {
                    "_total"
                } else {
                    ""
                };
                writeln!(plain, "# TYPE {name}{suffix} {kind}")
            }
            // The text format of Prometheus does not escape quotes in help texts.
            ["#", "HELP", name, help] => {
                writeln!(
                    plain,
                    "# HELP {name}{suffix} {}",
                    help.replace("\\\"", "\"")
                )
            }
            _ => writeln!(plain, "{line}"),
        };
    }
    plain
}

fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_string()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_string()
    } else if value.fract() == 0.0 && value.abs() < 1e15 {
        format!("{value:.0}")
    } else {
        value.to_string()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_families_follow_openmetrics_and_prometheus_syntax() {
        let mut text = Exposition::new();
        text.family(
            "a_packets",
            Kind::Counter,
            "packets",
            "All \"of\" them.\nReally.",
        );
        text.sample(&[], 3.0);
        text.sample(&[("stream", "a\"b\\c\nd"), ("port", "1")], 1e9);
        text.family("b_seconds", Kind::Histogram, "seconds", "Times.");
        text.histogram(&[("stream", "x")], [(0.000_001, 1), (0.5, 4)], 5, 2.25);
        text.family("c", Kind::Gauge, "", "Now.");
        text.sample(&[], 0.5);
        let want = "# TYPE a_packets counter\n# UNIT a_packets packets\n\
            # HELP a_packets All \\\"of\\\" them.\\nReally.\n\
            a_packets_total 3\na_packets_total{stream=\"a\\\"b\\\\c\\nd\",port=\"1\"} 1000000000\n\
            # TYPE b_seconds histogram\n# UNIT b_seconds seconds\n# HELP b_seconds Times.\n\
            b_seconds_bucket{stream=\"x\",le=\"0.000001\"} 1\nb_seconds_bucket{stream=\"x\",le=\"0.5\"} 4\n\
            b_seconds_bucket{stream=\"x\",le=\"+Inf\"} 5\nb_seconds_count{stream=\"x\"} 5\n\
            b_seconds_sum{stream=\"x\"} 2.25\n\
            # TYPE c gauge\n# HELP c Now.\nc 0.5\n# EOF\n";
        let text = text.finish();
        assert_eq!(text, want);
        let want = "# TYPE a_packets_total counter\n# HELP a_packets_total All \"of\" them.\\nReally.\n\
            a_packets_total 3\na_packets_total{stream=\"a\\\"b\\\\c\\nd\",port=\"1\"} 1000000000\n\
            # TYPE b_seconds histogram\n# HELP b_seconds Times.\n\
            b_seconds_bucket{stream=\"x\",le=\"0.000001\"} 1\nb_seconds_bucket{stream=\"x\",le=\"0.5\"} 4\n\
            b_seconds_bucket{stream=\"x\",le=\"+Inf\"} 5\nb_seconds_count{stream=\"x\"} 5\n\
            b_seconds_sum{stream=\"x\"} 2.25\n\
            # TYPE c gauge\n# HELP c Now.\nc 0.5\n";
        assert_eq!(plain(&text), want);
    }

    #[test]
    fn spaces_and_punctuation_in_label_values_become_underscores() {
        for (name, word) in [
            ("tx full", "tx_full"),
            (
                "dropped: from or to an address",
                "dropped_from_or_to_an_address",
            ),
            ("told, untold", "told_untold"),
            ("dropped_by_rule", "dropped_by_rule"),
            (" ", ""),
        ] {
            assert_eq!(one_word(name), word);
        }
    }

    #[test]
    fn nan_and_infinities_are_written_by_name() {
        assert_eq!(
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(number),
            ["NaN", "+Inf", "-Inf"]
        );
    }
}
