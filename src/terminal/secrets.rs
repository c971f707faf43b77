//! The secrets that prevent access to a page by anyone but the user.

use std::io::Read;

/// The token that a request needs, and the nonce that lets the browser run only the page's script.
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

    /// Reports whether `given` equals the token.
    pub fn is_token(&self, given: &str) -> bool {
        is_same(given, &self.token)
    }
}

/// Returns a random text that is impossible to guess.
pub fn secret() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|it| format!("{it:02x}")).collect())
}

/// Compares a text with a secret, in a time that does not depend on the position of the first difference.
pub fn is_same(given: &str, secret: &str) -> bool {
    let pairs = given.bytes().zip(secret.bytes());
    given.len() == secret.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}
