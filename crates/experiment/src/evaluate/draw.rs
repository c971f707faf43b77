//! Selects the values that the figures of a report show; the figure crate draws them.

use super::selection::{Group, Runs, SIDE, latencies, number, rows};
use super::table::{csv_line, quantity_of};
use crate::build::{HEAD, names_build};
use crate::definition::{FigureDefinition, FigureKind, LogAxes, Published};
use crate::experiment::Experiment;
use crate::folder::IndexedRun;
use crate::variables::text_of;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::cell::RefCell;
use taut_figure::{
    Axis, Chart, Column, Distribution, Item, Series, Style, boxes, cdf, curves, heat, histogram,
    percentiles, scatter, stack,
};
use taut_measure::quantity::Quantity;
use taut_measure::{LatencyHistogram, median};

/// Maximum number of series in a figure, so that it stays readable.
const MOST_SERIES: usize = 40;

/// A drawn figure of the report.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Figure {
    /// Name of the figure's files, without extension.
    pub name: String,
    /// Heading of the figure.
    pub title: String,
    /// Note for the reader below the figure.
    pub caption: String,
    /// The figure as SVG.
    #[serde(skip)]
    pub svg: String,
    /// Data of the figure as CSV; each line names the runs from which it was derived.
    #[serde(skip)]
    pub data: String,
    /// Names of the runs that the figure shows.
    pub runs: Vec<String>,
}

/// Draws one figure of the report.
pub(crate) fn draw(
    experiment: &Experiment,
    figure: &FigureDefinition,
    runs: &Runs,
) -> Result<Figure, String> {
    let head = head_only(experiment, figure).then(|| runs.of_build(HEAD));
    let runs = head.as_ref().unwrap_or(runs);
    let side = runs.overlaid.then(|| SIDE.to_owned());
    let by: Vec<String> = figure
        .by
        .iter()
        .map(|name| name.get_ref().clone())
        .chain(side)
        .collect();
    let groups = series_of(experiment, figure, runs, &by)?;
    let title = if figure.title.is_empty() {
        figure.name.clone()
    } else {
        figure.title.clone()
    };
    let drawing = Drawing {
        experiment,
        figure,
        runs,
        groups: &groups,
        by: &by,
        title: &title,
    };
    let (svg, data, caption) = match figure.kind {
        FigureKind::Histogram | FigureKind::Cdf | FigureKind::Percentiles => {
            drawing.distribution()?
        }
        FigureKind::Box => drawing.boxes()?,
        FigureKind::Line => drawing.lines()?,
        FigureKind::Scatter => drawing.scatter()?,
        FigureKind::HeatMap => drawing.heat_map()?,
        FigureKind::Stack => drawing.stack()?,
    };
    let members = groups.iter().flat_map(|group| runs.ids(group)).collect();
    Ok(Figure {
        name: figure.name.clone(),
        title,
        caption: match sources(figure) {
            Some(sources) => format!("{caption} Published: {sources}.").trim().to_owned(),
            None => caption,
        },
        svg,
        data,
        runs: members,
    })
}

/// Returns true if a figure does not distinguish the two builds of an experiment, and so shows only the head.
fn head_only(experiment: &Experiment, figure: &FigureDefinition) -> bool {
    let axes = [&figure.x, &figure.y, &figure.value].into_iter().flatten();
    let mut names = axes.chain(&figure.by).chain(&figure.only);
    experiment.against.is_some() && !names.any(|name| names_build(name.get_ref()))
}

/// Returns the groups of runs that a figure shows; each group is a series.
fn series_of(
    experiment: &Experiment,
    figure: &FigureDefinition,
    runs: &Runs,
    by: &[String],
) -> Result<Vec<Group>, String> {
    let problem = RefCell::new(None);
    let wanted = |run: &IndexedRun| {
        figure.only.as_ref().is_none_or(|only| {
            experiment
                .templates
                .holds(only.get_ref(), &run.variables)
                .unwrap_or_else(|reason| {
                    problem.borrow_mut().get_or_insert(reason);
                    false
                })
        })
    };
    let groups = runs.groups_where(by, wanted);
    if let Some(reason) = problem.take() {
        return Err(format!("only: {reason}"));
    }
    if groups.is_empty() {
        return Err("no run to show".to_owned());
    }
    if groups.len() > MOST_SERIES {
        return Err(format!(
            "{} series cannot be distinguished: choose fewer variables in `by`",
            groups.len()
        ));
    }
    Ok(groups)
}

