//! Packets that the filters of a detection rule take (3GPP TS 29.244 section 8.2.5, TS 29.212 section 5.4.2): all of
//! its tunnel or user, or some.

use super::session::{Refusal, look};
use std::net::IpAddr;
use taut_wire::pfcp::{Cause, Element, ElementType};

/// Flag that says that there is a flow description.
const HAS_DESCRIPTION: u8 = 1;
/// Fields beside it that packets have to have: traffic class, security parameter index, flow label.
const HAS_CONDITIONS: u8 = 0b1110;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Takes {
    #[default]
    All,
    /// Some packets; of that IP version only, where it is known.
    Some { is_v4: Option<bool> },
}

/// Source or destination of a flow description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Any,
    Some { is_v4: Option<bool> },
}

impl Takes {
    /// Reads the detection information of a rule for packets to or from `users`; none where it says nothing about
    /// flows.
    pub fn of(pdi: &Element<'_>, users: &[IpAddr]) -> Result<Option<Self>, Refusal> {
        if look(pdi, ElementType::APPLICATION_ID)?.is_some() {
            return Ok(Some(Self::Some { is_v4: None }));
        }
        let mut sum: Option<Self> = None;
        for element in pdi.group() {
            let element = element?;
            if element.element_type == ElementType::SDF_FILTER {
                let one = Self::filter(element.value, users)?;
                sum = Some(sum.map_or(one, |sum| sum.or(one)));
            }
        }
        Ok(sum)
    }

    /// Whether users of these addresses have no such packets.
    pub fn none_of(self, users: impl Iterator<Item = IpAddr>) -> bool {
        let Self::Some { is_v4: Some(is_v4) } = self else {
            return false;
        };
        let mut users = users.peekable();
        users.peek().is_some() && users.all(|user| user.is_ipv4() != is_v4)
    }

    /// Returns what both take together.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Some { is_v4: a }, Self::Some { is_v4: b }) => Self::Some {
                is_v4: a.filter(|_| a == b),
            },
            _ => Self::All,
        }
    }

    fn filter(value: &[u8], users: &[IpAddr]) -> Result<Self, Refusal> {
        let too_short = Refusal::new(Cause::INVALID_LENGTH);
        // Flags, a spare byte, then the length of the description and the description.
        let [flags, _, rest @ ..] = value else {
            return Err(too_short);
        };
        if flags & HAS_DESCRIPTION == 0 {
            return Ok(Self::Some { is_v4: None });
        }
        let (length, rest) = rest.split_at_checked(2).ok_or(too_short)?;
        let length = usize::from(length[0]) << 8 | usize::from(length[1]);
        let description = rest.get(..length).ok_or(too_short)?;
        let takes = Self::described(&String::from_utf8_lossy(description), users);
        Ok(match takes {
            Self::All if flags & HAS_CONDITIONS != 0 => Self::Some { is_v4: None },
            takes => takes,
        })
    }

    /// Reads a description `permit out PROTOCOL from ADDRESS[ PORTS] to ADDRESS[ PORTS]`.
    fn described(text: &str, users: &[IpAddr]) -> Self {
        let words: Vec<_> = text.split_ascii_whitespace().collect();
        let behind = |word: &str| {
            let at = words.iter().position(|w| *w == word);
            at.and_then(|at| words.get(at + 1))
                .map(|w| End::of(w, users))
        };
        match (&words[..], behind("from"), behind("to")) {
            (["permit", "out", "ip", "from", _, "to", _], Some(End::Any), Some(End::Any)) => {
                Self::All
            }
            (_, Some(from), Some(to)) => Self::Some {
                is_v4: from.version().or(to.version()),
            },
            _ => Self::Some { is_v4: None },
        }
    }
}

