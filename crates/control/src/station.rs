//! The plant's side of the loop. It reads the sensors each period, and applies commands that arrive before the bound,
//! or predictions in their place.
//!
//! The timing is that of NCSbench's robot (Gallenmüller, dissertation, section 6.2) with a period of 35 ms. The robot
//! waits for a command until 29 ms after the reading and applies the command at 32 ms. If no command arrived, it
//! applies the next prediction of the last command at 29 ms. The caller passes the time, so that the same code runs
//! over sockets in real time and in a simulation.

use crate::model::{Inputs, MOST_INPUTS, Readings};
use crate::plant::{Plant, UP_NS};
use crate::protocol::{Command, Report, Round, SLOTS, Shape, Stage, Stamps};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Time from a reading until the plant stops waiting for the command for this reading, ns, with NCSbench's period of 35
/// ms.
pub const BOUND_NS: u64 = 29_000_000;
/// Time from a reading to the application of the command for this reading, ns, with NCSbench's period of 35 ms.
pub const APPLY_NS: u64 = 32_000_000;
/// Number of recent sampling periods whose records late commands can still update.
const OPEN_ROUNDS: usize = 128;
/// The two rates at which a robot is lifted, degrees/s. The first applies for `FAST_PERIODS` periods; together they
/// lift it from -1.0325 rad to just past upright.
const LIFT_RATES: [f64; 2] = [200.0, 10.0];
const FAST_PERIODS: u64 = 8;

/// The rule that determines when commands are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Commands that arrived by the bound are applied at a fixed time after the reading, so the delay is constant.
    #[default]
    Deadline,
    /// Commands are applied on arrival; only newer commands replace the inputs in force. A command that has not arrived
    /// one and a half periods after its reading counts as missing.
    Arrival,
}

/// The inputs that are applied when no command arrives by the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// The next prediction of the last command; inputs of 0 after ten predictions.
    #[default]
    Predict,
    /// The present inputs stay in force; after ten periods they become 0.
    Hold,
    /// The inputs become 0.
    Zero,
}

/// Settings of the plant's endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Settings {
    /// The rule that determines when commands are applied.
    pub discipline: Discipline,
    /// The inputs that are applied when no command arrives.
    pub on_loss: OnLoss,
    /// Latest time after a reading at which its command may arrive, ns: the bound.
    pub bound_ns: u64,
    /// Time after a reading at which its command is applied with [`Discipline::Deadline`], ns.
    pub apply_ns: u64,
    /// True if the first prediction repeats the command (a fault of NCSbench's robot).
    pub repeated_slot: bool,
    /// True if the plant lies on the ground at first and is then lifted; NCSbench's controller begins when it detects
    /// the end of the lifting.
    pub lifted: bool,
    /// Number of periods, counted from the first command, after which the plant stops.
    pub periods: u64,
}

impl Settings {
    /// Returns NCSbench's settings, with 1,400 periods. For periods other than 35 ms, its times are scaled in
    /// proportion.
    pub fn for_period(period_ns: u64) -> Self {
        let share = |of: u64| (u128::from(period_ns) * u128::from(of) / 35_000_000) as u64;
        Self {
            discipline: Discipline::default(),
            on_loss: OnLoss::default(),
            bound_ns: share(BOUND_NS),
            apply_ns: share(APPLY_NS),
            repeated_slot: false,
            lifted: false,
            periods: 1400,
        }
    }
}

/// The outcome of a sampling period's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The command has not arrived.
    #[default]
    Lost,
    /// The command arrived after the bound.
    Late,
    /// The command arrived before the bound.
    InTime,
}

/// The record of a finished sampling period.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Number of the period, from 1.
    pub sequence: u64,
    /// Timestamps of the sampling period; 0 where unknown.
    pub stamps: Stamps,
    /// Outcome of the sampling period's command: lost, late or in time.
    pub outcome: Outcome,
    /// The balanced state when the sensors were read, in the unit of the plant's results.
    pub balance: f64,
    /// Distance of the plant from its start when the sensors were read, in the unit of the plant's results.
    pub travel: f64,
    /// Inputs that were applied in this sampling period.
    pub inputs: Inputs,
    /// Readings of the sensors.
    pub readings: Readings,
    /// Number of the prediction that was applied, counted from 1; `None` if the command arrived before the bound.
    pub prediction: Option<usize>,
}

