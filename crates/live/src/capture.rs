//! The dashboard of a capture: its rate over time, the time range in memory, losses, triggers, analysers and flows.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};
use taut_capture::analyser::AnalyserStatus;
use taut_capture::capture::Status;
use taut_measure::quantity;

/// The data that the dashboard shows for a capture.
pub struct CaptureView<'a> {
    /// The captured ports, on one line.
    pub title: &'a str,
    /// Time since the start of the capture, s.
    pub elapsed_seconds: f64,
    /// Captured packets in each of the last seconds, the newest last.
    pub packets: &'a [u64],
    /// Bytes of captured frames in the last second.
    pub bytes_per_second: f64,
    /// Number of packets that ports lost before they were captured.
    pub lost_at_ports: u64,
    /// State of the capture: its memory, triggers, analysers and flows.
    pub status: &'a Status,
}

/// Draws the dashboard; parts that do not fit are omitted from the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, view: &CaptureView<'_>) {
    let status = view.status;
    let trouble = status.trouble.len().min(3) as u16;
    // At most four analysers have a row; without analysers, the dashboard has no space for them.
    let analysers_rows = match status.analysers.len().min(4) as u16 {
        0 => 0,
        some => some + 3,
    };
    let [title, numbers, rate, triggers, analysers, flows, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(8),
        Constraint::Length(status.triggers.len().min(8) as u16 + 3),
        Constraint::Length(analysers_rows),
        Constraint::Min(0),
        Constraint::Length(1 + trouble),
    ])
    .areas(frame.area());
    let time = format!("  {:.0} s", view.elapsed_seconds);
    frame.render_widget(Line::from(vec![view.title.bold(), time.into()]), title);
    draw_numbers(frame, numbers, view);
    draw_rate(frame, rate, view.packets);
    draw_triggers(frame, triggers, status);
    if analysers_rows > 0 {
        draw_analysers(frame, analysers, &status.analysers);
    }
    draw_flows(frame, flows, status);
    let red = Style::new().fg(Color::Red);
    let lines = status.trouble.iter().take(3);
    let mut lines: Vec<Line<'_>> = lines.map(|it| Line::styled(it.as_str(), red)).collect();
    lines.push(Line::from("q ends the capture".dim()));
    frame.render_widget(Paragraph::new(lines), bottom);
}

/// Returns a count of errors, highlighted if it is not 0.
fn bad(count: u64) -> Span<'static> {
    let style = match count {
        0 => Style::new(),
        _ => Style::new().fg(Color::Red),
    };
    Span::styled(quantity::count(count), style)
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, view: &CaptureView<'_>) {
    let status = view.status;
    let now = view.packets.last().copied().unwrap_or(0) as f64;
    let kept = Line::from(vec![
        quantity::rate(now).bold(),
        format!(
            ", {}bit/s; covers the last {:.1} s in {}; {} packets kept",
            quantity::plain(view.bytes_per_second * 8.0),
            status.looks_back_seconds(),
            quantity::bytes(status.ring_bytes as f64),
            quantity::count(status.kept.packets)
        )
        .into(),
    ]);
    let mut lost = vec![
        "lost: ".into(),
        bad(view.lost_at_ports),
        " at ports, ".into(),
        bad(status.lost.packets),
        " for lack of memory; ".into(),
        bad(status.not_looked_at),
        " missed by triggers".into(),
    ];
    if let Some(disk) = &status.disk {
        lost.extend(["; on disk ".into(), quantity::count(disk.packets).into()]);
        lost.extend([", not written ".into(), bad(disk.lost + disk.missed)]);
    }
    frame.render_widget(Paragraph::new(vec![kept, Line::from(lost)]), area);
}

fn draw_rate(frame: &mut Frame<'_>, area: Rect, packets: &[u64]) {
    let most = packets.iter().copied().max().unwrap_or(0);
    let title = format!(
        " packets in a second, up to {} ",
        quantity::plain(most as f64)
    );
    let width = usize::from(area.width.saturating_sub(2));
    let shown = &packets[packets.len().saturating_sub(width)..];
    let bars = Sparkline::default()
        .block(Block::bordered().title(title))
        .data(shown)
        .style(Style::new().fg(Color::Cyan));
    frame.render_widget(bars, area);
}

fn draw_triggers(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let rows = status.triggers.iter().map(|it| {
        Row::new([
            Span::from(it.name.as_str()),
            quantity::count(it.fired).into(),
            quantity::count(it.begun).into(),
            bad(it.limited),
            quantity::count(it.written).into(),
            bad(it.lost),
        ])
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(13),
        Constraint::Length(9),
        Constraint::Length(15),
        Constraint::Length(13),
        Constraint::Length(11),
    ];
    let header = Row::new([
        "trigger",
        "fired",
        "dumps",
        "over its limit",
        "written",
        "not written",
    ]);
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().dim()))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

