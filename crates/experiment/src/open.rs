//! Finds an experiment by its name: a file, a results folder, a published archive, or a reference experiment.

use crate::attachments::Attachments;
use crate::changes::Changes;
use crate::duration::now;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, State};
use std::io::Write;
use std::path::{Path, PathBuf};
use taut_results::Completion;
use taut_settings::suggestion;

macro_rules! built_in {
    ($($name:literal,)*) => {
        &[$(($name, include_str!(concat!("../../../experiments/", $name, ".toml")))),*]
    };
}

/// The reference experiments that are built into this program: names and file contents.
const REFERENCE: &[(&str, &str)] = built_in![
    "demo",
    "stylianopoulos-fig2",
    "stylianopoulos-fig3",
    "stylianopoulos-fig4",
    "gallenmueller-fig3-1",
    "gallenmueller-fig3-3",
    "gallenmueller-fig3-5",
    "gallenmueller-fig3-5b",
    "flower-amplification",
    "flower-qos",
    "flower-insertion",
    "flower-meters",
    "gallenmueller-fig3-6",
    "gallenmueller-table3-2",
    "gallenmueller-table3-4",
    "gallenmueller-fig5-2",
    "gallenmueller-fig5-3-caches",
    "gallenmueller-fig5-4-batches",
    "gallenmueller-fig5-5-latency-by-batch",
    "gallenmueller-fig5-6",
    "gallenmueller-chain-costs",
    "gallenmueller-fig5-7",
    "gallenmueller-fig5-8",
    "gallenmueller-fig5-9",
    "gallenmueller-fig5-13",
    "gallenmueller-fig5-14",
    "gallenmueller-table5-1",
    "router-ttl-storm",
    "gallenmueller-table5-2",
    "gallenmueller-table5-3",
    "gallenmueller-table5-3-inspection",
    "gallenmueller-table5-4",
    "gallenmueller-table5-5",
    "gallenmueller-overload",
    "gallenmueller-cross-talk",
    "gallenmueller-table6-3",
    "gallenmueller-table6-4",
    "gallenmueller-table6-radio",
    "gallenmueller-fig6-7",
    "gallenmueller-fig6-9",
    "gallenmueller-fig6-10",
    "gallenmueller-fig6-13",
    "gallenmueller-fig6-14",
    "gallenmueller-fig6-14-real-time",
    "gallenmueller-fig6-15",
    "gallenmueller-fig6-16",
    "gallenmueller-fig6-17",
    "gallenmueller-prrt-sweep",
    "feedback-or-medium",
    "coding-on-off",
    "transport-comparison",
    "robot-over-radio",
    "xiang-fig1",
    "gain-scheduling",
    "compensation",
    "challenge",
    "energy-of-waiting",
    "lange-fig3",
    "lange-fig4",
    "lange-fig5",
    "lange-fig6",
    "lange-fig7",
    "lange-control-load",
    "scale",
    "queueing-check",
    "gateway-and-open-vswitch",
    "gateway-in-a-machine",
    "gateways-together",
    "xiang-fig11",
    "xiang-fig12a",
    "xiang-fig12b",
    "xiang-interval",
    "xiang-mappings",
    "xiang-replicas",
    "xiang-table1",
    "xiang-fig13",
    "chain-payload",
    "chain-full-rate",
    "chain-length",
    "control-over-chain",
    "control-over-gateway",
    "control-virtual-time",
    "notices-choose-control",
    "swing-up",
    "combined-systems",
    "compact-or-distributed",
];

/// Former names of reference experiments: the former name, the current name, and the reason for the change. A former
/// name is never used for another experiment.
pub const FORMER: &[(&str, &str, &str)] = &[
    (
        "gallenmueller-fig5-3",
        "gallenmueller-fig5-4-batches",
        "throughput over the batch size is the dissertation's Figure 5.4",
    ),
    (
        "gallenmueller-fig5-4",
        "gallenmueller-fig5-5-latency-by-batch",
        "latency over the batch size is the dissertation's Figure 5.5",
    ),
    (
        "gallenmueller-fig5-5",
        "gallenmueller-fig5-3-caches",
        "the cost of memory accesses over the size of the data is the dissertation's Figure 5.3",
    ),
];

/// Returns the current name of the reference experiment that was formerly called `what`, and a note for the user.
/// Returns `None` if `what` is not a former name, or if a file or folder has this name: files and folders take
/// precedence, as in [`open`].
pub fn renamed(what: &str) -> Option<(&'static str, String)> {
    if Path::new(what).exists() {
        return None;
    }
    let (then, now, why) = FORMER.iter().find(|(then, ..)| *then == what)?;
    Some((now, format!("{then} was renamed to {now}: {why}")))
}

