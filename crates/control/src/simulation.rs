//! Simulates plant, controller and network in virtual time, with the code of the real loop but a thousand times faster.

use crate::controller::{self, Controller, LatePlan, Switch};
use crate::link::{Link, LinkSettings};
use crate::model::{Model, ModelError};
use crate::plant;
use crate::protocol::{Command, Report, Stage, Stamps};
use crate::station::{self, Record, Station};
use std::collections::BTreeMap;

/// The settings of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The model of the simulated plant.
    pub model: Model,
    /// Settings of the controller.
    pub controller: controller::Settings,
    /// The strategy of the controller while the transport reports ([`LinkSettings::noticed`]) that the usual target
    /// delay cannot be met; `None` if the controller ignores these notices.
    pub late: Option<LatePlan>,
    /// Settings of the plant's endpoint.
    pub station: station::Settings,
    /// Settings of the network.
    pub link: LinkSettings,
    /// Time from reading the sensors to sending the report, ns.
    pub sensing_ns: u64,
    /// Time from receiving a report to sending its command, ns.
    pub processing_ns: u64,
    /// Push of the plant, if any: the time, ns, and the change of the balanced state's rate, in the unit of the plant's
    /// results per second.
    pub push: Option<(u64, f64)>,
    /// Seed of the sensors' errors and of the network.
    pub seed: u64,
}

impl Scenario {
    /// Makes a scenario of a plant with the default controller and network.
    pub fn new(model: Model) -> Self {
        let station = station::Settings::for_period(model.period_ns());
        Self {
            controller: controller::Settings {
                expected_delay_ns: station.apply_ns,
                ..controller::Settings::default()
            },
            late: None,
            station,
            link: LinkSettings::default(),
            sensing_ns: 0,
            processing_ns: 0,
            push: None,
            seed: 1,
            model,
        }
    }
}

/// The results of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// The sampling periods from the first command on.
    pub records: Vec<Record>,
    /// Shortest time from a reading to the arrival of its command, ns, if all commands that arrived were late;
    /// otherwise `None`.
    pub too_late_ns: Option<u64>,
    /// Time of the fall, ns; `None` if the plant did not fall.
    pub fallen_ns: Option<u64>,
    /// Time at which a plant that begins down has erected itself, ns; `None` if it has not, or began upright.
    pub erected_ns: Option<u64>,
    /// Time integral of the inputs' mean square.
    pub energy: f64,
}

/// Pending events, ordered by time, and by insertion for equal times.
#[derive(Debug, Default)]
struct Events {
    queue: BTreeMap<(u64, u64), Event>,
    count: u64,
}

impl Events {
    fn add(&mut self, ns: u64, event: Event) {
        self.count += 1;
        self.queue.insert((ns, self.count), event);
    }

    /// Removes and returns the earliest event if its time is at most `by_ns`.
    fn next(&mut self, by_ns: u64) -> Option<(u64, Event)> {
        let next = self.queue.first_entry().filter(|it| it.key().0 <= by_ns)?;
        let ((ns, _), event) = next.remove_entry();
        Some((ns, event))
    }
}

/// An event in virtual time: a report arrives (then the delay of its command, ns, and whether the controller has been
/// notified), a command arrives, or the plant is pushed.
#[derive(Debug)]
enum Event {
    Reported(Box<Report>, u64, bool),
    Commanded(Box<Command>, Stamps),
    Pushed(f64),
}

