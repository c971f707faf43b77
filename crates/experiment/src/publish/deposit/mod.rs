//! Deposits of publications at Zenodo, another InvenioRDM, or a release of a GitHub repository. A deposit stays a draft
//! until the user asks for its publication. Calls that are interrupted at any time are continued by the next call,
//! which never makes a second deposit of the same archive.

mod author;
mod curl;
mod error;
mod github;
mod invenio;
mod service;
#[cfg(test)]
mod tests;

pub use author::Author;
pub use curl::{HttpReply, ServiceUrl, Token, parse_reply};
pub use error::DepositError;
pub use service::Observer;

use super::archive::pack;
use super::sums::check_sums;
use super::{archive_of, ended_s};
use crate::agent::checksum_of;
use crate::folder::Folder;
use md5::Md5;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use service::{ATTEMPTS, Service};
use sha2::Digest;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use taut_results::{InsidePath, hex, write_json};
use taut_sys::Locked;

/// Maximum length of the metadata of a publication, bytes.
const MOST_METADATA_BYTES: u64 = 256 << 20;

/// The service that gets a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// An InvenioRDM, such as Zenodo.
    Invenio(ServiceUrl),
    /// A repository `OWNER/NAME` on GitHub.
    GitHub(String),
}

impl FromStr for Destination {
    type Err = DepositError;

    fn from_str(text: &str) -> Result<Self, DepositError> {
        let address = match text {
            "zenodo" => "https://zenodo.org",
            "zenodo-sandbox" => "https://sandbox.zenodo.org",
            text => text,
        };
        let Some(repository) = address.strip_prefix("github:") else {
            return address.parse().map(Self::Invenio);
        };
        let is_name = |it: &str| !matches!(it, "" | "." | "..") && it.bytes().all(is_plain);
        match repository.split_once('/') {
            Some((owner, name)) if is_name(owner) && is_name(name) => {
                Ok(Self::GitHub(repository.to_owned()))
            }
            _ => Err(DepositError::Url(text.escape_debug().to_string())),
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// Options of a deposit.
#[derive(Debug)]
pub struct DepositOptions {
    /// The service that gets the deposit.
    pub destination: Destination,
    /// The user's token for the service.
    pub token: Token,
    /// Address of GitHub's API.
    pub github_api: ServiceUrl,
    /// Tag of the release on GitHub; `None` to use the name of the published folder.
    pub tag: Option<String>,
    /// True to publish the deposit, which cannot be undone; false for a draft.
    pub is_final: bool,
}

/// A deposit at a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Deposited {
    /// Address of the deposit's web page.
    pub page: String,
    /// DOI of the deposit, which is only reserved until the deposit is published; `None` on GitHub, which has none.
    pub doi: Option<String>,
    /// True if the deposit is published; false for a draft.
    pub published: bool,
    /// True if an earlier call began the deposit.
    pub continued: bool,
}

/// Deposits the published folder at `folder` and its archive.
///
/// # Errors
/// The folder is damaged, or the service cannot be reached or refuses the deposit.
pub fn deposit(
    folder: &Path,
    options: &DepositOptions,
    observer: &mut dyn Observer,
) -> Result<Deposited, DepositError> {
    let file = File::of(folder)?;
    // The lock keeps two calls from making a deposit each.
    let lock = fs::File::open(&file.path).map_err(DepositError::io(&file.path))?;
    let _lock = Locked::exclusive(lock).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => DepositError::Conflict(format!(
            "{}: another taut deposits it now: wait for it to end",
            file.path.display()
        )),
        _ => DepositError::io(&file.path)(e),
    })?;
    let of_crate = Crate::read(folder)?;
    match &options.destination {
        Destination::Invenio(url) => {
            if of_crate.authors.is_empty() {
                return Err(DepositError::Conflict(format!(
                    "{}: archives need an author: publish again with --author 'Family, Given'",
                    folder.display()
                )));
            }
            let mut ledger = Ledger::open(folder, url)?;
            let mut service = Service {
                url,
                token: &options.token,
                token_page: format!("{url}/account/settings/applications/"),
                scope: "the scopes deposit:write and deposit:actions",
                observer,
            };
            invenio::deposit(
                &mut service,
                &mut ledger,
                &of_crate,
                &file,
                options.is_final,
            )
        }
        Destination::GitHub(repository) => {
            let tag = options.tag.as_deref().unwrap_or(&file.stem);
            let mut service = Service {
                url: &options.github_api,
                token: &options.token,
                token_page: "https://github.com/settings/tokens".to_owned(),
                scope: "write access to the contents of the repository",
                observer,
            };
            github::deposit(
                &mut service,
                repository,
                tag,
                &of_crate,
                &file,
                options.is_final,
            )
        }
    }
}

/// The archive of a publication.
#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Name of the archive in the deposit: letters, digits, `-`, `_` and `.` only, so that it needs no escapes in
    /// addresses.
    name: String,
    /// Name of the published folder, with the same restriction to letters, digits, `-`, `_` and `.`.
    stem: String,
    bytes: u64,
    sha256: String,
    md5: String,
}

