//! Pairs of ports: the default egress port of a packet, and the order in which it passes the functions.

/// The pairs of a list of ports: the first two are a pair, the next two, and so on. A last port without a partner is
/// its own partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    ports: usize,
}

/// The direction of a packet through the list of functions. In the reverse direction a packet passes the last function
/// first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first port of a pair to the second one.
    Out,
    /// From the second port of a pair to the first one.
    Back,
}

impl Pairs {
    /// Returns the pairs of `ports` ports.
    #[must_use]
    pub const fn of(ports: usize) -> Self {
        Self { ports }
    }

    /// Returns the egress port of packets from ingress port `from`. Packets from that egress port leave through `from`.
    #[inline(always)]
    #[must_use]
    pub const fn partner(self, from: usize) -> usize {
        if from ^ 1 < self.ports {
            from ^ 1
        } else {
            from
        }
    }
}

impl Direction {
    /// Returns the direction of packets from ingress port `from`.
    #[inline(always)]
    #[must_use]
    pub const fn from_port(from: usize) -> Self {
        if from.is_multiple_of(2) {
            Self::Out
        } else {
            Self::Back
        }
    }

    /// Returns the index of the function that a packet in this direction passes at step `step` of `count`.
    #[inline(always)]
    #[must_use]
    pub const fn place(self, step: usize, count: usize) -> usize {
        match self {
            Self::Out => step,
            Self::Back => count - 1 - step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partner_of_a_ports_partner_is_the_port_itself() {
        for ports in 1..9 {
            let pairs = Pairs::of(ports);
            for port in 0..ports {
                let partner = pairs.partner(port);
                assert!(partner < ports);
                assert_eq!(pairs.partner(partner), port);
                assert_eq!(partner == port, port + 1 == ports && ports % 2 == 1);
            }
        }
    }

    #[test]
    fn packets_of_the_reverse_direction_traverse_functions_in_reverse_order() {
        let met = |from| {
            let direction = Direction::from_port(from);
            [0, 1, 2].map(|step| direction.place(step, 3))
        };
        assert_eq!((met(0), met(1), met(2)), ([0, 1, 2], [2, 1, 0], [0, 1, 2]));
    }
}
