//! Deposits at a release of a GitHub repository (GitHub REST API, "Releases" and "Release assets"): draft release,
//! asset, publication.

use super::curl::RequestBody;
use super::error::DepositError;
use super::service::{Outcome, Request, Service};
use super::{ATTEMPTS, Crate, Deposited, File};
use serde::Deserialize;
use serde_json::json;

/// Maximum number of pages that are searched for a release; each lists 100 releases.
const MOST_PAGES: u32 = 50;
/// Host to which files of releases at api.github.com are uploaded.
const UPLOADS: &str = "uploads.github.com";

/// A release of a GitHub repository.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Release {
    id: u64,
    tag_name: String,
    draft: bool,
    #[serde(default)]
    body: Option<String>,
    html_url: String,
    upload_url: String,
}

/// A file of a GitHub release, as in replies of the API.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Asset {
    id: u64,
    name: String,
    state: String,
    size: u64,
    /// Checksum of the file as `sha256:DIGITS`; older servers do not report it.
    #[serde(default)]
    digest: Option<String>,
}

impl Asset {
    /// Returns true if the asset is a complete copy of the file.
    fn is_whole(&self, file: &File) -> bool {
        let digest = self.digest.as_deref();
        let is_same = digest.is_none_or(|it| it == format!("sha256:{}", file.sha256));
        self.state == "uploaded" && self.size == file.bytes && is_same
    }
}

/// Deposits a publication at the release with the requested tag, and publishes the release if that is requested.
pub(super) fn deposit(
    service: &mut Service<'_>,
    repository: &str,
    tag: &str,
    of_crate: &Crate,
    file: &File,
    is_final: bool,
) -> Result<Deposited, DepositError> {
    let releases = format!("/repos/{repository}/releases");
    let note = format!("SHA-256 of {}: {}", file.name, file.sha256);
    let found = find(service, &releases, tag, &note)?;
    let continued = found.is_some();
    let mut release = match found {
        Some(release) => release,
        None => {
            let text = format!(
                "{}\n\nRun it again with: taut experiment run {}\n\n{note}\n",
                of_crate.description, file.name
            );
            let body = json!({
                "tag_name": tag,
                "name": of_crate.title,
                "body": text,
                "draft": true,
            });
            let request = Request::new("making a draft release", "POST", &releases).json(&body);
            service.make(&request, |service| find(service, &releases, tag, &note))?
        }
    };
    upload(service, &releases, &release, file)?;
    if is_final && release.draft {
        let path = format!("{releases}/{}", release.id);
        let body = json!({ "draft": false });
        let request = Request::new("publishing", "PATCH", &path).json(&body);
        let reply = service.repeat(&request)?;
        release = service.parse(request.what, &reply)?;
    }
    Ok(Deposited {
        page: release.html_url.escape_debug().to_string(),
        doi: None,
        published: !release.draft,
        continued,
    })
}

/// Returns the release with a tag. Drafts are only in the list of all releases.
fn find(
    service: &mut Service<'_>,
    releases: &str,
    tag: &str,
    note: &str,
) -> Result<Option<Release>, DepositError> {
    for page in 1..=MOST_PAGES {
        let path = format!("{releases}?per_page=100&page={page}");
        let request = Request::new("listing the releases", "GET", &path);
        let reply = service.repeat(&request)?;
        let listed: Vec<Release> = service.parse(request.what, &reply)?;
        let is_last = listed.len() < 100;
        if let Some(release) = listed.into_iter().find(|it| it.tag_name == tag) {
            if release
                .body
                .as_deref()
                .is_some_and(|body| body.contains(note))
            {
                return Ok(Some(release));
            }
            return Err(DepositError::Conflict(format!(
                "{}: release {tag} exists and is not of this archive: name another one by --tag",
                service.url.host()
            )));
        }
        if is_last {
            break;
        }
    }
    Ok(None)
}

/// Uploads the file, unless the release has it. An interrupted upload leaves an incomplete asset, which is deleted
/// first.
fn upload(
    service: &mut Service<'_>,
    releases: &str,
    release: &Release,
    file: &File,
) -> Result<(), DepositError> {
    let address = upload_address(service, release, file)?;
    let mut last = String::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            service.pause("uploading the archive", attempt, &last);
        }
        if clear(service, releases, release, file)? {
            return Ok(());
        }
        if attempt == 0 {
            service.observer.note(&format!(
                "sends {} ({} bytes) to {}",
                file.name,
                file.bytes,
                service.url.host()
            ));
        }
        let request = Request {
            body: RequestBody::File(&file.path, "application/gzip"),
            ..Request::new("uploading the archive", "POST", &address)
        };
        match service.once(&request)? {
            Outcome::Unknown(reason) => last = reason,
            Outcome::Reply(reply) => {
                let asset: Asset = service.parse(request.what, &reply)?;
                if asset.is_whole(file) {
                    return Ok(());
                }
                last = "the file arrived damaged".to_owned();
            }
        }
    }
    Err(service.unreachable("uploading the archive", last))
}

/// Returns true if the release has the file; deletes an incomplete or different file of the same name.
fn clear(
    service: &mut Service<'_>,
    releases: &str,
    release: &Release,
    file: &File,
) -> Result<bool, DepositError> {
    let path = format!("{releases}/{}/assets?per_page=100", release.id);
    let request = Request::new("listing the assets", "GET", &path);
    let reply = service.repeat(&request)?;
    let listed: Vec<Asset> = service.parse(request.what, &reply)?;
    let Some(asset) = listed.iter().find(|it| it.name == file.name) else {
        return Ok(false);
    };
    if asset.is_whole(file) {
        return Ok(true);
    }
    let path = format!("{releases}/assets/{}", asset.id);
    let request = Request {
        accepted: &[404],
        ..Request::new("deleting an incomplete asset", "DELETE", &path)
    };
    service.repeat(&request)?;
    Ok(false)
}

/// Returns the address for uploads from the release; its host must belong to the service, because the token is sent
/// there.
fn upload_address(
    service: &Service<'_>,
    release: &Release,
    file: &File,
) -> Result<String, DepositError> {
    let what = "making a draft release";
    let address = release.upload_url.split('{').next().unwrap_or_default();
    let url: super::ServiceUrl = address
        .parse()
        .map_err(|_| service.unexpected(what, "upload_url is no address"))?;
    let is_trusted = url.is_at(service.url.host())
        || (service.url.is_at("api.github.com") && url.is_at(UPLOADS));
    match is_trusted {
        true => Ok(format!("{url}?name={}", file.name)),
        false => Err(service.unexpected(what, "upload_url is at another host")),
    }
}
