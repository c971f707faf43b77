//! The table of a control loop's results with one row for each sampling period.

use taut_control::model::{MOST_INPUTS, MOST_SENSORS};
use taut_control::protocol::STAGES;
use taut_control::station::Outcome;
use taut_control::{Record, Stamps};

const HEADER: &str = "sequence,outcome,prediction,balance,travel,input_1,input_2,\
    read_ns,report_sent_ns,report_left_ns,report_reached_ns,report_received_ns,\
    command_sent_ns,command_left_ns,command_reached_ns,command_received_ns,applied_ns,\
    sensor_1,sensor_2,sensor_3,sensor_4,sensor_5,sensor_6";
const COLUMNS: usize = 5 + MOST_INPUTS + STAGES + MOST_SENSORS;

/// The reason why a table of sampling periods cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct RoundsError {
    line: usize,
    reason: String,
}

/// Returns the table as text. Numbers have enough digits to be read back unchanged.
pub fn rounds_text(records: &[Record]) -> String {
    let mut text = HEADER.to_owned();
    for record in records {
        let outcome = match record.outcome {
            Outcome::InTime => "in-time",
            Outcome::Late => "late",
            Outcome::Lost => "lost",
        };
        let prediction = record.prediction.map_or(String::new(), |it| it.to_string());
        let mut fields = vec![record.sequence.to_string(), outcome.to_owned(), prediction];
        fields.extend([record.balance, record.travel].map(|it| it.to_string()));
        fields.extend(record.inputs.map(|it| it.to_string()));
        let stamp = |ns: u64| {
            if ns > 0 {
                ns.to_string()
            } else {
                String::new()
            }
        };
        fields.extend(record.stamps.0.map(stamp));
        fields.extend(record.readings.map(|it| it.to_string()));
        text.push('\n');
        text.push_str(&fields.join(","));
    }
    text.push('\n');
    text
}

/// Reads a table of sampling periods.
///
/// # Errors
/// Returns an error if the text is not a table as [`rounds_text`] writes it.
pub fn read_rounds(text: &str) -> Result<Vec<Record>, RoundsError> {
    let wrong = |line: usize, reason: &str| RoundsError {
        line: line + 1,
        reason: reason.to_owned(),
    };
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(HEADER) {
        return Err(wrong(0, "not the heads of the columns"));
    }
    lines
        .map(|(number, line)| {
            let fields: Vec<&str> = line.split(',').collect();
            if fields.len() != COLUMNS {
                return Err(wrong(number, "not as many columns as heads"));
            }
            let float = |field: &str| {
                let value = field.parse().ok().filter(|it: &f64| it.is_finite());
                value.ok_or_else(|| wrong(number, "not a number"))
            };
            let whole = |field: &str| match field {
                "" => Ok(0),
                field => field.parse().map_err(|_| wrong(number, "not a number")),
            };
            let mut record = Record {
                sequence: whole(fields[0])?,
                stamps: Stamps::default(),
                outcome: match fields[1] {
                    "in-time" => Outcome::InTime,
                    "late" => Outcome::Late,
                    "lost" => Outcome::Lost,
                    _ => return Err(wrong(number, "unknown outcome")),
                },
                balance: float(fields[3])?,
                travel: float(fields[4])?,
                inputs: [0.0; MOST_INPUTS],
                readings: [0.0; MOST_SENSORS],
                prediction: usize::try_from(whole(fields[2])?).ok().filter(|it| *it > 0),
            };
            let mut rest = fields[5..].iter();
            for (input, field) in record.inputs.iter_mut().zip(&mut rest) {
                *input = float(field)?;
            }
            let mut rest = fields[5 + MOST_INPUTS..].iter();
            for (stamp, field) in record.stamps.0.iter_mut().zip(&mut rest) {
                *stamp = whole(field)?;
            }
            let mut rest = fields[5 + MOST_INPUTS + STAGES..].iter();
            for (reading, field) in record.readings.iter_mut().zip(&mut rest) {
                *reading = float(field)?;
            }
            Ok(record)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_control::{Scenario, plant, simulate};

    #[test]
    fn written_rounds_are_parsed_unchanged_and_damaged_lines_are_reported() {
        let mut scenario = Scenario::new(plant::model("robot").unwrap());
        scenario.station.periods = 50;
        scenario.link.loss = 0.2;
        let records = simulate(&scenario).unwrap().records;
        let text = rounds_text(&records);
        assert_eq!(read_rounds(&text).unwrap(), records);
        for (from, to, line) in [("in-time", "on-time", 2), (",", "", 1), ("\n2,", "\nx,", 2)] {
            let damaged = text.replacen(from, to, 1);
            let error = read_rounds(&damaged).unwrap_err();
            assert!(error.line >= line, "{error}");
        }
    }
}
