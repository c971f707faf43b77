//! An experiment file, read and checked: every error that can be found is reported before the first run.

use crate::attachments::Attachments;
use crate::build::{Build, is_base};
use crate::changes::Changes;
use crate::definition::Definition;
use crate::duration::time;
use crate::error::{ExperimentError, Source};
use crate::measurement::{Task, tasks};
use crate::node::address::NodeAddress;
use crate::robust::{Robust, SettingOption, check_robust, replace_options};
use crate::role::{Role, roles};
use crate::secrets::Secrets;
use crate::seed::seed_of;
use crate::variables::{GIVEN, Templates, Values, combinations, scalar, size_of_values};
use indexmap::IndexMap;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use taut_results::InsidePath;
use taut_settings::{in_words, suggestion};
use toml::Spanned;

/// Maximum size of an experiment file, bytes.
const MOST_TEXT_BYTES: u64 = 4 << 20;
/// Maximum memory of the variables of all combinations, bytes.
const MOST_VALUE_BYTES: usize = 256 << 20;

/// An experiment that can be planned and run.
#[derive(Debug)]
pub struct Experiment {
    pub(crate) definition: Definition,
    pub(crate) source: Source,
    /// Location of the files that the experiment file names.
    pub(crate) attachments: Attachments,
    pub(crate) templates: Templates,
    pub(crate) tasks: Vec<Task>,
    /// Combinations of loop variables that satisfy the conditions of the plan, with the values of all variables
    /// computed.
    pub(crate) variants: Vec<Variant>,
    /// Nodes of the experiment by role.
    pub(crate) nodes: IndexMap<String, Role>,
    /// Maximum duration of a run.
    pub(crate) limit: Duration,
    /// The other build of taut, which makes the runs of the combinations with `build = "base"`.
    pub(crate) against: Option<Build>,
    /// The perturbations whose runs are made in addition to those of the unchanged experiment.
    pub(crate) robust: Option<Robust>,
    /// Command options that were turned into variables because a perturbation changes them.
    pub(crate) options: Vec<SettingOption>,
}

/// A combination of the loop variables' values.
#[derive(Debug, Clone)]
pub struct Variant {
    /// Values of the loop variables, which distinguish the combination from others.
    pub loops: Values,
    /// Values of the loop variables and the global variables, after references to other variables are replaced.
    pub variables: Values,
}

/// A text with variables to fill in (a template), and the role of the node to which it belongs, if any.
pub(crate) type PlacedText<'a> = (Option<&'a str>, Spanned<String>);