/// The state of a plant at its last reading, for a live display.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Standing {
    /// Number of the period; 0 before the first reading.
    pub sequence: u64,
    /// The balanced state, in the unit of the plant's results.
    pub balance: f64,
    /// Distance of the plant from its start, in the unit of the plant's results.
    pub travel: f64,
    /// Inputs in force.
    pub inputs: Inputs,
    /// Time from reading to the arrival of the command, ns, for the newest command; `None` before the first.
    pub round_trip_ns: Option<u64>,
    /// Number of commands that arrived before the delay bound.
    pub in_time: u64,
    /// Number of commands that arrived after the delay bound.
    pub late: u64,
    /// Number of sampling periods without a command, from the sampling period of the first command to the sampling
    /// period before the current one.
    pub missing: u64,
    /// True if the plant has fallen.
    pub has_fallen: bool,
}

/// The decision of [`Station::receive`] about a command: accepted, or the reason why it was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The command was accepted: it is applied now or later.
    Taken,
    /// The command was ignored: it is older than the applied command, or arrived after the delay bound.
    TooLate,
    /// The command was ignored: it replies to a report that was not sent, so it is forged or from another run.
    NotAsked,
}

/// The plant's endpoint of the control loop: reads sensors, sends reports and applies commands.
pub struct Station {
    plant: Box<dyn Plant>,
    settings: Settings,
    period_ns: u64,
    now_ns: u64,
    read_ns: u64,
    next_read_ns: u64,
    sequence: u64,
    /// Number of the first sampling period whose command was accepted; `None` until a command is accepted.
    first: Option<u64>,
    /// True while an accepted command waits for the time at which it is applied.
    pending: bool,
    /// True if the command for the last reading has arrived, or can no longer arrive in time.
    settled: bool,
    /// Time after a reading at which its command counts as missing with [`Discipline::Arrival`], ns.
    overdue_ns: u64,
    newest: u64,
    last_command: Option<Command>,
    since_command: usize,
    in_force: Inputs,
    in_force_of: Option<Round>,
    open: VecDeque<Record>,
    records: Vec<Record>,
    energy: f64,
    fallen_ns: Option<u64>,
    /// Time at which a plant that begins down has erected itself, ns.
    erected_ns: Option<u64>,
    stopped: bool,
    missed: u64,
    in_time: u64,
    late: u64,
    round_trip_ns: Option<u64>,
}

impl Station {
    /// Makes the plant's endpoint; its first reading is at `start_ns`.
    pub fn new(plant: Box<dyn Plant>, settings: Settings, start_ns: u64) -> Self {
        let period_ns = plant.model().period_ns();
        Self {
            plant,
            settings,
            period_ns,
            now_ns: start_ns,
            read_ns: start_ns,
            next_read_ns: start_ns,
            sequence: 0,
            first: None,
            pending: false,
            settled: true,
            overdue_ns: u64::MAX,
            newest: 0,
            last_command: None,
            since_command: 0,
            in_force: [0.0; MOST_INPUTS],
            in_force_of: None,
            open: VecDeque::new(),
            records: Vec::new(),
            energy: 0.0,
            fallen_ns: None,
            erected_ns: None,
            stopped: false,
            missed: 0,
            in_time: 0,
            late: 0,
            round_trip_ns: None,
        }
    }

    /// Returns the shape of this plant's messages.
    pub fn shape(&self) -> Shape {
        Shape {
            sensors: self.plant.model().parts().sensors.len(),
            inputs: self.plant.model().inputs(),
        }
    }

    /// Returns the time of the next call of [`Station::step`], ns.
    pub fn due_ns(&self) -> u64 {
        if self.stopped {
            return u64::MAX;
        }
        match self.settings.discipline {
            Discipline::Arrival if self.first.is_some() => self.overdue_ns.min(self.next_read_ns),
            Discipline::Deadline if self.is_in_round() => {
                let settings = &self.settings;
                let wait_ns = if self.pending {
                    settings.apply_ns
                } else {
                    settings.bound_ns
                };
                self.read_ns + wait_ns
            }
            _ => self.next_read_ns,
        }
    }

    /// Returns true if the inputs of the current sampling period are still to be applied, with
    /// [`Discipline::Deadline`]. The next reading waits until they are applied, even if this process is late; otherwise
    /// a sampling period that was read late would lose its command.
    fn is_in_round(&self) -> bool {
        self.settings.discipline == Discipline::Deadline
            && self.first.is_some()
            && (self.pending || !self.settled)
    }