/// Simulates a scenario until all periods are over or the plant has fallen.
///
/// # Errors
/// The controller does not support this plant.
pub fn simulate(scenario: &Scenario) -> Result<Simulated, ModelError> {
    // A timestamp of 0 means unknown.
    const START_NS: u64 = 1_000_000;
    let mut controller = Controller::new(&scenario.model, scenario.controller)?;
    let late = scenario.late;
    let mut switch = late.map(|late| Switch::new(&scenario.controller, late));
    let plant = plant::plant(&scenario.model, scenario.seed);
    let mut station = Station::new(plant, scenario.station, START_NS);
    let mut link = Link::new(&scenario.link, scenario.seed ^ 0x6C69_6E6B);
    let mut events = Events::default();
    let mut soonest_ns: Option<u64> = None;
    if let Some((ns, rate)) = scenario.push {
        events.add(START_NS + ns, Event::Pushed(rate));
    }
    // A controller that receives nothing never sends anything; without this limit the loop would not end.
    let patience_ns = scenario.model.period_ns() * (scenario.station.periods + 1000);
    while !station.is_over() {
        let due_ns = station.due_ns();
        if !station.is_controlled() && due_ns > START_NS + patience_ns {
            station.stop(due_ns);
            break;
        }
        match events.next(due_ns) {
            Some((ns, Event::Reported(report, back_ns, is_late))) => {
                if let Some(switch) = &mut switch {
                    switch.follow(&mut controller, is_late);
                }
                let sent_ns = ns + scenario.processing_ns;
                if let Some(event) = reply(&mut controller, &report, ns, sent_ns) {
                    events.add(sent_ns + back_ns, event);
                }
            }
            Some((ns, Event::Commanded(command, stamps))) => {
                station.receive(ns, &command, &stamps);
                let took_ns = stamps.at(Stage::Read).map(|read| ns.saturating_sub(read));
                soonest_ns = soonest_ns.into_iter().chain(took_ns).min();
            }
            Some((ns, Event::Pushed(rate))) => station.push(ns, rate),
            None => {
                let Some(mut report) = station.step(due_ns) else {
                    continue;
                };
                let sent_ns = due_ns + scenario.sensing_ns;
                station.sent(sent_ns);
                report.stamps.set(Stage::ReportSent, sent_ns);
                if let Some([there_ns, back_ns]) = link.round() {
                    events.add(
                        sent_ns + there_ns,
                        Event::Reported(Box::new(report), back_ns, link.is_noticed()),
                    );
                }
            }
        }
    }
    Ok(Simulated {
        too_late_ns: soonest_ns.filter(|_| !station.is_controlled()),
        fallen_ns: station.fallen_ns(),
        erected_ns: station.erected_ns(),
        energy: station.energy(),
        records: station.into_records(),
    })
}

