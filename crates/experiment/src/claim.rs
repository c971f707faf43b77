//! Claims: published results with their source, or expectations of the experiment itself, and the tolerance for a
//! result.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use taut_measure::quantity::plain;
use toml::Spanned;

/// Default tolerance between a result and the published figure, as a fraction.
const TOLERANCE: f64 = 0.25;

/// A published result, or an expectation of the experiment itself, and the condition under which a measured result
/// agrees with it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in a sentence.
    pub text: String,
    /// The published figure, with its source. A text alone is shown with the results, but has no verdict.
    #[serde(default)]
    pub published: Option<Reported>,
    /// True if the claim is the experiment's own: it is not published anywhere.
    #[serde(default)]
    pub ours: bool,
    /// Formula of the value in this experiment, such as `median('latency_ns.avg_ns', device='a') /
    /// median('latency_ns.avg_ns', device='b')`.
    #[schemars(with = "String")]
    pub value: Spanned<String>,
    /// Condition under which the claim holds, such as `value > 2`. For a published figure, it is the direction of the
    /// result. By default the result must be on the same side of 1 (unit `times`) or of 0 as the published figure.
    #[schemars(with = "Option<String>")]
    #[serde(default)]
    pub holds: Option<Spanned<String>>,
    /// Tolerance between a result and the published figure; 25 % by default.
    #[serde(default)]
    pub tolerance: Option<Tolerance>,
    /// Reason why the result of this experiment may differ from the published figure.
    #[serde(default)]
    pub note: String,
}

/// The published result of a claim, in words or in numbers.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum Reported {
    /// The result is described in words.
    Text(String),
    /// The result is given in numbers.
    Figure(PublishedFigure),
}

impl<'de> Deserialize<'de> for Reported {
    /// Reads a text or a table; an error in a table is reported as an error in the table's contents.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = Reported;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a table such as { value = 9.8, unit = \"times\", source = \"...\", origin = \"printed\" }, or a text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Reported, E> {
                Ok(Reported::Text(text.to_owned()))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Reported, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                PublishedFigure::deserialize(map).map(Reported::Figure)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A published figure, given by one of `value`, `range`, `at_least` and `at_most`. If only a direction was published,
/// all four are missing, and `text` describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedFigure {
    /// The published value, if a single number was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// The lowest and the highest published value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// The published lower bound of the value, if a bound was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// The published upper bound of the value, if a bound was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Unit of the figure; `times` for a ratio, `share` for a part of a whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Document and section, figure or table, such as `Lange 2015, III.C, Fig. 3`.
    pub source: String,
    /// How the figure was obtained from the source, such as printed or read from a plot.
    pub origin: Origin,
    /// Further published details.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// How a published figure was obtained from its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The figure is printed in the source.
    Printed,
    /// The figure was read from a plot.
    ReadOff,
    /// The figure was computed from printed figures.
    Computed,
    /// The figure is in data published by the authors.
    AuthorsData,
    /// The printed figure is impossible or inconsistent, and was corrected; `text` describes how.
    Corrected,
}

impl Origin {
    /// Returns the origin in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Printed => "printed",
            Self::ReadOff => "read off a figure",
            Self::Computed => "computed from printed figures",
            Self::AuthorsData => "authors' data",
            Self::Corrected => "corrected",
        }
    }
}

/// Tolerance between a result and a published figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Tolerance as a share: 0.25 allows 1.25 times the figure, and the figure divided by 1.25.
    #[serde(default)]
    pub share: Option<f64>,
    /// Tolerance as an absolute difference, in the figure's unit.
    #[serde(default)]
    pub within: Option<f64>,
    /// Reason for the size of this tolerance.
    pub why: String,
}

/// Range of values that agree with a published figure; each bound may be open.
pub type Region = [Option<f64>; 2];

impl PublishedFigure {
    /// Returns the lowest and highest published value; one bound is open if only the other was published.
    pub fn ends(&self) -> Region {
        match (self.value, self.range, self.at_least, self.at_most) {
            (Some(value), ..) => [Some(value); 2],
            (_, Some([low, high]), ..) => [Some(low), Some(high)],
            (_, _, at_least, at_most) => [at_least, at_most],
        }
    }

