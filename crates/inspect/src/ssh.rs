//! SSH up to the key exchange (RFC 4253 sections 4.2, 6 and 7.1). A message is the version line of an endpoint, or its
//! list of algorithms with the fingerprint of that list (hassh). The fingerprint is computed as salesforce/hassh
//! defines it.

use crate::buffer::{Buffer, BufferSet};
use crate::cursor::Cursor;
use crate::findings::{Findings, Rest};
use crate::fingerprint::md5_digits;
use crate::framer::{Framers, Length};
use crate::record::Record;
use memchr::memchr;

/// Maximum length in bytes of a packet that implementations accept.
const MOST_PACKET: u32 = 256 * 1024;
const KEXINIT: u64 = 20;
const NEWKEYS: u64 = 21;
/// Number of bytes of the cookie before the lists of algorithms.
const COOKIE: usize = 16;
/// Number of lists of algorithms: key exchange, host keys, then encryption, authentication and compression, each for
/// both directions, to the server first.
const LISTS: usize = 8;

/// The parser of both directions of a connection.
#[derive(Debug, Default)]
pub struct Ssh {
    framers: Framers,
    /// State of each endpoint, the client first.
    ends: [End; 2],
}

/// The parsed messages of one endpoint.
#[derive(Debug, Default)]
struct End {
    record: Record,
    has_version: bool,
    /// True if all relevant messages of the endpoint were parsed.
    is_over: bool,
}

impl Ssh {
    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        self.framers.reset();
        for end in &mut self.ends {
            (end.has_version, end.is_over) = (false, false);
        }
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
        self.ends[usize::from(!to_server)].is_over = true;
    }

    /// Parses the next bytes of a direction and reports its version and its algorithms.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let Self { framers, ends } = self;
        let end = &mut ends[usize::from(!to_server)];
        let is_lost = framers.push(to_server, data, length, |it| {
            let is_packet = it.bytes.starts_with(&[0]);
            let is_good = match is_packet {
                _ if end.is_over => true,
                true => end.packet(to_server, it.bytes, found).is_some(),
                false => end.line(to_server, it.bytes, found).is_some(),
            };
            found.faults(u64::from(!is_good));
        });
        found.faults(u64::from(is_lost && !end.is_over));
        end.is_over |= is_lost;
        if end.is_over {
            framers.lose(to_server);
        }
    }

    /// Returns whether the connection still needs this parser, and whether another parser may parse the next bytes.
    pub fn rest(&self) -> Rest {
        match self.ends.iter().all(|end| end.is_over) {
            true => Rest::Over,
            false => Rest::Within,
        }
    }
}

/// Returns the length of the line or the packet at the beginning of the given bytes: no line begins with a zero, but
/// every packet length does.
fn length(bytes: &[u8]) -> Length {
    if bytes.first().is_some_and(|&first| first != 0) {
        return match memchr(b'\n', bytes) {
            Some(end) => Length::Bytes(end as u64 + 1),
            None => Length::Unknown,
        };
    }
    match bytes.first_chunk().map(|len| u32::from_be_bytes(*len)) {
        None => Length::Unknown,
        Some(len @ 2..=MOST_PACKET) => Length::Bytes(4 + u64::from(len)),
        Some(_) => Length::Fault,
    }
}

impl End {
    /// Parses a line; returns none if the endpoint must not send such a line.
    fn line(
        &mut self,
        to_server: bool,
        line: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        let Some(version) = line.strip_prefix(b"SSH-") else {
            // Servers may send other lines before the version.
            return (!to_server && !self.has_version).then_some(());
        };
        if self.has_version {
            return None;
        }
        let dash = memchr(b'-', version).filter(|dash| *dash > 0)?;
        let (protocol, software) = (&version[..dash], &version[dash + 1..]);
        // A comment may follow the software name after a space.
        let end = software.iter().position(|byte| b" \r\n".contains(byte));
        let software = &software[..end.unwrap_or(software.len())];
        self.has_version = true;
        self.is_over = protocol != b"2.0" && protocol != b"1.99";
        self.record.clear();
        self.record.put(Buffer::SshProto, &[protocol]);
        if !software.is_empty() {
            self.record.put(Buffer::SshSoftware, &[software]);
        }
        found.tell(&self.record, self.record.has());
        Some(())
    }

