//! Finds errors in the traffic of an experiment file.

use crate::definition::TrafficDefinition;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::measurement::text_of;
use serde_json::Value;
use std::collections::BTreeSet;
use taut_traffic::{Rate, Traffic};
use taut_wire::UdpFlow;
use toml::Spanned;

/// A setting of the table `[traffic]`, with its variables filled in.
struct Setting<'a> {
    /// The setting as written in the experiment file.
    text: &'a Spanned<String>,
    name: String,
    value: String,
}

impl Experiment {
    /// Checks rate, size, pattern and fields of the traffic in every combination, as `taut generate` would parse them.
    pub(crate) fn check_traffic(&self) -> Result<(), ExperimentError> {
        let Some(traffic) = &self.definition.traffic else {
            return Ok(());
        };
        let role = self.role_of(None).ok();
        let written = |value: &Option<Spanned<toml::Value>>| {
            let value = value.as_ref();
            value.map(|value| Spanned::new(value.span(), text_of(value)))
        };
        let (rate, size, seconds) = (
            written(&traffic.rate),
            written(&traffic.size),
            written(&traffic.seconds),
        );
        let mut seen = BTreeSet::new();
        for variant in &self.variants {
            let values = self.context(variant, role, "v1-r1", 1);
            if let Some(rate) = &rate {
                self.check_rate(rate, &values)?;
            }
            if let Some(seconds) = &seconds {
                self.check_seconds(seconds, &values)?;
            }
            // The content of a trace is not known before the run.
            let is_trace = |text: &Option<Spanned<String>>| {
                text.as_ref()
                    .is_some_and(|text| text.get_ref().contains("trace"))
            };
            if is_trace(&traffic.pattern) || is_trace(&size) {
                continue;
            }
            let settings = self.traffic_settings(traffic, size.as_ref(), &values)?;
            let texts: Vec<(String, String)> = settings
                .iter()
                .map(|it| (it.name.clone(), it.value.clone()))
                .collect();
            if !settings.is_empty() && seen.insert(texts) {
                self.check_settings(&settings)?;
            }
        }
        Ok(())
    }

    /// Fills in the variables of a text of the table `[traffic]`.
    fn filled(&self, text: &Spanned<String>, values: &Value) -> Result<String, ExperimentError> {
        self.templates
            .fill(text.get_ref(), values)
            .map_err(|reason| self.source.wrong(text.span(), reason))
    }

    fn check_rate(&self, rate: &Spanned<String>, values: &Value) -> Result<(), ExperimentError> {
        let text = self.filled(rate, values)?;
        if text != "max"
            && let Err(e) = text.parse::<Rate>()
        {
            return Err(self.source.wrong(rate.span(), e.to_string()));
        }
        Ok(())
    }

    fn check_seconds(
        &self,
        seconds: &Spanned<String>,
        values: &Value,
    ) -> Result<(), ExperimentError> {
        let text = self.filled(seconds, values)?;
        if !text.parse().is_ok_and(|s: f64| (0.0..=1e7).contains(&s)) {
            return Err(self.source.wrong(
                seconds.span(),
                format!("seconds {text:?}: expected a number such as 10 or 0.5"),
            ));
        }
        Ok(())
    }

    /// Returns the settings size, pattern and fields, without those that the file does not set.
    fn traffic_settings<'a>(
        &self,
        traffic: &'a TrafficDefinition,
        size: Option<&'a Spanned<String>>,
        values: &Value,
    ) -> Result<Vec<Setting<'a>>, ExperimentError> {
        let mut settings = Vec::new();
        for (name, text) in [("size", size), ("pattern", traffic.pattern.as_ref())] {
            if let Some(text) = text {
                settings.push(Setting {
                    text,
                    name: name.to_owned(),
                    value: self.filled(text, values)?,
                });
            }
        }
        for set in &traffic.set {
            let text = self.filled(set, values)?;
            let Some((name, value)) = text.split_once('=') else {
                let reason = format!("{text:?}: expected FIELD=VALUES");
                return Err(self.source.wrong(set.span(), reason));
            };
            settings.push(Setting {
                text: set,
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
        Ok(settings)
    }

    fn check_settings(&self, settings: &[Setting<'_>]) -> Result<(), ExperimentError> {
        let texts: Vec<(&str, &str)> = settings
            .iter()
            .map(|it| (it.name.as_str(), it.value.as_str()))
            .collect();
        if let Err(reason) = Traffic::of_settings_over(&UdpFlow::default(), &texts) {
            // The error is reported at the setting with the name that begins the reason, or else at the first setting.
            let at = settings
                .iter()
                .find(|it| reason.starts_with(it.name.as_str()));
            let text = at.unwrap_or(&settings[0]).text;
            return Err(self.source.wrong(text.span(), reason));
        }
        Ok(())
    }
}