    /// Returns the range of values that agree with the figure within the tolerance.
    pub fn region(&self, tolerance: Option<&Tolerance>) -> Region {
        let share = tolerance.and_then(|it| it.share);
        let within = tolerance.and_then(|it| it.within);
        let factor = 1.0 + share.unwrap_or(TOLERANCE);
        // A tolerance as a share is applied as a factor, so that it is the same in both directions.
        let away = |end: f64, up: bool| match within {
            Some(within) if up => end + within,
            Some(within) => end - within,
            None if (end > 0.0) == up => end * factor,
            None => end / factor,
        };
        let [low, high] = self.ends();
        [
            low.map(|end| away(end, false)),
            high.map(|end| away(end, true)),
        ]
    }

    /// Returns the ratio of `value` to the published figure; 1 for a value inside a published range. `None` if the
    /// ratio is meaningless.
    pub fn factor(&self, value: f64) -> Option<f64> {
        let [low, high] = self.ends();
        let end = match (low, high) {
            (Some(low), _) if value < low => low,
            (_, Some(high)) if value > high => high,
            (None, None) => return None,
            _ => return Some(1.0),
        };
        let factor = value / end;
        // A factor of 0 or below is meaningless.
        (factor.is_finite() && factor > 0.0).then_some(factor)
    }

    /// Returns the condition that a value is on the same side of a neutral value as the published figure. The neutral
    /// value is 1 for a ratio, and 0 for all other units. `None` if the published figure is on neither side.
    pub fn direction(&self) -> Option<String> {
        let neutral = if self.unit == "times" { 1.0 } else { 0.0 };
        let ends = self.ends();
        let all = |is: fn(f64, f64) -> bool| ends.into_iter().flatten().all(|end| is(end, neutral));
        // An upper bound above the neutral value leaves both sides open.
        let upper_only = ends[0].is_none();
        let lower_only = ends[1].is_none();
        match () {
            () if upper_only && lower_only => None,
            // An upper bound above 0 is assumed to belong to a quantity that cannot be negative.
            () if upper_only && neutral == 0.0 && all(|end, neutral| end > neutral) => {
                Some("value >= 0".to_owned())
            }
            () if all(|end, neutral| end > neutral) && !upper_only => {
                Some(format!("value > {neutral}"))
            }
            () if all(|end, neutral| end < neutral) && !lower_only => {
                Some(format!("value < {neutral}"))
            }
            () => None,
        }
    }

    /// Returns a description of the error in the figure; `None` if the figure is valid.
    fn mistake(&self) -> Option<String> {
        let given = [
            self.value.is_some(),
            self.range.is_some(),
            self.at_least.is_some(),
            self.at_most.is_some(),
        ];
        match given.iter().filter(|given| **given).count() {
            0 if self.text.trim().is_empty() => {
                let wants = "value, range, at_least and at_most, or the direction as text";
                return Some(format!("published: expected one of {wants}"));
            }
            0 | 1 => {}
            _ => {
                return Some(
                    "published: expected one of value, range, at_least and at_most".to_owned(),
                );
            }
        }
        let [low, high] = self.ends();
        if !low.into_iter().chain(high).all(f64::is_finite) {
            return Some("published: expected a finite number".to_owned());
        }
        if let (Some(low), Some(high)) = (low, high)
            && low > high
        {
            return Some(format!("published: range: {low} is above {high}"));
        }
        if self.source.trim().is_empty() {
            return Some(
                "published: source: expected document, section, figure or table".to_owned(),
            );
        }
        None
    }
}

