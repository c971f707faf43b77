//! What the fuzz targets of inspection do with their bytes; `cargo test` runs the same over seeded noise.
#![allow(dead_code)] // each target uses one of the bodies

use taut_inspect::arena::{Arena, CHUNK_BYTES};
use taut_inspect::buffer::Buffer;
use taut_inspect::certificate::Certificate;
use taut_inspect::dns::{self, Framing, MOST_MESSAGES, Name};
use taut_inspect::fingerprint::{Fingerprint, server_name};
use taut_inspect::flight::{Flight, Kind};
use taut_inspect::fragments::{FragmentLimits, Fragments, Outcome};
use taut_inspect::http::{Http, HttpFault};
use taut_inspect::stream::{Segment, Stream, StreamLimits};
use taut_inspect::tls::{self, ClientHello, Hellos, Next, Progress};

/// A DNS message, alone and with others in a stream.
pub fn dns(bytes: &[u8]) {
    let mut name = Name::default();
    let question = dns::query(bytes, &mut name);
    assert!(name.len() <= 255);
    if question.is_ok() {
        // Bytes behind it change nothing.
        let mut longer = Name::default();
        assert_eq!(
            dns::query(&[bytes, b"more"].concat(), &mut longer),
            question
        );
        assert_eq!(*longer, *name);
    }
    let mut rest = bytes;
    let mut asked = Vec::new();
    while let Some((message, taken)) = dns::over_tcp(rest) {
        assert_eq!(message.len() + 2, taken);
        let question = dns::query(message, &mut name);
        if !message.is_empty() {
            asked.push((question, name.to_vec()));
        }
        rest = &rest[taken..];
    }
    // The same messages are found in a stream that is cut anywhere, if what came before is there.
    let size = 1 + usize::from(bytes.first().copied().unwrap_or(0)) % 50;
    let (mut framing, mut found, mut more) = (Framing::default(), Vec::new(), 0);
    for at in (0..bytes.len()).step_by(size) {
        let piece = &bytes[..bytes.len().min(at + size)];
        let mut called = 0;
        more += framing.push(piece, at, &mut name, |question, name| {
            called += 1;
            found.push((question, name.to_vec()));
        });
        assert!(called <= MOST_MESSAGES);
    }
    if more == 0 {
        // The last one may be there as far as its question only.
        assert!(found.len() == asked.len() || found.len() == asked.len() + 1);
        assert_eq!(found[..asked.len()], asked);
    }
}

/// The first bytes of a TLS connection, whole and growing.
pub fn tls(bytes: &[u8]) {
    let mut hello = ClientHello::default();
    tls::records(bytes);
    let mut place = Hellos::default();
    let mut messages = 0;
    while place.next(bytes, &mut hello) == Ok(Next::Hello) {
        assert!(hello.sni.len() <= 255);
        messages += 1;
        assert!(messages <= tls::MOST_MESSAGES);
    }
    let whole = tls::client_hello(bytes, &mut hello);
    let mut part = ClientHello::default();
    for end in 0..bytes.len().min(600) {
        match tls::client_hello(&bytes[..end], &mut part) {
            Ok(Progress::More(more)) => assert!(more > 0),
            // What a part decides, the whole does not change.
            decided => {
                assert_eq!(decided, whole);
                assert!(decided.is_err() || part == hello);
                break;
            }
        }
    }
    let all = flight(bytes, usize::MAX);
    let size = 1 + usize::from(bytes.first().copied().unwrap_or(0)) % 50;
    assert_eq!(flight(bytes, size), all);
    let mut certificate = Certificate::default();
    let mut fingerprint = Fingerprint::default();
    for message in all.iter().map(Vec::as_slice).chain([bytes]) {
        if certificate.read(message).is_ok() {
            // Bytes behind it change nothing.
            let mut longer = Certificate::default();
            assert!(longer.read(&[message, b"more"].concat()).is_ok());
            assert_eq!(*longer.subject, *certificate.subject);
        }
        let _ = fingerprint.of_server(message);
        let _ = fingerprint.of_client(message);
        let _ = server_name(message);
    }
}

/// Hellos and certificates in the first bytes of a TLS connection that come in pieces of that size.
fn flight(bytes: &[u8], size: usize) -> Vec<Vec<u8>> {
    let mut flight = Flight::default();
    let mut found = Vec::new();
    for piece in bytes.chunks(size) {
        let _ = flight.push(piece);
        while let Some(kind) = flight.go_on() {
            match kind {
                Kind::Certificates => found.extend(flight.certificates().map(<[u8]>::to_vec)),
                _ => found.push(flight.message().to_vec()),
            }
        }
    }
    found
}