    /// Returns true if a command is already waiting to be applied, so messages that arrive before [`Station::due_ns`]
    /// change nothing.
    pub fn awaits_nothing(&self) -> bool {
        self.pending
    }

    /// Returns true if all periods are over or the plant has fallen: 0 is applied, and no more sensors are read.
    pub fn is_over(&self) -> bool {
        self.stopped
    }

    /// Returns true once a command has been accepted.
    pub fn is_controlled(&self) -> bool {
        self.first.is_some()
    }

    /// Returns the time of the plant's fall, ns; `None` if it has not fallen.
    pub fn fallen_ns(&self) -> Option<u64> {
        self.fallen_ns
    }

    /// Returns the time at which a plant that begins down has erected itself, ns: it then stayed near upright for
    /// [`UP_NS`]. `None` if it has not, or began upright.
    pub fn erected_ns(&self) -> Option<u64> {
        self.erected_ns
    }

    /// Returns the integral over time of the mean square of the inputs, unit² s (the robot's inputs are in volts). It
    /// measures the energy that the reaction to a push takes.
    pub fn energy(&self) -> f64 {
        self.energy
    }

    /// Returns the number of periods that had no reading because the process was late.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Returns the plant's state at its last reading.
    pub fn standing(&self) -> Standing {
        // The command of the last reading may still arrive.
        let earlier = self.first.map_or(0, |first| self.sequence - first);
        Standing {
            sequence: self.sequence,
            balance: self.plant.balance(),
            travel: self.plant.travel(),
            inputs: self.in_force,
            round_trip_ns: self.round_trip_ns,
            in_time: self.in_time,
            late: self.late,
            missing: earlier.saturating_sub(self.in_time + self.late),
            has_fallen: self.fallen_ns.is_some(),
        }
    }

    /// Returns the plant.
    pub fn plant(&self) -> &dyn Plant {
        self.plant.as_ref()
    }

    /// Applies the inputs that are due at `now_ns`. At the end of a period, also reads the sensors, and returns the
    /// report to send; otherwise returns `None`.
    pub fn step(&mut self, now_ns: u64) -> Option<Report> {
        if self.stopped {
            return None;
        }
        self.advance(now_ns);
        if self.first.is_some() && !self.stopped {
            self.act(now_ns);
        }
        if now_ns < self.next_read_ns || self.stopped || self.is_in_round() {
            return None;
        }
        self.read(now_ns)
    }

    /// Records that the report of the last reading was sent.
    pub fn sent(&mut self, now_ns: u64) {
        if let Some(record) = self.open.back_mut() {
            record.stamps.set(Stage::ReportSent, now_ns);
        }
    }

    /// Processes a command that has arrived, with its timestamps.
    pub fn receive(&mut self, now_ns: u64, command: &Command, stamps: &Stamps) -> Receipt {
        if self.stopped || command.sequence > self.sequence || command.sequence == 0 {
            return Receipt::NotAsked;
        }
        let Some(in_time) = self.note_arrival(now_ns, command.sequence, stamps) else {
            return Receipt::TooLate;
        };
        let taken = match self.settings.discipline {
            Discipline::Deadline => {
                in_time && command.sequence == self.sequence && !self.settled && !self.pending
            }
            Discipline::Arrival => command.sequence > self.newest,
        };
        if !taken {
            return Receipt::TooLate;
        }
        if self.first.is_none() {
            self.first = Some(self.sequence);
            if self.settings.lifted {
                self.plant.push(LIFT_RATES[1]);
            }
            self.now_ns = now_ns;
        }
        self.advance(now_ns);
        self.newest = command.sequence;
        self.last_command = Some(command.clone());
        self.since_command = 0;
        self.settled = true;
        match self.settings.discipline {
            Discipline::Deadline => self.pending = true,
            Discipline::Arrival => {
                self.overdue_ns = now_ns + self.period_ns + self.period_ns / 2;
                self.apply(command.inputs[0], command.sequence, now_ns, None);
            }
        }
        Receipt::Taken
    }

