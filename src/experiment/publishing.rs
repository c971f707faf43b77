//! `taut experiment publish`: writes a folder and an archive for others, and deposits the archive.

use crate::exit::Failure;
use crate::terminal::print;
use crate::terminal::quantity;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taut_experiment::folder::Folder;
use taut_experiment::publish::deposit::{
    Author, DepositError, DepositOptions, Deposited, Destination, Observer, ServiceUrl, Token,
    deposit,
};
use taut_experiment::publish::{Options, Published, publish};

/// Environment variable with the user's token for Zenodo.
const ZENODO_TOKEN: &str = "ZENODO_TOKEN";
const GITHUB_TOKEN: &str = "GITHUB_TOKEN";
/// Environment variable with the address of GitHub's API, which GitHub's own runners set.
const GITHUB_API: &str = "GITHUB_API_URL";

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut experiment publish results/latency-1 --out latency --license CC-BY-4.0 --author 'Lovelace, Ada'
  taut experiment publish results/latency-1 --pseudonyms
  taut experiment publish results/latency-1 --partial
  taut experiment publish latency --to zenodo-sandbox          a draft with its reserved DOI
  taut experiment publish latency --to zenodo --final          which cannot be undone
  taut experiment publish latency --to github:OWNER/NAME --tag results-1

The archive is next to the folder; `taut experiment run latency.tar.gz` runs it again. The token for --to is in a file
(--token-file), or in the variable ZENODO_TOKEN or GITHUB_TOKEN. An interrupted deposit is continued by the same
command.")]
pub struct Arguments {
    /// Results folder; with --to also a folder that is already published
    folder: PathBuf,
    /// Folder to write, with its archive next to it (default: the experiment's name)
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Publish although runs are missing; every page says so
    #[arg(long)]
    partial: bool,
    /// Replace names of machines and people, and IP and MAC addresses
    #[arg(long)]
    pseudonyms: bool,
    /// With --pseudonyms: keep binary files, in which nothing is replaced
    #[arg(long, requires = "pseudonyms")]
    keep_captures: bool,
    /// Licence of the results: an SPDX name such as CC-BY-4.0, or an address
    #[arg(long, value_parser = license)]
    license: Option<String>,
    /// Author: 'Family, Given', 'Family, Given (ORCID)' or an organisation; may be repeated
    #[arg(long, value_name = "NAME")]
    author: Vec<String>,
    /// Deposit the archive: zenodo, zenodo-sandbox, github:OWNER/NAME, or the address of an InvenioRDM
    #[arg(long, value_name = "SERVICE")]
    to: Option<Destination>,
    /// File with your token for the service (default: the variable ZENODO_TOKEN or GITHUB_TOKEN)
    #[arg(long, value_name = "FILE", requires = "to")]
    token_file: Option<PathBuf>,
    /// Tag of the release on GitHub (default: the name of the published folder)
    #[arg(long, value_name = "TAG", requires = "to")]
    tag: Option<String>,
    /// Publish the deposit for good, instead of leaving a draft
    #[arg(long = "final", requires = "to")]
    is_final: bool,
    /// Print what was published as JSON
    #[arg(long)]
    json: bool,
}

/// The result of one call of `taut experiment publish`.
#[derive(Serialize, JsonSchema)]
pub struct PublishReport {
    /// The folder and the archive; absent if an earlier call wrote them.
    #[serde(flatten)]
    published: Option<Published>,
    /// The deposit at the service of `--to`; absent if nothing was deposited.
    #[serde(skip_serializing_if = "Option::is_none")]
    deposit: Option<Deposited>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    // The token is read first, so that a missing one costs no time.
    let options = arguments
        .to
        .as_ref()
        .map(|to| deposit_options(arguments, to));
    let options = options.transpose()?;
    let (folder, published) = folder_and_archive(arguments)?;
    if let Some(published) = published.as_ref().filter(|_| !arguments.json) {
        show(published);
    }
    let deposited = match &options {
        Some(options) => Some(deposit(&folder, options, &mut Terminal)?),
        None => None,
    };
    if arguments.json {
        print::json(&PublishReport {
            published,
            deposit: deposited,
        });
    } else if let Some(deposited) = deposited {
        show_deposit(&deposited);
    }
    Ok(())
}

