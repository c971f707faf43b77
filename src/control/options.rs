//! The options on which plant and controller of a control loop have to agree.

use crate::exit::Failure;
use crate::terminal::quantity;
use serde::de::DeserializeOwned;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use taut_control::controller::{self, Faults, Filter, LatePlan, Strategy};
use taut_control::link::recorded;
use taut_control::plant::{NAMES, model, model_of_file};
use taut_control::station::{self, Discipline, OnLoss};
use taut_control::{Format, LinkSettings, Model, Shape};
use taut_folders::control_loop::ControlReport;
use taut_settings::{SettingsFileError, suggestion};
use taut_traffic::messages::Transport;
use taut_traffic::probe::Over;
use taut_transport::Settings;

/// Fraction of a loop's messages that must be delivered within the target delay; below it, the transport notifies the
/// loop.
const LOOP_IN_TIME: f64 = 0.9;

#[derive(Clone, clap::Args)]
pub struct LoopOptions {
    /// Plant: robot, pendulum, drone-axis, conveyor; robot-on-a-stand, robot-lying, pendulum-hanging (erect
    /// themselves); or a plant file (TOML)
    #[arg(long, value_name = "NAME|FILE", default_value = "robot")]
    plant: String,
    /// Format of messages: ncsbench, or taut, which carries the timestamps of all stages
    #[arg(long, value_name = "FORMAT", default_value = "ncsbench", value_parser = choice::<Format>)]
    protocol: Format,
    /// How commands are computed: fixed, compensated, scheduled, smith
    #[arg(long, value_name = "NAME", default_value = "compensated", value_parser = choice::<Strategy>)]
    strategy: Strategy,
    /// How states are estimated: original (of NCSbench), pitch, kalman
    #[arg(long, value_name = "NAME", default_value = "kalman", value_parser = choice::<Filter>)]
    filter: Filter,
    /// Faults of NCSbench that are reproduced, separated by commas (default: none)
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',', value_parser = ["undelayed-state", "repeated-slot", "clipped-scalars", "all"])]
    faults: Vec<String>,
    /// When commands are applied: deadline (as NCSbench: 32 of 35 ms after the reading), arrival (over sockets with
    /// --protocol taut)
    #[arg(long, value_name = "WHEN", default_value = "deadline", value_parser = choice::<Discipline>)]
    apply: Discipline,
    /// Input that is applied when no command arrives in time: predict, hold, zero
    #[arg(long, value_name = "WHAT", default_value = "predict", value_parser = choice::<OnLoss>)]
    on_loss: OnLoss,
    /// Sampling period, 0.1ms to 10s (default: the plant's)
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    period: Option<Duration>,
    /// Delay from reading to applying that the controller assumes until one is measured (default: 32/35 of the
    /// period; on arrival 0)
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    expected_delay: Option<Duration>,
    /// With --transport deadline: target while messages do not come in time by --target; a notice of the transport
    /// also chooses --late-strategy (default: the target does not change)
    #[arg(long, value_name = "TIME", value_parser = quantity::some_time)]
    late_target: Option<Duration>,
    /// With --late-target: how commands are computed meanwhile: fixed, compensated, scheduled
    #[arg(long, value_name = "NAME", default_value = "compensated", value_parser = choice::<Strategy>, requires = "late_target")]
    late_strategy: Strategy,
    /// Periods to run from the first command on, 1 to 1000000
    #[arg(long, value_name = "N", default_value_t = 1400, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    periods: u32,
    /// Seed of the sensors' noise, and of the network in virtual time
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// The settings of a control loop that result from the options.
pub struct Loop {
    pub model: Model,
    pub format: Format,
    pub controller: controller::Settings,
    pub station: station::Settings,
    pub seed: u64,
}

