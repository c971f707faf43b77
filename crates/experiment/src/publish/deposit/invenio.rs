//! Deposits at an InvenioRDM, such as Zenodo (InvenioRDM REST API, "Drafts and records"): draft, reserved DOI, file,
//! publication.

use super::curl::RequestBody;
use super::error::DepositError;
use super::service::{Request, Service};
use super::{Crate, Deposit, Deposited, File, Identifier, Ledger};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// Number of searches for a draft if it is unknown whether it was created: the service lists new drafts only after some
/// time.
const SEARCHES: u32 = 4;
/// Interval between two searches for the same draft.
const INDEX_DELAY: Duration = Duration::from_secs(3);

/// A published record or a draft at an InvenioRDM.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Record {
    id: Identifier,
    #[serde(default)]
    is_published: bool,
    #[serde(default)]
    pids: Pids,
    #[serde(default)]
    metadata: Metadata,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Pids {
    doi: Option<Doi>,
}

#[derive(Debug, Clone, Deserialize)]
struct Doi {
    identifier: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    identifiers: Vec<MetadataIdentifier>,
}

#[derive(Debug, Clone, Deserialize)]
struct MetadataIdentifier {
    identifier: String,
}

/// Reply of an InvenioRDM to a search for records.
#[derive(Debug, Deserialize)]
pub(super) struct Found {
    hits: Hits,
}

#[derive(Debug, Deserialize)]
struct Hits {
    hits: Vec<Record>,
}

/// Files of a draft.
#[derive(Debug, Deserialize)]
pub(super) struct Files {
    #[serde(default)]
    entries: Vec<FileEntry>,
}

/// A file of a draft.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct FileEntry {
    key: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    checksum: Option<String>,
}

/// Deposits a publication: makes or continues its draft, and publishes it if that is requested.
pub(super) fn deposit(
    service: &mut Service<'_>,
    ledger: &mut Ledger,
    of_crate: &Crate,
    file: &File,
    is_final: bool,
) -> Result<Deposited, DepositError> {
    let found = find(service, ledger, file)?;
    let continued = found.is_some();
    let mut record = match found {
        Some(record) => record,
        None => create(service, ledger, of_crate, file)?,
    };
    let mut entry = Deposit {
        id: Some(record.id.clone()),
        doi: record.doi(),
        is_published: record.is_published,
    };
    ledger.set(entry.clone())?;
    if !record.is_published {
        if entry.doi.is_none() {
            record = reserve_doi(service, &record.id)?;
            entry.doi = record.doi();
            ledger.set(entry.clone())?;
        }
        upload(service, &record.id, file)?;
        if is_final {
            record = publish(service, &record.id)?;
            entry.is_published = true;
            entry.doi = record.doi().or(entry.doi);
            ledger.set(entry.clone())?;
        }
    }
    let kind = if entry.is_published {
        "records"
    } else {
        "uploads"
    };
    Ok(Deposited {
        page: format!("{}/{kind}/{}", service.url, record.id.as_str()),
        doi: entry.doi,
        published: entry.is_published,
        continued,
    })
}

impl Record {
    fn doi(&self) -> Option<String> {
        let doi = self.pids.doi.as_ref()?.identifier.as_str();
        let is_doi = doi.starts_with("10.") && doi.bytes().all(|byte| byte.is_ascii_graphic());
        is_doi.then(|| doi.to_owned())
    }
}

/// Returns the draft or record that an earlier call made: the one in the ledger file, or one with the archive's
/// identifier.
fn find(
    service: &mut Service<'_>,
    ledger: &Ledger,
    file: &File,
) -> Result<Option<Record>, DepositError> {
    let Some(known) = ledger.get() else {
        return search(service, file, 1);
    };
    let Some(id) = known.id else {
        return search(service, file, SEARCHES);
    };
    for path in [draft_path(&id), format!("/api/records/{}", id.as_str())] {
        let request = Request {
            accepted: &[404, 410],
            ..Request::new("reading the deposit", "GET", &path)
        };
        let reply = service.repeat(&request)?;
        if reply.status < 300 {
            let mut record: Record = service.parse(request.what, &reply)?;
            record.is_published |= !path.ends_with("/draft");
            return Ok(Some(record));
        }
    }
    Err(DepositError::Conflict(format!(
        "{}: deposit {} was deleted there: to make another one, remove {}",
        service.url.host(),
        id.as_str(),
        ledger.path.display()
    )))
}

/// Searches the user's records for the archive's identifier; repeats the search up to `times` times.
fn search(
    service: &mut Service<'_>,
    file: &File,
    times: u32,
) -> Result<Option<Record>, DepositError> {
    let marker = file.marker();
    let path = format!(
        "/api/user/records?q=%22{}%22&size=25&sort=newest",
        marker.replace(':', "%3A")
    );
    let request = Request::new("searching for the deposit", "GET", &path);
    for attempt in 0..times {
        if attempt > 0 {
            service.observer.wait(INDEX_DELAY);
        }
        let reply = service.repeat(&request)?;
        let found: Found = service.parse(request.what, &reply)?;
        let is_ours = |record: &Record| {
            let mut identifiers = record.metadata.identifiers.iter();
            identifiers.any(|it| it.identifier == marker)
        };
        if let Some(record) = found.hits.hits.into_iter().find(is_ours) {
            return Ok(Some(record));
        }
    }
    Ok(None)
}

