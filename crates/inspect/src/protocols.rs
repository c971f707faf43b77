//! The protocols above layer 4 whose messages are records: one parser type for those over TCP, and the parsers for
//! datagrams.

pub use crate::findings::{Counts, Findings, MOST_MESSAGES, Rest};

use crate::buffer::{Application, BufferSet};
use crate::dcerpc::DceRpc;
use crate::ftp::Ftp;
use crate::http2::Http2;
use crate::ike::Ike;
use crate::mqtt::Mqtt;
use crate::ntp::Ntp;
use crate::record::Record;
use crate::sip::Sip;
use crate::ssh::Ssh;

/// The protocols over TCP whose messages are records.
pub const WITH_RECORDS: [Application; 6] = [
    Application::DceRpc,
    Application::Sip,
    Application::Mqtt,
    Application::Http2,
    Application::Ftp,
    Application::Ssh,
];

/// The parser of a connection. It is created for one protocol and then reused for one connection after the other.
pub enum Parser {
    /// Parser of DCE/RPC.
    DceRpc(Box<DceRpc>),
    /// Parser of SIP.
    Sip(Sip),
    /// Parser of MQTT.
    Mqtt(Mqtt),
    /// Parser of HTTP/2.
    Http2(Box<Http2>),
    /// Parser of FTP.
    Ftp(Ftp),
    /// Parser of SSH.
    Ssh(Ssh),
}

/// Evaluates an expression with the parser in any variant of [`Parser`], such as a call of a method that all parsers
/// have.
macro_rules! each_parser {
    ($of:expr, $parser:ident => $call:expr) => {
        match $of {
            Parser::DceRpc($parser) => $call,
            Parser::Sip($parser) => $call,
            Parser::Mqtt($parser) => $call,
            Parser::Http2($parser) => $call,
            Parser::Ftp($parser) => $call,
            Parser::Ssh($parser) => $call,
        }
    };
}

impl Parser {
    /// Creates a parser for a protocol; returns none if its messages are not records.
    pub fn new(application: Application) -> Option<Self> {
        match application {
            Application::DceRpc => Some(Self::DceRpc(Box::default())),
            Application::Sip => Some(Self::Sip(Sip::default())),
            Application::Mqtt => Some(Self::Mqtt(Mqtt::default())),
            Application::Http2 => Some(Self::Http2(Box::default())),
            Application::Ftp => Some(Self::Ftp(Ftp::default())),
            Application::Ssh => Some(Self::Ssh(Ssh::default())),
            _ => None,
        }
    }

    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        each_parser!(self, parser => parser.reset());
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        each_parser!(self, parser => parser.gap(to_server));
    }

    /// Parses the next bytes of a direction and calls `each` with every complete message and the buffers that are new
    /// in it.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        each: impl FnMut(&Record, BufferSet),
    ) -> Counts {
        let mut found = Findings::new(each);
        each_parser!(self, parser => parser.push(to_server, data, &mut found));
        found.counts()
    }

    /// Returns whether the connection still needs this parser, and whether another parser may parse the next bytes.
    pub fn rest(&self) -> Rest {
        match self {
            Self::Ftp(ftp) => ftp.rest(),
            Self::Ssh(ssh) => ssh.rest(),
            _ => Rest::Within,
        }
    }
}

/// The parsers of datagrams. They keep no state between datagrams.
#[derive(Debug, Default)]
pub struct Datagrams {
    sip: Sip,
    ntp: Ntp,
    ike: Ike,
}

