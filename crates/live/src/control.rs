//! The dashboard of a control loop: the plant's state and its history, the delay of commands, and their outcomes.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::canvas::{Canvas, Circle, Context, Line as Stroke};
use ratatui::widgets::{Block, Paragraph};
use taut_control::Standing;
use taut_measure::quantity;

/// Length of the plant's body in the picture, in units of the picture's axes.
const BODY: f64 = 1.0;
/// Radius of the wheels, or height of the top of a cart above the ground, in units of the picture's axes.
const WHEEL: f64 = 0.18;

/// The data that the dashboard shows for a control loop.
pub struct ControlView<'a> {
    /// The running loop, on one line.
    pub title: &'a str,
    /// Units of the plant's balance and of its travel, as in [`Standing`].
    pub units: &'a [String; 2],
    /// Number of inputs of the plant.
    pub inputs: usize,
    /// Planned number of sampling periods.
    pub periods: u64,
    /// Deadline of a command, ns after the reading.
    pub bound_ns: u64,
    /// The plant's current state.
    pub standing: &'a Standing,
    /// The plant's balance at the last readings, the newest last.
    pub balance: &'a [f64],
    /// Time from each of the last readings to the arrival of the resulting command, ms, the newest last.
    pub round_trips_ms: &'a [f64],
}

/// Draws the dashboard; parts that do not fit are omitted from the bottom.
pub(super) fn draw(frame: &mut Frame<'_>, view: &ControlView<'_>) {
    let [title, numbers, middle, trips, bottom] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Min(6),
        Constraint::Percentage(30),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let standing = view.standing;
    let period = format!("  period {} of {}", standing.sequence, view.periods);
    frame.render_widget(Line::from(vec![view.title.bold(), period.into()]), title);
    draw_numbers(frame, numbers, view);
    let [plant, history] =
        Layout::horizontal([Constraint::Percentage(35), Constraint::Percentage(65)]).areas(middle);
    draw_plant(frame, plant, view);
    let [balance_unit, _] = view.units;
    draw_history(
        frame,
        history,
        &format!(" balance, {balance_unit} "),
        view.balance,
        None,
    );
    let bound_ms = view.bound_ns as f64 / 1e6;
    draw_history(
        frame,
        trips,
        &format!(" from reading to command, ms; in time up to {bound_ms:.1} "),
        view.round_trips_ms,
        Some(bound_ms),
    );
    frame.render_widget(Line::from("q ends the run".dim()), bottom);
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, view: &ControlView<'_>) {
    let it = view.standing;
    let [balance_unit, travel_unit] = view.units;
    let inputs = it.inputs[..view.inputs.min(it.inputs.len())].iter();
    let inputs: Vec<String> = inputs.map(|input| format!("{input:.2}")).collect();
    let mut stands = vec![
        format!("{:.2} {balance_unit}", it.balance).bold(),
        format!(
            ", gone {:.1} {travel_unit}; input {}",
            it.travel,
            inputs.join(", ")
        )
        .into(),
    ];
    if it.has_fallen {
        stands.push("  fallen".fg(Color::Red).bold());
    }
    let bad = |count: u64| {
        let style = match count {
            0 => Style::new(),
            _ => Style::new().fg(Color::Red),
        };
        Span::styled(quantity::count(count), style)
    };
    let commands = vec![
        "commands: ".into(),
        quantity::count(it.in_time).into(),
        " in time, ".into(),
        bad(it.late),
        " late, ".into(),
        bad(it.missing),
        " missing".into(),
    ];
    let lines = vec![Line::from(stands), Line::from(commands)];
    frame.render_widget(Paragraph::new(lines), area);
}

/// The picture of a plant, chosen by the units of its results.
enum Shape {
    /// A body on wheels: balance and travel are angles.
    Wheels,
    /// A rod on a cart: the balance is an angle, and the travel a distance.
    Cart,
    /// A mark that should stay in the middle, for other units.
    Mark,
}

fn draw_plant(frame: &mut Frame<'_>, area: Rect, view: &ControlView<'_>) {
    let shape = match [view.units[0].as_str(), view.units[1].as_str()] {
        ["degrees", "degrees"] => Shape::Wheels,
        ["degrees", _] => Shape::Cart,
        _ => Shape::Mark,
    };
    let standing = view.standing;
    // The largest value of the history sets the scale, so that the mark uses the available space.
    let most = largest(view.balance).max(standing.balance.abs());
    // A cell is about twice as high as it is wide.
    let inner = [area.width.saturating_sub(2), area.height.saturating_sub(2)];
    let aspect = f64::from(inner[0].max(1)) / (2.0 * f64::from(inner[1].max(1)));
    let height = BODY + 2.0 * WHEEL + 0.2;
    let half = (height * aspect / 2.0).max(0.1);
    let canvas = Canvas::default()
        .block(Block::bordered())
        .marker(Marker::Braille)
        .x_bounds([-half, half])
        .y_bounds([-0.1, height - 0.1])
        .paint(|context| {
            stroke(context, [-half, 0.0], [half, 0.0], Color::DarkGray);
            match shape {
                Shape::Wheels => draw_wheels(context, standing),
                Shape::Cart => draw_cart(context, standing, half),
                Shape::Mark => {
                    let x = half * 0.9 * standing.balance / most;
                    stroke(context, [0.0, 0.0], [0.0, BODY], Color::DarkGray);
                    stroke(context, [x, 0.0], [x, BODY], Color::Cyan);
                }
            }
        });
    frame.render_widget(canvas, area);
}

