//! Parts of the experiment file that are filled in with a run's variables.

use super::Failed;
use crate::counters::Counter;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::node::parcel::RunFile;
use serde_json::Value;
use std::time::Duration;

impl Experiment {
    pub(super) fn fill(
        &self,
        text: &toml::Spanned<String>,
        values: &Value,
    ) -> Result<String, Failed> {
        self.templates
            .fill(text.get_ref(), values)
            .map_err(|reason| Failed::Fatal(self.source.wrong(text.span(), reason)))
    }

    /// Returns true if no core may halt during a run whose variables have the values `values`.
    pub(crate) fn keeps_awake(&self, values: &Value) -> Result<bool, ExperimentError> {
        let Some(awake) = &self.definition.awake else {
            return Ok(false);
        };
        let text = crate::measurement::text_of(awake);
        let filled = self.templates.fill(&text, values);
        let filled = filled.map_err(|reason| self.source.wrong(awake.span(), reason))?;
        // Templates write True and False.
        filled.to_lowercase().parse().map_err(|_| {
            let reason = format!("awake is `{filled}`: expected true or false");
            self.source.wrong(awake.span(), reason)
        })
    }

    /// Returns the quantities that are counted during the command `name`.
    pub(super) fn counters_of(&self, name: &str) -> &[Counter] {
        let task = self.tasks.iter().find(|task| task.name == name);
        task.map_or(&[], |task| &task.counters)
    }

    /// Returns the files of a run, with variables filled in.
    pub(super) fn files(&self, values: &Value) -> Result<Vec<RunFile>, ExperimentError> {
        let mut files = Vec::new();
        for file in &self.definition.file {
            let text = match (&file.text, &file.from) {
                (Some(text), _) => text.get_ref().clone(),
                (None, Some(from)) => self.attachments.read(from.get_ref())?,
                (None, None) => continue,
            };
            let text = self.templates.fill(&text, values).map_err(|reason| {
                self.source
                    .wrong_somewhere(format!("file {}: {reason}", file.name))
            })?;
            files.push(RunFile {
                name: file.name.clone(),
                text,
            });
        }
        Ok(files)
    }

    /// Returns the expected duration of a run; `None` if the traffic does not define it.
    pub fn expected(&self) -> Option<Duration> {
        let traffic = self.definition.traffic.as_ref()?;
        let seconds = match traffic.seconds.as_ref()?.get_ref() {
            toml::Value::Integer(seconds) => *seconds as f64,
            toml::Value::Float(seconds) => *seconds,
            toml::Value::String(text) => {
                let values = self.context(&self.variants[0], None, "v1-r1", 1);
                self.templates.fill(text, &values).ok()?.parse().ok()?
            }
            _ => return None,
        };
        (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(1e9) + 1.0))
    }
}
