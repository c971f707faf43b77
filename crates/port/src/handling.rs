//! The handling of packets by backends: the memory of received packets, and the copies of sent packets. Together they
//! give the number of copies of a frame between two ports.

/// The memory of the packets that a port delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receives {
    /// Received packets are in the worker's pool.
    InPool,
    /// Received packets stay in the port's own memory, into which they arrived.
    InPlace,
    /// The port's own memory, as with `InPlace`; the worker's other ports of the same kind can send the packets without
    /// a copy (DPDK's mbufs).
    InMbufs,
}

/// The copies that a port makes of packets that it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sends {
    /// Sends packets of the worker's pool without a copy, and copies other packets into the pool first.
    FromPool,
    /// Sends every packet without a copy.
    FromAnywhere,
    /// Sends mbufs without a copy, and copies other packets into an mbuf.
    FromMbufs,
    /// Copies every packet into its own memory or that of its peer.
    ByCopy,
}

/// The handling of packets by one kind of port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// Option of the spec that distinguishes this kind of port from other kinds of the backend; empty if no option
    /// does.
    pub variant: &'static str,
    /// Memory of the packets that ports of this kind deliver.
    pub receives: Receives,
    /// Copies that ports of this kind make of packets that they send.
    pub sends: Sends,
}

impl Handling {
    /// Returns how often a frame's bytes are copied in user space on the path from a port of this kind to a port of
    /// kind `to`. Copies by the kernel or a device are not counted.
    pub fn copies_to(&self, to: &Self) -> u32 {
        match (self.receives, to.sends) {
            (_, Sends::FromAnywhere)
            | (Receives::InPool, Sends::FromPool)
            | (Receives::InMbufs, Sends::FromMbufs) => 0,
            (_, Sends::FromPool | Sends::FromMbufs | Sends::ByCopy) => 1,
        }
    }
}
