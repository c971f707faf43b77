//! The client of a laboratory's service, for the command line.

use crate::api::{
    Experiment, ExtendRequest, Node, Problem, Reservation, ReserveRequest, SlurmJob, SubmitRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io;
use std::path::Path;
use taut_experiment::{ExperimentError, publish};
use taut_live::http_client::{self, Response, Url};

/// Maximum length of a reply that is not an archive, bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Reason why a request to a laboratory failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service cannot be reached.
    #[error(transparent)]
    Http(#[from] http_client::ClientError),
    /// The service refuses the request.
    #[error("{reason}")]
    Refused {
        /// HTTP status code with which the service replied.
        status: u16,
        /// Reason that the service gives for the refusal.
        reason: String,
    },
    /// The text is not the number of a reservation.
    #[error("{0:?} is no reservation: taut lab calendar lists them")]
    Id(String),
    /// The reply is not from a laboratory service of this version.
    #[error("{url}: the reply is not that of a laboratory: {source}")]
    Json {
        /// Address of the service that replied.
        url: String,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
    /// A local file cannot be written, or the connection broke.
    #[error("{what}: {source}")]
    Io {
        /// File or connection on which the operation failed.
        what: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The results that the service sent are damaged.
    #[error(transparent)]
    Results(#[from] ExperimentError),
}

/// A client of a laboratory's service that acts for one user.
pub struct Client {
    url: Url,
    /// Value of the `Authorization` header field, which contains the user's token.
    authorization: String,
}

impl Client {
    /// Makes a client for the service at this address, with the user's token.
    pub fn new(url: Url, token: &str) -> Self {
        Self {
            url,
            authorization: format!("Bearer {token}"),
        }
    }

    /// Returns the nodes of the laboratory, each with its current user.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses to list the nodes.
    pub fn nodes(&self) -> Result<Vec<Node>, ClientError> {
        self.call("GET", "/v1/nodes", &())
    }

    /// Returns the reservations that have not ended.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses to list the reservations.
    pub fn reservations(&self) -> Result<Vec<Reservation>, ClientError> {
        self.call("GET", "/v1/reservations", &())
    }

    /// Reserves the nodes and the time in `wish`.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request, for example because another user has a node.
    pub fn reserve(&self, wish: &ReserveRequest) -> Result<Reservation, ClientError> {
        self.call("POST", "/v1/reservations", wish)
    }

    /// Changes the end of the reservation `id`.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn extend(&self, id: &str, wish: &ExtendRequest) -> Result<Reservation, ClientError> {
        self.call("PATCH", &reservation(id)?, wish)
    }

    /// Ends the reservation `id` now.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn release(&self, id: &str) -> Result<Reservation, ClientError> {
        self.call("DELETE", &reservation(id)?, &())
    }

    /// Returns the experiments that wait or run, and the last ones that have ended.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn experiments(&self) -> Result<Vec<Experiment>, ClientError> {
        self.call("GET", "/v1/experiments", &())
    }

    /// Returns the jobs of the cluster, if Slurm manages the queue.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn jobs(&self) -> Result<Vec<SlurmJob>, ClientError> {
        self.call("GET", "/v1/jobs", &())
    }

    /// Submits an experiment to the queue.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn submit(&self, wish: &SubmitRequest) -> Result<Experiment, ClientError> {
        self.call("POST", "/v1/experiments", wish)
    }

    /// Returns the experiment with the number `id`.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn experiment(&self, id: u64) -> Result<Experiment, ClientError> {
        self.call("GET", &format!("/v1/experiments/{id}"), &())
    }

    /// Cancels the experiment `id`.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn cancel(&self, id: u64) -> Result<Experiment, ClientError> {
        self.call("POST", &format!("/v1/experiments/{id}/cancel"), &())
    }

    /// Puts the experiment `id`, which has missing runs, into the queue again.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn retry(&self, id: u64) -> Result<Experiment, ClientError> {
        self.call("POST", &format!("/v1/experiments/{id}/retry"), &())
    }

    /// Returns the last part of the output that the experiment's processes printed.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses the request.
    pub fn log(&self, id: u64) -> Result<String, ClientError> {
        let reply = self.send("GET", &format!("/v1/experiments/{id}/log"), &[])?;
        Ok(String::from_utf8_lossy(&reply.bytes(MOST_BYTES)?).into_owned())
    }

    /// Fetches the results of an experiment into the new folder `out`.
    ///
    /// # Errors
    /// The service cannot be reached, or refuses to send the results; `out` exists, or cannot be written.
    pub fn fetch(&self, id: u64, out: &Path) -> Result<(), ClientError> {
        let io = |what: &Path| {
            let what = what.display().to_string();
            move |source| ClientError::Io { what, source }
        };
        let parent = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if out.exists() {
            return Err(io(out)(io::ErrorKind::AlreadyExists.into()));
        }
        std::fs::create_dir_all(parent).map_err(io(parent))?;
        // The folder gets its final name only when it is complete.
        let partial = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempdir_in(parent)
            .map_err(io(parent))?;
        let archive = partial.path().join("results.tar.gz");
        let mut file = File::create(&archive).map_err(io(&archive))?;
        let path = format!("/v1/experiments/{id}/results.tar.gz");
        let mut reply = self.send("GET", &path, &[])?;
        io::copy(&mut reply, &mut file).map_err(|source| ClientError::Io {
            what: format!("{}: results of experiment {id}", self.url),
            source,
        })?;
        let into = partial.path().join("into");
        std::fs::create_dir(&into).map_err(io(&into))?;
        let folder = publish::unpack(&archive, &into)?;
        std::fs::rename(folder, out).map_err(io(out))
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let wrong = |source| ClientError::Json {
            url: self.url.to_string(),
            source,
        };
        let body = serde_json::to_vec(body).map_err(wrong)?;
        let reply = self.send(method, path, &body)?.bytes(MOST_BYTES)?;
        serde_json::from_slice(&reply).map_err(wrong)
    }

    fn send(&self, method: &str, path: &str, body: &[u8]) -> Result<Response, ClientError> {
        let fields = [
            ("Authorization", self.authorization.as_str()),
            ("Content-Type", "application/json"),
        ];
        let reply = self.url.request(method, path, &fields, body)?;
        let status = reply.status;
        if (200..300).contains(&status) {
            return Ok(reply);
        }
        let body = reply.bytes(MOST_BYTES)?;
        let reason = match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => problem.error,
            Err(_) => {
                let text = String::from_utf8_lossy(&body);
                let line = text.lines().next().unwrap_or_default();
                format!("{}: status {status}: {line}", self.url)
            }
        };
        Err(ClientError::Refused { status, reason })
    }
}

/// Returns the path of the reservation `id` in the service's URLs.
fn reservation(id: &str) -> Result<String, ClientError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match !id.is_empty() && id.chars().all(is_plain) {
        true => Ok(format!("/v1/reservations/{id}")),
        false => Err(ClientError::Id(id.to_owned())),
    }
}
