//! An animated body on wheels, which a browser plays without a script.

use super::Chart;
use super::svg::{Anchor, Path, Svg, number};

const HEIGHT: f64 = 240.0;
const GROUND: f64 = 196.0;
/// Length of the body and radius of the wheel, px.
const BODY: f64 = 128.0;
const WHEEL: f64 = 18.0;
/// Margin at either side, so that a fallen body stays inside the figure, px.
const ROOM: f64 = 160.0;
/// Maximum displayed angle after exaggeration, degrees. It limits the factor that [`exaggeration`] returns.
const SHOWN: f64 = 30.0;
/// Maximum number of drawn frames. If there are more, only every second, every third and so on is drawn.
const MOST_FRAMES: usize = 400;

/// The state of the body at one moment. Frames are equally spaced in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Angle of the body from upright, degrees.
    pub angle: f64,
    /// Position of the wheel, m.
    pub position_m: f64,
    /// True if the lamp in the figure is on in this frame; the caller of [`draw`] labels the lamp.
    pub lamp: bool,
}

/// Returns the factor by which drawn angles exceed the real ones, so that small angles are visible.
pub fn exaggeration(frames: &[Frame]) -> u32 {
    let most = frames.iter().map(|frame| frame.angle.abs());
    let most = most.filter(|angle| angle.is_finite()).fold(0.0, f64::max);
    let fits = |factor: &&u32| most * f64::from(**factor) <= SHOWN;
    [20, 10, 5, 2].iter().find(fits).copied().unwrap_or(1)
}

/// Draws the animation, which lasts `seconds` and repeats; `lamp` is the label of the lamp.
pub fn draw(chart: &Chart<'_>, frames: &[Frame], seconds: f64, lamp: &str) -> String {
    let mut svg = chart.svg(HEIGHT);
    let width = chart.width();
    svg.line((0.0, GROUND), (width, GROUND), &[("class", "mark")]);
    let factor = exaggeration(frames);
    let shown = thinned(frames);
    let at = place(&shown, width);
    let first = shown.first().map_or(width / 2.0, &at);
    let over = |value: &dyn Fn(&Frame) -> String| {
        let values: Vec<String> = shown.iter().map(value).collect();
        values.join(";")
    };
    let axle = GROUND - WHEEL;
    svg.open(&[(
        "transform",
        &format!("translate({} {})", number(first), number(axle)),
    )]);
    svg.animate_transform(
        "translate",
        &over(&|frame| format!("{} {}", number(at(frame)), number(axle))),
        seconds,
    );
    svg.open(&[("stroke-linecap", "round")]);
    svg.animate_transform(
        "rotate",
        &over(&|frame| number(turned(frame, factor))),
        seconds,
    );
    svg.line(
        (0.0, 0.0),
        (0.0, -BODY),
        &[("stroke", "#0072b2"), ("stroke-width", "16")],
    );
    svg.close();
    draw_wheel(&mut svg);
    svg.close();
    svg.open(&[("fill", "#e4e4e4")]);
    svg.animate(
        "fill",
        &over(&|frame| if frame.lamp { "#d55e00" } else { "#e4e4e4" }.to_owned()),
        seconds,
    );
    svg.rect((14.0, 12.0), (16.0, 16.0), &[]);
    svg.close();
    svg.text((38.0, 25.0), Anchor::Start, "note", lamp);
    if factor > 1 {
        let text = format!("angle shown {factor} times as large");
        svg.text((width - 14.0, 25.0), Anchor::End, "note", &text);
    }
    svg.text(
        (width - 14.0, HEIGHT - 14.0),
        Anchor::End,
        "note",
        &format!("{} s", number(seconds)),
    );
    svg.finish()
}

/// Returns at most [`MOST_FRAMES`] of the frames, equally spaced.
fn thinned(frames: &[Frame]) -> Vec<Frame> {
    let every = frames.len().div_ceil(MOST_FRAMES).max(1);
    // A drawn frame shows the lamp as on if it is on in any of the skipped frames, so that a short flash stays visible.
    frames
        .chunks(every)
        .map(|chunk| Frame {
            lamp: chunk.iter().any(|frame| frame.lamp),
            ..chunk[0]
        })
        .collect()
}

/// Returns a function from a frame to the horizontal position of its wheel in the figure, px.
fn place(shown: &[Frame], width: f64) -> impl Fn(&Frame) -> f64 {
    let positions = || shown.iter().map(|frame| frame.position_m);
    let (from, to) = positions()
        .filter(|position| position.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), it| {
            (from.min(it), to.max(it))
        });
    let room = (width - 2.0 * ROOM).max(1.0);
    // Upper limit of px per metre: at a larger scale, the wheel would seem to slide without turning.
    let scale = if to > from {
        (room / (to - from)).min(600.0)
    } else {
        600.0
    };
    let middle = if from <= to { (from + to) / 2.0 } else { 0.0 };
    move |frame: &Frame| {
        let offset = (frame.position_m - middle) * scale;
        width / 2.0 + if offset.is_finite() { offset } else { 0.0 }
    }
}

/// Returns the drawn angle of the body, degrees.
fn turned(frame: &Frame, factor: u32) -> f64 {
    let angle = frame.angle * f64::from(factor);
    if angle.is_finite() {
        angle.clamp(-90.0, 90.0)
    } else {
        90.0
    }
}

fn draw_wheel(svg: &mut Svg) {
    let wheel = (0..=24).map(|step| {
        let (sine, cosine) = (f64::from(step) / 24.0 * std::f64::consts::TAU).sin_cos();
        (WHEEL * cosine, WHEEL * sine)
    });
    svg.path(Path::through(wheel).data(), &[("class", "solid")]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(frames: &[Frame]) -> String {
        let chart = Chart::new("robot", "Robot", "A robot that is balanced.");
        draw(&chart, frames, 10.0, "no command in time")
    }

    #[test]
    fn each_svg_animation_has_one_value_per_frame() {
        let frames: Vec<Frame> = (0..10)
            .map(|k| Frame {
                angle: f64::from(k % 3) - 1.0,
                position_m: f64::from(k) * 0.1,
                lamp: k == 4,
            })
            .collect();
        let svg = drawn(&frames);
        let values: Vec<&str> = svg
            .split("values=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert_eq!(values.len(), 3, "{svg}");
        for values in &values {
            assert_eq!(values.split(';').count(), 10, "{values}");
        }
        assert_eq!(values[2].matches("#d55e00").count(), 1);
        // An angle of one degree is hard to see without exaggeration.
        assert_eq!(exaggeration(&frames), 20);
        assert!(values[1].starts_with("-20;0;20;"), "{}", values[1]);
        assert_eq!(svg, drawn(&frames), "the same input gives the same bytes");
    }

    #[test]
    fn thinning_an_animation_retains_lamp_frames_and_draws_no_nan() {
        let mut frames = vec![
            Frame {
                angle: 50.0,
                position_m: 0.0,
                lamp: false,
            };
            4001
        ];
        frames[1234].lamp = true;
        let svg = drawn(&frames);
        assert_eq!(svg.matches("#d55e00").count(), 1);
        assert_eq!(exaggeration(&frames), 1);
        frames[3].angle = f64::NAN;
        frames[5].position_m = f64::INFINITY;
        for frames in [&frames[..7], &frames[3..4], &[]] {
            let svg = drawn(frames);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