/// Returns the event that the controller's command for a report arrives; none if the controller sends no command.
fn reply(
    controller: &mut Controller,
    report: &Report,
    received_ns: u64,
    sent_ns: u64,
) -> Option<Event> {
    let command = controller.command(report)?;
    let mut stamps = report.stamps;
    stamps.set(Stage::ReportReceived, received_ns);
    stamps.set(Stage::CommandSent, sent_ns);
    Some(Event::Commanded(Box::new(command), stamps))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::controller::{Faults, Filter, Strategy};
    use crate::kpi::Kpis;
    use crate::plant::{NAMES, model, robot};
    use crate::station::{Discipline, OnLoss, Outcome};

    fn kpis(scenario: &Scenario) -> Kpis {
        let run = simulate(scenario).unwrap();
        Kpis::of(&run.records, scenario.model.inputs(), true, run.fallen_ns)
    }

    fn scenario(name: &str) -> Scenario {
        Scenario::new(model(name).unwrap())
    }

    /// Returns a scenario with NCSbench's controller and robot, including their faults.
    fn original() -> Scenario {
        let mut scenario = scenario("robot");
        scenario.controller.filter = Filter::Original;
        scenario.controller.faults = Faults::ORIGINAL;
        scenario.station.repeated_slot = true;
        scenario
    }

    fn arrival(mut scenario: Scenario, strategy: Strategy, delay_ms: u64) -> Scenario {
        scenario.station.discipline = Discipline::Arrival;
        scenario.controller.strategy = strategy;
        scenario.controller.expected_delay_ns = delay_ms * 1_000_000;
        scenario.link.delay_ns = delay_ms * 500_000;
        scenario.station.periods = 400;
        scenario
    }

    #[test]
    fn every_built_in_plant_is_balanced_over_1400_periods() {
        for name in NAMES {
            let kpis = kpis(&scenario(name));
            assert_eq!((kpis.rounds, kpis.late, kpis.lost), (1400, 0, 0), "{name}");
            assert!(!kpis.has_fallen, "{name}");
        }
    }

    /// Returns when a plant that begins down is up, s, and whether it has fallen, over a network with these delays (ms,
    /// in each direction) and losses.
    fn erected(name: &str, seed: u64, [delay, jitter]: [f64; 2], loss: f64) -> (Option<f64>, bool) {
        let mut scenario = scenario(name);
        scenario.seed = seed;
        scenario.station.periods = 5_000_000_000 / scenario.model.period_ns();
        scenario.link.delay_ns = (delay * 1e6) as u64;
        scenario.link.jitter_ns = (jitter * 1e6) as u64;
        scenario.link.loss = loss;
        let run = simulate(&scenario).unwrap();
        (
            run.erected_ns.map(|ns| ns as f64 / 1e9),
            run.fallen_ns.is_some(),
        )
    }

    #[test]
    fn plants_that_begin_down_erect_themselves_despite_delay_and_losses() {
        for (name, network, within_s) in [
            ("robot-on-a-stand", [5.0, 8.0], 0.5),
            ("robot-lying", [5.0, 8.0], 1.0),
            ("pendulum-hanging", [0.5, 1.0], 1.6),
        ] {
            for seed in 0..6 {
                let (up_s, has_fallen) = erected(name, seed, network, 0.05);
                let is_up = up_s.is_some_and(|s| s < within_s) && !has_fallen;
                assert!(is_up, "{name} {seed}: {up_s:?} {has_fallen}");
            }
        }
    }

    #[test]
    fn a_plant_that_cannot_erect_itself_counts_as_fallen() {
        let mut parts = model("robot-lying").unwrap().parts().clone();
        parts.limit = 8.0;
        let mut scenario = Scenario::new(Model::new(parts).unwrap());
        scenario.station.periods = 150;
        let run = simulate(&scenario).unwrap();
        assert!(run.erected_ns.is_none() && run.fallen_ns.is_some());
        let most = run
            .records
            .iter()
            .map(|it| it.balance)
            .fold(f64::MIN, f64::max);
        assert!((-59.2..-55.0).contains(&most), "{most}");
    }

    #[test]
    fn ncsbenchs_controller_balances_the_robot_despite_three_consecutive_losses() {
        for seed in 0..4 {
            let mut scenario = original();
            scenario.seed = seed;
            let plain = kpis(&scenario);
            assert!(!plain.has_fallen && plain.rounds == 1400);
            scenario.link.burst = 3;
            scenario.link.every = 60;
            let lossy = kpis(&scenario);
            assert!(!lossy.has_fallen, "seed {seed}");
            assert!(lossy.runs.keys().all(|run| *run <= 3) && lossy.lost > 60);
            assert!(lossy.sum_balance > plain.sum_balance, "losses show");
        }
    }

    #[test]
    fn command_lateness_is_reported_when_all_commands_are_late() {
        let late = |delay_ns: u64| {
            let mut scenario = scenario("robot");
            scenario.link.delay_ns = delay_ns;
            scenario.station.periods = 100;
            let found = simulate(&scenario).unwrap();
            (found.records.is_empty(), found.too_late_ns)
        };
        assert_eq!(late(1_000_000), (false, None));
        assert_eq!(late(50_000_000), (true, Some(100_000_000)));
        // The count includes commands of rounds that are no longer stored.
        assert_eq!(late(5_000_000_000), (true, Some(10_000_000_000)));
        let nothing = Kpis::of(&[], 1, true, None);
        for sum in [nothing.sum_balance, nothing.sum_travel, nothing.sum_inputs] {
            assert!(sum.is_sign_positive(), "{sum}");
        }
    }

    #[test]
    fn equal_seeds_give_equal_runs_and_different_seeds_different_runs() {
        let mut scenario = original();
        scenario.station.periods = 100;
        scenario.link.loss = 0.1;
        let first = simulate(&scenario).unwrap();
        assert_eq!(first, simulate(&scenario).unwrap());
        scenario.seed += 1;
        assert_ne!(first, simulate(&scenario).unwrap());
    }

    /// This test shows why `plant/robot.rs` adds a lag of the gyroscope.
    #[test]
    fn ncsbenchs_filter_balances_the_robot_only_with_a_lagging_gyroscope() {
        for delay_ms in [10, 20] {
            let lagging = arrival(original(), Strategy::Fixed, delay_ms);
            assert!(!kpis(&lagging).has_fallen, "{delay_ms} ms");
            let mut ideal = lagging;
            let mut parts = robot().parts().clone();
            parts.sensors[0].row = vec![0.0, 0.0, 0.0, 1_f64.to_degrees(), 0.0, 0.0, 0.0];
            ideal.model = Model::new(parts).unwrap();
            assert!(kpis(&ideal).has_fallen, "{delay_ms} ms");
            ideal.controller.filter = Filter::Kalman;
            assert!(
                !kpis(&ideal).has_fallen,
                "{delay_ms} ms: a filter that knows the model"
            );
        }
    }

    #[test]
    fn compensated_gains_tolerate_165_ms_delay_where_fixed_gains_fail() {
        let falls = |strategy, delay_ms| {
            let mut scenario = arrival(scenario("robot"), strategy, delay_ms);
            // The controller's expected delay is wrong, so that it has to measure the delay.
            scenario.controller.expected_delay_ns = 0;
            kpis(&scenario).has_fallen
        };
        assert!(!falls(Strategy::Fixed, 90));
        assert!(falls(Strategy::Fixed, 110));
        for strategy in [Strategy::Compensated, Strategy::Scheduled] {
            assert!(!falls(strategy, 165), "{strategy:?}");
        }
    }

    #[test]
    fn commands_beyond_the_delay_bound_are_late_and_not_applied() {
        let mut scenario = scenario("robot");
        scenario.station.periods = 200;
        scenario.link.recorded_ns = vec![Some([1_000_000; 2]); 9];
        scenario.link.recorded_ns.push(Some([15_000_000; 2]));
        let run = simulate(&scenario).unwrap();
        let late = run.records.iter().filter(|it| it.outcome == Outcome::Late);
        let late: Vec<&Record> = late.collect();
        assert_eq!(late.len(), 20);
        for record in late {
            assert_eq!(record.prediction, Some(1));
            let applied = record.stamps.between(Stage::Read, Stage::Applied);
            assert_eq!(applied, Some(station::BOUND_NS));
        }
        assert_eq!(run.fallen_ns, None);
    }

    #[test]
    fn a_smith_predictor_is_refused_for_unstable_plants() {
        let smith = |name| arrival(scenario(name), Strategy::Smith, 400);
        let refused = simulate(&smith("robot")).unwrap_err();
        assert!(refused.to_string().contains("unstable"), "{refused}");
        let sum = |scenario: &Scenario| kpis(scenario).sum_balance;
        let fixed = sum(&arrival(scenario("conveyor"), Strategy::Fixed, 400));
        let with = sum(&smith("conveyor"));
        assert!(with < fixed / 2.0, "{with} {fixed}");
    }

    #[test]
    fn the_plant_input_becomes_zero_when_the_controller_stops_sending() {
        let mut scenario = scenario("conveyor");
        scenario.station.periods = 60;
        scenario.link.recorded_ns = vec![Some([0, 0]); 20];
        scenario
            .link
            .recorded_ns
            .resize(100, Some([10_000_000_000; 2]));
        for on_loss in [OnLoss::Predict, OnLoss::Hold, OnLoss::Zero] {
            scenario.station.on_loss = on_loss;
            let run = simulate(&scenario).unwrap();
            let silent = run.records.iter().filter(|it| it.prediction.is_some());
            let voltages: Vec<f64> = silent.map(|it| it.inputs[0]).collect();
            assert!(voltages.len() > 12, "{on_loss:?} {}", voltages.len());
            assert!(
                voltages[11..].iter().all(|voltage| *voltage == 0.0),
                "{on_loss:?}"
            );
        }
    }
}