    /// Stores the arrival of a command in the command's sampling period. Returns true if the command arrived before the
    /// bound; `None` if the sampling period is not open any more, or already has a command.
    fn note_arrival(&mut self, now_ns: u64, sequence: u64, stamps: &Stamps) -> Option<bool> {
        let record = Self::of(&mut self.open, sequence)?;
        if record.stamps.at(Stage::CommandReceived).is_some() {
            // The command is a duplicate.
            return None;
        }
        for stage in [
            Stage::ReportReceived,
            Stage::CommandSent,
            Stage::ReportReached,
        ] {
            if let Some(ns) = stamps.at(stage) {
                record.stamps.set(stage, ns);
            }
        }
        record.stamps.set(Stage::CommandReceived, now_ns);
        let round_trip = record.stamps.between(Stage::Read, Stage::CommandReceived);
        let in_time = round_trip.is_some_and(|ns| ns <= self.settings.bound_ns);
        self.round_trip_ns = round_trip;
        if in_time {
            record.outcome = Outcome::InTime;
            self.in_time += 1;
        } else {
            record.outcome = Outcome::Late;
            self.late += 1;
        }
        Some(in_time)
    }

    /// Pushes the plant: changes the rate of its balanced state by `rate`, in the unit of the results per second.
    pub fn push(&mut self, now_ns: u64, rate: f64) {
        self.advance(now_ns);
        self.plant.push(rate);
    }

    /// Applies inputs of 0 and ends the run, because the controller has exited.
    pub fn stop(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.in_force = self.plant.apply(&[0.0; MOST_INPUTS]);
        self.stopped = true;
    }

    /// Returns the sampling periods from the first command on, without the last sampling periods, whose commands may
    /// still arrive.
    pub fn into_records(mut self) -> Vec<Record> {
        // Reports of readings at the end of the run get no reply.
        while self
            .open
            .back()
            .is_some_and(|it| it.outcome == Outcome::Lost && it.prediction.is_none())
            && self.open.back().map(|it| it.sequence) > Some(self.newest)
        {
            self.open.pop_back();
        }
        let first = self.first.unwrap_or(u64::MAX);
        self.records.extend(self.open);
        self.records.retain(|record| record.sequence >= first);
        self.records
    }

    fn of(open: &mut VecDeque<Record>, sequence: u64) -> Option<&mut Record> {
        let oldest = open.front()?.sequence;
        let back = usize::try_from(sequence.checked_sub(oldest)?).ok()?;
        open.get_mut(back).filter(|it| it.sequence == sequence)
    }

    fn advance(&mut self, now_ns: u64) {
        let Some(ns) = now_ns.checked_sub(self.now_ns) else {
            return;
        };
        self.now_ns = now_ns;
        // Until the first command arrives, the plant is held in place, so it does not move.
        if self.first.is_none() {
            return;
        }
        let was_up = self.plant.is_up();
        self.plant.advance(ns);
        if !was_up && self.plant.is_up() {
            self.erected_ns = Some(now_ns.saturating_sub(UP_NS));
        }
        let inputs = &self.in_force[..self.plant.model().inputs()];
        let squares: f64 = inputs.iter().map(|input| input * input).sum();
        self.energy += squares / inputs.len() as f64 * ns as f64 * 1e-9;
        if self.plant.has_fallen() && !self.stopped {
            self.fallen_ns = Some(now_ns);
            self.in_force = self.plant.apply(&[0.0; MOST_INPUTS]);
            self.stopped = true;
        }
    }

    fn apply(&mut self, inputs: Inputs, sequence: u64, now_ns: u64, prediction: Option<usize>) {
        self.in_force = self.plant.apply(&inputs);
        let (in_force, applied_ns) = (self.in_force, now_ns);
        let Some(record) = Self::of(&mut self.open, sequence) else {
            return;
        };
        record.inputs = in_force;
        record.prediction = prediction;
        record.stamps.set(Stage::Applied, applied_ns);
        let stamps = &record.stamps;
        self.in_force_of = stamps.at(Stage::Read).map(|read_ns| Round {
            sequence,
            read_ns,
            sent_ns: stamps.at(Stage::ReportSent),
            // If inputs are applied without a command, the time of applying them counts as the receive time, as in
            // NCSbench.
            received_ns: stamps.at(Stage::CommandReceived).or(Some(applied_ns)),
            applied_ns: Some(applied_ns),
        });
    }

