//! `taut model budget`: an end-to-end latency split into its parts, and the remainder. (Xiang et al., JSAC 2019, Fig.
//! 2.)

use super::not_negative;
use crate::exit::Failure;
use crate::terminal::{print, quantity};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;
use taut_figure::table;
use taut_forecast::bit_rate;
use taut_model::link::budget::{Budget, Kind, Standing};
use taut_model::link::ethernet::Ethernet;
use taut_model::link::propagation::Medium;
use taut_model::link::wlan::Line;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut model budget --calvin
  taut model budget --target 1ms --term sensor=100us --term actuator=100us --fibre 25 --fibre 25 --frame 256@10G --wlan 64

Exit code 1: the parts take longer than the target.")]
pub struct Arguments {
    /// End-to-end time that the parts together must not exceed
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time, required_unless_present = "calvin")]
    target: Option<Duration>,
    /// Part with a known time; may be repeated
    #[arg(long, value_name = "NAME=TIME", value_parser = term)]
    term: Vec<(String, Duration)>,
    /// Length of a fibre in kilometres; may be repeated
    #[arg(long, value_name = "KM", value_parser = not_negative)]
    fibre: Vec<f64>,
    /// Distance through the air in kilometres; may be repeated
    #[arg(long, value_name = "KM", value_parser = not_negative)]
    air: Vec<f64>,
    /// Frame that is put on a line; may be repeated
    #[arg(long, value_name = "BYTES@LINE", value_parser = frame)]
    frame: Vec<(u32, f64)>,
    /// Packet of 1 to 1500 bytes over 802.11g at 54 Mbit/s (0.15 us a byte and 162.43 us); may be repeated
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1500))]
    wlan: Vec<u32>,
    /// The millisecond of CALVIN, split as in figure 2 of its paper; not with the other options
    #[arg(long, conflicts_with_all = ["target", "term", "fibre", "air", "frame", "wlan"])]
    calvin: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn term(text: &str) -> Result<(String, Duration), String> {
    let (name, time) = text
        .split_once('=')
        .ok_or("expected NAME=TIME, such as sensor=100us")?;
    Ok((name.trim().to_owned(), quantity::duration(time.trim())?))
}

fn frame(text: &str) -> Result<(u32, f64), String> {
    let wanted = || "expected BYTES@LINE, such as 256@10G".to_owned();
    let (bytes, line) = text.split_once('@').ok_or_else(wanted)?;
    let bytes = bytes
        .parse()
        .ok()
        .filter(|bytes| (64..=16_000).contains(bytes))
        .ok_or_else(wanted)?;
    Ok((bytes, bit_rate(line).ok_or_else(wanted)?))
}

/// The JSON output of `taut model budget`.
#[derive(Serialize, JsonSchema)]
pub struct Answer<'a> {
    target_us: f64,
    terms: Vec<Part<'a>>,
    spent_us: f64,
    remains_us: f64,
}

/// A part of the budget.
#[derive(Serialize, JsonSchema)]
struct Part<'a> {
    name: &'a str,
    us: f64,
    source: &'a str,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let budget = match arguments.target {
        Some(target) => divided(arguments, target)?,
        None => Budget::calvin(),
    };
    let remains_us = match budget.standing() {
        Standing::Remains(us) => us,
        Standing::Exceeded(us) => -us,
    };
    let answer = Answer {
        target_us: budget.target_us(),
        terms: budget
            .terms()
            .iter()
            .map(|term| Part {
                name: &term.name,
                us: term.value_us,
                source: &term.source,
            })
            .collect(),
        spent_us: budget.spent_us(),
        remains_us,
    };
    if arguments.json {
        print::json(&answer);
    } else {
        show(&answer);
    }
    if remains_us < 0.0 {
        return Err(Failure::Limit(format!(
            "the parts take {} more than the budget of {}",
            quantity::time(-remains_us * 1e3),
            quantity::time(answer.target_us * 1e3)
        )));
    }
    Ok(())
}

fn divided(arguments: &Arguments, target: Duration) -> Result<Budget, Failure> {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let input = |e: taut_model::link::LinkError| Failure::Input(e.to_string());
    let mut budget = Budget::new(us(target)).map_err(input)?;
    for (name, time) in &arguments.term {
        budget = budget
            .with(name, Kind::Processing, us(*time), "as given")
            .map_err(input)?;
    }
    for (medium, ways, source) in [
        (
            Medium::Fibre,
            &arguments.fibre,
            "light in glass of index 1.468",
        ),
        (Medium::Air, &arguments.air, "light in air"),
    ] {
        for km in ways {
            let name = format!(
                "{km} km of {}",
                if source.contains("glass") {
                    "fibre"
                } else {
                    "air"
                }
            );
            let delay = medium.delay_us(*km).map_err(input)?;
            budget = budget
                .with(&name, Kind::Propagation, delay, source)
                .map_err(input)?;
        }
    }
    for (bytes, line) in &arguments.frame {
        let ns = Ethernet::new(line / 1e9)
            .and_then(|line| line.occupied_ns(*bytes))
            .map_err(input)?;
        let name = format!("{bytes} bytes onto {} Gbit/s", line / 1e9);
        budget = budget
            .with(
                &name,
                Kind::Serialisation,
                ns / 1e3,
                "with preamble and gap",
            )
            .map_err(input)?;
    }
    for bytes in &arguments.wlan {
        let name = format!("{bytes} bytes over 802.11g");
        let time = Line::PUBLISHED.time_us(*bytes);
        budget = budget
            .with(&name, Kind::Air, time, "Gallenm\u{fc}ller 2021, eq. 6.5")
            .map_err(input)?;
    }
    Ok(budget)
}

fn show(answer: &Answer<'_>) {
    let mut parts = table::plain();
    for part in &answer.terms {
        let wide = (part.us / answer.target_us * 40.0).round().clamp(0.0, 60.0) as usize;
        parts.add_row([
            part.name.to_owned(),
            quantity::time(part.us * 1e3),
            "\u{2588}".repeat(wide),
            part.source.to_owned(),
        ]);
    }
    table::set_columns(&mut parts, None);
    print::line(table::text(parts, &[(3, "source")], table::terminal_width()).trim_end());
    let spent = quantity::time(answer.spent_us * 1e3);
    print::line(format!(
        "{spent} of {}; {}",
        quantity::time(answer.target_us * 1e3),
        match answer.remains_us {
            us if us < 0.0 => "budget exceeded".to_owned(),
            us => format!("{} remain", quantity::time(us * 1e3)),
        }
    ));
}
