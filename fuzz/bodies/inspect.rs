//! The bodies of the fuzz targets for inspection; `cargo test` runs the same bodies over seeded noise.
#![allow(dead_code)] // each target uses one of the bodies

use std::collections::BTreeMap;
use taut_inspect::arena::{Arena, CHUNK_BYTES};
use taut_inspect::buffer::{Application, Buffer};
use taut_inspect::certificate::Certificate;
use taut_inspect::dns::{self, Framing, MOST_MESSAGES, Name};
use taut_inspect::fingerprint::{Fingerprint, server_name};
use taut_inspect::flight::{Flight, Kind};
use taut_inspect::fragments::{FragmentLimits, Fragments, Outcome};
use taut_inspect::http::{Http, HttpFault, HttpLimit, HttpLimits};
use taut_inspect::overlap::Overlap;
use taut_inspect::protocols::{Counts, Datagrams, Parser, WITH_RECORDS};
use taut_inspect::recognise::of_datagram;
use taut_inspect::search::{Matcher, Scratch, Search};
use taut_inspect::stream::{Piece, Segment, Stream, StreamLimits};
use taut_inspect::tls::{self, ClientHello, Hellos, Next, Progress};

/// Parses a DNS message, alone and with others in a stream.
pub fn dns(bytes: &[u8]) {
    let mut name = Name::default();
    let question = dns::query(bytes, &mut name);
    assert!(name.len() <= 255);
    if question.is_ok() {
        // Bytes after the message change nothing.
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
    // The same messages are found in a stream that is split anywhere, if all earlier bytes have arrived.
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
        // The stream may also contain the question of a last message that is not complete.
        assert!(found.len() == asked.len() || found.len() == asked.len() + 1);
        assert_eq!(found[..asked.len()], asked);
    }
}

/// Parses the first bytes of a TLS connection, both complete and growing step by step.
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
            // A decision about a prefix must also hold for the complete message.
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
            // Bytes after the message change nothing.
            let mut longer = Certificate::default();
            assert!(longer.read(&[message, b"more"].concat()).is_ok());
            assert_eq!(*longer.subject, *certificate.subject);
        }
        let _ = fingerprint.of_server(message);
        let _ = fingerprint.of_client(message);
        let _ = server_name(message);
    }
}

/// Returns hellos and certificates in the first bytes of a TLS connection that arrive in pieces of `size` bytes.
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

