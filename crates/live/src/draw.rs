//! The dashboard of a generator: rates and losses by stream, latency percentiles, two histograms, worst packets.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use taut_measure::LatencyHistogram;
use taut_measure::quantity;
use taut_traffic::{Interval, StreamView, WORST_LISTED};

/// The data that the dashboard of a generator shows.
pub struct View<'a> {
    /// The running command, on one line.
    pub title: &'a str,
    /// Time since the start of the running command, s.
    pub elapsed_seconds: f64,
    /// Planned duration of the running command, s.
    pub planned_seconds: f64,
    /// The current step of a command with several steps; none for other commands.
    pub doing: Option<&'a str>,
    /// All streams; the distributions of one of them are shown.
    pub streams: &'a [StreamView],
    /// Errors since the start, one line each.
    pub problems: &'a [String],
}

const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// Draws the dashboard with the distributions of stream `selected` (modulo their number); parts that do not fit are
/// omitted from the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View<'_>, selected: usize) {
    let selected = selected_of(selected, view.streams.len());
    let problems = view.problems.len().min(3) as u16;
    let [title, streams, latency, histograms, worst, bottom] = Layout::vertical([
        Constraint::Length(1 + u16::from(view.doing.is_some())),
        Constraint::Length(view.streams.len() as u16 + 3),
        Constraint::Length(5),
        Constraint::Min(6),
        Constraint::Length(WORST_LISTED as u16 + 2),
        Constraint::Length(1 + problems),
    ])
    .areas(frame.area());
    let time = format!(
        "  {:.0} of {:.0} s",
        view.elapsed_seconds, view.planned_seconds
    );
    let mut heading = vec![Line::from(vec![view.title.bold(), time.into()])];
    heading.extend(view.doing.map(Line::from));
    frame.render_widget(Paragraph::new(heading), title);
    draw_streams(frame, streams, view.streams, selected);
    let Some(stream) = view.streams.get(selected) else {
        return;
    };
    draw_latency(frame, latency, stream);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)])
            .areas(histograms);
    let last = stream.last.as_deref();
    let bars = |frame: &mut Frame<'_>, area, name: &str, histogram: Option<&LatencyHistogram>| {
        draw_histogram(frame, area, name, histogram, &stream.name);
    };
    bars(frame, left, "latency", last.map(|last| &last.latency));
    bars(
        frame,
        right,
        "gaps between packets sent",
        last.map(|last| last.gaps.histogram()),
    );
    draw_worst(frame, worst, stream);
    let mut lines: Vec<Line<'_>> = view
        .problems
        .iter()
        .take(3)
        .map(|problem| Line::from(Span::styled(problem.as_str(), Style::new().fg(Color::Red))))
        .collect();
    let keys = if view.streams.len() > 1 {
        "q ends the run · Tab, arrows, 1 to 9: another stream's distributions"
    } else {
        "q ends the run"
    };
    lines.push(Line::from(keys.dim()));
    frame.render_widget(Paragraph::new(lines), bottom);
}

/// Returns `selected` modulo `streams`; the index before 0 selects the last stream.
fn selected_of(selected: usize, streams: usize) -> usize {
    (selected as isize).rem_euclid(streams.max(1) as isize) as usize
}

fn draw_streams(frame: &mut Frame<'_>, area: Rect, streams: &[StreamView], selected: usize) {
    let header = Row::new([
        "stream",
        "asked",
        "sent",
        "received",
        "refused",
        "missing",
        "corrupt",
        "sent in all",
    ]);
    let rows = streams.iter().enumerate().map(|(index, s)| {
        let per_second = |n: u64| match s.last_seconds {
            seconds if seconds > 0.0 => quantity::rate(n as f64 / seconds),
            _ => "-".to_string(),
        };
        let bad = |n: u64| {
            let style = if n > 0 {
                Style::new().fg(Color::Red)
            } else {
                Style::new()
            };
            Span::styled(quantity::count(n), style)
        };
        let is_shown = index == selected && streams.len() > 1;
        let name = Span::from(s.name.clone());
        Row::new([
            if is_shown { name.reversed() } else { name },
            quantity::rate(s.asked_pps).into(),
            per_second(s.last_counts.sent).into(),
            per_second(s.last_counts.received).into(),
            bad(s.counts.refused),
            bad(s.total.missing.saturating_sub(s.counts.refused)),
            bad(s.counts.corrupt),
            quantity::count(s.counts.sent).into(),
        ])
    });
    let widths = [
        Constraint::Min(8),
        Constraint::Length(13),
        Constraint::Length(13),
        Constraint::Length(13),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(11),
        Constraint::Length(15),
    ];
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().dim()))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, stream: &StreamView) {
    let names = PERCENTILES.map(|(name, _)| name);
    let header: Vec<&str> = [&["latency"][..], &names[..], &["max", "packets"][..]].concat();
    let row = |name: &str, interval: Option<&Interval>| {
        let latency = interval.map(|interval| &interval.latency);
        let time = |ns: Option<u64>| ns.map_or("-".to_string(), |ns| quantity::time(ns as f64));
        let mut cells = vec![name.to_string()];
        for (_, q) in PERCENTILES {
            cells.push(time(latency.and_then(|latency| latency.quantile(q))));
        }
        cells.push(time(latency.and_then(LatencyHistogram::max_ns)));
        cells.push(quantity::count(latency.map_or(0, LatencyHistogram::count)));
        Row::new(cells)
    };
    let rows = [
        row("last second", stream.last.as_deref()),
        row("overall", Some(&stream.total)),
    ];
    let widths = [Constraint::Min(12)]
        .into_iter()
        .chain([Constraint::Length(11); PERCENTILES.len() + 2]);
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().dim()))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

