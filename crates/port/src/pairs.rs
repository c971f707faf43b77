//! Ports in pairs: where a packet goes that nobody has sent elsewhere, and in which order it meets functions.

/// Ports in pairs: of so many ports the first two are a pair, the next two, and so on; a last one without a partner is
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairs {
    ports: usize,
}

/// Direction of a packet through the list of functions. The list is like a row of rooms: a packet on its way back meets
/// the last one first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first port of a pair to the second one.
    Out,
    /// From the second port of a pair to the first one.
    Back,
}

impl Pairs {
    /// Pairs of so many ports.
    #[must_use]
    pub const fn of(ports: usize) -> Self {
        Self { ports }
    }

    /// The port through which packets leave that came in through port `from`; also the port whose packets leave through `from`.
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
    /// Returns the direction of packets that come in through port `from`.
    #[inline(always)]
    #[must_use]
    pub const fn from_port(from: usize) -> Self {
        if from.is_multiple_of(2) {
            Self::Out
        } else {
            Self::Back
        }
    }

    /// Returns which of `count` functions is met as number `step`.
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
    fn every_port_has_one_partner_whose_partner_it_is() {
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
    fn who_goes_back_meets_functions_in_reverse() {
        let met = |from| {
            let direction = Direction::from_port(from);
            [0, 1, 2].map(|step| direction.place(step, 3))
        };
        assert_eq!((met(0), met(1), met(2)), ([0, 1, 2], [2, 1, 0], [0, 1, 2]));
    }
}