impl std::fmt::Display for PublishedFigure {
    /// Writes the figure with its unit and source: `9.8 times (Stylianopoulos 2020, 5.2, printed)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.ends(), self.value) {
            (_, Some(value)) => write!(f, "{}", plain(value))?,
            ([Some(low), Some(high)], _) => write!(f, "{} to {}", plain(low), plain(high))?,
            ([Some(low), None], _) => write!(f, "at least {}", plain(low))?,
            ([None, Some(high)], _) => write!(f, "at most {}", plain(high))?,
            ([None, None], _) => {}
        }
        let has_size = self.ends() != [None; 2];
        if has_size && !self.unit.is_empty() {
            write!(f, " {}", self.unit)?;
        }
        match (has_size, self.text.as_str()) {
            (_, "") => {}
            (true, text) => write!(f, ", {text}")?,
            (false, text) => write!(f, "{text}")?,
        }
        write!(f, " ({}, {})", self.source, self.origin.words())
    }
}

impl Claim {
    /// Returns the published figure; `None` for a claim of the experiment's own, and for a published result that is
    /// only described in words.
    pub fn figure(&self) -> Option<&PublishedFigure> {
        match self.published.as_ref()? {
            Reported::Figure(figure) => Some(figure),
            Reported::Text(_) => None,
        }
    }

    /// Returns the published result as text; empty for the experiment's own claims.
    pub fn published_text(&self) -> String {
        match &self.published {
            Some(Reported::Figure(figure)) => figure.to_string(),
            Some(Reported::Text(text)) => text.clone(),
            None => String::new(),
        }
    }

    /// Returns the condition under which the claim holds, or the direction of the published figure.
    pub fn condition(&self) -> String {
        let holds = self.holds.as_ref().map(|it| it.get_ref().clone());
        let direction = || self.figure().and_then(PublishedFigure::direction);
        holds.or_else(direction).unwrap_or_default()
    }

