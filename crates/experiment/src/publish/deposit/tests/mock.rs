//! A server that replies as the documentation of InvenioRDM and of GitHub's releases says, with faults on request.

use super::super::curl::Token;
use super::super::md5_of;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

pub(super) const TOKEN: &str = "secret-token-0123456789";

/// A fault with which the mock server treats a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The request is not carried out; the values are the status code and `Retry-After` in seconds.
    Status(u16, Option<u64>),
    /// The server closes the connection before the body of the request has arrived.
    DiesInTheMiddle,
    /// The request is carried out, and the server closes the connection without a reply.
    DiesBeforeTheReply,
    /// The body of the request arrives damaged.
    Damages,
}

#[derive(Debug, Default)]
struct StoredFile {
    is_whole: bool,
    bytes: Vec<u8>,
}

/// A record or a release that the mock server stores.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) body: Value,
    pub(super) is_published: bool,
    doi: Option<String>,
    files: BTreeMap<String, StoredFile>,
}

#[derive(Debug, Default)]
pub(super) struct World {
    /// Faults for later requests: the text that a request's method and path must contain, the fault, and how many
    /// requests get it.
    pub(super) faults: Vec<(&'static str, Fault, u32)>,
    pub(super) stored: Vec<Stored>,
    /// The requests that the mock server received, as `POST /path`.
    pub(super) requests: Vec<String>,
    /// Number of searches until they find newly made drafts.
    pub(super) index_delay: u32,
    /// Host of uploads in GitHub's replies if it differs from the service's host.
    pub(super) upload_host: Option<&'static str>,
    address: String,
}

pub(super) struct Mock {
    pub(super) url: String,
    world: Arc<Mutex<World>>,
}

impl Mock {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let world = Arc::new(Mutex::new(World {
            address: url.clone(),
            ..World::default()
        }));
        let ours = Arc::clone(&world);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = ours.lock().unwrap().serve(&stream);
            }
        });
        Self { url, world }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }
}

