//! The control connection of FTP (RFC 959 chapters 4 and 5, RFC 2428, RFC 4217). A message is a command or one line of
//! a reply.
//!
//! Replies are matched to commands in order. The greeting of a server belongs to no command. The port of a data
//! connection is reported once in each direction. If the server chooses the port, it is reported to the client's
//! direction with the client's next command. Nothing is parsed after `AUTH TLS`.

use crate::buffer::{Buffer, BufferSet};
use crate::findings::{Findings, Rest};
use crate::framer::{Framers, Length};
use crate::record::Record;
use memchr::memchr;
use std::collections::VecDeque;

/// Modes of the data connection, by their names in rules. In active mode the server opens the connection, in passive
/// mode the client.
pub const MODES: [(&str, i64); 2] = [("active", ACTIVE as i64), ("passive", PASSIVE as i64)];
const ACTIVE: u64 = 1;
const PASSIVE: u64 = 2;

/// Maximum length of a command name in bytes; a line with a longer first word is not a command.
const MOST_COMMAND: usize = 16;
/// Maximum number of commands with pending replies.
const MOST_WAITING: usize = 256;

/// The parser of both directions of a connection.
#[derive(Debug, Default)]
pub struct Ftp {
    framers: Framers,
    session: Session,
}

#[derive(Debug, Default)]
struct Session {
    record: Record,
    /// Commands whose final reply is pending, in order.
    waiting: VecDeque<Command>,
    /// Code of the current multi-line reply; none outside such a reply.
    open: Option<[u8; 3]>,
    has_greeted: bool,
    /// Command to which the server has replied with a port, and that port; none once the port was reported in the
    /// client's direction.
    answered: Option<(Command, u16)>,
    /// True if later bytes are encrypted.
    is_over: bool,
}

/// A command, classified by the way in which the data port is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    /// A command such as PORT, which names the data port of the client; the value is the port.
    Active(u16),
    Passive,
    ExtendedPassive,
    Secure,
    Other,
}

impl Ftp {
    /// Resets the parser for another connection. The parser does not release its memory.
    pub fn reset(&mut self) {
        self.framers.reset();
        let session = &mut self.session;
        session.waiting.clear();
        (session.open, session.answered) = (None, None);
        (session.has_greeted, session.is_over) = (false, false);
    }

    /// Stops parsing a direction because some of its bytes are missing.
    pub fn gap(&mut self, to_server: bool) {
        self.framers.lose(to_server);
    }

    /// Parses the next bytes of a direction and reports each command or reply line.
    pub fn push(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let Self { framers, session } = self;
        framers.push(to_server, data, length, |it| {
            let line = it.bytes.strip_suffix(b"\n").unwrap_or(it.bytes);
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            match to_server {
                _ if line.is_empty() || session.is_over => {}
                true => session.command(line, found),
                false => session.line(line, found),
            }
        });
        if session.is_over {
            framers.lose(true);
            framers.lose(false);
        }
    }

    /// Returns whether the connection still needs this parser, and whether another parser may parse the next bytes.
    pub fn rest(&self) -> Rest {
        let Session {
            waiting,
            open,
            answered,
            is_over,
            ..
        } = &self.session;
        let is_settled = waiting.is_empty() && open.is_none() && answered.is_none();
        match is_over {
            true => Rest::Over,
            false if is_settled && self.framers.are_between() => Rest::Between,
            false => Rest::Within,
        }
    }
}

/// Returns the length of the line at the beginning of the given bytes.
fn length(bytes: &[u8]) -> Length {
    match memchr(b'\n', bytes) {
        Some(end) => Length::Bytes(end as u64 + 1),
        None => Length::Open,
    }
}

impl Session {
    /// Parses a command and reports it.
    fn command(&mut self, line: &[u8], found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        self.tell_client(found);
        let end = memchr(b' ', line).unwrap_or(line.len());
        let (word, value) = (&line[..end], line.get(end + 1..).unwrap_or_default());
        let mut name = [0; MOST_COMMAND];
        let name = match name.get_mut(..word.len()) {
            Some(name) if word.iter().all(u8::is_ascii_alphabetic) && !word.is_empty() => {
                name.copy_from_slice(word);
                name.make_ascii_uppercase();
                &*name
            }
            // Servers reply to unknown words too.
            _ => {
                found.faults(1);
                return self.wait(Command::Other, found);
            }
        };
        let command = match name {
            b"PORT" => port_of_six(value).map_or(Command::Other, Command::Active),
            b"EPRT" => port_of_four(value).map_or(Command::Other, Command::Active),
            b"PASV" => Command::Passive,
            b"EPSV" => Command::ExtendedPassive,
            b"AUTH" => Command::Secure,
            _ => Command::Other,
        };
        self.record.clear();
        self.record.put(Buffer::FtpCommand, &[name]);
        if !value.is_empty() {
            self.record.put(Buffer::FtpCommandData, &[value]);
        }
        if let Command::Active(port) = command {
            self.agree(ACTIVE, port);
        }
        found.tell(&self.record, self.record.has());
        self.wait(command, found);
    }