    /// Returns a description of the error in the claim; `None` if the claim is valid. Formula and condition are checked
    /// elsewhere.
    pub(crate) fn mistake(&self) -> Option<String> {
        if self.ours && self.published.is_some() {
            return Some("ours = true: then nothing is published".to_owned());
        }
        if let Some(figure) = self.figure() {
            if let Some(mistake) = figure.mistake() {
                return Some(mistake);
            }
            if self.condition().is_empty() {
                let wants = "give the direction as `holds`: the published value is on neither side";
                return Some(format!("published: {wants}"));
            }
        } else if self.holds.is_none() {
            return Some("holds: expected a condition such as `value > 2`".to_owned());
        }
        let Some(tolerance) = &self.tolerance else {
            let zero = self
                .figure()
                .is_some_and(|it| it.ends().contains(&Some(0.0)));
            return zero.then(|| "tolerance: 0 needs one as `within`, in its unit".to_owned());
        };
        let Tolerance { share, within, why } = tolerance;
        let positive = |it: &f64| *it > 0.0 && it.is_finite();
        match (share.filter(positive), within.filter(positive)) {
            _ if self.figure().is_none() => {
                Some("tolerance: nothing is published to compare with".to_owned())
            }
            (Some(_), None) | (None, Some(_)) if why.trim().is_empty() => {
                Some("tolerance: why: give the reason for another tolerance than 25 %".to_owned())
            }
            (Some(_), None) | (None, Some(_)) => None,
            _ => Some("tolerance: expected one of share and within, above 0".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Claim, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn each_claim_has_a_published_figure_or_a_condition() {
        let published = read(
            "text = 't'\nvalue = '1'\npublished = { value = 9.8, unit = 'times', source = 'Sty 5.2', origin = 'printed' }",
        )
        .unwrap();
        assert_eq!(published.mistake(), None);
        assert_eq!(published.condition(), "value > 1");
        assert_eq!(published.published_text(), "9.8 times (Sty 5.2, printed)");
        let ours = read("text = 't'\nvalue = '1'\nours = true\nholds = 'value > 3'").unwrap();
        assert_eq!(
            (ours.mistake(), ours.condition()),
            (None, "value > 3".to_owned())
        );
        // Files from before version 0.2 have this form.
        let words =
            read("text = 't'\nvalue = '1'\nholds = 'value > 3'\npublished = 'some 4'").unwrap();
        assert_eq!(
            (words.mistake(), words.published_text()),
            (None, "some 4".to_owned())
        );
        for (more, part) in [
            ("ours = true", "expected a condition"),
            (
                "ours = true\nholds = 'value > 1'\npublished = 'x'",
                "nothing is published",
            ),
            (
                "published = { source = 's', origin = 'printed' }",
                "expected one of",
            ),
            (
                "published = { value = 1, at_most = 2, source = 's', origin = 'printed' }",
                "expected one of",
            ),
            (
                "published = { range = [2, 1], source = 's', origin = 'printed' }",
                "2 is above 1",
            ),
            (
                "published = { value = inf, source = 's', origin = 'printed' }",
                "finite",
            ),
            (
                "published = { value = 2, source = ' ', origin = 'printed' }",
                "source",
            ),
            (
                "published = { value = 1, unit = 'times', source = 's', origin = 'printed' }",
                "neither side",
            ),
            (
                "published = { at_most = 2, unit = 'times', source = 's', origin = 'printed' }",
                "neither side",
            ),
            (
                "holds = 'value < 1'\npublished = { value = 0, source = 's', origin = 'printed' }",
                "0 needs one as `within`",
            ),
            (
                "tolerance = { share = 0.5, why = '' }\npublished = { value = 2, source = 's', origin = 'printed' }",
                "give the reason",
            ),
            (
                "tolerance = { share = -1, why = 'x' }\npublished = { value = 2, source = 's', origin = 'printed' }",
                "expected one of share and within",
            ),
            (
                "holds = 'value > 1'\ntolerance = { share = 1, why = 'x' }",
                "nothing is published to compare",
            ),
        ] {
            let mistake = read(&format!("text = 't'\nvalue = '1'\n{more}"))
                .unwrap()
                .mistake();
            assert!(
                mistake.as_ref().is_some_and(|it| it.contains(part)),
                "{more}: {mistake:?}"
            );
        }
        let wrong = read(
            "text = 't'\nvalue = '1'\npublished = { valeu = 2, source = 's', origin = 'printed' }",
        );
        assert!(wrong.unwrap_err().to_string().contains("valeu"));
        let number = read("text = 't'\nvalue = '1'\npublished = 3")
            .unwrap_err()
            .to_string();
        assert!(number.contains("such as { value = 9.8"), "{number}");
    }

    fn figure(part: &str) -> PublishedFigure {
        toml::from_str(&format!("{part}\nsource = 's'\norigin = 'printed'")).unwrap()
    }

    #[test]
    fn the_tolerances_of_a_ratio_and_its_inverse_agree() {
        let twice = figure("value = 2.0\nunit = 'times'").region(None);
        let half = figure("value = 0.5\nunit = 'times'").region(None);
        assert_eq!(twice, [Some(1.6), Some(2.5)]);
        assert_eq!(
            half.map(|end| end.map(|end| 1.0 / end)),
            [Some(2.5), Some(1.6)]
        );
        assert_eq!(
            figure("value = -2.0").region(None),
            [Some(-2.5), Some(-1.6)]
        );
        assert_eq!(figure("at_least = 2.0").region(None), [Some(1.6), None]);
        assert_eq!(figure("at_most = 2.0").region(None), [None, Some(2.5)]);
        assert_eq!(
            figure("range = [1.0, 2.0]").region(None),
            [Some(0.8), Some(2.5)]
        );
        let within = Tolerance {
            share: None,
            within: Some(0.5),
            why: String::new(),
        };
        assert_eq!(
            figure("value = 0.0").region(Some(&within)),
            [Some(-0.5), Some(0.5)]
        );
        assert_eq!(figure("range = [1.0, 2.0]").factor(6.0), Some(3.0));
        assert_eq!(figure("range = [1.0, 2.0]").factor(0.5), Some(0.5));
        assert_eq!(figure("at_least = 2.0").factor(6.0), Some(1.0));
        assert_eq!(figure("value = 2.0").factor(-1.0), None);
    }
}
