//! An experiment file, read and checked: whatever can be wrong with it is said before the first run.

use crate::definition::{Definition, NodeDefinition, Order};
use crate::error::{ExperimentError, Source, suggestion};
use crate::measurement::{Task, tasks};
use crate::node::Place;
use crate::node::parcel::is_inside;
use crate::secrets::Secrets;
use crate::variables::{GIVEN, Templates, Values, combinations, scalar, unknown};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// An experiment that can be planned and run.
#[derive(Debug)]
pub struct Experiment {
    pub(crate) definition: Definition,
    pub(crate) source: Source,
    /// Where the file is: other files it names are looked for there.
    pub(crate) folder: PathBuf,
    pub(crate) templates: Templates,
    pub(crate) tasks: Vec<Task>,
    /// Combinations of loop variables that meet the conditions, each with the global variables filled in.
    pub(crate) variants: Vec<Variant>,
    /// Nodes by role.
    pub(crate) nodes: IndexMap<String, Role>,
    /// Longest time of a run.
    pub(crate) limit: Duration,
}

/// What a person asks for other than the file says: shorter runs, fewer values, another number of repetitions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Names of variables and their values, as in the file; a loop variable takes a list or a range.
    pub set: Vec<(String, String)>,
    /// Runs of each combination.
    pub repetitions: Option<u32>,
}

impl Changes {
    fn apply(&self, definition: &mut Definition) -> Result<(), ExperimentError> {
        if let Some(repetitions) = self.repetitions {
            definition.plan.repetitions = repetitions;
            if let Some(until) = &mut definition.plan.until {
                until.at_most = until.at_most.max(repetitions);
            }
        }
        for (name, text) in &self.set {
            let as_value: Option<toml::Value> =
                toml::from_str::<toml::Table>(&format!("x = {text}"))
                    .ok()
                    .and_then(|mut table| table.remove("x"));
            let value = as_value.unwrap_or_else(|| toml::Value::String(text.clone()));
            let zips = definition
                .zip
                .iter_mut()
                .filter_map(|zip| zip.get_mut(name));
            let in_loops = definition
                .loops
                .get_mut(name)
                .into_iter()
                .chain(zips)
                .next();
            let place = match in_loops {
                // One value is a list of one.
                Some(place) if !(value.is_array() || value.is_table()) => {
                    *place = Spanned::new(place.span(), toml::Value::Array(vec![value]));
                    continue;
                }
                Some(place) => Some(place),
                None => definition.variables.get_mut(name),
            };
            let Some(place) = place else {
                let known = definition.variables.keys().chain(definition.loops.keys());
                return Err(ExperimentError::Unknown(format!(
                    "--set {name}: the experiment has no such variable{}",
                    suggestion(name, known.map(String::as_str))
                )));
            };
            *place = Spanned::new(place.span(), value);
        }
        Ok(())
    }
}

/// One combination of the loop variables.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The loop variables alone: what makes it differ from the others.
    pub loops: Values,
    /// These and the global ones, all filled in.
    pub variables: Values,
}

/// A node's part in the experiment.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) place: Place,
    pub(crate) definition: NodeDefinition,
    pub(crate) variables: Values,
    pub(crate) boot_limit: Duration,
}

/// A text to fill in, with the role on which it is, if on one.
type PlacedText<'a> = (Option<&'a str>, Spanned<String>);

impl Experiment {
    /// Reads and checks an experiment file.
    ///
    /// # Errors
    /// The first mistake, with file, line and column.
    pub fn read(path: &Path, changes: &Changes) -> Result<Self, ExperimentError> {
        let text = std::fs::read_to_string(path).map_err(ExperimentError::io(path))?;
        let folder = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        Self::parse(&text, &path.display().to_string(), folder, changes)
    }