fn draw_analysers(frame: &mut Frame<'_>, area: Rect, analysers: &[AnalyserStatus]) {
    let rows = analysers.iter().map(|it| {
        let counts = it.counts.iter();
        let counts = counts.map(|(name, count)| format!("{} {name}", quantity::count(*count)));
        // An error is more important than counters.
        let said = match &it.error {
            Some(error) => Span::styled(error.as_str(), Style::new().fg(Color::Red)),
            None => counts.collect::<Vec<_>>().join(", ").into(),
        };
        Row::new([
            Span::from(it.name.as_str()),
            quantity::count(it.packets).into(),
            bad(it.missed + it.failed),
            format!(
                "{} of {}",
                quantity::count(it.known),
                quantity::count(it.room)
            )
            .into(),
            quantity::count(it.forgotten).into(),
            quantity::count(it.fired).into(),
            said,
        ])
    });
    let widths = [
        Constraint::Min(12),
        Constraint::Length(15),
        Constraint::Length(11),
        Constraint::Length(24),
        Constraint::Length(11),
        Constraint::Length(9),
        Constraint::Fill(1),
    ];
    let header = Row::new([
        "analyser",
        "packets",
        "not seen",
        "flows",
        "forgotten",
        "fired",
        "counts",
    ]);
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().dim()))
        .block(Block::bordered());
    frame.render_widget(table, area);
}

fn draw_flows(frame: &mut Frame<'_>, area: Rect, status: &Status) {
    let Some(flows) = &status.flows else {
        return;
    };
    let title = format!(
        " {} flows known, {} forgotten ",
        quantity::count(flows.known),
        quantity::count(flows.forgotten)
    );
    let rows = flows.top.iter().map(|it| {
        Row::new([
            it.to_string(),
            quantity::plain(it.bits_per_second as f64),
            quantity::plain(it.packets_per_second as f64),
            quantity::count(it.packets),
        ])
    });
    let widths = [
        Constraint::Min(30),
        Constraint::Length(9),
        Constraint::Length(10),
        Constraint::Length(15),
    ];
    let header = Row::new(["flow", "bits/s", "packets/s", "packets"]);
    let table = Table::new(rows, widths)
        .header(header.style(Style::new().dim()))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, packets: &[u64]) -> String {
        let status = serde_json::json!({
            "process": 1, "ring_bytes": 1 << 30, "most_bytes": 1 << 30,
            "kept": {"packets": 5_000_000, "bytes": 500}, "overwritten": {"packets": 1, "bytes": 100},
            "lost": {"packets": 2, "bytes": 200}, "oldest_ns": 1_000_000_000, "now_ns": 3_500_000_000_u64,
            "passed_over": 0, "not_looked_at": 7, "dumping": [], "dumps": [], "trouble": ["the disk is full"],
            "triggers": [{"name": "by-hand", "fired": 3, "begun": 2, "limited": 1, "written": 41, "lost": 42}],
            "disk": null,
            "analysers": [
                {"name": "ttl", "packets": 31_000, "missed": 6, "failed": 1, "room": 400, "known": 33, "forgotten": 34,
                 "fired": 35, "counts": {"odd": 36}},
                {"name": "quic", "packets": 1, "missed": 0, "failed": 0, "room": 10, "known": 1, "forgotten": 0,
                 "fired": 0, "error": "line 3: no"},
            ],
            "flows": {"room": 100, "known": 10, "forgotten": 20, "top": [{
                "protocol": 6, "addresses": ["10.0.0.1", "10.0.0.2"], "ports": [80, 1000], "packets": 12,
                "bytes": 768, "first_ns": 1, "last_ns": 2, "tcp_flags": 2, "packets_per_second": 6,
                "bits_per_second": 3000,
            }]},
        });
        let view = CaptureView {
            title: "eth0",
            elapsed_seconds: 3.0,
            packets,
            bytes_per_second: 1e6,
            lost_at_ports: 4,
            status: &serde_json::from_value(status).unwrap(),
        };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn capture_values_are_displayed_in_terminals_of_any_size() {
        let text = drawn(140, 36, &[1000, 2_000_000]);
        for part in [
            "eth0  3 s",
            "2.00 Mpkt/s, 8Mbit/s; covers the last 2.5 s in 1 GB",
            "lost: 4 at ports, 2 for lack of memory; 7 missed by triggers",
            "up to 2M",
            "by-hand",
            "41            42",
            "33 of 400",
            "36 odd",
            "line 3: no",
            "10 flows known, 20 forgotten",
            "TCP 10.0.0.1:80 - 10.0.0.2:1000",
            "the disk is full",
            "q ends the capture",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        for (width, height) in [(1, 1), (20, 5), (80, 24)] {
            drawn(width, height, &[]);
            drawn(width, height, &[u64::MAX; 300]);
        }
    }
}