impl File {
    /// Reads the archive of a published folder, after a check of the folder. A missing archive, as after a kill, is
    /// packed again.
    fn of(folder: &Path) -> Result<Self, DepositError> {
        let folder = fs::canonicalize(folder).map_err(DepositError::io(folder))?;
        check_sums(&folder)?;
        let path = archive_of(&folder);
        if !path.exists() {
            pack(&folder, &path, ended_s(&Folder::open(&folder)?.state()?))?;
        }
        let open = || fs::File::open(&path);
        let (sha256, md5) = open()
            .and_then(checksum_of)
            .and_then(|sha256| Ok((sha256, md5_of(open()?)?)))
            .map_err(DepositError::io(&path))?;
        let bytes = path.metadata().map_err(DepositError::io(&path))?.len();
        let stem = folder.file_name().unwrap_or_default().to_string_lossy();
        let plain = |c: char| {
            if c.is_ascii() && is_plain(c as u8) {
                c
            } else {
                '-'
            }
        };
        let stem: String = stem.chars().map(plain).collect();
        Ok(Self {
            name: format!("{stem}.tar.gz"),
            path,
            stem,
            bytes,
            sha256,
            md5,
        })
    }

    /// Returns the identifier by which a later call finds the deposit of the archive: a UUID (RFC 9562, version 8) from
    /// the archive's SHA-256.
    fn marker(&self) -> String {
        let digits = self.sha256.as_str();
        let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
        format!(
            "urn:uuid:{}-{}-8{}-8{}-{}",
            part(0, 8),
            part(8, 12),
            part(12, 15),
            part(15, 18),
            part(18, 30)
        )
    }
}

/// Returns the MD5 of a file, with which InvenioRDM confirms uploads.
fn md5_of(mut file: fs::File) -> io::Result<String> {
    let mut digest = Md5::new();
    let mut piece = vec![0; 1 << 18];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            read => digest.update(&piece[..read]),
        }
    }
}

/// The metadata of a publication, from its `ro-crate-metadata.json`.
#[derive(Debug)]
struct Crate {
    title: String,
    description: String,
    /// Day of the publication, such as `2026-12-01`.
    date: String,
    authors: Vec<Author>,
    /// Address of the licence's text.
    license: Option<String>,
}

impl Crate {
    fn read(folder: &Path) -> Result<Self, DepositError> {
        let name =
            InsidePath::new("ro-crate-metadata.json").map_err(crate::ExperimentError::from)?;
        let path = name.in_folder(folder);
        let bytes = name
            .read(folder, MOST_METADATA_BYTES)
            .map_err(DepositError::io(&path))?;
        let document: Value = serde_json::from_slice(&bytes)
            .map_err(|e| crate::ExperimentError::results(&path, e.to_string()))?;
        let entity = |id: &str| {
            let mut graph = document["@graph"].as_array().into_iter().flatten();
            graph.find(|it| it["@id"] == id).unwrap_or(&Value::Null)
        };
        let root = entity("./");
        let text = |key: &str| root[key].as_str().unwrap_or_default().to_owned();
        // A single author is no list.
        let one = root["author"].is_object().then_some(&root["author"]);
        let authors = root["author"].as_array().into_iter().flatten().chain(one);
        let authors = authors.filter_map(|it| Author::of_entity(entity(it["@id"].as_str()?)));
        Ok(Self {
            title: text("name"),
            description: text("description"),
            date: text("datePublished").chars().take(10).collect(),
            authors: authors.collect(),
            license: root["license"]["@id"].as_str().map(ToOwned::to_owned),
        })
    }
}

/// Identifier of a record at an InvenioRDM: letters, digits and hyphens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Identifier(String);

impl Identifier {
    fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Identifier {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        match !text.is_empty() && text.len() <= 64 && text.bytes().all(is_good) {
            true => Ok(Self(text)),
            false => Err("an invalid id"),
        }
    }
}

impl From<Identifier> for String {
    fn from(id: Identifier) -> Self {
        id.0
    }
}

/// State of the deposit at a service, according to the replies so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Deposit {
    /// Identifier of the record; `None` if the service has not yet confirmed that it created the record.
    id: Option<Identifier>,
    doi: Option<String>,
    is_published: bool,
}

/// The file `NAME.deposits.json` next to the archive, which records the state of its deposit at each service.
#[derive(Debug)]
struct Ledger {
    path: PathBuf,
    service: String,
    deposits: BTreeMap<String, Deposit>,
}

impl Ledger {
    fn open(folder: &Path, service: &ServiceUrl) -> Result<Self, DepositError> {
        let mut name = folder.file_name().unwrap_or_default().to_owned();
        name.push(".deposits.json");
        let path = folder.with_file_name(name);
        let deposits = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| crate::ExperimentError::results(&path, format!("damaged: {e}")))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(e) => return Err(DepositError::io(&path)(e)),
        };
        Ok(Self {
            path,
            service: service.to_string(),
            deposits,
        })
    }

    fn get(&self) -> Option<Deposit> {
        self.deposits.get(&self.service).cloned()
    }

    fn set(&mut self, deposit: Deposit) -> Result<(), DepositError> {
        self.deposits.insert(self.service.clone(), deposit);
        write_json(&self.path, &self.deposits).map_err(|e| crate::ExperimentError::from(e).into())
    }
}

/// Parses bytes as each kind of reply of a service; returns for each kind whether that succeeded.
#[doc(hidden)]
pub fn parse_bodies(bytes: &[u8]) -> [bool; 6] {
    fn reads<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> bool {
        serde_json::from_slice::<T>(bytes).is_ok()
    }
    [
        reads::<invenio::Record>(bytes),
        reads::<invenio::Found>(bytes),
        reads::<invenio::Files>(bytes),
        reads::<invenio::FileEntry>(bytes),
        reads::<Vec<github::Release>>(bytes),
        reads::<Vec<github::Asset>>(bytes),
    ]
}