/// Makes a new draft.
fn create(
    service: &mut Service<'_>,
    ledger: &mut Ledger,
    of_crate: &Crate,
    file: &File,
) -> Result<Record, DepositError> {
    let body = metadata(of_crate, file, service.url.host());
    let request = Request::new("making a draft", "POST", "/api/records").json(&body);
    // If this process ends before it knows the draft, the next call searches for it.
    ledger.set(Deposit::default())?;
    service.make(&request, |service| search(service, file, SEARCHES))
}

fn reserve_doi(service: &mut Service<'_>, id: &Identifier) -> Result<Record, DepositError> {
    let (draft, path) = (draft_path(id), format!("{}/pids/doi", draft_path(id)));
    let request = Request::new("reserving a DOI", "POST", &path);
    service.make(&request, |service| {
        let read = Request::new("reading the deposit", "GET", &draft);
        let reply = service.repeat(&read)?;
        let record: Record = service.parse(read.what, &reply)?;
        Ok(record.doi().is_some().then_some(record))
    })
}

/// Uploads the archive, unless the draft has it.
fn upload(service: &mut Service<'_>, id: &Identifier, file: &File) -> Result<(), DepositError> {
    let files = format!("{}/files", draft_path(id));
    let one = format!("{files}/{}", file.name);
    let content = format!("{one}/content");
    let commit = format!("{one}/commit");
    let expected = format!("md5:{}", file.md5);
    match entry_of(service, &files, file)? {
        Some(entry) if entry.status == "completed" => {
            if entry.checksum.as_deref() == Some(&expected) {
                return Ok(());
            }
            let request = Request {
                accepted: &[404],
                ..Request::new("deleting a damaged file", "DELETE", &one)
            };
            service.repeat(&request)?;
            start(service, &files, file)?;
        }
        Some(_) => {}
        None => start(service, &files, file)?,
    }
    service.observer.note(&format!(
        "sends {} ({} bytes) to {}",
        file.name,
        file.bytes,
        service.url.host()
    ));
    let request = Request {
        body: RequestBody::File(&file.path, "application/octet-stream"),
        ..Request::new("uploading the archive", "PUT", &content)
    };
    service.repeat(&request)?;
    let request = Request::new("completing the upload", "POST", &commit);
    let done: FileEntry = service.make(&request, |service| {
        let entry = entry_of(service, &files, file)?;
        Ok(entry.filter(|it| it.status == "completed"))
    })?;
    match done.checksum {
        Some(found) if found == expected => Ok(()),
        _ => {
            let request = Request::new("deleting a damaged file", "DELETE", &one);
            service.repeat(&request)?;
            Err(DepositError::Damaged {
                service: service.name(),
                file: file.name.clone(),
            })
        }
    }
}

/// Begins the upload of the archive to a draft.
fn start(service: &mut Service<'_>, files: &str, file: &File) -> Result<(), DepositError> {
    let body = json!([{ "key": file.name }]);
    let request = Request::new("beginning the upload", "POST", files).json(&body);
    service
        .make(&request, |service| {
            let entry = entry_of(service, files, file)?;
            Ok(entry.map(|_| Value::Null))
        })
        .map(drop)
}

fn entry_of(
    service: &mut Service<'_>,
    files: &str,
    file: &File,
) -> Result<Option<FileEntry>, DepositError> {
    let request = Request::new("listing the files", "GET", files);
    let reply = service.repeat(&request)?;
    let listed: Files = service.parse(request.what, &reply)?;
    Ok(listed.entries.into_iter().find(|it| it.key == file.name))
}

/// Publishes a draft.
fn publish(service: &mut Service<'_>, id: &Identifier) -> Result<Record, DepositError> {
    let path = format!("{}/actions/publish", draft_path(id));
    let record = format!("/api/records/{}", id.as_str());
    let request = Request::new("publishing", "POST", &path);
    service.make(&request, |service| {
        let read = Request {
            accepted: &[404],
            ..Request::new("reading the record", "GET", &record)
        };
        let reply = service.repeat(&read)?;
        match reply.status {
            404 => Ok(None),
            _ => service.parse(read.what, &reply).map(Some),
        }
    })
}

fn draft_path(id: &Identifier) -> String {
    format!("/api/records/{}/draft", id.as_str())
}

/// Returns the request body that creates a draft, from the metadata of the publication.
fn metadata(of_crate: &Crate, file: &File, host: &str) -> Value {
    let creators: Vec<Value> = of_crate.authors.iter().map(creator).collect();
    let mut metadata = json!({
        "resource_type": { "id": "dataset" },
        "title": of_crate.title,
        "description": of_crate.description,
        "publication_date": of_crate.date,
        "creators": creators,
        // Archives register a DOI only with a publisher.
        "publisher": if host.ends_with("zenodo.org") { "Zenodo" } else { host },
        "identifiers": [{ "scheme": "urn", "identifier": file.marker() }],
    });
    if let Some(license) = &of_crate.license {
        metadata["rights"] = match license.strip_prefix("https://spdx.org/licenses/") {
            Some(name) => json!([{ "id": name.to_ascii_lowercase() }]),
            None => json!([{ "title": { "en": license }, "link": license }]),
        };
    }
    json!({
        "access": { "record": "public", "files": "public" },
        "files": { "enabled": true },
        "metadata": metadata,
    })
}

fn creator(author: &super::Author) -> Value {
    let Some(given) = &author.given else {
        return json!({ "person_or_org": { "type": "organizational", "name": author.family } });
    };
    let mut person =
        json!({ "type": "personal", "family_name": author.family, "given_name": given });
    if let Some(orcid) = &author.orcid {
        person["identifiers"] = json!([{ "scheme": "orcid", "identifier": orcid }]);
    }
    json!({ "person_or_org": person })
}
