//! Outcomes of packets: every packet that the gateway sees is counted under exactly one of these.

use super::kernel::Kernel;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! outcomes {
    ($($(#[$doc:meta])* $name:ident: $text:literal),* $(,)?) => {
        /// Outcome of a packet.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Outcome { $($(#[$doc])* $name),* }

        /// Names of all outcomes, in the order of the enumeration.
        pub const OUTCOMES: &[&str] = &[$($text),*];
    };
}

outcomes! {
    /// Packets that left in another tunnel.
    Relayed: "relayed",
    /// Packets that left in a tunnel.
    Encapsulated: "encapsulated",
    /// Packets that left their tunnel.
    Decapsulated: "decapsulated",
    /// Packets that are none of the gateway's, and left as they came (`others = "forward"`).
    Passed: "passed",
    /// An echo request, for the slow path to answer.
    EchoAnswered: "echo answered",
    /// An echo response that was asked for, or an end marker at the end of its tunnel.
    Consumed: "consumed",
    /// A peer says that it does not know a tunnel.
    ErrorIndication: "error indication",
    /// Packets in a tunnel that nobody made; the slow path tells the peer, within its limit.
    UnknownTeid: "unknown TEID",
    /// Packets in a tunnel that nobody made, of which the peer is not told: an end marker, or more than the programs in
    /// the kernel could hand up.
    UnknownTeidUntold: "unknown TEID, untold",
    /// Packets to a user that has no tunnel.
    UnknownUser: "unknown user",
    /// Packets that are neither IP nor to the gateway.
    Other: "other",
    /// The bearer says so.
    ToldToDrop: "told to drop",
    /// The bearer's gate is closed (TS 29.244 section 5.4.3).
    GateClosed: "gate closed",
    /// One of the bearer's maximum bit rates is used up (TS 29.244 section 5.4.4).
    OverRate: "over the rate",
    /// A bearer that did not come by PFCP says to hold it: only for sessions there is a store.
    NotHeld: "not held",
    /// Ethernet, IP, UDP or GTP-U header that lies about a length or is cut short.
    Malformed: "malformed",
    /// An IPv4 header of wrong checksum.
    BadChecksum: "bad checksum",
    /// Packets of another GTP version, or GTP'.
    BadVersion: "bad version",
    /// A message that is none of GTP-U's.
    UnknownMessage: "unknown message",
    /// An extension header that has to be understood and is not.
    UnknownExtension: "unknown extension",
    /// A user packet that is not IP.
    NotIp: "user packet not IP",
    /// A user packet out of a tunnel to one of the gateway's own addresses: users have no business there.
    ToGateway: "user packet to the gateway",
    /// GTP-U to the gateway through a port that no tunnels come in by.
    WrongPort: "tunnel at a wrong port",
    /// A fragment of an outer packet: tunnels are not put together again.
    Fragment: "fragment",
    /// The outer packet has no hops left.
    NoHopsLeft: "no hops left",
    /// Does not fit into the tunnel's MTU.
    TooBig: "too big",
    /// Packets that there was no memory for, as they got longer.
    NoRoom: "no room",
    /// An echo request that the programs in the kernel had no room to hand up.
    EchoUnanswered: "echo unanswered",
    /// A question for the MAC address of one of the gateway's own addresses, for the slow path to answer.
    NeighbourAnswered: "neighbour answered",
    /// No detection rule of the session takes it.
    NoRule: "no rule takes it",
    /// A rule would take it, were it not marked with another QoS flow, or none (TS 23.501 section 5.7.1.7).
    WrongFlow: "wrong QoS flow",
    /// A quota of one of its usage rules is used up (TS 29.244 section 5.2.2.2).
    OverQuota: "over the quota",
    /// It was to be kept until its user is reached, and there was no room.
    NoRoomToHold: "no room to hold",
    /// It was kept, and then was to be dropped.
    HeldInVain: "held in vain",
    /// An echo response that nobody has asked for.
    EchoUnasked: "echo response unasked",
}

/// Outcomes of packets that went on, or were for the gateway itself.
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

/// Whether packets with the outcome of that name go no further.
pub(super) fn drops(name: &str) -> bool {
    let is_outcome = OUTCOMES.contains(&name);
    is_outcome && !NO_DROPS.iter().any(|it| OUTCOMES[*it as usize] == name)
}

/// Counts by outcome.
pub(super) type Counts = [u64; OUTCOMES.len()];

/// Counts that the worker publishes and others read, with those of the kernel beside it.
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

/// Counts by name, with those of the kernel.
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
    fn what_goes_no_further_is_told_from_what_does() {
        let dropped = OUTCOMES.iter().filter(|name| drops(name)).count();
        assert_eq!(dropped, OUTCOMES.len() - NO_DROPS.len());
        assert!(drops("unknown TEID") && !drops("relayed"));
        assert!(!drops("answers lost, beside the above"));
    }
}