/// Returns the series for the published points with index `index` in a figure.
fn published_series(index: usize, published: &Published) -> Series {
    Series {
        label: published_label(published),
        style: Style::published(index),
    }
}

/// Returns the published values as one bar of a stack figure.
fn published_stack(published: &Published) -> stack::Item {
    stack::Item {
        series: Series {
            label: published_label(published),
            style: Style::reference(),
        },
        parts: published
            .values
            .iter()
            .map(|value| value.is_finite().then_some(*value))
            .collect(),
    }
}

/// Returns the label of published points in the legend.
fn published_label(published: &Published) -> String {
    match published.name.starts_with("published") {
        true => published.name.clone(),
        false => format!("published: {}", published.name),
    }
}

/// Returns the sources of the published points in a figure, each source once.
fn sources(figure: &FigureDefinition) -> Option<String> {
    let mut sources: Vec<&str> = figure.published.iter().map(|it| &*it.source).collect();
    sources.retain(|source| !source.is_empty());
    sources.dedup();
    (!sources.is_empty()).then(|| sources.join("; "))
}

struct Drawing<'a> {
    experiment: &'a Experiment,
    figure: &'a FigureDefinition,
    runs: &'a Runs,
    groups: &'a [Group],
    by: &'a [String],
    title: &'a str,
}

type Drawn = Result<(String, String, String), String>;

