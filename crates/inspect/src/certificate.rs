//! The subject, the issuer and the serial number of a TLS server's certificate (RFC 5280 section 4.1). Taut has its own
//! parser because only three fields are needed, and it must not allocate memory.

use std::ops::Deref;

/// Maximum length of the stored text of a field; longer text is truncated.
const LONGEST_TEXT: usize = 1024;

/// The text of one field of a certificate, truncated to a maximum length.
#[derive(Debug, Clone)]
pub struct Text {
    bytes: [u8; LONGEST_TEXT],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Self {
            bytes: [0; LONGEST_TEXT],
            len: 0,
        }
    }
}

impl Deref for Text {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Text {
    fn clear(&mut self) {
        self.len = 0;
    }

    fn push(&mut self, bytes: &[u8]) {
        let taken = bytes.len().min(LONGEST_TEXT - self.len);
        self.bytes[self.len..][..taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
    }

    /// Appends each byte as two capital hexadecimal digits, with `between` as separator.
    fn push_digits(&mut self, bytes: &[u8], between: &[u8]) {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        for (number, byte) in bytes.iter().enumerate() {
            if number > 0 {
                self.push(between);
            }
            self.push(&[
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]);
        }
    }

    fn push_number(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.push(&digits[at..]);
    }
}

/// The parsed fields of a certificate.
#[derive(Debug, Clone, Default)]
pub struct Certificate {
    /// Subject: its attributes in their order, such as `C=FR, O=Example, CN=example.org`.
    pub subject: Text,
    /// Issuer, in the same form as the subject.
    pub issuer: Text,
    /// Serial number, as two capital hexadecimal digits per byte, separated by colons.
    pub serial: Text,
}

/// The error for bytes that are no certificate: a length exceeds the enclosing element, or a field has the wrong type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCertificate;

/// ASN.1 tags of the elements of a certificate: first INTEGER, then the others (ITU-T X.690 section 8.1.2).
const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
/// Tags of elements whose bytes are used as text: UTF-8, numeric, printable, Teletex, IA5, visible and general strings,
/// and BMP strings.
const TEXTS: [u8; 8] = [0x0c, 0x12, 0x13, 0x14, 0x16, 0x1a, 0x1b, 0x1e];

impl Certificate {
    /// Parses the fields of a certificate. Fields of an earlier certificate are cleared even if parsing fails.
    ///
    /// # Errors
    /// Returns an error if the bytes are no certificate.
    pub fn read(&mut self, mut der: &[u8]) -> Result<(), NoCertificate> {
        self.subject.clear();
        self.issuer.clear();
        self.serial.clear();
        let mut signed = of_kind(&mut der, SEQUENCE)?;
        let mut fields = of_kind(&mut signed, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            of_kind(&mut fields, VERSION)?;
        }
        let serial = of_kind(&mut fields, INTEGER)?;
        self.serial.push_digits(serial, b":");
        // Skips the signature algorithm.
        of_kind(&mut fields, SEQUENCE)?;
        name(of_kind(&mut fields, SEQUENCE)?, &mut self.issuer)?;
        // Skips the validity period.
        of_kind(&mut fields, SEQUENCE)?;
        name(of_kind(&mut fields, SEQUENCE)?, &mut self.subject)
    }
}

/// Writes a distinguished name as one line: attributes separated by commas, those of a multi-valued component by `+`.
fn name(mut sets: &[u8], text: &mut Text) -> Result<(), NoCertificate> {
    while !sets.is_empty() {
        let mut attributes = of_kind(&mut sets, SET)?;
        let mut between: &[u8] = if text.is_empty() { b"" } else { b", " };
        while !attributes.is_empty() {
            let mut attribute = of_kind(&mut attributes, SEQUENCE)?;
            let kind = of_kind(&mut attribute, OBJECT)?;
            let (tag, value) = element(&mut attribute)?;
            text.push(between);
            match KINDS.iter().find(|(known, _)| *known == kind) {
                Some((_, short)) => text.push(short.as_bytes()),
                None => object(kind, text),
            }
            text.push(b"=");
            match TEXTS.contains(&tag) {
                true => text.push(value),
                false => text.push_digits(value, b""),
            }
            between = b" + ";
        }
    }
    Ok(())
}

/// Names of attribute types, by the last bytes of their object identifiers (RFC 4519 section 2, RFC 2985 section
/// 5.2.1).
const KINDS: [(&[u8], &str); 18] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "surname"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "streetAddress"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 13], "description"),
    (&[0x55, 4, 15], "businessCategory"),
    (&[0x55, 4, 17], "postalCode"),
    (&[0x55, 4, 41], "name"),
    (&[0x55, 4, 42], "givenName"),
    (&[0x55, 4, 46], "dnQualifier"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "Email"),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 0x19],
        "DC",
    ),
];