/// Both directions of an HTTP connection: the bytes give the same messages whichever way they are cut.
pub fn http(bytes: &[u8]) {
    let (&first, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    // Requests and responses take turns, divided by a byte that neither has otherwise.
    let turns: Vec<(bool, &[u8])> = bytes
        .split(|&byte| byte == 0xff)
        .enumerate()
        .map(|(number, turn)| (number % 2 == usize::from(first & 1), turn))
        .collect();
    let whole = messages(&turns, usize::MAX);
    assert_eq!(messages(&turns, 1 + usize::from(first >> 1)), whole);
    assert_eq!(messages(&turns, 1), whole);
}

type Messages = (Vec<(bool, Vec<(Buffer, Vec<u8>)>)>, Vec<HttpFault>);

/// What is in the buffers of each message at its end, and what was wrong.
fn messages(turns: &[(bool, &[u8])], size: usize) -> Messages {
    let mut http = Http::default();
    let mut all: Messages = Default::default();
    for &(to_server, turn) in turns {
        for piece in turn.chunks(size) {
            let mut rest = piece;
            let mut empty = 0;
            while !rest.is_empty() {
                let pushed = http.push(to_server, rest);
                empty = if pushed.consumed == 0 { empty + 1 } else { 0 };
                assert!(empty < 3, "it takes no bytes");
                rest = &rest[pushed.consumed..];
                all.1.extend(pushed.fault);
                let buffers = pushed.ready.iter().map(|buffer| {
                    let bytes = http.buffer_of(to_server, buffer).expect("it is ready");
                    (buffer, bytes.to_vec())
                });
                if pushed.ready.contains(Buffer::HttpHeader) {
                    all.0.push((to_server, buffers.collect()));
                } else if let Some((_, last)) = all.0.iter_mut().rfind(|it| it.0 == to_server) {
                    for (buffer, bytes) in buffers {
                        last.retain(|it| it.0 != buffer);
                        last.push((buffer, bytes));
                    }
                }
            }
        }
    }
    all
}

/// Segments of a stream, four bytes for each: what is handed on is what was sent, and memory comes back.
pub fn stream(bytes: &[u8]) {
    let Some((&[chunks, start, limit, window], bytes)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let mut arena = Arena::new(usize::from(chunks) * CHUNK_BYTES);
    let limits = StreamLimits {
        window: usize::from(window) * 4,
        out_of_order: usize::from(limit) * 64,
    };
    let first = u32::from(start).wrapping_sub(128).wrapping_mul(100);
    // Two bytes say where they are; each byte tells of its place.
    let sent: Vec<u8> = (0..1u32 << 16)
        .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect();
    let mut stream = Stream::default();
    stream.start(first);
    let mut handed: Vec<u8> = Vec::new();
    let mut gaps = 0;
    let mut lies = false;
    for segment in bytes.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([segment[0], segment[1]]) & 0x3fff);
        let len = usize::from(segment[2]) << (segment[3] & 3);
        let mut payload = sent[at..at + len].to_vec();
        if segment[3] & 0x80 != 0 && len > 0 {
            payload[len / 2] ^= 1;
            lies = true;
        }
        let sequence = first.wrapping_add(at as u32);
        let what = stream.push(&mut arena, sequence, &payload, &limits, &mut |piece| {
            assert!(!piece.data.is_empty());
            assert!(piece.before.len() <= limits.window);
            assert!(handed.ends_with(piece.before));
            assert!(!piece.gap || piece.before.is_empty());
            gaps += usize::from(piece.gap);
            handed.extend_from_slice(piece.data);
        });
        if let Segment::Overlap { differs: true } = what {
            assert!(lies, "equal bytes differ");
        }
        assert!(arena.used() <= usize::from(chunks).max(1));
        assert!(arena.used() <= limits.out_of_order / CHUNK_BYTES + 1);
    }
    assert!(handed.len() <= sent.len());
    if gaps == 0 && !lies {
        assert!(sent.starts_with(&handed));
    }
    stream.close(&mut arena);
    assert_eq!(arena.used(), 0);
}

/// Fragments, each behind two bytes of its length: tokens come back once each, and memory stays within its limits.
pub fn fragments(bytes: &[u8]) {
    let limits = FragmentLimits {
        bytes: 4000,
        datagrams: 3,
        timeout_ns: 20,
    };
    let mut kept = Fragments::new(limits);
    let mut back = Vec::new();
    let mut rest = bytes;
    let mut token = 0;
    while let Some((&[high, low], behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(behind.len());
        let (packet, behind) = behind.split_at(len);
        rest = behind;
        match kept.push(token, packet, token) {
            Outcome::Whole { packet, tokens } => {
                assert!(packet.len() <= 65_535 + 40);
                assert!(tokens.contains(&token));
                back.extend(tokens);
                // It is a packet: reading it again says that it is whole, or cut up once more.
                assert!(packet.len() >= 20);
            }
            Outcome::Kept => {}
            Outcome::Dropped { tokens, .. } => {
                assert_eq!(tokens.last(), Some(&token));
                back.extend(tokens);
            }
        }
        token += 1;
        kept.expire(token, &mut |it| back.push(it));
        assert!(kept.bytes() <= limits.bytes && kept.datagrams() <= limits.datagrams);
    }
    kept.expire(u64::MAX, &mut |it| back.push(it));
    assert_eq!((kept.bytes(), kept.datagrams()), (0, 0));
    back.sort_unstable();
    assert!(back.into_iter().eq(0..token));
}