impl Datagrams {
    /// Parses a datagram and calls `each` with the message in it; does nothing for a protocol that only uses TCP.
    pub fn read(
        &mut self,
        application: Application,
        to_server: bool,
        data: &[u8],
        each: impl FnMut(&Record, BufferSet),
    ) -> Counts {
        let mut found = Findings::new(each);
        match application {
            Application::Sip => self.sip.datagram(data, &mut found),
            Application::Ntp => self.ntp.datagram(data, &mut found),
            Application::Ike => self.ike.datagram(to_server, data, &mut found),
            _ => {}
        }
        found.counts()
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Helpers of the parsers' tests.

    use super::*;
    use crate::buffer::Buffer;

    /// A reported message: its direction (true for to the server), and its instances, each with its buffer.
    pub type Said = (bool, Vec<(Buffer, Vec<u8>)>);

    /// Passes pieces of both directions to a parser and returns the messages, with the total counts.
    pub fn read<'a>(
        parser: &mut Parser,
        pieces: impl IntoIterator<Item = (bool, &'a [u8])>,
    ) -> (Vec<Said>, Counts) {
        let (mut found, mut all) = (Vec::new(), Counts::default());
        for (to_server, piece) in pieces {
            let counts = parser.push(to_server, piece, |record, _| {
                let of = |buffer| record.buffers(buffer).map(move |it| (buffer, it.to_vec()));
                found.push((to_server, record.has().iter().flat_map(of).collect()));
            });
            all.told += counts.told;
            all.left_out += counts.left_out;
            all.faults += counts.faults;
        }
        (found, all)
    }

    /// Passes the datagrams of a direction to their parser and returns the messages, with the total counts.
    pub fn read_datagrams(
        application: Application,
        to_server: bool,
        datagrams: &[Vec<u8>],
    ) -> (Vec<Said>, Counts) {
        let (mut parsers, mut found) = (Datagrams::default(), Vec::new());
        let mut all = Counts::default();
        for datagram in datagrams {
            let counts = parsers.read(application, to_server, datagram, |record, _| {
                let of = |buffer| record.buffers(buffer).map(move |it| (buffer, it.to_vec()));
                found.push((to_server, record.has().iter().flat_map(of).collect()));
            });
            all.told += counts.told;
            all.left_out += counts.left_out;
            all.faults += counts.faults;
        }
        (found, all)
    }

    /// Does the same as [`read`], after splitting the pieces into parts with the given lengths, which repeat.
    pub fn read_cut(
        parser: &mut Parser,
        pieces: &[(bool, Vec<u8>)],
        cuts: &[usize],
    ) -> (Vec<Said>, Counts) {
        let mut cut_pieces = Vec::new();
        let mut cuts = cuts.iter().cycle();
        for (to_server, piece) in pieces {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let cut = cuts
                    .next()
                    .map_or(rest.len(), |&cut| cut.clamp(1, rest.len()));
                cut_pieces.push((*to_server, &rest[..cut]));
                rest = &rest[cut..];
            }
        }
        read(parser, cut_pieces)
    }

    /// Checks that the messages do not depend on how the pieces are split, and returns them.
    pub fn whole_as_cut(
        application: Application,
        pieces: &[(bool, Vec<u8>)],
    ) -> (Vec<Said>, Counts) {
        let Some(mut parser) = Parser::new(application) else {
            return Default::default();
        };
        let whole = read_cut(&mut parser, pieces, &[]);
        let longest = pieces
            .iter()
            .map(|(_, piece)| piece.len())
            .max()
            .unwrap_or(0);
        for cut in 1..longest {
            parser.reset();
            assert_eq!(
                read_cut(&mut parser, pieces, &[cut]),
                whole,
                "cut after {cut}"
            );
        }
        whole
    }

    /// Returns the instances of a buffer in a message, as text.
    pub fn texts(said: &Said, buffer: Buffer) -> Vec<String> {
        let of = said.1.iter().filter(|it| it.0 == buffer);
        of.map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }

    /// Returns the numbers of a buffer in a message.
    pub fn numbers(said: &Said, buffer: Buffer) -> Vec<u64> {
        let of = said.1.iter().filter(|it| it.0 == buffer);
        of.filter_map(|(_, bytes)| crate::record::number_of(bytes))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::testing::read_cut;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_beyond_the_limit_per_segment_are_only_counted() {
        let mut parser = Parser::new(Application::Mqtt).unwrap();
        let pings = b"\xc0\x00".repeat(MOST_MESSAGES as usize + 100);
        let mut told = 0;
        let counts = parser.push(true, &pings, |_, _| told += 1);
        assert_eq!((counts.told, told), (MOST_MESSAGES, MOST_MESSAGES));
        assert_eq!(counts.left_out, 100);
    }

    #[test]
    fn directions_with_a_gap_are_skipped_until_the_next_connection() {
        for application in WITH_RECORDS {
            let mut parser = Parser::new(application).unwrap();
            parser.gap(true);
            assert_eq!(parser.push(true, b"\xff", |_, _| {}), Counts::default());
            parser.reset();
            let garbage = [0xff; 20_000];
            let counts = parser.push(true, &garbage, |_, _| {});
            assert!(counts.faults > 0 || application == Application::Http2);
        }
    }

    proptest! {
        #[test]
        fn an_arbitrary_datagram_yields_a_single_message_or_none(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0u8..12], 0..200),
            to_server in any::<bool>(),
        ) {
            for application in [Application::Sip, Application::Ntp, Application::Ike] {
                let counts = Datagrams::default().read(application, to_server, &bytes, |_, _| {});
                prop_assert!(counts.told <= 1);
            }
        }

        #[test]
        fn arbitrary_bytes_are_parsed_equally_at_any_split(
            pieces in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(prop_oneof![any::<u8>(), 0u8..12], 0..200)),
                0..8,
            ),
            cuts in prop::collection::vec(1usize..64, 0..6),
        ) {
            for application in WITH_RECORDS {
                let mut parser = Parser::new(application).unwrap();
                let whole = read_cut(&mut parser, &pieces, &[]);
                parser.reset();
                let cut = read_cut(&mut parser, &pieces, &cuts);
                // The number of reported messages of one piece is limited.
                if whole.1.left_out == 0 {
                    prop_assert_eq!(cut.1.faults, whole.1.faults, "{:?}", application);
                    prop_assert_eq!(cut.0, whole.0, "{:?}", application);
                }
            }
        }
    }
}