impl Experiment {
    /// Reads and checks an experiment file.
    ///
    /// # Errors
    /// The first error, with file, line and column.
    pub fn read(path: &Path, changes: &Changes) -> Result<Self, ExperimentError> {
        let mut text = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MOST_TEXT_BYTES + 1).read_to_end(&mut text))
            .map_err(ExperimentError::io(path))?;
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let text = String::from_utf8(text).map_err(|_| ExperimentError::Wrong {
            place: path.display().to_string(),
            reason: "is not a text file: expected TOML in UTF-8".to_owned(),
        })?;
        Self::parse(&text, &path.display().to_string(), folder, changes)
    }

    /// Reads and checks the experiment file of a results folder, without following links.
    pub(crate) fn read_in(folder: &Path, changes: &Changes) -> Result<Self, ExperimentError> {
        let name = InsidePath::new("experiment.toml")?;
        let path = name.in_folder(folder);
        let text = name
            .read(folder, MOST_TEXT_BYTES)
            .map_err(ExperimentError::io(&path))?;
        let text = String::from_utf8_lossy(&text);
        Self::parse(&text, &path.display().to_string(), folder, changes)
    }

    /// Parses and checks the text of an experiment file; files that it names are in `folder`.
    ///
    /// # Errors
    /// The errors of [`Experiment::read`].
    pub fn parse(
        text: &str,
        name: &str,
        folder: &Path,
        changes: &Changes,
    ) -> Result<Self, ExperimentError> {
        Self::parse_with(text, name, folder.into(), changes)
    }

    pub(crate) fn parse_with(
        text: &str,
        name: &str,
        attachments: Attachments,
        changes: &Changes,
    ) -> Result<Self, ExperimentError> {
        let source = Source {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        if text.len() as u64 > MOST_TEXT_BYTES {
            return Err(source.wrong_somewhere(format!(
                "larger than the {MOST_TEXT_BYTES} bytes that an experiment file may have"
            )));
        }
        let mut definition: Definition = toml::from_str(text)
            .map_err(|e| source.wrong(e.span().unwrap_or_default(), in_words(&e)))?;
        changes.apply(&mut definition)?;
        let mut tasks = tasks(&definition, &source)?;
        check_robust(&definition, &tasks, &source)?;
        let options = match &changes.robust {
            Some(robust) => replace_options(robust, &mut definition, &mut tasks),
            None => Vec::new(),
        };
        let nodes = roles(&definition, &source)?;
        let mut experiment = Self {
            limit: time(&source, "plan.limit", &definition.plan.limit)?,
            attachments,
            templates: Templates::new(),
            variants: Vec::new(),
            tasks,
            nodes,
            definition,
            source,
            against: changes.against.clone(),
            robust: changes.robust.clone(),
            options,
        };
        experiment.check_builds()?;
        experiment.check_plan()?;
        experiment.variants = experiment.make_variants()?;
        experiment.check_length()?;
        experiment.check_first(changes)?;
        experiment.check_names()?;
        experiment.check_secrets()?;
        experiment.check_variables()?;
        experiment.check_texts()?;
        experiment.check_traffic()?;
        experiment.check_metrics()?;
        experiment.check_claims()?;
        Ok(experiment)
    }

    /// Returns the experiment's title, which is one line.
    pub fn title(&self) -> &str {
        &self.definition.title
    }

    /// Returns the program of the other build if a run with these loop variables belongs to it; `None` if the run
    /// belongs to this program.
    pub(crate) fn program_of(&self, loops: &Values) -> Option<&str> {
        let base = self.against.as_ref().filter(|_| is_base(loops));
        base.map(|base| base.program.as_str())
    }

    /// Refuses the other build if some node is another machine, which has no copy of its program.
    fn check_builds(&self) -> Result<(), ExperimentError> {
        let mut nodes = self.nodes.iter();
        match nodes.find(|(_, node)| node.address != NodeAddress::Local) {
            Some((role, _)) if self.against.is_some() => Err(self.source.wrong_somewhere(format!(
                "--against runs both builds on this machine, and node {role} is elsewhere: compare results of each \
                 build with taut experiment compare"
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the names of the loop variables, in the order of the experiment file.
    pub(crate) fn loop_names(&self) -> Vec<String> {
        self.variants
            .first()
            .map(|variant| variant.loops.keys().cloned().collect())
            .unwrap_or_default()
    }

    /// Returns the parsed experiment file.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the text of the experiment file.
    pub fn text(&self) -> &str {
        &self.source.text
    }

    /// Returns the contents of the files that the experiment file names, by name.
    ///
    /// # Errors
    /// A file that the experiment file names is missing, or is not a text.
    pub fn attached(&self) -> Result<BTreeMap<String, String>, ExperimentError> {
        let names = self.named_files()?;
        let read = |name: &InsidePath| {
            let text = self.attachments.read(name.as_str())?;
            Ok((name.as_str().to_owned(), text))
        };
        names.iter().map(read).collect()
    }

    /// Returns the location of the node of each role, as in the file: `local`, `vm`, `ssh://user@host:port` or
    /// `slurm`.
    pub fn locations(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes.iter().map(|(role, node)| {
            let at = node.definition.at.as_ref();
            (role.as_str(), at.map_or("local", |at| at.get_ref()))
        })
    }

    /// Returns the combinations of the loop variables.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    pub(crate) fn spans(&self) -> IndexMap<String, Range<usize>> {
        let definition = &self.definition;
        let maps = std::iter::once(&definition.variables)
            .chain(std::iter::once(&definition.loops))
            .chain(&definition.zip);
        maps.flatten()
            .map(|(name, value)| (name.clone(), value.span()))
            .collect()
    }

    fn make_variants(&self) -> Result<Vec<Variant>, ExperimentError> {
        let definition = &self.definition;
        let spans = self.spans();
        let mut seen = BTreeSet::new();
        let names = std::iter::once(&definition.variables)
            .chain(std::iter::once(&definition.loops))
            .chain(&definition.zip)
            .flatten();
        for (name, value) in names {
            self.check_name(name, value.span())?;
            if !seen.insert(name) {
                return Err(self
                    .source
                    .wrong(value.span(), format!("duplicate variable `{name}`")));
            }
        }
        let mut globals = Values::new();
        for (name, value) in &definition.variables {
            globals.insert(name.clone(), scalar(&self.source, value)?);
        }
        let mut kept = Vec::new();
        let mut bytes = 0;
        for loops in combinations(&self.source, &definition.loops, &definition.zip)? {
            let mut all = globals.clone();
            all.extend(loops.clone());
            let variables = self.templates.resolve(&self.source, &all, &spans)?;
            bytes += size_of_values(&variables);
            if bytes > MOST_VALUE_BYTES {
                return Err(self.source.wrong_somewhere(format!(
                    "the variables of all combinations take more than {MOST_VALUE_BYTES} bytes: make them shorter or fewer"
                )));
            }
            let loops = loops
                .keys()
                .filter_map(|name| Some((name.clone(), variables.get(name)?.clone())))
                .collect();
            let mut wanted = true;
            for only in &definition.plan.only {
                wanted &= self
                    .templates
                    .holds(only.get_ref(), &variables)
                    .map_err(|reason| self.source.wrong(only.span(), reason))?;
            }
            if wanted {
                kept.push((all, Variant { loops, variables }));
            }
        }
        if kept.is_empty() {
            return Err(self
                .source
                .wrong_somewhere("plan.only leaves no combination to run"));
        }
        match &self.robust {
            Some(robust) => self.spread(robust, &kept),
            None => Ok(kept.into_iter().map(|(_, variant)| variant).collect()),
        }
    }

    fn check_name(&self, name: &str, span: Range<usize>) -> Result<(), ExperimentError> {
        let mut characters = name.chars();
        let good = characters
            .next()
            .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
            && characters.all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !good {
            return Err(self.source.wrong(
                span,
                format!("`{name}` is not a valid name of a variable: use letters, digits and _"),
            ));
        }
        if GIVEN.contains(&name) || name == "warm_up" || name == "variant" {
            return Err(self.source.wrong(
                span,
                format!("`{name}` is given to each run: choose another name"),
            ));
        }
        Ok(())
    }

    /// Returns the values of those secrets of the experiment that are set in the environment.
    pub(crate) fn secrets(&self) -> Result<Secrets, ExperimentError> {
        let names = self.definition.secrets.iter();
        Secrets::read(names.map(|name| name.get_ref().as_str()))
            .map_err(|reason| self.source.wrong_somewhere(reason))
    }

    /// Returns the values of all secrets of the experiment. It is an error if a secret is not set, or if its value
    /// occurs in a file that the results folder stores.
    pub(crate) fn secrets_to_run(&self) -> Result<Secrets, ExperimentError> {
        let secrets = self.secrets()?;
        if let Some(name) = secrets.unset.first() {
            return Err(self
                .source
                .wrong_somewhere(format!("the secret ${name} is not set in the environment")));
        }
        for name in self.named_files()? {
            let text = self.attachments.read(name.as_str())?;
            if secrets.text(&text) != text {
                return Err(ExperimentError::results(
                    name.as_str(),
                    "the value of a secret is in this file; use the environment variable instead",
                ));
            }
        }
        if secrets.text(&self.source.text) != self.source.text {
            return Err(self.source.wrong_somewhere(
                "the value of a secret is in the file; use the environment variable instead",
            ));
        }
        Ok(secrets)
    }

    /// Returns the names of the files that the experiment file refers to; they are in its folder, or built into this
    /// program.
    pub(crate) fn named_files(&self) -> Result<BTreeSet<InsidePath>, ExperimentError> {
        let evaluate = self.definition.evaluate.iter();
        let named = self.definition.file.iter();
        let named = named.filter_map(|file| file.from.as_ref());
        Ok(named
            .chain(evaluate.flat_map(|step| &step.files))
            .map(|from| InsidePath::new(from.get_ref()))
            .collect::<Result<_, _>>()?)
    }

    /// Returns the role of the node that runs a task.
    pub(crate) fn role_of<'a>(
        &'a self,
        node: Option<&'a Spanned<String>>,
    ) -> Result<&'a str, ExperimentError> {
        match node {
            Some(node) if self.nodes.contains_key(node.get_ref()) => Ok(node.get_ref()),
            Some(node) => Err(self.source.wrong(
                node.span(),
                format!(
                    "unknown node `{}`{}",
                    node.get_ref(),
                    suggestion(node.get_ref(), self.nodes.keys().map(String::as_str))
                ),
            )),
            None => match self.nodes.keys().next() {
                Some(only) if self.nodes.len() == 1 => Ok(only),
                _ => Err(self.source.wrong_somewhere(
                    "there are several nodes: set `node` for each step, the traffic and the device",
                )),
            },
        }
    }

    /// Returns all templates that are filled in for a run, each with the role of the node to which it belongs, if any.
    pub(crate) fn texts(&self) -> Result<Vec<PlacedText<'_>>, ExperimentError> {
        let mut texts = Vec::new();
        for task in &self.tasks {
            let role = self.role_of(task.node.as_ref())?;
            let more = task.ready.iter().chain(task.extract.values());
            texts.extend(
                std::iter::once(&task.run)
                    .chain(more)
                    .map(|text| (Some(role), text.clone())),
            );
        }
        for (role, node) in &self.nodes {
            let setup = node
                .definition
                .setup_once
                .iter()
                .chain(&node.definition.setup);
            texts.extend(setup.map(|text| (Some(role.as_str()), text.clone())));
        }
        texts.extend(self.definition.awake.iter().map(|awake| {
            let text = crate::measurement::text_of(awake);
            (None, Spanned::new(awake.span(), text))
        }));
        for file in &self.definition.file {
            match (&file.text, &file.from) {
                (Some(text), _) => texts.push((None, text.clone())),
                (None, Some(from)) => {
                    let text = self.attachments.read(from.get_ref())?;
                    texts.push((None, Spanned::new(from.span(), text)));
                }
                (None, None) => {}
            }
        }
        Ok(texts)
    }

    /// Returns the values of the variables that templates can use in a run.
    pub(crate) fn context(
        &self,
        variant: &Variant,
        role: Option<&str>,
        run: &str,
        repetition: u32,
    ) -> Value {
        let mut all = variant.variables.clone();
        if let Some(role) = role {
            if let Some(node) = self.nodes.get(role) {
                all.extend(node.variables.clone());
            }
            all.insert("node".into(), Value::from(role));
        }
        let nodes: serde_json::Map<String, Value> = self
            .nodes
            .iter()
            .map(|(role, node)| {
                (
                    role.clone(),
                    serde_json::to_value(&node.variables).unwrap_or_default(),
                )
            })
            .collect();
        all.insert("nodes".into(), Value::Object(nodes));
        all.insert("run".into(), Value::from(run));
        all.insert("repetition".into(), Value::from(repetition));
        all.insert(
            "seed".into(),
            Value::from(seed_of(self.definition.plan.seed, run)),
        );
        serde_json::to_value(all).unwrap_or_default()
    }
}