fn stroke(context: &mut Context<'_>, from: [f64; 2], to: [f64; 2], color: Color) {
    context.draw(&Stroke::new(from[0], from[1], to[0], to[1], color));
}

/// Returns the tip of a body that stands at `foot` and leans by `degrees` degrees, limited to a horizontal position.
fn tip(foot: [f64; 2], degrees: f64) -> [f64; 2] {
    let angle = finite(degrees).clamp(-90.0, 90.0).to_radians();
    [foot[0] + BODY * angle.sin(), foot[1] + BODY * angle.cos()]
}

fn draw_wheels(context: &mut Context<'_>, standing: &Standing) {
    let axle = [0.0, WHEEL];
    context.draw(&Circle {
        x: axle[0],
        y: axle[1],
        radius: WHEEL,
        color: Color::Gray,
    });
    // A spoke shows that the wheels turn.
    let turned = finite(standing.travel).to_radians();
    let rim = [WHEEL * turned.sin(), WHEEL + WHEEL * turned.cos()];
    stroke(context, axle, rim, Color::Gray);
    stroke(context, axle, tip(axle, standing.balance), Color::Cyan);
}

fn draw_cart(context: &mut Context<'_>, standing: &Standing, half: f64) {
    // The picture wraps around at both sides.
    let x = (finite(standing.travel) + half).rem_euclid(2.0 * half) - half;
    let (left, right) = (x - 1.5 * WHEEL, x + 1.5 * WHEEL);
    for (from, to) in [
        ([left, 0.02], [right, 0.02]),
        ([left, WHEEL], [right, WHEEL]),
        ([left, 0.02], [left, WHEEL]),
        ([right, 0.02], [right, WHEEL]),
    ] {
        stroke(context, from, to, Color::Gray);
    }
    let pivot = [x, WHEEL];
    stroke(context, pivot, tip(pivot, standing.balance), Color::Cyan);
}

/// Draws the history of the plant's balance, the newest value at the right, and the limit if there is one.
fn draw_history(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    values: &[f64],
    limit: Option<f64>,
) {
    // Each cell of the terminal shows two dots side by side.
    let room = 2 * usize::from(area.width.saturating_sub(2)).max(1);
    let shown = &values[values.len().saturating_sub(room)..];
    let most = largest(shown).max(limit.unwrap_or(0.0)) * 1.05;
    let least = if shown.iter().any(|it| *it < 0.0) {
        -most
    } else {
        0.0
    };
    let first = room as f64 - shown.len() as f64;
    let canvas = Canvas::default()
        .block(Block::bordered().title(title))
        .marker(Marker::Braille)
        .x_bounds([0.0, room as f64])
        .y_bounds([least, most])
        .paint(|context| {
            stroke(context, [0.0, 0.0], [room as f64, 0.0], Color::DarkGray);
            if let Some(limit) = limit {
                stroke(context, [0.0, limit], [room as f64, limit], Color::Red);
            }
            for (at, pair) in shown.windows(2).enumerate() {
                let x = first + at as f64;
                stroke(context, [x, pair[0]], [x + 1.0, pair[1]], Color::Cyan);
            }
        });
    frame.render_widget(canvas, area);
}

/// Returns the largest absolute value in `values`; 1 if all are 0.
fn largest(values: &[f64]) -> f64 {
    let most = values.iter().map(|it| it.abs()).fold(0.0, f64::max);
    if most > 0.0 { finite(most) } else { 1.0 }
}

/// Returns `value`, or 0 if it is infinite or not a number, because such values cannot be drawn.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(size: [u16; 2], units: [&str; 2], balance: &[f64]) -> String {
        let standing = Standing {
            sequence: 7,
            balance: balance.last().copied().unwrap_or(0.0),
            travel: 123.4,
            inputs: [1.5, -1.5],
            round_trip_ns: Some(2_000_000),
            in_time: 123,
            late: 5,
            missing: 6,
            has_fallen: true,
        };
        let view = ControlView {
            title: "robot over a radio",
            units: &units.map(str::to_owned),
            inputs: 2,
            periods: 1400,
            bound_ns: 29_000_000,
            standing: &standing,
            balance,
            round_trips_ms: balance,
        };
        let mut terminal = Terminal::new(TestBackend::new(size[0], size[1])).unwrap();
        terminal.draw(|frame| draw(frame, &view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn control_values_are_displayed_in_terminals_of_any_size() {
        let text = drawn([100, 30], ["degrees", "degrees"], &[1.0, -3.0, 2.25]);
        for part in [
            "robot over a radio  period 7 of 1400",
            "2.25 degrees, gone 123.4 degrees; input 1.50, -1.50  fallen",
            "commands: 123 in time, 5 late, 6 missing",
            "balance, degrees",
            "in time up to 29.0",
            "q ends the run",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        // The body leans, and its history shows it.
        let upright = drawn([100, 30], ["degrees", "degrees"], &[0.0]);
        let leaning = drawn([100, 30], ["degrees", "degrees"], &[40.0]);
        assert_ne!(upright, leaning);
        for size in [[1, 1], [20, 5], [80, 24]] {
            for units in [["degrees", "degrees"], ["degrees", "m"], ["m", "m/s"]] {
                for balance in [&[][..], &[f64::INFINITY], &[0.0, 1e300], &[f64::NAN; 300]] {
                    drawn(size, units, balance);
                }
            }
        }
    }
}
