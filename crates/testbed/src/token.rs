//! Tokens: the secrets by which a laboratory identifies its users. The laboratory's file contains only their hashes.

use crate::error::ValueError;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use taut_results::hex;

/// Number of random bytes of a token: too many to guess, so that a plain hash suffices.
const TOKEN_BYTES: usize = 32;

/// The SHA-256 of a token.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct TokenHash(String);

impl TokenHash {
    /// Returns the hash of a token.
    pub fn of(token: &str) -> Self {
        Self(hex(&Sha256::digest(token.as_bytes())))
    }

    /// Returns the hash as 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TokenHash {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match is_hash {
            true => Ok(Self(text.to_ascii_lowercase())),
            false => Err(ValueError::Token),
        }
    }
}

/// Makes a token: 64 hexadecimal digits that cannot be guessed.
///
/// # Errors
/// The system provides no random numbers.
pub fn new_token() -> io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_differ_and_match_only_their_own_hash() {
        let (one, other) = (new_token().unwrap(), new_token().unwrap());
        assert!(one != other && one.len() == 64);
        assert_eq!(TokenHash::of(&one), TokenHash::of(&one));
        assert_ne!(TokenHash::of(&one), TokenHash::of(&other));
        // The example of FIPS 180-4.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(TokenHash::of("abc").as_str(), abc);
        assert_eq!(
            TokenHash::try_from(abc.to_uppercase()).unwrap(),
            TokenHash::of("abc")
        );
    }
}
