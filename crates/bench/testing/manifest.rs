//! A manifest for synthetic results folders, in the tests of the crates that write such folders.

use taut_results::{Completion, Manifest};

/// Returns a manifest without content.
pub(crate) fn manifest(schema: u32) -> Manifest {
    Manifest {
        schema,
        title: "made up".to_owned(),
        taut_version: "0.0.0".to_owned(),
        started: "2026-01-01T00:00:00Z".to_owned(),
        command_line: "taut bench".to_owned(),
        completion: Completion::Finished,
        machine: serde_json::Value::Null,
        core_plan: String::new(),
        noise: Vec::new(),
        left_out: Vec::new(),
        failed_attempts: Vec::new(),
    }
}
