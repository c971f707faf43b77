//! What keeps a page of this machine for its user: secrets in it, and no name for its address.

use std::io::Read;
use std::net::IpAddr;

/// What a request has to have, and what has the browser run the page's script and no other.
pub struct Secrets {
    pub token: String,
    pub nonce: String,
}

impl Secrets {
    pub fn draw() -> std::io::Result<Self> {
        let mut random = std::fs::File::open("/dev/urandom")?;
        let mut secret = || {
            let mut bytes = [0; 16];
            random.read_exact(&mut bytes)?;
            Ok::<_, std::io::Error>(bytes.iter().map(|it| format!("{it:02x}")).collect())
        };
        Ok(Self {
            token: secret()?,
            nonce: secret()?,
        })
    }

    /// Whether it is the token; takes the same time for any that is wrong.
    pub fn is_token(&self, given: &str) -> bool {
        let pairs = given.bytes().zip(self.token.bytes());
        given.len() == self.token.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

/// Whether a host, maybe with a port, is an address, or this machine.
pub fn is_no_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_no_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:80",
            "[::1]",
            "localhost:9101",
            "LOCALHOST",
        ] {
            assert!(is_no_name(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org:80",
            "127.0.0.1.example.org",
            ":80",
            "a:b",
        ] {
            assert!(!is_no_name(host), "{host}");
        }
    }
}
