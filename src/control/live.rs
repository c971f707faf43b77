//! The display of a running plant: a dashboard on a terminal, JSON, or a line each second.

use super::options::Loop;
use crate::terminal::print;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taut_control::Standing;
use taut_live::{Asked, ControlView, Dashboard};

/// Time between two updates of the display.
pub const TICK: Duration = Duration::from_millis(40);
/// Time between two lines if the output is not a terminal.
const LINE: Duration = Duration::from_secs(1);
/// Number of sensor readings in the history: two for each column of a wide terminal.
const KEPT: usize = 1000;

/// The lines that the plant's process prints for the process that started it.
#[derive(Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The plant has started and receives the controller's commands at `address`.
    Started { address: SocketAddr },
    /// The state of the plant.
    Standing(Standing),
}

enum Look {
    Json,
    Lines { next: Instant },
    Dashboard(Dashboard),
}

/// The display of a plant.
pub struct Live {
    look: Look,
    title: String,
    units: [String; 2],
    inputs: usize,
    periods: u64,
    bound_ns: u64,
    shown: u64,
    balance: VecDeque<f64>,
    round_trips_ms: VecDeque<f64>,
}

impl Live {
    /// Takes over the terminal, if there is one and JSON is not requested.
    pub fn open(of: &Loop, title: String, json: bool) -> Self {
        let lines = || Look::Lines {
            next: Instant::now(),
        };
        let look = if json {
            Look::Json
        } else if Dashboard::is_possible() {
            match Dashboard::open() {
                Ok(dashboard) => Look::Dashboard(dashboard),
                Err(e) => {
                    print::note(format_args!("no dashboard on this terminal: {e}"));
                    lines()
                }
            }
        } else {
            lines()
        };
        Self {
            look,
            title,
            units: of.model.parts().units.clone(),
            inputs: of.model.inputs(),
            periods: of.station.periods,
            bound_ns: of.station.bound_ns,
            shown: 0,
            balance: VecDeque::new(),
            round_trips_ms: VecDeque::new(),
        }
    }

    /// Shows the state of the plant if it has changed; returns true if the user requests the end.
    pub fn show(&mut self, standing: &Standing) -> bool {
        if standing.sequence != self.shown {
            self.shown = standing.sequence;
            push(&mut self.balance, standing.balance);
            if let Some(ns) = standing.round_trip_ns {
                push(&mut self.round_trips_ms, ns as f64 / 1e6);
            }
            self.draw(standing);
        }
        match &mut self.look {
            // A closed terminal needs no restoring.
            Look::Dashboard(it) => {
                matches!(it.keys(Duration::ZERO), Ok(Asked::Quit) | Err(_))
            }
            Look::Json | Look::Lines { .. } => false,
        }
    }

    fn draw(&mut self, standing: &Standing) {
        match &mut self.look {
            Look::Json => {
                print::line(serde_json::to_string(&Event::Standing(*standing)).unwrap_or_default());
            }
            Look::Lines { next } => {
                let now = Instant::now();
                if now >= *next {
                    *next = now + LINE;
                    print::line(line(standing, &self.units, self.periods));
                }
            }
            Look::Dashboard(dashboard) => {
                let view = ControlView {
                    title: &self.title,
                    units: &self.units,
                    inputs: self.inputs,
                    periods: self.periods,
                    bound_ns: self.bound_ns,
                    standing,
                    balance: self.balance.make_contiguous(),
                    round_trips_ms: self.round_trips_ms.make_contiguous(),
                };
                // A closed terminal is detected when keys are read.
                let _ = dashboard.show_control(&view);
            }
        }
    }
}

fn push(values: &mut VecDeque<f64>, value: f64) {
    if values.len() == KEPT {
        values.pop_front();
    }
    values.push_back(value);
}

fn line(it: &Standing, [balance_unit, travel_unit]: &[String; 2], periods: u64) -> String {
    let round_trip = it.round_trip_ns.map_or_else(String::new, |ns| {
        format!("; command after {:.2} ms", ns as f64 / 1e6)
    });
    format!(
        "period {} of {periods}: {:.2} {balance_unit}, travelled {:.1} {travel_unit}{round_trip}; {} in time, {} \
        late, {} missing",
        it.sequence, it.balance, it.travel, it.in_time, it.late, it.missing
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn printed_events_parse_to_the_same_values() {
        let standing = Standing {
            sequence: 3,
            balance: -1.5,
            round_trip_ns: Some(1_500_000),
            in_time: 2,
            ..Standing::default()
        };
        let text = serde_json::to_string(&Event::Standing(standing)).unwrap();
        assert!(text.contains(r#""event":"standing""#), "{text}");
        let read: Event = serde_json::from_str(&text).unwrap();
        assert_eq!(read, Event::Standing(standing));
        let units = ["degrees".to_owned(), "m".to_owned()];
        assert_eq!(
            line(&standing, &units, 9),
            "period 3 of 9: -1.50 degrees, travelled 0.0 m; command after 1.50 ms; 2 in time, 0 late, 0 missing"
        );
    }
}
