//! Ways in which backends handle packets: where a backend's packets lie and how it sends what lies elsewhere. What a
//! frame costs between two ports in copies follows from that.

/// Place of the packets that a port delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receives {
    /// Packets lie in the worker's pool.
    InPool,
    /// Packets lie in memory of the port's own, where they arrived.
    InPlace,
    /// Packets lie as with `InPlace`, but the worker's other ports of the same kind can send them from there (DPDK's
    /// mbufs).
    InMbufs,
}

/// Way in which a port sends packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sends {
    /// Sends those of the worker's pool as they are, and copies others into it first.
    FromPool,
    /// Sends every packet from where it lies.
    FromAnywhere,
    /// Sends mbufs as they are, and copies others into one.
    FromMbufs,
    /// Copies every packet into memory of its own or of its peer.
    ByCopy,
}

/// Way in which one kind of port handles packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handling {
    /// Name that tells this kind of port from others of the backend: an option of its spec, or nothing.
    pub variant: &'static str,
    /// Place of the packets that the port delivers.
    pub receives: Receives,
    /// Way in which the port sends packets.
    pub sends: Sends,
}

impl Handling {
    /// Returns how often a frame's bytes are copied in user space on the way from a port like this to one like `to`.
    /// What the kernel or a device copies for itself is not counted.
    pub fn copies_to(&self, to: &Self) -> u32 {
        match (self.receives, to.sends) {
            (_, Sends::FromAnywhere)
            | (Receives::InPool, Sends::FromPool)
            | (Receives::InMbufs, Sends::FromMbufs) => 0,
            (_, Sends::FromPool | Sends::FromMbufs | Sends::ByCopy) => 1,
        }
    }
}
