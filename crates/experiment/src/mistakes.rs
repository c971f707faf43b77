//! Finds semantic errors in an experiment file, and reports them with their location before the first run.

mod traffic;

use crate::build::BUILD;
use crate::changes::Changes;
use crate::definition::{FigureDefinition, FigureKind, FileDefinition, Order, Published};
use crate::error::ExperimentError;
use crate::evaluate::formula::Formulas;
use crate::experiment::Experiment;
use crate::folder::is_own;
use crate::metrics::{names_of, without_indices};
use crate::name::{LONGEST_NAME, is_plain_name};
use crate::variables::{GIVEN, plain, text_of, unknown};
use std::collections::BTreeSet;
use std::ops::Range;
use taut_results::InsidePath;
use taut_settings::suggestion;
use toml::Spanned;

/// Returns the quoted texts that directly follow an opening bracket in a formula: the names of metrics.
fn first_arguments(formula: &str) -> impl Iterator<Item = &str> {
    formula.split('(').skip(1).filter_map(|part| {
        let part = part.trim_start();
        let quote = part.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        part[1..].split(quote).next()
    })
}

impl Experiment {
    pub(crate) fn check_plan(&self) -> Result<(), ExperimentError> {
        let plan = &self.definition.plan;
        let wrong = |reason: &str| Err(self.source.wrong_somewhere(reason));
        if plan.repetitions == 0 || plan.repetitions > 1_000_000 {
            return wrong("plan.repetitions: expected 1 to 1000000");
        }
        if plan.attempts == 0 {
            return wrong("plan.attempts: 1 or more");
        }
        if let Some(until) = &plan.until {
            if !(until.within > 0.0 && until.within < 1.0) {
                return wrong("plan.until.within: a share, such as 0.05 for 5 %");
            }
            if until.at_most < plan.repetitions {
                return wrong("plan.until.at_most: must be at least plan.repetitions");
            }
            if plan.order == Order::Sequential && until.at_most > plan.repetitions {
                return wrong(
                    "plan.until needs order = \"interleaved\" or \"random\": it looks at all combinations after each round",
                );
            }
        }
        Ok(())
    }