    /// Adds a command to those with pending replies.
    fn wait(&mut self, command: Command, found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        match self.waiting.len() < MOST_WAITING {
            true => self.waiting.push_back(command),
            false => found.faults(1),
        }
    }

    /// Reports the port that the server has chosen, in the client's direction.
    fn tell_client(&mut self, found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        let Some((command, port)) = self.answered.take() else {
            return;
        };
        let name: &[u8] = match command {
            Command::Passive => b"PASV",
            _ => b"EPSV",
        };
        self.record.clear();
        self.record.put(Buffer::FtpCommand, &[name]);
        self.agree(PASSIVE, port);
        let ready = [Buffer::FtpMode, Buffer::FtpDynamicPort];
        found.tell(&self.record, ready.into_iter().collect());
    }

    fn agree(&mut self, mode: u64, port: u16) {
        self.record.put_number(Buffer::FtpMode, mode);
        self.record.put_number(Buffer::FtpDynamicPort, port.into());
    }

    /// Parses a line of a reply and reports it.
    fn line(&mut self, line: &[u8], found: &mut Findings<impl FnMut(&Record, BufferSet)>) {
        let line = line.trim_ascii_end();
        let own = code_of(line);
        let goes_on = line.get(3) == Some(&b'-');
        let is_last = match (self.open, own) {
            (Some(open), Some(own)) => open == own && !goes_on,
            (None, Some(_)) => !goes_on,
            (_, None) => false,
        };
        let code = self.open.or(own);
        self.open = code.filter(|_| !is_last);
        if !self.has_greeted {
            let is_greeting = matches!(code, Some([b'1' | b'2', b'2', b'0']));
            self.has_greeted = match code {
                Some(code) => !is_greeting || is_last && code[0] == b'2',
                None => false,
            };
            if is_greeting || code.is_none() {
                return;
            }
        }
        self.record.clear();
        let text = match own {
            Some(code) if !goes_on => {
                self.record.put(Buffer::FtpCompletionCode, &[&code]);
                line.get(4..).unwrap_or_default()
            }
            _ => line,
        };
        if !text.is_empty() {
            self.record.put(Buffer::FtpReply, &[text]);
        }
        if let Some(code) = own {
            self.answer(code, text);
        }
        // A preliminary reply (code 1xx) is followed by another reply.
        let is_end = is_last && code.is_some_and(|code| code[0] != b'1');
        let answered = match is_end {
            true => self.waiting.pop_front(),
            false => None,
        };
        if answered.is_some() {
            self.record.put_number(Buffer::FtpReplyReceived, 1);
        }
        found.tell(&self.record, self.record.has());
    }

    /// Reads the mode and the port of the data connection from a line of a reply.
    fn answer(&mut self, code: [u8; 3], text: &[u8]) {
        let of_code = match &code {
            b"227" => Some(Command::Passive),
            b"229" => Some(Command::ExtendedPassive),
            b"234" => Some(Command::Secure),
            _ => None,
        };
        // These reply codes identify their command, even if an earlier command got no reply.
        let place = self.waiting.iter().position(|it| Some(*it) == of_code);
        self.waiting.drain(..place.unwrap_or(0));
        let Some(first) = self.waiting.front_mut() else {
            return;
        };
        let command = *first;
        let port = match command {
            Command::Active(port) => Some(port),
            _ if Some(command) != of_code => return,
            Command::Passive => port_of_six(behind_bracket(text)),
            Command::ExtendedPassive => port_of_four(behind_bracket(text)),
            Command::Secure | Command::Other => {
                self.is_over = true;
                return;
            }
        };
        // Later lines of the reply contain no port.
        *first = Command::Other;
        match (command, port) {
            (_, None) => {}
            (Command::Active(_), Some(port)) => self.agree(ACTIVE, port),
            (_, Some(port)) => {
                self.agree(PASSIVE, port);
                self.answered = Some((command, port));
            }
        }
    }
}

/// Returns the code at the beginning of a line.
fn code_of(line: &[u8]) -> Option<[u8; 3]> {
    let code = *line.first_chunk::<3>()?;
    let is_code = code.iter().all(u8::is_ascii_digit);
    (is_code && matches!(line.get(3), None | Some(b' ' | b'-'))).then_some(code)
}

