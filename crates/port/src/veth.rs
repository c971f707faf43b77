//! The spec of a veth pair as the first or last port of a chain; `taut chain up` makes the pair and replaces the spec
//! by a port on it.

use crate::{Attachment, Backend, PortError, PortSpec, Split};

/// The backend of specs `veth:INTERFACE[,netns=NAME][,address=A/LEN]`. It opens no port itself, so [`crate::backends`]
/// does not list it.
pub(crate) const BACKEND: Backend = Backend {
    name: "veth",
    summary: "an interface made on the spot, joined to the chain by a veth wire; in chains only",
    target: "INTERFACE",
    options: &[
        (
            "netns",
            "the namespace it is put into, which must be there (default: the command's own)",
        ),
        (
            "address",
            "its IP address with prefix length (default: none)",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[],
    passes_on: false,
    wakes: true,
    probe: || Err(nobody("veth")),
    open: |spec, _| Err(nobody(spec.text())),
    split: Split::Joinable(|spec| Err(nobody(spec.text()))),
    attachment: Attachment::Veth,
    typical_cycles: Some(5_900.0),
    loop_back: None,
};

fn nobody(what: &str) -> PortError {
    PortError::missing(what, "a chain that creates the wire: `taut chain up FILE`")
}

impl PortSpec {
    /// Returns true if the spec describes a veth pair that is yet to be made (`veth:`).
    pub fn is_wire(&self) -> bool {
        self.backend() == BACKEND.name
    }
}
