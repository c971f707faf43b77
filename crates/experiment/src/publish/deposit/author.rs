//! Authors of a publication: people with their ORCID, and organisations.

use super::error::DepositError;
use serde_json::{Value, json};
use std::str::FromStr;

/// Start of the address of an ORCID.
const ORCID: &str = "https://orcid.org/";

/// An author: a person, or an organisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// Family name of the person, or name of the organisation.
    pub family: String,
    /// Given name; `None` for an organisation.
    pub given: Option<String>,
    /// ORCID of the person, such as `0000-0002-1825-0097`.
    pub orcid: Option<String>,
}

impl FromStr for Author {
    type Err = DepositError;

    /// Parses `Family, Given`, `Family, Given (ORCID)` or the name of an organisation.
    fn from_str(text: &str) -> Result<Self, DepositError> {
        let wrong = || DepositError::Author(text.to_owned());
        let (name, orcid) = match text
            .trim()
            .strip_suffix(')')
            .and_then(|it| it.rsplit_once('('))
        {
            Some((name, orcid)) if is_orcid(orcid) => (name, Some(orcid.to_owned())),
            Some((_, other)) if other.starts_with("0000-") => return Err(wrong()),
            _ => (text, None),
        };
        let (family, given) = match name.split_once(',') {
            Some((family, given)) => (family.trim(), Some(given.trim())),
            None => (name.trim(), None),
        };
        let is_name = |it: &str| !it.is_empty() && !it.contains(char::is_control);
        if !is_name(family) || !given.is_none_or(is_name) || (given.is_none() && orcid.is_some()) {
            return Err(wrong());
        }
        Ok(Self {
            family: family.to_owned(),
            given: given.map(ToOwned::to_owned),
            orcid,
        })
    }
}

impl Author {
    /// Returns the author as an entity of RO-Crate; `number` distinguishes authors without an ORCID.
    pub(in crate::publish) fn entity(&self, number: usize) -> Value {
        let Some(given) = &self.given else {
            return json!({ "@id": format!("#author-{number}"), "@type": "Organization", "name": self.family });
        };
        let id = match &self.orcid {
            Some(orcid) => format!("{ORCID}{orcid}"),
            None => format!("#author-{number}"),
        };
        json!({
            "@id": id,
            "@type": "Person",
            "name": format!("{given} {}", self.family),
            "givenName": given,
            "familyName": self.family,
        })
    }

    /// Reads an author from an entity of RO-Crate.
    pub(super) fn of_entity(entity: &Value) -> Option<Self> {
        let text = |key: &str| entity[key].as_str().map(ToOwned::to_owned);
        if entity["@type"] == "Organization" {
            return Some(Self {
                family: text("name")?,
                given: None,
                orcid: None,
            });
        }
        let orcid = text("@id").and_then(|id| Some(id.strip_prefix(ORCID)?.to_owned()));
        Some(Self {
            family: text("familyName")?,
            given: Some(text("givenName")?),
            orcid: orcid.filter(|it| is_orcid(it)),
        })
    }
}

/// Returns true for an ORCID with a valid check digit (ISO/IEC 7064, MOD 11-2).
fn is_orcid(text: &str) -> bool {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    let Some((check, body)) = digits.split_last().filter(|_| groups == [4, 4, 4, 4]) else {
        return false;
    };
    if !body.iter().all(u8::is_ascii_digit) {
        return false;
    }
    let total = body
        .iter()
        .fold(0_u32, |sum, byte| (sum + u32::from(byte - b'0')) * 2 % 11);
    let expected = match (12 - total) % 11 {
        10 => b'X',
        digit => b'0' + digit as u8,
    };
    *check == expected
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn authors_are_people_with_an_orcid_or_organisations() {
        for (text, family, given, orcid) in [
            ("Lovelace, Ada", "Lovelace", Some("Ada"), None),
            (
                "Carberry, Josiah (0000-0002-1825-0097)",
                "Carberry",
                Some("Josiah"),
                Some("0000-0002-1825-0097"),
            ),
            (
                "Chair of Networks (I8)",
                "Chair of Networks (I8)",
                None,
                None,
            ),
        ] {
            let author: Author = text.parse().unwrap();
            let parts = (
                author.family.as_str(),
                author.given.as_deref(),
                author.orcid.as_deref(),
            );
            assert_eq!(parts, (family, given, orcid));
            assert_eq!(Author::of_entity(&author.entity(1)), Some(author));
        }
        for wrong in [
            "",
            ",",
            "A,",
            ", B",
            "A, B (0000-0002-1825-0098)",
            "A\nC, B",
            "I8 (0000-0002-1825-0097)",
        ] {
            assert!(wrong.parse::<Author>().is_err(), "{wrong:?}");
        }
    }
}