/// Parses both directions of an HTTP connection. Checks that the messages are the same however the bytes are split.
pub fn http(bytes: &[u8]) {
    let (&first, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    // Requests and responses alternate, separated by a byte that neither contains otherwise.
    let turns: Vec<(bool, &[u8])> = bytes
        .split(|&byte| byte == 0xff)
        .enumerate()
        .map(|(number, turn)| (number % 2 == usize::from(first & 1), turn))
        .collect();
    let whole = messages(&turns, usize::MAX);
    for size in [1 + usize::from(first >> 1), 1] {
        let cut = messages(&turns, size);
        // How much of a broken body is decompressed depends on how the bytes are split.
        if !is_broken(&cut) && !is_broken(&whole) {
            assert_eq!(cut, whole);
        }
    }
}

/// Parses both directions of a connection of a record-based protocol, which the first byte selects. Checks that the
/// messages are the same however the bytes are split.
pub fn records(bytes: &[u8]) {
    let [protocol, size, bytes @ ..] = bytes else {
        return;
    };
    let protocol = WITH_RECORDS[usize::from(*protocol) % WITH_RECORDS.len()];
    let mut parser = Parser::new(protocol).expect("its messages are records");
    let turns: Vec<(bool, &[u8])> = bytes
        .split(|&byte| byte == 0xfe)
        .enumerate()
        .map(|(number, turn)| (number % 2 == 0, turn))
        .collect();
    let (whole, counts) = told(&mut parser, &turns, usize::MAX);
    for size in [1 + usize::from(*size), 1] {
        parser.reset();
        let (cut, of_cut) = told(&mut parser, &turns, size);
        // The number of events for one piece is limited, so the results are equal only if no event was skipped.
        if counts.left_out == 0 {
            assert_eq!((cut, of_cut.faults), (whole.clone(), counts.faults));
        }
    }
    parser.gap(true);
    told(&mut parser, &turns, 7);
}

/// Parses a datagram as each datagram-based protocol, in both directions.
pub fn datagrams(bytes: &[u8]) {
    let mut parsers = Datagrams::default();
    for application in [Application::Sip, Application::Ntp, Application::Ike] {
        for to_server in [true, false] {
            let mut told = 0;
            let counts = parsers.read(application, to_server, bytes, |record, ready| {
                assert!(ready.iter().all(|it| record.buffer(it).is_some()));
                told += 1;
            });
            assert!(told <= 1 && counts.told == told);
        }
    }
    for ports in [[123, 9], [500, 500], [9, 4500], [5060, 9]] {
        of_datagram(true, ports, bytes);
    }
}

type Told = Vec<(bool, Vec<(Buffer, Vec<u8>)>)>;

/// Returns the events of a parser for pieces of `size` bytes.
fn told(parser: &mut Parser, turns: &[(bool, &[u8])], size: usize) -> (Told, Counts) {
    let (mut all, mut sum) = (Vec::new(), Counts::default());
    for &(to_server, turn) in turns {
        for piece in turn.chunks(size) {
            let counts = parser.push(to_server, piece, |record, ready| {
                // The end of a body is reported even if the message has no body.
                assert!(
                    ready
                        .iter()
                        .all(|it| it.is_body() || record.buffer(it).is_some())
                );
                let of = |buffer| record.buffers(buffer).map(move |it| (buffer, it.to_vec()));
                all.push((to_server, record.has().iter().flat_map(of).collect()));
            });
            sum.left_out += counts.left_out;
            sum.faults += counts.faults;
            parser.rest();
        }
    }
    (all, sum)
}

type Messages = (Vec<(bool, Vec<(Buffer, Vec<u8>)>)>, Vec<HttpFault>);

fn is_broken(messages: &Messages) -> bool {
    messages.1.contains(&HttpFault::Packing)
}

/// Returns the buffers of each message when the message is complete, and the errors.
fn messages(turns: &[(bool, &[u8])], size: usize) -> Messages {
    // The buffers are as small as possible: they are written for each of many inputs.
    let mut http = Http::new(HttpLimits {
        head: 8192,
        request_body: 4096,
        response_body: 4096,
    });
    let mut all: Messages = Default::default();
    for &(to_server, turn) in turns {
        for piece in turn.chunks(size) {
            let mut rest = piece;
            let mut empty = 0;
            while !rest.is_empty() {
                let pushed = http.push(to_server, rest);
                empty = match pushed.consumed + pushed.from_held {
                    0 => empty + 1,
                    _ => 0,
                };
                assert!(empty < 3, "it takes no bytes");
                rest = &rest[pushed.consumed..];
                all.1.extend(pushed.fault);
                let is_bomb = pushed.limit == Some(HttpLimit::Ratio);
                all.1.extend(is_bomb.then_some(HttpFault::Packing));
                let buffers = pushed.ready.iter().filter_map(|buffer| {
                    let bytes = http.buffer_of(to_server, buffer);
                    // An absent body is reported as well.
                    assert!(bytes.is_some() || buffer.is_body(), "it is ready");
                    Some((buffer, bytes?.to_vec()))
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

/// Reassembles segments of a stream, some with a wrong byte. A receiver accepts some, ignores others, and acknowledges
/// at random. In inline mode, the receiver's in-order bytes are exactly those passed on, and memory stays within its
/// limits.
pub fn stream(bytes: &[u8]) {
    let Some((&[chunks, start, limit, mode], bytes)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let mut arena = Arena::new(usize::from(chunks) * CHUNK_BYTES);
    let in_line = mode & 1 == 0;
    let limits = StreamLimits {
        window: usize::from(mode) * 2,
        kept: usize::from(limit) * 64,
        overlap: match mode & 2 {
            0 => Overlap::Drop,
            _ => Overlap::First,
        },
        in_line,
    };
    let first = u32::from(start).wrapping_sub(128).wrapping_mul(100);
    // Each byte is a hash of its position, so that bytes at wrong positions are detected.
    let sent: Vec<u8> = (0..1u32 << 16)
        .map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8)
        .collect();
    let mut stream = Stream::default();
    stream.start(first);
    let mut handed: BTreeMap<usize, u8> = BTreeMap::new();
    let mut received: BTreeMap<usize, u8> = BTreeMap::new();
    let mut next = 0;
    for segment in bytes.chunks_exact(4) {
        let [low, high, len, how] = *segment else {
            return;
        };
        let at = usize::from(u16::from_le_bytes([low, high]) & 0x3fff);
        let len = usize::from(len) << (how & 3);
        let mut payload = sent[at..at + len].to_vec();
        if how & 0x80 != 0 && len > 0 {
            payload[len / 2] ^= 1;
        }
        let mut take = |piece: Piece<'_>| {
            assert!(!piece.data.is_empty());
            assert!(piece.before.len() <= limits.window);
            assert!(!piece.gap || piece.before.is_empty());
            let begin = piece.taken as usize - 1 - piece.data.len();
            for (at, byte) in piece.before.iter().rev().enumerate() {
                assert_eq!(handed.get(&(begin - 1 - at)), Some(byte));
            }
            for (at, byte) in piece.data.iter().enumerate() {
                assert_eq!(handed.insert(begin + at, *byte), None, "handed on twice");
            }
        };
        let sequence = first.wrapping_add(at as u32);
        let what = stream.push(&mut arena, sequence, &payload, &limits, &mut take);
        let is_refused = matches!(
            what,
            Segment::Differs | Segment::Unknown | Segment::NoMemory | Segment::TooFar
        );
        if !is_refused && how & 0x40 == 0 {
            for (at, byte) in (at..).zip(&payload) {
                received.entry(at).or_insert(*byte);
            }
            while received.contains_key(&next) {
                next += 1;
            }
        }
        if how & 0x20 != 0 {
            let number = first.wrapping_add(next as u32);
            stream.acknowledge(&mut arena, number, &limits, &mut take);
        }
        // A stream without its early bytes is no longer trusted.
        if how & 0x10 != 0 && stream.forget(&mut arena) && in_line {
            break;
        }
        assert!(arena.used() <= usize::from(chunks).max(1));
        if in_line && limits.overlap == Overlap::Drop {
            let in_order = received.iter().take_while(|(at, _)| **at < next);
            assert!(
                in_order
                    .clone()
                    .all(|(at, byte)| handed.get(at) == Some(byte))
            );
        }
    }
    stream.close(&mut arena);
    assert_eq!(arena.used(), 0);
}

/// Reassembles fragments, each after a length of two bytes. Checks that a complete set gives a packet, and that memory
/// stays within its limits and is released.
pub fn fragments(bytes: &[u8]) {
    for overlap in [Overlap::Drop, Overlap::First] {
        fragments_with(bytes, overlap);
    }
}

fn fragments_with(bytes: &[u8], overlap: Overlap) {
    let limits = FragmentLimits {
        bytes: 8 * CHUNK_BYTES,
        datagrams: 3,
        of_source: 2,
        timeout_ns: 20,
    };
    let mut kept = Fragments::new(limits, overlap);
    let (mut rest, mut now_ns, mut begun) = (bytes, 0, 0);
    while let Some((&[high, low], behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes([high, low])).min(behind.len());
        let (packet, behind) = behind.split_at(len);
        rest = behind;
        if let Outcome::Whole(whole) = kept.push(now_ns, 0, packet) {
            let len = match whole[0] >> 4 {
                4 => usize::from(u16::from_be_bytes([whole[2], whole[3]])),
                _ => 40 + usize::from(u16::from_be_bytes([whole[4], whole[5]])),
            };
            assert_eq!(whole.len(), len);
        }
        now_ns += 1;
        begun += 1;
        kept.expire(now_ns);
        assert!(kept.bytes() <= limits.bytes && kept.datagrams() <= limits.datagrams);
    }
    kept.expire(u64::MAX);
    assert_eq!((kept.bytes(), kept.datagrams()), (0, 0));
    let gone = kept.counters;
    assert!(gone.made_room + gone.made_room_of_source + gone.timed_out <= begun);
}

/// Searches a text for patterns. Checks that both matchers and a naive search find them at the same positions. The
/// input has the number of patterns, each pattern after its length, then the text.
pub fn search(bytes: &[u8]) {
    let Some((&first, mut rest)) = bytes.split_first() else {
        return;
    };
    let mut patterns = Vec::new();
    for _ in 0..1 + first % 16 {
        let Some((&len, behind)) = rest.split_first() else {
            return;
        };
        let len = 1 + usize::from(len % 24);
        let Some((pattern, behind)) = behind.split_at_checked(len) else {
            return;
        };
        patterns.push(pattern.to_ascii_lowercase());
        rest = behind;
    }
    if first == 0xff {
        // The table has no space for this many patterns.
        patterns.extend((0..400).map(|number| format!("{number:024}").into_bytes()));
    }
    patterns.sort();
    patterns.dedup();
    let mut by_hand = Vec::new();
    for (number, pattern) in patterns.iter().enumerate() {
        let is_there = |place: &[u8]| place.eq_ignore_ascii_case(pattern);
        let places = rest.windows(pattern.len()).enumerate();
        let ends = places
            .filter(|it| is_there(it.1))
            .map(|it| it.0 + pattern.len());
        by_hand.extend(ends.map(|end| (end, number)));
    }
    by_hand.sort_unstable();
    for matcher in [Matcher::AhoCorasick, Matcher::Vectorscan] {
        let search = match Search::new(&patterns, matcher) {
            Ok(search) => search,
            Err(reason) => {
                assert!(reason.starts_with("needs"), "{reason}");
                continue;
            }
        };
        let mut scratch = Scratch::new(std::iter::once(&search));
        let mut found = Vec::new();
        let has_memory = search.find(&mut scratch, rest, &mut |pattern, end| {
            found.push((end, pattern));
        });
        assert!(has_memory);
        found.sort_unstable();
        assert_eq!(found, by_hand, "{matcher:?}");
    }
}
