//! Attacks: the bytes that a client sends although a rule forbids them, harmless variants, and the bytes that must not
//! reach the server.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The rules that drop each attack. The two rules for raw streams differ in the port of their [`Target`].
pub const RULES: &str = "\
    drop tcp any any -> any 7000 (msg:\"bytes\"; flow:established,to_server; content:\"EVIL-attack-bytes\"; sid:1;)\n\
    drop tcp any any -> any 7001 (msg:\"bytes, urgent ones among them\"; content:\"EVIL-attack-bytes\"; sid:2;)\n\
    drop http any any -> any any (msg:\"path\"; flow:established,to_server; http.uri; content:\"/evil\"; sid:3;)\n\
    drop tcp any 10000:60000 -> any any (msg:\"bytes of a server\"; flow:established,to_client; content:\"EVIL-attack-bytes\"; sid:6;)\n\
    drop http any any -> any any (msg:\"request body\"; http.request_body; content:\"cmd=evil\"; sid:4;)\n\
    drop http any any -> any any (msg:\"response body\"; flow:established,to_client; file.data; content:\"EVIL-file-data\"; sid:5;)\n";

/// The strings in a server's log that show that the server got a forbidden request.
pub const FORBIDDEN: [&str; 2] = ["/evil", "cmd=evil"];

/// The program that an attack is aimed at: one of the receiver's servers, or its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A socket of the kernel.
    Socket,
    /// A socket that delivers urgent bytes in the stream (SO_OOBINLINE).
    UrgentInline,
    /// A socket of the kernel that connects to the sender, which then is the server.
    Client,
    Nginx,
    Apache,
    Python,
    Node,
}

impl Target {
    /// Returns the port that the target listens on; 0 for a client, whose port is unknown before it connects.
    pub fn port(self) -> u16 {
        match self {
            Self::Client => 0,
            Self::Socket => 7000,
            Self::UrgentInline => 7001,
            Self::Nginx => 8001,
            Self::Apache => 8002,
            Self::Python => 8003,
            Self::Node => 8004,
        }
    }
}

/// The kind of an attack, by the position of the forbidden bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// The forbidden bytes are in the sender's stream.
    Stream,
    /// The forbidden bytes are in the path of a request.
    Path,
    /// The forbidden bytes are in the body of a request.
    Body,
    /// The forbidden bytes are in the body of a response, in this encoding.
    Response(Encoding),
    /// The forbidden bytes are in the body of a response that the attacker, as an HTTP server, sends to a client.
    Answer,
}

/// The coding of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encoding {
    Identity,
    Gzip,
    Deflate,
    Br,
}

impl Encoding {
    fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Br => "br",
        }
    }
}

/// A variation in the format of an HTTP request or response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Empty lines before the request.
    EmptyLines(u8),
    LowerMethod,
    /// The request target is a complete URL.
    Absolute,
    TabAfterMethod,
    TwoSpaces,
    /// A header field that continues on the next line.
    Folded,
    /// Ten kilobytes of header lines.
    ManyHeaders,
    /// The body has chunks of this many bytes; true if the chunks have an extension.
    Chunked(u8, bool),
    /// Harmless requests before the attack, in the same stream; the value is their number.
    Pipelined(u8),
    TwoSlashes,
    /// Percent-encoding of letters in the last path segment; the bits select the letters.
    Percent(u8),
    Dots,
    Query,
    Version10,
    /// Lines that end in LF alone.
    BareLf,
    /// Header lines with spaces and tabs around their values.
    SpacedValues,
}

/// Draws a variation of the message format at random.
pub fn random_form(rng: &mut Rng) -> Form {
    match rng.u8(0..16) {
        0 => Form::EmptyLines(rng.u8(1..4)),
        1 => Form::LowerMethod,
        2 => Form::Absolute,
        3 => Form::TabAfterMethod,
        4 => Form::TwoSpaces,
        5 => Form::Folded,
        6 => Form::ManyHeaders,
        7 => Form::Chunked(rng.u8(1..16), rng.bool()),
        8 => Form::Pipelined(rng.u8(1..5)),
        9 => Form::TwoSlashes,
        10 => Form::Percent(rng.u8(1..16)),
        11 => Form::Dots,
        12 => Form::Query,
        13 => Form::Version10,
        14 => Form::BareLf,
        _ => Form::SpacedValues,
    }
}