    /// Refuses variables and values in `plan.first` that no combination has. A value that `--set` has removed is
    /// accepted.
    pub(crate) fn check_first(&self, changes: &Changes) -> Result<(), ExperimentError> {
        for (name, values) in &self.definition.plan.first {
            let wrong = |reason: String| {
                let reason = format!("plan.first: {reason}");
                Err(self.source.wrong(values.span(), reason))
            };
            let of_variants = self.variants.iter();
            let known: BTreeSet<String> = of_variants
                .filter_map(|variant| Some(text_of(variant.variables.get(name)?)))
                .collect();
            if known.is_empty() {
                let names = self.variants[0].variables.keys().map(String::as_str);
                return wrong(format!(
                    "unknown variable `{name}`{}",
                    suggestion(name, names)
                ));
            }
            let is_set = changes.set.iter().any(|(set, _)| set == name);
            for value in values.get_ref() {
                let Some(value) = plain(value).map(|value| text_of(&value)) else {
                    return wrong(format!("{name}: expected texts, numbers, true or false"));
                };
                if !is_set && !known.contains(&value) {
                    return wrong(format!(
                        "no combination has {name} = {value}{}",
                        suggestion(&value, known.iter().map(String::as_str))
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the names that are also used for files: of nodes, tasks, tables and figures.
    pub(crate) fn check_names(&self) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        for (kind, names) in self.names_by_kind() {
            self.check_names_of(kind, &names)?;
        }
        for file in &definition.file {
            self.check_file(file)?;
        }
        for step in &definition.evaluate {
            step.files
                .iter()
                .try_for_each(|file| self.check_attachment(file))?;
        }
        for figure in &definition.figure {
            if let Some(samples) = &figure.samples {
                InsidePath::new(samples.get_ref())
                    .map_err(|e| self.source.wrong(samples.span(), format!("samples: {e}")))?;
            }
            self.check_published(figure)?;
        }
        if definition.title.contains(char::is_control) {
            return Err(self.source.wrong_somewhere("title: one line"));
        }
        Ok(())
    }

    /// Returns the names that are also used for files, by kind.
    fn names_by_kind(&self) -> [(&'static str, Vec<&str>); 5] {
        let definition = &self.definition;
        [
            ("node", self.nodes.keys().map(String::as_str).collect()),
            (
                "step",
                self.tasks.iter().map(|task| task.name.as_str()).collect(),
            ),
            (
                "evaluation step",
                definition
                    .evaluate
                    .iter()
                    .map(|step| step.name.as_str())
                    .collect(),
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
        ]
    }

    /// Refuses names of one kind that are invalid as file names, and duplicates.
    fn check_names_of(&self, kind: &str, names: &[&str]) -> Result<(), ExperimentError> {
        let mut seen = BTreeSet::new();
        for name in names {
            if !is_plain_name(name) {
                return Err(self.source.wrong_somewhere(format!(
                    "{kind} `{name}`: a name is made of letters, digits, - and _, at most {LONGEST_NAME}"
                )));
            }
            if !seen.insert(name) {
                return Err(self
                    .source
                    .wrong_somewhere(format!("duplicate {kind} `{name}`")));
            }
        }
        Ok(())
    }

    /// Refuses a file definition whose name leads out of the run's folder, or that does not have exactly one of `text`
    /// and `from`.
    fn check_file(&self, file: &FileDefinition) -> Result<(), ExperimentError> {
        if InsidePath::new(&file.name).is_err() {
            return Err(self.source.wrong_somewhere(format!(
                "file `{}`: a name inside the run's folder",
                file.name
            )));
        }
        match (&file.text, &file.from) {
            (Some(_), None) => Ok(()),
            (None, Some(from)) => self.check_attachment(from),
            _ => Err(self.source.wrong_somewhere(format!(
                "file `{}` takes either `text` or `from`",
                file.name
            ))),
        }
    }

    /// Refuses a file next to the experiment file that does not exist, has a reserved name, or cannot be read.
    fn check_attachment(&self, from: &Spanned<String>) -> Result<(), ExperimentError> {
        let wrong = |reason: String| Err(self.source.wrong(from.span(), reason));
        match InsidePath::new(from.get_ref()) {
            Err(e) => {
                return wrong(format!(
                    "{e}; it must be in the folder of the experiment file or below, so that both can be passed on together"
                ));
            }
            Ok(name) if is_own(&name) => {
                return wrong(format!(
                    "`{name}` belongs to the results: choose another name"
                ));
            }
            Ok(_) => {}
        }
        match self.attachments.read(from.get_ref()) {
            Err(ExperimentError::Io { path, source })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                wrong(format!("file not found: {}", path.display()))
            }
            Err(e) => wrong(e.to_string()),
            Ok(_) => Ok(()),
        }
    }

    /// Refuses published values that a figure of the given kind cannot show.
    fn check_published(&self, figure: &FigureDefinition) -> Result<(), ExperimentError> {
        let parts = figure.parts.len();
        for published in &figure.published {
            let Published {
                name,
                points,
                values,
                ..
            } = published;
            let (is_right, wants) = match figure.kind {
                FigureKind::Line | FigureKind::Cdf => (
                    !points.is_empty() && values.is_empty(),
                    "`points`".to_owned(),
                ),
                FigureKind::Stack => (
                    values.len() == parts && points.is_empty(),
                    format!("{parts} `values`, one for each of `parts`"),
                ),
                _ => (
                    false,
                    "to be in a figure `line`, `cdf` or `stack`".to_owned(),
                ),
            };
            if !is_right {
                return Err(self.source.wrong_somewhere(format!(
                    "figure `{}`: what was published as `{name}` wants {wants}",
                    figure.name
                )));
            }
        }
        Ok(())
    }

    /// Checks that the names of secrets are valid names of environment variables.
    pub(crate) fn check_secrets(&self) -> Result<(), ExperimentError> {
        for name in &self.definition.secrets {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.get_ref().is_empty() || !name.get_ref().chars().all(plain) {
                return Err(self.source.wrong(
                    name.span(),
                    "a secret is the name of an environment variable: letters, digits and _",
                ));
            }
        }
        Ok(())
    }

    /// Checks that every used variable is defined, and that every defined variable is used.
    pub(crate) fn check_variables(&self) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        let known: Vec<&str> = self.variants[0]
            .variables
            .keys()
            .map(String::as_str)
            .collect();
        let spans = self.spans();
        let mut used = self.used_in_texts(&known)?;
        self.add_used_in_values(&mut used)?;
        // The build distinguishes runs even if no text of the file uses the variable.
        used.extend(self.against.iter().map(|_| BUILD.to_owned()));
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
            // A variable that changes together with a used one may serve as its label in tables and figures.
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
        self.check_node_variables(&used)
    }

    /// Returns the variables that the texts of the file use, after a check that each of them is defined. Variables of
    /// nodes have names such as `nodes.device.address`.
    fn used_in_texts(&self, known: &[&str]) -> Result<BTreeSet<String>, ExperimentError> {
        let mut used: BTreeSet<String> = BTreeSet::new();
        for (role, text) in self.texts()? {
            let of_node: Vec<&str> = role
                .and_then(|role| self.nodes.get(role))
                .map(|node| node.variables.keys().map(String::as_str).collect())
                .unwrap_or_default();
            for name in self.templates.used(&self.source, &text)? {
                self.check_use(&name, text.span(), known, &of_node)?;
                match role {
                    Some(role) if of_node.contains(&name.as_str()) => {
                        used.insert(format!("nodes.{role}.{name}"))
                    }
                    _ => used.insert(name),
                };
            }
        }
        Ok(used)
    }

    /// Adds the variables that the values of other variables use.
    fn add_used_in_values(&self, used: &mut BTreeSet<String>) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        for value in definition
            .variables
            .values()
            .chain(definition.loops.values())
            .chain(definition.zip.iter().flat_map(|zip| zip.values()))
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
        Ok(())
    }

    /// Checks that every variable of a node is used.
    fn check_node_variables(&self, used: &BTreeSet<String>) -> Result<(), ExperimentError> {
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
                    format!("unknown variable `{name}`: nodes.ROLE.VARIABLE"),
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

    /// Checks that the variables which form the rows of tables and the groups of figures are loop variables, or
    /// variables that every run has.
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

    /// Checks that `taut generate` prints the metrics that tables, figures and claims use.
    pub(crate) fn check_metrics(&self) -> Result<(), ExperimentError> {
        let definition = &self.definition;
        let mut used: Vec<(&str, Range<usize>)> = Vec::new();
        for metric in definition.table.iter().flat_map(|table| &table.metrics) {
            used.push((metric.get_ref(), metric.span()));
        }
        for figure in &definition.figure {
            let axes = [&figure.x, &figure.y, &figure.value].into_iter().flatten();
            let all = axes.chain(&figure.parts);
            used.extend(all.map(|name| (name.get_ref().as_str(), name.span())));
        }
        for claim in &definition.claim {
            let named = first_arguments(claim.value.get_ref());
            used.extend(named.map(|name| (name, claim.value.span())));
        }
        for (name, span) in used {
            self.check_metric(name)
                .map_err(|reason| self.source.wrong(span, reason))?;
        }
        Ok(())
    }

    fn check_metric(&self, metric: &str) -> Result<(), String> {
        let is_variable = self.variants.iter().any(|it| it.loops.contains_key(metric));
        let is_extracted = self.tasks.iter().any(|it| it.extract.contains_key(metric));
        let is_counted = self.tasks.iter().any(|task| {
            let name = metric.strip_prefix(&task.name);
            let counter = name.and_then(|rest| rest.strip_prefix(".counters."));
            counter.is_some_and(|name| task.counters.iter().any(|it| it.name() == name))
        });
        let mut clocks = self.nodes.iter().filter(|(_, role)| role.clock.is_some());
        let is_of_clock = clocks.any(|(name, _)| {
            let rest = metric
                .strip_prefix("clock.")
                .and_then(|it| it.strip_prefix(name.as_str()));
            rest.is_some_and(|rest| rest.starts_with('.'))
        });
        if is_variable || is_extracted || is_counted || is_of_clock || GIVEN.contains(&metric) {
            return Ok(());
        }
        let printing = self.tasks.iter().filter(|task| task.json);
        let may_be: Vec<_> = printing
            .filter(|task| metric.starts_with(&task.prefix))
            .collect();
        let longest = may_be.iter().map(|task| task.prefix.len()).max();
        let mut closest = may_be.iter().filter(|it| Some(it.prefix.len()) == longest);
        let (Some(task), None) = (closest.next(), closest.next()) else {
            return Ok(());
        };
        let Some(names) = names_of(task.run.get_ref()) else {
            return Ok(());
        };
        let name = without_indices(&metric[task.prefix.len()..]);
        if names.contains(&name) {
            return Ok(());
        }
        let alike = suggestion(&name, names.iter().map(String::as_str));
        Err(format!(
            "`taut generate` prints no number `{name}` (docs/reference/command/generate.md lists those it prints){alike}"
        ))
    }

    /// Evaluates the formulas and conditions of claims once with sample values, to find errors.
    pub(crate) fn check_claims(&self) -> Result<(), ExperimentError> {
        let loops: Vec<_> = self.variants.iter().map(|it| it.loops.clone()).collect();
        for claim in &self.definition.claim {
            Formulas::taken(&loops, claim.value.get_ref())
                .map_err(|reason| self.source.wrong(claim.value.span(), reason))?;
            if let Some(mistake) = claim.mistake() {
                return Err(self.source.wrong(claim.value.span(), mistake));
            }
            let condition = claim.condition();
            let span = claim.holds.as_ref().unwrap_or(&claim.value).span();
            Formulas::try_condition(&condition)
                .map_err(|reason| self.source.wrong(span.clone(), reason))?;
            // The published figure itself must meet the direction of the claim.
            let ends = claim.figure().map_or([None; 2], |it| it.ends());
            for end in ends.into_iter().flatten() {
                if Formulas::try_at(&condition, end) == Ok(false) {
                    let reason = format!("the published {end} does not meet `{condition}`");
                    return Err(self.source.wrong(span.clone(), reason));
                }
            }
        }
        Ok(())
    }

    /// Fills in every template for the first combination, so that errors in filters are found before the first run.
    pub(crate) fn check_texts(&self) -> Result<(), ExperimentError> {
        let variant = &self.variants[0];
        for (role, text) in self.texts()? {
            let values = self.context(variant, role, "v1-r1", 1);
            self.templates
                .fill(text.get_ref(), &values)
                .map_err(|reason| self.source.wrong(text.span(), reason))?;
        }
        for variant in &self.variants {
            self.keeps_awake(&self.context(variant, None, "v1-r1", 1))?;
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::path::Path;

    fn parse(text: &str) -> Result<Experiment, String> {
        Experiment::parse(text, "e.toml", Path::new("."), &Changes::default())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn loop_variables_used_by_a_zipped_value_count_as_used() {
        let file = |run: &str| {
            parse(&format!(
                "title = 't'\n[loop]\na = [1, 2]\n[[zip]]\nb = ['x {{{{ a }}}}', 'y']\n[[step]]\nrun = '{run}'"
            ))
        };
        assert_eq!(file("{{ b }}").unwrap().variants.len(), 4);
        let message = file("true").unwrap_err();
        assert!(message.contains("used nowhere"), "{message}");
    }

    #[test]
    fn the_awake_setting_is_evaluated_for_each_combination() {
        let awake = |setting: &str| {
            parse(&format!("title = 't'\n{setting}\n[[step]]\nrun = 'true'")).map(|experiment| {
                let variants = experiment.variants.iter();
                let contexts = variants.map(|it| experiment.context(it, None, "v1-r1", 1));
                contexts
                    .map(|values| experiment.keeps_awake(&values).unwrap())
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(awake(""), Ok(vec![false]));
        assert_eq!(awake("awake = true"), Ok(vec![true]));
        assert_eq!(
            awake("awake = '{{ a }}'\n[loop]\na = [false, true]"),
            Ok(vec![false, true])
        );
        let message = awake("awake = '{{ a }}'\n[loop]\na = [true, 'yes']").unwrap_err();
        assert!(message.contains("expected true or false"), "{message}");
        let message = awake("awake = '{{ a }}'").unwrap_err();
        assert!(message.contains("e.toml:2"), "{message}");
    }

    #[test]
    fn experiment_files_may_use_the_metrics_of_any_stream() {
        let metrics = |name: &str| {
            parse(&format!(
                "title = 't'\n[device]\nid = 'memif-idle'\n[measure]\nwhat = ['latency']\n[[table]]\nname = 't'\n\
                 metrics = ['{name}']"
            ))
        };
        for name in ["lost", "streams.0.lost", "streams.3.lost"] {
            metrics(name).unwrap();
        }
        let message = metrics("streams.3.tally.lent").unwrap_err();
        assert!(message.contains("tally.sent"), "{message}");
    }

    #[test]
    fn experiment_file_errors_name_the_position_and_suggest_a_correction() {
        for (text, place, part) in [
            (
                "title = 3",
                "e.toml:1:9: ",
                "title = 3: expected a text in quotes: \"3\"",
            ),
            (
                "title = 't'\n[plan]\nlimit = 60\n[[step]]\nrun = 'a'",
                "e.toml:3:9: ",
                "limit: expected a time in quotes, such as \"60s\"",
            ),
            (
                "title = 't'\n[plan]\nrepetitions = 4000000000\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "expected 1 to 1000000",
            ),
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
                "duplicate variable",
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
                "title = 't'\n[loop]\nx = ['on', 'off']\n[plan]\nfirst = { y = ['on'] }\n[[step]]\nrun = '{{ x }}'",
                "e.toml:5:15: ",
                "plan.first: unknown variable `y`",
            ),
            (
                "title = 't'\n[loop]\nx = ['on', 'off']\n[plan]\nfirst = { x = ['of'] }\n[[step]]\nrun = '{{ x }}'",
                "e.toml:5:15: ",
                "plan.first: no combination has x = of; did you mean `off`?",
            ),
            (
                "title = 't'\n[loop]\nx = [1, 2]\n[plan]\nfirst = { x = [[1]] }\n[[step]]\nrun = '{{ x }}'",
                "e.toml:5:15: ",
                "plan.first: x: expected texts, numbers, true or false",
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
                "unknown node `b`",
            ),
            (
                "title = 't'\n[[file]]\nname = '../x'\ntext = ''\n[[step]]\nrun = 'a'",
                "e.toml: ",
                "inside the run's folder",
            ),
            (
                "title = 't'\n[[file]]\nname = 'x'\nfrom = '/etc/passwd'\n[[step]]\nrun = 'a'",
                "e.toml:4:8: ",
                "in the folder of the experiment file",
            ),
            (
                "title = 't'\n[[file]]\nname = 'x'\nfrom = 'nowhere.toml'\n[[step]]\nrun = 'a'",
                "e.toml:4:8: ",
                "file not found",
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
                "duplicate step",
            ),
            (
                "title = 't'\n[[step]]\nrun = 'a'\n[[table]]\nname = 't'\nrows = ['x']\nmetrics = ['m']",
                "e.toml:6:9: ",
                "unknown variable `x`",
            ),
            (
                "title = 't'\n[device]\nid = 'memif-idle'\n[measure]\nwhat = ['latency']\n[[table]]\nname = 't'\nmetrics = ['latency_ns.p51_ns']",
                "e.toml:8:12: ",
                "did you mean `latency_ns.p50_ns`?",
            ),
            (
                "title = 't'\n[[step]]\nname = 'g'\nrun = 'taut generate --json'\njson = true\n[[claim]]\ntext = 't'\n\
                 value = \"median('g.lots') / 2\"\nholds = 'value > 1'",
                "e.toml:8:9: ",
                "no number `lots`",
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
}