/// Writes an object identifier in dotted form (ITU-T X.690 section 8.19).
fn object(bytes: &[u8], text: &mut Text) {
    let mut number = 0_u64;
    let mut is_first = true;
    for byte in bytes {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if is_first {
            let first = (number / 40).min(2);
            text.push_number(first);
            number -= first * 40;
        }
        is_first = false;
        text.push(b".");
        text.push_number(number);
        number = 0;
    }
}

/// Removes an element with the tag `wanted` from the front of `bytes` and returns its content.
fn of_kind<'a>(bytes: &mut &'a [u8], wanted: u8) -> Result<&'a [u8], NoCertificate> {
    let (tag, content) = element(bytes)?;
    (tag == wanted).then_some(content).ok_or(NoCertificate)
}

/// Removes an element from the front of `bytes`; returns its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Result<(u8, &'a [u8]), NoCertificate> {
    let [tag, first, rest @ ..] = *bytes else {
        return Err(NoCertificate);
    };
    let (len, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (len, rest) = rest
                .split_at_checked(usize::from(long & 0x7f))
                .filter(|(len, _)| (1..=4).contains(&len.len()))
                .ok_or(NoCertificate)?;
            let number = len.iter().fold(0, |it, byte| it << 8 | usize::from(*byte));
            (number, rest)
        }
    };
    let (content, behind) = rest.split_at_checked(len).ok_or(NoCertificate)?;
    *bytes = behind;
    Ok((*tag, content))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns an encoded ASN.1 element.
    fn of(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let len = content.len();
        let len = match len {
            0..0x80 => vec![len as u8],
            0x80..0x100 => vec![0x81, len as u8],
            _ => vec![0x82, (len >> 8) as u8, len as u8],
        };
        [&[tag][..], &len, &content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        of(SEQUENCE, &[&of(OBJECT, &[kind]), &of(tag, &[value])])
    }

    fn certificate(issuer: &[u8], subject: &[u8]) -> Vec<u8> {
        let fields: [&[u8]; 7] = [
            &of(VERSION, &[&[2, 1, 2]]),
            &of(INTEGER, &[&[0, 0xe7, 0x0a]]),
            &of(SEQUENCE, &[&[5, 0]]),
            &of(SEQUENCE, &[issuer]),
            &of(SEQUENCE, &[&[0x17, 1, b'0']]),
            &of(SEQUENCE, &[subject]),
            &of(SEQUENCE, &[&[7; 300]]),
        ];
        of(SEQUENCE, &[&of(SEQUENCE, &fields), &[5, 0]])
    }

    #[test]
    fn subject_issuer_and_serial_number_are_parsed() {
        let country = attribute(&[0x55, 4, 6], 0x13, b"FR");
        let name = attribute(&[0x55, 4, 3], 0x0c, b"example.org");
        let mail = attribute(KINDS[16].0, 0x16, b"a@example.org");
        // The attribute type is 2.999.3, and the value is no text.
        let other = attribute(&[0x88, 0x37, 3], 0x03, &[0, 0xab]);
        let subject = [
            of(SET, &[&country]),
            of(SET, &[&name, &mail]),
            of(SET, &[&other]),
        ]
        .concat();
        let mut read = Certificate::default();
        for _ in 0..2 {
            let der = certificate(&of(SET, &[&name]), &subject);
            assert_eq!(read.read(&der), Ok(()));
            let text = |it: &Text| String::from_utf8_lossy(it).into_owned();
            assert_eq!(
                text(&read.subject),
                "C=FR, CN=example.org + Email=a@example.org, 2.999.3=00AB"
            );
            assert_eq!(text(&read.issuer), "CN=example.org");
            assert_eq!(text(&read.serial), "00:E7:0A");
        }
        let long = attribute(&[0x55, 4, 3], 0x0c, &[b'a'; 5000]);
        let der = certificate(&of(SET, &[&long]), &subject);
        assert_eq!(read.read(&der), Ok(()));
        assert_eq!(read.issuer.len(), LONGEST_TEXT);
    }

    #[test]
    fn truncated_or_invalid_bytes_are_no_certificate() {
        let name = attribute(&[0x55, 4, 3], 0x0c, b"example.org");
        let der = certificate(&of(SET, &[&name]), &of(SET, &[&name]));
        let mut read = Certificate::default();
        for end in 0..der.len() {
            assert_eq!(read.read(&der[..end]), Err(NoCertificate), "{end}");
        }
        // The first length is indefinite (X.690 section 8.1.3.6); the second one exceeds the address space.
        for head in [
            &[0x30, 0x80][..],
            &[0x30, 0x88, 255, 255, 255, 255, 255, 255, 255, 255],
        ] {
            assert_eq!(read.read(&[head, &der].concat()), Err(NoCertificate));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..80, byte in any::<u8>()) {
            let mut read = Certificate::default();
            let _ = read.read(&bytes);
            let name = attribute(&[0x55, 4, 3], 0x0c, b"example.org");
            let mut der = certificate(&of(SET, &[&name]), &of(SET, &[&name]));
            der[at] = byte;
            let _ = read.read(&der);
        }
    }
}