impl Drawing<'_> {
    fn chart(&self) -> Chart<'_> {
        Chart::new(&self.figure.name, self.title, self.title)
    }

    fn series(&self) -> Vec<Series> {
        let label = |group: &Group| {
            let values = self.by.iter().zip(&group.of);
            let words: Vec<String> = values.map(|(name, value)| named(name, value)).collect();
            if words.is_empty() {
                "all runs".to_owned()
            } else {
                words.join(", ")
            }
        };
        self.groups
            .iter()
            .zip(self.styles())
            .map(|(group, style)| Series {
                label: label(group),
                style,
            })
            .collect()
    }

    /// Returns the styles of the series. In a comparison of two experiments, series of the same combination have the
    /// same colour; lines of A are solid, lines of B are dashed.
    fn styles(&self) -> Vec<Style> {
        if !self.runs.overlaid {
            return (0..self.groups.len()).map(Style::of).collect();
        }
        let mut seen: Vec<&[Value]> = Vec::new();
        let mut styles = Vec::new();
        for group in self.groups {
            let (side, common) = group.of.split_last().unwrap_or((&Value::Null, &[]));
            let place = seen.iter().position(|other| *other == common);
            let style = Style::of(place.unwrap_or(seen.len()));
            if place.is_none() {
                seen.push(common);
            }
            styles.push(if side == "B" {
                style.dashed()
            } else {
                style.solid()
            });
        }
        styles
    }

    /// Returns the value of a key that this kind of figure needs; it is an error if the definition does not have the
    /// key.
    fn needed<'b>(
        &self,
        key: &str,
        value: &'b Option<toml::Spanned<String>>,
    ) -> Result<&'b str, String> {
        value
            .as_ref()
            .map(|value| value.get_ref().as_str())
            .ok_or_else(|| format!("a figure of this kind needs `{key}`"))
    }

    /// Returns the values of a metric or variable for the runs in a group. A group without values yields an empty list.
    /// It is an error if no run in any group has a value.
    fn values(&self, group: &Group, name: &str) -> Result<Vec<f64>, String> {
        if self.runs.values(name).next().is_none() {
            return Err(self.runs.no_metric(name));
        }
        Ok(self.runs.values_of(group, name))
    }

    fn is_log(&self, axis: LogAxes) -> bool {
        self.figure.log == axis || self.figure.log == LogAxes::Xy
    }

    fn csv_head(&self, more: &[&str]) -> String {
        csv_line(
            self.by
                .iter()
                .cloned()
                .chain(more.iter().map(|word| (*word).to_owned())),
        )
    }

    fn csv_row(group: &Group, more: impl IntoIterator<Item = String>) -> String {
        csv_line(group.of.iter().map(text_of).chain(more))
    }

    fn distribution(&self) -> Drawn {
        let samples = self
            .figure
            .samples
            .as_ref()
            .map_or("latency", |s| s.get_ref().as_str());
        let mut all: Vec<LatencyHistogram> = Vec::new();
        for group in self.groups {
            all.push(latencies(self.runs, group, samples)?);
        }
        let items: Vec<Item<'_>> = self
            .series()
            .into_iter()
            .zip(&all)
            .map(|(series, latency)| Item {
                series,
                values: Distribution::Latency(latency),
            })
            .collect();
        let log_x = self.is_log(LogAxes::X);
        let axis = Axis {
            title: "latency",
            quantity: Quantity::TimeNs,
            log: log_x,
        };
        let chart = self.chart();
        let svg = match self.figure.kind {
            FigureKind::Histogram => histogram::chart(&chart, axis, "packets", &items),
            FigureKind::Cdf => {
                let share = if self.is_log(LogAxes::Y) {
                    cdf::Share::AtLeast
                } else {
                    cdf::Share::AtMost
                };
                cdf::chart(&chart, axis, share, "packets", &items, &self.published())
            }
            _ => percentiles::chart(&chart, Axis { log: true, ..axis }, "packets", &items),
        };
        let mut data = self.csv_head(&["low_ns", "high_ns", "packets", "runs"]);
        for (group, latency) in self.groups.iter().zip(&all) {
            let runs = self.runs.ids(group).join(" ");
            for bucket in latency.iter() {
                let numbers =
                    [bucket.low_ns, bucket.high_ns, bucket.count].map(|number| number.to_string());
                data += &Self::csv_row(group, numbers.into_iter().chain([runs.clone()]));
            }
        }
        let packets = all
            .iter()
            .fold(0_u64, |sum, one| sum.saturating_add(one.count()));
        Ok((
            svg,
            data,
            format!("{packets} packets of {} runs.", self.member_count()),
        ))
    }

    /// Returns the published points that a CDF shows.
    fn published(&self) -> Vec<cdf::Published> {
        let all = self.figure.published.iter().enumerate();
        all.map(|(index, published)| cdf::Published {
            series: published_series(index, published),
            points: published.points.clone(),
        })
        .collect()
    }

    fn member_count(&self) -> usize {
        self.groups.iter().map(|group| group.members.len()).sum()
    }

    fn boxes(&self) -> Drawn {
        let metric = self.needed("y", &self.figure.y)?;
        let mut all = Vec::new();
        for group in self.groups {
            let mut values = self.values(group, metric)?;
            values.sort_by(f64::total_cmp);
            all.push(values);
        }
        let items = self
            .series()
            .into_iter()
            .zip(&all)
            .map(|(series, values)| Item {
                series,
                values: Distribution::Sorted(values),
            })
            .collect();
        let axis = Axis {
            title: &in_words(metric),
            quantity: quantity_of(metric),
            log: self.is_log(LogAxes::X) || self.is_log(LogAxes::Y),
        };
        let svg = boxes::chart(
            &self.chart(),
            axis,
            "runs",
            &[Column {
                heading: String::new(),
                items,
            }],
        );
        Ok((
            svg,
            self.values_csv(&[metric]),
            format!("One value per run, {} runs.", self.member_count()),
        ))
    }

    /// Returns CSV with one line per run, which contains the values of `metrics`.
    fn values_csv(&self, metrics: &[&str]) -> String {
        let mut data = self.csv_head(&[metrics, &["run"]].concat());
        for group in self.groups {
            for index in &group.members {
                let run = &self.runs.runs[*index];
                let cells = metrics.iter().map(|metric| {
                    number(run, metric)
                        .map(|value| value.to_string())
                        .unwrap_or_default()
                });
                data += &Self::csv_row(group, cells.chain([run.id.clone()]));
            }
        }
        data
    }

    fn lines(&self) -> Drawn {
        let (x, y) = (
            self.needed("x", &self.figure.x)?,
            self.needed("y", &self.figure.y)?,
        );
        let (of_x, of_y) = (quantity_of(x), quantity_of(y));
        let mut all = Vec::new();
        let mut few = false;
        for (group, series) in self.groups.iter().zip(self.series()) {
            self.values(group, x)?;
            self.values(group, y)?;
            let mut points: Vec<curves::Point> = self
                .at_each(group, x)
                .into_iter()
                .filter_map(|(at, members)| {
                    let values: Vec<f64> = members
                        .iter()
                        .filter_map(|index| number(&self.runs.runs[*index], y))
                        .collect();
                    few |= values.len() < 6;
                    curves::Point::of_runs(at, of_x, &values, of_y)
                })
                .collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            all.push(curves::Curve { series, points });
        }
        for (index, published) in self.figure.published.iter().enumerate() {
            let points = published.points.iter();
            all.push(curves::Curve {
                series: published_series(index, published),
                points: points
                    .filter_map(|(at, value)| curves::Point::of_runs(*at, of_x, &[*value], of_y))
                    .collect(),
            });
        }
        let titles = [in_words(x), in_words(y)];
        let axes = self.axes([x, y], &titles);
        let svg = curves::chart(&self.chart(), axes.0, axes.1, curves::Extent::Band, all);
        let spread = if few {
            "goes from the smallest to the largest where there are fewer than six runs, too few for 95 %"
        } else {
            "is the interval that covers the median in 95 % or more"
        };
        Ok((
            svg,
            self.values_csv(&[x, y]),
            format!(
                "Median of the runs; the band {spread}. {} runs.",
                self.member_count()
            ),
        ))
    }

    /// Returns the axes of a figure that shows the variable or metric `y` over `x`.
    fn axes<'b>(&self, [x, y]: [&str; 2], titles: &'b [String; 2]) -> (Axis<'b>, Axis<'b>) {
        (
            Axis {
                title: &titles[0],
                quantity: quantity_of(x),
                log: self.is_log(LogAxes::X),
            },
            Axis {
                title: &titles[1],
                quantity: quantity_of(y),
                log: self.is_log(LogAxes::Y),
            },
        )
    }

    /// Returns the runs in a group by their value of the variable or metric `x`, as indices.
    fn at_each(&self, group: &Group, x: &str) -> Vec<(f64, Vec<usize>)> {
        let mut all: Vec<(f64, Vec<usize>)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for index in &group.members {
            let Some(at) = number(&self.runs.runs[*index], x) else {
                continue;
            };
            // The addition of 0.0 turns -0.0 into 0.0, so that the two zeros are one value.
            let place = *places.entry((at + 0.0).to_bits()).or_insert_with(|| {
                all.push((at, Vec::new()));
                all.len() - 1
            });
            all[place].1.push(*index);
        }
        all
    }

    fn scatter(&self) -> Drawn {
        let (x, y) = (
            self.needed("x", &self.figure.x)?,
            self.needed("y", &self.figure.y)?,
        );
        let mut all: Vec<Vec<(f64, f64)>> = Vec::new();
        if let Some(file) = &self.figure.samples {
            let mut data = self.csv_head(&[x, y]);
            for group in self.groups {
                let points = rows(self.runs, group, file.get_ref(), [x, y])?;
                for (x, y) in &points {
                    data += &Self::csv_row(group, [x.to_string(), y.to_string()]);
                }
                all.push(points);
            }
            let note = format!("A point per row of {}, in each run.", file.get_ref());
            return Ok((self.scatter_chart(x, y, &all), data, note));
        }
        for group in self.groups {
            self.values(group, x)?;
            self.values(group, y)?;
            let point = |index: &usize| {
                Some((
                    number(&self.runs.runs[*index], x)?,
                    number(&self.runs.runs[*index], y)?,
                ))
            };
            all.push(group.members.iter().filter_map(point).collect());
        }
        Ok((
            self.scatter_chart(x, y, &all),
            self.values_csv(&[x, y]),
            format!("A point per run, {} runs.", self.member_count()),
        ))
    }

    /// Draws the points of each group.
    fn scatter_chart(&self, x: &str, y: &str, all: &[Vec<(f64, f64)>]) -> String {
        let items: Vec<scatter::Item<'_>> = self
            .series()
            .into_iter()
            .zip(all)
            .map(|(series, points)| scatter::Item { series, points })
            .collect();
        let titles = [in_words(x), in_words(y)];
        let axes = self.axes([x, y], &titles);
        scatter::chart(&self.chart(), axes.0, axes.1, &items)
    }

    fn heat_map(&self) -> Drawn {
        let (x, y) = (
            self.needed("x", &self.figure.x)?,
            self.needed("y", &self.figure.y)?,
        );
        let metric = self.needed("value", &self.figure.value)?;
        let known = self.experiment.loop_names();
        for axis in [x, y] {
            if !known.iter().any(|name| name == axis) {
                return Err(format!(
                    "`{axis}` is not a loop variable: a heat map needs one per axis"
                ));
            }
        }
        let sides = [x, y].map(|axis| self.side(axis));
        let mut cells = vec![vec![None; sides[0].labels.len()]; sides[1].labels.len()];
        let mut data = csv_line([x, y, metric, "runs"].map(ToOwned::to_owned));
        for pair in self.runs.groups(&[x.to_owned(), y.to_owned()]) {
            let place = |side: &heat::Side, value: &Value| {
                side.labels
                    .iter()
                    .position(|label| *label == text_of(value))
            };
            let value = median(&self.values(&pair, metric)?);
            if let (Some(column), Some(row)) =
                (place(&sides[0], &pair.of[0]), place(&sides[1], &pair.of[1]))
            {
                cells[row][column] = value;
            }
            let value = value.map(|value| value.to_string()).unwrap_or_default();
            data += &Self::csv_row(&pair, [value, self.runs.ids(&pair).join(" ")]);
        }
        let axis = Axis {
            title: &in_words(metric),
            quantity: quantity_of(metric),
            log: self.figure.log != LogAxes::None,
        };
        let svg = heat::chart(&self.chart(), axis, &sides[0], &sides[1], &cells);
        Ok((
            svg,
            data,
            format!("Median of the runs, {} runs.", self.runs.runs.len()),
        ))
    }

    fn stack(&self) -> Drawn {
        let parts: Vec<&str> = self
            .figure
            .parts
            .iter()
            .map(|it| it.get_ref().as_str())
            .collect();
        let Some(first) = parts.first() else {
            return Err("a figure of this kind needs `parts`".to_owned());
        };
        let names = parts.iter().enumerate().map(|(index, metric)| Series {
            label: part_name(metric, &parts),
            style: Style::of(index),
        });
        let names: Vec<Series> = names.collect();
        let mut items = Vec::new();
        let mut data = self.csv_head(&[&parts[..], &["runs"]].concat());
        for (group, series) in self.groups.iter().zip(self.series()) {
            let mut values = Vec::new();
            for metric in &parts {
                values.push(median(&self.values(group, metric)?));
            }
            let cells = values
                .iter()
                .map(|value| value.map(|it| it.to_string()).unwrap_or_default());
            data += &Self::csv_row(group, cells.chain([self.runs.ids(group).join(" ")]));
            items.push(stack::Item {
                series,
                parts: values,
            });
        }
        items.extend(self.figure.published.iter().map(published_stack));
        let axis = Axis {
            title: "each part, one after the other",
            quantity: quantity_of(first),
            log: false,
        };
        let columns = [Column {
            heading: String::new(),
            items,
        }];
        let svg = stack::chart(&self.chart(), axis, &names, &columns);
        Ok((
            svg,
            data,
            format!(
                "Median of the runs of each part, {} runs.",
                self.member_count()
            ),
        ))
    }

    fn side(&self, name: &str) -> heat::Side {
        let groups = self.runs.groups(&[name.to_owned()]);
        heat::Side {
            title: name.to_owned(),
            labels: groups.iter().map(|group| text_of(&group.of[0])).collect(),
        }
    }
}

