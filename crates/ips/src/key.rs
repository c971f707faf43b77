//! The key of a flow: its two endpoints, its protocol and its network.

use taut_sys::HashKey;

/// The key of a flow: the two endpoints, ordered by address and port, the protocol, and the network. Both directions
/// have the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Key {
    pub low: (u128, u16),
    pub high: (u128, u16),
    pub protocol: u8,
    /// The number of the network: the VLANs of the packets, and the pair of ports to which the ingress port belongs.
    network: u32,
}

impl Key {
    /// Returns the key of a packet's flow, and true if the lower endpoint sent the packet.
    pub fn of(
        source: (u128, u16),
        destination: (u128, u16),
        protocol: u8,
        network: u32,
    ) -> (Self, bool) {
        let from_low = source <= destination;
        let (low, high) = if from_low {
            (source, destination)
        } else {
            (destination, source)
        };
        (
            Self {
                low,
                high,
                protocol,
                network,
            },
            from_low,
        )
    }

    pub fn hash(&self, key: &HashKey) -> u64 {
        let halves = |it: u128| (it as u64, (it >> 64) as u64);
        let ports = u64::from(self.low.1) << 16 | u64::from(self.high.1);
        let rest = (
            ports,
            u64::from(self.network) << 8 | u64::from(self.protocol),
        );
        key.hash([halves(self.low.0), halves(self.high.0), rest])
    }
}
