//! The number of copies of a frame between the kinds of ports.

use crate::backend::Backend;
use crate::handling::Handling;
use schemars::JsonSchema;
use serde::Serialize;

/// The number of copies of a frame on its path from one kind of port to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Copies {
    /// Ingress port: its backend, and the option that selects this kind of port, if there is one.
    pub from: String,
    /// Egress port: its backend, and the option that selects this kind of port, if there is one.
    pub to: String,
    /// Number of times that the frame's bytes are copied in user space.
    pub copies: u32,
}

/// Returns the copies for every ordered pair of kinds of ports of `backends`, sorted by ingress port.
pub fn copies(backends: &[Backend]) -> Vec<Copies> {
    let kinds: Vec<(String, &Handling)> = backends
        .iter()
        .flat_map(|backend| {
            let name = |handling: &Handling| match handling.variant {
                "" => backend.name.to_string(),
                variant => format!("{},{variant}", backend.name),
            };
            backend
                .handling
                .iter()
                .map(move |handling| (name(handling), handling))
        })
        .collect();
    kinds
        .iter()
        .flat_map(|(from, receiving)| {
            kinds.iter().map(|(to, sending)| Copies {
                from: from.clone(),
                to: to.clone(),
                copies: receiving.copies_to(sending),
            })
        })
        .collect()
}
