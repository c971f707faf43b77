//! Metadata of a publication: `ro-crate-metadata.json` for programs (RO-Crate 1.3) and `REPLICATE.md` for people.

use super::Options;
use crate::agent::checksum;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use serde_json::{Value, json};
use std::path::Path;
use taut_results::{files_below, write_json, write_whole};

/// Web page of taut, which RO-Crate requires of software. The project has no page yet; its packages name the same host.
const TAUT_URL: &str = "https://taut.invalid/";

/// Writes `ro-crate-metadata.json` and `REPLICATE.md`.
pub(super) fn write(
    folder: &Folder,
    state: &State,
    name: &str,
    experiment: &Experiment,
    options: &Options,
) -> Result<(), ExperimentError> {
    let dir = folder.path();
    write_whole(
        &dir.join("REPLICATE.md"),
        replicate(state, name, experiment).as_bytes(),
    )?;
    let mut parts = Vec::new();
    for file in files_below(dir).map_err(ExperimentError::io(dir))? {
        if !file.starts_with("runs") {
            parts.push(file_entity(dir, &file)?);
        }
    }
    let runs: Vec<Value> = folder
        .index()?
        .iter()
        .flat_map(|run| run_entities(dir, run))
        .collect();
    let is_run = |entity: &&Value| entity["@type"] == "Dataset";
    let folders: Vec<Value> = runs.iter().filter(is_run).cloned().collect();
    let has_part = [references(&parts), references(&folders)].concat();
    let mut root = root_entity(state, experiment, &has_part);
    let mut graph = vec![json!({
        "@id": "ro-crate-metadata.json",
        "@type": "CreativeWork",
        "conformsTo": { "@id": "https://w3id.org/ro/crate/1.3" },
        "about": { "@id": "./" },
    })];
    let licence = options.license.as_deref().map(|license| {
        let entity = license_entity(license);
        root["license"] = json!({ "@id": entity["@id"] });
        entity
    });
    let authors = (1..).zip(&options.authors);
    let authors: Vec<Value> = authors
        .map(|(number, author)| author.entity(number))
        .collect();
    if !authors.is_empty() {
        // Specification 1.3 recommends a value without a list if it is the only one.
        root["author"] = match references(&authors).as_slice() {
            [author] => author.clone(),
            all => all.into(),
        };
        root["publisher"] = json!({ "@id": authors[0]["@id"] });
    }
    graph.push(root);
    graph.extend(authors);
    graph.extend(licence);
    graph.push(json!({
        "@id": "#experiment",
        "@type": "CreateAction",
        "name": state.title,
        "startTime": state.started,
        "endTime": state.ended,
        "instrument": { "@id": "#taut" },
        "object": { "@id": "experiment.toml" },
        "result": { "@id": "./" },
    }));
    graph.push(json!({
        "@id": "#taut",
        "@type": "SoftwareApplication",
        "name": "taut",
        "version": state.taut_version,
        "softwareVersion": state.taut_version,
        "url": TAUT_URL,
    }));
    graph.extend(parts);
    graph.extend(runs);
    let document = json!({ "@context": "https://w3id.org/ro/crate/1.3/context", "@graph": graph });
    Ok(write_json(&dir.join("ro-crate-metadata.json"), &document)?)
}

/// Returns the entities of a run: its folder, and its record.
fn run_entities(dir: &Path, run: &IndexedRun) -> [Value; 2] {
    let variables: Vec<String> = run
        .variables
        .iter()
        .map(|(name, value)| format!("{name}={}", crate::variables::text_of(value)))
        .collect();
    let record = format!("runs/{}/run.json", run.id);
    let size = dir.join(&record).metadata().map_or(0, |it| it.len());
    let mut folder = json!({
        "@id": format!("runs/{}/", run.id),
        "@type": "Dataset",
        "name": format!("Run {}", run.id),
        "description": "Commands, logs, samples and checksums of one run",
        "hasPart": { "@id": record },
    });
    if !variables.is_empty() {
        folder["keywords"] = variables.join(", ").into();
    }
    let record = json!({
        "@id": record,
        "@type": "File",
        "name": "run.json",
        "description": "Commands, metrics and checksums of the run",
        "encodingFormat": "application/json",
        "contentSize": size.to_string(),
        "sha256": run.checksum,
    });
    [folder, record]
}

/// Returns a list of RO-Crate references, one to each of `entities`.
fn references(entities: &[Value]) -> Vec<Value> {
    entities
        .iter()
        .map(|entity| json!({ "@id": entity["@id"] }))
        .collect()
}

fn root_entity(state: &State, experiment: &Experiment, has_part: &[Value]) -> Value {
    let description = if experiment.definition.about.trim().is_empty() {
        state.title.clone()
    } else {
        experiment.definition.about.trim().to_owned()
    };
    let published = state
        .published
        .as_ref()
        .map_or(&state.started, |published| &published.at);
    json!({
        "@id": "./",
        "@type": "Dataset",
        "name": state.title,
        "description": description,
        "datePublished": published,
        "hasPart": has_part,
        "mentions": { "@id": "#experiment" },
    })
}