/// Returns the text after the opening bracket of a reply, or from its first digit on if there is no bracket.
fn behind_bracket(text: &[u8]) -> &[u8] {
    let begin = match memchr(b'(', text) {
        Some(bracket) => Some(bracket + 1),
        None => text.iter().position(u8::is_ascii_digit),
    };
    begin.and_then(|at| text.get(at..)).unwrap_or_default()
}

/// Returns the port in six one-byte decimal numbers separated by commas: four for the address, two for the port (RFC
/// 959 section 4.1.2).
fn port_of_six(text: &[u8]) -> Option<u16> {
    let is_of_list = |byte: &u8| byte.is_ascii_digit() || *byte == b',';
    let end = text.iter().position(|byte| !is_of_list(byte));
    let mut parts = text[..end.unwrap_or(text.len())].split(|byte| *byte == b',');
    let mut numbers = [0u8; 6];
    for place in &mut numbers {
        *place = number(parts.next()?)?;
    }
    let port = u16::from_be_bytes([numbers[4], numbers[5]]);
    (port > 0 && parts.next().is_none()).then_some(port)
}

/// Returns the port in `|protocol|address|port|`, where any delimiter may replace the bar and the address may be empty
/// (RFC 2428 section 2).
fn port_of_four(text: &[u8]) -> Option<u16> {
    let (mark, rest) = text.split_first()?;
    let port = rest.split(|byte| byte == mark).nth(2)?;
    number(port).filter(|port| *port > 0)
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    let digits = std::str::from_utf8(digits).ok()?;
    let is_number = digits.bytes().all(|it| it.is_ascii_digit());
    digits.parse().ok().filter(|_| is_number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::protocols::Parser;
    use crate::protocols::testing::{Said, numbers, read_cut, texts, whole_as_cut};

    fn session(pieces: &[(bool, &str)]) -> Vec<Said> {
        let own: Vec<_> = pieces
            .iter()
            .map(|(to_server, text)| (*to_server, text.as_bytes().to_vec()))
            .collect();
        let (found, counts) = whole_as_cut(Application::Ftp, &own);
        assert_eq!(counts.faults, 0);
        found
    }

    /// Returns direction, mode and port of each message that reports a data connection.
    fn agreed(found: &[Said]) -> Vec<(bool, u64, u64)> {
        let of = |said: &Said| {
            let mode = numbers(said, Buffer::FtpMode);
            let port = numbers(said, Buffer::FtpDynamicPort);
            mode.first()
                .zip(port.first())
                .map(|(mode, port)| (said.0, *mode, *port))
        };
        found.iter().filter_map(of).collect()
    }

    #[test]
    fn ftp_commands_and_replies_are_parsed_at_any_split() {
        let found = session(&[
            (false, "220-Hello\r\n220 (server)\r\n"),
            (true, "user anonymous\r\nPASS  a b\r\nNOOP\n"),
            (
                false,
                "331 Name it.\r\n230-One\r\n 230 two\r\n230 three \r\n200\r\n",
            ),
            (true, "RETR x\r\n"),
            (false, "150 Opening.\r\n226 Done.\r\n"),
        ]);
        let commands: Vec<_> = found
            .iter()
            .map(|said| {
                let text = |buffer| texts(said, buffer).join("|");
                format!(
                    "{},{},{},{},{}",
                    text(Buffer::FtpCommand),
                    text(Buffer::FtpCommandData),
                    text(Buffer::FtpCompletionCode),
                    text(Buffer::FtpReply),
                    numbers(said, Buffer::FtpReplyReceived).len()
                )
            })
            .collect();
        assert_eq!(
            commands,
            [
                "USER,anonymous,,,0",
                "PASS, a b,,,0",
                "NOOP,,,,0",
                ",,331,Name it.,1",
                ",,,230-One,0",
                ",,, 230 two,0",
                ",,230,three,1",
                ",,200,,1",
                "RETR,x,,,0",
                ",,150,Opening.,0",
                ",,226,Done.,1",
            ]
        );
    }

    #[test]
    fn each_ftp_data_port_is_reported_once_per_direction() {
        let found = session(&[
            (true, "PORT 192,168,0,13,234,10\r\n"),
            (false, "200 Right.\r\n"),
            (true, "EPRT |2|::1|34325|\r\n"),
            (false, "200-Right\r\n200 so.\r\n"),
            (true, "PASV\r\n"),
            (false, "227 Entering Passive Mode (2,2,2,2,185,13).\r\n"),
            (true, "EPSV\r\n"),
            (false, "229 Extended (|||58612|)\r\n"),
            (true, "PASV\r\n"),
            (false, "227 Mode 1,2,3,4,0,21\r\n"),
            (true, "QUIT\r\n"),
        ]);
        let expected = [
            (ACTIVE, 59914),
            (ACTIVE, 34325),
            (PASSIVE, 47373),
            (PASSIVE, 58612),
            (PASSIVE, 21),
        ];
        let found = agreed(&found);
        for to_server in [true, false] {
            let of_one = found.iter().filter(|it| it.0 == to_server);
            assert!(of_one.map(|it| (it.1, it.2)).eq(expected));
        }
    }

    #[test]
    fn invalid_port_commands_and_replies_yield_no_data_port() {
        for (command, reply) in [
            ("PORT 1,2,3,4,5", "200 x"),
            ("PORT 1,2,3,4,0,0", "200 x"),
            ("PORT 1,2,3,4,256,1", "200 x"),
            ("PORT 1,2,3,4,5,6,7", "200 x"),
            ("EPRT |1|1.2.3.4|70000|", "200 x"),
            ("EPRT |1|1.2.3.4|+7|", "200 x"),
            ("EPRT", "200 x"),
            ("PASV", "227 Mode (1,2,3)"),
            ("PASV", "227"),
            ("EPSV", "227 Mode (1,2,3,4,5,6)"),
            ("EPSV", "229 Mode ("),
            ("NOOP", "227 Mode (1,2,3,4,5,6)"),
        ] {
            let [command, reply] = [command, reply].map(|it| format!("{it}\r\n"));
            let found = session(&[(true, &*command), (false, &*reply), (true, &*command)]);
            assert!(agreed(&found).is_empty(), "{command}");
        }
    }

    #[test]
    fn ftp_commands_without_a_reply_do_not_hide_data_ports() {
        let found = session(&[
            (true, "ABOR\r\nABOR\r\nPASV\r\n"),
            (false, "227 Mode (1,2,3,4,5,6)\r\n"),
        ]);
        assert_eq!(agreed(&found), [(false, PASSIVE, 0x506)]);
    }

    #[test]
    fn ftp_parsing_stops_after_the_switch_to_tls() {
        let found = session(&[
            (true, "AUTH TLS\r\n"),
            (false, "234 Go on.\r\nUSER a\r\n"),
            (true, "USER a\r\n"),
            (false, "331 x\r\n"),
        ]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn invalid_lines_are_skipped_and_long_lines_truncated() {
        let long = [b"STOR ", &[b'x'; 100_000][..], b"\r\nDELE y\r\n"].concat();
        let pieces = [
            (true, [&b"\r\n\xff\xf4 1\r\nA1 b\r\n"[..], &long].concat()),
            (false, [&[b'5'; 50_000][..], b"\r\n500 No.\r\n"].concat()),
        ];
        let mut parser = Parser::Ftp(Ftp::default());
        let whole = read_cut(&mut parser, &pieces, &[]);
        for cut in [1, 7, 1460, 16_400] {
            parser.reset();
            assert!(read_cut(&mut parser, &pieces, &[cut]) == whole, "{cut}");
        }
        let (found, counts) = whole;
        assert_eq!(counts.faults, 2);
        let commands: Vec<_> = found
            .iter()
            .flat_map(|said| texts(said, Buffer::FtpCommand))
            .collect();
        assert_eq!(commands, ["STOR", "DELE"]);
        let kept = texts(&found[0], Buffer::FtpCommandData)[0].len();
        assert!((16_000..17_000).contains(&kept));
    }

    #[test]
    fn the_number_of_stored_ftp_commands_without_reply_is_bounded() {
        let mut parser = Parser::Ftp(Ftp::default());
        for _ in 0..100 {
            parser.push(true, &b"NOOP\r\n".repeat(200), |_, _| {});
        }
        let Parser::Ftp(ftp) = &parser else {
            unreachable!()
        };
        assert_eq!(ftp.session.waiting.len(), MOST_WAITING);
    }

    #[test]
    fn the_ftp_parser_is_idle_between_commands() {
        let mut parser = Parser::Ftp(Ftp::default());
        let mut rest = |to_server, text: &str| {
            parser.push(to_server, text.as_bytes(), |_, _| {});
            parser.rest()
        };
        assert_eq!(rest(false, "220 x\r\n"), Rest::Between);
        assert_eq!(rest(true, "NO"), Rest::Within);
        assert_eq!(rest(true, "OP\r\n"), Rest::Within);
        assert_eq!(rest(false, "200 x\r\n"), Rest::Between);
        assert_eq!(rest(true, "PASV\r\n"), Rest::Within);
        assert_eq!(rest(false, "227 (1,2,3,4,5,6)\r\n"), Rest::Within);
        assert_eq!(rest(true, "NOOP\r\n"), Rest::Within);
        assert_eq!(rest(false, "200 x\r\n"), Rest::Between);
        assert_eq!(rest(true, "AUTH TLS\r\n"), Rest::Within);
        assert_eq!(rest(false, "234 x\r\n"), Rest::Over);
    }
}