    /// Checks the text of an experiment file; files that it names are beside it in `folder`.
    ///
    /// # Errors
    /// As [`Experiment::read`].
    pub fn parse(
        text: &str,
        name: &str,
        folder: &Path,
        changes: &Changes,
    ) -> Result<Self, ExperimentError> {
        let source = Source {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let mut definition: Definition = toml::from_str(text).map_err(|e| {
            source.wrong(e.span().unwrap_or_default(), with_suggestion(e.message()))
        })?;
        changes.apply(&mut definition)?;
        let tasks = tasks(&definition, &source)?;
        let nodes = roles(&definition, &source)?;
        let mut experiment = Self {
            limit: time(&source, "plan.limit", &definition.plan.limit)?,
            folder: folder.to_owned(),
            templates: Templates::new(),
            variants: Vec::new(),
            tasks,
            nodes,
            definition,
            source,
        };
        experiment.check_plan()?;
        experiment.variants = experiment.make_variants()?;
        experiment.check_names()?;
        experiment.check_secrets()?;
        experiment.check_variables()?;
        experiment.check_texts()?;
        Ok(experiment)
    }

    /// One line that names the experiment.
    pub fn title(&self) -> &str {
        &self.definition.title
    }

    /// What the file says.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        &self.source.text
    }

    /// Combinations of the loop variables.
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    fn check_plan(&self) -> Result<(), ExperimentError> {
        let plan = &self.definition.plan;
        let wrong = |reason: &str| Err(self.source.wrong_somewhere(reason));
        if plan.repetitions == 0 || plan.repetitions > 1_000_000 {
            return wrong("plan.repetitions: 1 or more");
        }
        if plan.attempts == 0 {
            return wrong("plan.attempts: 1 or more");
        }
        if let Some(until) = &plan.until {
            if !(until.within > 0.0 && until.within < 1.0) {
                return wrong("plan.until.within: a share, such as 0.05 for 5 %");
            }
            if until.at_most < plan.repetitions {
                return wrong(
                    "plan.until.at_most: no less than plan.repetitions, which are made in any case",
                );
            }
            if plan.order == Order::Sequential && until.at_most > plan.repetitions {
                return wrong(
                    "plan.until needs order = \"interleaved\" or \"random\": it looks at all combinations after each round",
                );
            }
        }
        Ok(())
    }