/// Returns the published folder, and what was written; nothing is written if the folder is published already.
fn folder_and_archive(arguments: &Arguments) -> Result<(PathBuf, Option<Published>), Failure> {
    let state = Folder::open(&arguments.folder)?.state()?;
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None => Path::new(&taut_experiment::name_of(&state.name)).to_owned(),
    };
    let authors = arguments.author.iter().map(|it| it.parse::<Author>());
    let options = Options {
        folder: out.clone(),
        partial: arguments.partial,
        pseudonyms: arguments.pseudonyms,
        keep_captures: arguments.keep_captures,
        license: arguments.license.clone(),
        authors: authors.collect::<Result<_, DepositError>>()?,
    };
    if arguments.to.is_some() {
        if state.published.is_some() && arguments.out.is_none() {
            return Ok((arguments.folder.clone(), None));
        }
        // The same command again continues the deposit of what it wrote before.
        let earlier = Folder::open(&out).and_then(|folder| folder.state());
        let is_same = |it: &taut_experiment::folder::State| {
            it.published.is_some() && it.started == state.started && it.done == state.done
        };
        if earlier.as_ref().is_ok_and(is_same) {
            print::note(format!(
                "{} is published already: it is deposited",
                out.display()
            ));
            return Ok((out, None));
        }
    }
    let published = publish(&arguments.folder, &options)?;
    Ok((out, Some(published)))
}

fn show(published: &Published) {
    for replaced in &published.replaced {
        print::line(format!("replaced: {replaced}"));
    }
    for file in &published.left_out {
        print::line(format!("skipped: {file}"));
    }
    for note in &published.notes {
        print::line(format!("note: {note}"));
    }
    let archive = published.archive.display();
    print::line(format!(
        "{}; website: {}; archive: {archive}",
        quantity::counted(published.runs, "run"),
        published.folder.join("index.html").display()
    ));
    print::line(format!("others run it with: taut experiment run {archive}"));
}

fn show_deposit(deposited: &Deposited) {
    let is_draft = !deposited.published;
    print::line(format!(
        "{}: {}",
        if is_draft { "draft" } else { "published" },
        deposited.page
    ));
    if let Some(doi) = &deposited.doi {
        let state = if is_draft { " (reserved)" } else { "" };
        print::line(format!("DOI: {doi}{state}"));
    }
    if is_draft {
        print::line("look at it there, and publish it there or by the same command with --final");
    }
}

fn deposit_options(arguments: &Arguments, to: &Destination) -> Result<DepositOptions, Failure> {
    let is_github = matches!(to, Destination::GitHub(_));
    if arguments.tag.is_some() && !is_github {
        return Err(Failure::Input(
            "--tag is for --to github:OWNER/NAME".to_owned(),
        ));
    }
    let variable = if is_github {
        GITHUB_TOKEN
    } else {
        ZENODO_TOKEN
    };
    let token = match (&arguments.token_file, std::env::var(variable)) {
        (Some(file), _) => std::fs::read_to_string(file)
            .map_err(|e| Failure::of_file(&e, format!("{}: {e}", file.display())))?,
        (None, Ok(token)) => token,
        (None, Err(_)) => {
            return Err(Failure::Input(format!(
                "no token for --to: put it into a file and say --token-file FILE, or set {variable}"
            )));
        }
    };
    let api = std::env::var(GITHUB_API).ok();
    let github_api: ServiceUrl = api.as_deref().unwrap_or("https://api.github.com").parse()?;
    Ok(DepositOptions {
        destination: to.clone(),
        token: token.parse::<Token>()?,
        github_api,
        tag: arguments.tag.clone(),
        is_final: arguments.is_final,
    })
}

/// Shows messages about a deposit on the terminal, and waits in real time.
struct Terminal;

impl Observer for Terminal {
    fn note(&mut self, text: &str) {
        print::note(text);
    }

    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Parses a licence: its SPDX identifier, in any case, or a URL.
fn license(text: &str) -> Result<String, String> {
    if text.starts_with("https://") || text.starts_with("http://") {
        return Ok(text.to_owned());
    }
    let known = spdx::identifiers::LICENSES
        .iter()
        .find(|license| license.name.eq_ignore_ascii_case(text));
    known.map(|license| license.name.to_owned()).ok_or_else(|| {
        "expected an identifier from https://spdx.org/licenses such as CC-BY-4.0, or an address that begins with \
        https://".to_owned()
    })
}

impl From<DepositError> for Failure {
    fn from(e: DepositError) -> Self {
        let text = e.to_string();
        match e {
            DepositError::Results(e) => e.into(),
            DepositError::Io { ref source, .. } => Self::of_file(source, text),
            e if e.is_missing() => Self::Missing(text),
            _ => Self::Input(text),
        }
    }
}
