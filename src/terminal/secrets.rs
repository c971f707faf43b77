//! The secrets that keep a page on this machine for its user.

use std::io::Read;

/// What a request has to have, and what has the browser run the page's script and no other.
pub struct Secrets {
    pub token: String,
    pub nonce: String,
}

impl Secrets {
    pub fn draw() -> std::io::Result<Self> {
        Ok(Self {
            token: secret()?,
            nonce: secret()?,
        })
    }

    /// Whether it is the token.
    pub fn is_token(&self, given: &str) -> bool {
        is_same(given, &self.token)
    }
}

/// Draws a text that nobody can guess.
pub fn secret() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|it| format!("{it:02x}")).collect())
}

/// Whether somebody gives a secret; takes the same time for any that is wrong.
pub fn is_same(given: &str, secret: &str) -> bool {
    let pairs = given.bytes().zip(secret.bytes());
    given.len() == secret.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
