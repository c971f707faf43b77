//! The number of copies of a frame between each two backends.

use crate::backend::Backend;
use crate::handling::Handling;
use serde::Serialize;

/// The copies of a frame on its path between two ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// Ingress port: backend, and the option that distinguishes its kinds, if any.
    pub from: String,
    /// Egress port.
    pub to: String,
    /// Copies of its bytes in user space.
    pub copies: u32,
}

/// Returns every ordered pair of the kinds of ports that `backends` have, row by row.
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