    /// Applies the inputs that are due at `now_ns`, if any.
    fn act(&mut self, now_ns: u64) {
        match self.settings.discipline {
            Discipline::Deadline if self.pending => {
                if now_ns >= self.read_ns + self.settings.apply_ns {
                    self.pending = false;
                    let command = self.last_command.as_ref().map(|it| it.inputs[0]);
                    self.apply(command.unwrap_or_default(), self.sequence, now_ns, None);
                }
            }
            Discipline::Deadline => {
                if !self.settled && now_ns >= self.read_ns + self.settings.bound_ns {
                    self.settled = true;
                    let (slot, inputs) = self.without_command();
                    self.apply(inputs, self.sequence, now_ns, Some(slot));
                }
            }
            Discipline::Arrival => {
                if now_ns >= self.overdue_ns {
                    self.overdue_ns += self.period_ns;
                    // A command may be delayed for so long that its round is not stored any more.
                    let (_, inputs) = self.without_command();
                    self.in_force = self.plant.apply(&inputs);
                }
            }
        }
    }

    /// Returns the number of the applied prediction, from 1, and the inputs to apply when no command has arrived.
    fn without_command(&mut self) -> (usize, Inputs) {
        self.since_command += 1;
        let slot = self.since_command;
        let zero = [0.0; MOST_INPUTS];
        let exhausted = slot >= SLOTS;
        let inputs = match (self.settings.on_loss, &self.last_command) {
            _ if exhausted => zero,
            (OnLoss::Predict, Some(command)) => {
                command.inputs[slot - usize::from(self.settings.repeated_slot)]
            }
            (OnLoss::Hold, _) => self.in_force,
            _ => zero,
        };
        (slot, inputs)
    }

