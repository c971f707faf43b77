//! NTP 3 and 4 (RFC 5905 section 7.3). Each datagram is a message.

use crate::buffer::{Buffer, BufferSet};
use crate::findings::Findings;
use crate::record::Record;

/// The port of NTP servers.
pub(crate) const PORT: u16 = 123;
/// Number of bytes of a message without extensions.
const HEADER: usize = 48;

/// Names of NTP modes in rules, by their numbers.
pub const MODES: [&str; 8] = [
    "reserved",
    "symmetric_active",
    "symmetric_passive",
    "client",
    "server",
    "broadcast",
    "control",
    "private",
];
/// The lowest mode whose messages have another format than the header of RFC 5905.
const CONTROL: u8 = 6;

/// The parser of NTP messages, which are independent of each other.
#[derive(Debug, Default)]
pub struct Ntp {
    record: Record,
}

/// Returns true if a datagram has the length and the version of an NTP message.
pub(crate) fn is_message(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER && matches!(version(bytes[0]), 3 | 4)
}

fn version(first: u8) -> u8 {
    first >> 3 & 7
}

impl Ntp {
    /// Parses a datagram and reports its message.
    pub fn datagram(&mut self, data: &[u8], found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        if !is_message(data) {
            return found.faults(1);
        }
        let record = &mut self.record;
        record.clear();
        let mode = data[0] & 7;
        record.put_number(Buffer::NtpVersion, version(data[0]).into());
        record.put_number(Buffer::NtpMode, mode.into());
        if mode < CONTROL {
            record.put_number(Buffer::NtpStratum, data[1].into());
            record.put(Buffer::NtpReferenceId, &[&data[12..16]]);
        }
        found.tell(record, record.has());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::testing::{numbers, read_datagrams, texts};

    fn message(first: u8) -> Vec<u8> {
        let mut message = vec![0; HEADER];
        (message[0], message[1]) = (first, 2);
        message[12..16].copy_from_slice(b"LOCL");
        message
    }

    #[test]
    fn only_ntp_messages_of_versions_3_and_4_are_parsed() {
        let good = [0x1b, 0xe4, 0x26].map(message);
        let (found, counts) = read_datagrams(Application::Ntp, true, &good);
        assert_eq!((found.len(), counts.faults), (3, 0));
        let of = |buffer| [0, 1, 2].map(|at| numbers(&found[at], buffer));
        assert_eq!(of(Buffer::NtpVersion), [[3], [4], [4]]);
        assert_eq!(of(Buffer::NtpMode), [[3], [4], [6]]);
        assert_eq!(of(Buffer::NtpStratum), [vec![2], vec![2], vec![]]);
        assert_eq!(texts(&found[1], Buffer::NtpReferenceId), ["LOCL"]);
        let bad = [
            message(0x13),
            message(0x2b),
            message(0x1b)[1..].to_vec(),
            vec![],
        ];
        let (found, counts) = read_datagrams(Application::Ntp, true, &bad);
        assert_eq!((found.len(), counts.faults), (0, 4));
    }
}
