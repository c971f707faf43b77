//! The packets in which an action sets a header field.

/// The packets in which an action sets a header field, given by their protocol; other packets stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Any,
    Ip,
    Ipv4,
    Ipv6,
    Arp,
    Ipv4OrArp,
    /// Packets with transport ports (TCP, UDP or SCTP).
    Ports,
    Tcp,
    Udp,
    Sctp,
    Icmp,
    Icmpv6,
}

impl Of {
    pub const ALL: [Self; 12] = [
        Self::Any,
        Self::Ip,
        Self::Ipv4,
        Self::Ipv6,
        Self::Arp,
        Self::Ipv4OrArp,
        Self::Ports,
        Self::Tcp,
        Self::Udp,
        Self::Sctp,
        Self::Icmp,
        Self::Icmpv6,
    ];
}
