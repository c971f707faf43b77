//! Runs the bodies of the fuzz targets over seeded noise and damaged messages, on the stable toolchain.

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/inspect.rs"]
mod inspect;

const SEED: u64 = 0x1175;

const HTTP: [&[u8]; 4] = [
    b"\0POST /a%2Fb/./c/../d//e?x=%41 HTTP/1.1\r\nHost: A.example:80\r\nCookie: a=1\r\nX: one\r\n two\r\n\
      Content-Length: 5\r\n\r\nhelloHEAD / HTTP/1.1\r\n\r\n\xffHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x\r\nabcde\r\n\
      0\r\nT: x\r\n\r\nHTTP/1.1 200 OK\nContent-Length: 9\n\n",
    b"\0GET / HTTP/1.1\r\n\r\n\xffHTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 25\r\n\r\n\
      \x1f\x8b\x08\0\0\0\0\0\0\x03\xcbH\xcd\xc9\xc9\x07\0\x86\xa6\x10\x36\x05\0\0\0HTTP/1.1 200 OK\r\nContent-Encoding: deflate, br\r\n\r\n\
      \x1b\x3e\0\xf8",
    b"\x05\nget /\n\r\nPUT / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n \r\n4\r\nbody\r\n0\r\n\r\n\xff \r\nHTTP/1.1 101 x\r\n\r\nx\n \nHTTP/1.1",
    b"\x03HTTP/1.0 404 Not found\r\nSet-Cookie: a\r\n\r\nbody\xffGET http://a.example/x/../y HTTP/1.0\n\n",
];
const DNS: &[u8] = b"\0\x22\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03www\x07example\x03com\0\0\x01\0\x01";
const TLS: &[u8] = b"\x16\x03\x01\0\x46\x01\0\0\x42\x03\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\x02\x13\x01\x01\0\0\x17\0\x0a\0\x02\0\x1d\0\0\0\x0d\0\x0b\0\0\x08a.invalid";
const FRAGMENTS: &[u8] =
    b"\0\x1c\x45\0\0\x1c\0\x01\x20\0\x40\x11\xd6\xcc\xc0\0\x02\x01\xc0\0\x02\x02abcdefgh\
    \0\x17\x45\0\0\x17\0\x01\0\x01\x40\x11\xf6\xd0\xc0\0\x02\x01\xc0\0\x02\x02end";
/// Sessions of protocols whose messages are records, in the order of the list of protocols.
const RECORDS: [&[u8]; 5] = [
    b"\x01\x07OPTIONS sip:b SIP/2.0\r\nTo: x\r\nContent-Length: 2\r\n\r\nab\xfeSIP/2.0 200 All right\r\nTo: x\r\n\r\n",
    b"\x02\x05\x10\x10\0\x04MQTT\x04\xc2\0\x0a\0\0\0\x01a\0\x01b\xfe\x20\x02\0\0\xfe\x82\x0c\0\x01\0\x03one\0\0\x01b\0",
    b"\x04\x03USER a\r\nPORT 1,2,3,4,5,6\r\nPASV\r\n\xfe220 (x)\r\n331-One\r\n331 two\r\n200 x\r\n227 Mode (1,2,3,4,5,6)\r\n\xfe\
      AUTH TLS\r\n\xfe234 x\r\n",
    b"\x03\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\x01\0\0\0\x01\0\0\x02\x01\x05\0\0\0\x03\x82\x84",
    b"\x05\x03SSH-2.0-a b\r\n\0\0\0\x06\0\x02abcd\0\0\0\x36\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\0\0\
      \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xfex\r\nSSH-1.99-c\r\n\0\0\0\x06\0\x15abcd",
];
/// Datagrams: one of NTP, and two of IKE.
const DATAGRAMS: [&[u8]; 3] = [
    b"\x23\x02\0\0\0\0\0\0\0\0\0\0LOCL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
    b"abcdefgh\0\0\0\0\0\0\0\0\x01\x10\x02\0\0\0\0\0\0\0\0\x54\x0a\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x1c\x01\x01\0\x01\
      \0\0\0\x14\x01\x01\0\0\x80\x02\0\x02\0\x0c\0\x04\0\x01\x51\x80\x0d\0\0\x08nonc\0\0\0\x08vend",
    b"\0\0\0\0abcdefgh\0\0\0\0\0\0\0\0\x21\x20\x22\0\0\0\0\0\0\0\0\x30\x2e\0\0\x14\0\0\0\x10\x01\x01\0\x01\0\0\0\x08\x01\0\0\x0c",
];

/// Returns the bytes with some changed, and sometimes truncated.
fn damaged(bytes: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(..4) {
        let at = random.usize(..bytes.len());
        bytes[at] = match random.u8(..3) {
            0 => random.u8(..),
            1 => bytes[random.usize(..bytes.len())],
            _ => *random.choice(b"\r\n :/%.0\xff").unwrap_or(&0),
        };
    }
    if random.u8(..4) == 0 {
        bytes.truncate(random.usize(..=bytes.len()));
    }
    bytes
}

/// Returns encoded segments at close positions in a stream, so that they overlap.
fn segments(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = vec![random.u8(..), random.u8(..), random.u8(..), random.u8(..)];
    for _ in 0..random.usize(..120) {
        let how = random.u8(..) & if random.u8(..8) > 0 { 0xef } else { 0xff };
        bytes.extend([random.u8(..), random.u8(..2), random.u8(..80), how]);
    }
    bytes
}

/// Returns patterns and a text of few different letters, so that matches occur.
fn patterns(random: &mut fastrand::Rng) -> Vec<u8> {
    let letter = |random: &mut fastrand::Rng| b"abAB\0\xff[\\."[random.usize(..9)];
    let many = random.u8(..16);
    let mut bytes = vec![many | if random.u8(..32) == 0 { 0xf0 } else { 0 }];
    for _ in 0..=many {
        let len = random.u8(..4);
        bytes.push(len);
        bytes.extend((0..=len).map(|_| letter(random)));
    }
    bytes.extend((0..random.usize(..200)).map(|_| letter(random)));
    bytes
}

#[test]
fn random_and_damaged_messages_are_parsed_without_a_panic() {
    let times = corpus::times();
    let mut random = fastrand::Rng::with_seed(SEED + times);
    for _ in 0..1000 * times {
        let noise: Vec<u8> = (0..random.usize(..300)).map(|_| random.u8(..)).collect();
        for body in [
            inspect::dns,
            inspect::tls,
            inspect::http,
            inspect::stream,
            inspect::fragments,
            inspect::records,
            inspect::datagrams,
        ] {
            body(&noise);
        }
        inspect::stream(&segments(&mut random));
        // Patterns are compiled in one of 32 iterations only, because that takes long.
        if random.u8(..32) == 0 {
            inspect::search(&patterns(&mut random));
        }
        inspect::dns(&damaged(DNS, &mut random));
        inspect::dns(&damaged(&DNS[2..], &mut random));
        inspect::tls(&damaged(TLS, &mut random));
        for good in HTTP {
            inspect::http(&damaged(good, &mut random));
        }
        for good in RECORDS {
            inspect::records(&damaged(good, &mut random));
        }
        for good in DATAGRAMS {
            inspect::datagrams(&damaged(good, &mut random));
        }
        inspect::fragments(&damaged(FRAGMENTS, &mut random));
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("inspect_dns", inspect::dns);
    corpus::replay("inspect_fragments", inspect::fragments);
    corpus::replay("inspect_http", inspect::http);
    corpus::replay("inspect_search", inspect::search);
    corpus::replay("inspect_stream", inspect::stream);
    corpus::replay("inspect_tls", inspect::tls);
}
