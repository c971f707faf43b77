//! The results of translating packets: every packet is counted under exactly one of these.

/// The result of translating one packet. The values are the same in crates/xdp/ebpf/function/nat.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    ToOutside,
    ToInside,
    Error,
    Passed,
    NoMapping,
    NotOurs,
    Hairpin,
    NoPort,
    TableFull,
    HostFull,
    Fragment,
    Protocol,
    Malformed,
}

/// The names of the counters of packets by result, in the order of [`Outcome`].
pub(super) const OUTCOMES: [&str; 13] = [
    "translated to outside",
    "translated to inside",
    "translated: ICMP error",
    "passed: no IPv4",
    "dropped: no mapping",
    "dropped: not to an outside address",
    "dropped: from inside to an outside address",
    "dropped: no port free",
    "dropped: table full",
    "dropped: its host has too many mappings",
    "dropped: fragment",
    "dropped: another protocol",
    "dropped: malformed",
];

impl Outcome {
    pub fn is_sent(self) -> bool {
        matches!(
            self,
            Self::ToOutside | Self::ToInside | Self::Error | Self::Passed
        )
    }
}
