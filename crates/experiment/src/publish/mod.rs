//! Publication of results: a folder and its archive with all results, a website that is displayed without a network,
//! and all files needed to run the experiment again. The unpacked archive is a results folder like any other.

pub(crate) mod archive;
pub mod deposit;
mod metadata;
mod pseudonyms;
mod site;
pub(crate) mod sums;

pub use archive::{unpack, write_results};

use crate::agent::checksum;
use crate::copying::copy;
use crate::duration::now;
use crate::error::ExperimentError;
use crate::evaluate::evaluation::Evaluation;
use crate::experiment::Experiment;
use crate::folder::{
    EVALUATION, Folder, IndexedRun, PUBLISHED, Publication, RunRecord, State, run_folder,
};
use crate::node::address::NodeAddress;
use crate::secrets::Secrets;
use deposit::Author;
use pseudonyms::Pseudonyms;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use sums::write_sums;
use taut_results::{Completion, InsidePath, files_below, is_only_numbers, write_json, write_whole};

/// Placeholder in the template for the purpose of an experiment.
const TEMPLATE_ABOUT: &str = "What this experiment is for, and what its results are held against.";

/// Maximum length of a line in which names are replaced, bytes. A file with a longer line does not count as text.
const LONGEST_LINE: u64 = 64 << 20;

/// Options of a publication.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Path of the published folder; its archive is next to it.
    pub folder: PathBuf,
    /// True to publish even if runs are missing.
    pub partial: bool,
    /// True to replace names of machines and people, and addresses, by pseudonyms.
    pub pseudonyms: bool,
    /// True to include files that are not text in a publication with pseudonyms, although nothing is replaced in them.
    pub keep_captures: bool,
    /// Licence under which others may use the results: a name or an address.
    pub license: Option<String>,
    /// Authors of the results.
    pub authors: Vec<Author>,
}

/// Result of a publication.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Published {
    /// Path of the published folder.
    pub folder: PathBuf,
    /// Path of the archive.
    pub archive: PathBuf,
    /// Number of published runs.
    pub runs: usize,
    /// Descriptions of the replaced names and addresses.
    pub replaced: Vec<String>,
    /// Names of the files that were not published.
    pub left_out: Vec<String>,
    /// Notes for the user who publishes.
    pub notes: Vec<String>,
}

/// Publishes the results in `dir`.
///
/// # Errors
/// The results are damaged, unfinished, or contain a secret; or the publication cannot be written.
pub fn publish(dir: &Path, options: &Options) -> Result<Published, ExperimentError> {
    let folder = Folder::open(dir)?;
    let state = folder.state()?;
    let runs = whole_runs(&folder)?;
    check_extent(dir, &state, runs.len(), options.partial)?;
    let archive = archive_of(&options.folder);
    for path in [&options.folder, &archive] {
        if path.exists() {
            return Err(ExperimentError::results(
                path,
                "it exists already: choose another --out, or remove it",
            ));
        }
    }
    let experiment = folder.experiment()?;
    let staging = Staging::make(&options.folder)?;
    let mut work = Work {
        from: &folder,
        to: staging.0.clone(),
        pseudonyms: if options.pseudonyms {
            Some(pseudonyms_for(&folder, &experiment)?)
        } else {
            None
        },
        keep_captures: options.keep_captures,
        left_out: Vec::new(),
    };
    work.copy(&experiment, &runs, state, options)?;
    let secrets = experiment.secrets()?;
    let published = Folder::open(&staging.0)?;
    let experiment = published.experiment()?;
    let state = evaluate(&published, &experiment, options)?;
    check_secrets(dir, &staging.0, &secrets)?;
    write_sums(&staging.0)?;
    fs::rename(&staging.0, &options.folder).map_err(ExperimentError::io(&options.folder))?;
    archive::pack(&options.folder, &archive, ended_s(&state))?;
    Ok(Published {
        folder: options.folder.clone(),
        archive,
        runs: runs.len(),
        replaced: work
            .pseudonyms
            .as_ref()
            .map(Pseudonyms::replaced)
            .unwrap_or_default(),
        notes: notes(
            &secrets,
            &experiment,
            work.pseudonyms.as_ref(),
            options.license.is_some(),
        ),
        left_out: work.left_out,
    })
}

/// Refuses to publish results without a complete run, and results of an unfinished experiment unless a partial
/// publication is requested.
fn check_extent(
    dir: &Path,
    state: &State,
    runs: usize,
    partial: bool,
) -> Result<(), ExperimentError> {
    if runs == 0 {
        return Err(ExperimentError::results(
            dir,
            "no run is complete: there is nothing to publish",
        ));
    }
    if state.completion != Completion::Finished && !partial {
        return Err(ExperimentError::results(
            dir,
            format!(
                "{runs} of {} runs are complete: make the others with `taut experiment resume`, or publish these with --partial",
                state.planned
            ),
        ));
    }
    Ok(())
}

