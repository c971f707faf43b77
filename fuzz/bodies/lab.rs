//! Requests to the service of a laboratory, and replies to its client, of arbitrary bytes: each request gets a reply,
//! and what is refused is refused in one line of JSON.

use std::path::Path;
use std::sync::Arc;
use taut_live::http::Answer;
use taut_live::http_client;
use taut_testbed::{Lab, LabFile, TokenHash, answer_to};

/// A laboratory in a temporary folder, without a schedule.
pub struct Bench {
    lab: Arc<Lab>,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let hash = TokenHash::of("t");
        let text = format!(
            "folder = {state:?}\n[users.u]\ntoken = \"{}\"\n[nodes.a]\nat = \"local\"\n[nodes.b]\nat = \"ssh://b\"\n",
            hash.as_str()
        );
        let file = LabFile::parse(&text, "lab.toml").unwrap();
        Self {
            lab: Arc::new(Lab::open(file, Path::new("/nowhere")).unwrap()),
            _folder: folder,
        }
    }

    /// Sends a request: a line with method and path, then the body. Returns the status of the reply.
    pub fn request(&self, bytes: &[u8]) -> u16 {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (line, body) = bytes.split_at(end.unwrap_or(bytes.len()));
        let line = String::from_utf8_lossy(line);
        let (method, path) = line.split_once(' ').unwrap_or((&line, ""));
        let body = body.get(1..).unwrap_or_default();
        let answer = answer_to(&self.lab, method, path, Some("Bearer t"), body);
        let Answer::Whole(reply) = answer else {
            return 200;
        };
        let status = reply.status[..3].parse().unwrap();
        if status >= 400 {
            let problem: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            let reason = problem["error"].as_str().unwrap();
            assert!(
                !reason.is_empty() && !reason.contains(char::is_control),
                "{reason:?}"
            );
        }
        status
    }
}

/// Reads a file of a laboratory.
pub fn file(bytes: &[u8]) {
    if let Err(e) = LabFile::parse(&String::from_utf8_lossy(bytes), "lab.toml") {
        let text = e.to_string();
        assert!(
            text.starts_with("lab.toml") && !text.contains('\n'),
            "{text}"
        );
    }
}

/// Reads a reply as the client does.
pub fn reply(bytes: &[u8]) -> bool {
    http_client::parse(bytes).is_some()
}
