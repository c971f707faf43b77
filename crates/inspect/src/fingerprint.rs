//! Fingerprints of TLS hellos: JA3 of a ClientHello, JA3S of a ServerHello. (Althouse, Atkinson, Atkins: "TLS
//! Fingerprinting with JA3 and JA3S", 2019.) GREASE values, which clients send so that servers tolerate unknown numbers
//! (RFC 8701), are excluded.

use md5::{Digest, Md5};

/// Maximum length of a fingerprint's text; a hello with a longer text has no fingerprint.
const LONGEST: usize = 4096;
/// Types of the extensions that are parsed: the server name (RFC 6066 section 3) and, for a client's fingerprint,
/// groups and point formats (RFC 8422 section 5.1).
const SERVER_NAME: u16 = 0;
const GROUPS: u16 = 10;
const POINT_FORMATS: u16 = 11;

/// The fingerprint of a ClientHello or ServerHello.
#[derive(Debug, Clone)]
pub struct Fingerprint {
    text: [u8; LONGEST],
    len: usize,
    hash: [u8; 32],
}

impl Default for Fingerprint {
    fn default() -> Self {
        Self {
            text: [0; LONGEST],
            len: 0,
            hash: [0; 32],
        }
    }
}

/// Returns the server name in a ClientHello without the message header, if there is one.
pub fn server_name(hello: &[u8]) -> Option<&[u8]> {
    let (_, extensions) = client_lists(hello).ok()?;
    let mut found = extensions.extensions_in().flatten();
    let (_, mut value) = found.find(|(kind, _)| *kind == SERVER_NAME)?;
    // The server name extension is a list with one entry: type 0, a host name.
    let mut list = value.list(2).ok()?;
    let is_host = list.number(1) == Ok(0);
    is_host
        .then(|| list.list(2))
        .and_then(Result::ok)
        .map(|it| it.0)
}

/// Returns the cipher suites and extensions of a ClientHello.
fn client_lists(hello: &[u8]) -> Result<(Bytes<'_>, Bytes<'_>), NoFingerprint> {
    let mut hello = Bytes(hello);
    hello.take(2 + 32)?;
    hello.list(1)?;
    let ciphers = hello.list(2)?;
    hello.list(1)?;
    Ok((ciphers, hello.extensions()?))
}

/// The error for a hello without a fingerprint: a length exceeds the enclosing field, or the text is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoFingerprint;

impl Fingerprint {
    /// Returns the text of the fingerprint: decimal numbers, with commas between fields and dashes between the numbers
    /// of a field.
    pub fn text(&self) -> &[u8] {
        &self.text[..self.len]
    }

    /// Returns the MD5 of the text, in 32 lower-case hexadecimal digits.
    pub fn hash(&self) -> &[u8] {
        &self.hash
    }

    /// Reads a ClientHello without the message header (RFC 8446 section 4.1.2).
    ///
    /// # Errors
    /// Returns an error if the hello has no fingerprint.
    pub fn of_client(&mut self, hello: &[u8]) -> Result<(), NoFingerprint> {
        self.len = 0;
        self.number(Bytes(hello).number(2)?)?;
        let (ciphers, extensions) = client_lists(hello)?;
        self.field(ciphers.numbers(2))?;
        self.field(extensions.extensions_in().map(|it| it.map(|it| it.0)))?;
        for (wanted, width) in [(GROUPS, 2), (POINT_FORMATS, 1)] {
            let found = extensions.extensions_in().flatten();
            let value = found.into_iter().find(|(kind, _)| *kind == wanted);
            let mut value = value.map_or(Bytes(&[]), |(_, value)| value);
            // The groups and the point formats are lists with a length prefix.
            let list = match value.0 {
                [] => value,
                _ => value.list(width)?,
            };
            self.field(list.numbers(width))?;
        }
        self.finish();
        Ok(())
    }

    /// Reads a ServerHello without the message header (RFC 8446 section 4.1.3).
    ///
    /// # Errors
    /// Returns an error if the hello has no fingerprint.
    pub fn of_server(&mut self, hello: &[u8]) -> Result<(), NoFingerprint> {
        let mut hello = Bytes(hello);
        self.len = 0;
        self.number(hello.number(2)?)?;
        hello.take(32)?;
        hello.list(1)?;
        self.push(b",")?;
        self.number(hello.number(2)?)?;
        hello.take(1)?;
        let extensions = hello.extensions()?;
        self.field(extensions.extensions_in().map(|it| it.map(|it| it.0)))?;
        self.finish();
        Ok(())
    }

    /// Appends numbers as a field of the text, except GREASE values.
    fn field(
        &mut self,
        numbers: impl Iterator<Item = Result<u16, NoFingerprint>>,
    ) -> Result<(), NoFingerprint> {
        self.push(b",")?;
        let mut between: &[u8] = b"";
        for number in numbers {
            let number = number?;
            if is_made_up(number) {
                continue;
            }
            self.push(between)?;
            self.number(number)?;
            between = b"-";
        }
        Ok(())
    }

    fn number(&mut self, number: u16) -> Result<(), NoFingerprint> {
        let mut left = number;
        let mut digits = [0; 5];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                return self.push(&digits[at..]);
            }
        }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), NoFingerprint> {
        let place = self.text.get_mut(self.len..self.len + bytes.len());
        place.ok_or(NoFingerprint)?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    fn finish(&mut self) {
        self.hash = md5_digits(self.text());
    }
}