/// Returns the bytes that a client sends for an attack, or for a harmless variant if `is_benign` is true.
pub fn payload(attack: Attack, forms: &[Form], is_benign: bool, seed: u64) -> Vec<u8> {
    let word = if is_benign { "good" } else { "evil" };
    match attack {
        Attack::Stream => {
            let mut rng = Rng::with_seed(seed);
            let mut around = || -> String {
                let length = rng.usize(0..300);
                (0..length).map(|_| rng.lowercase()).collect()
            };
            let middle = format!("{}-attack-bytes", word.to_uppercase());
            format!("{}{middle}{}", around(), around()).into_bytes()
        }
        Attack::Path => request("GET", &path(word, forms), "", forms),
        Attack::Body => {
            let body = format!("first=1&cmd={word}&last=2");
            request("POST", "/form", &body, forms)
        }
        Attack::Response(encoding) => {
            let path = format!("/file?{}&{word}&{seed}", encoding.name());
            request("GET", &path, "", forms)
        }
        Attack::Answer => answer(word, forms),
    }
}

/// Reports whether a server's log of a request, or a received stream, contains the forbidden bytes.
pub fn is_handed(attack: Attack, is_benign: bool, got: &[u8], sent: &[u8]) -> bool {
    let wanted: &[u8] = match (attack, is_benign) {
        (Attack::Stream, false) => b"EVIL-attack-bytes",
        (Attack::Stream, true) => b"GOOD-attack-bytes",
        (Attack::Path, false) => FORBIDDEN[0].as_bytes(),
        (Attack::Path, true) => b"/good",
        (Attack::Body, false) => FORBIDDEN[1].as_bytes(),
        (Attack::Body, true) => b"cmd=good",
        (Attack::Answer, false) => b"EVIL-file-data",
        (Attack::Answer, true) => b"GOOD-file-data",
        // The evasion may turn the request into another one, which gets a harmless response.
        (Attack::Response(_), false) => b"&evil&",
        (Attack::Response(_), true) => b"&good&",
    };
    let got = match attack {
        Attack::Answer => body(got, sent),
        _ => got.to_vec(),
    };
    got.windows(wanted.len()).any(|window| window == wanted)
}

/// Builds an HTTP response with a body that contains `word` in capitals.
fn answer(word: &str, forms: &[Form]) -> Vec<u8> {
    let body = format!(
        "{}{}-file-data{0}",
        "some text\n".repeat(20),
        word.to_uppercase()
    );
    let mut head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n".to_string();
    let body = headed(&mut head, &body, forms);
    format!("{head}\r\n{body}").into_bytes()
}

/// Returns the body of a response with its chunks joined. It is empty if the head differs from the one sent, as the
/// body's position is unknown then.
fn body(got: &[u8], sent: &[u8]) -> Vec<u8> {
    let [got, sent] = [got, sent].map(String::from_utf8_lossy);
    let (Some((head, mut rest)), Some((sent, _))) =
        (got.split_once("\r\n\r\n"), sent.split_once("\r\n\r\n"))
    else {
        return Vec::new();
    };
    if head.trim_start_matches('\0') != sent {
        return Vec::new();
    }
    if !head.contains("chunked") {
        return rest.as_bytes().to_vec();
    }
    let mut joined = String::new();
    while let Some((line, behind)) = rest.split_once("\r\n") {
        let digits = line.split(';').next().unwrap_or_default();
        let length = usize::from_str_radix(digits, 16).unwrap_or(0);
        let Some((chunk, behind)) = behind.split_at_checked(length).filter(|_| length > 0) else {
            break;
        };
        joined += chunk;
        rest = behind.strip_prefix("\r\n").unwrap_or(behind);
    }
    joined.into_bytes()
}