/// Returns the value of a variable for a legend, with the variable's name if the value is a number or a word such as
/// `true` or `on`.
fn named(name: &str, value: &Value) -> String {
    let text = text_of(value);
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    match is_number || matches!(&*text, "true" | "false" | "yes" | "no" | "on" | "off") {
        true => format!("{name} = {text}"),
        false => text,
    }
}

/// Units at the end of metric names, and the unit's text in the title of an axis. The text is empty if the labels along
/// the axis contain the unit.
const UNITS: [(&str, &str); 13] = [
    ("_ns2", "ns²"),
    ("_ns", ""),
    ("_us", "µs"),
    ("_ms", "ms"),
    ("_seconds", "s"),
    ("_bit_per_s", "bit/s"),
    ("_s", "s"),
    ("_pps", "pkt/s"),
    ("_bytes", ""),
    ("_cycles", "cycles"),
    ("_deg", "degrees"),
    ("_mhz", "MHz"),
    ("_km", "km"),
];

/// Returns the name of a variable or metric in words, with its unit; a formula is returned unchanged.
fn in_words(metric: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !metric.chars().all(is_plain) {
        return metric.to_owned();
    }
    let mut unit = "";
    let mut words = Vec::new();
    for part in metric
        .split('.')
        .filter(|part| !matches!(*part, "0" | "ns"))
    {
        let of_unit = |(end, text): &(&str, &'static str)| Some((part.strip_suffix(*end)?, *text));
        let (word, own) = match UNITS.iter().find_map(of_unit) {
            Some(found) => found,
            // The unit of an estimate is at the end of the part before.
            None if matches!(part, "point" | "low" | "high" | "median") => (part, unit),
            None => (part, ""),
        };
        unit = own;
        words.push(word.replace('_', " "));
    }
    if unit.is_empty() && quantity_of(metric) == Quantity::RatePps {
        unit = "pkt/s";
    }
    match unit {
        "" => words.join(" "),
        unit => format!("{} ({unit})", words.join(" ")),
    }
}

/// Returns the distinguishing part of a metric's name: without the prefix and suffix that all names share, and without
/// the unit.
fn part_name(metric: &str, all: &[&str]) -> String {
    let words: Vec<&str> = metric.split('.').collect();
    let others: Vec<Vec<&str>> = all.iter().map(|it| it.split('.').collect()).collect();
    let differs = |index: &usize| {
        others
            .iter()
            .any(|other| other.get(*index) != words.get(*index))
    };
    let own: Vec<&str> = (0..words.len())
        .filter(differs)
        .map(|index| words[index].trim_end_matches("_ns"))
        .collect();
    if own.is_empty() {
        metric.to_owned()
    } else {
        own.join(".").replace('_', " ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_omit_the_components_common_to_all_metric_names() {
        let all = ["p.there.sender_ns.avg_ns", "p.there.on_air_ns.avg_ns"];
        assert_eq!(
            all.map(|it| part_name(it, &all)),
            ["sender", "on air"].map(str::to_owned)
        );
        assert_eq!(part_name("a.b", &["a.b"]), "a.b");
    }

    #[test]
    fn axis_titles_are_words_with_a_unit_or_formulas() {
        for (metric, title) in [
            ("latency_ns.p50_ns", "latency p50"),
            ("traffic.lost_share", "traffic lost share"),
            ("received_pps", "received (pkt/s)"),
            (
                "rate.sizes.0.throughput.mean_pps.point",
                "rate sizes throughput mean point (pkt/s)",
            ),
            (
                "s.switches.0.qos.5.p50_ns.median",
                "s switches qos 5 p50 median",
            ),
            ("probe.payload_bit_per_s", "probe payload (bit/s)"),
            ("squared_error_ns2", "squared error (ns²)"),
            ("rate", "rate (pkt/s)"),
            ("size", "size"),
            ("median('a.b_ns')", "median('a.b_ns')"),
        ] {
            assert_eq!(in_words(metric), title, "{metric}");
        }
    }

    #[test]
    fn a_legend_entry_that_is_a_number_names_its_variable() {
        for (value, label) in [
            (Value::from(64), "size = 64"),
            (Value::from(true), "size = true"),
            (Value::from("1.5k"), "size = 1.5k"),
            (Value::from("imix"), "imix"),
        ] {
            assert_eq!(named("size", &value), label);
        }
    }
}