/// Finds an experiment: `what` is a file, a results folder, or the name of a reference experiment.
///
/// # Errors
/// There is no experiment of this name, or its file has an error.
pub fn open(what: &str, changes: &Changes) -> Result<Experiment, ExperimentError> {
    let path = Path::new(what);
    if path.is_dir() {
        return Experiment::read_in(path, changes);
    }
    if path.is_file() {
        return Experiment::read(path, changes);
    }
    open_reference(what, changes)
}

/// Returns the names of the reference experiments.
pub fn reference() -> impl Iterator<Item = &'static str> {
    REFERENCE.iter().map(|(name, _)| *name)
}

/// Opens a reference experiment with the files that it names; all of them are built into this program.
///
/// # Errors
/// There is no reference experiment of this name.
pub fn open_reference(what: &str, changes: &Changes) -> Result<Experiment, ExperimentError> {
    if let Some((name, text)) = REFERENCE.iter().find(|(name, _)| *name == what) {
        return Experiment::parse_with(
            text,
            &format!("{name}.toml"),
            Attachments::Program,
            changes,
        );
    }
    Err(ExperimentError::Unknown(format!(
        "no file {what}, and no reference experiment of this name{}; {}",
        suggestion(what, reference()),
        if what.ends_with(".toml") {
            "taut experiment new writes a first one"
        } else {
            "taut experiment list --reference lists those"
        }
    )))
}

/// Returns the name of an experiment: the name of its file without the extension.
pub fn name_of(what: &str) -> String {
    let stem = Path::new(what)
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let name: String = stem
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' || c == '_' {
                c
            } else {
                '-'
            }
        })
        .collect();
    if name.is_empty() {
        "experiment".to_owned()
    } else {
        name
    }
}

/// Returns the path of a results folder for the experiment `name` in the folder `results`; the path does not exist yet.
pub fn fresh_folder(results: &Path, name: &str) -> PathBuf {
    (1_u32..)
        .map(|number| results.join(format!("{name}-{number}")))
        .find(|path| !path.exists())
        .unwrap_or_default()
}

impl Folder {
    /// Makes the results folder of a new experiment, and copies the experiment file and the files that it names into
    /// it.
    ///
    /// # Errors
    /// The folder is in use, or cannot be written.
    pub fn begin(
        dir: &Path,
        experiment: &Experiment,
        name: &str,
        command_line: &str,
        changes: &Changes,
    ) -> Result<Self, ExperimentError> {
        let secrets = experiment.secrets_to_run()?;
        let folder = Self::create(dir)?;
        taut_results::write_whole(&folder.experiment_file(), experiment.source.text.as_bytes())?;
        for name in experiment.named_files()? {
            let text = experiment.attachments.read(name.as_str())?;
            name.create(dir)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(ExperimentError::io(name.in_folder(dir)))?;
        }
        folder.write_state(&State {
            schema: State::SCHEMA,
            title: experiment.definition.title.clone(),
            name: name.to_owned(),
            taut_version: env!("CARGO_PKG_VERSION").to_owned(),
            taut_commit: None,
            started: now(),
            ended: None,
            command_line: secrets.text(command_line),
            completion: Completion::Running,
            fingerprint: experiment.fingerprint(),
            planned: experiment.plan().len(),
            done: 0,
            failed: 0,
            notes: Vec::new(),
            replicates: None,
            changes: changes.clone(),
            published: None,
        })?;
        Ok(folder)
    }

    /// Records the commit of the sources of this program; a text that is no commit is ignored.
    ///
    /// # Errors
    /// `state.json` cannot be read or written.
    pub fn record_commit(&self, commit: &str) -> Result<(), ExperimentError> {
        if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_hexdigit()) {
            return Ok(());
        }
        self.write_state(&State {
            taut_commit: Some(commit.to_owned()),
            ..self.state()?
        })
    }
}

impl Folder {
    /// Returns the experiment in the folder, with the changes that were requested when it began.
    ///
    /// # Errors
    /// The experiment file or `state.json` is damaged.
    pub fn experiment(&self) -> Result<Experiment, ExperimentError> {
        Experiment::read_in(self.path(), &self.state()?.changes)
    }
}

/// Returns the JSON schema of experiment files.
pub fn schema() -> String {
    let schema = schemars::schema_for!(crate::definition::Definition);
    serde_json::to_string_pretty(&schema).unwrap_or_default()
}

