//! Changes of the Ethernet addresses of frames in the kernel.

/// The origin of a MAC address in an outgoing frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Address {
    /// The destination address of the incoming frame.
    OfDestination,
    /// The source address of the incoming frame.
    OfSource,
    /// A fixed address, which does not depend on the incoming frame.
    Fixed([u8; 6]),
}

/// The new destination and source MAC addresses of an outgoing frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderChange {
    /// The origin of the new destination address.
    pub destination: Address,
    /// The origin of the new source address.
    pub source: Address,
}

impl HeaderChange {
    /// Leaves both addresses unchanged.
    pub const NONE: Self = Self {
        destination: Address::OfDestination,
        source: Address::OfSource,
    };

    /// Swaps both addresses.
    pub const SWAP: Self = Self {
        destination: Address::OfSource,
        source: Address::OfDestination,
    };

    /// Returns this change followed by another one.
    ///
    /// ```
    /// use taut_xdp::forward::HeaderChange;
    ///
    /// assert_eq!(HeaderChange::SWAP.then(HeaderChange::SWAP), HeaderChange::NONE);
    /// ```
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        let through = |address| match address {
            Address::OfDestination => self.destination,
            Address::OfSource => self.source,
            fixed @ Address::Fixed(_) => fixed,
        };
        Self {
            destination: through(next.destination),
            source: through(next.source),
        }
    }

    /// Returns the change as constants of the XDP programs (ebpf/header_change.h).
    #[cfg(feature = "xdp")]
    pub(crate) fn constants(self) -> [u8; 14] {
        let part = |address| match address {
            Address::OfDestination => (0, [0; 6]),
            Address::OfSource => (1, [0; 6]),
            Address::Fixed(bytes) => (2, bytes),
        };
        let (destination_origin, destination) = part(self.destination);
        let (source_origin, source) = part(self.source);
        let mut bytes = [0; 14];
        bytes[0] = destination_origin;
        bytes[1] = source_origin;
        bytes[2..8].copy_from_slice(&destination);
        bytes[8..].copy_from_slice(&source);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_change_applies_to_the_previous_changes_result() {
        let source = HeaderChange {
            source: Address::Fixed([1; 6]),
            ..HeaderChange::NONE
        };
        let then_swapped = source.then(HeaderChange::SWAP);
        assert_eq!(then_swapped.destination, Address::Fixed([1; 6]));
        assert_eq!(then_swapped.source, Address::OfDestination);
        let swapped_first = HeaderChange::SWAP.then(source);
        assert_eq!(swapped_first.destination, Address::OfSource);
        assert_eq!(swapped_first.source, Address::Fixed([1; 6]));
    }
}