/// Returns the MD5 of bytes in lower-case hexadecimal digits.
pub(crate) fn md5_digits(bytes: &[u8]) -> [u8; 32] {
    let mut digits = [0; 32];
    for (place, byte) in digits.chunks_exact_mut(2).zip(Md5::digest(bytes)) {
        place.copy_from_slice(&hex(byte));
    }
    digits
}

/// Returns the two hexadecimal digits of a byte, in lower case.
pub(crate) fn hex(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|it| b"0123456789abcdef"[usize::from(it)])
}

/// Returns true for GREASE values (RFC 8701 section 2).
fn is_made_up(number: u16) -> bool {
    let [high, low] = number.to_be_bytes();
    high == low && low & 15 == 10
}

/// The part of a ClientHello or ServerHello that is not parsed yet.
#[derive(Debug, Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, many: usize) -> Result<&'a [u8], NoFingerprint> {
        // After an error the rest is empty, so nothing more is parsed.
        let bytes = std::mem::take(&mut self.0);
        let (taken, rest) = bytes.split_at_checked(many).ok_or(NoFingerprint)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Removes a number of `width` bytes, 1 or 2, from the front and returns it.
    fn number(&mut self, width: usize) -> Result<u16, NoFingerprint> {
        let bytes = self.take(width)?;
        Ok(bytes.iter().fold(0, |it, byte| it << 8 | u16::from(*byte)))
    }

    /// Removes a list with a length prefix of `width` bytes from the front and returns its bytes.
    fn list(&mut self, width: usize) -> Result<Bytes<'a>, NoFingerprint> {
        let len = self.number(width)?;
        self.take(usize::from(len)).map(Bytes)
    }

    /// Removes the extensions from the front and returns them; they are the last field and may be absent.
    fn extensions(&mut self) -> Result<Bytes<'a>, NoFingerprint> {
        match self.0 {
            [] => Ok(*self),
            _ => self.list(2),
        }
    }

    /// Returns all numbers of a list.
    fn numbers(mut self, width: usize) -> impl Iterator<Item = Result<u16, NoFingerprint>> {
        std::iter::from_fn(move || (!self.0.is_empty()).then(|| self.number(width)))
    }

    /// Returns the type and the value of each extension.
    fn extensions_in(mut self) -> impl Iterator<Item = Result<(u16, Bytes<'a>), NoFingerprint>> {
        std::iter::from_fn(move || {
            (!self.0.is_empty()).then(|| Ok((self.number(2)?, self.list(2)?)))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns bytes from hexadecimal text with optional spaces.
    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .bytes()
            .filter_map(|it| char::from(it).to_digit(16))
            .map(|it| it as u8)
            .collect();
        digits.chunks(2).map(|it| it[0] << 4 | it[1]).collect()
    }

    /// Returns the body of a ClientHello or ServerHello: version, 32 random bytes and `rest`.
    fn hello(rest: &str) -> Vec<u8> {
        [bytes("0303"), vec![7; 32], bytes(rest)].concat()
    }

    #[test]
    fn a_client_fingerprint_excludes_grease_values() {
        let mut read = Fingerprint::default();
        let client = hello(
            "00 0008 0a0a 1301 c02f 002f 0100 002b 1a1a0000 0000 0006 0004 00 0001 61
             000a 0008 0006 2a2a 001d 0017 000b 0002 0100 0023 0000 002b 0003 02 0304",
        );
        read.of_client(&client).unwrap();
        let text = "771,4865-49199-47,0-10-11-35-43,29-23,0";
        assert_eq!(String::from_utf8_lossy(read.text()), text);
        // The hash is from md5sum.
        let hash = "34ac76951edb2963e0bce6790baf1b1a";
        assert_eq!(String::from_utf8_lossy(read.hash()), hash);
        assert_eq!(server_name(&client), Some(&b"a"[..]));
        assert_eq!(server_name(&hello("00 0002 002f 0100")), None);
        let named = hello("00 0002 002f 0100 000c 0000 0008 0006 00 0003 61 2e 62");
        assert_eq!(server_name(&named), Some(&b"a.b"[..]));
        assert_eq!(server_name(&named[..named.len() - 1]), None);
        read.of_client(&hello("00 0002 002f 0100")).unwrap();
        assert_eq!(read.text(), b"771,47,,,");
        assert_eq!(
            read.of_client(&client[..client.len() - 1]),
            Err(NoFingerprint)
        );
    }

    #[test]
    fn a_server_fingerprint_contains_version_cipher_and_extensions() {
        let mut read = Fingerprint::default();
        let server = hello("00 c02f 00 0009 ff01 0001 00 0023 0000");
        read.of_server(&server).unwrap();
        assert_eq!(read.text(), b"771,49199,65281-35");
        read.of_server(&hello("00 002f 00")).unwrap();
        assert_eq!(read.text(), b"771,47,");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), from in 0usize..40) {
            let mut read = Fingerprint::default();
            let _ = read.of_client(&bytes);
            let _ = read.of_server(&bytes);
            let whole = hello("00 0002 002f 0100 0008 000a 0004 0002 001d");
            let damaged = [&whole[..whole.len().min(from)], &bytes].concat();
            let _ = read.of_client(&damaged);
            let _ = server_name(&damaged);
            let _ = read.of_server(&damaged);
        }
    }
}
