//! The signalling procedures, and the weights by which a load draws them.

use std::str::FromStr;

/// A signalling procedure about one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Procedure {
    /// The user's session is created; its packets wait for a base station.
    Attach,
    /// An idle user returns: packets to the user take a tunnel (service request).
    Active,
    /// An active user goes idle: packets to the user are buffered, and reported.
    Idle,
    /// An active user moves to another base station: packets take another tunnel, after an end marker.
    Handover,
    /// The user's session is deleted.
    Detach,
}

impl Procedure {
    /// All procedures, in the order of the weights in a [`Mix`].
    pub const ALL: [Self; 5] = [
        Self::Attach,
        Self::Active,
        Self::Idle,
        Self::Handover,
        Self::Detach,
    ];

    /// Returns the name of the procedure.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Handover => "handover",
            Self::Detach => "detach",
        }
    }
}

/// The weight of each procedure, in the order of [`Procedure::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix(pub [u32; 5]);

impl Default for Mix {
    /// Returns the mix of many users who are idle most of the time: mostly service requests and releases.
    fn default() -> Self {
        Self([1, 4, 4, 2, 1])
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut weights = [0; 5];
        for part in text.split(',') {
            let wrong = || {
                let names = Procedure::ALL.map(Procedure::name).join(", ");
                format!("\"{part}\": expected a procedure and its weight, such as idle=2: {names}")
            };
            let (name, weight) = part.trim().split_once('=').ok_or_else(wrong)?;
            let mut all = Procedure::ALL.iter();
            let place = all.position(|it| it.name() == name).ok_or_else(wrong)?;
            let weight: u32 = weight.parse().map_err(|_| wrong())?;
            if weight > 1_000_000 {
                return Err(wrong());
            }
            weights[place] = weight;
        }
        match weights.iter().sum::<u32>() {
            0 => Err(format!("\"{text}\": expected a weight above 0")),
            _ => Ok(Self(weights)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn omitted_procedures_have_weight_zero() {
        let mix: Mix = "attach=1, idle=2,active=2".parse().unwrap();
        assert_eq!(mix, Mix([1, 2, 2, 0, 0]));
        for text in ["", "idle", "idle=x", "park=1", "idle=0", "idle=1,,"] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }
}
