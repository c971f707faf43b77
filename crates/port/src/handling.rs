//! Where each backend's packets lie and how it sends what lies elsewhere: what a frame costs between two
//! ports in copies follows from that.

use crate::Backend;
use serde::Serialize;

/// Where the packets lie that a port delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receives {
    /// In the worker's pool.
    InPool,
    /// In memory of the port's own, where they arrived.
    InPlace,
}

/// What a port does with packets that it is to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sends {
    /// Sends those of the worker's pool as they are, and copies others into it first.
    FromPool,
    /// Sends those that a port of the same backend received as they are, and copies others.
    FromOwn,
    /// Sends every packet from where it lies.
    FromAnywhere,
    /// Copies every packet into memory of its own or of its peer.
    ByCopy,
}

/// How one kind of port handles packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// What tells this kind of port from others of the backend: an option of its spec, or nothing.
    pub variant: &'static str,
    /// Where the packets lie that it delivers.
    pub receives: Receives,
    /// What it does with packets that it is to send.
    pub sends: Sends,
}

impl Handling {
    /// How often a frame's bytes are copied in user space on the way from a port like this to one like
    /// `to`, of the same backend or another. What the kernel or a device copies for itself is not counted.
    pub fn copies_to(&self, to: &Self, same_backend: bool) -> u32 {
        let as_it_is = match to.sends {
            Sends::FromPool => self.receives == Receives::InPool,
            Sends::FromOwn => same_backend && self.receives == Receives::InPlace,
            Sends::FromAnywhere => true,
            Sends::ByCopy => false,
        };
        u32::from(!as_it_is)
    }
}

/// What a frame costs on one way between two ports of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Copies {
    /// The port it came through: backend, and the option that matters, if one does.
    pub from: String,
    /// The port it leaves through.
    pub to: String,
    /// Copies of its bytes in user space.
    pub copies: u32,
}

/// Every ordered pair of kinds of ports that `backends` have, row by row.
pub fn copies(backends: &[Backend]) -> Vec<Copies> {
    let kinds: Vec<(&Backend, &Handling)> = backends
        .iter()
        .flat_map(|backend| backend.handling.iter().map(move |kind| (backend, kind)))
        .collect();
    let name = |backend: &Backend, kind: &Handling| match kind.variant {
        "" => backend.name.to_string(),
        variant => format!("{},{variant}", backend.name),
    };
    let between =
        |(from, receiving): (&Backend, &Handling), (to, sending): (&Backend, &Handling)| Copies {
            from: name(from, receiving),
            to: name(to, sending),
            copies: receiving.copies_to(sending, from.name == to.name),
        };
    kinds
        .iter()
        .flat_map(|&from| kinds.iter().map(move |&to| between(from, to)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_copied_where_it_cannot_be_sent_as_it_lies() {
        use Receives::{InPlace, InPool};
        use Sends::{ByCopy, FromAnywhere, FromOwn, FromPool};
        for (receives, sends, same_backend, want) in [
            (InPool, FromPool, false, 0),
            (InPlace, FromPool, true, 1),
            (InPlace, FromOwn, true, 0),
            (InPlace, FromOwn, false, 1),
            (InPool, FromOwn, false, 1),
            (InPlace, FromAnywhere, false, 0),
            (InPool, ByCopy, true, 1),
        ] {
            let kind = |receives, sends| Handling {
                variant: "",
                receives,
                sends,
            };
            let found = kind(receives, ByCopy).copies_to(&kind(InPool, sends), same_backend);
            assert_eq!(found, want, "{receives:?} {sends:?} {same_backend}");
        }
    }
}