/// Evaluates the published results, and writes their report, website and metadata. Returns the state of the experiment.
fn evaluate(
    published: &Folder,
    experiment: &Experiment,
    options: &Options,
) -> Result<State, ExperimentError> {
    let mut state = published.state()?;
    // Names in the file may have been replaced, which changes the fingerprint.
    state.fingerprint = experiment.fingerprint();
    published.write_state(&state)?;
    let evaluation = Evaluation::of(experiment, published)?;
    evaluation.write(published)?;
    let name = options
        .folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    site::write(experiment, published, &evaluation, &name)?;
    metadata::write(published, &state, &name, experiment, options)?;
    Ok(state)
}

/// Refuses to publish files that contain the value of a secret; `dir` is the folder of the original results.
fn check_secrets(dir: &Path, staging: &Path, secrets: &Secrets) -> Result<(), ExperimentError> {
    for file in files_below(staging).map_err(ExperimentError::io(staging))? {
        if secrets.are_in(&staging.join(&file))? {
            return Err(ExperimentError::results(
                dir.join(file),
                "the value of a secret is in this file: nothing is published; remove it and run again",
            ));
        }
    }
    Ok(())
}

/// Returns the time at which an experiment ended, s since 1970; 0 if unknown.
fn ended_s(state: &State) -> u64 {
    state
        .ended
        .as_deref()
        .and_then(taut_results::moment)
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .map_or(0, |time| time.as_secs())
}

/// Returns notes for the user who publishes.
fn notes(
    secrets: &Secrets,
    experiment: &Experiment,
    pseudonyms: Option<&Pseudonyms>,
    has_license: bool,
) -> Vec<String> {
    let mut notes: Vec<String> = secrets
        .unset
        .iter()
        .map(|name| format!("${name} is not set here: it was not looked for; it was taken out when the runs were made"))
        .collect();
    let kept = pseudonyms.into_iter().flat_map(|p| &p.kept);
    if experiment.definition.about.contains(TEMPLATE_ABOUT) {
        notes.push("`about` is still what a new file says: write there what the experiment is for, and publish again".to_owned());
    }
    if !has_license {
        notes.push(
            "these results have no licence, so others may not reuse them: name one, such as --license CC-BY-4.0, and \
             publish again"
                .to_owned(),
        );
    }
    notes.extend(kept.map(|name| {
        format!("the name `{name}` is also a word of the experiment: it was not replaced")
    }));
    notes
}

/// Returns the path of the archive of a published folder.
fn archive_of(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(".tar.gz");
    folder.with_file_name(name)
}

/// Returns the complete runs, after a comparison of their files with the checksums.
fn whole_runs(folder: &Folder) -> Result<Vec<IndexedRun>, ExperimentError> {
    let runs = folder.index()?;
    let mut damaged = Vec::new();
    for run in &runs {
        damaged.extend(folder.damaged(run)?);
    }
    match damaged.first() {
        None => Ok(runs),
        Some(first) => Err(ExperimentError::results(
            folder.path(),
            format!(
                "{} files have changed; remove the folders of their runs and make those again with `taut experiment \
                resume`: {first}",
                damaged.len()
            ),
        )),
    }
}

/// The temporary folder in which a publication is prepared; it is removed if the publication fails.
struct Staging(PathBuf);

