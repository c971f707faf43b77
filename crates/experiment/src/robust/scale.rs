//! Numbers with a unit in texts, such as `100k`, `2ms` and `1 GB`, multiplied by a factor.

use serde_json::Value;

/// Frame sizes of Ethernet with the frame check sequence, bytes. Perturbed sizes stay in this range.
const FRAME_BYTES: [f64; 2] = [64.0, 1518.0];

/// Returns a value multiplied by a factor; `None` if the value is no number, or if the product equals the value. A
/// whole number stays whole. If `variable` names a frame size, the product stays within [`FRAME_BYTES`].
pub(crate) fn scaled(variable: &str, value: &Value, times: f64) -> Option<Value> {
    match value {
        Value::Number(number) => {
            let number = number.as_f64()?;
            let product = product(variable, number, times, number.fract() == 0.0)?;
            if number.fract() == 0.0 && product.abs() < 9e15 {
                return Some(Value::from(product as i64));
            }
            serde_json::Number::from_f64(product).map(Value::Number)
        }
        Value::String(text) => scaled_text(variable, text, times).map(Value::from),
        _ => None,
    }
}

/// Returns the text of a number, with or without a unit, multiplied by a factor.
pub(crate) fn scaled_text(variable: &str, text: &str, times: f64) -> Option<String> {
    let (digits, unit) = number_and_unit(text)?;
    let number: f64 = digits.parse().ok()?;
    let is_whole = unit.is_empty() && number.fract() == 0.0;
    Some(format!(
        "{}{unit}",
        product(variable, number, times, is_whole)?
    ))
}

/// Splits a text into a non-negative number and its unit; `None` if the text has another form.
pub(crate) fn number_and_unit(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let is_unit = |c: char| c.is_alphabetic() || matches!(c, '%' | '/' | ' ');
    let is_number =
        digits.starts_with(|c: char| c.is_ascii_digit()) && digits.parse::<f64>().is_ok();
    (is_number && unit.len() <= 12 && unit.chars().all(is_unit)).then_some((digits, unit))
}

fn product(variable: &str, number: f64, times: f64, is_whole: bool) -> Option<f64> {
    let mut product = number * times;
    let [least, most] = FRAME_BYTES;
    if is_size(variable) && (least..=most).contains(&number) {
        product = product.clamp(least, most);
    }
    if is_whole {
        product = product.round();
    }
    // The product is rounded to ten digits, so that 0.1 times 3 is written as 0.3.
    if let Ok(short) = format!("{product:.9e}").parse::<f64>() {
        product = short;
    }
    (product.is_finite() && product != number && product != 0.0).then_some(product)
}

fn is_size(variable: &str) -> bool {
    variable.to_ascii_lowercase().contains("size") || variable.contains("length")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_scaled_with_their_units() {
        for (variable, text, times, expected) in [
            ("rate", "100k", 0.5, Some("50k")),
            ("rate", "1Gbit/s", 2.0, Some("2Gbit/s")),
            ("ring", "1 GB", 0.5, Some("0.5 GB")),
            ("delay", "0.1ms", 3.0, Some("0.3ms")),
            ("count", "3", 0.5, Some("2")),
            ("size", "64", 0.5, None),
            ("size", "1000", 2.0, Some("1518")),
            ("--size 20", "20", 0.5, Some("10")),
            ("rate", "max", 2.0, None),
            ("size", "64-1518", 2.0, None),
            ("loss", "0%", 2.0, None),
            ("device", "memif,flush=full(32, 100us)", 2.0, None),
        ] {
            let found = scaled_text(variable, text, times);
            assert_eq!(found.as_deref(), expected, "{variable} {text}");
        }
        assert_eq!(scaled("n", &Value::from(3), 2.0), Some(Value::from(6)));
        assert_eq!(scaled("n", &Value::from(0.6), 0.5), Some(Value::from(0.3)));
        assert_eq!(scaled("n", &Value::from(true), 0.5), None);
        assert_eq!(scaled("n", &Value::from(0), 0.5), None);
    }
}