    fn read(&mut self, now_ns: u64) -> Option<Report> {
        let begun = self.first.map_or(0, |first| self.sequence + 1 - first);
        if self.first.is_some() && begun >= self.settings.periods {
            self.stop(now_ns);
            // A plant that begins down and is not up at the end counts as fallen.
            if !self.plant.is_up() {
                self.fallen_ns = Some(now_ns);
            }
            return None;
        }
        self.sequence += 1;
        self.settled = false;
        self.read_ns = now_ns;
        self.next_read_ns += self.period_ns;
        while self.next_read_ns + self.period_ns <= now_ns {
            self.next_read_ns += self.period_ns;
            self.missed += 1;
        }
        let mut readings = self.plant.read();
        if self.first.is_none() && self.settings.lifted {
            readings[0] += LIFT_RATES[usize::from(self.sequence > FAST_PERIODS)];
        }
        let mut stamps = Stamps::default();
        stamps.set(Stage::Read, now_ns);
        if self.open.len() == OPEN_ROUNDS {
            self.records.extend(self.open.pop_front());
        }
        self.open.push_back(Record {
            sequence: self.sequence,
            stamps,
            outcome: Outcome::Lost,
            balance: self.plant.balance(),
            travel: self.plant.travel(),
            inputs: self.in_force,
            readings,
            prediction: None,
        });
        Some(Report {
            sequence: self.sequence,
            read_ns: now_ns,
            stamps,
            previous: self.in_force_of,
            offset: self.plant.offset(),
            applied: self.in_force,
            readings,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::plant::{LinearPlant, robot};

    fn station() -> Station {
        let model = robot();
        let settings = Settings::for_period(model.period_ns());
        Station::new(Box::new(LinearPlant::new(&model, 1)), settings, 1_000)
    }

    fn command(sequence: u64, voltage: f64) -> Command {
        Command {
            sequence,
            time_ns: 0,
            inputs: [[voltage; 2]; SLOTS],
        }
    }

    #[test]
    fn only_the_first_valid_command_per_sampling_period_is_applied() {
        let mut station = station();
        let report = station.step(1_000).unwrap();
        assert_eq!(report.sequence, 1);
        let none = Stamps::default();
        let mut receive = |ms: u64, sequence, voltage| {
            station.receive(1_000 + ms * 1_000_000, &command(sequence, voltage), &none)
        };
        assert_eq!(receive(1, 2, 8.0), Receipt::NotAsked);
        assert_eq!(receive(1, 0, 8.0), Receipt::NotAsked);
        assert_eq!(receive(2, 1, 2.0), Receipt::Taken);
        assert_eq!(receive(3, 1, 8.0), Receipt::TooLate);
        assert_eq!(station.due_ns(), 1_000 + APPLY_NS);
        assert!(station.step(1_000 + APPLY_NS).is_none());
        let next = station.step(1_000 + 35_000_000).unwrap();
        // 2 V are 24.7 % of 8.087 V.
        assert!((next.applied[0] - 0.25 * 8.087).abs() < 1e-12);
        assert_eq!(next.previous.unwrap().applied_ns, Some(1_000 + APPLY_NS));
    }

    #[test]
    fn the_plant_input_persists_until_commands_stop_and_becomes_zero() {
        for on_loss in [OnLoss::Predict, OnLoss::Hold, OnLoss::Zero] {
            let mut station = station();
            station.settings.discipline = Discipline::Arrival;
            station.settings.on_loss = on_loss;
            let mut applied = Vec::new();
            for period in 0..40 {
                let read_ns = 1_000 + period * 35_000_000;
                while station.due_ns() < read_ns {
                    station.step(station.due_ns());
                }
                let Some(report) = station.step(read_ns) else {
                    break;
                };
                applied.push(report.applied[0]);
                // In these periods, a command arrives three periods after its reading; later, no more commands arrive.
                if (3..9).contains(&period) {
                    let command = command(report.sequence - 3, 2.0);
                    let receipt = station.receive(read_ns + 1, &command, &Stamps::default());
                    assert_eq!(receipt, Receipt::Taken);
                }
            }
            let voltage = 0.25 * 8.087;
            assert!(
                applied[4..10].iter().all(|it| (it - voltage).abs() < 1e-12),
                "{applied:?}"
            );
            if applied.len() == 40 {
                assert_eq!(applied.last(), Some(&0.0), "{on_loss:?}");
            } else {
                assert!(station.fallen_ns().is_some() && station.in_force == [0.0; 2]);
            }
        }
    }

    #[test]
    fn a_late_process_skips_and_counts_sampling_periods() {
        let mut station = station();
        station.step(1_000).unwrap();
        let late = station.step(1_000 + 3 * 35_000_000 + 5).unwrap();
        assert_eq!((late.sequence, station.missed()), (2, 1));
        assert_eq!(station.due_ns(), 1_000 + 3 * 35_000_000);
    }

    #[test]
    fn commands_for_late_sensor_readings_are_applied_and_recorded() {
        const MS: u64 = 1_000_000;
        let mut station = station();
        station.settings.periods = 2;
        station.step(1_000).unwrap();
        let none = Stamps::default();
        station.receive(1_000 + MS, &command(1, 2.0), &none);
        assert!(station.step(1_000 + APPLY_NS).is_none());
        // The reading is scheduled for 35 ms. The next one, at 70 ms, waits for this round's command, which is applied
        // at 87 ms.
        let late_ns = 1_000 + 55 * MS;
        station.step(late_ns).unwrap();
        assert!(station.step(1_000 + 70 * MS).is_none() && !station.is_over());
        let receipt = station.receive(late_ns + 20 * MS, &command(2, -2.0), &none);
        assert_eq!(receipt, Receipt::Taken);
        assert_eq!(station.due_ns(), late_ns + APPLY_NS);
        assert!(station.step(late_ns + APPLY_NS).is_none() && station.is_over());
        let records = station.into_records();
        assert_eq!(records.len(), 2, "{records:?}");
        assert!(records[1].inputs[0] < 0.0, "{records:?}");
    }

    #[test]
    fn ncsbenchs_pitch_estimate_becomes_upright_while_the_robot_is_lifted() {
        let model = robot();
        let mut settings = Settings::for_period(model.period_ns());
        settings.lifted = true;
        for seed in 0..20 {
            let plant = Box::new(LinearPlant::new(&model, seed));
            let mut station = Station::new(plant, settings, 0);
            let mut pitch = -1.0325_f64;
            let mut upright = None;
            for period in 0..40 {
                let report = station.step(period * 35_000_000).unwrap();
                pitch += (report.readings[0] - report.offset).to_radians() * 0.035;
                if pitch > 0.0 && upright.is_none() {
                    upright = Some((period, pitch.to_degrees()));
                }
            }
            let (period, pitch) = upright.unwrap();
            assert!(
                (10..30).contains(&period) && pitch < 0.5,
                "{period} {pitch}"
            );
        }
    }
}