impl World {
    fn serve(&mut self, mut stream: &TcpStream) -> std::io::Result<()> {
        let mut from = BufReader::new(stream);
        let mut head = Vec::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            from.read_line(&mut line)?;
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            head.push(line);
        }
        let Some(first) = head.first() else {
            return Ok(());
        };
        let words: Vec<&str> = first.split(' ').collect();
        let (method, path) = (words[0].to_owned(), words[1].to_owned());
        let asked = format!("{method} {path}");
        self.requests.push(asked.clone());
        if asked.contains("/content") || asked.contains("/uploads") {
            no_process_shows_the_token();
        }
        let fault = self.next_fault(&asked);
        if fault == Some(Fault::DiesInTheMiddle) {
            from.read_exact(&mut vec![0; length / 2])?;
            return Ok(());
        }
        if head
            .iter()
            .any(|line| line.eq_ignore_ascii_case("expect: 100-continue"))
        {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        if fault == Some(Fault::Damages) {
            body[0] ^= 1;
        }
        let is_known = head.contains(&format!("Authorization: Bearer {TOKEN}"));
        let (status, reply, retry) = match fault {
            Some(Fault::Status(status, retry)) => (
                status,
                json!({ "message": format!("fault for {TOKEN}") }),
                retry,
            ),
            _ if !is_known => (401, json!({ "message": "Unauthorized" }), None),
            _ => {
                let (status, reply) = self.reply(&method, &path, body);
                (status, reply, None)
            }
        };
        if fault == Some(Fault::DiesBeforeTheReply) {
            return Ok(());
        }
        let body = reply.to_string();
        let retry = retry.map_or_else(String::new, |s| format!("Retry-After: {s}\r\n"));
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} X\r\n{retry}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
    }

    fn next_fault(&mut self, asked: &str) -> Option<Fault> {
        let fault = self
            .faults
            .iter_mut()
            .find(|(part, _, times)| *times > 0 && asked.contains(part))?;
        fault.2 -= 1;
        Some(fault.1)
    }

    fn reply(&mut self, method: &str, path: &str, body: Vec<u8>) -> (u16, Value) {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let json_of = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap_or_default();
        match (method, parts.as_slice()) {
            ("GET", ["api", "user", "records"]) => self.search(query),
            ("POST", ["api", "records"]) => (201, self.add(json_of(&body))),
            ("GET", ["api", "records", id]) => match self.find(id) {
                Some(number) if self.stored[number].is_published => (200, self.record(number)),
                _ => (
                    404,
                    json!({ "message": "The persistent identifier is not registered." }),
                ),
            },
            (_, ["api", "records", id, "draft", rest @ ..]) => match self.find(id) {
                Some(number) if !self.stored[number].is_published => {
                    self.draft(number, method, rest, body)
                }
                _ => (404, json!({ "message": "The draft does not exist." })),
            },
            ("GET", ["repos", "o", "r", "releases"]) => (
                200,
                (0..self.stored.len())
                    .rev()
                    .map(|it| self.release(it))
                    .collect(),
            ),
            ("POST", ["repos", "o", "r", "releases"]) => {
                let number = self.push(json_of(&body));
                (201, self.release(number))
            }
            ("PATCH", ["repos", "o", "r", "releases", id]) => {
                let number: usize = id.parse().unwrap();
                self.stored[number].is_published = json_of(&body)["draft"] == false;
                (200, self.release(number))
            }
            ("GET", ["repos", "o", "r", "releases", id, "assets"]) => {
                let files = &self.stored[id.parse::<usize>().unwrap()].files;
                (
                    200,
                    files.iter().map(|(name, file)| asset(name, file)).collect(),
                )
            }
            ("DELETE", ["repos", "o", "r", "releases", "assets", _]) => {
                self.stored[0].files.clear();
                (204, Value::Null)
            }
            ("POST", ["uploads", id]) => {
                let name = query.strip_prefix("name=").unwrap().to_owned();
                let stored = &mut self.stored[id.parse::<usize>().unwrap()];
                if stored.files.contains_key(&name) {
                    return (
                        422,
                        json!({ "message": "Validation Failed", "errors": [{ "code": "already_exists" }] }),
                    );
                }
                let file = StoredFile {
                    is_whole: true,
                    bytes: body,
                };
                let reply = asset(&name, &file);
                stored.files.insert(name, file);
                (201, reply)
            }
            _ => (
                404,
                json!({ "message": format!("{method} {path}: not in the documentation") }),
            ),
        }
    }

    fn draft(&mut self, number: usize, method: &str, rest: &[&str], body: Vec<u8>) -> (u16, Value) {
        let stored = &mut self.stored[number];
        match (method, rest) {
            ("GET", []) => {}
            ("POST", ["pids", "doi"]) => {
                if stored.doi.is_some() {
                    return (
                        400,
                        json!({ "message": "A PID already exists for type doi" }),
                    );
                }
                stored.doi = Some(format!("10.5281/zenodo.{number}"));
                return (201, self.record(number));
            }
            ("GET", ["files"]) => {
                let entries = stored.files.iter().map(|(name, file)| entry(name, file));
                return (200, json!({ "entries": entries.collect::<Value>() }));
            }
            ("POST", ["files"]) => {
                let wanted: Value = serde_json::from_slice(&body).unwrap();
                let key = wanted[0]["key"].as_str().unwrap().to_owned();
                if stored.files.contains_key(&key) {
                    return (
                        400,
                        json!({ "message": format!("File with key {key} already exists.") }),
                    );
                }
                stored.files.insert(key, StoredFile::default());
                return (201, json!({ "entries": [] }));
            }
            ("PUT", ["files", name, "content"]) => {
                stored.files.get_mut(*name).unwrap().bytes = body
            }
            ("POST", ["files", name, "commit"]) => {
                let file = stored.files.get_mut(*name).unwrap();
                file.is_whole = true;
                return (200, entry(name, file));
            }
            ("DELETE", ["files", name]) => {
                stored.files.remove(*name);
                return (204, Value::Null);
            }
            ("POST", ["actions", "publish"]) => {
                stored.is_published = true;
                return (202, self.record(number));
            }
            _ => return (405, Value::Null),
        }
        (200, self.record(number))
    }

    fn search(&mut self, query: &str) -> (u16, Value) {
        if self.index_delay > 0 {
            self.index_delay -= 1;
            return (200, json!({ "hits": { "hits": [] } }));
        }
        assert!(query.starts_with("q=%22urn%3Auuid%3A"), "{query}");
        let all: Value = (0..self.stored.len()).map(|it| self.record(it)).collect();
        (200, json!({ "hits": { "hits": all } }))
    }

    fn push(&mut self, body: Value) -> usize {
        self.stored.push(Stored {
            body,
            is_published: false,
            doi: None,
            files: BTreeMap::new(),
        });
        self.stored.len() - 1
    }

    fn add(&mut self, body: Value) -> Value {
        let number = self.push(body);
        self.record(number)
    }

    fn find(&self, id: &str) -> Option<usize> {
        let number = id.strip_prefix("abc-")?.parse().ok()?;
        (number < self.stored.len()).then_some(number)
    }

    fn record(&self, number: usize) -> Value {
        let stored = &self.stored[number];
        let mut record = stored.body.clone();
        record["id"] = format!("abc-{number}").into();
        record["is_published"] = stored.is_published.into();
        record["pids"] = match &stored.doi {
            Some(doi) => json!({ "doi": { "identifier": doi, "provider": "datacite" } }),
            None => json!({}),
        };
        record
    }

    fn release(&self, number: usize) -> Value {
        let stored = &self.stored[number];
        let host = self.upload_host.unwrap_or(&self.address);
        json!({
            "id": number,
            "tag_name": stored.body["tag_name"],
            "body": stored.body["body"],
            "draft": !stored.is_published,
            "html_url": format!("https://github.com/o/r/releases/{number}"),
            "upload_url": format!("{host}/uploads/{number}{{?name,label}}"),
        })
    }

    /// Adds an incomplete asset, as an interrupted upload leaves it.
    pub(super) fn leave_starter(&mut self, name: &str) {
        self.stored[0]
            .files
            .insert(name.to_owned(), StoredFile::default());
    }

    /// Returns the contents of the only file of the only deposit.
    pub(super) fn only_file(&self) -> &[u8] {
        assert_eq!((self.stored.len(), self.stored[0].files.len()), (1, 1));
        let file = self.stored[0].files.values().next().unwrap();
        assert!(file.is_whole);
        &file.bytes
    }

    /// Returns the number of received requests that contain a text.
    pub(super) fn count(&self, part: &str) -> usize {
        self.requests.iter().filter(|it| it.contains(part)).count()
    }
}

fn entry(name: &str, file: &StoredFile) -> Value {
    let mut stored = tempfile::tempfile().unwrap();
    stored.write_all(&file.bytes).unwrap();
    std::io::Seek::rewind(&mut stored).unwrap();
    match file.is_whole {
        true => {
            json!({ "key": name, "status": "completed", "checksum": format!("md5:{}", md5_of(stored).unwrap()) })
        }
        false => json!({ "key": name, "status": "pending" }),
    }
}

fn asset(name: &str, file: &StoredFile) -> Value {
    let state = if file.is_whole { "uploaded" } else { "starter" };
    json!({ "id": 7, "name": name, "state": state, "size": file.bytes.len() })
}

/// Fails if a process on this machine has the token in its arguments.
fn no_process_shows_the_token() {
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let token: Token = TOKEN.parse().unwrap();
        assert!(!token.is_in(&String::from_utf8_lossy(&line)), "{process:?}");
    }
}