    /// Parses a packet; returns none if it is invalid.
    fn packet(
        &mut self,
        to_server: bool,
        packet: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) -> Option<()> {
        let mut from = Cursor(packet);
        // Skips the length of the packet and the length of its padding.
        from.take(5)?;
        let kind = from.number(1)?;
        self.is_over = !self.has_version || matches!(kind, KEXINIT | NEWKEYS);
        if !self.has_version || kind != KEXINIT {
            return self.has_version.then_some(());
        }
        from.take(COOKIE)?;
        let mut lists: [&[u8]; LISTS] = [&[]; LISTS];
        for list in &mut lists {
            *list = from.string(4)?;
        }
        let [
            keys,
            _,
            to,
            back,
            to_codes,
            back_codes,
            to_packing,
            back_packing,
        ] = lists;
        let (parts, text, hash) = match to_server {
            true => (
                [keys, to, to_codes, to_packing],
                Buffer::SshHasshString,
                Buffer::SshHassh,
            ),
            false => (
                [keys, back, back_codes, back_packing],
                Buffer::SshHasshServerString,
                Buffer::SshHasshServer,
            ),
        };
        let [keys, encryption, codes, packing] = parts;
        let parts = [keys, b";", encryption, b";", codes, b";", packing];
        self.record.put(text, &parts);
        let digits = md5_digits(self.record.buffer(text)?);
        self.record.put(hash, &[&digits]);
        found.tell(&self.record, [text, hash].into_iter().collect());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::Parser;
    use crate::protocols::testing::{texts, whole_as_cut};

    fn packet(payload: &[u8]) -> Vec<u8> {
        let len = 1 + payload.len() as u32 + 4;
        [&len.to_be_bytes()[..], &[4], payload, &[0; 4]].concat()
    }

    fn kexinit(lists: [&str; 10]) -> Vec<u8> {
        let mut payload = vec![KEXINIT as u8];
        payload.extend([7; COOKIE]);
        for list in lists {
            payload.extend((list.len() as u32).to_be_bytes());
            payload.extend(list.as_bytes());
        }
        payload.extend([0; 5]);
        packet(&payload)
    }

    const LISTED: [&str; 10] = ["k,l", "h", "e1", "e2", "m1", "m2", "c1", "c2", "", ""];

    #[test]
    fn ssh_versions_and_algorithms_are_parsed_at_any_split() {
        let noise = packet(&[2, 0, 0, 0, 0]);
        let new_keys = packet(&[NEWKEYS as u8]);
        let encrypted = [0x5a; 300];
        let client = [
            &b"SSH-2.0-Soft_1.0 a comment\n"[..],
            &noise,
            &kexinit(LISTED),
            &new_keys,
            &encrypted,
        ];
        let server = [
            &b"Welcome\r\nSSH-1.99-Server-2\r\n"[..],
            &kexinit(LISTED),
            &new_keys,
            &encrypted,
        ];
        let (found, counts) = whole_as_cut(
            Application::Ssh,
            &[(false, server.concat()), (true, client.concat())],
        );
        assert_eq!((found.len(), counts.faults), (4, 0));
        for (at, buffer, text) in [
            (0, Buffer::SshProto, "1.99"),
            (0, Buffer::SshSoftware, "Server-2"),
            (1, Buffer::SshHasshServerString, "k,l;e2;m2;c2"),
            (1, Buffer::SshSoftware, "Server-2"),
            (2, Buffer::SshProto, "2.0"),
            (2, Buffer::SshSoftware, "Soft_1.0"),
            (3, Buffer::SshHasshString, "k,l;e1;m1;c1"),
            (3, Buffer::SshProto, "2.0"),
        ] {
            assert_eq!(texts(&found[at], buffer), [text], "{at} {buffer:?}");
        }
        let hashes = [(1, Buffer::SshHasshServer), (3, Buffer::SshHassh)];
        let hashes = hashes.map(|(at, buffer)| texts(&found[at], buffer).concat());
        assert_eq!(
            hashes,
            [
                "880b0984f975f910801de5e342e97bb8",
                "5d5f62d97e72fb844450351fe8e3c547"
            ]
        );
    }

    #[test]
    fn an_invalid_version_or_algorithm_list_is_a_fault() {
        let cut_short = kexinit(LISTED);
        let cut_short = packet(&cut_short[5..30]);
        for (sent, told) in [
            (&b"SSH-2.0\r\n"[..], 0),
            (b"SSH--x\r\n", 0),
            (b"HELLO\r\n", 0),
            (b"\0\0\0\x01x", 0),
            (b"\0\x7f\0\0x", 0),
            (&packet(&[KEXINIT as u8]), 0),
            (&[&b"SSH-2.0-x\r\n"[..], &cut_short].concat(), 1),
            (b"SSH-2.0-x\r\nSSH-2.0-y\r\n", 1),
        ] {
            let (found, counts) = whole_as_cut(Application::Ssh, &[(true, sent.to_vec())]);
            assert_eq!((found.len(), counts.faults), (told, 1), "{sent:?}");
        }
    }

    #[test]
    fn only_the_version_of_an_ssh_1_stream_is_parsed() {
        let sent = b"SSH-1.5-old\n\0\0\0\x07whatever".to_vec();
        let (found, counts) = whole_as_cut(Application::Ssh, &[(true, sent)]);
        assert_eq!((found.len(), counts.faults), (1, 0));
        assert_eq!(texts(&found[0], Buffer::SshProto), ["1.5"]);
    }

    #[test]
    fn ssh_parsing_stops_after_both_endpoints_have_sent_their_algorithms() {
        let mut parser = Parser::Ssh(Ssh::default());
        let end = [b"SSH-2.0-x\r\n", &kexinit(LISTED)[..]].concat();
        parser.push(true, &end, |_, _| {});
        assert_eq!(parser.rest(), Rest::Within);
        parser.push(false, &end, |_, _| {});
        assert_eq!(parser.rest(), Rest::Over);
        parser.reset();
        assert_eq!(parser.rest(), Rest::Within);
        parser.gap(true);
        parser.gap(false);
        assert_eq!(parser.rest(), Rest::Over);
    }
}