impl Staging {
    fn make(folder: &Path) -> Result<Self, ExperimentError> {
        if folder.file_name().is_none() {
            return Err(ExperimentError::results(folder, "not a valid folder name"));
        }
        let mut name = folder.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let path = folder.with_file_name(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("runs")).map_err(ExperimentError::io(&path))?;
        Ok(Self(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Work<'a> {
    from: &'a Folder,
    to: PathBuf,
    pseudonyms: Option<Pseudonyms>,
    keep_captures: bool,
    left_out: Vec<String>,
}

impl Work<'_> {
    fn copy(
        &mut self,
        experiment: &Experiment,
        runs: &[IndexedRun],
        mut state: State,
        options: &Options,
    ) -> Result<(), ExperimentError> {
        let mut files = experiment.named_files()?;
        files.insert(InsidePath::new("experiment.toml")?);
        for below in ["nodes", PUBLISHED, EVALUATION] {
            files.extend(self.from.files(&InsidePath::new(below)?)?);
        }
        for file in files {
            self.copy_file(&file)?;
        }
        let mut index = Vec::new();
        for run in runs {
            let entry = self.copy_run(run)?;
            serde_json::to_writer(&mut index, &entry)
                .map_err(|e| ExperimentError::results(&self.to, e.to_string()))?;
            index.push(b'\n');
        }
        write_whole(&self.to.join("runs.jsonl"), &index)?;
        state.published = Some(Publication {
            at: now(),
            partial: state.completion != Completion::Finished,
            pseudonyms: options.pseudonyms,
        });
        let state = self.rewritten(&state)?;
        Ok(write_json(&self.to.join("state.json"), &state)?)
    }

    fn copy_run(&mut self, run: &IndexedRun) -> Result<IndexedRun, ExperimentError> {
        let record: RunRecord = self.from.run(&run.id)?;
        let mut published: RunRecord = self.rewritten(&record)?;
        published.files.clear();
        let below = run_folder(&run.id)?;
        for name in record.files.keys() {
            let file = below.join(name)?;
            if self.copy_file(&file)? {
                let path = file.in_folder(&self.to);
                let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
                published.files.insert(name.clone(), sum);
            }
        }
        let folder = below.in_folder(&self.to);
        fs::create_dir_all(&folder).map_err(ExperimentError::io(&folder))?;
        let path = folder.join("run.json");
        write_json(&path, &published)?;
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        Ok(Folder::entry(&published, sum))
    }

    /// Returns a JSON record in which names and addresses are replaced by pseudonyms.
    fn rewritten<T: Serialize + serde::de::DeserializeOwned + Clone>(
        &mut self,
        record: &T,
    ) -> Result<T, ExperimentError> {
        let Some(pseudonyms) = &mut self.pseudonyms else {
            return Ok(record.clone());
        };
        let wrong =
            |e: serde_json::Error| ExperimentError::results(self.from.path(), e.to_string());
        let text = serde_json::to_string(record).map_err(wrong)?;
        serde_json::from_str(&pseudonyms.text(&text)).map_err(wrong)
    }

    /// Copies a file of the results into the publication; returns false if the file is skipped.
    fn copy_file(&mut self, file: &InsidePath) -> Result<bool, ExperimentError> {
        let (dir, to) = (self.from.path(), &self.to);
        let (from, target) = (file.in_folder(dir), file.in_folder(to));
        let failed = || ExperimentError::io(&from);
        let open = || file.open(dir).map_err(failed());
        let create = || file.create(to).map_err(ExperimentError::io(&target));
        let shown = file.to_string();
        let as_it_is = || {
            let copied = copy(&mut open()?, &mut create()?);
            copied.map(|_| true).map_err(|e| e.of(&from, &target))
        };
        let Some(pseudonyms) = &mut self.pseudonyms else {
            return as_it_is();
        };
        if pseudonyms.text(&shown) != shown {
            self.left_out
                .push(format!("{} (its name)", pseudonyms.text(&shown)));
            return Ok(false);
        }
        if file.open(dir).and_then(is_text).map_err(failed())? {
            let mut lines = BufReader::new(open()?);
            let mut out = BufWriter::new(create()?);
            let unwritten = || ExperimentError::io(&target);
            let mut line = String::new();
            while lines.read_line(&mut line).map_err(failed())? > 0 {
                let text = pseudonyms.text(&line);
                out.write_all(text.as_bytes()).map_err(unwritten())?;
                line.clear();
            }
            return out.flush().map(|()| true).map_err(unwritten());
        }
        if self.keep_captures || file.open(dir).is_ok_and(is_only_numbers) {
            return as_it_is();
        }
        self.left_out.push(shown);
        Ok(false)
    }
}

/// Returns true if a file is text, and no line is longer than the maximum.
fn is_text(file: File) -> io::Result<bool> {
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut lines)
            .take(LONGEST_LINE + 1)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(true);
        }
        if read as u64 > LONGEST_LINE || line.contains(&0) || std::str::from_utf8(&line).is_err() {
            return Ok(false);
        }
    }
}

/// Returns pseudonyms for the machines and people that took part in the experiment.
fn pseudonyms_for(folder: &Folder, experiment: &Experiment) -> Result<Pseudonyms, ExperimentError> {
    let mut machines = BTreeSet::new();
    let mut people = BTreeSet::new();
    let here = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    machines.insert(here.trim().to_owned());
    people.extend(
        ["USER", "LOGNAME", "SUDO_USER"]
            .into_iter()
            .filter_map(|name| std::env::var(name).ok()),
    );
    for file in folder.all_facts()? {
        machines.insert(folder.facts_at(&file)?.host_name);
    }
    for role in experiment.nodes.values() {
        if let NodeAddress::Ssh(address) = &role.address {
            let destination = &address.destination;
            let (person, host) = destination.split_once('@').unwrap_or(("", destination));
            people.insert(person.to_owned());
            // Addresses are replaced separately.
            if host.parse::<std::net::IpAddr>().is_err() {
                machines.insert(host.to_owned());
            }
        }
    }
    // Host name and domain may also occur separately.
    let short: Vec<String> = machines
        .iter()
        .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
        .collect();
    machines.extend(short);
    Pseudonyms::new(&machines, &people, &words_of(experiment))
        .map_err(|reason| ExperimentError::results(folder.path(), reason))
}

/// Returns the names of variables, roles, tasks, tables and figures that the experiment uses.
fn words_of(experiment: &Experiment) -> BTreeSet<String> {
    let definition = &experiment.definition;
    let variables = experiment.variants[0].variables.keys().cloned();
    variables
        .chain(experiment.nodes.keys().cloned())
        .chain(experiment.tasks.iter().map(|task| task.name.clone()))
        .chain(definition.table.iter().map(|table| table.name.clone()))
        .chain(definition.figure.iter().map(|figure| figure.name.clone()))
        .collect()
}