impl LoopOptions {
    /// Checks all options together, and returns the settings of the control loop. The message format is checked only
    /// over sockets, not in virtual time (`is_virtual`).
    pub fn of_loop(&self, is_virtual: bool) -> Result<Loop, Failure> {
        let mut model = named(&self.plant)?;
        if let Some(period) = self.period {
            let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
            model = model.with_period_ns(period_ns)?;
        }
        let shape = Shape {
            sensors: model.parts().sensors.len(),
            inputs: model.inputs(),
        };
        let over_sockets = !is_virtual;
        if over_sockets && !self.protocol.carries(shape) {
            return Err(Failure::Input(format!(
                "--protocol ncsbench: a message carries three sensors, but {} has {}; use --protocol taut",
                model.name(),
                shape.sensors
            )));
        }
        if over_sockets && self.protocol == Format::Ncsbench && self.apply == Discipline::Arrival {
            return Err(Failure::Input(
                "--apply arrival: NCSbench's messages do not contain the command in force; use --protocol taut"
                    .to_owned(),
            ));
        }
        // The robot must first lie and then be lifted, because the original NCSbench controller integrates the angle
        // from the lying position.
        let lifted = over_sockets && self.protocol == Format::Ncsbench && model.name() == "robot";
        let mut station = station::Settings::for_period(model.period_ns());
        let faults = self.faults();
        station.discipline = self.apply;
        station.on_loss = self.on_loss;
        station.repeated_slot = faults.repeated_slot;
        station.lifted = lifted;
        station.periods = u64::from(self.periods);
        let expected = self.expected_delay;
        let expected_ns = expected.map(|it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        let controller = controller::Settings {
            strategy: self.strategy,
            filter: self.filter,
            faults,
            expected_delay_ns: expected_ns.unwrap_or(match self.apply {
                Discipline::Deadline => station.apply_ns,
                Discipline::Arrival => 0,
            }),
            lifted,
        };
        // An invalid model is refused here, before plant and controller start.
        taut_control::Controller::new(&model, controller)?;
        Ok(Loop {
            model,
            format: self.protocol,
            controller,
            station,
            seed: self.seed,
        })
    }

    /// Returns the target delay and strategy to use while the transport notifies that its usual target is out of reach;
    /// `None` without `--late-target`. The transport then notifies when a tenth of the messages misses its target, as a
    /// loop bridges single losses.
    pub fn late_plan(&self, over: &mut Over) -> Result<Option<LatePlan>, Failure> {
        let Some(target) = self.late_target else {
            return Ok(None);
        };
        let wrong = |text: &str| Err(Failure::Input(text.to_owned()));
        if over.transport != Transport::Deadline {
            return wrong("--late-target: needs --transport deadline");
        }
        if self.late_strategy == Strategy::Smith {
            return wrong(
                "--late-strategy smith: cannot begin while a loop runs; expected fixed, compensated or scheduled",
            );
        }
        let settings = &mut over.deadline.settings;
        settings.in_time = LOOP_IN_TIME;
        let target_ns = u64::try_from(target.as_nanos()).unwrap_or(u64::MAX);
        let late = Settings {
            target_ns,
            ..*settings
        };
        let is_keyed = over.deadline.master.is_some();
        let checked = late.check(is_keyed);
        checked.map_err(|e| Failure::Input(format!("--late-target: {e}")))?;
        // A message is delivered when its window is left of the target, and not before.
        let way_ns = target_ns - settings.window_ns.min(target_ns);
        Ok(Some(LatePlan {
            target_ns,
            strategy: self.late_strategy,
            delay_ns: 2 * way_ns,
        }))
    }

    fn faults(&self) -> Faults {
        let has = |name: &str| self.faults.iter().any(|it| it == name || it == "all");
        Faults {
            undelayed_state: has("undelayed-state"),
            repeated_slot: has("repeated-slot"),
            clipped_scalars: has("clipped-scalars"),
        }
    }

    /// Returns the options as command-line words, for the processes of plant and controller.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut add = |name: &str, value: String| {
            words.push(format!("--{name}"));
            words.push(value);
        };
        add("plant", self.plant.clone());
        add("protocol", word(self.protocol));
        add("strategy", word(self.strategy));
        add("filter", word(self.filter));
        if !self.faults.is_empty() {
            add("faults", self.faults.join(","));
        }
        add("apply", word(self.apply));
        add("on-loss", word(self.on_loss));
        if self.late_target.is_some() {
            add("late-strategy", word(self.late_strategy));
        }
        for (name, time) in [
            ("period", self.period),
            ("expected-delay", self.expected_delay),
            ("late-target", self.late_target),
        ] {
            if let Some(time) = time {
                add(name, format!("{}ns", time.as_nanos()));
            }
        }
        add("periods", self.periods.to_string());
        add("seed", self.seed.to_string());
        words
    }

    /// Returns the settings of the control loop as JSON, in the format of the report.
    pub fn as_json(&self, of: &Loop) -> serde_json::Value {
        serde_json::json!({
            "protocol": self.protocol,
            "controller": of.controller,
            "station": of.station,
            "seed": self.seed,
        })
    }
}