fn path(word: &str, forms: &[Form]) -> String {
    let mut letters: String = word.to_string();
    let (mut front, mut query) = ("/", "");
    for form in forms {
        match form {
            Form::TwoSlashes => front = "//",
            Form::Dots => front = "/x/.././",
            Form::Query => query = "?a=b&c=%20",
            Form::Percent(bits) => {
                let letter = |(at, letter): (usize, char)| match bits >> at & 1 {
                    1 => format!("%{:02x}", u32::from(letter)),
                    _ => letter.to_string(),
                };
                letters = word.chars().enumerate().map(letter).collect();
            }
            _ => {}
        }
    }
    format!("{front}{letters}{query}")
}

fn request(method: &str, target: &str, body: &str, forms: &[Form]) -> Vec<u8> {
    let has = |form: Form| forms.contains(&form);
    let method = match has(Form::LowerMethod) {
        true => method.to_lowercase(),
        false => method.to_string(),
    };
    let behind_method = match (has(Form::TabAfterMethod), has(Form::TwoSpaces)) {
        (true, _) => "\t",
        (_, true) => "  ",
        _ => " ",
    };
    let host = if has(Form::Absolute) {
        "http://receiver"
    } else {
        ""
    };
    let version = if has(Form::Version10) { "1.0" } else { "1.1" };
    let gap = if has(Form::SpacedValues) {
        " \t  "
    } else {
        " "
    };
    let mut head = format!("{method}{behind_method}{host}{target} HTTP/{version}\r\n");
    head += &format!("Host:{gap}receiver\r\n");
    let body = headed(&mut head, body, forms);
    // Without this header, later requests would wait for a response.
    head += &format!("Connection:{gap}close\r\n");
    let mut text = format!("{head}\r\n");
    if has(Form::BareLf) {
        text = text.replace("\r\n", "\n");
    }
    let in_front: String = forms
        .iter()
        .map(|form| match form {
            Form::Pipelined(count) => {
                "GET /before HTTP/1.1\r\nHost: receiver\r\n\r\n".repeat(usize::from(*count))
            }
            Form::EmptyLines(count) => "\r\n".repeat(usize::from(*count)),
            _ => String::new(),
        })
        .collect();
    format!("{in_front}{text}{body}").into_bytes()
}

/// Adds the header lines that the forms and the body require; returns the encoded body.
fn headed(head: &mut String, body: &str, forms: &[Form]) -> String {
    let has = |form: Form| forms.contains(&form);
    let gap = if has(Form::SpacedValues) {
        " \t  "
    } else {
        " "
    };
    if has(Form::Folded) {
        *head += "X-Folded: one\r\n two\r\n\tthree\r\n";
    }
    if has(Form::ManyHeaders) {
        // Servers accept a hundred header lines.
        (0..90).for_each(|n| *head += &format!("X-Many-{n}: {}\r\n", "y".repeat(100)));
    }
    let chunked = forms.iter().find_map(|form| match form {
        Form::Chunked(size, has_extension) => Some((usize::from(*size), *has_extension)),
        _ => None,
    });
    if body.is_empty() {
        return String::new();
    }
    match chunked {
        None => {
            *head += &format!("Content-Length:{gap}{}\r\n", body.len());
            body.to_string()
        }
        Some((size, has_extension)) => {
            *head += &format!("Transfer-Encoding:{gap}chunked\r\n");
            chunks(body, size, has_extension)
        }
    }
}

fn chunks(body: &str, size: usize, has_extension: bool) -> String {
    let extension = if has_extension {
        ";name=\"va;lue\""
    } else {
        ""
    };
    let chunk = |part: &[u8]| {
        let part = String::from_utf8_lossy(part);
        format!("{:x}{extension}\r\n{part}\r\n", part.len())
    };
    let all: String = body.as_bytes().chunks(size).map(chunk).collect();
    format!("{all}0{extension}\r\n\r\n")
}