    fn spans(&self) -> IndexMap<String, Range<usize>> {
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
                    .wrong(value.span(), format!("there are two variables `{name}`")));
            }
        }
        let mut globals = Values::new();
        for (name, value) in &definition.variables {
            globals.insert(name.clone(), scalar(&self.source, value)?);
        }
        let mut variants = Vec::new();
        for loops in combinations(&self.source, &definition.loops, &definition.zip)? {
            let mut all = globals.clone();
            all.extend(loops.clone());
            let variables = self.templates.resolve(&self.source, &all, &spans)?;
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
                variants.push(Variant { loops, variables });
            }
        }
        if variants.is_empty() {
            return Err(self
                .source
                .wrong_somewhere("plan.only leaves no combination to run"));
        }
        Ok(variants)
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
                format!("`{name}` is no name of a variable: letters, digits and _"),
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

    /// Names that become files: of nodes, tasks, tables and figures.
    fn check_names(&self) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        let kinds: [(&str, Vec<&str>); 4] = [
            ("node", self.nodes.keys().map(String::as_str).collect()),
            (
                "step",
                self.tasks.iter().map(|task| task.name.as_str()).collect(),
            ),
            (
                "table",
                definition
                    .table
                    .iter()
                    .map(|table| table.name.as_str())
                    .collect(),
            ),
            (
                "figure",
                definition
                    .figure
                    .iter()
                    .map(|figure| figure.name.as_str())
                    .collect(),
            ),
        ];
        for (kind, names) in kinds {
            let mut seen = BTreeSet::new();
            for name in names {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                if name.is_empty() || !name.chars().all(plain) {
                    return Err(self.source.wrong_somewhere(format!(
                        "{kind} `{name}`: a name is made of letters, digits, - and _"
                    )));
                }
                if !seen.insert(name) {
                    return Err(self
                        .source
                        .wrong_somewhere(format!("there are two {kind}s named `{name}`")));
                }
            }
        }
        for file in &definition.file {
            if !is_inside(Path::new(&file.name)) {
                return Err(self.source.wrong_somewhere(format!(
                    "file `{}`: a name inside the run's folder",
                    file.name
                )));
            }
            match (&file.text, &file.from) {
                (Some(_), None) => {}
                (None, Some(from)) => {
                    let path = self.folder.join(from.get_ref());
                    if !is_inside(Path::new(from.get_ref())) {
                        return Err(self.source.wrong(
                            from.span(),
                            "a file beside the experiment file or below it, so that both can be handed on together",
                        ));
                    }
                    if !path.is_file() {
                        return Err(self
                            .source
                            .wrong(from.span(), format!("there is no file {}", path.display())));
                    }
                }
                _ => {
                    return Err(self.source.wrong_somewhere(format!(
                        "file `{}` takes either `text` or `from`",
                        file.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// Secrets are names of environment variables, and nothing but this machine's own commands gets them.
    fn check_secrets(&self) -> Result<(), ExperimentError> {
        for name in &self.definition.secrets {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.get_ref().is_empty() || !name.get_ref().chars().all(plain) {
                return Err(self.source.wrong(
                    name.span(),
                    "a secret is the name of an environment variable: letters, digits and _",
                ));
            }
            if let Some((role, _)) = self
                .nodes
                .iter()
                .find(|(_, node)| node.place != Place::Local)
            {
                return Err(self.source.wrong(
                    name.span(),
                    format!("secrets reach local nodes only, and node `{role}` is none"),
                ));
            }
        }
        Ok(())
    }

    /// The values of its secrets, as far as the environment has them.
    pub(crate) fn secrets(&self) -> Result<Secrets, ExperimentError> {
        let names = self.definition.secrets.iter();
        Secrets::read(names.map(|name| name.get_ref().as_str()))
            .map_err(|reason| self.source.wrong_somewhere(reason))
    }

    /// The values of its secrets, which must all be there and stand in no file that is kept.
    pub(crate) fn secrets_to_run(&self) -> Result<Secrets, ExperimentError> {
        let secrets = self.secrets()?;
        if let Some(name) = secrets.unset.first() {
            return Err(self
                .source
                .wrong_somewhere(format!("the secret ${name} is not set in the environment")));
        }
        let from = self
            .definition
            .file
            .iter()
            .filter_map(|file| file.from.as_ref());
        for path in from.map(|from| self.folder.join(from.get_ref())) {
            if secrets.are_in(&path)? {
                return Err(ExperimentError::results(
                    path,
                    "the value of a secret stands in this file; use the environment variable instead",
                ));
            }
        }
        if secrets.text(&self.source.text) != self.source.text {
            return Err(self.source.wrong_somewhere(
                "the value of a secret stands in the file; use the environment variable instead",
            ));
        }
        Ok(secrets)
    }

    /// The role of a task's node.
    pub(crate) fn role_of<'a>(
        &'a self,
        node: Option<&'a Spanned<String>>,
    ) -> Result<&'a str, ExperimentError> {
        match node {
            Some(node) if self.nodes.contains_key(node.get_ref()) => Ok(node.get_ref()),
            Some(node) => Err(self.source.wrong(
                node.span(),
                format!(
                    "there is no node `{}`{}",
                    node.get_ref(),
                    suggestion(node.get_ref(), self.nodes.keys().map(String::as_str))
                ),
            )),
            None => match self.nodes.keys().next() {
                Some(only) if self.nodes.len() == 1 => Ok(only),
                _ => Err(self.source.wrong_somewhere(
                    "there are several nodes: say with `node` on which one each step, the traffic and the device are",
                )),
            },
        }
    }

    /// All texts that are filled in for a run, with the role on which they are, if on one.
    fn texts(&self) -> Result<Vec<PlacedText<'_>>, ExperimentError> {
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
            let setup = node.definition.setup.iter();
            texts.extend(setup.map(|text| (Some(role.as_str()), text.clone())));
        }
        for file in &self.definition.file {
            match (&file.text, &file.from) {
                (Some(text), _) => texts.push((None, text.clone())),
                (None, Some(from)) => {
                    let path = self.folder.join(from.get_ref());
                    let text = std::fs::read_to_string(&path).map_err(ExperimentError::io(path))?;
                    texts.push((None, Spanned::new(from.span(), text)));
                }
                (None, None) => {}
            }
        }
        Ok(texts)
    }

    /// Every variable that is used exists, and every one that exists is used.
    fn check_variables(&self) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        let known: Vec<&str> = self.variants[0]
            .variables
            .keys()
            .map(String::as_str)
            .collect();
        let mut used: BTreeSet<String> = BTreeSet::new();
        let spans = self.spans();
        for (role, text) in self.texts()? {
            let of_node: Vec<&str> = role
                .and_then(|role| self.nodes.get(role))
                .map(|node| node.variables.keys().map(String::as_str).collect())
                .unwrap_or_default();
            for name in self.templates.used(&self.source, &text)? {
                self.check_use(&name, text.span(), &known, &of_node)?;
                match role {
                    Some(role) if of_node.contains(&name.as_str()) => {
                        used.insert(format!("nodes.{role}.{name}"))
                    }
                    _ => used.insert(name),
                };
            }
        }
        for value in definition
            .variables
            .values()
            .chain(definition.loops.values())
        {
            let of_list = value
                .get_ref()
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            for text in std::iter::once(value.get_ref())
                .chain(of_list)
                .filter_map(|v| v.as_str())
            {
                used.extend(
                    self.templates
                        .used(&self.source, &Spanned::new(value.span(), text.to_owned()))?,
                );
            }
        }
        for only in &definition.plan.only {
            used.extend(self.templates.used_in_expression(&self.source, only)?);
        }
        for table in &definition.table {
            self.check_columns(&table.rows, &known)?;
        }
        for figure in &definition.figure {
            self.check_columns(&figure.by, &known)?;
        }
        for zip in &definition.zip {
            // What changes with a variable that is used may be its name in tables and figures.
            if zip.keys().any(|name| used.contains(name)) {
                used.extend(zip.keys().cloned());
            }
        }
        if let Some(unused) = known.iter().find(|name| !used.contains(**name)) {
            return Err(self.source.wrong(
                spans.get(*unused).cloned().unwrap_or_default(),
                format!("variable `{unused}` is used nowhere: runs would not differ by it"),
            ));
        }
        for (role, node) in &self.nodes {
            for (name, value) in &node.definition.variables {
                if !used.contains(&format!("nodes.{role}.{name}")) {
                    return Err(self.source.wrong(
                        value.span(),
                        format!("variable `{name}` of node `{role}` is used nowhere"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_use(
        &self,
        name: &str,
        span: Range<usize>,
        known: &[&str],
        of_node: &[&str],
    ) -> Result<(), ExperimentError> {
        if let Some(path) = name.strip_prefix("nodes.") {
            let (role, variable) = path.split_once('.').unwrap_or((path, ""));
            let there = self
                .nodes
                .get(role)
                .is_some_and(|node| node.variables.contains_key(variable));
            return if there {
                Ok(())
            } else {
                Err(self.source.wrong(
                    span,
                    format!("there is no variable `{name}`: nodes.ROLE.VARIABLE"),
                ))
            };
        }
        let simple = name.split('.').next().unwrap_or(name);
        let all = || known.iter().chain(of_node).chain(&GIVEN).copied();
        if all().any(|k| k == simple) {
            Ok(())
        } else {
            Err(unknown(&self.source, span, name, all()))
        }
    }

    /// Rows and groups are loop variables, or what is given to each run.
    fn check_columns(
        &self,
        names: &[Spanned<String>],
        known: &[&str],
    ) -> Result<(), ExperimentError> {
        for name in names {
            if !known.contains(&name.get_ref().as_str()) {
                return Err(unknown(
                    &self.source,
                    name.span(),
                    name.get_ref(),
                    known.iter().copied(),
                ));
            }
        }
        Ok(())
    }

    /// Fills every text in for the first variant, so that mistakes in filters show before the first run.
    fn check_texts(&self) -> Result<(), ExperimentError> {
        let variant = &self.variants[0];
        for (role, text) in self.texts()? {
            let values = self.context(variant, role, "v1-r1", 1);
            self.templates
                .fill(text.get_ref(), &values)
                .map_err(|reason| self.source.wrong(text.span(), reason))?;
        }
        for task in &self.tasks {
            for pattern in task
                .extract
                .values()
                .filter(|p| !p.get_ref().contains("{{"))
            {
                let regex = regex_lite::Regex::new(pattern.get_ref()).map_err(|e| {
                    self.source
                        .wrong(pattern.span(), format!("no pattern: {e}"))
                })?;
                if regex.captures_len() < 2 {
                    return Err(self.source.wrong(
                        pattern.span(),
                        "the pattern needs a group around the number: 'avg = ([0-9.]+)'",
                    ));
                }
            }
        }
        Ok(())
    }

    /// What a text may use in a run.
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
            Value::from(crate::plan::seed_of(self.definition.plan.seed, run)),
        );
        serde_json::to_value(all).unwrap_or_default()
    }
}

fn roles(
    definition: &Definition,
    source: &Source,
) -> Result<IndexMap<String, Role>, ExperimentError> {
    let mut roles = IndexMap::new();
    let alone = IndexMap::from([("local".to_owned(), NodeDefinition::default())]);
    let nodes = if definition.nodes.is_empty() {
        &alone
    } else {
        &definition.nodes
    };
    for (role, node) in nodes {
        let place = match &node.at {
            None => Place::Local,
            Some(at) => {
                Place::parse(at.get_ref()).map_err(|reason| source.wrong(at.span(), reason))?
            }
        };
        check_place(source, role, &place, node)?;
        let mut variables = Values::new();
        for (name, value) in &node.variables {
            variables.insert(name.clone(), scalar(source, value)?);
        }
        let spans = node
            .variables
            .iter()
            .map(|(name, value)| (name.clone(), value.span()))
            .collect();
        let variables = Templates::new().resolve(source, &variables, &spans)?;
        let boot_limit = time(
            source,
            "boot_limit",
            node.boot_limit.as_deref().unwrap_or("300s"),
        )?;
        roles.insert(
            role.clone(),
            Role {
                place,
                definition: node.clone(),
                variables,
                boot_limit,
            },
        );
    }
    let of_slurm = |role: &Role| role.place == Place::Slurm;
    if roles.values().any(of_slurm) && !roles.values().all(of_slurm) {
        return Err(source.wrong_somewhere(
            "nodes: either all of them are at `slurm` or none, since runs are made where Slurm starts them",
        ));
    }
    for link in &definition.link {
        for end in &link.between {
            let (role, _) = end_of(source, end)?;
            match roles.get(role) {
                Some(Role {
                    place: Place::Local,
                    ..
                }) => {}
                Some(_) => {
                    return Err(source.wrong(
                        end.span(),
                        "links join local nodes; wires between machines are real",
                    ));
                }
                None => {
                    return Err(source.wrong(
                        end.span(),
                        format!(
                            "there is no node `{role}`{}",
                            suggestion(role, roles.keys().map(String::as_str))
                        ),
                    ));
                }
            }
        }
    }
    Ok(roles)
}

/// What is said of a node goes with where it is.
fn check_place(
    source: &Source,
    role: &str,
    place: &Place,
    node: &NodeDefinition,
) -> Result<(), ExperimentError> {
    let reason = match place {
        Place::Slurm if node.reset.is_some() => {
            "`reset` is not for nodes at `slurm`: let its features choose what Slurm boots"
        }
        Place::Slurm if node.boot_limit.is_some() => {
            "`boot_limit` is not for nodes at `slurm`: its ResumeTimeout says it"
        }
        Place::Slurm => return Ok(()),
        _ if node.features.is_some() => "`features` are for nodes at `slurm`",
        Place::Local if node.boot_limit.is_some() => "`boot_limit` is for nodes at `ssh://`",
        _ => return Ok(()),
    };
    Err(source.wrong_somewhere(format!("node `{role}`: {reason}")))
}

/// The role and the interface of a link's end.
pub(crate) fn end_of<'a>(
    source: &Source,
    end: &'a Spanned<String>,
) -> Result<(&'a str, &'a str), ExperimentError> {
    end.get_ref()
        .split_once(':')
        .filter(|(role, interface)| {
            !role.is_empty() && !interface.is_empty() && interface.len() <= 15
        })
        .ok_or_else(|| {
            source.wrong(
                end.span(),
                "the end of a link is node:interface, the interface of at most 15 letters",
            )
        })
}

fn time(source: &Source, name: &str, text: &str) -> Result<Duration, ExperimentError> {
    taut_port::duration(text)
        .filter(|time| !time.is_zero())
        .ok_or_else(|| {
            source.wrong_somewhere(format!("{name}: `{text}` is no time; write 500ms or 60s"))
        })
}

/// What the TOML reader says of an unknown key, and the key that was probably meant.
fn with_suggestion(message: &str) -> String {
    let ticks: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match ticks.split_first() {
        Some((wrong, known)) if message.starts_with("unknown") => {
            format!("{message}{}", suggestion(wrong, known.iter().copied()))
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Experiment, String> {
        Experiment::parse(text, "e.toml", Path::new("."), &Changes::default())
            .map_err(|e| e.to_string())
    }

    const SMALL: &str = r#"
title = "t"
[loop]
a = [1, 2]
b = ["x", "y", "z"]
[[step]]
run = "echo {{ a }} {{ b }} {{ seed }}"
"#;

    #[test]
    fn mistakes_are_told_with_line_and_column_and_what_was_meant() {
        for (text, place, part) in [
            ("title = 3", "e.toml:1:9: ", "string"),
            (
                "title = 't'\ntitel = 't'",
                "e.toml:2:1: ",
                "did you mean `title`?",
            ),
            (
                "title = 't'\n[plan]\nrepetition = 3\n[[step]]\nrun = 'a'",
                "e.toml:3:1: ",
                "did you mean `repetitions`?",
            ),
            (
                "title = 't'\n[plan]\norder = 'ramdom'\n[[step]]\nrun = 'a'",
                "e.toml:3:9: ",
                "did you mean `random`?",
            ),
            ("title = 't'", "e.toml: ", "nothing is done"),
            (
                "title = 't'\n[[step]]\nrun = 'echo {{ rat }}'\n[loop]\nrate = [1]",
                "e.toml:3:7: ",
                "did you mean `rate`?",
            ),
            (
                "title = 't'\n[[step]]\nrun = 'echo {{ 1'",
                "e.toml:3:7: ",
                "",
            ),
            (
                "title = 't'\n[[step]]\nrun = 'echo'\n[loop]\nrate = [1]",
                "e.toml:5:8: ",
                "used nowhere",
            ),
            (
                "title = 't'\n[variables]\nx = 1\n[[step]]\nrun = 'echo'",
                "e.toml:3:5: ",
                "used nowhere",
            ),
            (
                "title = 't'\n[variables]\nx = '{{ y }}'\ny = '{{ x }}'\n[[step]]\nrun = '{{ x }}'",
                "e.toml:3:5: ",
                "x -> y -> x",
            ),
            (
                "title = 't'\n[variables]\nx = 1\n[loop]\nx = [2]\n[[step]]\nrun = '{{ x }}'",
                "e.toml:5:5: ",
                "two variables",
            ),
            (
                "title = 't'\n[variables]\nrun = 1\n[[step]]\nrun = '{{ run }}'",
                "e.toml:3:7: ",
                "given to each run",
            ),
            (
                "title = 't'\n[variables]\nx = [1]\n[[step]]\nrun = '{{ x }}'",
                "e.toml:3:5: ",
                "under [loop]",
            ),
            (
                "title = 't'\n[[zip]]\nx = [1, 2]\ny = [1]\n[[step]]\nrun = '{{ x }}{{ y }}'",
                "e.toml:4:5: ",
                "equally many",
            ),
            (
                "title = 't'\n[loop]\nx = [1]\n[plan]\nonly = ['x > 1']\n[[step]]\nrun = '{{ x }}'",
                "e.toml: ",
                "leaves no combination",
            ),
            (
                "title = 't'\n[loop]\nx = [1]\n[plan]\nonly = ['z > 1']\n[[step]]\nrun = '{{ x }}'",
                "e.toml:5:9: ",
                "",
            ),
            (
                "title = 't'\n[plan]\nlimit = 'long'\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "500ms or 60s",
            ),
            (
                "title = 't'\n[nodes.a]\nat = 'ftp://x'\n[[step]]\nrun = 'a'",
                "e.toml:3:6: ",
                "ssh://user@host:port",
            ),
            (
                "title = 't'\n[nodes.a]\n[nodes.b]\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "several nodes",
            ),
            (
                "title = 't'\n[nodes.dut]\n[[step]]\nnode = 'dur'\nrun = 'a'",
                "e.toml:4:8: ",
                "did you mean `dut`?",
            ),
            (
                "title = 't'\n[nodes.a]\n[[link]]\nbetween = ['a:x', 'b:y']\n[[step]]\nrun = 'a'",
                "e.toml:4:19: ",
                "no node `b`",
            ),
            (
                "title = 't'\n[[file]]\nname = '../x'\ntext = ''\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "inside the run's folder",
            ),
            (
                "title = 't'\n[[file]]\nname = 'x'\nfrom = '/etc/passwd'\n[[step]]\nrun = 'a'",
                "e.toml:4:8: ",
                "beside the experiment file",
            ),
            (
                "title = 't'\n[[file]]\nname = 'x'\nfrom = 'nowhere.toml'\n[[step]]\nrun = 'a'",
                "e.toml:4:8: ",
                "no file",
            ),
            (
                "title = 't'\n[device]\nid = 'memif-idle'",
                "e.toml: ",
                "add [measure]",
            ),
            (
                "title = 't'\n[measure]\nwhat = ['latency']",
                "e.toml: ",
                "needs a [device]",
            ),
            (
                "title = 't'\n[[step]]\nrun = 'a'\nextract = { x = 'no group' }",
                "e.toml:4:17: ",
                "group around the number",
            ),
            (
                "title = 't'\n[plan]\nuntil = { metric = 'x', within = 5, at_most = 9 }\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "0.05 for 5 %",
            ),
            (
                "title = 't'\n[[step]]\nname = 'a'\nrun = 'a'\n[[step]]\nname = 'a'\nrun = 'a'",
                "e.toml: ",
                "two steps",
            ),
            (
                "title = 't'\n[[step]]\nrun = 'a'\n[[table]]\nname = 't'\nrows = ['x']\nmetrics = ['m']",
                "e.toml:6:9: ",
                "no variable `x`",
            ),
        ] {
            let message = parse(text).unwrap_err();
            assert!(
                message.starts_with(place) && message.contains(part),
                "{text}\n-> {message}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn the_same_file_and_seed_give_the_same_plan_and_another_seed_another() {
        let ids = |text: &str| {
            parse(text)
                .unwrap()
                .plan()
                .into_iter()
                .map(|run| run.id)
                .collect::<Vec<_>>()
        };
        let first = ids(SMALL);
        assert_eq!(first.len(), 18);
        assert_eq!(first, ids(SMALL));
        let other = format!("{SMALL}\n[plan]\nseed = 2");
        assert_ne!(first, ids(&other));
        let (mut a, mut b) = (first, ids(&other));
        a.sort();
        b.sort();
        assert_eq!(a, b);
        assert_ne!(
            parse(SMALL).unwrap().fingerprint(),
            parse(&other).unwrap().fingerprint()
        );
    }

    #[test]
    fn interleaved_repetitions_go_through_all_combinations_before_any_comes_again() {
        let plan = parse(SMALL).unwrap().plan();
        for (index, round) in plan.chunks(6).enumerate() {
            assert!(round.iter().all(|run| run.repetition == index as u32 + 1));
            let mut variants: Vec<usize> = round.iter().map(|run| run.variant).collect();
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2, 3, 4, 5]);
        }
        let orders: BTreeSet<Vec<usize>> = plan
            .chunks(6)
            .map(|round| round.iter().map(|run| run.variant).collect())
            .collect();
        assert!(orders.len() > 1, "each round has an order of its own");
    }

    #[test]
    fn conditions_leave_combinations_out() {
        let text = format!("{SMALL}\n[plan]\nonly = ['a == 1 or b == \"z\"']");
        let experiment = parse(&text).unwrap();
        assert_eq!(experiment.variants().len(), 4);
    }

    #[test]
    fn values_can_be_changed_for_a_run_and_only_those_that_exist() {
        let set = |name: &str, value: &str| {
            let changes = Changes {
                set: vec![(name.into(), value.into())],
                repetitions: Some(1),
            };
            Experiment::parse(SMALL, "e.toml", Path::new("."), &changes)
        };
        assert_eq!(set("a", "7").unwrap().plan().len(), 3);
        assert_eq!(set("b", "['x', 'q']").unwrap().plan().len(), 4);
        assert_eq!(
            set("b", "plain text").unwrap().variants()[0].loops["b"],
            "plain text"
        );
        assert!(
            set("c", "1")
                .unwrap_err()
                .to_string()
                .contains("no such variable")
        );
    }

    #[test]
    fn options_with_blanks_stay_one_word_of_the_command() {
        let experiment = parse(
            r#"
title = "t"
[loop]
device = ["memif,flush=full(32, 100us)"]
[device]
id = "{{ device }}"
[traffic]
rate = "100k"
set = ["dst_port=1-2 random"]
[measure]
what = ["latency", "throughput"]
options = { throughput = "--quick" }
"#,
        )
        .unwrap();
        let commands = experiment.check().unwrap().commands;
        let scripts: Vec<&str> = commands
            .iter()
            .map(|command| command.script.as_str())
            .collect();
        assert_eq!(
            scripts,
            [
                "taut generate --device 'memif,flush=full(32, 100us)' --set 'dst_port=1-2 random' --rate 100k --json --out latency",
                "taut bench throughput --device 'memif,flush=full(32, 100us)' --set 'dst_port=1-2 random' --quick --json --out throughput",
            ]
        );
    }
}