impl End {
    fn of(word: &str, users: &[IpAddr]) -> Self {
        if matches!(word, "any" | "assigned") {
            return Self::Any;
        }
        let (address, length) = word.split_once('/').unwrap_or((word, ""));
        let Ok(address) = address.parse::<IpAddr>() else {
            return Self::Some { is_v4: None };
        };
        let is_v4 = address.is_ipv4();
        let of_version = users.iter().all(|user| user.is_ipv4() == is_v4) && !users.is_empty();
        let is_whole = matches!((length, is_v4), ("", _) | ("32", true) | ("128", false));
        if of_version && (length == "0" || (is_whole && users == [address])) {
            return Self::Any;
        }
        Self::Some { is_v4: Some(is_v4) }
    }

    fn version(self) -> Option<bool> {
        match self {
            Self::Any => None,
            Self::Some { is_v4 } => is_v4,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_takes_every_packet_is_told_from_what_takes_some() {
        let v4: IpAddr = "10.45.0.2".parse().unwrap();
        let v6: IpAddr = "2001:db8:45::2".parse().unwrap();
        let some = |is_v4| Takes::Some { is_v4 };
        for (text, users, takes) in [
            ("permit out ip from any to assigned", &[v4][..], Takes::All),
            ("permit out ip from any to any ", &[], Takes::All),
            ("permit out ip from assigned to any", &[v4, v6], Takes::All),
            ("permit out ip from any to 10.45.0.2", &[v4], Takes::All),
            ("permit out ip from any to 10.45.0.2/32", &[v4], Takes::All),
            (
                "permit out ip from 0.0.0.0/0 to assigned",
                &[v4],
                Takes::All,
            ),
            ("permit out ip from ::/0 to assigned", &[v6], Takes::All),
            (
                "permit out ip from ::/0 to assigned",
                &[v4],
                some(Some(false)),
            ),
            (
                "permit out ip from 0.0.0.0/0 to assigned",
                &[v4, v6],
                some(Some(true)),
            ),
            (
                "permit out ip from any to 10.45.0.3",
                &[v4],
                some(Some(true)),
            ),
            (
                "permit out ip from any to 10.45.0.2/31",
                &[v4],
                some(Some(true)),
            ),
            ("permit out ip from any to assigned 80", &[v4], some(None)),
            ("permit out 17 from any to assigned", &[v4], some(None)),
            ("permit in ip from any to assigned", &[v4], some(None)),
            ("deny out ip from any to assigned", &[v4], some(None)),
            (
                "permit out ip from !10.0.0.0/8 to assigned",
                &[v4],
                some(None),
            ),
            (
                "permit out 58 from ff02::2/128 to assigned",
                &[v4],
                some(Some(false)),
            ),
            (
                "permit out 17 from 198.51.100.7 5060 to assigned",
                &[v4],
                some(Some(true)),
            ),
            ("from to", &[v4], some(None)),
            ("", &[v4], some(None)),
        ] {
            let length = (text.len() as u16).to_be_bytes();
            let value = |flags: u8| [&[flags, 0][..], &length, text.as_bytes()].concat();
            assert_eq!(Takes::filter(&value(1), users), Ok(takes), "{text}");
            // That the filter has a number changes nothing, another condition does.
            assert_eq!(Takes::filter(&value(0x11), users), Ok(takes), "{text}");
            assert_ne!(Takes::filter(&value(3), users), Ok(Takes::All), "{text}");
        }
        assert!(some(Some(false)).none_of([v4].into_iter()));
        for (takes, users) in [
            (some(Some(false)), vec![v4, v6]),
            (some(Some(false)), vec![]),
            (some(None), vec![v4]),
            (Takes::All, vec![v4]),
        ] {
            assert!(!takes.none_of(users.into_iter()));
        }
    }

    #[test]
    fn a_description_that_is_cut_short_is_of_invalid_length() {
        let cut = Err(Refusal::new(Cause::INVALID_LENGTH));
        for value in [&[][..], &[1], &[1, 0], &[1, 0, 0], &[1, 0, 0, 5, b'p']] {
            assert_eq!(Takes::filter(value, &[]), cut, "{value:?}");
        }
        let without = Takes::filter(&[0x10, 0, 0, 0, 0, 1], &[]);
        assert_eq!(without, Ok(Takes::Some { is_v4: None }));
    }
}
