//! The outcomes of packets (relayed, dropped for a cause, and so on): every packet of the gateway is counted under
//! exactly one.

use super::kernel::Kernel;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident: $text:literal),* $(,)?) => {
        /// The outcome of a packet in the gateway, under which the packet is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Outcome { $($(#[$doc])* $name),* }

        /// The names of all outcomes, in the order of the enumeration.
        pub const OUTCOMES: &[&str] = &[$($text),*];
    };
}

outcomes! {
    /// Packets that the gateway sent on in another tunnel.
    Relayed: "relayed",
    /// Packets that were encapsulated into a tunnel.
    Encapsulated: "encapsulated",
    /// Packets that were decapsulated from a tunnel.
    Decapsulated: "decapsulated",
    /// Packets that do not concern the gateway and left unchanged (`others = "forward"`).
    Passed: "passed",
    /// An echo request, to which the slow path replies.
    EchoAnswered: "echo answered",
    /// An echo response to a request of the gateway, or an end marker of a tunnel that ends here.
    Consumed: "consumed",
    /// An error indication of a peer that does not know a tunnel.
    ErrorIndication: "error indication",
    /// Packets in an unknown tunnel; the slow path sends an error indication to the peer, within its rate limit.
    UnknownTeid: "unknown TEID",
    /// Packets in an unknown tunnel that cause no error indication: an end marker, or a packet whose upcall the
    /// programs in the kernel lost.
    UnknownTeidUntold: "unknown TEID without error indication",
    /// Packets to a user that has no tunnel.
    UnknownUser: "unknown user",
    /// Frames that contain no IP packet and are not for the gateway.
    Other: "other",
    /// Packets that the bearer's action drops.
    ToldToDrop: "told to drop",
    /// Packets at a closed gate of the bearer (TS 29.244 section 5.4.3).
    GateClosed: "gate closed",
    /// Packets above one of the bearer's maximum bit rates (TS 29.244 section 5.4.4).
    OverRate: "over the rate",
    /// Packets whose bearer requests buffering but was not set up by PFCP: only PFCP sessions have buffers.
    NotHeld: "not held",
    /// A truncated Ethernet, IP, UDP or GTP-U header, or one with a wrong length.
    Malformed: "malformed",
    /// An IPv4 header with a wrong checksum.
    BadChecksum: "bad checksum",
    /// Packets of another GTP version, or GTP'.
    BadVersion: "bad version",
    /// An unknown message type.
    UnknownMessage: "unknown message",
    /// An unknown extension header that has to be understood.
    UnknownExtension: "unknown extension",
    /// Packets from a tunnel whose content is not an IP packet.
    NotIp: "user packet not IP",
    /// A user packet from a tunnel to one of the gateway's own addresses, which users must not reach.
    ToGateway: "user packet to the gateway",
    /// GTP-U packets to the gateway that arrived at a port that is not for tunnel packets.
    WrongPort: "tunnel at a wrong port",
    /// A fragment of an outer packet: tunnel packets are not reassembled.
    Fragment: "fragment",
    /// Packets whose outer hop limit has expired.
    NoHopsLeft: "no hops left",
    /// Packets above the tunnel's MTU.
    TooBig: "too big",
    /// Packets whose buffers have no space for the headers of a tunnel.
    NoRoom: "no room",
    /// An echo request that was lost because the ring from the XDP programs to the worker was full.
    EchoUnanswered: "echo unanswered",
    /// A request for the MAC address of one of the gateway's own addresses, to which the slow path replies.
    NeighbourAnswered: "neighbour answered",
    /// Packets that no detection rule of the session matches.
    NoRule: "no rule takes it",
    /// Packets that no rule matches, although one would match if the packet had the mark of another QoS flow (TS 23.501
    /// section 5.7.1.7).
    WrongFlow: "wrong QoS flow",
    /// Packets above a quota of one of their usage rules (TS 29.244 section 5.2.2.2).
    OverQuota: "over the quota",
    /// Packets that were to be buffered, and were dropped for lack of space.
    NoRoomToHold: "no room to hold",
    /// Packets that were buffered, and dropped before they could be sent.
    HeldInVain: "dropped from buffer",
    /// An echo response without a request.
    EchoUnasked: "unrequested echo response",
    /// A user packet from a tunnel with the source address of another user.
    WrongSource: "user packet from a wrong source",
}

/// The outcomes of packets that are not dropped: those that left, or were for the gateway itself.
const NO_DROPS: [Outcome; 8] = [
    Outcome::Relayed,
    Outcome::Encapsulated,
    Outcome::Decapsulated,
    Outcome::Passed,
    Outcome::EchoAnswered,
    Outcome::Consumed,
    Outcome::ErrorIndication,
    Outcome::NeighbourAnswered,
];

/// Returns true if packets with the outcome called `name` are dropped.
pub(super) fn drops(name: &str) -> bool {
    let is_outcome = OUTCOMES.contains(&name);
    is_outcome && !NO_DROPS.iter().any(|it| OUTCOMES[*it as usize] == name)
}

/// The packet counts of a worker, indexed by [`Outcome`].
pub(super) type Counts = [u64; OUTCOMES.len()];

/// The packet counts that a worker publishes, with the counts of the XDP programs in the kernel.
#[derive(Debug)]
pub(super) struct Published {
    counts: [AtomicU64; OUTCOMES.len()],
    kernel: Kernel,
}

impl Published {
    pub fn beside(kernel: Kernel) -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            kernel,
        }
    }

    pub fn publish(&self, counts: &Counts) {
        for (published, count) in self.counts.iter().zip(counts) {
            published.store(*count, Ordering::Relaxed);
        }
    }

    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|c| c.load(Ordering::Relaxed));
        all(counts, &self.kernel)
    }
}

/// Returns the packet counts of all workers with the name of each [`Outcome`], including the counts of the XDP programs
/// in the kernel.
pub(super) fn all(
    counts: impl IntoIterator<Item = u64>,
    kernel: &Kernel,
) -> Vec<(&'static str, u64)> {
    let in_kernel = kernel.as_ref().map(|k| k.outcomes()).unwrap_or_default();
    let in_kernel = in_kernel.into_iter().chain(std::iter::repeat(0));
    let sums = counts.into_iter().zip(in_kernel).map(|(a, b)| a + b);
    OUTCOMES.iter().copied().zip(sums).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_dropped_and_forwarded_packets_are_distinguished() {
        let dropped = OUTCOMES.iter().filter(|name| drops(name)).count();
        assert_eq!(dropped, OUTCOMES.len() - NO_DROPS.len());
        assert!(drops("unknown TEID") && !drops("relayed"));
        assert!(!drops("answers lost, beside the above"));
    }
}
