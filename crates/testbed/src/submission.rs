//! Submitted experiments: the file of an experiment is read and checked before the experiment waits, and its roles get
//! nodes of the laboratory.

use crate::api::SubmitRequest;
use crate::error::LabError;
use crate::file::{LOCAL, LabFile, SLURM};
use crate::process::write_input;
use crate::store::Changed;
use crate::time::Seconds;
use std::collections::{BTreeMap, BTreeSet};
use taut_experiment::{Changes, Experiment};
use taut_settings::suggestion;

/// Maximum number of files that an experiment file names.
const MOST_FILES: usize = 100;
/// Maximum length of an experiment's name, bytes.
const LONGEST_NAME: usize = 60;

/// A checked experiment, which can be put into the queue.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) title: String,
    /// Names of the nodes that the experiment uses.
    pub(crate) nodes: BTreeSet<String>,
    /// Maximum duration of the experiment, s.
    pub(crate) longest: Seconds,
    /// The experiment file, with the locations of the nodes, and the files that it names.
    pub(crate) files: BTreeMap<String, String>,
}

impl From<&SubmitRequest> for Changed {
    fn from(wish: &SubmitRequest) -> Self {
        Self {
            set: wish.set.clone(),
            repetitions: wish.repetitions,
        }
    }
}

/// Reads and checks a submitted experiment.
pub(crate) fn check(wish: &SubmitRequest, lab: &LabFile) -> Result<Submission, LabError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let begins = wish.name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins || wish.name.len() > LONGEST_NAME || !wish.name.chars().all(is_plain) {
        return Err(LabError::Request(format!(
            "name {:?}: expected at most {LONGEST_NAME} letters, digits, `-` and `_`",
            wish.name
        )));
    }
    let own = format!("{}.toml", wish.name);
    if wish.files.len() > MOST_FILES || wish.files.contains_key(&own) {
        return Err(LabError::Request(format!(
            "files: at most {MOST_FILES}, and none called {own}"
        )));
    }
    // A text that begins with a dash would be read as an option.
    if wish
        .set
        .iter()
        .any(|(name, _)| name.is_empty() || name.contains('='))
    {
        let reason = "set: expected names of variables, and values".to_owned();
        return Err(LabError::Request(reason));
    }
    let folder = tempfile::tempdir().map_err(LabError::io(std::env::temp_dir()))?;
    let folder = folder.path().join("input");
    write_input(&folder, &wish.files)?;
    let changes = Changes {
        set: wish.set.clone(),
        repetitions: wish.repetitions,
        ..Changes::default()
    };
    let read = |text: &str| {
        Experiment::parse(text, &own, &folder, &changes)
            .map_err(|e| LabError::Request(e.to_string()))
    };
    let text = placed(&read(&wish.text)?, &wish.nodes, lab)?;
    let experiment = read(&text)?;
    let nodes = nodes_of(&experiment, lab)?;
    let mut files = wish.files.clone();
    files.insert(own.clone(), text);
    Ok(Submission {
        title: experiment.title().to_owned(),
        nodes,
        longest: experiment.longest().as_secs().max(1),
        files,
    })
}

/// Returns the experiment file in which the roles have the locations of the nodes that the user has chosen for them.
fn placed(
    experiment: &Experiment,
    chosen: &BTreeMap<String, String>,
    lab: &LabFile,
) -> Result<String, LabError> {
    let mut changes = Vec::new();
    for (role, node) in chosen {
        let roles = &experiment.definition().nodes;
        let known = || suggestion(role, roles.keys().map(String::as_str));
        let missing = || LabError::Request(format!("the file has no node `{role}`{}", known()));
        let at = roles.get(role).ok_or_else(missing)?.at.as_ref();
        let at = at.ok_or_else(|| {
            LabError::Request(format!(
                "node `{role}` has no location in the file that could be replaced: give it `at = \"local\"`"
            ))
        })?;
        let mut nodes = lab.nodes.iter();
        let found = nodes.find(|(name, _)| name.as_str() == node);
        let (_, settings) = found.ok_or_else(|| {
            let near = suggestion(node, lab.nodes.keys().map(|it| it.as_str()));
            LabError::Missing(format!("no node `{node}` in this laboratory{near}"))
        })?;
        let location = toml::Value::String(settings.at.as_str().to_owned());
        changes.push((at.span(), location.to_string()));
    }
    let mut text = experiment.text().to_owned();
    changes.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    for (span, location) in changes {
        text.replace_range(span, &location);
    }
    Ok(text)
}