/// The options of the simulated network in virtual time.
#[derive(clap::Args)]
pub struct LinkOptions {
    /// In virtual time: delay in each direction
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    delay: Option<Duration>,
    /// In virtual time: random addition to the delay in each direction, up to this
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    jitter: Option<Duration>,
    /// In virtual time: fraction of the rounds that are lost, such as 5%
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    loss: Option<f64>,
    /// In virtual time: rounds that are lost in a row each time, 1 to 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    burst: Option<u32>,
    /// In virtual time: lose one burst every N rounds instead of at random; not with --loss
    #[arg(long, value_name = "N", conflicts_with = "loss", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    every: Option<u32>,
    /// In virtual time: repeat the delays and losses of a run, from the folder of its --out; the other options add to
    /// them
    #[arg(long, value_name = "FOLDER")]
    as_recorded: Option<std::path::PathBuf>,
}

impl LinkOptions {
    pub fn settings(&self) -> Result<LinkSettings, Failure> {
        let recorded = self.as_recorded.as_deref().map(recorded_in).transpose()?;
        Ok(LinkSettings {
            delay_ns: within_an_hour(self.delay),
            jitter_ns: within_an_hour(self.jitter),
            loss: self.loss.unwrap_or(0.0),
            burst: self.burst.unwrap_or(1),
            every: self.every.unwrap_or(0),
            recorded_ns: recorded.unwrap_or_default(),
            noticed: Vec::new(),
        })
    }

    /// Returns the name of the first option of the simulated network that the user set; `None` if none is set.
    pub fn given(&self) -> Option<&'static str> {
        [
            ("--delay", self.delay.is_some()),
            ("--jitter", self.jitter.is_some()),
            ("--loss", self.loss.is_some()),
            ("--burst", self.burst.is_some()),
            ("--every", self.every.is_some()),
            ("--as-recorded", self.as_recorded.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }
}

/// Converts a time to ns. `None` becomes 0; times above an hour become an hour, which counts as never.
pub fn within_an_hour(time: Option<Duration>) -> u64 {
    let ns = time.unwrap_or_default().as_nanos();
    u64::try_from(ns).unwrap_or(u64::MAX).min(3_600_000_000_000)
}

/// Reads the network delays of a recorded run from its folder.
fn recorded_in(folder: &std::path::Path) -> Result<Vec<Option<[u64; 2]>>, Failure> {
    let report = ControlReport::read(folder)?;
    // One-way delays are known only if both sides had one clock.
    let one_clock = report.kpis.there.is_some();
    let found = recorded(&ControlReport::read_records(folder)?, one_clock);
    if found.iter().all(Option::is_none) {
        return Err(Failure::Input(format!(
            "--as-recorded {}: no command arrived in that run; name the folder of another run",
            folder.display()
        )));
    }
    Ok(found)
}

/// Loads a plant by its name or file.
pub fn named(plant: &str) -> Result<Model, Failure> {
    if let Some(model) = model(plant) {
        return Ok(model);
    }
    let path = std::path::Path::new(plant);
    if !plant.contains(['.', '/']) && !path.exists() {
        let near = suggestion(plant, NAMES);
        let all = NAMES.join(", ");
        return Err(Failure::Input(format!(
            "{plant}: no such plant{near}; expected one of {all}, or a plant file such as plant.toml"
        )));
    }
    let text = SettingsFileError::read(path).map_err(|e| Failure::Input(e.to_string()))?;
    Ok(model_of_file(&text, plant)?)
}

/// Parses a value of type `T` from the word that serde writes for that value.
pub fn choice<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde_json::Value::String(text.to_owned());
    serde_json::from_value(value).map_err(|e| e.to_string())
}

pub fn word(value: impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// Parses an address that a person has written, with a default port.
pub fn address(text: &str, port: u16) -> Result<SocketAddr, Failure> {
    let of = |found: std::io::Result<std::vec::IntoIter<SocketAddr>>| found.ok()?.next();
    let found = of(text.to_socket_addrs())
        .or_else(|| of((text.trim_matches(['[', ']']), port).to_socket_addrs()));
    found.ok_or_else(|| {
        Failure::Input(format!(
            "{text}: the name has no address; expected a host or an address, such as 192.0.2.2 or 192.0.2.2:{port}"
        ))
    })
}