fn draw_histogram(
    frame: &mut Frame<'_>,
    area: Rect,
    name: &str,
    histogram: Option<&LatencyHistogram>,
    stream: &str,
) {
    let mut block = Block::bordered().title(format!(" {name}, last second, {stream} "));
    let Some(histogram) = histogram.filter(|histogram| histogram.count() > 0) else {
        frame.render_widget(Paragraph::new("no data").block(block), area);
        return;
    };
    // The outermost thousandth at either end would compress the rest into a few columns.
    let end = |q| histogram.quantile(q).unwrap_or(0).max(1);
    let (low_ns, high_ns) = (end(0.001), end(0.999).max(end(0.001) + 1));
    block = block.title_bottom(format!(
        " {} to {}, logarithmic ",
        quantity::time(low_ns as f64),
        quantity::time(high_ns as f64)
    ));
    let columns = bars(
        histogram,
        low_ns,
        high_ns,
        usize::from(area.width.saturating_sub(2)),
    );
    let bars = Sparkline::default()
        .data(&columns)
        .style(Style::new().fg(Color::Cyan))
        .block(block);
    frame.render_widget(bars, area);
}

/// Returns the number of values in each of `columns` columns, which divide a logarithmic axis from `low_ns` to
/// `high_ns`.
fn bars(histogram: &LatencyHistogram, low_ns: u64, high_ns: u64, columns: usize) -> Vec<u64> {
    let mut bars = vec![0_u64; columns];
    let (low, high) = ((low_ns as f64).ln(), (high_ns as f64).ln());
    for bucket in histogram.iter() {
        let middle = ((bucket.low_ns + bucket.high_ns) as f64 / 2.0)
            .max(1.0)
            .ln();
        let place = (middle - low) / (high - low) * columns as f64;
        if (0.0..=columns as f64).contains(&place)
            && let Some(bar) = bars.get_mut((place as usize).min(columns.saturating_sub(1)))
        {
            *bar += bucket.count;
        }
    }
    bars
}

fn draw_worst(frame: &mut Frame<'_>, area: Rect, stream: &StreamView) {
    let worst = stream.total.worst.iter().filter(|slow| slow.latency_ns > 0);
    let lines: Vec<Line<'_>> = worst
        .map(|slow| {
            Line::from(format!(
                "{:>10}  packet {}, at {:.3} s",
                quantity::time(slow.latency_ns as f64),
                quantity::count(slow.sequence),
                slow.seen_seconds
            ))
        })
        .collect();
    let block = Block::bordered().title(" slowest packets ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;
    use taut_measure::SequenceTracker;
    use taut_sys::Clock;

    fn text(width: u16, height: u16, streams: &[StreamView], problems: &[String]) -> String {
        drawn(width, height, streams, problems, None, 0)
    }

    fn drawn(
        width: u16,
        height: u16,
        streams: &[StreamView],
        problems: &[String],
        doing: Option<&str>,
        selected: usize,
    ) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let view = View {
            title: "null:",
            elapsed_seconds: 3.0,
            planned_seconds: 10.0,
            doing,
            streams,
            problems,
        };
        terminal.draw(|frame| draw(frame, &view, selected)).unwrap();
        terminal.backend().to_string()
    }

    fn stream() -> StreamView {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 0.0,
        };
        let (mut live, mut view) = taut_traffic::live("voice", 1e6, Some(&clock));
        let mut seen = SequenceTracker::new();
        for sequence in 0..1000 {
            live.sent(sequence, sequence * 1000, 0, &seen);
            if sequence != 500 {
                live.received(sequence, 20_000 + sequence * 10, sequence);
                seen.record(sequence);
            }
        }
        view.ask();
        live.sent(1000, 1_000_000, 0, &seen);
        view.look(Duration::from_secs(10));
        view
    }

    #[test]
    fn rates_latencies_packets_and_problems_are_on_the_screen() {
        let problems = ["the disk is full".to_string()];
        let text = text(110, 32, &[stream()], &problems);
        for part in [
            "null:  3 of 10 s",
            "voice",
            "1.00 Mpkt/s",
            "1\u{202f}001",
            "p99.9",
            "30.0 µs",
            "1.00 µs",
            "packet 999",
            "the disk is full",
            "q ends the run",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn the_distributions_of_the_selected_stream_are_displayed() {
        let (_live, idle) = taut_traffic::live("idle", 1.0, None);
        let streams = [stream(), idle];
        for (selected, name) in [
            (0, "voice"),
            (1, "idle"),
            (2, "voice"),
            (usize::MAX, "idle"),
        ] {
            let text = drawn(
                110,
                32,
                &streams,
                &[],
                Some("64 loss 1/3: 2 Mpkt/s"),
                selected,
            );
            let shown = format!("latency, last second, {name} ");
            assert!(text.contains(&shown), "{shown} in\n{text}");
            assert!(text.contains("64 loss 1/3: 2 Mpkt/s"), "{text}");
            assert!(text.contains("another stream"), "{text}");
        }
    }

    #[test]
    fn the_dashboard_fits_any_terminal_size_and_reports_missing_data() {
        for (width, height) in [(1, 1), (20, 5), (80, 24)] {
            text(width, height, &[stream()], &[]);
        }
        let (_live, view) = taut_traffic::live("idle", 1.0, None);
        assert!(text(100, 30, &[view], &[]).contains("no data"));
    }

    #[test]
    fn every_histogram_value_is_drawn_in_its_column() {
        let mut histogram = LatencyHistogram::new();
        for ns in [100, 1000, 10_000] {
            histogram.record(ns);
        }
        let columns = bars(&histogram, 100, 10_000, 21);
        assert_eq!(columns.iter().sum::<u64>(), 3);
        assert_eq!((columns[0], columns[10]), (1, 1));
    }
}