fn license_entity(license: &str) -> Value {
    let id = if license.contains("://") {
        license.to_owned()
    } else {
        format!("https://spdx.org/licenses/{license}")
    };
    json!({
        "@id": id,
        "@type": "CreativeWork",
        "name": license,
        "description": "Licence of the results",
    })
}

fn file_entity(dir: &Path, file: &Path) -> Result<Value, ExperimentError> {
    let path = dir.join(file);
    let size = path.metadata().map_err(ExperimentError::io(&path))?.len();
    let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
    let mut entity = json!({
        "@id": file.display().to_string(),
        "@type": "File",
        "name": file.file_name().unwrap_or_default().to_string_lossy(),
        "description": description_of(file),
        "contentSize": size.to_string(),
        "sha256": sum,
    });
    let format = match file.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html",
        Some("csv") => "text/csv",
        Some("json") => "application/json",
        Some("jsonl") => "application/jsonl",
        Some("svg") => "image/svg+xml",
        Some("toml") => "application/toml",
        Some("md") => "text/markdown",
        Some("parquet") => "application/vnd.apache.parquet",
        _ => return Ok(entity),
    };
    entity["encodingFormat"] = json!(format);
    Ok(entity)
}

/// Returns a description of the contents of a file that belongs to no run.
fn description_of(file: &Path) -> &'static str {
    let top = file.iter().next().and_then(|it| it.to_str());
    match top.unwrap_or_default() {
        "index.html" => "Report of the experiment",
        "setup.html" => "Commands, order and file of the experiment",
        "experiment.toml" => "The experiment, which taut runs again",
        "REPLICATE.md" => "How to run the experiment again",
        "metrics.csv" | "metrics.parquet" => "A row per run and metric",
        "runs.jsonl" => "Index of the runs",
        "state.json" => "State and title of the experiment",
        "summary.json" => "Verdicts, tables and figures",
        "nodes" => "Facts about a node",
        "tables" => "Table of the report",
        "figures" => "Figure of the report",
        "evaluation" => "Output of an evaluation step",
        top if top.starts_with("node-") => "Page of a node",
        _ => "File of the experiment",
    }
}

/// Returns the instructions for running the experiment again.
fn replicate(state: &State, name: &str, experiment: &Experiment) -> String {
    let roles = role_lines(experiment);
    let secrets: Vec<String> = experiment
        .definition
        .secrets
        .iter()
        .map(|name| {
            format!(
                "\nSet `{}` in the environment first: its value is not part of these results.\n",
                name.get_ref()
            )
        })
        .collect();
    let expected = experiment.plan().len();
    format!(
        "# Run this experiment again

{title}

1. Get taut {version}{commit}; `taut --version` shows the version and the commit of a build.
2. See what is missing on your machine:

       taut experiment check {name}.tar.gz

3. Run it ({expected} runs):

       taut experiment run {name}.tar.gz

   The folder works as well as the archive. The plan is the same, run by run (fingerprint {fingerprint}).
{secrets}
taut then compares your numbers with those published here, claim by claim, and says whether they were repeated (on the
same machines) or replicated (on others). `taut experiment compare` compares any two results.

## Nodes

{roles}

To use other machines, unpack the archive, change `at` in `experiment.toml`, run that file, and compare the results.

## What is here

- `index.html`: all of this in a browser
- `experiment.toml`: the experiment
- `metrics.csv`, `metrics.parquet`: a row per run and metric
- `runs/`: each run with commands, logs, samples
- `SHA256SUMS`: check all files with `sha256sum -c SHA256SUMS`
",
        title = state.title,
        version = state.taut_version,
        commit = of_commit(state.taut_commit.as_deref()),
        fingerprint = state.fingerprint,
        secrets = secrets.concat(),
        roles = roles.join("\n"),
    )
}

/// Returns text with the commit, to be appended to a version; empty if the commit is unknown.
fn of_commit(commit: Option<&str>) -> String {
    commit.map_or_else(String::new, |commit| {
        format!(", built from commit {commit}")
    })
}

/// Returns a line of Markdown for each role, with the address of its node.
fn role_lines(experiment: &Experiment) -> Vec<String> {
    experiment
        .nodes
        .iter()
        .map(|(role, node)| {
            let at = node
                .definition
                .at
                .as_ref()
                .map_or("local", |at| at.get_ref());
            format!("- `{role}`: `{at}`")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_metadata_name_the_commit_if_known() {
        assert_eq!(of_commit(Some("0123abcd")), ", built from commit 0123abcd");
        assert_eq!(of_commit(None), "");
    }
}