/// Returns the names of the nodes at the locations of the experiment.
fn nodes_of(experiment: &Experiment, lab: &LabFile) -> Result<BTreeSet<String>, LabError> {
    let mut nodes = BTreeSet::new();
    for (role, at) in experiment.locations() {
        if lab.slurm.is_some() {
            if at != SLURM {
                return Err(LabError::Request(format!(
                    "node `{role}` is at {at}; this laboratory is a cluster: give it `at = \"slurm\"`"
                )));
            }
            continue;
        }
        let mut known = lab.nodes.iter();
        match known.find(|(_, node)| node.at.as_str() == at) {
            Some((name, _)) => nodes.insert(name.to_string()),
            None => {
                let names: Vec<&str> = lab.nodes.keys().map(|it| it.as_str()).collect();
                let here = match at {
                    LOCAL => "runs on the machine that starts it, which is no node".to_owned(),
                    at => format!("is at {at}, which is no node"),
                };
                return Err(LabError::Request(format!(
                    "node `{role}` {here} of this laboratory: choose one for it (nodes: {})",
                    names.join(", ")
                )));
            }
        };
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EXPERIMENT: &str = "title = \"Two\"\n[nodes.gen]\nat = \"local\"\n[nodes.dut]\nat = \"ssh://root@old\"\n\
        [plan]\nrepetitions = 2\nlimit = \"20s\"\n[[step]]\nnode = \"gen\"\nrun = \"true\"\n";

    fn lab() -> LabFile {
        let token = "0".repeat(64);
        let text = format!(
            "folder = \"x\"\n[users.alice]\ntoken = \"{token}\"\n[nodes.here]\nat = \"local\"\n[nodes.far]\nat = \"ssh://far\"\n"
        );
        LabFile::parse(&text, "lab.toml").unwrap()
    }

    fn wish(nodes: &[(&str, &str)]) -> SubmitRequest {
        let nodes = nodes
            .iter()
            .map(|(role, node)| ((*role).to_owned(), (*node).to_owned()));
        SubmitRequest {
            name: "two".to_owned(),
            text: EXPERIMENT.to_owned(),
            nodes: nodes.collect(),
            ..SubmitRequest::default()
        }
    }

    #[test]
    fn roles_get_the_chosen_nodes_or_those_at_their_location() {
        let found = check(&wish(&[("dut", "far")]), &lab()).unwrap();
        assert_eq!(found.nodes, ["far".to_owned(), "here".to_owned()].into());
        assert_eq!((found.title.as_str(), found.longest), ("Two", 60));
        let text = &found.files["two.toml"];
        assert!(
            text.contains("at = \"ssh://far\"") && !text.contains("old"),
            "{text}"
        );
    }

    #[test]
    fn submissions_that_cannot_run_here_are_refused_with_the_reason() {
        let with = |change: fn(&mut SubmitRequest)| {
            let mut wish = wish(&[("dut", "far")]);
            change(&mut wish);
            check(&wish, &lab()).unwrap_err().to_string()
        };
        for (told, part) in [
            (
                with(|it| it.nodes.clear()),
                "`dut` is at ssh://root@old, which is no node",
            ),
            (
                with(|it| it.text = "title = 1".to_owned()),
                "two.toml:1:9: ",
            ),
            (
                with(|it| it.name = "../x".to_owned()),
                "name \"../x\": expected at most 60",
            ),
            (
                with(|it| it.set = vec![("nothing".into(), "1".into())]),
                "nothing",
            ),
            (
                with(|it| drop(it.files.insert("../x".to_owned(), String::new()))),
                "../x",
            ),
            (
                with(|it| drop(it.nodes.insert("dut".to_owned(), "fra".to_owned()))),
                "no node `fra` in this laboratory; did you mean `far`?",
            ),
            (
                with(|it| drop(it.nodes.insert("dot".to_owned(), "far".to_owned()))),
                "the file has no node `dot`; did you mean `dut`?",
            ),
        ] {
            assert!(told.contains(part) && !told.contains('\n'), "{told}");
        }
    }
}