/// Template of an experiment file.
pub const TEMPLATE: &str = include_str!("template.toml");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_reference_experiment_is_listed_and_can_be_planned() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
            .map(|path| name_of(&path.display().to_string()))
            .collect();
        files.sort();
        let mut listed: Vec<&str> = REFERENCE.iter().map(|(name, _)| *name).collect();
        listed.sort_unstable();
        assert_eq!(files, listed);
        for (name, _) in REFERENCE {
            let experiment = open(name, &Changes::default()).unwrap();
            assert!(
                !experiment.plan().is_empty() && !experiment.definition.claim.is_empty(),
                "{name}"
            );
        }
    }

    /// Every claim is either based on a published figure with a known source, or marked as our own.
    #[test]
    fn every_reference_claim_cites_a_source_or_is_our_own() {
        let known: Vec<&str> = include_str!("../../../experiments/published/sources.txt")
            .lines()
            .filter(|line| !line.starts_with('#'))
            .collect();
        let mut used = std::collections::BTreeSet::new();
        let points = include_str!("../../../experiments/published/points.csv");
        let mut drawn = 0;
        for (name, _) in REFERENCE {
            let experiment = open(name, &Changes::default()).unwrap();
            for figure in &experiment.definition.figure {
                for published in &figure.published {
                    let source = published.source.clone();
                    assert!(
                        known.contains(&&*source),
                        "{name}: {source}: not in sources.txt"
                    );
                    used.insert(source);
                    for (x, y) in &published.points {
                        let point = format!(",{x},{y},");
                        let of_figure = format!("{name},{},", figure.name);
                        let is_it =
                            |line: &&str| line.starts_with(&of_figure) && line.contains(&point);
                        assert!(
                            points.lines().any(|line| is_it(&line)),
                            "{of_figure}{point}: not in points.csv"
                        );
                        drawn += 1;
                    }
                }
            }
            for claim in &experiment.definition.claim {
                match claim.figure() {
                    Some(figure) => {
                        let source = figure.source.clone();
                        assert!(
                            known.contains(&&*source),
                            "{name}: {source}: not in sources.txt"
                        );
                        used.insert(source);
                    }
                    None => assert!(
                        claim.ours,
                        "{name}: {}: wants published or ours",
                        claim.text
                    ),
                }
            }
        }
        let unused: Vec<_> = known.iter().filter(|it| !used.contains(**it)).collect();
        assert!(unused.is_empty(), "sources.txt: nobody names {unused:?}");
        // The file also has two heading lines.
        assert_eq!(points.lines().count(), drawn + 2, "points.csv has others");
    }

    #[test]
    fn the_experiment_template_parses_and_the_schema_knows_the_plan() {
        Experiment::parse(TEMPLATE, "new.toml", Path::new("."), &Changes::default()).unwrap();
        let schema: serde_json::Value = serde_json::from_str(&schema()).unwrap();
        assert!(schema["properties"]["plan"].is_object());
        assert_eq!(schema["additionalProperties"], false);
    }

    #[test]
    fn shared_files_of_reference_experiments_are_copied_to_the_results() {
        let parent = tempfile::tempdir().unwrap();
        let changes = Changes::default();
        for name in ["xiang-fig12a", "xiang-fig12b", "xiang-table1"] {
            let experiment = open(name, &changes).unwrap();
            let dir = parent.path().join(name);
            let folder = Folder::begin(&dir, &experiment, name, "taut", &changes).unwrap();
            folder.record_commit("unknown: not built").unwrap();
            assert_eq!(folder.state().unwrap().taut_commit, None);
            folder.record_commit("0123abcd").unwrap();
            let commit = folder.state().unwrap().taut_commit;
            assert_eq!(commit.as_deref(), Some("0123abcd"));
            // The experiment is read from the folder alone, as from a published archive.
            let again = folder.experiment().unwrap();
            assert!(matches!(again.attachments, Attachments::Folder(_)));
            assert!(dir.join("centralised.sh").is_file());
            assert_eq!(again.fingerprint(), experiment.fingerprint());
        }
    }

    #[test]
    fn each_former_experiment_name_resolves_to_the_renamed_experiment() {
        for (then, now, why) in FORMER {
            assert!(REFERENCE.iter().all(|(name, _)| name != then), "{then}");
            assert!(REFERENCE.iter().any(|(name, _)| name == now), "{now}");
            let (name, line) = renamed(then).unwrap();
            assert_eq!(name, *now);
            assert!(line.contains(then) && line.contains(now) && line.contains(why));
        }
        // Each pair is a former name, and the title that the experiment with that name had before the rename.
        for (then, title) in [
            ("gallenmueller-fig5-3", "Throughput over the batch size"),
            (
                "gallenmueller-fig5-4",
                "Latency over the batch size, just below saturation",
            ),
            (
                "gallenmueller-fig5-5",
                "What a packet's memory accesses cost over the size of the data",
            ),
        ] {
            let now = renamed(then).unwrap().0;
            let experiment = open(now, &Changes::default()).unwrap();
            assert!(experiment.title().starts_with(title), "{then}");
        }
        assert!(renamed("gallenmueller-fig5-2").is_none());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(renamed(&file.path().display().to_string()).is_none());
    }

    #[test]
    fn a_misspelled_experiment_name_gets_a_suggestion() {
        let message = open("stylianopolos-fig2", &Changes::default())
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("did you mean `stylianopoulos-fig2`?"),
            "{message}"
        );
    }
}
