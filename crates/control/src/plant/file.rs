//! Reads a plant from a TOML file: matrices of its states, sensors, limits and weights; no code.

use super::PlantError;
use crate::model::{Model, ModelError, Parts, Sensor};
use serde::Deserialize;
use taut_settings::{SettingsFileError, duration, suggestion};

/// The contents of a plant file. Times are strings with a unit, such as `10ms`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlantFile {
    name: String,
    states: Vec<String>,
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
    #[serde(rename = "sensor")]
    sensors: Vec<Sensor>,
    #[serde(default)]
    integral: Option<String>,
    balance: String,
    bound: f64,
    travel: String,
    #[serde(default = "one_to_one")]
    scale: [f64; 2],
    #[serde(default)]
    units: [String; 2],
    start: Vec<f64>,
    limit: f64,
    #[serde(default)]
    step: f64,
    period: String,
    weights: Vec<f64>,
    input_weight: f64,
}

fn one_to_one() -> [f64; 2] {
    [1.0, 1.0]
}

/// Returns the model that a plant file describes; `name` is the name of the file, for error messages.
///
/// # Errors
/// The text is not a plant file, or its values are invalid: shapes that do not match, numbers out of range, or unknown
/// states.
pub fn model_of_file(text: &str, name: &str) -> Result<Model, PlantError> {
    let file: PlantFile =
        toml::from_str(text).map_err(|e| SettingsFileError::of_toml(text, name, &e))?;
    let of_file = |e: ModelError| SettingsFileError::wrong(text, name, None, e.to_string());
    let state = |key: &str, wanted: &str| {
        let found = file.states.iter().position(|it| it == wanted);
        found.ok_or_else(|| {
            let near = suggestion(wanted, file.states.iter().map(String::as_str));
            let reason = format!("{key}: there is no state `{wanted}`{near}");
            SettingsFileError::wrong(text, name, None, reason)
        })
    };
    let integral = file.integral.as_ref();
    let integral = integral
        .map(|wanted| state("integral", wanted))
        .transpose()?;
    let (balance, travel) = (
        state("balance", &file.balance)?,
        state("travel", &file.travel)?,
    );
    let period = duration(&file.period).ok_or_else(|| {
        let reason = format!("period: {}: expected a time such as 10ms", file.period);
        SettingsFileError::wrong(text, name, None, reason)
    })?;
    let parts = Parts {
        integral,
        balance,
        travel,
        name: file.name,
        states: file.states,
        a: file.a,
        b: file.b,
        sensors: file.sensors,
        bound: file.bound,
        scale: file.scale,
        units: file.units,
        start: file.start,
        limit: file.limit,
        step: file.step,
        period_ns: u64::try_from(period.as_nanos()).unwrap_or(u64::MAX),
        weights: file.weights,
        input_weight: file.input_weight,
    };
    Ok(Model::new(parts).map_err(of_file)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::DRONE_AXIS;
    use super::*;

    fn mistake(from: &str, to: &str) -> String {
        let text = DRONE_AXIS.replacen(from, to, 1);
        assert_ne!(text, DRONE_AXIS, "{from}");
        model_of_file(&text, "axis.toml").unwrap_err().to_string()
    }

    #[test]
    fn plant_file_errors_name_the_wrong_key_on_one_line() {
        for (from, to, words) in [
            ("period = \"10ms\"", "period = \"0ms\"", "period"),
            ("period = \"10ms\"", "period = \"soon\"", "period"),
            (
                "balance = \"roll\"",
                "balance = \"rol\"",
                "did you mean `roll`",
            ),
            ("a = [", "a = [[1.0],", "a: has"),
            ("[0.0, 0.0, -25.0]", "[0.0, -25.0]", "a: has 2"),
            ("[0.0, 0.0, -25.0]", "[0.0, 0.0, nan]", "a: NaN"),
            ("[0.0, 0.0, -25.0]", "[0.0, 0.0, 1e300]", "a: 1"),
            ("limit = 1.0", "limit = 0.0", "limit: 0"),
            ("weights = [", "weights = [1.0, ", "weights: has"),
            ("name =", "nam =", "name"),
        ] {
            let message = mistake(from, to);
            assert!(message.starts_with("axis.toml"), "{message}");
            assert!(message.contains(words), "{message}: wanted {words}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
