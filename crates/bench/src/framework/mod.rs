//! A framework under test: a packet I/O backend with the forwarder that uses it, its transport, and the session that
//! keeps it set up for a series of trials.

mod session;

pub use session::{Events, Generator, Own, Session, Work};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_port::BATCH_CAPACITY;

/// The program that forwards packets in a framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `taut forward`, in a process of its own.
    Taut,
    /// A worker of taut in the generator's process.
    TautThread,
    /// DPDK's `dpdk-testpmd` in mode `io`, which cannot do additional work for each packet.
    Testpmd,
}

/// The transport of frames to the forwarder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// No transport: the device creates and discards frames, so that only the program has a cost.
    Nothing,
    /// Shared memory to the generator's memif ports.
    Memif,
    /// Rings between threads of one process.
    Pair,
    /// Veth pairs between two network namespaces; the generator uses AF_PACKET.
    Veth,
}

impl Transport {
    /// Returns the name of the transport for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Memif => "memif",
            Self::Pair => "pair",
            Self::Veth => "veth",
        }
    }
}

/// A framework under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Framework {
    /// Short name of the framework for file names.
    pub id: String,
    /// Name of the framework in tables and figures.
    pub label: String,
    /// The forwarding program.
    pub program: Program,
    /// The transport of frames to the forwarder.
    pub transport: Transport,
    /// The device's two ports: port specs of taut, or devices of testpmd. `{0}` and `{1}` are replaced by the sockets
    /// or interfaces, `{burst}` by the packets per call, and `{size}` by the frame length.
    pub ports: [String; 2],
    /// Note about the framework for the reader of the results.
    pub note: String,
}

impl Framework {
    /// Makes a framework without a note.
    pub fn new(
        id: &str,
        label: &str,
        program: Program,
        transport: Transport,
        ports: [&str; 2],
    ) -> Self {
        Self {
            id: id.to_string(),
            label: label.to_string(),
            program,
            transport,
            ports: ports.map(str::to_string),
            note: String::new(),
        }
    }

    /// Adds a note about the framework for the reader of the results.
    #[must_use]
    pub fn noted(mut self, note: &str) -> Self {
        self.note = note.to_string();
        self
    }

    /// Returns the short name of the framework for file names.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns true if the forwarder can do additional work for each packet.
    pub fn can_be_loaded(&self) -> bool {
        self.program != Program::Testpmd
    }

    /// Returns true if a generator sends frames at a rate, false if the device creates them itself.
    pub fn has_generator(&self) -> bool {
        self.transport != Transport::Nothing
    }

    /// Returns the specs of the forwarder's ports on the given sockets or interfaces, with `burst` packets per call.
    /// Ports that create frames make them `size_bytes` long.
    fn ports_on(&self, ends: [&str; 2], burst: usize, size_bytes: usize) -> [String; 2] {
        self.ports.clone().map(|port| {
            port.replace("{0}", ends[0])
                .replace("{1}", ends[1])
                .replace("{burst}", &burst.min(BATCH_CAPACITY).to_string())
                .replace("{size}", &size_bytes.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_in_port_specs_are_replaced_by_the_trial_settings() {
        let framework = Framework::new(
            "x",
            "x",
            Program::Taut,
            Transport::Memif,
            ["memif:{0}", "null:source={burst},size={size}"],
        );
        assert_eq!(
            framework.ports_on(["/a", "/b"], 8, 512),
            ["memif:/a", "null:source=8,size=512"]
        );
    }
}
